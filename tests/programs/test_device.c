/* Devices: what the emulated one computes is what cpu computes, bit for bit, whatever its queues'
 * pauses; the host cannot touch its memory; queues wait for events; errors end a run on all queues;
 * programs share arenas and run beside each other; checks and measures run on the queues. */
#include "../shared/test.h"

#include "../shared/graphs.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static Ctx ctx;
static Arena *a;

/* In the place of pthread_create: refuses, if that is not 0, the n-th thread from now. */
static int refused;
int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return refused && !--refused ? EAGAIN : __real_pthread_create(t, attr, run, arg);
}

static Graph *parse(const char *path)
{
    size_t len;
    char *text = file_read(a, path, &len), *expected = strstr(text, "\n---");
    if (expected)
        expected[1] = 0;
    return graph_parse(a, text, path);
}

static const Device *emulated(void)
{
    return device_get(&ctx, "emulated");
}

static Plan *plan_for(Graph *g, const Device *d)
{
    return plan_make(a, g, &(PlanFor){.device = d});
}

static bool write_inputs(Program *x, const Tensor *in)
{
    for (int i = 0; i < x->plan->nin; i++)
        if (program_write(x, &x->plan->in[i], 0, tensor_nbytes(&in[i]), in[i].data))
            return false;
    return true;
}

/* Runs once and copies outputs; false with x->message where the run failed. */
static bool run_once(Program *x, const Tensor *in, Tensor *out)
{
    const Plan *p = x->plan;
    program_fill(x, 0xff);
    if (!write_inputs(x, in) || program_run(x))
        return false;
    for (int i = 0; i < p->nout; i++) {
        if (!out[i].data)
            out[i] = tensor_new(a, &p->out[i].type, 0);
        if (program_read(x, &p->out[i], 0, tensor_nbytes(&out[i]), out[i].data))
            return false;
    }
    return true;
}

static bool same_bits(const Plan *p, const Tensor *x, const Tensor *y)
{
    for (int i = 0; i < p->nout; i++)
        if (memcmp(x[i].data, y[i].data, (size_t)tensor_nbytes(&y[i])))
            return false;
    return true;
}

/* ---- the same bits ---- */

static const char *const graphs[] = {
    "tests/ir/flat.tn",
    "tests/ir/tail.tn",
    "tests/ir/fused.tn",
    "tests/pass/loops/nested_offsets.tn",
    "tests/pass/loops/carry_rotate.tn",
    "tests/pass/loops/carry_over.tn",
    "tests/pass/loops/carry_product.tn",
    "tests/pass/over_wider/cast.tn",
    "tests/pass/over_wider/cast_last.tn",
    "tests/pass/default/mlp.tn",
    "tests/pass/default/masked_attention.tn",
};

/* Outputs of the graph on cpu; the same on the emulated device, with pauses. */
static void test_bits(const char *path)
{
    Graph *g = parse(path);
    Tensor *in = graphs_inputs(a, g), *want = NEWN(a, Tensor, g->nout);
    Tensor *got = NEWN(a, Tensor, g->nout);
    EXPECT(run_once(program_make(a, plan_for(g, NULL), true, 0), in, want));
    Program *x = program_make(a, plan_for(g, emulated()), true, 0);
    for (int i = 0; i < 10; i++) {
        x->queues->delay = (Delay){.usec = i * 20, .every = 1, .seed = (uint64_t)i};
        EXPECT(run_once(x, in, got) && same_bits(x->plan, got, want));
    }
    if (test_nfail)
        printf("  in %s\n", path);
}

/* ---- queues ---- */

/* Copies to the host's memory and back beside products, in sequence and in a loop; without `copies`
 * what they compute. */
