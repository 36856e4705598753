/* remat: rematerializes forward values as policies say. A forward node that is to be recomputed
 * gets a clone right before its first reader in the backward: phase backward, with the original's
 * name as `origin`. The clone reads saved values, and clones of values that are not saved. Later
 * readers in the backward share it, or get clones of their own if that lowers the peak
 * (remat_repeat.c). Originals that nothing else reads are dead then. Source: PyTorch's
 * remat_using_tags_for_fwd_loss_bwd_graph, here for any number of backward parts, and with random
 * ops, which draw the same numbers again from their stream. A node without a policy is saved.
 *
 * Method: a table holds, for each forward node, its first reader in the backward, and whether it is
 * recomputed and why; then one walk of the nodes makes the clones.
 *
 * - A view has no memory of its own: it goes with its base (`settle` moves its policy there). If
 *   the base is cloned, its views are cloned too.
 * - All results of a node have its policy. A loop is recomputed as a whole. Results that a forward
 *   loop collects for a backward loop are saved, or recomputed with the whole loop, whatever is
 *   preferred; a policy that must be obeyed and says otherwise is an error.
 * - A policy on a value that the backward does not read, or on a backward node, changes nothing.
 * - prefer_recompute is overruled where a recomputed node of another block would read the value, so
 *   that each block's recomputation begins with saved values. must_recompute is not.
 *
 * Invariants: a clone runs the same kernel on operands of the same layout, so it has the same bits.
 * It may read a parameter, as the planner makes the node that takes the parameter's place wait for
 * all its readers. Idempotent: clones are backward nodes that read only saved values or clones.
 * Each body of a loop is a graph of its own. Linear, but for long chains of views. */
#include "../machine/machine.h"
#include "pass.h"

#include <string.h>

/* The graph before any clone is made. */
typedef struct RematSource {
    Graph *g;
    Node **base;    /* by value id: find_view_bases */
    int *place;     /* by node id: in the graph's order */
    bool *backward; /* by node id: node_in_backward */
    int nnode;
} RematSource;

/* The facts and the decision about a forward node; views have readers only. */
typedef struct RematChoice {
    Node *reader;     /* its first reader in the backward, or that of a clone that will read it */
    bool seam;        /* another block's recomputation reads it */
    bool recompute;   /* it is recomputed */
    const char *kept; /* the reason why it is saved whatever is preferred, or NULL */
    const char *why;  /* the reason of the decision; NULL: the backward does not read it */
} RematChoice;

typedef struct Choices {
    RematChoice *of; /* by node id */
    bool *read;      /* by value id: in the backward, itself or by a view */
} Choices;

/* For one body of a forward loop, the results that a backward loop reads: all of them are saved, or
 * the loop is recomputed. */
typedef struct LoopResults {
    const Node *loop;
    const bool *read; /* by index of its results */
    bool recompute;
    int body;
} LoopResults;

/* The list to which decisions are added, and what their prices depend on. */
typedef struct Notes {
    Decisions *to; /* NULL: nowhere */
    const Machine *machine;
    const Mesh *mesh;
    double times; /* that the graph runs */
} Notes;

/* ---- the backward ---- */

/* A loop over a whole step has the latest phase of its bodies, but its body has the backward. */
bool node_in_backward(const Node *n)
{
    int phase = n->phase;
    EACH_LOOP_BODY(b, n)
        phase = earliest_phase(n->region->body[b], phase);
    return phase == BACKWARD;
}

static bool is_forward(const Node *n)
{
    return n && n->phase < BACKWARD;
}

static RematSource read_source(Graph *g, Arena *tmp)
{
    RematSource s = {g, find_view_bases(g, tmp), NEWN(tmp, int, g->nnode),
                     NEWN(tmp, bool, g->nnode), g->nnode};
    int place = 0;
    for (Node *n = g->first; n; n = n->next) {
        s.place[n->id] = place++;
        s.backward[n->id] = node_in_backward(n);
    }
    return s;
}

/* Records that backward node r reads v and its base; NULL: a later loop does. */
static void add_reader(const RematSource *s, Choices *c, const Value *v, Node *r)
{
    for (;; v = v->def->in[0]) {
        RematChoice *x = v->def ? &c->of[v->def->id] : NULL;
        bool first = x && r && (!x->reader || s->place[r->id] < s->place[x->reader->id]);
        if (c->read[v->id] && !first)
            return;
        c->read[v->id] = true;
        if (first)
            x->reader = r;
        if (!v->def || !node_aliases(v->def))
            return;
    }
}

static void keep(const RematSource *s, Choices *c, const Value *v, const char *why)
{
    const Node *base = s->base[v->id];
    if (base && !c->of[base->id].kept)
        c->of[base->id].kept = why;
}

