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

/* Whether there is a placement within a capacity. NONE: proved that there is none. */
typedef enum { PLACE_FOUND, PLACE_NONE, PLACE_LIMIT } PlaceAnswer;

typedef struct PlaceResult {
    int64_t bound;      /* largest live sum: no placement has a lower peak */
    int64_t least;      /* proved by search too: no placement has a lower peak */
    int64_t peak;       /* largest offset + nbytes */
    PlaceAnswer answer; /* FOUND: peak is within the capacity asked for */
    bool proved;        /* peak is the least possible, or within the capacity asked for */
    int64_t steps;      /* search steps taken */
} PlaceResult;

/* ---- place.c: the driver ---- */

enum { PLACE_EFFORT = 10 }; /* the default: a few seconds at worst */

/* Fills buf[].offset so that buffers alive at once do not overlap and the peak is small: the least
 * possible for n <= 8, else the least that `effort` units of search find (0: greedy.c only). Stops
 * once the peak is at most max(capacity, bound). The same input gives the same offsets; more effort
 * never gives a higher peak or a lower `least`: searches follow each other in one order, which
 * effort only cuts short. */
PlaceResult place(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort);
/* The same of buffers with the offsets that place gave them with effort 0 and that capacity,
 * without doing that again. */
PlaceResult place_on(Arena *tmp, PlaceBuf *buf, int n, int64_t capacity, int effort);

/* ---- check_overlap.c: shares nothing with the placer ---- */

typedef struct PlaceCheck {
    int64_t bound, peak; /* as in PlaceResult */
    int first, second;   /* the first that meet in time and in address, first < second; or -1 */
} PlaceCheck;

/* Checks a placement made by anyone; n log n. Sizes and offsets are not negative, and neither the
 * sum of all sizes nor offset + nbytes is beyond int64_t. */
PlaceCheck place_check(Arena *tmp, const PlaceBuf *buf, int n);

/* ---- csv.c ---- */

/* The most that positions, sums of sizes and ends of addresses may be. */
#define PLACE_MOST ((int64_t)1 << 62)

/* A part of a file's text. */
typedef struct PlaceSpan {
    size_t begin, end;
} PlaceSpan;

typedef struct PlaceRow {
    const char *id; /* of no other row */
    PlaceSpan text, offset;
} PlaceRow;

/* A CSV file; what is not read of its rows is kept for writing. */
typedef struct PlaceTable {
    Arena *a;
    const char *title; /* of the file, for messages */
    const char *text;  /* NUL added */
    PlaceSpan header;
    bool has_offset; /* a column of that name, which the rows' offset is the field of */
    int n;
    PlaceRow *row;
    PlaceBuf *buf;      /* offset: -1 where the file has none */
    const char *unread; /* "FILE:LINE:COLUMN: ...": the columns that are not read, or NULL */
} PlaceTable;

/* Reads a table, "-" being standard input; fails with the place, what was expected and found. */
PlaceTable *place_read(Arena *a, const char *path);
/* The same of a text, borrowed, with NUL added. */
PlaceTable *place_parse(Arena *a, const char *text, size_t len, const char *title);
/* Fails where a row has no offset, or one that ends beyond PLACE_MOST. */
void place_need_offsets(const PlaceTable *t);
/* Fails where two rows overlap, as place_check says. */
_Noreturn void place_overlap(const PlaceTable *t, const PlaceCheck *c);
/* The rows as they were read, but for the offsets. */
void place_print(Buf *b, const PlaceTable *t);

/* ---- inside: one part of the problem that cannot be cut in time ---- */

enum { EXACT_MOST = 1700 }; /* buffers of a leaf that is searched exactly */

/* Buffers sorted by start. Time is counted in sections: the maximal sets of buffers alive at once.
 */
