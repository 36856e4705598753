/* Sharding problems too large to enumerate against integer programs that CBC solves, with limits
 * and without: a choice is never cheaper than CBC's, a bound never above it, and most choices are
 * as cheap. A program has a variable for each strategy and each pair of an edge's strategies, whose
 * sums over one end are the other end's strategies.
 *
 * TN_LONG=1: more. Without coinor-libcbc-dev it is built to say so, and compares nothing. */
#include "../shared/pick_make.h"
#include "../shared/test.h"

#ifdef TN_CBC
#include <coin/Cbc_C_Interface.h>

static Ctx ctx;
static Arena *a; /* of one case */

typedef struct Program {
    Cbc_Model *x;
    const PickProblem *p;
    int ncolumn;
} Program;

static int add_column(Program *x, double cost, bool integer)
{
    bool allowed = cost < INFINITY;
    Cbc_addCol(x->x, "", 0, allowed, allowed ? cost : 0, (char)integer, 0, NULL, NULL);
    return x->ncolumn++;
}

/* Sum of columns first, first + step, ... (n of them) less column `less` (-1: 1) is 0. */
static void add_sum(Program *x, int first, int step, int n, int less)
{
    int *column = NEWN(a, int, n + 1);
    double *factor = NEWN(a, double, n + 1);
    for (int i = 0; i < n; i++) {
        column[i] = first + i * step;
        factor[i] = 1;
    }
    column[n] = less;
    factor[n] = -1;
    Cbc_addRow(x->x, "", n + (less >= 0), column, factor, 'E', less < 0);
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

static void add_nodes(Program *x)
{
    const PickProblem *p = x->p;
    for (int i = 0; i < p->n; i++)
        for (int s = 0; s < pick_strategies(p, i); s++)
            add_column(x, own_cost(p, i, s), true);
    for (int i = 0; i < p->n; i++)
        add_sum(x, p->first[i], 1, pick_strategies(p, i), -1);
}

static void add_edge(Program *x, const PickEdge *e)
{
    const PickProblem *p = x->p;
    int ku = pick_strategies(p, e->u), kv = pick_strategies(p, e->v), first = x->ncolumn;
    for (int i = 0; i < ku * kv; i++)
        add_column(x, p->matrix[e->at + i], false);
    for (int i = 0; i < ku; i++)
        add_sum(x, first + i * kv, 1, kv, p->first[e->u] + i);
    for (int j = 0; j < kv; j++)
        add_sum(x, first + j, kv, ku, p->first[e->v] + j);
}

static void add_limit(Program *x, int64_t time)
{
    const PickProblem *p = x->p;
    int n = 0, *column = NEWN(a, int, p->first[p->n]);
    double *factor = NEWN(a, double, p->first[p->n]);
    for (int i = 0; i < p->n; i++)
        for (int s = p->first[i]; s < p->first[i + 1]; s++)
            if (p->start[i] <= time && time < p->end[i]) {
                column[n] = s;
                factor[n++] = (double)p->usage[s];
            }
    Cbc_addRow(x->x, "", n, column, factor, 'L', (double)p->limit);
}

/* The least cost; INFINITY: there is none. */
static double solve(const PickProblem *p)
{
    Program x = {Cbc_newModel(), p, 0};
    Cbc_setLogLevel(x.x, 0);
    Cbc_setParameter(x.x, "ratioGap", "0");
    Cbc_setParameter(x.x, "allowableGap", "0");
    add_nodes(&x);
    for (int i = 0; i < p->nedge; i++)
        if (p->edge[i].u != p->edge[i].v)
            add_edge(&x, &p->edge[i]);
    for (int i = 0; i < p->n && p->limit < PICK_MOST; i++)
        add_limit(&x, p->start[i]);
    Cbc_solve(x.x);
    double cost = Cbc_isProvenOptimal(x.x) ? Cbc_getObjValue(x.x) : INFINITY;
    Cbc_deleteModel(x.x);
    return cost;
}

typedef struct Tally {
    int nsame, nproved, nfit, n;
} Tally;

static void compare(uint32_t seed, const PickShape *shape, Tally *t)
{
    const char *text = pick_make(a, seed, shape);
    const PickProblem *p = pick_parse(a, text, strlen(text), "drawn");
    int *strategy = NEWN(a, int, p->n);
    PickResult r = pick(a, p, 1, NULL, NULL, strategy);
    double least = round(solve(p));
    bool good = EXPECT(r.feasible == (least < INFINITY)) &&
                EXPECT(!r.feasible || (r.cost >= least && r.bound <= least)) &&
                EXPECT(!r.feasible || !r.proved || r.cost == least);
    if (!good)
        printf("  seed %u: cost %g, bound %g, CBC's %g\n", seed, r.cost, r.bound, least);
    t->n++;
    t->nfit += r.feasible;
    t->nproved += r.proved;
    t->nsame += r.feasible && r.cost == least;
}

static void run(int count)
{
    static const PickShape shapes[] = {
        {40, 5, 1.5, 3, 5, 0, 0},    {40, 5, 1.5, 2, 5, 50, 0.7}, {60, 4, 1.6, 2, 0, 50, 0.6},
        {50, 5, 1.4, 5, 0, 20, 0.8}, {20, 10, 2, 0, 0, 30, 0.6},
    };
    Tally t = {0};
    for (int i = 0; i < count; i++) {
        arena_free(a);
        a = arena_new(&ctx);
        CHECK(a);
        compare(5000 + (uint32_t)i, &shapes[i % LEN(shapes)], &t);
    }
    printf("test_pick_cbc: %d of %d fit, %d as cheap as CBC's, %d proved\n", t.nfit, t.n, t.nsame,
           t.nproved);
    EXPECT(t.nsame == t.nfit && t.nfit > count / 2);
}
#endif

int main(void)
{
#ifdef TN_CBC
    run(getenv("TN_LONG") ? 200 : 15);
    arena_free(a);
#else
    printf("test_pick_cbc: built without CBC (coinor-libcbc-dev), nothing was compared\n");
#endif
    return test_report();
}
