/* Ranks by the C API, as threads: what they say to each other, how they end, what must be alike,
 * and which rows of a step each has. */
#define _GNU_SOURCE /* pthread_getattr_np */
#include "../../include/tenon.h"
#include "../shared/race.h"
#include "../shared/test.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = 8 };

/* Checks of several threads at once. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define HOLDS(cond) holds((cond), __LINE__, #cond)

static bool holds(bool good, int line, const char *what)
{
    pthread_mutex_lock(&lock);
    test_note(good, __FILE__, line, what);
    pthread_mutex_unlock(&lock);
    return good;
}

#define OK(ctx, call) ok((ctx), (call), __LINE__, #call)

static bool ok(tn_context *ctx, int code, int line, const char *what)
{
    if (code)
        printf("  rank %d: %s\n", tn_rank(ctx), tn_error(ctx));
    return holds(code == TN_CODE_OK, line, what);
}

/* That a call has failed so. */
#define TOLD(ctx, found, want, part) told((ctx), (found), (want), (part), __LINE__)

static void told(tn_context *ctx, int code, int want, const char *part, int line)
{
    if (!holds(code == want && strstr(tn_error(ctx), part), line, part))
        printf("  rank %d: code %d: %s\n", tn_rank(ctx), code, tn_error(ctx));
}

/* ---- what ranks say to each other ---- */

static int talk(tn_context *ctx, void *arg)
{
    int n = *(int *)arg, r = tn_rank(ctx);
    int64_t x[64], all[MOST], mine = 7 * r, received;
    double waited;
    HOLDS(tn_ranks(ctx) == n && tn_ranks_here(ctx) == n && r >= 0 && r < n);
    for (int i = 0; i < 64; i++)
        x[i] = i % n == r ? i : -i;
    OK(ctx, tn_agree(ctx, x, 64));
    for (int i = 0; i < 64; i++)
        HOLDS(x[i] == i);
    OK(ctx, tn_gather(ctx, &mine, sizeof mine, all));
    for (int i = 0; i < n; i++)
        HOLDS(all[i] == 7 * i);
    OK(ctx, tn_ranks_count(ctx, &received, &waited));
    HOLDS(n == 1 ? received == 0 : received >= (int64_t)sizeof mine * (n - 1) && waited >= 0);
    enum { LARGE = 1 << 20 };
    char *data = malloc(LARGE);
    CHECK(data);
    for (int i = 0; i < LARGE; i++)
        data[i] = (char)(r ? 0 : i * 31);
    OK(ctx, tn_share(ctx, data, LARGE));
    bool same = true;
    for (int i = 0; i < LARGE; i++)
        same &= data[i] == (char)(i * 31);
    HOLDS(same);
    free(data);
    return TN_CODE_OK;
}

static void test_talk(void)
{
    for (int n = 1; n <= MOST; n += n > 2 ? 5 : 1)
        EXPECT(tn_ranks_run(n, 60, talk, &n) == TN_CODE_OK);
    tn_context *ctx = tn_context_new();
    int64_t x = 5, y = 0;
    EXPECT(!tn_rank(ctx) && tn_ranks(ctx) == 1 && tn_ranks_here(ctx) == 1);
    EXPECT(!tn_agree(ctx, &x, 1) && x == 5 && !tn_share(ctx, &x, sizeof x) && x == 5);
    EXPECT(!tn_gather(ctx, &x, sizeof x, &y) && y == 5 && !tn_agree_code(ctx, 0));
    TOLD(ctx, tn_agree_code(ctx, tn_context_fail(ctx, 3, "alone")), 3, "alone");
    tn_ranks_end(ctx, 1);
    tn_context_free(ctx);
}

/* ---- codes ---- */

/* Which ranks have a code, bit by bit, and what all are told then. */
typedef struct CodeCase {
    unsigned failed;
    int code;
    const char *message;
} CodeCase;

static const CodeCase code_cases[] = {
    {0, 0, ""},
    {1 << 2, 12, "rank 2: of 2"},
    {1 << 1 | 1 << 3, 11, "rank 1: of 1"},
    {1 | 1 << 3, 10, "of 0"},
    {0xf, 10, "of 0"},
};

