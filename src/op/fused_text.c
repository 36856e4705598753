/* The text of a body of `fused` as a CUDA kernel.
 *
 * A thread has V neighbouring elements, so that most accesses are of 16 bytes, and runs the body's
 * nodes on one after the other in registers: each by its op's function of lane.cuh, the very one
 * that the op's own kernel calls, whose result is rounded to its dtype. So the bits are those of
 * the nodes on their own. Sizes and strides are constants of the text, which the compiler divides
 * by cheaply; the layers of a model have the same.
 *
 * An operand is read at the row-major position p of a shape to which it is broadcast: that of the
 * node that reads it, or of the view by which the body shows it. Neighbouring axes that it passes
 * with one stride are merged (walk_make()); the last axis that is left, in each operand and result,
 * is a multiple of V, so that a thread's elements lie in one row of it. */
#include "fused_text.h"

#include "fused.h"

enum { THREADS = 256, MOST_TOGETHER = 8 };

static const char *const type_names[] = {
    [F64] = "double",    [F32] = "float", [F16] = "f16",          [BF16] = "bf16",
    [I64] = "long long", [I32] = "int",   [U8] = "unsigned char", [BOOL] = "bool",
};

/* What lies in memory and is read or written at positions of one shape. */
typedef struct Access {
    int index; /* of the operand or result */
    DType dtype;
    Walk walk; /* of the shape, then the tensor */
} Access;

typedef struct Writer {
    Arena *a;
    const Call *c;
    Access *load, *store;
    int nload, capload, nstore, capstore;
    int64_t nelem;
    int together; /* V */
    bool wide;    /* positions and offsets need 64 bits */
    FusedText text;
} Writer;

/* ---- what is read and written ---- */

static Access access_of(const Tensor *x, int index, const Type *t)
{
    Access y = {.index = index, .dtype = x->dtype};
    Tensor shape = {.dtype = t->dtype, .rank = t->rank};
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    tensor_fill_strides(&shape);
    walk_make(&y.walk, &shape, 1, x);
    return y;
}

static bool same_access(const Access *x, const Access *y)
{
    size_t size = sizeof *x->walk.dim * (size_t)x->walk.rank;
    return x->index == y->index && x->walk.rank == y->walk.rank &&
           !memcmp(x->walk.dim, y->walk.dim, size) &&
           !memcmp(x->walk.stride[1], y->walk.stride[1], size);
}

static bool is_number(const Access *x)
{
    return x->walk.rank == 1 && !x->walk.stride[1][0];
}

static int64_t last_stride(const Access *x)
{
    return x->walk.stride[1][x->walk.rank - 1];
}

/* Whether V elements can be one access, where the data begin as they would alone. */
static bool is_whole(const Writer *w, const Access *x)
{
    for (int d = 0; d < x->walk.rank - 1; d++)
        if (x->walk.stride[1][d] % w->together)
            return false;
    return last_stride(x) == 1;
}

/* The place in w->load of what operand i of n reads from outside of the body. */
static int find_load(Writer *w, const Node *n, int i)
{
    const Value *v = n->in[i], *x = fused_base(v);
    const Type *t = v != x || type_nelem(&v->type) == 1 ? &v->type : &n->out[0]->type;
    Access y = access_of(&w->c->in[x->index], x->index, t);
    int k = 0;
    while (k < w->nload && !same_access(&w->load[k], &y))
        k++;
    if (k == w->nload)
        PUSH(w->a, w->load, w->nload, w->capload, y);
    return k;
}

static void find_accesses(Writer *w)
{
    const Region *r = w->c->node->region;
    const Graph *g = r->body[MAIN];
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin && !n->op->view; i++)
            if (!fused_base(n->in[i])->def)
                find_load(w, n, i);
    for (int k = 0; k < r->nout; k++) {
        const Value *v = g->out[r->out[k].at[MAIN]].v;
        PUSH(w->a, w->store, w->nstore, w->capstore, access_of(&w->c->out[k], k, &v->type));
    }
}

/* Takes into account how x lies: V divides its rows, and is not more than fills 16 bytes of the
 * narrowest tensor. */
static void fit(Writer *w, const Access *x, int *size)
{
    const Walk *y = &x->walk;
    int64_t last = 0;
    for (int d = 0; d < y->rank; d++) {
        last += (y->dim[d] - 1) * y->stride[1][d];
        w->wide |= y->stride[1][d] < 0;
    }
    w->wide |= last > INT32_MAX;
    if (is_number(x))
        return;
    while (y->dim[y->rank - 1] % w->together)
        w->together /= 2;
    *size = MIN(*size, dtype_size(x->dtype));
}

