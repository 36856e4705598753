/* native_layer_norm and its backward on CUDA (layer_norm.c has the formulas). */
#include "norm.cuh"

static bool accepts(const Call *c)
{
    int lead = c->in[0].rank - (int)c->node->attr[0].i;
    return norm_accepts(c, lead, 0);
}

static int run(Call *c)
{
    int lead = c->in[0].rank - (int)c->node->attr[0].i;
    return norm_run<false>(c, lead, c->node->attr[1].f);
}

CUDA_KERNELS(native_layer_norm) = {{.name = "layer_norm_rows", .accepts = accepts, .run = run}, {}};

static NormBackward backward_of(const Call *c)
{
    return norm_backward_of(c, c->in[1].rank - (int)c->node->attr[0].i, 4);
}

static bool backward_accepts(const Call *c)
{
    return norm_accepts(c, c->in[1].rank - (int)c->node->attr[0].i, 1);
}

static int64_t backward_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return norm_backward_work<false>(backward_of(c), c->in[1].dtype);
}

static int backward_run(Call *c)
{
    return norm_backward_run<false>(c, backward_of(c));
}

CUDA_KERNELS(native_layer_norm_backward) = {{.name = "layer_norm_backward_rows",
                                             .accepts = backward_accepts,
                                             .workspace = backward_workspace,
                                             .run = backward_run},
                                            {}};
