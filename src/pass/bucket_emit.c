/* bucket_emit: joins the calls of buckets. What is joined counts as one node, which needs what any
 * of its calls needs; so a set of buckets can be joined if the graph has an order still. Nodes are
 * taken as they become ready, the least place first, which is that in the old order. A joined
 * gather has the first place of its calls, and what it reads, made of parameters, has no later one;
 * a joined reduction has the last place. */
#include "bucket.h"

#include <string.h>

typedef struct BucketOrder {
    Arena *tmp;
    Graph *g;
    const bool *param;
    int count;
    Node **at;       /* by place in the old order */
    int *place;      /* by node id */
    Bucket **bucket; /* by place; NULL: none */
    int *key;        /* by place: where it is to stand */
    int *waits;      /* by place (of a bucket, its first call's): what it still waits for */
    int *first, *next, *reader; /* by place: the list of places that wait for it */
    int nlink, caplink, capreader;
    int *heap, nheap;
} BucketOrder;

static bool gathers(const Bucket *b)
{
    return node_collective(b->node[0]) == ALL_GATHER;
}

/* The place that stands for all calls of a bucket. */
static int head_of(const BucketOrder *x, int p)
{
    return x->bucket[p] ? x->place[x->bucket[p]->node[0]->id] : p;
}

/* ---- places ---- */

static BucketOrder order_start(const Buckets *list, Graph *g, const bool *param)
{
    BucketOrder x = {.tmp = list->tmp, .g = g, .param = param};
    for (const Node *n = g->first; n; n = n->next)
        x.count++;
    x.at = NEWN(x.tmp, Node *, x.count);
    x.place = NEWN(x.tmp, int, g->nnode);
    x.bucket = NEWN(x.tmp, Bucket *, x.count);
    x.key = NEWN(x.tmp, int, x.count);
    x.waits = NEWN(x.tmp, int, x.count);
    x.first = NEWN(x.tmp, int, x.count);
    x.heap = NEWN(x.tmp, int, x.count);
    int p = 0;
    for (Node *n = g->first; n; n = n->next) {
        x.at[p] = n;
        x.place[n->id] = p++;
    }
    return x;
}

static void mark_buckets(BucketOrder *x, const Buckets *list)
{
    memset(x->bucket, 0, sizeof *x->bucket * (size_t)x->count);
    for (int i = 0; i < list->count; i++)
        for (int k = 0; k < list->at[i]->count && !list->at[i]->left; k++)
            x->bucket[x->place[list->at[i]->node[k]->id]] = list->at[i];
}

/* Gives all calls of a bucket the first place, or the last; returns whether one had another. */
static bool share_key(BucketOrder *x, const Bucket *b)
{
    int key = x->key[x->place[b->node[0]->id]];
    bool changed = false;
    for (int k = 1; k < b->count; k++) {
        int own = x->key[x->place[b->node[k]->id]];
        key = gathers(b) ? MIN(key, own) : MAX(key, own);
    }
    for (int k = 0; k < b->count; k++) {
        int *own = &x->key[x->place[b->node[k]->id]];
        changed |= *own != key;
        *own = key;
    }
    return changed;
}

/* What is made of parameters stands no later than what reads it. */
static void lower_keys(BucketOrder *x)
{
    for (int p = x->count - 1; p >= 0; p--)
        for (int i = 0; i < x->at[p]->nin; i++) {
            const Value *v = x->at[p]->in[i];
            if (!v->def || !x->param[x->at[p]->out[0]->id])
                continue;
            int *key = &x->key[x->place[v->def->id]];
            *key = MIN(*key, x->key[p]);
        }
}

static void fill_keys(BucketOrder *x, const Buckets *list)
{
    bool changed = true;
    for (int p = 0; p < x->count; p++)
        x->key[p] = p;
    while (changed) {
        changed = false;
        for (int i = 0; i < list->count; i++)
            changed |= !list->at[i]->left && share_key(x, list->at[i]);
        lower_keys(x);
    }
}

/* ---- what is ready ---- */

static bool stands_before(const BucketOrder *x, int p, int q)
{
    return x->key[p] != x->key[q] ? x->key[p] < x->key[q] : p < q;
}

static void swap_places(int *heap, int i, int j)
{
    int p = heap[i];
    heap[i] = heap[j];
    heap[j] = p;
}

