/* Numbers the step's forward values, turns their levels into policies, and plans a copy of the step
 * with these. */
#include "again.h"

#include <math.h>
#include <string.h>

static int count_forward(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next)
        count += n->phase < BACKWARD;
    return count;
}

Graph *find_step(Graph *g)
{
    Graph *best = NULL;
    bool forward = false, backward = false;
    for (Node *n = g->first; n; n = n->next) {
        forward |= n->phase < BACKWARD;
        backward |= node_in_backward(n);
        EACH_LOOP_BODY(b, n) {
            Graph *inner = find_step(n->region->body[b]);
            bool more = inner && (!best || count_forward(inner) > count_forward(best));
            best = more ? inner : best;
        }
    }
    bool has = forward && backward && (!best || count_forward(g) >= count_forward(best));
    return has ? g : best;
}

/* Whether n's results can go to the host's memory: what it makes is there when it ends. */
static bool may_go(const Node *n)
{
    return !op_starts(n->op) && n->op->region != LOOP && !node_moves(n);
}

/* By node id: the backward reads its results, or views of them. */
static bool *find_read(const Graph *g, Arena *tmp)
{
    bool *read = NEWN(tmp, bool, g->nnode);
    Node **base = find_view_bases(g, tmp);
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin && n->phase >= BACKWARD && !node_aliases(n); i++)
            if (base[n->in[i]->id])
                read[base[n->in[i]->id]->id] = true;
    return read;
}

/* By node id: inputs make its results before the first block, without a product or a collective. */
static bool *find_begin(const Decider *d)
{
    bool *begin = NEWN(d->keep, bool, d->step->nnode);
    for (const Node *n = d->step->first; n && d->blocks.of[n->id] == NO_BLOCK; n = n->next) {
        bool *self = &begin[n->id];
        *self = n->phase < BACKWARD && may_go(n) && n->op->class != CLASS_PRODUCT &&
                n->op->class != CLASS_COLLECTIVE;
        for (int i = 0; i < n->nin; i++)
            *self &= !n->in[i]->def || begin[n->in[i]->def->id];
    }
    return begin;
}

/* By node id: another block's forward reads its results, or they are outputs. */
static bool *find_seams(const Decider *d)
{
    const Graph *g = d->step;
    bool *seam = NEWN(d->keep, bool, g->nnode);
    Node **base = find_view_bases(g, d->keep);
    for (const Node *n = g->first; n && n->phase < BACKWARD; n = n->next)
        for (int i = 0; i < n->nin && !node_aliases(n); i++) {
            const Node *from = base[n->in[i]->id];
            if (from && d->blocks.of[from->id] != d->blocks.of[n->id])
                seam[from->id] = true;
        }
    for (int i = 0; i < g->nout; i++)
        if (base[g->out[i].v->id])
            seam[base[g->out[i].v->id]->id] = true;
    return seam;
}

void read_values(Decider *d)
{
    Values *v = &d->v;
    const bool *read = find_read(d->step, d->keep);
    d->blocks = find_blocks(d->step, d->keep);
    const bool *begin = find_begin(d), *seam = find_seams(d);
    const int most = d->step->nnode;
    *v = (Values){0,
                  NEWN(d->keep, const char *, most),
                  NEWN(d->keep, int, most),
                  NEWN(d->keep, bool, most),
                  NEWN(d->keep, bool, most),
                  NEWN(d->keep, bool, most),
                  NEWN(d->keep, bool, most),
                  NEWN(d->keep, double, most),
                  NEWN(d->keep, int64_t, most),
                  {.a = d->keep}};
    for (const Node *n = d->step->first; n; n = n->next) {
        d->loops |= n->op->region == LOOP;
        if (n->phase >= BACKWARD || node_aliases(n) || !n->nout || n->policy)
            continue;
        v->name[v->n] = n->out[0]->name;
        v->block[v->n] = d->blocks.of[n->id];
        v->gather[v->n] = map_find(&d->gathers, v->name[v->n]) != NULL;
        v->begin[v->n] = begin[n->id];
        v->may[v->n] = d->away && may_go(n) && read[n->id];
        v->seam[v->n] = seam[n->id];
        v->sec[v->n] = node_sec(d->o.prices, graph_mesh(d->step), n);
        v->nbytes[v->n] = type_nbytes(&n->out[0]->type);
        map_put(&v->number, v->name[v->n], (void *)(intptr_t)(v->n + 1));
        v->n++;
    }
}