static Graph *offloading(bool copies)
{
    static const char *const text =
        "tenon 1\n"
        "graph g(%x: f32[32, 32] batch, %w: f32[32, 32] param \"w\", %seed: i64[] seed) {\n"
        "  %a = mm(%x, %w)\n"
        "  %h = offload(%a)\n"
        "  %b = mm(%a, %w)\n"
        "  %hw = wait_tensor(%h, %a)\n"
        "  %c = tanh(%b)\n"
        "  %g, %s = loop(n=4, slice %bs: f32[8, 32] = %b axis 0, whole %w: f32[32, 32] = %w)"
        " -> (concat axis 0, sum f32) {\n"
        "    %p = mm(%bs, %w)\n"
        "    %ph = offload(%p)\n"
        "    %q = tanh(%p)\n"
        "    %t = mm(%q, %w)\n"
        "    %pw = wait_tensor(%ph, %p)\n"
        "    %r = reload(%pw)\n"
        "    %u = tanh(%t)\n"
        "    %rw = wait_tensor(%r, %pw)\n"
        "    %v = add(%u, %rw)\n"
        "    %m = sum(%v)\n"
        "    yield %v, %m\n"
        "  }\n"
        "  %d = mm(%c, %w)\n"
        "  %e = mul(%d, %g)\n"
        "  %r = reload(%hw)\n"
        "  %f = mm(%e, %w)\n"
        "  %rw = wait_tensor(%r, %hw)\n"
        "  %y = add(%f, %rw)\n"
        "  return %y, %s\n"
        "}\n";
    Buf b = {.a = a};
    for (const char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        char *one = arena_strndup(a, line, (size_t)(end - line) + 1);
        char *op = strstr(one, "= offload(");
        op = op ? op : strstr(one, "= reload(");
        op = op ? op : strstr(one, "= wait_tensor(");
        if (op && !copies) {
            char *of = strchr(op, '(') + 1;
            of[strcspn(of, ",)")] = 0;
            *op = 0;
            one = arena_printf(a, "%s= clone(%s)\n", one, of);
        }
        buf_add(&b, one);
    }
    return graph_parse(a, b.text, "offloading");
}

typedef struct Offloading {
    Graph *g;
    Tensor *in, *want;
    Plan *plan;
} Offloading;

static Offloading start_offloading(void)
{
    Graph *plain = offloading(false);
    Offloading x = {.g = offloading(true)};
    x.in = graphs_inputs(a, x.g);
    x.want = NEWN(a, Tensor, x.g->nout);
    x.plan = plan_for(x.g, emulated());
    EXPECT(run_once(program_make(a, plan_for(plain, NULL), true, 0), x.in, x.want));
    return x;
}

/* Runs that were not as on cpu, of 40 with random pauses. */
static int count_wrong(const Offloading *o, const Plan *p, bool check)
{
    Tensor *got = NEWN(a, Tensor, p->nout);
    Program *x = program_make(a, p, check, 0);
    int wrong = 0;
    for (int i = 0; i < 40; i++) {
        x->queues->delay = (Delay){.usec = 200, .every = 1, .seed = (uint64_t)i};
        wrong += !run_once(x, o->in, got) || !same_bits(p, got, o->want);
    }
    return wrong;
}

static void test_queues(void)
{
    Offloading o = start_offloading();
    EXPECT(!count_wrong(&o, o.plan, true));
    EXPECT(!count_wrong(&o, o.plan, false));
    Plan none = *o.plan;
    int nwait = 0;
    none.step = NEWN(a, Step, none.nstep);
    for (int i = 0; i < none.nstep; i++) {
        nwait += o.plan->step[i].nwait;
        none.step[i] = o.plan->step[i];
        none.step[i].nwait = 0;
    }
    EXPECT(nwait >= 5);
#ifndef TN_SANITIZE /* it is a race */
    EXPECT(count_wrong(&o, &none, true) > 30);
#endif
}

/* What a run writes ends where the plan says, in both arenas. */
static void test_peaks(void)
{
    Offloading o = start_offloading();
    Program *x = program_make(a, o.plan, false, 0);
    for (int s = 0; s < MAX_SPACE; s++) {
        int64_t high = 0;
        for (int k = 0; k < 2; k++) {
            uint8_t pattern = k ? 0x5a : 0xa5;
            program_fill(x, pattern);
            EXPECT(write_inputs(x, o.in) && !program_run(x));
            high = MAX(high, program_high(x, (Space)s, pattern));
        }
        EXPECT(high == o.plan->space[s].peak && high);
    }
}

/* ---- memory that the host cannot touch ---- */

