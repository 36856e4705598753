/* --shard auto by the clock: the step is planned in each of several shardings, and the fastest that
 * fits is kept. A graph that was planned for another sharding is not planned again.
 *
 * Within a limit, deciding what a step computes again takes a hundred plans. That is done for the
 * first sharding. The others get one plan first, with the decisions of the last one that was
 * decided, as far as their graphs have the nodes that these name; they are decided only where that
 * plan is better than all before.
 */
#include "parts.h"

#include <math.h>
#include <string.h>

#define LEAST_SHARE 0.01
#define NEAR        1.25 /* shares that differ by less give the same forms, as a rule */
enum { MOST_RENEWED = 3, MOST_LEFT = 2 };
enum { LEAST = 1 }; /* a limit of bytes that no choice keeps: of the fewest that it can */

static double clock_sec(const tn_plan *p)
{
    double sec, added;
    tn_plan_sec(p, &sec, &added);
    return sec;
}

void parts_free_step(tn_compiled *c)
{
    tn_plan_free(c->plan[0]);
    tn_graph_free(c->graph[0]);
    c->plan[0] = NULL;
    c->graph[0] = NULL;
}

/* Whether p is better than q, which may be NULL. */
static bool is_better(const tn_plan *p, const tn_plan *q, int64_t goal)
{
    const bool fits = !goal || plan_least(p->p) <= goal,
               fitted = q && (!goal || plan_least(q->p) <= goal);
    if (!q || fits != fitted)
        return !q || fits;
    return fits ? clock_sec(p) < clock_sec(q) : plan_least(p->p) < plan_least(q->p);
}

bool parts_better(tn_compiled *now, tn_compiled *best, int64_t goal)
{
    const bool better = is_better(now->plan[0], best->plan[0], goal);
    if (better) {
        tn_compiled other = *best;
        *best = *now;
        *now = other;
    }
    return better;
}

/* The ways to shard a step that are planned one after the other. */
typedef struct ShardWays {
    Parts one; /* plans into `now` */
    tn_compiled now, best;
    ShardReport *y; /* those that were tried, and the first choice's what-ifs */
    int nlimited;
    bool slower;  /* what the best needs to fit takes time */
    bool decided; /* some chosen forms were decided, the last ones so: */
    AgainReport again;
    double share[MOST_SHARD_TRIES]; /* of what computing may hide, what the clock does not hide */
    int64_t peak[MOST_SHARD_TRIES]; /* bytes of the arena */
} ShardWays;

/* Which share of the seconds of gathering parameters and reducing gradients nothing hides, by the
 * clock. */
static double exposed_share(Arena *tmp, const Plan *p)
{
    CollectiveRow *row;
    double sec = 0, exposed = 0;
    for (int i = 0, n = plan_collectives(tmp, p, &row); i < n; i++)
        if (row[i].role == FOR_PARAMETER || row[i].role == FOR_GRADIENT) {
            sec += row[i].sec;
            exposed += row[i].exposed;
        }
    return sec > 0 ? fmin(1, fmax(LEAST_SHARE, exposed / sec)) : 1;
}

/* Adds what is known of the step that has the same graph. */
static void take_twin(ShardWays *y, ShardTry t, const ShardReport *r)
{
    ShardReport *to = y->y;
    const int twin = y->one.known->twin;
    t.sec = to->tried[twin].sec;
    t.nbytes = to->tried[twin].nbytes;
    t.objective = r->sec;
    t.kept = r->nbytes;
    t.least = r->least;
    y->share[to->ntried] = y->share[twin];
    to->tried[to->ntried++] = t;
}

/* Makes the step's graph and its plan, unless a sharding before had the same graph: then
 * known->twin says which. */
static int make_unseen(ShardWays *y, const tn_options *o)
{
    ShardKnown *known = y->one.known;
    known->nseen = y->y->ntried;
    known->twin = -1;
    known->stops = true;
    int code = parts_step(&y->one, o);
    known->stops = false;
    known->seen[known->nseen] = known->hash;
    return code;
}

/* Keeps what was decided for the step that was planned now, which may go. */
static void keep_decided(ShardWays *y)
{
    Arena *a = y->one.tmp;
    const AgainReport *of = &y->now.graph[0]->again;
    y->again = (AgainReport){.memory = of->memory, .hoisted = of->hoisted, .nnode = of->nnode};
    y->again.chosen.room = of->chosen.room;
    y->again.chosen.word = of->chosen.word ? arena_strdup(a, of->chosen.word) : NULL;
    y->again.node = NEWN(a, NodePolicy, of->nnode);
    for (int i = 0; i < of->nnode; i++)
        y->again.node[i] = (NodePolicy){arena_strdup(a, of->node[i].node), of->node[i].policy};
    y->decided = true;
}

