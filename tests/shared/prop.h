/* prop: what must hold of a random graph. One file for each section; test_prop.c drives. */
#ifndef TENON_TEST_PROP_H
#define TENON_TEST_PROP_H

#include "../../src/exec/exec.h"
#include "gen.h"

/* Of graphs, nodes made of them, ops along rows in these, graphs with a greater planned peak, and
 * runs of nodes whose results were parts of larger tensors. */
enum { GRAPHS, NODES, ALONG_ROWS, RAISED, APART, PARTS, FUSED_COUNTS };

typedef struct Trial {
    Arena *a;
    Library *lib;
    uint64_t seed;
    bool show;          /* print graphs */
    const char *folder; /* where they are written; NULL: nowhere */
    Gen *x;
    Tensor *want;            /* the interpreter's results on the graph as made */
    const char *failure;     /* the first; NULL so far */
    int *recomputed;         /* copies made, in all */
    int *compared, *skipped; /* gradients: how many were, and were not smooth enough to be */
    int *fused;              /* counts of what the pass fuse has done */
} Trial;

void prop_fail(Trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void prop_show(const Trial *t, const char *title, const Graph *g);

/* Why results differ, or NULL. tol is relative to the greatest; 0: the same bits but for NaN and
 * -0. */
const char *prop_differ(Arena *a, const Tensor *got, const Tensor *want, double tol);

/* The results of g, which has t's outputs and perhaps more, against t's. */
void prop_check_values(Trial *t, const Graph *g, const char *after, double tol);

/* ---- prop_pass.c ---- */

void prop_passes(Trial *t); /* each simplifying pass keeps bits, and has nothing to do twice */
void prop_gradient(
    Trial *t); /* grad keeps values; gradients against differences along a direction */
/* Random policies: remat keeps every bit of `from`, whose results are `want`; so does compiling the
 * result again. */
void prop_remat(Trial *t, const Graph *from, const Tensor *want);
/* Any policy on a node with that chance, blocks of a few nodes. */
void prop_policies(Graph *g, Rng *r, double chance);
void prop_order(Trial *t);              /* the planner's order of nodes keeps bits */
void prop_rows(Trial *t, int64_t rows); /* accumulate keeps loss and gradients */

/* Random policies: g as compiled, taken apart and compiled again, with the loss among its outputs
 * or not, gives the bits of the run of g. */
void prop_compiled(Trial *t, const Graph *g, const Tensor *in, const Program *run);

/* ---- prop_plan.c ---- */

/* g, planned and run, gives the same bits as a graph with one more output, at `without`; -1: none.
 */
void prop_same_bits(Trial *t, Graph *g, const Tensor *in, const Program *run, int without);

/* The planned and executed graph gives the interpreter's bits, nothing is written outside of
 * buffers. */
void prop_plan(Trial *t, Graph *g, const Tensor *in, const Tensor *want);

/* What products, sums and the like read lies after passes as it did before, to the stride: their
 * bits may follow from it. Copies that remat made are compared with their originals. */
void prop_strides(Trial *t, const Graph *before, const Graph *after, const char *passes);

/* The graph, in f32 and in bf16, planned and run, fused and not: the same bits; unfuse takes apart.
 */
void prop_fused(Trial *t, const Graph *from);

/* ---- prop_part.c ---- */

/* Bodies of `fused` in g whose results are parts of larger tensors compute the same bits as apart,
 * and write nothing else. */
void prop_parts(Trial *t, const Graph *g);

/* How far output i of g, in double, may lie from what it is in another order of additions: as noise
 * explains f32, at double's rounding. */
double prop_rounding(Trial *t, const Graph *g, const Tensor *want, int i);

Graph *prop_f32(Trial *t, const Graph *g); /* with f32 in place of f64: by its text */

/* The planned and executed graph in f32, where other kernels run, within rounding. */
void prop_narrow(Trial *t);

#endif
