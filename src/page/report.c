/* A plan as text: the breakdown for people, and every step with its addresses. */
#include "page.h"

#include <string.h>

enum { MIB = 1 << 20 };

static double mib(int64_t nbytes)
{
    return (double)nbytes / MIB;
}

/* ---- groups of parameters ---- */

/* Whether a parameter is in a group: trained by an optimizer's node, or not at all. */
static bool find_group(const Map *renewed, const Map *grads, const char *param, const Node **n)
{
    const Value *now = map_find(renewed, param);
    *n = now ? now->def : NULL;
    if (now)
        return *n && attr_index((*n)->op, "weight_decay") >= 0;
    return !map_find(grads, param);
}

static bool trains(const Graph *g, Arena *a)
{
    const Map params = graph_named(g->in, g->nin, ROLE_PARAM, a);
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_GRAD ||
            (g->out[i].role == ROLE_NEW && map_find(&params, g->out[i].name)))
            return true;
    return false;
}

static void add_to_group(Arena *a, ParamGroup **groups, int *count, int *cap, const Node *n,
                         const Type *t)
{
    const Op *op = n ? n->op : NULL;
    double decay = n ? n->attr[attr_index(op, "weight_decay")].f : 0;
    int i = 0;
    while (i < *count && ((*groups)[i].op != op || (*groups)[i].decay != decay))
        i++;
    if (i == *count)
        PUSH(a, *groups, *count, *cap, ((ParamGroup){op, decay, 0, 0}));
    (*groups)[i].ntensor++;
    (*groups)[i].nelem += type_nelem(t);
}

int plan_groups(Arena *a, const Plan *p, ParamGroup **groups)
{
    const Graph *g = p->g;
    const Node *n;
    int count = 0, cap = 0;
    if (!trains(g, a))
        return 0;
    const Map renewed = graph_named(g->out, g->nout, ROLE_NEW, a),
              grads = graph_named(g->out, g->nout, ROLE_GRAD, a);
    for (int frozen = 0; frozen < 2; frozen++)
        for (int i = 0; i < g->nin; i++)
            if (g->in[i].role == ROLE_PARAM && find_group(&renewed, &grads, g->in[i].name, &n) &&
                (n == NULL) == frozen)
                add_to_group(a, groups, &count, &cap, n, &g->in[i].v->type);
    return count;
}

static void print_groups(Buf *b, const Plan *p)
{
    ParamGroup *group = NULL;
    int count = plan_groups(b->a, p, &group);
    for (int i = 0; i < count; i++) {
        const ParamGroup *x = &group[i];
        buf_printf(b, "  %-13s %19s in %s", x->op ? x->op->name : "frozen",
                   arena_count(b->a, x->nelem, "value"), arena_count(b->a, x->ntensor, "tensor"));
        if (x->op)
            buf_printf(b, ", weight decay %g", x->decay);
        buf_add(b, "\n");
    }
}

/* ---- ways ---- */

typedef struct KernelRows {
    Arena *a;
    KernelRow *row;
    int count, cap;
} KernelRows;

static bool step_has_ways(const Plan *p, const Step *s)
{
    if (s->kind != STEP_CALL || s->copy)
        return false;
    const Kernel *k = op_kernels(s->node->op, p->device->kernels);
    return k && k->name && k[1].name;
}

static void each_call(const Plan *p, int from, int to, int64_t times, CallFn *fn, void *arg)
{
    for (int i = from; i < to; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP) {
            each_call(p, i + 1, s->end, times * s->count, fn, arg);
            i = s->end;
        } else if (step_has_ways(p, s)) {
            fn(arg, s, times);
        }
    }
}

void plan_each_call(const Plan *p, CallFn *fn, void *arg)
{
    each_call(p, 0, p->nstep, 1, fn, arg);
}

static void add_call(void *arg, const Step *s, int64_t times)
{
    KernelRows *x = arg;
    const char *kernel = s->kernel ? s->kernel->name : "ref";
    int i = 0;
    while (i < x->count && (x->row[i].op != s->node->op || strcmp(x->row[i].kernel, kernel) != 0))
        i++;
    if (i == x->count)
        PUSH(x->a, x->row, x->count, x->cap, ((KernelRow){s->node->op, kernel, 0, 0}));
    x->row[i].calls += times;
    x->row[i].sec += s->sec * (double)times;
}

int plan_kernels(Arena *a, const Plan *p, KernelRow **rows)
{
    KernelRows x = {.a = a};
    plan_each_call(p, add_call, &x);
    *rows = x.row;
    return x.count;
}

static void print_kernels(Buf *b, const Plan *p)
{
    KernelRow *row = NULL;
    int count = plan_kernels(b->a, p, &row);
    for (int i = 0; i < count; i++)
        buf_printf(b, "%s%s.%s %lld", i ? ", " : "  ways          ", row[i].op->name, row[i].kernel,
                   (long long)row[i].calls);
    buf_add(b, count ? "\n" : "");
}

