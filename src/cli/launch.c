/* The ranks that run a command: processes that a launcher has started, or threads of this one.
 *
 * Under a launcher a process joins the others before it reads its command line; of what all of them
 * then print alike only the first rank's is seen. What commands do on each rank they write as a
 * function of a context and of what was parsed, which is not changed: threads share it. */
#define _GNU_SOURCE /* memfd_create, sched_getaffinity */
#include "cli.h"

#include "../train/train.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HOST = 64, HELD = 4000 };
enum { SAYING_SEC = 2 }; /* within which the first process has begun, and said why it ends */

bool rank_first(const tn_context *ctx)
{
    return tn_rank(ctx) == 0;
}

/* ---- output that is held back ---- */

static void flush(void)
{
    fflush(stdout);
    fflush(stderr);
}

void launch_hold(Launch *l)
{
    if (rank_first(l->ctx))
        return;
    flush();
    l->text = memfd_create("output", 0);
    for (int i = 0; i < LEN(l->held) && l->text >= 0; i++) {
        l->held[i] = dup(STDOUT_FILENO + i);
        if (l->held[i] >= 0)
            dup2(l->text, STDOUT_FILENO + i);
    }
}

/* Lets output go where it went, and reads what was held back. */
static void release(Launch *l, char text[HELD])
{
    *text = 0;
    if (l->text < 0)
        return;
    flush();
    for (int i = 0; i < LEN(l->held); i++)
        if (l->held[i] >= 0) {
            dup2(l->held[i], STDOUT_FILENO + i);
            close(l->held[i]);
        }
    ssize_t n = pread(l->text, text, HELD - 1, 0);
    text[n > 0 ? n : 0] = 0;
    close(l->text);
    l->text = -1;
}

/* ---- joining ---- */

/* --comm-timeout, which joining needs before the command line is parsed, where what is wrong with
 * it will be said. */
static double find_timeout(int argc, char **argv)
{
    static const char name[] = "--comm-timeout";
    const size_t n = sizeof name - 1;
    double sec = option_number(name + 2);
    for (int i = 1; i < argc; i++) {
        const char *value = strncmp(argv[i], name, n)     ? NULL
                            : argv[i][n] == '='           ? argv[i] + n + 1
                            : !argv[i][n] && i + 1 < argc ? argv[i + 1]
                                                          : NULL;
        double x = value ? strtod(value, NULL) : -1;
        sec = x >= 0 ? x : sec;
    }
    return sec;
}

/* Usage is wrong in all processes of a host alike: the first of them says it. The others wait
 * meanwhile, as a launcher ends all processes when one has failed. */
static int fail_join(const Launch *l, int code)
{
    if (code != TN_CODE_USAGE || tn_launched_first())
        return report_last(code, l->ctx);
    sleep(SAYING_SEC);
    return code;
}

int launch_begin(Launch *l, const Command *c, int argc, char **argv)
{
    *l = (Launch){.c = c, .ctx = context_new(), .held = {-1, -1}, .text = -1};
    int code = tn_launched() > 1 ? tn_join(l->ctx, find_timeout(argc, argv)) : 0;
    if (code)
        return fail_join(l, code);
    code = tn_ranks(l->ctx) > 1 ? alike_command(l->ctx, c) : 0;
    if (code)
        return rank_first(l->ctx) ? report_last(code, l->ctx) : code;
    launch_hold(l);
    return -1;
}

int launch_agree(Launch *l, int code)
{
    static const char prefix[] = "tenon: ";
    char text[HELD];
    release(l, text);
    const char *message =
        strncmp(text, prefix, sizeof prefix - 1) ? text : text + sizeof prefix - 1;
    if (code > 0 && *text)
        tn_context_fail(l->ctx, code, "%.*s", (int)strlen(message) - 1, message);
    int agreed = tn_agree_code(l->ctx, code > 0 ? code : 0);
    if (agreed && code <= 0 && rank_first(l->ctx))
        report_last(agreed, l->ctx);
    return agreed ? agreed : code;
}

