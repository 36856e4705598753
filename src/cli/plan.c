/* plan: prints a plan as text, JSON or a page; or two plans of one command line with different
 * additional options. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The options of one plan. */
typedef struct PlanCommand {
    Common c;
    const char *path, *passes, *html, *trace, *compare[2];
    int json, steps, pareto;
    int64_t ranks;
    bool reorder, side; /* side: one of --compare, for which its messages are completed */
    Option table[MOST_OPTIONS];
    tn_model *model; /* NULL: a graph, or not open yet */
} PlanCommand;

static void fill_table(PlanCommand *x)
{
    const OptionSlot slots[] = {
        {"batch-size", &x->c.batch}, {"seq-len", &x->c.seq}, {"json", &x->json},
        {"compare", &x->compare},    {"html", &x->html},     {"steps", &x->steps},
        {"passes", &x->passes},      {"pareto", &x->pareto}, {"ranks", &x->ranks},
        {"trace", &x->trace},        COMMON_SLOTS(x->c),     {0}};
    options_bind(x->table, "plan", &x->c.o, slots);
}

static bool is_graph_file(const char *path)
{
    size_t n = strlen(path);
    return !strcmp(path, "-") || (n > 3 && !strcmp(path + n - 3, ".tn"));
}

/* The first words of a message: that of a side is completed. */
static const char *prefix_of(const PlanCommand *x)
{
    return x->side ? "" : "plan: ";
}

/* The batch of a model, which one that is a graph has. */
static int find_batch(tn_context *ctx, PlanCommand *x)
{
    int has = graph_batch(ctx, x->model, &x->c, NULL, NULL);
    if ((has == 0 || has == 1) && !x->passes &&
        check_model(ctx, prefix_of(x), x->table, x->model, &x->c))
        return TN_CODE_USAGE;
    if (!has && (!x->c.batch || !x->c.seq))
        return tn_context_fail(ctx, TN_CODE_USAGE, "%s--%s is missing", prefix_of(x),
                               x->c.batch ? "seq-len" : "batch-size");
    return has == 1 ? 0 : has;
}

/* Reads what is to be planned: a graph, or a model. */
static int load(tn_context *ctx, PlanCommand *x, tn_task *task)
{
    Common *c = &x->c;
    tn_part *part = &task->part[0];
    int code = 0;
    *task = (tn_task){.nparts = 1, .batch = c->batch, .keep_order = !x->reorder};
    part->passes = x->passes;
    if (is_graph_file(x->path)) {
        code = tn_graph_read(ctx, x->path, &part->graph);
        const PassList list = {x->passes, part->graph};
        return code ? code : check_passes_of(ctx, prefix_of(x), x->table, &list, c);
    }
    if (!x->model)
        code = model_open(ctx, x->path, c->lora, c->adapter, &x->model);
    part->kind = TN_PART_STEP;
    if (!code)
        code = find_batch(ctx, x);
    task->batch = c->batch;
    part->model = x->model;
    part->seq = c->seq;
    part->passes = x->passes ? x->passes : "default";
    return code;
}

/* A graph is planned as it is written: what would change it needs a pass that does so. */
static int check_graph_options(const Command *c, const Option *table, const PlanCommand *x)
{
    int code =
        options_refuse(c, table, "lora adapter batch-size seq-len dropout z-loss label-smoothing",
                       "is for models, not for graphs");
    if (code < 0 && !x->c.o.accumulate)
        return report(TN_CODE_USAGE, "%s: --accumulate auto is for models, not for graphs",
                      c->name);
    if (code < 0 && !option_given(table, "passes"))
        code = options_refuse_passes(c, table, "changes nothing in a graph without --passes");
    return code;
}

/* Parses the words over what x has already. Returns -1 to go on, or an exit code. */
static int parse(const Command *c, int argc, char **argv, PlanCommand *x)
{
    Texts args;
    int code = options_parse(c, argc, argv, x->table, &args, 0, 1);
    if (code >= 0)
        return code;
    x->path = args.count ? args.text[0] : x->path;
    return -1;
}

