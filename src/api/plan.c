/* Plans: making, printing, counts. */
#include "api.h"

#include <math.h>

#include <string.h>

void warn_machine(tn_context *ctx, const tn_options *o)
{
    const char *warning = o->warn ? machine_warning(&ctx->ctx) : NULL;
    if (warning)
        o->warn(o->warn_arg, warning);
}

PlanFor plan_for(tn_context *ctx, const tn_options *o, const Device *device, const Machine *machine)
{
    warn_machine(ctx, o);
    if (o->device && !device_is_gpu(device))
        fail(&ctx->ctx, TN_USAGE, "--device %d: expected --backend cuda, found %s", (int)o->device,
             device->name);
    return (PlanFor){.device = device,
                     .overlap = !o->overlap || strcmp(o->overlap, "off") != 0,
                     .machine = machine,
                     .number = ranks_device(ctx, device, o->device),
                     .limit = o->goal_memory ? o->goal_memory : o->memory,
                     .persistent = {o->persistent, o->persistent_host},
                     .reserve = o->reserve};
}

void plan_limit(tn_plan *plan, int64_t limit)
{
    plan->limit = limit;
    plan->fits = !limit || plan_least(plan->p) <= limit;
}

/* The plan in which collectives are moved as was decided; NULL: nothing was, or it needs more than
 * the limit. */
static Plan *make_decided(tn_graph *g, Arena *a, PlanFor to)
{
    const int64_t limit = to.limit;
    to.room = g->again.chosen.room;
    if (!to.room)
        return NULL;
    to.enough = limit;
    to.limit = 0;
    Plan *p = again_made(&g->again, g->g, &to, true);
    if (!p)
        p = plan_ordered(a, g->g, &to);
    return limit && plan_least(p) > limit ? NULL : p;
}

static tn_plan *make(tn_graph *g, Arena *call, const tn_options *o, int reorder)
{
    graph_verify(g->g); /* it may have been built by hand */
    tn_plan *plan = handle_new(g->h.owner, call, sizeof *plan);
    plan->graph = g;
    Arena *a = plan->h.a;
    const Device *device = device_get(arena_ctx(a), o->backend);
    PlanFor to = plan_for(g->h.owner, o, device, machine_for(a, device, o->machine));
    to.rival = to.beat = g->rival;
    if (!reorder && !o->overlap)
        to.overlap = false;
    plan->p = reorder ? make_decided(g, a, to) : NULL;
    if (!plan->p && (reorder || !to.overlap)) /* plan_overlapped() would only make it */
        plan->p = again_made(&g->again, g->g, &to, reorder);
    if (reorder && (!plan->p || (to.limit && plan_least(plan->p) > to.limit))) {
        to.lowest = to.limit > 0;
        plan->p = plan_ordered(a, g->g, &to);
    } else if (!plan->p) {
        plan->p = plan_overlapped(a, g->g, &to);
    }
    plan_limit(plan, o->memory);
    return plan;
}

const char *fit_holds(Arena *a, const Plan *p)
{
    enum { MOST = 1700 };
    Buf b = {.a = a}, lines = {.a = a};
    plan_print(&b, p);
    char *rest;
    for (char *line = strtok_r(b.text, "\n", &rest); line && lines.len + strlen(line) < MOST;
         line = strtok_r(NULL, "\n", &rest))
        buf_printf(&lines, "\n  %s", line);
    return lines.text;
}

int fit_fail(tn_context *ctx, const Misfit *m, const FitText *t)
{
    const Misfit own = *m; /* it may be the context's */
    const char *beside = t->beside ? t->beside : "";
    char need[40], least[40], part[3][40];
    tn_bytes_text(m->peak + m->reserve, t->unit, need, sizeof need);
    tn_bytes_text(m->least, t->unit, least, sizeof least);
    tn_context_fail(ctx, TN_CODE_FIT,
                    "does not fit: %s%s%s (arena %s, library reserve %s), the limit is %s; the "
                    "least that would do is %s%s%s%s%s",
                    t->what, need, t->unit && *t->unit ? "" : " bytes",
                    tn_bytes_text(m->peak, t->unit, part[0], sizeof *part),
                    tn_bytes_text(m->reserve, t->unit, part[1], sizeof *part),
                    tn_bytes_text(m->limit, t->unit, part[2], sizeof *part), least, beside,
                    t->others ? "; with " : "", t->others ? t->others : "", t->holds);
    ctx->ctx.misfit = own;
    return TN_CODE_FIT;
}

