/* Plans of the emulated device. Random graphs of which values go to the host and back, in double by
 * the references, whose bits do not depend on strides: what the interpreter computes. The same of
 * training steps of small models by their kernels: what the processor computes. With random delays
 * of the queues, poison and guards.
 *
 * Then every wait of these plans is left out, one at a time. The checker must find each; runs show
 * nearly all: another bit, or an error. `test_emulated SEED` is for one random graph. TN_LONG: ten
 * times as much, and addresses that waste nothing, which take most of the time; TN_QUICK: less. */
#include "../../src/exec/exec.h"
#include "../../src/api/api.h"
#include "../shared/check_queue.h"
#include "../shared/gen.h"
#include "../shared/graphs.h"
#include "../shared/interp.h"
#include "../shared/test.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs without a wait are races, as ThreadSanitizer would say. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DROPS false
#endif
#endif
#ifndef DROPS
#define DROPS true
#endif

static Ctx ctx;

/* What a graph computes. */
typedef struct Subject {
    Arena *a;
    Graph *g;
    const Tensor *in;
    Tensor *want, *got;
    bool references;
    bool not_finite; /* a result may be */
    char why[RUN_MESSAGE + 100];
} Subject;

typedef struct Counts {
    int graphs, narrow, moved, waits, found, seen;
    int told; /* waits without which a run could be seen to be wrong */
} Counts;

static Counts counts;
static int *nruns; /* without a wait; shared with child processes */
static bool shown; /* what runs do not show */

/* ---- running ---- */

static void use_references(Plan *p)
{
    for (int i = 0; i < p->nstep; i++) {
        Step *s = &p->step[i];
        if (s->kind == STEP_CALL && s->node->op->rules->ref && !s->node->op->wait)
            s->kernel = NULL;
    }
}

static Plan *plan_on(Arena *a, const Subject *s, Graph *g, DeviceId device)
{
    PlanFor to = {.device = device_at(device), .loose = !getenv("TN_LONG")};
    Plan *p = plan_make(a, g, &to);
    if (s->references)
        use_references(p);
    return p;
}

static bool same_bits(const Subject *s, const Tensor *got, const Tensor *want)
{
    for (int64_t i = 0, n = tensor_nelem(want), size = dtype_size(want->dtype); i < n; i++) {
        bool nan =
            dtype_float(want->dtype) && isnan(tensor_get(got, i)) && isnan(tensor_get(want, i));
        bool same = !memcmp(got->data + i * size, want->data + i * size, (size_t)size);
        if (!same && !nan && (!s->references || tensor_get(got, i) != tensor_get(want, i)))
            return false;
    }
    return true;
}

/* One run from inputs on, over an arena that is filled. Returns what is wrong, or NULL. */
static const char *run(Program *x, Subject *s, Delay delay)
{
    const Plan *p = x->plan;
    int bad = 0;
    x->queues->delay = delay;
    program_fill(x, 0xff);
    for (int i = 0; i < p->nin && !bad; i++)
        bad = program_write(x, &p->in[i], 0, tensor_nbytes(&s->in[i]), s->in[i].data);
    bad = bad || program_run(x);
    for (int i = 0; i < p->nout && !bad; i++) {
        bad = program_read(x, &p->out[i], 0, tensor_nbytes(&s->got[i]), s->got[i].data);
        if (bad || same_bits(s, &s->got[i], &s->want[i]))
            continue;
        snprintf(s->why, sizeof s->why, "output %d has other bits", i);
        return s->why;
    }
    if (bad)
        snprintf(s->why, sizeof s->why, "%s", x->message);
    else if (x->not_finite && !s->not_finite)
        snprintf(s->why, sizeof s->why, "a result is not finite");
    return bad || (x->not_finite && !s->not_finite) ? s->why : NULL;
}

enum { TRIES = 48 };

static const Delay none = {.every = 1};

/* From many short pauses to few long ones; of all queues, or of one that falls behind, at last by
 * more than any step takes. */
