/* update: stochastic rounding of a new parameter of 16 bits (adamw.c, sgd.c).
 *
 * Rounded to nearest, an update below half a unit of the parameter's last place is lost, in each
 * step anew. Here a value between two neighbours of the dtype becomes the one farther from 0 with
 * the probability of its distance from the other: the mean is the value (Gupta et al. 2015,
 * arXiv:1502.02551). A value that the dtype has stays, as all do in f32 and f64, in which they were
 * computed.
 *
 * The probability is compared with the upper 16 bits of a word of random.c, a function of seed,
 * stream (`rounding`; -1: to nearest), step and the element's row-major position in the whole
 * parameter, of the shape `extents` without padding: bits do not depend on how it is cut. A part
 * knows where it lies by entries of axes, runs, spans and start operands, in this order: element j
 * of the axis is (j / run) span + start + j % run of the axis before the cut. */
#include "update.h"

enum { ROUNDING, EXTENTS, AXES, RUNS, SPANS }; /* attributes, from `first` on */
enum { SEED, STEP, STARTS };                   /* operands, from the first of these on */

int rounding_operands(const Node *n, int first)
{
    return n->attr[first + ROUNDING].i < 0 ? 0 : STARTS + (int)n->attr[first + AXES].i;
}

static void check_runs(const Graph *g, const Node *n, const Attr *a)
{
    if (a[AXES].i != a[RUNS].i || a[AXES].i != a[SPANS].i || a[AXES].i > MOST_RUNS)
        fail_node(g, n,
                  "expected as many axes as runs and spans, at most %d, found %lld, %lld, %lld",
                  MOST_RUNS, (long long)a[AXES].i, (long long)a[RUNS].i, (long long)a[SPANS].i);
    for (int k = 0; k < a[AXES].i; k++) {
        need_axis(g, n, a[AXES].ints[k], n->in[0]->type.rank);
        if (a[AXES].ints[k] < 0 || a[RUNS].ints[k] < 1 || a[SPANS].ints[k] < a[RUNS].ints[k])
            fail_node(g, n, "runs: expected 1 to the span %lld, found %lld",
                      (long long)a[SPANS].ints[k], (long long)a[RUNS].ints[k]);
    }
}

void rounding_infer(const Graph *g, const Node *n, int first)
{
    const Attr *a = n->attr + first;
    const Type *p = &n->in[0]->type, scalar = {.dtype = I64};
    double nelem = 1;
    if (a[ROUNDING].i < 0)
        return;
    if (a[ROUNDING].i > UINT32_MAX)
        fail_node(g, n, "rounding: expected a stream of 32 bits, or -1, found %lld",
                  (long long)a[ROUNDING].i);
    check_runs(g, n, a);
    for (int i = n->nin - rounding_operands(n, first); i < n->nin; i++)
        need_type(g, n, i, &scalar);
    if (a[EXTENTS].i != p->rank)
        fail_node(g, n, "extents: expected the %d of the whole parameter, found %lld", p->rank,
                  (long long)a[EXTENTS].i);
    for (int d = 0; d < p->rank; d++) {
        nelem *= (double)MAX(a[EXTENTS].ints[d], 1);
        if (a[EXTENTS].ints[d] < 0 || nelem > 0x1p62)
            fail_node(g, n, "extents: expected at most 2^62 elements, found axis %d of %lld", d,
                      (long long)a[EXTENTS].ints[d]);
    }
}

/* ---- parts ---- */

void rounding_factors(const Node *n, Factors *f, int first, const char *in)
{
    char letter[16 + STARTS + MOST_RUNS];
    int own = n->nin - rounding_operands(n, first);
    for (int i = 0; i < n->nin; i++)
        letter[i] = i < own ? in[i] : '.';
    factors_split(n, f, n->in[0]->type.rank, FACTOR_PARALLEL, letter, "xxx");
    for (int k = 0; k < f->count; k++)
        f->factor[k].apart = own < n->nin;
}

/* The list with x in front. */
static void prepend(Arena *a, Attr *list, int64_t x)
{
    int64_t *longer = NEWN(a, int64_t, list->i + 1);
    longer[0] = x;
    for (int64_t i = 0; i < list->i; i++)
        longer[i + 1] = list->ints[i];
    list->ints = longer;
    list->i++;
}

static int axis_of(const Node *n, const Factors *f, int factor)
{
    for (int d = 0; d < n->in[0]->type.rank; d++)
        if (f->in[0].n[d] && f->in[0].f[d][0] == factor)
            return d;
    CHECK(!"a factor of no axis");
    return -1;
}

