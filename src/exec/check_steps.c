/* Checks that follow every step of a program: results are finite, the guard zones of every arena
 * are whole, and bytes are filled with NaN after the last step that touches them, so that a reader
 * after it computes NaN. They run on the queue of the step.
 *
 * Poison is a write of which the plan knows nothing. It takes only bytes that its step touches, for
 * what another queue writes there next waits for that step; a storage of which parts are last
 * touched by several steps dies in parts. A storage that lives outside of a loop dies after that
 * step in the last iteration, not at the loop's end, after which another queue may have been let
 * in. */
#include "exec.h"

#include <math.h>

enum { GUARD_BYTE = 0xA5 };

/* ---- which bytes die when ---- */

typedef struct Dying {
    ByteRange bytes;
    int depth; /* of loops around the life of their storage */
} Dying;

/* Bytes of a storage that no later step touches. */
typedef struct Gap {
    ByteRange bytes;
    int next; /* of the same storage, -1: none */
} Gap;

/* A walk from the last step to the first. */
typedef struct LifetimeWalk {
    Program *x;
    Arena *a;
    Gap *gap;
    int ngap, capgap;
    int *first; /* by storage: its first gap */
    int loop[TN_MAX_DEPTH], depth;
} LifetimeWalk;

static void add_gap(LifetimeWalk *w, int storage, uint64_t low, uint64_t high)
{
    if (low >= high)
        return;
    Gap g = {{low, high}, w->first[storage]};
    w->first[storage] = w->ngap;
    PUSH(w->a, w->gap, w->ngap, w->capgap, g);
}

static void touch(void *arg, int step, int storage, ByteRange b, bool write)
{
    LifetimeWalk *w = arg;
    Program *x = w->x;
    (void)write;
    int loop = x->plan->storage[storage].loop;
    int depth = loop < 0 ? 0 : x->plan->step[loop].depth + 1;
    int k = w->first[storage];
    for (w->first[storage] = -1; k >= 0;) {
        ByteRange g = w->gap[k].bytes;
        Dying d = {{MAX(b.low, g.low), MIN(b.high, g.high)}, depth};
        bool touched = d.bytes.low < d.bytes.high;
        k = w->gap[k].next;
        add_gap(w, storage, g.low, touched ? d.bytes.low : g.high);
        if (!touched)
            continue;
        add_gap(w, storage, d.bytes.high, g.high);
        if (x->plan->step[step].queue == QUEUE_COMPUTE)
            PUSH(w->a, x->dying, x->ndying, x->capdying, d);
    }
}

/* Before the walk; what is alive at the end of the run, or stays, does not die. */
static void open_gaps(LifetimeWalk *w)
{
    const Plan *p = w->x->plan;
    w->first = NEWN(w->a, int, p->nstorage);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        Arg all = {.storage = i};
        ByteRange b = arg_bytes(p, &all, NULL, s->nbytes, w->loop, 0);
        w->first[i] = -1;
        if (!s->persistent && s->end < p->nstep)
            add_gap(w, i, b.low, b.high);
    }
}

static void fill_dying(Program *x, Arena *a)
{
    const Plan *p = x->plan;
    LifetimeWalk w = {.x = x, .a = a};
    open_gaps(&w);
    x->dying_at = NEWN(a, int, p->nstep + 1);
    for (int i = p->nstep - 1; i >= 0; i--) {
        const Step *s = &p->step[i];
        x->dying_at[i + 1] = x->ndying;
        if (s->kind == STEP_END) {
            w.loop[s->depth] = s->end;
            w.depth = s->depth + 1;
        } else if (s->kind == STEP_LOOP) {
            w.depth = s->depth;
        } else {
            step_each_access(p, i, w.loop, w.depth, touch, &w);
        }
    }
    x->dying_at[0] = x->ndying;
}

/* ---- guards ---- */

