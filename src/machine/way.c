/* Ways: which of its op's kernels runs a call, where that is not the first that accepts it. First
 * what a file says of exactly this call, then the rows WAY of machine.def. A way is a function of
 * op, attributes, dtypes, shapes, strides and threads.
 *
 * Calls and nodes have keys: texts in files (docs/formats.md), in memory hashes of what these say,
 * so that a question writes no text. Of 64 bits, for some thousands of keys: none are taken for
 * others. A node's key is that of a call whose tensors are all row-major. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is known, by hash ---- */

static int slot_of(const MeasuredList *x, uint64_t hash)
{
    int i = (int)(hash & (uint64_t)(x->nslot - 1));
    while (x->slot[i] && x->row[x->slot[i] - 1].hash != hash)
        i = (i + 1) & (x->nslot - 1);
    return i;
}

static Measured *measured_find(const MeasuredList *x, uint64_t hash)
{
    int row = x->nslot ? x->slot[slot_of(x, hash)] : 0;
    return row ? &x->row[row - 1] : NULL;
}

static void measured_grow(Arena *a, MeasuredList *x)
{
    x->nslot = MAX(64, 4 * x->count);
    while (x->nslot & (x->nslot - 1)) /* up to a power of two */
        x->nslot += x->nslot & -x->nslot;
    x->slot = NEWN(a, int, x->nslot);
    for (int i = 0; i < x->count; i++)
        x->slot[slot_of(x, x->row[i].hash)] = i + 1;
}

/* The row of that hash, made if there is none. */
static Measured *measured_put(Arena *a, MeasuredList *x, uint64_t hash)
{
    Measured *row = measured_find(x, hash);
    if (row)
        return row;
    PUSH(a, x->row, x->count, x->cap, (Measured){.hash = hash});
    if (2 * x->count > x->nslot)
        measured_grow(a, x);
    else
        x->slot[slot_of(x, hash)] = x->count;
    return &x->row[x->count - 1];
}

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

/* Of a value in a body: which of its inputs, or which result of which of its nodes. */
static uint64_t hash_value(const Graph *body, const Value *v, uint64_t h)
{
    int64_t at = -1;
    if (v->def)
        for (const Node *n = body->first; n && n != v->def; n = n->next)
            at++;
    return hash_int(v->index, hash_int(v->def ? at + 1 : -1, h));
}

/* What a body computes, whatever its values are called: it stands in files. */
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
    return hash_int(nout, hash_int(nin, hash_int(op->id, body)));
}

static uint64_t body_of(const Node *n)
{
    return n->region ? hash_body(n->region->body[MAIN]) : 0;
}

static uint64_t call_hash(const Call *c, uint64_t body)
{
    uint64_t h = hash_attrs(c->node, start_hash(c->node->op, body, c->nin, c->nout));
    for (int i = 0; i < c->nin; i++)
        h = hash_tensor(&c->in[i], h);
    for (int k = 0; k < c->nout; k++)
        h = hash_tensor(&c->out[k], h);
    return h;
}

static uint64_t node_hash(const Node *n)
{
    uint64_t h = hash_attrs(n, start_hash(n->op, body_of(n), n->nin, n->nout));
    for (int i = 0; i < n->nin; i++)
        h = hash_type(&n->in[i]->type, h);
    for (int k = 0; k < n->nout; k++)
        h = hash_type(&n->out[k]->type, h);
    return h;
}

/* ---- keys: mm bf16[64, 768] bf16[768, 3072]@[1, 768] -> bf16[64, 3072] ---- */

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

/* Whether a node's seconds may be known by its key. */
static bool has_key(const Node *n)
{
    return !n->op->view && !n->op->wait && !op_starts(n->op) && n->op->region != LOOP;
}

