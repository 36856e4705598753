/* Makes a plan: has orders searched and scores them by what they need with addresses; lowers the
 * graph, computes live ranges and gives each buffer an address. In each space parameters and
 * optimizer state lie first, in the graph's order, so that other plans for the same model can share
 * them; then caches, after what such a plan keeps there; src/place puts the rest after. Last the
 * addresses say which steps of other queues a step waits for. */
#include "plan.h"
#include "order.h"
#include "../pass/pass.h"
#include "../product/onednn.h"
#include "../place/place.h"

#include <math.h>
#include <string.h>

int64_t plan_step_handles(const Step *s)
{
    if (s->kind != STEP_CALL)
        return 0;
    if (s->kernel && s->kernel->handles)
        return s->kernel->handles(&s->call);
    return s->node->op->class == CLASS_PRODUCT ? onednn_keeps().each_run : 0;
}

/* The bytes that MPI allocates for a rank, as measured with tests/mpi/direct's `memory` (Open MPI
 * 4.1.4, MPICH 4.0.2; 2 to 16 ranks of one host; private and shared memory, not code): at its start
 * 3 and 6.5 MiB, after many short messages at once to each rank 0.5 MiB more for each, in sums of
 * the library's own 2 MiB more. Rounded up; a host has at most so many ranks. Ranks that are
 * threads have no MPI, but the same plans. */
static int64_t mpi_reserve(const Graph *g)
{
    int64_t n = g->mesh ? mesh_nranks(g->mesh) : 1;
    return n > 1 ? (10 << 20) + MIN(n, 64) * (1 << 19) : 0;
}

/* CUDA's context, the kernels' code and cuBLASLt on a GPU, beside the arena; buffers of NCCL, which
 * nobody has measured. */
enum { CUDA_RESERVE = 640 << 20, NCCL_RESERVE = 512 << 20 };

/* The bytes of the operands of a call by the packed gemm, which bound its buffers; 0 for other
 * calls. */
static int64_t gemm_nbytes(const Step *s)
{
    int64_t nbytes = 0;
    if (s->kind != STEP_CALL || !s->kernel || !s->kernel->gemm || !s->kernel->gemm(&s->call))
        return 0;
    for (int i = 0; i < s->node->nin; i++)
        nbytes += type_nbytes(&s->node->in[i]->type);
    return nbytes;
}

/* Whether a collective is between memories of devices. */
static bool talks_directly(const Plan *p)
{
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE && s->narg)
            return p->storage[s->arg[0].storage].space == SPACE_MAIN;
    }
    return false;
}

/* The bytes that oneDNN allocates by itself beside its scratchpads (onednn.h). */
static void fill_reserve(Plan *p)
{
    if (device_is_gpu(p->device)) {
        p->reserve = CUDA_RESERVE + mpi_reserve(p->g) + (talks_directly(p) ? NCCL_RESERVE : 0);
        return;
    }
    OneKeeps k = onednn_keeps();
    int64_t largest = 0, nthread = p->nthread;
    for (int i = 0; i < p->nstep; i++) {
        largest = MAX(largest, gemm_nbytes(&p->step[i]));
        p->handles += plan_step_handles(&p->step[i]);
    }
    p->reserve = k.once + nthread * k.each_thread + p->handles + mpi_reserve(p->g) +
                 MIN(MIN(nthread, k.gemm_threads) * k.gemm, 2 * largest);
}

/* Inputs that are kept, in this order, so that plans of a step without its update find the first
 * where the step has them. */
typedef enum { KEPT_WEIGHTS, KEPT_UPDATE, KEPT_CACHES, NKEPT } Kept;

static Kept kept_as(const Plan *p, const PlanPort *port)
{
    return port->role == ROLE_CACHE                          ? KEPT_CACHES
           : p->storage[port->storage].category == CAT_STATE ? KEPT_UPDATE
                                                             : KEPT_WEIGHTS;
}

/* Gives those of a space addresses from `at` on; returns where they end. */
static int64_t place_kept(Plan *p, Space space, Kept kept, int64_t at)
{
    for (int i = 0; i < p->nin; i++) {
        Storage *s = &p->storage[p->in[i].storage];
        if (!s->persistent || s->space != space || kept_as(p, &p->in[i]) != kept)
            continue;
        s->offset = at;
        at += s->nbytes;
    }
    return at;
}

