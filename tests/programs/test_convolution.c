/* Kernels of convolutions: whatever the number of threads the bits are the same, an image's do not
 * depend on the images beside it, and nothing is written beside the workspace. Batches of several
 * blocks of images, of one and of more images than are multiplied at once; f32, bf16, f16. */
#include "../../src/op/convolution.h"
#include "../shared/case.h"
#include "../shared/test.h"

#include <string.h>

typedef struct Shape {
    int rank;
    int64_t x[5], w[5];
    int64_t stride, padding, dilation, groups;
    bool transposed;
} Shape;

static const Shape shapes[] = {
    {4, {40, 8, 9, 7}, {12, 8, 3, 3}, 2, 1, 1, 1, false},
    {4, {40, 8, 9, 7}, {8, 12, 3, 3}, 2, 1, 1, 1, true},
    {4, {35, 4, 200, 200}, {8, 4, 3, 3}, 4, 1, 1, 1, false},  /* images of a block in turn */
    {4, {6, 12, 24, 24}, {256, 12, 1, 1}, 1, 0, 1, 1, false}, /* products, in blocks and rows */
    {3, {6, 48, 70}, {48, 1, 4}, 1, 3, 1, 48, false},
    {3, {6, 48, 70}, {48, 1, 4}, 1, 3, 1, 48, true},
    {4, {9, 3, 32, 32}, {40, 3, 8, 8}, 8, 0, 1, 1, false},
    {5, {4, 6, 5, 6, 7}, {8, 3, 2, 2, 2}, 1, 1, 2, 2, false},
};

static Tensor random_tensor(Arena *a, const Type *t, int stream)
{
    Tensor x = tensor_new(a, t, 0);
    for (int64_t i = 0, n = type_nelem(t); i < n; i++)
        tensor_set(&x, i, 2 * random_uniform(7, (uint32_t)stream, 0, (uint64_t)i) - 1);
    return x;
}

static const Kernel *kernel_of(const Node *n, Tensor *in, int skip)
{
    Tensor y = {.dtype = n->out[0]->type.dtype, .rank = n->out[0]->type.rank};
    Call c = {.node = n, .in = in, .out = &y, .nin = n->nin, .nout = 1};
    memcpy(y.dim, n->out[0]->type.dim, sizeof y.dim);
    tensor_fill_strides(&y);
    for (const Kernel *k = op_kernels(n->op, KERNELS_CPU); k->name; k++)
        if (kernel_takes(k, &c) && !skip--)
            return k;
    return NULL;
}

/* Kernel k on these operands, with so many threads. */
static Tensor run(Arena *a, const Kernel *k, const Node *n, Tensor *in, int threads)
{
    Tensor *y = NEW(a, Tensor);
    *y = tensor_new(a, &n->out[0]->type, 0x5a);
    Call c = {.node = n, .in = in, .out = y, .nin = n->nin, .nout = 1};
    par_set_threads(threads);
    CHECK(k && kernel_takes(k, &c));
    c.nbytes_work = kernel_workspace(arena_ctx(a), k, &c);
    kernel_prepare(k, &c, a);
    c.work = guarded_alloc(a, c.nbytes_work, 0xff);
    if (!EXPECT(!k->run(&c)))
        printf("  %s\n", c.message);
    EXPECT(guarded_intact(c.work, c.nbytes_work));
    EXPECT(guarded_intact(y->data, tensor_nbytes(y)));
    return *y;
}

static void same_for_threads(Arena *a, const Node *n, Tensor *in)
{
    const Kernel *k = kernel_of(n, in, 0);
    EXPECT(k);
    for (int i = 1; k; k = kernel_of(n, in, i++)) {
        Tensor one = run(a, k, n, in, 1);
        for (int threads = 2; threads <= 3; threads++) {
            Tensor y = run(a, k, n, in, threads);
            if (!EXPECT(tensor_same_bits(&one, &y)))
                printf("  %s, %s of %s: other bits with %d threads\n", n->op->name, k->name,
                       type_text(a, &n->in[0]->type), threads);
        }
    }
}

static Node *emit_on(Build *b, const Shape *s, const char *op, int nin, Value *const *in)
{
    int axes = s->rank - 2;
    int64_t list[3][3];
    for (int d = 0; d < axes; d++) {
        list[0][d] = s->stride;
        list[1][d] = s->padding;
        list[2][d] = s->dilation;
    }
    AttrArg attr[] = {A_INTS("stride", axes, list[0]),     A_INTS("padding", axes, list[1]),
                      A_INTS("dilation", axes, list[2]),   A_INT("groups", s->groups),
                      A_BOOL("transposed", s->transposed), {0}};
    if (!strcmp(op, "convolution_backward_weight"))
        attr[4] = A_INTS("kernel", axes, s->w + 2);
    return emit(b, op, nin, in, attr);
}

/* The first image alone has the bits that it has among others. */
static void same_alone(Arena *a, Graph *g, const Shape *s, Tensor *in, const Type *t)
{
    Build b = {.g = g};
    Type one = *t;
    one.dim[0] = 1;
    Value *x = graph_input(g, "alone", one, ROLE_NONE, NULL);
    Value *w = g->in[1].v, *bias = g->in[2].v;
    Node *n = emit_on(&b, s, "convolution", 3, (Value *[]){x, w, bias});
    Tensor part[] = {in[0], in[1], in[2]};
    part[0].dim[0] = 1;
    const Kernel *k = kernel_of(n, part, 0);
    Tensor y = run(a, k, n, part, 2), whole = run(a, k, g->first, in, 2);
    EXPECT(!memcmp(y.data, whole.data, (size_t)tensor_nbytes(&y)));
}

static void test_shape(Arena *a, const Shape *s, DType d)
{
    Graph *g = graph_new(a, "convolution");
    Build b = {.g = g};
    Type x = type_make(d, s->rank, s->x), w = type_make(d, s->rank, s->w);
    int64_t channels = s->transposed ? s->w[1] * s->groups : s->w[0];
    Type bias = type_make(F32, 1, &channels);
    Value *v[] = {graph_input(g, "x", x, ROLE_NONE, NULL), graph_input(g, "w", w, ROLE_NONE, NULL),
                  graph_input(g, "b", bias, ROLE_NONE, NULL)};
    Tensor in[] = {random_tensor(a, &x, 1), random_tensor(a, &w, 2), random_tensor(a, &bias, 3)};
    Node *y = emit_on(&b, s, "convolution", 3, v);
    same_for_threads(a, y, in);
    same_alone(a, g, s, in, &x);
    Tensor made = run(a, kernel_of(y, in, 0), y, in, 2);
    Value *pair[] = {s->transposed ? y->out[0] : v[0], s->transposed ? v[0] : y->out[0]};
    Tensor given[] = {s->transposed ? made : in[0], s->transposed ? in[0] : made};
    same_for_threads(a, emit_on(&b, s, "convolution_backward_weight", 2, pair), given);
}

static void test_shapes(void *arg)
{
    static const DType dtypes[] = {F32, BF16, F16};
    for (int i = 0; i < LEN(shapes) * LEN(dtypes); i++) {
        Arena *a = arena_new(arg);
        test_shape(a, &shapes[i / LEN(dtypes)], dtypes[i % LEN(dtypes)]);
        arena_free(a);
    }
}

int main(void)
{
    Ctx ctx = {0};
    if (!EXPECT(ctx_try(&ctx, test_shapes, &ctx) == TN_OK))
        printf("  %s\n", ctx.message);
    ctx_end(&ctx);
    return test_report();
}
