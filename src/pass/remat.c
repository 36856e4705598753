/* remat: what policies say becomes nodes. A forward value that backward nodes read and that shall
 * be computed again gets a copy right before the first of them: phase backward, `origin` names the
 * node it is a copy of. The copy reads what is saved, and copies of what is not; later readers in
 * the backward share it, or get copies of their own where that lowers the peak (remat_repeat.c).
 * Originals that nothing else reads are dead then. (As PyTorch's
 * remat_using_tags_for_fwd_loss_bwd_graph; but for any number of backward parts, and with random
 * ops, which draw the same numbers again from their stream.) A node without a policy is saved.
 *
 * First a table says of each forward node who reads it first, and whether it is computed again and
 * why; then one walk of the nodes makes the copies.
 *
 * - A view has no memory of its own: it goes with the node whose storage it shows (`settle` gives
 *   that node its policy). Copies of that node have copies of its views.
 * - All results of a node have its policy. A loop is computed again as a whole. What a forward loop
 *   collects for a backward loop is kept, or computed again, with the whole loop, whatever is
 *   preferred; that it must be otherwise is an error.
 * - A policy on what the backward does not read, or on a node of the backward, changes nothing.
 * - prefer_recompute does not hold where a node of another block that is computed again would read
 *   it: recomputation begins anew in each block. must_recompute does.
 *
 * A copy runs the same kernel on operands of the same layout, so it has the same bits. It may read
 * a parameter: the planner makes whoever takes the parameter's place wait for all its readers.
 *
 * Each body of a loop is a graph of its own. Linear, but for what is read through long chains of
 * views. Idempotent: copies are of the backward, and read only what is saved or copies. */
#include "pass.h"

#include <string.h>

/* The graph as it is found. */
typedef struct Source {
    Graph *g;
    Node **root;    /* by value id: find_view_bases */
    int *place;     /* by node id: in the graph's order */
    bool *backward; /* by node id: node_in_backward */
    int nnode;
} Source;

/* What is known and decided of a node of the forward; views have readers only. */
typedef struct Choice {
    Node *reader; /* the first in the backward, or before which a copy that reads it will stand */
    bool seam;    /* another block's recomputation reads it */
    bool redo;    /* computed again */
    const char *kept; /* why it is there whatever is preferred; NULL: it is not */
    const char *why;  /* of what is decided; NULL: the backward does not read it */
} Choice;

typedef struct Choices {
    Choice *of; /* by node id */
    bool *read; /* by value id: in the backward, itself or by a view */
} Choices;

/* What becomes of a forward loop's results that a backward one reads, for one of its bodies: all of
 * them are kept, or the loop is computed again. */
typedef struct Collected {
    const Node *loop;
    const bool *read; /* by index of its results */
    bool redo;
    int body;
} Collected;

/* ---- the backward ---- */

static int earliest_phase(const Graph *g, int phase)
{
    for (const Node *n = g->first; n; n = n->next) {
        phase = MIN(phase, (int)n->phase);
        EACH_BODY(b, n)
            phase = earliest_phase(n->region->body[b], phase);
    }
    return phase;
}

/* Of a loop over all of a step the phase is the latest; its own body has a backward then. */
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

static Source read_source(Graph *g, Arena *tmp)
{
    Source s = {g, find_view_bases(g, tmp), NEWN(tmp, int, g->nnode), NEWN(tmp, bool, g->nnode),
                g->nnode};
    int place = 0;
    for (Node *n = g->first; n; n = n->next) {
        s.place[n->id] = place++;
        s.backward[n->id] = node_in_backward(n);
    }
    return s;
}

/* Node r of the backward reads v, and what it shows; NULL: a later loop does. */
static void add_reader(const Source *s, Choices *c, const Value *v, Node *r)
{
    for (;; v = v->def->in[0]) {
        Choice *x = v->def ? &c->of[v->def->id] : NULL;
        bool first = x && r && (!x->reader || s->place[r->id] < s->place[x->reader->id]);
        if (c->read[v->id] && !first)
            return;
        c->read[v->id] = true;
        if (first)
            x->reader = r;
        if (!v->def || !v->def->op->view)
            return;
    }
}

