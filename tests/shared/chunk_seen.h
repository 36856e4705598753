/* chunk_seen: what the pass chunk has made of a graph. */
#ifndef TENON_TEST_CHUNK_SEEN_H
#define TENON_TEST_CHUNK_SEEN_H

#include "../../src/chunk/chunk.h"

/* Loops in g, in bodies each once. */
int chunk_seen_loops(const Graph *g);
/* Whether the region's seed, if it is no view, is still made as it is in `before`, or in a body of
 * it that has several units of it. */
bool chunk_seen_whole(const Graph *g, const Graph *before, const ChunkRegion *r);
/* How often nodes of an op run. */
int64_t chunk_seen_runs(const Graph *g, const char *op);

/* Products of the forward that g, bodies included, makes a second time. */
int chunk_seen_again(const Graph *g);

/* Bytes at the planned peak of `before`, and how many of them are of values that g has no longer
 * whole; the planned peak of g. */
typedef struct ChunkPeak {
    int64_t before, sliced, after;
} ChunkPeak;
ChunkPeak chunk_seen_peak(Arena *a, Graph *before, Graph *g);

#endif
