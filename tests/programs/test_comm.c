/* Ranks as threads: random jobs over random groups, started out of step and waited for in any
 * order, bring the right bytes, and the same bits whatever the delays; what fails, fails on all
 * ranks, soon and with its reason. TN_LONG: more. By mpirun the same over MPI, with the same bits.
 */
#include "../../src/comm/comm.h"
#include "../shared/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANK = 8, MAX_AXIS = 3, NJOB = 24, NSUM = 100, SIZE = 4, ALL = NSUM * SIZE };

/* ---- ranks ---- */

typedef struct Trial {
    int n;
    CommOptions options;
    void (*run)(struct Trial *t, Comm *c, Arena *a, int rank);
    uint64_t seed;
    uint64_t hash[MAX_RANK];
    double sec[MAX_RANK]; /* until the end of run(), or as it says */
    char message[MAX_RANK][COMM_MESSAGE];
    double begin;
    CommShared *shared;
    pthread_mutex_t lock; /* of the test's counts */
} Trial;

typedef struct Rank {
    Trial *t;
    int rank;
    Ctx ctx;
    Arena *a;
} Rank;

static void in_rank(void *arg)
{
    Rank *r = arg;
    void *self;
    const Transport *t = comm_threads(r->t->shared, r->rank, &self);
    r->t->run(r->t, comm_open(r->a, t, self, &r->t->options), r->a, r->rank);
    if (!r->t->sec[r->rank])
        r->t->sec[r->rank] = now_sec() - r->t->begin;
}

static void *rank_thread(void *arg)
{
    Rank *r = arg;
    r->a = arena_new(&r->ctx);
    Code code = ctx_try(&r->ctx, in_rank, r);
    arena_free(r->a);
    CHECK(!code);
    return NULL;
}

static void run_ranks(Trial *t)
{
    static Ctx ctx;
    Arena *a = arena_new(&ctx);
    Rank rank[MAX_RANK];
    pthread_t thread[MAX_RANK];
    t->shared = comm_shared(a, t->n);
    t->begin = now_sec();
    pthread_mutex_init(&t->lock, NULL);
    for (int i = 0; i < t->n; i++) {
        rank[i] = (Rank){.t = t, .rank = i};
        CHECK(!pthread_create(&thread[i], NULL, rank_thread, &rank[i]));
    }
    for (int i = 0; i < t->n; i++)
        pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&t->lock);
    arena_free(a);
}

static bool expect(Trial *t, bool ok, int line, const char *what)
{
    pthread_mutex_lock(&t->lock);
    test_note(ok, __FILE__, line, what);
    pthread_mutex_unlock(&t->lock);
    return ok;
}
#define EXPECT_IN(t, cond) expect((t), (cond), __LINE__, #cond)

static void sleep_sec(double sec)
{
    struct timespec t = {(time_t)sec, (long)(1e9 * (sec - (double)(time_t)sec))};
    nanosleep(&t, NULL);
}

/* ---- random jobs ---- */

static uint32_t draw(uint64_t seed, uint32_t what, uint32_t x, uint32_t y, uint32_t below)
{
    uint32_t counter[4] = {what, x, y, 0}, key[2] = {(uint32_t)seed, 7}, out[4];
    philox(counter, key, out);
    return out[0] % below;
}

enum { DRAW_MESH = 1, DRAW_AXIS, DRAW_SIZE, DRAW_LARGE, DRAW_SKIP, DRAW_PAUSE, DRAW_ORDER };

/* Bytes that member `from` sends to member `to` in job k: nothing, or few, or many. */
static int64_t part_nbytes(const Trial *t, int k, int from, int to)
{
    uint32_t pair = (uint32_t)(from * MAX_RANK + to), job = (uint32_t)k;
    if (!draw(t->seed, DRAW_SKIP, job, pair, 4))
        return 0;
    bool large = !draw(t->seed, DRAW_LARGE, job, pair, 10);
    return 1 + (int64_t)draw(t->seed, DRAW_SIZE, job, pair, large ? 1 << 20 : 1 << 12);
}

