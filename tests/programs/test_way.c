/* way: every kernel that takes a call as it lies is a way of it, one is the plan's; times are of
 * the clock that is given; what computes nothing has none. */
#include "../shared/test.h"

#include "../../src/exec/exec.h"
#include "../../src/product/onednn.h"

#include <string.h>

static Ctx ctx;
static Arena *a;

/* Each look at it is half a second later. */
static double ticks;
static double tick(void)
{
    return ticks += 0.5;
}

static const char *const text =
    "tenon 1\n"
    "graph g(%a: bf16[40, 24], %b: bf16[24, 32], %i: i64[5], %w: f32[40, 6]) {\n"
    "  %y: f32[40, 32] = mm(%a, %b, out_dtype=f32)  forward\n"
    "  %t: f32[32, 40] = permute(%y, dims=[1, 0])  forward\n"
    "  %e: f32[5, 6] = embedding(%w, %i)  forward\n"
    "  %z: f32[32, 6] = mm(%t, %w)  forward\n"
    "  return %z, %e\n}\n";

static int find_step(const Plan *p, const char *op, int from)
{
    for (int i = from; i < p->nstep; i++)
        if (p->step[i].kind == STEP_CALL && !strcmp(p->step[i].node->op->name, op))
            return i;
    return -1;
}

/* How many kernels of the list take the call, counted here. */
static int count_kernels(const Step *s)
{
    int n = 0;
    for (const Kernel *k = op_kernels(s->node->op, KERNELS_CPU); k->name; k++)
        n += k->accepts(&s->call);
    return n;
}

static void test_ways(const Plan *p)
{
    WayTime way[MOST_WAYS];
    for (int i = find_step(p, "mm", 0); i >= 0; i = find_step(p, "mm", i + 1)) {
        int n = way_count(p, i), taken = 0;
        EXPECT(n > 0 && n == count_kernels(&p->step[i]));
        EXPECT(way_times(a, p, i, 0, tick, way) == n);
        for (int k = 0; k < n; k++) {
            EXPECT(way[k].sec == 0.5 && way[k].runs == 2);
            EXPECT(way[k].taken == (way[k].kernel == p->step[i].kernel));
            taken += way[k].taken;
        }
        EXPECT(taken == 1);
        EXPECT(way_times(a, p, i, 30, tick, way) == n && way[0].runs > 2);
    }
}

/* Indices of all kinds are in range, and the program's own memory is left alone. */
static void test_others(const Plan *p)
{
    WayTime way[MOST_WAYS];
    int e = find_step(p, "embedding", 0);
    EXPECT(e >= 0 && way_times(a, p, e, 0, tick, way) == way_count(p, e) && way[0].sec > 0);
    EXPECT(!p->step[e].call.in[0].data);
    for (int i = 0; i < p->nstep; i++)
        if (p->step[i].kind != STEP_CALL)
            EXPECT(!way_count(p, i) && !way_times(a, p, i, 0, tick, way));
}

/* A call whose operand is copied first runs as one whose operand lies so, and is named: they have
 * one key. */
static void test_packed(void)
{
    Graph *g = graph_parse(a,
                           "tenon 1\n"
                           "graph g(%a: f32[64, 512], %b: f32[64, 1024], %w: f32[512, 512]) {\n"
                           "  %y: f32[64, 512] = mm(%a, %w)  forward\n"
                           "  %s: f32[64, 512] = slice(%b, dim=1, step=2)  forward\n"
                           "  %z: f32[64, 512] = mm(%s, %w)  forward\n"
                           "  return %y, %z\n}\n",
                           "packed");
    Machine *m = machine_copy(a, machine_get(a, "none", par_threads()));
    machine_set_way(m, "mm f32[64, 512] f32[512, 512] -> f32[64, 512]", "onednn_gemm");
    const Plan *p = plan_make(a, g, &(PlanFor){.machine = m});
    int y = find_step(p, "mm", 0), z = find_step(p, "mm", y + 1);
    EXPECT(p->ncopies == 1 && y >= 0 && z > y);
    EXPECT(!strcmp(p->step[y].kernel->name, "onednn_gemm"));
    EXPECT(p->step[y].kernel == p->step[z].kernel);
}

/* Of a row of so many elements times a column. */
static int64_t reserve_of(int64_t n)
{
    Graph *g = graph_parse(a,
                           arena_printf(a,
                                        "tenon 1\ngraph g(%%a: f32[2, %lld], %%b: f32[%lld, 1]) {\n"
                                        "  %%y: f32[2, 1] = mm(%%a, %%b)\n  return %%y\n}\n",
                                        (long long)n, (long long)n),
                           "rows");
    return plan_make(a, g, &(PlanFor){.machine = machine_get(a, "none", par_threads())})->reserve;
}

/* The reserve has the buffers of the packed gemm where a product takes it, by its way or as it has
 * to: where rows are far apart. */
static void test_gemm(void)
{
    const OneKeeps k = onednn_keeps();
    int64_t buffers = MIN(par_threads(), k.gemm_threads) * k.gemm;
    EXPECT(reserve_of(ONE_MOST_LEADING + 1) == reserve_of(ONE_MOST_LEADING) + buffers);
}

static void run_tests(void *arg)
{
    (void)arg;
    Graph *g = graph_parse(a, text, "way");
    int before = par_threads();
    Plan *p = plan_make(a, g, NULL);
    test_ways(p);
    test_others(p);
    test_packed();
    test_gemm();
    EXPECT(par_threads() == before);
}

int main(void)
{
    a = arena_new(&ctx);
    EXPECT(!ctx_try(&ctx, run_tests, NULL));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
