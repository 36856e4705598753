/* Groups the calls of a trace: calls of one op and kernel with the same dtypes, shapes and strides
 * of operands and results are one group. Linear in events, but for sorting each group's times. */
#include "exec.h"

static void put_tensor(Buf *b, const Tensor *t)
{
    Type type = type_make(t->dtype, t->rank, t->dim);
    buf_add(b, type_text(b->a, &type));
    if (tensor_contiguous(t))
        return;
    for (int d = 0; d < t->rank; d++)
        buf_printf(b, "%s%lld", d ? ", " : " strides [", (long long)t->stride[d]);
    buf_add(b, "]");
}

static const char *tensors_text(Arena *a, const Step *s)
{
    Buf b = {.a = a};
    const Call *c = &s->call;
    if (s->kind == STEP_ZERO)
        buf_printf(&b, "%lld bytes", (long long)s->nbytes);
    for (int i = 0; s->kind == STEP_CALL && i < c->nin + c->nout; i++) {
        if (i)
            buf_add(&b, i == c->nin ? " -> " : ", ");
        put_tensor(&b, i < c->nin ? &c->in[i] : &c->out[i - c->nin]);
    }
    return b.text ? b.text : "";
}

static LimitKind stream_of(const Step *s)
{
    Cost cost = step_cost(s);
    if (8 * cost.nwrite < cost.nread)
        return LIMIT_READ;
    for (int i = 0; i < s->call.nin && s->kind == STEP_CALL; i++)
        for (int k = s->call.nin; k < s->call.nin + s->call.nout; k++)
            if (s->arg[i].storage == s->arg[k].storage && s->arg[i].offset == s->arg[k].offset)
                return LIMIT_UPDATE;
    return 2 * cost.nread < 3 * cost.nwrite ? LIMIT_COPY : LIMIT_ADD;
}

static LimitKind limit_of(const Step *s)
{
    const Node *n = s->node;
    if (s->kind == STEP_ZERO || s->copy)
        return stream_of(s);
    if (n->op->class == CLASS_PRODUCT)
        return LIMIT_PRODUCT;
    return n->op->class == CLASS_ATTENTION ? LIMIT_ATTENTION : stream_of(s);
}

/* The dtype of the factors: of addmm not that of the bias, operand 0. */
static DType dtype_of(const Step *s)
{
    const Call *c = &s->call;
    return limit_of(s) == LIMIT_PRODUCT ? c->in[c->nin - 2].dtype : c->nin ? c->in[0].dtype : F32;
}

static CallTimes describe(Arena *a, const Plan *p, int step)
{
    const Step *s = &p->step[step];
    return (CallTimes){
        .op = s->kind == STEP_ZERO ? "zero"
              : s->copy            ? "copy"
                                   : s->node->op->name,
        .kernel = s->kind == STEP_ZERO ? "memset"
                  : s->kernel          ? s->kernel->name
                                       : "ref",
        .tensors = tensors_text(a, s),
        .limit = limit_of(s),
        .dtype = dtype_of(s),
        .cost = step_cost(s),
        .step = step,
    };
}

/* Group of each step of the plan that is a call. */
static int fill_groups(Arena *a, const Plan *p, int *group, CallTimes *list)
{
    Map known = {.a = a};
    int n = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind != STEP_CALL && s->kind != STEP_ZERO)
            continue;
        CallTimes c = describe(a, p, i);
        char *key = arena_printf(a, "%s %s %s %d %.0f %.0f", c.op, c.kernel, c.tensors,
                                 (int)c.limit, c.cost.nflop, c.cost.nread + c.cost.nwrite);
        CallTimes *same = map_find(&known, key);
        if (!same) {
            same = &list[n++];
            *same = c;
            map_put(&known, key, same);
        }
        group[i] = (int)(same - list);
    }
    return n;
}

/* Adds how often a run makes the calls of steps [from, to), of loops that run `times` times. */
static void count_calls(const Plan *p, int from, int to, int64_t times, const int *group,
                        CallTimes *list)
{
    for (int i = from; i < to; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP) {
            count_calls(p, i + 1, s->end, times * s->count, group, list);
            i = s->end;
        } else if (s->kind == STEP_CALL || s->kind == STEP_ZERO) {
            list[group[i]].ncalls += times;
        }
    }
}

int trace_calls(Arena *a, const Trace *t, const Plan *p, CallTimes **calls)
{
    int *group = NEWN(a, int, p->nstep + 1);
    CallTimes *list = *calls = NEWN(a, CallTimes, p->nstep + 1);
    int n = fill_groups(a, p, group, list);
    double sec;
    count_calls(p, 0, p->nstep, 1, group, list);
    for (int64_t i = 0; i < trace_count(t); i++) {
        int step = trace_call(t, i, &sec);
        if (step >= 0)
            list[group[step]].nsec++;
    }
    for (int k = 0; k < n; k++) {
        list[k].sec = NEWN(a, double, list[k].nsec + 1);
        list[k].nsec = 0;
    }
    for (int64_t i = 0; i < trace_count(t); i++) {
        int step = trace_call(t, i, &sec);
        if (step >= 0)
            list[group[step]].sec[list[group[step]].nsec++] = sec;
    }
    for (int k = 0; k < n; k++)
        median_sec(list[k].sec, (int)list[k].nsec);
    return n;
}
