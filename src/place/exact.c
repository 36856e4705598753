/* Exact placement: is there a placement with a peak of at most `capacity`?
 *
 * The arena is filled from the bottom. A section (a maximal set of buffers alive at once) has a
 * level, below which no open (unplaced) buffer can lie, and a rest, the sum of its open buffers;
 * level + rest may not pass the capacity. Every placement can be pushed down until each buffer lies
 * on the bottom or on another one. So the search picks a section t and asks which buffer lies on
 * its level: one of the open buffers that rest there flat, or none; if none, t's level rises to the
 * lowest place that an open buffer of t can still have, carried by buffers beside t. The branches
 * are disjoint and complete, whatever the order of sections. The section with the fewest answers is
 * asked first, among these the one that overflowed most often so far, then the lowest: a full
 * section often has just one answer.
 *
 * Between questions levels are raised by inference (exact_infer.c). Once no open buffer spans two
 * groups of sections, each group is a problem of its own; they are solved one after the other.
 * Failed states, sets of open buffers over levels, are remembered by a 64-bit hash, also across
 * restarts (a collision can lose a solution, but never give a wrong one). Buffers of equal span and
 * size are tried once. Restarts with growing limits try answers in different orders: the widest
 * first, then by load met, width and area, then by random mixtures of width and size; as the times
 * of such searches are heavy-tailed, another order often succeeds at once (Gomes, Selman and Kautz,
 * AAAI'98).
 *
 * A failure holds for every state with the same open buffers and levels, whatever lies below: a
 * placement of them above the levels, pushed down onto what is placed, is either found, or falls
 * below a level that was raised by "none", and then it was found among the answers tried before.
 *
 * Exponential in the worst case, limited by steps. From MiniMalloc (Moffitt, ASPLOS'23: placements
 * pushed down, sections, decomposition); the choice of section, flush placements, carried places
 * and remembered failures replace its order of offsets. */
#include "exact.h"

#include <math.h>
#include <string.h>

enum {
    FIRST_SHARE = 8,   /* of the steps goes to the first dive */
    SAME = 4,          /* restarts with one limit, then it doubles */
    DEPTH = 8000,      /* of the recursion */
    FAILED_BITS = 20,  /* failures remembered, at most */
    BLOCKED = 1 << 30, /* marks a section that cannot be asked */
};

/* State that decides which section is asked, and which answer is tried first. */
typedef struct ExactChoice {
    int *rank;        /* by buffer: the order of answers */
    int *failures;    /* by section: how often it overflowed */
    int64_t *answers; /* by section: scratch */
    int nround;       /* orders of answers so far */
    uint64_t ndrawn;  /* random numbers for them */
} ExactChoice;

/* Hashes of states without a solution, 0 where none. */
typedef struct Failed {
    uint64_t *hash, mask;
} Failed;

/* Lists of buffers of the states on the path, and how far the search may go. */
typedef struct ExactPath {
    int *stack, depth;
    size_t used, room;
    int64_t limit;
} ExactPath;

struct Exact {
    Leaf *leaf;
    int nsection;
    int64_t *offset; /* by buffer */
    Buffers b;
    Levels l;
    Places x;
    ExactChoice c;
    Failed failed;
    ExactPath path;
};

static PlaceAnswer solve(Exact *e, const int *id, int n);

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool covers(const Buffers *b, int i, int t)
{
    return b->start[i] <= t && t < b->end[i];
}

/* ---- which section, which answers ---- */

/* Whether a twin of buffer i is among the buffers of list. */
static bool has_twin(const Buffers *b, const int *list, int n, int i)
{
    for (int k = 0; k < n; k++)
        if (b->twin[list[k]] == b->twin[i])
            return true;
    return false;
}

/* Counts the answers of each section. One where a buffer of that place does not rest flat, or on
 * nothing yet, is blocked: something may come to lie below that buffer first. */
static void count_answers(const Buffers *b, const Levels *l, const Places *x, int64_t *answers,
                          ExactState s)
{
    memset(answers + s.first, 0, sizeof *answers * (size_t)(s.last - s.first + 1));
    for (int k = 0; k < s.n; k++) { /* at first the changes from section to section */
        int i = s.id[k];
        bool flat = x->run[b->start[i]] >= b->end[i] && x->carried[i];
        if (flat && k && b->twin[s.id[k - 1]] == b->twin[i])
            continue;
        for (int t = b->start[i]; t < b->end[i]; t = x->run[t]) {
            int64_t add = l->level[t] != x->place[i] ? 0 : flat ? 1 : BLOCKED;
            answers[t] += add;
            answers[MIN(x->run[t], b->end[i])] -= add;
        }
    }
    for (int t = s.first + 1; t < s.last; t++)
        answers[t] += answers[t - 1];
}

