/* shard_emitted: the seconds of a solution as the walk emits it, which may be less than the
 * problem's cost: where several readers of a value need one form, it is made once in a half of the
 * step (form.c). Linear in edges, times forms that come about. */
#include "solved.h"

#include <string.h>

/* The forms of a group's value that are there while the walk comes to its readers, in order. */
typedef struct FormsThere {
    const Spmd *x;
    const Type *type;
    const Cut *made, *shared;
    int count, cap;
    Cut (*form)[MAX_MESH]; /* made from the shared one */
    bool *late;            /* for readers of the backward or after it */
} FormsThere;

/* Notes the forms that come about between two. */
static void add_steps(FormsThere *y, const Cut *from, const Cut *to, bool late)
{
    Reshard r;
    if (!reshard_find(y->x->machine, y->x->mesh, y->type, from, to, &r))
        return;
    for (int i = 0; i < r.nstep && y->count < y->cap; i++, y->count++) {
        memcpy(y->form[y->count], r.step[i].to, sizeof r.step[i].to);
        y->late[y->count] = late;
    }
}

/* Whether a reader (n NULL: an output) has its form without a step. */
static bool has_form(const FormsThere *y, const Cut *need, const Node *n, bool late)
{
    int naxes = y->x->mesh->naxes;
    if (cuts_equal(naxes, need, y->made) || cuts_equal(naxes, need, y->shared))
        return true;
    for (int i = 0; i < y->count; i++)
        if ((!n || y->late[i] == late) && cuts_equal(naxes, need, y->form[i]))
            return true;
    return false;
}

static const Cut *needed_cut(const EqualGraph *e, const Reading *r, const int *strategy)
{
    const Strategy *t = e->class[r->reader].list.list[strategy[r->reader]];
    return r->operand < 0 ? t->out[0] : t->in[r->operand];
}

/* Begins with the forms of shared form i. */
static FormsThere forms_of(const ShardProblem *p, const Spmd *x, int i, const int *strategy)
{
    const EqualGraph *e = p->e;
    const ReadGroup *g = &e->group[p->shared[i].group];
    const ValueClass *v = &e->value[g->value];
    FormsThere y = {.x = x, .type = &v->type, .cap = g->param ? 0 : (g->nread + 1) * MAX_RESHARD};
    y.made = e->class[v->of].list.list[strategy[v->of]]->out[v->result];
    y.shared = v->forms->form[p->shared[i].form[strategy[e->nclass + i]]];
    y.form = arena_alloc(e->a, sizeof *y.form * (size_t)MAX(y.cap, 1));
    y.late = NEWN(e->a, bool, y.cap);
    const Node *n = e->class[g->read[0].reader].n;
    add_steps(&y, y.made, y.shared, n && n->phase >= BACKWARD);
    return y;
}

/* Whether a reader of a shared form takes a form that is there; if not, its own is there now. */
static bool reads_there(const EqualGraph *e, FormsThere *y, const Reading *r, const int *strategy)
{
    const EqualClass *q = &e->class[r->reader];
    const Node *n = q->kind == FLAT_SUM ? NULL : q->n;
    const bool late = n && n->phase >= BACKWARD;
    const Cut *need = needed_cut(e, r, strategy);
    if (has_form(y, need, n, late))
        return true;
    add_steps(y, y->shared, need, late);
    return false;
}

/* ---- what is kept of parameters ---- */

/* A form that comes about of the parameters of a value class. */
typedef struct KeptForm {
    int value;
    Cut cut[MAX_MESH];
} KeptForm;

typedef struct KeptList {
    KeptForm *list;
    int count, cap;
} KeptList;

static const Cut *shared_form(const ShardProblem *p, int node, const int *strategy)
{
    const SharedForm *f = &p->shared[node - p->e->nclass];
    return p->e->value[p->e->group[f->group].value].forms->form[f->form[strategy[node]]];
}

/* The forms from which an edge goes, and to which. */
static void edge_cuts(const ShardProblem *p, int edge, const int *strategy, Cut *from, Cut *to)
{
    const EqualGraph *e = p->e;
    const EdgeNote *note = &p->of_edge[edge];
    const PickEdge *at = &p->pick.edge[edge];
    const ValueClass *v = &e->value[e->group[note->group].value];
    memcpy(from,
           note->shared ? shared_form(p, at->u, strategy)
                        : e->class[v->of].list.list[strategy[v->of]]->out[v->result],
           sizeof(Cut[MAX_MESH]));
    memcpy(to,
           note->reader ? needed_cut(e, note->reader, strategy) : shared_form(p, at->v, strategy),
           sizeof(Cut[MAX_MESH]));
}

/* Whether an edge brings a kept parameter, or a view of one, which is made of what is kept of the
 * parameter, to a form that another one has it in; if not, that form is kept now. */
static bool is_kept(const ShardProblem *p, const Spmd *x, int edge, const int *strategy,
                    KeptList *kept)
{
    const EqualGraph *e = p->e;
    const int group = p->of_edge[edge].group;
    if (group < 0 || !e->group[group].param || !e->how.keep)
        return false;
    KeptForm now = {.value = e->group[group].value};
    const ValueClass *v = &e->value[now.value];
    const Node *n = e->class[v->of].n;
    const Type *type = &v->type;
    Cut from[MAX_MESH];
    Reshard r;
    edge_cuts(p, edge, strategy, from, now.cut);
    if (n) {
        const Value *of = viewed_value(x, e->a, n->out[v->result], from, now.cut);
        now.value = e->of_value[of->id];
        type = &of->type;
    }
    for (int i = 0; i < kept->count; i++)
        if (kept->list[i].value == now.value &&
            cuts_equal(x->mesh->naxes, kept->list[i].cut, now.cut))
            return true;
    if (!reshard_find(x->machine, x->mesh, type, from, now.cut, &r))
        return false;
    for (int i = 0; i < r.nstep; i++) {
        memcpy(now.cut, r.step[i].to, sizeof r.step[i].to);
        PUSH(e->a, kept->list, kept->count, kept->cap, now);
    }
    return false;
}

double shard_problem_sec(const ShardProblem *p, const Spmd *x, const int *strategy)
{
    const PickProblem *y = &p->pick;
    FormsThere there = {0};
    KeptList kept = {0};
    double cost = 0;
    for (int i = 0; i < y->n; i++)
        cost += y->cost[y->first[i] + strategy[i]];
    for (int i = 0; i < y->nedge; i++) {
        const PickEdge *e = &y->edge[i];
        const EdgeNote *note = &p->of_edge[i];
        double pair =
            y->matrix[e->at + (int64_t)strategy[e->u] * pick_strategies(y, e->v) + strategy[e->v]];
        if (e->v >= p->e->nclass && e->v < p->e->nclass + p->nshared && !note->shared)
            there = forms_of(p, x, e->v - p->e->nclass, strategy); /* its readers follow */
        if (note->shared && reads_there(p->e, &there, note->reader, strategy))
            continue;
        if (is_kept(p, x, i, strategy, &kept))
            continue;
        cost += note->hidden ? pair / x->o->shard_exposed : pair;
    }
    return cost * PROBLEM_UNIT;
}
