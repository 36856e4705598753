/* shard_problem: a graph's sharding as a problem of src/pick.
 *
 * A node of the problem stands for a class of equal nodes or ports, and its strategies for the ways
 * to cut them: together they cost the price of one, times their number. Where one reader reads a
 * value, an edge between maker and reader costs what brings it from the form that the one makes to
 * the form that the other needs. Where several read it, a node of the problem stands for the form
 * from which they go on: it costs the steps from the maker's form, and each reader those from it;
 * so what readers share is paid once. Constants are made again, and views of parameters are made of
 * what is gathered of the parameter.
 *
 * The walk emits these steps (form.c). A solution that is not the best may have two readers make
 * the same form: in one half of the step the second has it for nothing, in the objective that is
 * told and in the graph, while the problem's cost counts both.
 *
 * Costs are rounded to whole units, so that bounds of integers hold. Seconds are those of one
 * queue: nothing is hidden behind anything. Linear in edges times strategies of both ends. */
#include "solved.h"

#include <math.h>
#include <string.h>

typedef struct Maker {
    ShardProblem *p;
    EqualGraph *e;
    const Pricer *price;
    Arena *a;
    int capedge, capfirst, *in_first;
    PickEdge *edge;
    double *matrix; /* room for all pairs, which are counted before any is filled */
    int64_t nmatrix;
    double *cost;
    int ncost, capcost;
    int **need, **made; /* forms: by class, strategy and operand; by value and strategy */
} Maker;

/* ---- forms ---- */

static FormTable *table_of(const Maker *m, const Type *t)
{
    return form_table(m->price->x, m->a, t);
}

static int number_of(const Maker *m, FormTable *t, const Cut *cut)
{
    return form_number(m->price->x, t, cut);
}

/* The value that a value class stands for, if readers make it again: a view of a parameter, or what
 * has no operands; or NULL. */
static const Value *remade_value(const EqualGraph *e, const ValueClass *v)
{
    const Node *n = e->class[v->of].n;
    if (!n || e->class[v->of].kind != FLAT_NODE)
        return NULL;
    const Value *y = n->out[v->result];
    return !n->nin || (n->op->view && e->param[y->id]) ? y : NULL;
}

/* Seconds of the strategy that makes a value class in a form; INFINITY: there is none. */
static double making_sec(const Maker *m, int value, int form)
{
    const EqualClass *q = &m->e->class[m->e->value[value].of];
    for (int i = 0; i < q->list.count; i++)
        if (m->made[value][i] == form)
            return q->sec[i];
    return INFINITY;
}

static double remade_sec(Maker *m, int value, const Value *v, const Cut *from, const Cut *to)
{
    Cut first[MAX_MESH], last[MAX_MESH];
    memcpy(first, from, sizeof first);
    memcpy(last, to, sizeof last);
    const Value *base = viewed_value(m->price->x, m->a, v, first, last);
    double sec = form_cuts_sec(m->price->x, table_of(m, &base->type), first, last);
    double made = base->def && !base->def->nin
                      ? making_sec(m, value, number_of(m, m->e->value[value].forms, to))
                      : INFINITY;
    return sec > 0 && made < INFINITY ? made : sec;
}

/* Seconds between two forms of a value class, in units. */
static double change_cost(Maker *m, int value, int from, int to)
{
    ValueClass *v = &m->e->value[value];
    FormTable *t = v->forms;
    const Value *remade = remade_value(m->e, v);
    if (!remade)
        return rint(form_sec(m->price->x, t, from, to) / PROBLEM_UNIT);
    if (!v->remade)
        v->remade = form_new_seconds(m->a, v->nremade = t->count);
    double *sec = &v->remade[from * v->nremade + to];
    if (isnan(*sec))
        *sec = remade_sec(m, value, remade, t->form[from], t->form[to]);
    return rint(*sec / PROBLEM_UNIT);
}

static int made_form(const Maker *m, int value, int strategy)
{
    return m->made[value][strategy];
}

