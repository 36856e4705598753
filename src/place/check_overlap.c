/* Checks that no two buffers of a placement overlap: a sweep over time with the set of buffers in
 * use, ranked by offset.
 *
 * In the order of time (ends before starts of the same moment), a buffer that starts is compared
 * with its nearest neighbours in use, below and above: as those in use do not overlap each other,
 * it overlaps none if it overlaps neither. The set of ranks in use is a tree of 64-bit words, where
 * a bit tells whether the word below it is nonzero. O(n log n) for sorting, a few words for each
 * buffer.
 *
 * It shares only types with the placer, so that neither hides the other's mistake. */
#include "place.h"

#include <stdlib.h>

enum { LEVELS = 6 }; /* of 6 bits each: more ranks than an int can count */

/* Ranks in use. */
typedef struct Used {
    uint64_t *word[LEVELS]; /* of the last level there is one */
} Used;

static Used used_new(Arena *tmp, int n)
{
    Used u;
    for (int k = 0; k < LEVELS; k++)
        u.word[k] = NEWN(tmp, uint64_t, n = n / 64 + 1);
    return u;
}

static void used_set(Used *u, int rank, bool in)
{
    for (int k = 0; k < LEVELS; k++, rank /= 64) {
        uint64_t *word = &u->word[k][rank / 64], bit = (uint64_t)1 << rank % 64;
        *word = in ? *word | bit : *word & ~bit;
        in = *word != 0;
    }
}

/* The lowest rank under the bits of a word of level k, or the highest. */
static int used_end(const Used *u, int k, int at, uint64_t word, bool lowest)
{
    for (;; word = u->word[--k][at]) {
        at = at * 64 + (lowest ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
        if (!k)
            return at;
    }
}

/* The nearest rank in use above this one, or below it; -1 where there is none. */
static int used_near(const Used *u, int rank, bool above)
{
    for (int k = 0; k < LEVELS; k++, rank /= 64) {
        uint64_t below = ((uint64_t)1 << rank % 64) - 1;
        uint64_t word = u->word[k][rank / 64] & (above ? ~(below << 1 | 1) : below);
        if (word)
            return used_end(u, k, rank / 64, word, above);
    }
    return -1;
}

/* ---- orders ---- */

typedef struct Moment {
    int64_t at;
    int i; /* buffer that starts there, or ~buffer that ends there */
} Moment;

/* Ends, whose i is negative, first. */
static int compare_moment(const void *p, const void *q)
{
    const Moment *x = p, *y = q;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

static bool takes(const PlaceBuf *b)
{
    return b->nbytes > 0 && b->start < b->end;
}

/* Fills the moments of buffers that take space, in order; returns how many. */
static int fill_moments(const PlaceBuf *buf, int n, Moment *moment)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        if (takes(&buf[i])) {
            moment[count++] = (Moment){buf[i].start, i};
            moment[count++] = (Moment){buf[i].end, ~i};
        }
    qsort(moment, (size_t)count, sizeof *moment, compare_moment);
    return count;
}

/* Ranks by offset; `at` has the buffer of each rank. */
static void fill_ranks(Arena *tmp, const PlaceBuf *buf, int n, int *rank, int *at)
{
    Moment *place = NEWN(tmp, Moment, n);
    for (int i = 0; i < n; i++)
        place[i] = (Moment){buf[i].offset, i};
    qsort(place, (size_t)n, sizeof *place, compare_moment);
    for (int r = 0; r < n; r++) {
        at[r] = place[r].i;
        rank[at[r]] = r;
    }
}

/* ---- the sweep ---- */

typedef struct CheckSweep {
    const PlaceBuf *buf;
    int *rank, *at;
    Used used;
} CheckSweep;

/* One of those in use that overlaps buffer i, or -1. */
static int find_overlap(const CheckSweep *s, int i)
{
    int below = used_near(&s->used, s->rank[i], false),
        above = used_near(&s->used, s->rank[i], true);
    const PlaceBuf *x = &s->buf[i];
    if (below >= 0) {
        const PlaceBuf *y = &s->buf[s->at[below]];
        if (y->offset + y->nbytes > x->offset)
            return s->at[below];
    }
    if (above >= 0 && s->buf[s->at[above]].offset < x->offset + x->nbytes)
        return s->at[above];
    return -1;
}

PlaceCheck place_check(Arena *tmp, const PlaceBuf *buf, int n)
{
    PlaceCheck c = {.first = -1, .second = -1};
    if (!n)
        return c;
    CheckSweep s = {buf, NEWN(tmp, int, n), NEWN(tmp, int, n), used_new(tmp, n)};
    Moment *moment = NEWN(tmp, Moment, 2 * (int64_t)n);
    int64_t live = 0;
    int count = fill_moments(buf, n, moment);
    fill_ranks(tmp, buf, n, s.rank, s.at);
    for (int k = 0; k < count; k++) {
        int i = moment[k].i < 0 ? ~moment[k].i : moment[k].i;
        bool starts = moment[k].i >= 0;
        live += starts ? buf[i].nbytes : -buf[i].nbytes;
        c.bound = MAX(c.bound, live);
        c.peak = MAX(c.peak, buf[i].offset + buf[i].nbytes);
        int other = starts && c.first < 0 ? find_overlap(&s, i) : -1;
        if (other >= 0) {
            c.first = MIN(i, other);
            c.second = MAX(i, other);
        }
        used_set(&s.used, s.rank[i], starts);
    }
    return c;
}
