/* Searches for settings with which a task fits: microbatches, what is computed again, rows.
 *
 * Numbers of microbatches 1, 2, 4, ... are planned; more microbatches do not always need less
 * memory, as more than one needs accumulators, and parts of unequal size need two bodies. The
 * fastest of the settings that fit is found. A smaller batch, which changes the training, is tried
 * only if nothing else fits. With slices "auto", for which a step is planned many
 * times, nothing is sliced in these plans, as it would not be where they fit; if none does, those
 * that need least are planned with slices. A task without a backward can only change its rows,
 * whose number affects the last bits only.
 *
 * Every setting that is found was planned, and each is planned once; what is computed again within
 * one, again.c says. */
#include "compile.h"

#include <string.h>

/* ---- the goal of a step ---- */

/* Whether a lower goal of the step can make all need less, as it has reached the present one: of
 * what is computed again, where the step needs most; of slices always, as evaluations have them
 * where the step has. */
static bool can_lower(const CompileGoal *g, const CompileNeed *need, int64_t goal)
{
    return need->step_need <= goal && (g->slices || (g->again && need->arena == need->step));
}

int compile_within(const CompileGoal *g, CompileNeed *need)
{
    enum { TIMES = 6 };
    int64_t goal = g->limit, over;
    int code = g->plan(g->arg, goal, need);
    for (int i = 1; !code && g->limit && i <= TIMES; i++) {
        over = need->arena + need->reserve - g->limit;
        if (over <= 0 || !can_lower(g, need, goal))
            break;
        over <<= i - 1; /* each plan has a reserve of its own: what is over moves */
        goal = i < TIMES ? MAX(goal - over, 1) : 1; /* the least that it can be */
        code = g->plan(g->arg, goal, need);
    }
    return code;
}

/* ---- planning ---- */

static void keep_low(CompileSearch *s, const CompileSetting *x)
{
    int i = s->nlow < COMPILE_SLICED ? s->nlow++ : COMPILE_SLICED;
    for (; i > 0 && x->nbytes < s->low[i - 1].nbytes; i--)
        if (i < COMPILE_SLICED)
            s->low[i] = s->low[i - 1];
    if (i < COMPILE_SLICED)
        s->low[i] = *x;
}

/* Fills x with what it came to before; false: it was not planned yet. */
static bool find_tried(const CompileSearch *s, CompileSetting *x)
{
    for (int i = 0; i < s->ntried; i++) {
        const CompileSetting *y = &s->tried[i];
        if (strcmp(x->recompute, y->recompute) || x->accumulate != y->accumulate ||
            x->batch != y->batch || x->sliced != y->sliced)
            continue;
        *x = *y;
        return true;
    }
    return false;
}

static void keep_tried(CompileSearch *s, const CompileSetting *x)
{
    if (s->ntried < COMPILE_TRIED)
        s->tried[s->ntried++] = *x;
    if (x->nbytes && (!s->least.nbytes || x->nbytes < s->least.nbytes))
        s->least = *x;
    if (x->nbytes && !x->sliced)
        keep_low(s, x);
}

/* Whether it fits. */
static bool try_one(CompileSearch *s, CompileSetting *x)
{
    if (!find_tried(s, x)) {
        s->count++;
        if (s->tell)
            s->tell(s->arg, s->count);
        x->nbytes = 0;
        s->plan(s->arg, x);
        keep_tried(s, x);
    }
    return x->nbytes && x->nbytes <= s->limit;
}

/* The bytes that a search may get to, from those with everything computed again: as far below them
 * as another search did, by bytes or by share. */
static int64_t hoped(const CompileSearch *s, const CompileSetting *full)
{
    return MIN(full->nbytes - s->below, (int64_t)((double)full->nbytes * s->share));
}

/* Whether a search for what is computed again may end within the limit. One that did not has ended
 * at its least, and the others are judged by it and by one plan with all computed again. */
static bool may_fit(CompileSearch *s, CompileSetting *x)
{
    enum { NEAR = 500 };
    CompileSetting full = *x;
    full.recompute = "full";
    if (!s->recompute || strcmp(x->recompute, "auto") != 0 || s->share <= 0)
        return true;
    try_one(s, &full);
    x->counted = full.counted;
    return !full.nbytes || hoped(s, &full) <= s->limit + s->limit / NEAR;
}

