/* What fits: the search over settings against an enumeration, goals that are lowered, and
 * tn_compile with graphs, with models, and with what trains, evaluates and generates in one arena.
 */
#include "../../include/tenon.h"
#include "../../src/decide/compile.h"
#include "../../src/run/run.h"
#include "../shared/test.h"

#include <math.h>
#include <unistd.h>

/* ---- the search, with bytes and seconds made up ---- */

typedef struct Made {
    int planned;
    int64_t slope, floor; /* bytes of a row, and of none */
    uint64_t seed;
} Made;

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
    return x ^ (x >> 29);
}

static void make_setting(const Made *m, CompileSetting *x)
{
    bool full = !strcmp(x->recompute, "full"), chosen = full || !strcmp(x->recompute, "auto");
    int64_t rows = (x->batch + x->accumulate - 1) / x->accumulate;
    uint64_t noise = mix(m->seed + (uint64_t)(x->accumulate * 131 + x->batch * 7 + chosen));
    x->peak = m->floor + rows * m->slope / (chosen ? 2 : 1) + (int64_t)(noise % 50);
    x->peak += (full ? 5 : 0) - (x->sliced ? 40 : 0); /* a search gets a little below it */
    x->nbytes = noise % 11 ? x->peak + 1 : 0;
    x->sec = 1 + 0.01 * (double)(noise % 97) + 0.1 * (double)x->accumulate + chosen;
}

static void plan_made(void *arg, CompileSetting *x)
{
    Made *m = arg;
    m->planned++;
    make_setting(m, x);
}

static CompileSearch search_of(Made *m, int64_t limit)
{
    return (CompileSearch){.limit = limit,
                           .recompute = true,
                           .accumulate = true,
                           .rows = true,
                           .plan = plan_made,
                           .arg = m};
}

/* All settings of the batch: the fastest that fits, and the fewest bytes. */
static void enumerate(const Made *m, int64_t batch, int64_t limit, double *sec, int64_t *least)
{
    static const char *const word[] = {"none", "auto"};
    *sec = HUGE_VAL;
    *least = INT64_MAX;
    for (int w = 0; w < 2; w++)
        for (int64_t k = 1; k <= batch; k *= 2) {
            CompileSetting x = {.recompute = word[w], .accumulate = k, .batch = batch};
            make_setting(m, &x);
            if (!x.nbytes)
                continue;
            *least = MIN(*least, x.nbytes);
            if (x.nbytes <= limit)
                *sec = MIN(*sec, x.sec);
        }
}

static void test_search(void)
{
    int fits = 0, fewer = 0, none = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        Made m = {.slope = 100, .floor = 300, .seed = mix(seed)};
        CompileSetting asked = {.recompute = "none", .accumulate = 1, .batch = 16};
        int64_t limit = 320 + (int64_t)(seed * 2), least;
        double sec;
        make_setting(&m, &asked);
        if (!asked.nbytes)
            continue;
        CompileSearch s = search_of(&m, limit);
        compile_search(&s, &asked);
        enumerate(&m, 16, limit, &sec, &least);
        EXPECT(m.planned == s.count && s.count <= 3 * 5 + 3 * 5);
        EXPECT(isfinite(sec) || s.least.nbytes == least);
        if (isfinite(sec)) {
            fits++;
            EXPECT(s.best.nbytes && s.best.nbytes <= limit && s.best.sec == sec && !s.fewer);
            EXPECT(s.best.batch == 16);
        } else if (s.best.nbytes) {
            fewer++;
            EXPECT(s.fewer && s.best.nbytes <= limit && s.best.batch < 16);
        } else {
            none++;
        }
    }
    EXPECT(fits > 50 && fewer > 5 && none > 5);
}

/* Without slices first; of those that need least then with them. */
static void test_sliced(void)
{
    Made m = {.slope = 100, .floor = 300, .seed = 5};
    CompileSetting asked = {.recompute = "auto", .accumulate = 1, .batch = 8, .sliced = true};
    make_setting(&m, &asked);
    CompileSearch s = search_of(&m, 1 << 20);
    s.chunk = s.sliced = true;
    s.limit = asked.nbytes - 1;
    compile_search(&s, &asked);
    EXPECT(s.best.nbytes && !s.best.sliced);
    s = search_of(&m, 1);
    s.chunk = s.sliced = true;
    s.rows = false;
    compile_search(&s, &asked);
    EXPECT(!s.best.nbytes && s.least.sliced);
}

