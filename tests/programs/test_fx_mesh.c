/* Graphs that PyTorch traced (tests/fx), cut over meshes: each with several random rules of which
 * axis of which input ranks have a part. All ranks in lockstep give what one rank gives, within
 * rounding of 32-bit values.
 *
 * `test_fx_mesh NAME SEED` runs one of them and says what was asked for. TN_LONG: more of each. */
#include "../../src/io/io.h"
#include "../../src/pass/pass.h"
#include "../shared/fx.h"
#include "../shared/gen.h"
#include "../shared/interp.h"
#include "../shared/ranks.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double LEAST = 1e-9; /* below it gradients that are zero have rounding alone */

enum { MOST_RULES = 300, SEEDS = 3, LONG = 40 };

static const char *const meshes[] = {"dp=2", "fsdp=2",  "fsdp=3", "x=2",
                                     "x=4",  "x=2,y=2", "y=3,x=2"};

typedef struct Trial {
    Arena *a;
    const char *name;
    Rng rng;
    Graph *whole;
    Tensor *in;
    PassOptions o;
    const char *rule[MOST_RULES];
    bool say;
} Trial;

/* ---- a graph and its inputs ---- */

/* Forwards whose gradients are cut too. */
static const char *loss_of(const char *name)
{
    static const char *const losses[][2] = {
        {"doubles", "sum_1"}, {"gamma_function", "sum_1"}, {"glu", "sum_1"}};
    for (int k = 0; k < LEN(losses); k++)
        if (!strcmp(name, losses[k][0]))
            return losses[k][1];
    return NULL;
}

static const char *file_of(const Trial *t, const char *file)
{
    return arena_printf(t->a, "tests/fx/%s/%s", t->name, file);
}

static void read_graph(Trial *t)
{
    const TensorFile *f = tensors_open(t->a, file_of(t, "inputs.safetensors"));
    const char **name = NEWN(t->a, const char *, f->count), *summary;
    Type *type = NEWN(t->a, Type, f->count);
    size_t len;
    for (int i = 0; i < f->count; i++) {
        name[i] = f->entry[i].name;
        type[i] = f->entry[i].type;
    }
    FxOptions o = {
        .ninput = f->count, .name = name, .type = type, .params = "*", .loss = loss_of(t->name)};
    t->o = pass_defaults();
    const char *path = file_of(t, "graph.txt");
    const char *text = file_read(t->a, path, &len);
    t->whole = fx_import(t->a, fx_code(t->a, text, len, path), path, &o, &summary);
    if (o.loss)
        passes_run(t->whole, "grad", &t->o, NULL, NULL);
    t->in = NEWN(t->a, Tensor, t->whole->nin);
    for (int i = 0; i < t->whole->nin; i++)
        for (int k = 0; k < f->count; k++) {
            if (strcmp(t->whole->in[i].v->name, name[k]) != 0)
                continue;
            t->in[i] = tensor_new(t->a, &type[k], 0);
            tensors_read(f, &f->entry[k], type[k].dtype, false, t->in[i].data);
        }
}

/* ---- rules ---- */

static int random_axis(Trial *t, const Type *x)
{
    int axis[TN_RANK], n = 0;
    for (int d = 0; d < x->rank; d++)
        if (x->dim[d] > 1)
            axis[n++] = d;
    return n ? axis[rng_below(&t->rng, n)] : -1;
}

/* A rule for an input; what no rule names is whole where the mesh's names say nothing. */
static void add_rule(Trial *t, const Port *p, const Mesh *m)
{
    const char *const ways[] = {"", m->name[0], m->name[m->naxes - 1],
                                arena_printf(t->a, "%s,%s", m->name[0], m->name[m->naxes - 1])};
    int d = random_axis(t, &p->v->type);
    const char *way = ways[rng_below(&t->rng, m->naxes > 1 ? 4 : 2)];
    const char *name = p->name ? p->name : p->v->name;
    if (d < 0 || rng_chance(&t->rng, 0.3) || t->o.shardings.count == MOST_RULES)
        return;
    t->rule[t->o.shardings.count++] =
        *way ? arena_printf(t->a, "%s=%d:%s", name, d, way) : arena_printf(t->a, "%s=", name);
}

