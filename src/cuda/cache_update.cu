/* cache_update on CUDA (cache_update.c): only where the new positions lie is known when it runs. */
#include "copy.cuh"
#include "pointwise.cuh"

static const char *const faults[] = {"position %lld: expected 0 to %lld", NULL};

/* The place of the new positions. */
struct CachePlace {
    const int64_t *position;
    int64_t most, stride;
    Fault *fault;
    int step;
};

/* s is x's positions, with the strides of the cache and of x. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) assign(Positions s, CachePlace p, T *y, const T *x)
{
    int64_t i = thread_number(), position = *p.position, at[2];
    if (position < 0 || position > p.most) {
        note(p.fault, p.step, 0, position, p.most);
        return;
    }
    if (i >= s.nelem || stopped(s.stop))
        return;
    locate(s, i, at);
    y[position * p.stride + at[0]] = x[at[1]];
}

/* One block at least, which checks the position. */
template <typename T> static int assign_of(Call *c, const Walk &w, const CachePlace &p)
{
    unsigned grid = grid_for(MAX(w.nelem, 1), BLOCK);
    return LAUNCH(c, (assign<T>), grid, BLOCK, 0, positions_of(c, &w), p, data<T>(c->out[0]),
                  data<const T>(c->in[1]));
}

static int run(Call *c)
{
    const Tensor &y = c->out[0], &x = c->in[1];
    CachePlace p = {data<int64_t>(c->in[2]), y.dim[1] - x.dim[1], y.stride[1], c->fault, c->step};
    Tensor to = y;
    Walk w;
    memcpy(to.dim, x.dim, sizeof to.dim);
    walk_make(&w, &to, 1, &x);
    int e = cuda_copy(c, &y, &c->in[0]);
    if (e)
        return e;
    switch (dtype_size(y.dtype)) {
    case 1: return assign_of<uint8_t>(c, w, p);
    case 2: return assign_of<uint16_t>(c, w, p);
    case 4: return assign_of<uint32_t>(c, w, p);
    default: return assign_of<uint64_t>(c, w, p);
    }
}

CUDA_KERNELS(cache_update) = {
    {.name = "cache_update_any", .accepts = accepts_all, .run = run, .faults = faults}, {}};
