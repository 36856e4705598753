/* Some variables again while all others stay: exactly, as far as tables and steps allow.
 *
 * Bucket elimination (Dechter, 1999) takes the variables out one after the other; a table has, for
 * each combination of a variable's neighbours, the least priced cost of all that was taken out
 * below it. The tables are then a perfect guide backwards (visit.c). */
#include "block.h"

#include <string.h>

/* ---- the variables ---- */

/* The label that is the least far above the bound, of those that are not taken yet; -1: none. */
static int nearest_label(const Search *s, const double *above, const bool *take, int n)
{
    int least = -1;
    for (int j = 0; j < n; j++)
        if (!take[j] && above[j] <= s->keep && (least < 0 || s->scratch[j] < s->scratch[least]))
            least = j;
    return least;
}

/* Labels of u that may be taken, marked: the nearest, by chance a bit further ones, and that of x.
 */
static void mark_labels(Search *s, int u, bool *take)
{
    enum { PARTS = 1000 };
    const double *above = s->above + s->m->first[u];
    int n = model_labels(s->m, u);
    for (int j = 0; j < n; j++)
        take[j] = s->width >= n && above[j] <= s->keep;
    for (int j = 0; j < n && s->width < n; j++)
        s->scratch[j] = above[j] + s->noise * search_draw(s, PARTS) / PARTS;
    for (int i = 0; i < s->width && s->width < n; i++) {
        int least = nearest_label(s, above, take, n);
        if (least >= 0)
            take[least] = true;
    }
    take[s->x[u]] = true;
}

static void mark_mates(const Search *s, int u, bool *take)
{
    for (int i = 0; i < MATES; i++)
        take[s->mate[i][u]] = true;
    take[s->x[u]] = true;
}

static void mark(Search *s, const BlockLimits *limits, int u, bool *take)
{
    if (u == limits->pinned)
        take[limits->label] = true;
    else if (s->mate[0])
        mark_mates(s, u, take);
    else if (s->above)
        mark_labels(s, u, take);
    else
        memset(take, true, sizeof *take * (size_t)model_labels(s->m, u));
}

static void add_bucket(PickBlock *b, const BlockLimits *limits, int u)
{
    int n = model_labels(b->m, u);
    bool *take = NEWN(b->a, bool, n);
    BlockBucket *x = &b->bucket[b->n];
    *x = (BlockBucket){.u = u, .own = -1, .label = NEWN(b->a, int, n)};
    mark(b->s, limits, u, take);
    for (int j = 0; j < n; j++) {
        if (!take[j])
            continue;
        if (j == b->s->x[u])
            x->own = x->k;
        x->label[x->k++] = j;
    }
    if (x->k > 1 || x->own < 0)
        b->at[u] = b->n++;
}

static void begin(PickBlock *b, int n, const int *var, const BlockLimits *limits)
{
    b->bucket = NEWN(b->a, BlockBucket, n);
    b->at = b->s->at;
    for (int i = 0; i < n; i++)
        add_bucket(b, limits, var[i]);
    block_order(b);
}

static void end(PickBlock *b, int n, const int *var)
{
    for (int i = 0; i < n; i++)
        b->at[var[i]] = -1;
}

/* ---- tables ---- */

/* A table of which the scope is scope[]; step[] is from label to label of each. */
static void add_factor(PickBlock *b, BlockBucket *x, const double *val, int n, const int *scope,
                       const int *step)
{
    PickFactor f = {.val = val};
    for (int i = 0, j = 0; i < n; i++) {
        while (x->scope[j] != scope[i])
            j++;
        f.step[j] = step[i];
    }
    PUSH(b->a, x->factor, x->nfactor, x->factor_cap, f);
}

static void fold_edge(PickBlock *b, BlockBucket *x, const ModelEdge *e)
{
    const double *row = model_edge_row(b->m, e, x->u, b->s->x[model_other(e, x->u)]);
    for (int i = 0; i < x->k; i++)
        x->unary[i] += row[x->label[i]];
}

static void join_edge(PickBlock *b, BlockBucket *x, const ModelEdge *e, int at)
{
    const BlockBucket *y = &b->bucket[at];
    double *val = NEWN(b->a, double, (int64_t)x->k * y->k);
    for (int j = 0; j < y->k; j++) {
        const double *row = model_edge_row(b->m, e, x->u, y->label[j]);
        for (int i = 0; i < x->k; i++)
            val[j * x->k + i] = row[x->label[i]];
    }
    add_factor(b, x, val, 1, &at, &x->k);
}

