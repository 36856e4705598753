/* chunk_made: random regions of random graphs for the pass chunk. */
#ifndef TENON_TEST_CHUNK_MADE_H
#define TENON_TEST_CHUNK_MADE_H

#include "gen.h"

/* What came of regions so far. */
typedef struct ChunkMade {
    int64_t graphs, made, two, refused,
        random; /* two: of two loops; random: with random ops inside */
} ChunkMade;

/* Makes the graph of a seed, a step with gradients, and tries some regions in double: each is
 * refused with a reason, and the graph is as it was, or gives the whole graph's results within
 * 1e-12, or what rounding explains. NULL, or what did not hold. */
const char *chunk_made_try(Arena *a, Library *lib, uint64_t seed, bool show, ChunkMade *done);

#endif
