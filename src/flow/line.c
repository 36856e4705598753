/* The time line of a flow: its items in order, with the sum and the largest prefix sum of their
 * spans, in each space.
 *
 * The order is kept twice: by labels that ascend along the line, so that two items compare in O(1),
 * and by a treap (Seidel and Aragon, 1996: a search tree by place, a heap by a hash of the item)
 * whose subtrees know their span. A new label is the mean of its neighbours' labels; where there is
 * none between them, the smallest range around them that is sparse enough is numbered anew (Bender
 * and others, "Two simplified algorithms for maintaining order in a list", 2002): O(log n)
 * amortized. The rest is O(log n) expected. The tree is built at the first edit or query of a
 * range; the peak of a flow that is not edited is added up along the list. */
#include "flow.h"

enum { LABEL_BITS = 62 };

/* ---- labels ---- */

void line_relabel(Flow *f)
{
    int count = 0;
    for (int i = f->first; i >= 0; i = f->item[i].next)
        count++;
    int64_t step = ((int64_t)1 << LABEL_BITS) / (count + 1), label = 0;
    for (int i = f->first; i >= 0; i = f->item[i].next)
        f->item[i].label = label += step;
}

/* Makes room around an item: numbers the smallest aligned range of labels that is sparse enough. */
static void spread(Flow *f, int item)
{
    double most = 1;
    for (int bits = 1; bits < LABEL_BITS; bits++) {
        int64_t size = (int64_t)1 << bits, low = f->item[item].label & ~(size - 1);
        int first = item, last = item;
        int64_t count = 1;
        most *= 1.5; /* of 2^bits labels 1.5^bits may be taken */
        for (int i = f->item[first].prev; i >= 0 && f->item[i].label >= low; count++)
            i = f->item[first = i].prev;
        for (int i = f->item[last].next; i >= 0 && f->item[i].label < low + size; count++)
            i = f->item[last = i].next;
        if ((double)count * 2 > most)
            continue;
        int64_t step = size / count, label = low + step / 2;
        for (int i = first;; i = f->item[i].next, label += step) {
            f->item[i].label = label;
            if (i == last)
                return;
        }
    }
    line_relabel(f);
}

static int64_t label_between(Flow *f, int prev, int next)
{
    if (f->item[next].label - f->item[prev].label < 2)
        spread(f, prev);
    int64_t low = f->item[prev].label;
    return low + (f->item[next].label - low) / 2;
}

/* ---- the tree ---- */