/* Plans the step with what was decided last. Limits lead to other nodes: those that it lacks are
 * left out. *decided gets what it was planned by; NULL: it was decided anew. */
static int replay(ShardWays *y, tn_options *o, const char **decided)
{
    AgainReport last = y->again;
    last.drops = o->shard_memory;
    o->decided = again_text(&last, y->one.tmp);
    int code = make_unseen(y, o);
    *decided = !code && y->now.graph[0]->again.replayed ? o->decided : NULL;
    o->decided = NULL;
    return code;
}

/* The same; where that fits and is better than all before, it is decided anew, and the better of
 * the two stays. */
static int plan_alike(ShardWays *y, tn_options *o, const char **decided)
{
    const int64_t goal = o->goal_memory;
    int code = replay(y, o, decided);
    if (code || !*decided || plan_least(y->now.plan[0]->p) > goal ||
        !is_better(y->now.plan[0], y->best.plan[0], goal))
        return code;
    tn_compiled alike = y->now;
    y->now = (tn_compiled){0};
    code = parts_step(&y->one, o);
    const bool first = code || is_better(alike.plan[0], y->now.plan[0], goal);
    parts_free_step(first ? &y->now : &alike);
    if (first)
        y->now = alike;
    else
        *decided = NULL;
    return code;
}

/* What was tried, of the step that was planned now. */
static ShardTry try_of(const ShardWays *y, double exposed, int64_t limit)
{
    const ShardReport *r = &y->now.graph[0]->sharded;
    const tn_plan *p = y->now.plan[0];
    return (ShardTry){.exposed = exposed,
                      .limit = limit,
                      .sec = clock_sec(p),
                      .objective = r->sec,
                      .nbytes = plan_least(p->p),
                      .kept = r->nbytes,
                      .least = r->least};
}

/* Takes the step that was planned now as the i-th that was tried, and keeps it if it is the best.
 */
static void take_step(ShardWays *y, const tn_options *asked, int i, ShardTry t)
{
    const tn_plan *p = y->now.plan[0];
    const double share = exposed_share(y->one.tmp, p->p);
    const int64_t peak = t.nbytes - p->p->reserve;
    double sec, added;
    tn_plan_sec(p, &sec, &added);
    const bool better = parts_better(&y->now, &y->best, asked->goal_memory);
    if (better || i != y->y->taken) { /* else the one that is kept was planned before */
        y->share[i] = share;
        y->peak[i] = peak;
        y->y->tried[i] = t;
    }
    if (better) {
        y->y->taken = i;
        y->slower = added > 0 && (!asked->recompute || !strcmp(asked->recompute, "auto"));
    }
    parts_free_step(&y->now);
}

/* Plans one of the shardings with a limit of bytes, or 0; what is the best so far is kept. A recipe
 * that is for no such model is passed over. */
static int plan_way(ShardWays *y, const tn_options *asked, double exposed, int64_t limit)
{
    ShardReport *to = y->y;
    tn_options o = shard_try(y->one.tmp, asked, exposed);
    const bool decides = asked->goal_memory && exposed > 0 && !asked->decided;
    const char *decided = NULL;
    o.shard_memory = limit;
    if (to->ntried) {
        o.warn = NULL; /* it has warned */
        o.nwhat_if = 0;
    }
    int code = decides && y->decided ? plan_alike(y, &o, &decided) : make_unseen(y, &o);
    if (y->one.known->twin >= 0) {
        take_twin(y, (ShardTry){.exposed = exposed, .limit = limit}, &y->now.graph[0]->sharded);
        parts_free_step(&y->now);
        return 0;
    }
    if (code)
        return code == TN_CODE_USAGE && exposed <= 0 ? 0 : code;
    if (decides && !decided)
        keep_decided(y);
    const ShardReport *r = &y->now.graph[0]->sharded;
    for (; to->nwhat_if < r->nwhat_if; to->nwhat_if++)
        to->what_if[to->nwhat_if] =
            (ShardWhatIf){asked->what_if[to->nwhat_if], r->what_if[to->nwhat_if].objective, 0};
    ShardTry t = try_of(y, exposed, limit);
    t.decided = decided;
    take_step(y, asked, to->ntried++, t);
    return 0;
}

