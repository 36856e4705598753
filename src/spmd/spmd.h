/* spmd: the graph of one rank, made of the graph of the whole step. What ranks have of inputs and
 * outputs (sharding), the steps from one form of a value to another (reshard), and sizes that a
 * mesh divides (align). */
#ifndef TENON_SPMD_H
#define TENON_SPMD_H

#include "../pass/pass.h"

/* ---- align.c ---- */

/* Whether n puts zeros behind axes, and nothing elsewhere. */
bool puts_zeros_behind(const Node *n);

/* By input: its type, where readers put zeros behind its axes, directly or cast, transposed or in
 * loops, with its sizes then. */
Type *align_padded(Graph *g, Arena *tmp);

/* ---- sharding.c, recipe.def: what ranks have of inputs and outputs ---- */

/* What the name of a mesh axis says. */
typedef enum {
    AXIS_DP,    /* cuts the batch; parameters are replicated */
    AXIS_FSDP,  /* cuts the batch, and parameters where they are stored */
    AXIS_TP,    /* cuts matrices and what they compute, by recipes for model families */
    AXIS_OTHER, /* cuts what --shard says */
} MeshAxisKind;

MeshAxisKind mesh_axis_kind(const char *name);

/* o's mesh at o's rank, NULL where there is none; fails where the mesh has no such rank. */
Mesh *sharding_mesh(Ctx *ctx, Arena *a, const PassOptions *o);

/* Rows of a batch of which every data rank has as many in each of `iterations` microbatches:
 * `rows`, or more, whose rest is padding. Where an iteration would have none of the rows: `rows`.
 */
int64_t sharding_rows(const Mesh *m, int64_t rows, int64_t iterations);

/* By input or output of a graph, and mesh axis. */
typedef struct Sharding {
    Cut cut[MAX_MESH];
    bool computed_sharded[MAX_MESH]; /* a recipe's matrix: readers compute with the rank's part */
    bool storage_sharded[MAX_MESH];  /* readers are not to be cut for that: it is gathered */
} Sharding;

/* Fills in[] and out[], one for each port of g, from o's mesh, shard, ... and the recipes. Fails
 * where a rule cannot be obeyed, with rule, parameter and sizes. An axis whose size does not divide
 * is to be padded. */
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
    bool strided;                     /* so the step before left the operand: it is copied first */
    double nbytes;                    /* as collective_sec takes them; of SLICE 0 */
    double sec;                       /* its copies included */
} ReshardStep;

enum { MAX_RESHARD = 2 * MAX_MESH };

typedef struct Reshard {
    int nstep;
    ReshardStep step[MAX_RESHARD];
    double sec;
} Reshard;

/* The cheapest steps that bring a value of logical type t from one form to another; false: there
 * are none (a whole or sliced value never becomes partial, a maximum no sum), or a form is not
 * legal. Mesh axes of one rank need no step, and are whole in all steps' forms. */
bool reshard_find(const Machine *machine, const Mesh *m, const Type *t, const Cut *from,
                  const Cut *to, Reshard *r);
const char *reshard_name(ReshardKind k); /* of its op: "all_gather_into_tensor" */
/* Emits one step on v, which has its form `from`: b says phase and scope. */
Value *reshard_emit(Build *b, const Mesh *m, const Type *t, const ReshardStep *s, Value *v);

#endif
