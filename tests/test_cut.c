/* Cuts of random graphs, in double: every node, of the backward and the optimizer too, is cut in
 * every legal way alone and in random ways by two at once, run in parts and put together again; and
 * inputs are cut and followed through the graph, which is then run in parts as a whole. Every
 * factor of every op must have been cut: by the lines of tests/op, each a graph of one node.
 * `test_cut SEED` runs one graph; TN_LONG: ten times as many. */
#include "../src/pass/pass.h"
#include "cut_parts.h"
#include "interp.h"
#include "gen.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { NGRAPH = 1000, LONG = 10, MOST_WAYS = 64, MOST_SHOWN = 10 };

typedef struct Counts {
    int64_t single, pair, graph, graph_pair, linear, loop, step;
} Counts;

typedef struct CutTrial {
    Arena *a;
    Rng rng;
    Counts *done;
    const char *failure;
} CutTrial;

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

static double draw(void *arg)
{
    return rng_uniform(arg);
}

static void fail_at(CutTrial *t, const Node *n, const char *what, const char *how)
{
    if (!t->failure)
        t->failure = arena_printf(t->a, "%s %%%s: %s: %s", n->op->name, n->out[0]->name, what, how);
}

/* ---- splitters ---- */

static int64_t divisor(Rng *r, int64_t size)
{
    int64_t list[16];
    int n = 0;
    for (int64_t d = 1; d <= size && n < LEN(list); d++)
        if (size % d == 0)
            list[n++] = d;
    return list[rng_below(r, n)];
}

/* Of `count` units, in two or three parts. */
static Splitter make_splitter(Rng *r, int64_t count)
{
    int64_t nparts = 2 + rng_below(r, 2);
    Splitter s = {.count = count, .nparts = (int)MIN(count, nparts)};
    for (int j = 1; j <= s.nparts; j++) {
        int64_t left = s.nparts - j; /* at least a unit for each */
        int64_t most = count - left - s.at[j - 1];
        s.at[j] = j == s.nparts ? count : s.at[j - 1] + 1 + rng_below(r, most);
    }
    return s;
}

/* ---- the ways of a node ---- */

static void add_way(CutTrial *t, const Node *n, const Factors *f, Ways *ways, int64_t count,
                    NodeCut how)
{
    CutStop stop;
    if (ways->n == MOST_WAYS || !cut_legal(n, f, count, &how, &stop))
        return;
    Way *w = &ways->w[ways->n++];
    *w = (Way){make_splitter(&t->rng, count), how, NEWN(t->a, Cut, n->nin),
               NEWN(t->a, Cut, n->nout)};
    cut_fill(n, f, &how, w->in, w->out);
}

static void factor_ways(CutTrial *t, const Node *n, const Factors *f, Ways *ways)
{
    for (int k = 0; k < f->count; k++) {
        int64_t size = f->factor[k].size;
        if (size < 2)
            continue;
        add_way(t, n, f, ways, size, (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = 1});
        int64_t outer = divisor(&t->rng, size), count = divisor(&t->rng, size / outer);
        if (count > 1)
            add_way(t, n, f, ways, count,
                    (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = outer});
    }
}

static void linear_ways(CutTrial *t, const Node *n, const Factors *f, Ways *ways)
{
    if (!n->nin || n->nin > 8)
        return;
    for (uint64_t set = 1; set < 1ULL << n->nin; set++)
        for (CutKind merge = CUT_SUM; merge <= CUT_LOGSUMEXP; merge++) {
            bool real = true;
            for (int i = 0; i < n->nin; i++)
                real &= !(set >> i & 1) || dtype_float(n->in[i]->type.dtype);
            if (merge == CUT_SUM || real)
                add_way(t, n, f, ways, 2,
                        (NodeCut){.kind = NODE_LINEAR, .partial = set, .merge = merge});
        }
}

