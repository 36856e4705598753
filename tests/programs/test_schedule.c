/* The learning rate of every step: its ends, its middle, and that it only rises, then only falls.
 */
#include "../../src/train/train.h"
#include "../shared/test.h"

#include <math.h>

static TrainOptions options(const char *schedule, int64_t steps, int64_t warmup)
{
    return (TrainOptions){
        .lr = 1e-3, .min_lr = 2e-4, .schedule = schedule, .steps = steps, .warmup = warmup};
}

static double at(const TrainOptions *t, int64_t step)
{
    return schedule_lr(t, step, 0);
}

static bool near(double x, double y)
{
    return fabs(x - y) <= 1e-15;
}

static void test_ends(void)
{
    static const char *const names[] = {"cosine", "linear"};
    static const int64_t sizes[][2] = {{2, 0},  {10, 0}, {10, 1},   {10, 3},
                                       {10, 9}, {11, 5}, {1000, 7}, {100003, 1000}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < (int)(sizeof sizes / sizeof *sizes); k++) {
            int64_t steps = sizes[k][0], warmup = sizes[k][1], full = warmup > 1 ? warmup : 1;
            TrainOptions t = options(names[i], steps, warmup);
            EXPECT(at(&t, 1) > 0);
            EXPECT(at(&t, full) == t.lr);
            EXPECT(at(&t, steps) == t.min_lr);
            EXPECT(at(&t, steps + 5) == t.min_lr);
            for (int64_t s = 2; s <= steps; s++)
                if (s <= full ? !(at(&t, s) > at(&t, s - 1)) : !(at(&t, s) < at(&t, s - 1)))
                    EXPECT(!"monotone");
        }
}

static void test_formulas(void)
{
    TrainOptions t = options("cosine", 101, 0);
    EXPECT(near(at(&t, 51), 6e-4)); /* half way */
    EXPECT(near(at(&t, 26), 2e-4 + 8e-4 * (1 + cos(3.14159265358979323846 / 4)) / 2));
    t.schedule = "linear";
    EXPECT(near(at(&t, 51), 6e-4));
    EXPECT(near(at(&t, 26), 8e-4));
    t.warmup = 21;
    EXPECT(near(at(&t, 7), 1e-3 / 3));
    EXPECT(near(at(&t, 41), 8e-4));
    t.schedule = "constant";
    EXPECT(near(at(&t, 7), 1e-3 / 3) && at(&t, 21) == t.lr && at(&t, 101) == t.lr);
    t = options("cosine", 10, 0);
    t.min_lr = -1; /* not given: a tenth */
    EXPECT(at(&t, 10) == 0.1 * t.lr);
    t.min_lr = 0;
    EXPECT(at(&t, 10) == 0);
    t.min_lr = t.lr;
    EXPECT(at(&t, 1) == t.lr && at(&t, 5) == t.lr && at(&t, 10) == t.lr);
}

/* A warm-up as long as the run, or longer; one step; no end but by time. */
static void test_odd(void)
{
    TrainOptions t = options("cosine", 10, 10);
    EXPECT(near(at(&t, 1), 1e-4) && at(&t, 10) == t.lr);
    t.warmup = 20;
    EXPECT(near(at(&t, 1), 5e-5) && near(at(&t, 10), 5e-4));
    t = options("linear", 1, 0);
    EXPECT(at(&t, 1) == t.lr);
    t = options("linear", INT64_MAX, 0);
    EXPECT(at(&t, 1) == t.lr && near(schedule_lr(&t, 1000, 0.25), 8e-4));
    EXPECT(schedule_lr(&t, 5000, 1) == t.min_lr && schedule_lr(&t, 5000, 1.5) == t.min_lr);
    t.warmup = 100;
    EXPECT(near(schedule_lr(&t, 50, 0.5), 5e-4)); /* the warm-up goes by steps */
    t = options("linear", 101, 0);
    EXPECT(near(schedule_lr(&t, 51, 0.1), 6e-4) && near(schedule_lr(&t, 51, 0.75), 4e-4));
}

int main(void)
{
    test_ends();
    test_formulas();
    test_odd();
    return test_report();
}
