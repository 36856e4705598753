/* All ranks of a mesh in lockstep, in one process. What ranks have is cut from whole tensors by the
 * ports' cuts and put together again; between that every node runs on all ranks before the next
 * does, a collective across the ranks of each group. ranks_plan.c runs planned arenas so. */
#include "ranks.h"

#include "cut_parts.h"
#include "interp.h"

#include <string.h>

/* ---- the ranks have one graph ---- */

/* By op and attribute: where ranks may differ, as parts begin elsewhere. */
extern const OpId OP_slice, OP_full, OP_cat_ring;
static const struct {
    const OpId *op;
    const char *attr;
} own[] = {
    {&OP_slice, "start"}, {&OP_slice, "end"}, {&OP_full, "fill_value"}, {&OP_cat_ring, "first"}};

static bool same_attrs(Arena *a, const Node *n, const Node *m)
{
    Node x = *m;
    const AttrField *f = op_attrs(n->op);
    int count = 0;
    while (f[count].kind)
        count++;
    x.attr = NEWN(a, Attr, count);
    for (int i = 0; i < count && n->op == m->op; i++) {
        x.attr[i] = m->attr[i];
        for (int k = 0; k < LEN(own); k++)
            if (node_of(n, own[k].op) && !strcmp(f[i].name, own[k].attr))
                x.attr[i] = n->attr[i];
    }
    return attrs_equal(n, &x);
}

static void check_alike(Arena *a, const Graph *g, const Graph *h);

static void check_node(Arena *a, const Graph *g, const Node *n, const Node *m)
{
    if (!m || n->op != m->op || !same_attrs(a, n, m) || n->nin != m->nin || n->nout != m->nout)
        fail_node(g, n, "another rank has another node here: %s", m ? m->op->name : "none");
    for (int i = 0; i < n->nin; i++)
        if (n->in[i]->id != m->in[i]->id)
            fail_node(g, n, "another rank has another operand %d", i);
    for (int k = 0; k < n->nout; k++)
        if (n->out[k]->id != m->out[k]->id || !type_equal(&n->out[k]->type, &m->out[k]->type))
            fail_node(g, n, "another rank has another result %d", k);
    if (region_nbody(n->region) != region_nbody(m->region))
        fail_node(g, n, "another rank has other bodies");
    EACH_BODY(b, n)
        check_alike(a, n->region->body[b], m->region->body[b]);
}

static void check_ports(const Graph *g, const Port *p, const Port *q, int count)
{
    for (int i = 0; i < count; i++) {
        bool same = p[i].v->id == q[i].v->id && type_equal(&p[i].v->type, &q[i].v->type) &&
                    !p[i].cut == !q[i].cut;
        for (int c = 0; same && p[i].cut && c < g->mesh->naxes; c++)
            same = cut_equal(p[i].cut[c], q[i].cut[c]);
        if (!same)
            fail(g->ctx, TN_FAIL, "the ranks do not have the same port %%%s", p[i].v->name);
    }
}

static void check_alike(Arena *a, const Graph *g, const Graph *h)
{
    if (g->nin != h->nin || g->nout != h->nout)
        fail(g->ctx, TN_FAIL, "the ranks do not have the same number of ports");
    check_ports(g, g->in, h->in, g->nin);
    check_ports(g, g->out, h->out, g->nout);
    const Node *m = h->first;
    for (const Node *n = g->first; n; n = n->next, m = m->next)
        check_node(a, g, n, m);
    if (m)
        fail_node(h, m, "another rank has no such node");
}

Ranks ranks_of(Arena *a, int n, Graph **g)
{
    Ranks r = {a, g[0]->mesh, n, g};
    CHECK(r.mesh && mesh_nranks(r.mesh) == n);
    for (int i = 0; i < n; i++) {
        CHECK(mesh_rank(g[i]->mesh) == i);
        check_alike(a, g[0], g[i]);
    }
    return r;
}

/* ---- from whole tensors and back ---- */

static double never(void *arg)
{
    (void)arg;
    return 0.5;
}

