/* Chooses which regions the pass chunk makes: those of the candidates that pay, or that reach the
 * limit of memory, in as many slices.
 *
 * A setting is tried on a copy of the graph as it stands before the pass: what is left of the
 * pipeline runs, so that remat, offload and fuse do what they will do, and the step is ordered and
 * lowered as it will be in the end. So the seconds are those of the plan, and the peak is, but for
 * what addresses may waste: what is to fit is planned wholly once it is chosen. A candidate holds
 * the peak where values that it slices, or clones of them, are alive there; equal candidates of
 * several layers are one decision. Trials are counted, by the size of the graph, and seconds are
 * those of the machine's table: the same input gives the same choice. */
#include "chunk_choose.h"

#include <limits.h>
#include <string.h>

enum {
    TRIED_NODES = 40000, /* nodes in all trials together, about */
    LEAST_TRIALS = 6,
    MOST_TRIALS = 60,
    MOST_CHOICES = 3, /* that turn out to waste what does not fit */
    NO_SLOT = -1,
    ALL_SLOTS = -2,
};

/* A group that has a value's name. */
typedef struct Holder {
    int group;
    struct Holder *next;
} Holder;

typedef struct Chooser {
    const PassWalk *w;
    const ChunkTask *task;
    ChunkReport *r;
    Graph *g;           /* as the pass will have it */
    Arena *keep, *tmp;  /* of the choice; of one trial */
    PassOptions o;      /* of trials */
    ChunkRegion *named; /* regions that patterns ask for, in every trial */
    int *named_group, nnamed;
    int without;    /* but for this slot's, NO_SLOT: all, ALL_SLOTS: none */
    int *slot;      /* by candidate: its group, + ngroup / 2 of one that is not free */
    int ngroup;     /* slots; those from the middle on are never sliced by choice */
    int64_t *units; /* by group: slices at most; 1: it cannot be sliced, or a pattern says how */
    const char **failed; /* by group: the message of a trial with it */
    bool *clash;         /* by two groups: they have a seed in common, or one slices the other's */
    Map holder;          /* by a value's name: Holder */
    int *nodes;          /* of CHUNK_N: by group, of its regions; else NULL */
    int64_t *own;        /* of CHUNK_N: bytes at the peak that no smaller region slices */
    ChunkChoice choice;
} Chooser;

/* ---- what candidates slice ---- */

static bool is_asked(const Chooser *d, const ChunkCandidate *c)
{
    const ChunkAsked *asked = d->task->asked;
    for (int i = 0; i < asked->npattern; i++)
        if (chunk_named(c, asked->pattern[i].pattern) >= CHUNK_NAMED)
            return true;
    return false;
}

static bool is_free(const Chooser *d, const ChunkCandidate *c)
{
    bool may = !c->region.cheap || d->task->asked->mode == CHUNK_AUTO; /* auto's alone */
    return may && !c->why && c->units > 1 && !is_asked(d, c);
}

static void add_holder(Chooser *d, const char *name, int group)
{
    Holder *h = NEW(d->keep, Holder), *first = map_find(&d->holder, name);
    for (const Holder *x = first; x; x = x->next)
        if (x->group == group)
            return;
    *h = (Holder){group, first};
    map_put(&d->holder, arena_strdup(d->keep, name), h);
}

static int slot_of(const Chooser *d, const ChunkCandidate *c)
{
    return d->slot[c - d->r->candidate];
}

static void find_slots(Chooser *d)
{
    int n = 0;
    d->slot = NEWN(d->keep, int, d->r->ncandidate);
    for (int i = 0; i < d->r->ncandidate; i++)
        n = MAX(n, d->r->candidate[i].group + 1);
    for (int i = 0; i < d->r->ncandidate; i++) {
        const ChunkCandidate *c = &d->r->candidate[i];
        d->slot[i] = c->group + (is_free(d, c) ? 0 : n);
    }
    d->ngroup = 2 * n;
}

