/* Ops whose semantics are PyTorch's choice, against its results (2.x; worked out by hand from its
 * documentation): where NaN sorts, which of equal elements comes first, where indexed axes go,
 * which indices wrap. Each row runs by the op's ref and by every kernel that accepts. */
#include "../shared/case.h"
#include "../shared/test.h"

#include <math.h>

enum { MOST_IN = 4, MOST = 12 };

typedef struct Known {
    const char *node;          /* of %a, %b, ... */
    const char *type[MOST_IN]; /* of these */
    double in[MOST_IN][MOST];
    int output; /* which result */
    double want[MOST];
} Known;

#define N NAN
/* clang-format off */
static const Known rows[] = {
    /* NaN is the greatest, either way; equal elements keep their order, also descending */
    {"sort(%a)", {"f32[6]"}, {{2, N, -1, 2, N, -INFINITY}}, 0, {-INFINITY, -1, 2, 2, N, N}},
    {"sort(%a)", {"f32[6]"}, {{2, N, -1, 2, N, -INFINITY}}, 1, {5, 2, 0, 3, 1, 4}},
    {"sort(%a, descending=true)", {"f32[6]"}, {{2, N, -1, 2, N, INFINITY}}, 0, {N, N, INFINITY, 2, 2, -1}},
    {"sort(%a, descending=true)", {"f64[6]"}, {{2, N, -1, 2, N, INFINITY}}, 1, {1, 4, 5, 0, 3, 2}},
    {"sort(%a)", {"f32[4]"}, {{0.0, -0.0, 0.0, -0.0}}, 1, {0, 1, 2, 3}},
    {"sort(%a)", {"bf16[3]"}, {{1, N, -1}}, 1, {2, 0, 1}},
    {"sort(%a)", {"u8[3]"}, {{200, 3, 100}}, 1, {1, 2, 0}},
    {"sort(%a)", {"i64[3]"}, {{1, -5, 3}}, 0, {-5, 1, 3}},
    {"topk(%a, k=3)", {"f32[6]"}, {{2, N, -1, 2, N, 7}}, 1, {1, 4, 5}},
    {"topk(%a, k=3, largest=false)", {"f32[6]"}, {{2, N, -1, 2, N, 7}}, 1, {2, 0, 3}},
    {"topk(%a, k=2)", {"i64[5]"}, {{1, 4, 4, 4, 2}}, 1, {1, 2}},
    {"argmax(%a)", {"f32[6]"}, {{2, 7, N, 7, N, 3}}, 0, {2}},
    {"argmin(%a)", {"f32[6]"}, {{2, -7, 3, N, N, -7}}, 0, {3}},
    {"argmax(%a)", {"f32[2, 3]"}, {{1, 5, 2, 5, 0, 5}}, 0, {1}},
    {"argmin(%a)", {"f32[4]"}, {{3, -1, -1, 2}}, 0, {1}},
    {"argmin(%a)", {"u8[3]"}, {{255, 255, 254}}, 0, {2}},
    /* x[:, [2, -1]]; x[[1, 0], [0, -1]]; neighbours stay in place, others go to the front */
    {"index(%a, %b, dims=[1])", {"f32[2, 3]", "i64[2]"}, {{0, 1, 2, 3, 4, 5}, {1, -1}}, 0, {1, 2, 4, 5}},
    {"index(%a, %b, %c, dims=[0, 1])", {"f32[2, 3]", "i64[2]", "i64[2]"}, {{0, 1, 2, 3, 4, 5}, {1, 0}, {0, -1}}, 0, {3, 2}},
    {"index(%a, %b, %c, dims=[1, 2])", {"f32[2, 2, 2]", "i64[3]", "i64[3]"}, {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 1}, {1, 0, 1}}, 0, {1, 2, 3, 5, 6, 7}},
    {"index(%a, %b, %c, dims=[0, 2])", {"f32[2, 2, 2]", "i64[3]", "i64[3]"}, {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 1}, {1, 0, 1}}, 0, {1, 3, 4, 6, 5, 7}},
    {"index_put(%a, %b, %c, dims=[0])", {"f32[4]", "f32[3]", "i64[3]"}, {{0, 0, 0, 0}, {1, 2, 3}, {1, -1, 1}}, 0, {0, 3, 0, 2}},
    {"index_put(%a, %b, %c, dims=[0], accumulate=true)", {"f32[4]", "f32[3]", "i64[3]"}, {{10, 0, 0, 0}, {1, 2, 3}, {1, -1, 1}}, 0, {10, 4, 0, 2}},
    {"index_put(%a, %b, %c, dims=[0], accumulate=true)", {"bf16[2]", "bf16[4]", "i64[4]"}, {{256, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}}, 0, {260, 0}},
    {"gather(%a, %b, dim=0)", {"f32[2, 3]", "i64[2, 2]"}, {{0, 1, 2, 3, 4, 5}, {1, 0, 0, 1}}, 0, {3, 1, 0, 4}},
    {"gather(%a, %b, dim=1)", {"f32[2, 3]", "i64[2, 2]"}, {{0, 1, 2, 3, 4, 5}, {2, 0, 0, 1}}, 0, {2, 0, 3, 4}},
    {"scatter(%a, %b, %c, dim=1)", {"f32[2, 3]", "i64[1, 2]", "f32[2, 3]"}, {{0}, {2, 2}, {7, 8, 9, 1, 1, 1}}, 0, {0, 0, 8, 0, 0, 0}},
    {"scatter_add(%a, %b, %c, dim=0)", {"f32[2, 2]", "i64[3, 2]", "f32[3, 2]"}, {{1, 1, 1, 1}, {0, 1, 0, 0, 0, 1}, {1, 2, 3, 4, 5, 6}}, 0, {10, 5, 1, 9}},
    {"triu(%a, diagonal=1)", {"i64[2, 3]"}, {{1, 2, 3, 4, 5, 6}}, 0, {0, 2, 3, 0, 0, 6}},
    {"tril(%a, diagonal=-1)", {"f32[3, 2]"}, {{1, N, 3, N, 5, 6}}, 0, {0, 0, 3, 0, 5, 6}},
    {"cumsum(%a, dim=0)", {"f32[4]"}, {{1, 2, N, 4}}, 0, {1, 3, N, N}},
    {"cumsum(%a, dim=0, reverse=true)", {"i64[4]"}, {{1, 2, 3, 4}}, 0, {10, 9, 7, 4}},
    {"flip(%a, dims=[0])", {"f32[2, 2]"}, {{1, 2, 3, 4}}, 0, {3, 4, 1, 2}},
    {"repeat_interleave(%a, output_size=4)", {"i64[3]"}, {{1, 0, 3}}, 0, {0, 2, 2, 2}},
    {"diagonal(%a, offset=1)", {"f32[2, 3]"}, {{0, 1, 2, 3, 4, 5}}, 0, {1, 5}},
    {"diagonal(%a, offset=-1)", {"f32[3, 2]"}, {{0, 1, 2, 3, 4, 5}}, 0, {2, 5}},
    {"unfold(%a, dimension=0, size=2, step=2)", {"f32[5]"}, {{0, 1, 2, 3, 4}}, 0, {0, 1, 2, 3}},
    {"as_strided(%a, size=[2, 2], stride=[1, 2], storage_offset=1)", {"f32[2, 3]"}, {{0, 1, 2, 3, 4, 5}}, 0, {1, 3, 2, 4}},
    {"slice_scatter(%a, %b, dim=0, start=1, step=2)", {"f32[5]", "f32[2]"}, {{0, 1, 2, 3, 4}, {8, 9}}, 0, {0, 8, 2, 9, 4}},
    {"constant_pad_nd(%a, pad=[-1, 1], value=9.0)", {"f32[2, 2]"}, {{1, 2, 3, 4}}, 0, {2, 9, 4, 9}},
};
/* clang-format on */

