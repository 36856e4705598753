/* sharding: the forms of a graph's inputs and outputs on the ranks of a mesh.
 *
 * The names of mesh axes say what they cut. dp and fsdp cut the rows of batch inputs. fsdp cuts
 * parameters where they are stored. tp cuts parameters as recipe.def says, and readers compute with
 * the parts; a parameter without a recipe it cuts where it is stored: axis 0 by tp, then by fsdp
 * (see find_param_cut). A rule of --shard for a parameter or another value replaces all of that:
 * mesh axes that it does not name replicate. Optimizer state, gradients and new values are cut as
 * their parameters; all other outputs are whole.
 *
 * Rows that loops take in n iterations are cut within an iteration, n being outer: each rank has a
 * part of every microbatch.
 *
 * A rule is refused where it cannot be obeyed, or where no rank would notice it: mesh axes that cut
 * nothing, patterns that match nothing, rules all of whose parameters a later rule cuts otherwise.
 * Linear in ports times rules, and in the nodes. */
#include "sharding.h"

#include <string.h>

MeshAxisKind mesh_axis_kind(const char *name)
{
    static const char *const names[] = {[AXIS_DP] = "dp", [AXIS_FSDP] = "fsdp", [AXIS_TP] = "tp"};
    for (int k = 0; k < LEN(names); k++)
        if (!strcmp(names[k], name))
            return k;
    return AXIS_OTHER;
}

Mesh *sharding_mesh(Ctx *ctx, Arena *a, const PassOptions *o)
{
    if (!o->mesh)
        return NULL;
    Mesh *m = mesh_parse(ctx, a, o->mesh);
    if (o->rank >= mesh_nranks(m))
        fail(ctx, TN_USAGE, "rank %lld: the mesh %s has ranks 0 to %lld", (long long)o->rank,
             mesh_text(a, m), (long long)mesh_nranks(m) - 1);
    mesh_set_rank(m, o->rank);
    return m;
}

int64_t sharding_rows(const Mesh *m, int64_t rows, int64_t iterations)
{
    int64_t part = (rows + iterations - 1) / iterations, ranks = 1;
    for (int c = 0; c < m->naxes; c++) {
        MeshAxisKind kind = mesh_axis_kind(m->name[c]);
        ranks *= kind == AXIS_DP || kind == AXIS_FSDP ? m->size[c] : 1;
    }
    if ((rows + part - 1) / part != iterations)
        return rows;
    return iterations * ((part + ranks - 1) / ranks * ranks);
}

bool sharding_is_solved(const PassOptions *o)
{
    for (int i = 0; i < o->shardings.count; i++)
        if (!strcmp(o->shardings.pattern[i], "auto"))
            return true;
    return false;
}

/* ---- recipes ---- */

typedef struct Recipe {
    const char *name;
    int rank, axis;
    int64_t outer;
    enum { HEADS, FEATURES, VOCABULARY } what;
    enum { LINEAR, CONV1D } layout;
} Recipe;

static const Recipe recipes[] = {
#define RECIPE(name, rank, axis, outer, what, layout) {name, rank, axis, outer, what, layout},
#include "recipe.def"
};

/* Whether a name is `end`, or ends with it after a period. In names without periods, as those of
 * traced values are, _ stands for them. */
static bool name_ends(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    const char *s = name + n - k;
    char period = strchr(name, '.') ? '.' : '_';
    if (n < k || (n > k && s[-1] != period))
        return false;
    for (size_t i = 0; i < k; i++)
        if (s[i] != (end[i] == '.' ? period : end[i]))
            return false;
    return true;
}

/* The recipe of a parameter; NULL: it has none. */
static const Recipe *find_recipe(const Sharder *x, const Port *p)
{
    const Type *t = &p->v->type;
    for (int i = 0; i < LEN(recipes); i++) {
        const Recipe *r = &recipes[i];
        if (r->rank != t->rank || !name_ends(p->name, r->name))
            continue;
        if (r->layout == CONV1D && x->linear) {
            Recipe *turned = NEW(x->tmp, Recipe);
            *turned = *r;
            turned->axis = !r->axis;
            r = turned;
        }
        return t->dim[r->axis] % r->outer == 0 ? r : NULL;
    }
    return NULL;
}

/* Whether a weight of q, k and v is [3C, C]. */
static bool find_linear(const Graph *g)
{
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        const Type *t = &p->v->type;
        if (p->role == ROLE_PARAM && t->rank == 2 && name_ends(p->name, "attn.c_attn.weight"))
            return t->dim[0] == 3 * t->dim[1];
    }
    return false;
}

/* ---- parameters ---- */

static bool is_kind(const Sharder *x, int c, MeshAxisKind kind)
{
    return mesh_axis_kind(x->m->name[c]) == kind;
}

