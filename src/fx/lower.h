/* lower: what calls of ATen overloads become. Each row of aten.def has a function in a file
 * lower_*.c, which makes nodes with the help of those here. */
#ifndef TENON_LOWER_H
#define TENON_LOWER_H

#include "fx.h"

/* ---- lower.c ---- */

Value *lower1(Site *s, const char *op, Value *x);
Value *lower2(Site *s, const char *op, Value *x, Value *y);
Value *lower_alias(Site *s, Value *x, const char *gradient);
Value *lower_full(Site *s, double x, const Type *t);
Value *lower_count(Site *s, int64_t n);                   /* 0, 1, ... n - 1, int64 */
Value *lower_fill(Site *s, const Item *x, const Type *t); /* of a number; integers are exact */
Value *lower_number(Site *s, double x, DType d);          /* 0-dimensional */
Value *lower_like(Site *s, double x, const Value *like);  /* the same in its dtype */
Value *lower_times(Site *s, Value *x, double factor);
Value *lower_where(Site *s, Value *cond, Value *x, Value *y);
/* The softmax whose rows of -inf alone are 0, where softmax's are NaN; x has axes. */
Value *lower_safe_softmax(Site *s, Value *x, int64_t dim);
Value *lower_exp_abs(Site *s, Value *x);             /* exp(-|x|) */
Value *lower_logaddexp(Site *s, Value *x, Value *y); /* log(exp(x) + exp(y)) */
Value *lower_root(Site *s, Value *x, double p);      /* x^(1/p), p > 0, whose slope at 0 is 0 */
Value *lower_cast(Site *s, Value *x, DType d);
Value *lower_reshape(Site *s, Value *x, int rank, const int64_t *size);
Value *lower_expand(Site *s, Value *x, const Type *t);
Value *lower_slice(Site *s, Value *x, int axis, int64_t start, int64_t end, int64_t step);
Value *lower_reduce(Site *s, const char *op, Value *x, int naxes, const int64_t *axes, bool keep);
/* The result of another overload, "cat.default"; its at most 6 arguments stand in its order. */
Item lower_call(Site *s, const char *overload, int n, const Item *arg);

/* ---- lower_create.c ---- */

/* The type asked for: `size`, or that of `self`; the dtype named, or self's, or otherwise. */
Type lower_wanted(Site *s, bool like, DType otherwise);

/* ---- lower_resize.c ---- */

/* The size that an axis of n elements has, k-th of `axes`, by the call's scale_factors. */
int64_t lower_scaled_size(Site *s, int64_t n, int axes, int k);

/* ---- lower_attention.c: of tensors [B, H, T, D], key and value with as many heads or fewer ----
 */

Value *lower_attention(Site *s, Value *const qkv[3], Value *mask, bool causal, Attr scale,
                       Value **lse);
Value *lower_mask(Site *s, Value *seen, DType d); /* what is added to scores, for what is seen */
Value *lower_scores(Site *s, Value *q, Value *k, Attr scale); /* [B, H, T, S] */
Value *lower_weighted(Site *s, Value *weight, Value *v);

/* The keywords that every schema of a factory has. */
#define FACTORY \
    "*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"

/* One function for each row of aten.def that names it. */
#define ATEN(name, schema, lower) void row_##lower(Site *s);
#define FOREACH(name, schema, each)
#define SAME(name, schema, each)
#define REFUSE(name, reason)
#include "aten.def"
#undef ATEN
#undef FOREACH
#undef SAME
#undef REFUSE

void row_foreach(Site *s); /* of the rows FOREACH */
void row_same(Site *s);    /* SAME */

#endif