/* The form in which a reader needs values of that table. */
static int needed_form(const Maker *m, FormTable *t, const Reading *r, int strategy)
{
    const EqualClass *q = &m->e->class[r->reader];
    if (!q->n)
        return number_of(m, t, q->list.list[strategy]->out[0]);
    return m->need[r->reader][strategy * q->n->nin + r->operand];
}

/* The same, by strategy of the reader. */
static const int *needed_forms(const Maker *m, FormTable *t, const Reading *r)
{
    const int count = m->e->class[r->reader].list.count;
    int *form = NEWN(m->a, int, count);
    for (int i = 0; i < count; i++)
        form[i] = needed_form(m, t, r, i);
    return form;
}

/* ---- classes ---- */

_Noreturn static void fail_pin(const Maker *m, const EqualClass *q, const StrategyList *all)
{
    const Mesh *mesh = m->price->x->mesh;
    Buf forms = {.a = m->a};
    for (int i = 0; i < all->count && forms.len < 500; i++) {
        const char *text = cuts_text(m->a, mesh, all->list[i]->out[0]);
        text = *text ? text : "whole";
        if (!forms.len || !strstr(forms.text, text))
            buf_printf(&forms, forms.len ? ", %s" : "%s", text);
    }
    const char *text = cuts_text(m->a, mesh, q->pin->cut);
    fail(arena_ctx(m->a), TN_USAGE,
         "%s \"%.300s\": %s at \"%s\" does not make %%%s %s as %s; it makes it as: %s",
         q->pin->option, q->pin->text, q->n->op->name, q->n->scope, q->n->out[0]->name,
         type_text(m->a, &q->n->out[0]->type), *text ? text : "whole", forms.text);
}

static bool takes_partial(const Mesh *mesh, const Node *n, const Strategy *t)
{
    for (int i = 0; i < n->nin; i++)
        for (int c = 0; c < mesh->naxes; c++)
            if (cut_is_partial(t->in[i][c]))
                return true;
    return false;
}

/* Seconds of a strategy, each time that the node runs; INFINITY: it cannot be. A node
 * that stands for a loop's sums costs the seconds of adding up in an iteration. */
static double node_price(const Maker *m, const EqualClass *q, Strategy *t)
{
    const Spmd *x = m->price->x;
    double sec = strategy_price(m->price, q->n, t);
    if (q->kind == FLAT_NODE || !(sec < INFINITY))
        return sec;
    if (q->kind == FLAT_ENTRY)
        return takes_partial(x->mesh, q->n, t) ? INFINITY : 0;
    Type local = cut_local_type(&q->n->out[0]->type, x->mesh, t->out[0]);
    return sum_sec(x->machine, &local);
}

/* Lists and prices the strategies of a class of nodes; those that cannot be are dropped. */
static void list_node(Maker *m, EqualClass *q)
{
    const Spmd *x = m->price->x;
    StrategyList all = strategies_list(x, m->a, q->n, q->f, &q->units);
    q->sec = NEWN(m->a, double, all.count);
    for (int i = 0; i < all.count; i++) {
        double sec = node_price(m, q, all.list[i]);
        bool pinned = !q->pin || cuts_equal(x->mesh->naxes, all.list[i]->out[0], q->pin->cut);
        if (!(sec < INFINITY) || !pinned)
            continue;
        q->sec[q->list.count] = sec;
        PUSH(m->a, q->list.list, q->list.count, q->list.cap, all.list[i]);
    }
    if (!q->list.count && q->pin)
        fail_pin(m, q, &all);
}

static void list_whole(Maker *m, EqualClass *q)
{
    Strategy *t = NEW(m->a, Strategy);
    *t = strategy_room(m->a, q->n);
    q->sec = NEWN(m->a, double, 1);
    PUSH(m->a, q->list.list, q->list.count, q->list.cap, t);
    if (q->pin && !cuts_equal(MAX_MESH, t->out[0], q->pin->cut))
        fail_pin(m, q, &q->list);
}

