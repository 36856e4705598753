/* Takes fused nodes apart that cost memory. `fuse` keeps the peak of the order in which the nodes
 * stand; the search for an order may then find a lower one for the nodes apart, which the fused
 * ones exclude, as one that makes a result long before it is read.
 *
 * So the nodes apart are planned too. If that peak is lower by more than LEAST_GAIN, below which it
 * is not worth a kernel's time, one kind of fused nodes after the other is taken apart: of those
 * that make or read what is alive at the peak, the kind without which the plan is lowest; where no
 * kind alone lowers it, all of them. A kind are nodes of equal bodies and types, as layers have
 * them. It ends when that peak is reached, or when the plan's is lowered no more.
 *
 * Tries are ordered for the live sum, and nothing is placed. The one that is found is ordered and
 * placed as a plan is, and dropped if that is not lower by as much: GPT-2 in bf16 would lose 24
 * bodies to an order that placement makes no use of.
 *
 * Cost: an order for the nodes apart, one for each kind that is tried, and for what is found one
 * with its placements. */
#include "order.h"
#include "plan.h"

#include <string.h>

enum { MOST_KINDS = 16 }; /* tried for one peak */
#define LEAST_GAIN 0x1p-10

typedef struct Kinds {
    const char *key[MOST_KINDS];
    int count;
} Kinds;

/* All that were found. */
typedef struct Found {
    const char **key;
    int count, cap;
} Found;

/* The peak above which `peak` is worth the kernels' time. */
static double with_gain(int64_t peak)
{
    return (1 + LEAST_GAIN) * (double)peak;
}

static bool is_fused(const Node *n)
{
    return n && n->op->region == FUSED;
}

static bool has_fused(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (is_fused(n))
            return true;
        EACH_LOOP_BODY(b, n)
            if (has_fused(n->region->body[b]))
                return true;
    }
    return false;
}

static void add_kind(Kinds *k, const char *key)
{
    for (int i = 0; i < k->count; i++)
        if (!strcmp(k->key[i], key))
            return;
    if (k->count < MOST_KINDS)
        k->key[k->count++] = key;
}

/* Whether step i runs at the peak, has made what is alive there, or reads it later. */
static bool holds_peak(const Plan *p, int i)
{
    const Step *s = &p->step[i];
    int peak = p->space[SPACE_MAIN].peak_step;
    bool holds = i == peak;
    for (int j = i < peak ? s->call.nin : 0; j < (i < peak ? s->narg : s->call.nin); j++)
        holds |= storage_alive(&p->storage[s->arg[j].storage], peak);
    return holds;
}

/* The kinds of the fused nodes that hold the peak, the nearest first. */
static Kinds kinds_at_peak(Arena *a, const Plan *p)
{
    Kinds k = {.count = 0};
    int peak = p->space[SPACE_MAIN].peak_step;
    for (int far = 0; far < p->nstep; far++)
        for (int side = 0; side < 2; side++) {
            int i = side ? peak + far : peak - far;
            if (i >= 0 && i < p->nstep && is_fused(p->step[i].node) && holds_peak(p, i))
                add_kind(&k, node_key(a, p->step[i].node));
        }
    return k;
}

/* The peak of h in the order of the lowest live sum, but for what placement would waste. */
static int64_t peak_ordered(Arena *tmp, Graph *h, const PlanFor *to)
{
    order_graph(h, to->device, to->machine, tmp, false, NULL, NULL);
    int64_t peak = plan_measured(tmp, h, to)->space[SPACE_MAIN].bound;
    arena_reset(tmp);
    return peak;
}

/* The same of a copy of g without fused nodes of these kinds, NULL: without any. */
static int64_t peak_without(Arena *tmp, const Graph *g, const Kinds *k, const PlanFor *to)
{
    Graph *h = graph_clone(tmp, g);
    if (k)
        graph_unfuse(h, tmp, k->count, k->key);
    else
        pass_unfuse(h, tmp, NULL);
    return peak_ordered(tmp, h, to);
}

/* The kinds at the peak of a plan without which g has the lowest peak, which is *best; false: none
 * is lower than *best was. */
static bool find_lower(Arena *tmp, const Graph *g, const Kinds *all, const PlanFor *to,
                       int64_t *best, Kinds *out)
{
    bool found = false;
    for (int i = 0; i <= all->count && !(found && i == all->count); i++) {
        Kinds k = i < all->count ? (Kinds){{all->key[i]}, 1} : *all;
        int64_t peak = peak_without(tmp, g, &k, to);
        if (peak >= *best)
            continue;
        found = true;
        *best = peak;
        *out = k;
    }
    return found;
}

/* The kinds that hold the peak of g in the order of the lowest live sum. */
static Kinds kinds_of_ordered(Arena *a, Arena *tmp, const Graph *g, const PlanFor *to)
{
    Graph *h = graph_clone(tmp, g);
    order_graph(h, to->device, to->machine, tmp, false, NULL, NULL);
    Kinds k = kinds_at_peak(a, plan_measured(tmp, h, to));
    arena_reset(tmp);
    return k;
}

/* Takes kinds of g apart while that lowers its peak, and adds them to `out`; whether there were
 * any.
 */
static bool take_apart(Arena *a, Arena *tmp, Graph *g, const PlanFor *to, Found *out)
{
    const Plan *p = plan_measured(tmp, g, to);
    int64_t peak = p->space[SPACE_MAIN].bound;
    Kinds all = kinds_at_peak(a, p), k;
    arena_reset(tmp);
    double enough = with_gain(peak_without(tmp, g, NULL, to));
    while ((double)peak > enough && find_lower(tmp, g, &all, to, &peak, &k)) {
        graph_unfuse(g, tmp, k.count, k.key);
        for (int i = 0; i < k.count; i++)
            PUSH(a, out->key, out->count, out->cap, k.key[i]);
        if ((double)peak > enough)
            all = kinds_of_ordered(a, tmp, g, to);
    }
    return out->count > 0;
}

bool plan_take_apart(Graph *g, int64_t score, const PlanFor *to, Placements *known)
{
    if (!has_fused(g))
        return false;
    Arena *a = arena_tmp(g->a), *tmp = arena_tmp(g->a);
    Graph *h = graph_clone(a, g);
    Found k = {.count = 0};
    int64_t now = take_apart(a, tmp, h, to, &k) ? plan_score(h, to, known, score) : INT64_MAX;
    bool changed = with_gain(now) < (double)score;
    if (changed)
        graph_unfuse(g, tmp, k.count, k.key);
    arena_reset(a);
    arena_reset(tmp);
    return changed;
}