int tn_plan_new(tn_graph *g, const tn_options *options, int reorder, tn_plan **plan)
{
    if (!GIVEN(args_owner(g), g, options, plan) || !args_options(args_owner(g), __func__, options))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx) {
        *plan = handle_keep(make(g, try_arena(&t), options, reorder));
        const Plan *p = (*plan)->p;
        if (!(*plan)->fits) {
            Misfit m = {.limit = options->memory,
                        .peak = p->space[SPACE_MAIN].peak,
                        .reserve = p->reserve,
                        .least = plan_least(p)};
            fit_fail(g->h.owner, &m,
                     &(FitText){.what = "needs ",
                                .holds = fit_holds(try_arena(&t), p),
                                .unit = options->memory_unit});
        }
    }
    int code = tried(&t);
    return code || (*plan)->fits ? code : TN_CODE_FIT;
}

static const char *kept(tn_plan *p, SaidText which, const char *text)
{
    return text_kept(p->h.a, &p->said[which], text);
}

static const char *plan_text(const tn_plan *p, Arena *a, bool steps)
{
    const tn_graph *g = p->graph;
    Buf b = {.a = a};
    plan_print(&b, p->p);
    again_print(&b, &g->again);
    chunk_print(&b, &g->chunk, &p->p->est);
    shard_print(&b, &g->sharded);
    bucket_print(&b, &g->bucket);
    if (g->rows != g->filled)
        buf_printf(&b, "rows of a step: %lld, and %lld of padding without labels that count\n",
                   (long long)g->filled, (long long)(g->rows - g->filled));
    if (steps)
        plan_print_steps(&b, p->p);
    return b.text;
}

int tn_plan_text(tn_plan *p, int steps, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx)
        *text = kept(p, steps ? SAID_STEPS : SAID_PLAN, plan_text(p, try_arena(&t), steps));
    return tried(&t);
}

/* Lists the parts of inputs and outputs that ranks have, and the values that they reshard. */
static void explain_mesh(Buf *b, const Graph *g, const Decisions *d)
{
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < (side ? g->nout : g->nin); i++) {
            const Port *p = side ? &g->out[i] : &g->in[i];
            const char *cuts = p->cut ? cuts_text(b->a, g->mesh, p->cut) : "";
            buf_printf(b, "%-9s  %11lld bytes  %%%s%s%s: %s\n", "sharding",
                       (long long)type_nbytes(&p->v->type), p->v->name,
                       *role_name(p->role) ? " " : "", role_name(p->role), *cuts ? cuts : "whole");
        }
    for (int i = 0; i < d->nreshard; i++) {
        const ReshardNote *y = &d->reshard[i];
        buf_printf(b, "%-9s  %11.0f bytes  %9s  %%%s%s%s  %s -> %s by %s: %%%s is read so by %s\n",
                   "reshard", y->nbytes, sec_text(b->a, y->sec), y->value, *y->scope ? " @" : "",
                   y->scope, y->from, y->to, y->steps, y->value,
                   *y->reader ? y->reader : "an output");
    }
}

/* By name: a value's bytes at the peak. */
static Map bytes_at_peak(const Plan *p, Arena *a)
{
    Map m = {.a = a};
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->space == SPACE_MAIN && storage_alive(s, p->space[SPACE_MAIN].peak_step))
            map_put(&m, s->name, (void *)s);
    }
    return m;
}

