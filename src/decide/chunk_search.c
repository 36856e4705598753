/* The search for numbers of slices, by trials alone.
 *
 * From a setting, each group that holds the peak can take a step: twice as many slices. The step
 * with the least added seconds per byte by which the peak falls is taken, and so on. The worth of a
 * group's step when it was last tried bounds its worth now, so few are tried again (lazy greedy:
 * Minoux 1978; doubling the slices again frees half as many bytes). If two slices do not pay, eight
 * are tried: a loop has costs that do not depend on the number. If no step lowers the peak, because
 * two places have the same, the steps of up to MOST_CHAIN groups are judged together.
 *
 * With a target every step counts that lowers the peak, down to the lowest, so that all targets
 * share the way. Takes the fastest setting on it that reaches the target. Then what turned out
 * unnecessary is taken back: groups as a whole, else down to the least number (bisected) with which
 * the target is reached if that saves 0.1 % of the step, those first that add most. If the peak is
 * the largest of what each group holds by itself, this finds the least numbers.
 *
 * Without one, a step pays that lowers the peak by at least 0.5 %, and by more, relatively, than it
 * adds to the step's seconds: the knee of the curve. All together add at most 2 % by estimate,
 * which was up to 5 % where it was measured (docs/measurements.md): who wants fewer bytes at any
 * price gives a target. Groups that do not pay any more beside those that were taken later are
 * taken back. */
#include "chunk_choose.h"

#include <string.h>

enum { MOST_CHAIN = 3, JUMP = 8 };
#define LEAST_GAIN   0.005
#define LEAST_SAVING 0.001
#define MOST_TIME    0.02

static const char WHY_HOLDS[] = "does not hold the peak";
static const char WHY_LITTLE[] = "lowers the peak by less than 0.5 %";
static const char WHY_NOTHING[] = "does not lower the peak";
static const char WHY_RAISES[] = "raises the peak";
static const char WHY_TIME[] = "adds more to the time than it takes from the peak, relatively";
static const char WHY_MOST[] = "would bring what all add to the time above 2 %";
static const char WHY_OTHER[] = "another lowers the peak at less added time";
static const char WHY_BACK[] = "not needed beside the others";
static const char WHY_FITS[] = "the step fits without it";
static const char WHY_PLAN[] = "cannot be planned so";
static const char WHY_SPENT[] = "not tried: the number of trials is limited";
static const char WHY_AGAIN[] = "not tried again: the number of trials is limited";
static const char WHY_UNITS[] = "has no more parts";
static const char WHY_CLASH[] = "another that is taken slices the same values";
static const char WHY_RIVAL[] = "another that slices the same values was tried in its place";
static const char WHY_LOWER[] = "the lowest peak that was found is without it";
static const char WHY_LEFT[] = "not tried beside what is taken";

/* The same of a group that is sliced: why it has no more slices. Reasons that are not listed say
 * nothing of that. */
static const struct {
    const char *why, *more;
} MORE[] = {
    {WHY_HOLDS, "in slices it holds it no more"},
    {WHY_LITTLE, "more slices lower the peak by less than 0.5 %"},
    {WHY_NOTHING, "more slices do not lower the peak"},
    {WHY_RAISES, "more slices raise the peak"},
    {WHY_TIME, "more slices add more to the time than they take from the peak, relatively"},
    {WHY_MOST, "more slices would bring what all add to the time above 2 %"},
    {WHY_OTHER, "another lowers the peak at less added time than more slices"},
    {WHY_BACK, "more slices are not needed beside the others"},
    {WHY_PLAN, "more slices cannot be planned so"},
    {WHY_SPENT, "more slices were not tried: the number of trials is limited"},
    {WHY_AGAIN, "more slices were not tried: the number of trials is limited"},
    {WHY_UNITS, "it has no more parts"},
    {WHY_LOWER, "the lowest peak that was found is with these"},
    {WHY_LEFT, "more slices were not tried beside what is taken"},
};

typedef struct SliceSetting {
    int64_t *slices;
    ChunkTrial t;
    const struct SliceSetting *from; /* which it was made of, tried before it; NULL: of none */
} SliceSetting;

typedef struct SliceSearch {
    Arena *a;
    const ChunkSearch *s;
    SliceSetting **tried;
    int ntried, cap, most; /* tries */
    ChunkGroup *group;
    double *worth; /* by group: seconds per byte of its last step that paid; -1: not known */
} SliceSearch;

/* A group's next step, and what it comes to. */
typedef struct Gain {
    int group;
    const SliceSetting *to; /* NULL: there is none */
    double rate;            /* seconds per byte */
} Gain;