static int agree_codes(tn_context *ctx, void *arg)
{
    (void)arg;
    for (int i = 0; i < LEN(code_cases); i++) {
        const CodeCase *c = &code_cases[i];
        int r = tn_rank(ctx);
        bool bad = c->failed >> r & 1;
        tn_context_fail(ctx, 0, "of %d", r);
        int code = tn_agree_code(ctx, bad ? 10 + r : 0);
        HOLDS(code == c->code && (!code || !strcmp(tn_error(ctx), c->message)));
    }
    return tn_agree_code(ctx, tn_rank(ctx) == 3 ? tn_context_fail(ctx, 5, "in the end") : 0);
}

/* All agree again and again, until one fails or has another number; they return it at once. */
static int agree_often(tn_context *ctx, void *arg)
{
    int code = 0;
    (void)arg;
    for (int i = 0; i < 5 && !code; i++) {
        int64_t x = tn_rank(ctx) == 1 && i == 4 ? 9 : 0;
        code = tn_agree(ctx, &x, 1);
        code = code ? code : (int)x;
    }
    HOLDS(code == 9);
    return code;
}

static void test_codes(void)
{
    EXPECT(tn_ranks_run(4, 60, agree_codes, NULL) == 5);
    CHECK(!setenv("TENON_COMM_DELAY", "9000,3", 1)); /* some hear of it long before others */
    for (int i = 0; i < 5; i++)
        EXPECT(tn_ranks_run(4, 60, agree_often, NULL) == 9);
    CHECK(!unsetenv("TENON_COMM_DELAY"));
}

/* ---- ends ---- */

/* Rank 3 ends all; who waits hears of it, and who waits later does too. */
static int end_all(tn_context *ctx, void *arg)
{
    int64_t x = 0;
    (void)arg;
    if (tn_rank(ctx) == 3) {
        usleep(20000);
        tn_context_fail(ctx, 3, "no room");
        tn_ranks_end(ctx, 3);
        return 3;
    }
    if (tn_rank(ctx) == 1)
        usleep(60000);
    TOLD(ctx, tn_agree(ctx, &x, 1), TN_CODE_FAIL, "rank 3: no room");
    TOLD(ctx, tn_gather(ctx, &x, sizeof x, &x), TN_CODE_FAIL, "rank 3: no room");
    TOLD(ctx, tn_share(ctx, &x, sizeof x), TN_CODE_FAIL, "rank 3: no room");
    TOLD(ctx, tn_agree_code(ctx, 0), TN_CODE_FAIL, "rank 3: no room");
    tn_ranks_end(ctx, 1); /* it has ended already */
    return TN_CODE_FAIL;
}

/* Rank 2 returns a code that the others have not agreed to. */
static int return_alone(tn_context *ctx, void *arg)
{
    int64_t x = 0;
    (void)arg;
    if (tn_rank(ctx) == 2)
        return tn_context_fail(ctx, TN_CODE_FIT, "too much");
    TOLD(ctx, tn_agree(ctx, &x, 1), TN_CODE_FAIL, "rank 2: too much");
    return TN_CODE_FAIL;
}

static int leave(tn_context *ctx, void *arg)
{
    int64_t x = 0;
    (void)arg;
    if (tn_rank(ctx) == 1)
        return TN_CODE_OK;
    int code = tn_agree(ctx, &x, 1);
    TOLD(ctx, code, TN_CODE_FAIL, "rank 1 has ended");
    return code;
}

/* Rank 1 is late. */
static int hang(tn_context *ctx, void *arg)
{
    int64_t x = 0;
    (void)arg;
    if (tn_rank(ctx) == 1)
        usleep(1200000);
    int code = tn_agree(ctx, &x, 1);
    HOLDS(code == TN_CODE_FAIL);
    if (tn_rank(ctx) == 0)
        TOLD(ctx, code, TN_CODE_FAIL, "rank 1");
    return code;
}

static void test_ends(void)
{
    EXPECT(tn_ranks_run(4, 60, end_all, NULL) == 3);
    EXPECT(tn_ranks_run(4, 60, return_alone, NULL) == TN_CODE_FIT);
    EXPECT(tn_ranks_run(2, 60, leave, NULL) == TN_CODE_FAIL);
    EXPECT(tn_ranks_run(2, 0.5, hang, NULL) == TN_CODE_FAIL);
}

/* ---- threads ---- */

static int count_threads(tn_context *ctx, void *arg)
{
    ((int *)arg)[tn_rank(ctx)] = tn_threads_used();
    tn_threads(3);
    return 0;
}

