/* Graphs: reading, printing, drawing, passes. */
#include "api.h"

#include "../plan/chunk_choose.h"

#include <string.h>

/* ---- reading and printing ---- */

typedef struct ParseArgs {
    tn_context *ctx;
    const char *text, *file;
    tn_graph *graph;
} ParseArgs;

/* A file's text; a NUL byte in it would end the graph before the file does. */
static const char *read_text(Arena *a, const char *path)
{
    size_t len;
    const char *text = file_read(a, path, &len), *nul = text + strlen(text), *begin = text;
    int line = 1;
    if (nul == text + len)
        return text;
    for (const char *s = text; s < nul; s++)
        if (*s == '\n') {
            line++;
            begin = s + 1;
        }
    fail(arena_ctx(a), TN_FAIL, "%s:%d:%d: expected text, found a NUL byte", file_title(path), line,
         (int)(nul - begin) + 1);
}

static void parse(void *arg)
{
    ParseArgs *x = arg;
    x->graph = handle_new(x->ctx, sizeof *x->graph);
    Arena *a = x->graph->h.a;
    if (!x->text) {
        x->text = read_text(a, x->file);
        x->file = file_title(x->file);
    }
    x->graph->g = graph_parse(a, x->text, x->file);
    graph_verify(x->graph->g);
}

static int parse_any(tn_context *ctx, const char *text, const char *file, tn_graph **graph)
{
    ParseArgs x = {ctx, text, file, NULL};
    int code = (int)ctx_try(&ctx->ctx, parse, &x);
    if (code)
        tn_graph_free(x.graph);
    else
        *graph = x.graph;
    return code;
}

int tn_graph_parse(tn_context *ctx, const char *text, const char *file, tn_graph **graph)
{
    if (!GIVEN(ctx, ctx, text, file, graph))
        return TN_CODE_USAGE;
    return parse_any(ctx, text, file, graph);
}

int tn_graph_read(tn_context *ctx, const char *path, tn_graph **graph)
{
    if (!GIVEN(ctx, ctx, path, graph))
        return TN_CODE_USAGE;
    return parse_any(ctx, NULL, path, graph);
}

typedef struct PrintArgs {
    tn_graph *graph;
    const char *text;
} PrintArgs;

static void print(void *arg)
{
    PrintArgs *x = arg;
    Buf b = {.a = x->graph->h.a};
    graph_print(&b, x->graph->g);
    x->text = b.text;
}

int tn_graph_print(tn_graph *g, const char **text)
{
    if (!GIVEN(args_owner(g), g, text))
        return TN_CODE_USAGE;
    PrintArgs x = {g, NULL};
    int code = (int)ctx_try(&g->h.owner->ctx, print, &x);
    if (!code)
        *text = x.text;
    return code;
}

/* ---- Graphviz ---- */

static void dot_graph(Buf *b, const Graph *g, const char *prefix);

static void dot_node(Buf *b, const Node *n, const char *prefix)
{
    buf_printf(b, "  \"%sn%d\" [shape=%s, label=\"%s\\n%s\"];\n", prefix, n->id,
               n->region     ? "box3d"
               : n->op->view ? "plaintext"
                             : "box",
               n->op->name, n->scope);
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        const char *type = type_text(b->a, &v->type);
        buf_printf(b, v->def ? "  \"%sn%d\"" : "  \"%sin%d\"", prefix,
                   v->def ? v->def->id : v->index);
        buf_printf(b, " -> \"%sn%d\" [label=\"%s\"];\n", prefix, n->id, type);
    }
    EACH_BODY(t, n) {
        const char *name = t == TAIL ? "tail" : "body";
        const char *inner = arena_printf(b->a, "%s%d%s.", prefix, n->id, name);
        buf_printf(b, "  subgraph \"cluster_%s\" {\n  label=\"%s\";\n", inner, name);
        dot_graph(b, n->region->body[t], inner);
        buf_add(b, "  }\n");
    }
}

