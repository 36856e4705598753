/* Greedy placement: each buffer, in some order, goes into a gap between the buffers placed before
 * it that are alive with it. Orders: by start and by end (sweeps, O(n log n)); by length of life,
 * which stacks what a training step saves; by size (Pisarchyk and Lee, 2020); by area; by the
 * largest live sum that a buffer meets ("load"); and by the stack at the peak. Gaps are found by
 * gaps.c, without a visit to all that are alive; as many orders are tried as steps allow. An order
 * is abandoned once it reaches the best peak known.
 *
 * The stack at the peak: without waste, the buffers alive at the peak form one stack without a gap,
 * and a large buffer that lives later needs the space of dead ones in one piece, as one that lives
 * earlier needs that of the unborn. So the stack is placed first: in the order of its ends, which
 * keeps the dead together, of its starts, which keeps the unborn together, or of both, so that the
 * dead lie right below a border in the stack and the unborn right above it. Then come the rest by
 * load. Buffers that miss the target are placed right after the stack in the next round, when that
 * space is whole; if few miss, ejection often finds room. Plans of training steps mostly take one
 * round; on ranks, whose gathered weights live for a moment on either side of the peak, one of the
 * order of both.
 *
 * If no order of a leaf too large for an exact search meets the target, the same is done at goals
 * above it, each by a quarter nearer than the best peak known. There long lives come right after
 * the stack, and the rest by load in few parts: in a step that needs about as much in each layer of
 * its backward, the exact load only says which layer comes first, while a large buffer must come
 * before the small ones of all layers. */
#include "place.h"

#include <math.h>
#include <string.h>

enum {
    ROUNDS = 4,              /* over the orders of the stack at the peak */
    YOUNG = 4,               /* times as many end sooner as start later */
    MEND = 4,                /* steps of ejection for each pair, in each round; */
    MEND_STEPS = 20000,      /* of many pairs these */
    MEND_SHARE = 4,          /* and one for so many pairs: ejection succeeds soon or never, */
    MEND_EACH = 100,         /* but not more than these for each buffer */
    MISSING = 32,            /* buffers that may miss the target; if more do, an order is no use */
    STACK_STEPS = 800000000, /* of the stacks */
    NEARER_LITTLE = 50,     /* this part of the target lost is little: then ejection may do; else */
    NEARER_EACH = 8000,     /* steps of coming nearer, for each buffer, */
    NEARER_MOST = 80000000, /* up to these, which end no round */
    NEARER_ROUNDS = 200,
    NEARER_TRIES = 12, /* rounds of a goal */
    NEARER_PART = 4,   /* this part of what is lost less in each goal, */
    NEARER_FINE = 500, /* until it is this part of the target */
};

typedef struct Greedy {
    Leaf *leaf;
    Gaps *gaps;
    int64_t *offset; /* of this attempt */
    Rank *rank;
    int *order;
} Greedy;

/* ---- one order ---- */

/* Returns the peak with i at an offset. */
static int64_t put(Greedy *g, int i, int64_t at, int64_t peak)
{
    g->offset[i] = at;
    gaps_put(g->gaps, i, at);
    return MAX(peak, at + g->leaf->b[i].nbytes);
}

/* Places in the given order. Returns the peak, or -1 once it would reach `ceiling`, or at the
 * leaf's stop. */
static int64_t place_in_order(Greedy *g, const int *order, Fit fit, int64_t ceiling)
{
    int64_t peak = 0;
    gaps_clear(g->gaps);
    for (int k = 0; k < g->leaf->n; k++) {
        int i = order[k];
        int64_t at = gaps_find(g->gaps, i, fit, 0, &g->leaf->steps);
        if (at + g->leaf->b[i].nbytes >= ceiling || g->leaf->steps > g->leaf->stop)
            return -1;
        peak = put(g, i, at, peak);
    }
    return peak;
}

static void keep(const Greedy *g, int64_t peak)
{
    for (int i = 0; peak >= 0 && i < g->leaf->n; i++)
        g->leaf->b[i].offset = g->offset[i];
    if (peak >= 0)
        g->leaf->peak = peak;
}

/* ---- orders ---- */

/* The first two stack the buffers at the peak without a gap, which suffices for a training step. */
typedef enum { BY_LOAD, BY_LOAD_SIZE, BY_SIZE, BY_AREA, BY_LIFE, BY_LOAD_AREA, NORDER } Order;