static uint32_t priority(int item)
{
    uint64_t z = ((uint64_t)item + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(z >> 32);
}

static Span join(Span x, Span y)
{
    return (Span){x.net + y.net, MAX(x.most, x.net + y.most)};
}

/* Adds up an item's subtree; returns whether it has another span than before. */
static bool refresh(Flow *f, int i)
{
    FlowItem *x = &f->item[i];
    bool changed = false;
    for (int s = 0; s < f->nspace; s++) {
        Span all = x->low < 0 ? x->own[s] : join(f->item[x->low].all[s], x->own[s]);
        if (x->high >= 0)
            all = join(all, f->item[x->high].all[s]);
        changed |= all.net != x->all[s].net || all.most != x->all[s].most;
        x->all[s] = all;
    }
    return changed;
}

/* Above an item whose subtree has the span that it had, nothing changes. */
void line_update(Flow *f, int item)
{
    int i = f->top < 0 ? -1 : item;
    while (i >= 0 && refresh(f, i))
        i = f->item[i].up;
}

/* Puts y, a child of x or -1, where x hangs. */
static void hang(Flow *f, int x, int y)
{
    int up = f->item[x].up;
    if (y >= 0)
        f->item[y].up = up;
    *(up < 0 ? &f->top : f->item[up].low == x ? &f->item[up].low : &f->item[up].high) = y;
}

/* Rotates y, a child, above its parent. */
static void rotate(Flow *f, int y)
{
    int x = f->item[y].up;
    bool low = f->item[x].low == y;
    int *from = low ? &f->item[y].high : &f->item[y].low, inner = *from;
    hang(f, x, y);
    *from = x;
    f->item[x].up = y;
    *(low ? &f->item[x].low : &f->item[x].high) = inner;
    if (inner >= 0)
        f->item[inner].up = x;
    refresh(f, x);
    refresh(f, y);
}

static void tree_insert(Flow *f, int item)
{
    FlowItem *x = &f->item[item];
    x->low = x->high = -1;
    if (f->item[x->next].low < 0) {
        x->up = x->next;
        f->item[x->next].low = item;
    } else {
        x->up = x->prev;
        f->item[x->prev].high = item;
    }
    refresh(f, item);
    while (f->item[item].up >= 0 && priority(f->item[item].up) < priority(item))
        rotate(f, item);
    if (f->item[item].up >= 0) /* its own subtree is counted, what is above it not yet */
        line_update(f, f->item[item].up);
}

static void tree_remove(Flow *f, int item)
{
    for (;;) {
        int low = f->item[item].low, high = f->item[item].high;
        if (low < 0 || high < 0) {
            int up = f->item[item].up;
            hang(f, item, low < 0 ? high : low);
            if (up >= 0)
                line_update(f, up);
            return;
        }
        rotate(f, priority(low) > priority(high) ? low : high);
    }
}

void line_build(Flow *f)
{
    int last = -1;
    f->top = -1;
    for (int i = f->first; i >= 0; i = f->item[i].next) {
        FlowItem *x = &f->item[i];
        int below = -1, up = last;
        for (; up >= 0 && priority(up) < priority(i); up = f->item[below = up].up)
            refresh(f, up);
        x->low = below;
        x->high = -1;
        x->up = up;
        if (below >= 0)
            f->item[below].up = i;
        *(up < 0 ? &f->top : &f->item[up].high) = i;
        last = i;
    }
    for (; last >= 0; last = f->item[last].up)
        refresh(f, last);
}

/* The span in SPACE_MAIN of the items of a subtree whose labels are in [low, high]. */
static Span range(const Flow *f, int i, int64_t low, int64_t high)
{
    if (i < 0)
        return (Span){0, INT64_MIN / 4};
    const FlowItem *x = &f->item[i];
    if (low == INT64_MIN && high == INT64_MAX)
        return x->all[SPACE_MAIN];
    if (x->label < low || x->label > high)
        return range(f, x->label < low ? x->high : x->low, low, high);
    Span upto = join(range(f, x->low, low, INT64_MAX), x->own[SPACE_MAIN]);
    return join(upto, range(f, x->high, INT64_MIN, high));
}

int64_t flow_most(Flow *f, int from, int to)
{
    flow_settle(f);
    if (f->top < 0)
        line_build(f);
    int64_t low = f->item[from].label;
    return range(f, f->top, INT64_MIN, low - 1).net + range(f, f->top, low, f->item[to].label).most;
}

int line_peak(const Flow *f)
{
    int i = f->top;
    for (int64_t most = f->item[i].all[SPACE_MAIN].most;;) {
        const FlowItem *x = &f->item[i];
        const Span *own = &x->own[SPACE_MAIN];
        Span low = x->low < 0 ? (Span){0, INT64_MIN} : f->item[x->low].all[SPACE_MAIN];
        if (low.most == most) {
            i = x->low;
        } else if (low.net + own->most == most) {
            return i;
        } else {
            most -= low.net + own->net;
            i = x->high;
        }
    }
}

/* ---- the list ---- */

void line_insert(Flow *f, int item, int before)
{
    FlowItem *x = &f->item[item];
    x->prev = f->item[before].prev;
    x->next = before;
    x->label = label_between(f, x->prev, before);
    f->item[x->prev].next = f->item[before].prev = item;
    if (f->top >= 0)
        tree_insert(f, item);
}

void line_remove(Flow *f, int item)
{
    if (f->top >= 0)
        tree_remove(f, item);
    f->item[f->item[item].prev].next = f->item[item].next;
    f->item[f->item[item].next].prev = f->item[item].prev;
}
