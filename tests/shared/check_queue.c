/* Whether a plan's storages, steps and waits are right by themselves: places, lives, spaces,
 * queues. What happens when it runs is check_runs.c. Nothing here is taken from how they were
 * chosen. */
#include "check_queue.h"

#include <stdlib.h>
#include <string.h>

void fault_add(PlanFault *f, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!f->text)
        f->text = arena_strdup(f->a, text);
}

const char *fault_step(const PlanFault *f, int i)
{
    static const char *const kind[] = {"", "loop", "end", "zero", "offset"};
    const Step *s = &f->p->step[i];
    const char *op = s->kind == STEP_CALL && s->node ? s->node->op->name : kind[s->kind];
    const char *to = s->node && s->node->nout ? s->node->out[0]->name : "";
    return arena_printf(f->a, "step %d (%s%s%s)", i, op, *to ? " %" : "", to);
}

const char *fault_storage(const PlanFault *f, int s)
{
    if (s < 0)
        return "no storage";
    return arena_printf(f->a, "storage %d (%s)", s, f->p->storage[s].name);
}

/* ---- without time ---- */

static void check_place(PlanFault *f, int i)
{
    const Storage *s = &f->p->storage[i];
    if (s->start < 0 || s->start > s->end || s->end > MAX(f->p->nstep, 1))
        fault_add(f, "%s lives from %d to %d", fault_storage(f, i), s->start, s->end);
    if ((int)s->space >= device_nspace(f->p->device))
        fault_add(f, "%s lies in space %d, which the device has not", fault_storage(f, i),
                  (int)s->space);
    else if (s->end > s->start && (s->offset < 0 || s->offset % PLAN_ALIGN || s->nbytes < 0 ||
                                   s->offset + s->nbytes > f->p->space[s->space].peak))
        fault_add(f, "%s lies at %lld, the peak is %lld", fault_storage(f, i), (long long)s->offset,
                  (long long)f->p->space[s->space].peak);
}

static int by_start(const void *x, const void *y)
{
    const Storage *const *s = x, *const *t = y;
    return ((*s)->start > (*t)->start) - ((*s)->start < (*t)->start);
}

/* No two that are alive at once share bytes; the sum of what is alive is at most the bound. */
static void check_apart(PlanFault *f, Space space)
{
    const Plan *p = f->p;
    const Storage **by = NEWN(f->a, const Storage *, p->nstorage + 1);
    const Storage **alive = NEWN(f->a, const Storage *, p->nstorage + 1);
    int n = 0, nalive = 0;
    int64_t most = 0;
    for (int i = 0; i < p->nstorage; i++)
        if (p->storage[i].space == space && p->storage[i].end > p->storage[i].start)
            by[n++] = &p->storage[i];
    qsort(by, (size_t)n, sizeof *by, by_start);
    for (int i = 0; i < n; i++) {
        int kept = 0;
        int64_t sum = by[i]->nbytes;
        for (int k = 0; k < nalive; k++) {
            const Storage *s = alive[k];
            if (s->end <= by[i]->start)
                continue;
            alive[kept++] = s;
            sum += s->nbytes;
            if (s->offset < by[i]->offset + by[i]->nbytes && by[i]->offset < s->offset + s->nbytes)
                fault_add(f, "%s and %s overlap", fault_storage(f, (int)(s - p->storage)),
                          fault_storage(f, (int)(by[i] - p->storage)));
        }
        alive[kept++] = by[i];
        nalive = kept;
        most = MAX(most, sum);
    }
    const PlanSpace *x = &p->space[space];
    if (most > x->bound || x->bound > x->peak)
        fault_add(f, "space %d: %lld bytes are alive at once, the bound is %lld, the peak %lld",
                  (int)space, (long long)most, (long long)x->bound, (long long)x->peak);
}

/* In which space an operand may lie: kernels compute in one, copies go from one to the other, a
 * wait for them touches both, and ranks reach the host's alone; those of GPUs another's too, all
 * operands in one. */
static bool space_fits(const Plan *p, const Step *s, Space space, bool out)
{
    if (s->kind == STEP_CALL && s->node->op->wait)
        return true;
    if (s->kind == STEP_CALL && s->node->op->class == CLASS_COLLECTIVE && s->call.mesh)
        return space ==
               (device_is_gpu(p->device) ? p->storage[s->arg[0].storage].space : SPACE_HOST);
    if (s->queue == QUEUE_COMPUTE)
        return space == SPACE_MAIN;
    return space == ((s->queue == QUEUE_OUT) == out ? SPACE_HOST : SPACE_MAIN);
}

