/* Sharding problems too large to enumerate against integer programs that CBC solves, with limits
 * and without: drawn ones, and those that --shard auto makes of random graphs on meshes of two and
 * three axes, whose limits are bytes of a rank. A choice costs what CBC's does, and no bound is
 * above it. A program has a variable for each strategy and each pair of an edge's strategies, whose
 * sums over one end are the other end's strategies; those of an end that cost the same with all of
 * the other end's share a variable. CBC begins with the choice, if there is one.
 *
 * `test_pick_cbc SEED COUNT` compares the problems of so many random graphs (1), of those that are
 * neither too small nor too large the first from that seed on. TN_LONG=1: 200 of them, and 200
 * drawn problems. Without coinor-libcbc-dev it is built to say so, and compares nothing. */
#include "../shared/pick_make.h"
#include "../shared/spmd_made.h"
#include "../shared/test.h"

#ifdef TN_CBC
#include "../shared/folder.h"

#include <coin/Cbc_C_Interface.h>

static int first_seed = -1, asked = 1; /* of graphs; -1: all is compared */

typedef struct IntegerProgram {
    Cbc_Model *x;
    const PickProblem *p;
    int ncolumn;
} IntegerProgram;

static int add_column(IntegerProgram *x, double cost, bool integer)
{
    bool allowed = cost < INFINITY;
    Cbc_addCol(x->x, "", 0, allowed, allowed ? cost : 0, (char)integer, 0, NULL, NULL);
    return x->ncolumn++;
}

/* Columns whose sum, with factors 1 and -1, is `sum`. */
typedef struct ProgramRow {
    int n, cap, *column, capfactor, nfactor;
    double *factor;
} ProgramRow;

static void add_term(ProgramRow *r, int column, double factor)
{
    PUSH(a, r->column, r->n, r->cap, column);
    PUSH(a, r->factor, r->nfactor, r->capfactor, factor);
}

static void add_row(const IntegerProgram *x, const ProgramRow *r, double sum)
{
    Cbc_addRow(x->x, "", r->n, r->column, r->factor, 'E', sum);
}

/* A strategy costs what its node's edges with itself cost, too. */
static double own_cost(const PickProblem *p, int i, int s)
{
    double cost = p->cost[p->first[i] + s];
    for (const PickEdge *e = p->edge; e < p->edge + p->nedge; e++)
        if (e->u == i && e->v == i)
            cost += p->matrix[e->at + (int64_t)s * (pick_strategies(p, i) + 1)];
    return cost;
}

static void add_nodes(IntegerProgram *x)
{
    const PickProblem *p = x->p;
    for (int i = 0; i < p->n; i++)
        for (int s = 0; s < pick_strategies(p, i); s++)
            add_column(x, own_cost(p, i, s), true);
    for (int i = 0; i < p->n; i++) {
        ProgramRow r = {0};
        for (int s = 0; s < pick_strategies(p, i); s++)
            add_term(&r, p->first[i] + s, 1);
        add_row(x, &r, 1);
    }
}

/* The costs of an edge: a strategy of its end u is a row, one of v a column. */
typedef struct PairTable {
    const double *cost;
    int k[2], step[2]; /* strategies of u and v, and how far apart their costs are */
    int *first[2];     /* by strategy: the first with the same costs, whatever the other end has */
    int *column;       /* of the program, by pair of such; -1: it is forbidden */
} PairTable;

static bool alike(const PairTable *t, int end, int i, int j)
{
    for (int m = 0; m < t->k[!end]; m++)
        if (t->cost[i * t->step[end] + m * t->step[!end]] !=
            t->cost[j * t->step[end] + m * t->step[!end]])
            return false;
    return true;
}

static void find_alike(PairTable *t, int end)
{
    int *first = t->first[end] = NEWN(a, int, t->k[end]);
    for (int i = 0; i < t->k[end]; i++)
        while (first[i] < i && (first[first[i]] != first[i] || !alike(t, end, first[i], i)))
            first[i]++;
}

