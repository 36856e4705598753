/* The text of a body of `fused` as a CUDA kernel.
 *
 * Without ops along rows a thread has V neighbouring elements, so that most accesses are of 16
 * bytes. With such ops each row has the team of threads that rows.cuh gives it, and each thread
 * packs of 8 elements. It runs the body's nodes one after the other in registers, each by its op's
 * function of lane.cuh or rows.cuh, the very one that the op's own kernel calls, and rounds the
 * result to its dtype. So the bits are those of the nodes on their own. Sizes and strides are
 * constants of the text, which the compiler divides by cheaply; the layers of a model have the
 * same.
 *
 * Along rows the body is cut into segments: a loop over the row's packs, in which elements are
 * computed, then the statements of what needs all of them, such as a mean, and of what there is
 * once for each row. A segment ends where elements need such a number. What a later segment or a
 * statement reads is held in registers; nodes keep their order, so that a result may take the place
 * of an operand (fused_overwrites()).
 *
 * An operand is read at the row-major position of a shape to which it is broadcast: that of the
 * node that reads it, or of the view by which the body shows it. Neighbouring axes that it passes
 * with one stride are merged (walk_make()). */
#include "fused_text.h"

#include "fused.h"

enum { THREADS = 256, TOGETHER = 8, SEGMENTS = FUSED_MOST + 1 };
/* As rows.cuh has them. */
enum { WARP = 32, WARP_ROW = 1024, SHORT_ROW = 8192, HELD_ROW = 16384, WARP_BLOCK = 128 };
enum { HELD_BYTES = 16 }; /* of an element, in at most 128 registers of 512 threads */

static const char *const type_names[] = {
    [F64] = "double",    [F32] = "float", [F16] = "f16",          [BF16] = "bf16",
    [I64] = "long long", [I32] = "int",   [U8] = "unsigned char", [BOOL] = "bool",
};

/* Of which a value has one, and by which variable of the text it is counted: of all (p), of the
 * rows (r), of a row (i), of one. */
typedef enum { EACH, EACH_ROW, EACH_COLUMN, ONE } Count;
static const char *const position[] = {"p", "r", "i", "0"};

/* What lies in memory and is read or written at positions of one shape. */
typedef struct Access {
    int index; /* of the operand or result */
    DType dtype;
    Count per;
    Walk walk;      /* of the shape, then the tensor */
    uint64_t loops; /* segments by whose loops it must have been read */
    bool statement; /* one reads it */
} Access;

/* A value that a node of the body makes. */
typedef struct Made {
    int segment;    /* EACH: in whose loop */
    uint64_t loops; /* as of an Access */
    bool statement;
} Made;

/* Of a loop: a node's lane, or the elements of what is along rows. */
typedef struct Segment {
    const Node *loop[FUSED_MOST], *after[FUSED_MOST];
    int nloop, nafter;
} Segment;

typedef struct Writer {
    Arena *a;
    const Call *c;
    FusedShape shape;
    Access *load, *store;
    int nload, capload, nstore, capstore;
    Made *made; /* by value id */
    Segment *segment;
    int nsegment;
    int together; /* V */
    int steps;    /* packs of a thread; 0: too many to be held */
    bool wide;    /* positions and offsets need 64 bits */
    FusedText text;
} Writer;

/* Of values in the body and results. */
static Count count_of(const Writer *w, const Value *v)
{
    return type_nelem(&v->type) == w->shape.nelem ? EACH : EACH_ROW;
}

/* As rows.cuh has them. */
static int row_threads(int64_t row)
{
    return row <= WARP_ROW ? WARP : row <= SHORT_ROW ? 256 : 512;
}

static const RowKernel *rows_of(const Node *n)
{
    FusedShape own;
    return node_rows(n, &own);
}

/* ---- what is read and written ---- */

static Access access_of(const Tensor *x, int index, Count per, const Type *t)
{
    Access y = {.index = index, .dtype = x->dtype, .per = per};
    Tensor shape = {.dtype = t->dtype, .rank = t->rank};
    memcpy(shape.dim, t->dim, sizeof shape.dim);
    tensor_fill_strides(&shape);
    walk_make(&y.walk, &shape, 1, x);
    return y;
}

