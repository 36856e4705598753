/* fuse: replaces groups of pointwise ops over the same number of elements, and ops along rows of
 * these between them, by one node each, whose body runs tile by tile (op/fused.c). Values within a
 * group are neither written to memory nor planned. unfuse is the inverse.
 *
 * Method: greedy, in one walk of the nodes in order. A node joins the groups that define its
 * operands, or that read an operand of its size too, and merges them into one group, which then
 * stands at the place of its last node. Conditions that keep the order and the peak:
 *
 * - A group is closed once a node outside of it reads one of its values, as that reader would have
 *   to move after later members. Hence no path leaves a group and returns to it.
 * - Moving a group down to a later node extends the live ranges of operands that it was the last to
 *   read. It is done only if nothing is computed in between, or if those operands are not larger
 *   than the group's values, which need not be alive meanwhile.
 * - A group whose node would need more bytes at once than its members is not made (fuse_peak.c).
 * - Members have one phase and one policy (or several that only prefer); no order edges begin or
 *   end at them. The new value of a parameter is no member. The loss joins its gradient, in the
 *   backward, if no later node of its own phase reads it: then one pass over the logits gives both,
 *   with the gradient in their place.
 * - Clones (with an origin) may go together with nodes of the backward that read them: a clone left
 *   alone would be a buffer beside all that the gradient's node reads and makes, which single nodes
 *   need at different times. The node is a clone if its results all are.
 * - An op along rows is a member only if its rows lie one after the other, as other layouts may add
 *   in another order in its own kernel. Values of one element for each row are members too. A row's
 *   values take at most FUSED_ROOM bytes.
 * - Where a body is compiled for a device, members have a text (op/fused_text.c).
 *
 * Views between members that keep the elements' order become members, as do constants that only
 * members read. Permuted operands are left to the op's own kernel, which reads them in blocks;
 * single numbers are left alone. A group is made if its operands and results are fewer bytes than
 * those of its nodes, by the cost model. Bodies of loops are searched too. Cost: nodes times groups
 * that are open at once; a group is tried for at most NEAR nodes after its last. Making a group may
 * bring other nodes near to each other, so walks repeat while any group is made. */
#include "fuse.h"

#include <string.h>

enum {
    MEMBERS = 32, /* of a group at most, constants aside */
    NEAR = 256,   /* a group takes no node further after its last one */
};

/* Values that were met in the present walk. */
typedef struct SeenValues {
    int *stamp; /* by value id: the last walk that met it */
    int walks;
} SeenValues;

/* Whether v is met for the first time in this walk. */
static bool first_time(SeenValues *seen, const Value *v)
{
    bool first = seen->stamp[v->id] != seen->walks;
    seen->stamp[v->id] = seen->walks;
    return first;
}

static bool read_within(const int *uses, const FuseGroup *x, const Value *v)
{
    int count = 0;
    for (int j = 0; j < x->nmember; j++)
        for (int i = 0; i < x->member[j]->nin; i++)
            count += x->member[j]->in[i] == v;
    return count == uses[v->id];
}

/* Whether nodes other than members read v, or v exists only after the whole body. */
static bool is_result(const FuseTables *t, const FuseGroup *x, const Value *v)
{
    const RowKernel *rows = t->alone[v->def->id].rows;
    return !v->def->op->view &&
           (!read_within(t->uses, x, v) || (rows && rows->out[v->index] == ROW_FINISH));
}

/* ---- what may be fused ---- */

static bool may_fuse(const FuseTables *t, const Node *n)
{
    const Alone *x = &t->alone[n->id];
    bool good = n->nin && !n->op->view && !x->edge && x->shape.nelem > 1 &&
                node_fusible(n, &x->shape) && (!t->texts || node_has_text(n));
    for (int k = 0; k < n->nout && good; k++)
        good = !t->fixed[n->out[k]->id];
    for (int i = 0; i < n->nin && good; i++)
        good = (x->rows && x->rows->in[i] == ROW_ALL) || !fuse_permuted(n->in[i], x->rows);
    return good;
}