static void list_port(Maker *m, EqualClass *q)
{
    const Spmd *x = m->price->x;
    if (!q->fixed) {
        StrategyList all = strategies_of_input(x, m->a, &q->type, &q->units);
        for (int i = 0; i < all.count; i++)
            if (spmd_pad_used(&q->type, x->mesh, q->least_units, all.list[i]->out[0]))
                PUSH(m->a, q->list.list, q->list.count, q->list.cap, all.list[i]);
    } else {
        Strategy *t = NEW(m->a, Strategy);
        t->in = t->out = arena_alloc(m->a, sizeof(Cut[MAX_MESH]));
        memcpy(t->out[0], q->fixed, sizeof(Cut) * (size_t)x->mesh->naxes);
        PUSH(m->a, q->list.list, q->list.count, q->list.cap, t);
    }
    q->sec = NEWN(m->a, double, q->list.count);
}

static void add_variable(Maker *m, int count, const double *cost)
{
    PickProblem *p = &m->p->pick;
    m->in_first = arena_grow(m->a, m->in_first, p->n + 1, &m->capfirst, sizeof *m->in_first);
    for (int i = 0; i < count; i++)
        PUSH(m->a, m->cost, m->ncost, m->capcost, cost[i]);
    m->in_first[++p->n] = m->ncost;
}

static void add_class(Maker *m, int class)
{
    EqualClass *q = &m->e->class[class];
    if (!q->n)
        list_port(m, q);
    else if (q->skipped)
        list_whole(m, q);
    else
        list_node(m, q);
    double *cost = NEWN(m->a, double, q->list.count);
    for (int i = 0; i < q->list.count; i++)
        cost[i] = rint(q->sec[i] / PROBLEM_UNIT) * q->count * (double)q->times;
    add_variable(m, q->list.count, cost);
}

/* Numbers the forms that results have, and operands need. */
static void number_forms(Maker *m)
{
    EqualGraph *e = m->e;
    for (int v = 0; v < e->nvalue; v++) {
        ValueClass *y = &e->value[v];
        const EqualClass *q = &e->class[y->of];
        y->forms = table_of(m, &y->type);
        m->made[v] = NEWN(m->a, int, q->list.count);
        for (int i = 0; i < q->list.count; i++)
            m->made[v][i] = number_of(m, y->forms, q->list.list[i]->out[y->result]);
    }
    for (int c = 0; c < e->nclass; c++) {
        const EqualClass *q = &e->class[c];
        int nin = q->n && !q->skipped ? q->n->nin : 0;
        m->need[c] = NEWN(m->a, int, q->list.count *nin);
        for (int i = 0; i < q->list.count; i++)
            for (int k = 0; k < nin; k++)
                m->need[c][i * nin + k] =
                    number_of(m, table_of(m, &q->n->in[k]->type), q->list.list[i]->in[k]);
    }
    for (int g = 0; g < e->ngroup; g++)
        for (int j = 0; j < e->group[g].nread; j++)
            for (int i = 0; i < e->class[e->group[g].read[j].reader].list.count; i++)
                needed_form(m, e->value[e->group[g].value].forms, &e->group[g].read[j], i);
}

/* ---- edges ---- */

/* Whether computing may hide what a reading costs: gathers of parameters, as they are there before
 * they are needed, and reductions of gradients, as only the optimizer or a loop's sum needs them.
 */
static bool may_hide(const Maker *m, const ReadGroup *r, const Reading *x)
{
    const EqualClass *q = &m->e->class[x->reader];
    return r->param || (q->n && q->n->op->class == CLASS_OPTIMIZER && x->operand == 1) ||
           q->kind == FLAT_SUM;
}

static bool moves(const Maker *m, const FormTable *t, int from, int to)
{
    const Spmd *x = m->price->x;
    Reshard r = {.nstep = 0};
    if (reshard_find(x->machine, x->mesh, &t->type, t->form[from], t->form[to], &r))
        for (int j = 0; j < r.nstep; j++)
            if (r.step[j].kind == RESHARD_GATHER || r.step[j].kind == RESHARD_EXCHANGE)
                return true;
    return false;
}

/* Units for all values of a group, each time that a reading in a loop, which runs so often, brings
 * them to another form. What ranks get of kept parameters they get once, before the loop. */
