/* Whole training steps on meshes against PyTorch in double (tests/ref): loss and gradients of all
 * ranks in lockstep, node by node, and AdamW's curve with the kernels on every rank's planned
 * arena; after 20 steps with weight decay all padding of parameters and state is zero. Sequence
 * parallelism, microbatches and recomputation change nothing of that, and on the emulated device,
 * where ranks talk through the host's memory, all bits are the same.
 *
 * `test_spmd_ref FOLDER MESH` runs one model on one mesh in all these ways. Without arguments each
 * mesh has one model in one way, and a few of those are run on the emulated device; with TN_LONG
 * all. */
#include "../../src/model/model.h"
#include "../../src/spmd/spmd.h"
#include "../shared/ranks.h"
#include "../shared/test.h"

#include <math.h>

enum { CURVE = 5, STEPS = 20 };

static const double LOSS_OFF = 5e-6, GRADIENT_OFF = 2e-5;

/* One folder of tests/ref. */
typedef struct Ref {
    Arena *a;
    const char *name, *folder;
    ModelConfig config;
    TensorFile *weights, *batch, *grads;
    int64_t B, T;
    double lr, loss, curve[CURVE];
    PassOptions o;
} Ref;

/* One way to run it. */
typedef struct Way {
    const char *mesh, *recompute;
    bool sequence_parallel;
    int64_t accumulate;
} Way;

static const char *const meshes[] = {"dp=2",   "fsdp=2", "fsdp=4",
                                     "fsdp=8", "tp=2",   "dp=2,fsdp=2,tp=2"};

/* ---- what is expected ---- */

static void read_curve(Arena *a, const char *path, double *curve)
{
    size_t len;
    char *text = strstr(file_read(a, path, &len), "\"adamw_loss_curve\"");
    CHECK(text && (text = strchr(text, '[')));
    for (int i = 0; i < CURVE; i++)
        curve[i] = strtod(text + 1, &text);
}

static Ref ref_open(Arena *a, const char *name)
{
    Ref r = {.a = a, .name = name, .folder = arena_printf(a, "tests/ref/%s", name)};
    const char *path = arena_printf(a, "%s/expected.json", r.folder);
    Json expected = json_read(a, path), adamw = json_get_object(expected, "adamw");
    read_curve(a, path, r.curve);
    r.loss = json_get_real(expected, "loss");
    r.lr = json_get_real(adamw, "lr");
    r.o = pass_defaults();
    r.o.beta1 = json_get_real(adamw, "beta1");
    r.o.beta2 = json_get_real(adamw, "beta2");
    r.o.eps = json_get_real(adamw, "eps");
    r.o.weight_decay = json_get_real(adamw, "weight_decay");
    r.o.clip = json_get_real(adamw, "clip_global_norm");
    r.config = config_read(a, arena_printf(a, "%s/config.json", r.folder));
    r.weights = tensors_open(a, arena_printf(a, "%s/model.safetensors", r.folder));
    r.batch = tensors_open(a, arena_printf(a, "%s/batch.safetensors", r.folder));
    r.grads = tensors_open(a, arena_printf(a, "%s/grads.safetensors", r.folder));
    model_match(a, &r.config, r.weights);
    const Type *ids = &tensors_get(r.batch, "input_ids")->type;
    r.B = ids->dim[0];
    r.T = ids->dim[1];
    return r;
}

/* ---- graphs and inputs ---- */

/* A graph of one rank, compiled as all ranks' are; the ranks' if o has a mesh. */
static Graph *compile(const Ref *r, Arena *a, int64_t rows, const char *passes,
                      const PassOptions *o)
{
    Graph *g = model_graph(a, &r->config, rows, r->T, &(ModelOptions){0});
    passes_run(g, passes, o, NULL, NULL);
    return g;
}

static Ranks compile_ranks(const Ref *r, Arena *a, int64_t rows, const char *passes, PassOptions *o)
{
    int n = (int)mesh_nranks(mesh_parse(arena_ctx(a), a, o->mesh));
    Graph **g = NEWN(a, Graph *, n);
    for (int j = 0; j < n; j++) {
        o->rank = j;
        g[j] = compile(r, a, rows, passes, o);
    }
    return ranks_of(a, n, g);
}

/* Rows behind those that the file has are padding. */
static Tensor batch_input(const Ref *r, Arena *a, const Port *p)
{
    enum { IGNORED = -100 };
    const TensorEntry *e = tensors_get(r->batch, p->v->name);
    Tensor t = tensor_new(a, &p->v->type, 0);
    int64_t *x = (int64_t *)(void *)t.data;
    for (int64_t i = type_nelem(&e->type); !strcmp(p->v->name, "labels") && i < tensor_nelem(&t);
         i++)
        x[i] = IGNORED;
    tensors_read(r->batch, e, I64, false, x);
    return t;
}