static Rank rank_of(const PlaceBuf *x, int i, double load, Order order)
{
    double start = (double)-x->start, life = (double)(x->end - x->start), size = (double)x->nbytes;
    switch (order) {
    case BY_LIFE: return (Rank){{life, size, start}, i};
    case BY_AREA: return (Rank){{life * size, size, start}, i};
    case BY_SIZE: return (Rank){{size, life, start}, i};
    case BY_LOAD: return (Rank){{load, life, size}, i};
    case BY_LOAD_SIZE: return (Rank){{load, size, life}, i};
    default: return (Rank){{load, life * size, start}, i};
    }
}

/* The largest live sum that each buffer meets, by a table of maxima over powers of two. */
static double *make_load(Arena *tmp, const Leaf *leaf)
{
    int n = leaf->nsection, levels = 1;
    while (1 << levels <= n)
        levels++;
    double *load = NEWN(tmp, double, leaf->n);
    double *most = NEWN(tmp, double, (size_t)n *(size_t)levels + 1);
    for (int i = 0; i < leaf->n; i++) {
        most[leaf->b[i].start] += (double)leaf->b[i].nbytes;
        most[leaf->b[i].end] -= (double)leaf->b[i].nbytes;
    }
    for (int t = 1; t < n; t++)
        most[t] += most[t - 1];
    for (int v = 1; v < levels; v++) {
        const double *below = most + (size_t)(v - 1) * (size_t)n;
        for (int t = 0, half = 1 << (v - 1); t + 2 * half <= n; t++)
            most[(size_t)v * (size_t)n + (size_t)t] = MAX(below[t], below[t + half]);
    }
    for (int i = 0; i < leaf->n; i++) {
        int s = (int)leaf->b[i].start, life = (int)leaf->b[i].end - s, v = 0;
        while (2 << v <= life)
            v++;
        const double *row = most + (size_t)v * (size_t)n;
        load[i] = MAX(row[s], row[s + life - (1 << v)]);
    }
    return load;
}

static void fill_order(Rank *rank, int n, int *order)
{
    place_rank(rank, n);
    for (int i = 0; i < n; i++)
        order[i] = rank[i].i;
}

/* ---- the stack at the peak ---- */

/* The order within the stack, and among other buffers of one load. */
typedef struct StackOrder {
    enum { BY_BOTH, BY_END, BY_START } stack;
    enum { SIZE_FIRST, LIFE_FIRST } rest;
} StackOrder;

static const StackOrder stack_orders[] = {
    {BY_BOTH, SIZE_FIRST}, {BY_END, SIZE_FIRST},   {BY_BOTH, LIFE_FIRST},
    {BY_END, LIFE_FIRST},  {BY_START, SIZE_FIRST}, {BY_START, LIFE_FIRST},
};

typedef struct Stack {
    int64_t peak;      /* the section */
    const bool *young; /* of its buffers */
    const double *load;
} Stack;

/* The first section of the largest live sum. */
static int64_t find_peak(Arena *tmp, const Leaf *leaf)
{
    int64_t *change = NEWN(tmp, int64_t, leaf->nsection + 1), live = 0, most = -1, peak = 0;
    for (int i = 0; i < leaf->n; i++) {
        change[leaf->b[i].start] += leaf->b[i].nbytes;
        change[leaf->b[i].end] -= leaf->b[i].nbytes;
    }
    for (int t = 0; t < leaf->nsection; t++) {
        live += change[t];
        if (live > most)
            peak = t;
        most = MAX(most, live);
    }
    return peak;
}

static bool in_stack(const PlaceBuf *x, int64_t peak)
{
    return x->start <= peak && peak < x->end;
}

/* Marks the buffers of the stack of which far fewer others start later than end sooner. */
static bool *find_young(Arena *tmp, const Leaf *leaf, int64_t peak)
{
    bool *young = NEWN(tmp, bool, leaf->n);
    int *later = NEWN(tmp, int, leaf->nsection + 2), *sooner = NEWN(tmp, int, leaf->nsection + 2);
    for (int i = 0; i < leaf->n; i++)
        if (in_stack(&leaf->b[i], peak)) {
            later[leaf->b[i].start]++;
            sooner[leaf->b[i].end + 1]++;
        }
    for (int64_t t = peak - 1; t >= 0; t--)
        later[t] += later[t + 1];
    for (int64_t t = peak + 1; t <= leaf->nsection; t++)
        sooner[t] += sooner[t - 1];
    for (int i = 0; i < leaf->n; i++) {
        const PlaceBuf *x = &leaf->b[i];
        young[i] = in_stack(x, peak) && sooner[x->end] > YOUNG * later[x->start + 1];
    }
    return young;
}

/* The stack first; then buffers that missed the target, the most often first; then the rest by
 * load. */
