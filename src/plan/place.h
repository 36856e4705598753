/* place: offsets for buffers with fixed life times in one arena (dynamic storage allocation). Needs
 * base only. Sections name the file that implements them. */
#ifndef TENON_PLACE_H
#define TENON_PLACE_H

#include "../base/base.h"

typedef struct PlaceBuf {
    int64_t start,
        end; /* positions, half-open; a buffer of no positions or no bytes takes nothing */
    int64_t nbytes;
    int64_t offset; /* out */
} PlaceBuf;

typedef struct PlaceResult {
    int64_t bound; /* largest live sum: no placement has a lower peak */
    int64_t peak;  /* largest offset + nbytes */
    bool proved;   /* peak is the least possible, or within the capacity asked for */
    int64_t steps; /* search steps taken */
} PlaceResult;

/* ---- place.c: the driver ---- */

enum { PLACE_EFFORT = 10 }; /* the default: a few seconds at worst */

/* Fills buf[].offset so that buffers alive at once do not overlap and the peak is small: the least
 * possible for n <= 8, else the least that `effort` units of search find (0: greedy only). Stops
 * once the peak is at most max(capacity, bound). The same input gives the same offsets. */
PlaceResult place(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort);

/* ---- inside: one part of the problem that cannot be cut in time ---- */

/* Buffers sorted by start. Time is counted in sections: the maximal sets of buffers alive at once.
 */
typedef struct Leaf {
    PlaceBuf *b; /* start and end are sections, nbytes is in units, offset is the best so far */
    int n, nsection;
    int64_t target; /* good enough */
    int64_t peak;   /* of the offsets; INT64_MAX before there are any */
    int64_t steps;  /* taken so far */
} Leaf;

/* ---- place_greedy.c ---- */

/* Several greedy orders, then repaired orders, until the target is met or `limit` more steps went.
 */
void place_greedy(Arena *tmp, Leaf *leaf, int64_t limit);

/* ---- place_exact.c ---- */

typedef enum { PLACE_FOUND, PLACE_NONE, PLACE_LIMIT } PlaceAnswer;
typedef struct Exact Exact; /* a search over one leaf; remembers what failed from call to call */

Exact *exact_new(Arena *tmp, Leaf *leaf);

/* Searches offsets with a peak of at most `capacity` units; when found they are stored in the leaf
 * with their peak. NONE is a proof that there are none. Gives up after `limit` steps. */
PlaceAnswer place_exact(Exact *x, int64_t capacity, int64_t limit);

#endif
