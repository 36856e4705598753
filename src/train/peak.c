/* Measures this machine's best matmul rate: a square product through the same library, repeated. As
 * machines get hot, busy or throttled, it is measured again when steps become slower or faster. */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of the product: of a processor's core, or of a GPU, which a small one does not fill. */
enum { SIDE = 1024, GPU_SIDE = 4096, RUNS = 12, REST_SEC = 30 };

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

static double best_sec(tn_program *x)
{
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
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

static double measure(tn_context *ctx, const tn_options *from)
{
    tn_options o = tn_options_default();
    bool gpu = from->backend && !strcmp(from->backend, "cuda");
    int64_t side = gpu ? GPU_SIDE : SIDE;
    o.backend = from->backend;
    o.device = from->device;
    o.machine = from->machine;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    double sec = 0;
    if (!build(ctx, from->dtype, side, &g) && !tn_plan_new(g, &o, 0, &p) &&
        !tn_program_new(p, &o, &x) && !fill(x))
        sec = best_sec(x);
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
    return sec > 0 ? 2.0 * (double)side * (double)side * (double)side / sec : 0;
}

Peak peak_new(tn_context *ctx, const tn_options *o)
{
    return (Peak){.flops = measure(ctx, o), .when = wall_sec()};
}

bool peak_drifts(const Peak *p, double nflop, double step_sec)
{
    const double part = 0.15;
    bool slower = step_sec > (1 + part) * p->step_sec, faster = step_sec < p->step_sec / (1 + part);
    return slower || faster || nflop > p->flops * step_sec;
}

void peak_follow(Peak *p, tn_context *ctx, const tn_options *o, double nflop, double step_sec)
{
    if (p->flops <= 0)
        return;
    if (p->step_sec == 0)
        p->step_sec = step_sec;
    p->stale = peak_drifts(p, nflop, step_sec);
    if (!p->stale || wall_sec() < p->when + REST_SEC)
        return;
    *p = peak_new(ctx, o);
    p->step_sec = step_sec;
    if (p->flops > 0) /* a step may be faster than the best of these products */
        p->flops = fmax(p->flops, nflop / step_sec);
}