/* ---- trials ---- */

static SliceSetting *setting_new(const SliceSearch *x, const int64_t *slices)
{
    SliceSetting *y = NEW(x->a, SliceSetting);
    size_t n = (size_t)x->s->ngroup;
    y->slices = NEWN(x->a, int64_t, n);
    memcpy(y->slices, slices, n * sizeof *slices);
    y->t.at_peak = NEWN(x->a, int64_t, n);
    return y;
}

static SliceSetting *find_setting(SliceSetting *const *list, int n, const int64_t *slices,
                                  int ngroup)
{
    for (int i = 0; i < n; i++)
        if (!memcmp(list[i]->slices, slices, (size_t)ngroup * sizeof *slices))
            return list[i];
    return NULL;
}

/* The setting, planned now, or known from another search. */
static SliceSetting *plan_setting(const SliceSearch *x, const SliceSetting *from,
                                  const int64_t *slices)
{
    ChunkKnown *k = x->s->known;
    SliceSetting *y = k ? find_setting(k->setting, k->n, slices, x->s->ngroup) : NULL;
    if (y)
        return y;
    y = setting_new(x, slices);
    y->from = from;
    x->s->run(x->s->arg, slices, &y->t);
    if (k)
        PUSH(x->a, k->setting, k->n, k->cap, y);
    return y;
}

/* The setting, tried now or before; NULL: no more trials may be made. */
static const SliceSetting *try_setting(SliceSearch *x, const SliceSetting *from,
                                       const int64_t *slices)
{
    SliceSetting *y = find_setting(x->tried, x->ntried, slices, x->s->ngroup);
    if (y || x->ntried >= x->most)
        return y;
    y = plan_setting(x, from, slices);
    PUSH(x->a, x->tried, x->ntried, x->cap, y);
    return y;
}

/* `from` with another number for one group. */
static const SliceSetting *try_group(SliceSearch *x, const SliceSetting *from, int g,
                                     int64_t slices)
{
    SliceSetting *y = setting_new(x, from->slices);
    y->slices[g] = slices;
    return try_setting(x, from, y->slices);
}

static bool reaches(const SliceSearch *x, const SliceSetting *y)
{
    return y && y->t.peak >= 0 && x->s->target && y->t.peak <= x->s->target;
}

/* ---- steps ---- */

/* Why it is no step from one setting to another; NULL: it is one. */
static const char *why_not(const SliceSearch *x, const SliceSetting *from, const SliceSetting *to)
{
    if (!to)
        return WHY_SPENT;
    if (to->t.peak < 0)
        return WHY_PLAN;
    double peak = (double)from->t.peak, lowered = peak - (double)to->t.peak;
    if (lowered < 0)
        return WHY_RAISES;
    if (x->s->target)
        return lowered > 0 ? NULL : WHY_NOTHING;
    if (lowered < LEAST_GAIN * peak)
        return WHY_LITTLE;
    double whole = x->tried[0]->t.sec, added = to->t.sec - from->t.sec;
    if (added > 0 && to->t.sec > (1 + MOST_TIME) * whole)
        return WHY_MOST;
    return lowered * from->t.sec > added * peak ? NULL : WHY_TIME;
}

/* A step of the group to so many slices: from `at`, judged from `start`. */
static Gain try_step(SliceSearch *x, const SliceSetting *start, const SliceSetting *at, int g,
                     int64_t slices)
{
    const SliceSetting *to = try_group(x, at, g, slices);
    ChunkGroup *y = &x->group[g];
    const char *why = to || !y->peak ? why_not(x, start, to) : WHY_AGAIN;
    bool tells = at == start || !y->peak; /* what a step does by itself, rather than in a chain */
    if (tells || !why)
        y->why = why;
    if (tells && to && to->t.peak >= 0) {
        y->peak = to->t.peak - to->t.reserve;
        y->sec = y->slices == 1 && at->slices[g] == 1 ? to->t.sec - at->t.sec : y->sec;
    }
    if (why)
        return (Gain){g, NULL, 0};
    double rate = (to->t.sec - start->t.sec) / (double)(start->t.peak - to->t.peak);
    return (Gain){g, to, rate};
}

/* Whether more slices than the two of `to` could make it a step: of what the group holds then, the
 * better part would have to go. */
static bool may_jump(const SliceSearch *x, const SliceSetting *start, const SliceSetting *to, int g)
{
    if (!to || to->t.peak < 0 || to->slices[g] != 2 || x->s->units[g] < 3)
        return false;
    double freed = (1 - 2.0 / JUMP) * (double)to->t.at_peak[g];
    double enough = x->s->target ? 0 : LEAST_GAIN * (double)start->t.peak;
    return (double)(start->t.peak - to->t.peak) + freed > enough;
}

