/* node: the seconds of a call, by a roofline: the greater of arithmetic at its rate and memory
 * traffic at its bandwidth. For a processor's products both are added, as packing and sums in
 * memory do not wait behind arithmetic. A launch is added on a cpu; on a GPU it is the least that a
 * call takes. The step of a small model consists of first bytes found in a cache, small products,
 * and work for each element beside the counted operations, so these have figures of their own.
 * Costs, shapes and dtypes come from the ops; only collectives are known by name, each with its
 * formula (link.c).
 *
 * For GPUs it is the cost model of AutoParallel: max(flops / (peak x 0.70), bytes / (bandwidth x
 * 0.70), 7 us). Linear in the nodes of the graph, bodies included. */
#include "machine.h"

typedef struct Arithmetic {
    OpClass class;
    DType dtype;
    double side; /* elements along the shortest side of a product; 0: not known, long */
} Arithmetic;

static double rate_of(const Machine *m, FigureId id)
{
    return m->figure[id] * m->cores;
}

/* Seconds for each byte that is in no cache. */
static double memory_sec(const Machine *m)
{
    return 1e-9 / MIN(rate_of(m, FIGURE_memory), m->figure[FIGURE_memory_all]);
}

static double traffic_sec(const Machine *m, OpClass class, double nbytes)
{
    double cached = MIN(nbytes, rate_of(m, FIGURE_cache_bytes));
    double near = MIN(1e-9 / rate_of(m, FIGURE_cache), memory_sec(m));
    return (cached * near + (nbytes - cached) * memory_sec(m)) / m->share[class].memory;
}

/* The share of its rate that a product with a side of so many bytes reaches: so that all of it is
 * reached a little beyond three times `least`, at which 0.83 is. Measured here (avx512_bf16, f32):
 * 0.6 of long sides' rate with 128 bytes, 0.8 with 256, 0.9 with 512. */
static double side_share(double nbytes, double least)
{
    return MIN(MAX(1.1 * nbytes / (nbytes + least / 3), 0.25), 1);
}

/* Operations a second of products and attention in that dtype. */
static double product_rate(const Machine *m, const Arithmetic *w)
{
    static const FigureId by_dtype[NDTYPE] = {
        [F64] = FIGURE_product_f64,   [F32] = FIGURE_product_f32, [F16] = FIGURE_product_f16,
        [BF16] = FIGURE_product_bf16, [I64] = FIGURE_product_f64, [I32] = FIGURE_product_f32,
        [U8] = FIGURE_product_f32,    [BOOL] = FIGURE_product_f32};
    double rate = 1e9 * rate_of(m, by_dtype[w->dtype]);
    bool narrow = dtype_size(w->dtype) == 2;
    if (w->class == CLASS_ATTENTION)
        return rate * m->figure[narrow ? FIGURE_attention_16 : FIGURE_attention];
    double nbytes = w->side * dtype_size(w->dtype);
    return nbytes > 0 ? rate * side_share(nbytes, m->figure[FIGURE_side]) : rate;
}

/* Arithmetic of `nflop` operations, and of what goes with nelem elements read or written. */
static double arithmetic_sec(const Machine *m, const Arithmetic *w, double nflop, double nelem)
{
    bool product =
        w->class == CLASS_PRODUCT || w->class == CLASS_ATTENTION || w->class == CLASS_CONVOLUTION;
    const Share *s = &m->share[w->class];
    double vector = 1e9 * rate_of(m, FIGURE_vector);
    double rate = product ? product_rate(m, w) : vector;
    return nflop / (rate * s->arithmetic) + nelem * s->each / vector;
}

/* A GPU's queue hides a launch behind the call before, if that takes as long; a cpu has none. */
static double launched(const Machine *m, double sec)
{
    double launch = 1e-6 * m->figure[FIGURE_launch];
    return m->gpu ? MAX(launch, sec) : launch + sec;
}

static double call_sec(const Machine *m, const Arithmetic *w, const Cost *c)
{
    double nbytes = c->nread + c->nwrite;
    double arithmetic = arithmetic_sec(m, w, c->nflop, nbytes / dtype_size(w->dtype));
    double traffic = traffic_sec(m, w->class, nbytes);
    bool apart = !m->gpu && w->class == CLASS_PRODUCT;
    return launched(m, apart ? arithmetic + traffic : MAX(arithmetic, traffic));
}

