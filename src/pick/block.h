/* Inside a block: buckets, in the order in which their variables are taken out. */
#ifndef TENON_PICK_BLOCK_H
#define TENON_PICK_BLOCK_H

#include "solve.h"

enum { MOST_SCOPE = 24 };

/* A table that is added up: places step by 1 from label to label of the bucket's variable, by
 * step[d] from label to label of scope[d]. */
typedef struct PickFactor {
    const double *val;
    int step[MOST_SCOPE];
} PickFactor;

/* What a variable uses of a row. */
typedef struct BucketUse {
    int row; /* of the block */
    const double *of;
} BucketUse;

/* A variable, with what is taken out with it. */
typedef struct BlockBucket {
    int u, k;
    int *label;    /* the model's, of the k that it may take */
    int own;       /* which of them is x; -1: none */
    double *unary; /* with prices, and the edges to variables that stay */
    int nscope;
    int scope[MOST_SCOPE]; /* buckets, the first that is taken out first */
    int nfactor, factor_cap;
    int nfixed; /* of them that do not depend on the scope's first, which come first */
    PickFactor *factor;
    double *val;       /* of each combination of the scope; the first changes fastest */
    double *sum;       /* of each label, for one combination */
    int64_t *place;    /* in each factor */
    const double **at; /* room for one place a factor */
    int nuse, use_cap;
    BucketUse *use;
    int chosen; /* while solutions are visited */
} BlockBucket;

/* Behind its last use; NULL where there are none. */
static inline const BucketUse *bucket_end(const BlockBucket *x)
{
    return x->nuse ? x->use + x->nuse : x->use;
}

typedef struct PickBlock {
    Arena *a;
    Search *s;
    PickModel *m;
    int n;
    BlockBucket *bucket; /* as they were given, then in the order in which they are taken out */
    int *at;             /* of a variable of the model: its bucket, or -1 */
    double cells;
    bool whole; /* none of the given variables stays as it is */
} PickBlock;

/* ---- order.c ---- */

/* Finds the order in which the fewest combinations have to be held at once, greedily; fills scopes.
 * Variables that would need more than `cells` combinations leave the block. */
void block_order(PickBlock *b);

/* ---- block.c ---- */

/* The priced cost of each label, in sum[], with the combination that place[] says; the least. */
double block_sum(const BlockBucket *x);

/* ---- visit.c ---- */

/* Takes the best solution within the limits; least is the least priced cost of all. */
BlockAnswer block_visit(PickBlock *b, double least, const BlockLimits *limits);

#endif
