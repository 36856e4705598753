/* fuse: chains of pointwise ops over as many elements become one node, whose body runs tile by tile
 * (op/fused.c): what they hand each other is neither written to memory nor planned. unfuse takes
 * such nodes apart again, to the same nodes.
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
 * - Members have one phase, one policy, and are all copies (with an origin) or none; order edges
 *   neither begin nor end at them. What takes the place of a parameter stays on its own.
 *
 * Views that keep the elements' order, between members alone, go along, as do constants that no one
 * else reads. An operand that is permuted is left to the op's own kernel, which reads it in blocks.
 * Single numbers are left alone. A group is made where its operands and results are fewer bytes
 * than those of its nodes, by the cost model. Bodies of loops are searched too. Time: nodes times
 * groups that are open at once; each group is looked at in at most NEAR nodes after its last. */
#include "pass.h"

#include <string.h>

enum {
    MEMBERS = 32, /* of a group at most, constants aside */
    NEAR = 256,   /* a group takes no node further behind its last one */
};

typedef struct Group {
    int parent; /* the group that it was bound into, or itself */
    Node **member;
    int nmember, capmember, nlane;
    int last;      /* position of its last node */
    int64_t nelem; /* of each member */
    bool closed;
} Group;

typedef struct Fuse {
    Graph *g;
    Arena *tmp;
    Group *group;
    int ngroup, capgroup;
    int *of;       /* by node id: its group, -1: none; views between members: of their operand */
    int *reader;   /* by value id: the last group that reads it, or -1 */
    int *uses;     /* by value id, outputs included */
    int *last_use; /* by value id, of the storage's first value: the position of its last reader */
    int *position; /* by node id */
    bool *edge;    /* by node id: an order edge begins or ends there */
    bool *fixed;   /* by value id: it takes the place of an input */
    bool *member;  /* by node id */
    int *stamp;    /* by value id: seen in walk `walks` */
    int walks;
    Node **at; /* by position */
    int nnode; /* as the graph was */
} Fuse;

static Group *find_group(const Fuse *f, int i)
{
    while (f->group[i].parent != i)
        i = f->group[i].parent;
    return &f->group[i];
}

static Group *group_of(const Fuse *f, const Node *n)
{
    return n && n->id < f->nnode && f->of[n->id] >= 0 ? find_group(f, f->of[n->id]) : NULL;
}

static int64_t nelem(const Value *v)
{
    return type_nelem(&v->type);
}

static bool is_constant(const Node *n)
{
    return n && !n->nin && nelem(n->out[0]) == 1 && node_fusible(n, 1);
}

/* The value whose storage v shares. */
static const Value *stored(const Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v;
}

/* ---- what may be fused ---- */

/* Whether an operand's elements are read in another order than they lie. */
static bool permuted(const Value *v)
{
    for (; v->def && v->def->op->view; v = v->def->in[0])
        if (nelem(v) == nelem(v->def->in[0]) && !node_fusible(v->def, nelem(v)))
            return true;
    return false;
}

static bool may_fuse(const Fuse *f, const Node *n)
{
    const Value *v = n->out[0];
    bool good = n->nin && !n->op->view && !f->edge[n->id] && !f->fixed[v->id] && nelem(v) > 1 &&
                node_fusible(n, nelem(v));
    for (int i = 0; i < n->nin && good; i++)
        good = !permuted(n->in[i]);
    return good;
}

static bool alike(const Node *n, const Node *m)
{
    return n->phase == m->phase && n->policy == m->policy && !n->origin == !m->origin &&
           nelem(n->out[0]) == nelem(m->out[0]);
}

/* A view of a member's value that only one node reads: that may become a member as well. */
static bool between(const Fuse *f, const Node *n)
{
    const Group *x = n->op->view ? group_of(f, n->in[0]->def) : NULL;
    return x && !x->closed && f->uses[n->out[0]->id] == 1 && !f->edge[n->id] && !n->policy &&
           n->phase == x->member[0]->phase && f->uses[n->in[0]->id] == 1 &&
           node_fusible(n, x->nelem);
}

/* ---- whether a group may be moved down to a node ---- */

/* Whether v is met for the first time in this walk. */
static bool first_time(Fuse *f, const Value *v)
{
    bool first = f->stamp[v->id] != f->walks;
    f->stamp[v->id] = f->walks;
    return first;
}

static bool read_within(const Fuse *f, const Group *x, const Value *v)
{
    int count = 0;
    for (int j = 0; j < x->nmember; j++)
        for (int i = 0; i < x->member[j]->nin; i++)
            count += x->member[j]->in[i] == v;
    return count == f->uses[v->id];
}

