/* chunk_grow: finds the nodes around a value that are to run in slices, and how each is cut.
 *
 * The region starts with the value's definer and readers. A value of at least half its elements
 * that they need or make as a slice is sliced too: its definer and its readers join, each cut as
 * cut/transfer.c says. Smaller values are the border: read as slices or whole from outside, yielded
 * as slices or sums. Where a definer or reader cannot be cut, or is of the optimizer, the value is
 * on the border as well; only the seed must be sliced wherever it is read.
 *
 * The nodes fall into levels: one that depends on a result of level l by a way outside of the
 * region is of level l + 1. Neighbouring levels become one loop if all nodes on the ways between
 * them can be cut too, or are made only of scalars by which results can be multiplied behind the
 * loop (chunk_late.c). A second loop, mostly of the backward, gets clones of the nodes of the first
 * whose large values it reads. More than two loops are refused.
 *
 * Linear in the graph for each level, and in the region's nodes. */
#include "chunk.h"

#include <string.h>

enum { MOST_LEVELS = 8 };

typedef struct Growth {
    Graph *g;
    Arena *tmp;
    const Value *seed;
    int64_t least, units;
    GraphCut cut; /* of the nodes that have joined, and of what they make */
    bool *joined; /* by node id */
    Cut *want;    /* by value id: how a reader needs a value whose definer may join */
    Node ***user; /* by value id: its readers, up to a NULL */
    Node **queue;
    int nqueue;
    int mostnode, mostvalue; /* sizes of these arrays, with room for what chunk adds to the graph */
    const char *why;         /* the last node that could not join, and why */
} Growth;

static bool is_large(const Growth *x, const Value *v)
{
    return type_nelem(&v->type) >= x->least;
}

static bool is_made(const Growth *x, const Value *v)
{
    return v->def && x->joined[v->def->id];
}

/* ---- readers ---- */