static unsigned char byte_of(int k, int from, int to, int64_t i)
{
    return (unsigned char)(i * 31 + (i >> 8) + k * 7 + from * 13 + to * 101);
}

/* One rank's part of a job: all to all; a sum of what came, in order; all gather of the sums. */
typedef struct Work {
    CommJob job;
    CommRound round[3];
    int k, n, member;
    float sum[NSUM], all[MAX_RANK][NSUM];
} Work;

/* A slice for each member's. */
static bool add_up(void *arg, int64_t m)
{
    Work *w = arg;
    const CommPart *p = &w->round[0].part[m];
    const unsigned char *from = p->receive;
    memset(w->sum, 0, m ? 0 : sizeof w->sum);
    for (int64_t i = 0; i < p->nreceive; i++)
        w->sum[i % NSUM] += (float)from[i] * 0.37f + w->sum[i % NSUM] * 0.001f;
    return m + 1 == w->n;
}

static CommPart made_part(Trial *t, Arena *a, int k, int self, int other)
{
    CommPart p = {.nsend = part_nbytes(t, k, self, other),
                  .nreceive = part_nbytes(t, k, other, self)};
    unsigned char *send = arena_alloc(a, (size_t)p.nsend);
    for (int64_t i = 0; i < p.nsend; i++)
        send[i] = byte_of(k, self, other, i);
    p.send = send;
    p.receive = arena_alloc(a, (size_t)p.nreceive);
    if (self == other && k % 2)
        p.receive = send; /* it stays */
    return p;
}

static Work *make_work(Trial *t, Arena *a, CommGroup *g, int k)
{
    Work *w = NEW(a, Work);
    *w = (Work){.k = k, .n = comm_group_size(g), .member = comm_member(g)};
    CommPart *first = NEWN(a, CommPart, 3 * w->n), *last = first + w->n, *rest = last + w->n;
    for (int m = 0; m < w->n; m++) {
        first[m] = made_part(t, a, k, w->member, m);
        int at = k % NSUM * SIZE, to = m == w->member ? at : 0; /* other pieces come than go */
        rest[m] = (CommPart){w->sum + at / SIZE, w->all[m] + to / SIZE, ALL - at, ALL - to, 0};
        last[m] = (CommPart){w->sum, w->all[m], at, to, &rest[m]};
    }
    w->round[0] = (CommRound){.kind = ROUND_EXCHANGE, .part = first};
    w->round[1] = (CommRound){.kind = ROUND_CALL, .call = add_up, .arg = w};
    w->round[2] = (CommRound){.kind = ROUND_EXCHANGE, .part = last};
    w->job = (CommJob){.group = g, .what = "work", .round = w->round, .nround = 3};
    comm_prepare(a, &w->job);
    return w;
}

static bool came(const Work *w)
{
    for (int m = 0; m < w->n; m++) {
        const CommPart *p = &w->round[0].part[m];
        const unsigned char *got = p->receive;
        for (int64_t i = 0; i < p->nreceive; i++)
            if (got[i] != byte_of(w->k, m, w->member, i))
                return false;
    }
    return true;
}

/* The group of this rank along each axis of a random mesh, by axis; then of all. */
static int make_groups(const Trial *t, Comm *c, Arena *a, CommGroup **group)
{
    int left = t->n, stride = 1, count = 0, rank = comm_rank(c);
    for (int axis = 0; axis < MAX_AXIS; axis++) {
        int size = left % 2 || draw(t->seed, DRAW_MESH, (uint32_t)axis, 0, 2) ? left : 2;
        int member[MAX_RANK], begin = rank - rank / stride % size * stride;
        for (int i = 0; i < size; i++)
            member[i] = begin + i * stride;
        group[count++] = comm_group(c, a, 1 + axis, size, member);
        stride *= size;
        left /= size;
    }
    group[count++] = comm_world(c);
    return count;
}

static void pause_sometimes(const Trial *t, int rank, int k)
{
    if (!draw(t->seed, DRAW_PAUSE, (uint32_t)rank, (uint32_t)k, 4))
        sleep_sec(1e-6 * draw(t->seed, DRAW_PAUSE, (uint32_t)rank, (uint32_t)k + NJOB, 3000));
}

