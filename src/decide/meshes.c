/* Meshes for so many ranks: all products of dp, fsdp and tp; gathered parameters dropped after the
 * forward or kept; computed again nothing, what is cheap, all, or, with a limit, what it needs.
 *
 * First each setting gets bounds from its graph, which no plan is below: seconds (step_bound.c),
 * and with a limit bytes (order_bound.c). Settings of a mesh share the passes up to where policies
 * are read. Then they are planned by bounds upward, until ten are faster than the next one's bound.
 *
 * A setting `auto` takes ten times as long as others, and has no graph before its plan. It counts
 * with the least bounds of its mesh's other settings, which are likely, but not proved, to hold for
 * it. Settings `auto` are planned last, when ten others are known, and only for meshes that do not
 * fit with all saved: where all fits, computing again gains at most what it hides of collectives.
 * Of these, only those are planned that an estimate from the mesh's other plans may find faster.
 *
 * Threads that plan may be ahead of what one would have planned: the outcome is what one would have
 * found, as it is taken from the settings in their order. Settings with equal seconds stand in that
 * order. */
#include "meshes.h"

#include "../plan/order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- settings ---- */

static const char *mesh_name(Arena *a, int64_t dp, int64_t fsdp, int64_t tp)
{
    const int64_t size[] = {dp, fsdp, tp};
    static const char *const name[] = {"dp", "fsdp", "tp"};
    Buf b = {.a = a};
    for (int i = 0; i < LEN(size); i++)
        if (size[i] > 1)
            buf_printf(&b, "%s%s=%lld", b.len ? "," : "", name[i], (long long)size[i]);
    return b.len ? b.text : "none";
}

static void add_setting(Arena *a, MeshSettings *all, MeshSetting s)
{
    s.group = all->ngroup;
    PUSH(a, all->list, all->count, all->cap, s);
}

/* Refuses settings from `first` on where some of the ranks that share the rows get none. */
static void refuse_idle(const MeshAsked *asked, int64_t sharing, MeshSettings *all, int first)
{
    for (int i = first; asked->rows && sharing > asked->rows && i < all->count; i++)
        snprintf(
            all->list[i].refused, sizeof all->list[i].refused,
            "%lld ranks (dp times fsdp) share the %lld rows of a microbatch: some would compute "
            "padding alone",
            (long long)sharing, (long long)asked->rows);
}

static void add_mesh(Arena *a, MeshSettings *all, const MeshAsked *asked, const char *mesh,
                     bool gathers)
{
    static const char *const reshard[] = {"always", "never"};
    static const char *const recompute[] = {"none", "selective", "full"};
    for (int i = 0; i < (asked->reshard || !gathers ? 1 : LEN(reshard)); i++)
        for (int k = 0; k < (asked->recompute ? 1 : LEN(recompute)); k++)
            add_setting(
                a, all,
                (MeshSetting){.mesh = mesh,
                              .reshard = asked->reshard ? asked->reshard
                                         : gathers      ? reshard[i]
                                                        : "auto",
                              .recompute = asked->recompute ? asked->recompute : recompute[k]});
    if (asked->limit && !asked->recompute)
        add_setting(a, all,
                    (MeshSetting){.mesh = mesh,
                                  .reshard = asked->reshard ? asked->reshard : "auto",
                                  .recompute = "auto"});
    all->ngroup++;
}

#define MOST_BELOW 0.7

typedef struct MeshPlace {
    bool last; /* behind all that are not */
    double bound;
    int index;
} MeshPlace;

MeshSettings meshes_all(Arena *a, const MeshAsked *asked)
{
    MeshSettings all = {0};
    for (int64_t dp = 1; dp <= asked->ranks; dp++)
        for (int64_t fsdp = 1; fsdp <= asked->ranks / dp; fsdp++) {
            int64_t tp = asked->ranks / (dp * fsdp);
            const int first = all.count;
            if (dp * fsdp * tp == asked->ranks)
                add_mesh(a, &all, asked, mesh_name(a, dp, fsdp, tp), fsdp > 1);
            refuse_idle(asked, dp * fsdp, &all, first);
        }
    all.place = NEWN(a, MeshPlace, all.count);
    return all;
}