/* Places what is kept in a space, at least `others` bytes of it. */
static void place_persistent(Plan *p, Space space, int64_t others)
{
    PlanSpace *x = &p->space[space];
    int64_t own = x->persistent;
    int64_t at = place_kept(p, space, KEPT_UPDATE, place_kept(p, space, KEPT_WEIGHTS, 0));
    x->persistent = place_kept(p, space, KEPT_CACHES, MAX(at, flow_round(others)));
    x->bound += x->persistent - own;
    if (space == SPACE_MAIN)
        p->by_category[CAT_OTHER] += x->persistent - own;
}

/* No addresses, but for what is kept: nothing lost between buffers. */
static void leave_unplaced(Plan *p)
{
    for (int s = 0; s < device_nspace(p->device); s++)
        p->space[s].peak = p->space[s].bound;
}

/* The flow of g as it is planned: without copies and equal nodes that a plan leaves out. */
static Flow *planned_flow(Graph *g, const PlanFor *to, Arena *a)
{
    Flow *f = flow_new(g, to->device, to->machine, a);
    flow_check_spaces(f);
    flow_alike(f);
    flow_join(f);
    flow_lay_over_wider(f);
    return f;
}

/* Refuses buffers of more than 2^62 bytes together, so that no sum of them overflows. */
Plan *plan_measured(Arena *a, Graph *g, const PlanFor *to)
{
    Flow *f = planned_flow(g, to, a);
    Plan *p = plan_lower(a, f);
    double nbytes = (double)to->persistent[SPACE_MAIN] + (double)to->persistent[SPACE_HOST];
    for (int i = 0; i < p->nstorage; i++)
        nbytes += (double)p->storage[i].nbytes;
    if (nbytes > 0x1p62)
        fail(g->ctx, TN_FAIL, "graph %s: expected at most 2^62 bytes in all buffers, found %g",
             g->name, nbytes);
    plan_live(p);
    plan_measure(p);
    for (int s = 0; s < device_nspace(to->device); s++)
        CHECK(p->space[s].bound == flow_space_peak(f, (Space)s));
    for (int s = 0; s < device_nspace(to->device); s++)
        place_persistent(p, (Space)s, to->persistent[s]);
    return p;
}

int64_t plan_kept_by_others(const Plan *p)
{
    int64_t others = p->space[SPACE_MAIN].persistent;
    for (int i = 0; i < p->nstorage; i++)
        if (p->storage[i].persistent && p->storage[i].space == SPACE_MAIN)
            others -= p->storage[i].nbytes;
    return others;
}

void plan_fill_bound(Plan *p, const PlanFor *to)
{
    Arena *tmp = arena_tmp(p->g->a);
    p->order_bound = plan_kept_by_others(p) + order_bound(planned_flow(p->g, to, tmp), tmp);
    arena_reset(tmp);
}

static Plan *bounded(Plan *p, const PlanFor *to)
{
    if (!to->rough && !to->unbounded)
        plan_fill_bound(p, to);
    return p;
}

/* `to` with its defaults filled in, which are a plan of its own on cpu. Machines that are looked up
 * lie in a. */
static PlanFor made_for(Arena *a, const PlanFor *to)
{
    PlanFor x = to ? *to : (PlanFor){0};
    x.device = x.device ? x.device : device_at(DEVICE_cpu);
    x.machine = x.machine ? x.machine : machine_for(a, x.device, NULL);
    x.quick |= x.tried;
    x.rough |= x.quick;
    return x;
}

bool plan_for_equal(const PlanFor *x, const PlanFor *y)
{
    return x->device == y->device && x->number == y->number &&
           !memcmp(x->persistent, y->persistent, sizeof x->persistent) &&
           x->reserve == y->reserve && x->limit == y->limit && x->lowest == y->lowest &&
           x->overlap == y->overlap && x->quick == y->quick && x->room == y->room &&
           x->rival == y->rival && x->beat == y->beat && x->enough == y->enough &&
           x->loose == y->loose && x->moved == y->moved && x->tried == y->tried &&
           x->rough == y->rough && x->beside == y->beside &&
           machine_hash(x->machine) == machine_hash(y->machine);
}

enum {
    SMALL_PLAN = 1000
}; /* buffers up to which orders are compared by more than greedy placement */

static int quick_effort(const Plan *p)
{
    return p->nstorage < SMALL_PLAN ? 2 : 0;
}

bool plan_is_one_of_many(const Graph *g, const PlanFor *to)
{
    enum { LARGE_GRAPH = 5000 }; /* nodes */
    return to->room && g->nnode > LARGE_GRAPH;
}

enum { LESS_EFFORT = 1 }; /* of placing what does not fit in any case, or is one of several */

