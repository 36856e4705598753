/* pad: inputs whose axes the mesh does not divide get padding, zeros after each such axis, so
 * that all ranks have equal shapes.
 *
 * A reader of such an input reads a slice of it. The optimizer works on the padded parameter and
 * state, whose padding stays zero: the gradient is zero there, so are the moments, and decay pulls
 * zero to zero. Slices and padding that meet go away: a table that is looked up needs no slice, as
 * no index points into the padding, and its gradient is made with as many rows; if a slice is
 * padded again and its source has zeros there, the source is read (a padded parameter, or its
 * gradient through products with columns of zeros, align.c). Bodies of loops see padded operands
 * padded, and yield gradients padded. Linear in the nodes. */
#include "rewrite.h"

#include <string.h>

/* A graph or body in which some values also are there with padding. */
typedef struct Pad {
    Graph *g;
    Arena *tmp;
    int nvalue;    /* at the start: what is newer has no padding of its own */
    Value **wide;  /* by value id: the same with padding; NULL: there is none */
    Value **thin;  /* by value id: what stands for it where no padding may be */
    Type *logical; /* by value id, of those with `wide` */
} Pad;

/* ---- types ---- */

/* The number of equal pieces of an axis that is cut so. */
static int64_t units_of(const Mesh *m, const Cut *cut, int axis)
{
    int64_t units = 1;
    for (int c = 0; c < m->naxes; c++)
        if (cut[c].kind == CUT_SLICE && cut[c].axis == axis)
            units = MAX(units, cut[c].outer * m->size[c]);
    return units;
}

static int64_t even_size(int64_t size, int64_t units, int64_t wide)
{
    return units > 1 && wide % units == 0 ? wide : (size + units - 1) / units * units;
}

/* The size of an axis so that its cuts divide it: `wide`, to which readers pad it, if they do. Rows
 * of microbatches, units / ranks of them, cannot be padded at the end of all. */
static int64_t padded_size(const Graph *g, const char *name, int64_t size, const Mesh *m,
                           const Cut *cut, int axis, int64_t wide)
{
    int64_t units = units_of(m, cut, axis), ranks = 1;
    for (int c = 0; c < m->naxes; c++)
        if (cut[c].kind == CUT_SLICE && cut[c].axis == axis)
            ranks *= m->size[c];
    if (units != ranks && size % units && wide % units)
        fail(g->ctx, TN_USAGE,
             "%%%s: %lld rows in %lld microbatches are %.10g in each, which %lld data ranks cannot "
             "share evenly: expected a multiple of %lld rows",
             name, (long long)size, (long long)(units / ranks),
             (double)size / (double)(units / ranks), (long long)ranks, (long long)units);
    return even_size(size, units, wide);
}

static Type padded_type(const Graph *g, const char *name, const Type *own, const Mesh *m,
                        const Cut *cut, const Type *wide)
{
    Type t = *own;
    for (int d = 0; d < t.rank; d++)
        t.dim[d] = padded_size(g, name, own->dim[d], m, cut, d, wide->dim[d]);
    return t;
}

/* By input: the type to which it is padded at least; state is padded as its parameter. */
static Type *find_wide(Graph *g, Arena *tmp)
{
    Type *wide = align_padded(g, tmp);
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 2; i < n->nin && n->op->class == CLASS_OPTIMIZER; i++)
            if (!n->in[0]->def && !n->in[i]->def && shape_equal(&n->in[i]->type, &n->in[0]->type))
                memcpy(wide[n->in[i]->index].dim, wide[n->in[0]->index].dim, sizeof wide->dim);
    return wide;
}

/* ---- nodes ---- */

/* A builder of nodes after the one that makes v. */
static Build build_behind(Graph *g, const Value *v, const Node *like)
{
    Build b = {.g = g, .phase = FORWARD, .scope = ""}; /* of a graph without nodes */
    if (like)
        b = build_like(g, v->def ? v->def->next : g->first, like);
    b.origin = NULL;
    b.policy = POLICY_NONE;
    return b;
}

/* v without its padding. */
static Value *sliced(Build *b, Value *v, const Type *t)
{
    for (int d = 0; d < t->rank; d++)
        if (v->type.dim[d] != t->dim[d])
            v = emit1(b, "slice", IN(v),
                      ATTRS(A_INT("dim", d), A_INT("start", 0), A_INT("end", t->dim[d])));
    return v;
}

