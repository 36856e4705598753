/* fused: a body of pointwise ops that runs once, tile by tile: pieces of at most TILE neighbouring
 * elements go through all of the body before the next ones do, so that what the nodes hand each
 * other stays in the first cache and has no place in the plan.
 *
 * Each node is run by its op's lane, the very function that its own kernel calls, and its values
 * are rounded to their dtype in their tiles: the bits are those of the nodes on their own, in any
 * grouping, on any number of threads. Ops are dispatched for each tile, not for each element.
 *
 * The body: nodes with a lane, views that keep the row-major order, and constants (one element, no
 * operands). All nodes but constants have as many elements as the results, in whatever shape;
 * operands may broadcast, and lie in memory with any strides. Results are values of nodes.
 *
 * Method: a node reads operands that lie row-major where they are; any other is first copied into
 * a tile, row by row. A node writes to its result's memory, or to a slot of a small buffer on the
 * stack; slots are given by the linear scan of Poletto and Sarkar (1999) over the body. */
#include "pointwise.h"

enum {
    TILE = 1024,    /* elements, where the slots then fit into the buffer */
    BUFFER = 32768, /* bytes: with 8 bytes an element FUSED_MOST slots of 64 elements fit */
};

/* ---- the body ---- */

static bool is_constant(const Node *n)
{
    return !n->nin && type_nelem(&n->out[0]->type) == 1;
}

static int64_t nelem_of(const Node *n)
{
    return type_nelem(&n->region->body->out[n->region->out[0].main].v->type);
}

/* Whether a view of a row-major operand is the same elements in row-major order. */
static bool keeps_order(const Node *n)
{
    Tensor x = {.rank = n->in[0]->type.rank}, y = {.rank = n->out[0]->type.rank};
    Layout in = {0}, out = {0};
    memcpy(x.dim, n->in[0]->type.dim, sizeof x.dim);
    memcpy(y.dim, n->out[0]->type.dim, sizeof y.dim);
    tensor_fill_strides(&x);
    memcpy(in.stride, x.stride, sizeof in.stride);
    if (n->nout != 1 || tensor_nelem(&x) != tensor_nelem(&y) ||
        !n->op->rules->view(n, 0, &in, &out) || out.offset)
        return false;
    memcpy(y.stride, out.stride, sizeof y.stride);
    return tensor_contiguous(&y);
}

bool node_fusible(const Node *n, int64_t nelem)
{
    Lane l;
    if (n->op->region || n->nout != 1)
        return false;
    bool whole = type_nelem(&n->out[0]->type) == nelem;
    return n->op->view ? whole && keeps_order(n) : (whole || is_constant(n)) && node_lane(n, &l);
}

/* The value of which v is a view. */
static const Value *root(const Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v;
}

static void check_results(const Graph *g, const Node *n, int64_t nelem)
{
    const Region *r = n->region;
    for (int k = 0; k < r->nout; k++) {
        const Value *v = r->body->out[r->out[k].main].v;
        if (!v->def || v->def->op->view || type_nelem(&v->type) != nelem)
            fail_node(g, n,
                      "result %d: expected %lld elements that a node of the body computes, "
                      "found %%%s",
                      k, (long long)nelem, v->name);
        for (int j = 0; j < k; j++)
            if (r->body->out[r->out[j].main].v == v)
                fail_node(g, n, "result %d: expected another value than result %d", k, j);
    }
}

static int infer(const Graph *g, const Node *n, Type *out)
{
    int nout = region_infer(g, n, out), count = 0;
    if (nout < 1)
        fail_node(g, n, "expected a result, found none");
    int64_t nelem = nelem_of(n);
    check_results(g, n, nelem);
    for (const Node *m = n->region->body->first; m; m = m->next) {
        if (++count > FUSED_MOST)
            fail_node(g, n, "expected at most %d nodes in the body", FUSED_MOST);
        if (m->nafter)
            fail_node(g, m, "expected no order edges in a body that runs in tiles");
        if (!node_fusible(m, nelem))
            fail_node(g, m,
                      "expected a pointwise op of %lld elements with a lane for its dtypes, "
                      "a view that keeps their order, or a constant",
                      (long long)nelem);
    }
    return nout;
}

static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    for (const Node *m = n->region->body->first; m; m = m->next)
        c.nflop += m->op->view ? 0 : node_cost(m).nflop;
    return c;
}

/* Of a body of one shape that of a pointwise op; else everything stays whole. */
static void factors(const Node *n, Factors *f)
{
    bool same = true;
    for (const Node *m = n->region->body->first; m; m = m->next)
        same &= is_constant(m) || shape_equal(&m->out[0]->type, &n->out[0]->type);
    if (same)
        factors_elementwise(n, f);
    else
        factors_whole(n, f);
}

/* ---- in place ---- */

