/* The solvers: each works on a model. */
#ifndef TENON_PICK_SOLVE_H
#define TENON_PICK_SOLVE_H

#include "model.h"

/* ---- trws.c: a lower bound by message passing ---- */

typedef struct Trws {
    Arena *a;
    const PickModel *m;
    double *kept;        /* of each label: its cost with prices and what messages brought */
    double **side;       /* of ends 2e and 2e + 1, u and v: what the edge's costs have given away */
    double *sum, *found; /* for one variable */
    double *price;       /* of each row */
    double bound;        /* no solution within the rows costs less */
    int *x;              /* the labels of the last pass */
} Trws;

Trws *trws_new(Arena *a, const PickModel *m);
void trws_set_price(Trws *t, int row, double price);
/* Once through all variables in ascending or descending order. */
void trws_pass(Trws *t, bool forward);
/* Of each label: no solution that has it costs less than bound + above[label]. */
void trws_fill_above(Trws *t, double *above);

/* ---- search.c: a solution, made better ---- */

/* A solution within the limits, and what tells where to look for a better one. */
typedef struct Search {
    PickModel *m;
    int *x;
    double cost;   /* INFINITY: there is none yet */
    double *price; /* of each row, for one block */
    double keep;   /* labels that are further above are not taken */
    double *used;  /* of each row, by x */
    int nused;     /* rows for which it is known */
    int64_t steps; /* taken so far */
    uint64_t seed, drawn;
    int *at, *slot; /* -1 of each variable and row, for blocks */
    /* from the bound's prices */
    double bound;
    const double *guide; /* of each row: its price */
    const double *above; /* of each label: how much more it costs at least; NULL: none is known */
    /* of kicks */
    int *best;
    double best_cost;
    int quiet; /* blocks since something became better */
} Search;

Search *search_new(Arena *a, PickModel *m, uint64_t seed);
uint32_t search_draw(Search *s, uint32_t below); /* a number from 0 */
void search_refresh(Search *s);                  /* makes used[] known */
/* Takes a solution if it is within the limits and cheaper. */
bool search_offer(Search *s, const int *x);
/* All variables at once; true if that proves that best[] is the best there is, or that there is
 * none. */
bool search_whole(Arena *tmp, Search *s, double cells, int nodes);
/* Blocks, one after the other, until so many steps are taken. */
void search_blocks(Arena *tmp, Search *s, int64_t steps);

/* ---- dual.c: the prices of rows ---- */

typedef struct Dual {
    PickModel *m;
    Trws *t;
    double bound, *price; /* the best so far */
    double *used, *slope, *direction;
    double hope; /* by how much a step should raise the bound */
    int nstep, waited;
    int64_t pass_steps;
    double *above; /* of each label, once finished */
} Dual;

Dual *dual_new(Arena *a, PickModel *m);
void dual_step(Dual *d, Search *s);   /* offers solutions to the search */
void dual_finish(Dual *d, Search *s); /* at the best prices; fills above[] */

/* ---- block.c: some variables again, the others as they are ---- */

typedef struct BlockLimits {
    double cells;      /* of a table */
    int nodes;         /* of the enumeration */
    double most;       /* a solution that costs as much is not taken */
    int pinned, label; /* a variable that must have this label; pinned < 0: none */
} BlockLimits;

typedef struct BlockAnswer {
    bool better;   /* x was changed */
    bool complete; /* no solution that differs from x in these variables alone is better than x is
                      now */
} BlockAnswer;

/* Looks for the cheapest solution that differs from x in the given variables alone; some of them
 * stay as they are where the tables would get too large. */
BlockAnswer block_improve(Arena *tmp, Search *s, int n, const int *var, BlockLimits limits);

#endif
