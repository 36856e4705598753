/* Ranks that a launcher has started, or threads, N of them, run jobs of several groups at once;
 * rank 0 prints a hash of what each rank then has, which is the same either way: tests/mpi.sh.
 * Usage: jobs run|late|abort [N] */
#include "../../src/comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NJOB = 24, NSUM = 1001, TIMES = 3, NGROUP = 3, MAX_RANK = 16 };

typedef struct Work {
    CommJob job;
    CommRound round[4];
    unsigned char *in, *out;
    int64_t at[MAX_RANK + 1];
    float sum[NSUM], all[MAX_RANK][NSUM];
    int64_t mine[NSUM], reduced[NSUM];
    int member, n;
} Work;

/* Bytes of job k from member to member: none, few, or more than is sent without asking first. */
static int64_t nbytes_of(int k, int from, int to)
{
    static const int64_t nbytes[] = {17, 0, 70001, 999, 4096, 1, 300007};
    return nbytes[(5 * k + 3 * from + to) % LEN(nbytes)];
}

/* From zero, in the order of members, each number from four bytes. */
static void add_up(void *arg)
{
    Work *w = arg;
    for (int i = 0; i < NSUM; i++) {
        w->sum[i] = 0;
        for (int m = 0; m < w->n; m++)
            for (int64_t j = w->at[m] + i; j < w->at[m + 1]; j += NSUM)
                w->sum[i] += (float)w->in[j] / (float)(3 + m + i);
    }
}

static void prepare_exchange(Work *w, Arena *a, int k)
{
    int64_t nout = 0;
    for (int m = 0; m < w->n; m++) {
        nout += nbytes_of(k, w->member, m);
        w->at[m + 1] = w->at[m] + nbytes_of(k, m, w->member);
    }
    unsigned char *out = w->out = NEWN(a, unsigned char, nout + 1);
    w->in = NEWN(a, unsigned char, w->at[w->n] + 1);
    for (int m = 0; m < w->n; m++) {
        w->round[0].part[m] =
            (CommPart){out, w->in + w->at[m], nbytes_of(k, w->member, m), w->at[m + 1] - w->at[m]};
        out += nbytes_of(k, w->member, m);
    }
}

static void prepare(Work *w, Arena *a, CommGroup *g, int k)
{
    w->n = comm_group_size(g);
    w->member = comm_member(g);
    for (int i = 0; i < 2; i++)
        w->round[2 * i].part = NEWN(a, CommPart, w->n);
    w->round[1] = (CommRound){.kind = ROUND_CALL, .call = add_up, .arg = w};
    for (int m = 0; m < w->n; m++)
        w->round[2].part[m] = (CommPart){w->sum, w->all[m], sizeof w->sum, sizeof w->sum};
    prepare_exchange(w, a, k);
    w->round[3] = (CommRound){.kind = ROUND_REDUCE,
                              .type = COMM_I64,
                              .op = COMM_SUM,
                              .from = w->mine,
                              .to = w->reduced,
                              .count = NSUM};
    w->job = (CommJob){g, "a job", w->round, 3 + comm_reduces(g), .patient = false};
    comm_prepare(a, &w->job);
}

static void fill(Work *w, int k, int time)
{
    for (int m = 0, at = 0; m < w->n; at += (int)w->round[0].part[m++].nsend)
        for (int64_t i = 0; i < w->round[0].part[m].nsend; i++)
            w->out[at + i] = (unsigned char)(i % 249 + 3 * k + 7 * w->member + m + time);
    for (int i = 0; i < NSUM; i++)
        w->mine[i] = i * (w->member + 1) + time;
}

static bool is_reduced(const Work *w, int time)
{
    bool same = true;
    for (int i = 0; i < NSUM; i++)
        same = same && w->reduced[i] == i * w->n * (w->n + 1) / 2 + w->n * time;
    return same;
}

static uint64_t hash_of(const Work *w, uint64_t hash)
{
    hash = hash_bytes(w->in, (size_t)w->at[w->n], hash);
    return hash_bytes(w->all, sizeof w->all[0] * (size_t)w->n, hash);
}

