/* bench: what a step costs beside what its matrix products alone would cost on this machine.
 *
 * The limit is measured in the same run: every distinct product of the step runs alone through the
 * same library, with plain and with transposed operands, and counts at its fastest. The ratio is
 * that limit's share of the step. Machines are shared: medians, with CPU seconds beside wall
 * seconds. */
#include "cli.h"

#include "../train/train.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PRODUCTS = 64, MOST_RUNS = 99 };

typedef struct Bench {
    tn_context *ctx;
    tn_options o;
    const char *what, *model;
    int64_t batch, seq, runs, threads;
    int json, printed;
} Bench;

/* ---- results ---- */

typedef struct Result {
    const char *name, *unit;
    double value, limit; /* limit 0: none */
    int64_t runs;
    double min, max;
} Result;

static void print_result(Bench *b, const Result *r)
{
    double ratio = r->limit > 0 && r->value > 0 ? r->limit / r->value : 0;
    if (b->json) {
        printf("%s {\"name\": \"%s B=%lld T=%lld %s\", \"value\": %.6g, \"unit\": \"%s\", ",
               b->printed++ ? ",\n" : "[\n", b->model, (long long)b->batch, (long long)b->seq,
               r->name, r->value, r->unit);
        printf(r->limit > 0 ? "\"limit\": %.6g, \"ratio\": %.4f, "
                            : "\"limit\": null, \"ratio\": null, ",
               r->limit, ratio);
        printf("\"runs\": %lld, \"min\": %.6g, \"max\": %.6g}", (long long)r->runs, r->min, r->max);
        return;
    }
    printf("%s B=%lld T=%lld  %-34s %12.6g %-6s", b->model, (long long)b->batch, (long long)b->seq,
           r->name, r->value, r->unit);
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

static Result median(const char *name, const char *unit, double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return (Result){name, unit, x[n / 2], 0, n, x[0], x[n - 1]};
}

static double cpu_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- products alone ---- */

/* mm of operands that lie transposed or not. */
static int product_graph(Bench *b, const tn_product *p, int ta, int tb, tn_graph **g)
{
    int64_t a[] = {ta ? p->k : p->m, ta ? p->m : p->k}, c[] = {tb ? p->n : p->k, tb ? p->k : p->n};
    tn_value *in[2], *out;
    int code = tn_graph_new(b->ctx, "product", g);
    if (!code)
        code = tn_graph_input(*g, "a", "f32", 2, a, "", NULL, &in[0]);
    if (!code)
        code = tn_graph_input(*g, "b", "f32", 2, c, "", NULL, &in[1]);
    if (!code && ta)
        code = tn_graph_node(*g, "t", 1, &in[0], NULL, NULL, NULL, 1, &in[0]);
    if (!code && tb)
        code = tn_graph_node(*g, "t", 1, &in[1], NULL, NULL, NULL, 1, &in[1]);
    if (!code)
        code = tn_graph_node(*g, "mm", 2, in, NULL, NULL, NULL, 1, &out);
    return code ? code : tn_graph_output(*g, out, "", NULL);
}

static void fill(tn_program *x, const char *name)
{
    void *data;
    int64_t nbytes;
    if (tn_program_data(x, name, &data, &nbytes))
        return;
    for (int64_t i = 0; i < nbytes / 4; i++)
        ((float *)data)[i] = (float)(i % 13) * 0.01f - 0.06f;
}

/* Least seconds of one product in one layout; negative where it cannot run. */
static double time_layout(Bench *b, const tn_product *p, int ta, int tb)
{
    tn_graph *g = NULL;
    tn_plan *plan = NULL;
    tn_program *x = NULL;
    double best = -1;
    if (!product_graph(b, p, ta, tb, &g) && !tn_plan_new(g, &b->o, 0, &plan) &&
        !tn_program_new(plan, &b->o, &x)) {
        fill(x, "a");
        fill(x, "b");
        double total = 0;
        for (int i = 0; i < 4 || (total < 0.05 && i < 200); i++) {
            double start = wall_sec();
            if (tn_program_run(x))
                break;
            double sec = wall_sec() - start;
            total += sec;
            if (i) /* the first touches the pages */
                best = best < 0 || sec < best ? sec : best;
        }
    }
    tn_program_free(x);
    tn_plan_free(plan);
    tn_graph_free(g);
    return best;
}

static double products_sec(Bench *b, const tn_plan *plan)
{
    static const int layout[][2] = {{0, 0}, {0, 1}, {1, 0}};
    tn_product p[MOST_PRODUCTS];
    int n = tn_plan_products(plan, MOST_PRODUCTS, p);
    double sum = 0;
    for (int i = 0; i < n && i < MOST_PRODUCTS; i++) {
        double best = -1;
        for (int k = 0; k < LEN(layout); k++) {
            double sec = time_layout(b, &p[i], layout[k][0], layout[k][1]);
            best = sec > 0 && (best < 0 || sec < best) ? sec : best;
        }
        sum += best * (double)(p[i].batch * p[i].count);
    }
    return sum;
}

/* ---- a step ---- */

static void fill_tokens(tn_program *x, const char *name, int64_t vocab)
{
    void *data;
    int64_t nbytes;
    if (tn_program_data(x, name, &data, &nbytes))
        return;
    uint64_t z = 88172645463325252u;
    for (int64_t i = 0; i < nbytes / 8; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        ((int64_t *)data)[i] = (int64_t)(z % (uint64_t)vocab);
    }
}

static void set_scalars(tn_program *x, int64_t step)
{
    void *data;
    if (!tn_program_data(x, "lr", &data, NULL))
        *(float *)data = 1e-4f;
    if (!tn_program_data(x, "step", &data, NULL))
        *(int64_t *)data = step;
}

static int run_once(tn_program *x, int64_t vocab, int64_t step)
{
    fill_tokens(x, "input_ids", vocab);
    fill_tokens(x, "labels", vocab);
    set_scalars(x, step);
    return tn_program_run(x);
}

static int measure_peak(Bench *b, tn_program *x, tn_plan *p, int64_t vocab)
{
    int64_t high = 0, peak, persistent, reserve;
    for (int i = 0; i < 2; i++) {
        int pattern = i ? 0xA5 : 0x5A;
        tn_program_fill(x, pattern);
        int code = run_once(x, vocab, i + 1);
        if (code)
            return code;
        int64_t h = tn_program_high(x, pattern);
        high = h > high ? h : high;
    }
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    print_result(b, &(Result){"planned peak", "MiB", (double)peak / 0x1p20, 0, 1, 0, 0});
    print_result(
        b, &(Result){"measured peak (highest byte)", "MiB", (double)high / 0x1p20, 0, 2, 0, 0});
    print_result(b, &(Result){"peak resident", "MiB", (double)tn_rss_peak() / 0x1p20, 0, 1, 0, 0});
    return 0;
}

static int time_steps(Bench *b, tn_program *x, tn_plan *p, int64_t vocab)
{
    double wall[MOST_RUNS] = {0}, cpu[MOST_RUNS] = {0};
    for (int64_t i = 0; i < b->runs; i++) {
        double w = wall_sec(), c = cpu_sec();
        int code = run_once(x, vocab, i + 3);
        if (code)
            return code;
        wall[i] = wall_sec() - w;
        cpu[i] = cpu_sec() - c;
    }
    Result step = median("step", "s", wall, b->runs), used = median("step, CPU", "s", cpu, b->runs);
    step.limit = products_sec(b, p);
    print_result(b, &step);
    print_result(b, &used);
    return 0;
}

static int bench_step(Bench *b)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    int64_t vocab, context;
    int code = tn_model_open(b->ctx, b->model, &m);
    if (!code)
        code = tn_model_graph(m, b->batch, b->seq, &b->o, &g);
    if (!code)
        code = tn_graph_passes(g, "default", &b->o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &b->o, 1, &p);
    if (!code)
        code = tn_program_new(p, &b->o, &x);
    if (!code)
        code = tn_program_load(x, m, &b->o);
    if (code)
        return code;
    tn_model_shape(m, &vocab, &context);
    code = measure_peak(b, x, p, vocab);
    return code ? code : time_steps(b, x, p, vocab);
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
        double start = wall_sec();
        code = tn_model_graph(m, b->batch, b->seq, &b->o, &g);
        if (!code)
            code = tn_graph_passes(g, "default", &b->o, NULL, NULL);
        if (!code)
            code = tn_plan_new(g, &b->o, 1, &p);
        sec[i] = wall_sec() - start;
        tn_plan_free(p);
        tn_graph_free(g);
    }
    if (code)
        return code;
    Result r = median("graph, passes and plan", "s", sec, b->runs);
    print_result(b, &r);
    return 0;
}