/* Bytes of the values that others need, minus those of operands that the group is the last to read.
 */
static int64_t made_minus_freed(Fuse *f, const Group *x)
{
    int64_t sum = 0;
    f->walks++;
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        for (int i = 0; i < n->nin; i++) {
            const Value *v = stored(n->in[i]);
            if (v->def && group_of(f, v->def) != x && f->last_use[v->id] <= x->last &&
                first_time(f, v))
                sum -= type_nbytes(&v->type);
        }
        sum += n->op->view || read_within(f, x, n->out[0]) ? 0 : type_nbytes(&n->out[0]->type);
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

static void touch(Group *x, const Node *n, int position, Group **list, int *count)
{
    if (!x || x->closed || *count == MOST_TOUCHED || position - x->last > NEAR ||
        !alike(x->member[0], n))
        return;
    for (int k = 0; k < *count; k++)
        if (list[k] == x)
            return;
    list[(*count)++] = x;
}

/* The open groups that make n's operands, or read one of n's size too. */
static int find_touched(const Fuse *f, const Node *n, int position, Group **list)
{
    int count = 0;
    for (int i = 0; i < n->nin; i++)
        touch(group_of(f, n->in[i]->def), n, position, list, &count);
    for (int i = 0; i < n->nin; i++)
        if (nelem(n->in[i]) == nelem(n->out[0]) && f->reader[n->in[i]->id] >= 0)
            touch(find_group(f, f->reader[n->in[i]->id]), n, position, list, &count);
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
    y->parent = x->parent;
}

static void join(Fuse *f, Node *n, int position)
{
    Group *list[MOST_TOUCHED], *x = NULL;
    int count = find_touched(f, n, position, list), more = 1;
    for (int i = 0; i < n->nin; i++)
        more += count_views(f, n->in[i]);
    for (int k = 0; k < count; k++) {
        if (list[k]->nmember + more + (x ? x->nmember : 0) > MEMBERS ||
            !may_move(f, list[k], position, list, count))
            continue;
        if (x)
            bind(f, x, list[k]);
        else
            x = list[k];
    }
    if (!x) {
        Group fresh = {.parent = f->ngroup, .nelem = nelem(n->out[0])};
        PUSH(f->tmp, f->group, f->ngroup, f->capgroup, fresh);
        x = &f->group[f->ngroup - 1];
    }
    for (int i = 0; i < n->nin; i++)
        add_views(f, x, n->in[i]);
    add_member(f, x, n);
    x->nlane++;
    x->last = position;
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

/* ---- tables ---- */

static Fuse setup(Graph *g, Arena *tmp)
{
    Fuse f = {
        .g = g, .tmp = tmp, .of = NEWN(tmp, int, g->nnode), .at = NEWN(tmp, Node *, g->nnode)};
    f.reader = NEWN(tmp, int, g->nvalue);
    f.uses = NEWN(tmp, int, g->nvalue);
    f.last_use = NEWN(tmp, int, g->nvalue);
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
            f.last_use[stored(n->in[i])->id] = position;
        }
        f.edge[n->id] |= n->nafter > 0;
        for (int i = 0; i < n->nafter; i++)
            f.edge[n->after[i]->id] = true;
        position++;
    }
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        f.uses[v->id]++;
        f.last_use[stored(v)->id] = position;
        f.fixed[v->id] |= g->out[i].role == ROLE_NEW;
    }
    return f;
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

