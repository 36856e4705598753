/* What is computed again so that a step fits. Minimum cuts of small networks are those that all
 * sides enumerate to. Ladders of small random steps: each step saves fewer bytes and takes more
 * seconds, and at every price of a byte one of their places is as cheap as the best of all sets.
 * Whole models over 40 budgets: each is held where the least one fits, a larger one is never
 * slower, the same input gives the same plan; and at five budgets the loss and all gradients have
 * the bits of a step that saves all, with dropout, in the memory that was planned. So have the
 * results of graphs that PyTorch traced.
 *
 * `test_decide SEED [COUNT]` runs the random cases of one seed, or more. TN_LONG=1: more of all. */
#include "../../include/tenon.h"
#include "../../src/decide/decide.h"
#include "../../src/decide/network.h"
#include "../../src/io/io.h"
#include "../shared/gen.h"
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
    Network g = network_new(a, m.nvertex);
    bool *in = NEWN(a, bool, m.nvertex);
    unsigned side = 0, want = best_side(&m);
    for (int i = 0; i < m.narc; i++)
        network_arc(&g, m.arc[i].from, m.arc[i].to, m.arc[i].capacity);
    network_cut(&g, m.source, m.sink, in);
    for (int v = 0; v < m.nvertex; v++)
        side |= (unsigned)in[v] << v;
    if (!EXPECT(side == want))
        printf("  seed %llu: network of %d vertices: side %#x cuts %lld, expected %#x, %lld\n",
               (unsigned long long)seed, m.nvertex, side, (long long)cut_of_side(&m, side), want,
               (long long)cut_of_side(&m, want));
}

/* ---- ladders: random steps ---- */

enum { MOST_FORWARD = 14, MOST_MADE = 12 };

/* A forward that is being written. Value 0 is the input; each has as many rows. */
typedef struct Forward {
    Rng *rng;
    Buf params, nodes;
    int64_t cols[MOST_MADE + 1];
    bool used[MOST_MADE + 1];
    int n, nparam;
    bool blocks;
} Forward;

static int draw_value(Forward *f)
{
    int i = rng_chance(f->rng, 0.6) ? f->n - 1 : (int)rng_below(f->rng, f->n);
    f->used[i] = true;
    return i;
}

static int draw_param(Forward *f, const char *shape)
{
    int i = f->nparam++;
    buf_printf(&f->params, ", %%w%d: f32[%s] param \"w%d\"", i, shape, i);
    return i;
}

static void put_product(Forward *f, int from)
{
    static const int widths[] = {8, 40, 48, 64, 80};
    f->cols[f->n] = widths[rng_below(f->rng, LEN(widths))];
    int w = draw_param(f, arena_printf(a, "%lld, %lld", (long long)f->cols[from],
                                       (long long)f->cols[f->n]));
    buf_printf(&f->nodes, "  %%v%d = mm(%%v%d, %%w%d)", f->n, from, w);
}

/* Of another value with as many columns, or of the same. */
static void put_pair(Forward *f, int from)
{
    static const char *const op[] = {"add", "mul", "sub"};
    int other = from;
    for (int i = 0; i < f->n; i++)
        other = f->cols[i] == f->cols[from] && rng_chance(f->rng, 0.5) ? i : other;
    f->used[other] = true;
    buf_printf(&f->nodes, "  %%v%d = %s(%%v%d, %%v%d)", f->n, op[rng_below(f->rng, LEN(op))], from,
               other);
}

static void put_norm(Forward *f, int from)
{
    int w = draw_param(f, arena_printf(a, "%lld", (long long)f->cols[from]));
    buf_printf(&f->nodes, "  %%v%d, %%r%d = rms_norm(%%v%d, %%w%d)", f->n, f->n, from, w);
}

/* Views there and back. */
static void put_views(Forward *f, int from)
{
    buf_printf(&f->nodes, "  %%t%d = t(%%v%d)\n  %%v%d = t(%%t%d)", f->n, from, f->n, f->n);
}

