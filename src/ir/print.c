/* Prints a graph as text (docs/formats.md has the grammar). Printing, parsing and printing again
 * gives the same bytes: every choice here is a function of the graph alone. A graph's or loop's
 * head or a return that would pass column 100 is broken into one element per line. */
#include "diff.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 100 };

static void add_string(Buf *b, const char *s)
{
    buf_add(b, "\"");
    for (; *s; s++) {
        if (*s == '\n')
            buf_add(b, "\\n");
        else
            buf_printf(b, "%s%c", *s == '"' || *s == '\\' ? "\\" : "", *s);
    }
    buf_add(b, "\"");
}

/* The digits d of x = d[0].d[1]d[2]... x 10^exponent, as few as parse back to x. Reads digits only,
 * so that the locale's decimal point does not matter. */
static int shortest_digits(double x, char *d, int *exponent)
{
    char text[64];
    for (int count = 1;; count++) {
        snprintf(text, sizeof text, "%.*e", count - 1, x);
        if (count == 17 || strtod(text, NULL) == x)
            break;
    }
    int n = 0;
    const char *s = text;
    for (; *s != 'e'; s++)
        if (isdigit((unsigned char)*s))
            d[n++] = *s;
    *exponent = atoi(s + 1);
    return n;
}

/* Plain decimals from 1e-4 up to below 1e16, else with an exponent; never without "." or "e". */
static void add_float(Buf *b, double x)
{
    buf_add(b, signbit(x) ? "-" : "");
    if (!isfinite(x)) {
        buf_add(b, isnan(x) ? "nan" : "inf");
        return;
    }
    char d[24];
    int e, n = shortest_digits(fabs(x), d, &e);
    if (e < -4 || e >= 16) {
        buf_printf(b, "%c%s%.*se%d", d[0], n > 1 ? "." : "", n - 1, d + 1, e);
    } else if (e < 0) {
        buf_printf(b, "0.%.*s%.*s", -e - 1, "000", n, d);
    } else {
        for (int i = 0; i < MAX(n, e + 2); i++)
            buf_printf(b, "%s%c", i == e + 1 ? "." : "", i < n ? d[i] : '0');
    }
}

void attr_print(Buf *b, AttrKind kind, const Attr *a)
{
    switch (kind) {
    case ATTR_INT: buf_printf(b, "%lld", (long long)a->i); break;
    case ATTR_FLOAT: add_float(b, a->f); break;
    case ATTR_BOOL: buf_add(b, a->i ? "true" : "false"); break;
    case ATTR_STR: add_string(b, a->s ? a->s : ""); break;
    case ATTR_DTYPE: buf_add(b, dtype_name((DType)a->i)); break;
    case ATTR_INTS:
        buf_add(b, "[");
        for (int64_t i = 0; i < a->i; i++)
            buf_printf(b, "%s%lld", i ? ", " : "", (long long)a->ints[i]);
        buf_add(b, "]");
        break;
    case ATTR_END: break;
    }
}

bool attr_default(const AttrField *f, const Attr *a)
{
    if (f->required || f->optional)
        return a->absent;
    switch (f->kind) {
    case ATTR_FLOAT: return !memcmp(&a->f, &f->f, sizeof a->f);
    case ATTR_STR: return !strcmp(a->s ? a->s : "", f->s ? f->s : "");
    case ATTR_INTS: return !a->i;
    default: return a->i == f->i;
    }
}

/* ---- parts of lines ---- */

/* A list's elements: the first one's separator is empty, or an indented new line where broken. */
typedef struct List {
    const char *first, *next;
} List;

static const char *separator(List *l)
{
    const char *s = l->first ? l->first : l->next;
    l->first = NULL;
    return s;
}

static List list_make(Arena *a, bool broken, int indent)
{
    if (!broken)
        return (List){"", ", "};
    return (List){arena_printf(a, "\n%*s", indent, ""), arena_printf(a, ",\n%*s", indent, "")};
}

static void add_value(Buf *b, const Value *v)
{
    buf_printf(b, "%%%s: ", v->name);
    type_print(b, &v->type);
}

static void add_attrs(Buf *b, const Node *n, List *l)
{
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++) {
        if (attr_default(&f[i], &n->attr[i]))
            continue;
        buf_printf(b, "%s%s=", separator(l), f[i].name);
        attr_print(b, f[i].kind, &n->attr[i]);
    }
}

static void add_fields(Buf *b, const Node *n)
{
    buf_add(b, " ");
    if (*n->scope) {
        buf_add(b, " @");
        add_string(b, n->scope);
    }
    buf_printf(b, " %s", phase_name(n->phase));
    if (n->policy != POLICY_NONE)
        buf_printf(b, " %s", policy_name(n->policy));
    if (n->origin)
        buf_printf(b, " origin=%%%s", n->origin);
    if (n->stream >= 0)
        buf_printf(b, " stream=%lld", (long long)n->stream);
    for (int i = 0; i < n->nafter; i++)
        buf_printf(b, "%s%%%s", i ? "," : " after=", n->after[i]->out[0]->name);
}

