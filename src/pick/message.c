/* The least that an edge costs with each label of an end.
 *
 * Most labels of a sharding problem cost the same as some others with every label of the other end,
 * as they give or take a value in the same form. Only those rows and columns of an edge's matrix
 * are read that differ, a fiftieth of it as a rule. The result is the same to the last bit, as the
 * least of some sums with one addend is the sum of that with the least of the others. */
#include "model.h"

#include <string.h>

/* ---- labels that are alike ---- */

enum { MOST_ALIKE = 256 }; /* kinds of labels of an end; more are not looked for */

static uint64_t hash_row(const double *row, int k)
{
    uint64_t h = 0, word;
    for (int i = 0; i < k; i++) {
        memcpy(&word, &row[i], sizeof word);
        h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return h;
}

/* Numbers the kinds of n rows of k costs by of[]; returns how many there are, at[] being the first
 * row of each; 0: more than `most`. */
static int find_alike(const double *m, int n, int k, int most, int *of, int *at)
{
    uint64_t hash[MOST_ALIKE];
    int count = 0;
    for (int i = 0; i < n; i++) {
        const double *row = m + (int64_t)i * k;
        const uint64_t h = hash_row(row, k);
        int c = 0;
        while (c < count &&
               (hash[c] != h || memcmp(m + (int64_t)at[c] * k, row, sizeof *row * (size_t)k) != 0))
            c++;
        if (c == most)
            return 0;
        if (c == count) {
            hash[count] = h;
            at[count++] = i;
        }
        of[i] = c;
    }
    return count;
}

/* The costs of the rows and columns at those places. */
static void take_costs(const double *m, int k, const int *row, int n, const int *column, int count,
                       double *to)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < count; j++)
            *to++ = m[(int64_t)row[i] * k + column[j]];
}

void edge_find_alike(Arena *a, ModelEdge *e, int ku, int kv)
{
    enum { LITTLE = 64, LESS = 2 };
    int at_u[MOST_ALIKE], at_v[MOST_ALIKE];
    e->kinds = (EdgeKinds){0};
    if ((int64_t)ku * kv < LITTLE)
        return;
    EdgeKinds x = {.of_u = NEWN(a, int, ku), .of_v = NEWN(a, int, kv)};
    x.u = find_alike(e->m, ku, kv, MIN(ku, MOST_ALIKE), x.of_u, at_u);
    x.v = x.u ? find_alike(e->t, kv, ku, MIN(kv, MOST_ALIKE), x.of_v, at_v) : 0;
    if (!x.v || (int64_t)x.u * x.v * LESS > (int64_t)ku * kv)
        return;
    x.m = NEWN(a, double, x.u *x.v);
    x.t = NEWN(a, double, x.u *x.v);
    take_costs(e->m, kv, at_u, x.u, at_v, x.v, x.m);
    take_costs(e->t, ku, at_v, x.v, at_u, x.u, x.t);
    e->kinds = x;
}

/* ---- messages ---- */

/* Fills least[i] with the least of m[j * k + i] + sign * with[j] over the rows j, of k costs each.
 * Sums and comparisons alone, so that all processors find the same. */
KERNEL(void, least_pairs,
       (const double *restrict m, int n, int k, double sign, const double *restrict with,
        double *restrict least),
       (m, n, k, sign, with, least))
{
    for (int i = 0; i < k; i++)
        least[i] = INFINITY;
    for (int j = 0; j < n; j++, m += k) {
        const double more = sign * with[j];
        for (int i = 0; i < k; i++) {
            double x = m[i] + more;
            least[i] = x < least[i] ? x : least[i];
        }
    }
}

void model_message(const PickModel *m, const ModelEdge *e, int u, double sign, const double *with,
                   double *least)
{
    const EdgeKinds *x = &e->kinds;
    const bool first = e->u == u;
    const int k = model_labels(m, u), n = model_labels(m, model_other(e, u));
    if (!x->m) {
        least_pairs(model_edge_row(m, e, u, 0), n, k, sign, with, least);
        return;
    }
    double more[MOST_ALIKE], of_kind[MOST_ALIKE];
    const int *own = first ? x->of_u : x->of_v, *other = first ? x->of_v : x->of_u;
    const int nown = first ? x->u : x->v, nother = first ? x->v : x->u;
    for (int j = 0; j < nother; j++)
        more[j] = INFINITY;
    for (int j = 0; j < n; j++) {
        const double y = sign * with[j];
        more[other[j]] = y < more[other[j]] ? y : more[other[j]];
    }
    least_pairs(first ? x->t : x->m, nother, nown, 1, more, of_kind);
    for (int i = 0; i < k; i++)
        least[i] = of_kind[own[i]];
}
