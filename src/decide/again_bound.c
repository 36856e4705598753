/* A bound on the seconds of what is computed again: no choice of what is saved and what is computed
 * again that fits a limit has fewer, in any order.
 *
 * While a place of the backward runs, what is read there or later is in memory, or is computed
 * again later of what is; parameters, state, and what the place itself reads and makes lie beside
 * it. So what is in memory takes at most what the limit leaves. With a price p of a byte, the least
 * of (seconds + p bytes) over all choices, which is a minimum cut, less p times what is left, is at
 * most the seconds of any choice that fits: weak duality. The price with the largest bound is found
 * between two corners of the curve, until nothing lies between.
 *
 * A place is a product of the backward, or the end of the forward. Some nodes have run before it in
 * any order, as it needs them, and some run later, as they need it. Values that the former make and
 * the latter read are alive. A value that only others read is alive, or all of these have run, and
 * then their results are alive, where nodes that run later read them: the fewer of both bytes
 * count. So gradients of weights count, whenever they are formed.
 *
 * One product may lie anywhere beside the others and matter: that which forms the weight gradient
 * of the head, whose operand is as large as all logits. Its place among the products that need one
 * another is one of a few cases, each with places and a bound of its own; the least of them holds.
 *
 * Nodes take what they take in any plan (again_price.c): where nothing is fused, all of their
 * seconds. Collectives count as waited for where they start. Blocks do not matter, as a choice need
 * not respect them. */
#include "again.h"
#include "again_cut.h"
#include "again_price.h"

#include <math.h>
#include <string.h>

enum {
    MOST_STEPS = 24,
    PLACES = 3,          /* that are priced, of those at which most is alive */
    MOST_TRIED = 40,     /* places, from the backward's begin */
    MOST_LOOKS = 400000, /* nodes at all these, or a few places */
    FEW_TRIED = 4,
    OPERANDS = 4,    /* of products, at most */
    MOST_ENDS = 8,   /* nodes, from the forward's end */
    MOST_CHAIN = 12, /* cases of the product that may lie anywhere */
};

/* A moment of the backward: a node runs; another has run, or will. */
typedef struct BoundMoment {
    const Node *at;
    const Node *ran, *coming; /* NULL: only what `at` says */
} BoundMoment;

typedef struct Bounder {
    AgainGraph *x;
    int n;                 /* values */
    int *own;              /* by value id: that of the value in whose memory it lies */
    const Value **value;   /* by value id */
    bool *output;          /* by value id */
    bool *before, *after;  /* by node id: it has run, it will */
    bool *wanted, *shared; /* by value id: it will be read; its memory may be another value's */
    bool *counted, *hangs; /* by node id: its results are; by value id: only others read it */
    double *results;       /* by value id: bytes of the others' results */
    bool *taken;           /* by value id: its bytes count for its node */
    double *least;         /* by number: bytes that count where the backward reads none of it */
    double fixed;          /* bytes at the moment that no choice changes */
    int held[OPERANDS];    /* forward nodes that the node reads, */
    double less[OPERANDS]; /* and bytes of them that are among the fixed ones */
    int nheld;
} Bounder;

/* ---- before and after ---- */

static void fill_after(Bounder *b, const BoundMoment *m)
{
    memset(b->after, 0, (size_t)b->x->g->nnode);
    for (const Node *n = b->x->g->first; n; n = n->next) {
        bool *self = &b->after[n->id];
        *self = n == m->coming;
        for (int i = 0; i < n->nin && !*self; i++) {
            const Node *from = n->in[i]->def;
            *self = from && (from == m->at || b->after[from->id]);
        }
    }
}

static void fill_before(Bounder *b, const BoundMoment *m)
{
    memset(b->before, 0, (size_t)b->x->g->nnode);
    for (const Node *n = b->x->g->last; n; n = n->prev) {
        bool *self = &b->before[n->id];
        *self |= n == m->ran;
        for (int i = 0; i < n->nin && (*self || n == m->at); i++)
            if (n->in[i]->def)
                b->before[n->in[i]->def->id] = true;
    }
}

/* ---- what is alive ---- */

