/* Copies of views on CUDA, for view.c, permute.c, expand.c, slice.c and strided.c. */
#include "copy.cuh"
extern "C" {
#include "../op/view.h"
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

/* Whose elements alone can be counted through. */
static bool accepts_contiguous(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

/* A reshape without strides is a dense copy in the operand's own shape. */
static int run(Call *c)
{
    for (int k = 0; k < c->nout; k++) {
        Tensor to = c->out[k], from;
        if (!view_operand(c, k, &from)) {
            to.rank = from.rank;
            memcpy(to.dim, from.dim, sizeof to.dim);
            tensor_fill_strides(&to);
        }
        int e = cuda_copy(c, &to, &from);
        if (e)
            return e;
    }
    return 0;
}

#define VIEW(op, takes) CUDA_KERNELS(op) = {{.name = "copy", .accepts = takes, .run = run}, {}};
VIEW(view, accepts)
VIEW(permute, accepts)
VIEW(t, accepts)
VIEW(transpose, accepts)
VIEW(expand, accepts)
VIEW(slice, accepts)
VIEW(split, accepts)
VIEW(squeeze, accepts)
VIEW(unsqueeze, accepts)
VIEW(detach, accepts)
VIEW(alias, accepts)
VIEW(diagonal, accepts)
VIEW(unfold, accepts)
VIEW(as_strided, accepts_contiguous)
