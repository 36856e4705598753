/* chunk_case: graphs for the pass chunk. tests/chunk/NAME.tn and tests/chunk/sound/NAME.tn are
 * graphs whose comments say more:
 *
 *   # passes: grad,cse           before chunk; none: none. Else gradients are made where there is a
 *                                loss
 *   # options: accumulate=3      of these passes
 *   # seed: VALUE axis A [outer O] [inner I] [all] [cheap]
 *                                a region, each alone; the axis is [outer][units][inner]; all: with
 *                                all values that the cut reaches; cheap: no product made twice
 *   # loops: 2                   that a region becomes (1)
 *   # peak: no                   the region does not hold the peak; or 20=100 37=1999: it does
 *                                where these sizes are others (they are by default)
 *   # labels: VALUE N [distinct] [none at A-B C ...]
 *                                of an input: below N, or -100
 *   # refused: TEXT              there is no region, with a reason that contains TEXT
 *
 * The graphs of tests/fx/head_* are imported. */
#ifndef TENON_TEST_CHUNK_CASE_H
#define TENON_TEST_CHUNK_CASE_H

#include "../../src/chunk/chunk.h"
#include "graphs.h"

enum { MOST_SEEDS = 4, MOST_LABELS = 4 };

typedef struct ChunkLabels {
    const char *value, *none;
    int64_t count;
    bool distinct; /* in each row */
} ChunkLabels;

typedef struct ChunkCase {
    Arena *a;
    const char *name, *passes, *refused;
    const char *inputs; /* a file of them; NULL: random */
    Graph *g;           /* in f32, before all passes */
    PassOptions o;
    ChunkRegion region[MOST_SEEDS];
    int nregion, loops;
    ChunkLabels labels[MOST_LABELS];
    int nlabels;
    const char *peak; /* "20=100 37=1999"; NULL: it has not the peak */
    const char *bf16; /* likewise */
    bool mixed;       /* in bf16 as the pass precision has it, else in every value */
} ChunkCase;

/* Fails where the file is malformed. */
ChunkCase chunk_case_read(Arena *a, const char *path);
/* A folder of tests/fx; seed as in a comment. */
ChunkCase chunk_case_import(Arena *a, const char *folder, const char *seed);

/* The case's graph with these sizes (NULL: its own) after its passes: in f32, in f64, or in bf16:
 * `mixed` by the pass precision with parameters in bf16, else in every value. */
Graph *chunk_case_graph(const ChunkCase *c, const char *sizes, DType d);
/* A region where it has these sizes. */
ChunkRegion chunk_case_region(const ChunkRegion *r, const char *sizes);
/* Data for g, which has the case's inputs, perhaps in other dtypes: the same values; random where
 * it has other sizes. */
Tensor *chunk_case_inputs(const ChunkCase *c, const Graph *g);

/* Runs chunk for one region. *why, where it is not NULL, gets what a warning said; NULL: none. */
void chunk_case_run(Graph *g, const ChunkRegion *r, int64_t slices, const char *accumulate,
                    const char **why);

/* The candidates that chunk lists for g. */
ChunkReport chunk_case_list(const Graph *g);

#endif
