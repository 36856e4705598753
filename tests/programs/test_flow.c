/* Flows under random edits: what is kept up to date is what a flow of the edited graph made from
 * scratch says, item by item, and what lowering makes of that graph; undo gives back what was. In
 * random graphs, the graphs of tests/pass, and compiled training steps of small models; a tenth of
 * the edits are in bodies of loops where there are any. A quarter of the random graphs are for a
 * device with two spaces, with values that go to the host and back; these are compared with a plan
 * before the edits, which may let a kernel read what lies there. Of the others nearly a third have
 * collectives. For 0.3 of those for the processor a machine names kernels, any that take the
 * calls. `test_flow SEED` repeats the random graph of that seed, edit by edit. TN_QUICK: fewer
 * edits; TN_LONG: twenty times as many. */
#include "../../src/model/model.h"
#include "../../src/pass/pass.h"
#include "../../src/plan/plan.h"
#include "../shared/flow_edits.h"
#include "../shared/test.h"

#include <dirent.h>

static Ctx ctx;

typedef struct Walk {
    Arena *a;
    Library *lib;
    Graph *g; /* NULL: a random one */
    const Device *device;
    const Machine *machine; /* NULL: the processor's */
    int64_t named;          /* calls whose kernel a machine names, not the first */
    int64_t moved, sent;    /* values that go to the host, to other ranks, in all */
    const char *name;
    uint64_t seed;
    int edits;
    bool show;
    int made[TRY_KINDS + 1]; /* by kind; undone */
} Walk;

static void expect(const Walk *w, const char *how, const char *when)
{
    if (!EXPECT(!how))
        fail(&ctx, TN_FAIL, "%s, seed %llu: %s: %s", w->name, (unsigned long long)w->seed, when,
             how);
}

/* Against a flow made from scratch; with `plan` against the steps of a plan too. */
static void check_flow(const Walk *w, Flow *f, bool plan)
{
    Arena *tmp = arena_tmp(w->a);
    expect(w, flow_line_fault(tmp, f), "the line");
    Graph *g = edited_graph(tmp, f);
    if (plan)
        plan_bound(g, w->device); /* compares by itself */
    Flow *fresh = flow_new(g, w->device, w->machine, tmp);
    flow_put_holds(f, fresh);
    expect(w, flow_differ(tmp, f, fresh), "an edit");
    arena_reset(tmp);
}

static void show_try(const Try *t)
{
    static const char *const name[] = {"clone", "move", "remove", "rewire", "replace", "hold"};
    const FlowItem *x = &t->f->item[t->item];
    printf("depth %d: %s %d %s", t->f->depth, name[t->kind], t->item,
           x->node ? x->node->op->name : "end");
    printf(" before %d, slot %d, value %d%s\n", t->before, t->slot, t->value,
           t->free ? ", free" : "");
}

/* The first line that is another one, or NULL. */
static const char *first_other(Arena *a, const char *x, const char *y)
{
    while (*x && *y) {
        size_t n = strcspn(x, "\n"), m = strcspn(y, "\n");
        if (n != m || memcmp(x, y, n))
            return arena_printf(a, "%.*s, expected %.*s", (int)m, y, (int)n, x);
        x += n + (x[n] != 0);
        y += m + (y[m] != 0);
    }
    return *x == *y ? NULL : "another length";
}

/* Undoes up to `most` edits and compares with what was. */
static void check_undo(Walk *w, Flow *f, const Chooser *c, int most)
{
    const char *before = flow_state(w->a, f);
    int mark = flow_mark(f);
    Try t;
    if (w->show)
        printf("mark\n");
    for (int k = 0; k < most; k++)
        if (try_choose(c, f, (TryKind)rng_below(c->r, TRY_KINDS), &t)) {
            if (w->show)
                show_try(&t);
            try_make(&t);
            if (rng_chance(c->r, 0.3))
                flow_peak(f);
            w->made[TRY_KINDS]++;
        }
    while (flow_mark(f) > mark) { /* in parts, each of which leaves a good flow */
        int to = flow_mark(f) - 1 - (int)rng_below(c->r, 8);
        flow_undo(f, MAX(mark, to));
        if (w->show)
            printf("undone to %d\n", flow_mark(f));
        check_flow(w, f, false);
    }
    const char *after = flow_state(w->a, f);
    expect(w, first_other(w->a, before, after), "undo");
}