static void keep(const Source *s, Choices *c, const Value *v, const char *why)
{
    const Node *root = s->root[v->id];
    if (root && !c->of[root->id].kept)
        c->of[root->id].kept = why;
}

/* Who reads what, and what is there in any case. */
static void find_readers(const Source *s, Choices *c)
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

/* ---- what is computed again ---- */

/* Where n is computed again, what it reads of other blocks is where that begins. */
static void end_chains(const Source *s, Choices *c, const Node *n)
{
    Block b = block_of(n->scope);
    for (int i = 0; i < n->nin; i++) {
        const Node *from = s->root[n->in[i]->id];
        Block other = block_of(from ? from->scope : "");
        if (is_forward(from) && !block_equal(&b, &other))
            c->of[from->id].seam = true;
    }
}

/* What a later loop reads of this one, of which the graph is a body, goes with the whole. */
static void choose_collected(const Source *s, Choices *c, const Collected *of, const Value *v)
{
    const Node *n = s->root[v->id];
    add_reader(s, c, v, NULL);
    if (!n)
        return;
    if (n->policy == MUST_RECOMPUTE && !of->redo)
        fail_node(s->g, n,
                  "is must_recompute, but it can only be computed again with the whole loop, for a "
                  "later loop reads it: %%%s <- %%%s",
                  of->loop->out[0]->name, n->out[0]->name);
    c->of[n->id].redo = of->redo;
    c->of[n->id].why =
        of->redo ? "its loop is computed again as a whole"
        : policy_again(n->policy)
            ? "the loop keeps it for another loop, and is not computed again as a whole"
            : "the loop keeps it for another loop";
}

static void choose_node(const Source *s, Choices *c, const Node *n)
{
    Choice *x = &c->of[n->id];
    region_check_save(s->g, n);
    x->why = !policy_again(n->policy)      ? "the backward reads it"
             : n->policy == MUST_RECOMPUTE ? NULL
             : x->kept                     ? x->kept
             : x->seam                     ? "another block's recomputation begins with it"
                                           : NULL;
    if (x->why)
        return;
    x->redo = true;
    x->why = "the backward computes it again";
    end_chains(s, c, n);
    for (int i = 0; i < n->nin; i++)
        add_reader(s, c, n->in[i], x->reader);
}

/* From the last node to the first: whether a node is read by a copy is known when it is met. */
static Choices choose(const Source *s, Arena *tmp, const Collected *of)
{
    Choices c = {NEWN(tmp, Choice, s->g->nnode), NEWN(tmp, bool, s->g->nvalue)};
    find_readers(s, &c);
    for (int k = 0; of && k < of->loop->nout; k++) {
        int i = of->read[k] ? of->loop->region->out[k].at[of->body] : -1;
        if (i >= 0)
            choose_collected(s, &c, of, s->g->out[i].v);
    }
    for (const Node *n = s->g->last; n; n = n->prev)
        if (n->origin && n->phase == BACKWARD)
            end_chains(s, &c, n); /* a copy that was there before */
        else if (is_forward(n) && !n->op->view && c.of[n->id].reader && !c.of[n->id].why)
            choose_node(s, &c, n);
    return c;
}

static void note(Decisions *d, const Node *n, const Choice *c)
{
    Decision x = {.unused = !c->why,
                  .recompute = c->redo,
                  .policy = n->policy,
                  .honoured = !c->why || c->redo == policy_again(n->policy),
                  .node = arena_strdup(d->a, n->out[0]->name),
                  .scope = arena_strdup(d->a, n->scope),
                  .reason = c->why ? c->why : "the backward has no use for it"};
    for (int k = 0; k < n->nout; k++)
        x.nbytes += type_nbytes(&n->out[k]->type);
    PUSH(d->a, d->list, d->count, d->cap, x);
}

