/* accumulate: wraps forward, loss and backward in one loop over K microbatches.
 *
 * Every value is in one of four states with respect to the rows of the batch inputs (axis 0):
 *   WHOLE    does not depend on them;
 *   ROWS     has them, major, on one axis (of rows * inner elements): a turn computes its part;
 *   PARTIAL  is a sum over them: the turns' values are added;
 *   AFTER    depends on such a sum and not on single rows.
 * The states follow from each op's factors. An op that needs all rows at once makes the pass fail
 * and name it, and so does one that mixes rows with a sum over rows: it would need a second loop.
 *
 * WHOLE nodes stay before the loop, but for constants, which the bodies make again; where one meets
 * the rows axis by axis it is sliced. count_labels is WHOLE: labels that count are counted over the
 * whole step. AFTER nodes run behind the loop, once, on the sums. Sums of sums (a parameter that is
 * used twice) are added in the turn, so that the loop holds one accumulator; views of sums are
 * taken wherever they are read. Random ops get the turn's global offset, so masks do not depend on
 * K. The last turn is a body of its own where K does not divide the rows.
 *
 * Numerics: the turns are summed in f32 (f64 for f64), in turn order; nothing else changes. Linear
 * in the size of the graph, but for operands searched among the ports. */
#include "pass.h"

#include <string.h>

typedef enum { WHOLE, ROWS, PARTIAL, AFTER } State;

typedef struct Cut {
    State state;
    int axis;
    int64_t inner; /* elements of the axis for one row */
} Cut;

typedef struct Accumulate {
    Graph *g;
    Arena *tmp;
    int64_t rows, part, turns, rest; /* all, of a main turn, main turns, rows of the tail */
    Cut *cut;                        /* by value id */
    Factors **factors;               /* by node id: of those that are cut */
    int *factor;                     /* by node id: the factor that carries the rows, or -1 */
    bool *before, *inside, *after;   /* by node id: where it runs; none: nowhere */
    bool *yielded;                   /* by value id: a result of the loop */
    Region *r;
    Value **in;
    int nin, capin, capport, capout;
} Accumulate;

/* ---- rows and turns ---- */

static void find_rows(Accumulate *s)
{
    Graph *g = s->g;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        if (p->role != ROLE_BATCH)
            continue;
        if (!p->v->type.rank || (s->rows && p->v->type.dim[0] != s->rows))
            fail(g->ctx, TN_FAIL, "accumulate: batch input %%%s: expected %lld rows, found %s",
                 p->v->name, (long long)s->rows, type_text(g->a, &p->v->type));
        s->rows = p->v->type.dim[0];
        s->cut[p->v->id] = (Cut){ROWS, 0, 1};
    }
    if (!s->rows)
        fail(g->ctx, TN_USAGE, "accumulate: the graph has no batch input with rows");
}

static void find_turns(Accumulate *s, int64_t count)
{
    s->part = s->rows / count + (s->rows % count > 0);
    s->turns = s->rows / s->part;
    s->rest = s->rows % s->part;
    if (s->turns + (s->rest > 0) != count)
        fail(s->g->ctx, TN_USAGE, "accumulate: %lld rows in %lld turns of %lld leave a turn empty",
             (long long)s->rows, (long long)count, (long long)s->part);
}

/* ---- states ---- */

_Noreturn static void refuse(const Accumulate *s, const Node *n, const char *why, int i)
{
    fail_node(s->g, n, "cannot be cut into microbatches: %s %d (%%%s)", why, i,
              i < n->nin ? n->in[i]->name : "?");
}

/* The factor of the rows: the major one of each operand that has them. */
static int row_factor(const Accumulate *s, const Node *n, const Factors *f)
{
    int found = -1;
    for (int i = 0; i < n->nin; i++) {
        const Cut *c = &s->cut[n->in[i]->id];
        if (c->state != ROWS)
            continue;
        const Axes *x = &f->in[i];
        int k = x->n[c->axis] ? x->f[c->axis][0] : -1;
        if (k < 0 || (found >= 0 && k != found) || f->factor[k].size % s->rows ||
            f->factor[k].kind == FACTOR_REPLICATE || f->factor[k].npartial || f->factor[k].placed)
            refuse(s, n, "it needs all rows of operand", i);
        found = k;
    }
    return found;
}

