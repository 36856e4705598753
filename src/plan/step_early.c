/* step_early: at the end of the forward all is alive that was made before and is needed behind it:
 * saved values, and of what was computed again by then what others, which were not, need. So given
 * memory has room for some of that only. The most seconds of a set that fits are at most
 *
 *   the least, over prices of a byte, of the most, over sets, of seconds + price x (room - bytes)
 *
 * (Lagrange's bound; Everett 1963). The same holds for the end of any item behind the loss, as what
 * begins before the loss does before that. So the item is asked too at which most is alive of what
 * does not depend on the set, and the lesser bound counts.
 *
 * The inner set is a closure, as with an item comes what it needs, and is found by a minimum cut:
 * an item that is left out costs its seconds; a value that is alive its bytes, once, whoever keeps
 * it. The price is where the lines of two sets cross, one that fits and one that does not, until no
 * set is above (Kelley's cutting planes). Any price gives a bound, so their number may be limited.
 *
 * Of copies, and of a cat and its parts, one value counts, as they may lie in each other's place;
 * views and waits hand on what they are of. */
#include "step_early.h"

#include "network.h"

#include <math.h>
#include <string.h>

enum {
    PRICES = 20,      /* at most */
    ASKED = 200,      /* items of the stream, at most */
    LOOKS = 3000000,  /* items at all of these, but for a few */
    FEW_ASKED = 8,    /* of the stream */
    EFFORT = 10000000 /* arcs that a cut may pass */
};

#define UNITS   1e12 /* of capacities, in a second */
#define ROUNDED 1e-6

/* A set of items: its seconds, and what is alive with it. */
typedef struct EarlySet {
    double sec, nbytes;
} EarlySet;

typedef struct EarlyBound {
    const EarlyItems *x;
    Arena *tmp;
    bool *late; /* it computes again, or needs what does, and may begin before the loss */
    int at;     /* the item where it is asked what is alive: just before it ends */
    bool *before, *behind; /* it needs the item; the item needs it */
    int *root;             /* by value id: the value in whose memory it lies; -1: not counted */
    double *nbytes;        /* by value id, of roots */
    bool *inside;          /* by value id, of roots: it may lie in a copy, or a cat */
    bool *fixed;           /* by value id: it is alive with any set */
    double base;           /* bytes of those */
    double none, each;     /* bytes more with no late item, and with all */
    int64_t all;           /* seconds of late items, in units */
    double price;          /* seconds of a byte */
    Network network;
    int *vertex; /* by item */
    int *alive;  /* by value id: the vertex; 0: none */
} EarlyBound;

/* ---- items ---- */

static void ask_at(EarlyBound *e, int at)
{
    const EarlyItems *x = e->x;
    memset(e->before, 0, sizeof *e->before * (size_t)x->n);
    memset(e->behind, 0, sizeof *e->behind * (size_t)x->n);
    e->at = at;
    for (int i = at; i >= 0; i--)
        EACH_ITEM(k, x->succ, i)
            e->before[i] |= x->succ.item[k] == at || e->before[x->succ.item[k]];
    for (int i = at; i < x->n; i++)
        EACH_ITEM(k, x->pred, i)
            e->behind[i] |= x->pred.item[k] == at || e->behind[x->pred.item[k]];
}

static void find_late(EarlyBound *e)
{
    const EarlyItems *x = e->x;
    ask_at(e, x->loss);
    for (int i = 0; i < x->n; i++) {
        e->late[i] = x->again[i];
        EACH_ITEM(k, x->pred, i)
            e->late[i] |= e->late[x->pred.item[k]];
        e->late[i] &= i != x->loss && !e->behind[i] && !e->before[i];
        e->all += e->late[i] ? (int64_t)ceil(x->sec[i] * UNITS) : 0;
    }
}

static bool hands_on(const Node *n)
{
    return n->op->view || n->op->wait;
}

/* A copy, or a cat, may lie where its operands do: the largest of them counts. */
static int root_of_copy(EarlyBound *e, const Node *n, const Value *v)
{
    bool largest = true;
    for (int i = 0; i < n->nin; i++) {
        int root = e->root[n->in[i]->id];
        largest &= root < 0 || e->nbytes[root] <= e->nbytes[v->id];
    }
    for (int i = 0; i < n->nin && largest; i++)
        if (e->root[n->in[i]->id] >= 0)
            e->inside[e->root[n->in[i]->id]] = true;
    return largest ? v->id : -1;
}

