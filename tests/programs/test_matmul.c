/* Gradients of products whose operands are transposed values: they equal those of the plain
 * product, and are a transposed product, so that the gradient of a weight stored [out, in] lies as
 * the weight does. (tests/op has the products themselves; their operands are never made by a node.)
 * And products of sizes about 2^31 and 2^32, which are planned or refused, and of rows far apart;
 * and the memory that ways to make a product take.
 */
#include "../../src/exec/exec.h"

#include "../shared/interp.h"

#include <math.h>
#include <string.h>

static int passed, failed;

static void count(bool good, const char *what, int a, int b, int i)
{
    passed += good;
    failed += !good;
    if (!good)
        printf("%s of operand %d, a %s, b %s: wrong\n", what, i, a ? "transposed" : "plain",
               b ? "transposed" : "plain");
}

/* An input of the product: of this type, or made from an input by swapping the last two axes. */
static Value *operand(Build *b, const Type *t, bool swapped)
{
    int r = t->rank;
    Type from = *t;
    if (!swapped)
        return graph_input(b->g, "x", *t, ROLE_NONE, NULL);
    from.dim[r - 2] = t->dim[r - 1];
    from.dim[r - 1] = t->dim[r - 2];
    Value *x = graph_input(b->g, "x", from, ROLE_NONE, NULL);
    if (r == 2)
        return emit1(b, "t", IN(x), NOATTRS);
    return emit1(b, "transpose", IN(x), ATTRS(A_INT("dim0", -1), A_INT("dim1", r - 2)));
}

/* Values that a tensor and its transpose share: a function of the element's place in the product.
 */
static Tensor values(Arena *a, const Value *input, const Type *t, int which)
{
    const Type *own = &input->type;
    int r = t->rank;
    Tensor x = {.dtype = F64, .rank = r};
    for (int d = 0; d < r; d++)
        x.dim[d] = own->dim[d];
    tensor_fill_strides(&x);
    x.data = (char *)NEWN(a, double, tensor_nelem(&x));
    bool swapped = own->dim[r - 1] != t->dim[r - 1];
    int64_t ix[TN_RANK] = {0};
    do {
        int64_t row = ix[swapped ? r - 1 : r - 2], column = ix[swapped ? r - 2 : r - 1];
        double v = sin((double)(which * 100 + row * 10 + column + (r == 3 ? ix[0] * 7 : 0)));
        tensor_set(&x, tensor_index(&x, ix), v);
    } while (next_index(r, x.dim, ix));
    return x;
}

/* Both gradients of the product with these operands, by diff; whether each is a transposed product.
 */
static void gradients(Arena *a, const Type type[3], const bool swapped[2], Tensor *dx, bool *turned)
{
    Graph *g = graph_new(a, "product");
    Build b = {.g = g};
    Value *x[2], *dy, *result[2] = {0};
    for (int i = 0; i < 2; i++)
        x[i] = operand(&b, &type[i], swapped[i]);
    dy = graph_input(g, "dy", type[2], ROLE_NONE, NULL);
    Node *n = emit(&b, type[0].rank == 2 ? "mm" : "bmm", 2, x, NOATTRS);
    Grad d = {&b, n, &dy, (const bool[]){true, true}, result};
    n->op->rules->diff(&d);
    Tensor in[3];
    for (int i = 0; i < 3; i++)
        in[i] = values(a, g->in[i].v, &type[i], i);
    for (int i = 0; i < 2; i++) {
        const Node *last = result[i]->def;
        turned[i] = (node_is(last, OP_t) || node_is(last, OP_transpose)) && last->in[0]->def &&
                    last->in[0]->def->op == n->op;
        graph_output(g, result[i], ROLE_NONE, NULL);
    }
    interp_graph(a, g, in, dx);
}

static void check_rank(Arena *a, int rank)
{
    const int64_t dim[3][3] = {{2, 3, 4}, {2, 4, 5}, {2, 3, 5}};
    const bool plain[2] = {false, false};
    bool turned[2];
    Type type[3];
    Tensor want[2], got[2];
    for (int i = 0; i < 3; i++)
        type[i] = type_make(F64, rank, dim[i] + 3 - rank);
    gradients(a, type, plain, want, turned);
    for (int how = 0; how < 4; how++) {
        const bool swapped[2] = {how & 1, how >> 1};
        gradients(a, type, swapped, got, turned);
        for (int i = 0; i < 2; i++) {
            double worst = 0;
            for (int64_t e = 0; e < tensor_nelem(&want[i]); e++)
                worst = fmax(worst, fabs(tensor_get(&got[i], e) - tensor_get(&want[i], e)));
            count(shape_equal(&type[i],
                              &(Type){F64, rank, {got[i].dim[0], got[i].dim[1], got[i].dim[2]}}) &&
                      worst < 1e-14,
                  "gradient", swapped[0], swapped[1], i);
            count(turned[i] == swapped[i], "layout of the gradient", swapped[0], swapped[1], i);
        }
    }
}

