/* The commands that take a graph: show, opt, run, and the tables ops and passes. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the commands share ---- */

static int write_text(const char *path, const char *text)
{
    bool standard = !strcmp(path, "-");
    FILE *f = standard ? stdout : fopen(path, "wb");
    if (!f)
        return report(TN_CODE_FAIL, "%s: cannot create", path);
    bool bad = fputs(text, f) < 0;
    bad |= standard ? fflush(f) != 0 : fclose(f) != 0;
    return bad ? report(TN_CODE_FAIL, "%s: cannot write", path) : 0;
}

static void warn(void *arg, const char *message)
{
    (void)arg;
    fprintf(stderr, "tenon: warning: %s\n", message);
}

/* ---- show, ops, passes ---- */

int command_show(int argc, char **argv)
{
    int dot = 0;
    Option table[] = {{"dot", OPT_FLAG, &dot, "as a Graphviz drawing", NULL, 0, 0, 0}, {0}};
    Texts args;
    int code = options_parse(command_find("show"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    tn_context *ctx = tn_context_new();
    tn_graph *g;
    const char *text;
    code = tn_graph_read(ctx, args.text[0], &g);
    if (!code)
        code = dot ? tn_graph_dot(g, &text) : tn_graph_print(g, &text);
    code = code ? report_last(code, ctx) : write_text("-", text);
    tn_context_free(ctx);
    return code;
}

int command_ops(int argc, char **argv)
{
    const char *rule = NULL;
    Option table[] = {{"show", OPT_WORD, &rule, "one of its rules", "infer|diff|cost|factors", 0, 0, 0},
                      {0}};
    Texts args;
    int code = options_parse(command_find("ops"), argc, argv, table, &args, 0, 1);
    if (code >= 0)
        return code;
    tn_context *ctx = tn_context_new();
    const char *text;
    code = tn_ops(ctx, args.count ? args.text[0] : NULL, rule, &text);
    code = code ? report_last(code, ctx) : write_text("-", text);
    tn_context_free(ctx);
    return code;
}

int command_passes(int argc, char **argv)
{
    Option table[] = {{0}};
    Texts args;
    int code = options_parse(command_find("passes"), argc, argv, table, &args, 0, 0);
    if (code >= 0)
        return code;
    tn_context *ctx = tn_context_new();
    const char *text;
    code = tn_passes(ctx, &text);
    code = code ? report_last(code, ctx) : write_text("-", text);
    tn_context_free(ctx);
    return code;
}

/* ---- opt ---- */

typedef struct After {
    const char *pass; /* dump after this one; NULL: none */
    int timing, seen;
} After;

static void after_pass(void *arg, tn_graph *g, const char *pass, int changes, double sec)
{
    After *x = arg;
    const char *text;
    if (x->timing)
        fprintf(stderr, "%-14s %6d changes %9.6f s\n", pass, changes, sec);
    if (!x->pass || strcmp(x->pass, pass) || tn_graph_print(g, &text))
        return;
    x->seen = 1;
    fputs(text, stdout);
}

int command_opt(int argc, char **argv)
{
    const char *passes = "default", *output = NULL;
    After after = {NULL, 0, 0};
    tn_options o = tn_options_default();
    o.warn = warn;
    Option table[] = {
        {"passes", OPT_TEXT, &passes, "names separated by commas, or default", NULL, 0, 0, 0},
        {"output", OPT_TEXT, &output, "where the result goes (-o too; standard output)", NULL, 0, 0, 0},
        {"after", OPT_TEXT, &after.pass, "print the graph after this pass instead of the result", NULL, 0, 0, 0},
        {"timing", OPT_FLAG, &after.timing, "changes and seconds of each pass", NULL, 0, 0, 0},
        {"accumulate", OPT_INT, &o.accumulate, "microbatches per step (1)", NULL, 1, 1e9, 0},
        {"optimizer", OPT_WORD, &o.optimizer, "(adamw)", "adamw|none", 0, 0, 0},
        {"clip", OPT_REAL, &o.clip, "greatest global norm of the gradient (1.0; 0: off)", NULL, 0, 1e30, 0},
        {"weight-decay", OPT_REAL, &o.weight_decay, "(0.1)", NULL, 0, 1e3, 0},
        {"beta1", OPT_REAL, &o.beta1, "(0.9)", NULL, 0, 1, 0},
        {"beta2", OPT_REAL, &o.beta2, "(0.95)", NULL, 0, 1, 0},
        {"eps", OPT_REAL, &o.eps, "(1e-8)", NULL, 0, 1, 0},
        {0}};
    Texts args;
    int code = options_parse(command_find("opt"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    tn_context *ctx = tn_context_new();
    tn_graph *g;
    const char *text;
    code = tn_graph_read(ctx, args.text[0], &g);
    if (!code)
        code = tn_graph_passes(g, passes, &o, after_pass, &after);
    if (!code)
        code = tn_graph_print(g, &text);
    if (code)
        code = report_last(code, ctx);
    else if (after.pass && !after.seen)
        code = report(TN_CODE_USAGE, "opt: --after: pass \"%s\" did not run", after.pass);
    else if (!after.pass || output)
        code = write_text(output ? output : "-", text);
    tn_context_free(ctx);
    return code;
}

/* ---- run ---- */

typedef struct Run {
    const char *inputs, *outputs;
    int json;
    int64_t threads;
    tn_options o;
} Run;

/* One run on freshly read inputs over a pattern; the highest byte written goes to *high. */
static int run_over(tn_program *x, const Run *r, int pattern, int64_t *high)
{
    if (r->json)
        tn_program_fill(x, pattern);
    int code = tn_program_read(x, r->inputs);
    if (!code)
        code = tn_program_run(x);
    if (!code && r->json) {
        int64_t h = tn_program_high(x, pattern);
        *high = h > *high ? h : *high;
    }
    return code;
}

static void print_number(tn_program *x, const char *name, const char *output)
{
    void *data;
    int64_t nbytes;
    if (tn_program_data(x, output, &data, &nbytes) || (nbytes != 4 && nbytes != 8)) {
        printf("\"%s\": null, ", name);
        return;
    }
    double value = nbytes == 4 ? (double)*(float *)data : *(double *)data;
    printf(value - value == 0 ? "\"%s\": %.9g, " : "\"%s\": null, ", name, value);
}

static void print_run(tn_program *x, tn_plan *p, int64_t high)
{
    int64_t peak, persistent, reserve;
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    printf("{\"step\": 1, ");
    print_number(x, "loss", "loss");
    print_number(x, "grad_norm", "metric.grad_norm");
    printf("\"planned_peak_bytes\": %lld, \"measured_peak_bytes\": %lld, \"rss_peak_bytes\": %lld}\n",
           (long long)peak, (long long)high, (long long)tn_rss_peak());
}

static int run_graph(tn_context *ctx, const char *path, const Run *r)
{
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
    int64_t high = 0;
    int code = tn_graph_read(ctx, path, &g);
    if (!code)
        code = tn_plan_new(g, &r->o, 0, &p);
    if (!code)
        code = tn_program_new(p, &r->o, &x);
    if (!code && r->json)
        code = run_over(x, r, 0x5A, &high);
    if (!code)
        code = run_over(x, r, 0xA5, &high);
    if (code)
        return report_last(code, ctx);
    const char *fault = tn_program_fault(x);
    if (fault)
        fprintf(stderr, "tenon: warning: %s gave a value that is not finite\n", fault);
    if (r->outputs && tn_program_write(x, r->outputs, ""))
        return report_last(TN_CODE_FAIL, ctx);
    if (r->json)
        print_run(x, p, high);
    return 0;
}

int command_run(int argc, char **argv)
{
    Run r = {.o = tn_options_default()};
    Option table[] = {
        {"inputs", OPT_TEXT, &r.inputs, "safetensors file, tensors by input name", NULL, 0, 0, 0},
        {"outputs", OPT_TEXT, &r.outputs, "safetensors file to be written", NULL, 0, 0, 0},
        {"json", OPT_FLAG, &r.json, "run twice, print peak memory planned and measured", NULL, 0, 0, 0},
        {"memory", OPT_BYTES, &r.o.memory, "refuse a plan that needs more", NULL, 0, 0, 0},
        {"check", OPT_FLAG, &r.o.check, "poison dead buffers, guard the arena, look for NaN", NULL, 0, 0, 0},
        {"threads", OPT_INT, &r.threads, "(the cores the process may use)", NULL, 1, 4096, 0},
        {"seed", OPT_INT, &(int64_t){0}, "accepted for scripts: seeds are inputs here", NULL, 0, 9e18, 0},
        {0}};
    Texts args;
    int code = options_parse(command_find("run"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (!r.inputs)
        return report(TN_CODE_USAGE, "run: --inputs is missing");
    if (r.threads)
        tn_threads((int)r.threads);
    tn_context *ctx = tn_context_new();
    code = run_graph(ctx, args.text[0], &r);
    tn_context_free(ctx);
    return code;
}