/* ---- levels ---- */

/* That of value i where it is computed again: a loop of the forward keeps what that of the backward
 * reads, whatever is preferred. Within a block scopes name, preferring does what demanding does,
 * and lets the forward's node be fused with those that are saved. */
static Policy again_policy(const Decider *d, const Planned *x, int i)
{
    const bool same = d->blocks.scoped && !d->v.seam[i];
    return d->loops || x->prefer || same ? PREFER_RECOMPUTE : MUST_RECOMPUTE;
}

Policy value_policy(const Decider *d, const Planned *x, int i)
{
    const Level level = level_at(x, i);
    if (d->v.gather[i]) /* which --reshard has made again if nothing is said */
        return level == SAVED ? MUST_SAVE : POLICY_NONE;
    return level == AGAIN ? again_policy(d, x, i) : level == AWAY ? OFFLOAD : POLICY_NONE;
}

static void apply_names(Graph *g, const Map *policy)
{
    for (Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            apply_names(n->region->body[b], policy);
        const NodePolicy *p =
            n->phase < BACKWARD && n->nout && !n->policy ? map_find(policy, n->out[0]->name) : NULL;
        if (p)
            n->policy = p->policy;
    }
}

void apply_policies(Graph *g, Arena *tmp, const NodePolicy *list, int n)
{
    Map policy = {.a = tmp};
    for (int i = 0; i < n; i++)
        map_put(&policy, list[i].node, (void *)&list[i]);
    if (n)
        apply_names(g, &policy);
}

static void apply_levels(const Decider *d, Graph *g, const Planned *x)
{
    NodePolicy *list = NEWN(d->tmp, NodePolicy, d->v.n);
    int n = 0;
    for (int i = 0; i < d->v.n; i++) {
        const Policy p = value_policy(d, x, i);
        if (p)
            list[n++] = (NodePolicy){d->v.name[i], p};
    }
    apply_policies(g, d->tmp, list, n);
}

typedef struct WordTry {
    Decider *d;
    const char *word;
    Level *level;
} WordTry;

static void read_word(void *arg)
{
    const WordTry *t = arg;
    Decider *d = t->d;
    Graph *g = graph_clone(d->tmp, d->g);
    policy_named(g, d->tmp, t->word);
    for (const Node *n = find_step(g)->first; n; n = n->next) {
        intptr_t i = n->nout ? (intptr_t)map_find(&d->v.number, n->out[0]->name) : 0;
        if (i && n->policy == PREFER_RECOMPUTE)
            t->level[i - 1] = AGAIN;
    }
}

static Level *levels_new(const Decider *d, const Level *like)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int i = 0; i < d->v.n && like; i++)
        level[i] = like[i];
    return level;
}

const Level *levels_gathers(const Decider *d)
{
    Level *level = levels_new(d, NULL);
    bool any = false;
    for (int i = 0; i < d->v.n; i++) {
        level[i] = d->v.gather[i] ? AGAIN : SAVED;
        any |= d->v.gather[i];
    }
    return any ? level : NULL;
}

const Level *levels_of_word(Decider *d, const char *word)
{
    WordTry t = {d, word, levels_new(d, levels_gathers(d))};
    bool failed = ctx_try(d->g->ctx, read_word, &t) != TN_OK;
    arena_reset(d->tmp);
    return failed ? NULL : t.level;
}

const Level *levels_of_steps(Decider *d, const Ladder *l, int steps)
{
    Level *level = levels_new(d, l->base);
    for (int i = 0; i < steps; i++)
        for (int k = 0; k < l->step[i].n; k++)
            level[(intptr_t)map_find(&d->v.number, l->step[i].value[k]) - 1] = l->level;
    return level;
}

const Level *levels_changed(const Decider *d, const Planned *x, int i, int k)
{
    Level *level = levels_new(d, x->level);
    level[i] = level_at(x, i) == AGAIN ? SAVED : AGAIN;
    if (k >= 0 && k != i)
        level[k] = level_at(x, k) == AGAIN ? SAVED : AGAIN;
    return level;
}

