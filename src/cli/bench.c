/* bench: chooses what to measure on this machine, and prints results: medians, as machines are
 * shared, and CPU time with --clock cpu. */
#include "bench.h"

#include "../train/train.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- results ---- */

/* "KEY": x, null where it was not measured. */
static void put_number(const char *key, double x)
{
    printf(isfinite(x) ? ", \"%s\": %.6g" : ", \"%s\": null", key, x);
}

static void print_json(Bench *b, const char *title, const Result *r, double ratio)
{
    json_t *name = json_sprintf("%s %s", title, r->name);
    char *text = json_dumps(name, JSON_ENCODE_ANY);
    printf("%s {\"name\": %s", b->printed++ ? ",\n" : "[\n", text ? text : "null");
    put_number("value", r->value);
    printf(", \"unit\": \"%s\"", r->unit);
    free(text);
    json_decref(name);
    put_number("limit", r->limit > 0 ? r->limit : NAN);
    printf(ratio > 0 ? ", \"ratio\": %.4f" : ", \"ratio\": null", ratio);
    printf(", \"runs\": %lld", (long long)r->runs);
    put_number("min", r->min);
    put_number("max", r->max);
    if (r->count) {
        printf(", \"count\": %lld", (long long)r->count);
        put_number("lost", r->lost);
    }
    if (r->rate_unit) {
        put_number("rate", r->rate);
        printf(", \"rate_unit\": \"%s\"", r->rate_unit);
    }
    if (r->ways && r->ways->taken.kernel)
        printf(", \"ways\": %d, \"way\": \"%s\", \"best\": \"%s\", \"way_sec\": %.6g,"
               " \"best_sec\": %.6g, \"way_lost\": %.6g",
               r->ways->count, r->ways->taken.kernel, r->ways->best.kernel, r->ways->taken.sec,
               r->ways->best.sec, r->ways->lost);
    printf("}");
}

/* The part of a result's name that says the settings beside the batch and the dtype: each option
 * that was given and changes the step. */
static void put_settings(const Bench *b, FILE *f)
{
    const bool again = b->o.recompute && strcmp(b->o.recompute, "none") != 0 &&
                       strcmp(b->o.recompute, "auto") != 0;
    if (again)
        fprintf(f, " %s", b->o.recompute);
    if (b->o.mesh)
        fprintf(f, " %s", b->o.mesh);
    for (int i = 0; i < b->o.nchunk; i++)
        fprintf(f, "%s%s", i ? " " : " chunk ", b->o.chunk[i]);
    for (int i = 0; i < b->o.nshardings; i++)
        fprintf(f, "%s%s", i ? " " : " shard ", b->o.shardings[i]);
    for (const Option *o = b->table; o->kind; o++)
        if (o->given && o->value && (o->pass || !strcmp(o->name, "reduce")) &&
            !word_among("dtype recompute mesh chunk shard", o->name))
            fprintf(f, " %s %s", o->name, o->value);
}

/* The name of the one whose result it is; NULL: no memory. */
static char *title_of(const Bench *b)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    if (b->file) {
        fputs(b->file, f);
    } else {
        fprintf(f, "%s B=%lld T=%lld %s", b->model, (long long)b->c.batch, (long long)b->c.seq,
                b->o.dtype ? b->o.dtype : "f32");
        put_settings(b, f);
    }
    return fclose(f) ? NULL : text;
}

static void print_line(const char *title, const Result *r, double ratio)
{
    printf("%s  %-34s %12.6g %-6s", title, r->name, plain_nan(r->value), r->unit);
    if (r->limit > 0)
        printf("  limit %10.6g  ratio %.3f", r->limit, ratio);
    if (r->runs > 1)
        printf("  (%lld runs, %.6g to %.6g)", (long long)r->runs, r->min, r->max);
    printf("\n");
    fflush(stdout);
}

