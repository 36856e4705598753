/* Exact placement: is there a placement with a peak of at most `capacity`?
 *
 * The arena fills from the bottom. A section (a maximal set of buffers alive at once) has a level,
 * below which no open buffer can lie, and the rest, the sum of its open buffers; level + rest may
 * not pass the capacity. A placement can be pushed down until each buffer lies on the bottom or on
 * another one. So the search picks a section t and asks what lies on its level: one of the open
 * buffers that rest there flat, or none, and then t's level rises to the lowest place that any of
 * its open buffers can still take, which is on another open buffer. The branches are disjoint and
 * leave nothing out, in whatever order sections are asked, so the section with the fewest answers,
 * then with the least slack, is asked first: a full section often has just one.
 *
 * Inference: a buffer lies no lower than the highest level under it (its floor), a section's level
 * is no lower than the lowest floor of its open buffers; repeated until nothing changes. Once no
 * open buffer joins two groups of sections, each is a problem of its own, solved one after the
 * other. What failed is a set of open buffers over levels: its 64-bit hash is kept, also across
 * restarts (two different states with one hash would lose a solution, never give a wrong one).
 * Buffers of equal span and size are tried once. Restarts go through several orders of the answers
 * with growing limits.
 *
 * From MiniMalloc (Moffitt, ASPLOS'23: canonical placements, sections, decomposition), with the
 * choice of section, flush placements and remembered failures in place of its order of offsets. */
#include "place.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST_SLICE = 100000, /* steps before the first restart */
    DEPTH = 8000,         /* of the recursion */
    FAILED_BITS = 20,     /* failures remembered, at most */
    BLOCKED = 1 << 20,    /* marks a section that cannot be asked */
};

typedef struct Undo {
    int section;
    int64_t level;
} Undo;

struct Exact {
    Arena *tmp;
    Leaf *leaf;
    int n, nsection;
    int64_t capacity;
    /* of a buffer */
    int *start, *end;
    int *twin; /* the first buffer of the same span and size */
    int *rank; /* the order of answers */
    int64_t *size, *offset, *floor;
    uint64_t *hash;
    /* of a section */
    int64_t *level, *rest, *least;
    int *answers;
    Undo *undo; /* levels to restore */
    int nundo, capundo;
    uint64_t *failed; /* hashes of states without a solution, 0 where none */
    uint64_t mask;
    int *stack; /* lists of buffers of the states on the path */
    size_t used, room;
    int depth;
    int64_t steps, limit;
};

/* Open buffers, by start, that no time cut divides, and the sections from the first to the last. */
typedef struct State {
    const int *id;
    int n;
    int first, last;
} State;

static PlaceAnswer solve(Exact *x, const int *id, int n);

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool covers(const Exact *x, int i, int t)
{
    return x->start[i] <= t && t < x->end[i];
}

/* ---- levels ---- */

static void set_level(Exact *x, int t, int64_t level)
{
    Undo u = {t, x->level[t]};
    PUSH(x->tmp, x->undo, x->nundo, x->capundo, u);
    x->level[t] = level;
}

static void undo_to(Exact *x, int mark)
{
    while (x->nundo > mark) {
        Undo u = x->undo[--x->nundo];
        x->level[u.section] = u.level;
    }
}

/* Fills the floor of each open buffer and the least floor of each section. */
static void fill_floors(Exact *x, State s)
{
    for (int t = s.first; t < s.last; t++)
        x->least[t] = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        int64_t floor = 0;
        for (int t = x->start[i]; t < x->end[i]; t++)
            floor = MAX(floor, x->level[t]);
        x->floor[i] = floor;
        for (int t = x->start[i]; t < x->end[i]; t++)
            x->least[t] = MIN(x->least[t], floor);
    }
    x->steps += s.n;
}

/* Infers floors and levels; false where a section overflows. */
static bool raise_levels(Exact *x, State s)
{
    for (bool changed = true; changed;) {
        changed = false;
        fill_floors(x, s);
        for (int t = s.first; t < s.last; t++) {
            if (x->least[t] == INT64_MAX || x->least[t] <= x->level[t])
                continue;
            set_level(x, t, x->least[t]);
            if (x->level[t] + x->rest[t] > x->capacity)
                return false;
            changed = true;
        }
    }
    return true;
}

/* ---- which section, which answers ---- */

static bool rests_flat(const Exact *x, int i)
{
    for (int t = x->start[i]; t < x->end[i]; t++)
        if (x->level[t] != x->floor[i])
            return false;
    return true;
}

/* Whether a twin of buffer i is among the buffers of list. */
static bool has_twin(const Exact *x, const int *list, int n, int i)
{
    for (int k = 0; k < n; k++)
        if (x->twin[list[k]] == x->twin[i])
            return true;
    return false;
}

/* Counts the answers of each section. One where a buffer of that floor does not rest flat is
 * blocked: something may come to lie below that buffer. */
