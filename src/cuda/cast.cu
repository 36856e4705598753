/* _to_copy and clone on CUDA (cast.c). */
#include "copy.cuh"
#include "pointwise.cuh"

template <typename To> struct Cast {
    template <typename From> __device__ To operator()(From x) const
    {
        return lane__to_copy<From, To>(x);
    }
};

template <typename From, typename To> static int cast(Call *c)
{
    constexpr bool common = sizeof(From) + sizeof(To) == 6 && is_floating<From> && is_floating<To>;
    return pointwise < common ? RUNS | TILES : 0, To, From > (c, Cast<To>());
}

template <typename From> static int cast_from(Call *c)
{
    DType to = c->out[0].dtype;
    if (to == BOOL)
        return cast<From, bool>(c);
    BY_NUMBER(to, To, return (cast<From, To>(c)));
    return run_fail(c, "no kernel for %s", dtype_name(to));
}

static int to_copy_run(Call *c)
{
    DType from = c->in[0].dtype;
    if (from == c->out[0].dtype)
        return cuda_copy(c, &c->out[0], &c->in[0]);
    if (from == BOOL)
        return cast_from<bool>(c);
    BY_NUMBER(from, From, return cast_from<From>(c));
    return run_fail(c, "no kernel for %s", dtype_name(from));
}
POINTWISE_KERNELS(_to_copy, to_copy_run);

static int clone_run(Call *c)
{
    return cuda_copy(c, &c->out[0], &c->in[0]);
}
CUDA_KERNELS(clone) = {
    {.name = "copy", .accepts = accepts_all, .run = clone_run, .strided_out = true}, {}};
