/* Random graphs: nodes are random lines of ops' case files, each operand a new input or an earlier
 * value, squashed by tanh where need be. Between them: copies of nodes, views that do nothing. */
#include "gen.h"

#include "../../src/pass/pass.h"
#include "interp.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ELEMENTS = 700, MOST_KNOWN_ELEMENTS = 4096, MOST_JOINED = 300 };
static const double TAME = 4; /* operands without a stated range stay below this */

/* ---- random numbers ---- */

double rng_uniform(Rng *r)
{
    uint64_t i = r->count++;
    return random_uniform(r->seed, 9, (uint32_t)(i >> 32), i);
}

int64_t rng_below(Rng *r, int64_t n)
{
    return MIN((int64_t)(rng_uniform(r) * (double)n), n - 1);
}

bool rng_chance(Rng *r, double p)
{
    return rng_uniform(r) < p;
}

/* ---- the library ---- */

static int64_t case_elements(const Case *c)
{
    int64_t sum = 0;
    for (int i = 0; i < c->nin; i++)
        sum += type_nelem(&c->in[i].type);
    return sum;
}

/* Case lines take f64 too: which attributes and shapes do is found by trying. */
static int64_t case_results(Arena *a, const Case *c)
{
    Graph *g = graph_new(a, "try");
    Build b = {.g = g};
    Value **in = NEWN(a, Value *, c->nin);
    for (int i = 0; i < c->nin; i++)
        in[i] = graph_input(g, "x", type_wide(&c->in[i].type), ROLE_NONE, NULL);
    Node *n = case_emit_wide(&b, c, in);
    int64_t sum = 0;
    for (int k = 0; k < n->nout; k++)
        sum += type_nelem(&n->out[k]->type);
    return sum;
}

static void read_op(Arena *a, const Op *op, const char *path, OpCases *o)
{
    int count, cap = 0;
    const Case *c = case_read(a, op, path, &count), *least = NULL;
    for (int i = 0; i < count; i++) {
        if (c[i].error || c[i].runerror)
            continue;
        int64_t size = case_elements(&c[i]) + case_results(a, &c[i]);
        if (!least || size < case_elements(least) + case_results(a, least))
            least = &c[i];
        if (size <= MOST_ELEMENTS)
            PUSH(a, o->c, o->count, cap, &c[i]);
    }
    if (!o->count && least)
        PUSH(a, o->c, o->count, cap, least);
}

Library library_read(Arena *a)
{
    Library lib = {.op = NEWN(a, OpCases, op_count)};
    if (access("tests/op", R_OK))
        fail(arena_ctx(a), TN_FAIL, "tests/op: cannot read: run this where the sources are");
    for (int i = 0; i < op_count; i++) {
        const char *path = arena_printf(a, "tests/op/%s.case", op_table[i].name);
        if (!op_table[i].rules)
            continue;
        lib.op[lib.count].op = &op_table[i];
        if (!access(path, R_OK))
            read_op(a, &op_table[i], path, &lib.op[lib.count]);
        lib.count++;
    }
    return lib;
}

typedef struct Reading {
    Arena *a;
    Library *lib;
} Reading;

static void read_library(void *arg)
{
    Reading *x = arg;
    *x->lib = library_read(x->a);
}

bool library_try(Ctx *ctx, Arena *a, Library *lib)
{
    *lib = (Library){0};
    Reading x = {a, lib};
    return !ctx_try(ctx, read_library, &x);
}

/* ---- values ---- */

Known *gen_learn(Gen *x, Value *v, const Tensor *t)
{
    Known k = {.v = v, .t = *t, .lo = INFINITY, .hi = -INFINITY, .finite = true};
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double e = tensor_get(t, i);
        k.finite = k.finite && isfinite(e);
        k.lo = fmin(k.lo, e);
        k.hi = fmax(k.hi, e);
    }
    PUSH(x->a, x->known, x->nknown, x->capknown, k);
    return &x->known[x->nknown - 1];
}

static Known *find_known(Gen *x, const Value *v)
{
    for (int i = x->nknown - 1; i >= 0; i--)
        if (x->known[i].v == v)
            return &x->known[i];
    return NULL;
}