static void add_results(Buf *b, const Node *n, List l)
{
    l.first = "";
    for (int k = 0; k < n->nout; k++) {
        buf_add(b, separator(&l));
        add_value(b, n->out[k]);
    }
    buf_printf(b, " = %s(", n->op->name);
}

/* ---- regions ---- */

static void print_nodes(Buf *b, const Graph *g, int depth);

static void add_port_in(Buf *b, const Node *n, const PortIn *p)
{
    const Region *r = n->region;
    int body = p->kind == PORT_TAIL ? TAIL : MAIN;
    buf_printf(b, "%s ", port_name(p->kind));
    add_value(b, r->body[body]->in[p->at[body]].v);
    if (p->kind != PORT_OFFSET)
        buf_printf(b, " = %%%s", n->in[p->arg]->name);
    if (p->kind == PORT_SLICE)
        buf_printf(b, " axis %d", p->axis);
    if (p->kind == PORT_OFFSET)
        buf_printf(b, " step %lld", (long long)p->step);
}

static void add_port_out(Buf *b, const Region *r, const PortOut *p)
{
    buf_add(b, port_name(p->kind));
    if (p->kind == PORT_SUM)
        buf_printf(b, " %s", dtype_name(p->dtype));
    if (p->kind == PORT_CONCAT)
        buf_printf(b, " axis %d", p->axis);
    if (p->kind == PORT_CARRY)
        buf_printf(b, " %%%s", r->body[MAIN]->in[r->in[p->carry].at[MAIN]].v->name);
}

/* The head of a region that runs once: %name: TYPE = %operand, ... */
static void add_fused_head(Buf *b, const Node *n, bool broken, int depth)
{
    const Region *r = n->region;
    List in = list_make(b->a, broken, 2 * depth + 4);
    add_results(b, n, list_make(b->a, broken, 2 * depth));
    for (int j = 0; j < r->nin; j++) {
        buf_add(b, separator(&in));
        add_value(b, r->body[MAIN]->in[r->in[j].at[MAIN]].v);
        buf_printf(b, " = %%%s", n->in[r->in[j].arg]->name);
    }
    buf_add(b, ")");
    add_fields(b, n);
    buf_add(b, " {\n");
}

static void add_region_head(Buf *b, const Node *n, bool broken, int depth)
{
    const Region *r = n->region;
    if (n->op->region == FUSED) {
        add_fused_head(b, n, broken, depth);
        return;
    }
    List in = list_make(b->a, broken, 2 * depth + 4), out = in;
    add_results(b, n, list_make(b->a, broken, 2 * depth));
    buf_printf(b, "%sn=%lld", separator(&in), (long long)r->n);
    if (r->reverse)
        buf_printf(b, "%sreverse", separator(&in));
    add_attrs(b, n, &in);
    for (int j = 0; j < r->nin; j++) {
        buf_add(b, separator(&in));
        add_port_in(b, n, &r->in[j]);
    }
    buf_add(b, ") -> (");
    for (int k = 0; k < r->nout; k++) {
        buf_add(b, separator(&out));
        add_port_out(b, r, &r->out[k]);
    }
    buf_add(b, ")");
    add_fields(b, n);
    buf_add(b, " {\n");
}

static void add_tail_head(Buf *b, const Region *r, bool broken, int depth)
{
    List l = list_make(b->a, broken, 2 * depth + 4);
    buf_printf(b, "%*s} tail(", 2 * depth, "");
    for (int j = 0; j < r->nin; j++) {
        if (r->in[j].at[TAIL] < 0)
            continue;
        buf_add(b, separator(&l));
        add_value(b, r->body[TAIL]->in[r->in[j].at[TAIL]].v);
    }
    buf_add(b, ") {\n");
}

static void print_yield(Buf *b, const Region *r, int body, int depth)
{
    const char *next = " ";
    buf_printf(b, "%*syield", 2 * depth, "");
    for (int k = 0; k < r->nout; k++) {
        int i = r->out[k].at[body];
        if (i < 0)
            continue;
        buf_printf(b, "%s%%%s", next, r->body[body]->out[i].v->name);
        next = ", ";
    }
    buf_add(b, "\n");
}

/* Whether the line begun at `start` is too long; it is taken back then. */
static bool too_long(Buf *b, size_t start)
{
    if (b->len - start <= WIDTH + 1)
        return false;
    b->len = start;
    return true;
}

