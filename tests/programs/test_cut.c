/* Cuts of random graphs, in double: every node, of the backward and the optimizer too, is cut in
 * every legal way alone and in random ways by two at once, run in parts and put together again; and
 * inputs are cut and followed through the graph, which is then run in parts as a whole. Every
 * factor of every op must have been cut: by the lines of tests/op, each a graph of one node.
 * `test_cut SEED` runs one graph; TN_LONG: ten times as many. */
#include "../../src/pass/pass.h"
#include "../shared/cut_ways.h"
#include "../shared/interp.h"
#include "../shared/test.h"

#include <stdlib.h>
#include <string.h>

enum { NGRAPH = 1000, QUICK = 250, LONG = 10, PAIRS = 3, MOST_SHOWN = 10 };

typedef struct Counts {
    WayCounts nodes;
    int64_t graph, graph_pair, step;
} Counts;

typedef struct CutTrial {
    Arena *a;
    Rng rng;
    Counts *done;
    const char *failure;
} CutTrial;

static void fail_at(CutTrial *t, const Node *n, const char *how)
{
    if (!t->failure)
        t->failure = arena_printf(t->a, "%s %%%s: %s", n->op->name, n->out[0]->name, how);
}

/* ---- a graph ---- */

static Tensor *input_data(CutTrial *t, const Graph *g, const Gen *x)
{
    Tensor *in = NEWN(t->a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        if (i < x->nin) {
            in[i] = x->in[i];
            continue;
        }
        in[i] = tensor_new(t->a, &g->in[i].v->type, 0);
        for (int64_t e = 0; e < tensor_nelem(&in[i]); e++)
            tensor_set(&in[i], e, g->in[i].role == ROLE_STEP ? 1 : rng_uniform(&t->rng));
    }
    return in;
}

