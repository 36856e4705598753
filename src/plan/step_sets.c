/* step_sets: what sets of a step's items take at least.
 *
 * Of one queue: the earliest of their starts, all their seconds there, and the least time that
 * follows any of them. Tried are, in the order of starts, each item with all later ones.
 *
 * Of computing and a link: each item that computes belongs to one collective that waits for it, if
 * one does: the longest. A collective then is a job of two machines, first what belongs to it, then
 * its seconds on the link; what belongs to none has no second part. If nothing else joins items,
 * the jobs take least in Johnson's order (1954): those with a shorter first part, by that, then the
 * others, the longest second part first. Interrupting jobs does not make that shorter, so that
 * rates may be shared. Whichever collective items belong to, that is a bound. */
#include "step_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one queue ---- */

/* The items of a queue so far, the least start first. */
static void add_sorted(BoundQueue *q, const double *start, int item)
{
    int low = 0, high = q->n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (start[q->item[middle]] > start[item])
            high = middle;
        else
            low = middle + 1;
    }
    memmove(q->item + low + 1, q->item + low, sizeof *q->item * (size_t)(q->n++ - low));
    q->item[low] = item;
}

void bound_none(StepBound *x)
{
    for (int q = 0; q < NBUSY; q++)
        x->queue[q].n = 0;
}

void bound_add(StepBound *x, const double *start, int item)
{
    for (int q = 0; q < NBUSY; q++)
        if (x->item[item].busy[q] > 0)
            add_sorted(&x->queue[q], start, item);
}

/* The greatest, over the items that begin last, of the least start, all their seconds, and the
 * least that follows. */
static double queue_sec(const StepBound *x, int q, const double *start, const double *to)
{
    double busy = 0, other = INFINITY, most = 0;
    for (int k = x->queue[q].n - 1; k >= 0; k--) {
        int i = x->queue[q].item[k];
        if (to[i] < 0)
            continue;
        busy += x->item[i].busy[q];
        other = MIN(other, to[i]);
        most = MAX(most, start[i] + busy + other);
    }
    return most;
}

double bound_sets(const StepBound *x, const double *start, const double *to)
{
    double most = 0;
    for (int q = 0; q < NBUSY; q++)
        most = MAX(most, queue_sec(x, q, start, to));
    return most;
}

/* ---- computing and a link ---- */

static int by_johnson(const void *s, const void *t)
{
    const BoundJob *x = s, *y = t;
    bool first = x->computing < x->moving, other = y->computing < y->moving;
    if (first != other)
        return first ? -1 : 1;
    return first ? (x->computing > y->computing) - (x->computing < y->computing)
                 : (x->moving < y->moving) - (x->moving > y->moving);
}

static double johnson_sec(BoundJob *job, int n)
{
    double computed = 0, moved = 0;
    if (n)
        qsort(job, (size_t)n, sizeof *job, by_johnson);
    for (int i = 0; i < n; i++) {
        computed += job[i].computing;
        moved = MAX(moved, computed) + job[i].moving;
    }
    return MAX(computed, moved);
}

/* Whether collective i takes longer than another, or as long and begins later. */
static bool is_longer(const StepBound *x, int link, const double *start, int i, int than)
{
    double sec = x->item[i].busy[link], other = x->item[than].busy[link];
    return sec > other || (sec == other && start[i] > start[than]);
}

/* Whether an item waits for a collective that reads another: it keeps that one's result, only. */
static bool keeps(const StepBound *x, int wait, int other)
{
    return x->item[wait].node->op->wait && x->item[other].node->op->class != CLASS_COLLECTIVE;
}

/* Fills the collective to which each item belongs: the longest of those that wait for it. */
static void fill_last(const StepBound *x, int link, const double *start, const double *to,
                      const Lists *succ)
{
    bool down = succ == &x->succ;
    for (int k = 0; k < x->n; k++) {
        int i = down ? x->n - 1 - k : k, last = -1;
        EACH_ITEM(e, *succ, i) {
            int of = x->last[succ->item[e]];
            bool held = down ? keeps(x, succ->item[e], i) : keeps(x, i, succ->item[e]);
            if (of >= 0 && !held && (last < 0 || is_longer(x, link, start, of, last)))
                last = of;
        }
        bool moves = x->item[i].busy[link] > 0 && x->item[i].busy[QUEUE_COMPUTE] <= 0;
        x->last[i] = to[i] < 0 ? -1 : moves ? i : last;
    }
}

/* The jobs of a link, of the items that begin at `from` or later; *least: the least time that
 * follows any of these. */
static int fill_jobs(const StepBound *x, int link, const double *start, const double *to,
                     double from, double *least)
{
    double alone = 0;
    int n = 0;
    *least = INFINITY;
    memset(x->ahead, 0, sizeof *x->ahead * (size_t)x->n);
    for (int i = 0; i < x->n; i++) {
        double busy = x->item[i].busy[QUEUE_COMPUTE];
        if (to[i] < 0 || start[i] < from || (x->last[i] != i && busy <= 0))
            continue;
        *least = MIN(*least, to[i]);
        if (x->last[i] != i)
            *(x->last[i] >= 0 ? &x->ahead[x->last[i]] : &alone) += busy;
    }
    for (int i = 0; i < x->n; i++)
        if (x->last[i] == i && start[i] >= from)
            x->job[n++] = (BoundJob){x->ahead[i], x->item[i].busy[link]};
    x->job[n++] = (BoundJob){alone, 0};
    return n;
}

double bound_pairs(const StepBound *x, const double *start, const double *to, double from,
                   const Lists *succ)
{
    const double begin[] = {0, from};
    double most = 0, least;
    for (int link = BY_HOST; link <= BY_NETWORK; link++) {
        fill_last(x, link, start, to, succ);
        for (int i = 0; i < LEN(begin); i++) {
            int n = fill_jobs(x, link, start, to, begin[i], &least);
            if (least < INFINITY)
                most = MAX(most, begin[i] + johnson_sec(x->job, n) + least);
        }
    }
    return most;
}
