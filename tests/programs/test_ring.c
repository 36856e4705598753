/* Gathers and reductions in parts beside products (--overlap chunked): the step that the whole
 * calls make, within rounding, with equal values on all ranks that have them; on planned arenas the
 * bits of the interpreter; with ranks as threads and late messages those of the lockstep. So are
 * sums that comm makes in several slices. */
#include "../shared/test.h"

#include "../../src/machine/machine.h"
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../../src/plan/plan.h"
#include "../shared/gen.h"
#include "../shared/graphs.h"
#include "../shared/race.h"
#include "../shared/ranks_run.h"

#include <math.h>

enum { ROWS = 8, SEQ = 4, STEPS = 2 };

static Ctx ctx;

typedef struct Trial {
    const char *preset, *mesh, *reshard;
    int64_t accumulate, seed;
    /* what is made of it */
    Arena *a;
    PassOptions o;
    Graph *whole; /* of one rank */
    Ranks plain, ring;
    int calls; /* that are gone from `ring` */
    Tensor **in, **want;
} Trial;

static Ranks compile(Trial *x)
{
    PassOptions o = x->o;
    int n = (int)mesh_nranks(mesh_parse(&ctx, x->a, x->mesh));
    Graph **g = NEWN(x->a, Graph *, n);
    o.mesh = x->mesh;
    for (o.rank = 0; o.rank < n; o.rank++) {
        g[o.rank] = graph_clone(x->a, x->whole);
        passes_run(g[o.rank], "spmd,remat,bucket", &o, NULL, NULL);
    }
    return ranks_of(x->a, n, g);
}

static void make(Trial *x)
{
    ModelConfig c = graphs_small(x->preset);
    x->o = pass_defaults();
    x->o.reshard = x->reshard;
    x->o.accumulate = x->accumulate;
    x->o.device = device_at(DEVICE_cpu);
    x->o.prices = machine_get(x->a, "h100", 1);
    x->whole = model_graph(x->a, &c, ROWS, SEQ, NULL);
    passes_run(x->whole, "unfuse,grad,precision,accumulate,optimizer,canonicalize,cse,dce", &x->o,
               NULL, NULL);
    x->plain = compile(x);
    x->ring = ranks_ringed(&x->plain, &x->calls);
    x->in = ranks_inputs(&x->ring, x->whole, graphs_inputs(x->a, x->whole));
}

static int count_op(const Graph *g, const char *op)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            count += count_op(n->region->body[b], op);
        count += !strcmp(n->op->name, op);
    }
    return count;
}

static void expect_fewer(const Trial *x, const char *op)
{
    int whole = count_op(x->plain.g[0], op), left = count_op(x->ring.g[0], op);
    if (!EXPECT(left < whole))
        printf("  %s on %s: %d of %d calls of %s are left\n", x->preset, x->mesh, left, whole, op);
}

/* ---- against whole calls ---- */

static double worst_of(const Tensor *x, const Tensor *y)
{
    double most = 0, worst = 0;
    for (int64_t i = 0; i < tensor_nelem(x); i++) {
        most = fmax(most, fabs(tensor_get(y, i)));
        worst = fmax(worst, fabs(tensor_get(x, i) - tensor_get(y, i)));
    }
    return most > 0 ? worst / most : worst;
}

static Tensor *together(const Trial *x, const Ranks *r, Tensor *const *out)
{
    Tensor *y = NEWN(x->a, Tensor, x->whole->nout);
    const char *why = ranks_together(r, x->whole, out, y);
    if (why)
        fail(&ctx, TN_FAIL, "%s", why);
    return y;
}

static void compare_values(const Trial *x, Tensor *const *got)
{
    Tensor **out = ranks_interpret(&x->plain, x->in, NULL);
    const Tensor *want = together(x, &x->plain, out), *made = together(x, &x->ring, got);
    for (int k = 0; k < x->whole->nout; k++)
        if (dtype_float(want[k].dtype) && worst_of(&made[k], &want[k]) > 1e-4)
            fail(&ctx, TN_FAIL, "%%%s: %.2g from that of whole calls", x->whole->out[k].v->name,
                 worst_of(&made[k], &want[k]));
}

static void compare_arenas(const Trial *x, Tensor *const *want)
{
    Tensor **got = ranks_execute(&x->ring, device_at(DEVICE_cpu), x->in);
    for (int r = 0; r < x->ring.n; r++)
        for (int k = 0; k < x->whole->nout; k++)
            if (!tensor_same_bits(&got[r][k], &want[r][k]))
                fail(&ctx, TN_FAIL, "rank %d, %%%s: other bits on planned arenas", r,
                     x->whole->out[k].v->name);
}

