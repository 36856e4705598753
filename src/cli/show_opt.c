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

static void after_pass(void *arg, tn_graph *g, const char *pass, int changes, double sec)
{
    After *x = arg;
    const char *text;
    if (x->timing)
        fprintf(stderr, "%-25s %6d changes %9.6f s\n", pass, changes, sec);
    add_ran(x, pass);
    if (!x->pass || strcmp(x->pass, pass) || tn_graph_print(g, &text))
        return;
    x->seen = 1;
    fputs(text, stdout);
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

int command_opt(int argc, char **argv)
{
    const char *passes, *output, *half;
    After after = {NULL, 0, 0, ""};
    Common c = {.o = tn_options_default()};
    const OptionSlot slots[] = {
        {"passes", &passes},       {"output", &output}, {"after", &after.pass},
        {"timing", &after.timing}, {"split", &half},    {"batch-size", &c.batch},
        {"seq-len", &c.seq},       COMMON_SLOTS(c),     {0}};
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
    if (code >= 0)
        return code;
    common_apply(&c);
    tn_context *ctx = context_new();
    tn_graph *g;
    const char *text = NULL;
    code = read_graph(ctx, args.text[0], &c, &g);
    if (!code && *passes)
        code = tn_graph_passes(g, passes, &c.o, after_pass, &after);
    code = code ? code : take_half(&g, half);
    if (!code)
        code = tn_graph_print(g, &text);
    if (code)
        code = report_last(code, ctx);
    else if (after.pass && !after.seen)
        code = fail_after(ctx, &after);
    else if (!after.pass || output)
        code = write_text(output ? output : "-", text);
    tn_context_free(ctx);
    return code;
}