static Delay delay_of(int number)
{
    static const int64_t every[] = {1, 8, 2, 16, 4, 32};
    int64_t e = every[number / (MAX_QUEUE + 1) % LEN(every)];
    int slow = number % (MAX_QUEUE + 1);
    return (Delay){.usec = slow == MAX_QUEUE            ? 40 * e
                           : number % TRIES < TRIES / 2 ? 150
                                                        : 1500,
                   .every = e,
                   .seed = (uint64_t)number,
                   .queues = slow < MAX_QUEUE ? 1U << slow : 0};
}

/* ---- waits left out ---- */

enum { RIGHT, WRONG, NO_PROGRAM = 99 }; /* how a child exits */

typedef struct Tries {
    Subject *s;
    const Plan *p;
    bool seen;
} Tries;

static void try_delays(void *arg)
{
    Tries *t = arg;
    Arena *a = arena_new(&ctx);
    Program *x = program_make(a, t->p, true, 0);
    for (int i = 0; i < TRIES && !t->seen; i++) {
        ++*nruns;
        t->seen = run(x, t->s, delay_of(i)) != NULL;
    }
    arena_free(a);
}

/* Whether runs of the plan are wrong. In a process of its own: they may overwrite what kernels keep
 * in their workspaces, such as pointers, and then whatever these point to. */
static bool races(Subject *s, const Plan *p)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        Tries t = {s, p, false};
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        alarm(120);
        bool made = !ctx_try(&ctx, try_delays, &t);
        _exit(!made ? NO_PROGRAM : t.seen ? WRONG : RIGHT);
    }
    CHECK(waitpid(child, &status, 0) == child);
    EXPECT(!WIFEXITED(status) || WEXITSTATUS(status) != NO_PROGRAM);
    return !WIFEXITED(status) || WEXITSTATUS(status) != RIGHT;
}

static void drop_one(Subject *s, const Plan *p, int k, const char *title)
{
    Arena *a = arena_new(&ctx);
    const char *which;
    Plan *q = drop_wait(a, p, k, &which);
    counts.waits++;
    if (EXPECT(check_order(a, q)))
        counts.found++;
    else
        printf("  %s: nothing found without the wait of %s\n", title, which);
    bool seen = !s->not_finite && races(s, q); /* memory is filled with NaN, which would not show */
    counts.told += !s->not_finite;
    counts.seen += seen;
    if (!seen && shown && !s->not_finite)
        printf("%s: %d runs were right without the wait of %s\n", title, TRIES, which);
    arena_free(a);
}

static void drop_waits(Subject *s, const Plan *p, const char *title, int most)
{
    int n = 0;
    for (int i = 0; i < p->nstep; i++)
        n += p->step[i].nwait;
    for (int k = 0; k < n; k++)
        if (n <= most || (int64_t)k * most / n != (int64_t)(k + 1) * most / n)
            drop_one(s, p, k, title);
}

/* ---- one subject ---- */

static void right(Program *x, Subject *s, int number, const char *title)
{
    const char *why = run(x, s, number ? delay_of(number - 1) : none);
    if (!EXPECT(!why))
        printf("  %s, run %d: %s\n", title, number, why);
}

/* A graph with the inputs of s->g that computes the same with values moved to the host; `runs`
 * times, then without waits. */
static void try_moved(Subject *s, Graph *moved, const char *title, int runs, int drops)
{
    graph_verify(moved);
    Plan *p = plan_on(s->a, s, moved, DEVICE_emulated);
    Program *x = program_make(s->a, p, true, 0);
    for (int i = 0; i < runs; i++)
        right(x, s, i, title);
    counts.graphs++;
    counts.moved += graphs_count(moved, "offload");
    drop_waits(s, p, title, drops);
}

/* s->g as it is. */
static void try_plain(Subject *s, const char *title)
{
    Plan *p = plan_on(s->a, s, graph_clone(s->a, s->g), DEVICE_emulated);
    Program *x = program_make(s->a, p, true, 0);
    s->not_finite = true;
    right(x, s, 0, title);
    s->not_finite = x->not_finite;
}