static double group_cost(Maker *m, const ReadGroup *r, FormTable *t, int from, int to,
                         int64_t times)
{
    double cost = r->count * change_cost(m, r->value, from, to);
    if (times == 1 || !(cost > 0) || !(cost < INFINITY))
        return cost;
    bool once = r->param && m->price->x->keep && moves(m, t, from, to);
    return once ? cost : cost * (double)times;
}

/* How often the readers of a group run: as they all do; once where they differ, as readers of a
 * kept parameter may. */
static int64_t group_times(const Maker *m, const ReadGroup *r)
{
    int64_t times = m->e->class[r->read[0].reader].times;
    for (int j = 1; j < r->nread; j++)
        if (m->e->class[r->read[j].reader].times != times)
            return 1;
    return times;
}

/* Whether a reader must take a kept parameter as it is: the backward gathers none again. */
static bool gathers_no_more(const Maker *m, const ReadGroup *r, const Reading *x)
{
    const Node *n = m->e->class[x->reader].n;
    return r->param && m->price->x->keep && n && n->phase == BACKWARD;
}

/* Whether a reader casts a parameter before a loop, whose iterations gather what they need and drop
 * it again: a gather before the loop would be there in all of them. */
static bool casts_before_loop(const Maker *m, const ReadGroup *r, const Reading *x)
{
    const EqualClass *q = &m->e->class[x->reader];
    return m->e->flat->cap && r->param && !m->price->x->keep && q->n && !q->loop &&
           q->kind == FLAT_NODE && !q->n->op->view && m->e->param[q->n->out[0]->id];
}

static bool any_casts_before_loop(const Maker *m, const ReadGroup *r)
{
    bool any = false;
    for (int j = 0; j < r->nread; j++)
        any |= casts_before_loop(m, r, &r->read[j]);
    return any;
}

static int group_of(const Maker *m, const ReadGroup *r)
{
    return (int)(r - m->e->group);
}

/* Room for a matrix of an edge between nodes u and v of the problem. */
static double *add_edge(Maker *m, int u, int v, EdgeNote note)
{
    int count = m->p->pick.nedge;
    PUSH(m->a, m->p->of_edge, count, m->p->capof_edge, note);
    int64_t size =
        (int64_t)(m->in_first[u + 1] - m->in_first[u]) * (m->in_first[v + 1] - m->in_first[v]);
    PUSH(m->a, m->edge, m->p->pick.nedge, m->capedge, ((PickEdge){u, v, m->nmatrix}));
    m->nmatrix += size;
    return &m->matrix[m->nmatrix - size];
}

/* Whoever reads what it makes itself (state and its new value, a block and the next). */
static void add_own(Maker *m, const ReadGroup *r, const Reading *x)
{
    const ValueClass *v = &m->e->value[r->value];
    double *cost = &m->cost[m->in_first[v->of]];
    for (int i = 0; i < m->e->class[v->of].list.count; i++)
        cost[i] += group_cost(m, r, v->forms, made_form(m, r->value, i),
                              needed_form(m, v->forms, x, i), m->e->class[x->reader].times);
}

/* Whether maker and reader stand for one port of a loop, between whose views nothing happens. */
static bool within_port(const Maker *m, const ReadGroup *r, const Reading *x)
{
    return m->e->class[m->e->value[r->value].of].kind == FLAT_ENTRY &&
           m->e->class[x->reader].kind == FLAT_ENTRY;
}

/* A pair of an edge costs this beside its forms: hidden seconds count as a share; within a port no
 * form changes; a reader takes what is kept as it is; before a loop ranks take what they have. */
typedef struct PairPrice {
    double share;
    int64_t times;
    bool port, kept, before;
} PairPrice;

static double pair_cost(Maker *m, const ReadGroup *r, const PairPrice *p, int from, int to)
{
    FormTable *t = m->e->value[r->value].forms;
    const double cost = group_cost(m, r, t, from, to, p->times);
    if ((p->port && from != to) || (p->kept && cost > 0) ||
        (p->before && !shard_is_there(m->price->x->mesh, t->form[from], t->form[to])))
        return INFINITY;
    return rint(p->share * cost);
}

