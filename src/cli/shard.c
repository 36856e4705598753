/* shard: solves a sharding problem. A signal ends the process at once, but while a file is written
 * it does not. */
#include "cli.h"

#include "../train/train.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct ShardCommand {
    const char *path, *output;
    int64_t effort;
    int json;
    tn_sharding_result result;
    double sec; /* CPU seconds after reading */
} ShardCommand;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- progress, on a terminal ---- */

typedef struct ShardProgress {
    bool shown, open; /* shown: standard error is a terminal */
    double begin;
} ShardProgress;

static void show(void *arg, double cost, double bound)
{
    ShardProgress *p = arg;
    if (!p->shown)
        return;
    fprintf(stderr, "\r%.1f s: ", cpu_seconds() - p->begin);
    if (isfinite(cost))
        fprintf(stderr, "cost %.10g, ", cost);
    fprintf(stderr, "bound %.10g\033[K", bound);
    p->open = true;
}

static void show_end(const ShardProgress *p)
{
    if (p->open)
        fprintf(stderr, "\r\033[K");
}

/* ---- the command ---- */

static int work(tn_context *ctx, ShardCommand *x, tn_sharding **s)
{
    int code = tn_sharding_read(ctx, x->path, s);
    if (code)
        return code;
    ShardProgress p = {isatty(STDERR_FILENO), false, cpu_seconds()};
    code = tn_sharding_solve(*s, x->effort, show, &p, &x->result);
    x->sec = cpu_seconds() - p.begin;
    show_end(&p);
    return code;
}

/* A write that waits for a reader may be interrupted. */
static int write_output(tn_context *ctx, const ShardCommand *x, const tn_sharding *s)
{
    struct stat st;
    if (!strcmp(x->output, "-") || (!stat(x->output, &st) && !S_ISREG(st.st_mode)))
        interrupt_as(INTERRUPT_KILLS);
    int code = tn_sharding_write(s, x->output);
    return code ? report_last(code, ctx) : 0;
}

/* How much of the cost may be too much: (cost - bound) / |cost|. */
static double gap_of(const tn_sharding_result *r)
{
    double more = r->cost - r->bound;
    if (!r->feasible)
        return NAN;
    return more > 0 ? more / fmax(fabs(r->cost), 1e-300) : 0;
}

static void print_number(FILE *f, const char *name, double x, int json)
{
    if (isfinite(x))
        fprintf(f, json ? "  \"%s\": %.17g,\n" : "%s %.15g ", name, x);
    else
        fprintf(f, json ? "  \"%s\": null,\n" : "%s - ", name);
}

static void print_result(const ShardCommand *x)
{
    const tn_sharding_result *r = &x->result;
    FILE *f = x->output && !strcmp(x->output, "-") ? stderr : stdout;
    const char *feasible = r->feasible ? "yes" : "no";
    if (x->json)
        fprintf(f, "{\n");
    print_number(f, "cost", r->feasible ? r->cost : NAN, x->json);
    print_number(f, "bound", r->bound, x->json);
    print_number(f, "gap", gap_of(r), x->json);
    if (x->json)
        fprintf(
            f,
            "  \"sec\": %.4f,\n  \"feasible\": %s,\n  \"proved\": %s,\n  \"peak_usage\": %lld,\n"
            "  \"least_usage\": %lld,\n  \"steps\": %lld\n}\n",
            x->sec, r->feasible ? "true" : "false", r->proved ? "true" : "false",
            (long long)r->peak, (long long)r->least, (long long)r->steps);
    else
        fprintf(f, "sec %.4f feasible %s\n", x->sec, feasible);
}

static int finish(tn_context *ctx, const ShardCommand *x, const tn_sharding *s, int code)
{
    if (!code && x->output)
        code = write_output(ctx, x, s);
    else if (code == TN_CODE_FIT)
        report(code, "%s: %s%s", strcmp(x->path, "-") ? x->path : "standard input", tn_error(ctx),
               x->output ? "\n  --output is not written" : "");
    else if (code)
        report_last(code, ctx);
    if (!code || code == TN_CODE_FIT)
        print_result(x);
    return code;
}

int command_shard(int argc, char **argv)
{
    ShardCommand x = {0};
    const OptionSlot slots[] = {
        {"effort", &x.effort}, {"output", &x.output}, {"json", &x.json}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "shard", NULL, slots);
    Texts args;
    int code = options_parse(command_find("shard"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    x.path = args.text[0];
    tn_context *ctx = context_new();
    tn_sharding *s = NULL;
    interrupt_as(INTERRUPT_EXITS);
    code = work(ctx, &x, &s);
    interrupt_as(INTERRUPT_WAITS);
    code = finish(ctx, &x, s, code);
    tn_context_free(ctx);
    return code;
}
