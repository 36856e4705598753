/* export_expr: the expression of a node, filled in from its row of op/export.def. */
#include "export.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Which floating-point dtypes a row is for. */
typedef enum { ANY, ONE, WIDE } Floats;

typedef struct ExportRow {
    const char *op;
    int operands;
    Floats floats;
    const char *text;
} ExportRow;

/* clang-format off */
static const ExportRow rows[] = {
#define EXPORT(op, operands, floats, text) {#op, operands, floats, text},
#include "../op/export.def"
#undef EXPORT
};
/* clang-format on */

/* ---- which row ---- */

static bool floats_fit(const Node *n, Floats want)
{
    int dtype = -1;
    for (int i = 0; i < n->nin + n->nout; i++) {
        DType d = i < n->nin ? n->in[i]->type.dtype : n->out[i - n->nin]->type.dtype;
        if (!dtype_float(d))
            continue;
        if ((dtype >= 0 && (int)d != dtype) || (want == WIDE && d != F32 && d != F64))
            return false;
        dtype = (int)d;
    }
    return true;
}

static const ExportRow *find_row(const Node *n)
{
    for (const ExportRow *r = rows; r < rows + LEN(rows); r++)
        if (!strcmp(r->op, n->op->name) && (r->operands < 0 || r->operands == n->nin) &&
            (r->floats == ANY || floats_fit(n, r->floats)))
            return r;
    return NULL;
}

/* ---- literals ---- */

const char *export_dtype(DType d)
{
    static const char *const names[] = {
        [F64] = "torch.float64",   [F32] = "torch.float32", [F16] = "torch.float16",
        [BF16] = "torch.bfloat16", [I64] = "torch.int64",   [I32] = "torch.int32",
        [U8] = "torch.uint8",      [BOOL] = "torch.bool"};
    return d < NDTYPE ? names[d] : "None";
}

void export_string(Buf *b, const char *text)
{
    buf_add(b, "'");
    for (const char *s = text ? text : ""; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\'' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c < ' ' || c == 0x7f)
            buf_printf(b, "\\x%02x", c);
        else
            buf_addn(b, s, 1);
    }
    buf_add(b, "'");
}

static void add_ints(Buf *b, int64_t count, const int64_t *x)
{
    buf_add(b, "[");
    for (int64_t i = 0; i < count; i++)
        buf_printf(b, "%s%lld", i ? ", " : "", (long long)x[i]);
    buf_add(b, "]");
}

const char *export_shape(Arena *a, const Type *t)
{
    Buf b = {.a = a};
    add_ints(&b, t->rank, t->dim);
    return b.text;
}

/* In the dtype of the result: a whole number has no point where that is no float. */
/* x as a tensor of dtype d stores it, where d cannot hold it: PyTorch refuses such a number. */
static double stored(double x, DType d)
{
    static const double beyond[] = {[F32] = 0x1.ffffffp127, [F16] = 65520, [BF16] = 0x1.ffp127};
    if (d == F32 || d == F16 || d == BF16)
        return fabs(x) >= beyond[d] ? copysign(INFINITY, x) : x;
    if ((d == I32 || d == U8) && fabs(x) < 0x1p63)
        return d == I32 ? (double)(int32_t)(int64_t)x : (double)(uint8_t)(int64_t)x;
    return x;
}

static void add_number(Buf *b, double x, DType result)
{
    if (result == BOOL)
        buf_add(b, x != 0 ? "True" : "False");
    else if (!dtype_float(result) && x == trunc(x) && fabs(x) < 0x1p63)
        buf_printf(b, "%lld", (long long)x);
    else
        attr_print(b, ATTR_FLOAT, &(Attr){.f = x});
}

static void add_attr(Buf *b, AttrKind kind, const Attr *a, DType result)
{
    if (a->absent)
        buf_add(b, "None");
    else if (kind == ATTR_FLOAT)
        add_number(b, a->f, result);
    else if (kind == ATTR_STR)
        export_string(b, a->s);
    else if (kind == ATTR_BOOL)
        buf_add(b, a->i ? "True" : "False");
    else if (kind == ATTR_DTYPE)
        buf_add(b, export_dtype((DType)a->i));
    else
        attr_print(b, kind, a);
}

