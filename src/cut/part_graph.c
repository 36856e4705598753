/* part_graph: follows cuts through a graph or body, and emits the graph of a part.
 *
 * Each loop or mesh axis is followed on its own, node by node in order. If a node needs a slice of
 * a whole value, a part of the value's node that gives this slice is emitted before the reader, and
 * likewise for its operands; a slice of an input or of a region's result is refused. Whether
 * several axes can cut the graph at once is asked of each node. Readers share such a slice. Linear,
 * for each way in which a value is needed. */
#include "cut.h"

#include <string.h>

enum { MAX_DEPTH = 1000 }; /* of nodes that are remade for each other: they take the stack */

/* A value cut as readers need it, but as it is not: whether it can be, and the slice. */
typedef struct CutForm {
    const Cut *need; /* by cut */
    bool good;
    Value *made;
    struct CutForm *next;
} CutForm;

/* A graph and the cuts of several loops and mesh axes. */
typedef struct CutView {
    Arena *tmp;
    int ncut;
    const PartCut *cuts;
    const GraphCut *const *graph; /* by cut; NULL: all of the graph is whole */
    Graph *to;                    /* the part's graph; NULL: only whether there can be one */
    Value **now;                  /* by value id: the part's */
    CutForm **form;               /* by value id: of whole values of which slices were needed */
} CutView;

static Cut value_cut(const CutView *x, int c, const Value *v)
{
    return x->graph[c] ? x->graph[c]->value[v->id] : (Cut){.kind = CUT_WHOLE};
}

static NodeCut node_cut(const CutView *x, int c, const Node *n)
{
    return x->graph[c] ? x->graph[c]->node[n->id] : (NodeCut){.kind = NODE_WHOLE};
}

/* depth: readers between the node that is emitted and n. */
static bool find_operands(const CutView *x, const Node *n, const Factors *f, const NodeCut *how,
                          int depth, Value **in, CutStop *stop);

/* How v's node must be cut to give v as need[]; false: it cannot. */
static bool find_remake(const CutView *x, const Value *v, const Factors *f, const Cut *need,
                        NodeCut *how)
{
    const Node *n = v->def;
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    CutStop stop;
    for (int c = 0; c < x->ncut; c++) {
        how[c] = node_cut(x, c, n);
        if (cut_equal(need[c], value_cut(x, c, v)))
            continue;
        memset(out, 0, sizeof *out * (size_t)n->nout);
        out[v->index] = need[c];
        if (need[c].kind != CUT_SLICE || !cut_backward(n, f, x->cuts[c].count, out, &how[c], &stop))
            return false;
        cut_fill(n, f, &how[c], in, out);
        if (!cut_equal(out[v->index], need[c]))
            return false;
    }
    return cut_together(f, x->ncut, x->cuts, how, &stop) && !cut_partials(f, x->ncut, how, NULL);
}

/* Emits v, which is a node's result, as need[] says; only finds whether it could where no graph is
 * made. */
static bool remake(const CutView *x, const Value *v, const Cut *need, int depth, Value **made)
{
    const Node *n = v->def;
    NodeCut how[MAX_CUT];
    CutStop stop;
    Factors *f = node_factors(x->tmp, n);
    Value **in = NEWN(x->tmp, Value *, n->nin), **out = NEWN(x->tmp, Value *, n->nout);
    if (!find_remake(x, v, f, need, how) || !find_operands(x, n, f, how, depth + 1, in, &stop))
        return false;
    if (x->to) {
        Build b = build_like(x->to, NULL, n);
        cut_part(&b, n, f, x->ncut, x->cuts, how, in, out);
        *made = out[v->index];
    }
    return true;
}

/* Finds or emits v as need[] says, by cut: the value itself, or one recomputed in parts. */
static bool find_form(const CutView *x, const Value *v, const Cut *need, int depth, Value **made)
{
    bool same = true;
    *made = x->now ? x->now[v->id] : NULL;
    for (int c = 0; c < x->ncut; c++)
        same &= cut_equal(need[c], value_cut(x, c, v));
    if (same || !v->def || v->def->op->region || depth > MAX_DEPTH)
        return same;
    CutForm *y = x->form[v->id];
    while (y && !cuts_equal(x->ncut, y->need, need))
        y = y->next;
    if (!y) {
        Cut *own = NEWN(x->tmp, Cut, x->ncut);
        memcpy(own, need, sizeof *own * (size_t)x->ncut);
        y = NEW(x->tmp, CutForm);
        *y = (CutForm){.need = own, .next = x->form[v->id]};
        y->good = remake(x, v, need, depth, &y->made);
        x->form[v->id] = y;
    }
    *made = y->made;
    return y->good;
}

static bool find_operands(const CutView *x, const Node *n, const Factors *f, const NodeCut *how,
                          int depth, Value **in, CutStop *stop)
{
    Cut *need = NEWN(x->tmp, Cut, n->nin * x->ncut), *out = NEWN(x->tmp, Cut, n->nout);
    for (int c = 0; c < x->ncut; c++)
        cut_fill(n, f, &how[c], need + c * n->nin, out);
    for (int i = 0; i < n->nin; i++) {
        Cut want[MAX_CUT];
        for (int c = 0; c < x->ncut; c++)
            want[c] = need[c * n->nin + i];
        if (!find_form(x, n->in[i], want, depth, &in[i])) {
            *stop = (CutStop){"it needs another part of", i, -1};
            return false;
        }
    }
    return true;
}