static bool reads(const Node *n, const Value *v)
{
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] == v)
            return true;
    return false;
}

/* Whether a view, of a phase before the backward, of a value of the group has other readers than n
 * and the group. */
static bool viewed_early(const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n)
{
    for (const Node *m = x->member[0]; m && m != n; m = m->next) {
        if (!m->op->view || m->phase == BACKWARD || group_of(s, m->in[0]->def) != x)
            continue;
        bool inside = reads(n, m->out[0]);
        for (int j = 0; j < x->nmember; j++)
            inside |= reads(x->member[j], m->out[0]);
        if (!inside || t->uses[m->out[0]->id] > 1)
            return true;
    }
    return false;
}

/* Whether n may run in a phase with the group: the loss goes to the backward, if none of the phases
 * before that reads it after n. */
static bool phase_fits(const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n)
{
    bool fits = n->phase == x->phase || (x->phase == LOSS && n->phase == BACKWARD);
    for (int j = 0; j < x->nmember && fits && n->phase != x->phase; j++)
        for (int k = 0; k < x->member[j]->nout; k++)
            fits &= t->early[x->member[j]->out[k]->id] < t->alone[n->id].position;
    return fits && (n->phase == x->phase || !viewed_early(t, s, x, n));
}

/* Policies that only prefer go together; in the backward policies have no meaning. */
static bool policies_fit(const Node *n, const Node *m)
{
    bool prefer = !policy_must(n->policy) && !policy_must(m->policy);
    return n->policy == m->policy || prefer || (n->phase >= BACKWARD && m->phase >= BACKWARD);
}

/* Whether members that are early go without clones: these read recomputed values, which the loss
 * reads instead if they are not the group's own (newest). */
static bool clones_fit(const FuseGroup *x, const Node *n)
{
    return n->origin ? !x->early : !x->clone || n->phase >= BACKWARD;
}

/* Whether x may have n as well, as far as shapes, phases and policies go. */
static bool alike(const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n)
{
    const Node *m = x->member[0];
    const Alone *y = &t->alone[n->id];
    bool fits = y->rows ? y->shape.nelem == x->shape.nelem &&
                              (!x->shape.row || y->shape.row == x->shape.row)
                        : node_fusible(n, &x->shape);
    return fits && policies_fit(n, m) && clones_fit(x, n) && phase_fits(t, s, x, n);
}

/* A view of a member's value that only one node reads: that may become a member as well. */
static bool between(const FuseTables *t, const Groups *s, const Node *n)
{
    const FuseGroup *x = n->op->view ? group_of(s, n->in[0]->def) : NULL;
    return x && !x->closed && t->uses[n->out[0]->id] == 1 && !t->alone[n->id].edge && !n->policy &&
           n->phase == x->phase && t->uses[n->in[0]->id] == 1 && node_fusible(n, &x->shape) &&
           operand_fusible(n, 0, &x->shape);
}

/* ---- whether a group may be moved down to a node ---- */

/* Bytes of the values that others need, minus those of operands that the group is the last to read.
 */
static int64_t made_minus_freed(const Flow *w, const FuseTables *t, const Groups *s,
                                const FuseGroup *x, SeenValues *seen)
{
    int64_t sum = 0;
    seen->walks++;
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        for (int i = 0; i < n->nin; i++) {
            const Value *v = fuse_stored(w, n->in[i]);
            if (v->def && group_of(s, v->def) != x && fuse_last_read(w, v, t->at[x->last]) &&
                first_time(seen, v))
                sum -= type_nbytes(&v->type);
        }
        for (int k = 0; k < n->nout && !n->op->view; k++)
            sum += read_within(t->uses, x, n->out[k]) ? 0 : type_nbytes(&n->out[k]->type);
    }
    return sum;
}

/* ---- joining ---- */

enum { MOST_TOUCHED = 8 };

/* Whether all that n reads of x may be handed on within a body. */
static bool may_read(const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n)
{
    FusedShape both = {x->shape.nelem, MAX(t->alone[n->id].shape.row, x->shape.row)};
    for (int i = 0; i < n->nin; i++)
        if (group_of(s, n->in[i]->def) == x && !operand_fusible(n, i, &both))
            return false;
    return true;
}