static void choose_sizes(Writer *w)
{
    int size = 8;
    w->together = MOST_TOGETHER;
    w->wide = w->nelem > INT32_MAX;
    for (int k = 0; k < w->nload; k++)
        fit(w, &w->load[k], &size);
    for (int k = 0; k < w->nstore; k++)
        fit(w, &w->store[k], &size);
    while (w->nelem % w->together || w->together * size > 16)
        w->together /= 2;
}

/* ---- expressions ---- */

static const char *number(const Writer *w, int64_t x)
{
    return arena_printf(w->a, "%lld%s", (long long)x, w->wide ? "ll" : "u");
}

/* The offset of position p. */
static const char *offset(const Writer *w, const Access *x)
{
    const Walk *y = &x->walk;
    Buf b = {.a = w->a};
    int64_t below = 1;
    for (int d = y->rank - 1; d >= 0; below *= y->dim[d--]) {
        if (!y->stride[1][d])
            continue;
        buf_add(&b, b.len ? " + p" : "p");
        if (below > 1)
            buf_printf(&b, " / %s", number(w, below));
        if (d)
            buf_printf(&b, " %% %s", number(w, y->dim[d]));
        if (y->stride[1][d] != 1)
            buf_printf(&b, " * %s", number(w, y->stride[1][d]));
    }
    return b.len ? b.text : "0";
}

/* The bits of a number of dtype d. */
static const char *constant(const Writer *w, DType d, const void *bits)
{
    uint64_t x = 0;
    memcpy(&x, bits, (size_t)dtype_size(d));
    unsigned long long u = x;
    switch (d) {
    case F64: return arena_printf(w->a, "__builtin_bit_cast(double, 0x%llxull)", u);
    case F32: return arena_printf(w->a, "__builtin_bit_cast(float, 0x%llxu)", u);
    case BF16:
    case F16: return arena_printf(w->a, "%s{0x%llx}", type_names[d], u);
    default: return arena_printf(w->a, "(%s)0x%llxull", type_names[d], u);
    }
}

static const char *operand(Writer *w, const Node *n, int i)
{
    const Value *x = fused_base(n->in[i]);
    if (x->def)
        return arena_printf(w->a, "v%d", x->id);
    int k = find_load(w, n, i);
    return arena_printf(w->a, "x%d.e[k]", k);
}

/* The op's name and what of its attributes are words; then the types that it is for; then operands,
 * and attributes that are numbers. */
static const char *call_text(Writer *w, const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    Buf name = {.a = w->a}, types = {.a = w->a}, args = {.a = w->a};
    buf_printf(&name, "lane_%s", n->op->name);
    buf_add(&types, type_names[n->in[n->nin - 1]->type.dtype]);
    for (int i = 0; i < n->nin; i++)
        buf_printf(&args, "%s%s", i ? ", " : "", operand(w, n, i));
    for (int k = 0; f[k].kind; k++)
        switch (f[k].kind) {
        case ATTR_STR: buf_printf(&name, "_%s", n->attr[k].s); break;
        case ATTR_DTYPE: buf_printf(&types, ", %s", type_names[n->attr[k].i]); break;
        case ATTR_FLOAT: buf_printf(&args, ", %s", constant(w, F64, &n->attr[k].f)); break;
        default: CHECK(!"an attribute that lanes have");
        }
    return arena_printf(w->a, "%s<%s>(%s)", name.text, types.text, args.text);
}

/* ---- the text ---- */

static void write_arguments(const Writer *w, Buf *b)
{
    const Call *c = w->c;
    for (int i = 0; i < c->nin; i++)
        buf_printf(b, "%sconst %s *in%d", i ? ", " : "", type_names[c->in[i].dtype], i);
    for (int k = 0; k < c->nout; k++)
        buf_printf(b, "%s%s *out%d", c->nin || k ? ", " : "", type_names[c->out[k].dtype], k);
}

/* Whether the data of all that may be accessed whole begin as they would alone. */
static void write_whole(const Writer *w, Buf *b)
{
    buf_add(b, "    const bool whole = aligned(");
    const char *comma = "";
    for (int k = 0; k < w->nload + w->nstore; k++) {
        bool out = k >= w->nload;
        const Access *x = out ? &w->store[k - w->nload] : &w->load[k];
        if (is_whole(w, x))
            buf_printf(b, "%s%s%d", comma, out ? "out" : "in", x->index), comma = ", ";
    }
    buf_add(b, ");\n");
}