static void find_groups(Chooser *d)
{
    find_slots(d);
    d->units = NEWN(d->keep, int64_t, d->ngroup);
    d->failed = NEWN(d->keep, const char *, d->ngroup);
    for (int i = 0; i < d->r->ncandidate; i++) {
        const ChunkCandidate *c = &d->r->candidate[i];
        int64_t *units = &d->units[d->slot[i]];
        if (is_free(d, c))
            *units = *units ? MIN(*units, c->units) : c->units;
        add_holder(d, c->region.value, d->slot[i]);
        for (int k = 0; k < c->nvalue; k++)
            if (strcmp(c->values[k], c->region.value) != 0)
                add_holder(d, c->values[k], d->slot[i]);
    }
    for (int g = 0; g < d->ngroup; g++)
        d->units[g] = MAX(d->units[g], 1);
}

/* A seed that is in a loop already is no seed of another. */
static void find_clashes(Chooser *d)
{
    int n = d->ngroup;
    d->clash = NEWN(d->keep, bool, n *n);
    for (int i = 0; i < d->r->ncandidate; i++) {
        const ChunkCandidate *c = &d->r->candidate[i];
        const Holder *h = is_free(d, c) ? map_find(&d->holder, c->region.value) : NULL;
        for (; h; h = h->next)
            d->clash[d->slot[i] * n + h->group] = d->clash[h->group * n + d->slot[i]] = true;
    }
}

/* ---- who holds the peak ---- */

/* The values that representatives are clones of: the names of the first, by their own. */
static void find_origins(const Graph *g, const Graph *before, Map *origin)
{
    for (const Node *n = g->first; n; n = n->next) {
        const Value *v = n->origin ? map_find(&before->names, n->origin) : NULL;
        for (int k = 0; n->origin && k < n->nout; k++)
            map_put(origin, n->out[k]->name,
                    (void *)(v && v->def && k < v->def->nout ? v->def->out[k]->name : n->origin));
        EACH_LOOP_BODY(b, n)
            find_origins(n->region->body[b], before, origin);
    }
}

static void fill_at_peak(const Chooser *d, const Plan *p, int64_t *at_peak)
{
    Map origin = {.a = d->tmp};
    int peak = p->space[SPACE_MAIN].peak_step;
    find_origins(p->g, d->g, &origin);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->space != SPACE_MAIN || s->persistent || !storage_alive(s, peak))
            continue;
        const char *name = map_find(&origin, s->name);
        int least = -1;
        for (const Holder *h = map_find(&d->holder, name ? name : s->name); h; h = h->next) {
            at_peak[h->group] += s->nbytes;
            if (d->nodes && d->units[h->group] > 1 &&
                (least < 0 || d->nodes[h->group] < d->nodes[least]))
                least = h->group;
        }
        if (least >= 0)
            d->own[least] += s->nbytes;
    }
}

/* ---- trials ---- */

/* The regions of a setting, those of patterns first, in a. Returns how many. */
static int regions_of(const Chooser *d, Arena *a, const int64_t *slices, const ChunkRegion **list)
{
    ChunkRegion *region = NEWN(a, ChunkRegion, d->nnamed + d->r->ncandidate);
    int n = 0;
    for (int i = 0; i < d->nnamed; i++)
        if (d->without != ALL_SLOTS && d->named_group[i] != d->without)
            region[n++] = d->named[i];
    for (int i = 0; i < d->r->ncandidate; i++) {
        const ChunkCandidate *c = &d->r->candidate[i];
        if (slices[d->slot[i]] < 2)
            continue;
        region[n] = c->region;
        region[n++].slices = slices[d->slot[i]];
    }
    *list = region;
    return n;
}

typedef struct Trial {
    Chooser *d;
    const int64_t *slices;
    bool rough;
    ChunkTrial *t;
} Trial;