static void count_answers(Exact *x, State s)
{
    memset(x->answers + s.first, 0, sizeof(int) * (size_t)(s.last - s.first));
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        if (!rests_flat(x, i)) {
            for (int t = x->start[i]; t < x->end[i]; t++)
                x->answers[t] += x->level[t] == x->floor[i] ? BLOCKED : 0;
        } else if (k == 0 || x->twin[s.id[k - 1]] != x->twin[i]) {
            for (int t = x->start[i]; t < x->end[i]; t++)
                x->answers[t]++;
        }
    }
}

/* The section with the fewest answers, "nothing" counted where its slack may allow it. There is
 * one: any that a buffer of least floor covers. */
static int pick_section(Exact *x, State s)
{
    int best = -1, fewest = 0;
    int64_t slack = 0, least = INT64_MAX;
    count_answers(x, s);
    for (int k = 0; k < s.n; k++)
        least = MIN(least, x->floor[s.id[k]] + x->size[s.id[k]]);
    for (int t = s.first; t < s.last; t++) {
        if (!x->answers[t] || x->answers[t] >= BLOCKED)
            continue;
        int64_t room = x->capacity - x->level[t] - x->rest[t];
        int count = x->answers[t] + (room >= least - x->level[t]);
        if (best < 0 || count < fewest || (count == fewest && room < slack)) {
            best = t;
            fewest = count;
            slack = room;
        }
    }
    CHECK(best >= 0);
    return best;
}

/* The lowest top of another open buffer that i can lie on. */
static int64_t lowest_support(const Exact *x, State s, int i)
{
    int64_t low = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int j = s.id[k];
        if (j != i && x->start[j] < x->end[i] && x->start[i] < x->end[j])
            low = MIN(low, x->floor[j] + x->size[j]);
    }
    return low;
}

/* Fills the buffers that rest on the level of section t, by rank; returns how many. *above is the
 * least level of t if none of them does. */
static int fill_answers(const Exact *x, State s, int t, int *list, int64_t *above)
{
    int n = 0;
    *above = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        if (!covers(x, i, t))
            continue;
        int64_t next = x->floor[i] > x->level[t] ? x->floor[i] : lowest_support(x, s, i);
        *above = MIN(*above, next);
        if (x->floor[i] > x->level[t] || has_twin(x, list, n, i))
            continue;
        int at = n++;
        for (; at > 0 && x->rank[list[at - 1]] > x->rank[i]; at--)
            list[at] = list[at - 1];
        list[at] = i;
    }
    return n;
}

/* ---- search ---- */

static PlaceAnswer try_buffer(Exact *x, State s, int i, int64_t level, int *open)
{
    int n = 0;
    for (int k = 0; k < s.n; k++)
        if (s.id[k] != i)
            open[n++] = s.id[k];
    x->offset[i] = level;
    for (int t = x->start[i]; t < x->end[i]; t++) {
        set_level(x, t, level + x->size[i]);
        x->rest[t] -= x->size[i];
    }
    PlaceAnswer answer = solve(x, open, n);
    for (int t = x->start[i]; t < x->end[i]; t++)
        x->rest[t] += x->size[i];
    return answer;
}

static PlaceAnswer try_nothing(Exact *x, State s, int t, int64_t above)
{
    if (above == INT64_MAX || above + x->rest[t] > x->capacity)
        return PLACE_NONE;
    set_level(x, t, above);
    return solve(x, s.id, s.n);
}

static uint64_t hash_state(const Exact *x, State s)
{
    uint64_t h = (uint64_t)x->capacity;
    for (int k = 0; k < s.n; k++)
        h += x->hash[s.id[k]];
    for (int t = s.first; t < s.last; t++)
        h = mix(h + (uint64_t)x->level[t] * 0x9E3779B97F4A7C15u + (uint64_t)t);
    return h | 1;
}

static PlaceAnswer branch(Exact *x, State s)
{
    uint64_t hash = hash_state(x, s), *failed = &x->failed[hash >> 8 & x->mask];
    if (*failed == hash)
        return PLACE_NONE;
    if (x->steps > x->limit || x->used + 2 * (size_t)s.n > x->room || x->depth > DEPTH)
        return PLACE_LIMIT;
    size_t used = x->used;
    int *list = x->stack + used, *open = list + s.n, mark = x->nundo;
    x->used += 2 * (size_t)s.n;
    x->depth++;
    int t = pick_section(x, s);
    int64_t level = x->level[t], above;
    int n = fill_answers(x, s, t, list, &above);
    PlaceAnswer answer = PLACE_NONE;
    for (int k = 0; k <= n && answer == PLACE_NONE; k++) {
        undo_to(x, mark);
        answer = k < n ? try_buffer(x, s, list[k], level, open) : try_nothing(x, s, t, above);
    }
    x->depth--;
    x->used = used;
    if (answer == PLACE_NONE)
        *failed = hash;
    return answer;
}

/* The open buffers up to the first time cut. */
static State next_state(const Exact *x, const int *id, int n)
{
    State s = {id, 1, x->start[id[0]], x->end[id[0]]};
    for (; s.n < n && x->start[id[s.n]] < s.last; s.n++)
        s.last = MAX(s.last, x->end[id[s.n]]);
    return s;
}

