/* ranks_run: ranks as threads of this process, each with a context, an arena and its end of comm.
 */
#ifndef TENON_TEST_RANKS_RUN_H
#define TENON_TEST_RANKS_RUN_H

#include "ranks.h"

/* What each rank does, in its own thread. */
typedef void RankFn(Arena *a, Comm *c, void *arg);

/* Runs fn on n ranks at once. A rank that fails ends all. Returns the message of the first that
 * failed, in a, or NULL. */
const char *ranks_threads(Arena *a, int n, const CommOptions *o, RankFn *fn, void *arg);

/* A program of the rank's graph with one thread for kernels, joined, its memory poisoned. d NULL:
 * of cpu. */
Program *ranks_program(Arena *a, const Graph *g, const Device *d, Comm *c, bool check);
/* Inputs by index; all: parameters and state, too. */
void ranks_write(Program *x, const Tensor *in, bool all);
void ranks_step(Program *x);                     /* fails with the run's message */
Tensor *ranks_outputs(Arena *a, const Graph *g); /* memory for them */
void ranks_read(Program *x, const Tensor *out);  /* outputs by index */

#endif