void gen_run(Gen *x, Node *n, const Tensor *in)
{
    Tensor *out = NEWN(x->a, Tensor, n->nout);
    interp_node(x->a, x->b.g, n, in, out);
    for (int k = 0; k < n->nout; k++)
        gen_learn(x, n->out[k], &out[k]);
}

/* Emits and evaluates; returns the first result. */
Known *gen_emit(Gen *x, const char *op, int nin, Known *const *in, const AttrArg *attrs)
{
    Value **v = NEWN(x->a, Value *, nin);
    Tensor *t = NEWN(x->a, Tensor, nin);
    for (int i = 0; i < nin; i++) {
        v[i] = in[i]->v;
        t[i] = in[i]->t;
    }
    Node *n = emit(&x->b, op, nin, v, attrs);
    gen_run(x, n, t);
    return find_known(x, n->out[0]);
}

static bool is_float(const Known *k)
{
    return dtype_float(k->v->type.dtype);
}

Known *gen_any_float(Gen *x)
{
    for (int attempt = 0; attempt < 8 && x->nknown; attempt++) {
        Known *k = &x->known[rng_below(x->rng, x->nknown)];
        if (is_float(k) && k->finite && tensor_nelem(&k->t) > 0 &&
            tensor_nelem(&k->t) <= MOST_KNOWN_ELEMENTS)
            return k;
    }
    return NULL;
}

/* ---- operands ---- */

bool gen_within(const Known *k, double lo, double hi)
{
    if (!k->finite && tensor_nelem(&k->t) > 0)
        return false;
    if (lo > hi)
        return k->lo >= -TAME && k->hi <= TAME;
    return k->lo >= lo && k->hi <= hi;
}

/* Integers are often all equal: indices that repeat. Floats sometimes have few values, so that
 * there are ties, where no difference has to be smooth. */
static void fill(Gen *x, const Tensor *t, double lo, double hi)
{
    if (lo > hi) {
        lo = -2;
        hi = 2;
    }
    if (!dtype_float(t->dtype) && rng_chance(x->rng, 0.25))
        lo = hi = floor(lo + (hi - lo + 1) * rng_uniform(x->rng));
    bool tied = !x->smooth && !x->lib->apart && dtype_float(t->dtype) && rng_chance(x->rng, 0.15);
    x->tied |= tied;
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double u = rng_uniform(x->rng);
        u = tied ? floor(3 * u) / 2 : u; /* an end, or the middle */
        u = dtype_float(t->dtype) ? lo + (hi - lo) * u : floor(lo + (hi - lo + 1) * u);
        tensor_set(t, i, lo == hi ? lo : u);
    }
}

static Known *top_input(Gen *x, const Type *t, double lo, double hi)
{
    Tensor data = tensor_new(x->a, t, 0);
    fill(x, &data, lo, hi);
    bool param = dtype_float(t->dtype) && rng_chance(x->rng, 0.7);
    char name[24];
    snprintf(name, sizeof name, "p%d", x->nin);
    Value *v = graph_input(x->b.g, name, *t, param ? ROLE_PARAM : ROLE_NONE, param ? name : NULL);
    PUSH(x->a, x->in, x->nin, x->capin, data);
    return gen_learn(x, v, &data);
}

Known *gen_input(Gen *x, const Type *t, double lo, double hi)
{
    return x->loop ? gen_loop_input(x, t, lo, hi) : top_input(x, t, lo, hi);
}

Known *gen_adapt(Gen *x, Known *k, const Type *t)
{
    int64_t have = tensor_nelem(&k->t), want = type_nelem(t);
    if (have == 0 && want > 0)
        return NULL;
    if (k->v->type.dtype != t->dtype)
        k = gen_emit(x, "_to_copy", 1, &k, ATTRS(A_DTYPE("dtype", t->dtype)));
    if (shape_equal(&k->v->type, t))
        return k;
    if (have < want && rng_chance(x->rng, 0.3)) { /* one element, everywhere */
        k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 1, &have)));
        k = gen_emit(x, "slice", 1, &k, ATTRS(A_INT("end", 1)));
        k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 0, NULL)));
        return gen_emit(x, "expand", 1, &k, ATTRS(A_INTS("size", t->rank, t->dim)));
    }
    if (have < want) { /* all elements, again and again */
        int64_t times = (want + have - 1) / have;
        k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 2, ((int64_t[]){1, have}))));
        k = gen_emit(x, "expand", 1, &k, ATTRS(A_INTS("size", 2, ((int64_t[]){times, -1}))));
        have *= times;
    }
    if (have > want) {
        int64_t start = rng_below(x->rng, have - want + 1);
        k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 1, &have)));
        k = gen_emit(x, "slice", 1, &k, ATTRS(A_INT("start", start), A_INT("end", start + want)));
    }
    return gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", t->rank, t->dim)));
}