/* ---- sizes that the library would count in 32 bits ---- */

/* A graph of one product, planned; what it says where it is refused. */
typedef struct Large {
    Arena *a;
    const char *text;
    Plan *p;
} Large;

static void plan_large(void *arg)
{
    Large *x = arg;
    Graph *g = graph_parse(x->a, x->text, "large");
    graph_verify(g);
    x->p = plan_make(x->a, g, NULL);
}

static void check_limit(Arena *a, const char *text, bool legal)
{
    Large x = {a, text, NULL};
    Ctx *ctx = arena_ctx(a);
    ctx->message[0] = 0;
    bool planned = !ctx_try(ctx, plan_large, &x);
    bool good = legal ? planned : !planned && strstr(ctx->message, "expected sizes of at most");
    count(good, legal ? "a size that is counted" : "a size that is not", 0, 0, 0);
    if (!good)
        printf("  %s\n  %s\n", text, ctx->message);
}

static const char *product_text(Arena *a, const char *dtype, int64_t m, int64_t k, int64_t n)
{
    return arena_printf(a,
                        "tenon 1\ngraph g(%%a: %s[%lld, %lld], %%b: %s[%lld, %lld]) {\n"
                        "  %%y: %s[%lld, %lld] = mm(%%a, %%b)\n  return %%y\n}\n",
                        dtype, (long long)m, (long long)k, dtype, (long long)k, (long long)n, dtype,
                        (long long)m, (long long)n);
}

static void check_limits(Arena *a)
{
    const int64_t legal[] = {(1LL << 31) - 64, (1LL << 31) - 1};
    const int64_t beyond[] = {1LL << 31, (1LL << 31) + 1,  (1LL << 32) - 1,
                              1LL << 32, (1LL << 32) + 64, 1LL << 33};
    for (int i = 0; i < LEN(legal) + LEN(beyond); i++) {
        bool good = i < LEN(legal);
        int64_t n = good ? legal[i] : beyond[i - LEN(legal)];
        for (int d = 0; d < 2; d++) {
            const char *dtype = d ? "bf16" : "f32";
            check_limit(a, product_text(a, dtype, n, 16, 8), good);
            check_limit(a, product_text(a, dtype, 8, n, 16), good);
            check_limit(a, product_text(a, dtype, 8, 16, n), good);
        }
        check_limit(a,
                    arena_printf(a,
                                 "tenon 1\ngraph g(%%a: f32[%lld, 2, 3], %%b: f32[%lld, 3, 2]) {\n"
                                 "  %%y: f32[%lld, 2, 2] = bmm(%%a, %%b)\n  return %%y\n}\n",
                                 (long long)n, (long long)n, (long long)n),
                    good);
        check_limit(a,
                    arena_printf(a,
                                 "tenon 1\ngraph g(%%c: f32[3], %%a: f32[%lld, 2], %%b: f32[2, 3]) "
                                 "{\n  %%y: f32[%lld, 3] = addmm(%%c, %%a, %%b)\n  return %%y\n}\n",
                                 (long long)n, (long long)n),
                    good);
    }
}

/* Buffers whose sizes would not sum in 64 bits. */
static void check_sum(Arena *a)
{
    Buf b = {.a = a}, results = {.a = a};
    buf_add(&b, "tenon 1\ngraph g(%x: f32[18014398509481984]) {\n");
    for (int i = 0; i < 130; i++) {
        buf_printf(&b, "  %%y%d: f32[18014398509481984] = neg(%%x)\n", i);
        buf_printf(&results, "%s%%y%d", i ? ", " : "", i);
    }
    buf_printf(&b, "  return %s\n}\n", results.text);
    Large x = {a, b.text, NULL};
    Ctx *ctx = arena_ctx(a);
    bool refused = ctx_try(ctx, plan_large, &x) && strstr(ctx->message, "at most 2^62 bytes");
    count(refused, "a sum of buffers beyond 2^62 bytes", 0, 0, 0);
}

