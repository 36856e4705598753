/* Whether the steps of a plan read what they should and run in order. Loops are unrolled, and what
 * each step reads and writes is followed byte by byte in the order in which steps are given to
 * their queues.
 *
 * What has ended before a step begins is a clock: of each queue, how many of its runs of steps. A
 * run knows what the run before it in its queue knew, and what the runs knew for which it waits.
 * For every byte the last write and, of each queue, the last read since then are kept; a read must
 * come after that write, a write after all of them, and the last run of the compute queue that
 * touches a storage, behind which it is dead, after all that touched it. If these pairs are in
 * order, all pairs that touch a common byte and of which one writes are: order is transitive. A
 * wait without which they are all in order as well is needless, unless gaps in a tensor explain it.
 *
 * Bytes are cut where any access begins or ends, so all of one piece have the same history. Linear
 * in accesses times the pieces of each; the search for needless waits in waits times runs. */
#include "check_queue.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 20000, FEW_ITERATIONS = 3 };

/* One run of a step. */
typedef struct StepRun {
    int step, nth; /* its number in its queue */
    Queue queue;
    int64_t iteration; /* of the innermost loop */
    int *after;        /* by wait of the step: the run that is waited for, -1: none yet */
    int clock[MAX_QUEUE];
} StepRun;

typedef enum {
    READ,
    WRITE,
    DEATH, /* nobody reads them any more */
} Effect;

typedef struct Access {
    Effect effect;
    int event; /* of a death: the last of the compute queue that touched it; -1: none */
    int storage;
    int span, nspan;
    const Value *v; /* what is read there, NULL: not said */
} Access;

typedef struct Bytes {
    int64_t lo, hi;
} Bytes;

/* A run that must have ended before another begins. */
typedef struct Pair {
    int before, after;
} Pair;

/* A piece of a space. Runs: -1 before all; -2 nobody has written. */
typedef struct Piece {
    int writer, maker, owner; /* the last write; what the bytes are the result of; their storage */
    int reader[MAX_QUEUE];    /* since then */
} Piece;

enum { INPUT = -1, NOBODY = -2 };

typedef struct Check {
    Arena *a; /* gone with the check */
    const Plan *p;
    PlanFault *f;
    int64_t iteration[TN_MAX_DEPTH];
    int limit;         /* iterations of a loop */
    int *latest;       /* by step: its last run */
    int *dying, *next; /* by step: the first storage that dies after it; by storage: the next */
    int *toucher;      /* by storage: the last run of the compute queue */
    int nrun[MAX_QUEUE];
    StepRun *event;
    int nevent, capevent;
    Access *access;
    int naccess, capaccess;
    Bytes *span;
    int nspan, capspan;
    Pair *pair;
    int npair, cappair;
    int64_t *cut[MAX_SPACE]; /* where pieces begin */
    int ncut[MAX_SPACE];
    Piece *piece[MAX_SPACE];
    const Node **node; /* that are steps, sorted */
    int *step_of;
    int nnode;
} Check;

static const char *event_text(const Check *c, int e)
{
    if (e < 0)
        return e == INPUT ? "before the run" : "nobody";
    const StepRun *x = &c->event[e];
    return arena_printf(c->a, "%s, iteration %lld", fault_step(c->f, x->step),
                        (long long)x->iteration);
}

/* ---- loops unrolled: runs, and what each reads and writes ---- */

static int by_address(const void *x, const void *y)
{
    const Node *const *m = x, *const *n = y;
    return ((uintptr_t)*m > (uintptr_t)*n) - ((uintptr_t)*m < (uintptr_t)*n);
}

static void list_nodes(Check *c)
{
    const Plan *p = c->p;
    c->node = NEWN(c->a, const Node *, p->nstep + 1);
    c->step_of = NEWN(c->a, int, p->nstep + 1);
    for (int i = 0; i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && !p->step[i].copy)
            c->node[c->nnode++] = p->step[i].node;
    qsort(c->node, (size_t)c->nnode, sizeof *c->node, by_address);
    for (int i = 0; i < p->nstep; i++) {
        const Node *n = p->step[i].node;
        if (p->step[i].kind == STEP_CALL && !p->step[i].copy) {
            const Node **at = bsearch(&n, c->node, (size_t)c->nnode, sizeof *at, by_address);
            c->step_of[at - c->node] = i;
        }
    }
}

/* A wait's result lies where its first operand lies. What other ranks send comes beside all queues,
 * until its wait. */
static bool only_waits(const Step *s)
{
    const Arg *x = s->arg, *y = &s->arg[s->call.nin];
    return s->node->op->wait && x->storage == y->storage && x->offset == y->offset &&
           !node_waits_for(s->node);
}

