/* Tokenizers: texts and token files. */
#include "api.h"

#include <string.h>

typedef struct OpenArgs {
    tn_context *ctx;
    const char *path;
    tn_tokenizer *tokenizer;
} OpenArgs;

static void open_tokenizer(void *arg)
{
    OpenArgs *x = arg;
    tn_tokenizer *t = x->tokenizer = handle_new(x->ctx, sizeof *t);
    bool bytes = !strcmp(x->path, "bytes"); /* whatever folder has that name */
    const char *folder = bytes ? NULL : model_folder(t->h.a, x->path);
    t->t = tokenizer_open(t->h.a, folder ? folder : x->path);
    t->text.a = t->h.a;
}

int tn_tokenizer_open(tn_context *ctx, const char *path, tn_tokenizer **tokenizer)
{
    if (!GIVEN(ctx, ctx, path, tokenizer))
        return TN_CODE_USAGE;
    OpenArgs x = {ctx, path, NULL};
    int code = (int)ctx_try(&ctx->ctx, open_tokenizer, &x);
    if (code)
        tn_tokenizer_free(x.tokenizer);
    else
        *tokenizer = x.tokenizer;
    return code;
}

int64_t tn_tokenizer_limit(const tn_tokenizer *t)
{
    if (!GIVEN(args_owner(t), t))
        return 0;
    return tokenizer_limit(t->t);
}

int64_t tn_tokenizer_find(const tn_tokenizer *t, const char *text)
{
    if (!GIVEN(args_owner(t), t, text))
        return -1;
    return tokenizer_find(t->t, text);
}

/* ---- texts ---- */

typedef struct TextArgs {
    tn_tokenizer *t;
    const char *text;
    size_t nbytes;
    bool special;
    int64_t count;
    const int64_t *ids;
} TextArgs;

static void put(void *arg, const uint32_t *id, size_t n)
{
    tn_tokenizer *t = arg;
    if (n > (size_t)(INT32_MAX / 4 - t->count))
        fail(&t->h.owner->ctx, TN_FAIL, "the text has too many tokens");
    for (size_t i = 0; i < n; i++)
        PUSH(t->h.a, t->ids, t->count, t->cap, id[i]);
}

static void encode(void *arg)
{
    TextArgs *x = arg;
    tn_tokenizer *t = x->t;
    if (!t->e)
        t->e = encoder_new(t->h.a, t->t, put, t);
    t->count = 0;
    encoder_begin(t->e, "text");
    if (x->special)
        encoder_put_special(t->e, false);
    encoder_feed(t->e, x->text, x->nbytes);
    encoder_end(t->e);
    if (x->special)
        encoder_put_special(t->e, true);
}

int tn_tokenizer_encode(tn_tokenizer *t, const char *text, size_t nbytes, int special,
                        const int64_t **ids, int64_t *count)
{
    if (!GIVEN(args_owner(t), t, ids, count) || (nbytes && !GIVEN(args_owner(t), text)))
        return TN_CODE_USAGE;
    TextArgs x = {.t = t, .text = text, .nbytes = nbytes, .special = special != 0};
    int code = (int)ctx_try(&t->h.owner->ctx, encode, &x);
    *ids = code ? NULL : t->ids;
    *count = code ? 0 : t->count;
    return code;
}

static void put_decoded(TextArgs *x, bool begins)
{
    tn_tokenizer *t = x->t;
    t->text.len = 0;
    buf_add(&t->text, "");
    if (!t->d)
        t->d = decoder_new(t->h.a, t->t);
    if (begins)
        decoder_begin(t->d);
    for (int64_t i = 0; i < x->count; i++)
        if (!decoder_put(t->d, x->ids[i], &t->text))
            fail(&t->h.owner->ctx, TN_FAIL, "token %lld is %lld, which the tokenizer does not have",
                 (long long)i, (long long)x->ids[i]);
}

static void decode(void *arg)
{
    TextArgs *x = arg;
    put_decoded(x, true);
    decoder_end(x->t->d, &x->t->text);
}

static void decode_begin(void *arg)
{
    put_decoded(arg, true);
}

