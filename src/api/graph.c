/* Graphs: reading, printing, drawing, passes. */
#include "api.h"

#include "../decide/decide.h"
#include "../ir/diff.h"

#include <string.h>

/* ---- reading and printing ---- */

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

static tn_graph *parse(tn_graph *g, const char *text, const char *file)
{
    g->g = graph_parse(g->h.a, text, file);
    graph_verify(g->g);
    return handle_keep(g);
}

int tn_graph_parse(tn_context *ctx, const char *text, const char *file, tn_graph **graph)
{
    if (!GIVEN(ctx, ctx, text, file, graph))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        *graph = parse(handle_new(ctx, try_arena(&t), sizeof **graph), text, file);
    return tried(&t);
}

int tn_graph_read(tn_context *ctx, const char *path, tn_graph **graph)
{
    if (!GIVEN(ctx, ctx, path, graph))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        tn_graph *g = handle_new(ctx, try_arena(&t), sizeof *g);
        *graph = parse(g, read_text(g->h.a, path), file_title(path));
    }
    return tried(&t);
}

static const char *kept(tn_graph *g, GraphText which, const char *text)
{
    return text_kept(g->h.a, &g->said[which], text);
}

int tn_graph_print(tn_graph *g, const char **text)
{
    if (!GIVEN(args_owner(g), g, text))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx) {
        Buf b = {.a = try_arena(&t)};
        graph_print(&b, g->g);
        *text = kept(g, GRAPH_PRINT, b.text);
    }
    return tried(&t);
}

int tn_graph_diff(tn_graph *before, tn_graph *after, const char **text)
{
    if (!args_kin(__func__, before, after) || !GIVEN(args_owner(after), before, after, text))
        return TN_CODE_USAGE;
    TRY(t, &after->h.owner->ctx) {
        Buf b = {.a = try_arena(&t)};
        graph_diff(&b, before->g, after->g);
        *text = kept(after, GRAPH_DIFF, b.text);
    }
    return tried(&t);
}

/* ---- Graphviz ---- */

static void dot_graph(Buf *b, const Graph *g, const char *prefix);

/* Text within quotes. */
static const char *quoted(Arena *a, const char *text)
{
    Buf b = {.a = a};
    for (; *text; text++)
        buf_printf(&b, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
    return b.len ? b.text : "";
}

static void dot_node(Buf *b, const Node *n, const char *prefix)
{
    buf_printf(b, "  \"%sn%d\" [shape=%s, label=\"%s\\n%s\"];\n", prefix, n->id,
               n->region     ? "box3d"
               : n->op->view ? "plaintext"
                             : "box",
               n->op->name, quoted(b->a, n->scope));
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
                   role_name(g->out[i].role), g->out[i].name ? quoted(b->a, g->out[i].name) : "");
        buf_printf(b, v->def ? "  \"%sn%d\"" : "  \"%sin%d\"", prefix,
                   v->def ? v->def->id : v->index);
        buf_printf(b, " -> \"%sout%d\";\n", prefix, i);
    }
}

int tn_graph_dot(tn_graph *g, const char **text)
{
    if (!GIVEN(args_owner(g), g, text))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx) {
        Buf b = {.a = try_arena(&t)};
        buf_printf(&b, "digraph \"%s\" {\n", g->g->name);
        dot_graph(&b, g->g, "");
        buf_add(&b, "}\n");
        *text = kept(g, GRAPH_DOT, b.text);
    }
    return tried(&t);
}

/* ---- halves of a step ---- */

int tn_graph_split(tn_graph *g, int backward, tn_graph **half)
{
    tn_context *ctx = args_owner(g);
    if (!GIVEN(ctx, g, half) || !WITHIN(ctx, 0, 1, backward))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        tn_graph *new = handle_new(ctx, try_arena(&t), sizeof *new);
        new->g = graph_split(new->h.a, new->h.a, g->g, backward);
        *half = handle_keep(new);
    }
    return tried(&t);
}

void tn_graph_free(tn_graph *g)
{
    handle_free((Handle *)g);
}

/* ---- passes ---- */

typedef void AfterFn(void *arg, tn_graph *g, const char *pass, int changes, double sec);

/* The user's function, called after each pass. */
typedef struct AfterPass {
    AfterFn *fn; /* NULL: none */
    void *arg;
    tn_graph *graph;
} AfterPass;

static void after_pass(void *arg, const Graph *g, const PassReport *r)
{
    const AfterPass *x = arg;
    (void)g;
    if (x->fn)
        x->fn(x->arg, x->graph, r->name, r->changes, r->sec);
}

