/* Problems as JSON: the contest's form, whose keys are columns, and Tenon's own, whose nodes and
 * edges are objects (docs/formats.md). The first key tells them apart. Keys may stand in any order,
 * so sizes are compared once all is read; what the reader does not know is skipped. */
#include "pick.h"

#include <math.h>
#include <string.h>

#define LARGEST   ((int64_t)1 << 53) /* integers up to here are exact */
#define COST_MOST 0x1p1000           /* of all costs together, so that no sum of them overflows */
enum { MOST_VALUES = 1 << 30 };
static const double forbidden = 1e18; /* in the contest's form */

/* NumberRows of numbers, one after the other. */
typedef struct NumberRows {
    Arena *a;
    double *value;
    int nvalue, value_cap;
    int *first; /* of row i; row i + 1 begins where it ends */
    int n, cap;
} NumberRows;

/* Columns of a problem, of either form. */
typedef struct Columns {
    Arena *a;
    JsonScan *s;
    NumberRows cost, usage, interval, ends, matrix, same; /* same: empty rows where there is none */
    NumberRows shape; /* by edge, of Tenon's own form: how long each row of its matrix is */
    double limit;     /* negative: there is none */
} Columns;

static void push_value(JsonScan *s, NumberRows *r, double x)
{
    if (r->nvalue == MOST_VALUES)
        scan_fail(s, "expected at most %d numbers", MOST_VALUES);
    PUSH(r->a, r->value, r->nvalue, r->value_cap, x);
}

static void begin_row(NumberRows *r)
{
    PUSH(r->a, r->first, r->n, r->cap, r->nvalue);
}

static int row_len(const NumberRows *r, int i)
{
    return (i + 1 < r->n ? r->first[i + 1] : r->nvalue) - r->first[i];
}

static const double *row_of(const NumberRows *r, int i)
{
    return r->value + r->first[i];
}

/* ---- elements ---- */

static double read_cost(JsonScan *s)
{
    return scan_null(s) ? INFINITY : scan_number(s);
}

static double read_contest_cost(JsonScan *s)
{
    double x = scan_number(s);
    return x >= forbidden ? INFINITY : x;
}

static double read_usage(JsonScan *s)
{
    return (double)scan_integer(s, 0, LARGEST);
}

static double read_time(JsonScan *s)
{
    return (double)scan_integer(s, -LARGEST, LARGEST);
}

static double read_index(JsonScan *s)
{
    return (double)scan_integer(s, 0, MOST_VALUES);
}

typedef double (*Element)(JsonScan *s);

static void read_elements(JsonScan *s, NumberRows *r, Element element)
{
    scan_open(s, '[');
    for (int64_t count = 0; scan_more(s, ']', &count);)
        push_value(s, r, element(s));
}

static void read_row(JsonScan *s, NumberRows *r, Element element)
{
    begin_row(r);
    read_elements(s, r, element);
}

static void read_rows(JsonScan *s, NumberRows *r, Element element)
{
    if (r->n)
        scan_fail(s, "a key stands twice");
    scan_open(s, '[');
    for (int64_t count = 0; scan_more(s, ']', &count);)
        read_row(s, r, element);
}

/* A row made of rows, whose lengths go to `shape`. */
static void read_flat(JsonScan *s, NumberRows *r, NumberRows *shape, Element element)
{
    begin_row(r);
    begin_row(shape);
    scan_open(s, '[');
    for (int64_t count = 0; scan_more(s, ']', &count);) {
        const int before = r->nvalue;
        read_elements(s, r, element);
        push_value(s, shape, r->nvalue - before);
    }
}

/* ---- objects ---- */

/* A key, what reads its value, whether it must stand. */
typedef struct JsonKey {
    const char *name;
    void (*read)(Columns *x);
    bool needed;
} JsonKey;

static const JsonKey *find_key(const JsonKey *keys, const char *word)
{
    for (; keys->name; keys++)
        if (!strcmp(keys->name, word))
            return keys;
    return NULL;
}

static void read_key(Columns *x, const JsonKey *keys, const char *word, unsigned *seen)
{
    const JsonKey *k = find_key(keys, word);
    unsigned bit = k ? 1u << (k - keys) : 0;
    if (*seen & bit)
        scan_fail(x->s, "key \"%s\" stands twice", word);
    *seen |= bit;
    if (k)
        k->read(x);
    else
        scan_skip(x->s);
}

