/* Inference for the exact search: raises the levels of sections from the open buffers. A buffer
 * lies no lower than its floor, the highest level under it; if no placed buffer carries it there
 * (levels also rise by inference), then no lower than the lowest top that an open buffer alive with
 * it can have. A section's level is no lower than the lowest place of its open buffers. This is
 * repeated until nothing changes; it ends, as places only rise and are at most the capacity.
 *
 * Cost of a round: n log n for n sections, by tables over ranges of 2^v sections: the maximum of a
 * range, and the minimum over buffers that cover a section, follow from two that overlap. */
#include "exact.h"

enum { STEP = 8 }; /* table entries for one step */

void levels_set(Levels *l, int t, int64_t level, int64_t top)
{
    Undo u = {t, l->level[t], l->top[t]};
    PUSH(l->tmp, l->undo, l->nundo, l->cap, u);
    l->level[t] = level;
    l->top[t] = top;
}

void levels_undo(Levels *l, int mark)
{
    while (l->nundo > mark) {
        Undo u = l->undo[--l->nundo];
        l->level[u.section] = u.level;
        l->top[u.section] = u.top;
    }
}

/* The row of a table over ranges of 2^v sections that is as wide as the state. */
static int last_row(ExactState s)
{
    int v = 0;
    while (2 << v <= s.last - s.first)
        v++;
    return v;
}

KERNEL(void, max_row, (int64_t *restrict to, const int64_t *restrict from, int n, int half),
       (to, from, n, half))
{
    for (int t = 0; t < n; t++)
        to[t] = MAX(from[t], from[t + half]);
}

KERNEL(void, min_row, (int64_t *restrict to, const int64_t *restrict from, int n, int half),
       (to, from, n, half))
{
    for (int t = 0; t < n; t++)
        to[t] = MIN(from[t], from[t + half]);
}

KERNEL(void, spread_row, (int64_t *restrict to, const int64_t *restrict from, int n, int half),
       (to, from, n, half))
{
    for (int t = 0; t < n; t++)
        to[t] = MIN(to[t], from[t]);
    for (int t = 0; t < n; t++)
        to[t + half] = MIN(to[t + half], from[t]);
}

/* Fills the floors of open buffers: high[v][t] is the highest level of 2^v sections from t. */
static void fill_floors(const Buffers *b, Places *x, ExactState s)
{
    for (int v = 1; v <= last_row(s); v++)
        max_row(x->high[v] + s.first, x->high[v - 1] + s.first, s.last - s.first - (1 << v) + 1,
                1 << (v - 1));
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k], v = b->log[i];
        x->floor[i] = MAX(x->high[v][b->start[i]], x->high[v][b->end[i] - (1 << v)]);
    }
    x->steps += ((s.last - s.first) * last_row(s) + 2 * s.n) / STEP;
}

/* Fills low[0] with the least value of the open buffers that cover each section. */
static void spread_least(const Buffers *b, Places *x, ExactState s, const int64_t *value)
{
    int top = last_row(s);
    for (int v = 0; v <= top; v++)
        for (int t = s.first; t < s.last; t++)
            x->low[v][t] = INT64_MAX;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k], v = b->log[i], t = b->start[i], u = b->end[i] - (1 << v);
        x->low[v][t] = MIN(x->low[v][t], value[i]);
        x->low[v][u] = MIN(x->low[v][u], value[i]);
    }
    for (int v = top; v > 0; v--)
        spread_row(x->low[v - 1] + s.first, x->low[v] + s.first, s.last - s.first - (1 << v) + 1,
                   1 << (v - 1));
    x->steps += (2 * (s.last - s.first) * (top + 1) + 2 * s.n) / STEP;
}

/* Whether what is placed reaches the level of section t. */
static bool is_solid(const Levels *l, int t)
{
    return l->top[t] == l->level[t];
}

/* Fills where the run of sections of a level ends, and how many sections up to each are solid. */
static void fill_runs(const Levels *l, Places *x, ExactState s)
{
    for (int t = s.first; t < s.last; t++)
        x->solid[t] = is_solid(l, t) + (t > s.first ? x->solid[t - 1] : 0);
    for (int t = s.last - 1; t >= s.first; t--)
        x->run[t] = t + 1 < s.last && l->level[t] == l->level[t + 1] ? x->run[t + 1] : t + 1;
}

/* Whether what is placed would carry buffer i at its floor. */
static bool is_carried(const Buffers *b, const Levels *l, const Places *x, int i)
{
    for (int t = b->start[i], end = b->end[i]; t < end; t = x->run[t]) {
        int last = MIN(x->run[t], end) - 1;
        if (l->level[t] == x->floor[i] && (is_solid(l, t) || x->solid[last] > x->solid[t]))
            return true;
    }
    return false;
}

/* Lowers the places of buffers that nothing carries to the lowest top of those alive with each.
 * True while that changes any. */
static bool relax_places(const Buffers *b, Places *x, ExactState s)
{
    bool changed = false;
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        x->value[i] = x->place[i] == INT64_MAX ? INT64_MAX : x->place[i] + b->size[i];
    }
    spread_least(b, x, s, x->value);
    for (int v = 1; v <= last_row(s); v++)
        min_row(x->low[v] + s.first, x->low[v - 1] + s.first, s.last - s.first - (1 << v) + 1,
                1 << (v - 1));
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k], v = b->log[i];
        int64_t on = MIN(x->low[v][b->start[i]], x->low[v][b->end[i] - (1 << v)]);
        if (x->carried[i] || on == INT64_MAX || MAX(on, x->floor[i]) >= x->place[i])
            continue;
        x->place[i] = MAX(on, x->floor[i]);
        changed = true;
    }
    return changed;
}

/* Fills the lowest place that each open buffer can have. */
void places_fill(Places *x, const Buffers *b, const Levels *l, ExactState s)
{
    bool all = true;
    fill_floors(b, x, s);
    fill_runs(l, x, s);
    for (int k = 0; k < s.n; k++) {
        int i = s.id[k];
        x->carried[i] = is_carried(b, l, x, i);
        x->place[i] = x->carried[i] ? x->floor[i] : INT64_MAX;
        all &= x->carried[i];
    }
    while (!all && relax_places(b, x, s))
        ;
    spread_least(b, x, s, x->place);
}

/* Infers places and levels; false where a section overflows. */
bool levels_raise(Levels *l, const Buffers *b, Places *x, int *failures, ExactState s)
{
    for (bool changed = true; changed;) {
        changed = false;
        places_fill(x, b, l, s);
        for (int t = s.first; t < s.last; t++) {
            int64_t least = x->low[0][t];
            if (least <= l->level[t])
                continue;
            if (least > l->capacity - l->rest[t]) {
                failures[t]++;
                return false;
            }
            levels_set(l, t, least, l->top[t]);
            changed = true;
        }
    }
    return true;
}

Places places_new(Arena *tmp, int n, int nsection, int64_t *level)
{
    Places x = {.floor = NEWN(tmp, int64_t, n),
                .place = NEWN(tmp, int64_t, n),
                .value = NEWN(tmp, int64_t, n),
                .carried = NEWN(tmp, bool, n),
                .run = NEWN(tmp, int, nsection),
                .solid = NEWN(tmp, int, nsection + 1)};
    for (int v = 0; v < TABLE && 1 << v <= nsection; v++) {
        x.high[v] = v ? NEWN(tmp, int64_t, nsection) : level;
        x.low[v] = NEWN(tmp, int64_t, nsection);
    }
    return x;
}
