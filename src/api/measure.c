/* Measurements: the time of a program's calls, and the most that the machine can do. */
#include "api.h"

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

/* Lists what was recorded; as long as nothing else is, that is the list that was given before. */
static void list_calls(tn_program *x, Arena *tmp)
{
    CallTimes *times;
    const int64_t nrecorded = trace_count(x->x->trace) + trace_runs(x->x->trace);
    if (x->calls && x->nrecorded == nrecorded)
        return;
    const int n = trace_calls(tmp, x->x->trace, x->x->plan, &times);
    tn_call *calls = NEWN(x->h.a, tn_call, n + 1);
    for (int i = 0; i < n; i++) {
        calls[i] = call_of(&times[i]);
        calls[i].tensors = arena_strdup(x->h.a, calls[i].tensors);
    }
    x->calls = calls;
    x->ncalls = n;
    x->nrecorded = nrecorded;
}

int tn_program_calls(tn_program *x, const tn_call **calls, int *count)
{
    if (!GIVEN(args_owner(x), x, calls, count))
        return TN_CODE_USAGE;
    if (!args_traced(__func__, x))
        return TN_CODE_USAGE;
    *calls = NULL;
    *count = 0;
    TRY(t, &x->h.owner->ctx) {
        list_calls(x, try_arena(&t));
        *calls = x->calls;
        *count = x->ncalls;
    }
    return tried(&t);
}

/* ---- limits ---- */

static DType product_dtype(Ctx *ctx, const char *name)
{
    int d = dtype_parse(name);
    if (d != F32 && d != BF16)
        fail(ctx, TN_FAIL, "products are measured in f32 or bf16, not in %s", name);
    return (DType)d;
}

int tn_limit_product(tn_context *ctx, const tn_product *p, int cpu, double *sec)
{
    if (!GIVEN(ctx, ctx, p, sec))
        return TN_CODE_USAGE;
    if (!GIVEN(ctx, p->dtype, p->out_dtype) || !WITHIN(ctx, 1, INT32_MAX, p->m, p->k, p->n))
        return TN_CODE_USAGE;
    *sec = 0;
    TRY(t, &ctx->ctx) {
        DType in = product_dtype(t.ctx, p->dtype), out = product_dtype(t.ctx, p->out_dtype);
        *sec = product_sec(try_arena(&t), &(Product){in, out, p->m, p->k, p->n},
                           cpu ? cpu_sec : now_sec);
    }
    return tried(&t);
}

int tn_program_product(tn_program *x, const tn_product *p, int cpu, double *sec)
{
    if (!GIVEN(args_owner(x), x, p, sec))
        return TN_CODE_USAGE;
    tn_context *ctx = x->h.owner;
    if (device_is_host(x->x->plan->device))
        return tn_limit_product(ctx, p, cpu, sec);
    if (!GIVEN(ctx, p->dtype) || !WITHIN(ctx, 1, INT32_MAX, p->m, p->k, p->n))
        return TN_CODE_USAGE;
    *sec = 0;
    TRY(t, &ctx->ctx) {
        DType d = product_dtype(t.ctx, p->dtype);
        *sec = device_product_sec(try_arena(&t), x->x->plan, &(Product){d, d, p->m, p->k, p->n},
                                  cpu ? cpu_sec : now_sec);
    }
    return tried(&t);
}

static tn_streams streams_of(const double x[NSTREAM])
{
    return (tn_streams){x[LIMIT_READ], x[LIMIT_COPY], x[LIMIT_ADD], x[LIMIT_UPDATE]};
}

int tn_program_streams(tn_program *x, int cpu, tn_streams *rate)
{
    if (!GIVEN(args_owner(x), x, rate))
        return TN_CODE_USAGE;
    if (device_is_host(x->x->plan->device))
        return tn_limit_streams(x->h.owner, cpu, rate);
    *rate = (tn_streams){0};
    TRY(t, &x->h.owner->ctx) {
        double seen[NSTREAM];
        device_stream_rates(try_arena(&t), x->x->plan, cpu ? cpu_sec : now_sec, seen);
        *rate = streams_of(seen);
    }
    return tried(&t);
}

int tn_limit_streams(tn_context *ctx, int cpu, tn_streams *rate)
{
    if (!GIVEN(ctx, ctx, rate))
        return TN_CODE_USAGE;
    *rate = (tn_streams){0};
    TRY(t, &ctx->ctx) {
        double x[NSTREAM];
        if (!ctx->stream && !(ctx->stream = stream_new()))
            fail(t.ctx, TN_FAIL, "out of memory");
        stream_rates(ctx->stream, cpu ? cpu_sec : now_sec, x);
        *rate = streams_of(x);
    }
    return tried(&t);
}

/* ---- ways ---- */

/* Seconds of the library in its fastest layout; products of a batch run one after the other. 0: not
 * measured. */
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

/* Fills at most `most` ways of a step, the library's fastest last. Returns how many. */
static int measure_ways(Arena *a, const Plan *p, int step, double most_sec, double (*clock)(void),
                        int most, tn_way *ways)
{
    WayTime way[MOST_WAYS];
    OpClass class = p->step[step].node->op->class;
    if (way_count(p, step) < 2 && class != CLASS_PRODUCT && class != CLASS_ATTENTION)
        return 0;
    double fastest = device_is_host(p->device) ? library_sec(a, &p->step[step], clock) : 0;
    arena_reset(a);
    int count = 0, n = way_times(a, p, step, most_sec, clock, way);
    for (int i = 0; i < n && count < most; i++)
        ways[count++] = (tn_way){way[i].kernel->name, way[i].taken, way[i].runs, way[i].sec};
    if (fastest > 0 && count < most)
        ways[count++] = (tn_way){.runs = 1, .sec = fastest};
    return count;
}

int tn_program_ways(tn_program *x, const tn_call *call, double most_sec, int cpu, int most,
                    tn_way *ways, int *count)
{
    if (!GIVEN(args_owner(x), x, call, ways, count) ||
        !WITHIN(args_owner(x), 0, x->x->plan->nstep - 1, call->step) ||
        !WITHIN(args_owner(x), 0, INT32_MAX, most))
        return TN_CODE_USAGE;
    *count = 0;
    const Plan *p = x->x->plan;
    if (p->step[call->step].kind != STEP_CALL)
        return TN_CODE_OK;
    TRY(t, &x->h.owner->ctx)
        *count = measure_ways(try_arena(&t), p, call->step, most_sec, cpu ? cpu_sec : now_sec, most,
                              ways);
    return tried(&t);
}