/* v with zeros after its axes up to t. */
static Value *padded(Build *b, Value *v, const Type *t)
{
    for (int d = 0; d < t->rank; d++) {
        if (v->type.dim[d] == t->dim[d])
            continue;
        Type more = v->type;
        more.dim[d] = t->dim[d];
        v = emit1(b, "slice_backward", IN(v),
                  ATTRS(A_INTS("input_sizes", more.rank, more.dim), A_INT("dim", d),
                        A_INT("start", 0), A_INT("end", v->type.dim[d])));
    }
    return v;
}

/* ---- readers of what is padded ---- */

static Pad pad_start(Graph *g, Arena *tmp)
{
    return (Pad){g,
                 tmp,
                 g->nvalue,
                 NEWN(tmp, Value *, g->nvalue),
                 NEWN(tmp, Value *, g->nvalue),
                 NEWN(tmp, Type, g->nvalue)};
}

static Value *wide_of(const Pad *x, const Value *v)
{
    return v->id < x->nvalue ? x->wide[v->id] : NULL;
}

static void add_wide(Pad *x, const Value *v, Value *wide, const Type *logical)
{
    x->wide[v->id] = wide;
    x->logical[v->id] = *logical;
}

/* Gives an input padding. */
static void widen_input(Pad *x, Value *v, const Type *t)
{
    Type logical = v->type;
    v->type = *t;
    add_wide(x, v, v, &logical);
}

/* v without padding, for a reader that bears none. */
static Value *thin_of(Pad *x, const Value *v, const Node *reader)
{
    Value **thin = &x->thin[v->id], *wide = x->wide[v->id];
    if (!*thin) {
        Build b = build_behind(x->g, wide, reader);
        b.phase = wide->def ? wide->def->phase : reader ? reader->phase : FORWARD;
        *thin = sliced(&b, wide, &x->logical[v->id]);
    }
    for (Value *y = *thin; reader && y != wide; y = y->def->in[0])
        y->def->phase = MIN(y->def->phase, reader->phase);
    return *thin;
}

static void pad_graph(Pad *x, const Node *around);

/* The bodies of n see operand i with its padding, if through whole ports alone. */
static bool widen_port(Pad *x, Node *n, int i, Pad *inner)
{
    const Region *r = n->region;
    Value *v = n->in[i], *wide = wide_of(x, v);
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].arg == i && r->in[j].kind != PORT_WHOLE)
            return false;
    for (int j = 0; j < r->nin; j++)
        for (int t = 0; t < region_nbody(r) && r->in[j].arg == i; t++)
            if (r->in[j].at[t] >= 0)
                widen_input(&inner[t], r->body[t]->in[r->in[j].at[t]].v, &wide->type);
    n->in[i] = wide;
    return true;
}

static void pad_loop(Pad *x, Node *n)
{
    Pad inner[NBODY];
    EACH_BODY(t, n)
        inner[t] = pad_start(n->region->body[t], x->tmp);
    for (int i = 0; i < n->nin; i++)
        if (wide_of(x, n->in[i]) && !widen_port(x, n, i, inner))
            n->in[i] = thin_of(x, n->in[i], n);
    EACH_BODY(t, n)
        pad_graph(&inner[t], n);
}

/* Whether n's result is there with padding too, if its operand 0 is: it is made then. */
static bool widen_result(Pad *x, Node *n)
{
    Value *wide = wide_of(x, n->in[0]);
    if ((!node_is(n, OP__to_copy) && !node_is(n, OP_t)) || n->out[0]->id >= x->nvalue)
        return false;
    Build b = build_like(x->g, n, n);
    Value *y = node_is(n, OP_t) ? emit1(&b, "t", IN(wide), NOATTRS)
                                : emit_cast(&b, wide, n->out[0]->type.dtype);
    add_wide(x, n->out[0], y, &n->out[0]->type);
    return true;
}

static bool is_update(const Node *n)
{
    return node_is(n, OP_adamw) || node_is(n, OP_sgd);
}

/* Whether padding of operand i changes nothing: n looks up a table with more rows, to which no
 * index points, or adds squares. */
static bool bears_padding(const Pad *x, const Node *n, int i)
{
    const Value *v = n->in[i];
    if (node_is(n, OP_embedding))
        return i == 0 && n->nin == 2 && x->logical[v->id].dim[1] == x->wide[v->id]->type.dim[1];
    return (node_is(n, OP_norm_of) || node_is(n, OP_sum_squares)) && dtype_float(v->type.dtype);
}

/* Has an embedding of a table that gets padded check ids by the rows that it had. */
static void note_rows(const Graph *g, Node *n)
{
    const int at = node_is(n, OP_embedding) ? attr_index(n->op, "rows") : -1;
    if (at < 0 || n->attr[at].i)
        return;
    Attr *attr = NEWN(g->a, Attr, op_nattr(n->op));
    memcpy(attr, n->attr, sizeof *attr * (size_t)op_nattr(n->op));
    attr[at].i = n->in[0]->type.dim[0];
    n->attr = attr;
}