static void heap_put(BucketOrder *x, int p)
{
    int i = x->nheap++;
    x->heap[i] = p;
    for (; i && stands_before(x, x->heap[i], x->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap_places(x->heap, i, (i - 1) / 2);
}

static int heap_take(BucketOrder *x)
{
    int top = x->heap[0], i = 0;
    x->heap[0] = x->heap[--x->nheap];
    for (;;) {
        int least = i;
        for (int j = 2 * i + 1; j <= 2 * i + 2 && j < x->nheap; j++)
            least = stands_before(x, x->heap[j], x->heap[least]) ? j : least;
        if (least == i)
            return top;
        swap_places(x->heap, i, least);
        i = least;
    }
}

static void link_places(BucketOrder *x, int before, int after)
{
    int more = x->nlink;
    PUSH(x->tmp, x->next, x->nlink, x->caplink, x->first[before]);
    x->nlink = more;
    PUSH(x->tmp, x->reader, x->nlink, x->capreader, after);
    x->first[before] = more;
    x->waits[after]++;
}

static void link_all(BucketOrder *x)
{
    x->nlink = x->nheap = 0;
    for (int p = 0; p < x->count; p++) {
        x->first[p] = -1;
        x->waits[p] = 0;
    }
    for (int p = 0; p < x->count; p++)
        for (int i = 0; i < node_nsource(x->at[p]); i++) {
            const Node *n = node_source(x->at[p], i);
            if (n)
                link_places(x, head_of(x, x->place[n->id]), head_of(x, p));
        }
}

/* Fills `order` with heads as they become ready; returns how many ever are. */
static int sort_places(BucketOrder *x, int *order)
{
    int count = 0;
    link_all(x);
    for (int p = 0; p < x->count; p++)
        if (head_of(x, p) == p && !x->waits[p])
            heap_put(x, p);
    while (x->nheap) {
        int p = heap_take(x);
        order[count++] = p;
        for (int k = x->first[p]; k >= 0; k = x->next[k])
            if (!--x->waits[x->reader[k]])
                heap_put(x, x->reader[k]);
    }
    return count;
}

static int count_heads(const BucketOrder *x)
{
    int count = 0;
    for (int p = 0; p < x->count; p++)
        count += head_of(x, p) == p;
    return count;
}

/* Leaves alone what has not become ready. */
static void leave_waiting(const BucketOrder *x, const Buckets *list)
{
    for (int i = 0; i < list->count; i++)
        list->at[i]->left |= x->waits[x->place[list->at[i]->node[0]->id]] > 0;
}

/* ---- the nodes ---- */

static const char *common_scope(Arena *a, const Bucket *b)
{
    Block first = block_of(b->node[0]->scope);
    return first.len ? arena_strndup(a, b->node[0]->scope, (size_t)first.len) : b->node[0]->scope;
}

static void emit_bucket(BucketOrder *x, const Bucket *b, Replace *r)
{
    const Node *n = b->node[0];
    Build to = build_like(x->g, NULL, n);
    Value **in = NEWN(x->tmp, Value *, b->count);
    const char **name = NEWN(x->tmp, const char *, b->count);
    to.scope = common_scope(x->g->a, b);
    for (int k = 0; k < b->count; k++) {
        in[k] = b->node[k]->in[0];
        name[k] = b->node[k]->out[0]->name;
        to.phase = MIN(to.phase, b->node[k]->phase);
        node_unlink(x->g, b->node[k]);
    }
    Node *m = emit_named(&to, n->op, b->count, in, n->attr, NULL, -1, name, b->count);
    for (int k = 0; k < b->count; k++)
        replace_with(r, b->node[k], 0, m->out[k]);
}

/* A joined gather has the earliest phase of its calls; so has then what they read. */
static void lower_phases(const Graph *g)
{
    for (const Node *n = g->last; n; n = n->prev)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->def)
                n->in[i]->def->phase = MIN(n->in[i]->def->phase, n->phase);
}

static bool all_left(const Buckets *list)
{
    bool all = true;
    for (int i = 0; i < list->count; i++)
        all &= list->at[i]->left;
    return all;
}

int buckets_emit(Buckets *list, Graph *g, const bool *param)
{
    BucketOrder x = order_start(list, g, param);
    int *order = NEWN(x.tmp, int, x.count), count, calls = 0;
    if (all_left(list))
        return 0;
    for (;;) {
        mark_buckets(&x, list);
        fill_keys(&x, list);
        if ((count = sort_places(&x, order)) == count_heads(&x))
            break;
        leave_waiting(&x, list);
    }
    Replace r = replace_start(g, x.tmp);
    for (int i = 0; i < count; i++) {
        const Bucket *b = x.bucket[order[i]];
        if (b)
            emit_bucket(&x, b, &r);
        else
            node_move(g, x.at[order[i]], NULL);
        calls += b ? b->count - 1 : 0;
    }
    EACH_NODE(n, g)
        replace_operands(&r, n);
    replace_outputs(&r, g);
    lower_phases(g);
    return calls;
}
