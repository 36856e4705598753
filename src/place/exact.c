/* Exact placement: is there a placement with a peak of at most `capacity`?
 *
 * The arena fills from the bottom. A section (a maximal set of buffers alive at once) has a level,
 * below which no open buffer can lie, and the rest, the sum of its open buffers; level + rest may
 * not pass the capacity. A placement can be pushed down until each buffer lies on the bottom or on
 * another one. So the search picks a section t and asks what lies on its level: one of the open
 * buffers that rest there flat, or none, and then t's level rises to the lowest place that any of
 * its open buffers can still have, carried from beside t. The branches are disjoint and leave
 * nothing out, in whatever order sections are asked. So the section with the fewest answers is
 * asked first, of those the one that overflowed most often so far, then the lowest: a full section
 * often has just one answer.
 *
 * Inference, repeated until nothing changes: a buffer lies no lower than its floor, the highest
 * level under it; if nothing placed carries it there (levels also rise by inference), then no lower
 * than the lowest top that an open buffer alive with it can have; a section's level is no lower
 * than the lowest place of its open buffers. Once no open buffer joins two groups of sections, each
 * is a problem of its own, solved one after the other. What failed is a set of open buffers over
 * levels: its 64-bit hash is kept, also across restarts (two states of one hash would lose a
 * solution, never give a wrong one). Buffers of equal span and size are tried once. Restarts with
 * growing limits try answers in another order each: the widest first, then by the load met, width
 * and area, then by random mixtures of width and size. What takes one order for ever another often
 * does at once: of the time that such searches take, the tail is heavy (Gomes, Selman and Kautz,
 * AAAI'98).
 *
 * Why a failure counts for any other state with the same open buffers and levels, whatever lies
 * below: a placement of them above the levels, pushed down onto what is placed, either is found, or
 * falls below a level that was raised by "none" - and then it was found among the answers tried
 * before that.
 *
 * From MiniMalloc (Moffitt, ASPLOS'23: placements pushed down, sections, decomposition); the choice
 * of section, flush placements, carried places, remembered failures replace its order of offsets.
 */
#include "place.h"

#include <math.h>
#include <string.h>

enum {
    FIRST_SHARE = 8,   /* of the steps goes to the first dive */
    SAME = 4,          /* restarts with one limit, then it doubles */
    DEPTH = 8000,      /* of the recursion */
    FAILED_BITS = 20,  /* failures remembered, at most */
    STEP = 8,          /* table entries for one step */
    TABLE = 20,        /* rows, at most */
    BLOCKED = 1 << 30, /* marks a section that cannot be asked */
};

typedef struct Undo {
    int64_t section, level, top;
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
    int *log;  /* of the width, rounded down */
    int64_t *size, *offset;
    int64_t *floor; /* the highest level below it */
    int64_t *place; /* no lower than the floor: the lowest it can have */
    int64_t *value; /* scratch */
    bool *carried;  /* something is placed right below the floor */
    uint64_t *hash;
    /* of a section */
    int64_t *level, *top, *rest, *answers; /* top: of what is placed, the level is no lower */
    int64_t *high[TABLE], *low[TABLE];
    int *run, *solid, *failures;
    Undo *undo; /* levels to restore */
    int nundo, capundo;
    uint64_t *failed; /* hashes of states without a solution, 0 where none */
    uint64_t mask;
    int *stack; /* lists of buffers of the states on the path */
    size_t used, room;
    uint64_t ndrawn; /* random numbers, for orders of answers */
    int depth, nround;
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

static void set_level(Exact *x, int t, int64_t level, int64_t top)
{
    Undo u = {t, x->level[t], x->top[t]};
    PUSH(x->tmp, x->undo, x->nundo, x->capundo, u);
    x->level[t] = level;
    x->top[t] = top;
}

static void undo_to(Exact *x, int mark)
{
    while (x->nundo > mark) {
        Undo u = x->undo[--x->nundo];
        x->level[u.section] = u.level;
        x->top[u.section] = u.top;
    }
}

/* The row of a table over ranges of 2^v sections that is as wide as the state. */
static int last_row(State s)
{
    int v = 0;
    while (2 << v <= s.last - s.first)
        v++;
    return v;
}

static KERNEL void max_row(int64_t *restrict to, const int64_t *restrict from, int n, int half)
{
    for (int t = 0; t < n; t++)
        to[t] = MAX(from[t], from[t + half]);
}

static KERNEL void min_row(int64_t *restrict to, const int64_t *restrict from, int n, int half)
{
    for (int t = 0; t < n; t++)
        to[t] = MIN(from[t], from[t + half]);
}

static KERNEL void spread_row(int64_t *restrict to, const int64_t *restrict from, int n, int half)
{
    for (int t = 0; t < n; t++)
        to[t] = MIN(to[t], from[t]);
    for (int t = 0; t < n; t++)
        to[t + half] = MIN(to[t + half], from[t]);
}

/* Fills the floors of open buffers: high[v][t] is the highest level of 2^v sections from t. */
static void fill_floors(Exact *x, State s)
{
    for (int v = 1; v <= last_row(s); v++)
        max_row(x->high[v] + s.first, x->high[v - 1] + s.first, s.last - s.first - (1 << v) + 1,
                1 << (v - 1));
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k], v = x->log[i];
        x->floor[i] = MAX(x->high[v][x->start[i]], x->high[v][x->end[i] - (1 << v)]);
    }
    x->steps += ((s.last - s.first) * last_row(s) + 2 * s.n) / STEP;
}

