/* Graphs of which each rank has its own, as PyTorch traces them: made ready to run together.
 *
 * A graph that was imported with its mesh has groups by axes. One without has the names that
 * PyTorch gave its process groups; it gets the mesh ranks=N,one=1, and a group of all ranks, or of
 * one, is that axis. The graph does not say which ranks a smaller group has: it is refused.
 *
 * Ranks' collectives must match: all members of a group call the same ones in one order. Each rank
 * describes its calls; hashes of these go to all ranks, so that all find the same first call that
 * differs, and the texts of both go around for the message. Graphs are compared as they are
 * written, and again as they are planned.
 *
 * The planner orders nodes, and graphs of one form alike. If forms differ, each collective runs
 * after the one that is written before it, so that all ranks keep one order. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 160 };

static const char all_ranks[] = "ranks", one_rank[] = "one";

static bool is_collective(const Node *n)
{
    return n->op->class == CLASS_COLLECTIVE;
}

static Attr *group_attr(const Node *n)
{
    return &n->attr[attr_index(n->op, "group")];
}

/* Calls see(arg, g, n, times) for each collective, those in bodies too, which run `times` times. */
typedef void SeeCollective(void *arg, const Graph *g, Node *n, int64_t times);

static void each_collective(const Graph *g, int64_t times, SeeCollective *see, void *arg)
{
    EACH_NODE(n, g) {
        if (is_collective(n))
            see(arg, g, n, times);
        EACH_LOOP_BODY(b, n)
            each_collective(n->region->body[b], times * region_times(n->region, b), see, arg);
    }
}

/* ---- the mesh ---- */

typedef struct Naming {
    int64_t nranks;
    Map size; /* of groups, that some collective says: name -> int64_t */
    Arena *a;
} Naming;

static void note_size(void *arg, const Graph *g, Node *n, int64_t times)
{
    Naming *x = arg;
    int i = attr_index(n->op, "group_size");
    (void)g;
    (void)times;
    if (i >= 0)
        map_put(&x->size, group_attr(n)->s, &n->attr[i].i);
}

/* Whether a group is named by its ranks, "0,1,2", and these are all. */
static bool lists_all(const char *group, int64_t nranks)
{
    const char *s = group;
    for (int64_t i = 0; i < nranks; i++) {
        char *end;
        if (strtoll(s, &end, 10) != i || end == s || *end != (i + 1 < nranks ? ',' : 0))
            return false;
        s = end + 1;
    }
    return true;
}

/* Whether a group has all ranks. Where nothing says its size PyTorch's first, "0", has. */
static bool has_all(const Naming *x, const char *group, int64_t size)
{
    if (size)
        return size == x->nranks;
    return !strcmp(group, "0") || lists_all(group, x->nranks);
}

static void set_group(void *arg, const Graph *g, Node *n, int64_t times)
{
    const Naming *x = arg;
    Attr *group = group_attr(n);
    const int64_t *said = map_find(&x->size, group->s);
    int64_t size = said ? *said : 0;
    (void)times;
    if (size != 1 && !has_all(x, group->s, size))
        fail_node(g, n,
                  "group \"%s\": the graph does not say which %s of the %lld ranks it has: import "
                  "it with --mesh and --group '%s=AXIS'",
                  group->s, size ? arena_printf(x->a, "%lld", (long long)size) : "ones",
                  (long long)x->nranks, group->s);
    group->s = size == 1 ? one_rank : all_ranks;
}

/* Gives a graph without a mesh that of all ranks. */
static const Mesh *make_mesh(Graph *g, Arena *tmp, int rank, int nranks)
{
    Naming x = {.nranks = nranks, .size = {.a = tmp}, .a = tmp};
    Mesh *m =
        mesh_parse(g->ctx, g->a, arena_printf(tmp, "%s=%d,%s=1", all_ranks, nranks, one_rank));
    mesh_set_rank(m, rank);
    each_collective(g, 1, note_size, &x);
    each_collective(g, 1, set_group, &x);
    return m;
}

static void check_mesh(const Graph *g, Arena *tmp, int rank, int nranks)
{
    const Mesh *m = g->mesh;
    const char *file = g->file ? g->file : "", *colon = g->file ? ": " : "";
    if (mesh_nranks(m) != nranks)
        fail(g->ctx, TN_USAGE, "%s%smesh %s has %lld ranks: expected as many graphs, found %d",
             file, colon, mesh_text(tmp, m), (long long)mesh_nranks(m), nranks);
    if (mesh_rank(m) != rank)
        fail(g->ctx, TN_USAGE,
             "%s%sexpected the graph of rank %d of mesh %s, found that of rank %lld", file, colon,
             rank, mesh_text(tmp, m), (long long)mesh_rank(m));
}