/* Whether to ask section t with `count` answers rather than section u with `fewest`. */
static bool is_better(const Levels *l, const int *failures, int t, int count, int u, int fewest)
{
    if (count != fewest)
        return count < fewest;
    if (failures[t] != failures[u])
        return failures[t] > failures[u];
    return l->level[t] < l->level[u];
}

/* The section with the fewest answers, "nothing" counted where its slack may allow it. */
static int pick_section(const Buffers *b, const Levels *l, const Places *x, const ExactChoice *c,
                        ExactState s)
{
    int best = -1, fewest = 0;
    int64_t least = INT64_MAX;
    count_answers(b, l, x, c->answers, s);
    for (int k = 0; k < s.n; k++)
        least = MIN(least, x->place[s.id[k]] + b->size[s.id[k]]);
    for (int t = s.first; t < s.last; t++) {
        if (c->answers[t] >= BLOCKED)
            continue;
        int count = (int)c->answers[t] + (l->capacity - l->rest[t] >= least);
        if (best < 0 || is_better(l, c->failures, t, count, best, fewest)) {
            best = t;
            fewest = count;
        }
    }
    CHECK(best >= 0); /* any that a buffer of least place covers */
    return best;
}

/* Fills the buffers that rest on the level of section t, by rank; returns how many. */
static int fill_answers(const Buffers *b, const Levels *l, const Places *x, const int *rank,
                        ExactState s, int t, int *list)
{
    int n = 0;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        if (!covers(b, i, t) || x->place[i] > l->level[t] || has_twin(b, list, n, i))
            continue;
        int at = n++;
        for (; at > 0 && rank[list[at - 1]] > rank[i]; at--)
            list[at] = list[at - 1];
        list[at] = i;
    }
    return n;
}

/* The lowest top of an open buffer beside section t that i can lie on. */
static int64_t lowest_support(const Buffers *b, const Places *x, ExactState s, int i, int t)
{
    int64_t low = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int j = s.id[k];
        if (b->start[j] < b->end[i] && b->start[i] < b->end[j] && !covers(b, j, t))
            low = MIN(low, x->place[j] + b->size[j]);
    }
    return low;
}

/* The least level of section t if nothing rests on the one it has. */
static int64_t next_level(const Buffers *b, const Levels *l, const Places *x, ExactState s, int t)
{
    int64_t next = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        if (!covers(b, i, t))
            continue;
        int64_t low = x->place[i] > l->level[t] ? x->place[i] : lowest_support(b, x, s, i, t);
        next = MIN(next, low);
    }
    return next;
}

/* ---- search ---- */

static PlaceAnswer try_buffer(Exact *e, ExactState s, int i, int64_t level, int *open)
{
    const Buffers *b = &e->b;
    Levels *l = &e->l;
    int n = 0;
    for (int k = 0; k < s.n; k++)
        if (s.id[k] != i)
            open[n++] = s.id[k];
    e->offset[i] = level;
    for (int t = b->start[i]; t < b->end[i]; t++) {
        levels_set(l, t, level + b->size[i], level + b->size[i]);
        l->rest[t] -= b->size[i];
    }
    PlaceAnswer answer = solve(e, open, n);
    for (int t = b->start[i]; t < b->end[i]; t++)
        l->rest[t] += b->size[i];
    return answer;
}

static PlaceAnswer try_nothing(Exact *e, ExactState s, int t)
{
    places_fill(&e->x, &e->b, &e->l, s); /* those of before the other answers */
    int64_t next = next_level(&e->b, &e->l, &e->x, s, t);
    if (next == INT64_MAX || next + e->l.rest[t] > e->l.capacity)
        return PLACE_NONE;
    levels_set(&e->l, t, next, e->l.top[t]);
    return solve(e, s.id, s.n);
}

