/* Work of references that run: where no kernel takes a node, its ref must not read and write more
 * than a constant times what the node's cost says. The problems are those of tests/op, with each
 * factor in turn made larger, indices all equal; counted are the elements that the ref gets and
 * sets (the linker wraps tensor_get, tensor_int, tensor_set). What is quadratic where the cost is
 * linear exceeds the bound by far. */
#include "../shared/case.h"
#include "../shared/test.h"

#include <string.h>
#include <unistd.h>

enum { GROWN = 400, MOST_ELEMENTS = 40000, MOST_LINES = 12, BOUND = 24 };

double __real_tensor_get(const Tensor *t, int64_t offset);
int64_t __real_tensor_int(const Tensor *t, int64_t offset);
void __real_tensor_set(const Tensor *t, int64_t offset, double x);
double __wrap_tensor_get(const Tensor *t, int64_t offset);
int64_t __wrap_tensor_int(const Tensor *t, int64_t offset);
void __wrap_tensor_set(const Tensor *t, int64_t offset, double x);

static int64_t work; /* of this test alone */

double __wrap_tensor_get(const Tensor *t, int64_t offset)
{
    __atomic_fetch_add(&work, 1, __ATOMIC_RELAXED);
    return __real_tensor_get(t, offset);
}

int64_t __wrap_tensor_int(const Tensor *t, int64_t offset)
{
    __atomic_fetch_add(&work, 1, __ATOMIC_RELAXED);
    return __real_tensor_int(t, offset);
}

void __wrap_tensor_set(const Tensor *t, int64_t offset, double x)
{
    __atomic_fetch_add(&work, 1, __ATOMIC_RELAXED);
    __real_tensor_set(t, offset, x);
}

/* ---- a larger problem ---- */

typedef struct Trial {
    Arena *a;
    const Case *c;
    bool wide;  /* in f64 */
    int factor; /* the one that is larger; -1: none */
    Node *n;    /* of the line */
    Node *grown;
    double ratio;
    bool run; /* it was reached */
} Trial;

static Value **inputs(Trial *t, Graph *g)
{
    Value **in = NEWN(t->a, Value *, t->c->nin);
    for (int i = 0; i < t->c->nin; i++)
        in[i] = graph_input(g, "x", type_wide(&t->c->in[i].type), ROLE_NONE, NULL);
    return in;
}

static void make(void *arg)
{
    Trial *t = arg;
    Build b = {.g = graph_new(t->a, "line")};
    t->n = t->wide ? case_emit_wide(&b, t->c, inputs(t, b.g)) : case_emit(&b, t->c);
}

static Type grow_type(const Trial *t, const Axes *x, const Type *whole, int64_t times)
{
    Type type = *whole;
    for (int d = 0; d < whole->rank; d++)
        for (int m = 0; m < x->n[d]; m++)
            if (x->f[d][m] == t->factor)
                type.dim[d] *= times;
    return type;
}

/* The node with one factor as large as GROWN; the rule for parts rewrites what attributes say. */
static void grow(void *arg)
{
    Trial *t = arg;
    const Node *n = t->n;
    Factors *f = node_factors(t->a, n);
    Graph *g = graph_new(t->a, "grown");
    Build b = {.g = g};
    Value **in = NEWN(t->a, Value *, n->nin);
    int64_t size[MAX_FACTOR], own = t->factor < 0 ? 1 : f->factor[t->factor].size;
    int64_t times = t->factor < 0 ? 1 : GROWN / MAX(own, 1);
    for (int k = 0; k < f->count; k++)
        size[k] = f->factor[k].size * (k == t->factor ? times : 1);
    for (int i = 0; i < n->nin; i++) {
        Type type = grow_type(t, &f->in[i], &n->in[i]->type, times);
        in[i] = graph_input(g, "x", type, ROLE_NONE, NULL);
    }
    Value **out = NEWN(t->a, Value *, n->nout);
    node_part(&(Part){.b = &b,
                      .n = n,
                      .f = f,
                      .size = size,
                      .start = NEWN(t->a, Value *, MAX_FACTOR),
                      .in = in,
                      .out = out});
    t->grown = out[0]->def;
}

static double elements(const Node *n)
{
    double sum = 0;
    for (int i = 0; i < n->nin; i++)
        sum += (double)type_nelem(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        sum += (double)type_nelem(&n->out[k]->type);
    return sum;
}

static Tensor filled(const Trial *t, const Value *v, int i)
{
    Tensor x = tensor_new(t->a, &v->type, 0);
    const CaseOperand *o = &t->c->in[i];
    double at = o->ranged ? o->lo : dtype_float(v->type.dtype) ? 0.5 : 0;
    for (int64_t e = 0, n = tensor_nelem(&x); e < n; e++)
        __real_tensor_set(&x, e, at);
    return x;
}

static bool has_kernel(const Call *c)
{
    for (const Kernel *k = c->node->op->rules->kernels; k && k->name; k++)
        if (k->accepts(c))
            return true;
    return false;
}

static void count(void *arg)
{
    Trial *t = arg;
    const Node *n = t->grown;
    if (elements(n) > MOST_ELEMENTS)
        return;
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    c.in = NEWN(t->a, Tensor, n->nin);
    c.out = NEWN(t->a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++)
        c.in[i] = filled(t, n->in[i], i);
    for (int k = 0; k < n->nout; k++)
        c.out[k] = tensor_new(t->a, &n->out[k]->type, 0);
    if (has_kernel(&c))
        return;
    work = 0;
    t->run = !n->op->rules->ref(&c);
    t->ratio = (double)work / (node_cost(n).nflop + elements(n) + 1);
}

/* ---- all lines ---- */

static void try_line(Arena *a, const Case *c, bool wide, int *runs)
{
    Ctx *ctx = arena_ctx(a);
    Trial t = {.a = a, .c = c, .wide = wide, .factor = -1};
    if (c->error || c->runerror || ctx_try(ctx, make, &t))
        return;
    for (int count_factors = node_factors(a, t.n)->count; t.factor < count_factors; t.factor++) {
        t.run = false;
        if (ctx_try(ctx, grow, &t) || ctx_try(ctx, count, &t) || !t.run)
            continue; /* not every attribute follows */
        ++*runs;
        if (!EXPECT(t.ratio <= BOUND))
            printf("  %s:%d: %s factor %d: %.0f elements read and written for each operation and "
                   "element of the node\n",
                   c->file, c->line, wide ? "f64," : "", t.factor, t.ratio);
    }
}

static int try_op(Ctx *ctx, const Op *op)
{
    Arena *a = arena_new(ctx);
    CHECK(a);
    const char *path = arena_printf(a, "tests/op/%s.case", op->name);
    int ncase = 0, runs = 0;
    const Case *c = access(path, R_OK) ? NULL : case_read(a, op, path, &ncase);
    for (int i = 0; i < ncase && i < MOST_LINES; i++) {
        try_line(a, &c[i], false, &runs);
        try_line(a, &c[i], true, &runs);
    }
    arena_free(a);
    return runs;
}

int main(void)
{
    Ctx ctx = {0};
    int reached = 0;
    for (int i = 0; i < op_count; i++) {
        const Op *op = &op_table[i];
        if (op->rules && op->rules->ref && !op->region && !op->view &&
            op->class != CLASS_COLLECTIVE)
            reached += try_op(&ctx, op) > 0;
    }
    printf("note: references of %d ops run where no kernel does\n", reached);
    EXPECT(reached > 20);
    return test_report();
}
