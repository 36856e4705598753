/* spmd: walks the nodes of the whole graph and emits each one's part (spmd.h describes the pass).
 *
 * Each node is cut as choose.c says, its operands come from form.c in the forms that this needs,
 * and cut_part() emits its part. A node with partials that its op merges is replaced by those nodes
 * first (node_expose). A partial result is passed on as long as readers take it, and reduced once.
 * A view of a parameter that would have to be gathered for it is put off: its reader makes it, so
 * that the gather belongs to that reader. Linear in the nodes, times the strategies of one. */
#include "rewrite.h"

#include <string.h>

LogicalValue *spmd_logical(SpmdGraph *s, const Value *v)
{
    if (v->id >= s->cap) {
        int cap = 2 * MAX(v->id + 1, s->from->nvalue);
        LogicalValue *more = NEWN(s->tmp, LogicalValue, cap);
        if (s->cap)
            memcpy(more, s->known, sizeof *more * (size_t)s->cap);
        s->known = more;
        s->cap = cap;
    }
    return &s->known[v->id];
}

/* ---- nodes ---- */

/* A result is called as in the logical graph. */
static void name_result(SpmdGraph *s, const Value *old, Value *v)
{
    if (v->def && !map_find(&s->to->names, old->name))
        value_rename(s->to, v, old->name);
}

bool spmd_data_axis(const Spmd *x, int c)
{
    return x->cuts[c].count > 1 && (x->kind[c] == AXIS_DP || x->kind[c] == AXIS_FSDP);
}

/* Whether n's result v, of that form, has rows of the batch, or sums over them, or neither. */
static void know_batch(SpmdGraph *s, const Node *n, const Value *v, const Cut *out)
{
    bool alone = true, sums = true;
    for (int i = 0; i < n->nin; i++) {
        const LogicalValue *k = spmd_logical(s, n->in[i]);
        alone &= k->alone;
        sums &= k->alone || k->sums;
    }
    for (int c = 0; c < s->x->mesh->naxes && !alone; c++)
        sums |= spmd_data_axis(s->x, c) && cut_is_partial(out[c]);
    LogicalValue *k = spmd_logical(s, v);
    k->alone = alone;
    k->sums = sums && !alone;
}

static void know_result(SpmdGraph *s, const Node *n, const Value *v, const Cut *out)
{
    know_batch(s, n, v, out);
    if (!n->nin || !(n->op->view || n->op->identity || n->op->copy))
        return;
    LogicalValue from = *spmd_logical(s, n->in[0]), *to = spmd_logical(s, v);
    to->param = from.param;
    to->of = from.of;
}

static bool is_whole(const Spmd *x, const Strategy *t)
{
    for (int c = 0; c < x->mesh->naxes; c++)
        if (t->how[c].kind != NODE_WHOLE)
            return false;
    return true;
}

void spmd_order(SpmdGraph *s, const Node *n, Node *m)
{
    if (n->nafter)
        m->after = NEWN(s->to->a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++) {
        const RankForm *h = spmd_logical(s, n->after[i]->out[0])->form;
        if (h && h->v && h->v->def && h->v->def != m)
            m->after[m->nafter++] = h->v->def;
    }
}

/* Whether n views a parameter that would have to be gathered for it. It is made where it is read
 * then, so that the gather belongs to the reader. */
static bool is_put_off(SpmdGraph *s, const Node *n, const Strategy *t)
{
    return n->op->view && spmd_logical(s, n->in[0])->param &&
           !price_free(form_price(s, n->in[0], t->in[0], n));
}

static void put_off(SpmdGraph *s, const Node *n, const Factors *f, const Strategy *t)
{
    for (int k = 0; k < n->nout; k++) {
        know_result(s, n, n->out[k], t->out[k]);
        form_add(s, n->out[k], t->out[k], NULL, NULL);
    }
    token_results(s, n, f);
}

static void emit_part(SpmdGraph *s, const Node *n, const Factors *f, const Strategy *t)
{
    const Spmd *x = s->x;
    Value **in = NEWN(s->tmp, Value *, n->nin), **out = NEWN(s->tmp, Value *, n->nout);
    for (int i = 0; i < n->nin; i++)
        in[i] = form_get(s, n->in[i], t->in[i], n);
    Build b = build_like(s->to, NULL, n);
    if (is_whole(x, t))
        memcpy(out, emit_like(&b, n, in, NULL, "")->out, sizeof *out * (size_t)n->nout);
    else
        cut_part(&b, n, f, x->mesh->naxes, x->cuts, t->how, in, out);
    spmd_order(s, n, out[0]->def);
    for (int k = 0; k < n->nout; k++) {
        name_result(s, n->out[k], out[k]);
        know_result(s, n, n->out[k], t->out[k]);
        form_add(s, n->out[k], t->out[k], out[k], NULL);
    }
    token_results(s, n, f);
}

