/* loop_forms: a loop on the ranks of a mesh. Its bodies are rewritten like graphs, collectives
 * included; its ports say in what forms values enter and leave.
 *
 * An operand enters as it is cut, unless the port itself takes the axis apart: a cut of an axis
 * that the loop slices must lie within an iteration, [iterations][outer][count] outside being
 * [outer][count] inside, without a tail. A partial operand is reduced before. A carry leaves as it
 * entered. Sums over iterations may stay partial on dp, which reduces once after the loop; on
 * other axes the body reduces them to the form that the optimizer reads, so that only this rank's
 * part is added up. If there is a tail, both bodies reduce. Kept parameters of which bodies need
 * other ranks' parts are hoisted: gathered before the loop, and seen through a port of their own.
 */
#include "rewrite.h"

#include <string.h>

/* A value that bodies read beside the loop's operands. */
typedef struct Hoist {
    Value *outer;
    int at[NBODY]; /* the bodies' input; -1: none yet */
} Hoist;

/* The loop under construction. */
struct RankLoop {
    const Node *n;
    SpmdGraph *outer;
    Graph *body[NBODY];
    Cut (*enter)[MAX_MESH]; /* by operand: the form in which it comes */
    Cut (*leave)[MAX_MESH]; /* by result: the form in which it goes; from the first body that has it
                             */
    bool *leaves;           /* by result: `leave` is known */
    Hoist *hoist;
    int nhoist, cap;
};
typedef struct RankLoop RankLoop;

/* ---- ports ---- */

/* Whether a cut of the operand of port j can be seen inside, and how. */
static bool enter(const Region *r, int j, Cut c, Cut *inside)
{
    CutStop stop;
    return !cut_is_partial(c) && cut_enter(r, j, c, inside, &stop);
}

/* Whether a cut of what a body yields to port k can be seen outside, and how. */
static bool leave(const Region *r, int k, Cut c, Cut *outside)
{
    CutStop stop;
    bool sums = c.kind == CUT_SUM && !r->body[TAIL] && r->out[k].kind != PORT_CARRY;
    return (sums || !cut_is_partial(c)) && cut_leave(r, k, c, outside, &stop);
}

/* The cut inside of one outside that leave() has given. */
static Cut leave_inside(const Region *r, const PortOut *p, Cut c)
{
    if (c.kind != CUT_SLICE)
        return c;
    if (p->kind == PORT_STACK)
        c.axis--;
    if (p->kind == PORT_CONCAT && p->axis == c.axis)
        c.outer /= r->n;
    return c;
}

/* ---- operands ---- */

/* The form in which operand i enters: the picker's, or the one that its node made; whole where a
 * port cannot take that. */
static void find_entry(RankLoop *x, int i)
{
    const Region *r = x->n->region;
    const Mesh *m = x->outer->x->mesh;
    const Picker *p = x->outer->x->picker;
    const Cut *picked = p && p->entry ? p->entry(p->arg, x->n, i) : NULL;
    const Cut *cut = picked ? picked : spmd_logical(x->outer, x->n->in[i])->form->cut;
    for (int c = 0; c < m->naxes; c++) {
        Cut inside;
        x->enter[i][c] = cut[c];
        for (int j = 0; j < r->nin; j++)
            if (r->in[j].arg == i && !enter(r, j, cut[c], &inside))
                x->enter[i][c] = (Cut){.kind = CUT_WHOLE};
    }
}

/* ---- a body ---- */

static void add_inputs(SpmdGraph *s)
{
    RankLoop *x = s->loop;
    const Region *r = x->n->region;
    const Mesh *m = s->x->mesh;
    for (int i = 0; i < s->from->nin; i++) {
        Value *v = s->from->in[i].v;
        Cut cut[MAX_MESH] = {{.kind = CUT_WHOLE}};
        for (int j = 0; j < r->nin; j++) {
            int arg = r->in[j].arg;
            if (r->in[j].at[s->body] != i || arg < 0)
                continue;
            for (int c = 0; c < m->naxes; c++) {
                bool good = enter(r, j, x->enter[arg][c], &cut[c]);
                CHECK(good);
            }
            if (r->in[j].kind == PORT_WHOLE) {
                LogicalValue from = *spmd_logical(x->outer, x->n->in[arg]), *k = spmd_logical(s, v);
                k->param = from.param;
                k->alone = from.alone;
                k->of = from.of;
            }
        }
        Value *now = graph_input(s->to, v->name, cut_local_type(&v->type, m, cut), ROLE_NONE, NULL);
        form_add(s, v, cut, now, NULL);
    }
}

