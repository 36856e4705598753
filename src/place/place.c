/* Offsets for buffers with fixed life times: cut the problem into parts, then greedy, then exact.
 *
 * Cuts, all without loss: buffers that take nothing are set aside; sizes are divided by their
 * greatest common divisor (in a placement pushed down every offset is a sum of sizes); time is
 * counted in sections, the maximal sets of buffers alive at once; where nothing is alive the
 * problem falls into independent parts; a buffer alive during all of a part goes to its bottom
 * (what was below it may slide above), which may lay bare further cuts. A part left whole is a
 * leaf: greedy.c tries orders, and where they miss the target, eject.c and
 * exact.c search below them.
 *
 * A leaf need only be as good as the worst: the target of all is the bound of the whole, or the
 * capacity, or what a leaf before could not go below. Cost: n log n for a level of cuts, of which
 * there are few in practice (their sum is limited), plus the leaves. */
#include "place.h"

#include <stdlib.h>
#include <string.h>

enum {
    CUT_WORK = 64,           /* cutting stops after this many visits per buffer */
    EFFORT_STEPS = 20000000, /* of the searches, for one unit of effort */
    FIRST_SLICE = 1000000,   /* steps of the first searches */
    DIVE = 32,               /* steps of the first exact search, for each pair of buffers */
    TRIES = 6,               /* capacities tried with as many steps each */
    EJECT_SHARE = 64,        /* of the steps goes to ejection where there is an exact search */
    EXACT_MOST = 4000,       /* buffers of a leaf that is searched exactly */
    SMALL = 8,               /* leaves that are always solved exactly */
};

/* A set of buffers to place above `base`. */
typedef struct Part {
    struct Part *next;
    PlaceBuf *b;
    int *id; /* of the caller's buffers */
    int n;
    int64_t base;
} Part;

typedef struct Driver {
    Arena *tmp;
    PlaceBuf *buf; /* the caller's */
    Part *part;    /* to cut */
    Part *leaf;    /* cannot be cut */
    int64_t unit;
    int64_t work;  /* visits of buffers left for cutting */
    int64_t steps; /* left for exact searches; a leaf takes half of them */
} Driver;

/* ---- sections ---- */

typedef struct Event {
    int64_t time;
    int i; /* buffer, ~buffer for its end */
} Event;

