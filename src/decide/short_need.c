/* Computes the whole step's bytes and seconds from a plan of a short step, in which each kept block
 * stands for several in a row.
 *
 * While the forward is beyond a block and the backward is not back, the others that it stands for
 * have alive what it has there; after its backward, what it leaves for the updates. Between the
 * ends of its backward they have either, so the larger of both counts: bytes are linear in the
 * blocks between the ends. Each of them takes the seconds that the clock gives to its calls. */
#include "short.h"

#include <string.h>

/* The first product of a block's forward, and the first and the last of its backward. */
typedef struct BlockSpan {
    int begin, back, end;
} BlockSpan;

typedef struct ShortPlan {
    const Short *s;
    const Plan *p;
    int *of;       /* by step: the kept block, -1 */
    int turn, end; /* the first product of the backward, and the last */
    BlockSpan span[SHORT_KEPT];
} ShortPlan;

static int kept_of(const Short *s, const char *scope)
{
    const Block b = block_of(scope ? scope : "");
    for (int i = 0; b.len && i < SHORT_KEPT; i++)
        if (b.len == s->len[i] && !strncmp(b.scope, s->scope[i], (size_t)b.len))
            return i;
    return -1;
}

static const char *step_scope(const Step *s)
{
    const Node *n = s->kind == STEP_CALL ? s->node : NULL;
    return !n ? "" : n->nout ? value_scope(n->out[0]) : n->scope;
}

static void find_spans(ShortPlan *x)
{
    const Plan *p = x->p;
    for (int k = 0; k < SHORT_KEPT; k++)
        x->span[k] = (BlockSpan){p->nstep, p->nstep, -1};
    x->turn = p->nstep;
    x->end = -1;
    for (int i = 0; i < p->nstep; i++) {
        const Node *n = p->step[i].kind == STEP_CALL ? p->step[i].node : NULL;
        const int k = x->of[i];
        if (!n || p->step[i].copy || n->op->class != CLASS_PRODUCT)
            continue;
        if (n->phase == BACKWARD && !n->origin)
            x->turn = MIN(x->turn, i);
        if (n->phase == BACKWARD)
            x->end = i;
        if (k >= 0 && n->phase < BACKWARD)
            x->span[k].begin = MIN(x->span[k].begin, i);
        if (k >= 0 && n->phase == BACKWARD)
            x->span[k].back = MIN(x->span[k].back, i);
        if (k >= 0)
            x->span[k].end = i;
    }
}

/* By step, and one: how the bytes alive change there; k: of a kept block alone, -1: of all. */
static void add_alive(const ShortPlan *x, int k, int64_t *change)
{
    for (int i = 0; i < x->p->nstorage; i++) {
        const Storage *s = &x->p->storage[i];
        if (s->space != SPACE_MAIN || s->persistent || (k >= 0 && kept_of(x->s, s->scope) != k))
            continue;
        change[s->start] += s->nbytes;
        change[s->end] -= s->nbytes;
    }
}

static ShortPlan measure(const Short *s, const Plan *p, Arena *tmp)
{
    ShortPlan x = {.s = s, .p = p, .of = NEWN(tmp, int, p->nstep)};
    for (int i = 0; i < p->nstep; i++)
        x.of[i] = kept_of(s, step_scope(&p->step[i]));
    find_spans(&x);
    return x;
}

ShortLoad short_load(const Short *s, const Plan *p, Arena *tmp)
{
    const ShortPlan x = measure(s, p, tmp);
    ShortLoad l = {0};
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *t = &p->storage[i];
        const int k = kept_of(s, t->scope);
        if (t->space != SPACE_MAIN || t->persistent || k < 0)
            continue;
        if (t->category != CAT_RECOMPUTE && storage_alive(t, x.turn))
            l.saved[k] += t->nbytes;
        if (t->start <= x.end && t->end > x.end + 1)
            l.left[k] += t->nbytes;
    }
    int64_t least = INT64_MAX; /* without what is on its way to the last one */
    for (int k = 0; k < SHORT_KEPT; k++)
        least = MIN(least, l.left[k]);
    for (int k = 0; k < SHORT_KEPT; k++)
        l.left[k] = least;
    return l;
}

