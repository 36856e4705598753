/* ring: passes the parts of a tensor around its group of ranks beside products (--overlap chunked;
 * others call it async tensor parallelism).
 *
 * A gather before products, of n ranks:
 *
 *     %y = all_gather_into_tensor(%x)      %x1 = permute_tensor(%x, shift=1)
 *     %p = mm(%y, %w)                      %p0 = mm(%x, %w)            while %x1 comes
 *                                          %x2 = permute_tensor(%x1)
 *                                          %p1 = mm(%x1, %w)           while %x2 comes ...
 *                                          %p  = cat_ring(%p0, %p1, ..., first=its own place)
 *
 * Whatever else reads %y reads cat_ring(%x, %x1, ...). Flow has parts written where the whole has
 * them, so that neither is copied.
 *
 * A reduction behind a product, or behind sums of products: the rows of each other rank are
 * computed apart, and sent to it by permute_tensor(shift=k) while those of the next are. The parts
 * that come are summed in the order of the ranks, in f32, and rounded once.
 *
 * Order edges keep the interleaving: the product of a part runs behind the next start, the wait
 * behind the product. So starts stand in one order on all ranks, which their hash has. At most two
 * parts that are sent are alive.
 *
 * Numerics: products of fewer rows may round otherwise than those of all; a sum is that of
 * reduce_scatter_tensor, but for the sign of zeros. Rows of a product are made by one rank at a
 * time, each as the others make it; a product that sums over rows reads the whole. So what ranks
 * have alike stays alike.
 *
 * It changes a call where the machine says that this takes less: products, transfers and copies
 * against the products and the call after each other. Gathers of parameters stay whole, and all
 * calls of the backward: there the gradients of weights run beside them (order_overlap.c), and a
 * sum of parts would cost more. Stands behind bucket, whose calls of several values are left alone,
 * as are those with order edges. Walks are linear but for calls times products. Sources: Wang et
 * al., "Overlap communication with dependent computation via decomposition" (ASPLOS 2023);
 * PyTorch's async tensor parallelism. */
#include "../machine/machine.h"
#include "pass.h"

#include <string.h>

enum { MOST_RANKS = 64, MOST_PRODUCTS = 8, MOST_RAISED = 16 };

typedef struct RingReaders {
    int *first; /* by value id, into node[] */
    Node **node;
    bool *kept; /* by value id: it is an output */
} RingReaders;

typedef struct Ring {
    Graph *g;
    Arena *tmp;
    const PassOptions *o;
    RingReaders readers;
    Replace replace;
    int nnode;
    int *place;  /* by node id, among those of the beginning */
    bool *taken; /* by node id: it goes */
    int changes;
} Ring;

/* A collective of one value that may go around a ring. */
typedef struct RingCall {
    Node *start, *wait;
    int n;            /* ranks */
    int64_t me, rows; /* this rank's place; the rows of a part */
    double sec;       /* of a transfer */
} RingCall;

/* Products that read a gathered value, and the node before which they are to stand. */
typedef struct RingProducts {
    Node *node[MOST_PRODUCTS], *before;
    int count;
    bool others; /* there are other readers */
} RingProducts;

/* ---- readers ---- */

static RingReaders find_readers(const Graph *g, Arena *tmp)
{
    RingReaders r = {NEWN(tmp, int, g->nvalue + 1), NULL, NEWN(tmp, bool, g->nvalue)};
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            r.first[n->in[i]->id + 1]++;
    for (int v = 0; v < g->nvalue; v++)
        r.first[v + 1] += r.first[v];
    r.node = NEWN(tmp, Node *, r.first[g->nvalue]);
    int *at = NEWN(tmp, int, g->nvalue);
    for (Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++) {
            int v = n->in[i]->id;
            r.node[r.first[v] + at[v]++] = n;
        }
    for (int i = 0; i < g->nout; i++)
        r.kept[g->out[i].v->id] = true;
    return r;
}

#define EACH_READER(i, x, v) \
    for (int i = (x)->readers.first[(v)->id]; i < (x)->readers.first[(v)->id + 1]; i++)

static int count_readers(const Ring *x, const Value *v)
{
    return x->readers.first[v->id + 1] - x->readers.first[v->id] + x->readers.kept[v->id];
}

/* ---- calls ---- */

