/* A short step: a step of many equal blocks with few of them, which is planned in their place. */
#ifndef TENON_SHORT_H
#define TENON_SHORT_H

#include "decide.h"

enum { SHORT_KEPT = 4 }; /* of the equal blocks: the first two and the last two */

typedef struct Short {
    Graph *g;                       /* its nodes have the names of the whole step's */
    int nequal;                     /* blocks of the whole step that are equal */
    const char *scope[SHORT_KEPT];  /* of those that are kept, in the forward's order */
    int len[SHORT_KEPT];            /* of that text */
    int weight[SHORT_KEPT];         /* how many blocks in a row each stands for, if nothing else is said */
    int64_t nbytes;                 /* of parameters and state that are left out */
    double sec;                     /* of updates that are left out */
    Map node;                       /* by the name of a node of an equal block: its Twin */
} Short;

/* Where a node of the whole step stands among the equal blocks. */
typedef struct Twin {
    int block;                        /* its number among the equal ones */
    const char *name[SHORT_KEPT]; /* of the kept blocks' nodes that are as it */
} Twin;

/* What a plan of the short step comes to for the whole. */
typedef struct ShortNeed {
    int64_t beside; /* bytes at the peak that the plan lacks */
    double sec;
} ShortNeed;

/* False: g has too few equal blocks, or what is outside of them does not allow it. It lives in a. */
bool short_make(Arena *a, const Graph *g, const Machine *m, Short *s);
/* weight: NULL for the usual ones. */
ShortNeed short_need(const Short *s, const int *weight, const Plan *p, Arena *tmp);

#endif
