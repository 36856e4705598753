/* Parses a region node's ports and bodies: loops, and what `fused` computes. Bodies recurse, so
 * their depth is limited. */
#include "parse.h"

#include <string.h>

#define X(id, text) text,
static const char *const ports[] = {PORTS(X)};
#undef X

static Graph *new_body(Lexer *x, Graph *g, const Head *h)
{
    if (graph_depth(g) > TN_MAX_DEPTH + (h->op->region == FUSED))
        lex_fail(x, &h->t, "%s: expected loops at most %d deep, found another inside", h->op->name,
                 TN_MAX_DEPTH);
    return graph_body(g);
}

/* %name: TYPE, an input of the body; returns its index. */
static int parse_body_input(Lexer *x, Graph *body)
{
    Token name = lex_token(x, TOK_VALUE, "the body's name of the operand (%name)");
    need_new_name(x, body, &name);
    lex_need(x, ":");
    graph_input(body, name.s, lex_type(x), ROLE_NONE, NULL);
    return body->nin - 1;
}

/* KIND %name: TYPE = %operand axis D; what the tail sees is known later, but of a tail port. */
static PortIn parse_port_in(Lexer *x, Graph *g, Region *r, Head *h)
{
    int kind = lex_enum(x, ports, 0, PORT_CARRY + 1);
    if (kind < 0)
        lex_expected(x, "\"reverse\" or a port (whole slice stack tail offset carry)");
    PortIn port = {.kind = (PortKind)kind, .arg = -1, .at = {-1, -1}};
    if (port.kind == PORT_TAIL && !r->body[TAIL])
        r->body[TAIL] = new_body(x, g, h);
    int b = port.kind == PORT_TAIL ? TAIL : MAIN;
    port.at[b] = parse_body_input(x, r->body[b]);
    if (port.kind == PORT_OFFSET) {
        lex_need(x, "step");
        port.step = lex_token(x, TOK_INT, "an integer").i;
        return port;
    }
    lex_need(x, "=");
    port.arg = h->in.count;
    parse_operand_into(x, g, &h->in);
    if (port.kind == PORT_SLICE) {
        lex_need(x, "axis");
        port.axis = (int)lex_int(x, "an axis", 0, TN_RANK - 1);
    }
    return port;
}

static void parse_ports_in(Lexer *x, Graph *g, Region *r, Head *h)
{
    int cap = 0;
    lex_need(x, "(");
    lex_need(x, "n");
    lex_need(x, "=");
    r->n = lex_int(x, "a number of iterations", 1, INT32_MAX);
    while (!lex_take(x, ")")) {
        lex_need(x, ",");
        if (lex_take(x, "reverse"))
            r->reverse = true;
        else if (x->t.kind == TOK_WORD && attr_known(h->op, x->t.s))
            parse_attr(x, h->op, &h->attrs);
        else
            PUSH(x->a, r->in, r->nin, cap, parse_port_in(x, g, r, h));
    }
}

static int find_carry(Lexer *x, const Region *r, const Token *name)
{
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind == PORT_CARRY &&
            !strcmp(r->body[MAIN]->in[r->in[j].at[MAIN]].v->name, name->s))
            return j;
    lex_fail(x, name, "expected a carry port's name, found %%%.200s", name->s);
}

static PortOut parse_port_out(Lexer *x, const Region *r)
{
    static const PortKind kinds[] = {PORT_STACK, PORT_TAIL, PORT_CARRY, PORT_CONCAT, PORT_SUM};
    int i = 0;
    while (i < LEN(kinds) && !lex_take(x, port_name(kinds[i])))
        i++;
    if (i == LEN(kinds))
        lex_expected(x, "a result port (stack tail carry concat sum)");
    PortOut port = {.kind = kinds[i], .at = {-1, -1}};
    if (port.kind == PORT_CONCAT) {
        lex_need(x, "axis");
        port.axis = (int)lex_int(x, "an axis", 0, TN_RANK - 1);
    } else if (port.kind == PORT_SUM) {
        port.dtype = lex_dtype(x);
    } else if (port.kind == PORT_CARRY) {
        Token name = lex_token(x, TOK_VALUE, "a carry port's name (%name)");
        port.carry = find_carry(x, r, &name);
    }
    return port;
}

static void parse_ports_out(Lexer *x, Region *r)
{
    int cap = 0;
    lex_need(x, "->");
    lex_need(x, "(");
    for (bool first = true; !lex_take(x, ")"); first = false) {
        if (!first)
            lex_need(x, ",");
        PUSH(x->a, r->out, r->nout, cap, parse_port_out(x, r));
    }
}

