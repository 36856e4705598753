/* The nodes of a body of `fused` as expressions of its text (fused_text.c): lanes are functions of
 * lane.cuh and random.cuh, ops along rows of rows.cuh. */
#include "fused_writer.h"

const char *const text_types[] = {
    [F64] = "double",    [F32] = "float", [F16] = "f16",          [BF16] = "bf16",
    [I64] = "long long", [I32] = "int",   [U8] = "unsigned char", [BOOL] = "bool",
};
const char *const text_positions[] = {"p", "r", "i", "0"};

/* ---- expressions ---- */

const char *text_number(const TextWriter *w, int64_t x)
{
    return arena_printf(w->a, "%lld%s", (long long)x, w->wide ? "ll" : "u");
}

/* The offset of position p. */
const char *text_offset(const TextWriter *w, const Walk *y, const char *p)
{
    Buf b = {.a = w->a};
    int64_t below = 1;
    for (int d = y->rank - 1; d >= 0; below *= y->dim[d--]) {
        if (!y->stride[1][d])
            continue;
        buf_printf(&b, "%s%s", b.len ? " + " : "", p);
        if (below > 1)
            buf_printf(&b, " / %s", text_number(w, below));
        if (d)
            buf_printf(&b, " %% %s", text_number(w, y->dim[d]));
        if (y->stride[1][d] != 1)
            buf_printf(&b, " * %s", text_number(w, y->stride[1][d]));
    }
    return b.len ? b.text : "0";
}

const char *access_offset(const TextWriter *w, const Access *x)
{
    return text_offset(w, &x->walk, text_positions[x->per]);
}

/* The bits of a number of dtype d. */
static const char *constant(const TextWriter *w, DType d, const void *bits)
{
    uint64_t x = 0;
    memcpy(&x, bits, (size_t)dtype_size(d));
    unsigned long long u = x;
    switch (d) {
    case F64: return arena_printf(w->a, "__builtin_bit_cast(double, 0x%llxull)", u);
    case F32: return arena_printf(w->a, "__builtin_bit_cast(float, 0x%llxu)", u);
    case BF16:
    case F16: return arena_printf(w->a, "%s{0x%llx}", text_types[d], u);
    default: return arena_printf(w->a, "(%s)0x%llxull", text_types[d], u);
    }
}

/* Operand i of n as one element: of those of a run, number v. */
static const char *operand(TextWriter *w, const Node *n, int i)
{
    const Value *x = fused_base(n->in[i]);
    if (x->def) {
        bool one = fused_constant(x->def) || text_count(w, x) == EACH_ROW;
        return arena_printf(w->a, one ? "v%d" : "v%d.v[v]", x->id);
    }
    int k = text_load(w, n, i);
    bool one = w->load[k].per == ONE || w->load[k].per == EACH_ROW;
    return arena_printf(w->a, one ? "x%d" : "x%d.v[v]", k);
}

/* ---- dropout ---- */

enum { DROP_P, DROP_AXES, DROP_EXTENTS, DROP_SEED = 1, DROP_STEP, DROP_OFFSETS };

/* Positions in the whole tensor, of which x is a part, but for where that begins. */
static Walk drop_walk(const Node *n)
{
    const Type *t = &n->out[0]->type;
    const Attr *axes = &n->attr[DROP_AXES], *extents = &n->attr[DROP_EXTENTS];
    Tensor shape = {.rank = t->rank}, whole;
    Walk y;
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    tensor_fill_strides(&shape);
    whole = shape;
    int64_t size = 1, k = axes->i - 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        whole.stride[d] = size;
        size *= k >= 0 && axes->ints[k] == d ? extents->ints[k--] : t->dim[d];
    }
    walk_make(&y, &shape, 1, &whole);
    return y;
}

/* Writes the checks of where x begins. */
static void text_checks(TextWriter *w, Buf *b, const Node *n)
{
    const Attr *axes = &n->attr[DROP_AXES], *extents = &n->attr[DROP_EXTENTS];
    for (int i = 0; i < axes->i; i++)
        buf_printf(b, "check_offset(fault, at, %s, %lld, %lld);\n", operand(w, n, DROP_OFFSETS + i),
                   (long long)axes->ints[i],
                   (long long)(extents->ints[i] - n->out[0]->type.dim[axes->ints[i]]));
}