/* The step that must have made v, -1: the graph alone does not say (inputs, loops, what is joined
 * to a cat's result). */
static int maker_of(const Check *c, const Value *v)
{
    while (v && v->def) {
        const Node *n = v->def;
        const Node **at =
            c->nnode ? bsearch(&n, c->node, (size_t)c->nnode, sizeof *at, by_address) : NULL;
        int step = at ? c->step_of[at - c->node] : -1;
        if (at && !only_waits(&c->p->step[step]))
            return node_is(n, OP_cat) ? -1 : step;
        if (!at && !n->op->view)
            return -1;
        v = n->in[0];
    }
    return -1;
}

static void add_span(Check *c, int64_t lo, int64_t hi)
{
    PUSH(c->a, c->span, c->nspan, c->capspan, ((Bytes){lo, hi}));
}

/* The bytes of a tensor at `at`, as few spans as there are. */
static void add_spans(Check *c, int64_t at, const Tensor *t)
{
    int64_t size = dtype_size(t->dtype), len = size, dim[TN_RANK] = {0}, stride[TN_RANK] = {0};
    int rank = 0;
    for (int d = 0; d < t->rank; d++) {
        int64_t step = t->stride[d] * size, n = t->dim[d];
        if (!n)
            return;
        if (n == 1 || !step)
            continue;
        at += step < 0 ? step * (n - 1) : 0;
        step = step < 0 ? -step : step;
        int i = rank++;
        for (; i > 0 && stride[i - 1] > step; i--) {
            stride[i] = stride[i - 1];
            dim[i] = dim[i - 1];
        }
        stride[i] = step;
        dim[i] = n;
    }
    int first = 0;
    while (first < rank && stride[first] <= len) {
        len += stride[first] * (dim[first] - 1);
        first++;
    }
    int64_t ix[TN_RANK] = {0};
    for (;;) {
        int64_t lo = at;
        int d = first;
        for (int k = first; k < rank; k++)
            lo += ix[k] * stride[k];
        add_span(c, lo, lo + len);
        while (d < rank && ++ix[d] == dim[d])
            ix[d++] = 0;
        if (d >= rank)
            return;
    }
}

/* Ends an access whose spans began at `span`. */
static void add_access(Check *c, Effect effect, int event, int storage, int span, const Value *v)
{
    const Storage *s = &c->p->storage[storage];
    Access x = {effect, event, storage, span, c->nspan - span, v};
    for (int k = span; k < c->nspan; k++)
        if (c->span[k].lo < s->offset || c->span[k].hi > s->offset + s->nbytes)
            fault_add(c->f, "%s touches what is outside of %s", event_text(c, event),
                      fault_storage(c->f, storage));
    if (event >= 0 && c->event[event].queue == QUEUE_COMPUTE)
        c->toucher[storage] = event;
    PUSH(c->a, c->access, c->naccess, c->capaccess, x);
}

static void access_all(Check *c, Effect effect, int event, int storage)
{
    const Storage *s = &c->p->storage[storage];
    int span = c->nspan;
    if (s->nbytes)
        add_span(c, s->offset, s->offset + s->nbytes);
    add_access(c, effect, event, storage, span, NULL);
}

static void access_arg(Check *c, Effect effect, int event, const Arg *x, const Tensor *t,
                       const Value *v)
{
    int64_t at = c->p->storage[x->storage].offset + x->offset;
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        at += x->loop_stride[d] * c->iteration[d];
    int span = c->nspan;
    add_spans(c, at, t);
    add_access(c, effect, event, x->storage, span, v);
}

static void access_call(Check *c, int event, const Step *s)
{
    const Call *call = &s->call;
    for (int k = 0; k < call->nin; k++)
        access_arg(c, READ, event, &s->arg[k], &call->in[k], s->copy ? NULL : s->node->in[k]);
    if (s->work >= 0)
        access_all(c, WRITE, event, s->work);
    for (int k = 0; k < call->nout && !only_waits(s); k++)
        access_arg(c, WRITE, event, &s->arg[call->nin + k], &call->out[k], NULL);
}