static void fill_unary(PickBlock *b, BlockBucket *x)
{
    const Uses *uses = &b->m->uses[x->u];
    x->unary = NEWN(b->a, double, x->k);
    x->sum = NEWN(b->a, double, x->k);
    for (int i = 0; i < x->k; i++) {
        x->unary[i] = b->m->cost[b->m->first[x->u] + x->label[i]];
        for (const Use *y = uses->use; y < uses_end(uses); y++)
            x->unary[i] += b->s->price[y->row] * y->of[x->label[i]];
    }
}

static void fill_costs(PickBlock *b, int i)
{
    BlockBucket *x = &b->bucket[i];
    const PickModel *m = b->m;
    fill_unary(b, x);
    for (int j = m->edge_first[x->u]; j < m->edge_first[x->u + 1]; j++) {
        const ModelEdge *e = &m->edge[m->edge_of[j]];
        int at = b->at[model_other(e, x->u)];
        if (at < 0)
            fold_edge(b, x, e);
        else if (at > i)
            join_edge(b, x, e, at);
    }
}

INLINE double sum_labels(const BlockBucket *x)
{
    const int k = x->k;
    const double *restrict unary = x->unary;
    double *restrict sum = x->sum, least = INFINITY, other = INFINITY;
    if (!x->nfactor)
        memcpy(sum, unary, sizeof *sum * (size_t)k);
    for (int f = 0; f < x->nfactor; f++) {
        const double *restrict val = x->factor[f].val + x->place[f];
        for (int i = 0; i < k && !f; i++)
            sum[i] = unary[i] + val[i];
        for (int i = 0; i < k && f; i++)
            sum[i] += val[i];
    }
    int i = 0;
    for (; i + 1 < k; i += 2) {
        least = sum[i] < least ? sum[i] : least;
        other = sum[i + 1] < other ? sum[i + 1] : other;
    }
    least = i < k && sum[i] < least ? sum[i] : least;
    return other < least ? other : least;
}

double block_sum(const BlockBucket *x)
{
    return sum_labels(x);
}

enum { LANES = 4, FEW_FACTORS = 4 };

/* The least of the sums of n tables and the costs sum[], added up as sum_labels() does. */
INLINE double least_of(const double *restrict sum, const double *const *val, int n, int k)
{
    double least[LANES] = {INFINITY, INFINITY, INFINITY, INFINITY};
    int i = 0;
    for (; i + LANES <= k; i += LANES) {
        double x[LANES];
        for (int j = 0; j < LANES; j++)
            x[j] = sum[i + j];
        for (int f = 0; f < n; f++)
            for (int j = 0; j < LANES; j++)
                x[j] += val[f][i + j];
        for (int j = 0; j < LANES; j++)
            least[j] = x[j] < least[j] ? x[j] : least[j];
    }
    for (; i < k; i++) {
        double x = sum[i];
        for (int f = 0; f < n; f++)
            x += val[f][i];
        least[0] = x < least[0] ? x : least[0];
    }
    double a = least[0] < least[1] ? least[0] : least[1];
    double b = least[2] < least[3] ? least[2] : least[3];
    return a < b ? a : b;
}

/* The values along the scope's first, of which n tables depend, at first at at[]. */
INLINE void step_row(const BlockBucket *x, const double **at, int n, int count, double *val)
{
    const PickFactor *factor = x->factor + x->nfixed;
    for (int i = 0; i < count; i++) {
        val[i] = least_of(x->sum, at, n, x->k);
        for (int f = 0; f < n; f++)
            at[f] += factor[f].step[0];
    }
}

INLINE void fill_row(const BlockBucket *x, int n, int count, double *val)
{
    const double *at[FEW_FACTORS];
    for (int f = 0; f < n; f++)
        at[f] = x->factor[x->nfixed + f].val + x->place[x->nfixed + f];
    step_row(x, at, n, count, val);
}

/* The same of any number of tables. */
INLINE void fill_long_row(const BlockBucket *x, int count, double *val)
{
    const int n = x->nfactor - x->nfixed;
    for (int f = 0; f < n; f++)
        x->at[f] = x->factor[x->nfixed + f].val + x->place[x->nfixed + f];
    step_row(x, x->at, n, count, val);
}

