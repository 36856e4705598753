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
 * statement reads is held in registers; of rows longer than HELD_ROW operands are read again. Nodes
 * keep their order, so that a result may take the place of an operand (fused_overwrites()).
 *
 * An operand is read at the row-major position of a shape to which it is broadcast: that of the
 * node that reads it, or of the view by which the body shows it. Neighbouring axes that it passes
 * with one stride are merged (walk_make()). */
#include "fused_writer.h"

enum { THREADS = 256 };
enum { HELD_BYTES = 16 }; /* of an element, in at most 128 registers of 512 threads */

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
static bool is_loaded(const TextWriter *w, const Access *x, int segment)
{
    return in_loop(x->loops, segment) &&
           (x->per == EACH_COLUMN || !access_held(w, x->loops, x->statement) ||
            is_first(x->loops, segment));
}

/* The end of a call that reads or writes x: how elements lie. */
static const char *apart(const TextWriter *w, const Access *x, bool whole)
{
    if (whole)
        return "";
    return arena_printf(w->a, ", %lld%s", (long long)access_stride(x),
                        w->shape.row ? ", count" : "");
}

static void write_load(const TextWriter *w, Buf *b, int k, bool whole)
{
    const Access *x = &w->load[k];
    if (access_even(w, x))
        buf_printf(b, "x%d = load<%d>(in%d + (%s)%s);\n", k, w->together, x->index,
                   access_offset(w, x), apart(w, x, whole));
    else
        buf_printf(
            b, "for (int v = 0; v < count; v++) x%d.v[v] = in%d[%s];\n", k, x->index,
            text_offset(w, &x->walk, arena_printf(w->a, "(%s + v)", text_positions[x->per])));
}

static int result_id(const TextWriter *w, int k)
{
    const Region *r = w->c->node->region;
    return r->body[MAIN]->out[r->out[k].at[MAIN]].v->id;
}

static void write_store(const TextWriter *w, Buf *b, int k, bool whole)
{
    const Access *x = &w->store[k];
    int id = result_id(w, k);
    if (access_even(w, x))
        buf_printf(b, "store(out%d + (%s), v%d%s);\n", x->index, access_offset(w, x), id,
                   apart(w, x, whole));
    else
        buf_printf(b, "for (int v = 0; v < count; v++) out%d[%s] = v%d.v[v];\n", x->index,
                   text_offset(w, &x->walk, arena_printf(w->a, "(%s + v)", text_positions[x->per])),
                   id);
}

static bool is_stored(const TextWriter *w, const Access *x, int segment)
{
    return x->per == EACH && w->made[result_id(w, x->index)].segment == segment;
}

typedef bool Chosen(const TextWriter *w, const Access *x, int segment);
typedef void WriteAccess(const TextWriter *w, Buf *b, int k, bool whole);

/* All that may be whole under one condition, so that no load waits for another. */
static void write_accesses(const TextWriter *w, Buf *b, const Access *x, int count, int segment,
                           Chosen *chosen, WriteAccess *write)
{
    bool any = false;
    for (int k = 0; k < count; k++) {
        any |= chosen(w, &x[k], segment) && access_whole(w, &x[k]);
        if (chosen(w, &x[k], segment) && !access_whole(w, &x[k]))
            write(w, b, k, false);
    }
    for (int whole = 1; any && whole >= 0; whole--) {
        buf_add(b, whole ? "if (whole) {\n" : "} else {\n");
        for (int k = 0; k < count; k++)
            if (chosen(w, &x[k], segment) && access_whole(w, &x[k]))
                write(w, b, k, whole);
    }
    buf_add(b, any ? "}\n" : "");
}

/* Writes the runs that a segment reads and makes, which its loop has before its nodes. */
static void write_runs(TextWriter *w, Buf *b, int segment)
{
    const Graph *g = w->c->node->region->body[MAIN];
    const Segment *s = &w->segment[segment];
    for (int k = 0; k < w->nload; k++) {
        const Access *x = &w->load[k];
        if (is_loaded(w, x, segment))
            buf_printf(b, "Neighbours<%s, %d> x%d;\n", text_types[x->dtype], w->together, k);
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
        buf_printf(b, "Neighbours<%s, %d> v%d;\n", text_types[y->type.dtype], w->together, y->id);
        if (node_is(s->loop[j], OP_dropout))
            text_words(w, b, s->loop[j]);
    }
}