static Known *constant(Gen *x, double c)
{
    return gen_emit(
        x, "full", 0, NULL,
        ATTRS(A_INTS("size", 0, NULL), A_FLOAT("fill_value", c), A_DTYPE("dtype", F64)));
}

/* tanh, then scaled into the open interval. */
Known *gen_squash(Gen *x, Known *k, double lo, double hi)
{
    if (lo > hi) {
        lo = -2;
        hi = 2;
    }
    Known *y = gen_emit(x, "tanh", 1, &k, NOATTRS);
    Known *half = constant(x, 0.5 * (hi - lo) * (1 - 1e-4)); /* f32 rounds it to less, too */
    Known *middle = constant(x, 0.5 * (lo + hi));
    y = gen_emit(x, "mul", 2, (Known *[]){y, half}, NOATTRS);
    return gen_emit(x, "add", 2, (Known *[]){y, middle}, NOATTRS);
}

static Known *same_type(Gen *x, const Type *t, double lo, double hi)
{
    int count = 0, chosen = -1;
    for (int i = 0; i < x->nknown; i++)
        if (type_equal(&x->known[i].v->type, t) && gen_within(&x->known[i], lo, hi))
            if (rng_below(x->rng, ++count) == 0)
                chosen = i;
    return chosen < 0 ? NULL : &x->known[chosen];
}

static Known *fitted(Gen *x, const Type *t, double lo, double hi)
{
    Known *k = dtype_float(t->dtype) ? gen_any_float(x) : &x->known[rng_below(x->rng, x->nknown)];
    if (!k || (!is_float(k) && k->v->type.dtype != t->dtype))
        return NULL;
    if (!dtype_float(t->dtype) && !gen_within(k, lo, hi))
        return NULL;
    k = gen_adapt(x, k, t);
    return k && !gen_within(k, lo, hi) ? gen_squash(x, k, lo, hi) : k;
}

Known *gen_operand(Gen *x, const Type *t, double lo, double hi)
{
    Known *k = rng_chance(x->rng, 0.75) ? same_type(x, t, lo, hi) : NULL;
    if (!k && x->nknown && lo != hi && rng_chance(x->rng, 0.6))
        k = fitted(x, t, lo, hi);
    if (!k)
        k = gen_input(x, t, lo, hi);
    return k ? k : gen_input(x, t, lo, hi);
}

/* ---- nodes from case lines ---- */

/* Copies between memories are put in afterwards, with their waits. */
static bool usable(const Gen *x, const OpCases *o)
{
    return o->count > 0 && !o->op->async && (!x->smooth || o->op->rules->diff);
}

static const OpCases *choose_op(Gen *x)
{
    for (;;) {
        const OpCases *o = &x->lib->op[rng_below(x->rng, x->lib->count)];
        if (usable(x, o))
            return o;
    }
}

static const Case *choose_case(Gen *x)
{
    for (;;) {
        const OpCases *o = choose_op(x);
        const Case *c = o->c[rng_below(x->rng, o->count)];
        if (!x->smooth || !c->nograd)
            return c;
    }
}

static void emit_case(Gen *x)
{
    const Case *c = choose_case(x);
    Value **v = NEWN(x->a, Value *, c->nin);
    Tensor *t = NEWN(x->a, Tensor, c->nin);
    for (int i = 0; i < c->nin; i++) {
        const CaseOperand *o = &c->in[i];
        Type type = type_wide(&o->type);
        bool free = dtype_float(type.dtype) && !o->ranged;
        Known *k = gen_operand(x, &type, free ? 1 : o->lo, free ? -1 : o->hi);
        v[i] = k->v;
        t[i] = k->t;
    }
    gen_run(x, case_emit_wide(&x->b, c, v), t);
}

