/* The pass spmd on graphs that random ones (test_spmd.c) hardly meet: all ranks in lockstep, in
 * double, give what one rank gives, with as many gathers and order edges as are stated. Chains of
 * views and of sums take no more time and memory than short ones. */
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../shared/graphs.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>

enum { NVIEW = 32, NSUM = 40, SECONDS = 30, MAX_RULES = 3 };

static const double TOLERANCE = 1e-12;
#ifndef TN_SANITIZE
static const rlim_t MEMORY = (rlim_t)4 << 30;
#endif

static Ctx ctx;

typedef struct Shard {
    const char *name;
    const char *text;         /* of the graph, or */
    Graph *(*make)(Arena *a); /* what makes it */
    const char *passes;       /* before spmd */
    const char *ranks;        /* that make a rank's graph; NULL: spmd alone */
    int64_t accumulate;
    const char *mesh, *rule[MAX_RULES], *reshard;
    int gathers, after;  /* of a rank; 0 gathers: any number */
    const char *refused; /* why; NULL: it is not */
} Shard;

/* ---- graphs ---- */

#define SCALARS                                                                                   \
    "%lr: f64[] scalar \"lr\", %scale: f64[] scalar \"scale\", %apply: bool[] scalar \"apply\") " \
    "{\n"
#define UPDATE                                                          \
    "  %n: f64[10, 8] = sgd(%w, %dw, %lr, %scale, %apply)  optimizer\n" \
    "  return new \"w\" %n\n"                                           \
    "}\n"
#define PRODUCT(start, end)                                                          \
    "tenon 1\n"                                                                      \
    "graph g(%x: f64[12, 4] batch, %y: f64[4, 8] const \"y\", %w: f64[10, 8] param " \
    "\"w\", " SCALARS "  %m: f64[12, 8] = mm(%x, %y)  backward\n"                    \
    "  %dw: f64[10, 8] = slice(%m, dim=0, start=" #start ", end=" #end ")  backward\n" UPDATE
#define EMBEDDED                                                                                \
    "tenon 1\n"                                                                                 \
    "graph g(%i: i64[4] batch, %zero: i64[4] batch, %y: f64[4, 8] batch, %w: f64[10, 8] param " \
    "\"w\", " SCALARS                                                                           \
    "  %a0: f64[10, 8] = embedding_dense_backward(%y, %i, num_weights=10)  backward\n"

/* A gradient that is a sum of sums, of an embedding's in the end. */
static Graph *make_sums(Arena *a)
{
    Buf b = {.a = a};
    buf_add(&b, EMBEDDED);
    for (int i = 0; i < NSUM; i++)
        buf_printf(&b, "  %%a%d: f64[10, 8] = add(%%a%d, %%a%d)  backward\n", i + 1, i, i);
    buf_printf(&b, "  %%dw: f64[10, 8] = add(%%a%d, %%a0)  backward\n", NSUM);
    buf_add(&b, UPDATE);
    return graph_parse(a, b.text, "sums");
}

/* A product with a parameter seen through many views. */
static Graph *make_views(Arena *a)
{
    Buf b = {.a = a};
    buf_add(&b, "tenon 1\ngraph g(%x: f64[8, 8] batch, %v0: f64[8, 8] param \"w\") {\n");
    for (int i = 0; i < NVIEW; i++)
        buf_printf(&b, "  %%v%d = permute(%%v%d, dims=[1, 0])  forward\n", i + 1, i);
    buf_printf(&b, "  %%m = mm(%%x, %%v%d)  forward\n  %%l = sum(%%m)  loss\n", NVIEW);
    buf_add(&b, "  return loss %l\n}\n");
    return graph_parse(a, b.text, "views");
}

