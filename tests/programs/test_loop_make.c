/* Loops that loop_make makes of nodes chosen by hand, of the forward and the backward alike: the
 * graph with the loop must give what it gave before, in double, by the interpreter and by plan,
 * whatever the number of slices; the loop's results must be of the kinds expected; and what a
 * caller gets wrong is refused by name.
 *
 * A case names the values that are cut. What reads slices is inside, and so is what is linear in
 * sums alone; what reads sums else is behind the loop, if it stands before the node `before`. */
#include "../../src/pass/loop_make.h"
#include "../shared/graphs.h"
#include "../shared/test.h"

#include <string.h>

static Ctx ctx;

/* What a caller gets wrong about the value or node that the case names. */
typedef enum {
    RIGHT,
    WRONG_NOT_BEHIND,
    WRONG_NOT_YIELDED,
    WRONG_NOT_INSIDE,
    WRONG_OUTSIDE_TOO,
    WRONG_WHOLE,
    WRONG_ORDER
} Wrong;

typedef struct LoopCase {
    const char *name;
    int64_t units;
    const char *cut;    /* "x y:1:2": values sliced along an axis (0), with an outer (1) */
    const char *ones;   /* NULL, or the value that bodies read as ones */
    const char *scaled; /* the values that are multiplied by it behind the loop */
    const char *again;  /* whole values that bodies compute, too */
    const char *before; /* NULL, or a result of the node before which the loop stands */
    const char *within; /* NULL, or a result of the loop in whose body it is made */
    const char *ports;  /* kinds and dtypes of the loop's results where products add themselves */
    bool narrow;        /* sums in their own dtype */
    int addmm;          /* in the main body then */
    double near;        /* relative difference; 0: 1e-12 */
    Wrong wrong;        /* what is not as it should be ... */
    const char *at;     /* ... of which value */
    const char *error;  /* a part of the message with which it is refused */
    const char *text;
} LoopCase;

/* ---- which nodes, and how they are cut ---- */

/* Whether the list "a b:1:2" has the name; what follows it there goes to *rest. */
static bool listed(const char *list, const char *name, const char **rest)
{
    size_t n = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, " "), at += *at == ' ')
        if (!strncmp(at, name, n) && (!at[n] || at[n] == ' ' || at[n] == ':')) {
            *rest = at + n;
            return true;
        }
    return false;
}

static bool in_list(const char *list, const Value *v)
{
    const char *rest;
    return listed(list, v->name, &rest);
}

static Cut listed_cut(const LoopCase *c, const Value *v)
{
    const char *rest;
    int axis = 0, outer = 1;
    if (!listed(c->cut, v->name, &rest))
        return (Cut){.kind = CUT_WHOLE};
    sscanf(rest, ":%d:%d", &axis, &outer);
    return (Cut){CUT_SLICE, axis, outer};
}

typedef struct Choice {
    const LoopCase *c;
    Graph *g;
    Arena *a;
    LoopPart p;
    bool *late; /* by value id: it depends on sums */
} Choice;

/* Places n, by the cuts of its operands. */
static void place_node(Choice *x, const Node *n)
{
    Cut *in = NEWN(x->a, Cut, n->nin), *out = NEWN(x->a, Cut, n->nout);
    NodeCut *how = &x->p.cut.node[n->id];
    CutStop stop;
    bool sliced = false, sums = n->nin > 0, late = false;
    for (int i = 0; i < n->nin; i++) {
        bool one = in_list(x->c->ones, n->in[i]);
        in[i] = x->p.cut.value[n->in[i]->id];
        if (one)
            in[i] = (Cut){.kind = CUT_WHOLE};
        sliced |= in[i].kind == CUT_SLICE;
        sums &= in[i].kind == CUT_SUM;
        late |= x->p.cut.value[n->in[i]->id].kind == CUT_SUM || x->late[n->in[i]->id];
    }
    x->p.inside[n->id] = !n->op->counts && (sliced || (sums && op_linear(n, (1ULL << n->nin) - 1)));
    x->p.outside[n->id] = !x->p.inside[n->id];
    if (in_list(x->c->again, n->out[0])) {
        x->p.inside[n->id] = true;
        return;
    }
    if (x->p.inside[n->id] && n->op->region) {
        if (!cut_loop_forward(n, x->a, x->p.cut.count, in, how, out, &stop))
            fail_node(x->g, n, "%s", cut_stop_text(x->a, n, &stop));
    } else if (x->p.inside[n->id]) {
        Factors *f = node_factors(x->a, n);
        if (!cut_forward(n, f, x->p.cut.count, in, how, &stop))
            fail_node(x->g, n, "%s", cut_stop_text(x->a, n, &stop));
        cut_fill(n, f, how, in, out);
    }
    for (int k = 0; k < n->nout; k++) {
        x->p.cut.value[n->out[k]->id] = out[k];
        x->late[n->out[k]->id] = late && x->p.outside[n->id];
    }
}