/* Learns from a search that did not fit. */
static void note_share(CompileSearch *s, const CompileSetting *x)
{
    CompileSetting full = *x;
    full.recompute = "full";
    if (!s->recompute || strcmp(x->recompute, "auto") != 0 || !x->nbytes)
        return;
    try_one(s, &full);
    if (!full.nbytes)
        return;
    double share = (double)x->nbytes / (double)full.nbytes;
    s->share = s->share > 0 ? MIN(s->share, share) : share;
    s->below = MAX(s->below, full.nbytes - x->nbytes);
}

/* Whether it fits. */
static bool try_setting(CompileSearch *s, CompileSetting *x, bool sliced)
{
    x->sliced = sliced;
    bool tried = find_tried(s, x);
    if (!tried && !may_fit(s, x)) {
        x->nbytes = 0;
        return false;
    }
    bool fits = try_one(s, x);
    if (!fits && !tried)
        note_share(s, x);
    return fits;
}

/* A larger batch is better, then less time. */
static void consider(CompileSearch *s, const CompileSetting *x)
{
    const CompileSetting *best = &s->best;
    if (!best->nbytes || x->batch > best->batch || (x->batch == best->batch && x->sec < best->sec))
        s->best = *x;
}

static void try_all(CompileSearch *s, CompileSetting *level, int count, bool sliced)
{
    for (int i = 0; i < count; i++)
        if (try_setting(s, &level[i], sliced))
            consider(s, &level[i]);
}

/* One number of microbatches; whether it is of no use, as is any that counts as many bytes: they
 * are more than the limit and than another one was planned with. */
static bool try_level(CompileSearch *s, CompileSetting *x, bool sliced)
{
    const bool fits = try_setting(s, x, sliced);
    if (fits)
        consider(s, x);
    return !fits && s->least.nbytes && x->counted > MAX(s->limit, s->least.nbytes);
}

/* Numbers of microbatches, ascending. Where bytes are counted, a number in the middle is the first;
 * then more, until two in a row are of no use and count no fewer bytes than one before; then fewer,
 * until one is of no use; and the fewest, which may need no accumulators. */
static void try_levels(CompileSearch *s, CompileSetting *level, int count, bool sliced)
{
    enum { IN_A_ROW = 2 };
    const int first = s->counts ? count / 2 : 0;
    int64_t fewest = INT64_MAX;
    for (int i = first, vain = 0; i < count && vain < IN_A_ROW; i++) {
        const bool useless = try_level(s, &level[i], sliced);
        vain = useless && level[i].counted >= fewest ? vain + 1 : 0;
        fewest = level[i].counted ? MIN(fewest, level[i].counted) : fewest;
    }
    for (int i = first - 1; i > 0 && !try_level(s, &level[i], sliced);)
        i--;
    if (first)
        try_level(s, level, sliced);
}

/* Whether it fits: with all computed again, as a search for less would; else by that search. */
static bool fits_somehow(CompileSearch *s, const CompileSetting *x)
{
    CompileSetting full = *x;
    full.recompute = "full";
    full.sliced = false;
    if (s->recompute && !strcmp(x->recompute, "auto") && try_one(s, &full))
        return true;
    full.recompute = x->recompute;
    return try_setting(s, &full, false);
}

