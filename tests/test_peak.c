/* The rate of products that a run's steps are judged by: when it counts as another machine's, and
 * that it is measured again then. */
#include "../src/train/train.h"
#include "test.h"

static void test_drift(void)
{
    const Peak p = {.flops = 1e12, .step_sec = 2};
    EXPECT(!peak_drifts(&p, 1e12, 2));
    EXPECT(!peak_drifts(&p, 1e12, 2.2) && !peak_drifts(&p, 1e12, 1.8));
    EXPECT(peak_drifts(&p, 1e12, 2.4));   /* the machine is slower */
    EXPECT(peak_drifts(&p, 1e12, 1.7));   /* or faster */
    EXPECT(peak_drifts(&p, 2.1e12, 2.0)); /* no step is faster than the best */
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
    test_follow();
    return test_report();
}
