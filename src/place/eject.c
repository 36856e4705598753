/* Local search for a placement within a capacity: ejection.
 *
 * Buffers that end above the capacity lose their place. Repeatedly, the most urgent buffer without
 * a place takes the one that costs least, and the buffers that lie there are ejected. A buffer's
 * cost, and its urgency, is its area (bytes times live range) times one more than the number of
 * times it was ejected; so buffers that are hard to place settle first, and two buffers do not
 * eject each other for ever. Places tried: right above or right below another buffer, the bottom,
 * the top. A step costs k log k for k buffers alive with the one that is placed. A failure proves
 * nothing.
 *
 * Ejection chains: Glover 1996; the growing costs are those of conflict-driven constraint search.
 */
#include "place.h"

#include <math.h>
#include <string.h>

enum {
    SCATTER = 20,   /* homeless buffers more than at best: go back */
    PATIENCE = 500, /* and after so many moves */
};

enum { HOMELESS = -1 }; /* an offset */

/* Buffers without a place. */
typedef struct EjectQueue {
    int *item, n;
} EjectQueue;

typedef struct Change {
    int i;
    int64_t offset; /* before */
} Change;

typedef struct Eject {
    Leaf *leaf;
    Near near;
    int64_t capacity;
    int64_t *offset;
    double *cost;
    int *list;    /* buffers alive with the one in hand */
    Key *lo, *hi; /* their ends, sorted */
    Key *ends;    /* as they come */
    int *count;
    EjectQueue homeless;
    EjectQueue best; /* the homeless when there were fewest */
    Change *move;    /* made since then */
    int nmove, capmove;
} Eject;

/* ---- the cheapest place ---- */

/* The cost of what lies between two addresses that only rise: buffers that start below the upper
 * one minus those that end by the lower one, each list sorted and passed once. */
typedef struct EjectWindow {
    const Eject *x;
    int n, started, ended;
    double cost;
} EjectWindow;

typedef struct EjectPlace {
    double cost;
    int64_t at;
} EjectPlace;

/* Compares the place at `at` with the best so far; the lower of equals wins. */
static void consider(EjectWindow *w, int64_t at, int64_t nbytes, EjectPlace *best)
{
    const Eject *x = w->x;
    if (at < 0 || at + nbytes > x->capacity)
        return;
    for (; w->started < w->n && x->lo[w->started].at < at + nbytes; w->started++)
        w->cost += x->cost[x->lo[w->started].i];
    for (; w->ended < w->n && x->hi[w->ended].at <= at; w->ended++)
        w->cost -= x->cost[x->hi[w->ended].i];
    if (w->cost < best->cost || (w->cost == best->cost && at < best->at))
        *best = (EjectPlace){w->cost, at};
}

static int64_t find_cheapest(const Eject *x, int n, int64_t nbytes)
{
    EjectWindow ends = {x, n, 0, 0, 0}, above = ends, below = ends;
    EjectPlace best = {INFINITY, 0};
    consider(&ends, 0, nbytes, &best);
    for (int k = 0; k < n; k++) {
        consider(&above, x->hi[k].at, nbytes, &best);
        consider(&below, x->lo[k].at - nbytes, nbytes, &best);
    }
    consider(&ends, x->capacity - nbytes, nbytes, &best);
    return best.at;
}

/* ---- search ---- */

static double area(const PlaceBuf *b)
{
    return (double)b->nbytes * (double)(b->end - b->start);
}

static void put(Eject *x, int i, int64_t offset)
{
    if (x->offset[i] != HOMELESS)
        near_set(&x->near, i, false);
    x->offset[i] = offset;
    if (offset != HOMELESS)
        near_set(&x->near, i, true);
}

static void move(Eject *x, Arena *tmp, int i, int64_t offset)
{
    Change m = {i, x->offset[i]};
    PUSH(tmp, x->move, x->nmove, x->capmove, m);
    put(x, i, offset);
}

/* Takes the homeless buffer of the highest cost. */
static int take_urgent(Eject *x)
{
    EjectQueue *q = &x->homeless;
    int most = 0;
    for (int k = 1; k < q->n; k++)
        if (x->cost[q->item[k]] > x->cost[q->item[most]])
            most = k;
    int i = q->item[most];
    q->item[most] = q->item[--q->n];
    return i;
}

