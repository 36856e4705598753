/* fuse: tables of a graph, and what a group needs at once as one node and as its members.
 *
 * Each group's node is tried on the flow: it takes the place of the group's last member, whoever
 * read its results reads the node's, and the members go. It stays if the most that is alive there
 * is no more than from the last node on that is not a member: what stands before that is alive
 * either way.
 *
 * So the peak of the order at hand does not rise; beside dead nodes the planner may find a better
 * order, which a fused node rules out. tests/test_prop.c counts such plans. */
#include "fuse.h"

#include <string.h>

Fuse fuse_tables(Graph *g, Arena *tmp, Flow *flow)
{
    Fuse f = {.g = g,
              .tmp = tmp,
              .flow = flow,
              .of = NEWN(tmp, int, g->nnode),
              .at = NEWN(tmp, Node *, g->nnode)};
    f.reader = NEWN(tmp, int, g->nvalue);
    f.uses = NEWN(tmp, int, g->nvalue);
    f.early = NEWN(tmp, int, g->nvalue);
    f.position = NEWN(tmp, int, g->nnode);
    f.edge = NEWN(tmp, bool, g->nnode);
    f.fixed = NEWN(tmp, bool, g->nvalue);
    f.member = NEWN(tmp, bool, g->nnode);
    f.stamp = NEWN(tmp, int, 2 * g->nvalue);
    f.nnode = g->nnode;
    memset(f.of, 0xff, sizeof *f.of * (size_t)g->nnode);
    memset(f.reader, 0xff, sizeof *f.reader * (size_t)g->nvalue);
    int position = 0;
    for (Node *n = g->first; n; n = n->next) {
        f.position[n->id] = position;
        f.at[position] = n;
        for (int i = 0; i < n->nin; i++) {
            f.uses[n->in[i]->id]++;
            if (n->phase < BACKWARD)
                f.early[n->in[i]->id] = position;
        }
        f.edge[n->id] |= n->nafter > 0;
        for (int i = 0; i < n->nafter; i++)
            f.edge[n->after[i]->id] = true;
        position++;
    }
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        f.uses[v->id]++;
        f.fixed[v->id] |= g->out[i].role == ROLE_NEW;
    }
    return f;
}

/* ---- storages ---- */

static int root_of(const Fuse *f, const Value *v)
{
    return f->flow->value[f->flow->value_of[v->id]].at.root;
}

const Value *fuse_stored(const Fuse *f, const Value *v)
{
    while (v->def && v->def->op->view && root_of(f, v->def->in[0]) == root_of(f, v))
        v = v->def->in[0];
    return v;
}

bool fuse_last_read(const Fuse *f, const Value *v, int position)
{
    const Flow *w = f->flow;
    int root = root_of(f, v);
    return !w->root[root].kept &&
           !line_before(w, w->item_of[f->at[position]->id], root_last(w, root));
}

/* ---- whether the node needs more memory at once than its members do ---- */

/* The first item of the group's last members between which nothing else is computed. */
static int first_item(const Fuse *f, const Group *x)
{
    const Flow *w = f->flow;
    int item = w->item_of[f->at[x->last]->id];
    for (int p = x->last - 1; p >= 0; p--) {
        const Node *n = f->at[p];
        if ((group_of(f, n) != x || !f->member[n->id]) && !n->op->view && !is_constant(n))
            break;
        item = w->item[w->item_of[n->id]].gone ? item : w->item_of[n->id];
    }
    return item;
}

bool fuse_grows(Fuse *f, const Group *x, const Node *n, Value *const *result)
{
    Flow *w = f->flow;
    int first = first_item(f, x), last = w->item_of[f->at[x->last]->id], mark = flow_mark(w);
    int64_t apart = flow_most(w, first, last);
    int before = w->item[first].prev, behind = w->item[last].next;
    int item = flow_insert(w, n, behind);
    for (int k = 0; k < n->nout; k++)
        flow_replace(w, w->value_of[result[k]->id], w->item[item].value + k);
    for (int j = x->nmember - 1; j >= 0; j--)
        flow_remove(w, w->item_of[x->member[j]->id]);
    if (flow_most(w, w->item[before].next, w->item[behind].prev) <= apart)
        return false;
    flow_undo(w, mark);
    return true;
}
