/* generate: text from a model. What the model sees at once is a window; where the text is longer,
 * the window slides by half. */
#include "cli.h"

#include "../train/train.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Generate {
    tn_options o;
    tn_sampling sampling;
    const char *prompt, *tokenizer, *end;
    int64_t tokens, window, threads, seed;
    int plain; /* --no-special */
} Generate;

static int64_t find_window(const tn_model *m, const Generate *x, int64_t nprompt)
{
    int64_t vocab, limit, all = nprompt + x->tokens, trained = trained_length(m);
    if (x->window)
        return x->window;
    tn_model_shape(m, &vocab, &limit);
    if (trained && trained < limit)
        limit = trained;
    if (all <= limit)
        return all;
    fprintf(stderr, "window: %lld tokens (%s; --context sets it)\n", (long long)limit,
            trained == limit ? "--seq-len of its training" : "all that the model has");
    return limit;
}

static int count_prompt(const Generate *x, tn_tokenizer *t, int64_t *count)
{
    const int64_t *ids;
    return tn_tokenizer_encode(t, x->prompt, strlen(x->prompt), !x->plain, &ids, count);
}

/* --end, or what config.json says. */
static int find_end(tn_context *ctx, const tn_model *m, const Generate *x, Sample *s)
{
    if (!x->end) {
        s->nend = tn_model_end(m, MOST_ENDS, s->end);
        return 0;
    }
    s->nend = 1;
    s->end[0] = tn_tokenizer_find(s->tokenizer, x->end);
    if (s->end[0] >= 0)
        return 0;
    return tn_context_fail(ctx, TN_CODE_USAGE, "generate: --end: the tokenizer has no token \"%s\"",
                           x->end);
}

static void tell(const Sample *s)
{
    int64_t peak, reserve;
    tn_generator_bytes(s->generator, &peak, &reserve);
    fprintf(stderr,
            "prompt: %lld tokens in %.3f s; then %lld in %.3f s, %.1f tokens/s; arena %lld bytes\n",
            (long long)s->nprompt, s->prompt_sec, (long long)s->ndone, s->sec,
            s->sec > 0 ? (double)s->ndone / s->sec : 0, (long long)peak);
}

static int write_text_of(tn_context *ctx, tn_model *m, const Generate *x)
{
    int64_t nprompt = 0;
    Sample s = {.ctx = ctx,
                .sampling = x->sampling,
                .prompt = x->prompt,
                .special = !x->plain,
                .count = x->tokens,
                .to = stdout,
                .clean = isatty(STDOUT_FILENO)};
    int code = sample_tokenizer(ctx, m, x->tokenizer, &s.tokenizer);
    if (!code)
        code = find_end(ctx, m, x, &s);
    if (!code)
        code = count_prompt(x, s.tokenizer, &nprompt);
    if (!code)
        code = tn_generator_new(m, find_window(m, x, nprompt), &x->o, &s.generator);
    if (!code)
        code = sample_begin(&s);
    if (!code)
        code = tn_generator_start(s.generator, NULL);
    if (!code)
        code = sample_run(&s);
    if (!code) {
        fputc('\n', stdout);
        fflush(stdout);
        tell(&s);
    }
    return code;
}

int command_generate(int argc, char **argv)
{
    Generate x = {.o = tn_options_default(), .sampling = tn_sampling_default()};
    tn_sampling *s = &x.sampling;
    /* clang-format off */
    Option table[] = {
        {"prompt", OPT_TEXT, &x.prompt, "the text to go on with", NULL, 0, 0, 0},
        {"tokens", OPT_INT, &x.tokens, "how many to add", NULL, 1, 1e9, 0},
        {"temperature", OPT_REAL, &s->temperature, "divides the logits; 0: the most likely token (0.8)", NULL, 0, 1e6, 0},
        {"top-k", OPT_INT, &s->top_k, "draw from the k most likely; 0: from all (0)", NULL, 0, 1e9, 0},
        {"top-p", OPT_REAL, &s->top_p, "of those from the fewest this likely together (1)", NULL, 1e-9, 1, 0},
        {"seed", OPT_INT, &x.seed, "of the draws, and of a preset's weights (0)", NULL, 0, 9e18, 0},
        {"context", OPT_INT, &x.window, "tokens seen at once (M's --seq-len or positions, or the whole text)", NULL, 1, 1e9, 0},
        {"tokenizer", OPT_IN, &x.tokenizer, "tokenizer.json, a folder with one, or bytes (M's)", NULL, 0, 0, 0},
        {"end", OPT_TEXT, &x.end, "the token to stop at (config.json's eos_token_id)", NULL, 0, 0, 0},
        {"no-special", OPT_FLAG, &x.plain, "no special tokens around the prompt", NULL, 0, 0, 0},
        {"dtype", OPT_WORD, &x.o.dtype, "of the weights and of computation (f32)", "f32|bf16", 0, 0, 0},
        {"memory", OPT_MEMORY, &x.o, "refuse what needs more than this", NULL, 0, 0, 0},
        {"threads", OPT_INT, &x.threads, "(the cores the process may use)", NULL, 1, 4096, 0},
        {"check", OPT_FLAG, &x.o.check, "poison dead buffers, guard the arena", NULL, 0, 0, 0},
        {0}};
    /* clang-format on */
    Texts args;
    int code = options_parse(command_find("generate"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (!x.prompt || !x.tokens)
        return report(TN_CODE_USAGE, "generate: --%s is missing", x.prompt ? "tokens" : "prompt");
    x.o.seed = s->seed = (uint64_t)x.seed;
    x.o.param_dtype = x.o.dtype;
    x.o.warn = warn;
    tn_threads((int)x.threads);
    tn_context *ctx = context_new();
    tn_model *m;
    code = tn_model_open(ctx, args.text[0], &m);
    if (!code)
        code = write_text_of(ctx, m, &x);
    if (code)
        report_last(code, ctx);
    tn_context_free(ctx);
    return code;
}
