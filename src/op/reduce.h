/* What the reductions' rules (reduce.c) and their kernels (reduce_rows.c) share. */
#ifndef TENON_REDUCE_H
#define TENON_REDUCE_H

#include "op.h"

typedef enum { SUM, MEAN, MAXIMUM, MINIMUM } ReduceKind;

ReduceKind reduce_kind(const Node *n);
unsigned reduce_axes(const Node *n); /* bit mask of the axes that go */

extern const Kernel reduce_kernels[];

#endif