int command_bench(int argc, char **argv)
{
    Bench b = {.o = tn_options_default(), .model = "gpt2", .batch = 4, .seq = 64, .runs = 5};
    Option table[] = {
        {"model", OPT_IN, &b.model, "folder or preset (gpt2)", NULL, 0, 0, 0},
        {"batch-size", OPT_INT, &b.batch, "sequences (4)", NULL, 1, 1e9, 0},
        {"seq-len", OPT_INT, &b.seq, "tokens (64)", NULL, 1, 1e9, 0},
        {"runs", OPT_INT, &b.runs, "timed runs, of which the median counts (5)", NULL, 1, MOST_RUNS,
         0},
        {"accumulate", OPT_INT, &b.o.accumulate, "loop turns of a step (1)", NULL, 1, 1e9, 0},
        {"threads", OPT_INT, &b.threads, "(the cores the process may use)", NULL, 1, 4096, 0},
        {"json", OPT_FLAG, &b.json, "an array of objects", NULL, 0, 0, 0},
        {0}};
    Texts args;
    int code = options_parse(command_find("bench"), argc, argv, table, &args, 0, 1);
    if (code >= 0)
        return code;
    b.what = args.count ? args.text[0] : "step";
    bool plan = !strcmp(b.what, "plan");
    if (!plan && strcmp(b.what, "step"))
        return report(TN_CODE_USAGE, "bench: expected step or plan, found \"%s\"", b.what);
    tn_threads((int)b.threads);
    b.ctx = context_new();
    code = plan ? bench_plan(&b) : bench_step(&b);
    if (b.json)
        puts(b.printed ? "\n]" : "[]");
    if (code)
        report_last(code, b.ctx);
    tn_context_free(b.ctx);
    return code;
}