static void write_holds(const TextWriter *w, Buf *b, int segment)
{
    const Segment *s = &w->segment[segment];
    for (int k = 0; k < w->nload; k++) {
        const Access *x = &w->load[k];
        if (x->per == EACH && is_loaded(w, x, segment) && access_held(w, x->loops, x->statement))
            buf_printf(b, "hx%d[k] = x%d;\n", k, k);
    }
    for (int j = 0; j < s->nloop; j++) {
        int id = s->loop[j]->out[0]->id;
        const Made *m = &w->made[id];
        if (m->statement || m->loops & ~(UINT64_C(1) << segment))
            buf_printf(b, "hv%d[k] = v%d;\n", id, id);
    }
}

static void write_loop(TextWriter *w, Buf *b, int segment)
{
    const Segment *s = &w->segment[segment];
    write_runs(w, b, segment);
    buf_printf(b, "#pragma unroll\nfor (int v = 0; v < %d; v++) {\n", w->together);
    for (int j = 0; j < s->nloop; j++) {
        const Node *n = s->loop[j];
        buf_printf(b, "v%d.v[v] = %s;\n", n->out[0]->id,
                   text_rows(n) ? text_element(w, n) : text_lane(w, n));
    }
    buf_add(b, "}\n");
    write_accesses(w, b, w->store, w->nstore, segment, is_stored, write_store);
    write_holds(w, b, segment);
}

/* ---- the kernel ---- */

static void write_arguments(const TextWriter *w, Buf *b)
{
    const Call *c = w->c;
    int count = 0;
    for (int i = 0; i < c->nin; i++)
        buf_printf(b, "%sconst %s *in%d", count++ ? ", " : "", text_types[c->in[i].dtype], i);
    for (int k = 0; k < c->nout; k++)
        buf_printf(b, "%s%s *out%d", count++ ? ", " : "", text_types[c->out[k].dtype], k);
    buf_add(b, ", const int *stop, void *fault, int at");
    for (int k = 0; k < w->text.nstream; k++)
        buf_printf(b, ", unsigned stream%d", k);
}

/* Whether the data of all that may be accessed whole begin as they would alone. */
static void write_whole(const TextWriter *w, Buf *b)
{
    Buf names = {.a = w->a};
    for (int k = 0; k < w->nload + w->nstore; k++) {
        bool out = k >= w->nload;
        const Access *x = out ? &w->store[k - w->nload] : &w->load[k];
        if (x->per == EACH_ROW || x->per == ONE || !access_whole(w, x))
            continue;
        buf_printf(&names, "%s%s%d", names.len ? ", " : "", out ? "out" : "in", x->index);
    }
    if (names.len)
        buf_printf(b, "const bool whole = aligned(%s);\n", names.text);
}

/* Numbers, constants, what there is once for each row, streams. */
static void write_numbers(TextWriter *w, Buf *b)
{
    const Graph *g = w->c->node->region->body[MAIN];
    for (int k = 0; k < w->nload; k++) {
        const Access *x = &w->load[k];
        if (x->per == ONE || x->per == EACH_ROW)
            buf_printf(b, "const %s x%d = in%d[%s];\n", text_types[x->dtype], k, x->index,
                       access_offset(w, x));
    }
    for (const Node *n = g->first; n; n = n->next)
        if (fused_constant(n))
            buf_printf(b, "const %s v%d = %s;\n", text_types[n->out[0]->type.dtype], n->out[0]->id,
                       text_lane(w, n));
    for (const Node *n = g->first; n; n = n->next)
        if (node_is(n, OP_dropout))
            text_stream(w, b, n);
}

/* Without ops along rows: the one loop, of which each thread has one run. */
static void write_elements(TextWriter *w, Buf *b)
{
    buf_printf(b, "const Index p = ((Index)blockIdx.x * %d + threadIdx.x) * %d;\n", THREADS,
               w->together);
    buf_printf(b, "if (p >= %s) return;\n", text_number(w, w->shape.nelem));
    write_whole(w, b);
    write_numbers(w, b);
    write_loop(w, b, 0);
    w->text.threads = THREADS;
    w->text.blocks = (w->shape.nelem / w->together + THREADS - 1) / THREADS;
}