static void plan_trial(void *arg)
{
    const Trial *x = arg;
    Chooser *d = x->d;
    PlanFor to = d->task->to;
    to.rough = x->rough;
    d->o.nchunk_region = regions_of(d, d->tmp, x->slices, &d->o.chunk_region);
    Graph *g = graph_clone(d->tmp, d->g);
    Plan *p = trial_plan(d->tmp, d->w, g, &d->o, &to, d->task->ordered);
    fill_at_peak(d, p, x->t->at_peak);
    x->t->sec = p->est.step;
    x->t->reserve = p->reserve;
    x->t->peak = (x->rough ? p->space[SPACE_MAIN].bound : p->space[SPACE_MAIN].peak) + p->reserve;
}

static void try_slices(void *arg, const int64_t *slices, ChunkTrial *t)
{
    Chooser *d = arg;
    Trial x = {d, slices, true, t};
    Ctx *ctx = d->g->ctx;
    if (ctx_try(ctx, plan_trial, &x)) {
        t->peak = -1;
        for (int g = 0; g < d->ngroup; g++)
            if (slices[g] > 1)
                d->failed[g] = arena_strdup(d->keep, ctx->message);
    }
    arena_reset(d->tmp);
}

static int most_trials(const Chooser *d)
{
    int nodes = MAX(graph_count(d->g), 1);
    return MIN(MAX(TRIED_NODES / nodes, LEAST_TRIALS), MOST_TRIALS);
}

/* ---- the modes ---- */

static ChunkTrial try_now(Chooser *d, const int64_t *slices)
{
    ChunkTrial t = {.at_peak = NEWN(d->keep, int64_t, d->ngroup)};
    try_slices(d, slices, &t);
    return t;
}

/* The numbers that were chosen, in keep. */
static int64_t *chosen_slices(const Chooser *d)
{
    int64_t *slices = NEWN(d->keep, int64_t, d->ngroup);
    for (int g = 0; g < d->ngroup; g++)
        slices[g] = d->choice.group ? d->choice.group[g].slices : 1;
    return slices;
}

/* By how many bytes the choice does not fit, with addresses that are searched for; 0: it fits. */
static int64_t exceeds(Chooser *d)
{
    ChunkTrial t = {.at_peak = NEWN(d->keep, int64_t, d->ngroup)};
    plan_trial(&(Trial){d, chosen_slices(d), false, &t});
    arena_reset(d->tmp);
    return MAX(t.peak - d->task->memory, 0);
}

/* By group as d->units, but 1 of those of cheap regions. */
static int64_t *units_without_cheap(const Chooser *d)
{
    int64_t *units = NEWN(d->keep, int64_t, d->ngroup);
    memcpy(units, d->units, (size_t)d->ngroup * sizeof *units);
    for (int i = 0; i < d->r->ncandidate; i++)
        if (d->r->candidate[i].region.cheap)
            units[d->slot[i]] = 1;
    return units;
}

/* Whether x is better than y: with a target, which reaches it, in less time, or is lower; without
 * one, which is less in memory times seconds. */
static bool is_better(const ChunkChoice *x, const ChunkChoice *y, int64_t target)
{
    double memory = (double)x->at.peak / (double)y->at.peak, time = x->at.sec / y->at.sec;
    if (x->at.peak < 0)
        return false;
    if (x->reached != y->reached)
        return x->reached;
    return !target ? memory * time < 1 : x->reached ? time < 1 : memory < 1;
}

/* Takes the choice of another search if it is better, but what is told of groups that it lacks. */
static void search_again(Chooser *d, const ChunkSearch *s, int64_t target)
{
    ChunkChoice c = chunk_search(d->keep, s), was = d->choice;
    c.reached = c.at.peak >= 0 && c.at.peak <= target; /* which may not be the search's own */
    if (!is_better(&c, &was, target))
        return;
    d->choice = c;
    for (int g = 0; g < d->ngroup; g++)
        if (s->units[g] < d->units[g]) {
            bool sliced = was.group[g].slices > 1;
            c.group[g] = was.group[g];
            c.group[g].why = sliced ? "another choice is better, without it" : was.group[g].why;
            c.group[g].slices = 1;
        }
}

/* Cheap regions may be in the way of others, which slice more; and what pays may be as low as a
 * target that was sought, which went another way. */