static Node ***find_users(const Graph *g, Arena *tmp)
{
    int *count = NEWN(tmp, int, g->nvalue);
    Node ***user = NEWN(tmp, Node **, g->nvalue);
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            count[n->in[i]->id]++;
    for (int v = 0; v < g->nvalue; v++)
        user[v] = NEWN(tmp, Node *, count[v] + 1);
    memset(count, 0, sizeof *count * (size_t)g->nvalue);
    for (Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            user[n->in[i]->id][count[n->in[i]->id]++] = n;
    return user;
}

/* ---- joining ---- */

static bool refuse(Growth *x, const Node *n, const char *why)
{
    x->why = arena_printf(x->tmp, "%%%s (%s): %s", n->out[0]->name, n->op->name, why);
    return false;
}

/* The cuts of n's operands that are made in the region, and those that readers want of its
 * results; whether there is one of the first, and of the second. */
static void known_cuts(const Growth *x, const Node *n, Cut *in, Cut *out, bool *forward,
                       bool *backward)
{
    *forward = *backward = false;
    for (int i = 0; i < n->nin; i++) {
        in[i] = is_made(x, n->in[i]) ? x->cut.value[n->in[i]->id] : (Cut){.kind = CUT_WHOLE};
        *forward |= in[i].kind != CUT_WHOLE;
    }
    for (int k = 0; k < n->nout; k++) {
        out[k] = x->want[n->out[k]->id];
        *backward |= out[k].kind != CUT_WHOLE;
    }
}

/* Whether what n needs and makes is what is known: a whole value can be sliced by its readers. */
static bool agrees(Growth *x, const Node *n, const Cut *in, const Cut *out)
{
    for (int i = 0; i < n->nin; i++) {
        Cut has = is_made(x, n->in[i]) ? x->cut.value[n->in[i]->id] : (Cut){.kind = CUT_WHOLE};
        if (has.kind != CUT_WHOLE && !cut_equal(has, in[i]))
            return refuse(x, n,
                          arena_printf(x->tmp, "it needs another part of operand %d (%%%s)", i,
                                       n->in[i]->name));
    }
    for (int k = 0; k < n->nout; k++)
        if (x->want[n->out[k]->id].kind != CUT_WHOLE && !cut_equal(x->want[n->out[k]->id], out[k]))
            return refuse(x, n, arena_printf(x->tmp, "result %d would be cut otherwise", k));
    return true;
}

/* Finds how n is cut, and the cuts that it then needs and gives. */
static bool find_how(Growth *x, const Node *n, NodeCut *how, Cut *in, Cut *out)
{
    bool forward, backward;
    CutStop stop;
    PartCut part = {.count = x->units, .units = x->units};
    known_cuts(x, n, in, out, &forward, &backward);
    if (n->op->region)
        return refuse(x, n, "it is a region");
    if (n->phase >= OPTIMIZER)
        return refuse(x, n, "it is of the optimizer");
    if (n->op->counts)
        return refuse(x, n, "it counts over the whole batch");
    const Factors *f = node_factors(x->tmp, n);
    if (!(forward ? cut_forward(n, f, x->units, in, how, &stop)
                  : cut_backward(n, f, x->units, out, how, &stop)) ||
        !cut_together(f, 1, &part, how, &stop))
        return refuse(x, n, cut_stop_text(x->tmp, n, &stop));
    if (cut_partials(f, 1, how, NULL))
        return refuse(x, n, "its parts must be merged before they are results");
    cut_fill(n, f, how, in, out);
    for (int k = 0; k < n->nout; k++)
        if (out[k].kind == CUT_MAX || out[k].kind == CUT_LOGSUMEXP)
            return refuse(x, n, "its parts are merged by a maximum, which is not linear");
    return agrees(x, n, in, out);
}

static bool join(Growth *x, Node *n)
{
    if (x->joined[n->id])
        return true;
    NodeCut how;
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    if (!find_how(x, n, &how, in, out))
        return false;
    x->joined[n->id] = true;
    x->cut.node[n->id] = how;
    for (int k = 0; k < n->nout; k++)
        x->cut.value[n->out[k]->id] = out[k];
    x->queue[x->nqueue++] = n;
    return true;
}

/* The cuts that n, which has joined, needs and gives. */
static void cuts_of(const Growth *x, const Node *n, Cut *in, Cut *out)
{
    cut_fill(n, node_factors(x->tmp, n), &x->cut.node[n->id], in, out);
}

/* Constants are made where they are read; large slices by the region. */
static void join_definer(Growth *x, Value *v, Cut need)
{
    bool constant = v->def && v->def->op->class == CLASS_CREATION && !v->def->nin;
    if (!v->def || is_made(x, v) || !(constant || (need.kind == CUT_SLICE && is_large(x, v))))
        return;
    x->want[v->id] = need;
    if (!join(x, v->def))
        x->want[v->id] = (Cut){.kind = CUT_WHOLE};
}

/* False if the seed is read by what cannot join. */
static bool join_readers(Growth *x, const Value *v)
{
    if (x->cut.value[v->id].kind != CUT_SLICE || !is_large(x, v))
        return true;
    for (Node **n = x->user[v->id]; *n; n++)
        if (!join(x, *n) && v == x->seed)
            return false;
    return true;
}

/* Whether n reads nothing of the region, and something outside reads what it makes. */
static bool is_outer(const Growth *x, const Node *n)
{
    bool read = false;
    for (int i = 0; i < n->nin; i++)
        if (is_made(x, n->in[i]))
            return false;
    for (int k = 0; k < n->nout; k++) {
        read |= graph_is_output(x->g, n->out[k]);
        for (Node **m = x->user[n->out[k]->id]; *m; m++)
            read |= !x->joined[(*m)->id];
    }
    return read && n->op->class != CLASS_CREATION && n != x->seed->def;
}

/* What the graph around makes in any case is read from there. */
static void leave_outer(Growth *x)
{
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < x->nqueue; i++) {
            Node *n = x->queue[i];
            if (!x->joined[n->id] || !is_outer(x, n))
                continue;
            x->joined[n->id] = false;
            for (int k = 0; k < n->nout; k++)
                x->cut.value[n->out[k]->id] = x->want[n->out[k]->id] = (Cut){.kind = CUT_WHOLE};
            more = true;
        }
    }
    int count = 0;
    for (int i = 0; i < x->nqueue; i++)
        if (x->joined[x->queue[i]->id])
            x->queue[count++] = x->queue[i];
    x->nqueue = count;
}