int launch_parsed(Launch *l, int code, const Option *table, const Texts *args)
{
    code = launch_agree(l, code);
    if (code > 0 || tn_ranks(l->ctx) == 1)
        return code;
    int other = alike_options(l->ctx, l->c, table, args, !code);
    if (other && rank_first(l->ctx))
        report_last(other, l->ctx);
    return other ? other : code;
}

int launch_memory(Launch *l, tn_options *o)
{
    if (o->memory != MEMORY_AUTO)
        return -1;
    int code = launch_agree(l, memory_find(l->ctx, o, launch_ranks()));
    int64_t least = -o->memory;
    if (code < 0 && tn_agree(l->ctx, &least, 1))
        code = report_last(TN_CODE_FAIL, l->ctx);
    if (code < 0 && rank_first(l->ctx) && o->memory != -least)
        fprintf(stderr, "tenon: note: --memory auto: another rank has the least: %lld bytes\n",
                (long long)-least);
    o->memory = -least;
    return code;
}

void launch_drop(Launch *l)
{
    char text[HELD];
    release(l, text);
    tn_context_free(l->ctx);
    l->ctx = NULL;
}

/* ---- what each rank has ---- */

static void warn_of(void *rank, const char *message)
{
    fprintf(stderr, "rank %d: tenon: warning: %s\n", (int)(intptr_t)rank, message);
}

tn_options rank_options(const tn_context *ctx, const Common *x)
{
    tn_options o = x->o;
    int rank = tn_rank(ctx);
    o.rank = rank;
    if (rank) {
        o.warn = x->log_ranks ? warn_of : NULL;
        o.warn_arg = (void *)(intptr_t)rank;
    }
    return o;
}

int rank_machine(tn_context *ctx, tn_options *o)
{
    const char *set = getenv("TENON_MACHINE");
    bool own = tn_backend_is_gpu(o->backend) && o->mesh;
    if (!o->machine && own && !(set && *set))
        o->machine = "none"; /* what ranks share is what was tuned on rank 0's processor */
    int code = tn_machine_share(ctx, o->machine, &o->machine);
    return tn_agree_code(ctx, code ? code : tn_machine_here(ctx, o->backend, o->machine));
}

int rank_write(tn_context *ctx, tn_plan *p, tn_program *x, const Batch *all)
{
    Batch own;
    if (tn_ranks(ctx) == 1)
        return batch_write(ctx, x, all);
    int code = batch_make_part(ctx, p, all->seq, &own);
    if (code)
        return code;
    code = batch_pick(all, p, &own);
    if (!code)
        code = batch_write(ctx, x, &own);
    batch_drop(&own);
    return code;
}

int rank_ran(tn_context *ctx, int code)
{
    if (code && tn_ranks(ctx) > 1)
        tn_ranks_end(ctx, code);
    return code;
}

/* The place of a rank: its host, and the cores that it may use there. */
typedef struct Where {
    char host[HOST];
    cpu_set_t cores;
} Where;

/* A rank's share of the cores that it may use: of one that three ranks may use a third. */
static double share_cores(const Where *mine, const Where *all, int n)
{
    double share = 0;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        int users = 0;
        for (int i = 0; CPU_ISSET(core, &mine->cores) && i < n; i++)
            users += CPU_ISSET(core, &all[i].cores) && !strcmp(all[i].host, mine->host);
        share += users ? 1.0 / users : 0;
    }
    return share;
}

/* The same number of threads on every rank: bits depend on it. */
static int set_threads(tn_context *ctx, int64_t asked)
{
    int n = tn_ranks(ctx);
    Where mine = {"", {{0}}}, *all = n > 1 && !asked ? malloc((size_t)n * sizeof *all) : NULL;
    if (n == 1 || asked) {
        tn_threads((int)asked);
        return 0;
    }
    gethostname(mine.host, HOST - 1);
    sched_getaffinity(0, sizeof mine.cores, &mine.cores);
    int code = all ? 0 : tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
    if (!(code = tn_agree_code(ctx, code)))
        code = tn_gather(ctx, &mine, sizeof mine, all);
    int64_t least = code ? 0 : -(int64_t)(share_cores(&mine, all, n) + 1e-6);
    free(all);
    if (!code)
        code = tn_agree(ctx, &least, 1);
    tn_threads(least < -1 ? (int)-least : 1);
    return code;
}

