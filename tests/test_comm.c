/* Ranks as threads: random jobs over random groups, started out of step and waited for in any
 * order, bring the right bytes, and the same bits whatever the delays; what fails, fails on all
 * ranks, soon and with its reason. TN_LONG: more of them. */
#include "../src/comm/comm.h"
#include "test.h"

#include <time.h>

enum { MAX_RANK = 8, MAX_AXIS = 3, NJOB = 24, NSUM = 100 };

/* ---- ranks ---- */

typedef struct Trial {
    int n;
    CommOptions options;
    void (*run)(struct Trial *t, Comm *c, Arena *a, int rank);
    uint64_t seed;
    uint64_t hash[MAX_RANK];
    double sec[MAX_RANK]; /* from the trial's begin to the end of run() */
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

static void add_up(void *arg)
{
    Work *w = arg;
    for (int i = 0; i < NSUM; i++)
        w->sum[i] = 0;
    for (int m = 0; m < w->n; m++) {
        const CommPart *p = &w->round[0].part[m];
        const unsigned char *from = p->receive;
        for (int64_t i = 0; i < p->nreceive; i++)
            w->sum[i % NSUM] += (float)from[i] * 0.37f + w->sum[i % NSUM] * 0.001f;
    }
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
    CommPart *first = NEWN(a, CommPart, w->n), *last = NEWN(a, CommPart, w->n);
    for (int m = 0; m < w->n; m++) {
        first[m] = made_part(t, a, k, w->member, m);
        last[m] = (CommPart){w->sum, w->all[m], sizeof w->sum, sizeof w->sum};
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
        group[count++] = comm_group(c, a, 1 + axis, size, member, false);
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
    int64_t want = 0;
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

int main(void)
{
    static const int sizes[] = {1, 2, 3, 8};
    for (int i = 0; i < LEN(sizes); i++)
        for (uint64_t seed = 0; seed < (getenv("TN_LONG") ? 30 : 3); seed++)
            test_random(sizes[i], seed);
    return test_report();
}