/* ---- ranks ---- */

static void print_rank_groups(Buf *b, const Plan *p)
{
    RankGroup *group = NULL;
    int count = plan_rank_groups(b->a, p, &group);
    for (int i = 0; i < count; i++)
        buf_printf(b, "  %-13s %18s, estimated as on %s\n", group[i].name,
                   arena_count(b->a, group[i].ranks, "rank"),
                   arena_count(b->a, group[i].where.nodes, "host"));
}

/* Says that products of fewer rows may round otherwise. */
static void print_rings(Buf *b, const CollectiveRow *row, int count)
{
    bool rings = false;
    for (int i = 0; i < count; i++)
        rings |= row[i].kind == PERMUTE;
    if (rings)
        buf_add(b,
                "  permute: of parts beside products, which may round otherwise than whole ones\n");
}

static void print_collectives(Buf *b, const Plan *p)
{
    CollectiveRow *row = NULL;
    int count = plan_collectives(b->a, p, &row);
    const Mesh *m = p->g->mesh;
    if (m)
        buf_printf(b, "mesh %s: rank %lld of %lld\n", mesh_text(b->a, m), (long long)mesh_rank(m),
                   (long long)mesh_nranks(m));
    print_rank_groups(b, p);
    if (!count)
        return;
    buf_printf(b,
               "collectives, estimated %s a step, %s of it exposed:\n  %-8s %-10s %-14s %-10s %-4s "
               "%7s %7s %14s %10s %10s\n",
               sec_text(b->a, p->est.by_class[CLASS_COLLECTIVE]), sec_text(b->a, p->est.exposed),
               "phase", "of", "kind", "group", "", "values", "calls", "MiB received", "estimate",
               "exposed");
    for (int i = 0; i < count; i++) {
        const CollectiveRow *x = &row[i];
        buf_printf(b, "  %-8s %-10s %-14s %-10s %-4s %7lld %7lld %14.2f %10s %10s\n",
                   phase_name(x->phase), collective_role(x->role), collective_name(x->kind),
                   x->group, dtype_name(x->dtype), (long long)x->count, (long long)x->calls,
                   x->nbytes / MIB, sec_text(b->a, x->sec), sec_text(b->a, x->exposed));
    }
    print_rings(b, row, count);
}

/* ---- the plan ---- */

static void print_scopes(Buf *b, const Breakdown *x, const Estimate *e)
{
    bool backward = x->nsaved || x->nrecomputed;
    buf_printf(b, "by scope, in MiB:                 at the peak%s\n",
               backward ? "        saved   recomputed" : "");
    for (int i = 0; i < x->nrow; i++) {
        const ScopeBytes *y = &x->row[i];
        if (MAX(y->peak, MAX(y->saved, y->recomputed)) * y->count < MIB / 100)
            continue; /* labels and such */
        buf_printf(b, "  %-24s", scope_title(b->a, y));
        buf_printf(b, y->count > 1 ? "%4d x" : "      ", y->count);
        buf_printf(b, " %12.2f", mib(y->peak));
        if (backward)
            buf_printf(b, " %12.2f %12.2f", mib(y->saved), mib(y->recomputed));
        buf_add(b, "\n");
    }
    if (backward)
        buf_printf(b, "saved for the backward: %s, %lld bytes, %.2f MiB\n",
                   arena_count(b->a, x->nsaved, "value"), (long long)x->saved, mib(x->saved));
    if (x->nrecomputed)
        buf_printf(b,
                   "computed again: %s, %lld bytes, %.2f MiB, %.4g GFLOP (%.1f %% of the "
                   "step's), estimated %s\n",
                   arena_count(b->a, x->nrecomputed, "value"), (long long)x->recomputed,
                   mib(x->recomputed), x->added_nflop / 1e9,
                   100 * x->added_nflop / MAX(x->nflop, 1), sec_text(b->a, e->added));
}

static void print_step_bound(Buf *b, const Plan *p)
{
    Arena *tmp = arena_tmp(b->a);
    double least = plan_step_bound(p, tmp, 0), within = plan_memory_bound(p, tmp);
    buf_printf(b, "  step bound    %12s a step  (no schedule is faster)\n", sec_text(b->a, least));
    if (within > least * (1 + 1e-9))
        buf_printf(b, "  memory bound  %12s a step  (no schedule in no more memory is faster)\n",
                   sec_text(b->a, within));
    arena_reset(tmp);
}

static void print_host(Buf *b, const PlanSpace *x)
{
    buf_printf(b, "  host's memory %12lld bytes  %10.2f MiB (lower bound %lld", (long long)x->peak,
               mib(x->peak), (long long)x->bound);
    if (x->persistent)
        buf_printf(b, "; %lld of optimizer state", (long long)x->persistent);
    buf_add(b, ")\n");
}

