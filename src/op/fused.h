/* Shared by the rules of `fused` (fused.c) and its kernels (fused_tiles.c; src/cuda/fused_*). */
#ifndef TENON_FUSED_H
#define TENON_FUSED_H

#include "pointwise.h"

/* The shape of the values that the body of n computes. */
FusedShape fused_shape(const Node *n);
/* The value of which v is a view. */
const Value *fused_base(const Value *v);
/* One element, no operands. */
bool fused_constant(const Node *n);

/* Whether the processor's kernel takes tensors that lie as c's do. */
bool fused_accepts(const Call *c);
extern const Kernel fused_kernels[];

#endif
