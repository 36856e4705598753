/* Graphs that PyTorch traced (tests/fx; docs there): imported, run on its inputs, every output
 * against its own. The plan wastes nothing and its peak is what two canary patterns see written;
 * canonicalize, cse and dce make the graph smaller and keep every bit, and so does fuse, with no
 * greater peak. */
#include "../../include/tenon.h"
#include "../../src/io/io.h"
#include "../shared/test.h"

#include <dirent.h>
#include <math.h>
#include <unistd.h>

enum { MOST_OUT = 200 };

typedef struct Case {
    tn_context *ctx;
    const char *name;
    char folder[200], graph[220], inputs[240], outputs[240];
    int64_t nodes;
} Case;

typedef struct Run {
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
} Run;

static bool ok(const Case *c, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s\n", c->name, tn_error(c->ctx));
    return code == TN_CODE_OK;
}

static void free_run(Run *u)
{
    tn_program_free(u->x);
    tn_plan_free(u->p);
    tn_graph_free(u->g);
    *u = (Run){0};
}

static bool start(Case *c, const char *passes, Run *u)
{
    tn_options o = tn_options_default();
    tn_fx_options fx = {.inputs = c->inputs};
    const char *summary;
    return ok(c, tn_graph_import_fx(c->ctx, c->graph, &fx, &u->g, &summary)) &&
           (!passes || ok(c, tn_graph_passes(u->g, passes, &o, NULL, NULL))) &&
           ok(c, tn_plan_new(u->g, &o, 0, &u->p)) && ok(c, tn_program_new(u->p, &o, &u->x));
}

static int64_t json_number_after(const char *json, const char *key)
{
    const char *at = strstr(json, key);
    CHECK(at);
    return strtoll(at + strlen(key) + 2, NULL, 10);
}

/* ---- against PyTorch ---- */

/* |got - want| / |want|, where neither has what the other has not: NaN, infinity. */
static double relative_error(DType d, const void *got, const void *want, int64_t n)
{
    Tensor x = {.data = (char *)got, .dtype = d}, y = {.data = (char *)want, .dtype = d};
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = tensor_get(&x, i), b = tensor_get(&y, i);
        bool same = a == b || (isnan(a) && isnan(b));
        if (!same && !isfinite(a - b))
            return INFINITY;
        error += same ? 0 : (a - b) * (a - b);
        size += isfinite(b) ? b * b : 0;
    }
    return error > 0 ? sqrt(error / (size > 0 ? size : 1)) : 0;
}

/* Whether PyTorch's results in 16 bits are ours, bit by bit. */
static bool rounds_alike(const Case *c)
{
    return !strcmp(c->name, "numbers_beside_bf16") || !strcmp(c->name, "mixed_some");
}

typedef struct CompareArgs {
    Case *c;
    Run *u;
    Arena *a;
    double worst;
} CompareArgs;

static void compare(void *arg)
{
    CompareArgs *x = arg;
    const TensorFile *f = tensors_open(x->a, x->c->outputs);
    EXPECT(f->count > 0);
    for (int i = 0; i < f->count; i++) {
        const TensorEntry *e = &f->entry[i];
        DType d = e->type.dtype;
        void *got = NULL, *want = arena_alloc(x->a, (size_t)type_nbytes(&e->type) + 1);
        int64_t nbytes = 0;
        if (!ok(x->c, tn_program_data(x->u->x, e->name, &got, &nbytes)) ||
            !EXPECT(nbytes == type_nbytes(&e->type)))
            continue;
        tensors_read(f, e, d, false, want);
        if (!dtype_float(d) && !EXPECT(!memcmp(got, want, (size_t)nbytes)))
            printf("  %s: %s: integers differ\n", x->c->name, e->name);
        double error = relative_error(d, got, want, type_nelem(&e->type));
        bool half = d == BF16 || d == F16;
        x->worst = fmax(x->worst, half ? 0 : error);
        double bound = half ? 1e-2 : strstr(x->c->name, "_double") ? 1e-12 : 2e-5;
        if (!EXPECT(half && rounds_alike(x->c) ? error == 0 : error < bound))
            printf("  %s: %s: relative error %.2g\n", x->c->name, e->name, error);
    }
}

