/* Applies an op's rules to its example: `tenon ops NAME --show RULE`.
 *
 * The example becomes a graph whose operands are x (x0, x1, ... where there are several) and whose
 * results are y (y0, y1, ...); a region's example is a graph already. Each rule is then called as
 * compiling a real graph calls it, so nothing here knows any op. Graphs are shown as .tn text, with
 * what text cannot say as comments. */
#include "api.h"

#include <string.h>

enum { MOST_OPERANDS = 16 };

/* "x" alone, or x0, x1, ... */
static const char *numbered(Arena *a, const char *stem, int i, int count)
{
    return count == 1 ? stem : arena_printf(a, "%s%d", stem, i);
}

/* ---- the example ---- */

static AttrArg read_attr(Lexer *x, const Op *op, const char *name)
{
    int i = attr_index(op, name);
    if (i < 0) {
        const char *names[TN_MAX_ATTR];
        char text[400];
        int n = 0;
        for (const AttrField *f = op_attrs(op); f->kind; f++)
            names[n++] = f->name;
        lex_fail(x, &x->t, "%s: expected one of its attributes, found \"%s\"%s", op->name, name,
                 names_hint(name, names, n, text, sizeof text));
    }
    AttrKind kind = op_attrs(op)[i].kind;
    return (AttrArg){op_attrs(op)[i].name, kind, lex_attr(x, kind)};
}

/* NAME=VALUE ..., and the stream. */
static Node *read_node(Lexer *x, Graph *g, const Op *op, Value *const *in)
{
    AttrArg attr[TN_MAX_ATTR + 1] = {0};
    int64_t stream = -1;
    for (int i = 0; x->t.kind != TOK_END;) {
        Token name = lex_token(x, TOK_WORD, "an attribute");
        lex_need(x, "=");
        CHECK(i < TN_MAX_ATTR);
        if (!strcmp(name.s, "stream"))
            stream = lex_int(x, "a stream", 0, UINT32_MAX);
        else
            attr[i++] = read_attr(x, op, name.s);
    }
    return emit_stream(&(Build){.g = g}, op->name, g->nin, in, attr, stream);
}

static Graph *read_example(Arena *a, const Op *op)
{
    Graph *g = graph_new(a, op->name);
    Lexer x;
    Type type[MOST_OPERANDS];
    Value *in[MOST_OPERANDS];
    int nin = 0;
    lex_start(&x, a, op->rules->example, "example");
    while (x.t.kind == TOK_WORD && dtype_parse(x.t.s) >= 0 && nin < MOST_OPERANDS)
        type[nin++] = lex_type(&x);
    for (int i = 0; i < nin; i++)
        in[i] = graph_input(g, numbered(a, "x", i, nin), type[i], ROLE_NONE, NULL);
    Node *n = read_node(&x, g, op, in);
    Build b = {.g = g};
    for (int k = 0; k < n->nout; k++) {
        value_rename(g, n->out[k], numbered(a, "y", k, n->nout));
        Value *y =
            op_starts(op) ? emit1(&b, "wait_tensor", IN(n->out[k], in[0]), NOATTRS) : n->out[k];
        graph_output(g, y, ROLE_NONE, NULL);
    }
    return g;
}

/* The example's graph; the op's node is its last, but for a wait that reads its result. */
static Graph *example(Arena *a, const Op *op)
{
    if (!op->region)
        return read_example(a, op);
    return graph_parse(a, op->rules->example, "example");
}

static Node *example_node(const Graph *g, const Op *op)
{
    return g->last->op == op ? g->last : g->last->prev;
}

/* ---- infer ---- */

static void show_infer(Buf *b, const Op *op)
{
    graph_print(b, example(b->a, op));
}

/* ---- diff ---- */

/* The example with its backward; operands with a gradient have outputs `grad`. */
typedef struct ExampleBackward {
    Graph *g;
    Value **grad;
} ExampleBackward;

static bool is_float(const Value *v)
{
    return dtype_float(v->type.dtype);
}

/* first: a gradient comes to result 0 only, else to every floating-point result. */
static void differentiate(Arena *a, const Op *op, bool first, ExampleBackward *w)
{
    Graph *g = w->g = example(a, op);
    Node *n = example_node(g, op);
    Value **dy = NEWN(a, Value *, n->nout);
    int nin = g->nin;
    for (int k = 0; k < (first ? 1 : n->nout); k++)
        if (is_float(n->out[k]))
            dy[k] = graph_input(g, arena_printf(a, "d%s", n->out[k]->name), n->out[k]->type,
                                ROLE_NONE, NULL);
    bool *need = NEWN(a, bool, g->nvalue);
    w->grad = NEWN(a, Value *, g->nvalue);
    for (int i = 0; i < nin; i++)
        need[g->in[i].v->id] = is_float(g->in[i].v);
    for (int k = 0; k < n->nout; k++)
        w->grad[n->out[k]->id] = dy[k];
    grad_mark(g, need);
    grad_backprop(g, n, w->grad, need);
    for (int i = 0; i < nin; i++) {
        Port *p = &g->in[i];
        if (!is_float(p->v))
            continue;
        p->role = ROLE_PARAM;
        p->name = p->v->name;
        if (w->grad[p->v->id])
            graph_output(g, w->grad[p->v->id], ROLE_GRAD, p->name);
    }
}

