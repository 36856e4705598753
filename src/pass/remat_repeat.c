/* Second copies. `remat` makes one copy of a node, before its first reader in the backward, for all
 * readers. Where that raises the peak, because a later reader is far away, the copy is given up
 * after the readers before the peak and made once more before those behind it.
 *
 * By an estimate: each storage is alive from the node that makes it to its last reader; inputs and
 * what takes their place count nothing, a result may lie over an operand that dies there, a loop
 * has the estimate of its body beside it. The sums over all places are in a tree of maxima. While
 * some copy spans the highest place without being used there, it is cut: its readers behind get a
 * copy of their own, which reads what is alive then, further copies where those are gone, or keeps
 * alive what was saved. The cut stays if all that it adds remains below the peak. In the end as
 * many of the first cuts are made as lower the peak by a greater share of it than they add to the
 * graph's operations; no more operations than the first copies take.
 *
 * Copies are tried largest first, each in at most ROUNDS rounds: n log n. A copy's origin is the
 * copy before it, so that cse does not merge them. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 16,
    MOST_AGAIN = 16, /* copies made for one reader at once */
    MOST_TIMES = 32, /* that a node is made again */
};

/* The places at which a result is read, ascending. */
typedef struct Use {
    int *at;
    int count, cap;
} Use;

/* A node's results while one making of it holds them. */
typedef struct Making {
    int at;
    Use *out;
    struct Making *next; /* later ones */
} Making;

/* Nodes that are made again at a place, for what reads the first of them there or later. */
typedef struct Cut {
    int place, count;
    Node *node[MOST_AGAIN];
} Cut;

/* What was added to the sums at places from <= place < to. */
typedef struct Range {
    int from, to;
    int64_t nbytes;
} Range;

typedef struct Repeat {
    Graph *g;
    Arena *tmp;
    int first;           /* the id from which on nodes are copies that may be repeated */
    int nnode;           /* in the list */
    Node **node;         /* node k stands at place 2k + 1, what is made for it at 2k */
    Making **making;     /* by node id; of views NULL */
    int *times;          /* by node id: made again */
    bool *kept;          /* by value id: to the end of the graph */
    int64_t *nbytes;     /* by value id */
    int64_t *most, *add; /* a tree over places: the greatest sum below, what all below have more */
    int size;            /* of its leaves */
    double nflop, all;   /* that second copies may still cost; of the graph */
    Cut *cut;
    int ncut, capcut;
    Range *range; /* of the cut at hand */
    int nrange, caprange;
} Repeat;

/* ---- the tree ---- */

static void tree_add(Repeat *r, int at, int lo, int hi, const Range *x)
{
    if (x->from >= hi || x->to <= lo)
        return;
    if (x->from <= lo && hi <= x->to) {
        r->most[at] += x->nbytes;
        r->add[at] += x->nbytes;
        return;
    }
    int mid = (lo + hi) / 2;
    tree_add(r, 2 * at, lo, mid, x);
    tree_add(r, 2 * at + 1, mid, hi, x);
    r->most[at] = r->add[at] + MAX(r->most[2 * at], r->most[2 * at + 1]);
}

static int64_t tree_most(const Repeat *r, int at, int lo, int hi, int from, int to)
{
    if (from >= hi || to <= lo)
        return 0;
    if (from <= lo && hi <= to)
        return r->most[at];
    int mid = (lo + hi) / 2;
    int64_t left = tree_most(r, 2 * at, lo, mid, from, to),
            right = tree_most(r, 2 * at + 1, mid, hi, from, to);
    return r->add[at] + MAX(left, right);
}

/* The first place where the sum is greatest. */
static int highest(const Repeat *r)
{
    int at = 1;
    while (at < r->size)
        at = r->most[2 * at] >= r->most[2 * at + 1] ? 2 * at : 2 * at + 1;
    return at - r->size;
}

static void grow(Repeat *r, int from, int to, int64_t nbytes)
{
    Range x = {from, to, nbytes};
    if (from < to)
        tree_add(r, 1, 0, r->size, &x);
}