/* "f32" or "bf16"; NULL is f32. */
static DType get_dtype(Ctx *ctx, const char *option, const char *name)
{
    int d = name ? dtype_parse(name) : F32;
    if (d != F32 && d != BF16)
        fail(ctx, TN_USAGE, "%s: expected f32 or bf16, found \"%.50s\"", option, name);
    return (DType)d;
}

/* Once for a context: products of bf16 are correct everywhere, but not everywhere fast. A plan
 * for a GPU says nothing of this processor. */
static void warn_slow(tn_context *ctx, const tn_options *o, const PassOptions *p)
{
    if (p->dtype != BF16 || ctx->warned_slow || !o->warn || matmul_fast(BF16) ||
        machine_is_gpu(p->prices))
        return;
    ctx->warned_slow = true;
    o->warn(o->warn_arg,
            "this processor has no bf16 products (AMX, or AVX512_BF16 that is faster than f32's): "
            "operands are widened to f32, which is slower than --dtype f32");
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
#define TAKE_AUTO(field)   .field = o->field,
#define TAKE_REAL(field)   .field = o->field,
#define TAKE_WORD(field)   .field = o->field,
#define TAKE_TEXT(field)   .field = o->field,
#define TAKE_IN(field)     .field = o->field,
#define TAKE_DTYPE(field)  .field = get_dtype(arena_ctx(a), #field, o->field),
#define TAKE_LIST(field)   .field = {o->field, o->n##field},
#define TAKE_RULES(field)  .field = get_rules(a, o), .n##field = o->n##field,
#define INNER_INT(value)   value
#define INNER_LIST(value)  {value, 0}
/* clang-format on */

static PassOptions pass_options(Arena *a, const tn_options *o)
{
    return (PassOptions){
#define PASS_OPTION(name, field, kind, ...)                 TAKE_##kind(field)
#define INNER_OPTION(name, field, kind, resume, value, ...) .field = INNER_##kind(value),
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

PassWalk begin_passes(tn_graph *g, const char *names, const tn_options *o, PassOptions *p,
                      ChunkAsked *asked)
{
    *p = pass_options(g->h.a, o);
    pass_target(p, g->h.a);
    name_tied(g, &p->freeze);
    name_tied(g, &p->no_decay);
    p->adapters = g->adapters;
    p->asked_shardings = g->asked_shardings;
    p->filled = g->rows == g->filled ? 0 : g->filled;
    *asked = chunk_asked(g->h.a, &p->chunk); /* a wrong one is refused, whatever runs */
    chunk_narrow(&g->h.owner->ctx, p->chunk_accumulate);
    warn_slow(g->h.owner, o, p);
    return passes_begin(g->g, names, p);
}

static void run_passes(tn_graph *g, const char *names, const tn_options *o, AfterPass *after)
{
    PassOptions p;
    ChunkAsked asked;
    PassWalk w = begin_passes(g, names, o, &p, &asked);
    bool chunks = asked.mode != CHUNK_OFF || asked.npattern;
    g->decisions.a = g->chunk.a = g->again.a = g->h.a;
    g->decisions.all = o->explain;
    p.decisions = &g->decisions;
    p.shard_report = &g->sharded;
    g->sharded =
        (ShardReport){.a = g->h.a, .unpriced = g->unpriced, .asks = g->asks, .known = g->known};
    if (chunks || o->explain)
        p.chunk_report = &g->chunk;
    w.after = after_pass;
    w.arg = after;
    int64_t goal = o->goal_memory ? o->goal_memory : o->memory;
    if (chunks || goal) {
        DecideTask t = {.to = plan_for(g->h.owner, o, p.device, p.prices),
                        .ordered = g->rows > 0 || g->reorder,
                        .keeps = true,
                        .memory = goal,
                        .chunk = &asked,
                        .decided = o->decided};
        decide(&w, &t, &p, &(Decided){&g->chunk, &g->again});
    }
    passes_until(&w, NULL);
    warn_machine(g->h.owner, o);
}

int tn_graph_passes_have(tn_graph *g, const char *names, const char *pass, int *has)
{
    if (!GIVEN(args_owner(g), g, names, pass, has))
        return TN_CODE_USAGE;
    *has = passes_have_of(g->g, names, pass);
    return 0;
}

int tn_graph_passes(tn_graph *g, const char *names, const tn_options *options, AfterFn *after,
                    void *arg)
{
    if (!GIVEN(args_owner(g), g, names, options) || !args_options(args_owner(g), __func__, options))
        return TN_CODE_USAGE;
    TRY(t, &g->h.owner->ctx)
        run_passes(g, names, options, &(AfterPass){after, arg, g});
    return tried(&t);
}
