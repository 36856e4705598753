/* shard: solves a sharding problem, that of a file, or of a model on a mesh, which is written. A
 * signal ends the process at once, but while a file is written it does not. */
#include "cli.h"

#include "../train/train.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RULES = 256 };

typedef struct ShardCommand {
    const char *path, *output;
    int64_t effort;
    int json;
    Common c; /* of a model: how its step is made */
    bool model;
    tn_sharding_result result;
    double sec; /* CPU seconds after reading */
} ShardCommand;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- progress, on a terminal ---- */

typedef struct ShardProgress {
    bool shown, open; /* shown: standard error is a terminal */
    double begin;
} ShardProgress;

static void show(void *arg, double cost, double bound)
{
    ShardProgress *p = arg;
    if (!p->shown)
        return;
    char found[40] = "";
    if (isfinite(cost))
        snprintf(found, sizeof found, "cost %.10g, ", cost);
    line_show(stderr, "%.1f s: %sbound %.10g", cpu_seconds() - p->begin, found, bound);
    p->open = true;
}

static void show_end(const ShardProgress *p)
{
    if (p->open)
        line_clear(stderr);
}

/* ---- the command ---- */

/* Makes the step of a model, up to the pass that has the problem, which writes it. */
static int write_model(tn_context *ctx, const ShardCommand *x)
{
    static const char passes[] =
        "grad,precision,accumulate,optimizer,canonicalize,cse,dce,align,spmd";
    tn_options o = x->c.o;
    const char *rule[MOST_RULES + 1];
    tn_model *model = NULL;
    tn_graph *g = NULL;
    int count = 0;
    for (int i = 0; i < o.nshardings && i < MOST_RULES; i++)
        rule[count++] = o.shardings[i];
    rule[count++] = "auto";
    o.shardings = rule;
    o.nshardings = count;
    o.shard_problem = x->output;
    int code = tn_model_open(ctx, x->path, &model);
    if (!code)
        code = tn_model_graph(model, x->c.batch, x->c.seq, &o, &g);
    if (!code)
        code = tn_graph_passes(g, passes, &o, NULL, NULL);
    tn_graph_free(g);
    tn_model_free(model);
    return code;
}

static int work(tn_context *ctx, ShardCommand *x, tn_sharding **s)
{
    int code = x->model ? write_model(ctx, x) : 0;
    if (!code)
        code = tn_sharding_read(ctx, x->model ? x->output : x->path, s);
    if (code)
        return code;
    ShardProgress p = {isatty(STDERR_FILENO), false, cpu_seconds()};
    code = tn_sharding_solve(*s, x->effort, show, &p, &x->result);
    x->sec = cpu_seconds() - p.begin;
    show_end(&p);
    return code;
}

/* A write that waits for a reader may be interrupted. */
static int write_output(tn_context *ctx, const ShardCommand *x, const tn_sharding *s)
{
    struct stat st;
    if (!strcmp(x->output, "-") || (!stat(x->output, &st) && !S_ISREG(st.st_mode)))
        interrupt_as(INTERRUPT_KILLS);
    int code = tn_sharding_write(s, x->output);
    return code ? report_last(code, ctx) : 0;
}

/* How much of the cost may be too much: (cost - bound) / |cost|. */
static double gap_of(const tn_sharding_result *r)
{
    double more = r->cost - r->bound;
    if (!r->feasible)
        return NAN;
    return more > 0 ? more / fmax(fabs(r->cost), 1e-300) : 0;
}

static void print_number(FILE *f, const char *name, double x, int json)
{
    if (isfinite(x))
        fprintf(f, json ? "  \"%s\": %.17g,\n" : "%s %.15g ", name, x);
    else
        fprintf(f, json ? "  \"%s\": null,\n" : "%s - ", name);
}

