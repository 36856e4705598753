/* 16-bit numbers as f32 and back (widen.h): exact, and rounded to nearest even. */
#include "widen.h"

#include "../op/vmath.h"

KERNEL(void, load, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Widen *x = arg;
    float *restrict to = x->wide;
    if (x->dtype == BF16)
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_bf16_to_f32(x->narrow[i]);
    else
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_f16_to_f32(x->narrow[i]);
}

KERNEL(void, store, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Widen *x = arg;
    uint16_t *restrict to = x->narrow;
    if (x->dtype == BF16)
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_f32_to_bf16(x->wide[i]);
    else
        for (int64_t i = lo; i < hi; i++)
            to[i] = v_f32_to_f16(x->wide[i]);
}

void widen_load(void *x, int64_t lo, int64_t hi)
{
    load(x, lo, hi);
}

void widen_store(void *x, int64_t lo, int64_t hi)
{
    store(x, lo, hi);
}