static void cut_result(Accumulate *s, const Node *n, const Factors *f, int factor, int k)
{
    const Axes *x = &f->out[k];
    const Type *t = &n->out[k]->type;
    Cut *c = &s->cut[n->out[k]->id];
    *c = (Cut){.state = PARTIAL};
    for (int d = 0; d < t->rank; d++)
        for (int i = 0; i < x->n[d]; i++)
            if (x->f[d][i] == factor && i)
                fail_node(s->g, n, "cannot be cut into microbatches: rows are not major on axis %d",
                          d);
            else if (x->f[d][i] == factor)
                *c = (Cut){ROWS, d, t->dim[d] / s->rows};
    if (c->state == PARTIAL && f->factor[factor].kind != FACTOR_SUM)
        fail_node(s->g, n, "cannot be cut into microbatches: result %d is not a sum over rows", k);
}

/* A random op draws by position, so it can be cut wherever the rows lie. */
static bool cut_random(Accumulate *s, const Node *n)
{
    if (n->op->class != CLASS_RANDOM || s->cut[n->in[0]->id].state != ROWS)
        return false;
    for (int k = 0; k < n->nout; k++)
        s->cut[n->out[k]->id] = s->cut[n->in[0]->id];
    return true;
}

static void cut_node(Accumulate *s, const Node *n)
{
    if (n->region)
        fail_node(s->g, n, "cannot be cut into microbatches: it is a region%s",
                  n->op->region == FUSED ? "; expected the pass unfuse before" : "");
    if (cut_random(s, n))
        return;
    Factors *f = s->factors[n->id] = node_factors(s->tmp, n);
    int factor = s->factor[n->id] = row_factor(s, n, f);
    for (int k = 0; k < n->nout; k++)
        cut_result(s, n, f, factor, k);
}

static void find_state(Accumulate *s, const Node *n)
{
    int count[4] = {0}, sum = -1;
    for (int i = 0; i < n->nin; i++) {
        State x = s->cut[n->in[i]->id].state;
        count[x]++;
        sum = x >= PARTIAL ? i : sum;
    }
    bool whole = (!count[ROWS] || n->op->counts) && sum < 0;
    if (count[ROWS] && sum >= 0)
        refuse(s, n, "it mixes rows with a sum over rows, operand", sum);
    if (count[ROWS] && !whole) {
        cut_node(s, n);
        return;
    }
    bool joins = node_is(n, OP_add) || node_is(n, OP_sub) || n->op->view;
    State state = whole ? WHOLE : joins && count[PARTIAL] == n->nin ? PARTIAL : AFTER;
    for (int k = 0; k < n->nout; k++)
        s->cut[n->out[k]->id] = (Cut){.state = state};
}

/* The axis of WHOLE operand i that goes with the rows of the others, or -1. */
static int row_axis(const Accumulate *s, const Node *n, int i)
{
    int factor = s->factor[n->id];
    if (factor < 0 || s->cut[n->in[i]->id].state != WHOLE)
        return -1;
    const Axes *x = &s->factors[n->id]->in[i];
    for (int d = 0; d < n->in[i]->type.rank; d++)
        for (int k = 0; k < x->n[d]; k++)
            if (x->f[d][k] == factor && k)
                refuse(s, n, "rows are not major in operand", i);
            else if (x->f[d][k] == factor)
                return d;
    return -1;
}

/* ---- what runs where ---- */

static bool runs_after(const Accumulate *s, const Node *n)
{
    State x = s->cut[n->out[0]->id].state;
    return x == AFTER || (x == PARTIAL && n->op->view);
}

/* Whether the bodies make operand i of a node of theirs themselves. */
static bool made_inside(const Accumulate *s, const Node *n, int i)
{
    const Value *v = n->in[i];
    return v->def &&
           (s->cut[v->id].state != WHOLE || (node_is(v->def, OP_full) && row_axis(s, n, i) < 0));
}

