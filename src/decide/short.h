/* A short step: a step of many equal blocks with few of them, which is planned in their place. */
#ifndef TENON_SHORT_H
#define TENON_SHORT_H

#include "decide.h"

enum { SHORT_KEPT = 4 }; /* of the equal blocks: the first two and the last two */

typedef struct Short {
    Graph *g;                      /* its nodes have the names of the whole step's */
    int nequal;                    /* blocks of the whole step that are equal */
    const char *scope[SHORT_KEPT]; /* of those that are kept, in the forward's order */
    int len[SHORT_KEPT];           /* of that text */
    int weight[SHORT_KEPT]; /* how many blocks in a row each stands for, if nothing else is said */
    int64_t nbytes;         /* of parameters and state that are left out */
    double sec;             /* of updates that are left out, and of sums of fewer values */
    Map node;               /* by the name of a node of an equal block: its Twin */
} Short;

/* The place of a node of the whole step among the equal blocks. */
typedef struct Twin {
    int block;                    /* its number among the equal ones */
    const char *name[SHORT_KEPT]; /* of the kept blocks' nodes that are as it */
} Twin;

/* The bytes of each kept block that are alive when the backward begins, and when it has ended. */
typedef struct ShortLoad {
    int64_t saved[SHORT_KEPT], left[SHORT_KEPT];
} ShortLoad;

/* False: g has too few equal blocks, or what is outside of them does not allow it. It lives in a.
 */
bool short_make(Arena *a, const Graph *g, const Machine *m, Short *s);

/* ---- short_need.c: bytes and seconds of the whole step, by a plan of the short one; weight: NULL
 * for the usual ones ---- */

/* Counts them in a plan in which no collective was moved. */
ShortLoad short_load(const Short *s, const Plan *p, Arena *tmp);
/* The bytes of the whole step's need that p lacks. beside: NULL, or by node id what p lacks of the
 * bytes alive where the node runs. */
int64_t short_beside(const Short *s, const int *weight, const ShortLoad *l, const Plan *p,
                     int64_t *beside, Arena *tmp);
/* The whole step's seconds; fills for how many of them it stands still for collectives. */
double short_sec(const Short *s, const int *weight, const Plan *p, double *shown, Arena *tmp);

#endif
