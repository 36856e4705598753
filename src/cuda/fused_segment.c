/* Finds what the text of a body of `fused` reads and writes, in which segment, and how many
 * elements a thread has (fused_text.c has the method). */
#include "fused_writer.h"

enum { TOGETHER = 8, SEGMENTS = FUSED_MOST + 1 };

Count text_count(const TextWriter *w, const Value *v)
{
    return type_nelem(&v->type) == w->shape.nelem ? EACH : EACH_ROW;
}

const RowKernel *text_rows(const Node *n)
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

int64_t access_stride(const Access *x)
{
    return x->walk.stride[1][x->walk.rank - 1];
}

/* Whether the elements of a thread are one access, where the data begin as they would alone. */
bool access_whole(const TextWriter *w, const Access *x)
{
    bool fits = access_stride(x) == 1 && !(w->shape.row % w->together);
    for (int d = 0; d < x->walk.rank - 1; d++)
        fits &= !(x->walk.stride[1][d] % w->together);
    return fits && !(x->walk.dim[x->walk.rank - 1] % w->together);
}

/* Whether they are access_stride() apart. */
bool access_even(const TextWriter *w, const Access *x)
{
    int64_t last = x->walk.dim[x->walk.rank - 1], row = w->shape.row;
    return (row && !(last % row)) || (!(last % w->together) && !(row % w->together));
}

/* How operand i of n, of which the body has no more than a view, is read. The weights of norms,
 * which an op along rows reads whole, have an element for each column. */
static Access operand_access(const TextWriter *w, const Node *n, int i)
{
    const Value *v = n->in[i], *x = fused_base(v);
    const RowKernel *rows = text_rows(n);
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
int text_load(TextWriter *w, const Node *n, int i)
{
    Access y = operand_access(w, n, i);
    int k = 0;
    while (k < w->nload && !same_access(&w->load[k], &y))
        k++;
    if (k == w->nload)
        PUSH(w->a, w->load, w->nload, w->capload, y);
    return k;
}

static void find_stores(TextWriter *w)
{
    const Region *r = w->c->node->region;
    for (int k = 0; k < r->nout; k++) {
        const Value *v = r->body[MAIN]->out[r->out[k].at[MAIN]].v;
        Access y = access_of(&w->c->out[k], k, text_count(w, v), &v->type);
        PUSH(w->a, w->store, w->nstore, w->capstore, y);
    }
}

/* ---- segments ---- */

/* A statement's operand is held from some loop on, or read from memory by the statement itself. */
static void note_reads(TextWriter *w, const Node *n, int segment, bool statement)
{
    for (int i = 0; i < n->nin; i++) {
        const Value *x = fused_base(n->in[i]);
        int k = x->def ? 0 : text_load(w, n, i);
        Access *y = x->def ? NULL : &w->load[k];
        uint64_t *loops = y ? &y->loops : &w->made[x->id].loops;
        bool each = y ? y->per == EACH : text_count(w, x) == EACH && !fused_constant(x->def);
        if (each && statement)
            *(y ? &y->statement : &w->made[x->id].statement) = true;
        bool load = y && w->steps && !*loops;
        if (statement ? each && load : each || (y && y->per == EACH_COLUMN))
            *loops |= UINT64_C(1) << segment;
    }
}

/* The last segment whose loop makes an operand of n. */
static int made_in(const TextWriter *w, const Node *n)
{
    int last = 0;
    for (int i = 0; i < n->nin; i++) {
        const Value *x = fused_base(n->in[i]);
        last = x->def ? MAX(last, w->made[x->id].segment) : last;
    }
    return last;
}

static void add_to_loop(TextWriter *w, const Node *n, int segment)
{
    Segment *s = &w->segment[segment];
    s->loop[s->nloop++] = n;
    w->nsegment = MAX(w->nsegment, segment + 1);
    w->made[n->out[0]->id].segment = segment;
    note_reads(w, n, segment, false);
}

static void make_segments(TextWriter *w, const Graph *g)
{
    int at = 0;
    w->segment = NEWN(w->a, Segment, SEGMENTS);
    w->nsegment = 1;
    for (const Node *n = g->first; n; n = n->next) {
        bool rows = text_rows(n), each = text_count(w, n->out[0]) == EACH;
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

bool access_held(const TextWriter *w, uint64_t loops, bool statement)
{
    return w->steps && (statement || (loops & (loops - 1)));
}

/* ---- sizes ---- */

/* Takes into account how x lies: V divides its rows, and is not more than fills 16 bytes of the
 * narrowest tensor. */
static void fit(TextWriter *w, const Access *x, int *size)
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

static void choose_sizes(TextWriter *w)
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

void text_plan(TextWriter *w)
{
    const Graph *g = w->c->node->region->body[MAIN];
    w->shape = fused_shape(w->c->node);
    w->together = TOGETHER;
    w->made = NEWN(w->a, Made, g->nvalue);
    if (w->shape.row && w->shape.row <= HELD_ROW) {
        int once = TOGETHER * row_team(w->shape.row);
        w->steps = (int)((w->shape.row + once - 1) / once);
    }
    make_segments(w, g);
    find_stores(w);
    choose_sizes(w);
}
