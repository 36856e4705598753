/* Passes on small graphs, tests/pass/NAME/FILE.tn: runs pass NAME (of default: the whole pipeline)
 * on the graph and compares the text with what stands below a line "---". `test_pass bless` writes
 * that part anew. Lines of comment before the graph say more:
 *
 *   # options: accumulate=4 clip=0 ...  of the passes
 *   # passes: grad,dce                  others than NAME
 *   # error: TEXT                       the passes must fail, with a message that contains TEXT
 *   # code: 2                           ... and with this code (1)
 *   # warn: TEXT                        there must be a warning that contains TEXT
 *   # expect count mm <= 6              of nodes, bodies included, each once
 *   # expect peak <= 4096               bytes of the plan
 *   # expect changes = 2                that the passes report
 *
 * Whatever the file says: results that both graphs have are equal (to the bit, but for accumulate,
 * into and bf16); the result prints and parses to the same text; running it by plan gives what the
 * interpreter gives; gradients of f64 parameters agree with central differences of the loss. */
#include "../shared/graphs.h"
#include "../shared/test.h"

#include <dirent.h>
#include <math.h>

static const char folder[] = "tests/pass";
enum { MOST_PATTERNS = 4 }; /* of an option */

typedef struct File {
    Arena *a;
    const char *path, *passes;
    const char *text;     /* the graph, comments included */
    const char *expected; /* NULL: not compared */
    const char *error, *warn;
    int code, changes;
    PassOptions o;
    const char *freeze[MOST_PATTERNS], *no_decay[MOST_PATTERNS], *adapters[MOST_PATTERNS],
        *shard[MOST_PATTERNS], *chunk[MOST_PATTERNS];
    PolicyRule rule[MOST_PATTERNS];
    bool warned, bless;
} File;