static int64_t place_in_group(const Mesh *mesh, const Node *n, int64_t *ranks)
{
    int axes[MAX_MESH], count = group_axes(mesh, n->attr[attr_index(n->op, "group")].s, axes);
    int64_t place = 0;
    for (int i = 0; i < count; i++)
        place = place * mesh->size[axes[i]] + mesh->at[axes[i]];
    *ranks = group_nranks(mesh, count, axes);
    return place;
}

/* Whether v is a parameter's, moved or gathered: --reshard says where such gathers stand. */
static bool is_parameter(const Graph *g, const Value *v)
{
    while (v->def && v->def->nin &&
           (v->def->op->view || v->def->op->wait || v->def->op->copy || op_starts(v->def->op)))
        v = v->def->in[op_starts(v->def->op) ? v->index : 0];
    return !v->def && g->in[v->index].role == ROLE_PARAM;
}

/* In the backward gradients of weights run beside calls whole. */
static bool is_candidate(const Ring *x, const Node *n)
{
    return n->op->class == CLASS_COLLECTIVE && n->phase < BACKWARD && n->nin == 1 && !n->nafter &&
           n->policy != OFFLOAD && n->in[0]->type.rank == 2 && dtype_float(n->in[0]->type.dtype) &&
           count_readers(x, n->out[0]) == 1 && !is_parameter(x->g, n->in[0]);
}

static bool find_call(const Ring *x, Node *n, RingCall *c)
{
    const Mesh *mesh = graph_mesh(x->g);
    CollectiveKind kind = node_collective(n);
    int64_t ranks;
    if (!is_candidate(x, n) || (kind != ALL_GATHER && kind != REDUCE_SCATTER))
        return false;
    Node *wait = x->readers.node[x->readers.first[n->out[0]->id]];
    const Type *part = &n->in[0]->type, *all = &n->out[0]->type;
    if (kind == REDUCE_SCATTER) {
        part = all;
        all = &n->in[0]->type;
    }
    int64_t me = place_in_group(mesh, n, &ranks);
    if (!wait->op->wait || wait->nafter || ranks < 2 || ranks > MOST_RANKS || !part->dim[0])
        return false;
    Group where = node_group(x->o->prices, mesh, n);
    *c = (RingCall){n, wait, (int)ranks, me, part->dim[0], 0};
    c->sec = collective_sec(x->o->prices, PERMUTE, where, (double)type_nbytes(part));
    return true;
}

/* ---- products ---- */

/* The operand of which each row makes a row of the result; -1: there is none. */
static int row_operand(const Node *n)
{
    if (node_is(n, OP_mm))
        return 0;
    bool rows = node_is(n, OP_addmm) && (n->in[0]->type.rank < 2 || n->in[0]->type.dim[0] == 1);
    return rows ? 1 : -1;
}

/* Whether v is there before a place, or is once what makes it was moved up there: views and waits,
 * of which `most` is counted down. */
static bool may_raise(const Ring *x, const Value *v, int place, int *most)
{
    const Node *n = v->def;
    if (!n || x->place[n->id] < place)
        return true;
    bool may = (n->op->view || n->op->wait || n->op->copy) && !n->nafter && --*most >= 0;
    for (int i = 0; i < n->nin && may; i++)
        may = may_raise(x, n->in[i], place, most);
    return may;
}

static void raise_node(Ring *x, Node *n, Node *before)
{
    if (!n || x->place[n->id] < x->place[before->id])
        return;
    for (int i = 0; i < n->nin; i++)
        raise_node(x, n->in[i]->def, before);
    node_move(x->g, n, before);
    x->place[n->id] = x->place[before->id] - 1;
}

static bool reads_rows(const Ring *x, const Node *n, const Value *y, const Node *before)
{
    int row = row_operand(n), most = MOST_RAISED;
    bool reads = row >= 0 && n->in[row] == y && n->phase == y->def->phase && !n->nafter &&
                 !x->taken[n->id] && n->out[0]->type.rank == 2;
    for (int i = 0; i < n->nin && reads; i++)
        reads = i == row || (n->in[i] != y && may_raise(x, n->in[i], x->place[before->id], &most));
    return reads;
}

