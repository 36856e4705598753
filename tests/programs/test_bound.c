/* The bound on what is computed again (again_bound.c) against plans of drawn sets of forward
 * values, on chains of blocks with a head whose logits are large, so that its weight gradient may
 * be formed early or late; and on steps with branches, of which a node's results may be read apart.
 * No plan adds fewer seconds than the bound for the bytes that it needs, in the order that was
 * found for it, and the bound is more than nothing where much is computed again. With fused nodes
 * none takes fewer seconds in nodes that only compute again.
 *
 * `test_bound SEED [COUNT]` shows what each of so many seeds comes to. TN_LONG=1: 200 chains
 * and as many steps. */
#include "../shared/decide_made.h"
#include "../shared/gen.h"
#include "../shared/step_made.h"
#include "../shared/test.h"

#include <stdlib.h>

enum {
    WIDTH = 64,
    MOST_NODES = 60,
    SETS = 10,
    STEP_NODES = 20,
    STEP_SETS = 4,
    FUSED_SETS = 2,
    BETWEEN = 6
};

#define LEAST_PART 0.3 /* of what is added, in the mean of plans with all but a few again */

static Ctx ctx;
static Arena *a; /* of one case */
static bool show;

static struct {
    int nplan, nbound, nmost;
    double part; /* of plans with most of it again */
    int nfused;
    double fused; /* the bound's part of what plans with fused nodes compute again */
} sums;

/* ---- chains ---- */

/* A norm, a product, an op, a product back, a sum; of half the blocks a gate too. */
static void put_block(Buf *params, Buf *nodes, Rng *rng, int i)
{
    static const char *const op[] = {"gelu", "silu", "tanh", "sin"};
    int64_t width = WIDTH * (1 + rng_below(rng, 4));
    bool gate = rng_chance(rng, 0.5);
    const char *scope = arena_printf(a, "@\"layers.%d.x\" forward", i);
    buf_printf(
        params,
        ", %%n%d: f32[%d] param \"n%d\", %%u%d: f32[%d, %d] param \"u%d\", %%d%d: f32[%d, %d] "
        "param \"d%d\"",
        i, WIDTH, i, i, WIDTH, (int)width, i, i, (int)width, WIDTH, i);
    buf_printf(nodes, "  %%x%d, %%r%d = rms_norm(%%h%d, %%n%d)  %s\n", i, i, i, i, scope);
    buf_printf(nodes, "  %%v%d = mm(%%x%d, %%u%d)  %s\n", i, i, i, scope);
    buf_printf(nodes, "  %%a%d = %s(%%v%d)  %s\n", i, op[rng_below(rng, LEN(op))], i, scope);
    if (gate)
        buf_printf(nodes, "  %%g%d = mul(%%a%d, %%v%d)  %s\n", i, i, i, scope);
    buf_printf(nodes, "  %%y%d = mm(%%%c%d, %%d%d)  %s\n", i, gate ? 'g' : 'a', i, i, scope);
    buf_printf(nodes, "  %%h%d = add(%%h%d, %%y%d)  %s\n", i + 1, i, i, scope);
}

/* A product, an op, with a gate one more, and a product back. */
static void put_between(Buf *params, Buf *nodes, int i, bool gate)
{
    buf_printf(params, ", %%u%d: f32[512, 1024] param \"u%d\", %%d%d: f32[1024, 512] param \"d%d\"",
               i, i, i, i);
    buf_printf(nodes, "  %%v%d = mm(%%h%d, %%u%d)  forward\n", i, i, i);
    buf_printf(nodes, "  %%a%d = gelu(%%v%d)  forward\n", i, i);
    if (gate)
        buf_printf(nodes, "  %%g%d = mul(%%a%d, %%v%d)  forward\n", i, i, i);
    buf_printf(nodes, "  %%h%d = mm(%%%c%d, %%d%d)  forward\n", i + 1, gate ? 'g' : 'a', i, i);
}