static void put_unary(Forward *f, int from)
{
    static const char *const op[] = {"tanh", "gelu", "silu", "exp", "sin", "sigmoid", "neg"};
    buf_printf(&f->nodes, "  %%v%d = %s(%%v%d)", f->n, op[rng_below(f->rng, LEN(op))], from);
}

static void put_node(Forward *f)
{
    static void (*const put[])(Forward *f, int from) = {put_product, put_product, put_product,
                                                        put_pair,    put_pair,    put_norm,
                                                        put_views,   put_unary,   put_unary,
                                                        put_unary};
    int from = draw_value(f);
    f->cols[f->n] = f->cols[from];
    put[rng_below(f->rng, LEN(put))](f, from);
    if (f->blocks && !rng_chance(f->rng, 0.15))
        buf_printf(&f->nodes, "  @\"layers.%d.x\"", (f->n - 1) / 3);
    buf_printf(&f->nodes, " forward%s\n", rng_chance(f->rng, 0.04) ? " must_save" : "");
    f->n++;
}

/* The sums of all values that nothing reads, added up. */
static void put_loss(Forward *f)
{
    const char *last = NULL;
    for (int i = 1; i < f->n; i++) {
        if (f->used[i])
            continue;
        buf_printf(&f->nodes, "  %%s%d = sum(%%v%d)  loss\n", i, i);
        if (last)
            buf_printf(&f->nodes, "  %%l%d = add(%%%s, %%s%d)  loss\n", i, last, i);
        last = arena_printf(a, "%c%d", last ? 'l' : 's', i);
    }
    buf_printf(&f->nodes, "  return loss %%%s\n}\n", last);
}

/* A step, as it is where decisions are made. */
static Graph *made_step(Rng *rng, bool blocks)
{
    Forward f = {rng, {.a = a}, {.a = a}, .n = 1, .cols = {64}, .blocks = blocks};
    int n = 4 + (int)rng_below(rng, MOST_MADE - 3);
    draw_param(&f, "64");
    buf_printf(&f.nodes, "  %%v1 = mul(%%v0, %%w0)  @\"embed\" forward\n");
    f.cols[f.n++] = 64;
    while (f.n < n)
        put_node(&f);
    put_loss(&f);
    const char *text = arena_printf(a, "tenon 1\ngraph g(%%v0: f32[%d, 64] batch%s) {\n%s",
                                    16 << rng_below(rng, 9), f.params.text, f.nodes.text);
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
            s->nbytes[k] += weight ? (double)weight[n->out[i]->id]
                                   : (double)type_nbytes(&n->out[i]->type);
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
    const char *what = arena_printf(a, "seed %llu, %s, %s", (unsigned long long)seed,
                                    blocks ? "blocks" : "no blocks",
                                    weighted ? "bytes at a place" : "all bytes");
    Sets s = {0};
    if (!read_sets(&s, g, m, weight))
        return;
    Ladder l = ladder_new(a, g, m, weight);
    Compared c = {.what = what, .place = points_of(&s, &l, what), .nplace = l.n + 1};
    Point *all;
    c.nset = all_points(&s, &all);
    c.set = all;
    test_prices(&s, &c, &rng);
    nladder++;
    nplace += l.n;
}

/* ---- plans of whole models ---- */

enum { BUDGETS = 40, FEW_BUDGETS = 8, LEAST_BUDGETS = 3, RUNS = 5, MOST_BYTES = 1 << 22 };

static bool more, less; /* TN_LONG, TN_QUICK */

typedef struct Asked {
    const char *model, *dtype, *optimizer, *mesh, *chunk;
    int64_t batch, seq, accumulate;
} Asked;