static void test_microbatches(void)
{
    for (uint64_t seed = 0; seed < 100; seed++) {
        Made m = {.slope = 100, .floor = 300, .seed = mix(seed)};
        CompileSetting asked = {.recompute = "none", .accumulate = 1, .batch = 16}, best = {0};
        int64_t limit = 400 + (int64_t)seed * 15, least = INT64_MAX;
        for (int64_t k = 1; k <= 16; k *= 2) {
            CompileSetting x = {.recompute = "none", .accumulate = k, .batch = 16};
            make_setting(&m, &x);
            least = x.nbytes ? MIN(least, x.nbytes) : least;
            if (x.nbytes && x.nbytes <= limit && (!best.nbytes || x.sec < best.sec))
                best = x;
        }
        CompileSearch s = search_of(&m, limit);
        CompileSetting x = compile_microbatches(&s, &asked);
        EXPECT(best.nbytes ? x.accumulate == best.accumulate : x.nbytes == least);
    }
}

/* Bytes that are counted before a setting is planned, which needs some more. */
static void plan_counted(void *arg, CompileSetting *x)
{
    Made *m = arg;
    const int64_t rows = (x->batch + x->accumulate - 1) / x->accumulate;
    m->planned++;
    x->counted = m->floor + MAX(rows, (int64_t)m->seed) * m->slope + (x->accumulate > 1 ? 150 : 0);
    x->nbytes = x->counted + 60;
    x->sec = 1 + 0.1 * (double)x->accumulate;
}

/* The fastest that fits, or the least, though not all numbers of microbatches are planned: of
 * iterations that have the same from 1, 2, 4 ... rows on. */
static void test_counted(void)
{
    enum { ROWS = 64, LEVELS = 7 };
    int fewer = 0;
    for (int64_t flat = 1; flat <= ROWS; flat *= 2)
        for (int64_t limit = 200; limit < 8000; limit += 300) {
            Made m = {.slope = 100, .floor = 300, .seed = (uint64_t)flat};
            CompileSetting asked = {.recompute = "full", .accumulate = 1, .batch = ROWS},
                           best = {0};
            int64_t least = INT64_MAX;
            for (int64_t k = 1; k <= ROWS; k *= 2) {
                CompileSetting x = {.recompute = "full", .accumulate = k, .batch = ROWS};
                plan_counted(&m, &x);
                least = MIN(least, x.nbytes);
                if (x.nbytes <= limit && (!best.nbytes || x.sec < best.sec))
                    best = x;
            }
            m.planned = 0;
            CompileSearch s = search_of(&m, limit);
            s.recompute = s.rows = false;
            s.counts = true;
            s.plan = plan_counted;
            CompileSetting x = compile_microbatches(&s, &asked);
            EXPECT(best.nbytes ? x.accumulate == best.accumulate : x.nbytes == least);
            EXPECT(m.planned <= LEVELS);
            fewer += m.planned < LEVELS;
        }
    EXPECT(fewer > 20);
}

/* ---- goals ---- */

/* A step that has any goal of at least 100, with an evaluation that needs 30 more than it, once
 * both have slices, and as much as before until then. */
typedef struct Lowered {
    int times;
    int64_t goal, floor, beside;
} Lowered;

static int plan_lowered(void *arg, int64_t goal, CompileNeed *need)
{
    Lowered *x = arg;
    x->times++;
    x->goal = goal;
    need->step = MAX(goal ? MIN(goal, 1000) : 1000, x->floor) - 5;
    need->step_need = need->step + 5;
    need->reserve = 10;
    need->arena = MAX(need->step + x->beside, need->step);
    return 0;
}