/* ---- what stands in braces ---- */

static void add_operands(Buf *b, const Scope *s, const Node *n, int first)
{
    for (int i = first; i < n->nin; i++)
        buf_printf(b, "%s%s", i > first ? ", " : "", s->name[n->in[i]->id]);
}

/* [None, i, j]: operands from `first` on, each at its axis. */
static void add_indices(Buf *b, const Scope *s, const Node *n, int first)
{
    const Attr *dims = &n->attr[attr_index(n->op, "dims")];
    int64_t last = -1;
    buf_add(b, "[");
    for (int64_t i = 0; i < dims->i; i++) {
        for (int64_t d = last + 1; d < dims->ints[i]; d++)
            buf_printf(b, "%sNone", d ? ", " : "");
        last = dims->ints[i];
        buf_printf(b, "%s%s", last ? ", " : "", s->name[n->in[first + i]->id]);
    }
    buf_add(b, "]");
}

static void add_all_axes(Buf *b, const Node *n)
{
    int64_t axis[TN_RANK];
    for (int d = 0; d < n->in[0]->type.rank; d++)
        axis[d] = d;
    add_ints(b, n->in[0]->type.rank, axis);
}

static void add_own(Buf *b, const Node *n, const char *key)
{
    const Type *t = &n->out[0]->type;
    if (!strcmp(key, "shape"))
        add_ints(b, t->rank, t->dim);
    else if (!strcmp(key, "dtype"))
        buf_add(b, export_dtype(t->dtype));
    else if (!strcmp(key, "stream"))
        buf_printf(b, "%lld", (long long)n->stream);
    else
        buf_add(b, "DEVICE");
}

static void add_named(Buf *b, const Node *n, const char *key, size_t len)
{
    bool axes = key[len - 1] == '+';
    int i = attr_index(n->op, arena_printf(b->a, "%.*s", (int)(len - axes), key));
    CHECK(i >= 0);
    if (axes && !n->attr[i].i) {
        add_all_axes(b, n);
        return;
    }
    Attr a = n->attr[i];
    AttrKind kind = op_attrs(n->op)[i].kind;
    DType d = n->out[0]->type.dtype;
    bool element = node_is(n, OP_full) || node_is(n, OP_constant_pad_nd);
    if (element && kind == ATTR_FLOAT && !a.absent)
        a.f = stored(a.f, d);
    add_attr(b, kind, &a, d);
}

static void add_braces(Buf *b, const Scope *s, const Node *n, const char *key, size_t len)
{
    if (isdigit((unsigned char)*key) && key[len - 1] == ':')
        add_operands(b, s, n, atoi(key));
    else if (isdigit((unsigned char)*key))
        buf_add(b, s->name[n->in[atoi(key)]->id]);
    else if (*key == '@')
        add_indices(b, s, n, atoi(key + 1));
    else if (*key == '.')
        add_own(b, n, arena_printf(b->a, "%.*s", (int)len - 1, key + 1));
    else
        add_named(b, n, key, len);
}

/* ---- the expression ---- */

static const char *fill(const Scope *s, const Node *n, const char *text)
{
    Buf b = {.a = s->x->a};
    while (*text) {
        size_t plain = strcspn(text, "{");
        buf_addn(&b, text, plain);
        text += plain;
        if (!*text)
            break;
        size_t len = strcspn(text + 1, "}");
        add_braces(&b, s, n, text + 1, len);
        text += len + 2;
    }
    return b.text;
}

static const char *wait_expression(const Scope *s, const Node *n)
{
    const char *x = s->name[n->in[0]->id];
    return node_waits_for(n) ? arena_printf(s->x->a, "c10d.wait_tensor.default(%s)", x) : x;
}

const char *export_expression(const Scope *s, const Node *n)
{
    if (n->op->wait)
        return wait_expression(s, n);
    const ExportRow *r = find_row(n);
    if (!r || !*r->text)
        fail_node(s->g, n, "export: %s has no expression in PyTorch", n->op->name);
    return fill(s, n, r->text);
}