static Gain next_step(SliceSearch *x, const SliceSetting *start, const SliceSetting *at, int g)
{
    int64_t next = MIN(2 * at->slices[g], x->s->units[g]);
    Gain s = try_step(x, start, at, g, next);
    if (!s.to && may_jump(x, start, try_group(x, at, g, next), g))
        s = try_step(x, start, at, g, MIN(JUMP, x->s->units[g]));
    return s;
}

/* Whether a group is sliced that slices the same values. */
static bool clashes(const SliceSearch *x, const SliceSetting *at, int g)
{
    for (int h = 0; h < x->s->ngroup && x->s->clash; h++)
        if (h != g && at->slices[h] > 1 && x->s->clash[g * x->s->ngroup + h])
            return true;
    return false;
}

/* Whether a step of the group could pay: slices of what it holds are all that it can free. Why it
 * cannot in a chain of steps that may lead nowhere is said only of groups of which nothing is. */
static bool may_pay(SliceSearch *x, const SliceSetting *start, const SliceSetting *at, int g)
{
    int64_t now = at->slices[g], units = x->s->units[g];
    double part = now == 1 ? 1 - 1.0 / JUMP : 0.5, at_peak = (double)at->t.at_peak[g];
    const char **why = &x->group[g].why, *known = at != start ? *why : NULL;
    if (now >= units) {
        *why = known ? known : WHY_UNITS;
        return false;
    }
    if (clashes(x, at, g)) {
        *why = known ? known : WHY_CLASH;
        return false;
    }
    double most = (double)(start->t.peak - at->t.peak) + part * at_peak;
    if (at_peak > 0 && !x->s->target && most < LEAST_GAIN * (double)start->t.peak)
        *why = WHY_LITTLE;
    else if (at_peak > 0)
        return true;
    *why = *why ? *why : WHY_HOLDS;
    return false;
}

/* Fills the groups that could take a step: what is not known yet first, by bytes; then those that
 * added least for a byte. Returns how many. */
static int find_rivals(SliceSearch *x, const SliceSetting *start, const SliceSetting *at,
                       int *rival)
{
    int n = 0;
    for (int g = 0; g < x->s->ngroup; g++) {
        if (!may_pay(x, start, at, g))
            continue;
        int i = n++;
        for (; i > 0; i--) {
            int other = rival[i - 1];
            double mine = x->worth[g], its = x->worth[other];
            if (mine > its || (mine == its && at->t.at_peak[g] <= at->t.at_peak[other]))
                break;
            rival[i] = other;
        }
        rival[i] = g;
    }
    return n;
}

/* The step that adds least for a byte; `side`: one that only changes who holds the peak. */
static Gain best_step(SliceSearch *x, const SliceSetting *start, const SliceSetting *at, Gain *side)
{
    Gain best = {-1, NULL, 0};
    int *rival = NEWN(x->a, int, x->s->ngroup), n = find_rivals(x, start, at, rival);
    int64_t freed = 0;
    for (int i = 0; i < n; i++) {
        int g = rival[i];
        if (best.to && x->worth[g] >= best.rate)
            break; /* nor do those after it add less */
        Gain s = next_step(x, start, at, g);
        const SliceSetting *to =
            s.to ? s.to : try_group(x, at, g, MIN(2 * at->slices[g], x->s->units[g]));
        x->worth[g] = s.to ? MAX(s.rate, 0) : -1;
        if (s.to && (!best.to || s.rate < best.rate))
            best = s;
        if (!to || to->t.peak < 0 || to->t.peak > start->t.peak)
            continue;
        if (at->t.at_peak[g] - to->t.at_peak[g] > freed) {
            freed = at->t.at_peak[g] - to->t.at_peak[g];
            *side = (Gain){g, to, 0};
        }
    }
    for (int i = 0; best.to && i < n; i++)
        if (rival[i] != best.group && !x->group[rival[i]].why)
            x->group[rival[i]].why = WHY_OTHER;
    return best;
}

/* ---- the way down ---- */

/* Notes what the steps from one setting to another add, by group; those in a chain share it by
 * bytes that they held. */
static void note_step(SliceSearch *x, const SliceSetting *from, const SliceSetting *to)
{
    double added = to->t.sec - from->t.sec;
    int count = 0;
    for (int g = 0; g < x->s->ngroup; g++)
        count += from->slices[g] != to->slices[g];
    for (int g = 0; g < x->s->ngroup; g++) {
        ChunkGroup *y = &x->group[g];
        if (from->slices[g] == to->slices[g])
            continue;
        y->sec = (y->slices > 1 ? y->sec : 0) + added / count;
        y->slices = to->slices[g];
        y->peak = to->t.peak - to->t.reserve;
    }
}