static void test_within(void)
{
    CompileNeed need;
    Lowered x = {.floor = 100, .beside = 30};
    CompileGoal g = {.plan = plan_lowered, .arg = &x};
    EXPECT(!compile_within(&g, &need) && x.times == 1 && x.goal == 0);
    g.limit = 500;
    EXPECT(!compile_within(&g, &need) && x.times == 2 && need.arena + need.reserve > 500);
    g.slices = true;
    x.times = 0;
    EXPECT(!compile_within(&g, &need) && need.arena + need.reserve <= 500 && x.times == 2);
    g.slices = false; /* what is computed again does not help where others need most */
    g.again = true;
    x.times = 0;
    EXPECT(!compile_within(&g, &need) && x.times == 1);
    x = (Lowered){.floor = 100};
    EXPECT(!compile_within(&g, &need) && need.arena + need.reserve <= 500 && x.times == 2);
    g.limit = 90;
    x.times = 0;
    EXPECT(!compile_within(&g, &need) && x.times == 1);
    g.limit = 101;
    EXPECT(!compile_within(&g, &need) && x.times <= 8 && need.step_need == 100);
}

/* ---- tn_compile ---- */

enum { ROWS = 8, SEQ = 32 };

static tn_context *ctx;
static tn_model *m;

static bool ok(int code)
{
    if (code)
        printf("  %s\n", tn_error(ctx));
    return EXPECT(!code);
}

static tn_task task_of(bool beside)
{
    tn_task t = {.batch = ROWS, .nparts = beside ? 3 : 1};
    t.part[0] = (tn_part){TN_PART_STEP, m, SEQ, NULL, "default"};
    t.part[1] = (tn_part){TN_PART_EVALUATION, m, SEQ, NULL, "forward"};
    t.part[2] = (tn_part){TN_PART_GENERATION, m, SEQ, NULL, NULL};
    return t;
}

/* The same as its parts made by hand. */
static void test_same(void)
{
    tn_options o = tn_options_default();
    tn_task t = task_of(false);
    tn_compiled c;
    tn_graph *g;
    tn_plan *p;
    const char *text[2];
    int64_t peak, persistent, reserve;
    if (!ok(tn_compile(ctx, &t, &o, &c)) || !ok(tn_model_graph(m, ROWS, SEQ, &o, &g)) ||
        !ok(tn_graph_passes(g, "default", &o, NULL, NULL)) || !ok(tn_plan_new(g, &o, 1, &p)))
        return;
    ok(tn_plan_text(p, 1, &text[0]));
    ok(tn_plan_text(c.plan[0], 1, &text[1]));
    EXPECT(!strcmp(text[0], text[1]));
    tn_plan_bytes(p, &peak, &persistent, &reserve);
    EXPECT(c.setting.peak == peak && c.setting.nbytes == peak + reserve && c.setting.sec > 0);
    EXPECT(c.setting.accumulate == 1 && c.setting.batch == ROWS && !c.found.nbytes && !c.tried);
    tn_plan_free(p);
    tn_graph_free(g);
    tn_compiled_free(&c);
    EXPECT(!c.plan[0] && !c.graph[0]);
}

/* A graph stays as it is, and can be searched. */
static void test_graph(void)
{
    tn_options o = tn_options_default();
    tn_task t = {.nparts = 1};
    tn_compiled c, least;
    const char *text[2];
    tn_misfit why;
    o.recompute = "none";
    if (!ok(tn_model_graph(m, ROWS, SEQ, &o, &t.part[0].graph)))
        return;
    t.part[0].passes = "default";
    tn_graph_print(t.part[0].graph, &text[0]);
    char *before = strdup(text[0]);
    if (ok(tn_compile(ctx, &t, &o, &c))) {
        o.memory = c.setting.nbytes - 1;
        t.vary = TN_VARY_RECOMPUTE;
        EXPECT(tn_compile(ctx, &t, &o, &least) == TN_CODE_FIT && least.tried == 1);
        EXPECT(least.found.nbytes && !strcmp(least.found.recompute, "auto"));
        EXPECT(tn_error_misfit(ctx, &why) && why.limit == o.memory && !why.mapped);
        EXPECT(why.peak + why.reserve == c.setting.nbytes && why.least == c.setting.nbytes);
        EXPECT(least.least.nbytes < why.least);
        EXPECT(strstr(why.holds, "peak"));
        EXPECT(least.plan[0] && least.setting.nbytes == c.setting.nbytes);
        tn_compiled_free(&least);
        tn_compiled_free(&c);
    }
    tn_graph_print(t.part[0].graph, &text[1]);
    EXPECT(!strcmp(before, text[1]));
    free(before);
    tn_graph_free(t.part[0].graph);
}

