/* shard_beside: operands that are made in another form than the one that is there, so that both are
 * in memory: an exchange of 4 GiB of logits' gradients needs 8.
 *
 * Whether there is such a pair depends on two choices, that of the form from which readers go on
 * and that of the reader. A node of the problem stands between them: its strategies are the forms
 * that the reader may need, as they are there, which is legal only if they are, and the sizes that
 * they have if they are made. Where memory is not short both are equal, and the node changes
 * nothing. A form that reaches its reader through views is followed to the views' base. Linear in
 * moments times strategies of both ends. */
#include "solved.h"

#include <string.h>

bool shard_is_there(const Mesh *m, const Cut *from, const Cut *to)
{
    for (int c = 0; c < m->naxes; c++)
        if (!cut_equal(from[c], to[c]) && from[c].kind != CUT_WHOLE)
            return false;
    return true;
}

static bool has_form(const Mesh *m, const Beside *b, const Cut *form)
{
    for (int i = 0; i < b->count; i++)
        if (cuts_equal(m->naxes, b->form[i], form))
            return true;
    return false;
}

static int number_of_size(const Beside *b, int64_t size)
{
    int i = 0;
    while (i < b->nsize && b->size[i] != size)
        i++;
    return i;
}

static void add_form(const Spmd *x, Beside *b, const Cut *form)
{
    if (has_form(x->mesh, b, form))
        return;
    const int64_t size = shard_nbytes(x, &b->value->type, form);
    const int i = number_of_size(b, size);
    b->form[b->count++] = form;
    b->size[i] = size;
    b->nsize += i == b->nsize;
}

/* Lists an operand, if its reader may need it in several forms. */
static void list_operand(const ShardProblem *p, const Spmd *x, Arena *tmp, const Node *n, Beside b,
                         BesideList *all)
{
    const EqualGraph *e = p->e;
    const Value *v = b.value = n->in[b.operand];
    const int group = e->of_group[v->id];
    b.reader = e->of_node[n->id];
    if (e->param[v->id] || group < 0 || e->class[b.reader].skipped)
        return;
    const ReadGroup *r = &e->group[group];
    const EqualClass *q = &e->class[b.reader];
    b.from = r->shared >= 0 ? e->nclass + r->shared : e->value[r->value].of;
    b.form = NEWN(tmp, const Cut *, q->list.count);
    b.size = NEWN(tmp, int64_t, q->list.count);
    for (int i = 0; i < q->list.count; i++)
        add_form(x, &b, q->list.list[i]->in[b.operand]);
    if (b.from == b.reader || e->class[e->value[r->value].of].skipped || b.count < 2)
        return;
    b.node = p->pick.n + all->count;
    PUSH(tmp, all->list, all->count, all->cap, b);
}

/* Lists the operands of a moment's node, and those of the views by which it has them. */
static void list_moment(const ShardProblem *p, const Spmd *x, Arena *tmp, const Node *node,
                        int moment, BesideList *all)
{
    for (int i = 0; i < node->nin; i++) {
        const Node *n = node;
        for (int k = i; n; k = 0) {
            list_operand(p, x, tmp, n, (Beside){.moment = moment, .operand = k}, all);
            const Node *from = n->in[k]->def;
            n = from && from->op->view ? from : NULL;
        }
    }
}

/* The form that is there by a strategy of b->from. */
static const Cut *form_there(const ShardProblem *p, const Beside *b, int strategy)
{
    const EqualGraph *e = p->e;
    const ValueClass *v = &e->value[e->of_value[b->value->id]];
    if (b->from < e->nclass)
        return e->class[b->from].list.list[strategy]->out[v->result];
    return v->forms->form[p->shared[b->from - e->nclass].form[strategy]];
}

/* ---- the problem ---- */

static int strategies_of(const Beside *b)
{
    return b->count + b->nsize;
}

