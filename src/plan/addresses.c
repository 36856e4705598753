/* Gives storages their addresses (src/place), and remembers placements: while a plan is made,
 * buffers of equal lives and sizes are placed several times, as orders are scored, of the graph and
 * of the one whose fused nodes are taken apart, and at last for the plan itself. Ranks that are
 * threads of one process plan the same step at once: where greedy orders do not reach the bound,
 * one of them searches for all. */
#include "plan.h"
#include "../place/place.h"

#include <string.h>

typedef struct Placement {
    struct Placement *next;
    PlaceBuf *buf;
    int n, effort;
    PlaceResult result;
} Placement;

struct Placements {
    Arena *a;
    Placement *first; /* the latest */
};

Placements *placements_new(Arena *a)
{
    Placements *x = NEW(a, Placements);
    x->a = a;
    return x;
}

static bool is_of(const Placement *x, const PlaceBuf *buf, int n)
{
    if (x->n != n)
        return false;
    for (int i = 0; i < n; i++)
        if (x->buf[i].start != buf[i].start || x->buf[i].end != buf[i].end ||
            x->buf[i].nbytes != buf[i].nbytes)
            return false;
    return true;
}

/* The placement of these buffers, or NULL. */
static Placement *find(const Placements *known, const PlaceBuf *buf, int n)
{
    Placement *x = known ? known->first : NULL;
    while (x && !is_of(x, buf, n))
        x = x->next;
    return x;
}

static void copy_offsets(PlaceBuf *to, const PlaceBuf *from, int n)
{
    for (int i = 0; i < n; i++)
        to[i].offset = from[i].offset;
}

static void remember(Placements *known, const PlaceBuf *buf, int n, int effort, PlaceResult r)
{
    Placement *x = NEW(known->a, Placement);
    *x = (Placement){known->first, NEWN(known->a, PlaceBuf, n), n, effort, r};
    for (int i = 0; i < n; i++)
        x->buf[i] = buf[i];
    known->first = x;
}

/* A search below greedy orders. */
typedef struct Searching {
    Arena *tmp;
    PlaceBuf *buf;
    int n;
    int64_t most;
    int effort;
    struct Searched *to;
} Searching;

typedef struct Searched {
    PlaceResult result;
    int64_t offset[];
} Searched;

static void search(void *arg)
{
    const Searching *x = arg;
    x->to->result = place_on(x->tmp, x->buf, x->n, x->most, x->effort);
    for (int i = 0; i < x->n; i++)
        x->to->offset[i] = x->buf[i].offset;
}

/* A search depends on this alone, as the greedy orders that it begins with do. */
static int64_t *search_key(const Searching *x, size_t *nbytes)
{
    enum { HEAD = 2, EACH = 3 };
    int64_t *key = NEWN(x->tmp, int64_t, HEAD + EACH * x->n), *at = key;
    *at++ = x->effort;
    *at++ = x->most;
    for (int i = 0; i < x->n; i++) {
        *at++ = x->buf[i].start;
        *at++ = x->buf[i].end;
        *at++ = x->buf[i].nbytes;
    }
    *nbytes = (size_t)(at - key) * sizeof *key;
    return key;
}

/* Searches for a peak of at most `most`, or the fewest bytes, below that of the greedy orders,
 * which buf has; once for all ranks of this process. */
static PlaceResult place_searched(Arena *tmp, PlaceBuf *buf, int n, int64_t most, int effort)
{
    const size_t size = sizeof(Searched) + (size_t)n * sizeof(int64_t);
    Searching x = {tmp, buf, n, most, effort, arena_alloc(tmp, size)};
    size_t nkey;
    int64_t *key = search_key(&x, &nkey);
    share_once(arena_ctx(tmp), key, nkey, x.to, size, search, &x);
    for (int i = 0; i < n; i++)
        buf[i].offset = x.to->offset[i];
    return x.to->result;
}

/* Fills buf[].offset. */
static PlaceResult place_known(Arena *tmp, PlaceBuf *buf, int n, int effort, Placements *known)
{
    const Placement *x = find(known, buf, n);
    if (x)
        copy_offsets(buf, x->buf, n);
    if (x && (x->effort >= effort || x->result.peak == x->result.bound))
        return x->result;
    PlaceResult r = x && !x->effort ? x->result : place(tmp, buf, n, 0, 0);
    if (effort && r.peak > r.bound)
        r = place_searched(tmp, buf, n, 0, effort);
    if (known)
        remember(known, buf, n, effort, r);
    return r;
}

enum { WITHIN_EFFORT = 1 }; /* of lowering a peak that is no more than was asked for */

