/* Shared by the view ops (view.c, permute.c, expand.c, slice.c). */
#ifndef TENON_VIEW_H
#define TENON_VIEW_H

#include "op.h"

/* A dim attribute that infer has checked, as a non-negative axis. */
static inline int axis_of(int64_t dim, int rank)
{
    return (int)(dim < 0 ? dim + rank : dim);
}

/* The price of copying the results; a view that needs no copy costs nothing. */
Cost view_cost(const Node *n);

/* Operand axis i and axis e of result k, of equal size, are one factor. */
void view_factor(const Node *n, Factors *f, FactorKind kind, int i, int k, int e);

/* Axis e of result k by itself. */
void view_factor_out(const Node *n, Factors *f, FactorKind kind, int k, int e);

/* An axis that must stay whole; axes of equal size share their factor. Once no factor is left, the
 * axis stays unlisted. */
void whole_axis(Factors *f, Axes *x, int axis, int64_t size);

/* An axis that consists of runs is [size / unit][unit], where `unit` divides where each run begins
 * and how long it is: a part has some of every unit. unit_new makes its factor, NO_FACTOR for a
 * unit of 1; unit_axis lists an axis of which it is a part, or the whole axis; unit_of finds it. */
int64_t unit_divide(int64_t unit, int64_t x); /* the greatest divisor of both; of 0 and x: x */
int unit_new(Factors *f, int64_t unit);
/* The same of `count` runs of `size` in all: none where they are many and unlike each other, as
 * there are not so many factors. */
int unit_of_runs(Factors *f, int64_t unit, int count, int64_t size);
void unit_axis(Factors *f, Axes *x, int axis, int64_t size, int unit);
/* Converts a place or a length on an axis of runs to one on a part of it. */
int64_t unit_part(const Part *p, const Axes *x, int axis, int64_t at);

/* A slice takes of x's axis count elements from start on, step apart. attr is dim, start,
 * end, step. */
typedef struct Range {
    int axis;
    int64_t start, step, count;
} Range;
Range slice_range(const Attr *attr, const Type *x);
Range need_range(const Graph *g, const Node *n, const Attr *attr, const Type *x); /* checked */
void slice_all(Attr *attr);                                  /* makes it take all */
int slice_unit(const Attr *attr, const Type *x, Factors *f); /* unit_new() of its axis of x */
/* Makes it take of a part of x, whose axes these are, what it takes of x. */
void slice_part(const Part *p, const Axes *axes, const Type *x, Attr *attr);

/* The operand as result k sees it; false where strides cannot express that. */
bool view_operand(const Call *c, int k, Tensor *from);

/* One kernel: copies every result, from strides where the rule `view` gives some. */
extern const Kernel view_copy[];

/* Copies to each position ix of each result k the operand's element at source(n, k, ix). */
typedef void ViewSource(const Node *n, int k, const int64_t *ix, int64_t *from);
int view_ref(Call *c, ViewSource *source);

#endif
