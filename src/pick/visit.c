/* The solutions of a block that can be cheaper than the present one, in depth first order, best
 * label first.
 *
 * A path's regret is how far the least priced cost that it can still lead to is above the least of
 * all. The priced cost less the price of the room is below the cost of every solution within the
 * rows, so that paths end where the regret makes that as large as the cost of the present solution
 * (at once if the block's least does), and where a row has no room left. */
#include "block.h"

#include <string.h>

typedef struct Visit {
    PickBlock *b;
    int nrow, row_cap;
    int *row; /* of the model: those that a solution of the block may break, or that have a price */
    double *left;  /* of each row's room */
    double budget; /* solutions whose regret is not below it are no better */
    int nodes;     /* that may still be visited */
    bool cut;      /* some were not */
    int *best;     /* the labels of the best that was found, or NULL */
} Visit;

/* ---- rows ---- */

/* Lists the rows that the block's variables use, with the most that they can use. */
static void list_rows(Visit *v, double *most)
{
    PickBlock *b = v->b;
    int *slot = b->s->slot;
    for (int i = 0; i < b->n; i++) {
        const Uses *uses = &b->m->uses[b->bucket[i].u];
        for (const Use *x = uses->use; x < uses_end(uses); x++) {
            if (slot[x->row] < 0) {
                slot[x->row] = v->nrow;
                most[v->nrow] = 0;
                PUSH(b->a, v->row, v->nrow, v->row_cap, x->row);
            }
            most[slot[x->row]] += x->most - x->of[b->s->x[b->bucket[i].u]];
        }
    }
}

/* Keeps those that matter; the others are within their room whatever is chosen. */
static void keep_rows(Visit *v, const double *most)
{
    const Search *s = v->b->s;
    int n = 0;
    for (int i = 0; i < v->nrow; i++) {
        int r = v->row[i];
        bool matters = s->price[r] > 0 || s->used[r] + most[i] > v->b->m->row[r].room;
        s->slot[r] = matters ? n : -1;
        if (matters)
            v->row[n++] = r;
    }
    v->nrow = n;
}

static void list_uses(Visit *v, BlockBucket *x)
{
    const Uses *uses = &v->b->m->uses[x->u];
    for (const Use *y = uses->use; y < uses_end(uses); y++) {
        int slot = v->b->s->slot[y->row];
        if (slot < 0)
            continue;
        BucketUse use = {slot, y->of};
        PUSH(v->b->a, x->use, x->nuse, x->use_cap, use);
        v->left[slot] += y->of[v->b->s->x[x->u]];
    }
}

static void begin_rows(Visit *v)
{
    PickBlock *b = v->b;
    double *most = NEWN(b->a, double, b->m->nrow);
    list_rows(v, most);
    keep_rows(v, most);
    v->left = NEWN(b->a, double, v->nrow);
    for (int i = 0; i < v->nrow; i++)
        v->left[i] = b->m->row[v->row[i]].room - b->s->used[v->row[i]];
    for (int i = 0; i < b->n; i++)
        list_uses(v, &b->bucket[i]);
    for (int i = 0; i < v->nrow; i++)
        b->s->slot[v->row[i]] = -1;
}

static double left_value(const Visit *v)
{
    double sum = 0;
    for (int i = 0; i < v->nrow; i++)
        sum += v->left[i] * v->b->s->price[v->row[i]];
    return sum;
}

static bool has_room(const Visit *v, const BlockBucket *x, int i)
{
    for (const BucketUse *y = x->use; y < bucket_end(x); y++)
        if (y->of[x->label[i]] > v->left[y->row])
            return false;
    return true;
}

static void take_room(Visit *v, const BlockBucket *x, int i, double sign)
{
    for (const BucketUse *y = x->use; y < bucket_end(x); y++)
        v->left[y->row] -= sign * y->of[x->label[i]];
}

/* ---- solutions ---- */