static void draw_rules(Trial *t)
{
    t->o.mesh = meshes[rng_below(&t->rng, LEN(meshes))];
    t->o.shardings.pattern = t->rule;
    Mesh *m = mesh_parse(arena_ctx(t->a), t->a, t->o.mesh);
    for (int i = 0; i < t->whole->nin; i++)
        add_rule(t, &t->whole->in[i], m);
    if (t->say) {
        printf("--mesh %s", t->o.mesh);
        for (int i = 0; i < t->o.shardings.count; i++)
            printf(" --shard '%s'", t->rule[i]);
        printf("\n");
    }
}

/* ---- all ranks ---- */

/* The largest difference, relative to the largest element. */
static double differs(const Tensor *got, const Tensor *want)
{
    double worst = 0, size = fmax(interp_largest(want), LEAST);
    for (int64_t i = 0, n = tensor_nelem(want); i < n; i++) {
        double x = tensor_get(want, i), y = tensor_get(got, i);
        if (x != y && !(isnan(x) && isnan(y)))
            worst = fmax(worst, isfinite(x - y) ? fabs(x - y) : INFINITY);
    }
    return worst / size;
}

static double tolerance(DType d)
{
    return d == F64 || d == F32 ? 2e-5 : d == BF16 || d == F16 ? 3e-2 : 0;
}

static void check(Trial *t)
{
    const Graph *w = t->whole;
    Mesh *m = mesh_parse(arena_ctx(t->a), t->a, t->o.mesh);
    int n = (int)mesh_nranks(m);
    Graph **g = NEWN(t->a, Graph *, n);
    for (int r = 0; r < n; r++) {
        g[r] = graph_clone(t->a, w);
        t->o.rank = r;
        passes_run(g[r], "spmd", &t->o, NULL, NULL);
    }
    Ranks ranks = ranks_of(t->a, n, g);
    Tensor **out = ranks_interpret(&ranks, ranks_inputs(&ranks, w, t->in), NULL);
    Tensor *got = NEWN(t->a, Tensor, w->nout), *want = NEWN(t->a, Tensor, w->nout);
    interp_graph(t->a, w, t->in, want);
    const char *why = ranks_together(&ranks, w, out, got);
    if (!EXPECT(!why))
        printf("  %s %s: %s\n", t->name, t->o.mesh, why);
    for (int k = 0; k < w->nout && !why; k++) {
        double error = differs(&got[k], &want[k]);
        if (!EXPECT(error <= tolerance(want[k].dtype)))
            printf("  %s %s: out%d %%%s: error %.2g\n", t->name, t->o.mesh, k, w->out[k].v->name,
                   error);
    }
}

static void run_trial(void *arg)
{
    Trial *t = arg;
    read_graph(t);
    draw_rules(t);
    check(t);
}

static int ran, refused;

static void try_one(const char *name, uint64_t seed, bool say)
{
    Ctx ctx = {0};
    Trial t = {.a = arena_new(&ctx), .name = name, .rng = {seed, 0}, .say = say};
    int code = (int)ctx_try(&ctx, run_trial, &t);
    ran += !code;
    refused += code == TN_USAGE; /* rules that cut nothing */
    if (!EXPECT(!code || code == TN_USAGE) || (say && code))
        printf("  %s %d: %s\n", name, (int)seed, ctx.message);
    arena_free(t.a);
}

int main(int argc, char **argv)
{
    int seeds = getenv("TN_LONG") ? LONG : SEEDS;
    DIR *d = opendir("tests/fx");
    CHECK(d);
    par_set_threads(1);
    if (argc > 2)
        try_one(argv[1], strtoull(argv[2], NULL, 10), true);
    for (const struct dirent *e; argc < 3 && (e = readdir(d));) {
        char path[300];
        snprintf(path, sizeof path, "tests/fx/%s/inputs.safetensors", e->d_name);
        for (int seed = 0; seed < seeds && !access(path, R_OK); seed++)
            try_one(e->d_name, (uint64_t)seed, false);
    }
    closedir(d);
    printf("note: %d run, %d with rules that are refused\n", ran, refused);
    return test_report();
}
