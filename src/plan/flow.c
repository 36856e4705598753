/* The flow of a graph: who waits for whom, which storages each node makes, reads and last reads,
 * and the peak of an order. An estimate of what the planner does with the graph, close enough to
 * compare orders: every view shares its operand's storage (the planner may copy), kernels need no
 * workspace, inputs of the graph are always alive and left out of the sum. All of it is linear in
 * nodes and operands. */
#include "order.h"

enum { ROUND = 64 }; /* sizes are rounded up to this in the planned arena */

typedef struct Pair {
    int row, item;
} Pair;

typedef struct Pairs {
    Pair *pair;
    int count, cap;
} Pairs;

/* Tables needed only while a flow is built. */
typedef struct Make {
    Arena *tmp;
    const Graph *g;
    Flow *f;
    int *place;   /* of a node, by id */
    int *storage; /* of a value, by id */
    int *maker;   /* node of a storage, -1 for an input */
    int *seen;    /* of a storage: the last node that listed it, plus 1 */
    Map input;    /* parameters and state: name to Value */
    Pairs wait, use, make, reuse;
    int capreuses, nreuses;
} Make;

static void add_pair(Make *m, Pairs *p, int row, int item)
{
    Pair x = {row, item};
    PUSH(m->tmp, p->pair, p->count, p->cap, x);
}

/* Rows from pairs, in their order; with `flip` by item. */
static Rows make_rows(Arena *tmp, const Pairs *p, int nrow, bool flip)
{
    Rows r = {NEWN(tmp, int, nrow + 2), NEWN(tmp, int, p->count)};
    int *next = r.at + 1;
    for (int k = 0; k < p->count; k++)
        r.at[(flip ? p->pair[k].item : p->pair[k].row) + 2]++;
    for (int i = 1; i < nrow; i++)
        next[i + 1] += next[i];
    for (int k = 0; k < p->count; k++) {
        Pair x = p->pair[k];
        r.item[next[flip ? x.item : x.row]++] = flip ? x.row : x.item;
    }
    return r;
}

/* ---- storages ---- */

static int add_storage(Make *m, const Value *v, int maker)
{
    Flow *f = m->f;
    int s = f->nstorage++;
    m->storage[v->id] = s;
    m->maker[s] = maker;
    f->kept[s] = maker < 0;
    f->nbytes[s] = maker < 0 ? 0 : (type_nbytes(&v->type) + ROUND - 1) / ROUND * ROUND;
    return s;
}

static void list_use(Make *m, int i, int s)
{
    if (m->seen[s] == i + 1)
        return;
    m->seen[s] = i + 1;
    add_pair(m, &m->use, i, s);
}

/* Operands of the same type that output k may overwrite. */
static void list_reuse(Make *m, int i, const Node *n, int k)
{
    unsigned mask = node_inplace(n, k);
    for (int j = 0; j < MIN(n->nin, 32) && mask; j++) {
        int from = m->storage[n->in[j]->id], to = m->storage[n->out[k]->id];
        if (!(mask >> j & 1) || m->f->kept[from] || m->f->nbytes[from] != m->f->nbytes[to])
            continue;
        Reuse r = {to, from};
        add_pair(m, &m->reuse, i, m->nreuses);
        PUSH(m->tmp, m->f->reuses, m->nreuses, m->capreuses, r);
    }
}

static void add_node(Make *m, int i)
{
    const Node *n = m->f->node[i];
    for (int j = 0; j < n->nin; j++) {
        list_use(m, i, m->storage[n->in[j]->id]);
        if (n->in[j]->def)
            add_pair(m, &m->wait, i, m->place[n->in[j]->def->id]);
    }
    for (int j = 0; j < n->nafter; j++)
        add_pair(m, &m->wait, i, m->place[n->after[j]->id]);
    for (int k = 0; k < n->nout; k++) {
        if (n->op->view) {
            m->storage[n->out[k]->id] = m->storage[n->in[0]->id];
        } else {
            add_pair(m, &m->make, i, add_storage(m, n->out[k], i));
            list_reuse(m, i, n, k);
        }
    }
}

/* Outputs stay. A new value takes the storage of the old one, after all who read that. */
static void add_output(Make *m, const Port *p)
{
    Flow *f = m->f;
    int s = m->storage[p->v->id], maker = m->maker[s];
    const Value *old = p->role == ROLE_NEW && p->name ? map_find(&m->input, p->name) : NULL;
    f->kept[s] = true;
    if (!old || maker < 0)
        return;
    f->nbytes[s] = 0;
    int from = m->storage[old->id];
    EACH_ITEM(k, f->user, from)
    if (f->user.item[k] != maker)
        add_pair(m, &m->wait, maker, f->user.item[k]);
}

