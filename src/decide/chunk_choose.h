/* chunk_choose: which candidates of the pass chunk are taken, and in how many slices. Sections name
 * the file that implements them. */
#ifndef TENON_CHUNK_CHOOSE_H
#define TENON_CHUNK_CHOOSE_H

#include "../chunk/chunk.h"
#include "../plan/plan.h"

/* ---- trial.c: plans of what might be chosen ---- */

/* The options of passes on copies, which tell nobody of them. */
PassOptions trial_options(const PassOptions *o);
/* Runs what w has not run yet on g, a copy of its graph, and plans the result, in a. ordered: by
 * plan_ordered; else by plan_make. */
Plan *trial_plan(Arena *a, const PassWalk *w, Graph *g, const PassOptions *o, const PlanFor *to,
                 bool ordered);

/* ---- chunk_search.c: the choice, by trials alone ---- */

/* The result of a setting, that is, of numbers of slices of all groups, 1 where a group stays
 * whole. */
typedef struct ChunkTrial {
    int64_t peak;    /* bytes, with the library's reserve; -1: it cannot be planned */
    int64_t reserve; /* of these, the reserve */
    double sec;
    int64_t *at_peak; /* by group: bytes there of values that it slices or would slice */
} ChunkTrial;

/* Settings that were planned, and what each came to, for the next search of the same groups. */
typedef struct ChunkKnown {
    struct SliceSetting **setting;
    int n, cap;
} ChunkKnown;

/* Equal candidates are a group and get one number. */
typedef struct ChunkSearch {
    int ngroup;
    const int64_t *units; /* by group: slices at most */
    const bool *clash;    /* [ngroup][ngroup]: both cannot be sliced; NULL: any can */
    int64_t target;       /* bytes; 0: as far as it pays */
    int most; /* trials of the way down, at least 1; half as many of what is taken back */
    void (*run)(void *arg, const int64_t *slices, ChunkTrial *t); /* fills t; at_peak is zeros */
    void *arg;
    ChunkKnown *known; /* in the same arena; NULL: none */
} ChunkSearch;

/* The outcome for a group. */
typedef struct ChunkGroup {
    int64_t slices;  /* 1: it stays whole */
    const char *why; /* it stays whole, or a clause: why it has no more slices; NULL: never asked */
    int64_t
        at_peak;  /* of one that is sliced: bytes at the peak of a setting in which it is whole */
    int64_t peak; /* of the step as it was tried last, without the reserve; 0: never */
    double sec;   /* that its slices add; of one that stays whole, as tried last */
} ChunkGroup;

typedef struct ChunkChoice {
    ChunkGroup *group;
    ChunkTrial at, whole; /* of the choice, and where nothing is sliced */
    bool reached;         /* the target; else `at` has the lowest peak that was found */
    int ntrial;
} ChunkChoice;

/* The numbers with the least added seconds that are found to reach the target, or those up to which
 * more slices pay. The same trials give the same choice. On the way down no trial depends on the
 * target: so one that is the peak of a choice that reached none is reached. */
ChunkChoice chunk_search(Arena *a, const ChunkSearch *s);

/* ---- chunk_choose.c: the same of a graph ---- */

/* The task of a choice. */
typedef struct ChunkTask {
    const ChunkAsked *asked;
    PlanFor to;
    bool ordered;   /* the step is planned by plan_ordered; else by plan_make */
    int64_t memory; /* the target of the plan with its library's reserve; 0: as far as it pays */
} ChunkTask;

/* Chooses the regions that the pass chunk, before which w stands, is to make, and has o, the
 * options of w, name them. Fills r with the candidates and what became of each. */
void chunk_choose(const PassWalk *w, const ChunkTask *t, PassOptions *o, ChunkReport *r);

#endif
