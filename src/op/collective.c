/* Functional collectives, with the names, operands and meaning of PyTorch's _c10d_functional: all
 * ranks of a group call them with tensors of one shape; wait_tensor (transfer.c) makes the result
 * usable.
 *
 *   all_reduce               y = reduce_op over the ranks of x
 *   all_gather_into_tensor   y = the ranks' x one after the other along axis 0
 *   reduce_scatter_tensor    y = this rank's part along axis 0 of the reduced x
 *   all_to_all_single        y = what the ranks send to this one, by sizes along axis 0 (none:
 * equal)
 *
 * `group` names the ranks: in a graph with a mesh by the axes that it spans, "tp,fsdp", major
 * first.
 *
 * Reductions are to be sums in rank order, from zero and in f32, whatever the timing. So each rank
 * receives its part of x from each of the others, in the dtype of x, which is what the workspace
 * holds: of n ranks (n - 1) times the elements of a part, ceil(nelem(x) / n). Its own part it reads
 * in x, the sum of an element stays in a register, and the result is rounded once. all_reduce then
 * sends its part to the others, which receive it in the result itself. all_gather_into_tensor and
 * all_to_all_single receive in their result. A group of one rank needs nothing.
 *
 * Graphs with them can be read, rewritten and planned; there is no back end for several ranks yet,
 * so that running one is an error. */
#include "op.h"

#include <string.h>

#define REDUCE_OP                                               \
    {                                                           \
        .name = "reduce_op", .kind = ATTR_STR, .required = true \
    }
#define SIZE                                                     \
    {                                                            \
        .name = "group_size", .kind = ATTR_INT, .required = true \
    }
#define GROUP                                               \
    {                                                       \
        .name = "group", .kind = ATTR_STR, .required = true \
    }

static const AttrField all_reduce_attrs[] = {REDUCE_OP, GROUP, {0}};
static const AttrField gather_attrs[] = {SIZE, GROUP, {0}};
static const AttrField scatter_attrs[] = {REDUCE_OP, SIZE, GROUP, {0}};
static const AttrField all_to_all_attrs[] = {
    {.name = "output_split_sizes", .kind = ATTR_INTS},
    {.name = "input_split_sizes", .kind = ATTR_INTS},
    GROUP,
    {0},
};

static const char *text_attr(const Node *n, const char *name)
{
    int i = attr_index(n->op, name);
    return i < 0 ? NULL : n->attr[i].s;
}

static void check_reduce_op(const Graph *g, const Node *n)
{
    static const char *const ops[] = {"sum", "avg", "max", "min", "product"};
    const char *op = text_attr(n, "reduce_op");
    for (int i = 0; i < LEN(ops); i++)
        if (!strcmp(op, ops[i]))
            return;
    fail_node(g, n, "reduce_op: expected sum, avg, max, min or product, found \"%s\"", op);
}

/* By the mesh; 0: there is none. */
static int64_t mesh_ranks(const Mesh *mesh, const Node *n)
{
    int axes[MAX_MESH], count = mesh ? group_axes(mesh, text_attr(n, "group"), axes) : -1;
    return count < 0 ? 0 : group_nranks(mesh, count, axes);
}

int64_t group_ranks(const Mesh *mesh, const Node *n)
{
    int i = attr_index(n->op, "group_size");
    return i < 0 ? mesh_ranks(mesh, n) : n->attr[i].i;
}

static int64_t group_size(const Graph *g, const Node *n)
{
    int64_t size = n->attr[attr_index(n->op, "group_size")].i;
    need_rank(g, n, 0, 1, TN_RANK);
    if (size < 1)
        fail_node(g, n, "group_size: expected 1 or more, found %lld", (long long)size);
    return size;
}

/* ---- infer ---- */

static int reduce_infer(const Graph *g, const Node *n, Type *out)
{
    check_reduce_op(g, n);
    out[0] = n->in[0]->type;
    return 1;
}