/* A value's bytes at the peak, and the change by another choice, as far as the value alone says. */
static const char *alternative(Arena *a, const Decision *y, const Storage *at)
{
    if (y->unused)
        return "";
    if (y->recompute || y->offload)
        return arena_printf(a, "; else saved: up to %lld bytes more at the peak",
                            (long long)y->nbytes);
    if (!at)
        return "; it is not in memory at the peak";
    return arena_printf(a, "; %lld bytes at the peak; else computed again: %s more",
                        (long long)at->nbytes, sec_text(a, y->sec));
}

/* The choices among which --memory had one, by seconds upward. */
static void explain_front(Buf *b, const AgainReport *r)
{
    for (int i = 0; i < r->nfront; i++)
        buf_printf(b, "%-9s  %11lld bytes  %9s  a step with %s\n", "choice",
                   (long long)r->front[i].need, sec_text(b->a, r->front[i].sec),
                   r->front[i].word    ? arena_printf(b->a, "--recompute %s", r->front[i].word)
                   : r->front[i].level ? "what was searched for"
                                       : "all saved");
    if (r->searched)
        buf_printf(b, "%-9s  %11lld bytes  %9s  a step as planned, for a limit of %lld bytes\n",
                   "taken", (long long)r->chosen.need, sec_text(b->a, r->chosen.sec),
                   (long long)r->memory);
}

/* Who asked for what became of a node: its policy, with the option that stands for it, or the
 * search for --memory, whose choices have none of the user's words. */
static const char *asker(Arena *a, const Decisions *d, const Decision *y, const Map *searched)
{
    const PolicySource *by = map_find(&d->source, y->node);
    if (map_find(searched, y->node))
        return "chosen for --memory";
    if (!by || !by->option || by->policy != y->policy)
        return policy_name(y->policy);
    return arena_printf(a, "%s by %s", policy_name(y->policy), by->option);
}

static const char *explanation(const tn_plan *p, Arena *a)
{
    const Map at = bytes_at_peak(p->p, a), searched = again_names(&p->graph->again, a);
    Buf b = {.a = a};
    const Decisions *d = &p->graph->decisions;
    if (p->p->g->mesh)
        explain_mesh(&b, p->p->g, d);
    shard_explain(&b, &p->graph->sharded);
    chunk_explain(&b, &p->graph->chunk);
    fuse_explain(&b, p->p->g, d);
    kernels_explain(&b, p->p);
    explain_front(&b, &p->graph->again);
    for (int i = 0; i < d->count; i++) {
        const Decision *y = &d->list[i];
        buf_printf(&b, "%-9s  %11lld bytes  %9s  %%%s%s%s  %s%s: %s%s\n",
                   y->unused ? "unused" : decision_name(y), (long long)y->nbytes,
                   sec_text(b.a, y->sec), y->node, *y->scope ? " @" : "", y->scope,
                   y->honoured ? "" : "overrules ", asker(b.a, d, y, &searched), y->reason,
                   alternative(b.a, y, map_find(&at, y->node)));
    }
    return b.text ? b.text : "";
}

int tn_plan_decided(tn_plan *p, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx) {
        Arena *a = try_arena(&t);
        *text = kept(p, SAID_DECIDED,
                     arena_printf(a, "%s%s", bucket_line(a, &p->graph->bucket),
                                  again_text(&p->graph->again, a)));
    }
    return tried(&t);
}

int tn_plan_explain(tn_plan *p, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx)
        *text = kept(p, SAID_EXPLAIN, explanation(p, try_arena(&t)));
    return tried(&t);
}

static const char *trace_text(const tn_plan *p, Arena *a)
{
    Buf b = {.a = a};
    plan_trace(&b, p->p);
    return b.text;
}

int tn_plan_trace(tn_plan *p, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx)
        *text = kept(p, SAID_TRACE, trace_text(p, try_arena(&t)));
    return tried(&t);
}

/* ---- JSON ---- */