void bench_print(Bench *b, const Result *r)
{
    const double ratio = r->limit > 0 && r->value > 0 ? r->limit / r->value : 0;
    if (!rank_first(b->ctx))
        return;
    char *title = title_of(b);
    if (b->json)
        print_json(b, title ? title : "", r, ratio);
    else
        print_line(title ? title : "", r, ratio);
    free(title);
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

/* Seconds of the pass `remat`, by the wall. */
static void time_remat(void *arg, tn_graph *g, const char *pass, int changes, double sec)
{
    (void)g, (void)changes;
    if (!strcmp(pass, "remat"))
        *(double *)arg = sec;
}

static int print_plan(Bench *b, tn_plan *p)
{
    static const struct {
        const char *field, *name, *unit;
        double unit_is;
    } shown[] = {{"peak_bytes", "planned peak", "MiB", 1048576},
                 {"saved_bytes", "saved for the backward", "MiB", 1048576},
                 {"recomputed_bytes", "values computed again", "MiB", 1048576},
                 {"added_nflop", "operations of that", "GFLOP", 1e9},
                 {"nflop", "operations of the step", "GFLOP", 1e9}};
    const char *text;
    int code = tn_plan_json(p, 1, &text);
    json_t *o = code ? NULL : json_loads(text, 0, NULL);
    for (int i = 0; i < LEN(shown) && o; i++) {
        double x = json_number_value(json_object_get(o, shown[i].field));
        x /= shown[i].unit_is;
        Result r = {shown[i].name, shown[i].unit, x, .runs = 1, .min = x, .max = x};
        bench_print(b, &r);
    }
    json_decref(o);
    return code;
}

/* One run with a context of its own, as what is solved for a step is kept with it. */
static int plan_once(Bench *b, tn_context *ctx, bool last, double *sec, double *remat)
{
    tn_model *m;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    int code = tn_model_open(ctx, b->model, &m);
    if (!code)
        code = check_model(ctx, "bench: ", b->table, m, &b->c);
    double start = bench_now(b);
    if (!code)
        code = tn_model_graph(m, b->c.batch, b->c.seq, &b->o, &g);
    if (!code)
        code = tn_graph_passes(g, "default", &b->o, time_remat, remat);
    if (!code)
        code = tn_plan_new(g, &b->o, 1, &p);
    *sec = bench_now(b) - start;
    if (!code && last)
        code = print_plan(b, p);
    return code ? tn_context_fail(b->ctx, code, "%s", tn_error(ctx)) : 0;
}

static int bench_plan(Bench *b)
{
    double sec[MOST_RUNS], remat[MOST_RUNS];
    int code = 0;
    if (!rank_first(b->ctx))
        return 0;
    for (int64_t i = 0; i < b->runs && !code; i++) {
        tn_context *ctx = context_new();
        code = plan_once(b, ctx, i == b->runs - 1, &sec[i], &remat[i]);
        tn_context_free(ctx);
    }
    if (code)
        return code;
    Result r = bench_median("graph, passes and plan", "s", sec, b->runs);
    bench_print(b, &r);
    r = bench_median("of it the pass remat", "s", remat, b->runs);
    r.limit = 0.05; /* what it may take for 32 layers */
    bench_print(b, &r);
    return 0;
}

/* ---- the command ---- */

typedef struct Measure {
    const char *what;
    int (*run)(Bench *b);
} Measure;

/* NULL: there is none of the name. */
static const Measure *find_measure(const char *what)
{
    static const Measure table[] = {
        {"step", bench_step}, {"ops", bench_ops}, {"time", bench_time}, {"plan", bench_plan}};
    for (int i = 0; i < LEN(table); i++)
        if (!strcmp(table[i].what, what))
            return &table[i];
    return NULL;
}

static int run_bench(tn_context *ctx, const void *arg, bool *told)
{
    Bench b = *(const Bench *)arg;
    (void)told;
    b.ctx = ctx;
    b.o = rank_options(ctx, &b.c);
    int code =
        strcmp(b.what, "plan") ? rank_machine(ctx, &b.o) : 0; /* which any machine can price */
    if (!code)
        code = find_measure(b.what)->run(&b);
    if (b.json && rank_first(ctx))
        puts(b.printed ? "\n]" : "[]");
    return code;
}

static int check_bench(const Command *c, const Option *table, Bench *b)
{
    if (!find_measure(b->what))
        return report(TN_CODE_USAGE, "bench: expected step, ops, time or plan, found \"%s\"",
                      b->what);
    if (b->file && strcmp(b->what, "ops"))
        return report(TN_CODE_USAGE, "bench: a graph is for ops, found \"%s\"", b->file);
    if (tn_backend_is_gpu(b->c.o.backend) && bench_cpu(b))
        return report(TN_CODE_USAGE, "bench: --clock cpu counts the processor's seconds alone: "
                                     "expected --backend cpu or emulated");
    if (bench_cpu(b) && option_given(table, "threads") && b->c.threads != 1)
        return report(TN_CODE_USAGE, "bench: --clock cpu is for one thread");
    int code = launch_check(c, table, &b->c);
    if (code < 0 && b->file)
        code = options_refuse(c, table,
                              "model batch-size seq-len dtype param-dtype accumulate optimizer "
                              "rounding recompute fuse mesh shard bucket reduce chunk "
                              "chunk-accumulate",
                              "is for a model, not for a graph");
    if (code < 0)
        code = check_chunk(c, table, NULL, &b->c);
    if (code < 0)
        code = check_optimizer(c, table, &b->c.o);
    return code < 0 && bench_cpu(b)
               ? options_refuse(c, table, "mesh", "does not go with --clock cpu")
               : code;
}

static int parse_bench(int argc, char **argv, Bench *b)
{
    const OptionSlot slots[] = {{"model", &b->model},   {"batch-size", &b->c.batch},
                                {"seq-len", &b->c.seq}, {"runs", &b->runs},
                                {"clock", &b->clock},   {"json", &b->json},
                                COMMON_SLOTS(b->c),     {0}};
    const Command *c = command_find("bench");
    options_begin(b->table, c->name, &b->c.o, slots);
    int code = options_parse(c, argc, argv, b->table, &b->args, 0, 2);
    if (code >= 0)
        return code;
    b->what = b->args.count ? b->args.text[0] : "step";
    b->file = b->args.count > 1 ? b->args.text[1] : NULL;
    code = check_bench(c, b->table, b);
    if (code < 0 && bench_cpu(b))
        b->c.threads = 1;
    if (code < 0)
        common_apply(&b->c);
    return code;
}

int command_bench(int argc, char **argv)
{
    Bench b = {.c = {.o = tn_options_default()}};
    Launch l;
    int code = launch_begin(&l, command_find("bench"), argc, argv);
    if (code < 0)
        code = launch_parsed(&l, parse_bench(argc, argv, &b), b.table, &b.args);
    if (code < 0)
        code = launch_run(&l, &b.c, run_bench, &b);
    launch_drop(&l);
    return code;
}
