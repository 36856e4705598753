/* Graphs of PyTorch: the types of inputs from a safetensors header or a text, the rest in src/fx.
 */
#include "api.h"

#include "../fx/fx.h"

#include <string.h>

typedef struct ImportArgs {
    tn_context *ctx;
    const char *path;
    const tn_fx_options *o;
    tn_graph *graph;
    const char *text;
} ImportArgs;

static const char *title(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

typedef struct TypeList {
    const char **name;
    Type *type;
    int count, capname, captype;
} TypeList;

static void add_type(Arena *a, TypeList *l, const char *name, Type t)
{
    PUSH(a, l->name, l->count, l->capname, name);
    l->count--;
    PUSH(a, l->type, l->count, l->captype, t);
}

/* Refuses the last type where its name had another. */
static void check_again(const Lexer *x, const Token *t, const TypeList *l)
{
    const Type *last = &l->type[l->count - 1];
    for (int i = 0; i < l->count - 1; i++)
        if (!strcmp(l->name[i], t->s) && !type_equal(&l->type[i], last))
            lex_fail(x, t, "input \"%s\": expected one type, found %s and %s", t->s,
                     type_text(x->a, &l->type[i]), type_text(x->a, last));
}

/* "x=f32[2, 4], ids=i64[2], block.bias=f32[4]" */
static void parse_shapes(Arena *a, const char *text, TypeList *l)
{
    Lexer x;
    lex_start(&x, a, text, "--shapes");
    do {
        Token name = lex_dotted(&x, "the name of an input");
        lex_need(&x, "=");
        add_type(a, l, name.s, lex_type(&x));
        check_again(&x, &name, l);
    } while (lex_take(&x, ","));
    if (x.t.kind != TOK_END)
        lex_expected(&x, "a comma or the end");
}

static void read_types(Arena *a, const char *path, TypeList *l)
{
    const TensorFile *f = tensors_open(a, path);
    for (int i = 0; i < f->count; i++)
        add_type(a, l, f->entry[i].name, f->entry[i].type);
}

static const Mesh *mesh_of(Ctx *ctx, Arena *a, const tn_fx_options *o)
{
    Mesh *m = o->mesh ? mesh_parse(ctx, a, o->mesh) : NULL;
    int64_t ranks = m ? mesh_nranks(m) : 1;
    if (o->rank < 0 || o->rank >= ranks)
        fail(ctx, TN_USAGE, "--rank: expected 0 to %lld, found %lld", (long long)ranks - 1,
             (long long)o->rank);
    if (m)
        mesh_set_rank(m, o->rank);
    return m;
}

static void import(void *arg)
{
    ImportArgs *x = arg;
    const tn_fx_options *o = x->o;
    TypeList types = {0};
    size_t len;
    x->graph = handle_new(x->ctx, sizeof *x->graph);
    Arena *a = x->graph->h.a;
    if (o->shapes)
        parse_shapes(a, o->shapes, &types);
    if (o->inputs)
        read_types(a, o->inputs, &types);
    FxOptions fx = {.ninput = types.count,
                    .name = types.name,
                    .type = types.type,
                    .origin = o->inputs   ? o->inputs
                              : o->shapes ? "--shapes"
                                          : NULL,
                    .all = o->shapes != NULL,
                    .loss = o->loss,
                    .params = o->params,
                    .backward = o->backward_from,
                    .alias = o->alias,
                    .mesh = mesh_of(&x->ctx->ctx, a, o),
                    .ngroup = o->ngroups,
                    .group = o->groups};
    if (o->alias && strcmp(o->alias, "pass") && strcmp(o->alias, "stop"))
        fail(&x->ctx->ctx, TN_USAGE, "--alias: expected pass or stop, found \"%s\"", o->alias);
    const char *text = file_read(a, x->path, &len);
    if (strlen(text) != len)
        fail(&x->ctx->ctx, TN_FAIL, "%s: a NUL byte", title(x->path));
    x->graph->g = fx_import(a, text, title(x->path), &fx, &x->text);
}

int tn_graph_import_fx(tn_context *ctx, const char *path, const tn_fx_options *options,
                       tn_graph **graph, const char **summary)
{
    if (!GIVEN(ctx, ctx, path, options, graph, summary) ||
        !args_list(ctx, __func__, "options.groups", options->ngroups, options->groups))
        return TN_CODE_USAGE;
    ImportArgs x = {.ctx = ctx, .path = path, .o = options};
    int code = (int)ctx_try(&ctx->ctx, import, &x);
    if (code) {
        tn_graph_free(x.graph);
        return code;
    }
    *graph = x.graph;
    *summary = x.text;
    return code;
}

static void list_unknown(void *arg)
{
    ImportArgs *x = arg;
    size_t len;
    Arena *a = text_arena(x->ctx);
    const char *text = file_read(a, x->path, &len);
    x->text = fx_unknown(a, text, title(x->path));
}

int tn_fx_unknown(tn_context *ctx, const char *path, const char **text)
{
    if (!GIVEN(ctx, ctx, path, text))
        return TN_CODE_USAGE;
    ImportArgs x = {.ctx = ctx, .path = path};
    int code = (int)ctx_try(&ctx->ctx, list_unknown, &x);
    if (!code)
        *text = x.text;
    return code;
}
