/* Shared by layer_norm.c and rms_norm.c: types of their rules, and kernels along rows
 * (norm_rows.c).
 *
 * rms_norm is layer_norm with a mean of 0 and without b: one result less tells it. Operands and
 * results of both, forward and backward; [] marks what layer_norm alone has:
 *
 *   x, w [, b]               -> y [, mean], rstd
 *   dy, x [, mean], rstd, w  -> dx, dw [, db]
 *
 * The normalized axes of x are its last ones, as many as w has. */
#ifndef TENON_NORM_H
#define TENON_NORM_H

#include "rows.h"

/* The type of mean and rstd beside x, whose axes from `lead` on are normalized. */
Type norm_stat_type(const Type *x, int lead);
/* The type that operand i, which is w, must have. */
Type norm_weight_type(const Node *n, int i, const Type *x, int lead);

/* ---- norm_rows.c: kernels for rows of any strides, each of them contiguous ---- */

int norm_lead(const Call *c); /* of the forward: the number of axes before the normalized ones */
bool norm_accepts(const Call *c);
int norm_run(Call *c);
void norm_rows(void *call, int64_t lo, int64_t hi);

bool norm_backward_accepts(const Call *c);
int64_t norm_backward_workspace(Ctx *ctx, const Call *c);
int norm_backward_run(Call *c);
int norm_backward_ref(Call *c);

#endif
