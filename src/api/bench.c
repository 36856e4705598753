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
    stream_rates(x->a, x->cpu ? cpu_sec : now_sec, x->rate);
}

int tn_limit_streams(tn_context *ctx, int cpu, tn_streams *rate)
{
    if (!GIVEN(ctx, ctx, rate))
        return TN_CODE_USAGE;
    LimitArgs x = {.cpu = cpu};
    int code = try_aside(ctx, &x.a, measure_streams, &x);
    *rate = (tn_streams){x.rate[LIMIT_READ], x.rate[LIMIT_COPY], x.rate[LIMIT_ADD],
                         x.rate[LIMIT_UPDATE]};
    return code;
}