static Rank stack_rank(const Stack *s, const PlaceBuf *x, int i, int missed, StackOrder order)
{
    double start = (double)x->start, end = (double)x->end, size = (double)x->nbytes;
    if (in_stack(x, s->peak) && order.stack == BY_START)
        return (Rank){{INFINITY, -start, end}, i};
    if (in_stack(x, s->peak) && order.stack == BY_BOTH && s->young[i])
        return (Rank){{INFINITY, start - (double)s->peak, size}, i};
    if (in_stack(x, s->peak))
        return (Rank){{INFINITY, end, -start}, i};
    double first = missed ? 0x1p63 * missed : s->load[i], life = end - start;
    bool by_life = order.rest == LIFE_FIRST;
    return (Rank){{first, by_life ? life : size, by_life ? size : life}, i};
}

/* Places in the given order; buffers that do not fit below the target lie all above it and are
 * counted in missed[]. Returns the peak, or -1 at the leaf's stop or if too many miss. */
static int64_t place_below(Greedy *g, const int *order, int *missed)
{
    int64_t peak = 0, target = g->leaf->target;
    int room = MISSING;
    gaps_clear(g->gaps);
    for (int k = 0; k < g->leaf->n; k++) {
        int i = order[k];
        int64_t at = gaps_find(g->gaps, i, FIT_FIRST, 0, &g->leaf->steps);
        bool over = at + g->leaf->b[i].nbytes > target;
        room -= over;
        if (room < 0 || g->leaf->steps > g->leaf->stop)
            return -1;
        missed[i] += over;
        if (over && at < target)
            at = gaps_find(g->gaps, i, FIT_FIRST, target, &g->leaf->steps);
        peak = put(g, i, at, peak);
    }
    return peak;
}

/* Keeps the attempt if it is better; else if ejection then meets the target, keeps that. Of many
 * pairs ejection takes a step for `share`. */
static void keep_or_mend(Greedy *g, Arena *tmp, int64_t peak, int share)
{
    Leaf *leaf = g->leaf;
    int64_t best = leaf->peak;
    for (int i = 0; i < leaf->n; i++) {
        int64_t at = leaf->b[i].offset;
        leaf->b[i].offset = g->offset[i];
        g->offset[i] = at;
    }
    leaf->peak = peak;
    int64_t many = MIN(leaf->pairs / share, (int64_t)MEND_EACH * leaf->n);
    int64_t limit = MIN(MEND * leaf->pairs, MEND_STEPS + many);
    if (peak > leaf->target)
        place_eject(tmp, leaf, leaf->target, limit);
    if (leaf->peak > best)
        keep(g, best);
}

/* Tries an order, after the buffers that have missed the target in it; false: it is no use. */
static bool place_stack(Greedy *g, Arena *tmp, const Stack *s, StackOrder order, int share,
                        int *missed)
{
    Leaf *leaf = g->leaf;
    for (int i = 0; i < leaf->n; i++)
        g->rank[i] = stack_rank(s, &leaf->b[i], i, missed[i], order);
    fill_order(g->rank, leaf->n, g->order);
    int64_t peak = place_below(g, g->order, missed);
    if (peak >= 0)
        keep_or_mend(g, tmp, peak, share);
    return peak >= 0;
}

/* Rounds over all orders of the stack, until the target is met. */
static void place_stacks(Greedy *g, Arena *tmp, const double *load)
{
    enum { ORDERS = LEN(stack_orders) };
    Leaf *leaf = g->leaf;
    Stack s = {.peak = find_peak(tmp, leaf), .load = load};
    int64_t stop = leaf->stop, before = leaf->steps;
    int *missed[ORDERS];
    bool useful[ORDERS];
    s.young = find_young(tmp, leaf, s.peak);
    for (int k = 0; k < ORDERS; k++) {
        missed[k] = NEWN(tmp, int, leaf->n);
        useful[k] = true;
    }
    leaf->stop = leaf->steps + STACK_STEPS;
    for (int t = 0; t < ORDERS * ROUNDS && leaf->peak > leaf->target; t++) {
        int k = t % ORDERS;
        useful[k] = useful[k] && place_stack(g, tmp, &s, stack_orders[k], MEND_SHARE, missed[k]);
    }
    leaf->stop = stop + leaf->steps - before;
}

/* ---- nearer to the target ---- */

/* Other buffers than those of the stack: first those whose lives are more than one of so many parts
 * of the time, the longest first; then by load, in so many parts of the largest. */
typedef struct CoarseOrder {
    int loads, lives;
    StackOrder order;
} CoarseOrder;

