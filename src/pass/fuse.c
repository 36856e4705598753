/* fuse: chains of pointwise ops over as many elements, and ops along rows of these between them,
 * become one node, whose body runs tile by tile (op/fused.c): what they hand each other is neither
 * written to memory nor planned. unfuse takes such nodes apart again, to the same nodes.
 *
 * Greedy, in one walk of the nodes in order. A node joins the groups that make its operands, or
 * that read an operand of its size too, and binds them into one; the group then stands where its
 * last node stood. So that this keeps the order and never takes more memory:
 *
 * - A group is closed once a node outside of it reads one of its values: later members would have
 *   to be moved before that reader, or it behind them. Hence no path leaves a group and comes back.
 * - Moving a group down to a later node keeps the operands that it read last alive until there. It
 *   is done where nothing is computed in between, or where those operands are not larger than what
 *   the group has made, which now need not be there meanwhile.
 * - A group whose node would need more at once than its members do is not made (fuse_peak.c).
 * - Members have one phase, one policy (or several that only prefer, which then prefer to be saved:
 *   what the backward needs otherwise has its copies), and are all copies (with an origin) or none;
 *   order edges neither begin nor end at them. What takes the place of a parameter stays on its
 * own. The loss joins its gradient, in the backward, where its own phase reads nothing of it
 * behind: then one pass over the logits gives both, the gradient in their place.
 *
 * An op along rows reads them as its own kernel does only where they lie row after row: what is
 * viewed in another way is left to that kernel, so that a sum has one order of additions. Values of
 * one element for each row are members too. A row's values may be at most ROOM bytes.
 *
 * Views that keep the elements' order, between members alone, go along, as do constants that no one
 * else reads. An operand that is permuted is left to the op's own kernel, which reads it in blocks.
 * Single numbers are left alone. A group is made where its operands and results are fewer bytes
 * than those of its nodes, by the cost model. Bodies of loops are searched too. Time: nodes times
 * groups that are open at once; each group is looked at in at most NEAR nodes after its last. What
 * a group leaves behind may lie nearer to others than it did, so walks repeat while any is made. */
#include "fuse.h"

#include <string.h>

enum {
    MEMBERS = 32,   /* of a group at most, constants aside */
    NEAR = 256,     /* a group takes no node further behind its last one */
    ROOM = 1 << 18, /* bytes that members may hand on for a row: the executor's stack
                       (op/fused_tiles.c) */
};

/* ---- what may be fused ---- */

/* The shape of a body of n alone, and what it does along rows. */
static const RowKernel *shape_of(const Node *n, FusedShape *s)
{
    const RowKernel *rows = node_rows(n, s);
    if (!rows)
        *s = (FusedShape){nelem(n->out[0]), 0};
    return rows;
}

/* Whether an operand's elements are read in another order than they lie; of an op along rows also
 * where they are more or fewer. */
static bool permuted(const Value *v, bool rows)
{
    for (; v->def && v->def->op->view; v = v->def->in[0])
        if ((rows || nelem(v) == nelem(v->def->in[0])) &&
            !node_fusible(v->def, &(FusedShape){nelem(v), 0}))
            return true;
    return false;
}

static bool may_fuse(const Fuse *f, const Node *n)
{
    FusedShape s;
    const RowKernel *rows = shape_of(n, &s);
    bool good = n->nin && !n->op->view && !f->edge[n->id] && s.nelem > 1 && node_fusible(n, &s);
    for (int k = 0; k < n->nout && good; k++)
        good = !f->fixed[n->out[k]->id];
    for (int i = 0; i < n->nin && good; i++)
        good = (rows && rows->in[i] == ROW_ALL) || !permuted(n->in[i], rows);
    return good;
}

static bool reads(const Node *n, const Value *v)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] == v)
            return true;
    return false;
}

/* Whether a view of a phase before the backward shows a value of the group before n, to others than
 * n and the group. */
static bool shown_early(const Fuse *f, const Group *x, const Node *n)
{
    for (const Node *m = x->member[0]; m && m != n; m = m->next) {
        if (!m->op->view || m->phase == BACKWARD || group_of(f, m->in[0]->def) != x)
            continue;
        bool inside = reads(n, m->out[0]);
        for (int j = 0; j < x->nmember; j++)
            inside |= reads(x->member[j], m->out[0]);
        if (!inside || f->uses[m->out[0]->id] > 1)
            return true;
    }
    return false;
}

