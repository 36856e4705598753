/* token: where the tokens of the batch lie: in each value the axis of its rows and that of a
 * row's tokens, followed from the batch as cuts into single rows and tokens would be. Sequence
 * parallelism cuts norms and residuals there and nowhere else. Linear in the nodes. */
#include "rewrite.h"

#include <string.h>

void token_inputs(SpmdGraph *s)
{
    for (int i = 0; i < s->from->nin; i++) {
        const Port *p = &s->from->in[i];
        const Type *t = &p->v->type;
        if (p->role != ROLE_BATCH || t->rank < 2)
            continue;
        for (int j = 0; j < NTOKEN; j++) {
            s->ntoken[j] = s->ntoken[j] ? s->ntoken[j] : t->dim[j];
            if (t->dim[j] == s->ntoken[j])
                spmd_logical(s, p->v)->token[j] = (Cut){CUT_SLICE, j, 1};
        }
    }
}

void token_body(SpmdGraph *inner, SpmdGraph *outer, const Node *n, int t)
{
    const Region *r = n->region;
    memcpy(inner->ntoken, outer->ntoken, sizeof inner->ntoken);
    for (int k = 0; k < r->nin; k++) {
        const PortIn *p = &r->in[k];
        if (p->arg < 0 || p->at[t] < 0 || p->kind == PORT_STACK)
            continue;
        const Value *v = inner->from->in[p->at[t]].v;
        const LogicalValue from = *spmd_logical(outer, n->in[p->arg]);
        LogicalValue *to = spmd_logical(inner, v);
        memcpy(to->token, from.token, sizeof to->token);
        for (int j = 0; j < NTOKEN; j++) {
            Cut *c = &to->token[j];
            if (c->kind != CUT_SLICE || p->kind != PORT_SLICE || p->axis != c->axis)
                continue;
            c->outer = 1;
            inner->ntoken[j] = v->type.dim[c->axis];
        }
    }
}

void token_leave(SpmdGraph *outer, SpmdGraph *inner, const Node *n, int k, const Value *v)
{
    const PortOut *p = &n->region->out[k];
    for (int j = 0; j < NTOKEN; j++) {
        Cut c = spmd_logical(inner, v)->token[j];
        bool joined = p->kind == PORT_CONCAT && p->axis == c.axis;
        if (c.kind != CUT_SLICE || (joined ? c.outer > 1 : inner->ntoken[j] != outer->ntoken[j]))
            continue;
        c.axis += p->kind == PORT_STACK;
        spmd_logical(outer, n->out[k])->token[j] = c;
    }
}

/* How single rows (j = 0) or tokens would cut n, by the first of its operands that has them. */
static bool token_cut(SpmdGraph *s, const Node *n, const Factors *f, int j, NodeCut *how)
{
    Cut *in = NEWN(s->tmp, Cut, n->nin);
    CutStop stop;
    for (int i = 0; i < n->nin && s->ntoken[j] > 1; i++) {
        Cut c = spmd_logical(s, n->in[i])->token[j];
        if (c.kind != CUT_SLICE)
            continue;
        in[i] = c;
        if (cut_forward(n, f, s->ntoken[j], in, how, &stop))
            return how->kind == NODE_FACTOR;
        in[i] = (Cut){.kind = CUT_WHOLE};
    }
    return false;
}

void token_results(SpmdGraph *s, const Node *n, const Factors *f)
{
    Cut *in = NEWN(s->tmp, Cut, n->nin), *out = NEWN(s->tmp, Cut, n->nout);
    NodeCut how;
    for (int j = 0; j < NTOKEN; j++) {
        if (!token_cut(s, n, f, j, &how))
            continue;
        cut_fill(n, f, &how, in, out);
        for (int k = 0; k < n->nout; k++)
            if (out[k].kind == CUT_SLICE)
                spmd_logical(s, n->out[k])->token[j] = out[k];
    }
}

bool token_factor(SpmdGraph *s, const Node *n, const Factors *f, int k)
{
    NodeCut how;
    for (int j = 0; j < NTOKEN; j++)
        if (token_cut(s, n, f, j, &how) && how.factor == k)
            return true;
    return false;
}
