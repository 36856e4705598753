/* Sharding problems: what is read, wrong files, and choices against enumeration of all choices:
 * costs, limits, the least limit where nothing fits; bounds that hold; the same answer every time.
 * Instances of the contest, where ../shared is there. TN_LONG=1: more. */
#include "../../src/pick/solve.h"
#include "../shared/pick_make.h"
#include "../shared/test.h"

static Ctx ctx;
static Arena *a; /* of one case */

/* ---- reading ---- */

typedef struct Text {
    const char *text;
    PickProblem *p;
} Text;

static void parse(void *arg)
{
    Text *x = arg;
    x->p = pick_parse(a, x->text, strlen(x->text), "f.json");
}

static PickProblem *problem(const char *text)
{
    Text x = {text, NULL};
    if (!EXPECT(ctx_try(&ctx, parse, &x) == TN_OK))
        printf("  %s\n", ctx.message);
    CHECK(x.p);
    return x.p;
}

#define WRONG(text, part) EXPECT_FAIL(&ctx, parse, (&(Text){text, NULL}), part)
#define NODES             "{\"nodes\": [{\"cost\": [1, null]}, {\"cost\": [0, -2.5e-3]}], "

static void test_forms(void)
{
    PickProblem *p = problem(NODES "\"other\": [{\"x\": \"a\\\"]\"}, true], \"edges\": "
                                   "[{\"nodes\": [1, 0], \"cost\": [[1, 2], [null, 4]]}]}");
    EXPECT(p->n == 2 && p->nedge == 1 && !p->contest && p->limit == PICK_MOST);
    EXPECT(p->cost[0] == 1 && p->cost[1] == INFINITY && p->cost[3] == -2.5e-3);
    EXPECT(p->edge[0].u == 1 && p->matrix[2] == INFINITY && p->matrix[3] == 4);
    p = problem(
        "{\"problem\": {\"usage_limit\": 7, \"nodes\": {\"costs\": [[1, 1e18]], \"usages\": "
        "[[3, 4]], \"intervals\": [[-2, 9]]}, \"edges\": {\"nodes\": [], \"costs\": []}}}");
    EXPECT(p->contest && p->limit == 7 && p->start[0] == -2 && p->end[0] == 9);
    EXPECT(p->usage[1] == 4 && p->cost[1] == INFINITY);
}

/* A node that has another one's strategy uses something in an interval of its own. */
static void test_same(void)
{
    PickProblem *p = problem(
        "{\"nodes\": [{\"cost\": [1, null, 3], \"usage\": [5, 0, 1], \"interval\": [0, 1]}, "
        "{\"same\": 0, \"usage\": [9, 0, 2], \"interval\": [4, 5]}], \"edges\": [], "
        "\"usage_limit\": 8}");
    int strategy[2];
    EXPECT(p->n == 2 && p->same && p->same[0] == -1 && p->same[1] == 0);
    PickResult r = pick(a, p, 0, NULL, NULL, strategy);
    EXPECT(r.feasible && r.proved && r.cost == 3 && strategy[0] == 2 && strategy[1] == 2);
    Buf text = {.a = a};
    pick_print_problem(&text, p, NULL);
    p = problem(text.text);
    EXPECT(p->same && p->same[1] == 0 && p->usage[4] == 0 && p->usage[5] == 2);
    WRONG("{\"nodes\": [{\"same\": 0}], \"edges\": []}", "expected a node before node 0");
    WRONG("{\"nodes\": [{\"cost\": [1]}, {\"same\": 0, \"cost\": [1]}], \"edges\": []}",
          "stand in one node");
    WRONG("{\"nodes\": [{\"cost\": [1]}, {\"same\": 0}, {\"same\": 1}], \"edges\": []}",
          "that has costs, found 1");
    WRONG("{\"nodes\": [{\"cost\": [1]}, {\"same\": 0}], \"edges\": [{\"nodes\": [0, 1], "
          "\"cost\": [[1]]}]}",
          "expected nodes with costs");
}

