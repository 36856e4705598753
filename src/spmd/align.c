/* align: gives logits columns that are no classes, so that their rows begin at multiples of the
 * bytes that the device's products want. A vocabulary of 50,257 in 16 bits has rows at odd
 * multiples of 2 bytes, where products run at a seventh of their rate on an H100.
 *
 * It takes logits x = mm(h, w) of at least LEAST bytes that only cross_entropy and its backward
 * read, and whose gradient is only a left operand of products. w gets columns of zeros, which the
 * loss takes for no classes; their rows are sliced off the weight's gradient. A product that sums
 * over the columns sums over as many as one rank would have, and so has the bits of one rank. It
 * sums over all where ranks compute with parts of the columns.
 *
 * If ranks cut the weight, the columns are as many as make the cut even (50,264 for eight ranks),
 * for small logits too; the part of one rank is a multiple of the device's bytes. spmd keeps the
 * padding with the parameter.
 *
 * Invariants: every sum has the same terms and, where it is over the columns, zeros; a product may
 * add in another order where it has more columns. Bodies of loops are aligned like graphs; nothing
 * changes for devices without such a wish. Linear in the nodes for each x. */
#include "spmd.h"

#include <string.h>

enum { LEAST = 1 << 20 };

/* A value that is an input of the whole graph, cast or transposed, perhaps seen by a body whole. */
typedef struct InputView {
    int input; /* its index, plus 1; 0: nothing */
    bool transposed;
} InputView;

typedef struct Align {
    Graph *g;
    Arena *tmp;
    int64_t nbytes;     /* that the device wants; 0: nothing */
    const Mesh *m;      /* NULL: one rank */
    const Sharding *in; /* by input of the whole graph */
    InputView *view;    /* by value id */
    Replace r;
    Value **wide; /* by value id: logits or their gradient with more columns, or its transpose */
    int64_t *own; /* by value id of those: columns over which products sum */
} Align;

/* ---- what is taken ---- */

/* Whether v is no output, and each node that reads it as operand i may. */
static bool only_read_by(const Graph *g, const Value *v,
                         bool (*may)(const Graph *g, const Node *n, int i))
{
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == v && !may(g, n, i))
                return false;
    return !graph_is_output(g, v);
}

static bool left_of_product(const Graph *g, const Node *n, int i)
{
    (void)g;
    return node_is(n, OP_mm) && i == 0;
}

/* dh = mm(dx, w), or dw = mm(t(dx), h). */
static bool takes_gradient(const Graph *g, const Node *n, int i)
{
    return left_of_product(g, n, i) ||
           (node_is(n, OP_t) && only_read_by(g, n->out[0], left_of_product));
}

static Attr *attr_of(const Node *n, const char *name)
{
    return &n->attr[attr_index(n->op, name)];
}

static bool takes_logits(const Graph *g, const Node *n, int i)
{
    if (node_is(n, OP_cross_entropy))
        return i == 0 && !attr_of(n, "padding")->i;
    return node_is(n, OP_cross_entropy_backward) && i == 1 && n->nin == 5 &&
           !attr_of(n, "padding")->i && !attr_of(n, "classes")->i &&
           only_read_by(g, n->out[0], takes_gradient);
}

/* *parts: the number by which the mesh wants the columns of a product with w to be divisible;
 * *computed: how many ranks compute with parts of them. */