static void test_threads(void)
{
    int used[4];
    tn_threads(9);
    bool many = tn_threads_used() == 9; /* one, without OpenMP */
    EXPECT(!tn_ranks_run(4, 0, count_threads, used));
    for (int i = 0; i < 4; i++)
        EXPECT(used[i] == (many ? 2 : 1));
    EXPECT(tn_threads_used() == (many ? 9 : 1));
    tn_threads(2);
    EXPECT(!tn_ranks_run(4, 0, count_threads, used) && used[3] == 1);
}

/* The stack of a thread is no smaller than the main one's limit, or large where there is none; no
 * signal is handled there. */
static int check_thread(tn_context *ctx, void *arg)
{
    pthread_attr_t attr;
    size_t size;
    sigset_t blocked;
    CHECK(!pthread_getattr_np(pthread_self(), &attr));
    pthread_attr_getstacksize(&attr, &size);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (tn_rank(ctx)) {
        HOLDS(size >= *(size_t *)arg);
        HOLDS(sigismember(&blocked, SIGINT) && sigismember(&blocked, SIGUSR1));
        HOLDS(!sigismember(&blocked, SIGSEGV));
    } else {
        HOLDS(!sigismember(&blocked, SIGINT));
    }
    return 0;
}

static void test_stack(void)
{
    struct rlimit was, now;
    size_t least = 4 << 20;
    CHECK(!getrlimit(RLIMIT_STACK, &was));
    if (was.rlim_cur != RLIM_INFINITY)
        least = was.rlim_cur;
    EXPECT(!tn_ranks_run(2, 0, check_thread, &least));
    now = was;
    now.rlim_cur = RLIM_INFINITY;
    least = 32 << 20;
    if (was.rlim_max != RLIM_INFINITY || setrlimit(RLIMIT_STACK, &now))
        return;
    EXPECT(!tn_ranks_run(2, 0, check_thread, &least));
    CHECK(!setrlimit(RLIMIT_STACK, &was));
}

/* ---- misuse ---- */

static int misuse(tn_context *ctx, void *arg)
{
    int64_t x[65] = {0};
    (void)arg;
    TOLD(ctx, tn_join(ctx, 0), TN_CODE_USAGE, "is rank 0 of 1 already");
    TOLD(ctx, tn_agree(ctx, x, 65), TN_CODE_USAGE, "n: expected 1 to 64, found 65");
    TOLD(ctx, tn_agree(ctx, x, 0), TN_CODE_USAGE, "n: expected 1 to 64, found 0");
    TOLD(ctx, tn_agree(ctx, NULL, 1), TN_CODE_USAGE, "x: expected a pointer");
    TOLD(ctx, tn_share(ctx, x, 0), TN_CODE_USAGE, "nbytes: expected 1");
    TOLD(ctx, tn_gather(ctx, x, 0, x), TN_CODE_USAGE, "nbytes: expected 1");
    return 0;
}

static void test_misuse(void)
{
    EXPECT(!tn_ranks_run(1, 0, misuse, NULL));
    EXPECT(tn_ranks_run(0, 0, misuse, NULL) == TN_CODE_USAGE);
    EXPECT(tn_ranks_run(-1, 0, misuse, NULL) == TN_CODE_USAGE);
    EXPECT(tn_ranks_run(5000, 0, misuse, NULL) == TN_CODE_USAGE);
    EXPECT(tn_ranks_run(1, -1, misuse, NULL) == TN_CODE_USAGE);
    EXPECT(tn_ranks_run(1, NAN, misuse, NULL) == TN_CODE_USAGE);
    EXPECT(tn_ranks_run(1, 0, NULL, NULL) == TN_CODE_USAGE);
    tn_context *ctx = tn_context_new();
    TOLD(ctx, tn_join(ctx, -1), TN_CODE_USAGE, "timeout: expected seconds");
    TOLD(ctx, tn_join(ctx, 0), TN_CODE_USAGE, "no launcher has started this process");
    EXPECT(!tn_launched());
    tn_context_free(ctx);
}

/* ---- what ranks must have alike ---- */

enum { BATCH = 4, SEQ = 8 };

