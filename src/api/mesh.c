/* Tables of the parts of a graph's inputs and outputs that a mesh's ranks have: a row for each, and
 * one for each mesh axis that says what it cuts. Read from the graph's text form alone: no plan is
 * made. */
#include "api.h"

#include <string.h>

/* The graph that a table shows. */
typedef struct Show {
    Arena *a;
    const Graph *g;
    const Mesh *m;
} Show;

static const char *number(Arena *a, int64_t n)
{
    return arena_printf(a, "%lld", (long long)n);
}

static const char *or_dash(const char *text)
{
    return *text ? text : "-";
}

/* ---- ports ---- */

static const char *role_text(Role r, bool input)
{
    return r != ROLE_NONE ? role_name(r) : input ? "input" : "output";
}

static void add_port(const Show *x, Table *t, const Port *p, bool input)
{
    const Type *local = &p->v->type;
    const Type whole = cut_whole_type(local, x->m, p->cut);
    table_row(t, role_text(p->role, input),
              p->name ? p->name : arena_printf(x->a, "%%%s", p->v->name), type_text(x->a, &whole),
              type_text(x->a, local), or_dash(cuts_text(x->a, x->m, p->cut)),
              number(x->a, type_nbytes(local)), number(x->a, type_nbytes(&whole)));
}

static void add_ports(const Show *x, Table *t, const Port *p, int count, bool input)
{
    for (Role role = ROLE_NONE; role < NROLE; role++)
        for (int i = 0; i < count; i++)
            if (p[i].role == role)
                add_port(x, t, &p[i], input);
}

/* ---- mesh axes ---- */

/* Which ports a column counts: those that the axis cuts, has parts of a sum of, or leaves whole. */
typedef bool Has(const Cut *c);

static bool is_sliced(const Cut *c)
{
    return c && c->kind == CUT_SLICE;
}

static bool is_partial(const Cut *c)
{
    return c && c->kind > CUT_SLICE;
}

static bool is_whole(const Cut *c)
{
    return !c || c->kind == CUT_WHOLE;
}

static const Cut *port_cut(const Port *p, int axis)
{
    return p->cut ? &p->cut[axis] : NULL;
}

/* "param 291, state 582" */
static void count_ports(Buf *b, const Port *p, int count, bool input, int axis, Has *has)
{
    for (Role role = ROLE_NONE; role < NROLE; role++) {
        int n = 0;
        for (int i = 0; i < count; i++)
            n += p[i].role == role && has(port_cut(&p[i], axis));
        if (n)
            buf_printf(b, "%s%s %d", b->len ? ", " : "", role_text(role, input), n);
    }
}

static const char *counts_text(const Show *x, int axis, Has *has)
{
    Buf b = {.a = x->a};
    buf_add(&b, "");
    count_ports(&b, x->g->in, x->g->nin, true, axis, has);
    count_ports(&b, x->g->out, x->g->nout, false, axis, has);
    return or_dash(b.text);
}

/* Bytes of what stays from run to run that all ranks along the axis have alike; -1: of all. */
static int64_t kept_nbytes(const Show *x, int axis)
{
    int64_t nbytes = 0;
    for (int i = 0; i < x->g->nin; i++) {
        const Port *p = &x->g->in[i];
        if (role_kept(p->role) && (axis < 0 || is_whole(port_cut(p, axis))))
            nbytes += type_nbytes(&p->v->type);
    }
    return nbytes;
}

static void add_axis(const Show *x, Table *t, int axis)
{
    table_row(t, x->m->name[axis], number(x->a, x->m->size[axis]), number(x->a, x->m->at[axis]),
              number(x->a, kept_nbytes(x, axis)), counts_text(x, axis, is_sliced),
              counts_text(x, axis, is_partial), counts_text(x, axis, is_whole));
}

/* ---- both ---- */

static int64_t whole_kept_nbytes(const Show *x)
{
    int64_t nbytes = 0;
    for (int i = 0; i < x->g->nin; i++) {
        const Port *p = &x->g->in[i];
        const Type whole = cut_whole_type(&p->v->type, x->m, p->cut);
        nbytes += role_kept(p->role) ? type_nbytes(&whole) : 0;
    }
    return nbytes;
}

static void show_mesh(Buf *b, const Show *x)
{
    Table ports = {.a = x->a, .ncol = 7}, axes = {.a = x->a, .ncol = 7};
    buf_printf(b, "mesh %s: rank %lld of %lld\n", mesh_text(x->a, x->m), (long long)mesh_rank(x->m),
               (long long)mesh_nranks(x->m));
    buf_printf(b, "persistent: %lld bytes of %lld\n\n", (long long)kept_nbytes(x, -1),
               (long long)whole_kept_nbytes(x));
    table_row(&ports, "role", "name", "whole", "part", "cuts", "bytes", "of");
    add_ports(x, &ports, x->g->in, x->g->nin, true);
    add_ports(x, &ports, x->g->out, x->g->nout, false);
    table_print(b, &ports);
    buf_add(b, "\n");
    table_row(&axes, "axis", "ranks", "at", "replicated bytes", "cuts", "partial", "whole");
    for (int i = 0; i < x->m->naxes; i++)
        add_axis(x, &axes, i);
    table_print(b, &axes);
}

static const char *tables(const Graph *g, Arena *a)
{
    Buf b = {.a = a};
    graph_verify(g);
    if (!g->mesh)
        fail(g->ctx, TN_FAIL,
             "%s%sgraph %s: expected a mesh, found none; the pass spmd makes the graph "
             "of a rank",
             g->file ? g->file : "", g->file ? ": " : "", g->name);
    show_mesh(&b, &(Show){b.a, g, g->mesh});
    return b.text;
}

int tn_graph_mesh(tn_graph *g, const char **text)
{
    if (!GIVEN(args_owner(g), g, text))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx)
        *text = text_kept(g->h.a, &g->said[GRAPH_MESH], tables(g->g, try_arena(&t)));
    return tried(&t);
}
