/* _to_copy: the same numbers in another dtype. clone: the same bits in row-major order.
 *
 * To a float: rounded to nearest even (f64 to f16 and bf16 by way of f32); to bool: nonzero; to an
 * integer: towards zero, and wrapped between integers; floats beyond the integer's range are
 * undefined. A float's gradient goes back in its own dtype; integers have none.
 *
 * Kernels: rows of any stride for the pairs below, the others by ref; clone is strided_copy
 * (copy.c). A narrower result may lie over the operand: elements [k, 2k) are then read after all
 * that writing them overwrites, which is what elements below k were read from. So they are made by
 * all threads, with k = 64, 128, ... */
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

static unsigned to_copy_overwrites(const Node *n, int k)
{
    return dtype_size(n->out[k]->type.dtype) < dtype_size(n->in[0]->type.dtype);
}

/* Elements from `first` on, where lie x and y. */
typedef struct Narrowing {
    LaneFn lane;
    char *at;
    int64_t first, from, to; /* bytes of an element */
} Narrowing;

static void narrow_part(void *arg, int64_t lo, int64_t hi)
{
    const Narrowing *w = arg;
    const void *x = w->at + (w->first + lo) * w->from;
    w->lane.row(hi - lo, w->at + (w->first + lo) * w->to, &x, (const int64_t[]){1}, &w->lane.arg);
}

static void narrow_in_place(const Call *c, const LaneFn *lane)
{
    enum { HEAD = 64 };
    char head[HEAD * sizeof(int64_t)];
    Narrowing w = {*lane, c->out[0].data, 0, dtype_size(c->in[0].dtype),
                   dtype_size(c->out[0].dtype)};
    int64_t n = tensor_nelem(&c->out[0]), count = MIN(HEAD, n);
    memcpy(head, w.at, (size_t)(count * w.from));
    lane->row(count, w.at, &(const void *){head}, (const int64_t[]){1}, &lane->arg);
    for (w.first = HEAD; w.first < n; w.first *= 2)
        walk_par(MIN(w.first, n - w.first), narrow_part, &w);
}

static int to_copy_run(Call *c)
{
    LaneFn l = {0};
    CHECK(to_copy_lane(c, &l));
    if (c->in[0].data != c->out[0].data || c->in[0].dtype == c->out[0].dtype)
        return pointwise_run(c, 1, l.row, &l.arg);
    narrow_in_place(c, &l);
    return 0;
}

static bool to_copy_accepts(const Call *c)
{
    return to_copy_lane(c, &(LaneFn){0});
}

static const Kernel to_copy_kernels[] = {{.name = "rows",
                                          .accepts = to_copy_accepts,
                                          .run = to_copy_run,
                                          .strided_out = true,
                                          .over_wider = true},
                                         {0}};

const OpRules op__to_copy = {
    .math = "y = x in another dtype",
    .example = "f32[4, 6] dtype=bf16",
    .attrs = to_copy_attrs,
    .infer = to_copy_infer,
    .diff = to_copy_diff,
    .cost = cost_bytes,
    .fold = to_copy_fold,
    .overwrites = to_copy_overwrites,
    .lane = to_copy_lane,
    .kernels = to_copy_kernels,
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
