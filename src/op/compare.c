/* Comparisons, logic and choice: results are bool, and no gradient passes through them but through
 * the two branches of where. Comparisons with NaN are false, only ne is true.
 *
 * Kernels for all dtypes but f16 and u8, any strides; where moves bits: its kernels go by element
 * size. */
#include "pointwise.h"

/* ---- infer ---- */

static int compare_infer(const Graph *g, const Node *n, Type *out)
{
    out[0] = infer_broadcast(g, n, 0, n->nin);
    out[0].dtype = BOOL;
    return 1;
}

static int logical_infer(const Graph *g, const Node *n, Type *out)
{
    for (int i = 0; i < n->nin; i++)
        need_dtype(g, n, i, BOOL);
    out[0] = infer_broadcast(g, n, 0, n->nin);
    return 1;
}

static int isfinite_infer(const Graph *g, const Node *n, Type *out)
{
    need_float(g, n, 0);
    return compare_infer(g, n, out);
}

static int where_infer(const Graph *g, const Node *n, Type *out)
{
    need_dtype(g, n, 0, BOOL);
    const Type *cond = &n->in[0]->type;
    Type t = infer_broadcast(g, n, 1, 2), y = t.rank >= cond->rank ? t : *cond;
    y.dtype = t.dtype;
    for (int d = 1; d <= MIN(t.rank, cond->rank); d++) {
        int64_t p = t.dim[t.rank - d], q = cond->dim[cond->rank - d];
        if (p != q && p != 1 && q != 1)
            fail_node(g, n, "operand 0: expected a shape that broadcasts with %s, found %s",
                      type_text(g->a, &t), type_text(g->a, cond));
        y.dim[y.rank - d] = p == 1 ? q : p;
    }
    out[0] = y;
    return 1;
}

/* ---- diff ---- */

static void where_diff(Grad *d)
{
    Build *b = d->b;
    Value *cond = d->n->in[0], *dy = d->dy[0], *zero = emit_full(b, 0, dy->type.dtype);
    for (int i = 1; i < 3; i++)
        if (d->need[i]) {
            Value *x = i == 1 ? dy : zero, *y = i == 1 ? zero : dy;
            x = emit1(b, "where", IN(cond, x, y), NOATTRS);
            d->dx[i] = grad_reduce(b, x, &d->n->in[i]->type);
        }
}

/* ---- fold ---- */

static Value *logical_not_fold(Build *b, Node *n) /* not not x */
{
    (void)b;
    return node_is(n->in[0]->def, OP_logical_not) ? n->in[0]->def->in[0] : NULL;
}

/* ---- references ---- */

/* less, equal, greater, neither */
typedef enum { LESS, EQUAL, GREATER, UNORDERED } Ordering;

static Ordering order_of(const Tensor *a, int64_t p, const Tensor *b, int64_t q)
{
    if (!dtype_float(a->dtype)) {
        int64_t x = tensor_int(a, p), y = tensor_int(b, q);
        return x < y ? LESS : x > y ? GREATER : EQUAL;
    }
    double x = tensor_get(a, p), y = tensor_get(b, q);
    return x < y ? LESS : x > y ? GREATER : x == y ? EQUAL : UNORDERED;
}

