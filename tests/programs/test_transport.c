/* What an end makes of a transport that refuses, whose aborts kill (here they are counted), that
 * tells whether the other rank lives, and that reduces by itself: one over that of threads, for two
 * ranks. */
#include "../../src/exec/exec.h"
#include "../shared/test.h"

#include <time.h>
#include <unistd.h>

enum { NRANK = 2, NSUM = 3 };

/* What a transport shall not do, with this reason. */
typedef enum { REFUSE_NOTHING, REFUSE_OPEN, REFUSE_GROUP, REFUSE_SEND } Refuse;

typedef struct Sum {
    pthread_mutex_t lock;
    double sum[NSUM];
    int count;
} Sum;

typedef struct Fake {
    const Transport *t;
    void *self;
    Refuse refuse;
    Sum *sum; /* of the ranks */
    double *to;
    double until; /* when the other rank is last heard of */
    int naborted, nclosed, nbeat, ngroup, code;
} Fake;

static int refuse(const Fake *f, Refuse what, char *message)
{
    if (f->refuse != what)
        return 0;
    snprintf(message, COMM_MESSAGE, "no such thing here");
    return -1;
}

static int fake_open(void **self, CommPlace *place, char *message)
{
    Fake *f = *self;
    int bad = refuse(f, REFUSE_OPEN, message);
    return bad ? bad : f->t->open(&f->self, place, message);
}

static int fake_send(void *self, int to, int tag, const CommPart *p, void **request, char *message)
{
    Fake *f = self;
    int bad = refuse(f, REFUSE_SEND, message);
    return bad ? bad : f->t->send(f->self, to, tag, p, request, message);
}

static int fake_receive(void *self, int from, int tag, const CommPart *p, void **request,
                        char *message)
{
    Fake *f = self;
    return f->t->receive(f->self, from, tag, p, request, message);
}

static int fake_done(void *self, void *request, bool *done, char *message)
{
    Fake *f = self;
    if (request != &f->to)
        return f->t->done(f->self, request, done, message);
    pthread_mutex_lock(&f->sum->lock);
    *done = f->sum->count == NRANK;
    if (*done)
        memcpy(f->to, f->sum->sum, sizeof f->sum->sum);
    pthread_mutex_unlock(&f->sum->lock);
    return 0;
}

static int fake_group(void *self, int n, const int *rank, void **group, char *message)
{
    CHECK(n == NRANK && rank[1] == 1);
    ((Fake *)self)->ngroup++;
    *group = self;
    return refuse(self, REFUSE_GROUP, message);
}

static int fake_reduce(void *self, void *group, bool scatter, CommType type, CommOp op,
                       const void *from, void *to, int64_t count, void **request, char *message)
{
    (void)message;
    Fake *f = self;
    CHECK(group == self && !scatter && type == COMM_F64 && op == COMM_SUM && count == NSUM);
    pthread_mutex_lock(&f->sum->lock);
    for (int i = 0; i < NSUM; i++)
        f->sum->sum[i] += ((const double *)from)[i];
    f->sum->count++;
    pthread_mutex_unlock(&f->sum->lock);
    f->to = to;
    *request = &f->to;
    return 0;
}

static int fake_beat(void *self, bool last, CommBeat *heard, char *message)
{
    (void)message;
    Fake *f = self;
    f->nbeat++;
    *heard = last ? BEAT_OVER : now_sec() < f->until ? BEAT_HEARD : BEAT_NONE;
    return 0;
}

static void fake_abort(void *self, int code, const char *message)
{
    Fake *f = self;
    if (message)
        fprintf(stderr, "%s\n", message);
    f->naborted++;
    f->code = code;
}

static const char *fake_aborted(void *self)
{
    (void)self;
    return NULL;
}

static void fake_close(void *self, bool failed)
{
    Fake *f = self;
    f->nclosed += failed ? 100 : 1;
    f->t->close(f->self, failed);
}

#define FAKE                                                                            \
    .version = TRANSPORT_VERSION, .name = "fake", .kills = true, .open = fake_open,     \
    .send = fake_send, .receive = fake_receive, .done = fake_done, .group = fake_group, \
    .reduce = fake_reduce, .abort = fake_abort, .aborted = fake_aborted, .close = fake_close
