/* Random offloading: values go to the host's memory and back somewhere between their definition and
 * some of their readers, which then read what came back. In bodies of loops too. The pass does this
 * where it pays; here anything is right that the planner must be able to plan. */
#include "gen.h"

typedef struct Offload {
    Graph *g;
    Rng *rng;
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

static void move_value(Offload *x, const Moved *m)
{
    int reader = choose_reader(x, m), from = m->at + 1;
    if (reader < 0)
        return;
    Build b = build_like(x->g, choose_place(x, &from, reader), x->node[MAX(m->at, 0)]);
    b.policy = POLICY_NONE;
    b.origin = NULL;
    Value *out = emit1(&b, "offload", IN(m->v), NULL);
    b.before = choose_place(x, &from, reader);
    Value *host = emit1(&b, "wait_tensor", IN(out, m->v), NULL);
    b.before = choose_place(x, &from, reader);
    Value *in = emit1(&b, "reload", IN(host), NULL);
    b.before = choose_place(x, &from, reader);
    read_instead(x, m->v, emit1(&b, "wait_tensor", IN(in, host), NULL), reader);
    x->made++;
}

int gen_offload(Arena *a, Graph *g, Rng *rng, double chance, bool views)
{
    Offload x = {.g = g, .rng = rng};
    int inner = 0, cap = 0;
    EACH_NODE(n, g) {
        PUSH(a, x.node, x.count, cap, n);
        EACH_LOOP_BODY(b, n)
            inner += gen_offload(a, n->region->body[b], rng, chance, views);
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