/* ---- as threads ---- */

static void compare_rank(Arena *a, Comm *c, void *arg)
{
    const Trial *x = arg;
    int rank = comm_rank(c);
    const Graph *g = x->ring.g[rank];
    Program *p = ranks_program(a, g, NULL, c, true);
    Tensor *out = ranks_outputs(a, g);
    for (int s = 0; s < STEPS; s++) {
        ranks_write(p, x->in[rank], true);
        ranks_step(p);
        ranks_read(p, out);
        for (int k = 0; k < g->nout; k++)
            if (!tensor_same_bits(&out[k], &x->want[rank][k]))
                fail(arena_ctx(a), TN_FAIL, "output %%%s: other bits than in lockstep",
                     g->out[k].v->name);
    }
}

static void compare_threads(Trial *x)
{
    static const CommOptions delays[] = {{.delay = 0}, {.delay = 300, .seed = 1}};
    Fleet *fleet = fleet_make(&x->ring, true);
    fleet_write(fleet, x->in, true);
    fleet_run(fleet);
    x->want = fleet_read(fleet, x->a);
    for (int i = 0; i < LEN(delays); i++) {
        const char *why = ranks_threads(x->a, x->ring.n, &delays[i], compare_rank, x);
        if (why)
            fail(&ctx, TN_FAIL, "delay %lld: %s", (long long)delays[i].delay, why);
    }
}

static void run_model(void *arg)
{
    Trial *x = arg;
    make(x);
    expect_fewer(x, "all_gather_into_tensor");
    expect_fewer(x, "reduce_scatter_tensor");
    EXPECT(x->calls > 0 && count_op(x->ring.g[0], "permute_tensor") > x->calls);
    Tensor **got = ranks_interpret(&x->ring, x->in, NULL);
    compare_values(x, got);
    compare_arenas(x, got);
    for (int r = 0; r < x->ring.n; r++)
        passes_run(x->ring.g[r], "fuse", &x->o, NULL, NULL);
    compare_threads(x);
}

/* ---- Llama-3 8B ---- */

static const Plan *plan_8b(const Trial *x, const char *overlap)
{
    PassOptions o = pass_defaults();
    ModelConfig c = *config_preset(x->preset);
    o.dtype = BF16;
    o.mesh = x->mesh;
    o.recompute = "selective";
    o.machine = "h100";
    o.overlap = overlap;
    Graph *g = model_graph(x->a, &c, 32, 8192, NULL);
    passes_run(g, "default", &o, NULL, NULL);
    PlanFor to = {.machine = machine_get(x->a, "h100", 1), .overlap = true};
    return plan_ordered(x->a, g, &to);
}

/* The forward's calls along tp run beside products, in no more than 6 GiB. */
static void run_8b(void *arg)
{
    const Trial *x = arg;
    const Plan *whole = plan_8b(x, "on"), *parts = plan_8b(x, "chunked");
    int64_t peak = parts->space[SPACE_MAIN].peak;
    printf("note: test_ring: %s on %s: %.1f ms and %.0f MiB, %.1f ms with whole calls\n", x->preset,
           x->mesh, 1e3 * parts->est.step, (double)peak / 0x1p20, 1e3 * whole->est.step);
    EXPECT(parts->est.step <= 0.263 && parts->est.step <= whole->est.step - 0.01);
    EXPECT(peak <= 6 * (INT64_C(1) << 30) && peak <= parts->overlap_cap);
}

/* ---- sums of several slices ---- */

static const char *const sums =
    "tenon 1\ngraph sums mesh(tp=2) at(%d) (%%x: f32[600000], %%y: bf16[300001], %%z: f32[6]) {\n"
    "  %%a: f32[300000], %%b: f32[3] = reduce_scatter_tensor(%%x, %%z, reduce_op=\"sum\", "
    "group_size=2, group=\"tp\")  forward\n"
    "  %%aw: f32[300000] = wait_tensor(%%a, %%x)  forward\n"
    "  %%bw: f32[3] = wait_tensor(%%b, %%z)  forward\n"
    "  %%c: bf16[300001] = all_reduce(%%y, reduce_op=\"sum\", group=\"tp\")  forward\n"
    "  %%cw: bf16[300001] = wait_tensor(%%c, %%y)  forward\n"
    "  return %%aw, %%bw, %%cw\n}\n";

