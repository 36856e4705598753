/* Estimated seconds against measured ones: a training step without recomputation and with all of
 * it, in turns, so that a machine that slows down slows both. For each the median step; what
 * recomputing adds, estimated and as the median of the differences; and of the second by class of
 * op the sum over calls of their medians, fused ones among all others. CLOCK cpu: CPU time of one
 * thread, for a machine that others use. Usage: estimate MODEL BATCH LENGTH f32|bf16 [RUNS [CLOCK
 * [MACHINE]]] */
#include "step.h"
#include "../src/machine/machine.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 100, NCASE = 2 };

static const char *const recompute[NCASE] = {"none", "full"};

typedef struct Case {
    tn_plan *plan;
    tn_program *x;
    double measured[NCLASS]; /* by class of op */
    double sec[MOST_RUNS];
} Case;

typedef struct Bench {
    tn_context *ctx;
    tn_model *model;
    int64_t vocab;
    int runs;
    bool cpu;
    Case c[NCASE];
} Bench;

/* ---- measuring ---- */

static void make(Bench *b, Case *c, tn_options o, int batch, int length)
{
    tn_graph *g;
    ok(b->ctx, tn_model_graph(b->model, batch, length, &o, &g));
    ok(b->ctx, tn_graph_passes(g, "default", &o, NULL, NULL));
    ok(b->ctx, tn_plan_new(g, &o, 1, &c->plan));
    if (!b->runs)
        return;
    ok(b->ctx, tn_program_new(c->plan, &o, &c->x));
    ok(b->ctx, tn_program_load(c->x, b->model, &o));
    ok(b->ctx, (b->cpu ? tn_program_trace_cpu : tn_program_trace)(c->x, b->runs));
}

static double run(const Bench *b, Case *c, int number)
{
    put_step(b->ctx, c->x, b->vocab, number + 2);
    if (number >= 0)
        tn_program_trace_next(c->x, number);
    double start = b->cpu ? cpu_sec() : now_sec();
    ok(b->ctx, tn_program_run(c->x));
    return (b->cpu ? cpu_sec() : now_sec()) - start;
}

/* A first run of each does not count. */
static void measure(Bench *b)
{
    for (int i = -1; i < b->runs; i++)
        for (int k = 0; k < NCASE; k++) {
            double sec = run(b, &b->c[k], i);
            if (i >= 0)
                b->c[k].sec[i] = sec;
        }
    for (int k = 0; k < NCASE; k++) {
        const tn_call *call;
        int count;
        ok(b->ctx, tn_program_calls(b->c[k].x, &call, &count));
        for (int i = 0; i < count; i++) {
            const Op *op = op_find(call[i].op);
            OpClass class = op                            ? op->class
                            : !strcmp(call[i].op, "zero") ? CLASS_CREATION
                                                          : CLASS_MOVEMENT;
            b->c[k].measured[class] += call[i].sec * (double)call[i].count;
        }
    }
}

/* ---- printing ---- */

static double median(const double *x, const double *minus, int n)
{
    double copy[MOST_RUNS];
    for (int i = 0; i < n; i++)
        copy[i] = x[i] - (minus ? minus[i] : 0);
    return median_sec(copy, n);
}

static void row(const char *what, double estimated, double measured)
{
    printf("  %-24s %12.6f", what, estimated);
    if (measured)
        printf(" %12.6f %8.2f", measured, estimated / measured);
    printf("\n");
}

static void print(const Bench *b)
{
    const double *none = b->c[0].sec;
    const Estimate *full = &b->c[1].plan->p->est;
    printf("  %-24s %12s %12s %8s\n", "seconds", "estimated", "measured", "ratio");
    for (int k = 0; k < NCASE; k++) {
        const Case *c = &b->c[k];
        char text[40];
        snprintf(text, sizeof text, "step, recompute %s", recompute[k]);
        row(text, c->plan->p->est.step, b->runs ? median(c->sec, NULL, b->runs) : 0);
    }
    row("added by full", full->added, b->runs ? median(b->c[1].sec, none, b->runs) : 0);
    double rest = 0, rest_measured = 0;
    for (int k = 0; k < NCLASS; k++) {
        if (k == CLASS_PRODUCT || k == CLASS_ATTENTION || k == CLASS_OPTIMIZER) {
            row(class_name((OpClass)k), full->by_class[k], b->c[1].measured[k]);
        } else {
            rest += full->by_class[k];
            rest_measured += b->c[1].measured[k];
        }
    }
    row("all others", rest, rest_measured);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: estimate MODEL BATCH LENGTH f32|bf16 [RUNS [CLOCK [MACHINE]]]\n");
        return 2;
    }
    Bench b = {.ctx = tn_context_new(), .runs = argc > 5 ? atoi(argv[5]) : 5};
    CHECK(b.ctx && b.runs >= 0 && b.runs <= MOST_RUNS);
    b.cpu = argc > 6 && !strcmp(argv[6], "cpu");
    tn_threads(b.cpu ? 1 : 0);
    int64_t context;
    ok(b.ctx, tn_model_open(b.ctx, argv[1], &b.model));
    tn_model_shape(b.model, &b.vocab, &context);
    printf("%s, batch %s, length %s, %s\n", argv[1], argv[2], argv[3], argv[4]);
    for (int k = 0; k < NCASE; k++) {
        tn_options o = tn_options_default();
        o.dtype = argv[4];
        o.recompute = recompute[k];
        o.machine = argc > 7 ? argv[7] : "none";
        make(&b, &b.c[k], o, atoi(argv[2]), atoi(argv[3]));
    }
    if (b.runs)
        measure(&b);
    print(&b);
    tn_context_free(b.ctx);
    return EXIT_SUCCESS;
}
