/* Measurements: the time of a program's calls, and the most that the machine can do. */
#include "api.h"

typedef struct CallArgs {
    tn_program *x;
    tn_call *calls;
    int count;
} CallArgs;

static tn_call call_of(const CallTimes *t)
{
    static const char *const limit[] = {"read", "copy", "add", "update", "product", "attention"};
    double min = t->nsec ? t->sec[0] : 0, max = t->nsec ? t->sec[t->nsec - 1] : 0;
    return (tn_call){
        .op = t->op,
        .kernel = t->kernel,
        .tensors = t->tensors,
        .limit = limit[t->limit],
        .dtype = dtype_name(t->dtype),
        .nflop = t->cost.nflop,
        .nbytes = t->cost.nread + t->cost.nwrite,
        .count = t->ncalls,
        .ntimes = t->nsec,
        .sec = median_sec(t->sec, (int)t->nsec),
        .min = min,
        .max = max,
        .step = t->step,
    };
}

static void fill_calls(void *arg)
{
    CallArgs *c = arg;
    Arena *a = c->x->h.a;
    CallTimes *times;
    c->count = trace_calls(a, c->x->x->trace, c->x->x->plan, &times);
    c->calls = NEWN(a, tn_call, c->count + 1);
    for (int i = 0; i < c->count; i++)
        c->calls[i] = call_of(&times[i]);
}

int tn_program_calls(tn_program *x, const tn_call **calls, int *count)
{
    if (!GIVEN(args_owner(x), x, calls, count))
        return TN_CODE_USAGE;
    if (!args_traced(__func__, x))
        return TN_CODE_USAGE;
    CallArgs c = {.x = x};
    int code = (int)ctx_try(&x->h.owner->ctx, fill_calls, &c);
    *calls = c.calls;
    *count = c.count;
    return code;
}

/* ---- limits ---- */

typedef struct LimitArgs {
    tn_context *ctx;
    Arena *a;
    const tn_product *p;
    int cpu;
    double result, rate[NSTREAM];
} LimitArgs;

static DType product_dtype(const LimitArgs *x, const char *name)
{
    int d = dtype_parse(name);
    if (d != F32 && d != BF16)
        fail(arena_ctx(x->a), TN_FAIL, "products are measured in f32 or bf16, not in %s", name);
    return (DType)d;
}

static void measure_product(void *arg)
{
    LimitArgs *x = arg;
    Product p = {product_dtype(x, x->p->dtype), product_dtype(x, x->p->out_dtype), x->p->m, x->p->k,
                 x->p->n};
    x->result = product_sec(x->a, &p, x->cpu ? cpu_sec : now_sec);
}

int tn_limit_product(tn_context *ctx, const tn_product *p, int cpu, double *sec)
{
    if (!GIVEN(ctx, ctx, p, sec))
        return TN_CODE_USAGE;
    if (!GIVEN(ctx, p->dtype, p->out_dtype) || !WITHIN(ctx, 1, INT32_MAX, p->m, p->k, p->n))
        return TN_CODE_USAGE;
    LimitArgs x = {.p = p, .cpu = cpu};
    int code = try_aside(ctx, &x.a, measure_product, &x);
    *sec = x.result;
    return code;
}

static void measure_streams(void *arg)
{
    LimitArgs *x = arg;
    tn_context *ctx = x->ctx;
    if (!ctx->stream && !(ctx->stream = stream_new()))
        fail(&ctx->ctx, TN_FAIL, "out of memory");
    stream_rates(ctx->stream, x->cpu ? cpu_sec : now_sec, x->rate);
}

int tn_limit_streams(tn_context *ctx, int cpu, tn_streams *rate)
{
    if (!GIVEN(ctx, ctx, rate))
        return TN_CODE_USAGE;
    LimitArgs x = {.ctx = ctx, .cpu = cpu};
    int code = try_aside(ctx, &x.a, measure_streams, &x);
    *rate = (tn_streams){x.rate[LIMIT_READ], x.rate[LIMIT_COPY], x.rate[LIMIT_ADD],
                         x.rate[LIMIT_UPDATE]};
    return code;
}

/* ---- ways ---- */

typedef struct WayArgs {
    Arena *a;
    tn_program *x;
    const Step *s;
    double most_sec, fastest_sec; /* of the library in its fastest layout, 0: not measured */
    int step, cpu, count;
    WayTime way[MOST_WAYS];
} WayArgs;

/* Of f32 or bf16, a batch of them one after the other. */
static double library_sec(Arena *tmp, const Step *s, double (*clock)(void))
{
    const Tensor *a = &s->call.in[s->call.nin - 2], *b = a + 1, *y = &s->call.out[0];
    DType in = a->dtype, out = y->dtype;
    if (s->node->op->class != CLASS_PRODUCT || !tensor_nelem(y) || !tensor_nelem(a) ||
        (in != F32 && in != BF16) || (out != F32 && out != BF16))
        return 0;
    Product p = {in, out, a->dim[a->rank - 2], a->dim[a->rank - 1], b->dim[b->rank - 1]};
    return product_sec(tmp, &p, clock) * (double)(y->rank == 3 ? y->dim[0] : 1);
}

static void measure_ways(void *arg)
{
    WayArgs *w = arg;
    const Plan *p = w->x->x->plan;
    OpClass class = w->s->node->op->class;
    double (*clock)(void) = w->cpu ? cpu_sec : now_sec;
    if (way_count(p, w->step) < 2 && class != CLASS_PRODUCT && class != CLASS_ATTENTION)
        return;
    w->fastest_sec = library_sec(w->a, w->s, clock);
    arena_reset(w->a);
    w->count = way_times(w->a, p, w->step, w->most_sec, clock, w->way);
}

int tn_program_ways(tn_program *x, const tn_call *call, double most_sec, int cpu, int most,
                    tn_way *ways, int *count)
{
    if (!GIVEN(args_owner(x), x, call, ways, count) ||
        !WITHIN(args_owner(x), 0, x->x->plan->nstep - 1, call->step) ||
        !WITHIN(args_owner(x), 0, INT32_MAX, most))
        return TN_CODE_USAGE;
    WayArgs w = {.x = x,
                 .step = call->step,
                 .s = &x->x->plan->step[call->step],
                 .most_sec = most_sec,
                 .cpu = cpu};
    *count = 0;
    int code = w.s->kind == STEP_CALL ? try_aside(x->h.owner, &w.a, measure_ways, &w) : 0;
    for (int i = 0; i < w.count && !code && *count < most; i++)
        ways[(*count)++] =
            (tn_way){w.way[i].kernel->name, w.way[i].taken, w.way[i].runs, w.way[i].sec};
    if (!code && w.fastest_sec > 0 && *count < most)
        ways[(*count)++] = (tn_way){.runs = 1, .sec = w.fastest_sec};
    return code;
}