/* A run of step i, which is no end of a loop. */
static void add_event(Check *c, int i, int depth)
{
    const Step *s = &c->p->step[i];
    StepRun e = {.step = i, .queue = s->queue, .nth = c->nrun[s->queue]++};
    e.iteration = depth ? c->iteration[depth - 1] : 0;
    e.after = NEWN(c->a, int, s->nwait + 1);
    for (int k = 0; k < s->nwait; k++)
        e.after[k] = c->latest[s->wait[k]];
    PUSH(c->a, c->event, c->nevent, c->capevent, e);
    int at = c->nevent - 1;
    c->latest[i] = at;
    if (s->kind == STEP_CALL) {
        access_call(c, at, s);
    } else {
        Tensor t = {.dtype = U8, .rank = 1, .dim = {s->nbytes}, .stride = {1}};
        t.dim[0] = s->kind == STEP_OFFSET ? (int64_t)sizeof(int64_t) : s->nbytes;
        access_arg(c, WRITE, at, s->arg, &t, NULL);
    }
}

static void die(Check *c, int step)
{
    for (int s = c->dying[step]; s >= 0; s = c->next[s])
        access_all(c, DEATH, c->toucher[s], s);
}

/* Steps [from, to), loops unrolled; of one with many iterations the first and the last. */
static void unroll(Check *c, int from, int to, int depth)
{
    for (int i = from; i < to; i++) {
        const Step *s = &c->p->step[i];
        if (s->kind == STEP_LOOP) {
            int64_t n = MIN(s->count, c->limit);
            die(c, i);
            for (int64_t k = 0; k < n; k++) {
                c->iteration[s->depth] = s->first + (k < n - 1 ? k : s->count - 1) * s->by;
                unroll(c, i + 1, s->end, depth + 1);
            }
            c->iteration[s->depth] = 0;
            i = s->end;
        } else {
            add_event(c, i, depth);
        }
        die(c, i);
    }
}

/* How many runs there are if loops have at most `limit` iterations. */
static double count_runs(const Plan *p, int64_t limit)
{
    double count = 0, times = 1;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP)
            times *= (double)MIN(s->count, limit);
        else if (s->kind == STEP_END)
            times /= (double)MIN(p->step[s->end].count, limit);
        else
            count += times;
    }
    return count;
}

static void list_deaths(Check *c)
{
    const Plan *p = c->p;
    c->dying = NEWN(c->a, int, p->nstep + 1);
    c->next = NEWN(c->a, int, p->nstorage + 1);
    memset(c->dying, 0xff, sizeof *c->dying * (size_t)(p->nstep + 1));
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->persistent || s->end <= s->start || s->end >= p->nstep)
            continue; /* the end of the run waits for all queues */
        c->next[i] = c->dying[s->end - 1];
        c->dying[s->end - 1] = i;
    }
}

static void unroll_all(Check *c)
{
    const Plan *p = c->p;
    c->latest = NEWN(c->a, int, p->nstep + 1);
    memset(c->latest, 0xff, sizeof *c->latest * (size_t)(p->nstep + 1));
    c->toucher = NEWN(c->a, int, p->nstorage + 1);
    memset(c->toucher, 0xff, sizeof *c->toucher * (size_t)(p->nstorage + 1));
    c->limit = count_runs(p, INT32_MAX) <= MOST_RUNS ? INT32_MAX : FEW_ITERATIONS;
    list_deaths(c);
    for (int i = 0; i < p->nin; i++)
        access_all(c, WRITE, INPUT, p->in[i].storage);
    unroll(c, 0, p->nstep, 0);
    for (int i = 0; i < p->nout; i++) {
        int64_t at = p->storage[p->out[i].storage].offset;
        int span = c->nspan;
        if (type_nbytes(&p->out[i].type))
            add_span(c, at, at + type_nbytes(&p->out[i].type));
        add_access(c, READ, INPUT, p->out[i].storage, span, NULL);
    }
    for (int i = 0; i < p->nin; i++)
        if (p->storage[p->in[i].storage].persistent)
            access_all(c, READ, INPUT, p->in[i].storage);
}

/* ---- pieces of memory ---- */

static int by_number(const void *x, const void *y)
{
    const int64_t *m = x, *n = y;
    return (*m > *n) - (*m < *n);
}

static void cut_space(Check *c, Space space)
{
    int64_t *cut = NEWN(c->a, int64_t, 2 * c->nspan + 2);
    int n = 0, kept = 0;
    for (int i = 0; i < c->naccess; i++) {
        const Access *x = &c->access[i];
        if (c->p->storage[x->storage].space != space)
            continue;
        for (int k = x->span; k < x->span + x->nspan; k++) {
            cut[n++] = c->span[k].lo;
            cut[n++] = c->span[k].hi;
        }
    }
    qsort(cut, (size_t)n, sizeof *cut, by_number);
    for (int i = 0; i < n; i++)
        if (!kept || cut[kept - 1] != cut[i])
            cut[kept++] = cut[i];
    c->cut[space] = cut;
    c->ncut[space] = kept;
    c->piece[space] = NEWN(c->a, Piece, kept + 1);
    for (int i = 0; i < kept; i++) {
        Piece *x = &c->piece[space][i];
        *x = (Piece){.writer = NOBODY, .maker = NOBODY, .owner = NOBODY};
        for (int q = 0; q < MAX_QUEUE; q++)
            x->reader[q] = NOBODY;
    }
}