static void test_wrong(void)
{
    WRONG("", "f.json:1:1: expected {, found the end");
    WRONG("{}", "f.json:1:3: expected \"problem\", or \"nodes\" and \"edges\"");
    WRONG("{\"nodes\": [],\n \"edges\": [x]}", "f.json:2:12: expected {, found x");
    WRONG("{\"nodes\": [], \"nodes\": [], \"edges\": []}", "key \"nodes\" stands twice");
    WRONG("{\"nodes\": [], \"edges\": []} 1", "expected the end, found 1");
    WRONG("{\"nodes\": [{}], \"edges\": []}", "key \"cost\" is missing");
    WRONG("{\"nodes\": [{\"cost\": []}], \"edges\": []}", "expected a strategy, found none");
    WRONG("{\"nodes\": [{\"cost\": [01]}], \"edges\": []}", "expected a number, found 01");
    WRONG("{\"nodes\": [{\"cost\": [1e999]}], \"edges\": []}", "expected a finite number");
    WRONG("{\"nodes\": [{\"cost\": [1,]}], \"edges\": []}", "expected a number, found ]");
    WRONG("{\"nodes\": [{\"cost\": [1], \"usage\": [1]}], \"edges\": []}",
          "key \"interval\" is missing beside \"usage\"");
    WRONG("{\"nodes\": [{\"cost\": [1], \"usage\": [-1], \"interval\": [0, 1]}], \"edges\": []}",
          "f.json:1:36: expected 0 to 9007199254740992, found -1");
    WRONG("{\"nodes\": [{\"cost\": [1], \"usage\": [0.5], \"interval\": [0, 1]}], \"edges\": []}",
          "expected an integer, found 0.5");
    WRONG("{\"nodes\": [{\"cost\": [1], \"usage\": [1, 2], \"interval\": [0, 1]}], \"edges\": []}",
          "nodes: usages[0]: expected 1 numbers, found 2");
    WRONG(NODES "\"edges\": [{\"nodes\": [0, 2], \"cost\": [[1]]}]}",
          "edges: nodes[0]: expected 0 to 1, found 2");
    WRONG(NODES "\"edges\": [{\"nodes\": [0, 1], \"cost\": [[1, 2]]}]}",
          "edges: cost[0]: expected 2 rows of 2 numbers, found 1 rows, row 0 of 2");
    WRONG(NODES "\"edges\": [{\"nodes\": [0], \"cost\": [[1, 2]]}]}",
          "expected 2 numbers, found 1");
    WRONG("{\"problem\": {\"nodes\": {}, \"edges\": {}}}", "key \"intervals\" is missing");
    WRONG("{\"nodes\": \"a\nb\", \"edges\": []}", "expected [, found \"");
    WRONG("{\"a\nb\": 1}", "a string does not end on its line");
}

/* ---- all choices ---- */

typedef struct Best {
    double cost;  /* the least within the limit; INFINITY: none */
    int64_t peak; /* the least peak of those without anything forbidden; PICK_MOST: none */
} Best;

static bool next_choice(const PickProblem *p, int *strategy)
{
    for (int i = 0; i < p->n; i++) {
        if (++strategy[i] < pick_strategies(p, i))
            return true;
        strategy[i] = 0;
    }
    return false;
}

static Best enumerate(const PickProblem *p)
{
    Best best = {INFINITY, PICK_MOST};
    int *strategy = NEWN(a, int, p->n);
    Arena *tmp = arena_tmp(a);
    do {
        PickCheck c = pick_check(tmp, p, strategy);
        if (!c.forbidden)
            best.peak = MIN(best.peak, c.peak);
        if (pick_fits(p, &c))
            best.cost = fmin(best.cost, c.cost);
        arena_reset(tmp);
    } while (next_choice(p, strategy));
    return best;
}

static double least_within(const PickProblem *p, int64_t limit)
{
    PickProblem q = *p;
    q.limit = limit;
    return enumerate(&q).cost;
}

static void compare(const PickProblem *p, uint32_t seed)
{
    int *strategy = NEWN(a, int, p->n);
    Best best = enumerate(p);
    PickResult r = pick(a, p, 1, NULL, NULL, strategy);
    PickCheck c = pick_check(a, p, strategy);
    bool good = EXPECT(r.feasible == (best.cost < INFINITY) && r.proved);
    if (r.feasible)
        good &= EXPECT(pick_fits(p, &c) && c.cost == r.cost && r.cost == best.cost) &&
                EXPECT(r.bound == r.cost && r.found == c.peak && r.least <= best.peak);
    else if (best.peak < PICK_MOST)
        good &= EXPECT(r.least == best.peak && r.found == best.peak && !c.forbidden &&
                       c.peak == best.peak && !r.forbidden) &&
                EXPECT(r.found_cost == c.cost && r.found_bound <= least_within(p, r.found) &&
                       r.found_bound > -INFINITY);
    else
        good &= EXPECT(r.forbidden);
    PickProblem free = *p;
    free.limit = PICK_MOST;
    r = pick(a, &free, 1, NULL, NULL, strategy);
    good &= EXPECT(r.forbidden || r.least <= best.peak); /* of all choices, not of the cheapest */
    if (!good)
        printf("  seed %u: cost %g, least %g, peak %lld, found %lld, least %lld\n", seed, r.cost,
               best.cost, (long long)best.peak, (long long)r.found, (long long)r.least);
}

static void new_case(void)
{
    arena_free(a);
    a = arena_new(&ctx);
    CHECK(a);
}

