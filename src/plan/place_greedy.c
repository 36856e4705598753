/* Greedy placement: buffers in some order, each into a gap between those placed before it that are
 * alive with it.
 *
 * Two forms. A sweep in order of start (or, mirrored, of end) keeps the live buffers sorted by
 * offset: n log n plus the live buffers passed. Any other order asks a tree over start for the
 * overlapping buffers: n log n plus overlaps. An order stops as soon as it passes the best peak
 * known.
 *
 * Orders: Pisarchyk and Lee (2020) by size; XLA's and TensorFlow's by area, by life time; longest
 * life first stacks what a training step saves. Then repair ("squeaky wheel", Joslin and Clements
 * 1999): the buffer that did not fit moves ahead in the order, and again. */
#include "place.h"

#include <stdlib.h>
#include <string.h>

typedef struct Span {
    int64_t lo, hi; /* addresses */
} Span;

typedef struct Greedy {
    Leaf *leaf;
    const PlaceBuf *b;
    int n, width;    /* width: leaves of the tree, a power of two */
    int64_t *latest; /* tree over buffers by start: the latest end of those placed, 0 for none */
    int64_t *offset; /* of this attempt */
    Span *span;
    int nspan;
    int64_t limit; /* of leaf->steps */
} Greedy;

typedef enum { FIT_FIRST, FIT_BEST } Fit;

/* ---- where a buffer fits ---- */

static void sort_spans(Span *s, int n)
{
    while (n > 24) {
        Span pivot = s[n / 2];
        int i = 0, j = n - 1;
        while (i <= j) {
            while (s[i].lo < pivot.lo)
                i++;
            while (s[j].lo > pivot.lo)
                j--;
            if (i <= j) {
                Span t = s[i];
                s[i++] = s[j];
                s[j--] = t;
            }
        }
        sort_spans(s, j + 1);
        s += i;
        n -= i;
    }
    for (int i = 1; i < n; i++) {
        Span t = s[i];
        int j = i;
        for (; j > 0 && s[j - 1].lo > t.lo; j--)
            s[j] = s[j - 1];
        s[j] = t;
    }
}

/* The lowest gap between sorted spans that takes nbytes, or the tightest. */
static int64_t find_gap(const Span *s, int n, int64_t nbytes, Fit fit)
{
    int64_t top = 0, best = -1, room = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t gap = s[i].lo - top;
        if (gap >= nbytes && gap < room) {
            if (fit == FIT_FIRST)
                return top;
            best = top;
            room = gap;
        }
        top = MAX(top, s[i].hi);
    }
    return best >= 0 ? best : top;
}

/* ---- any order: a tree of what is placed ---- */

static void mark(Greedy *g, int i, int64_t end)
{
    int at = g->width + i;
    g->latest[at] = end;
    for (at /= 2; at > 0; at /= 2)
        g->latest[at] = MAX(g->latest[2 * at], g->latest[2 * at + 1]);
}

/* Collects the placed buffers below tree node `at`, which begins at buffer `first`, alive with x.
 */
static void collect(Greedy *g, const PlaceBuf *x, int at, int first, int count)
{
    if (g->latest[at] <= x->start || g->b[first].start >= x->end)
        return;
    if (at >= g->width) {
        int64_t lo = g->offset[first];
        g->span[g->nspan++] = (Span){lo, lo + g->b[first].nbytes};
        return;
    }
    collect(g, x, 2 * at, first, count / 2);
    collect(g, x, 2 * at + 1, first + count / 2, count / 2);
}

/* Places in the given order. Returns the peak, or -1 with *failed set to the position in the order
 * whose buffer would reach `ceiling`, or to -1 where steps ran out. */
static int64_t place_in_order(Greedy *g, const int *order, Fit fit, int64_t ceiling, int *failed)
{
    int64_t peak = 0;
    memset(g->latest, 0, sizeof(int64_t) * 2 * (size_t)g->width);
    for (int k = 0; k < g->n; k++) {
        const PlaceBuf *x = &g->b[order[k]];
        g->nspan = 0;
        collect(g, x, 1, 0, g->width);
        sort_spans(g->span, g->nspan);
        g->leaf->steps += g->nspan + 1;
        int64_t at = find_gap(g->span, g->nspan, x->nbytes, fit);
        bool late = g->leaf->steps > g->limit;
        if (late || at + x->nbytes >= ceiling) {
            *failed = late ? -1 : k;
            return -1;
        }
        g->offset[order[k]] = at;
        peak = MAX(peak, at + x->nbytes);
        mark(g, order[k], x->end);
    }
    return peak;
}

