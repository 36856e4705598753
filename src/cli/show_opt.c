/* The commands that print: show, ops, passes; and opt, which rewrites a graph. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- show, ops, passes ---- */

int command_show(int argc, char **argv)
{
    int dot, mesh;
    const OptionSlot slots[] = {{"dot", &dot}, {"mesh", &mesh}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "show", NULL, slots);
    Texts args;
    int code = options_parse(command_find("show"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (dot && mesh)
        return report(TN_CODE_USAGE, "show: --dot and --mesh exclude each other");
    tn_context *ctx = context_new();
    tn_graph *g;
    const char *text = NULL;
    code = tn_graph_read(ctx, args.text[0], &g);
    if (!code)
        code = (dot ? tn_graph_dot : mesh ? tn_graph_mesh : tn_graph_print)(g, &text);
    code = code ? report_last(code, ctx) : write_text("-", text);
    tn_context_free(ctx);
    return code;
}

int command_ops(int argc, char **argv)
{
    const char *rule;
    const OptionSlot slots[] = {{"show", &rule}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "ops", NULL, slots);
    Texts args;
    int code = options_parse(command_find("ops"), argc, argv, table, &args, 0, 1);
    if (code >= 0)
        return code;
    if (rule && !args.count)
        return report(TN_CODE_USAGE, "ops: --show needs the name of an op");
    tn_context *ctx = context_new();
    const char *text;
    code = tn_ops(ctx, args.count ? args.text[0] : NULL, rule, &text);
    code = code ? report_last(code, ctx) : write_text("-", text);
    tn_context_free(ctx);
    return code;
}

int command_passes(int argc, char **argv)
{
    Option table[MOST_OPTIONS];
    options_begin(table, "passes", NULL, &(OptionSlot){0});
    Texts args;
    int code = options_parse(command_find("passes"), argc, argv, table, &args, 0, 0);
    if (code >= 0)
        return code;
    tn_context *ctx = context_new();
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
    char ran[1000]; /* passes that did, each once, separated by spaces */
    int diff;       /* what a pass, or all of them, changed is shown in the place of graphs */
    tn_context *ctx;
    tn_graph *before; /* with diff: a copy of the graph before */
} After;

static void add_ran(After *x, const char *pass)
{
    size_t n = strlen(x->ran);
    if (!word_among(x->ran, pass))
        snprintf(x->ran + n, sizeof x->ran - n, "%s%s", n ? " " : "", pass);
}

/* The pass of the table that a name probably means; NULL: none. */
static const char *nearest_pass(tn_context *ctx, const char *name, char *into, size_t size)
{
    enum { MOST = 200, LINE = 60 };
    static const char blanks[] = " \t";
    const char *text, *names[MOST];
    char line[MOST][LINE];
    int n = 0;
    if (tn_passes(ctx, &text))
        return NULL;
    for (const char *s = text; *s && n < MOST; s += strcspn(s, "\n"), s += *s == '\n') {
        size_t indent = strspn(s, blanks), group = strcspn(s + indent, " \t\n");
        const char *pass = s + (indent ? 0 : group); /* lines have a group or are of the last one */
        pass += strspn(pass, blanks);
        snprintf(line[n], LINE, "%.*s", (int)strcspn(pass, " \t\n"), pass);
        names[n] = line[n];
        n += *line[n] != 0;
    }
    const char *near = tn_nearest(name, names, n);
    snprintf(into, size, "%s", near ? near : "");
    return near ? into : NULL;
}

static int fail_after(tn_context *ctx, const After *x)
{
    char into[60];
    const char *near = nearest_pass(ctx, x->pass, into, sizeof into);
    bool known = near && !strcmp(near, x->pass);
    return report(TN_CODE_USAGE,
                  "opt: --after: pass \"%s\" did not run%s%s%s\n  those that did: %s", x->pass,
                  near && !known ? "; the nearest is \"" : "", near && !known ? near : "",
                  near && !known ? "\"" : "", x->ran);
}

/* Keeps a copy of the graph, in the place of an earlier one. */
static int keep_before(After *x, tn_graph *g)
{
    const char *text;
    tn_graph_free(x->before);
    x->before = NULL;
    int code = tn_graph_print(g, &text);
    return code ? code : tn_graph_parse(x->ctx, text, "before", &x->before);
}

/* Prints what has changed since the copy. */
static int print_diff(After *x, tn_graph *g, const char *by)
{
    const char *text;
    int code = x->before ? tn_graph_diff(x->before, g, &text) : TN_CODE_FAIL;
    if (!code)
        printf("%s%s%s", by ? by : "", by ? ": " : "", text);
    return code;
}

/* Whether a pass is a row of the group. */
static bool is_row_of(const char *pass, const char *group)
{
    size_t n = strlen(group);
    return !strncmp(pass, group, n) && pass[n] == '.';
}

static void after_pass(void *arg, tn_graph *g, const char *pass, int changes, double sec)
{
    After *x = arg;
    const char *text;
    if (x->timing)
        fprintf(stderr, "%-25s %6d changes %9.6f s\n", pass, changes, sec);
    add_ran(x, pass);
    bool asked = x->pass && !strcmp(x->pass, pass);
    if (asked && !(x->diff ? print_diff(x, g, pass) : tn_graph_print(g, &text))) {
        x->seen = 1;
        fputs(x->diff ? "" : text, stdout);
    }
    if (x->diff && x->pass && !is_row_of(pass, x->pass))
        keep_before(x, g);
}

/* One half of *g instead of it; NULL: all of it. */
static int take_half(tn_graph **g, const char *half)
{
    tn_graph *whole = *g;
    int code = half ? tn_graph_split(whole, !strcmp(half, "backward"), g) : 0;
    if (half && !code)
        tn_graph_free(whole);
    return code;
}

/* A graph's file, or, with the rows and tokens of a batch, a model's forward and loss. */
static int read_graph(tn_context *ctx, const char *path, const Common *c, tn_graph **g)
{
    tn_model *m;
    if (!c->batch && !c->seq)
        return tn_graph_read(ctx, path, g);
    if (!c->batch || !c->seq)
        return tn_context_fail(ctx, TN_CODE_USAGE, "opt: --%s is missing: a model has a batch",
                               c->batch ? "seq-len" : "batch-size");
    int code = tn_model_open(ctx, path, &m);
    return code ? code : tn_model_graph(m, c->batch, c->seq, &c->o, g);
}

/* Runs the passes, and shows what they did. */
static int rewrite(After *x, tn_graph **g, const char *passes, const tn_options *o,
                   const char *half, const char *output)
{
    const char *text = NULL;
    int code = x->diff ? keep_before(x, *g) : 0;
    if (!code && *passes)
        code = tn_graph_passes(*g, passes, o, after_pass, x);
    code = code ? code : take_half(g, half);
    if (!code && x->diff && !x->pass)
        code = print_diff(x, *g, NULL);
    if (!code)
        code = tn_graph_print(*g, &text);
    if (code)
        return report_last(code, x->ctx);
    if (x->pass && !x->seen)
        return fail_after(x->ctx, x);
    return output || !(x->pass || x->diff) ? write_text(output ? output : "-", text) : 0;
}

int command_opt(int argc, char **argv)
{
    const char *passes, *output, *half;
    After after = {0};
    Common c = {.o = tn_options_default()};
    const OptionSlot slots[] = {{"passes", &passes},    {"output", &output},
                                {"after", &after.pass}, {"timing", &after.timing},
                                {"split", &half},       {"batch-size", &c.batch},
                                {"seq-len", &c.seq},    {"diff", &after.diff},
                                COMMON_SLOTS(c),        {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "opt", &c.o, slots);
    Texts args;
    int code = options_parse(command_find("opt"), argc, argv, table, &args, 1, 1);
    passes = passes ? passes : half ? "" : "default";
    if (code < 0)
        code = check_passes(command_find("opt"), table, passes, &c);
    if (code < 0)
        code = check_chunk(command_find("opt"), table, passes, &c);
    if (code < 0)
        code = check_mesh(command_find("opt"), table, passes, true, &c);
    if (code < 0)
        code = (c.batch ? check_rounding : check_optimizer)(command_find("opt"), table, &c.o);
    if (code < 0 && after.diff && output && !strcmp(output, "-"))
        return report(TN_CODE_USAGE,
                      "opt: --diff and --output - exclude each other: both go to standard output");
    if (code >= 0)
        return code;
    common_apply(&c);
    tn_context *ctx = after.ctx = context_new();
    tn_graph *g;
    code = read_graph(ctx, args.text[0], &c, &g);
    if (!code)
        code = check_passes_of(ctx, "opt: ", table, &(PassList){passes, g}, &c);
    code = code ? report_last(code, ctx) : rewrite(&after, &g, passes, &c.o, half, output);
    tn_context_free(ctx);
    return code;
}
