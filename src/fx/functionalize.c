/* Turns writes to shared memory into values that never change (functionalization).
 *
 * A storage has a version, the number of writes to it; a tensor knows the version of its value. A
 * write to a tensor that is its whole storage gives it a new value and the storage the next
 * version. A write to a view computes the new value of its base (slice_scatter, or the inverse of a
 * permutation) and writes that, up to the whole. A read of a tensor that is out of date computes
 * its value again from its base, by clones of the view nodes. Statements are interpreted in order,
 * so every reader sees what it would see in PyTorch. Source: "Functionalization" in PyTorch's
 * documentation, which uses the same method.
 *
 * An empty tensor is zeros that may not be read: each element has a mark that tells whether it was
 * written since. */
#include "fx.h"

#include <string.h>

static FxTensor *tensor_new(Importer *im, Value *v, const Type *t)
{
    FxTensor *x = NEW(im->a, FxTensor);
    x->v = v;
    x->type = *t;
    return x;
}

FxTensor *fx_fresh(Importer *im, Value *v)
{
    FxTensor *x = tensor_new(im, v, &v->type);
    x->storage = NEW(im->a, FxStorage);
    x->storage->input = v->def ? -1 : v->index;
    return x;
}

FxTensor *fx_empty(Importer *im, Value *zeros)
{
    FxTensor *x = fx_fresh(im, zeros);
    FxStorage *m = x->storage;
    m->line = im->progress.at->line;
    m->unwritten = type_nelem(&zeros->type);
    return x;
}

FxTensor *fx_copy_empty(Importer *im, const FxTensor *t)
{
    const FxStorage *from = t->storage;
    if (t->base || !from->unwritten)
        return NULL;
    FxTensor *x = fx_fresh(im, emit1(&im->b, "clone", IN(t->v), NOATTRS));
    FxStorage *m = x->storage;
    m->line = from->line;
    m->unwritten = from->unwritten;
    if (from->written) {
        m->written = NEWN(im->a, uint8_t, type_nelem(&t->type));
        memcpy(m->written, from->written, (size_t)type_nelem(&t->type));
    }
    return x;
}

FxTensor *fx_view(Importer *im, FxTensor *base, Value *v)
{
    FxTensor *x = tensor_new(im, v, &v->type);
    int count = 0;
    for (const Value *u = v; u != base->v; u = u->def->in[0]) {
        CHECK(u->def && u->def->nin == 1 && u->def->op->view);
        count++;
    }
    x->storage = base->storage;
    x->side = base->side;
    x->version = base->version;
    x->base = base;
    x->nstep = count;
    x->step = NEWN(im->a, Node *, count);
    x->output = NEWN(im->a, int, count);
    for (const Value *u = v; u != base->v; u = u->def->in[0]) {
        x->step[--count] = u->def;
        x->output[count] = u->index;
    }
    return x;
}

/* ---- places in memory ---- */

/* The axes with more than one element from the largest stride to the smallest; whether the elements
 * fill their memory without gaps. */
static bool memory_order(const Type *t, const int64_t *stride, int64_t *order)
{
    int64_t next = 1;
    for (int d = 0; d < t->rank; d++) {
        int k = d;
        for (; k > 0 && (t->dim[order[k - 1]] == 1 || stride[order[k - 1]] < stride[d]); k--)
            order[k] = order[k - 1];
        order[k] = d;
    }
    for (int k = t->rank - 1; k >= 0; k--) {
        if (t->dim[order[k]] != 1 && stride[order[k]] != next)
            return false;
        next *= t->dim[order[k]];
    }
    return true;
}

void fx_set_strides(Importer *im, FxTensor *t, const int64_t *stride)
{
    int64_t order[TN_RANK], *copy = NEWN(im->a, int64_t, TN_RANK);
    memcpy(copy, stride, sizeof *copy * (size_t)t->type.rank);
    t->stride = type_nelem(&t->type) && memory_order(&t->type, stride, order) ? copy : NULL;
}

void fx_set_row_major(Importer *im, FxTensor *t)
{
    Tensor part = {.rank = t->type.rank};
    memcpy(part.dim, t->type.dim, sizeof part.dim);
    tensor_fill_strides(&part);
    fx_set_strides(im, t, part.stride);
}