/* y = whether the order of a and b is in the set. */
static int compare_ref(Call *c, unsigned set)
{
    const Tensor *y = &c->out[0], *a = &c->in[0], *b = &c->in[1];
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        Ordering o = order_of(a, broadcast_at(y, a, ix), b, broadcast_at(y, b, ix));
        tensor_set_int(y, tensor_index(y, ix), set >> o & 1);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

static double is_finite(double x)
{
    return isfinite(x);
}

static int isfinite_ref(Call *c)
{
    return pointwise_ref1(c, is_finite, NULL);
}

static int where_ref(Call *c)
{
    const Tensor *y = &c->out[0], *cond = &c->in[0];
    size_t size = (size_t)dtype_size(y->dtype);
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        const Tensor *x = &c->in[tensor_int(cond, broadcast_at(y, cond, ix)) ? 1 : 2];
        memcpy(y->data + (size_t)tensor_index(y, ix) * size,
               x->data + (size_t)broadcast_at(y, x, ix) * size, size);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}

/* ---- kernels and constants ---- */

/* clang-format off */
/* `set` of orders that give true, and the same as an expression of a and b. */
#define COMPARE(name, mathematics, set, expr)                                                      \
    static int name##_ref(Call *c)                                                                 \
    {                                                                                              \
        return compare_ref(c, set);                                                                \
    }                                                                                              \
    ROW2(name##_f32, float, uint8_t, expr)                                                         \
    ROW2_AS(name##_bf16, uint16_t, float, uint8_t, v_bf16_to_f32, , expr)                          \
    ROW2(name##_f64, double, uint8_t, expr)                                                        \
    ROW2(name##_i64, int64_t, uint8_t, expr)                                                       \
    ROW2(name##_i32, int32_t, uint8_t, expr)                                                       \
    ROW2(name##_bool, bool, uint8_t, expr)                                                         \
    static bool name##_lane(const Call *c, LaneFn *l)                                              \
    {                                                                                              \
        return c->in[0].dtype == BOOL ? lane_is(l, name##_bool)                                    \
                                      : lane_of(l, c, NUMBER_SET(name));                           \
    }                                                                                              \
    const OpRules op_##name = {                                                                    \
        .math = mathematics, .example = "f32[4, 6] f32[6]", .infer = compare_infer,                \
        .ref = name##_ref, .lane = name##_lane, .kernels = lane_kernels,                           \
        .alias = "aten." #name ".Tensor aten." #name ".Scalar"};

COMPARE(eq, "y = a == b", 1 << EQUAL,                                     a == b)
COMPARE(ne, "y = a != b", 1 << LESS | 1 << GREATER | 1 << UNORDERED,      a != b)
COMPARE(lt, "y = a < b",  1 << LESS,                                      a < b)
COMPARE(le, "y = a <= b", 1 << LESS | 1 << EQUAL,                         a <= b)
COMPARE(gt, "y = a > b",  1 << GREATER,                                   a > b)
COMPARE(ge, "y = a >= b", 1 << GREATER | 1 << EQUAL,                      a >= b)
/* clang-format on */

static int64_t and_i64(int64_t a, int64_t b)
{
    return a & b;
}

static int64_t or_i64(int64_t a, int64_t b)
{
    return a | b;
}

static int64_t not_i64(int64_t x)
{
    return !x;
}

/* clang-format off */
#define LOGICAL(name, nin, function, reference, mathematics, operands, folds)                      \
    static int name##_ref(Call *c)                                                                 \
    {                                                                                              \
        return reference;                                                                          \
    }                                                                                              \
    static bool name##_lane(const Call *c, LaneFn *l)                                              \
    {                                                                                              \
        (void)c;                                                                                   \
        return lane_is(l, function);                                                               \
    }                                                                                              \
    const OpRules op_##name = {                                                                    \
        .math = mathematics, .example = operands, .infer = logical_infer, .ref = name##_ref,       \
        .inplace = {(1 << nin) - 1}, .lane = name##_lane, .kernels = lane_kernels,                 \
        .fold = folds, .alias = "aten." #name ".default"};

ROW2(and_row, uint8_t, uint8_t, a & b)
ROW2(or_row, uint8_t, uint8_t, a | b)
ROW1(not_row, uint8_t, uint8_t, x ^ 1)
LOGICAL(logical_and, 2, and_row, pointwise_ref2(c, NULL, and_i64), "y = a and b",
        "bool[4, 6] bool[6]", NULL)
LOGICAL(logical_or,  2, or_row,  pointwise_ref2(c, NULL, or_i64),  "y = a or b",
        "bool[4, 6] bool[6]", NULL)
LOGICAL(logical_not, 1, not_row, pointwise_ref1(c, NULL, not_i64), "y = not x",
        "bool[4, 6]",         logical_not_fold)
/* clang-format on */

/* ---- isfinite ---- */

ROW1(isfinite_f32, uint32_t, uint8_t, (x & 0x7f800000) != 0x7f800000)
ROW1(isfinite_bf16, uint16_t, uint8_t, (x & 0x7f80) != 0x7f80)
ROW1(isfinite_f64, uint64_t, uint8_t, (x << 1) < 0xffe0000000000000)

static bool isfinite_lane(const Call *c, LaneFn *l)
{
    return lane_of(l, c, FLOAT_SET(isfinite));
}

const OpRules op_isfinite = {
    .math = "y = x is neither infinite nor NaN",
    .example = "f32[4, 6]",
    .infer = isfinite_infer,
    .lane = isfinite_lane,
    .kernels = lane_kernels,
    .ref = isfinite_ref,
    .alias = "aten.isfinite.default",
};

/* ---- where ---- */

#define LANES3(T, C, A, B)                      \
    INDEPENDENT for (int64_t i = 0; i < n; i++) \
    {                                           \
        const T a = (A), b = (B);               \
        y[i] = cond[C] ? a : b;                 \
    }
#define WHERE_ROW(bits)                                                                      \
    KERNEL(void, where##bits##_row,                                                          \
           (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
           (n, out, in, s, arg))                                                             \
    {                                                                                        \
        const uint8_t *cond = in[0];                                                         \
        const uint##bits##_t *p = in[1], *q = in[2], p0 = *p, q0 = *q;                       \
        uint##bits##_t *y = out;                                                             \
        int64_t sc = s[0], sp = s[1], sq = s[2];                                             \
        (void)arg;                                                                           \
        if (sc == 1 && sp == 1 && sq == 1)                                                   \
            LANES3(uint##bits##_t, i, p[i], q[i])                                            \
        else if (sc == 1 && sp == 1 && sq == 0)                                              \
            LANES3(uint##bits##_t, i, p[i], q0)                                              \
        else if (sc == 1 && sp == 0 && sq == 1)                                              \
            LANES3(uint##bits##_t, i, p0, q[i])                                              \
        else                                                                                 \
            LANES3(uint##bits##_t, i *sc, p[i * sp], q[i * sq])                              \
    }
WHERE_ROW(8)
WHERE_ROW(16)
WHERE_ROW(32)
WHERE_ROW(64)

static bool where_lane(const Call *c, LaneFn *l)
{
    int size = dtype_size(c->out[0].dtype);
    return lane_is(l, size == 1   ? where8_row
                      : size == 2 ? where16_row
                      : size == 4 ? where32_row
                                  : where64_row);
}

const OpRules op_where = {
    .math = "y = a where cond, else b",
    .example = "bool[4, 6] f32[4, 6] f32[]",
    .infer = where_infer,
    .diff = where_diff,
    .inplace = {6},
    .lane = where_lane,
    .kernels = lane_kernels,
    .ref = where_ref,
    .alias = "aten.where.self aten.where.ScalarSelf aten.where.ScalarOther aten.where.Scalar",
};