static bool find_products(const Ring *x, const Value *y, RingProducts *p)
{
    *p = (RingProducts){.others = x->readers.kept[y->id]};
    EACH_READER(i, x, y)
    {
        Node *n = x->readers.node[i];
        if (!p->before || x->place[n->id] < x->place[p->before->id])
            p->before = n;
    }
    EACH_READER(i, x, y)
    {
        Node *n = x->readers.node[i];
        if (p->count < MOST_PRODUCTS && reads_rows(x, n, y, p->before))
            p->node[p->count++] = n;
        else
            p->others = true;
    }
    return p->count > 0;
}

/* ---- prices ---- */

/* A row-wise node with so many rows. */
static double rows_sec(const Ring *x, const Node *n, int64_t rows)
{
    Graph *g = graph_new(x->tmp, "price");
    Build b = {.g = g};
    Value **in = NEWN(x->tmp, Value *, n->nin);
    int row = row_operand(n);
    for (int i = 0; i < n->nin; i++) {
        Type t = n->in[i]->type;
        if (row < 0 || i == row)
            t.dim[0] = rows;
        in[i] = graph_input(g, graph_fresh(g, "x"), t, ROLE_BATCH, NULL);
    }
    return node_sec(x->o->prices, NULL, emit_clone(&b, n, in));
}

static double copy_part_sec(const Ring *x, const Type *part, int reads, double flop)
{
    double nbytes = (double)type_nbytes(part);
    Cost c = {.nflop = flop, .nread = nbytes * reads, .nwrite = nbytes};
    return cost_sec(x->o->prices, flop > 0 ? CLASS_POINTWISE : CLASS_MOVEMENT, part->dtype, &c);
}

static bool gather_pays(const Ring *x, const RingCall *c, const RingProducts *p)
{
    double before = node_sec(x->o->prices, graph_mesh(x->g), c->start), part = 0;
    for (int j = 0; j < p->count; j++) {
        before += rows_sec(x, p->node[j], c->rows * c->n);
        part += rows_sec(x, p->node[j], c->rows);
    }
    double after = (c->n - 1) * MAX(part, c->sec) + part;
    if (p->others)
        after += copy_part_sec(x, &c->start->in[0]->type, 1, 0);
    return after < before;
}

/* ---- a gather before products ---- */

static void run_after(Ring *x, Node *n, Node *before)
{
    Node **after = NEWN(x->g->a, Node *, n->nafter + 1);
    if (n->nafter)
        memcpy(after, n->after, sizeof *after * (size_t)n->nafter);
    after[n->nafter++] = before;
    n->after = after;
}

/* Behind remat policies say nothing any more. */
static Build build_ring(Ring *x, Node *before, const Node *like)
{
    Build b = build_like(x->g, before, like);
    b.policy = POLICY_NONE;
    return b;
}

static Node *emit_start(Build *b, const RingCall *c, Value *v, int shift)
{
    const char *group = c->start->attr[attr_index(c->start->op, "group")].s;
    return emit(b, "permute_tensor", IN(v), ATTRS(A_INT("shift", shift), A_STR("group", group)));
}

static Node *emit_wait(Build *b, const Node *start)
{
    return emit(b, "wait_tensor", IN(start->out[0], start->in[0]), NOATTRS);
}

static Value *emit_ring(Build *b, const RingCall *c, Value *const *part)
{
    return emit1(b, "cat_ring", c->n, part, ATTRS(A_INT("first", c->me)));
}

/* The products of one part, behind the start of the next. */
static void emit_products(Ring *x, Build *b, const RingProducts *p, Value *rows, Node *start,
                          Value **part)
{
    for (int j = 0; j < p->count; j++) {
        const Node *n = p->node[j];
        Value **in = NEWN(x->tmp, Value *, n->nin);
        memcpy(in, n->in, sizeof *in * (size_t)n->nin);
        in[row_operand(n)] = rows;
        Node *m = emit_clone(b, n, in);
        if (start)
            run_after(x, m, start);
        part[j] = m->out[0];
    }
}

static void take(Ring *x, Node *n)
{
    x->taken[n->id] = true;
}