int64_t loop_times(const SpmdGraph *s)
{
    return s->loop ? region_times(s->loop->n->region, s->body) * loop_times(s->loop->outer) : 1;
}

const Node *loop_of(const SpmdGraph *s)
{
    return s && s->loop ? s->loop->n : NULL;
}

Value *loop_operand(const SpmdGraph *s, const Value *v)
{
    const Node *n = loop_of(s);
    for (int j = 0; n && j < n->region->nin && !v->def; j++) {
        const PortIn *p = &n->region->in[j];
        if (p->kind == PORT_WHOLE && p->at[s->body] == v->index)
            return n->in[p->arg];
    }
    return NULL;
}

/* The hoisted value `outer`, as the loop knows it. */
static Hoist *find_hoist(RankLoop *x, Value *outer)
{
    for (int j = 0; j < x->nhoist; j++)
        if (x->hoist[j].outer == outer)
            return &x->hoist[j];
    PUSH(x->outer->tmp, x->hoist, x->nhoist, x->cap, ((Hoist){outer, {-1, -1}}));
    return &x->hoist[x->nhoist - 1];
}

Value *loop_hoist(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader)
{
    RankLoop *x = s->loop;
    Value *outer = loop_operand(s, v);
    if (!outer)
        return NULL;
    Node as = *x->n; /* before the loop, and of the block that reads it */
    as.scope = reader ? reader->scope : as.scope;
    as.phase = FORWARD;
    Value *made = form_get(x->outer, outer, need, &as);
    Hoist *h = find_hoist(x, made);
    int *at = &h->at[s->body];
    if (*at < 0) {
        *at = s->to->nin;
        graph_input(s->to, graph_fresh(s->to, made->name), made->type, ROLE_NONE, NULL);
    }
    Value *now = s->to->in[*at].v;
    form_add(s, v, need, now, NULL);
    return now;
}

/* Whether the body can yield v so that result k has the form x->leave[k]. */
static bool exit_legal(const SpmdGraph *s, int k, const Value *v)
{
    const RankLoop *x = s->loop;
    Cut cut[MAX_MESH];
    for (int c = 0; c < s->x->mesh->naxes; c++)
        cut[c] = leave_inside(x->n->region, &x->n->region->out[k], x->leave[k][c]);
    return cut_value_legal(&v->type, s->x->mesh->naxes, s->x->cuts, cut);
}

/* Whether result k can go in that form. */
static bool may_leave(const RankLoop *x, int k, const Cut *cut)
{
    Cut to;
    for (int c = 0; c < x->outer->x->mesh->naxes; c++)
        if (!leave(x->n->region, k, leave_inside(x->n->region, &x->n->region->out[k], cut[c]), &to))
            return false;
    return true;
}

/* The form in which result k goes: the picker's; or as the body yields it, and where that is
 * partial as the optimizer wants it. If the two do not go together, all that is wanted, and the
 * rest whole. */
static void find_exit(SpmdGraph *s, int k, const Value *v)
{
    RankLoop *x = s->loop;
    const Region *r = x->n->region;
    const PortOut *p = &r->out[k];
    const Picker *picker = s->x->picker;
    const Cut *picked = picker && picker->exit ? picker->exit(picker->arg, x->n, k) : NULL;
    const RankForm *h = spmd_logical(s, v)->form;
    const Sharding *wanted = spmd_logical(x->outer, x->n->out[k])->wanted;
    bool sums = wanted && (p->kind == PORT_SUM || p->kind == PORT_TAIL);
    x->leaves[k] = true;
    if (picked && may_leave(x, k, picked)) {
        memcpy(x->leave[k], picked, sizeof(Cut) * (size_t)s->x->mesh->naxes);
        return;
    }
    for (int c = 0; c < s->x->mesh->naxes; c++) {
        Cut now = h->cut[c], *to = &x->leave[k][c];
        if (p->kind == PORT_CARRY)
            now = x->enter[r->in[p->carry].arg][c];
        if (sums && cut_is_partial(now) && wanted->cut[c].kind == CUT_SLICE)
            *to = wanted->cut[c];
        else if (!leave(r, k, now, to))
            *to = (Cut){.kind = CUT_WHOLE};
    }
    if (sums && !exit_legal(s, k, v))
        memcpy(x->leave[k], wanted->cut, sizeof wanted->cut);
}