/* Every value of g, by id. */
static Tensor *run_graph(CutTrial *t, const Graph *g, const Tensor *in, bool tries)
{
    Tensor *value = NEWN(t->a, Tensor, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        value[g->in[i].v->id] = in[i];
    for (const Node *n = g->first; n && !t->failure; n = n->next) {
        Tensor *x = NEWN(t->a, Tensor, n->nin), *y = NEWN(t->a, Tensor, n->nout);
        for (int i = 0; i < n->nin; i++)
            x[i] = value[n->in[i]->id];
        interp_node(t->a, g, n, x, y);
        for (int k = 0; k < n->nout; k++)
            value[n->out[k]->id] = y[k];
        const char *why =
            tries ? cut_ways_try(t->a, &t->rng, n, x, y, PAIRS, &t->done->nodes) : NULL;
        if (why)
            fail_at(t, n, why);
    }
    return value;
}

static bool together(CutTrial *t, const Graph *g, int ncut, const Splitter *s,
                     const GraphCut *const *graph)
{
    PartCut cuts[MAX_CUT];
    CutStop stop;
    for (int j = 0, n = cut_nparts(ncut, s); j < n; j++) {
        cut_parts(ncut, s, j, cuts);
        if (!cut_graph_together(g, t->a, ncut, cuts, graph, &stop))
            return false;
    }
    return true;
}

/* Inputs with an axis of the size of one of them are cut along it, and followed. */
static bool follow(CutTrial *t, const Graph *g, GraphCut *c, Splitter *s)
{
    const Value *v = g->in[rng_below(&t->rng, g->nin)].v;
    const Node *at;
    CutStop stop;
    if (!v->type.rank)
        return false;
    int64_t size = v->type.dim[rng_below(&t->rng, v->type.rank)];
    if (size < 2 || size > 64)
        return false;
    int64_t outer = rng_chance(&t->rng, 0.7) ? 1 : cut_divisor(&t->rng, size);
    int64_t count = cut_divisor(&t->rng, size / outer);
    if (count < 2)
        return false;
    *s = cut_splitter(&t->rng, count);
    *c = (GraphCut){count, NEWN(t->a, Cut, g->nvalue), NEWN(t->a, NodeCut, g->nnode)};
    for (int i = 0; i < g->nin; i++) {
        const Value *x = g->in[i].v;
        for (int d = 0; d < x->type.rank; d++)
            if (x->type.dim[d] == size && (x == v || rng_chance(&t->rng, 0.4))) {
                c->value[x->id] = (Cut){CUT_SLICE, d, outer};
                break;
            }
    }
    if (!cut_graph(g, t->a, c, &at, &stop))
        return false;
    for (const Node *n = g->first; n; n = n->next)
        if (cut_rounds(n, &c->node[n->id])) /* what reads limbs would differ */
            return false;
    return together(t, g, 1, s, (const GraphCut *[]){c});
}

static void value_cuts(int ncut, const GraphCut *const *graph, const Value *v, Cut *cut)
{
    for (int c = 0; c < ncut; c++)
        cut[c] = graph[c]->value[v->id];
}

static void run_parts(CutTrial *t, const Graph *g, const Tensor *value, int ncut, const Splitter *s,
                      const GraphCut *const *graph)
{
    int nparts = cut_nparts(ncut, s);
    Tensor **in = NEWN(t->a, Tensor *, g->nin), **out = NEWN(t->a, Tensor *, nparts);
    Cut cut[MAX_CUT];
    for (int i = 0; i < g->nin; i++) {
        value_cuts(ncut, graph, g->in[i].v, cut);
        in[i] = cut_up(t->a, &value[g->in[i].v->id], ncut, s, cut, cut_draw, &t->rng);
    }
    for (int j = 0; j < nparts; j++) {
        PartCut cuts[MAX_CUT];
        Graph *to = graph_new(t->a, "part");
        Value **now = NEWN(t->a, Value *, g->nvalue);
        Tensor *data = NEWN(t->a, Tensor, g->nin);
        out[j] = NEWN(t->a, Tensor, g->nout);
        cut_parts(ncut, s, j, cuts);
        for (int i = 0; i < g->nin; i++) {
            const Value *v = g->in[i].v;
            value_cuts(ncut, graph, v, cut);
            Type type = cut_type(&v->type, ncut, cuts, cut);
            now[v->id] = graph_input(to, v->name, type, g->in[i].role, g->in[i].name);
            data[i] = in[i][j];
        }
        cut_graph_part(g, to, t->a, ncut, cuts, graph, now);
        interp_graph(t->a, to, data, out[j]);
    }
    for (int k = 0; k < g->nout; k++) {
        const Value *v = g->out[k].v;
        Tensor *part = NEWN(t->a, Tensor, nparts), whole;
        for (int j = 0; j < nparts; j++)
            part[j] = out[j][k];
        value_cuts(ncut, graph, v, cut);
        const char *how = cut_join(t->a, &v->type, ncut, s, cut, part, &whole);
        how = how ? how : cut_differ(t->a, &whole, &value[v->id], 1);
        if (how && v->def)
            fail_at(t, v->def, arena_printf(t->a, "the graph in parts: %s", how));
    }
}

static void try_graph(CutTrial *t, const Graph *g, const Tensor *value)
{
    GraphCut c[2];
    Splitter s[2];
    const GraphCut *graph[] = {&c[0], &c[1]};
    int have = 0;
    for (int i = 0; i < 12 && g->nin && !t->failure; i++) {
        if (!follow(t, g, &c[have], &s[have]))
            continue;
        run_parts(t, g, value, 1, &s[have], &graph[have]);
        t->done->graph++;
        if (!have++)
            continue;
        if (together(t, g, 2, s, graph)) {
            run_parts(t, g, value, 2, s, graph);
            t->done->graph_pair++;
        }
        have = 0;
    }
}

typedef struct One {
    CutTrial *t;
    Library *lib;
    const struct KnownCut *known; /* NULL: a random graph */
} One;

typedef struct Training {
    Graph *g;
    PassOptions o;
} Training;

static void make_step(void *arg)
{
    Training *x = arg;
    passes_run(x->g, "grad,optimizer,dce", &x->o, NULL, NULL);
}

static void run_trial(void *arg)
{
    One *x = arg;
    CutTrial *t = x->t;
    Rng *r = &t->rng;
    int64_t rows;
    bool smooth = rng_chance(r, 0.4);
    int nodes = 5 + (int)rng_below(r, smooth ? 12 : 20);
    Gen *gen = smooth && rng_chance(r, 0.6) ? gen_rows(t->a, x->lib, r, nodes, &rows)
                                            : gen_graph(t->a, x->lib, r, nodes, smooth);
    Graph *g = gen->b.g;
    try_graph(t, g, run_graph(t, g, input_data(t, g, gen), true));
    if (!smooth || t->failure)
        return;
    Training step = {graph_clone(t->a, g), pass_defaults()};
    step.o.clip = rng_chance(r, 0.5);
    if (ctx_try(g->ctx, make_step, &step)) /* results without a gradient, no parameters */
        return;
    g = step.g;
    t->done->step++;
    Tensor *value = run_graph(t, g, input_data(t, g, gen), rng_chance(r, 0.5));
    if (!t->failure)
        try_graph(t, g, value);
}

/* ---- graphs whose cuts are known to be legal ---- */

/* Input 0 is cut along `axis`, at `outer`, into `count` units. */
typedef struct KnownCut {
    int axis;
    int64_t outer, count;
    const char *text;
} KnownCut;

static const KnownCut known[] = {
    /* within the iterations that slice the axis */
    {0, 3, 2,
     "tenon 1\n"
     "graph g(%x: f64[12, 4], %w: f64[4]) {\n"
     "  %y, %s = loop(n=3, slice %c: f64[4, 4] = %x axis 0, whole %v: f64[4] = %w)\n"
     "      -> (concat axis 0, sum f64) {\n"
     "    %m = mul(%c, %v)\n"
     "    %t = sum(%m)\n"
     "    yield %m, %t\n"
     "  }\n"
     "  return %y, %s\n"
     "}\n"},
    /* across a tail, a carry and a stack; a mask within the loop */
    {1, 1, 6,
     "tenon 1\n"
     "graph g(%x: f64[5, 6], %a: f64[6], %seed: i64[], %step: i64[]) {\n"
     "  %b = neg(%a)\n"
     "  %y, %s = loop(n=2, slice %c: f64[2, 6] = %x axis 0, whole %z: i64[] = %seed,\n"
     "      whole %k: i64[] = %step, offset %o: i64[] step 2) -> (concat axis 0, sum f64) {\n"
     "    %d = dropout(%c, %z, %k, %o, p=0.5, axes=[0], extents=[5]) stream=0\n"
     "    %t = sum(%d, dim=[0])\n"
     "    yield %d, %t\n"
     "  } tail(%c: f64[1, 6], %z: i64[], %k: i64[], %o: i64[]) {\n"
     "    %d = dropout(%c, %z, %k, %o, p=0.5, axes=[0], extents=[5]) stream=0\n"
     "    %t = sum(%d, dim=[0])\n"
     "    yield %d, %t\n"
     "  }\n"
     "  return %y, %s, %b\n"
     "}\n"},
    /* collectives: a reduction along its rows, what moves rows along its columns */
    {0, 1, 4,
     "tenon 1\n"
     "graph g(%x: f64[8, 6]) {\n"
     "  %e = exp(%x)\n"
     "  %r = all_reduce(%e, reduce_op=\"sum\", group=\"0\")\n"
     "  %y = wait_tensor(%r, %e)\n"
     "  %z = mul(%y, %x)\n"
     "  return %z\n"
     "}\n"},
    {1, 1, 3,
     "tenon 1\n"
     "graph g(%x: f64[8, 6]) {\n"
     "  %a = all_gather_into_tensor(%x, group_size=2, group=\"0\")\n"
     "  %b = wait_tensor(%a, %x)\n"
     "  %c = reduce_scatter_tensor(%b, reduce_op=\"sum\", group_size=2, group=\"0\")\n"
     "  %d = wait_tensor(%c, %b)\n"
     "  %e = all_to_all_single(%d, group=\"0\")\n"
     "  %f = wait_tensor(%e, %d)\n"
     "  %z = add(%f, %x)\n"
     "  return %z\n"
     "}\n"},
    {1, 2, 3,
     "tenon 1\n"
     "graph g(%x: f64[4, 6]) {\n"
     "  %f = full(size=[6], fill_value=1.0, dtype=f64)\n"
     "  %c = mul(%x, %f)\n"
     "  %i = sum(%x, dim=[0])\n"
     "  %z, %y = loop(n=4, stack %r: f64[6] = %c, carry %p: f64[6] = %i)\n"
     "      -> (carry %p, stack) {\n"
     "    %q = add(%p, %r)\n"
     "    %e = exp(%r)\n"
     "    yield %q, %e\n"
     "  }\n"
     "  return %z, %y\n"
     "}\n"},
};

/* What moves rows needs them all, and so does its wait. */
static const char *const refused[] = {
    "tenon 1\n"
    "graph g(%x: f64[8, 6]) {\n"
    "  %a = all_gather_into_tensor(%x, group_size=2, group=\"0\")\n"
    "  %b = wait_tensor(%a, %x)\n"
    "  return %b\n"
    "}\n",
    "tenon 1\n"
    "graph g(%x: f64[8, 6]) {\n"
    "  %c = reduce_scatter_tensor(%x, reduce_op=\"sum\", group_size=2, group=\"0\")\n"
    "  %d = wait_tensor(%c, %x)\n"
    "  return %d\n"
    "}\n",
    "tenon 1\n"
    "graph g(%x: f64[8, 6]) {\n"
    "  %e = all_to_all_single(%x, group=\"0\")\n"
    "  %f = wait_tensor(%e, %x)\n"
    "  return %f\n"
    "}\n",
};

static void run_refused(void *arg)
{
    CutTrial *t = ((One *)arg)->t;
    for (int i = 0; i < LEN(refused); i++) {
        Graph *g = graph_parse(t->a, refused[i], "refused.tn");
        GraphCut c = {8, NEWN(t->a, Cut, g->nvalue), NEWN(t->a, NodeCut, g->nnode)};
        const Node *at;
        CutStop stop;
        c.value[g->in[0].v->id] = (Cut){CUT_SLICE, 0, 1};
        if (cut_graph(g, t->a, &c, &at, &stop))
            fail_at(t, g->first, "is cut along axis 0");
        for (const Node *n = g->first; n; n = n->next) {
            NodeCut how;
            Cut out = {CUT_SLICE, 0, 1};
            if (cut_backward(n, node_factors(t->a, n), 2, &out, &how, &stop))
                fail_at(t, n, "gives a slice along axis 0");
        }
    }
}

static void run_known(void *arg)
{
    CutTrial *t = ((One *)arg)->t;
    const KnownCut *k = ((One *)arg)->known;
    Graph *g = graph_parse(t->a, k->text, "known.tn");
    graph_verify(g);
    Gen none = {0};
    Tensor *value = run_graph(t, g, input_data(t, g, &none), false);
    GraphCut c = {k->count, NEWN(t->a, Cut, g->nvalue), NEWN(t->a, NodeCut, g->nnode)};
    const GraphCut *graph[] = {&c};
    Splitter s = cut_splitter(&t->rng, k->count);
    const Node *at;
    CutStop stop;
    c.value[g->in[0].v->id] = (Cut){CUT_SLICE, k->axis, k->outer};
    if (!cut_graph(g, t->a, &c, &at, &stop))
        fail_at(t, at, cut_stop_text(t->a, at, &stop));
    else if (!together(t, g, 1, &s, graph))
        t->failure = "the parts are not one run";
    else
        run_parts(t, g, value, 1, &s, graph);
}

static void try_refused(Ctx *ctx)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    CutTrial t = {.a = a};
    One one = {.t = &t};
    if (!EXPECT(!ctx_try(ctx, run_refused, &one) && !t.failure))
        printf("collectives: %s\n", t.failure ? t.failure : ctx->message);
    arena_free(a);
}

