/* grow: finds the nodes around a value that are to run in slices, and how each is cut.
 *
 * The region starts with the value's definer and readers. If they need or make a slice of a value
 * with at least half the seed's elements, that value is sliced too: its definer and readers join,
 * each cut as cut/transfer_cuts.c says. Smaller values are the border: read as slices or whole from
 * outside, yielded as slices or sums. So is a large value whose definer or reader cannot be cut or
 * belongs to the optimizer; only the seed must be sliced wherever it is read. A node that reads
 * nothing of the region and is needed around it stays outside. Linear in the region's nodes. */
#include "grow.h"

int growth_sort(const Growth *x, Node **list, int count)
{
    return index_sort(x->index, x->tmp, list, count);
}

/* ---- joining ---- */

const Factors *growth_factors(const Growth *x, const Node *n)
{
    const Factors **f = &x->factors[n->id];
    return *f ? *f : (*f = node_factors(x->tmp, n));
}

bool growth_refuse(Growth *x, const Node *n, const char *why)
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

bool growth_agrees(Growth *x, const Node *n, const Cut *in, const Cut *out)
{
    for (int i = 0; i < n->nin; i++) {
        Cut has = is_made(x, n->in[i]) ? x->cut.value[n->in[i]->id] : (Cut){.kind = CUT_WHOLE};
        if (has.kind != CUT_WHOLE && !cut_equal(has, in[i]))
            return growth_refuse(x, n,
                                 arena_printf(x->tmp, "it needs another part of operand %d (%%%s)",
                                              i, n->in[i]->name));
    }
    for (int k = 0; k < n->nout; k++)
        if (x->want[n->out[k]->id].kind != CUT_WHOLE && !cut_equal(x->want[n->out[k]->id], out[k]))
            return growth_refuse(x, n, arena_printf(x->tmp, "result %d would be cut otherwise", k));
    return true;
}

/* Whether a slice of v that is no run can be seen as one of a further axis. */
static bool has_room(const Value *v, Cut c)
{
    return c.kind != CUT_SLICE || c.outer == 1 || v->type.rank < TN_RANK;
}

static bool all_have_room(const Node *n, const Cut *in, const Cut *out)
{
    bool room = true;
    for (int i = 0; i < n->nin; i++)
        room &= has_room(n->in[i], in[i]);
    for (int k = 0; k < n->nout; k++)
        room &= has_room(n->out[k], out[k]);
    return room;
}

bool growth_how(Growth *x, const Node *n, NodeCut *how, Cut *in, Cut *out)
{
    bool forward, backward;
    CutStop stop;
    PartCut part = {.count = x->units, .units = x->units};
    known_cuts(x, n, in, out, &forward, &backward);
    if (n->op->region)
        return growth_refuse(x, n, "it is a region");
    if (n->phase >= OPTIMIZER)
        return growth_refuse(x, n, "it is of the optimizer");
    if (n->op->class == CLASS_COLLECTIVE && !forward)
        return growth_refuse(x, n, "a collective that no part reads would be one for each slice");
    if (n->op->wait && !is_made(x, n->in[0]))
        return growth_refuse(x, n, "what it waits for is outside");
    if (n->op->counts)
        return growth_refuse(x, n, "it counts over the whole batch");
    const Factors *f = growth_factors(x, n);
    if (!(forward ? cut_forward(n, f, x->units, in, how, &stop)
                  : cut_backward(n, f, x->units, out, how, &stop)) ||
        !cut_together(f, 1, &part, how, &stop))
        return growth_refuse(x, n, cut_stop_text(x->tmp, n, &stop));
    if (cut_partials(f, 1, how, NULL))
        return growth_refuse(x, n, "its parts must be merged before they are results");
    cut_fill(n, f, how, in, out);
    if (!all_have_room(n, in, out))
        return growth_refuse(x, n, "its slices are no runs, and it has no room for an axis more");
    for (int k = 0; k < n->nout; k++)
        if (out[k].kind == CUT_MAX || out[k].kind == CUT_LOGSUMEXP)
            return growth_refuse(x, n, "its parts are merged by a maximum, which is not linear");
    return growth_agrees(x, n, in, out);
}