static void replace_gather(Ring *x, Build *b, const RingCall *c, const RingProducts *p,
                           Value *const *rows, Value **part)
{
    Value **of = NEWN(x->tmp, Value *, c->n);
    for (int j = 0; j < p->count; j++) {
        for (int k = 0; k < c->n; k++)
            of[k] = part[k * p->count + j];
        Build like = build_ring(x, b->before, p->node[j]);
        replace_with(&x->replace, p->node[j], 0, emit_ring(&like, c, of));
        take(x, p->node[j]);
    }
    if (p->others) {
        memcpy(of, rows, sizeof *of * (size_t)c->n);
        if (!rows[0]->def || count_readers(x, rows[0]) > 2) /* they may overwrite it */
            of[0] = emit1(b, "clone", IN(rows[0]), NOATTRS);
        replace_with(&x->replace, c->wait, 0, emit_ring(b, c, of));
    }
    take(x, c->wait);
    take(x, c->start);
}

static void ring_gather(Ring *x, const RingCall *c, const RingProducts *p)
{
    Build b = build_ring(x, p->before, c->start);
    Value **rows = NEWN(x->tmp, Value *, c->n);
    Value **part = NEWN(x->tmp, Value *, c->n * p->count);
    for (int j = 0; j < p->count; j++)
        for (int i = 0; i < p->node[j]->nin; i++)
            if (i != row_operand(p->node[j]))
                raise_node(x, p->node[j]->in[i]->def, p->before);
    rows[0] = c->start->in[0];
    for (int k = 0; k < c->n; k++) {
        Node *start = k + 1 < c->n ? emit_start(&b, c, rows[k], 1) : NULL;
        Value **made = part + (ptrdiff_t)k * p->count;
        emit_products(x, &b, p, rows[k], start, made);
        if (!start)
            break;
        Node *wait = emit_wait(&b, start);
        for (int j = 0; j < p->count; j++)
            run_after(x, wait, made[j]->def);
        rows[k + 1] = wait->out[0];
    }
    replace_gather(x, &b, c, p, rows, part);
    x->changes++;
}

/* ---- a reduction behind products ---- */

typedef struct RingSum {
    Node *node[2 * MOST_PRODUCTS]; /* products, and sums of what came before; the last is reduced */
    int count;
} RingSum;

/* Adds what makes v, if each row of it can be made apart. `readers`: how many v has then. */
static bool find_sum(const Ring *x, const Value *v, int readers, RingSum *s)
{
    Node *n = v->def;
    bool adds = n && node_is(n, OP_add) && type_equal(&n->in[0]->type, &v->type) &&
                type_equal(&n->in[1]->type, &v->type) && n->in[0] != n->in[1];
    if (!n || n->nafter || x->taken[n->id] || count_readers(x, v) != readers ||
        s->count + 1 >= LEN(s->node) || (!adds && (row_operand(n) < 0 || v->type.rank != 2)))
        return false;
    if (adds && (!find_sum(x, n->in[0], 1, s) || !find_sum(x, n->in[1], 1, s)))
        return false;
    s->node[s->count++] = n;
    return true;
}

static bool reduction_pays(const Ring *x, const RingCall *c, const RingSum *s)
{
    double before = node_sec(x->o->prices, graph_mesh(x->g), c->start), part = 0;
    const Type *t = &c->start->out[0]->type;
    for (int j = 0; j < s->count; j++) {
        before += rows_sec(x, s->node[j], c->rows * c->n);
        part += rows_sec(x, s->node[j], c->rows);
    }
    double after = part + (c->n - 1) * MAX(part, c->sec);
    after += copy_part_sec(x, t, c->n, (double)(type_nelem(t) * c->n));
    return after < before;
}

static Value *emit_rows(Build *b, Value *v, int64_t at, int64_t rows)
{
    return emit1(b, "slice", IN(v),
                 ATTRS(A_INT("dim", 0), A_INT("start", at * rows), A_INT("end", (at + 1) * rows)));
}

/* The rows of the rank in that place; products run behind those nodes that are not NULL. */
static Value *emit_sum(Ring *x, Build *b, const RingCall *c, const RingSum *s, int64_t at,
                       Node *const after[2])
{
    Value *made[2 * MOST_PRODUCTS] = {0};
    int count = 0; /* of those that nothing has read yet */
    for (int j = 0; j < s->count; j++) {
        const Node *n = s->node[j];
        int row = row_operand(n);
        Value **in = NEWN(x->tmp, Value *, n->nin);
        memcpy(in, n->in, sizeof *in * (size_t)n->nin);
        if (row < 0) {
            in[1] = made[--count];
            in[0] = made[--count];
        } else {
            in[row] = emit_rows(b, n->in[row], at, c->rows);
        }
        Node *m = emit_clone(b, n, in);
        for (int i = 0; i < 2 && row >= 0; i++)
            if (after[i])
                run_after(x, m, after[i]);
        made[count++] = m->out[0];
    }
    return made[0];
}