/* The signal that ends a process which reads that byte; 0: none. */
static int signal_of(const char *at)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        _exit(*(const volatile char *)at ? 2 : 3);
    }
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_hidden(void)
{
    Offloading o = start_offloading();
    Program *x = program_make(a, o.plan, true, 0);
    const Memory *m = x->memory[SPACE_MAIN], *there = x->memory[SPACE_HOST];
    const int64_t at[] = {-GUARD, -1, 0, 4096, m->nbytes - 1, m->nbytes + GUARD - 1};
    for (int i = 0; i < LEN(at); i++)
        EXPECT(signal_of(m->at + at[i]) == SIGSEGV);
    EXPECT(!signal_of(there->at) && !signal_of(there->at + there->nbytes - 1));
    EXPECT(signal_of(there->at - GUARD - 1) == SIGSEGV);
    EXPECT(signal_of(there->at + there->nbytes + GUARD + 4096) == SIGSEGV);
    for (int i = 0; i < o.plan->nin; i++) {
        bool seed = o.plan->in[i].role == ROLE_SEED;
        EXPECT(program_on_host(x, &o.plan->in[i]) == seed);
        EXPECT(!program_data(x, &o.plan->in[i]) == !seed);
    }
    EXPECT(!program_data(x, &o.plan->out[0]));
}

static void map_too_much(void *arg)
{
    program_make(a, arg, false, (int64_t)1 << 47);
}

static void map_plan(void *arg)
{
    program_make(a, arg, false, 0);
}

/* Where the host has less than the plan needs there. */
static void test_no_host_memory(void)
{
    Plan p = *plan_for(parse("tests/ir/host.tn"), emulated());
    p.space[SPACE_HOST].peak = (int64_t)1 << 46;
    EXPECT_FAIL(&ctx, map_plan, &p,
                "cannot map an arena in the host's memory: asked for 70368744177664 bytes, of them "
                "64 of optimizer state: Cannot allocate memory; available are ");
    EXPECT(ctx.code == TN_FIT);
}

static void test_no_memory(void)
{
    Graph *g = parse("tests/ir/flat.tn");
    const Device *const devices[] = {device_get(&ctx, "cpu"), emulated()};
    for (int i = 0; i < LEN(devices); i++) {
        EXPECT_FAIL(&ctx, map_too_much, plan_for(g, devices[i]),
                    "cannot map an arena: asked for 140737488486400 bytes: Cannot allocate memory");
        EXPECT(ctx.code == TN_FIT);
    }
}

/* ---- errors ---- */

static void test_errors(void)
{
    static const char text[] = "tenon 1\n"
                               "graph g(%w: f32[4, 8], %x: i64[3]) {\n"
                               "  %a = tanh(%w)\n"
                               "  %h = offload(%a)\n"
                               "  %e = embedding(%a, %x)\n"
                               "  %b = tanh(%e)\n"
                               "  %hw = wait_tensor(%h, %a)\n"
                               "  %r = reload(%hw)\n"
                               "  %c = tanh(%b)\n"
                               "  %rw = wait_tensor(%r, %hw)\n"
                               "  return %c, %rw\n"
                               "}\n";
    Graph *g = graph_parse(a, text, "errors");
    Plan *p = plan_for(g, emulated());
    Program *x = program_make(a, p, true, 0);
    Tensor *in = graphs_inputs(a, g), *want = NEWN(a, Tensor, g->nout);
    Tensor *got = NEWN(a, Tensor, g->nout);
    double id = tensor_get(&in[1], 2);
    EXPECT(run_once(x, in, want));
    for (int i = 0; i < 10; i++) {
        x->queues->delay = (Delay){.usec = 100, .every = 1, .seed = (uint64_t)i};
        tensor_set(&in[1], 2, 7);
        EXPECT(!run_once(x, in, got) && strstr(x->message, "embedding %e: id 7 at position 2"));
        tensor_set(&in[1], 2, id);
        EXPECT(run_once(x, in, got) && same_bits(p, got, want));
    }
}

/* ---- checks ---- */

typedef struct Spoil {
    Space space;
    int64_t at; /* from the arena's start */
    uint8_t byte;
} Spoil;

static int spoil(const Work *w, char *message)
{
    (void)message;
    const Spoil *s = w->arg;
    w->x->driver->work->fill(w->stream, w->x->base[s->space] + s->at, s->byte, 1);
    return 0;
}

static void test_checks(void)
{
    Offloading o = start_offloading();
    for (int i = 0; i < 4; i++) {
        Program *x = program_make(a, o.plan, true, 0);
        Tensor *got = NEWN(a, Tensor, o.plan->nout);
        Spoil s = {i / 2 ? SPACE_HOST : SPACE_MAIN, -1, 0};
        s.at = i % 2 ? x->memory[s.space]->nbytes + GUARD - 1 : -GUARD;
        EXPECT(run_once(x, o.in, got) && !x->not_finite);
        x->driver->launch(x->queues, QUEUE_COMPUTE, &(Work){.run = spoil, .x = x, .arg = &s});
        EXPECT(!run_once(x, o.in, got) && strstr(x->message, "wrote outside of the arena"));
        program_check(x, a, false);
        EXPECT(run_once(x, o.in, got) && same_bits(o.plan, got, o.want));
    }
    Program *x = program_make(a, o.plan, true, 0);
    float nan = (float)strtod("nan", NULL);
    EXPECT(write_inputs(x, o.in) && !program_write(x, &o.plan->in[0], 0, sizeof nan, &nan));
    EXPECT(!program_run(x) && x->not_finite && node_is(x->not_finite, OP_mm));
}