/* The step of the fewest bytes that nearly fits as others were decided, and may be better than the
 * best; -1: there is none. */
static int nearest_alike(const ShardWays *x, int64_t goal)
{
    enum { NEARLY = 8 }; /* this part of the arena, which a decision of its own may save */
    const ShardReport *y = x->y;
    const ShardTry *best = &y->tried[y->taken];
    int near = -1;
    for (int i = 0; i < y->ntried; i++) {
        const ShardTry *t = &y->tried[i];
        const int64_t excess = t->nbytes - goal;
        if (t->decided && excess > 0 && excess <= x->peak[i] / NEARLY &&
            (best->nbytes > goal || t->sec < best->sec) &&
            (near < 0 || t->nbytes < y->tried[near].nbytes))
            near = i;
    }
    return near;
}

/* Decides steps anew that nearly fit as others were decided: one, or more where nothing fits. */
static int decide_left(ShardWays *y, const tn_options *asked)
{
    const int64_t goal = asked->goal_memory;
    int code = 0, last = -1;
    for (int n = 0; goal && !code && n < MOST_LEFT; n++) {
        const int i = nearest_alike(y, goal);
        if (i < 0 || i == last || (n && y->y->tried[y->y->taken].nbytes <= goal))
            break;
        ShardTry t = y->y->tried[i];
        t.decided = NULL;
        tn_options o = shard_again(y->one.tmp, asked, &t);
        code = parts_step(&y->one, &o);
        if (!code)
            take_step(y, asked, i, try_of(y, t.exposed, t.limit));
        last = i;
    }
    return code;
}

/* Which of those that were chosen without a limit of bytes is the fastest. */
static int fastest_free(const ShardReport *y)
{
    int best = -1;
    for (int i = 0; i < y->ntried; i++)
        if (y->tried[i].exposed > 0 && !y->tried[i].limit &&
            (best < 0 || y->tried[i].sec < y->tried[best].sec))
            best = i;
    return MAX(best, 0);
}

/* Whether what was planned last is the choice of the fewest bytes. */
static bool is_least(const ShardReport *y)
{
    return y->tried[y->ntried - 1].limit == LEAST;
}

/* The same, or one within a limit that no choice was found to keep: it has the fewest bytes too. */
static bool has_least(const ShardReport *y)
{
    const ShardTry *last = &y->tried[y->ntried - 1];
    return last->limit && last->kept > last->limit;
}

/* A limit for the bytes that the next choice counts; 0: no other one is of use. What is counted
 * differs from what a plan needs, so what a plan has too much is taken off what its choice counts;
 * at last twice that, or the least where nothing fits yet. A choice that does not fit is of use
 * though the recipes' step is faster: its seconds are those of its fewest bytes, without overlap.
 * Where what fits is slower for it, fewer bytes are tried as long as that is faster. A setting that
 * is one of many, few of which fit, begins with the least. */
static int64_t next_limit(const ShardWays *x, int64_t goal)
{
    enum { LIMITED = 3, LITTLE = 20 };
    const ShardReport *y = x->y;
    const ShardTry *best = &y->tried[y->taken], *last = &y->tried[y->ntried - 1];
    const bool first = x->one.quick && is_least(y) && x->nlimited == 1 && last->nbytes <= goal;
    if (!goal || x->nlimited == LIMITED || (last->limit && last->kept > last->limit && !first))
        return 0; /* and less was not found */
    if (!last->limit || first)
        last = &y->tried[fastest_free(y)];
    int64_t more = last->kept - last->least, excess = last->nbytes - goal;
    if (excess > 0 && more < excess / 2)
        return 0;
    if (excess > 0 && x->one.quick && !x->nlimited && best->nbytes > goal)
        return LEAST;
    if (excess > 0 && x->nlimited == LIMITED - 1)
        return best->nbytes > goal ? LEAST : MAX(last->kept - 2 * excess, LEAST);
    if (excess > 0)
        return MAX(last->kept - excess, LEAST);
    bool of_use = x->slower && (!last->limit || last == best) && more >= last->kept / LITTLE;
    return of_use ? last->kept - more / 2 : 0;
}

/* Whether some step was planned with about that share. */
static bool is_tried(const ShardReport *y, double share)
{
    for (int i = 0; i < y->ntried; i++)
        if (fabs(log(share / y->tried[i].exposed)) < log(NEAR))
            return true;
    return false;
}