/* Features and classes that divide neither by 3 ranks nor by 9. */
static Graph *make_gpt2(Arena *a)
{
    ModelConfig c = *config_preset("gpt2");
    c.nlayer = 1;
    c.hidden = 60;
    c.nhead = c.nkv = 6;
    c.head_dim = 10;
    c.intermediate = 240;
    c.vocab = 128;
    c.npos = 33;
    c.dropout = 0;
    Graph *g = model_graph(a, &c, 18, 4, NULL);
    PassOptions o = pass_defaults();
    passes_run(g, "unfuse", &o, NULL, NULL);
    return graphs_widen(a, g);
}

#define POLICY_ON_LOGITS(policy, view, shape, weight)                                         \
    "tenon 1\n"                                                                               \
    "graph g(%x: f64[8, 6] batch, %y: i64[8] batch, %w: f64[" shape "] param \"w\") {\n" view \
    "  %n: i64[] = count_labels(%y)  forward\n"                                               \
    "  %h: f64[8, 5] = mm(%x, " weight ")  @\"head\" forward " policy "\n"                    \
    "  %c: f64[], %lse: f64[8] = cross_entropy(%h, %y, %n)  @\"head\" loss\n"                 \
    "  return loss %c\n"                                                                      \
    "}\n"
#define PADDED_LOGITS(word, policy)                                                          \
    {                                                                                        \
        .name = word " logits that ranks pad",                                               \
        .text = POLICY_ON_LOGITS(policy, "  %t = t(%w)  @\"head\" forward\n", "5, 6", "%t"), \
        .passes = "grad,canonicalize,cse,dce", .ranks = "align,spmd,remat", .mesh = "fsdp=4" \
    }

/* Microbatches that read a weight, which nodes before them form of parameters. */
#define FORMED(params, nodes)                                                           \
    .text = "tenon 1\n"                                                                 \
            "graph g(%x: f64[8, 4] batch, " params ") {\n" nodes                        \
            "  %h = mm(%x, %w)  @\"up\" forward\n"                                      \
            "  %u = tanh(%h)  @\"up\" forward\n"                                        \
            "  %t = t(%w)  @\"down\" forward\n"                                         \
            "  %y = mm(%u, %t)  @\"down\" forward\n"                                    \
            "  %k = gelu(%y)  loss\n"                                                   \
            "  %l = sum(%k)  loss\n"                                                    \
            "  return loss %l\n"                                                        \
            "}\n",                                                                      \
    .passes = "grad,accumulate,optimizer,settle,canonicalize,cse,dce", .accumulate = 2, \
    .ranks = "spmd,dce,remat"
#define PARAM(name, shape) "%" name ": f64[" shape "] param \"" name "\""
#define ADDED(i, j)        "  %s" #i " = add(%s" #j ", %b)  forward\n"

/* A convolution with its gradients. */
#define IMAGES(shape, attributes)                                                               \
    .text =                                                                                     \
        "tenon 1\n"                                                                             \
        "graph g(%x: f64[4, 6, 5, 5] batch, %w: f64[" shape "] param \"w\", %b: f64[8] param "  \
        "\"b\") {\n  %h = convolution(%x, %w, %b, stride=[2, 1], padding=[1, 0], dilation=[1, " \
        "1]" attributes ")  forward\n"                                                          \
        "  %k = gelu(%h)  loss\n"                                                               \
        "  %l = sum(%k)  loss\n"                                                                \
        "  return loss %l\n"                                                                    \
        "}\n",                                                                                  \
    .passes = "grad,canonicalize,cse,dce", .ranks = "spmd,dce"