/* Finds first readers, and values that are kept in any case. */
static void find_readers(const RematSource *s, Choices *c)
{
    for (int i = 0; i < s->g->nout; i++)
        keep(s, c, s->g->out[i].v, "it is an output, and kept in any case");
    for (Node *n = s->g->first; n; n = n->next) {
        bool both = n->op->region == LOOP && !is_forward(n) && !s->backward[n->id];
        if (region_must_save(n))
            c->of[n->id].kept = "what its body makes must be saved";
        for (int i = 0; i < n->nin; i++)
            if (s->backward[n->id])
                add_reader(s, c, n->in[i], n);
            else if (both)
                keep(s, c, n->in[i], "a loop over forward and backward keeps it in any case");
    }
}

/* ---- decisions ---- */

/* If n is recomputed, its recomputation begins at what it reads of other blocks. */
static void end_chains(const RematSource *s, Choices *c, const Node *n)
{
    Block b = block_of(n->scope);
    for (int i = 0; i < n->nin; i++) {
        const Node *from = s->base[n->in[i]->id];
        Block other = block_of(from ? from->scope : "");
        if (is_forward(from) && !block_equal(&b, &other))
            c->of[from->id].seam = true;
    }
}

/* A value of this body that a later loop reads is saved or recomputed with the whole loop. */
static void choose_collected(const RematSource *s, Choices *c, const LoopResults *of,
                             const Value *v)
{
    const Node *n = s->base[v->id];
    add_reader(s, c, v, NULL);
    if (!n)
        return;
    if (n->policy == MUST_RECOMPUTE && !of->recompute)
        fail_node(s->g, n,
                  "is must_recompute, but it can only be computed again with the whole loop, for a "
                  "later loop reads it: %%%s <- %%%s",
                  of->loop->out[0]->name, n->out[0]->name);
    c->of[n->id].recompute = of->recompute;
    c->of[n->id].why =
        of->recompute ? "its loop is computed again as a whole"
        : policy_again(n->policy)
            ? "the loop keeps it for another loop, and is not computed again as a whole"
            : "the loop keeps it for another loop";
}

/* Why a value is recomputed follows from its readers, and is said once they are known. */
static const char recomputed[] = "";

static void choose_node(const RematSource *s, Choices *c, const Node *n)
{
    RematChoice *x = &c->of[n->id];
    region_check_save(s->g, n);
    x->why = !policy_again(n->policy)      ? "the backward reads it"
             : n->policy == MUST_RECOMPUTE ? NULL
             : x->kept                     ? x->kept
             : x->seam                     ? "another block's recomputation begins with it"
                                           : NULL;
    if (x->why)
        return;
    x->recompute = true;
    x->why = recomputed;
    end_chains(s, c, n);
    for (int i = 0; i < n->nin; i++)
        add_reader(s, c, n->in[i], x->reader);
}

/* Walks from the last node to the first, so that all clones that will read a node are known. */
static Choices choose(const RematSource *s, Arena *tmp, const LoopResults *of)
{
    Choices c = {NEWN(tmp, RematChoice, s->g->nnode), NEWN(tmp, bool, s->g->nvalue)};
    find_readers(s, &c);
    for (int k = 0; of && k < of->loop->nout; k++) {
        int i = of->read[k] ? of->loop->region->out[k].at[of->body] : -1;
        if (i >= 0)
            choose_collected(s, &c, of, s->g->out[i].v);
    }
    for (const Node *n = s->g->last; n; n = n->prev)
        if (n->origin && n->phase == BACKWARD)
            end_chains(s, &c, n); /* a clone of an earlier compilation */
        else if (is_forward(n) && !node_aliases(n) && c.of[n->id].reader && !c.of[n->id].why)
            choose_node(s, &c, n);
    return c;
}

/* The reason for recomputation: the value takes no memory between the forward and this reader. */
static const char *why_recomputed(Arena *a, const Node *n, const Node *reader)
{
    return arena_printf(a, "takes no memory until %%%s%s%s reads it, and is %s again for it",
                        reader->out[0]->name, *reader->scope ? " @" : "", reader->scope,
                        n->op->class == CLASS_COLLECTIVE ? "communicated" : "computed");
}

