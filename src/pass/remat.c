/* remat: what policies say becomes nodes. A forward value that backward nodes read and that shall
 * be computed again gets a copy right before the first of them: phase backward, `origin` names the
 * node it is a copy of. The copy reads what is saved, and copies of what is not; later readers in
 * the backward share it, or get copies of their own where that lowers the peak (remat_repeat.c).
 * Originals that nothing else reads go. (As PyTorch's
 * remat_using_tags_for_fwd_loss_bwd_graph; but for any number of backward parts, and with random
 * ops, which draw the same numbers again from their stream.) A node without a policy is saved.
 *
 * - A view has no memory of its own: its policy is one of the node whose storage it shows; where
 *   both have one, must_ wins over prefer_, and two must_ that disagree are an error. A copy of
 *   that node has copies of its views.
 * - All results of a node have its policy. A loop or fused node is computed again as a whole. What
 *   is said in a body of `fused` is said of all of it. What a forward loop collects for a backward
 *   loop is kept, or computed again, with the whole loop, whatever is preferred; that it must be
 *   otherwise is an error.
 * - A policy on what the backward does not read, or on a node of the backward, changes nothing.
 * - prefer_recompute becomes prefer_save, in the graph too, where a node of another block that is
 *   computed again would read it: recomputation begins anew in each block. must_recompute stays.
 *
 * A copy runs the same kernel on operands of the same layout, so it has the same bits. It may read
 * a parameter: the planner makes whoever takes the parameter's place wait for all its readers.
 *
 * Each body of a loop is a graph of its own. n log n. Twice is once: copies are of the backward and
 * what they read is saved or a copy. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

typedef struct Placed {
    int place;
    Node *node;
} Placed;

/* What becomes of a forward loop's results that a backward one reads: all of them are kept, or the
 * loop is computed again. */
typedef struct Collected {
    const Node *loop;
    const bool *read; /* by index of its results */
    bool redo, tail;
} Collected;

typedef struct Remat {
    Graph *g;
    Arena *tmp;
    const PassOptions *o;
    Node **root;    /* by value id */
    int *place;     /* by node id: in the graph's order */
    Policy *policy; /* by node id: what was asked for */
    bool *redo;     /* by node id: computed again */
    bool *output;   /* by node id: the graph gives it out */
    bool *held;     /* by node id: a loop over forward and backward reads it each turn */
    bool *read;     /* by value id: in the backward, itself or by a view */
    bool *inside;   /* by node id, of a body: collected */
    const Collected *collected; /* by the loop whose body it is; may be NULL */
    Node **reader;              /* by node id: the first backward reader */
    bool *queued;               /* by node id: will be copied */
    Replace copies;             /* of originals */
    Placed *list;               /* nodes to be copied before the reader at hand */
    int count, capacity, ncopies;
} Remat;

/* ---- policies ---- */

/* Places, roots, policies and outputs. */
static void find_policies(Remat *s)
{
    int place = 0;
    for (Node *n = s->g->first; n; n = n->next) {
        s->place[n->id] = place++;
        for (int k = 0; k < n->nout; k++)
            s->root[n->out[k]->id] = n->op->view ? s->root[n->in[0]->id] : n;
        s->policy[n->id] = n->op->view ? POLICY_NONE : n->policy;
    }
    for (int i = 0; i < s->g->nout; i++) {
        const Node *root = s->root[s->g->out[i].v->id];
        if (root)
            s->output[root->id] = true;
    }
}

/* ---- who reads in the backward ---- */

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

/* v and what it shows. */
static void mark_read(Remat *s, const Value *v)
{
    for (; !s->read[v->id]; v = v->def->in[0]) {
        s->read[v->id] = true;
        if (!v->def || !v->def->op->view)
            return;
    }
}

/* What a backward loop reads of a forward one, of which this is a body. */
static void find_collected(Remat *s)
{
    const Region *r = s->collected ? s->collected->loop->region : NULL;
    for (int k = 0; r && k < r->nout; k++) {
        int i = s->collected->read[k] ? r->out[k].at[s->collected->tail] : -1;
        const Node *root = i < 0 ? NULL : s->root[s->g->out[i].v->id];
        if (i >= 0)
            mark_read(s, s->g->out[i].v);
        if (root)
            s->inside[root->id] = true;
    }
}

static void read_operands(Remat *s, Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        const Node *root = s->root[n->in[i]->id];
        mark_read(s, n->in[i]);
        if (is_forward(root) && !s->reader[root->id])
            s->reader[root->id] = n;
    }
}

static void hold_operands(Remat *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (s->root[n->in[i]->id])
            s->held[s->root[n->in[i]->id]->id] = true;
}

