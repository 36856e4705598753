/* reach: numbers that go from a region's nodes to those that read them. Looked for from a reader
 * back: where the index says that what is largest reaches a node, or all that is before the region
 * has been seen, nothing further back is visited. So a walk stays near the region, though paths
 * lead from a layer's forward through all later layers to its backward. */
#include "reach.h"

Reach reach_start(const Growth *x, Node *const *node, int count)
{
    return (Reach){.x = x,
                   .node = node,
                   .said = SPARSE(x->tmp, int, x->mostnode),
                   .known = SPARSE(x->tmp, int, x->mostnode),
                   .most = NEWN(x->tmp, int, count),
                   .enter = NEWN(x->tmp, int, count)};
}

void reach_add(Reach *r, int number)
{
    int i = r->count++, id = r->node[i]->id, most = i ? r->most[i - 1] : -1;
    int enter = r->x->index->enter[id];
    r->said[id] = number;
    r->most[i] = MAX(most, number);
    r->enter[i] = number > most   ? enter
                  : number < most ? r->enter[i - 1]
                                  : MIN(r->enter[i - 1], enter);
}

/* The number of nodes that have been added and stand before m. */
static int count_before(const Reach *r, const Node *m)
{
    const int64_t *place = r->x->index->place;
    int low = 0, high = r->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (place[r->node[middle]->id] < place[m->id])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether m's number is known without a walk. */
static bool settle(Reach *r, const Node *m)
{
    int *known = &r->known[m->id];
    if (*known)
        return true;
    int i = count_before(r, m) - 1;
    if (i < 0 || !r->most[i])
        *known = 1;
    else if (r->enter[i] <= r->x->index->leave[m->id])
        *known = 1 + r->most[i];
    return *known;
}

typedef struct ReachVisit {
    const Node *n;
    int next, number;
} ReachVisit;

int reach_of(Reach *r, const Node *m)
{
    ReachVisit *stack = NULL;
    int depth = 0, cap = 0;
    if (settle(r, m))
        return r->known[m->id] - 1;
    PUSH(r->x->tmp, stack, depth, cap, (ReachVisit){.n = m});
    while (depth) {
        ReachVisit *v = &stack[depth - 1];
        const Node *n = v->next < node_nsource(v->n) ? node_source(v->n, v->next) : NULL;
        if (v->next == node_nsource(v->n)) {
            r->known[v->n->id] = 1 + v->number;
            depth--;
        } else if (n && !r->x->joined[n->id] && !settle(r, n)) {
            PUSH(r->x->tmp, stack, depth, cap, (ReachVisit){.n = n});
        } else {
            v->next++;
            v->number = MAX(v->number, !n                    ? 0
                                       : r->x->joined[n->id] ? r->said[n->id]
                                                             : r->known[n->id] - 1);
        }
    }
    return r->known[m->id] - 1;
}