int tn_plan_json(tn_plan *p, int fits, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx)
        *text = kept(p, fits ? SAID_JSON : SAID_REFUSAL, plan_json(try_arena(&t), p, fits));
    return tried(&t);
}

/* ---- two plans ---- */

static const char *comparison(tn_plan *const *plans, const char *const *side, Arena *a)
{
    const Plan *p[] = {plans[0]->p, plans[1]->p};
    Buf b = {.a = a};
    plan_compare(&b, p, side);
    return b.text;
}

int tn_plan_compare(tn_plan *const *plans, const char *const *side, int as_json, const char **text)
{
    if (!args_plans(__func__, plans, side, 2) || !GIVEN(args_owner(plans[0]), side, text))
        return TN_CODE_USAGE;
    TRY(t, &plans[0]->h.owner->ctx)
        *text = kept(plans[0], as_json ? SAID_COMPARE_JSON : SAID_COMPARE,
                     (as_json ? plans_json : comparison)(plans, side, try_arena(&t)));
    return tried(&t);
}

/* ---- numbers ---- */

void tn_plan_bytes(const tn_plan *p, int64_t *peak, int64_t *persistent, int64_t *reserve)
{
    if (!GIVEN(args_owner(p), p, peak, persistent, reserve))
        return;
    *peak = p->p->space[SPACE_MAIN].peak;
    *persistent = p->p->space[SPACE_MAIN].persistent;
    *reserve = p->p->reserve;
}

int64_t tn_plan_host(const tn_plan *p)
{
    return GIVEN(args_owner(p), p) ? p->p->space[SPACE_HOST].peak : 0;
}

int64_t tn_plan_host_persistent(const tn_plan *p)
{
    return GIVEN(args_owner(p), p) ? p->p->space[SPACE_HOST].persistent : 0;
}

int64_t tn_plan_handles(const tn_plan *p)
{
    return GIVEN(args_owner(p), p) ? p->p->handles : 0;
}

static void add_flops(const Graph *g, double times, double *all, double *products)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            add_flops(n->region->body[b], times * (double)region_times(n->region, b), all,
                      products);
        if (n->region)
            continue;
        double nflop = times * node_cost(n).nflop;
        *all += nflop;
        *products += n->op->class == CLASS_PRODUCT ? nflop : 0;
    }
}

void tn_plan_flops(const tn_plan *p, double *all, double *products)
{
    if (!GIVEN(args_owner(p), p, all, products))
        return;
    *all = *products = 0;
    add_flops(p->p->g, 1, all, products);
}

void tn_plan_sec(const tn_plan *p, double *step, double *added)
{
    if (!GIVEN(args_owner(p), p, step, added))
        return;
    *step = p->p->est.step;
    *added = p->p->est.added;
}

/* ---- machines ---- */

int tn_backend_is_gpu(const char *backend)
{
    for (int i = 0; i < NDEVICE; i++)
        if (backend && !strcmp(device_at(i)->name, backend))
            return device_is_gpu(device_at(i));
    return 0;
}

/* No plan of the back end gives the text of a machine of the other sort: such a text is damaged. */
static void check_here(Ctx *ctx, Arena *tmp, const char *backend, const char *name)
{
    const Device *d = device_get(ctx, backend);
    if (driver_of(d)->ready)
        driver_of(d)->ready(ctx, 0);
    const Machine *m = machine_for(tmp, d, name), *here = machine_get(tmp, NULL, 1);
    if (d->machine && machine_is_gpu(m))
        gpu_check(m, 0, machine_is_text(name) || !name ? "machine" : name);
    if (d->machine ? machine_is_gpu(m) : machine_is_here(m))
        return;
    bool damaged = machine_is_text(name) && machine_is_gpu(m) == !d->machine;
    Code code = damaged ? TN_FAIL : TN_USAGE;
    if (d->machine)
        fail(ctx, code, "machine: %s is no GPU, on which --backend %s runs", machine_name(m),
             d->name);
    fail(ctx, code,
         "machine: %s is not this processor, which is %s: plans can be priced by it, not run",
         machine_name(m), machine_name(here));
}