/* ---- the mesh ---- */

int launch_ranks(void)
{
    int launched = tn_launched();
    return launched > 1 ? launched : 1;
}

static int find_mesh(const Launch *l, const MeshCommand *m, MeshWords *to)
{
    tn_meshes found;
    int code = meshes_find(l->ctx, m, &found);
    if (code)
        return code;
    const tn_mesh *x = &found.best[0];
    snprintf(to->mesh, sizeof to->mesh, "%s", x->mesh);
    snprintf(to->reshard, sizeof to->reshard, "%s", x->reshard);
    snprintf(to->recompute, sizeof to->recompute, "%s", x->recompute);
    fprintf(stderr,
            "tenon: note: --mesh auto takes %s --reshard %s --recompute %s: %.4g s a step\n",
            x->mesh, x->reshard, x->recompute, x->sec);
    return 0;
}

int launch_mesh(Launch *l, MeshCommand *m, int64_t threads, int code, MeshWords *to)
{
    m->ranks = launch_ranks();
    const int shared = set_threads(l->ctx, threads);
    code = code ? code : shared;
    if (!code && rank_first(l->ctx))
        code = find_mesh(l, m, to);
    code = tn_agree_code(l->ctx, code);
    if (!code && tn_ranks(l->ctx) > 1)
        code = tn_share(l->ctx, to, sizeof *to);
    return !code ? -1 : rank_first(l->ctx) ? report_last(code, l->ctx) : code;
}

/* ---- running ---- */

/* Whether an option reads standard input, which one process of many has. */
static bool reads_input(const Option *o)
{
    const Texts *t = o->into;
    bool found =
        o->kind == OPT_IN && *(const char **)o->into && !strcmp(*(const char **)o->into, "-");
    for (int i = 0; o->kind == OPT_INS && i < t->count; i++)
        found |= !strcmp(t->text[i], "-");
    return found;
}

int launch_check(const Command *c, const Option *table, Common *x)
{
    int code = check_mesh(c, table, NULL, false, x);
    for (const Option *o = table; o->kind && code < 0 && x->o.mesh; o++)
        if (reads_input(o))
            code =
                report(TN_CODE_USAGE, "%s: --%s -: ranks cannot share standard input; name a file",
                       c->name, o->name);
    return code;
}

int64_t launch_mesh_ranks(const char *mesh)
{
    int64_t n = 1;
    for (const char *s = mesh; s; s = strchr(s, ',')) {
        s += *s == ',';
        const char *size = s + strcspn(s, "=,");
        int64_t x = *size == '=' ? strtoll(size + 1, NULL, 10) : 0;
        n = x > 0 && x < INT32_MAX && n * x < INT32_MAX ? n * x : 0;
    }
    return n;
}

/* Fails (2) where a launcher has started other ranks than those of the mesh, none of which is one
 * rank; else -1. */
static int check_launch(const Launch *l, const char *mesh, int64_t n)
{
    int launched = tn_launched();
    if (!launched || n == launched || !n)
        return -1;
    if (!rank_first(l->ctx))
        return TN_CODE_USAGE;
    if (!mesh)
        return report(TN_CODE_USAGE,
                      "%s: one rank runs without --mesh or with --mesh none, but the launcher "
                      "has started %d\n"
                      "  for example: --mesh fsdp=%d",
                      l->c->name, launched, launched);
    char count[40], more[60] = "without a launcher they run as threads";
    if (launched > 1)
        snprintf(more, sizeof more, "for example: --mesh fsdp=%d", launched);
    return report(TN_CODE_USAGE, "%s: --mesh %s is of %s, but the launcher has started %d\n  %s",
                  l->c->name, mesh, tn_count_text(n, "rank", count, sizeof count), launched, more);
}

