/* fuse: where values lie, and what a group needs at once as one node and as its members.
 *
 * What is alive but is no operand or result of the group is the same either way, so that only those
 * are counted: operands that nothing reads behind the group, and what the members make. A node that
 * stands for the group has all of these operands and results at once, but for results put in the
 * place of operands; its members free operands on the way, and make what only they read. Groups are
 * refused where the one is more than the other's peak.
 *
 * So the peak of the order at hand does not rise, but for what this does not see: inputs that no
 * node reads are only there in the first step, and beside dead nodes the planner may find a better
 * order, which a fused node rules out. tests/test_prop.c counts such plans: 2 in 1,000 random
 * graphs, none of the models and traces that are tested. */
#include "fuse.h"

#include <string.h>

/* ---- tables ---- */

static Layout row_major(const Type *t)
{
    Layout x = {0};
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        x.stride[d] = stride;
        stride *= t->dim[d];
    }
    return x;
}

static bool is_whole(const Layout *x, const Layout *own, const Type *t)
{
    bool same = !x->offset;
    for (int d = 0; d < t->rank; d++)
        same &= t->dim[d] == 1 || x->stride[d] == own->stride[d];
    return same;
}

/* As the planner does it: a view that strides cannot express is one of a copy. */
static void fill_stored(Fuse *f)
{
    const Graph *g = f->g;
    Layout *layout = NEWN(f->tmp, Layout, g->nvalue);
    f->stored = NEWN(f->tmp, const Value *, 2 * g->nvalue);
    f->whole = NEWN(f->tmp, bool, 2 * g->nvalue);
    for (int i = 0; i < g->nin; i++) {
        const Value *v = g->in[i].v;
        f->stored[v->id] = v;
        layout[v->id] = row_major(&v->type);
    }
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            const Value *v = n->out[k];
            const Value *x = n->op->view ? n->in[0] : NULL;
            bool shares = x && n->op->rules->view(n, k, &layout[x->id], &layout[v->id]);
            f->stored[v->id] = shares ? f->stored[x->id] : v;
            Layout own = row_major(&v->type);
            if (!shares)
                layout[v->id] = own;
            f->whole[v->id] = shares && is_whole(&layout[v->id], &own, &v->type) &&
                              type_nelem(&v->type) == type_nelem(&f->stored[v->id]->type);
        }
}

/* What becomes of the results of a body. */
static void mark_results(Fuse *f, const Region *r, bool tail)
{
    f->added = NEWN(f->tmp, bool, f->g->nvalue);
    f->placed = NEWN(f->tmp, bool, f->g->nvalue);
    for (int k = 0; r && k < r->nout; k++) {
        int i = tail ? r->out[k].tail : r->out[k].main;
        if (i >= 0)
            (r->out[k].kind == PORT_SUM ? f->added : f->placed)[f->g->out[i].v->id] = true;
    }
}

Fuse fuse_tables(Graph *g, Arena *tmp, const Region *r, bool tail)
{
    Fuse f = {
        .g = g, .tmp = tmp, .of = NEWN(tmp, int, g->nnode), .at = NEWN(tmp, Node *, g->nnode)};
    f.reader = NEWN(tmp, int, g->nvalue);
    f.uses = NEWN(tmp, int, g->nvalue);
    f.last_use = NEWN(tmp, int, g->nvalue);
    f.early = NEWN(tmp, int, g->nvalue);
    f.position = NEWN(tmp, int, g->nnode);
    f.edge = NEWN(tmp, bool, g->nnode);
    f.fixed = NEWN(tmp, bool, g->nvalue);
    f.freed = NEWN(tmp, bool, g->nvalue);
    f.member = NEWN(tmp, bool, g->nnode);
    f.stamp = NEWN(tmp, int, 2 * g->nvalue);
    f.nnode = g->nnode;
    fill_stored(&f);
    mark_results(&f, r, tail);
    memset(f.of, 0xff, sizeof *f.of * (size_t)g->nnode);
    memset(f.reader, 0xff, sizeof *f.reader * (size_t)g->nvalue);
    int position = 0;
    for (Node *n = g->first; n; n = n->next) {
        f.position[n->id] = position;
        f.at[position] = n;
        for (int i = 0; i < n->nin; i++) {
            f.uses[n->in[i]->id]++;
            f.last_use[f.stored[n->in[i]->id]->id] = position;
            if (n->phase < BACKWARD)
                f.early[n->in[i]->id] = position;
        }
        f.edge[n->id] |= n->nafter > 0;
        for (int i = 0; i < n->nafter; i++)
            f.edge[n->after[i]->id] = true;
        position++;
    }
    for (int i = 0; i < g->nin; i++)
        f.freed[g->in[i].v->id] = !role_kept(g->in[i].role) && !r;
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        f.uses[v->id]++;
        f.last_use[f.stored[v->id]->id] = position;
        f.fixed[v->id] |= g->out[i].role == ROLE_NEW;
    }
    return f;
}

/* ---- whether the node needs more memory at once than its members do ---- */

