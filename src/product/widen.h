/* widen: 16-bit numbers as f32 and back, for kernels that the library has in f32 alone. */
#ifndef TENON_WIDEN_H
#define TENON_WIDEN_H

#include "../op/op.h"

typedef struct Widen {
    float *wide;
    uint16_t *narrow;
    DType dtype; /* of narrow: BF16 or F16 */
} Widen;

/* Elements [lo, hi) of a Widen, from narrow to wide, and rounded from wide to narrow. */
void widen_load(void *x, int64_t lo, int64_t hi);
void widen_store(void *x, int64_t lo, int64_t hi);

#endif