static int gather_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t size = group_size(g, n);
    out[0] = n->in[0]->type;
    if (__builtin_mul_overflow(out[0].dim[0], size, &out[0].dim[0]))
        fail_node(g, n, "group_size: too large");
    return 1;
}

static int scatter_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t size = group_size(g, n);
    check_reduce_op(g, n);
    out[0] = n->in[0]->type;
    if (out[0].dim[0] % size)
        fail_node(g, n, "group_size: expected a divisor of %lld, found %lld",
                  (long long)out[0].dim[0], (long long)size);
    out[0].dim[0] /= size;
    return 1;
}

static int64_t total(const Graph *g, const Node *n, const Attr *sizes, const char *name)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < sizes->i; i++)
        if (sizes->ints[i] < 0 || __builtin_add_overflow(sum, sizes->ints[i], &sum))
            fail_node(g, n, "%s: expected sizes, found %lld", name, (long long)sizes->ints[i]);
    return sum;
}

static int all_to_all_infer(const Graph *g, const Node *n, Type *out)
{
    enum { OUTPUT, INPUT };
    need_rank(g, n, 0, 1, TN_RANK);
    out[0] = n->in[0]->type;
    if (n->attr[INPUT].i && total(g, n, &n->attr[INPUT], "input_split_sizes") != out[0].dim[0])
        fail_node(g, n, "input_split_sizes: expected sizes of sum %lld", (long long)out[0].dim[0]);
    if (n->attr[OUTPUT].i)
        out[0].dim[0] = total(g, n, &n->attr[OUTPUT], "output_split_sizes");
    return 1;
}

/* ---- kernels: running is refused ---- */

static bool accepts(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

/* The bytes that are received before they are reduced: a part from each other rank. */
static int64_t received(Ctx *ctx, const Call *c)
{
    int64_t ranks = group_ranks(c->mesh, c->node), nelem = tensor_nelem(&c->in[0]);
    (void)ctx;
    if (!ranks) /* not known: the bound for any number that divides it */
        return nelem * dtype_size(c->in[0].dtype);
    return (ranks - 1) * ((nelem + ranks - 1) / ranks) * dtype_size(c->in[0].dtype);
}

static int refuse(Call *c)
{
    const char *group = text_attr(c->node, "group");
    return run_fail(c, "runs on several ranks%s%s%s, for which there is no back end yet",
                    group ? " (group \"" : "", group ? group : "", group ? "\")" : "");
}

static const Kernel move_kernels[] = {{.name = "ranks", .accepts = accepts, .run = refuse}, {0}};
static const Kernel reduce_kernels[] = {
    {.name = "ranks", .accepts = accepts, .workspace = received, .run = refuse},
    {0},
};

#define RULES(name, mathematics, operands, fields, infers, list) \
    const OpRules op_##name = {.math = mathematics,              \
                               .example = operands,              \
                               .attrs = fields,                  \
                               .infer = infers,                  \
                               .cost = cost_bytes,               \
                               .kernels = list,                  \
                               .ref = refuse,                    \
                               .alias = "_c10d_functional." #name ".default"};

RULES(all_reduce, "y = reduce_op of x over the ranks of the group",
      "f32[4, 6] reduce_op=\"sum\" group=\"0\"", all_reduce_attrs, reduce_infer, reduce_kernels)
RULES(all_gather_into_tensor, "y = x of the group's ranks, joined along axis 0",
      "f32[4, 6] group_size=2 group=\"0\"", gather_attrs, gather_infer, move_kernels)
RULES(reduce_scatter_tensor, "y = this rank's part along axis 0 of x reduced over the group",
      "f32[4, 6] reduce_op=\"sum\" group_size=2 group=\"0\"", scatter_attrs, scatter_infer,
      reduce_kernels)
RULES(all_to_all_single, "y = the parts along axis 0 that the group's ranks send to this one",
      "f32[4, 6] group=\"0\"", all_to_all_attrs, all_to_all_infer, move_kernels)