static bool complain(const File *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool complain(const File *f, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    test_nfail++;
    printf("%s: %s\n", f->path, text);
    return false;
}

/* ---- what the comments say ---- */

static void add_pattern(Globs *p, const char **list, const char *value)
{
    if (p->count < MOST_PATTERNS)
        list[p->count++] = value;
    p->pattern = list;
}

static void add_rule(File *f, Policy policy, const char *pattern)
{
    if (f->o.nrules < MOST_PATTERNS)
        f->rule[f->o.nrules++] = (PolicyRule){policy, pattern};
    f->o.rules = f->rule;
}

static void set_option(File *f, const char *name, const char *value)
{
    const struct {
        const char *name;
        double *to;
    } reals[] = {{"clip", &f->o.clip},         {"eps", &f->o.eps},
                 {"beta1", &f->o.beta1},       {"beta2", &f->o.beta2},
                 {"momentum", &f->o.momentum}, {"weight_decay", &f->o.weight_decay}};
    for (int i = 0; i < LEN(reals); i++)
        if (!strcmp(name, reals[i].name)) {
            *reals[i].to = atof(value);
            return;
        }
    if (!strcmp(name, "accumulate"))
        f->o.accumulate = atoll(value);
    else if (!strcmp(name, "optimizer"))
        f->o.optimizer = value;
    else if (!strcmp(name, "freeze"))
        add_pattern(&f->o.freeze, f->freeze, value);
    else if (!strcmp(name, "adapters"))
        add_pattern(&f->o.adapters, f->adapters, value);
    else if (!strcmp(name, "no_decay"))
        add_pattern(&f->o.no_decay, f->no_decay, value);
    else if (!strcmp(name, "recompute"))
        f->o.recompute = value;
    else if (!strcmp(name, "save"))
        add_rule(f, MUST_SAVE, value);
    else if (!strcmp(name, "recompute-rule"))
        add_rule(f, MUST_RECOMPUTE, value);
    else if (!strcmp(name, "offload"))
        add_rule(f, OFFLOAD, value);
    else if (!strcmp(name, "backend"))
        f->o.backend = value;
    else if (!strcmp(name, "repeat_gain"))
        f->o.repeat_gain = atoll(value);
    else if (!strcmp(name, "mesh"))
        f->o.mesh = value;
    else if (!strcmp(name, "shard"))
        add_pattern(&f->o.shardings, f->shard, value);
    else if (!strcmp(name, "chunk"))
        add_pattern(&f->o.chunk, f->chunk, value);
    else if (!strcmp(name, "chunk_accumulate"))
        f->o.chunk_accumulate = value;
    else if (!strcmp(name, "reshard"))
        f->o.reshard = value;
    else if (!strcmp(name, "bucket"))
        f->o.bucket = value;
    else if (!strcmp(name, "overlap"))
        f->o.overlap = value;
    else if (!strcmp(name, "align"))
        f->o.align = atoll(value);
    else if (!strcmp(name, "dtype"))
        f->o.dtype = (DType)dtype_parse(value);
    else if (!strcmp(name, "param_dtype"))
        f->o.param_dtype = (DType)dtype_parse(value);
    else
        complain(f, "no such option: %s", name);
}

static void set_options(File *f, char *list)
{
    for (char *s = strtok(list, " "); s; s = strtok(NULL, " ")) {
        char *value = strchr(s, '=');
        if (!value) {
            complain(f, "options: expected NAME=VALUE, found \"%s\"", s);
            return;
        }
        *value = 0;
        set_option(f, s, value + 1);
    }
}

static void read_comment(File *f, char *line)
{
    char *rest = strstr(line, ": ");
    rest = rest ? rest + 2 : line + strlen(line);
    if (!strncmp(line, "# options:", 10))
        set_options(f, rest);
    else if (!strncmp(line, "# passes:", 9))
        f->passes = rest;
    else if (!strncmp(line, "# error:", 8))
        f->error = rest;
    else if (!strncmp(line, "# warn:", 7))
        f->warn = rest;
    else if (!strncmp(line, "# code:", 7))
        f->code = atoi(rest);
}

static void take_warning(void *arg, const char *message)
{
    File *f = arg;
    f->warned = f->warn && strstr(message, f->warn);
    if (!f->warned)
        complain(f, "unexpected warning: %s", message);
}

static void read_file(File *f)
{
    size_t len;
    char *text = file_read(f->a, f->path, &len);
    char *cut = strstr(text, "\n---\n");
    if (cut) {
        f->expected = cut + 5;
        cut[1] = 0;
    }
    f->text = text;
    f->o = pass_defaults();
    f->o.warn = take_warning;
    f->o.warn_arg = f;
    f->code = TN_FAIL;
    while (*text == '#') {
        len = strcspn(text, "\n");
        read_comment(f, arena_strndup(f->a, text, len));
        text += len + (text[len] != 0);
    }
}

/* ---- expectations ---- */

static bool holds(const File *f, double x, const char *relation, double y)
{
    switch (*relation) {
    case '<': return x <= y;
    case '>': return x >= y;
    case '=': return x == y;
    default: return complain(f, "expected <=, >= or =, found \"%s\"", relation);
    }
}

static void check_expectation(const File *f, Graph *g, const char *line)
{
    char what[40], op[60] = "", relation[4] = "";
    double want = 0, got;
    if (sscanf(line, "# expect count %59s %3s %lf", op, relation, &want) == 3)
        got = graphs_count(g, op);
    else if (sscanf(line, "# expect %39s %3s %lf", what, relation, &want) != 3)
        got = NAN;
    else
        got = !strcmp(what, "peak")      ? (double)graphs_plan(f->a, g)->space[SPACE_MAIN].peak
              : !strcmp(what, "changes") ? f->changes
                                         : NAN;
    if (got != got)
        complain(f, "expected WHAT <= NUMBER, found \"%s\"", line);
    else if (!holds(f, got, relation, want))
        complain(f, "\"%s\": found %g", line, got);
    else
        test_npass++;
}

static void check_expectations(const File *f, Graph *g)
{
    for (const char *s = f->text; *s == '#';) {
        size_t len = strcspn(s, "\n");
        if (!strncmp(s, "# expect ", 9))
            check_expectation(f, g, arena_strndup(f->a, s, len));
        s += len + (s[len] != 0);
    }
}

/* ---- text ---- */

static void bless(const File *f, const char *got)
{
    const char *all = arena_printf(f->a, "%s---\n%s", f->text, got);
    file_write(arena_ctx(f->a), f->path, all, strlen(all));
    printf("blessed %s\n", f->path);
}

/* Prints both texts from the first line that differs. */
static void show_difference(const File *f, const char *got)
{
    const char *want = f->expected;
    int line = 1;
    for (;;) {
        size_t n = strcspn(want, "\n"), m = strcspn(got, "\n");
        if (n != m || memcmp(want, got, n) || !want[n])
            break;
        want += n + 1;
        got += n + 1;
        line++;
    }
    complain(f, "another text from its line %d on", line);
    printf("expected:\n%.1500s\nfound:\n%.1500s\n", want, got);
}

static void check_text(const File *f, const Graph *g)
{
    const char *text = graphs_text(f->a, g);
    Graph *again = graph_parse(f->a, text, f->path);
    graph_verify(again);
    if (!EXPECT(!strcmp(graphs_text(f->a, again), text)))
        complain(f, "the result prints, parses and prints to another text");
    if (!f->expected)
        return;
    if (!strcmp(text, f->expected))
        test_npass++;
    else if (f->bless)
        bless(f, text);
    else
        show_difference(f, text);
}

/* ---- values ---- */

static bool all_f64(const Graph *g)
{
    bool wide = true;
    for (int i = 0; i < g->nin; i++)
        wide &= g->in[i].v->type.dtype != F32;
    return wide;
}

static Tensor *inputs_like(Arena *a, const Graph *g, const Graph *h, const Tensor *in)
{
    Tensor *out = graphs_inputs(a, g);
    for (int i = 0; i < g->nin; i++)
        for (int k = 0; k < h->nin; k++)
            if (!strcmp(g->in[i].v->name, h->in[k].v->name))
                out[i] = tensor_copy(a, &in[k], g->in[i].v->type.dtype);
    return out;
}

static void check_near(const File *f, const char *what, const Port *p, const Tensor *got,
                       const Tensor *want, double tol)
{
    double error = graphs_distance(got, want);
    if (error <= tol)
        test_npass++;
    else
        complain(f, "%s: output %%%s differs by %.3g of the greatest element", what, p->v->name,
                 error);
}

/* Whether it needs several ranks to run. */
static bool communicates(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n && !found; n = n->next) {
        found = n->op->class == CLASS_COLLECTIVE;
        EACH_LOOP_BODY(b, n)
            found |= communicates(n->region->body[b]);
    }
    return found;
}

