/* The ways of a step's calls, each timed alone: which the plan took, which is the fastest, and what
 * the choice costs in a step. As text only what is lost.
 *
 * Other work on the machine comes in spells of seconds, and a spell that meets the library's
 * layouts and not the ways would decide which is faster. So all calls are measured in several
 * rounds, though in no more than --runs says, and of each way the least of its medians counts. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WAYS = 40, ROUNDS = 3 };

#define MOST_SEC 0.1 /* of turns, for each call in each round */
#define LONG_SEC 3   /* a call whose ways took so long in all is not measured again */

/* A call's ways, and what all of them took. */
typedef struct TimedWays {
    tn_way way[MOST_WAYS];
    int n;
    double sec;
} TimedWays;

/* The next round's ways come in the order of the first's. */
static void keep_least(TimedWays *s, const tn_way *way, int n)
{
    for (int i = 0; i < n; i++) {
        if (i >= s->n)
            s->way[s->n++] = way[i];
        else if (way[i].sec > 0 && (s->way[i].sec <= 0 || way[i].sec < s->way[i].sec))
            s->way[i] = way[i];
    }
}

static int measure_call(Bench *b, tn_program *x, const tn_call *call, TimedWays *s)
{
    tn_way way[MOST_WAYS];
    int n;
    double start = bench_now(b);
    int code = tn_program_ways(x, call, MOST_SEC, bench_cpu(b), MOST_WAYS, way, &n);
    if (code)
        return code;
    s->sec += bench_now(b) - start;
    keep_least(s, way, n);
    return 0;
}

static int measure_rounds(Bench *b, tn_program *x, const tn_call *calls, int n, TimedWays *seen)
{
    for (int round = 0; round < ROUNDS && round < b->runs; round++)
        for (int i = 0; i < n; i++) {
            bool enough = round && (!seen[i].n || seen[i].sec > LONG_SEC);
            int code = enough ? 0 : measure_call(b, x, &calls[i], &seen[i]);
            if (code)
                return code;
        }
    return 0;
}

static void sort_out(CallWays *w, const TimedWays *s)
{
    for (int i = 0; i < s->n; i++) {
        const tn_way *x = &s->way[i];
        if (x->sec <= 0)
            continue;
        w->least = w->least > 0 && w->least < x->sec ? w->least : x->sec;
        if (!x->kernel)
            continue;
        w->count++;
        if (x->taken)
            w->taken = *x;
        if (!w->best.kernel || x->sec < w->best.sec)
            w->best = *x;
    }
    if (w->taken.kernel && w->best.sec < w->taken.sec)
        w->lost = (w->taken.sec - w->best.sec) * (double)w->call->count;
}

int ways_measure(Bench *b, tn_program *x, const tn_call *calls, int n, CallWays **ways)
{
    CallWays *list = *ways = calloc((size_t)n + 1, sizeof *list);
    TimedWays *seen = calloc((size_t)n + 1, sizeof *seen);
    int code = list && seen ? measure_rounds(b, x, calls, n, seen)
                            : tn_context_fail(b->ctx, TN_CODE_FAIL, "out of memory");
    for (int i = 0; i < n && !code; i++) {
        list[i].call = &calls[i];
        sort_out(&list[i], &seen[i]);
    }
    free(seen);
    return code;
}

static bool is_product(const CallWays *w)
{
    return w->taken.kernel && !strcmp(w->call->limit, "product");
}

WaySums ways_sum(const CallWays *ways, int n)
{
    WaySums sum = {0};
    for (int i = 0; i < n; i++) {
        double count = (double)ways[i].call->count;
        if (!is_product(&ways[i]))
            continue;
        sum.step += count * (ways[i].call->ntimes ? ways[i].call->sec : NAN);
        sum.taken += count * ways[i].taken.sec;
        sum.best += count * ways[i].best.sec;
        sum.least += count * ways[i].least;
    }
    return sum;
}

static int by_lost(const void *x, const void *y)
{
    const CallWays *v = x, *w = y;
    return v->lost < w->lost   ? 1
           : v->lost > w->lost ? -1
                               : strcmp(v->call->tensors, w->call->tensors);
}

static void print_way(Bench *b, const CallWays *w)
{
    char name[1200];
    const tn_call *c = w->call;
    snprintf(name, sizeof name, "way of %s %s", c->op, c->tensors);
    Result r = {.name = name, .unit = "s", .runs = w->taken.runs, .count = c->count};
    r.value = r.min = r.max = w->taken.sec;
    r.limit = w->best.sec;
    r.lost = w->lost;
    r.ways = w;
    if (b->json)
        bench_print(b, &r);
    else
        printf("%10.3f %6lld %11.1f %11.1f  %s -> %s  %s %.120s\n", 1e3 * w->lost,
               (long long)c->count, 1e6 * w->taken.sec, 1e6 * w->best.sec, w->taken.kernel,
               w->best.kernel, c->op, c->tensors);
}

static void print_sums(Bench *b, const WaySums *sum)
{
    Result r[] = {{.name = "products, in the step", .value = sum->step},
                  {.name = "products alone, by the ways taken", .value = sum->taken},
                  {.name = "products alone, by the fastest ways", .value = sum->best}};
    for (int i = 0; i < LEN(r) && sum->least > 0; i++) {
        r[i].unit = "s";
        r[i].runs = 1;
        r[i].min = r[i].max = r[i].value;
        r[i].limit = sum->least;
        bench_print(b, &r[i]);
    }
}

void ways_print(Bench *b, CallWays *ways, int n)
{
    WaySums sum = ways_sum(ways, n);
    double lost = 0;
    qsort(ways, (size_t)n, sizeof *ways, by_lost);
    for (int i = 0; i < n; i++)
        lost += ways[i].lost;
    print_sums(b, &sum);
    if (!b->json && lost > 0)
        printf("%10s %6s %11s %11s  way taken -> fastest way, both alone\n", "lost ms", "calls",
               "us/call", "fastest us");
    for (int i = 0; i < n; i++)
        if (ways[i].lost > 0 || (b->json && ways[i].taken.kernel))
            print_way(b, &ways[i]);
    Result r = {.name = "lost by the ways taken", .unit = "s", .runs = 1};
    r.value = r.min = r.max = lost;
    bench_print(b, &r);
}