static void note(const Notes *notes, const Node *n, const RematChoice *c)
{
    Decisions *d = notes->to;
    Decision x = {.unused = !c->why,
                  .recompute = c->recompute,
                  .policy = n->policy,
                  .honoured = !c->why || c->recompute == policy_again(n->policy),
                  .node = arena_strdup(d->a, n->out[0]->name),
                  .scope = arena_strdup(d->a, n->scope),
                  .reason = c->why == recomputed ? why_recomputed(d->a, n, c->reader)
                            : c->why             ? c->why
                                                 : "the backward has no use for it",
                  .sec = notes->times * node_sec(notes->machine, notes->mesh, n)};
    for (int k = 0; k < n->nout; k++)
        x.nbytes += type_nbytes(&n->out[k]->type);
    PUSH(d->a, d->list, d->count, d->cap, x);
}

/* ---- clones ---- */

/* Makes the nodes of a cloned body backward nodes and clones. */
static void mark_clones(Graph *g)
{
    for (Node *n = g->first; n; n = n->next) {
        bool cloned = n->phase == BACKWARD && n->origin;
        n->phase = BACKWARD;
        n->policy = POLICY_NONE;
        if (!cloned)
            n->origin = n->out[0]->name;
        EACH_BODY(b, n)
            mark_clones(n->region->body[b]);
    }
}

static Region *clone_region(Graph *g, const Region *r)
{
    Region *c = r ? region_clone(g, r) : NULL;
    for (int b = 0; b < region_nbody(c); b++)
        mark_clones(c->body[b]);
    return c;
}

Node *remat_clone(Graph *g, const Node *n, Node *before, const char *origin)
{
    Build b = build_like(g, before, n);
    b.phase = BACKWARD;
    b.policy = POLICY_NONE;
    b.origin = origin;
    Node *m = emit_like(&b, n, n->in, clone_region(g, n->region), "_r");
    if (n->nafter)
        m->after =
            memcpy(NEWN(g->a, Node *, n->nafter), n->after, sizeof(Node *) * (size_t)n->nafter);
    m->nafter = n->nafter;
    return m;
}

/* Clones recomputed nodes, each before its first reader, in order: operands are cloned before. */
static int make_clones(const RematSource *s, Arena *tmp, const RematChoice *c)
{
    Replace clones = replace_start(s->g, tmp);
    int count = 0;
    EACH_NODE(n, s->g) {
        if (n->id >= s->nnode)
            continue;
        if (s->backward[n->id])
            replace_operands(&clones, n);
        const Node *base = s->base[n->out[0]->id];
        if (!is_forward(n) || !c[n->id].reader || !is_forward(base) || !c[base->id].recompute)
            continue;
        Node *m = remat_clone(s->g, n, c[n->id].reader, n->out[0]->name);
        replace_operands(&clones, m);
        for (int k = 0; k < n->nout; k++)
            replace_with(&clones, n, k, m->out[k]);
        clones.node[n->id] =
            NULL; /* order edges stay at n: the clone may come later than they do */
        count++;
    }
    return count;
}

/* ---- one graph and the bodies in it ---- */

static int rematerialize(Graph *g, Arena *tmp, const Notes *d, const LoopResults *of);

static int rematerialize_bodies(Node *n, Arena *tmp, const Notes *d, const Choices *c)
{
    int clones = 0;
    bool *read = NEWN(tmp, bool, n->nout);
    for (int k = 0; k < n->nout; k++)
        read[k] = is_forward(n) && c->read[n->out[k]->id];
    EACH_BODY(b, n) {
        LoopResults of = {n, read, c->of[n->id].recompute, b};
        Notes inside = *d;
        inside.times *= (double)region_times(n->region, b);
        clones += rematerialize(n->region->body[b], tmp, &inside, &of);
    }
    return clones;
}

/* Whether what became of n is told: what offload decides it tells itself. */
static bool is_told(const Notes *d, const Node *n, const RematChoice *c)
{
    if (!n->policy)
        return d->to->all && c->why;
    return n->policy != OFFLOAD && (c->why || policy_must(n->policy));
}

static int rematerialize(Graph *g, Arena *tmp, const Notes *d, const LoopResults *of)
{
    int clones = 0;
    const RematSource s = read_source(g, tmp);
    const Choices c = choose(&s, tmp, of);
    EACH_NODE(n, g) {
        if (n->region)
            clones += rematerialize_bodies(n, tmp, d, &c);
        if (d->to && is_forward(n) && is_told(d, n, &c.of[n->id]))
            note(d, n, &c.of[n->id]);
    }
    return clones + make_clones(&s, tmp, c.of);
}

int pass_remat(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->warn && graph_find_output(g, ROLE_LOSS, NULL) && !graph_has_backward(g))
        o->warn(o->warn_arg, "remat: the graph has no backward yet, for which something could be "
                             "computed again: the pass grad belongs before it");
    const Notes notes = {o->decisions, o->prices, g->mesh, 1};
    return rematerialize(g, tmp, &notes, NULL);
}