static const char *make_chain(Rng *rng)
{
    Buf params = {.a = a}, nodes = {.a = a};
    int blocks = 2 + (int)rng_below(rng, 6), head = WIDTH * (1 + (int)rng_below(rng, 40));
    buf_add(&nodes, "  %h0 = tanh(%x)  @\"embed\" forward\n");
    for (int i = 0; i < blocks; i++)
        put_block(&params, &nodes, rng, i);
    buf_printf(&nodes, "  %%z = mm(%%h%d, %%w)  @\"head\" forward\n", blocks);
    buf_add(&nodes, "  %y = tanh(%z)  @\"head\" forward\n  %l = sum(%y)  loss\n");
    return arena_printf(
        a,
        "tenon 1\ngraph chain(%%x: f32[%d, %d] batch, %%w: f32[%d, %d] param \"w\"%s) "
        "{\n%s  return loss %%l\n}\n",
        128 << rng_below(rng, 4), WIDTH, WIDTH, head, params.text, nodes.text);
}

/* ---- plans ---- */

/* Each value with a chance that is drawn for the set. */
static uint64_t draw_set(const Made *m, Rng *rng)
{
    uint64_t set = 0;
    double chance = rng_uniform(rng);
    for (int k = 0; k < m->n; k++)
        set |= (uint64_t)rng_chance(rng, chance) << k;
    return set & ~m->out;
}

static void check_plan(Made *m, uint64_t seed, const Choice *none, uint64_t set, bool most)
{
    Choice c = made_plan(m, set, MUST_RECOMPUTE);
    double sec = made_least_sec(m, c.peak), added = c.sec - none->sec;
    sums.nplan++;
    sums.nbound += sec > 0;
    sums.nmost += most && added > 0;
    sums.part += most && added > 0 ? sec / added : 0;
    if (!EXPECT(added >= sec - 1e-9 * none->sec) || show) {
        printf("  seed %llu: adds %.6g us, at least %.6g us\n", (unsigned long long)seed,
               1e6 * added, 1e6 * sec);
        made_print(m, "plan", &c);
    }
}

/* With fused nodes, all again and drawn sets. */
static void check_fused(Made *m, uint64_t seed, Rng *rng)
{
    made_fuse(m);
    for (int i = 0; i < FUSED_SETS; i++) {
        const uint64_t all = ((UINT64_C(1) << m->n) - 1) & ~m->out;
        const Choice c = made_plan(m, i ? draw_set(m, rng) : all, MUST_RECOMPUTE);
        const double sec = made_least_sec(m, c.peak);
        sums.nfused++;
        sums.fused += c.clones > 0 ? sec / c.clones : 0;
        if (!EXPECT(c.clones >= sec * (1 - 1e-9)) || show) {
            printf("  seed %llu: fused, computes again for %.6g us, at least %.6g us\n",
                   (unsigned long long)seed, 1e6 * c.clones, 1e6 * sec);
            made_print(m, "plan", &c);
        }
    }
}

static void test_seed(void *arg)
{
    uint64_t seed = *(uint64_t *)arg;
    Rng rng = {seed, 1 << 21};
    Made m;
    if (!EXPECT(made_read(&m, a, make_chain(&rng), MOST_NODES)))
        return;
    const Choice none = made_plan(&m, 0, MUST_RECOMPUTE);
    check_plan(&m, seed, &none, 0, false);
    check_plan(&m, seed, &none, ((UINT64_C(1) << m.n) - 1) & ~m.out, false);
    for (int i = 0; i < SETS; i++)
        check_plan(&m, seed, &none, draw_set(&m, &rng), false);
    for (int i = 1; i < 4; i++) { /* what was chosen within a limit */
        Choice got = made_decide(&m, none.need - (none.peak - none.peak / 2) * i / 4);
        check_plan(&m, seed, &none, got.again, got.again != 0);
    }
    check_fused(&m, seed, &rng);
}