/* ---- who makes and reads what ---- */

static Value *shown(Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v;
}

/* The making of n that is there at a place. */
static Making *making_at(const Repeat *r, const Node *n, int place)
{
    Making *m = r->making[n->id];
    while (m->next && m->next->at <= place)
        m = m->next;
    return m;
}

static Making *new_making(Repeat *r, const Node *n, int at)
{
    Making *m = NEW(r->tmp, Making);
    *m = (Making){.at = at, .out = NEWN(r->tmp, Use, n->nout)};
    return m;
}

static void add_use(Repeat *r, Use *u, int place)
{
    if (u->count && u->at[u->count - 1] == place)
        return;
    PUSH(r->tmp, u->at, u->count, u->cap, place);
    for (int i = u->count - 1; i > 0 && u->at[i - 1] > place; i--) {
        u->at[i] = u->at[i - 1];
        u->at[i - 1] = place;
    }
}

/* How many uses lie before a place. */
static int count_before(const Use *u, int place)
{
    int lo = 0, hi = u->count;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (u->at[mid] < place)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static int last_of(const Making *m, int k)
{
    return m->out[k].count ? m->out[k].at[m->out[k].count - 1] : m->at;
}

static void find_uses(Repeat *r)
{
    int k = 0;
    for (Node *n = r->g->first; n; n = n->next, k++) {
        r->node[k] = n;
        if (n->op->view)
            continue;
        r->making[n->id] = new_making(r, n, 2 * k + 1);
        for (int i = 0; i < n->nin; i++) {
            const Value *v = shown(n->in[i]);
            if (v->def)
                add_use(r, &r->making[v->def->id]->out[v->index], 2 * k + 1);
        }
    }
}

/* ---- the estimate ---- */

/* Outputs stay to the end; what takes an input's place lies there. */
static void find_outputs(Repeat *r)
{
    const Graph *g = r->g;
    Map renewed = {.a = r->tmp};
    for (int i = 0; i < g->nin; i++)
        if (role_renewed(g->in[i].role))
            map_put(&renewed, g->in[i].name, &g->in[i]);
    for (int i = 0; i < g->nout; i++) {
        const Port *o = &g->out[i];
        int id = shown(o->v)->id;
        r->kept[id] = true;
        if (o->role == ROLE_NEW && map_find(&renewed, o->name))
            r->nbytes[id] = 0;
    }
}

/* Whether result k lies over an operand that nothing reads later. */
static bool overwrites(const Repeat *r, const Node *n, int k, int place)
{
    unsigned may = node_inplace(n, k);
    for (int i = 0; i < MIN(n->nin, 32) && may >> i; i++) {
        const Value *v = shown(n->in[i]);
        if ((may >> i & 1) && v->def && !r->kept[v->id] &&
            r->nbytes[v->id] == r->nbytes[n->out[k]->id] &&
            last_of(r->making[v->def->id], v->index) == place)
            return true;
    }
    return false;
}

static Repeat start(Graph *g, Arena *tmp);

static int64_t estimate(Graph *g, Arena *tmp)
{
    return g ? start(g, tmp).most[1] : 0;
}

static void add_lives(Repeat *r)
{
    for (int k = 0; k < r->nnode; k++) {
        const Node *n = r->node[k];
        int place = 2 * k + 1;
        if (n->op->region == LOOP)
            grow(r, place, place + 1,
                 MAX(estimate(n->region->body, r->tmp), estimate(n->region->tail, r->tmp)));
        for (int j = 0; j < n->nout && !n->op->view; j++) {
            int id = n->out[j]->id, end = r->size;
            if (!r->kept[id])
                end = last_of(r->making[n->id], j) + 1;
            grow(r, place + overwrites(r, n, j, place), end, r->nbytes[id]);
        }
    }
}

static Repeat start(Graph *g, Arena *tmp)
{
    Repeat r = {.g = g, .tmp = tmp, .size = 1, .nbytes = NEWN(tmp, int64_t, g->nvalue)};
    for (const Node *n = g->first; n; n = n->next, r.nnode++)
        for (int k = 0; k < n->nout; k++)
            r.nbytes[n->out[k]->id] = (type_nbytes(&n->out[k]->type) + 63) / 64 * 64;
    while (r.size < 2 * r.nnode + 1)
        r.size *= 2;
    r.node = NEWN(tmp, Node *, r.nnode);
    r.making = NEWN(tmp, Making *, g->nnode);
    r.times = NEWN(tmp, int, g->nnode);
    r.kept = NEWN(tmp, bool, g->nvalue);
    r.most = NEWN(tmp, int64_t, 2 * r.size);
    r.add = NEWN(tmp, int64_t, 2 * r.size);
    find_outputs(&r);
    find_uses(&r);
    add_lives(&r);
    return r;
}

/* ---- one cut ---- */

/* The place of the first reader of m's results behind `peak`, where none is used at the peak and
 * one is read behind it; -1: no. */
static int reader_behind(const Repeat *r, const Node *n, const Making *m, int peak)
{
    int first = -1;
    for (int k = 0; k < n->nout; k++) {
        const Use *u = &m->out[k];
        int i = count_before(u, peak);
        if (r->kept[n->out[k]->id] || (i < u->count && u->at[i] == peak))
            return -1;
        if (i < u->count && (first < 0 || u->at[i] < first))
            first = u->at[i];
    }
    return first;
}

static bool holds(const Cut *c, const Node *n)
{
    for (int i = 0; i < c->count; i++)
        if (c->node[i] == n)
            return true;
    return false;
}

static void change(Repeat *r, int from, int to, int64_t nbytes)
{
    PUSH(r->tmp, r->range, r->nrange, r->caprange, ((Range){from, to, nbytes}));
    grow(r, from, to, nbytes);
}

static bool repeatable(const Repeat *r, const Node *n)
{
    return n->id >= r->first && n->op->region != LOOP && !n->op->collective && !n->nafter &&
           r->times[n->id] < MOST_TIMES;
}

static double flops(const Node *n)
{
    double sum = 0;
    if (!n->region)
        return node_cost(n).nflop;
    for (const Node *m = n->region->body->first; m; m = m->next)
        sum += flops(m) * (double)n->region->n;
    return sum;
}

/* What n reads must be there at a place: it is, or is made again, or is kept until then. False
 * where that is too much. */
static bool provide(Repeat *r, Cut *c, const Node *n)
{
    int place = c->place;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = shown(n->in[i]);
        if (!v->def || r->kept[v->id] || holds(c, v->def))
            continue;
        const Making *m = making_at(r, v->def, place);
        int last = last_of(m, v->index);
        if (last >= place)
            continue;
        if (!repeatable(r, v->def)) {
            change(r, last + 1, place + 1, r->nbytes[v->id]);
            continue;
        }
        if (c->count == MOST_AGAIN)
            return false;
        c->node[c->count++] = v->def;
        for (int k = 0; k < v->def->nout; k++)
            change(r, place, place + 1, r->nbytes[v->def->out[k]->id]);
    }
    return true;
}

