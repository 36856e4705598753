/* key: the names of calls and nodes in files, such as "mm bf16[64, 768] bf16[768, 3072]@[1, 768] ->
 * bf16[64, 3072]" (docs/formats.md). In memory a call is found by a hash of 64 bits of the same
 * contents, so that a question writes no text; with some thousands of keys none is taken for
 * another. A node's key is that of a call whose tensors are all row-major. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- hashes ---- */

static uint64_t hash_int(int64_t i, uint64_t h)
{
    return hash_bytes(&i, sizeof i, h);
}

static uint64_t hash_text(const char *s, uint64_t h)
{
    return hash_bytes(s, strlen(s) + 1, h);
}

static uint64_t hash_attrs(const Node *n, uint64_t h)
{
    const AttrField *f = op_attrs(n->op);
    for (int i = 0; f[i].kind; i++) {
        const Attr *x = &n->attr[i];
        if (f[i].optional)
            h = hash_int(x->absent, h);
        switch (f[i].kind) {
        case ATTR_FLOAT: h = hash_bytes(&x->f, sizeof x->f, h); break;
        case ATTR_STR: h = hash_text(x->s ? x->s : "", h); break;
        case ATTR_INTS:
            h = hash_int(x->i, h);
            h = hash_bytes(x->ints, sizeof *x->ints * (size_t)x->i, h);
            break;
        default: h = hash_int(x->i, h);
        }
    }
    return h;
}

/* strides: NULL, or of a tensor that is not row-major; of axes of size 1 they do not count. */
static uint64_t hash_shape(DType dtype, int rank, const int64_t *dim, const int64_t *stride,
                           uint64_t h)
{
    int64_t x[2 + 2 * TN_RANK] = {dtype, stride ? -1 - rank : rank};
    for (int d = 0; d < rank; d++) {
        x[2 + d] = dim[d];
        x[2 + rank + d] = stride && dim[d] != 1 ? stride[d] : 0;
    }
    return hash_bytes(x, sizeof *x * (size_t)(2 + (stride ? 2 : 1) * rank), h);
}

static uint64_t hash_type(const Type *t, uint64_t h)
{
    return hash_shape(t->dtype, t->rank, t->dim, NULL, h);
}

static uint64_t hash_tensor(const Tensor *t, uint64_t h)
{
    return hash_shape(t->dtype, t->rank, t->dim, tensor_contiguous(t) ? NULL : t->stride, h);
}

/* The hash of a value in a body: which of its inputs, or which result of which node. */
static uint64_t hash_value(const Graph *body, const Value *v, uint64_t h)
{
    int64_t at = -1;
    if (v->def)
        for (const Node *n = body->first; n && n != v->def; n = n->next)
            at++;
    return hash_int(v->index, hash_int(v->def ? at + 1 : -1, h));
}

/* The hash of what a body computes, whatever its values are called, as files have it. */
static uint64_t hash_body(const Graph *body)
{
    uint64_t h = hash_int(body->nin, 0);
    for (const Node *n = body->first; n; n = n->next) {
        h = hash_attrs(n, hash_text(n->op->name, h));
        for (int i = 0; i < n->nin; i++)
            h = hash_value(body, n->in[i], h);
        for (int k = 0; k < n->nout; k++)
            h = hash_type(&n->out[k]->type, h);
    }
    for (int k = 0; k < body->nout; k++)
        h = hash_value(body, body->out[k].v, h);
    return h;
}

static uint64_t start_hash(const Op *op, uint64_t body, int nin, int nout)
{
    return hash_int(nout, hash_int(nin, hash_bytes(op->name, strlen(op->name), body)));
}

static uint64_t body_of(const Node *n)
{
    return n->region ? hash_body(n->region->body[MAIN]) : 0;
}

static uint64_t hash_call(const Call *c, uint64_t body)
{
    uint64_t h = hash_attrs(c->node, start_hash(c->node->op, body, c->nin, c->nout));
    for (int i = 0; i < c->nin; i++)
        h = hash_tensor(&c->in[i], h);
    for (int k = 0; k < c->nout; k++)
        h = hash_tensor(&c->out[k], h);
    return h;
}

uint64_t call_hash(const Call *c)
{
    return hash_call(c, body_of(c->node));
}

uint64_t node_hash(const Node *n)
{
    uint64_t h = hash_attrs(n, start_hash(n->op, body_of(n), n->nin, n->nout));
    for (int i = 0; i < n->nin; i++)
        h = hash_type(&n->in[i]->type, h);
    for (int k = 0; k < n->nout; k++)
        h = hash_type(&n->out[k]->type, h);
    return h;
}

/* ---- as text ---- */

static void put_ints(Buf *b, int count, const int64_t *x)
{
    attr_print(b, ATTR_INTS, &(Attr){.i = count, .ints = x});
}