static void find_parts(const Align *x, const Value *w, int64_t *parts, int64_t *computed)
{
    InputView r = x->view[w->id];
    *parts = *computed = 1;
    for (int c = 0; r.input && x->m && c < x->m->naxes; c++) {
        const Sharding *s = &x->in[r.input - 1];
        if (s->cut[c].kind != CUT_SLICE || s->cut[c].axis != !r.transposed)
            continue;
        *parts = MAX(*parts, s->cut[c].outer * x->m->size[c]);
        *computed *= s->computed_sharded[c] ? x->m->size[c] : 1;
    }
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* The columns that n's result is to have, 0 if it is not taken; *own: those that sums have. */
static int64_t columns_of(const Align *x, const Node *n, int64_t *own)
{
    int64_t parts, computed, least = 1;
    if (!node_is(n, OP_mm))
        return 0;
    const Type *t = &n->out[0]->type;
    find_parts(x, n->in[1], &parts, &computed);
    if (type_nbytes(t) >= LEAST)
        least = MAX(x->nbytes / dtype_size(t->dtype), 1);
    int64_t unit = parts / gcd(parts, computed * least) * computed * least;
    int64_t all = round_up(t->dim[1], unit);
    *own = computed > 1 ? all : round_up(t->dim[1], least);
    return all > t->dim[1] && only_read_by(x->g, n->out[0], takes_logits) ? all : 0;
}

/* ---- the rewrite ---- */

static Value *wide_of(const Align *x, const Value *v)
{
    return v->id < x->r.nvalue ? x->wide[v->id] : NULL;
}

/* n with other operands and attributes. */
static Node *emit_as(Align *x, Build *b, const Node *n, Value *const *in, const Attr *attr)
{
    const char **name = graph_fresh_results(x->g, n, "_wide");
    return emit_named(b, n->op, n->nin, in, attr, NULL, n->stream, name, n->nout);
}

/* v with `more` of zeros after the elements of axis 0 or 1. */
static Value *with_zeros(Build *b, Value *v, int axis, int64_t more)
{
    int64_t pad[] = {0, axis == 1 ? more : 0, 0, axis == 0 ? more : 0};
    return emit1(b, "constant_pad_nd", IN(v), ATTRS(A_INTS("pad", 4, pad)));
}

/* Logits: of a transposed weight the rows are added, which the backward has in common. Policy and
 * origin are the product's alone. */
static void widen_logits(Align *x, Build *b, Node *n, int64_t columns, int64_t own)
{
    Value *w = n->in[1];
    int64_t more = columns - n->out[0]->type.dim[1];
    Build plain = *b;
    plain.policy = POLICY_NONE;
    plain.origin = NULL;
    if (node_is(w->def, OP_t))
        w = emit1(&plain, "t", IN(with_zeros(&plain, w->def->in[0], 0, more)), NOATTRS);
    else
        w = with_zeros(&plain, w, 1, more);
    Value *in[] = {n->in[0], w};
    x->wide[n->out[0]->id] = emit_as(x, b, n, in, n->attr)->out[0];
    x->own[n->out[0]->id] = own;
}

/* cross_entropy, or its backward: its operand i is wide. */
static void widen_loss(Align *x, Build *b, Node *n, int i)
{
    Value *wide = wide_of(x, n->in[i]), **in = NEWN(x->tmp, Value *, n->nin);
    Attr *attr = NEWN(x->g->a, Attr, op_nattr(n->op));
    memcpy(in, n->in, sizeof *in * (size_t)n->nin);
    memcpy(attr, n->attr, sizeof *attr * (size_t)op_nattr(n->op));
    in[i] = wide;
    attr[attr_index(n->op, "padding")].i = wide->type.dim[1] - n->in[i]->type.dim[1];
    Node *m = emit_as(x, b, n, in, attr);
    if (i == 0)
        for (int k = 0; k < n->nout; k++)
            replace_with(&x->r, n, k, m->out[k]);
    else
        x->wide[n->out[0]->id] = m->out[0];
    x->own[n->out[0]->id] = x->own[n->in[i]->id];
}

static Value *first_of(Build *b, Value *v, int axis, int64_t count)
{
    if (v->type.dim[axis] == count)
        return v;
    return emit1(b, "slice", IN(v),
                 ATTRS(A_INT("dim", axis), A_INT("start", 0), A_INT("end", count)));
}

/* dh by a weight with rows of zeros, or the rows of dw that belong to classes. */
static void widen_product(Align *x, Build *b, Node *n)
{
    const Type *t = &n->in[0]->type;
    Value *in[] = {wide_of(x, n->in[0]), n->in[1]}, *y;
    int64_t own = x->own[n->in[0]->id];
    if (in[0]->type.dim[1] > t->dim[1]) {
        if (own > t->dim[1])
            in[1] = first_of(b, with_zeros(b, in[1], 0, in[0]->type.dim[1] - t->dim[1]), 0, own);
        in[0] = first_of(b, in[0], 1, own);
        y = emit_as(x, b, n, in, n->attr)->out[0];
    } else {
        y = first_of(b, emit_as(x, b, n, in, n->attr)->out[0], 0, t->dim[0]);
    }
    replace_with(&x->r, n, 0, y);
}

/* ---- graphs ---- */

static void find_views(Align *x, const InputView *in)
{
    const Graph *g = x->g;
    x->view = NEWN(x->tmp, InputView, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        x->view[g->in[i].v->id] = in[i];
    for (const Node *n = g->first; n; n = n->next)
        if (node_is(n, OP_t) || node_is(n, OP__to_copy)) {
            InputView r = x->view[n->in[0]->id];
            x->view[n->out[0]->id] = (InputView){r.input, r.transposed != node_is(n, OP_t)};
        }
}

/* The views that inputs of loop n's body t are. */
static InputView *body_views(const Align *x, const Node *n, int t)
{
    const Region *r = n->region;
    InputView *in = NEWN(x->tmp, InputView, r->body[t]->nin);
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_WHOLE && r->in[j].at[t] >= 0)
            in[r->in[j].at[t]] = x->view[n->in[r->in[j].arg]->id];
    return in;
}

static InputView *input_views(const Align *x)
{
    InputView *in = NEWN(x->tmp, InputView, x->g->nin);
    for (int i = 0; i < x->g->nin; i++)
        in[i] = (InputView){i + 1, false};
    return in;
}

/* x for body t of n. */
static Align align_body(const Align *x, const Node *n, int t)
{
    Align y = *x;
    y.g = n->region->body[t];
    return y;
}

/* in: the views that the inputs of x.g are. */
static int align_graph(Align x, const InputView *in)
{
    int changes = 0;
    Graph *g = x.g;
    x.r = replace_start(g, x.tmp);
    x.wide = NEWN(x.tmp, Value *, g->nvalue);
    x.own = NEWN(x.tmp, int64_t, g->nvalue);
    find_views(&x, in);
    EACH_NODE(n, g) {
        Build b = build_like(g, n, n);
        int64_t own, columns = columns_of(&x, n, &own);
        EACH_LOOP_BODY(t, n)
            changes += align_graph(align_body(&x, n, t), body_views(&x, n, t));
        replace_operands(&x.r, n);
        changes += columns > 0;
        if (columns)
            widen_logits(&x, &b, n, columns, own);
        else if (node_is(n, OP_cross_entropy) && wide_of(&x, n->in[0]))
            widen_loss(&x, &b, n, 0);
        else if (node_is(n, OP_cross_entropy_backward) && wide_of(&x, n->in[1]))
            widen_loss(&x, &b, n, 1);
        else if (node_is(n, OP_t) && wide_of(&x, n->in[0]))
            x.wide[n->out[0]->id] = emit1(&b, "t", IN(wide_of(&x, n->in[0])), NOATTRS);
        else if (node_is(n, OP_mm) && wide_of(&x, n->in[0]))
            widen_product(&x, &b, n);
    }
    replace_outputs(&x.r, g);
    return changes;
}

int pass_align(Graph *g, Arena *tmp, const PassOptions *o)
{
    Align x = {.g = g,
               .tmp = tmp,
               .nbytes = o->align ? o->align : o->device->align,
               .m = g->mesh ? NULL : sharding_mesh(g->ctx, tmp, o)};
    if (x.nbytes & (x.nbytes - 1))
        fail(g->ctx, TN_USAGE, "align: expected a power of two from 1 to 4096, found %lld",
             (long long)x.nbytes);
    if (!x.nbytes && !x.m)
        return 0;
    if (x.m) {
        PassOptions asked =
            *o; /* all graphs of a step pad alike, whatever one of them has chosen */
        if (o->asked_shardings)
            asked.shardings.count = (int)o->asked_shardings;
        Sharding *s = NEWN(tmp, Sharding, g->nin), *out = NEWN(tmp, Sharding, g->nout);
        sharding_fill(g, tmp, &asked, x.m, s, out);
        x.in = s;
    }
    return align_graph(x, input_views(&x));
}

/* ---- what was padded ---- */

bool puts_zeros_behind(const Node *n)
{
    if (!node_is(n, OP_constant_pad_nd) || attr_of(n, "value")->f)
        return false;
    const Attr *pad = attr_of(n, "pad"); /* before an axis and after it, the last axis first */
    for (int64_t i = 0; i < pad->i; i += 2)
        if (pad->ints[i])
            return false;
    return true;
}

static void find_padded(Align x, const InputView *in, Type *t)
{
    find_views(&x, in);
    for (const Node *n = x.g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            find_padded(align_body(&x, n, b), body_views(&x, n, b), t);
        InputView r = puts_zeros_behind(n) ? x.view[n->in[0]->id] : (InputView){0};
        for (int d = 0; r.input && d < n->out[0]->type.rank; d++) {
            int64_t *size = &t[r.input - 1].dim[r.transposed ? !d : d];
            *size = MAX(*size, n->out[0]->type.dim[d]);
        }
    }
}

Type *align_padded(Graph *g, Arena *tmp)
{
    Align x = {.g = g, .tmp = tmp};
    Type *t = NEWN(tmp, Type, g->nin);
    for (int i = 0; i < g->nin; i++)
        t[i] = g->in[i].v->type;
    find_padded(x, input_views(&x), t);
    return t;
}
