/* comm makes sums in slices: another group's job runs between them. */
#include "../shared/race.h"
#include "../shared/ranks_run.h"
#include "../shared/test.h"

static Ctx ctx;

/* Both run on comm's thread. */
typedef struct Between {
    bool over, seen; /* the other group's job; while slices were left */
} Between;

static bool end_other(void *arg, int64_t i)
{
    Between *x = arg;
    x->over = true;
    return i == 0;
}

/* As many slices as it takes until the other group's job has run, within reason. */
static bool wait_for_other(void *arg, int64_t i)
{
    Between *x = arg;
    x->seen = x->over;
    return x->over || i > 10000000;
}

static CommJob *call_job(Arena *a, CommGroup *g, bool (*call)(void *, int64_t), Between *arg)
{
    CommJob *j = NEW(a, CommJob);
    CommRound *r = NEW(a, CommRound);
    *r = (CommRound){.kind = ROUND_CALL, .call = call, .arg = arg};
    *j = (CommJob){.group = g, .what = "slices", .round = r, .nround = 1};
    comm_prepare(a, j);
    return j;
}

static void wait_for_job(Arena *a, Comm *c, CommJob *j)
{
    char message[COMM_MESSAGE];
    if (comm_wait(c, j, message))
        fail(arena_ctx(a), TN_FAIL, "%s", message);
}

/* The second starts while the first, of all ranks, is made. */
static void run_between(Arena *a, Comm *c, void *arg)
{
    Between x = {false, false};
    CommGroup *g = comm_group(c, a, 1, 2, (int[]){0, 1});
    CommJob *sum = call_job(a, comm_world(c), wait_for_other, &x);
    CommJob *other = call_job(a, g, end_other, &x);
    (void)arg;
    comm_start(c, sum);
    comm_start(c, other);
    wait_for_job(a, c, other);
    wait_for_job(a, c, sum);
    if (!x.seen)
        fail(arena_ctx(a), TN_FAIL, "the sum kept the other group waiting");
}

static void run(void *arg)
{
    const CommOptions none = {0};
    const char *why = ranks_threads(arg, 2, &none, run_between, NULL);
    if (!EXPECT(!why))
        printf("  %s\n", why);
}

int main(void)
{
    Arena *a = arena_new(&ctx);
    CHECK(a && !ctx_try(&ctx, run, a));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