static int64_t count_ranks(const Sharder *x, MeshAxisKind kind)
{
    int64_t n = 1;
    for (int c = 0; c < x->m->naxes; c++)
        n *= is_kind(x, c, kind) ? x->m->size[c] : 1;
    return n;
}

/* How a parameter without a rule is cut. */
typedef struct ParamCut {
    bool computed; /* with by tp as its recipe says */
    Cut tp, fsdp;
} ParamCut;

static bool divides(int64_t units, const Type *t, int axis)
{
    return t->dim[axis] % units == 0;
}

/* tp cuts as the recipe says, if that is even or padded by align.c: padding at the end of an axis
 * would move the borders of heads. Else, and without a recipe, tp cuts axis 0. fsdp cuts axis 0,
 * within the parts of tp, or axis 1 if axis 0 does not divide. */
static ParamCut find_param_cut(const Sharder *x, const Recipe *r, const Type *t)
{
    int64_t tp = count_ranks(x, AXIS_TP), fsdp = count_ranks(x, AXIS_FSDP);
    ParamCut stored = {false, {CUT_SLICE, 0, 1}, {CUT_SLICE, 0, tp}};
    if (!r)
        return stored;
    ParamCut p = {true, {CUT_SLICE, r->axis, r->outer}, {CUT_SLICE, 0, r->outer * tp}};
    if (r->axis)
        p.fsdp.outer = 1;
    else if (r->what != VOCABULARY && !divides(r->outer * tp * fsdp, t, 0))
        p.fsdp = (Cut){CUT_SLICE, 1, 1};
    bool even = r->what == VOCABULARY || divides(r->outer * tp, t, r->axis);
    return even && (!p.fsdp.axis || (t->rank > 1 && divides(fsdp, t, 1))) ? p : stored;
}

/* fsdp cuts within tp. */
static void fill_stored(Sharder *x, const Port *p, Sharding *s)
{
    const Type *t = &p->v->type;
    if (!t->rank)
        return;
    ParamCut at = find_param_cut(x, find_recipe(x, p), t);
    for (int c = 0; c < x->m->naxes; c++)
        if (is_kind(x, c, AXIS_TP)) {
            sharding_set(x, s, c, at.tp);
            x->used[c] |= at.computed;
            s->computed_sharded[c] = at.computed && s->cut[c].kind;
            s->storage_sharded[c] = !at.computed;
        } else if (is_kind(x, c, AXIS_FSDP)) {
            sharding_set(x, s, c, at.fsdp);
            s->storage_sharded[c] = true;
            x->used[c] = true;
        }
}

static void fill_params(Sharder *x, Sharding *in)
{
    for (int i = 0; i < x->g->nin; i++) {
        const Port *p = &x->g->in[i];
        if (p->role != ROLE_PARAM)
            continue;
        ShardRule *r = rule_find(x, true, p->name);
        in[i].ruled = r;
        if (r)
            rule_apply(x, r, p->name, &p->v->type, &in[i]);
        else
            fill_stored(x, p, &in[i]);
    }
}

/* The input whose sharding a state, gradient or new value has: "w" of "w.m", or of "w"; NULL: it
 * has none. */
static const Value *find_owner(const Map *params, Arena *tmp, const Port *p)
{
    const Value *v = map_find(params, p->name);
    const char *period = strrchr(p->name, '.');
    if (!v && period)
        v = map_find(params, arena_strndup(tmp, p->name, (size_t)(period - p->name)));
    return v && shape_equal(&v->type, &p->v->type) ? v : NULL;
}

/* State, gradients and new values are cut as their parameter. */
static void fill_followers(const Sharder *x, Sharding *in, Sharding *out)
{
    const Graph *g = x->g;
    Map params = graph_named(g->in, g->nin, ROLE_PARAM, x->tmp);
    for (int k = 0; k < g->nin + g->nout; k++) {
        const Port *p = k < g->nin ? &g->in[k] : &g->out[k - g->nin];
        if (p->role != ROLE_STATE && p->role != ROLE_GRAD && p->role != ROLE_NEW)
            continue;
        const Value *v = find_owner(&params, x->tmp, p);
        if (v)
            *(k < g->nin ? &in[k] : &out[k - g->nin]) = in[v->index];
    }
}

/* ---- the batch ---- */

static bool is_batch(const Port *p)
{
    return p->role == ROLE_BATCH && p->v->type.rank;
}

/* Whether no rule says how p, an input with rows of the batch, is cut. */
static bool is_unruled_batch(const Sharder *x, const Port *p)
{
    return is_batch(p) && !rule_find(x, false, p->v->name);
}

