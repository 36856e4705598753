/* tokenize, detokenize: text to tokens and back. Signals are counted, which is looked at between
 * pieces of text, so that an incomplete output can be removed. */
#include "cli.h"

#include "../train/train.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct Progress {
    const volatile sig_atomic_t *stop;
    bool shown, stopped; /* shown: standard error is a terminal */
    bool open;           /* a line is */
    double start, last;  /* seconds */
} Progress;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void show(Progress *p, int64_t done, int64_t total)
{
    double sec = now();
    if (!p->shown || sec < p->last + 0.2)
        return;
    double rate = (double)done * 1e-6 / (sec - p->start);
    p->last = sec;
    p->open = true;
    if (total)
        line_show(stderr, "%5.1f %%  %.1f of %.1f MB  %.1f MB/s",
                  100 * (double)done / (double)total, (double)done * 1e-6, (double)total * 1e-6,
                  rate);
    else
        line_show(stderr, "%.1f MB  %.1f MB/s", (double)done * 1e-6, rate);
}

static int show_progress(void *arg, int64_t done, int64_t total)
{
    Progress *p = arg;
    show(p, done, total);
    p->stopped = stopped(p->stop);
    return p->stopped;
}

static Progress begin(tn_context *ctx)
{
    return (Progress){.shown = isatty(STDERR_FILENO), .start = now(), .stop = interrupt_begin(ctx)};
}

/* Below the line of progress, where one is open. */
static void warn_below(void *arg, const char *message)
{
    Progress *p = arg;
    if (p->open)
        line_clear(stderr);
    p->open = false;
    warn(NULL, message);
}

/* The exit code; what was done, or why not, on standard error. */
static int end(Progress *p, int code, const tn_context *ctx, const char *done)
{
    interrupt_end(INTERRUPT_WAITS);
    if (p->open)
        line_clear(stderr);
    if (p->stopped)
        return report(130, "interrupted; nothing was written");
    if (code)
        return report_last(code, ctx);
    fprintf(stderr, "tenon: %s\n", done);
    return 0;
}

/* ---- tokenize ---- */

int command_tokenize(int argc, char **argv)
{
    const char *output, *path;
    tn_tokenize_options o = {0};
    const OptionSlot slots[] = {
        {"output", &output},         {"tokenizer", &path}, {"token-type", &o.token_type},
        {"add-special", &o.special}, {"end", &o.end},      {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "tokenize", NULL, slots);
    Texts args;
    int code = options_parse(command_find("tokenize"), argc, argv, table, &args, 1, LEN(args.text));
    if (code >= 0)
        return code;
    if (!output)
        return report(TN_CODE_USAGE, "tokenize: --output is missing");
    tn_context *ctx = context_new();
    Progress p = begin(ctx);
    o.progress = show_progress;
    o.progress_arg = o.warn_arg = &p;
    o.warn = warn_below;
    tn_tokenizer *t;
    int64_t count = 0;
    int width = 0;
    char done[200], tokens[40], ids[40];
    code = tn_tokenizer_open(ctx, path, &t);
    if (!code)
        code = tn_tokenize(t, args.count, args.text, output, &o, &count, &width);
    const char *type = width == 1 ? "byte" : width == 2 ? "u16" : "u32";
    tn_count_text(count, "token", tokens, sizeof tokens);
    tn_count_text(code ? 0 : tn_tokenizer_limit(t), "id", ids, sizeof ids);
    snprintf(done, sizeof done, "%s, %s, of %s; to train on them: --token-type %s", tokens, type,
             ids, type);
    code = end(&p, code, ctx, done);
    tn_context_free(ctx);
    return code;
}

/* ---- detokenize ---- */

int command_detokenize(int argc, char **argv)
{
    const char *output, *path;
    tn_tokenize_options o = {0};
    const OptionSlot slots[] = {
        {"output", &output}, {"tokenizer", &path}, {"token-type", &o.token_type}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "detokenize", NULL, slots);
    Texts args;
    int code = options_parse(command_find("detokenize"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    tn_context *ctx = context_new();
    Progress p = begin(ctx);
    o.progress = show_progress;
    o.progress_arg = &p;
    tn_tokenizer *t;
    int64_t count = 0;
    char done[200];
    code = tn_tokenizer_open(ctx, path, &t);
    if (!code)
        code = tn_detokenize(t, args.text[0], output, &o, &count);
    tn_count_text(count, "token", done, sizeof done);
    code = end(&p, code, ctx, done);
    tn_context_free(ctx);
    return code;
}