/* Whether n may run in a phase with the group: the loss goes to the backward, if none of the phases
 * before that reads it behind n. */
static bool phase_fits(const Fuse *f, const Group *x, const Node *n, int position)
{
    bool fits = n->phase == x->phase || (x->phase == LOSS && n->phase == BACKWARD);
    for (int j = 0; j < x->nmember && fits && n->phase != x->phase; j++)
        for (int k = 0; k < x->member[j]->nout; k++)
            fits &= f->early[x->member[j]->out[k]->id] < position;
    return fits && (n->phase == x->phase || !shown_early(f, x, n));
}

/* What only prefers goes together, and is saved where it differs. In the backward policies say
 * nothing. */
static bool policies_fit(const Node *n, const Node *m)
{
    bool prefer = !policy_must(n->policy) && !policy_must(m->policy);
    return n->policy == m->policy || prefer || (n->phase >= BACKWARD && m->phase >= BACKWARD);
}

/* Whether x may have n as well, as far as shapes, phases and policies go. */
static bool alike(const Fuse *f, const Group *x, const Node *n, int position)
{
    FusedShape own;
    const Node *m = x->member[0];
    bool fits = node_rows(n, &own)
                    ? own.nelem == x->shape.nelem && (!x->shape.row || own.row == x->shape.row)
                    : node_fusible(n, &x->shape);
    return fits && policies_fit(n, m) && !n->origin == !m->origin && phase_fits(f, x, n, position);
}

/* A view of a member's value that only one node reads: that may become a member as well. */
static bool between(const Fuse *f, const Node *n)
{
    const Group *x = n->op->view ? group_of(f, n->in[0]->def) : NULL;
    return x && !x->closed && f->uses[n->out[0]->id] == 1 && !f->edge[n->id] && !n->policy &&
           n->phase == x->phase && f->uses[n->in[0]->id] == 1 && node_fusible(n, &x->shape) &&
           operand_fusible(n, 0, &x->shape);
}

/* ---- whether a group may be moved down to a node ---- */

/* Bytes of the values that others need, minus those of operands that the group is the last to read.
 */
static int64_t made_minus_freed(Fuse *f, const Group *x)
{
    int64_t sum = 0;
    f->walks++;
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        for (int i = 0; i < n->nin; i++) {
            const Value *v = fuse_stored(f, n->in[i]);
            if (v->def && group_of(f, v->def) != x && fuse_last_read(f, v, x->last) &&
                first_time(f, v))
                sum -= type_nbytes(&v->type);
        }
        for (int k = 0; k < n->nout && !n->op->view; k++)
            sum += read_within(f, x, n->out[k]) ? 0 : type_nbytes(&n->out[k]->type);
    }
    return sum;
}

/* Whether something is computed between x and `position`, other than by groups that n touches. */
static bool gap(const Fuse *f, const Group *x, int position, Group *const *touched, int count)
{
    for (int p = x->last + 1; p < position; p++) {
        const Node *n = f->at[p];
        const Group *own = group_of(f, n);
        bool ours = n->op->view || is_constant(n);
        for (int k = 0; k < count; k++)
            ours |= own == touched[k];
        if (!ours)
            return true;
    }
    return false;
}

static bool may_move(Fuse *f, const Group *x, int position, Group *const *touched, int count)
{
    return !gap(f, x, position, touched, count) || made_minus_freed(f, x) >= 0;
}

/* ---- joining ---- */

enum { MOST_TOUCHED = 8 };

/* Whether all that n reads of x may be handed on within a body. */
static bool may_read(const Fuse *f, const Group *x, const Node *n)
{
    FusedShape s;
    shape_of(n, &s);
    s.row = MAX(s.row, x->shape.row);
    s.nelem = x->shape.nelem;
    for (int i = 0; i < n->nin; i++)
        if (group_of(f, n->in[i]->def) == x && !operand_fusible(n, i, &s))
            return false;
    return true;
}

static void touch(const Fuse *f, Group *x, const Node *n, int position, Group **list, int *count)
{
    if (!x || x->closed || *count == MOST_TOUCHED || position - x->last > NEAR ||
        !alike(f, x, n, position) || !may_read(f, x, n))
        return;
    for (int k = 0; k < *count; k++)
        if (list[k] == x)
            return;
    list[(*count)++] = x;
}

