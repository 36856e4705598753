/* Which steps of other queues each step waits for.
 *
 * Steps of one queue run in the order in which they are given to it; those of two queues at any
 * time, unless one waits. Two steps of different queues conflict if they touch a byte in common and
 * one of them writes it; the later one must then find the earlier one ended. This is derived from
 * addresses, after placement, so it covers reading what another queue makes, overwriting what
 * another queue reads, and storages that follow each other at one place.
 *
 * Steps are walked in the order in which a run issues them. A queue knows, of each queue, how
 * many of its runs of steps have ended before the queue's next step begins: a vector clock (Fidge,
 * Mattern, 1988). A step that waits for a run learns what that run's queue knew when it began, and
 * that it has ended. For each byte the latest run that read it and the latest that wrote it are
 * kept by queue; earlier runs of the same queue end before these. A step needs of each other queue
 * the latest run with which it conflicts, and where it does not know that this has ended, a wait is
 * added.
 *
 * No wait can be left out. One is added only where what its step knows does not cover a run with
 * which it conflicts; of runs of several queues the one issued last is waited for first, as it
 * may know of the others, never the reverse; and what is added later in the walk tells an earlier
 * step nothing.
 *
 * A wait names a step and means its latest run, none if there was none, as events do. So one wait
 * holds in all iterations of a loop, and an iteration waits for the one before where its step's
 * wait names a step that comes later in the body. A body is walked as often as it runs, until a
 * walk after the first adds no wait: all iterations that follow repeat that one, with all runs one
 * iteration later. A tensor that moves with the iteration counts with all bytes that it ever
 * touches, and one with gaps with all from its first to its last. A body that no other queue takes
 * part in is walked once: nothing outside can come to conflict with it that did not in its first
 * iteration.
 *
 * Only bytes touched by a step outside QUEUE_COMPUTE can conflict. The ends of these divide each
 * space into intervals, over which a segment tree keeps the marks; other steps cost a search for
 * each argument. So the whole is O(n log n) for n arguments, and nothing where the device has one
 * queue.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Runs of each queue, counted from 1; 0: none. */
typedef struct Mark {
    int wrote[MAX_QUEUE], read[MAX_QUEUE];
} Mark;

/* A part of a space that an argument touches, in intervals [first, last). */
typedef struct SpaceAccess {
    int first, last;
    bool write;
} SpaceAccess;

typedef struct QueueRun {
    int step, order;      /* order: of all runs */
    int known[MAX_QUEUE]; /* how many runs of each queue had ended before it began */
} QueueRun;

typedef struct Waits {
    int *step, count, cap;
} Waits;

typedef struct WaitWalk {
    Plan *p;
    Arena *tmp;
    uint64_t *edge; /* of intervals, ascending: addresses as address() gives them */
    int nedge, capedge;
    SpaceAccess *access;
    int naccess, capaccess;
    int *at;   /* by step: its first access; one more */
    int *last; /* by step: its latest run, 0: none */
    Waits *of; /* by step */
    int nwait; /* all of them */
    QueueRun *run[MAX_QUEUE];
    int nrun[MAX_QUEUE], caprun[MAX_QUEUE], order;
    int known[MAX_QUEUE][MAX_QUEUE]; /* by queue: what its next step knows */
    Mark *whole, *most; /* segment tree: marks of all of a node's intervals; of any below it */
    int size;           /* leaves, a power of two */
} WaitWalk;

/* ---- bytes ---- */

static uint64_t address(const Storage *s, int64_t offset)
{
    return ((uint64_t)s->space << SPACE_SHIFT) + (uint64_t)(s->offset + offset);
}

ByteRange arg_bytes(const Plan *p, const Arg *a, const Tensor *t, int64_t nbytes, const int *loop,
                    int depth)
{
    int64_t low = a->offset, high = low;
    for (int d = 0; d < depth; d++) {
        const Step *s = &p->step[loop[d]];
        int64_t by = a->loop_stride[d], last = s->first + (s->count - 1) * s->by;
        low += by * (by > 0 ? MIN(s->first, last) : MAX(s->first, last));
        high += by * (by > 0 ? MAX(s->first, last) : MIN(s->first, last));
    }
    for (int d = 0; t && d < t->rank; d++) {
        int64_t span = (t->dim[d] - 1) * t->stride[d] * dtype_size(t->dtype);
        low += MIN(span, 0);
        high += MAX(span, 0);
    }
    high += !t ? nbytes : tensor_nelem(t) ? dtype_size(t->dtype) : low - high;
    const Storage *s = &p->storage[a->storage];
    return (ByteRange){address(s, low), address(s, high)};
}

/* A copy between memories is written by its own queue; a collective's result until its wait, beside
 * all queues. */
static bool waits_for_copy(const Node *n)
{
    return n->op->wait && !node_waits_for(n);
}

