/* run: a graph once, on tensors from a file. */
#include "cli.h"

#include "../train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Run {
    const char *inputs, *outputs, *profile;
    int json;
    bool seeded; /* --seed was given */
    int64_t threads, seed;
    tn_options o;
    int64_t high, high_host; /* end of what was written */
    double sec, lr, step;
} Run;

/* An input of role seed comes from the file; where it is not there, or --seed was given, from
 * --seed. */
static int read_inputs(tn_context *ctx, tn_program *x, const Run *r)
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
static int run_over(tn_context *ctx, tn_program *x, Run *r, int pattern)
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

static void print_real(const char *name, double value)
{
    printf(isfinite(value) ? "\"%s\": %.9g, " : "\"%s\": null, ", name, value);
}

static void print_run(tn_program *x, tn_plan *p, const Run *r)
{
    int64_t peak, persistent, reserve;
    tn_port ids;
    double tokens = tn_program_port(x, "input_ids", &ids) ? NAN : (double)ids.nbytes / 8;
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    printf("{\"step\": %.0f, ", r->step);
    print_real("loss", port_number(x, "loss"));
    print_real("grad_norm", port_number(x, "metric.grad_norm"));
    print_real("lr", r->lr);
    print_real("tokens", tokens);
    print_real("step_sec", r->sec);
    print_real("tokens_per_sec", tokens / r->sec);
    printf("\"planned_peak_bytes\": %lld, \"measured_peak_bytes\": %lld, ", (long long)peak,
           (long long)r->high);
    if (tn_plan_host(p))
        printf("\"planned_host_bytes\": %lld, \"measured_host_bytes\": %lld, ",
               (long long)tn_plan_host(p), (long long)r->high_host);
    printf("\"rss_peak_bytes\": %lld}\n", (long long)tn_rss_peak());
}

/* The first line of a rank's mesh: "mesh fsdp=2: rank 0 of 2". */
static int check_alone(tn_context *ctx, tn_graph *g, const char *path)
{
    const char *text, *count = tn_graph_mesh(g, &text) ? NULL : strstr(text, " of ");
    if (!count || strtoll(count + strlen(" of "), NULL, 10) == 1)
        return 0;
    return tn_context_fail(ctx, TN_CODE_USAGE,
                           "%s: %.*s: it does not run alone: expected the graph of the whole step\n"
                           "  ranks run by train, grad, eval and bench with --mesh",
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

static int run_graph(tn_context *ctx, const char *path, Run *r)
{
    tn_plan *p;
    tn_program *x = NULL;
    int code = program_of_graph(ctx, path, &r->o, &p, &x);
    if (!code && r->json)
        code = run_over(ctx, x, r, 0x5a);
    if (!code && r->profile && !(code = tn_program_trace(x, 1)))
        tn_program_trace_next(x, 1);
    if (!code)
        code = run_over(ctx, x, r, 0xa5);
    if (code)
        return code;
    const char *fault = tn_program_fault(x);
    if (fault)
        fprintf(stderr, "tenon: warning: %s gave a value that is not finite\n", fault);
    if (r->outputs)
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

int command_run(int argc, char **argv)
{
    Run r = {.o = tn_options_default()};
    const OptionSlot slots[] = {{"inputs", &r.inputs},
                                {"outputs", &r.outputs},
                                {"json", &r.json},
                                {"profile", &r.profile},
                                {"threads", &r.threads},
                                {"seed", &r.seed},
                                {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "run", &r.o, slots);
    Texts args;
    const Command *c = command_find("run");
    int code = options_parse(c, argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (!r.inputs)
        return report(TN_CODE_USAGE, "run: --inputs is missing");
    if (r.json && r.outputs && !strcmp(r.outputs, "-"))
        return report(TN_CODE_USAGE, "run: --json and --outputs - exclude each other");
    r.seeded = option_given(table, "seed");
    tn_threads((int)r.threads);
    tn_context *ctx = context_new();
    code = run_graph(ctx, args.text[0], &r);
    if (code)
        report_last(code, ctx);
    tn_context_free(ctx);
    return code;
}