/* All ranks; pairs of neighbours; every second one. */
static void make_groups(Comm *c, Arena *a, CommGroup *g[NGROUP])
{
    int of[MAX_RANK], size = comm_size(c), rank = comm_rank(c);
    for (int k = 0; k < NGROUP; k++) {
        int n = 0;
        for (int i = 0; i < size; i++)
            if (!k || (k == 1 ? i / 2 == rank / 2 : i % 2 == rank % 2))
                of[n++] = i;
        g[k] = comm_group(c, a, k, n, of, true);
    }
}

static uint64_t run_jobs(Comm *c, Arena *a)
{
    char message[COMM_MESSAGE];
    CommGroup *g[NGROUP];
    make_groups(c, a, g);
    Work *w = NEWN(a, Work, NJOB);
    uint64_t hash = 0;
    for (int k = 0; k < NJOB; k++)
        prepare(&w[k], a, g[k % NGROUP], k);
    for (int time = 0; time < TIMES; time++) {
        for (int k = 0; k < NJOB; k++) {
            fill(&w[k], k, time);
            comm_start(c, &w[k].job);
        }
        for (int k = NJOB; k-- > 0;)
            CHECK(!comm_wait(c, &w[k].job, message));
        for (int k = 0; k < NJOB; k++) {
            hash = hash_of(&w[k], hash);
            CHECK(w[k].job.nround == 3 || is_reduced(&w[k], time));
        }
    }
    return hash;
}

static void run(Comm *c, Arena *a)
{
    char message[COMM_MESSAGE];
    uint64_t mine = run_jobs(c, a), all[MAX_RANK];
    int64_t most[] = {comm_rank(c), -comm_rank(c)};
    CHECK(!comm_gather(c, &mine, sizeof mine, all, false, message));
    CHECK(!comm_max(c, most, 2, message));
    CHECK(most[0] == comm_size(c) - 1 && most[1] == 0);
    for (int i = 0; !comm_rank(c) && i < comm_size(c); i++)
        printf("rank %d of %d, %d here: %016llx\n", i, comm_size(c), comm_here(c),
               (unsigned long long)all[i]);
}

/* Rank 1 is late, or ends all; the others wait for it. */
static void wait_in_vain(Comm *c, const char *what)
{
    char message[COMM_MESSAGE];
    int64_t x = 0;
    if (comm_rank(c) == 1 && !strcmp(what, "abort"))
        comm_abort(c, 3, "the disk is full");
    if (comm_rank(c) == 1)
        sleep(20);
    CHECK(comm_max(c, &x, 1, message));
}

/* ---- ranks ---- */

typedef struct Rank {
    const char *what;
    const Transport *t; /* NULL: of the launcher's MPI */
    void *self;
    pthread_t thread;
    Ctx ctx;
    Arena *a;
} Rank;

static void in_rank(void *arg)
{
    Rank *r = arg;
    CommOptions o = comm_options(&r->ctx, 2);
    Comm *c = comm_open(r->a, r->t ? r->t : comm_mpi(&r->ctx), r->self, &o);
    if (!strcmp(r->what, "run"))
        run(c, r->a);
    else
        wait_in_vain(c, r->what);
}

static void *run_rank(void *arg)
{
    Rank *r = arg;
    r->a = arena_new(&r->ctx);
    if (ctx_try(&r->ctx, in_rank, r)) {
        fprintf(stderr, "tenon: %s\n", r->ctx.message);
        exit(1);
    }
    arena_free(r->a);
    return NULL;
}

static void run_threads(const char *what, int n)
{
    Rank rank[MAX_RANK] = {{.what = what}};
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    CommShared *s = comm_shared(a, n);
    for (int i = 0; i < n; i++) {
        rank[i].what = what;
        rank[i].t = comm_threads(s, i, &rank[i].self);
        CHECK(!thread_new(&rank[i].thread, run_rank, &rank[i]));
    }
    for (int i = 0; i < n; i++)
        pthread_join(rank[i].thread, NULL);
    arena_free(a);
}

int main(int argc, char **argv)
{
    Rank one = {.what = argc > 1 ? argv[1] : "run"};
    if (argc > 2)
        run_threads(one.what, atoi(argv[2]));
    else
        run_rank(&one);
    return 0;
}