static bool grow(Growth *x)
{
    if (!x->seed->def || !join(x, x->seed->def))
        return false;
    for (int i = 0; i < x->nqueue; i++) {
        Node *n = x->queue[i];
        Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
        cuts_of(x, n, in, out);
        for (int j = 0; j < n->nin; j++)
            join_definer(x, n->in[j], in[j]);
        for (int k = 0; k < n->nout; k++)
            if (!join_readers(x, n->out[k]))
                return false;
    }
    leave_outer(x);
    return true;
}

/* ---- levels ---- */

/* The least level of n's readers; its own if one of them is not of the region. */
static int readers_level(const Growth *x, const Node *n, const int *level)
{
    int least = MOST_LEVELS;
    for (int k = 0; k < n->nout; k++)
        for (Node **m = x->user[n->out[k]->id]; *m; m++)
            least = MIN(least, x->joined[(*m)->id] ? level[(*m)->id] : level[n->id]);
    return least == MOST_LEVELS ? level[n->id] : least;
}

/* By node id: the level of a node of the region; of others, of what may read them. What only a
 * later level reads is of that one, as what the backward alone needs of the forward. */
static int *find_levels(const Growth *x)
{
    int *level = NEWN(x->tmp, int, x->g->nnode);
    for (const Node *n = x->g->first; n; n = n->next) {
        bool inside = x->joined[n->id];
        for (int i = 0; i < n->nin + n->nafter; i++) {
            const Node *m = i < n->nin ? n->in[i]->def : n->after[i - n->nin];
            int from = !m ? 0 : level[m->id] + (x->joined[m->id] && !inside);
            level[n->id] = MAX(level[n->id], from);
        }
    }
    for (const Node *n = x->g->last; n; n = n->prev)
        if (x->joined[n->id])
            level[n->id] = MAX(level[n->id], readers_level(x, n, level));
    return level;
}

/* ---- one loop: the nodes on ways out of it and back ---- */

/* What is known of the values on these ways, by value id. */
typedef struct Ways {
    bool *after,
        *before;  /* by node id: it reads what the loop makes, or is read by it, by any way */
    bool *late;   /* made outside, of what the loop makes: there only behind it */
    Value **root; /* of values inside: the late value of one element by which they are multiples */
} Ways;

static Ways find_ways(const Growth *x, const bool *inside)
{
    const Graph *g = x->g;
    Ways w = {NEWN(x->tmp, bool, x->mostnode), NEWN(x->tmp, bool, x->mostnode),
              NEWN(x->tmp, bool, x->mostvalue), NEWN(x->tmp, Value *, x->mostvalue)};
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin + n->nafter; i++) {
            const Node *m = i < n->nin ? n->in[i]->def : n->after[i - n->nin];
            w.after[n->id] |= m && (inside[m->id] || w.after[m->id]);
        }
    for (const Node *n = g->last; n; n = n->prev)
        for (int i = 0; i < n->nin + n->nafter; i++) {
            const Node *m = i < n->nin ? n->in[i]->def : n->after[i - n->nin];
            if (m)
                w.before[m->id] |= inside[n->id] || w.before[n->id];
        }
    return w;
}

/* Whether v is a constant 0, which is a multiple of anything. */
static bool is_zero(const Value *v)
{
    const Node *n = v->def;
    while (n && (n->op->view || n->op->copy) && n->in[0]->def)
        n = n->in[0]->def;
    return node_is(n, OP_full) && n->attr[attr_index(n->op, "fill_value")].f == 0;
}

/* Whether n is linear in these operands, and perhaps in those more that are 0. */
static bool is_linear(const Node *n, uint64_t scaled)
{
    uint64_t zeros = 0;
    for (int i = 0; i < n->nin && i < 63; i++)
        zeros |= is_zero(n->in[i]) ? 1ULL << i : 0;
    return op_linear(n, scaled) || (zeros & ~scaled && op_linear(n, scaled | zeros));
}

