/* Parser of tests/op/NAME.case, one problem a line:
 *
 *   line    := { operand } { attribute } { flag } [ "#" comment ]
 *   operand := dtype "[" sizes "]" [ "{" lo ".." hi "}" | "=" number ] [ "'t" | "'s" | "'e" axis |
 * "'d" ] flag    := "stream=" N | "tol=" X | ( "nograd" | "nosplit" | "error" | "runerror" ) "text"
 *
 * 'd: integers [B, T], where documents begin that fill the rows: of each place its document's
 * first. In quoted text a backslash takes the next character as it is. Attributes are NAME=VALUE as
 * in .tn text. An attribute that the op does not have, or of another kind, is handed on as it
 * looks, so that lines can expect those errors. */
#include "case.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { CASE_OPERANDS = 32 };

typedef struct Reader {
    Arena *a;
    const char *at; /* the rest of the line */
    Case *c;
} Reader;

_Noreturn static void malformed(const Reader *r, const char *expected)
{
    fail(arena_ctx(r->a), TN_FAIL, "%s:%d: expected %s, found \"%.40s\"", r->c->file, r->c->line,
         expected, r->at);
}

static void skip(Reader *r)
{
    while (*r->at == ' ' || *r->at == '\t')
        r->at++;
}

static void take(Reader *r, char ch)
{
    if (*r->at != ch)
        malformed(r, (char[]){'"', ch, '"', 0});
    r->at++;
}

static bool taken(Reader *r, char ch)
{
    return *r->at == ch && r->at++;
}

static const char *word(Reader *r)
{
    const char *from = r->at;
    while (isalnum((unsigned char)*r->at) || *r->at == '_')
        r->at++;
    if (r->at == from)
        malformed(r, "a name");
    return arena_strndup(r->a, from, (size_t)(r->at - from));
}

static int64_t integer(Reader *r)
{
    char *end;
    long long x = strtoll(r->at, &end, 10);
    if (end == r->at)
        malformed(r, "an integer");
    r->at = end;
    return x;
}

/* The number ends before ".." at the latest: "0..1" is two numbers. */
static double number(Reader *r)
{
    size_t n = strcspn(r->at, " \t}'#");
    const char *dots = strstr(r->at, "..");
    char *text = arena_strndup(r->a, r->at, dots ? MIN(n, (size_t)(dots - r->at)) : n), *end;
    double x = strtod(text, &end);
    if (end == text || *end)
        malformed(r, "a number");
    r->at += end - text;
    return x;
}

static const char *quoted(Reader *r)
{
    skip(r);
    take(r, '"');
    Buf b = {.a = r->a};
    buf_add(&b, "");
    while (*r->at && *r->at != '"') {
        r->at += *r->at == '\\' && r->at[1];
        buf_addn(&b, r->at++, 1);
    }
    take(r, '"');
    return b.text;
}

/* "1, 2]": the opening bracket is taken already. */
static int64_t *integers(Reader *r, int *count)
{
    int64_t *x = NULL;
    int cap = 0;
    *count = 0;
    skip(r);
    while (!taken(r, ']')) {
        if (*count)
            take(r, ',');
        skip(r);
        int64_t i = integer(r);
        PUSH(r->a, x, *count, cap, i);
        skip(r);
    }
    return x;
}

/* ---- operands ---- */

static void layout(Reader *r, CaseOperand *x)
{
    char ch = *r->at++;
    x->documents = ch == 'd';
    x->layout = ch == 't'   ? LAYOUT_SWAPPED
                : ch == 's' ? LAYOUT_SLICED
                : ch == 'e' ? LAYOUT_EXPANDED
                            : LAYOUT_PLAIN;
    if (x->documents) { /* what fills it otherwise gives documents of whole rows */
        x->ranged = true;
        x->lo = x->hi = 0;
    }
    if (!strchr("tsed", ch))
        malformed(r, "t, s, e or d");
    x->axis = ch == 'e' ? (int)integer(r) : 0;
    if ((ch == 't' && x->type.rank < 2) || x->axis < 0 || x->axis >= MAX(x->type.rank, 1))
        malformed(r, "a layout that fits the rank");
}

static void operand(Reader *r, const char *name)
{
    int d = dtype_parse(name), rank;
    if (d < 0)
        malformed(r, "a dtype before \"[\"");
    const int64_t *dim = integers(r, &rank);
    if (rank > TN_RANK)
        malformed(r, "at most 8 axes");
    CaseOperand x = {.type = type_make((DType)d, rank, dim)};
    x.lo = dtype_float((DType)d) ? -2 : 0;
    x.hi = dtype_float((DType)d) ? 2 : d == BOOL ? 1 : 3;
    if ((x.ranged = taken(r, '{'))) {
        x.lo = number(r);
        take(r, '.');
        take(r, '.');
        x.hi = number(r);
        take(r, '}');
    } else if ((x.ranged = taken(r, '='))) {
        x.lo = x.hi = number(r);
    }
    if (taken(r, '\''))
        layout(r, &x);
    if (*r->at && !strchr(" \t#", *r->at))
        malformed(r, "a space after the operand");
    if (r->c->nin == CASE_OPERANDS)
        malformed(r, "fewer operands");
    r->c->in[r->c->nin++] = x;
}

/* ---- attributes ---- */

