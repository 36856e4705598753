/* Ends of comm over MPI, started by a launcher: tests/scripts/mpi.sh. What test_comm does over MPI
 * is not here. Usage: jobs reduce|late|abort|hang|stop|end */
#include "../../src/comm/comm.h"
#include "../shared/test.h"

#include <signal.h>
#include <unistd.h>

enum { NGROUP = 3, NSUM = 70001, TIMES = 5, MAX_RANK = 16 };

static Ctx ctx;
static char message[COMM_MESSAGE];

/* Sums of a group's library. */
typedef struct Sum {
    CommJob job;
    CommRound round;
    int32_t *mine, *sum;
} Sum;

/* All ranks; pairs of neighbours; every second one. */
static CommGroup *group_of(Comm *c, Arena *a, int id)
{
    int of[MAX_RANK], n = 0, rank = comm_rank(c);
    for (int i = 0; i < comm_size(c); i++)
        if (!id || (id == 1 ? i / 2 == rank / 2 : i % 2 == rank % 2))
            of[n++] = i;
    CommGroup *g = comm_group(c, a, id, n, of);
    comm_library(g, &ctx);
    return g;
}

static void prepare(Sum *s, Comm *c, Arena *a, int id)
{
    CommGroup *g = group_of(c, a, id);
    bool scatter = id == 2;
    s->mine = NEWN(a, int32_t, NSUM * comm_group_size(g));
    s->sum = NEWN(a, int32_t, NSUM);
    s->round = (CommRound){.kind = ROUND_REDUCE,
                           .scatter = scatter,
                           .type = COMM_I32,
                           .op = COMM_SUM,
                           .from = s->mine,
                           .to = s->sum,
                           .count = NSUM};
    s->job = (CommJob){.group = g, .what = "a sum", .round = &s->round, .nround = 1};
    comm_prepare(a, &s->job);
    EXPECT(comm_reduces(g));
}

static void fill(Sum *s, int time)
{
    int n = comm_group_size(s->job.group), member = comm_member(s->job.group);
    for (int i = 0; i < (s->round.scatter ? n : 1) * NSUM; i++)
        s->mine[i] = (member + 1) * (i + time);
}

static bool is_sum(const Sum *s, int time)
{
    int n = comm_group_size(s->job.group), at = comm_member(s->job.group) * NSUM, same = 0;
    while (same < NSUM &&
           s->sum[same] == n * (n + 1) / 2 * ((s->round.scatter ? at : 0) + same + time))
        same++;
    return same == NSUM;
}

static void reduce(Comm *c, Arena *a)
{
    Sum sum[NGROUP];
    for (int i = 0; i < NGROUP; i++)
        prepare(&sum[i], c, a, i);
    for (int time = 0; time < TIMES; time++) {
        for (int i = 0; i < NGROUP; i++) {
            fill(&sum[i], time);
            comm_start(c, &sum[i].job);
        }
        for (int i = NGROUP; i-- > 0;)
            EXPECT(!comm_wait(c, &sum[i].job, message) && is_sum(&sum[i], time));
    }
}

/* Rank 1 is late, or ends all; the others wait for it. */
static void wait_in_vain(Comm *c, bool aborts)
{
    int64_t x = 0;
    if (comm_rank(c) == 1 && aborts)
        comm_abort(c, 3, "the disk is full");
    if (comm_rank(c) == 1)
        sleep(20);
    EXPECT(comm_max(c, &x, 1, message));
    comm_abort(c, 1, message);
}

/* Rank 1 ends all, or does not run any more, where they wait as long as it takes. */
static void hang(Comm *c, bool ends)
{
    char all[MAX_RANK];
    if (comm_rank(c) == 1 && ends)
        comm_abort(c, 3, "the disk is full");
    else if (comm_rank(c) == 1)
        raise(SIGSTOP);
    EXPECT(comm_gather(c, "x", 1, all, true, message));
}

static void run(void *arg)
{
    const char *what = ((void **)arg)[0];
    Arena *a = ((void **)arg)[1];
    static const int stop = 1;
    bool stops = !strcmp(what, "stop"), ends = !strcmp(what, "end");
    CommOptions o = comm_options(&ctx, stops || ends ? 60 : 2);
    Comm *c = comm_open(a, comm_mpi(&ctx), NULL, &o);
    if (stops)
        comm_stop_by(c, &stop);
    if (!strcmp(what, "reduce"))
        reduce(c, a);
    else if (!strcmp(what, "hang") || stops || ends)
        hang(c, ends);
    else
        wait_in_vain(c, !strcmp(what, "abort"));
}

int main(int argc, char **argv)
{
    Arena *a = arena_new(&ctx);
    void *arg[] = {argc > 1 ? argv[1] : "reduce", a};
    if (!EXPECT(!ctx_try(&ctx, run, arg)))
        printf("%s\n", ctx.message);
    arena_free(a);
    return test_report();
}