/* ---- order of start or end: a sweep ---- */

typedef struct Live {
    int64_t lo, hi, until;
} Live;

/* Drops the spans that ended by `now`, returns the place of x in the gaps left and puts it there.
 */
static int64_t sweep_one(Live *live, int *nlive, int64_t now, int64_t until, int64_t nbytes,
                         Fit fit)
{
    int64_t top = 0, best = -1, room = INT64_MAX;
    int kept = 0, where = 0;
    for (int i = 0; i < *nlive; i++) {
        if (live[i].until <= now)
            continue;
        int64_t gap = live[i].lo - top;
        if (gap >= nbytes && gap < room && (fit == FIT_BEST || best < 0)) {
            best = top;
            room = gap;
            where = kept;
        }
        top = live[i].hi;
        live[kept++] = live[i];
    }
    if (best < 0) {
        best = top;
        where = kept;
    }
    memmove(live + where + 1, live + where, sizeof *live * (size_t)(kept - where));
    live[where] = (Live){best, best + nbytes, until};
    *nlive = kept + 1;
    return best;
}

/* order: by start, or with `mirror` by end, latest first. Returns the peak or -1 as above. */
static int64_t sweep(Greedy *g, Arena *tmp, const int *order, bool mirror, Fit fit, int64_t ceiling)
{
    Live *live = NEWN(tmp, Live, g->n + 1);
    int nlive = 0;
    int64_t peak = 0;
    for (int k = 0; k < g->n; k++) {
        const PlaceBuf *x = &g->b[order[k]];
        int64_t now = mirror ? -x->end : x->start, until = mirror ? -x->start : x->end;
        int64_t at = sweep_one(live, &nlive, now, until, x->nbytes, fit);
        g->leaf->steps += nlive / 8 + 1;
        if (at + x->nbytes >= ceiling)
            return -1;
        g->offset[order[k]] = at;
        peak = MAX(peak, at + x->nbytes);
    }
    return peak;
}

/* ---- orders ---- */

typedef enum {
    BY_START,
    BY_END,
    BY_LIFE,
    BY_SIZE,
    BY_AREA,
    BY_LOAD,
    BY_LOAD_SIZE,
    BY_LOAD_AREA,
    BY_SIZE_START,
    BY_SIZE_END,
    BY_LIFE_END,
    NORDER
} Order;

typedef struct Rank {
    double key[3]; /* descending, first counts most */
    int i;
} Rank;

static int compare_rank(const void *p, const void *q)
{
    const Rank *x = p, *y = q;
    for (int k = 0; k < LEN(x->key); k++)
        if (x->key[k] != y->key[k])
            return x->key[k] > y->key[k] ? -1 : 1;
    return x->i - y->i;
}

static Rank rank_of(const PlaceBuf *x, int i, double load, Order order)
{
    double start = (double)-x->start, end = (double)x->end, life = start + end;
    double size = (double)x->nbytes, area = life * size;
    switch (order) {
    case BY_START: return (Rank){{start, size, end}, i};
    case BY_END: return (Rank){{end, size, start}, i};
    case BY_LIFE: return (Rank){{life, size, start}, i};
    case BY_LIFE_END: return (Rank){{life, end, size}, i};
    case BY_SIZE: return (Rank){{size, life, start}, i};
    case BY_SIZE_START: return (Rank){{size, start, end}, i};
    case BY_SIZE_END: return (Rank){{size, end, start}, i};
    case BY_AREA: return (Rank){{area, size, start}, i};
    case BY_LOAD: return (Rank){{load, life, size}, i};
    case BY_LOAD_SIZE: return (Rank){{load, size, life}, i};
    default: return (Rank){{load, area, start}, i};
    }
}

