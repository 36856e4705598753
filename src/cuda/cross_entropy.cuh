/* Shared by cross_entropy.cu and cross_entropy_backward.cu: checks of labels. */
#ifndef TENON_CROSS_ENTROPY_CUH
#define TENON_CROSS_ENTROPY_CUH

#include "reduce_rows.cuh"

enum { IGNORE_INDEX, Z_LOSS, SMOOTHING };

static const char *const label_faults[] = {
    "count: expected at least 1 label that is not %lld, found %lld",
    "label %lld at position %lld: expected 0 to %lld, or %lld", NULL};

struct Labels {
    const int64_t *at, *count;
    int64_t step, rows, ignore, classes;
    Fault *fault;
    int plan_step;
};

static inline Labels labels_of(const Call *c, const Tensor *labels, const Tensor *count,
                               int64_t classes)
{
    return {data<const int64_t>(*labels),
            data<const int64_t>(*count),
            labels->stride[0],
            labels->dim[0],
            c->node->attr[IGNORE_INDEX].i,
            classes,
            c->fault,
            c->step};
}

/* Notes what is wrong with the labels: the first block does, whose threads all call this. */
__device__ inline void check_labels(const Labels &l)
{
    if (blockIdx.x)
        return;
    int64_t wrong = first_wrong_label(l.at, l.step, l.rows, l.ignore, l.classes);
    if (threadIdx.x)
        return;
    if (*l.count < 1)
        note(l.fault, l.plan_step, 0, l.ignore, *l.count);
    else if (wrong < l.rows)
        note(l.fault, l.plan_step, 1, l.at[wrong * l.step], wrong, l.classes - 1, l.ignore);
}

/* At least one block, which checks the labels. */
static inline unsigned logits_grid(int64_t rows, int64_t n)
{
    return (unsigned)MAX((int64_t)1, (int64_t)row_grid(rows, n));
}

#endif