/* ---- calls that match ---- */

/* A collective: whom it calls, and what all of them must call. */
typedef struct RankCall {
    int64_t axes; /* of the mesh, by which the group's ranks differ: their places from 1, 4 bits
                   * each. Those of one rank are left out, so that all names of a group are one */
    uint64_t what;
    int64_t split; /* all_to_all: where the rows sent to each member begin among the splits, and
                    * after them the rows received of each; -1: another op */
} RankCall;

typedef struct Calls {
    const Graph *g;
    Arena *a;
    bool phases; /* are part of what is called */
    RankCall *sent;
    const char **text;
    int count, capsent, captext;
    int64_t *split;
    int nsplit, capsplit;
} Calls;

/* The part of the operands that all members have alike: of all_to_all the rows may differ. */
static const char *operands_text(Arena *a, const Node *n)
{
    Buf b = {.a = a};
    for (int i = 0; i < n->nin; i++) {
        Type t = n->in[i]->type;
        if (node_collective(n) == ALL_TO_ALL && t.rank)
            t.dim[0] = 0;
        buf_printf(&b, "%s%s", i ? ", " : "", type_text(a, &t));
    }
    return b.text;
}

static void add_splits(Calls *c, const Node *n, int64_t members)
{
    static const char *const names[] = {"input_split_sizes", "output_split_sizes"};
    for (int side = 0; side < 2; side++) {
        const Attr *sizes = &n->attr[attr_index(n->op, names[side])];
        const Type *t = side ? &n->out[0]->type : &n->in[0]->type;
        for (int64_t j = 0; j < members; j++) {
            int64_t rows = sizes->i == members ? sizes->ints[j] : t->dim[0] / members;
            PUSH(c->a, c->split, c->nsplit, c->capsplit, rows);
        }
    }
}

static void add_call(void *arg, const Graph *g, Node *n, int64_t times)
{
    Calls *c = arg;
    int axes[MAX_MESH], naxes = group_axes(c->g->mesh, group_attr(n)->s, axes);
    RankCall s = {.split = -1};
    if (naxes < 0)
        fail_node(g, n, "group \"%s\": expected axes of the mesh %s", group_attr(n)->s,
                  mesh_text(c->a, c->g->mesh));
    for (int i = 0, k = 0; i < naxes; i++)
        if (c->g->mesh->size[axes[i]] > 1)
            s.axes |= (int64_t)(axes[i] + 1) << 4 * k++;
    if (node_collective(n) == ALL_TO_ALL) {
        s.split = c->nsplit;
        add_splits(c, n, group_nranks(c->g->mesh, naxes, axes));
    }
    const char *extra = "";
    for (int i = 0; op_attrs(n->op)[i].kind; i++) {
        const char *name = op_attrs(n->op)[i].name;
        if (!strcmp(name, "reduce_op"))
            extra = arena_printf(c->a, " %s", n->attr[i].s);
        else if (!strcmp(name, "src"))
            extra = arena_printf(c->a, " from %lld", (long long)n->attr[i].i);
        else if (!strcmp(name, "shift"))
            extra = arena_printf(c->a, " by %lld", (long long)n->attr[i].i);
    }
    const char *often = times == 1 ? "" : arena_printf(c->a, " %lld times", (long long)times);
    const char *phase = c->phases ? arena_printf(c->a, " in %s", phase_name(n->phase)) : "";
    const char *text = arena_printf(c->a, "%s%s of %s over %s%s%s", n->op->name, extra,
                                    operands_text(c->a, n), group_attr(n)->s, often, phase);
    s.what = hash_bytes(text, strlen(text), 1);
    text = arena_printf(c->a, "%s (%%%s)", text, n->out[0]->name);
    PUSH(c->a, c->sent, c->count, c->capsent, s);
    c->count--;
    PUSH(c->a, c->text, c->count, c->captext, text);
}

static void gather(tn_context *ctx, const void *mine, int64_t nbytes, void *all)
{
    char message[COMM_MESSAGE] = "";
    if (comm_gather(ctx->comm, mine, nbytes, all, true, message))
        fail(&ctx->ctx, TN_FAIL, "%s", message);
}

/* The calls of all ranks, by rank. */
typedef struct AllCalls {
    const Mesh *mesh;
    int nranks;
    const RankCall *sent; /* most of each rank */
    const int64_t *count;
    int64_t most;
    const int64_t *split; /* most_splits of each rank */
    int64_t most_splits;
    int *member; /* room for nranks */
} AllCalls;