static void touch(const FuseTables *t, const Groups *s, FuseGroup *x, const Node *n,
                  FuseGroup **list, int *count)
{
    if (!x || x->closed || *count == MOST_TOUCHED || t->alone[n->id].position - x->last > NEAR ||
        !alike(t, s, x, n) || !may_read(t, s, x, n))
        return;
    for (int k = 0; k < *count; k++)
        if (list[k] == x)
            return;
    int at = (*count)++;
    for (; at > 0 && list[at - 1]->clone && !x->clone; at--)
        list[at] = list[at - 1];
    list[at] = x;
}

/* Whether a member is a clone as n is, or is none as n is none. */
static bool has_kin(const FuseGroup *x, const Node *n)
{
    for (int j = 0; j < x->nmember; j++)
        if (!x->member[j]->origin == !n->origin)
            return true;
    return false;
}

/* The open groups that define n's operands, or that read one of n's size too, if a member is n's
 * kin; those with clones last. */
static int find_touched(const FuseTables *t, const Groups *s, const Node *n, FuseGroup **list)
{
    int count = 0;
    for (int i = 0; i < n->nin; i++)
        touch(t, s, group_of(s, n->in[i]->def), n, list, &count);
    for (int i = 0; i < n->nin; i++) {
        int reader = s->reader[n->in[i]->id];
        FuseGroup *x = reader >= 0 ? find_group(s, reader) : NULL;
        if (x && nelem(n->in[i]) == t->alone[n->id].shape.nelem && has_kin(x, n))
            touch(t, s, x, n, list, &count);
    }
    return count;
}

static void add_member(Groups *s, FuseGroup *x, Node *n)
{
    s->member[n->id] = true;
    PUSH(s->tmp, x->member, x->nmember, x->capmember, n);
    s->of[n->id] = x->parent;
    for (int i = 0; i < n->nin; i++)
        s->reader[n->in[i]->id] = x->parent;
}

/* Whether a view defines v that so far belongs to a group only by its operand. */
static bool by_view(const Groups *s, const Value *v)
{
    return v->def && v->def->op->view && s->of[v->def->id] >= 0 && !s->member[v->def->id];
}

static int count_views(const Groups *s, const Value *v)
{
    return by_view(s, v) ? 1 + count_views(s, v->def->in[0]) : 0;
}

static void add_views(Groups *s, FuseGroup *x, const Value *v)
{
    if (!by_view(s, v) || group_of(s, v->def) != x)
        return;
    add_views(s, x, v->def->in[0]);
    add_member(s, x, v->def);
}

static void bind(Groups *s, FuseGroup *x, FuseGroup *y)
{
    for (int j = 0; j < y->nmember; j++)
        PUSH(s->tmp, x->member, x->nmember, x->capmember, y->member[j]);
    x->nlane += y->nlane;
    x->handed += y->handed;
    x->shape.row = MAX(x->shape.row, y->shape.row);
    x->early |= y->early;
    x->clone |= y->clone;
    y->parent = x->parent;
}

/* Bytes, for an element of a row, of what n reads of other members of x, or must copy to read it.
 */
static int handed(const FuseTables *t, const Groups *s, const FuseGroup *x, const Node *n)
{
    bool rows = t->alone[n->id].rows;
    int sum = 0;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        bool whole = nelem(v) == x->shape.nelem, one = nelem(v) == 1;
        if (whole ? group_of(s, v->def) == x : !rows && !one)
            sum += dtype_size(v->type.dtype);
    }
    return sum;
}

