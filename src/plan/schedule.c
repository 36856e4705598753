/* Orders of a flow: list scheduling by memory effect, depth first, and repair around the peak.
 *
 * List scheduling keeps the ready nodes in a heap, keyed by what running one adds to the live sum
 * (what it makes less what it is the last to read). From the end it is the mirror image: a node
 * then adds the operands that nothing later reads and takes away what it makes; so what is made
 * late and cheaply (constants, casts, recomputed values) goes right before its first reader. A key
 * changes when a storage comes to its last reader (from the end: when it comes alive), at most once
 * for each pair of storage and reader; the old entry stays in the heap and is passed over. O((nodes
 * + operands) log).
 *
 * "Least memory first" and the stable eager variant are PyTorch Inductor's reorder_for_peak_memory;
 * the eager rule is what runs a weight's update as soon as its gradient is there. */
#include "order.h"

#include <string.h>

/* ---- a heap of ready nodes ---- */

typedef struct Entry {
    int64_t key;
    int rank, node;
} Entry;

typedef struct Heap {
    Entry *entry; /* entry[1] is the least */
    int count, cap;
} Heap;

static bool before(const Entry *x, const Entry *y)
{
    return x->key != y->key ? x->key < y->key : x->rank < y->rank;
}

static void heap_put(Arena *tmp, Heap *h, Entry x)
{
    if (!h->count)
        PUSH(tmp, h->entry, h->count, h->cap, x); /* entry[0] is not used */
    PUSH(tmp, h->entry, h->count, h->cap, x);
    int i = h->count - 1;
    for (; i > 1 && before(&x, &h->entry[i / 2]); i /= 2)
        h->entry[i] = h->entry[i / 2];
    h->entry[i] = x;
}

static Entry heap_take(Heap *h)
{
    Entry least = h->entry[1], x = h->entry[--h->count];
    int i = 1;
    for (int j; (j = 2 * i) < h->count; i = j) {
        j += j + 1 < h->count && before(&h->entry[j + 1], &h->entry[j]);
        if (!before(&h->entry[j], &x))
            break;
        h->entry[i] = h->entry[j];
    }
    h->entry[i] = x;
    return least;
}

/* ---- list scheduling ---- */

typedef struct List {
    const Flow *f;
    Arena *tmp;
    Rule rule;
    bool late;
    Heap heap;
    int *rank;    /* of a node */
    int *wait;    /* of a node: how many must run first */
    int64_t *key; /* of a ready node */
    bool *done;
    int *left;  /* of a storage: readers to come */
    bool *live; /* late: some reader has run */
} List;

/* What running node i adds to the live sum. */
static int64_t added(const List *l, int i)
{
    const Flow *f = l->f;
    int64_t sum = 0;
    EACH_ITEM(k, f->use, i)
    {
        int s = f->use.item[k];
        if (!f->kept[s] && (l->late ? !l->live[s] : l->left[s] == 1))
            sum += l->late ? f->nbytes[s] : -f->nbytes[s];
    }
    EACH_ITEM(k, f->make, i)
    {
        int s = f->make.item[k];
        if (f->kept[s] || f->user.at[s] < f->user.at[s + 1])
            sum += l->late ? -f->nbytes[s] : f->nbytes[s];
    }
    return sum;
}

static void offer(List *l, int i)
{
    if (l->done[i] || l->wait[i])
        return;
    int64_t sum = l->rule == RUN_STABLE ? 0 : added(l, i),
            key = l->rule == RUN_EAGER ? sum > 0 : sum;
    l->key[i] = key;
    heap_put(l->tmp, &l->heap, (Entry){key, l->rank[i], i});
}

/* Marks what node i reads; nodes whose key that lowers are offered again. */
static void pass_storages(List *l, int i)
{
    const Flow *f = l->f;
    EACH_ITEM(k, f->use, i)
    {
        int s = f->use.item[k];
        bool changed = l->late ? !l->live[s] : --l->left[s] == 1;
        l->live[s] = true;
        if (changed && !f->kept[s])
            EACH_ITEM(j, f->user, s)
        offer(l, f->user.item[j]);
    }
}