static int mark_guards(const Work *w, char *message)
{
    (void)message;
    const Program *x = w->x;
    for (int s = 0; s < MAX_SPACE; s++) {
        if (!x->memory[s])
            continue;
        x->driver->work->fill(w->stream, x->base[s] - GUARD, GUARD_BYTE, GUARD);
        x->driver->work->fill(w->stream, x->base[s] + x->memory[s]->nbytes, GUARD_BYTE, GUARD);
    }
    return 0;
}

void check_prepare(Program *x, Arena *a)
{
    fill_dying(x, a);
    x->driver->launch(x->queues, QUEUE_COMPUTE, &(Work){.run = mark_guards, .x = x});
    x->driver->finish(x->queues, x->message);
}

static bool guards_whole(const Work *w)
{
    const Program *x = w->x;
    const Driver *d = x->driver;
    for (int s = 0; s < MAX_SPACE; s++) {
        const char *at = x->base[s];
        if (x->memory[s] &&
            (d->work->high(w->stream, at - GUARD, GUARD_BYTE, GUARD) ||
             d->work->high(w->stream, at + x->memory[s]->nbytes, GUARD_BYTE, GUARD)))
            return false;
    }
    return true;
}

/* ---- values ---- */

/* Whether a result that is not finite is intended: a constant, such as the -inf of a mask, or a
 * copy of one. The node of a copy that the planner added has no operands; its source was checked.
 */
static bool is_meant(const Node *n)
{
    while (n->nin && (n->op->view || n->op->copy || node_transfers(n)) && n->in[0]->def)
        n = n->in[0]->def;
    bool constant = node_is(n, OP_full) && !isfinite(n->attr[attr_index(n->op, "fill_value")].f);
    return constant || (!n->nin && n->op->copy);
}

/* Whether a wait is for values that were made elsewhere. */
static bool waits_for_copies(const Node *n)
{
    const Node *from = node_waits_for(n);
    return !from || attr_index(from->op, "reduce_op") < 0;
}

/* Whether result t of n is as it should be. What a copy between memories moves was looked at where
 * it was made, or is the caller's: only poison shows that it came too late or too early. What a
 * collective makes is looked at where it is waited for. */
static bool is_sound(const Work *w, const Node *n, const Tensor *t)
{
    const Driver *d = w->x->driver;
    if (!dtype_float(t->dtype) || !tensor_nelem(t) || n->op->class == CLASS_COLLECTIVE)
        return true;
    return node_transfers(n) && waits_for_copies(n)
               ? !d->work->any(w->stream, t, POISONED)
               : !d->work->any(w->stream, t, NOT_FINITE) || is_meant(n);
}

static void look_for_nan(const Work *w)
{
    Program *x = w->x;
    const Step *s = &x->plan->step[w->step];
    const Node *none = NULL;
    for (int k = 0; k < s->call.nout; k++)
        if (!is_sound(w, s->node, &x->call[w->step].out[k]))
            atomic_compare_exchange_strong(&x->not_finite, &none, s->node);
}

/* A storage that lives in iterations of a loop dies in each, one outside of it in the last. */
static void poison(const Program *x, const Work *w)
{
    for (int k = x->dying_at[w->step + 1]; k < x->dying_at[w->step]; k++) {
        const Dying *d = &x->dying[k];
        uint64_t space = d->bytes.low >> SPACE_SHIFT,
                 offset = d->bytes.low - (space << SPACE_SHIFT);
        if (w->last <= d->depth)
            x->driver->work->fill(w->stream, x->base[space] + offset, POISON,
                                  (int64_t)(d->bytes.high - d->bytes.low));
    }
}

int check_step(const Work *w, char *message)
{
    Program *x = w->x;
    const Step *s = &x->plan->step[w->step];
    if (s->kind == STEP_CALL && !x->not_finite)
        look_for_nan(w);
    if (s->queue == QUEUE_COMPUTE)
        poison(x, w);
    if (guards_whole(w))
        return 0;
    snprintf(message, RUN_MESSAGE, "%s %%%s wrote outside of the arena",
             s->node ? s->node->op->name : "?",
             s->node && s->node->nout ? s->node->out[0]->name : "?");
    return -1;
}
