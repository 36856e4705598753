/* Counts, by op and kind of factor or linear set, how often a node could be cut so by a mesh axis
 * alone, and how often it was. */
#include "spmd_seen.h"

#include <string.h>

enum { FEW_OPERANDS = 5 };

static WayCount *way_of(Seen *s, const char *op, const char *kind)
{
    char name[100];
    snprintf(name, sizeof name, "%s %s", op, kind);
    WayCount *w = map_find(&s->way, name);
    if (w)
        return w;
    w = NEW(s->a, WayCount);
    w->name = arena_strdup(s->a, name);
    map_put(&s->way, w->name, w);
    PUSH(s->a, s->list, s->count, s->cap, w);
    return w;
}

/* What the way is called; of partials by how they are merged. */
static const char *kind_text(const Factors *f, const NodeCut *how, char *text, size_t size)
{
    static const char *const kinds[] = {
#define X(id, name) name,
        FACTOR_KINDS(X)
#undef X
    };
    static const char *const merges[] = {[CUT_SUM] = "sum", [CUT_MAX] = "max"};
    if (how->kind == NODE_WHOLE)
        return "whole";
    if (how->kind == NODE_LINEAR)
        snprintf(text, size, "linear %llx %s", (unsigned long long)how->partial,
                 how->merge <= CUT_MAX && merges[how->merge] ? merges[how->merge] : "other");
    else
        snprintf(text, size, "%s%s", kinds[f->factor[how->factor].kind],
                 f->factor[how->factor].npartial ? ", merged" : "");
    return text;
}

static void count_way(Seen *s, const Node *n, const Factors *f, const NodeCut *how, bool did)
{
    char text[60];
    WayCount *w = way_of(s, n->op->name, kind_text(f, how, text, sizeof text));
    *(did ? &w->did : &w->could) += 1;
}

/* A way is counted once for each node and mesh axis, whatever factors have it. */
static void count_legal(Seen *s, const Node *n, const Factors *f, int64_t size)
{
    CutStop stop;
    bool kinds[8] = {0};
    for (int k = 0; k < f->count; k++) {
        NodeCut how = {.kind = NODE_FACTOR, .factor = k, .outer = 1};
        FactorKind kind = f->factor[k].kind;
        if (kind == FACTOR_REPLICATE || kinds[kind] || !cut_legal(n, f, size, &how, &stop))
            continue;
        kinds[kind] = true;
        count_way(s, n, f, &how, false);
    }
    for (uint64_t set = 1; n->nin <= FEW_OPERANDS && set < UINT64_C(1) << n->nin; set++) {
        NodeCut how = {.kind = NODE_LINEAR, .partial = set, .merge = CUT_SUM};
        if (op_linear(n, set) && cut_legal(n, f, size, &how, &stop))
            count_way(s, n, f, &how, false);
    }
}

void seen_node(void *seen, const Node *n, const NodeCut *how, int naxes)
{
    Seen *s = seen;
    Arena *tmp = arena_new(arena_ctx(s->a));
    CHECK(tmp);
    const Factors *f = node_factors(tmp, n);
    for (int c = 0; c < naxes; c++) {
        count_legal(s, n, f, s->size[c]);
        count_way(s, n, f, &how[c], true);
    }
    arena_free(tmp);
}

int seen_report(const Seen *s, int64_t least, bool all)
{
    int few = 0;
    for (int i = 0; i < s->count; i++) {
        const WayCount *w = s->list[i];
        bool bad = w->did < least && w->could;
        few += bad;
        if (bad || all)
            printf("%s: %lld of %lld\n", w->name, (long long)w->did, (long long)w->could);
    }
    return few;
}
