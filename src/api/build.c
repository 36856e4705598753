/* Builds graphs node by node. A call that fails adds nothing; rules of whole graphs (unique names,
 * roles) are checked by the next pass or plan. */
#include "api.h"

#include <string.h>

typedef struct BuildArgs {
    tn_context *ctx;
    tn_graph *graph;
    const char *name, *dtype, *role, *role_name, *attributes, *scope, *phase;
    int rank, nin, nout;
    const int64_t *shape;
    tn_value *const *in;
    tn_value *value, **out;
} BuildArgs;

static bool name_valid(const char *s)
{
    return *s && !s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")];
}

static void make(void *arg)
{
    BuildArgs *x = arg;
    if (!name_valid(x->name))
        fail(&x->ctx->ctx, TN_USAGE, "graph \"%.200s\": expected a name of [A-Za-z0-9_.]", x->name);
    x->graph = handle_new(x->ctx, sizeof *x->graph);
    x->graph->g = graph_new(x->graph->h.a, x->name);
}

int tn_graph_new(tn_context *ctx, const char *name, tn_graph **graph)
{
    if (!GIVEN(ctx, ctx, name, graph))
        return TN_CODE_USAGE;
    BuildArgs x = {.ctx = ctx, .name = name};
    int code = (int)ctx_try(&ctx->ctx, make, &x);
    if (code)
        tn_graph_free(x.graph);
    else
        *graph = x.graph;
    return code;
}

/* A role of inputs, or of outputs, with a name where it has to have one. */
static Role find_role(Graph *g, const BuildArgs *x, bool input)
{
    const char *role = x->role ? x->role : "";
    for (int r = 0; r < NROLE; r++) {
        if (strcmp(role_name(r), role) || (r != ROLE_NONE && (r < ROLE_LOSS) != input))
            continue;
        bool named = x->role_name && *x->role_name;
        if (role_named(r) != named)
            fail(g->ctx, TN_USAGE, "role \"%s\": expected %s, found %s%.200s", role,
                 role_named(r) ? "a name" : "no name", named ? "" : "none",
                 named ? x->role_name : "");
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

_Noreturn static void fail_dtype(Ctx *ctx, const BuildArgs *x)
{
    const char *names[NDTYPE];
    char text[200];
    for (int d = 0; d < NDTYPE; d++)
        names[d] = dtype_name(d);
    fail(ctx, TN_USAGE, "input \"%.200s\": unknown dtype \"%.50s\"%s", x->name, x->dtype,
         names_hint(x->dtype, names, NDTYPE, text, sizeof text));
}

static void add_input(void *arg)
{
    BuildArgs *x = arg;
    Graph *g = x->graph->g;
    int d = dtype_parse(x->dtype);
    if (!name_valid(x->name) || map_find(&g->names, x->name))
        fail(g->ctx, TN_USAGE, "input \"%.200s\": expected a name that is free, of [A-Za-z0-9_.]",
             x->name);
    if (d < 0)
        fail_dtype(g->ctx, x);
    if (x->rank < 0 || x->rank > TN_RANK)
        fail(g->ctx, TN_USAGE, "input \"%.200s\": expected rank 0 to %d, found %d", x->name,
             TN_RANK, x->rank);
    Type t = type_make((DType)d, x->rank, x->shape);
    const char *wrong = type_fault(&t);
    if (wrong)
        fail(g->ctx, TN_USAGE,
             "input \"%.200s\": expected a type of sizes from 0 and at most 2^56 bytes, found %s: "
             "%s",
             x->name, type_text(g->a, &t), wrong);
    x->value =
        (tn_value *)graph_input(g, x->name, t, find_role(g, x, true), null_if_empty(x->role_name));
}

int tn_graph_input(tn_graph *g, const char *name, const char *dtype, int rank, const int64_t *shape,
                   const char *role, const char *role_name, tn_value **value)
{
    if (!GIVEN(args_owner(g), g, name, dtype, value))
        return TN_CODE_USAGE;
    if (rank > 0 && !GIVEN(args_owner(g), shape))
        return TN_CODE_USAGE;
    BuildArgs x = {.graph = g,
                   .name = name,
                   .dtype = dtype,
                   .rank = rank,
                   .shape = shape,
                   .role = role,
                   .role_name = role_name};
    int code = (int)ctx_try(&g->h.owner->ctx, add_input, &x);
    if (!code)
        *value = x.value;
    return code;
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

static void add_node(void *arg)
{
    BuildArgs *x = arg;
    Graph *g = x->graph->g;
    Build b = {.g = g,
               .phase = find_phase(g->ctx, x->phase),
               .scope = arena_strdup(g->a, x->scope ? x->scope : "")};
    const Op *op = op_get(g->ctx, x->name);
    Value **in = NEWN(g->a, Value *, x->nin);
    for (int i = 0; i < x->nin; i++)
        in[i] = get_value(g, x->in[i], "operand", i);
    Attr *attr = attrs_parse(g, op, x->attributes ? x->attributes : "");
    Node *n = emit_named(&b, op, x->nin, in, attr, NULL, next_stream(g, op), NULL, -1);
    if (n->nout != x->nout) {
        node_unlink(g, n);
        fail(g->ctx, TN_USAGE, "%s: has %d results, found room for %d", op->name, n->nout, x->nout);
    }
    for (int k = 0; k < n->nout; k++)
        x->out[k] = (tn_value *)n->out[k];
}

int tn_graph_node(tn_graph *g, const char *op, int nin, tn_value *const *in, const char *attributes,
                  const char *scope, const char *phase, int nout, tn_value **out)
{
    if (!GIVEN(args_owner(g), g, op) || !WITHIN(args_owner(g), 0, MOST_PORTS, nin, nout) ||
        (nin && !GIVEN(args_owner(g), in)) || (nout && !GIVEN(args_owner(g), out)))
        return TN_CODE_USAGE;
    BuildArgs x = {.graph = g,
                   .name = op,
                   .nin = nin,
                   .in = in,
                   .attributes = attributes,
                   .scope = scope,
                   .phase = phase,
                   .nout = nout,
                   .out = out};
    return (int)ctx_try(&g->h.owner->ctx, add_node, &x);
}

static void add_output(void *arg)
{
    BuildArgs *x = arg;
    Graph *g = x->graph->g;
    graph_output(g, get_value(g, x->value, "output", g->nout), find_role(g, x, false),
                 null_if_empty(x->role_name));
}

int tn_graph_output(tn_graph *g, tn_value *value, const char *role, const char *role_name)
{
    if (!GIVEN(args_owner(g), g, value))
        return TN_CODE_USAGE;
    BuildArgs x = {.graph = g, .value = value, .role = role, .role_name = role_name};
    return (int)ctx_try(&g->h.owner->ctx, add_output, &x);
}