void step_each_access(const Plan *p, int i, const int *loop, int depth, StepAccess *see, void *arg)
{
    const Step *s = &p->step[i];
    const Call *c = &s->call;
    bool writes = s->kind == STEP_CALL && !waits_for_copy(s->node);
    for (int k = 0; s->kind == STEP_CALL && k < c->nin + c->nout; k++) {
        const Tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        ByteRange b = arg_bytes(p, &s->arg[k], t, 0, loop, depth);
        see(arg, i, s->arg[k].storage, b, k >= c->nin && writes);
    }
    if (s->work >= 0) {
        Arg work = {.storage = s->work};
        see(arg, i, s->work, arg_bytes(p, &work, NULL, c->nbytes_work, loop, 0), writes);
    }
    if (s->kind == STEP_ZERO || s->kind == STEP_OFFSET)
        see(arg, i, s->arg->storage, arg_bytes(p, s->arg, NULL, s->nbytes, loop, depth), true);
}

void plan_each_access(const Plan *p, StepAccess *see, void *arg)
{
    int loop[TN_MAX_DEPTH], depth = 0;
    for (int i = 0; i < p->nstep; i++) {
        if (p->step[i].kind == STEP_LOOP)
            loop[depth++] = i;
        step_each_access(p, i, loop, depth, see, arg);
        depth -= p->step[i].kind == STEP_END;
    }
}

static void add_edges(void *arg, int step, int storage, ByteRange b, bool write)
{
    WaitWalk *x = arg;
    (void)storage;
    (void)write;
    if (x->p->step[step].queue == QUEUE_COMPUTE || b.low == b.high)
        return;
    PUSH(x->tmp, x->edge, x->nedge, x->capedge, b.low);
    PUSH(x->tmp, x->edge, x->nedge, x->capedge, b.high);
}

/* The first edge that is not below an address. */
static int find_edge(const WaitWalk *x, uint64_t address)
{
    int low = 0, high = x->nedge;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (x->edge[mid] < address)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void add_access(void *arg, int step, int storage, ByteRange b, bool write)
{
    WaitWalk *x = arg;
    (void)storage;
    int first = find_edge(x, b.low), last = MIN(find_edge(x, b.high), x->nedge - 1);
    if (first == x->nedge || x->edge[first] > b.low)
        first = MAX(first - 1, 0);
    if (b.low < b.high && first < last)
        PUSH(x->tmp, x->access, x->naccess, x->capaccess, ((SpaceAccess){first, last, write}));
    x->at[step + 1] = x->naccess;
}

/* Lists the accesses of all steps. */
static void list_accesses(WaitWalk *x)
{
    plan_each_access(x->p, add_access, x);
    for (int i = 0; i < x->p->nstep; i++) /* some have none */
        x->at[i + 1] = MAX(x->at[i + 1], x->at[i]);
}

static int by_address(const void *s, const void *t)
{
    uint64_t x = *(const uint64_t *)s, y = *(const uint64_t *)t;
    return (x > y) - (x < y);
}

static void sort_edges(WaitWalk *x)
{
    int n = 0;
    if (!x->nedge)
        return;
    qsort(x->edge, (size_t)x->nedge, sizeof *x->edge, by_address);
    for (int k = 0; k < x->nedge; k++)
        if (!n || x->edge[n - 1] != x->edge[k])
            x->edge[n++] = x->edge[k];
    x->nedge = n;
}

/* ---- marks ---- */

static void add_mark(Mark *to, const Mark *m)
{
    for (int q = 0; q < MAX_QUEUE; q++) {
        to->wrote[q] = MAX(to->wrote[q], m->wrote[q]);
        to->read[q] = MAX(to->read[q], m->read[q]);
    }
}

/* Adds the marks of any interval of the access to m; node's are [low, high). */
static void find_marks(const WaitWalk *x, int node, int low, int high, const SpaceAccess *a,
                       Mark *m)
{
    if (a->last <= low || high <= a->first)
        return;
    bool inside = a->first <= low && high <= a->last;
    add_mark(m, inside ? &x->most[node] : &x->whole[node]);
    if (inside)
        return;
    int mid = (low + high) / 2;
    find_marks(x, 2 * node, low, mid, a, m);
    find_marks(x, 2 * node + 1, mid, high, a, m);
}

static void set_marks(WaitWalk *x, int node, int low, int high, const SpaceAccess *a, const Mark *m)
{
    if (a->last <= low || high <= a->first)
        return;
    add_mark(&x->most[node], m);
    if (a->first <= low && high <= a->last) {
        add_mark(&x->whole[node], m);
        return;
    }
    int mid = (low + high) / 2;
    set_marks(x, 2 * node, low, mid, a, m);
    set_marks(x, 2 * node + 1, mid, high, a, m);
}

/* ---- the walk ---- */

/* Queue q has waited for a run of queue r. */
static void learn(WaitWalk *x, int q, int r, int run)
{
    const QueueRun *y = &x->run[r][run - 1];
    for (int k = 0; k < MAX_QUEUE; k++)
        x->known[q][k] = MAX(x->known[q][k], y->known[k]);
    x->known[q][r] = MAX(x->known[q][r], run);
}

/* Each queue's latest run with which the step conflicts, 0: none. */
static void find_needs(const WaitWalk *x, int step, int *need)
{
    for (int k = x->at[step]; k < x->at[step + 1]; k++) {
        const SpaceAccess *a = &x->access[k];
        Mark m = {{0}, {0}};
        find_marks(x, 1, 0, x->size, a, &m);
        for (int q = 0; q < MAX_QUEUE; q++)
            need[q] = MAX(need[q], MAX(m.wrote[q], a->write ? m.read[q] : 0));
    }
}

/* The queue of the run that was issued last among those needed that are not known to have ended,
 * or -1. */
static int latest_unknown(const WaitWalk *x, int q, const int *need)
{
    int latest = -1;
    for (int r = 0; r < MAX_QUEUE; r++)
        if (need[r] > x->known[q][r] &&
            (latest < 0 || x->run[r][need[r] - 1].order > x->run[latest][need[latest] - 1].order))
            latest = r;
    return latest;
}

static void issue(WaitWalk *x, int i)
{
    int q = (int)x->p->step[i].queue, need[MAX_QUEUE] = {0};
    Waits *w = &x->of[i];
    for (int k = 0; k < w->count; k++)
        if (x->last[w->step[k]])
            learn(x, q, (int)x->p->step[w->step[k]].queue, x->last[w->step[k]]);
    find_needs(x, i, need);
    for (int r; (r = latest_unknown(x, q, need)) >= 0; x->nwait++) {
        int step = x->run[r][need[r] - 1].step;
        PUSH(x->tmp, w->step, w->count, w->cap, step);
        learn(x, q, r, need[r]);
    }
    QueueRun run = {.order = x->order++, .step = i};
    memcpy(run.known, x->known[q], sizeof run.known);
    PUSH(x->tmp, x->run[q], x->nrun[q], x->caprun[q], run);
    x->last[i] = x->known[q][q] = x->nrun[q];
    for (int k = x->at[i]; k < x->at[i + 1]; k++) {
        Mark m = {{0}, {0}};
        *(x->access[k].write ? &m.wrote[q] : &m.read[q]) = x->nrun[q];
        set_marks(x, 1, 0, x->size, &x->access[k], &m);
    }
}

static bool one_queue(const Plan *p, int begin, int end)
{
    for (int i = begin; i < end; i++)
        if (p->step[i].queue != QUEUE_COMPUTE)
            return false;
    return true;
}

static void walk(WaitWalk *x, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        const Step *s = &x->p->step[i];
        if (s->kind != STEP_LOOP) {
            issue(x, i);
            continue;
        }
        int64_t count = one_queue(x->p, i + 1, s->end) ? MIN(s->count, 1) : s->count;
        for (int64_t k = 0, before = -1; k < count && (k < 2 || before != x->nwait); k++) {
            before = x->nwait;
            walk(x, i + 1, s->end);
        }
        i = s->end;
    }
}