bool fx_layout(const FxTensor *t, Layout *at)
{
    *at = (Layout){0};
    if (t->stride)
        memcpy(at->stride, t->stride, sizeof *at->stride * (size_t)t->type.rank);
    if (t->stride || !t->base || t->side != t->base->side || !fx_layout(t->base, at))
        return t->stride != NULL;
    for (int i = 0; i < t->nstep; i++) {
        Layout next = {0};
        if (!t->step[i]->op->rules->view(t->step[i], t->output[i], at, &next))
            return false;
        *at = next;
    }
    return true;
}

bool fx_row_major(const FxTensor *t)
{
    Layout at;
    int64_t next = 1;
    if (!fx_layout(t, &at))
        return false;
    for (int d = t->type.rank - 1; d >= 0; d--) {
        if (t->type.dim[d] != 1 && at.stride[d] != next)
            return false;
        next *= t->type.dim[d];
    }
    return true;
}

Value *fx_memory(Importer *im, FxTensor *t)
{
    const Type *x = &t->type;
    int64_t order[TN_RANK];
    if (t->base || !t->stride || !memory_order(x, t->stride, order))
        return NULL;
    Value *v = fx_peek(im, t);
    for (int k = 0; k < x->rank; k++)
        if (order[k] != k)
            return emit1(&im->b, "permute", IN(v), ATTRS(A_INTS("dims", x->rank, order)));
    return v;
}

/* The result of the first nstep view nodes of t on another value of its base. */
static Value *again(Importer *im, const FxTensor *t, Value *base, int nstep)
{
    for (int i = 0; i < nstep; i++) {
        const Node *n = t->step[i];
        base = emit_named(&im->b, n->op, 1, &base, n->attr, NULL, -1, NULL, -1)->out[t->output[i]];
    }
    return base;
}

/* The memory of t as a part of its storage, in elements. */
static Tensor place_of(Importer *im, const FxTensor *t, int64_t *offset)
{
    Layout at = {0}, next = {0};
    Tensor part = {.rank = t->type.rank};
    memcpy(part.dim, t->type.dim, sizeof part.dim);
    tensor_fill_strides(&part);
    if (!t->base && t->stride)
        memcpy(part.stride, t->stride, sizeof *t->stride * (size_t)part.rank);
    if (t->base) {
        Tensor from = place_of(im, t->base, &at.offset);
        memcpy(at.stride, from.stride, sizeof at.stride);
        for (int i = 0; i < t->nstep; i++, at = next) {
            const Node *n = t->step[i];
            memset(&next, 0, sizeof next);
            if (!n->op->rules->view(n, t->output[i], &at, &next))
                fail(im->g->ctx, TN_FAIL, "takes %s of an empty tensor where that is no view",
                     n->op->name);
        }
        memcpy(part.stride, at.stride, sizeof part.stride);
    }
    *offset = at.offset;
    return part;
}

int64_t fx_offset(Importer *im, const FxTensor *t)
{
    int64_t offset;
    place_of(im, t, &offset);
    return offset;
}

static uint8_t *marks(Importer *im, const FxTensor *t)
{
    int64_t n = t->storage->unwritten;
    if (n > INT64_C(1) << 26)
        fail(im->g->ctx, TN_FAIL, "parts of an empty tensor of more than 2^26 elements");
    return NEWN(im->a, uint8_t, n);
}

/* How many elements of t were never written; with `mark` they are from now on. */
static int64_t unwritten(Importer *im, const FxTensor *t, bool mark)
{
    FxStorage *m = t->storage;
    int64_t offset, count = 0;
    if (!m->unwritten)
        return 0;
    if (!t->base) { /* all of it */
        count = m->unwritten;
        m->unwritten = mark ? 0 : count;
        return count;
    }
    if (!m->written)
        m->written = marks(im, t);
    Tensor part = place_of(im, t, &offset);
    for (int64_t i = 0; i < type_nelem(&t->type); i++) {
        uint8_t *written = &m->written[offset + tensor_linear(&part, i)];
        count += !*written;
        m->unwritten -= mark && !*written;
        *written |= mark;
    }
    return count;
}

/* ---- sides ---- */

void fx_doubt(Importer *im, FxTensor *t)
{
    FxStorage *m = t->storage;
    if (!m->nside)
        PUSH(im->a, m->side, m->nside, m->capside, (FxSide){0});
    FxSide side = {t->side, im->progress.at->line, m->version, 0};
    PUSH(im->a, m->side, m->nside, m->capside, side);
    t->side = m->nside - 1;
}

