/* generate: generates text. The model sees a window of the text, which slides by half when the text
 * outgrows it. */
#include "cli.h"

#include "../train/train.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Generate {
    tn_options o;
    tn_sampling sampling;
    const char *prompt, *message, *tokenizer, *end, *mesh, *adapter;
    int64_t tokens, window, threads;
    int plain; /* --no-special */
} Generate;

static int64_t find_window(const tn_model *m, const Generate *x, int64_t nprompt)
{
    char count[40];
    int64_t vocab, limit, all = nprompt + x->tokens, trained = trained_length(m);
    if (x->window)
        return x->window;
    tn_model_shape(m, &vocab, &limit);
    if (trained && trained < limit)
        limit = trained;
    if (all <= limit)
        return all;
    fprintf(stderr, "window: %s (%s; --context sets it)\n",
            tn_count_text(limit, "token", count, sizeof count),
            trained == limit ? "--seq-len of its training" : "all that the model has");
    return limit;
}

/* Tokens of an answer at most where --tokens does not say: no more than the model has room for. */
static int64_t answer_tokens(const tn_model *m, int64_t nprompt)
{
    enum { ANSWER = 512 };
    int64_t vocab, limit, trained = trained_length(m);
    tn_model_shape(m, &vocab, &limit);
    limit = trained && trained < limit ? trained : limit;
    return limit - nprompt < 1 ? 1 : limit - nprompt < ANSWER ? limit - nprompt : ANSWER;
}

/* Says what the model does not see of a prompt: the window holds its end. */
static void tell_cut(int64_t window, int64_t nprompt)
{
    if (nprompt > window)
        fprintf(stderr,
                "warning: the prompt has %lld tokens, of which the model sees the last %lld\n",
                (long long)nprompt, (long long)window);
}

static int count_prompt(const Generate *x, tn_tokenizer *t, int64_t *count)
{
    const int64_t *ids;
    return tn_tokenizer_encode(t, x->prompt, strlen(x->prompt), !x->plain, &ids, count);
}

/* Makes the prompt of --message, which `chat` then owns. */
static int apply_template(tn_context *ctx, const tn_model *m, Generate *x, tn_chat **chat)
{
    const char *folder = source_chat_folder(m, x->tokenizer);
    const tn_span *span;
    size_t n;
    int nspan;
    if (!folder)
        return tn_context_fail(
            ctx, TN_CODE_USAGE,
            "generate: --message: the model has no folder with a chat template\n  --prompt "
            "TEXT --tokens N takes a text as it is; --tokenizer FOLDER names a "
            "folder with a template");
    json_t *record =
        json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", x->message);
    char *text = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    if (!text)
        return tn_context_fail(ctx, TN_CODE_USAGE, "generate: --message: expected UTF-8");
    int code = tn_chat_open(ctx, folder, chat);
    if (code)
        tn_context_fail(ctx, code,
                        "%s\n  --prompt TEXT --tokens N takes a text as it is; --tokenizer "
                        "FOLDER names a folder with a template",
                        tn_error(ctx));
    if (!code)
        code = tn_chat_text(*chat, text, strlen(text), 1, &x->prompt, &n, &span, &nspan);
    free(text);
    x->plain = 1;
    return code;
}

/* --end, or what the model's folder says, of an answer by generation_config.json. */
static int find_end(tn_context *ctx, const tn_model *m, const Generate *x, Sample *s)
{
    if (!x->end) {
        s->nend =
            x->message ? tn_model_stops(m, MOST_ENDS, s->end) : tn_model_end(m, MOST_ENDS, s->end);
        return 0;
    }
    s->nend = 1;
    s->end[0] = tn_tokenizer_find(s->tokenizer, x->end);
    if (s->end[0] >= 0)
        return 0;
    return tn_context_fail(ctx, TN_CODE_USAGE, "generate: --end: the tokenizer has no token \"%s\"",
                           x->end);
}

static void tell(const Sample *s, bool chosen)
{
    int64_t peak, reserve;
    tn_generator_bytes(s->generator, &peak, &reserve);
    fprintf(stderr,
            "prompt: %lld tokens in %.3f s; then %lld in %.3f s, %.1f tokens/s; arena %lld bytes\n",
            (long long)s->nprompt, s->prompt_sec, (long long)s->ndone, s->sec,
            s->sec > 0 ? (double)s->ndone / s->sec : 0, (long long)peak);
    if (!chosen && s->ndone == s->count)
        fprintf(stderr,
                "tenon: note: the answer is cut after %lld tokens; --tokens N sets how many\n",
                (long long)s->count);
}