static void add_pairs(IntegerProgram *x, const PairTable *t)
{
    for (int i = 0; i < t->k[0]; i++)
        for (int j = 0; j < t->k[1]; j++) {
            int at = i * t->step[0] + j;
            bool counts = t->first[0][i] == i && t->first[1][j] == j && t->cost[at] < INFINITY;
            t->column[at] = counts ? add_column(x, t->cost[at], false) : -1;
        }
}

/* An end has one of a set of equal strategies as often as a pair with them is taken. */
static void add_ends(const IntegerProgram *x, const PairTable *t, int end, int node)
{
    for (int i = 0; i < t->k[end]; i++) {
        ProgramRow r = {0};
        if (t->first[end][i] != i)
            continue;
        for (int j = 0; j < t->k[!end]; j++)
            if (t->column[i * t->step[end] + j * t->step[!end]] >= 0)
                add_term(&r, t->column[i * t->step[end] + j * t->step[!end]], 1);
        for (int j = i; j < t->k[end]; j++)
            if (t->first[end][j] == i)
                add_term(&r, x->p->first[node] + j, -1);
        add_row(x, &r, 0);
    }
}

static void add_edge(IntegerProgram *x, const PickEdge *e)
{
    const PickProblem *p = x->p;
    int ku = pick_strategies(p, e->u), kv = pick_strategies(p, e->v);
    PairTable t = {.cost = p->matrix + e->at, .k = {ku, kv}, .step = {kv, 1}};
    t.column = NEWN(a, int, ku *kv);
    find_alike(&t, 0);
    find_alike(&t, 1);
    add_pairs(x, &t);
    add_ends(x, &t, 0, e->u);
    add_ends(x, &t, 1, e->v);
}

/* The node whose strategy node i has. */
static int chooser(const PickProblem *p, int i)
{
    return p->same && p->same[i] >= 0 ? p->same[i] : i;
}

static void add_limit(IntegerProgram *x, int64_t time)
{
    const PickProblem *p = x->p;
    int n = 0, *column = NEWN(a, int, p->first[p->n]);
    double *factor = NEWN(a, double, p->first[p->n]);
    for (int i = 0; i < p->n; i++)
        for (int s = 0; s < pick_strategies(p, i); s++)
            if (p->start[i] <= time && time < p->end[i] && p->usage[p->first[i] + s]) {
                column[n] = p->first[chooser(p, i)] + s;
                factor[n++] = (double)p->usage[p->first[i] + s];
            }
    Cbc_addRow(x->x, "", n, column, factor, 'L', (double)p->limit);
}

/* Says where to begin: CBC takes these strategies if they are within its rows, and goes on from
 * there to what costs less. */
static void start_from(const IntegerProgram *x, const int *strategy)
{
    const PickProblem *p = x->p;
    int *column = NEWN(a, int, p->first[p->n]);
    double *taken = NEWN(a, double, p->first[p->n]);
    for (int i = 0; i < p->n; i++)
        for (int s = 0; s < pick_strategies(p, i); s++) {
            column[p->first[i] + s] = p->first[i] + s;
            taken[p->first[i] + s] = s == strategy[i];
        }
    Cbc_setMIPStartI(x->x, p->first[p->n], column, taken);
}

/* The least cost; INFINITY: there is none. start: NULL, or a choice. */
static double solve(const PickProblem *p, const int *start)
{
    IntegerProgram x = {Cbc_newModel(), p, 0};
    Cbc_setLogLevel(x.x, 0);
    Cbc_setParameter(x.x, "ratioGap", "0");
    Cbc_setParameter(x.x, "allowableGap", "0");
    add_nodes(&x);
    for (int i = 0; i < p->nedge; i++)
        if (p->edge[i].u != p->edge[i].v)
            add_edge(&x, &p->edge[i]);
    for (int i = 0; i < p->n && p->limit < PICK_MOST; i++)
        add_limit(&x, p->start[i]);
    if (start)
        start_from(&x, start);
    Cbc_solve(x.x);
    double cost = Cbc_isProvenOptimal(x.x) ? Cbc_getObjValue(x.x) : INFINITY;
    Cbc_deleteModel(x.x);
    return cost;
}