static void find_readers(Remat *s)
{
    for (Node *n = s->g->first; n; n = n->next)
        if (node_in_backward(n))
            read_operands(s, n);
        else if (n->op->region == LOOP && !is_forward(n))
            hold_operands(s, n);
}

/* ---- what is computed again ---- */

static void note(const Remat *s, const Node *n, const char *reason)
{
    Decisions *d = s->o->decisions;
    Policy asked = s->policy[n->id];
    if (!d || !asked)
        return;
    bool unused = !s->reader[n->id] && !s->inside[n->id];
    Decision x = {.unused = unused,
                  .recompute = s->redo[n->id],
                  .policy = asked,
                  .honoured = unused || s->redo[n->id] == policy_again(asked),
                  .node = arena_strdup(d->a, n->out[0]->name),
                  .scope = arena_strdup(d->a, n->scope),
                  .reason = reason};
    for (int k = 0; k < n->nout; k++)
        x.nbytes += type_nbytes(&n->out[k]->type);
    PUSH(d->a, d->list, d->count, d->cap, x);
}

/* Marks what n reads of other blocks as saved, if n is computed again. */
static void end_chains(Remat *s, const Node *n, bool *seam)
{
    Block b = block_of(n->scope);
    for (int i = 0; i < n->nin; i++) {
        const Node *from = s->root[n->in[i]->id];
        const Value *v = n->in[i];
        if (!is_forward(from))
            continue;
        while (v->def != from)
            v = v->def->in[0];
        Block other = block_of(value_scope(v));
        seam[from->id] |= !block_equal(&b, &other);
    }
}

/* n is saved, though it prefers otherwise: of a fused node what the backward reads. */
static void overrule(Remat *s, Node *n)
{
    n->policy = PREFER_SAVE;
    if (n->op->region != FUSED)
        return;
    for (int k = 0; k < n->nout; k++)
        if (s->read[n->out[k]->id])
            defining_node(n->out[k])->policy = PREFER_SAVE;
    n->policy = policy_of_body(s->g, s->tmp, n);
}

/* A copy of n, if there is one, reads what n does. */
static void read_by_copy(Remat *s, const Node *n)
{
    for (int i = 0; i < n->nin && s->reader[n->id]; i++) {
        const Node *root = s->root[n->in[i]->id];
        mark_read(s, n->in[i]);
        if (is_forward(root) && !s->reader[root->id])
            s->reader[root->id] = s->reader[n->id];
    }
}

static void choose(Remat *s)
{
    bool *seam = NEWN(s->tmp, bool, s->g->nnode);
    for (Node *n = s->g->last; n; n = n->prev) {
        Policy p = s->policy[n->id];
        if (s->inside[n->id])
            s->redo[n->id] = s->collected->redo;
        if (n->origin && n->phase == BACKWARD)
            end_chains(s, n, seam); /* the copies of an earlier compilation */
        if (!s->reader[n->id] || !is_forward(n) || !policy_again(p) || s->inside[n->id])
            continue;
        const Node *inner = region_must_save(n);
        bool stays = s->output[n->id] || s->held[n->id] || inner;
        if (p == MUST_RECOMPUTE && inner)
            fail_node(s->g, inner,
                      "is must_save, but its loop is computed again as a whole: %%%s <- %%%s",
                      n->out[0]->name, inner->out[0]->name);
        s->redo[n->id] = p == MUST_RECOMPUTE || (!seam[n->id] && !stays);
        if (s->redo[n->id]) {
            end_chains(s, n, seam);
            read_by_copy(s, n);
        } else if (!stays)
            overrule(s, n);
    }
}

/* A loop's result that the backward reads is kept, or computed again, with the loop. */
static void explain_collected(const Remat *s, const Node *n)
{
    const Node *loop = s->collected->loop;
    Policy p = s->policy[n->id];
    bool redo = s->collected->redo;
    if (p == MUST_RECOMPUTE && !redo)
        fail_node(s->g, n,
                  "is must_recompute, but it can only be computed again with the whole loop, for a "
                  "later loop reads it: %%%s <- %%%s",
                  loop->out[0]->name, n->out[0]->name);
    note(s, n,
         redo ? "its loop is computed again as a whole"
         : policy_again(p)
             ? "the loop keeps it for another loop, and is not computed again as a whole"
             : "the loop keeps it for another loop");
}