/* Operand i may be overwritten by the node that makes result k, if no later one reads it. */
static unsigned overwrites(const Node *n, int k)
{
    const Graph *body = n->region->body;
    const Node *maker = body->out[n->region->out[k].main].v->def;
    unsigned mask = 0;
    for (int i = 0; i < MIN(n->nin, 32); i++)
        if (type_equal(&n->in[i]->type, &n->out[k]->type))
            mask |= 1u << i;
    for (const Node *m = maker->next; m; m = m->next)
        for (int i = 0; i < m->nin && !m->op->view; i++) {
            const Value *v = root(m->in[i]);
            if (!v->def && v->index < 32)
                mask &= ~(1u << v->index);
        }
    return mask;
}

/* ---- kernel: what a run needs, made once ---- */

/* Where a value lies while a tile is worked on. */
typedef enum { AT_OPERAND, AT_RESULT, AT_SLOT, AT_ONE, AT_CONSTANT } At;

typedef struct Place {
    At at;
    int index; /* of the operand (ONE: it has one element), result, slot, or step of a constant */
    int size;  /* of an element, bytes */
} Place;

/* An operand that is copied into a slot. */
typedef struct Load {
    int operand, slot;
    Walk walk;
} Load;

typedef struct Step {
    Lane lane;
    Place in[LANE_OPERANDS], out;
    int nin, nload;
    Load *load;
    char constant[8];
} Step;

typedef struct Program {
    int nstep, tile, slot_bytes;
    int64_t nelem;
    Step *step;
} Program;

/* While it is made: places by value id, the last reader of each, and which slots are taken. */
typedef struct Make {
    const Call *c;
    Arena *a;
    Program *p;
    Place *place;
    int *last;
    bool taken[FUSED_MOST + LANE_OPERANDS];
    int nslot;
} Make;

static int take_slot(Make *m)
{
    int s = 0;
    while (m->taken[s])
        s++;
    CHECK(s < LEN(m->taken));
    m->taken[s] = true;
    m->nslot = MAX(m->nslot, s + 1);
    return s;
}

/* A tile's elements of operand i as a value of shape t: where it lies, or a copy. */
static Place load(Make *m, Step *s, int i, const Type *t)
{
    const Tensor *x = &m->c->in[i];
    Place p = {AT_OPERAND, i, dtype_size(x->dtype)};
    if (tensor_nelem(x) == 1)
        p.at = AT_ONE;
    else if (tensor_nelem(x) != m->p->nelem || !tensor_contiguous(x)) {
        Tensor y = {.rank = t->rank};
        memcpy(y.dim, t->dim, sizeof y.dim);
        tensor_fill_strides(&y);
        if (!s->load)
            s->load = NEWN(m->a, Load, LANE_OPERANDS);
        Load *l = &s->load[s->nload++];
        *l = (Load){.operand = i, .slot = take_slot(m)};
        walk_make(&l->walk, &y, 1, x);
        p = (Place){AT_SLOT, l->slot, p.size};
    }
    return p;
}

static void add_operand(Make *m, Step *s, const Node *n, int i)
{
    const Value *v = root(n->in[i]);
    if (v->def) {
        s->in[i] = m->place[v->id];
        return;
    }
    const Type *shape = v == n->in[i] ? &n->out[0]->type : &v->type;
    s->in[i] = load(m, s, v->index, shape);
}

/* Slots of what node number `at` read last. Its result has another: elements may differ in size. */
static void free_slots(Make *m, const Step *s, const Node *n, int at)
{
    for (int k = 0; k < s->nload; k++)
        m->taken[s->load[k].slot] = false;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = root(n->in[i]);
        if (v->def && m->last[v->id] == at && m->place[v->id].at == AT_SLOT)
            m->taken[m->place[v->id].index] = false;
    }
}

static void add_step(Make *m, const Node *n, int at)
{
    const Value *y = n->out[0];
    Step *s = &m->p->step[m->p->nstep];
    Place *to = &m->place[y->id];
    CHECK(node_lane(n, &s->lane));
    to->size = dtype_size(y->type.dtype);
    if (is_constant(n) && m->p->nelem != 1) {
        s->lane.row(1, s->constant, NULL, NULL, &s->lane.arg);
        *to = (Place){AT_CONSTANT, m->p->nstep++, to->size};
        return;
    }
    s->nin = n->nin;
    for (int i = 0; i < n->nin; i++)
        add_operand(m, s, n, i);
    if (to->at == AT_SLOT)
        to->index = take_slot(m);
    s->out = *to;
    free_slots(m, s, n, at);
    if (to->at == AT_SLOT && m->last[y->id] <= at)
        m->taken[to->index] = false; /* nobody reads it */
    m->p->nstep++;
}