/* Whether p does not fit wherever its buffers lie, and need not be the lowest. */
static bool is_beyond(const Plan *p, const PlanFor *to)
{
    return to->limit && !to->lowest && p->space[SPACE_MAIN].bound + p->reserve > to->limit;
}

/* The effort with which p gets its addresses. */
static int place_effort(const Plan *p, const PlanFor *to)
{
    const bool less = is_beyond(p, to) || plan_is_one_of_many(p->g, to);
    return to->rough ? 0 : less ? LESS_EFFORT : PLACE_EFFORT;
}

/* The bytes of p, without its reserve, within which its addresses are good enough; 0: the fewest
 * are sought. */
static int64_t enough_of(const Plan *p, const PlanFor *to)
{
    if (to->loose)
        return INT64_MAX;
    return to->enough && plan_is_one_of_many(p->g, to) ? MAX(to->enough - p->reserve, 1) : 0;
}

Plan *plan_placed(Arena *a, Graph *g, const PlanFor *to, int64_t most, Placements *known)
{
    double start = now_sec();
    Plan *p = plan_measured(a, g, to);
    fill_reserve(p);
    p->reserve = MAX(p->reserve, to->reserve);
    const int64_t enough = enough_of(p, to);
    if (to->rough && !to->quick && plan_one_queue(p))
        leave_unplaced(p);
    else if (enough)
        plan_place_enough(p, place_effort(p, to), enough);
    else
        plan_place(p, place_effort(p, to), most, known);
    plan_waits(p, a);
    p->number = to->number;
    p->machine = to->machine;
    Arena *tmp = arena_tmp(g->a);
    plan_estimate(p, tmp);
    arena_reset(tmp);
    p->sec = now_sec() - start;
    return p;
}

Plan *plan_make(Arena *a, Graph *g, const PlanFor *to)
{
    PlanFor x = made_for(a, to);
    return bounded(plan_placed(a, g, &x, 0, NULL), &x);
}

int64_t plan_bound(Graph *g, const Device *d)
{
    Arena *tmp = arena_tmp(g->a);
    PlanFor x = made_for(tmp, &(PlanFor){.device = d});
    int64_t bound = plan_measured(tmp, g, &x)->space[SPACE_MAIN].bound;
    arena_reset(tmp);
    return bound;
}

int64_t plan_least(const Plan *p)
{
    return p->space[SPACE_MAIN].peak + p->reserve;
}

typedef struct Scoring {
    Arena *tmp;
    PlanFor to;
    int waste;    /* how often a byte lost between buffers counts */
    int64_t best; /* no higher score is of interest */
    bool found;   /* that score or a lower one */
    Placements *known;
} Scoring;

/* The peak of an order with its buffers placed. A byte lost between buffers may count twice, so
 * that of two orders about as good the one whose plan equals its bound is taken. If the bound says
 * that the score is higher, nothing is placed. */
static int64_t score(Graph *g, void *arg)
{
    Scoring *s = arg;
    Plan *p = plan_measured(s->tmp, g, &s->to);
    const PlanSpace *x = &p->space[SPACE_MAIN];
    int64_t cost = INT64_MAX;
    if (x->bound <= s->best) {
        fill_reserve(p);
        plan_place(p, MIN(quick_effort(p), place_effort(p, &s->to)), 0, s->known);
        cost = x->bound + s->waste * (x->peak - x->bound);
    }
    s->found |= cost <= s->best;
    s->best = MIN(s->best, cost);
    arena_reset(s->tmp);
    return cost;
}

static int64_t score_orders(Graph *g, const PlanFor *to, Placements *known, int waste, int64_t most)
{
    Arena *tmp = arena_tmp(g->a);
    Scoring s = {.tmp = arena_tmp(g->a), .to = *to, .waste = waste, .best = most, .known = known};
    memset(s.to.persistent, 0, sizeof s.to.persistent);
    order_graph(g, to->device, to->machine, tmp, false, score, &s);
    arena_reset(tmp);
    return s.found ? s.best : INT64_MAX;
}

int64_t plan_score(Graph *g, const PlanFor *to, Placements *known, int64_t most)
{
    return score_orders(g, to, known, 2, most);
}

/* Last, so that no other choice depends on it: it only lowers the peak. */
static void improve_order(Graph *g, const PlanFor *to, Placements *known)
{
    Arena *tmp = arena_tmp(g->a);
    Scoring s = {.tmp = arena_tmp(g->a), .to = *to, .waste = 2, .best = INT64_MAX, .known = known};
    memset(s.to.persistent, 0, sizeof s.to.persistent);
    order_lower(g, to->device, to->machine, tmp, to->quick ? NULL : score, &s);
    arena_reset(tmp);
}

