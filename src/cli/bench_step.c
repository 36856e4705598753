/* bench step, bench ops: the time of a step, call by call, against what this machine can do.
 *
 * Limits (bench_limits.c) are measured in the same run. The limit of a step is its own products
 * alone, each by the fastest of its ways and of the library's layouts, and its attention at the
 * best rate. Times of calls are those inside of steps, with the caches as they are there; times of
 * ways are alone. On a GPU a recorded step waits for each call, so that a step's time is that of
 * another, which is not recorded.
 *
 * bench time: the step's seconds, its bytes by the plan and the system, and nothing else. */
#include "bench.h"

#include "../train/train.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPS = 200 };

/* The step that is measured: a model's, or a graph as it is written. */
typedef struct BenchStep {
    tn_model *m; /* NULL: a graph */
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    Batch batch; /* of a model */
    /* of ranks: what a step receives from others, and of each run the part that waits for them */
    int64_t nreceived;
    double waited[MOST_RUNS];
} BenchStep;

/* ---- the subject ---- */

static void fill_tokens(Batch *b, int64_t vocab)
{
    uint64_t z = 88172645463325252u;
    for (int64_t i = 0; i < b->rows * b->seq; i++) {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        b->ids[i] = b->labels[i] = (int64_t)(z % (uint64_t)vocab);
    }
}

static int open_step(Bench *b, BenchStep *s)
{
    int64_t vocab, context;
    int code = tn_model_open(b->ctx, b->model, &s->m);
    if (!code)
        code = check_model(b->ctx, "bench: ", b->table, s->m, &b->c);
    if (!code)
        code = tn_model_graph(s->m, b->c.batch, b->c.seq, &b->o, &s->g);
    if (!code)
        code = tn_graph_passes(s->g, "default", &b->o, NULL, NULL);
    if (!code)
        code = tn_plan_new(s->g, &b->o, 1, &s->p);
    if (!(code = tn_agree_code(b->ctx, code)))
        code = tn_program_new(s->p, &b->o, &s->x);
    if (!code)
        code = tn_program_load(s->x, s->m, &b->o);
    if (!code)
        code = batch_make(b->ctx, b->c.batch, b->c.seq, &s->batch);
    if ((code = tn_agree_code(b->ctx, code)))
        return code;
    tn_model_shape(s->m, &vocab, &context);
    fill_tokens(&s->batch, vocab);
    return 0;
}

/* Inputs are written before each run: their memory may have been used for something else. */
static int write_inputs(tn_context *ctx, const BenchStep *s, int64_t step)
{
    const float rate = 1e-4f;
    if (!s->m) {
        tn_program_random(s->x, 1);
        return 0;
    }
    int code = rank_write(ctx, s->p, s->x, &s->batch);
    if (!code)
        code = port_put(ctx, s->x, "lr", &rate, sizeof rate);
    return code ? code : port_put(ctx, s->x, "step", &step, sizeof step);
}

static int run_once(tn_context *ctx, const BenchStep *s, int64_t step)
{
    int code = write_inputs(ctx, s, step);
    return rank_ran(ctx, code ? code : port_run(ctx, s->x));
}

static void print_bytes(Bench *b, Result *r, int n)
{
    for (int i = 0; i < n; i++) {
        r[i].unit = "MiB";
        r[i].value /= 0x1p20;
        r[i].min = r[i].max = r[i].value;
        bench_print(b, &r[i]);
    }
}

static int measure_peak(Bench *b, const BenchStep *s)
{
    int64_t high = 0, peak, persistent, reserve;
    for (int i = 0; i < 2; i++) {
        int pattern = i ? 0xA5 : 0x5A;
        tn_program_fill(s->x, pattern);
        int code = run_once(b->ctx, s, i + 1);
        if (code)
            return code;
        int64_t h = tn_program_high(s->x, pattern);
        high = h > high ? h : high;
    }
    if (tn_agree(b->ctx, &high, 1))
        return TN_CODE_FAIL;
    tn_plan_bytes(s->p, &peak, &persistent, &reserve);
    Result r[] = {
        {.name = "planned peak", .value = (double)peak, .runs = 1},
        {.name = "measured peak (highest byte)", .value = (double)high, .runs = 1},
        {.name = "peak resident", .value = (double)tn_rss_peak(), .runs = 1},
    };
    print_bytes(b, r, LEN(r));
    return 0;
}

/* Prints the memory of a process that runs this step and measures nothing. */
static void print_resident(Bench *b, const BenchStep *s)
{
    int64_t peak, persistent, reserve;
    tn_plan_bytes(s->p, &peak, &persistent, &reserve);
    Result r[] = {
        {.name = "planned peak", .value = (double)peak, .runs = 1},
        {.name = "library reserve", .value = (double)reserve, .runs = 1},
        {.name = "peak resident", .value = (double)tn_rss_peak(), .runs = 1},
    };
    print_bytes(b, r, LEN(r));
}