static void add_nodes(PickProblem *p, const BesideList *all)
{
    int nlabel = p->first[p->n];
    for (int i = 0; i < all->count; i++)
        nlabel += strategies_of(&all->list[i]);
    int *first = NEWN(p->a, int, p->n + all->count + 1);
    double *cost = NEWN(p->a, double, nlabel);
    memcpy(first, p->first, sizeof *first * (size_t)(p->n + 1));
    memcpy(cost, p->cost, sizeof *cost * (size_t)p->first[p->n]);
    for (int i = 0; i < all->count; i++, p->n++)
        first[p->n + 1] = first[p->n] + strategies_of(&all->list[i]);
    p->first = first;
    p->cost = cost;
}

/* Fills the costs of what is there, by strategies of `from`, and of what is read, by strategies of
 * the reader: nothing, or INFINITY. */
static void fill_edges(const ShardProblem *p, const Spmd *x, const Beside *b, double *there,
                       double *read)
{
    const Mesh *m = x->mesh;
    const StrategyList *list = &p->e->class[b->reader].list;
    for (int f = 0; f < b->count; f++) {
        for (int i = 0; i < pick_strategies(&p->pick, b->from); i++)
            if (!shard_is_there(m, form_there(p, b, i), b->form[f]))
                there[i * strategies_of(b) + f] = INFINITY;
        for (int k = 0; k < list->count; k++)
            if (!cuts_equal(m->naxes, list->list[k]->in[b->operand], b->form[f]))
                read[f * list->count + k] = INFINITY;
    }
    for (int i = 0; i < b->nsize; i++)
        for (int k = 0; k < list->count; k++)
            if (shard_nbytes(x, &b->value->type, list->list[k]->in[b->operand]) != b->size[i])
                read[(b->count + i) * list->count + k] = INFINITY;
}

/* The entries of an edge's matrix. */
static int64_t pairs_of(const PickProblem *p, int u, int v)
{
    return (int64_t)pick_strategies(p, u) * pick_strategies(p, v);
}

static void add_edges(ShardProblem *p, const Spmd *x, const BesideList *all)
{
    PickProblem *y = &p->pick;
    int64_t nmatrix = 0;
    for (int i = 0; i < y->nedge; i++)
        nmatrix = MAX(nmatrix, y->edge[i].at + pairs_of(y, y->edge[i].u, y->edge[i].v));
    int64_t at = nmatrix;
    for (int i = 0; i < all->count; i++) {
        const Beside *b = &all->list[i];
        nmatrix += pairs_of(y, b->from, b->node) + pairs_of(y, b->node, b->reader);
    }
    PickEdge *edge = NEWN(y->a, PickEdge, y->nedge + 2 * all->count);
    double *matrix = NEWN(y->a, double, nmatrix);
    memcpy(edge, y->edge, sizeof *edge * (size_t)y->nedge);
    memcpy(matrix, y->matrix, sizeof *matrix * (size_t)at);
    for (int i = 0; i < all->count; i++) {
        const Beside *b = &all->list[i];
        const int64_t read = at + pairs_of(y, b->from, b->node);
        fill_edges(p, x, b, matrix + at, matrix + read);
        for (int k = 0; k < 2; k++) {
            int count = y->nedge;
            PUSH(y->a, p->of_edge, count, p->capof_edge, ((EdgeNote){.group = -1}));
            edge[y->nedge++] =
                k ? (PickEdge){b->node, b->reader, read} : (PickEdge){b->from, b->node, at};
        }
        at = read + pairs_of(y, b->node, b->reader);
    }
    y->edge = edge;
    y->matrix = matrix;
}

BesideList shard_beside(ShardProblem *p, const Spmd *x, Arena *tmp, int nmoment,
                        const Node *const *node)
{
    BesideList all = {0};
    for (int i = 0; i < nmoment; i++)
        list_moment(p, x, tmp, node[i], i, &all);
    if (!all.count)
        return all;
    add_nodes(&p->pick, &all);
    add_edges(p, x, &all);
    return all;
}
