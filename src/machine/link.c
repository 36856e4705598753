/* link: the seconds of collectives: latency plus bytes over bandwidth. The reference is the cost
 * model of AutoParallel (github.com/meta-pytorch/autoparallel), made after NCCL's tuning.cc.
 *
 * On one host: measured rates of groups of 2, 4 and 8, linear between, constant beyond.
 *
 * Between hosts, all_gather and reduce_scatter: rings in the best of three protocols. The
 * reference's table by hosts and ranks per host was made by NCCL's tuning.cc, which reproduces it
 * to its last digit: a base, a step inside of hosts for each rank but one of a host, a step between
 * hosts for each host but the first; and a busy bandwidth of 0.96 of the network cards', times
 * ranks over ranks minus one, within a protocol's limit. If groups take up whole hosts, the
 * reference's ramp reduces it for small messages. all_reduce: the best of a ring twice that
 * long, a tree, and a tree of switches that add up, with its table's rates. all_to_all: the
 * reference's latencies, and the bytes that leave the host by its rate.
 *
 * Three things differ from the reference. Its ramps have steps at which more bytes take less time,
 * and a flat stretch; here they are interpolated between their points, so that cost grows with
 * bytes. Its ring of all_reduce is slower than twice its all_gather. Its H200 has no row; ours
 * has. */
#include "machine.h"

#include <limits.h>
#include <math.h>

enum { LL, LL128, SIMPLE, NPROTOCOL };

const char *collective_name(CollectiveKind k)
{
    static const char *const names[] = {
#define X(id, name) name,
        COLLECTIVES(X)
#undef X
    };
    return names[k];
}

/* ---- groups ---- */

Group mesh_group(const Machine *m, const int64_t *mesh, int naxes, const bool *axes)
{
    double inner = 1, host = m->figure[FIGURE_host_ranks];
    double ranks = 1, here = 1;
    for (int i = naxes - 1; i >= 0; i--) {
        double most = floor(host / inner);
        if (axes[i]) {
            ranks *= (double)mesh[i];
            here *= MAX(1, MIN(most, (double)mesh[i]));
        }
        inner *= (double)mesh[i];
    }
    return (Group){(int)MIN(ceil(ranks / here), INT_MAX), (int)here};
}

static Group mesh_group_of(const Machine *m, const Mesh *mesh, int naxes, const int *axes)
{
    bool spans[MAX_MESH] = {false};
    for (int i = 0; i < naxes; i++)
        spans[axes[i]] = true;
    return mesh_group(m, mesh->size, mesh->naxes, spans);
}

Group node_group(const Machine *m, const Mesh *mesh, const Node *n)
{
    int axes[MAX_MESH];
    int count = mesh ? group_axes(mesh, n->attr[attr_index(n->op, "group")].s, axes) : -1;
    if (count >= 0)
        return mesh_group_of(m, mesh, count, axes);
    int64_t host = (int64_t)m->figure[FIGURE_host_ranks], ranks = group_ranks(NULL, n);
    ranks = ranks ? ranks : MAX(host, 2);
    return (Group){(int)MIN((ranks - 1) / host + 1, INT_MAX), (int)MIN(ranks, host)};
}

CollectiveKind node_collective(const Node *n)
{
    return node_is(n, OP_all_gather_into_tensor)  ? ALL_GATHER
           : node_is(n, OP_reduce_scatter_tensor) ? REDUCE_SCATTER
           : node_is(n, OP_all_reduce)            ? ALL_REDUCE
           : node_is(n, OP_broadcast)             ? BROADCAST
           : node_is(n, OP_permute_tensor)        ? PERMUTE
                                                  : ALL_TO_ALL;
}

/* ---- on one host ---- */

/* Between the figures of groups of 2, 4 and 8, the first of which is `id`. */
static double by_ranks(const Machine *m, FigureId id, int ranks)
{
    const double *y = &m->figure[id];
    if (ranks <= 4)
        return y[0] + (y[1] - y[0]) * (MAX(ranks, 2) - 2) / 2;
    return y[1] + (y[2] - y[1]) * (MIN(ranks, 8) - 4) / 4;
}