/* By which late value n's results are multiplied, if it is one: false if n is not linear in it, or
 * reads late values otherwise. */
static bool find_root(Growth *x, const Ways *w, const Node *n, Value **root)
{
    uint64_t scaled = 0;
    *root = NULL;
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i], *by = is_made(x, v) ? w->root[v->id] : w->late[v->id] ? v : NULL;
        if (!by)
            continue;
        if (type_nelem(&by->type) != 1)
            return refuse(x, n,
                          arena_printf(x->tmp, "it reads %%%s, which is known only behind the loop",
                                       by->name));
        if (*root && *root != by)
            return refuse(x, n,
                          arena_printf(x->tmp, "it reads two later scales, %%%s and %%%s",
                                       (*root)->name, by->name));
        *root = by;
        scaled |= 1ULL << MIN(i, 63);
    }
    return !*root || is_linear(n, scaled) ||
           refuse(x, n, arena_printf(x->tmp, "it is not linear in the later %%%s", (*root)->name));
}

/* A value as large as what is sliced is for a region of its own. */
static bool makes_large(const Growth *x, const Node *n)
{
    for (int k = 0; k < n->nout && !node_aliases(n); k++)
        if (is_large(x, n->out[k]))
            return true;
    return false;
}

static bool reads_made(const Growth *x, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (is_made(x, n->in[i]))
            return true;
    return false;
}

/* Fills x->want for what is made on the ways only of late values: as its readers need it. */
static void want_ways(Growth *x, const Ways *w)
{
    for (Node *n = x->g->last; n; n = n->prev) {
        bool inside = x->joined[n->id], way = !inside && w->after[n->id] && w->before[n->id];
        Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
        NodeCut how;
        if (!inside && !way)
            continue;
        if (inside)
            cuts_of(x, n, in, out);
        else if (reads_made(x, n) || !find_how(x, n, &how, in, out))
            continue;
        for (int i = 0; i < n->nin; i++) {
            const Node *m = n->in[i]->def;
            if (in[i].kind == CUT_SLICE && m && !x->joined[m->id] && w->after[m->id])
                x->want[n->in[i]->id] = in[i];
        }
    }
}

/* Has the nodes on the ways between those of x->joined join, or leaves them behind the loop if they
 * are only late. False if a node inside needs such a one. */
static bool close_ways(Growth *x, Ways *w)
{
    want_ways(x, w);
    for (Node *n = x->g->first; n; n = n->next) {
        Value *root = NULL;
        bool inside = x->joined[n->id], way = w->after[n->id] && w->before[n->id];
        bool good = (inside || way) && find_root(x, w, n, &root);
        if (inside && !good)
            return false;
        if (way && good && !inside)
            inside = (root || reads_made(x, n)) && !makes_large(x, n) && join(x, n);
        for (int k = 0; k < n->nout; k++) {
            w->root[n->out[k]->id] = inside ? root : NULL;
            w->late[n->out[k]->id] = !inside && w->after[n->id];
        }
    }
    return true;
}

/* Whether n has what it needs: slices of a whole value are read from the graph around, which must
 * have it before the loop. */
static bool has_operands(Growth *x, const Ways *w, const Node *n)
{
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    cuts_of(x, n, in, out);
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        if (is_made(x, v) && w->root[v->id] && !cut_equal(in[i], x->cut.value[v->id]))
            return refuse(x, n,
                          arena_printf(x->tmp,
                                       "it needs a part of %%%s, which is known only "
                                       "behind the loop",
                                       v->name));
    }
    return agrees(x, n, in, out);
}

/* Whether all readers inside have what they need, and no order crosses the loop. */
static bool is_sound(Growth *x, const Ways *w)
{
    for (const Node *n = x->g->first; n; n = n->next) {
        if (!x->joined[n->id])
            continue;
        if (!has_operands(x, w, n))
            return false;
        for (int i = 0; i < n->nafter; i++)
            if (!x->joined[n->after[i]->id])
                return refuse(x, n, "its order after another node crosses the loop");
    }
    return true;
}

/* The nodes of a loop, by id, and what is around them. */
typedef struct Closed {
    bool *inside; /* NULL: there can be no such loop */
    Ways ways;
} Closed;

