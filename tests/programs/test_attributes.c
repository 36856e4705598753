/* No op takes an attribute that its gradient ignores. For every attribute of every op that has a
 * gradient a line of tests/op is looked for on which another value of the attribute changes either
 * the result, and then finite differences judge the gradient (check_grad.c), or the gradient alone,
 * which these cannot see: then it was at least read, and a case of tests/fx_grad says what is
 * right. Neither is what this finds. Dtypes are left out: they are types, which the verifier
 * compares. */
#include "../shared/case.h"
#include "../shared/interp.h"
#include "../shared/test.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST_ELEMENTS = 3000, MOST_VALUES = 4 };

/* A case's op on inputs x, with an attribute set to another value, and its gradients. */
typedef struct Try {
    Arena *a;
    const Case *c;
    int field;
    const AttrArg *other; /* NULL: as the line has it */
    bool gradient; /* the operands' gradients instead of results, for a fixed dy of the first */
    Graph *g;
    Tensor *out;
} Try;

static Tensor fixed(Arena *a, const Type *t, int stream)
{
    Tensor x = tensor_new(a, t, 0);
    for (int64_t i = 0, n = type_nelem(t); i < n; i++)
        tensor_set(&x, i, 2 * random_uniform(7, (uint32_t)stream, 0, (uint64_t)i) - 1);
    return x;
}

static Case changed(const Try *t)
{
    Case c = *t->c;
    AttrArg *attr = NEWN(t->a, AttrArg, c.nattr + 2);
    int n = 0;
    for (int i = 0; i < c.nattr; i++)
        if (!t->other || strcmp(c.attr[i].name, t->other->name) != 0)
            attr[n++] = c.attr[i];
    if (t->other)
        attr[n++] = *t->other;
    c.attr = attr;
    c.nattr = n;
    return c;
}

static void add_gradients(Try *t, Build *b, Node *n, Tensor *in)
{
    bool *need = NEWN(t->a, bool, n->nin);
    Grad d = {b, n, NEWN(t->a, Value *, n->nout), need, NEWN(t->a, Value *, n->nin)};
    for (int i = 0; i < n->nin; i++)
        need[i] = dtype_float(n->in[i]->type.dtype);
    if (!dtype_float(n->out[0]->type.dtype))
        return;
    d.dy[0] = graph_input(t->g, "dy", n->out[0]->type, ROLE_NONE, NULL);
    in[t->g->nin - 1] = fixed(t->a, &n->out[0]->type, 50);
    n->op->rules->diff(&d);
    for (int i = 0; i < n->nin; i++)
        if (d.dx[i])
            graph_output(t->g, d.dx[i], ROLE_NONE, NULL);
}

static void run_try(void *arg)
{
    Try *t = arg;
    Case c = changed(t);
    t->g = graph_new(t->a, "attributes");
    Build b = {.g = t->g};
    Value **x = NEWN(t->a, Value *, c.nin);
    Tensor *in = NEWN(t->a, Tensor, c.nin + TN_MAX_OUT);
    for (int i = 0; i < c.nin; i++) {
        char *mem;
        int64_t span;
        Tensor y = case_operand(t->a, t->c, i, 2, &mem, &span);
        Type wide = type_wide(&c.in[i].type);
        x[i] = graph_input(t->g, "x", wide, ROLE_NONE, NULL);
        in[i] = tensor_copy(t->a, &y, wide.dtype);
    }
    Node *n = case_emit_wide(&b, &c, x);
    if (t->gradient)
        add_gradients(t, &b, n, in);
    for (int k = 0; k < n->nout && !t->gradient; k++)
        graph_output(t->g, n->out[k], ROLE_NONE, NULL);
    t->out = NEWN(t->a, Tensor, t->g->nout);
    interp_graph(t->a, t->g, in, t->out);
}

static bool runs(Ctx *ctx, Try *t)
{
    return ctx_try(ctx, run_try, t) == TN_OK;
}

static bool differ(const Try *s, const Try *t)
{
    if (s->g->nout != t->g->nout)
        return true;
    for (int k = 0; k < s->g->nout; k++)
        if (!type_equal(&s->g->out[k].v->type, &t->g->out[k].v->type) ||
            !tensor_same_bits(&s->out[k], &t->out[k]))
            return true;
    return false;
}