/* ---- bounds ---- */

static bool is_chosen(const MeshSetting *s)
{
    return !strcmp(s->recompute, "auto");
}

static void bound_setting(const PassWalk *w, const PlanFor *to, MeshSetting *s)
{
    PassOptions o = trial_options(w->o);
    Arena *a = arena_tmp(w->g->a);
    PlanFor rough = *to;
    o.recompute = s->recompute;
    o.reshard = s->reshard;
    rough.rough = true;
    Graph *g = graph_clone(a, w->g);
    Plan *p = trial_plan(a, w, g, &o, &rough, false);
    s->bound = s->estimate = plan_step_bound(p, a, 0);
    if (to->limit)
        s->least = plan_kept_by_others(p) + p->reserve +
                   order_bound(flow_new(p->g, to->device, to->machine, a), a);
    arena_reset(a);
}

void meshes_bound(PassWalk *w, const PlanFor *to, MeshSetting *s, int n)
{
    bool more = passes_until(w, "policies");
    CHECK(more);
    double sec = INFINITY;
    int64_t least = INT64_MAX;
    for (int i = 0; i < n; i++)
        if (!is_chosen(&s[i])) {
            bound_setting(w, to, &s[i]);
            sec = MIN(sec, s[i].bound);
            least = MIN(least, s[i].least);
        }
    for (int i = 0; i < n; i++)
        if (is_chosen(&s[i])) {
            s[i].bound = s[i].estimate = sec;
            s[i].least = least;
        }
}

/* ---- the search ---- */

static int by_bound(const void *p, const void *q)
{
    const MeshPlace *x = p, *y = q;
    if (x->last != y->last)
        return x->last - y->last;
    return x->bound != y->bound ? (x->bound < y->bound ? -1 : 1) : x->index - y->index;
}

MeshSearch meshes_start(const MeshSettings *all, int64_t limit)
{
    MeshSearch s = {.all = *all, .limit = limit};
    MeshPlace *place = all->place;
    for (int i = 0; i < all->count; i++) {
        const MeshSetting *x = &all->list[i];
        if (*x->refused)
            s.refused++;
        else if (limit && x->least > limit)
            s.over++;
        else
            place[s.count++] = (MeshPlace){is_chosen(x), x->estimate, i};
    }
    if (s.count)
        qsort(place, (size_t)s.count, sizeof *place, by_bound);
    return s;
}

/* Whether two settings of a mesh came to the same step, for all that the outcome tells. */
static bool same_step(const MeshSetting *x, const MeshSetting *y)
{
    return x->group == y->group && x->sec == y->sec && x->exposed == y->exposed &&
           x->peak == y->peak && x->need == y->need;
}

/* Puts a setting among the best, unless one of them is the same step. */
static void keep(MeshOutcome *r, const MeshSetting *x)
{
    for (int i = 0; i < r->nbest; i++)
        if (same_step(r->best[i], x))
            return;
    int i = MIN(r->nbest, MESHES_BEST);
    for (; i > 0 && x->sec < r->best[i - 1]->sec; i--)
        if (i < MESHES_BEST)
            r->best[i] = r->best[i - 1];
    if (i >= MESHES_BEST)
        return;
    r->best[i] = x;
    r->nbest = MIN(r->nbest + 1, MESHES_BEST);
}

static bool may_be_best(const MeshOutcome *r, double sec)
{
    return r->nbest < MESHES_BEST || sec < r->best[MESHES_BEST - 1]->sec;
}

/* Whether what is computed again is left to choose although the mesh fits with all saved, gathered
 * parameters too. */
