/* cumsum: y[i] = x[0] + ... + x[i] along `dim`, or with `reverse` x[i] + ... + x[last], which is
 * what the gradient of the other is. Sums are formed in order, in double for floating point and
 * rounded at each element; integers wrap. (ATen sums bool and small integers in i64: there a cast
 * stands before.)
 *
 * Kernels take any strides. Lines along `dim` are walked side by side, a strip of the last axis at
 * a time, so that memory is read in the order in which it lies. */
#include "pointwise.h"

#include "view.h"

enum { DIM, REVERSE, STRIP = 64 };

static const AttrField attrs[] = {
    {"dim", ATTR_INT, .required = true},
    {"reverse", ATTR_BOOL, .i = 0},
    {0},
};

static int axis(const Node *n)
{
    return axis_of(n->attr[DIM].i, n->in[0]->type.rank);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_axis(g, n, n->attr[DIM].i, n->in[0]->type.rank);
    return infer_number(g, n, out);
}

static void diff(Grad *d)
{
    d->dx[0] =
        emit1(d->b, "cumsum", IN(d->dy[0]),
              ATTRS(A_INT("dim", d->n->attr[DIM].i), A_BOOL("reverse", !d->n->attr[REVERSE].i)));
}

static void factors(const Node *n, Factors *f)
{
    factors_rows(n, f, 1u << axis(n));
}

/* ---- reference: from the first element of each line on, element by element ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int dim = axis(c->node);
    bool reverse = c->node->attr[REVERSE].i;
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(x) == 0)
        return 0;
    do {
        int64_t first[TN_RANK], whole = 0;
        double sum = 0;
        if (ix[dim])
            continue;
        memcpy(first, ix, sizeof first);
        for (int64_t j = 0; j < x->dim[dim]; j++) {
            first[dim] = reverse ? x->dim[dim] - 1 - j : j;
            sum += tensor_get(x, tensor_index(x, first));
            whole = (int64_t)((uint64_t)whole + (uint64_t)tensor_int(x, tensor_index(x, first)));
            if (dtype_float(x->dtype))
                tensor_set(y, tensor_index(y, first), sum);
            else
                tensor_set_int(y, tensor_index(y, first), whole);
        }
    } while (next_index(x->rank, x->dim, ix));
    return 0;
}

/* ---- kernels ---- */

/* Lines of n elements, `width` of them side by side; steps of x and y along and across. */
typedef struct SumLines {
    int64_t n, width;
    int64_t xn, yn, xw, yw;
} SumLines;

typedef void LinesFn(const SumLines *l, const void *from, void *to);

#define AS_IS(x) (x)
#define LINES(name, T, Sum, get, put)                               \
    static void name(const SumLines *l, const void *from, void *to) \
    {                                                               \
        const T *x = from;                                          \
        T *y = to;                                                  \
        Sum sum[STRIP] = {0};                                       \
        for (int64_t i = 0; i < l->n; i++)                          \
            for (int64_t k = 0; k < l->width; k++) {                \
                sum[k] += (Sum)get(x[i * l->xn + k * l->xw]);       \
                y[i * l->yn + k * l->yw] = (T)put(sum[k]);          \
            }                                                       \
    }
#define TO_BF16(x) f32_to_bf16((float)(x))
#define TO_F16(x)  f32_to_f16((float)(x))
LINES(lines_f64, double, double, AS_IS, AS_IS)
LINES(lines_f32, float, double, AS_IS, AS_IS)
LINES(lines_bf16, uint16_t, double, bf16_to_f32, TO_BF16)
LINES(lines_f16, uint16_t, double, f16_to_f32, TO_F16)
LINES(lines_i64, int64_t, uint64_t, AS_IS, AS_IS)
LINES(lines_i32, int32_t, uint64_t, AS_IS, AS_IS)
LINES(lines_u8, uint8_t, uint64_t, AS_IS, AS_IS)

static LinesFn *lines_of(DType d)
{
    switch (d) {
    case F64: return lines_f64;
    case F32: return lines_f32;
    case BF16: return lines_bf16;
    case F16: return lines_f16;
    case I64: return lines_i64;
    case I32: return lines_i32;
    default: return lines_u8;
    }
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

/* Row-major offset of line group i: all axes but `dim`, and the last in strips. */
static int64_t start(const Tensor *t, int dim, int64_t strips, int64_t i)
{
    int last = t->rank - 1;
    int64_t at = dim == last ? 0 : i % strips * STRIP * t->stride[last];
    i /= strips;
    for (int d = last - (dim != last); d >= 0; d--) {
        if (d == dim)
            continue;
        at += i % t->dim[d] * t->stride[d];
        i /= t->dim[d];
    }
    return at;
}

static int64_t strips_of(const Tensor *t, int dim)
{
    int last = t->rank - 1;
    return dim == last ? 1 : (t->dim[last] + STRIP - 1) / STRIP;
}

static void sum_lines(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int dim = axis(c->node), last = x->rank - 1, size = dtype_size(x->dtype);
    int64_t n = x->dim[dim], strips = strips_of(x, dim);
    int64_t sign = c->node->attr[REVERSE].i ? -1 : 1, end = sign < 0 ? n - 1 : 0;
    LinesFn *fn = lines_of(x->dtype);
    for (int64_t i = lo; i < hi; i++) {
        int64_t width = dim == last ? 1 : MIN(STRIP, x->dim[last] - i % strips * STRIP);
        SumLines l = {n,
                      width,
                      sign * x->stride[dim],
                      sign * y->stride[dim],
                      x->stride[last],
                      y->stride[last]};
        fn(&l, x->data + (start(x, dim, strips, i) + end * x->stride[dim]) * size,
           y->data + (start(y, dim, strips, i) + end * y->stride[dim]) * size);
    }
}

static int run(Call *c)
{
    const Tensor *x = &c->in[0];
    int dim = axis(c->node), last = x->rank - 1;
    int64_t lines = strips_of(x, dim);
    for (int d = 0; d < last + (dim == last); d++)
        lines *= d == dim ? 1 : x->dim[d];
    if (tensor_nelem(x))
        par_for(lines, MAX(1, 16384 * lines / tensor_nelem(x)), sum_lines, c);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "cumsum_lines", .accepts = accepts, .run = run, .strided_out = true}, {0}};

const OpRules op_cumsum = {
    .math = "y[i] = x[0] + ... + x[i] along axis `dim`, or from the end with reverse",
    .example = "f32[4, 6] dim=1",
    .attrs = attrs,
    .infer = infer,
    .diff = diff,
    .factors = factors,
    .inplace = {1},
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.cumsum.default",
};