typedef struct Leaf {
    PlaceBuf *b; /* start and end are sections, nbytes is in units, offset is the best so far */
    int n, nsection;
    int64_t target; /* good enough */
    int64_t peak;   /* of the offsets; INT64_MAX before there are any */
    int64_t steps;  /* taken so far; each a few nanoseconds */
    int64_t stop;   /* no search goes on once it has taken so many */
    int64_t pairs;  /* alive at once */
    int order;      /* the next of the orders */
} Leaf;

/* ---- near.c: the placed buffers that are alive with one ---- */

typedef struct Key {
    int64_t at;
    int i;
} Key;

/* Sorts by at, then i. */
void place_sort(Key *key, int n);
/* The same of keys from 0 to `top`, which become key[]: by buckets, of which count has 2n + 2. */
void place_spread(Key *key, const Key *from, int n, int64_t top, int *count);

typedef struct Rank {
    double key[3]; /* descending, the first counts most */
    int i;
} Rank;

void place_rank(Rank *rank, int n); /* sorts by the keys, then i */

typedef struct Near {
    const PlaceBuf *b;
    int n, stride;
    int *first,
        *earlier;     /* buffers that started before the stride'th, 2 stride'th ..., alive then */
    int *start, *end; /* of a buffer; end is 0 if it is not placed */
} Near;

Near near_new(Arena *tmp, const Leaf *leaf);
void near_clear(Near *t);
void near_set(Near *t, int i, bool placed);

/* Fills the placed buffers alive with buffer i, without itself; returns how many. The list takes n.
 */
int near_fill(const Near *t, int i, int *list);

typedef enum { FIT_FIRST, FIT_BEST } Fit;

/* ---- gaps.c: the gap for a buffer between the placed ones that are alive with it ---- */

typedef struct Gaps Gaps;

Gaps *gaps_new(Arena *tmp, const Leaf *leaf);
void gaps_clear(Gaps *x);
void gaps_put(Gaps *x, int i, int64_t at); /* once for each buffer, between clears */
/* The lowest gap from `floor` on that takes buffer i, or the tightest; what was placed ends there
 * if there is none. */
int64_t gaps_find(Gaps *x, int i, Fit fit, int64_t floor, int64_t *steps);

/* ---- sweep.c ---- */

/* Places buffers in the order of their starts, or with `mirror` of their ends, latest first; n log
 * n. Returns the peak, or -1 once it would reach `ceiling`. *pairs counts the pairs alive at once.
 */
int64_t place_sweep(Arena *tmp, Leaf *leaf, bool mirror, Fit fit, int64_t ceiling, int64_t *offset,
                    int64_t *pairs);

/* ---- greedy.c ---- */

/* Sweeps until the target is met; counts pairs. */
void place_sweeps(Arena *tmp, Leaf *leaf);

/* The greedy orders from leaf->order on, as many as fit below the stop, until the target is met. */
void place_orders(Arena *tmp, Leaf *leaf);

/* ---- small.c ---- */

/* Finds the least peak of a leaf of a few buffers, or one that meets the target. */
void place_small(Arena *tmp, Leaf *leaf);

/* ---- eject.c ---- */

/* Searches a placement with a peak of at most `capacity` near the one there is. FOUND or LIMIT. */
PlaceAnswer place_eject(Arena *tmp, Leaf *leaf, int64_t capacity, int64_t limit);

/* ---- beam.c ---- */

typedef struct Beam Beam; /* a search over one leaf; from call to call its rounds go on */

Beam *beam_new(Arena *tmp, Leaf *leaf);

/* Searches offsets with a peak of at most `capacity` units in rounds of which the last begins
 * before `limit` steps are taken. FOUND or LIMIT; found ones are stored as place_exact does. */
PlaceAnswer place_beam(Beam *x, int64_t capacity, int64_t limit);

/* ---- exact.c ---- */

typedef struct Exact Exact; /* a search over one leaf; remembers what failed from call to call */

Exact *exact_new(Arena *tmp, Leaf *leaf);

/* Searches offsets with a peak of at most `capacity` units for about `limit` steps; when found they
 * are stored in the leaf with their peak. */
PlaceAnswer place_exact(Exact *e, int64_t capacity, int64_t limit);

#endif