static const Asked cases[] = {
    {"tests/ref/gpt2-tiny", "f32", "adamw", NULL, NULL, 16, 32, 1},
    {"tests/ref/llama-tiny", "f32", "none", NULL, NULL, 16, 32, 1},
    {"tests/ref/gpt2-tiny", "f32", "adamw", NULL, NULL, 10, 32, 3},
    {"tests/ref/llama-tiny", "bf16", "adamw", NULL, NULL, 16, 64, 3},
    {"tests/ref/llama-tiny", "f32", "none", NULL, "4", 16, 32, 1},
    {"tests/ref/gpt2-tiny", "bf16", "none", NULL, NULL, 32, 32, 1},
    {"tests/ref/qwen3-tiny", "f32", "sgd", NULL, NULL, 16, 32, 1},
    {"tests/ref/llama-tiny", "f32", "adamw", "fsdp=2", NULL, 16, 32, 1},
    {"tests/ref/gpt2-tiny", "bf16", "adamw", "dp=2", NULL, 16, 32, 2},
    {"demo", "f32", "adamw", NULL, NULL, 4, 128, 1},
};
enum { QUICK = 2 };

static const char *case_text(const Asked *c)
{
    return arena_printf(a, "%s %s %s accumulate %d%s%s%s%s, batch %d of %d", c->model, c->dtype,
                        c->optimizer, (int)c->accumulate, c->mesh ? " mesh " : "",
                        c->mesh ? c->mesh : "", c->chunk ? " chunk " : "", c->chunk ? c->chunk : "",
                        (int)c->batch, (int)c->seq);
}

static tn_options case_options(const Asked *c)
{
    tn_options o = tn_options_default();
    o.dropout = 0.1;
    o.dtype = c->dtype;
    o.optimizer = c->optimizer;
    o.mesh = c->mesh;
    o.accumulate = c->accumulate;
    o.chunk = &c->chunk;
    o.nchunk = c->chunk != NULL;
    return o;
}

/* A model of a case, in a context of its own. */
typedef struct Model {
    tn_context *ctx;
    tn_model *model;
    const Asked *c;
} Model;

static bool ok(const Model *m, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s: %s\n", case_text(m->c), what, tn_error(m->ctx));
    return code == TN_CODE_OK;
}

static Model model_of(const Asked *c)
{
    Model m = {tn_context_new(), NULL, c};
    CHECK(m.ctx);
    ok(&m, "model", tn_model_open(m.ctx, c->model, &m.model));
    return m;
}

/* A plan, and what it came to. */
typedef struct Outcome {
    int code; /* of tn_plan_new */
    int64_t need, peak;
    double sec;
    char hash[17];
    tn_graph *g;
    tn_plan *p;
} Outcome;

static void read_plan(const Model *m, Outcome *x)
{
    static const char key[] = "\"plan_hash\": \"";
    int64_t persistent, reserve;
    double added;
    const char *text;
    tn_plan_bytes(x->p, &x->peak, &persistent, &reserve);
    tn_plan_sec(x->p, &x->sec, &added);
    x->need = x->peak + reserve;
    if (ok(m, "json", tn_plan_json(x->p, 1, &text)) && EXPECT(text = strstr(text, key)))
        snprintf(x->hash, sizeof x->hash, "%.16s", text + sizeof key - 1);
}

static Outcome plan_of(const Model *m, const tn_options *o)
{
    Outcome x = {.code = TN_CODE_FAIL, .sec = HUGE_VAL};
    if (ok(m, "graph", tn_model_graph(m->model, m->c->batch, m->c->seq, o, &x.g)) &&
        ok(m, "passes", tn_graph_passes(x.g, "default", o, NULL, NULL)))
        x.code = tn_plan_new(x.g, o, 1, &x.p);
    if (x.p)
        read_plan(m, &x);
    return x;
}

static void plan_drop(Outcome *x)
{
    tn_plan_free(x->p);
    tn_graph_free(x->g);
    x->p = NULL;
    x->g = NULL;
}

/* A plan for a limit, of which only numbers are kept. */
static Outcome plan_within(const Model *m, tn_options o, int64_t memory)
{
    o.memory = memory;
    Outcome x = plan_of(m, &o);
    plan_drop(&x);
    return x;
}

static Outcome plan_none(const Model *m, tn_options o)
{
    o.recompute = "none";
    return plan_within(m, o, 0);
}

