/* ranks: the graphs of all ranks of a mesh, run in lockstep, node by node on every rank. */
#ifndef TENON_TEST_RANKS_H
#define TENON_TEST_RANKS_H

#include "../../src/exec/exec.h"
#include "case.h"

/* g[r] is rank r's graph. They differ in constants and coordinates only, else it fails. */
typedef struct Ranks {
    Arena *a;
    const Mesh *mesh;
    int n;
    Graph **g;
} Ranks;

Ranks ranks_of(Arena *a, int n, Graph **g);

/* What ranks have of the inputs of the graph `whole` that they were made of, by rank and input:
 * cut as the ports say. Behind the end of an axis that does not divide lie zeros, and labels that
 * are ignored. */
Tensor **ranks_inputs(const Ranks *r, const Graph *whole, const Tensor *in);
/* The outputs of `whole` from those of the ranks; or why they do not go together: what several
 * ranks have is the same on all, padding of gradients and of what is kept is zero. */
const char *ranks_together(const Ranks *r, const Graph *whole, Tensor *const *out, Tensor *joined);

/* All outputs, by rank and output: every value in a buffer of its own. Sees, where it is not NULL,
 * has each node of the top graph with its results by rank. */
typedef struct RankWatch {
    void (*see)(void *arg, Node *const *n, Tensor *const *out);
    void *arg;
} RankWatch;
Tensor **ranks_interpret(const Ranks *r, Tensor *const *in, const RankWatch *watch);

/* ---- ranks_plan.c: on every rank's planned arena ---- */

/* What a collective sends must stay as it is until its wait, and nothing else may touch where it
 * receives; dead buffers are poisoned; the plans of all ranks are the same: else it fails. */
typedef struct Fleet Fleet;
Fleet *fleet_make(const Ranks *r, bool kernels); /* else by the ops' references */
/* overlap: collectives are moved beside computing, as fleet_make has them. */
Fleet *fleet_make_on(const Ranks *r, const Device *d, bool kernels, bool overlap);
/* Inputs by rank and input; all: parameters and state, too. */
void fleet_write(const Fleet *t, Tensor *const *in, bool all);
void fleet_run(const Fleet *t);
Tensor **fleet_read(const Fleet *t, Arena *a); /* outputs by rank and output */

/* Copies of the graphs, in which collectives are joined by chance; *joined: calls that are gone. */
Ranks ranks_bucketed(const Ranks *r, uint64_t seed, int *joined);
/* Copies of the graphs, in which parts of gathers and reductions go around rings wherever they can;
 * *calls: that are gone. */
Ranks ranks_ringed(const Ranks *r, int *calls);
/* Copies of the graphs, in which ranks talk through the host's memory: for the emulated device. */
Ranks ranks_staged(const Ranks *r);
/* Such copies in which what a forward has is offloaded, each value with that chance. reshard: with
 * which the graphs were made. */
Ranks ranks_offloaded(const Ranks *r, const char *reshard, uint64_t seed, double chance);
/* One run by the references. */
Tensor **ranks_execute(const Ranks *r, const Device *d, Tensor *const *in);

/* ---- collectives ---- */

/* The rank of member i of the group, along these mesh axes, that has `rank`. */
int ranks_member(const Mesh *mesh, int rank, int naxes, const int *axes, int64_t i);
/* The results of one collective, by rank, from its operands: in the group's order, sums from zero,
 * in f32 but for f64 and integers. out[] has memory. */
void ranks_collective(const Ranks *r, Node *const *n, const Tensor *in, const Tensor *out);

#endif
