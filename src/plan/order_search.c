/* Searches an order whose live sum stays within a limit: a node that does not fit waits.
 *
 * Nodes run in the order of base, from the start or (backward) from the end, but a node that would
 * raise the live sum above the limit waits until others have freed enough. A node that fits and
 * leaves no more alive than before runs at once; that loses nothing, as in any order within the
 * limit it can be moved forward. But one that changes nothing and touches another space waits for
 * its turn, so as not to fill that space: copies there may be free of charge from the start. From
 * the start, a reduction over ranks and the node that waits for it count as one. Which of the other
 * ready nodes runs is a choice. If no node fits, or the same set of nodes has run before, the last
 * choice is undone and its next node tried; so the search is exact until its steps are used up.
 *
 * Ready nodes are kept by rank in two trees of least need, one of nodes that leave nothing more
 * alive and one of the others: finding the first that fits takes O(log n), running or undoing a
 * node O(operands log n). A set of nodes is identified by a 64-bit sum of random numbers.
 *
 * The method is that of list scheduling under a resource limit, with the dominance rule of searches
 * over lower sets (Ahn et al., Serenity, 2020). */
#include "order.h"

#include <string.h>

enum { SHRINKS, GROWS };

typedef struct Ran {
    int node;
    bool choice;
} Ran;

typedef struct OrderSearch {
    const Problem *q;
    bool backward, quick;
    int64_t limit, live;
    int *left; /* of a storage: readers that have not run, backward: that have */
    int *wait; /* of a node: how many must run first */
    bool *done;
    int *rank, *at;   /* of a node; the node of a rank */
    int64_t *tree[2]; /* tree[1] is the root */
    int size;         /* leaves of each, a power of two */
    Ran *ran;
    int nran;
    uint64_t set, *seen; /* the nodes that have run; sets where a choice was made */
    int64_t work;        /* left: operands passed */
} OrderSearch;

enum {
    STATES = 3000,     /* choices taken back in one search, at most */
    SEEN = 1 << 13,    /* places for sets; half of them are filled */
    SEARCH_WORK = 100, /* needs of nodes computed in one search, at most: this for each node, and */
    MORE_WORK = 1 << 17,
    QUICK_WORK = 10,  /* in place of both, for each node, but */
    QUICK_LEAST = 40, /* of few nodes so many, up to */
    QUICK_FEW = 4000, /* all together */
    SMALL = 64,       /* nodes up to which the limit is found to the byte, */
    GRAINS = 4096,    /* and else to this part */
};

static const int64_t ANY = INT64_MAX / 2; /* a limit that all keep */

/* ---- trees ---- */

static void put(OrderSearch *x, int which, int rank, int64_t need)
{
    int64_t *t = x->tree[which];
    int i = x->size + rank;
    if (t[i] == need)
        return;
    t[i] = need;
    for (i /= 2; i; i /= 2)
        t[i] = MIN(t[2 * i], t[2 * i + 1]);
}

/* The least rank from `from` on that needs at most room, or -1. */
static int find_fit(const OrderSearch *x, int which, int from, int64_t room)
{
    const int64_t *t = x->tree[which];
    int i = x->size + from;
    if (from >= x->size)
        return -1;
    while (t[i] > room) {
        while (i & 1) /* a right child, or the root */
            if ((i /= 2) <= 1)
                return -1;
        i++;
    }
    while (i < x->size)
        i = 2 * i + (t[2 * i] > room);
    return i - x->size;
}

/* ---- running and taking back ---- */

static void refresh(OrderSearch *x, int i)
{
    int64_t need[2] = {INT64_MAX, INT64_MAX};
    if (!x->done[i] && !x->wait[i]) {
        Effect e = problem_effect(x->q, x->left, !x->backward, i);
        Effect both = {0, 1};
        if (x->backward)
            e = (Effect){e.need - e.net, -e.net};
        else if (x->q->finish[i] >= 0 && x->wait[x->q->finish[i]] == 1)
            both = problem_pair_effect(x->q, x->left, i);
        e = both.net <= 0 ? both : e;
        need[e.net > 0 || (!e.net && x->q->aside[i])] = e.need;
    }
    x->work--;
    put(x, SHRINKS, x->rank[i], need[SHRINKS]);
    put(x, GROWS, x->rank[i], need[GROWS]);
}

