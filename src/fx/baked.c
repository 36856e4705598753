/* Refuses traces in which a backward reads constants in the place of what the forward computed.
 * make_fx with pre_dispatch=True runs autograd on tensors that its tracer does not see: where a
 * gradient is taken inside of the traced function, a result that autograd saved (of tanh, exp, a
 * norm) is a constant of the trace, `self._tensor_constant0`, with the values of the traced step.
 * Such a graph is right for that step's inputs alone, and a gradient penalty has no gradient
 * through it.
 *
 * A constant is taken for one where only nodes read it that depend on ones made like a computed
 * scalar (or lead to such alone), and a node before them has made a value of its type. Constants of
 * the user's code pass through lift_fresh. Linear, times constants. */
#include "fx.h"

#include <string.h>

/* Whether a call of lift_fresh, or lift_fresh_copy, reads the name. */
static bool is_lifted(const FxModule *m, const char *name)
{
    for (int i = 0; i < m->nstatement; i++) {
        const Expr *e = m->statement[i].value;
        for (int k = 0; e && e->kind == EX_CALL && strstr(e->s, ".lift") && k < e->count; k++)
            if (e->item[k]->s && !strcmp(e->item[k]->s, name))
                return true;
    }
    return false;
}

/* By node id: the node depends on ones that are made like a computed scalar, or it is made of
 * constants alone and only such nodes use what it makes. */
static bool *find_late(const Importer *im)
{
    const Graph *g = im->g;
    bool *value = NEWN(im->a, bool, g->nvalue), *late = NEWN(im->a, bool, g->nnode);
    bool *early = NEWN(im->a, bool, g->nvalue), *used = NEWN(im->a, bool, g->nvalue);
    bool *constant = NEWN(im->a, bool, g->nvalue);
    for (int i = 0; i < g->nin; i++)
        constant[g->in[i].v->id] = g->in[i].role == ROLE_CONST;
    for (int i = 0; i < im->gradients.ntangent; i++) {
        const Tangent *t = &im->gradients.tangent[i];
        if (t->like && t->like->def && type_nelem(&t->like->type) == 1 &&
            dtype_float(t->like->type.dtype))
            value[t->ones->id] = true;
    }
    for (const Node *n = g->first; n; n = n->next) {
        bool plain = true;
        for (int i = 0; i < n->nin; i++) {
            late[n->id] |= value[n->in[i]->id];
            plain &= constant[n->in[i]->id];
        }
        for (int k = 0; k < n->nout; k++) {
            value[n->out[k]->id] |= late[n->id];
            constant[n->out[k]->id] = plain;
        }
    }
    for (int i = 0; i < g->nout; i++)
        early[g->out[i].v->id] = true;
    for (const Node *n = g->last; n; n = n->prev) {
        bool leads = true, any = false;
        for (int k = 0; k < n->nout; k++) {
            leads &= constant[n->out[k]->id] && !early[n->out[k]->id];
            any |= used[n->out[k]->id];
        }
        late[n->id] |= leads && any;
        for (int i = 0; i < n->nin; i++) {
            used[n->in[i]->id] = true;
            early[n->in[i]->id] |= !late[n->id];
        }
    }
    return late;
}

/* The first reader of a value, where all its readers are late; else NULL. */
static const Node *only_late(const Graph *g, const bool *late, const Value *v)
{
    const Node *first = NULL;
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++) {
            if (n->in[i] != v)
                continue;
            if (!late[n->id])
                return NULL;
            first = first ? first : n;
        }
    return first;
}

/* A value of that type which a node before n makes that is not late; NULL: there is none. */
static const Value *made_before(const Graph *g, const bool *late, const Node *n, const Type *t)
{
    for (const Node *at = g->first; at && at != n; at = at->next)
        for (int k = 0; k < at->nout && !late[at->id] && at->nin; k++)
            if (type_equal(&at->out[k]->type, t))
                return at->out[k];
    return NULL;
}

void fx_check_baked(Importer *im)
{
    static const char traced[] = "_tensor_constant";
    const Graph *g = im->g;
    const bool *late = NULL;
    for (int i = 0; i < g->nin && im->gradients.ntangent; i++) {
        const Port *p = &g->in[i];
        if (p->role != ROLE_CONST || strncmp(p->v->name, traced, LEN(traced) - 1) != 0 ||
            !dtype_float(p->v->type.dtype) || is_lifted(im->m, p->v->name))
            continue;
        late = late ? late : find_late(im);
        const Node *reader = only_late(g, late, p->v);
        const Value *like = reader ? made_before(g, late, reader, &p->v->type) : NULL;
        if (like)
            fail(g->ctx, TN_FAIL,
                 "%s:%d:%d: a gradient reads the constant self.%s, where autograd saved a result "
                 "such as %%%s: a trace made before dispatch has its value of the traced step"
                 "\n  make_fx without pre_dispatch=True, or torch.func.grad in the place of "
                 "torch.autograd.grad, traces what is computed",
                 im->m->file, reader->line, reader->column, p->v->name, like->name);
    }
}

void fx_check_saved(Importer *im)
{
    const Graph *g = im->g;
    const bool *late = im->gradients.ntangent ? find_late(im) : NULL;
    for (const Node *n = g->first; n && late; n = n->next)
        for (int i = 0; i < n->nin && late[n->id] && !node_is(n, OP_detach); i++) {
            const Node *from = n->in[i]->def;
            if (from && node_is(from, OP_detach) && from->in[0]->def)
                fail(g->ctx, TN_FAIL,
                     "%s:%d:%d: a gradient inside of the forward reads %%%s, which may be a result "
                     "that autograd saved, and a gradient passes, or one that the code detaches"
                     "\n  torch.func.grad in the place of torch.autograd.grad traces it without "
                     "detach",
                     im->m->file, n->line, n->column, from->out[0]->name);
        }
}