/* The first node's results leave the places between their readers. */
static void leave(Repeat *r, const Node *n, const Making *m, int place)
{
    for (int k = 0; k < n->nout; k++) {
        const Use *u = &m->out[k];
        int i = count_before(u, place), from = i ? u->at[i - 1] : m->at;
        int64_t nbytes = r->nbytes[n->out[k]->id];
        if (i < u->count)
            change(r, from + 1, place, -nbytes);
        else
            change(r, place, place + 1, nbytes);
    }
}

static bool stays_below(const Repeat *r, int64_t peak)
{
    for (int i = 0; i < r->nrange; i++) {
        const Range *x = &r->range[i];
        if (x->nbytes > 0 && x->from < x->to && tree_most(r, 1, 0, r->size, x->from, x->to) >= peak)
            return false;
    }
    return true;
}

static void commit(Repeat *r, const Cut *c, Making *from)
{
    for (int j = 0; j < c->count; j++) {
        Making *before = j ? making_at(r, c->node[j], c->place) : from;
        Making *m = new_making(r, c->node[j], c->place);
        r->times[c->node[j]->id]++;
        m->next = before->next;
        before->next = m;
        for (int k = 0; k < c->node[j]->nout && !j; k++) {
            Use *old = &from->out[k];
            int kept = count_before(old, c->place);
            for (int i = kept; i < old->count; i++)
                add_use(r, &m->out[k], old->at[i]);
            old->count = kept;
        }
    }
    for (int j = 0; j < c->count; j++)
        for (int i = 0; i < c->node[j]->nin; i++) {
            const Value *v = shown(c->node[j]->in[i]);
            if (v->def)
                add_use(r, &making_at(r, v->def, c->place)->out[v->index], c->place);
        }
    PUSH(r->tmp, r->cut, r->ncut, r->capcut, *c);
}