static const Transport fake = {FAKE};
static const Transport beating = {FAKE, .beat = fake_beat};

/* ---- a rank that fails ---- */

static Ctx ctx;
static const char late[] = "rank 1 has not sent its part of a maximum of all ranks for 0.1 s";

/* Rank 0 of two; the other does nothing. */
typedef struct Alone {
    Arena *a, *group;
    Fake f;
    Comm *c;
} Alone;

static void open_alone(void *arg)
{
    Alone *x = arg;
    x->f.t = comm_threads(comm_shared(x->a, NRANK), 0, &x->f.self);
    x->c =
        comm_open(x->a, x->f.until > 0 ? &beating : &fake, &x->f, &(CommOptions){.timeout = 0.1});
}

static void make_group(void *arg)
{
    Alone *x = arg;
    comm_library(comm_group(x->c, x->group, 1, NRANK, (int[]){0, 1}), arena_ctx(x->group));
}

static Alone alone(Refuse what)
{
    return (Alone){arena_new(&ctx), arena_new(&ctx), {.refuse = what}, NULL};
}

static int max_of_all(Comm *c, char *message)
{
    return comm_max(c, &(int64_t){0}, 1, message);
}

/* What came to stderr while fn(arg) ran. */
static void hear(void (*fn)(Alone *x), Alone *x, char *text, size_t size)
{
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    CHECK(file && before >= 0);
    dup2(fileno(file), STDERR_FILENO);
    fn(x);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = 0;
    fclose(file);
}

static const char refused[] = "no such thing here";

static void fail_and_say(Alone *x)
{
    char message[COMM_MESSAGE];
    EXPECT(max_of_all(x->c, message) && !strcmp(message, refused));
    EXPECT(x->f.naborted == 0);
    comm_abort(x->c, 3, "says why");
    EXPECT(x->f.naborted == 1 && x->f.code == 3);
    EXPECT(max_of_all(x->c, message) && !strcmp(message, refused));
}

/* Which is said at once: who waits may have nothing that it could say. */
static void be_late(Alone *x)
{
    char message[COMM_MESSAGE];
    EXPECT(max_of_all(x->c, message) && !strcmp(message, late));
    EXPECT(x->f.naborted == 1 && x->f.code == TN_FAIL);
    comm_abort(x->c, 3, "says why");
    EXPECT(x->f.naborted == 1);
}

static void fail_and_sleep(Alone *x)
{
    char message[COMM_MESSAGE];
    EXPECT(max_of_all(x->c, message));
    nanosleep(&(struct timespec){3, 300000000}, NULL);
}

static void fail_and_close(Alone *x)
{
    char message[COMM_MESSAGE];
    EXPECT(max_of_all(x->c, message));
    arena_free(x->group);
    arena_free(x->a);
    x->a = x->group = NULL;
}

/* With a job under way. */
static void drop_group(Alone *x)
{
    char message[COMM_MESSAGE];
    CommGroup *g = comm_group(x->c, x->group, 1, NRANK, (int[]){0, 1});
    CommPart part[NRANK] = {{0}, {.receive = arena_alloc(x->group, 9), .nreceive = 9}};
    CommRound round = {.kind = ROUND_EXCHANGE, .part = part};
    CommJob job = {.group = g, .what = "work", .round = &round, .nround = 1};
    comm_prepare(x->group, &job);
    comm_start(x->c, &job);
    arena_free(x->group);
    x->group = NULL;
    EXPECT(max_of_all(x->c, message) && !strcmp(message, "ended before work did"));
    EXPECT(x->f.naborted == 0);
}

static void test_kills(void)
{
    static const struct {
        void (*run)(Alone *x);
        Refuse refuse;
        const char *said;
    } ways[] = {
        {fail_and_say, REFUSE_SEND, "says why\n"},
        {fail_and_sleep, REFUSE_SEND, "no such thing here\n"},
        {fail_and_close, REFUSE_SEND, ""},
        {be_late, REFUSE_NOTHING,
         "rank 1 has not sent its part of a maximum of all ranks for 0.1 s\n"},
        {drop_group, REFUSE_NOTHING, ""},
    };
    for (int i = 0; i < LEN(ways); i++) {
        char text[1000];
        Alone x = alone(ways[i].refuse);
        EXPECT(!ctx_try(&ctx, open_alone, &x));
        hear(ways[i].run, &x, text, sizeof text);
        EXPECT(!strcmp(text, ways[i].said));
        arena_free(x.group);
        arena_free(x.a);
        EXPECT(x.f.naborted == 1 && x.f.nclosed == 100);
    }
}

