/* Text from a model: a prompt to tokens, tokens from a generator, and their bytes as they come. */
#include "trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int sample_tokenizer(tn_context *ctx, tn_model *m, const char *path, tn_tokenizer **t)
{
    char file[CHECKPOINT_PATH], run[TYPE_NAME];
    const char *folder = tn_model_folder(m);
    int64_t vocab, context;
    tn_model_shape(m, &vocab, &context);
    source_run_type(m, run);
    if (path)
        return tn_tokenizer_open(ctx, path, t);
    if (!strcmp(run, "byte"))
        return tn_tokenizer_open(ctx, "bytes", t);
    if (source_tokenizer(m, file))
        return tn_tokenizer_open(ctx, file, t);
    if (vocab == 256)
        return tn_tokenizer_open(ctx, "bytes", t);
    return tn_context_fail(ctx, TN_CODE_USAGE,
                           "%s%sno tokenizer.json, and a vocabulary of %" PRId64
                           " is not one of bytes (256): --tokenizer names one",
                           folder ? folder : "", folder ? ": " : "", vocab);
}

/* Untrained models write anything, terminals obey it. */
static void put_clean(const char *s, size_t n, FILE *to)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool control = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f;
        fputc(control ? '.' : c, to);
    }
}

static void put(const Sample *s, const char *bytes, size_t n)
{
    if (s->clean)
        put_clean(bytes, n, s->to);
    else
        fwrite(bytes, 1, n, s->to);
    fflush(s->to);
}

/* A vocabulary may have rows that no token has. */
static void put_token(const Sample *s, int64_t id)
{
    const char *bytes;
    size_t n;
    if (tn_tokenizer_decode_next(s->tokenizer, 1, &id, &bytes, &n))
        put(s, "\xef\xbf\xbd", 3);
    else
        put(s, bytes, n);
}

/* New tokens are decoded as the rest of the prompt's text, which is written as it was given. */
static int skip_prompt(const Sample *s, const int64_t *ids)
{
    const char *bytes;
    size_t n;
    int code = tn_tokenizer_decode_begin(s->tokenizer, s->nprompt, ids, &bytes, &n);
    return code ? code : tn_tokenizer_decode_next(s->tokenizer, 0, NULL, &bytes, &n);
}

/* Bytes that no character came of. */
static int put_rest(const Sample *s)
{
    const char *bytes;
    size_t n;
    int code = tn_tokenizer_decode_next(s->tokenizer, 0, NULL, &bytes, &n);
    if (!code)
        put(s, bytes, n);
    return code;
}

int sample_begin(Sample *s)
{
    const int64_t *ids;
    tn_generator_reset(s->generator);
    int code = tn_tokenizer_encode(s->tokenizer, s->prompt, strlen(s->prompt), s->special, &ids,
                                   &s->nprompt);
    if (!code && !s->nprompt)
        code = tn_context_fail(s->ctx, TN_CODE_USAGE, "--prompt: expected a text, found none");
    if (!code)
        code = tn_generator_feed(s->generator, s->nprompt, ids);
    return code ? code : skip_prompt(s, ids);
}

Sample sample_of(Trainer *r, const volatile sig_atomic_t *stop)
{
    const TrainOptions *t = r->t;
    Sample s = {.ctx = r->ctx,
                .generator = r->plans.generator,
                .tokenizer = r->tokenizer,
                .sampling = tn_sampling_default(),
                .prompt = t->prompt,
                .special = true,
                .count = t->sample_tokens,
                .stop = stop,
                .to = stdout,
                .clean = true};
    s.sampling.seed = t->o.seed;
    s.nend = tn_model_end(r->m, MOST_ENDS, s.end);
    return s;
}

static bool ends(const Sample *s, int64_t id)
{
    for (int i = 0; i < s->nend && i < MOST_ENDS; i++)
        if (s->end[i] == id)
            return true;
    return false;
}

int sample_run(Sample *s)
{
    const float *logits;
    double start = wall_sec();
    int code = tn_generator_logits(s->generator, &logits);
    if (!s->answer)
        put(s, s->prompt, strlen(s->prompt));
    s->prompt_sec = wall_sec() - start;
    for (s->ndone = 0; !code && s->ndone < s->count && !stopped(s->stop); s->ndone++) {
        int64_t id;
        code = tn_generator_next(s->generator, &s->sampling, &id);
        if (!code && ends(s, id))
            break;
        if (!code)
            put_token(s, id);
    }
    code = code ? code : put_rest(s);
    s->sec = wall_sec() - start - s->prompt_sec;
    return code;
}
