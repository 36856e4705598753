/* Blocks of a step: parts of the forward that hand little to each other, so that each can be
 * computed again by itself. They are the layers that scopes name. Where scopes name fewer than two,
 * as in imported graphs, the forward is cut where it is narrow: where no more bytes of activations
 * pass from the nodes before to those after than at its narrowest place, but for a part. */
#include "decide.h"

#include <string.h>

#define NARROW 1.25 /* times the narrowest place */

/* ---- by scope ---- */

static int by_scope(const Graph *g, Arena *tmp, int *block)
{
    Map number = {.a = tmp}; /* by the block's name, and one */
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        Block b = block_of(n->scope);
        block[n->id] = NO_BLOCK;
        if (!b.len || n->phase >= BACKWARD)
            continue;
        const char *name = arena_strndup(tmp, b.scope, (size_t)b.len);
        intptr_t k = (intptr_t)map_find(&number, name);
        if (!k)
            map_put(&number, name, (void *)(k = ++count));
        block[n->id] = (int)k - 1;
    }
    return count;
}

/* ---- by width ---- */

typedef struct Widths {
    const Graph *g;
    Arena *tmp;
    Node **base;
    bool *active;   /* by node id: it depends on the batch, or on chance */
    int *last;      /* by node id: the place of the last forward node that reads it */
    int64_t *width; /* by place: bytes that pass it */
    int n;
} Widths;

static bool is_data(Role r)
{
    return r == ROLE_BATCH || r == ROLE_NONE;
}

static bool reads_batch(const Widths *w, const Node *n)
{
    bool active = n->op->class == CLASS_RANDOM;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        active |= v->def ? w->active[v->def->id] : is_data(w->g->in[v->index].role);
    }
    return active;
}

static Widths measure(const Graph *g, Arena *tmp)
{
    Widths w = {g,
                tmp,
                find_view_bases(g, tmp),
                NEWN(tmp, bool, g->nnode),
                NEWN(tmp, int, g->nnode),
                NEWN(tmp, int64_t, g->nnode + 1),
                0};
    for (const Node *n = g->first; n; n = n->next) {
        w.active[n->id] = reads_batch(&w, n);
        for (int i = 0; i < n->nin && n->phase < BACKWARD && !node_aliases(n); i++) {
            const Node *from = w.base[n->in[i]->id];
            if (from)
                w.last[from->id] = w.n;
        }
        w.n++;
    }
    int place = 0;
    for (const Node *n = g->first; n; n = n->next, place++) {
        if (n->phase >= BACKWARD || node_aliases(n) || !w.active[n->id] || w.last[n->id] <= place)
            continue;
        for (int k = 0; k < n->nout; k++) {
            w.width[place] += type_nbytes(&n->out[k]->type);
            w.width[w.last[n->id]] -= type_nbytes(&n->out[k]->type);
        }
    }
    for (int i = 1; i < w.n; i++)
        w.width[i] += w.width[i - 1];
    return w;
}

/* The least width between the first product and the last. */
static int64_t find_narrowest(const Widths *w)
{
    int64_t least = INT64_MAX, since = INT64_MAX;
    bool begun = false;
    int place = 0;
    for (const Node *n = w->g->first; n; n = n->next, place++) {
        if (n->phase >= BACKWARD)
            continue;
        if (n->op->class == CLASS_PRODUCT && w->active[n->id]) {
            least = begun ? MIN(least, since) : least;
            since = INT64_MAX;
            begun = true;
        }
        since = begun && w->width[place] > 0 ? MIN(since, w->width[place]) : since;
    }
    return least;
}

static int by_width(const Graph *g, Arena *tmp, int *block)
{
    Widths w = measure(g, tmp);
    int64_t narrowest = find_narrowest(&w);
    int count = 0, place = 0;
    bool product = false;
    for (const Node *n = g->first; n; n = n->next, place++) {
        bool forward = n->phase < BACKWARD;
        block[n->id] = forward ? count : NO_BLOCK;
        product |= forward && n->op->class == CLASS_PRODUCT && w.active[n->id];
        if (!forward || !product || (double)w.width[place] > NARROW * (double)narrowest)
            continue;
        count++;
        product = false;
    }
    return count + 1;
}

Blocks find_blocks(const Graph *g, Arena *tmp)
{
    Blocks b = {NEWN(tmp, int, g->nnode), true};
    b.scoped = by_scope(g, tmp, b.of) > 1;
    if (!b.scoped)
        by_width(g, tmp, b.of);
    return b;
}