/* The sum of the parts in the order of the ranks. */
static Value *emit_total(Build *b, const RingCall *c, Value *whole)
{
    DType narrow = whole->type.dtype, wide = narrow == F64 ? F64 : F32;
    Value *sum = emit_cast(b, emit_rows(b, whole, 0, c->rows), wide);
    for (int64_t i = 1; i < c->n; i++) {
        Value *part = emit_cast(b, emit_rows(b, whole, i, c->rows), wide);
        sum = emit1(b, "add", IN(sum, part), NOATTRS);
    }
    return emit_cast(b, sum, narrow);
}

static void ring_reduction(Ring *x, const RingCall *c, const RingSum *s)
{
    Build b = build_ring(x, c->start, c->start);
    Value **part = NEWN(x->tmp, Value *, c->n);
    Node *after[2] = {NULL, NULL}, *start = NULL; /* the last start, and the wait before it */
    for (int k = 1; k <= c->n; k++) {
        Node *before = start;
        Value *v = emit_sum(x, &b, c, s, (c->me - k + c->n) % c->n, after);
        start = k < c->n ? emit_start(&b, c, v, k) : NULL;
        if (before) {
            Node *wait = emit_wait(&b, before);
            run_after(x, wait, v->def);
            part[k - 1] = wait->out[0];
            after[1] = wait;
        }
        after[0] = start;
        part[0] = v;
    }
    replace_with(&x->replace, c->wait, 0, emit_total(&b, c, emit_ring(&b, c, part)));
    for (int j = 0; j < s->count; j++)
        take(x, s->node[j]);
    take(x, c->wait);
    take(x, c->start);
    x->changes++;
}

/* ---- a graph and the bodies in it ---- */

static void try_call(Ring *x, Node *n)
{
    RingCall c;
    RingProducts p;
    RingSum s = {.count = 0};
    if (!find_call(x, n, &c))
        return;
    if (node_collective(n) == ALL_GATHER) {
        if (find_products(x, c.wait->out[0], &p) && gather_pays(x, &c, &p))
            ring_gather(x, &c, &p);
        return;
    }
    const char *op = n->attr[attr_index(n->op, "reduce_op")].s;
    if (!strcmp(op, "sum") && find_sum(x, n->in[0], 2, &s) && reduction_pays(x, &c, &s))
        ring_reduction(x, &c, &s);
}

static Ring ring_start(Graph *g, Arena *tmp, const PassOptions *o)
{
    Ring x = {.g = g,
              .tmp = tmp,
              .o = o,
              .readers = find_readers(g, tmp),
              .replace = replace_start(g, tmp),
              .nnode = g->nnode,
              .place = NEWN(tmp, int, g->nnode),
              .taken = NEWN(tmp, bool, g->nnode)};
    int place = 0;
    for (const Node *n = g->first; n; n = n->next)
        x.place[n->id] = place += 2;
    return x;
}

static int ring_graph(Graph *g, Arena *tmp, const PassOptions *o)
{
    Ring x = ring_start(g, tmp, o);
    int inside = 0;
    EACH_NODE(n, g) {
        EACH_LOOP_BODY(b, n)
            inside += ring_graph(n->region->body[b], tmp, o);
        if (n->id < x.nnode)
            try_call(&x, n);
    }
    EACH_NODE(n, g) {
        replace_operands(&x.replace, n);
        if (n->id < x.nnode && x.taken[n->id])
            node_unlink(g, n);
    }
    replace_outputs(&x.replace, g);
    return inside + x.changes;
}

int pass_ring(Graph *g, Arena *tmp, const PassOptions *o)
{
    bool asked = o->overlap && !strcmp(o->overlap, "chunked");
    return asked && g->mesh ? ring_graph(g, tmp, o) : 0;
}