int tn_machine_here(tn_context *ctx, const char *backend, const char *name)
{
    if (!GIVEN(ctx, ctx))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        check_here(&ctx->ctx, try_arena(&t), backend, name);
    return tried(&t);
}

/* The machine, and which kernel each call has that has a choice. */
static const char *machine_text(const Plan *p, Arena *a)
{
    Buf b = {.a = a};
    bool chooses = device_is_gpu(p->device) == p->machine->gpu;
    Machine *m = chooses ? machine_copy(a, p->machine) : NULL;
    for (int i = 0; i < p->nstep && chooses; i++) {
        const Step *s = &p->step[i];
        const Kernel *list = s->kernel ? op_kernels(s->node->op, p->device->kernels) : NULL;
        if (s->kind == STEP_CALL && !s->copy && list && list[0].name && list[1].name)
            machine_set_way(m, way_key(a, &s->call), s->kernel->name);
    }
    machine_print(&b, chooses ? m : p->machine);
    return b.text;
}

int tn_plan_machine(tn_plan *p, const char **text)
{
    if (!GIVEN(args_owner(p), p, text))
        return TN_CODE_USAGE;
    TRY(t, &p->h.owner->ctx)
        *text = kept(p, SAID_MACHINE, machine_text(p->p, try_arena(&t)));
    return tried(&t);
}

int tn_machine_hash(tn_context *ctx, const char *backend, const char *name, uint64_t *hash)
{
    if (!GIVEN(ctx, ctx, hash))
        return TN_CODE_USAGE;
    *hash = 0;
    TRY(t, &ctx->ctx)
        *hash = machine_hash(machine_for(try_arena(&t), device_get(&ctx->ctx, backend), name));
    return tried(&t);
}

/* ---- products ---- */

static tn_product product_of(const Node *n)
{
    const Type *a = &n->in[n->nin - 2]->type, *b = &n->in[n->nin - 1]->type;
    return (tn_product){a->rank == 3 ? a->dim[0] : 1,
                        a->dim[a->rank - 2],
                        a->dim[a->rank - 1],
                        b->dim[b->rank - 1],
                        0,
                        dtype_name(a->dtype),
                        dtype_name(n->out[0]->type.dtype)};
}

/* Nodes that are products, in all bodies. */
static int count_products(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            count += count_products(n->region->body[b]);
        count += n->op->class == CLASS_PRODUCT;
    }
    return count;
}

static int add_product(int found, tn_product *list, tn_product p, int64_t times)
{
    for (int i = 0; i < found; i++) {
        tn_product *q = &list[i];
        if (q->batch == p.batch && q->m == p.m && q->k == p.k && q->n == p.n &&
            q->dtype == p.dtype && q->out_dtype == p.out_dtype) { /* names are unique */
            q->count += times;
            return found;
        }
    }
    p.count = times;
    list[found] = p;
    return found + 1;
}

static int add_products(const Graph *g, int found, tn_product *list, int64_t times)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            found =
                add_products(n->region->body[b], found, list, times * region_times(n->region, b));
        if (n->op->class == CLASS_PRODUCT)
            found = add_product(found, list, product_of(n), times);
    }
    return found;
}

int tn_plan_products(const tn_plan *p, int most, tn_product *products)
{
    if (!GIVEN(args_owner(p), p) || !WITHIN(args_owner(p), 0, INT32_MAX, most) ||
        (most && !GIVEN(args_owner(p), products)))
        return 0;
    volatile int found = 0;
    TRY(t, &p->h.owner->ctx) {
        const int all = count_products(p->p->g);
        tn_product *list = NEWN(try_arena(&t), tn_product, all + 1);
        found = add_products(p->p->g, 0, list, 1);
        for (int i = 0; i < MIN(found, most); i++)
            products[i] = list[i];
    }
    tried(&t);
    return found;
}

void tn_plan_free(tn_plan *p)
{
    handle_free((Handle *)p);
}