/* The mesh's axes as splitters: parts in their order are ranks. */
static void splitters(const Mesh *m, Splitter *s)
{
    for (int c = 0; c < m->naxes; c++) {
        s[c] = (Splitter){.count = m->size[c], .nparts = (int)m->size[c]};
        for (int j = 0; j <= s[c].nparts; j++)
            s[c].at[j] = j;
    }
}

static const Cut *port_cut(const Port *p)
{
    static const Cut whole[MAX_MESH];
    return p->cut ? p->cut : whole;
}

/* Whether v, perhaps seen otherwise, is what a loss takes for labels. */
static bool is_labels(const Graph *g, const Value *v)
{
    extern const OpId OP_cross_entropy, OP_count_labels, OP_nll_loss_forward;
    static const struct {
        const OpId *op;
        int operand;
    } readers[] = {{&OP_cross_entropy, 1}, {&OP_count_labels, 0}, {&OP_nll_loss_forward, 1}};
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++) {
            if (n->in[i] != v)
                continue;
            if (n->op->view && is_labels(g, n->out[0]))
                return true;
            for (int k = 0; k < LEN(readers); k++)
                if (node_of(n, readers[k].op) && i == readers[k].operand)
                    return true;
        }
    return false;
}

/* The elements of t within the shape of `inner`. */
static Tensor crop(const Tensor *t, const Tensor *inner)
{
    Tensor y = *t;
    memcpy(y.dim, inner->dim, sizeof y.dim);
    return y;
}

static bool larger(const Type *t, const Tensor *x)
{
    bool grows = false;
    CHECK(t->rank == x->rank && t->dtype == x->dtype);
    for (int d = 0; d < t->rank; d++) {
        CHECK(t->dim[d] >= x->dim[d]);
        grows |= t->dim[d] > x->dim[d];
    }
    return grows;
}

static Tensor padded(Arena *a, const Tensor *t, const Type *type, double fill)
{
    if (!larger(type, t))
        return *t;
    Tensor y = tensor_new(a, type, 0);
    for (int64_t e = 0, n = fill != 0 ? tensor_nelem(&y) : 0; e < n; e++)
        tensor_set(&y, e, fill);
    Tensor inner = crop(&y, t);
    strided_copy(&inner, t);
    return y;
}

Tensor **ranks_inputs(const Ranks *r, const Graph *whole, const Tensor *in)
{
    enum { IGNORED = -100 };
    Tensor **x = NEWN(r->a, Tensor *, r->n);
    Splitter s[MAX_MESH];
    splitters(r->mesh, s);
    for (int j = 0; j < r->n; j++)
        x[j] = NEWN(r->a, Tensor, whole->nin);
    CHECK(whole->nin == r->g[0]->nin);
    for (int i = 0; i < whole->nin; i++) {
        const Port *p = &r->g[0]->in[i];
        Type t = cut_whole_type(&p->v->type, r->mesh, port_cut(p));
        Tensor all = padded(r->a, &in[i], &t, is_labels(whole, whole->in[i].v) ? IGNORED : 0);
        Tensor *part = cut_up(r->a, &all, r->mesh->naxes, s, port_cut(p), never, NULL);
        for (int j = 0; j < r->n; j++)
            x[j][i] = part[j];
    }
    return x;
}

/* The same rank, but at the beginning of the mesh axes that do not cut the value. */
static int first_with(const Mesh *mesh, int rank, const Cut *cut)
{
    Mesh m = *mesh;
    mesh_set_rank(&m, rank);
    for (int c = 0; c < m.naxes; c++)
        m.at[c] = cut[c].kind == CUT_WHOLE ? 0 : m.at[c];
    return (int)mesh_rank(&m);
}

/* Behind the end of an axis of `all`, which has t's elements. */
static bool padding_zero(Arena *a, const Tensor *all, const Tensor *t)
{
    Type type = type_make(all->dtype, all->rank, all->dim);
    Tensor rest = tensor_copy(a, all, all->dtype), zero = tensor_new(a, &type, 0);
    Tensor inner = crop(&rest, t), nothing = crop(&zero, t);
    strided_copy(&inner, &nothing);
    return tensor_same_bits(&rest, &zero);
}