/* Elements of the part are numbered in it by the shortest run first. */
void rounding_part(Part *p, int first)
{
    Arena *a = p->b->g->a;
    Attr *attr = part_attr(p);
    int nin = p->n->nin, starts = nin - (int)attr[first + AXES].i;
    Value **in = NEWN(a, Value *, nin + p->nrun);
    for (int i = 0; i < nin; i++)
        in[i < starts ? i : i + p->nrun] = p->in[i];
    for (int k = p->nrun - 1; k >= 0; k--) {
        const FactorRun *r = &p->run[k];
        prepend(a, &attr[first + AXES], axis_of(p->n, p->f, r->factor));
        prepend(a, &attr[first + RUNS], MAX(r->run, 1)); /* 0: the axis has no elements */
        prepend(a, &attr[first + SPANS], MAX(r->span, 1));
        in[starts + k] = r->start ? r->start : emit_full(p->b, 0, I64);
    }
    part_with(p, attr, nin + p->nrun, in);
}

/* ---- positions ---- */

/* The longest run of the part's axis d whose neighbours are those of the whole axis. */
static int64_t shortest_run(const Rounding *r, int d)
{
    int64_t n = MAX(r->dim[d], 1);
    for (int k = 0; k < r->nrun; k++)
        if (r->axis[k] == d)
            n = MIN(n, r->run[k]);
    return n;
}

Rounding rounding_of(const Call *c, int first)
{
    const Attr *a = c->node->attr + first;
    const Tensor *p = &c->in[0];
    int at = c->nin - rounding_operands(c->node, first);
    bool narrow = dtype_size(p->dtype) == 2;
    Rounding r = {.stochastic = at < c->nin && narrow, .rank = p->rank, .neighbours = 1};
    if (!r.stochastic)
        return r;
    r.key = (DrawKey){(uint64_t)tensor_int(&c->in[at + SEED], 0), (uint32_t)a[ROUNDING].i,
                      (uint32_t)tensor_int(&c->in[at + STEP], 0)};
    r.nrun = (int)a[AXES].i;
    for (int k = 0; k < r.nrun; k++) {
        r.axis[k] = a[AXES].ints[k];
        r.run[k] = a[RUNS].ints[k];
        r.span[k] = a[SPANS].ints[k];
        r.start[k] = tensor_int(&c->in[at + STARTS + k], 0);
    }
    bool whole = true; /* the axes after d, each of one run */
    for (int64_t d = p->rank - 1, stride = 1; d >= 0; d--) {
        r.dim[d] = p->dim[d];
        r.stride[d] = stride;
        stride *= a[EXTENTS].ints[d];
        int64_t run = shortest_run(&r, (int)d);
        r.neighbours *= whole ? run : 1;
        whole &= run == a[EXTENTS].ints[d];
    }
    return r;
}

static uint64_t position_of(const Rounding *r, int64_t i)
{
    uint64_t position = 0;
    for (int d = r->rank - 1; d >= 0; d--) {
        int64_t j = i % r->dim[d];
        i /= r->dim[d];
        for (int k = 0; k < r->nrun; k++)
            if (r->axis[k] == d)
                j = j / r->run[k] * r->span[k] + r->start[k] + j % r->run[k];
        position += (uint64_t)j * (uint64_t)r->stride[d];
    }
    return position;
}

/* The words of elements from i on, *n of them and not beyond `end`. */
static const uint32_t *draw(const Rounding *r, int64_t i, int64_t end, uint32_t word[DRAWN], int *n)
{
    uint64_t position = position_of(r, i);
    int64_t most = MIN(end - i, r->neighbours - i % r->neighbours);
    *n = (int)MIN(most, (int64_t)(DRAWN - position % 4));
    return draw_words(&r->key, position, *n, word);
}

void update_walk(const Rounding *r, int64_t lo, int64_t hi, UpdateRun *run, const void *arg)
{
    uint32_t drawn[DRAWN];
    if (!r->stochastic) {
        run(arg, lo, hi - lo, NULL);
        return;
    }
    for (int n; lo < hi; lo += n) {
        const uint32_t *word = draw(r, lo, hi, drawn, &n);
        run(arg, lo, n, word);
    }
}

/* ---- reference ---- */

double rounding_ref(const Rounding *r, int64_t i, double x, DType d)
{
    if (!r->stochastic || !isfinite(x) || x == 0)
        return x;
    float u = random_uniform(r->key.seed, r->key.stream, r->key.step, position_of(r, i));
    int exponent = MAX(ilogb(x), d == BF16 ? -126 : -14);
    double unit = ldexp(1, exponent - (d == BF16 ? 7 : 10)), below = floor(fabs(x) / unit);
    bool up = (fabs(x) / unit - below) * 0x1p16 + floor(u * 0x1p16) >= 0x1p16;
    return copysign((below + up) * unit, x);
}