/* ---- plans ---- */

/* By number: the bytes of each value at the plan's peak; NULL where no value is tried by itself. */
static int64_t *alive_values(const Decider *d, const Plan *p)
{
    if (d->v.n > SMALL_STEP && !d->away)
        return NULL;
    int64_t *alive = NEWN(d->keep, int64_t, d->v.n);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        intptr_t v = (intptr_t)map_find(&d->v.number, s->name);
        if (v && s->space == SPACE_MAIN && storage_alive(s, p->space[SPACE_MAIN].peak_step))
            alive[v - 1] = s->nbytes;
    }
    return alive;
}

/* In how many steps of the plan about as much is alive as at the peak: the sum of a power of what
 * is, in parts of that. */
static double count_crowd(const Decider *d, const Plan *p)
{
    if (d->v.n > SMALL_STEP)
        return 0;
    int64_t *change = NEWN(d->tmp, int64_t, p->nstep + 1), live = 0;
    double crowd = 0;
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->space != SPACE_MAIN || s->end <= s->start)
            continue;
        change[s->start] += s->nbytes;
        change[MIN(s->end, p->nstep)] -= s->nbytes;
    }
    for (int i = 0; i < p->nstep; i++) {
        live += change[i];
        crowd += pow((double)live / (double)p->space[SPACE_MAIN].bound, 64);
    }
    return crowd;
}

typedef struct PlanTry {
    Decider *d;
    Planned *x;
    bool quick, tried, mixed; /* tried: quick, and an order within the limit is looked for */
    bool told;                /* only what it needs and takes is asked for, waste does not count */
    int64_t limit;
    double beat;   /* seconds that it must take less than, to be of use; 0: any */
    PlanMade made; /* the plan, and for what it was made */
} PlanTry;

/* A choice of a short step. */
typedef struct ShortTry {
    const Decider *d;
    const int *weight;
    ShortLoad load;
    bool loaded;
} ShortTry;

static int64_t fill_beside(void *arg, const Plan *p, int64_t *beside)
{
    ShortTry *t = arg;
    if (!t->loaded)
        t->load = short_load(t->d->s, p, t->d->tmp);
    t->loaded = true;
    return short_beside(t->d->s, t->weight, &t->load, p, beside, t->d->tmp);
}

/* The weights with which the first two kept blocks stand for as few as fit, of all equal ones; else
 * for as many as can be. */
static void find_weight(ShortTry *t, const Plan *p, int64_t limit)
{
    const int most = t->d->s->nequal - SHORT_KEPT;
    int *weight = NEWN(t->d->keep, int, SHORT_KEPT), low = -1, high = most;
    t->weight = weight;
    for (int more = most / 2;; more = low + (high - low) / 2) {
        if (high - low <= 1)
            more = high;
        for (int k = 0; k < SHORT_KEPT; k++)
            weight[k] = 1;
        weight[SHORT_KEPT / 2 - 1] += more;
        weight[SHORT_KEPT / 2] += most - more;
        if (high - low <= 1)
            return;
        const bool fits = plan_least(p) + fill_beside(t, p, NULL) <= limit;
        *(fits ? &high : &low) = more;
    }
}

/* Fills in x, of a short step that has plan p, the bytes and seconds of the whole. */
static void stand_for(ShortTry *t, const Plan *p, Planned *x)
{
    x->weight = t->weight;
    const int64_t beside = fill_beside(t, p, NULL);
    x->need += beside;
    x->peak += beside;
    x->sec = short_sec(t->d->s, t->weight, p, &x->shown, t->d->tmp);
}

/* Fills in x what p needs. Where its addresses waste bytes because it is of no use, or cannot fit,
 * the waste does not count. */
static void fill_need(const PlanTry *t, const Plan *p, Planned *x)
{
    const PlanSpace *s = &p->space[SPACE_MAIN];
    const int64_t memory = t->d->task->memory;
    x->least = s->bound + p->reserve;
    x->loose = t->beat > 0 && p->est.step >= t->beat;
    const bool bound = x->loose || t->told || (x->room && (t->d->s || x->least > memory));
    x->peak = bound ? s->bound : s->peak;
    x->need = x->peak + p->reserve;
}