/* ---- budgets ---- */

static int64_t budget(int64_t least, int64_t most, int i, int n)
{
    return least + (int64_t)((double)(most - least) * i / (n - 1));
}

static void test_budgets(const Asked *c)
{
    Model m = model_of(c);
    tn_options o = case_options(c);
    Outcome none = plan_none(&m, o), last = plan_within(&m, o, 1);
    int64_t least = last.need, from = 0;
    int n = more ? BUDGETS : less ? LEAST_BUDGETS : FEW_BUDGETS;
    EXPECT(last.code == TN_CODE_FIT && none.code == TN_CODE_OK);
    if (!EXPECT(least < none.need))
        printf("  %s: least %lld, none %lld\n", case_text(c), (long long)least,
               (long long)none.need);
    EXPECT(plan_within(&m, o, least - 1).code == TN_CODE_FIT);
    last.sec = HUGE_VAL;
    for (int i = 0; i < n; i++) {
        int64_t memory = budget(least, none.need, i, n);
        Outcome x = plan_within(&m, o, memory);
        if (!EXPECT(x.code == TN_CODE_OK && x.need <= memory && x.sec <= last.sec))
            printf("  %s: %lld bytes: code %d, needs %lld, %.9g us; %lld bytes: %.9g us\n",
                   case_text(c), (long long)memory, x.code, (long long)x.need, 1e6 * x.sec,
                   (long long)from, 1e6 * last.sec);
        last = x;
        from = memory;
    }
    EXPECT(last.sec == none.sec && !strcmp(last.hash, none.hash));
    Outcome once = plan_within(&m, o, budget(least, none.need, 1, 3)),
             again = plan_within(&m, o, budget(least, none.need, 1, 3));
    EXPECT(*once.hash && !strcmp(once.hash, again.hash) && strcmp(once.hash, none.hash) != 0);
    tn_context_free(m.ctx);
}

/* ---- bits ---- */

typedef struct Result {
    char *bytes;
    size_t nbytes;
} Result;

static void keep(const Model *m, tn_program *x, const char *name, Result *r)
{
    void *p = NULL;
    int64_t nbytes = 0;
    if (!ok(m, name, tn_program_data(x, name, &p, &nbytes)))
        return;
    CHECK(r->nbytes + (size_t)nbytes <= MOST_BYTES);
    memcpy(r->bytes + r->nbytes, p, (size_t)nbytes);
    r->nbytes += (size_t)nbytes;
}

/* The loss and all gradients; with an optimizer what it makes of parameters. */
static void keep_all(const Model *m, tn_program *x, Result *r)
{
    const char *path = arena_printf(a, "%s/grads.safetensors", m->c->model);
    const TensorFile *f = tensors_open(a, path); /* its names are the parameters' */
    bool updates = strcmp(m->c->optimizer, "none") != 0;
    keep(m, x, "loss", r);
    for (int i = 0; i < f->count; i++)
        keep(m, x, arena_printf(a, "%s.%s", updates ? "new" : "grad", f->entry[i].name), r);
}

static void put_batch(const Model *m, tn_program *x)
{
    void *at, *ids = NULL, *labels = NULL;
    int64_t nbytes = 0, vocab = 0, context;
    tn_model_shape(m->model, &vocab, &context);
    if (!tn_program_data(x, "lr", &at, NULL))
        *(float *)at = 1e-3F;
    if (!tn_program_data(x, "step", &at, NULL))
        *(int64_t *)at = 1;
    if (!tn_program_data(x, "seed", &at, NULL))
        *(int64_t *)at = 7;
    if (!ok(m, "ids", tn_program_data(x, "input_ids", &ids, &nbytes)) ||
        !ok(m, "labels", tn_program_data(x, "labels", &labels, NULL)))
        return;
    for (int64_t i = 0; i < nbytes / 8; i++) {
        ((int64_t *)ids)[i] = (i * 7 + i / 3) % vocab;
        ((int64_t *)labels)[i] = (i * 5 + i / 2 + 1) % vocab;
    }
}

