/* Random offloading: values go to the host's memory and back somewhere between their definition and
 * some of their readers, which then read what came back; or to other ranks, by an all_reduce or by
 * a reduce_scatter_tensor and an all_gather_into_tensor. In bodies of loops too. The passes do this
 * where it pays; here anything is right that the planner must be able to plan. */
#include "gen.h"

typedef struct Offload {
    Graph *g;
    Rng *rng;
    bool ranks;  /* to other ranks */
    Node **node; /* of g as it was, in order */
    int count, made;
} Offload;

/* A value, and those that read it. */
typedef struct Moved {
    Value *v;
    int at; /* its node, -1: an input */
} Moved;

static bool reads(const Node *n, const Value *v)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] == v)
            return true;
    return false;
}

static bool is_output(const Graph *g, const Value *v)
{
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v == v)
            return true;
    return false;
}

/* One of its readers, or the end of the graph where it is an output; -1: it has none. */
static int choose_reader(const Offload *x, const Moved *m)
{
    int chosen = -1;
    int64_t seen = 0;
    for (int i = m->at + 1; i <= x->count; i++) {
        bool is = i < x->count ? reads(x->node[i], m->v) : is_output(x->g, m->v);
        if (is && !rng_below(x->rng, ++seen))
            chosen = i;
    }
    return chosen;
}

/* A node that is no earlier than *from and no later than the reader, where *from is then. */
static Node *choose_place(const Offload *x, int *from, int reader)
{
    *from += (int)rng_below(x->rng, reader - *from + 1);
    return *from < x->count ? x->node[*from] : NULL;
}

/* All readers from `from` on read y. */
static void read_instead(const Offload *x, const Value *v, Value *y, int from)
{
    for (int i = from; i < x->count; i++)
        for (int k = 0; k < x->node[i]->nin; k++)
            if (x->node[i]->in[k] == v)
                x->node[i]->in[k] = y;
    for (int i = 0; i < x->g->nout; i++)
        if (x->g->out[i].v == v)
            x->g->out[i].v = y;
}

/* What the op makes of v, and its wait, each anywhere up to the reader. */
static Value *emit_waited(Offload *x, Build *b, const char *op, const AttrArg *attrs, Value *v,
                          int *from, int reader)
{
    b->before = choose_place(x, from, reader);
    Value *y = emit1(b, op, IN(v), attrs);
    b->before = choose_place(x, from, reader);
    return emit1(b, "wait_tensor", IN(y, v), NULL);
}

static Value *emit_moved(Offload *x, Build *b, Value *v, int *from, int reader)
{
    const AttrArg *reduce = ATTRS(A_STR("reduce_op", "sum"), A_STR("group", "r"));
    const AttrArg *scatter =
        ATTRS(A_STR("reduce_op", "sum"), A_STR("group", "r"), A_INT("group_size", 2));
    const AttrArg *gather = ATTRS(A_STR("group", "r"), A_INT("group_size", 2));
    bool even = v->type.rank && v->type.dim[0] % 2 == 0;
    if (x->ranks && !(even && rng_chance(x->rng, 0.5)))
        return emit_waited(x, b, "all_reduce", reduce, v, from, reader);
    v = emit_waited(x, b, x->ranks ? "reduce_scatter_tensor" : "offload", x->ranks ? scatter : NULL,
                    v, from, reader);
    return emit_waited(x, b, x->ranks ? "all_gather_into_tensor" : "reload",
                       x->ranks ? gather : NULL, v, from, reader);
}

static void move_value(Offload *x, const Moved *m)
{
    int reader = choose_reader(x, m), from = m->at + 1;
    if (reader < 0)
        return;
    Build b = build_like(x->g, NULL, x->node[MAX(m->at, 0)]);
    b.policy = POLICY_NONE;
    b.origin = NULL;
    read_instead(x, m->v, emit_moved(x, &b, m->v, &from, reader), reader);
    x->made++;
}

static int move_values(Arena *a, Graph *g, Rng *rng, double chance, bool views, bool ranks)
{
    Offload x = {.g = g, .rng = rng, .ranks = ranks};
    int inner = 0, cap = 0;
    EACH_NODE(n, g) {
        PUSH(a, x.node, x.count, cap, n);
        EACH_LOOP_BODY(b, n)
            inner += move_values(a, n->region->body[b], rng, chance, views, ranks);
    }
    for (int i = 0; i < g->nin && x.count; i++)
        if (type_nelem(&g->in[i].v->type) && rng_chance(rng, chance))
            move_value(&x, &(Moved){g->in[i].v, -1});
    for (int i = 0; i < x.count; i++) {
        const Node *n = x.node[i];
        bool may = views || !n->op->view;
        for (int k = 0; k < n->nout && may; k++)
            if (type_nelem(&n->out[k]->type) && rng_chance(rng, chance))
                move_value(&x, &(Moved){n->out[k], i});
    }
    return x.made + inner;
}

int gen_offload(Arena *a, Graph *g, Rng *rng, double chance, bool views)
{
    return move_values(a, g, rng, chance, views, false);
}

int gen_collectives(Arena *a, Graph *g, Rng *rng, double chance)
{
    g->mesh = mesh_parse(g->ctx, a, "r=2");
    return move_values(a, g, rng, chance, true, true);
}