static void explain(const Remat *s)
{
    for (const Node *n = s->g->first; n; n = n->next) {
        if (n->op->view || !is_forward(n))
            continue;
        if (s->inside[n->id]) {
            explain_collected(s, n);
            continue;
        }
        bool used = s->reader[n->id] != NULL;
        if (used && s->redo[n->id])
            note(s, n, "the backward computes it again");
        else if (used)
            note(s, n,
                 !policy_again(s->policy[n->id]) ? "the backward reads it"
                 : s->output[n->id]              ? "it is an output, and kept in any case"
                 : s->held[n->id]      ? "a loop over forward and backward keeps it in any case"
                 : region_must_save(n) ? "what its body makes must be saved"
                                       : "another block's recomputation begins with it");
        else if (policy_must(s->policy[n->id]))
            note(s, n, "the backward has no use for it");
    }
}

/* ---- copies ---- */

static bool needs_copy(const Remat *s, const Value *v)
{
    const Node *root = s->root[v->id];
    return is_forward(v->def) && is_forward(root) && s->redo[root->id];
}

static void queue(Remat *s, Node *n)
{
    if (s->queued[n->id])
        return;
    s->queued[n->id] = true;
    Placed x = {s->place[n->id], n};
    PUSH(s->tmp, s->list, s->count, s->capacity, x);
}

static int by_place(const void *x, const void *y)
{
    return ((const Placed *)x)->place - ((const Placed *)y)->place;
}

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

static void copy_node(Remat *s, const Node *n, Node *before)
{
    Node *m = remat_copy(s->g, s->tmp, n, before, n->out[0]->name);
    replace_operands(&s->copies, m);
    for (int k = 0; k < n->nout; k++)
        replace_with(&s->copies, n, k, m->out[k]);
    s->ncopies++;
}

/* Copies what n needs, and all that those need, before n. */
static void copy_for(Remat *s, Node *n)
{
    s->count = 0;
    for (int i = 0; i < n->nin; i++)
        if (needs_copy(s, n->in[i]))
            queue(s, n->in[i]->def);
    for (int k = 0; k < s->count; k++) {
        const Node *m = s->list[k].node;
        for (int i = 0; i < m->nin; i++)
            if (needs_copy(s, m->in[i]))
                queue(s, m->in[i]->def);
    }
    if (s->count)
        qsort(s->list, (size_t)s->count, sizeof *s->list, by_place);
    for (int k = 0; k < s->count; k++)
        copy_node(s, s->list[k].node, n);
    replace_operands(&s->copies, n);
}

/* ---- one graph and the bodies in it ---- */

static Remat start(Graph *g, Arena *tmp, const PassOptions *o)
{
    return (Remat){.g = g,
                   .tmp = tmp,
                   .o = o,
                   .place = NEWN(tmp, int, g->nnode),
                   .root = NEWN(tmp, Node *, g->nvalue),
                   .policy = NEWN(tmp, Policy, g->nnode),
                   .redo = NEWN(tmp, bool, g->nnode),
                   .output = NEWN(tmp, bool, g->nnode),
                   .held = NEWN(tmp, bool, g->nnode),
                   .read = NEWN(tmp, bool, g->nvalue),
                   .inside = NEWN(tmp, bool, g->nnode),
                   .reader = NEWN(tmp, Node *, g->nnode),
                   .queued = NEWN(tmp, bool, g->nnode),
                   .copies = replace_start(g, tmp)};
}

static int rematerialize(Graph *g, Arena *tmp, const PassOptions *o, const Collected *c);

static int rematerialize_bodies(const Remat *s, const Node *n)
{
    bool *read = NEWN(s->tmp, bool, n->nout);
    int copies = 0;
    for (int k = 0; k < n->nout; k++)
        read[k] = is_forward(n) && s->read[n->out[k]->id];
    EACH_BODY(b, n) {
        Collected c = {n, read, s->redo[n->id], b};
        copies += rematerialize(n->region->body[b], s->tmp, s->o, &c);
    }
    return copies;
}

static int rematerialize(Graph *g, Arena *tmp, const PassOptions *o, const Collected *c)
{
    int inside = 0;
    Remat s = start(g, tmp, o);
    s.collected = c;
    find_policies(&s);
    find_collected(&s);
    find_readers(&s);
    choose(&s);
    EACH_NODE(n, g) {
        if (n->op->region == LOOP)
            inside += rematerialize_bodies(&s, n);
        if (node_in_backward(n))
            copy_for(&s, n);
    }
    explain(&s);
    return s.ncopies + inside;
}

int pass_remat(Graph *g, Arena *tmp, const PassOptions *o)
{
    if (o->warn && graph_find_output(g, ROLE_LOSS, NULL) && !graph_has_backward(g))
        o->warn(o->warn_arg, "remat: the graph has no backward yet, for which something could be "
                             "computed again: the pass grad belongs before it");
    return rematerialize(g, tmp, o, NULL);
}
