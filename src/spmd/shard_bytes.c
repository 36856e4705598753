/* shard_bytes: what the strategies of a problem keep in a rank's memory, at some moments of a step.
 *
 * A moment is a node of the step in its order: of each part of the step the one at which most
 * bytes, of the whole graph, are alive, and those at which most are if ranks share what is alive
 * but gather what the node reads of parameters, or have all that it makes of a gradient; and the
 * last of the backward. Parameters and state are there always, a result from its node on to the
 * last that reads it or a view of it, or that writes its own result over it. Where several read it,
 * it has the form from which they go on, but at its node the form that this makes; where a moment's
 * node needs another one, both are there, which counts where bytes are limited (shard_beside.c).
 * Results of the optimizer take the place of what they replace; what is gathered, or cast, of
 * parameters is dropped and made again, so it counts only at the node that reads it. A value
 * that a loop reads is there for all iterations, casts of parameters too. The plan of
 * the step says what it needs in truth; here bytes are there to be compared. Linear in readings, in
 * nodes times classes of parameters, and in classes times moments. */
#include "solved.h"

#include <string.h>

enum { PARTS = 8, MOST_MOMENTS = 3 * PARTS + 1 };

/* By value id: the nodes between which it is alive; from < 0: it is not counted. */
typedef struct Life {
    int from, to;
} Life;

typedef struct ByteCounter {
    const EqualGraph *e;
    Arena *tmp;
    const bool *dropped; /* by value id: computed again for the backward, by --recompute */
    Life *life;
    int *root;          /* by value id: what it is a view of */
    const int *entered; /* by value id: behind which node a loop ends that reads it and does not
                           make it; 0: there is none */
    int nrank;
    int nmoment, moment[MOST_MOMENTS];
    const Node *node[MOST_MOMENTS];
    int (*alive)[MOST_MOMENTS]; /* values of a value class, then of a group with a shared form; then
                                   operands of a moment's node */
} ByteCounter;

/* ---- lives ---- */

static void find_roots(const ByteCounter *y)
{
    const Graph *g = y->e->g;
    for (int v = 0; v < g->nvalue; v++)
        y->root[v] = v;
    for (const Node *n = g->first; n; n = n->next)
        if (n->op->view)
            y->root[n->out[0]->id] = y->root[n->in[0]->id];
}

/* Fills y->entered. A loop's nodes stand together. */
static const int *find_entered(const ByteCounter *y)
{
    const Graph *g = y->e->g;
    const Node **maker = NEWN(y->tmp, const Node *, g->nvalue), *loop = NULL;
    int *entered = NEWN(y->tmp, int, g->nvalue), at = 0, end = 0;
    for (const Node *n = g->first; n; n = n->next, at++)
        for (int k = 0; k < n->nout; k++)
            maker[n->out[k]->id] = flat_node(y->e->flat, n).loop;
    for (const Node *n = g->last; n; n = n->prev, at--) {
        const Node *now = flat_node(y->e->flat, n).loop;
        end = now != loop ? at : end;
        loop = now;
        for (int i = 0; i < n->nin && loop; i++) {
            const int v = y->root[n->in[i]->id];
            entered[v] = maker[v] != loop ? MAX(entered[v], end) : entered[v];
        }
    }
    return entered;
}

static bool is_counted(const ByteCounter *y, const Node *n, const Value *v)
{
    return n->op->class != CLASS_OPTIMIZER && !y->e->class[y->e->of_node[n->id]].skipped &&
           (!y->e->param[v->id] || y->entered[v->id]) && y->root[v->id] == v->id;
}

/* Ends operands before the node if its results may be written over them. */
static void end_replaced(ByteCounter *y, const Node *n, int at)
{
    for (int k = 0; k < n->nout; k++) {
        unsigned mask = node_inplace(n, k);
        for (int i = 0; i < n->nin && i < 32; i++) {
            Life *l = &y->life[y->root[n->in[i]->id]];
            if ((mask >> i & 1) && l->to == at + 1 && l->from < at &&
                type_nbytes(&n->in[i]->type) == type_nbytes(&n->out[k]->type)) {
                l->to = at;
                break;
            }
        }
    }
}

/* By value id: whether --recompute has the backward compute it again. */
static const bool *find_dropped(const ByteCounter *y, const char *recompute)
{
    const Graph *g = y->e->g;
    bool *dropped = NEWN(y->tmp, bool, g->nvalue);
    if (!recompute)
        return dropped;
    Graph *copy = graph_clone(y->tmp, g); /* of which the policies are */
    policy_named(copy, y->tmp, recompute);
    for (const Node *n = g->first, *c = copy->first; n; n = n->next, c = c->next)
        for (int k = 0; k < n->nout; k++)
            dropped[n->out[k]->id] = c->policy == PREFER_RECOMPUTE;
    return dropped;
}

