/* Tokenizers: texts and token files. */
#include "api.h"

#include <string.h>

static tn_tokenizer *open_tokenizer(tn_context *ctx, Arena *call, const char *path)
{
    tn_tokenizer *t = handle_new(ctx, call, sizeof *t);
    bool bytes = !strcmp(path, "bytes"); /* whatever folder has that name */
    const char *folder = bytes ? NULL : model_folder(t->h.a, path);
    t->t = tokenizer_open(t->h.a, folder ? folder : path);
    t->text.a = t->h.a;
    return t;
}

int tn_tokenizer_open(tn_context *ctx, const char *path, tn_tokenizer **tokenizer)
{
    if (!GIVEN(ctx, ctx, path, tokenizer))
        return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        *tokenizer = handle_keep(open_tokenizer(ctx, try_arena(&t), path));
    return tried(&t);
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

int tn_tokenizer_bytes(tn_tokenizer *t, int64_t count, int32_t *bytes)
{
    if (!GIVEN(args_owner(t), t, bytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count))
        return TN_CODE_USAGE;
    TRY(call, &t->h.owner->ctx) {
        Decoder *d = decoder_new(try_arena(&call), t->t);
        Buf tmp = {.a = arena_tmp(try_arena(&call))};
        for (int64_t id = 0; id < count; id++)
            bytes[id] = (int32_t)decoder_bytes(d, id, &tmp);
    }
    return tried(&call);
}

/* ---- texts ---- */

static void put(void *arg, const uint32_t *id, size_t n)
{
    tn_tokenizer *t = arg;
    if (n > (size_t)(INT32_MAX / 4 - t->count))
        fail(&t->h.owner->ctx, TN_FAIL, "the text has too many tokens");
    for (size_t i = 0; i < n; i++)
        PUSH(t->h.a, t->ids, t->count, t->cap, id[i]);
}

static void encode(tn_tokenizer *t, const char *text, size_t nbytes, bool special)
{
    if (!t->e)
        t->e = encoder_new(t->h.a, t->t, put, t);
    t->count = 0;
    encoder_begin(t->e, "text");
    if (special)
        encoder_put_special(t->e, false);
    encoder_feed(t->e, text, nbytes);
    encoder_end(t->e);
    if (special)
        encoder_put_special(t->e, true);
}

int tn_tokenizer_encode(tn_tokenizer *t, const char *text, size_t nbytes, int special,
                        const int64_t **ids, int64_t *count)
{
    if (!GIVEN(args_owner(t), t, ids, count) || (nbytes && !GIVEN(args_owner(t), text)))
        return TN_CODE_USAGE;
    *ids = NULL;
    *count = 0;
    TRY(call, &t->h.owner->ctx) {
        encode(t, text, nbytes, special);
        *ids = t->ids;
        *count = t->count;
    }
    return tried(&call);
}

static void decode(tn_tokenizer *t, int64_t count, const int64_t *ids, bool begins, bool ends)
{
    t->text.len = 0;
    buf_add(&t->text, "");
    if (!t->d)
        t->d = decoder_new(t->h.a, t->t);
    if (begins)
        decoder_begin(t->d);
    for (int64_t i = 0; i < count; i++)
        if (!decoder_put(t->d, ids[i], &t->text))
            fail(&t->h.owner->ctx, TN_FAIL, "token %lld is %lld, which the tokenizer does not have",
                 (long long)i, (long long)ids[i]);
    if (ends)
        decoder_end(t->d, &t->text);
}

/* `text` and `nbytes` are of tokens that begin a text, end it, or both. */
static int give_text(tn_tokenizer *t, int64_t count, const int64_t *ids, bool begins, bool ends,
                     const char **text, size_t *nbytes)
{
    *text = NULL;
    *nbytes = 0;
    TRY(call, &t->h.owner->ctx) {
        decode(t, count, ids, begins, ends);
        *text = t->text.text;
        *nbytes = t->text.len;
    }
    return tried(&call);
}

int tn_tokenizer_decode(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                        size_t *nbytes)
{
    if (!GIVEN(args_owner(t), t, text, nbytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(t), ids)))
        return TN_CODE_USAGE;
    return give_text(t, count, ids, true, true, text, nbytes);
}

int tn_tokenizer_decode_begin(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                              size_t *nbytes)
{
    if (!GIVEN(args_owner(t), t, text, nbytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(t), ids)))
        return TN_CODE_USAGE;
    return give_text(t, count, ids, true, false, text, nbytes);
}

int tn_tokenizer_decode_next(tn_tokenizer *t, int64_t count, const int64_t *ids, const char **text,
                             size_t *nbytes)
{
    if (!GIVEN(args_owner(t), t, text, nbytes) || !WITHIN(args_owner(t), 0, INT32_MAX, count) ||
        (count && !GIVEN(args_owner(t), ids)))
        return TN_CODE_USAGE;
    return give_text(t, count, ids, false, !count, text, nbytes);
}

/* ---- files ---- */

static bool progress(void *arg, int64_t done, int64_t total)
{
    const tn_tokenize_options *o = arg;
    return !o->progress(o->progress_arg, done, total);
}

static TokenizeOptions options_of(Ctx *ctx, const tn_tokenize_options *o)
{
    int type = token_type_parse(o->token_type ? o->token_type : "auto");
    if (type < 0)
        fail(ctx, TN_USAGE, "token type: expected auto, byte, u16 or u32, found \"%s\"",
             o->token_type);
    return (TokenizeOptions){.type = (TokenType)type,
                             .special = o->special != 0,
                             .end = o->end,
                             .progress = o->progress ? progress : NULL,
                             .arg = (void *)(uintptr_t)o,
                             .warn = o->warn,
                             .warn_arg = o->warn_arg};
}

int tn_tokenize(tn_tokenizer *t, int npath, const char *const *path, const char *output,
                const tn_tokenize_options *options, int64_t *count, int *width)
{
    if (!GIVEN(args_owner(t), t, output, options, count, width) ||
        !WITHIN(args_owner(t), 1, INT32_MAX, npath) ||
        !args_list(args_owner(t), __func__, "path", npath, path))
        return TN_CODE_USAGE;
    *count = *width = 0;
    TRY(call, &t->h.owner->ctx) {
        TokenType type;
        TokenizeOptions o = options_of(call.ctx, options);
        *count = tokenize_files(try_arena(&call), t->t, npath, path, output, &o, &type);
        *width = token_width(type);
    }
    return tried(&call);
}

int tn_detokenize(tn_tokenizer *t, const char *path, const char *output,
                  const tn_tokenize_options *options, int64_t *count)
{
    if (!GIVEN(args_owner(t), t, path, output, options, count))
        return TN_CODE_USAGE;
    *count = 0;
    TRY(call, &t->h.owner->ctx) {
        TokenizeOptions o = options_of(call.ctx, options);
        *count = detokenize_file(try_arena(&call), t->t, path, output, &o);
    }
    return tried(&call);
}

void tn_tokenizer_free(tn_tokenizer *t)
{
    handle_free((Handle *)t);
}