static double value_bytes(const Value *v)
{
    return (double)type_nbytes(&v->type);
}

/* Whether an add may put n's operand v and what it adds into one buffer by the time it runs. */
static bool adds_into(const Bounder *b, const Node *n, int v)
{
    bool other = false;
    for (int i = 0; node_is(n, OP_add) && i < n->nin; i++) {
        const int w = b->own[n->in[i]->id];
        const Node *from = b->value[w]->def;
        other |= w != v && (!from || !b->after[from->id]);
    }
    return other;
}

static bool has_run(const Bounder *b, const BoundMoment *m, const Node *n)
{
    return n == m->at || b->before[n->id];
}

/* Counts a value for its node: of several results, those that are not read need not be there. */
static void take(Bounder *b, int v, int k)
{
    b->x->nbytes[k] =
        (b->x->read[k] ? b->x->nbytes[k] : 0) + (b->taken[v] ? 0 : value_bytes(b->value[v]));
    b->x->read[k] = b->taken[v] = true;
}

/* Fills what will be read, and which forward values that are. Those that need not have run
 * may come later, for the first time. */
static void find_wanted(Bounder *b, const BoundMoment *m)
{
    memcpy(b->wanted, b->output, (size_t)b->n);
    memset(b->shared, 0, (size_t)b->n);
    memset(b->x->read, 0, (size_t)b->x->n);
    memset(b->taken, 0, (size_t)b->n);
    memcpy(b->x->nbytes, b->least, (size_t)b->x->n * sizeof *b->least);
    for (const Node *n = b->x->g->first; n; n = n->next)
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            const int v = b->own[n->in[i]->id], k = again_place(b->x, n->in[i]);
            b->shared[v] |= adds_into(b, n, v);
            if ((n != m->at && !b->after[n->id]) ||
                (n->phase < BACKWARD && m->at->phase < BACKWARD))
                continue; /* a node of the forward may run within one call with `at` */
            b->wanted[v] = true;
            if (k >= 0 && has_run(b, m, b->x->at[k]))
                take(b, v, k);
        }
}

/* Bytes of n's results that will be read and have memory of their own. */
static double result_bytes(const Bounder *b, const Node *n, bool all)
{
    double nbytes = 0;
    for (int k = 0; k < n->nout; k++) {
        const int v = n->out[k]->id;
        nbytes += (all || b->wanted[v]) && !b->shared[v] ? value_bytes(n->out[k]) : 0;
    }
    return nbytes;
}

/* Whether a node of the backward has made it. */
static bool is_made(const Bounder *b, int v)
{
    const Node *from = b->value[v]->def;
    return from && from->phase >= BACKWARD && b->before[from->id];
}

/* Adds up, for values that only nodes of unknown place read, the results of these. Each node counts
 * for one of its operands. */
static void find_hanging(Bounder *b, const BoundMoment *m)
{
    memset(b->counted, 0, (size_t)b->x->g->nnode);
    memset(b->hangs, 0, (size_t)b->n);
    memset(b->results, 0, (size_t)b->n * sizeof *b->results);
    for (const Node *n = b->x->g->first; n; n = n->next)
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            const int v = b->own[n->in[i]->id];
            if (n == m->at || b->before[n->id] || b->after[n->id] || b->wanted[v] || !is_made(b, v))
                continue;
            b->hangs[v] = true;
            b->results[v] += b->counted[n->id] ? 0 : result_bytes(b, n, false);
            b->counted[n->id] = true;
        }
}

/* Counts what the node reads of the forward, which is in memory whether it is saved or not. */
static void hold_operands(Bounder *b, const Node *n)
{
    for (int i = 0; i < MIN(n->nin, OPERANDS); i++) {
        const int k = again_place(b->x, n->in[i]), v = b->own[n->in[i]->id];
        bool seen = k < 0 || b->x->free[k];
        for (int j = 0; j < i; j++)
            seen |= b->own[n->in[j]->id] == v;
        if (seen)
            continue;
        b->held[b->nheld] = k;
        b->less[b->nheld++] = value_bytes(b->value[v]);
        b->fixed += value_bytes(b->value[v]);
    }
}