static void room_for_outputs(Subject *s)
{
    s->got = NEWN(s->a, Tensor, s->g->nout);
    for (int i = 0; i < s->g->nout; i++)
        s->got[i] = tensor_new(s->a, &s->g->out[i].v->type, 0);
}

/* ---- random graphs ---- */

typedef struct Random {
    Arena *a;
    Library *lib;
    uint64_t seed;
    int drops;
} Random;

/* The graph in f32 and by kernels, without values moved: strides and bits are those of cpu. */
static void try_narrow(const Subject *wide, const char *title)
{
    Arena *a = wide->a;
    char *text = arena_strdup(a, graphs_text(a, wide->g));
    for (char *at = text; (at = strstr(at, "f64"));)
        memcpy(at, "f32", 3);
    Subject s = {.a = a, .g = graph_parse(a, text, title)};
    Tensor *in = NEWN(a, Tensor, s.g->nin);
    for (int i = 0; i < s.g->nin; i++)
        in[i] = tensor_copy(a, &wide->in[i], s.g->in[i].v->type.dtype);
    s.in = in;
    room_for_outputs(&s);
    s.want = NEWN(a, Tensor, s.g->nout);
    Program *x = program_make(a, plan_make(a, graph_clone(a, s.g), NULL), true, 0);
    for (int i = 0; i < s.g->nin; i++)
        program_write(x, &x->plan->in[i], 0, tensor_nbytes(&in[i]), in[i].data);
    if (program_run(x))
        return; /* an index from a float may have been rounded out of its range */
    for (int i = 0; i < s.g->nout; i++) {
        s.want[i] = tensor_new(a, &s.g->out[i].v->type, 0);
        program_read(x, &x->plan->out[i], 0, tensor_nbytes(&s.want[i]), s.want[i].data);
    }
    try_plain(&s, title);
    counts.narrow++;
}

static void random_graph(void *arg)
{
    Random *t = arg;
    Rng r = {t->seed, 0};
    bool smooth = rng_chance(&r, 0.3);
    Gen *x = gen_graph(t->a, t->lib, &r, 5 + (int)rng_below(&r, 36), smooth);
    Subject s = {.a = t->a, .g = x->b.g, .in = x->in, .references = true};
    PassOptions o = pass_defaults();
    passes_run(s.g, "dce", &o, NULL, NULL);
    s.want = NEWN(t->a, Tensor, s.g->nout);
    interp_graph(t->a, s.g, s.in, s.want);
    room_for_outputs(&s);
    const char *title = arena_printf(t->a, "random graph %llu", (unsigned long long)t->seed);
    try_plain(&s, title);
    Graph *moved = graph_clone(t->a, s.g);
    gen_offload(t->a, moved, &r, 0.2, true);
    try_moved(&s, moved, title, 3, t->drops);
    try_narrow(&s, title);
}

static void test_random(Library *lib, uint64_t from, uint64_t to, int drops)
{
    for (uint64_t i = from; i < to && test_nfail < 10; i++) {
        Random t = {arena_new(&ctx), lib, i, drops};
        if (!EXPECT(!ctx_try(&ctx, random_graph, &t)))
            printf("  random graph %llu: %s\n", (unsigned long long)i, ctx.message);
        arena_free(t.a);
    }
}

/* ---- models ---- */

typedef struct ModelStep {
    const char *name, *dtype, *recompute;
    int64_t accumulate;
    int runs, drops;
    tn_context *c;
} ModelStep;