/* Writes the source of the words of n, and the position of x's first element. */
void text_stream(TextWriter *w, Buf *b, const Node *n)
{
    int id = n->out[0]->id, stream = w->text.nstream++;
    w->text.stream[stream] = (unsigned)n->stream;
    text_checks(w, b, n);
    buf_printf(b,
               "const Stream s%d = {(unsigned long long)%s, stream%d, (unsigned)%s};\n"
               "const unsigned long long first%d = 0",
               id, operand(w, n, DROP_SEED), stream, operand(w, n, DROP_STEP), id);
    int64_t size = 1, k = n->attr[DROP_AXES].i - 1;
    const Type *t = &n->out[0]->type;
    for (int d = t->rank - 1; d >= 0; d--) {
        bool part = k >= 0 && n->attr[DROP_AXES].ints[k] == d;
        if (part)
            buf_printf(b, " + %s * %lldull", operand(w, n, DROP_OFFSETS + (int)k), (long long)size);
        size *= part ? n->attr[DROP_EXTENTS].ints[k--] : t->dim[d];
    }
    buf_add(b, ";\n");
}

/* The words of a thread's elements. */
void text_words(TextWriter *w, Buf *b, const Node *n)
{
    Access y = {.per = text_count(w, n->out[0]), .walk = drop_walk(n)};
    TextWriter far = *w; /* positions of a part may need more bits than x has */
    far.wide = true;
    int id = n->out[0]->id, count = y.per == EACH ? w->together : 1;
    const char *p = arena_printf(w->a, "(long long)%s", text_positions[y.per]);
    buf_printf(b, "unsigned w%d[%d];\n", id, count);
    if (access_even(w, &y) && access_stride(&y) == 1)
        buf_printf(b, "draw_some(s%d, first%d + (%s), w%d);\n", id, id,
                   text_offset(&far, &y.walk, p), id);
    else
        buf_printf(b, "for (int v = 0; v < %d; v++) w%d[v] = draw_word(s%d, first%d + (%s));\n",
                   count, id, id, id,
                   text_offset(&far, &y.walk, arena_printf(w->a, "(%s + v)", p)));
}

static const char *drop_text(TextWriter *w, const Node *n)
{
    double scale = 1 / (1 - n->attr[DROP_P].f);
    bool each = text_count(w, n->out[0]) == EACH;
    return arena_printf(w->a, "lane_dropout(%s, w%d[%s], %uu, %s)", operand(w, n, 0), n->out[0]->id,
                        each ? "v" : "0", (unsigned)ceil(n->attr[DROP_P].f * 0x1p24),
                        constant(w, F64, &scale));
}

/* ---- lanes ---- */

/* The op's name and what of its attributes are words; then the types that it is for; then operands,
 * and attributes that are numbers. */
const char *text_lane(TextWriter *w, const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    Buf name = {.a = w->a}, types = {.a = w->a}, args = {.a = w->a};
    LaneFn l = {0};
    CHECK(node_lane(n, &l));
    if (!n->nin)
        return constant(w, n->out[0]->type.dtype, l.arg.bytes);
    if (l.placed)
        return drop_text(w, n);
    buf_printf(&name, "lane_%s", n->op->name);
    buf_add(&types, text_types[n->in[n->nin - 1]->type.dtype]);
    for (int i = 0; i < n->nin; i++)
        buf_printf(&args, "%s%s", i ? ", " : "", operand(w, n, i));
    for (int k = 0; f[k].kind; k++)
        switch (f[k].kind) {
        case ATTR_STR: buf_printf(&name, "_%s", n->attr[k].s); break;
        case ATTR_DTYPE: buf_printf(&types, ", %s", text_types[n->attr[k].i]); break;
        case ATTR_FLOAT: buf_printf(&args, ", %s", constant(w, F64, &n->attr[k].f)); break;
        default: CHECK(!"an attribute that lanes have");
        }
    return arena_printf(w->a, "%s<%s>(%s)", name.text, types.text, args.text);
}

/* ---- ops along rows ---- */

static const char *wide_name(DType d)
{
    return d == F64 ? "double" : "float";
}