/* Checks that the options agree with each other, once all are read. */
static int check(const Command *c, PlanCommand *x)
{
    if (!x->path)
        return report(TN_CODE_USAGE, "%s: expected 1 argument, found 0; usage: tenon plan %s",
                      c->name, c->usage);
    x->reorder = !is_graph_file(x->path);
    if (!x->reorder && !option_given(x->table, "overlap"))
        x->c.o.overlap = "off"; /* as it is written */
    int code = x->reorder ? options_refuse(c, x->table, "dedupe-recompute",
                                           "is for graphs, not for models")
                          : check_graph_options(c, x->table, x);
    if (code < 0)
        code = check_passes(c, x->table, x->passes, &x->c);
    if (code < 0)
        code = check_adapters(c, &x->c);
    if (code < 0)
        code = check_chunk(c, x->table, x->passes, &x->c);
    if (code < 0)
        code = check_mesh(c, x->table, x->passes, !x->reorder, &x->c);
    return code >= 0 ? code : check_optimizer(c, x->table, &x->c.o);
}

/* Whether a pass runs: a graph is given to nothing but the passes that were asked for. */
static bool runs(const PlanCommand *x, const char *pass)
{
    return x->passes ? tn_passes_have(x->passes, pass) : x->reorder;
}

/* Says what may change where it does not fit: a graph has no batch to be parted. */
static int may_vary(const PlanCommand *x)
{
    int own = x->model ? model_vary(x->model) : TN_VARY_RECOMPUTE;
    return own & ((runs(x, "policies") ? TN_VARY_RECOMPUTE : 0) |
                  (runs(x, "accumulate") ? TN_VARY_ACCUMULATE : 0) | TN_VARY_BATCH);
}

/* Whether it is to be said what the step takes without the joined calls that were asked for. */
static bool asks_apart(const PlanCommand *x)
{
    return x->model && option_given(x->table, "bucket");
}

/* Plans it; vary: looks for what would fit where it does not. */
static int make_plan(tn_context *ctx, PlanCommand *x, bool vary, tn_task *task, tn_compiled *c)
{
    common_apply(&x->c);
    int code = memory_find(ctx, &x->c.o, x->ranks);
    code = code < 0 ? load(ctx, x, task) : code;
    task->vary = vary ? may_vary(x) : 0;
    task->apart = asks_apart(x);
    if (vary)
        fit_tell(task);
    return code ? code : tn_compile(ctx, task, &x->c.o, c);
}

/* Says so where collectives that are joined as was asked for take longer than apart, which may not
 * have been planned. */
static void note_bucket(const PlanCommand *x, const tn_plan *p)
{
    const char *taken;
    double joined, apart;
    tn_plan_bucket(p, &taken, &joined, &apart);
    if (asks_apart(x) && taken && strcmp(taken, "off") && apart > 0 && apart < joined)
        fprintf(stderr, "note: by --bucket %s a step takes %.4g s, by --bucket off %.4g s\n", taken,
                joined, apart);
}

/* ---- the options of a side ---- */

/* Cuts text into words as a shell does: at white space, but for what stands in quotes or after a
 * backslash. The words lie in `to`, which is as large as the text. Returns how many, or -1 where a
 * quote is not closed or a backslash ends the text. */
static int cut_words(const char *text, char *to, char **word)
{
    int n = 0;
    for (text += strspn(text, " \t\n"); *text; text += strspn(text, " \t\n")) {
        char quote = 0;
        for (word[n++] = to; *text && (quote || !strchr(" \t\n", *text)); text++) {
            if (*text == quote || (!quote && (*text == '"' || *text == '\''))) {
                quote = quote ? 0 : *text;
                continue;
            }
            bool escapes =
                *text == '\\' && (!quote || (quote == '"' && text[1] && strchr("\\\"$`", text[1])));
            text += escapes;
            if (!*text)
                return -1;
            *to++ = *text;
        }
        if (quote)
            return -1;
        *to++ = 0;
    }
    return n;
}