/* Gives n, a reader of padded values, what it may read. */
static void pad_reader(Pad *x, Replace *r, Node *n)
{
    Value *wide = n->nin ? wide_of(x, n->in[0]) : NULL;
    if (wide && puts_zeros_behind(n) && type_equal(&n->out[0]->type, &wide->type))
        replace_with(r, n, 0, wide);
    else if (!wide || !widen_result(x, n))
        for (int i = 0; i < n->nin; i++)
            if ((wide = wide_of(x, n->in[i]))) {
                const bool bears = bears_padding(x, n, i);
                if (bears)
                    note_rows(x->g, n);
                n->in[i] = bears ? wide : thin_of(x, n->in[i], n);
            }
}

/* Gives all nodes what they may read; pad_updates() sees to updates of the whole graph. A reader of
 * padding that went away reads the padded value, and no slice of it: operands are replaced last.
 * around: the loop whose body it is. */
static void pad_graph(Pad *x, const Node *around)
{
    Replace r = replace_start(x->g, x->tmp);
    EACH_NODE(n, x->g) {
        if (n->op->region == LOOP)
            pad_loop(x, n);
        else if (!is_update(n) || x->g->parent)
            pad_reader(x, &r, n);
        replace_operands(&r, n);
    }
    replace_outputs(&r, x->g);
    for (int i = 0; i < x->g->nout; i++) {
        Value *v = x->g->out[i].v;
        const Node *at = v->def ? v->def : around;
        if (wide_of(x, v) && at)
            x->g->out[i].v = thin_of(x, v, at);
    }
}

/* ---- gradients ---- */

static Value *padded_gradient(Graph *g, Value *v, const Type *t, bool alone);

/* The table's gradient with more rows, to which no index points. */
static Value *more_rows(Build *b, const Node *n, const Type *t)
{
    Attr *attr = NEWN(b->g->a, Attr, op_nattr(n->op));
    memcpy(attr, n->attr, sizeof *attr * (size_t)op_nattr(n->op));
    Attr *rows = &attr[attr_index(n->op, "rows")], *all = &attr[attr_index(n->op, "num_weights")];
    rows->i = rows->i ? rows->i : all->i;
    all->i = t->dim[0];
    const char *name = graph_fresh(b->g, arena_printf(b->g->a, "%s_padded", n->out[0]->name));
    return emit_named(b, n->op, n->nin, n->in, attr, NULL, -1, &name, 1)->out[0];
}

/* Whether the product's rows from `rows` on are zero: those of columns that are no classes. */
static bool has_zero_rows(const Node *mm, int64_t rows)
{
    const Node *t = node_is(mm, OP_mm) ? mm->in[0]->def : NULL;
    const Node *loss = node_is(t, OP_t) ? t->in[0]->def : NULL;
    return node_is(loss, OP_cross_entropy_backward) &&
           loss->out[0]->type.dim[1] - loss->attr[attr_index(loss->op, "padding")].i == rows;
}

/* Whether n takes the first rows of what has zeros after them. */
static bool slices_zeros_off(const Node *n)
{
    const Attr *a = n->attr;
    return node_is(n, OP_slice) && !a[attr_index(n->op, "dim")].i &&
           !a[attr_index(n->op, "start")].i && a[attr_index(n->op, "step")].i == 1 &&
           has_zero_rows(n->in[0]->def, n->out[0]->type.dim[0]);
}

enum { MAX_ADDS = 4 }; /* of gradients of one parameter, nested in each other */

/* Whether v can be made in the shape t, rows of zeros after its own, without padding it. */
static bool can_add_rows(const Value *v, const Type *t, int depth)
{
    const Node *n = v->def;
    if (!n || v->type.rank != 2 || v->type.dim[1] != t->dim[1] || depth > MAX_ADDS)
        return false;
    if (node_is(n, OP_add))
        return shape_equal(&n->in[0]->type, &v->type) && shape_equal(&n->in[1]->type, &v->type) &&
               can_add_rows(n->in[0], t, depth + 1) && can_add_rows(n->in[1], t, depth + 1);
    return (node_is(n, OP_embedding_dense_backward) && n->nin == 2) || /* all of the table */
           (slices_zeros_off(n) && n->in[0]->type.dim[0] == t->dim[0]);
}

