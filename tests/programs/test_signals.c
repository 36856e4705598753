/* Signals: a host program with a pool of OpenMP threads and a timer of its own, whose handlers
 * never run where kernels do, nor on a stack pointer that a product has made a general register;
 * and what ends a process (src/train/interrupt.c). Masks are read from the system. Commands:
 * tests/scripts/signals.sh.
 */
#define _GNU_SOURCE /* pthread_getattr_np, gettid */
#include "../../include/tenon.h"
#include "../../src/train/train.h"
#include "../shared/test.h"

#include <omp.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 3, M = 512, K = 384, N = 1024, RUNS = 150, MOST_RUNS = 5000 };

#define BIT(number) ((uint64_t)1 << ((number)-1))

/* ---- masks, as Linux shows them ---- */

/* A line of a thread's status, such as "SigBlk"; 0 where the thread is gone. */
static uint64_t mask_of(pid_t thread, const char *name)
{
    char path[60], line[200];
    uint64_t mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)thread);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)))
            mask = strtoull(line + strlen(name) + 1, NULL, 16);
    if (f)
        fclose(f);
    return mask;
}

static uint64_t blocked(pid_t thread)
{
    return mask_of(thread, "SigBlk");
}

/* ---- a host's handlers ---- */

/* Where a thread's stack is. */
typedef struct Stack {
    pid_t thread;
    char *from, *to;
} Stack;

static Stack stack[POOL];
static atomic_int handled, astray, interrupts;

static Stack own_stack(void)
{
    pthread_attr_t attr;
    void *from;
    size_t size;
    CHECK(!pthread_getattr_np(pthread_self(), &attr));
    CHECK(!pthread_attr_getstack(&attr, &from, &size));
    pthread_attr_destroy(&attr);
    return (Stack){gettid(), from, (char *)from + size};
}

static void note(int number, siginfo_t *info, void *context)
{
    pid_t self = gettid();
    char *at = context; /* the frame lies where the stack pointer was */
    (void)info;
    handled++;
    interrupts += number == SIGINT;
    for (int i = 0; i < POOL; i++)
        if (stack[i].thread == self)
            astray += at < stack[i].from || at >= stack[i].to;
}

static void handle(int number)
{
    struct sigaction act = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&act.sa_mask);
    CHECK(!sigaction(number, &act, NULL));
}

static void set_timer(int usec)
{
    CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){{0, usec}, {0, usec}}, NULL));
}

/* ---- a program with a product ---- */

static tn_context *ctx;
static tn_graph *graph;
static tn_plan *plan;
static tn_program *program;
static float *a, *b, *y, *first;

static void ok(int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s\n", tn_error(ctx));
}

static void make_program(void)
{
    const int64_t left[] = {M, K}, right[] = {K, N};
    tn_options o = tn_options_default();
    tn_value *in[2], *out;
    ctx = tn_context_new();
    ok(tn_graph_new(ctx, "product", &graph));
    ok(tn_graph_input(graph, "a", "f32", 2, left, "", NULL, &in[0]));
    ok(tn_graph_input(graph, "b", "f32", 2, right, "", NULL, &in[1]));
    ok(tn_graph_node(graph, "mm", 2, in, NULL, NULL, "forward", 1, &out));
    ok(tn_graph_output(graph, out, "", NULL));
    ok(tn_plan_new(graph, &o, 0, &plan));
    ok(tn_program_new(plan, &o, &program));
    a = calloc(M * K, sizeof *a);
    b = calloc(K * N, sizeof *b);
    y = calloc(M * N, sizeof *y);
    first = calloc(M * N, sizeof *first);
    CHECK(a && b && y && first);
    for (int i = 0; i < M * K; i++)
        a[i] = random_uniform(1, 0, 0, (uint64_t)i) - 0.5f;
    for (int i = 0; i < K * N; i++)
        b[i] = random_uniform(2, 0, 0, (uint64_t)i) - 0.5f;
}

static void drop_program(void)
{
    tn_context_free(ctx);
    free(a);
    free(b);
    free(y);
    free(first);
}