static void run_node(List *l, int i)
{
    const Rows *next = l->late ? &l->f->pred : &l->f->succ;
    l->done[i] = true;
    pass_storages(l, i);
    EACH_ITEM(k, *next, i)
    if (!--l->wait[next->item[k]])
        offer(l, next->item[k]);
}

void flow_schedule(const Flow *f, Arena *tmp, const int *base, Rule rule, bool late, int *out)
{
    List l = {.f = f, .tmp = tmp, .rule = rule, .late = late};
    const Rows *first = late ? &f->succ : &f->pred;
    l.rank = NEWN(tmp, int, f->n);
    l.wait = NEWN(tmp, int, f->n);
    l.key = NEWN(tmp, int64_t, f->n);
    l.done = NEWN(tmp, bool, f->n);
    l.left = NEWN(tmp, int, f->nstorage);
    l.live = NEWN(tmp, bool, f->nstorage);
    for (int s = 0; s < f->nstorage; s++)
        l.left[s] = f->user.at[s + 1] - f->user.at[s];
    for (int k = 0; k < f->n; k++)
        l.rank[base[k]] = late ? f->n - 1 - k : k;
    for (int i = 0; i < f->n; i++)
        l.wait[i] = first->at[i + 1] - first->at[i];
    for (int i = 0; i < f->n; i++)
        offer(&l, i);
    for (int k = 0; k < f->n;) {
        Entry x = heap_take(&l.heap);
        if (l.done[x.node] || l.key[x.node] != x.key)
            continue;
        out[late ? f->n - 1 - k : k] = x.node;
        run_node(&l, x.node);
        k++;
    }
}

/* ---- depth first ---- */

void flow_depth_first(const Flow *f, Arena *tmp, const int *base, int *out)
{
    int *stack = NEWN(tmp, int, f->n + 1), *next = NEWN(tmp, int, f->n), count = 0;
    bool *seen = NEWN(tmp, bool, f->n);
    for (int k = 0; k < f->n; k++) {
        int sink = base[k], depth = 0;
        if (f->succ.at[sink] < f->succ.at[sink + 1])
            continue;
        seen[stack[depth++] = sink] = true;
        while (depth) {
            int i = stack[depth - 1], at = f->pred.at[i] + next[i]++;
            if (at == f->pred.at[i + 1])
                out[count++] = stack[--depth];
            else if (!seen[f->pred.item[at]])
                seen[stack[depth++] = f->pred.item[at]] = true;
        }
    }
}

/* ---- repair ---- */

enum {
    GROUP = 16,           /* nodes moved at once, at most */
    LARGEST = 6,          /* storages at the peak that are tried */
    REPAIR_WORK = 400000, /* nodes passed in all tries together */
};

typedef struct Repair {
    const Flow *f;
    int *order, *place, *trial;
    bool *moves; /* nodes of the group */
    int group[GROUP], ngroup;
    Peak peak;
    int64_t work; /* left */
} Repair;

static void fill_places(Repair *r)
{
    for (int k = 0; k < r->f->n; k++)
        r->place[r->order[k]] = k;
}

/* Gathers node i and all that must move with it from its side of the peak to the other. False where
 * that is too many or the node at the peak is one. */
static bool gather(Repair *r, int i, bool later)
{
    const Rows *with = later ? &r->f->succ : &r->f->pred;
    r->group[0] = i;
    r->ngroup = 1;
    for (int g = 0; g < r->ngroup; g++) {
        EACH_ITEM(k, *with, r->group[g])
        {
            int j = with->item[k], d = later ? r->peak.at - r->place[j] : r->place[j] - r->peak.at;
            bool known = false;
            for (int q = 0; q < r->ngroup; q++)
                known |= r->group[q] == j;
            if (known || d < 0)
                continue;
            if (d == 0 || r->ngroup == GROUP)
                return false;
            r->group[r->ngroup++] = j;
        }
    }
    return true;
}

