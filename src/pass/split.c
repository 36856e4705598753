/* split: cuts a step in two graphs, as PyTorch's partitioners do: the forward with the loss, and
 * the backward with the optimizer, clones of recomputed nodes included. A value of the forward that
 * the second half reads is an output without a role of the first and an input without a role of
 * the second, of one name; of a view its base is handed over, and the view made again. Nothing is
 * decided here: what is saved, recomputed or gathered again stands in the graph, so that both
 * halves have together what the whole has, collectives too. An input is one of each half that reads
 * it or renews it. The forward renews no input that the second half reads: what renews that is
 * handed over, and the second half renews it. A fused node of both halves is taken apart. Order
 * edges across the cut hold by themselves. Linear. */
#include "pass.h"

#include <string.h>

typedef struct StepSplit {
    Graph *g; /* a copy of the whole */
    Arena *tmp;
    bool *crosses; /* by value id: handed over */
    bool *again;   /* by node id: a view of the forward that the backward makes again */
    bool *late;    /* by output: it belongs to the second half */
    bool *read;    /* by input: the second half reads it */
    int *renews;   /* by input: the output that renews it; -1: none does */
} StepSplit;

static bool is_forward(const Node *n)
{
    return n->phase < BACKWARD;
}

/* ---- what crosses ---- */

static void check_halves(const Graph *g)
{
    if (!graph_has_backward(g))
        fail(g->ctx, TN_USAGE, "split: the graph has no backward: run the pass grad before");
    for (const Node *n = g->first; n; n = n->next)
        EACH_LOOP_BODY(b, n)
            if (!is_forward(n) && earliest_phase(n->region->body[b], n->phase) < BACKWARD)
                fail_node(g, n,
                          "cannot be split: its iterations run forward and backward in turn "
                          "(accumulate)");
}

/* The value of the forward, or the input, of which the second half's v is a view. */
static const Value *find_base(StepSplit *s, const Value *v)
{
    for (; v->def && is_forward(v->def) && v->def->op->view; v = v->def->in[0])
        s->again[v->def->id] = true;
    return v;
}

/* The second half reads the input: so the first must not renew it. The value that the second half
 * then gives for it; NULL: what it gives anyway. */
static const Value *read_input(StepSplit *s, const Value *v)
{
    int i = s->renews[v->index];
    bool late = s->read[v->index] || i < 0 || s->late[i];
    s->read[v->index] = true;
    if (late)
        return NULL;
    s->late[i] = true;
    return s->g->out[i].v;
}

/* The second half reads v. */
static void hand_over(StepSplit *s, const Value *v)
{
    for (v = find_base(s, v); !v->def; v = find_base(s, v))
        if (!(v = read_input(s, v)))
            return;
    const Node *n = v->def;
    if (!is_forward(n))
        return;
    const Node *made = n->op->wait && n->in[0]->def ? n->in[0]->def : n;
    if (made == n && (n->op->async || n->op->class == CLASS_COLLECTIVE))
        fail_node(s->g, n, "cannot be split: the backward waits for what the forward starts");
    if (made->op->to_host)
        fail_node(s->g, made,
                  "cannot be split: the host keeps its value for the backward; split "
                  "before the pass offload");
    s->crosses[v->id] = true;
}

/* Finds which outputs renew inputs, and which are of the second half in any case: then true. */
static bool *find_late(const Graph *g, Arena *tmp, int *renews)
{
    bool *late = NEWN(tmp, bool, g->nout);
    Map named = {.a = tmp};
    for (int i = 0; i < g->nin; i++) {
        renews[i] = -1;
        if (role_renewed(g->in[i].role))
            map_put(&named, g->in[i].name, &g->in[i]);
    }
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i], *in = p->role == ROLE_NEW ? map_find(&named, p->name) : NULL;
        if (in)
            renews[in - g->in] = i;
        late[i] = p->v->def ? !is_forward(p->v->def) : p->role == ROLE_GRAD || p->role == ROLE_NEW;
    }
    return late;
}

static StepSplit find_crossing(Graph *g, Arena *tmp)
{
    int *renews = NEWN(tmp, int, g->nin);
    StepSplit s = {.g = g,
                   .tmp = tmp,
                   .crosses = NEWN(tmp, bool, g->nvalue),
                   .again = NEWN(tmp, bool, g->nnode),
                   .late = find_late(g, tmp, renews),
                   .read = NEWN(tmp, bool, g->nin),
                   .renews = renews};
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin && !is_forward(n); i++)
            hand_over(&s, n->in[i]);
    for (int i = 0; i < g->nout; i++)
        if (s.late[i])
            hand_over(&s, g->out[i].v);
    return s;
}

/* ---- the halves ---- */

