/* Graphs of PyTorch: the types of inputs from a safetensors header or a text, the rest in src/fx.
 */
#include "api.h"

#include "../fx/fx.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* ---- the file ---- */

typedef struct CodeFile {
    Ctx *ctx;
    const char *data; /* all of it; NULL: it is read where it is asked for */
    int fd;
    const char *file;
} CodeFile;

static void read_code_file(void *from, void *to, int64_t n, int64_t at)
{
    const CodeFile *s = from;
    if (s->data)
        memcpy(to, s->data + at, (size_t)n);
    for (ssize_t got; !s->data && n > 0; n -= got, at += got, to = (char *)to + got) {
        got = pread(s->fd, to, (size_t)MIN(n, 1 << 30), at);
        if (got <= 0)
            fail(s->ctx, TN_FAIL, "%s: %s", s->file,
                 got ? strerror(errno) : "the file ends too early");
    }
}

static void close_code_file(void *source)
{
    close(((CodeFile *)source)->fd);
}

/* The data of a file of code, a NUL after it: of an archive of torch.export.save its graph, and
 * which of its weights are tied. */
static const char *read_code(Ctx *ctx, Arena *a, const char *path, size_t *len, Map *tied)
{
    CodeFile *s = NEW(a, CodeFile);
    *s = (CodeFile){.ctx = ctx, .file = title(path)};
    struct stat st;
    char begin[ZIP_BEGINS] = "";
    int64_t nbytes;
    if (!stat(path, &st) && S_ISREG(st.st_mode)) {
        s->fd = file_open(ctx, path, &nbytes);
        arena_defer(a, close_code_file, s);
        if (nbytes >= ZIP_BEGINS)
            read_code_file(s, begin, ZIP_BEGINS, 0);
        if (!zip_begins(begin))
            return file_read(a, path, len);
    } else {
        s->data = file_read(a, path, len);
        nbytes = (int64_t)*len;
        if (nbytes < ZIP_BEGINS || !zip_begins(s->data))
            return s->data;
    }
    const Zip *zip = zip_open(a, s->file, nbytes, read_code_file, s);
    *tied = exported_tied(a, zip);
    return fx_graph_json(zip, len);
}

static Graph *import(Arena *a, const char *path, const tn_fx_options *o, const char **summary)
{
    Ctx *ctx = arena_ctx(a);
    TypeList types = {0};
    Map tied = {.a = a};
    size_t len;
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
                    .tied = &tied,
                    .barriers = o->unknown && !strcmp(o->unknown, "barrier"),
                    .mesh = mesh_of(ctx, a, o),
                    .ngroup = o->ngroups,
                    .group = o->groups};
    if (o->unknown && strcmp(o->unknown, "refuse") && strcmp(o->unknown, "barrier"))
        fail(ctx, TN_USAGE, "--unknown: expected refuse or barrier, found \"%s\"", o->unknown);
    if (o->alias && strcmp(o->alias, "pass") && strcmp(o->alias, "stop"))
        fail(ctx, TN_USAGE, "--alias: expected pass or stop, found \"%s\"", o->alias);
    const char *data = read_code(ctx, a, path, &len, &tied),
               *code = fx_code(a, data, len, title(path));
    if (!fx_is_program(data))
        return fx_import(a, code, title(path), &fx, summary);
    Graph **made = NEW(a, Graph *);
    TRY(t, ctx) {
        *made = fx_import(a, code, title(path), &fx, summary);
        (*made)->file = NULL; /* its lines are those of code that nobody sees */
    }
    if (tried(&t))
        fx_fail_again(ctx, a, code, title(path));
    return *made;
}

int tn_graph_import_fx(tn_context *ctx, const char *path, const tn_fx_options *options,
                       tn_graph **graph, const char **summary)
{
    if (!GIVEN(ctx, ctx, path, options, graph, summary) ||
        !args_list(ctx, __func__, "options.groups", options->ngroups, options->groups))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        const char *text;
        tn_graph *g = handle_new(ctx, try_arena(&t), sizeof *g);
        g->g = import(g->h.a, path, options, &text);
        *summary = text;
        *graph = handle_keep(g);
    }
    return tried(&t);
}

int tn_fx_unknown(tn_context *ctx, const char *path, const char **text)
{
    if (!GIVEN(ctx, ctx, path, text))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx) {
        size_t len;
        Arena *a = text_arena(ctx);
        Map tied;
        const char *data = read_code(&ctx->ctx, a, path, &len, &tied);
        *text = fx_unknown(a, fx_code(a, data, len, title(path)), title(path), fx_is_program(data));
    }
    return tried(&t);
}
