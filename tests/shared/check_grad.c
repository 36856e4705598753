/* Gradients against finite differences, in double. L = sum over float outputs of (fixed random
 * weights times the output), so the op's diff is called with the weights as dy, and the graph it
 * emits is interpreted. dL/dx is compared one element at a time (a sample where there are many, a
 * small one with TN_QUICK) and along one random direction that moves all of them; by the five-point
 * stencil, whose error is h^4, with h a fraction of the element.
 *
 * diff is asked for each output alone, for all together, and for each operand alone. It may refuse
 * an output other than the first by name; it must not ignore one. */
#include "check.h"

#include "interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES = 6,
    QUICK_SAMPLES = 2,
    STREAM_WEIGHT = 100,
    STREAM_DIRECTION = 200,
    STREAM_SAMPLE = 300
};

typedef struct Gradient {
    Problem *p;
    Tensor *weight;     /* one for each output */
    const bool *active; /* outputs in L */
    const bool *need;   /* operands whose gradient is asked for */
    Tensor *dx;         /* data NULL: zero */
} Gradient;

static bool is_float(const Value *v)
{
    return dtype_float(v->type.dtype);
}

static double uniform(const Problem *p, int stream, int64_t i)
{
    return 2.0 * random_uniform(p->c->seed, (uint32_t)stream, 0, (uint64_t)i) - 1.0;
}

/* ---- the analytic side ---- */

static void run_diff(void *arg)
{
    Gradient *q = arg;
    Problem *p = q->p;
    const Node *wide = p->wide;
    Graph *g = graph_new(p->a, "gradient");
    Build b = {.g = g};
    Value **x = NEWN(p->a, Value *, wide->nin), **dy = NEWN(p->a, Value *, wide->nout);
    Tensor *in = NEWN(p->a, Tensor, wide->nin + wide->nout);
    for (int i = 0; i < wide->nin; i++) {
        x[i] = graph_input(g, "x", wide->in[i]->type, ROLE_NONE, NULL);
        in[g->nin - 1] = p->in64[i];
    }
    Node *n = emit_wide(&b, wide, x);
    for (int k = 0; k < n->nout; k++)
        if (q->active[k]) {
            dy[k] = graph_input(g, "dy", n->out[k]->type, ROLE_NONE, NULL);
            in[g->nin - 1] = q->weight[k];
        }
    Grad d = {&b, n, dy, q->need, NEWN(p->a, Value *, n->nin)};
    n->op->rules->diff(&d);
    int count = 0, *from = NEWN(p->a, int, n->nin);
    for (int i = 0; i < n->nin; i++) {
        if (!d.dx[i])
            continue;
        if (!type_equal(&d.dx[i]->type, &x[i]->type))
            fail(g->ctx, TN_FAIL, "diff gives operand %d of %s a gradient of %s", i,
                 type_text(p->a, &x[i]->type), type_text(p->a, &d.dx[i]->type));
        graph_output(g, d.dx[i], ROLE_NONE, NULL);
        from[count++] = i;
    }
    Tensor *out = NEWN(p->a, Tensor, count);
    interp_graph(p->a, g, in, out);
    for (int j = 0; j < count; j++)
        q->dx[from[j]] = tensor_copy(p->a, &out[j], F64);
}

static bool analytic(Gradient *q)
{
    q->dx = NEWN(q->p->a, Tensor, q->p->n->nin);
    return ctx_try(arena_ctx(q->p->a), run_diff, q) == TN_OK;
}

/* ---- the numeric side ---- */

/* One line through operand i: x + s * direction. */
typedef struct Line {
    Gradient *q;
    Arena *tmp;
    int i;
    const double *direction; /* NULL: only element `at` moves, by s */
    int64_t at;
    Tensor *y[4]; /* results at -2h, -h, h, 2h */
} Line;