/* Orders g for the lowest live sum, which the flow counts. */
static void order_quick(Graph *g, const PlanFor *to)
{
    Arena *tmp = arena_tmp(g->a);
    order_graph(g, to->device, to->machine, tmp, true, NULL, NULL);
    arena_reset(tmp);
}

/* ---- orders ---- */

static bool within(const Plan *p, int64_t limit)
{
    return plan_least(p) <= limit;
}

enum { NEAR = 32 }; /* this part of a limit above it is near */

enum { WASTES = 2 }; /* at most so often a byte lost between buffers counts */

/* Orders g; returns the score of that, INT64_MAX where orders are not scored. */
static int64_t order_nodes(Graph *g, const PlanFor *to, Placements *known, int waste)
{
    if (!to->quick && !plan_is_one_of_many(g, to))
        return score_orders(g, to, known, waste, INT64_MAX);
    order_quick(g, to);
    return INT64_MAX;
}

/* Takes fused nodes of g apart that raise its peak, and orders the rest; g has that score. */
static void order_apart(Graph *g, const PlanFor *to, Placements *known, int waste, int64_t score)
{
    if (score < INT64_MAX && plan_take_apart(g, score, to, known))
        score_orders(g, to, known, waste, INT64_MAX);
}

/* A plan that does not fit is not moved: that takes no bytes off it. A large one of
 * several gets addresses with effort only once its collectives are moved. */
static Plan *make_ordered(Arena *a, Graph *g, const PlanFor *to, Placements *known)
{
    PlanFor first = *to;
    first.loose |= plan_is_one_of_many(g, to);
    Plan *p = plan_placed(a, g, &first, 0, known), *moved = p;
    if (!to->limit || to->beside || within(p, to->limit))
        moved = plan_overlap(a, p, to, known);
    return moved != p || first.loose == to->loose ? moved : plan_placed(a, g, to, 0, known);
}

static Plan *order_once(Arena *a, Graph *g, const PlanFor *to, bool apart)
{
    Arena *keep = arena_tmp(g->a);
    Placements *known = placements_new(keep);
    const int64_t score = order_nodes(g, to, known, WASTES);
    if (apart)
        order_apart(g, to, known, WASTES, score);
    improve_order(g, to, known);
    Plan *p = make_ordered(a, g, to, known);
    arena_reset(keep);
    return p;
}

/* ---- within a limit ---- */

/* A graph in an order, and its plan. */
typedef struct InOrder {
    Graph *g; /* NULL: it has none yet */
    int64_t score;
    Plan *plan; /* NULL: it is not made yet */
} InOrder;

/* The orders that plans of a graph within a limit choose among. */
typedef struct Orders {
    const Graph *g;
    PlanFor to;
    Arena *a, *keep; /* the plans'; the orders' */
    Placements *known;
    InOrder of[2][WASTES + 1]; /* by whether fused nodes are apart, and how often a byte counts */
} Orders;

static InOrder *orders_get(Orders *x, int waste, bool apart)
{
    InOrder *o = &x->of[apart][waste];
    if (o->g)
        return o;
    const InOrder *whole = apart ? orders_get(x, waste, false) : NULL;
    o->g = graph_clone(x->keep, apart ? whole->g : x->g);
    if (apart)
        order_apart(o->g, &x->to, x->known, waste, whole->score);
    else
        o->score = order_nodes(o->g, &x->to, x->known, waste);
    return o;
}

static Plan *orders_plan(Orders *x, int waste, bool apart)
{
    InOrder *o = orders_get(x, waste, apart);
    if (o->plan)
        return o->plan;
    Graph *g = graph_clone(x->a, o->g);
    improve_order(g, &x->to, x->known);
    return o->plan = make_ordered(x->a, g, &x->to, x->known);
}

/* If the plan needs little more than the limit, orders that waste are given another chance. */
static Plan *order_near(Orders *x, bool apart)
{
    const int64_t limit = x->to.limit;
    Plan *p = orders_plan(x, WASTES, apart);
    if (within(p, limit) || plan_least(p) - limit >= limit / NEAR)
        return p;
    Plan *once = orders_plan(x, 1, apart);
    return plan_least(once) < plan_least(p) ? once : p;
}