/* A function along rows gets operand i of n as packs of W. */
static const char *packs(TextWriter *w, const Node *n, int i, const char *W)
{
    const Value *x = fused_base(n->in[i]);
    int k = x->def ? x->id : text_load(w, n, i);
    if (x->def || w->steps)
        return arena_printf(w->a, "[&](int, int, int k) { return packed<%s>(h%s%d[k]); }", W,
                            x->def ? "v" : "x", k);
    const Access *from = &w->load[k];
    if (access_even(w, from))
        return arena_printf(w->a,
                            "[&](int i, int count, int) {\n"
                            "const Index p = o + i;\n"
                            "return packed<%s>(load<%d>(in%d + (%s), %lld, count));\n}",
                            W, w->together, from->index, access_offset(w, from),
                            (long long)access_stride(from));
    return arena_printf(w->a,
                        "[&](int i, int count, int) {\n"
                        "const Index p = o + i;\n"
                        "Neighbours<%s, %d> x = {};\n"
                        "for (int v = 0; v < count; v++) x.v[v] = in%d[%s];\n"
                        "return packed<%s>(x);\n}",
                        text_types[from->dtype], w->together, from->index,
                        text_offset(w, &from->walk, "(p + v)"), W);
}

static const char *eps_of(const TextWriter *w, const Node *n)
{
    return constant(w, F64, &n->attr[attr_index(n->op, "eps")].f);
}

/* A row's number of its own: its name is s, or that of a result, and the id. */
void text_statement(TextWriter *w, Buf *b, const Node *n)
{
    int id = n->out[0]->id, row = (int)w->shape.row;
    const char *W = wide_name(n->in[0]->type.dtype), *x = packs(w, n, 0, W);
    if (node_is(n, OP_native_layer_norm)) {
        buf_printf(b, "const Moments<%s> s%d = row_moments<%s>(t, %d, (%s)%s, %s);\n", W, id, W,
                   row, W, eps_of(w, n), x);
        buf_printf(b, "const %s v%d = s%d.mean, v%d = s%d.rstd;\n", W, n->out[1]->id, id,
                   n->out[2]->id, id);
    } else if (node_is(n, OP_rms_norm)) {
        buf_printf(b, "const %s v%d = row_rstd<%s>(t, %d, (%s)%s, %s);\n", W, n->out[1]->id, W, row,
                   W, eps_of(w, n), x);
    } else if (node_is(n, OP__softmax) || node_is(n, OP__log_softmax)) {
        buf_printf(b, "const Online<%s> s%d = row_online<%s>(t, %d, false, %s);\n", W, id, W, row,
                   x);
        if (node_is(n, OP__log_softmax))
            buf_printf(b, "const %s l%d = (%s)log((double)s%d.sum);\n", W, id, W, id);
    } else if (node_is(n, OP__softmax_backward_data)) {
        buf_printf(b, "const %s s%d = (%s)row_dot(t, %d, %s, %s);\n", W, id, W, row, x,
                   packs(w, n, 1, W));
    } else {
        buf_printf(b, "const %s s%d = (%s)row_total(t, %d, %s);\n", W, id, W, row, x);
    }
}

/* The argument, in W, of the function of rows.cuh that makes one element. */
static const char *element_call(TextWriter *w, const Node *n, const char *W)
{
    int id = n->out[0]->id;
    const char *x = operand(w, n, 0), *y = n->nin > 1 ? operand(w, n, 1) : "";
    if (node_is(n, OP_native_layer_norm))
        return arena_printf(w->a, "layer_norm_of<%s>(wide(%s), s%d, (%s)wide(%s), (%s)wide(%s))", W,
                            x, id, W, y, W, operand(w, n, 2));
    if (node_is(n, OP_rms_norm))
        return arena_printf(w->a, "rms_norm_of<%s>(wide(%s), v%d, (%s)wide(%s))", W, x,
                            n->out[1]->id, W, y);
    if (node_is(n, OP__softmax))
        return arena_printf(w->a, "softmax_of<%s>(wide(%s), s%d)", W, x, id);
    if (node_is(n, OP__log_softmax))
        return arena_printf(w->a, "log_softmax_of<%s>(wide(%s), s%d.max, l%d)", W, x, id, id);
    if (node_is(n, OP__softmax_backward_data))
        return arena_printf(w->a, "softmax_gradient<%s>(wide(%s), wide(%s), s%d)", W, x, y, id);
    return arena_printf(w->a, "log_softmax_gradient<%s>(wide(%s), wide(%s), s%d)", W, x, y, id);
}

const char *text_element(TextWriter *w, const Node *n)
{
    DType d = n->in[0]->type.dtype;
    return arena_printf(w->a, "narrow<%s>(%s)", text_types[d], element_call(w, n, wide_name(d)));
}

bool text_has_row(const Node *n)
{
    return node_is(n, OP_native_layer_norm) || node_is(n, OP_rms_norm) || node_is(n, OP__softmax) ||
           node_is(n, OP__log_softmax) || node_is(n, OP__softmax_backward_data) ||
           node_is(n, OP__log_softmax_backward_data);
}
