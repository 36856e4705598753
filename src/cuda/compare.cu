/* Comparisons, logic and choice on CUDA (compare.c). */
#include "pointwise.cuh"

#define COMPARE(name)                                                        \
    LANE(name)                                                               \
    static int name##_run(Call *c)                                           \
    {                                                                        \
        DType d = c->in[0].dtype;                                            \
        if (d == F32)                                                        \
            return pointwise<RUNS, bool, float, float>(c, Lane_##name());    \
        if (d == BF16)                                                       \
            return pointwise<RUNS, bool, bf16, bf16>(c, Lane_##name());      \
        BY_DTYPE(d, T, return (pointwise<0, bool, T, T>(c, Lane_##name()))); \
        return run_fail(c, "no kernel for %s", dtype_name(d));               \
    }                                                                        \
    POINTWISE_KERNELS(name, name##_run);

COMPARE(eq)
COMPARE(ne)
COMPARE(lt)
COMPARE(le)
COMPARE(gt)
COMPARE(ge)

/* ---- logic ---- */

#define LOGICAL(name, ...)                                           \
    LANE(name)                                                       \
    static int name##_run(Call *c)                                   \
    {                                                                \
        return pointwise<RUNS, bool, __VA_ARGS__>(c, Lane_##name()); \
    }                                                                \
    POINTWISE_KERNELS(name, name##_run);

LOGICAL(logical_and, bool, bool)
LOGICAL(logical_or, bool, bool)
LOGICAL(logical_not, bool)

/* ---- isfinite ---- */

LANE(isfinite)

static int isfinite_run(Call *c)
{
    BY_FLOAT(c->in[0].dtype, T, return (pointwise<RUNS, bool, T>(c, Lane_isfinite())));
    return run_fail(c, "no kernel for %s", dtype_name(c->in[0].dtype));
}
POINTWISE_KERNELS(isfinite, isfinite_run);

/* ---- where: moves bits ---- */

LANE(where)

template <typename T> static int where_of(Call *c)
{
    return pointwise<RUNS, T, bool, T, T>(c, Lane_where());
}

static int where_run(Call *c)
{
    switch (dtype_size(c->out[0].dtype)) {
    case 1: return where_of<uint8_t>(c);
    case 2: return where_of<uint16_t>(c);
    case 4: return where_of<uint32_t>(c);
    default: return where_of<uint64_t>(c);
    }
}
POINTWISE_KERNELS(where, where_run);