/* Each rank begins the jobs of its groups in an order of its own, but for those of one group. */
static void start_all(const Trial *t, Comm *c, Work **work, const int *axis, int naxes)
{
    int next[MAX_AXIS + 1] = {0};
    for (int begun = 0, tries = 0; begun < NJOB; tries++) {
        int g = (int)draw(t->seed, DRAW_ORDER, (uint32_t)comm_rank(c), (uint32_t)tries,
                          (uint32_t)naxes);
        while (next[g] < NJOB && axis[next[g]] != g)
            next[g]++;
        if (next[g] == NJOB)
            continue;
        pause_sometimes(t, comm_rank(c), begun);
        comm_start(c, &work[next[g]++]->job);
        begun++;
    }
}

static void random_jobs(Trial *t, Comm *c, Arena *a, int rank)
{
    CommGroup *group[MAX_AXIS + 1];
    Work *work[NJOB];
    int axis[NJOB], naxes = make_groups(t, c, a, group);
    int64_t want = comm_count(c).nreceived;
    for (int k = 0; k < NJOB; k++) {
        axis[k] = (int)draw(t->seed, DRAW_AXIS, (uint32_t)k, 0, (uint32_t)naxes);
        work[k] = make_work(t, a, group[axis[k]], k);
        for (int m = 0; m < work[k]->n; m++)
            if (m != work[k]->member)
                want += work[k]->round[0].part[m].nreceive + (int64_t)sizeof work[k]->sum;
    }
    start_all(t, c, work, axis, naxes);
    for (int i = 0; i < NJOB; i++) {
        Work *w = work[rank % 2 ? i : NJOB - 1 - i];
        char message[COMM_MESSAGE] = "";
        EXPECT_IN(t, !comm_wait(c, &w->job, message) && came(w));
    }
    for (int k = 0; k < NJOB; k++)
        t->hash[rank] = hash_bytes(work[k]->all, sizeof work[k]->all, t->hash[rank]);
    EXPECT_IN(t, comm_count(c).nreceived == want);
}

static void test_random(int n, uint64_t seed)
{
    Trial plain = {.n = n, .run = random_jobs, .seed = seed};
    run_ranks(&plain);
    for (uint64_t s = 0; s < 2; s++) {
        Trial late = {
            .n = n, .run = random_jobs, .seed = seed, .options = {.delay = 2000, .seed = s}};
        run_ranks(&late);
        EXPECT(!memcmp(late.hash, plain.hash, sizeof plain.hash));
    }
}

/* ---- among all ranks, at once ---- */

static void small(Trial *t, Comm *c, Arena *a, int rank)
{
    char message[COMM_MESSAGE];
    enum { N = 64 };
    int64_t x[N];
    int *all = NEWN(a, int, t->n), n = t->n;
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < N; i++)
            x[i] = ((rank + i + step) % n) * (i % 2 ? 1 : -1) - 5;
        EXPECT_IN(t, !comm_max(c, x, N, message));
        for (int i = 0; i < N; i++)
            EXPECT_IN(t, x[i] == (i % 2 ? n - 1 : 0) - 5);
        int mine = rank * 100 + step;
        EXPECT_IN(t, !comm_gather(c, &mine, sizeof mine, all, true, message));
        for (int i = 0; i < n; i++)
            EXPECT_IN(t, all[i] == i * 100 + step);
    }
    int to[MAX_RANK], from[MAX_RANK];
    CommPart part[MAX_RANK];
    for (int i = 0; i < n; i++) {
        to[i] = rank * 10 + i;
        part[i] = (CommPart){&to[i], &from[i], sizeof to[i], sizeof from[i], NULL};
    }
    EXPECT_IN(t, !comm_exchange(c, part, true, message));
    for (int i = 0; i < n; i++)
        EXPECT_IN(t, from[i] == i * 10 + rank);
}

static void test_small(void)
{
    static const int sizes[] = {1, 2, 3, 8};
    for (int i = 0; i < LEN(sizes); i++) {
        Trial t = {.n = sizes[i], .run = small, .options = {.delay = 300}};
        run_ranks(&t);
    }
}