/* Fills low[0] with the least value of the open buffers that cover each section. */
static void spread_least(Exact *x, State s, const int64_t *value)
{
    int top = last_row(s);
    for (int v = 0; v <= top; v++)
        for (int t = s.first; t < s.last; t++)
            x->low[v][t] = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k], v = x->log[i], t = x->start[i], u = x->end[i] - (1 << v);
        x->low[v][t] = MIN(x->low[v][t], value[i]);
        x->low[v][u] = MIN(x->low[v][u], value[i]);
    }
    for (int v = top; v > 0; v--)
        spread_row(x->low[v - 1] + s.first, x->low[v] + s.first, s.last - s.first - (1 << v) + 1,
                   1 << (v - 1));
    x->steps += (2 * (s.last - s.first) * (top + 1) + 2 * s.n) / STEP;
}

/* Whether what is placed reaches the level of section t. */
static bool is_solid(const Exact *x, int t)
{
    return x->top[t] == x->level[t];
}

/* Fills where the run of sections of a level ends, and how many sections up to each are solid. */
static void fill_runs(Exact *x, State s)
{
    for (int t = s.first; t < s.last; t++)
        x->solid[t] = is_solid(x, t) + (t > s.first ? x->solid[t - 1] : 0);
    for (int t = s.last - 1; t >= s.first; t--)
        x->run[t] = t + 1 < s.last && x->level[t] == x->level[t + 1] ? x->run[t + 1] : t + 1;
}

/* Whether what is placed would carry buffer i at its floor. */
static bool is_carried(const Exact *x, int i)
{
    for (int t = x->start[i], end = x->end[i]; t < end; t = x->run[t]) {
        int last = MIN(x->run[t], end) - 1;
        if (x->level[t] == x->floor[i] && (is_solid(x, t) || x->solid[last] > x->solid[t]))
            return true;
    }
    return false;
}

/* Lowers the places of buffers that nothing carries to the lowest top of those alive with each.
 * True while that changes any. */
static bool relax_places(Exact *x, State s)
{
    bool changed = false;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        x->value[i] = x->place[i] == INT64_MAX ? INT64_MAX : x->place[i] + x->size[i];
    }
    spread_least(x, s, x->value);
    for (int v = 1; v <= last_row(s); v++)
        min_row(x->low[v] + s.first, x->low[v - 1] + s.first, s.last - s.first - (1 << v) + 1,
                1 << (v - 1));
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k], v = x->log[i];
        int64_t on = MIN(x->low[v][x->start[i]], x->low[v][x->end[i] - (1 << v)]);
        if (x->carried[i] || on == INT64_MAX || MAX(on, x->floor[i]) >= x->place[i])
            continue;
        x->place[i] = MAX(on, x->floor[i]);
        changed = true;
    }
    return changed;
}

/* Fills the lowest place that each open buffer can have. */
static void fill_places(Exact *x, State s)
{
    bool all = true;
    fill_floors(x, s);
    fill_runs(x, s);
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        x->carried[i] = is_carried(x, i);
        x->place[i] = x->carried[i] ? x->floor[i] : INT64_MAX;
        all &= x->carried[i];
    }
    while (!all && relax_places(x, s))
        ;
    spread_least(x, s, x->place);
}