static const Shard cases[] = {
    {.name = "images in parts of the batch", IMAGES("8, 6, 3, 3", ""), .mesh = "dp=2"},
    {.name = "output channels", IMAGES("8, 6, 3, 3", ""), .mesh = "tp=2", .rule = {"w=0:tp"}},
    {.name = "input channels", IMAGES("8, 6, 3, 3", ""), .mesh = "tp=2", .rule = {"w=1:tp"}},
    {.name = "groups of channels",
     IMAGES("8, 3, 3, 3", ", groups=2"),
     .mesh = "dp=2,tp=2",
     .rule = {"w=0:tp", "b=0:tp"}},
    {.name = "channels of a transposed convolution",
     IMAGES("6, 4, 3, 3", ", transposed=true, groups=2"),
     .mesh = "tp=2",
     .rule = {"w=1:tp"}},
    PADDED_LOGITS("saved", "must_save"),
    PADDED_LOGITS("computed again", "must_recompute"),
    PADDED_LOGITS("perhaps computed again", "prefer_recompute"),
    PADDED_LOGITS("offloaded", "offload"),
    {.name = "saved logits of a weight that is cut along its columns",
     .text = POLICY_ON_LOGITS("must_save", "", "6, 5", "%w"),
     .passes = "grad,canonicalize,cse,dce",
     .ranks = "align,spmd,remat",
     .mesh = "fsdp=4",
     .rule = {"w=1:fsdp"}},
    {.name = "a loop of the forward that computes on a gathered parameter",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 6] batch, %w: f64[6, 6] param \"w\") {\n"
             "  %l: f64[] = loop(n=2, slice %c: f64[4, 6] = %x axis 0, whole %v: f64[6, 6] = %w) "
             "-> (sum f64)  loss {\n"
             "    %a = tanh(%v)  forward\n"
             "    %s = _softmax(%a, dim=0)  forward\n"
             "    %h = mm(%c, %s)  forward\n"
             "    %y = sigmoid(%h)  forward\n"
             "    %k = sum(%y)  loss\n"
             "    yield %k\n"
             "  }\n"
             "  return loss %l\n"
             "}\n",
     .passes = "grad,dce",
     .ranks = "spmd,remat",
     .mesh = "fsdp=2"},
    {.name = "a split parameter in microbatches",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 2] batch, %w: f64[4, 2] param \"w\") {\n"
             "  %a: f64[2, 2], %b: f64[2, 2] = split(%w, split_sizes=[2, 2])  forward\n"
             "  %y = mm(%x, %a)  forward\n"
             "  %z = mm(%y, %b)  forward\n"
             "  %t = tanh(%z)  forward\n"
             "  %l = sum(%t)  loss\n"
             "  return loss %l\n"
             "}\n",
     .passes = "grad,accumulate,canonicalize,cse,dce",
     .accumulate = 2,
     .ranks = "spmd,remat",
     .mesh = "fsdp=2",
     .rule = {"w=1:fsdp"}},
    {.name = "a transpose of a parameter's part in microbatches that see both",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 3] batch, %w: f64[4, 6] param \"w\") {\n"
             "  %a: f64[2, 6], %b: f64[2, 6] = split(%w, split_sizes=[2, 2])  forward\n"
             "  %s = view(%b, size=[4, 3])  forward\n"
             "  %t = t(%s)  forward\n"
             "  %y = mm(%x, %t)  forward\n"
             "  %z = mm(%y, %s)  forward\n"
             "  %u = tanh(%z)  forward\n"
             "  %l = sum(%u)  loss\n"
             "  return loss %l\n"
             "}\n",
     .passes = "grad,accumulate,canonicalize,cse,dce",
     .accumulate = 2,
     .ranks = "spmd,remat",
     .mesh = "fsdp=2"},
    {.name = "microbatches that see what is computed of a padded parameter's view",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 6] batch, %w: f64[5, 6] param \"w\") {\n"
             "  %s = slice(%w, dim=0, start=1, end=4)  forward\n"
             "  %t = t(%s)  forward\n"
             "  %a = gelu(%t)  forward\n"
             "  %y = mm(%x, %a)  forward\n"
             "  %u = tanh(%y)  forward\n"
             "  %l = sum(%u)  loss\n"
             "  return loss %l\n"
             "}\n",
     .passes = "grad,accumulate,canonicalize,cse,dce",
     .accumulate = 2,
     .ranks = "spmd,remat",
     .mesh = "fsdp=2"},
    {.name =
         "a weight of parameters that are cut alike: made before microbatches, gathered in them",
     FORMED(PARAM("a", "4, 4") ", " PARAM("b", "4, 4"),
            "  %v = tanh(%b)  forward\n  %w = mul(%a, %v)  forward\n"),
     .mesh = "fsdp=2",
     .gathers = 3},
    {.name = "a weight of parameters that are cut along different axes, and a constant",
     FORMED(PARAM("a", "4, 4") ", " PARAM("b", "4, 4"),
            "  %c = full(size=[], fill_value=0.5, dtype=f64)  forward\n"
            "  %v = mul(%b, %c)  forward\n  %w = mul(%a, %v)  forward\n"),
     .mesh = "fsdp=2",
     .rule = {"a=0:fsdp", "b=1:fsdp"}},
    {.name = "a weight to which a row is added",
     FORMED(PARAM("a", "4, 4") ", " PARAM("b", "4"), "  %w = add(%a, %b)  forward\n"),
     .mesh = "fsdp=2"},
    {.name = "a weight to which a row is added, on ranks that it does not divide by",
     FORMED(PARAM("a", "4, 6") ", " PARAM("b", "6"), "  %w = add(%a, %b)  forward\n"),
     .mesh = "fsdp=4",
     .rule = {"a=1:fsdp"}},
    {.name = "a weight that is joined of three",
     FORMED(PARAM("a", "4, 4") ", " PARAM("b", "4, 2") ", " PARAM("d", "4, 2"),
            "  %v = cat(%b, %d, dim=1)  forward\n  %w = cat(%a, %v, dim=1)  forward\n"),
     .mesh = "fsdp=2",
     .rule = {"b=1:fsdp"}},
    {.name = "a weight that takes gathering more than 16 times its bytes",
     FORMED(PARAM("a", "80, 4") ", " PARAM("b", "4"),
            "  %s = slice(%a, end=4)  forward\n  %w = add(%s, %b)  forward\n"),
     .mesh = "fsdp=2",
     .refused = "where weights of at most 16 nodes and 16 times their bytes are formed"},
    {.name = "a weight of more than 16 nodes",
     FORMED(PARAM("a", "4, 4") ", " PARAM("b", "4"),
            "  %s0 = add(%a, %b)  forward\n" ADDED(1, 0) ADDED(2, 1) ADDED(3, 2) ADDED(4, 3)
                ADDED(5, 4) ADDED(6, 5) ADDED(7, 6) ADDED(8, 7) ADDED(9, 8) ADDED(10, 9)
                    ADDED(11, 10) ADDED(12, 11) ADDED(13, 12) ADDED(14, 13) ADDED(15, 14)
                        ADDED(16, 15) "  %w = tanh(%s16)  forward\n"),
     .mesh = "fsdp=2",
     .rule = {"b=0:fsdp"},
     .refused = "where weights of at most 16 nodes and 16 times their bytes are formed"},
    {.name = "batch inputs of different rows where tp alone cuts",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 6] batch, %z: f64[3, 6] batch, %w: f64[4, 6] param "
             "\"mlp.up_proj.weight\") {\n"
             "  %t = t(%w)  forward\n"
             "  %h = mm(%x, %t)  forward\n"
             "  %k = mm(%z, %t)  forward\n"
             "  %a = sum(%h)  loss\n"
             "  %b = sum(%k)  loss\n"
             "  %l = mul(%a, %b)  loss\n"
             "  return loss %l\n"
             "}\n",
     .passes = "grad",
     .mesh = "dp=1,tp=2"},
    {.name = "what only the backward gathers",
     .text =
         "tenon 1\n"
         "graph g(%x: f64[8, 4] batch, %w: f64[4, 8] param \"w\", %v: f64[8, 8] param \"v\") {\n"
         "  %s = mul(%w, %w)  forward\n"
         "  %l = sum(%s)  loss\n"
         "  %r = mm(%x, %w)  backward\n"
         "  return loss %l, %r\n"
         "}\n",
     .ranks = "spmd,remat",
     .mesh = "fsdp=2",
     .reshard = "never",
     .gathers = 3},
    {.name = "a gradient that is the last rows of a product",
     .text = PRODUCT(2, 12),
     .mesh = "fsdp=4"},
    {.name = "a gradient that is the first rows of a product",
     .text = PRODUCT(0, 10),
     .mesh = "fsdp=4"},
    {.name = "a gradient that is a sum of sums", .make = make_sums, .mesh = "fsdp=4"},
    {.name = "a gradient that is a sum of other shapes",
     .text = EMBEDDED
     "  %a1: f64[1, 8] = embedding_dense_backward(%y, %zero, num_weights=1)  backward\n"
     "  %dw: f64[10, 8] = add(%a0, %a1)  backward\n" UPDATE,
     .mesh = "fsdp=4"},
    {.name = "log-sum-exp of rows that are infinite",
     .text = "tenon 1\n"
             "graph g(%x: f64[4, 8] batch, %infinite: f64[4, 1] batch) {\n"
             "  %y = add(%x, %infinite)  forward\n"
             "  %l = logsumexp(%y, dim=[1])  forward\n"
             "  return %l\n"
             "}\n",
     .mesh = "x=2",
     .rule = {"x=1:x"}},
    {.name = "a parameter that a loop sees twice",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 4] batch, %w: f64[4, 4] param \"w\") {\n"
             "  %s: f64[] = loop(n=2, slice %c: f64[4, 4] = %x axis 0, whole %v: f64[4, 4] = %w, "
             "whole %u: f64[4, 4] = %w) -> (sum f64)  loss {\n"
             "    %m = mm(%c, %v)  forward\n"
             "    %k = mm(%m, %u)  forward\n"
             "    %a = sum(%k)  loss\n"
             "    yield %a\n"
             "  }\n"
             "  return loss %s\n"
             "}\n",
     .mesh = "fsdp=2",
     .reshard = "never",
     .gathers = 1},
    {.name = "a node after another",
     .text = "tenon 1\n"
             "graph g(%x: f64[4, 8] batch, %w: f64[8, 8] param \"w\") {\n"
             "  %a: f64[4, 8] = tanh(%x)  forward\n"
             "  %b: f64[4, 8] = mm(%x, %w)  forward\n"
             "  %c: f64[4, 8] = tanh(%b)  forward after=%a\n"
             "  %s: f64[4, 8] = add(%a, %c)  forward\n"
             "  %l: f64[] = sum(%s)  loss\n"
             "  return loss %l\n"
             "}\n",
     .mesh = "fsdp=2",
     .after = 1},
    {.name = "views of views", .make = make_views, .mesh = "fsdp=2", .gathers = 1},
    {.name = "a loop's sum whose cuts do not mix",
     .text = "tenon 1\n"
             "graph g(%x: f64[8, 16] batch, %u: f64[16, 8] param \"u\", %w: f64[8, 4] param "
             "\"w\", %t: f64[8, 4] batch) {\n"
             "  %h: f64[8, 8] = mm(%x, %u)  @\"layers.0\" forward\n"
             "  %a: f64[8, 8] = tanh(%h)  @\"layers.0\" forward\n"
             "  %o: f64[8, 4] = mm(%a, %w)  @\"layers.1\" forward\n"
             "  %p: f64[8, 4] = mul(%o, %t)  @\"loss\" loss\n"
             "  %l: f64[] = sum(%p)  @\"loss\" loss\n"
             "  return loss %l\n"
             "}\n",
     .passes = "grad,accumulate,optimizer,dce",
     .accumulate = 2,
     .mesh = "fsdp=2,tp=2",
     .rule = {"u=1:tp", "w=0:fsdp"}},
    {.name = "a padded model in microbatches",
     .make = make_gpt2,
     .passes = "grad,accumulate,optimizer,canonicalize,cse,dce",
     .accumulate = 2,
     .mesh = "fsdp=3,tp=3"},
};