static void read_object(Columns *x, const JsonKey *keys)
{
    char word[SCAN_WORD];
    unsigned seen = 0;
    scan_open(x->s, '{');
    for (int64_t count = 0; scan_more(x->s, '}', &count);) {
        scan_key(x->s, word);
        read_key(x, keys, word, &seen);
    }
    for (const JsonKey *k = keys; k->name; k++)
        if (k->needed && !(seen >> (k - keys) & 1))
            scan_fail(x->s, "key \"%s\" is missing", k->name);
}

static void read_objects(Columns *x, const JsonKey *keys)
{
    scan_open(x->s, '[');
    for (int64_t count = 0; scan_more(x->s, ']', &count);)
        read_object(x, keys);
}

static void limit(Columns *x)
{
    x->limit = scan_null(x->s) ? -1 : (double)scan_integer(x->s, 0, PICK_MOST);
}

/* ---- the contest's form ---- */

static void contest_costs(Columns *x)
{
    read_rows(x->s, &x->cost, read_contest_cost);
}

static void contest_usages(Columns *x)
{
    read_rows(x->s, &x->usage, read_usage);
}

static void contest_intervals(Columns *x)
{
    read_rows(x->s, &x->interval, read_time);
}

static void contest_ends(Columns *x)
{
    read_rows(x->s, &x->ends, read_index);
}

static void contest_matrices(Columns *x)
{
    read_rows(x->s, &x->matrix, read_contest_cost);
}

static void contest_nodes(Columns *x)
{
    static const JsonKey keys[] = {{"intervals", contest_intervals, true},
                                   {"costs", contest_costs, true},
                                   {"usages", contest_usages, true},
                                   {0}};
    read_object(x, keys);
}

static void contest_edges(Columns *x)
{
    static const JsonKey keys[] = {
        {"nodes", contest_ends, true}, {"costs", contest_matrices, true}, {0}};
    read_object(x, keys);
}

static const JsonKey contest_keys[] = {{"nodes", contest_nodes, true},
                                       {"edges", contest_edges, true},
                                       {"usage_limit", limit, false},
                                       {0}};

/* ---- Tenon's own form ---- */

static void own_cost(Columns *x)
{
    read_row(x->s, &x->cost, read_cost);
}

static void own_same(Columns *x)
{
    begin_row(&x->same);
    push_value(x->s, &x->same, read_index(x->s));
}

static void own_usage(Columns *x)
{
    read_row(x->s, &x->usage, read_usage);
}

static void own_interval(Columns *x)
{
    read_row(x->s, &x->interval, read_time);
}

static void own_ends(Columns *x)
{
    read_row(x->s, &x->ends, read_index);
}

static void own_matrix(Columns *x)
{
    read_flat(x->s, &x->matrix, &x->shape, read_cost);
}

/* A node has costs of its own, or as many strategies as the one before it whose strategy it has. */
static void fill_cost(Columns *x)
{
    int i = x->same.n - 1;
    bool costs = x->cost.n > i;
    if (!row_len(&x->same, i) && !costs)
        scan_fail(x->s, "key \"cost\" is missing");
    if (!row_len(&x->same, i))
        return;
    double at = *row_of(&x->same, i);
    if (costs)
        scan_fail(x->s, "keys \"cost\" and \"same\" stand in one node");
    if (at >= i || row_len(&x->same, (int)at))
        scan_fail(x->s, "same: expected a node before node %d that has costs, found %.0f", i, at);
    begin_row(&x->cost);
    for (int k = row_len(&x->cost, (int)at); k; k--)
        push_value(x->s, &x->cost, 0);
}

/* A node that uses nothing needs no usage and no interval. */
static void fill_usage(Columns *x)
{
    int n = row_len(&x->cost, x->cost.n - 1);
    if (x->usage.n < x->cost.n) {
        begin_row(&x->usage);
        for (int i = 0; i < n; i++)
            push_value(x->s, &x->usage, 0);
    }
    if (x->interval.n < x->cost.n) {
        begin_row(&x->interval);
        push_value(x->s, &x->interval, 0);
        push_value(x->s, &x->interval, 0);
    }
}

static void own_nodes(Columns *x)
{
    static const JsonKey keys[] = {{"cost", own_cost, false},
                                   {"same", own_same, false},
                                   {"usage", own_usage, false},
                                   {"interval", own_interval, false},
                                   {0}};
    scan_open(x->s, '[');
    for (int64_t count = 0; scan_more(x->s, ']', &count);) {
        int n = x->same.n;
        read_object(x, keys);
        if (x->same.n == n)
            begin_row(&x->same);
        fill_cost(x);
        if (x->usage.n == x->cost.n && x->interval.n < x->cost.n)
            scan_fail(x->s, "key \"interval\" is missing beside \"usage\"");
        fill_usage(x);
    }
}

