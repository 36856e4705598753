/* flat: copies a graph so that the nodes of a loop's body stand among the others, for a choice of
 * all forms at once.
 *
 * A body's nodes stand there once; they have the loop, whose iterations say how often they run. A
 * parameter that a body sees whole is the parameter itself, as bodies gather. Any other operand is
 * brought once, before the loop, to the form in which it enters: a node that costs nothing stands
 * for that; of an operand that the loop slices, three views take an iteration's part. Another such
 * node stands for the sum of a result over the iterations. The walk keeps the loop, and asks for
 * nodes and ports of it by the loop's name and theirs. A step has such loops alone as accumulate
 * makes where its iterations are equal. Linear in the nodes. */
#include "solved.h"

#include <string.h>

typedef struct Flattener {
    FlatGraph *y;
    const Graph *from;
    Graph *to; /* y->g */
    Arena *a;
    Value **now; /* by value id of `from` */
    bool *param; /* by value id of `from`: a parameter, or one through casts and views */
} Flattener;

/* ---- names ---- */

const char *flat_name(Arena *a, const Node *loop, const char *name)
{
    return loop ? arena_printf(a, "%s/%s", loop->out[0]->name, name) : name;
}

const char *flat_entry(Arena *a, const Node *loop, int i)
{
    return arena_printf(a, "%s/in %d", loop->out[0]->name, i);
}

const char *flat_exit(Arena *a, const Node *loop, int k)
{
    return arena_printf(a, "%s/out %d", loop->out[0]->name, k);
}

/* A name like a body's value has, which no value around the loop has or will have. */
static const char *fresh_name(const Flattener *x, const char *stem)
{
    const char *name = graph_fresh(x->to, stem);
    for (int i = 1; map_find(&x->from->names, name); i++)
        name = graph_fresh(x->to, arena_printf(x->a, "%s_in_loop_%d", stem, i));
    return name;
}

/* A made value must not have a name of the graph's, as what has it may come later. */
static void rename_made(const Flattener *x, Value *v)
{
    if (map_find(&x->from->names, v->name))
        value_rename(x->to, v, fresh_name(x, v->name));
}

/* ---- nodes ---- */

/* Notes what n is, and the name by which the walk asks for it. */
static void note(FlatGraph *y, const Node *n, FlatKind kind, const Node *loop, const char *name)
{
    if (n->id >= y->cap) {
        int cap = 2 * (n->id + 1);
        FlatNode *more = NEWN(y->g->a, FlatNode, cap);
        if (y->cap)
            memcpy(more, y->node, sizeof *more * (size_t)y->cap);
        y->node = more;
        y->cap = cap;
    }
    y->node[n->id] = (FlatNode){kind, loop, name};
}

/* The same of a node that stands for a port outside the loop. */
static void note_entry(Flattener *x, Value *v, const char *name)
{
    note(x->y, v->def, FLAT_ENTRY, NULL, name);
    rename_made(x, v);
}

/* Notes that v stands for `inside`, a value of the loop's body. */
static void note_value(Flattener *x, const Value *v, const Node *loop, const Value *inside)
{
    if (loop)
        map_put(&x->y->value, v->name, (void *)flat_name(x->a, loop, inside->name));
}

static Value *add_view(Build *b, Value *v, const Type *t, int axis, int64_t n)
{
    int64_t size[TN_RANK + 1];
    int rank = 0;
    for (int d = 0; d < t->rank; d++) {
        if (d == axis)
            size[rank++] = n;
        size[rank++] = d == axis ? t->dim[d] / n : t->dim[d];
    }
    return emit1(b, "view", IN(v), ATTRS(A_INTS("size", rank, size)));
}

/* Iteration 0 of a value that the loop slices along an axis. */
static Value *add_part(Flattener *x, Build *b, const Node *loop, const PortIn *p, Value *v,
                       const Type *part)
{
    if (v->type.rank == TN_RANK)
        fail(x->from->ctx, TN_USAGE, "shard auto: %%%s of %%%s: expected fewer than %d axes",
             v->name, loop->out[0]->name, TN_RANK);
    Value *rows = add_view(b, v, &v->type, p->axis, loop->region->n);
    note_entry(x, rows, flat_entry(x->a, loop, p->arg));
    Value *one = emit1(b, "slice", IN(rows), ATTRS(A_INT("dim", p->axis), A_INT("end", 1)));
    note_entry(x, one, NULL);
    Value *now = emit1(b, "view", IN(one), ATTRS(A_INTS("size", part->rank, part->dim)));
    note_entry(x, now, NULL);
    return now;
}

/* The value in the copy that stands for an input of the body. */
static Value *add_entry(Flattener *x, const Node *loop, const PortIn *p, const Value *inside)
{
    Build b = build_like(x->to, NULL, loop);
    Value *now;
    if (p->kind == PORT_OFFSET) {
        now = emit1(&b, "full", 0, NULL,
                    ATTRS(A_INTS("size", 0, NULL), A_FLOAT("fill_value", 0),
                          A_DTYPE("dtype", inside->type.dtype)));
        note_entry(x, now, NULL);
    } else if (p->kind == PORT_SLICE) {
        now = add_part(x, &b, loop, p, x->now[loop->in[p->arg]->id], &inside->type);
    } else if (x->param[loop->in[p->arg]->id]) {
        return x->now[loop->in[p->arg]->id];
    } else {
        now = emit1(&b, "clone", IN(x->now[loop->in[p->arg]->id]), NOATTRS);
        note_entry(x, now, flat_entry(x->a, loop, p->arg));
    }
    note_value(x, now, loop, inside);
    return now;
}