/* The priced cost of x, and what its use leaves of the room. */
static double present_value(Visit *v)
{
    const PickBlock *b = v->b;
    const PickModel *m = b->m;
    const int *label = b->s->x;
    double sum = 0;
    for (int i = 0; i < b->n; i++) {
        const BlockBucket *x = &b->bucket[i];
        sum += m->cost[m->first[x->u] + label[x->u]];
        for (int j = m->edge_first[x->u]; j < m->edge_first[x->u + 1]; j++) {
            const ModelEdge *e = &m->edge[m->edge_of[j]];
            int w = model_other(e, x->u);
            if (b->at[w] < 0 || b->at[w] > i)
                sum += model_pair(m, e, x->u, label[x->u], label[w]);
        }
    }
    return sum + left_value(v);
}

/* Puts the chosen labels into x, and what was there into chosen's place. */
static void swap_labels(const PickBlock *b, int *other)
{
    for (int i = 0; i < b->n; i++) {
        int *x = &b->s->x[b->bucket[i].u], before = *x;
        *x = other[i];
        other[i] = before;
    }
}

static void reach(Visit *v, double regret)
{
    PickBlock *b = v->b;
    double more = regret + left_value(v);
    if (more >= v->budget)
        return;
    int *label = NEWN(b->a, int, b->n);
    for (int i = 0; i < b->n; i++)
        label[i] = b->bucket[i].label[b->bucket[i].chosen];
    int nrow = b->m->nrow;
    swap_labels(b, label);
    bool fits = model_fits(b->m, b->s->x);
    swap_labels(b, label);
    if (fits) {
        v->best = label;
        v->budget = more;
    } else if (b->m->nrow > nrow || nrow == MOST_ROWS) { /* not all rows are known here */
        v->nodes = 0;
        v->cut = true;
    }
}

static int least_label(const BlockBucket *x, const double *sum)
{
    int least = 0;
    for (int i = 1; i < x->k; i++)
        if (sum[i] < sum[least])
            least = i;
    return least;
}

static void find_place(const PickBlock *b, BlockBucket *x)
{
    for (int f = 0; f < x->nfactor; f++) {
        x->place[f] = 0;
        for (int d = 0; d < x->nscope; d++)
            x->place[f] += (int64_t)x->factor[f].step[d] * b->bucket[x->scope[d]].chosen;
    }
}

/* All that is left to choose below bucket i. */
static void visit(Visit *v, int i, double regret)
{
    if (i-- == 0) {
        reach(v, regret);
        return;
    }
    BlockBucket *x = &v->b->bucket[i];
    find_place(v->b, x);
    double least = block_sum(x);
    v->b->s->steps += x->k * (x->nfactor + 1 + x->nuse);
    for (;;) {
        int j = least_label(x, x->sum);
        double more = x->sum[j] - least;
        if (!(regret + more < v->budget))
            return;
        if (v->nodes <= 0) {
            v->cut = true;
            return;
        }
        x->sum[j] = INFINITY;
        if (!has_room(v, x, j))
            continue;
        v->nodes--;
        x->chosen = j;
        take_room(v, x, j, 1);
        visit(v, i, regret + more);
        take_room(v, x, j, -1);
    }
}

/* What the regret and the price of the room that is left must stay below together. */
static double find_budget(Visit *v, double least, double most)
{
    const double digits = 1e-12; /* of a cost: less is no difference */
    const Search *s = v->b->s;
    if (!(s->cost < INFINITY) || !(most < INFINITY))
        return INFINITY;
    return present_value(v) - least + (most - s->cost) - digits * fabs(most);
}

BlockAnswer block_visit(PickBlock *b, double least, const BlockLimits *limits)
{
    Visit v = {.b = b, .nodes = limits->nodes};
    if (!(least < INFINITY))
        return (BlockAnswer){false, b->whole};
    begin_rows(&v);
    v.budget = find_budget(&v, least, limits->most);
    visit(&v, b->n, 0);
    if (v.best) {
        swap_labels(b, v.best);
        b->s->cost = model_cost(b->m, b->s->x);
        b->s->nused = 0;
    }
    return (BlockAnswer){v.best, b->whole && !v.cut};
}