/* A machine that names for each call of the graph any kernel that takes it. */
static const Machine *naming(Walk *w, Rng *r)
{
    const Plan *p = plan_make(w->a, w->g, NULL);
    Machine *m = machine_copy(w->a, p->machine);
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        const Kernel *k = s->kind == STEP_CALL && !s->copy ? s->kernel : NULL, *named = k;
        const Kernel *list = k ? op_kernels(s->node->op, KERNELS_CPU) : NULL;
        int count = 0;
        for (; list && list->name; list++)
            if (kernel_takes(list, &s->call) && rng_below(r, ++count) == 0)
                named = list;
        if (k)
            machine_set_way(m, way_key(w->a, &s->call), named->name);
        w->named += named != k;
    }
    return m;
}

/* Whether a plan by the machine runs what that names, in bodies of loops too. */
static bool runs_named(const Walk *w, const Machine *m)
{
    const Plan *p = plan_make(w->a, w->g, &(PlanFor){.machine = m});
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        bool call = s->kind == STEP_CALL && !s->copy && s->kernel;
        const char *name = call ? machine_call_way(m, &s->call) : NULL;
        if (name && strcmp(name, s->kernel->name) != 0)
            return false;
    }
    return true;
}

static void walk(void *arg)
{
    Walk *w = arg;
    Rng r = {w->seed, 0};
    Chooser c = {&r, 0.3};
    bool holds = rng_chance(&r, 0.3);
    w->device = device_at(DEVICE_cpu);
    if (!w->g) {
        w->g = gen_graph(w->a, w->lib, &r, 5 + (int)rng_below(&r, 36), false)->b.g;
        if (rng_chance(&r, 0.25)) {
            w->device = device_at(DEVICE_emulated);
            w->moved += gen_offload(w->a, w->g, &r, 0.3, true);
            plan_bound(w->g, w->device);
        } else if (rng_chance(&r, 0.3)) {
            w->sent += gen_collectives(w->a, w->g, &r, 0.3);
        }
    }
    w->machine = machine_for(w->a, w->device, NULL);
    if (device_is_host(w->device) && rng_chance(&r, 0.3)) {
        w->machine = naming(w, &r);
        expect(w, runs_named(w, w->machine) ? NULL : "runs others", "named kernels");
    }
    bool plan = !holds && device_is_host(w->device);
    if (w->show) {
        Buf b = {.a = w->a};
        graph_print(&b, w->g);
        printf("%s", b.text);
    }
    Flow *f = flow_new(w->g, w->device, w->machine, w->a);
    Try t;
    for (int k = 0; k < w->edits;) {
        TryKind kind = (TryKind)rng_below(&r, holds ? TRY_KINDS : TRY_HOLD);
        k++;
        if (!try_choose(&c, f, kind, &t))
            continue;
        if (w->show)
            show_try(&t);
        try_make(&t);
        w->made[kind]++;
        if (rng_chance(&r, 0.5))
            check_flow(w, f, plan && rng_chance(&r, 0.1));
        if (rng_chance(&r, 0.05))
            check_undo(w, f, &c, 1 + (int)rng_below(&r, 30));
    }
    check_flow(w, f, plan);
}

static bool run_walk(Walk *w)
{
    w->a = arena_new(&ctx);
    CHECK(w->a);
    Code code = ctx_try(&ctx, walk, w);
    if (code)
        printf("%s, seed %llu: %s\n", w->name, (unsigned long long)w->seed, ctx.message);
    arena_free(w->a);
    return !code;
}

/* ---- graphs that are not random ---- */

static bool walk_graph(Walk *w, Graph *g, const char *name)
{
    w->g = g;
    w->name = name;
    w->seed++;
    return run_walk(w);
}

typedef struct Read {
    Arena *a;
    const char *path;
    Graph *g;
} Read;

static void read_graph(void *arg)
{
    Read *x = arg;
    size_t len;
    char *text = file_read(x->a, x->path, &len), *cut = strstr(text, "\n---\n");
    if (cut)
        cut[1] = 0;
    x->g = graph_parse(x->a, text, x->path);
    graph_verify(x->g);
}

/* Those of a folder that are right. Returns how many walks failed. */
static int walk_folder(Walk *w, Arena *a, const char *folder)
{
    int nbad = 0;
    DIR *d = opendir(folder);
    CHECK(d);
    for (const struct dirent *e; (e = readdir(d)) && nbad < 10;) {
        Read x = {a, arena_printf(a, "%s/%s", folder, e->d_name), NULL};
        size_t n = strlen(e->d_name);
        if (n > 3 && !strcmp(e->d_name + n - 3, ".tn") && !ctx_try(&ctx, read_graph, &x))
            nbad += !walk_graph(w, x.g, x.path);
    }
    closedir(d);
    return nbad;
}