/* Ends before starts of the same time: intervals are half-open. */
static int compare_event(const void *p, const void *q)
{
    const Event *x = p, *y = q;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    if ((x->i < 0) != (y->i < 0))
        return x->i < 0 ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* Rewrites start and end as sections; returns how many there are. cut[k] is set where nothing is
 * alive between sections k-1 and k. */
static int fill_sections(Arena *tmp, PlaceBuf *b, int n, bool *cut)
{
    Event *event = NEWN(tmp, Event, 2 * n);
    int section = 0, live = 0;
    bool ended = false;
    for (int i = 0; i < n; i++) {
        event[2 * i] = (Event){b[i].start, i};
        event[2 * i + 1] = (Event){b[i].end, ~i};
    }
    qsort(event, 2 * (size_t)n, sizeof *event, compare_event);
    for (int k = 0; k < 2 * n; k++) {
        int i = event[k].i;
        if (i < 0) {
            b[~i].end = section + 1;
            ended = true;
            live--;
            continue;
        }
        if (ended)
            cut[++section] = live == 0;
        ended = false;
        b[i].start = section;
        live++;
    }
    return n ? section + 1 : 0;
}

static int64_t load_bound(Arena *tmp, const PlaceBuf *b, int n, int nsection)
{
    int64_t *change = NEWN(tmp, int64_t, nsection + 1), live = 0, bound = 0;
    for (int i = 0; i < n; i++) {
        change[b[i].start] += b[i].nbytes;
        change[b[i].end] -= b[i].nbytes;
    }
    for (int t = 0; t < nsection; t++) {
        live += change[t];
        bound = MAX(bound, live);
    }
    return bound;
}

/* ---- cutting ---- */

static Part *new_part(Driver *d, int n, int64_t base)
{
    Part *p = NEW(d->tmp, Part);
    *p = (Part){NULL, NEWN(d->tmp, PlaceBuf, n), NEWN(d->tmp, int, n), 0, base};
    return p;
}

static void add_to(Part *p, PlaceBuf b, int id)
{
    p->b[p->n] = b;
    p->id[p->n++] = id;
}

/* Puts the buffers alive throughout at the bottom; true if there were any. */
static bool peel(Driver *d, Part *p, int nsection)
{
    int kept = 0, n = p->n;
    for (int i = 0; i < n; i++) {
        if (p->b[i].end - p->b[i].start == nsection) {
            d->buf[p->id[i]].offset = p->base * d->unit;
            p->base += p->b[i].nbytes;
        } else {
            p->b[kept] = p->b[i];
            p->id[kept++] = p->id[i];
        }
    }
    p->n = kept;
    return kept < n;
}

static void push(Part **list, Part *p)
{
    p->next = *list;
    *list = p;
}

/* Cuts p at the marked sections into parts of their own. */
static void split(Driver *d, Part *p, int nsection, const bool *cut)
{
    int *of = NEWN(d->tmp, int, nsection), count = 0;
    int *size = NEWN(d->tmp, int, nsection);
    for (int t = 0; t < nsection; t++)
        of[t] = count += t && cut[t];
    for (int i = 0; i < p->n; i++)
        size[of[p->b[i].start]]++;
    Part **part = NEWN(d->tmp, Part *, count + 1);
    for (int k = 0; k <= count; k++)
        push(&d->part, part[k] = new_part(d, size[k], p->base));
    for (int i = 0; i < p->n; i++)
        add_to(part[of[p->b[i].start]], p->b[i], p->id[i]);
}

static void cut_part(Driver *d, Part *p)
{
    bool *cut = NEWN(d->tmp, bool, p->n + 1), any = false;
    int nsection = fill_sections(d->tmp, p->b, p->n, cut);
    for (int t = 1; t < nsection; t++)
        any |= cut[t];
    d->work -= p->n;
    if (d->work < 0)
        push(&d->leaf, p);
    else if (any)
        split(d, p, nsection, cut);
    else if (peel(d, p, nsection))
        push(&d->part, p);
    else
        push(&d->leaf, p);
}

/* ---- leaves ---- */

/* One search for a placement within capacity: exact where the leaf is small enough for that. */
static PlaceAnswer search(Arena *tmp, Leaf *leaf, Exact *x, int64_t capacity, int64_t limit)
{
    PlaceAnswer answer = place_eject(tmp, leaf, capacity, x ? limit / EJECT_SHARE : limit);
    return answer == PLACE_FOUND || !x ? answer : place_exact(x, capacity, limit);
}

/* Lowers the peak within `limit` steps: a search at the target, then some steps down from what is
 * known, longer after one that succeeds and shorter after one that fails; then all of it with more
 * steps. Returns whether the peak is proved least (or good enough). */
static bool improve(Arena *tmp, Leaf *leaf, int64_t limit)
{
    int64_t dive = (int64_t)DIVE * leaf->n * leaf->n;
    Exact *x = dive <= limit / 2 && leaf->n <= EXACT_MOST ? exact_new(tmp, leaf) : NULL;
    int64_t proved = leaf->target, stop = leaf->steps + limit; /* no placement is below proved */
    int64_t slice = x ? MAX(dive, FIRST_SLICE) : FIRST_SLICE;
    for (; leaf->peak > proved && leaf->steps < stop; slice *= 4) {
        int64_t capacity = proved, down = (leaf->peak - proved) / 4;
        for (int k = 0; k < TRIES && leaf->peak > proved && leaf->steps < stop; k++) {
            PlaceAnswer answer = search(tmp, leaf, x, capacity, MIN(slice, stop - leaf->steps));
            if (answer == PLACE_NONE)
                proved = capacity + 1;
            down = k == 0 ? down : answer == PLACE_FOUND ? 2 * down : down / 3;
            down = MAX(1, MIN(down, leaf->peak - proved));
            capacity = leaf->peak - down;
        }
    }
    return leaf->peak <= proved;
}

static int compare_start(const void *p, const void *q)
{
    const PlaceBuf *x = p, *y = q;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    if (x->nbytes != y->nbytes)
        return x->nbytes > y->nbytes ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Places a leaf; its target is `target` less its base. Returns base + peak. */
static int64_t place_leaf(Driver *d, Part *p, int64_t target, PlaceResult *result)
{
    bool *cut = NEWN(d->tmp, bool, p->n + 1);
    int *id = NEWN(d->tmp, int, p->n);
    Leaf leaf = {p->b, p->n, fill_sections(d->tmp, p->b, p->n, cut), target - p->base,
                 .peak = INT64_MAX};
    int64_t bound = load_bound(d->tmp, p->b, p->n, leaf.nsection);
    for (int i = 0; i < p->n; i++)
        p->b[i].offset = i;
    qsort(p->b, (size_t)p->n, sizeof *p->b, compare_start);
    for (int i = 0; i < p->n; i++)
        id[i] = p->id[p->b[i].offset];
    leaf.target = MAX(leaf.target, bound);
    place_greedy(d->tmp, &leaf);
    if (p->n <= SMALL)
        place_small(d->tmp, &leaf);
    else if (leaf.peak > leaf.target)
        result->proved &= improve(d->tmp, &leaf, d->steps / 2);
    d->steps = MAX(0, d->steps - leaf.steps);
    for (int i = 0; i < p->n; i++)
        d->buf[id[i]].offset = (p->base + p->b[i].offset) * d->unit;
    result->steps += leaf.steps;
    return p->base + leaf.peak;
}

/* ---- the whole ---- */

static int64_t common_divisor(int64_t x, int64_t y)
{
    while (y) {
        int64_t r = x % y;
        x = y;
        y = r;
    }
    return x;
}

/* The buffers that take space, as one part. */
static Part *gather(Driver *d, int n)
{
    Part *p = new_part(d, n, 0);
    for (int i = 0; i < n; i++) {
        PlaceBuf *x = &d->buf[i];
        CHECK(x->nbytes >= 0);
        x->offset = 0;
        if (x->nbytes > 0 && x->start < x->end) {
            d->unit = common_divisor(x->nbytes, d->unit);
            add_to(p, *x, i);
        }
    }
    for (int i = 0; i < p->n; i++)
        p->b[i].nbytes /= d->unit;
    return p;
}

PlaceResult place(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort)
{
    PlaceResult result = {.proved = true};
    Driver d = {.tmp = tmp,
                .buf = buf,
                .work = (int64_t)CUT_WORK * n + 1000,
                .steps = 2 * (int64_t)EFFORT_STEPS * effort};
    Part *all = gather(&d, n);
    if (!all->n)
        return result;
    bool *cut = NEWN(tmp, bool, all->n + 1);
    int nsection = fill_sections(tmp, all->b, all->n, cut);
    int64_t bound = load_bound(tmp, all->b, all->n, nsection);
    int64_t target = MAX(bound, capacity / d.unit);
    push(&d.part, all);
    while (d.part) {
        Part *p = d.part;
        d.part = p->next;
        if (p->n)
            cut_part(&d, p);
    }
    for (Part *p = d.leaf; p; p = p->next) {
        int64_t peak = place_leaf(&d, p, target, &result);
        target = MAX(target, peak);
    }
    result.bound = bound * d.unit;
    for (int i = 0; i < n; i++)
        if (buf[i].start < buf[i].end)
            result.peak = MAX(result.peak, buf[i].offset + buf[i].nbytes);
    return result;
}
