/* Measured seconds of a step against estimated ones over a curve of limits of memory: POINTS of
 * them, evenly from above the least that would do to what the step needs with all values saved.
 * Each is planned with --memory. Steps of all limits are measured in turn, so that a machine that
 * slows down slows all; one program is in memory at a time, and its first step does not count.
 * Prints the median of each limit's steps and its ratio to the estimate, and exits with 1 where one
 * is more than MOST off. CLOCK cpu: CPU time of one thread, for a machine that others use.
 *
 * Usage: curve MODEL BATCH LENGTH f32|bf16 [ROUNDS [CLOCK [MACHINE]]] */
#include "step.h"
#include "../src/machine/machine.h"

#include <math.h>
#include <string.h>

enum { POINTS = 6, MOST_ROUNDS = 20 };
#define MOST 0.08 /* of the estimate */

typedef struct Point {
    int64_t limit, nbytes;
    tn_options o;
    tn_plan *plan;
    double estimated, measured[MOST_ROUNDS];
} Point;

typedef struct Bench {
    tn_context *ctx;
    tn_model *model;
    int64_t batch, length, vocab;
    int rounds;
    bool cpu;
} Bench;

/* Plans a step; its bytes, also where it does not fit. */
static int64_t plan(const Bench *b, const tn_options *o, tn_plan **p)
{
    tn_graph *g;
    int64_t peak, persistent, reserve;
    ok(b->ctx, tn_model_graph(b->model, b->batch, b->length, o, &g));
    ok(b->ctx, tn_graph_passes(g, "default", o, NULL, NULL));
    const int code = tn_plan_new(g, o, 1, p);
    if (code != TN_CODE_FIT)
        ok(b->ctx, code);
    tn_plan_bytes(*p, &peak, &persistent, &reserve);
    return peak + reserve;
}

static double clock_sec(const Bench *b)
{
    return b->cpu ? cpu_sec() : now_sec();
}

/* The seconds of one step, after another one. */
static double measure(const Bench *b, const Point *p, int round)
{
    tn_program *x;
    double start = 0;
    ok(b->ctx, tn_program_new(p->plan, &p->o, &x));
    ok(b->ctx, tn_program_load(x, b->model, &p->o));
    for (int i = 0; i < 2; i++) {
        put_step(b->ctx, x, b->vocab, 2 * round + i + 1);
        start = clock_sec(b);
        ok(b->ctx, tn_program_run(x));
    }
    const double sec = clock_sec(b) - start;
    tn_program_free(x);
    return sec;
}

static bool print(const Bench *b, Point *p)
{
    const double measured = median_sec(p->measured, b->rounds);
    const double off = measured / p->estimated - 1;
    printf("  %10.1f %10.1f %12.4f %12.4f %8.3f%s\n", (double)p->limit / 0x1p20,
           (double)p->nbytes / 0x1p20, p->estimated, measured, measured / p->estimated,
           fabs(off) > MOST ? "  off" : "");
    return fabs(off) <= MOST;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: curve MODEL BATCH LENGTH f32|bf16 [ROUNDS [CLOCK [MACHINE]]]\n");
        return 2;
    }
    Bench b = {.ctx = tn_context_new(),
               .batch = atoi(argv[2]),
               .length = atoi(argv[3]),
               .rounds = argc > 5 ? atoi(argv[5]) : 3,
               .cpu = argc > 6 && !strcmp(argv[6], "cpu")};
    Point point[POINTS];
    tn_options o = tn_options_default();
    tn_plan *p;
    int64_t context;
    bool good = true;
    CHECK(b.ctx && b.rounds >= 1 && b.rounds <= MOST_ROUNDS);
    tn_threads(b.cpu ? 1 : 0);
    ok(b.ctx, tn_model_open(b.ctx, argv[1], &b.model));
    tn_model_shape(b.model, &b.vocab, &context);
    o.dtype = argv[4];
    o.machine = argc > 7 ? argv[7] : "none";
    o.memory = 1;
    const int64_t least = plan(&b, &o, &p);
    o.memory = 0;
    const int64_t most = plan(&b, &o, &p);
    for (int i = 0; i < POINTS; i++) {
        double added;
        point[i] = (Point){.limit = least + (most - least) * (i + 1) / POINTS, .o = o};
        point[i].o.memory = point[i].limit;
        point[i].nbytes = plan(&b, &point[i].o, &point[i].plan);
        tn_plan_sec(point[i].plan, &point[i].estimated, &added);
    }
    for (int round = 0; round < b.rounds; round++)
        for (int i = 0; i < POINTS; i++)
            point[i].measured[round] = measure(&b, &point[i], round);
    printf("%s, batch %s, length %s, %s\n", argv[1], argv[2], argv[3], argv[4]);
    printf("  %10s %10s %12s %12s %8s\n", "limit MiB", "needs MiB", "estimated", "measured",
           "ratio");
    for (int i = 0; i < POINTS; i++)
        good &= print(&b, &point[i]);
    tn_context_free(b.ctx);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