/* Takes steps while there are any; where that ends. */
static const SliceSetting *walk_down(SliceSearch *x, const SliceSetting *whole)
{
    const SliceSetting *start = whole, *at = whole;
    for (int chain = 0; chain < MOST_CHAIN;) {
        Gain side = {-1, NULL, 0}, s = best_step(x, start, at, &side);
        if (s.to) {
            note_step(x, start, s.to);
            start = at = s.to;
            chain = 0;
            continue;
        }
        if (!side.to)
            break;
        at = side.to;
        chain++;
    }
    return start;
}

/* With fewer bytes at the peak remat may compute less again: groups that do not hold it are tried
 * too, and more slices, and taken where they save time and bytes. */
static const SliceSetting *walk_on(SliceSearch *x, const SliceSetting *at)
{
    const double enough = LEAST_SAVING * x->tried[0]->t.sec;
    for (int g = 0; g < x->s->ngroup && at != x->tried[0]; g++) {
        int64_t now = at->slices[g], next = MIN(now == 1 ? JUMP : 4 * now, x->s->units[g]);
        if (next == now || clashes(x, at, g))
            continue;
        const SliceSetting *to = try_group(x, at, g, next);
        if (!to || to->t.peak < 0 || to->t.peak > at->t.peak || to->t.sec > at->t.sec - enough)
            continue;
        note_step(x, at, to);
        at = walk_down(x, to);
    }
    return at;
}

/* ---- what is taken back ---- */

/* Groups that are sliced, those that add most first; how many. */
static int find_taken(const SliceSearch *x, const SliceSetting *at, int *taken)
{
    int n = 0;
    for (int g = 0; g < x->s->ngroup; g++) {
        if (at->slices[g] == 1)
            continue;
        int i = n++;
        for (; i > 0 && x->group[taken[i - 1]].sec < x->group[g].sec; i--)
            taken[i] = taken[i - 1];
        taken[i] = g;
    }
    return n;
}

static const SliceSetting *take(SliceSearch *x, const SliceSetting *from, const SliceSetting *to,
                                int g)
{
    note_step(x, from, to);
    x->group[g].why = WHY_BACK;
    return to;
}

/* The least number of the group's slices that still reaches the target, if it saves time: as much
 * as a last slice may cost that is shorter than the others. */
static const SliceSetting *take_back(SliceSearch *x, const SliceSetting *at, int g)
{
    int64_t low = 1, high = at->slices[g];
    const SliceSetting *none = try_group(x, at, g, 1), *best = at;
    if (reaches(x, none) && none->t.sec <= at->t.sec)
        return take(x, at, none, g);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        const SliceSetting *y = try_group(x, at, g, middle);
        if (!reaches(x, y)) {
            low = middle;
            continue;
        }
        high = middle;
        best = y->t.sec < best->t.sec ? y : best;
    }
    double saved = at->t.sec - best->t.sec;
    return saved < LEAST_SAVING * x->tried[0]->t.sec ? at : take(x, at, best, g);
}

/* Without a target: whether the group still pays beside the others. */
static const SliceSetting *take_unpaid(SliceSearch *x, const SliceSetting *at, int g)
{
    const SliceSetting *none = try_group(x, at, g, 1);
    if (!none || none->t.peak < 0 || !why_not(x, none, at))
        return at;
    return take(x, at, none, g);
}

static const SliceSetting *take_all_back(SliceSearch *x, const SliceSetting *at)
{
    int *taken = NEWN(x->a, int, x->s->ngroup), n = find_taken(x, at, taken);
    for (int i = 0; i < n; i++)
        if (x->s->target)
            at = take_back(x, at, taken[i]);
        else if (n > 1)
            at = take_unpaid(x, at, taken[i]);
    return at;
}

/* ---- the whole ---- */

/* The setting with the least seconds of all tried ones that reach the target; if none does, the one
 * with the lowest peak. */
static const SliceSetting *best_tried(const SliceSearch *x)
{
    const SliceSetting *best = x->tried[0];
    for (int i = 1; i < x->ntried; i++) {
        const SliceSetting *y = x->tried[i];
        bool now = reaches(x, y), was = reaches(x, best);
        if (y->t.peak >= 0 && (now != was ? now
                               : now      ? y->t.sec < best->t.sec
                                          : y->t.peak < best->t.peak))
            best = y;
    }
    return best;
}

