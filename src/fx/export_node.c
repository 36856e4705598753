/* export_node: the statements of one function: a line for each node, the last line that reads a
 * value gives it up, as PyTorch prints graphs. A loop becomes a loop of Python that calls a
 * function for its body; what it joins is written in place, what it adds up is added in place. */
#include "export.h"

#include <ctype.h>
#include <string.h>

/* ---- names ---- */

/* Words that a variable may not be: Python's, and the module's own. */
static bool is_reserved(const char *name)
{
    static const char *const words[] = {
        "False",   "None",     "True",      "and",     "as",       "assert", "async",  "await",
        "break",   "class",    "continue",  "def",     "del",      "elif",   "else",   "except",
        "finally", "for",      "from",      "global",  "if",       "import", "in",     "is",
        "lambda",  "nonlocal", "not",       "or",      "pass",     "raise",  "return", "try",
        "while",   "with",     "yield",     "range",   "reversed", "torch",  "aten",   "c10d",
        "inf",     "nan",      "iteration", "forward", "run",      "load",   "DEVICE", "INPUTS",
        "OUTPUTS", "MESH",     "AT",        "GROUPS"};
    for (int i = 0; i < LEN(words); i++)
        if (!strcmp(name, words[i]))
            return true;
    size_t len = strlen(name);
    return !strncmp(name, "tenon_", 6) || !strncmp(name, "body_", 5) ||
           (len > 5 && !strcmp(name + len - 5, "_part"));
}

static const char *fresh(Scope *s, const char *stem)
{
    Arena *a = s->x->a;
    const char *name = stem;
    for (int i = 1; is_reserved(name) || map_find(&s->taken, name); i++)
        name = arena_printf(a, "%s_%d", stem, i);
    map_put(&s->taken, name, s);
    return name;
}

const char *export_name(Scope *s, const Value *v)
{
    bool digit = isdigit((unsigned char)*v->name);
    char *stem = arena_printf(s->x->a, "%s%s", digit ? "_" : "", v->name);
    for (char *c = stem; *c; c++)
        *c = *c == '.' ? '_' : *c;
    return fresh(s, stem);
}

static Scope scope_make(Exporter *x, const Graph *g)
{
    Scope s = {.x = x, .g = g, .name = NEWN(x->a, const char *, g->nvalue), .taken = {.a = x->a}};
    for (int i = 0; i < g->nin; i++)
        s.name[g->in[i].v->id] = export_name(&s, g->in[i].v);
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            s.name[n->out[k]->id] = export_name(&s, n->out[k]);
    return s;
}

/* ---- last uses ---- */

/* By value id: the last node that reads it, or that makes it; NULL: the function returns it. */
static const Node **last_readers(Arena *a, const Graph *g)
{
    const Node **last = NEWN(a, const Node *, g->nvalue);
    for (const Node *n = g->first; n; n = n->next) {
        for (int k = 0; k < n->nout; k++)
            last[n->out[k]->id] = n;
        for (int i = 0; i < n->nin; i++)
            last[n->in[i]->id] = n;
    }
    for (int i = 0; i < g->nout; i++)
        last[g->out[i].v->id] = NULL;
    return last;
}

/* ";  a = b = None" for values that nothing reads after n. */
static void add_frees(Buf *b, const Scope *s, const Node *n, const Node **last)
{
    const char *before = ";  ";
    for (int i = 0; i < n->nin + n->nout; i++) {
        const Value *v = i < n->nin ? n->in[i] : n->out[i - n->nin];
        if (last[v->id] != n)
            continue;
        last[v->id] = NULL; /* an operand may stand twice */
        buf_printf(b, "%s%s", before, s->name[v->id]);
        before = " = ";
    }
    buf_add(b, *before == ';' ? "" : " = None");
}

/* ---- plain nodes ---- */

/* "a, b", each variable of the node's results. */
static void add_results(Buf *b, const Scope *s, const Node *n, const char *suffix)
{
    for (int k = 0; k < n->nout; k++)
        buf_printf(b, "%s%s%s", k ? ", " : "", s->name[n->out[k]->id], suffix);
}

static void add_plain(Buf *b, const Scope *s, const Node *n, const Node **last)
{
    const char *expression = export_expression(s, n);
    const char *ops = strncmp(expression, "aten.", 5) ? "" : "torch.ops.";
    buf_add(b, "    ");
    if (n->nout == 1)
        buf_printf(b, "%s: \"%s\"", s->name[n->out[0]->id], type_text(b->a, &n->out[0]->type));
    else
        add_results(b, s, n, "");
    bool list = n->nout == 1 && n->op->nout < 0 && n->op->view; /* split into one part */
    buf_printf(b, " = %s%s%s", ops, expression, list ? "[0]" : "");
    add_frees(b, s, n, last);
    if (n->origin)
        buf_printf(b, "  # again: %s", n->origin);
    buf_add(b, "\n");
}