/* The next call from `i` on by the rank in which a group with these axes takes part; its count:
 * none. */
static int64_t find_next(const AllCalls *x, int rank, int64_t axes, int64_t i)
{
    while (i < x->count[rank] && x->sent[rank * x->most + i].axes != axes)
        i++;
    return i;
}

/* The first member of the group with these axes that the rank is in. */
static int find_first(const Mesh *mesh, int rank, int64_t axes)
{
    Mesh m = *mesh;
    mesh_set_rank(&m, rank);
    for (; axes; axes >>= 4)
        m.at[(axes & 15) - 1] = 0;
    return (int)mesh_rank(&m);
}

/* The call at which a rank parts from the first rank of its group. */
typedef struct Differ {
    int rank, first;
    int64_t at, at_first; /* the call of each; their count: none is left */
} Differ;

static bool group_differs(const AllCalls *x, int64_t axes, Differ *d)
{
    for (d->rank = 0; d->rank < x->nranks; d->rank++) {
        d->first = find_first(x->mesh, d->rank, axes);
        d->at = d->at_first = -1;
        do {
            d->at = find_next(x, d->rank, axes, d->at + 1);
            d->at_first = find_next(x, d->first, axes, d->at_first + 1);
            bool end = d->at == x->count[d->rank], end_first = d->at_first == x->count[d->first];
            if (end && end_first)
                break;
            if (end != end_first || x->sent[d->rank * x->most + d->at].what !=
                                        x->sent[d->first * x->most + d->at_first].what)
                return true;
        } while (1);
    }
    return false;
}

static bool find_differ(const AllCalls *x, Differ *d)
{
    for (int rank = 0; rank < x->nranks; rank++)
        for (int64_t i = 0; i < x->count[rank]; i++) {
            int64_t axes = x->sent[rank * x->most + i].axes;
            bool seen = false;
            for (int64_t k = 0; k < i && !seen; k++)
                seen = x->sent[rank * x->most + k].axes == axes;
            if (!seen && group_differs(x, axes, d))
                return true;
        }
    return false;
}

/* ---- rows of all_to_all ---- */

/* The ranks of a group in their order, of which `rank` is one; returns how many. */
static int list_members(const Mesh *mesh, int rank, int64_t axes, int *member)
{
    Mesh m = *mesh;
    int axis[MAX_MESH], naxes = 0, count = 1;
    mesh_set_rank(&m, rank);
    for (; axes; axes >>= 4) {
        axis[naxes++] = (int)(axes & 15) - 1;
        count *= (int)m.size[axis[naxes - 1]];
    }
    for (int j = 0; j < count; j++) {
        for (int i = naxes - 1, left = j; i >= 0; i--) {
            m.at[axis[i]] = left % m.size[axis[i]];
            left /= (int)m.size[axis[i]];
        }
        member[j] = (int)mesh_rank(&m);
    }
    return count;
}

/* A member that sends other rows than the one it sends to has room for. */
typedef struct RowsDiffer {
    int from, to;
    int64_t at, sent, expected; /* the call of `from` */
} RowsDiffer;

/* Compares the calls of one rank in one group with those of the members, which match one by one. */
static bool group_rows_differ(const AllCalls *x, int rank, int64_t axes, RowsDiffer *d)
{
    int n = list_members(x->mesh, rank, axes, x->member), me = 0;
    while (x->member[me] != rank)
        me++;
    for (int j = 0; j < n; j++) {
        const int to = x->member[j];
        int64_t at = -1;
        for (int64_t i = -1; (i = find_next(x, rank, axes, i + 1)) < x->count[rank];) {
            at = find_next(x, to, axes, at + 1);
            const RankCall *s = &x->sent[rank * x->most + i], *peer = &x->sent[to * x->most + at];
            if (s->split < 0)
                continue;
            *d = (RowsDiffer){rank, to, i, x->split[rank * x->most_splits + s->split + j],
                              x->split[to * x->most_splits + peer->split + n + me]};
            if (d->sent != d->expected)
                return true;
        }
    }
    return false;
}

/* Whether call i of a rank is the first all_to_all in its group. */
static bool is_first(const AllCalls *x, int rank, int64_t i)
{
    const RankCall *s = &x->sent[rank * x->most];
    for (int64_t k = 0; k < i; k++)
        if (s[k].split >= 0 && s[k].axes == s[i].axes)
            return false;
    return s[i].split >= 0;
}