static const CoarseOrder coarse_orders[] = {
    {5, 4, {BY_END, SIZE_FIRST}},
    {5, 4, {BY_BOTH, SIZE_FIRST}},
    {20, 16, {BY_END, SIZE_FIRST}},
    {5, 16, {BY_BOTH, SIZE_FIRST}},
};

static double *coarse_load(const Leaf *leaf, Arena *tmp, const double *load, const CoarseOrder *c)
{
    double most = 0, *x = NEWN(tmp, double, leaf->n);
    for (int i = 0; i < leaf->n; i++)
        most = MAX(most, load[i]);
    for (int i = 0; i < leaf->n; i++) {
        const int64_t life = leaf->b[i].end - leaf->b[i].start;
        const bool lasts = life * c->lives > leaf->nsection;
        x[i] = lasts ? (double)(c->loads + life) : floor(load[i] * c->loads / most);
    }
    return x;
}

/* A goal that is nearer to the target than the peak, by such a part of what is lost. */
static int64_t nearer(const Leaf *leaf, int64_t target, int part)
{
    const int64_t lost = leaf->peak - target;
    return lost > target / NEARER_FINE ? leaf->peak - lost / part : target;
}

/* Rounds over these orders, below one goal after another; one that is not met comes closer. */
static void place_nearer(Greedy *g, Arena *tmp, const double *load)
{
    enum { ORDERS = LEN(coarse_orders) };
    Leaf *leaf = g->leaf;
    const int64_t target = leaf->target, lost = leaf->peak - target;
    const int each = lost > target / NEARER_LITTLE ? NEARER_EACH : NEARER_EACH / 4;
    const int64_t stop = leaf->steps + MIN((int64_t)each * leaf->n, NEARER_MOST);
    Stack s = {.peak = find_peak(tmp, leaf)};
    int *missed[ORDERS], part = NEARER_PART, last = 0;
    const double *coarse[ORDERS];
    s.young = find_young(tmp, leaf, s.peak);
    for (int k = 0; k < ORDERS; k++) {
        missed[k] = NEWN(tmp, int, leaf->n);
        coarse[k] = coarse_load(leaf, tmp, load, &coarse_orders[k]);
    }
    leaf->target = nearer(leaf, target, part);
    for (int t = 0; t < NEARER_ROUNDS && leaf->peak > target && leaf->steps < stop; t++) {
        const int k = t % ORDERS;
        s.load = coarse[k];
        place_stack(g, tmp, &s, coarse_orders[k].order, 1, missed[k]);
        const bool met = leaf->peak <= leaf->target;
        if (!met && t - last < NEARER_TRIES)
            continue;
        part = met ? part : 2 * part;
        last = t;
        leaf->target = nearer(leaf, target, part);
    }
    leaf->target = target;
}

/* ---- the portfolio ---- */

void place_orders(Arena *tmp, Leaf *leaf)
{
    if (leaf->order >= 2 * NORDER || leaf->peak <= leaf->target)
        return;
    Greedy g = {.leaf = leaf, .gaps = gaps_new(tmp, leaf)};
    double *load = make_load(tmp, leaf);
    g.rank = NEWN(tmp, Rank, leaf->n);
    g.order = NEWN(tmp, int, leaf->n);
    g.offset = NEWN(tmp, int64_t, leaf->n);
    place_stacks(&g, tmp, load);
    for (; leaf->order < 2 * NORDER && leaf->peak > leaf->target; leaf->order++) {
        if (leaf->steps > leaf->stop)
            return;
        for (int i = 0; i < leaf->n; i++)
            g.rank[i] = rank_of(&leaf->b[i], i, load[i], (Order)(leaf->order / 2));
        fill_order(g.rank, leaf->n, g.order);
        keep(&g, place_in_order(&g, g.order, leaf->order % 2 ? FIT_FIRST : FIT_BEST, leaf->peak));
    }
    if (leaf->n > EXACT_MOST && leaf->peak > leaf->target && leaf->steps <= leaf->stop)
        place_nearer(&g, tmp, load);
}

void place_sweeps(Arena *tmp, Leaf *leaf)
{
    Greedy g = {.leaf = leaf, .offset = NEWN(tmp, int64_t, leaf->n)};
    for (int k = 0; k < 4 && leaf->peak > leaf->target; k++) {
        int64_t pairs;
        keep(&g, place_sweep(tmp, leaf, k / 2, k % 2 ? FIT_FIRST : FIT_BEST, leaf->peak, g.offset,
                             &pairs));
        leaf->pairs = MAX(leaf->pairs, pairs);
    }
}