/* The step is run in arenas of two patterns, of which the higher end is what was written. */
static Result run_plan(const Model *m, const tn_options *o, const Outcome *p)
{
    Result r = {calloc(1, MOST_BYTES), 0};
    tn_program *x = NULL;
    int64_t high = 0;
    CHECK(r.bytes);
    if (ok(m, "program", tn_program_new(p->p, o, &x))) {
        for (int i = 0; i < 2; i++) {
            int pattern = i ? 0x5a : 0xa5;
            tn_program_fill(x, pattern);
            ok(m, "load", tn_program_load(x, m->model, o));
            put_batch(m, x);
            ok(m, "step", tn_program_run(x));
            int64_t end = tn_program_high(x, pattern);
            high = MAX(high, end);
        }
        keep_all(m, x, &r);
        if (!EXPECT(high == p->peak))
            printf("  %s: within %lld bytes: planned %lld, highest written %lld\n", case_text(m->c),
                   (long long)o->memory, (long long)p->peak, (long long)high);
    }
    tn_program_free(x);
    return r;
}

static Result run_within(const Model *m, tn_options o, int64_t memory)
{
    Result r = {0};
    o.memory = memory;
    o.recompute = memory ? "auto" : "none";
    Outcome p = plan_of(m, &o);
    if (ok(m, "plan", p.code))
        r = run_plan(m, &o, &p);
    plan_drop(&p);
    return r;
}

static void test_bits(const Asked *c)
{
    Model m = model_of(c);
    tn_options o = case_options(c);
    int64_t most = plan_none(&m, o).need, least = plan_within(&m, o, 1).need;
    Result saved = run_within(&m, o, 0);
    EXPECT(saved.nbytes > 1000);
    for (int i = 0; i < RUNS; i++) {
        int64_t memory = budget(least, most, i, RUNS + 1);
        Result again = run_within(&m, o, memory);
        if (!EXPECT(again.nbytes == saved.nbytes && again.bytes &&
                    !memcmp(again.bytes, saved.bytes, saved.nbytes)))
            printf("  %s: %lld bytes: other bits than with all saved\n", case_text(c),
                   (long long)memory);
        free(again.bytes);
    }
    free(saved.bytes);
    tn_context_free(m.ctx);
}

/* ---- graphs of PyTorch ---- */

enum { MOST_OUT = 64, TRACED_RUNS = 3 };

/* A graph that was traced with its backward, and what is asked of it. */
typedef struct Traced {
    tn_context *ctx;
    const char *name;
    tn_options o;
} Traced;

static bool did(const Traced *t, const char *what, int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s: %s: %s\n", t->name, what, tn_error(t->ctx));
    return code == TN_CODE_OK;
}

static const char *inputs_of(const Traced *t)
{
    return arena_printf(a, "tests/fx/%s/inputs.safetensors", t->name);
}

static Outcome traced_plan(const Traced *t)
{
    Outcome x = {.code = TN_CODE_FAIL};
    tn_fx_options fx = {.inputs = inputs_of(t)};
    const char *summary;
    int64_t persistent, reserve;
    if (did(t, "import",
            tn_graph_import_fx(t->ctx, arena_printf(a, "tests/fx/%s/graph.txt", t->name), &fx, &x.g,
                               &summary)) &&
        did(t, "passes", tn_graph_passes(x.g, "default", &t->o, NULL, NULL)))
        x.code = tn_plan_new(x.g, &t->o, 1, &x.p);
    if (x.p)
        tn_plan_bytes(x.p, &x.peak, &persistent, &reserve);
    x.need = x.p ? x.peak + reserve : 0;
    return x;
}

static void keep_outputs(tn_program *x, Result *r)
{
    for (int i = 0; i < MOST_OUT; i++) {
        void *p;
        int64_t nbytes;
        if (tn_program_data(x, arena_printf(a, "out%d", i), &p, &nbytes))
            break;
        CHECK(r->nbytes + (size_t)nbytes <= MOST_BYTES);
        memcpy(r->bytes + r->nbytes, p, (size_t)nbytes);
        r->nbytes += (size_t)nbytes;
    }
}

