/* fused: a body of pointwise ops, and of ops along rows between them, that runs once, tile by tile
 * (fused_tiles.c): what the nodes hand each other stays in cache and has no place in the plan.
 *
 * The body: nodes with a lane, views that keep the row-major order, and constants (one element, no
 * operands). All nodes but constants have as many elements as the results, in whatever shape;
 * operands may broadcast, and lie in memory with any strides. Results are values of nodes.
 *
 * With ops along rows (norms, softmax, reductions over last axes, cross-entropy) these elements are
 * rows, of one length for all such ops. Nodes may then have one element for each row instead, which
 * others may stretch over it. An op along rows reads weights and labels as a whole, which come from
 * outside of the body; what it only has after the last row (a loss) is a result of it. */
#include "fused.h"

static int64_t nelem(const Value *v)
{
    return type_nelem(&v->type);
}

bool fused_constant(const Node *n)
{
    return !n->nin && nelem(n->out[0]) == 1;
}

const Value *fused_base(const Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v;
}

FusedShape fused_shape(const Node *n)
{
    FusedShape s;
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next)
        if (node_rows(m, &s))
            return s;
    return (FusedShape){nelem(n->region->body[MAIN]->out[n->region->out[0].at[MAIN]].v), 0};
}

/* ---- what may stand in the body ---- */

static Tensor dense(const Type *t)
{
    Tensor x = {.rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    tensor_fill_strides(&x);
    return x;
}

/* Whether a view of a row-major operand is the same elements in row-major order. */
static bool keeps_order(const Node *n)
{
    Tensor x = dense(&n->in[0]->type), y = dense(&n->out[0]->type);
    Layout in = {0}, out = {0};
    memcpy(in.stride, x.stride, sizeof in.stride);
    if (n->nout != 1 || tensor_nelem(&x) != tensor_nelem(&y) ||
        !n->op->rules->view(n, 0, &in, &out) || out.offset)
        return false;
    memcpy(y.stride, out.stride, sizeof y.stride);
    return tensor_contiguous(&y);
}

static bool by_row(int64_t count, const FusedShape *s)
{
    return s->row && count * s->row == s->nelem;
}

bool node_fusible(const Node *n, const FusedShape *s)
{
    LaneFn l;
    FusedShape own;
    if (n->op->region)
        return false;
    if (node_rows(n, &own))
        return own.nelem == s->nelem && own.row == s->row;
    if (n->nout != 1)
        return false;
    int64_t count = nelem(n->out[0]);
    bool fits = count == s->nelem || by_row(count, s);
    return n->op->view ? fits && keeps_order(n) : (fits || fused_constant(n)) && node_lane(n, &l);
}

/* Whether broadcasting stretches each element of x over a row of y. */
static bool stretches(const Type *y, const Type *x, const FusedShape *s)
{
    Tensor to = dense(y), from = dense(x);
    Walk w;
    walk_make(&w, &to, 1, &from);
    return w.rank == 2 && w.dim[1] == s->row && w.stride[1][0] == 1 && !w.stride[1][1];
}

bool operand_fusible(const Node *n, int i, const FusedShape *s)
{
    FusedShape own;
    LaneFn l;
    const Value *x = fused_base(n->in[i]);
    const RowKernel *rows = node_rows(n, &own), *made_by = x->def ? node_rows(x->def, &own) : NULL;
    if (made_by && made_by->out[x->index] == ROW_FINISH)
        return false;
    if (rows)
        return rows->in[i] != ROW_ALL || (x->def && fused_constant(x->def));
    int64_t count = nelem(n->in[i]);
    if (n->op->view || count == 1 || count == nelem(n->out[0]))
        return true;
    return by_row(count, s) && node_lane(n, &l) && l.row &&
           stretches(&n->out[0]->type, &n->in[i]->type, s);
}

/* ---- inference ---- */

bool fused_made_last(const Value *v)
{
    FusedShape own;
    const RowKernel *rows = v->def ? node_rows(v->def, &own) : NULL;
    return rows && rows->out[v->index] == ROW_FINISH;
}

static int find_result(const Region *r, const Value *v)
{
    int k = 0;
    while (k < r->nout && r->body[MAIN]->out[r->out[k].at[MAIN]].v != v)
        k++;
    return k;
}

static void check_results(const Graph *g, const Node *n, const FusedShape *s)
{
    const Region *r = n->region;
    for (int k = 0; k < r->nout; k++) {
        const Value *v = r->body[MAIN]->out[r->out[k].at[MAIN]].v;
        bool fits = nelem(v) == s->nelem || by_row(nelem(v), s) || fused_made_last(v);
        if (!v->def || v->def->op->view || !fits)
            fail_node(g, n,
                      "result %d: expected %lld elements that a node of the body computes, "
                      "found %%%s",
                      k, (long long)s->nelem, v->name);
        if (find_result(r, v) < k)
            fail_node(g, n, "result %d: expected another value than result %d", k,
                      find_result(r, v));
    }
}

static void check_operands(const Graph *g, const Node *m, const FusedShape *s)
{
    for (int i = 0; i < m->nin; i++)
        if ((fused_base(m->in[i])->def || m->in[i]->def) && !operand_fusible(m, i, s))
            fail_node(g, m, "operand %d: expected a value from outside of the body, found %%%s", i,
                      m->in[i]->name);
}

static void check_node(const Graph *g, const Node *n, const Node *m, const FusedShape *s)
{
    if (m->nafter)
        fail_node(g, m, "expected no order edges in a body that runs in tiles");
    if (!node_fusible(m, s))
        fail_node(g, m,
                  "expected a pointwise op of %lld elements with a lane for its dtypes, "
                  "a view that keeps their order, an op along rows as long as others', or a "
                  "constant",
                  (long long)s->nelem);
    check_operands(g, m, s);
    for (int k = 0; k < m->nout; k++)
        if (fused_made_last(m->out[k]) && find_result(n->region, m->out[k]) == n->region->nout)
            fail_node(g, n, "expected %%%s, which is there after the last row, as a result",
                      m->out[k]->name);
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    int nout = region_infer(g, n, out), count = 0;
    if (nout < 1)
        fail_node(g, n, "expected a result, found none");
    FusedShape s = fused_shape(n);
    check_results(g, n, &s);
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next) {
        if (++count > FUSED_MOST)
            fail_node(g, n, "expected at most %d nodes in the body", FUSED_MOST);
        check_node(g, n, m, &s);
    }
    return nout;
}