static PlaceAnswer solve(Exact *x, const int *id, int n)
{
    State s = {id, n, 0, 0};
    for (int k = 0; k < n; k += s.n) {
        s = next_state(x, id + k, n - k);
        if (!raise_levels(x, s))
            return PLACE_NONE;
    }
    for (int k = 0; k < n; k += s.n) {
        s = next_state(x, id + k, n - k);
        PlaceAnswer answer = branch(x, s);
        if (answer != PLACE_FOUND)
            return answer;
    }
    return PLACE_FOUND;
}

/* ---- orders of answers, restarts ---- */

typedef enum { WIDE_LARGE, LARGE_WIDE, WIDE_SMALL, SMALL_WIDE, NORDER } Order;

typedef struct Rank {
    int64_t key[2]; /* descending */
    int i;
} Rank;

static int compare_rank(const void *p, const void *q)
{
    const Rank *x = p, *y = q;
    for (int k = 0; k < LEN(x->key); k++)
        if (x->key[k] != y->key[k])
            return x->key[k] > y->key[k] ? -1 : 1;
    return x->i - y->i;
}

static void fill_rank(Exact *x, Rank *rank, Order order)
{
    for (int i = 0; i < x->n; i++) {
        int64_t width = x->end[i] - x->start[i], size = x->size[i];
        switch (order) {
        case WIDE_LARGE: rank[i] = (Rank){{width, size}, i}; break;
        case LARGE_WIDE: rank[i] = (Rank){{size, width}, i}; break;
        case WIDE_SMALL: rank[i] = (Rank){{width, -size}, i}; break;
        default: rank[i] = (Rank){{-size, width}, i}; break;
        }
    }
    qsort(rank, (size_t)x->n, sizeof *rank, compare_rank);
    for (int k = 0; k < x->n; k++)
        x->rank[rank[k].i] = k;
}

static void fill_buffers(Exact *x)
{
    for (int i = 0; i < x->n; i++) {
        const PlaceBuf *b = &x->leaf->b[i];
        x->start[i] = (int)b->start;
        x->end[i] = (int)b->end;
        x->size[i] = b->nbytes;
        bool same =
            i && b->start == b[-1].start && b->end == b[-1].end && b->nbytes == b[-1].nbytes;
        x->twin[i] = same ? x->twin[i - 1] : i;
        x->hash[i] = mix((uint64_t)x->twin[i] + 1);
        for (int t = x->start[i]; t < x->end[i]; t++)
            x->rest[t] += x->size[i];
    }
}

Exact *exact_new(Arena *tmp, Leaf *leaf)
{
    Exact *x = NEW(tmp, Exact);
    *x = (Exact){.tmp = tmp, .leaf = leaf, .n = leaf->n, .nsection = leaf->nsection};
    int **of_buffer[] = {&x->start, &x->end, &x->twin, &x->rank};
    int64_t **wide_of_buffer[] = {&x->size, &x->offset, &x->floor};
    int64_t **of_section[] = {&x->level, &x->rest, &x->least};
    for (int i = 0; i < LEN(of_buffer); i++)
        *of_buffer[i] = NEWN(tmp, int, x->n);
    for (int i = 0; i < LEN(wide_of_buffer); i++)
        *wide_of_buffer[i] = NEWN(tmp, int64_t, x->n);
    for (int i = 0; i < LEN(of_section); i++)
        *of_section[i] = NEWN(tmp, int64_t, x->nsection);
    x->hash = NEWN(tmp, uint64_t, x->n);
    x->answers = NEWN(tmp, int, x->nsection);
    x->mask = ((uint64_t)1 << MIN(FAILED_BITS, x->n)) - 1;
    x->failed = NEWN(tmp, uint64_t, x->mask + 1);
    x->room = 4 * (size_t)x->n * (size_t)(x->n + 64);
    x->stack = NEWN(tmp, int, x->room);
    fill_buffers(x);
    return x;
}

static void keep(const Exact *x)
{
    Leaf *leaf = x->leaf;
    leaf->peak = 0;
    for (int i = 0; i < x->n; i++) {
        leaf->b[i].offset = x->offset[i];
        leaf->peak = MAX(leaf->peak, x->offset[i] + x->size[i]);
    }
}

PlaceAnswer place_exact(Exact *x, int64_t capacity, int64_t limit)
{
    Rank *rank = NEWN(x->tmp, Rank, x->n);
    int *id = NEWN(x->tmp, int, x->n);
    for (int i = 0; i < x->n; i++)
        id[i] = i;
    for (int t = 0; t < x->nsection; t++)
        if (x->rest[t] > capacity)
            return PLACE_NONE;
    PlaceAnswer answer = PLACE_LIMIT;
    x->capacity = capacity;
    x->steps = 0;
    for (int round = 0; answer == PLACE_LIMIT && x->steps < limit; round++) {
        int64_t slice = (int64_t)FIRST_SLICE << MIN(round / NORDER, 40);
        x->limit = x->steps + MIN(slice, limit - x->steps);
        x->used = 0;
        fill_rank(x, rank, (Order)(round % NORDER));
        answer = solve(x, id, x->n);
        undo_to(x, 0);
    }
    x->leaf->steps += x->steps;
    if (answer == PLACE_FOUND)
        keep(x);
    return answer;
}
