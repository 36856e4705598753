/* Measures this machine's best matmul rate: square products through the same library, repeated, and
 * whole steps, which may be faster than these: their shapes may suit the library better, and a
 * neighbour may have taken the cores while products were measured. So no step is above the peak. As
 * machines get hot, busy or throttled, it is measured again when steps become slower or faster. */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Sizes of the product. A processor goes on to the next larger one where that takes no longer than
 * LONG_SEC, so that a run begins after hundredths of a second; a GPU computes a still larger one,
 * as a small one does not fill it. */
enum { SIDE = 512, MOST_SIDE = 2048, GPU_SIDE = 4096, LEAST_RUNS = 3, RUNS = 12, REST_SEC = 30 };

#define LONG_SEC   0.012
#define ENOUGH_SEC 0.03 /* of one size, after LEAST_RUNS */

double wall_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int build(tn_context *ctx, const char *dtype, int64_t side, tn_graph **g)
{
    const int64_t shape[] = {side, side};
    tn_value *in[2], *out;
    int code = tn_graph_new(ctx, "peak", g);
    for (int i = 0; i < 2 && !code; i++)
        code = tn_graph_input(*g, i ? "b" : "a", dtype, 2, shape, "", NULL, &in[i]);
    if (!code)
        code = tn_graph_node(*g, "mm", 2, in, NULL, NULL, "forward", 1, &out);
    return code ? code : tn_graph_output(*g, out, "", NULL);
}

static double best_sec(tn_program *x, double enough)
{
    const double begun = wall_sec();
    double best = 0;
    for (int i = 0; i < LEAST_RUNS || (i < RUNS && wall_sec() < begun + enough); i++) {
        double start = wall_sec();
        if (tn_program_run(x))
            return 0;
        double sec = wall_sec() - start;
        best = best == 0 || sec < best ? sec : best;
    }
    return best;
}

static int fill(tn_program *x)
{
    tn_port p;
    int code = tn_program_port(x, "a", &p);
    void *zeros = code ? NULL : calloc(1, (size_t)p.nbytes);
    for (int i = 0; i < 2 && zeros && !code; i++)
        code = tn_program_write(x, i ? "b" : "a", zeros, p.nbytes);
    free(zeros);
    return zeros ? code : -1;
}

/* Operations per second; 0: it cannot be measured. */
static double measure_side(tn_context *ctx, const tn_options *from, int64_t side, double enough)
{
    tn_options o = tn_options_default();
    o.backend = from->backend;
    o.device = from->device;
    o.machine = from->machine;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    double sec = 0;
    if (!build(ctx, from->dtype, side, &g) && !tn_plan_new(g, &o, 0, &p) &&
        !tn_program_new(p, &o, &x) && !fill(x))
        sec = best_sec(x, enough);
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
    return sec > 0 ? 2.0 * (double)side * (double)side * (double)side / sec : 0;
}

static double measure(tn_context *ctx, const tn_options *from)
{
    if (tn_backend_is_gpu(from->backend))
        return measure_side(ctx, from, GPU_SIDE, HUGE_VAL);
    double flops = measure_side(ctx, from, SIDE, ENOUGH_SEC);
    for (int64_t side = 2 * SIDE; side <= MOST_SIDE && 2 * pow((double)side, 3) <= flops * LONG_SEC;
         side *= 2)
        flops = fmax(flops, measure_side(ctx, from, side, ENOUGH_SEC));
    return flops;
}

Peak peak_new(tn_context *ctx, const tn_options *o)
{
    return (Peak){.flops = measure(ctx, o), .when = wall_sec()};
}

bool peak_drifts(const Peak *p, double step_sec)
{
    const double part = 0.15;
    return step_sec > (1 + part) * p->step_sec || step_sec < p->step_sec / (1 + part);
}

void peak_see(Peak *p, double nflop, double step_sec)
{
    if (p->flops > 0)
        p->flops = fmax(p->flops, nflop / step_sec);
}

double peak_part(const Peak *p, double nflop, double step_sec)
{
    return nflop / step_sec / p->flops;
}

void peak_follow(Peak *p, tn_context *ctx, const tn_options *o, double nflop, double step_sec)
{
    if (p->flops <= 0)
        return;
    if (p->step_sec == 0)
        p->step_sec = step_sec;
    p->stale = peak_drifts(p, step_sec);
    if (!p->stale || wall_sec() < p->when + REST_SEC)
        return;
    *p = peak_new(ctx, o);
    p->step_sec = step_sec;
    peak_see(p, nflop, step_sec); /* smoothed, it still has steps from before */
}
