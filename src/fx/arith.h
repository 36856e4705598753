/* Short names for the pointwise nodes of which functions of real numbers are composed. */
#ifndef TENON_FX_ARITH_H
#define TENON_FX_ARITH_H

#include "lower.h"

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

static inline Value *compare(Site *s, const char *op, Value *x, double y)
{
    return lower2(s, op, x, lower_like(s, y, x));
}

/* y where the condition holds, else the number */
static inline Value *where_or(Site *s, Value *cond, Value *y, double otherwise)
{
    return lower_where(s, cond, y, lower_like(s, otherwise, y));
}

/* The number where the condition holds, else x: what a formula reads whose result is not chosen
 * there. Were its slope infinite, that times a gradient of 0 would be NaN. */
static inline Value *unless(Site *s, Value *cond, double number, Value *x)
{
    return lower_where(s, cond, lower_like(s, number, x), x);
}

#endif