/* ---- what is asked of them ---- */

/* Every update is applied; what is called zero or infinite is. */
static void set_inputs(const Graph *g, const Tensor *in)
{
    for (int i = 0; i < g->nin; i++)
        for (int64_t e = 0, n = tensor_nelem(&in[i]); e < n; e++)
            if (in[i].dtype == BOOL || !strcmp(g->in[i].v->name, "zero"))
                tensor_set(&in[i], e, in[i].dtype == BOOL);
            else if (!strcmp(g->in[i].v->name, "infinite"))
                tensor_set(&in[i], e, e == 1 ? -INFINITY : e == 2 ? INFINITY : 0);
}

static int count_after(const Graph *g)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next)
        count += n->nafter;
    return count;
}

static Ranks make_ranks(Arena *a, const Graph *whole, PassOptions o, const char *passes)
{
    int n = (int)mesh_nranks(mesh_parse(&ctx, a, o.mesh));
    Graph **g = NEWN(a, Graph *, n);
    for (int r = 0; r < n; r++) {
        g[r] = graph_clone(a, whole);
        o.rank = r;
        passes_run(g[r], passes, &o, NULL, NULL);
        graph_verify(g[r]);
    }
    return ranks_of(a, n, g);
}

static void check_values(Arena *a, const Shard *x, const Graph *g, const Ranks *r)
{
    Tensor *in = graphs_inputs(a, g), *joined = NEWN(a, Tensor, g->nout);
    set_inputs(g, in);
    Tensor *want = graphs_interpret(a, g, in);
    const char *why =
        ranks_together(r, g, ranks_interpret(r, ranks_inputs(r, g, in), NULL), joined);
    if (!EXPECT(!why)) {
        printf("%s: %s\n", x->name, why);
        return;
    }
    for (int k = 0; k < g->nout; k++) {
        double far = graphs_distance(&joined[k], &want[k]);
        if (!EXPECT(far <= TOLERANCE))
            printf("%s: output %d (%%%s) is %g off\n", x->name, k, g->out[k].v->name, far);
    }
}