/* A plan for a step of gpt2-tiny; NULL after an error. */
static tn_plan *plan_of(tn_context *ctx, const tn_options *o, int64_t batch)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p = NULL;
    bool good = OK(ctx, tn_model_open(ctx, "tests/ref/gpt2-tiny", &m)) &&
                OK(ctx, tn_model_graph(m, batch, SEQ, o, &g)) &&
                OK(ctx, tn_graph_passes(g, "default", o, NULL, NULL)) &&
                OK(ctx, tn_plan_new(g, o, 0, &p));
    return good ? p : NULL;
}

/* What two ranks have, rank 0 first, and why there is no program; NULL: there is one. What is 0 or
 * NULL is as usual. */
typedef struct Alike {
    const char *message;
    int code;
    const char *mesh[2], *reduce[2], *recompute[2], *machine[2];
    int off[2]; /* from its rank */
    uint64_t seed[2];
    double beta1[2], clip[2];
    int64_t batch[2];
    int threads[2];
} Alike;

#define DIFFER(what) "they differ in " what, TN_CODE_FAIL

static const Alike alike_cases[] = {
    {NULL, 0, .reduce = {NULL, "ordered"}},
    {NULL, 0, .reduce = {"fast", "fast"}},
    {NULL, 0, .machine = {NULL, "none"}},
    {"the plan is for 4 ranks (mesh dp=4), found 2", TN_CODE_USAGE, .mesh = {"dp=4", "dp=4"}},
    {DIFFER("mesh: rank 1 has dp=4, rank 0 has dp=2"), .mesh = {"dp=2", "dp=4"}},
    {"rank 1: the plan is for rank 0, found rank 1", TN_CODE_USAGE, .off = {0, -1}},
    {"the plan is for rank 1, found rank 0", TN_CODE_USAGE, .off = {1, -1}},
    {"rank 1: options.reduce: expected ordered or fast, found \"quick\"", TN_CODE_USAGE,
     .reduce = {NULL, "quick"}},
    {DIFFER("--seed: rank 1 has 7, rank 0 has 4"), .seed = {4, 7}},
    {DIFFER("--beta1: rank 1 has 0.75, rank 0 has 0.5"), .beta1 = {0.5, 0.75}},
    {DIFFER("--clip: rank 1 has 1, rank 0 has 2"), .clip = {2, 0}},
    {DIFFER("--reduce: rank 1 has fast, rank 0 has ordered"), .reduce = {NULL, "fast"}},
    {DIFFER("--recompute: rank 1 has full, rank 0 has none"), .recompute = {NULL, "full"}},
    {DIFFER("mesh: rank 1 has fsdp=2, rank 0 has dp=2"), .mesh = {NULL, "fsdp=2"}},
    {DIFFER("machine: rank 1 has h100, "), .machine = {NULL, "h100"}},
    {DIFFER("collectives: rank 1 has "), .mesh = {"tp=2", "tp=2"}, .batch = {BATCH, 2 * BATCH}},
    {DIFFER("plan: rank 1 has "), .batch = {BATCH, 2 * BATCH}},
    {DIFFER("threads: rank 1 has 2, rank 0 has 1"), .threads = {1, 2}},
};

static int make_alike(tn_context *ctx, void *arg)
{
    const Alike *c = arg;
    int r = tn_rank(ctx);
    tn_options o = tn_options_default();
    tn_program *x = NULL;
    tn_threads(c->threads[r] ? c->threads[r] : 1);
    o.mesh = c->mesh[r] ? c->mesh[r] : "dp=2";
    o.rank = r + c->off[r];
    o.seed = c->seed[r];
    o.beta1 = c->beta1[r] > 0 ? c->beta1[r] : o.beta1;
    o.clip = c->clip[r] > 0 ? c->clip[r] : o.clip;
    o.reduce = c->reduce[r];
    o.recompute = c->recompute[r];
    o.machine = c->machine[r];
    tn_plan *p = plan_of(ctx, &o, c->batch[r] ? c->batch[r] : BATCH);
    if (!p)
        return TN_CODE_FAIL;
    int code = tn_program_new(p, &o, &x);
    if (c->message)
        TOLD(ctx, code, c->code, c->message);
    else
        OK(ctx, code);
    HOLDS(!x == (c->code != 0));
    return code;
}