static double median_of(const tn_streams *seen, int64_t n, size_t member)
{
    double x[MOST_RUNS];
    for (int64_t i = 0; i < n; i++)
        memcpy(&x[i], (const char *)&seen[i] + member, sizeof x[i]);
    return bench_median("", "", x, n).value;
}

/* Runs that are recorded; sec[i] is what each took. Streams are measured before each: what memory
 * gives may change from second to second, and then for both. */
static int record(Bench *b, BenchStep *s, double *sec, tn_streams *stream)
{
    tn_streams seen[MOST_RUNS];
    int64_t before, after = 0;
    double waited, since;
    int code = bench_cpu(b) ? tn_program_trace_cpu(s->x, b->runs) : tn_program_trace(s->x, b->runs);
    code = tn_agree_code(b->ctx, code);
    for (int64_t i = 0; i < b->runs && !code; i++) {
        tn_program_trace_next(s->x, i);
        if (!s->m)
            tn_program_random(s->x, 1);
        code = tn_program_streams(s->x, bench_cpu(b), &seen[i]);
        if ((code = tn_agree_code(b->ctx, code))) /* which also lets all begin together */
            return code;
        tn_ranks_count(b->ctx, &before, &since);
        double start = bench_now(b);
        code = s->m ? run_once(b->ctx, s, i + 3) : port_run(b->ctx, s->x);
        if (tn_backend_is_gpu(b->o.backend) && !code) { /* recording waits for each call */
            if (!s->m)
                tn_program_random(s->x, 1);
            start = bench_now(b);
            code = s->m ? run_once(b->ctx, s, i + 3) : port_run(b->ctx, s->x);
        }
        sec[i] = bench_now(b) - start;
        tn_ranks_count(b->ctx, &after, &waited);
        s->waited[i] = (waited - since) / sec[i];
        s->nreceived = after - before;
    }
    *stream = (tn_streams){median_of(seen, b->runs, offsetof(tn_streams, read)),
                           median_of(seen, b->runs, offsetof(tn_streams, copy)),
                           median_of(seen, b->runs, offsetof(tn_streams, add)),
                           median_of(seen, b->runs, offsetof(tn_streams, update))};
    return code;
}

static void print_waits(Bench *b, BenchStep *s)
{
    if (!b->o.mesh)
        return;
    double mib = (double)s->nreceived / 0x1p20;
    Result r = bench_median("waits for other ranks, of the step", "", s->waited, b->runs);
    bench_print(b, &r);
    r = (Result){"received from other ranks", "MiB", mib, .runs = 1, .min = mib, .max = mib};
    bench_print(b, &r);
}

/* ---- per op and shape ---- */

static int by_time(const void *x, const void *y)
{
    const tn_call *c = x, *d = y;
    double s = c->sec * (double)c->count, t = d->sec * (double)d->count;
    return s < t ? 1 : s > t ? -1 : strcmp(c->tensors, d->tensors);
}

/* Prints what another way would save, after the call's line. */
static void print_better(const CallWays *w)
{
    if (w->lost > 0)
        printf("  [%s: %.3f ms less]", w->best.kernel, 1e3 * w->lost);
    puts("");
}

static void print_call(Bench *b, Limits *l, const CallWays *w)
{
    char name[1200];
    const tn_call *c = w->call;
    bool stream = limits_stream(l, c) > 0;
    const bool timed = c->ntimes > 0; /* else no run of it was recorded */
    const double sec = timed ? c->sec : NAN;
    double limit = limits_sec(l, c), rate = 1e-9 * (stream ? c->nbytes : c->nflop) / sec;
    double lost = (sec - limit) * (double)c->count;
    snprintf(name, sizeof name, "%s (%s) %s", c->op, c->kernel, c->tensors);
    Result r = {.name = name,
                .unit = "s",
                .value = sec,
                .limit = limit,
                .runs = c->ntimes,
                .min = timed ? c->min : NAN,
                .max = timed ? c->max : NAN,
                .rate = rate,
                .rate_unit = stream ? "GB/s" : "GF/s",
                .lost = lost < 0 ? 0 : lost,
                .count = c->count,
                .ways = w};
    if (b->json) {
        bench_print(b, &r);
        return;
    }
    if (timed)
        printf("%9.3f %6lld %11.1f %8.1f %s  %6.3f", 1e3 * sec * (double)c->count,
               (long long)c->count, 1e6 * sec, rate, r.rate_unit, limit / sec);
    else
        printf("%9s %6lld %11s %8s %s  %6s", "-", (long long)c->count, "-", "-", r.rate_unit, "-");
    printf("  %.150s%s", name, strlen(name) > 150 ? "..." : "");
    print_better(w);
}

