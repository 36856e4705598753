/* export: a graph, after the passes that are asked for, as a module of PyTorch, or with its plan as
 * data. */
#include "cli.h"

#include <string.h>

typedef struct Export {
    const char *form, *path, *passes, *output;
    Common c;
    Option table[MOST_OPTIONS];
} Export;

static bool as_json(const Export *x)
{
    return !strcmp(x->form, "json");
}

/* Checks that the options agree, once all are read. Returns -1 to go on, or an exit code. */
static int check(const Command *c, Export *x)
{
    int code = -1;
    if (strcmp(x->form, "fx") != 0 && !as_json(x))
        return report(TN_CODE_USAGE, "export: expected fx or json, found \"%s\"", x->form);
    if (!x->passes)
        code = options_refuse_passes(c, x->table, "changes nothing in a graph without --passes");
    if (code < 0 && !x->passes && !as_json(x))
        code = options_refuse(c, x->table, "memory threads machine",
                              "changes nothing in a graph without --passes");
    if (!option_given(x->table, "overlap"))
        x->c.o.overlap = "off"; /* as it is written */
    if (code < 0)
        code = check_passes(c, x->table, x->passes, &x->c);
    if (code < 0)
        code = check_chunk(c, x->table, x->passes, &x->c);
    if (code < 0)
        code = check_mesh(c, x->table, x->passes, true, &x->c);
    return code >= 0 ? code : check_optimizer(c, x->table, &x->c.o);
}

/* The graph as it is, or after passes as they suit a plan; the text lives as long as ctx. */
static int make_text(tn_context *ctx, const Export *x, const char **text)
{
    tn_graph *g;
    tn_compiled c = {0};
    int code = tn_graph_read(ctx, x->path, &g);
    if (!code)
        code = check_passes_of(ctx, "export: ", x->table, &(PassList){x->passes, g}, &x->c);
    if (!code && (x->passes || as_json(x))) {
        tn_task task = {.nparts = 1, .keep_order = 1, .part = {{.graph = g, .passes = x->passes}}};
        code = tn_compile(ctx, &task, &x->c.o, &c);
    }
    if (code)
        return code;
    return as_json(x) ? tn_plan_export_json(c.plan[0], text) : tn_graph_export_fx(g, text);
}

int command_export(int argc, char **argv)
{
    Export x = {.c = {.o = tn_options_default()}};
    const OptionSlot slots[] = {
        {"passes", &x.passes}, {"output", &x.output}, COMMON_SLOTS(x.c), {0}};
    const Command *c = command_find("export");
    Texts args;
    options_begin(x.table, "export", &x.c.o, slots);
    int code = options_parse(c, argc, argv, x.table, &args, 2, 2);
    if (code >= 0)
        return code;
    x.form = args.text[0];
    x.path = args.text[1];
    code = check(c, &x);
    if (code >= 0)
        return code;
    common_apply(&x.c);
    tn_context *ctx = context_new();
    const char *text;
    code = memory_find(ctx, &x.c.o, 1);
    if (code < 0) {
        code = make_text(ctx, &x, &text);
        code = code ? report_last(code, ctx) : write_text(x.output, text);
    }
    tn_context_free(ctx);
    return code;
}
