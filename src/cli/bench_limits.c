/* bench limits: the least time that this machine could take for a call.
 *
 * Products and attention are limited by their floating-point operations (of attention 4 forward and
 * 10 backward for each head, head size and pair that is not masked) at the best rate of any product
 * that ran alone; everything else by the bytes that it reads and writes, as the op's cost rule
 * says, at the bandwidth of a plain stream past the caches that reads and writes as the call does:
 * what stays in a cache may be faster than that. Beside the host the device's own kernels give the
 * limits. */
#include "bench.h"

#include <string.h>

static double *rate_of(Limits *l, const char *dtype)
{
    return !strcmp(dtype, "bf16") ? &l->bf16 : &l->f32;
}

static int measure_product(Bench *b, tn_program *x, Limits *l, const tn_product *p, double *sec)
{
    int code = tn_program_product(x, p, bench_cpu(b), sec);
    double rate = 2.0 * (double)p->m * (double)p->n * (double)p->k / *sec;
    double *best = rate_of(l, p->dtype);
    *best = !code && rate > *best ? rate : *best;
    return code;
}

/* Products that libraries are good at. */
static int measure_rate(Bench *b, tn_program *x, Limits *l, const char *dtype)
{
    static const int64_t size[][3] = {{1024, 1024, 1024}, {2048, 2048, 2048}, {2048, 768, 3072}};
    int code = 0, times = tn_backend_is_gpu(b->o.backend) ? 4 : 1; /* which larger ones fill */
    for (int i = 0; i < LEN(size) && !code; i++) {
        tn_product p = {1,    times * size[i][0], times * size[i][1], times * size[i][2], 1, dtype,
                        dtype};
        double sec;
        code = measure_product(b, x, l, &p, &sec);
    }
    return code;
}

double limits_stream(const Limits *l, const tn_call *c)
{
    struct {
        const char *name;
        double rate;
    } kind[] = {{"read", l->stream.read},
                {"copy", l->stream.copy},
                {"add", l->stream.add},
                {"update", l->stream.update}};
    for (int i = 0; i < LEN(kind); i++)
        if (!strcmp(c->limit, kind[i].name))
            return kind[i].rate;
    return 0;
}

int limits_measure(Bench *b, tn_program *x, Limits *l, const tn_call *call, int n)
{
    int code = 0;
    for (int i = 0; i < n && !code; i++)
        if (!limits_stream(l, &call[i]) && !*rate_of(l, call[i].dtype))
            code = measure_rate(b, x, l, !strcmp(call[i].dtype, "bf16") ? "bf16" : "f32");
    return code;
}

double limits_sec(Limits *l, const tn_call *c)
{
    double stream = limits_stream(l, c);
    return stream > 0 ? c->nbytes / stream : c->nflop / *rate_of(l, c->dtype);
}

void limits_print(Bench *b, const Limits *l)
{
    Result r[] = {
        {.name = "limit: streams, read", .unit = "GB/s", .value = 1e-9 * l->stream.read},
        {.name = "limit: streams, copy", .unit = "GB/s", .value = 1e-9 * l->stream.copy},
        {.name = "limit: streams, add", .unit = "GB/s", .value = 1e-9 * l->stream.add},
        {.name = "limit: streams, update", .unit = "GB/s", .value = 1e-9 * l->stream.update},
        {.name = "limit: products f32", .unit = "GF/s", .value = 1e-9 * l->f32},
        {.name = "limit: products bf16", .unit = "GF/s", .value = 1e-9 * l->bf16},
    };
    for (int i = 0; i < LEN(r); i++) {
        r[i].min = r[i].max = r[i].value;
        r[i].runs = 1;
        if (r[i].value > 0)
            bench_print(b, &r[i]);
    }
}