static bool same_access(const Access *x, const Access *y)
{
    size_t size = sizeof *x->walk.dim * (size_t)x->walk.rank;
    return x->index == y->index && x->per == y->per && x->walk.rank == y->walk.rank &&
           !memcmp(x->walk.dim, y->walk.dim, size) &&
           !memcmp(x->walk.stride[1], y->walk.stride[1], size);
}

static int64_t last_stride(const Access *x)
{
    return x->walk.stride[1][x->walk.rank - 1];
}

/* Whether the elements of a thread are one access, where the data begin as they would alone. */
static bool is_whole(const Writer *w, const Access *x)
{
    bool fits = last_stride(x) == 1 && !(w->shape.row % w->together);
    for (int d = 0; d < x->walk.rank - 1; d++)
        fits &= !(x->walk.stride[1][d] % w->together);
    return fits && !(x->walk.dim[x->walk.rank - 1] % w->together);
}

/* Whether they are last_stride() apart. */
static bool is_even(const Writer *w, const Access *x)
{
    int64_t last = x->walk.dim[x->walk.rank - 1], row = w->shape.row;
    return (row && !(last % row)) || (!(last % w->together) && !(row % w->together));
}

/* What operand i of n, of which the body has no more than a view, is read as. Of those that an op
 * along rows reads whole the weights of norms have an element for each column. */
static Access operand_access(const Writer *w, const Node *n, int i)
{
    const Value *v = n->in[i], *x = fused_base(v);
    const RowKernel *rows = rows_of(n);
    const Type *t = rows || v != x ? &v->type : &n->out[0]->type;
    bool columns = rows && rows->in[i] == ROW_ALL && !fused_made_last(n->out[0]) &&
                   !node_is(n, OP_cross_entropy_backward);
    Count per = type_nelem(&v->type) == 1         ? ONE
                : columns                         ? EACH_COLUMN
                : type_nelem(t) == w->shape.nelem ? EACH
                                                  : EACH_ROW;
    return access_of(&w->c->in[x->index], x->index, per, per == ONE ? &v->type : t);
}

/* Its place in w->load. */
static int find_load(Writer *w, const Node *n, int i)
{
    Access y = operand_access(w, n, i);
    int k = 0;
    while (k < w->nload && !same_access(&w->load[k], &y))
        k++;
    if (k == w->nload)
        PUSH(w->a, w->load, w->nload, w->capload, y);
    return k;
}

static void find_stores(Writer *w)
{
    const Region *r = w->c->node->region;
    for (int k = 0; k < r->nout; k++) {
        const Value *v = r->body[MAIN]->out[r->out[k].at[MAIN]].v;
        Access y = access_of(&w->c->out[k], k, count_of(w, v), &v->type);
        PUSH(w->a, w->store, w->nstore, w->capstore, y);
    }
}

/* ---- segments ---- */

/* A statement that nothing is held for reads memory itself. */
static void note_reads(Writer *w, const Node *n, int segment, bool statement)
{
    for (int i = 0; i < n->nin; i++) {
        const Value *x = fused_base(n->in[i]);
        int k = x->def ? 0 : find_load(w, n, i);
        Access *y = x->def ? NULL : &w->load[k];
        uint64_t *loops = y ? &y->loops : &w->made[x->id].loops;
        bool each = y ? y->per == EACH : count_of(w, x) == EACH && !fused_constant(x->def);
        if (each && statement)
            *(y ? &y->statement : &w->made[x->id].statement) = true;
        if ((each && (w->steps || !statement)) || (y && y->per == EACH_COLUMN && !statement))
            *loops |= UINT64_C(1) << segment;
    }
}

/* The last segment whose loop makes an operand of n. */
static int made_in(const Writer *w, const Node *n)
{
    int last = 0;
    for (int i = 0; i < n->nin; i++) {
        const Value *x = fused_base(n->in[i]);
        last = x->def ? MAX(last, w->made[x->id].segment) : last;
    }
    return last;
}

static void add_to_loop(Writer *w, const Node *n, int segment)
{
    Segment *s = &w->segment[segment];
    s->loop[s->nloop++] = n;
    w->nsegment = MAX(w->nsegment, segment + 1);
    w->made[n->out[0]->id].segment = segment;
    note_reads(w, n, segment, false);
}