bool growth_join(Growth *x, Node *n)
{
    if (x->joined[n->id])
        return true;
    NodeCut how;
    Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
    if (!growth_how(x, n, &how, in, out))
        return false;
    x->joined[n->id] = true;
    x->cut.node[n->id] = how;
    for (int k = 0; k < n->nout; k++)
        x->cut.value[n->out[k]->id] = out[k];
    x->queue[x->nqueue++] = n;
    return true;
}

void growth_cuts(const Growth *x, const Node *n, Cut *in, Cut *out)
{
    cut_fill(n, growth_factors(x, n), &x->cut.node[n->id], in, out);
}

/* Constants are made where they are read; large slices by the region. */
static void join_definer(Growth *x, Value *v, Cut need)
{
    bool constant = v->def && v->def->op->class == CLASS_CREATION && !v->def->nin;
    if (!v->def || is_made(x, v) || !(constant || (need.kind == CUT_SLICE && is_large(x, v))))
        return;
    x->want[v->id] = need;
    if (!growth_join(x, v->def))
        x->want[v->id] = (Cut){.kind = CUT_WHOLE};
}

/* False if the seed is read by what cannot join. */
static bool join_readers(Growth *x, const Value *v)
{
    if (x->cut.value[v->id].kind != CUT_SLICE || !is_large(x, v))
        return true;
    for (Node **n = index_users(x->index, v); n && *n; n++)
        if (!growth_join(x, *n) && v == x->seed)
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
        read |= x->index->output[n->out[k]->id];
        for (Node **m = index_users(x->index, n->out[k]); m && *m; m++)
            read |= !x->joined[(*m)->id];
    }
    return read && n->op->class != CLASS_CREATION && n != x->seed->def;
}

/* Takes nodes out of the region that the graph around runs in any case. */
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

bool growth_grow(Growth *x)
{
    if (!x->seed->def || !growth_join(x, x->seed->def))
        return false;
    for (int i = 0; i < x->nqueue; i++) {
        Node *n = x->queue[i];
        Cut *in = NEWN(x->tmp, Cut, n->nin), *out = NEWN(x->tmp, Cut, n->nout);
        growth_cuts(x, n, in, out);
        for (int j = 0; j < n->nin; j++)
            join_definer(x, n->in[j], in[j]);
        for (int k = 0; k < n->nout; k++)
            if (!join_readers(x, n->out[k]))
                return false;
    }
    leave_outer(x);
    return true;
}

/* ---- the start ---- */

Growth growth_start(ChunkIndex *index, Arena *tmp, Value *seed, const ChunkRegion *r)
{
    Graph *g = index->g;
    int64_t units = chunk_units(seed, r);
    index_reserve(index);
    int mostnode = index->mostnode, mostvalue = index->mostvalue;
    Growth x = {.g = g,
                .index = index,
                .tmp = tmp,
                .seed = seed,
                .least = r->all     ? 1
                         : r->large ? type_nelem(&seed->type)
                                    : (type_nelem(&seed->type) + 1) / 2,
                .units = units,
                .cheap = r->cheap,
                .cut = {units, SPARSE(tmp, Cut, mostvalue), SPARSE(tmp, NodeCut, mostnode)},
                .joined = SPARSE(tmp, bool, mostnode),
                .want = SPARSE(tmp, Cut, mostvalue),
                .factors = SPARSE(tmp, const Factors *, mostnode),
                .queue = SPARSE(tmp, Node *, g->nnode + 1),
                .nnode = g->nnode,
                .mostnode = mostnode,
                .mostvalue = mostvalue};
    x.want[seed->id] = r->cut;
    return x;
}