/* Rows of the batch; inputs of one row beside those of more are the same for all. */
static int64_t count_rows(const Sharder *x)
{
    const Port *first = NULL;
    for (int i = 0; i < x->g->nin; i++) {
        const Port *p = &x->g->in[i];
        if (!is_unruled_batch(x, p) || p->v->type.dim[0] == 1)
            continue;
        if (first && first->v->type.dim[0] != p->v->type.dim[0])
            fail(x->g->ctx, TN_USAGE,
                 "batch inputs %%%s %s and %%%s %s have different rows, which data ranks cannot "
                 "share; --shard '%s=' gives every rank all of one",
                 first->v->name, type_text(x->tmp, &first->v->type), p->v->name,
                 type_text(x->tmp, &p->v->type), p->v->name);
        first = first ? first : p;
    }
    return first ? first->v->type.dim[0] : 1;
}

/* The least common multiple of n and of how many iterations take parts of v's rows, which it
 * divides. */
static int64_t count_iterations(const Graph *g, const Value *v, int64_t n)
{
    EACH_NODE(m, g) {
        const Region *r = m->op->region == LOOP ? m->region : NULL;
        for (int j = 0; r && j < r->nin; j++) {
            const PortIn *p = &r->in[j];
            if (p->arg < 0 || m->in[p->arg] != v || p->kind != PORT_SLICE || p->axis)
                continue;
            if (r->body[TAIL])
                fail(g->ctx, TN_USAGE,
                     "loop %%%s takes the rows of %%%s %s in iterations of different sizes, of "
                     "which data ranks cannot have parts",
                     m->out[0]->name, v->name, type_text(g->a, &v->type));
            n = n / gcd(n, r->n) * r->n;
        }
    }
    return n;
}

/* Whether ranks share the rows of a batch. */
static bool has_data_ranks(const Sharder *x)
{
    for (int c = 0; c < x->m->naxes; c++)
        if ((is_kind(x, c, AXIS_DP) || is_kind(x, c, AXIS_FSDP)) && x->m->size[c] > 1)
            return true;
    return false;
}

static void fill_batch(Sharder *x, Sharding *in)
{
    const Graph *g = x->g;
    if (!has_data_ranks(x))
        return;
    int64_t rows = count_rows(x), n = 1;
    bool *cut = NEWN(x->tmp, bool, g->nin);
    for (int i = 0; i < g->nin; i++) {
        cut[i] = is_unruled_batch(x, &g->in[i]) && g->in[i].v->type.dim[0] == rows;
        n = cut[i] ? count_iterations(g, g->in[i].v, n) : n;
    }
    for (int i = 0; i < g->nin; i++) {
        int64_t outer = n;
        for (int c = 0; c < x->m->naxes && cut[i]; c++)
            if (is_kind(x, c, AXIS_DP) || is_kind(x, c, AXIS_FSDP)) {
                sharding_set(x, &in[i], c, (Cut){CUT_SLICE, 0, outer});
                x->used[c] = true;
                outer *= x->m->size[c];
            }
    }
}

/* ---- other values that rules name ---- */

static void fill_others(Sharder *x, Sharding *in, Sharding *out)
{
    const Graph *g = x->g;
    for (int k = 0; k < g->nin + g->nout; k++) {
        const Port *p = k < g->nin ? &g->in[k] : &g->out[k - g->nin];
        ShardRule *r = port_has_rules(p) ? rule_find(x, false, p->v->name) : NULL;
        if (r)
            rule_apply(x, r, p->v->name, &p->v->type, k < g->nin ? &in[k] : &out[k - g->nin]);
    }
}

/* ---- what is refused in the end ---- */

/* Refuses that axis c cuts nothing, where that is as a rule holds for what would be cut by it: for
 * a parameter with a recipe, or with axes. */
static void check_freed(const Sharder *x, int c)
{
    MeshAxisKind kind = mesh_axis_kind(x->m->name[c]);
    for (int i = 0; i < x->g->nin && (kind == AXIS_FSDP || kind == AXIS_TP); i++) {
        const Port *p = &x->g->in[i];
        if (p->role != ROLE_PARAM || !p->v->type.rank || (kind == AXIS_TP && !find_recipe(x, p)))
            continue;
        const ShardRule *r = rule_find(x, true, p->name);
        if (r)
            fail(x->g->ctx, TN_USAGE,
                 "mesh axis \"%s\" of %lld ranks cuts nothing: it would cut \"%s\" %s, but "
                 "--shard \"%.300s\" holds for that and does not name it",
                 x->m->name[c], (long long)x->m->size[c], p->name, type_text(x->tmp, &p->v->type),
                 r->text);
    }
}