static bool find_rows(const AllCalls *x, RowsDiffer *d)
{
    for (int rank = 0; rank < x->nranks; rank++)
        for (int64_t i = 0; i < x->count[rank]; i++)
            if (is_first(x, rank, i) &&
                group_rows_differ(x, rank, x->sent[rank * x->most + i].axes, d))
                return true;
    return false;
}

static _Noreturn void fail_rows(tn_context *ctx, const Calls *c, const RowsDiffer *d)
{
    char *own = NEWN(c->a, char, SHOWN), *all = NEWN(c->a, char, SHOWN *tn_ranks(ctx));
    snprintf(own, SHOWN, "%s", tn_rank(ctx) == d->from ? c->text[d->at] : "");
    gather(ctx, own, SHOWN, all);
    fail(&ctx->ctx, TN_FAIL,
         "the collectives of the ranks do not match: rank %d sends %lld rows to rank %d, which "
         "expects %lld, by %s",
         d->from, (long long)d->sent, d->to, (long long)d->expected, all + SHOWN * d->from);
}

/* ---- comparing ---- */

static _Noreturn void fail_differ(tn_context *ctx, const Calls *c, const Differ *d, const char *how)
{
    int rank = tn_rank(ctx);
    int64_t at = rank == d->rank ? d->at : d->at_first;
    bool mine = rank == d->rank || rank == d->first;
    char *own = NEWN(c->a, char, SHOWN), *all = NEWN(c->a, char, SHOWN *tn_ranks(ctx));
    snprintf(own, SHOWN, "%s", mine && at < c->count ? c->text[at] : "no other");
    gather(ctx, own, SHOWN, all);
    fail(&ctx->ctx, TN_FAIL,
         "the collectives of the ranks do not match%s: rank %d has %s, where rank %d has %s", how,
         d->first, all + SHOWN * d->first, d->rank, all + SHOWN * d->rank);
}

static void compare(tn_context *ctx, const Calls *c, const char *how)
{
    int n = tn_ranks(ctx);
    int64_t count = c->count, most = 1;
    int64_t *counts = NEWN(c->a, int64_t, n);
    gather(ctx, &count, sizeof count, counts);
    for (int i = 0; i < n; i++)
        most = MAX(most, counts[i]);
    RankCall *mine = NEWN(c->a, RankCall, most), *all = NEWN(c->a, RankCall, most * n);
    if (count)
        memcpy(mine, c->sent, sizeof *mine * (size_t)count);
    gather(ctx, mine, (int64_t)sizeof *mine * most, all);
    int64_t nsplit = c->nsplit, most_splits = 1, *nsplits = NEWN(c->a, int64_t, n);
    gather(ctx, &nsplit, sizeof nsplit, nsplits);
    for (int i = 0; i < n; i++)
        most_splits = MAX(most_splits, nsplits[i]);
    int64_t *split = NEWN(c->a, int64_t, most_splits),
            *splits = NEWN(c->a, int64_t, most_splits * n);
    if (nsplit)
        memcpy(split, c->split, sizeof *split * (size_t)nsplit);
    gather(ctx, split, (int64_t)sizeof *split * most_splits, splits);
    AllCalls x = {c->g->mesh, n, all, counts, most, splits, most_splits, NEWN(c->a, int, n)};
    Differ d;
    if (find_differ(&x, &d))
        fail_differ(ctx, c, &d, how);
    RowsDiffer rows;
    if (find_rows(&x, &rows))
        fail_rows(ctx, c, &rows);
}

/* All ranks have the same mesh, by which they read each other's groups. */
static void compare_meshes(tn_context *ctx, Arena *a, const Mesh *m)
{
    int n = tn_ranks(ctx);
    char *own = NEWN(a, char, SHOWN), *all = NEWN(a, char, SHOWN *n);
    snprintf(own, SHOWN, "%s", mesh_text(a, m));
    gather(ctx, own, SHOWN, all);
    for (int i = 1; i < n; i++)
        if (strcmp(all, all + SHOWN * i) != 0)
            fail(&ctx->ctx, TN_FAIL, "rank %d has mesh %s, where rank 0 has mesh %s", i,
                 all + SHOWN * i, all);
}

/* ---- one order ---- */

