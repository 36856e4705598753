/* fuse_peak: the tables that fuse reads, and the memory that a group takes as one node, against its
 * members.
 *
 * Each group's node is tried on the flow: it takes the place of the group's last member, readers of
 * the members' results read its results, and the members are removed. The group is kept if the peak
 * of the one node is no more than that of the last members, those with no other node in between
 * (views and constants aside), or hardly more and below the graph's. Nodes before these are left
 * out, as no group is moved past a node unless that leaves as few bytes alive there (fuse.c). Cost:
 * that of the edits.
 *
 * So the peak of the present order does not rise. For unfused nodes the planner might find a better
 * order, which a fused node excludes: then it takes that apart (plan/apart.c). */
#include "fuse.h"

#include <string.h>

enum { MORE_PART = 1024 }; /* of its members' bytes a node may need one more such part */

static Alone find_alone(const Node *n, int position)
{
    Alone x = {.position = position, .edge = n->nafter > 0};
    x.rows = node_rows(n, &x.shape);
    if (!x.rows)
        x.shape = (FusedShape){nelem(n->out[0]), 0};
    return x;
}

FuseTables fuse_tables(Graph *g, const Device *d, Arena *tmp)
{
    FuseTables t = {.g = g,
                    .texts = device_is_gpu(d),
                    .at = NEWN(tmp, Node *, g->nnode),
                    .alone = NEWN(tmp, Alone, g->nnode),
                    .uses = NEWN(tmp, int, g->nvalue),
                    .early = NEWN(tmp, int, g->nvalue),
                    .fixed = NEWN(tmp, bool, g->nvalue)};
    int position = 0;
    for (Node *n = g->first; n; n = n->next, position++) {
        t.at[position] = n;
        t.alone[n->id] = find_alone(n, position);
        for (int i = 0; i < n->nin; i++) {
            t.uses[n->in[i]->id]++;
            if (n->phase < BACKWARD)
                t.early[n->in[i]->id] = position;
        }
        for (int i = 0; i < n->nafter; i++)
            t.alone[n->after[i]->id].edge = true;
    }
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        t.uses[v->id]++;
        t.fixed[v->id] |= g->out[i].role == ROLE_NEW;
    }
    return t;
}

Groups fuse_groups(const Graph *g, Arena *tmp)
{
    Groups s = {.tmp = tmp,
                .of = NEWN(tmp, int, g->nnode),
                .member = NEWN(tmp, bool, g->nnode),
                .reader = NEWN(tmp, int, g->nvalue),
                .why = NEWN(tmp, const char *, g->nnode),
                .nnode = g->nnode};
    memset(s.of, 0xff, sizeof *s.of * (size_t)g->nnode);
    memset(s.reader, 0xff, sizeof *s.reader * (size_t)g->nvalue);
    return s;
}

bool fuse_permuted(const Value *v, bool rows)
{
    for (; v->def && v->def->op->view; v = v->def->in[0])
        if ((rows || nelem(v) == nelem(v->def->in[0])) &&
            !node_fusible(v->def, &(FusedShape){nelem(v), 0}))
            return true;
    return false;
}

/* ---- storages ---- */

const Value *fuse_stored(const Flow *w, const Value *v)
{
    while (v->def && v->def->op->view &&
           values_share(w, flow_value(w, v->def->in[0]), flow_value(w, v)))
        v = v->def->in[0];
    return v;
}

bool fuse_last_read(const Flow *w, const Value *v, const Node *n)
{
    return !flow_before(w, flow_item(w, n), value_last(w, flow_value(w, v)));
}

/* ---- whether a group stands right before a node ---- */

bool fuse_gap(const FuseTables *t, const Groups *s, const FuseGroup *x, int position,
              FuseGroup *const *touched, int count)
{
    for (int p = x->last + 1; p < position; p++) {
        const Node *n = t->at[p];
        const FuseGroup *own = group_of(s, n);
        bool ours = n->op->view || is_constant(n) || n->op->wait || n->op->to_host;
        for (int k = 0; k < count; k++)
            ours |= own == touched[k];
        if (!ours)
            return true;
    }
    return false;
}

/* ---- whether the node needs more memory at once than its members do ---- */

/* The first item of the group's last members between which nothing else is computed. */
static int first_item(const Flow *w, const FuseTables *t, const Groups *s, const FuseGroup *x)
{
    int item = flow_item(w, t->at[x->last]);
    for (int p = x->last - 1; p >= 0; p--) {
        const Node *n = t->at[p];
        if ((group_of(s, n) != x || !s->member[n->id]) && !n->op->view && !is_constant(n))
            break;
        item = item_gone(w, flow_item(w, n)) ? item : flow_item(w, n);
    }
    return item;
}

/* Whether a group whose node needs `most` bytes at once is made, whose members need `apart` and all
 * nodes `peak`. It may need little more, below the peak: what its first members alone read and
 * free, such as a channel's statistics, the node keeps to its end. */
static bool is_low(int64_t most, int64_t apart, int64_t peak)
{
    return most <= apart || most <= MIN(peak, apart + apart / MORE_PART);
}

bool fuse_grows(Flow *w, const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n,
                Value *const *result)
{
    int first = first_item(w, t, s, x), last = flow_item(w, t->at[x->last]), mark = flow_mark(w);
    int64_t apart = flow_most(w, first, last), peak = flow_most(w, flow_first(w), flow_last(w));
    int before = flow_prev(w, first), after = flow_next(w, last);
    int item = flow_insert(w, n, after);
    for (int k = 0; k < n->nout; k++)
        flow_replace(w, flow_value(w, result[k]), item_result(w, item, k));
    for (int j = x->nmember - 1; j >= 0; j--)
        flow_remove(w, flow_item(w, x->member[j]));
    if (is_low(flow_most(w, flow_next(w, before), flow_prev(w, after)), apart, peak))
        return false;
    flow_undo(w, mark);
    return true;
}
