/* Decides whether `aten.alias` passes gradients in a module's code, from the form of the code,
 * which may tell at which stage of PyTorch it was traced.
 *
 * Before dispatch (torch.export, make_fx with pre_dispatch) x[:] is alias and x.detach() is detach,
 * so an alias passes the gradient. After dispatch (make_fx), and after decompositions, both are
 * alias, whatever ops the table of decompositions was made to keep; so one op that is kept tells
 * nothing. Evidence for "before dispatch": the program contains a module that ran without gradients
 * (decompositions remove those); a detach that is not an alias, with other evidence; more kinds of
 * calls than a table is made to keep, both of those that dispatch takes apart and of those that
 * only decompositions do. Evidence against it: calls that only dispatch and decompositions leave.
 * No evidence: reshape, which inductor puts back, and comments, which show the line of a caller. */
#include "fx.h"

#include <string.h>

/* clang-format off */
static const char *const dispatched[] = { /* what is taken apart on the way */
    "broadcast_tensors", "chunk", "contiguous", "cross_entropy_loss", "diff", "dropout", "einsum",
    "expand_as", "flatten.using_ints", "l1_loss", "layer_norm", "linear", "log_softmax.int",
    "matmul", "movedim.int", "nll_loss_nd", "outer", "pad", "positive", "rms_norm",
    "scaled_dot_product_attention", "softmax.int", "square", "std", "std.dim", "to.dtype",
    "to.dtype_layout", "type_as", "unflatten.int", "var", "var.dim", "view_as", NULL};
static const char *const decomposed[] = { /* by torch.export's table */
    "arange", "arange.start", "dot", "mse_loss", "mv", "new_zeros", "ones", "ones_like",
    "rsub.Scalar", "silu", "split.Tensor", "squeeze.dim", "stack", "sum", "t", "transpose.int",
    "unbind.int", "zeros", "zeros_like", NULL};
static const char *const left[] = { /* what only dispatch and decompositions make */
    "_log_softmax", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_softmax", "_to_copy", "_unsafe_view",
    "arange.start_step", "convolution", "native_dropout", "native_group_norm", "native_layer_norm",
    "nll_loss_forward", NULL};
static const char *const detached[] = {"detach", NULL};
/* clang-format on */

enum { MANY = 8, DECOMPOSED = 2 }; /* kinds of calls that show the form, and of the second list */

/* The index of the name that "torch.ops.aten.linear.default" is without torch.ops.aten; -1: none.
 */
static int find(const char *const *name, const char *call)
{
    if (strncmp(call, "torch.ops.aten.", 15) != 0)
        return -1;
    call += 15;
    for (int i = 0; name[i]; i++) {
        size_t n = strlen(name[i]);
        if (!strncmp(call, name[i], n) && (!call[n] || !strcmp(call + n, ".default")))
            return i;
    }
    return -1;
}

static uint64_t calls(const Expr *e, const char *const *name)
{
    int i = e && e->kind == EX_CALL ? find(name, e->s) : -1;
    uint64_t found = i < 0 ? 0 : UINT64_C(1) << i;
    for (int k = 0; e && k < e->count; k++)
        found |= calls(e->item[k], name);
    return found;
}

/* How many of the names, at most 64, the module calls. */
static int count_calls(const FxModule *m, const char *const *name)
{
    uint64_t found = calls(m->result, name);
    int count = 0;
    for (int i = 0; i < m->nstatement; i++)
        found |= calls(m->statement[i].value, name);
    for (; found; found &= found - 1)
        count++;
    return count;
}

/* A sum over a list of no axes, which is what decompositions make of sum.default. */
static bool sums_no_axes(const Expr *e)
{
    if (e && e->kind == EX_CALL && !strcmp(e->s, "torch.ops.aten.sum.dim_IntList") &&
        e->count > 1 && e->item[1]->kind == EX_LIST && !e->item[1]->count)
        return true;
    for (int i = 0; e && i < e->count; i++)
        if (sums_no_axes(e->item[i]))
            return true;
    return false;
}

static bool was_decomposed(const FxModule *m)
{
    for (int i = 0; i < m->nstatement; i++)
        if (sums_no_axes(m->statement[i].value))
            return true;
    return count_calls(m, left) > 0;
}

const char *fx_alias_gradient(const FxModule *m)
{
    int by_dispatch = count_calls(m, dispatched), later = count_calls(m, decomposed);
    bool many = by_dispatch + later >= MANY && by_dispatch && later >= DECOMPOSED;
    bool before = m->wraps || (by_dispatch && count_calls(m, detached)) || many;
    return before && !was_decomposed(m) ? "pass" : "unknown";
}