/* v so. */
static Value *add_rows(Build *b, Value *v, const Type *t)
{
    const Node *n = v->def;
    if (node_is(n, OP_add))
        return emit1(b, "add", IN(add_rows(b, n->in[0], t), add_rows(b, n->in[1], t)), NOATTRS);
    return node_is(n, OP_slice) ? n->in[0] : more_rows(b, n, t);
}

/* Pads what a loop's bodies add up for result k. */
static Value *padded_sum(Node *n, int k, const Type *t)
{
    Region *r = n->region;
    EACH_BODY(s, n) {
        int i = r->out[k].at[s];
        if (i < 0)
            continue;
        Port *p = &r->body[s]->out[i];
        Type inner = *t;
        inner.dtype = p->v->type.dtype;
        p->v = padded_gradient(r->body[s], p->v, &inner, false);
    }
    n->out[k]->type.rank = t->rank;
    memcpy(n->out[k]->type.dim, t->dim, sizeof t->dim);
    return n->out[k];
}

/* v, a gradient, with padding up to t. alone: no other reader wants v as it is. */
static Value *padded_gradient(Graph *g, Value *v, const Type *t, bool alone)
{
    Node *n = v->def;
    if (alone && n && n->op->region == LOOP && n->region->out[v->index].kind == PORT_SUM)
        return padded_sum(n, v->index, t);
    Build b = build_behind(g, v, n ? n : g->first);
    return can_add_rows(v, t, 0) ? add_rows(&b, v, t) : padded(&b, v, t);
}

/* The gradients that updates and outputs read, by value id. */
typedef struct PaddedGradients {
    Type *want;   /* the type to which it is padded; rank 0: it is not */
    bool *differ; /* readers want different padding: each pads it for itself */
    bool *other;  /* something else reads it too */
} PaddedGradients;

/* v is read as the gradient of a parameter, which has a value with padding, or NULL. */
static void want_padding(PaddedGradients *l, const Value *v, const Value *wide)
{
    Type *want = &l->want[v->id];
    Type t = wide ? wide->type : v->type;
    t.dtype = v->type.dtype;
    l->differ[v->id] |= !wide || (want->rank && !type_equal(want, &t));
    if (l->differ[v->id])
        t = (Type){0};
    *want = t;
}

static PaddedGradients find_gradients(const Pad *x)
{
    const Graph *g = x->g;
    PaddedGradients l = {NEWN(x->tmp, Type, g->nvalue), NEWN(x->tmp, bool, g->nvalue),
                         NEWN(x->tmp, bool, g->nvalue)};
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            l.other[n->in[i]->id] |= n->op->class != CLASS_OPTIMIZER || (is_update(n) && i != 1);
    for (int i = 0; i < g->nout; i++)
        l.other[g->out[i].v->id] |= g->out[i].role != ROLE_GRAD;
    for (const Node *n = g->first; n; n = n->next)
        if (is_update(n))
            want_padding(&l, n->in[1], wide_of(x, n->in[0]));
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        const Port *of = p->role == ROLE_GRAD ? graph_find_input(g, ROLE_PARAM, p->name) : NULL;
        if (of)
            want_padding(&l, p->v, wide_of(x, of->v));
    }
    return l;
}

/* Operand i of an update, which works on the shape t: elements of the parameter are padded as far
 * as it is, scalars are as they are. */
static Value *fit_operand(Pad *x, Node *n, int i, const Type *t)
{
    Value *v = n->in[i], *wide = wide_of(x, v);
    const Type *own = wide ? &x->logical[v->id] : &v->type;
    if (!own->rank || shape_equal(wide ? &wide->type : own, t))
        return wide ? wide : v;
    Build b = build_like(x->g, n, n);
    return padded(&b, wide ? thin_of(x, v, n) : v, t);
}

/* n, an update, on padding where the parameter has some: its results are there with padding. */
static void pad_update(Pad *x, Node *n)
{
    Value *param = n->in[0], *wide = wide_of(x, param);
    Type t = wide ? wide->type : param->type;
    for (int i = 0; i < n->nin; i++)
        n->in[i] = fit_operand(x, n, i, &t);
    if (!wide)
        return;
    Build b = build_like(x->g, n, n);
    Node *m = emit_like(&b, n, n->in, NULL, "_padded");
    for (int k = 0; k < n->nout; k++)
        add_wide(x, n->out[k], m->out[k], &n->out[k]->type);
}

/* The optimizer's nodes on padded parameters, state and gradients. Zeros add nothing to norms; what
 * reads new values otherwise gets them without padding. */
