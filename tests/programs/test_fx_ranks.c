/* Collectives in PyTorch's graphs: their names, old and new, process groups that become axes of a
 * mesh, waits; and graphs that PyTorch traced on several ranks (tests/fx_ranks; docs there). */
#include "../../src/io/io.h"
#include "../shared/fx.h"
#include "../shared/ranks.h"

#include <math.h>
#include <string.h>

#define FUNCTIONAL "torch.ops._c10d_functional."
#define OLDER      "torch.ops.c10d_functional."
#define RANKS      "'', [0, 1], 2"

/* By the mesh dp=2,tp=2, "0" and "1" being its axes and "2" both; or without a mesh. */
static Input with_mesh(Arena *a, const char *body, const char *mesh)
{
    static const char *const groups[] = {"0=dp", "1=tp", "2=dp,tp"};
    Input in = input(a, arena_printf(a, "%s%s", HEAD, body));
    in.o.mesh = mesh ? mesh_parse(arena_ctx(a), a, mesh) : NULL;
    in.o.group = groups;
    return in;
}

static void expect(const char *mesh, const char *body, const char *part)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Input in = with_mesh(a, body, mesh);
    point(&in);
    if (mesh)
        for (int i = 0; i < 3; i++) /* those that the body has: all of them must be used */
            if (strstr(body, arena_printf(a, "'%d'", i)))
                in.o.ngroup = MAX(in.o.ngroup, i + 1);
    int code = (int)ctx_try(&ctx, import, &in);
    if (code && !EXPECT(strstr(ctx.message, part)))
        printf("  %s\n  expected %s\n  found %s\n", body, part, ctx.message);
    else if (!code && !EXPECT(strstr(in.printed, part)))
        printf("  %s\n  expected %s\n  found %s", body, part, in.printed);
    arena_free(a);
}

/* ---- calls ---- */

static const char *const calls[][2] = {
    {FUNCTIONAL "all_gather_into_tensor.default(x, 2, '0')",
     "all_gather_into_tensor(%x, group_size=2, group=\"0\")"},
    {FUNCTIONAL "all_reduce.default(x, 'avg', '0')",
     "all_reduce(%x, reduce_op=\"avg\", group=\"0\")"},
    {FUNCTIONAL "reduce_scatter_tensor.default(x, 'sum', 2, '1')",
     "reduce_scatter_tensor(%x, reduce_op=\"sum\", group_size=2, group=\"1\")"},
    {FUNCTIONAL "all_to_all_single.default(x, [2, 1], [1, 1], '0')",
     "all_to_all_single(%x, output_split_sizes=[2, 1], input_split_sizes=[1, 1], group=\"0\")"},
    {FUNCTIONAL "broadcast.default(x, 1, '0')", "broadcast(%x, src=1, group=\"0\")"},
    {OLDER "broadcast.default(x, 1, " RANKS ")", "broadcast(%x, src=1, group=\"0,1\")"},
    {"torch.ops._c10d_functional_autograd.all_gather_into_tensor.default(x, 2, '0')",
     "all_gather_into_tensor(%x, group_size=2, group=\"0\")"},
    {OLDER "all_gather_into_tensor.default(x, " RANKS ")",
     "all_gather_into_tensor(%x, group_size=2, group=\"0,1\")"},
    {OLDER "all_reduce.default(x, 'SUM', 'all', [0, 1], 2)",
     "all_reduce(%x, reduce_op=\"sum\", group=\"all\")"},
    {OLDER "reduce_scatter_tensor.default(x, 'max', " RANKS ")",
     "reduce_scatter_tensor(%x, reduce_op=\"max\", group_size=2, group=\"0,1\")"},
    {OLDER "all_to_all_single.default(x, None, None, " RANKS ")",
     "all_to_all_single(%x, group=\"0,1\")"},
};

static void test_calls(void)
{
    char body[400];
    for (int k = 0; k < LEN(calls); k++)
        for (int waits = 0; waits < 2; waits++) {
            snprintf(body, sizeof body, "  a = %s\n  return %s(a)", calls[k][0],
                     waits ? FUNCTIONAL "wait_tensor.default" : "torch.ops.aten.relu.default");
            expect(NULL, body, calls[k][1]);
            expect(NULL, body, waits ? "= wait_tensor(%a, %x)" : "= relu(%result.wait_tensor)");
        }
}

