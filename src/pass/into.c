/* into: adds the later term of a parameter's gradient into the memory of the earlier one, where one
 * gradient is the sum of several, as of a tied embedding and head or of a weight that is used
 * twice:
 *
 *   add(x, embedding_dense_backward(dy, ids))  ->  embedding_dense_backward(dy, ids, x)
 *   add(x, mm(a, b))                           ->  addmm(x, a, b)
 *   add(x, index_put(zeros, v, i))             ->  index_put(x, v, i), which adds; scatter_add
 * alike
 *
 * where x stands before the other term, only the sum reads either, and x's memory is no input's.
 * These ops lay their result over x, so that the later term never has a buffer of its own, which
 * for a tied embedding is as large as the table. A third term is added to the sum of the first two.
 * In a loop over microbatches terms are added within the iteration: what the loop carries is an
 * input of its body.
 *
 * All but tables' gradients must be of parameters: nothing but the optimizer and outputs reads
 * them, through loops, collectives, views and pointwise ops. Those of activations keep the bits
 * that they have. The terms are added in the order of their nodes, and each rank does what one rank
 * with as many rows does, as ranks are in the graph already.
 *
 * Numerics: (x + dy[i]) + dy[j] in place of x + (dy[i] + dy[j]); x + sum in the product's own
 * arithmetic, rounded once. One walk for the readers and one for the sums: linear. */
#include "pass.h"

/* The readers of a graph's values, by value id. */
enum { BY_UPDATE = 1, BY_OTHERS = 2 };

typedef struct Readers {
    int *count; /* operands and outputs that are the value */
    int *by;    /* BY_UPDATE, BY_OTHERS or both */
    int *at;    /* where its node stands; 0: an input */
} Readers;

/* Whether n's result is a gradient of a parameter if an operand is one. */
static bool hands_on(const Node *n)
{
    return node_aliases(n) || n->op->class == CLASS_COLLECTIVE || n->op->class == CLASS_POINTWISE ||
           node_is(n, OP__to_copy);
}

static void read_by_node(const Readers *r, const Node *n)
{
    int by = n->phase > BACKWARD ? BY_UPDATE : BY_OTHERS;
    if (n->phase == BACKWARD && hands_on(n))
        by = r->by[n->out[0]->id];
    for (int i = 0; i < n->nin; i++) {
        r->count[n->in[i]->id]++;
        r->by[n->in[i]->id] |= by;
    }
}

/* by: by output of a body, what reads it around the loop; NULL: of the whole graph. */
static Readers find_readers(const Graph *g, Arena *tmp, const int *by)
{
    int nvalue = g->nvalue, at = 0;
    for (const Node *n = g->first; n; n = n->next)
        nvalue += node_is(n, OP_add); /* what replaces a sum is a new value */
    Readers r = {NEWN(tmp, int, nvalue), NEWN(tmp, int, nvalue), NEWN(tmp, int, nvalue)};
    for (int i = 0; i < g->nout; i++) {
        Role role = g->out[i].role;
        int whole = role == ROLE_GRAD || role == ROLE_NONE ? BY_UPDATE : BY_OTHERS;
        r.count[g->out[i].v->id]++;
        r.by[g->out[i].v->id] |= by ? by[i] : whole;
    }
    for (const Node *n = g->last; n; n = n->prev)
        read_by_node(&r, n);
    for (const Node *n = g->first; n; n = n->next) {
        at++;
        for (int k = 0; k < n->nout; k++)
            r.at[n->out[k]->id] = at;
    }
    return r;
}

/* The same by output of a loop's body. */
static int *body_readers(Arena *tmp, const Readers *r, const Node *n, int b)
{
    int *by = NEWN(tmp, int, n->region->body[b]->nout);
    for (int k = 0; k < n->region->nout; k++)
        if (n->region->out[k].at[b] >= 0)
            by[n->region->out[k].at[b]] |= r->by[n->out[k]->id];
    return by;
}

/* Whether a result may lie in v's memory: a node of this graph made that, and it is read but
 * once. */
static bool is_free(const Readers *r, const Value *v)
{
    while (r->count[v->id] == 1 && v->def && node_aliases(v->def))
        v = v->def->in[0];
    return r->count[v->id] == 1 && v->def;
}