static int walk_model(Walk *w, Arena *a, const char *preset, int64_t iterations,
                      const char *recompute)
{
    ModelConfig c = *config_preset(preset);
    c.nlayer = 2;
    PassOptions o = pass_defaults();
    o.accumulate = iterations;
    o.recompute = recompute;
    Graph *g = model_graph(a, &c, 3, 16, NULL);
    passes_run(g, "default", &o, NULL, NULL);
    return !walk_graph(w, g, arena_printf(a, "%s, %s", preset, recompute));
}

/* What is sent has to be copied. A wait need not read that without a mesh, or may read another. */
static const char *const waits[] = {
    "%w: f64[7, 5] = wait_tensor(%r)  forward", "%w: f64[7, 5] = wait_tensor(%r, %r)  forward",
    "%w: f64[7, 5] = wait_tensor(%r, %c)  forward", "%w: f64[7, 5] = wait_tensor(%r, %t)  forward",
    "%v: f64[7, 5] = wait_tensor(%r, %t)  forward\n %w: f64[7, 5] = wait_tensor(%r)  forward"};

/* Plans before the edits too, which may take the wait away. Returns how many walks failed. */
static int walk_waits(Walk *w, Arena *a)
{
    int nbad = 0;
    for (int i = 0; i < LEN(waits); i++) {
        const char *text = arena_printf(a,
                                        "tenon 1\ngraph g(%%p: f64[5, 7]) {\n"
                                        " %%t: f64[7, 5] = t(%%p)  forward\n"
                                        " %%r: f64[7, 5] = all_reduce(%%t, reduce_op=\"sum\", "
                                        "group=\"r\")  forward\n"
                                        " %%a: f64[5, 7] = gelu(%%p)  forward\n"
                                        " %%b: f64[5, 7] = exp(%%a)  forward\n"
                                        " %%c: f64[7, 5] = t(%%b)  forward\n"
                                        " %s\n"
                                        " return %%w, %%b\n}\n",
                                        waits[i]);
        Graph *g = graph_parse(a, text, "waits");
        graph_verify(g);
        plan_bound(g, device_at(DEVICE_cpu)); /* compares by itself */
        nbad += !walk_graph(w, g, "waits");
    }
    return nbad;
}

static void walk_known(void *arg)
{
    Walk *w = arg;
    static const char *const folder[] = {"tests/pass/loops", "tests/pass/accumulate",
                                         "tests/pass/fuse", "tests/pass/default",
                                         "tests/pass/over_wider"};
    Arena *a = arena_new(&ctx);
    CHECK(a);
    for (int i = 0; i < LEN(folder); i++)
        walk_folder(w, a, folder[i]);
    walk_waits(w, a);
    for (int i = 0; i < 8; i++)
        walk_model(w, a, i & 1 ? "gpt2" : "llama3-1b", i & 2 ? 3 : 1, i & 4 ? "full" : "none");
    arena_free(a);
}

static void walk_random(Walk *w, int count)
{
    w->name = "random graph";
    for (int i = 0, nbad = 0; i < count && nbad < 10; i++) {
        w->seed = (uint64_t)i;
        w->g = NULL;
        nbad += !run_walk(w);
    }
}

int main(int argc, char **argv)
{
    Arena *a = arena_new(&ctx);
    Library lib = library_read(a);
    par_set_threads(1);
    Walk w = {.lib = &lib, .name = "random graph", .edits = 40};
    if (argc > 1) {
        w.seed = strtoull(argv[1], NULL, 10);
        w.show = true;
        return !run_walk(&w);
    }
    int most = getenv("TN_QUICK") ? 50 : getenv("TN_LONG") ? 5000 : 250;
    walk_random(&w, most);
    EXPECT(!ctx_try(&ctx, walk_known, &w));
    EXPECT(w.moved > most && w.sent > most / 2 && w.named > most / 4); /* by chance, about twice */
    printf("note: %d clones, %d moves, %d removals, %d rewired, %d replaced, %d holds, %d undone; "
           "%lld values in the host's memory, %lld sent; %lld calls by named kernels\n",
           w.made[0], w.made[1], w.made[2], w.made[3], w.made[4], w.made[5], w.made[6],
           (long long)w.moved, (long long)w.sent, (long long)w.named);
    arena_free(a);
    return test_report();
}
