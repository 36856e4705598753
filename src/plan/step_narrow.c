/* step_narrow: where the graph of a step's items narrows, between the first item and the loss, and
 * between the loss and the last: the items that stand before or behind each other one that lies on
 * a way between these. In an order of the edges those before it are all needed by it if each is
 * read at it or before, and those behind it all need it if each reads it or one behind it. */
#include "step_bound.h"

enum { EFFORT = 8000000 }; /* items that are looked at for narrow ones, all together */

/* Marks, of the items from `first` to `last` that lie on a way between them, those that stand
 * before or behind each other one. */
static void mark_narrow(StepBound *x, int first, int last)
{
    bool *after = NEWN(x->tmp, bool, x->n), *before = NEWN(x->tmp, bool, x->n);
    bool *needs_all = NEWN(x->tmp, bool, x->n);
    after[first] = before[last] = true;
    for (int i = first; i <= last; i++)
        EACH_ITEM(k, x->pred, i)
            after[i] |= after[x->pred.item[k]];
    for (int i = last; i >= first; i--)
        EACH_ITEM(k, x->succ, i)
            before[i] |= before[x->succ.item[k]];
    for (int i = first, reach = first; i <= last; i++) {
        if (!after[i] || !before[i])
            continue;
        int nearest = last;
        needs_all[i] = reach <= i;
        EACH_ITEM(k, x->succ, i)
            if (before[x->succ.item[k]])
                nearest = MIN(nearest, x->succ.item[k]);
        reach = MAX(reach, nearest);
    }
    for (int i = last, reach = last; i >= first; i--) {
        if (!after[i] || !before[i])
            continue;
        int nearest = first;
        x->narrow[i] |= reach >= i && needs_all[i];
        EACH_ITEM(k, x->pred, i)
            if (after[x->pred.item[k]])
                nearest = MAX(nearest, x->pred.item[k]);
        reach = MIN(reach, nearest);
    }
}

/* The item, among those up to a phase, before which most items follow one another; *first: the
 * first of these. from: they begin with it, -1: with any. */
static int deepest(const StepBound *x, int from, Phase most, int *first)
{
    int *depth = NEWN(x->tmp, int, x->n), *begin = NEWN(x->tmp, int, x->n), last = -1;
    for (int i = 0; i < x->n; i++) {
        begin[i] = i;
        depth[i] = from < 0 || i == from ? 1 : 0;
        EACH_ITEM(k, x->pred, i) {
            int j = x->pred.item[k];
            if (depth[j] && depth[j] >= depth[i]) {
                depth[i] = depth[j] + 1;
                begin[i] = begin[j];
            }
        }
        if (x->item[i].node->phase <= most && depth[i] && (last < 0 || depth[i] > depth[last]))
            last = i;
    }
    *first = last < 0 ? -1 : begin[last];
    return last;
}

/* Whether items run on one queue alone: then its work is the bound. */
static bool one_queue(const StepBound *x)
{
    bool one = true;
    for (int i = 0; i < x->n; i++)
        for (int q = 0; q < NBUSY; q++)
            one &= q == QUEUE_COMPUTE || x->item[i].busy[q] <= 0;
    return one;
}

/* Leaves no more narrow items than the effort allows, evenly along the stream. */
static void thin_out(const StepBound *x)
{
    int count = 0, most = MAX(1, EFFORT / MAX(x->n, 1));
    for (int i = 0; i < x->n; i++)
        count += x->narrow[i];
    int64_t kept = 0, seen = 0;
    for (int i = 0; i < x->n && count > most; i++) {
        if (!x->narrow[i])
            continue;
        x->narrow[i] = ++seen * most / count > kept;
        kept += x->narrow[i];
    }
}

void bound_narrow(StepBound *x)
{
    int first, begin, last;
    x->middle = -1;
    x->narrow = NEWN(x->tmp, bool, x->n);
    if (one_queue(x))
        return;
    x->middle = deepest(x, -1, LOSS, &first);
    last = deepest(x, x->middle, OPTIMIZER, &begin);
    if (x->middle >= 0)
        mark_narrow(x, first, x->middle);
    if (last >= 0)
        mark_narrow(x, begin, last);
    thin_out(x);
}

int *bound_longest_way(const StepBound *x, int *count)
{
    int *depth = NEWN(x->tmp, int, x->n), last = -1;
    for (int i = 0; i < x->n; i++) {
        depth[i] = 1;
        EACH_ITEM(k, x->pred, i)
            depth[i] = MAX(depth[i], depth[x->pred.item[k]] + 1);
        last = last < 0 || depth[i] > depth[last] ? i : last;
    }
    *count = last < 0 ? 0 : depth[last];
    int *way = NEWN(x->tmp, int, *count);
    for (int d = *count; d > 0; d--) {
        way[d - 1] = last;
        EACH_ITEM(k, x->pred, way[d - 1])
            if (depth[x->pred.item[k]] == d - 1)
                last = x->pred.item[k];
    }
    return way;
}