/* Options of both plans together are not options of a side. */
static int refuse_of_both(const Command *c, int n, char **word)
{
    static const char *const of_both[] = {"--json",    "--html",  "--explain", "--steps",
                                          "--compare", "--trace", "--help",    "-h",
                                          "--pareto",  "--ranks", "--what-if"};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LEN(of_both); k++) {
            size_t len = strlen(of_both[k]);
            if (!strncmp(word[i], of_both[k], len) && strchr("=", word[i][len]))
                return report(TN_CODE_USAGE, "%s: %s is not for one side", c->name, of_both[k]);
        }
    return -1;
}

/* The options of a side over those of both, which x begins with. `memory` holds their words. */
static int parse_side(const Command *c, const PlanCommand *both, const char *text, PlanCommand *x,
                      char **memory)
{
    *x = *both;
    fill_table(x);
    for (int i = 0; i < LEN(x->table); i++)
        x->table[i].given = both->table[i].given;
    size_t size = strlen(text) + 2, most = size / 2 + 2;
    *memory = malloc(size + most * sizeof(char *));
    if (!*memory)
        return report(TN_CODE_FAIL, "out of memory");
    char **word = (char **)(void *)*memory, *own = *memory + most * sizeof(char *);
    word[0] = own; /* where a command's name stands, which is not read */
    int n = cut_words(text, own, word + 1);
    if (n < 0)
        return report(TN_CODE_USAGE, "%s: a quote that is not closed, or a backslash at the end",
                      c->name);
    int code = refuse_of_both(c, n, word + 1);
    if (code < 0)
        code = parse(c, n + 1, word, x);
    return code >= 0 ? code : check(c, x);
}

/* ---- what is printed ---- */

/* The command line, as it could be given to a shell again. */
static char *command_line(int argc, char **argv)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    command_put(f, "tenon", argc, argv, NULL);
    return fclose(f) ? NULL : text;
}

/* The plans (one, or two with what each has of its own) as a page. */
static int write_page(tn_context *ctx, const PlanCommand *x, tn_plan *const *p, const char *title,
                      const char *command)
{
    const char *text;
    bool two = x->compare[0] != NULL;
    int code = tn_plan_page(p, two ? x->compare : NULL, two ? 2 : 1, title, command, &text);
    return code ? report_last(code, ctx) : write_text(x->html, text);
}

static int write_trace(tn_context *ctx, const PlanCommand *x, tn_plan *p)
{
    const char *text;
    int code = tn_plan_trace(p, &text);
    return code ? report_last(code, ctx) : write_text(x->trace, text);
}

static bool to_output(const char *path)
{
    return path && !strcmp(path, "-");
}

/* Nothing else goes to standard output where the page or the trace does. */
static FILE *output(const PlanCommand *x)
{
    return to_output(x->html) || to_output(x->trace) ? stderr : stdout;
}

static int print_json(tn_context *ctx, const PlanCommand *x, tn_plan *p, bool fits)
{
    const char *text;
    if (tn_plan_json(p, fits, &text))
        return report_last(TN_CODE_FAIL, ctx);
    fprintf(output(x), "%s\n", text);
    return 0;
}

static int print(tn_context *ctx, const PlanCommand *x, tn_plan *p, int code)
{
    const char *text = NULL;
    if (x->json) {
        int bad = print_json(ctx, x, p, !code);
        return bad ? bad : code;
    }
    if (tn_plan_text(p, x->steps, &text))
        return report_last(TN_CODE_FAIL, ctx);
    if (!code)
        fputs(text, output(x));
    if (!x->c.o.explain)
        return code;
    if (tn_plan_explain(p, &text))
        return report_last(TN_CODE_FAIL, ctx);
    fputs(text, output(x));
    return code;
}

static int plan_one(tn_context *ctx, PlanCommand *x, const char *command, int argc, char **argv)
{
    FitAdvice f = {.o = &x->c.o, .argc = argc, .argv = argv};
    tn_compiled c = {0};
    int code = check(command_find("plan"), x);
    if (code >= 0)
        return code;
    if (x->reorder)
        f.note = "the limit is here of the step alone; train counts evaluation and samples too";
    code = make_plan(ctx, x, true, &f.task, &c);
    tn_plan *p = c.plan[0];
    if (code && p)
        fit_print(ctx, &f, &c);
    else if (code)
        report_last(code, ctx);
    int bad = p && x->html ? write_page(ctx, x, &p, x->path, command) : 0;
    bad = !bad && p && x->trace ? write_trace(ctx, x, p) : bad;
    if (!code && !x->json && !x->c.o.accumulate)
        fprintf(output(x), "accumulate: auto takes %lld\n", (long long)c.setting.accumulate);
    code = bad ? bad : p ? print(ctx, x, p, code) : code;
    if (!code && !x->json && x->c.o.memory && f.task.part[0].kind == TN_PART_STEP)
        fprintf(output(x), "limit: of the step alone; train counts evaluation and samples too, and "
                           "may refuse what fits here\n");
    if (!code)
        note_bucket(x, p);
    return code;
}