/* A loop: every operand that has an axis of a size is cut along the first such. */
static void loop_ways(CutTrial *t, const Node *n, Ways *ways)
{
    for (int64_t size = 2; size < 10 && ways->n < MOST_WAYS; size++) {
        Way *w = &ways->w[ways->n];
        CutStop stop;
        int64_t outer = rng_chance(&t->rng, 0.7) ? 1 : divisor(&t->rng, size);
        int64_t count = rng_chance(&t->rng, 0.5) ? size / outer : divisor(&t->rng, size / outer);
        if (count < 2)
            continue;
        *w = (Way){make_splitter(&t->rng, count),
                   {NODE_WHOLE},
                   NEWN(t->a, Cut, n->nin),
                   NEWN(t->a, Cut, n->nout)};
        bool some = false;
        for (int i = 0; i < n->nin; i++)
            for (int d = 0; d < n->in[i]->type.rank; d++)
                if (n->in[i]->type.dim[d] == size && rng_chance(&t->rng, 0.8)) {
                    w->in[i] = (Cut){CUT_SLICE, d, outer};
                    some = true;
                    break;
                }
        if (some && cut_loop_forward(n, t->a, count, w->in, &w->how, w->out, &stop) &&
            w->how.kind == NODE_LOOP)
            ways->n++;
    }
}

static void find_ways(CutTrial *t, const Node *n, const Factors *f, Ways *ways)
{
    ways->n = 0;
    if (n->op->region == LOOP) {
        loop_ways(t, n, ways);
    } else if (!n->op->region && n->op->class != CLASS_COLLECTIVE) {
        factor_ways(t, n, f, ways);
        linear_ways(t, n, f, ways);
    }
}

/* ---- one node ---- */

static const char *way_text(CutTrial *t, const Way *w)
{
    static const char *const kinds[] = {"whole", "factor", "linear", "loop"};
    return arena_printf(t->a, "%s %d outer %lld set %llx, %lld units in %d parts",
                        kinds[w->how.kind], w->how.factor, (long long)w->how.outer,
                        (unsigned long long)w->how.partial, (long long)w->s.count, w->s.nparts);
}

static void try_single(CutTrial *t, const Node *n, const Tensor *in, const Tensor *out,
                       const Way *w)
{
    const char *how = cut_try(t->a, n, in, out, 1, &w->s, &w->how, w->in, w->out, draw, &t->rng);
    if (how)
        fail_at(t, n, way_text(t, w), how);
    t->done->single++;
    t->done->linear += w->how.kind == NODE_LINEAR;
    t->done->loop += w->how.kind == NODE_LOOP;
}

static void try_pair(CutTrial *t, const Node *n, const Factors *f, const Tensor *in,
                     const Tensor *out, const Way *x, const Way *y)
{
    Splitter s[] = {x->s, y->s};
    NodeCut how[] = {x->how, y->how};
    PartCut cuts[2];
    CutStop stop;
    for (int j = 0, count = cut_nparts(2, s); j < count; j++) {
        cut_parts(2, s, j, cuts);
        if (n->op->region == LOOP ? !cut_loop_together(n, t->a, 2, cuts, how, &stop)
                                  : !cut_together(f, 2, cuts, how, &stop))
            return;
    }
    Cut *in_cut = NEWN(t->a, Cut, 2 * n->nin), *out_cut = NEWN(t->a, Cut, 2 * n->nout);
    for (int c = 0; c < 2; c++) {
        const Way *w = c ? y : x;
        memcpy(in_cut + c * n->nin, w->in, sizeof *in_cut * (size_t)n->nin);
        memcpy(out_cut + c * n->nout, w->out, sizeof *out_cut * (size_t)n->nout);
    }
    const char *why = cut_try(t->a, n, in, out, 2, s, how, in_cut, out_cut, draw, &t->rng);
    if (why)
        fail_at(t, n, arena_printf(t->a, "%s and %s", way_text(t, x), way_text(t, y)), why);
    t->done->pair++;
}

