/* Llama-3 8B with the collectives of each block joined: how many calls are left, of which values,
 * in no more memory than plans have without, and what the step takes. */
#include "../shared/test.h"

#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../../src/plan/plan.h"

static Ctx ctx;

typedef struct Case {
    const char *mesh, *bucket;
    int64_t batch, seq;
    /* what is found */
    Arena *a;
    Plan *p;
    CollectiveRow *row;
    int nrow;
} Case;

static void make(void *arg)
{
    Case *x = arg;
    x->a = arena_new(&ctx);
    PassOptions o = pass_defaults();
    o.dtype = BF16;
    o.mesh = x->mesh;
    o.recompute = "selective";
    o.machine = "h100";
    o.bucket = x->bucket;
    ModelConfig c = *config_preset("llama3-8b");
    Graph *g = model_graph(x->a, &c, x->batch, x->seq, NULL);
    passes_run(g, "default", &o, NULL, NULL);
    PlanFor to = {.machine = machine_get(x->a, "h100", 1)};
    x->p = plan_ordered(x->a, g, &to);
    x->nrow = plan_collectives(x->a, x->p, &x->row);
}

static Case planned(const char *mesh, const char *bucket, int64_t batch, int64_t seq)
{
    Case x = {.mesh = mesh, .bucket = bucket, .batch = batch, .seq = seq};
    if (!EXPECT(!ctx_try(&ctx, make, &x)))
        printf("  %s, %s: %s\n", mesh, bucket, ctx.message);
    return x;
}

/* The calls of a kind over a group for values of a role; *count: of these values. */
static int64_t calls(const Case *x, CollectiveKind kind, Phase phase, CollectiveRole role,
                     const char *group, int64_t *count)
{
    int64_t n = *count = 0;
    for (int i = 0; i < x->nrow; i++) {
        const CollectiveRow *r = &x->row[i];
        if (r->kind != kind || r->phase != phase || r->role != role || strcmp(r->group, group))
            continue;
        n += r->calls;
        *count += r->count;
    }
    return n;
}

static void expect_calls(const Case *x, const char *group, int64_t values, int64_t again,
                         const int64_t *want)
{
    int64_t count;
    EXPECT(calls(x, ALL_GATHER, FORWARD, FOR_PARAMETER, group, &count) == want[0]);
    EXPECT(count == values);
    EXPECT(calls(x, ALL_GATHER, BACKWARD, FOR_PARAMETER, group, &count) == want[1]);
    EXPECT(count == again);
    EXPECT(calls(x, REDUCE_SCATTER, BACKWARD, FOR_GRADIENT, group, &count) == want[2]);
    EXPECT(count == values);
}

/* The embedding, 32 blocks, the last norm with the head; the backward needs no embedding. */
static const int64_t units[] = {34, 33, 34}, norms[] = {33, 33, 33};

static void test_one_axis(void)
{
    Case x = planned("fsdp=128", "block", 128, 4096), off = planned("fsdp=128", "off", 128, 4096);
    expect_calls(&x, "fsdp", 291, 290, units);
    expect_calls(&off, "fsdp", 291, 290, (int64_t[]){291, 290, 291});
    EXPECT(x.p->est.by_class[CLASS_COLLECTIVE] < 0.6 * off.p->est.by_class[CLASS_COLLECTIVE]);
    EXPECT(x.p->est.step < 0.75 * off.p->est.step);
    arena_free(x.a);
    arena_free(off.a);
}

static void test_two_axes(void)
{
    Case x = planned("fsdp=16,tp=8", "block", 32, 8192);
    expect_calls(&x, "fsdp", 226, 225, units);
    expect_calls(&x, "tp,fsdp", 65, 65, norms);
    EXPECT(x.p->space[SPACE_MAIN].peak <= (int64_t)(5.5 * 0x1p30));
    EXPECT(x.p->space[SPACE_MAIN].peak == x.p->space[SPACE_MAIN].bound);
    arena_free(x.a);
}

int main(void)
{
    test_one_axis();
    test_two_axes();
    ctx_end(&ctx);
    return test_report();
}