/* ---- regions ---- */

/* The argument that body b sees through port p; first: where this iteration begins, as Python. */
static void add_argument(Buf *b, const Scope *s, const Node *n, const PortIn *p, int body)
{
    const Value *x = p->arg < 0 ? NULL : n->in[p->arg];
    const Region *r = n->region;
    const char *name = x ? s->name[x->id] : NULL;
    const Type *t = &r->body[body]->in[p->at[body]].v->type;
    long long size = 0, main = 0;
    if (p->kind == PORT_SLICE) {
        size = (long long)t->dim[p->axis];
        main = (long long)r->body[MAIN]->in[p->at[MAIN]].v->type.dim[p->axis];
    }
    switch (p->kind) {
    case PORT_SLICE:
        buf_printf(b,
                   "torch.ops.aten.slice.Tensor(%s, %d, %lld * iteration, %lld * iteration + %lld)",
                   name, p->axis, main, main, size);
        break;
    case PORT_STACK: buf_printf(b, "torch.ops.aten.select.int(%s, 0, iteration)", name); break;
    case PORT_OFFSET:
        buf_printf(
            b,
            "torch.ops.aten.full.default([], %lld * iteration, dtype=torch.int64, device=DEVICE)",
            (long long)p->step);
        break;
    default: buf_add(b, name);
    }
}

/* The variable of a carried operand: that of the result that takes it. */
static const char *carried(const Scope *s, const Node *n, int port)
{
    const Region *r = n->region;
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].kind == PORT_CARRY && r->out[k].carry == port)
            return s->name[n->out[k]->id];
    CHECK(!"a carried operand without a result");
    return NULL;
}

/* "    y = ..." before the loop: where results are written, what they are at first. */
static void add_starts(Buf *b, const Scope *s, const Node *n)
{
    const Region *r = n->region;
    for (int k = 0; k < r->nout; k++) {
        const PortOut *p = &r->out[k];
        const Type *t = &n->out[k]->type;
        const char *name = s->name[n->out[k]->id];
        if (p->kind == PORT_CARRY)
            buf_printf(b, "    %s = %s\n", name, s->name[n->in[r->in[p->carry].arg]->id]);
        else if (p->kind != PORT_TAIL)
            buf_printf(b, "    %s = torch.ops.aten.%s(%s, dtype=%s, device=DEVICE)\n", name,
                       p->kind == PORT_SUM ? "zeros.default" : "empty.memory_format",
                       export_shape(b->a, t), export_dtype(t->dtype));
    }
}

/* Writes where this iteration's part of result k goes. */
static void add_end(Buf *b, const Scope *s, const Node *n, int k, int body, const char *indent)
{
    const Region *r = n->region;
    const PortOut *p = &r->out[k];
    const char *y = s->name[n->out[k]->id];
    switch (p->kind) {
    case PORT_SUM:
        buf_printf(b, "%storch.ops.aten.add_.Tensor(%s, %s_part)\n", indent, y, y);
        break;
    case PORT_STACK:
        buf_printf(b,
                   "%storch.ops.aten.copy_.default(torch.ops.aten.select.int(%s, 0, iteration), "
                   "%s_part)\n",
                   indent, y, y);
        break;
    case PORT_CONCAT: {
        long long main = (long long)r->body[MAIN]->out[p->at[MAIN]].v->type.dim[p->axis];
        long long size = (long long)r->body[body]->out[p->at[body]].v->type.dim[p->axis];
        buf_printf(
            b,
            "%storch.ops.aten.copy_.default(torch.ops.aten.slice.Tensor(%s, %d, %lld * iteration, "
            "%lld * iteration + %lld), %s_part)\n",
            indent, y, p->axis, main, main, size, y);
        break;
    }
    default: buf_printf(b, "%s%s = %s_part\n", indent, y, y);
    }
}