/* The open groups that make n's operands, or read one of n's size too. */
static int find_touched(const Fuse *f, const Node *n, int position, Group **list)
{
    FusedShape s;
    int count = 0;
    shape_of(n, &s);
    for (int i = 0; i < n->nin; i++)
        touch(f, group_of(f, n->in[i]->def), n, position, list, &count);
    for (int i = 0; i < n->nin; i++)
        if (nelem(n->in[i]) == s.nelem && f->reader[n->in[i]->id] >= 0)
            touch(f, find_group(f, f->reader[n->in[i]->id]), n, position, list, &count);
    return count;
}

static void add_member(Fuse *f, Group *x, Node *n)
{
    f->member[n->id] = true;
    PUSH(f->tmp, x->member, x->nmember, x->capmember, n);
    f->of[n->id] = x->parent;
    for (int i = 0; i < n->nin; i++)
        f->reader[n->in[i]->id] = x->parent;
}

/* Whether v is made by a view that until now only belongs to a group by its operand. */
static bool by_view(const Fuse *f, const Value *v)
{
    return v->def && v->def->op->view && f->of[v->def->id] >= 0 && !f->member[v->def->id];
}

static int count_views(const Fuse *f, const Value *v)
{
    return by_view(f, v) ? 1 + count_views(f, v->def->in[0]) : 0;
}

static void add_views(Fuse *f, Group *x, const Value *v)
{
    if (!by_view(f, v) || group_of(f, v->def) != x)
        return;
    add_views(f, x, v->def->in[0]);
    add_member(f, x, v->def);
}

static void bind(Fuse *f, Group *x, Group *y)
{
    for (int j = 0; j < y->nmember; j++)
        PUSH(f->tmp, x->member, x->nmember, x->capmember, y->member[j]);
    x->nlane += y->nlane;
    x->handed += y->handed;
    x->shape.row = MAX(x->shape.row, y->shape.row);
    y->parent = x->parent;
}

/* Bytes, for an element of a row, of what n reads of other members of x, or must copy to read it.
 */
static int handed(const Fuse *f, const Group *x, const Node *n)
{
    FusedShape own;
    bool rows = node_rows(n, &own);
    int sum = 0;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        bool whole = nelem(v) == x->shape.nelem, one = nelem(v) == 1;
        if (whole ? group_of(f, v->def) == x : !rows && !one)
            sum += dtype_size(v->type.dtype);
    }
    return sum;
}

/* Whether n's group, x so far, may have y's members and `more` too. */
static bool may_bind(const Fuse *f, const Group *x, const Group *y, const Node *n, int more)
{
    FusedShape own;
    int64_t row = MAX(y->shape.row, x ? x->shape.row : 0);
    int bytes = y->handed + (x ? x->handed : 0) + handed(f, y, n);
    if (node_rows(n, &own))
        row = own.row;
    if (x && (x->shape.nelem != y->shape.nelem ||
              (x->shape.row && y->shape.row && x->shape.row != y->shape.row)))
        return false;
    return y->nmember + more + (x ? x->nmember : 0) <= MEMBERS && bytes * row <= ROOM;
}

static void join(Fuse *f, Node *n, int position)
{
    Group *list[MOST_TOUCHED], *x = NULL;
    int count = find_touched(f, n, position, list), more = 1;
    for (int i = 0; i < n->nin; i++)
        more += count_views(f, n->in[i]);
    for (int k = 0; k < count; k++) {
        if (!may_bind(f, x, list[k], n, more) || !may_move(f, list[k], position, list, count))
            continue;
        if (x)
            bind(f, x, list[k]);
        else
            x = list[k];
    }
    FusedShape s;
    shape_of(n, &s);
    if (!x) {
        Group fresh = {.parent = f->ngroup, .shape = s};
        PUSH(f->tmp, f->group, f->ngroup, f->capgroup, fresh);
        x = &f->group[f->ngroup - 1];
    }
    x->shape.row = MAX(x->shape.row, s.row);
    x->handed += handed(f, x, n);
    for (int i = 0; i < n->nin; i++)
        add_views(f, x, n->in[i]);
    add_member(f, x, n);
    x->nlane++;
    x->last = position;
    x->phase = n->phase;
}