static void show_diff(Buf *b, const Op *op)
{
    Ctx *ctx = arena_ctx(b->a);
    if (!op->rules->diff && op->region != LOOP) {
        buf_printf(b, "%s cannot be differentiated\n", op->name);
        return;
    }
    ExampleBackward *w = NEW(b->a, ExampleBackward);
    TRY(t, ctx)
        differentiate(b->a, op, false, w);
    if (tried(&t)) {
        buf_printf(b, "# %.*s\n", (int)strcspn(ctx->message, "\n"), ctx->message);
        differentiate(b->a, op, true, w);
    }
    const Graph *g = w->g;
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM && !w->grad[g->in[i].v->id])
            buf_printf(b, "# the gradient of %%%s is zero\n", g->in[i].v->name);
    graph_print(b, g);
}

/* ---- cost ---- */

static void show_cost(Buf *b, const Op *op)
{
    Cost c = node_cost(example_node(example(b->a, op), op));
    buf_printf(b, "flops         %8.0f\n", c.nflop);
    buf_printf(b, "bytes read    %8.0f\n", c.nread);
    buf_printf(b, "bytes written %8.0f\n", c.nwrite);
}

/* ---- factors ---- */

static const char *const kinds[] = {
#define X(id, name) [id] = name,
    FACTOR_KINDS(X)
#undef X
};

/* Factors are called a, b, c, ...; an axis is [a*b] where merged, its size where it has none. */
static const char *axes_text(Arena *a, const Axes *x, const Type *t)
{
    Buf b = {.a = a};
    buf_add(&b, "[");
    for (int d = 0; d < t->rank; d++) {
        buf_add(&b, d ? ", " : "");
        if (!x->n[d])
            buf_printf(&b, "%lld", (long long)t->dim[d]);
        for (int m = 0; m < x->n[d]; m++)
            buf_printf(&b, "%s%c", m ? "*" : "", 'a' + x->f[d][m]);
    }
    buf_add(&b, "]");
    return b.text;
}

static void add_axes(Table *t, const Value *v, const Axes *x)
{
    table_row(t, v->name, type_text(t->a, &v->type), axes_text(t->a, x, &v->type));
}

static const char *partials_text(Arena *a, const Factor *x)
{
    if (x->npartial < 2)
        return x->npartial ? kinds[x->partial[0]] : "-";
    return arena_printf(a, "%s, %s", kinds[x->partial[0]], kinds[x->partial[1]]);
}

/* How the node of a part knows where it begins. */
static const char *offset_text(const Node *n, const Factor *x)
{
    return x->offset >= 0 ? n->in[x->offset]->name : x->placed ? "placed" : "-";
}

static void show_factors(Buf *b, const Op *op)
{
    Arena *a = b->a;
    const Node *n = example_node(example(a, op), op);
    const Factors *f = node_factors(a, n);
    Table factors = {.a = a, .ncol = 5}, values = {.a = a, .ncol = 3};
    table_row(&factors, "factor", "kind", "size", "offset", "partials");
    for (int k = 0; k < f->count; k++)
        table_row(&factors, arena_printf(a, "%c", 'a' + k), kinds[f->factor[k].kind],
                  arena_printf(a, "%lld", (long long)f->factor[k].size),
                  offset_text(n, &f->factor[k]), partials_text(a, &f->factor[k]));
    table_row(&values, "value", "type", "axes");
    for (int i = 0; i < n->nin; i++)
        add_axes(&values, n->in[i], &f->in[i]);
    for (int k = 0; k < n->nout; k++)
        add_axes(&values, n->out[k], &f->out[k]);
    table_print(b, &factors);
    buf_add(b, "\n");
    table_print(b, &values);
}

void show_rule(Buf *b, const Op *op, const char *rule)
{
    static const struct {
        const char *name;
        void (*show)(Buf *b, const Op *op);
    } rules[] = {
        {"infer", show_infer}, {"diff", show_diff}, {"cost", show_cost}, {"factors", show_factors}};
    if (op->region == LOOP)
        buf_printf(b, "# the rules of %s follow from its ports and the nodes of its bodies\n",
                   op->name);
    for (int i = 0; i < LEN(rules); i++)
        if (!strcmp(rules[i].name, rule)) {
            rules[i].show(b, op);
            return;
        }
    fail(arena_ctx(b->a), TN_USAGE, "rule: expected infer, diff, cost or factors, found \"%s\"",
         rule);
}
