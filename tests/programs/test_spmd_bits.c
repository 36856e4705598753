/* dp=n and fsdp=n give the bits of one rank with --accumulate n: random graphs over the rows of a
 * batch, whose parameters are computed with before they are read, as steps with clipping and
 * AdamW, by the ops' references in double. In microbatches, fsdp=n gathers parameters in the loop
 * (--reshard always), which then forms weights of them, or before it (never), with the same bits.
 *
 * `test_spmd_bits SEED` runs one graph; `test_spmd_bits SEED show` prints it, and that of rank 0
 * of each mesh. TN_LONG: ten times as many. */
#include "../shared/gen.h"
#include "../shared/interp.h"
#include "../shared/ranks_show.h"
#include "../shared/spmd_made.h"
#include "../shared/test.h"

enum { NGRAPH = 300, QUICK = 50, LONG = 10, MOST_SHOWN = 20 };

static const char *const kinds[] = {"dp", "fsdp"};

typedef struct Bits {
    Arena *a;
    Library *lib;
    Rng rng;
    bool show;
    int64_t rows, n; /* of which each of n ranks has a part */
    Gen *x;
    Tensor *want, *in;
    Graph *one; /* of one rank, whose batch is whole */
    int64_t *run, *refused, *loops;
} Bits;

static double input_value(Rng *r, const Port *p)
{
    double u = rng_uniform(r);
    return p->role == ROLE_STEP ? 1 : p->role == ROLE_STATE ? 0.01 * u : u;
}

/* Those of the forward, and what the optimizer reads, by name. */
static Tensor *fill_inputs(const Bits *t, const Graph *g)
{
    Tensor *in = NEWN(t->a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        Rng r = {t->rng.seed + 1, (uint64_t)i << 32};
        for (int k = 0; k < t->x->b.g->nin && !in[i].data; k++)
            if (!strcmp(t->x->b.g->in[k].v->name, g->in[i].v->name))
                in[i] = t->x->in[k];
        if (in[i].data)
            continue;
        in[i] = tensor_new(t->a, &g->in[i].v->type, 0);
        for (int64_t e = 0; e < tensor_nelem(&in[i]); e++)
            tensor_set(&in[i], e, input_value(&r, &g->in[i]));
    }
    return in;
}

static Graph *compile(const Bits *t, PassOptions *o)
{
    Graph *g = graph_clone(t->a, t->x->b.g);
    passes_run(g, "grad,accumulate,optimizer,settle,canonicalize,cse,dce,align,cse,dce,spmd,dce", o,
               NULL, NULL);
    if (o->mesh)
        passes_run(g, "remat", o, NULL, NULL);
    return g;
}

/* What n ranks give. */
static Tensor *run_mesh(const Bits *t, PassOptions *o)
{
    Graph **g = NEWN(t->a, Graph *, t->n);
    Tensor *got = NEWN(t->a, Tensor, t->one->nout);
    for (o->rank = 0; o->rank < t->n; o->rank++)
        g[o->rank] = compile(t, o);
    Ranks r = ranks_of(t->a, (int)t->n, g);
    if (t->show)
        ranks_print(o->mesh, t->a, g[0]);
    Tensor **out = ranks_interpret(&r, ranks_inputs(&r, t->one, t->in), NULL);
    const char *why = ranks_together(&r, t->one, out, got);
    if (why)
        fail(arena_ctx(t->a), TN_FAIL, "%s: %s", o->mesh, why);
    return got;
}

static void compare(const Bits *t, const Tensor *got, const Tensor *want, const char *how)
{
    for (int k = 0; k < t->one->nout; k++)
        if (!tensor_same_bits(&got[k], &want[k]))
            fail(arena_ctx(t->a), TN_FAIL, "output %%%s has other bits %s", t->one->out[k].v->name,
                 how);
}

static void compare_mesh(const Bits *t, const char *kind)
{
    PassOptions o = pass_defaults();
    o.mesh = arena_printf(t->a, "%s=%lld", kind, (long long)t->n);
    compare(t, run_mesh(t, &o), t->want,
            arena_printf(t->a, "on %s than with --accumulate %lld", o.mesh, (long long)t->n));
}

/* Where the ranks can share the rows of two microbatches. */
static void compare_reshard(const Bits *t)
{
    PassOptions o = pass_defaults();
    if (t->rows % (2 * t->n))
        return;
    o.mesh = arena_printf(t->a, "fsdp=%lld", (long long)t->n);
    o.accumulate = 2;
    o.reshard = "never";
    Tensor *never = run_mesh(t, &o);
    o.reshard = "always";
    compare(t, run_mesh(t, &o), never,
            arena_printf(t->a, "on %s --accumulate 2 than with --reshard never", o.mesh));
    ++*t->loops;
}

static void run_one(void *arg)
{
    Bits *t = arg;
    PassOptions o = pass_defaults();
    o.accumulate = t->n;
    Graph *g = compile(t, &o);
    o.accumulate = 1;
    t->one = compile(t, &o);
    t->in = fill_inputs(t, t->one);
    t->want = NEWN(t->a, Tensor, g->nout);
    if (t->show)
        ranks_print("one rank in microbatches", t->a, g);
    interp_graph(t->a, g, fill_inputs(t, g), t->want);
}

static void run_meshes(void *arg)
{
    const Bits *t = arg;
    for (int i = 0; i < LEN(kinds); i++)
        compare_mesh(t, kinds[i]);
    compare_reshard(t);
}

static void try_one(Ctx *ctx, Bits t)
{
    t.a = arena_new(ctx);
    CHECK(t.a);
    t.x = gen_formed(t.a, t.lib, &t.rng, 4 + (int)rng_below(&t.rng, 12), &t.rows);
    t.n = t.rows % 3 ? 2 : 3;
    if (t.rows % t.n)
        t.n = t.rows;
    if (ctx_try(ctx, run_one, &t)) /* rows cannot be taken apart */
        ++*t.refused;
    else if (!EXPECT(!ctx_try(ctx, run_meshes, &t)) && test_nfail <= MOST_SHOWN)
        printf("random graph %llu: %s\n", (unsigned long long)t.rng.seed, ctx->message);
    ++*t.run;
    arena_free(t.a);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Library lib;
    int64_t run = 0, refused = 0, loops = 0;
    int first = argc > 1 ? atoi(argv[1]) : 0;
    int count = argc > 1             ? first + 1
                : getenv("TN_LONG")  ? NGRAPH * LONG
                : getenv("TN_QUICK") ? QUICK
                                     : NGRAPH;
    par_set_threads(1); /* all is small */
    if (!EXPECT(library_try(&ctx, a, &lib)))
        return test_report();
    for (int i = first; i < count; i++)
        try_one(&ctx, (Bits){.lib = &lib,
                             .rng = {(uint64_t)i, 0},
                             .show = argc > 2,
                             .run = &run,
                             .refused = &refused,
                             .loops = &loops});
    printf("note: %lld graphs, of which %lld cannot be taken apart; %lld in microbatches too\n",
           (long long)run, (long long)refused, (long long)loops);
    EXPECT(argc > 1 || refused * 10 < run);
    EXPECT(argc > 1 || loops * 20 > run);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
