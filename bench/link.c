/* A link's delay and bandwidth against the plan: the step of a small model on ranks that
 * communicate most of the time, measured and estimated. A message from another rank takes SEC and
 * its bytes by RATE on the way in, one after the other; a machine file says of collectives what
 * follows from that. Without a launcher the ranks are threads, and comm injects the link
 * (TENON_COMM_LINK); with one too, but for SEC and RATE 0: then the link is what lies between them,
 * measured first, by small and large messages. MESH none: one rank. The least step counts, as other
 * programs on the machine only add to it. Exits 1 where it is more than OFF (0.25) off. Usage: link
 * SEC RATE MODEL BATCH LENGTH MESH [STEPS [OFF [MACHINE]]]; MACHINE: a file by tenon tune */
#include "../src/api/api.h"
#include "../src/machine/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_STEPS = 100 };

typedef struct Link {
    double sec, rate, off;           /* as asked for */
    double link_sec, link_rate;      /* as measured */
    const char *model, *mesh, *like; /* mesh: NULL, one rank; like: the machine at hand */
    const char *tuned;               /* a machine file instead, or NULL */
    int batch, length, steps;
    char machine[64]; /* its file */
} Link;

/* ---- the machine ---- */

/* All-gather and reduce-scatter of n ranks: each receives a part of each other. */
static void print_group(FILE *f, const Link *x, int n)
{
    double others = n - 1;
    fprintf(f, "gather_%d %.9g\ngather_%d_wait %.9g\n", n, x->link_rate * n / others / 1e9, n,
            1e6 * others * x->link_sec);
    fprintf(f, "reduce_%d %.9g\nreduce_%d_wait %.9g\n", n, x->link_rate * n / others / 2e9, n,
            2e6 * others * x->link_sec);
}

static void print_link(FILE *f, const Link *x)
{
    fprintf(f, "host_ranks 8\n");
    for (int n = 2; n <= 8; n *= 2)
        print_group(f, x, n);
    fprintf(f, "exchange %.9g\nexchange_wait %.9g\n", x->link_rate * 4 / 3 / 1e9,
            3e6 * x->link_sec);
}

/* The lines of a tuned file, with the link's in place of its own. */
static void copy_tuned(FILE *f, const Link *x)
{
    static const char *const own[] = {"host_ranks", "gather_", "reduce_", "exchange"};
    char line[1000];
    FILE *from = fopen(x->tuned, "r");
    CHECK(from);
    while (fgets(line, sizeof line, from)) {
        bool keep = true;
        for (int i = 0; i < LEN(own); i++)
            keep &= strncmp(line, own[i], strlen(own[i])) != 0;
        if (keep)
            fputs(line, f);
        else if (!strncmp(line, own[0], strlen(own[0])))
            print_link(f, x);
    }
    fclose(from);
}