static void dot_graph(Buf *b, const Graph *g, const char *prefix)
{
    for (int i = 0; i < g->nin; i++)
        buf_printf(b, "  \"%sin%d\" [shape=ellipse, label=\"%%%s\"];\n", prefix, i,
                   g->in[i].v->name);
    for (const Node *n = g->first; n; n = n->next)
        dot_node(b, n, prefix);
    for (int i = 0; i < g->nout; i++) {
        const Value *v = g->out[i].v;
        buf_printf(b, "  \"%sout%d\" [shape=ellipse, label=\"%s %s\"];\n", prefix, i,
                   role_name(g->out[i].role), g->out[i].name ? g->out[i].name : "");
        buf_printf(b, v->def ? "  \"%sn%d\"" : "  \"%sin%d\"", prefix,
                   v->def ? v->def->id : v->index);
        buf_printf(b, " -> \"%sout%d\";\n", prefix, i);
    }
}

static void dot(void *arg)
{
    PrintArgs *x = arg;
    Buf b = {.a = x->graph->h.a};
    buf_printf(&b, "digraph \"%s\" {\n", x->graph->g->name);
    dot_graph(&b, x->graph->g, "");
    buf_add(&b, "}\n");
    x->text = b.text;
}

int tn_graph_dot(tn_graph *g, const char **text)
{
    if (!GIVEN(args_owner(g), g, text))
        return TN_CODE_USAGE;
    PrintArgs x = {g, NULL};
    int code = (int)ctx_try(&g->h.owner->ctx, dot, &x);
    if (!code)
        *text = x.text;
    return code;
}

/* ---- halves of a step ---- */

typedef struct SplitArgs {
    tn_graph *graph, *half;
    int backward;
} SplitArgs;

static void split(void *arg)
{
    SplitArgs *x = arg;
    x->half = handle_new(x->graph->h.owner, sizeof *x->half);
    x->half->g = graph_split(x->half->h.a, x->half->h.a, x->graph->g, x->backward);
}

int tn_graph_split(tn_graph *g, int backward, tn_graph **half)
{
    tn_context *ctx = args_owner(g);
    if (!GIVEN(ctx, g, half) || !WITHIN(ctx, 0, 1, backward))
        return TN_CODE_USAGE;
    SplitArgs x = {g, NULL, backward};
    int code = (int)ctx_try(&ctx->ctx, split, &x);
    if (code)
        tn_graph_free(x.half);
    else
        *half = x.half;
    return code;
}

void tn_graph_free(tn_graph *g)
{
    handle_free((Handle *)g);
}

/* ---- passes ---- */

typedef void AfterFn(void *arg, tn_graph *g, const char *pass, int changes, double sec);

typedef struct PassArgs {
    tn_graph *graph;
    const char *names;
    const tn_options *o;
    AfterFn *after;
    void *arg;
} PassArgs;

static void after_pass(void *arg, const Graph *g, const PassReport *r)
{
    PassArgs *x = arg;
    (void)g;
    if (x->after)
        x->after(x->arg, x->graph, r->name, r->changes, r->sec);
}

/* "f32" or "bf16"; NULL is f32. */
static DType get_dtype(Ctx *ctx, const char *option, const char *name)
{
    int d = name ? dtype_parse(name) : F32;
    if (d != F32 && d != BF16)
        fail(ctx, TN_USAGE, "%s: expected f32 or bf16, found \"%.50s\"", option, name);
    return (DType)d;
}

/* Once for a context: products of bf16 are correct everywhere, but not everywhere fast. */
static void warn_slow(tn_context *ctx, const tn_options *o, DType d)
{
    if (d != BF16 || ctx->warned_slow || !o->warn || matmul_fast(BF16))
        return;
    ctx->warned_slow = true;
    o->warn(o->warn_arg, "this processor has no bf16 products (AVX512_BF16, AMX): operands are "
                         "widened to f32, which is slower than --dtype f32");
}

static Policy get_policy(Ctx *ctx, const char *name)
{
    name = name ? name : "";
    for (int p = POLICY_NONE + 1; p < NPOLICY; p++)
        if (!strcmp(name, policy_name((Policy)p)))
            return (Policy)p;
    fail(ctx, TN_USAGE, "rules: expected a policy such as must_save, found \"%.50s\"", name);
}