static uint64_t hash_state(const Buffers *b, const Levels *l, ExactState s)
{
    uint64_t h = (uint64_t)l->capacity;
    for (int k = 0; k < s.n; k++)
        h += b->hash[s.id[k]];
    for (int t = s.first; t < s.last; t++)
        h = mix(h + (uint64_t)l->level[t] * 0x9E3779B97F4A7C15u + (uint64_t)t);
    return h | 1;
}

static bool at_limit(const ExactPath *p, ExactState s, int64_t steps)
{
    return steps > p->limit || p->used + 2 * (size_t)s.n > p->room || p->depth > DEPTH;
}

/* Asks one section and tries its answers, for which the path has room from `list` on. */
static PlaceAnswer ask(Exact *e, ExactState s, int *list)
{
    int t = pick_section(&e->b, &e->l, &e->x, &e->c, s), mark = e->l.nundo;
    int64_t level = e->l.level[t];
    int n = fill_answers(&e->b, &e->l, &e->x, e->c.rank, s, t, list), *open = list + n;
    e->path.used += (size_t)n + (size_t)(n ? s.n - 1 : 0);
    PlaceAnswer answer = PLACE_NONE;
    for (int k = 0; k <= n && answer == PLACE_NONE; k++) {
        levels_undo(&e->l, mark);
        answer = k < n ? try_buffer(e, s, list[k], level, open) : try_nothing(e, s, t);
    }
    return answer;
}

static PlaceAnswer branch(Exact *e, ExactState s)
{
    ExactPath *p = &e->path;
    uint64_t hash = hash_state(&e->b, &e->l, s),
             *failed = &e->failed.hash[hash >> 8 & e->failed.mask];
    if (*failed == hash)
        return PLACE_NONE;
    if (at_limit(p, s, e->x.steps))
        return PLACE_LIMIT;
    size_t used = p->used;
    p->depth++;
    PlaceAnswer answer = ask(e, s, p->stack + used);
    p->depth--;
    p->used = used;
    if (answer == PLACE_NONE)
        *failed = hash;
    return answer;
}

/* The open buffers up to the first time cut. */
static ExactState next_state(const Buffers *b, const int *id, int n)
{
    ExactState s = {id, 1, b->start[id[0]], b->end[id[0]]};
    for (; s.n < n && b->start[id[s.n]] < s.last; s.n++)
        s.last = MAX(s.last, b->end[id[s.n]]);
    return s;
}

static PlaceAnswer solve(Exact *e, const int *id, int n)
{
    ExactState s = {id, n, 0, 0};
    for (int k = 0; k < n; k += s.n) {
        s = next_state(&e->b, id + k, n - k);
        if (!levels_raise(&e->l, &e->b, &e->x, e->c.failures, s))
            return PLACE_NONE;
    }
    for (int k = 0; k < n; k += s.n) {
        s = next_state(&e->b, id + k, n - k);
        PlaceAnswer answer = branch(e, s);
        if (answer != PLACE_FOUND)
            return answer;
    }
    return PLACE_FOUND;
}

/* ---- orders of answers, restarts ---- */

enum { NOISE = 3 }; /* added to logarithms of which one may be 0 */

/* A random number, uniform in [0, 1). */
static double draw(uint64_t *ndrawn)
{
    return (double)(mix(++*ndrawn) >> 11) * 0x1p-53;
}

/* The largest live sum that a buffer meets, of all buffers. */
static double load_of(const Buffers *b, const int64_t *rest, int i)
{
    int64_t most = 0;
    for (int t = b->start[i]; t < b->end[i]; t++)
        most = MAX(most, rest[t]);
    return (double)most;
}

/* The order of a round: by width; by load met, width and area; by random mixtures of width and
 * size, every third time within the load met. */
static void fill_rank(const Buffers *b, const int64_t *rest, ExactChoice *c, Rank *rank)
{
    int round = c->nround++;
    double angle = M_PI * (draw(&c->ndrawn) - 0.5), of_width = cos(angle), of_size = sin(angle);
    for (int i = 0; i < b->n; i++) {
        double width = b->end[i] - b->start[i], size = (double)b->size[i];
        double mixed = of_width * log(width) + of_size * log(size) + NOISE * draw(&c->ndrawn);
        double load = round % 3 == 1 ? load_of(b, rest, i) : 0;
        double key = round < 2 ? width : mixed;
        rank[i] = (Rank){{load, key, round == 1 ? width * size : size}, i};
    }
    place_rank(rank, b->n);
    for (int k = 0; k < b->n; k++)
        c->rank[rank[k].i] = k;
}