/* Puts buffer i at the cheapest place; ejects what was there. */
static void settle(Eject *x, Arena *tmp, int i)
{
    const PlaceBuf *b = x->leaf->b;
    int n = near_fill(&x->near, i, x->list);
    for (int k = 0; k < n; k++)
        x->ends[k] = (Key){x->offset[x->list[k]], x->list[k]};
    place_spread(x->lo, x->ends, n, x->capacity, x->count);
    for (int k = 0; k < n; k++)
        x->ends[k].at += b[x->list[k]].nbytes;
    place_spread(x->hi, x->ends, n, x->capacity, x->count);
    int64_t lo = find_cheapest(x, n, b[i].nbytes), hi = lo + b[i].nbytes;
    for (int k = 0; k < n; k++) {
        int j = x->list[k];
        if (x->offset[j] >= hi || x->offset[j] + b[j].nbytes <= lo)
            continue;
        move(x, tmp, j, HOMELESS);
        x->homeless.item[x->homeless.n++] = j;
        x->cost[j] += area(&b[j]);
    }
    move(x, tmp, i, lo);
    x->leaf->steps += 6 * (n + 8);
}

static void copy_queue(EjectQueue *to, const EjectQueue *from)
{
    memcpy(to->item, from->item, sizeof(int) * (size_t)from->n);
    to->n = from->n;
}

static void go_back(Eject *x)
{
    while (x->nmove) {
        Change m = x->move[--x->nmove];
        put(x, m.i, m.offset);
    }
    copy_queue(&x->homeless, &x->best);
}

static Eject setup(Arena *tmp, Leaf *leaf, int64_t capacity)
{
    Eject x = {.leaf = leaf, .near = near_new(tmp, leaf), .capacity = capacity};
    x.offset = NEWN(tmp, int64_t, leaf->n);
    x.cost = NEWN(tmp, double, leaf->n);
    x.list = NEWN(tmp, int, leaf->n);
    x.lo = NEWN(tmp, Key, leaf->n);
    x.hi = NEWN(tmp, Key, leaf->n);
    x.ends = NEWN(tmp, Key, leaf->n);
    x.count = NEWN(tmp, int, 2 * leaf->n + 2);
    x.homeless.item = NEWN(tmp, int, leaf->n);
    x.best.item = NEWN(tmp, int, leaf->n);
    for (int i = 0; i < leaf->n; i++) {
        const PlaceBuf *b = &leaf->b[i];
        bool fits = b->offset + b->nbytes <= capacity;
        x.cost[i] = area(b);
        x.offset[i] = HOMELESS;
        if (fits)
            put(&x, i, b->offset);
        else
            x.homeless.item[x.homeless.n++] = i;
    }
    copy_queue(&x.best, &x.homeless);
    return x;
}

static void keep(const Eject *x)
{
    Leaf *leaf = x->leaf;
    leaf->peak = 0;
    for (int i = 0; i < leaf->n; i++) {
        leaf->b[i].offset = x->offset[i];
        int64_t top = x->offset[i] + leaf->b[i].nbytes;
        leaf->peak = MAX(leaf->peak, top);
    }
}

PlaceAnswer place_eject(Arena *tmp, Leaf *leaf, int64_t capacity, int64_t limit)
{
    Eject x = setup(tmp, leaf, capacity);
    limit = MIN(limit, leaf->stop - leaf->steps) + leaf->steps;
    for (int idle = 1; x.homeless.n && leaf->steps < limit; idle++) {
        settle(&x, tmp, take_urgent(&x));
        if (x.homeless.n < x.best.n) {
            copy_queue(&x.best, &x.homeless);
            x.nmove = idle = 0;
        } else if (x.homeless.n > x.best.n + SCATTER || idle % PATIENCE == 0) {
            go_back(&x);
        }
    }
    if (x.homeless.n)
        return PLACE_LIMIT;
    keep(&x);
    return PLACE_FOUND;
}
