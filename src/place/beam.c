/* Beam search for a placement within a capacity.
 *
 * The arena is filled from the bottom, as in exact.c. A section has a level, below which no further
 * buffer can lie, and a limit, which the level may not pass, so that its open (unplaced) buffers
 * still fit above; the difference is its slack. All states of one depth are extended together: on
 * the lowest section of a state one of its open buffers is placed, at the highest level under it,
 * or the valley there is filled up to the lower of its banks. Levels are then raised to the lowest
 * floor of an open buffer. The `width` new states of least score go on; the score is the slack lost
 * so far over all sections, plus the loss that the area still open is expected to have in
 * proportion.
 *
 * Rounds differ in how much loss they expect (which favours large buffers first), in the weight of
 * the slack of tight sections, and in noise on the scores; every few rounds the width doubles. The
 * search proves nothing where it fails. It helps where slack is spread everywhere and a depth-first
 * search does not return to its early decisions at the bottom. Cost: O(width) states for each
 * buffer, each O(sum of the open buffers' widths in sections), many sections per vector register.
 *
 * Beam search: Lowerre 1976; for strip packing by skylines e.g. Bennell and Song 2010. */
#include "place.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_WIDTH = 16,
    MOST_WIDTH = 2048,
    SAME = 4,         /* rounds of one width */
    PASSES = 4,       /* of inference */
    LANES = 16,       /* sections for one step */
    LEVELS = 1 << 30, /* levels are counted in so many grains at most */
};

/* A buffer placed in a state, after that of `parent`. */
typedef struct BeamNode {
    int parent, i, offset;
} BeamNode;

typedef struct BeamState {
    int *level, *limit; /* of a section */
    uint64_t *open;     /* bits of buffers */
    uint64_t hash;
    double used; /* weighted slack lost */
    double rest; /* area of the open buffers */
    int nopen;
    int64_t cost; /* of a pass over the open buffers, in steps */
    int node;     /* the last one placed, -1 for none */
} BeamState;

/* A state extended by buffer i at an offset, or with the valley around section t raised to it. */
typedef struct Child {
    double score;
    int state, i, offset, t; /* i < 0: raised */
} Child;

enum { RAISED = -1 };

#define NOISE 0.3 /* of a score, at most */

typedef struct BeamBuffers {
    int n;
    int *start, *end, *size;
    double *area;
} BeamBuffers;

typedef struct BeamSections {
    int n;
    int *low, *slack; /* scratch, slack at first */
    float *weight;    /* of slack */
} BeamSections;