static void check_used(const Sharder *x)
{
    static const char *const why[] = {
        [AXIS_DP] = "no batch input has rows that it could cut",
        [AXIS_FSDP] = "no batch input has rows, and no parameter axes, that it could cut",
        [AXIS_TP] = "no parameter is one of a family with a recipe, and no --shard names it",
        [AXIS_OTHER] = "no --shard names it (dp, fsdp and tp have a meaning of their own)",
    };
    for (int c = 0; c < x->m->naxes; c++) {
        MeshAxisKind kind = mesh_axis_kind(x->m->name[c]);
        if (x->used[c] || (kind != AXIS_OTHER && x->m->size[c] == 1))
            continue;
        check_freed(x, c);
        fail(x->g->ctx, TN_USAGE, "mesh axis \"%s\" of %lld ranks cuts nothing: %s", x->m->name[c],
             (long long)x->m->size[c], why[kind]);
    }
}

/* A parameter's axis of attention heads, and the ranks among which it is to be cut. */
typedef struct SharedHeads {
    const Port *p;
    int64_t ranks;
    const char *axes; /* of the mesh */
} SharedHeads;

/* Among how many ranks a rule, or the recipe itself, cuts the recipe's axis; adds the mesh axes'
 * names: "tp", or "tp times x". */
static int64_t recipe_ranks(const Sharder *x, const Recipe *r, const ShardRule *rule, Buf *names)
{
    int64_t ranks = 1;
    for (int c = 0; c < x->m->naxes; c++) {
        const Cut *cut = rule ? &rule->cut[c] : NULL;
        bool named = cut && cut->kind && cut->axis == r->axis;
        bool computes = is_kind(x, c, AXIS_TP) || is_kind(x, c, AXIS_OTHER);
        if (x->m->size[c] == 1 || !(rule ? named && computes : is_kind(x, c, AXIS_TP)))
            continue;
        ranks *= x->m->size[c];
        buf_printf(names, "%s%s", names->len ? " times " : "", x->m->name[c]);
    }
    return ranks;
}

/* The parameter with heads that is cut among most ranks. */
static SharedHeads find_heads(const Sharder *x)
{
    SharedHeads most = {NULL, 1, NULL};
    for (int i = 0; i < x->g->nin; i++) {
        const Port *p = &x->g->in[i];
        const Recipe *r = p->role == ROLE_PARAM ? find_recipe(x, p) : NULL;
        if (!r || r->what != HEADS)
            continue;
        Buf axes = {.a = x->tmp};
        int64_t ranks = recipe_ranks(x, r, rule_find(x, true, p->name), &axes);
        if (ranks > most.ranks)
            most = (SharedHeads){p, ranks, axes.text};
    }
    return most;
}

/* The greatest common divisor of n and the key heads of every attention in g; *at is the first of
 * them with a number that `ranks` does not divide. */
static int64_t common_heads(const Graph *g, int64_t ranks, int64_t n, const Node **at)
{
    EACH_NODE(m, g) {
        if (node_is(m, OP_flash_attention)) {
            int64_t heads = m->in[1]->type.dim[2];
            if (!*at && heads % ranks)
                *at = m;
            n = gcd(n, heads);
        }
        EACH_LOOP_BODY(t, m)
            n = common_heads(m->region->body[t], ranks, n, at);
    }
    return n;
}

/* The largest divisor of n that is at most `most`. */
static int64_t largest_divisor(int64_t n, int64_t most)
{
    int64_t d = MIN(n, most);
    while (n % d)
        d--;
    return d;
}

static void check_heads(const Sharder *x)
{
    SharedHeads h = find_heads(x);
    const Node *at = NULL;
    int64_t heads = h.p ? common_heads(x->g, h.ranks, 0, &at) : 0;
    if (at)
        fail(x->g->ctx, TN_USAGE,
             "mesh %s: %lld ranks share the heads of \"%s\" %s, but attention %%%s at \"%s\" has "
             "%lld key heads for %lld heads, and the heads of a key stay together: the largest %s "
             "up to %lld that works is %lld",
             mesh_text(x->tmp, x->m), (long long)h.ranks, h.p->name,
             type_text(x->tmp, &h.p->v->type), at->out[0]->name, at->scope,
             (long long)at->in[1]->type.dim[2], (long long)at->in[0]->type.dim[2], h.axes,
             (long long)h.ranks, (long long)largest_divisor(heads, h.ranks));
}

void sharding_fill(const Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, Sharding *in,
                   Sharding *out)
{
    Sharder x = {.option = "shard", .g = g, .tmp = tmp, .m = m, .linear = find_linear(g)};
    memset(in, 0, sizeof *in * (size_t)g->nin);
    memset(out, 0, sizeof *out * (size_t)g->nout);
    rules_parse(&x, &o->shardings);
    fill_params(&x, in);
    fill_batch(&x, in);
    fill_others(&x, in, out);
    fill_followers(&x, in, out);
    rules_check(&x);
    if (sharding_is_solved(o))
        return;
    check_heads(&x);
    check_used(&x);
}