/* Groups whose values n reads from outside. */
static void close_groups(Fuse *f, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        Group *x = group_of(f, n->in[i]->def);
        if (x && x != group_of(f, n))
            x->closed = true;
    }
}

/* ---- making the node ---- */

/* Insertion sort: groups are nearly sorted. */
static void sort_members(const Fuse *f, Group *x)
{
    for (int i = 1; i < x->nmember; i++) {
        Node *n = x->member[i];
        int j = i;
        for (; j > 0 && f->position[x->member[j - 1]->id] > f->position[n->id]; j--)
            x->member[j] = x->member[j - 1];
        x->member[j] = n;
    }
}

static void add_constants(Fuse *f, Group *x)
{
    int count = x->nmember;
    for (int j = 0; j < count; j++)
        for (int i = 0; i < x->member[j]->nin; i++) {
            const Value *v = x->member[j]->in[i];
            if (is_constant(v->def) && f->of[v->def->id] < 0 && !f->edge[v->def->id] &&
                read_within(f, x, v) && x->nmember < FUSED_MOST)
                add_member(f, x, v->def);
        }
}

/* What a group is while its node is made: outer values and those of the body. */
typedef struct Made {
    Graph *body;
    Value **outer, **inner;
    int count, cap, capinner, ninner;
    Value **in, **result;
    int nin, capin, nresult;
} Made;

static void pair(Made *m, Arena *tmp, Value *outer, Value *inner)
{
    PUSH(tmp, m->outer, m->count, m->cap, outer);
    PUSH(tmp, m->inner, m->ninner, m->capinner, inner);
}

static Value *inner_of(const Made *m, const Value *v)
{
    for (int i = 0; i < m->count; i++)
        if (m->outer[i] == v)
            return m->inner[i];
    return NULL;
}

static bool is_copy(Fuse *f, const Value *u, const Value *v)
{
    const Node *n = u->def, *from = v->def;
    if (!n || !from || !n->origin || u->index != v->index ||
        strcmp(n->origin, from->out[0]->name) != 0)
        return false;
    if (!f->equal) {
        f->nequal = f->g->nnode;
        f->equal = graph_equals(f->g, f->tmp);
    }
    return n->id < f->nequal && from->id < f->nequal && f->equal[n->id] == f->equal[from->id];
}

/* v, or the copy of v that other members read: what joins a later phase needs no other. */
static Value *newest(Fuse *f, const Group *x, const Node *n, Value *v)
{
    for (int j = 0; j < x->nmember && n->phase < x->phase; j++)
        for (int i = 0; i < x->member[j]->nin; i++)
            if (is_copy(f, x->member[j]->in[i], v))
                return x->member[j]->in[i];
    return v;
}

static void add_body_node(Fuse *f, const Group *x, Made *m, const Node *n)
{
    Build b = {m->body, NULL, n->phase, n->policy, n->scope, n->origin, n->line, n->column};
    Value **in = NEWN(f->tmp, Value *, n->nin);
    for (int i = 0; i < n->nin; i++) {
        Value *v = newest(f, x, n, n->in[i]);
        if (!(in[i] = inner_of(m, v))) {
            in[i] = graph_input(m->body, v->name, v->type, ROLE_NONE, NULL);
            pair(m, f->tmp, v, in[i]);
            PUSH(f->tmp, m->in, m->nin, m->capin, v);
        }
    }
    const char **name = node_names(f->tmp, n);
    Node *inside = emit_named(&b, n->op, n->nin, in, n->attr, NULL, n->stream, name, n->nout);
    for (int k = 0; k < n->nout; k++)
        pair(m, f->tmp, n->out[k], inside->out[k]);
}

/* Views of results, which were thought to become members, stand behind the node that makes them. */
static void move_views(Fuse *f, const Group *x, Node *before, const Replace *r)
{
    for (int p = f->position[x->member[0]->id]; p < x->last; p++) {
        Node *n = f->at[p];
        if (group_of(f, n) != x || f->member[n->id])
            continue;
        replace_operands(r, n);
        node_move(f->g, n, before);
    }
}

/* Members go; n has their results' names and readers. */
static void take_place(Fuse *f, Group *x, Node *n, Value *const *result, Replace *r)
{
    for (int j = 0; j < x->nmember; j++)
        node_unlink(f->g, x->member[j]);
    for (int k = 0; k < n->nout; k++) {
        value_rename(f->g, n->out[k], arena_strdup(f->g->a, result[k]->name));
        replace_with(r, result[k]->def, result[k]->index, n->out[k]);
    }
    n->policy = n->phase < BACKWARD ? policy_of_body(f->g, f->tmp, n) : POLICY_NONE;
}

