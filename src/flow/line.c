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
#include "inside.h"

enum { LABEL_BITS = 62 };

/* ---- labels ---- */

void line_relabel(FlowLine *l)
{
    int count = 0;
    for (int i = l->first; i >= 0; i = l->at[i].next)
        count++;
    int64_t step = ((int64_t)1 << LABEL_BITS) / (count + 1), label = 0;
    for (int i = l->first; i >= 0; i = l->at[i].next)
        l->at[i].label = label += step;
}

/* Makes room around an item: numbers the smallest aligned range of labels that is sparse enough. */
static void spread(FlowLine *l, int item)
{
    double most = 1;
    for (int bits = 1; bits < LABEL_BITS; bits++) {
        int64_t size = (int64_t)1 << bits, low = l->at[item].label & ~(size - 1);
        int first = item, last = item;
        int64_t count = 1;
        most *= 1.5; /* of 2^bits labels 1.5^bits may be taken */
        for (int i = l->at[first].prev; i >= 0 && l->at[i].label >= low; count++)
            i = l->at[first = i].prev;
        for (int i = l->at[last].next; i >= 0 && l->at[i].label < low + size; count++)
            i = l->at[last = i].next;
        if ((double)count * 2 > most)
            continue;
        int64_t step = size / count, label = low + step / 2;
        for (int i = first;; i = l->at[i].next, label += step) {
            l->at[i].label = label;
            if (i == last)
                return;
        }
    }
    line_relabel(l);
}

static int64_t label_between(FlowLine *l, int prev, int next)
{
    if (l->at[next].label - l->at[prev].label < 2)
        spread(l, prev);
    int64_t low = l->at[prev].label;
    return low + (l->at[next].label - low) / 2;
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
static bool refresh(FlowLine *l, int i)
{
    LineItem *x = &l->at[i];
    bool changed = false;
    for (int s = 0; s < l->nspace; s++) {
        Span all = x->low < 0 ? x->own[s] : join(l->at[x->low].all[s], x->own[s]);
        if (x->high >= 0)
            all = join(all, l->at[x->high].all[s]);
        changed |= all.net != x->all[s].net || all.most != x->all[s].most;
        x->all[s] = all;
    }
    return changed;
}

/* Above an item whose subtree has the span that it had, nothing changes. */
void line_update(FlowLine *l, int item)
{
    int i = l->top < 0 ? -1 : item;
    while (i >= 0 && refresh(l, i))
        i = l->at[i].up;
}

/* Puts y, a child of x or -1, where x hangs. */
static void hang(FlowLine *l, int x, int y)
{
    int up = l->at[x].up;
    if (y >= 0)
        l->at[y].up = up;
    *(up < 0 ? &l->top : l->at[up].low == x ? &l->at[up].low : &l->at[up].high) = y;
}

/* Rotates y, a child, above its parent. */
static void rotate(FlowLine *l, int y)
{
    int x = l->at[y].up;
    bool low = l->at[x].low == y;
    int *from = low ? &l->at[y].high : &l->at[y].low, inner = *from;
    hang(l, x, y);
    *from = x;
    l->at[x].up = y;
    *(low ? &l->at[x].low : &l->at[x].high) = inner;
    if (inner >= 0)
        l->at[inner].up = x;
    refresh(l, x);
    refresh(l, y);
}

static void tree_insert(FlowLine *l, int item)
{
    LineItem *x = &l->at[item];
    x->low = x->high = -1;
    if (l->at[x->next].low < 0) {
        x->up = x->next;
        l->at[x->next].low = item;
    } else {
        x->up = x->prev;
        l->at[x->prev].high = item;
    }
    refresh(l, item);
    while (l->at[item].up >= 0 && priority(l->at[item].up) < priority(item))
        rotate(l, item);
    if (l->at[item].up >= 0) /* its own subtree is counted, what is above it not yet */
        line_update(l, l->at[item].up);
}

static void tree_remove(FlowLine *l, int item)
{
    for (;;) {
        int low = l->at[item].low, high = l->at[item].high;
        if (low < 0 || high < 0) {
            int up = l->at[item].up;
            hang(l, item, low < 0 ? high : low);
            if (up >= 0)
                line_update(l, up);
            return;
        }
        rotate(l, priority(low) > priority(high) ? low : high);
    }
}

void line_build(FlowLine *l)
{
    int last = -1;
    l->top = -1;
    for (int i = l->first; i >= 0; i = l->at[i].next) {
        LineItem *x = &l->at[i];
        int below = -1, up = last;
        for (; up >= 0 && priority(up) < priority(i); up = l->at[below = up].up)
            refresh(l, up);
        x->low = below;
        x->high = -1;
        x->up = up;
        if (below >= 0)
            l->at[below].up = i;
        *(up < 0 ? &l->top : &l->at[up].high) = i;
        last = i;
    }
    for (; last >= 0; last = l->at[last].up)
        refresh(l, last);
}

/* The span in SPACE_MAIN of the items of a subtree whose labels are in [low, high]. */
static Span range(const FlowLine *l, int i, int64_t low, int64_t high)
{
    if (i < 0)
        return (Span){0, INT64_MIN / 4};
    const LineItem *x = &l->at[i];
    if (low == INT64_MIN && high == INT64_MAX)
        return x->all[SPACE_MAIN];
    if (x->label < low || x->label > high)
        return range(l, x->label < low ? x->high : x->low, low, high);
    Span upto = join(range(l, x->low, low, INT64_MAX), x->own[SPACE_MAIN]);
    return join(upto, range(l, x->high, INT64_MIN, high));
}

int64_t line_most(const FlowLine *l, int from, int to)
{
    int64_t low = l->at[from].label;
    return range(l, l->top, INT64_MIN, low - 1).net + range(l, l->top, low, l->at[to].label).most;
}

int line_peak(const FlowLine *l)
{
    int i = l->top;
    for (int64_t most = l->at[i].all[SPACE_MAIN].most;;) {
        const LineItem *x = &l->at[i];
        const Span *own = &x->own[SPACE_MAIN];
        Span low = x->low < 0 ? (Span){0, INT64_MIN} : l->at[x->low].all[SPACE_MAIN];
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

void line_add(FlowLine *l, Arena *a, int item)
{
    if (item == l->cap)
        l->at = arena_grow(a, l->at, l->cap, &l->cap, sizeof *l->at);
    l->at[item] = (LineItem){.prev = -1, .next = -1, .up = -1, .low = -1, .high = -1};
}

void line_insert(FlowLine *l, int item, int before)
{
    LineItem *x = &l->at[item];
    x->prev = l->at[before].prev;
    x->next = before;
    x->label = label_between(l, x->prev, before);
    l->at[x->prev].next = l->at[before].prev = item;
    if (l->top >= 0)
        tree_insert(l, item);
}

void line_remove(FlowLine *l, int item)
{
    if (l->top >= 0)
        tree_remove(l, item);
    l->at[l->at[item].prev].next = l->at[item].next;
    l->at[l->at[item].next].prev = l->at[item].prev;
}