/* Plans the step with forms chosen by solving, for some shares of what computing may hide; then
 * renews the share from the clock of the fastest, as long as the step gets shorter. The new one
 * lies between the share that counted and what of it the clock has exposed, as more is gathered
 * where it counts less, and hidden less then. A setting that is one of many is planned without
 * anything beside computing: then all counts. */
static int plan_solved(ShardWays *x, const tn_options *asked)
{
    ShardReport *y = x->y;
    int code = 0, taken = -1;
    const int shares = x->one.quick ? 1 : SHARD_SHARES, renewed = x->one.quick ? 0 : MOST_RENEWED;
    for (int i = 0; i < shares && !code; i++)
        code = plan_way(x, asked, shard_shares[i], 0);
    for (int i = 0; i < renewed && !code && y->taken != taken; i++) {
        taken = y->taken;
        double share = sqrt(y->tried[taken].exposed * x->share[taken]);
        if (is_tried(y, share))
            break;
        code = plan_way(x, asked, share, 0);
    }
    return code;
}

/* Where the setting before did not fit with its fewest bytes: plans this one with its own, unless
 * what it computes again is searched for. Whether it does not fit either. */
static bool is_scarce(ShardWays *x, const tn_options *asked, int *code)
{
    const int64_t goal = asked->goal_memory;
    const bool searched = !asked->recompute || !strcmp(asked->recompute, "auto");
    if (!x->one.quick || !goal || searched || !x->one.known->scarce)
        return false;
    *code = plan_way(x, asked, shard_shares[0], LEAST);
    return !*code && x->y->tried[0].nbytes > goal;
}

/* Plans the step so, and with the forms of the recipes if there are any; where memory is short,
 * also with limits of bytes. Keeps what is the fastest by the clock of those that fit, the least
 * where none does, and the first of equals. */
static int plan_ways(ShardWays *x, const tn_options *asked)
{
    int code = 0;
    if (is_scarce(x, asked, &code) || code)
        return code;
    code = plan_solved(x, asked);
    if (!code && !asked->npins) /* which recipes do not obey */
        code = plan_way(x, asked, 0, 0);
    for (int64_t limit; !code && (limit = next_limit(x, asked->goal_memory)); x->nlimited++)
        code = plan_way(x, asked, x->y->tried[fastest_free(x->y)].exposed, limit);
    if (code)
        return code;
    ShardKnown *known = x->one.known;
    known->scarce =
        (known->scarce || has_least(x->y)) && x->y->tried[x->y->taken].nbytes > asked->goal_memory;
    return decide_left(x, asked);
}

/* *y gets what was tried. */
static int try_shardings(Parts *x, const tn_options *asked, ShardReport *y)
{
    ShardWays ways = {.one = *x, .y = y};
    tn_compiled *to = x->to;
    ways.one.to = &ways.now;
    int code = plan_ways(&ways, asked);
    parts_free_step(&ways.now);
    *x = ways.one;
    x->to = to;
    to->plan[0] = ways.best.plan[0];
    to->graph[0] = ways.best.graph[0];
    return code;
}

/* Plans the step with each pin that is asked about, beside the others. */
static int try_what_ifs(Parts *x, const tn_options *asked, ShardReport *y)
{
    int code = 0;
    for (int i = 0; i < y->nwhat_if && !code; i++) {
        tn_compiled with = {0};
        Parts one = *x;
        ShardReport r = {0};
        tn_options o = *asked;
        const char **pin = NEWN(x->tmp, const char *, asked->npins + 1);
        if (asked->npins)
            memcpy(pin, asked->pins, sizeof *pin * (size_t)asked->npins);
        pin[asked->npins] = asked->what_if[i];
        o.pins = pin;
        o.npins = asked->npins + 1;
        o.nwhat_if = 0;
        o.warn = NULL;
        one.to = &with;
        one.asks = true;
        if (!isfinite(y->what_if[i].objective))
            continue;
        code = try_shardings(&one, &o, &r);
        bool fits = !code && (!o.goal_memory || r.tried[r.taken].nbytes <= o.goal_memory);
        y->what_if[i].sec = fits ? r.tried[r.taken].sec : INFINITY;
        parts_free_step(&with);
    }
    return code;
}

static const char *copy_text(Arena *a, const char *s)
{
    return s ? arena_strdup(a, s) : NULL;
}