static void find_root(EarlyBound *e, const Node *n, const Value *v)
{
    bool copies = n->op->copy || n->op->class == CLASS_MOVEMENT;
    e->nbytes[v->id] = (double)type_nbytes(&v->type);
    e->root[v->id] = hands_on(n)             ? e->root[n->in[0]->id]
                     : n->op->region == LOOP ? -1
                     : copies                ? root_of_copy(e, n, v)
                                             : v->id;
}

static void find_roots(EarlyBound *e)
{
    const EarlyItems *x = e->x;
    for (int v = 0; v < x->g->nvalue; v++)
        e->root[v] = -1;
    for (int i = 0; i < x->g->nin && !x->g->parent; i++) {
        const Value *v = x->g->in[i].v;
        e->root[v->id] = role_kept(x->g->in[i].role) ? -1 : v->id;
        e->nbytes[v->id] = (double)type_nbytes(&v->type);
    }
    for (int i = 0; i < x->n; i++)
        for (int k = 0; k < x->node[i]->nout; k++)
            find_root(e, x->node[i], x->node[i]->out[k]);
    for (int v = 0; v < x->g->nvalue; v++)
        if (e->root[v] >= 0 && e->inside[e->root[v]])
            e->root[v] = -1;
}

/* Calls see(e, root, user) for each value that may be alive at the item, and each item that may
 * need it then, -1: one that does in any case. */
static void each_use(EarlyBound *e, void (*see)(EarlyBound *e, int root, int user))
{
    const EarlyItems *x = e->x;
    for (int i = 0; i < x->n; i++) {
        const Node *n = x->node[i];
        bool late = e->late[i], needs = late || e->behind[i] || i == e->at;
        bool one = n->op->class == CLASS_COLLECTIVE; /* each result of its own operand */
        int from = one ? i - x->of[n->out[0]->id] : 0, to = one ? from + 1 : n->nin;
        for (int k = from; k < to && needs && !hands_on(n); k++)
            if (e->root[n->in[k]->id] >= 0)
                see(e, e->root[n->in[k]->id], late ? i : -1);
    }
    for (int k = 0; k < x->g->nout; k++)
        if (e->root[x->g->out[k].v->id] >= 0)
            see(e, e->root[x->g->out[k].v->id], -1);
}

/* Whether what an item makes is there in any case. The asked one's results may lie over operands
 * that are counted, but not those of a product. */
static bool is_made(const EarlyBound *e, int maker)
{
    return maker < 0 || e->before[maker] ||
           (maker == e->at && e->x->node[maker]->op->class == CLASS_PRODUCT);
}

/* Those whose makers and users do not depend on the set. */
static void fix(EarlyBound *e, int root, int user)
{
    if (user >= 0 || e->fixed[root] || !is_made(e, e->x->of[root]))
        return;
    e->fixed[root] = true;
    e->base += e->nbytes[root];
}

/* Adds a value to what is alive with no late item, or with all. */
static void add_alive(EarlyBound *e, int root, int user)
{
    int maker = e->x->of[root];
    bool made = is_made(e, maker), none = made && user >= 0;
    bool all = !made && e->late[maker] && user < 0;
    if (e->fixed[root] || e->alive[root] || !(none || all))
        return;
    e->alive[root] = 1;
    *(none ? &e->none : &e->each) += e->nbytes[root];
}

/* Fills what is alive at the item, with no late item and with all. */
static void fill_alive(EarlyBound *e, int at)
{
    const size_t nvalue = (size_t)e->x->g->nvalue;
    ask_at(e, at);
    memset(e->fixed, 0, sizeof *e->fixed * nvalue);
    memset(e->alive, 0, sizeof *e->alive * nvalue);
    e->base = e->none = e->each = 0;
    each_use(e, fix);
    each_use(e, add_alive);
}

/* ---- the network: what is on the source's side is of the set ---- */

static void add_use(EarlyBound *e, int root, int user)
{
    int maker = e->x->of[root];
    bool made = is_made(e, maker);
    if (e->fixed[root] || !(made || e->late[maker]))
        return;
    if (!e->alive[root]) {
        double cost = floor(fmin(e->price * e->nbytes[root] * UNITS, (double)e->all + 1));
        e->alive[root] = network_vertices(&e->network, 1);
        network_arc(&e->network, made ? NETWORK_SOURCE : e->vertex[maker], e->alive[root],
                    (int64_t)cost);
    }
    network_arc(&e->network, e->alive[root], user < 0 ? NETWORK_SINK : e->vertex[user],
                NETWORK_ENDLESS);
}

