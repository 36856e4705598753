/* Two graphs on the same random inputs: floats are standard normal, scaled by a tenth for
 * parameters and made positive for second moments; integers are 0 or 1, so that they are valid as
 * indices; step is 1; lr is 0.001. A graph that computes indices from its inputs may refuse such
 * integers: then all of them are 1 (a mask of which nothing is masked), then 0. */
#include "api.h"

#include <math.h>
#include <string.h>

/* The integers that inputs are drawn from. */
typedef enum { BITS, ONES, ZEROS, NINTEGERS } Integers;

static double value_for(const PlanPort *p, Integers draw, uint64_t seed, int stream, int64_t i)
{
    if (p->role == ROLE_STEP)
        return 1;
    if (p->role == ROLE_SCALAR)
        return 1e-3;
    if (!dtype_float(p->type.dtype))
        return draw == BITS ? random_uniform(seed, (uint32_t)stream, 0, (uint64_t)i) < 0.5f
                            : draw == ONES;
    double x = random_normal(seed, (uint32_t)stream, 0, (uint64_t)i);
    return p->role == ROLE_STATE ? fabs(0.01 * x) : p->role == ROLE_PARAM ? 0.1 * x : x;
}

enum { PIECE = 4096, REPEAT = 16 * PIECE }; /* elements moved at once; that are drawn anew */

/* Some elements of a tensor. */
typedef struct ElementPiece {
    _Alignas(64) char bytes[PIECE * 8];
} ElementPiece;

static Tensor piece_of(ElementPiece *piece, const PlanPort *p)
{
    return (Tensor){.data = piece->bytes, .dtype = p->type.dtype, .rank = 1};
}

/* Fills an input of x, and of y where that is not NULL; the first `most` elements are drawn, and
 * what follows repeats them. */
static int fill_input(Program *x, const PlanPort *p, Program *y, const PlanPort *q, int64_t most,
                      Integers draw, uint64_t seed, int stream)
{
    ElementPiece piece;
    Tensor t = piece_of(&piece, p);
    int64_t nelem = type_nelem(&p->type), size = dtype_size(p->type.dtype);
    for (int64_t at = 0, n; at < nelem; at += n) {
        n = MIN(PIECE, nelem - at);
        for (int64_t i = 0; at < most && i < n; i++)
            tensor_set(&t, i, value_for(p, draw, seed, stream, at + i));
        if (at >= most && program_read(x, p, at % most * size, n * size, piece.bytes))
            return -1;
        if (program_write(x, p, at * size, n * size, piece.bytes) ||
            (y && program_write(y, q, at * size, n * size, piece.bytes)))
            return -1;
    }
    return 0;
}

void tn_program_random(tn_program *x, uint64_t seed)
{
    if (!x)
        return;
    for (int i = 0; i < x->x->plan->nin; i++)
        fill_input(x->x, &x->x->plan->in[i], NULL, NULL, REPEAT, BITS, seed, i);
}

static const PlanPort *same_port(const PlanPort *ports, int count, const PlanPort *p, int index)
{
    for (int i = 0; i < count; i++) {
        bool named = p->name ? ports[i].name && !strcmp(ports[i].name, p->name) : i == index;
        if (ports[i].role == p->role && named && type_equal(&ports[i].type, &p->type))
            return &ports[i];
    }
    return NULL;
}

/* How an output of one graph differs from that of the other: the largest finite value; the largest
 * difference. */
typedef struct Difference {
    double most, diff;
} Difference;

/* Doubles do not tell all integers of 64 bits apart. */
static void compare_integers(Difference *d, const int64_t *s, const int64_t *t, int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        if (s[k] != t[k])
            d->diff = fmax(d->diff, fmax(1, fabs((double)s[k] - (double)t[k])));
        d->most = fmax(d->most, fabs((double)s[k]));
    }
}

static void compare_piece(Difference *d, const Tensor *s, const Tensor *t, int64_t n)
{
    if (s->dtype == I64) {
        compare_integers(d, (const int64_t *)(const void *)s->data,
                         (const int64_t *)(const void *)t->data, n);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        double u = tensor_get(s, k), v = tensor_get(t, k);
        if (memcmp(&u, &v, sizeof u) && !(isnan(u) && isnan(v)))
            d->diff = isfinite(u - v) ? fmax(d->diff, fabs(u - v)) : INFINITY;
        d->most = isfinite(u) ? fmax(d->most, fabs(u)) : d->most;
    }
}