static Tensor *random_inputs(Arena *a, const Graph *g, uint32_t rank)
{
    Tensor *in = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        in[i] = tensor_new(a, &g->in[i].v->type, 0);
        for (int64_t e = 0; e < tensor_nelem(&in[i]); e++)
            tensor_set(&in[i], e, random_uniform(5, rank, (uint32_t)i, (uint64_t)e) - 0.5);
    }
    return in;
}

static void run_sums(void *arg)
{
    Trial *x = arg;
    Graph **g = NEWN(x->a, Graph *, 2);
    x->in = NEWN(x->a, Tensor *, 2);
    for (int r = 0; r < 2; r++) {
        g[r] = graph_parse(x->a, arena_printf(x->a, sums, r), "sums");
        x->in[r] = random_inputs(x->a, g[r], (uint32_t)r);
    }
    x->ring = ranks_of(x->a, 2, g);
    compare_threads(x);
}

/* ---- random graphs ---- */

/* One rank's graph, the same on all but for its coordinates. */
typedef struct Random {
    Rng rng;
    Build b;
    Mesh *mesh;
    const char *group; /* of the collectives that may go around a ring */
    int64_t ranks;
    int ninput;
} Random;

static Value *random_input(Random *x, int64_t rows, int64_t columns)
{
    const char *name = arena_printf(x->b.g->a, "x%d", x->ninput++);
    return graph_input(x->b.g, name, type_make(F64, 2, (int64_t[]){rows, columns}), ROLE_NONE,
                       NULL);
}

/* A product by a weight, which may be transposed, or have a bias. */
static Value *random_product(Random *x, Value *v, int64_t columns)
{
    int64_t k = v->type.dim[1];
    bool turned = rng_chance(&x->rng, 0.5);
    Value *w = turned ? random_input(x, columns, k) : random_input(x, k, columns);
    w = turned ? emit1(&x->b, "t", IN(w), NOATTRS) : w;
    if (rng_chance(&x->rng, 0.7))
        return emit1(&x->b, "mm", IN(v, w), NOATTRS);
    return emit1(&x->b, "addmm", IN(random_input(x, 1, columns), v, w), NOATTRS);
}

static Value *random_call(Random *x, const char *op, Value *v)
{
    AttrArg attrs[4] = {A_STR("group", x->group), A_INT("group_size", x->ranks)};
    if (!strcmp(op, "reduce_scatter_tensor"))
        attrs[2] = A_STR("reduce_op", "sum");
    return emit1(&x->b, "wait_tensor", IN(emit1(&x->b, op, IN(v), attrs), v), NOATTRS);
}

/* Rows of all ranks, products with them, a reduction; what is gathered may have other readers. */
static Value *random_layer(Random *x, Value *v)
{
    int64_t columns = v->type.dim[1], inside = 1 + rng_below(&x->rng, 6);
    Value *all = random_call(x, "all_gather_into_tensor", v);
    Value *y = random_product(x, all, inside);
    if (rng_chance(&x->rng, 0.5))
        y = emit1(&x->b, "mul", IN(y, random_product(x, all, inside)), NOATTRS);
    if (rng_chance(&x->rng, 0.5))
        graph_output(x->b.g, emit1(&x->b, "sum", IN(all), ATTRS(A_INTS("dim", 1, (int64_t[]){0}))),
                     ROLE_NONE, NULL);
    if (rng_chance(&x->rng, 0.2))
        graph_output(x->b.g, all, ROLE_NONE, NULL);
    Value *z = random_product(x, y, columns);
    for (int i = 0; i < 2 && rng_chance(&x->rng, 0.3); i++)
        z = emit1(&x->b, "add", IN(random_product(x, y, columns), z), NOATTRS);
    if (rng_chance(&x->rng, 0.2))
        graph_output(x->b.g, z, ROLE_NONE, NULL);
    z = random_call(x, "reduce_scatter_tensor", z);
    return rng_chance(&x->rng, 0.7) ? emit1(&x->b, "add", IN(v, z), NOATTRS) : z;
}