/* ---- curves ---- */

static int check_curve(const PlanCommand *x)
{
    const Command *c = command_find("plan");
    if (strcmp(x->c.o.recompute, "auto") != 0)
        return report(TN_CODE_USAGE,
                      "%s: --pareto chooses what is computed again; expected "
                      "--recompute auto, found %s",
                      c->name, x->c.o.recompute);
    for (int i = 0; i < x->c.o.nchunk; i++)
        if (!strcmp(x->c.o.chunk[i], "auto"))
            return report(TN_CODE_USAGE, "%s: --pareto and --chunk auto exclude each other",
                          c->name);
    for (int i = 0; i < x->c.shardings.count; i++)
        if (!strcmp(x->c.shardings.text[i], "auto"))
            return report(TN_CODE_USAGE, "%s: --pareto and --shard auto exclude each other",
                          c->name);
    if (!runs(x, "policies") || !runs(x, "remat"))
        return report(TN_CODE_USAGE, "%s: --pareto expects the passes policies and remat", c->name);
    if (!x->c.o.accumulate)
        return report(TN_CODE_USAGE, "%s: --pareto and --accumulate auto exclude each other",
                      c->name);
    return options_refuse(c, x->table, "steps explain memory compare trace", "is not for --pareto");
}

static int plan_curve(tn_context *ctx, PlanCommand *x, const char *command)
{
    tn_task task;
    int code = check(command_find("plan"), x);
    if (code >= 0)
        return code;
    common_apply(&x->c);
    code = check_curve(x);
    if (code >= 0)
        return code;
    code = load(ctx, x, &task);
    tn_graph *g = task.part[0].graph;
    if (!code && !g)
        code = tn_model_graph(x->model, x->c.batch, x->c.seq, &x->c.o, &g);
    Pareto p = {g, task.part[0].passes, &x->c.o, x->json, output(x), x->html, x->path, command};
    code = code ? report_last(code, ctx) : pareto(ctx, &p);
    tn_graph_free(g);
    return code;
}

/* ---- meshes ---- */

static int check_meshes(PlanCommand *x)
{
    const Command *c = command_find("plan");
    if (!x->ranks)
        return report(TN_CODE_USAGE, "%s: --mesh auto: --ranks is missing", c->name);
    if (!x->reorder)
        return report(TN_CODE_USAGE, "%s: --mesh auto is for models, not for graphs", c->name);
    if (!x->c.o.accumulate)
        return report(TN_CODE_USAGE, "%s: --mesh auto and --accumulate auto exclude each other",
                      c->name);
    return options_refuse(c, x->table, "rank steps explain compare html pareto trace",
                          "is not for --mesh auto");
}

static int plan_meshes(tn_context *ctx, PlanCommand *x)
{
    int code = check(command_find("plan"), x);
    if (code >= 0 || (code = check_meshes(x)) >= 0)
        return code;
    common_apply(&x->c);
    code = memory_find(ctx, &x->c.o, x->ranks);
    if (code >= 0)
        return code;
    MeshCommand m = {.model = x->path,
                     .passes = x->passes,
                     .lora = x->c.lora,
                     .adapter = x->c.adapter,
                     .batch = x->c.batch,
                     .seq = x->c.seq,
                     .ranks = x->ranks,
                     .o = &x->c.o,
                     .json = x->json};
    return meshes_print(ctx, &m, output(x));
}

/* ---- two plans ---- */

static const char *const side_names[] = {"plan: --compare, A", "plan: --compare, B"};

