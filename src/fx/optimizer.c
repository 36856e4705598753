/* Finds the nodes of an imported graph that are the optimizer's arithmetic.
 *
 * An update is an output that is the new value of an input: one written in place, or one of the
 * input's type that is the input plus or minus something that depends on the tangent, either scaled
 * by something that does not (w - lr * g; 0.9 * m + 0.1 * g). A candidate is a pointwise op, a
 * view, a constant, or any node of one element (a norm), if all its readers are candidates and all
 * its outputs are updates. A candidate that depends on the tangent is chosen if it has an operand
 * computed from constants, scalars and updated inputs alone, or an operand that is chosen, or reads
 * one value twice; so sums of a parameter's gradients, their reshapes and casts remain backward. A
 * candidate that does not depend on the tangent (a power of beta) is chosen if all its readers are.
 * Every reader of a chosen node is a candidate and chosen, so no phase precedes that of an operand.
 *
 * The inputs from which a value is computed form a set: one input, or the union of two earlier
 * sets. So one walk of the graph finds the sets of all values, and two walks of the sets for each
 * type of a result find the members of that type. Everything else is linear too. */
#include "fx.h"

#include <string.h>

/* An input (in), or the union of two earlier sets; 0 is the empty one. */
typedef struct InputSet {
    const Value *in;
    int of[2];
} InputSet;

/* Facts about values, by id. */
typedef struct Facts {
    Arena *a;
    const Graph *g;
    const bool *dependent; /* on the tangent */
    bool *own;             /* made of constants, scalars and updated inputs alone */
    bool *needed;          /* an output that is no update, or read by a node that is no candidate */
    bool *used;
    bool *update;    /* an output that is one */
    bool *renewed;   /* an input that has one */
    int *part;       /* the inputs that it is the scaled sum of, dependent values aside */
    bool *changed;   /* ... and of a dependent value */
    bool *candidate; /* by node id */
    InputSet *set;
    int nset, capset;
} Facts;

/* ---- updates ---- */

static bool is_sum(const Node *n)
{
    return node_is(n, OP_add) || node_is(n, OP_sub);
}

static bool is_same(const Node *n)
{
    return n->op->view || n->op->copy;
}

static int add_set(Facts *x, InputSet set)
{
    PUSH(x->a, x->set, x->nset, x->capset, set);
    return x->nset - 1;
}

static int unite(Facts *x, int s, int t)
{
    return !s || s == t ? t : !t ? s : add_set(x, (InputSet){.of = {s, t}});
}

/* x + y - z: dependent values add no inputs. */
static void find_sum(Facts *x, const Node *n)
{
    const Value *y = n->out[0];
    bool moved = false;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        x->part[y->id] = unite(x, x->part[y->id], x->part[v->id]);
        moved |= x->changed[v->id] || (x->dependent[v->id] && !x->part[v->id]);
    }
    x->changed[y->id] = x->part[y->id] && moved;
}

/* x * y, x / y: nothing where a dependent value scales, or two are changed. */
static void find_product(Facts *x, const Node *n)
{
    const Value *y = n->out[0];
    int all = 0, changed = 0;
    bool scaled = true;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        int part = x->part[v->id];
        scaled &= part || !x->dependent[v->id];
        if (x->changed[v->id]) {
            scaled &= !changed || changed == part;
            changed = part;
        }
        all = unite(x, all, part);
    }
    if (node_is(n, OP_div))
        scaled &= x->part[n->in[0]->id] && (!changed || changed == x->part[n->in[0]->id]);
    if (!scaled)
        return;
    x->part[y->id] = changed ? changed : node_is(n, OP_div) ? x->part[n->in[0]->id] : all;
    x->changed[y->id] = changed != 0;
}

static void find_parts(Facts *x)
{
    const Graph *g = x->g;
    add_set(x, (InputSet){0});
    for (int i = 0; i < g->nin; i++)
        x->part[g->in[i].v->id] = add_set(x, (InputSet){.in = g->in[i].v});
    for (const Node *n = g->first; n; n = n->next) {
        if (n->nout != 1)
            continue;
        if (is_sum(n)) {
            find_sum(x, n);
        } else if (node_is(n, OP_mul) || node_is(n, OP_div)) {
            find_product(x, n);
        } else if (is_same(n)) {
            x->part[n->out[0]->id] = x->part[n->in[0]->id];
            x->changed[n->out[0]->id] = x->changed[n->in[0]->id];
        }
    }
}