/* ---- following a cut ---- */

static bool follow_node(const CutView *x, const GraphCut *c, const Node *n, CutStop *stop)
{
    Arena *tmp = x->tmp;
    Cut *in = NEWN(tmp, Cut, n->nin), *out = NEWN(tmp, Cut, n->nout);
    Value **made = NEWN(tmp, Value *, n->nin);
    NodeCut *how = &c->node[n->id];
    for (int i = 0; i < n->nin; i++)
        in[i] = c->value[n->in[i]->id];
    if (n->op->region == LOOP) {
        if (!cut_loop_forward(n, tmp, c->count, in, how, out, stop))
            return false;
    } else {
        Factors *f = node_factors(tmp, n);
        if (!cut_forward(n, f, c->count, in, how, stop))
            return false;
        if (cut_partials(f, 1, how, NULL)) {
            *stop = (CutStop){"its parts must be merged", -1, -1};
            return false;
        }
        if (!find_operands(x, n, f, how, 0, made, stop))
            return false;
        cut_fill(n, f, how, in, out);
    }
    for (int k = 0; k < n->nout; k++)
        c->value[n->out[k]->id] = out[k];
    return true;
}

bool cut_graph(const Graph *g, Arena *tmp, const GraphCut *c, const Node **at, CutStop *stop)
{
    PartCut part = {.count = c->count};
    CutView x = {
        .tmp = tmp, .ncut = 1, .cuts = &part, .graph = &c, .form = NEWN(tmp, CutForm *, g->nvalue)};
    for (const Node *n = g->first; n; n = n->next)
        if (*at = n, !follow_node(&x, c, n, stop))
            return false;
    return true;
}

bool cut_graph_together(const Graph *g, Arena *tmp, int ncut, const PartCut *cuts,
                        const GraphCut *const *graph, CutStop *stop)
{
    CutView x = {.tmp = tmp,
                 .ncut = ncut,
                 .cuts = cuts,
                 .graph = graph,
                 .form = NEWN(tmp, CutForm *, g->nvalue)};
    for (int i = 0; i < g->nin; i++) {
        Cut cut[MAX_CUT];
        for (int c = 0; c < ncut; c++)
            cut[c] = value_cut(&x, c, g->in[i].v);
        if (!cut_value_legal(&g->in[i].v->type, ncut, cuts, cut)) {
            *stop = (CutStop){"two cuts of an axis of an input overlap", -1, -1};
            return false;
        }
    }
    for (const Node *n = g->first; n; n = n->next) {
        NodeCut how[MAX_CUT];
        for (int c = 0; c < ncut; c++)
            how[c] = node_cut(&x, c, n);
        if (n->op->region == LOOP) {
            if (!cut_loop_together(n, tmp, ncut, cuts, how, stop))
                return false;
            continue;
        }
        Factors *f = node_factors(tmp, n);
        Value **made = NEWN(tmp, Value *, n->nin);
        if (!cut_together(f, ncut, cuts, how, stop) || !find_operands(&x, n, f, how, 0, made, stop))
            return false;
    }
    return true;
}

/* ---- the graph of a part ---- */

static void part_node(const CutView *x, const Node *n)
{
    NodeCut how[MAX_CUT];
    CutStop stop;
    bool whole = true;
    Value **in = NEWN(x->tmp, Value *, n->nin), **out = NEWN(x->tmp, Value *, n->nout);
    for (int c = 0; c < x->ncut; c++) {
        how[c] = node_cut(x, c, n);
        whole &= how[c].kind == NODE_WHOLE;
    }
    Build b = build_like(x->to, NULL, n);
    for (int i = 0; i < n->nin; i++)
        in[i] = x->now[n->in[i]->id];
    if (whole) {
        Region *r = n->region ? region_clone(x->to, n->region) : NULL;
        Node *m = emit_like(&b, n, in, r, "");
        memcpy(out, m->out, sizeof *out * (size_t)n->nout);
    } else if (n->op->region == LOOP) {
        cut_loop_part(&b, n, x->tmp, x->ncut, x->cuts, how, in, out);
    } else {
        Factors *f = node_factors(x->tmp, n);
        bool found = find_operands(x, n, f, how, 0, in, &stop);
        CHECK(found);
        cut_part(&b, n, f, x->ncut, x->cuts, how, in, out);
    }
    for (int k = 0; k < n->nout; k++)
        x->now[n->out[k]->id] = out[k];
    Node *m = out[0]->def;
    m->after = NEWN(x->to->a, Node *, n->nafter);
    for (int i = 0; i < n->nafter; i++)
        m->after[m->nafter++] = x->now[n->after[i]->out[0]->id]->def;
}

void cut_graph_part(const Graph *g, Graph *to, Arena *tmp, int ncut, const PartCut *cuts,
                    const GraphCut *const *graph, Value **now)
{
    CutView x = {tmp, ncut, cuts, graph, to, now, NEWN(tmp, CutForm *, g->nvalue)};
    for (const Node *n = g->first; n; n = n->next)
        part_node(&x, n);
    for (int i = 0; i < g->nout; i++)
        graph_output(to, now[g->out[i].v->id], g->out[i].role, g->out[i].name);
}