/* yield %a, %b: one value for each result port that this body gives. */
static void parse_yield(Lexer *x, Region *r, int b)
{
    Graph *body = r->body[b];
    const Token t = x->t;
    int wanted = 0;
    lex_need(x, "yield");
    if (!lex_at(x, "}"))
        do
            graph_output(body, parse_operand(x, body), ROLE_NONE, NULL);
        while (lex_take(x, ","));
    for (int k = 0; k < r->nout; k++) {
        if (r->out[k].kind == (b == TAIL ? PORT_STACK : PORT_TAIL))
            continue;
        r->out[k].at[b] = wanted++;
    }
    if (wanted != body->nout)
        lex_fail(x, &t, "expected %d values to yield, found %d", wanted, body->nout);
    lex_need(x, "}");
}

/* One name of tail(...): a new input of the tail, or the one that its tail port has made. */
static void parse_tail_input(Lexer *x, const Graph *g, const Node *n, int j)
{
    Region *r = n->region;
    Token name = lex_token(x, TOK_VALUE, "the tail's name of an operand (%name)"), at_type = name;
    const Value *v = r->in[j].at[TAIL] >= 0 ? r->body[TAIL]->in[r->in[j].at[TAIL]].v : NULL;
    if (v && strcmp(v->name, name.s))
        lex_fail(x, &name, "expected the tail port's name %%%.200s, found %%%.200s", v->name,
                 name.s);
    if (!v)
        need_new_name(x, r->body[TAIL], &name);
    Type want = region_input_type(g, n, j, TAIL), t = want;
    if (lex_take(x, ":")) {
        at_type = x->t;
        t = lex_type(x);
    }
    if (!type_equal(&t, &want))
        lex_fail(x, &at_type, "%%%.200s: expected %s, found %s", name.s, type_text(x->a, &want),
                 type_text(x->a, &t));
    if (v)
        return;
    graph_input(r->body[TAIL], name.s, t, ROLE_NONE, NULL);
    r->in[j].at[TAIL] = r->body[TAIL]->nin - 1;
}

/* tail(%name: TYPE, ...): every port but stacks, in order; a type may be left out. */
static void parse_tail_head(Lexer *x, const Graph *g, Region *r, const Head *h)
{
    const Node n = {.op = h->op,
                    .in = h->in.v,
                    .nin = h->in.count,
                    .region = r,
                    .line = h->t.line,
                    .column = h->t.column};
    const char *before = "(";
    lex_need(x, before);
    for (int j = 0; j < r->nin; j++) {
        if (r->in[j].kind == PORT_STACK)
            continue;
        if (*before == ',')
            lex_need(x, before);
        before = ",";
        parse_tail_input(x, g, &n, j);
    }
    lex_need(x, ")");
}

/* (%name: TYPE = %operand, ...) fields { body }, after the op. */
static Region *parse_fused(Lexer *x, Graph *g, Head *h)
{
    Graph *body = new_body(x, g, h);
    lex_need(x, "(");
    for (bool first = true; !lex_take(x, ")"); first = false) {
        if (!first)
            lex_need(x, ",");
        parse_body_input(x, body);
        lex_need(x, "=");
        parse_operand_into(x, g, &h->in);
    }
    h->fields = parse_fields(x, g);
    lex_need(x, "{");
    parse_nodes(x, body);
    lex_need(x, "yield");
    do
        graph_output(body, parse_operand(x, body), ROLE_NONE, NULL);
    while (lex_take(x, ","));
    lex_need(x, "}");
    return region_whole(body);
}

/* (ports) -> (ports) fields { body } tail(...) { body }, after the op. */
Region *parse_region(Lexer *x, Graph *g, Head *h)
{
    if (h->op->region == FUSED)
        return parse_fused(x, g, h);
    Region *r = NEW(x->a, Region);
    r->body[MAIN] = new_body(x, g, h);
    parse_ports_in(x, g, r, h);
    parse_ports_out(x, r);
    h->fields = parse_fields(x, g);
    lex_need(x, "{");
    parse_nodes(x, r->body[MAIN]);
    parse_yield(x, r, MAIN);
    if (!lex_at(x, "tail") && !r->body[TAIL])
        return r;
    lex_need(x, "tail");
    r->body[TAIL] = r->body[TAIL] ? r->body[TAIL] : new_body(x, g, h);
    parse_tail_head(x, g, r, h);
    lex_need(x, "{");
    parse_nodes(x, r->body[TAIL]);
    parse_yield(x, r, TAIL);
    return r;
}