static void put_op(Buf *b, const Node *n)
{
    const AttrField *f = op_attrs(n->op);
    const char *open = "(";
    buf_add(b, n->op->name);
    if (n->region) {
        buf_printf(b, "(body=\"%016llx\"", (unsigned long long)body_of(n));
        open = ", ";
    }
    for (int i = 0; f[i].kind; i++) {
        if (attr_default(&f[i], &n->attr[i]))
            continue;
        buf_printf(b, "%s%s=", open, f[i].name);
        attr_print(b, f[i].kind, &n->attr[i]);
        open = ", ";
    }
    buf_add(b, *open == ',' ? ")" : "");
}

static void put_tensor(Buf *b, const Tensor *t)
{
    int64_t stride[TN_RANK];
    Type type = type_make(t->dtype, t->rank, t->dim);
    type_print(b, &type);
    if (tensor_contiguous(t))
        return;
    for (int d = 0; d < t->rank; d++)
        stride[d] = t->dim[d] != 1 ? t->stride[d] : 0;
    buf_add(b, "@");
    put_ints(b, t->rank, stride);
}

const char *way_key(Arena *a, const Call *c)
{
    Buf b = {.a = a};
    put_op(&b, c->node);
    for (int i = 0; i < c->nin; i++) {
        buf_add(&b, " ");
        put_tensor(&b, &c->in[i]);
    }
    buf_add(&b, " ->");
    for (int k = 0; k < c->nout; k++) {
        buf_add(&b, " ");
        put_tensor(&b, &c->out[k]);
    }
    return b.text;
}

bool node_has_key(const Node *n)
{
    return !n->op->view && !n->op->wait && !op_starts(n->op) && n->op->region != LOOP;
}

const char *node_key(Arena *a, const Node *n)
{
    Buf b = {.a = a};
    if (!node_has_key(n))
        return NULL;
    put_op(&b, n);
    for (int i = 0; i < n->nin; i++) {
        buf_add(&b, " ");
        type_print(&b, &n->in[i]->type);
    }
    buf_add(&b, " ->");
    for (int k = 0; k < n->nout; k++) {
        buf_add(&b, " ");
        type_print(&b, &n->out[k]->type);
    }
    return b.text;
}

/* ---- read ---- */

static uint64_t read_body(Lexer *x)
{
    enum { DIGITS = 16 };
    Token t = x->t;
    lex_need(x, "body");
    lex_need(x, "=");
    Token text = lex_token(x, TOK_STRING, "the hash of a body");
    if (strlen(text.s) != DIGITS || strspn(text.s, "0123456789abcdef") != DIGITS)
        lex_fail(x, &t, "expected the hash of a body, of 16 digits");
    if (!lex_at(x, ")"))
        lex_need(x, ",");
    return strtoull(text.s, NULL, 16);
}

/* Reads the parentheses after the op. */
static Attr *read_attrs(Lexer *x, const Op *op, const Token *at_op, uint64_t *body)
{
    Graph *g = graph_new(x->a, "key");
    g->ctx = arena_ctx(x->a);
    bool open = lex_take(x, "(");
    if (open && op->region != NO_REGION)
        *body = read_body(x);
    Attr *attr = lex_attrs(x, g, op, at_op, open);
    if (open)
        lex_need(x, ")");
    return attr;
}

static Tensor read_tensor(Lexer *x)
{
    Type type = lex_type(x);
    Tensor t = {.dtype = type.dtype, .rank = type.rank};
    memcpy(t.dim, type.dim, sizeof t.dim);
    tensor_fill_strides(&t);
    Token at = x->t;
    if (!lex_take(x, "@"))
        return t;
    Attr stride = lex_attr(x, ATTR_INTS);
    if (stride.i != t.rank)
        lex_fail(x, &at, "expected %d strides, found %lld", t.rank, (long long)stride.i);
    memcpy(t.stride, stride.ints, sizeof *t.stride * (size_t)t.rank);
    return t;
}

static int read_tensors(Lexer *x, Tensor **list)
{
    int count = 0, cap = 0;
    while (x->t.kind == TOK_WORD)
        PUSH(x->a, *list, count, cap, read_tensor(x));
    return count;
}

uint64_t key_hash(Arena *a, const char *key, const char *title, const Op **op)
{
    Lexer lexer, *x = &lexer;
    lex_start(x, a, key, title);
    Token name = lex_token(x, TOK_WORD, "an op");
    *op = op_find(name.s);
    if (!*op || (*op)->region == LOOP)
        lex_fail(x, &name, "expected an op that kernels run, found \"%.40s\"", name.s);
    uint64_t body = 0;
    Node n = {.op = *op};
    n.attr = read_attrs(x, *op, &name, &body);
    Call c = {.node = &n};
    c.nin = read_tensors(x, &c.in);
    lex_need(x, "->");
    c.nout = read_tensors(x, &c.out);
    if (!c.nout || x->t.kind != TOK_END)
        lex_expected(x, "a type");
    return hash_call(&c, body);
}
