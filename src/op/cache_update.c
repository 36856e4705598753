/* cache_update: the keys or values of new positions go into a cache of them, for generating text a
 * few tokens at a time: y = cache[B, S, H, D] with y[:, position + t] = x[:, t] for t < T, of x
 * [B, T, H, D]. position is an operand, so one plan serves every step; the result takes the cache's
 * storage, so that only T positions are written. (XLA's dynamic_update_slice, with axis 1 alone.)
 *
 * Any dtype, bits moved as they are. A position outside of [0, S - T] is an error of the run. Has
 * no gradient: nothing is trained through a cache. */
#include "op.h"

#include <string.h>

static int infer(const Graph *g, const Node *n, Type *out)
{
    const Type *cache = &n->in[0]->type, *x = &n->in[1]->type;
    Type scalar = type_make(I64, 0, NULL), want = *cache;
    need_rank(g, n, 0, 4, 4);
    need_rank(g, n, 1, 4, 4);
    want.dim[1] = x->dim[1];
    need_type(g, n, 1, &want);
    if (x->dim[1] > cache->dim[1])
        fail_node(g, n, "operand 1: expected at most %lld positions, found %s",
                  (long long)cache->dim[1], type_text(g->a, x));
    need_type(g, n, 2, &scalar);
    out[0] = *cache;
    return 1;
}

/* In place: what is new is read and written. */
static Cost cost(const Node *n)
{
    double nbytes = (double)type_nbytes(&n->in[1]->type);
    return (Cost){.nread = nbytes + 8, .nwrite = nbytes};
}

/* Positions stay whole: which part would hold the new ones is known only when it runs. */
static void factors(const Node *n, Factors *f)
{
    const Type *cache = &n->in[0]->type, *x = &n->in[1]->type;
    for (int d = 0; d < 4; d++) {
        if (d == 1 && x->dim[1] != 1)
            axis_add(&f->in[1], 1, factor_new(f, FACTOR_REPLICATE, x->dim[1]));
        if (cache->dim[d] == 1)
            continue;
        int k = factor_new(f, d == 1 ? FACTOR_REPLICATE : FACTOR_PARALLEL, cache->dim[d]);
        axis_add(&f->in[0], d, k);
        axis_add(&f->out[0], d, k);
        if (d != 1)
            axis_add(&f->in[1], d, k);
    }
}

/* The part of y that x replaces in *to; 0, or a failed run. */
static int target(Call *c, Tensor *to)
{
    const Tensor *x = &c->in[1];
    int64_t position = tensor_int(&c->in[2], 0), most = c->out[0].dim[1] - x->dim[1];
    if (position < 0 || position > most)
        return run_fail(c, "position %lld: expected 0 to %lld", (long long)position,
                        (long long)most);
    *to = c->out[0];
    to->dim[1] = x->dim[1];
    to->data += position * to->stride[1] * dtype_size(to->dtype);
    return 0;
}

static void assign(const Tensor *to, const Tensor *from)
{
    int64_t ix[TN_RANK] = {0};
    bool integer = !dtype_float(to->dtype);
    if (!tensor_nelem(to))
        return;
    do {
        int64_t t = tensor_index(to, ix), f = tensor_index(from, ix), size = dtype_size(to->dtype);
        if (integer) /* exact beyond 2^53 */
            memcpy(to->data + t * size, from->data + f * size, (size_t)size);
        else
            tensor_set(to, t, tensor_get(from, f));
    } while (next_index(to->rank, to->dim, ix));
}

static int ref(Call *c)
{
    Tensor to;
    if (target(c, &to))
        return -1;
    assign(&c->out[0], &c->in[0]);
    assign(&to, &c->in[1]);
    return 0;
}

static bool accepts(const Call *c)
{
    return c->nin == 3;
}

static int run(Call *c)
{
    Tensor to;
    if (target(c, &to))
        return -1;
    if (c->out[0].data != c->in[0].data)
        strided_copy(&c->out[0], &c->in[0]);
    strided_copy(&to, &c->in[1]);
    return 0;
}

static const Kernel kernels[] = {{.name = "cache_update_any", .accepts = accepts, .run = run}, {0}};

const OpRules op_cache_update = {
    .math = "y = cache, but y[:, position + t] = x[:, t]",
    .example = "f32[1, 16, 2, 8] f32[1, 1, 2, 8] i64[]",
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .inplace = {1},
    .kernels = kernels,
    .ref = ref,
};