static int plan_side(tn_context *ctx, const PlanCommand *both, int i, PlanCommand *x, char **memory,
                     tn_plan **p)
{
    tn_task task;
    tn_compiled compiled;
    Command c = *command_find("plan");
    c.name = side_names[i];
    int code = parse_side(&c, both, both->compare[i], x, memory);
    if (code >= 0)
        return code;
    if (mesh_auto(&x->c.o))
        return report(TN_CODE_USAGE, "%s: --mesh auto lists meshes; name one", c.name);
    if (i && !strcmp(x->path, "-"))
        return report(TN_CODE_USAGE, "%s: standard input is read once; name a file", c.name);
    x->side = true;
    code = make_plan(ctx, x, false, &task, &compiled);
    *p = code && code != TN_CODE_FIT ? NULL : compiled.plan[0];
    return code ? report(code, "%s: %s", c.name, tn_error(ctx)) : 0;
}

static int print_both(tn_context *ctx, const PlanCommand *x, const PlanCommand *side,
                      tn_plan *const *p, const char *command)
{
    const char *text;
    char title[500];
    bool same = !strcmp(side[0].path, side[1].path);
    snprintf(title, sizeof title, "%s%s%s", side[0].path, same ? "" : ", ",
             same ? "" : side[1].path);
    int code = x->html ? write_page(ctx, x, p, title, command) : 0;
    if (code)
        return code;
    if (tn_plan_compare(p, x->compare, x->json, &text))
        return report_last(TN_CODE_FAIL, ctx);
    fprintf(output(x), "%s%s", text, x->json ? "\n" : "");
    return 0;
}

static int plan_two(tn_context *ctx, const PlanCommand *x, const char *command)
{
    const Command *c = command_find("plan");
    PlanCommand side[2];
    char *memory[2] = {NULL};
    tn_plan *p[2] = {NULL};
    int code = options_refuse(c, x->table, "steps explain trace what-if",
                              "is for one plan, not for --compare");
    code = code < 0 ? 0 : code;
    for (int i = 0; i < 2 && (!code || code == TN_CODE_FIT); i++) {
        int now = plan_side(ctx, x, i, &side[i], &memory[i], &p[i]);
        code = now ? now : code;
    }
    if (p[0] && p[1]) {
        int bad = print_both(ctx, x, side, p, command);
        code = bad ? bad : code;
    }
    free(memory[0]);
    free(memory[1]);
    return code;
}

static int run_plan(tn_context *ctx, int argc, char **argv)
{
    PlanCommand x = {.c = {.o = tn_options_default()}};
    fill_table(&x);
    options_default(x.table);
    int code = parse(command_find("plan"), argc, argv, &x);
    if (code >= 0)
        return code;
    if (x.json && output(&x) == stderr)
        return report(TN_CODE_USAGE,
                      "plan: --json and --%s - exclude each other: both go to standard output",
                      to_output(x.html) ? "html" : "trace");
    if (to_output(x.html) && to_output(x.trace))
        return report(TN_CODE_USAGE, "plan: --html - and --trace - exclude each other");
    if (x.json && x.steps)
        return report(TN_CODE_USAGE, "plan: --json and --steps exclude each other");
    if (x.ranks && !mesh_auto(&x.c.o))
        return report(TN_CODE_USAGE, "plan: --ranks means nothing without --mesh auto");
    char *command = command_line(argc, argv);
    if (!command)
        return report(TN_CODE_FAIL, "out of memory");
    code = mesh_auto(&x.c.o) ? plan_meshes(ctx, &x)
           : x.pareto        ? plan_curve(ctx, &x, command)
           : x.compare[0]    ? plan_two(ctx, &x, command)
                             : plan_one(ctx, &x, command, argc, argv);
    free(command);
    return code;
}

/* Ranks that a launcher has started have one plan, which the first of them makes. */
int command_plan(int argc, char **argv)
{
    Launch l;
    int code = launch_begin(&l, command_find("plan"), argc, argv);
    if (code < 0)
        code = launch_agree(&l, rank_first(l.ctx) ? run_plan(l.ctx, argc, argv) : 0);
    launch_drop(&l);
    return code;
}
