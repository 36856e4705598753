/* Functional collectives, with the names, operands and meaning of PyTorch's _c10d_functional: all
 * ranks of a group call them with tensors of one shape; wait_tensor (transfer.c) makes the result
 * usable.
 *
 *   all_reduce               y = reduce_op over the ranks of x
 *   all_gather_into_tensor   y = the ranks' x one after the other along axis 0
 *   reduce_scatter_tensor    y = this rank's part along axis 0 of the reduced x
 *   all_to_all_single        y = what the ranks send to this one, by sizes along axis 0 (none:
 * equal)
 *   broadcast                y = x of the rank whose place in the group is src
 *   permute_tensor           y = x of the rank `shift` places further on, around a ring
 *
 * The first three take any number of tensors of one dtype, and make as many results, each as if it
 * were alone; the ranks of a group send each other one message for all of them (PyTorch's
 * _coalesced). The pass bucket makes such calls.
 *
 * `group` names the ranks: in a graph with a mesh by the axes that it spans, "tp,fsdp", major
 * first.
 *
 * Reductions are made in rank order, sums from zero, in f32 (of f64 in f64, of integers in
 * integers), and rounded once at the end, whatever the timing. So each rank receives its part of x
 * from each of the others, in the dtype of x, which is what the workspace holds: of n ranks (n - 1)
 * times the elements of a part, ceil(nelem(x) / n), for each x. Its own part it reads in x, the sum
 * of an element stays in a register, and the result is rounded once. all_reduce then sends its part
 * to the others, which receive it in the result itself. All others receive in their result. A group
 * of one rank needs nothing.
 *
 * A loop may cut each along axes other than 0; all_reduce, broadcast and permute_tensor along any:
 * every element is made of the same ranks' elements in the same order, so bits are those of the
 * whole.
 *
 * As a call each begins what the rank's comm does beside the kernels (exec/collective.c), and its
 * wait_tensor ends it. A program that has not joined the other ranks refuses to run it. */
#include "op.h"

#include "vmath.h"

#include <limits.h>
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

static const AttrField broadcast_attrs[] = {
    {.name = "src", .kind = ATTR_INT, .required = true},
    GROUP,
    {0},
};

static const AttrField permute_attrs[] = {
    {.name = "shift", .kind = ATTR_INT, .required = true},
    GROUP,
    {0},
};

static const char *text_attr(const Node *n, const char *name)
{
    int i = attr_index(n->op, name);
    return i < 0 ? NULL : n->attr[i].s;
}

typedef enum { SUM, AVG, MAXIMUM, MINIMUM, PRODUCT, NREDUCE } ReduceOp;
static const char *const reduce_ops[] = {"sum", "avg", "max", "min", "product"};

/* NREDUCE: there is none of that name. */
static ReduceOp reduce_op(const Node *n)
{
    const char *op = text_attr(n, "reduce_op");
    int i = 0;
    while (i < NREDUCE && strcmp(op, reduce_ops[i]))
        i++;
    return (ReduceOp)i;
}

static void check_reduce_op(const Graph *g, const Node *n)
{
    if (reduce_op(n) == NREDUCE)
        fail_node(g, n, "reduce_op: expected sum, avg, max, min or product, found \"%s\"",
                  text_attr(n, "reduce_op"));
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
    for (int i = 0; i < n->nin; i++)
        need_rank(g, n, i, 1, TN_RANK);
    if (size < 1)
        fail_node(g, n, "group_size: expected 1 or more, found %lld", (long long)size);
    return size;
}

/* ---- infer ---- */

/* Results like the operands, which have one dtype. */
static int alike_infer(const Graph *g, const Node *n, Type *out)
{
    for (int i = 0; i < n->nin; i++) {
        need_dtype(g, n, i, n->in[0]->type.dtype);
        out[i] = n->in[i]->type;
    }
    return n->nin;
}

static int reduce_infer(const Graph *g, const Node *n, Type *out)
{
    check_reduce_op(g, n);
    return alike_infer(g, n, out);
}

static int gather_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t size = group_size(g, n);
    alike_infer(g, n, out);
    for (int i = 0; i < n->nin; i++)
        if (__builtin_mul_overflow(out[i].dim[0], size, &out[i].dim[0]))
            fail_node(g, n, "group_size: too large");
    return n->nin;
}

static int scatter_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t size = group_size(g, n);
    check_reduce_op(g, n);
    alike_infer(g, n, out);
    for (int i = 0; i < n->nin; i++) {
        if (out[i].dim[0] % size)
            fail_node(g, n, "group_size: expected a divisor of %lld, found %lld",
                      (long long)out[i].dim[0], (long long)size);
        out[i].dim[0] /= size;
    }
    return n->nin;
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

