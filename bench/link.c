/* A link's delay and bandwidth against the plan: the step of a small model on ranks that
 * communicate most of the time, measured and estimated. A message from another rank takes SEC and
 * its bytes by RATE on the way in, one after the other; a machine file says of collectives what
 * follows from that. Without a launcher the ranks are threads, and comm injects the link
 * (TENON_COMM_LINK); with one the link is what lies between them, whose SEC and RATE are measured
 * first, by small and large messages. Exits 1 where the step is more than 25 % off. Usage: link SEC
 * RATE MODEL BATCH LENGTH MESH [STEPS] */
#include "../src/api/api.h"
#include "../src/machine/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_STEPS = 100 };
static const double OFF = 0.25;

typedef struct Link {
    double sec, rate;
    const char *model, *mesh, *like; /* like: the machine at hand */
    int batch, length, steps;
    char machine[64]; /* its file */
} Link;

/* ---- the machine ---- */

/* All-gather and reduce-scatter of n ranks: each receives a part of each other. */
static void print_group(FILE *f, const Link *x, int n)
{
    double others = n - 1;
    fprintf(f, "gather_%d %.9g\ngather_%d_wait %.9g\n", n, x->rate * n / others / 1e9, n,
            1e6 * others * x->sec);
    fprintf(f, "reduce_%d %.9g\nreduce_%d_wait %.9g\n", n, x->rate * n / others / 2e9, n,
            2e6 * others * x->sec);
}

static void write_machine(Link *x)
{
    snprintf(x->machine, sizeof x->machine, "/tmp/tenon-link.XXXXXX");
    int file = mkstemp(x->machine);
    FILE *f = file < 0 ? NULL : fdopen(file, "w");
    CHECK(f);
    fprintf(f, "machine 1\nname link_of_bench\nlike %s\nhost_ranks 8\n", x->like);
    for (int n = 2; n <= 8; n *= 2)
        print_group(f, x, n);
    fprintf(f, "exchange %.9g\nexchange_wait %.9g\n", x->rate * 4 / 3 / 1e9, 3e6 * x->sec);
    CHECK(!fclose(f));
}

/* ---- a link that is there ---- */

/* Median seconds of a gather from all ranks. */
static double gather_sec(tn_context *ctx, size_t nbytes, int times)
{
    double sec[MOST_STEPS];
    char *mine = calloc(1, nbytes), *all = calloc((size_t)tn_ranks(ctx), nbytes);
    CHECK(mine && all && times <= MOST_STEPS);
    for (int i = 0; i < times; i++) {
        double start = now_sec();
        CHECK(!tn_gather(ctx, mine, nbytes, all));
        sec[i] = now_sec() - start;
    }
    free(mine);
    free(all);
    return median_sec(sec, times);
}

static void measure_link(tn_context *ctx, Link *x)
{
    enum { SMALL = 8, LARGE = 1 << 16 };
    double others = tn_ranks(ctx) - 1, wait = gather_sec(ctx, SMALL, 51);
    double more = gather_sec(ctx, LARGE, 51) - wait;
    double link[] = {wait / others, others * (LARGE - SMALL) / more};
    CHECK(more > 0 && !tn_share(ctx, link, sizeof link));
    x->sec = link[0];
    x->rate = link[1];
}

/* ---- a rank ---- */

static void put_tokens(tn_program *x, const char *name, int64_t vocab)
{
    void *data;
    int64_t nbytes;
    uint64_t z = 88172645463325252u;
    CHECK(!tn_program_data(x, name, &data, &nbytes));
    for (int64_t i = 0; i < nbytes / 8; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        ((int64_t *)data)[i] = (int64_t)((z >> 33) % (uint64_t)vocab);
    }
}

/* The memory of the batch may have been used for something else since the last step. */
static int write_inputs(tn_context *ctx, const tn_model *m, tn_program *x, int64_t number)
{
    const float rate = 1e-4F;
    int64_t vocab, context;
    tn_model_shape(m, &vocab, &context);
    put_tokens(x, "input_ids", vocab);
    put_tokens(x, "labels", vocab);
    int code = tn_program_write(x, "lr", &rate, sizeof rate);
    code = code ? code : tn_program_write(x, "step", &number, sizeof number);
    return tn_agree_code(ctx, code);
}

/* All ranks begin together; *sec and *waited are those of the slowest. */
static int time_step(tn_context *ctx, tn_program *x, double *sec, double *waited)
{
    int64_t usec[2] = {0}, nbytes;
    double before, after;
    tn_ranks_count(ctx, &nbytes, &before);
    double start = now_sec();
    int code = tn_program_run(x);
    if (code)
        return code;
    usec[0] = (int64_t)(1e6 * (now_sec() - start));
    tn_ranks_count(ctx, &nbytes, &after);
    usec[1] = (int64_t)(1e6 * (after - before));
    code = tn_agree(ctx, usec, 2);
    *sec = 1e-6 * (double)usec[0];
    *waited = 1e-6 * (double)usec[1];
    return code;
}

