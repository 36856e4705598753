/* Short names for what compositions of real functions are made of. */
#ifndef TENON_FX_ARITH_H
#define TENON_FX_ARITH_H

#include "fx.h"

static inline Value *add(Site *s, Value *x, Value *y)
{
    return lower2(s, "add", x, y);
}

static inline Value *sub(Site *s, Value *x, Value *y)
{
    return lower2(s, "sub", x, y);
}

static inline Value *mul(Site *s, Value *x, Value *y)
{
    return lower2(s, "mul", x, y);
}

/* x + y of a number */
static inline Value *plus(Site *s, Value *x, double y)
{
    return add(s, x, lower_like(s, y, x));
}

#endif
