/* chunk: runs regions of a graph in slices, by loops, so that their large values are never whole.
 *
 * A region is all that a cut of one value, the seed, reaches: logits [B * T, V] cut along their
 * rows take the head's product and the loss with them, and the gradients of both. Its nodes become
 * one loop, or two: one of the forward, and one of the backward that computes again what it reads
 * of the first's large values. Results that are sliced are concatenated, results that are partial
 * are added up, over the slices.
 *
 * Method, in the order in which the files come into play:
 *   option     reads the texts of --chunk
 *   find       lists candidates: values alive at the peak, and the axes along which they may be cut
 *   graph_index  knows what reads a value, which node is before which, and some of the paths
 *   grow       has nodes join a region, forward and backward from the seed, by src/cut
 *   reach      finds what of the region a node outside depends on, over any number of nodes
 *   close      divides them among at most two loops, with the nodes between
 *   clone      finds what the second loop computes again
 *   region     tells loop_make() (pass) what is inside, what is read around, and where loops stand
 *   chunk      the pass: makes the regions that it is told, or that patterns name
 * Which candidates are taken, and in how many slices, is not decided here: decide/chunk_choose.c
 * tries them on real plans.
 *
 * Invariants. A region is made as it was grown on trial, or not at all, with the reason. Random
 * numbers do not depend on slices. Results keep their bits where no sum goes over the slices and no
 * product has another shape (ChunkCandidate.bits); sums over slices are made slice by slice, in f32
 * or as --chunk-accumulate says. A value that is known only after the loop may scale what is
 * linear in it, and nothing else.
 *
 * Source: PyTorch's AutoChunker (torch/_inductor/fx_passes/auto_chunker), which grows a region from
 * a product along axis 0; here any value and axis may be the seed. */
#ifndef TENON_CHUNK_H
#define TENON_CHUNK_H

#include "../pass/loop_make.h"
#include "graph_index.h"

/* A region around a seed, cut along one of its axes, with all values of at least half its size that
 * the cut reaches. It may be there in several places: in both bodies of accumulate's loop, which
 * differ in the number of units. */
typedef struct ChunkRegion {
    const char *value; /* the seed's name */
    Cut cut;           /* CUT_SLICE: its axis and outer */
    int64_t inner;     /* elements of the axis in a unit: it is [outer][units][inner] */
    bool all;          /* all values that the cut reaches belong to it, however small */
    bool large;        /* only values as large as the seed do */
    bool cheap;        /* results of the forward's products do not: no product is made again */
    int64_t slices;    /* asked for; 1: no loop is made */
} ChunkRegion;

/* A place where a region's sliced values are made, and their bytes. */
typedef struct ChunkPlace {
    const char *name; /* "SCOPE::OP" */
    int64_t nbytes;
} ChunkPlace;

/* The fate of a candidate. The pass fills `slices`, and `reason` if the seed is in another region;
 * decide/chunk_choose.c fills the rest. */
typedef struct ChunkOutcome {
    int64_t slices;     /* made; 0: none */
    int64_t peak;       /* of the step with the region, without the reserve; 0: it was not tried */
    int64_t nbytes;     /* alive at the peak with the slices; with `peak` 0 an estimate, or 0 */
    double sec;         /* that the region adds to the step; as it was taken, or tried last */
    const char *reason; /* why it was taken or not, as --explain says it */
} ChunkOutcome;

/* A region that could be made, or the reason why there is none, as chunk_find() has found it. */
typedef struct ChunkCandidate {
    ChunkRegion region;
    const char *scope; /* of the seed, and its op */
    const char *op;
    int64_t units;       /* slices at most */
    int group;           /* equal ones of other layers have the same number, from 0 */
    bool member;         /* of a group, another of which was tried for it: scopes are that one's */
    int64_t nbytes;      /* of its sliced values, alive at the peak of the graph without slices */
    int64_t size;        /* bytes of all values that would be sliced, at the peak or not */
    const char **values; /* names of all values that are sliced, clones apart */
    int nvalue;
    ChunkPlace *place; /* their distinct places, which patterns name */
    int nplace, capplace;
    int nnode;          /* of the region, clones included; 0: there is none */
    int loops;          /* 1, or 2: of the forward and of the backward */
    const char *scopes; /* of its nodes, the distinct ones joined: "lm_head, loss" */
    bool bits; /* the results keep their bits: no sum over slices, no product of another shape */
    const char *why; /* why there is no region; NULL: there is one */
    ChunkOutcome made;
} ChunkCandidate;

