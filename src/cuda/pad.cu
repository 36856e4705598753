/* slice_scatter and constant_pad_nd on CUDA (pad.c): copies, and fills around one. */
#include "copy.cuh"
extern "C" {
#include "../op/view.h"
}

enum { SRC = 1 };
enum { PAD, VALUE };

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int slice_scatter_run(Call *c)
{
    Tensor to = c->out[0];
    Range r = slice_range(c->node->attr, &c->node->in[0]->type);
    int e = cuda_copy(c, &c->out[0], &c->in[0]);
    narrow_axis(&to, r.axis, r.start, r.count, r.step);
    return e ? e : cuda_copy(c, &to, &c->in[SRC]);
}

/* Axis by axis: what lies beside x is filled, then the frame is cut to the rest. */
static int pad_run(Call *c)
{
    const Attr *pad = &c->node->attr[PAD];
    double value = c->node->attr[VALUE].f;
    Tensor x = c->in[0], y = c->out[0];
    for (int i = 0; i < pad->i / 2; i++) {
        int axis = x.rank - 1 - i;
        int64_t before = pad->ints[2 * i], behind = pad->ints[2 * i + 1];
        int64_t kept = x.dim[axis] + MIN(before, 0) + MIN(behind, 0);
        if (kept <= 0)
            return cuda_fill(c, &y, value);
        int e = fill_beside(c, &y, axis, MAX(before, 0), MAX(before, 0) + kept, value);
        if (e)
            return e;
        narrow_axis(&x, axis, MAX(-before, 0), kept, 1);
    }
    return cuda_copy(c, &y, &x);
}

CUDA_KERNELS(slice_scatter) = {
    {.name = "copy", .accepts = accepts, .run = slice_scatter_run, .strided_out = true}, {}};
CUDA_KERNELS(constant_pad_nd) = {
    {.name = "copy", .accepts = accepts, .run = pad_run, .strided_out = true}, {}};