/* ---- what passes look for ---- */

/* Copies that a rewrite may see through; the last of them goes where they lie as the operand does.
 */
static Known *copy_whole(Gen *x, Known *k)
{
    const Type *t = &k->v->type;
    int64_t d = rng_below(x->rng, MAX(t->rank, 1)), none[2] = {0, 0};
    if (!t->rank || !is_float(k))
        return gen_emit(x, "clone", 1, &k, NOATTRS);
    switch (rng_below(x->rng, 5)) {
    case 0:
        return gen_emit(x, "slice_backward", 1, &k,
                        ATTRS(A_INTS("input_sizes", t->rank, t->dim), A_INT("dim", d)));
    case 1: return gen_emit(x, "slice_scatter", 2, (Known *[]){k, k}, ATTRS(A_INT("dim", d)));
    case 2: return gen_emit(x, "constant_pad_nd", 1, &k, ATTRS(A_INTS("pad", 2, none)));
    case 3: return gen_emit(x, "cat", 1, &k, ATTRS(A_INT("dim", d)));
    default: return gen_emit(x, "mul", 2, (Known *[]){k, constant(x, 1)}, NOATTRS);
    }
}

static void do_nothing(Gen *x, Known *k)
{
    const Type *t = &k->v->type;
    int64_t identity[TN_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    switch (rng_below(x->rng, 9)) {
    case 7: copy_whole(x, k); break;
    case 0: gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", t->rank, t->dim))); break;
    case 1: gen_emit(x, "permute", 1, &k, ATTRS(A_INTS("dims", t->rank, identity))); break;
    case 2: gen_emit(x, "expand", 1, &k, ATTRS(A_INTS("size", t->rank, t->dim))); break;
    case 3: gen_emit(x, "_to_copy", 1, &k, ATTRS(A_DTYPE("dtype", t->dtype))); break;
    case 4: gen_emit(x, "clone", 1, &k, NOATTRS); break;
    case 5:
        if (!x->smooth) /* its gradient is not that of what it computes */
            gen_emit(x, "detach", 1, &k, NOATTRS);
        break;
    case 6: gen_emit(x, "alias", 1, &k, ATTRS(A_STR("gradient", "pass"))); break;
    default:
        if (t->rank)
            gen_emit(x, "slice", 1, &k, ATTRS(A_INT("dim", rng_below(x->rng, t->rank))));
    }
}

/* A product of what was turned and perhaps copied: it reads strides. */
static void multiply_turned(Gen *x, Known *k)
{
    int64_t all = tensor_nelem(&k->t);
    k = gen_emit(x, "t", 1, &k, NOATTRS);
    if (rng_chance(x->rng, 0.5)) {
        k = copy_whole(x, k);
    } else {
        Type t = k->v->type;
        k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 1, &all)));
        k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 2, t.dim)));
    }
    Type other = type_make(k->v->type.dtype, 2, (int64_t[]){k->v->type.dim[1], 3});
    Known *y = gen_operand(x, &other, 1, -1);
    gen_emit(x, "mm", 2, (Known *[]){k, y}, NOATTRS);
}

/* Many operands, some of them the same, or slices of one value. */
static void join_many(Gen *x, Known *k)
{
    Known *part[MOST_JOINED];
    int count = 2 + (int)rng_below(x->rng, MOST_JOINED - 1);
    int64_t n = tensor_nelem(&k->t);
    if (!is_float(k) || n < 1 || n * count > MOST_KNOWN_ELEMENTS)
        return;
    k = gen_emit(x, "view", 1, &k, ATTRS(A_INTS("size", 1, &n)));
    for (int i = 0; i < count; i++) {
        int64_t start = rng_below(x->rng, n), end = start + 1 + rng_below(x->rng, n - start);
        part[i] =
            rng_chance(x->rng, 0.5)
                ? k
                : gen_emit(x, "slice", 1, &k, ATTRS(A_INT("start", start), A_INT("end", end)));
    }
    gen_emit(x, "cat", count, part, NOATTRS);
}