/* Rows of 2^25 elements, nearly all of which are zeros of pages that are never made. */
static void check_far_rows(Arena *a, bool transposed)
{
    enum { ROWS = 24 };
    const int64_t n = (1LL << 25) + 64;
    Large x = {a, NULL, NULL};
    long long length = n;
    x.text = arena_printf(
        a,
        transposed ? "tenon 1\ngraph g(%%a: f32[%d, %lld], %%b: f32[1, %lld], %%c: f32[%d]) {\n"
                     "  %%t: f32[%lld, %d] = t(%%a)\n"
                     "  %%y: f32[1, %d] = addmm(%%c, %%b, %%t)\n  return %%y\n}\n"
                   : "tenon 1\ngraph g(%%a: f32[%d, %lld], %%b: f32[%lld, 1], %%c: f32[%d]) {\n"
                     "  %%t: f32[%lld, %d] = t(%%a)\n"
                     "  %%y: f32[%d, 1] = mm(%%a, %%b)\n  return %%y\n}\n",
        ROWS, length, length, ROWS, length, ROWS, ROWS);
    plan_large(&x);
    Program *program = program_make(a, x.p, false, 0);
    float *m = program_data(program, &x.p->in[0]), *v = program_data(program, &x.p->in[1]);
    float *bias = program_data(program, &x.p->in[2]);
    double want[ROWS] = {0};
    for (int i = 0; i < ROWS && transposed; i++)
        bias[i] = (float)(want[i] = i - 7);
    for (int64_t k = 5; k < n; k += n / 8) {
        v[k] = (float)(1 + k % 7);
        for (int i = 0; i < ROWS; i++) {
            m[i * n + k] = (float)(i + 1 + k % 3);
            want[i] += (double)m[i * n + k] * v[k];
        }
    }
    bool good = !program_run(program);
    const float *y = program_data(program, &x.p->out[0]);
    for (int i = 0; i < ROWS; i++)
        good = good && y[i] == want[i];
    count(good, "product of rows far apart", 0, transposed, 0);
}

/* ---- the memory that ways take ---- */

/* The tensor of a value: as t says, its columns one behind the other. */
static Tensor lay(const Type *t, bool turned)
{
    Tensor x = {.dtype = t->dtype, .rank = 2, .dim = {t->dim[0], t->dim[1]}};
    tensor_fill_strides(&x);
    if (turned) {
        x.stride[0] = 1;
        x.stride[1] = x.dim[0];
    }
    return x;
}

/* Asks every kernel for its workspace, counts those that take the call. No way takes more than
 * 64 MiB, the transposed product 1 MiB, or an eighth of what the call reads and writes, beside
 * small scratchpads; operands in f32 instead of 16 bits are no choice. */
static int check_spare(Arena *a, const char *dtype, int64_t m, int64_t k, int64_t n)
{
    Graph *g = graph_parse(a, product_text(a, dtype, m, k, n), "ways");
    graph_verify(g);
    const Node *mm = g->last;
    int count = 0;
    for (int how = 0; how < 4; how++) {
        Tensor in[] = {lay(&mm->in[0]->type, how & 1), lay(&mm->in[1]->type, how & 2)};
        Tensor y = lay(&mm->out[0]->type, false);
        Call c = {.node = mm, .nin = 2, .nout = 1, .in = in, .out = &y};
        int64_t nbytes = type_nbytes(&mm->in[0]->type) + type_nbytes(&mm->in[1]->type) +
                         type_nbytes(&mm->out[0]->type);
        for (const Kernel *x = op_kernels(mm->op, KERNELS_CPU); x->name; x++) {
            if (!x->accepts(&c) || strstr(x->name, "widened"))
                continue;
            count++;
            int64_t spare = strstr(x->name, "swapped") ? 1 << 20 : 64 << 20;
            if (kernel_workspace(arena_ctx(a), x, &c) <= MAX(spare, nbytes / 8) + (8 << 20))
                continue;
            failed++;
            printf("%s takes %lld bytes of workspace\n", x->name,
                   (long long)kernel_workspace(arena_ctx(a), x, &c));
        }
    }
    return count;
}

static void check_ways(Arena *a)
{
    count(check_spare(a, "f32", 64, 768, 3072) > 4 * 4, "ways of few rows", 0, 0, 0);
    count(check_spare(a, "f32", 4096, 768, 3072) == 4 * 4 + 2, "ways of a product", 0, 0, 0);
    int some = check_spare(a, "f32", 512, 2048, 128256);
    count(some == 4 * 2, "ways of a head", 0, 0, 0);
    count(check_spare(a, "f32", 128256, 2048, 512) > some, "ways of a head's gradient", 0, 0, 0);
}

static void check(void *ctx)
{
    Arena *a = arena_new(ctx);
    check_ways(a);
    check_rank(a, 2);
    check_rank(a, 3);
    check_limits(a);
    check_sum(a);
    check_far_rows(a, false);
    check_far_rows(a, true);
    arena_free(a);
}

int main(void)
{
    Ctx ctx = {0};
    if (ctx_try(&ctx, check, &ctx)) {
        printf("%s\n", ctx.message);
        failed++;
    }
    ctx_end(&ctx);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