static int broadcast_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t src = n->attr[0].i, ranks = mesh_ranks(graph_mesh(g), n);
    if (src < 0 || (ranks && src >= ranks))
        fail_node(
            g, n, "src: expected a place in group \"%s\"%s, found %lld", text_attr(n, "group"),
            ranks ? arena_printf(g->a, ", 0 to %lld", (long long)ranks - 1) : "", (long long)src);
    out[0] = n->in[0]->type;
    return 1;
}

static int permute_infer(const Graph *g, const Node *n, Type *out)
{
    int64_t shift = n->attr[0].i;
    if (shift <= -INT_MAX || shift >= INT_MAX)
        fail_node(g, n, "shift: expected places of a group, found %lld", (long long)shift);
    out[0] = n->in[0]->type;
    return 1;
}

/* ---- reductions ---- */

/* The next member's element x to that of those before, y; a NaN stays. */
#define MERGES(name, type)                              \
    INLINE type name##_add(type y, type x)              \
    {                                                   \
        return y + x;                                   \
    }                                                   \
    INLINE type name##_multiply(type y, type x)         \
    {                                                   \
        return y * x;                                   \
    }                                                   \
    INLINE type name##_larger(type y, type x)           \
    {                                                   \
        return (y < x) | ((x != x) & (y == y)) ? x : y; \
    }                                                   \
    INLINE type name##_smaller(type y, type x)          \
    {                                                   \
        return (x < y) | ((x != x) & (y == y)) ? x : y; \
    }

MERGES(f32, float)
MERGES(f64, double)

/* Integers wrap. */
INLINE int64_t int_add(int64_t y, int64_t x)
{
    return (int64_t)((uint64_t)y + (uint64_t)x);
}

INLINE int64_t int_multiply(int64_t y, int64_t x)
{
    return (int64_t)((uint64_t)y * (uint64_t)x);
}

INLINE int64_t int_larger(int64_t y, int64_t x)
{
    return MAX(y, x);
}

INLINE int64_t int_smaller(int64_t y, int64_t x)
{
    return MIN(y, x);
}

#define SAME(x)     (x)
#define NOT_ZERO(x) ((x) != 0)

enum { BLOCK = 1024 };

/* Blocks of elements that stay in the first cache while the members' are added. */
#define EACH_ELEMENT INDEPENDENT for (int64_t i = 0; i < m; i++)
#define MERGE(merge, load)              \
    EACH_ELEMENT                        \
    {                                   \
        y[i] = merge(y[i], load(x[i])); \
    }                                   \
    break