/* Whether output i may be an update by what it computes, whatever its type. */
static bool may_update(const Facts *x, int i)
{
    const Port *p = &x->g->out[i];
    return p->role != ROLE_NEW && x->changed[p->v->id];
}

/* Marks the updates of inputs of type t, and those inputs; done[i] of the outputs of that type. */
static void find_updates_of(Facts *x, const Type *t, bool *done)
{
    const Graph *g = x->g;
    bool *has = NEWN(x->a, bool, x->nset), *wanted = NEWN(x->a, bool, x->nset);
    for (int s = 1; s < x->nset; s++) {
        const InputSet *set = &x->set[s];
        has[s] = set->in ? type_equal(&set->in->type, t) : has[set->of[0]] || has[set->of[1]];
    }
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        if (!may_update(x, i) || !type_equal(&v->type, t))
            continue;
        done[i] = true;
        x->update[v->id] |= has[x->part[v->id]];
        wanted[x->part[v->id]] = true;
    }
    for (int s = x->nset - 1; s > 0; s--) {
        const InputSet *set = &x->set[s];
        if (wanted[s] && has[s] && set->in)
            x->renewed[set->in->id] = true;
        wanted[set->of[0]] |= wanted[s];
        wanted[set->of[1]] |= wanted[s];
    }
}

static void find_updates(Facts *x)
{
    const Graph *g = x->g;
    bool *done = NEWN(x->a, bool, g->nout);
    find_parts(x);
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        if (p->role == ROLE_NEW) {
            x->update[p->v->id] = true;
            x->renewed[((const Value *)map_find(&g->names, p->name))->id] = true;
        } else if (may_update(x, i) && !done[i]) {
            find_updates_of(x, &p->v->type, done);
        }
    }
}

/* ---- candidates ---- */

static bool may_be(const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (n->op->class != CLASS_POINTWISE && !n->op->view && !is_same(n) && n->nin &&
            type_nelem(&n->out[k]->type) != 1)
            return false;
    return n->op->class != CLASS_RANDOM;
}

static void find_candidates(Facts *x)
{
    for (int i = 0; i < x->g->nout; i++) {
        x->used[x->g->out[i].v->id] = true;
        x->needed[x->g->out[i].v->id] |= !x->update[x->g->out[i].v->id];
    }
    for (const Node *n = x->g->last; n; n = n->prev) {
        bool used = false, needed = !may_be(n);
        for (int k = 0; k < n->nout; k++) {
            used |= x->used[n->out[k]->id];
            needed |= x->needed[n->out[k]->id];
        }
        x->candidate[n->id] = used && !needed;
        for (int i = 0; i < n->nin; i++) {
            x->used[n->in[i]->id] = true;
            x->needed[n->in[i]->id] |= !x->candidate[n->id];
        }
    }
}

/* ---- what stays ---- */

static bool reads_twice(const Node *n)
{
    return n->nin == 2 && n->in[0] == n->in[1];
}

static bool is_dependent(const Facts *x, const Node *n)
{
    for (int k = 0; k < n->nout; k++)
        if (x->dependent[n->out[k]->id])
            return true;
    return false;
}

static void choose_dependent(Facts *x)
{
    for (Node *n = x->g->first; n; n = n->next) {
        bool own = n->op->class != CLASS_RANDOM, stays = reads_twice(n);
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            own &= x->own[v->id];
            stays |= x->own[v->id] || (v->def && v->def->phase == OPTIMIZER);
        }
        for (int k = 0; k < n->nout; k++)
            x->own[n->out[k]->id] = own && !is_dependent(x, n);
        if (x->candidate[n->id] && is_dependent(x, n) && stays)
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

void fx_find_optimizer(Importer *im, const bool *dependent)
{
    Graph *g = im->g;
    Facts x = {.a = im->a, .g = g, .dependent = dependent};
    bool **of_value[] = {&x.own, &x.needed, &x.used, &x.update, &x.renewed, &x.changed};
    for (int i = 0; i < LEN(of_value); i++)
        *of_value[i] = NEWN(im->a, bool, g->nvalue);
    x.part = NEWN(im->a, int, g->nvalue);
    x.candidate = NEWN(im->a, bool, g->nnode);
    bool any = false;
    find_updates(&x);
    for (int i = 0; i < g->nin; i++) {
        const Value *in = g->in[i].v;
        any |= x.renewed[in->id];
        x.own[in->id] = !dependent[in->id] && (x.renewed[in->id] || type_nelem(&in->type) == 1);
    }
    if (!any)
        return;
    find_candidates(&x);
    choose_dependent(&x);
    keep_early(&x);
}