static int64_t room_of(const Value *v)
{
    return (type_nbytes(&v->type) + 63) / 64 * 64;
}

static bool is_member(const Fuse *f, const Group *x, const Node *n)
{
    return group_of(f, n) == x && f->member[n->id];
}

/* Whether v, as it is stored, may be freed behind the node at `position`, the group's or a
 * member's.
 */
static bool dies(const Fuse *f, const Value *v, int position)
{
    return (v->def || f->freed[v->id]) && f->last_use[v->id] <= position;
}

static int64_t made(const Fuse *f, const Node *n)
{
    int64_t sum = 0;
    for (int k = 0; k < n->nout; k++)
        sum += f->placed[n->out[k]->id] ? 0 : room_of(n->out[k]);
    return sum;
}

/* Bytes of n's results that are put in the place of operands. */
static int64_t overwritten(const Fuse *f, const Node *n, int position)
{
    int64_t sum = 0;
    unsigned taken = 0;
    for (int k = 0; k < n->nout; k++)
        for (int i = 0; i < MIN(n->nin, 32); i++) {
            const Value *v = n->in[i];
            if (!(node_inplace(n, k) & ~taken & 1u << i) || !direct(f, v) || !v->def ||
                !type_equal(&v->type, &n->out[k]->type) || !dies(f, stored(f, v), position))
                continue;
            taken |= 1u << i;
            sum += room_of(v);
            break;
        }
    return sum;
}

/* Bytes of outer values that only the group reads from `position` on. */
static int64_t last_read(Fuse *f, const Group *x, int position)
{
    int64_t sum = 0;
    f->walks++;
    for (int j = 0; j < x->nmember; j++)
        for (int i = 0; i < x->member[j]->nin; i++) {
            const Value *v = stored(f, x->member[j]->in[i]);
            if (dies(f, v, x->last) && f->last_use[v->id] >= position &&
                !(v->def && is_member(f, x, v->def)) && first_time(f, v))
                sum += room_of(v);
        }
    return sum;
}

/* Bytes of what the first `count` members have made, and is needed from `position` on. */
static int64_t kept(const Fuse *f, const Group *x, int count, int position)
{
    int64_t sum = 0;
    for (int j = 0; j < count; j++)
        for (int k = 0; k < x->member[j]->nout; k++) {
            const Value *v = x->member[j]->out[k];
            bool gone = f->placed[v->id] || (f->added[v->id] && f->uses[v->id] == 1);
            if (stored(f, v) == v && f->last_use[v->id] >= position && !gone)
                sum += room_of(v);
        }
    return sum;
}

/* The most that members need at once, of what only they need, from the last node on that is not
 * one: there nothing else has changed. */
static int64_t peak_apart(Fuse *f, const Group *x)
{
    int64_t peak = 0;
    int first = x->last;
    for (; first > 0; first--) {
        const Node *n = f->at[first - 1];
        if (!is_member(f, x, n) && !n->op->view && !is_constant(n))
            break;
    }
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        int position = f->position[n->id];
        if (position >= first && !n->op->view)
            peak = MAX(peak, last_read(f, x, position) + kept(f, x, j, position) + made(f, n) -
                                 overwritten(f, n, position));
    }
    return peak;
}

/* Whether the group reads v's storage by another value too: the planner then overwrites neither. */
static bool shared(const Fuse *f, const Group *x, const Value *v)
{
    for (int j = 0; j < x->nmember; j++)
        for (int i = 0; i < x->member[j]->nin; i++) {
            const Value *w = x->member[j]->in[i];
            if (w != v && stored(f, w) == stored(f, v) && !(w->def && is_member(f, x, w->def)))
                return true;
        }
    return false;
}

/* Whether the node that stands for the group may put y in x's place. */
static bool may_replace(const Fuse *f, const Group *x, const Value *y, const Value *v)
{
    return direct(f, v) && v->def && y->type.dtype == v->type.dtype && nelem(y) == nelem(v) &&
           dies(f, stored(f, v), x->last) && !is_member(f, x, v->def) &&
           fused_overwrites(x->member, x->nmember, y, v) && !shared(f, x, v);
}

static int64_t peak_together(Fuse *f, const Group *x)
{
    int64_t peak = last_read(f, x, 0);
    f->walks++;
    for (int j = 0; j < x->nmember; j++)
        for (int k = 0; k < x->member[j]->nout; k++) {
            const Value *y = x->member[j]->out[k];
            if (!is_result(f, x, y))
                continue;
            peak += room_of(y);
            bool placed = false;
            for (int m = 0; m < x->nmember; m++)
                for (int i = 0; i < x->member[m]->nin && !placed; i++) {
                    const Value *v = x->member[m]->in[i];
                    if (!may_replace(f, x, y, v) || !first_time(f, v))
                        continue;
                    placed = true;
                    peak -= room_of(y);
                }
        }
    return peak;
}

bool fuse_grows(Fuse *f, const Group *x)
{
    return peak_together(f, x) > peak_apart(f, x);
}
