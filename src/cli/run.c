/* run: a graph once, on tensors from a file; or the graphs of several ranks together, each on
 * tensors of its own, in whose names "%r" is the rank. */
#include "cli.h"

#include "../train/train.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct RunCommand {
    const char *inputs, *outputs, *profile; /* of ranks: with %r */
    int json;
    bool seeded; /* --seed was given */
    int64_t seed;
    Common c;
    Texts args;              /* the graphs, by rank */
    const char *who;         /* for warnings: "" or "rank 1: " */
    int64_t high, high_host; /* end of what was written */
    double sec, lr, step;
} RunCommand;

/* An input of role seed comes from the file; where it is not there, or --seed was given, from
 * --seed. */
static int read_inputs(tn_context *ctx, tn_program *x, const RunCommand *r)
{
    if (r->seeded && !port_there(x, "seed"))
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "run: --seed: the graph has no input of role seed");
    int code = port_put(ctx, x, "seed", &r->seed, sizeof r->seed);
    if (!code)
        code = tn_program_read_file(x, r->inputs);
    return code || !r->seeded ? code : port_put(ctx, x, "seed", &r->seed, sizeof r->seed);
}

/* One run; with --json over an arena filled with the pattern. */
static int run_over(tn_context *ctx, tn_program *x, RunCommand *r, int pattern)
{
    if (r->json)
        tn_program_fill(x, pattern);
    int code = read_inputs(ctx, x, r);
    if (code)
        return code;
    r->lr = port_number(x, "lr");
    r->step = port_there(x, "step") ? port_number(x, "step") : 1;
    double start = wall_sec();
    code = port_run(ctx, x);
    r->sec = wall_sec() - start;
    int64_t high = code || !r->json ? 0 : tn_program_high(x, pattern);
    int64_t host = code || !r->json ? 0 : tn_program_high_host(x, pattern);
    r->high = high > r->high ? high : r->high;
    r->high_host = host > r->high_host ? host : r->high_host;
    return code;
}

/* ---- what is printed ---- */

enum { OBJECT = 800 };

/* A text of OBJECT bytes that grows. */
typedef struct Object {
    char text[OBJECT];
    size_t len;
} Object;