static void own_edges(Columns *x)
{
    static const JsonKey keys[] = {{"nodes", own_ends, true}, {"cost", own_matrix, true}, {0}};
    read_objects(x, keys);
}

static const JsonKey own_keys[] = {
    {"nodes", own_nodes, true}, {"edges", own_edges, true}, {"usage_limit", limit, false}, {0}};

/* ---- from columns to a problem ---- */

#define BAD(x, ...) fail((x)->s->ctx, TN_FAIL, __VA_ARGS__)

static void need_rows(const Columns *x, const char *name, const NumberRows *r, const char *as,
                      int n)
{
    if (r->n != n)
        BAD(x, "%s: %s: expected %d rows, as %s has, found %d", x->s->title, name, n, as, r->n);
}

static void need_len(const Columns *x, const char *name, const NumberRows *r, int i, int64_t n)
{
    if (row_len(r, i) != n)
        BAD(x, "%s: %s[%d]: expected %lld numbers, found %d", x->s->title, name, i, (long long)n,
            row_len(r, i));
}

static void fill_node(const Columns *x, PickProblem *p, int i, double *left)
{
    int k = row_len(&x->cost, i);
    if (!k)
        BAD(x, "%s: nodes: costs[%d]: expected a strategy, found none", x->s->title, i);
    need_len(x, "nodes: usages", &x->usage, i, k);
    need_len(x, "nodes: intervals", &x->interval, i, 2);
    const double *usage = row_of(&x->usage, i), *at = row_of(&x->interval, i);
    double most = 0;
    for (int j = 0; j < k; j++) {
        p->usage[p->first[i] + j] = (int64_t)usage[j];
        most = fmax(most, usage[j]);
    }
    p->start[i] = (int64_t)at[0];
    p->end[i] = (int64_t)at[1];
    if (!p->contest && at[0] > at[1])
        BAD(x, "%s: nodes: interval[%d]: expected a begin and an end, found %.0f and %.0f",
            x->s->title, i, at[0], at[1]);
    if ((*left -= most) < 0)
        BAD(x, "%s: nodes: usages: their sum is beyond %lld%s", x->s->title,
            (long long)(x->limit < 0 ? PICK_MOST : LARGEST), x->limit < 0 ? "" : ", with a limit");
}

static void fill_same(const Columns *x, PickProblem *p)
{
    p->same = NEWN(x->a, int, p->n);
    for (int i = 0; i < p->n; i++)
        p->same[i] = row_len(&x->same, i) ? (int)*row_of(&x->same, i) : -1;
}

static void fill_nodes(const Columns *x, PickProblem *p)
{
    double left =
        (double)(x->limit < 0 ? PICK_MOST : LARGEST); /* sums that are compared are exact */
    need_rows(x, "nodes: usages", &x->usage, "costs", p->n);
    need_rows(x, "nodes: intervals", &x->interval, "costs", p->n);
    p->first = NEWN(x->a, int, p->n + 1);
    for (int i = 0; i < p->n; i++)
        p->first[i] = x->cost.first[i];
    p->first[p->n] = x->cost.nvalue;
    p->cost = x->cost.value;
    p->usage = NEWN(x->a, int64_t, x->cost.nvalue);
    p->start = NEWN(x->a, int64_t, p->n);
    p->end = NEWN(x->a, int64_t, p->n);
    for (int i = 0; i < p->n; i++)
        fill_node(x, p, i, &left);
    if (x->same.nvalue)
        fill_same(x, p);
}

/* A matrix has a row for each strategy of u, with a number for each of v. */
static void check_shape(const Columns *x, int i, int ku, int kv)
{
    const int n = row_len(&x->shape, i);
    for (int k = 0; k < n || k < ku; k++) {
        const double len = k < n ? row_of(&x->shape, i)[k] : 0;
        if (n != ku || len != kv)
            BAD(x,
                "%s: edges: cost[%d]: expected %d rows of %d numbers, found %d rows, row %d of "
                "%.0f",
                x->s->title, i, ku, kv, n, k, len);
    }
}

static void fill_edge(const Columns *x, const PickProblem *p, int i, PickEdge *e)
{
    need_len(x, "edges: nodes", &x->ends, i, 2);
    const double *ends = row_of(&x->ends, i);
    for (int k = 0; k < 2; k++)
        if (ends[k] >= p->n)
            BAD(x, "%s: edges: nodes[%d]: expected 0 to %d, found %.0f", x->s->title, i, p->n - 1,
                ends[k]);
    for (int k = 0; k < 2; k++)
        if (p->same && p->same[(int)ends[k]] >= 0)
            BAD(x,
                "%s: edges: nodes[%d]: expected nodes with costs, found %.0f, which has those of "
                "another one",
                x->s->title, i, ends[k]);
    *e = (PickEdge){(int)ends[0], (int)ends[1], x->matrix.first[i]};
    if (!p->contest)
        check_shape(x, i, pick_strategies(p, e->u), pick_strategies(p, e->v));
    need_len(x, "edges: costs", &x->matrix, i,
             (int64_t)pick_strategies(p, e->u) * pick_strategies(p, e->v));
}