static int print_result(const Link *x, const Estimate *e, double *sec, double *waited,
                        double received)
{
    double step = median_sec(sec, x->steps), wait = median_sec(waited, x->steps);
    double most = sec[x->steps - 1], ratio = step / e->step;
    bool good = fabs(ratio - 1) <= OFF;
    printf("%s %d x %d on %s, %g ms and %g MB/s, %.2f MiB: step %.4f s (%.4f to %.4f), estimated "
           "%.4f, ratio %.3f%s; waits %.4f s, collectives estimated %.4f, ratio %.3f\n",
           x->model, x->batch, x->length, x->mesh, 1e3 * x->sec, x->rate / 1e6, received / 0x1p20,
           step, sec[0], most, e->step, ratio, good ? "" : " (TOO FAR)", wait,
           e->by_class[CLASS_COLLECTIVE], wait / e->by_class[CLASS_COLLECTIVE]);
    return good ? 0 : TN_CODE_FAIL;
}

/* A first step does not count. */
static int measure(tn_context *ctx, const Link *x, const tn_model *m, tn_program *p,
                   const Estimate *e)
{
    double sec[MOST_STEPS + 1], waited[MOST_STEPS + 1], unused;
    int64_t before = 0, after;
    int code = 0;
    for (int i = 0; i <= x->steps && !code; i++) {
        if (i == 1)
            tn_ranks_count(ctx, &before, &unused);
        code = write_inputs(ctx, m, p, i + 1);
        code = code ? code : time_step(ctx, p, &sec[i], &waited[i]);
    }
    tn_ranks_count(ctx, &after, &unused);
    if (code || tn_rank(ctx))
        return code;
    return print_result(x, e, sec + 1, waited + 1, (double)(after - before) / x->steps);
}

static int run_rank(tn_context *ctx, void *arg)
{
    Link link = *(const Link *)arg, *x = &link;
    tn_options o = tn_options_default();
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *run;
    if (!x->rate)
        measure_link(ctx, x);
    write_machine(x);
    o.mesh = x->mesh;
    o.rank = tn_rank(ctx);
    o.machine = x->machine;
    tn_threads(1);
    int code = tn_model_open(ctx, x->model, &m);
    code = code ? code : tn_model_graph(m, x->batch, x->length, &o, &g);
    code = code ? code : tn_graph_passes(g, "default", &o, NULL, NULL);
    code = code ? code : tn_plan_new(g, &o, 1, &p);
    code = code ? code : tn_program_new(p, &o, &run);
    code = code ? code : tn_program_load(run, m, &o);
    unlink(x->machine);
    if (!code)
        code = measure(ctx, x, m, run, &p->p->est);
    if (code && *tn_error(ctx)) /* else it was said already */
        fprintf(stderr, "rank %d: %s\n", tn_rank(ctx), tn_error(ctx));
    return code;
}

/* ---- all of them ---- */

static int find_ranks(Link *x)
{
    static Ctx ctx;
    Arena *a = arena_new(&ctx);
    CHECK(a);
    x->like = strdup(machine_for(a, device_at(DEVICE_cpu), "none")->name);
    Mesh *m = mesh_parse(&ctx, a, x->mesh);
    int n = (int)mesh_nranks(m);
    arena_free(a);
    return n;
}

static int run_launched(Link *x)
{
    tn_context *ctx = tn_context_new();
    CHECK(ctx);
    int code = tn_join(ctx, 60);
    if (code)
        fprintf(stderr, "%s\n", tn_error(ctx));
    else
        code = run_rank(ctx, x);
    tn_context_free(ctx);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: link SEC RATE MODEL BATCH LENGTH MESH [STEPS]\n");
        return 2;
    }
    Link x = {.sec = atof(argv[1]), .rate = atof(argv[2]), .model = argv[3], .mesh = argv[6]};
    x.batch = atoi(argv[4]);
    x.length = atoi(argv[5]);
    x.steps = argc > 7 ? MIN(MAX(atoi(argv[7]), 1), MOST_STEPS) : 5;
    int n = find_ranks(&x), code;
    if (tn_launched()) {
        x.sec = x.rate = 0;
        code = run_launched(&x);
    } else {
        char text[64];
        snprintf(text, sizeof text, "%.9g,%.9g", x.sec, x.rate);
        setenv("TENON_COMM_LINK", text, 1);
        code = tn_ranks_run(n, 60, run_rank, &x);
    }
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
