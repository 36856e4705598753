/* Makes a plan: lowers the graph, computes live ranges and gives each buffer an address. Parameters
 * and optimizer state lie first, in the graph's order, so that other plans for the same model can
 * share them; then caches, behind what such a plan keeps there; src/place puts the rest behind. */
#include "plan.h"
#include "order.h"
#include "../place/place.h"

static int64_t count_products(const Plan *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        n += s->kind == STEP_CALL && s->node->op->class == CLASS_PRODUCT;
    }
    return n;
}

/* What oneDNN 2.6 allocates by itself beside its scratchpads, as measured: 1.5 MiB of code, up to
 * 0.1 MiB for each shape, 4 KiB for each product, and where operands are padded or the CPU has no
 * AVX-512 buffers for packed operands of 6 to 8 MiB a thread. Rounded up. */
static int64_t library_reserve(const Plan *p)
{
    int64_t per_thread = __builtin_cpu_supports("avx512f") ? 2 << 20 : 8 << 20;
    return (16 << 20) + par_threads() * per_thread + count_products(p) * 4096;
}

/* Inputs that are kept, caches or the others, from `at` on; returns where they end. */
static int64_t place_kept(Plan *p, bool caches, int64_t at)
{
    for (int i = 0; i < p->nin; i++) {
        Storage *s = &p->storage[p->in[i].storage];
        if (!s->persistent || (p->in[i].role == ROLE_CACHE) != caches)
            continue;
        s->offset = at;
        at += s->nbytes;
    }
    return at;
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

static void place_storages(Plan *p, int64_t persistent, int effort)
{
    Arena *tmp = arena_new(p->g->ctx);
    if (!tmp)
        fail(p->g->ctx, TN_FAIL, "out of memory");
    arena_defer(p->g->a, (void (*)(void *))arena_free, tmp);
    PlaceBuf *buf = NEWN(tmp, PlaceBuf, p->nstorage);
    int *of = NEWN(tmp, int, p->nstorage), n = 0;
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->persistent || s->end <= s->start)
            continue;
        buf[n] = (PlaceBuf){.start = s->start, .end = s->end, .nbytes = s->nbytes};
        of[n++] = i;
    }
    int64_t at = place_kept(p, true, MAX(place_kept(p, false, 0), persistent));
    PlaceResult r = place(tmp, buf, n, 0, effort);
    turn_if_only_work_on_top(buf, of, n, p, r.peak);
    for (int i = 0; i < n; i++)
        p->storage[of[i]].offset = at + buf[i].offset;
    p->persistent_nbytes = at;
    p->peak = at + r.peak;
    arena_reset(tmp);
}

/* Lowers g and measures live ranges and peak. Refuses buffers of more than 2^62 bytes together, so
 * that no sum of them overflows. */
static Plan *measured(Arena *a, Graph *g, bool prepare, int64_t persistent)
{
    Flow *f = flow_new(g, a);
    flow_join(f);
    Plan *p = plan_lower(a, f, prepare);
    double nbytes = (double)persistent;
    for (int i = 0; i < p->nstorage; i++)
        nbytes += (double)p->storage[i].nbytes;
    if (nbytes > 0x1p62)
        fail(g->ctx, TN_FAIL, "graph %s: expected at most 2^62 bytes in all buffers, found %g",
             g->name, nbytes);
    plan_live(p);
    plan_measure(p);
    CHECK(p->bound == flow_peak(f));
    return p;
}

static int64_t bound_of(Graph *g)
{
    Arena *tmp = arena_new(g->ctx);
    if (!tmp)
        fail(g->ctx, TN_FAIL, "out of memory");
    arena_defer(g->a, (void (*)(void *))arena_free, tmp);
    int64_t bound = order_bound(flow_new(g, tmp), tmp);
    arena_reset(tmp);
    return bound;
}

Plan *plan_make(Arena *a, Graph *g, int64_t persistent)
{
    double start = now_sec();
    Plan *p = measured(a, g, true, persistent);
    int64_t own = p->persistent_nbytes;
    place_storages(p, persistent, PLACE_EFFORT);
    int64_t others = p->persistent_nbytes - own;
    p->bound += others;
    p->order_bound = others + bound_of(g);
    p->by_category[CAT_OTHER] += others;
    p->reserve = library_reserve(p);
    p->sec = now_sec() - start;
    return p;
}

int64_t plan_bound(Graph *g)
{
    Arena *tmp = arena_new(g->ctx);
    if (!tmp)
        fail(g->ctx, TN_FAIL, "out of memory");
    arena_defer(g->a, (void (*)(void *))arena_free, tmp);
    Plan *p = measured(tmp, g, false, 0);
    int64_t bound = p->bound;
    arena_reset(tmp);
    return bound;
}

int64_t plan_least(const Plan *p)
{
    return p->peak + p->reserve;
}

static Arena *tmp_arena(Graph *g)
{
    Arena *tmp = arena_new(g->ctx);
    if (!tmp)
        fail(g->ctx, TN_FAIL, "out of memory");
    arena_defer(g->a, (void (*)(void *))arena_free, tmp);
    return tmp;
}

enum {
    SMALL_PLAN = 1000
}; /* buffers up to which orders are compared by more than greedy placement */

/* The peak of an order with its buffers placed. A byte lost between buffers counts twice, so that
 * of two orders about as good the one whose plan equals its bound is taken. */
static int64_t score(Graph *g, void *arg)
{
    Arena *tmp = arg;
    Plan *p = measured(tmp, g, false, 0);
    place_storages(p, 0, p->nstorage < SMALL_PLAN ? 2 : 0);
    int64_t cost = p->peak + (p->peak - p->bound);
    arena_reset(tmp);
    return cost;
}

Plan *plan_ordered(Arena *a, Graph *g, int64_t persistent)
{
    double start = now_sec();
    Arena *tmp = tmp_arena(g);
    order_graph(g, tmp, score, tmp_arena(g));
    arena_reset(tmp);
    Plan *p = plan_make(a, g, persistent);
    p->sec = now_sec() - start;
    return p;
}
