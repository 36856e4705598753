/* explain: tells of a choice of forms which form each value has, who reads it in which form, and
 * what each other form would cost.
 *
 * The price of another form is the objective of the problem solved again, with the strategies of
 * the class that give another form forbidden; the problem itself is not made again. Classes come in
 * the order of their share of the step's seconds, ports by that of the bytes of all ports, views
 * and casts last, as these are made again where they are read; when PRICE_STEPS steps of search are
 * spent the others stay without prices. Linear in readings, and in the solutions that are asked
 * for. */
#include "solved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t PRICE_STEPS = INT64_C(1000000000); /* about a second */

typedef struct Explainer {
    const Spmd *x;
    const ShardProblem *p;
    const PickResult *r;
    const int *strategy;
    ShardReport *y;
    int *form; /* by class: 1 + the ShardForm that it has; 0: none */
    int64_t left;
} Explainer;

static const char *form_text(const Explainer *t, const Cut *cut)
{
    const char *text = cuts_text(t->y->a, t->x->mesh, cut);
    return *text ? text : "whole";
}

static const Strategy *chosen_of(const Explainer *t, int class)
{
    return t->p->e->class[class].list.list[t->strategy[class]];
}

/* ---- forms ---- */

static const char *class_title(const Explainer *t, const EqualClass *q)
{
    Arena *a = t->y->a;
    if (!q->n)
        return arena_strdup(a, q->name);
    const char *op = q->kind == FLAT_SUM     ? "sum over parts"
                     : q->kind == FLAT_ENTRY ? "before the loop"
                                             : q->n->op->name;
    return arena_printf(a, "%s %%%s", op, q->n->out[0]->name);
}

/* Whether no strategy of a node cuts it, on several ranks and though no pin says its form. */
static bool is_uncut(const Explainer *t, const EqualClass *q)
{
    bool several = false;
    for (int c = 0; c < t->x->mesh->naxes; c++)
        several |= t->x->cuts[c].count > 1;
    if (!several || q->pin)
        return false;
    for (int i = 0; i < q->list.count; i++)
        for (int c = 0; c < t->x->mesh->naxes; c++)
            if (q->list.list[i]->how[c].kind != NODE_WHOLE)
                return false;
    return q->n && (q->n->nin || q->n->nout > 1 || q->n->out[0]->type.rank);
}

static void add_form(Explainer *t, int class)
{
    const EqualClass *q = &t->p->e->class[class];
    ShardReport *y = t->y;
    ShardForm f = {.node = class_title(t, q),
                   .scope = q->n ? arena_strdup(y->a, q->n->scope) : "",
                   .form = form_text(t, chosen_of(t, class)->out[0]),
                   .phase = q->n ? q->n->phase : FORWARD,
                   .port = !q->n,
                   .uncut = is_uncut(t, q),
                   .count = q->count,
                   .sec = q->sec[t->strategy[class]] * (double)q->times};
    PUSH(y->a, y->form, y->nform, y->capform, f);
    t->form[class] = y->nform;
}

static void add_forms(Explainer *t)
{
    const EqualGraph *e = t->p->e;
    for (int ports = 1; ports >= 0; ports--)
        for (int i = 0; i < e->nclass; i++)
            if (ports == !e->class[i].n && !e->class[i].skipped && e->class[i].count)
                add_form(t, i);
}

/* ---- readings ---- */

/* The steps from one form of a value to another: their text, bytes and seconds. */
static void fill_steps(const Explainer *t, const Type *type, const Cut *from, const Cut *to,
                       ShardReading *y)
{
    const Mesh *m = t->x->mesh;
    Reshard r;
    Buf text = {.a = t->y->a};
    y->from = form_text(t, from);
    y->form = form_text(t, to);
    y->sec = edge_sec(t->x, type, from, to);
    y->steps = "";
    if (cuts_equal(m->naxes, from, to) || !reshard_find(t->x->machine, m, type, from, to, &r))
        return;
    for (int j = 0; j < r.nstep; j++) {
        y->nbytes += r.step[j].nbytes;
        buf_printf(&text, "%s%s %s", j ? ", " : "", reshard_name(r.step[j].kind),
                   group_name(text.a, m, r.step[j].naxes, r.step[j].axes));
    }
    y->steps = text.text ? text.text : "";
}

static const Cut *needed(const Explainer *t, const Reading *r)
{
    const Strategy *s = chosen_of(t, r->reader);
    return r->operand < 0 ? s->out[0] : s->in[r->operand];
}

static const SharedForm *shared_of(const ShardProblem *p, int group, int *at)
{
    for (int i = 0; i < p->nshared; i++)
        if (p->shared[i].group == group) {
            *at = p->e->nclass + i;
            return &p->shared[i];
        }
    return NULL;
}

/* Whether a reader has read so already: a parameter and its state have one form. */
static bool is_told(const ShardForm *f, const ShardReading *y)
{
    for (int i = 0; i < f->nreading; i++)
        if (!strcmp(f->reading[i].reader, y->reader) && !strcmp(f->reading[i].form, y->form))
            return true;
    return false;
}