/* For whom this one waits as long as it takes, but not once nothing is heard of it. */
static void wait_for_silent(Alone *x)
{
    char message[COMM_MESSAGE], all[NRANK];
    EXPECT(comm_gather(x->c, "x", 1, all, true, message));
    EXPECT(!strcmp(message, "rank 1 has not answered for 2 s: it hangs or has died"));
    EXPECT(x->f.naborted == 1 && x->f.code == TN_FAIL);
}

static void test_beats(void)
{
    char text[1000];
    double begin = now_sec();
    Alone x = alone(REFUSE_NOTHING);
    x.f.until = begin + 1;
    EXPECT(!ctx_try(&ctx, open_alone, &x));
    hear(wait_for_silent, &x, text, sizeof text);
    double sec = now_sec() - begin;
    EXPECT(!strcmp(text, "rank 1 has not answered for 2 s: it hangs or has died\n"));
    EXPECT(sec > 2.7 && sec < 4 && x.f.nbeat > 8 && x.f.nbeat < 20);
    arena_free(x.group);
    arena_free(x.a);
    EXPECT(x.f.naborted == 1 && x.f.nclosed == 100);
    x = alone(REFUSE_NOTHING);
    x.f.until = now_sec() + 60;
    EXPECT(!ctx_try(&ctx, open_alone, &x));
    arena_free(x.group);
    arena_free(x.a);
    EXPECT(!x.f.naborted && x.f.nclosed == 1);
}

static void test_refusals(void)
{
    char message[COMM_MESSAGE];
    Alone x = alone(REFUSE_OPEN);
    EXPECT_FAIL(&ctx, open_alone, &x, "no such thing here");
    arena_free(x.group);
    arena_free(x.a);
    EXPECT(!x.f.naborted && !x.f.nclosed);
    x = alone(REFUSE_GROUP);
    EXPECT(!ctx_try(&ctx, open_alone, &x));
    EXPECT_FAIL(&ctx, make_group, &x, "no such thing here");
    arena_free(x.group);
    arena_free(x.a);
    x = alone(REFUSE_SEND);
    EXPECT(!ctx_try(&ctx, open_alone, &x));
    EXPECT(max_of_all(x.c, message) && !strcmp(message, "no such thing here"));
    arena_free(x.group);
    arena_free(x.a);
    EXPECT(x.f.naborted == 1 && x.f.nclosed == 100);
}

/* ---- reductions of the library's own ---- */

typedef struct Reducer {
    Fake f;
    int rank;
    bool joins;
    Ctx ctx;
    Arena *a;
    bool good;
} Reducer;

static void reduce_all(void *arg)
{
    Reducer *x = arg;
    char message[COMM_MESSAGE];
    Comm *c = comm_open(x->a, &fake, &x->f, &(CommOptions){0});
    CommGroup *g = comm_group(c, x->a, 1, NRANK, (int[]){0, 1});
    double from[NSUM], to[NSUM];
    for (int i = 0; i < NSUM; i++)
        from[i] = i * 10 + x->rank;
    CommRound round = {.kind = ROUND_REDUCE,
                       .type = COMM_F64,
                       .op = COMM_SUM,
                       .from = from,
                       .to = to,
                       .count = NSUM};
    CommJob job = {.group = g, .what = "all_reduce", .round = &round, .nround = 1};
    comm_prepare(x->a, &job);
    x->good = comm_reduces(g) && !x->f.ngroup;
    comm_library(g, &x->ctx);
    comm_library(g, &x->ctx);
    comm_start(c, &job);
    x->good = x->good && !comm_wait(c, &job, message) && x->f.ngroup == 1;
    for (int i = 0; i < NSUM; i++)
        x->good = x->good && to[i] == i * 20 + 1;
    x->good = x->good && comm_count(c).nreceived == sizeof to;
}

