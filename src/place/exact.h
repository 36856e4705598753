/* exact: the structs that the exact search (exact.c) and its inference (exact_infer.c) share. */
#ifndef TENON_EXACT_H
#define TENON_EXACT_H

#include "place.h"

enum { TABLE = 20 }; /* rows of a table over ranges of sections, at most */

typedef struct Undo {
    int64_t section, level, top;
} Undo;

/* The buffers; constant during a search. */
typedef struct Buffers {
    int n;
    int *start, *end;
    int *twin; /* the first buffer of the same span and size */
    int *log;  /* of the width, rounded down */
    int64_t *size;
    uint64_t *hash;
} Buffers;

/* State that the search sets and undoes, by section: top is the highest end of placed buffers; open
 * buffers lie no lower than level, at least top; rest is the sum of their sizes. */
typedef struct Levels {
    Arena *tmp;
    int64_t capacity;
    int64_t *level, *top, *rest;
    Undo *undo; /* levels to restore */
    int nundo, cap;
} Levels;

/* Places of the open buffers of a state, as they follow from levels. */
typedef struct Places {
    int64_t *floor; /* by buffer: the highest level below it */
    int64_t *place; /* by buffer, no lower than the floor: the lowest it can have */
    int64_t *value; /* scratch */
    bool *carried;  /* by buffer: something is placed right below the floor */
    int64_t *high[TABLE], *low[TABLE]; /* over ranges of sections; high[0] is the levels */
    int *run, *solid;                  /* by section */
    int64_t steps;                     /* that inference has taken */
} Places;

/* Open buffers, by start, that no time cut divides, and the sections from the first to the last. */
typedef struct ExactState {
    const int *id;
    int n;
    int first, last;
} ExactState;

void levels_set(Levels *l, int t, int64_t level, int64_t top);
void levels_undo(Levels *l, int mark); /* back to when there were `mark` undos */

/* Fills all of x but `steps` for the open buffers, from the present levels. */
void places_fill(Places *x, const Buffers *b, const Levels *l, ExactState s);

/* Infers places and levels; false if a section overflows, which counts as a failure of it. */
bool levels_raise(Levels *l, const Buffers *b, Places *x, int *failures, ExactState s);

/* x has room for n buffers and for the sections of `level`. */
Places places_new(Arena *tmp, int n, int nsection, int64_t *level);

#endif