/* Says so where some calls of the runs are not recorded, as there are too many. */
static void warn_lost(const Bench *b, const tn_call *calls, int n)
{
    int64_t made = 0, recorded = 0;
    for (int i = 0; i < n; i++) {
        made += calls[i].count * b->runs;
        recorded += calls[i].ntimes;
    }
    if (recorded < made && rank_first(b->ctx))
        fprintf(stderr,
                "tenon: warning: of the runs' %lld calls %lld are recorded: of those behind "
                "nothing is known\n",
                (long long)made, (long long)recorded);
}

/* Seconds of whole steps into sec, then of each call, and the limits of those. */
static int measure_calls(Bench *b, BenchStep *s, Limits *l, double *sec, const tn_call **calls,
                         int *n)
{
    int code = record(b, s, sec, &l->stream);
    if (!code)
        code = tn_program_calls(s->x, calls, n);
    if (!code)
        warn_lost(b, *calls, *n);
    if (!code)
        code = limits_measure(b, s->x, l, *calls, *n);
    return code;
}

/* Prints calls, those that take longest first, with their ways. */
static int print_calls(Bench *b, Limits *l, tn_program *x, const tn_call *calls, int n)
{
    CallWays *ways = NULL;
    tn_call *sorted = calloc((size_t)n + 1, sizeof *sorted);
    int code = sorted ? 0 : tn_context_fail(b->ctx, TN_CODE_FAIL, "out of memory");
    if (!code) {
        memcpy(sorted, calls, sizeof *sorted * (size_t)n);
        qsort(sorted, (size_t)n, sizeof *sorted, by_time);
        code = ways_measure(b, x, sorted, n, &ways);
    }
    if (!code && rank_first(b->ctx)) {
        limits_print(b, l);
        if (!b->json)
            printf("%9s %6s %11s %13s  %6s  op (kernel) operands -> results\n", "ms/step", "calls",
                   "us/call", "rate", "share");
        for (int i = 0; i < n; i++)
            print_call(b, l, &ways[i]);
    }
    free(ways);
    free(sorted);
    return code;
}

int bench_ops(Bench *b)
{
    BenchStep s = {0};
    Limits l = {0};
    double sec[MOST_RUNS];
    const tn_call *calls;
    int n = 0,
        code = b->file ? program_of_graph(b->ctx, b->file, &b->o, &s.p, &s.x) : open_step(b, &s);
    if (!code)
        code = run_once(b->ctx, &s, 1);
    if (!code)
        code = measure_calls(b, &s, &l, sec, &calls, &n);
    batch_drop(&s.batch);
    return code ? code : print_calls(b, &l, s.x, calls, n);
}

/* ---- per op of a step ---- */

typedef struct OpSum {
    const char *op;
    double sec, limit, lost, least, most;
    int64_t count;
} OpSum;

static int by_lost(const void *x, const void *y)
{
    const OpSum *s = x, *t = y;
    const double lost = isnan(s->lost) ? -1 : s->lost, other = isnan(t->lost) ? -1 : t->lost;
    return lost < other ? 1 : lost > other ? -1 : strcmp(s->op, t->op);
}

/* A call that is faster than its limit, out of a cache, makes up for no other. */
static int sum_ops(Limits *l, const tn_call *c, int n, OpSum *sum)
{
    int nsum = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < nsum && strcmp(sum[k].op, c[i].op))
            k++;
        if (k == MOST_OPS)
            continue;
        nsum += k == nsum;
        OpSum *s = &sum[k];
        /* NaN: no run of it was recorded */
        const double times = c[i].ntimes ? (double)c[i].count : NAN;
        const double lost = c[i].sec - limits_sec(l, &c[i]);
        s->op = c[i].op;
        s->sec += times * c[i].sec;
        s->least += times * c[i].min;
        s->most += times * c[i].max;
        s->limit += (double)c[i].count * limits_sec(l, &c[i]);
        s->lost += times * (lost > 0 ? lost : 0);
        s->count += c[i].count;
    }
    qsort(sum, (size_t)nsum, sizeof *sum, by_lost);
    return nsum;
}

static void print_sum(Bench *b, const OpSum *s)
{
    Result r = {.name = s->op,
                .unit = "s",
                .value = s->sec,
                .limit = s->limit,
                .runs = b->runs,
                .min = s->least,
                .max = s->most,
                .lost = s->lost,
                .count = s->count};
    if (b->json)
        bench_print(b, &r);
    else
        printf("%10.3f %10.3f %10.3f %6.3f %6lld  %s\n", plain_nan(1e3 * s->lost),
               plain_nan(1e3 * s->sec), 1e3 * s->limit, s->sec > 0 ? s->limit / s->sec : 0,
               (long long)s->count, s->op);
}