/* The group's node, behind its last, unless it grows. */
static bool make_node(Fuse *f, Group *x, Replace *r)
{
    Made m = {.body = graph_body(f->g)};
    const Node *last = f->at[x->last];
    const char **name = NULL, *origin = NULL;
    int capname = 0, nname = 0, capresult = 0;
    Build b = {f->g,        last->next, last->phase, POLICY_NONE,
               last->scope, NULL,       last->line,  last->column};
    for (int j = 0; j < x->nmember; j++)
        add_body_node(f, x, &m, x->member[j]);
    for (int j = 0; j < x->nmember; j++)
        for (int k = 0; k < x->member[j]->nout; k++) {
            Value *v = x->member[j]->out[k];
            if (!is_result(f, x, v))
                continue;
            graph_output(m.body, inner_of(&m, v), ROLE_NONE, NULL);
            PUSH(f->tmp, name, nname, capname, graph_fresh(f->g, v->name));
            PUSH(f->tmp, m.result, m.nresult, capresult, v);
            origin = origin ? origin : v->def->origin;
        }
    b.origin = origin;
    const Op *op = op_get(f->g->ctx, "fused");
    Node *n = emit_named(&b, op, m.nin, m.in, NULL, region_whole(m.body), -1, name, m.nresult);
    if (fuse_grows(f, x, n, m.result)) {
        node_unlink(f->g, n);
        return false;
    }
    take_place(f, x, n, m.result, r);
    move_views(f, x, b.before, r);
    return true;
}

/* Bytes that the nodes move and the fused one does not, by the cost model. */
static double saved_bytes(Fuse *f, const Group *x)
{
    double sum = 0;
    f->walks++;
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        Cost c = node_cost(n);
        sum += n->op->view ? 0 : c.nread + c.nwrite;
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            if (group_of(f, v->def) != x && first_time(f, v))
                sum -= (double)type_nbytes(&v->type);
        }
        for (int k = 0; k < n->nout; k++)
            sum -= is_result(f, x, n->out[k]) ? (double)type_nbytes(&n->out[k]->type) : 0;
    }
    return sum;
}

static bool worthwhile(Fuse *f, const Group *x)
{
    bool read = false; /* else it is dead */
    for (int j = 0; j < x->nmember; j++)
        for (int k = 0; k < x->member[j]->nout; k++)
            read |= !read_within(f, x, x->member[j]->out[k]);
    return read && x->nlane > 1 && saved_bytes(f, x) >= (double)x->shape.nelem;
}

static int make_nodes(Fuse *f)
{
    Replace r = replace_start(f->g, f->tmp);
    int changes = 0;
    EACH_NODE(n, f->g) {
        replace_operands(&r, n);
        Group *x = n->id < r.nnode ? group_of(f, n) : NULL;
        if (!x || f->at[x->last] != n)
            continue;
        sort_members(f, x);
        if (!worthwhile(f, x))
            continue;
        add_constants(f, x);
        sort_members(f, x);
        changes += make_node(f, x, &r);
    }
    replace_outputs(&r, f->g);
    return changes;
}

static int fuse_graph(Graph *g, Arena *tmp, Flow *flow)
{
    int changes = 0, position = 0;
    Fuse f = fuse_tables(g, tmp, flow);
    for (Node *n = g->first; n; n = n->next, position++) {
        const FlowItem *x = &flow->item[flow->item_of[n->id]];
        for (int c = 0; c < x->ncore && x->body[c]; c++)
            changes += fuse_graph(x->body[c]->g, tmp, x->body[c]);
        if (between(&f, n))
            f.of[n->id] = f.of[n->in[0]->def->id];
        else if (may_fuse(&f, n))
            join(&f, n, position);
        close_groups(&f, n);
    }
    changes += make_nodes(&f);
    return changes;
}

int pass_fuse(Graph *g, Arena *tmp, const PassOptions *o)
{
    int total = 0, changes;
    while (o->fuse && (changes = fuse_graph(g, tmp, flow_new(g, tmp))) > 0)
        total += changes;
    return total;
}