static void search(Chooser *d, ChunkSearch *s)
{
    ChunkSearch without = *s, knee = *s;
    without.units = units_without_cheap(d);
    knee.target = 0;
    d->choice = chunk_search(d->keep, s);
    if (memcmp(without.units, d->units, (size_t)d->ngroup * sizeof *d->units) != 0)
        search_again(d, &without, s->target);
    if (s->target && !d->choice.reached)
        search_again(d, &knee, s->target);
}

static void choose_auto(Chooser *d)
{
    ChunkKnown known = {0};
    ChunkSearch s = {.known = &known,
                     .ngroup = d->ngroup,
                     .units = d->units,
                     .clash = d->clash,
                     .target = d->task->memory,
                     .most = most_trials(d),
                     .run = try_slices,
                     .arg = d};
    search(d, &s);
    for (int i = 0; d->task->memory && d->choice.reached; i++) {
        int64_t over = exceeds(d);
        if (!over)
            return;
        s.target = i < MOST_CHOICES ? MAX(s.target - over, 1) : 1; /* 1: the lowest there is */
        search(d, &s);
    }
}

/* By group: the nodes of its regions, INT_MAX of those of all that a cut reaches. */
static void count_nodes(Chooser *d)
{
    d->nodes = NEWN(d->keep, int, d->ngroup);
    d->own = NEWN(d->keep, int64_t, d->ngroup);
    for (int i = 0; i < d->r->ncandidate; i++) {
        const ChunkCandidate *c = &d->r->candidate[i];
        int *n = &d->nodes[d->slot[i]];
        *n = c->region.all || *n == INT_MAX ? INT_MAX : *n + c->nnode;
    }
}

/* The group that holds most bytes which no smaller region slices: the whole microbatch only where
 * nothing else holds any. -1: none does. */
static int find_largest(const Chooser *d)
{
    int best = -1;
    for (int all = 0; all < 2 && best < 0; all++)
        for (int g = 0; g < d->ngroup; g++)
            if ((d->nodes[g] == INT_MAX) == all && d->own[g] > (best < 0 ? 0 : d->own[best]))
                best = g;
    return best;
}

/* So many slices for the group that holds most bytes at the peak of the step without slices and can
 * be planned so. */
static void choose_largest(Chooser *d, int64_t asked)
{
    int64_t *slices = NEWN(d->keep, int64_t, d->ngroup);
    ChunkGroup *group = NEWN(d->keep, ChunkGroup, d->ngroup);
    for (int g = 0; g < d->ngroup; g++)
        slices[g] = group[g].slices = 1;
    count_nodes(d);
    ChunkTrial whole = try_now(d, slices), at = whole;
    int best = find_largest(d);
    for (int g = 0; g < d->ngroup; g++)
        group[g].why = whole.at_peak[g] && d->units[g] > 1 ? "another holds more of the peak"
                                                           : "does not hold the peak";
    if (best >= 0 && asked < 2)
        group[best].why = "one slice is the whole";
    for (; best >= 0 && asked > 1; best = find_largest(d)) {
        slices[best] = MIN(asked, d->units[best]);
        at = try_now(d, slices);
        if (at.peak >= 0) {
            group[best] = (ChunkGroup){.slices = slices[best],
                                       .at_peak = whole.at_peak[best],
                                       .peak = at.peak - at.reserve,
                                       .sec = at.sec - whole.sec};
            break;
        }
        group[best].why = "cannot be planned so";
        at = whole;
        slices[best] = 1;
        d->own[best] = 0;
    }
    d->choice = (ChunkChoice){.group = group, .at = at, .whole = whole, .reached = true};
}

/* ---- what patterns ask for ---- */

/* Runs the pass alone, on a copy: the candidates then say which of them are made. */
static void make_on_copy(Chooser *d, const PassOptions *o)
{
    PassOptions x = *o;
    x.warn = NULL;
    x.chunk_report = d->r;
    for (int i = 0; i < d->r->ncandidate; i++)
        d->r->candidate[i].made.slices = 0;
    Graph *g = graph_clone(d->tmp, d->g);
    pass_chunk(g, arena_tmp(d->tmp), &x);
    for (int i = 0; i < d->r->ncandidate; i++) {
        ChunkCandidate *c = &d->r->candidate[i];
        c->why = c->why ? arena_strdup(d->r->a, c->why) : NULL; /* it may be the copy's */
    }
    arena_reset(d->tmp);
}

