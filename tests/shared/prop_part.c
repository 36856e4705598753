/* Bodies of `fused` on random operands, their results whole and as parts of larger tensors: one of
 * them and all of them, cut along any axis. */
#include "prop.h"

#include <string.h>

static Tensor random_tensor(Arena *a, Rng *r, const Type *type)
{
    Tensor x = tensor_new(a, type, 0);
    for (int64_t i = 0, n = tensor_nelem(&x); i < n; i++) {
        double u = rng_uniform(r);
        tensor_set(&x, i, dtype_float(type->dtype) ? 2 * u - 1 : u < 0.5);
    }
    return x;
}

/* A call without data; cut[k] >= 0: result k is a part along that axis. */
static Call call_of(Arena *a, const Node *n, const int *cut)
{
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    c.in = NEWN(a, Tensor, n->nin);
    c.out = NEWN(a, Tensor, n->nout);
    for (int i = 0; i < n->nin + n->nout; i++) {
        const Type *type = i < n->nin ? &n->in[i]->type : &n->out[i - n->nin]->type;
        Tensor *x = i < n->nin ? &c.in[i] : &c.out[i - n->nin];
        *x = (Tensor){.dtype = type->dtype, .rank = type->rank};
        memcpy(x->dim, type->dim, sizeof x->dim);
        tensor_fill_strides(x);
        if (i >= n->nin && cut[i - n->nin] >= 0)
            part_lay(x, cut[i - n->nin]);
    }
    return c;
}

/* Runs the kernel; out[k] become contiguous. Whether it takes the call, and does not fail. */
static bool run_parts(Trial *t, const Node *n, const Tensor *in, const int *cut, Tensor *out)
{
    enum { FILL = 0x3c };
    const Kernel *kernel = n->op->rules->kernels;
    Call c = call_of(t->a, n, cut);
    if (!kernel->accepts(&c))
        return false;
    kernel_prepare(kernel, &c, t->a);
    c.work = guarded_alloc(t->a, c.nbytes_work, FILL);
    for (int i = 0; i < n->nin; i++)
        c.in[i].data = in[i].data;
    for (int k = 0; k < n->nout; k++) {
        Tensor *y = &c.out[k], shape = *y;
        int64_t size = dtype_size(y->dtype);
        y->data = cut[k] < 0 ? guarded_alloc(t->a, tensor_nbytes(y), FILL)
                             : guarded_alloc(t->a, part_lay(&shape, cut[k]) * size, FILL) + size;
    }
    if (kernel->run(&c))
        return false; /* an index out of its range */
    for (int k = 0; k < n->nout; k++) {
        Tensor shape = c.out[k];
        if (cut[k] >= 0 && !part_alone(t->a, &c.out[k], part_lay(&shape, cut[k]), FILL))
            prop_fail(t, "%s: wrote beside result %d, a part", n->out[0]->name, k);
        out[k] = tensor_copy(t->a, &c.out[k], c.out[k].dtype);
    }
    return true;
}

static void check_node(Trial *t, const Node *n, Rng *r)
{
    Tensor *in = NEWN(t->a, Tensor, n->nin), *want = NEWN(t->a, Tensor, n->nout),
           *got = NEWN(t->a, Tensor, n->nout);
    int *cut = NEWN(t->a, int, n->nout), one = (int)rng_below(r, n->nout);
    for (int i = 0; i < n->nin; i++)
        in[i] = random_tensor(t->a, r, &n->in[i]->type);
    memset(cut, -1, sizeof *cut * (size_t)n->nout);
    if (!run_parts(t, n, in, cut, want))
        return;
    for (int all = 0; all < 2; all++) {
        for (int k = 0; k < n->nout; k++)
            if (k == one || all)
                cut[k] = (int)rng_below(r, n->out[k]->type.rank + 1);
        if (!run_parts(t, n, in, cut, got))
            continue;
        t->fused[PARTS]++;
        for (int k = 0; k < n->nout; k++)
            if (!tensor_same_bits(&got[k], &want[k]))
                prop_fail(t, "%s: result %d has other bits as a part", n->out[0]->name, k);
    }
}

void prop_parts(Trial *t, const Graph *g)
{
    Rng r = {t->seed, 1 << 20};
    for (const Node *n = g->first; n && !t->failure; n = n->next)
        if (n->op->region == FUSED)
            check_node(t, n, &r);
}
