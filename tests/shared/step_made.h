/* step_made: random forwards with a loss, whose nodes differ much in bytes and seconds. */
#ifndef TENON_TEST_STEP_MADE_H
#define TENON_TEST_STEP_MADE_H

#include "gen.h"

/* The kinds and shapes of the nodes that forwards are drawn from. */
typedef struct StepForm {
    /* A letter is one node's kind: p product, a pair (two operands), n norm, v views, s softmax, u
     * unary. Each is as probable as the next. */
    const char *kinds;
    int nunary;      /* how many functions u has */
    int64_t columns; /* of the input */
    const int *widths;
    int nwidth;       /* the columns of products */
    int rows, nrows;  /* the least rows, and how many powers of two times them */
    double last;      /* how probable a node reads the last value */
    int block;        /* so many nodes are a block; 0: there are no blocks */
    double scopeless; /* how probable a node of a block has no scope */
    double save;      /* how probable a node must be saved */
} StepForm;

/* The text of a forward with values below `end`; 0 is the input. */
const char *step_made(Arena *a, Rng *rng, const StepForm *form, int end);

#endif