/* Whether n's group, x so far, may have y's members and `more` too. */
static bool may_bind(const FuseTables *t, const Groups *s, const FuseGroup *x, const FuseGroup *y,
                     const Node *n, int more)
{
    const Alone *own = &t->alone[n->id];
    int64_t row = MAX(y->shape.row, x ? x->shape.row : 0);
    int bytes = y->handed + (x ? x->handed : 0) + handed(t, s, y, n);
    if (own->rows)
        row = own->shape.row;
    if (x && (x->shape.nelem != y->shape.nelem ||
              (x->shape.row && y->shape.row && x->shape.row != y->shape.row) ||
              (x->early && y->clone) || (x->clone && y->early)))
        return false;
    return y->nmember + more + (x ? x->nmember : 0) <= MEMBERS &&
           bytes * row <= (t->texts ? text_room(row) : FUSED_ROOM);
}

static void join(const Flow *w, const FuseTables *t, Groups *s, Node *n, SeenValues *seen)
{
    FuseGroup *list[MOST_TOUCHED], *x = NULL;
    const Alone *own = &t->alone[n->id];
    int count = find_touched(t, s, n, list), more = 1;
    for (int i = 0; i < n->nin; i++)
        more += count_views(s, n->in[i]);
    for (int k = 0; k < count; k++) {
        if (!may_bind(t, s, x, list[k], n, more))
            s->why[n->id] = "its neighbours' body would have too many ops or bytes of a row";
        else if (fuse_gap(t, s, list[k], own->position, list, count) &&
                 made_minus_freed(w, t, s, list[k], seen) < 0)
            s->why[n->id] = "its neighbours moved down to it would keep larger operands alive";
        else if (x)
            bind(s, x, list[k]);
        else
            x = list[k];
    }
    if (!x) {
        FuseGroup fresh = {.parent = s->count, .shape = own->shape};
        PUSH(s->tmp, s->list, s->count, s->cap, fresh);
        x = &s->list[s->count - 1];
    }
    x->shape.row = MAX(x->shape.row, own->shape.row);
    x->handed += handed(t, s, x, n);
    for (int i = 0; i < n->nin; i++)
        add_views(s, x, n->in[i]);
    add_member(s, x, n);
    x->nlane++;
    x->early |= !n->origin && n->phase < BACKWARD;
    x->clone |= n->origin != NULL;
    x->last = own->position;
    x->phase = n->phase;
}

/* Groups whose values n reads from outside. */
static void close_groups(const Groups *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        FuseGroup *x = group_of(s, n->in[i]->def);
        if (x && x != group_of(s, n))
            x->closed = true;
    }
}

/* ---- making the node ---- */

/* Insertion sort: groups are nearly sorted. */
static void sort_members(const FuseTables *t, FuseGroup *x)
{
    for (int i = 1; i < x->nmember; i++) {
        Node *n = x->member[i];
        int j = i;
        for (; j > 0 && t->alone[x->member[j - 1]->id].position > t->alone[n->id].position; j--)
            x->member[j] = x->member[j - 1];
        x->member[j] = n;
    }
}

static void add_constants(const FuseTables *t, Groups *s, FuseGroup *x)
{
    int count = x->nmember;
    for (int j = 0; j < count; j++)
        for (int i = 0; i < x->member[j]->nin; i++) {
            const Value *v = x->member[j]->in[i];
            if (is_constant(v->def) && s->of[v->def->id] < 0 && !t->alone[v->def->id].edge &&
                read_within(t->uses, x, v) && x->nmember < FUSED_MOST)
                add_member(s, x, v->def);
        }
}

/* A value outside, and what stands for it in the body. */
typedef struct BodyPair {
    const Value *outer;
    Value *inner;
} BodyPair;

/* The body of a group's node while it is made: outer values and theirs inside. */
typedef struct FusedBody {
    Graph *body;
    BodyPair *pair;
    int count, cap;
    Value **in, **result;
    int nin, capin, nresult;
} FusedBody;

static Value *inner_of(const FusedBody *m, const Value *v)
{
    for (int i = 0; i < m->count; i++)
        if (m->pair[i].outer == v)
            return m->pair[i].inner;
    return NULL;
}

/* Nodes that are provably equal, computed only if there may be clones. */
typedef struct Copies {
    Graph *g;
    Arena *tmp;
    Node **equal; /* graph_equals, of the first `count` ids */
    int count;
} Copies;