/* The plan of the order in which a byte of waste counts WASTES times, or once where that needs a
 * little less. */
static Plan *order_counted(Orders *x, bool apart)
{
    Plan *p = orders_plan(x, WASTES, apart), *once = orders_plan(x, 1, apart);
    bool lower = plan_least(once) < plan_least(p) &&
                 plan_least(p) - plan_least(once) < plan_least(once) / NEAR;
    return lower ? once : p;
}

/* The plan of the fewest bytes that a limit may get: of orders that waste only what lies near.
 * Orders are compared with little effort, and the lowest is placed with all. */
static Plan *order_lowest(Orders *x, bool apart)
{
    Plan *best = order_counted(x, false), *other = apart ? order_counted(x, true) : best;
    best = plan_least(other) < plan_least(best) ? other : best;
    PlanFor to = x->to;
    to.lowest = true;
    const bool wastes = best->space[SPACE_MAIN].peak > best->space[SPACE_MAIN].bound;
    return wastes && !within(best, to.limit) ? plan_placed(x->a, best->g, &to, 0, NULL) : best;
}

/* Fused nodes are taken apart only where the plan does not fit otherwise. */
static Plan *order_limited(Arena *a, const Graph *g, const PlanFor *to, bool apart)
{
    Arena *keep = arena_tmp(g->a);
    Orders x = {.g = g, .to = *to, .a = a, .keep = keep, .known = placements_new(keep)};
    x.to.lowest = false;
    Plan *p = order_near(&x, false);
    Plan *lower = apart && !within(p, to->limit) ? order_near(&x, true) : p;
    p = plan_least(lower) < plan_least(p) ? lower : p;
    if (to->lowest && !within(p, to->limit))
        p = order_lowest(&x, apart);
    arena_reset(keep);
    return p;
}

Plan *plan_overlapped(Arena *a, Graph *g, const PlanFor *to)
{
    Arena *keep = arena_tmp(g->a);
    PlanFor x = made_for(a, to);
    Placements *known = placements_new(keep);
    Plan *p = plan_overlap(a, plan_placed(a, g, &x, 0, known), &x, known);
    arena_reset(keep);
    return bounded(p, &x);
}

/* ---- whether a limit is kept ---- */

/* The task of finding an order that fits. */
typedef struct Fitting {
    Arena *tmp;
    const PlanFor *to;
    int64_t most; /* that what is not kept elsewhere may take */
} Fitting;

static bool is_placed_within(Graph *g, void *arg)
{
    const Fitting *x = arg;
    PlanFor to = *x->to;
    memset(to.persistent, 0, sizeof to.persistent);
    Plan *p = plan_measured(x->tmp, g, &to);
    plan_place(p, 0, 0, NULL);
    if (p->space[SPACE_MAIN].peak > x->most)
        plan_place(p, quick_effort(p), x->most, NULL);
    const bool fits = p->space[SPACE_MAIN].peak <= x->most;
    arena_reset(x->tmp);
    return fits;
}

/* Orders g so that it fits the limit; false: no such order is found. */
static bool order_fitting(Graph *g, const PlanFor *to)
{
    Arena *tmp = arena_tmp(g->a);
    Fitting x = {arena_tmp(g->a), to, 0};
    Plan *p = plan_measured(tmp, g, to);
    fill_reserve(p);
    x.most = to->limit - MAX(p->reserve, to->reserve) - plan_kept_by_others(p);
    const bool fits = order_within(g, to->device, to->machine, tmp, x.most, is_placed_within, &x);
    arena_reset(tmp);
    return fits;
}

static Plan *ordered(Arena *a, Graph *g, const PlanFor *to, bool apart)
{
    double start = now_sec();
    PlanFor x = made_for(a, to);
    Plan *p = NULL;
    if (x.tried && order_fitting(g, &x)) {
        p = plan_placed(a, g, &x, 0, NULL);
        if (!within(p, x.limit))
            plan_place(p, quick_effort(p), x.limit - p->reserve, NULL);
    } else if (x.quick || !x.limit) {
        p = order_once(a, x.room ? graph_clone(a, g) : g, &x, apart);
    } else {
        p = order_limited(a, g, &x, apart);
    }
    p = bounded(p, &x);
    p->sec = now_sec() - start;
    return p;
}

Plan *plan_searched(Arena *a, Graph *g, const PlanFor *to)
{
    return ordered(a, g, to, false);
}

Plan *plan_ordered(Arena *a, Graph *g, const PlanFor *to)
{
    return ordered(a, g, to, true);
}
