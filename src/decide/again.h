/* The search for what is computed again: again.c chooses, again_try.c plans sets of values,
 * again_between.c searches between two plans, again_bound.c bounds the seconds. */
#ifndef TENON_AGAIN_H
#define TENON_AGAIN_H

#include "decide.h"

enum { SMALL_STEP = 64 }; /* values up to which single ones are changed */

/* The forward values of the step's graph, in order, but for those that have a policy. */
typedef struct Values {
    int n;
    const char **name; /* of the node's first result */
    int *block;        /* of the node */
    double *sec;       /* of the node */
    int64_t *nbytes;   /* of that result */
    Map number;        /* by name, and one */
} Values;

typedef struct Decider {
    const PassWalk *w;
    const DecideTask *task;
    AgainKnown *known; /* what was tried, for other limits too */
    Map seen;          /* by the set, as text: what this search asked for */
    int nseen;
    AgainReport *r;
    Graph *g;          /* as the passes will have it */
    Graph *step;       /* a copy of it, or the body there that has forward and backward */
    Arena *keep, *tmp; /* of the choice; of one plan */
    PassOptions o;     /* of plans */
    int64_t reserve;   /* the library's, of the step with all saved */
    Blocks blocks;
    Values v;
} Decider;

/* Two choices next to each other on a front: one that does not fit, and a slower one that does. */
typedef struct Pair {
    Planned low, high;
} Pair;

/* Choices by seconds upward and bytes downward. */
typedef struct Front {
    Planned *x;
    int n, cap;
} Front;

/* ---- again_try.c: sets of values, and their plans ---- */

/* The graph with most nodes of the forward, among g and loops' bodies in it that have nodes of
 * forward and backward both; NULL: none has. */
Graph *find_step(Graph *g);
void read_values(Decider *d); /* of d->step */
/* The policy of x's values: they are computed again; but a loop of the forward keeps what that of
 * the backward reads, whatever is preferred. */
Policy set_policy(const Graph *step, const Planned *x);
/* Gives nodes of these names the policy, in all bodies. */
void apply_names(Graph *g, const Map *names, Policy p);
/* The values that a word of --recompute has computed again, by number; NULL: it names no block. */
const bool *set_of_word(Decider *d, const char *word);
static inline bool set_has(const bool *again, int i)
{
    return again && again[i];
}
/* x's set with values i and k in it where they were not, and the other way round; k: i or -1 where
 * one value changes. It lives in d->keep. */
const bool *set_changed(const Decider *d, const Planned *x, int i, int k);
/* Plans x as it would run, or with less effort. */
void plan_full(Decider *d, Planned *x);
Planned plan_quick(Decider *d, const bool *again, const char *word);
Planned plan_prefer(Decider *d, const bool *again); /* the set is preferred, not demanded */
Planned plan_steps(Decider *d, const Ladder *l, int steps);
bool plan_fits(const Decider *d, const Planned *x);

/* ---- again_between.c: fronts, and the search between two choices ---- */

void front_add(Arena *a, Front *f, Planned x); /* unless it cannot be planned */
/* Keeps the first, and what needs fewer bytes than all that are faster. */
void front_close(Front *f);
/* The number of the fastest that fits; else of the last. */
int front_find(const Decider *d, const Front *f);
/* Adds halves of the two next to the limit and of the two below, where they are better. */
void front_widen(Decider *d, Front *f);
/* Takes of x, which was made of the two, what lies between them; whether there is any. */
bool pair_take(const Decider *d, Pair *p, const Planned *x, int n);
/* Goes on between the two as long as a choice that is faster than `enough` may be found. */
void pair_search(Decider *d, Pair *p, double enough);

/* ---- again_bound.c ---- */

/* The least seconds of what g computes again in any choice for which so many bytes are left beside
 * parameters and state. */
double again_bound(Arena *a, const Graph *g, const Machine *m, double nbytes);
double again_kept_bytes(const Graph *g); /* of parameters and state */

#endif
