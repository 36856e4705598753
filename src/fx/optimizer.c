/* Which nodes of a graph are the optimizer's arithmetic.
 *
 * An update is an output that is the new value of an input: one written in place, or one of the
 * input's type that is the input plus or minus what depends on the tangent, either of them scaled
 * by what does not (w - lr * g; 0.9 * m + 0.1 * g). A candidate is a pointwise op, a view, a
 * constant, or anything of one element (a norm), all whose readers are candidates and all whose
 * outputs are updates. Of the candidates that depend on the tangent those stay that have an operand
 * which is made of nothing but constants, scalars and updated inputs, or an operand that stays, or
 * that read one value twice; so sums of a parameter's gradients, reshapes and casts of them remain
 * backward. Candidates that do not depend on the tangent (powers of beta) stay where all their
 * readers do. What reads a node that stays is a candidate and stays, so that no phase is before
 * that of an operand. Linear in the operands but for a visit of each updated input. */
#include "fx.h"

#include <string.h>

/* How a value has an input in it: by sums and products with what is not late, and one of the sums
 * with a late value or not. */
typedef enum { ABSENT, SCALED, CHANGED } Part;

/* What is known of values, by id. */
typedef struct Facts {
    const Graph *g;
    const bool *late; /* depends on the tangent */
    bool *own;        /* made of constants, scalars and updated inputs alone */
    bool *held;       /* an output that is no update, or read by no candidate */
    bool *used;
    bool *update;    /* an output that is one */
    bool *renewed;   /* an input that has one */
    Part *part;      /* of the input at hand */
    bool *candidate; /* by node id */
} Facts;

/* ---- updates ---- */

static bool is_sum(const Node *n)
{
    return node_is(n, "add") || node_is(n, "sub");
}

static bool is_same(const Node *n)
{
    return n->op->view || node_is(n, "clone") || node_is(n, "_to_copy");
}

/* How n's result has the input in it, as its operands do. */
static Part part_of(const Facts *x, const Node *n)
{
    Part most = ABSENT;
    bool scaled = true, moved = false;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        most = MAX(most, x->part[v->id]);
        moved |= !x->part[v->id] && x->late[v->id];
        scaled &= x->part[v->id] || !x->late[v->id];
    }
    if (is_same(n))
        return most;
    if (is_sum(n))
        return most && moved ? CHANGED : most;
    bool product = node_is(n, "mul") || (node_is(n, "div") && x->part[n->in[0]->id]);
    return product && scaled ? most : ABSENT;
}

/* Marks the updates of one input. */
static void find_updates(Facts *x, const Value *in)
{
    const Graph *g = x->g;
    memset(x->part, 0, sizeof *x->part * (size_t)g->nvalue);
    x->part[in->id] = SCALED;
    for (const Node *n = g->first; n; n = n->next)
        x->part[n->out[0]->id] = n->nout == 1 ? part_of(x, n) : ABSENT;
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        const Value *v = p->v;
        bool update = p->role == ROLE_NEW
                          ? !strcmp(p->name, in->name)
                          : x->part[v->id] == CHANGED && type_equal(&v->type, &in->type);
        x->update[v->id] |= update;
        x->renewed[in->id] |= update;
    }
}

/* ---- candidates ---- */

static bool may_be(const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (!n->op->elementwise && !n->op->view && !is_same(n) && n->nin &&
            type_nelem(&n->out[k]->type) != 1)
            return false;
    return !n->op->random;
}

static void find_candidates(Facts *x)
{
    for (int i = 0; i < x->g->nout; i++) {
        x->used[x->g->out[i].v->id] = true;
        x->held[x->g->out[i].v->id] |= !x->update[x->g->out[i].v->id];
    }
    for (const Node *n = x->g->last; n; n = n->prev) {
        bool used = false, held = !may_be(n);
        for (int k = 0; k < n->nout; k++) {
            used |= x->used[n->out[k]->id];
            held |= x->held[n->out[k]->id];
        }
        x->candidate[n->id] = used && !held;
        for (int i = 0; i < n->nin; i++) {
            x->used[n->in[i]->id] = true;
            x->held[n->in[i]->id] |= !x->candidate[n->id];
        }
    }
}

/* ---- what stays ---- */

static bool reads_twice(const Node *n)
{
    return n->nin == 2 && n->in[0] == n->in[1];
}

static bool is_late(const Facts *x, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (x->late[n->out[k]->id])
            return true;
    return false;
}

static void keep_late(Facts *x)
{
    for (Node *n = x->g->first; n; n = n->next) {
        bool own = !n->op->random, stays = reads_twice(n);
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            own &= x->own[v->id];
            stays |= x->own[v->id] || (v->def && v->def->phase == OPTIMIZER);
        }
        for (int k = 0; k < n->nout; k++)
            x->own[n->out[k]->id] = own && !is_late(x, n);
        if (x->candidate[n->id] && is_late(x, n) && stays)
            n->phase = OPTIMIZER;
    }
}

/* Those that do not depend on the tangent, from the end: all that read them are the optimizer's. */
static void keep_early(Facts *x)
{
    bool *early = NEWN(x->g->a, bool, x->g->nvalue);
    for (int i = 0; i < x->g->nout; i++)
        early[x->g->out[i].v->id] = !x->update[x->g->out[i].v->id];
    for (Node *n = x->g->last; n; n = n->prev) {
        bool stays = x->candidate[n->id];
        for (int k = 0; k < n->nout; k++)
            stays &= !early[n->out[k]->id] && x->own[n->out[k]->id];
        if (stays)
            n->phase = OPTIMIZER;
        for (int i = 0; n->phase != OPTIMIZER && i < n->nin; i++)
            early[n->in[i]->id] = true;
    }
}

void fx_find_optimizer(Importer *im, const bool *late)
{
    Graph *g = im->g;
    Facts x = {.g = g, .late = late};
    bool **of_value[] = {&x.own, &x.held, &x.used, &x.update, &x.renewed};
    for (int i = 0; i < LEN(of_value); i++)
        *of_value[i] = NEWN(im->a, bool, g->nvalue);
    x.part = NEWN(im->a, Part, g->nvalue);
    x.candidate = NEWN(im->a, bool, g->nnode);
    bool any = false;
    for (int i = 0; i < g->nin; i++) {
        const Value *in = g->in[i].v;
        find_updates(&x, in);
        any |= x.renewed[in->id];
        x.own[in->id] = !late[in->id] && (x.renewed[in->id] || type_nelem(&in->type) == 1);
    }
    if (!any)
        return;
    find_candidates(&x);
    keep_late(&x);
    keep_early(&x);
}
