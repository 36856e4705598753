/* bench: what the measurements of `tenon bench` share. */
#ifndef TENON_BENCH_H
#define TENON_BENCH_H

#include "cli.h"

enum { MOST_RUNS = 99 };

/* The command's options; a rank has its own copy. */
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
    const struct CallWays *ways; /* NULL: not measured; JSON only */
} Result;

/* One line of text or, with --json, one object; of the first rank alone. */
void bench_print(Bench *b, const Result *r);
Result bench_median(const char *name, const char *unit, double *x, int64_t n); /* sorts x */
bool bench_cpu(const Bench *b);   /* whether CPU seconds are counted */
double bench_now(const Bench *b); /* seconds of the clock that was asked for */

/* ---- bench_ways.c ---- */

/* A call's ways, each timed alone. */
typedef struct CallWays {
    const tn_call *call;
    int count;          /* 0: not measured, as it has no other */
    tn_way taken, best; /* the plan's, and the fastest */
    double least; /* seconds of the fastest of all, a product's in the library's own layouts too */
    double lost;  /* seconds of a step, by the plan's not being the fastest */
} CallWays;

/* Seconds of a step's products: in it, alone by the ways taken, by the fastest ways, and by what is
 * fastest of these and the library's own layouts, into which nothing is brought then. */
typedef struct WaySums {
    double step, taken, best, least;
} WaySums;

/* One for each call; freed by the caller, also after an error. */
int ways_measure(Bench *b, tn_program *x, const tn_call *calls, int n, CallWays **ways);
WaySums ways_sum(const CallWays *ways, int n);
/* Prints the calls that lose most, and products against their fastest ways. Sorts them. */
void ways_print(Bench *b, CallWays *ways, int n);

/* ---- bench_limits.c ---- */

/* The most that this machine does. */
typedef struct Limits {
    tn_streams stream; /* bytes per second */
    double f32, bf16;  /* products: operations per second; 0: not needed */
} Limits;

/* Measures the rates of products that the calls need; those of streams are there. */
int limits_measure(Bench *b, tn_program *x, Limits *l, const tn_call *call, int n);
/* The rate of the stream that bounds a call; 0: none does. */
double limits_stream(const Limits *l, const tn_call *c);
/* The least seconds of a call. */
double limits_sec(Limits *l, const tn_call *c);
void limits_print(Bench *b, const Limits *l);

/* ---- bench_step.c ---- */

int bench_step(Bench *b);
int bench_time(Bench *b);
int bench_ops(Bench *b);

#endif