/* A command's function, on one of the ranks. */
typedef struct RankCommand {
    int (*run)(tn_context *ctx, const void *arg, bool *told);
    const void *arg;
    int64_t threads;
} RankCommand;

static int run_rank(tn_context *ctx, void *arg)
{
    const RankCommand *x = arg;
    bool told = false, first = rank_first(ctx);
    int code = set_threads(ctx, x->threads);
    if (!code)
        code = x->run(ctx, x->arg, &told);
    code = tn_agree_code(ctx, code);
    return code && code != 130 && first && !told ? report_last(code, ctx) : code;
}

/* Says what --reduce fast comes to. */
static void note_reduce(const tn_options *o, bool processes)
{
    bool nccl = o->gpu_comm && !strcmp(o->gpu_comm, "nccl");
    if (o->reduce && !strcmp(o->reduce, "fast") && processes)
        fprintf(
            stderr,
            "tenon: note: --reduce fast: sums over ranks are %s own: bits may differ from run to "
            "run\n",
            nccl ? "NCCL's" : "MPI's");
    else if (o->reduce && !strcmp(o->reduce, "fast"))
        fprintf(stderr, "tenon: note: --reduce fast: ranks that are threads sum in their order all "
                        "the same\n");
}

/* Fails (2) where ranks of a GPU would be threads; else -1. */
static int check_processes(const Launch *l, const Common *x, int64_t n)
{
    if (n < 2 || tn_ranks(l->ctx) > 1 || !tn_backend_is_gpu(x->o.backend))
        return -1;
    return report(TN_CODE_USAGE,
                  "%s: ranks of --backend %s are processes: start them by a launcher, such as "
                  "mpirun -n %lld, with a GPU for each",
                  l->c->name, x->o.backend, (long long)n);
}

/* Runs it on n ranks, those that a launcher has started or threads; `of` says whose ranks: "",
 * " of --mesh X". */
static int run_ranks(Launch *l, int64_t n, const char *of, double timeout, RankCommand *all)
{
    if (n < 2 || tn_ranks(l->ctx) > 1)
        return run_rank(l->ctx, all);
    if (n > TN_RANKS)
        return report(TN_CODE_USAGE,
                      "%s: %lld ranks cannot be started as threads: expected %d at most",
                      l->c->name, (long long)n, TN_RANKS);
    fprintf(stderr,
            "tenon: note: the %lld ranks%s run as threads of this process: no launcher, "
            "such as mpirun -n %lld, has started them\n",
            (long long)n, of, (long long)n);
    return tn_ranks_run((int)n, timeout, run_rank, all);
}

int launch_run(Launch *l, const Common *x, int (*run)(tn_context *ctx, const void *arg, bool *told),
               const void *arg)
{
    const char *mesh = x->o.mesh;
    char of[200];
    int64_t n = launch_mesh_ranks(mesh);
    RankCommand all = {run, arg, x->threads};
    int code = check_launch(l, mesh, n);
    code = code < 0 ? check_processes(l, x, n) : code;
    if (code >= 0)
        return code;
    if (n > 1 && rank_first(l->ctx))
        note_reduce(&x->o, tn_ranks(l->ctx) > 1);
    snprintf(of, sizeof of, " of --mesh %s", mesh ? mesh : "none");
    return run_ranks(l, n, of, x->comm_timeout, &all);
}

int launch_each(Launch *l, const Common *x, int n,
                int (*run)(tn_context *ctx, const void *arg, bool *told), const void *arg)
{
    int launched = tn_launched();
    char count[40];
    RankCommand all = {run, arg, x->threads};
    if (launched && launched != n)
        return !rank_first(l->ctx)
                   ? TN_CODE_USAGE
                   : report(TN_CODE_USAGE,
                            "%s: expected %s, one for each rank that the launcher has started, "
                            "found %d",
                            l->c->name, tn_count_text(launched, "file", count, sizeof count), n);
    int code = check_processes(l, x, n);
    return code < 0 ? run_ranks(l, n, "", x->comm_timeout, &all) : code;
}