/* Whether it calls what is not ours to run. */
static bool calls_others(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n; n = n->next)
        found |= node_is_barrier(n);
    return found;
}

static void check_values(const File *f, Graph *before, Graph *after)
{
    Arena *a = f->a;
    bool narrow = f->o.dtype == BF16 || f->o.param_dtype == BF16;
    bool cut = f->o.accumulate > 1 || narrow || !strcmp(f->passes, "into");
    double rounding = narrow ? 3e-2 : all_f64(after) ? 1e-12 : 2e-5;
    Tensor *in = graphs_inputs(a, before), *want = graphs_interpret(a, before, in);
    Tensor *in2 = inputs_like(a, after, before, in), *got = graphs_interpret(a, after, in2);
    for (int i = 0; i < after->nout; i++) {
        int k = graphs_output(before, after, i);
        if (k >= 0)
            check_near(f, "values", &after->out[i], &got[i], &want[k], cut ? rounding : 0);
    }
    Tensor *run = communicates(after) ? got : graphs_execute(a, after, in2);
    for (int i = 0; i < after->nout; i++)
        check_near(f, "executed", &after->out[i], &run[i], &got[i], rounding);
    for (int i = 0; i < after->nout && graph_find_output(before, ROLE_LOSS, NULL); i++) {
        const Port *p = &after->out[i];
        if (p->role != ROLE_GRAD || p->v->type.dtype != F64)
            continue;
        double error = graphs_gradient_error(a, before, in, p->name, &got[i]);
        if (error < 1e-8)
            test_npass++;
        else
            complain(f, "gradient of %s: off central differences by %.3g", p->name, error);
    }
}

