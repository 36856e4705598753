/* flip on CUDA (flip.c): a copy from negative strides. */
#include "copy.cuh"
extern "C" {
#include "../op/view.h"
}

enum { DIMS };

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int run(Call *c)
{
    const Attr *dims = &c->node->attr[DIMS];
    Tensor x = c->in[0];
    for (int i = 0; i < dims->i && tensor_nelem(&x); i++) {
        int d = axis_of(dims->ints[i], x.rank);
        narrow_axis(&x, d, x.dim[d] - 1, x.dim[d], -1);
    }
    return cuda_copy(c, &c->out[0], &x);
}

CUDA_KERNELS(flip) = {{.name = "copy", .accepts = accepts, .run = run, .strided_out = true}, {}};