static void look(Bounder *b, const BoundMoment *m)
{
    b->fixed = b->nheld = 0;
    fill_after(b, m);
    fill_before(b, m);
    find_wanted(b, m);
    find_hanging(b, m);
    for (int v = 0; v < b->n; v++) {
        const bool alive = b->value[v] && b->own[v] == v && is_made(b, v);
        const double nbytes = alive ? value_bytes(b->value[v]) : 0;
        b->fixed += b->wanted[v] ? nbytes : b->hangs[v] ? MIN(nbytes, b->results[v]) : 0;
    }
    if (m->at->phase < BACKWARD)
        return; /* what it makes is among what is read */
    b->fixed += result_bytes(b, m->at, true);
    hold_operands(b, m->at);
}

/* Seconds between which a bound is told; below the one and above the other any number will do. */
typedef struct BoundRange {
    double floor, ceiling;
} BoundRange;

static const BoundRange any = {-INFINITY, INFINITY};

/* The least seconds with at most so many bytes, or fewer. The curve of the least lies below the
 * line between two of its corners. */
static double least_seconds(AgainGraph *x, double nbytes, BoundRange told)
{
    Corner low = again_none(x), high = again_most(x);
    double bound = 0;
    if (low.nbytes <= nbytes)
        return 0;
    if (high.nbytes > nbytes)
        return high.sec;
    for (int i = 0; i < MOST_STEPS && high.nbytes < low.nbytes; i++) {
        double price = (high.sec - low.sec) / (low.nbytes - high.nbytes);
        if (low.sec + price * (low.nbytes - nbytes) <= told.floor || bound >= told.ceiling)
            break;
        Corner y = again_solve(x, price);
        bound = MAX(bound, y.sec + price * (y.nbytes - nbytes));
        if (y.nbytes >= low.nbytes || y.nbytes <= high.nbytes)
            break;
        *(y.nbytes > nbytes ? &low : &high) = y;
    }
    return bound;
}

/* The bound of a moment, where a step has so many bytes beside parameters and state. */
static double price(Bounder *b, BoundMoment m, double nbytes, BoundRange told)
{
    look(b, &m);
    for (int i = 0; i < b->nheld; i++)
        b->x->nbytes[b->held[i]] -= b->less[i];
    const double sec = least_seconds(b->x, nbytes - b->fixed, told);
    for (int i = 0; i < b->nheld; i++)
        b->x->nbytes[b->held[i]] += b->less[i];
    return sec;
}

/* ---- places that every order has ---- */

static bool is_plain_product(const Node *n)
{
    return n->phase == BACKWARD && (node_is(n, OP_mm) || node_is(n, OP_bmm));
}

/* With what is read then or later, if all is saved. */
static double alive_bytes(Bounder *b, const Node *n)
{
    look(b, &(BoundMoment){.at = n});
    double nbytes = b->fixed;
    for (int i = 0; i < b->nheld; i++)
        nbytes -= b->less[i];
    for (int k = 0; k < b->x->n; k++)
        nbytes += b->x->read[k] && !b->x->free[k] ? b->x->nbytes[k] : 0;
    return nbytes;
}

/* Fills by node id whether a product of the backward needs its results. */
static void find_spine(const Bounder *b, bool *spine)
{
    for (const Node *n = b->x->g->last; n; n = n->prev)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]->def)
                spine[n->in[i]->def->id] |= spine[n->id] || is_plain_product(n);
}

/* The node of the forward's end, of the last few that products of the backward need, at which most
 * is alive; NULL: they need none. */
static const Node *find_end(Bounder *b, const bool *spine)
{
    const Node *end = NULL;
    double most = 0;
    int tried = 0;
    for (const Node *n = b->x->g->last; n && tried < MOST_ENDS; n = n->prev) {
        if (n->phase >= BACKWARD || !spine[n->id] || node_aliases(n))
            continue;
        const double now = alive_bytes(b, n);
        tried++;
        if (now <= most)
            continue;
        most = now;
        end = n;
    }
    return end;
}