static void try_one(Ctx *ctx, Library *lib, int seed, const KnownCut *k, Counts *done)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    CutTrial t = {.a = a, .rng = {(uint64_t)seed, 0}, .done = done};
    One one = {&t, lib, k};
    if (ctx_try(ctx, k ? run_known : run_trial, &one))
        t.failure = arena_strdup(a, ctx->message);
    if (!EXPECT(!t.failure) && test_nfail <= MOST_SHOWN)
        printf("%s graph %d: %s\n", k ? "known" : "random", seed, t.failure);
    arena_free(a);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Library lib;
    Counts done = {0};
    int first = argc > 1 ? atoi(argv[1]) : 0;
    int count = argc > 1             ? first + 1
                : getenv("TN_LONG")  ? NGRAPH * LONG
                : getenv("TN_QUICK") ? QUICK
                                     : NGRAPH;
    par_set_threads(1); /* all is small */
    if (!EXPECT(library_try(&ctx, a, &lib)))
        return test_report();
    lib.apart = true;
    try_refused(&ctx);
    for (int i = 0; i < LEN(known); i++)
        try_one(&ctx, &lib, i, &known[i], &done);
    for (int i = first; i < count; i++)
        try_one(&ctx, &lib, i, NULL, &done);
    printf("note: %lld single cuts (%lld linear, %lld of loops), %lld pairs; %lld graphs in parts, "
           "%lld by two at once; %lld training steps\n",
           (long long)done.nodes.single, (long long)done.nodes.linear, (long long)done.nodes.loop,
           (long long)done.nodes.pair, (long long)done.graph, (long long)done.graph_pair,
           (long long)done.step);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