/* Runs over two patterns; the highest byte written is the plan's peak. */
static void run_measured(Case *c, Run *u)
{
    static const int patterns[] = {0x5a, 0xa5};
    int64_t high = 0, peak, persistent, reserve;
    const char *json;
    for (int i = 0; i < LEN(patterns); i++) {
        tn_program_fill(u->x, patterns[i]);
        if (!ok(c, tn_program_read_file(u->x, c->inputs)) || !ok(c, tn_program_run(u->x)))
            return;
        int64_t end = tn_program_high(u->x, patterns[i]);
        high = end > high ? end : high;
    }
    tn_plan_bytes(u->p, &peak, &persistent, &reserve);
    if (!EXPECT(high == peak))
        printf("  %s: planned %lld, measured %lld\n", c->name, (long long)peak, (long long)high);
    if (ok(c, tn_plan_json(u->p, 1, &json))) {
        c->nodes = json_number_after(json, "\"nodes\"");
        if (!EXPECT(json_number_after(json, "\"waste_bytes\"") == 0))
            printf("  %s: the plan wastes %lld bytes\n", c->name,
                   (long long)json_number_after(json, "\"waste_bytes\""));
    }
}

/* ---- the same bits from fewer nodes ---- */

static int bits(Case *c, Run *u, char **copy, int64_t *nbytes)
{
    int n = 0;
    for (; n < MOST_OUT; n++) {
        char name[20];
        void *data;
        snprintf(name, sizeof name, "out%d", n);
        if (tn_program_data(u->x, name, &data, &nbytes[n]))
            break;
        copy[n] = malloc((size_t)nbytes[n] + 1);
        CHECK(copy[n]);
        memcpy(copy[n], data, (size_t)nbytes[n]);
    }
    (void)c;
    return n;
}

/* The peak of the plan, or -1. */
static int64_t test_passes(Case *c, const char *passes, char **want, const int64_t *size, int n)
{
    Run u = {0};
    char *got[MOST_OUT];
    int64_t nbytes[MOST_OUT], peak = -1, persistent, reserve;
    if (start(c, passes, &u)) {
        run_measured(c, &u);
        EXPECT(bits(c, &u, got, nbytes) == n);
        for (int i = 0; i < n; i++) {
            if (!EXPECT(nbytes[i] == size[i] && !memcmp(got[i], want[i], (size_t)size[i])))
                printf("  %s: %s change out%d\n", c->name, passes, i);
            free(got[i]);
        }
        tn_plan_bytes(u.p, &peak, &persistent, &reserve);
    }
    free_run(&u);
    return peak;
}

static void test_all_passes(Case *c, char **want, const int64_t *size, int n)
{
    int64_t before = c->nodes, apart = test_passes(c, "canonicalize,cse,dce", want, size, n);
    EXPECT(c->nodes < before);
    printf("%s: canonicalize, cse, dce: %lld nodes become %lld\n", c->name, (long long)before,
           (long long)c->nodes);
    int64_t fused = test_passes(c, "canonicalize,cse,dce,fuse", want, size, n);
    if (!EXPECT(fused <= apart))
        printf("  %s: the peak is %lld, with fuse %lld\n", c->name, (long long)apart,
               (long long)fused);
}

static void test_case(tn_context *context, const char *name)
{
    Case c = {.ctx = context, .name = name};
    Ctx ctx = {0};
    Run u = {0};
    char *want[MOST_OUT];
    int64_t nbytes[MOST_OUT];
    snprintf(c.folder, sizeof c.folder, "tests/fx/%s", name);
    snprintf(c.graph, sizeof c.graph, "%s/graph.txt", c.folder);
    snprintf(c.inputs, sizeof c.inputs, "%s/inputs.safetensors", c.folder);
    snprintf(c.outputs, sizeof c.outputs, "%s/outputs.safetensors", c.folder);
    if (start(&c, NULL, &u)) {
        run_measured(&c, &u);
        CompareArgs args = {&c, &u, arena_new(&ctx), 0};
        if (!EXPECT(ctx_try(&ctx, compare, &args) == TN_OK))
            printf("  %s: %s\n", c.name, ctx.message);
        arena_free(args.a);
        printf("%s: largest relative error %.2g\n", name, args.worst);
        int n = bits(&c, &u, want, nbytes);
        test_all_passes(&c, want, nbytes, n);
        for (int i = 0; i < n; i++)
            free(want[i]);
    }
    free_run(&u);
}

int main(void)
{
    DIR *dir = opendir("tests/fx");
    tn_context *ctx = tn_context_new();
    CHECK(dir && ctx);
    for (struct dirent *e; (e = readdir(dir));) {
        char graph[300];
        snprintf(graph, sizeof graph, "tests/fx/%s/graph.txt", e->d_name);
        if (e->d_name[0] != '.' && !access(graph, R_OK))
            test_case(ctx, e->d_name);
    }
    closedir(dir);
    tn_context_free(ctx);
    return test_report();
}
