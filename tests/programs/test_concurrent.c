/* Programs that run at once: of one plan, in threads of their own, each on other data; each gives
 * the bits that it gives alone, and the error of one is not seen by the others. Contexts share
 * nothing. `make race` runs this under ThreadSanitizer. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>

enum { ROWS = 2, SEQ = 16, TOKENS = ROWS * SEQ, MOST_RUNS = 100, MOST_PROGRAMS = 8 };

static tn_context *ctx;

static void ok(int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s\n", tn_error(ctx));
}

/* With random numbers, and a loop. */
static tn_options choose(void)
{
    tn_options o = tn_options_default();
    o.dropout = 0.1;
    o.accumulate = 2;
    return o;
}

/* ---- a step and what it gives ---- */

typedef struct Result {
    float loss, norm;
} Result;

/* One program and the data it is run on. */
typedef struct Worker {
    tn_program *x;
    int number, runs;
    int64_t ids[TOKENS], labels[TOKENS];
    Result result[MOST_RUNS];
    float weights[64]; /* after the last run */
    int code;          /* of the call that failed */
    pthread_t thread;
} Worker;

/* Runs steps 1, 2, ... until one fails. */
static void *work(void *arg)
{
    Worker *w = arg;
    tn_program *x = w->x;
    const float rate = 1e-2f;
    const int64_t seed = w->number;
    int code = tn_program_write(x, "lr", &rate, sizeof rate);
    if (!code)
        code = tn_program_write(x, "seed", &seed, sizeof seed);
    for (int64_t step = 1; step <= w->runs && !code; step++) {
        Result *r = &w->result[step - 1];
        code = tn_program_write(x, "input_ids", w->ids, sizeof w->ids);
        if (!code)
            code = tn_program_write(x, "labels", w->labels, sizeof w->labels);
        if (!code)
            code = tn_program_write(x, "step", &step, sizeof step);
        if (!code)
            code = tn_program_run(x);
        if (!code)
            code = tn_program_read(x, "loss", &r->loss, sizeof r->loss);
        if (!code)
            code = tn_program_read(x, "metric.grad_norm", &r->norm, sizeof r->norm);
    }
    if (!code)
        code = tn_program_read(x, "new.model.norm.weight", w->weights, sizeof w->weights);
    w->code = code;
    return NULL;
}

static void make_worker(Worker *w, tn_plan *p, tn_model *m, const tn_options *o, int number,
                        int runs)
{
    *w = (Worker){.number = number, .runs = runs};
    for (int i = 0; i < TOKENS; i++) {
        w->ids[i] = (7 * i + 11 * number) % 131;
        w->labels[i] = (5 * i + 3 * number) % 131;
    }
    ok(tn_program_new(p, o, &w->x));
    ok(tn_program_load(w->x, m, o));
}

/* ---- programs of one plan ---- */

static tn_plan *plan(tn_model *m, const tn_options *o, bool parsed)
{
    tn_graph *g = NULL, *step;
    tn_plan *p = NULL;
    const char *text;
    ok(tn_model_graph(m, ROWS, SEQ, o, &step));
    ok(tn_graph_passes(step, "default", o, NULL, NULL));
    if (parsed) {
        ok(tn_graph_print(step, &text));
        ok(tn_graph_parse(ctx, text, "step.tn", &g));
    }
    ok(tn_plan_new(parsed ? g : step, o, 1, &p));
    return p;
}

static void expect_same(const Worker *w, const Worker *alone)
{
    bool same = !memcmp(w->result, alone->result, sizeof w->result) &&
                !memcmp(w->weights, alone->weights, sizeof w->weights);
    if (!EXPECT(!w->code && same && isfinite(w->result[w->runs - 1].loss)))
        printf("  program %d: code %d: %s\n", w->number, w->code, tn_program_error(w->x));
}

/* The last of more than two fails in its second run: a label is no token. */
static void test_programs(const char *backend, bool parsed, int count, int runs)
{
    static Worker w[MOST_PROGRAMS], alone[MOST_PROGRAMS];
    tn_model *m;
    tn_options o = choose();
    o.backend = backend;
    ok(tn_model_open(ctx, "tests/ref/llama-tiny", &m));
    tn_threads(2);
    tn_plan *p = plan(m, &o, parsed);
    tn_threads(1); /* that of the plan is taken */
    for (int i = 0; i < count; i++) {
        make_worker(&alone[i], p, m, &o, i, runs);
        make_worker(&w[i], p, m, &o, i, runs);
        work(&alone[i]);
        EXPECT(!alone[i].code);
    }
    bool fails = count > 2;
    if (fails)
        w[count - 1].labels[5] = 131;
    tn_context_fail(ctx, 0, "none");
    for (int i = 0; i < count; i++)
        CHECK(!pthread_create(&w[i].thread, NULL, work, &w[i]));
    for (int i = 0; i < count; i++)
        CHECK(!pthread_join(w[i].thread, NULL));
    EXPECT(!strcmp(tn_error(ctx), "none"));
    for (int i = 0; i < count - fails; i++) {
        expect_same(&w[i], &alone[i]);
        EXPECT(!strcmp(tn_program_error(w[i].x), ""));
    }
    const char *why = tn_program_error(w[count - 1].x);
    EXPECT(!fails || (w[count - 1].code == TN_CODE_FAIL && strstr(why, "cross_entropy")));
    EXPECT(tn_threads_used() == 1 || !fails);
    for (int i = 1; i < count; i++) /* on other data something else comes out */
        EXPECT(alone[i].result[0].loss != alone[0].result[0].loss);
}