enum { NEAR = 4000 }; /* pick looks for no limit nearer to what fits, in parts of it */

typedef struct Tally {
    int nsame, nproved, nfit, n;
} Tally;

/* Whether a result for a limit that is too low is near the least that there is: CBC finds nothing
 * within a bit less. */
static bool near_least(const PickProblem *p, const PickResult *r)
{
    PickProblem less = *p;
    less.limit = r->found - r->found / NEAR - 1;
    return r->least > p->limit || r->forbidden || less.limit <= p->limit ||
           solve(&less, NULL) == INFINITY;
}

/* Returns what was chosen. */
static PickResult compare(const PickProblem *p, const char *what, uint32_t seed, Tally *t)
{
    int *strategy = NEWN(a, int, p->n);
    PickResult r = pick(a, p, 1, NULL, NULL, strategy);
    double least = round(solve(p, r.feasible ? strategy : NULL));
    bool good = EXPECT(r.feasible == (least < INFINITY)) &&
                EXPECT(!r.feasible || (r.cost == least && r.bound <= least)) &&
                EXPECT(r.feasible || near_least(p, &r));
    if (!good)
        printf("  %s, seed %u: cost %g, bound %g, CBC's %g\n", what, seed, r.cost, r.bound, least);
    t->n++;
    t->nfit += r.feasible;
    t->nproved += r.proved;
    t->nsame += r.feasible && r.cost == least;
    return r;
}

static void show(const Tally *t, const char *what)
{
    printf("test_pick_cbc: %s: %d of %d fit, %d as cheap as CBC's, %d proved\n", what, t->nfit,
           t->n, t->nsame, t->nproved);
}

static void new_case(void)
{
    arena_free(a);
    a = arena_new(&ctx);
    CHECK(a);
}

/* ---- drawn problems ---- */

static void run(int count)
{
    static const PickShape shapes[] = {
        {40, 5, 1.5, 3, 5, 0, 0},    {40, 5, 1.5, 2, 5, 50, 0.7}, {60, 4, 1.6, 2, 0, 50, 0.6},
        {50, 5, 1.4, 5, 0, 20, 0.8}, {20, 10, 2, 0, 0, 30, 0.6},
    };
    Tally t = {0};
    for (int i = 0; i < count; i++) {
        uint32_t seed = 5000 + (uint32_t)i;
        new_case();
        const char *text = pick_make(a, seed, &shapes[i % LEN(shapes)]);
        compare(pick_parse(a, text, strlen(text), "drawn"), "drawn", seed, &t);
    }
    show(&t, "drawn problems");
    EXPECT(t.nfit > count / 2);
}

static void test_drawn(void)
{
    if (first_seed < 0)
        run(getenv("TN_LONG") ? 200 : 15);
}

/* ---- random graphs ---- */

/* What a graph's problems, without a limit and with one, came to. */
typedef struct GraphTally {
    Tally free, limited;
    int naxes[MAX_MESH + 1], nrefused;
} GraphTally;

static const char *const meshes[] = {"fsdp=2,tp=2", "dp=2,x=4", "fsdp=4,tp=2", "dp=2,fsdp=2,tp=2",
                                     "x=2,y=2,tp=4"};
enum { LEAST_NODES = 6, MOST_SIZE = 55, MOST_STRATEGIES = 1000 }; /* nodes; nodes times axes */

typedef struct Made {
    Trial *t;
    int64_t limit;
    ShardReport r;
    const PickProblem *p;
} Made;

static void make_problem(void *arg)
{
    Made *x = arg;
    PassOptions o = x->t->o;
    o.shard_problem = in_dir("problem.json");
    o.shard_memory = x->limit;
    o.shard_report = &x->r;
    passes_run(graph_clone(a, x->t->g), x->t->names, &o, NULL, NULL);
    PickProblem *p = pick_read(a, o.shard_problem);
    x->p = p;
}