const char *ranks_together(const Ranks *r, const Graph *whole, Tensor *const *out, Tensor *joined)
{
    Splitter s[MAX_MESH];
    splitters(r->mesh, s);
    CHECK(whole->nout == r->g[0]->nout);
    for (int k = 0; k < whole->nout; k++) {
        const Port *p = &r->g[0]->out[k], *q = &whole->out[k];
        Type t = cut_whole_type(&p->v->type, r->mesh, port_cut(p));
        Tensor *part = NEWN(r->a, Tensor, r->n), all;
        for (int j = 0; j < r->n; j++) {
            int first = first_with(r->mesh, j, port_cut(p));
            part[j] = out[j][k];
            if (!tensor_same_bits(&part[j], &part[first]))
                return arena_printf(r->a, "output %%%s: ranks %d and %d have other bits",
                                    q->v->name, first, j);
        }
        const char *why = cut_join(r->a, &t, r->mesh->naxes, s, port_cut(p), part, &all);
        if (why)
            return arena_printf(r->a, "output %%%s: %s", q->v->name, why);
        joined[k] = tensor_new(r->a, &q->v->type, 0);
        if (larger(&t, &joined[k]) && (q->role == ROLE_NEW || q->role == ROLE_GRAD) &&
            !padding_zero(r->a, &all, &joined[k]))
            return arena_printf(r->a, "output %%%s: padding is not zero", q->v->name);
        Tensor inner = crop(&all, &joined[k]);
        strided_copy(&joined[k], &inner);
    }
    return NULL;
}

/* ---- collectives ---- */

int ranks_member(const Mesh *mesh, int rank, int naxes, const int *axes, int64_t i)
{
    Mesh m = *mesh;
    mesh_set_rank(&m, rank);
    for (int c = naxes - 1; c >= 0; c--) {
        m.at[axes[c]] = i % m.size[axes[c]];
        i /= m.size[axes[c]];
    }
    return (int)mesh_rank(&m);
}

/* One rank's part in a collective. */
typedef struct Member {
    const Node *n;
    int64_t count, place; /* of the group's ranks; its own among them */
    const Tensor **in;    /* by member of the group */
    const Node **sender;  /* the same; sizes of parts are each rank's own */
    const Tensor *out;
} Member;

static const Attr *attr_of(const Node *n, const char *name)
{
    int i = attr_index(n->op, name);
    return i < 0 ? NULL : &n->attr[i];
}

static Tensor rows_of(const Tensor *t, int64_t at, int64_t size)
{
    Tensor s = *t;
    s.data += at * t->stride[0] * dtype_size(t->dtype);
    s.dim[0] = size;
    return s;
}

static double merge_float(char op, double x, double y)
{
    switch (op) {
    case 'm': return x < y || y != y ? x == x ? y : x : x;
    case 'i': return x > y || y != y ? x == x ? y : x : x;
    case 'p': return x * y;
    default: return x + y;
    }
}

static int64_t merge_int(char op, int64_t x, int64_t y)
{
    switch (op) {
    case 'm': return MAX(x, y);
    case 'i': return MIN(x, y);
    case 'p': return (int64_t)((uint64_t)x * (uint64_t)y);
    default: return (int64_t)((uint64_t)x + (uint64_t)y);
    }
}

/* A letter for each reduce_op. */
static char reduce_letter(const char *op)
{
    return !strcmp(op, "min") ? 'i' : !strcmp(op, "max") ? 'm' : op[0];
}

/* f32 is what all narrower ones are reduced in. */
static double rounded(DType d, double y)
{
    return d == F64 ? y : (double)(float)y;
}

static double reduce_floats(const Member *m, char op, int64_t from)
{
    bool sums = m->count > 1 && (op == 's' || op == 'a');
    double y = sums ? 0 : tensor_get(m->in[0], tensor_linear(m->in[0], from));
    for (int64_t i = sums ? 0 : 1; i < m->count; i++)
        y = rounded(m->out->dtype,
                    merge_float(op, y, tensor_get(m->in[i], tensor_linear(m->in[i], from))));
    return op == 'a' ? rounded(m->out->dtype, y / (double)m->count) : y;
}