/* ---- the flow ---- */

static int64_t region_work(const Region *r, Arena *tmp)
{
    int64_t body = flow_estimate(r->body, tmp), tail = r->tail ? flow_estimate(r->tail, tmp) : 0;
    return MAX(body, tail);
}

static bool find_cycle(const Flow *f, Arena *tmp)
{
    int *wait = NEWN(tmp, int, f->n), *ready = NEWN(tmp, int, f->n), nready = 0, ndone = 0;
    for (int i = 0; i < f->n; i++)
        if (!(wait[i] = f->pred.at[i + 1] - f->pred.at[i]))
            ready[nready++] = i;
    while (ndone < nready) {
        int i = ready[ndone++];
        EACH_ITEM(k, f->succ, i)
        if (!--wait[f->succ.item[k]])
            ready[nready++] = f->succ.item[k];
    }
    return ndone < f->n;
}

static Make setup(const Graph *g, Arena *tmp)
{
    Flow *f = NEW(tmp, Flow);
    Make m = {.tmp = tmp, .g = g, .f = f, .input = {.a = tmp}};
    m.place = NEWN(tmp, int, g->nnode);
    m.storage = NEWN(tmp, int, g->nvalue);
    m.maker = NEWN(tmp, int, g->nvalue);
    m.seen = NEWN(tmp, int, g->nvalue);
    f->node = NEWN(tmp, Node *, g->nnode);
    f->nbytes = NEWN(tmp, int64_t, g->nvalue);
    f->kept = NEWN(tmp, bool, g->nvalue);
    f->work = NEWN(tmp, int64_t, g->nnode);
    for (Node *n = g->first; n; n = n->next) {
        m.place[n->id] = f->n;
        f->node[f->n++] = n;
    }
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        add_storage(&m, p->v, -1);
        if (role_renewed(p->role))
            map_put(&m.input, p->name, p->v);
    }
    return m;
}

Flow *flow_new(const Graph *g, Arena *tmp)
{
    Make m = setup(g, tmp);
    Flow *f = m.f;
    for (int i = 0; i < f->n; i++) {
        add_node(&m, i);
        if (f->node[i]->op->region == LOOP)
            f->work[i] = region_work(f->node[i]->region, tmp);
    }
    f->use = make_rows(tmp, &m.use, f->n, false);
    f->user = make_rows(tmp, &m.use, f->nstorage, true);
    f->make = make_rows(tmp, &m.make, f->n, false);
    f->reuse = make_rows(tmp, &m.reuse, f->n, false);
    for (int i = 0; i < g->nout; i++)
        add_output(&m, &g->out[i]);
    f->pred = make_rows(tmp, &m.wait, f->n, false);
    f->succ = make_rows(tmp, &m.wait, f->n, true);
    f->cyclic = find_cycle(f, tmp);
    f->left = NEWN(tmp, int, f->nstorage);
    return f;
}

/* ---- the peak of an order ---- */

/* What node i writes over operands that die there; left[s] counts the readers of s still to come.
 */
static int64_t reused(const Flow *f, const int *left, int i)
{
    int64_t sum = 0;
    int last = -1, taken = -1;
    EACH_ITEM(k, f->reuse, i)
    {
        Reuse r = f->reuses[f->reuse.item[k]];
        if (left[r.from] || f->kept[r.from] || r.to == last || r.from == taken)
            continue;
        last = r.to;
        taken = r.from;
        sum += f->nbytes[r.to];
    }
    return sum;
}

Peak flow_peak(const Flow *f, const int *order)
{
    int *left = f->left;
    int64_t live = 0;
    Peak peak = {0};
    for (int s = 0; s < f->nstorage; s++)
        left[s] = f->user.at[s + 1] - f->user.at[s];
    for (int k = 0; k < f->n; k++) {
        int i = order[k];
        int64_t freed = 0;
        EACH_ITEM(j, f->use, i)
        {
            int s = f->use.item[j];
            freed += --left[s] || f->kept[s] ? 0 : f->nbytes[s];
        }
        EACH_ITEM(j, f->make, i)
        {
            int s = f->make.item[j];
            live += f->nbytes[s];
            freed += left[s] || f->kept[s] ? 0 : f->nbytes[s];
        }
        int64_t now = live + f->work[i] - reused(f, left, i);
        if (now > peak.nbytes)
            peak = (Peak){now, k, 0};
        peak.count += now == peak.nbytes;
        live -= freed;
    }
    return peak;
}

int64_t flow_estimate(const Graph *g, Arena *tmp)
{
    Flow *f = flow_new(g, tmp);
    int *order = NEWN(tmp, int, f->n);
    for (int i = 0; i < f->n; i++)
        order[i] = i;
    return flow_peak(f, order).nbytes;
}