/* The first level that fits, of batches that get smaller. */
static void bisect(CompileSearch *s, CompileSetting *level, int count)
{
    int low = 0, high = count - 1;
    if (count < 1 || !fits_somehow(s, &level[high]))
        return;
    while (low < high) {
        int middle = (low + high) / 2;
        if (fits_somehow(s, &level[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    if (try_setting(s, &level[high], false))
        consider(s, &level[high]);
}

/* ---- what may be set ---- */

/* Microbatches of so many rows that none is empty: one, then twice as many, and as many as were
 * asked for. */
static int fill_accumulate(bool vary, const CompileSetting *asked, CompileSetting *level)
{
    int count = 0;
    int64_t rows = asked->batch, last = 0, number[COMPILE_LEVELS + 1];
    if (!vary)
        number[count++] = asked->accumulate;
    for (int64_t k = 1; vary && k < 2 * rows; k *= 2) {
        int64_t iterations = MIN(k, rows), each = (rows + iterations - 1) / iterations;
        if (last < asked->accumulate && asked->accumulate < iterations)
            number[count++] = asked->accumulate;
        if ((rows + each - 1) / each == iterations)
            number[count++] = iterations;
        last = iterations;
    }
    for (int i = 0; i < count; i++)
        level[i] =
            (CompileSetting){.recompute = asked->recompute, .accumulate = number[i], .batch = rows};
    return count;
}

static int fill_batch(const CompileSetting *asked, CompileSetting *level)
{
    int count = 0;
    int64_t size = 1;
    while (2 * size < asked->batch)
        size *= 2;
    for (; size && size < asked->batch; size /= 2)
        level[count++] =
            (CompileSetting){.recompute = asked->recompute, .accumulate = 1, .batch = size};
    return count;
}

/* Whether something fits with a policy that was asked for, which then stands: it is not "none", in
 * whose place what is chosen is meant to come. */
static bool stands(const CompileSearch *s, const CompileSetting *asked)
{
    return s->best.nbytes && strcmp(asked->recompute, "none") != 0;
}

/* With what was asked to be computed again, and, where that may change, with what is chosen. */
static void vary(CompileSearch *s, const CompileSetting *asked, bool rows)
{
    CompileSetting level[COMPILE_LEVELS + 1], from = *asked;
    bool other = s->recompute && strcmp(asked->recompute, "auto") != 0;
    for (int i = 0; i < 1 + other && !(i && !rows && stands(s, asked)); i++) {
        from.recompute = i ? "auto" : asked->recompute;
        int count = rows ? fill_batch(&from, level) : fill_accumulate(s->accumulate, &from, level);
        if (rows)
            bisect(s, level, count);
        else
            try_levels(s, level, count, false);
    }
}

/* ---- searching ---- */

/* Searches the settings that may need fewer bytes than all that were planned, where nothing fits.
 */
static void search_least(CompileSearch *s)
{
    const int n = s->ntried;
    for (int i = 0; i < n && !s->best.nbytes; i++) {
        CompileSetting x = s->tried[i];
        if (strcmp(x.recompute, "full") != 0 || !x.nbytes || hoped(s, &x) >= s->least.nbytes)
            continue;
        x.recompute = "auto";
        if (!find_tried(s, &x) && try_one(s, &x))
            consider(s, &x);
    }
}

/* Where nothing fits, the setting that needs least was maybe only judged by one with all computed
 * again: it is searched as asked. */
CompileSetting compile_microbatches(CompileSearch *s, const CompileSetting *asked)
{
    CompileSetting level[COMPILE_LEVELS + 1];
    int count = fill_accumulate(true, asked, level);
    try_levels(s, level, count, s->sliced);
    if (!s->best.nbytes && s->recompute && !strcmp(asked->recompute, "auto"))
        search_least(s);
    CompileSetting found = s->best.nbytes ? s->best : s->least.nbytes ? s->least : level[0];
    s->best = (CompileSetting){0};
    found.recompute = asked->recompute;
    try_one(s, &found);
    return found;
}

void compile_search(CompileSearch *s, const CompileSetting *asked)
{
    bool step = s->accumulate || s->recompute; /* whose last resort is a smaller batch */
    CompileSetting whole = *asked, plain = *asked, same = {0};
    whole.sliced = s->sliced;
    if (step && !find_tried(s, &whole))
        keep_tried(s, &whole);
    if (step)
        note_share(s, &whole);
    if (s->chunk) { /* what the same task needs at least */
        same = whole;
        s->least.nbytes = 0;
    }
    if (step) {
        try_all(s, &plain, 1, false);
        s->count = 0;
        vary(s, asked, false);
        if (s->recompute)
            search_least(s);
    }
    if (s->sliced && !s->best.nbytes)
        try_all(s, s->low, s->nlow, true);
    if (same.nbytes && (!s->least.nbytes || same.nbytes < s->least.nbytes))
        s->least = same;
    const CompileSetting least = s->least;
    bool fewer = !s->best.nbytes && s->rows;
    if (fewer)
        vary(s, asked, true);
    s->fewer = fewer && step && s->best.nbytes;
    if (step && least.nbytes)
        s->least = least;
}