/* Marks v, which is read around the loop, where only bodies make it. */
static void yield_read(Choice *x, const Value *v)
{
    if (v->def && !x->p.outside[v->def->id])
        x->p.yielded[v->id] = true;
}

static void find_yielded(Choice *x)
{
    for (const Node *n = x->g->first; n; n = n->next)
        for (int i = 0; i < n->nin && x->p.outside[n->id]; i++)
            yield_read(x, n->in[i]);
    for (int i = 0; i < x->g->nout; i++)
        yield_read(x, x->g->out[i].v);
}

static Value *find_value(const Graph *g, const char *name)
{
    Value *v = map_find(&g->names, name);
    CHECK(v);
    return v;
}

static LoopPart choose(const LoopCase *c, Graph *g, int64_t slices, SumKind sums)
{
    Arena *a = g->a;
    Choice x = {.c = c, .g = g, .a = a, .late = NEWN(a, bool, g->nvalue)};
    x.p = (LoopPart){.slices = slices_of(c->units, slices),
                     .cut = {c->units, NEWN(a, Cut, g->nvalue), NEWN(a, NodeCut, g->nnode)},
                     .inside = NEWN(a, bool, g->nnode),
                     .outside = NEWN(a, bool, g->nnode),
                     .after = NEWN(a, bool, g->nnode),
                     .yielded = NEWN(a, bool, g->nvalue),
                     .one = NEWN(a, Value *, g->nvalue),
                     .scale = NEWN(a, Value *, g->nvalue),
                     .sums = sums,
                     .narrow = c->narrow,
                     .before = c->before ? find_value(g, c->before)->def : NULL,
                     .what = "cannot be a loop"};
    for (int i = 0; i < g->nin; i++)
        x.p.cut.value[g->in[i].v->id] = listed_cut(c, g->in[i].v);
    for (const Node *n = g->first; n; n = n->next)
        place_node(&x, n);
    find_yielded(&x);
    for (int i = 0; i < g->nin; i++)
        x.p.cut.value[g->in[i].v->id] = (Cut){.kind = CUT_WHOLE};
    for (const Node *n = g->first; n != x.p.before; n = n->next)
        x.p.after[n->id] = x.late[n->out[0]->id];
    for (const Node *n = g->first; n && c->ones; n = n->next)
        for (int k = 0; k < n->nout; k++)
            if (in_list(c->scaled, n->out[k]))
                x.p.scale[n->out[k]->id] = find_value(g, c->ones);
    if (c->ones)
        x.p.one[find_value(g, c->ones)->id] = find_value(g, c->ones);
    return x.p;
}

static void spoil(const LoopCase *c, const Graph *g, LoopPart *p)
{
    if (c->wrong == RIGHT)
        return;
    const Value *v = find_value(g, c->at);
    p->after[v->def->id] &= c->wrong != WRONG_NOT_BEHIND;
    p->yielded[v->id] &= c->wrong != WRONG_NOT_YIELDED;
    p->inside[v->def->id] &= c->wrong != WRONG_NOT_INSIDE;
    p->outside[v->def->id] |= c->wrong == WRONG_OUTSIDE_TOO;
    if (c->wrong == WRONG_WHOLE)
        p->cut.value[v->id] = (Cut){.kind = CUT_WHOLE};
    if (c->wrong == WRONG_ORDER) {
        v->def->after = NEW(g->a, Node *);
        v->def->after[v->def->nafter++] = g->first;
    }
}

