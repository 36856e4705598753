/* Casts to narrower dtypes in place of their operands, for numbers of elements about those where
 * the ranges that are made at once begin and end, on 1, 2 and 5 threads: the bits of a cast apart,
 * and nothing behind the operand is written. And accumulated products: in a loop, in place, the
 * bits of a chain of products each of which is added to a copy. */
#include "../../src/exec/exec.h"

#include "../shared/test.h"

#include <string.h>

static Ctx ctx;

/* ---- casts ---- */

static Call cast_call(Arena *a, int64_t n, DType from, DType to)
{
    Graph *g = graph_new(a, "cast");
    Build b = {.g = g, .scope = ""};
    Type t = type_make(from, 1, &n);
    Value *x = graph_input(g, "x", t, ROLE_NONE, NULL);
    const Node *node = emit1(&b, "_to_copy", IN(x), ATTRS(A_DTYPE("dtype", to)))->def;
    Call c = {
        .node = node, .nin = 1, .nout = 1, .in = NEWN(a, Tensor, 1), .out = NEWN(a, Tensor, 1)};
    c.in[0] = (Tensor){.dtype = from, .rank = 1, .dim = {n}, .stride = {1}};
    c.out[0] = (Tensor){.dtype = to, .rank = 1, .dim = {n}, .stride = {1}};
    return c;
}

static void check_cast(Arena *a, int64_t n, DType from, DType to)
{
    enum { BEHIND = 64 };
    Call c = cast_call(a, n, from, to);
    const Kernel *k = op_kernels(c.node->op, KERNELS_CPU);
    size_t wide = (size_t)(n * dtype_size(from)), narrow = (size_t)(n * dtype_size(to));
    char *x = arena_alloc(a, wide + BEHIND), *y = arena_alloc(a, narrow);
    c.in[0].data = x;
    for (int64_t i = 0; i < n; i++)
        tensor_set(&c.in[0], i, (double)(i * 7919 % 2003 - 1001) / (from == I64 ? 1 : 777));
    memset(x + wide, 0xA5, BEHIND);
    c.out[0].data = y;
    EXPECT(k->over_wider && k->accepts(&c) && !k->run(&c));
    c.out[0].data = x;
    EXPECT(!k->run(&c) && !memcmp(x, y, narrow));
    for (int i = 0; i < BEHIND; i++)
        EXPECT((unsigned char)x[wide + (size_t)i] == 0xA5);
}

static void check_casts(void *arg)
{
    static const int64_t size[] = {0,   1,   2,    3,     63,    64,      65,     127,
                                   128, 129, 1000, 32768, 65537, 1000001, 2097153};
    static const DType pair[][2] = {{F32, BF16}, {F32, F16}, {F64, F32},
                                    {F64, BF16}, {I64, I32}, {I64, BOOL}};
    static const int threads[] = {1, 2, 5};
    for (int t = 0; t < LEN(threads); t++)
        for (int p = 0; p < LEN(pair); p++)
            for (int s = 0; s < LEN(size); s++) {
                Arena *a = arena_new(&ctx);
                par_set_threads(threads[t]);
                check_cast(a, size[s], pair[p][0], pair[p][1]);
                arena_free(a);
            }
    (void)arg;
}

/* ---- products that are added up ---- */

enum { PARTS = 5, DEPTH = 8, ROWS = 67, COLS = 129 };

static const char *loop_text(Arena *a, const char *dtype, const char *sum)
{
    return arena_printf(
        a,
        "tenon 1\ngraph g(%%x: %s[%d, %d], %%y: %s[%d, %d]) {\n"
        "  %%z = full(size=[%d, %d], fill_value=0.0, dtype=%s)\n"
        "  %%s = loop(n=%d, slice %%a: %s[%d, %d] = %%x axis 0, slice %%b: %s[%d, %d] = %%y axis "
        "0, "
        "carry %%c: %s[%d, %d] = %%z) -> (carry %%c) {\n"
        "    %%t = t(%%a)\n    %%d = addmm(%%c, %%t, %%b, out_dtype=%s)\n    yield %%d\n  }\n"
        "  return %%s\n}\n",
        dtype, PARTS * DEPTH, ROWS, dtype, PARTS * DEPTH, COLS, ROWS, COLS, sum, PARTS, dtype,
        DEPTH, ROWS, dtype, DEPTH, COLS, sum, ROWS, COLS, sum);
}

/* The same without a loop. Each sum is a result too, so that none may be overwritten. */
static const char *chain_text(Arena *a, const char *dtype, const char *sum)
{
    Buf b = {.a = a}, out = {.a = a};
    buf_printf(&b, "tenon 1\ngraph g(%%x: %s[%d, %d], %%y: %s[%d, %d]) {\n", dtype, PARTS * DEPTH,
               ROWS, dtype, PARTS * DEPTH, COLS);
    buf_printf(&b, "  %%s0 = full(size=[%d, %d], fill_value=0.0, dtype=%s)\n", ROWS, COLS, sum);
    for (int i = 0; i < PARTS; i++) {
        int from = i * DEPTH, to = from + DEPTH;
        buf_printf(&b, "  %%a%d = slice(%%x, start=%d, end=%d)\n", i, from, to);
        buf_printf(&b, "  %%b%d = slice(%%y, start=%d, end=%d)\n", i, from, to);
        buf_printf(&b, "  %%t%d = t(%%a%d)\n", i, i);
        buf_printf(&b, "  %%s%d = addmm(%%s%d, %%t%d, %%b%d, out_dtype=%s)\n", i + 1, i, i, i, sum);
        buf_printf(&out, "%s%%s%d", i ? ", " : "", PARTS - i);
    }
    buf_printf(&b, "  return %s\n}\n", out.text);
    return b.text;
}

/* Result 0 of the graph; copies: how many its plan has. */
static const char *result(Arena *a, const char *text, int *copies)
{
    Graph *g = graph_parse(a, text, "sum");
    graph_verify(g);
    Plan *p = plan_make(a, g, NULL);
    Program *x = program_make(a, p, true, 0);
    for (int i = 0; i < p->nin; i++) {
        Tensor t = {.dtype = p->in[i].type.dtype, .data = program_data(x, &p->in[i])};
        for (int64_t k = 0; k < type_nelem(&p->in[i].type); k++)
            tensor_set(&t, k, (double)((k * 31 + i * 17) % 199 - 99) / 64);
    }
    EXPECT(!program_run(x));
    *copies = p->ncopies;
    return program_data(x, &p->out[0]);
}

static void check_products(void *arg)
{
    (void)arg;
    for (int threads = 1; threads <= 2; threads++)
        for (int k = 0; k < 5; k++) {
            static const char *const dtype[][2] = {
                {"f32", "f32"}, {"bf16", "f32"}, {"f16", "f32"}, {"bf16", "bf16"}, {"f16", "f16"}};
            Arena *a = arena_new(&ctx);
            par_set_threads(threads);
            int in_loop, in_chain;
            const char *x = result(a, loop_text(a, dtype[k][0], dtype[k][1]), &in_loop);
            const char *y = result(a, chain_text(a, dtype[k][0], dtype[k][1]), &in_chain);
            EXPECT(!memcmp(x, y, (k < 3 ? 4 : 2) * ROWS * COLS) && in_loop == 0 && x[5] != 0);
            arena_free(a);
        }
}

int main(void)
{
    EXPECT(!ctx_try(&ctx, check_casts, NULL));
    EXPECT(!ctx_try(&ctx, check_products, NULL));
    if (ctx.message[0])
        printf("%s\n", ctx.message);
    ctx_end(&ctx);
    return test_report();
}