typedef struct Job {
    Arena *a;
    const Shard *x;
} Job;

static void check_case(void *arg)
{
    const Job *job = arg;
    const Shard *x = job->x;
    Graph *g = x->make ? x->make(job->a) : graph_parse(job->a, x->text, x->name);
    PassOptions o = pass_defaults();
    o.accumulate = MAX(x->accumulate, 1);
    if (x->passes)
        passes_run(g, x->passes, &o, NULL, NULL);
    o.mesh = x->mesh;
    o.reshard = x->reshard;
    o.shardings = (Globs){x->rule, 0};
    while (o.shardings.count < MAX_RULES && x->rule[o.shardings.count])
        o.shardings.count++;
    Ranks r = make_ranks(job->a, g, o, x->ranks ? x->ranks : "spmd");
    int gathers = graphs_count(r.g[0], "all_gather_into_tensor"), after = count_after(r.g[0]);
    if (!EXPECT(!x->gathers || gathers == x->gathers) || !EXPECT(after == x->after))
        printf("%s: %d gathers, %d order edges\n", x->name, gathers, after);
    check_values(job->a, x, g, &r);
}

/* What takes more is not linear. */
static void set_limits(void)
{
    CHECK(!setrlimit(RLIMIT_CPU, &(struct rlimit){SECONDS, SECONDS}));
#ifndef TN_SANITIZE
    CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){MEMORY, MEMORY}));
#endif
}

int main(void)
{
    par_set_threads(1); /* all is small */
    set_limits();
    for (int i = 0; i < LEN(cases); i++) {
        Job job = {arena_new(&ctx), &cases[i]};
        CHECK(job.a);
        const char *refused = cases[i].refused;
        bool failed = ctx_try(&ctx, check_case, &job);
        if (!EXPECT(refused ? failed && strstr(ctx.message, refused) : !failed))
            printf("%s: %s\n", cases[i].name, failed ? ctx.message : "not refused");
        arena_free(job.a);
    }
    ctx_end(&ctx);
    return test_report();
}
