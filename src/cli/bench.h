/* bench: what the measurements of `tenon bench` share. */
#ifndef TENON_BENCH_H
#define TENON_BENCH_H

#include "cli.h"

enum { MOST_RUNS = 99 };

/* What was asked for; a rank has its own copy. */
typedef struct Bench {
    Common c;
    const char *what, *model, *file, *clock; /* file NULL: the model's step */
    int64_t runs;
    int json;
    Option table[MOST_OPTIONS];
    Texts args;
    /* of a rank */
    tn_context *ctx;
    tn_options o;
    int printed;
} Bench;

typedef struct Result {
    const char *name, *unit;
    double value, limit; /* limit 0: none */
    int64_t runs;
    double min, max;
    const char *rate_unit; /* NULL: no rate; JSON only */
    double rate, lost;
    int64_t count;
} Result;

/* One line of text or, with --json, one object; of the first rank alone. */
void bench_print(Bench *b, const Result *r);
Result bench_median(const char *name, const char *unit, double *x, int64_t n); /* sorts x */
bool bench_cpu(const Bench *b);   /* whether CPU seconds are counted */
double bench_now(const Bench *b); /* seconds of the clock that was asked for */

/* ---- bench_step.c ---- */

int bench_step(Bench *b);
int bench_ops(Bench *b);

#endif
