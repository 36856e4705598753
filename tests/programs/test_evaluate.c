/* Evaluations of held-out data: how many windows they are of, what is said meanwhile, and what
 * comes of one that a signal or the clock ends. */
#define _GNU_SOURCE /* fopencookie */
#include "../../src/train/train.h"
#include "../shared/test.h"

#include <math.h>
#include <unistd.h>

enum { BATCH = 3, SEQ = 8, BYTES = 401 }; /* 50 windows */

static tn_context *ctx;
static volatile sig_atomic_t stop;

static void test_count(void)
{
    TrainOptions t = {.batch = 4};
    EXPECT(evaluation_most(&t, 20, true) == 8);
    EXPECT(evaluation_most(&t, 1, true) == 1);
    EXPECT(evaluation_most(&t, 1000000, true) == 64);
    EXPECT(evaluation_most(&t, 1, false) == 64);
    t.eval_windows = 5;
    EXPECT(evaluation_most(&t, 1, true) == 5 && evaluation_most(&t, 1, false) == 5);
}

/* The bytes that a held-out part of a file has, and a program for its loss. */
typedef struct Held {
    tn_model *m;
    tn_graph *g;
    tn_data *data;
    Evaluation e;
} Held;

static int open_data(Held *h)
{
    char path[] = "/tmp/tenon_held_XXXXXX";
    const char *paths[] = {path};
    int fd = mkstemp(path);
    for (int i = 0; i < BYTES; i++)
        dprintf(fd, "%c", 'a' + i * i % 23);
    close(fd);
    int code = tn_data_open(ctx, 1, paths, "byte", 1, 256, &h->data);
    int64_t all = 0, labels;
    if (!code)
        code = tn_data_windows(h->data, 1, SEQ, &all, &labels);
    EXPECT(!code && all == 50);
    return code;
}

static bool make(Held *h)
{
    const tn_options o = tn_options_default();
    *h = (Held){.e = {.ctx = ctx, .batch = BATCH, .seq = SEQ, .most = 1000}};
    int code = tn_model_open(ctx, "demo", &h->m);
    code = code ? code : open_data(h);
    code = code ? code : tn_model_graph(h->m, BATCH, SEQ, &o, &h->g);
    code = code ? code : tn_graph_passes(h->g, "forward", &o, NULL, NULL);
    code = code ? code : tn_plan_new(h->g, &o, 1, &h->e.plan);
    code = code ? code : tn_program_new(h->e.plan, &o, &h->e.x);
    code = code ? code : tn_program_load(h->e.x, h->m, &o);
    h->e.data = h->data;
    return EXPECT(!code);
}

static Evaluation run(const Held *h, Evaluation e)
{
    Evaluation x = h->e;
    x.most = e.most ? e.most : x.most;
    x.deadline = e.deadline;
    x.stop = e.stop;
    x.announce = e.announce;
    x.say_sec = e.say_sec;
    x.log = e.log;
    EXPECT(!evaluate(&x));
    return x;
}

/* As many windows as were asked for, whatever the rows of a pass; all are what a mean of parts is.
 */
static void test_windows(const Held *h)
{
    Evaluation all = run(h, (Evaluation){.most = 1000});
    EXPECT(all.windows == 50 && all.all == 50 && all.count == 400 && !evaluation_is_part(&all));
    for (int most = 1; most < 50; most += 7) {
        Evaluation e = run(h, (Evaluation){.most = most});
        EXPECT(e.windows == most && e.planned == most && e.count == most * SEQ);
        EXPECT(evaluation_is_part(&e) && isfinite(e.loss) && fabs(e.loss - all.loss) < 1);
    }
}

/* What is past ends after one pass, which counts. */
static void test_deadline(const Held *h)
{
    Evaluation late = run(h, (Evaluation){.deadline = wall_sec() - 1});
    EXPECT(late.late && !late.stopped && late.windows == BATCH && late.count == BATCH * SEQ);
    EXPECT(isfinite(late.loss) && late.planned == 50);
    Evaluation whole = run(h, (Evaluation){.deadline = wall_sec() + 1e6});
    EXPECT(!whole.late && whole.windows == 50);
}

/* A signal at the first line that tells of a pass. */
static ssize_t stop_at(void *cookie, const char *text, size_t n)
{
    (void)cookie;
    if (memmem(text, n, " left", 5))
        stop = 1;
    return (ssize_t)n;
}

static void test_stop(const Held *h)
{
    FILE *log = fopencookie(NULL, "w", (cookie_io_functions_t){.write = stop_at});
    stop = 0;
    Evaluation e = run(h, (Evaluation){.log = log, .say_sec = 1e-9, .stop = &stop});
    EXPECT(e.stopped && !e.late && e.windows > 0 && e.windows < 50 && e.count == e.windows * SEQ);
    EXPECT(isfinite(e.loss));
    e = run(h, (Evaluation){.stop = &stop});
    EXPECT(e.stopped && !e.windows && isnan(e.loss));
    fclose(log);
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* Off a terminal: announced, then a line after each time that is long enough. */
static void test_lines(const Held *h)
{
    for (int often = 0; often < 2; often++) {
        char *text = NULL;
        size_t n = 0;
        FILE *log = open_memstream(&text, &n);
        run(h,
            (Evaluation){.most = 9, .log = log, .announce = true, .say_sec = often ? 1e-9 : 1e6});
        fclose(log);
        EXPECT(strstr(text, "evaluating 9 of 50 windows, about "));
        EXPECT(lines_of(text) == (often ? 4 : 1));
        EXPECT(!often || strstr(text, "evaluating: 6 of 9 windows, "));
        free(text);
    }
}

int main(void)
{
    Held h;
    ctx = tn_context_new();
    tn_threads(1);
    test_count();
    if (make(&h)) {
        test_windows(&h);
        test_deadline(&h);
        test_stop(&h);
        test_lines(&h);
    }
    tn_context_free(ctx);
    return test_report();
}
