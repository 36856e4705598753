/* compile: chooses the settings of a task (what is computed again, microbatches, rows) and the goal
 * of its step, by planning each. It is the one loop that plans a task until it fits; what a task
 * is, who calls it knows. */
#ifndef TENON_COMPILE_H
#define TENON_COMPILE_H

#include "../base/base.h"

/* What all plans of a setting need, in one arena. */
typedef struct CompileNeed {
    int64_t step, step_need; /* bytes of the step's arena; with its library's reserve */
    int64_t arena, reserve;  /* of all */
    double sec;              /* that a step is estimated to take */
} CompileNeed;

/* ---- the goal of a step whose arena others share ---- */

typedef struct CompileGoal {
    int64_t limit;      /* of all plans; 0: none */
    bool again, slices; /* which of the two are chosen: what is computed again, slices */
    /* Plans all with a goal for the step; what was planned before goes. Returns a code. */
    int (*plan)(void *arg, int64_t goal, CompileNeed *need);
    void *arg;
} CompileGoal;

/* Plans with the limit as the step's goal, and with lower ones while all together need more than
 * the limit and a lower goal can change that. Returns the last code of plan, with its need. */
int compile_within(const CompileGoal *g, CompileNeed *need);

/* ---- settings ---- */

/* One way to do the task, and what it came to. */
typedef struct CompileSetting {
    const char *recompute;
    int64_t accumulate, batch;
    bool sliced;    /* what --chunk auto chooses runs in slices */
    int64_t peak;   /* bytes of the arena */
    int64_t nbytes; /* with the library's reserve; 0: it cannot be planned */
    int64_t
        counted; /* the fewest that a choice of forms counted, before it was planned; 0: unknown */
    double sec;
} CompileSetting;

enum {
    COMPILE_LEVELS = 40,                /* numbers of microbatches, or of rows */
    COMPILE_SLICED = 3,                 /* settings that are planned with --chunk auto */
    COMPILE_TRIED = 4 * COMPILE_LEVELS, /* each is planned once */
};

typedef struct CompileSearch {
    /* the task */
    int64_t limit;                    /* bytes, more than 0 */
    bool recompute, accumulate, rows; /* which may change; rows only if nothing else fits */
    bool counts;                      /* whether forms are chosen, by bytes that are counted */
    bool chunk, sliced;               /* whether any slices were asked for; whether "auto" was */
    void (*plan)(void *arg, CompileSetting *x); /* fills what it comes to */
    void (*tell)(void *arg, int count);         /* before each; NULL: nobody is told */
    void *arg;
    /* what was found */
    CompileSetting best;  /* the fastest that fits; nbytes 0: none does */
    CompileSetting least; /* that needs the fewest bytes; nbytes 0: none was planned */
    bool fewer;           /* best has fewer rows, and nothing else fits */
    int count;            /* settings planned, beside the one that was asked for */
    /* of a search that did not fit: its share of the bytes with all computed again, and how many
     * fewer it needs; 0: unknown */
    double share;
    int64_t below;
    /* how */
    CompileSetting low[COMPILE_SLICED]; /* of all without slices, those with the fewest bytes */
    int nlow;
    CompileSetting tried[COMPILE_TRIED];
    int ntried;
} CompileSearch;

/* The fastest number of microbatches that fits, of the powers of two; if none does, the one that
 * needs the fewest bytes. */
CompileSetting compile_microbatches(CompileSearch *s, const CompileSetting *asked);

/* Looks for what would fit where `asked`, with what it came to, does not. */
void compile_search(CompileSearch *s, const CompileSetting *asked);

#endif
