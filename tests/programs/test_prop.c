/* Random graphs: what must hold of every one. A graph is reproduced by its seed: `test_prop SEED`
 * prints it, before and after what failed; `test_prop write FOLDER N` writes the graphs of the
 * seeds below N (tools/same.sh). TN_QUICK: fewer graphs, and no count of the ops in them; TN_LONG:
 * ten times as many.
 */
#include "../../src/io/io.h"
#include "../shared/interp.h"
#include "../shared/prop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 800, LONG = 20000, QUICK = 150, SHOWN = 10 };
/* Of MOST graphs: uses of each op at least, nodes computed again at least. */
enum { LEAST_USES = 20, RECOMPUTED = 500 };

/* ---- reporting and comparing ---- */

void prop_fail(Trial *t, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!t->failure)
        t->failure = arena_strdup(t->a, text);
}

void prop_show(const Trial *t, const char *title, const Graph *g)
{
    if (!t->show)
        return;
    Buf b = {.a = t->a};
    graph_print(&b, g);
    printf("---- %s\n%s", title, b.text);
}

const char *prop_differ(Arena *a, const Tensor *got, const Tensor *want, double tol)
{
    double most = 0;
    int64_t n = tensor_nelem(want);
    for (int64_t i = 0; i < n; i++) {
        double x = fabs(tensor_get(want, i));
        most = isfinite(x) ? fmax(most, x) : most;
    }
    for (int64_t i = 0; i < n; i++) {
        double x = tensor_get(got, i), y = tensor_get(want, i);
        bool same = x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= tol * fmax(most, 1);
        if (!dtype_float(want->dtype))
            same = tensor_int(got, i) == tensor_int(want, i);
        if (!same)
            return arena_printf(a, "element %lld is %.17g, expected %.17g", (long long)i, x, y);
    }
    return NULL;
}

void prop_check_values(Trial *t, const Graph *g, const char *after, double tol)
{
    Tensor *out = NEWN(t->a, Tensor, g->nout);
    interp_graph(t->a, g, t->x->in, out);
    for (int i = 0; i < t->x->b.g->nout; i++) {
        const char *how = prop_differ(t->a, &out[i], &t->want[i], tol);
        if (!how || t->failure)
            continue;
        prop_show(t, after, g);
        prop_fail(t, "after %s: output %d (%%%s): %s", after, i, t->x->b.g->out[i].v->name, how);
    }
}

/* ---- text ---- */

static void check_text(Trial *t)
{
    const Graph *g = t->x->b.g;
    Buf one = {.a = t->a}, two = {.a = t->a};
    graph_print(&one, g);
    Graph *h = graph_parse(t->a, one.text, "random.tn");
    graph_verify(h);
    graph_print(&two, h);
    if (strcmp(one.text, two.text))
        prop_fail(t, "printing, parsing and printing gives another text");
    else
        prop_check_values(t, h, "printing and parsing", 0);
}

/* ---- one graph ---- */

/* Returns the rows of a graph over rows, else 0. */
static int64_t make_graph(Trial *t, Rng *r)
{
    int nodes = 5 + (int)rng_below(r, 36);
    bool smooth = rng_chance(r, 0.3);
    int64_t rows = 0;
    t->x = smooth && rng_chance(r, 0.5) ? gen_rows(t->a, t->lib, r, nodes, &rows)
                                        : gen_graph(t->a, t->lib, r, nodes, smooth);
    return rows;
}

static void run_trial(void *arg)
{
    Trial *t = arg;
    Rng r = {t->seed, 0};
    int64_t rows = make_graph(t, &r);
    Graph *g = t->x->b.g;
    prop_show(t, "as made", g);
    graph_verify(g);
    t->want = NEWN(t->a, Tensor, g->nout);
    interp_graph(t->a, g, t->x->in, t->want);
    check_text(t);
    prop_passes(t);
    prop_order(t);
    if (t->x->smooth)
        prop_gradient(t);
    if (rows)
        prop_rows(t, rows);
    prop_plan(t, graph_clone(t->a, g), t->x->in, t->want);
    if (!t->x->tied) /* what is equal in double may not be in f32 */
        prop_narrow(t);
    prop_fused(t, g);
}