static void fill_edges(const Columns *x, PickProblem *p)
{
    need_rows(x, "edges: costs", &x->matrix, "nodes", p->nedge);
    PickEdge *edge = NEWN(x->a, PickEdge, p->nedge);
    for (int i = 0; i < p->nedge; i++)
        fill_edge(x, p, i, &edge[i]);
    p->edge = edge;
    p->matrix = x->matrix.value;
}

static double most_cost(const double *cost, int64_t n)
{
    double most = 0;
    for (int64_t k = 0; k < n; k++)
        most = isfinite(cost[k]) ? fmax(most, fabs(cost[k])) : most;
    return most;
}

/* An infinite sum would be taken for one of forbidden choices. */
static void check_sum(const Columns *x, const PickProblem *p)
{
    double sum = 0;
    for (int i = 0; i < p->n; i++)
        sum += most_cost(p->cost + p->first[i], p->first[i + 1] - p->first[i]);
    for (int i = 0; i < p->nedge; i++)
        sum += most_cost(row_of(&x->matrix, i), row_len(&x->matrix, i));
    if (sum > COST_MOST)
        BAD(x, "%s: costs: expected a sum of at most %g, found %g", x->s->title, COST_MOST, sum);
}

static PickProblem *fill_problem(const Columns *x, bool contest)
{
    PickProblem *p = NEW(x->a, PickProblem);
    *p = (PickProblem){.a = x->a,
                       .title = x->s->title,
                       .contest = contest,
                       .n = x->cost.n,
                       .nedge = x->ends.n,
                       .limit = x->limit < 0 ? PICK_MOST : (int64_t)x->limit};
    fill_nodes(x, p);
    fill_edges(x, p);
    check_sum(x, p);
    return p;
}

/* What the object's first key is, "problem" or one of Tenon's own form. */
static PickProblem *read_either(Columns *x)
{
    char word[SCAN_WORD];
    bool contest = false;
    unsigned seen = 0;
    scan_open(x->s, '{');
    for (int64_t count = 0; scan_more(x->s, '}', &count);) {
        scan_key(x->s, word);
        const bool problem = !strcmp(word, "problem");
        if (problem && contest)
            scan_fail(x->s, "key \"problem\" stands twice");
        if (problem && seen)
            scan_fail(x->s, "expected \"problem\" as the first key");
        if (problem) {
            contest = true;
            read_object(x, contest_keys);
        } else if (contest)
            scan_skip(x->s);
        else
            read_key(x, own_keys, word, &seen);
    }
    if (!contest && (seen & 3) != 3)
        scan_fail(x->s, "expected \"problem\", or \"nodes\" and \"edges\"");
    scan_end(x->s);
    return fill_problem(x, contest);
}

static PickProblem *read_scan(Arena *a, JsonScan *s)
{
    Columns x = {.a = a, .s = s, .limit = -1};
    NumberRows *rows[] = {&x.cost, &x.usage, &x.interval, &x.ends, &x.matrix, &x.same, &x.shape};
    for (int i = 0; i < LEN(rows); i++)
        rows[i]->a = a;
    return read_either(&x);
}

PickProblem *pick_parse(Arena *a, const char *text, size_t len, const char *title)
{
    JsonScan s = {arena_ctx(a), arena_strdup(a, title), NULL, text, 0, len, 1, 1};
    return read_scan(a, &s);
}

static void close_file(void *file)
{
    fclose(file);
}

PickProblem *pick_read(Arena *a, const char *path)
{
    enum { CHUNK = 1 << 16 };
    Ctx *ctx = arena_ctx(a);
    int64_t nbytes;
    FILE *f = fdopen(file_open(ctx, path, &nbytes), "rb");
    if (!f)
        fail(ctx, TN_FAIL, "%s: cannot open", file_title(path));
    arena_defer(a, close_file, f);
    rewind(f); /* what came by a pipe was read to its end */
    JsonScan s = {ctx, arena_strdup(a, file_title(path)), f, arena_alloc(a, CHUNK), 0, 0, 1, 1};
    return read_scan(a, &s);
}
