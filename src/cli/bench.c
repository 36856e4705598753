/* bench: what is measured on this machine, and how results are printed. Machines are shared:
 * medians, and --clock cpu for those who have to measure beside others. */
#include "bench.h"

#include "../train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- results ---- */

static void print_json(Bench *b, const char *title, const Result *r, double ratio)
{
    printf("%s {\"name\": \"%s %s\", \"value\": %.6g, \"unit\": \"%s\", ",
           b->printed++ ? ",\n" : "[\n", title, r->name, r->value, r->unit);
    printf(r->limit > 0 ? "\"limit\": %.6g, \"ratio\": %.4f, "
                        : "\"limit\": null, \"ratio\": null, ",
           r->limit, ratio);
    printf("\"runs\": %lld, \"min\": %.6g, \"max\": %.6g", (long long)r->runs, r->min, r->max);
    if (r->count)
        printf(", \"count\": %lld, \"lost\": %.6g", (long long)r->count, r->lost);
    if (r->rate_unit)
        printf(", \"rate\": %.6g, \"rate_unit\": \"%s\"", r->rate, r->rate_unit);
    printf("}");
}

void bench_print(Bench *b, const Result *r)
{
    char title[300];
    double ratio = r->limit > 0 && r->value > 0 ? r->limit / r->value : 0;
    if (b->file)
        snprintf(title, sizeof title, "%s", b->file);
    else
        snprintf(title, sizeof title, "%s B=%lld T=%lld %s", b->model, (long long)b->batch,
                 (long long)b->seq, b->o.dtype ? b->o.dtype : "f32");
    if (b->json) {
        print_json(b, title, r, ratio);
        return;
    }
    printf("%s  %-34s %12.6g %-6s", title, r->name, r->value, r->unit);
    if (r->limit > 0)
        printf("  limit %10.6g  ratio %.3f", r->limit, ratio);
    if (r->runs > 1)
        printf("  (%lld runs, %.6g to %.6g)", (long long)r->runs, r->min, r->max);
    printf("\n");
    fflush(stdout);
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

Result bench_median(const char *name, const char *unit, double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return (Result){
        .name = name, .unit = unit, .value = x[n / 2], .runs = n, .min = x[0], .max = x[n - 1]};
}

bool bench_cpu(const Bench *b)
{
    return !strcmp(b->clock, "cpu");
}

double bench_now(const Bench *b)
{
    struct timespec t;
    if (!bench_cpu(b))
        return wall_sec();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- planning ---- */

static int bench_plan(Bench *b)
{
    double sec[MOST_RUNS];
    tn_model *m;
    int code = tn_model_open(b->ctx, b->model, &m);
    for (int64_t i = 0; i < b->runs && !code; i++) {
        tn_graph *g = NULL;
        tn_plan *p = NULL;
        double start = bench_now(b);
        code = tn_model_graph(m, b->batch, b->seq, &b->o, &g);
        if (!code)
            code = tn_graph_passes(g, "default", &b->o, NULL, NULL);
        if (!code)
            code = tn_plan_new(g, &b->o, 1, &p);
        sec[i] = bench_now(b) - start;
        tn_plan_free(p);
        tn_graph_free(g);
    }
    if (code)
        return code;
    Result r = bench_median("graph, passes and plan", "s", sec, b->runs);
    bench_print(b, &r);
    return 0;
}

/* ---- the command ---- */

static int measure(Bench *b, const char *what)
{
    static const struct {
        const char *what;
        int (*run)(Bench *b);
    } table[] = {{"step", bench_step}, {"ops", bench_ops}, {"plan", bench_plan}};
    for (int i = 0; i < LEN(table); i++)
        if (!strcmp(table[i].what, what))
            return table[i].run(b);
    return report(TN_CODE_USAGE, "bench: expected step, ops or plan, found \"%s\"", what);
}

int command_bench(int argc, char **argv)
{
    Bench b = {.o = tn_options_default(),
               .model = "gpt2",
               .clock = "wall",
               .fuse = "on",
               .batch = 4,
               .seq = 64,
               .runs = 5};
    /* clang-format off */
    Option table[] = {
        {"model", OPT_IN, &b.model, "folder or preset (gpt2)", NULL, 0, 0, 0},
        {"batch-size", OPT_INT, &b.batch, "sequences (4)", NULL, 1, 1e9, 0},
        {"seq-len", OPT_INT, &b.seq, "tokens (64)", NULL, 1, 1e9, 0},
        {"runs", OPT_INT, &b.runs, "timed runs, of which the median counts (5)", NULL, 1, MOST_RUNS, 0},
        {"clock", OPT_WORD, &b.clock, "what seconds are: with cpu those of one thread's work (wall)", "wall|cpu", 0, 0, 0},
        {"accumulate", OPT_INT, &b.o.accumulate, "loop turns of a step (1)", NULL, 1, 1e9, 0},
        {"threads", OPT_INT, &b.threads, "(the cores the process may use)", NULL, 1, 4096, 0},
        DTYPE_OPTIONS(b.o),
        {"fuse", OPT_WORD, &b.fuse, "chains of pointwise ops in one pass over memory (on)", "on|off", 0, 0, 0},
        {"json", OPT_FLAG, &b.json, "an array of objects", NULL, 0, 0, 0},
        {0}};
    /* clang-format on */
    Texts args;
    int code = options_parse(command_find("bench"), argc, argv, table, &args, 0, 2);
    if (code >= 0)
        return code;
    const char *what = args.count ? args.text[0] : "step";
    b.file = args.count > 1 ? args.text[1] : NULL;
    if (b.file && strcmp(what, "ops"))
        return report(TN_CODE_USAGE, "bench: a graph is for ops, found \"%s\"", b.file);
    if (bench_cpu(&b) && option_given(table, "threads") && b.threads != 1)
        return report(TN_CODE_USAGE, "bench: --clock cpu is for one thread");
    tn_threads(bench_cpu(&b) ? 1 : (int)b.threads);
    b.o.warn = warn;
    b.o.fuse = !strcmp(b.fuse, "on");
    b.ctx = context_new();
    code = measure(&b, what);
    if (b.json && code != TN_CODE_USAGE)
        puts(b.printed ? "\n]" : "[]");
    if (code && code != TN_CODE_USAGE)
        report_last(code, b.ctx);
    tn_context_free(b.ctx);
    return code;
}