static int by_step(const void *s, const void *t)
{
    return *(const int *)s - *(const int *)t;
}

static void fill_waits(Plan *p, Arena *a, const WaitWalk *x)
{
    for (int i = 0; i < p->nstep; i++) {
        const Waits *w = &x->of[i];
        if (!w->count)
            continue;
        p->step[i].nwait = w->count;
        p->step[i].wait = NEWN(a, int, w->count);
        memcpy(p->step[i].wait, w->step, sizeof *w->step * (size_t)w->count);
        qsort(p->step[i].wait, (size_t)w->count, sizeof *w->step, by_step);
        for (int k = 0; k < w->count; k++)
            p->step[w->step[k]].awaited = true;
    }
}

/* The segment tree over the intervals, all bytes of all steps. */
static WaitWalk *walk_new(Plan *p, Arena *tmp)
{
    WaitWalk *x = NEW(tmp, WaitWalk);
    *x = (WaitWalk){.p = p, .tmp = tmp, .size = 1};
    x->at = NEWN(tmp, int, p->nstep + 1);
    x->last = NEWN(tmp, int, p->nstep);
    x->of = NEWN(tmp, Waits, p->nstep);
    plan_each_access(p, add_edges, x);
    sort_edges(x);
    list_accesses(x);
    while (x->size < x->nedge)
        x->size *= 2;
    x->whole = NEWN(tmp, Mark, 2 * x->size);
    x->most = NEWN(tmp, Mark, 2 * x->size);
    return x;
}

bool plan_one_queue(const Plan *p)
{
    return one_queue(p, 0, p->nstep);
}

void plan_waits(Plan *p, Arena *a)
{
    if (plan_one_queue(p))
        return;
    Arena *tmp = arena_tmp(p->g->a);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i]; /* what is freed can be filled by a step of its queue */
        bool unread = s->end == 1;         /* an input that no step touches */
        CHECK(s->end <= s->start || unread || p->step[s->end - 1].queue == QUEUE_COMPUTE);
    }
    WaitWalk *x = walk_new(p, tmp);
    walk(x, 0, p->nstep);
    fill_waits(p, a, x);
    arena_reset(tmp);
}
