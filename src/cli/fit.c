/* fit: where a command does not fit, prints the settings with which it does, as a command line to
 * paste; tn_compile finds them. Evaluation can only change its batch, whose size affects the last
 * bits only. */
#define _GNU_SOURCE /* program_invocation_name */
#include "cli.h"

#include "../train/train.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- command lines ---- */

static bool is_dropped(const char *arg, const char *const *drop)
{
    size_t n = strcspn(arg, "=");
    for (; *drop; drop++)
        if (n == strlen(*drop) && !strncmp(arg, *drop, n))
            return true;
    return false;
}

static void put_word(FILE *f, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_=./,:+@%";
    bool bare = *text && !text[strspn(text, plain)];
    fputs(bare ? "" : "'", f);
    for (; *text; text++)
        fputs(*text == '\'' ? "'\\''" : (char[]){*text, 0}, f);
    fputs(bare ? "" : "'", f);
}

void command_put(FILE *f, const char *program, int argc, char **argv, const char *const *drop)
{
    bool ended = false; /* options are put at the end: what follows -- is a path, as ./ says */
    put_word(f, program);
    for (int i = 0; i < argc; i++) {
        if (ended) {
            fputs(*argv[i] == '-' && argv[i][1] ? " ./" : " ", f);
            put_word(f, argv[i]);
            continue;
        }
        ended = !strcmp(argv[i], "--");
        if (ended)
            continue;
        bool dropped = drop && is_dropped(argv[i], drop);
        if (dropped && !strchr(argv[i], '='))
            i++; /* and its value */
        if (dropped)
            continue;
        fputc(' ', f);
        put_word(f, argv[i]);
    }
}

/* The command of a setting, with a new limit where it needs one. */
static void put_command(const FitAdvice *f, const tn_setting *x, const char *memory)
{
    const tn_options *o = f->o;
    const char *drop[5] = {NULL};
    bool recompute = o->recompute && strcmp(x->recompute, o->recompute) != 0,
         batch = x->batch != f->task.batch;
    int n = 0;
    if (recompute)
        drop[n++] = "--recompute";
    if (x->accumulate != o->accumulate)
        drop[n++] = "--accumulate";
    if (batch)
        drop[n++] = "--batch-size";
    if (memory)
        drop[n++] = "--memory";
    fputs("  ", stderr);
    command_put(stderr, program_invocation_name, f->argc, f->argv, drop);
    if (recompute)
        fprintf(stderr, " --recompute %s", x->recompute);
    if (x->accumulate != o->accumulate)
        fprintf(stderr, " --accumulate %lld", (long long)x->accumulate);
    if (batch)
        fprintf(stderr, " --batch-size %lld", (long long)x->batch);
    if (memory)
        fprintf(stderr, " --memory %s", memory);
    fputc('\n', stderr);
}

int memory_find(tn_context *ctx, tn_options *o, int64_t ranks)
{
    if (o->memory != MEMORY_AUTO)
        return -1;
    int64_t margin;
    char all[40];
    tn_options of = *o;
    snprintf(all, sizeof all, "dp=%lld", (long long)ranks);
    of.memory = o->memory = 0;
    if (mesh_auto(o))
        of.mesh = all;
    int code = tn_memory_free(ctx, &of, &o->memory, &margin);
    if (code)
        return report_last(code, ctx);
    if (rank_first(ctx))
        fprintf(stderr,
                "tenon: note: --memory auto: %lld bytes, as %lld are free, less a margin of %lld\n",
                (long long)o->memory, (long long)(o->memory + margin), (long long)margin);
    return -1;
}

/* ---- what is printed ---- */

static void put_found(const FitAdvice *f, const tn_setting *x, bool fewer, const char *memory)
{
    const char *unit = f->o->memory_unit;
    char peak[40], all[40];
    const char *asked = f->o->recompute; /* which stands where it can, but for none */
    bool kept = !fewer && asked && !word_among("none auto", asked) && !strcmp(x->recompute, asked);
    fprintf(stderr, "  %s%s%s; its planned peak is %s, with the library's reserve %s:\n",
            fewer ? "only a smaller batch fits, which trains otherwise"
                  : "this fits, by estimate the fastest of all that do",
            kept ? " with --recompute " : "", kept ? asked : "",
            tn_bytes_text(x->peak, unit, peak, sizeof peak),
            tn_bytes_text(x->nbytes, unit, all, sizeof all));
    put_command(f, x, memory);
}

