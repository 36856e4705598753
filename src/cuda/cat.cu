/* cat, cat_ring and slice_backward on CUDA (cat.c): copies, and zeros around one. */
#include "copy.cuh"
extern "C" {
#include "../op/view.h"
}

enum { RANGE = 1 };

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int cat_run(Call *c)
{
    int axis = cat_axis(c->node);
    for (int i = 0; i < c->nin; i++) {
        Tensor to = c->out[0];
        narrow_axis(&to, axis, cat_start(c->node, i), c->in[i].dim[axis], 1);
        int e = cuda_copy(c, &to, &c->in[i]);
        if (e)
            return e;
    }
    return 0;
}

static int slice_backward_run(Call *c)
{
    Tensor to = c->out[0];
    Range r = slice_range(c->node->attr + RANGE, &c->node->out[0]->type);
    int e;
    if (r.step == 1) {
        e = fill_beside(c, &to, r.axis, r.start, r.start + r.count, 0);
    } else {
        e = cuda_fill(c, &to, 0);
        narrow_axis(&to, r.axis, r.start, r.count, r.step);
    }
    return e ? e : cuda_copy(c, &to, &c->in[0]);
}

CUDA_KERNELS(cat) = {{.name = "copy", .accepts = accepts, .run = cat_run, .strided_out = true}, {}};
CUDA_KERNELS(cat_ring) = {
    {.name = "copy", .accepts = accepts, .run = cat_run, .strided_out = true}, {}};
CUDA_KERNELS(slice_backward) = {
    {.name = "copy", .accepts = accepts, .run = slice_backward_run, .strided_out = true}, {}};