/* Element `at` of the result from the members' `from`, in the group's order. */
static void reduce_element(const Member *m, char op, int64_t at, int64_t from)
{
    if (dtype_float(m->out->dtype)) {
        tensor_set(m->out, at, reduce_floats(m, op, from));
        return;
    }
    int64_t y = tensor_int(m->in[0], tensor_linear(m->in[0], from));
    for (int64_t i = 1; i < m->count; i++)
        y = merge_int(op, y, tensor_int(m->in[i], tensor_linear(m->in[i], from)));
    y = op == 'a' ? y / m->count : y;
    y = m->out->dtype == BOOL ? y != 0 : y;
    int size = dtype_size(m->out->dtype); /* its low bytes come first */
    memcpy(m->out->data + at * size, &y, (size_t)size);
}

/* all_reduce has all of what reduce_scatter_tensor has a part. */
static void run_reduce(const Member *m)
{
    char op = reduce_letter(attr_of(m->n, "reduce_op")->s);
    int64_t n = tensor_nelem(m->out), first = node_is(m->n, OP_all_reduce) ? 0 : m->place * n;
    for (int64_t e = 0; e < n; e++)
        reduce_element(m, op, tensor_linear(m->out, e), first + e);
}

static void run_gather(const Member *m)
{
    int64_t n = m->in[0]->dim[0];
    for (int64_t i = 0; i < m->count; i++) {
        Tensor to = rows_of(m->out, i * n, n);
        strided_copy(&to, m->in[i]);
    }
}

/* What member `from` sends to the one in that place, by its sizes. */
static Tensor sent(const Member *m, int64_t from)
{
    const Attr *sizes = attr_of(m->sender[from], "input_split_sizes");
    const Tensor *x = m->in[from];
    int64_t at = 0;
    if (!sizes->i)
        return rows_of(x, m->place * (x->dim[0] / m->count), x->dim[0] / m->count);
    for (int64_t i = 0; i < m->place; i++)
        at += sizes->ints[i];
    return rows_of(x, at, sizes->ints[m->place]);
}

static void run_exchange(const Member *m)
{
    int64_t at = 0;
    for (int64_t i = 0; i < m->count; i++) {
        Tensor from = sent(m, i), to = rows_of(m->out, at, from.dim[0]);
        strided_copy(&to, &from);
        at += from.dim[0];
    }
    CHECK(at == m->out->dim[0]);
}

static int64_t around(int64_t i, int64_t count)
{
    return (i % count + count) % count;
}

static void run_member(const Member *m)
{
    if (node_is(m->n, OP_all_gather_into_tensor))
        run_gather(m);
    else if (node_is(m->n, OP_all_to_all_single))
        run_exchange(m);
    else if (node_is(m->n, OP_broadcast))
        strided_copy(m->out, m->in[attr_of(m->n, "src")->i]);
    else if (node_is(m->n, OP_permute_tensor))
        strided_copy(m->out, m->in[around(m->place + attr_of(m->n, "shift")->i, m->count)]);
    else
        run_reduce(m);
}

void ranks_collective(const Ranks *r, Node *const *n, const Tensor *in, const Tensor *out)
{
    int axes[MAX_MESH], naxes = group_axes(r->mesh, attr_of(n[0], "group")->s, axes);
    const Attr *size = attr_of(n[0], "group_size");
    if (naxes < 0)
        fail_node(r->g[0], n[0], "the mesh has no such group");
    Member *m = NEW(r->a, Member);
    m->count = group_nranks(r->mesh, naxes, axes);
    m->in = NEWN(r->a, const Tensor *, m->count);
    m->sender = NEWN(r->a, const Node *, m->count);
    if (size && size->i != m->count)
        fail_node(r->g[0], n[0], "group_size: the group has %lld ranks", (long long)m->count);
    for (int j = 0; j < r->n; j++) {
        m->n = n[j];
        m->out = &out[j];
        for (int64_t i = 0; i < m->count; i++) {
            int other = ranks_member(r->mesh, j, naxes, axes, i);
            m->in[i] = &in[other];
            m->sender[i] = n[other];
            m->place = other == j ? i : m->place;
        }
        run_member(m);
    }
}

