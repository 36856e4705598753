/* Draws a token from logits: p[i] proportional to exp(logit[i] / temperature); of these the top_k
 * most likely, then the fewest that reach top_p together (Holtzman et al. 2020, arXiv:1904.09751),
 * then one by a number in [0, 1). The order is that of Hugging Face's generate. Among equals the
 * lower id counts as more likely. In double; the number is Philox's of (seed, tokens drawn before),
 * so a text depends on nothing else. Temperature 0 is the most likely token.
 *
 * No sort of all tokens: the top_k are selected (Hoare's quickselect), and tokens that top_p cannot
 * reach are removed first: n tokens below (1 - top_p) / n are together below 1 - top_p. */
#include "api.h"

#include <math.h>
#include <stdlib.h>

#define SAMPLING_STREAM 0xda7a0001u /* above every stream of a graph */

double sampling_uniform(uint64_t seed, uint64_t index)
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), SAMPLING_STREAM, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, word[4];
    philox(counter, key, word);
    return (double)(((uint64_t)word[1] << 32 | word[0]) >> 11) * 0x1p-53;
}

static int by_likelihood(const void *s, const void *t)
{
    const Candidate *x = s, *y = t;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id < y->id ? -1 : x->id > y->id;
}

/* Brings the k most likely of n to the front, in any order. */
static void select_top(Candidate *c, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        Candidate pivot = c[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (by_likelihood(&c[i], &pivot) < 0)
                i++;
            while (by_likelihood(&c[j], &pivot) > 0)
                j--;
            if (i <= j) {
                Candidate x = c[i];
                c[i++] = c[j];
                c[j--] = x;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

static double sum_of(const Candidate *c, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += c[i].p;
    return sum;
}

/* Leaves the fewest most likely whose sum reaches top_p of all, sorted; returns their number. */
static int64_t nucleus(Candidate *c, int64_t n, double top_p)
{
    double sum = sum_of(c, n), least = (1 - top_p) * sum / (double)n, have = 0;
    int64_t kept = 0, count = 0;
    for (int64_t i = 0; i < n; i++)
        if (c[i].p >= least)
            c[kept++] = c[i];
    qsort(c, (size_t)kept, sizeof *c, by_likelihood);
    while (count < kept && have < top_p * sum)
        have += c[count++].p;
    return MAX(count, 1);
}

/* The id of the greatest logit, or -1 where one of them is NaN or infinite. */
static int64_t greatest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            return -1;
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

int64_t sampling_draw(const tn_sampling *s, const float *logits, int64_t n, uint64_t index,
                      Candidate *c)
{
    int64_t best = greatest(logits, n);
    if (best < 0 || s->temperature == 0)
        return best;
    for (int64_t i = 0; i < n; i++)
        c[i] = (Candidate){exp(((double)logits[i] - logits[best]) / s->temperature), i};
    if (s->top_k && s->top_k < n) {
        select_top(c, n, s->top_k);
        n = s->top_k;
    }
    if (s->top_p < 1)
        n = nucleus(c, n, s->top_p);
    double left = sampling_uniform(s->seed, index) * sum_of(c, n);
    for (int64_t i = 0; i < n; i++)
        if ((left -= c[i].p) < 0)
            return c[i].id;
    return c[n - 1].id;
}