/* Makes one loop of the nodes of levels low ... high, if there can be one. */
static Closed close_loop(Growth *x, const int *level, int low, int high)
{
    Growth y = *x;
    y.joined = NEWN(x->tmp, bool, x->mostnode);
    y.queue = NEWN(x->tmp, Node *, x->g->nnode);
    y.nqueue = 0;
    y.want = NEWN(x->tmp, Cut, x->mostvalue);
    memcpy(y.want, x->want, sizeof *y.want * (size_t)x->mostvalue);
    for (int i = 0; i < x->nqueue; i++) {
        int l = level[x->queue[i]->id];
        y.joined[x->queue[i]->id] = l >= low && l <= high;
    }
    Closed c = {y.joined, find_ways(x, y.joined)};
    if (!close_ways(&y, &c.ways) || !is_sound(&y, &c.ways))
        c.inside = NULL;
    x->why = y.why;
    return c;
}

/* Divides the levels among at most two loops, the first as large as possible. Returns how many;
 * 0: that cannot be. */
static int close_loops(Growth *x, Closed loop[2])
{
    const int *level = find_levels(x);
    int last = 0, low = 0, count = 0;
    for (int i = 0; i < x->nqueue; i++)
        last = MAX(last, level[x->queue[i]->id]);
    if (last >= MOST_LEVELS)
        return refuse(x, x->queue[0], "it would take many loops after each other");
    while (low <= last) {
        int high = last;
        Closed c = close_loop(x, level, low, high);
        while (!c.inside && high > low)
            c = close_loop(x, level, low, --high);
        if (!c.inside)
            return 0;
        if (count == 2)
            return refuse(x, x->queue[0], "it would take three loops after each other");
        loop[count++] = c;
        low = high + 1;
    }
    return count;
}

/* ---- clones for the second loop ---- */

/* Marks, by node id, the nodes of the first loop whose large values the second reads, and those
 * that these need in turn. Returns how many; -1: one of them cannot be repeated. */
static int find_clones(Growth *x, const Closed loop[2], bool *cloned)
{
    int count = 0;
    for (const Node *n = x->g->last; n; n = n->prev) {
        if (!loop[1].inside[n->id] && !cloned[n->id])
            continue;
        if (cloned[n->id] && (n->op->class == CLASS_COLLECTIVE || n->op->region)) {
            refuse(x, n, "a second loop would have to repeat it");
            return -1;
        }
        count += cloned[n->id];
        for (int i = 0; i < n->nin; i++) {
            const Node *m = n->in[i]->def;
            if (m && loop[0].inside[m->id] && !loop[1].inside[m->id] && is_large(x, n->in[i]))
                cloned[m->id] = true;
        }
    }
    return count;
}

/* Adds a node's copy, with its cuts, to the second loop. */
static void add_clone(Growth *x, Closed *second, const Node *n, Node *m)
{
    CHECK(m->id < x->mostnode && m->out[n->nout - 1]->id < x->mostvalue);
    second->inside[m->id] = true;
    x->cut.node[m->id] = x->cut.node[n->id];
    for (int k = 0; k < n->nout; k++)
        x->cut.value[m->out[k]->id] = x->cut.value[n->out[k]->id];
}

/* By node id of what is cloned: the earliest phase of a reader in the second loop. */
static Phase *find_phases(const Growth *x, const Closed *second, const bool *cloned)
{
    Phase *phase = NEWN(x->tmp, Phase, x->g->nnode);
    for (int i = 0; i < x->g->nnode; i++)
        phase[i] = BACKWARD;
    for (const Node *n = x->g->last; n; n = n->prev) {
        bool inside = second->inside[n->id];
        Phase own = inside ? n->phase : phase[n->id];
        for (int i = 0; i < n->nin && (inside || cloned[n->id]); i++)
            if (n->in[i]->def && cloned[n->in[i]->def->id])
                phase[n->in[i]->def->id] = MIN(phase[n->in[i]->def->id], own);
    }
    return phase;
}