/* Infers places and levels; false where a section overflows. */
static bool raise_levels(Exact *x, State s)
{
    for (bool changed = true; changed;) {
        changed = false;
        fill_places(x, s);
        for (int t = s.first; t < s.last; t++) {
            int64_t least = x->low[0][t];
            if (least <= x->level[t])
                continue;
            if (least > x->capacity - x->rest[t]) {
                x->failures[t]++;
                return false;
            }
            set_level(x, t, least, x->top[t]);
            changed = true;
        }
    }
    return true;
}

/* ---- which section, which answers ---- */

/* Whether a twin of buffer i is among the buffers of list. */
static bool has_twin(const Exact *x, const int *list, int n, int i)
{
    for (int k = 0; k < n; k++)
        if (x->twin[list[k]] == x->twin[i])
            return true;
    return false;
}

/* Counts the answers of each section. One where a buffer of that place does not rest flat, or on
 * nothing yet, is blocked: something may come to lie below that buffer first. */
static void count_answers(Exact *x, State s)
{
    memset(x->answers + s.first, 0, sizeof *x->answers * (size_t)(s.last - s.first + 1));
    for (int k = 0; k < s.n; k++) { /* at first the changes from section to section */
        int i = s.id[k];
        bool flat = x->run[x->start[i]] >= x->end[i] && x->carried[i];
        if (flat && k && x->twin[s.id[k - 1]] == x->twin[i])
            continue;
        for (int t = x->start[i]; t < x->end[i]; t = x->run[t]) {
            int64_t add = x->level[t] != x->place[i] ? 0 : flat ? 1 : BLOCKED;
            x->answers[t] += add;
            x->answers[MIN(x->run[t], x->end[i])] -= add;
        }
    }
    for (int t = s.first + 1; t < s.last; t++)
        x->answers[t] += x->answers[t - 1];
}

/* Whether section t with `count` answers is to be asked rather than section u with `fewest`. */
static bool is_better(const Exact *x, int t, int count, int u, int fewest)
{
    if (count != fewest)
        return count < fewest;
    if (x->failures[t] != x->failures[u])
        return x->failures[t] > x->failures[u];
    return x->level[t] < x->level[u];
}

/* The section with the fewest answers, "nothing" counted where its slack may allow it. */
static int pick_section(Exact *x, State s)
{
    int best = -1, fewest = 0;
    int64_t least = INT64_MAX;
    count_answers(x, s);
    for (int k = 0; k < s.n; k++)
        least = MIN(least, x->place[s.id[k]] + x->size[s.id[k]]);
    for (int t = s.first; t < s.last; t++) {
        if (x->answers[t] >= BLOCKED)
            continue;
        int count = (int)x->answers[t] + (x->capacity - x->rest[t] >= least);
        if (best < 0 || is_better(x, t, count, best, fewest)) {
            best = t;
            fewest = count;
        }
    }
    CHECK(best >= 0); /* any that a buffer of least place covers */
    return best;
}

/* Fills the buffers that rest on the level of section t, by rank; returns how many. */
static int fill_answers(const Exact *x, State s, int t, int *list)
{
    int n = 0;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        if (!covers(x, i, t) || x->place[i] > x->level[t] || has_twin(x, list, n, i))
            continue;
        int at = n++;
        for (; at > 0 && x->rank[list[at - 1]] > x->rank[i]; at--)
            list[at] = list[at - 1];
        list[at] = i;
    }
    return n;
}

/* The lowest top of an open buffer beside section t that i can lie on. */
static int64_t lowest_support(const Exact *x, State s, int i, int t)
{
    int64_t low = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int j = s.id[k];
        if (x->start[j] < x->end[i] && x->start[i] < x->end[j] && !covers(x, j, t))
            low = MIN(low, x->place[j] + x->size[j]);
    }
    return low;
}

/* The least level of section t if nothing rests on the one it has. */
static int64_t next_level(const Exact *x, State s, int t)
{
    int64_t next = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        if (!covers(x, i, t))
            continue;
        int64_t low = x->place[i] > x->level[t] ? x->place[i] : lowest_support(x, s, i, t);
        next = MIN(next, low);
    }
    return next;
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
        set_level(x, t, level + x->size[i], level + x->size[i]);
        x->rest[t] -= x->size[i];
    }
    PlaceAnswer answer = solve(x, open, n);
    for (int t = x->start[i]; t < x->end[i]; t++)
        x->rest[t] += x->size[i];
    return answer;
}