/* ---- a case ---- */

typedef struct Trial {
    const LoopCase *c;
    Arena *a;
    Graph *g;
    int64_t slices;
    SumKind sums;
    Node *loop;
} Trial;

static void make_loop(void *arg)
{
    Trial *t = arg;
    t->g = graph_parse(t->a, t->c->text, t->c->name);
    graph_verify(t->g);
    Graph *at = t->c->within ? find_value(t->g, t->c->within)->def->region->body[MAIN] : t->g;
    LoopPart p = choose(t->c, at, t->slices, t->sums);
    spoil(t->c, at, &p);
    t->loop = loop_make(at, arena_tmp(t->a), &p);
    graph_verify(t->g);
}

static const char *result_kinds(Arena *a, const Node *loop)
{
    const char *s = "";
    for (int k = 0; k < loop->nout; k++)
        s = arena_printf(a, "%s%s%s %s", s, k ? ", " : "", port_name(loop->region->out[k].kind),
                         dtype_name(loop->out[k]->type.dtype));
    return s;
}

static void show(const Trial *t, const char *what, int k, double d)
{
    printf("%s, %lld slices, %s: output %d differs by %.3g\n%s", t->c->name, (long long)t->slices,
           what, k, d, graphs_text(t->a, t->g));
}

static void compare(const Trial *t, const Graph *whole)
{
    const Tensor *want = graphs_interpret(t->a, whole, graphs_inputs(t->a, whole));
    const Tensor *in = graphs_inputs(t->a, t->g);
    const Tensor *got[] = {graphs_interpret(t->a, t->g, in), graphs_execute(t->a, t->g, in)};
    double near = t->c->near > 0 ? t->c->near : 1e-12;
    for (int way = 0; way < 2; way++)
        for (int k = 0; k < t->g->nout; k++) {
            double d = graphs_distance(&got[way][k], &want[k]);
            if (!EXPECT(d <= near && type_equal(&t->g->out[k].v->type, &whole->out[k].v->type)))
                show(t, way ? "by plan" : "by the interpreter", k, d);
        }
}

static void check_ports(const Trial *t)
{
    const char *kinds = result_kinds(t->a, t->loop);
    int addmm = graphs_count(t->loop->region->body[MAIN], "addmm");
    if (!EXPECT(!strcmp(kinds, t->c->ports) && addmm == t->c->addmm))
        printf("%s: found \"%s\", %d addmm\n%s", t->c->name, kinds, addmm, graphs_text(t->a, t->g));
}

static void try_case(const LoopCase *c)
{
    static const int64_t counts[] = {1, 2, 3, 7};
    for (int i = 0; i < LEN(counts); i++)
        for (SumKind sums = SUM_ADD; sums <= SUM_PRODUCT; sums++) {
            Arena *a = arena_new(&ctx);
            Trial t = {c, a, NULL, counts[i], sums, NULL};
            if (c->error) {
                EXPECT_FAIL(&ctx, make_loop, &t, c->error);
            } else if (EXPECT(!ctx_try(&ctx, make_loop, &t))) {
                Graph *whole = graph_parse(a, c->text, c->name);
                EXPECT(t.loop->region->n + (t.loop->region->body[TAIL] != NULL) <= counts[i]);
                compare(&t, whole);
                if (sums == SUM_PRODUCT)
                    check_ports(&t);
            } else {
                printf("%s: %s\n", c->name, ctx.message);
            }
            arena_free(a);
        }
}

#include "../shared/loop_cases.h"

int main(void)
{
    for (int i = 0; i < LEN(cases); i++)
        try_case(&cases[i]);
    ctx_end(&ctx);
    return test_report();
}
