/* spmd: makes the graph of one rank from the graph of the whole step.
 *
 * Forms. A mesh has named axes, such as dp=2,tp=4. On each axis a value is whole, sliced along one
 * of its axes, or partial: a term of a sum, maximum or log-sum-exp over the ranks. One Cut for each
 * mesh axis is a form, as in GSPMD (Xu et al. 2021, arXiv:2105.04663); src/cut says which forms of
 * operands and results go together, by the same factors by which chunk and accumulate cut in time.
 *
 * Method, in the order in which the files come into play:
 *   align      pads the vocabulary of large logits, for every mesh and also for one rank
 *   sharding   finds the forms of inputs and outputs: by the names of mesh axes, by the recipes of
 *              model families (recipe.def), by the rules of --shard
 *   pad        makes axes divisible
 *   solved     with --shard auto: chooses how all nodes are cut, those of a loop's body among them
 *              (flat), and the forms of parameters (see solved.h)
 *   prepare    rewrites the whole graph: cast_before_gather casts
 *              parameters, ports and formed decide what loops see of gathered parameters, and norms
 *              become sums
 *   spmd       walks the nodes once, in their order:
 *     choose     prices how each mesh axis may cut the node, takes the cheapest combination
 *     form       brings the operands to the forms needed; a form is made once, for all readers
 *     reshard    finds the cheapest collectives between two forms (step_table keeps prices of
 *                steps); the list that it prices is the list that lowering emits
 *     token      finds where rows and tokens of the batch lie, for sequence parallelism
 *     loop_forms does the same for a loop's bodies and ports
 * Without --shard auto the walk is greedy: the price of a node is its seconds, its operands'
 * collectives and the reduction of what it leaves partial; what later readers need is known only as
 * far as the optimizer's and the outputs' forms are wanted. Strategies may be drawn instead, for
 * tests.
 *
 * Invariants. The rank's graph has local types, and shardings at its ports only. Its coordinates
 * are constants: starts of slices and offsets; all else is equal on all ranks, so that all have one
 * plan and the same collectives in the same order. Nothing is gathered only to be sliced again. dp
 * and fsdp keep the bits of one rank with a microbatch for each rank (--reduce ordered); sums over
 * other axes have another order than on one rank. A rule of --shard is obeyed or refused.
 *
 * Sources: tensor parallelism, Shoeybi et al. 2019 (arXiv:1909.08053); sequence parallelism,
 * Korthikanti et al. 2022 (arXiv:2205.05198); sharded parameters and state, Rajbhandari et al. 2020
 * (arXiv:1910.02054).
 *
 * This header is for other folders; rewrite.h is what the pass's files share. */
#ifndef TENON_SPMD_H
#define TENON_SPMD_H

#include "../pass/pass.h"

/* ---- align.c ---- */

/* Whether n puts zeros after axes, and nothing elsewhere. */
bool puts_zeros_behind(const Node *n);

/* The types of g's inputs. An axis after which readers put zeros, directly or through casts,
 * transposes and loops, has its size with these. */
Type *align_padded(Graph *g, Arena *tmp);

/* ---- sharding.c, recipe.def: the forms of inputs and outputs ---- */

/* The name of a mesh axis says what it cuts. */
typedef enum {
    AXIS_DP,    /* cuts the batch; parameters are replicated */
    AXIS_FSDP,  /* cuts the batch, and parameters where they are stored */
    AXIS_TP,    /* cuts matrices and what they compute, by recipes for model families */
    AXIS_OTHER, /* any other name: cuts what --shard says */
} MeshAxisKind;

MeshAxisKind mesh_axis_kind(const char *name);

/* o's mesh at o's rank, NULL where there is none; fails where the mesh has no such rank. */
Mesh *sharding_mesh(Ctx *ctx, Arena *a, const PassOptions *o);

/* The rows that a batch must have so that all data ranks have equally many in each of `iterations`
 * microbatches: `rows`, or more, the rest being padding. `rows` where a microbatch would be padding
 * alone. */
int64_t sharding_rows(const Mesh *m, int64_t rows, int64_t iterations);

/* The form of an input or output, by mesh axis. */
typedef struct Sharding {
    Cut cut[MAX_MESH];
    bool computed_sharded[MAX_MESH]; /* a recipe's matrix: readers compute with the rank's part */
    bool storage_sharded[MAX_MESH];  /* readers are not to be cut for that: it is gathered */
    bool ruled;                      /* by a rule of --shard */
    const int64_t *least_units; /* by axis: into how many parts it must be cut at least, if its form
                                   is to be chosen; NULL: any */
} Sharding;

/* Whether all forms are to be chosen at once: --shard auto, beside rules or not. */
bool sharding_is_solved(const PassOptions *o);

/* Fills in[] and out[], one for each port of g, by o's rules and the recipes. Fails where a rule
 * cannot be obeyed, naming rule, parameter and sizes. The pass pads an axis that its ranks do not
 * divide. */
void sharding_fill(const Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, Sharding *in,
                   Sharding *out);

/* ---- reshard.c: from one form of a value to another ---- */

typedef enum {
    RESHARD_SLICE,    /* whole -> slice: a view */
    RESHARD_GATHER,   /* slice -> whole: all_gather */
    RESHARD_SCATTER,  /* partial -> slice: reduce_scatter */
    RESHARD_REDUCE,   /* partial -> whole: all_reduce */
    RESHARD_EXCHANGE, /* slice -> slice of another axis: all_to_all */
} ReshardKind;

/* One step, over the group of these mesh axes, major first. */
typedef struct ReshardStep {
    ReshardKind kind;
    int naxes, axes[MAX_MESH];
    Cut from[MAX_MESH], to[MAX_MESH]; /* the value's form before and after, by mesh axis */
    bool strided;                     /* the step before left its operand so: it is copied first */
    double nbytes;                    /* as collective_sec takes them; 0 for a slice */
    double sec, copied;               /* copies included; of it copies */
} ReshardStep;

enum { MAX_RESHARD = 2 * MAX_MESH };

typedef struct Reshard {
    int nstep;
    ReshardStep step[MAX_RESHARD];
    double sec;
} Reshard;

/* Finds the cheapest steps that bring a value of logical type t from one form to another; false:
 * there are none (a whole or sliced value never becomes partial, a maximum no sum), or a form is
 * not legal. Mesh axes of one rank need no step, and are whole in all steps' forms. */
bool reshard_find(const Machine *machine, const Mesh *m, const Type *t, const Cut *from,
                  const Cut *to, Reshard *r);
const char *reshard_name(ReshardKind k); /* its op's: "all_gather_into_tensor" */
/* Emits one step on v, which has the step's form `from`; b says phase and scope. */
Value *reshard_emit(Build *b, const Mesh *m, const Type *t, const ReshardStep *s, Value *v);

#endif