/* Backwards from the outputs, which are wanted outside of the loop. */
static void find_places(Accumulate *s)
{
    bool *wanted = NEWN(s->tmp, bool, s->g->nvalue), *needed = NEWN(s->tmp, bool, s->g->nvalue);
    for (int i = 0; i < s->g->nout; i++)
        wanted[s->g->out[i].v->id] = true;
    for (const Node *n = s->g->last; n; n = n->prev) {
        bool later = runs_after(s, n);
        s->before[n->id] |= s->cut[n->out[0]->id].state == WHOLE;
        for (int k = 0; k < n->nout; k++) {
            int id = n->out[k]->id;
            s->after[n->id] |= wanted[id] && later;
            s->yielded[id] = wanted[id] && !later && !s->before[n->id];
            s->inside[n->id] |= needed[id] || s->yielded[id];
        }
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            wanted[v->id] |= s->after[n->id];
            needed[v->id] |= s->inside[n->id] && made_inside(s, n, i);
            if (v->def && s->before[n->id])
                s->before[v->def->id] = true;
        }
    }
}

/* ---- ports; body inputs have the index of their port: both bodies see every port here ---- */

/* The port by which a node of the bodies sees operand i; false where they make it themselves. */
static bool operand_port(const Accumulate *s, const Node *n, int i, PortIn *p)
{
    const Cut *c = &s->cut[n->in[i]->id];
    int axis = c->state == ROWS ? c->axis : row_axis(s, n, i);
    *p = (PortIn){.kind = axis < 0 ? PORT_WHOLE : PORT_SLICE, .axis = MAX(axis, 0)};
    return !made_inside(s, n, i);
}

/* The port by which a random node sees where its part begins; false where it needs none. */
static bool offset_port(const Accumulate *s, const Node *n, PortIn *p)
{
    const Cut *c = &s->cut[n->out[0]->id];
    *p = (PortIn){.kind = PORT_OFFSET, .step = s->part * c->inner};
    return n->op->class == CLASS_RANDOM && c->state == ROWS;
}

/* The index of the port like p for v (NULL: none), or -1. */
static int find_port(const Accumulate *s, const PortIn *p, const Value *v)
{
    for (int j = 0; j < s->r->nin; j++) {
        const PortIn *q = &s->r->in[j];
        if (q->kind == p->kind && q->axis == p->axis && q->step == p->step &&
            (q->arg < 0 ? NULL : s->in[q->arg]) == v)
            return j;
    }
    return -1;
}

static void need_port(Accumulate *s, PortIn p, Value *v)
{
    Arena *a = s->g->a;
    if (find_port(s, &p, v) >= 0)
        return;
    p.at[MAIN] = s->r->nin;
    p.at[TAIL] = s->rest ? p.at[MAIN] : -1;
    p.arg = v ? s->nin : -1;
    if (v)
        PUSH(a, s->in, s->nin, s->capin, v);
    PUSH(a, s->r->in, s->r->nin, s->capport, p);
}

static void find_ports(Accumulate *s)
{
    PortIn p;
    for (const Node *n = s->g->first; n; n = n->next) {
        if (!s->inside[n->id])
            continue;
        for (int i = 0; i < n->nin; i++)
            if (operand_port(s, n, i, &p))
                need_port(s, p, n->in[i]);
        if (offset_port(s, n, &p))
            need_port(s, p, NULL);
    }
}

static void find_results(Accumulate *s)
{
    for (const Node *n = s->g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            const Value *v = n->out[k];
            const Cut *c = &s->cut[v->id];
            if (!s->yielded[v->id])
                continue;
            DType d = v->type.dtype;
            PortOut o = {.kind = c->state == ROWS ? PORT_CONCAT : PORT_SUM,
                         .axis = c->axis,
                         .at = {s->r->nout, s->rest ? s->r->nout : -1},
                         .dtype = dtype_float(d) && d != F64 ? F32 : d};
            PUSH(s->g->a, s->r->out, s->r->nout, s->capout, o);
        }
    if (!s->r->nout)
        fail(s->g->ctx, TN_FAIL, "accumulate: no output depends on a batch input");
}

/* ---- bodies ---- */

typedef struct Body {
    Graph *g;
    int64_t rows;
    Value **now; /* by value id of the outer graph */
} Body;

/* By factor of n: how much of it a part of so many rows has. */
static const int64_t *part_sizes(const Accumulate *s, const Node *n, int64_t rows)
{
    const Factors *f = s->factors[n->id];
    int64_t *size = NEWN(s->tmp, int64_t, MAX_FACTOR);
    for (int i = 0; i < f->count; i++)
        size[i] = i == s->factor[n->id] ? f->factor[i].size / s->rows * rows : f->factor[i].size;
    return size;
}