static double on_host(const Machine *m, CollectiveKind k, int ranks, double nbytes)
{
    if (k == ALL_TO_ALL)
        return m->figure[FIGURE_exchange_wait] + nbytes / (1e3 * m->figure[FIGURE_exchange]);
    bool reduce = k == ALL_REDUCE;
    double wait = by_ranks(m, reduce ? FIGURE_reduce_2_wait : FIGURE_gather_2_wait, ranks);
    return wait + nbytes / (1e3 * by_ranks(m, reduce ? FIGURE_reduce_2 : FIGURE_gather_2, ranks));
}

/* ---- between hosts ---- */

/* At nbytes, of n values at powers of two from 64 bytes: geometric between, constant beyond. */
static double at_size(const double *y, int n, double nbytes)
{
    double x = log2(MAX(nbytes, 64) / 64);
    int i = (int)MIN(x, n - 1);
    return i == n - 1 ? y[i] : y[i] * pow(y[i + 1] / y[i], x - i);
}

/* The share of the bandwidth that messages of so many bytes for each rank reach: 0.01 and 0.03
 * have a digit more, as two points of which one is twice the other would make more bytes take as
 * long. */
static double ramp(double nbytes)
{
    static const double share[] = {0.011, 0.02, 0.031, 0.06, 0.10, 0.16, 0.25, 0.36, 0.68,
                                   0.68,  0.68, 0.68,  0.68, 0.68, 0.68, 0.68, 0.68, 0.68,
                                   0.79,  0.87, 0.87,  0.87, 0.87, 0.87, 1};
    return at_size(share, LEN(share), nbytes);
}

/* The bandwidth of all ranks of a host together, in GB/s. */
static double busy_rate(const Machine *m, const Group *g)
{
    return 0.96 * m->figure[FIGURE_network] * g->ranks_per_node;
}

/* rounds: 1 of all_gather and reduce_scatter, 2 of all_reduce, which is one of each. */
static double ring_sec(const Machine *m, const Group *g, int rounds, double nbytes)
{
    static const double base[NPROTOCOL] = {6.6, 14, 8.4}, inside[NPROTOCOL] = {1, 1.9, 3.4};
    static const double between[NPROTOCOL] = {2.7, 4, 14}, lone[NPROTOCOL] = {5, 8.5, 14};
    double ranks = (double)g->nodes * g->ranks_per_node, rate = busy_rate(m, g), best = INFINITY;
    bool full = g->ranks_per_node > 1 && g->ranks_per_node >= m->figure[FIGURE_host_ranks];
    double share = full ? ramp(nbytes / ranks) : 1;
    double busy[NPROTOCOL] = {[LL] = MIN(rate / 2, g->nodes == 2 ? 39 : 20.4),
                              [LL128] = MIN(0.92 * rate, 293.6),
                              [SIMPLE] = rate};
    for (int p = 0; p < NPROTOCOL; p++) {
        double step = g->ranks_per_node > 1 ? between[p] : lone[p];
        double steps = (g->nodes - 1) * step * m->figure[FIGURE_network_wait] +
                       (double)g->nodes * (g->ranks_per_node - 1) * inside[p];
        double full_rate = 1e3 * share * busy[p] * ranks / (ranks - 1) / rounds;
        best = MIN(best, base[p] + rounds * steps + nbytes / full_rate);
    }
    return best;
}

/* NCCL's tree, down and up; it sends each byte twice. Rates are the reference's, of 2 hosts and of
 * more, for each rank of a host, by its network card, and at most, by channels; with tuning.cc's
 * corrections for middle sizes. */