const char *node_key(Arena *a, const Node *n)
{
    Buf b = {.a = a};
    if (!has_key(n))
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

/* ---- keys, read ---- */

static uint64_t read_body(Lexer *x)
{
    char *end;
    Token t = x->t;
    lex_need(x, "body");
    lex_need(x, "=");
    Token text = lex_token(x, TOK_STRING, "the hash of a body");
    unsigned long long h = strtoull(text.s, &end, 16);
    if (strlen(text.s) != 16 || *end)
        lex_fail(x, &t, "expected the hash of a body, of 16 digits");
    if (!lex_at(x, ")"))
        lex_need(x, ",");
    return h;
}

/* What stands between parentheses behind the op: the attributes' text, which is read as a .tn's. */
static Attr *read_attrs(Lexer *x, const Op *op, uint64_t *body)
{
    Graph *g = graph_new(x->a, "key");
    g->ctx = arena_ctx(x->a);
    const char *from = x->at;
    if (!lex_take(x, "("))
        return attrs_make(g, op, NULL);
    if (op->region != NO_REGION)
        *body = read_body(x);
    from = x->t.begin;
    while (x->t.kind != TOK_END && !lex_at(x, ")"))
        lex_next(x);
    Attr *attr = attrs_parse(g, op, arena_strndup(x->a, from, (size_t)(x->t.begin - from)));
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

/* Of the whole text; *op is its op. Fails where it is none. title: for messages. */
static uint64_t key_hash(Arena *a, const char *key, const char *title, const Op **op)
{
    Lexer lexer, *x = &lexer;
    lex_start(x, a, key, title);
    Token name = lex_token(x, TOK_WORD, "an op");
    *op = op_find(name.s);
    if (!*op || (*op)->region == LOOP)
        lex_fail(x, &name, "expected an op that kernels run, found \"%.40s\"", name.s);
    uint64_t body = 0;
    Node n = {.op = *op};
    n.attr = read_attrs(x, *op, &body);
    Call c = {.node = &n};
    c.nin = read_tensors(x, &c.in);
    lex_need(x, "->");
    c.nout = read_tensors(x, &c.out);
    if (x->t.kind != TOK_END)
        lex_expected(x, "a type");
    return call_hash(&c, body);
}

/* ---- what a file says ---- */

/* A GPU's kernels are not known to a program without them. */
static bool has_kernel(const Machine *m, const Op *op, const char *name)
{
    static const KernelSet sets[] = {KERNELS_CPU, KERNELS_CUDA};
    for (int s = 0; s < LEN(sets); s++)
        for (const Kernel *k = op_kernels(op, sets[s]); k && k->name; k++)
            if (!strcmp(k->name, name))
                return true;
    return m->gpu && !kernels_linked(KERNELS_CUDA);
}

bool machine_put_way(Machine *m, const char *key, const char *kernel, const char *title)
{
    const Op *op;
    uint64_t hash = key_hash(m->a, key, title, &op);
    if (!has_kernel(m, op, kernel))
        fail(arena_ctx(m->a), TN_FAIL, "%s: expected a kernel of %s, found \"%.40s\"", title,
             op->name, kernel);
    Measured *row = measured_put(m->a, &m->way, hash);
    bool again = row->key;
    row->key = arena_strdup(m->a, key);
    row->kernel = arena_strdup(m->a, kernel);
    return !again;
}

bool machine_put_sec(Machine *m, const char *key, double sec, const char *title)
{
    const Op *op;
    Measured *row = measured_put(m->a, &m->known, key_hash(m->a, key, title, &op));
    bool again = row->key;
    row->key = arena_strdup(m->a, key);
    row->sec = sec;
    return !again;
}

static void measured_here(Machine *m)
{
    m->nthread = m->nthread ? m->nthread : m->cores;
    m->library = m->library ? m->library : machine_library(m->a);
}

void machine_set_ways_for(Machine *m, int nthread, const char *library)
{
    m->nthread = nthread;
    m->library = arena_strdup(m->a, library);
}

void machine_set_way(Machine *m, const char *key, const char *kernel)
{
    measured_here(m);
    machine_put_way(m, key, kernel, "a way");
}

void machine_set_sec(Machine *m, const char *key, double sec)
{
    CHECK(sec >= SEC_LEAST && sec <= SEC_MOST);
    measured_here(m);
    machine_put_sec(m, key, sec, "seconds");
}

static const Measured *find_key(const MeasuredList *x, const char *key)
{
    for (int i = 0; i < x->count; i++)
        if (!strcmp(x->row[i].key, key))
            return &x->row[i];
    return NULL;
}

const char *machine_known_way(const Machine *m, const char *key)
{
    const Measured *row = find_key(&m->way, key);
    return row ? row->kernel : NULL;
}

double machine_known_sec(const Machine *m, const char *key)
{
    const Measured *row = find_key(&m->known, key);
    return row ? row->sec : -1;
}

void machine_check_ways(const Machine *m, int nthread, const char *file)
{
    const char *here = machine_library(m->a);
    if (m->library && strcmp(m->library, here) != 0)
        fail(arena_ctx(m->a), TN_FAIL,
             "%s: expected what was measured with %s, which this program uses, found %s", file,
             here, m->library);
    if (m->nthread && !m->gpu && m->nthread != nthread)
        fail(arena_ctx(m->a), TN_FAIL,
             "%s: expected what was measured with %d thread%s, found %d; give --threads %d, or "
             "measure again (tenon tune)",
             file, nthread, nthread > 1 ? "s" : "", m->nthread, m->nthread);
}

static MeasuredList measured_copy(Arena *a, const MeasuredList *from)
{
    MeasuredList x = {0};
    for (int i = 0; i < from->count; i++) {
        const Measured *r = &from->row[i];
        *measured_put(a, &x, r->hash) =
            (Measured){r->hash, arena_strdup(a, r->key),
                       r->kernel ? arena_strdup(a, r->kernel) : NULL, r->sec};
    }
    return x;
}

Machine *machine_copy(Arena *a, const Machine *m)
{
    Machine *x = NEW(a, Machine);
    *x = *m;
    x->a = a;
    x->name = arena_strdup(a, m->name);
    x->like = arena_strdup(a, m->like);
    x->library = m->library ? arena_strdup(a, m->library) : NULL;
    x->way = measured_copy(a, &m->way);
    x->known = measured_copy(a, &m->known);
    return x;
}

/* Whether what was measured holds for the threads in use. */
static bool holds(const Machine *m)
{
    return !m->nthread || m->nthread == m->cores;
}

uint64_t machine_hash_known(const Machine *m, uint64_t h)
{
    uint64_t sum = 0; /* whatever the order of lines */
    if (!holds(m) || !(m->way.count + m->known.count))
        return h;
    for (int i = 0; i < m->way.count; i++)
        sum += hash_text(m->way.row[i].kernel, m->way.row[i].hash);
    for (int i = 0; i < m->known.count; i++)
        sum += hash_bytes(&m->known.row[i].sec, sizeof(double), m->known.row[i].hash);
    return hash_bytes(&sum, sizeof sum, h);
}

const char *machine_call_way(const Machine *m, const Call *c)
{
    const Measured *row =
        m->way.count && holds(m) ? measured_find(&m->way, call_hash(c, body_of(c->node))) : NULL;
    return row ? row->kernel : NULL;
}

double machine_node_sec(const Machine *m, const Node *n)
{
    const Measured *row =
        m->known.count && holds(m) && has_key(n) ? measured_find(&m->known, node_hash(n)) : NULL;
    return row ? row->sec : 0;
}

double machine_call_sec(const Machine *m, const Call *c)
{
    const Measured *row = m->known.count && holds(m)
                              ? measured_find(&m->known, call_hash(c, body_of(c->node)))
                              : NULL;
    return row ? row->sec : 0;
}

/* ---- rows WAY ---- */

/* Sides of a product or of what lies likewise, of the last axes of its first factor or operand x
 * and its first result y: rows and columns of y, columns of x, matrices of y. */
typedef struct Sides {
    DType dtype;
    int64_t m, n, k, b;
} Sides;

static Sides sides_of(const Call *c)
{
    const Tensor *y = &c->out[0],
                 *x = c->node->op->class == CLASS_PRODUCT ? &c->in[c->nin - 2] : &c->in[0];
    Sides s = {.dtype = x->dtype, .m = 1, .n = 1, .k = 1, .b = 1};
    s.k = x->rank ? x->dim[x->rank - 1] : 1;
    for (int d = 0; d < y->rank; d++)
        *(d == y->rank - 1 ? &s.n : d == y->rank - 2 ? &s.m : &s.b) *= y->dim[d];
    return s;
}

/* n: rows lie one behind the other, perhaps with gaps; t: columns do; s: neither. */
static char layout_of(const Tensor *t)
{
    int r = t->rank;
    return r < 1 || t->dim[r - 1] == 1 || t->stride[r - 1] == 1     ? 'n'
           : r < 2 || (t->dim[r - 2] != 1 && t->stride[r - 2] != 1) ? 's'
                                                                    : 't';
}

/* layouts: a letter for each of the last operands, "." for any. */
static bool lies(const Call *c, const char *layouts)
{
    int count = (int)strlen(layouts), first = c->nin - count;
    for (int i = 0; i < count; i++)
        if (first + i >= 0 && layouts[i] != '.' && layouts[i] != layout_of(&c->in[first + i]))
            return false;
    return true;
}

static const Kernel *kernel_named(const Kernel *list, const char *name, const Call *c)
{
    for (const Kernel *k = list; k->name; k++)
        if (!strcmp(k->name, name))
            return kernel_takes(k, c) ? k : NULL;
    return NULL;
}

typedef struct Way {
    const char *processor;
    int op;
    DType dtype;
    const char *layouts, *kernel;
} Way;

static const Way ways[] = {
#define WAY(processor, op, dtype, layouts, when, kernel) \
    {#processor, OP_##op, dtype, layouts, kernel},
#include "machine.def"
    {0}};

static const Kernel *shipped_way(const Machine *machine, const Call *c, const Kernel *list)
{
    const Sides s = sides_of(c);
    const int64_t m = s.m, n = s.n, k = s.k, b = s.b;
    const int threads = machine->cores;
    const bool holds_here[] = {
#define WAY(processor, op, dtype, layouts, when, kernel) (when),
#include "machine.def"
        false};
    (void)threads, (void)m, (void)n, (void)k, (void)b; /* perhaps no row asks for one */
    for (int i = 0; ways[i].kernel; i++) {
        const Way *w = &ways[i];
        if (holds_here[i] && c->node->op->id == w->op && s.dtype == w->dtype &&
            !strcmp(machine->like, w->processor) && lies(c, w->layouts)) {
            const Kernel *found = kernel_named(list, w->kernel, c);
            if (found)
                return found;
        }
    }
    return NULL;
}

const Kernel *machine_way(const Machine *m, const Call *c, const Kernel *list)
{
    if (!list || !list[0].name || !list[1].name || !c->nin || !c->nout)
        return NULL; /* there is no choice */
    const char *known = machine_call_way(m, c);
    return known ? kernel_named(list, known, c) : shipped_way(m, c, list);
}