/* Those of a storage that nothing else is to read. */
static void refresh_reductions(OrderSearch *x, int s)
{
    const Problem *q = x->q;
    EACH_ITEM(j, q->user, s)
        if (q->finish[q->user.item[j]] >= 0)
            refresh(x, q->user.item[j]);
}

/* After one node more or less must run before i, where at the least `wait` of them must. */
static void refresh_waiting(OrderSearch *x, int i, int wait)
{
    if (!wait)
        refresh(x, i);
    else if (wait == 1 && !x->backward && x->q->begin[i] >= 0)
        refresh(x, x->q->begin[i]);
}

/* Counts node i among the readers of what it reads; by is 1 or -1. */
static void count_reader(OrderSearch *x, int i, int by)
{
    const Problem *q = x->q;
    EACH_ITEM(k, q->use, i) {
        int s = q->use.item[k], *left = &x->left[s], now = *left;
        *left += by;
        if (!x->backward && !q->storage.kept[s] && (by < 0 ? *left : now) == 2)
            refresh_reductions(x, s);
        if ((by < 0) == x->backward ? now != 1 : *left != 1)
            continue;
        for (int j = q->user.at[s]; j < q->user.at[s + 1] && !q->storage.kept[s]; j++)
            refresh(x, q->user.item[j]);
    }
}

static uint64_t mix(uint64_t i)
{
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    i = (i ^ i >> 27) * 0x94d049bb133111ebu;
    return i ^ i >> 31;
}

static void run(OrderSearch *x, int i, bool choice)
{
    const Lists *next = x->backward ? &x->q->pred : &x->q->succ;
    Effect e = problem_effect(x->q, x->left, !x->backward, i);
    x->live += x->backward ? -e.net : e.net;
    x->set += mix((uint64_t)i);
    x->done[i] = true;
    x->ran[x->nran++] = (Ran){i, choice};
    refresh(x, i);
    count_reader(x, i, x->backward ? 1 : -1);
    EACH_ITEM(k, *next, i) {
        int now = --x->wait[next->item[k]];
        refresh_waiting(x, next->item[k], now);
    }
}

static Ran take_back(OrderSearch *x)
{
    Ran r = x->ran[--x->nran];
    const Lists *next = x->backward ? &x->q->pred : &x->q->succ;
    EACH_ITEM(k, *next, r.node) {
        int was = x->wait[next->item[k]]++;
        refresh_waiting(x, next->item[k], was);
    }
    count_reader(x, r.node, x->backward ? -1 : 1);
    x->done[r.node] = false;
    Effect e = problem_effect(x->q, x->left, !x->backward, r.node);
    x->live -= x->backward ? -e.net : e.net;
    x->set -= mix((uint64_t)r.node);
    refresh(x, r.node);
    return r;
}

/* ---- the search ---- */

/* Whether the set was seen before; else it is stored, if there is room. */
static bool seen_before(OrderSearch *x, int *room)
{
    for (uint64_t h = x->set % SEEN;; h = (h + 1) % SEEN) {
        if (x->seen[h] == x->set)
            return true;
        if (!x->seen[h]) {
            if (*room > 0)
                x->seen[h] = x->set;
            (*room)--;
            return false;
        }
    }
}

static bool search(OrderSearch *x)
{
    int room = SEEN / 2, states = STATES;
    while (x->nran < x->q->n) {
        int r = find_fit(x, SHRINKS, 0, x->limit - x->live);
        bool choice = r < 0;
        if (choice && !seen_before(x, &room))
            r = find_fit(x, GROWS, 0, x->limit - x->live);
        while (r < 0) {
            Ran last = {-1, false};
            while (x->nran && !last.choice)
                last = take_back(x);
            if (!last.choice || !states-- || x->work < 0)
                return false;
            r = find_fit(x, GROWS, x->rank[last.node] + 1, x->limit - x->live);
        }
        run(x, x->at[r], choice);
    }
    return true;
}