static bool evaluate(Line *l, double s, Tensor *y)
{
    Problem *p = l->q->p;
    Tensor *in = NEWN(l->tmp, Tensor, p->wide->nin);
    memcpy(in, p->in64, sizeof *in * (size_t)p->wide->nin);
    in[l->i] = tensor_copy(l->tmp, &in[l->i], F64);
    double *x = (double *)(void *)in[l->i].data;
    if (!l->direction)
        x[l->at] += s;
    else
        for (int64_t e = 0, n = tensor_nelem(&in[l->i]); e < n; e++)
            x[e] += s * l->direction[e];
    interp_node(l->tmp, p->g, p->wide, in, y);
    return true;
}

/* The derivative of L along the line, and how much of it may be rounding. */
static double slope(Line *l, double h, double *noise)
{
    static const double at[4] = {-2, -1, 1, 2}, coefficient[4] = {1, -8, 8, -1};
    const Node *wide = l->q->p->wide;
    double sum = 0, size = 0;
    for (int j = 0; j < 4; j++)
        evaluate(l, at[j] * h, l->y[j] = NEWN(l->tmp, Tensor, wide->nout));
    for (int k = 0; k < wide->nout; k++) {
        if (!l->q->active[k])
            continue;
        for (int64_t e = 0, n = tensor_nelem(&l->y[0][k]); e < n; e++) {
            double part = 0, w = tensor_get(&l->q->weight[k], e), most = 0;
            bool moves = false;
            for (int j = 0; j < 4; j++) {
                double y = tensor_get(&l->y[j][k], e);
                part += coefficient[j] * y;
                most = fmax(most, fabs(y));
                moves = moves || y != tensor_get(&l->y[0][k], e);
            }
            sum += moves ? w * part : 0;
            size += moves ? fabs(w) * most : 0;
        }
    }
    *noise = 1e-14 * size / h;
    return sum / (12 * h);
}

/* ---- comparing ---- */

static double largest_abs(const Tensor *t)
{
    double most = 0;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++)
        most = fmax(most, fabs(tensor_get(t, i)));
    return most;
}

static double element(const Tensor *dx, int64_t i)
{
    return dx->data ? tensor_get(dx, i) : 0;
}

static bool agree(Gradient *q, int i, const char *where, double got, double want, double bound)
{
    if (fabs(got - want) <= bound)
        return true;
    miss(q->p,
         "gradient of operand %d, %s: diff gives %.12g, finite differences %.12g (within %.3g)", i,
         where, got, want, bound);
    return false;
}

static bool along_direction(Gradient *q, Arena *tmp, int i, double greatest_x)
{
    const Tensor *x = &q->p->in64[i];
    int64_t n = tensor_nelem(x);
    double *direction = NEWN(tmp, double, n), got = 0, size = 0, noise;
    for (int64_t e = 0; e < n; e++) {
        double u = uniform(q->p, STREAM_DIRECTION + i, e);
        direction[e] = u * (fabs(tensor_get(x, e)) + 1e-3 * greatest_x);
        got += direction[e] * element(&q->dx[i], e);
        size += fabs(direction[e] * element(&q->dx[i], e));
    }
    Line l = {.q = q, .tmp = tmp, .i = i, .direction = direction};
    double want = slope(&l, 2e-4, &noise);
    return agree(q, i, "along a random direction", got, want, 1e-6 * size + noise);
}

static bool one_element(Gradient *q, Arena *tmp, int i, int64_t e, double greatest_x,
                        double greatest)
{
    char where[40];
    double noise, x = fabs(tensor_get(&q->p->in64[i], e));
    Line l = {.q = q, .tmp = tmp, .i = i, .at = e};
    double want = slope(&l, fmax(2e-4 * x, 1e-5 * greatest_x), &noise);
    snprintf(where, sizeof where, "element %lld", (long long)e);
    return agree(q, i, where, element(&q->dx[i], e), want, 1e-6 * greatest + noise);
}

static bool one_operand(Gradient *q, Arena *tmp, int i)
{
    const Tensor *x = &q->p->in64[i];
    int64_t n = tensor_nelem(x);
    double greatest_x = largest_abs(x), greatest = q->dx[i].data ? largest_abs(&q->dx[i]) : 0;
    if (n == 0)
        return true;
    if (greatest_x == 0)
        greatest_x = 1;
    int64_t samples = getenv("TN_QUICK") ? QUICK_SAMPLES : SAMPLES;
    for (int64_t s = 0; s < MIN(n, samples); s++) {
        int64_t e =
            n <= samples ? s : (int64_t)(fabs(uniform(q->p, STREAM_SAMPLE + i, s)) * (double)n);
        if (!one_element(q, tmp, i, MIN(e, n - 1), greatest_x, greatest))
            return false;
    }
    return along_direction(q, tmp, i, greatest_x);
}

