/* rms_norm and its backward on CUDA (rms_norm.c has the formulas). */
#include "norm.cuh"

static bool accepts(const Call *c)
{
    return norm_accepts(c, c->in[0].rank - 1, 0);
}

static int run(Call *c)
{
    return norm_run<true>(c, c->in[0].rank - 1, c->node->attr[0].f);
}

CUDA_KERNELS(rms_norm) = {{.name = "rms_norm_rows", .accepts = accepts, .run = run}, {}};

static NormBackward backward_of(const Call *c)
{
    return norm_backward_of(c, c->in[1].rank - 1, 3);
}

static bool backward_accepts(const Call *c)
{
    return norm_accepts(c, c->in[1].rank - 1, 1);
}

static int64_t backward_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    return norm_backward_work<true>(backward_of(c), c->in[1].dtype);
}

static int backward_run(Call *c)
{
    return norm_backward_run<true>(c, backward_of(c));
}

CUDA_KERNELS(rms_norm_backward) = {{.name = "rms_norm_backward_rows",
                                    .accepts = backward_accepts,
                                    .workspace = backward_workspace,
                                    .run = backward_run},
                                   {}};