static void start(OrderSearch *x, const int *base)
{
    const Problem *q = x->q;
    const Lists *first = x->backward ? &q->succ : &q->pred;
    memset(x->seen, 0, sizeof *x->seen * SEEN);
    memset(x->done, 0, sizeof *x->done * (size_t)q->n);
    x->nran = 0;
    x->set = 1; /* 0 says that a place is empty */
    x->live = q->base + (x->backward ? 0 : q->inputs);
    for (int s = 0; s < q->storage.count; s++)
        x->left[s] = x->backward ? 0 : q->user.at[s + 1] - q->user.at[s];
    for (int s = 0; s < q->storage.count && x->backward; s++)
        x->live += q->storage.kept[s] && q->storage.over[s] < 0 ? q->storage.nbytes[s] : 0;
    for (int k = 0; k < q->n; k++) {
        int i = x->at[k] = base[x->backward ? q->n - 1 - k : k];
        x->rank[i] = k;
        x->wait[i] = first->at[i + 1] - first->at[i];
    }
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 2 * x->size; k++)
            x->tree[t][k] = INT64_MAX;
    for (int i = 0; i < q->n; i++)
        refresh(x, i);
}

static OrderSearch *search_new(const Problem *q, Arena *tmp, bool backward, bool quick)
{
    OrderSearch *x = NEW(tmp, OrderSearch);
    *x = (OrderSearch){.q = q, .backward = backward, .quick = quick, .size = 1};
    while (x->size < q->n)
        x->size *= 2;
    x->left = NEWN(tmp, int, q->storage.count);
    x->wait = NEWN(tmp, int, q->n);
    x->done = NEWN(tmp, bool, q->n);
    x->rank = NEWN(tmp, int, q->n);
    x->at = NEWN(tmp, int, q->n);
    for (int t = 0; t < 2; t++)
        x->tree[t] = NEWN(tmp, int64_t, 2 * x->size);
    x->ran = NEWN(tmp, Ran, q->n);
    x->seen = NEWN(tmp, uint64_t, SEEN);
    return x;
}

static bool search_within(OrderSearch *x, const int *base, int64_t limit, int *out)
{
    int n = x->q->n;
    x->limit = limit;
    x->work = x->quick ? MAX(QUICK_WORK * (int64_t)n, MIN(QUICK_LEAST * n, QUICK_FEW))
                       : MORE_WORK + SEARCH_WORK * (int64_t)n;
    start(x, base);
    if (!search(x))
        return false;
    for (int k = 0; k < n; k++)
        out[x->backward ? n - 1 - k : k] = x->ran[k].node;
    return true;
}

bool order_search_within(const Problem *q, Arena *tmp, const int *base, bool backward, int64_t most,
                         int *out)
{
    return search_within(search_new(q, tmp, backward, false), base, most, out);
}

bool order_search(const Problem *q, Arena *tmp, const int *base, bool backward, bool quick,
                  int64_t least, int64_t most, int *out)
{
    OrderSearch *x = search_new(q, tmp, backward, quick);
    int *order = NEWN(tmp, int, q->n);
    if (!search_within(x, base, MIN(most, ANY), out))
        return false;
    most = problem_peak(q, tmp, out);
    int64_t grain = FLOW_ALIGN + (q->n > SMALL ? (most - q->base) / GRAINS : 0), low = least - 1;
    int64_t limit = most - grain; /* if there is none, then not with less */
    for (int k = 0; most - low > grain; k++) {
        if (search_within(x, base, limit, order)) {
            memcpy(out, order, sizeof *out * (size_t)q->n);
            most = problem_peak(q, tmp, out);
        } else if (k) {
            low = limit;
        } else {
            break;
        }
        limit = low < least ? least : low + (most - low) / 2;
    }
    return true;
}

void order_alap(const Problem *q, Arena *tmp, const int *base, int *out)
{
    search_within(search_new(q, tmp, true, true), base, ANY, out);
}

void order_depth_first(const Problem *q, Arena *tmp, const int *base, int *out)
{
    int *stack = NEWN(tmp, int, q->n), *next = NEWN(tmp, int, q->n), count = 0;
    bool *seen = NEWN(tmp, bool, q->n);
    for (int k = 0; k < q->n; k++) {
        int depth = 0;
        if (q->succ.at[base[k]] == q->succ.at[base[k] + 1])
            seen[stack[depth++] = base[k]] = true;
        while (depth) {
            int i = stack[depth - 1], at = q->pred.at[i] + next[i]++;
            if (at == q->pred.at[i + 1])
                out[count++] = stack[--depth];
            else if (!seen[q->pred.item[at]])
                seen[stack[depth++] = q->pred.item[at]] = true;
        }
    }
}
