/* Random regions: around a random value of a random training step, on any axis, at any place in
 * it, with all values that the cut reaches or the large ones. */
#include "chunk_made.h"

#include "chunk_case.h"
#include "chunk_seen.h"
#include "interp.h"

#include <math.h>
#include <string.h>

enum { REGIONS = 6, TRIES = 40, DRAWS = 4 };
static const double CLOSE = 1e-12, NOISE = 0x1p-52, INSIDE = 16;

typedef struct Made {
    Arena *a;
    Rng rng;
    ChunkMade *done;
    Graph *g;
    Tensor *in, *want;
    bool show;
    const char *failure;
} Made;

/* ---- the step ---- */

/* Some values inside are results too. */
static void add_results(Made *t, Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (rng_chance(&t->rng, 0.05) && dtype_float(n->out[0]->type.dtype))
            graph_output(g, n->out[0], ROLE_NONE, NULL);
}

/* The loss becomes a function of itself: what gradients are multiplied by is late. */
static void make_late(Made *t, Graph *g)
{
    static const char *const ops[] = {"sin", "tanh", "sigmoid", "cos"};
    Port *loss = graph_find_output(g, ROLE_LOSS, NULL);
    Build b = {.g = g, .phase = LOSS};
    if (loss && rng_chance(&t->rng, 0.5))
        loss->v = emit1(&b, ops[rng_below(&t->rng, LEN(ops))], IN(loss->v), NOATTRS);
}

static void make_step(Made *t, Library *lib)
{
    int64_t rows = 0;
    int nodes = 6 + (int)rng_below(&t->rng, 14);
    Gen *gen = rng_chance(&t->rng, 0.7) ? gen_rows(t->a, lib, &t->rng, nodes, &rows)
                                        : gen_graph(t->a, lib, &t->rng, nodes, true);
    PassOptions o = pass_defaults();
    t->g = gen->b.g;
    t->in = gen->in;
    if (rows && rng_chance(&t->rng, 0.25)) {
        int64_t part = 1 + rng_below(&t->rng, rows - 1);
        o.accumulate = (rows + part - 1) / part;
    } else {
        add_results(t, t->g);
        make_late(t, t->g);
    }
    passes_run(t->g, "grad,accumulate,canonicalize,cse,dce", &o, NULL, NULL);
    t->want = graphs_interpret(t->a, t->g, t->in);
}

/* ---- a region ---- */

static int64_t divisor(Rng *r, int64_t size)
{
    int64_t d = 1 + rng_below(r, size);
    while (size % d)
        d--;
    return d;
}

/* The step, or the body of a loop in it. */
static Graph *draw_graph(Made *t)
{
    Graph *g = t->g;
    for (Node *n = g->first; n; n = n->next)
        if (n->op->region == LOOP && rng_chance(&t->rng, 0.8))
            return n->region->body[MAIN];
    return g;
}

static Value *draw_value(Made *t)
{
    Value *best = NULL;
    const Graph *g = draw_graph(t);
    int most = rng_chance(&t->rng, 0.6) ? 4 : 1; /* the largest of some */
    for (int i = 0; i < TRIES && most; i++) {
        const Node *n = g->first;
        for (int64_t skip = rng_below(&t->rng, g->nnode); skip && n; skip--)
            n = n->next;
        Value *v = n ? n->out[rng_below(&t->rng, n->nout)] : NULL;
        if (!v || !v->type.rank || graph_is_output(g, v))
            continue;
        best = !best || type_nelem(&v->type) > type_nelem(&best->type) ? v : best;
        most--;
    }
    return best;
}

static bool draw_region(Made *t, ChunkRegion *r)
{
    static const int64_t slices[] = {2, 3, 7, 8, 64};
    const Value *v = draw_value(t);
    int64_t size = v ? v->type.dim[rng_below(&t->rng, v->type.rank)] : 0;
    if (size < 2)
        return false;
    *r = (ChunkRegion){.value = v->name, .cut = {CUT_SLICE, 0, 1}, .inner = 1};
    while (v->type.dim[r->cut.axis] != size)
        r->cut.axis++;
    if (rng_chance(&t->rng, 0.3))
        r->cut.outer = divisor(&t->rng, size);
    if (rng_chance(&t->rng, 0.3))
        r->inner = divisor(&t->rng, size / r->cut.outer);
    r->all = rng_chance(&t->rng, 0.3);
    r->cheap = !r->all && rng_chance(&t->rng, 0.3);
    r->slices = slices[rng_below(&t->rng, LEN(slices))];
    return chunk_units(v, r) > 1;
}

