/* _to_copy: the same numbers in another dtype. clone: the same bits in row-major order.
 *
 * To a float: rounded to nearest even (f64 to f16 and bf16 by way of f32); to bool: nonzero; to an
 * integer: towards zero, and wrapped between integers; floats beyond the integer's range are
 * undefined. A float's gradient goes back in its own dtype; integers have none.
 *
 * Kernels: rows of any stride for the pairs below, the others by ref; clone is strided_copy
 * (copy.c). */
#include "pointwise.h"

enum { DTYPE };

static const AttrField to_copy_attrs[] = {
    {"dtype", ATTR_DTYPE, .required = true},
    {0},
};

/* ---- _to_copy ---- */

static int to_copy_infer(const Graph *g, const Node *n, Type *out)
{
    (void)g;
    out[0] = n->in[0]->type;
    out[0].dtype = (DType)n->attr[DTYPE].i;
    return 1;
}

static void to_copy_diff(Grad *d)
{
    DType from = d->n->in[0]->type.dtype;
    if (dtype_float(from) && dtype_float(d->dy[0]->type.dtype))
        d->dx[0] = emit1(d->b, "_to_copy", IN(d->dy[0]), ATTRS(A_DTYPE("dtype", from)));
}

static Value *to_copy_fold(Build *b, Node *n)
{
    (void)b;
    return n->in[0]->type.dtype == n->out[0]->type.dtype ? n->in[0] : NULL;
}

static int to_copy_ref(Call *c)
{
    const Tensor *y = &c->out[0], *x = &c->in[0];
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        int64_t at = tensor_index(y, ix), from = tensor_index(x, ix);
        if (dtype_float(x->dtype))
            tensor_set(y, at, tensor_get(x, from));
        else
            tensor_set_int(y, at, tensor_int(x, from));
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* clang-format off */
/* from, its C type, to, its C type, expr of x */
#define FROM(X, from, ctype, value)                                                                \
    X(from, ctype, F64, double, (double)(value))                                                   \
    X(from, ctype, F32, float, (float)(value))                                                     \
    X(from, ctype, BF16, uint16_t, v_f32_to_bf16((float)(value)))                                  \
    X(from, ctype, I64, int64_t, (int64_t)(value))                                                 \
    X(from, ctype, I32, int32_t, (int32_t)(value))                                                 \
    X(from, ctype, BOOL, uint8_t, (value) != 0)
#define CASTS(X)                                                                                   \
    FROM(X, F64, double, x)                                                                        \
    FROM(X, F32, float, x)                                                                         \
    FROM(X, BF16, uint16_t, v_bf16_to_f32(x))                                                      \
    FROM(X, I64, int64_t, x)                                                                       \
    FROM(X, I32, int32_t, x)                                                                       \
    FROM(X, BOOL, uint8_t, x != 0)                                                                 \
    X(F32, float, F16, uint16_t, v_f32_to_f16(x))                                                  \
    X(F16, uint16_t, F32, float, v_f16_to_f32(x))                                                  \
    X(U8, uint8_t, F32, float, x)                                                                  \
    X(U8, uint8_t, I64, int64_t, x)

#define X(from, ctype_from, to, ctype_to, expr)                                                    \
    ROW1(from##_to_##to##_row, ctype_from, ctype_to, expr)
CASTS(X)
#undef X

/* clang-format on */

static RowFn *find_cast(DType from, DType to)
{
#define X(f, ctype_from, t, ctype_to, expr) \
    if (from == f && to == t)               \
        return f##_to_##t##_row;
    CASTS(X)
#undef X
    return NULL;
}

static bool to_copy_lane(const Call *c, LaneFn *l)
{
    return lane_is(l, find_cast(c->in[0].dtype, c->out[0].dtype));
}

const OpRules op__to_copy = {
    .math = "y = x in another dtype",
    .example = "f32[4, 6] dtype=bf16",
    .attrs = to_copy_attrs,
    .infer = to_copy_infer,
    .diff = to_copy_diff,
    .cost = cost_bytes,
    .fold = to_copy_fold,
    .lane = to_copy_lane,
    .kernels = lane_kernels,
    .ref = to_copy_ref,
    .alias = "aten._to_copy.default",
};

/* ---- clone ---- */

static int clone_infer(const Graph *g, const Node *n, Type *out)
{
    (void)g;
    out[0] = n->in[0]->type;
    return 1;
}

static void clone_diff(Grad *d)
{
    d->dx[0] = d->dy[0];
}

static bool clone_accepts(const Call *c)
{
    (void)c;
    return true;
}

static int clone_run(Call *c)
{
    strided_copy(&c->out[0], &c->in[0]);
    return 0;
}

static const Kernel clone_kernels[] = {
    {.name = "copy", .accepts = clone_accepts, .run = clone_run, .strided_out = true}, {0}};

const OpRules op_clone = {
    .math = "y = x, row-major",
    .example = "f32[4, 6]",
    .infer = clone_infer,
    .diff = clone_diff,
    .cost = cost_bytes,
    .kernels = clone_kernels,
    .ref = copy_ref,
    .alias = "aten.clone.default",
};