static const PolicyRule *get_rules(Arena *a, const tn_options *o)
{
    PolicyRule *rule = NEWN(a, PolicyRule, o->nrules);
    for (int i = 0; i < o->nrules; i++)
        rule[i] = (PolicyRule){get_policy(arena_ctx(a), o->rules[i].policy),
                               o->rules[i].pattern ? o->rules[i].pattern : ""};
    return rule;
}

/* A member of PassOptions from that of tn_options, by its kind. */
/* clang-format off */
#define TAKE_FLAG(field)   .field = o->field,
#define TAKE_SWITCH(field) .field = o->field,
#define TAKE_INT(field)    .field = o->field,
#define TAKE_REAL(field)   .field = o->field,
#define TAKE_WORD(field)   .field = o->field,
#define TAKE_TEXT(field)   .field = o->field,
#define TAKE_IN(field)     .field = o->field,
#define TAKE_DTYPE(field)  .field = get_dtype(arena_ctx(a), #field, o->field),
#define TAKE_LIST(field)   .field = {o->field, o->n##field},
#define TAKE_RULES(field)  .field = get_rules(a, o), .n##field = o->n##field,
/* clang-format on */

static PassOptions pass_options(Arena *a, const tn_options *o)
{
    return (PassOptions){
#define PASS_OPTION(name, field, kind, ...)                 TAKE_##kind(field)
#define INNER_OPTION(name, field, kind, resume, value, ...) .field = value,
#include "../base/options.def"
        .warn = o->warn, .warn_arg = o->warn_arg};
}

/* A pattern for the head of a tied model means the embedding, which is both. */
static void name_tied(const tn_graph *g, Globs *p)
{
    const char *head = "lm_head.weight", **pattern = NEWN(g->h.a, const char *, p->count);
    for (int i = 0; g->tied && i < p->count; i++) {
        Globs one = {&p->pattern[i], 1};
        bool alone = globs_match(&one, head) && !globs_match(&one, g->tied);
        pattern[i] = alone ? g->tied : p->pattern[i];
    }
    if (g->tied && p->count)
        p->pattern = pattern;
}

static void run_passes(void *arg)
{
    PassArgs *x = arg;
    tn_graph *g = x->graph;
    PassOptions p = pass_options(g->h.a, x->o);
    pass_target(&p, g->h.a);
    name_tied(g, &p.freeze);
    name_tied(g, &p.no_decay);
    g->decisions.a = g->h.a;
    p.decisions = &g->decisions;
    g->chunk.a = g->h.a;
    p.filled = g->rows == g->filled ? 0 : g->filled;
    ChunkAsked asked = chunk_asked(g->h.a, &p.chunk); /* a wrong one is refused, whatever runs */
    bool chunks = asked.mode != CHUNK_OFF || asked.npattern;
    if (chunks || x->o->explain)
        p.chunk_report = &g->chunk;
    chunk_narrow(&g->h.owner->ctx, p.chunk_accumulate);
    warn_slow(g->h.owner, x->o, p.dtype);
    PassWalk w = passes_begin(g->g, x->names, &p);
    w.after = after_pass;
    w.arg = x;
    if (chunks && passes_until(&w, "chunk")) {
        int64_t goal = x->o->chunk_memory ? x->o->chunk_memory : x->o->memory;
        ChunkTask t = {&asked, plan_for(g, g->h.a, x->o), g->rows > 0, goal};
        chunk_choose(&w, &t, &p, &g->chunk);
    }
    passes_until(&w, NULL);
    warn_machine(g->h.owner, x->o);
}

int tn_graph_passes(tn_graph *g, const char *names, const tn_options *options, AfterFn *after,
                    void *arg)
{
    if (!GIVEN(args_owner(g), g, names, options) || !args_options(args_owner(g), __func__, options))
        return TN_CODE_USAGE;
    PassArgs x = {g, names, options, after, arg};
    return (int)ctx_try(&g->h.owner->ctx, run_passes, &x);
}