/* Whether side k is a, or was made of it. */
static bool is_of(const FxStorage *m, int k, int a)
{
    while (k != a && k)
        k = m->side[k].parent;
    return k == a;
}

/* The side at whose making it became unknown whether side k has the last write to side from; 0: it
 * is known. */
static int doubtful(const FxStorage *m, int k, int from)
{
    int written = m->side[from].written, below = k;
    if (!written || from == k)
        return 0;
    if (!is_of(m, k, from)) /* from was made of k, or both of another */
        return from;
    for (; below != from; below = m->side[below].parent)
        if (written > m->side[below].since)
            return below;
    return 0;
}

static void check_sides(Importer *im, const FxTensor *t)
{
    const FxStorage *m = t->storage;
    for (int from = 0; from < m->nside; from++) {
        int k = doubtful(m, t->side, from);
        if (k)
            fail(im->g->ctx, TN_FAIL,
                 "reads a tensor of which the graph does not tell whether a write has changed it: "
                 "on line %d PyTorch makes a view or a copy, by strides that are not known; "
                 "expected "
                 "the strides (print_readable(include_stride=True) tells them), or a clone there",
                 m->side[k].line);
    }
}

Value *fx_peek(Importer *im, FxTensor *t)
{
    if (t->version != t->storage->version) {
        CHECK(t->base);
        t->v = again(im, t, fx_peek(im, t->base), t->nstep);
        t->version = t->storage->version;
    }
    t->v = fx_waited(im, t->v);
    return t->v;
}

Value *fx_read(Importer *im, FxTensor *t)
{
    if (unwritten(im, t, false))
        fail(im->g->ctx, TN_FAIL,
             "reads a tensor that line %d made empty before all of it was written",
             t->storage->line);
    check_sides(im, t);
    return fx_peek(im, t);
}

/* ---- writing ---- */

static int wrapped(int64_t axis, int rank)
{
    return (int)(axis < 0 ? axis + rank : axis);
}

static int64_t attr_int(const Node *n, const char *name)
{
    return n->attr[attr_index(n->op, name)].i;
}

static Value *reshaped(Importer *im, Value *y, const Type *t)
{
    return emit1(&im->b, "view", IN(y), ATTRS(A_INTS("size", t->rank, t->dim)));
}

static Value *put_slice(Importer *im, Value *x, Value *y, int64_t dim, int64_t start, int64_t end,
                        int64_t step)
{
    return emit1(
        &im->b, "slice_scatter", IN(x, y),
        ATTRS(A_INT("dim", dim), A_INT("start", start), A_INT("end", end), A_INT("step", step)));
}

static Value *put_split(Importer *im, const Node *n, int k, Value *x, Value *y)
{
    int64_t dim = wrapped(attr_int(n, "dim"), x->type.rank), start = 0;
    for (int i = 0; i < k; i++)
        start += n->out[i]->type.dim[dim];
    return put_slice(im, x, y, dim, start, start + n->out[k]->type.dim[dim], 1);
}

static Value *put_permute(Importer *im, const Node *n, Value *y)
{
    const Attr *dims = &n->attr[attr_index(n->op, "dims")];
    int64_t inverse[TN_RANK];
    for (int64_t i = 0; i < dims->i; i++)
        inverse[wrapped(dims->ints[i], y->type.rank)] = i;
    return emit1(&im->b, "permute", IN(y), ATTRS(A_INTS("dims", dims->i, inverse)));
}

Value *fx_positions(Importer *im, const Type *t)
{
    Value *at =
        emit1(&im->b, "arange", 0, NULL, ATTRS(A_INT("end", type_nelem(t)), A_DTYPE("dtype", I64)));
    return reshaped(im, at, t);
}

Value *fx_scatter(Importer *im, const char *op, Value *x, Value *at, Value *y)
{
    int64_t n = type_nelem(&at->type), all = type_nelem(&x->type);
    Type flat = type_make(y->type.dtype, 1, &n), whole = type_make(x->type.dtype, 1, &all);
    if (!shape_equal(&at->type, &y->type))
        fail(im->g->ctx, TN_FAIL, "expected %s to be put there, found %s",
             type_text(im->a, &at->type), type_text(im->a, &y->type));
    Value *in[] = {reshaped(im, x, &whole), reshaped(im, at, &flat), reshaped(im, y, &flat)};
    return reshaped(im, emit1(&im->b, op, 3, in, ATTRS(A_INT("dim", 0))), &x->type);
}

