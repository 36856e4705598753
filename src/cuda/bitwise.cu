/* Operations on bits on CUDA (bitwise.c). */
#include "pointwise.cuh"

#define BITWISE(name, ...)                                        \
    LANE(name)                                                    \
    template <typename T> static int name##_of(Call *c)           \
    {                                                             \
        return pointwise<RUNS, T, __VA_ARGS__>(c, Lane_##name()); \
    }                                                             \
    static int name##_run(Call *c)                                \
    {                                                             \
        DType d = c->out[0].dtype;                                \
        if (d == BOOL)                                            \
            return name##_of<bool>(c);                            \
        BY_INTEGER(d, T, return name##_of<T>(c));                 \
        return run_fail(c, "no kernel for %s", dtype_name(d));    \
    }                                                             \
    POINTWISE_KERNELS(name, name##_run);

BITWISE(bitwise_and, T, T)
BITWISE(bitwise_or, T, T)
BITWISE(bitwise_xor, T, T)
BITWISE(bitwise_not, T)