static double attention_sec(Limits *l, const tn_call *c, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += strcmp(c[i].limit, "attention") ? 0 : (double)c[i].count * limits_sec(l, &c[i]);
    return sum;
}

static void print_step(Bench *b, Limits *l, double *sec, const tn_call *calls, CallWays *ways,
                       int n)
{
    OpSum sum[MOST_OPS] = {{0}};
    int nsum = sum_ops(l, calls, n, sum);
    Result step = bench_median("step", "s", sec, b->runs);
    step.limit = ways_sum(ways, n).least + attention_sec(l, calls, n);
    double alone = step.limit > 0 ? step.value / step.limit : 0, between = step.value;
    for (int i = 0; i < nsum; i++)
        between -= sum[i].sec;
    limits_print(b, l);
    bench_print(b, &step);
    bench_print(b, &(Result){.name = "step / products alone",
                             .unit = "times",
                             .value = alone,
                             .runs = b->runs,
                             .min = step.limit > 0 ? step.min / step.limit : 0,
                             .max = step.limit > 0 ? step.max / step.limit : 0});
    if (!b->json)
        printf("%10s %10s %10s %6s %6s  op\n", "lost ms", "ms/step", "limit ms", "share", "calls");
    for (int i = 0; i < nsum; i++)
        print_sum(b, &sum[i]);
    bench_print(b, &(Result){.name = "between calls, and their noise",
                             .unit = "s",
                             .value = between,
                             .runs = 1,
                             .min = between,
                             .max = between});
    ways_print(b, ways, n);
}

enum { SPELLS = 3 };

#define LONG_SPELL 10 /* seconds of runs that outlast such a spell, and are not repeated */

/* Other work on the machine comes in spells of seconds. Of a product's ways the least of several
 * medians counts (bench_ways.c); so that a spell does not meet the step alone, its runs are
 * repeated when the ways have been measured, and those with the least median count, with what was
 * recorded of them. */
static int measure_spells(Bench *b, BenchStep *s, Limits *l, double *sec, const tn_call **calls,
                          CallWays *ways)
{
    double least = bench_median("", "", sec, b->runs).value, start = bench_now(b);
    double again[MOST_RUNS], waited[MOST_RUNS];
    for (int spell = 1; spell < SPELLS && spell < b->runs; spell++) {
        double runs = least * (double)b->runs, since = bench_now(b) - start;
        int64_t usec = (int64_t)(1e6 * (since > runs ? since : runs));
        const tn_call *seen;
        tn_streams stream;
        int n;
        if (tn_agree(b->ctx, &usec, 1))
            return TN_CODE_FAIL;
        if (1e-6 * (double)usec > LONG_SPELL)
            return 0;
        memcpy(waited, s->waited, sizeof waited);
        int code = record(b, s, again, &stream);
        if (!code)
            code = tn_program_calls(s->x, &seen, &n);
        if (code)
            return code;
        double median = bench_median("", "", again, b->runs).value;
        if (median >= least) {
            memcpy(s->waited, waited, sizeof waited);
            continue;
        }
        least = median;
        l->stream = stream;
        memcpy(sec, again, sizeof *sec * (size_t)b->runs);
        for (int i = 0; i < n; i++)
            ways[i].call = &seen[i];
        *calls = seen;
    }
    return 0;
}

int bench_step(Bench *b)
{
    BenchStep s = {0};
    Limits l = {0};
    double sec[MOST_RUNS];
    const tn_call *calls;
    CallWays *ways = NULL;
    int n = 0, code = open_step(b, &s);
    if (!code)
        code = measure_peak(b, &s);
    if (!code)
        code = measure_calls(b, &s, &l, sec, &calls, &n);
    if (!code)
        code = ways_measure(b, s.x, calls, n, &ways);
    if (!code)
        code = measure_spells(b, &s, &l, sec, &calls, ways);
    batch_drop(&s.batch);
    if (!code && rank_first(b->ctx)) {
        print_step(b, &l, sec, calls, ways, n);
        print_waits(b, &s);
    }
    free(ways);
    return code;
}

int bench_time(Bench *b)
{
    BenchStep s = {0};
    double sec[MOST_RUNS];
    int code = open_step(b, &s);
    if (!code)
        code = run_once(b->ctx, &s, 1);
    if (!code &&
        tn_backend_is_gpu(b->o.backend)) /* this one is recorded, those that follow are that */
        code = run_once(b->ctx, &s, 2);
    for (int64_t i = 0; i < b->runs && !code; i++) {
        double start = bench_now(b);
        code = run_once(b->ctx, &s, i + 2);
        sec[i] = bench_now(b) - start;
    }
    batch_drop(&s.batch);
    if (!code) {
        Result r = bench_median("step", "s", sec, b->runs);
        print_resident(b, &s);
        bench_print(b, &r);
    }
    return code;
}
