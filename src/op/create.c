/* Values made from nothing: full (one number everywhere) and arange (start, start + step, ... below
 * end; integers). arange of a part is told by an operand which element is its first. */
#include "pointwise.h"

/* ---- full ---- */

enum { SIZE, FILL_VALUE, FULL_DTYPE };

static const AttrField full_attrs[] = {
    {"size", ATTR_INTS, .required = true},
    {"fill_value", ATTR_FLOAT, .required = true},
    {"dtype", ATTR_DTYPE, .i = F32},
    {0},
};

static int full_infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *size = &n->attr[SIZE];
    double x = n->attr[FILL_VALUE].f;
    DType dtype = (DType)n->attr[FULL_DTYPE].i;
    if (size->i > TN_RANK)
        fail_node(g, n, "size: expected at most %d axes, found %lld", TN_RANK, (long long)size->i);
    for (int d = 0; d < size->i; d++)
        if (size->ints[d] < 0)
            fail_node(g, n, "size: expected sizes of 0 or more, found %lld",
                      (long long)size->ints[d]);
    need_number(g, n, "fill_value", x, dtype);
    out[0] = type_make(dtype, (int)size->i, size->ints);
    return 1;
}

static void full_factors(const Node *n, Factors *f)
{
    factors_elementwise(n, f);
}

static void full_part(Part *p)
{
    part_shape(p, SIZE);
}

static int full_ref(Call *c)
{
    const Tensor *y = &c->out[0];
    double x = c->node->attr[FILL_VALUE].f;
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        tensor_set(y, tensor_index(y, ix), x);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* arg: the element's bits. */
#define FILL_ROW(bits)                                                                       \
    KERNEL(void, fill##bits,                                                                 \
           (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
           (n, out, in, s, arg))                                                             \
    {                                                                                        \
        uint##bits##_t *y = out, x;                                                          \
        (void)in;                                                                            \
        (void)s;                                                                             \
        memcpy(&x, arg, sizeof x);                                                           \
        for (int64_t i = 0; i < n; i++)                                                      \
            y[i] = x;                                                                        \
    }
FILL_ROW(8)
FILL_ROW(16)
FILL_ROW(32)
FILL_ROW(64)

static bool full_lane(const Call *c, LaneFn *l)
{
    Tensor x = {.data = l->arg.bytes, .dtype = c->out[0].dtype};
    int size = dtype_size(x.dtype);
    tensor_set(&x, 0, c->node->attr[FILL_VALUE].f);
    return lane_is(l, size == 1 ? fill8 : size == 2 ? fill16 : size == 4 ? fill32 : fill64);
}

const OpRules op_full = {
    .math = "y = fill_value",
    .example = "size=[4, 6] fill_value=0.5",
    .attrs = full_attrs,
    .infer = full_infer,
    .factors = full_factors,
    .part = full_part,
    .lane = full_lane,
    .kernels = lane_kernels,
    .ref = full_ref,
    .alias = "aten.full.default aten.scalar_tensor.default",
};

/* ---- arange ---- */

enum { START, END, STEP, ARANGE_DTYPE };

static const AttrField arange_attrs[] = {
    {"start", ATTR_INT, .i = 0},
    {"end", ATTR_INT, .required = true},
    {"step", ATTR_INT, .i = 1},
    {"dtype", ATTR_DTYPE, .i = I64},
    {0},
};

static int arange_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t start = n->attr[START].i, end = n->attr[END].i, step = n->attr[STEP].i;
    const DType dtype = (DType)n->attr[ARANGE_DTYPE].i;
    int64_t span;
    Type scalar = type_make(I64, 0, NULL);
    if (n->nin)
        need_type(g, n, 0, &scalar);
    if (step == 0)
        fail_node(g, n, "step: expected other than 0");
    if (dtype == BOOL)
        fail_node(g, n, "dtype: expected numbers, found bool");
    if (__builtin_sub_overflow(end, start, &span) || span == INT64_MIN)
        fail_node(g, n, "end - start: expected below 2^63");
    if (span != 0 && (span < 0) != (step < 0))
        fail_node(g, n, "step: expected to lead from %lld to %lld, found %lld", (long long)start,
                  (long long)end, (long long)step);
    int64_t count = span / step + (span % step != 0);
    if (count && dtype != I64) {
        need_number(g, n, "start", (double)start, dtype);
        need_number(g, n, "the last element", (double)(start + (count - 1) * step), dtype);
    }
    out[0] = type_make(dtype, 1, &count);
    return 1;
}

static void arange_factors(const Node *n, Factors *f)
{
    factors_elementwise(n, f);
    for (int k = 0; k < f->count; k++) {
        f->factor[k].offset = n->nin ? 0 : NO_FACTOR;
        f->factor[k].placed = !n->nin;
    }
}

static void arange_part(Part *p)
{
    Attr *attr = part_attr(p);
    int64_t count = part_dims(p)[0];
    if (count != p->n->out[0]->type.dim[0])
        attr[END].i = attr[START].i + count * attr[STEP].i;
    part_same(p, attr);
}

/* Element 0 of the call; wraps where no whole has such elements. */
static int64_t arange_first(const Call *c)
{
    uint64_t at = c->nin ? (uint64_t)tensor_int(&c->in[0], 0) : 0;
    return (int64_t)((uint64_t)c->node->attr[START].i + at * (uint64_t)c->node->attr[STEP].i);
}

static int64_t arange_element(int64_t first, int64_t i, int64_t step)
{
    return (int64_t)((uint64_t)first + (uint64_t)i * (uint64_t)step);
}

static int arange_ref(Call *c)
{
    const Tensor *y = &c->out[0];
    int64_t first = arange_first(c), step = c->node->attr[STEP].i;
    for (int64_t i = 0; i < y->dim[0]; i++)
        tensor_set_int(y, i * y->stride[0], arange_element(first, i, step));
    return 0;
}

static bool arange_accepts(const Call *c)
{
    return c->out[0].dtype == I64;
}

static int arange_run(Call *c)
{
    int64_t *y = (int64_t *)c->out[0].data, n = c->out[0].dim[0], apart = c->out[0].stride[0];
    int64_t first = arange_first(c), step = c->node->attr[STEP].i;
    for (int64_t i = 0; i < n; i++)
        y[i * apart] = arange_element(first, i, step);
    return 0;
}

static const Kernel arange_kernels[] = {
    {.name = "i64", .accepts = arange_accepts, .run = arange_run, .strided_out = true}, {0}};

const OpRules op_arange = {
    .math = "y[i] = start + i step; of a part: start + (first + i) step",
    .example = "start=2 end=10 step=2",
    .attrs = arange_attrs,
    .infer = arange_infer,
    .factors = arange_factors,
    .part = arange_part,
    .kernels = arange_kernels,
    .ref = arange_ref,
    .alias = "aten.arange.start_step aten.arange.start aten.arange.default",
};
