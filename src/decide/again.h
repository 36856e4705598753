/* The search for what is saved: again.c chooses, again_try.c plans choices, again_between.c
 * searches between two plans, again_near.c changes single values of a front, again_all.c searches
 * among all of tiny steps, again_large.c in large steps, again_moved.c where collectives run beside
 * computing, again_away.c lists what may go to the host's memory, again_beyond.c searches for larger
 * limits too, again_bound.c bounds the seconds.
 */
#ifndef TENON_AGAIN_H
#define TENON_AGAIN_H

#include "short.h"

enum { SMALL_STEP = 64 };  /* values up to which single ones are changed */
enum { LONG_STEP = 5000 }; /* nodes from which on a plan takes long */

/* The forward values of the step's graph, in order, but for those that have a policy. Gathers of
 * parameters are among them where --reshard leaves open whether they are kept. */
typedef struct Values {
    int n;
    const char **name; /* of the node's first result */
    int *block;        /* of the node */
    bool *gather;      /* of a parameter */
    bool *begin;       /* inputs make it before the first block, as embeddings are made */
    bool *may;         /* it can go to the host's memory */
    bool *seam;        /* another block's forward reads it, or it is an output */
    double *sec;       /* of the node */
    int64_t *nbytes;   /* of that result */
    Map number;        /* by name, and one */
} Values;

typedef struct Decider {
    const PassWalk *w;
    const DecideTask *task;
    AgainKnown *known; /* what was tried, for other limits too */
    AgainReport *r;
    Graph *g;          /* as the passes will have it */
    Graph *step;       /* a copy of it, or the body there that has forward and backward */
    Arena *keep, *tmp; /* of the choice; of one plan */
    Planned best;      /* that the report's plan is of */
    PassOptions o;     /* of plans */
    int64_t reserve;   /* the library's, of the step with all saved */
    Blocks blocks;
    Values v;
    struct Decider *shorter; /* that of a short step; NULL: none was made */
    Planned plain;           /* of a short step: the best mixture of which refine() may make more */
    const Short *s; /* g is one: plans stand for those of the whole step; NULL: it is whole */
    Map gathers;    /* by name: of parameters, which may be kept */
    bool loops;     /* the step has some */
    bool away;      /* values can go to the host's memory */
} Decider;

/* Two choices next to each other on a front: one that does not fit, and a slower one that does. */
typedef struct Pair {
    Planned low, high;
    bool along; /* preferred choices count as places of the ladder that they come from */
} Pair;

/* Choices by seconds upward and bytes downward; the first has all values saved. */
typedef struct Front {
    Planned *x;
    int n, cap;
} Front;

static inline bool is_small(const Decider *d)
{
    return d->v.n <= SMALL_STEP && !d->s;
}

static inline bool is_long(const Decider *d)
{
    return d->step->nnode > LONG_STEP;
}

/* ---- again.c ---- */

/* A decider of what w has, which r tells of; its arenas are keep and tmp. */
Decider again_new(const PassWalk *w, const DecideTask *t, const PassOptions *o, AgainReport *r);
/* Finds the step, and its values without a policy. False: it has no backward. */
bool again_begin(Decider *d);
/* Chooses by plans of d's graph, if the step does not fit with all saved, or in any case. */
void again_search(Decider *d);
/* Chooses by the search that suits the step; the choice and the front are of it alone. */
void again_find(Decider *d);

/* ---- again_beyond.c: searches for larger limits ---- */

/* Takes what a larger limit finds, where it fits and is faster than what is chosen. */
void again_find_faster(Decider *d);
/* Chooses anew as for a limit that nothing keeps, and takes what larger limits than its choice's
 * need find that needs less. Where it fits after all, it is chosen as for the limit. */
void again_find_least(Decider *d);

/* The places of a ladder where all blocks have joined, as what lies between is a mixture: the last
 * one, and before it those that save fewer bytes by such a part of what the last does. Returns how
 * many there are. */
int ladder_joined(Decider *d, const Ladder *l, int parts, int *place);

/* The bytes of so many that are left beside parameters, state and the library's reserve. */
double again_left(const Decider *d, int64_t nbytes);

/* Plans what does not depend on the limit, with less effort, of a short step at a few places; n is
 * 0 where no memory is left for plans. */
Front again_front(Decider *d);

/* ---- again_moved.c: the search where collectives run beside computing ---- */

/* Whether the step's collectives do. */
bool again_moves(const Decider *d);
/* Chooses among plans that do not depend on the limit. False: none of them fits. */
bool again_search_moved(Decider *d);

/* ---- again_short.c: the search with a short step in place of the whole ---- */

/* The decider of a short step; NULL: blocks are not equal. It lives in d->keep. */
Decider *again_shorter(Decider *d);
/* The choice for the whole step d that x is for the short step e, which has planned it. */
Planned again_whole(Decider *d, const Decider *e, const Planned *x);
/* The same as again_search(), where blocks are equal. False: they are not. */
bool again_search_short(Decider *d);
/* Adds e's front to d's report, as choices for the whole step. */
void again_take_front(Decider *d, const Decider *e);
/* Whether, by a short step, or by a plan with less effort of a large one, all saved does not fit by
 * far; fills what it needs. */
bool again_misfits(Decider *d, Planned *none);
/* Whether a choice, planned with less effort, needs so much more than the limit that it would not
 * fit if it were planned as it would run; never without memory. */
bool again_far(const Decider *d, const Planned *x);
/* The better of x and of mixtures of two on the front of a short step: the first blocks as in the
 * slower one, as many as it takes to fit, the others as in the faster one. before: x is no worse
 * than mixtures of two on that; NULL: none is known. */