/* Notes the steps that led to a setting. */
static void note_steps(SliceSearch *x, const SliceSetting *to)
{
    if (!to->from)
        return;
    note_steps(x, to->from);
    note_step(x, to->from, to);
}

/* With a target: goes from where the steps ended to a setting that was tried. */
static const SliceSetting *settle(SliceSearch *x, const SliceSetting *at, const SliceSetting *best)
{
    for (int g = 0; g < x->s->ngroup; g++) {
        if (at->slices[g] > best->slices[g])
            x->group[g].why = reaches(x, best) ? WHY_BACK : WHY_LOWER;
        x->group[g].slices = 1;
    }
    note_steps(x, best);
    return best;
}

/* Takes back from `fast`, the fastest setting that reaches the target, and from the next one, from
 * which more may be taken back; the faster of what these lead to. */
static const SliceSetting *choose_reached(SliceSearch *x, const SliceSetting *fast)
{
    const SliceSetting *slow = NULL;
    for (int i = 0; i < x->ntried; i++)
        if (reaches(x, x->tried[i]) && x->tried[i] != fast)
            slow = !slow || x->tried[i]->t.sec < slow->t.sec ? x->tried[i] : slow;
    const SliceSetting *at = take_all_back(x, fast);
    if (!slow)
        return at;
    const SliceSetting *other = take_all_back(x, settle(x, at, slow));
    return other->t.sec < at->t.sec ? other : settle(x, other, at);
}

/* Whether all that y has in slices is so in another. */
static bool within(const SliceSearch *x, const SliceSetting *y, const SliceSetting *other)
{
    bool all = true;
    for (int g = 0; g < x->s->ngroup; g++)
        all &= y->slices[g] == 1 || other->slices[g] > 1;
    return all;
}

/* The bytes that a sliced group had at the peak before: of the whole step, else of a setting in
 * which others were sliced. */
static int64_t at_peak_before(const SliceSearch *x, const SliceSetting *at, int g)
{
    int64_t most = x->tried[0]->t.at_peak[g];
    for (int i = 1; i < x->ntried && !x->tried[0]->t.at_peak[g]; i++) {
        const SliceSetting *y = x->tried[i];
        if (y->t.peak >= 0 && y->slices[g] == 1 && within(x, y, at))
            most = MAX(most, y->t.at_peak[g]);
    }
    return most;
}

/* Why a group has no more slices, as it is true of the choice. */
static const char *final_why(const SliceSearch *x, const SliceSetting *at, int g)
{
    const char *why = x->group[g].why, *more = NULL;
    if (at->slices[g] == 1) {
        if (!why || why == WHY_HOLDS)
            return at->t.at_peak[g] ? WHY_LEFT : WHY_HOLDS;
        return why == WHY_CLASH && !clashes(x, at, g) ? WHY_RIVAL : why;
    }
    if (why == WHY_HOLDS && at->t.at_peak[g])
        why = x->s->target ? WHY_BACK : WHY_LEFT;
    for (int i = 0; i < LEN(MORE); i++)
        more = MORE[i].why == why ? MORE[i].more : more;
    return more;
}

static void explain_choice(SliceSearch *x, const SliceSetting *whole, const SliceSetting *at)
{
    for (int g = 0; g < x->s->ngroup; g++) {
        ChunkGroup *y = &x->group[g];
        y->at_peak = at->slices[g] > 1 ? at_peak_before(x, at, g) : 0;
        y->why = reaches(x, whole) ? WHY_FITS : final_why(x, at, g);
    }
}

ChunkChoice chunk_search(Arena *a, const ChunkSearch *s)
{
    SliceSearch x = {.a = a, .s = s, .most = s->most};
    int64_t *ones = NEWN(a, int64_t, s->ngroup);
    x.group = NEWN(a, ChunkGroup, s->ngroup);
    x.worth = NEWN(a, double, s->ngroup);
    for (int g = 0; g < s->ngroup; g++) {
        x.group[g].slices = ones[g] = 1;
        x.worth[g] = -1;
    }
    const SliceSetting *whole = try_setting(&x, NULL, ones), *at = whole;
    if (whole->t.peak >= 0 && !reaches(&x, whole))
        at = walk_on(&x, walk_down(&x, whole));
    if (s->target)
        at = settle(&x, at, best_tried(&x));
    x.most += s->most / 2;
    if (reaches(&x, at) && at != whole)
        at = choose_reached(&x, at);
    else if (!s->target)
        at = take_all_back(&x, at);
    explain_choice(&x, whole, at);
    return (ChunkChoice){x.group, at->t, whole->t, reaches(&x, at), x.ntried};
}