/* Copies the forms of a report, with their prices, into the arena of the other. */
static void copy_forms(Arena *a, const ShardReport *from, ShardReport *to)
{
    to->exposed = from->exposed;
    to->npriced = from->npriced;
    to->nopen = from->nopen;
    to->nform = to->capform = from->nform;
    to->form = NEWN(a, ShardForm, from->nform);
    for (int i = 0; i < from->nform; i++) {
        ShardForm *f = &to->form[i];
        *f = from->form[i];
        f->node = copy_text(a, f->node);
        f->scope = copy_text(a, f->scope);
        f->form = copy_text(a, f->form);
        f->reading = NEWN(a, ShardReading, f->nreading);
        f->other = NEWN(a, ShardOther, f->nother);
        for (int k = 0; k < f->nreading; k++) {
            ShardReading *y = &f->reading[k];
            *y = from->form[i].reading[k];
            y->reader = copy_text(a, y->reader);
            y->scope = copy_text(a, y->scope);
            y->from = copy_text(a, y->from);
            y->form = copy_text(a, y->form);
            y->steps = copy_text(a, y->steps);
        }
        for (int k = 0; k < f->nother; k++)
            f->other[k] =
                (ShardOther){copy_text(a, from->form[i].other[k].form), from->form[i].other[k].sec};
    }
}

tn_options shard_again(Arena *a, const tn_options *asked, const ShardTry *t)
{
    tn_options o = shard_try(a, asked, t->exposed);
    o.shard_memory = t->limit;
    o.nwhat_if = 0;
    o.warn = NULL;
    if (t->decided)
        o.decided = t->decided;
    return o;
}

/* Plans one of those that were tried again, now with what is to be told of it. */
static int plan_again(Parts *x, const tn_options *asked, const ShardTry *t)
{
    tn_options o = shard_again(x->tmp, asked, t);
    return parts_step(x, &o);
}

/* What is to be told of what is taken; of the recipes' step also the forms of the fastest choice,
 * which have other forms' prices. */
static int explain_taken(Parts *x, const tn_options *asked, const ShardReport *y)
{
    const ShardTry *taken = &y->tried[y->taken];
    tn_compiled choice = {0}, *to = x->to;
    int code = 0;
    parts_free_step(to);
    if (taken->exposed <= 0) {
        x->to = &choice;
        code = plan_again(x, asked, &y->tried[fastest_free(y)]);
        x->to = to;
    }
    if (!code)
        code = plan_again(x, asked, taken);
    if (!code && choice.graph[0])
        copy_forms(to->graph[0]->h.a, &choice.graph[0]->sharded, &to->graph[0]->sharded);
    parts_free_step(&choice);
    return code;
}

/* Moves what was tried, and is asked about, into g's report. */
static void take_tries(tn_graph *g, const ShardReport *y)
{
    ShardReport *r = &g->sharded;
    memcpy(r->tried, y->tried, sizeof y->tried);
    r->ntried = y->ntried;
    r->taken = y->taken;
    for (int i = 0; i < y->ntried; i++)
        r->tried[i].decided = copy_text(g->h.a, y->tried[i].decided);
    r->what_if = NEWN(g->h.a, ShardWhatIf, y->nwhat_if);
    for (r->nwhat_if = 0; r->nwhat_if < y->nwhat_if; r->nwhat_if++) {
        r->what_if[r->nwhat_if] = y->what_if[r->nwhat_if];
        r->what_if[r->nwhat_if].pin = arena_strdup(g->h.a, y->what_if[r->nwhat_if].pin);
    }
}

void parts_take_report(const tn_graph *from, tn_graph *to)
{
    copy_forms(to->h.a, &from->sharded, &to->sharded);
    take_tries(to, &from->sharded);
}

int parts_sharded(Parts *x, const tn_options *asked)
{
    ShardReport y = {.what_if = NEWN(x->tmp, ShardWhatIf, asked->nwhat_if)};
    tn_options o = *asked;
    o.explain = 0; /* of what is taken alone */
    int code = try_shardings(x, &o, &y);
    if (!code)
        code = try_what_ifs(x, &o, &y);
    if (!code && asked->explain)
        code = explain_taken(x, asked, &y);
    if (code)
        return code;
    tn_graph *g = x->to->graph[0];
    take_tries(g, &y);
    x->rules = y.tried[y.taken].exposed > 0 ? shardings_of(x->tmp, g->g, asked, &x->nrules)
                                            : shardings_given(x->tmp, asked, &x->nrules);
    return 0;
}