static void make_clones(Growth *x, Closed *second, const bool *cloned)
{
    Graph *g = x->g;
    const Phase *phase = find_phases(x, second, cloned);
    Node *before = g->first;
    while (!second->inside[before->id])
        before = before->next;
    Replace r = replace_start(g, x->tmp);
    EACH_NODE(n, g) {
        if (n->id >= r.nnode)
            continue;
        if (second->inside[n->id])
            replace_operands(&r, n);
        if (!cloned[n->id])
            continue;
        Node *m = remat_clone(g, x->tmp, n, before, n->origin ? n->origin : n->out[0]->name);
        m->phase = phase[n->id];
        replace_operands(&r, m);
        for (int k = 0; k < n->nout; k++)
            replace_with(&r, n, k, m->out[k]);
        add_clone(x, second, n, m);
    }
}

/* ---- what loop_make is told ---- */

/* Says that the graph around needs v, which is made inside. */
static void need_outside(const Growth *x, LoopPart *p, const Ways *w, const Value *v)
{
    if (x->cut.value[v->id].kind == CUT_WHOLE) {
        p->outside[v->def->id] = true;
    } else {
        p->yielded[v->id] = true;
        p->scale[v->id] = w->root[v->id];
    }
}

/* Where an operand of a node inside comes from, if it is not what another node inside makes so. */
static void need_operands(const Growth *x, LoopPart *p, const Ways *w, const Node *n)
{
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    cuts_of(x, n, in, out);
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i];
        if (v->def && p->inside[v->def->id]) {
            if (!cut_equal(in[i], x->cut.value[v->id]))
                p->outside[v->def->id] = true;
        } else if (w->late[v->id]) {
            p->one[v->id] = v;
        }
    }
}

/* Whether a reader outside of the loop has, or will have, a clone of what it reads. */
static bool reads_clone(const Closed *second, const bool *cloned, const Node *n, const Value *v)
{
    return second && cloned[v->def->id] && (second->inside[n->id] || cloned[n->id]);
}

static void find_outside(const Growth *x, LoopPart *p, const Ways *w, const Closed *second,
                         const bool *cloned)
{
    const Graph *g = x->g;
    for (int i = 0; i < x->mostnode; i++)
        p->outside[i] = i >= g->nnode || !p->inside[i];
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].v->def && p->inside[g->out[i].v->def->id])
            need_outside(x, p, w, g->out[i].v);
    for (const Node *n = g->last; n; n = n->prev) {
        if (p->inside[n->id])
            need_operands(x, p, w, n);
        for (int i = 0; i < n->nin && p->outside[n->id]; i++)
            if (n->in[i]->def && p->inside[n->in[i]->def->id] &&
                !reads_clone(second, cloned, n, n->in[i]))
                need_outside(x, p, w, n->in[i]);
    }
}

/* The loop stands where its last node stood. */
void chunk_place(const Graph *g, Arena *tmp, LoopPart *p)
{
    bool *after = NEWN(tmp, bool, g->nnode);
    const Node *last = NULL;
    for (const Node *n = g->first; n; n = n->next) {
        for (int i = 0; i < n->nin + n->nafter; i++) {
            const Node *m = i < n->nin ? n->in[i]->def : n->after[i - n->nin];
            after[n->id] |= m && (p->inside[m->id] || after[m->id]);
        }
        last = p->inside[n->id] ? n : last;
    }
    p->before = last->next;
    for (const Node *n = g->first; n; n = n->next)
        p->behind[n->id] = false;
    for (const Node *n = g->first; n != p->before; n = n->next)
        p->behind[n->id] = p->outside[n->id] && after[n->id];
}

/* second: the loop that has clones of this one's nodes; NULL: none has. */
static LoopPart fill_part(const Growth *x, const Closed *c, const Closed *second,
                          const bool *cloned, const ChunkRegion *r, bool narrow)
{
    LoopPart p = {.slices = slices_of(x->units, MAX(r->slices, 1)),
                  .cut = x->cut,
                  .inside = c->inside,
                  .outside = NEWN(x->tmp, bool, x->mostnode),
                  .behind = NEWN(x->tmp, bool, x->mostnode),
                  .yielded = NEWN(x->tmp, bool, x->mostvalue),
                  .one = NEWN(x->tmp, Value *, x->mostvalue),
                  .scale = NEWN(x->tmp, Value *, x->mostvalue),
                  .sums = SUM_PRODUCT,
                  .narrow = narrow,
                  .what = "cannot be cut into slices"};
    find_outside(x, &p, &c->ways, second, cloned);
    chunk_place(x->g, x->tmp, &p);
    return p;
}