static void test_alike(void)
{
    tn_threads(2);
    bool many = tn_threads_used() > 1;
    for (int i = 0; i < LEN(alike_cases) - !many; i++) {
        Alike c = alike_cases[i];
        if (!EXPECT(tn_ranks_run(2, 60, make_alike, &c) == c.code))
            printf("  case %d\n", i);
    }
}

/* ---- the order of starts ---- */

static const char starts[] =
    "tenon 1\n"
    "graph g mesh(fsdp=2) at(%d) (%%x: f32[8, 4] batch, %%w: f32[2, 8] param \"w\", "
    "%%v: f32[2, 8] param \"v\") {\n%s%s"
    "  %%w1: f32[4, 8] = wait_tensor(%%p, %%w)\n"
    "  %%v1: f32[4, 8] = wait_tensor(%%q, %%v)\n"
    "  %%y: f32[8, 8] = mm(%%x, %%w1)\n"
    "  %%z: f32[8, 8] = mm(%%x, %%v1)\n"
    "  return %%y, %%z\n}\n";

/* Two gathers of one shape, which rank 1 starts in an order of its own if *arg says so. */
static int start_gathers(tn_context *ctx, void *arg)
{
    static const char *const call[] = {
        "  %p: f32[4, 8] = all_gather_into_tensor(%w, group_size=2, group=\"fsdp\")\n",
        "  %q: f32[4, 8] = all_gather_into_tensor(%v, group_size=2, group=\"fsdp\")\n"};
    bool other = *(const bool *)arg;
    int first = other && tn_rank(ctx);
    tn_options o = tn_options_default();
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    char text[1000];
    o.mesh = "fsdp=2";
    o.rank = tn_rank(ctx);
    snprintf(text, sizeof text, starts, tn_rank(ctx), call[first], call[!first]);
    if (!OK(ctx, tn_graph_parse(ctx, text, "starts", &g)) || !OK(ctx, tn_plan_new(g, &o, 0, &p)))
        return TN_CODE_FAIL;
    int code = tn_program_new(p, &o, &x);
    if (other)
        TOLD(ctx, code, TN_CODE_FAIL, "they differ in collectives: rank 1 has 2 of them, ");
    else
        OK(ctx, code);
    return code;
}

static void test_starts(void)
{
    for (int i = 0; i < 2; i++)
        EXPECT(tn_ranks_run(2, 60, start_gathers, &(bool){i == 1}) == (i ? TN_CODE_FAIL : 0));
}

/* ---- rank 0's machine ---- */

static char folder[] = "/tmp/tenon_ranks_XXXXXX";

static const char *write_text(const char *name, const void *text, size_t n)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(text, 1, n, f) == n && !fclose(f));
    return path;
}

/* The file is rank 0's alone. */
static int share_machine(tn_context *ctx, void *arg)
{
    tn_options o = tn_options_default();
    tn_program *x;
    o.mesh = "dp=2";
    o.rank = tn_rank(ctx);
    OK(ctx, tn_machine_share(ctx, tn_rank(ctx) ? "nowhere/at.all" : arg, &o.machine));
    tn_plan *p = plan_of(ctx, &o, BATCH);
    OK(ctx, p ? tn_program_new(p, &o, &x) : 1);
    double sec = 0, added;
    if (p)
        tn_plan_sec(p, &sec, &added);
    HOLDS(p && sec > 1); /* it is that slow */
    OK(ctx, tn_machine_share(ctx, tn_rank(ctx) ? "none" : "h100", &o.machine));
    HOLDS(!strcmp(o.machine, "h100"));
    OK(ctx, tn_machine_share(ctx, NULL, &o.machine));
    HOLDS(!strcmp(o.machine, "none"));
    int code = tn_machine_share(ctx, "nowhere/at.all", &o.machine);
    TOLD(ctx, code, TN_CODE_FAIL, "nowhere/at.all: cannot open");
    return 0;
}

static void test_machine(void)
{
    const char *text = "machine 1 name slow like h100\nlaunch 1e6\n";
    EXPECT(!tn_ranks_run(2, 60, share_machine,
                         (void *)(uintptr_t)write_text("slow.machine", text, strlen(text))));
}