/* A hash of what the planner reads when it orders: ops, operands and types. */
static uint64_t form_of(const Graph *g, Arena *a)
{
    uint64_t hash = 1;
    EACH_NODE(n, g) {
        int64_t head[] = {n->nin, n->nout, n->phase, (int64_t)n->policy};
        hash = hash_bytes(n->op->name, strlen(n->op->name), hash);
        hash = hash_bytes(head, sizeof head, hash);
        for (int i = 0; i < n->nin; i++)
            hash = hash_bytes(&n->in[i]->id, sizeof n->in[i]->id, hash);
        for (int k = 0; k < n->nout; k++) {
            const char *text = type_text(a, &n->out[k]->type);
            hash = hash_bytes(text, strlen(text), hash);
        }
        EACH_BODY(b, n)
            hash ^= form_of(n->region->body[b], a) * (uint64_t)(b + 3);
    }
    return hash;
}

static void add_after(Graph *g, Node *n, Node *before)
{
    Node **after = NEWN(g->a, Node *, n->nafter + 1);
    for (int i = 0; i < n->nafter; i++)
        after[i] = n->after[i];
    after[n->nafter++] = before;
    n->after = after;
}

/* Puts the nodes of each phase behind those of the phases before it, else in their order: no
 * operand is of a later phase than its reader. */
static void order_phases(Graph *g)
{
    for (int phase = 1; phase < NPHASE; phase++)
        for (Node *n = g->first, *next, *end = g->last; n; n = n == end ? NULL : next) {
            next = n->next;
            if (n->phase == (Phase)phase)
                node_move(g, n, NULL);
        }
}

/* Each collective, and each loop that has some, comes after the one before it, by phase and then as
 * written: the same order on all ranks whose graphs have the same loops.
 * Returns whether there are any. */
static bool keep_order(Graph *g)
{
    Node *last = NULL;
    order_phases(g);
    EACH_NODE(n, g) {
        bool calls = is_collective(n);
        EACH_LOOP_BODY(b, n)
            calls |= keep_order(n->region->body[b]);
        if (!calls)
            continue;
        if (last)
            add_after(g, n, last);
        last = n;
    }
    return last != NULL;
}

/* Whether all ranks' graphs have one form. */
static bool one_form(tn_context *ctx, const Graph *g, Arena *a)
{
    int n = tn_ranks(ctx);
    uint64_t own = form_of(g, a), *all = NEWN(a, uint64_t, n);
    gather(ctx, &own, sizeof own, all);
    for (int i = 1; i < n; i++)
        if (all[i] != all[0])
            return false;
    return true;
}

/* ---- a graph of a rank's own ---- */

static Calls list_written(Graph *g, Arena *a, bool phases)
{
    Calls c = {.g = g, .a = a, .phases = phases};
    each_collective(g, 1, add_call, &c);
    return c;
}

/* A rank's files have its parts, not wholes. */
static void drop_cuts(Port *p, int count)
{
    for (int i = 0; i < count; i++)
        p[i].cut = NULL;
}

static void own(tn_graph *graph, Arena *a)
{
    Graph *g = graph->g;
    int rank = tn_rank(graph->h.owner), nranks = tn_ranks(graph->h.owner);
    if (g->mesh)
        check_mesh(g, a, rank, nranks);
    else
        g->mesh = make_mesh(g, a, rank, nranks);
    drop_cuts(g->in, g->nin);
    drop_cuts(g->out, g->nout);
    graph_verify(g);
    graph->own = true;
    list_written(g, a, false); /* fails here, where the others wait, if at all */
}

/* ---- what others call ---- */

static void match(tn_context *ctx, Graph *g, Arena *a)
{
    compare_meshes(ctx, a, g->mesh);
    Calls c = list_written(g, a, false);
    compare(ctx, &c, "");
    if (one_form(ctx, g, a))
        return;
    c = list_written(g, a, true);
    compare(ctx, &c, " by their phases");
    keep_order(g);
}

static int make_own(tn_graph *g)
{
    TRY(t, &g->h.owner->ctx)
        own(g, try_arena(&t));
    return tried(&t);
}

int tn_graph_ranks(tn_graph *g)
{
    tn_context *ctx = args_owner(g);
    if (!GIVEN(ctx, g))
        return TN_CODE_USAGE;
    int code = tn_agree_code(ctx, make_own(g));
    if (code || !ctx->comm)
        return code;
    TRY(t, &ctx->ctx)
        match(ctx, g->g, try_arena(&t));
    return tried(&t);
}

void ranks_match(const tn_plan *p, Arena *a)
{
    Calls c = {.g = p->p->g, .a = a};
    for (int i = 0; i < p->p->nstep; i++) {
        const Step *s = &p->p->step[i];
        if (s->kind == STEP_CALL && !s->copy && is_collective(s->node))
            add_call(&c, p->p->g, (Node *)(uintptr_t)s->node, 1);
    }
    compare(p->h.owner, &c, " as they are planned");
}
