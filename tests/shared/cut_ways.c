/* The ways of a node: each factor, whole and within it, each set of operands in which the op is
 * linear, and for a loop slices of its operands; tried one by one, and two by two. */
#include "cut_ways.h"

enum { MOST_WAYS = 64 };

/* One legal way to cut a node into s.count units. */
typedef struct Way {
    Splitter s;
    NodeCut how;
    Cut *in, *out;
} Way;

typedef struct Ways {
    Way w[MOST_WAYS];
    int n;
} Ways;

/* One node being tried. */
typedef struct Trying {
    Arena *a;
    Rng *rng;
    const Node *n;
    const Factors *f;
    const Tensor *in, *want;
    WayCounts *done;
} Trying;

double cut_draw(void *rng)
{
    return rng_uniform(rng);
}

/* ---- splitters ---- */

int64_t cut_divisor(Rng *r, int64_t size)
{
    int64_t list[16] = {1};
    int n = 1;
    for (int64_t d = 2; d <= size && n < LEN(list); d++)
        if (size % d == 0)
            list[n++] = d;
    return list[rng_below(r, n)];
}

Splitter cut_splitter(Rng *r, int64_t count)
{
    int64_t nparts = count <= FEW_PARTS && rng_chance(r, 0.5) ? count : 2 + rng_below(r, 2);
    Splitter s = {.count = count, .nparts = (int)MIN(count, nparts)};
    for (int j = 1; j <= s.nparts; j++) {
        int64_t left = s.nparts - j; /* at least a unit for each */
        int64_t most = count - left - s.at[j - 1];
        s.at[j] = j == s.nparts ? count : s.at[j - 1] + 1 + rng_below(r, most);
    }
    return s;
}

/* ---- the ways of a node ---- */

static void add_way(Trying *t, Ways *ways, int64_t count, NodeCut how)
{
    const Node *n = t->n;
    CutStop stop;
    if (ways->n == MOST_WAYS || !cut_legal(n, t->f, count, &how, &stop))
        return;
    Way *w = &ways->w[ways->n++];
    *w = (Way){cut_splitter(t->rng, count), how, NEWN(t->a, Cut, n->nin), NEWN(t->a, Cut, n->nout)};
    cut_fill(n, t->f, &how, w->in, w->out);
}

static void factor_ways(Trying *t, Ways *ways, bool within)
{
    const Factors *f = t->f;
    for (int k = 0; k < f->count; k++) {
        int64_t size = f->factor[k].size;
        if (size < 2)
            continue;
        add_way(t, ways, size, (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = 1});
        if (!within)
            continue;
        int64_t outer = cut_divisor(t->rng, size), count = cut_divisor(t->rng, size / outer);
        if (outer > 1) /* in which the next one lies */
            add_way(t, ways, outer, (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = 1});
        if (count > 1)
            add_way(t, ways, count, (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = outer});
    }
}

static void linear_ways(Trying *t, Ways *ways)
{
    const Node *n = t->n;
    if (!n->nin || n->nin > 8)
        return;
    for (uint64_t set = 1; set < 1ULL << n->nin; set++)
        for (CutKind merge = CUT_SUM; merge <= CUT_LOGSUMEXP; merge++) {
            bool real = true;
            for (int i = 0; i < n->nin; i++)
                real &= !(set >> i & 1) || dtype_float(n->in[i]->type.dtype);
            if (merge == CUT_SUM || real)
                add_way(t, ways, 2, (NodeCut){.kind = NODE_LINEAR, .partial = set, .merge = merge});
        }
}

/* A loop: every operand that has an axis of a size is cut along the first such. */
static void loop_ways(Trying *t, Ways *ways)
{
    const Node *n = t->n;
    for (int64_t size = 2; size < 13 && ways->n < MOST_WAYS; size++) {
        Way *w = &ways->w[ways->n];
        CutStop stop;
        int64_t outer = rng_chance(t->rng, 0.5) ? 1
                        : rng_chance(t->rng, 0.5) && size % n->region->n == 0
                            ? n->region->n
                            : cut_divisor(t->rng, size);
        int64_t count = rng_chance(t->rng, 0.5) ? size / outer : cut_divisor(t->rng, size / outer);
        if (count < 2)
            continue;
        *w = (Way){cut_splitter(t->rng, count),
                   {.kind = NODE_WHOLE},
                   NEWN(t->a, Cut, n->nin),
                   NEWN(t->a, Cut, n->nout)};
        bool some = false;
        for (int i = 0; i < n->nin; i++)
            for (int d = 0; d < n->in[i]->type.rank; d++)
                if (n->in[i]->type.dim[d] == size && rng_chance(t->rng, 0.8)) {
                    w->in[i] = (Cut){CUT_SLICE, d, outer};
                    some = true;
                    break;
                }
        if (some && cut_loop_forward(n, t->a, count, w->in, &w->how, w->out, &stop) &&
            w->how.kind == NODE_LOOP && !cut_rounds(n, &w->how))
            ways->n++;
    }
}