/* The costs that are the same along a row: in sum[]. */
INLINE void sum_fixed(const BlockBucket *x)
{
    double *restrict sum = x->sum;
    memcpy(sum, x->unary, sizeof *sum * (size_t)x->k);
    for (int f = 0; f < x->nfixed; f++) {
        const double *restrict val = x->factor[f].val + x->place[f];
        for (int i = 0; i < x->k; i++)
            sum[i] += val[i];
    }
}

/* The next combination of the scope behind its first. */
INLINE void step_on(const PickBlock *b, BlockBucket *x, int *digit)
{
    for (int d = 1; d < x->nscope; d++) {
        int k = b->bucket[x->scope[d]].k;
        bool carry = ++digit[d] == k;
        for (int f = 0; f < x->nfactor; f++)
            x->place[f] += (int64_t)x->factor[f].step[d] * (carry ? 1 - k : 1);
        if (!carry)
            return;
        digit[d] = 0;
    }
}

KERNEL(void, fill_values, (const PickBlock *b, BlockBucket *x, int64_t size), (b, x, size))
{
    int digit[MOST_SCOPE] = {0};
    const int count = x->nscope ? b->bucket[x->scope[0]].k : 1;
    for (int64_t i = 0; i < size; i += count) {
        double *val = x->val + i;
        sum_fixed(x);
        switch (x->nfactor - x->nfixed) {
        case 0: fill_row(x, 0, count, val); break;
        case 1: fill_row(x, 1, count, val); break;
        case 2: fill_row(x, 2, count, val); break;
        case 3: fill_row(x, 3, count, val); break;
        case FEW_FACTORS: fill_row(x, FEW_FACTORS, count, val); break;
        default: fill_long_row(x, count, val);
        }
        step_on(b, x, digit);
    }
}

/* Puts the tables that do not depend on the scope's first before the others. */
static void sort_factors(const PickBlock *b, BlockBucket *x)
{
    PickFactor *to = NEWN(b->a, PickFactor, x->nfactor);
    int n = 0;
    for (int varies = 0; varies < 2; varies++) {
        for (int f = 0; f < x->nfactor; f++)
            if (varies == (x->factor[f].step[0] > 0))
                to[n++] = x->factor[f];
        if (!varies)
            x->nfixed = n;
    }
    x->factor = to;
}

/* Makes the room as large as the block before would have it. */
static void begin_room(SearchRoom *r)
{
    if (r->wanted > r->size && r->size < MOST_ROOM) {
        r->size = MIN(2 * r->wanted, MOST_ROOM);
        r->at = SPARSE(r->a, double, r->size);
    }
    r->used = r->wanted = 0;
}

/* Not cleared. */
static double *table_room(PickBlock *b, int64_t size)
{
    SearchRoom *r = b->s->room;
    r->wanted += size;
    if (r->size - r->used < size)
        return SPARSE(b->a, double, size);
    r->used += size;
    return r->at + r->used - size;
}

static void fill_table(PickBlock *b, BlockBucket *x)
{
    int step[MOST_SCOPE];
    int64_t size = 1;
    for (int d = 0; d < x->nscope; d++) {
        step[d] = (int)size;
        size *= b->bucket[x->scope[d]].k;
    }
    sort_factors(b, x);
    x->place = NEWN(b->a, int64_t, x->nfactor);
    x->at = (const double **)NEWN(b->a, double *, x->nfactor);
    x->val = table_room(b, size);
    fill_values(b, x, size);
    b->s->steps += size * x->k * (x->nfactor + 1);
    if (x->nscope)
        add_factor(b, &b->bucket[x->scope[0]], x->val, x->nscope - 1, x->scope + 1, step + 1);
}

BlockAnswer block_improve(Arena *tmp, Search *s, int n, const int *var, BlockLimits limits)
{
    PickBlock b = {.a = tmp, .s = s, .m = s->m, .cells = limits.cells, .whole = true};
    double least = 0;
    search_refresh(s);
    begin_room(s->room);
    begin(&b, n, var, &limits);
    for (int i = 0; i < b.n; i++)
        fill_costs(&b, i);
    for (int i = 0; i < b.n; i++) {
        fill_table(&b, &b.bucket[i]);
        if (!b.bucket[i].nscope)
            least += b.bucket[i].val[0];
    }
    BlockAnswer answer = block_visit(&b, least, &limits);
    end(&b, n, var);
    return answer;
}
