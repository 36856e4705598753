/* Finds a gap for a buffer between the placed ones that are alive with it, without visiting each of
 * these. Placed buffers are kept by address in blocks. A block knows between which times all of its
 * buffers are alive, and between which any is, and its widest gap; so one whose buffers are dead
 * during the life of the new buffer, or are alive with it and leave no gap that is wide enough, is
 * passed in one step. Saved values of a training step are stacked in the order of their lives, so
 * that few blocks are neither. Buffers of short lives would mix such blocks, as equal layers place
 * them at equal addresses; they are also listed by start, and a buffer of a short life looks there
 * and at blocks of long lives.
 *
 * Cost of a buffer: the number of blocks, the members of those that are mixed, and the buffers that
 * start within two short lives. The gap is the one that a visit to all buffers finds. */
#include "place.h"

#include <limits.h>
#include <string.h>

enum {
    BLOCK = 32,
    SHORT = 64, /* sections of a short life, at most */
};

/* Buffers from lo[j] to hi[j], by lo, then start. */
typedef struct GapBlock {
    int n;
    int first_start, last_start, first_end, last_end; /* of its buffers */
    int64_t top;                                      /* the highest of hi */
    int64_t room;                                     /* the widest gap inside */
    int start[BLOCK], end[BLOCK];
    int64_t lo[BLOCK], hi[BLOCK];
} GapBlock;

typedef struct GapList {
    GapBlock **block;
    int count, made; /* block[count] to block[made - 1] are spare ones */
} GapList;

struct Gaps {
    Arena *tmp;
    const PlaceBuf *b;
    GapList all, lasting; /* all buffers that are placed; those of long lives */
    int *brief;           /* those of short lives, placed or not, by start */
    int *end;             /* of a brief one; 0: it is not placed */
    int64_t *offset;      /* of a brief one */
    int *of;              /* of a buffer: where it is in brief */
    int nbrief;
    int *first; /* of a section: the first of brief that starts there or later */
    Key *near;  /* those of brief that are alive with the buffer at hand */
};

/* ---- blocks ---- */

static void measure(GapBlock *k)
{
    k->first_start = k->first_end = INT_MAX;
    k->last_start = k->last_end = -1;
    k->top = k->lo[0];
    k->room = 0;
    for (int j = 0; j < k->n; j++) {
        int64_t gap = k->lo[j] - k->top;
        k->first_start = MIN(k->first_start, k->start[j]);
        k->last_start = MAX(k->last_start, k->start[j]);
        k->first_end = MIN(k->first_end, k->end[j]);
        k->last_end = MAX(k->last_end, k->end[j]);
        k->room = MAX(k->room, gap);
        k->top = MAX(k->top, k->hi[j]);
    }
}

/* For n buffers. Blocks are halved when they are full. */
static GapList list_new(Arena *tmp, int n)
{
    return (GapList){.block = NEWN(tmp, GapBlock *, 2 * n / BLOCK + 2)};
}

/* A new empty block, number k. */
static GapBlock *add_block(Arena *tmp, GapList *l, int k)
{
    if (l->count == l->made)
        l->block[l->made++] = NEW(tmp, GapBlock);
    GapBlock *new = l->block[l->count];
    memmove(l->block + k + 1, l->block + k, sizeof *l->block * (size_t)(l->count++ - k));
    l->block[k] = new;
    new->n = 0;
    return new;
}

/* Moves `count` members of `from`, from number j on, to number i of `to`. */
static void move_members(GapBlock *to, int i, const GapBlock *from, int j, int count)
{
    memmove(to->start + i, from->start + j, sizeof *to->start * (size_t)count);
    memmove(to->end + i, from->end + j, sizeof *to->end * (size_t)count);
    memmove(to->lo + i, from->lo + j, sizeof *to->lo * (size_t)count);
    memmove(to->hi + i, from->hi + j, sizeof *to->hi * (size_t)count);
}

/* Moves the upper half of block k to a new one. */
static void halve(Arena *tmp, GapList *l, int k)
{
    GapBlock *up = add_block(tmp, l, k + 1), *down = l->block[k];
    up->n = BLOCK / 2;
    down->n -= up->n;
    move_members(up, 0, down, down->n, up->n);
    measure(up);
    measure(down);
}

static bool lies_below(const GapBlock *k, int j, int64_t at, int start)
{
    return k->lo[j] != at ? k->lo[j] < at : k->start[j] < start;
}