static void write_machine(Link *x)
{
    snprintf(x->machine, sizeof x->machine, "/tmp/tenon-link.XXXXXX");
    int file = mkstemp(x->machine);
    FILE *f = file < 0 ? NULL : fdopen(file, "w");
    CHECK(f);
    if (x->tuned) {
        copy_tuned(f, x);
    } else {
        fprintf(f, "machine 1\nname link_of_bench\nlike %s\n", x->like);
        print_link(f, x);
    }
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
    x->link_sec = link[0];
    x->link_rate = link[1];
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

/* Seconds of a step. */
typedef struct Times {
    double sec[MOST_STEPS + 1], waited[MOST_STEPS + 1];
    double cpu[MOST_STEPS + 1]; /* of the thread that computes */
} Times;

static double thread_sec(void)
{
    struct timespec t;
    CHECK(!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All ranks begin together; seconds are those of the slowest. */
static int time_step(tn_context *ctx, tn_program *x, Times *t, int i)
{
    int64_t usec[3] = {0}, nbytes;
    double before, after;
    tn_ranks_count(ctx, &nbytes, &before);
    double start = now_sec(), cpu = thread_sec();
    int code = tn_program_run(x);
    if (code)
        return code;
    usec[0] = (int64_t)(1e6 * (now_sec() - start));
    usec[2] = (int64_t)(1e6 * (thread_sec() - cpu));
    tn_ranks_count(ctx, &nbytes, &after);
    usec[1] = (int64_t)(1e6 * (after - before));
    code = tn_agree(ctx, usec, 3);
    t->sec[i] = 1e-6 * (double)usec[0];
    t->waited[i] = 1e-6 * (double)usec[1];
    t->cpu[i] = 1e-6 * (double)usec[2];
    return code;
}

static int print_result(const Link *x, const Estimate *e, Times *t, double received)
{
    double median = median_sec(t->sec + 1, x->steps), wait = median_sec(t->waited + 1, x->steps);
    double cpu = median_sec(t->cpu + 1, x->steps), computing = e->step - e->exposed;
    double step = t->sec[1], ratio = step / e->step; /* they are in order now */
    bool good = fabs(ratio - 1) <= x->off;
    const char *slash = strrchr(x->model, '/');
    printf("%-14s %3d x %-4d %-8s %6g ms %6g MB/s (measured %.3g ms %.4g MB/s) %8.2f MiB  step "
           "%8.4f s (median %8.4f)  "
           "simulated %8.4f  ratio %.3f%s  computing %.4f s of a core, simulated %.4f, ratio %.3f  "
           "waits %.4f s, exposed by simulation %.4f\n",
           slash ? slash + 1 : x->model, x->batch, x->length, x->mesh ? x->mesh : "one rank",
           1e3 * x->sec, x->rate / 1e6, 1e3 * x->link_sec, x->link_rate / 1e6, received / 0x1p20,
           step, median, e->step, ratio, good ? "" : " (TOO FAR)", cpu, computing, cpu / computing,
           wait, e->exposed);
    return good ? 0 : TN_CODE_FAIL;
}

/* A first step does not count. */
static int measure(tn_context *ctx, const Link *x, const tn_model *m, tn_program *p,
                   const Estimate *e)
{
    Times t;
    double unused;
    int64_t before = 0, after;
    int code = 0;
    for (int i = 0; i <= x->steps && !code; i++) {
        if (i == 1)
            tn_ranks_count(ctx, &before, &unused);
        code = write_inputs(ctx, m, p, i + 1);
        code = code ? code : time_step(ctx, p, &t, i);
    }
    tn_ranks_count(ctx, &after, &unused);
    if (code || tn_rank(ctx))
        return code;
    return print_result(x, e, &t, (double)(after - before) / x->steps);
}

static int run_rank(tn_context *ctx, void *arg)
{
    Link link = *(const Link *)arg, *x = &link;
    tn_options o = tn_options_default();
    tn_model *m;
    tn_graph *g;
    tn_plan *p;
    tn_program *run;
    if (x->mesh) {
        measure_link(ctx, x);
        write_machine(x);
    }
    o.mesh = x->mesh;
    o.rank = tn_rank(ctx);
    o.machine = x->mesh ? x->machine : x->tuned ? x->tuned : x->like;
    tn_threads(1);
    int code = tn_model_open(ctx, x->model, &m);
    code = code ? code : tn_model_graph(m, x->batch, x->length, &o, &g);
    code = code ? code : tn_graph_passes(g, "default", &o, NULL, NULL);
    code = code ? code : tn_plan_new(g, &o, 1, &p);
    code = code ? code : tn_program_new(p, &o, &run);
    code = code ? code : tn_program_load(run, m, &o);
    if (x->mesh)
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
    int n = x->mesh ? (int)mesh_nranks(mesh_parse(&ctx, a, x->mesh)) : 1;
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
        fprintf(stderr, "usage: link SEC RATE MODEL BATCH LENGTH MESH [STEPS [OFF [MACHINE]]]\n");
        return 2;
    }
    Link x = {.sec = atof(argv[1]), .rate = atof(argv[2]), .model = argv[3], .mesh = argv[6]};
    x.batch = atoi(argv[4]);
    x.length = atoi(argv[5]);
    x.steps = argc > 7 ? MIN(MAX(atoi(argv[7]), 1), MOST_STEPS) : 5;
    x.off = argc > 8 ? atof(argv[8]) : 0.25;
    x.tuned = argc > 9 ? argv[9] : NULL;
    if (!strcmp(x.mesh, "none"))
        x.mesh = NULL;
    int n = find_ranks(&x), code;
    char text[64];
    snprintf(text, sizeof text, "%.9g,%.9g", x.sec, x.rate);
    if (x.rate > 0)
        setenv("TENON_COMM_LINK", text, 1);
    code = tn_launched() ? run_launched(&x) : tn_ranks_run(n, 60, run_rank, &x);
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
