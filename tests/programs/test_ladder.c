/* Which values pay to be computed again. Minimum cuts of small networks are those that all sides
 * enumerate to. Ladders of small random steps: each step saves fewer bytes and takes more seconds,
 * and at every price of a byte one of their places is as cheap as the best of all sets.
 *
 * `test_ladder SEED [COUNT]` runs the random cases of one seed, or more. TN_LONG=1: more of all. */
#include "../../src/decide/decide.h"
#include "../../src/plan/network.h"
#include "../shared/step_made.h"
#include "../shared/test.h"

#include <math.h>

static Ctx ctx;
static Arena *a; /* of one case */

/* ---- networks ---- */

enum { MOST_VERTICES = 10, MOST_ARCS = 40 };

typedef struct MadeArc {
    int from, to;
    int64_t capacity;
} MadeArc;

typedef struct MadeNetwork {
    int nvertex, narc, source, sink;
    MadeArc arc[MOST_ARCS];
} MadeNetwork;

/* Small capacities, so that many cuts are as good, or ones near the largest. */
static MadeNetwork made_network(Rng *rng)
{
    MadeNetwork m = {.nvertex = 2 + (int)rng_below(rng, MOST_VERTICES - 1)};
    int64_t unit = rng_chance(rng, 0.2) ? INT64_C(1) << 54 : 1, most = 1 + rng_below(rng, 9);
    m.source = (int)rng_below(rng, m.nvertex);
    m.sink = (m.source + 1 + (int)rng_below(rng, m.nvertex - 1)) % m.nvertex;
    m.narc = (int)rng_below(rng, MIN(MOST_ARCS, 4 * m.nvertex));
    for (int i = 0; i < m.narc; i++) {
        MadeArc *x = &m.arc[i];
        x->from = (int)rng_below(rng, m.nvertex);
        x->to = (x->from + 1 + (int)rng_below(rng, m.nvertex - 1)) % m.nvertex;
        x->capacity = unit * rng_below(rng, most + 1);
    }
    return m;
}

static int64_t cut_of_side(const MadeNetwork *m, unsigned side)
{
    int64_t sum = 0;
    for (int i = 0; i < m->narc; i++)
        if (side >> m->arc[i].from & 1 && !(side >> m->arc[i].to & 1))
            sum += m->arc[i].capacity;
    return sum;
}

/* The side with the least cut, and of those with the fewest vertices, which is unique. */
static unsigned best_side(const MadeNetwork *m)
{
    unsigned best = (1U << m->nvertex) - 1 - (1U << m->sink);
    for (unsigned side = 0; side < 1U << m->nvertex; side++) {
        if (!(side >> m->source & 1) || side >> m->sink & 1)
            continue;
        int64_t now = cut_of_side(m, side), least = cut_of_side(m, best);
        bool fewer = __builtin_popcount(side) < __builtin_popcount(best);
        best = now < least || (now == least && fewer) ? side : best;
    }
    return best;
}

static void test_network(uint64_t seed)
{
    Rng rng = {seed, 0};
    MadeNetwork m = made_network(&rng);
    Network g = network_new(a, m.nvertex, INT64_MAX);
    unsigned side = 0, want = best_side(&m);
    int vertex[MOST_VERTICES], next = network_vertices(&g, m.nvertex - 2);
    for (int v = 0; v < m.nvertex; v++)
        vertex[v] = v == m.source ? NETWORK_SOURCE : v == m.sink ? NETWORK_SINK : next++;
    for (int i = 0; i < m.narc; i++)
        network_arc(&g, vertex[m.arc[i].from], vertex[m.arc[i].to], m.arc[i].capacity);
    network_flow(&g);
    for (int v = 0; v < m.nvertex; v++)
        side |= (unsigned)network_side(&g, vertex[v]) << v;
    if (!EXPECT(side == want))
        printf("  seed %llu: network of %d vertices: side %#x cuts %lld, expected %#x, %lld\n",
               (unsigned long long)seed, m.nvertex, side, (long long)cut_of_side(&m, side), want,
               (long long)cut_of_side(&m, want));
}

/* ---- ladders: random steps ---- */

enum { MOST_FORWARD = 14, MOST_MADE = 12 };