static void prepare(Call *c, Arena *a)
{
    const Region *r = c->node->region;
    const Graph *g = r->body;
    Program *p = NEW(a, Program);
    Make m = {.c = c, .a = a, .p = p};
    int count = 0, size = 1;
    m.place = NEWN(a, Place, g->nvalue);
    m.last = NEWN(a, int, g->nvalue);
    for (const Node *n = g->first; n; n = n->next, count++) {
        m.place[n->out[0]->id].at = AT_SLOT;
        size = MAX(size, dtype_size(n->out[0]->type.dtype));
        for (int i = 0; i < n->nin && !n->op->view; i++)
            m.last[root(n->in[i])->id] = count;
    }
    for (int k = 0; k < r->nout; k++)
        m.place[g->out[r->out[k].main].v->id] = (Place){AT_RESULT, k, 0};
    for (int i = 0; i < c->nin; i++)
        size = MAX(size, dtype_size(c->in[i].dtype));
    p->nelem = nelem_of(c->node);
    p->step = NEWN(a, Step, count);
    count = 0;
    for (const Node *n = g->first; n; n = n->next, count++)
        if (!n->op->view)
            add_step(&m, n, count);
    p->tile = MIN(TILE, BUFFER / (size * MAX(m.nslot, 1)) / 64 * 64);
    p->slot_bytes = p->tile * size;
    c->state = p;
}

/* ---- kernel: a run ---- */

typedef struct Run {
    const Call *c;
    const Program *p;
    char *buffer;
    int64_t lo; /* of the tile */
} Run;

static char *address(const Run *x, const Place *p)
{
    switch (p->at) {
    case AT_OPERAND: return x->c->in[p->index].data + x->lo * p->size;
    case AT_RESULT: return x->c->out[p->index].data + x->lo * p->size;
    case AT_SLOT: return x->buffer + (int64_t)p->index * x->p->slot_bytes;
    case AT_ONE: return x->c->in[p->index].data;
    default: return (char *)x->p->step[p->index].constant;
    }
}

typedef struct Copy {
    char *to; /* of position 0 */
    const Tensor *from;
} Copy;

#define GATHER(bits)                                                                \
    static void gather##bits(int64_t n, void *to, const void *from, int64_t stride) \
    {                                                                               \
        uint##bits##_t *y = to;                                                     \
        const uint##bits##_t *x = from;                                             \
        for (int64_t i = 0; i < n; i++)                                             \
            y[i] = x[i * stride];                                                   \
    }
GATHER(8)
GATHER(16)
GATHER(32)
GATHER(64)

static void copy_row(void *arg, int64_t n, const int64_t *at, const int64_t *stride)
{
    const Copy *x = arg;
    int size = dtype_size(x->from->dtype);
    char *to = x->to + at[0] * size;
    const char *from = x->from->data + at[1] * size;
    if (stride[1] == 1) {
        memcpy(to, from, (size_t)(n * size));
        return;
    }
    switch (size) {
    case 1: gather8(n, to, from, stride[1]); break;
    case 2: gather16(n, to, from, stride[1]); break;
    case 4: gather32(n, to, from, stride[1]); break;
    default: gather64(n, to, from, stride[1]);
    }
}

static void run_step(const Run *x, const Step *s, int64_t n)
{
    const void *in[LANE_OPERANDS] = {0};
    int64_t stride[LANE_OPERANDS] = {0};
    for (int k = 0; k < s->nload; k++) {
        const Load *l = &s->load[k];
        const Tensor *from = &x->c->in[l->operand];
        char *to = x->buffer + (int64_t)l->slot * x->p->slot_bytes;
        Copy copy = {to - x->lo * dtype_size(from->dtype), from};
        walk_part(&l->walk, x->lo, x->lo + n, copy_row, &copy);
    }
    for (int i = 0; i < s->nin; i++) {
        in[i] = address(x, &s->in[i]);
        stride[i] = s->in[i].at < AT_ONE;
    }
    if (s->lane.row)
        s->lane.row(n, address(x, &s->out), in, stride, &s->lane.arg);
    else
        s->lane.placed(n, address(x, &s->out), in, &s->lane.arg, x->lo);
}

static void run_part(void *arg, int64_t lo, int64_t hi)
{
    Run x = *(const Run *)arg;
    _Alignas(64) char buffer[BUFFER];
    x.buffer = buffer;
    for (x.lo = lo; x.lo < hi; x.lo += x.p->tile)
        for (int i = 0; i < x.p->nstep; i++)
            if (x.p->step[i].out.size)
                run_step(&x, &x.p->step[i], MIN(x.p->tile, hi - x.lo));
}

static int run(Call *c)
{
    Run x = {.c = c, .p = c->state};
    walk_par(x.p->nelem, run_part, &x);
    return 0;
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static const Kernel kernels[] = {{"tiles", accepts, prepare, run}, {0}};

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
    .kernels = kernels,
};