static double tree_sec(const Machine *m, const Group *g, double nbytes)
{
    static const double base[NPROTOCOL] = {6.8, 14, 8.4}, inside[NPROTOCOL] = {0.6, 1.25, 4};
    static const double between[NPROTOCOL] = {5, 8.5, 14};
    static const double each[2][NPROTOCOL] = {{9.3, 31.2, 35.2}, {4.9, 17.6, 18.8}};
    static const double most[2][NPROTOCOL] = {{16.6, 124.8, 140.8}, {8.7, 98.6, 122.4}};
    static const double share[NPROTOCOL][23] = {
        [LL] = {1,   1,   1,   1,   0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
                0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1,   1,   1,   1},
        [LL128] = {1,   1,   1,   1,   1,   0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
                   0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1,   1},
        [SIMPLE] = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
                    0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9}};
    double best = INFINITY, network = m->figure[FIGURE_network] / 50;
    int more = g->nodes > 2;
    for (int p = 0; p < NPROTOCOL; p++) {
        double steps = log2(g->nodes) * between[p] * m->figure[FIGURE_network_wait] +
                       (g->ranks_per_node - 1) * inside[p];
        double rate = MIN(each[more][p] * network * g->ranks_per_node, most[more][p]);
        rate *= at_size(share[p], LEN(share[p]), nbytes);
        best = MIN(best, base[p] + 2 * steps + nbytes / (1e3 * rate));
    }
    return best;
}

/* The reference's figures for 8 ranks on each of 2 hosts, and of more; it reaches them with
 * messages of 4 MiB for each rank. */
static double multicast_sec(const Machine *m, const Group *g, double nbytes)
{
    static const double share[] = {0.1, 0.1,  0.1,  0.1,  0.1,  0.1,  0.1,  0.1, 0.1,
                                   0.1, 0.15, 0.28, 0.41, 0.55, 0.72, 0.88, 1};
    double each = nbytes / ((double)g->nodes * g->ranks_per_node);
    double rate = (g->nodes == 2 ? 266.7 : 160) * busy_rate(m, g) / 384;
    rate *= at_size(share, LEN(share), each);
    return 25 + 28 * log2(g->nodes) + nbytes / (1e3 * rate);
}

static double reduce_sec(const Machine *m, const Group *g, double nbytes)
{
    double sec = MIN(ring_sec(m, g, 2, nbytes), tree_sec(m, g, nbytes));
    bool switched = m->figure[FIGURE_multicast] > 0 && g->ranks_per_node >= 4;
    return switched ? MIN(sec, multicast_sec(m, g, nbytes)) : sec;
}

static double exchange_sec(const Machine *m, const Group *g, double nbytes)
{
    static const double wait[] = {37, 42, 60, 98, 290}; /* of 2, 4, ... 32 hosts */
    double x = log2(g->nodes) - 1;
    int i = (int)MIN(x, LEN(wait) - 1);
    double first =
        i == LEN(wait) - 1 ? wait[i] * g->nodes / 32 : wait[i] + (wait[i + 1] - wait[i]) * (x - i);
    double leaves = 1 - 1.0 / g->nodes, rate = m->figure[FIGURE_network] * (1 - 0.44 / g->nodes);
    return first * m->figure[FIGURE_network_wait] + nbytes * leaves / (1e3 * rate);
}

/* Each rank sends to one other, all at once. The bytes go as in one of the steps of an
 * all_gather around the ring; the wait is that of two ranks, as the call has its own. */
static double permute_sec(const Machine *m, const Group *g, double nbytes)
{
    double ranks = (double)g->nodes * g->ranks_per_node;
    Group two = {MIN(g->nodes, 2), g->nodes > 1 ? 1 : 2};
    double wait = collective_sec(m, ALL_GATHER, two, 0);
    double ring = collective_sec(m, ALL_GATHER, *g, ranks * nbytes);
    return wait + (ring - collective_sec(m, ALL_GATHER, *g, 0)) / (ranks - 1);
}

double collective_sec(const Machine *m, CollectiveKind k, Group group, double nbytes)
{
    const Group *g = &group;
    if (g->nodes * (double)g->ranks_per_node <= 1)
        return 0;
    if (k == PERMUTE)
        return permute_sec(m, g, nbytes);
    if (g->nodes == 1)
        return 1e-6 * on_host(m, k, g->ranks_per_node, nbytes);
    switch (k) {
    case ALL_REDUCE: return 1e-6 * reduce_sec(m, g, nbytes);
    case ALL_TO_ALL: return 1e-6 * exchange_sec(m, g, nbytes);
    default: return 1e-6 * ring_sec(m, g, 1, nbytes);
    }
}