/* The buffers of a leaf; rest, by section, gets the sums of those alive. */
static Buffers make_buffers(Arena *tmp, const Leaf *leaf, int64_t *rest)
{
    int n = leaf->n;
    Buffers x = {n,
                 NEWN(tmp, int, n),
                 NEWN(tmp, int, n),
                 NEWN(tmp, int, n),
                 NEWN(tmp, int, n),
                 NEWN(tmp, int64_t, n),
                 NEWN(tmp, uint64_t, n)};
    for (int i = 0; i < n; i++) {
        const PlaceBuf *b = &leaf->b[i];
        x.start[i] = (int)b->start;
        x.end[i] = (int)b->end;
        x.size[i] = b->nbytes;
        while (2 << x.log[i] <= x.end[i] - x.start[i])
            x.log[i]++;
        bool same =
            i && b->start == b[-1].start && b->end == b[-1].end && b->nbytes == b[-1].nbytes;
        x.twin[i] = same ? x.twin[i - 1] : i;
        x.hash[i] = mix((uint64_t)x.twin[i] + 1);
        for (int t = x.start[i]; t < x.end[i]; t++)
            rest[t] += x.size[i];
    }
    return x;
}

static Levels make_levels(Arena *tmp, int nsection)
{
    return (Levels){.tmp = tmp,
                    .level = NEWN(tmp, int64_t, nsection + 1),
                    .top = NEWN(tmp, int64_t, nsection + 1),
                    .rest = NEWN(tmp, int64_t, nsection + 1)};
}

Exact *exact_new(Arena *tmp, Leaf *leaf)
{
    Exact *e = NEW(tmp, Exact);
    int n = leaf->n, nsection = leaf->nsection;
    uint64_t mask = ((uint64_t)1 << MIN(FAILED_BITS, n / 4 + 8)) - 1;
    size_t room = (size_t)n * (size_t)(2 * n + 64);
    *e = (Exact){.leaf = leaf,
                 .nsection = nsection,
                 .offset = NEWN(tmp, int64_t, n),
                 .l = make_levels(tmp, nsection),
                 .c = {.rank = NEWN(tmp, int, n),
                       .failures = NEWN(tmp, int, nsection),
                       .answers = NEWN(tmp, int64_t, nsection + 1)},
                 .failed = {NEWN(tmp, uint64_t, mask + 1), mask},
                 .path = {.stack = NEWN(tmp, int, room), .room = room}};
    e->b = make_buffers(tmp, leaf, e->l.rest);
    e->x = places_new(tmp, n, nsection, e->l.level);
    return e;
}

static void keep(Leaf *leaf, const int64_t *offset)
{
    leaf->peak = 0;
    for (int i = 0; i < leaf->n; i++) {
        leaf->b[i].offset = offset[i];
        leaf->peak = MAX(leaf->peak, offset[i] + leaf->b[i].nbytes);
    }
}

PlaceAnswer place_exact(Exact *e, int64_t capacity, int64_t limit)
{
    const Buffers *b = &e->b;
    Rank *rank = NEWN(e->l.tmp, Rank, b->n);
    int *id = NEWN(e->l.tmp, int, b->n);
    for (int i = 0; i < b->n; i++)
        id[i] = i;
    for (int t = 0; t < e->nsection; t++)
        if (e->l.rest[t] > capacity)
            return PLACE_NONE;
    PlaceAnswer answer = PLACE_LIMIT;
    int64_t *steps = &e->x.steps, stop = MIN(limit, e->leaf->stop - e->leaf->steps);
    e->l.capacity = capacity;
    *steps = 0;
    for (int round = 0; answer == PLACE_LIMIT && *steps < stop; round++) {
        int64_t slice = limit / FIRST_SHARE << MIN(round / SAME, 10);
        e->path.limit = *steps + MIN(slice, stop - *steps);
        e->path.used = 0;
        fill_rank(b, e->l.rest, &e->c, rank);
        answer = solve(e, id, b->n);
        levels_undo(&e->l, 0);
    }
    e->leaf->steps += *steps;
    if (answer == PLACE_FOUND)
        keep(e->leaf, e->offset);
    return answer;
}
