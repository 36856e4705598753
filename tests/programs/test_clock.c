/* The clock: queues that run side by side, groups of ranks that share a link or do not, jobs of one
 * group one after the other; and a plan's step, of which a part of a collective is hidden. */
#include "../shared/test.h"

#include "../../src/machine/machine.h"
#include "../../src/plan/plan.h"

#include <math.h>

static Ctx ctx;
static Arena *a;

static const Group host = {1, 8}, network = {2, 1};

static bool near(double x, double y)
{
    return fabs(x - y) < 1e-9;
}

static void test_queues(void)
{
    Clock *c = clock_new(a);
    EXPECT(clock_run(c, QUEUE_COMPUTE, 0, 2) == 2 && clock_run(c, QUEUE_OUT, 1, 3) == 4);
    EXPECT(clock_run(c, QUEUE_COMPUTE, 1, 1) == 3 && clock_at(c, QUEUE_COMPUTE) == 3);
    EXPECT(clock_last(c) == 4);
}

/* Two groups of one link take turns; those of two links, and a group's own jobs, do not. */
static void test_links(void)
{
    Clock *c = clock_new(a);
    int dp = clock_start(c, "dp", &network, 0, 1), fsdp = clock_start(c, "fsdp", &network, 0, 1);
    int tp = clock_start(c, "tp", &host, 0, 1), next = clock_start(c, "tp", &host, 0, 0.5);
    EXPECT(near(clock_end(c, tp), 1) && near(clock_end(c, next), 1.5));
    EXPECT(near(clock_end(c, dp), 2) && near(clock_end(c, fsdp), 2));
}

/* The first has half of its second left when the other begins, and the other as much when it ends.
 */
static void test_late(void)
{
    Clock *c = clock_new(a);
    int dp = clock_start(c, "dp", &network, 0, 1);
    int fsdp = clock_start(c, "fsdp", &network, 0.5, 1);
    int after = clock_start(c, "dp", &network, 0.5, 1);
    EXPECT(near(clock_end(c, dp), 1.5));
    EXPECT(near(clock_end(c, fsdp), 2.5) && near(clock_end(c, after), 3));
    EXPECT(near(clock_begin(c, dp), 0) && near(clock_begin(c, fsdp), 0.5));
    EXPECT(near(clock_begin(c, after), 1.5));
    int idle = clock_start(c, "dp", &network, 7, 1);
    EXPECT(near(clock_end(c, idle), 8));
}

/* Nothing is under way once computing has ended later than what was started. */
static void test_idle(void)
{
    Clock *c = clock_new(a);
    EXPECT(clock_idle(c, clock_at(c, QUEUE_COMPUTE)));
    int dp = clock_start(c, "dp", &network, 0, 1);
    EXPECT(!clock_idle(c, clock_at(c, QUEUE_COMPUTE)));
    clock_run(c, QUEUE_COMPUTE, 0, 0.5);
    EXPECT(!clock_idle(c, clock_at(c, QUEUE_COMPUTE)));
    clock_run(c, QUEUE_COMPUTE, 0, 1);
    EXPECT(clock_idle(c, clock_at(c, QUEUE_COMPUTE)) && near(clock_end(c, dp), 1));
}

/* %product runs while %gathered comes. */
static const char *const text =
    "tenon 1\n"
    "graph g mesh(fsdp=2) at(0) (%x: f32[256, 1024] batch, %w: f32[1024, 1024] batch,\n"
    "  %v: f32[512, 256] batch) {\n"
    "  %gathered: f32[512, 1024] = all_gather_into_tensor(%x, group_size=2, group=\"fsdp\")\n"
    "  %product: f32[256, 1024] = mm(%x, %w)\n"
    "  %all: f32[512, 1024] = wait_tensor(%gathered, %x)\n"
    "  %out: f32[512, 1024] = mm(%v, %product)\n"
    "  %sum: f32[512, 1024] = add(%out, %all)\n"
    "  return %sum\n"
    "}\n";

static void test_plan(void *arg)
{
    (void)arg;
    Graph *g = graph_parse(a, text, "text");
    graph_verify(g);
    PlanFor to = {.machine = machine_get(a, "h100", 1)};
    Plan *p = plan_make(a, g, &to);
    double gather = 0, product = 0, all = 0;
    for (int i = 0; i < p->nstep; i++) {
        const Node *n = p->step[i].node;
        all += p->step[i].sec;
        if (n && n->op->class == CLASS_COLLECTIVE)
            gather = p->step[i].sec;
        else if (n && n->op->class == CLASS_PRODUCT && !product)
            product = p->step[i].sec;
    }
    EXPECT(gather > 0 && product > 0 && p->est.communicates);
    EXPECT(near(p->est.exposed, MAX(0, gather - product)));
    EXPECT(near(p->est.step, all - MIN(gather, product)));
}

int main(void)
{
    a = arena_new(&ctx);
    CHECK(a);
    test_queues();
    test_links();
    test_late();
    test_idle();
    if (!EXPECT(ctx_try(&ctx, test_plan, NULL) == TN_OK))
        printf("  %s\n", ctx.message);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