/* Whether two elements of output k of the view node n are one of its operand. */
static bool overlaps(Importer *im, const Node *n, int k)
{
    const Type *x = &n->in[0]->type, *y = &n->out[k]->type;
    Tensor from = {.rank = x->rank}, part = {.rank = y->rank};
    Layout in = {0}, out = {0};
    memcpy(from.dim, x->dim, sizeof from.dim);
    memcpy(part.dim, y->dim, sizeof part.dim);
    tensor_fill_strides(&from);
    memcpy(in.stride, from.stride, sizeof in.stride);
    if (type_nelem(x) > INT64_C(1) << 26 || !n->op->rules->view(n, k, &in, &out))
        fail(im->g->ctx, TN_FAIL, "writes in place through %s of %s, which is not supported",
             n->op->name, type_text(im->a, x));
    memcpy(part.stride, out.stride, sizeof part.stride);
    uint8_t *taken = NEWN(im->a, uint8_t, type_nelem(x) + 1);
    for (int64_t i = 0; i < type_nelem(y); i++)
        if (taken[out.offset + tensor_linear(&part, i)]++)
            return true;
    return false;
}

/* The same for any view: y is scattered to the positions that the view shows. */
static Value *put_anywhere(Importer *im, const Node *n, int k, Value *x, Value *y)
{
    if (overlaps(im, n, k))
        fail(im->g->ctx, TN_FAIL,
             "writes in place through %s, which is not supported: several of its elements share "
             "one place",
             n->op->name);
    Value *at = fx_positions(im, &x->type);
    at = emit_named(&im->b, n->op, 1, &at, n->attr, NULL, -1, NULL, -1)->out[k];
    return fx_scatter(im, "scatter", x, at, y);
}

/* x with y where output k of the view node n took its elements. */
static Value *put(Importer *im, const Node *n, int k, Value *x, Value *y)
{
    const char *op = n->op->name;
    if (!strcmp(op, "detach") || !strcmp(op, "alias"))
        return y;
    if (!strcmp(op, "view") || !strcmp(op, "squeeze") || !strcmp(op, "unsqueeze"))
        return reshaped(im, y, &x->type);
    if (!strcmp(op, "t") || !strcmp(op, "transpose"))
        return emit_named(&im->b, n->op, 1, &y, n->attr, NULL, -1, NULL, -1)->out[0];
    if (!strcmp(op, "permute"))
        return put_permute(im, n, y);
    if (!strcmp(op, "slice"))
        return put_slice(im, x, y, attr_int(n, "dim"), attr_int(n, "start"), attr_int(n, "end"),
                         attr_int(n, "step"));
    if (!strcmp(op, "split"))
        return put_split(im, n, k, x, y);
    if (!strcmp(op, "expand") && type_equal(&x->type, &y->type))
        return y;
    return put_anywhere(im, n, k, x, y);
}

static void write_up(Importer *im, FxTensor *t, Value *v)
{
    if (t->base) {
        Value **part = NEWN(im->a, Value *, t->nstep + 1), *y = v;
        part[0] = fx_peek(im, t->base);
        for (int i = 1; i < t->nstep; i++)
            part[i] = again(im, t, part[0], i);
        for (int i = t->nstep - 1; i >= 0; i--)
            y = put(im, t->step[i], t->output[i], part[i], y);
        write_up(im, t->base, y);
    } else {
        t->storage->version++;
    }
    t->v = v;
    t->version = t->storage->version;
}

void fx_write(Importer *im, FxTensor *t, Value *v)
{
    if (!type_equal(&t->type, &v->type))
        fail(im->g->ctx, TN_FAIL, "what is written to its argument: expected %s, found %s",
             type_text(im->a, &t->type), type_text(im->a, &v->type));
    unwritten(im, t, true);
    fx_note_write(im, t);
    write_up(im, t, t->base ? fx_waited(im, v) : v);
    if (t->storage->nside)
        t->storage->side[t->side].written = t->storage->version;
}