/* Cuts what n's making holds across the highest place, if that lowers it there and what is added
 * stays below it. */
static bool try_cut(Repeat *r, Node *n)
{
    int peak = highest(r);
    int64_t height = r->most[1];
    Making *m = making_at(r, n, peak);
    int reader = m->at < peak && repeatable(r, n) ? reader_behind(r, n, m, peak) : -1;
    Cut c = {.place = reader & ~1, .count = 1, .node = {n}};
    if (reader < 0 || c.place <= peak)
        return false;
    r->nrange = 0;
    leave(r, n, m, c.place);
    bool good = true;
    double nflop = 0;
    for (int j = 0; j < c.count && good; j++) {
        good = provide(r, &c, c.node[j]);
        nflop += flops(c.node[j]);
    }
    if (good && nflop <= r->nflop && stays_below(r, height)) {
        r->nflop -= nflop;
        commit(r, &c, m);
        return true;
    }
    for (int i = 0; i < r->nrange; i++)
        grow(r, r->range[i].from, r->range[i].to, -r->range[i].nbytes);
    return false;
}

/* ---- all cuts ---- */

typedef struct Candidate {
    int64_t nbytes;
    int index; /* in r->node */
} Candidate;

static int by_size(const void *x, const void *y)
{
    const Candidate *s = x, *t = y;
    return s->nbytes != t->nbytes ? (s->nbytes < t->nbytes ? 1 : -1) : s->index - t->index;
}

static Candidate *find_candidates(Repeat *r, int *count)
{
    Candidate *list = NEWN(r->tmp, Candidate, r->nnode);
    *count = 0;
    r->all = 1;
    for (int i = 0; i < r->nnode; i++) {
        const Node *n = r->node[i];
        double nflop = n->op->view ? 0 : flops(n);
        r->all += nflop;
        if (n->op->view || !repeatable(r, n))
            continue;
        Candidate x = {0, i};
        for (int k = 0; k < n->nout; k++)
            x.nbytes += r->nbytes[n->out[k]->id];
        r->nflop += nflop;
        list[(*count)++] = x;
    }
    qsort(list, (size_t)*count, sizeof *list, by_size);
    return list;
}

/* Fills r->cut with what lowers the highest place. */
static void find_cuts(Repeat *r, const PassOptions *o)
{
    int count, good = 0;
    Candidate *list = find_candidates(r, &count);
    const int64_t shared = r->most[1];
    int64_t least = shared, inputs = 0;
    for (int i = 0; i < r->g->nin; i++)
        inputs += type_nbytes(&r->g->in[i].v->type);
    const double nflop = r->nflop;
    for (int round = 0, before = -1; round < ROUNDS && before < r->ncut; round++) {
        before = r->ncut;
        for (int i = 0; i < count; i++) {
            if (!try_cut(r, r->node[list[i].index]) || r->most[1] >= least)
                continue;
            least = r->most[1];
            double gain = (double)(shared - least) / (double)(shared + inputs);
            if (shared - least >= o->repeat_gain && gain > (nflop - r->nflop) / r->all)
                good = r->ncut;
        }
    }
    r->ncut = good;
}