/* The largest live sum that each buffer meets, by a table of maxima over powers of two. */
static void fill_load(Arena *tmp, const Leaf *leaf, double *load)
{
    int n = leaf->nsection, levels = 1;
    while (1 << levels <= n)
        levels++;
    double *most = NEWN(tmp, double, n *levels + 1);
    for (int i = 0; i < leaf->n; i++) {
        most[leaf->b[i].start] += (double)leaf->b[i].nbytes;
        most[leaf->b[i].end] -= (double)leaf->b[i].nbytes;
    }
    for (int t = 1; t < n; t++)
        most[t] += most[t - 1];
    for (int v = 1; v < levels; v++)
        for (int t = 0; t + (1 << v) <= n; t++)
            most[v * n + t] = MAX(most[(v - 1) * n + t], most[(v - 1) * n + t + (1 << (v - 1))]);
    for (int i = 0; i < leaf->n; i++) {
        int s = (int)leaf->b[i].start, life = (int)leaf->b[i].end - s, v = 0;
        while (2 << v <= life)
            v++;
        load[i] = MAX(most[v * n + s], most[v * n + s + life - (1 << v)]);
    }
}

static void fill_order(Greedy *g, Rank *rank, const double *load, Order kind, int *order)
{
    for (int i = 0; i < g->n; i++)
        rank[i] = rank_of(&g->b[i], i, load[i], kind);
    qsort(rank, (size_t)g->n, sizeof *rank, compare_rank);
    for (int i = 0; i < g->n; i++)
        order[i] = rank[i].i;
}

/* ---- the portfolio ---- */

static void keep(Greedy *g, int64_t peak)
{
    for (int i = 0; i < g->n; i++)
        g->leaf->b[i].offset = g->offset[i];
    g->leaf->peak = peak;
}

/* Tries to reach the target; each failure moves the buffer that did not fit ahead of half of those
 * before it, in the end to the front. */
static void repair(Greedy *g, int *order, Fit fit, int rounds)
{
    Leaf *leaf = g->leaf;
    for (int r = 0; r < rounds && leaf->peak > leaf->target && leaf->steps < g->limit; r++) {
        int failed;
        int64_t peak = place_in_order(g, order, fit, leaf->peak, &failed);
        if (peak >= 0) {
            keep(g, peak);
            failed = 0;
            while (failed < g->n && g->offset[order[failed]] + g->b[order[failed]].nbytes < peak)
                failed++;
        }
        if (failed < 0)
            return;
        int to = r % 4 == 3 ? 0 : failed / 2, i = order[failed];
        memmove(order + to + 1, order + to, sizeof *order * (size_t)(failed - to));
        order[to] = i;
    }
}

static Greedy setup(Arena *tmp, Leaf *leaf, int64_t limit)
{
    Greedy g = {leaf, leaf->b, leaf->n, 1, .limit = leaf->steps + limit};
    while (g.width < g.n)
        g.width *= 2;
    g.latest = NEWN(tmp, int64_t, 2 * g.width);
    g.offset = NEWN(tmp, int64_t, g.n);
    g.span = NEWN(tmp, Span, g.n);
    return g;
}

void place_greedy(Arena *tmp, Leaf *leaf, int64_t limit)
{
    Greedy g = setup(tmp, leaf, limit);
    double *load = NEWN(tmp, double, g.n);
    Rank *rank = NEWN(tmp, Rank, g.n);
    int *order = NEWN(tmp, int, g.n), failed;
    fill_load(tmp, leaf, load);
    for (int k = 0; k < 2 * NORDER && leaf->peak > leaf->target; k++) {
        Order kind = (Order)(k / 2);
        Fit fit = k % 2 ? FIT_FIRST : FIT_BEST;
        fill_order(&g, rank, load, kind, order);
        int64_t peak = kind <= BY_END ? sweep(&g, tmp, order, kind == BY_END, fit, leaf->peak)
                                      : place_in_order(&g, order, fit, leaf->peak, &failed);
        if (peak >= 0)
            keep(&g, peak);
    }
    static const Order first[] = {BY_LIFE, BY_AREA, BY_SIZE, BY_LOAD};
    for (int k = 0; k < LEN(first) && leaf->peak > leaf->target; k++) {
        fill_order(&g, rank, load, first[k], order);
        repair(&g, order, k % 2 ? FIT_BEST : FIT_FIRST, 64);
    }
}