static const PickShape shapes[] = {
    {6, 4, 1.5, 0, 0, 0, 0},     {7, 3, 1.5, 25, 30, 0, 0},  {6, 4, 2, 10, 0, 9, 0.9},
    {7, 3, 1.3, 25, 20, 9, 0.5}, {7, 3, 1, 5, 50, 100, 0.3}, {5, 4, 3, 40, 0, 9, 0.6},
};

static void test_enumeration(int count)
{
    int nfit = 0, nmisfit = 0, nnone = 0;
    for (int i = 0; i < count; i++) {
        new_case();
        const PickProblem *p = problem(pick_make(a, (uint32_t)i, &shapes[i % LEN(shapes)]));
        Best best = enumerate(p);
        nfit += best.cost < INFINITY;
        nmisfit += !(best.cost < INFINITY) && best.peak < PICK_MOST;
        nnone += best.peak == PICK_MOST;
        compare(p, (uint32_t)i);
    }
    EXPECT(nfit > count / 3 && nmisfit > count / 50 && nnone > count / 50); /* all kinds are met */
}

/* ---- bounds ---- */

/* That no choice is below the bound, whose prices search has not seen. */
static void test_bounds(int count)
{
    int ntight = 0, nlimit = 0;
    for (int i = 0; i < count; i++) {
        new_case();
        PickProblem *p = problem(pick_make(a, 1000 + (uint32_t)i, &shapes[i % LEN(shapes)]));
        Best best = enumerate(p);
        Core *c = core_new(a, p);
        core_reduce(c);
        if (c->empty) {
            EXPECT(best.peak == PICK_MOST);
            continue;
        }
        PickModel *m = model_new(a, c);
        Dual *d = dual_new(a, m);
        Search *s = search_new(a, m, &(SearchRoom){.a = a});
        s->guide = d->price;
        for (int k = 0; k < 200; k++)
            dual_step(d, s);
        dual_finish(d, s);
        EXPECT(d->bound <= best.cost + 1e-6 && s->best_cost >= best.cost);
        ntight += best.cost < INFINITY && d->bound > best.cost - 0.01;
        nlimit += m->nrow > 0;
        for (int u = 0; u < m->n && best.cost < INFINITY && s->best_cost <= best.cost; u++)
            EXPECT(d->bound + d->above[m->first[u] + s->best[u]] <= best.cost + 1e-6);
    }
    if (!EXPECT(ntight > count / 4 && nlimit > count / 10))
        printf("  %d bounds were tight, %d had rows\n", ntight, nlimit);
}

/* ---- larger ones ---- */

static void test_larger(int count)
{
    for (int i = 0; i < count; i++) {
        new_case();
        PickShape shape = {60 + 20 * i, 6, 1.6, 5, 20, i % 2 ? 100 : 0, 0.6};
        const PickProblem *p = problem(pick_make(a, 2000 + (uint32_t)i, &shape));
        int *x = NEWN(a, int, p->n), *y = NEWN(a, int, p->n);
        PickResult r = pick(a, p, 0, NULL, NULL, x), again = pick(a, p, 0, NULL, NULL, y);
        PickCheck c = pick_check(a, p, x);
        EXPECT(!memcmp(x, y, sizeof *x * (size_t)p->n) && r.bound == again.bound);
        EXPECT(!r.feasible || (pick_fits(p, &c) && r.bound <= r.cost && c.cost == r.cost));
    }
}

/* ---- the contest's instances ---- */

static const PickProblem *read_instance(const char *name)
{
    char command[200], path[] = "/tmp/tenon_pick_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    snprintf(command, sizeof command, "gunzip -c ../shared/fixtures/iopddl/%s.json.gz >%s 2>%s",
             name, path, "/dev/null");
    const PickProblem *p = system(command) ? NULL : pick_read(a, path);
    remove(path);
    return p;
}

static void instance(void *name)
{
    const double known = !strcmp(name, "B") ? 532843 : 217039;
    const PickProblem *p = read_instance(name);
    if (!p) {
        printf("test_pick: no ../shared/fixtures/iopddl/%s.json.gz\n", (const char *)name);
        return;
    }
    int *strategy = NEWN(a, int, p->n);
    PickResult r = pick(a, p, 1, NULL, NULL, strategy);
    EXPECT(r.feasible && r.cost == known && r.bound <= known && r.bound > 0.9 * known);
}

static void test_contest(void)
{
    char *names[] = {"B", "G"};
    for (int i = 0; i < LEN(names); i++) {
        new_case();
        EXPECT(ctx_try(&ctx, instance, names[i]) == TN_OK);
    }
}

int main(void)
{
    bool more = getenv("TN_LONG");
    new_case();
    test_forms();
    test_same();
    test_wrong();
    test_enumeration(more ? 6000 : 300);
    test_bounds(more ? 2000 : 120);
    test_larger(more ? 20 : 4);
    test_contest();
    arena_free(a);
    return test_report();
}
