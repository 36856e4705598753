/* cut_ways: every legal way to cut a node, tried. */
#ifndef TENON_TEST_CUT_WAYS_H
#define TENON_TEST_CUT_WAYS_H

#include "cut_parts.h"
#include "gen.h"

/* What has been tried. */
typedef struct WayCounts {
    int64_t single, pair, linear, loop;
} WayCounts;

/* Tries n on its whole operands in[], its results being want[]: each way of the node alone, and
 * `pairs` times two at random; without pairs each factor only, at its beginning. NULL, or what did
 * not hold. */
const char *cut_ways_try(Arena *a, Rng *rng, const Node *n, const Tensor *in, const Tensor *want,
                         int pairs, WayCounts *done);

int64_t cut_divisor(Rng *r, int64_t size);    /* a random one */
Splitter cut_splitter(Rng *r, int64_t count); /* of `count` units, in a few parts */
double cut_draw(void *rng);                   /* a Random */

#endif