static void print_result(const ShardCommand *x)
{
    const tn_sharding_result *r = &x->result;
    FILE *f = x->output && !strcmp(x->output, "-") ? stderr : stdout;
    const char *feasible = r->feasible ? "yes" : "no";
    if (x->json)
        fprintf(f, "{\n");
    print_number(f, "cost", r->feasible ? r->cost : NAN, x->json);
    print_number(f, "bound", r->bound, x->json);
    print_number(f, "gap", gap_of(r), x->json);
    if (x->json && x->model)
        print_number(f, "objective_sec", r->feasible ? 1e-9 * r->cost : NAN, true);
    if (x->json)
        fprintf(
            f,
            "  \"sec\": %.4f,\n  \"feasible\": %s,\n  \"proved\": %s,\n  \"peak_usage\": %lld,\n"
            "  \"least_usage\": %lld,\n  \"steps\": %lld\n}\n",
            x->sec, r->feasible ? "true" : "false", r->proved ? "true" : "false",
            (long long)r->peak, (long long)r->least, (long long)r->steps);
    else
        fprintf(f, "sec %.4f feasible %s\n", x->sec, feasible);
    if (x->model && !x->json && r->feasible)
        fprintf(
            f,
            "costs are nanoseconds of a step, sec is CPU seconds of the search: %.6g ms a step\n",
            1e-6 * r->cost);
}

static int finish(tn_context *ctx, const ShardCommand *x, const tn_sharding *s, int code)
{
    if (!code && x->output && !x->model)
        code = write_output(ctx, x, s);
    else if (code == TN_CODE_FIT)
        report(code, "%s: %s%s", strcmp(x->path, "-") ? x->path : "standard input", tn_error(ctx),
               x->output ? "\n  --output is not written" : "");
    else if (code)
        report_last(code, ctx);
    if (!code || code == TN_CODE_FIT)
        print_result(x);
    return code;
}

/* Whether a path names a problem. A model's own file ends in .json too: its mesh and batch say so.
 */
static bool is_problem(const char *path, const Common *x)
{
    struct stat st;
    size_t n = strlen(path);
    if (x->o.mesh && x->batch && strcmp(path, "-") != 0)
        return false;
    return !strcmp(path, "-") || (n > 5 && !strcmp(path + n - 5, ".json")) ||
           (!stat(path, &st) && !S_ISDIR(st.st_mode));
}

/* A file takes no options of models. */
static int check(const Command *c, const Option *table, const ShardCommand *x)
{
    if (!x->model)
        return options_refuse(c, table,
                              "batch-size seq-len mesh dtype param-dtype machine optimizer shard",
                              "is for a model, not for a problem");
    const char *missing = !x->c.batch    ? "batch-size"
                          : !x->c.seq    ? "seq-len"
                          : !x->c.o.mesh ? "mesh"
                          : !x->output   ? "output"
                                         : NULL;
    if (missing)
        return report(TN_CODE_USAGE,
                      "%s: --%s is missing, for the problem of a model, as \"%s\" is no file",
                      c->name, missing, x->path);
    if (!strcmp(x->c.o.mesh, "none") || !strcmp(x->c.o.mesh, "auto"))
        return report(TN_CODE_USAGE,
                      "%s: --mesh: expected AXIS=N,..., the mesh of the problem, found %s", c->name,
                      x->c.o.mesh);
    struct stat st;
    if (strcmp(x->output, "-") != 0 && !stat(x->output, &st) && !S_ISREG(st.st_mode))
        return report(TN_CODE_USAGE,
                      "%s: --output: expected a file for the problem, found %s, which is none",
                      c->name, x->output);
    if (!strcmp(x->output, "-"))
        return report(TN_CODE_USAGE, "%s: --output: expected a file for the problem, found \"-\"",
                      c->name);
    return -1;
}

int command_shard(int argc, char **argv)
{
    ShardCommand x = {.c = {.o = tn_options_default()}};
    const Command *c = command_find("shard");
    const OptionSlot slots[] = {{"effort", &x.effort},     {"output", &x.output},
                                {"json", &x.json},         {"batch-size", &x.c.batch},
                                {"seq-len", &x.c.seq},     {"mesh", &x.c.o.mesh},
                                {"shard", &x.c.shardings}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "shard", &x.c.o, slots);
    Texts args;
    int code = options_parse(c, argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    x.path = args.text[0];
    x.model = !is_problem(x.path, &x.c);
    code = check(c, table, &x);
    if (code >= 0)
        return code;
    common_apply(&x.c);
    tn_context *ctx = context_new();
    tn_sharding *s = NULL;
    interrupt_as(INTERRUPT_EXITS);
    code = work(ctx, &x, &s);
    interrupt_as(INTERRUPT_WAITS);
    code = finish(ctx, &x, s, code);
    tn_context_free(ctx);
    return code;
}