/* ---- one file ---- */

static void count_changes(void *arg, const Graph *g, const PassReport *r)
{
    (void)g;
    ((File *)arg)->changes += r->part ? 0 : r->changes;
}

static void run_file(void *arg)
{
    File *f = arg;
    Graph *g = graph_parse(f->a, f->text, f->path);
    graph_verify(g);
    Graph *before = graph_clone(f->a, g);
    passes_run(g, f->passes, &f->o, count_changes, f);
    if (f->error)
        return;
    check_text(f, g);
    check_expectations(f, g);
    if (!calls_others(g))
        check_values(f, before, g);
    PassOptions o = f->o;
    f->changes = 0;
    if (!strcmp(f->passes, "default"))
        passes_run(g, "canonicalize,cse,dce", &o, count_changes, f);
    if (!strcmp(f->passes, "default") && f->changes)
        complain(f, "simplifying again makes %d changes", f->changes);
}

static void test_file(const char *dir, const char *name, bool blessing)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    CHECK(a);
    File f = {.a = a, .bless = blessing, .passes = dir};
    f.path = arena_printf(a, "%s/%s/%s", folder, dir, name);
    read_file(&f);
    int code = (int)ctx_try(&ctx, run_file, &f);
    if (f.error && !code)
        complain(&f, "expected the error \"%s\"", f.error);
    else if (code && (!f.error || !strstr(ctx.message, f.error)))
        complain(&f, "%s", ctx.message);
    else if (code && code != f.code)
        complain(&f, "expected code %d, found %d", f.code, code);
    else
        test_npass++;
    if (f.warn && !f.warned && !code)
        complain(&f, "expected the warning \"%s\"", f.warn);
    arena_free(a);
    ctx_end(&ctx);
}

/* ---- all files ---- */

static int is_graph(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return len > 3 && !strcmp(e->d_name + len - 3, ".tn");
}

static int is_folder(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* The fault of the table with two rows in each other's place. */
static const char *fault_of_swapped(Arena *a, const char *first, const char *second)
{
    PassTable t = pass_table;
    PassRow *row = NEWN(a, PassRow, t.nrow), *x = NULL, *y = NULL;
    memcpy(row, t.row, sizeof *row * (size_t)t.nrow);
    for (int i = t.nrow - 1; i >= 0; i--) {
        x = strcmp(row[i].title, first) ? x : &row[i];
        y = strcmp(row[i].title, second) ? y : &row[i];
    }
    CHECK(x && y);
    PassRow swap = *x;
    *x = *y;
    *y = swap;
    t.row = row;
    const char *fault = pass_fault(a, &t);
    return fault ? fault : "";
}

/* What each pass needs is given above it, and it is told where it is not. */
static void check_table(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    CHECK(a);
    const char *fault = pass_fault(a, &pass_table);
    if (!EXPECT(!fault))
        printf("pass.def: %s\n", fault);
    EXPECT(strstr(fault_of_swapped(a, "grad.grad", "optimizer.optimizer"), "needs HAS_GRAD"));
    EXPECT(
        strstr(fault_of_swapped(a, "remat.policies", "remat.remat"), "remat.remat needs TAGGED"));
    EXPECT(strstr(fault_of_swapped(a, "cse.cse", "remat.saved"), "begins twice"));
    arena_free(a);
    ctx_end(&ctx);
}

int main(int argc, char **argv)
{
    bool blessing = argc > 1 && !strcmp(argv[1], "bless");
    struct dirent **dir, **file;
    int ndir = scandir(folder, &dir, is_folder, alphasort);
    check_table();
    EXPECT(ndir > 0);
    for (int i = 0; i < ndir; i++) {
        const char *path = dir[i]->d_name;
        char text[400];
        snprintf(text, sizeof text, "%s/%s", folder, path);
        int nfile = scandir(text, &file, is_graph, alphasort);
        for (int k = 0; k < nfile; k++) {
            test_file(path, file[k]->d_name, blessing);
            free(file[k]);
        }
        if (nfile > 0)
            free(file);
        free(dir[i]);
    }
    if (ndir > 0)
        free(dir);
    return test_report();
}