static void insert_int(Arena *a, Attr *list, int64_t at, int64_t x)
{
    int64_t *longer = NEWN(a, int64_t, list->i + 1);
    for (int64_t i = 0; i <= list->i; i++)
        longer[i] = i == at ? x : list->ints[i - (i > at)];
    list->ints = longer;
    list->i++;
}

/* Tells a random op where its part lies in the whole step's tensor: its operands for offsets come
 * last, one for each of its `axes`. Returns how many operands it has then. */
static int place_random(const Accumulate *s, Build *b, const Node *n, Value **in, Attr *attr)
{
    PortIn p;
    if (!offset_port(s, n, &p))
        return n->nin;
    const Cut *c = &s->cut[n->out[0]->id];
    Attr *axes = &attr[attr_index(n->op, "axes")], *extents = &attr[attr_index(n->op, "extents")];
    Value *turn = b->g->in[find_port(s, &p, NULL)].v;
    int at = 0, first = n->nin - (int)axes->i;
    while (at < axes->i && axes->ints[at] < c->axis)
        at++;
    if (at < axes->i && axes->ints[at] == c->axis) {
        in[first + at] = emit1(b, "add", IN(in[first + at], turn), NOATTRS);
        return n->nin;
    }
    memmove(&in[first + at + 1], &in[first + at], sizeof *in * (size_t)(axes->i - at));
    in[first + at] = turn;
    insert_int(s->g->a, axes, at, c->axis);
    insert_int(s->g->a, extents, at, n->out[0]->type.dim[c->axis]);
    return n->nin + 1;
}

static void copy_node(const Accumulate *s, const Body *x, const Node *n)
{
    Build b = {.g = x->g,
               .phase = n->phase,
               .policy = n->policy,
               .scope = n->scope,
               .origin = n->origin,
               .line = n->line,
               .column = n->column};
    Value **in = NEWN(s->tmp, Value *, n->nin + 1);
    PortIn p;
    for (int i = 0; i < n->nin; i++)
        in[i] = operand_port(s, n, i, &p) ? x->g->in[find_port(s, &p, n->in[i])].v
                                          : x->now[n->in[i]->id];
    int nin = n->nin;
    Value **out = NEWN(s->tmp, Value *, n->nout);
    bool cut = s->factor[n->id] >= 0 && n->op->class != CLASS_RANDOM;
    Part part = {.b = &b,
                 .n = n,
                 .f = cut ? s->factors[n->id] : NEW(s->tmp, Factors),
                 .size = cut ? part_sizes(s, n, x->rows) : NULL,
                 .start = NEWN(s->tmp, Value *, MAX_FACTOR),
                 .in = in,
                 .out = out};
    Attr *attr = part_attr(&part);
    nin = place_random(s, &b, n, in, attr);
    if (cut && n->op->rules->part)
        n->op->rules->part(&part);
    else {
        const char **names = NEWN(s->tmp, const char *, n->nout);
        for (int k = 0; k < n->nout; k++)
            names[k] = graph_fresh(x->g, n->out[k]->name);
        out = emit_named(&b, n->op, nin, in, attr, NULL, n->stream, names, n->nout)->out;
    }
    for (int k = 0; k < n->nout; k++)
        x->now[n->out[k]->id] = out[k];
    Node *m = out[0]->def;
    if (n->nafter)
        m->after = NEWN(s->g->a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++)
        m->after[m->nafter++] = x->now[n->after[i]->out[0]->id]->def;
}

static Graph *make_body(const Accumulate *s, int64_t rows)
{
    Body x = {graph_body(s->g), rows, NEWN(s->tmp, Value *, s->g->nvalue)};
    for (int j = 0; j < s->r->nin; j++) {
        const PortIn *p = &s->r->in[j];
        Type t = p->arg < 0 ? type_make(I64, 0, NULL) : s->in[p->arg]->type;
        if (p->kind == PORT_SLICE)
            t.dim[p->axis] = t.dim[p->axis] / s->rows * rows;
        graph_input(x.g, p->arg < 0 ? "offset" : s->in[p->arg]->name, t, ROLE_NONE, NULL);
    }
    for (const Node *n = s->g->first; n; n = n->next) {
        if (!s->inside[n->id])
            continue;
        copy_node(s, &x, n);
        for (int k = 0; k < n->nout; k++)
            if (s->yielded[n->out[k]->id])
                graph_output(x.g, x.now[n->out[k]->id], ROLE_NONE, NULL);
    }
    return x.g;
}

