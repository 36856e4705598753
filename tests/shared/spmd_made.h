/* spmd_made: random graphs of one rank, and what is asked of the pass spmd for each. */
#ifndef TENON_TEST_SPMD_MADE_H
#define TENON_TEST_SPMD_MADE_H

#include "../../src/spmd/spmd.h"
#include "gen.h"
#include "ranks.h"
#include "spmd_seen.h"

enum { MOST_RULES = 40 };

/* What trials did. */
typedef struct Counts {
    int64_t run, refused, on_border, explained, planned, staged, steps, loops, policies, offloaded,
        bucketed, ringed, three_axes;
} Counts;

/* A graph, and the ranks that are made of it. */
typedef struct Trial {
    Arena *a;
    Library *lib;
    Rng rng;
    Counts *done;
    Seen *seen; /* may be NULL */
    bool say, show;
    Graph *g; /* of one rank */
    Tensor *in, *want;
    Mesh *mesh;
    PassOptions o;
    const OpCases *op; /* of which the graph is to be one node; NULL: any graph */
    Map sums;          /* names of inputs that are added up along axis 0 to be operands */
    const char *rule[MOST_RULES];
    int nrule;
    const char *names; /* of the passes that make a rank's graph */
    bool step, loop;   /* it is a training step, in microbatches */
    bool solved;       /* all forms are to be chosen at once */
    bool drawn;        /* ... by drawn costs */
    Ranks ranks;
    const char *failure;
} Trial;

void trial_fail(Trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void trial_graph(Trial *t); /* fills g and in */
void trial_mesh(Trial *t);
/* Draws the rules for ports, and the other options. */
void trial_ask(Trial *t);
void trial_ask_for_op(Trial *t); /* one axis, which cuts sums into partial terms */
bool trial_ranks(Trial *t);      /* false where the pass refuses what was asked for */

#endif