/* A program's: none waits for the other before both have joined. */
static void join_all(void *arg)
{
    static const char text[] = "tenon 1\n"
                               "graph t mesh(dp=2) at(%d) (%%x: f64[3]) {\n"
                               "  %%y: f64[3] = all_reduce(%%x, reduce_op=\"sum\", group=\"dp\")  "
                               "backward\n"
                               "  %%z: f64[3] = wait_tensor(%%y, %%x)  backward\n"
                               "  return %%z\n}\n";
    Reducer *x = arg;
    Comm *c = comm_open(x->a, &fake, &x->f, &(CommOptions){0});
    Graph *g = graph_parse(x->a, arena_printf(x->a, text, x->rank), "t");
    Program *p = program_make(x->a, plan_make(x->a, g, NULL), false, 0);
    double from[NSUM], to[NSUM];
    for (int i = 0; i < NSUM; i++)
        from[i] = i * 10 + x->rank;
    program_join(p, x->a, c, true);
    x->good = !x->f.ngroup;
    program_library(p, &x->ctx);
    x->good = x->good && x->f.ngroup == 1;
    program_write(p, p->plan->in, 0, sizeof from, from);
    x->good = x->good && !program_run(p);
    program_read(p, p->plan->out, 0, sizeof to, to);
    for (int i = 0; i < NSUM; i++)
        x->good = x->good && to[i] == i * 20 + 1;
}

static void *reduce_thread(void *arg)
{
    Reducer *x = arg;
    x->a = arena_new(&x->ctx);
    x->good = !ctx_try(&x->ctx, x->joins ? join_all : reduce_all, x) && x->good;
    if (*x->ctx.message)
        printf("  %s\n", x->ctx.message);
    arena_free(x->a);
    return NULL;
}

static void test_reduce(bool joins)
{
    Arena *a = arena_new(&ctx);
    CommShared *shared = comm_shared(a, NRANK);
    Sum sum = {.lock = PTHREAD_MUTEX_INITIALIZER};
    Reducer x[NRANK] = {0};
    pthread_t thread[NRANK];
    for (int i = 0; i < NRANK; i++) {
        x[i].rank = i;
        x[i].joins = joins;
        x[i].f.sum = &sum;
        x[i].f.t = comm_threads(shared, i, &x[i].f.self);
        CHECK(!pthread_create(&thread[i], NULL, reduce_thread, &x[i]));
    }
    for (int i = 0; i < NRANK; i++) {
        pthread_join(thread[i], NULL);
        EXPECT(x[i].good && !x[i].f.naborted && x[i].f.nclosed == 1);
    }
    arena_free(a);
}

/* ---- options ---- */

static void read_options(void *arg)
{
    *(CommOptions *)arg = comm_options(&ctx, 7);
}

static void test_options(void)
{
    static const char *const bad[][2] = {
        {"TENON_COMM_DELAY", "1,"},  {"TENON_COMM_DELAY", "-1"},   {"TENON_COMM_DELAY", "5 us"},
        {"TENON_COMM_LINK", "1"},    {"TENON_COMM_LINK", "1,0"},   {"TENON_COMM_LINK", "-1,5"},
        {"TENON_COMM_LINK", "1,2x"}, {"TENON_COMM_LINK", "nan,1"}, {"TENON_COMM_LINK", "1,inf"},
    };
    CommOptions o;
    for (int i = 0; i < LEN(bad); i++) {
        setenv(bad[i][0], bad[i][1], 1);
        EXPECT_FAIL(&ctx, read_options, &o, bad[i][0]);
        EXPECT(strstr(ctx.message, bad[i][1]));
        unsetenv(bad[i][0]);
    }
    EXPECT(!ctx_try(&ctx, read_options, &o));
    EXPECT(o.timeout == 7 && !o.delay && !o.seed && !o.wait && !o.rate);
    setenv("TENON_COMM_DELAY", "500,18", 1);
    setenv("TENON_COMM_LINK", "1e-4,2e9", 1);
    EXPECT(!ctx_try(&ctx, read_options, &o));
    EXPECT(o.delay == 500 && o.seed == 18 && o.wait == 1e-4 && o.rate == 2e9);
    unsetenv("TENON_COMM_DELAY");
    unsetenv("TENON_COMM_LINK");
}

int main(void)
{
    test_kills();
    test_beats();
    test_refusals();
    test_reduce(false);
    test_reduce(true);
    test_options();
    return test_report();
}