static void plan_choice(void *arg)
{
    PlanTry *t = arg;
    Decider *d = t->d;
    Planned *x = t->x;
    Graph *g = graph_clone(d->tmp, d->g);
    PassOptions o = d->o;
    PlanFor to = d->task->to;
    if (x->word)
        o.recompute = x->word;
    else if (d->step)
        apply_levels(d, g, x);
    to.room = t->quick ? 0 : x->room;
    to.quick = t->quick || d->s || !(t->limit || to.room);
    to.moved = to.quick && !t->quick;
    to.tried = t->tried;
    ShortTry s = {.d = d, .weight = x->weight};
    const PlanBeside beside = {fill_beside, &s};
    to.beside = d->s ? &beside : NULL;
    to.limit = t->limit;
    to.beat = t->beat;
    to.enough = to.room ? d->task->memory : 0;
    to.loose = t->told || (to.room && d->s);
    to.unbounded = true;
    Plan *p = trial_plan(d->tmp, d->w, g, &o, &to, d->task->ordered);
    fill_need(t, p, x);
    x->alive = alive_values(d, p);
    x->crowd = count_crowd(d, p);
    d->reserve = MIN(d->reserve, p->reserve);
    x->sec = p->est.step;
    x->shown = p->est.exposed;
    if (t->mixed)
        find_weight(&s, p, t->limit);
    if (d->s)
        stand_for(&s, p, x);
    to.beat = 0;
    t->made = (PlanMade){d->tmp, g, to, d->task->ordered, p};
}

/* Keeps a try's plan, with its arena, if it is as the step will be planned: that of the best so
 * far, and one more, as a search may choose what is not the best. */
static void keep_plan(const PlanTry *t)
{
    Decider *d = t->d;
    PlanMade *made = d->r->made;
    if (!d->task->keeps || t->quick || t->told || d->s || t->x->loose ||
        (t->limit != d->r->memory && !t->x->room))
        return;
    const bool best = !made[0].a || !planned_first(d, &d->best, t->x);
    d->tmp = made[1].a ? made[1].a : arena_tmp(d->r->a);
    made[1] = best ? made[0] : t->made;
    made[0] = best ? t->made : made[0];
    d->best = best ? *t->x : d->best;
}

/* The levels as text, which equal ones of equal steps have; in tmp. Less effort knows no limit. */
static const char *key_of(const Decider *d, const PlanTry *t)
{
    const Planned *x = t->x;
    char *key = NEWN(d->tmp, char, d->v.n + 2);
    key[d->v.n] = x->prefer ? 'p' : 'm';
    for (int i = 0; i < d->v.n; i++)
        key[i] = (char)('0' + level_at(x, i));
    if (x->word)
        key = arena_strdup(d->tmp, x->word);
    if (!d->s && t->quick && !t->tried)
        return key;
    Buf b = {.a = d->tmp};
    buf_printf(&b, "%s %lld %d %s",
               d->s       ? "short"
               : t->tried ? "tried"
               : t->told  ? "told"
                          : "",
               t->quick && !t->tried ? -1LL : (long long)t->limit, t->quick ? 0 : x->room, key);
    for (int k = 0; x->weight && k < SHORT_KEPT; k++)
        buf_printf(&b, " %d", x->weight[k]);
    return b.text;
}

/* Whether what was known holds still: of a plan that was of no use, if it is again; of one whose
 * addresses were sought within another limit, if these would do or cannot. */
static bool still_holds(const PlanTry *t, const Planned *known)
{
    const int64_t memory = t->d->task->memory;
    if (known->loose)
        return t->beat > 0 && known->sec >= t->beat;
    return !t->x->room || t->d->s || known->need <= memory || known->least > memory ||
           known->memory == memory;
}

/* Fills x with what its plan came to before; false: it was not tried yet. */
static bool find_known(Decider *d, const PlanTry *t)
{
    Planned *x = t->x;
    const Planned *known = map_find(&d->known->of, key_of(d, t));
    arena_reset(d->tmp);
    if (!known || !still_holds(t, known))
        return false;
    x->need = known->need;
    x->peak = known->peak;
    x->least = known->least;
    x->loose = known->loose;
    x->sec = known->sec;
    x->shown = known->shown;
    x->alive = known->alive;
    x->crowd = known->crowd;
    if (x->need >= 0) /* as the plan would have told it */
        d->reserve = MIN(d->reserve, x->need - x->peak);
    return true;
}