/* Emits n, or replaces it by what makes and merges its partials. Returns what comes next. */
static Node *rewrite_node(SpmdGraph *s, Node *n)
{
    Node *next = n->next, *before = n->prev;
    if (n->op->class == CLASS_COLLECTIVE || n->op->async)
        fail_node(s->from, n, "spmd takes a graph of one rank, without collectives and copies");
    if (n->op->region == LOOP) {
        loop_rewrite(s, n);
        return next;
    }
    Factors *f = node_factors(s->tmp, n);
    int first = s->to->nnode;
    s->x->unpicked = false;
    Strategy *t = strategy_choose(s, n, f);
    if (s->x->o->spmd_seen)
        s->x->o->spmd_seen(s->x->o->spmd_arg, n, t->how, s->x->mesh->naxes);
    if (t->merges) {
        node_expose(s->from, s->tmp, n);
        return before ? before->next : s->from->first;
    }
    if (is_put_off(s, n, t))
        put_off(s, n, f, t);
    else
        emit_part(s, n, f, t);
    if (s->x->unpicked && s->x->free)
        PUSH(s->tmp, s->x->rest, s->x->nrest, s->x->caprest,
             ((IdRange){s->to, first, s->to->nnode, loop_times(s)}));
    return next;
}

void spmd_nodes(SpmdGraph *s)
{
    for (Node *n = s->from->first; n;)
        n = rewrite_node(s, n);
}

/* ---- what the optimizer and outputs read ---- */

static bool same_shape(const Node *n, const Value *v)
{
    return n->op->class == CLASS_POINTWISE && shape_equal(&v->type, &n->out[0]->type);
}

/* The form of a view's operand where its result is wanted so; whole where there is no such form. */
static Sharding *viewed_sharding(SpmdGraph *s, const Node *n, const Sharding *wanted)
{
    Sharding *y = NEW(s->tmp, Sharding);
    Factors *f = node_factors(s->tmp, n);
    Cut *out = NEWN(s->tmp, Cut, n->nout);
    NodeCut how;
    CutStop stop;
    for (int c = 0; c < s->x->mesh->naxes; c++) {
        memset(out, 0, sizeof *out * (size_t)n->nout);
        out[0] = wanted->cut[c];
        if (out[0].kind == CUT_SLICE && cut_backward(n, f, s->x->cuts[c].count, out, &how, &stop))
            cut_fill(n, f, &how, &y->cut[c], out);
    }
    return y;
}

/* Gradients are wanted in the form of their parameter; so is what they are made of. */
static void find_wanted(SpmdGraph *s, const Sharding *in, const Sharding *out)
{
    const Graph *g = s->from;
    for (int i = 0; i < g->nout; i++)
        spmd_logical(s, g->out[i].v)->wanted = &out[i];
    for (const Node *n = g->last; n; n = n->prev) {
        const Sharding *wanted = spmd_logical(s, n->out[0])->wanted;
        if (n->op->class == CLASS_OPTIMIZER && n->nin > 1 && !n->in[0]->def)
            spmd_logical(s, n->in[1])->wanted = &in[n->in[0]->index];
        for (int i = 0; i < n->nin && wanted; i++)
            if (same_shape(n, n->in[i]) && !spmd_logical(s, n->in[i])->wanted)
                spmd_logical(s, n->in[i])->wanted = wanted;
        if (wanted && n->op->view && !spmd_logical(s, n->in[0])->wanted)
            spmd_logical(s, n->in[0])->wanted = viewed_sharding(s, n, wanted);
    }
}

/* ---- the graph ---- */

/* This rank's start in what an axis cuts, a constant of its graph. */
static Value *rank_start(void *arg, Build *b, int64_t step)
{
    const int64_t *at = arg;
    return emit1(b, "full", 0, NULL,
                 ATTRS(A_INTS("size", 0, NULL), A_FLOAT("fill_value", (double)(*at * step)),
                       A_DTYPE("dtype", I64)));
}