static PlaceAnswer try_nothing(Exact *x, State s, int t)
{
    fill_places(x, s); /* those of before the other answers */
    int64_t next = next_level(x, s, t);
    if (next == INT64_MAX || next + x->rest[t] > x->capacity)
        return PLACE_NONE;
    set_level(x, t, next, x->top[t]);
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
    int *list = x->stack + used, mark = x->nundo;
    x->depth++;
    int t = pick_section(x, s);
    int64_t level = x->level[t];
    int n = fill_answers(x, s, t, list), *open = list + n;
    x->used += (size_t)n + (size_t)(n ? s.n - 1 : 0);
    PlaceAnswer answer = PLACE_NONE;
    for (int k = 0; k <= n && answer == PLACE_NONE; k++) {
        undo_to(x, mark);
        answer = k < n ? try_buffer(x, s, list[k], level, open) : try_nothing(x, s, t);
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

enum { NOISE = 3 }; /* added to logarithms of which one may be 0 */

/* Uniform in [0, 1). */
static double draw(Exact *x)
{
    return (double)(mix(++x->ndrawn) >> 11) * 0x1p-53;
}

/* The largest live sum that a buffer meets, of all buffers. */
static double load_of(const Exact *x, int i)
{
    int64_t most = 0;
    for (int t = x->start[i]; t < x->end[i]; t++)
        most = MAX(most, x->rest[t]);
    return (double)most;
}

/* The order of a round: by width; by load met, width and area; by random mixtures of width and
 * size, every third time within the load met. */
static void fill_rank(Exact *x, int round, Rank *rank)
{
    double angle = M_PI * (draw(x) - 0.5), of_width = cos(angle), of_size = sin(angle);
    for (int i = 0; i < x->n; i++) {
        double width = x->end[i] - x->start[i], size = (double)x->size[i];
        double mixed = of_width * log(width) + of_size * log(size) + NOISE * draw(x);
        double load = round % 3 == 1 ? load_of(x, i) : 0;
        double key = round < 2 ? width : mixed;
        rank[i] = (Rank){{load, key, round == 1 ? width * size : size}, i};
    }
    place_rank(rank, x->n);
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
        while (2 << x->log[i] <= x->end[i] - x->start[i])
            x->log[i]++;
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
    int **of_buffer[] = {&x->start, &x->end, &x->twin, &x->rank, &x->log};
    int64_t **wide_of_buffer[] = {&x->size, &x->offset, &x->floor, &x->place, &x->value};
    int64_t **of_section[] = {&x->level, &x->top, &x->rest, &x->answers};
    for (int i = 0; i < LEN(of_buffer); i++)
        *of_buffer[i] = NEWN(tmp, int, x->n);
    for (int i = 0; i < LEN(wide_of_buffer); i++)
        *wide_of_buffer[i] = NEWN(tmp, int64_t, x->n);
    for (int i = 0; i < LEN(of_section); i++)
        *of_section[i] = NEWN(tmp, int64_t, x->nsection + 1);
    x->hash = NEWN(tmp, uint64_t, x->n);
    x->carried = NEWN(tmp, bool, x->n);
    for (int v = 0; v < TABLE && 1 << v <= x->nsection; v++) {
        x->high[v] = v ? NEWN(tmp, int64_t, x->nsection) : x->level;
        x->low[v] = NEWN(tmp, int64_t, x->nsection);
    }
    x->run = NEWN(tmp, int, x->nsection);
    x->solid = NEWN(tmp, int, x->nsection + 1);
    x->failures = NEWN(tmp, int, x->nsection);
    x->mask = ((uint64_t)1 << MIN(FAILED_BITS, x->n / 4 + 8)) - 1;
    x->failed = NEWN(tmp, uint64_t, x->mask + 1);
    x->room = (size_t)x->n * (size_t)(2 * x->n + 64);
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
    int64_t stop = MIN(limit, x->leaf->stop - x->leaf->steps);
    x->capacity = capacity;
    x->steps = 0;
    for (int round = 0; answer == PLACE_LIMIT && x->steps < stop; round++) {
        int64_t slice = limit / FIRST_SHARE << MIN(round / SAME, 10);
        x->limit = x->steps + MIN(slice, stop - x->steps);
        x->used = 0;
        fill_rank(x, x->nround++, rank);
        answer = solve(x, id, x->n);
        undo_to(x, 0);
    }
    x->leaf->steps += x->steps;
    if (answer == PLACE_FOUND)
        keep(x);
    return answer;
}