static void test_alone(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Comm *c = comm_alone(a);
    Trial t = {.n = 1};
    pthread_mutex_init(&t.lock, NULL);
    small(&t, c, a, 0);
    random_jobs(&t, c, a, 0);
    EXPECT(comm_rank(c) == 0 && comm_size(c) == 1 && comm_here(c) == 1);
    EXPECT(!comm_reduces(comm_world(c)) && comm_count(c).nreceived == 0);
    char message[COMM_MESSAGE];
    comm_abort(c, TN_FAIL, "over");
    EXPECT(comm_max(c, (int64_t[]){1}, 1, message) && !strcmp(message, "over"));
    arena_free(a);
    pthread_mutex_destroy(&t.lock);
}

/* ---- what fails ---- */

/* Whether all ranks but `but` were told `text`, within `sec` seconds of `begin`. */
static void expect_told(const Trial *t, int but, const char *text, double sec, int line)
{
    for (int i = 0; i < t->n; i++) {
        bool good = i == but || (!strcmp(t->message[i], text) && t->sec[i] < sec);
        if (!test_note(good, __FILE__, line, text))
            printf("  found of rank %d after %.3f s: %s\n", i, t->sec[i], t->message[i]);
    }
}

/* Waits that would never end. */
static void wait_in_vain(Trial *t, Comm *c, Arena *a, int rank)
{
    Work *w = make_work(t, a, comm_world(c), 0);
    char *message = t->message[rank];
    comm_start(c, &w->job);
    EXPECT_IN(t, comm_wait(c, &w->job, message));
    char again[COMM_MESSAGE];
    comm_start(c, &w->job);
    EXPECT_IN(t, comm_wait(c, &w->job, again) && !strcmp(again, message));
    EXPECT_IN(t, comm_max(c, &(int64_t){0}, 1, again) && !strcmp(again, message));
}

static void abort_one(Trial *t, Comm *c, Arena *a, int rank)
{
    if (rank == t->n - 1) {
        sleep_sec(0.05);
        comm_abort(c, TN_FAIL, "the disk is full");
    }
    wait_in_vain(t, c, a, rank);
}

static void leave_one(Trial *t, Comm *c, Arena *a, int rank)
{
    if (rank)
        wait_in_vain(t, c, a, rank);
}

/* With a job in which others take no part, or are about to; its memory goes at once. */
static void unwind_one(Trial *t, Comm *c, Arena *a, int rank)
{
    if (rank && !t->seed) {
        wait_in_vain(t, c, a, rank);
        return;
    }
    Arena *own = arena_new(arena_ctx(a));
    int all[MAX_RANK];
    for (int i = 0; i < t->n; i++)
        all[i] = i;
    Work *w = make_work(t, own, comm_group(c, own, t->seed ? 0 : 5, t->n, all), 0);
    w->job.what = "all_gather %x";
    comm_start(c, &w->job);
    if (rank && comm_wait(c, &w->job, t->message[rank]))
        EXPECT_IN(t, !strcmp(t->message[rank], "rank 0: ended before all_gather %x did"));
    arena_free(own);
}

/* While another copies from its memory, which then goes. */
static void abort_in_copy(Trial *t, Comm *c, Arena *a, int rank)
{
    enum { MUCH = 64 << 20 };
    Arena *own = arena_new(arena_ctx(a));
    char *p = arena_alloc(own, MUCH);
    CommPart part[2] = {{0}, {0}};
    CommRound round = {.kind = ROUND_EXCHANGE, .part = part};
    CommJob job = {.group = comm_world(c), .what = "much", .round = &round, .nround = 1};
    part[!rank] =
        rank ? (CommPart){.send = p, .nsend = MUCH} : (CommPart){.receive = p, .nreceive = MUCH};
    comm_prepare(own, &job);
    comm_start(c, &job);
    if (rank) {
        sleep_sec(1e-3 * (double)t->seed);
        comm_abort(c, TN_FAIL, "over");
    }
    comm_wait(c, &job, t->message[rank]);
    arena_free(own);
}

static void wrong_size(Trial *t, Comm *c, Arena *a, int rank)
{
    char *got = NEWN(a, char, 16 * MAX_RANK);
    EXPECT_IN(t, comm_gather(c, "sixteen letters", rank ? 8 : 16, got, true, t->message[rank]));
}

