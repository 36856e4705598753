/* Shared by cross_entropy, its parts and its backward (cross_entropy.c). */
#ifndef TENON_CROSS_ENTROPY_H
#define TENON_CROSS_ENTROPY_H

#include "rows.h"

enum { IGNORE_INDEX, Z_LOSS, SMOOTHING };

Type loss_type(const Type *x, int rank); /* of loss (rank 0) or lse (rank 1) for the logits x */
/* Logits are operand i, labels operand i + 1; count, and `first` where it is given. */
void need_logits(const Graph *g, const Node *n, int i, int count, int first);
void need_smoothing(const Graph *g, const Node *n, double smoothing);
void need_z_loss(const Graph *g, const Node *n, double z);
/* classes is 0, or the number of all classes, of which x has some. */
void need_classes(const Graph *g, const Node *n, int64_t classes);

/* The last `padding` columns of the logits x are no classes: that the others are some. */
void need_padding(const Graph *g, const Node *n, int64_t padding, const Type *x);
/* The logits x without them. */
static inline Tensor without_padding(const Tensor *x, int64_t padding)
{
    Tensor t = *x;
    t.dim[1] -= padding;
    return t;
}

static inline int64_t label_at(const Tensor *labels, int64_t i)
{
    return *((const int64_t *)labels->data + i * labels->stride[0]);
}

/* The first class, by the optional operand `first`. */
static inline int64_t first_of(const Call *c, int first)
{
    return c->nin > first ? tensor_int(&c->in[first], 0) : 0;
}

/* Which of n classes from `first` on a label is, or -1. */
static inline int64_t class_of(int64_t label, int64_t first, int64_t n)
{
    uint64_t at = (uint64_t)label - (uint64_t)first;
    return at < (uint64_t)n ? (int64_t)at : -1;
}

/* How many of n columns, the first of which is class `first`, are some of all classes. */
static inline int64_t classes_within(int64_t n, int64_t first, int64_t classes)
{
    return first < 0 ? n : first >= classes ? 0 : MIN(n, classes - first);
}

/* Fails unless count is positive and each label is ignored or in [0, classes). */
int check_labels(Call *c, const Tensor *labels, const Tensor *count, int64_t classes);
bool logits_accepted(const Tensor *x);
int logits_lead(const Call *c);

#endif