/* ---- a region ---- */

static void fill_parts(const Growth *x, Grown *y, const Closed *loop, const bool *cloned,
                       const ChunkRegion *r, const PassOptions *o)
{
    bool narrow = chunk_narrow(x->g->ctx, o->chunk_accumulate);
    for (int l = 0; l < y->count; l++)
        y->part[l] = fill_part(x, &loop[l], l + 1 < y->count ? &loop[1] : NULL, cloned, r, narrow);
}

static bool yields(const Graph *g, const LoopPart *p)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            if (p->yielded[n->out[k]->id])
                return true;
    return false;
}

/* What is sliced: values inside that are no views and not yielded whole. */
static void count_bytes(const Growth *x, Grown *y)
{
    for (int l = 0; l < y->count; l++)
        for (const Node *n = x->g->first; n; n = n->next)
            for (int k = 0; k < n->nout && y->part[l].inside[n->id]; k++) {
                const Value *v = n->out[k];
                bool whole = x->cut.value[v->id].kind != CUT_SLICE || y->part[l].yielded[v->id];
                y->nbytes += whole || node_aliases(n) ? 0 : type_nbytes(&v->type);
                y->nnode += k == 0;
            }
}

int64_t chunk_units(const Value *seed, const ChunkRegion *r)
{
    const Type *t = &seed->type;
    int64_t unit = r->cut.outer * r->inner;
    return r->cut.axis < t->rank && t->dim[r->cut.axis] % unit == 0 ? t->dim[r->cut.axis] / unit
                                                                    : 0;
}

static Growth start(Graph *g, Arena *tmp, Value *seed, const ChunkRegion *r)
{
    int64_t units = chunk_units(seed, r);
    int mostnode = 2 * g->nnode + 1000, mostvalue = 2 * g->nvalue + 1000;
    Growth x = {.g = g,
                .tmp = tmp,
                .seed = seed,
                .least = r->all     ? 1
                         : r->large ? type_nelem(&seed->type)
                                    : (type_nelem(&seed->type) + 1) / 2,
                .units = units,
                .cut = {units, NEWN(tmp, Cut, mostvalue), NEWN(tmp, NodeCut, mostnode)},
                .joined = NEWN(tmp, bool, mostnode),
                .want = NEWN(tmp, Cut, mostvalue),
                .user = find_users(g, tmp),
                .queue = NEWN(tmp, Node *, g->nnode),
                .mostnode = mostnode,
                .mostvalue = mostvalue};
    x.want[seed->id] = r->cut;
    return x;
}

Grown chunk_grow(Graph *g, Arena *tmp, Value *seed, const ChunkRegion *r, const PassOptions *o,
                 bool clone)
{
    Growth x = start(g, tmp, seed, r);
    Closed loop[2];
    Grown y = {0};
    if (graph_is_output(g, seed))
        return (Grown){.why = "the graph returns it whole"};
    if (!grow(&x) || !(y.count = close_loops(&x, loop)))
        return (Grown){.why = x.why ? x.why : "nothing computes it"};
    bool *cloned = NEWN(tmp, bool, x.mostnode);
    int clones = y.count == 2 ? find_clones(&x, loop, cloned) : 0;
    if (clones < 0)
        return (Grown){.why = x.why};
    fill_parts(&x, &y, loop, cloned, r, o);
    for (int l = 0; l < y.count; l++)
        if (!yields(g, &y.part[l]))
            return (Grown){.why = "nothing outside needs what it makes"};
    if (clones && clone) {
        make_clones(&x, &loop[1], cloned);
        fill_parts(&x, &y, loop, cloned, r, o);
    }
    count_bytes(&x, &y);
    y.nnode += clone ? 0 : clones;
    return y;
}