/* Of the first step. */
static Tensor *inputs(const Ref *r, Arena *a, const Graph *g)
{
    Tensor *in = NEWN(a, Tensor, g->nin);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (p->role == ROLE_BATCH) {
            in[i] = batch_input(r, a, p);
            continue;
        }
        in[i] = tensor_new(a, &p->v->type, 0);
        if (p->role == ROLE_PARAM)
            tensors_read(r->weights, tensors_get(r->weights, p->name), F32, false, in[i].data);
        else if (p->role == ROLE_STEP)
            tensor_set(&in[i], 0, 1);
        else if (p->role == ROLE_SCALAR)
            tensor_set(&in[i], 0, r->lr);
    }
    return in;
}

/* ---- comparing ---- */

static const char *way_text(Arena *a, const Ref *r, const Way *w)
{
    return arena_printf(a, "%s on %s, sequence parallel %s, accumulate %lld, recompute %s", r->name,
                        w->mesh, w->sequence_parallel ? "on" : "off", (long long)w->accumulate,
                        w->recompute);
}

static void close_to(const char *way, const char *what, double got, double want, double tolerance)
{
    double error = fabs(got - want) / fabs(want);
    if (!EXPECT(error <= tolerance)) /* false for a NaN too */
        printf("  %s: %s: expected %.9g, found %.9g\n", way, what, want, got);
}

static double output(const Graph *g, const Tensor *out, Role role)
{
    const Port *p = graph_find_output(g, role, NULL);
    CHECK(p);
    return tensor_get(&out[p - g->out], 0);
}

static void check_gradients(const Ref *r, Arena *a, const char *way, const Graph *g,
                            const Tensor *out)
{
    int count = 0;
    for (int k = 0; k < g->nout; k++) {
        const Port *p = &g->out[k];
        if (p->role != ROLE_GRAD)
            continue;
        Tensor want = tensor_new(a, &p->v->type, 0);
        double error = 0, size = 0;
        tensors_read(r->grads, tensors_get(r->grads, p->name), F32, false, want.data);
        for (int64_t e = 0; e < tensor_nelem(&want); e++) {
            double x = tensor_get(&want, e), d = tensor_get(&out[k], e) - x;
            error += d * d;
            size += x * x;
        }
        count++;
        if (!EXPECT(sqrt(error / size) <= GRADIENT_OFF))
            printf("  %s: gradient of %s: relative error %.2g\n", way, p->name, sqrt(error / size));
    }
    EXPECT(count == r->grads->count);
}

static bool joined(const char *way, const Ranks *k, const Graph *whole, Tensor *const *out,
                   Tensor *all)
{
    const char *why = ranks_together(k, whole, out, all);
    if (!EXPECT(!why))
        printf("  %s: %s\n", way, why);
    return !why;
}

/* ---- running ---- */

typedef struct Job {
    const Ref *r;
    const Way *w;
    Arena *a;
} Job;

static PassOptions options(const Job *j)
{
    PassOptions o = j->r->o;
    o.mesh = j->w->mesh;
    o.sequence_parallel = j->w->sequence_parallel;
    o.accumulate = j->w->accumulate;
    o.recompute = j->w->recompute;
    return o;
}

static int64_t padded_rows(const Job *j)
{
    return sharding_rows(mesh_parse(arena_ctx(j->a), j->a, j->w->mesh), j->r->B, j->w->accumulate);
}

/* A way's graph of one rank and those of all ranks, with their inputs. */
typedef struct Compiled {
    Graph *whole;
    Ranks ranks;
    Tensor **in, *out; /* by rank; room for the outputs of `whole` */
} Compiled;

static Compiled compile_both(const Job *j, const char *passes)
{
    PassOptions o = options(j), one = o;
    int64_t rows = padded_rows(j);
    Compiled c = {.ranks = compile_ranks(j->r, j->a, rows, passes, &o)};
    one.mesh = NULL;
    c.whole = compile(j->r, j->a, rows, passes, &one);
    c.in = ranks_inputs(&c.ranks, c.whole, inputs(j->r, j->a, c.whole));
    c.out = NEWN(j->a, Tensor, c.whole->nout);
    return c;
}

static void run_gradients(void *arg)
{
    const Job *j = arg;
    const char *way = way_text(j->a, j->r, j->w);
    Compiled c = compile_both(j, "gradients");
    if (!joined(way, &c.ranks, c.whole, ranks_interpret(&c.ranks, c.in, NULL), c.out))
        return;
    close_to(way, "loss", output(c.whole, c.out, ROLE_LOSS), j->r->loss, LOSS_OFF);
    check_gradients(j->r, j->a, way, c.whole, c.out);
}