static void test_ends(void)
{
    Trial abort8 = {.n = 8, .run = abort_one}, abort2 = {.n = 2, .run = abort_one};
    run_ranks(&abort8);
    expect_told(&abort8, -1, "rank 7: the disk is full", 1, __LINE__);
    run_ranks(&abort2);
    expect_told(&abort2, -1, "rank 1: the disk is full", 1, __LINE__);
    Trial leave = {.n = 2, .run = leave_one};
    run_ranks(&leave);
    expect_told(&leave, 0, "rank 1: rank 0 has ended", 1, __LINE__);
    Trial size = {.n = 2, .run = wrong_size};
    run_ranks(&size);
    EXPECT(!strcmp(size.message[0], size.message[1]));
    EXPECT(strstr(size.message[0], "bytes where"));
    for (uint64_t msec = 1; msec <= 16; msec *= 2) {
        Trial copy = {.n = 2, .run = abort_in_copy, .seed = msec};
        run_ranks(&copy);
        EXPECT(!strcmp(copy.message[1], "rank 1: over"));
    }
    Trial unwind = {.n = 3, .run = unwind_one};
    run_ranks(&unwind);
    expect_told(&unwind, 0, "rank 0: ended before all_gather %x did", 1, __LINE__);
    for (int i = 1; i < 20; i++) {
        Trial late = {.n = 3, .run = unwind_one, .seed = (uint64_t)i, .options.delay = 100 * i};
        run_ranks(&late);
    }
}

/* ---- time ---- */

static const double timeout = 0.25;

/* Of ranks 2 and 5 nothing comes, or of rank 1. */
static void come_late(Trial *t, Comm *c, Arena *a, int rank)
{
    (void)a;
    bool late = t->n > 5 ? rank == 2 || rank == 5 : rank == 1;
    if (late)
        sleep_sec(4 * timeout);
    int64_t x = 0;
    comm_max(c, &x, 1, t->message[rank]);
}

/* Rank 0 sends, rank 1 does not receive. */
static void take_late(Trial *t, Comm *c, Arena *a, int rank)
{
    (void)a;
    CommPart part[2] = {{0}, {.send = "x", .nsend = 1}};
    if (rank)
        sleep_sec(4 * timeout);
    else
        comm_exchange(c, part, false, t->message[0]);
}

/* No message is late where nobody waits for it, or may take as long as it takes. */
static void come_in_time(Trial *t, Comm *c, Arena *a, int rank)
{
    char got[2], message[COMM_MESSAGE];
    sleep_sec(rank ? 2 * timeout : 0);
    EXPECT_IN(t, !comm_gather(c, "a", 1, got, true, message));
    Work *w = make_work(t, a, comm_world(c), 0);
    if (!rank)
        comm_start(c, &w->job);
    sleep_sec(2 * timeout);
    if (rank)
        comm_start(c, &w->job);
    EXPECT_IN(t, !comm_wait(c, &w->job, message));
}

static void test_timeout(void)
{
    const CommOptions o = {.timeout = timeout};
    Trial two = {.n = 2, .run = come_late, .options = o};
    Trial eight = {.n = 8, .run = come_late, .options = o};
    Trial take = {.n = 2, .run = take_late, .options = o};
    Trial good = {.n = 2, .run = come_in_time, .options = o};
    run_ranks(&two);
    run_ranks(&eight);
    run_ranks(&take);
    run_ranks(&good);
    expect_told(&two, 1,
                "rank 0: rank 1 has not sent its part of a maximum of all ranks for 0.25 s", 0.75,
                __LINE__);
    EXPECT(two.sec[0] >= timeout);
    const char *why = strchr(eight.message[0], ':');
    EXPECT(why &&
           !strcmp(why, ": ranks 2 and 5 have not sent their parts of a maximum of all ranks "
                        "for 0.25 s"));
    EXPECT(!strcmp(take.message[0],
                   "rank 0: rank 1 has not taken its part of what all ranks exchange for 0.25 s"));
}

