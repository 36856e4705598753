/* Measured steps within limits of memory against estimated ones: of COUNT limits, evenly from the
 * least to what all saved needs, each a program of its own; their steps run in turns, so that a
 * machine that slows down slows all. For each the estimated and the measured seconds, each over
 * those of all saved, and whether losses and gradient norms have the bits of all saved. CLOCK cpu:
 * CPU time of one thread, for a machine that others use. LIMIT, in bytes, in place of a count: that
 * limit, and all saved, with one program in memory at a time, whose only step is measured: by CLOCK
 * cpu without the kernel's time, which its first use of memory takes. With CHUNK (auto, or a
 * number) that limit with slices too, which have other bits. Usage: memory MODEL BATCH LENGTH
 * f32|bf16 COUNT|LIMIT [RUNS [CLOCK [MACHINE [CHUNK]]]] */
#include "step.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MOST_RUNS = 100, MOST_LIMITS = 12 };

typedef struct Case {
    int64_t limit;
    const char *chunk; /* NULL: no slices */
    tn_plan *plan;
    tn_program *x;
    double sec[MOST_RUNS];
    float loss[MOST_RUNS], norm[MOST_RUNS];
} Case;

typedef struct Bench {
    tn_context *ctx;
    tn_model *model;
    tn_options o;
    int64_t vocab, batch, length;
    int runs, count;
    bool cpu, alone;     /* alone: one program is in memory at a time */
    Case c[MOST_LIMITS]; /* the last has all saved */
} Bench;

/* ---- programs ---- */

static void find_limits(Bench *b, int count)
{
    tn_curve_point point[MOST_LIMITS];
    tn_graph *g;
    ok(b->ctx, tn_model_graph(b->model, b->batch, b->length, &b->o, &g));
    ok(b->ctx, tn_graph_curve(g, "default", &b->o, count, point, NULL, NULL));
    for (int i = 0; i < count; i++)
        b->c[i].limit = i < count - 1 ? point[i].limit : 0;
    tn_graph_free(g);
    b->count = count;
}

static void load(Bench *b, Case *c)
{
    ok(b->ctx, tn_program_new(c->plan, &b->o, &c->x));
    ok(b->ctx, tn_program_load(c->x, b->model, &b->o));
}

static void make(Bench *b, Case *c)
{
    tn_graph *g;
    tn_options o = b->o;
    o.memory = c->limit;
    o.chunk = &c->chunk;
    o.nchunk = c->chunk != NULL;
    ok(b->ctx, tn_model_graph(b->model, b->batch, b->length, &o, &g));
    ok(b->ctx, tn_graph_passes(g, "default", &o, NULL, NULL));
    ok(b->ctx, tn_plan_new(g, &o, 1, &c->plan));
    if (b->runs && !b->alone)
        load(b, c);
}

/* ---- measuring ---- */

static double clock_sec(const Bench *b)
{
    struct rusage used;
    if (!b->cpu || !b->alone)
        return b->cpu ? cpu_sec() : now_sec();
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec;
}

/* number -1: a first step, whose time does not count. */
static void run(Bench *b, Case *c, int number)
{
    if (b->alone)
        load(b, c);
    put_step(b->ctx, c->x, b->vocab, number + 2);
    double start = clock_sec(b);
    ok(b->ctx, tn_program_run(c->x));
    double sec = clock_sec(b) - start;
    if (number < 0)
        return;
    c->sec[number] = sec;
    ok(b->ctx, tn_program_read(c->x, "loss", &c->loss[number], sizeof(float)));
    ok(b->ctx, tn_program_read(c->x, "metric.grad_norm", &c->norm[number], sizeof(float)));
    if (b->alone)
        tn_program_free(c->x);
}

static bool same_bits(const Bench *b, const Case *c)
{
    const Case *all = &b->c[b->count - 1];
    const size_t size = (size_t)b->runs * sizeof(float);
    return !memcmp(c->loss, all->loss, size) && !memcmp(c->norm, all->norm, size);
}

/* The median of the step's seconds over those of all saved in the same turn. */
static double ratio_of(const Bench *b, const Case *c)
{
    double ratio[MOST_RUNS];
    for (int i = 0; i < b->runs; i++)
        ratio[i] = c->sec[i] / b->c[b->count - 1].sec[i];
    return median_sec(ratio, b->runs);
}

static void print(Bench *b)
{
    double sec, added, all;
    int64_t peak, kept, reserve;
    tn_plan_sec(b->c[b->count - 1].plan, &all, &added);
    printf("  %14s %14s %10s %10s %9s %8s %8s  %s\n", "limit", "needs", "estimated", "measured",
           "over", "over", "ratio", "bits");
    for (int i = 0; i < b->count; i++) {
        Case *c = &b->c[i];
        tn_plan_sec(c->plan, &sec, &added);
        tn_plan_bytes(c->plan, &peak, &kept, &reserve);
        printf("  %14lld %14lld %10.5f", (long long)c->limit, (long long)(peak + reserve), sec);
        const double ratio = b->runs ? ratio_of(b, c) : 0;
        double copy[MOST_RUNS];
        memcpy(copy, c->sec, sizeof copy);
        if (b->runs)
            printf(" %10.5f %9.4f %8.4f %8.4f  %s", median_sec(copy, b->runs), sec / all, ratio,
                   sec / all / ratio, same_bits(b, c) ? "same" : "OTHER");
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: memory MODEL BATCH LENGTH f32|bf16 COUNT|LIMIT [RUNS [CLOCK "
                        "[MACHINE [CHUNK]]]]\n");
        return 2;
    }
    static Bench b;
    b = (Bench){.ctx = tn_context_new(), .runs = argc > 6 ? atoi(argv[6]) : 5};
    CHECK(b.ctx && b.runs >= 0 && b.runs <= MOST_RUNS);
    b.cpu = argc > 7 && !strcmp(argv[7], "cpu");
    b.batch = atoi(argv[2]);
    b.length = atoi(argv[3]);
    b.o = tn_options_default();
    b.o.dtype = argv[4];
    b.o.machine = argc > 8 ? argv[8] : "none";
    tn_threads(b.cpu ? 1 : 0);
    int64_t context, limit = tn_bytes(argv[5]);
    ok(b.ctx, tn_model_open(b.ctx, argv[1], &b.model));
    tn_model_shape(b.model, &b.vocab, &context);
    printf("%s, batch %s, length %s, %s\n", argv[1], argv[2], argv[3], argv[4]);
    if (limit >= 2 && limit <= MOST_LIMITS) {
        find_limits(&b, (int)limit);
    } else {
        b.alone = true;
        b.count = argc > 9 ? 3 : 2;
        for (int k = 0; k < b.count - 1; k++)
            b.c[k].limit = limit;
        b.c[b.count - 2].chunk = argc > 9 ? argv[9] : NULL;
    }
    for (int k = 0; k < b.count; k++)
        make(&b, &b.c[k]);
    for (int i = b.runs && !b.alone ? -1 : 0; i < b.runs; i++)
        for (int k = 0; k < b.count; k++) {
            run(&b, &b.c[k], i);
            if (b.alone && i >= 0)
                printf("  run %d: limit %lld: %.3f s\n", i + 1, (long long)b.c[k].limit,
                       b.c[k].sec[i]);
            fflush(stdout);
        }
    print(&b);
    tn_context_free(b.ctx);
    return EXIT_SUCCESS;
}
