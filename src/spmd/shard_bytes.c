/* shard_bytes: what the strategies of a problem keep in a rank's memory, at some moments of a step.
 *
 * A moment is a node of the step in its order: of each part of the step the one at which most
 * bytes, of the whole graph, are alive, and the last of the backward. Parameters and state are
 * there always, a result from its node on to the last that reads it or a view of it. Where several
 * read it, it has the form from which they go on. Results of the optimizer take the place of what
 * they replace; what is gathered, or cast, of parameters is dropped and made again, so it is left
 * out. The plan of the step says what it needs in truth; here bytes are there to be compared.
 * Linear in readings, and in classes times moments. */
#include "solved.h"

#include <string.h>

enum { PARTS = 8, MOST_MOMENTS = PARTS + 1 };

/* By value id: the nodes between which it is alive; from < 0: it is not counted. */
typedef struct Life {
    int from, to;
} Life;

typedef struct ByteCounter {
    const EqualGraph *e;
    Arena *tmp;
    bool full; /* blocks are computed again: of the forward only what other blocks read is kept */
    Life *life;
    int *root; /* by value id: what it is a view of */
    int nmoment, moment[MOST_MOMENTS];
    int (*alive)[MOST_MOMENTS]; /* values of a value class, then of a group with a shared form */
} ByteCounter;

/* ---- lives ---- */

static void find_roots(ByteCounter *y)
{
    const Graph *g = y->e->g;
    for (int v = 0; v < g->nvalue; v++)
        y->root[v] = v;
    for (const Node *n = g->first; n; n = n->next)
        if (n->op->view)
            y->root[n->out[0]->id] = y->root[n->in[0]->id];
}

static bool is_counted(const ByteCounter *y, const Node *n, const Value *v)
{
    return n->op->class != CLASS_OPTIMIZER && !y->e->class[y->e->of_node[n->id]].skipped &&
           !y->e->param[v->id] && y->root[v->id] == v->id;
}

static bool same_block(const Node *n, const Node *m)
{
    Block x = block_of(n->scope), z = block_of(m->scope);
    return x.len == z.len && !memcmp(x.scope, z.scope, (size_t)x.len);
}

/* Whether a reader's operand is there for it: not if its block is computed again. */
static bool keeps(const ByteCounter *y, const Value *v, const Node *reader, const bool *leaves)
{
    return !y->full || !v->def || v->def->phase != FORWARD || reader->phase < BACKWARD ||
           leaves[y->root[v->id]];
}

static void find_lives(ByteCounter *y)
{
    const Graph *g = y->e->g;
    bool *leaves = NEWN(y->tmp, bool, g->nvalue); /* its block */
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
                y->life[n->out[k]->id] = (Life){flat.kind == FLAT_SUM ? begin : at, at + 1};
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->def && n->phase < BACKWARD && !same_block(n, n->in[i]->def))
                leaves[y->root[n->in[i]->id]] = true;
    }
    at = 0;
    for (const Node *n = g->first; n; n = n->next, at++)
        for (int i = 0; i < n->nin; i++)
            if (keeps(y, n->in[i], n, leaves))
                y->life[y->root[n->in[i]->id]].to = at + 1;
    for (int i = 0; i < g->nout; i++)
        y->life[y->root[g->out[i].v->id]].to = at;
}

/* ---- moments ---- */

static void add_moment(ByteCounter *y, int at)
{
    if (!y->nmoment || y->moment[y->nmoment - 1] < at)
        y->moment[y->nmoment++] = at;
}