/* Fills an edge's matrix by the forms of its rows and columns: strategies are many, forms few. */
static void fill_pairs(Maker *m, const ReadGroup *r, const PairPrice *p, int nrow, const int *row,
                       int ncolumn, const int *column, double *y)
{
    const int nform = m->e->value[r->value].forms->count;
    double *cost = NEWN(m->a, double, nform);
    int *before = NEWN(m->a, int, nform); /* 1 + the first row of that form */
    for (int i = 0; i < nrow; i++, y += ncolumn) {
        if (before[row[i]]) {
            memcpy(y, y - (int64_t)(i - before[row[i]] + 1) * ncolumn, sizeof *y * (size_t)ncolumn);
            continue;
        }
        before[row[i]] = i + 1;
        for (int f = 0; f < nform; f++)
            cost[f] = NAN;
        for (int k = 0; k < ncolumn; k++) {
            double *c = &cost[column[k]];
            y[k] = *c = isnan(*c) ? pair_cost(m, r, p, row[i], column[k]) : *c;
        }
    }
}

static void add_direct(Maker *m, const ReadGroup *r)
{
    const ValueClass *v = &m->e->value[r->value];
    const Reading *x = r->read;
    if (x->reader == v->of) {
        add_own(m, r, x);
        return;
    }
    int n = m->e->class[v->of].list.count, k = m->e->class[x->reader].list.count;
    bool hidden = may_hide(m, r, x);
    const PairPrice price = {.share = hidden ? m->price->x->o->shard_exposed : 1,
                             .times = m->e->class[x->reader].times,
                             .port = within_port(m, r, x),
                             .before = casts_before_loop(m, r, x)};
    double *y = add_edge(m, v->of, x->reader, (EdgeNote){hidden, false, group_of(m, r), x});
    fill_pairs(m, r, &price, n, m->made[r->value], k, needed_forms(m, v->forms, x), y);
}

/* ---- forms that readers share ---- */

/* Whether computing may hide what brings a group's values to their shared form: of parameters, and
 * of gradients, though a norm reads them beside the optimizer. */
static bool sharing_may_hide(const Maker *m, const ReadGroup *r)
{
    bool hide = r->param;
    for (int j = 0; j < r->nread; j++)
        hide |= may_hide(m, r, &r->read[j]);
    return hide;
}

/* From the maker's form to the shared one. */
static void join_maker(Maker *m, const ReadGroup *r, const int *form, int count, int at)
{
    const ValueClass *v = &m->e->value[r->value];
    int n = m->e->class[v->of].list.count;
    bool hidden = sharing_may_hide(m, r);
    const PairPrice price = {.share = hidden ? m->price->x->o->shard_exposed : 1,
                             .times = group_times(m, r),
                             .before = any_casts_before_loop(m, r)};
    double *y = add_edge(m, v->of, at, (EdgeNote){hidden, false, group_of(m, r), NULL});
    fill_pairs(m, r, &price, n, m->made[r->value], count, form, y);
}

/* From the shared form to a reader's. */
static void join_reader(Maker *m, const ReadGroup *r, const Reading *x, const int *form, int count,
                        int at)
{
    FormTable *t = m->e->value[r->value].forms;
    int n = m->e->class[x->reader].list.count;
    bool hidden = may_hide(m, r, x);
    const PairPrice price = {.share = hidden ? m->price->x->o->shard_exposed : 1,
                             .times = m->e->class[x->reader].times,
                             .kept = gathers_no_more(m, r, x),
                             .before = casts_before_loop(m, r, x)};
    double *y = add_edge(m, at, x->reader, (EdgeNote){hidden, true, group_of(m, r), x});
    fill_pairs(m, r, &price, count, form, n, needed_forms(m, t, x), y);
}

/* The forms that a group's maker makes or its readers need; returns how many. */
static int shared_forms(const Maker *m, const ReadGroup *r, int **form)
{
    const ValueClass *v = &m->e->value[r->value];
    FormTable *t = v->forms;
    bool *use = NEWN(m->a, bool, t->count);
    int count = 0;
    *form = NEWN(m->a, int, t->count);
    for (int i = 0; i < m->e->class[v->of].list.count; i++)
        use[made_form(m, r->value, i)] = true;
    for (int j = 0; j < r->nread; j++)
        for (int i = 0; i < m->e->class[r->read[j].reader].list.count; i++)
            use[needed_form(m, t, &r->read[j], i)] = true;
    for (int f = 0; f < t->count; f++)
        if (use[f])
            (*form)[count++] = f;
    return count;
}