/* By value id: behind which node nothing needs it any more. The backward needs the operands of what
 * it computes again, and not that itself. */
static const int *find_last(const ByteCounter *y)
{
    const Graph *g = y->e->g;
    int *last = NEWN(y->tmp, int, g->nvalue), at = 0;
    for (const Node *n = g->first; n; n = n->next, at++)
        for (int i = 0; i < n->nin && n->phase >= BACKWARD; i++)
            last[y->root[n->in[i]->id]] = at + 1;
    for (const Node *n = g->last; n; n = n->prev)
        for (int k = 0; k < n->nout && n->phase < BACKWARD; k++) {
            const int v = n->out[k]->id;
            if (y->root[v] != v || !y->dropped[v] || y->entered[v])
                continue;
            for (int i = 0; i < n->nin; i++)
                last[y->root[n->in[i]->id]] = MAX(last[y->root[n->in[i]->id]], last[v]);
            last[v] = 0;
        }
    at = 0;
    for (const Node *n = g->first; n; n = n->next, at++)
        for (int i = 0; i < n->nin && n->phase < BACKWARD; i++)
            last[y->root[n->in[i]->id]] = MAX(last[y->root[n->in[i]->id]], at + 1);
    for (int v = 0; v < g->nvalue; v++)
        last[v] = MAX(last[v], y->entered[v]);
    for (int i = 0; i < g->nout; i++)
        last[y->root[g->out[i].v->id]] = at;
    return last;
}

static void find_lives(ByteCounter *y)
{
    const Graph *g = y->e->g;
    const int *last = find_last(y);
    int at = 0, begin = 0;
    const Node *loop = NULL;
    for (int v = 0; v < g->nvalue; v++)
        y->life[v].from = -1;
    for (const Node *n = g->first; n; n = n->next, at++) {
        FlatNode flat = flat_node(y->e->flat, n);
        begin = flat.loop != loop ? at : begin;
        loop = flat.loop;
        for (int k = 0; k < n->nout; k++) /* a loop's sums are there from its first node on */
            if (is_counted(y, n, n->out[k]))
                y->life[n->out[k]->id] =
                    (Life){flat.kind == FLAT_SUM ? begin : at, MAX(at + 1, last[n->out[k]->id])};
    }
    at = 0;
    for (const Node *n = g->first; n; n = n->next, at++)
        end_replaced(y, n, at);
}

/* ---- moments ---- */

/* By node in order: bytes of the whole graph that are alive at it. */
static double *find_alive(const ByteCounter *y)
{
    const Graph *g = y->e->g;
    double *nbytes = NEWN(y->tmp, double, g->nnode + 1);
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            Life l = y->life[n->out[k]->id];
            if (l.from >= 0) {
                nbytes[l.from] += (double)type_nbytes(&n->out[k]->type);
                nbytes[l.to] -= (double)type_nbytes(&n->out[k]->type);
            }
        }
    for (int i = 1; i <= g->nnode; i++)
        nbytes[i] += nbytes[i - 1];
    return nbytes;
}

/* Why a moment counts: most is alive; or most if ranks share that, and n has what it reads of
 * parameters, or makes of gradients, as a whole. */
enum { MOST_ALIVE, MOST_READ, MOST_MADE, NREASON };

static bool has_param_shape(const EqualGraph *e, const Value *v)
{
    for (int c = 0; c < e->nclass; c++)
        if (!e->class[c].n && !e->class[c].fixed && shape_equal(&e->class[c].type, &v->type))
            return true;
    return false;
}

static double weight(const ByteCounter *y, int reason, const Node *n, double alive)
{
    double nbytes = reason == MOST_ALIVE ? alive : alive / y->nrank;
    for (int i = 0; i < n->nin && reason == MOST_READ; i++)
        nbytes += y->e->param[n->in[i]->id] ? (double)type_nbytes(&n->in[i]->type) : 0;
    for (int k = 0; k < n->nout && reason == MOST_MADE && n->phase == BACKWARD; k++)
        nbytes += has_param_shape(y->e, n->out[k]) ? (double)type_nbytes(&n->out[k]->type) : 0;
    return nbytes;
}