/* The gradient of a cross-entropy whose loss no one reads; once it is fused that is a result all
 * the same. */
static void unread_loss(Gen *x)
{
    int64_t rows = 1 + rng_below(x->rng, 5), classes = 2 + rng_below(x->rng, 6);
    Type t = type_make(F64, 2, (int64_t[]){rows, classes}), index = type_make(I64, 1, &rows);
    Known *k = gen_operand(x, &t, 1, -1), *dloss = constant(x, 1);
    Known *labels = gen_operand(x, &index, 0, (double)(classes - 1));
    Known *count = gen_emit(x, "count_labels", 1, &labels, NOATTRS);
    const Node *n = gen_emit(x, "cross_entropy", 3, (Known *[]){k, labels, count}, NOATTRS)->v->def;
    gen_emit(x, "cross_entropy_backward", 5,
             (Known *[]){dloss, k, labels, find_known(x, n->out[1]), count}, NOATTRS);
}

static void there_and_back(Gen *x, Known *k)
{
    int rank = k->v->type.rank;
    int64_t d = rng_below(x->rng, MAX(rank, 1)), e = rng_below(x->rng, MAX(rank, 1));
    if (rank == 2 && rng_chance(x->rng, 0.3) && is_float(k)) {
        multiply_turned(x, k);
    } else if (rank == 2 && rng_chance(x->rng, 0.5)) {
        k = gen_emit(x, "t", 1, &k, NOATTRS);
        gen_emit(x, "t", 1, &k, NOATTRS);
    } else if (rank < TN_RANK && rng_chance(x->rng, 0.3)) {
        k = gen_emit(x, "unsqueeze", 1, &k, ATTRS(A_INT("dim", d)));
        gen_emit(x, "squeeze", 1, &k, ATTRS(A_INTS("dim", 1, &d)));
    } else if (rank) {
        k = gen_emit(x, "transpose", 1, &k, ATTRS(A_INT("dim0", d), A_INT("dim1", e)));
        gen_emit(x, "transpose", 1, &k, ATTRS(A_INT("dim0", d), A_INT("dim1", e)));
    }
}

/* The node that made k, again. */
static void duplicate(Gen *x, const Known *k)
{
    const Node *n = k->v->def;
    if (!n || n->region || n->op->nin_most == 0)
        return;
    Tensor *t = NEWN(x->a, Tensor, n->nin);
    for (int i = 0; i < n->nin; i++)
        t[i] = find_known(x, n->in[i])->t;
    Build old = x->b;
    if (rng_chance(x->rng, 0.2)) /* must not be merged */
        x->b.origin = n->out[0]->name;
    Node *m = emit_named(&x->b, n->op, n->nin, n->in, n->attr, NULL, n->stream, NULL, -1);
    x->b = old;
    gen_run(x, m, t);
}

/* The safe softmax of rows of which a mask leaves some nothing, as importers build it. */
static void mask_rows(Gen *x, Known *k)
{
    Type t = k->v->type, mask = t;
    int64_t last = t.rank - 1;
    if (!t.rank || t.dtype != F64 || !k->finite || !tensor_nelem(&k->t))
        return;
    mask.dtype = BOOL;
    Known *zero = constant(x, 0), *none = constant(x, -INFINITY);
    mask.dim[last] = 1; /* whole rows */
    Known *seen = gen_operand(x, &mask, 0, 1);
    Known *s = gen_emit(x, "where", 3, (Known *[]){seen, k, none}, NOATTRS);
    Known *most = gen_emit(x, "amax", 1, &s, ATTRS(A_INTS("dim", 1, &last), A_BOOL("keepdim", 1)));
    Known *masked = gen_emit(x, "eq", 2, (Known *[]){most, none}, NOATTRS);
    s = gen_emit(x, "where", 3, (Known *[]){masked, zero, s}, NOATTRS);
    s = gen_emit(x, "_softmax", 1, &s, ATTRS(A_INT("dim", last)));
    gen_emit(x, "where", 3, (Known *[]){masked, zero, s}, NOATTRS);
}