/* How far output i may be off where terms are added in another order. */
static double rounding(Made *t, int i)
{
    double most = 0;
    Tensor *out = NEWN(t->a, Tensor, t->g->nout);
    for (int k = 0; k < DRAWS; k++) {
        interp_noisy(t->a, t->g, t->in, k % 2 ? -NOISE : NOISE, (uint64_t)k / 2, out);
        most = fmax(most, graphs_distance(&out[i], &t->want[i]));
    }
    return INSIDE * most;
}

static void compare(Made *t, const Graph *g, const Tensor *got, const char *how)
{
    for (int i = 0; i < g->nout && !t->failure; i++) {
        double error = graphs_distance(&got[i], &t->want[i]);
        bool whole = dtype_float(got[i].dtype) || !error;
        if (!whole || (error > CLOSE && error > rounding(t, i)))
            t->failure =
                arena_printf(t->a, "%s: output %%%s is off by %.3g", how, g->out[i].v->name, error);
    }
}

static bool has_random(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n; n = n->next)
        EACH_LOOP_BODY(b, n)
            for (const Node *m = n->region->body[b]->first; m; m = m->next)
                found |= m->op->class == CLASS_RANDOM;
    return found;
}

static void check_made(Made *t, Graph *g, const ChunkRegion *r)
{
    int loops = chunk_seen_loops(g) - chunk_seen_loops(t->g);
    bool top = map_find(&t->g->names, r->value); /* else one of several bodies may refuse it */
    if (top && chunk_seen_whole(g, t->g, r))
        t->failure = "the seed is still there as a whole";
    t->done->made++;
    t->done->two += loops == 2;
    t->done->random += has_random(g);
    compare(t, g, graphs_interpret(t->a, g, t->in), "interpreted");
    if (!t->failure && rng_chance(&t->rng, 0.3))
        compare(t, g, graphs_execute(t->a, g, t->in), "executed");
}

static void try_region(Made *t, const ChunkRegion *r)
{
    Graph *g = graph_clone(t->a, t->g);
    const char *why;
    Graph *losses = graph_clone(t->a, t->g); /* what they divide by is made apart in any case */
    loss_counts(losses, t->a);
    const char *before = graphs_text(t->a, losses);
    if (t->show)
        printf("---- %%%s axis %d outer %lld inner %lld%s in %lld slices\n", r->value, r->cut.axis,
               (long long)r->cut.outer, (long long)r->inner,
               r->all     ? " all"
               : r->cheap ? " cheap"
                          : "",
               (long long)r->slices);
    chunk_case_run(g, r, r->slices, "f32", &why);
    const char *after = graphs_text(t->a, g);
    if (t->show)
        printf("%s\n%s", why ? why : "made", strcmp(before, after) ? after : "");
    if (!strcmp(before, after)) {
        t->done->refused++;
        if (!why || !strstr(why, ": "))
            t->failure = "refused without a reason";
    } else if (why) {
        t->failure = arena_printf(t->a, "changed, though \"%s\"", why);
    } else {
        check_made(t, g, r);
    }
    if (t->failure)
        t->failure =
            arena_printf(t->a, "%%%s axis %d outer %lld inner %lld%s in %lld slices: %s", r->value,
                         r->cut.axis, (long long)r->cut.outer, (long long)r->inner,
                         r->all     ? " all"
                         : r->cheap ? " cheap"
                                    : "",
                         (long long)r->slices, t->failure);
}

typedef struct Try {
    Made *t;
    Library *lib;
    const ChunkRegion *r;
} Try;

static void run_step(void *arg)
{
    Try *x = arg;
    make_step(x->t, x->lib);
}

static void run_region(void *arg)
{
    Try *x = arg;
    try_region(x->t, x->r);
}

const char *chunk_made_try(Arena *a, Library *lib, uint64_t seed, bool show, ChunkMade *done)
{
    Ctx *ctx = arena_ctx(a);
    Made t = {.a = a, .rng = {seed, 0}, .done = done, .show = show};
    Try x = {.t = &t, .lib = lib};
    if (ctx_try(ctx, run_step, &x)) /* results without a gradient */
        return NULL;
    if (show)
        printf("%s", graphs_text(a, t.g));
    done->graphs++;
    for (int i = 0; i < REGIONS && !t.failure; i++) {
        ChunkRegion r;
        x.r = &r;
        if (draw_region(&t, &r) && ctx_try(ctx, run_region, &x))
            t.failure = arena_printf(a, "%%%s axis %d in %lld slices: %s", r.value, r.cut.axis,
                                     (long long)r.slices, ctx->message);
    }
    return t.failure;
}