static int find_cut(const Check *c, Space space, int64_t at)
{
    const int64_t *x = bsearch(&at, c->cut[space], (size_t)c->ncut[space], sizeof *x, by_number);
    return (int)(x - c->cut[space]);
}

static void add_pair(Check *c, int before, int after)
{
    if (before < 0 || (after >= 0 && c->event[before].queue == c->event[after].queue))
        return;
    if (c->npair && c->pair[c->npair - 1].before == before && c->pair[c->npair - 1].after == after)
        return;
    PUSH(c->a, c->pair, c->npair, c->cappair, ((Pair){before, after}));
}

static void check_read(Check *c, const Access *x, const Piece *y, int maker)
{
    const Step *s = y->maker < 0 ? NULL : &c->p->step[c->event[y->maker].step];
    bool call = s && s->kind == STEP_CALL && !s->copy;
    bool came = call && node_waits_for(s->node) && s->node->in[0] == x->v; /* by another wait */
    bool made = maker < 0 || !call || came;
    if (y->owner != x->storage)
        fault_add(c->f, "%s reads %s where %s was written last, by %s",
                  x->event < 0 ? "the end" : event_text(c, x->event),
                  fault_storage(c->f, x->storage), fault_storage(c->f, y->owner),
                  event_text(c, y->writer));
    else if (!made && y->maker != c->latest[maker])
        fault_add(c->f, "%s reads %%%s where %s wrote last", event_text(c, x->event), x->v->name,
                  event_text(c, y->maker));
}

static void touch_piece(Check *c, const Access *x, Piece *y, int maker)
{
    switch (x->effect) {
    case READ:
        check_read(c, x, y, maker);
        if (x->event < 0)
            break; /* the end of the run waits for all queues */
        add_pair(c, y->writer, x->event);
        y->reader[c->event[x->event].queue] = x->event;
        break;
    case WRITE:
    case DEATH:
        if (x->effect == WRITE && y->owner >= 0 && y->owner != x->storage &&
            c->p->storage[y->owner].persistent)
            fault_add(c->f, "%s writes over %s", event_text(c, x->event),
                      fault_storage(c->f, y->owner));
        add_pair(c, y->writer, x->event);
        for (int q = 0; q < MAX_QUEUE; q++)
            add_pair(c, y->reader[q], x->event);
        y->owner = x->effect == DEATH ? NOBODY : x->storage;
        if (x->effect == DEATH)
            break;
        y->writer = y->maker = x->event;
        for (int q = 0; q < MAX_QUEUE; q++)
            y->reader[q] = NOBODY;
    }
}

/* Follows every byte; what must be in order is listed as pairs. */
static void replay(Check *c)
{
    for (int s = 0; s < device_nspace(c->p->device); s++)
        cut_space(c, (Space)s);
    memset(c->latest, 0xff, sizeof *c->latest * (size_t)(c->p->nstep + 1));
    for (int i = 0; i < c->naccess && !c->f->text; i++) {
        const Access *x = &c->access[i];
        const Storage *s = &c->p->storage[x->storage];
        int maker = maker_of(c, x->v);
        if (x->event >= 0 && x->effect != READ && x->effect != DEATH)
            c->latest[c->event[x->event].step] = x->event;
        for (int k = x->span; k < x->span + x->nspan; k++) {
            int from = find_cut(c, s->space, c->span[k].lo);
            int to = find_cut(c, s->space, c->span[k].hi);
            for (int j = from; j < to; j++)
                touch_piece(c, x, &c->piece[s->space][j], maker);
        }
    }
}

/* ---- order ---- */

/* Fills the clocks, without wait k of a step. */
static void run_clocks(Check *c, int without, int k)
{
    int last[MAX_QUEUE];
    memset(last, 0xff, sizeof last);
    for (int i = 0; i < c->nevent; i++) {
        StepRun *e = &c->event[i];
        memset(e->clock, 0, sizeof e->clock);
        if (last[e->queue] >= 0)
            memcpy(e->clock, c->event[last[e->queue]].clock, sizeof e->clock);
        e->clock[e->queue] = e->nth;
        for (int w = 0; w < c->p->step[e->step].nwait; w++) {
            if (e->after[w] < 0 || (e->step == without && w == k))
                continue;
            const StepRun *x = &c->event[e->after[w]];
            for (int q = 0; q < MAX_QUEUE; q++)
                e->clock[q] = MAX(e->clock[q], x->clock[q]);
            e->clock[x->queue] = MAX(e->clock[x->queue], x->nth + 1);
        }
        last[e->queue] = i;
    }
}

