/* Takes fused nodes apart that cost memory. `fuse` keeps the peak of the order in which the nodes
 * stand; the search for an order may then find a lower one for the nodes apart, which the fused
 * ones exclude, as one that makes a result long before it is read.
 *
 * So the nodes apart are planned too. Where that peak is lower by more than LEAST_GAIN, below which
 * it is not worth a kernel's time, one kind of fused nodes after the other is taken apart: of those
 * that make or read what is alive at the peak, the kind without which the plan is lowest; where no
 * kind alone lowers it, all of them. A kind are nodes of equal bodies and types, as layers have
 * them. It ends when that peak is reached, or when the plan's is lowered no more.
 *
 * What is tried is ordered for the live sum and placed roughly. What was found is planned in full,
 * and dropped if that plan is not lower by as much: GPT-2 in bf16 would lose 24 bodies to an order
 * that placement makes no use of.
 *
 * Cost: a plan for the nodes apart, one for each kind that is tried, and two for what is found. */
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

/* What a peak must exceed for `peak` to be worth the kernels' time. */
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

/* Of the fused nodes that hold the peak, the nearest first. */
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

/* The plan of h in the order of the lowest live sum, roughly placed. */
static Plan *plan_tried(Arena *a, Graph *h, const PlanFor *to)
{
    Arena *tmp = arena_tmp(a);
    order_graph(h, to->device, to->machine, tmp, NULL, NULL);
    return plan_make(a, h, to);
}

/* The plan of a copy of g without fused nodes of these kinds. */
static Plan *plan_without(Arena *a, const Graph *g, const Kinds *k, const PlanFor *to)
{
    Graph *h = graph_clone(a, g);
    graph_unfuse(h, arena_tmp(a), k->count, k->key);
    return plan_tried(a, h, to);
}

static Plan *plan_apart(Arena *a, const Graph *g, const PlanFor *to)
{
    Graph *h = graph_clone(a, g);
    pass_unfuse(h, arena_tmp(a), NULL);
    return plan_tried(a, h, to);
}

/* Without what placement wastes: plans that are tried are placed only roughly. */
static int64_t peak_of(const Plan *p)
{
    return p->space[SPACE_MAIN].bound;
}

/* The kinds at p's peak without which g's plan is lowest, and that plan; NULL: none is lower. */
static const Plan *lower(Arena *a, const Graph *g, const Plan *p, const PlanFor *to, Kinds *out)
{
    Kinds all = kinds_at_peak(a, p);
    const Plan *best = NULL;
    for (int i = 0; i <= all.count && !(best && i == all.count); i++) {
        Kinds k = i < all.count ? (Kinds){{all.key[i]}, 1} : all;
        const Plan *q = plan_without(a, g, &k, to);
        if (peak_of(q) >= peak_of(best ? best : p))
            continue;
        best = q;
        *out = k;
    }
    return best;
}

/* Takes kinds of g apart while that lowers the rough plan, and adds them to `out`. */
static bool take_apart(Arena *a, Graph *g, const Plan *p, const PlanFor *to, Found *out)
{
    PlanFor rough = *to;
    rough.rough = true;
    double enough = with_gain(peak_of(plan_apart(a, g, &rough)));
    Kinds k;
    while ((double)peak_of(p) > enough && (p = lower(a, g, p, &rough, &k))) {
        graph_unfuse(g, arena_tmp(a), k.count, k.key);
        for (int i = 0; i < k.count; i++)
            PUSH(a, out->key, out->count, out->cap, k.key[i]);
    }
    return out->count > 0;
}

bool plan_take_apart(Graph *g, const Plan *p, const PlanFor *to)
{
    if (!has_fused(g))
        return false;
    Arena *a = arena_tmp(g->a);
    Graph *h = graph_clone(a, g);
    Found k = {.count = 0};
    int64_t peak = p->space[SPACE_MAIN].peak;
    bool changed = take_apart(a, h, p, to, &k) &&
                   with_gain(plan_searched(a, h, to)->space[SPACE_MAIN].peak) < (double)peak;
    if (changed)
        graph_unfuse(g, arena_tmp(a), k.count, k.key);
    arena_reset(a);
    return changed;
}