/* A bound that is NaN is one: all becomes NaN. */
static void bound_by_nan(Gen *x, Known *k)
{
    Known *nan = constant(x, NAN);
    if (k->v->type.dtype != F64)
        return;
    Known *is = gen_emit(x, "ne", 2, (Known *[]){nan, nan}, NOATTRS);
    Known *holds = gen_emit(x, "le", 2, (Known *[]){k, nan}, NOATTRS);
    holds = gen_emit(x, "logical_or", 2, (Known *[]){holds, is}, NOATTRS);
    gen_emit(x, "where", 3, (Known *[]){holds, nan, k}, NOATTRS);
}

void gen_node(Gen *x)
{
    double what = rng_uniform(x->rng);
    if (what < 0.75 || !x->nknown) {
        emit_case(x);
        return;
    }
    Known *k = &x->known[rng_below(x->rng, x->nknown)];
    if (what < 0.752)
        join_many(x, k);
    else if (what < 0.757 && !x->smooth)
        unread_loss(x);
    else if (what < 0.767)
        mask_rows(x, k);
    else if (what < 0.77 && !x->smooth)
        bound_by_nan(x, k);
    else if (what < 0.82)
        do_nothing(x, k);
    else if (what < 0.88)
        there_and_back(x, k);
    else
        duplicate(x, k);
}

/* ---- whole graphs ---- */

static void mark_used(const Graph *g, bool *used)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            used[n->in[i]->id] = true;
}

static void choose_outputs(Gen *x)
{
    Graph *g = x->b.g;
    bool *used = NEWN(x->a, bool, g->nvalue);
    mark_used(g, used);
    for (int i = 0; i < x->nknown; i++) {
        Value *v = x->known[i].v;
        if (v->def && rng_chance(x->rng, used[v->id] ? 0.1 : 0.7))
            graph_output(g, v, ROLE_NONE, NULL);
    }
    if (!g->nout)
        graph_output(g, x->known[x->nknown - 1].v, ROLE_NONE, NULL);
}

static bool reaches_parameter(const Gen *x, const Value *loss)
{
    const Graph *g = x->b.g;
    bool *need = NEWN(x->a, bool, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        need[g->in[i].v->id] = g->in[i].role == ROLE_PARAM;
    grad_mark(g, need);
    return need[loss->id];
}

/* The sum over some values v of sum(tanh(v) * c); of the first parameter's too where else none is
 * reached. */
static void add_loss(Gen *x)
{
    Known *loss = constant(x, 0);
    for (int i = x->nknown - 1, terms = 0; i >= 0 && terms < 6; i--) {
        Known *y = &x->known[i];
        if (!is_float(y) || !y->finite || !tensor_nelem(&y->t) || !y->v->def)
            continue;
        if (!gen_within(y, 1, -1))
            y = gen_emit(x, "tanh", 1, &y, NOATTRS);
        y = gen_emit(x, "mul", 2, (Known *[]){y, constant(x, 0.1 + rng_uniform(x->rng))}, NOATTRS);
        y = gen_emit(x, "sum", 1, &y, NOATTRS);
        loss = gen_emit(x, "add", 2, (Known *[]){loss, y}, NOATTRS);
        terms++;
    }
    const Port *p = graph_find_input(x->b.g, ROLE_PARAM, NULL);
    if (p && !reaches_parameter(x, loss->v)) {
        Known *y = find_known(x, p->v);
        y = gen_emit(x, "tanh", 1, &y, NOATTRS);
        y = gen_emit(x, "sum", 1, &y, NOATTRS);
        loss = gen_emit(x, "add", 2, (Known *[]){loss, y}, NOATTRS);
    }
    graph_output(x->b.g, loss->v, ROLE_LOSS, NULL);
}

Gen *gen_graph(Arena *a, Library *lib, Rng *rng, int nodes, bool smooth)
{
    Gen *x = NEW(a, Gen);
    *x = (Gen){.a = a, .rng = rng, .lib = lib, .smooth = smooth};
    x->b = (Build){.g = graph_new(a, "random")};
    while (x->b.g->nnode < nodes)
        if (rng_chance(rng, 0.04))
            gen_loop(x);
        else
            gen_node(x);
    if (smooth)
        add_loss(x);
    else
        choose_outputs(x);
    return x;
}