/* One call of a body, and what becomes of its results. */
static void add_call(Buf *b, const Scope *s, const Node *n, int body, const char *function,
                     const char *indent)
{
    const Region *r = n->region;
    const char *next = "";
    bool any = false;
    buf_add(b, indent);
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].at[body] >= 0) {
            buf_printf(b, "%s%s_part", any ? ", " : "", s->name[n->out[k]->id]);
            any = true;
        }
    buf_printf(b, "%s%s(", any ? " = " : "", function);
    for (int i = 0; i < r->body[body]->nin; i++, next = ", ")
        for (int j = 0; j < r->nin; j++)
            if (r->in[j].at[body] == i) {
                buf_add(b, next);
                if (r->in[j].kind == PORT_CARRY)
                    buf_add(b, carried(s, n, j));
                else
                    add_argument(b, s, n, &r->in[j], body);
            }
    buf_add(b, ")\n");
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].at[body] >= 0)
            add_end(b, s, n, k, body, indent);
}

/* The tail, as iteration n. */
static void add_tail(Buf *b, const Scope *s, const Node *n, const char *function)
{
    buf_printf(b, "    iteration = %lld\n", (long long)n->region->n);
    add_call(b, s, n, TAIL, function, "    ");
}

static void add_loop(Buf *b, const Scope *s, const Node *n, const char *const *function)
{
    const Region *r = n->region;
    add_starts(b, s, n);
    if (r->body[TAIL] && r->reverse)
        add_tail(b, s, n, function[TAIL]);
    buf_add(b, "    for iteration in ");
    buf_add(b, r->reverse ? "reversed(" : "");
    buf_printf(b, "range(%lld)%s:\n", (long long)r->n, r->reverse ? ")" : "");
    add_call(b, s, n, MAIN, function[MAIN], "        ");
    if (r->body[TAIL] && !r->reverse)
        add_tail(b, s, n, function[TAIL]);
}

static void add_fused(Buf *b, const Scope *s, const Node *n, const char *function)
{
    const Region *r = n->region;
    const char *next = "";
    buf_add(b, "    ");
    add_results(b, s, n, "");
    buf_printf(b, " = %s(", function);
    for (int i = 0; i < r->body[MAIN]->nin; i++, next = ", ")
        for (int j = 0; j < r->nin; j++)
            if (r->in[j].at[MAIN] == i)
                buf_printf(b, "%s%s", next, s->name[n->in[r->in[j].arg]->id]);
    buf_add(b, ")\n");
}

static void add_region(Buf *b, const Scope *s, const Node *n, const Node **last)
{
    Exporter *x = s->x;
    const char *function[NBODY] = {NULL, NULL};
    EACH_BODY(i, n) {
        Buf body = {.a = x->a};
        function[i] = arena_printf(x->a, "body_%d", ++x->nbody);
        export_function(x, &body, function[i], n->region->body[i]);
        buf_printf(&x->bodies, "%s\n\n", body.text);
    }
    if (n->op->region == FUSED) {
        add_fused(b, s, n, function[MAIN]);
    } else {
        add_loop(b, s, n, function);
        buf_add(b, "    ");
        for (int k = 0; k < n->nout; k++)
            buf_printf(b, "%s_part = ", s->name[n->out[k]->id]);
        buf_add(b, "None\n");
    }
    Buf frees = {.a = x->a};
    add_frees(&frees, s, n, last);
    if (frees.len)
        buf_printf(b, "    %s\n", frees.text + strlen(";  "));
}

/* ---- functions ---- */

/* A comment where another phase or scope begins. */
static void add_place(Buf *b, const Node *n)
{
    const Node *before = n->prev;
    if (before && before->phase == n->phase && !strcmp(before->scope, n->scope))
        return;
    buf_printf(b, "    # %s%s%s\n", phase_name(n->phase), *n->scope ? " " : "", n->scope);
}

void export_function(Exporter *x, Buf *b, const char *name, const Graph *g)
{
    Scope s = scope_make(x, g);
    const Node **last = last_readers(x->a, g);
    buf_printf(b, "def %s(", name);
    for (int i = 0; i < g->nin; i++)
        buf_printf(b, "%s%s: \"%s\"", i ? ", " : "", s.name[g->in[i].v->id],
                   type_text(x->a, &g->in[i].v->type));
    buf_add(b, "):\n");
    for (const Node *n = g->first; n; n = n->next) {
        add_place(b, n);
        if (n->region)
            add_region(b, &s, n, last);
        else
            add_plain(b, &s, n, last);
    }
    buf_add(b, "    return (");
    for (int i = 0; i < g->nout; i++)
        buf_printf(b, "%s%s", i ? ", " : "", s.name[g->out[i].v->id]);
    buf_add(b, g->nout == 1 && g == x->g ? ",)\n" : ")\n");
}