static void put(Object *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(Object *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(b->text + b->len, OBJECT - b->len, format, args);
    va_end(args);
    b->len = n > 0 && b->len + (size_t)n < OBJECT ? b->len + (size_t)n : OBJECT - 1;
}

static void put_real(Object *b, const char *name, double value)
{
    put(b, isfinite(value) ? "\"%s\": %.9g, " : "\"%s\": null, ", name, value);
}

/* Prints the members of --json on a run, without the braces. */
static void put_run(Object *b, tn_program *x, tn_plan *p, const RunCommand *r)
{
    int64_t peak, persistent, reserve;
    tn_port ids;
    double tokens = tn_program_port(x, "input_ids", &ids) ? NAN : (double)ids.nbytes / 8;
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    put(b, "\"step\": %.0f, ", r->step);
    put_real(b, "loss", port_number(x, "loss"));
    put_real(b, "grad_norm", port_number(x, "metric.grad_norm"));
    put_real(b, "lr", r->lr);
    put_real(b, "tokens", tokens);
    put_real(b, "step_sec", r->sec);
    put_real(b, "tokens_per_sec", tokens / r->sec);
    put(b, "\"planned_peak_bytes\": %lld, \"measured_peak_bytes\": %lld, ", (long long)peak,
        (long long)r->high);
    if (tn_plan_host(p))
        put(b, "\"planned_host_bytes\": %lld, \"measured_host_bytes\": %lld, ",
            (long long)tn_plan_host(p), (long long)r->high_host);
    put(b, "\"rss_peak_bytes\": %lld", (long long)tn_rss_peak());
}

static void print_run(tn_program *x, tn_plan *p, const RunCommand *r)
{
    Object b = {.len = 0};
    put_run(&b, x, p, r);
    printf("{%s}\n", b.text);
}

/* ---- a graph ---- */

/* The first line of a rank's mesh: "mesh fsdp=2: rank 0 of 2". */
static int check_alone(tn_context *ctx, tn_graph *g, const char *path)
{
    const char *text, *count = tn_graph_mesh(g, &text) ? NULL : strstr(text, " of ");
    if (!count || strtoll(count + strlen(" of "), NULL, 10) == 1)
        return 0;
    return tn_context_fail(ctx, TN_CODE_USAGE,
                           "%s: %.*s: it does not run alone: expected the graph of the whole step\n"
                           "  graphs of all ranks run together: tenon run R0.tn R1.tn ...; ranks "
                           "of a model by train, grad, eval and bench with --mesh",
                           path, (int)strcspn(text, "\n"), text);
}

int program_of_graph(tn_context *ctx, const char *path, const tn_options *o, tn_plan **p,
                     tn_program **x)
{
    tn_graph *g;
    int code = tn_graph_read(ctx, path, &g);
    if (!code)
        code = check_alone(ctx, g, path);
    if (!code)
        code = tn_plan_new(g, o, 0, p);
    return code ? code : tn_program_new(*p, o, x);
}

/* Runs a program, over two patterns with --json. */
static int run_program(tn_context *ctx, tn_program *x, RunCommand *r)
{
    int code = r->json ? run_over(ctx, x, r, 0x5a) : 0;
    if (!code && r->profile && !(code = tn_program_trace(x, 1)))
        tn_program_trace_next(x, 1);
    if (!code)
        code = run_over(ctx, x, r, 0xa5);
    const char *fault = code ? NULL : tn_program_fault(x);
    if (fault)
        fprintf(stderr, "tenon: warning: %s%s gave a value that is not finite\n", r->who, fault);
    return code;
}

static int run_graph(tn_context *ctx, const void *arg, bool *told)
{
    RunCommand all = *(const RunCommand *)arg, *r = &all;
    tn_plan *p;
    tn_program *x = NULL;
    (void)told;
    int code = program_of_graph(ctx, r->args.text[0], &r->c.o, &p, &x);
    if (!code)
        code = run_program(ctx, x, r);
    if (!code && r->outputs)
        code = tn_program_write_file(x, r->outputs, "");
    if (!code && r->profile)
        code = tn_program_trace_write(x, r->profile);
    if (!code && r->json)
        print_run(x, p, r);
    else if (!code &&
             port_there(x, "loss")) /* standard output is the file's if it is written there */
        fprintf(r->outputs && !strcmp(r->outputs, "-") ? stderr : stdout, "loss %.9g\n",
                plain_nan(port_number(x, "loss")));
    return code;
}

/* ---- graphs of ranks ---- */

/* The path of a rank: each %r is its number. Fails where that is too long; NULL stays. */
static int rank_path(tn_context *ctx, const char *pattern, int rank, char path[PATH_MAX],
                     const char **own)
{
    size_t n = 0;
    *own = pattern ? path : NULL;
    for (const char *s = pattern; s && *s; s++) {
        bool here = s[0] == '%' && s[1] == 'r';
        n += (size_t)snprintf(path + n, PATH_MAX - n, here ? "%d" : "%c", here ? rank : *s);
        if (n >= PATH_MAX)
            return tn_context_fail(ctx, TN_CODE_USAGE, "run: too long a name: %.60s...", pattern);
        s += here;
    }
    if (pattern)
        path[n] = 0;
    return 0;
}

/* The context's message with the file before it, unless it begins with that. */
static int name_file(tn_context *ctx, int code, const char *file)
{
    char text[2000];
    size_t n = strlen(file);
    snprintf(text, sizeof text, "%s", tn_error(ctx));
    return !strncmp(text, file, n) && text[n] == ':'
               ? code
               : tn_context_fail(ctx, code, "%s: %s", file, text);
}

/* Adds rank 0's number to its own failure; other ranks' messages have theirs. */
static int name_first(tn_context *ctx, int code)
{
    char text[2000];
    snprintf(text, sizeof text, "%s", tn_error(ctx));
    return code && rank_first(ctx) ? tn_context_fail(ctx, code, "rank 0: %s", text) : code;
}

/* Ends a phase at which a rank alone may have failed: then all ranks fail. */
static int agree_on(tn_context *ctx, int own, const char *file)
{
    int code = tn_agree_code(ctx, own ? name_file(ctx, own, file) : 0);
    return own ? name_first(ctx, own) : code;
}

/* The program of the rank's own graph. */
static int make_rank(tn_context *ctx, const RunCommand *r, const char *file, tn_plan **p,
                     tn_program **x)
{
    tn_options o = rank_options(ctx, &r->c);
    tn_graph *g = NULL;
    int code = agree_on(ctx, tn_graph_read(ctx, file, &g), file);
    if (!code)
        code = tn_graph_ranks(g);
    if (!code)
        code = rank_machine(ctx, &o);
    if (!code)
        code = agree_on(ctx, tn_plan_new(g, &o, 0, p), file);
    return code ? code : tn_program_new(*p, &o, x);
}

/* Rank 0 prints what each of them says. */
static int print_ranks(tn_context *ctx, tn_program *x, tn_plan *p, const RunCommand *r)
{
    Object own = {.len = 0};
    int n = tn_ranks(ctx), rank = tn_rank(ctx);
    Object *all = malloc((size_t)n * sizeof *all);
    if (r->json)
        put_run(&own, x, p, r);
    else if (port_there(x, "loss"))
        put(&own, "rank %d loss %.9g\n", rank, plain_nan(port_number(x, "loss")));
    int code = tn_agree_code(ctx, all ? 0 : tn_context_fail(ctx, TN_CODE_FAIL, "out of memory"));
    if (!code)
        code = tn_gather(ctx, &own, sizeof own, all);
    for (int i = 0; i < n && !code && rank_first(ctx); i++)
        if (r->json)
            printf("%s{\"rank\": %d, %s}%s", i ? ",\n " : "[", i, all[i].text,
                   i == n - 1 ? "]\n" : "");
        else
            fputs(all[i].text, stdout);
    free(all);
    return code;
}

/* The profile comes last, as what other ranks may fail at is over then; where one of them cannot
 * write its own none stays. */
static int write_rank(tn_context *ctx, tn_program *x, const RunCommand *r, const char *file)
{
    int code = 0;
    if (r->outputs)
        code = tn_program_write_file(x, r->outputs, "");
    if (code || !r->profile)
        return code;
    int own = tn_program_trace_write(x, r->profile);
    code = agree_on(ctx, own, file);
    if (code && !own)
        unlink(r->profile);
    return code;
}

static int run_rank(tn_context *ctx, const void *arg, bool *told)
{
    RunCommand all = *(const RunCommand *)arg, *r = &all;
    char inputs[PATH_MAX], outputs[PATH_MAX], profile[PATH_MAX], who[PATH_MAX];
    int rank = tn_rank(ctx);
    const char *file = r->args.text[rank];
    tn_plan *p = NULL;
    tn_program *x = NULL;
    (void)told;
    snprintf(who, sizeof who, "rank %d: %.200s: ", rank, file);
    r->who = who;
    int code = rank_path(ctx, r->inputs, rank, inputs, &r->inputs);
    if (!code)
        code = rank_path(ctx, r->outputs, rank, outputs, &r->outputs);
    if (!code)
        code = rank_path(ctx, r->profile, rank, profile, &r->profile);
    code = tn_agree_code(ctx, code);
    if (!code)
        code = make_rank(ctx, r, file, &p, &x);
    if (!code)
        code = agree_on(ctx, read_inputs(ctx, x, r), file);
    if (!code) {
        code = run_program(ctx, x, r);
        if (code)
            code = name_first(ctx, rank_ran(ctx, name_file(ctx, code, file)));
    }
    if (!code)
        code = write_rank(ctx, x, r, file);
    return code ? code : print_ranks(ctx, x, p, r);
}

/* Whether the option's files have the rank in their names, as those of several ranks must; NULL:
 * none. */
static int check_pattern(const char *option, const char *pattern)
{
    if (!pattern || strstr(pattern, "%r"))
        return -1;
    return report(
        TN_CODE_USAGE,
        "run: --%s %s: expected %%r, the rank, in the name, as each of several graphs has "
        "files of its own\n  for example: --%s '%s%%r.%s'",
        option, pattern, option, option, strcmp(option, "profile") ? "safetensors" : "json");
}

/* No rank writes a file that another reads. */
static int check_ranks(tn_context *ctx, const RunCommand *r)
{
    char out[PATH_MAX], in[PATH_MAX];
    const char *o, *i;
    int n = r->args.count, code = -1;
    for (int a = 0; a < n * n && code < 0 && r->outputs; a++) {
        if (rank_path(ctx, r->outputs, a / n, out, &o) || rank_path(ctx, r->inputs, a % n, in, &i))
            return report_last(TN_CODE_USAGE, ctx);
        const char *file = r->args.text[a % n];
        const char *read = path_same(out, in) ? in : path_same(out, file) ? file : NULL;
        if (read)
            code = report(TN_CODE_USAGE, "run: --outputs: %s is an input (%s)", out, read);
    }
    return code;
}

/* ---- the command ---- */

static int parse_run(tn_context *ctx, RunCommand *r, Option *table, int argc, char **argv)
{
    const OptionSlot slots[] = {{"inputs", &r->inputs},
                                {"outputs", &r->outputs},
                                {"json", &r->json},
                                {"profile", &r->profile},
                                {"threads", &r->c.threads},
                                {"seed", &r->seed},
                                {"comm-timeout", &r->c.comm_timeout},
                                {"log-ranks", &r->c.log_ranks},
                                {0}};
    const Command *c = command_find("run");
    options_begin(table, c->name, &r->c.o, slots);
    int code = options_parse(c, argc, argv, table, &r->args, 1, LEN(r->args.text));
    bool ranks = code < 0 && r->args.count > 1;
    if (code >= 0)
        return code;
    if (!r->inputs)
        return report(TN_CODE_USAGE, "run: --inputs is missing");
    if (r->json && r->outputs && !strcmp(r->outputs, "-"))
        return report(TN_CODE_USAGE, "run: --json and --outputs - exclude each other");
    r->seeded = option_given(table, "seed");
    if (!ranks && !tn_launched())
        code = options_refuse(c, table, "comm-timeout log-ranks", "is for the graphs of ranks");
    if (code >= 0)
        return code;
    if (ranks)
        code = check_pattern("inputs", r->inputs);
    if (ranks && code < 0)
        code = check_pattern("outputs", r->outputs);
    if (ranks && code < 0)
        code = check_pattern("profile", r->profile);
    return ranks && code < 0 ? check_ranks(ctx, r) : code;
}

int command_run(int argc, char **argv)
{
    RunCommand r = {.c = {.o = tn_options_default()}, .who = ""};
    Option table[MOST_OPTIONS];
    Launch l;
    int code = launch_begin(&l, command_find("run"), argc, argv);
    if (code < 0)
        code = launch_parsed(&l, parse_run(l.ctx, &r, table, argc, argv), table, &r.args);
    bool found = r.c.o.memory == MEMORY_AUTO && !tn_launched();
    if (code < 0)
        code = launch_memory(&l, &r.c.o);
    if (code < 0 && found && r.args.count > 1) { /* threads share it */
        r.c.o.memory /= r.args.count;
        fprintf(stderr, "tenon: note: --memory auto: %lld bytes for each of %d graphs\n",
                (long long)r.c.o.memory, r.args.count);
    }
    if (code < 0)
        code = launch_each(&l, &r.c, r.args.count, r.args.count > 1 ? run_rank : run_graph, &r);
    launch_drop(&l);
    return code;
}