static bool against_differences(Gradient *q)
{
    Arena *tmp = arena_new(arena_ctx(q->p->a));
    CHECK(tmp);
    bool good = true;
    for (int i = 0; good && i < q->p->wide->nin; i++) {
        if (q->need[i])
            good = one_operand(q, tmp, i);
        arena_reset(tmp);
    }
    arena_free(tmp);
    return good;
}

/* Asking for one gradient alone must give what asking for all gave. */
static void one_at_a_time(Gradient *q)
{
    int nin = q->p->wide->nin;
    Tensor *all = q->dx;
    const bool *need = q->need;
    for (int i = 0; i < nin; i++) {
        bool *only = NEWN(q->p->a, bool, nin);
        if (!(only[i] = need[i]))
            continue;
        q->need = only;
        if (!analytic(q)) {
            miss(q->p, "diff for operand %d alone: %s", i, arena_ctx(q->p->a)->message);
            return;
        }
        const char *how = !all[i].data != !q->dx[i].data ? "only one of them is zero"
                          : all[i].data ? tensor_differs(q->p->a, &q->dx[i], &all[i], 1e-12)
                                        : NULL;
        if (how)
            miss(q->p, "gradient of operand %d asked for alone and with the others: %s", i, how);
    }
}

/* While ops are being written, a gradient may need one that is not there yet. */
static bool op_missing(const Gradient *q)
{
#ifdef TN_PARTIAL_OPS
    return strstr(arena_ctx(q->p->a)->message, "unknown op") != NULL;
#else
    return (void)q, false;
#endif
}

static void all_modes(Gradient *q)
{
    const Node *wide = q->p->wide;
    bool *all = NEWN(q->p->a, bool, wide->nout), *one = NEWN(q->p->a, bool, wide->nout);
    int count = 0;
    for (int k = 0; k < wide->nout; k++) {
        if (!is_float(wide->out[k]))
            continue;
        memset(one, 0, sizeof *one * (size_t)wide->nout);
        q->active = one;
        one[k] = true;
        if (!analytic(q)) {
            if (op_missing(q))
                return;
            if (k == 0 || !strstr(arena_ctx(q->p->a)->message, wide->op->name))
                miss(q->p, "diff for output %d: %s", k, arena_ctx(q->p->a)->message);
            continue;
        }
        if (!against_differences(q))
            return;
        all[k] = true;
        count++;
    }
    q->active = all;
    if (count && !analytic(q)) /* again, also for one: a refusal left nothing in dx */
        miss(q->p, "diff for all outputs: %s", arena_ctx(q->p->a)->message);
    else if (count == 1 || (count > 1 && against_differences(q)))
        one_at_a_time(q);
}

void check_grad(Problem *p)
{
    const Node *wide = p->wide;
    bool floats_in = false, floats_out = false, *need = NEWN(p->a, bool, wide->nin);
    for (int i = 0; i < wide->nin; i++)
        floats_in |= need[i] = is_float(wide->in[i]);
    Gradient q = {.p = p, .weight = NEWN(p->a, Tensor, wide->nout), .need = need};
    for (int k = 0; k < wide->nout; k++) {
        if (!is_float(wide->out[k]))
            continue;
        floats_out = true;
        q.weight[k] = tensor_new(p->a, &wide->out[k]->type, 0);
        for (int64_t e = 0, n = tensor_nelem(&q.weight[k]); e < n; e++)
            tensor_set(&q.weight[k], e, uniform(p, STREAM_WEIGHT + k, e));
    }
    p->cover->nograd |= p->c->nograd != NULL;
    p->cover->differs |= floats_in && floats_out;
    if (floats_in && floats_out && !p->c->nograd && wide->op->rules->diff)
        all_modes(&q);
}
