/* graphs: what tests of whole graphs share: inputs, two ways to run, comparing, differences. */
#ifndef TENON_TEST_GRAPHS_H
#define TENON_TEST_GRAPHS_H

#include "../../src/exec/exec.h"
#include "../../src/model/model.h"
#include "case.h"

/* Random data for the inputs of g, by name: the same in any graph that has an input of that name
 * and type. Floats lie in [-1, 1], second moments above 0; integers are 0 or 1; the step is 3. */
Tensor *graphs_inputs(Arena *a, const Graph *g);

/* All outputs of g: by the interpreter, or planned and executed with poison and guards. */
Tensor *graphs_interpret(Arena *a, const Graph *g, const Tensor *in);
/* For the emulated device where g copies between memories, else for the cpu. */
Plan *graphs_plan(Arena *a, Graph *g);
Tensor *graphs_execute(Arena *a, Graph *g, const Tensor *in);

/* The greatest difference, relative to want's greatest element; 0: the same but for NaN and -0. */
double graphs_distance(const Tensor *got, const Tensor *want);

/* The output of g that answers output i of h: of the same role and name, without a role of the same
 * index; or -1. */
int graphs_output(const Graph *g, const Graph *h, int i);

/* The greatest difference between the gradient of param `name`, as dx gives it, and central
 * differences of the loss of g, relative to the greatest element. */
double graphs_gradient_error(Arena *a, const Graph *g, const Tensor *in, const char *name,
                             const Tensor *dx);

/* A preset with two layers, 96 tokens and 64 features, of 8 heads. */
ModelConfig graphs_small(const char *preset);

/* The text of g. */
const char *graphs_text(Arena *a, const Graph *g);

/* Nodes of an op, bodies included, each once. */
int graphs_count(const Graph *g, const char *op);

/* A copy of a graph of f32 values in f64; in bf16. */
Graph *graphs_widen(Arena *a, const Graph *g);
Graph *graphs_narrow(Arena *a, const Graph *g);

#endif
