/* Counts values that are not finite: those whose exponent has all its bits set. Runs before weights
 * are saved, at the speed at which memory is read. */
#include "exec.h"

#include <stdatomic.h>

typedef struct FiniteCount {
    const void *data;
    atomic_llong count;
} FiniteCount;

#define COUNT(name, Word, exponent)                                     \
    KERNEL(int64_t, name##_values, (const Word *x, int64_t n), (x, n))  \
    {                                                                   \
        int64_t count = 0;                                              \
        for (int64_t i = 0; i < n; i++)                                 \
            count += (x[i] & (exponent)) == (exponent);                 \
        return count;                                                   \
    }                                                                   \
    static void name(void *arg, int64_t lo, int64_t hi)                 \
    {                                                                   \
        FiniteCount *s = arg;                                           \
        s->count += name##_values((const Word *)s->data + lo, hi - lo); \
    }

COUNT(count_f64, uint64_t, 0x7ff0000000000000u)
COUNT(count_f32, uint32_t, 0x7f800000u)
COUNT(count_bf16, uint16_t, 0x7f80u)
COUNT(count_f16, uint16_t, 0x7c00u)

int64_t count_not_finite(DType dtype, const void *data, int64_t n)
{
    FiniteCount s = {.data = data};
    switch (dtype) {
    case F64: par_for(n, 1 << 16, count_f64, &s); break;
    case F32: par_for(n, 1 << 16, count_f32, &s); break;
    case F16: par_for(n, 1 << 16, count_f16, &s); break;
    case BF16: par_for(n, 1 << 16, count_bf16, &s); break;
    default: break; /* integers are */
    }
    return s.count;
}
