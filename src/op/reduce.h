/* Shared by the reductions' rules (reduce.c), their kernels (reduce_rows.c) and the reductions with
 * rules of their own (var_mean.c, logsumexp.c). The first attributes of all are dim and
 * keepdim. */
#ifndef TENON_REDUCE_H
#define TENON_REDUCE_H

#include "op.h"

typedef enum { SUM, MEAN, MAXIMUM, MINIMUM } ReduceKind;

ReduceKind reduce_kind(const Node *n);
unsigned reduce_axes(const Node *n); /* bit mask of the axes that go */

extern const Kernel reduce_kernels[];
extern const RowKernel reduce_row_kernel;

/* The result's type, of the operand's dtype; fails for axes that are not there, or twice. */
void reduce_infer(const Graph *g, const Node *n, Type *y);
/* A value of the result's shape stretched to the operand's. */
Value *reduce_stretch(Build *b, const Node *n, Value *y);
/* How many elements of the operand make one of the result. */
double reduce_count(const Node *n);
/* Axes that go are of `kind`, the others PARALLEL, in every output. */
void reduce_factors(const Node *n, Factors *f, FactorKind kind);
/* The number of kept axes where those that go are the last ones and contiguous in x, else -1. */
int reduce_lead(const Node *n, const Tensor *x);

/* The operand's kept and its gone axes, as two tensors over the same data. */
void reduce_split(const Node *n, const Tensor *x, Tensor *kept, Tensor *gone);

/* ---- ops that compute their results from the elements of one row at a time ---- */

/* The reference: y[k] becomes what result k has of the elements of x. */
int reduce_ref(Call *c, void (*row)(const Call *c, const Tensor *x, double *y));

/* A kernel over rows accepts f32, bf16 and f64 whose gone axes are such last ones, runs
 * rows(c, lo, hi) over the results' elements, divided alike for any thread count, ... */
bool reduce_accepts_rows(const Call *c);
int reduce_run_rows(Call *c, void (*rows)(void *, int64_t, int64_t));
int reduce_row_lead(const Call *c); /* as RowKernel.lead */
/* ... and there calls `row` for each, which sets y as above from n elements. */
void reduce_each_row(const Call *c, int64_t lo, int64_t hi,
                     void (*row)(const Call *c, const void *x, int64_t n, double *y));

#endif