/* Where the group can go: the place of its first reader, or after the last node it waits for. */
static int find_target(const Repair *r, bool later)
{
    const Rows *with = later ? &r->f->succ : &r->f->pred;
    int to = later ? r->f->n : 0;
    for (int g = 0; g < r->ngroup; g++) {
        EACH_ITEM(k, *with, r->group[g])
        {
            int j = with->item[k];
            if (r->moves[j])
                continue;
            to = later ? MIN(to, r->place[j]) : MAX(to, r->place[j] + 1);
        }
    }
    return to;
}

/* Moves the group in front of place `to`, keeping its order. */
static void fill_trial(Repair *r, int to)
{
    int count = 0;
    for (int k = 0; k < to; k++)
        if (!r->moves[r->order[k]])
            r->trial[count++] = r->order[k];
    for (int k = 0; k < r->f->n; k++)
        if (r->moves[r->order[k]])
            r->trial[count++] = r->order[k];
    for (int k = to; k < r->f->n; k++)
        if (!r->moves[r->order[k]])
            r->trial[count++] = r->order[k];
}

static bool try_move(Repair *r, int i, bool later)
{
    if (r->work < 0 || !gather(r, i, later))
        return false;
    for (int g = 0; g < r->ngroup; g++)
        r->moves[r->group[g]] = true;
    fill_trial(r, find_target(r, later));
    for (int g = 0; g < r->ngroup; g++)
        r->moves[r->group[g]] = false;
    Peak p = flow_peak(r->f, r->trial);
    r->work -= r->f->n;
    if (p.nbytes > r->peak.nbytes || (p.nbytes == r->peak.nbytes && p.count >= r->peak.count))
        return false;
    memcpy(r->order, r->trial, sizeof(int) * (size_t)r->f->n);
    r->peak = p;
    fill_places(r);
    return true;
}

/* A storage that is alive at the peak but not used there. */
typedef struct Held {
    int64_t nbytes;
    int maker, reader; /* nodes; reader: the last, -1 where the storage is kept */
} Held;

static bool find_held(const Repair *r, int s, int maker, Held *h)
{
    const Flow *f = r->f;
    int last = -1;
    EACH_ITEM(k, f->user, s)
    last = MAX(last, r->place[f->user.item[k]]);
    *h = (Held){f->nbytes[s], maker, f->kept[s] ? -1 : r->order[MAX(last, 0)]};
    return f->kept[s] || last > r->peak.at;
}

/* Fills the largest of them, largest first; returns how many. */
static int fill_largest(const Repair *r, Held *list)
{
    int n = 0;
    for (int k = 0; k < r->peak.at; k++) {
        EACH_ITEM(j, r->f->make, r->order[k])
        {
            Held h;
            if (!find_held(r, r->f->make.item[j], r->order[k], &h))
                continue;
            int at = n < LARGEST ? n++ : LARGEST;
            for (; at > 0 && list[at - 1].nbytes < h.nbytes; at--)
                if (at < LARGEST)
                    list[at] = list[at - 1];
            if (at < LARGEST)
                list[at] = h;
        }
    }
    return n;
}

void flow_repair(const Flow *f, Arena *tmp, int *order)
{
    Repair r = {.f = f, .order = order, .work = REPAIR_WORK};
    r.place = NEWN(tmp, int, f->n);
    r.trial = NEWN(tmp, int, f->n);
    r.moves = NEWN(tmp, bool, f->n);
    r.peak = flow_peak(f, order);
    fill_places(&r);
    for (bool moved = f->n > 1; moved && r.work > 0;) {
        Held list[LARGEST];
        int n = fill_largest(&r, list);
        moved = false;
        for (int k = 0; k < n && !moved; k++)
            moved = try_move(&r, list[k].maker, true) ||
                    (list[k].reader >= 0 && try_move(&r, list[k].reader, false));
    }
}