static int write_text_of(tn_context *ctx, tn_model *m, Generate *x)
{
    int64_t nprompt = 0;
    tn_chat *chat = NULL; /* freed with the context */
    int code = x->message ? apply_template(ctx, m, x, &chat) : 0;
    Sample s = {.ctx = ctx,
                .sampling = x->sampling,
                .prompt = x->prompt,
                .special = !x->plain,
                .answer = x->message != NULL,
                .count = x->tokens,
                .to = stdout,
                .clean = isatty(STDOUT_FILENO)};
    if (!code)
        code = sample_tokenizer(ctx, m, x->tokenizer, &s.tokenizer);
    if (!code)
        code = find_end(ctx, m, x, &s);
    if (!code)
        code = count_prompt(x, s.tokenizer, &nprompt);
    bool chosen = x->tokens > 0;
    if (!code && !chosen)
        s.count = x->tokens = answer_tokens(m, nprompt);
    int64_t window = code ? 0 : find_window(m, x, nprompt);
    if (!code)
        code = tn_generator_new(m, window, &x->o, &s.generator);
    if (!code)
        tell_cut(window, nprompt);
    if (!code)
        code = sample_begin(&s);
    if (!code)
        code = tn_generator_start(s.generator, NULL);
    if (!code)
        code = sample_run(&s);
    if (!code) {
        fputc('\n', stdout);
        fflush(stdout);
        tell(&s, chosen);
    }
    return code;
}

static int parse(int argc, char **argv, Generate *x, Texts *args)
{
    tn_sampling *s = &x->sampling;
    const OptionSlot slots[] = {{"prompt", &x->prompt},
                                {"message", &x->message},
                                {"tokens", &x->tokens},
                                {"temperature", &s->temperature},
                                {"top-k", &s->top_k},
                                {"top-p", &s->top_p},
                                {"context", &x->window},
                                {"tokenizer", &x->tokenizer},
                                {"end", &x->end},
                                {"no-special", &x->plain},
                                {"dtype", &x->o.dtype},
                                {"threads", &x->threads},
                                {"mesh", &x->mesh},
                                {"adapter", &x->adapter},
                                {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "generate", &x->o, slots);
    int code = options_parse(command_find("generate"), argc, argv, table, args, 1, 1);
    if (code >= 0)
        return code;
    if (x->mesh)
        return report(TN_CODE_USAGE,
                      "generate: --mesh: one rank generates, as a token alone is too little for "
                      "many\n  a checkpoint of ranks is one folder: the same command without "
                      "--mesh takes it");
    if (x->prompt && x->message)
        return report(TN_CODE_USAGE, "generate: --prompt and --message exclude each other");
    if (!x->message && (!x->prompt || !x->tokens))
        return report(TN_CODE_USAGE, "generate: --%s is missing",
                      x->prompt ? "tokens" : "prompt or --message");
    return -1;
}

static int generate(tn_context *ctx, const char *path, Generate *x)
{
    x->sampling.seed = x->o.seed;
    x->o.param_dtype = x->o.dtype;
    x->o.warn = warn;
    tn_threads((int)x->threads);
    tn_model *m;
    int code = memory_find(ctx, &x->o, 1);
    if (code >= 0)
        return code;
    code = model_open_as_trained(ctx, "generate", path, NULL, x->adapter, &m);
    if (!code)
        code = write_text_of(ctx, m, x);
    return code ? report_last(code, ctx) : 0;
}

int command_generate(int argc, char **argv)
{
    Generate x = {.o = tn_options_default()};
    Texts args;
    Launch l;
    int code = launch_begin(&l, command_find("generate"), argc, argv);
    if (code < 0)
        code = launch_agree(&l, parse(argc, argv, &x, &args));
    if (code < 0 && tn_ranks(l.ctx) > 1)
        code = !rank_first(l.ctx) ? TN_CODE_USAGE
                                  : report(TN_CODE_USAGE,
                                           "generate: one rank generates: start it without the "
                                           "launcher, which has started %d",
                                           tn_ranks(l.ctx));
    if (code < 0)
        code = generate(l.ctx, args.text[0], &x);
    launch_drop(&l);
    return code;
}
