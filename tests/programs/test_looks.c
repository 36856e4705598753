/* How often comm's thread looks at what is under way, where ranks are threads: when a collective
 * begins and when all of it has come or gone, not at each message of it; and seldom while another
 * rank is late. Each look takes a core from what computes. Looks of the clock, a hundred in a
 * second, are taken off, so that a busy machine changes nothing. */
#include "../shared/race.h"
#include "../shared/ranks_run.h"
#include "../shared/test.h"

enum { RANKS = 8, GATHERS = 100, EACH_SEC = 100 };

static Ctx ctx;

/* Counts of each rank's looks beyond those of the clock. */
typedef struct Looks {
    double count[RANKS];
} Looks;

static void gather(Arena *a, Comm *c)
{
    char got[RANKS], message[COMM_MESSAGE];
    if (comm_gather(c, "x", 1, got, true, message))
        fail(arena_ctx(a), TN_FAIL, "%s", message);
}

static void note_looks(Comm *c, Looks *x, double begin)
{
    x->count[comm_rank(c)] = (double)comm_count(c).nlook - EACH_SEC * (now_sec() - begin);
}

static void gather_often(Arena *a, Comm *c, void *arg)
{
    const double begin = now_sec();
    for (int i = 0; i < GATHERS; i++)
        gather(a, c);
    note_looks(c, arg, begin);
}

static void sleep_sec(double sec)
{
    struct timespec t = {(time_t)sec, (long)(1e9 * (sec - (double)(time_t)sec))};
    nanosleep(&t, NULL);
}

/* The last rank comes late. */
static void gather_late(Arena *a, Comm *c, void *arg)
{
    const double begin = now_sec();
    if (comm_rank(c) == RANKS - 1)
        sleep_sec(0.3);
    gather(a, c);
    note_looks(c, arg, begin);
}

static void expect_looks(Arena *a, RankFn *fn, int jobs, double most)
{
    const CommOptions none = {0};
    Looks x = {{0}};
    double sum = 0;
    const char *why = ranks_threads(a, RANKS, &none, fn, &x);
    if (!EXPECT(!why))
        printf("  %s\n", why);
    for (int i = 0; i < RANKS; i++)
        sum += x.count[i];
    if (!EXPECT(sum <= most * RANKS * jobs))
        printf("  %.2f looks of a rank at a collective, expected at most %.2f\n",
               sum / (RANKS * jobs), most);
}

static void run(void *arg)
{
    expect_looks(arg, gather_often, GATHERS, 6);
    expect_looks(arg, gather_late, 1, 12);
}

int main(void)
{
    Arena *a = arena_new(&ctx);
    CHECK(a && !ctx_try(&ctx, run, a));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