/* The same within `most` bytes: full effort goes to that alone. */
static PlaceResult place_within(Arena *tmp, PlaceBuf *buf, int n, int effort, int64_t most,
                                Placements *known)
{
    PlaceResult r = place_known(tmp, buf, n, 0, known);
    if (r.peak <= most)
        return place_known(tmp, buf, n, MIN(effort, WITHIN_EFFORT), known);
    return place_searched(tmp, buf, n, most, effort);
}

/* A library may leave the end of its workspace unwritten. If only workspaces reach the top, the
 * placement is turned upside down, which is as good, so that the byte at the peak is written. */
static void turn_if_only_work_on_top(PlaceBuf *buf, const int *of, int n, const Plan *p,
                                     int64_t top)
{
    for (int i = 0; i < n; i++)
        if (buf[i].offset + buf[i].nbytes == top && p->storage[of[i]].category != CAT_WORK)
            return;
    for (int i = 0; i < n; i++)
        buf[i].offset = top - buf[i].offset - buf[i].nbytes;
}

/* The buffers of a space that are not kept. */
typedef struct SpaceBufs {
    PlaceBuf *buf;
    int *of, n; /* storages */
} SpaceBufs;

static SpaceBufs gather_bufs(const Plan *p, Space space, Arena *tmp)
{
    SpaceBufs x = {NEWN(tmp, PlaceBuf, p->nstorage), NEWN(tmp, int, p->nstorage), 0};
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->space != space || s->persistent || s->end <= s->start)
            continue;
        x.buf[x.n] = (PlaceBuf){.start = s->start, .end = s->end, .nbytes = s->nbytes};
        x.of[x.n++] = i;
    }
    return x;
}

/* Gives the buffers their addresses, from `at` on. */
static void take_bufs(Plan *p, Space space, int64_t at, const SpaceBufs *x, PlaceResult r)
{
    turn_if_only_work_on_top(x->buf, x->of, x->n, p, r.peak);
    for (int i = 0; i < x->n; i++)
        p->storage[x->of[i]].offset = at + x->buf[i].offset;
    p->space[space].peak = at + r.peak;
}

/* Places what is not kept, from `at` on. */
static void place_space(Plan *p, Space space, int64_t at, int effort, int64_t most,
                        Placements *known, Arena *tmp)
{
    const SpaceBufs x = gather_bufs(p, space, tmp);
    PlaceResult r = most ? place_within(tmp, x.buf, x.n, effort, most - at, known)
                         : place_known(tmp, x.buf, x.n, effort, known);
    CHECK(!effort || place_check(tmp, x.buf, x.n).first < 0);
    take_bufs(p, space, at, &x, r);
}

void plan_place(Plan *p, int effort, int64_t most, Placements *known)
{
    Arena *tmp = arena_tmp(p->g->a);
    for (int s = 0; s < device_nspace(p->device); s++) {
        place_space(p, (Space)s, p->space[s].persistent, effort, s == SPACE_MAIN ? most : 0, known,
                    tmp);
        arena_reset(tmp);
    }
}

/* Places within a capacity. Where that fails though it is well above the bound, a goal between the
 * two takes other ways, of which one mostly ends within the capacity. */
static PlaceResult place_enough(Arena *tmp, const SpaceBufs *x, int64_t capacity, int effort)
{
    enum { ROOMY = 32, NEARER = 4 }; /* parts of the bound, and of what is between */
    const PlaceResult r = place(tmp, x->buf, x->n, capacity, effort);
    if (r.answer != PLACE_LIMIT || capacity - r.bound < r.bound / ROOMY)
        return r;
    PlaceBuf *buf = NEWN(tmp, PlaceBuf, x->n);
    memcpy(buf, x->buf, sizeof *buf * (size_t)x->n);
    const PlaceResult s = place(tmp, buf, x->n, capacity - (capacity - r.bound) / NEARER, effort);
    if (s.peak >= r.peak)
        return r;
    memcpy(x->buf, buf, sizeof *buf * (size_t)x->n);
    return s;
}

void plan_place_enough(Plan *p, int effort, int64_t enough)
{
    Arena *tmp = arena_tmp(p->g->a);
    for (int s = 0; s < device_nspace(p->device); s++) {
        const int64_t at = p->space[s].persistent;
        const bool any = p->space[s].bound > enough;
        const SpaceBufs x = gather_bufs(p, (Space)s, tmp);
        const int64_t capacity = any || enough == INT64_MAX ? INT64_MAX : enough - at;
        take_bufs(p, (Space)s, at, &x, place_enough(tmp, &x, capacity, effort));
        CHECK(capacity == INT64_MAX || place_check(tmp, x.buf, x.n).first < 0);
        arena_reset(tmp);
    }
}