/* Bytes of dead values are NaN once a run has ended, but for what lies over them. */
static void test_poison(void)
{
    static const char text[] = "tenon 1\n"
                               "graph g(%x: f32[64]) {\n"
                               "  %y = sum(%x)\n"
                               "  %z = tanh(%y)\n"
                               "  return %z\n"
                               "}\n";
    Graph *g = graph_parse(a, text, "poison");
    Plan *p = plan_for(g, emulated());
    for (int i = 0; i < 2; i++) {
        Program *x = program_make(a, p, i, 0);
        Tensor *in = graphs_inputs(a, g), out = {0};
        uint8_t left[256];
        EXPECT(run_once(x, in, &out) && !program_read(x, &p->in[0], 0, sizeof left, left));
        EXPECT((left[0] == 0xff && !memcmp(left, left + 1, sizeof left - 1)) == i);
    }
}

/* ---- several programs ---- */

typedef struct Runner {
    const Offloading *o;
    Program *x;
    Tensor *got;
    pthread_t thread;
    bool good;
} Runner;

static void *run_often(void *arg)
{
    Runner *r = arg;
    r->good = true;
    for (int i = 0; i < 20 && r->good; i++)
        r->good = run_once(r->x, r->o->in, r->got) && same_bits(r->x->plan, r->got, r->o->want);
    return NULL;
}

static void test_many(void)
{
    Offloading o = start_offloading();
    Runner r[4];
    for (int i = 0; i < LEN(r); i++) {
        r[i] = (Runner){.o = &o, .got = NEWN(a, Tensor, o.plan->nout)};
        r[i].x = program_make(a, o.plan, i % 2, 0);
        EXPECT(run_once(r[i].x, o.in, r[i].got));
    }
    for (int i = 0; i < LEN(r); i++)
        EXPECT(!pthread_create(&r[i].thread, NULL, run_often, &r[i]));
    for (int i = 0; i < LEN(r); i++)
        EXPECT(!pthread_join(r[i].thread, NULL) && r[i].good);
}

static void test_shared(void)
{
    Offloading o = start_offloading();
    Tensor *got = NEWN(a, Tensor, o.plan->nout);
    Program *host = program_make(a, o.plan, false, o.plan->space[SPACE_MAIN].peak + 100);
    Program *guest = program_share(a, plan_for(o.g, emulated()), host);
    EXPECT(guest->memory[SPACE_MAIN] == host->memory[SPACE_MAIN] && guest->queues == host->queues);
    for (int i = 0; i < 3; i++) {
        EXPECT(run_once(host, o.in, got) && same_bits(o.plan, got, o.want));
        EXPECT(run_once(guest, o.in, got) && same_bits(o.plan, got, o.want));
    }
}

/* A state in the host's memory, and a value that is there for a while. */
static const char keeps_state[] = "tenon 1\n"
                                  "graph keeps(%x: f32[64], %m: f32[16] state \"m\" host) {\n"
                                  "  %a = tanh(%x)\n"
                                  "  %c = offload(%a)\n"
                                  "  %h = wait_tensor(%c, %a)\n"
                                  "  %l = reload(%h)\n"
                                  "  %b = wait_tensor(%l, %h)\n"
                                  "  %ml = reload(%m)  optimizer\n"
                                  "  %mb = wait_tensor(%ml, %m)  optimizer\n"
                                  "  %n = cos(%mb)  optimizer\n"
                                  "  %nc = offload(%n, %m)  optimizer\n"
                                  "  %nh = wait_tensor(%nc, %n)  optimizer\n"
                                  "  return %b, new \"m\" %nh\n"
                                  "}\n";

static const char beside_state[] = "tenon 1\n"
                                   "graph beside(%x: f32[16]) {\n"
                                   "  %a = tanh(%x)\n"
                                   "  %c = offload(%a)\n"
                                   "  %h = wait_tensor(%c, %a)\n"
                                   "  %l = reload(%h)\n"
                                   "  %b = wait_tensor(%l, %h)\n"
                                   "  return %b\n"
                                   "}\n";

