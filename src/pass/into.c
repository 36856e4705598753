/* into: adds the later term of a parameter's gradient into the memory of the earlier one, where one
 * gradient is the sum of several, as of a tied embedding and head or of a weight that is used
 * twice:
 *
 *   add(x, embedding_dense_backward(dy, ids))  ->  embedding_dense_backward(dy, ids, x)
 *   add(x, mm(a, b))                           ->  addmm(x, a, b)
 *
 * where x stands before the other term, only the sum reads either, and x's memory is no input's.
 * Both ops lay their result over x, so that the later term never has a buffer of its own: of a tied
 * embedding one as large as the table. Of three terms the third is added to the sum of the first
 * two. In a loop over microbatches terms are added within the iteration: what the loop carries is
 * an input of its body.
 *
 * A product is taken for gradients of parameters alone, which nothing but the optimizer, loops,
 * collectives and outputs reads: those of activations keep the bits that they have. The terms are
 * added in the order of their nodes, and each rank does what one rank with as many rows does, as
 * ranks are in the graph already.
 *
 * Numerics: (x + dy[i]) + dy[j] in place of x + (dy[i] + dy[j]); x + sum in the product's own
 * arithmetic, rounded once. One walk for the readers and one for the sums: linear. */
#include "pass.h"

/* What reads the values of a graph, by value id. */
enum { BY_UPDATE = 1, BY_OTHERS = 2 };

typedef struct Readers {
    int *count; /* operands and outputs that are the value */
    int *by;    /* BY_UPDATE, BY_OTHERS or both */
    int *at;    /* where its node stands; 0: an input */
} Readers;

/* Whether n's result is a gradient of a parameter if an operand is one. */
static bool hands_on(const Node *n)
{
    return node_aliases(n) || n->op->class == CLASS_COLLECTIVE || node_is(n, OP_add) ||
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

/* Whether n can add its result to a base, of which y is then the sum. */
static bool takes_base(const Readers *r, const Node *n, const Value *y)
{
    if (!n || n->phase != BACKWARD || n->nafter || r->count[n->out[0]->id] != 1)
        return false;
    if (node_is(n, OP_mm))
        return r->by[y->id] == BY_UPDATE;
    return node_is(n, OP_embedding_dense_backward) && (n->nin == 2 || !n->in[2]->type.rank);
}

/* The node whose result the sum n adds to *base, which stands before it; NULL: there is none. */
static Node *later_term(const Readers *r, const Node *n, Value **base)
{
    if (!node_is(n, OP_add) || n->phase != BACKWARD || n->nafter)
        return NULL;
    int later = r->at[n->in[1]->id] > r->at[n->in[0]->id];
    Value *y = n->in[later];
    *base = n->in[!later];
    bool fits = type_equal(&y->type, &n->out[0]->type) &&
                type_equal(&(*base)->type, &n->out[0]->type) && is_free(r, *base);
    return fits && takes_base(r, y->def, n->out[0]) ? y->def : NULL;
}

/* The term added to the base, in the term's place. mm and addmm have the same attributes. */
static Value *add_into(Graph *g, const Node *term, Value *base)
{
    bool product = node_is(term, OP_mm);
    Value *in[4] = {product ? base : term->in[0], term->in[product ? 0 : 1],
                    product ? term->in[1] : base, term->nin > 2 ? term->in[2] : NULL};
    Build b = build_like(g, term->next, term);
    const char *name = graph_fresh(g, term->out[0]->name);
    const Op *op = product ? op_get(g->ctx, "addmm") : term->op;
    return emit_named(&b, op, term->nin + 1, in, term->attr, NULL, -1, &name, 1)->out[0];
}

static int into(Graph *g, Arena *tmp, const int *by)
{
    int changes = 0;
    Readers r = find_readers(g, tmp, by);
    Replace replace = replace_start(g, tmp);
    EACH_NODE(n, g) {
        Value *base;
        replace_operands(&replace, n);
        EACH_LOOP_BODY(b, n)
            changes += into(n->region->body[b], tmp, body_readers(tmp, &r, n, b));
        Node *term = later_term(&r, n, &base);
        if (!term)
            continue;
        Value *y = add_into(g, term, base), *sum = n->out[0];
        r.count[y->id] = r.count[sum->id];
        r.by[y->id] = r.by[sum->id];
        r.at[y->id] = r.at[term->out[0]->id];
        replace_with(&replace, n, 0, y);
        replace_with(&replace, term, 0, y);
        node_unlink(g, n);
        node_unlink(g, term);
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