/* All three in one arena, and a limit for all of them; what is found fits when it is asked for. */
static void test_beside(void)
{
    tn_options o = tn_options_default();
    tn_task t = task_of(true), step = task_of(false);
    tn_compiled c, alone;
    tn_misfit why;
    if (!ok(tn_compile(ctx, &t, &o, &c)) || !ok(tn_compile(ctx, &step, &o, &alone)))
        return;
    EXPECT(c.plan[1] && c.graph[1] && !c.plan[2] && c.generator[2] && !c.generator[0]);
    EXPECT(c.setting.nbytes >= alone.setting.nbytes);
    int64_t all = c.setting.nbytes;
    tn_compiled_free(&alone);
    tn_compiled_free(&c);
    o.memory = 1;
    t.vary = TN_VARY_ACCUMULATE;
    EXPECT(tn_compile(ctx, &t, &o, &c) == TN_CODE_FIT && !c.found.nbytes && c.tried > 1);
    EXPECT(tn_error_misfit(ctx, &why) && why.least == c.setting.nbytes && why.least < all);
    EXPECT(c.least.nbytes <= why.least);
    EXPECT(strstr(tn_error(ctx),
                  ", with evaluation and sampling in the same arena (the step alone needs "));
    o.memory = c.least.nbytes;
    o.accumulate = c.least.accumulate;
    t.vary = 0;
    tn_compiled_free(&c);
    if (ok(tn_compile(ctx, &t, &o, &c))) {
        EXPECT(c.setting.nbytes <= o.memory && c.plan[0] && c.plan[1] && c.generator[2]);
        tn_compiled_free(&c);
    }
    EXPECT(!tn_error_misfit(ctx, &why) || why.least > 0);
}

/* accumulate 0: no more microbatches than what fits needs, and the fastest of those. */
static void test_auto(void)
{
    tn_options o = tn_options_default();
    tn_task t = task_of(false);
    tn_compiled c, given;
    o.recompute = "none";
    o.accumulate = 0;
    if (!ok(tn_compile(ctx, &t, &o, &c)))
        return;
    EXPECT(c.setting.accumulate == 1);
    o.memory = c.setting.nbytes - 1;
    tn_compiled_free(&c);
    if (!ok(tn_compile(ctx, &t, &o, &c)))
        return;
    EXPECT(c.setting.accumulate > 1 && c.setting.nbytes <= o.memory);
    double sec = c.setting.sec;
    for (o.accumulate = 1; o.accumulate <= ROWS; o.accumulate *= 2) {
        int code = tn_compile(ctx, &t, &o, &given);
        EXPECT(code || given.setting.sec >= sec);
        EXPECT(code || o.accumulate != c.setting.accumulate || given.setting.sec == sec);
        tn_compiled_free(&given);
    }
    tn_compiled_free(&c);
    o.accumulate = 0;
    o.memory = 1;
    EXPECT(tn_compile(ctx, &t, &o, &c) == TN_CODE_FIT && c.setting.nbytes > 1);
    tn_compiled_free(&c);
}

/* ---- what is free ---- */

static char root[] = "/tmp/tenon_compile_XXXXXX";

/* Writes a file under the root, with its folders. */
static void put(const char *folder, const char *file, const char *text)
{
    char command[600], path[300];
    snprintf(command, sizeof command, "mkdir -p %s/%s", root, folder);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, file);
    CHECK(!system(command));
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