/* A training step as the passes make it: with rules, so that values are offloaded; or none. */
static Graph *step_of(const ModelStep *m, Arena *a, const tn_rule *rule, int nrules)
{
    tn_model *model;
    tn_graph *g = NULL;
    tn_options o = tn_options_default();
    o.dtype = m->dtype;
    o.recompute = m->recompute;
    o.accumulate = m->accumulate;
    o.backend = rule ? "emulated" : "cpu";
    o.rules = rule;
    o.nrules = nrules;
    int code = tn_model_open(m->c, m->name, &model);
    code = code ? code : tn_model_graph(model, 2, 16, &o, &g);
    code = code ? code : tn_graph_passes(g, "default", &o, NULL, NULL);
    if (code)
        fail(&ctx, TN_FAIL, "%s", tn_error(m->c));
    return graph_parse(a, graphs_text(a, g->g), m->name);
}

static void model_step(void *arg)
{
    static const tn_rule rules[] = {{"offload", "*::*"}, {"offload", "state"}};
    const ModelStep *m = arg;
    Rng r = {5, 0};
    Arena *a = arena_new(&ctx);
    Subject s = {.a = a, .g = step_of(m, a, NULL, 0)};
    s.in = graphs_inputs(a, s.g);
    s.want = graphs_execute(a, graph_clone(a, s.g), s.in);
    room_for_outputs(&s);
    try_plain(&s, m->name);
    Graph *moved = graph_clone(a, s.g), *offloaded = step_of(m, a, rules, 1);
    EXPECT(gen_offload(a, moved, &r, 0.1, false) > 0);
    try_moved(&s, moved, arena_printf(a, "%s, random values", m->name), m->runs, m->drops);
    EXPECT(offloaded->nin == s.g->nin && graphs_count(offloaded, "offload") > 0);
    try_moved(&s, offloaded, arena_printf(a, "%s, saved values", m->name), m->runs, m->drops);
    for (int i = 0; i < 2; i++) {
        Graph *state = step_of(m, a, rules + i, LEN(rules) - i);
        EXPECT(graphs_count(state, "offload") >= graphs_count(state, "adamw"));
        try_moved(&s, state, arena_printf(a, "%s, state%s", m->name, i ? "" : " and saved values"),
                  m->runs, m->drops);
    }
    arena_free(a);
}

static void test_model(ModelStep m)
{
    m.c = tn_context_new();
    if (!EXPECT(!ctx_try(&ctx, model_step, &m)))
        printf("  %s: %s\n", m.name, ctx.message);
    tn_context_free(m.c);
}

static void test_models(int runs, int drops)
{
    test_model((ModelStep){"tests/ref/gpt2-tiny", "f32", "none", 1, runs, drops, NULL});
    test_model((ModelStep){"tests/ref/llama-tiny", "bf16", "selective", 2, runs, drops, NULL});
}

int main(int argc, char **argv)
{
    bool quick = getenv("TN_QUICK") || !DROPS, all = getenv("TN_LONG") != NULL;
    int most = !DROPS ? 0 : quick ? 4 : all ? 500 : 20; /* waits left out of a plan */
    Arena *a = arena_new(&ctx);
    Library lib;
    par_set_threads(1);
    nruns = mmap(NULL, sizeof *nruns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(nruns != MAP_FAILED);
    CHECK(library_try(&ctx, a, &lib));
    lib.apart = true; /* what is stale must differ */
    shown = argc > 1;
    if (shown) {
        uint64_t seed = strtoull(argv[1], NULL, 10);
        test_random(&lib, seed, seed + 1, 100);
    } else {
        test_random(&lib, 0, quick ? 10 : all ? 500 : 50, quick ? most : all ? 100 : 10);
        test_models(quick ? 4 : all ? 200 : 20, most);
    }
    printf("note: %d graphs, %d in f32; %d values moved; %d waits left out: the checker finds %d, "
           "runs (%d) show %d of the %d whose results are finite, %.1f %%\n",
           counts.graphs, counts.narrow, counts.moved, counts.waits, counts.found, *nruns,
           counts.seen, counts.told, 100.0 * counts.seen / MAX(counts.told, 1));
    EXPECT(shown || !DROPS ||
           (counts.told >= counts.graphs && counts.seen >= (quick ? 0.8 : 0.95) * counts.told));
    EXPECT(shown || counts.narrow > counts.graphs / 2);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