double cost_sec(const Machine *m, OpClass class, DType d, const Cost *c)
{
    return call_sec(m, &(Arithmetic){class, d, 0}, c);
}

double copy_sec(const Machine *m, double nbytes)
{
    return 1e-6 * m->figure[FIGURE_launch] + 1e-9 * nbytes / m->figure[FIGURE_copy];
}

/* ---- nodes ---- */

static double graph_sec(const Machine *m, const Mesh *mesh, const Graph *g)
{
    double sec = 0;
    for (const Node *n = g->first; n; n = n->next)
        sec += node_sec(m, mesh, n);
    return sec;
}

/* The shortest of rows, columns and the axis that is summed. */
static double product_side(const Node *n)
{
    const Type *x = &n->in[n->nin - 2]->type, *y = &n->out[0]->type;
    int64_t side = x->dim[x->rank - 1];
    for (int d = y->rank - 2; d < y->rank; d++)
        side = MIN(side, y->dim[d]);
    return (double)side;
}

/* The dtype in which a node computes: that of a product's factors. */
static Arithmetic arithmetic_of(const Node *n)
{
    Arithmetic w = {.class = n->op->class};
    bool product = w.class == CLASS_PRODUCT;
    w.dtype = product  ? n->in[n->nin - 2]->type.dtype
              : n->nin ? n->in[0]->type.dtype
                       : n->out[0]->type.dtype;
    w.side = product ? product_side(n) : 0;
    return w;
}

/* Rows of a loss run in one body as they do alone, other parts at the region's share. */
static double fused_sec(const Machine *m, const Node *n)
{
    Cost c = node_cost(n);
    double nbytes = c.nread + c.nwrite, sec = 0;
    const double share = m->share[n->op->class].arithmetic;
    EACH_FUSED(part, n) {
        Arithmetic w = arithmetic_of(part);
        double nelem = 0;
        for (int k = 0; k < part->nout; k++)
            nelem += (double)type_nelem(&part->out[k]->type);
        if (!part->op->view)
            sec += arithmetic_sec(m, &w, node_cost(part).nflop, nelem) /
                   (w.class == CLASS_LOSS ? 1 : share);
    }
    return launched(m, MAX(sec, traffic_sec(m, n->op->class, nbytes)));
}

double sum_sec(const Machine *m, const Type *t)
{
    double nbytes = (double)type_nbytes(t);
    Cost c = {(double)type_nelem(t), 2 * nbytes, nbytes};
    return cost_sec(m, CLASS_POINTWISE, t->dtype, &c);
}

/* All iterations, and what adds up their sums. */
static double loop_sec(const Machine *m, const Mesh *mesh, const Node *n)
{
    const Region *r = n->region;
    double sec = 0;
    EACH_BODY(b, n) {
        double each = graph_sec(m, mesh, r->body[b]);
        for (int j = 0; j < r->nout; j++)
            if (r->out[j].kind == PORT_SUM)
                each += sum_sec(m, &n->out[j]->type);
        sec += each * (double)region_times(r, b);
    }
    return sec;
}

static double communication_sec(const Machine *m, const Mesh *mesh, const Node *n)
{
    CollectiveKind kind = node_collective(n);
    double in = 0, out = 0;
    for (int i = 0; i < n->nin; i++)
        in += (double)type_nbytes(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        out += (double)type_nbytes(&n->out[k]->type);
    double nbytes[NCOLLECTIVE] = {
        [ALL_GATHER] = out,          [REDUCE_SCATTER] = in, [ALL_REDUCE] = in,
        [ALL_TO_ALL] = MAX(in, out), [BROADCAST] = in,      [PERMUTE] = in};
    return collective_sec(m, kind, node_group(m, mesh, n), nbytes[kind]);
}

double node_sec(const Machine *m, const Mesh *mesh, const Node *n)
{
    if (n->op->view || n->op->wait)
        return 0; /* what is waited for has its own seconds */
    if (n->op->async)
        return copy_sec(m, (double)type_nbytes(&n->out[0]->type));
    if (n->op->region == LOOP)
        return loop_sec(m, mesh, n);
    if (n->op->class == CLASS_COLLECTIVE)
        return communication_sec(m, mesh, n);
    double known = machine_node_sec(m, n);
    if (known > 0)
        return known;
    if (n->op->region == FUSED)
        return fused_sec(m, n);
    Arithmetic w = arithmetic_of(n);
    Cost c = node_cost(n);
    return call_sec(m, &w, &c);
}