/* Finds the candidates, and the regions that patterns ask for. */
static void find_candidates(Chooser *d)
{
    if (!d->task->asked->npattern) {
        chunk_find(d->g, d->tmp, &d->o, d->r);
        arena_reset(d->tmp);
        return;
    }
    make_on_copy(d, &d->o);
}

static void find_named(Chooser *d)
{
    d->named = NEWN(d->keep, ChunkRegion, d->r->ncandidate);
    d->named_group = NEWN(d->keep, int, d->r->ncandidate);
    for (int i = 0; i < d->r->ncandidate; i++) {
        if (!d->r->candidate[i].made.slices)
            continue;
        d->named_group[d->nnamed] = d->slot[i];
        d->named[d->nnamed++] = d->r->candidate[i].region;
    }
}

static ChunkTrial try_without(Chooser *d, const int64_t *slices, int slot)
{
    d->without = slot;
    ChunkTrial t = try_now(d, slices);
    d->without = NO_SLOT;
    return t;
}

/* Prices a slot's regions that patterns ask for, by trials with and without them. */
static void price_slot(Chooser *d, int slot, const ChunkTrial *all, const ChunkTrial *without)
{
    int members = 0;
    for (int k = 0; k < d->nnamed; k++)
        members += d->named_group[k] == slot;
    for (int k = 0; k < d->r->ncandidate; k++) {
        ChunkCandidate *c = &d->r->candidate[k];
        if (!c->made.slices || d->slot[k] != slot)
            continue;
        c->made.peak = all->peak - all->reserve;
        c->made.sec = (all->sec - without->sec) / members;
        c->nbytes = without->at_peak[slot] / members;
        c->made.nbytes = all->at_peak[slot] / members;
    }
}

/* Each slot that patterns ask for, beside the others and what was chosen. */
static void price_named(Chooser *d)
{
    const int64_t *slices = chosen_slices(d);
    bool *done = NEWN(d->keep, bool, d->ngroup);
    if (!d->choice.group)
        d->choice.whole = try_without(d, slices, ALL_SLOTS);
    ChunkTrial all = d->nnamed ? try_now(d, slices) : d->choice.whole;
    for (int i = 0; i < d->nnamed && all.peak >= 0; i++) {
        int slot = d->named_group[i];
        if (done[slot])
            continue;
        done[slot] = true;
        ChunkTrial without = try_without(d, slices, slot);
        if (without.peak >= 0)
            price_slot(d, slot, &all, &without);
    }
}

/* ---- what became of candidates ---- */

static const char *why_not_named(const Chooser *d, const ChunkCandidate *c)
{
    const ChunkAsked *asked = d->task->asked;
    int64_t slices = 0;
    for (int i = 0; i < asked->npattern; i++)
        if (chunk_named(c, asked->pattern[i].pattern) >= CHUNK_NAMED)
            slices = asked->pattern[i].slices;
    return slices == 1      ? "a pattern asks for no slices"
           : c->region.all  ? "patterns mean no whole microbatches"
           : c->made.reason ? c->made.reason /* of the pass: it could not be made */
                            : "another region around the value is what the pattern means";
}

static const char *why_whole(const Chooser *d, const ChunkCandidate *c)
{
    const ChunkGroup *y = d->choice.group ? &d->choice.group[slot_of(d, c)] : NULL;
    if (c->region.cheap && d->task->asked->mode != CHUNK_AUTO)
        return "auto alone takes such regions";
    if (is_asked(d, c))
        return why_not_named(d, c);
    if (!y || !y->why)
        return "not asked for";
    if (d->failed[slot_of(d, c)] && !strcmp(y->why, "cannot be planned so"))
        return arena_printf(d->r->a, "%s: %s", y->why, d->failed[slot_of(d, c)]);
    return y->why;
}

