/* opaque: a call of which nothing is known but its operands, its name and the type of its result. A
 * graph that PyTorch traced has such calls: of other libraries, and sends and receives between two
 * ranks. It may have effects that no value shows, so it is a barrier: it stays, and no node moves
 * across it, as ranks that wait for each other in another order would wait for ever. It is planned,
 * with the seconds of its bytes, and never run.
 *
 * Its operands are read and its result is made whole; it has no gradient and cannot be cut. */
#include "op.h"

static const AttrField opaque_attrs[] = {
    {.name = "call", .kind = ATTR_STR, .required = true},
    {.name = "size", .kind = ATTR_INTS, .required = true},
    {.name = "dtype", .kind = ATTR_DTYPE, .required = true},
    {0},
};

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Attr *size = &n->attr[attr_index(n->op, "size")];
    if (size->i > TN_RANK)
        fail_node(g, n, "size: expected at most %d axes, found %lld", TN_RANK, (long long)size->i);
    for (int64_t d = 0; d < size->i; d++)
        if (size->ints[d] < 0)
            fail_node(g, n, "size: expected 0 or more, found %lld", (long long)size->ints[d]);
    *out = type_make((DType)n->attr[attr_index(n->op, "dtype")].i, (int)size->i, size->ints);
    return 1;
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int refuse(Call *c)
{
    return run_fail(c, "stands for a call of %s, which is not ours to run",
                    c->node->attr[attr_index(c->node->op, "call")].s);
}

static const Kernel opaque_kernels[] = {{.name = "opaque", .accepts = accepts, .run = refuse}, {0}};

const OpRules op_opaque = {.math = "y = what another's call makes; nothing moves across it",
                           .example = "f32[4, 6] call=\"a.b\" size=[4, 6] dtype=f32",
                           .attrs = opaque_attrs,
                           .infer = infer,
                           .cost = cost_bytes,
                           .factors = factors_whole,
                           .kernels = opaque_kernels,
                           .ref = refuse};
