/* chunk: parts of a graph that hold its peak are run in slices. chunk.c is the pass: it makes the
 * regions that it is told. find.c lists candidates; grow.c finds the nodes of one and
 * how they are cut, close.c makes one loop of them or two, clone.c what the second
 * computes again, region.c what loop_make.c is told; index.c knows readers and ways, reach.c what
 * is behind a region. Which candidates are taken is the driver's choice (plan/chunk_choose.c). */
#ifndef TENON_CHUNK_H
#define TENON_CHUNK_H

#include "../pass/loop_make.h"
#include "index.h"

/* A region: around a value, cut along one of its axes, with all values of at least half its size
 * that the cut reaches. The same one may stand in several places: in the bodies of accumulate's
 * loop, which differ in the number of units. */
typedef struct ChunkRegion {
    const char *value; /* the seed's name */
    Cut cut;           /* CUT_SLICE: its axis and outer */
    int64_t inner;     /* elements of the axis in a unit: it is [outer][units][inner] */
    bool all;          /* with all values that the cut reaches, however small */
    bool large;        /* with those alone that are as large as the seed, not half as large */
    bool cheap;        /* without what products of the forward make: none is made again */
    int64_t slices;    /* asked; 1: none is made */
} ChunkRegion;

/* Where values that a region slices are made, and how many bytes of them. */
typedef struct ChunkPlace {
    const char *name; /* "SCOPE::OP" */
    int64_t nbytes;
} ChunkPlace;

/* What is known of a candidate. The pass fills it as far as `why`, the driver the rest. */
typedef struct ChunkCandidate {
    ChunkRegion region;
    const char *scope; /* of the seed, and its op */
    const char *op;
    int64_t units;        /* slices at most */
    int group;            /* equal ones of other layers have the same number, from 0 */
    int64_t nbytes;       /* alive at the peak, without the slices, of what they are of; 0: none */
    int64_t size;         /* bytes of all values that would be sliced, at the peak or not */
    int64_t nbytes_slice; /* at the peak with the slices; with `peak` 0 an estimate, or 0 */
    const char **values;  /* names of all values that are sliced, clones apart */
    int nvalue;
    ChunkPlace *place; /* the distinct ones of these: what patterns name */
    int nplace, capplace;
    bool member;        /* of a group, another of which was tried for it: scopes are that one's */
    int nnode;          /* of the region, clones included; 0: there is none */
    int loops;          /* 1, or 2: of the forward and of the backward */
    const char *scopes; /* of its nodes, the distinct ones joined: "lm_head, loss" */
    bool bits; /* the results keep their bits: no sum over slices, no product of another shape */
    const char *why; /* why there is no region; NULL: there is one */
    int64_t taken;   /* slices made; 0: none */
    int64_t
        peak;   /* of the step with it, without the reserve, as the driver tried it; 0: not tried */
    double sec; /* that it adds to the step; of the region that was taken, or tried last */
    const char *decision; /* why it was taken or not, as --explain says it */
} ChunkCandidate;

/* What the pass tells: PassOptions.chunk_report. */
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

/* What --chunk asks for. Patterns hold whatever the mode is; the last that names a value does. */
typedef struct ChunkAsked {
    ChunkMode mode;
    int64_t slices; /* of CHUNK_N */
    ChunkPattern *pattern;
    int npattern;
} ChunkAsked;

/* Reads the texts of the option; fails (usage) where one is none of off, auto, N and PATTERN=N, or
 * two say what holds for the whole graph. In a. */
ChunkAsked chunk_asked(Arena *a, const Globs *texts);
/* Whether sums over slices keep their own dtype; NULL: f32. */
bool chunk_narrow(Ctx *ctx, const char *accumulate);

/* ---- find.c ---- */

/* The candidates at the peak of g, bodies of loops included, by bytes alive there; the largest
 * first. Each with its region grown on trial, or why there is none. */
void chunk_find(Graph *g, Arena *tmp, const PassOptions *o, ChunkReport *r);
/* Whether a pattern may mean the candidate's region: none of a whole microbatch, none that is
 * cheap. */
bool chunk_nameable(const ChunkCandidate *c);
/* Which share of the bytes that the candidate slices a pattern of --chunk PATTERN=N (SCOPE or
 * SCOPE::OP) names; CHUNK_NAMED at least where it names the seed. */
double chunk_named(const ChunkCandidate *c, const char *pattern);
#define CHUNK_NAMED 0.45 /* a region of which a pattern names less is another one */

/* ---- region.c ---- */

/* One or two loops (of the forward and of the backward): what loop_make() is to be given. */
typedef struct Grown {
    int count;
    LoopPart part[2];
    Node **inside[2]; /* the nodes of each, in order, up to a NULL */
    int64_t nbytes;   /* of the values that are sliced */
    int nnode;
    const char *why; /* there is no region; NULL: there is one */
} Grown;

/* Whether two regions, perhaps of other values, are cut alike and reach as far. */
bool chunk_alike(const ChunkRegion *x, const ChunkRegion *y);
/* Whether a product made v, in the forward: the backward's loop would be long about it again. */
bool chunk_costly(const Value *v);
/* Of which number of units a region's seed consists in g; 0: it is no such value. */
int64_t chunk_units(const Value *seed, const ChunkRegion *r);
/* Finds the region around a value of the graph. Changes it only if `clone`: then by the clones that
 * the backward's loop needs; else these are counted. */
Grown chunk_grow(ChunkIndex *index, Arena *tmp, Value *seed, const ChunkRegion *r,
                 const PassOptions *o, bool clone);
/* Fills `before` and `behind`, in g as it is now. */
void chunk_place(const Graph *g, Arena *tmp, LoopPart *p);

#endif