/* A step, as it is where decisions are made. */
static Graph *made_step(Rng *rng, bool blocks)
{
    static const int widths[] = {8, 40, 48, 64, 80};
    StepForm form = {.kinds = "pppaanvuuu",
                     .nunary = 7,
                     .columns = 64,
                     .widths = widths,
                     .nwidth = LEN(widths),
                     .rows = 16,
                     .nrows = 9,
                     .last = 0.6,
                     .block = blocks ? 3 : 0,
                     .scopeless = 0.15,
                     .save = 0.04};
    int end = 4 + (int)rng_below(rng, MOST_MADE - 3);
    const char *text = step_made(a, rng, &form, end);
    Graph *g = graph_parse(a, text, "step");
    PassOptions o = pass_defaults();
    passes_run(g, "grad,canonicalize,cse,dce", &o, NULL, NULL);
    return g;
}

/* ---- ladders: all sets ---- */

/* What is asked of a ladder, on sets of forward nodes by number. */
typedef struct Sets {
    const Node *node[MOST_FORWARD];
    double nbytes[MOST_FORWARD], sec[MOST_FORWARD];
    unsigned operand[MOST_FORWARD], read, may, out;
    int n;
} Sets;

typedef struct Point {
    double nbytes, sec;
} Point;

/* Bit of the node that defines v's memory; 0: an input or none of these. */
static unsigned bit_of(const Sets *s, const Value *v)
{
    const Node *n = v->def;
    while (n && node_aliases(n))
        n = n->in[0]->def;
    for (int k = 0; k < s->n; k++)
        if (s->node[k] == n)
            return 1U << k;
    return 0;
}

static bool other_block(const Node *x, const Node *y)
{
    Block b = block_of(x->scope), c = block_of(y->scope);
    return !block_equal(&b, &c);
}

static void read_node(Sets *s, const Node *n)
{
    unsigned self = n->nout ? bit_of(s, n->out[0]) : 0;
    for (int i = 0; i < n->nin && !node_aliases(n); i++) {
        unsigned bit = bit_of(s, n->in[i]);
        if (!bit)
            continue;
        if (n->phase >= BACKWARD)
            s->read |= bit;
        else
            s->operand[__builtin_ctz(self)] |= bit;
        if (n->phase < BACKWARD && other_block(n, s->node[__builtin_ctz(bit)]))
            s->may &= ~bit;
    }
}

/* False: too many forward nodes. */
static bool read_sets(Sets *s, const Graph *g, const Machine *m, const int64_t *weight)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (n->phase >= BACKWARD || node_aliases(n))
            continue;
        if (s->n == MOST_FORWARD)
            return false;
        int k = s->n++;
        s->node[k] = n;
        s->sec[k] = node_sec(m, NULL, n);
        s->may |= n->policy ? 0 : 1U << k;
        for (int i = 0; i < n->nout; i++)
            s->nbytes[k] +=
                weight ? (double)weight[n->out[i]->id] : (double)type_nbytes(&n->out[i]->type);
    }
    for (const Node *n = g->first; n; n = n->next)
        read_node(s, n);
    for (int i = 0; i < g->nout; i++)
        s->out |= bit_of(s, g->out[i].v);
    return true;
}

/* What it comes to that the backward computes these again: what they read is available too. */
static Point point_of(const Sets *s, unsigned again)
{
    unsigned available = s->read & ~s->out, before = 0;
    while (available != before) {
        before = available;
        for (int k = 0; k < s->n; k++)
            if (available & again & 1U << k)
                available |= s->operand[k] & ~s->out;
    }
    Point p = {0, 0};
    for (int k = 0; k < s->n; k++) {
        p.sec += available & again & 1U << k ? s->sec[k] : 0;
        p.nbytes += available & ~again & 1U << k ? s->nbytes[k] : 0;
    }
    return p;
}

static double cost(const Point *p, double price)
{
    return p->sec + price * p->nbytes;
}

static double best_point(const Point *p, int n, double price)
{
    double best = HUGE_VAL;
    for (int i = 0; i < n; i++)
        best = MIN(best, cost(&p[i], price));
    return best;
}

/* The points of all sets; returns how many. */
static int all_points(const Sets *s, Point **to)
{
    Point *p = NEWN(a, Point, 1 << s->n);
    int n = 0;
    for (unsigned again = 0; again < 1U << s->n; again++)
        if (!(again & ~s->may))
            p[n++] = point_of(s, again);
    *to = p;
    return n;
}

/* ---- ladders: what is asked ---- */

static unsigned set_of_step(const Sets *s, const LadderStep *step, unsigned before)
{
    unsigned set = 0;
    for (int i = 0; i < step->n; i++) {
        unsigned bit = 0;
        for (int k = 0; k < s->n; k++)
            if (!strcmp(step->value[i], s->node[k]->out[0]->name))
                bit = 1U << k;
        EXPECT(bit && bit & s->may && !(bit & (before | set)));
        set |= bit;
    }
    return set;
}