static void add_readings(Explainer *t, int group)
{
    const EqualGraph *e = t->p->e;
    const ReadGroup *g = &e->group[group];
    const ValueClass *v = &e->value[g->value];
    Arena *a = t->y->a;
    int at = 0;
    if (!t->form[v->of])
        return;
    ShardForm *f = &t->y->form[t->form[v->of] - 1];
    const SharedForm *shared = shared_of(t->p, group, &at);
    const Cut *from = chosen_of(t, v->of)->out[v->result];
    if (shared) {
        const Cut *to = v->forms->form[shared->form[t->strategy[at]]];
        ShardReading made = {.reader = "", .scope = "", .node = -1};
        fill_steps(t, &v->type, from, to, &made);
        if (!cuts_equal(t->x->mesh->naxes, from, to))
            PUSH(a, f->reading, f->nreading, f->capreading, made);
        from = to;
    }
    for (int i = 0; i < g->nread; i++) {
        const EqualClass *q = &e->class[g->read[i].reader];
        ShardReading y = {.reader = class_title(t, q),
                          .scope = q->n ? arena_strdup(a, q->n->scope) : "",
                          .node = t->form[g->read[i].reader] - 1};
        fill_steps(t, &v->type, from, needed(t, &g->read[i]), &y);
        if (!is_told(f, &y))
            PUSH(a, f->reading, f->nreading, f->capreading, y);
    }
}

/* ---- prices of other forms ---- */

/* Seconds that the problem's objective is more if the class gives its first result that form. */
static double price_other(Explainer *t, Arena *tmp, int class, const char *form)
{
    const EqualClass *q = &t->p->e->class[class];
    PickProblem p = t->p->pick;
    int *strategy = NEWN(tmp, int, p.n);
    double *cost = NEWN(tmp, double, p.first[p.n]);
    memcpy(cost, p.cost, sizeof *cost * (size_t)p.first[p.n]);
    for (int i = 0; i < q->list.count; i++)
        if (strcmp(form_text(t, q->list.list[i]->out[0]), form) != 0)
            cost[p.first[class] + i] = INFINITY;
    p.cost = cost;
    p.a = tmp;
    PickResult r = pick(tmp, &p, 1, NULL, NULL, strategy);
    t->left -= r.steps;
    return r.feasible ? fmax(0, r.cost - t->r->cost) * PROBLEM_UNIT : INFINITY;
}

static bool has_other(const ShardForm *f, const char *form)
{
    for (int i = 0; i < f->nother; i++)
        if (!strcmp(f->other[i].form, form))
            return true;
    return false;
}

static int by_price(const void *s, const void *t)
{
    const ShardOther *x = s, *y = t;
    return x->sec != y->sec ? (x->sec < y->sec ? -1 : 1) : strcmp(x->form, y->form);
}

static void add_others(Explainer *t, Arena *tmp, int class)
{
    const EqualClass *q = &t->p->e->class[class];
    ShardForm *f = &t->y->form[t->form[class] - 1];
    for (int i = 0; i < q->list.count; i++) {
        const char *form = form_text(t, q->list.list[i]->out[0]);
        if (!strcmp(form, f->form) || has_other(f, form))
            continue;
        ShardOther y = {form, price_other(t, tmp, class, form)};
        arena_reset(tmp);
        PUSH(t->y->a, f->other, f->nother, f->capother, y);
    }
    if (f->nother)
        qsort(f->other, (size_t)f->nother, sizeof *f->other, by_price);
    t->y->npriced++;
}

/* A class with its rank among those whose other forms get prices. */
typedef struct Ranked {
    int class;
    bool view;
    double share; /* of the seconds of all nodes, or of the bytes of all ports */
} Ranked;

static int by_rank(const void *s, const void *t)
{
    const Ranked *x = s, *y = t;
    if (x->view != y->view)
        return x->view - y->view;
    return x->share != y->share ? (x->share < y->share ? 1 : -1) : x->class - y->class;
}

/* A class' seconds, or a port's bytes. */
static double weight_of(const Explainer *t, int class)
{
    const EqualClass *q = &t->p->e->class[class];
    return q->count *
           (q->n ? q->sec[t->strategy[class]] * (double)q->times : (double)type_nbytes(&q->type));
}

static void add_prices(Explainer *t, Arena *a)
{
    const EqualGraph *e = t->p->e;
    Ranked *rank = NEWN(a, Ranked, e->nclass);
    double all[2] = {0};
    int n = 0;
    for (int i = 0; i < e->nclass; i++)
        all[!e->class[i].n] += t->form[i] ? weight_of(t, i) : 0;
    for (int i = 0; i < e->nclass; i++) {
        const EqualClass *q = &e->class[i];
        bool view = q->n && (q->n->op->view || q->n->op->identity || q->n->op->copy);
        if (t->form[i] && q->list.count > 1)
            rank[n++] = (Ranked){i, view, weight_of(t, i) / fmax(all[!q->n], 1e-300)};
    }
    qsort(rank, (size_t)n, sizeof *rank, by_rank);
    for (int i = 0; i < n; i++)
        if (t->left > 0)
            add_others(t, arena_tmp(a), rank[i].class);
        else
            t->y->nopen++;
}

void solved_explain(const Spmd *x, Arena *a, const ShardProblem *p, const PickResult *r,
                    const int *strategy, bool prices, ShardReport *y)
{
    Explainer t = {x, p, r, strategy, y, NEWN(a, int, p->e->nclass), PRICE_STEPS};
    add_forms(&t);
    for (int g = 0; g < p->e->ngroup; g++)
        add_readings(&t, g);
    if (prices)
        add_prices(&t, a);
}