static void find_ways(Trying *t, Ways *ways, bool all)
{
    const Node *n = t->n;
    ways->n = 0;
    if (n->op->region == LOOP) {
        loop_ways(t, ways);
    } else if (!n->op->region && n->op->class != CLASS_COLLECTIVE) {
        factor_ways(t, ways, all);
        if (all)
            linear_ways(t, ways);
    }
}

/* ---- one node ---- */

static const char *way_text(Trying *t, const Way *w)
{
    static const char *const kinds[] = {"whole", "factor", "linear", "loop"};
    return arena_printf(t->a, "%s %d outer %lld set %llx, %lld units in %d parts",
                        kinds[w->how.kind], w->how.factor, (long long)w->how.outer,
                        (unsigned long long)w->how.partial, (long long)w->s.count, w->s.nparts);
}

/* For every part, whose units may be one or more. */
static bool together(const Trying *t, int ncut, const Splitter *s, const NodeCut *how)
{
    PartCut cuts[2];
    CutStop stop;
    for (int j = 0, count = cut_nparts(ncut, s); j < count; j++) {
        cut_parts(ncut, s, j, cuts);
        if (t->n->op->region == LOOP ? !cut_loop_together(t->n, t->a, ncut, cuts, how, &stop)
                                     : !cut_together(t->f, ncut, cuts, how, &stop))
            return false;
    }
    return true;
}

static const char *try_single(Trying *t, const Way *w)
{
    if (!together(t, 1, &w->s, &w->how))
        return NULL;
    const char *why =
        cut_try(t->a, t->n, t->in, t->want, 1, &w->s, &w->how, w->in, w->out, cut_draw, t->rng);
    t->done->single++;
    t->done->linear += w->how.kind == NODE_LINEAR;
    t->done->loop += w->how.kind == NODE_LOOP;
    return why ? arena_printf(t->a, "%s: %s", way_text(t, w), why) : NULL;
}

static const char *try_pair(Trying *t, const Way *x, const Way *y)
{
    const Node *n = t->n;
    Splitter s[] = {x->s, y->s};
    NodeCut how[] = {x->how, y->how};
    if (!together(t, 2, s, how))
        return NULL;
    Cut *in = NEWN(t->a, Cut, 2 * n->nin), *out = NEWN(t->a, Cut, 2 * n->nout);
    for (int c = 0; c < 2; c++) {
        const Way *w = c ? y : x;
        for (int i = 0; i < n->nin; i++)
            in[c * n->nin + i] = w->in[i];
        for (int k = 0; k < n->nout; k++)
            out[c * n->nout + k] = w->out[k];
    }
    t->done->pair++;
    const char *why = cut_try(t->a, n, t->in, t->want, 2, s, how, in, out, cut_draw, t->rng);
    return why ? arena_printf(t->a, "%s, and %s: %s", way_text(t, x), way_text(t, y), why) : NULL;
}

const char *cut_ways_try(Arena *a, Rng *rng, const Node *n, const Tensor *in, const Tensor *want,
                         int pairs, WayCounts *done)
{
    Trying t = {a, rng, n, node_factors(a, n), in, want, done};
    Ways *ways = NEW(a, Ways);
    const char *why = NULL;
    find_ways(&t, ways, pairs > 0);
    for (int i = 0; i < ways->n && !why; i++)
        why = try_single(&t, &ways->w[i]);
    for (int i = 0; i < pairs && ways->n && !why; i++) {
        int64_t x = rng_below(rng, ways->n), y = rng_below(rng, ways->n);
        if (rng_chance(rng, 0.3)) /* ways of one factor stand beside each other */
            y = MIN(x + 1, ways->n - 1);
        why = try_pair(&t, &ways->w[x], &ways->w[y]);
    }
    return why;
}