void plan_print(Buf *b, const Plan *p)
{
    buf_printf(b, "plan: %s, %s (%s), %s\n", arena_count(b->a, graph_count(p->g), "node"),
               arena_count(b->a, p->nstep, "call"), arena_count(b->a, p->ncopies, "copy"),
               arena_count(b->a, p->nstorage, "buffer"));
    buf_printf(b, "  peak          %12lld bytes  %10.2f MiB\n",
               (long long)p->space[SPACE_MAIN].peak, mib(p->space[SPACE_MAIN].peak));
    buf_printf(b, "  lower bound   %12lld bytes  %10.2f MiB\n",
               (long long)p->space[SPACE_MAIN].bound, mib(p->space[SPACE_MAIN].bound));
    buf_printf(b, "  order bound   %12lld bytes  %10.2f MiB (of any order)\n",
               (long long)p->order_bound, mib(p->order_bound));
    buf_printf(b, "  waste         %12lld bytes\n",
               (long long)(p->space[SPACE_MAIN].peak - p->space[SPACE_MAIN].bound));
    buf_printf(b, "  library       %12lld bytes  %10.2f MiB (reserve, beside the peak)\n",
               (long long)p->reserve, mib(p->reserve));
    if (p->overlap_cap)
        buf_printf(b, "  overlap up to %12lld bytes  %10.2f MiB (of collectives with computing)\n",
                   (long long)p->overlap_cap, mib(p->overlap_cap));
    if (!device_is_host(p->device))
        print_host(b, &p->space[SPACE_HOST]);
    buf_printf(b, "  estimate      %12s a step  (%s)\n", sec_text(b->a, p->est.step),
               machine_title(b->a, p->machine));
    if (p->est.communicates)
        print_step_bound(b, p);
    buf_printf(b, "  of it         %s\n", estimate_shares(b->a, &p->est));
    print_kernels(b, p);
    print_groups(b, p);
    print_collectives(b, p);
    const Node *n =
        p->nstep ? p->step[MIN(p->space[SPACE_MAIN].peak_step, p->nstep - 1)].node : NULL;
    if (n)
        buf_printf(b, "alive at the peak (%s%s%s):\n", n->op->name, *n->scope ? " in " : "",
                   n->scope);
    for (int c = 0; c < NCATEGORY; c++)
        if (p->by_category[c])
            buf_printf(b, "  %-13s %12lld bytes  %10.2f MiB\n", category_name((Category)c),
                       (long long)p->by_category[c], mib(p->by_category[c]));
    print_scopes(b, plan_breakdown(b->a, p), &p->est);
}

static void print_arg(Buf *b, const Plan *p, const Arg *a)
{
    const Storage *s = &p->storage[a->storage];
    buf_printf(b, " %s@%lld", s->name, (long long)(s->offset + a->offset));
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        if (a->loop_stride[d])
            buf_printf(b, "+%lldt%d", (long long)a->loop_stride[d], d);
}

/* The queue, and what is waited for. */
static void print_queue(Buf *b, const Step *s)
{
    static const char *const names[] = {
        [QUEUE_COMPUTE] = "", [QUEUE_OUT] = "out: ", [QUEUE_IN] = "in: "};
    buf_add(b, names[s->queue]);
    for (int k = 0; k < s->nwait; k++)
        buf_printf(b, "%s%d%s", k ? ", " : "after ", s->wait[k], k + 1 < s->nwait ? "" : ": ");
}

static void print_call(Buf *b, const Plan *p, const Step *s)
{
    buf_printf(b, "%s%s.%s", s->copy ? "(planner) " : "", s->node->op->name,
               s->kernel ? s->kernel->name : "ref");
    for (int i = 0; i < s->call.nin; i++)
        print_arg(b, p, &s->arg[i]);
    buf_add(b, " ->");
    for (int k = 0; k < s->call.nout; k++)
        print_arg(b, p, &s->arg[s->call.nin + k]);
    if (s->work >= 0)
        buf_printf(b, " work @%lld %lld", (long long)p->storage[s->work].offset,
                   (long long)s->call.nbytes_work);
    if (*s->node->scope)
        buf_printf(b, "  %s", s->node->scope);
}

void plan_print_steps(Buf *b, const Plan *p)
{
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        buf_printf(b, "%5d ", i);
        print_queue(b, s);
        switch (s->kind) {
        case STEP_CALL: print_call(b, p, s); break;
        case STEP_LOOP:
            buf_printf(b, "loop t%d = %lld, %s by %lld", s->depth, (long long)s->first,
                       arena_count(b->a, s->count, "iteration"), (long long)s->by);
            break;
        case STEP_END: buf_printf(b, "end of loop %d", s->end); break;
        case STEP_ZERO: buf_printf(b, "zero %lld bytes", (long long)s->nbytes); break;
        case STEP_OFFSET: buf_printf(b, "offset t%d * %lld", s->depth, (long long)s->by); break;
        }
        if (s->kind == STEP_ZERO || s->kind == STEP_OFFSET)
            print_arg(b, p, &s->arg[0]);
        buf_add(b, "\n");
    }
}