static Tensor tensor_of(Arena *a, const Type *t, const double *values)
{
    Tensor x = tensor_new(a, t, 0);
    for (int64_t i = 0; values && i < tensor_nelem(&x); i++)
        tensor_set(&x, i, values[i]);
    return x;
}

static void compare(const Known *k, const char *kernel, const Tensor *y)
{
    for (int64_t i = 0; i < tensor_nelem(y); i++) {
        double got = tensor_get(y, i), want = k->want[i];
        if (!EXPECT(got == want || (isnan(got) && isnan(want))))
            printf("  %s by %s: element %lld is %g, expected %g\n", k->node, kernel, (long long)i,
                   got, want);
    }
}

static void run_kernel(Arena *a, const Known *k, const Node *n, const Kernel *kernel)
{
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    c.in = NEWN(a, Tensor, n->nin);
    c.out = NEWN(a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++)
        c.in[i] = tensor_of(a, &n->in[i]->type, k->in[i]);
    for (int i = 0; i < n->nout; i++)
        c.out[i] = tensor_of(a, &n->out[i]->type, NULL);
    if (kernel->accepts && !kernel->accepts(&c))
        return;
    kernel_prepare(kernel, &c, a);
    c.work = guarded_alloc(a, c.nbytes_work, 0xff);
    if (!EXPECT(kernel->run(&c) == 0))
        printf("  %s by %s: %s\n", k->node, kernel->name, c.message);
    else
        compare(k, kernel->name, &c.out[k->output]);
}

static void check_row(Arena *a, const Known *k)
{
    Buf text = {.a = a};
    buf_add(&text, "tenon 1\ngraph g(");
    for (int i = 0; i < MOST_IN && k->type[i]; i++)
        buf_printf(&text, "%s%%%c: %s", i ? ", " : "", 'a' + i, k->type[i]);
    buf_printf(&text, ") {\n  %s = %s\n  return %%y\n}\n",
               strstr(k->node, "sort") || strstr(k->node, "topk") ? "%y, %z" : "%y", k->node);
    Node *n = graph_parse(a, text.text, "row")->first;
    const OpRules *rules = n->op->rules;
    Kernel ref = {.name = "ref", .run = rules->ref};
    run_kernel(a, k, n, &ref);
    for (const Kernel *kernel = rules->kernels; kernel && kernel->run; kernel++)
        run_kernel(a, k, n, kernel);
}

static void run(void *arg)
{
    for (int i = 0; i < LEN(rows); i++) {
        check_row(arg, &rows[i]);
        arena_reset(arg);
    }
}

int main(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    if (!EXPECT(ctx_try(&ctx, run, a) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