static bool is_copy(Copies *c, const Value *u, const Value *v)
{
    const Node *n = u->def, *from = v->def;
    if (!n || !from || !n->origin || u->index != v->index ||
        strcmp(n->origin, from->out[0]->name) != 0)
        return false;
    if (!c->equal) {
        c->count = c->g->nnode;
        c->equal = graph_equals(c->g, c->tmp);
    }
    return n->id < c->count && from->id < c->count && c->equal[n->id] == c->equal[from->id];
}

/* v, or the clone of v that other members read: a node that joins a later phase reads that. */
static Value *newest(Copies *c, const FuseGroup *x, const Node *n, Value *v)
{
    for (int j = 0; j < x->nmember && n->phase < x->phase; j++)
        for (int i = 0; i < x->member[j]->nin; i++)
            if (is_copy(c, x->member[j]->in[i], v))
                return x->member[j]->in[i];
    return v;
}

static void add_body_node(Copies *c, const FuseGroup *x, FusedBody *m, const Node *n)
{
    Build b = build_like(m->body, NULL, n);
    Value **in = NEWN(c->tmp, Value *, n->nin);
    for (int i = 0; i < n->nin; i++) {
        Value *v = newest(c, x, n, n->in[i]);
        if (!(in[i] = inner_of(m, v))) {
            in[i] = graph_input(m->body, v->name, v->type, ROLE_NONE, NULL);
            PUSH(c->tmp, m->pair, m->count, m->cap, ((BodyPair){v, in[i]}));
            PUSH(c->tmp, m->in, m->nin, m->capin, v);
        }
    }
    Node *inside = emit_like(&b, n, in, NULL, "");
    for (int k = 0; k < n->nout; k++)
        PUSH(c->tmp, m->pair, m->count, m->cap, ((BodyPair){n->out[k], inside->out[k]}));
}

/* Moves views of results, which might have become members, after the group's node. */
static void move_views(const FuseTables *t, const Groups *s, const FuseGroup *x, Node *before,
                       const Replace *r)
{
    for (int p = t->alone[x->member[0]->id].position; p < x->last; p++) {
        Node *n = t->at[p];
        if (group_of(s, n) != x || s->member[n->id])
            continue;
        replace_operands(r, n);
        node_move(t->g, n, before);
    }
}

/* Removes the members; n takes over their results' names and readers. */
static void take_place(Graph *g, FuseGroup *x, Node *n, Value *const *result, Replace *r)
{
    for (int j = 0; j < x->nmember; j++)
        node_unlink(g, x->member[j]);
    for (int k = 0; k < n->nout; k++) {
        value_rename(g, n->out[k], arena_strdup(g->a, result[k]->name));
        replace_with(r, result[k]->def, result[k]->index, n->out[k]);
    }
}

/* Makes the group's node after its last member, unless the peak grows. */
static bool make_node(Flow *w, const FuseTables *t, Groups *s, FuseGroup *x, Copies *c, Replace *r)
{
    Graph *g = t->g;
    FusedBody m = {.body = graph_body(g)};
    const Node *last = t->at[x->last];
    const char **name = NULL;
    int capname = 0, nname = 0, capresult = 0;
    bool clones = true; /* all results are those of clones */
    Build b = {g,           last->next, last->phase, POLICY_NONE,
               last->scope, NULL,       last->line,  last->column};
    for (int j = 0; j < x->nmember; j++)
        add_body_node(c, x, &m, x->member[j]);
    for (int j = 0; j < x->nmember; j++)
        for (int k = 0; k < x->member[j]->nout; k++) {
            Value *v = x->member[j]->out[k];
            if (!is_result(t, x, v))
                continue;
            graph_output(m.body, inner_of(&m, v), ROLE_NONE, NULL);
            PUSH(s->tmp, name, nname, capname, graph_fresh(g, v->name));
            PUSH(s->tmp, m.result, m.nresult, capresult, v);
            clones &= v->def->origin != NULL;
        }
    b.origin = clones ? m.result[0]->def->origin : NULL;
    const Op *op = op_get(g->ctx, "fused");
    Node *n = emit_named(&b, op, m.nin, m.in, NULL, region_whole(m.body), -1, name, m.nresult);
    if (fuse_grows(w, t, s, x, n, m.result)) {
        node_unlink(g, n);
        return false;
    }
    take_place(g, x, n, m.result, r);
    move_views(t, s, x, b.before, r);
    return true;
}

