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
/* Takes out what labels have that are about to be dropped from the model. */
void trws_drop(Trws *t, const bool *dead);
/* Once through all variables in ascending or descending order. */
void trws_pass(Trws *t, bool forward);
/* Of each label: no solution that has it costs less than bound + above[label]. */
void trws_fill_above(Trws *t, double *above);

/* ---- search.c: a solution, made better ---- */

enum { MOST_POOL = 12, MATES = 3, MOST_ROOM = 1 << 23 };

/* Memory for the tables of a block, which every block uses again: it gets as large as one wants, up
 * to MOST_ROOM. */
typedef struct SearchRoom {
    Arena *a;
    double *at;
    int64_t size, used, wanted; /* by the block */
} SearchRoom;

/* A solution within the limits, and what tells where to look for a better one. */
typedef struct Search {
    PickModel *m;
    int *x;
    double cost;   /* INFINITY: there is none yet */
    int64_t steps; /* taken so far */
    uint64_t drawn;
    /* x in numbers */
    double *used; /* of each row */
    int nused;    /* rows for which it is known */
    /* for one block */
    double *price;          /* of each row */
    double keep;            /* labels that are further above are not taken */
    int width;              /* labels of a variable at most */
    double noise;           /* by which labels may seem further above */
    const int *mate[MATES]; /* solutions whose labels alone may be taken; NULL: any */
    /* from the bound */
    double bound;
    const double *guide; /* of each row: its price */
    const double *above; /* of each label: how much more it costs at least; NULL: none is known */
    /* the best of all, and of this run */
    int *best, *run;
    double best_cost, run_cost;
    int64_t best_steps;          /* when the best was found */
    int64_t run_steps;           /* when it last got better */
    int *pool[MOST_POOL], npool; /* the best of earlier runs */
    int quiet;                   /* blocks since something became better */
    /* room */
    double *scratch; /* for one variable's labels */
    int *at, *slot;  /* -1 of each variable and row, for blocks */
    SearchRoom *room;
} Search;

Search *search_new(Arena *a, PickModel *m, SearchRoom *room);
bool search_is_small(const Search *s);           /* blocks may hold all variables */
uint32_t search_draw(Search *s, uint32_t below); /* a number from 0 */
void search_refresh(Search *s);                  /* makes used[] known */
/* Takes a solution if it is within the limits and cheaper than x. */
bool search_offer(Search *s, const int *x);
/* All variables at once; true if that proves that best[] is the best there is, or that there is
 * none. */
bool search_whole(Arena *tmp, Search *s, double cells, int nodes);
/* Labels are about to be dropped from the model; its best has none of them. */
void search_drop(Search *s, const bool *dead);
void search_forget(Search *s);       /* no solution is known any more */
void search_begin_run(Search *s);    /* x counts no more */
void search_back_to_best(Search *s); /* x is the best of all */
/* Blocks, one after the other, until so many steps are taken. */
void search_blocks(Arena *tmp, Search *s, Trws *t, int64_t steps);

/* ---- forest.c: solutions of large models ---- */

/* Offers solutions to the search on a walk from x that takes so many steps. */
void forest_walk(Arena *tmp, Search *s, const int *x, int64_t steps);

/* ---- dual.c: the prices of rows ---- */

typedef struct Dual {
    PickModel *m;
    Trws *t;
    double bound, *price; /* the best so far */
    double *used, *slope, *direction;
    double hope; /* by how much a step should raise the bound */
    int nstep, waited;
    double *above; /* of each label, once finished */
} Dual;

Dual *dual_new(Arena *a, PickModel *m);
void dual_step(Dual *d, Search *s); /* offers solutions to the search */
/* For another limit: from the messages and prices that there are. */
void dual_again(Dual *d);
bool dual_rests(const Dual *d);       /* steps have become too small */
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