/* The points of a ladder's places, from that where nothing is computed again. */
static Point *points_of(const Sets *s, const Ladder *l, const char *what)
{
    Point *p = NEWN(a, Point, l->n + 1);
    unsigned again = 0;
    p[0] = point_of(s, 0);
    for (int i = 0; i < l->n; i++) {
        again |= set_of_step(s, &l->step[i], again);
        p[i + 1] = point_of(s, again);
        if (!EXPECT(p[i + 1].nbytes <= p[i].nbytes && p[i + 1].sec >= p[i].sec))
            printf("  %s: step %d of %d: from %.0f bytes, %.4g us to %.0f, %.4g\n", what, i + 1,
                   l->n, p[i].nbytes, 1e6 * p[i].sec, p[i + 1].nbytes, 1e6 * p[i + 1].sec);
    }
    return p;
}

/* The places of a ladder, and the points of all sets. */
typedef struct Compared {
    const char *what;
    const Point *place, *set;
    int nplace, nset;
} Compared;

static void test_price(const Compared *c, double price)
{
    double want = best_point(c->set, c->nset, price), got = best_point(c->place, c->nplace, price);
    if (!EXPECT(got <= want * (1 + 1e-7) && got >= want * (1 - 1e-7)))
        printf("  %s: at %.4g us a MB a place costs %.6g us, the best set %.6g\n", c->what,
               1e12 * price, 1e6 * got, 1e6 * want);
}

/* Prices up to the highest, and those at which places that follow each other cost the same. */
static void test_prices(const Sets *s, const Compared *c, Rng *rng)
{
    double sec = 0, nbytes = 0;
    for (int k = 0; k < s->n; k++) {
        sec += s->sec[k];
        nbytes += s->nbytes[k];
    }
    double high = 1e3 * sec / MAX(nbytes, 1);
    test_price(c, high);
    for (int i = 0; i < 10; i++)
        test_price(c, high * exp(-14 * rng_uniform(rng)));
    for (int i = 1; i < c->nplace; i++) {
        const Point *p = &c->place[i - 1], *q = &c->place[i];
        if (q->nbytes < p->nbytes)
            test_price(c, MIN((q->sec - p->sec) / (p->nbytes - q->nbytes), high));
    }
}

static int64_t *made_weights(const Graph *g, Rng *rng)
{
    int64_t *weight = NEWN(a, int64_t, g->nvalue);
    for (int i = 0; i < g->nvalue; i++)
        weight[i] = rng_chance(rng, 0.4) ? 0 : 64 * rng_below(rng, 4096);
    return weight;
}

static int nladder, nplace; /* that were tested */

static void test_ladder(uint64_t seed)
{
    Rng rng = {seed, 1 << 20};
    bool blocks = rng_chance(&rng, 0.5), weighted = rng_chance(&rng, 0.4);
    Graph *g = made_step(&rng, blocks);
    const Machine *m = machine_get(a, "none", 2);
    const int64_t *weight = weighted ? made_weights(g, &rng) : NULL;
    const char *what =
        arena_printf(a, "seed %llu, %s, %s", (unsigned long long)seed,
                     blocks ? "blocks" : "no blocks", weighted ? "bytes at a place" : "all bytes");
    Sets s = {0};
    if (!read_sets(&s, g, m, weight))
        return;
    int *block = NEWN(a, int, g->nnode);
    for (const Node *n = g->first; n; n = n->next)
        block[n->id] = (int)block_of(n->scope).number;
    Ladder l = ladder_new(a, g, m, block, weight, false);
    Compared c = {.what = what, .place = points_of(&s, &l, what), .nplace = l.n + 1};
    Point *all;
    c.nset = all_points(&s, &all);
    c.set = all;
    test_prices(&s, &c, &rng);
    nladder++;
    nplace += l.n;
}

/* ---- all ---- */

static void guarded(void (*fn)(void *arg), void *arg)
{
    if (!EXPECT(!ctx_try(&ctx, fn, arg)))
        printf("  %s\n", ctx.message);
    arena_reset(a);
}

static void random_case(void *arg)
{
    test_network(*(uint64_t *)arg);
    test_ladder(*(uint64_t *)arg);
}

static void test_random(uint64_t first, uint64_t count)
{
    for (uint64_t seed = first; seed < first + count; seed++)
        guarded(random_case, &seed);
    printf("note: %d ladders with %d places\n", nladder, nplace);
}

int main(int argc, char **argv)
{
    a = arena_new(&ctx);
    if (argc > 1)
        test_random(strtoull(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    else
        test_random(1, getenv("TN_LONG") ? 3000 : getenv("TN_QUICK") ? 50 : 300);
    arena_free(a);
    return test_report();
}
