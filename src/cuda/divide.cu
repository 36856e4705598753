/* Division to integers and its remainders on CUDA (divide.c). */
#include "pointwise.cuh"

static const char *const faults[] = {"division of an integer by 0", NULL};

#define DIVIDE(name)                                                         \
    struct Lane_##name {                                                     \
        Fault *fault;                                                        \
        int step;                                                            \
        template <typename T> __device__ T operator()(T a, T b) const        \
        {                                                                    \
            if constexpr (!is_floating<T>)                                   \
                if (b == 0)                                                  \
                    note(fault, step, 0, 0);                                 \
            return lane_##name(a, b);                                        \
        }                                                                    \
    };                                                                       \
    static int name##_run(Call *c)                                           \
    {                                                                        \
        Lane_##name f = {c->fault, c->step};                                 \
        BY_NUMBER(c->out[0].dtype, T, return (pointwise<0, T, T, T>(c, f))); \
        return run_fail(c, "no kernel for %s", dtype_name(c->out[0].dtype)); \
    }                                                                        \
    POINTWISE_KERNELS(name, name##_run, .faults = faults);

DIVIDE(floor_divide)
DIVIDE(trunc_divide)
DIVIDE(remainder)
DIVIDE(fmod)
