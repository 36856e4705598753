/* A training step on a GPU: seconds of a step (median of RUNS, from the first byte of the batch to
 * the loss on the host), planned peak beside the highest byte written, memory of the process beside
 * the arena, and by op and shape what calls take, waited for one by one, as a share of the
 * bandwidth or the product rate measured in the same run. Usage: gpu_step MODEL BATCH SEQ DTYPE
 * [RECOMPUTE [WORD...]]; brief: not the calls; gradients: forward and backward alone, with
 * parameters in DTYPE; unfused: without fused nodes; machine=FILE|NAME|none: by which the step is
 * planned (as tenon does without --machine) */
#include "../include/tenon.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 20, WARM = 3, TRACED = 3, SHOWN = 40, COPY = 1 << 30 };

typedef struct Bench {
    tn_context *ctx;
    tn_model *model;
    tn_graph *g;
    tn_plan *plan;
    tn_program *x;
    int64_t *ids;
    int64_t batch, seq, vocab;
    bool gradients, brief, unfused;
    const char *machine;
    double bandwidth; /* bytes a second */
} Bench;

static void good(const Bench *b, int code, const char *what)
{
    if (!code)
        return;
    const char *why = b->x ? tn_program_error(b->x) : "";
    fprintf(stderr, "gpu_step: %s: %s\n", what, *why ? why : tn_error(b->ctx));
    exit(EXIT_FAILURE);
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* A copy within the GPU's memory, bytes read and written. */
static double measure_bandwidth(void)
{
    void *from, *to;
    cudaEvent_t begin, end;
    double sec[10];
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    if (cudaMalloc(&from, COPY) || cudaMalloc(&to, COPY))
        return 0;
    for (int i = 0; i < 10; i++) {
        float ms;
        cudaEventRecord(begin, NULL);
        cudaMemcpyAsync(to, from, COPY, cudaMemcpyDeviceToDevice, NULL);
        cudaEventRecord(end, NULL);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&ms, begin, end);
        sec[i] = 1e-3 * ms;
    }
    cudaFree(from);
    cudaFree(to);
    return 2.0 * COPY / median(sec, 10);
}

static double used_bytes(void)
{
    size_t left, all;
    cudaMemGetInfo(&left, &all);
    return (double)(all - left);
}

static void put(const Bench *b, const char *name, const void *data, int64_t nbytes)
{
    tn_port port;
    if (!tn_program_port(b->x, name, &port))
        good(b, tn_program_write(b->x, name, data, nbytes), name);
}

/* Writes the batch and the scalars, runs, reads the loss. */
static double run(const Bench *b, int64_t step)
{
    const float rate = 1e-4f;
    int64_t nbytes = b->batch * b->seq * (int64_t)sizeof *b->ids;
    float loss = 0;
    put(b, "input_ids", b->ids, nbytes);
    put(b, "labels", b->ids + b->batch * b->seq, nbytes);
    put(b, "lr", &rate, sizeof rate);
    put(b, "step", &step, sizeof step);
    good(b, tn_program_run(b->x), "run");
    good(b, tn_program_read(b->x, "loss", &loss, sizeof loss), "loss");
    return loss;
}

static void open_step(Bench *b, char **arg, tn_options *o)
{
    tn_graph *g;
    int64_t context, n = b->batch * b->seq;
    uint64_t z = 88172645463325252u;
    good(b, tn_model_open(b->ctx, arg[1], &b->model), arg[1]);
    good(b, tn_model_graph(b->model, b->batch, b->seq, o, &g), "graph");
    good(b, tn_graph_passes(g, b->gradients ? "gradients" : "default", o, NULL, NULL), "passes");
    good(b, tn_plan_new(g, o, 1, &b->plan), "plan");
    good(b, tn_program_new(b->plan, o, &b->x), "program");
    good(b, tn_program_load(b->x, b->model, o), "load");
    tn_model_shape(b->model, &b->vocab, &context);
    b->ids = malloc(2 * (size_t)n * sizeof *b->ids);
    for (int64_t i = 0; i < 2 * n; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        b->ids[i] = (int64_t)(z % (uint64_t)b->vocab);
    }
}

static void show_memory(const Bench *b, double before)
{
    int64_t peak, persistent, reserve, high = 0;
    tn_plan_bytes(b->plan, &peak, &persistent, &reserve);
    for (int i = 0; i < 2; i++) {
        int pattern = i ? 0xA5 : 0x5A;
        tn_program_fill(b->x, pattern);
        run(b, i + 1);
        int64_t h = tn_program_high(b->x, pattern);
        high = h > high ? h : high;
    }
    double used = used_bytes();
    printf("planned %.2f MiB, highest byte written %.2f MiB%s; in use on the GPU %.0f MiB, of them "
           "before the program %.0f: the arena and %.0f MiB\n",
           (double)peak / 0x1p20, (double)high / 0x1p20, peak == high ? "" : " (OTHER)",
           used / 0x1p20, before / 0x1p20, (used - (double)peak) / 0x1p20);
}

