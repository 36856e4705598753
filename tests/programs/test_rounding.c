/* How weights kept in bf16 are rounded: stochastically they move as those in f32 do, also where an
 * update is a small part of their last place, and to nearest they do not, of which there is a
 * warning; the bits are a function of seed, step and position. */
#include "../../include/tenon.h"
#include "../../src/op/op.h"
#include "../shared/test.h"

#include <math.h>

enum { SIDE = 200, COUNT = SIDE * SIDE, STEPS = 40 };

static tn_context *ctx;
static float sign[COUNT]; /* c: 1 or -1 */

/* The gradient of p is c / COUNT: AdamW moves each weight by lr in each step. */
static const char text[] = "tenon 1\n"
                           "graph g(%p: f32[200, 200] param \"p\", %c: f32[200, 200] batch) {\n"
                           "  %m: f32[200, 200] = mul(%p, %c)  loss\n"
                           "  %loss: f32[] = mean(%m)  loss\n"
                           "  return loss %loss\n"
                           "}\n";

typedef struct Case {
    const char *optimizer, *dtype, *rounding;
    double momentum;
    float lr;
    uint64_t seed;
    int warned;
} Case;

static void count_warning(void *arg, const char *message)
{
    *(int *)arg += strstr(message, "--rounding stochastic") != NULL;
}

static float wide(uint16_t bits)
{
    return bf16_to_f32(bits);
}

/* What the weights are before the first step: numbers of bf16 up to 0.05. */
static float start(int i)
{
    return wide(f32_to_bf16(0.1f * random_uniform(1, 2, 3, (uint64_t)i) - 0.05f));
}

static tn_program *make(Case *c, tn_graph **g, tn_plan **p)
{
    tn_options o = tn_options_default();
    tn_program *x = NULL;
    o.optimizer = c->optimizer;
    o.param_dtype = c->dtype;
    o.rounding = c->rounding;
    o.momentum = c->momentum;
    o.weight_decay = o.clip = 0;
    o.warn = count_warning;
    o.warn_arg = &c->warned;
    if (!EXPECT(!tn_graph_parse(ctx, text, "text", g)) ||
        !EXPECT(!tn_graph_passes(*g, "default", &o, NULL, NULL)) ||
        !EXPECT(!tn_plan_new(*g, &o, 0, p)) || !EXPECT(!tn_program_new(*p, &o, &x)))
        printf("  %s\n", tn_error(ctx));
    return x;
}

static void put_weights(tn_program *x, bool bf16, const float *w)
{
    static uint16_t narrow[COUNT];
    for (int i = 0; i < COUNT; i++)
        narrow[i] = f32_to_bf16(w[i]);
    const void *data = bf16 ? (const void *)narrow : w;
    EXPECT(!tn_program_write(x, "p", data, bf16 ? sizeof narrow : COUNT * sizeof *w));
}

static void run_step(tn_program *x, const Case *c, int64_t step)
{
    EXPECT(!tn_program_write(x, "c", sign, sizeof sign));
    EXPECT(!tn_program_write(x, "lr", &c->lr, sizeof c->lr));
    tn_program_write(x, "step", &step, sizeof step); /* where there is one */
    tn_program_write(x, "seed", &c->seed, sizeof c->seed);
    EXPECT(!tn_program_run(x));
}

/* The weights after STEPS steps. */
static void run(Case *c, float *w)
{
    static uint16_t narrow[COUNT];
    bool bf16 = !strcmp(c->dtype, "bf16");
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = make(c, &g, &p);
    for (int i = 0; i < COUNT; i++)
        w[i] = start(i);
    if (x)
        put_weights(x, bf16, w);
    for (int64_t step = 1; x && step <= STEPS; step++)
        run_step(x, c, step);
    if (x)
        EXPECT(!tn_program_read(x, "new.p", bf16 ? (void *)narrow : w,
                                bf16 ? sizeof narrow : COUNT * sizeof *w));
    for (int i = 0; i < COUNT && bf16; i++)
        w[i] = wide(narrow[i]);
    tn_program_free(x);
    tn_plan_free(p);
    tn_graph_free(g);
}

/* The part of f32's way that the weights went, on the whole. */
static double way_of(Case c)
{
    static float w[COUNT], full[COUNT];
    double along = 0, whole = 0;
    Case wide_case = c;
    wide_case.dtype = "f32";
    run(&c, w);
    run(&wide_case, full);
    EXPECT(c.warned == (c.rounding && !strcmp(c.rounding, "nearest")) && !wide_case.warned);
    for (int i = 0; i < COUNT; i++) {
        double far = (double)full[i] - (double)start(i);
        along += far * ((double)w[i] - (double)start(i));
        whole += far * far;
    }
    return along / whole;
}

static void test_way(void)
{
    static const Case cases[] = {{"adamw", "bf16", NULL, 0, 3e-6f, 5, 0},
                                 {"adamw", "bf16", "stochastic", 0, 3e-4f, 5, 0},
                                 {"sgd", "bf16", NULL, 0, 3e-6f * COUNT, 5, 0},
                                 {"sgd", "bf16", NULL, 0.5, 1.5e-6f * COUNT, 5, 0}};
    for (int i = 0; i < LEN(cases); i++) {
        double way = way_of(cases[i]);
        if (!EXPECT(way > 0.97 && way < 1.03))
            printf("  %s, lr %g: %g of f32's way\n", cases[i].optimizer, (double)cases[i].lr, way);
    }
    double way = way_of((Case){"adamw", "bf16", "nearest", 0, 3e-6f, 5, 0});
    if (!EXPECT(way < 0.2))
        printf("  nearest: %g of f32's way\n", way);
}

/* Another seed gives other bits, the same one the same, of any number of threads. */
static void test_bits(void)
{
    static float w[3][COUNT];
    Case c = {"adamw", "bf16", NULL, 0, 3e-6f, 5, 0};
    tn_threads(1);
    run(&c, w[0]);
    tn_threads(3);
    run(&c, w[1]);
    c.seed = 6;
    run(&c, w[2]);
    EXPECT(!memcmp(w[0], w[1], sizeof *w));
    EXPECT(memcmp(w[0], w[2], sizeof *w) != 0);
}

int main(void)
{
    ctx = tn_context_new();
    for (int i = 0; i < COUNT; i++)
        sign[i] = random_uniform(7, 8, 9, (uint64_t)i) < 0.5f ? -1 : 1;
    test_way();
    test_bits();
    tn_context_free(ctx);
    return test_report();
}