struct Beam {
    Arena *tmp;
    Leaf *leaf;
    BeamBuffers buf;
    BeamSections section;
    int nword;     /* of bits of buffers */
    int64_t grain; /* units of a level */
    int capacity;
    BeamState *now, *next;
    uint64_t *seen; /* hashes of next[] */
    Child *child;
    BeamNode *node;
    int width, capwidth, nnode, capnode;
    int round;
    uint64_t ndrawn;
    double expect, noise; /* of this round */
    int64_t steps, stop;
    int64_t main; /* the capacity asked for first, and its next round */
    int main_round;
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A random number, uniform in [0, 1). */
static double draw(Beam *x)
{
    return (double)(mix(++x->ndrawn * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

/* ---- levels ---- */

/* One pass of inference. Returns 1 where a level rose, -1 where one passes its limit. */
KERNEL(int, raise_levels, (const Beam *x, const BeamState *s), (x, s))
{
    int *restrict low = x->section.low, *restrict level = s->level;
    const int *restrict limit = s->limit, n = x->section.n;
    for (int t = 0; t < n; t++)
        low[t] = INT32_MAX;
    for (int w = 0; w < x->nword; w++)
        for (uint64_t m = s->open[w]; m; m &= m - 1) {
            int i = w * 64 + __builtin_ctzll(m), from = x->buf.start[i], to = x->buf.end[i],
                floor = 0;
            for (int t = from; t < to; t++)
                floor = MAX(floor, level[t]);
            for (int t = from; t < to; t++)
                low[t] = MIN(low[t], floor);
        }
    int rose = 0, over = 0;
    for (int t = 0; t < n; t++) {
        int to = low[t] == INT32_MAX ? level[t] : low[t];
        rose |= to > level[t];
        over |= low[t] != INT32_MAX && to > limit[t];
        level[t] = MAX(to, level[t]);
    }
    return over ? -1 : rose;
}

KERNEL(float, lost_slack, (const Beam *x, const BeamState *s), (x, s))
{
    float sum = 0;
    for (int t = 0; t < x->section.n; t++)
        sum += x->section.weight[t] * (float)(x->section.slack[t] - (s->limit[t] - s->level[t]));
    return sum;
}

/* Infers levels; false where one passes its limit. */
static bool infer(Beam *x, BeamState *s)
{
    for (int pass = 0, rose = 1; rose && pass < PASSES; pass++) {
        rose = raise_levels(x, s);
        x->steps += s->cost + x->section.n / LANES;
        if (rose < 0)
            return false;
    }
    s->used = (double)lost_slack(x, s);
    return true;
}

/* Fills the floor of buffer i; returns the weighted slack that it would cost there, -1 if it does
 * not fit. */
KERNEL(float, try_buffer, (const Beam *x, const BeamState *s, int i, int *floor), (x, s, i, floor))
{
    int from = x->buf.start[i], to = x->buf.end[i], most = 0, least = INT32_MAX;
    const int *level = s->level, *limit = s->limit;
    float sum = 0;
    for (int t = from; t < to; t++) {
        most = MAX(most, level[t]);
        least = MIN(least, limit[t]);
    }
    *floor = most;
    if (most > least)
        return -1;
    for (int t = from; t < to; t++)
        sum += x->section.weight[t] * (float)(most - level[t]);
    return sum;
}

/* ---- children ---- */

static bool is_done(const Beam *x, const BeamState *s, int t)
{
    return s->limit[t] >= x->capacity;
}

/* The lowest section that an open buffer covers; of those the one with the least slack. */
static int find_lowest(const Beam *x, const BeamState *s)
{
    int best = -1;
    for (int t = 0; t < x->section.n; t++) {
        if (is_done(x, s, t) || (best >= 0 && s->level[t] > s->level[best]))
            continue;
        if (best < 0 || s->level[t] < s->level[best] || s->limit[t] < s->limit[best])
            best = t;
    }
    return best;
}

/* The sections around t of its level, from *first to before *last. */
static void find_valley(const Beam *x, const BeamState *s, int t, int *first, int *last)
{
    *first = t;
    *last = t + 1;
    while (*first > 0 && s->level[*first - 1] == s->level[t])
        --*first;
    while (*last < x->section.n && s->level[*last] == s->level[t])
        ++*last;
}

/* Appends the child whose valley around t is filled up to the lower bank, if it may be. */
static int try_raise(const Beam *x, const BeamState *s, int t, Child *c)
{
    int first, last, to = INT32_MAX;
    double sum = 0;
    find_valley(x, s, t, &first, &last);
    if (first > 0 && !is_done(x, s, first - 1))
        to = s->level[first - 1];
    if (last < x->section.n && !is_done(x, s, last))
        to = MIN(to, s->level[last]);
    if (to == INT32_MAX)
        return 0;
    for (int u = first; u < last; u++) {
        if (to > s->limit[u])
            return 0;
        sum += (double)x->section.weight[u] * (to - s->level[u]);
    }
    *c = (Child){s->used + sum + x->expect * s->rest, 0, RAISED, to, t};
    return 1;
}

/* Appends the children of a state; returns how many. */
static int extend(Beam *x, int state, Child *c)
{
    const BeamState *s = &x->now[state];
    int t = find_lowest(x, s), n = 0;
    x->steps += x->section.n / 4;
    for (int w = 0; w < x->nword; w++)
        for (uint64_t m = s->open[w]; m; m &= m - 1) {
            int i = w * 64 + __builtin_ctzll(m), floor;
            if (x->buf.start[i] > t || x->buf.end[i] <= t)
                continue;
            float waste = try_buffer(x, s, i, &floor);
            x->steps += 4 + (x->buf.end[i] - x->buf.start[i]) / LANES;
            if (waste >= 0)
                c[n++] = (Child){s->used + (double)waste + x->expect * (s->rest - x->buf.area[i]),
                                 state, i, floor, t};
        }
    n += try_raise(x, s, t, c + n);
    for (int k = 0; k < n; k++) {
        c[k].state = state;
        c[k].score *= 1 + x->noise * draw(x);
    }
    return n;
}

static int compare_child(const void *p, const void *q)
{
    const Child *x = p, *y = q;
    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return x->state != y->state ? x->state - y->state : x->i - y->i;
}

static void copy_state(const Beam *x, BeamState *to, const BeamState *from)
{
    BeamState s = *from;
    s.level = memcpy(to->level, from->level, sizeof(int) * (size_t)x->section.n);
    s.limit = memcpy(to->limit, from->limit, sizeof(int) * (size_t)x->section.n);
    s.open = memcpy(to->open, from->open, sizeof *s.open * (size_t)x->nword);
    *to = s;
}

static int64_t pass_cost(const Beam *x, int i)
{
    return 2 + (x->buf.end[i] - x->buf.start[i]) / LANES;
}

static void put(Beam *x, BeamState *s, int i, int offset)
{
    for (int t = x->buf.start[i]; t < x->buf.end[i]; t++) {
        s->level[t] = offset + x->buf.size[i];
        s->limit[t] += x->buf.size[i];
    }
    s->open[i / 64] &= ~((uint64_t)1 << (i % 64));
    s->hash += mix(((uint64_t)i << 32) + (uint64_t)offset + 1);
    s->rest -= x->buf.area[i];
    s->cost -= pass_cost(x, i);
    s->nopen--;
    BeamNode node = {s->node, i, offset};
    s->node = x->nnode;
    PUSH(x->tmp, x->node, x->nnode, x->capnode, node);
}

/* Makes *to of a child; false if it has come to an end. */
static bool make_child(Beam *x, BeamState *to, const Child *c)
{
    copy_state(x, to, &x->now[c->state]);
    x->steps += x->section.n / 4;
    if (c->i == RAISED) {
        int first, last;
        find_valley(x, to, c->t, &first, &last);
        for (int t = first; t < last; t++)
            to->level[t] = c->offset;
        to->hash = mix(to->hash + ((uint64_t)c->t << 32) + (uint64_t)c->offset);
    } else {
        put(x, to, c->i, c->offset);
    }
    return !to->nopen || infer(x, to);
}

/* ---- rounds ---- */

static void keep(const Beam *x, const BeamState *s)
{
    Leaf *leaf = x->leaf;
    leaf->peak = 0;
    for (int v = s->node; v >= 0; v = x->node[v].parent) {
        PlaceBuf *b = &leaf->b[x->node[v].i];
        b->offset = x->node[v].offset * x->grain;
        leaf->peak = MAX(leaf->peak, b->offset + b->nbytes);
    }
}

static bool is_seen(const Beam *x, int n, uint64_t hash)
{
    for (int k = 0; k < n; k++)
        if (x->seen[k] == hash)
            return true;
    return false;
}

/* Extends n states by one buffer each; returns how many states go on, or -1: found. */
static int go_on(Beam *x, int n)
{
    int nchild = 0, nnext = 0;
    for (int k = 0; k < n; k++)
        nchild += extend(x, k, x->child + nchild);
    qsort(x->child, (size_t)nchild, sizeof *x->child, compare_child);
    x->steps += 8 * nchild;
    for (int k = 0; k < nchild && nnext < x->width; k++) {
        BeamState *to = &x->next[nnext];
        if (!make_child(x, to, &x->child[k]))
            continue;
        if (!to->nopen) {
            keep(x, to);
            return -1;
        }
        if (!is_seen(x, nnext, to->hash))
            x->seen[nnext++] = to->hash;
        x->steps += nnext / LANES;
    }
    BeamState *swap = x->now;
    x->now = x->next;
    x->next = swap;
    return nnext;
}

static BeamState *new_states(const Beam *x, int n)
{
    BeamState *s = NEWN(x->tmp, BeamState, n);
    for (int k = 0; k < n; k++) {
        s[k].level = NEWN(x->tmp, int, x->section.n);
        s[k].limit = NEWN(x->tmp, int, x->section.n);
        s[k].open = NEWN(x->tmp, uint64_t, x->nword);
    }
    return s;
}

static void widen(Beam *x, int width)
{
    x->width = width;
    if (width <= x->capwidth)
        return;
    x->capwidth = width;
    x->now = new_states(x, width);
    x->next = new_states(x, width);
    x->seen = NEWN(x->tmp, uint64_t, width);
    x->child = NEWN(x->tmp, Child, (size_t)width * (size_t)(x->buf.n + 1));
}

/* The steps of a round of the first width, about. */
static int64_t first_cost(const Beam *x)
{
    int64_t cost = 0;
    for (int i = 0; i < x->buf.n; i++)
        cost += pass_cost(x, i);
    return FIRST_WIDTH * (int64_t)x->buf.n * (cost / 2 + x->section.n / LANES);
}

/* The state in which nothing is placed; false if it is none. */
static bool first_state(Beam *x, BeamState *s)
{
    *s = (BeamState){
        .level = s->level, .limit = s->limit, .open = s->open, .node = -1, .nopen = x->buf.n};
    memset(s->level, 0, sizeof(int) * (size_t)x->section.n);
    for (int t = 0; t < x->section.n; t++)
        s->limit[t] = x->capacity;
    for (int i = 0; i < x->buf.n; i++) {
        s->open[i / 64] |= (uint64_t)1 << (i % 64);
        s->rest += x->buf.area[i];
        s->cost += pass_cost(x, i);
        for (int t = x->buf.start[i]; t < x->buf.end[i]; t++)
            s->limit[t] -= x->buf.size[i];
    }
    for (int t = 0; t < x->section.n; t++)
        if (s->limit[t] < 0)
            return false;
    return true;
}

/* Draws the parameters of this round. */
static void set_scores(Beam *x, BeamState *s)
{
    double power = draw(x), mean = 0, total = 0;
    for (int t = 0; t < x->section.n; t++) {
        x->section.slack[t] = s->limit[t] - s->level[t];
        mean += (double)x->section.slack[t] / x->section.n;
    }
    for (int t = 0; t < x->section.n; t++) {
        x->section.weight[t] = (float)pow((mean + 1) / (x->section.slack[t] + mean / 8 + 1), power);
        total += (double)x->section.weight[t] * x->section.slack[t];
    }
    x->expect = pow(4, draw(x)) * total / s->rest;
    x->noise = NOISE * draw(x);
}

static bool run_round(Beam *x)
{
    widen(x, MIN(MOST_WIDTH, FIRST_WIDTH << MIN(x->round / SAME, 20)));
    x->nnode = 0;
    x->round++;
    x->steps += 4 * (x->buf.n + x->section.n);
    if (!first_state(x, x->now))
        return false;
    set_scores(x, x->now);
    if (!infer(x, x->now))
        return false;
    int n = 1;
    while (n > 0 && x->steps < x->stop)
        n = go_on(x, n);
    return n < 0;
}

Beam *beam_new(Arena *tmp, Leaf *leaf)
{
    Beam *x = NEW(tmp, Beam);
    *x = (Beam){.tmp = tmp, .leaf = leaf, .buf.n = leaf->n, .section.n = leaf->nsection};
    x->nword = x->buf.n / 64 + 1;
    int **of_buffer[] = {&x->buf.start, &x->buf.end, &x->buf.size};
    for (int k = 0; k < LEN(of_buffer); k++)
        *of_buffer[k] = NEWN(tmp, int, x->buf.n);
    x->buf.area = NEWN(tmp, double, x->buf.n);
    x->section.low = NEWN(tmp, int, x->section.n);
    x->section.slack = NEWN(tmp, int, x->section.n);
    x->section.weight = NEWN(tmp, float, x->section.n);
    return x;
}

PlaceAnswer place_beam(Beam *x, int64_t capacity, int64_t limit)
{
    Leaf *leaf = x->leaf;
    x->grain = 1 + capacity / LEVELS;
    x->capacity = (int)(capacity / x->grain);
    for (int i = 0; i < x->buf.n; i++) {
        const PlaceBuf *b = &leaf->b[i];
        x->buf.start[i] = (int)b->start;
        x->buf.end[i] = (int)b->end;
        x->buf.size[i] = (int)((b->nbytes + x->grain - 1) / x->grain);
        x->buf.area[i] = (double)x->buf.size[i] * (x->buf.end[i] - x->buf.start[i]);
    }
    if (!x->main)
        x->main = capacity;
    x->round = capacity == x->main ? x->main_round : 0;
    x->steps = 0;
    x->stop = leaf->stop - leaf->steps;
    bool found = false;
    limit = MIN(limit, x->stop - 1);
    for (int64_t last = first_cost(x); !found && x->steps + last / 2 <= limit;) {
        int64_t before = x->steps;
        found = run_round(x);
        last = x->steps - before;
    }
    if (capacity == x->main)
        x->main_round = x->round;
    leaf->steps += x->steps;
    return found ? PLACE_FOUND : PLACE_LIMIT;
}