/* A job that is stopped and goes on, here a process of its own, finds nobody late. */
static void test_stopped(void)
{
    int status;
    pid_t id = fork();
    if (!id) {
        Trial t = {.n = 2, .run = come_late, .options = {.timeout = 5 * timeout}};
        run_ranks(&t);
        _exit(*t.message[0] != 0);
    }
    sleep_sec(0.3);
    CHECK(!kill(id, SIGSTOP));
    sleep_sec(2);
    CHECK(!kill(id, SIGCONT));
    EXPECT(waitpid(id, &status, 0) == id && WIFEXITED(status) && !WEXITSTATUS(status));
}

/* Each gets as much from each other. */
static void gather_much(Trial *t, Comm *c, Arena *a, int rank)
{
    enum { N = 100000 };
    char *got = NEWN(a, char, N * t->n), *mine = NEWN(a, char, N);
    double begin = now_sec();
    EXPECT_IN(t, !comm_gather(c, mine, N, got, true, t->message[rank]));
    t->sec[rank] = now_sec() - begin;
    EXPECT_IN(t, comm_count(c).nreceived == N * (t->n - 1));
    EXPECT_IN(t, comm_count(c).nmessage == t->n - 1);
    double waited = comm_count(c).waited;
    EXPECT_IN(t, waited > 0.5 * t->sec[rank] && waited <= t->sec[rank]);
    EXPECT_IN(t, comm_count(c).nlook < 150); /* none for the end that the clock tells */
}

/* A link takes one message after the other. */
static void test_link(void)
{
    Trial t = {.n = 4, .run = gather_much, .options = {.wait = 0.1, .rate = 5e6}};
    run_ranks(&t);
    for (int i = 0; i < t.n; i++) /* three times 0.1 s, and 1e5 bytes */
        EXPECT(t.sec[i] >= 0.36 && t.sec[i] < 0.82);
}

/* ---- ranks that a launcher has started ---- */

static void open_mpi(void *arg)
{
    Arena *a = ((Arena **)arg)[0];
    CommOptions o = comm_options(arena_ctx(a), 20);
    ((void **)arg)[1] = comm_open(a, comm_mpi(arena_ctx(a)), NULL, &o);
}

/* The same jobs bring the same bits as where ranks are threads. */
static void over_mpi(Comm *c)
{
    char message[COMM_MESSAGE];
    uint64_t all[MAX_RANK] = {0};
    int rank = comm_rank(c);
    for (uint64_t seed = 0; seed < 4; seed++) {
        Ctx ctx = {0};
        Arena *a = arena_new(&ctx);
        Trial t = {.n = comm_size(c), .seed = seed, .run = random_jobs};
        Trial threads = t;
        pthread_mutex_init(&t.lock, NULL);
        random_jobs(&t, c, a, rank);
        small(&t, c, a, rank);
        pthread_mutex_destroy(&t.lock);
        arena_free(a);
        EXPECT(!comm_gather(c, &t.hash[rank], sizeof *all, all, true, message));
        if (rank)
            continue;
        run_ranks(&threads);
        EXPECT(!memcmp(all, threads.hash, sizeof all));
    }
}

static int test_mpi(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    void *arg[] = {a, NULL};
    if (EXPECT(!ctx_try(&ctx, open_mpi, arg))) {
        over_mpi(arg[1]);
        int64_t bad = test_nfail;
        char message[COMM_MESSAGE];
        EXPECT(!comm_max(arg[1], &bad, 1, message) && !bad);
    } else {
        printf("%s\n", ctx.message);
    }
    bool first = arg[1] && comm_rank(arg[1]) == 0;
    arena_free(a);
    return first || test_nfail ? test_report() : EXIT_SUCCESS;
}

int main(void)
{
    static const int sizes[] = {1, 2, 3, 8};
    if (comm_launched())
        return test_mpi();
    for (int i = 0; i < LEN(sizes); i++)
        for (uint64_t seed = 0; seed < (getenv("TN_LONG") ? 30 : 3); seed++)
            test_random(sizes[i], seed);
    test_small();
    test_alone();
    test_ends();
    test_timeout();
    test_stopped();
    test_link();
    return test_report();
}