/* Says why a group is sliced, and why it has no more slices. */
static const char *why_sliced(const Chooser *d, int slot)
{
    const ChunkGroup *y = &d->choice.group[slot];
    if (!y->at_peak)
        return "the step takes less time so";
    const char *holds = d->choice.whole.at_peak[slot] ? "holds the peak"
                                                      : "holds the peak once others are in slices";
    return y->why ? arena_printf(d->r->a, "%s; %s", holds, y->why) : holds;
}

/* Says whether the candidate's group is sliced by this one or in another's loop. */
static void fill_sliced(const Chooser *d, ChunkCandidate *c, const ChunkGroup *y, int members)
{
    if (!c->made.slices) { /* the pass has said why; those that are made have the bytes */
        c->nbytes = c->made.nbytes = 0;
        return;
    }
    c->made.reason = why_sliced(d, slot_of(d, c));
    c->nbytes = y->at_peak / members;
    c->made.nbytes = d->choice.at.at_peak[slot_of(d, c)] / members;
    c->made.peak = d->choice.at.peak - d->choice.at.reserve;
    c->made.sec = y->sec / members;
}

/* How many candidates share what their slot adds and holds. */
static int count_members(const Chooser *d, int slot, bool sliced)
{
    int n = 0;
    for (int i = 0; i < d->r->ncandidate; i++)
        n += d->slot[i] == slot && (d->r->candidate[i].made.slices || !sliced);
    return MAX(n, 1);
}

static void fill_report(Chooser *d)
{
    for (int i = 0; i < d->r->ncandidate; i++) {
        ChunkCandidate *c = &d->r->candidate[i];
        const ChunkGroup *y = d->choice.group ? &d->choice.group[d->slot[i]] : NULL;
        bool sliced = y && y->slices > 1, free = d->slot[i] < d->ngroup / 2;
        int members = count_members(d, d->slot[i], sliced);
        if ((free || !c->made.slices) && d->choice.whole.peak >= 0)
            c->nbytes = d->choice.whole.at_peak[d->slot[i]] / members;
        if (free && sliced) {
            fill_sliced(d, c, y, members);
        } else if (!c->made.slices) {
            c->region.slices = 1;
            c->made.reason = why_whole(d, c);
            c->made.peak = free && y ? y->peak : 0;
            c->made.sec = free && y ? y->sec / members : 0;
        } else {
            c->made.reason = "a pattern asks for it";
        }
    }
}

/* The regions of the choice, without those that are in the loops of others. */
static void order_regions(Chooser *d, PassOptions *o)
{
    o->chunk = (Globs){0};
    o->nchunk_region = regions_of(d, d->keep, chosen_slices(d), &o->chunk_region);
    make_on_copy(d, o);
    ChunkRegion *made = NEWN(d->r->a, ChunkRegion, d->r->ncandidate);
    o->nchunk_region = 0;
    for (int i = 0; i < d->r->ncandidate; i++)
        if (d->r->candidate[i].made.slices)
            made[o->nchunk_region++] = d->r->candidate[i].region;
    o->chunk_region = made;
}

void chunk_choose(const PassWalk *w, const ChunkTask *t, PassOptions *o, ChunkReport *r)
{
    Chooser d = {.w = w, .task = t, .r = r, .o = trial_options(o), .without = NO_SLOT};
    d.keep = arena_tmp(w->g->a);
    d.tmp = arena_tmp(w->g->a);
    d.holder.a = d.keep;
    d.g = graph_clone(d.keep, w->g);
    loss_counts(d.g, d.tmp);
    arena_reset(d.tmp);
    find_candidates(&d);
    d.o.chunk = (Globs){0};
    find_groups(&d);
    find_clashes(&d);
    find_named(&d);
    if (t->asked->mode == CHUNK_AUTO)
        choose_auto(&d);
    else if (t->asked->mode == CHUNK_N)
        choose_largest(&d, t->asked->slices);
    price_named(&d);
    order_regions(&d, o);
    fill_report(&d);
    arena_reset(d.keep);
}