/* Of several ranks, of which no other is there. */
static void test_alone(void)
{
    tn_context *ctx = tn_context_new();
    tn_options o = tn_options_default();
    tn_program *x = NULL;
    o.mesh = "dp=2";
    tn_plan *p = plan_of(ctx, &o, BATCH);
    EXPECT(p && OK(ctx, tn_program_new(p, &o, &x)) && tn_program_run(x) == TN_CODE_USAGE &&
           strstr(tn_program_error(x), "is for 2 ranks, which have not joined"));
    EXPECT(x && tn_program_write_file(x, "nowhere/at.all", "") == TN_CODE_USAGE &&
           strstr(tn_error(ctx), "is for 2 ranks, which have not joined"));
    tn_context_free(ctx);
}

static tn_program *program_of_text(tn_context *ctx, int rank, const char *text)
{
    char name[40];
    tn_graph *g;
    tn_plan *p;
    tn_program *x = NULL;
    tn_options o = tn_options_default();
    snprintf(name, sizeof name, "graph%d.tn", rank);
    o.rank = rank;
    pthread_mutex_lock(&lock);
    const char *path = write_text(name, text, strlen(text));
    int code = tn_graph_read(ctx, path, &g);
    pthread_mutex_unlock(&lock);
    if (!code && !(code = tn_plan_new(g, &o, 0, &p)))
        tn_program_new(p, &o, &x);
    return x;
}

/* Groups of one rank run where no other is, of a mesh or without. */
static void test_groups_of_one(const char *mesh)
{
    char text[300];
    tn_context *ctx = tn_context_new();
    float in[2] = {3, 4}, out[2] = {0};
    snprintf(text, sizeof text,
             "tenon 1\ngraph g%s (%%x: f32[2] batch) {\n"
             "  %%a: f32[2] = all_gather_into_tensor(%%x, group_size=1, group=\"fsdp\")\n"
             "  %%w: f32[2] = wait_tensor(%%a, %%x)\n  return %%w\n}\n",
             mesh);
    tn_program *x = program_of_text(ctx, 0, text);
    if (EXPECT(x)) {
        EXPECT(!tn_program_write(x, "x", in, sizeof in) && !tn_program_run(x) &&
               !tn_program_read(x, "out0", out, sizeof out));
        EXPECT(out[0] == 3 && out[1] == 4);
    }
    tn_context_free(ctx);
}

/* Sizes of what each sends itself that differ. */
static int send_uneven(tn_context *ctx, void *arg)
{
    char text[400];
    (void)arg;
    snprintf(text, sizeof text,
             "tenon 1\ngraph g mesh(fsdp=2) at(%d) (%%x: f32[4] batch) {\n"
             "  %%a: f32[4] = all_to_all_single(%%x, output_split_sizes=[1, 3], "
             "input_split_sizes=[3, 1], group=\"fsdp\")\n"
             "  %%w: f32[4] = wait_tensor(%%a, %%x)\n  return %%w\n}\n",
             tn_rank(ctx));
    HOLDS(!program_of_text(ctx, tn_rank(ctx), text));
    TOLD(ctx, TN_CODE_FAIL, TN_CODE_FAIL, "rank 0 of the group: expected as many rows sent to");
    return 0;
}

/* A collective for which nothing waits. Two waits are refused likewise, but a plan with two is one
 * that tests/shared/check_plans.c does not let pass. */
static int wait_never(tn_context *ctx, void *arg)
{
    char text[400];
    (void)arg;
    snprintf(text, sizeof text,
             "tenon 1\ngraph g mesh(fsdp=2) at(%d) (%%x: f32[4] batch) {\n"
             "  %%a: f32[8] = all_gather_into_tensor(%%x, group_size=2, group=\"fsdp\")\n"
             "  %%y: f32[4] = add(%%x, %%x)\n  return %%y\n}\n",
             tn_rank(ctx));
    HOLDS(!program_of_text(ctx, tn_rank(ctx), text));
    TOLD(ctx, TN_CODE_FAIL, TN_CODE_FAIL, "expected one wait_tensor that waits for it, found 0");
    return 0;
}

int main(void)
{
    char command[100];
    CHECK(mkdtemp(folder));
    test_talk();
    test_codes();
    test_ends();
    test_threads();
    test_stack();
    test_misuse();
    test_alike();
    test_starts();
    test_machine();
    test_alone();
    test_groups_of_one(" mesh(fsdp=1) at(0)");
    test_groups_of_one("");
    EXPECT(!tn_ranks_run(2, 20, send_uneven, NULL));
    EXPECT(!tn_ranks_run(2, 20, wait_never, NULL));
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
    return test_report();
}
