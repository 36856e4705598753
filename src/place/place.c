/* The driver of placement: cuts the problem into parts, places each greedily, then searches.
 *
 * Cuts, all without loss: buffers that take nothing are set aside; sizes are divided by their
 * greatest common divisor (in a placement pushed down every offset is a sum of sizes); time is
 * counted in sections, the maximal sets of buffers alive at once; at a time when nothing is alive
 * the problem falls into independent parts; a buffer that is alive during all of a part goes to its
 * bottom (what was below it can slide above it), which may allow further cuts. A part that cannot
 * be cut is a leaf: greedy.c tries orders, and if they miss the target, eject.c, exact.c and beam.c
 * search below them; small.c solves leaves of a few buffers.
 *
 * A leaf only needs to be as good as the worst leaf: the target of all is the largest of the bound
 * of the whole, the capacity, and what is proved of any leaf. The searches form one sequence that
 * depends on the buffers alone, each on the leaf that is highest at the time. Effort says after how
 * many steps the sequence stops, and the best found is kept, so more effort never gives a worse
 * answer. Cost: n log n for a level of cuts, of which there are few in practice (their sum is
 * limited), plus the leaves. */
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
    ORDER_STEPS = 400000000, /* of the greedy orders, whatever the effort */
    SMALL = 8,               /* leaves that are always solved exactly */
};

/* A set of buffers to place above `base`. */
typedef struct Section {
    struct Section *next;
    PlaceBuf *b;
    int *id; /* of the caller's buffers */
    int n;
    int64_t base;
    struct LeafSearch *search; /* of a leaf */
} Section;

/* Searches below the peak of a leaf: first at the target, then some distance below the best peak,
 * a longer one after a success and a shorter one after a failure; then all again with more steps.
 */
typedef struct LeafSearch {
    Leaf leaf;
    Exact *exact;   /* NULL before the first search, and where the leaf is too large */
    Beam *beam;     /* as exact */
    int64_t proved; /* no placement of the leaf has a lower peak */
    int64_t slice;  /* steps of a search */
    int64_t down;
    int tried; /* with this slice */
} LeafSearch;

typedef struct PlaceDriver {
    Arena *tmp;
    PlaceBuf *buf; /* the caller's */
    Section *part; /* to cut */
    Section *leaf; /* cannot be cut */
    int64_t unit;
    int64_t work;  /* visits of buffers left for cutting */
    int64_t steps; /* left for searches */
} PlaceDriver;

/* ---- sections ---- */

typedef struct PlaceEvent {
    int64_t time;
    int i; /* buffer, ~buffer for its end */
} PlaceEvent;

