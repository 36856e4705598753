/* interp: evaluates a graph by every op's ref, in graph order; the oracle for whole graphs. */
#ifndef TENON_TEST_INTERP_H
#define TENON_TEST_INTERP_H

#include "../src/op/op.h"

/* Runs n on `in`, which have the node's operand types: its op's ref, or a region iteration by
 * iteration. out[k] become contiguous tensors in a. A run error fails with the node. */
void interp_node(Arena *a, const Graph *g, const Node *n, const Tensor *in, Tensor *out);

/* All outputs of g from its inputs. */
void interp_graph(Arena *a, const Graph *g, const Tensor *in, Tensor *out);

/* The same with every input and every computed element multiplied by 1 plus at most +-noise: how
 * much rounding errors grow. -noise is the same draw with opposite signs. */
void interp_noisy(Arena *a, const Graph *g, const Tensor *in, double noise, uint64_t seed,
                  Tensor *out);

#endif
