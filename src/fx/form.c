/* What `aten.alias` is to gradients in a module's code, which is as far as its form tells where in
 * PyTorch it was traced.
 *
 * Before dispatch (torch.export, make_fx with pre_dispatch) x[:] is alias and x.detach() is detach:
 * an alias passes the gradient. After it (make_fx, run_decompositions) both are alias, and nothing
 * tells them apart. A trace is one of before where it has an overload that dispatch would have
 * taken apart, or, in a program of torch.export, one that run_decompositions would have; and none
 * that only these leave behind, as decompositions of someone's own do. reshape tells nothing:
 * inductor puts it back. Nor do comments: they show the line of a caller. */
#include "fx.h"

#include <ctype.h>
#include <string.h>

/* clang-format off */
static const char *const dispatched[] = { /* what is taken apart on the way */
    "broadcast_tensors", "chunk", "contiguous", "cross_entropy_loss", "diff", "dropout", "einsum",
    "expand_as", "flatten.using_ints", "l1_loss", "layer_norm", "linear", "log_softmax.int", "matmul",
    "movedim.int", "nll_loss_nd", "outer", "pad", "positive", "rms_norm",
    "scaled_dot_product_attention", "softmax.int", "square", "std", "std.dim", "to.dtype",
    "to.dtype_layout", "type_as", "unflatten.int", "var", "var.dim", "view_as", NULL};
static const char *const decomposed[] = { /* by torch.export.default_decompositions() */
    "arange", "arange.start", "dot", "mse_loss", "mv", "new_zeros", "ones", "ones_like",
    "rsub.Scalar", "silu", "split.Tensor", "squeeze.dim", "stack", "sum", "t", "transpose.int",
    "unbind.int", "zeros", "zeros_like", NULL};
static const char *const left[] = { /* what only dispatch and decompositions make */
    "_log_softmax", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_softmax", "_to_copy", "_unsafe_view",
    "native_dropout", "native_layer_norm", "nll_loss_forward", NULL};
/* clang-format on */

/* Whether "torch.ops.aten.sum.default" is among the names, which leave out `default`. */
static bool among(const char *const *name, const char *call)
{
    if (strncmp(call, "torch.ops.aten.", 15) != 0)
        return false;
    for (call += 15; *name; name++) {
        size_t n = strlen(*name);
        if (!strncmp(call, *name, n) && (!call[n] || !strcmp(call + n, ".default")))
            return true;
    }
    return false;
}

static bool calls(const Expr *e, const char *const *name)
{
    if (e && e->kind == EX_CALL && among(name, e->s))
        return true;
    for (int i = 0; e && i < e->count; i++)
        if (calls(e->item[i], name))
            return true;
    return false;
}

static bool module_calls(const FxModule *m, const char *const *name)
{
    for (int i = 0; i < m->nstatement; i++)
        if (calls(m->statement[i].value, name))
            return true;
    return calls(m->result, name);
}

/* torch.export calls a parameter p_PATH, a buffer b_PATH; make_fx ends each name in _1, _2, ... */
static bool exported_input(const char *s)
{
    size_t n = strlen(s);
    return (!strncmp(s, "p_", 2) || !strncmp(s, "b_", 2)) && !isdigit((unsigned char)s[n - 1]);
}

static bool exported(const FxModule *m)
{
    bool any = m->exported;
    for (int i = 0; i < m->nin; i++)
        any |= exported_input(m->in[i].name);
    return any;
}

const char *fx_alias_gradient(const FxModule *m)
{
    bool before = module_calls(m, dispatched) || (exported(m) && module_calls(m, decomposed));
    return before && !module_calls(m, left) ? "pass" : "unknown";
}