/* Keeps the outputs of one half. */
static void keep_outputs(const StepSplit *s, bool backward)
{
    Graph *g = s->g;
    int count = 0;
    for (int i = 0; i < g->nout; i++)
        if (s->late[i] == backward)
            g->out[count++] = g->out[i];
    g->nout = count;
}

/* By value id: whether it is an output without a role. */
static const bool *find_plain(const Graph *g, Arena *tmp)
{
    bool *plain = NEWN(tmp, bool, g->nvalue);
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NONE)
            plain[g->out[i].v->id] = true;
    return plain;
}

static void make_forward(const StepSplit *s)
{
    Graph *g = s->g;
    keep_outputs(s, false);
    const bool *plain = find_plain(g, s->tmp);
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            if (s->crosses[n->out[k]->id] && !plain[n->out[k]->id])
                graph_output(g, n->out[k], ROLE_NONE, NULL);
    for (Node *n = g->last, *before; n; n = before) {
        before = n->prev;
        if (!is_forward(n))
            node_unlink(g, n);
    }
}

/* Makes an input of what the first half hands over. */
static void take(Graph *g, Replace *r, const Node *n, int k)
{
    const Value *v = n->out[k];
    replace_with(r, n, k, graph_input(g, v->name, v->type, ROLE_NONE, NULL));
}

static void drop_edges(Node *n)
{
    int count = 0;
    for (int i = 0; i < n->nafter; i++)
        if (!is_forward(n->after[i]))
            n->after[count++] = n->after[i];
    n->nafter = count;
}

static void make_backward(const StepSplit *s)
{
    Graph *g = s->g;
    Replace r = replace_start(g, s->tmp);
    keep_outputs(s, true);
    EACH_NODE(n, g) {
        replace_operands(&r, n);
        if (!is_forward(n)) {
            drop_edges(n);
        } else if (s->again[n->id]) {
            n->phase = BACKWARD;
            n->policy = POLICY_NONE;
            n->nafter = 0;
        } else {
            node_unlink(g, n);
            for (int k = 0; k < n->nout; k++)
                if (s->crosses[n->out[k]->id])
                    take(g, &r, n, k);
        }
    }
    replace_outputs(&r, g);
}

/* ---- inputs ---- */

static void need_named(bool *need, const Graph *g, const Map *named, const char *name)
{
    const Port *p = map_find(named, name);
    if (p)
        need[p - g->in] = true;
}

/* The parameter whose state has that name. */
static void need_param(bool *need, const Graph *g, Arena *tmp, const Map *named, const char *state)
{
    const char *dot = strrchr(state, '.');
    if (dot)
        need_named(need, g, named, arena_strndup(tmp, state, (size_t)(dot - state)));
}

/* By index: whether nodes read the input, an output is or renews it, or it is state's parameter. */
static const bool *find_inputs(const Graph *g, Arena *tmp)
{
    bool *need = NEWN(tmp, bool, g->nin);
    Map named = {.a = tmp};
    for (int i = 0; i < g->nin; i++)
        if (role_renewed(g->in[i].role))
            map_put(&named, g->in[i].name, &g->in[i]);
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            if (!n->in[i]->def)
                need[n->in[i]->index] = true;
    for (int i = 0; i < g->nout; i++) {
        const Port *p = &g->out[i];
        if (!p->v->def)
            need[p->v->index] = true;
        if (p->role == ROLE_GRAD || p->role == ROLE_NEW)
            need_named(need, g, &named, p->name);
    }
    for (int i = 0; i < g->nin; i++)
        if (need[i] && g->in[i].role == ROLE_STATE)
            need_param(need, g, tmp, &named, g->in[i].name);
    return need;
}

static void keep_inputs(Graph *g, Arena *tmp)
{
    const bool *need = find_inputs(g, tmp);
    int count = 0;
    for (int i = 0; i < g->nin; i++) {
        if (!need[i]) {
            map_del(&g->names, g->in[i].v->name);
            continue;
        }
        g->in[count] = g->in[i];
        g->in[count].v->index = count;
        count++;
    }
    g->nin = count;
}

Graph *graph_split(Arena *a, Arena *tmp, const Graph *whole, bool backward)
{
    check_halves(whole);
    Graph *g = graph_clone(a, whole);
    g->name = arena_printf(a, "%s_%s", whole->name, phase_name(backward ? BACKWARD : FORWARD));
    graph_unfuse_mixed(g, tmp);
    const StepSplit s = find_crossing(g, tmp);
    if (backward)
        make_backward(&s);
    else
        make_forward(&s);
    graph_prune(g, tmp);
    keep_inputs(g, tmp);
    graph_verify(g);
    return g;
}