/* The end of the forward, and the places at which most is alive. */
static double bound_places(Bounder *b, const bool *spine, double nbytes)
{
    const Node *end = find_end(b, spine);
    const Node *list[PLACES + 1];
    double alive[PLACES + 1], bound = end ? price(b, (BoundMoment){.at = end}, nbytes, any) : 0;
    int count = 0, tried = 0;
    const int most = MIN(MOST_TRIED, MAX(FEW_TRIED, MOST_LOOKS / b->x->g->nnode));
    for (const Node *n = b->x->g->first; n && tried < most; n = n->next) {
        if (!is_plain_product(n))
            continue;
        tried++;
        const double now = alive_bytes(b, n);
        int at = count < PLACES ? count++ : PLACES;
        for (; at > 0 && now > alive[at - 1]; at--) {
            list[at] = list[at - 1];
            alive[at] = alive[at - 1];
        }
        list[at] = n;
        alive[at] = now;
    }
    for (int i = 0; i < count; i++)
        bound = fmax(bound,
                     price(b, (BoundMoment){.at = list[i]}, nbytes, (BoundRange){bound, INFINITY}));
    return bound;
}

/* ---- the product that may lie anywhere ---- */

/* The value of the backward that v lies in; -1: it is of the forward, or an input. */
static int backward_value(const Bounder *b, const Value *v)
{
    const int own = b->own[v->id];
    const Node *from = b->value[own]->def;
    return from && from->phase >= BACKWARD ? own : -1;
}

/* The largest value of the backward that two products read, of which one need not be followed by
 * others, and the other must be: the two of them. False: there is none. */
static bool find_pair(const Bounder *b, const bool *spine, const Node **free, const Node **first)
{
    const Node **reader = NEWN(b->x->tmp, const Node *, b->n); /* by value id, on the spine */
    double most = 0;
    for (int side = 0; side < 2; side++)
        for (const Node *n = b->x->g->first; n; n = n->next)
            for (int i = 0; is_plain_product(n) && spine[n->id] == !side && i < n->nin; i++) {
                const int v = backward_value(b, n->in[i]);
                if (v >= 0 && !side && !reader[v])
                    reader[v] = n;
                if (v < 0 || !side || !reader[v] || value_bytes(b->value[v]) <= most)
                    continue;
                most = value_bytes(b->value[v]);
                *free = n;
                *first = reader[v];
            }
    return most > 0;
}

/* The next product of the chain, which needs a result of `of`; NULL: none does. */
static const Node *next_of(Bounder *b, const bool *spine, const Node *of)
{
    look(b, &(BoundMoment){.at = of});
    const Node *n = of->next;
    while (n && !(b->after[n->id] && is_plain_product(n) && spine[n->id]))
        n = n->next;
    return n;
}

/* The cases: the product runs before the first of a chain, or between two that follow each other.
 * In the k-th it is still to come at the first k. Cases beyond the last that is priced have what
 * these k say. A bound up to `floor` is told by any number up to it. */
static double bound_cases(Bounder *b, const bool *spine, double nbytes, double floor)
{
    const Node *free = NULL, *at = NULL;
    if (!find_pair(b, spine, &free, &at))
        return 0;
    double least = price(b, (BoundMoment){.at = free, .coming = at}, nbytes, any);
    least = fmax(least, price(b, (BoundMoment){.at = at, .ran = free}, nbytes,
                              (BoundRange){least, INFINITY}));
    double so_far = 0;
    for (int k = 0; k < MOST_CHAIN && at && so_far < least && least > floor; k++) {
        const Node *next = next_of(b, spine, at);
        const BoundRange told = {so_far, least};
        so_far = fmax(so_far, price(b, (BoundMoment){.at = at, .coming = free}, nbytes, told));
        if (so_far >= least)
            break;
        const BoundMoment between = {.at = free, .ran = at, .coming = next};
        const double sec = price(b, between, nbytes, (BoundRange){MAX(so_far, floor), least});
        least = fmin(least, fmax(so_far, sec));
        at = next;
    }
    return at ? MIN(least, so_far) : least;
}

/* ---- all ---- */