/* ---- graphs ---- */

typedef struct Lockstep {
    const Ranks *r;
    const RankWatch *watch; /* NULL in bodies */
} Lockstep;

static void run_graphs(const Lockstep *x, const Graph *const *g, Tensor *const *in, Tensor **out);

static Tensor **new_lists(const Ranks *r, int count)
{
    Tensor **list = NEWN(r->a, Tensor *, r->n);
    for (int j = 0; j < r->n; j++)
        list[j] = NEWN(r->a, Tensor, count);
    return list;
}

static void run_loops(const Ranks *r, Node *const *n, Tensor *const *in, Tensor **out)
{
    LoopRun *l = NEWN(r->a, LoopRun, r->n);
    const Graph **body = NEWN(r->a, const Graph *, r->n);
    for (int j = 0; j < r->n; j++)
        l[j] = loop_start(r->a, n[j], in[j], out[j]);
    while (loop_body(&l[0])) {
        for (int j = 0; j < r->n; j++)
            body[j] = loop_body(&l[j]);
        Tensor **x = new_lists(r, body[0]->nin), **y = new_lists(r, body[0]->nout);
        for (int j = 0; j < r->n; j++)
            loop_operands(&l[j], x[j]);
        run_graphs(&(Lockstep){r, NULL}, body, x, y);
        for (int j = 0; j < r->n; j++)
            loop_results(&l[j], y[j]);
    }
}

static void run_collective(const Ranks *r, Node *const *n, Tensor *const *in, Tensor **out)
{
    Tensor *x = NEWN(r->a, Tensor, r->n), *y = NEWN(r->a, Tensor, r->n);
    for (int t = 0; t < n[0]->nin; t++) {
        for (int j = 0; j < r->n; j++) {
            x[j] = in[j][t];
            y[j] = out[j][t] = tensor_new(r->a, &n[j]->out[t]->type, 0xff);
        }
        ranks_collective(r, n, x, y);
    }
}

static void run_nodes(const Lockstep *x, const Graph *const *g, Node *const *n, Tensor **value)
{
    const Ranks *r = x->r;
    Tensor **in = new_lists(r, n[0]->nin), **out = new_lists(r, n[0]->nout);
    for (int j = 0; j < r->n; j++)
        for (int i = 0; i < n[j]->nin; i++)
            in[j][i] = value[j][n[j]->in[i]->id];
    if (n[0]->op->class == CLASS_COLLECTIVE)
        run_collective(r, n, in, out);
    else if (n[0]->op->region == LOOP)
        run_loops(r, n, in, out);
    else
        for (int j = 0; j < r->n; j++)
            interp_node(r->a, g[j], n[j], in[j], out[j]);
    for (int j = 0; j < r->n; j++)
        for (int k = 0; k < n[j]->nout; k++)
            value[j][n[j]->out[k]->id] = out[j][k];
    if (x->watch)
        x->watch->see(x->watch->arg, n, out);
}

static void run_graphs(const Lockstep *x, const Graph *const *g, Tensor *const *in, Tensor **out)
{
    const Ranks *r = x->r;
    Tensor **value = new_lists(r, g[0]->nvalue);
    Node **n = NEWN(r->a, Node *, r->n);
    for (int j = 0; j < r->n; j++) {
        n[j] = g[j]->first;
        for (int i = 0; i < g[j]->nin; i++)
            value[j][g[j]->in[i].v->id] = in[j][i];
    }
    while (n[0]) {
        run_nodes(x, g, n, value);
        for (int j = 0; j < r->n; j++)
            n[j] = n[j]->next;
    }
    for (int j = 0; j < r->n; j++)
        for (int k = 0; k < g[j]->nout; k++)
            out[j][k] = value[j][g[j]->out[k].v->id];
}

Tensor **ranks_interpret(const Ranks *r, Tensor *const *in, const RankWatch *watch)
{
    Tensor **out = new_lists(r, r->g[0]->nout);
    run_graphs(&(Lockstep){r, watch}, (const Graph *const *)r->g, in, out);
    return out;
}
