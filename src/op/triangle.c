/* triu, tril: the part of each matrix (the last two axes) on and above, or on and below, the
 * diagonal `diagonal`; elements elsewhere are 0. ATen's semantics, any dtype; bits are moved. */
#include "rows.h"

enum { DIAGONAL };

static const AttrField attrs[] = {{"diagonal", ATTR_INT, .i = 0}, {0}};

static int infer(const Graph *g, const Node *n, Type *out)
{
    need_rank(g, n, 0, 2, TN_RANK);
    out[0] = n->in[0]->type;
    return 1;
}

static void diff(Grad *d)
{
    d->dx[0] =
        emit1(d->b, d->n->op->name, IN(d->dy[0]), ATTRS(A_INT("diagonal", d->n->attr[DIAGONAL].i)));
}

static void factors(const Node *n, Factors *f)
{
    factors_rows(n, f, 3u << (n->in[0]->type.rank - 2));
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t rows = x->dim[x->rank - 2], columns = x->dim[x->rank - 1];
    int64_t diagonal = c->node->attr[DIAGONAL].i;
    bool upper = node_is(c->node, OP_triu);
    int size = dtype_size(x->dtype);
    for (int64_t i = 0; i < tensor_nelem(x); i++) {
        int64_t above = i % columns - i / columns % rows;
        char *to = element(y, tensor_linear(y, i));
        if (upper ? above >= diagonal : above <= diagonal)
            memmove(to, element(x, tensor_linear(x, i)), (size_t)size);
        else
            memset(to, 0, (size_t)size);
    }
    return 0;
}

/* ---- kernel: dense rows of any dtype ---- */

static bool accepts(const Call *c)
{
    int last = c->in[0].rank - 1;
    return rows_contiguous(&c->in[0], last) && rows_contiguous(&c->out[0], last);
}

static void copy_rows(void *arg, int64_t lo, int64_t hi)
{
    const Call *c = arg;
    const Tensor *x = &c->in[0];
    Rows at = rows_of(x, x->rank - 1), to_at = rows_of(&c->out[0], x->rank - 1);
    int64_t rows = x->dim[x->rank - 2], columns = x->dim[x->rank - 1];
    int64_t size = dtype_size(x->dtype);
    int64_t diagonal = MAX(-rows - 1, MIN(columns + 1, c->node->attr[DIAGONAL].i));
    bool upper = node_is(c->node, OP_triu);
    for (int64_t i = lo; i < hi; i++) {
        char *to = element(&c->out[0], row_offset(&to_at, i));
        int64_t cut = MAX(0, MIN(columns, i % rows + diagonal + !upper)) * size;
        int64_t from = upper ? cut : 0, end = upper ? columns * size : cut;
        const char *row = element(x, row_offset(&at, i));
        if (to != row)
            memcpy(to + from, row + from, (size_t)(end - from));
        memset(to, 0, (size_t)from);
        memset(to + end, 0, (size_t)(columns * size - end));
    }
}

static int run(Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t columns = x->dim[x->rank - 1];
    if (columns)
        par_for(tensor_nelem(x) / columns, row_grain(columns), copy_rows, c);
    return 0;
}

static const Kernel kernels[] = {
    {.name = "triangle_rows", .accepts = accepts, .run = run, .strided_out = true}, {0}};

/* clang-format off */
#define TRIANGLE(name, mathematics)                                                                \
    const OpRules op_##name = {                                                                    \
        .math = mathematics, .example = "f32[2, 4, 6] diagonal=1", .attrs = attrs, .infer = infer, \
        .diff = diff, .cost = cost_bytes, .factors = factors, .inplace = {1}, .kernels = kernels,  \
        .ref = ref, .alias = "aten." #name ".default"}

TRIANGLE(triu, "y[i, j] = x[i, j] where j - i >= diagonal, else 0");
TRIANGLE(tril, "y[i, j] = x[i, j] where j - i <= diagonal, else 0");
/* clang-format on */