/* The value as it looks, whatever the op wants. */
static AttrArg value(Reader *r, const char *name)
{
    if (taken(r, '[')) {
        int count;
        const int64_t *x = integers(r, &count);
        return A_INTS(name, count, x);
    }
    if (*r->at == '"')
        return A_STR(name, quoted(r));
    if (isalpha((unsigned char)*r->at) && strncmp(r->at, "inf", 3) && strncmp(r->at, "nan", 3)) {
        const char *text = word(r);
        if (!strcmp(text, "true") || !strcmp(text, "false"))
            return A_BOOL(name, *text == 't');
        int d = dtype_parse(text);
        if (d < 0)
            malformed(r, "a value");
        return A_DTYPE(name, d);
    }
    size_t n = strcspn(r->at, " \t#");
    if (strspn(r->at, "-+0123456789") >= n)
        return A_INT(name, integer(r));
    return A_FLOAT(name, number(r));
}

static void attribute(Reader *r, const char *name)
{
    AttrArg x = value(r, name);
    int i = attr_index(r->c->op, name);
    if (i >= 0 && op_attrs(r->c->op)[i].kind == ATTR_FLOAT && x.kind == ATTR_INT)
        x = A_FLOAT(name, (double)x.a.i);
    if (r->c->nattr == TN_MAX_ATTR)
        malformed(r, "fewer attributes");
    r->c->attr[r->c->nattr++] = x;
}

static void flag(Reader *r, const char *name)
{
    const struct {
        const char *name, **to;
    } flags[] = {{"nograd", &r->c->nograd},
                 {"nosplit", &r->c->nosplit},
                 {"error", &r->c->error},
                 {"runerror", &r->c->runerror}};
    for (int i = 0; i < LEN(flags); i++)
        if (!strcmp(flags[i].name, name)) {
            *flags[i].to = quoted(r);
            return;
        }
    malformed(r, "nograd, nosplit, error or runerror before this");
}

static void item(Reader *r)
{
    const char *name = word(r);
    if (taken(r, '['))
        operand(r, name);
    else if (!taken(r, '='))
        flag(r, name);
    else if (!strcmp(name, "stream"))
        r->c->stream = integer(r);
    else if (!strcmp(name, "tol"))
        r->c->tol = number(r);
    else
        attribute(r, name);
}

Case *case_read(Arena *a, const Op *op, const char *path, int *count)
{
    size_t len;
    char *text = file_read(a, path, &len);
    Case *cases = NULL;
    int cap = 0, number_of_line = 0;
    *count = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        Case c = {.file = path, .line = ++number_of_line, .op = op, .stream = -1, .tol = 1e-5};
        c.seed = hash_bytes(line, strlen(line), 1);
        c.attr = NEWN(a, AttrArg, TN_MAX_ATTR + 1);
        c.in = NEWN(a, CaseOperand, CASE_OPERANDS);
        Reader r = {a, line, &c};
        skip(&r);
        bool blank = !*r.at || *r.at == '#';
        for (; *r.at && *r.at != '#'; skip(&r))
            item(&r);
        if (!blank)
            PUSH(a, cases, *count, cap, c);
    }
    return cases;
}

/* ---- nodes ---- */

Type type_wide(const Type *t)
{
    Type w = *t;
    w.dtype = dtype_float(t->dtype) ? F64 : t->dtype;
    return w;
}

Node *case_emit(Build *b, const Case *c)
{
    Value **in = NEWN(b->g->a, Value *, c->nin);
    for (int i = 0; i < c->nin; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        in[i] = graph_input(b->g, name, c->in[i].type, ROLE_NONE, NULL);
    }
    return emit_stream(b, c->op->name, c->nin, in, c->attr, c->stream);
}

static Attr *wide_attrs(Arena *a, const Op *op, const Attr *attr)
{
    int count = op_nattr(op);
    Attr *wide = NEWN(a, Attr, count);
    for (int i = 0; i < count; i++) {
        wide[i] = attr[i];
        if (op_attrs(op)[i].kind == ATTR_DTYPE && dtype_float((DType)attr[i].i))
            wide[i].i = F64;
    }
    return wide;
}

Node *case_emit_wide(Build *b, const Case *c, Value *const *in)
{
    Attr *attr = wide_attrs(b->g->a, c->op, attrs_make(b->g, c->op, c->attr));
    return emit_named(b, c->op, c->nin, in, attr, NULL, c->stream, NULL, -1);
}

Node *emit_wide(Build *b, const Node *n, Value *const *in)
{
    Attr *attr = wide_attrs(b->g->a, n->op, n->attr);
    return emit_named(b, n->op, n->nin, in, attr, n->region, n->stream, NULL, -1);
}

Graph *graph_wide(Arena *a, const Graph *g)
{
    Graph *to = graph_new(a, g->name);
    Value **now = NEWN(a, Value *, g->nvalue);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        now[p->v->id] = graph_input(to, p->v->name, type_wide(&p->v->type), p->role, p->name);
    }
    for (const Node *n = g->first; n; n = n->next) {
        Value **in = NEWN(a, Value *, n->nin);
        for (int i = 0; i < n->nin; i++)
            in[i] = now[n->in[i]->id];
        Build b = build_like(to, NULL, n);
        Node *m = emit_wide(&b, n, in);
        for (int k = 0; k < n->nout; k++)
            now[n->out[k]->id] = m->out[k];
    }
    for (int i = 0; i < g->nout; i++)
        graph_output(to, now[g->out[i].v->id], g->out[i].role, g->out[i].name);
    return to;
}