/* ---- waits ---- */

static const char *const waits[][2] = {
    /* both names are the tensor that has arrived */
    {"  a = " FUNCTIONAL "all_reduce.default(x, 'sum', '0')\n  b = " FUNCTIONAL
     "wait_tensor.default(a)\n"
     "  return a + b",
     "add(%b, %b)"},
    {"  a = " FUNCTIONAL
     "all_reduce.default(x, 'sum', '0')\n  v = torch.ops.aten.view.default(a, [8])\n"
     "  b = " FUNCTIONAL "wait_tensor.default(v)\n  return (b, a)",
     "  %v.wait_tensor: f32[2, 4] = wait_tensor(%a, %x)  forward\n"
     "  %v: f32[8] = view(%v.wait_tensor, size=[8])  forward\n"
     "  return %v, %v.wait_tensor\n"},
    {"  a = " FUNCTIONAL "all_reduce.default(x, 'sum', '0')\n  return a",
     "%result.wait_tensor: f32[2, 4] = wait_tensor(%a, %x)"},
    /* in place, of all of a tensor and of a part */
    {"  a = torch.ops.aten.relu.default(x)\n  b = " FUNCTIONAL
     "all_reduce_.default(a, 'sum', '0')\n"
     "  c = " FUNCTIONAL "wait_tensor.default(a)\n  return (a, b)",
     "  %c: f32[2, 4] = wait_tensor(%b, %a)  forward\n  return %c, %c\n"},
    {"  a = torch.ops.aten.relu.default(x)\n  v = torch.ops.aten.select.int(a, 0, 1)\n"
     "  b = " FUNCTIONAL "all_reduce_.default(v, 'sum', '0')\n  return a",
     "= wait_tensor(%b.all_reduce, %v)"},
    {"  a = torch.ops.aten.relu.default(x)\n  b = " FUNCTIONAL "broadcast_.default(a, 1, '0')\n"
     "  c = " FUNCTIONAL "wait_tensor.default(a)\n  return (a, b)",
     "  %c: f32[2, 4] = wait_tensor(%b, %a)  forward\n  return %c, %c\n"},
    /* into a tensor that is there */
    {"  o = torch.ops.aten.empty.memory_format([4, 4])\n"
     "  b = " FUNCTIONAL "all_gather_into_tensor_out.default(x, 2, '0', out = o)\n"
     "  c = " FUNCTIONAL "wait_tensor.default(b)\n  return o",
     "%c: f32[4, 4] = wait_tensor(%b, %x)  forward\n  return %c\n"},
    {"  o = torch.ops.aten.empty.memory_format([1, 4])\n"
     "  b = " FUNCTIONAL "reduce_scatter_tensor_out.default(x, 'sum', 2, '0', out = o)\n  return o",
     "= wait_tensor(%b, %x)"},
    {"  b = " FUNCTIONAL "all_gather_into_tensor_out.default(x, 2, '0', out = x)\n  return x",
     "argument out: expected f32[4, 4], found f32[2, 4]"},
    /* lists */
    {"  a = " FUNCTIONAL "all_reduce_coalesced.default([x, y], 'sum', '0')\n"
     "  w = " FUNCTIONAL "wait_tensors.default([a[0], a[1]])\n  return w[0] * w[1]",
     "%w.1: f32[4] = wait_tensor(%a.1, %y)"},
    {"  a = " FUNCTIONAL "all_gather_into_tensor_coalesced.default([x, y], 2, '0')\n  return a[1]",
     "%a.1: f32[8] = all_gather_into_tensor(%y, group_size=2, group=\"0\")"},
    {"  a = " FUNCTIONAL
     "reduce_scatter_tensor_coalesced.default([x, y], 'sum', 2, '0')\n  return a[1]",
     "%a.1: f32[2] = reduce_scatter_tensor(%y, reduce_op=\"sum\", group_size=2, group=\"0\")"},
    /* what waits for nothing */
    {"  b = " FUNCTIONAL "wait_tensor.default(x)\n  return b + x", "add(%x, %x)"},
};

/* ---- groups ---- */

