/* Gradients of products whose operands are transposed values: they equal those of the plain
 * product, and are a transposed product, so that the gradient of a weight stored [out, in] lies as
 * the weight does. (tests/op has the products themselves; their operands are never made by a node.)
 */
#include "../src/op/op.h"

#include "interp.h"

#include <math.h>

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
        turned[i] = (node_is(last, "t") || node_is(last, "transpose")) && last->in[0]->def &&
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

static void check(void *ctx)
{
    Arena *a = arena_new(ctx);
    check_rank(a, 2);
    check_rank(a, 3);
    arena_free(a);
}

int main(void)
{
    Ctx ctx = {0};
    if (ctx_try(&ctx, check, &ctx)) {
        printf("%s\n", ctx.message);
        failed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
