/* Measures the most that a plan's device can do, where that is not this processor's memory and
 * cores (ceiling.c): products and streams by the ops' own kernels, on operands that no cache
 * holds, each kernel that the op has, and the fastest counts. */
#include "exec.h"

enum { NELEM = 1 << 26, NELEM_EMULATED = 1 << 22 }; /* of a stream's array, in f32 */

#define MOST_SEC 0.1 /* after which no turn begins */

/* Seconds of the one call of a graph on the device of a plan, and the bytes that it moves. */
static double op_sec(Arena *tmp, Graph *g, const Plan *like, double (*clock)(void), double *nbytes)
{
    WayTime way[MOST_WAYS];
    const Plan *p = plan_make(tmp, g, &(PlanFor){.device = like->device, .number = like->number});
    double best = 0;
    int step = 0;
    while (step < p->nstep && p->step[step].kind != STEP_CALL)
        step++;
    int n = step < p->nstep ? way_times(tmp, p, step, MOST_SEC, clock, way) : 0;
    for (int i = 0; i < n; i++)
        if (way[i].sec > 0 && (!best || way[i].sec < best))
            best = way[i].sec;
    if (!best)
        fail(arena_ctx(tmp), TN_FAIL, "%s: no kernel ran, to measure a limit", like->device->name);
    Cost c = step_cost(&p->step[step]);
    *nbytes = c.nread + c.nwrite;
    return best;
}

double device_product_sec(Arena *tmp, const Plan *like, const Product *p, double (*clock)(void))
{
    Graph *g = graph_new(tmp, "product");
    Build b = {.g = g, .phase = FORWARD, .scope = ""};
    Type left = type_make(p->in, 2, (int64_t[]){p->m, p->k});
    Type right = type_make(p->in, 2, (int64_t[]){p->k, p->n});
    double nbytes;
    graph_output(g,
                 emit1(&b, "mm",
                       IN(graph_input(g, "a", left, ROLE_PARAM, "a"),
                          graph_input(g, "b", right, ROLE_PARAM, "b")),
                       NOATTRS),
                 ROLE_NONE, NULL);
    return op_sec(tmp, g, like, clock, &nbytes);
}

/* The op of a stream, of one array or two that stay, or renews the first. */
static double stream_rate(Arena *tmp, const Plan *like, const char *op, int narray, bool renews,
                          double (*clock)(void))
{
    Graph *g = graph_new(tmp, "stream");
    Build b = {.g = g, .phase = FORWARD, .scope = ""};
    bool gpu = device_is_gpu(like->device);
    Type t = type_make(F32, 1, (int64_t[]){gpu ? NELEM : NELEM_EMULATED});
    Value *x = graph_input(g, "x", t, ROLE_PARAM, "x"), *y = x, *z;
    double nbytes;
    if (narray == 2)
        y = graph_input(g, "y", t, ROLE_PARAM, "y");
    z = narray == 2 ? emit1(&b, op, IN(x, y), NOATTRS) : emit1(&b, op, IN(x), NOATTRS);
    graph_output(g, z, renews ? ROLE_NEW : ROLE_NONE, renews ? "x" : NULL);
    double sec = op_sec(tmp, g, like, clock, &nbytes);
    return nbytes / sec;
}

void device_stream_rates(Arena *tmp, const Plan *like, double (*clock)(void), double rate[NSTREAM])
{
    rate[LIMIT_READ] = stream_rate(tmp, like, "sum", 1, false, clock);
    rate[LIMIT_COPY] = stream_rate(tmp, like, "clone", 1, false, clock);
    rate[LIMIT_ADD] = stream_rate(tmp, like, "add", 2, false, clock);
    rate[LIMIT_UPDATE] = stream_rate(tmp, like, "add", 2, true, clock);
}
