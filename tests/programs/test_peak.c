/* The rate of products that a run's steps are judged by: when it counts as another machine's, and
 * that it is measured again then. */
#include "../../src/train/train.h"
#include "../shared/test.h"

static void test_drift(void)
{
    const Peak p = {.flops = 1e12, .step_sec = 2};
    EXPECT(!peak_drifts(&p, 2) && !peak_drifts(&p, 2.2) && !peak_drifts(&p, 1.8));
    EXPECT(peak_drifts(&p, 2.4)); /* the machine is slower */
    EXPECT(peak_drifts(&p, 1.7)); /* or faster */
}

/* Whatever steps take, their smoothed time, as train.c has it, is not above the peak, also where
 * products were measured on a machine that was busy then. */
static void test_part(void)
{
    Peak p = {.flops = 1e12};
    double smooth = 0, largest = 0;
    for (int step = 1; step <= 2000; step++) {
        double sec = 0.01 + random_uniform(1, 2, 3, (uint64_t)step);
        peak_see(&p, 1e12, sec);
        smooth = step <= 3 ? sec : 0.95 * smooth + 0.05 * sec;
        double part = peak_part(&p, 1e12, smooth);
        largest = part > largest ? part : largest;
    }
    EXPECT(largest <= 1 && largest > 0.01);
    EXPECT(p.flops > 1e13); /* the fastest step */
    peak_see(&p, 1e12, 10);
    EXPECT(p.flops > 1e13);
    p.flops = 0;
    peak_see(&p, 1e12, 1);
    EXPECT(p.flops == 0); /* not known */
}

static void test_follow(void)
{
    tn_context *ctx = tn_context_new();
    Peak p = {.flops = 1e20, .when = wall_sec()};
    tn_options o = tn_options_default();
    peak_follow(&p, ctx, &o, 1e6, 2);
    EXPECT(p.step_sec == 2 && !p.stale && p.flops == 1e20);
    peak_follow(&p, ctx, &o, 1e6, 3);
    EXPECT(p.stale && p.flops == 1e20); /* not yet */
    peak_follow(&p, ctx, &o, 1e6, 2.1);
    EXPECT(!p.stale);
    p.when -= 1000;
    peak_follow(&p, ctx, &o, 1e6, 2.1);
    EXPECT(p.flops == 1e20); /* nothing has changed */
    peak_follow(&p, ctx, &o, 1e6, 3);
    EXPECT(!p.stale && p.flops > 1e6 && p.flops < 1e20 && p.step_sec == 3);
    p.when -= 1000;
    peak_follow(&p, ctx, &o, 1e21, 1);
    EXPECT(!p.stale && p.flops == 1e21); /* a step that is faster than its products alone */
    p.flops = 0;
    peak_follow(&p, ctx, &o, 1e6, 9);
    EXPECT(p.flops == 0 && !p.stale); /* not known, and so never */
    tn_context_free(ctx);
}

int main(void)
{
    test_drift();
    test_part();
    test_follow();
    return test_report();
}