/* ---- the number of threads ---- */

static int count_now(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Once as many are counted ten times in a row: threads of earlier workers may still be ending, and
 * while one does, reading the folder may miss another. */
static int count_threads(void)
{
    int n = count_now();
    for (int same = 0; same < 10; same++) {
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        int m = count_now();
        same = m == n ? same : 0;
        n = m;
    }
    return n;
}

typedef struct Counted {
    Worker w;
    int set, before, after;
} Counted;

/* Runs where other numbers of threads are set; what OpenMP has begun stays until the end. */
static void *work_counted(void *arg)
{
    Counted *c = arg;
    tn_threads(c->set);
    c->before = count_threads();
    work(&c->w);
    c->after = count_threads();
    EXPECT(tn_threads_used() == c->set || tn_threads_used() == 1);
    return NULL;
}

/* Runs take the plan's number, whatever the thread that runs them has; small products of some
 * processors fewer. */
static void test_threads(void)
{
    static const int made[] = {1, 3, 3}, set[] = {3, 1, 7};
    static Counted c[LEN(made)];
    tn_model *m;
    tn_options o = choose();
    ok(tn_model_open(ctx, "tests/ref/llama-tiny", &m));
    for (int i = 0; i < LEN(c); i++) {
        tn_threads(made[i]);
        tn_plan *p = plan(m, &o, false);
        bool many = tn_threads_used() > 1; /* one, without OpenMP */
        make_worker(&c[i].w, p, m, &o, 1, 3);
        c[i].set = set[i];
        CHECK(!pthread_create(&c[i].w.thread, NULL, work_counted, &c[i]));
        CHECK(!pthread_join(c[i].w.thread, NULL));
        expect_same(&c[i].w, &c[MIN(i, 1)].w);
        const int begun = c[i].after - c[i].before;
        if (!EXPECT(many == (begun > 0) && begun < made[i]))
            printf("  a plan for %d threads: %d, then %d\n", made[i], c[i].before, c[i].after);
    }
    tn_threads(0);
}

/* ---- contexts ---- */

/* All of it in a context of its own: opening, compiling, planning, running, an error. */
static void *begin_to_end(void *arg)
{
    Worker *w = arg;
    tn_context *own = tn_context_new();
    tn_options o = choose();
    tn_model *m;
    tn_graph *g = NULL;
    tn_plan *p;
    const char *text;
    int code = own ? tn_model_open(own, "tests/ref/llama-tiny", &m) : TN_CODE_FAIL;
    if (!code)
        code = tn_model_graph(m, ROWS, SEQ, &o, &g);
    if (!code)
        code = tn_graph_passes(g, "default", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &o, 1, &p);
    if (!code)
        code = tn_plan_json(p, 1, &text);
    if (!code)
        code = tn_program_new(p, &o, &w->x);
    if (!code)
        code = tn_program_load(w->x, m, &o);
    if (!code)
        work(w);
    o.memory = 1;
    bool told = tn_plan_new(g, &o, 1, &p) == TN_CODE_FIT && strstr(tn_error(own), "does not fit");
    w->code = code || !told ? TN_CODE_FAIL : w->code;
    tn_context_free(own);
    return NULL;
}

static void test_contexts(void)
{
    static Worker w[4];
    for (int i = 0; i < LEN(w); i++) {
        w[i] = (Worker){.number = 1, .runs = 3};
        for (int k = 0; k < TOKENS; k++)
            w[i].ids[k] = w[i].labels[k] = k;
    }
    begin_to_end(&w[0]);
    for (int i = 1; i < LEN(w); i++)
        CHECK(!pthread_create(&w[i].thread, NULL, begin_to_end, &w[i]));
    for (int i = 1; i < LEN(w); i++) {
        CHECK(!pthread_join(w[i].thread, NULL));
        EXPECT(!w[i].code && !memcmp(w[i].result, w[0].result, sizeof w[i].result));
    }
}

int main(void)
{
    ctx = tn_context_new();
    CHECK(ctx);
    test_programs("cpu", false, 2, MOST_RUNS);
    test_programs("cpu", true, MOST_PROGRAMS, 20);
    test_programs("emulated", false, 3, 10);
    test_threads();
    test_contexts();
    tn_context_free(ctx);
    return test_report();
}
