/* interp: evaluates a graph by every op's ref, in graph order; the oracle for whole graphs. */
#ifndef TENON_TEST_INTERP_H
#define TENON_TEST_INTERP_H

#include "../../src/op/op.h"

/* Runs n on `in`, which have the node's operand types: its op's ref, or a region iteration by
 * iteration. out[k] become contiguous tensors in a. A run error fails with the node. */
void interp_node(Arena *a, const Graph *g, const Node *n, const Tensor *in, Tensor *out);

/* The greatest finite magnitude of a contiguous tensor's elements; 0: there is none. */
double interp_largest(const Tensor *t);

/* All outputs of g from its inputs. */
void interp_graph(Arena *a, const Graph *g, const Tensor *in, Tensor *out);

/* The same with every input and every computed element multiplied by 1 plus at most +-noise: how
 * much rounding errors grow. -noise is the same draw with opposite signs. */
void interp_noisy(Arena *a, const Graph *g, const Tensor *in, double noise, uint64_t seed,
                  Tensor *out);

/* ---- a loop, for those who run bodies themselves: its iterations in their order ---- */

typedef struct LoopRun {
    Arena *a;
    const Node *n;
    const Tensor *in;
    Tensor *carry; /* by operand port: what the next iteration sees */
    Tensor *out;   /* by result port; data NULL before the first iteration that gives it */
    int64_t done;  /* iterations */
} LoopRun;

LoopRun loop_start(Arena *a, const Node *n, const Tensor *in, Tensor *out);
const Graph *loop_body(const LoopRun *l);         /* of the next iteration; NULL: none is left */
void loop_operands(const LoopRun *l, Tensor *in); /* what that body sees */
void loop_results(LoopRun *l, const Tensor *out); /* takes what it gave; goes on */

#endif