/* The pass' choice is that of its problem, of which the objective may be less: there a reader of a
 * shared form pays for it, though it needs the form that was made. Nothing of a problem that is too
 * large. */
static PickResult compare_made(Trial *t, int64_t limit, uint32_t seed, Tally *y)
{
    Made x = {.t = t, .limit = limit, .r = {.a = a}};
    PickResult none = {0};
    if (ctx_try(&ctx, make_problem, &x))
        return none;
    if (!limit && x.p->first[x.p->n] > MOST_STRATEGIES)
        return none;
    PickResult r = compare(x.p, limit ? "a graph within bytes" : "a graph", seed, y);
    if (!EXPECT(x.p->limit == (limit ? limit : PICK_MOST)) ||
        !EXPECT(x.r.nbytes == r.found && x.r.least == r.least) ||
        !EXPECT(!r.feasible || x.r.sec <= 1e-9 * r.cost * (1 + 1e-9)))
        printf("  a graph, seed %u: the pass found %g s and %lld bytes, its problem has %g and "
               "%lld\n",
               seed, x.r.sec, (long long)x.r.nbytes, 1e-9 * r.cost, (long long)r.found);
    return r;
}

/* Whether the graph is neither too small nor too large, and its problem has a solution. */
static bool compare_graph(Library *lib, uint32_t seed, GraphTally *y)
{
    Counts done = {0};
    Trial t = {.a = a,
               .lib = lib,
               .rng = {seed, 0},
               .done = &done,
               .say = first_seed >= 0 && asked == 1,
               .solved = true};
    t.sums.a = a;
    trial_graph(&t);
    t.mesh = mesh_parse(&ctx, a, meshes[rng_below(&t.rng, LEN(meshes))]);
    if (t.g->nnode < LEAST_NODES || t.g->nnode * t.mesh->naxes > MOST_SIZE)
        return false;
    trial_ask(&t);
    t.o.machine = seed % 2 ? "h100" : "tests/seeds/machine/fast_links.machine";
    pass_target(&t.o, a);
    PickResult r = compare_made(&t, 0, seed, &y->free);
    y->nrefused += !r.feasible;
    if (!r.feasible)
        return false;
    y->naxes[t.mesh->naxes]++;
    if (r.found > r.least) /* some choice may need less; now and then none is allowed to */
        compare_made(&t,
                     rng_chance(&t.rng, 0.1) ? MAX(r.least - 1, 1)
                                             : r.least + rng_below(&t.rng, r.found - r.least),
                     seed, &y->limited);
    return true;
}

static void test_graphs(void)
{
    Library lib;
    GraphTally y = {0};
    Arena *own = arena_new(&ctx);
    int count = first_seed >= 0 ? asked : getenv("TN_LONG") ? 200 : 8, done = 0;
    if (!EXPECT(own && library_try(&ctx, own, &lib)))
        return;
    for (int seed = MAX(first_seed, 0); done < count; seed++) {
        new_case();
        done += compare_graph(&lib, (uint32_t)seed, &y);
    }
    printf("test_pick_cbc: graphs on meshes of 2 axes: %d, of 3: %d; refused or too large: %d\n",
           y.naxes[2], y.naxes[3], y.nrefused);
    show(&y.free, "graphs without a limit");
    show(&y.limited, "graphs within bytes");
    if (first_seed < 0)
        EXPECT(y.naxes[2] >= count / 4 && y.naxes[3] >= count / 5 && y.limited.n >= count / 4 &&
               y.limited.nfit >= count / 5);
    arena_free(own);
}
#endif

int main(int argc, char **argv)
{
#ifdef TN_CBC
    static void (*const tests[])(void) = {test_drawn, test_graphs};
    first_seed = argc > 1 ? atoi(argv[1]) : -1;
    asked = argc > 2 ? atoi(argv[2]) : 1;
    par_set_threads(1);
    return test_in_folder(tests, LEN(tests));
#else
    (void)argc, (void)argv;
    printf("test_pick_cbc: built without CBC (coinor-libcbc-dev), nothing was compared\n");
    return test_report();
#endif
}