static void add_outputs(SpmdGraph *s)
{
    RankLoop *x = s->loop;
    const Region *r = x->n->region;
    for (int i = 0; i < s->from->nout; i++) {
        Value *v = s->from->out[i].v;
        Cut cut[MAX_MESH];
        int k = 0;
        while (r->out[k].at[s->body] != i)
            k++;
        if (!x->leaves[k])
            find_exit(s, k, v);
        for (int c = 0; c < s->x->mesh->naxes; c++)
            cut[c] = leave_inside(r, &r->out[k], x->leave[k][c]);
        token_leave(x->outer, s, x->n, k, v);
        graph_output(s->to, form_get(s, v, cut, NULL), ROLE_NONE, NULL);
    }
}

static void rewrite_body(RankLoop *x, int t)
{
    SpmdGraph s = {.x = x->outer->x,
                   .tmp = x->outer->tmp,
                   .from = x->n->region->body[t],
                   .to = graph_body(x->outer->to),
                   .loop = x,
                   .body = t};
    x->body[t] = s.to;
    add_inputs(&s);
    token_body(&s, x->outer, x->n, t);
    spmd_nodes(&s);
    add_outputs(&s);
}

/* ---- the loop ---- */

/* Ports for what was hoisted: every body sees them. */
static Region *make_region(RankLoop *x, Value **in)
{
    Graph *g = x->outer->to;
    const Region *old = x->n->region;
    Region *r = NEW(g->a, Region);
    *r = *old;
    r->in = NEWN(g->a, PortIn, old->nin + x->nhoist);
    memcpy(r->in, old->in, sizeof *r->in * (size_t)old->nin);
    r->out = NEWN(g->a, PortOut, old->nout);
    memcpy(r->out, old->out, sizeof *r->out * (size_t)old->nout);
    for (int t = 0; t < NBODY; t++)
        r->body[t] = x->body[t];
    for (int j = 0; j < x->nhoist; j++) {
        Hoist *h = &x->hoist[j];
        PortIn p = {.kind = PORT_WHOLE, .arg = x->n->nin + j, .at = {-1, -1}};
        for (int t = 0; t < region_nbody(r); t++) {
            Graph *body = r->body[t];
            p.at[t] = h->at[t] >= 0 ? h->at[t] : body->nin;
            if (h->at[t] < 0)
                graph_input(body, graph_fresh(body, h->outer->name), h->outer->type, ROLE_NONE,
                            NULL);
        }
        in[p.arg] = h->outer;
        r->in[r->nin++] = p;
    }
    return r;
}

void loop_rewrite(SpmdGraph *s, const Node *n)
{
    Arena *tmp = s->tmp;
    RankLoop x = {.n = n,
                  .outer = s,
                  .enter = arena_alloc(tmp, sizeof(Cut[MAX_MESH]) * (size_t)MAX(n->nin, 1)),
                  .leave = arena_alloc(tmp, sizeof(Cut[MAX_MESH]) * (size_t)MAX(n->nout, 1)),
                  .leaves = NEWN(tmp, bool, n->nout)};
    Value **in = NEWN(tmp, Value *, n->nin);
    for (int i = 0; i < n->nin; i++) {
        find_entry(&x, i);
        in[i] = form_get(s, n->in[i], x.enter[i], n);
    }
    EACH_BODY(t, n)
        rewrite_body(&x, t);
    Value **all = NEWN(tmp, Value *, n->nin + x.nhoist);
    memcpy(all, in, sizeof *in * (size_t)n->nin);
    Region *r = make_region(&x, all);
    const char **names = graph_fresh_results(s->to, n, "");
    Build b = build_like(s->to, NULL, n);
    Node *m = emit_named(&b, n->op, n->nin + x.nhoist, all, n->attr, r, n->stream, names, n->nout);
    spmd_order(s, n, m);
    for (int k = 0; k < n->nout; k++)
        form_add(s, n->out[k], x.leave[k], m->out[k], NULL);
}