static void put_least(const FitAdvice *f, const tn_setting *x, int tried)
{
    char all[40], plans[40];
    bool given = f->o->memory > 0;
    tn_bytes_text(x->nbytes, f->o->memory_unit, all, sizeof all);
    if (tried == 1)
        fprintf(stderr, "  the other plan does not fit%s either; it needs %s:\n",
                given ? "" : " what could be mapped", all);
    else if (tried || !given)
        fprintf(stderr, "  none of %s fits%s; this one needs least, %s:\n",
                tn_count_text(tried, "other plan", plans, sizeof plans),
                given ? "" : " what could be mapped", all);
    else
        fprintf(stderr, "  no other plan is possible; this one needs %s:\n", all);
    put_command(f, x, given ? all : NULL);
}

static void clear_line(void)
{
    if (isatty(STDERR_FILENO))
        line_clear(stderr);
}

static void tell(void *arg, int count)
{
    (void)arg;
    line_show(stderr, "  planning what would fit: %d", count);
}

/* A line for each plan, once the search has taken a while; arg: when it began. */
static void tell_line(void *arg, int count)
{
    if (took_long((time_t)(intptr_t)arg))
        fprintf(stderr, "  planning what would fit: %d\n", count);
}

void fit_tell(tn_task *task)
{
    task->tell = isatty(STDERR_FILENO) ? tell : tell_line;
    task->tell_arg = (void *)(intptr_t)time(NULL);
}

/* memory: the limit, where the command line has another or none; else NULL */
static void put_advice(const FitAdvice *f, const tn_compiled *c, const char *memory)
{
    if (c->found.nbytes)
        put_found(f, &c->found, c->fewer, memory);
    else if (c->least.nbytes)
        put_least(f, &c->least, c->tried);
}

void fit_print(const tn_context *ctx, const FitAdvice *f, const tn_compiled *c)
{
    if (c->tried)
        clear_line();
    report_last(TN_CODE_FIT, ctx);
    if (f->note)
        fprintf(stderr, "  %s\n", f->note);
    put_advice(f, c, NULL);
}

/* Where an arena could not be mapped: what would fit what could be. */
static void report_mapped(tn_context *ctx, const FitAdvice *f, const tn_misfit *m)
{
    tn_task task = f->task;
    tn_options o = *f->o;
    tn_compiled c = {0};
    char *text = strdup(tn_error(ctx)), limit[40];
    o.memory = m->limit;
    o.warn = NULL; /* it has */
    fit_tell(&task);
    int code = tn_compile(ctx, &task, &o, &c);
    if (c.tried)
        clear_line();
    report(TN_CODE_FIT, "%s", text ? text : "does not fit");
    free(text);
    tn_bytes_text(m->limit, f->o->memory_unit, limit, sizeof limit);
    if (!code)
        put_found(f, &c.setting, false, limit);
    else if (code == TN_CODE_FIT)
        put_advice(f, &c, limit);
    tn_compiled_free(&c);
}

void fit_report(tn_context *ctx, const FitAdvice *f)
{
    tn_misfit m = {0};
    tn_task task = f->task;
    tn_options o = *f->o;
    tn_compiled c = {0};
    bool known = (f->task.vary || o.nchunk) && tn_error_misfit(ctx, &m);
    if (known && m.mapped && m.limit) {
        report_mapped(ctx, f, &m);
    } else if (known && !m.mapped && o.memory) {
        o.warn = NULL; /* it has */
        fit_tell(&task);
        if (tn_compile(ctx, &task, &o, &c) == TN_CODE_FIT)
            fit_print(ctx, f, &c);
        else
            report_last(TN_CODE_FIT, ctx);
        tn_compiled_free(&c);
    } else {
        report_last(TN_CODE_FIT, ctx);
    }
}