/* Marks the node of a part of the step that has the most for that reason. */
static void mark_moments(const ByteCounter *y, int reason, const double *alive, int count,
                         int *marked)
{
    int at = 0, best = 0, part = -1;
    double most = 0;
    for (const Node *n = y->e->g->first; n; n = n->next, at++) {
        double now = weight(y, reason, n, alive[at]);
        int of = (int)((int64_t)at * PARTS / count);
        if (of == part && now <= most)
            continue;
        if (of == part)
            marked[best]--;
        part = of;
        most = now;
        marked[best = at]++;
    }
}

static void find_moments(ByteCounter *y)
{
    const Graph *g = y->e->g;
    const double *alive = find_alive(y);
    int last = -1, at = 0, count = 0;
    for (const Node *n = g->first; n; n = n->next, count++)
        last = n->phase <= BACKWARD ? count : last;
    int *marked = NEWN(y->tmp, int, count);
    for (int reason = 0; reason < NREASON; reason++)
        mark_moments(y, reason, alive, count, marked);
    for (const Node *n = g->first; n; n = n->next, at++)
        if (marked[at] || at == last) {
            y->node[y->nmoment] = n;
            y->moment[y->nmoment++] = at;
        }
}

/* ---- counts ---- */

static void count_alive(ByteCounter *y)
{
    const EqualGraph *e = y->e;
    for (const Node *n = e->g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            int v = n->out[k]->id, group = e->of_group[v];
            bool shared = group >= 0 && e->group[group].nread > 1;
            Life l = y->life[v];
            for (int m = 0; m < y->nmoment && l.from >= 0; m++)
                if (l.from <= y->moment[m] && y->moment[m] < l.to)
                    y->alive[shared && l.from < y->moment[m] ? e->nvalue + group : e->of_value[v]]
                            [m]++;
        }
    for (int i = 0; i < e->g->nin; i++)
        for (int m = 0; m < y->nmoment; m++)
            y->alive[e->of_value[e->g->in[i].v->id]][m]++;
}

/* ---- usage ---- */

/* Usage of a node of the problem: how many values of which keys, and the bytes of each by strategy.
 */
typedef struct ByteUser {
    int nkey, *key;
    int64_t **nbytes;
} ByteUser;

int64_t shard_nbytes(const Spmd *x, const Type *t, const Cut *cut)
{
    Type local = cut_type(t, x->mesh->naxes, x->cuts, cut);
    return type_nbytes(&local);
}

static void add_key(ByteUser *u, int key, int64_t *nbytes)
{
    u->key[u->nkey] = key;
    u->nbytes[u->nkey++] = nbytes;
}

/* Adds the bytes of parameters that a moment's node needs gathered, beyond the fewest of a
 * strategy. */
static void add_gathered(const ByteCounter *y, const Spmd *x, int m, ByteUser *user)
{
    const EqualGraph *e = y->e;
    const Node *n = y->node[m];
    const EqualClass *q = &e->class[e->of_node[n->id]];
    int count = q->skipped ? 0 : q->list.count;
    int64_t *nbytes = NEWN(y->tmp, int64_t, count);
    for (int i = 0; i < n->nin && count; i++) {
        int64_t least = INT64_MAX, *own = NEWN(y->tmp, int64_t, count);
        for (int k = 0; k < count && e->param[n->in[i]->id]; k++) {
            own[k] = shard_nbytes(x, &n->in[i]->type, q->list.list[k]->in[i]);
            least = MIN(least, own[k]);
        }
        for (int k = 0; k < count && e->param[n->in[i]->id]; k++)
            nbytes[k] += own[k] - least;
    }
    y->alive[e->nvalue + e->ngroup + m][m] = 1;
    add_key(&user[e->of_node[n->id]], e->nvalue + e->ngroup + m, nbytes);
}

/* Fills users of the classes, then of the shared forms. */
static void find_users(const ByteCounter *y, const ShardProblem *p, const Spmd *x, ByteUser *user)
{
    const EqualGraph *e = p->e;
    for (int c = 0; c < p->pick.n; c++) {
        int most = c < e->nclass ? e->nvalue + MOST_MOMENTS : 1;
        user[c].key = NEWN(y->tmp, int, most);
        user[c].nbytes = NEWN(y->tmp, int64_t *, most);
    }
    for (int m = 0; m < y->nmoment; m++)
        add_gathered(y, x, m, user);
    for (int v = 0; v < e->nvalue + p->nshared; v++) {
        const SharedForm *shared = v < e->nvalue ? NULL : &p->shared[v - e->nvalue];
        const ValueClass *of = &e->value[shared ? e->group[shared->group].value : v];
        int node = shared ? e->nclass + v - e->nvalue : of->of;
        const StrategyList *list = &e->class[of->of].list;
        int count = shared ? shared->count : list->count;
        ByteUser *u = &user[node];
        int64_t *nbytes = NEWN(y->tmp, int64_t, count);
        for (int i = 0; i < count; i++)
            nbytes[i] = shard_nbytes(x, &of->type,
                                     shared ? of->forms->form[shared->form[i]]
                                            : list->list[i]->out[of->result]);
        add_key(u, shared ? e->nvalue + shared->group : v, nbytes);
    }
}

