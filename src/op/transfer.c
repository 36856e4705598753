/* offload, reload: a copy in the host's memory, and one back in the memory where kernels compute.
 * offload's operand 1 is a value of the host's memory in whose place the copy may lie: a state's
 * old value. wait_tensor: what such a copy makes, once it is there.
 *
 * On a device with queues the copies run beside the kernels: until its wait_tensor the result is
 * unfinished and the operand is still being read. So only a wait_tensor may read the result, and
 * what it waits for takes both: `wait_tensor(copy, source)` is `copy`, and as a reader of `source`
 * keeps that alive. A wait is a call that computes nothing; its result lies where the copy lies.
 * The names are those of PyTorch's offloading of activations (ao.offload, ao.reload,
 * ao.wait_tensor); collectives are waited for by the same op. */
#include "op.h"

static int infer(const Graph *g, const Node *n, Type *out)
{
    (void)g;
    out[0] = n->in[0]->type;
    return 1;
}

static int infer_offload(const Graph *g, const Node *n, Type *out)
{
    if (n->nin > 1 && !type_equal(&n->in[0]->type, &n->in[1]->type))
        fail_node(g, n, "operand 1: expected the type of operand 0, in whose place it lies");
    return infer(g, n, out);
}

static void diff(Grad *d)
{
    d->dx[0] = d->dy[0];
}

/* Whether two types differ at most in the size of axis 0, as the results of collectives do. */
static bool differ_in_first(const Type *s, const Type *t)
{
    bool same = s->rank == t->rank && s->rank;
    for (int d = 1; d < s->rank; d++)
        same &= s->dim[d] == t->dim[d];
    return same;
}

/* Along an axis that what it waits for needs whole no part of that would be there to wait for. */
static void wait_factors(const Node *n, Factors *f)
{
    const Node *from = node_waits_for(n);
    bool moves = from && !node_is(from, OP_all_reduce) && !node_is(from, OP_broadcast) &&
                 !node_is(from, OP_permute_tensor),
         two = n->nin == 2;
    if (from && from->nin > 1)
        factors_whole(n, f);
    else if (moves && (!two || differ_in_first(&n->in[0]->type, &n->in[1]->type)))
        factors_inner(n, f);
    else if (!moves && (!two || type_equal(&n->in[0]->type, &n->in[1]->type)))
        factors_elementwise(n, f);
    else
        factors_whole(n, f);
}

/* The old value is overwritten, not read. */
static Cost copy_cost(const Node *n)
{
    double nbytes = (double)type_nbytes(&n->in[0]->type);
    return (Cost){0, nbytes, nbytes};
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int run(Call *c)
{
    if (c->out[0].data != c->in[0].data)
        strided_copy(&c->out[0], &c->in[0]);
    return 0;
}

static const Kernel kernels[] = {{.name = "copy", .accepts = accepts, .run = run}, {0}};
static const Kernel wait_kernels[] = {{.name = "wait", .accepts = accepts, .run = run}, {0}};

const OpRules op_offload = {
    .math = "y = x0, in the host's memory, x1's old value there",
    .example = "f32[4, 6]",
    .infer = infer_offload,
    .diff = diff,
    .cost = copy_cost,
    .factors = factors_elementwise,
    .inplace = {2},
    .kernels = kernels,
    .ref = copy_ref,
    .alias = "ao.offload.default",
};

const OpRules op_reload = {
    .math = "y = x, in the memory where kernels compute",
    .example = "f32[4, 6]",
    .infer = infer,
    .diff = diff,
    .cost = cost_bytes,
    .factors = factors_elementwise,
    .kernels = kernels,
    .ref = copy_ref,
    .alias = "ao.reload.default",
};

const OpRules op_wait_tensor = {
    .math = "y = x0, once it is there; x1 is what its making reads",
    .example = "f32[4, 6] f32[4, 6]",
    .infer = infer,
    .diff = diff,
    .cost = cost_bytes,
    .factors = wait_factors,
    .kernels = wait_kernels,
    .ref = copy_ref,
    .alias = "_c10d_functional.wait_tensor.default ao.wait_tensor.default",
};