/* ---- graphs as files ---- */

typedef struct Tensors {
    Arena *a;
    TensorOut *t;
    int count, cap;
} Tensors;

static void add_tensor(Tensors *x, const char *name, Type type, const void *data)
{
    TensorOut t = {name, type, data ? data : arena_alloc(x->a, (size_t)type_nbytes(&type))};
    PUSH(x->a, x->t, x->count, x->cap, t);
}

static Tensors list_inputs(const Trial *t, const Graph *g)
{
    Tensors x = {.a = t->a};
    for (int i = 0; i < g->nin; i++) {
        const Value *v = g->in[i].v;
        add_tensor(&x, v->name, v->type, tensor_copy(t->a, &t->x->in[i], v->type.dtype).data);
    }
    return x;
}

/* What AdamW reads. */
static void add_state(Tensors *x, const Graph *g)
{
    static const float lr = 0.01f;
    static const int64_t step = 1;
    for (int i = 0; i < g->nin; i++) {
        const Value *v = g->in[i].v;
        if (g->in[i].role != ROLE_PARAM)
            continue;
        add_tensor(x, arena_printf(x->a, "%s.m", v->name), v->type, NULL);
        add_tensor(x, arena_printf(x->a, "%s.v", v->name), v->type, NULL);
    }
    add_tensor(x, "lr", type_make(F32, 0, NULL), &lr);
    if (!graph_find_input(g, ROLE_STEP, NULL))
        add_tensor(x, "step", type_make(I64, 0, NULL), &step);
}

/* FOLDER/SEED.tn in f32; its inputs, FOLDER/SEED.safetensors; the same with AdamW's,
 * SEED.step.safetensors. What has a loss is in blocks of nodes, in a quarter of the graphs
 * with policies. */
static void write_trial(void *arg)
{
    Trial *t = arg;
    Rng r = {t->seed, 0};
    make_graph(t, &r);
    Graph *g = prop_f32(t, t->x->b.g);
    if (t->x->smooth)
        prop_policies(g, &r, rng_chance(&r, 0.25) ? 0.3 : 0);
    Buf b = {.a = t->a};
    graph_print(&b, g);
    Ctx *ctx = arena_ctx(t->a);
    Tensors in = list_inputs(t, g);
    const char *stem = arena_printf(t->a, "%s/%llu", t->folder, (unsigned long long)t->seed);
    tensors_write(ctx, arena_printf(t->a, "%s.safetensors", stem), in.count, in.t);
    add_state(&in, g);
    tensors_write(ctx, arena_printf(t->a, "%s.step.safetensors", stem), in.count, in.t);
    FILE *f = fopen(arena_printf(t->a, "%s.tn", stem), "w");
    bool written = f && fputs(b.text, f) >= 0;
    if (!f || fclose(f) || !written)
        fail(ctx, TN_FAIL, "%s.tn: cannot write", stem);
}

static int write_graphs(Ctx *ctx, Library *lib, const char *folder, int count)
{
    for (int i = 0; i < count; i++) {
        Arena *a = arena_new(ctx);
        CHECK(a);
        Trial t = {.a = a, .lib = lib, .seed = (uint64_t)i, .folder = folder};
        int code = ctx_try(ctx, write_trial, &t);
        arena_free(a);
        if (code) {
            printf("random graph %d: %s\n", i, ctx->message);
            return 1;
        }
    }
    return 0;
}

/* ---- coverage ---- */

static void count_ops(Library *lib, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        for (int i = 0; i < lib->count; i++)
            lib->op[i].used += lib->op[i].op == n->op;
        EACH_BODY(b, n)
            count_ops(lib, n->region->body[b]);
    }
}