static void decode_next(void *arg)
{
    TextArgs *x = arg;
    put_decoded(x, false);
    if (!x->count)
        decoder_end(x->t->d, &x->t->text);
}

static int give_text(TextArgs *x, void (*fn)(void *arg), const char **text, size_t *nbytes)
{
    int code = (int)ctx_try(&x->t->h.owner->ctx, fn, x);
    *text = code ? NULL : x->t->text.text;
    *nbytes = code ? 0 : x->t->text.len;
    return code;
}

int tn_tokenizer_decode(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                        size_t *nbytes)
{
    if (!GIVEN(args_owner(t), t, text, nbytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(t), ids)))
        return TN_CODE_USAGE;
    TextArgs x = {.t = t, .count = count, .ids = ids};
    return give_text(&x, decode, text, nbytes);
}

int tn_tokenizer_decode_begin(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                              size_t *nbytes)
{
    if (!GIVEN(args_owner(t), t, text, nbytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(t), ids)))
        return TN_CODE_USAGE;
    TextArgs x = {.t = t, .count = count, .ids = ids};
    return give_text(&x, decode_begin, text, nbytes);
}

int tn_tokenizer_decode_next(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                             size_t *nbytes)
{
    if (!GIVEN(args_owner(t), t, text, nbytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(t), ids)))
        return TN_CODE_USAGE;
    TextArgs x = {.t = t, .count = count, .ids = ids};
    return give_text(&x, decode_next, text, nbytes);
}

/* ---- files ---- */

typedef struct FileArgs {
    tn_tokenizer *t;
    Arena *a;
    int npath;
    const char *const *path;
    const char *output;
    const tn_tokenize_options *options;
    TokenizeOptions o;
    int64_t count;
    TokenType type;
} FileArgs;

static bool progress(void *arg, int64_t done, int64_t total)
{
    const tn_tokenize_options *o = arg;
    return !o->progress(o->progress_arg, done, total);
}

static void fill_options(FileArgs *x)
{
    const tn_tokenize_options *o = x->options;
    int type = token_type_parse(o->token_type ? o->token_type : "auto");
    if (type < 0)
        fail(&x->t->h.owner->ctx, TN_USAGE,
             "token type: expected auto, byte, u16 or u32, found \"%s\"", o->token_type);
    x->o = (TokenizeOptions){.type = (TokenType)type,
                             .special = o->special != 0,
                             .end = o->end,
                             .progress = o->progress ? progress : NULL,
                             .arg = (void *)(uintptr_t)o,
                             .warn = o->warn,
                             .warn_arg = o->warn_arg};
}

static void tokenize(void *arg)
{
    FileArgs *x = arg;
    fill_options(x);
    x->count = tokenize_files(x->a, x->t->t, x->npath, x->path, x->output, &x->o, &x->type);
}

int tn_tokenize(tn_tokenizer *t, int npath, const char *const *path, const char *output,
                const tn_tokenize_options *options, int64_t *count, int *width)
{
    if (!GIVEN(args_owner(t), t, output, options, count, width) ||
        !WITHIN(args_owner(t), 1, INT32_MAX, npath) ||
        !args_list(args_owner(t), __func__, "path", npath, path))
        return TN_CODE_USAGE;
    FileArgs x = {.t = t, .npath = npath, .path = path, .output = output, .options = options};
    int code = try_aside(t->h.owner, &x.a, tokenize, &x);
    *count = x.count;
    *width = code ? 0 : token_width(x.type);
    return code;
}

static void detokenize(void *arg)
{
    FileArgs *x = arg;
    fill_options(x);
    x->count = detokenize_file(x->a, x->t->t, x->path[0], x->output, &x->o);
}

int tn_detokenize(tn_tokenizer *t, const char *path, const char *output,
                  const tn_tokenize_options *options, int64_t *count)
{
    if (!GIVEN(args_owner(t), t, path, output, options, count))
        return TN_CODE_USAGE;
    FileArgs x = {.t = t, .npath = 1, .path = &path, .output = output, .options = options};
    int code = try_aside(t->h.owner, &x.a, detokenize, &x);
    *count = x.count;
    return code;
}

void tn_tokenizer_free(tn_tokenizer *t)
{
    handle_free((Handle *)t);
}