/* The product, at `to`. */
static bool run(float *to)
{
    return !tn_program_write(program, "a", a, (int64_t)sizeof *a * M * K) &&
           !tn_program_write(program, "b", b, (int64_t)sizeof *b * K * N) &&
           !tn_program_run(program) &&
           !tn_program_read(program, "out0", to, (int64_t)sizeof *y * M * N);
}

/* ---- the host ---- */

static const uint64_t asked = BIT(SIGALRM) | BIT(SIGINT) | BIT(SIGPROF);

/* The pool is there before the library runs anything, and has the mask of its maker. */
static void make_pool(void)
{
    omp_set_num_threads(POOL);
#pragma omp parallel num_threads(POOL)
    stack[omp_get_thread_num()] = own_stack();
    handle(SIGALRM);
    handle(SIGINT);
    handle(SIGPROF);
    handle(SIGRTMIN + 1);
    handle(SIGSEGV);
    for (int i = 0; i < POOL; i++)
        EXPECT(stack[i].thread && !(blocked(stack[i].thread) & asked));
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGUSR2); /* of the host's */
    pthread_sigmask(SIG_BLOCK, &own, NULL);
}

/* A thread of the host's beside the pool, which looks at the others until it has seen the caller
 * within a run. */
typedef struct Looker {
    atomic_bool begun, seen, end;
    uint64_t during, own; /* masks of the caller within a run, and of this thread */
} Looker;

static void *look(void *arg)
{
    Looker *l = arg;
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGQUIT); /* as a host may have it: what it leaves is its own */
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    uint64_t mask = 0;
    while (!l->begun) /* pthread_create blocks them all for a while */
        continue;
    while (!l->end && !(mask & BIT(SIGALRM)))
        mask = blocked(stack[0].thread);
    l->during = mask;
    if (mask & BIT(SIGALRM))
        kill(getpid(), SIGINT); /* no other thread takes it: it comes with the end of the run */
    l->own = blocked(gettid());
    l->seen = true;
    return NULL;
}

static void test_masks(void)
{
    Looker l = {.own = 0};
    pthread_t thread;
    uint64_t before = blocked(stack[0].thread);
    EXPECT(before == BIT(SIGUSR2));
    EXPECT(run(first));
    EXPECT(blocked(stack[0].thread) == before);
    for (int i = 1; i < POOL; i++) { /* of OpenMP: the same threads, and blocked from now on */
        uint64_t mask = blocked(stack[i].thread);
        EXPECT((mask & asked) == asked && (mask & BIT(SIGRTMIN + 1)));
        EXPECT(!(mask & (BIT(SIGSEGV) | BIT(SIGTERM) | BIT(SIGUSR2))));
    }
    CHECK(!pthread_create(&thread, NULL, look, &l));
    l.begun = true;
    for (int i = 0; i < MOST_RUNS && !l.seen; i++)
        EXPECT(run(y));
    l.end = true;
    pthread_join(thread, NULL);
    EXPECT((l.during & asked) == asked && (l.during & BIT(SIGRTMIN + 1)));
    EXPECT((l.during & BIT(SIGUSR2)) && !(l.during & (BIT(SIGSEGV) | BIT(SIGTERM))));
    EXPECT(!(l.own & BIT(SIGQUIT)));
    EXPECT(blocked(stack[0].thread) == before && interrupts == 1);
}

/* A timer that fires in every product. */
static void test_timer(void)
{
    int was = handled;
    bool same = true;
    set_timer(300);
    for (int i = 0; i < RUNS; i++)
        same = run(y) && same && !memcmp(y, first, sizeof *y * M * N);
    set_timer(0);
    EXPECT(same);
    EXPECT(handled - was > RUNS / 4); /* handlers did run, between the products */
    EXPECT(!astray);
}