/* Bytes that the nodes move and the fused one does not, by the cost model. */
static double saved_bytes(const FuseTables *t, const Groups *s, const FuseGroup *x,
                          SeenValues *seen)
{
    double sum = 0;
    seen->walks++;
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        Cost c = node_cost(n);
        sum += n->op->view ? 0 : c.nread + c.nwrite;
        for (int i = 0; i < n->nin; i++) {
            const Value *v = n->in[i];
            if (group_of(s, v->def) != x && first_time(seen, v))
                sum -= (double)type_nbytes(&v->type);
        }
        for (int k = 0; k < n->nout; k++)
            sum -= is_result(t, x, n->out[k]) ? (double)type_nbytes(&n->out[k]->type) : 0;
    }
    return sum;
}

/* Why a group is not made; NULL: it is. */
static const char *refusal(const FuseTables *t, const Groups *s, const FuseGroup *x,
                           SeenValues *seen)
{
    bool read = false;
    for (int j = 0; j < x->nmember; j++)
        for (int k = 0; k < x->member[j]->nout; k++)
            read |= !read_within(t->uses, x, x->member[j]->out[k]);
    return !read          ? "nothing reads it"
           : x->nlane < 2 ? FUSE_ALONE
           : saved_bytes(t, s, x, seen) < (double)x->shape.nelem
               ? "one body would move as many bytes as the ops apart"
               : NULL;
}

static int make_nodes(Flow *w, const FuseTables *t, Groups *s, Copies *c, SeenValues *seen)
{
    Replace r = replace_start(t->g, s->tmp);
    int changes = 0;
    EACH_NODE(n, t->g) {
        replace_operands(&r, n);
        FuseGroup *x = n->id < r.nnode ? group_of(s, n) : NULL;
        if (!x || t->at[x->last] != n)
            continue;
        sort_members(t, x);
        if ((x->why = refusal(t, s, x, seen)))
            continue;
        add_constants(t, s, x);
        sort_members(t, x);
        bool made = make_node(w, t, s, x, c, &r);
        x->why = made ? NULL : "one body would need more memory at once";
        changes += made;
    }
    replace_outputs(&r, t->g);
    return changes;
}

static int fuse_graph(Graph *g, Arena *tmp, Flow *flow, Decisions *notes)
{
    int changes = 0;
    const FuseTables t = fuse_tables(g, flow_device(flow), tmp);
    Groups s = fuse_groups(g, tmp);
    Copies copies = {.g = g, .tmp = tmp};
    SeenValues seen = {.stamp = NEWN(tmp, int, 2 * g->nvalue)};
    for (Node *n = g->first; n; n = n->next) {
        for (int c = 0, item = flow_item(flow, n); item_body(flow, item, c); c++) {
            Flow *inner = item_body(flow, item, c);
            changes += fuse_graph(flow_graph(inner), tmp, inner, notes);
        }
        if (between(&t, &s, n))
            s.of[n->id] = s.of[n->in[0]->def->id];
        else if (may_fuse(&t, n))
            join(flow, &t, &s, n, &seen);
        close_groups(&s, n);
    }
    changes += make_nodes(flow, &t, &s, &copies, &seen);
    if (notes && !changes) /* else there is another walk */
        fuse_note(&t, &s, notes);
    return changes;
}

int pass_fuse(Graph *g, Arena *tmp, const PassOptions *o)
{
    int total = 0, changes = o->fuse;
    Decisions *notes = o->decisions && o->decisions->all ? o->decisions : NULL;
    for (; changes; total += changes) {
        if (notes) {
            notes->fuses = true;
            notes->napart = 0;
        }
        changes = fuse_graph(g, tmp, pass_flow(g, o, tmp), notes);
    }
    return total;
}