static void write_load(const Writer *w, Buf *b, int k, bool whole)
{
    const Access *x = &w->load[k];
    buf_printf(b, "x%d = load<%d>(in%d + (%s)", k, w->together, x->index, offset(w, x));
    if (whole)
        buf_add(b, ");\n");
    else
        buf_printf(b, ", %lld);\n", (long long)last_stride(x));
}

static void write_store(const Writer *w, Buf *b, int k, bool whole)
{
    const Access *x = &w->store[k];
    buf_printf(b, "store(out%d + (%s), y%d", x->index, offset(w, x), k);
    if (whole)
        buf_add(b, ");\n");
    else
        buf_printf(b, ", %lld);\n", (long long)last_stride(x));
}

/* All that may be whole under one condition, so that no load waits for another. */
static void write_accesses(const Writer *w, Buf *b, const Access *x, int count,
                           void (*write)(const Writer *w, Buf *b, int k, bool whole))
{
    for (int k = 0; k < count; k++)
        if (!is_whole(w, &x[k])) {
            buf_add(b, "    ");
            write(w, b, k, false);
        }
    for (int whole = 1; whole >= 0; whole--) {
        buf_add(b, whole ? "    if (whole) {\n" : "    } else {\n");
        for (int k = 0; k < count; k++)
            if (is_whole(w, &x[k])) {
                buf_add(b, "        ");
                write(w, b, k, whole);
            }
    }
    buf_add(b, "    }\n");
}

static void write_node(Writer *w, Buf *b, const Node *n)
{
    const Value *y = n->out[0];
    LaneFn l = {0};
    if (n->op->view)
        return;
    CHECK(node_lane(n, &l));
    buf_printf(b, "        const %s v%d = %s;\n", type_names[y->type.dtype], y->id,
               n->nin ? call_text(w, n) : constant(w, y->type.dtype, l.arg.bytes));
}

static void write_body(Writer *w, Buf *b)
{
    const Region *r = w->c->node->region;
    const Graph *g = r->body[MAIN];
    for (int k = 0; k < w->nload; k++)
        buf_printf(b, "    Pack<%s, %d> x%d;\n", type_names[w->load[k].dtype], w->together, k);
    for (int k = 0; k < w->nstore; k++)
        buf_printf(b, "    Pack<%s, %d> y%d;\n", type_names[w->store[k].dtype], w->together, k);
    write_whole(w, b);
    write_accesses(w, b, w->load, w->nload, write_load);
    buf_printf(b, "#pragma unroll\n    for (int k = 0; k < %d; k++) {\n", w->together);
    for (const Node *n = g->first; n; n = n->next)
        write_node(w, b, n);
    for (int k = 0; k < w->nstore; k++)
        buf_printf(b, "        y%d.e[k] = v%d;\n", k, g->out[r->out[k].at[MAIN]].v->id);
    buf_add(b, "    }\n");
    write_accesses(w, b, w->store, w->nstore, write_store);
}

bool node_has_text(const Node *n)
{
    LaneFn l = {0};
    return n->op->view || (node_lane(n, &l) && l.row);
}

bool fused_text_accepts(const Call *c)
{
    for (const Node *n = c->node->region->body[MAIN]->first; n; n = n->next) {
        if (!node_has_text(n))
            return false;
        for (int i = 0; i < n->nin && !n->op->view; i++) {
            const Value *x = fused_base(n->in[i]);
            if (x != n->in[i] && !x->def && !tensor_contiguous(&c->in[x->index]))
                return false;
        }
    }
    return true;
}

FusedText fused_text(Arena *a, const Call *c)
{
    Writer w = {.a = a, .c = c, .nelem = fused_shape(c->node).nelem};
    Buf b = {.a = a};
    find_accesses(&w);
    choose_sizes(&w);
    buf_add(&b, "#include \"fused.cuh\"\n\n");
    buf_printf(&b, "extern \"C\" __global__ void __launch_bounds__(%d) fused(", THREADS);
    write_arguments(&w, &b);
    buf_printf(&b, ")\n{\n    const %s p = (%sblockIdx.x * %d + threadIdx.x) * %d;\n",
               w.wide ? "long long" : "unsigned", w.wide ? "(long long)" : "", THREADS, w.together);
    buf_printf(&b, "    if (p >= %s)\n        return;\n", number(&w, w.nelem));
    write_body(&w, &b);
    buf_add(&b, "}\n");
    w.text.text = b.text;
    w.text.threads = THREADS;
    w.text.blocks = (w.nelem / w.together + THREADS - 1) / THREADS;
    return w.text;
}