#define REDUCE(name, type, wide, merges, load, store)                              \
    KERNEL(void, reduce_##name,                                                    \
           (ReduceOp op, int count, const void *const *from, int64_t n, void *to), \
           (op, count, from, n, to))                                               \
    {                                                                              \
        wide y[BLOCK];                                                             \
        bool sums = op == SUM || op == AVG;                                        \
        for (int64_t at = 0; at < n; at += BLOCK) {                                \
            int64_t m = MIN(n - at, BLOCK);                                        \
            const type *first = (const type *)from[0] + at;                        \
            type *result = (type *)to + at;                                        \
            EACH_ELEMENT                                                           \
            {                                                                      \
                y[i] = sums ? 0 : load(first[i]);                                  \
            }                                                                      \
            for (int k = sums ? 0 : 1; k < count; k++) {                           \
                const type *x = (const type *)from[k] + at;                        \
                switch (op) {                                                      \
                case MAXIMUM: MERGE(merges##_larger, load);                        \
                case MINIMUM: MERGE(merges##_smaller, load);                       \
                case PRODUCT: MERGE(merges##_multiply, load);                      \
                default: MERGE(merges##_add, load);                                \
                }                                                                  \
            }                                                                      \
            for (int64_t i = 0; op == AVG && i < m; i++)                           \
                y[i] /= (wide)count;                                               \
            EACH_ELEMENT                                                           \
            {                                                                      \
                result[i] = (type)store(y[i]);                                     \
            }                                                                      \
        }                                                                          \
    }

REDUCE(f64, double, double, f64, SAME, SAME)
REDUCE(f32, float, float, f32, SAME, SAME)
REDUCE(f16, uint16_t, float, f32, v_f16_to_f32, v_f32_to_f16)
REDUCE(bf16, uint16_t, float, f32, v_bf16_to_f32, v_f32_to_bf16)
REDUCE(i64, int64_t, int64_t, int, SAME, SAME)
REDUCE(i32, int32_t, int64_t, int, SAME, SAME)
REDUCE(u8, uint8_t, int64_t, int, SAME, SAME)
REDUCE(bool, uint8_t, int64_t, int, SAME, NOT_ZERO)

void collective_reduce(const Node *n, int count, const void *const *x, int64_t nelem, void *y)
{
    static void (*const reduce[])(ReduceOp, int, const void *const *, int64_t, void *) = {
        [F64] = reduce_f64, [F32] = reduce_f32, [F16] = reduce_f16, [BF16] = reduce_bf16,
        [I64] = reduce_i64, [I32] = reduce_i32, [U8] = reduce_u8,   [BOOL] = reduce_bool,
    };
    reduce[n->in[0]->type.dtype](reduce_op(n), count, x, nelem, y);
}

/* ---- kernels: running without the other ranks is refused ---- */

static bool accepts(const Call *c)
{
    bool all = true;
    for (int i = 0; i < c->nin; i++)
        all &= tensor_contiguous(&c->in[i]);
    return all;
}

/* The elements that are received before they are reduced: a part from each other rank. */
static int64_t received_elements(int64_t ranks, int64_t nelem)
{
    if (!ranks) /* not known: the bound for any number that divides it */
        return nelem;
    return (ranks - 1) * ((nelem + ranks - 1) / ranks);
}

int64_t collective_received(Ctx *ctx, const Call *c)
{
    int64_t ranks = group_ranks(c->mesh, c->node), nelem = 0;
    (void)ctx;
    for (int i = 0; i < c->nin; i++)
        nelem += received_elements(ranks, tensor_nelem(&c->in[i]));
    return nelem * dtype_size(c->in[0].dtype);
}

int collective_alone(Call *c)
{
    const char *group = text_attr(c->node, "group");
    return run_fail(c,
                    "needs the other ranks of group \"%s\", which this program has not joined: "
                    "start them by mpirun, or as threads by tn_ranks_run()",
                    group);
}

static const Kernel move_kernels[] = {
    {.name = "ranks", .accepts = accepts, .run = collective_alone}, {0}};
static const Kernel reduce_kernels[] = {
    {.name = "ranks",
     .accepts = accepts,
     .workspace = collective_received,
     .run = collective_alone},
    {0},
};

/* ---- cuts: several tensors at once are cut by nobody ---- */

static void reduce_factors(const Node *n, Factors *f)
{
    if (n->nin == 1)
        factors_elementwise(n, f);
    else
        factors_whole(n, f);
}

static void inner_factors(const Node *n, Factors *f)
{
    if (n->nin == 1)
        factors_inner(n, f);
    else
        factors_whole(n, f);
}

#define RULES(name, mathematics, operands, fields, infers, axes, list, aliases) \
    const OpRules op_##name = {.math = mathematics,                             \
                               .example = operands,                             \
                               .attrs = fields,                                 \
                               .infer = infers,                                 \
                               .cost = cost_bytes,                              \
                               .factors = axes,                                 \
                               .kernels = list,                                 \
                               .ref = collective_alone,                         \
                               .alias = aliases};
#define FUNCTIONAL(name, ...) RULES(name, __VA_ARGS__, "_c10d_functional." #name ".default")

FUNCTIONAL(all_reduce, "y = reduce_op of x over the ranks of the group",
           "f32[4, 6] reduce_op=\"sum\" group=\"0\"", all_reduce_attrs, reduce_infer,
           reduce_factors, reduce_kernels)
FUNCTIONAL(all_gather_into_tensor, "y = x of the group's ranks, joined along axis 0",
           "f32[4, 6] group_size=2 group=\"0\"", gather_attrs, gather_infer, inner_factors,
           move_kernels)
FUNCTIONAL(reduce_scatter_tensor, "y = this rank's part along axis 0 of x reduced over the group",
           "f32[4, 6] reduce_op=\"sum\" group_size=2 group=\"0\"", scatter_attrs, scatter_infer,
           inner_factors, reduce_kernels)
FUNCTIONAL(all_to_all_single, "y = the parts along axis 0 that the group's ranks send to this one",
           "f32[4, 6] group=\"0\"", all_to_all_attrs, all_to_all_infer, factors_inner, move_kernels)
FUNCTIONAL(broadcast, "y = x of the group's rank src", "f32[4, 6] src=0 group=\"0\"",
           broadcast_attrs, broadcast_infer, factors_elementwise, move_kernels)
RULES(permute_tensor, "y = x of the group's rank `shift` places further on, around",
      "f32[4, 6] shift=1 group=\"0\"", permute_attrs, permute_infer, factors_elementwise,
      move_kernels, NULL)