static void print_region(Buf *b, const Node *n, int depth)
{
    const Region *r = n->region;
    size_t start = b->len - 2 * (size_t)depth; /* the indentation stands already */
    add_region_head(b, n, false, depth);
    if (too_long(b, start)) {
        buf_printf(b, "%*s", 2 * depth, "");
        add_region_head(b, n, true, depth);
    }
    print_nodes(b, r->body[MAIN], depth + 1);
    print_yield(b, r, MAIN, depth + 1);
    if (r->body[TAIL]) {
        start = b->len;
        add_tail_head(b, r, false, depth);
        if (too_long(b, start))
            add_tail_head(b, r, true, depth);
        print_nodes(b, r->body[TAIL], depth + 1);
        print_yield(b, r, TAIL, depth + 1);
    }
    buf_printf(b, "%*s}\n", 2 * depth, "");
}

/* ---- graphs ---- */

static void print_node(Buf *b, const Node *n, int depth)
{
    buf_printf(b, "%*s", 2 * depth, "");
    if (n->region) {
        print_region(b, n, depth);
        return;
    }
    List l = list_make(b->a, false, 0);
    add_results(b, n, l);
    for (int i = 0; i < n->nin; i++)
        buf_printf(b, "%s%%%s", separator(&l), n->in[i]->name);
    add_attrs(b, n, &l);
    buf_add(b, ")");
    add_fields(b, n);
    buf_add(b, "\n");
}

void node_print(Buf *b, const Node *n)
{
    if (n->region)
        add_region_head(b, n, false, 0);
    else
        print_node(b, n, 0);
    b->len -= n->region ? strlen(" {\n") : strlen("\n");
    b->text[b->len] = 0;
}

static void print_nodes(Buf *b, const Graph *g, int depth)
{
    for (const Node *n = g->first; n; n = n->next)
        print_node(b, n, depth);
}

static bool is_word(const char *s)
{
    if (!isalpha((unsigned char)*s) && *s != '_')
        return false;
    while (isalnum((unsigned char)*s) || *s == '_')
        s++;
    return !*s;
}

/* " mesh(dp=2, tp=4) at(0, 3) " */
static void add_mesh(Buf *b, const Mesh *m)
{
    for (int i = 0; i < m->naxes; i++)
        buf_printf(b, "%s%s=%lld", i ? ", " : " mesh(", m->name[i], (long long)m->size[i]);
    for (int i = 0; i < m->naxes; i++)
        buf_printf(b, "%s%lld", i ? ", " : ") at(", (long long)m->at[i]);
    buf_add(b, ") ");
}

static void add_cuts(Buf *b, const Graph *g, const Port *p)
{
    const char *cuts = g->mesh ? cuts_text(b->a, g->mesh, p->cut) : "";
    buf_printf(b, "%s%s", *cuts ? " " : "", cuts);
}

static void add_input(Buf *b, const Graph *g, const Port *p)
{
    add_value(b, p->v);
    if (p->role != ROLE_NONE)
        buf_printf(b, " %s", role_name(p->role));
    if (p->name) {
        buf_add(b, " ");
        add_string(b, p->name);
    }
    for (const char **s = p->tied; s && *s; s++) {
        buf_add(b, " ");
        add_string(b, *s);
    }
    if (p->host)
        buf_add(b, " host");
    add_cuts(b, g, p);
}

static void add_output(Buf *b, const Graph *g, const Port *p)
{
    if (p->role != ROLE_NONE)
        buf_printf(b, "%s ", role_name(p->role));
    if (p->name) {
        add_string(b, p->name);
        buf_add(b, " ");
    }
    buf_printf(b, "%%%s", p->v->name);
    add_cuts(b, g, p);
}

void port_print(Buf *b, const Graph *g, const Port *p, bool in)
{
    (in ? add_input : add_output)(b, g, p);
}

static void add_head(Buf *b, const Graph *g, bool broken)
{
    List l = list_make(b->a, broken, 4);
    buf_add(b, "graph ");
    if (is_word(g->name))
        buf_add(b, g->name);
    else
        add_string(b, g->name);
    if (g->mesh)
        add_mesh(b, g->mesh);
    buf_add(b, "(");
    for (int i = 0; i < g->nin; i++) {
        buf_add(b, separator(&l));
        add_input(b, g, &g->in[i]);
    }
    buf_add(b, ") {\n");
}

static void add_return(Buf *b, const Graph *g, bool broken)
{
    List l = list_make(b->a, broken, 4);
    buf_add(b, broken ? "  return" : "  return ");
    for (int i = 0; i < g->nout; i++) {
        buf_add(b, separator(&l));
        add_output(b, g, &g->out[i]);
    }
    buf_add(b, "\n");
}

void graph_print(Buf *b, const Graph *g)
{
    buf_add(b, "tenon 1\n");
    size_t start = b->len;
    add_head(b, g, false);
    if (too_long(b, start))
        add_head(b, g, true);
    print_nodes(b, g, 1);
    start = b->len;
    add_return(b, g, false);
    if (too_long(b, start))
        add_return(b, g, true);
    buf_add(b, "}\n");
}