static void make_segments(Writer *w, const Graph *g)
{
    int at = 0;
    w->segment = NEWN(w->a, Segment, SEGMENTS);
    w->nsegment = 1;
    for (const Node *n = g->first; n; n = n->next) {
        bool rows = rows_of(n), each = count_of(w, n->out[0]) == EACH;
        if (n->op->view || fused_constant(n))
            continue;
        if ((!rows && each && w->segment[at].nafter) || made_in(w, n) > at)
            at++;
        if (rows || !each) {
            Segment *s = &w->segment[at];
            s->after[s->nafter++] = n;
            note_reads(w, n, at, true);
        }
        if (each)
            add_to_loop(w, n, rows ? at + 1 : at);
    }
}

static bool is_held(const Writer *w, uint64_t loops, bool statement)
{
    return w->steps && (statement || (loops & (loops - 1)));
}

/* ---- sizes ---- */

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
    if (x->per == ONE || w->shape.row)
        return;
    while (y->dim[y->rank - 1] % w->together)
        w->together /= 2;
    *size = MIN(*size, dtype_size(x->dtype));
}

static void choose_sizes(Writer *w)
{
    int size = 8;
    w->wide = w->shape.nelem > INT32_MAX;
    for (int k = 0; k < w->nload; k++)
        fit(w, &w->load[k], &size);
    for (int k = 0; k < w->nstore; k++)
        fit(w, &w->store[k], &size);
    while (!w->shape.row && (w->shape.nelem % w->together || w->together * size > 16))
        w->together /= 2;
}

/* ---- expressions ---- */

static const char *number(const Writer *w, int64_t x)
{
    return arena_printf(w->a, "%lld%s", (long long)x, w->wide ? "ll" : "u");
}

/* The offset of position p. */
static const char *offset_at(const Writer *w, const Walk *y, const char *p)
{
    Buf b = {.a = w->a};
    int64_t below = 1;
    for (int d = y->rank - 1; d >= 0; below *= y->dim[d--]) {
        if (!y->stride[1][d])
            continue;
        buf_printf(&b, "%s%s", b.len ? " + " : "", p);
        if (below > 1)
            buf_printf(&b, " / %s", number(w, below));
        if (d)
            buf_printf(&b, " %% %s", number(w, y->dim[d]));
        if (y->stride[1][d] != 1)
            buf_printf(&b, " * %s", number(w, y->stride[1][d]));
    }
    return b.len ? b.text : "0";
}