/* A state in the host's memory stays while another program runs: one that is planned to keep it
 * shares that memory, any other has its own. */
static void test_shared_state(void)
{
    float x[64] = {0}, m[2][16];
    Plan *p = plan_for(graph_parse(a, keeps_state, "keeps"), emulated());
    EXPECT(p->space[SPACE_HOST].persistent == 64 && p->space[SPACE_HOST].peak == 320);
    EXPECT(!p->space[SPACE_MAIN].persistent);
    Program *host = program_make(a, p, true, 0);
    EXPECT(!program_write(host, &p->in[0], 0, sizeof x, x) && !program_run(host));
    for (int i = 0; i < 2; i++) {
        Graph *g = graph_parse(a, beside_state, "beside");
        Plan *q = plan_make(a, g, &(PlanFor){.device = emulated(), .persistent = {0, 64 * i}});
        Program *guest = program_share(a, q, host);
        EXPECT((guest->memory[SPACE_HOST] == host->memory[SPACE_HOST]) == i);
        for (int k = 0; k < 2; k++) {
            EXPECT(!program_read(host, &p->in[1], 0, sizeof m[k], m[k]));
            EXPECT(!program_write(guest, &q->in[0], 0, sizeof m[0], x) && !program_run(guest));
        }
        EXPECT(m[0][0] == 1 && !memcmp(m[0], m[1], sizeof m[0]));
    }
}

static void share_across(void *arg)
{
    Program *host = arg;
    program_share(a, plan_for(host->plan->g, NULL), host);
}

static void test_not_shared(void)
{
    Graph *g = parse("tests/ir/flat.tn");
    Program *x = program_make(a, plan_for(g, emulated()), false, 0);
    EXPECT_FAIL(&ctx, share_across, x, "the arena to be shared is one of emulated");
}

/* A child has no queues: it can free what it has, but not run it. */
static void test_fork(void)
{
    Arena *own = arena_new(&ctx);
    Graph *g = parse("tests/ir/flat.tn");
    Program *x = program_make(own, plan_for(g, emulated()), true, 0);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        int bad = program_run(x);
        bool good = bad && strstr(x->message, "do not outlive a fork");
        arena_free(own);
        _exit(good ? 0 : 1);
    }
    int status = 1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && !status);
    EXPECT(!program_run(x) || x->message[0]);
    arena_free(own);
}

/* ---- the variable ---- */

static void make_program(void *arg)
{
    Program **x = arg;
    *x = program_make(a, plan_for(parse("tests/ir/flat.tn"), emulated()), false, 0);
}

static void test_variable(void)
{
    static const char *const bad[] = {"", "-1", "x", "3x", "3,", "3,x", "3,4,", "2000000"};
    Program *x = NULL;
    for (int i = 0; i < LEN(bad); i++) {
        setenv("TENON_EMULATED_DELAY", bad[i], 1);
        EXPECT_FAIL(&ctx, make_program, &x, "TENON_EMULATED_DELAY: expected USEC[,SEED], found");
    }
    setenv("TENON_EMULATED_DELAY", "30,5", 1);
    make_program(&x);
    const Delay *d = &x->queues->delay;
    EXPECT(d->usec == 30 && d->seed == 5 && d->every == 1);
    unsetenv("TENON_EMULATED_DELAY");
}

/* What was begun when a thread could not be had ends with the arena. */
static void make_in(void *own)
{
    program_make(own, plan_for(parse("tests/ir/flat.tn"), emulated()), true, 0);
}

static void test_no_thread(void)
{
    for (int i = 1; i <= MAX_QUEUE; i++) {
        Arena *own = arena_new(&ctx);
        refused = i;
        EXPECT_FAIL(&ctx, make_in, own, "emulated: cannot start a thread: Resource temporarily");
        EXPECT(!refused);
        arena_free(own);
    }
}

int main(void)
{
    a = arena_new(&ctx);
    CHECK(a);
    for (int i = 0; i < LEN(graphs); i++)
        test_bits(graphs[i]);
    test_queues();
    test_peaks();
    test_hidden();
    test_no_memory();
    test_no_host_memory();
    test_errors();
    test_checks();
    test_poison();
    test_many();
    test_shared();
    test_shared_state();
    test_not_shared();
    test_fork();
    test_variable();
    test_no_thread();
    arena_free(a);
    return test_report();
}