static void add_shared(Maker *m, int group)
{
    const ReadGroup *r = &m->e->group[group];
    int *form, count = shared_forms(m, r, &form), at = m->p->pick.n;
    add_variable(m, count, NEWN(m->a, double, count));
    m->e->group[group].shared = m->p->nshared;
    PUSH(m->a, m->p->shared, m->p->nshared, m->p->capshared, ((SharedForm){group, count, form}));
    join_maker(m, r, form, count, at);
    for (int j = 0; j < r->nread; j++)
        join_reader(m, r, &r->read[j], form, count, at);
}

/* ---- the whole ---- */

/* The pairs of strategies for which edges of a group have costs. */
static int64_t count_pairs(const Maker *m, const ReadGroup *r)
{
    const EqualGraph *e = m->e;
    const int of = e->value[r->value].of;
    const int64_t made = e->class[of].list.count;
    int64_t sum = made;
    int *form;
    if (r->nread == 1)
        return r->read->reader == of ? 0 : made * e->class[r->read->reader].list.count;
    for (int j = 0; j < r->nread; j++)
        sum += e->class[r->read[j].reader].list.count;
    return sum * shared_forms(m, r, &form);
}

/* Makes room for the costs of all pairs, or fails where they are too many. */
static void make_room(Maker *m)
{
    enum { MOST_PAIRS = 1 << 26 }; /* 512 MiB; some five times that are needed to solve it */
    int64_t count = 0;
    for (int g = 0; g < m->e->ngroup; g++)
        count += count_pairs(m, &m->e->group[g]);
    if (count > MOST_PAIRS)
        fail(arena_ctx(m->a), TN_USAGE,
             "shard auto: expected at most %d pairs of ways to cut what makes a value and what "
             "reads it, found %lld over %d mesh axes; with fewer axes there are fewer, and "
             "without --shard auto the recipes choose",
             MOST_PAIRS, (long long)count, m->price->x->mesh->naxes);
    m->matrix = SPARSE(m->a, double, MAX(count, 1));
}

/* Draws all costs that are finite, for tests: whatever is legal may then be chosen. */
static void draw_costs(Maker *m, uint64_t seed)
{
    enum { MOST_COST = 1000 };
    for (int i = 0; i < m->ncost; i++)
        m->cost[i] = m->cost[i] < INFINITY ? (double)(spmd_draw(&seed) % MOST_COST) : INFINITY;
    for (int64_t i = 0; i < m->nmatrix; i++)
        m->matrix[i] = m->matrix[i] < INFINITY ? (double)(spmd_draw(&seed) % MOST_COST) : INFINITY;
}

ShardProblem *shard_problem(EqualGraph *e, const Pricer *price)
{
    Arena *a = e->a;
    ShardProblem *p = NEW(a, ShardProblem);
    Maker m = {.p = p, .e = e, .price = price, .a = a};
    *p = (ShardProblem){.e = e, .pick = {.a = a, .title = "sharding", .limit = PICK_MOST}};
    m.in_first = NEWN(a, int, m.capfirst = 64);
    m.need = NEWN(a, int *, e->nclass);
    m.made = NEWN(a, int *, e->nvalue);
    for (int c = 0; c < e->nclass; c++)
        add_class(&m, c);
    number_forms(&m);
    make_room(&m);
    for (int g = 0; g < e->ngroup; g++)
        if (e->group[g].nread == 1)
            add_direct(&m, &e->group[g]);
        else
            add_shared(&m, g);
    if (price->x->draw)
        draw_costs(&m, price->x->draw);
    PickProblem *y = &p->pick;
    y->first = m.in_first;
    y->cost = m.cost;
    y->edge = m.edge;
    y->matrix = m.matrix;
    shard_bytes(p, price->x);
    if (price->x->o->shard_memory)
        y->limit = price->x->o->shard_memory;
    return p;
}