/* A pair that is not in order, or NULL. */
static const Pair *find_race(const Check *c)
{
    for (int i = 0; i < c->npair; i++) {
        const StepRun *x = &c->event[c->pair[i].before];
        if (c->pair[i].after < 0 || c->event[c->pair[i].after].clock[x->queue] <= x->nth)
            return &c->pair[i];
    }
    return NULL;
}

static int by_pair(const void *x, const void *y)
{
    const Pair *m = x, *n = y;
    int order = (m->after > n->after) - (m->after < n->after);
    return order ? order : (m->before > n->before) - (m->before < n->before);
}

/* The ranges of bytes that a step touches, from the first to the last. */
typedef struct Ranges {
    Arena *a;
    struct Range {
        ByteRange bytes;
        bool write;
    } * list;
    int count, cap;
} Ranges;

static void add_range(void *arg, int step, int storage, ByteRange b, bool write)
{
    Ranges *x = arg;
    (void)step;
    (void)storage;
    PUSH(x->a, x->list, x->count, x->cap, ((struct Range){b, write}));
}

static Ranges ranges_of(const Check *c, int step)
{
    Ranges x = {.a = c->a};
    int loop[TN_MAX_DEPTH], depth = 0;
    for (int i = 0; i < step; i++)
        if (c->p->step[i].kind == STEP_LOOP)
            loop[depth++] = i;
        else
            depth -= c->p->step[i].kind == STEP_END;
    step_each_access(c->p, step, loop, depth, add_range, &x);
    return x;
}

static bool has_gaps(const Check *c, int step)
{
    const Step *s = &c->p->step[step];
    bool gaps = false;
    for (int k = 0; s->kind == STEP_CALL && k < s->call.nin + s->call.nout; k++) {
        const Tensor *t = k < s->call.nin ? &s->call.in[k] : &s->call.out[k - s->call.nin];
        int64_t last = 0;
        for (int d = 0; d < t->rank; d++)
            last += (t->dim[d] - 1) * t->stride[d];
        gaps |= tensor_nelem(t) > 0 && tensor_nelem(t) <= last;
    }
    return gaps;
}

/* Whether a step waits for another because of gaps alone: their ranges have bytes in common, but
 * one is a tensor with gaps, in which the other lies. The planner compares ranges. */
static bool only_gaps(const Check *c, int before, int after)
{
    bool meet = false, gaps = has_gaps(c, before) || has_gaps(c, after);
    Ranges x = ranges_of(c, before), y = ranges_of(c, after);
    for (int i = 0; i < c->npair; i++)
        if (c->pair[i].before >= 0 && c->pair[i].after >= 0 &&
            c->event[c->pair[i].before].step == before && c->event[c->pair[i].after].step == after)
            return false;
    for (int i = 0; i < x.count; i++)
        for (int k = 0; k < y.count; k++)
            meet |= (x.list[i].write || y.list[k].write) &&
                    x.list[i].bytes.low < y.list[k].bytes.high &&
                    y.list[k].bytes.low < x.list[i].bytes.high;
    return meet && gaps;
}

static void check_clocks(Check *c, bool needless)
{
    if (c->npair)
        qsort(c->pair, (size_t)c->npair, sizeof *c->pair, by_pair);
    int kept = 0;
    for (int i = 0; i < c->npair; i++)
        if (!kept || by_pair(&c->pair[kept - 1], &c->pair[i]))
            c->pair[kept++] = c->pair[i];
    c->npair = kept;
    run_clocks(c, -1, 0);
    const Pair *race = find_race(c);
    if (race)
        fault_add(c->f, "%s and %s touch the same bytes and are not in order",
                  event_text(c, race->before), event_text(c, race->after));
    for (int i = 0; i < c->p->nstep && needless && !c->f->text; i++)
        for (int k = 0; k < c->p->step[i].nwait; k++) {
            run_clocks(c, i, k);
            if (!find_race(c) && !only_gaps(c, c->p->step[i].wait[k], i))
                fault_add(c->f, "%s waits for %s needlessly", fault_step(c->f, i),
                          fault_step(c->f, c->p->step[i].wait[k]));
        }
}

void check_runs(PlanFault *f, bool needless)
{
    Check c = {.a = f->a, .p = f->p, .f = f};
    list_nodes(&c);
    unroll_all(&c);
    if (!f->text)
        replay(&c);
    if (!f->text)
        check_clocks(&c, needless);
}