static void find_moments(ByteCounter *y)
{
    const Graph *g = y->e->g;
    double *nbytes = NEWN(y->tmp, double, g->nnode + 1);
    int last = -1, at = 0;
    for (const Node *n = g->first; n; n = n->next, at++) {
        last = n->phase <= BACKWARD ? at : last;
        for (int k = 0; k < n->nout; k++) {
            Life l = y->life[n->out[k]->id];
            if (l.from >= 0) {
                nbytes[l.from] += (double)type_nbytes(&n->out[k]->type);
                nbytes[l.to] -= (double)type_nbytes(&n->out[k]->type);
            }
        }
    }
    for (int i = 1; i < at; i++)
        nbytes[i] += nbytes[i - 1];
    for (int part = 0; part < PARTS; part++) {
        int from = (int)((int64_t)at * part / PARTS), to = (int)((int64_t)at * (part + 1) / PARTS);
        int most = from;
        for (int i = from; i < to; i++)
            most = nbytes[i] > nbytes[most] ? i : most;
        if (from <= last && last < most)
            add_moment(y, last);
        if (from < to)
            add_moment(y, most);
        if (most < last && last < to)
            add_moment(y, last);
    }
}

/* ---- counts ---- */

static void count_alive(ByteCounter *y)
{
    const EqualGraph *e = y->e;
    for (const Node *n = e->g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            int v = n->out[k]->id, group = e->of_group[v];
            int key = group >= 0 && e->group[group].nread > 1 ? e->nvalue + group : e->of_value[v];
            for (int m = 0; m < y->nmoment; m++)
                y->alive[key][m] += y->life[v].from >= 0 && y->life[v].from <= y->moment[m] &&
                                    y->moment[m] < y->life[v].to;
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

static int64_t local_nbytes(const Spmd *x, const Type *t, const Cut *cut)
{
    Type local = cut_type(t, x->mesh->naxes, x->cuts, cut);
    return type_nbytes(&local);
}

/* Fills users of the classes, then of the shared forms. */
static void find_users(const ByteCounter *y, const ShardProblem *p, const Spmd *x, ByteUser *user)
{
    const EqualGraph *e = p->e;
    for (int c = 0; c < p->pick.n; c++) {
        user[c].key = NEWN(y->tmp, int, c < e->nclass ? e->nvalue : 1);
        user[c].nbytes = NEWN(y->tmp, int64_t *, c < e->nclass ? e->nvalue : 1);
    }
    for (int v = 0; v < e->nvalue + p->nshared; v++) {
        const SharedForm *shared = v < e->nvalue ? NULL : &p->shared[v - e->nvalue];
        const ValueClass *of = &e->value[shared ? e->group[shared->group].value : v];
        int node = shared ? e->nclass + v - e->nvalue : of->of;
        const StrategyList *list = &e->class[of->of].list;
        int count = shared ? shared->count : list->count;
        ByteUser *u = &user[node];
        int64_t *nbytes = NEWN(y->tmp, int64_t, count);
        for (int i = 0; i < count; i++)
            nbytes[i] = local_nbytes(x, &of->type,
                                     shared ? of->forms->form[shared->form[i]]
                                            : list->list[i]->out[of->result]);
        u->key[u->nkey] = shared ? e->nvalue + shared->group : v;
        u->nbytes[u->nkey++] = nbytes;
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

void shard_bytes(ShardProblem *p, const Spmd *x)
{
    const EqualGraph *e = p->e;
    const char *again = x->o->recompute;
    ByteCounter y = {.e = e, .tmp = arena_new(x->ctx)};
    CHECK(y.tmp);
    y.full = again && (!strcmp(again, "full") || !strncmp(again, "every", 5));
    y.life = NEWN(y.tmp, Life, e->g->nvalue);
    y.root = NEWN(y.tmp, int, e->g->nvalue);
    y.alive = arena_alloc(y.tmp, sizeof *y.alive * (size_t)(e->nvalue + e->ngroup));
    find_roots(&y);
    find_lives(&y);
    find_moments(&y);
    count_alive(&y);
    ByteUser *user = NEWN(y.tmp, ByteUser, p->pick.n);
    find_users(&y, p, x, user);
    int n = p->pick.n;
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
    arena_free(y.tmp);
}
