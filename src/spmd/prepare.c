/* prepare: rewrites the whole graph before the walk.
 *
 * It casts parameters before they are gathered (cast_before_gather.c), and moves nodes into loops
 * or out of them (ports.c). norm_of gets limb arrays (op/sum_squares.c), which ranks add: one array
 * for all gradients that are cut alike, so that one reduction of 24 numbers makes the norm. Linear
 * in the nodes. */
#include "rewrite.h"

#include <string.h>

/* By value id of a gradient: the mesh axes that cut its parameter. */
static unsigned *find_masks(const Graph *g, Arena *tmp, const Mesh *m, const Sharding *in)
{
    unsigned *mask = NEWN(tmp, unsigned, g->nvalue);
    for (const Node *n = g->last; n; n = n->prev) {
        if (n->op->class == CLASS_OPTIMIZER && n->nin > 1 && !n->in[0]->def)
            for (int c = 0; c < m->naxes; c++)
                mask[n->in[1]->id] |= (unsigned)(in[n->in[0]->index].cut[c].kind == CUT_SLICE) << c;
        if (n->op->view)
            mask[n->in[0]->id] |= mask[n->out[0]->id];
    }
    return mask;
}

/* The limb array of a tensor. */
static Value *squares_of(Build *b, Value *x)
{
    return emit1(b, "sum_squares", IN(x), NOATTRS);
}

/* The sum of limb arrays, or of those of tensors. */
static Value *sum_arrays(Build *b, Value *const *x, int count, bool tensors)
{
    const int64_t zero[] = {0};
    Value **row = NEWN(b->g->a, Value *, count);
    for (int i = 0; i < count; i++) {
        row[i] = tensors ? squares_of(b, x[i]) : x[i];
        if (count == 1)
            return row[i];
        row[i] = emit1(b, "unsqueeze", IN(row[i]), ATTRS(A_INT("dim", 0)));
    }
    Value *all = emit1(b, "cat", count, row, ATTRS(A_INT("dim", 0)));
    return emit1(b, "sum", IN(all), ATTRS(A_INTS("dim", 1, zero)));
}

static void unfold_norm(Graph *g, Arena *tmp, const Mesh *m, const unsigned *mask, Node *n)
{
    Value **in = NEWN(tmp, Value *, n->nin), **group = NEWN(tmp, Value *, n->nin);
    Build b = build_like(g, n, n);
    int nin = 0;
    for (unsigned axes = 0; axes < 1U << m->naxes; axes++) {
        int count = 0;
        for (int i = 0; i < n->nin; i++)
            if (dtype_float(n->in[i]->type.dtype) && mask[n->in[i]->id] == axes)
                group[count++] = n->in[i];
        if (count)
            in[nin++] = sum_arrays(&b, group, count, true);
    }
    for (int i = 0; i < n->nin; i++)
        if (!dtype_float(n->in[i]->type.dtype))
            in[nin++] = n->in[i];
    n->in = NEWN(g->a, Value *, nin);
    memcpy(n->in, in, sizeof *in * (size_t)nin);
    n->nin = nin;
}

static void unfold_norms(Graph *g, Arena *tmp, const Mesh *m, const Sharding *in)
{
    const unsigned *mask = find_masks(g, tmp, m, in);
    EACH_NODE(n, g)
        if (node_is(n, OP_norm_of))
            unfold_norm(g, tmp, m, mask, n);
}

/* ---- where all is chosen at once ---- */

/* The scope in which a value is made, of a loop's result that in the body. */
static const char *made_scope(const Value *v)
{
    const Node *n = v->def;
    if (n->op->region != LOOP)
        return n->scope;
    const PortOut *p = &n->region->out[v->index];
    int body = p->at[MAIN] >= 0 ? MAIN : TAIL;
    const Value *yielded = n->region->body[body]->out[p->at[body]].v;
    return yielded->def ? yielded->def->scope : n->scope;
}

/* Squares are added up where the tensor was made, so that equal blocks have equal nodes. */
static void take_squares(Graph *g, Node *n)
{
    for (int i = 0; i < n->nin; i++) {
        Build b = build_like(g, n, n);
        if (!dtype_float(n->in[i]->type.dtype))
            continue;
        if (n->in[i]->def)
            b.scope = made_scope(n->in[i]);
        n->in[i] = squares_of(&b, n->in[i]);
    }
}

void spmd_prepare_choice(Graph *g, Arena *tmp, const Spmd *x, const Sharding *in)
{
    Gathered all = {NEWN(tmp, bool, g->nin), g->nin}; /* any parameter may be gathered */
    for (int i = 0; i < g->nin; i++)
        all.is[i] = g->in[i].role == ROLE_PARAM;
    spmd_narrow_embeddings(g, tmp, &all);
    spmd_ports(g, tmp, x->o, x->mesh, in, &all, x->keep);
    EACH_NODE(n, g)
        if (node_is(n, OP_norm_of))
            take_squares(g, n);
}

/* Adds up those limb arrays that are chosen to have the same form. */
static void sum_chosen(Graph *g, Arena *tmp, const Spmd *x, Node *n)
{
    Value **in = NEWN(tmp, Value *, n->nin), **group = NEWN(tmp, Value *, n->nin);
    const Strategy **t = (const Strategy **)NEWN(tmp, Strategy *, n->nin);
    bool *taken = NEWN(tmp, bool, n->nin);
    Build b = build_like(g, n, n);
    int nin = 0;
    for (int i = 0; i < n->nin; i++)
        t[i] = n->in[i]->def ? x->picker->pick(x->picker->arg, NULL, n->in[i]->def) : NULL;
    for (int i = 0; i < n->nin; i++) {
        int count = 0;
        for (int k = i; k < n->nin && !taken[i] && t[i]; k++)
            if (!taken[k] && t[k] && cuts_equal(x->mesh->naxes, t[i]->out[0], t[k]->out[0])) {
                taken[k] = k > i;
                group[count++] = n->in[k];
            }
        if (!taken[i])
            in[nin++] = count ? sum_arrays(&b, group, count, false) : n->in[i];
    }
    n->in = NEWN(g->a, Value *, nin);
    memcpy(n->in, in, sizeof *in * (size_t)nin);
    n->nin = nin;
}

void spmd_prepare_chosen(Graph *g, Arena *tmp, const Spmd *x)
{
    EACH_NODE(n, g)
        if (node_is(n, OP_norm_of))
            sum_chosen(g, tmp, x, n);
}

/* Rules may leave every parameter whole, or where it is computed with: nothing can be kept. */
static void warn_reshard(const Graph *g, const PassOptions *o, const Mesh *m, const Gathered *p)
{
    for (int i = 0; i < p->nin; i++)
        if (p->is[i])
            return;
    if (o->warn)
        o->warn(o->warn_arg,
                arena_printf(g->a,
                             "spmd: reshard never changes nothing on the mesh %s: no parameter is "
                             "gathered",
                             mesh_text(g->a, m)));
}

void spmd_prepare(Graph *g, Arena *tmp, const PassOptions *o, const Mesh *m, const Sharding *in)
{
    Gathered p = graph_gathered(g, tmp, m, in);
    bool keep = gathers_are_kept(o);
    if (keep)
        warn_reshard(g, o, m, &p);
    unfold_norms(g, tmp, m, in);
    spmd_cast_before_gather(g, tmp, &p, o->dtype);
    spmd_ports(g, tmp, o, m, in, &p, keep);
}