static void check_step(PlanFault *f, int i)
{
    const Step *s = &f->p->step[i];
    bool flow = s->kind == STEP_LOOP || s->kind == STEP_END;
    if (device_is_host(f->p->device) && (s->queue != QUEUE_COMPUTE || s->nwait))
        fault_add(f, "%s: the device has one queue", fault_step(f, i));
    if ((flow || s->kind == STEP_ZERO || s->kind == STEP_OFFSET) && s->queue != QUEUE_COMPUTE)
        fault_add(f, "%s is on queue %d", fault_step(f, i), (int)s->queue);
    if (flow && (s->nwait || s->awaited))
        fault_add(f, "%s waits or is waited for", fault_step(f, i));
    for (int k = 0; k < s->narg && !flow && !device_is_host(f->p->device); k++) {
        bool over = s->kind == STEP_CALL && s->node->op->to_host && k == 1; /* the old value */
        bool out = s->kind != STEP_CALL || k >= s->call.nin || over;
        if (!space_fits(f->p, s, f->p->storage[s->arg[k].storage].space, out))
            fault_add(f, "%s: operand %d lies in the wrong space", fault_step(f, i), k);
    }
}

static void check_waits(PlanFault *f)
{
    const Plan *p = f->p;
    bool *awaited = NEWN(f->a, bool, p->nstep + 1);
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        for (int k = 0; k < s->nwait; k++) {
            int w = s->wait[k];
            if (w < 0 || w >= p->nstep || p->step[w].queue == s->queue)
                fault_add(f, "%s waits for step %d of its queue", fault_step(f, i), w);
            else
                awaited[w] = true;
        }
    }
    for (int i = 0; i < p->nstep; i++)
        if (awaited[i] != p->step[i].awaited)
            fault_add(f, "%s: `awaited` is %d", fault_step(f, i), p->step[i].awaited);
}

/* What a step touches is alive, through the whole of each loop in which it is not made anew. */
static void check_life(PlanFault *f)
{
    const Plan *p = f->p;
    int loop[TN_MAX_DEPTH + 1], depth = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP)
            loop[depth++] = i;
        depth -= s->kind == STEP_END;
        if (s->kind == STEP_LOOP || s->kind == STEP_END)
            continue;
        for (int k = 0; k < s->narg + (s->work >= 0); k++) {
            int at = k < s->narg ? s->arg[k].storage : s->work;
            const Storage *x = &p->storage[at];
            int first = i, last = i;
            for (int d = depth - 1; d >= 0 && loop[d] != x->loop; d--) {
                first = loop[d];
                last = p->step[loop[d]].end;
            }
            if (first < x->start || last >= x->end)
                fault_add(f, "%s touches %s, which lives from %d to %d", fault_step(f, i),
                          fault_storage(f, at), x->start, x->end);
        }
    }
}

/* ---- all of it ---- */

static const char *check(Arena *a, const Plan *p, bool needless)
{
    Arena *tmp = arena_new(arena_ctx(a));
    CHECK(tmp);
    PlanFault f = {.a = tmp, .p = p};
    for (int i = 0; i < p->nstorage; i++)
        check_place(&f, i);
    for (int i = 0; i < p->nstep; i++)
        check_step(&f, i);
    check_waits(&f);
    for (int s = 0; s < device_nspace(p->device); s++)
        check_apart(&f, (Space)s);
    check_life(&f);
    if (!f.text)
        check_runs(&f, needless);
    const char *text = f.text ? arena_strdup(a, f.text) : NULL;
    arena_free(tmp);
    return text;
}

const char *check_queue(Arena *a, const Plan *p)
{
    return check(a, p, true);
}

const char *check_order(Arena *a, const Plan *p)
{
    return check(a, p, false);
}

/* Nothing is waited for that no step waits for. */
static void mark_awaited(Plan *p)
{
    for (int i = 0; i < p->nstep; i++)
        p->step[i].awaited = false;
    for (int i = 0; i < p->nstep; i++)
        for (int k = 0; k < p->step[i].nwait; k++)
            p->step[p->step[i].wait[k]].awaited = true;
}

Plan *drop_wait(Arena *a, const Plan *p, int k, const char **which)
{
    Plan *q = NEW(a, Plan);
    *q = *p;
    q->step = NEWN(a, Step, p->nstep);
    memcpy(q->step, p->step, sizeof *q->step * (size_t)p->nstep);
    for (int i = 0; i < p->nstep; i++) {
        Step *s = &q->step[i];
        if (k >= s->nwait) {
            k -= s->nwait;
            continue;
        }
        PlanFault f = {.a = a, .p = p};
        *which = arena_printf(a, "%s for %s", fault_step(&f, i), fault_step(&f, s->wait[k]));
        s->wait = NEWN(a, int, s->nwait);
        s->nwait--;
        for (int j = 0; j < s->nwait; j++)
            s->wait[j] = p->step[i].wait[j + (j >= k)];
        mark_awaited(q);
        return q;
    }
    return NULL;
}
