/* order: which node runs when, for a low peak. Sections name the file that implements them. */
#ifndef TENON_ORDER_H
#define TENON_ORDER_H

#include "../flow/problem.h"

/* ---- order.c: candidates, choice ---- */

/* Reorders g's nodes and its regions' bodies within what they depend on, so that score(g, arg), the
 * planned peak (the flow's or more), is least: construction order on a tie, never a worse one. A
 * node that makes the new value of a parameter or state runs after the other readers of the old
 * one; where that cannot be, the order stays. score may be NULL: then the peak of the flow decides.
 * quick: searches take back fewer choices. Returns how many nodes of g have another place than
 * before. */
int order_graph(Graph *g, const Device *d, const Machine *m, Arena *tmp, bool quick,
                int64_t (*score)(Graph *g, void *arg), void *arg);

/* Reorders g's nodes, but not its regions' bodies, so that the flow's peak is at most `most` and
 * good(g, arg) holds, by whichever order does so first. False: none is found, and the order stays.
 */
bool order_within(Graph *g, const Device *d, const Machine *m, Arena *tmp, int64_t most,
                  bool (*good)(Graph *g, void *arg), void *arg);

/* Moves what makes large values beneath the peak elsewhere in g's order, if that lowers the score.
 */
void order_lower(Graph *g, const Device *d, const Machine *m, Arena *tmp,
                 int64_t (*score)(Graph *g, void *arg), void *arg);

/* ---- order_search.c: an order within a limit ---- */

/* Fills out with an order of the least peak that is found between `least`, a bound, and `most`
 * (INT64_MAX: any), from the start or `backward` from the end, preferring the order of base; a
 * `quick` search of a small graph takes back fewer choices. false: none is found. */
bool order_search(const Problem *q, Arena *tmp, const int *base, bool backward, bool quick,
                  int64_t least, int64_t most, int *out);

/* The same with a peak of at most `most`, whichever is found first. */
bool order_search_within(const Problem *q, Arena *tmp, const int *base, bool backward, int64_t most,
                         int *out);

/* Fills out with base, changed so that every node runs as late as it can. */
void order_alap(const Problem *q, Arena *tmp, const int *base, int *out);

/* Fills out with base in depth-first order: each node follows the nodes that only it waits for, so
 * values are close to their readers, and a weight's update to its gradient. */
void order_depth_first(const Problem *q, Arena *tmp, const int *base, int *out);

/* ---- order_sink.c: makers of large values away from the peak ---- */

/* Fills out with order, in which nodes whose results lie beneath the peak, together with those that
 * make less of them, run elsewhere, so that the peak falls; false: none is found. */
bool order_sink(const Problem *q, Arena *tmp, const int *order, int *out);

/* ---- order_pull.c: reductions after what they reduce ---- */

/* Fills out with order, in which reductions over ranks that leave no more alive than before, and
 * what waits for them, run as soon as they can without a higher peak; false: they do already. */
bool order_pull(const Problem *q, Arena *tmp, const int *order, int *out);

/* ---- order_overlap.c: collectives beside computing ---- */

/* In how many bytes collectives are moved. */
typedef struct OverlapBytes {
    int64_t more; /* that may be alive beside the peak; where that is negative, no more than now at
                     nodes where that is less */
    const int64_t *beside; /* by node id: bytes that are alive there too; NULL: none */
    double rival;    /* seconds that the step is to be below, else any order will do: 0: none */
    bool told;       /* its seconds are but compared with others': half of the searches suffice */
    int64_t lacking; /* is filled: with fewer bytes more than this the order is the same */
} OverlapBytes;

/* Moves starts of collectives and their waits apart in g's order, and nodes between them, so that
 * the step takes less by m's seconds. Returns the seconds of the step then; INFINITY: nothing has
 * moved. */
double order_overlap(Graph *g, const Device *d, const Machine *m, Arena *tmp, OverlapBytes *b);

/* ---- order_bound.c: a lower bound for every order ---- */

/* A bound on the peak of any order of the graph and its bodies. */
int64_t order_bound(Flow *f, Arena *tmp);

/* The same for the nodes of q, where bodies stay as they are; order is the best known. quick: by
 * single nodes alone. */
int64_t problem_bound(const Problem *q, Arena *tmp, const int *order, bool quick);

#endif