static void add_known(const Decider *d, const PlanTry *t)
{
    const Planned *x = t->x;
    AgainKnown *k = d->known;
    Planned *known = NEW(k->of.a, Planned);
    int64_t *alive = x->alive ? NEWN(k->of.a, int64_t, d->v.n) : NULL;
    if (alive)
        memcpy(alive, x->alive, (size_t)d->v.n * sizeof *alive);
    *known = (Planned){.need = x->need,
                       .peak = x->peak,
                       .least = x->least,
                       .loose = x->loose,
                       .memory = d->task->memory,
                       .sec = x->sec,
                       .shown = x->shown,
                       .crowd = x->crowd,
                       .alive = alive};
    map_put(&k->of, arena_strdup(k->of.a, key_of(d, t)), known);
    arena_reset(d->tmp);
}

static void plan_try(PlanTry t)
{
    Decider *d = t.d;
    if (find_known(d, &t))
        return;
    if (ctx_try(d->g->ctx, plan_choice, &t))
        t.x->need = -1; /* no memory is left for plans */
    else
        keep_plan(&t);
    arena_reset(d->tmp);
    d->r->nplanned++;
    add_known(d, &t);
}

static void plan_it(Decider *d, Planned *x, bool quick, int64_t limit)
{
    plan_try((PlanTry){.d = d, .x = x, .quick = quick, .limit = limit});
}

void plan_full(Decider *d, Planned *x)
{
    plan_it(d, x, false, x->room ? 0 : d->task->memory);
}

void plan_below(Decider *d, Planned *x, double sec)
{
    plan_try((PlanTry){
        .d = d, .x = x, .limit = x->room ? 0 : d->task->memory, .beat = x->room ? sec : 0});
}

void plan_unlimited(Decider *d, Planned *x)
{
    plan_it(d, x, false, 0);
}

void plan_told(Decider *d, Planned *x)
{
    plan_try((PlanTry){.d = d, .x = x, .told = true});
}

Planned plan_quick(Decider *d, const Level *level, const char *word)
{
    Planned x = {.level = level, .word = word};
    plan_it(d, &x, true, d->task->memory);
    return x;
}

bool plan_is_order(const Decider *d)
{
    const DecideTask *t = d->task;
    return t->ordered && !t->fuses && !d->g->mesh && !d->loops && !d->away && !d->s;
}

bool plan_may_fit(Decider *d, const Planned *x, int64_t nbytes)
{
    Planned y = {.level = x->level, .word = x->word, .prefer = x->prefer};
    if (!plan_is_order(d) || (x->need >= 0 && x->need <= nbytes))
        return true;
    plan_try((PlanTry){.d = d, .x = &y, .quick = true, .tried = true, .limit = nbytes});
    return y.need >= 0 && y.need <= nbytes;
}

void plan_weighed(Decider *d, Planned *x)
{
    plan_it(d, x, true, d->task->memory);
}

Planned plan_mixed(Decider *d, const Level *level)
{
    Planned x = {.level = level};
    PlanTry t = {.d = d, .x = &x, .quick = true, .mixed = true, .limit = d->task->memory};
    if (ctx_try(d->g->ctx, plan_choice, &t))
        x.need = -1;
    arena_reset(d->tmp);
    d->r->nplanned++;
    return x;
}

Planned plan_prefer(Decider *d, const Planned *of)
{
    Planned x = {.level = of->level, .ladder = of->ladder, .steps = of->steps, .prefer = true};
    plan_it(d, &x, true, d->task->memory);
    return x;
}

Planned plan_steps(Decider *d, const Ladder *l, int steps)
{
    Planned x = {.level = levels_of_steps(d, l, steps), .ladder = l, .steps = steps};
    plan_it(d, &x, true, d->task->memory);
    return x;
}

bool plan_fits(const Decider *d, const Planned *x)
{
    return x->need >= 0 && x->need <= d->task->memory;
}