/* The bytes alive of each of the others for which block k stands; alive: those of block k.
 */
static int64_t others_bytes(const ShortPlan *x, const ShortLoad *l, int k, int step, int64_t alive)
{
    const BlockSpan s = x->span[k];
    if (step < s.begin)
        return 0;
    if (step < s.back)
        return l->saved[k];
    if (step <= s.end)
        return MAX(l->saved[k], l->left[k]);
    return step <= x->end ? l->left[k] : MIN(alive, l->left[k]);
}

/* The most bytes alive in the plan and in what it lacks; beside: NULL, or as of short_beside(). */
static int64_t peak_of(const ShortPlan *x, const int *weight, const ShortLoad *l, int64_t *beside,
                       Arena *tmp)
{
    const int n = x->p->nstep;
    int64_t *all = NEWN(tmp, int64_t, n + 1), *one[SHORT_KEPT], peak = 0, sum = 0;
    int64_t alive[SHORT_KEPT] = {0};
    add_alive(x, -1, all);
    for (int k = 0; k < SHORT_KEPT; k++)
        add_alive(x, k, one[k] = NEWN(tmp, int64_t, n + 1));
    for (int i = 0; i < n; i++) {
        const Step *s = &x->p->step[i];
        int64_t others = 0;
        for (int k = 0; k < SHORT_KEPT; k++) {
            alive[k] += one[k][i];
            others += (weight[k] - 1) * others_bytes(x, l, k, i, alive[k]);
        }
        if (beside && s->kind == STEP_CALL && !s->copy)
            beside[s->node->id] = others;
        sum += all[i];
        peak = MAX(peak, sum + others);
    }
    return peak;
}

/* The bytes that libraries keep for the others' steps. */
static int64_t others_handles(const ShortPlan *x, const int *weight)
{
    int64_t n = 0;
    for (int i = 0; x->p->handles && i < x->p->nstep; i++)
        n += x->of[i] < 0 ? 0 : (weight[x->of[i]] - 1) * plan_step_handles(&x->p->step[i]);
    return n;
}

int64_t short_beside(const Short *s, const int *weight, const ShortLoad *l, const Plan *p,
                     int64_t *beside, Arena *tmp)
{
    const ShortPlan x = measure(s, p, tmp);
    const int64_t own = p->space[SPACE_MAIN].bound - p->space[SPACE_MAIN].persistent;
    weight = weight ? weight : s->weight;
    return peak_of(&x, weight, l, beside, tmp) - own + s->nbytes + others_handles(&x, weight);
}

/* The seconds of what the kept blocks stand for beside themselves: how long the queue of kernels
 * runs their calls, and stands still for their collectives. */
static double others_sec(const ShortPlan *x, const int *weight, double *shown, Arena *tmp)
{
    PlanSpans spans = {.a = tmp};
    double sec = 0;
    plan_times(x->p, tmp, NEWN(tmp, double, x->p->nstep), &spans);
    for (int i = 0; i < spans.count; i++) {
        const PlanSpan *s = &spans.list[i];
        const bool runs = s->kind == SPAN_CALL && x->p->step[s->step].queue == QUEUE_COMPUTE;
        const int k = x->of[s->step];
        const double others = k < 0 ? 0 : (weight[k] - 1) * (s->end - s->start);
        sec += runs || s->kind == SPAN_EXPOSED ? others : 0;
        *shown += s->kind == SPAN_EXPOSED ? others : 0;
    }
    return sec;
}

double short_sec(const Short *s, const int *weight, const Plan *p, double *shown, Arena *tmp)
{
    const ShortPlan x = measure(s, p, tmp);
    *shown = p->est.exposed;
    return p->est.step + s->sec + others_sec(&x, weight ? weight : s->weight, shown, tmp);
}
