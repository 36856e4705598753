/* triu, tril: the part of each matrix (the last two axes) on and above, or on and below, the
 * diagonal `diagonal`; elements elsewhere are 0. ATen's semantics, any dtype; bits are moved. An
 * optional operand is added to the diagonal: a part of a matrix that begins at row r and column c
 * has it at r - c. */
#include "rows.h"

enum { DIAGONAL, SHIFT = 1 };

static const AttrField attrs[] = {{"diagonal", ATTR_INT, .i = 0}, {0}};

static int infer(const Graph *g, const Node *n, Type *out)
{
    Type scalar = type_make(I64, 0, NULL);
    need_rank(g, n, 0, 2, TN_RANK);
    if (n->nin > SHIFT)
        need_type(g, n, SHIFT, &scalar);
    out[0] = n->in[0]->type;
    return 1;
}

static void diff(Grad *d)
{
    const Node *n = d->n;
    Value *in[] = {d->dy[0], n->nin > SHIFT ? n->in[SHIFT] : NULL};
    if (d->need[0])
        d->dx[0] =
            emit1(d->b, n->op->name, n->nin, in, ATTRS(A_INT("diagonal", n->attr[DIAGONAL].i)));
}

static void factors(const Node *n, Factors *f)
{
    const Axes *x = &f->in[0];
    factors_rows(n, f, 0);
    for (int d = n->in[0]->type.rank - 2; d < n->in[0]->type.rank; d++)
        if (x->n[d])
            f->factor[x->f[d][0]].placed = true;
}

/* The part's beginning on axis d, or NULL. */
static Value *start_on(const Part *p, int d)
{
    const Axes *x = &p->f->in[0];
    return x->n[d] ? p->start[x->f[d][0]] : NULL;
}

static void part(Part *p)
{
    int rank = p->n->in[0]->type.rank;
    Value *row = start_on(p, rank - 2), *column = start_on(p, rank - 1);
    Value *shift = p->n->nin > SHIFT ? p->in[SHIFT] : NULL;
    if (row)
        shift = shift ? emit1(p->b, "add", IN(shift, row), NOATTRS) : row;
    if (column)
        shift = emit1(p->b, "sub", IN(shift ? shift : emit_full(p->b, 0, I64), column), NOATTRS);
    part_with(p, NULL, shift ? 2 : 1, (Value *[]){p->in[0], shift});
}

/* The diagonal, or one just beyond the matrix. */
static int64_t diagonal_of(const Call *c)
{
    const Tensor *x = &c->in[0];
    int64_t rows = x->dim[x->rank - 2], columns = x->dim[x->rank - 1];
    int64_t shift = c->nin > SHIFT ? tensor_int(&c->in[SHIFT], 0) : 0, sum;
    if (__builtin_add_overflow(c->node->attr[DIAGONAL].i, shift, &sum))
        sum = shift < 0 ? INT64_MIN : INT64_MAX;
    return MAX(-rows - 1, MIN(columns + 1, sum));
}

/* ---- reference ---- */

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t rows = x->dim[x->rank - 2], columns = x->dim[x->rank - 1];
    int64_t diagonal = diagonal_of(c);
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
    int64_t diagonal = diagonal_of(c);
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
        .diff = diff, .cost = cost_bytes, .factors = factors, .part = part, .inplace = {1},        \
        .kernels = kernels, .ref = ref, .alias = "aten." #name ".default"}

TRIANGLE(triu, "y[i, j] = x[i, j] where j - i >= diagonal, else 0");
TRIANGLE(tril, "y[i, j] = x[i, j] where j - i <= diagonal, else 0");
/* clang-format on */
