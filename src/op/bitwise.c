/* bitwise_and, bitwise_or, bitwise_xor, bitwise_not of integers, and of bool, where they are logic
 * (not of bool is true for false). Operands broadcast and have one dtype; there is no gradient.
 *
 * Kernels go by element size, for any strides. */
#include "pointwise.h"

static int infer(const Graph *g, const Node *n, Type *out)
{
    for (int i = 0; i < n->nin; i++)
        if (dtype_float(n->in[i]->type.dtype))
            fail_node(g, n, "operand %d: expected integers or bool, found %s", i,
                      dtype_name(n->in[i]->type.dtype));
    out[0] = infer_broadcast(g, n, 0, n->nin);
    return 1;
}

/* The row of the dtype's element size; bool has its own. */
static bool lane_by(LaneFn *l, DType d, RowFn *row64, RowFn *row32, RowFn *row8, RowFn *row_bool)
{
    return lane_is(l, d == I64 ? row64 : d == I32 ? row32 : d == U8 ? row8 : row_bool);
}

/* clang-format off */
#define BITWISE(name, rows, nin, expr, bool_expr, mathematics, operands, aliases)                  \
    rows(name##_64, uint64_t, uint64_t, expr)                                                      \
    rows(name##_32, uint32_t, uint32_t, expr)                                                      \
    rows(name##_8, uint8_t, uint8_t, (uint8_t)(expr))                                              \
    rows(name##_bool, bool, bool, bool_expr)                                                       \
    static bool name##_lane(const Call *c, LaneFn *l)                                              \
    {                                                                                              \
        return lane_by(l, c->out[0].dtype, name##_64, name##_32, name##_8, name##_bool);           \
    }                                                                                              \
    const OpRules op_bitwise_##name = {                                                            \
        .math = mathematics, .example = operands, .infer = infer, .ref = name##_ref,               \
        .inplace = {(1 << nin) - 1}, .lane = name##_lane, .kernels = lane_kernels,                 \
        .alias = aliases}

#define REF2(name, expr)                                                                           \
    static int64_t name##_of(int64_t a, int64_t b)                                                 \
    {                                                                                              \
        return expr;                                                                               \
    }                                                                                              \
    static int name##_ref(Call *c)                                                                 \
    {                                                                                              \
        return pointwise_ref2(c, NULL, name##_of);                                                 \
    }
REF2(and, a & b)
REF2(or,  a | b)
REF2(xor, a ^ b)
/* clang-format on */

static int64_t not_of(int64_t x)
{
    return ~x;
}

static int64_t not_of_bool(int64_t x)
{
    return !x;
}

static int not_ref(Call *c)
{
    return pointwise_ref1(c, NULL, c->out[0].dtype == BOOL ? not_of_bool : not_of);
}

BITWISE(and, ROW2, 2, a &b, a &b, "y = a & b, bit by bit", "i64[4, 6] i64[6]",
        "aten.bitwise_and.Tensor aten.bitwise_and.Scalar aten.__and__.Tensor aten.__and__.Scalar");
BITWISE(or, ROW2, 2, a | b, a | b, "y = a | b, bit by bit", "i64[4, 6] i64[6]",
        "aten.bitwise_or.Tensor aten.bitwise_or.Scalar aten.__or__.Tensor aten.__or__.Scalar");
BITWISE(xor, ROW2, 2, a ^ b, a ^ b, "y = a ^ b, bit by bit", "i64[4, 6] i64[6]",
        "aten.bitwise_xor.Tensor aten.bitwise_xor.Scalar aten.__xor__.Tensor aten.__xor__.Scalar");
BITWISE(not, ROW1, 1, ~x, !x, "y = ~x, bit by bit", "i64[4, 6]", "aten.bitwise_not.default");