static void add_body_node(Fuse *f, Made *m, const Node *n)
{
    Build b = {m->body, NULL, n->phase, n->policy, n->scope, n->origin, n->line, n->column};
    Value **in = NEWN(f->tmp, Value *, n->nin);
    for (int i = 0; i < n->nin; i++) {
        Value *v = n->in[i];
        if (!(in[i] = inner_of(m, v))) {
            in[i] = graph_input(m->body, v->name, v->type, ROLE_NONE, NULL);
            pair(m, f->tmp, v, in[i]);
            PUSH(f->tmp, m->in, m->nin, m->capin, v);
        }
    }
    const char *name = n->out[0]->name;
    Node *inside = emit_named(&b, n->op, n->nin, in, n->attr, NULL, n->stream, &name, 1);
    pair(m, f->tmp, n->out[0], inside->out[0]);
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

/* The group's node, in place of its last. */
static void make_node(Fuse *f, Group *x, Replace *r)
{
    Made m = {.body = graph_body(f->g), .result = NEWN(f->tmp, Value *, x->nmember)};
    const Node *last = f->at[x->last];
    const char **name = NEWN(f->tmp, const char *, x->nmember), *origin = NULL;
    Build b = {f->g,        last->next, last->phase, last->policy,
               last->scope, NULL,       last->line,  last->column};
    for (int j = 0; j < x->nmember; j++)
        add_body_node(f, &m, x->member[j]);
    for (int j = 0; j < x->nmember; j++) {
        const Node *n = x->member[j];
        if (n->op->view || read_within(f, x, n->out[0]))
            continue;
        graph_output(m.body, inner_of(&m, n->out[0]), ROLE_NONE, NULL);
        name[m.nresult] = arena_strdup(f->g->a, n->out[0]->name);
        m.result[m.nresult++] = n->out[0];
        origin = origin ? origin : n->origin;
    }
    for (int j = 0; j < x->nmember; j++)
        node_unlink(f->g, x->member[j]);
    b.origin = origin;
    const Op *op = op_get(f->g->ctx, "fused");
    Node *n = emit_named(&b, op, m.nin, m.in, NULL, region_whole(m.body), -1, name, m.nresult);
    for (int k = 0; k < m.nresult; k++)
        replace_with(r, m.result[k]->def, m.result[k]->index, n->out[k]);
    move_views(f, x, b.before, r);
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
        if (!n->op->view && !read_within(f, x, n->out[0]))
            sum -= (double)type_nbytes(&n->out[0]->type);
    }
    return sum;
}

static bool worthwhile(Fuse *f, const Group *x)
{
    bool read = false; /* else it is dead */
    for (int j = 0; j < x->nmember; j++)
        read |= !read_within(f, x, x->member[j]->out[0]);
    return read && x->nlane > 1 && saved_bytes(f, x) >= (double)x->nelem;
}

static int make_nodes(Fuse *f)
{
    Replace r = replace_start(f->g, f->tmp);
    int changes = 0;
    EACH_NODE(n, f->g)
    {
        replace_operands(&r, n);
        Group *x = n->id < r.nnode ? group_of(f, n) : NULL;
        if (!x || f->at[x->last] != n || !worthwhile(f, x))
            continue;
        add_constants(f, x);
        sort_members(f, x);
        make_node(f, x, &r);
        changes++;
    }
    replace_outputs(&r, f->g);
    return changes;
}

static int fuse_graph(Graph *g, Arena *tmp)
{
    int changes = 0, position = 0;
    Fuse f = setup(g, tmp);
    for (Node *n = g->first; n; n = n->next, position++) {
        if (n->op->region == LOOP)
            changes += fuse_graph(n->region->body, tmp) +
                       (n->region->tail ? fuse_graph(n->region->tail, tmp) : 0);
        if (between(&f, n))
            f.of[n->id] = f.of[n->in[0]->def->id];
        else if (may_fuse(&f, n))
            join(&f, n, position);
        close_groups(&f, n);
    }
    return changes + make_nodes(&f);
}

int pass_fuse(Graph *g, Arena *tmp, const PassOptions *o)
{
    (void)o;
    return fuse_graph(g, tmp);
}

/* ---- the way back ---- */

static void take_apart(Graph *g, Arena *tmp, Node *n, Replace *r)
{
    const Graph *body = n->region->body;
    Value **outer = NEWN(tmp, Value *, body->nvalue);
    Node *before = n->next;
    node_unlink(g, n);
    for (int i = 0; i < body->nin; i++)
        outer[body->in[i].v->id] = n->in[i];
    for (const Node *m = body->first; m; m = m->next) {
        Build b = {g, before, m->phase, m->policy, m->scope, m->origin, m->line, m->column};
        Value **in = NEWN(tmp, Value *, m->nin);
        for (int i = 0; i < m->nin; i++)
            in[i] = outer[m->in[i]->id];
        const char *name = graph_fresh(g, m->out[0]->name);
        outer[m->out[0]->id] =
            emit_named(&b, m->op, m->nin, in, m->attr, NULL, m->stream, &name, 1)->out[0];
    }
    for (int k = 0; k < n->nout; k++)
        replace_with(r, n, k, outer[body->out[k].v->id]);
}

int pass_unfuse(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = 0;
    Replace r = replace_start(g, tmp);
    EACH_NODE(n, g)
    {
        replace_operands(&r, n);
        if (n->op->region == LOOP)
            changes += pass_unfuse(n->region->body, tmp, o) +
                       (n->region->tail ? pass_unfuse(n->region->tail, tmp, o) : 0);
        if (n->op->region != FUSED)
            continue;
        take_apart(g, tmp, n, &r);
        changes++;
    }
    replace_outputs(&r, g);
    return changes;
}