/* Other values than x of a field; returns how many. */
static int others(Arena *a, const AttrField *f, const Attr *x, AttrArg *to)
{
    int n = 0;
    int64_t *ints = NEWN(a, int64_t, f->kind == ATTR_INTS ? x->i : 0);
    switch (f->kind) {
    case ATTR_INT:
        to[n++] = A_INT(f->name, x->i - 1);
        to[n++] = A_INT(f->name, x->i < INT64_MAX ? x->i + 1 : 1);
        to[n++] = A_INT(f->name, 0);
        break;
    case ATTR_BOOL: to[n++] = A_BOOL(f->name, !x->i); break;
    case ATTR_FLOAT:
        to[n++] = A_FLOAT(f->name, (x->absent ? 0 : x->f) + 0.25);
        to[n++] = A_FLOAT(f->name, (x->absent ? 0 : x->f) / 2);
        break;
    case ATTR_INTS:
        for (int64_t i = 0; i < x->i; i++)
            ints[i] = x->ints[x->i - 1 - i];
        to[n++] = A_INTS(f->name, x->i, ints);
        to[n++] = A_INTS(f->name, 1, NEWN(a, int64_t, 1));
        break;
    case ATTR_STR:
        for (const char *words = "none tanh stop pass"; *words; words += strspn(words, " ")) {
            size_t size = strcspn(words, " ");
            if (n < MOST_VALUES)
                to[n++] = A_STR(f->name, arena_strndup(a, words, size)); /* some are refused */
            words += size;
        }
        break;
    default: break;
    }
    return n;
}

/* Whether another value of the field changes anything on the case's line. */
static bool matters(const Case *c, int field)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    AttrArg other[MOST_VALUES];
    const AttrField *f = &op_attrs(c->op)[field];
    bool found = false;
    Graph *g = graph_new(a, "defaults");
    int n = others(a, f, &attrs_make(g, c->op, c->attr)[field], other);
    for (int i = c->nograd ? n : 0; i < 2 * n && !found; i++) { /* results, then gradients */
        Try s = {.a = a, .c = c, .field = field, .gradient = i >= n}, t = s;
        t.other = &other[i % n];
        if (!runs(&ctx, &s))
            break;
        found = runs(&ctx, &t) && differ(&s, &t);
    }
    arena_free(a);
    return found;
}

/* Whether an attribute need not change anything: the operands' shapes leave one value alone, or
 * others that mean the same; or it only says what is refused. */
static bool may_change_nothing(const char *op, const char *field)
{
    static const char *const bound[][2] = {{"split", "dim"},
                                           {"slice_backward", "dim"},
                                           {"slice_backward", "end"},
                                           {"slice_scatter", "dim"},
                                           {"slice_scatter", "end"},
                                           {"native_layer_norm", "normalized_shape"},
                                           {"index_put", "dims"},
                                           {"embedding", "rows"},
                                           {"embedding_dense_backward", "rows"},
                                           {"dropout", "extents"},
                                           {"native_dropout", "extents"},
                                           {"rand_like", "extents"}};
    for (int i = 0; i < LEN(bound); i++)
        if (!strcmp(op, bound[i][0]) && !strcmp(field, bound[i][1]))
            return true;
    return false;
}

static bool small(const Case *c)
{
    int64_t sum = 0;
    for (int i = 0; i < c->nin; i++)
        sum += type_nelem(&c->in[i].type);
    return sum <= MOST_ELEMENTS && !c->error && !c->runerror;
}

static void test_op(Arena *a, const Op *op)
{
    const AttrField *f = op_attrs(op);
    const char *path = arena_printf(a, "tests/op/%s.case", op->name);
    int count;
    if (!op->rules->diff || access(path, R_OK))
        return;
    const Case *c = case_read(a, op, path, &count);
    for (int k = 0; f[k].kind; k++) {
        bool found = f[k].kind == ATTR_DTYPE || may_change_nothing(op->name, f[k].name);
        for (int i = 0; i < count && !found; i++)
            found = small(&c[i]) && matters(&c[i], k);
        if (!EXPECT(found))
            printf("  %s: %s changes neither results nor gradients on any line of %s\n", op->name,
                   f[k].name, path);
    }
}

static void test_ops(void *arg)
{
    Arena *a = arg;
    for (int i = 0; i < op_count; i++)
        if (op_table[i].rules && !op_table[i].region)
            test_op(a, &op_table[i]);
}

int main(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    CHECK(!access("tests/op", R_OK));
    if (!EXPECT(ctx_try(&ctx, test_ops, a) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_free(a);
    EXPECT(test_npass > 40);
    return test_report();
}