static void add_inputs(SpmdGraph *s, const Sharding *in)
{
    const Graph *g = s->from;
    const Mesh *m = s->x->mesh;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        Type t = cut_local_type(&p->v->type, m, in[i].cut);
        Value *v = graph_input_like(s->to, p, &t);
        Cut *cut = NEWN(s->to->a, Cut, m->naxes);
        memcpy(cut, in[i].cut, sizeof *cut * (size_t)m->naxes);
        s->to->in[i].cut = cut;
        LogicalValue *k = spmd_logical(s, p->v);
        k->param = p->role == ROLE_PARAM;
        k->alone = p->role == ROLE_PARAM || p->role == ROLE_SEED || p->role == ROLE_STEP;
        k->of = in[i];
        form_add(s, p->v, cut, v, NULL);
    }
}

static void add_outputs(SpmdGraph *s, const Sharding *out)
{
    const Graph *g = s->from;
    const Mesh *m = s->x->mesh;
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        Cut *cut = NEWN(s->to->a, Cut, m->naxes);
        memcpy(cut, out[i].cut, sizeof *cut * (size_t)m->naxes);
        graph_output(s->to, form_get(s, p->v, cut, NULL), p->role, p->name);
        s->to->out[i].cut = cut;
        s->to->out[i].line = p->line;
        s->to->out[i].column = p->column;
    }
}

static Spmd start(const Graph *g, const PassOptions *o, Mesh *m)
{
    Spmd x = {.o = o,
              .ctx = g->ctx,
              .mesh = m,
              .machine = o->prices,
              .keep = gathers_are_kept(o),
              .draw = (uint64_t)o->spmd_choice};
    for (int c = 0; c < m->naxes; c++) {
        x.kind[c] = mesh_axis_kind(m->name[c]);
        x.cuts[c] = (PartCut){m->size[c], 1, rank_start, &m->at[c]};
    }
    return x;
}

/* Empties g, which keeps its name, file and arena. */
static void empty(Graph *g)
{
    g->in = g->out = NULL;
    g->nin = g->nout = g->capin = g->capout = 0;
    g->first = g->last = NULL;
    g->nnode = g->nvalue = 0;
    g->names = (Map){.a = g->a};
}

/* Parameters that no rule names have no form yet, nor has what goes with them. */
static void free_params(const Graph *g, Sharding *in, Sharding *out)
{
    for (int k = 0; k < g->nin + g->nout; k++) {
        const Port *p = k < g->nin ? &g->in[k] : &g->out[k - g->nin];
        Sharding *s = k < g->nin ? &in[k] : &out[k - g->nin];
        bool follows = p->role == ROLE_PARAM || p->role == ROLE_STATE || p->role == ROLE_GRAD ||
                       p->role == ROLE_NEW;
        if (follows && !s->ruled)
            memset(s, 0, sizeof *s);
    }
}

/* A copy of g with the forms of recipes and rules in in[] and out[], ready for the walk. */
static Graph *prepare(Graph *g, Arena *tmp, const Spmd *x, const Sharding *in, const Sharding *out)
{
    Graph *y = graph_clone(g->a, g);
    spmd_pad(y, tmp, x->o, x->mesh, in, out);
    spmd_prepare(y, tmp, x->o, x->mesh, in);
    return y;
}

/* A copy of g with all forms chosen at once. */
typedef struct Chosen {
    Graph *g;
    Sharding *in, *out; /* before the choice: those of batches, and what rules say */
    struct Solution *s;
    bool pads; /* parameters */
} Chosen;

static Sharding *copy_shardings(Arena *a, const Sharding *s, int count)
{
    Sharding *y = NEWN(a, Sharding, count);
    memcpy(y, s, sizeof *y * (size_t)count);
    return y;
}

/* in, out: those of recipes and rules. pads: parameters are padded for the recipes' forms. */
static Chosen choose_all(Graph *g, Arena *tmp, const Spmd *x, const PassOptions *o,
                         const Sharding *in, const Sharding *out, bool pads)
{
    Chosen y = {.g = graph_clone(g->a, g),
                .in = copy_shardings(tmp, in, g->nin),
                .out = copy_shardings(tmp, out, g->nout)};
    if (!pads)
        free_params(g, y.in, y.out);
    spmd_pad(y.g, tmp, o, x->mesh, y.in, y.out);
    free_params(g, y.in, y.out);
    y.pads = spmd_pad_asks(g, tmp, y.g, y.in);
    spmd_prepare_choice(y.g, tmp, x, y.in);
    y.s = solved_choose(y.g, tmp, x, y.in, y.out);
    return y;
}