static const char *const grouped[][2] = {
    {"  return " FUNCTIONAL "all_reduce.default(x, 'sum', '0')", "group=\"dp\""},
    {"  a = " FUNCTIONAL "all_reduce.default(x, 'sum', '0')\n"
     "  return " FUNCTIONAL "all_reduce.default(a, 'sum', '1')",
     "group=\"tp\""},
    {"  a = " FUNCTIONAL "all_reduce.default(x, 'sum', '0') + " FUNCTIONAL
     "all_reduce.default(x, 'sum', '1')\n"
     "  return a + " FUNCTIONAL "all_gather_into_tensor.default(x, 4, '2')[0]",
     "group_size=4, group=\"dp,tp\""},
    {"  return " FUNCTIONAL "all_gather_into_tensor.default(x, 4, '0')",
     "group_size: expected the 2 ranks of \"dp\" in the mesh dp=2,tp=2, found 4"},
    {"  return " FUNCTIONAL "all_reduce.default(x, 'sum', 'p')",
     "group \"p\": expected --group 'p=AXIS' with axes of the mesh dp=2,tp=2"},
    {"  return " FUNCTIONAL "all_to_all_single.default(x, [1, 1, 0], [1, 1], '0')",
     "output_split_sizes: expected 2 sizes, one for each rank, found 3"},
    /* ranks tell the axes: rank 0 and what differs in dp, in tp, in both */
    {"  return " OLDER "all_reduce.default(x, 'sum', '', [0, 2], 2)", "group=\"dp\""},
    {"  return " OLDER "all_reduce.default(x, 'sum', '', [2, 3], 2)", "group=\"tp\""},
    {"  return " OLDER "all_reduce.default(x, 'sum', '', [0, 1, 2, 3], 4)", "group=\"dp,tp\""},
    {"  return " OLDER "all_reduce.default(x, 'sum', '', [0, 3], 2)", "group \"0,3\": expected"},
    {"  return torch.ops._dtensor.shard_dim_alltoall.default(x, 0, 1, '0')",
     "f32[4, 2] = view(%result.permute, size=[4, 2])"},
    {"  return torch.ops._dtensor.shard_dim_alltoall.default(x, 0, 0, '0')",
     "expected two axes, and a multiple of 2 along axis 0 of f32[2, 4]"},
};

static void test_tables(void)
{
    for (int k = 0; k < LEN(waits); k++)
        expect(NULL, waits[k][0], waits[k][1]);
    for (int k = 0; k < LEN(grouped); k++)
        expect("dp=2,tp=2", grouped[k][0], grouped[k][1]);
    expect(NULL, "  return torch.ops._dtensor.shard_dim_alltoall.default(x, 0, 1, '0')",
           "group \"0\": expected --mesh and --group");
    expect("dp=2,tp=2", "  return " FUNCTIONAL "broadcast.default(x, 2, '0')",
           "argument src: expected 0 to 1, a place in group \"dp\", found 2");
}

/* ---- options ---- */

typedef struct Given {
    const char *mesh, *group[2], *part;
} Given;

static const Given given[] = {
    {"dp=2", {"0=dp"}, NULL},
    {"dp=2", {"0=tp"}, "--group 0=tp: expected axes of the mesh dp=2, found \"tp\""},
    {"dp=2", {"0"}, "--group 0: expected NAME=AXIS"},
    {"dp=2", {"=dp"}, "--group =dp: expected NAME=AXIS"},
    {"dp=2",
     {"0=dp", "1=dp"},
     "--group 1=dp: no collective of test.fx has this group; theirs: \"0\""},
    {"dp=2", {"0=dp", "0=dp"}, "--group 0=dp: expected each group once"},
    {NULL, {"0=dp"}, "--group 0=dp: expected --mesh beside it"},
    {"dp=3", {"0=dp"}, "expected the 3 ranks of \"dp\" in the mesh dp=3, found 2"},
};

static void test_options(void)
{
    for (int k = 0; k < LEN(given); k++) {
        Ctx ctx = {0};
        Arena *a = arena_new(&ctx);
        const Given *x = &given[k];
        Input in = with_mesh(a, "  return " FUNCTIONAL "all_gather_into_tensor.default(x, 2, '0')",
                             x->mesh);
        point(&in);
        in.o.group = x->group;
        in.o.ngroup = x->group[1] ? 2 : 1;
        int code = (int)ctx_try(&ctx, import, &in);
        if (!EXPECT(x->part ? code && strstr(ctx.message, x->part) : !code))
            printf("  option %d: expected %s\n  found %s\n", k, x->part ? x->part : "none",
                   ctx.message);
        arena_free(a);
    }
}