/* Registers for what is held. */
static void write_held(const TextWriter *w, Buf *b)
{
    for (int k = 0; k < w->nload; k++)
        if (w->load[k].per == EACH && access_held(w, w->load[k].loops, w->load[k].statement))
            buf_printf(b, "Neighbours<%s, %d> hx%d[%d];\n", text_types[w->load[k].dtype],
                       w->together, k, w->steps);
    for (int s = 0; s < w->nsegment; s++)
        for (int j = 0; j < w->segment[s].nloop; j++) {
            const Value *y = w->segment[s].loop[j]->out[0];
            const Made *m = &w->made[y->id];
            if (m->statement || m->loops & ~(UINT64_C(1) << s))
                buf_printf(b, "Neighbours<%s, %d> hv%d[%d];\n", text_types[y->type.dtype],
                           w->together, y->id, w->steps);
        }
}

/* Once for each row: a statement, and results that there are then. */
static void write_after(TextWriter *w, Buf *b, const Node *n)
{
    if (node_is(n, OP_dropout))
        text_words(w, b, n);
    if (text_rows(n))
        text_statement(w, b, n);
    else
        buf_printf(b, "const %s v%d = %s;\n", text_types[n->out[0]->type.dtype], n->out[0]->id,
                   text_lane(w, n));
    for (int k = 0; k < w->nstore; k++)
        for (int j = 0; j < n->nout; j++)
            if (result_id(w, k) == n->out[j]->id && w->store[k].per == EACH_ROW)
                buf_printf(b, "if (!t.lane) out%d[%s] = v%d;\n", k, access_offset(w, &w->store[k]),
                           n->out[j]->id);
}

static void write_rows(TextWriter *w, Buf *b)
{
    int64_t row = w->shape.row, rows = w->shape.nelem / row;
    int team = row_team(row), block = row_block(row);
    buf_add(b, "__shared__ __align__(16) char shared[ROW_SHARED];\n");
    buf_printf(b, "const auto t = team_here<Team<%d, %d, %s>>(shared);\n", team, w->steps,
               row % w->together ? "false" : "true");
    buf_printf(b, "const Index r = (Index)blockIdx.x * %d + threadIdx.x / %d;\n", row_count(row),
               team);
    buf_printf(b, "if (r >= %s) return;\n", text_number(w, rows));
    buf_printf(b, "const Index o = r * %s;\n", text_number(w, row));
    write_whole(w, b);
    write_numbers(w, b);
    write_held(w, b);
    for (int s = 0; s < w->nsegment; s++) {
        buf_printf(b, "each_pack(t, %lld, [&](int i, int count, int k) {\n", (long long)row);
        buf_add(b, "[[maybe_unused]] const Index p = o + i;\n");
        write_loop(w, b, s);
        buf_add(b, "});\n");
        for (int j = 0; j < w->segment[s].nafter; j++)
            write_after(w, b, w->segment[s].after[j]);
    }
    w->text.threads = block;
    w->text.blocks = (rows + row_count(row) - 1) / row_count(row);
}

bool node_has_text(const Node *n)
{
    LaneFn l = {0};
    return n->op->view || (text_rows(n) ? text_has_row(n) : node_lane(n, &l));
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
        const RowKernel *rows = text_rows(n);
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

/* Lines indented by the braces that are open. */
static const char *indented(Arena *a, const char *text)
{
    Buf b = {.a = a};
    int depth = 0;
    for (const char *end; *text; text = end + 1) {
        end = strchr(text, '\n');
        int inside = depth - (*text == '}');
        for (const char *s = text; s < end; s++)
            depth += (*s == '{') - (*s == '}');
        buf_printf(&b, "%*s", *text == '#' ? 0 : 4 * inside, "");
        buf_addn(&b, text, (size_t)(end + 1 - text));
    }
    return b.text;
}

FusedText fused_text(Arena *a, const Call *c)
{
    TextWriter w = {.a = a, .c = c};
    Buf b = {.a = a}, head = {.a = a};
    text_plan(&w);
    if (w.shape.row)
        write_rows(&w, &b);
    else
        write_elements(&w, &b);
    buf_printf(&head, "#include \"fused.cuh\"\n\ntypedef %s Index;\n\n",
               w.wide ? "long long" : "unsigned");
    buf_printf(&head, "extern \"C\" __global__ void __launch_bounds__(%d) fused(", w.text.threads);
    write_arguments(&w, &head);
    buf_printf(&head, ")\n{\nif (all_stopped(stop)) return;\n%s}\n", b.text);
    w.text.text = indented(a, head.text);
    return w.text;
}