static bool needs_nothing(const MeshSearch *s, const MeshSetting *x)
{
    int all = 0, fit = 0;
    for (int i = 0; is_chosen(x) && i < s->all.count; i++) {
        const MeshSetting *y = &s->all.list[i];
        bool none = y->group == x->group && !strcmp(y->recompute, "none");
        all += none;
        fit += none && y->counted && y->fits;
    }
    return all && fit == all;
}

/* How far plans of chosen forms may be below their estimates, as a share of these: as far as the
 * settings that count were, and half of that more; MOST_BELOW where threads still plan some. */
static double below_estimate(const MeshSearch *s, bool all_planned)
{
    double share = 1;
    for (int i = 0; i < s->all.count; i++) {
        const MeshSetting *y = &s->all.list[i];
        if (y->counted && y->bound < y->estimate)
            share = fmin(share, 1 - 1.5 * (1 - y->sec / y->estimate));
    }
    return all_planned ? fmax(share, MOST_BELOW) : MOST_BELOW;
}

/* Seconds of a setting that is not planned yet, where they are left to be chosen: as its bound is
 * missed half as far as by the mesh's plan that misses its own the least. */
static double guess_sec(const MeshSearch *s, const MeshSetting *x, bool all_planned)
{
    double least = INFINITY, sec = x->estimate;
    if (x->bound < x->estimate)
        sec *= below_estimate(s, all_planned);
    for (int i = 0; i < s->all.count; i++) {
        const MeshSetting *y = &s->all.list[i];
        if (y->group == x->group && y != x && y->counted && y->fits && y->own > 0)
            least = MIN(least, y->sec / y->own);
    }
    return is_chosen(x) && least > 1 && isfinite(least) ? sec * (1 + least) / 2 : sec;
}

static void add_planned(MeshOutcome *r, const MeshSetting *x)
{
    r->planned += x->planned;
    if (x->planned && x->fits && !x->twin) {
        keep(r, x);
    } else if (x->planned && !x->fits) {
        r->unfit++;
        r->least = r->least ? MIN(r->least, x->need) : x->need;
    }
}

/* The outcome of one thread after the first `end` settings of the order. */
static MeshOutcome found_until(const MeshSearch *s, int end)
{
    MeshOutcome r = {0};
    for (int i = 0; i < s->all.count; i++)
        s->all.list[i].counted = false;
    for (int i = 0; i < end; i++) {
        MeshSetting *x = &s->all.list[s->all.place[i].index];
        if (!may_be_best(&r, x->bound)) {
            r.slower++;
        } else if (needs_nothing(s, x)) {
            r.saved++;
        } else if (!may_be_best(&r, guess_sec(s, x, true))) {
            r.guessed++;
        } else {
            x->counted = x->planned;
            add_planned(&r, x);
        }
    }
    return r;
}

/* Whether all settings that were given out are planned. */
static bool is_all_planned(const MeshSearch *s)
{
    int planned = 0;
    for (int i = 0; i < s->all.count; i++)
        planned += s->all.list[i].planned;
    return planned == s->given;
}

MeshSetting *meshes_next(MeshSearch *s)
{
    MeshOutcome r = found_until(s, s->next);
    const bool all = is_all_planned(s);
    while (s->next < s->count) {
        MeshSetting *x = &s->all.list[s->all.place[s->next++].index];
        if (!needs_nothing(s, x) && may_be_best(&r, x->bound) &&
            may_be_best(&r, guess_sec(s, x, all)))
            return s->given++, x;
    }
    return NULL;
}

MeshOutcome meshes_outcome(const MeshSearch *s)
{
    MeshOutcome r = found_until(s, s->count);
    for (int i = 0; i < s->all.count && s->limit; i++) {
        const MeshSetting *x = &s->all.list[i];
        if (!*x->refused && x->least > s->limit && !x->planned)
            r.least = r.least ? MIN(r.least, x->least) : x->least;
    }
    return r;
}