static void test_free(void)
{
    const int64_t mib = 1 << 20;
    const char *v2 = "sys/fs/cgroup/a/b", *v1 = "sys/fs/cgroup/memory/c";
    CHECK(mkdtemp(root));
    EXPECT(memory_free_under(root) == -1);
    put("proc", "meminfo", "MemTotal: 9999999 kB\nMemAvailable:   1048576 kB\n");
    EXPECT(memory_free_under(root) == 1024 * mib);
    put("proc/self", "cgroup", "4:cpu,cpuacct:/x\n0::/a/b\n");
    put("sys/fs/cgroup/x", "memory.max", "1\n"); /* of no group that holds memory */
    put("sys/fs/cgroup/x", "memory.current", "0\n");
    EXPECT(memory_free_under(root) == 1024 * mib);
    put(v2, "memory.max", "max\n");
    put(v2, "memory.current", "104857600\n");
    EXPECT(memory_free_under(root) == 1024 * mib);
    put(v2, "memory.max", "524288000\n");
    EXPECT(memory_free_under(root) == 400 * mib);
    put(v2, "memory.stat", "anon 1\ninactive_file 52428800\nactive_file 7\n");
    EXPECT(memory_free_under(root) == 450 * mib);
    put("sys/fs/cgroup/a", "memory.max", "209715200\n"); /* what holds it leaves less */
    put("sys/fs/cgroup/a", "memory.current", "104857600\n");
    EXPECT(memory_free_under(root) == 100 * mib);
    put("sys/fs/cgroup/a", "memory.max", "734003200\n"); /* more than its own */
    EXPECT(memory_free_under(root) == 450 * mib);
    put("proc/self", "cgroup", "9:name=systemd:/\n4:memory:/c\n0::/\n");
    put(v1, "memory.limit_in_bytes", "314572800\n");
    put(v1, "memory.usage_in_bytes", "104857600\n");
    put(v1, "memory.stat", "inactive_file 1\ntotal_inactive_file 10485760\n");
    EXPECT(memory_free_under(root) == 210 * mib);
    put("proc/self", "cgroup", "4:memory:/outside/of/here\n"); /* a container's own root */
    put("sys/fs/cgroup/memory", "memory.limit_in_bytes", "157286400\n");
    put("sys/fs/cgroup/memory", "memory.usage_in_bytes", "52428800\n");
    EXPECT(memory_free_under(root) == 100 * mib);
    put("sys/fs/cgroup/memory", "memory.usage_in_bytes", "262144000\n");
    EXPECT(memory_free_under(root) == 0);
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(!system(command));
    EXPECT(memory_less_margin(3200 * mib) == 3000 * mib && memory_less_margin(mib) == 1);
    EXPECT(memory_less_margin(1024 * mib) == 1024 * mib - TN_MARGIN_LEAST);
}

static void test_shared(void)
{
    tn_options o = tn_options_default();
    int64_t one, four, margin = -1;
    if (!ok(tn_memory_free(ctx, &o, &one, &margin)))
        return;
    EXPECT(memory_less_margin(one + margin) == one);
    o.mesh = "fsdp=4";
    ok(tn_memory_free(ctx, &o, &four, NULL));
    EXPECT(one > 0 && four > 0 && four < one * 3 / 8);
    o.backend = "none such";
    EXPECT(tn_memory_free(ctx, &o, &four, NULL) == TN_CODE_USAGE);
}

static void refused(const tn_task *t, const char *part)
{
    tn_options o = tn_options_default();
    tn_compiled c;
    EXPECT(tn_compile(ctx, t, &o, &c) == TN_CODE_USAGE);
    if (!EXPECT(strstr(tn_error(ctx), part)))
        printf("  %s\n", tn_error(ctx));
}

static void test_refused(void)
{
    tn_task t = task_of(true);
    t.part[0].model = NULL;
    refused(&t, "task.part[0]: expected a model");
    t = task_of(true);
    t.part[1].seq = 0;
    refused(&t, "seq");
    t = task_of(true);
    t.nparts = 5;
    refused(&t, "nparts");
    t.nparts = 1;
    t.part[0].kind = TN_PART_GENERATION;
    refused(&t, "expected the step");
    t = task_of(false);
    t.batch = 0;
    refused(&t, "batch");
    t = task_of(false);
    t.part[0].kind = TN_PART_GRAPH;
    refused(&t, "expected a graph of the context, found NULL");
    tn_options o = tn_options_default();
    tn_compiled c;
    ok(tn_model_graph(m, ROWS, SEQ, &o, &t.part[0].graph));
    o.accumulate = 0;
    EXPECT(tn_compile(ctx, &t, &o, &c) == TN_CODE_USAGE);
    EXPECT(tn_plan_new(t.part[0].graph, &o, 0, &c.plan[0]) == TN_CODE_USAGE);
}

int main(void)
{
    ctx = tn_context_new();
    test_search();
    test_sliced();
    test_microbatches();
    test_counted();
    test_within();
    test_free();
    test_shared();
    if (ok(tn_model_open(ctx, "tests/ref/gpt2-tiny", &m))) {
        test_same();
        test_graph();
        test_beside();
        test_auto();
        test_refused();
    }
    tn_context_free(ctx);
    return test_report();
}