static bool alive_alike(const ByteCounter *y, const ByteUser *u, int m, int n)
{
    for (int i = 0; i < u->nkey; i++)
        if (y->alive[u->key[i]][m] != y->alive[u->key[i]][n])
            return false;
    return true;
}

static bool any_alive(const ByteCounter *y, const ByteUser *u, int m)
{
    for (int i = 0; i < u->nkey; i++)
        if (y->alive[u->key[i]][m])
            return true;
    return false;
}

/* Says what node `node` of p uses at moments m to end, which are alike. */
static void set_usage(const ByteCounter *y, PickProblem *p, const ByteUser *u, int node, int m,
                      int end)
{
    p->start[node] = m;
    p->end[node] = end;
    for (int k = 0; k < pick_strategies(p, node); k++)
        for (int i = 0; i < u->nkey; i++)
            p->usage[p->first[node] + k] += y->alive[u->key[i]][m] * u->nbytes[i][k];
}

/* A node that has the strategy of `node`, for what it uses at other moments. */
static int add_same(PickProblem *p, int node)
{
    int i = p->n++, k = pick_strategies(p, node);
    p->same[i] = node;
    p->first[i + 1] = p->first[i] + k;
    return i;
}

/* Makes room for all that the moments may add. */
static void widen(Arena *a, PickProblem *p, int nmoment)
{
    int n = p->n * nmoment, nlabel = p->first[p->n] * nmoment;
    int *first = NEWN(a, int, n + 1);
    double *cost = NEWN(a, double, nlabel);
    memcpy(first, p->first, sizeof *first * (size_t)(p->n + 1));
    memcpy(cost, p->cost, sizeof *cost * (size_t)p->first[p->n]);
    p->first = first;
    p->cost = cost;
    p->usage = NEWN(a, int64_t, nlabel);
    p->start = NEWN(a, int64_t, n);
    p->end = NEWN(a, int64_t, n);
    p->same = NEWN(a, int, n);
    memset(p->same, -1, sizeof *p->same * (size_t)n);
}

/* Says what an operand takes at its moment where it is made beside the form that is there. */
static void set_beside(PickProblem *p, const Beside *b)
{
    p->start[b->node] = b->moment;
    p->end[b->node] = b->moment + 1;
    for (int i = 0; i < b->nsize; i++)
        p->usage[p->first[b->node] + b->count + i] = b->size[i];
}

void shard_bytes(ShardProblem *p, const Spmd *x)
{
    const EqualGraph *e = p->e;
    ByteCounter y = {.e = e, .tmp = arena_new(x->ctx), .nrank = 1};
    CHECK(y.tmp);
    for (int c = 0; c < x->mesh->naxes; c++)
        y.nrank *= (int)x->cuts[c].count;
    y.life = NEWN(y.tmp, Life, e->g->nvalue);
    y.root = NEWN(y.tmp, int, e->g->nvalue);
    y.alive = arena_alloc(y.tmp, sizeof *y.alive * (size_t)(e->nvalue + e->ngroup + MOST_MOMENTS));
    find_roots(&y);
    y.entered = find_entered(&y);
    y.dropped = find_dropped(&y, x->o->recompute);
    find_lives(&y);
    find_moments(&y);
    count_alive(&y);
    ByteUser *user = NEWN(y.tmp, ByteUser, p->pick.n);
    find_users(&y, p, x, user);
    const int n = p->pick.n;
    BesideList beside = {0};
    if (x->o->shard_memory)
        beside = shard_beside(p, x, y.tmp, y.nmoment, y.node);
    widen(p->pick.a, &p->pick, MAX(y.nmoment, 1));
    for (int i = 0; i < n; i++) {
        bool own = false; /* its own interval is taken */
        for (int m = 0, end; m < y.nmoment; m = end) {
            for (end = m + 1; end < y.nmoment && alive_alike(&y, &user[i], m, end);)
                end++;
            if (!any_alive(&y, &user[i], m))
                continue;
            set_usage(&y, &p->pick, &user[i], own ? add_same(&p->pick, i) : i, m, end);
            own = true;
        }
    }
    for (int i = 0; i < beside.count; i++)
        set_beside(&p->pick, &beside.list[i]);
    arena_free(y.tmp);
}