static void add_sum(Flattener *x, const Node *loop, int k, Value *v)
{
    const Value *sum = loop->out[k];
    Build b = build_like(x->to, NULL, v->def ? v->def : loop);
    const bool same = v->type.dtype == sum->type.dtype;
    Value *now = same ? emit1(&b, "clone", IN(v), NOATTRS) : emit_cast(&b, v, sum->type.dtype);
    value_rename(x->to, now, sum->name);
    note(x->y, now->def, FLAT_SUM, loop, flat_exit(x->a, loop, k));
    x->now[sum->id] = now;
}

/* A node as n; in the body of a loop if that is not NULL. */
static void add_node(Flattener *x, const Node *n, const Node *loop, Value **now)
{
    Value **in = NEWN(x->a, Value *, n->nin);
    const char **name = NEWN(x->a, const char *, n->nout);
    for (int i = 0; i < n->nin; i++)
        in[i] = now[n->in[i]->id];
    for (int k = 0; k < n->nout; k++)
        name[k] = loop ? fresh_name(x, n->out[k]->name) : n->out[k]->name;
    Build b = build_like(x->to, NULL, n);
    Node *m = emit_named(&b, n->op, n->nin, in, n->attr, NULL, n->stream, name, n->nout);
    for (int k = 0; k < n->nout; k++) {
        now[n->out[k]->id] = m->out[k];
        note_value(x, m->out[k], loop, n->out[k]);
    }
    note(x->y, m, FLAT_NODE, loop, flat_name(x->a, loop, n->out[0]->name));
}

/* ---- loops ---- */

_Noreturn static void refuse(const Flattener *x, const Node *n, const char *what)
{
    fail(x->from->ctx, TN_USAGE,
         "shard auto: expected loops over equal parts of the batch, as --accumulate makes them, "
         "found %s in %%%s",
         what, n->out[0]->name);
}

static void check_loop(const Flattener *x, const Node *n)
{
    const Region *r = n->region;
    if (r->body[TAIL])
        refuse(x, n, "a last part that is smaller");
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].kind != PORT_WHOLE && r->in[j].kind != PORT_SLICE &&
            r->in[j].kind != PORT_OFFSET)
            refuse(x, n, port_name(r->in[j].kind));
    for (int k = 0; k < r->nout; k++)
        if (r->out[k].kind != PORT_SUM)
            refuse(x, n, port_name(r->out[k].kind));
    for (const Node *m = r->body[MAIN]->first; m; m = m->next)
        if (m->op->region == LOOP)
            refuse(x, n, "another loop");
}

static void add_loop(Flattener *x, const Node *n)
{
    const Region *r = n->region;
    const Graph *body = r->body[MAIN];
    Value **now = NEWN(x->a, Value *, body->nvalue);
    check_loop(x, n);
    for (int j = 0; j < r->nin; j++)
        if (r->in[j].at[MAIN] >= 0) {
            const Value *inside = body->in[r->in[j].at[MAIN]].v;
            now[inside->id] = add_entry(x, n, &r->in[j], inside);
        }
    for (const Node *m = body->first; m; m = m->next)
        add_node(x, m, n, now);
    for (int k = 0; k < r->nout; k++)
        add_sum(x, n, k, now[body->out[r->out[k].at[MAIN]].v->id]);
}

/* ---- the graph ---- */

static bool has_loops(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->op->region == LOOP)
            return true;
    return false;
}

static void add_nodes(Flattener *x)
{
    for (const Node *n = x->from->first; n; n = n->next) {
        if (n->op->region == LOOP) {
            add_loop(x, n);
            continue;
        }
        add_node(x, n, NULL, x->now);
        for (int k = 0; k < n->nout; k++)
            x->param[n->out[k]->id] =
                n->nin && x->param[n->in[0]->id] && (n->op->view || n->op->identity || n->op->copy);
    }
}

FlatGraph *flat_graph(const Graph *g, Arena *a)
{
    FlatGraph *y = NEW(a, FlatGraph);
    y->value.a = a;
    if (!has_loops(g)) {
        y->g = g;
        return y;
    }
    Graph *flat = graph_new(a, g->name);
    Flattener x = {y, g, flat, a, NEWN(a, Value *, g->nvalue), NEWN(a, bool, g->nvalue)};
    y->g = flat;
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        x.now[p->v->id] = graph_input_like(flat, p, NULL);
        x.param[p->v->id] = p->role == ROLE_PARAM;
    }
    add_nodes(&x);
    for (int i = 0; i < g->nout; i++)
        graph_output(flat, x.now[g->out[i].v->id], g->out[i].role, g->out[i].name);
    return y;
}

FlatNode flat_node(const FlatGraph *y, const Node *n)
{
    return y->cap ? y->node[n->id] : (FlatNode){FLAT_NODE, NULL, n->out[0]->name};
}

const char *flat_value(const FlatGraph *y, const Value *v)
{
    const char *name = y->cap ? map_find(&y->value, v->name) : NULL;
    return name ? name : v->name;
}