/* ---- cost, factors ---- */

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next)
        c.nflop += m->op->view ? 0 : node_cost(m).nflop;
    return c;
}

/* A body of one shape has the factors of a pointwise op; else everything stays whole. */
static void factors(const Node *n, Factors *f)
{
    bool same = !fused_shape(n).row;
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next)
        same &= fused_constant(m) || shape_equal(&m->out[0]->type, &n->out[0]->type);
    if (same)
        factors_elementwise(n, f);
    else
        factors_whole(n, f);
}

/* ---- in place ---- */

/* Whether m reads x, through views or not, and so that it must not be overwritten: as a whole, or
 * when y is there, which an earlier node has made or m makes. */
static bool keeps(const Node *m, const Value *y, const Value *x, bool made)
{
    FusedShape own;
    bool keep = false;
    for (int i = 0; i < m->nin && !m->op->view; i++) {
        if (m->in[i] != x && fused_base(m->in[i]) != x)
            continue;
        const RowKernel *rows = node_rows(m, &own);
        bool self = m == y->def && !(rows && !(node_inplace(m, y->index) >> i & 1));
        bool whole = rows && rows->in[i] == ROW_ALL;
        keep |= whole || (made && !self);
    }
    return keep;
}

/* Only a result of all elements, in their order, is worth it. An operand of as many is read in that
 * order too, whatever its shape: one that is stretched has fewer. */
bool fused_overwrites(Node *const *node, int count, const Value *y, const Value *x)
{
    bool alike = y->type.dtype == x->type.dtype && nelem(y) == nelem(x);
    bool made = false, keep = fused_made_last(y) || !alike;
    for (int j = 0; j < count && !keep; j++) {
        FusedShape own;
        made |= node[j] == y->def;
        keep = keeps(node[j], y, x, made) ||
               (node[j]->op->rules->rows && node_rows(node[j], &own) && nelem(y) != own.nelem);
    }
    return !keep;
}

static unsigned overwrites(const Node *n, int k)
{
    const Graph *body = n->region->body[MAIN];
    Node *node[FUSED_MOST];
    unsigned mask = 0;
    int count = 0;
    for (Node *m = body->first; m && count < FUSED_MOST; m = m->next)
        node[count++] = m;
    for (int i = 0; i < MIN(n->nin, 32); i++)
        if (fused_overwrites(node, count, body->out[n->region->out[k].at[MAIN]].v, body->in[i].v))
            mask |= 1u << i;
    return mask;
}

/* Accepts only contiguous tensors where an op along rows reads one as a whole, the body shows it by
 * a view, or it is made after the last row. */
bool fused_accepts(const Call *c)
{
    FusedShape own;
    const Region *r = c->node->region;
    for (int k = 0; k < r->nout; k++)
        if (!tensor_contiguous(&c->out[k]) &&
            fused_made_last(r->body[MAIN]->out[r->out[k].at[MAIN]].v))
            return false;
    for (const Node *n = c->node->region->body[MAIN]->first; n; n = n->next) {
        const RowKernel *rows = node_rows(n, &own);
        for (int i = 0; i < n->nin && !n->op->view; i++) {
            const Value *x = fused_base(n->in[i]);
            bool whole = x != n->in[i] || (rows && rows->in[i] == ROW_ALL);
            if (whole && !x->def && !tensor_contiguous(&c->in[x->index]))
                return false;
        }
    }
    return true;
}

const OpRules op_fused = {
    .math = "results = body(operands), tile by tile",
    .example = "tenon 1\n"
               "graph fused(%x: f32[4, 6], %b: f32[6]) {\n"
               "  %y = fused(%x: f32[4, 6] = %x, %b: f32[6] = %b) {\n"
               "    %add = add(%x, %b)\n"
               "    %y = gelu(%add)\n"
               "    yield %y\n"
               "  }\n"
               "  return %y\n"
               "}\n",
    .infer = infer,
    .cost = cost,
    .factors = factors,
    .overwrites = overwrites,
    .kernels = fused_kernels,
};