static void try_node(CutTrial *t, const Node *n, const Tensor *in, const Tensor *out)
{
    Ways *ways = NEW(t->a, Ways);
    Factors *f = node_factors(t->a, n);
    find_ways(t, n, f, ways);
    for (int i = 0; i < ways->n && !t->failure; i++)
        try_single(t, n, in, out, &ways->w[i]);
    for (int i = 0; i < 3 && ways->n && !t->failure; i++)
        try_pair(t, n, f, in, out, &ways->w[rng_below(&t->rng, ways->n)],
                 &ways->w[rng_below(&t->rng, ways->n)]);
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
        if (tries)
            try_node(t, n, x, y);
    }
    return value;
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
    int64_t outer = rng_chance(&t->rng, 0.7) ? 1 : divisor(&t->rng, size);
    int64_t count = divisor(&t->rng, size / outer);
    if (count < 2)
        return false;
    *s = make_splitter(&t->rng, count);
    *c = (GraphCut){count, NEWN(t->a, Cut, g->nvalue), NEWN(t->a, NodeCut, g->nnode)};
    for (int i = 0; i < g->nin; i++) {
        const Value *x = g->in[i].v;
        for (int d = 0; d < x->type.rank; d++)
            if (x->type.dim[d] == size && (x == v || rng_chance(&t->rng, 0.4))) {
                c->value[x->id] = (Cut){CUT_SLICE, d, outer};
                break;
            }
    }
    return cut_graph(g, t->a, c, &at, &stop);
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
        in[i] = cut_up(t->a, &value[g->in[i].v->id], ncut, s, cut, draw, &t->rng);
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
        how = how ? how : cut_differ(t->a, &whole, &value[v->id]);
        if (how && v->def)
            fail_at(t, v->def, "the graph in parts", how);
    }
}

static void try_graph(CutTrial *t, const Graph *g, const Tensor *value)
{
    GraphCut c[2];
    Splitter s[2];
    const GraphCut *graph[] = {&c[0], &c[1]};
    int have = 0;
    for (int i = 0; i < 12 && !t->failure; i++) {
        if (!follow(t, g, &c[have], &s[have]))
            continue;
        run_parts(t, g, value, 1, &s[have], &graph[have]);
        t->done->graph++;
        if (!have++)
            continue;
        PartCut cuts[MAX_CUT];
        CutStop stop;
        bool legal = true;
        for (int j = 0, n = cut_nparts(2, s); j < n && legal; j++) {
            cut_parts(2, s, j, cuts);
            legal = cut_graph_together(g, t->a, 2, cuts, graph, &stop);
        }
        if (legal) {
            run_parts(t, g, value, 2, s, graph);
            t->done->graph_pair++;
        }
        have = 0;
    }
}

typedef struct One {
    CutTrial *t;
    Library *lib;
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

typedef struct Start {
    Arena *a;
    Library lib;
} Start;

static void read_library(void *arg)
{
    Start *s = arg;
    s->lib = library_read(s->a);
}

static void try_seed(Ctx *ctx, Library *lib, int seed, Counts *done)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    CutTrial t = {.a = a, .rng = {(uint64_t)seed, 0}, .done = done};
    One one = {&t, lib};
    if (ctx_try(ctx, run_trial, &one))
        t.failure = arena_strdup(a, ctx->message);
    if (!EXPECT(!t.failure) && test_nfail <= MOST_SHOWN)
        printf("random graph %d: %s\n", seed, t.failure);
    arena_free(a);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Start s = {arena_new(&ctx), {0}};
    Counts done = {0};
    int first = argc > 1 ? atoi(argv[1]) : 0;
    int count = argc > 1 ? first + 1 : getenv("TN_LONG") ? NGRAPH * LONG : NGRAPH;
    par_set_threads(1); /* all is small */
    if (!EXPECT(!ctx_try(&ctx, read_library, &s)))
        return test_report();
    for (int i = first; i < count; i++)
        try_seed(&ctx, &s.lib, i, &done);
    printf("note: %lld single cuts (%lld linear, %lld of loops), %lld pairs; %lld graphs in parts, "
           "%lld by two at once; %lld training steps\n",
           (long long)done.single, (long long)done.linear, (long long)done.loop,
           (long long)done.pair, (long long)done.graph, (long long)done.graph_pair,
           (long long)done.step);
    arena_free(s.a);
    ctx_end(&ctx);
    return test_report();
}