static int by_time(const void *x, const void *y)
{
    const tn_call *a = x, *b = y;
    double s = a->sec * (double)a->count, t = b->sec * (double)b->count;
    return (s < t) - (s > t);
}

static void show_calls(const Bench *b)
{
    const tn_call *calls;
    int n;
    good(b, tn_program_trace(b->x, TRACED), "trace");
    for (int i = 0; i < TRACED; i++) {
        tn_program_trace_next(b->x, i);
        run(b, i + 3);
    }
    good(b, tn_program_calls(b->x, &calls, &n), "calls");
    tn_call *sorted = malloc((size_t)n * sizeof *sorted);
    double all = 0;
    memcpy(sorted, calls, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_time);
    for (int i = 0; i < n; i++)
        all += sorted[i].sec * (double)sorted[i].count;
    printf("calls, each waited for (some us more than in a graph): %.2f ms\n", 1e3 * all);
    printf("%8s %5s %9s %9s %6s  op (kernel) operands -> results\n", "ms/step", "calls", "us/call",
           "rate", "share");
    for (int i = 0; i < n && i < SHOWN; i++) {
        const tn_call *c = &sorted[i];
        bool math = !strcmp(c->limit, "product") || !strcmp(c->limit, "attention");
        double rate = (math ? c->nflop / 1e12 : c->nbytes / 1e9) / c->sec;
        printf("%8.3f %5lld %9.1f %9.1f %5.0f%%  %s (%s) %.120s\n", 1e3 * c->sec * (double)c->count,
               (long long)c->count, 1e6 * c->sec, rate,
               math ? 0 : 100 * c->nbytes / c->sec / b->bandwidth, c->op, c->kernel, c->tensors);
    }
    free(sorted);
}

static void read_words(Bench *b, int argc, char **argv)
{
    for (int i = 6; i < argc; i++) {
        bool brief = !strcmp(argv[i], "brief"), gradients = !strcmp(argv[i], "gradients");
        bool machine = !strncmp(argv[i], "machine=", 8), unfused = !strcmp(argv[i], "unfused");
        if (machine)
            b->machine = argv[i] + 8;
        if (!brief && !gradients && !machine && !unfused)
            argc = 0;
        b->brief |= brief;
        b->gradients |= gradients;
        b->unfused |= unfused;
    }
    if (argc < 5) {
        fprintf(stderr, "usage: gpu_step MODEL BATCH SEQ DTYPE [RECOMPUTE "
                        "[brief|gradients|unfused|machine=FILE]...]\n");
        exit(2);
    }
    b->batch = atoll(argv[2]);
    b->seq = atoll(argv[3]);
}

/* The line of the plan that names its machine, and that of the ways that are not the first. */
static void show_plan(const Bench *b)
{
    const char *text;
    good(b, tn_plan_text(b->plan, 0, &text), "plan");
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, "  estimate", 10) || !strncmp(line, "  ways", 6))
            printf("%.*s\n", (int)strcspn(line, "\n"), line);
    }
}

static double product_flop(const Bench *b)
{
    tn_product p[512];
    int n = tn_plan_products(b->plan, 512, p);
    double flop = 0;
    for (int i = 0; i < n && i < 512; i++)
        flop += 2.0 * (double)p[i].batch * (double)p[i].m * (double)p[i].k * (double)p[i].n *
                (double)p[i].count;
    return flop;
}

int main(int argc, char **argv)
{
    Bench b = {.ctx = tn_context_new()};
    tn_options o = tn_options_default();
    double sec[RUNS];
    read_words(&b, argc, argv);
    o.backend = "cuda";
    o.dtype = argv[4];
    o.recompute = argc > 5 ? argv[5] : "none";
    o.machine = b.machine;
    if (b.unfused)
        o.fuse = 0;
    if (b.gradients)
        o.param_dtype = o.dtype;
    b.bandwidth = measure_bandwidth();
    double before = used_bytes();
    open_step(&b, argv, &o);
    show_plan(&b);
    show_memory(&b, before);
    for (int i = 0; i < WARM + RUNS; i++) {
        struct timespec t[2];
        timespec_get(&t[0], TIME_UTC);
        double loss = run(&b, i + 3);
        timespec_get(&t[1], TIME_UTC);
        if (i >= WARM)
            sec[i - WARM] =
                (double)(t[1].tv_sec - t[0].tv_sec) + 1e-9 * (double)(t[1].tv_nsec - t[0].tv_nsec);
        else
            printf("loss %.5f\n", loss);
    }
    double step = median(sec, RUNS);
    printf("%s %s x %s %s, recompute %s%s: %.2f ms a step (%.2f to %.2f), products alone at %.0f "
           "TFLOP/s over the whole step; a copy %.0f GB/s\n",
           argv[1], argv[2], argv[3], argv[4], o.recompute,
           b.gradients ? ", forward and backward" : "", 1e3 * step, 1e3 * sec[0],
           1e3 * sec[RUNS - 1], product_flop(&b) / step / 1e12, b.bandwidth / 1e9);
    if (!b.brief)
        show_calls(&b);
    return 0;
}