/* A step with branches; none, which adds nothing, and drawn sets. */
static void test_step(void *arg)
{
    static const int widths[] = {64, 128, 256, 512, 1024};
    const StepForm form = {.kinds = "ppppaanvsuuu",
                           .nunary = 6,
                           .columns = 256,
                           .widths = widths,
                           .nwidth = LEN(widths),
                           .rows = 512,
                           .nrows = 3,
                           .last = 0.6,
                           .scopeless = 0.1};
    uint64_t seed = *(uint64_t *)arg;
    Rng rng = {seed, 1 << 22};
    Made m;
    if (!made_read(&m, a, step_made(a, &rng, &form, 10 + (int)rng_below(&rng, 12)), STEP_NODES))
        return;
    const Choice none = made_plan(&m, 0, MUST_RECOMPUTE);
    check_plan(&m, seed, &none, 0, false);
    for (int i = 0; i < STEP_SETS; i++)
        check_plan(&m, seed, &none, draw_set(&m, &rng), false);
    check_fused(&m, seed, &rng);
}

/* All pointwise ops between products again, and nothing else: with fused nodes the bound counts
 * them, of two that may be one call the memory traffic. */
static void test_between(void *arg)
{
    const bool gate = *(uint64_t *)arg;
    Buf params = {.a = a}, nodes = {.a = a};
    Made m;
    buf_add(&nodes, "  %h0 = tanh(%x)  @\"embed\" forward\n");
    for (int i = 0; i < BETWEEN; i++)
        put_between(&params, &nodes, i, gate);
    buf_printf(&nodes, "  %%y = tanh(%%h%d)  forward\n  %%l = sum(%%y)  loss\n", BETWEEN);
    if (!EXPECT(made_read(
            &m, a,
            arena_printf(a,
                         "tenon 1\ngraph between(%%x: f32[1024, 512] batch%s) {\n%s  return "
                         "loss %%l\n}\n",
                         params.text, nodes.text),
            MOST_NODES)))
        return;
    made_fuse(&m);
    uint64_t set = 0;
    for (int k = 0; k < m.n; k++)
        if (node_is(m.node[k], OP_gelu) || node_is(m.node[k], OP_mul))
            set |= UINT64_C(1) << k;
    const Choice c = made_plan(&m, set, MUST_RECOMPUTE);
    const double sec = made_least_sec(&m, c.peak);
    printf("note: ops between products again, %s: %.6g us, at least %.6g us\n",
           gate ? "with gates" : "alone", 1e6 * c.clones, 1e6 * sec);
    EXPECT(c.clones >= sec * (1 - 1e-9) && sec > (gate ? 0 : LEAST_PART * c.clones));
}

static void test_all(void (*test)(void *arg), uint64_t first, int count)
{
    for (uint64_t seed = first; count-- > 0; seed++) {
        if (!EXPECT(!ctx_try(&ctx, test, &seed)))
            printf("  seed %llu: %s\n", (unsigned long long)seed, ctx.message);
        arena_reset(a);
    }
}

int main(int argc, char **argv)
{
    a = arena_new(&ctx);
    show = argc > 1;
    const int count = show ? argc > 2 ? atoi(argv[2]) : 1 : getenv("TN_LONG") ? 200 : 5;
    const uint64_t first = show ? strtoull(argv[1], NULL, 10) : 1;
    test_all(test_seed, first, count);
    const int chains = sums.nplan;
    printf("note: %d plans, %d with a bound above 0; of what is chosen it is %.3g %% in the mean\n",
           sums.nplan, sums.nbound, 100 * sums.part / MAX(sums.nmost, 1));
    if (!show) {
        EXPECT(sums.nbound > sums.nplan / 4);
        EXPECT(sums.part > LEAST_PART * sums.nmost);
    }
    test_all(test_step, first, count);
    test_all(test_between, 0, 2);
    printf("note: %d plans of steps with branches; %d with fused nodes, bounds of %.3g %% in the "
           "mean\n",
           sums.nplan - chains, sums.nfused, 100 * sums.fused / MAX(sums.nfused, 1));
    arena_free(a);
    return test_report();
}
