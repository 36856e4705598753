/* Counts, by op and kind of factor or linear set, how often a node could be cut so by a mesh axis
 * alone, and how often it was; by pairs of kinds, how often nodes could be cut so by two axes at
 * once, and how often they were. */
#include "spmd_seen.h"

#include <string.h>

enum { FEW_OPERANDS = 5, MOST_WAYS = 8 + (1 << FEW_OPERANDS), KIND_TEXT = 60, OFTEN = 20 };

static WayCount *way_of(Seen *s, const char *op, const char *kind)
{
    char name[100];
    snprintf(name, sizeof name, "%s %s", op, kind);
    WayCount *w = map_find(&s->way, name);
    if (w)
        return w;
    w = NEW(s->a, WayCount);
    w->name = arena_strdup(s->a, name);
    w->linear = strstr(kind, "linear");
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

/* ---- one axis ---- */

static WayCount *row_of(Seen *s, const Node *n, const Factors *f, const NodeCut *how)
{
    char text[KIND_TEXT];
    return way_of(s, n->op->name, kind_text(f, how, text, sizeof text));
}

/* The ways of n for an axis of that size: one for each kind of factor, whatever factors have it,
 * and all linear sets. Returns how many. */
static int find_ways(const Node *n, const Factors *f, int64_t size, NodeCut *ways)
{
    CutStop stop;
    bool kinds[8] = {0};
    int count = 0;
    for (int k = 0; k < f->count; k++) {
        NodeCut how = {.kind = NODE_FACTOR, .factor = k, .outer = 1};
        FactorKind kind = f->factor[k].kind;
        if (kind == FACTOR_REPLICATE || kinds[kind] || !cut_legal(n, f, size, &how, &stop))
            continue;
        kinds[kind] = true;
        ways[count++] = how;
    }
    for (uint64_t set = 1; n->nin <= FEW_OPERANDS && set < UINT64_C(1) << n->nin; set++) {
        NodeCut how = {.kind = NODE_LINEAR, .partial = set, .merge = CUT_SUM};
        if (op_linear(n, set) && cut_legal(n, f, size, &how, &stop))
            ways[count++] = how;
    }
    return count;
}

void seen_expect(Seen *s, const Node *example, const char *without)
{
    static const int64_t sizes[] = {2, 3, 4, 5, 7, 8};
    Arena *tmp = arena_new(arena_ctx(s->a));
    CHECK(tmp);
    const Factors *f = node_factors(tmp, example);
    NodeCut ways[MOST_WAYS];
    way_of(s, example->op->name, "whole")->without = without;
    for (int i = 0; i < LEN(sizes); i++)
        for (int k = find_ways(example, f, sizes[i], ways); k-- > 0;)
            row_of(s, example, f, &ways[k])->without = without;
    arena_free(tmp);
}

static void count_ways(Seen *s, const Node *n, const Factors *f, int64_t size, const NodeCut *how)
{
    NodeCut ways[MOST_WAYS];
    for (int k = find_ways(n, f, size, ways); k-- > 0;)
        row_of(s, n, f, &ways[k])->could++;
    row_of(s, n, f, how)->did++;
}

/* ---- two axes ---- */

/* The two kinds, in one order whichever axis has which; linear sets are one. */
static WayCount *pair_of(Seen *s, const Factors *f, const NodeCut *x, const NodeCut *y)
{
    char text[2][KIND_TEXT], both[2 * KIND_TEXT + 2];
    const char *kind[2];
    for (int i = 0; i < 2; i++) {
        const NodeCut *how = i ? y : x;
        kind[i] = how->kind == NODE_LINEAR ? "linear" : kind_text(f, how, text[i], KIND_TEXT);
    }
    bool swap = strcmp(kind[0], kind[1]) > 0;
    snprintf(both, sizeof both, "%s, %s", kind[swap], kind[!swap]);
    return way_of(s, "two axes:", both);
}

static void count_pair(Seen *s, const Node *n, const Factors *f, const int64_t *size,
                       const NodeCut *how)
{
    PartCut cuts[2] = {{.count = size[0], .units = 1}, {.count = size[1], .units = 1}};
    NodeCut ways[2][MOST_WAYS];
    WayCount *last = NULL;
    CutStop stop;
    int count[2];
    for (int i = 0; i < 2; i++)
        count[i] = find_ways(n, f, size[i], ways[i]);
    for (int i = 0; i < count[0]; i++)
        for (int k = 0; k < count[1]; k++) {
            WayCount *w = pair_of(s, f, &ways[0][i], &ways[1][k]);
            NodeCut both[2] = {ways[0][i], ways[1][k]};
            if (w != last && cut_together(f, 2, cuts, both, &stop))
                (last = w)->could++;
        }
    if (how[0].kind != NODE_WHOLE && how[1].kind != NODE_WHOLE)
        pair_of(s, f, &how[0], &how[1])->did++;
}

/* ---- what the pass did ---- */

void seen_node(void *seen, const Node *n, const NodeCut *how, int naxes)
{
    Seen *s = seen;
    Arena *tmp = arena_new(arena_ctx(s->a));
    CHECK(tmp);
    const Factors *f = node_factors(tmp, n);
    for (int c = 0; c < naxes; c++)
        count_ways(s, n, f, s->size[c], &how[c]);
    for (int c = 1; c < naxes; c++)
        count_pair(s, n, f, &s->size[c - 1], &how[c - 1]);
    arena_free(tmp);
}

bool seen_short(const Seen *s, const Op *op, int64_t least)
{
    size_t len = strlen(op->name);
    for (int i = 0; i < s->count; i++) {
        const WayCount *w = s->list[i];
        if (!strncmp(w->name, op->name, len) && w->name[len] == ' ' && w->did < least)
            return true;
    }
    return false;
}

int seen_report(const Seen *s, int64_t least, bool all)
{
    int few = 0;
    for (int i = 0; i < s->count; i++) {
        const WayCount *w = s->list[i];
        bool seldom = w->could && w->did < least, never = !w->could && !w->did;
        bool bad = seldom && !w->linear && w->could >= OFTEN * least;
        few += bad;
        if (never)
            printf("note: %s: never, %s\n", w->name, w->without ? w->without : "no graph could");
        else if (seldom || all)
            printf("%s%s: %lld of %lld\n", bad ? "" : "note: ", w->name, (long long)w->did,
                   (long long)w->could);
    }
    return few;
}
