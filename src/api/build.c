/* Builds graphs node by node. A call that fails adds nothing; rules of whole graphs (unique names,
 * roles) are checked by the next pass or plan. */
#include "api.h"

#include <string.h>

static bool name_valid(const char *s)
{
    return *s && !s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")];
}

int tn_graph_new(tn_context *ctx, const char *name, tn_graph **graph)
{
    if (!GIVEN(ctx, ctx, name, graph))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        if (!name_valid(name))
            fail(t.ctx, TN_USAGE, "graph \"%.200s\": expected a name of [A-Za-z0-9_.]", name);
        tn_graph *g = handle_new(ctx, try_arena(&t), sizeof *g);
        g->g = graph_new(g->h.a, name);
        *graph = handle_keep(g);
    }
    return tried(&t);
}

/* A role of inputs, or of outputs, with a name where it has to have one. */
static Role find_role(Graph *g, const char *role, const char *name, bool input)
{
    role = role ? role : "";
    for (int r = 0; r < NROLE; r++) {
        if (strcmp(role_name(r), role) || (r != ROLE_NONE && (r < ROLE_LOSS) != input))
            continue;
        bool named = name && *name;
        if (role_named(r) != named)
            fail(g->ctx, TN_USAGE, "role \"%s\": expected %s, found %s%.200s", role,
                 role_named(r) ? "a name" : "no name", named ? "" : "none", named ? name : "");
        return r;
    }
    const char *names[NROLE];
    char text[400];
    int n = 0;
    for (int r = 0; r < NROLE; r++)
        if (r != ROLE_NONE && (r < ROLE_LOSS) == input)
            names[n++] = role_name(r);
    fail(g->ctx, TN_USAGE, "role of an %s: found \"%.200s\"%s, and \"\" for none",
         input ? "input" : "output", role, names_hint(role, names, n, text, sizeof text));
}

static const char *null_if_empty(const char *s)
{
    return s && *s ? s : NULL;
}

_Noreturn static void fail_dtype(Ctx *ctx, const char *name, const char *dtype)
{
    const char *names[NDTYPE];
    char text[200];
    for (int d = 0; d < NDTYPE; d++)
        names[d] = dtype_name(d);
    fail(ctx, TN_USAGE, "input \"%.200s\": unknown dtype \"%.50s\"%s", name, dtype,
         names_hint(dtype, names, NDTYPE, text, sizeof text));
}

static Type input_type(Graph *g, const char *name, const char *dtype, int rank,
                       const int64_t *shape)
{
    int d = dtype_parse(dtype);
    if (!name_valid(name) || map_find(&g->names, name))
        fail(g->ctx, TN_USAGE, "input \"%.200s\": expected a name that is free, of [A-Za-z0-9_.]",
             name);
    if (d < 0)
        fail_dtype(g->ctx, name, dtype);
    if (rank < 0 || rank > TN_RANK)
        fail(g->ctx, TN_USAGE, "input \"%.200s\": expected rank 0 to %d, found %d", name, TN_RANK,
             rank);
    Type t = type_make((DType)d, rank, shape);
    const char *wrong = type_fault(&t);
    if (wrong)
        fail(g->ctx, TN_USAGE,
             "input \"%.200s\": expected a type of sizes from 0 and at most 2^56 bytes, found %s: "
             "%s",
             name, type_text(g->a, &t), wrong);
    return t;
}

int tn_graph_input(tn_graph *g, const char *name, const char *dtype, int rank, const int64_t *shape,
                   const char *role, const char *role_name, tn_value **value)
{
    if (!GIVEN(args_owner(g), g, name, dtype, value))
        return TN_CODE_USAGE;
    if (rank > 0 && !GIVEN(args_owner(g), shape))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx) {
        Type type = input_type(g->g, name, dtype, rank, shape);
        Role r = find_role(g->g, role, role_name, true);
        *value = (tn_value *)graph_input(g->g, name, type, r, null_if_empty(role_name));
    }
    return tried(&t);
}

static Phase find_phase(Ctx *ctx, const char *name)
{
    for (int p = 0; p < NPHASE; p++)
        if (!strcmp(phase_name(p), name ? name : "forward"))
            return p;
    const char *names[NPHASE];
    char text[200];
    for (int p = 0; p < NPHASE; p++)
        names[p] = phase_name(p);
    fail(ctx, TN_USAGE, "unknown phase \"%.200s\"%s", name,
         names_hint(name, names, NPHASE, text, sizeof text));
}

/* The value, which must be one of this graph. */
static Value *get_value(Graph *g, tn_value *value, const char *what, int i)
{
    Value *v = (Value *)value;
    if (!v || map_find(&g->names, v->name) != v)
        fail(g->ctx, TN_USAGE, "%s %d: expected a value of graph %s, found %s", what, i, g->name,
             v ? "one of another graph" : "NULL");
    return v;
}

/* Random ops draw from streams of their own: 0, 1, ... in the order of construction. */
static int64_t next_stream(const Graph *g, const Op *op)
{
    int64_t stream = -1;
    if (op->class != CLASS_RANDOM)
        return stream;
    for (const Node *n = g->first; n; n = n->next)
        stream = MAX(stream, n->stream);
    return stream + 1;
}

static const Node *add_node(Build *b, const char *name, int nin, tn_value *const *value,
                            const char *attributes, int nout)
{
    Graph *g = b->g;
    const Op *op = op_get(g->ctx, name);
    Value **in = NEWN(g->a, Value *, nin);
    for (int i = 0; i < nin; i++)
        in[i] = get_value(g, value[i], "operand", i);
    Attr *attr = attrs_parse(g, op, attributes ? attributes : "");
    Node *n = emit_named(b, op, nin, in, attr, NULL, next_stream(g, op), NULL, -1);
    if (n->nout != nout) {
        node_unlink(g, n);
        fail(g->ctx, TN_USAGE, "%s: has %d results, found room for %d", op->name, n->nout, nout);
    }
    return n;
}

int tn_graph_node(tn_graph *g, const char *op, int nin, tn_value *const *in, const char *attributes,
                  const char *scope, const char *phase, int nout, tn_value **out)
{
    if (!GIVEN(args_owner(g), g, op) || !WITHIN(args_owner(g), 0, MOST_PORTS, nin, nout) ||
        (nin && !GIVEN(args_owner(g), in)) || (nout && !GIVEN(args_owner(g), out)))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx) {
        Build b = {.g = g->g,
                   .phase = find_phase(t.ctx, phase),
                   .scope = arena_strdup(g->h.a, scope ? scope : "")};
        const Node *n = add_node(&b, op, nin, in, attributes, nout);
        for (int k = 0; k < nout; k++)
            out[k] = (tn_value *)n->out[k];
    }
    return tried(&t);
}

int tn_graph_output(tn_graph *g, tn_value *value, const char *role, const char *role_name)
{
    if (!GIVEN(args_owner(g), g, value))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx)
        graph_output(g->g, get_value(g->g, value, "output", g->g->nout),
                     find_role(g->g, role, role_name, false), null_if_empty(role_name));
    return tried(&t);
}