static void fill_network(EarlyBound *e)
{
    const EarlyItems *x = e->x;
    network_clear(&e->network);
    e->network.left = EFFORT;
    memset(e->alive, 0, sizeof *e->alive * (size_t)x->g->nvalue);
    for (int i = 0; i < x->n; i++) {
        if (!e->late[i])
            continue;
        e->vertex[i] = network_vertices(&e->network, 1);
        network_arc(&e->network, NETWORK_SOURCE, e->vertex[i], (int64_t)ceil(x->sec[i] * UNITS));
        EACH_ITEM(k, x->pred, i)
            if (e->late[x->pred.item[k]])
                network_arc(&e->network, e->vertex[i], e->vertex[x->pred.item[k]], NETWORK_ENDLESS);
    }
    each_use(e, add_use);
}

static EarlySet read_set(const EarlyBound *e)
{
    const EarlyItems *x = e->x;
    EarlySet s = {0, e->base};
    for (int i = 0; i < x->n; i++)
        s.sec += e->late[i] && network_side(&e->network, e->vertex[i]) ? x->sec[i] : 0;
    for (int v = 0; v < x->g->nvalue; v++) {
        if (!e->alive[v] || network_side(&e->network, e->alive[v]))
            continue;
        int maker = x->of[v];
        if (is_made(e, maker) || network_side(&e->network, e->vertex[maker]))
            s.nbytes += e->nbytes[v];
    }
    return s;
}

/* The bound of a price, and the set that gives it. */
static double bound_of(EarlyBound *e, double price, double room, EarlySet *s)
{
    e->price = price;
    fill_network(e);
    double bought = (double)(e->all - network_flow(&e->network)) / UNITS;
    *s = read_set(e);
    return bought + price * (room - e->base);
}

/* ---- prices ---- */

/* Tries the price at which the lines of two sets cross, until no other set is above. */
static double least_bound(EarlyBound *e, EarlySet fits, EarlySet over, double room)
{
    double least = over.sec;
    for (int i = 0; i < PRICES; i++) {
        EarlySet s;
        double price = (over.sec - fits.sec) / (over.nbytes - fits.nbytes);
        double cross = fits.sec + price * (room - fits.nbytes);
        double bound = bound_of(e, price, room, &s);
        least = fmin(least, bound);
        if (bound <= cross * (1 + ROUNDED))
            break;
        *(s.nbytes > room ? &over : &fits) = s;
    }
    return least;
}

static EarlyBound *early_new(const EarlyItems *x, Arena *tmp)
{
    EarlyBound *e = NEW(tmp, EarlyBound);
    e->x = x;
    e->tmp = tmp;
    e->before = NEWN(tmp, bool, x->n);
    e->behind = NEWN(tmp, bool, x->n);
    e->late = NEWN(tmp, bool, x->n);
    e->vertex = NEWN(tmp, int, x->n);
    e->root = NEWN(tmp, int, x->g->nvalue);
    e->nbytes = NEWN(tmp, double, x->g->nvalue);
    e->inside = NEWN(tmp, bool, x->g->nvalue);
    e->fixed = NEWN(tmp, bool, x->g->nvalue);
    e->alive = NEWN(tmp, int, x->g->nvalue);
    e->network = network_new(tmp, x->n + x->g->nvalue + 2, EFFORT);
    return e;
}

/* The bound by what is alive at an item. */
static double bound_at(EarlyBound *e, int at, double room)
{
    fill_alive(e, at);
    EarlySet none = {0, e->base + e->none}, all = {(double)e->all / UNITS, e->base + e->each};
    if (all.nbytes <= room || none.nbytes > room)
        return all.sec;
    return least_bound(e, none, all, room);
}

/* The item of the stream, from the loss on, where most that fits is alive with no late item. */
static int fullest(EarlyBound *e, double room)
{
    const EarlyItems *x = e->x;
    const int asked = MAX(MIN(ASKED, LOOKS / MAX(x->n, 1)), FEW_ASKED);
    bool *behind = NEWN(e->tmp, bool, x->n); /* the loss */
    int best = x->loss;
    double most = 0;
    ask_at(e, x->loss);
    memcpy(behind, e->behind, sizeof *behind * (size_t)x->n);
    for (int i = 0; i < x->nstream; i += 1 + x->nstream / asked) {
        int at = x->stream[i];
        if (!behind[at])
            continue;
        fill_alive(e, at);
        if (e->base + e->none <= most || e->base + e->none > room)
            continue;
        best = at;
        most = e->base + e->none;
    }
    return best;
}

double early_sec(const EarlyItems *x, Arena *tmp, int64_t room)
{
    EarlyBound *e = early_new(x, tmp);
    find_late(e);
    find_roots(e);
    if (!e->all)
        return 0;
    double sec = bound_at(e, x->loss, (double)room);
    int full = fullest(e, (double)room);
    return full == x->loss ? sec : fmin(sec, bound_at(e, full, (double)room));
}