static Result traced_run(const Traced *t, const Outcome *p)
{
    Result r = {calloc(1, MOST_BYTES), 0};
    tn_program *x = NULL;
    int64_t high = 0;
    CHECK(r.bytes);
    if (did(t, "program", tn_program_new(p->p, &t->o, &x))) {
        for (int i = 0; i < 2; i++) {
            int pattern = i ? 0x5a : 0xa5;
            tn_program_fill(x, pattern);
            did(t, "inputs", tn_program_read_file(x, inputs_of(t)));
            did(t, "run", tn_program_run(x));
            int64_t end = tn_program_high(x, pattern);
            high = MAX(high, end);
        }
        keep_outputs(x, &r);
        if (!EXPECT(high == p->peak))
            printf("  %s: within %lld bytes: planned %lld, highest written %lld\n", t->name,
                   (long long)t->o.memory, (long long)p->peak, (long long)high);
    }
    tn_program_free(x);
    return r;
}

/* The bytes that it needs within that memory; its results are those of `saved`, which is filled
 * where it is empty. */
static int64_t traced_within(Traced *t, int64_t memory, Result *saved)
{
    t->o.memory = memory;
    Outcome p = traced_plan(t);
    int64_t need = p.need;
    if (memory == 1 || did(t, "plan", p.code)) {
        EXPECT(memory == 1 || !memory || need <= memory);
        Result r = traced_run(t, &p);
        if (!saved->bytes)
            *saved = r;
        else if (!EXPECT(r.nbytes == saved->nbytes && !memcmp(r.bytes, saved->bytes, r.nbytes)))
            printf("  %s: %lld bytes: other results\n", t->name, (long long)memory);
        if (r.bytes != saved->bytes)
            free(r.bytes);
    }
    plan_drop(&p);
    return need;
}

static void traced_case(void *arg)
{
    Traced t = {tn_context_new(), arg, tn_options_default()};
    Result saved = {0};
    CHECK(t.ctx);
    int64_t all = traced_within(&t, 0, &saved), least = traced_within(&t, 1, &saved);
    EXPECT(saved.nbytes > 0);
    if (!EXPECT(least < all))
        printf("  %s: least %lld, all saved %lld\n", t.name, (long long)least, (long long)all);
    for (int i = 0; i < TRACED_RUNS; i++)
        traced_within(&t, budget(least, all, i, TRACED_RUNS), &saved);
    free(saved.bytes);
    tn_context_free(t.ctx);
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

static void budgets_case(void *arg)
{
    test_budgets(arg);
}

static void bits_case(void *arg)
{
    test_bits(arg);
}

static void test_random(uint64_t first, uint64_t count)
{
    for (uint64_t seed = first; seed < first + count; seed++)
        guarded(random_case, &seed);
    printf("note: %d ladders with %d places\n", nladder, nplace);
}

static void test_models(void)
{
    for (int i = 0; i < (more ? LEN(cases) : QUICK); i++) {
        Asked c = cases[i];
        guarded(budgets_case, &c);
        if (strcmp(c.model, "demo") != 0 && !c.mesh) /* its gradients have names in a file; one runs */
            guarded(bits_case, &c);
    }
}

static void test_traced(void)
{
    static char names[][16] = {"gpt2_step", "bert_mlm", "llama_gqa", "gpt2_inductor", "aot_joint"};
    for (int i = 0; i < (less ? 1 : LEN(names)); i++)
        guarded(traced_case, names[i]);
}

int main(int argc, char **argv)
{
    more = getenv("TN_LONG");
    less = getenv("TN_QUICK");
    a = arena_new(&ctx);
    tn_threads(1); /* all is small */
    if (argc > 1) {
        test_random(strtoull(argv[1], NULL, 10), argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    } else {
        test_random(1, more ? 3000 : less ? 50 : 300);
        test_models();
        test_traced();
    }
    arena_free(a);
    return test_report();
}