/* ---- the graph ---- */

typedef struct Again {
    int before, index; /* in r->node */
} Again;

static int by_place(const void *x, const void *y)
{
    const Again *s = x, *t = y;
    return s->before != t->before ? s->before - t->before : s->index - t->index;
}

static Again *list_again(Repeat *r, int *count)
{
    int *index = NEWN(r->tmp, int, r->g->nnode), cap = 0;
    Again *list = NULL;
    *count = 0;
    for (int i = 0; i < r->nnode; i++)
        index[r->node[i]->id] = i;
    for (int i = 0; i < r->ncut; i++)
        for (int j = 0; j < r->cut[i].count; j++)
            PUSH(r->tmp, list, *count, cap,
                 ((Again){r->cut[i].place / 2, index[r->cut[i].node[j]->id]}));
    if (*count)
        qsort(list, (size_t)*count, sizeof *list, by_place);
    return list;
}

typedef struct Newest {
    Value **value; /* by value id: what stands for it now, NULL: itself */
    int *age;      /* by value id: of a result, how often it was made; of a view, for which age */
    int nvalue;
} Newest;

/* What a reader that stands before `before` or is it reads for v. */
static Value *newest(Repeat *r, Newest *x, Value *v, Node *before)
{
    const Value *from = shown(v);
    if (from->id >= x->nvalue || !x->age[from->id])
        return v;
    if (v == from || x->age[v->id] == x->age[from->id])
        return x->value[v->id];
    bool copied = v->def->origin || v->def->phase < BACKWARD; /* the backward's own views are not */
    Node *n = remat_copy(r->g, r->tmp, v->def, before, copied ? v->def->out[0]->name : NULL);
    n->in[0] = newest(r, x, v->def->in[0], n);
    for (int k = 0; k < n->nout; k++) {
        x->value[v->def->out[k]->id] = n->out[k];
        x->age[v->def->out[k]->id] = x->age[from->id];
    }
    return x->value[v->id];
}

static void make_again(Repeat *r, Newest *x, const Node *n, Node *before)
{
    const Value *last = x->age[n->out[0]->id] ? x->value[n->out[0]->id] : n->out[0];
    Node *m = remat_copy(r->g, r->tmp, n, before, last->name);
    for (int i = 0; i < n->nin; i++)
        m->in[i] = newest(r, x, n->in[i], m);
    for (int k = 0; k < n->nout; k++) {
        x->value[n->out[k]->id] = m->out[k];
        x->age[n->out[k]->id]++;
    }
}

static int apply_cuts(Repeat *r)
{
    int count, done = 0, made = 0;
    const Again *list = list_again(r, &count);
    Newest x = {NEWN(r->tmp, Value *, r->g->nvalue), NEWN(r->tmp, int, r->g->nvalue), r->g->nvalue};
    for (int k = 0; k < r->nnode && count; k++) {
        Node *n = r->node[k];
        for (; done < count && list[done].before == k; done++) {
            if (done && list[done - 1].before == k && list[done - 1].index == list[done].index)
                continue;
            make_again(r, &x, r->node[list[done].index], n);
            made++;
        }
        for (int i = 0; i < n->nin && !n->op->view; i++)
            n->in[i] = newest(r, &x, n->in[i], n);
    }
    return made;
}

int remat_repeat(Graph *g, Arena *tmp, const PassOptions *o, const Copied *made, int nmade)
{
    int count = 0;
    Repeat r = start(g, tmp);
    r.first = g->nnode;
    for (int i = 0; i < nmade; i++)
        r.first = made[i].g == g ? made[i].first : r.first;
    find_cuts(&r, o);
    int peak = highest(&r) / 2;
    Node *n = peak < r.nnode ? r.node[peak] : NULL;
    count += apply_cuts(&r);
    if (n && n->op->region == LOOP) {
        count += remat_repeat(n->region->body, tmp, o, made, nmade);
        count += n->region->tail ? remat_repeat(n->region->tail, tmp, o, made, nmade) : 0;
    }
    return count;
}