/* Other calls that run products give the mask back too, the one that fails as well. */
static void test_others(void)
{
    const tn_call *calls;
    tn_way way[40];
    int count;
    double sec;
    uint64_t before = blocked(stack[0].thread);
    tn_product p = {.dtype = "f32", .out_dtype = "f32", .m = 256, .k = 256, .n = 256};
    ok(tn_program_trace(program, 1));
    EXPECT(run(y));
    ok(tn_program_calls(program, &calls, &count));
    set_timer(300);
    for (int i = 0; i < count; i++)
        ok(tn_program_ways(program, &calls[i], 0.05, 0, LEN(way), way, &(int){0}));
    ok(tn_limit_product(ctx, &p, 0, &sec));
    p.dtype = "i64";
    EXPECT(tn_limit_product(ctx, &p, 0, &sec) != TN_CODE_OK);
    set_timer(0);
    EXPECT(blocked(stack[0].thread) == before && !astray);
}

/* Where nothing has a handler no mask changes. */
static void test_none(void)
{
    const int numbers[] = {SIGALRM, SIGINT, SIGPROF, SIGRTMIN + 1, SIGSEGV};
    for (int i = 0; i < LEN(numbers); i++)
        signal(numbers[i], SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
#pragma omp parallel num_threads(POOL)
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    EXPECT(run(y) && !memcmp(y, first, sizeof *y * M * N));
    for (int i = 0; i < POOL; i++)
        EXPECT(!blocked(stack[i].thread));
}

/* ---- what ends a process ---- */

/* How a child ends that does so: its exit code, or minus a signal. */
static int end_of(void (*act)(void))
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        CHECK(freopen("/dev/null", "w", stderr));
        interrupt_watch();
        act();
        _exit(test_nfail != 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

/* Until the thread that waits has taken it: much longer than that needs. */
static void send(int number)
{
    kill(getpid(), number);
    for (int i = 0; i < 100 && mask_of(getpid(), "ShdPnd") & BIT(number); i++)
        rest();
    rest();
}

static void term(void)
{
    send(SIGTERM);
}

static void user(void) /* of one rank it is no request to stop */
{
    interrupt_begin(ctx);
    send(SIGUSR1);
}

static void at_once(void)
{
    interrupt_as(INTERRUPT_EXITS);
    send(SIGINT);
}

static void ignored(void)
{
    send(SIGINT);
}

static void counted(void)
{
    const volatile sig_atomic_t *stop = interrupt_begin(ctx);
    EXPECT(!stopped(stop));
    send(SIGHUP);
    EXPECT(stopped(stop) && *stop == 1);
    interrupt_end(INTERRUPT_WAITS);
    send(SIGINT);
    EXPECT(*stop == 2);
}

static void third(void)
{
    counted();
    send(SIGTERM);
    send(SIGTERM);
}

/* All threads have them blocked but the one that waits for them; children have the mask that was
 * there before, and stopping is as ever. */
static void children(void)
{
    const uint64_t all = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGHUP) | BIT(SIGUSR1);
    int status;
    EXPECT(blocked(gettid()) == all && !(mask_of(gettid(), "SigCgt") & all));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child)
        _exit(blocked(gettid()) != 0);
    EXPECT(waitpid(child, &status, 0) == child && !status);
}

static void test_ends(void)
{
    EXPECT(end_of(children) == 0);
    EXPECT(end_of(term) == -SIGTERM);
    EXPECT(end_of(user) == -SIGUSR1);
    EXPECT(end_of(at_once) == 130);
    EXPECT(end_of(counted) == 0);
    EXPECT(end_of(third) == TN_CODE_FAIL);
    signal(SIGINT, SIG_IGN);
    EXPECT(end_of(ignored) == 0);
    EXPECT(end_of(at_once) == 130); /* taken where it is asked for */
    signal(SIGINT, SIG_DFL);
    signal(SIGHUP, SIG_IGN);
    EXPECT(end_of(counted) != 0); /* which counts a SIGHUP */
    signal(SIGHUP, SIG_DFL);
}

int main(void)
{
    test_ends(); /* before there are other threads */
    make_pool();
    make_program();
    test_masks();
    test_timer();
    test_others();
    test_none();
    drop_program();
    return test_report();
}