/* The largest difference of output i, as a part of its largest value. */
static double compare_output(Program *x, Program *y, int i)
{
    const PlanPort *p = &x->plan->out[i];
    const PlanPort *q = same_port(y->plan->out, y->plan->nout, p, i);
    Ctx *ctx = x->plan->g->ctx;
    if (!q)
        fail(ctx, TN_FAIL, "output %d (%%%s): the second graph has none like it", i, p->value);
    ElementPiece piece[2];
    Tensor s = piece_of(&piece[0], p), t = piece_of(&piece[1], q);
    Difference d = {0, 0};
    int64_t nelem = type_nelem(&p->type), size = dtype_size(p->type.dtype);
    for (int64_t at = 0, n; at < nelem; at += n) {
        n = MIN(PIECE, nelem - at);
        if (program_read(x, p, at * size, n * size, piece[0].bytes))
            fail(ctx, TN_FAIL, "%s", x->message);
        if (program_read(y, q, at * size, n * size, piece[1].bytes))
            fail(ctx, TN_FAIL, "%s", y->message);
        compare_piece(&d, &s, &t, n);
    }
    return d.diff > 0 ? d.diff / (d.most > 0 ? d.most : 1) : 0;
}

static bool has_copies_to_host(const Graph *g)
{
    bool found = false;
    for (const Node *n = g->first; n && !found; n = n->next) {
        found = n->op->to_host;
        EACH_BODY(b, n)
            found |= has_copies_to_host(n->region->body[b]);
    }
    return found;
}

/* On cpu, but a graph that moves values to the host's memory where that is another. */
static Program *prepare(Arena *a, Graph *g)
{
    PlanFor to = {.device = device_at(has_copies_to_host(g) ? DEVICE_emulated : DEVICE_cpu)};
    return program_make(a, plan_make(a, g, &to), false, 0);
}

static void fill_both(Program *x, Program *y, Integers draw, uint64_t seed)
{
    Ctx *ctx = x->plan->g->ctx;
    for (int i = 0; i < x->plan->nin; i++) {
        const PlanPort *p = &x->plan->in[i];
        const PlanPort *q = same_port(y->plan->in, y->plan->nin, p, i);
        if (!q)
            fail(ctx, TN_FAIL, "input %%%s: the second graph has none like it", p->value);
        if (fill_input(x, p, y, q, INT64_MAX, draw, seed, i))
            fail(ctx, TN_FAIL, "%s%s", x->message, y->message);
    }
}

/* Runs both on the first integers with which the first runs. */
static void run_both(Program *x, Program *y, uint64_t seed)
{
    Ctx *ctx = x->plan->g->ctx;
    if (x->plan->nin != y->plan->nin || x->plan->nout != y->plan->nout)
        fail(ctx, TN_FAIL, "the graphs have %d and %d inputs, %d and %d outputs", x->plan->nin,
             y->plan->nin, x->plan->nout, y->plan->nout);
    bool runs = false;
    for (int draw = BITS; draw < NINTEGERS && !runs; draw++) {
        fill_both(x, y, (Integers)draw, seed);
        runs = !program_run(x);
    }
    if (!runs)
        fail(
            ctx, TN_FAIL,
            "no inputs that are drawn let the first graph run (integers 0 or 1, all 1, all 0): %s; "
            "compare what run makes of inputs of your own",
            x->message);
    if (program_run(y))
        fail(ctx, TN_FAIL, "the second graph fails where the first runs: %s", y->message);
}

static void compare(const tn_graph *a, const tn_graph *b, Arena *tmp, uint64_t seed, double *worst,
                    const char **where)
{
    const Mesh *m = a->g->mesh ? a->g->mesh : b->g->mesh;
    if (m)
        fail(a->g->ctx, TN_FAIL,
             "a graph of one rank of %s does not run alone: that of the whole step can be compared",
             mesh_text(tmp, m));
    Program *x = prepare(tmp, a->g), *y = prepare(tmp, b->g);
    run_both(x, y, seed);
    for (int i = 0; i < x->plan->nout; i++) {
        const PlanPort *p = &x->plan->out[i];
        double relative = compare_output(x, y, i);
        if (!(relative > *worst) && *where)
            continue;
        *worst = relative;
        *where = arena_strdup(a->h.a, p->name ? p->name : p->value);
    }
}

int tn_graph_compare(tn_graph *a, tn_graph *b, uint64_t seed, double *worst, const char **where)
{
    if (!GIVEN(args_owner(a), a, b, worst, where) || !args_kin(__func__, a, b))
        return TN_CODE_USAGE;
    *worst = 0;
    *where = NULL;
    TRY(t, &a->h.owner->ctx)
        compare(a, b, try_arena(&t), seed, worst, where);
    return tried(&t);
}