Planned mix_blocks(Decider *d, const Front *f, const Front *before, Planned x);
/* The better one: that fits, else that needs less; then the faster. first: x is, or both are alike.
 */
Planned planned_better(const Decider *d, Planned x, Planned y);
bool planned_first(const Decider *d, const Planned *x, const Planned *y);

/* ---- again_large.c: the search with few plans ---- */

bool again_large(const Decider *d); /* the step is so large that few can be made */
/* Chooses what fits; false: nothing is found that does. */
bool choose_large(Decider *d);
/* The bytes that the forward has saved for the backward with the first steps of l, by how many
 * these are; they live in d->keep. */
const double *ladder_bytes(Decider *d, const Ladder *l);

/* ---- again_try.c: sets of values, and their plans ---- */

/* The graph with most nodes of the forward, among g and loops' bodies in it that have nodes of
 * forward and backward both; NULL: none has. */
Graph *find_step(Graph *g);
void read_values(Decider *d); /* of d->step */
/* The policy of value i in x; POLICY_NONE: it is saved. */
Policy value_policy(const Decider *d, const Planned *x, int i);
/* Gives the nodes their policies, in all bodies. */
void apply_policies(Graph *g, Arena *tmp, const NodePolicy *list, int n);
/* The levels that a word of --recompute gives, by number; NULL: it names no block. */
const Level *levels_of_word(Decider *d, const char *word);
/* The first so many steps of l, beside its base. */
const Level *levels_of_steps(Decider *d, const Ladder *l, int steps);
static inline Level level_at(const Planned *x, int i)
{
    return x->level ? x->level[i] : SAVED;
}
/* x's levels with values i and k computed again where they were not, and saved where they were; k:
 * i or -1 where one value changes. They live in d->keep. */
const Level *levels_changed(const Decider *d, const Planned *x, int i, int k);
/* All gathers of parameters made again, all else saved; NULL: whether they are is not asked. */
const Level *levels_gathers(const Decider *d);
/* Plans x as it would run, or with less effort. */
void plan_full(Decider *d, Planned *x);
/* As plan_full(), where the plan is of use only if it takes fewer seconds; 0: in any case. */
void plan_below(Decider *d, Planned *x, double sec);
/* As plan_full(), as without a limit; with less effort, but for collectives. */
void plan_unlimited(Decider *d, Planned *x);
/* The same, of what is only told: waste between its buffers does not count. */
void plan_told(Decider *d, Planned *x);
Planned plan_quick(Decider *d, const Level *level, const char *word);
/* Whether all that a plan as it would run has beside one with less effort is a better order. */
bool plan_is_order(const Decider *d);
/* Whether x, planned with less effort, may need at most so many bytes if it is planned as it would
 * run. */
bool plan_may_fit(Decider *d, const Planned *x, int64_t nbytes);
/* Plans a short step with less effort, its blocks standing for as many as x's weights say. */
void plan_weighed(Decider *d, Planned *x);
/* Plans a short step with less effort, the first two kept blocks standing for as few blocks as fit,
 * which the result's weight says. */
Planned plan_mixed(Decider *d, const Level *level);
/* As `of`, but for that computing again is preferred, not demanded. */
Planned plan_prefer(Decider *d, const Planned *of);
Planned plan_steps(Decider *d, const Ladder *l, int steps);
bool plan_fits(const Decider *d, const Planned *x);

/* ---- again_away.c: values that go to the host's memory ---- */

/* Blocks from the first on, each with what is saved in x and alive at its peak. */
Ladder away_ladder(const Decider *d, const Planned *x);
/* x's levels, and beside them what the link moves while the forward runs; NULL: nothing. */
const Level *away_free(const Decider *d, const Planned *x);

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
/* Half of what differs as in high, the first half or the second; the rest as in low: of blocks, or,
 * where they differ in one, of its values. NULL: they differ in one value at most. */
const Level *levels_middle(const Decider *d, const Pair *p, bool second);
/* Goes on between the two as long as a choice that is faster than `enough` may be found. */
void pair_search(Decider *d, Pair *p, double enough);

/* ---- again_near.c: single changes of a front's choices ---- */

/* Adds choices that are better, which do not depend on the limit. */
void front_improve(Decider *d, Front *f);

/* ---- again_all.c: all choices of a tiny step ---- */

bool again_tiny(const Decider *d); /* the step is so small that all sets may be listed */
/* Replaces the choice by the best of all sets, as plans would run, within a limit of steps. */
void choose_of_all(Decider *d);

/* ---- again_finish.c: single changes of what is chosen ---- */

/* Changes the choice of a small step without fused nodes by one to three values as long as that
 * makes it faster. */
void choose_finish(Decider *d);

/* ---- again_bound.c ---- */

/* For what a bound is. */
typedef struct BoundFor {
    double nbytes; /* left beside parameters and state */
    bool fused;    /* nodes may be fused */
    bool joined;   /* gathers may be joined */
} BoundFor;

/* The least seconds of what g computes again in any choice, and order, with so many bytes. */
double again_bound(Arena *a, const Graph *g, const Machine *m, const BoundFor *to);
double again_kept_bytes(const Graph *g); /* of parameters and state */

/* A value of the forward that is in memory unless it is computed again. */
typedef struct BoundSaved {
    const char *name; /* of its node's first result */
    double nbytes;
} BoundSaved;

/* The values in memory at a place that every order has, beside parameters and state. */
typedef struct BoundAlive {
    double fixed; /* whatever is computed again */
    BoundSaved *saved;
    int n, cap;
} BoundAlive;

/* Fills at most so many places, which live in a with names of g; returns how many there are. */
int again_alive(Arena *a, const Graph *g, const Machine *m, BoundAlive *to, int most);

#endif