/* ---- the graph around the loop ---- */

/* An order edge must not cross the border of the loop. */
static void check_order(const Accumulate *s)
{
    for (const Node *n = s->g->first; n; n = n->next)
        for (int i = 0; i < n->nafter; i++) {
            int m = n->after[i]->id;
            bool in = s->inside[n->id] && !s->inside[m];
            bool out = (s->before[n->id] || s->after[n->id]) && !s->before[m] && !s->after[m];
            if (in || out || (s->before[n->id] && s->after[m]))
                fail_node(s->g, n,
                          "cannot be cut into microbatches: its order after %%%s crosses the loop",
                          n->after[i]->out[0]->name);
        }
}

/* Takes out what no longer runs outside of the loop; old[] and names[] get what the loop yields
 * instead. */
static void take_apart(Accumulate *s, Value **old, const char **names)
{
    int count = 0;
    EACH_NODE(n, s->g) {
        if (!s->before[n->id] && !s->after[n->id])
            node_unlink(s->g, n);
        for (int k = 0; k < n->nout; k++)
            if (s->yielded[n->out[k]->id]) {
                names[count] = n->out[k]->name;
                old[count++] = n->out[k];
            }
    }
}

/* Nodes that read the loop's results go behind it; now[] is what values became, by id. */
static void move_behind(const Accumulate *s, const Node *loop, Value *const *now)
{
    EACH_NODE(n, s->g) {
        if (n == loop)
            return;
        if (!s->after[n->id])
            continue;
        node_move(s->g, n, NULL);
        for (int i = 0; i < n->nin; i++)
            if (now[n->in[i]->id])
                n->in[i] = now[n->in[i]->id];
        n->phase = MAX(n->phase, loop->phase);
        if (n->region)
            region_fit_phase(n);
    }
}

static void rebuild(Accumulate *s)
{
    Graph *g = s->g;
    int nvalue = g->nvalue;
    const char **names = NEWN(s->tmp, const char *, s->r->nout);
    Value **now = NEWN(s->tmp, Value *, nvalue), **old = NEWN(s->tmp, Value *, s->r->nout);
    take_apart(s, old, names);
    Build b = {.g = g};
    const Op *op = op_get(g->ctx, "loop");
    Node *loop =
        emit_named(&b, op, s->nin, s->in, attrs_make(g, op, NULL), s->r, -1, names, s->r->nout);
    region_fit_phase(loop);
    b.phase = loop->phase;
    for (int k = 0; k < loop->nout; k++)
        now[old[k]->id] = emit_cast(&b, loop->out[k], old[k]->type.dtype);
    move_behind(s, loop, now);
    for (int i = 0; i < g->nout; i++)
        if (now[g->out[i].v->id])
            g->out[i].v = now[g->out[i].v->id];
}

static Accumulate start(Graph *g, Arena *tmp)
{
    Accumulate s = {.g = g, .tmp = tmp, .r = NEW(g->a, Region)};
    s.cut = NEWN(tmp, Cut, g->nvalue);
    s.yielded = NEWN(tmp, bool, g->nvalue);
    s.factors = NEWN(tmp, Factors *, g->nnode);
    s.factor = NEWN(tmp, int, g->nnode);
    s.before = NEWN(tmp, bool, g->nnode);
    s.inside = NEWN(tmp, bool, g->nnode);
    s.after = NEWN(tmp, bool, g->nnode);
    for (int i = 0; i < g->nnode; i++)
        s.factor[i] = -1;
    return s;
}

int pass_accumulate(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->accumulate <= 1)
        return 0;
    Accumulate s = start(g, tmp);
    find_rows(&s);
    find_turns(&s, o->accumulate);
    for (const Node *n = g->first; n; n = n->next)
        find_state(&s, n);
    find_places(&s);
    check_order(&s);
    find_ports(&s);
    find_results(&s);
    s.r->n = s.turns;
    s.r->body[MAIN] = make_body(&s, s.part);
    s.r->body[TAIL] = s.rest ? make_body(&s, s.rest) : NULL;
    rebuild(&s);
    return 1;
}