static const char *offset(const Writer *w, const Access *x)
{
    return offset_at(w, &x->walk, position[x->per]);
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

/* Operand i of n as one element: of those of a run, number v. */
static const char *operand(Writer *w, const Node *n, int i)
{
    const Value *x = fused_base(n->in[i]);
    if (x->def) {
        bool one = fused_constant(x->def) || count_of(w, x) == EACH_ROW;
        return arena_printf(w->a, one ? "v%d" : "v%d.v[v]", x->id);
    }
    int k = find_load(w, n, i);
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

/* What the words of n are drawn from, and the position of x's first element. */
static void write_stream(Writer *w, Buf *b, const Node *n)
{
    int id = n->out[0]->id, stream = w->text.nstream++;
    w->text.stream[stream] = (unsigned)n->stream;
    buf_printf(b,
               "    const Stream s%d = {(unsigned long long)%s, stream%d, (unsigned)%s};\n"
               "    const unsigned long long first%d = 0",
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
static void write_words(Writer *w, Buf *b, const Node *n)
{
    Access y = {.per = count_of(w, n->out[0]), .walk = drop_walk(n)};
    Writer far = *w; /* positions of a part may need more bits than x has */
    far.wide = true;
    int id = n->out[0]->id, count = y.per == EACH ? w->together : 1;
    const char *p = arena_printf(w->a, "(long long)%s", position[y.per]);
    buf_printf(b, "unsigned w%d[%d];\n", id, count);
    if (is_even(w, &y) && last_stride(&y) == 1)
        buf_printf(b, "draw_some(s%d, first%d + (%s), w%d);\n", id, id, offset_at(&far, &y.walk, p), id);
    else
        buf_printf(b, "for (int v = 0; v < %d; v++)\nw%d[v] = draw_word(s%d, first%d + (%s));\n",
                   count, id, id, id, offset_at(&far, &y.walk, arena_printf(w->a, "(%s + v)", p)));
}

static const char *drop_text(Writer *w, const Node *n)
{
    double scale = 1 / (1 - n->attr[DROP_P].f);
    bool each = count_of(w, n->out[0]) == EACH;
    return arena_printf(w->a, "lane_dropout(%s, w%d[%s], %uu, %s)", operand(w, n, 0),
                        n->out[0]->id, each ? "v" : "0", (unsigned)ceil(n->attr[DROP_P].f * 0x1p24),
                        constant(w, F64, &scale));
}

/* ---- lanes ---- */

/* The op's name and what of its attributes are words; then the types that it is for; then operands,
 * and attributes that are numbers. */
static const char *lane_text(Writer *w, const Node *n)
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

/* ---- ops along rows ---- */

static const char *wide_name(DType d)
{
    return d == F64 ? "double" : "float";
}

/* A function along rows gets operand i of n as packs of W. */
static const char *packs(Writer *w, const Node *n, int i, const char *W)
{
    const Value *x = fused_base(n->in[i]);
    int k = x->def ? x->id : find_load(w, n, i);
    if (x->def || w->steps)
        return arena_printf(w->a, "[&](int, int, int k) { return packed<%s>(h%s%d[k]); }", W,
                            x->def ? "v" : "x", k);
    return arena_printf(w->a,
                        "[&](int i, int count, int) {\n"
                        "        const Index p = o + i;\n"
                        "        return packed<%s>(load<%d>(in%d + (%s), %lld, count));\n    }",
                        W, w->together, w->load[k].index, offset(w, &w->load[k]),
                        (long long)last_stride(&w->load[k]));
}

static const char *eps_of(const Writer *w, const Node *n)
{
    return constant(w, F64, &n->attr[attr_index(n->op, "eps")].f);
}

/* What n needs of all elements of a row. */
static void write_statement(Writer *w, Buf *b, const Node *n)
{
    int id = n->out[0]->id, row = (int)w->shape.row;
    const char *W = wide_name(n->in[0]->type.dtype);
    if (node_is(n, OP_native_layer_norm))
        buf_printf(b,
                   "    const Moments<%s> s%d = row_moments<%s>(t, %d, (%s)%s, %s);\n"
                   "    const %s v%d = s%d.mean, v%d = s%d.rstd;\n",
                   W, id, W, row, W, eps_of(w, n), packs(w, n, 0, W), W, n->out[1]->id, id,
                   n->out[2]->id, id);
    else
        buf_printf(b, "    const %s v%d = row_rstd<%s>(t, %d, (%s)%s, %s);\n", W, n->out[1]->id, W,
                   row, W, eps_of(w, n), packs(w, n, 0, W));
}

/* One element of n. */
static const char *element_text(Writer *w, const Node *n)
{
    const char *W = wide_name(n->in[0]->type.dtype), *E = type_names[n->in[0]->type.dtype];
    if (node_is(n, OP_native_layer_norm))
        return arena_printf(
            w->a, "narrow<%s>(layer_norm_of<%s>(wide(%s), s%d, (%s)wide(%s), (%s)wide(%s)))", E, W,
            operand(w, n, 0), n->out[0]->id, W, operand(w, n, 1), W, operand(w, n, 2));
    return arena_printf(w->a, "narrow<%s>(rms_norm_of<%s>(wide(%s), v%d, (%s)wide(%s)))", E, W,
                        operand(w, n, 0), n->out[1]->id, W, operand(w, n, 1));
}

static bool row_has_text(const Node *n)
{
    return node_is(n, OP_native_layer_norm) || node_is(n, OP_rms_norm);
}

/* ---- loops ---- */

static bool in_loop(uint64_t loops, int segment)
{
    return loops >> segment & 1;
}

static bool is_first(uint64_t loops, int segment)
{
    return !(loops & ((UINT64_C(1) << segment) - 1));
}

/* Whether the loop of the segment reads x from memory. */
static bool is_loaded(const Writer *w, const Access *x, int segment)
{
    return in_loop(x->loops, segment) &&
           (x->per == EACH_COLUMN || !is_held(w, x->loops, x->statement) ||
            is_first(x->loops, segment));
}

/* The end of a call that reads or writes x: how elements lie. */
static const char *apart(const Writer *w, const Access *x, bool whole)
{
    if (whole)
        return "";
    return arena_printf(w->a, ", %lld%s", (long long)last_stride(x), w->shape.row ? ", count" : "");
}

static void write_load(const Writer *w, Buf *b, int k, bool whole)
{
    const Access *x = &w->load[k];
    if (is_even(w, x))
        buf_printf(b, "x%d = load<%d>(in%d + (%s)%s);\n", k, w->together, x->index, offset(w, x),
                   apart(w, x, whole));
    else
        buf_printf(b, "for (int v = 0; v < count; v++)\nx%d.v[v] = in%d[%s];\n", k, x->index,
                   offset_at(w, &x->walk, arena_printf(w->a, "(%s + v)", position[x->per])));
}

static int result_id(const Writer *w, int k)
{
    const Region *r = w->c->node->region;
    return r->body[MAIN]->out[r->out[k].at[MAIN]].v->id;
}

static void write_store(const Writer *w, Buf *b, int k, bool whole)
{
    const Access *x = &w->store[k];
    int id = result_id(w, k);
    if (is_even(w, x))
        buf_printf(b, "store(out%d + (%s), v%d%s);\n", x->index, offset(w, x), id,
                   apart(w, x, whole));
    else
        buf_printf(b, "for (int v = 0; v < count; v++)\nout%d[%s] = v%d.v[v];\n", x->index,
                   offset_at(w, &x->walk, arena_printf(w->a, "(%s + v)", position[x->per])), id);
}

static bool is_stored(const Writer *w, const Access *x, int segment)
{
    return x->per == EACH && w->made[result_id(w, x->index)].segment == segment;
}

typedef bool Chosen(const Writer *w, const Access *x, int segment);
typedef void WriteAccess(const Writer *w, Buf *b, int k, bool whole);

/* All that may be whole under one condition, so that no load waits for another. */
static void write_accesses(const Writer *w, Buf *b, const Access *x, int count, int segment,
                           Chosen *chosen, WriteAccess *write)
{
    bool any = false;
    for (int k = 0; k < count; k++) {
        any |= chosen(w, &x[k], segment) && is_whole(w, &x[k]);
        if (chosen(w, &x[k], segment) && !is_whole(w, &x[k]))
            write(w, b, k, false);
    }
    for (int whole = 1; any && whole >= 0; whole--) {
        buf_add(b, whole ? "if (whole) {\n" : "} else {\n");
        for (int k = 0; k < count; k++)
            if (chosen(w, &x[k], segment) && is_whole(w, &x[k]))
                write(w, b, k, whole);
    }
    buf_add(b, any ? "}\n" : "");
}

/* What the loop of a segment has before its nodes: runs of what it reads and makes. */
static void write_runs(Writer *w, Buf *b, int segment)
{
    const Graph *g = w->c->node->region->body[MAIN];
    const Segment *s = &w->segment[segment];
    for (int k = 0; k < w->nload; k++) {
        const Access *x = &w->load[k];
        if (is_loaded(w, x, segment))
            buf_printf(b, "Run<%s, %d> x%d;\n", type_names[x->dtype], w->together, k);
        else if (x->per == EACH && in_loop(x->loops, segment))
            buf_printf(b, "const auto x%d = hx%d[k];\n", k, k);
    }
    for (const Node *n = g->first; n; n = n->next) {
        const Made *m = &w->made[n->out[0]->id];
        if (m->segment < segment && in_loop(m->loops, segment))
            buf_printf(b, "const auto v%d = hv%d[k];\n", n->out[0]->id, n->out[0]->id);
    }
    write_accesses(w, b, w->load, w->nload, segment, is_loaded, write_load);
    for (int j = 0; j < s->nloop; j++) {
        const Value *y = s->loop[j]->out[0];
        buf_printf(b, "Run<%s, %d> v%d;\n", type_names[y->type.dtype], w->together, y->id);
        if (node_is(s->loop[j], OP_dropout))
            write_words(w, b, s->loop[j]);
    }
}

static void write_holds(const Writer *w, Buf *b, int segment)
{
    const Segment *s = &w->segment[segment];
    for (int k = 0; k < w->nload; k++) {
        const Access *x = &w->load[k];
        if (x->per == EACH && is_loaded(w, x, segment) && is_held(w, x->loops, x->statement))
            buf_printf(b, "hx%d[k] = x%d;\n", k, k);
    }
    for (int j = 0; j < s->nloop; j++) {
        int id = s->loop[j]->out[0]->id;
        const Made *m = &w->made[id];
        if (m->statement || m->loops & ~(UINT64_C(1) << segment))
            buf_printf(b, "hv%d[k] = v%d;\n", id, id);
    }
}

static void write_loop(Writer *w, Buf *b, int segment)
{
    const Segment *s = &w->segment[segment];
    write_runs(w, b, segment);
    buf_printf(b, "#pragma unroll\nfor (int v = 0; v < %d; v++) {\n", w->together);
    for (int j = 0; j < s->nloop; j++) {
        const Node *n = s->loop[j];
        buf_printf(b, "v%d.v[v] = %s;\n", n->out[0]->id,
                   rows_of(n) ? element_text(w, n) : lane_text(w, n));
    }
    buf_add(b, "}\n");
    write_accesses(w, b, w->store, w->nstore, segment, is_stored, write_store);
    write_holds(w, b, segment);
}

/* ---- the kernel ---- */

static void write_arguments(const Writer *w, Buf *b)
{
    const Call *c = w->c;
    int count = 0;
    for (int i = 0; i < c->nin; i++)
        buf_printf(b, "%sconst %s *in%d", count++ ? ", " : "", type_names[c->in[i].dtype], i);
    for (int k = 0; k < c->nout; k++)
        buf_printf(b, "%s%s *out%d", count++ ? ", " : "", type_names[c->out[k].dtype], k);
    for (int k = 0; k < w->text.nstream; k++)
        buf_printf(b, ", unsigned stream%d", k);
}

/* Whether the data of all that may be accessed whole begin as they would alone. */
static void write_whole(const Writer *w, Buf *b)
{
    const char *comma = "";
    buf_add(b, "    const bool whole = aligned(");
    for (int k = 0; k < w->nload + w->nstore; k++) {
        bool out = k >= w->nload;
        const Access *x = out ? &w->store[k - w->nload] : &w->load[k];
        if (x->per == EACH_ROW || x->per == ONE || !is_whole(w, x))
            continue;
        buf_printf(b, "%s%s%d", comma, out ? "out" : "in", x->index);
        comma = ", ";
    }
    buf_add(b, ");\n");
}

/* Numbers, constants, what there is once for each row, streams. */
static void write_numbers(Writer *w, Buf *b)
{
    const Graph *g = w->c->node->region->body[MAIN];
    for (int k = 0; k < w->nload; k++) {
        const Access *x = &w->load[k];
        if (x->per == ONE || x->per == EACH_ROW)
            buf_printf(b, "    const %s x%d = in%d[%s];\n", type_names[x->dtype], k, x->index,
                       offset(w, x));
    }
    for (const Node *n = g->first; n; n = n->next)
        if (fused_constant(n))
            buf_printf(b, "    const %s v%d = %s;\n", type_names[n->out[0]->type.dtype],
                       n->out[0]->id, lane_text(w, n));
    for (const Node *n = g->first; n; n = n->next)
        if (node_is(n, OP_dropout))
            write_stream(w, b, n);
}

/* Without ops along rows: the one loop, of which each thread has one run. */
static void write_elements(Writer *w, Buf *b)
{
    buf_printf(b, "    const Index p = ((Index)blockIdx.x * %d + threadIdx.x) * %d;\n", THREADS,
               w->together);
    buf_printf(b, "    if (p >= %s)\n        return;\n", number(w, w->shape.nelem));
    write_whole(w, b);
    write_numbers(w, b);
    write_loop(w, b, 0);
    w->text.threads = THREADS;
    w->text.blocks = (w->shape.nelem / w->together + THREADS - 1) / THREADS;
}

/* Registers for what is held. */
static void write_held(const Writer *w, Buf *b)
{
    for (int k = 0; k < w->nload; k++)
        if (w->load[k].per == EACH && is_held(w, w->load[k].loops, w->load[k].statement))
            buf_printf(b, "    Run<%s, %d> hx%d[%d];\n", type_names[w->load[k].dtype], w->together,
                       k, w->steps);
    for (int s = 0; s < w->nsegment; s++)
        for (int j = 0; j < w->segment[s].nloop; j++) {
            const Value *y = w->segment[s].loop[j]->out[0];
            const Made *m = &w->made[y->id];
            if (m->statement || m->loops & ~(UINT64_C(1) << s))
                buf_printf(b, "    Run<%s, %d> hv%d[%d];\n", type_names[y->type.dtype], w->together,
                           y->id, w->steps);
        }
}

/* Once for each row: a statement, and results that there are then. */
static void write_after(Writer *w, Buf *b, const Node *n)
{
    if (node_is(n, OP_dropout))
        write_words(w, b, n);
    if (rows_of(n))
        write_statement(w, b, n);
    else
        buf_printf(b, "    const %s v%d = %s;\n", type_names[n->out[0]->type.dtype], n->out[0]->id,
                   lane_text(w, n));
    for (int k = 0; k < w->nstore; k++)
        for (int j = 0; j < n->nout; j++)
            if (result_id(w, k) == n->out[j]->id && w->store[k].per == EACH_ROW)
                buf_printf(b, "    if (!t.lane)\n        out%d[%s] = v%d;\n", k,
                           offset(w, &w->store[k]), n->out[j]->id);
}

static void write_rows(Writer *w, Buf *b)
{
    int64_t row = w->shape.row, rows = w->shape.nelem / row;
    int team = row_threads(row), block = row <= WARP_ROW ? WARP_BLOCK : team;
    buf_add(b, "    __shared__ __align__(16) char shared[ROW_SHARED];\n");
    buf_printf(b, "    const auto t = team_here<Team<%d, %d>>(shared);\n", team, w->steps);
    buf_printf(b, "    const Index r = (Index)blockIdx.x * %d + threadIdx.x / %d;\n", block / team,
               team);
    buf_printf(b, "    if (r >= %s)\n        return;\n", number(w, rows));
    buf_printf(b, "    const Index o = r * %s;\n", number(w, row));
    write_whole(w, b);
    write_numbers(w, b);
    write_held(w, b);
    for (int s = 0; s < w->nsegment; s++) {
        buf_printf(b, "each_pack(t, %lld, [&](int i, int count, int k) {\n", (long long)row);
        buf_add(b, "const Index p = o + i;\n");
        write_loop(w, b, s);
        buf_add(b, "});\n");
        for (int j = 0; j < w->segment[s].nafter; j++)
            write_after(w, b, w->segment[s].after[j]);
    }
    w->text.threads = block;
    w->text.blocks = (rows + block / team - 1) / (block / team);
}

bool node_has_text(const Node *n)
{
    LaneFn l = {0};
    return n->op->view || (rows_of(n) ? row_has_text(n) : node_lane(n, &l));
}

int64_t text_room(int64_t row)
{
    return row <= HELD_ROW ? HELD_BYTES * row : 0;
}

/* ---- what is asked for ---- */

static bool number_from_outside(const Node *n, int i)
{
    const Value *x = fused_base(n->in[i]);
    return !x->def || fused_constant(x->def);
}

bool fused_text_accepts(const Call *c)
{
    FusedShape s = fused_shape(c->node);
    for (const Node *n = c->node->region->body[MAIN]->first; n; n = n->next) {
        const RowKernel *rows = rows_of(n);
        if (!node_has_text(n))
            return false;
        for (int i = 0; i < n->nin && !n->op->view; i++) {
            const Value *x = fused_base(n->in[i]);
            bool whole = x != n->in[i] || (rows && rows->in[i] == ROW_ALL);
            if (whole && !x->def && !tensor_contiguous(&c->in[x->index]))
                return false;
            if (node_is(n, OP_dropout) && i && !number_from_outside(n, i))
                return false;
            if (x->def && !fused_constant(x->def) && type_nelem(&x->type) == s.nelem &&
                s.row > HELD_ROW)
                return false;
        }
    }
    return true;
}

FusedText fused_text(Arena *a, const Call *c)
{
    const Graph *g = c->node->region->body[MAIN];
    Writer w = {.a = a, .c = c, .shape = fused_shape(c->node), .together = TOGETHER};
    Buf b = {.a = a}, head = {.a = a};
    w.made = NEWN(a, Made, g->nvalue);
    if (w.shape.row && w.shape.row <= HELD_ROW)
        w.steps = (int)((w.shape.row + TOGETHER * row_threads(w.shape.row) - 1) /
                        (TOGETHER * row_threads(w.shape.row)));
    make_segments(&w, g);
    find_stores(&w);
    choose_sizes(&w);
    if (w.shape.row)
        write_rows(&w, &b);
    else
        write_elements(&w, &b);
    buf_printf(&head, "#include \"fused.cuh\"\n\ntypedef %s Index;\n\n",
               w.wide ? "long long" : "unsigned");
    buf_printf(&head, "extern \"C\" __global__ void __launch_bounds__(%d) fused(", w.text.threads);
    write_arguments(&w, &head);
    buf_printf(&head, ")\n{\n%s}\n", b.text);
    w.text.text = head.text;
    return w.text;
}