/* The last block that begins below that place, or the first. */
static int find_block(const GapList *l, int64_t at, int start)
{
    int low = 0, high = l->count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (lies_below(l->block[middle], 0, at, start))
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void enter(Arena *tmp, GapList *l, const PlaceBuf *b, int64_t at)
{
    int start = (int)b->start, k = l->count ? find_block(l, at, start) : 0, j = 0;
    if (!l->count)
        add_block(tmp, l, 0);
    if (l->block[k]->n == BLOCK) {
        halve(tmp, l, k);
        k = find_block(l, at, start);
    }
    GapBlock *to = l->block[k];
    while (j < to->n && lies_below(to, j, at, start))
        j++;
    move_members(to, j + 1, to, j, to->n++ - j);
    to->start[j] = start;
    to->end[j] = (int)b->end;
    to->lo[j] = at;
    to->hi[j] = at + b->nbytes;
    measure(to);
}

/* ---- a walk from the bottom to the top ---- */

typedef struct GapWalk {
    int start, end; /* of the buffer that looks for a place */
    int64_t nbytes;
    Fit fit;
    int64_t top;        /* where what was passed ends */
    int64_t best, room; /* the gap found, or -1, and its width */
    const Key *near;    /* brief buffers that were not passed */
    int nnear;
    const PlaceBuf *b;
} GapWalk;

static bool ended(const GapWalk *w)
{
    return w->best >= 0 && w->fit == FIT_FIRST;
}

/* Passes what lies from lo to hi, and the gap below. */
static void pass(GapWalk *w, int64_t lo, int64_t hi)
{
    int64_t gap = lo - w->top;
    if (gap >= w->nbytes && gap < w->room && !ended(w)) {
        w->best = w->top;
        w->room = gap;
    }
    w->top = MAX(w->top, hi);
}

/* Passes the brief buffers that begin below an address. */
static void pass_near(GapWalk *w, int64_t below)
{
    for (; w->nnear && w->near->at < below; w->near++, w->nnear--)
        pass(w, w->near->at, w->near->at + w->b[w->near->i].nbytes);
}

/* Returns the steps taken. */
static int64_t pass_block(GapWalk *w, const GapBlock *k)
{
    if (k->last_end <= w->start || k->first_start >= w->end)
        return 1;
    if (k->last_start < w->end && k->first_end > w->start && k->room < w->nbytes) {
        pass_near(w, k->lo[0]);
        pass(w, k->lo[0], k->top);
        return 1;
    }
    for (int j = 0; j < k->n; j++) {
        if (k->start[j] >= w->end || k->end[j] <= w->start)
            continue;
        pass_near(w, k->lo[j]);
        pass(w, k->lo[j], k->hi[j]);
    }
    return k->n;
}

/* Lists the brief buffers that are alive with the one that looks for a place, by address. */
static void fill_near(Gaps *x, GapWalk *w)
{
    for (int k = x->first[MAX(0, w->start - SHORT + 1)]; k < x->first[w->end]; k++)
        if (x->end[k] > w->start)
            x->near[w->nnear++] = (Key){x->offset[k], x->brief[k]};
    place_sort(x->near, w->nnear);
}

/* ---- the interface ---- */

static bool is_brief(const PlaceBuf *b)
{
    return b->end - b->start <= SHORT;
}

Gaps *gaps_new(Arena *tmp, const Leaf *leaf)
{
    Gaps *x = NEW(tmp, Gaps);
    *x = (Gaps){.tmp = tmp, .b = leaf->b};
    x->brief = NEWN(tmp, int, leaf->n);
    x->of = NEWN(tmp, int, leaf->n);
    x->first = NEWN(tmp, int, leaf->nsection + 1);
    int at = 0;
    for (int i = 0; i < leaf->n; i++) {
        if (!is_brief(&leaf->b[i]))
            continue;
        while (at <= leaf->b[i].start)
            x->first[at++] = x->nbrief;
        x->of[i] = x->nbrief;
        x->brief[x->nbrief++] = i;
    }
    while (at <= leaf->nsection)
        x->first[at++] = x->nbrief;
    x->end = NEWN(tmp, int, x->nbrief);
    x->offset = NEWN(tmp, int64_t, x->nbrief);
    x->near = NEWN(tmp, Key, x->nbrief);
    x->all = list_new(tmp, leaf->n);
    x->lasting = list_new(tmp, leaf->n - x->nbrief);
    return x;
}

void gaps_clear(Gaps *x)
{
    x->all.count = x->lasting.count = 0;
    memset(x->end, 0, sizeof *x->end * (size_t)x->nbrief);
}

void gaps_put(Gaps *x, int i, int64_t at)
{
    const PlaceBuf *b = &x->b[i];
    enter(x->tmp, &x->all, b, at);
    if (is_brief(b)) {
        x->end[x->of[i]] = (int)b->end;
        x->offset[x->of[i]] = at;
    } else {
        enter(x->tmp, &x->lasting, b, at);
    }
}

int64_t gaps_find(Gaps *x, int i, Fit fit, int64_t floor, int64_t *steps)
{
    const PlaceBuf *b = &x->b[i];
    const GapList *l = is_brief(b) ? &x->lasting : &x->all;
    GapWalk w = {.start = (int)b->start, .end = (int)b->end, .nbytes = b->nbytes, .fit = fit};
    w.top = floor;
    w.best = -1;
    w.room = INT64_MAX;
    w.near = x->near;
    w.b = x->b;
    if (is_brief(b))
        fill_near(x, &w);
    *steps += BLOCK + 4 * w.nnear;
    for (int k = 0; k < l->count && !ended(&w); k++)
        *steps += pass_block(&w, l->block[k]);
    pass_near(&w, INT64_MAX);
    return w.best >= 0 ? w.best : w.top;
}