/* ---- graphs that PyTorch traced and ran ---- */

/* tests/fx_ranks/NAME: written by tools/torch_ranks.py. */
typedef struct Traced {
    Arena *a;
    const char *name;
    int n;
    Graph **g;
    Tensor **in;
} Traced;

static const char *file_of(const Traced *x, const char *kind, int rank, const char *end)
{
    return arena_printf(x->a, "tests/fx_ranks/%s/%s.%d.%s", x->name, kind, rank, end);
}

static char *text_of(const Traced *x, const char *kind, int rank)
{
    size_t len;
    return file_read(x->a, file_of(x, kind, rank, "txt"), &len);
}

/* "MESH GROUP GROUP ..." */
static Graph *import_rank(Traced *x, int rank)
{
    Arena *a = x->a;
    const char *group[8], *summary;
    Mesh *m = mesh_parse(arena_ctx(a), a, strtok(text_of(x, "mesh", rank), " \n"));
    FxOptions o = {.mesh = m, .group = group};
    for (char *s; (s = strtok(NULL, " \n"));)
        group[o.ngroup++] = s;
    mesh_set_rank(m, rank);
    x->n = (int)mesh_nranks(m);
    return fx_import(a, text_of(x, "graph", rank), file_of(x, "graph", rank, "txt"), &o, &summary);
}

static Tensor *read_all(const Traced *x, const char *kind, int rank)
{
    const TensorFile *f = tensors_open(x->a, file_of(x, kind, rank, "safetensors"));
    Tensor *t = NEWN(x->a, Tensor, f->count);
    for (int i = 0; i < f->count; i++) {
        t[i] = tensor_new(x->a, &f->entry[i].type, 0);
        tensors_read(f, &f->entry[i], f->entry[i].type.dtype, false, t[i].data);
    }
    return t;
}

static double relative_error(const Tensor *got, const Tensor *want)
{
    double worst = 0, size = 1e-30;
    for (int64_t i = 0, n = tensor_nelem(want); i < n; i++) {
        double x = tensor_get(want, i), y = tensor_get(got, tensor_linear(got, i));
        worst = fmax(worst, isnan(y) ? INFINITY : fabs(x - y));
        size = fmax(size, fabs(x));
    }
    return worst / size;
}

static void compare(const Traced *x, Tensor *const *out, const char *how)
{
    for (int r = 0; r < x->n; r++) {
        const Tensor *want = read_all(x, "outputs", r);
        for (int k = 0; k < x->g[r]->nout; k++) {
            double error = relative_error(&out[r][k], &want[k]);
            if (!EXPECT(error < 1e-6))
                printf("  %s, %s: rank %d: out%d has error %.2g\n", x->name, how, r, k, error);
        }
    }
}

static void run_traced(void *arg)
{
    Traced *x = arg;
    x->n = 1;
    x->g = NEWN(x->a, Graph *, 16);
    x->in = NEWN(x->a, Tensor *, 16);
    for (int r = 0; r < x->n; r++) {
        x->g[r] = import_rank(x, r);
        x->in[r] = read_all(x, "inputs", r);
    }
    Ranks ranks = {x->a, x->g[0]->mesh, x->n, x->g}; /* slices and sizes differ among them */
    compare(x, ranks_interpret(&ranks, x->in, NULL), "interpreted");
    if (strcmp(x->name, "moves") != 0) /* where ranks take different slices plans differ too */
        compare(x, ranks_execute(&ranks, device_at(DEVICE_cpu), x->in), "on planned arenas");
}

static void test_traced(void)
{
    static const char *const names[] = {"fsdp",  "tp",         "fsdp_tp",
                                        "moves", "functional", "fsdp2_copies"};
    for (int k = 0; k < LEN(names); k++) {
        Ctx ctx = {0};
        Traced x = {.a = arena_new(&ctx), .name = names[k]};
        if (!EXPECT(ctx_try(&ctx, run_traced, &x) == TN_OK))
            printf("  %s: %s\n", x.name, ctx.message);
        arena_free(x.a);
        ctx_end(&ctx);
    }
}

int main(void)
{
    test_traced();
    test_calls();
    test_tables();
    test_options();
    return test_report();
}
