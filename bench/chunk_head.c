/* A head alone, x W^T and its cross-entropy, forward and backward, whole and in slices: seconds of
 * one run, planned bytes and the highest byte written, and what of it is neither an input nor a
 * gradient. Slices 1 is the whole. Usage: chunk_head ROWS WIDTH CLASSES f32|bf16 f32|same SLICES...
 */
#include "tenon.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Shape {
    long long rows, width, classes;
    const char *dtype, *sums;
} Shape;

static tn_context *ctx;

static void ok(int code)
{
    if (code) {
        fprintf(stderr, "chunk_head: %s\n", tn_error(ctx));
        exit(EXIT_FAILURE);
    }
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char text[] =
    "tenon 1\n"
    "graph head(%%x: %s[%lld, %lld] batch, %%labels: i64[%lld] batch, %%w: %s[%lld, %lld] param "
    "\"w\") {\n"
    "  %%t = t(%%w)  @\"head\" forward\n"
    "  %%logits = mm(%%x, %%t)  @\"head\" forward\n"
    "  %%n = count_labels(%%labels)  @\"loss\" loss\n"
    "  %%loss, %%lse = cross_entropy(%%logits, %%labels, %%n)  @\"loss\" loss\n"
    "  %%one = full(size=[], fill_value=1.0)  @\"loss\" backward\n"
    "  %%dlogits = cross_entropy_backward(%%one, %%logits, %%labels, %%lse, %%n)  @\"loss\" "
    "backward\n"
    "  %%dx = mm(%%dlogits, %%w)  @\"head\" backward\n"
    "  %%dt = t(%%dlogits)  @\"head\" backward\n"
    "  %%dw = mm(%%dt, %%x)  @\"head\" backward\n"
    "  return loss %%loss, %%dx, grad \"w\" %%dw\n"
    "}\n";

static tn_plan *make_plan(const Shape *s, const char *slices)
{
    char graph[2000], chunk[50];
    const char *asked[] = {chunk};
    tn_options o = tn_options_default();
    tn_graph *g;
    tn_plan *p;
    snprintf(graph, sizeof graph, text, s->dtype, s->rows, s->width, s->rows, s->dtype, s->classes,
             s->width);
    snprintf(chunk, sizeof chunk, "head=%s", slices);
    o.chunk = asked;
    o.nchunk = 1;
    o.chunk_accumulate = s->sums;
    ok(tn_graph_parse(ctx, graph, "head", &g));
    ok(tn_graph_passes(g, "settle,dce,chunk,into,fuse", &o, NULL, NULL));
    ok(tn_plan_new(g, &o, 1, &p));
    return p;
}

/* Small values whose sums neither vanish nor overflow. */
static void put_values(tn_program *x, const char *name, const Shape *s, uint64_t z)
{
    void *data;
    int64_t nbytes;
    ok(tn_program_data(x, name, &data, &nbytes));
    for (int64_t i = 0; i < nbytes / (strcmp(s->dtype, "f32") ? 2 : 4); i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        float v = (float)(int64_t)(z >> 40) / (1 << 24) * 0.2F - 0.1F;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (!strcmp(s->dtype, "f32"))
            ((float *)data)[i] = v;
        else
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    }
}

static void put_inputs(tn_program *x, const Shape *s)
{
    void *labels;
    int64_t nbytes;
    put_values(x, "x", s, 1);
    put_values(x, "w", s, 2);
    ok(tn_program_data(x, "labels", &labels, &nbytes));
    for (int64_t i = 0; i < nbytes / 8; i++)
        ((int64_t *)labels)[i] = i * 7919 % s->classes;
}

static void measure(const Shape *s, const char *slices, double *whole)
{
    tn_options o = tn_options_default();
    tn_plan *p = make_plan(s, slices);
    tn_program *x;
    int64_t peak, persistent, reserve, dtype = strcmp(s->dtype, "f32") ? 2 : 4;
    int64_t io = 2 * dtype * (s->rows + s->classes) * s->width + 8 * s->rows;
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    ok(tn_program_new(p, &o, &x));
    tn_program_fill(x, 0xA5);
    put_inputs(x, s);
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    ok(tn_program_run(x));
    wall = now(CLOCK_MONOTONIC) - wall;
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    if (!*whole)
        *whole = cpu;
    printf("head %lldx%lldx%lld %s, sums %s, %s slices: %.2f s, CPU %.2f s, %.3f of the first; "
           "planned %.1f MB, written %.1f MB, beside inputs and gradients %.1f MB, library %.1f "
           "MB\n",
           s->rows, s->width, s->classes, s->dtype, s->sums, slices, wall, cpu, cpu / *whole,
           (double)peak / 1e6, (double)tn_program_high(x, 0xA5) / 1e6, (double)(peak - io) / 1e6,
           (double)reserve / 1e6);
    fflush(stdout);
    tn_program_free(x);
    tn_plan_free(p);
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: chunk_head ROWS WIDTH CLASSES f32|bf16 f32|same SLICES...\n");
        return 2;
    }
    const Shape s = {atoll(argv[1]), atoll(argv[2]), atoll(argv[3]), argv[4], argv[5]};
    double whole = 0;
    ctx = tn_context_new();
    for (int i = 6; i < argc; i++)
        measure(&s, argv[i], &whole);
    tn_context_free(ctx);
    return 0;
}