/* Fills the fewest bytes of a node that computing another one again may need. */
static void find_least(Bounder *b)
{
    const AgainGraph *x = b->x;
    b->least = NEWN(x->tmp, double, x->n);
    for (const Node *n = x->g->first; n; n = n->next)
        for (int i = 0; i < n->nin && n->phase < BACKWARD && !node_aliases(n); i++) {
            const int k = again_place(x, n->in[i]);
            const double nbytes = value_bytes(b->value[b->own[n->in[i]->id]]);
            if (k >= 0 && (b->least[k] <= 0 || nbytes < b->least[k]))
                b->least[k] = nbytes;
        }
}

static Bounder bounder_new(Arena *a, AgainGraph *x)
{
    const Graph *g = x->g;
    const int n = g->nvalue, nnode = g->nnode;
    Bounder b = {.x = x,
                 .n = n,
                 .own = NEWN(a, int, n),
                 .value = NEWN(a, const Value *, n),
                 .output = NEWN(a, bool, n),
                 .before = NEWN(a, bool, nnode),
                 .after = NEWN(a, bool, nnode),
                 .wanted = NEWN(a, bool, n),
                 .shared = NEWN(a, bool, n),
                 .counted = NEWN(a, bool, nnode),
                 .hangs = NEWN(a, bool, n),
                 .results = NEWN(a, double, n),
                 .taken = NEWN(a, bool, n)};
    for (int i = 0; i < g->nin; i++)
        b.value[b.own[g->in[i].v->id] = g->in[i].v->id] = g->in[i].v;
    for (const Node *m = g->first; m; m = m->next)
        for (int k = 0; k < m->nout; k++) {
            const Value *v = m->out[k];
            b.value[v->id] = v;
            b.own[v->id] = node_aliases(m) ? b.own[m->in[0]->id] : v->id;
        }
    /* others may lie where an input or a sum lies */
    for (int i = 0; i < g->nout; i++)
        b.output[b.own[g->out[i].v->id]] |= g->out[i].role == ROLE_GRAD;
    find_least(&b);
    return b;
}

double again_bound(Arena *a, const Graph *g, const Machine *m, const BoundFor *to)
{
    Arena *tmp = arena_tmp(a);
    AgainGraph x = again_graph(tmp, tmp, g, m, NULL);
    again_price(&x, m, to->fused, to->joined);
    Bounder b = bounder_new(tmp, &x);
    bool *spine = NEWN(tmp, bool, g->nnode);
    find_spine(&b, spine);
    const double places = bound_places(&b, spine, to->nbytes),
                 cases = bound_cases(&b, spine, to->nbytes, places);
    arena_reset(tmp);
    return fmax(places, cases);
}

/* The place's bytes: fixed ones, and by node number those of what is saved and read then or later.
 */
static void fill_alive(Bounder *b, const Node *n, BoundAlive *to)
{
    look(b, &(BoundMoment){.at = n});
    to->fixed = b->fixed;
    for (int i = 0; i < b->nheld; i++)
        b->x->nbytes[b->held[i]] -= b->less[i];
    for (int k = 0; k < b->x->n; k++)
        if (b->x->read[k] && !b->x->free[k])
            PUSH(b->x->a, to->saved, to->n, to->cap,
                 ((BoundSaved){b->x->at[k]->out[0]->name, b->x->nbytes[k]}));
}

int again_alive(Arena *a, const Graph *g, const Machine *m, BoundAlive *to, int most)
{
    Arena *tmp = arena_tmp(a);
    AgainGraph x = again_graph(a, tmp, g, m, NULL);
    Bounder b = bounder_new(tmp, &x);
    bool *spine = NEWN(tmp, bool, g->nnode);
    find_spine(&b, spine);
    const Node *end = find_end(&b, spine);
    int count = 0;
    if (end)
        fill_alive(&b, end, &to[count++]);
    for (const Node *n = g->first; n && count < most; n = n->next)
        if (is_plain_product(n))
            fill_alive(&b, n, &to[count++]);
    arena_reset(tmp);
    return count;
}

double again_kept_bytes(const Graph *g)
{
    double nbytes = 0;
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM || g->in[i].role == ROLE_STATE)
            nbytes += (double)type_nbytes(&g->in[i].v->type);
    return nbytes;
}