/* An op that can add to a base, and the op that does. */
typedef struct Adder {
    const OpId *from, *to;
    int at;        /* the base's operand */
    bool to_zeros; /* `from` has zeros there */
    bool any;      /* whatever the gradient is of */
} Adder;

extern const OpId OP_embedding_dense_backward, OP_mm, OP_addmm, OP_index_put, OP_scatter_add;
static const Adder adders[] = {
    {.from = &OP_embedding_dense_backward,
     .to = &OP_embedding_dense_backward,
     .at = 2,
     .any = true},
    {.from = &OP_mm, .to = &OP_addmm}, /* of the same attributes */
    {.from = &OP_index_put, .to = &OP_index_put, .to_zeros = true},
    {.from = &OP_scatter_add, .to = &OP_scatter_add, .to_zeros = true},
};

/* Whether n has no base yet, but can have one. */
static bool may_add(const Node *n, const Adder *x)
{
    if (!node_of(n, x->from))
        return false;
    if (node_is(n, OP_index_put) && !n->attr[attr_index(n->op, "accumulate")].i)
        return false;
    if (x->to_zeros)
        return node_is_full(n->in[x->at]->def, 0);
    return x->from != x->to || n->nin == x->at || !n->in[x->at]->type.rank; /* i64[]: a part */
}

/* How n can add its result to a base, of which y is then the sum; NULL: it cannot. */
static const Adder *find_adder(const Readers *r, const Node *n, const Value *y)
{
    if (!n || n->phase != BACKWARD || n->nafter || r->count[n->out[0]->id] != 1)
        return NULL;
    for (int k = 0; k < LEN(adders); k++)
        if (may_add(n, &adders[k]) && (adders[k].any || r->by[y->id] == BY_UPDATE))
            return &adders[k];
    return NULL;
}

/* A sum of a base and a node's result, which stands after it. */
typedef struct Sum {
    Node *term; /* NULL: it is none */
    Value *base;
    const Adder *adder;
} Sum;

static Sum find_sum(const Readers *r, const Node *n)
{
    if (!node_is(n, OP_add) || n->phase != BACKWARD || n->nafter)
        return (Sum){0};
    const Value *y = n->out[0];
    int later = r->at[n->in[1]->id] > r->at[n->in[0]->id];
    Sum s = {n->in[later]->def, n->in[!later], find_adder(r, n->in[later]->def, y)};
    bool fits = s.adder && type_equal(&n->in[0]->type, &y->type) &&
                type_equal(&n->in[1]->type, &y->type) && is_free(r, s.base);
    return fits ? s : (Sum){0};
}

/* The term added to the base, in the term's place. */
static Value *add_into(Graph *g, Arena *tmp, const Sum *s)
{
    const Node *n = s->term;
    int nin = 0, at = s->adder->at, more = !s->adder->to_zeros;
    Value **in = NEWN(tmp, Value *, n->nin + 1);
    for (int i = 0; i < n->nin + more; i++)
        in[nin++] = i == at ? s->base : n->in[i > at ? i - more : i];
    Build b = build_like(g, n->next, n);
    const char *name = graph_fresh(g, n->out[0]->name);
    return emit_named(&b, &op_table[s->adder->to->row], nin, in, n->attr, NULL, -1, &name, 1)
        ->out[0];
}

static int into(Graph *g, Arena *tmp, const int *by)
{
    int changes = 0;
    Readers r = find_readers(g, tmp, by);
    Replace replace = replace_start(g, tmp);
    EACH_NODE(n, g) {
        replace_operands(&replace, n);
        EACH_LOOP_BODY(b, n)
            changes += into(n->region->body[b], tmp, body_readers(tmp, &r, n, b));
        Sum s = find_sum(&r, n);
        if (!s.term)
            continue;
        Value *y = add_into(g, tmp, &s), *sum = n->out[0];
        r.count[y->id] = r.count[sum->id];
        r.by[y->id] = r.by[sum->id];
        r.at[y->id] = r.at[s.term->out[0]->id];
        replace_with(&replace, n, 0, y);
        replace_with(&replace, s.term, 0, y);
        node_unlink(g, n);
        node_unlink(g, s.term);
        value_rename(g, y, sum->name);
        changes++;
    }
    replace_outputs(&replace, g);
    return changes;
}

int pass_into(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)o;
    return into(g, tmp, NULL);
}