/* Ends before starts of the same time: intervals are half-open. */
static int compare_event(const void *p, const void *q)
{
    const PlaceEvent *x = p, *y = q;
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
    PlaceEvent *event = NEWN(tmp, PlaceEvent, 2 * n);
    int section = 0, live = 0;
    bool ended = false;
    for (int i = 0; i < n; i++) {
        event[2 * i] = (PlaceEvent){b[i].start, i};
        event[2 * i + 1] = (PlaceEvent){b[i].end, ~i};
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

static Section *new_part(PlaceDriver *d, int n, int64_t base)
{
    Section *p = NEW(d->tmp, Section);
    *p = (Section){.b = NEWN(d->tmp, PlaceBuf, n), .id = NEWN(d->tmp, int, n), .base = base};
    return p;
}

static void add_to(Section *p, PlaceBuf b, int id)
{
    p->b[p->n] = b;
    p->id[p->n++] = id;
}

/* Puts the buffers alive throughout at the bottom; true if there were any. */
static bool peel(PlaceDriver *d, Section *p, int nsection)
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

static void push(Section **list, Section *p)
{
    p->next = *list;
    *list = p;
}

/* Cuts p at the marked sections into parts of their own. */
static void split(PlaceDriver *d, Section *p, int nsection, const bool *cut)
{
    int *of = NEWN(d->tmp, int, nsection), count = 0;
    int *size = NEWN(d->tmp, int, nsection);
    for (int t = 0; t < nsection; t++)
        of[t] = count += t && cut[t];
    for (int i = 0; i < p->n; i++)
        size[of[p->b[i].start]]++;
    Section **part = NEWN(d->tmp, Section *, count + 1);
    for (int k = 0; k <= count; k++)
        push(&d->part, part[k] = new_part(d, size[k], p->base));
    for (int i = 0; i < p->n; i++)
        add_to(part[of[p->b[i].start]], p->b[i], p->id[i]);
}

static void cut_part(PlaceDriver *d, Section *p)
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

/* One search for a placement within capacity; exact, and by a beam, where the leaf is small enough
 * for that. */
static PlaceAnswer search_at(Arena *tmp, LeafSearch *s, int64_t capacity, int64_t exact,
                             int64_t beam)
{
    PlaceAnswer answer =
        place_eject(tmp, &s->leaf, capacity, s->exact ? s->slice / EJECT_SHARE : s->slice);
    if (answer == PLACE_FOUND || !s->exact)
        return answer;
    answer = place_exact(s->exact, capacity, exact);
    return answer == PLACE_LIMIT ? place_beam(s->beam, capacity, beam) : answer;
}

/* The next search of a leaf whose peak is above target, a peak that is good enough. */
static void search_next(Arena *tmp, LeafSearch *s, int64_t target)
{
    Leaf *leaf = &s->leaf;
    if (!s->slice) {
        int64_t dive = (int64_t)DIVE * leaf->n * leaf->n;
        bool small = leaf->n <= EXACT_MOST;
        s->exact = small ? exact_new(tmp, leaf) : NULL;
        s->beam = small ? beam_new(tmp, leaf) : NULL;
        s->slice = small ? MAX(dive, FIRST_SLICE) : FIRST_SLICE;
    }
    int64_t floor = MAX(target, s->proved);
    s->down = s->tried ? MAX(1, MIN(s->down, leaf->peak - floor)) : leaf->peak - floor;
    int64_t capacity = leaf->peak - s->down;
    int64_t exact = s->tried ? s->slice / 4 : 2 * s->slice, beam = exact;
    PlaceAnswer answer = search_at(tmp, s, capacity, exact, beam);
    if (answer == PLACE_NONE)
        s->proved = capacity + 1;
    s->down = !s->tried ? s->down / 4 : answer == PLACE_FOUND ? 2 * s->down : s->down / 3;
    s->tried = (s->tried + 1) % TRIES;
    if (!s->tried)
        s->slice *= 4;
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

/* Takes the offsets that the caller's buffers have. */
static void take_offsets(const PlaceDriver *d, Section *p)
{
    Leaf *leaf = &p->search->leaf;
    leaf->peak = 0;
    for (int i = 0; i < p->n; i++) {
        p->b[i].offset = d->buf[p->id[i]].offset / d->unit - p->base;
        leaf->peak = MAX(leaf->peak, p->b[i].offset + p->b[i].nbytes);
    }
}

/* Places a leaf by what takes little time, or (placed) has been; `target` is good enough for its
 * base + peak. */
static void place_leaf(PlaceDriver *d, Section *p, int64_t target, bool placed)
{
    bool *cut = NEWN(d->tmp, bool, p->n + 1);
    int *id = NEWN(d->tmp, int, p->n);
    LeafSearch *s = p->search = NEW(d->tmp, LeafSearch);
    Leaf *leaf = &s->leaf;
    *leaf = (Leaf){p->b, p->n, fill_sections(d->tmp, p->b, p->n, cut), .peak = INT64_MAX};
    s->proved = load_bound(d->tmp, p->b, p->n, leaf->nsection);
    for (int i = 0; i < p->n; i++)
        p->b[i].offset = i;
    qsort(p->b, (size_t)p->n, sizeof *p->b, compare_start);
    for (int i = 0; i < p->n; i++)
        id[i] = p->id[p->b[i].offset];
    p->id = id;
    leaf->target = MAX(target - p->base, s->proved);
    if (placed && p->n > SMALL) {
        take_offsets(d, p);
        return;
    }
    place_sweeps(d->tmp, leaf);
    leaf->stop = leaf->steps + ORDER_STEPS;
    place_orders(d->tmp, leaf);
    if (p->n <= SMALL)
        place_small(d->tmp, leaf);
    if (p->n <= SMALL && leaf->peak > leaf->target)
        s->proved = leaf->peak;
}

/* The leaf of the highest top; *least: the lower bound of the whole that is proved by leaves. */
static Section *highest(const PlaceDriver *d, int64_t *least)
{
    Section *top = d->leaf;
    for (Section *p = d->leaf; p; p = p->next) {
        *least = MAX(*least, p->base + p->search->proved);
        if (p->base + p->search->leaf.peak > top->base + top->search->leaf.peak)
            top = p;
    }
    return top;
}

/* Searches on, below the highest leaf, until the peak is at most max(capacity, *least) or the steps
 * are used up. */
static void search(PlaceDriver *d, int64_t capacity, int64_t *least)
{
    for (;;) {
        Section *p = highest(d, least);
        int64_t target = MAX(capacity, *least);
        if (!p || p->base + p->search->leaf.peak <= target || d->steps <= 0)
            return;
        Leaf *leaf = &p->search->leaf;
        int64_t before = leaf->steps;
        leaf->stop = before + d->steps;
        leaf->target = target - p->base;
        search_next(d->tmp, p->search, leaf->target);
        d->steps -= leaf->steps - before;
    }
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
static Section *gather(PlaceDriver *d, int n)
{
    Section *p = new_part(d, n, 0);
    for (int i = 0; i < n; i++) {
        PlaceBuf *x = &d->buf[i];
        CHECK(x->nbytes >= 0);
        if (x->nbytes > 0 && x->start < x->end) {
            d->unit = common_divisor(x->nbytes, d->unit);
            add_to(p, *x, i);
        } else {
            x->offset = 0;
        }
    }
    for (int i = 0; i < p->n; i++)
        p->b[i].nbytes /= d->unit;
    return p;
}

/* Cuts all the buffers into leaves. */
static void cut_all(PlaceDriver *d, Section *all)
{
    push(&d->part, all);
    while (d->part) {
        Section *p = d->part;
        d->part = p->next;
        if (p->n)
            cut_part(d, p);
    }
}

static void keep_leaf(const PlaceDriver *d, const Section *p, PlaceResult *r)
{
    for (int i = 0; i < p->n; i++)
        d->buf[p->id[i]].offset = (p->base + p->b[i].offset) * d->unit;
    r->steps += p->search->leaf.steps;
}

/* placed: the greedy orders have been tried, and buf[].offset is what they found. */
static PlaceResult place_all(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort,
                             bool placed)
{
    PlaceResult r = {.proved = true};
    PlaceDriver d = {.tmp = tmp,
                     .buf = buf,
                     .work = (int64_t)CUT_WORK * n + 1000,
                     .steps = (int64_t)EFFORT_STEPS * effort};
    Section *all = gather(&d, n);
    if (!all->n)
        return r;
    bool *cut = NEWN(tmp, bool, all->n + 1);
    int nsection = fill_sections(tmp, all->b, all->n, cut);
    int64_t bound = load_bound(tmp, all->b, all->n, nsection), least = bound;
    cut_all(&d, all);
    for (Section *p = d.leaf; p; p = p->next)
        place_leaf(&d, p, MAX(bound, capacity / d.unit), placed);
    search(&d, capacity / d.unit, &least);
    for (Section *p = d.leaf; p; p = p->next)
        keep_leaf(&d, p, &r);
    r.bound = bound * d.unit;
    r.least = least * d.unit;
    for (int i = 0; i < n; i++)
        if (buf[i].start < buf[i].end)
            r.peak = MAX(r.peak, buf[i].offset + buf[i].nbytes);
    r.answer = r.peak <= capacity ? PLACE_FOUND : r.least > capacity ? PLACE_NONE : PLACE_LIMIT;
    r.proved = r.peak <= MAX(capacity, r.least);
    return r;
}

PlaceResult place(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort)
{
    return place_all(tmp, buf, n, capacity, effort, false);
}

PlaceResult place_on(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort)
{
    return place_all(tmp, buf, n, capacity, effort, true);
}