static Graph *random_graph(Arena *a, uint64_t seed, int64_t rank, int *n)
{
    static const char *const meshes[] = {"tp=2",      "tp=3",           "tp=4",     "dp=2,tp=2",
                                         "tp=2,dp=2", "dp=2,tp=2,sp=2", "sp=2,tp=4"};
    Random x = {.rng = {seed, 0}};
    x.mesh = mesh_parse(&ctx, a, meshes[rng_below(&x.rng, LEN(meshes))]);
    x.group = mesh_axis(x.mesh, "sp") >= 0 && rng_chance(&x.rng, 0.5) ? "sp,tp" : "tp";
    *n = (int)mesh_nranks(x.mesh);
    mesh_set_rank(x.mesh, rank);
    x.b.g = graph_new(a, "random");
    x.b.g->mesh = x.mesh;
    int axes[MAX_MESH], naxes = group_axes(x.mesh, x.group, axes);
    x.ranks = group_nranks(x.mesh, naxes, axes);
    Value *v = random_input(&x, 1 + rng_below(&x.rng, 4), 1 + rng_below(&x.rng, 8));
    for (int64_t i = rng_below(&x.rng, 3); i >= 0; i--)
        v = random_layer(&x, v);
    graph_output(x.b.g, v, ROLE_NONE, NULL);
    return x.b.g;
}

static int64_t nringed;

/* A ring gives in double what whole calls give; on planned arenas, of one memory or
 * two, with other calls joined by chance, the bits of the interpreter. */
static void run_random(void *arg)
{
    Trial *x = arg;
    int n = 1, joined;
    Graph *g[8];
    for (int r = 0; r < n; r++)
        g[r] = random_graph(x->a, (uint64_t)x->seed, r, &n);
    x->plain = ranks_of(x->a, n, g);
    x->ring = ranks_ringed(&x->plain, &x->calls);
    nringed += x->calls > 0;
    x->in = NEWN(x->a, Tensor *, n);
    for (int r = 0; r < n; r++)
        x->in[r] = random_inputs(x->a, g[r], (uint32_t)r);
    Tensor **want = ranks_interpret(&x->plain, x->in, NULL);
    Ranks bucketed = ranks_bucketed(&x->ring, (uint64_t)x->seed, &joined);
    Tensor **got = ranks_interpret(&bucketed, x->in, NULL);
    bool two = x->seed % 3 == 0; /* memories */
    Ranks planned = two ? ranks_staged(&bucketed) : bucketed;
    Tensor **made = ranks_execute(&planned, device_at(two ? DEVICE_emulated : DEVICE_cpu), x->in);
    for (int r = 0; r < n; r++)
        for (int k = 0; k < g[0]->nout; k++)
            if (worst_of(&got[r][k], &want[r][k]) > 1e-12 ||
                !tensor_same_bits(&made[r][k], &got[r][k]))
                fail(&ctx, TN_FAIL, "rank %d, output %d: %.2g from whole calls, %.2g on its arena",
                     r, k, worst_of(&got[r][k], &want[r][k]), worst_of(&made[r][k], &got[r][k]));
}

static void try(void (*run)(void *), Trial x)
{
    x.a = arena_new(&ctx);
    CHECK(x.a);
    if (!EXPECT(!ctx_try(&ctx, run, &x)))
        printf("  %s on %s, accumulate %lld, reshard %s: %s\n", x.preset, x.mesh,
               (long long)x.accumulate, x.reshard, ctx.message);
    arena_free(x.a);
}

int main(void)
{
    static const char *const presets[] = {"gpt2", "llama3-1b"}, *const reshard[] = {"always",
                                                                                    "never"};
    static const char *const meshes[] = {"fsdp=2,tp=4", "tp=4", "dp=2,tp=4"};
    const int step = getenv("TN_LONG") ? 1 : 13;
    par_set_threads(1); /* all is small */
    for (int i = 0; i < 24; i += step)
        try(run_model, (Trial){.preset = presets[i % 2],
                               .mesh = meshes[i / 2 % 3],
                               .reshard = reshard[i / 12],
                               .accumulate = 1 + (i / 6 + i / 12) % 2});
    int count = getenv("TN_LONG") ? 1000 : getenv("TN_QUICK") ? 20 : 40;
    for (int i = 0; i < count; i++)
        try(run_random, (Trial){.preset = "random", .mesh = "some", .reshard = "", .seed = i});
    printf("note: test_ring: of %d random graphs %lld have rings\n", count, (long long)nringed);
    EXPECT(nringed > count / 3);
    if (!getenv("TN_QUICK")) /* minutes under sanitizers */
        try(run_8b, (Trial){.preset = "llama3-8b", .mesh = "fsdp=16,tp=8", .reshard = ""});
    try(run_sums, (Trial){.preset = "sums", .mesh = "tp=2", .reshard = "none"});
    ctx_end(&ctx);
    return test_report();
}