static int print_coverage(const Library *lib, bool required)
{
    int missing = 0;
    printf("note: uses of ops:");
    for (int i = 0; i < lib->count; i++)
        printf(" %s %lld", lib->op[i].op->name, (long long)lib->op[i].used);
    printf("\n");
    for (int i = 0; required && i < lib->count; i++)
        if (lib->op[i].op->class == CLASS_COLLECTIVE) {
            printf("note: %s needs ranks, which random graphs have not\n", lib->op[i].op->name);
        } else if (lib->op[i].op->barrier) {
            printf("note: %s stands for what is not ours to run\n", lib->op[i].op->name);
        } else if (lib->op[i].op->async) {
            printf("note: %s is in the random graphs of test_emulated\n", lib->op[i].op->name);
        } else if (lib->op[i].used < LEAST_USES && lib->op[i].op->region != FUSED) {
            printf("%s appears %lld times in random graphs, expected %d\n", lib->op[i].op->name,
                   (long long)lib->op[i].used, LEAST_USES);
            missing++;
        }
    return missing;
}

static bool one_graph(Ctx *ctx, Library *lib, uint64_t seed, bool shown, int *compared,
                      int *skipped, int *fused, int *recomputed)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    Trial t = {.a = a, .lib = lib, .seed = seed, .show = shown};
    t.compared = compared;
    t.skipped = skipped;
    t.recomputed = recomputed;
    t.fused = fused;
    if (ctx_try(ctx, run_trial, &t))
        t.failure = ctx->message;
    if (t.failure)
        printf("random graph %llu: %s\n", (unsigned long long)seed, t.failure);
    else
        count_ops(lib, t.x->b.g);
    arena_free(a);
    return !t.failure;
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Library lib;
    int passed = 0, failed = 0, compared = 0, skipped = 0, fused[FUSED_COUNTS] = {0},
        recomputed = 0;
    bool quick = getenv("TN_QUICK");
    int most = quick ? QUICK : getenv("TN_LONG") ? LONG : MOST;
    par_set_threads(1); /* all is small */
    if (!library_try(&ctx, a, &lib)) {
        printf("%s\n0 passed, 1 failed\n", ctx.message);
        return 1;
    }
    if (argc == 4 && !strcmp(argv[1], "write"))
        return write_graphs(&ctx, &lib, argv[2], atoi(argv[3]));
    if (argc > 1)
        return !one_graph(&ctx, &lib, strtoull(argv[1], NULL, 10), true, &compared, &skipped, fused,
                          &recomputed);
    for (int i = 0; i < most && failed < SHOWN; i++)
        *(one_graph(&ctx, &lib, (uint64_t)i, false, &compared, &skipped, fused, &recomputed)
              ? &passed
              : &failed) += 1;
    printf("note: %d graphs fused: %d nodes made, %d ops along rows in them, %d runs of nodes into "
           "parts of larger tensors, %d plans with a greater peak\n",
           fused[GRAPHS], fused[NODES], fused[ALONG_ROWS], fused[PARTS], fused[RAISED]);
    failed += fused[RAISED] > 2 + fused[GRAPHS] / 250; /* where kinds must go that do not hold it */
    failed += fused[NODES] < fused[GRAPHS] / 20 || fused[ALONG_ROWS] < fused[GRAPHS] / 100 ||
              fused[PARTS] < fused[NODES] / 2; /* then that says little */
    printf("note: %d nodes computed again for the backward\n", recomputed);
    failed += !quick && recomputed < RECOMPUTED;
    printf("note: gradients of %d graphs compared, %d near a kink\n", compared, skipped);
    failed += skipped > compared; /* then the comparison says little */
    failed += print_coverage(&lib, !quick && !failed);
    printf("%d passed, %d failed\n", passed, failed);
    arena_free(a);
    ctx_end(&ctx);
    return failed != 0;
}
