/* The order in which a block's variables are taken out: next is always the one that has the fewest
 * combinations with its neighbours, which then become neighbours of each other. Where even these
 * are too many, a variable with many neighbours leaves the block, drawn, so that the next block is
 * another one. */
#include "block.h"

typedef struct Order {
    PickBlock *b;
    double *weight; /* the logarithm of a bucket's combinations with its neighbours */
    double *size;   /* that of its labels */
    bool *near;     /* [n * n] */
    int **list;     /* of each bucket: those near it */
    int *nlist, *caplist;
    bool *gone;
    int nout, *out; /* in order */
    int *place;     /* in out[], of those in it */
} Order;

static void link_pair(Order *o, int i, int j)
{
    int n = o->b->n;
    if (o->near[i * n + j])
        return;
    o->near[i * n + j] = o->near[j * n + i] = true;
    PUSH(o->b->a, o->list[i], o->nlist[i], o->caplist[i], j);
    PUSH(o->b->a, o->list[j], o->nlist[j], o->caplist[j], i);
    o->weight[i] += o->size[j];
    o->weight[j] += o->size[i];
}

static void remove_bucket(Order *o, int i)
{
    o->gone[i] = true;
    o->weight[i] = INFINITY; /* it is the lightest no more */
    for (int k = 0; k < o->nlist[i]; k++)
        o->weight[o->list[i][k]] -= o->size[i];
}

static int count_near(const Order *o, int i)
{
    int n = 0;
    for (int k = 0; k < o->nlist[i]; k++)
        n += !o->gone[o->list[i][k]];
    return n;
}

static void take_out(Order *o, int i)
{
    BlockBucket *x = &o->b->bucket[i];
    remove_bucket(o, i);
    for (int k = 0; k < o->nlist[i]; k++) {
        int j = o->list[i][k], at = x->nscope;
        if (o->gone[j])
            continue;
        for (; at > 0 && x->scope[at - 1] > j; at--)
            x->scope[at] = x->scope[at - 1];
        x->scope[at] = j;
        x->nscope++;
    }
    for (int j = 1; j < x->nscope; j++)
        for (int k = 0; k < j; k++)
            link_pair(o, x->scope[j], x->scope[k]);
    o->place[i] = o->nout;
    o->out[o->nout++] = i;
}

static void leave_out(Order *o, int i)
{
    remove_bucket(o, i);
    o->b->at[o->b->bucket[i].u] = -1;
    o->b->whole = false;
}

static int find_lightest(const Order *o)
{
    return model_least(o->weight, o->b->n);
}

/* The heaviest of a few drawn ones, of those that are left. */
static int draw_heavy(const Order *o, int left)
{
    enum { DRAWS = 3 };
    int best = -1;
    for (int draw = 0; draw < DRAWS; draw++) {
        int skip = (int)search_draw(o->b->s, (uint32_t)left), i = 0;
        while (o->gone[i] || skip-- > 0)
            i++;
        if (best < 0 || o->weight[i] > o->weight[best])
            best = i;
    }
    return best;
}

static void link_all(Order *o)
{
    const PickBlock *b = o->b;
    const PickModel *m = b->m;
    for (int i = 0; i < b->n; i++)
        for (int j = m->edge_first[b->bucket[i].u]; j < m->edge_first[b->bucket[i].u + 1]; j++) {
            int other = b->at[model_other(&m->edge[m->edge_of[j]], b->bucket[i].u)];
            if (other >= 0)
                link_pair(o, i, other);
        }
}

static void find_order(Order *o)
{
    double most = log(o->b->cells);
    for (int left = o->b->n; left; left--) {
        int i = find_lightest(o);
        if (o->weight[i] > most || count_near(o, i) > MOST_SCOPE)
            leave_out(o, draw_heavy(o, left));
        else
            take_out(o, i);
    }
}

/* Scopes hold places in the order, ascending, without those that left after all. */
static void sort_scope(const Order *o, BlockBucket *x)
{
    int n = 0;
    for (int j = 0; j < x->nscope; j++) {
        int i = x->scope[j], k = n;
        if (o->b->at[o->b->bucket[i].u] < 0)
            continue;
        for (; k > 0 && x->scope[k - 1] > o->place[i]; k--)
            x->scope[k] = x->scope[k - 1];
        x->scope[k] = o->place[i];
        n++;
    }
    x->nscope = n;
}

void block_order(PickBlock *b)
{
    Arena *a = b->a;
    Order o = {.b = b, .weight = NEWN(a, double, b->n), .size = NEWN(a, double, b->n)};
    o.near = NEWN(a, bool, b->n * b->n);
    o.list = NEWN(a, int *, b->n);
    o.nlist = NEWN(a, int, b->n);
    o.caplist = NEWN(a, int, b->n);
    o.gone = NEWN(a, bool, b->n);
    o.out = NEWN(a, int, b->n);
    o.place = NEWN(a, int, b->n);
    for (int i = 0; i < b->n; i++)
        o.weight[i] = o.size[i] = log((double)b->bucket[i].k);
    link_all(&o);
    find_order(&o);
    BlockBucket *sorted = NEWN(a, BlockBucket, o.nout);
    for (int i = 0; i < o.nout; i++) {
        sort_scope(&o, &b->bucket[o.out[i]]);
        sorted[i] = b->bucket[o.out[i]];
    }
    for (int i = 0; i < o.nout; i++)
        b->at[sorted[i].u] = i;
    b->bucket = sorted;
    b->n = o.nout;
}