static void run_curve(void *arg)
{
    const Job *j = arg;
    const char *way = way_text(j->a, j->r, j->w);
    Compiled c = compile_both(j, "default");
    Fleet *fleet = fleet_make(&c.ranks, true);
    const Port *step = graph_find_input(c.whole, ROLE_STEP, NULL);
    for (int i = 0; i < STEPS; i++) {
        for (int m = 0; m < c.ranks.n; m++)
            tensor_set(&c.in[m][step - c.whole->in], 0, i + 1);
        fleet_write(fleet, c.in, i == 0);
        fleet_run(fleet);
        if ((i < CURVE || i == STEPS - 1) &&
            !joined(way, &c.ranks, c.whole, fleet_read(fleet, j->a), c.out))
            return;
        if (i < CURVE)
            close_to(way, "loss on the curve", output(c.whole, c.out, ROLE_LOSS), j->r->curve[i],
                     GRADIENT_OFF);
    }
}

/* The outputs by rank after two steps on a device. */
static Tensor **run_steps(const Job *j, Compiled *c, const char *device)
{
    PassOptions o = options(j);
    o.backend = device;
    c->ranks = compile_ranks(j->r, j->a, padded_rows(j), "default", &o);
    Fleet *fleet = fleet_make_on(&c->ranks, device_get(arena_ctx(j->a), device), true, true);
    const Port *step = graph_find_input(c->whole, ROLE_STEP, NULL);
    for (int i = 0; i < 2; i++) {
        for (int m = 0; m < c->ranks.n; m++)
            tensor_set(&c->in[m][step - c->whole->in], 0, i + 1);
        fleet_write(fleet, c->in, i == 0);
        fleet_run(fleet);
    }
    return fleet_read(fleet, j->a);
}

/* Where ranks send and receive in another memory than kernels compute in, the bits are the same. */
static void run_staged(void *arg)
{
    const Job *j = arg;
    Compiled c = compile_both(j, "default");
    Tensor **want = run_steps(j, &c, "cpu"), **got = run_steps(j, &c, "emulated");
    for (int m = 0; m < c.ranks.n; m++)
        for (int k = 0; k < c.whole->nout; k++)
            if (!EXPECT(tensor_same_bits(&got[m][k], &want[m][k])))
                printf("  %s: rank %d: output %%%s has other bits on the emulated device\n",
                       way_text(j->a, j->r, j->w), m, c.whole->out[k].v->name);
}

/* staged: also on the emulated device. */
static void run_way(const Ref *r, const Way *w, bool staged)
{
    void (*const parts[])(void *) = {run_gradients, run_curve, run_staged};
    for (int i = 0; i < LEN(parts) - !staged; i++) {
        Ctx *ctx = arena_ctx(r->a);
        Job j = {r, w, arena_new(ctx)};
        CHECK(j.a);
        if (!EXPECT(ctx_try(ctx, parts[i], &j) == TN_OK))
            printf("  %s: %s\n", way_text(j.a, r, w), ctx->message);
        arena_free(j.a);
    }
}

/* All ways of the model on the mesh, or only the number-th. */
static void run_ways(const Ref *r, const char *mesh, bool all, int number)
{
    int count = strstr(mesh, "tp") ? 8 : 4;
    for (int i = 0; i < count; i++) {
        Way w = {mesh, i & 1 ? "full" : "none", !(i & 4), i & 2 ? 2 : 1};
        if (all || i == number % count)
            run_way(r, &w, all || number % 4 == 0);
    }
}

typedef struct Open {
    Arena *a;
    const char *name;
    Ref r;
} Open;

static void open_ref(void *arg)
{
    Open *x = arg;
    x->r = ref_open(x->a, x->name);
}

static void test_folder(const char *name, const char *mesh, int number)
{
    Ctx ctx = {0};
    Open x = {arena_new(&ctx), name, {0}};
    bool all = getenv("TN_LONG") || mesh;
    CHECK(x.a);
    if (!EXPECT(ctx_try(&ctx, open_ref, &x) == TN_OK))
        printf("  %s: %s\n", name, ctx.message);
    else
        for (int i = 0; i < LEN(meshes); i++)
            if (mesh ? !strcmp(mesh, meshes[i]) : all || (i + number) % 4 == 0)
                run_ways(&x.r, meshes[i], all,
                         (3 * i + number) / 2); /* without all, of an even one */
    arena_free(x.a);
    ctx_end(&ctx);
}

int main(int argc, char **argv)
{
    static const char *const folders[] = {"gpt2-tiny", "gpt2-ignore", "llama-tiny", "llama-tied"};
    par_set_threads(1); /* all is small */
    for (int i = 0; i < LEN(folders); i++)
        if (argc < 2 || !strcmp(argv[1], folders[i]))
            test_folder(folders[i], argc > 2 ? argv[2] : NULL, i);
    return test_report();
}