/* A copy of g, ready for the walk, for which all is chosen at once; in[] and out[] get the chosen
 * forms. Padded parameters can be cut in more ways, but must be; so it is chosen without padding
 * too. */
static Graph *prepare_chosen(Graph *g, Arena *tmp, Spmd *x, Sharding *in, Sharding *out)
{
    Chosen y = choose_all(g, tmp, x, x->o, in, out, true);
    if (y.pads) {
        PassOptions quiet = *x->o; /* it has warned */
        quiet.warn = NULL;
        Chosen z = choose_all(g, tmp, x, &quiet, in, out, false);
        y = solved_better(z.s, y.s) ? z : y;
    }
    memcpy(in, y.in, sizeof *in * (size_t)g->nin);
    memcpy(out, y.out, sizeof *out * (size_t)g->nout);
    x->picker = solved_picker(y.s, x, in, out);
    spmd_prepare_chosen(y.g, tmp, x);
    return y.g;
}

/* Seconds of the rank's nodes, of the copies that reshards hold, and of the gathers that the
 * backward has again. */
static double graph_sec(const Spmd *x, const Graph *g)
{
    double sec = x->copied + (x->keep ? 0 : x->again);
    for (const Node *n = g->first; n; n = n->next)
        sec += node_sec(x->machine, x->mesh, n);
    return sec;
}

/* Seconds of nodes for which the picker had no choice: those that add a norm up. */
static double rest_sec(const Spmd *x)
{
    double sec = 0;
    for (int i = 0; i < x->nrest; i++) {
        const IdRange *r = &x->rest[i];
        for (const Node *n = r->g->first; n; n = n->next)
            if (n->id >= r->from && n->id < r->to)
                sec += (double)r->times * node_sec(x->machine, x->mesh, n);
    }
    return sec;
}

/* Fails where that graph was planned before, with other wishes for the choice. */
static void stop_if_seen(const Graph *g, ShardKnown *known)
{
    if (!known || !known->stops)
        return;
    known->hash = graph_hash(g);
    known->twin = -1;
    for (int i = known->nseen - 1; i >= 0; i--)
        if (known->seen[i] == known->hash)
            known->twin = i;
    if (known->twin >= 0)
        fail(g->ctx, TN_FAIL, "shard auto: a step with these forms was planned");
}

int pass_spmd(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (!o->mesh)
        return 0;
    if (g->mesh)
        fail(g->ctx, TN_USAGE, "spmd: the graph is one rank's already, of %s",
             mesh_text(tmp, g->mesh));
    Mesh *m = sharding_mesh(g->ctx, g->a, o);
    Sharding *in = NEWN(tmp, Sharding, g->nin), *out = NEWN(tmp, Sharding, g->nout);
    sharding_fill(g, tmp, o, m, in, out);
    Spmd x = start(g, o, m);
    Map tables = {.a = tmp}, seconds = {.a = tmp};
    ShardKnown *known = o->shard_report ? o->shard_report->known : NULL;
    x.free = sharding_is_solved(o);
    x.tables = &tables;
    x.seconds = known ? &known->seconds : &seconds;
    if (!x.free && (o->pins.count || o->what_if.count))
        fail(g->ctx, TN_USAGE, "%s \"%.300s\": expected shard auto beside it, found none",
             o->pins.count ? "pin" : "what-if", (o->pins.count ? o->pins : o->what_if).pattern[0]);
    Graph *from = x.free ? prepare_chosen(g, tmp, &x, in, out) : prepare(g, tmp, &x, in, out);
    SpmdGraph s = {.x = &x, .tmp = tmp, .from = from, .to = g};
    empty(g);
    g->mesh = m;
    add_inputs(&s, in);
    token_inputs(&s);
    find_wanted(&s, in, out);
    spmd_nodes(&s);
    add_outputs(&s, out);
    if (o->shard_report) {
        o->shard_report->emitted = graph_sec(&x, g);
        o->shard_report->rest = x.free ? rest_sec(&x) : 0;
        if (x.free && !x.keep && !gathers_count_twice(&x))
            o->shard_report->sec += x.again;
        stop_if_seen(g, o->shard_report->known);
    }
    return 1;
}