static void pad_updates(Pad *x)
{
    Graph *g = x->g;
    PaddedGradients l = find_gradients(x);
    int nvalue = g->nvalue;
    Value **gradient = NEWN(x->tmp, Value *, nvalue);
    EACH_NODE(n, g)
        for (int k = 0; k < n->nout; k++)
            if (n->out[k]->id < nvalue && l.want[n->out[k]->id].rank)
                gradient[n->out[k]->id] =
                    padded_gradient(g, n->out[k], &l.want[n->out[k]->id], !l.other[n->out[k]->id]);
    EACH_NODE(n, g) {
        for (int i = 0; i < n->nin; i++) {
            Value *v = n->in[i], *y = v->id < nvalue ? gradient[v->id] : NULL;
            if (n->op->class == CLASS_OPTIMIZER && (!is_update(n) || i == 1))
                n->in[i] = y ? y : v;
            else if (v->def && is_update(v->def) && wide_of(x, v))
                n->in[i] = thin_of(x, v, n);
        }
        if (is_update(n))
            pad_update(x, n);
    }
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_GRAD && gradient[g->out[i].v->id])
            g->out[i].v = gradient[g->out[i].v->id];
}

/* The input whose gradient or new value an output is; NULL: of none. */
static const Port *input_of(const Graph *g, const Port *p)
{
    const Port *in = NULL;
    for (Role role = 0; role < NROLE && !in && (p->role == ROLE_GRAD || p->role == ROLE_NEW);
         role++)
        if (role_renewed(role))
            in = graph_find_input(g, role, p->name);
    return in;
}

/* Outputs have the padding that their cuts want, or that of their inputs. */
static void pad_outputs(Pad *x, const Mesh *m, const Sharding *out)
{
    Graph *g = x->g;
    for (int i = 0; i < g->nout; i++) {
        Port *p = &g->out[i];
        const Port *in = input_of(g, p);
        Value *wide = wide_of(x, p->v);
        const Type *own = wide ? &x->logical[p->v->id] : &p->v->type;
        Type t = in ? in->v->type : padded_type(g, p->v->name, own, m, out[i].cut, own);
        t.dtype = own->dtype;
        const Node *at = p->v->def ? p->v->def : g->first;
        if (wide && !type_equal(&t, &wide->type))
            p->v = thin_of(x, p->v, at);
        else if (wide)
            p->v = wide;
        if (type_equal(&t, &p->v->type))
            continue;
        Build b = build_behind(g, p->v, at);
        p->v = padded(&b, p->v, &t);
    }
}

/* Rows of a batch that have padding are no rows to the graph: every rank then has all of them. */
static void warn_batch(const Graph *g, const PassOptions *o, const Port *p, const Type *padded)
{
    if (p->role == ROLE_BATCH && o->warn)
        o->warn(o->warn_arg,
                arena_printf(g->a,
                             "spmd: %%%s %s is stored as %s, as the mesh does not divide its rows: "
                             "every rank computes all of them",
                             p->v->name, type_text(g->a, &p->v->type), type_text(g->a, padded)));
}

void spmd_pad(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in,
              const Sharding *out)
{
    Pad x = pad_start(g, tmp);
    const Type *wide = find_wide(g, tmp);
    int count = 0;
    for (int i = 0; i < g->nin; i++) {
        Value *v = g->in[i].v;
        Type t = padded_type(g, v->name, &v->type, m, in[i].cut, &wide[i]);
        if (type_equal(&t, &v->type))
            continue;
        warn_batch(g, o, &g->in[i], &t);
        widen_input(&x, v, &t);
        count++;
    }
    if (count) {
        pad_graph(&x, NULL);
        pad_updates(&x);
    }
    pad_outputs(&x, m, out);
    if (count)
        graph_prune(g, tmp);
}

/* ---- what padding asks of a chosen form ---- */

bool spmd_pad_asks(Graph *g, Arena *tmp, const Graph *padded, Sharding *in)
{
    const Type *wide = find_wide(g, tmp);
    bool any = false;
    for (int i = 0; i < g->nin; i++) {
        const Type *own = &g->in[i].v->type, *now = &padded->in[i].v->type;
        if (g->in[i].role != ROLE_PARAM || in[i].ruled || shape_equal(own, now))
            continue;
        int64_t *units = NEWN(tmp, int64_t, own->rank);
        for (int d = 0; d < own->rank; d++)
            if (now->dim[d] != own->dim[d])
                units[d] = now->dim[d] == wide[i].dim[d] ? 2 : now->dim[d] - own->dim[d] + 1;
        in[i].least_units = units;
        any = true;
    }
    return any;
}

bool spmd_pad_used(const Type *t, const Mesh *m, const int64_t *least_units, const Cut *cut)
{
    for (int d = 0; d < t->rank && least_units; d++)
        if (units_of(m, cut, d) < least_units[d])
            return false;
    return true;
}