/* All candidates of a graph: PassOptions.chunk_report. */
typedef struct ChunkReport {
    Arena *a; /* in which the rest lives */
    ChunkCandidate *candidate;
    int ncandidate, cap;
} ChunkReport;

/* ---- option.c ---- */

typedef enum {
    CHUNK_OFF,
    CHUNK_AUTO, /* the driver chooses */
    CHUNK_N,    /* `slices` of the region that holds most bytes at the peak */
} ChunkMode;

typedef struct ChunkPattern {
    const char *pattern; /* SCOPE or SCOPE::OP */
    int64_t slices;      /* 1: the region stays whole */
    const char *text;    /* as it was given, for messages */
} ChunkPattern;

/* The option --chunk. Patterns hold in every mode; among those that name a value the last holds. */
typedef struct ChunkAsked {
    ChunkMode mode;
    int64_t slices; /* of CHUNK_N */
    ChunkPattern *pattern;
    int npattern;
} ChunkAsked;

/* Reads the texts of the option into a. Fails (usage) if one is none of off, auto, N and PATTERN=N,
 * or if two of them are for the whole graph. */
ChunkAsked chunk_asked(Arena *a, const Globs *texts);
/* Whether sums over slices keep their own dtype; NULL: f32. */
bool chunk_narrow(Ctx *ctx, const char *accumulate);

/* ---- find.c ---- */

/* Lists the candidates at the peak of g, bodies of loops included; the most bytes alive there come
 * first. Each has its region grown on trial, or the reason why there is none. */
void chunk_find(Graph *g, Arena *tmp, const PassOptions *o, ChunkReport *r);
/* Whether a pattern may mean the candidate: there is a region, not `all` and not `cheap`. */
bool chunk_nameable(const ChunkCandidate *c);
/* The share of the candidate's sliced bytes whose places a pattern (SCOPE or SCOPE::OP) names; at
 * least CHUNK_NAMED if it names the seed. */
double chunk_named(const ChunkCandidate *c, const char *pattern);
#define CHUNK_NAMED 0.45 /* a pattern that names less of a region does not mean it */

/* ---- region.c ---- */

/* A region's one or two loops (of the forward and of the backward), as loop_make() gets them. */
typedef struct Grown {
    int count;
    LoopPart part[2];
    Node **inside[2]; /* the nodes of each, in order, up to a NULL */
    int64_t nbytes;   /* of the values that are sliced */
    int nnode;
    const char *why; /* why there is no region; NULL: there is one */
} Grown;

/* Whether two regions, perhaps of other values, are cut alike and reach as far. */
bool chunk_alike(const ChunkRegion *x, const ChunkRegion *y);
/* Whether a product or attention of the forward makes v, which takes long to make again. */
bool chunk_costly(const Value *v);
/* The number of units in `seed` as r cuts it, at most that many slices; 0: r cannot cut it. */
int64_t chunk_units(const Value *seed, const ChunkRegion *r);
/* Finds the region around a value of the index's graph. Only if `clone` it changes the graph: it
 * adds the clones that the backward's loop needs, which are counted otherwise. */
Grown chunk_grow(ChunkIndex *index, Arena *tmp, Value *seed, const ChunkRegion *r,
                 const PassOptions *o, bool clone);
/* Fills p->before and p->after: the loop's place in g as it is now, after its last node. */
void chunk_place(const Graph *g, Arena *tmp, LoopPart *p);

#endif