/* ---- copies ---- */

/* Nodes of a copied body: of the backward, and copies. */
static void mark_copies(Graph *g)
{
    for (Node *n = g->first; n; n = n->next) {
        bool copied = n->phase == BACKWARD && n->origin;
        n->phase = BACKWARD;
        n->policy = POLICY_NONE;
        if (!copied)
            n->origin = n->out[0]->name;
        EACH_BODY(b, n)
            mark_copies(n->region->body[b]);
    }
}

static Region *copy_region(Graph *g, const Region *r)
{
    Region *c = r ? region_clone(g, r) : NULL;
    for (int b = 0; b < region_nbody(c); b++)
        mark_copies(c->body[b]);
    return c;
}

Node *remat_copy(Graph *g, Arena *tmp, const Node *n, Node *before, const char *origin)
{
    Build b = {.g = g,
               .before = before,
               .phase = BACKWARD,
               .scope = n->scope,
               .origin = origin,
               .line = n->line,
               .column = n->column};
    const char **names = NEWN(tmp, const char *, n->nout);
    for (int k = 0; k < n->nout; k++)
        names[k] = graph_fresh(g, arena_printf(g->a, "%s_r", n->out[k]->name));
    Node *m = emit_named(&b, n->op, n->nin, n->in, n->attr, copy_region(g, n->region), n->stream,
                         names, n->nout);
    if (n->nafter)
        m->after =
            memcpy(NEWN(g->a, Node *, n->nafter), n->after, sizeof(Node *) * (size_t)n->nafter);
    m->nafter = n->nafter;
    return m;
}

/* Copies what is computed again, each before its first reader; what it reads has been met before.
 */
static int make_copies(const Source *s, Arena *tmp, const Choice *c)
{
    Replace copies = replace_start(s->g, tmp);
    int count = 0;
    EACH_NODE(n, s->g) {
        if (n->id >= s->nnode)
            continue;
        if (s->backward[n->id])
            replace_operands(&copies, n);
        const Node *root = s->root[n->out[0]->id];
        if (!is_forward(n) || !c[n->id].reader || !is_forward(root) || !c[root->id].redo)
            continue;
        Node *m = remat_copy(s->g, tmp, n, c[n->id].reader, n->out[0]->name);
        replace_operands(&copies, m);
        for (int k = 0; k < n->nout; k++)
            replace_with(&copies, n, k, m->out[k]);
        count++;
    }
    return count;
}

/* ---- one graph and the bodies in it ---- */

static int rematerialize(Graph *g, Arena *tmp, Decisions *d, const Collected *of);

static int rematerialize_bodies(Node *n, Arena *tmp, Decisions *d, const Choices *c)
{
    int copies = 0;
    bool *read = NEWN(tmp, bool, n->nout);
    for (int k = 0; k < n->nout; k++)
        read[k] = is_forward(n) && c->read[n->out[k]->id];
    EACH_BODY(b, n) {
        Collected of = {n, read, c->of[n->id].redo, b};
        copies += rematerialize(n->region->body[b], tmp, d, &of);
    }
    return copies;
}

static int rematerialize(Graph *g, Arena *tmp, Decisions *d, const Collected *of)
{
    int copies = 0;
    const Source s = read_source(g, tmp);
    const Choices c = choose(&s, tmp, of);
    EACH_NODE(n, g) {
        if (n->region)
            copies += rematerialize_bodies(n, tmp, d, &c);
        if (d && n->policy && is_forward(n) && (c.of[n->id].why || policy_must(n->policy)))
            note(d, n, &c.of[n->id]);
    }
    return copies + make_copies(&s, tmp, c.of);
}

int pass_remat(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->warn && graph_find_output(g, ROLE_LOSS, NULL) && !graph_has_backward(g))
        o->warn(o->warn_arg, "remat: the graph has no backward yet, for which something could be "
                             "computed again: the pass grad belongs before it");
    return rematerialize(g, tmp, o->decisions, NULL);
}
