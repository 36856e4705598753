/* Several sources, mixed by weights. Each PERIOD rows of a run have a fixed number of each
 * source's, in proportion to the weights, in the order of a permutation of seed and period; a
 * source's own rows come as they would alone, epoch after epoch of its own. So a row is a function
 * of seed and number alone, as without a mixture, and a run goes on without anything stored. An
 * epoch of the mixture is as many rows as all sources have together. Held-out rows are those of all
 * sources, one source after the other. */
#include "io.h"

enum { PERIOD = 10000 };

/* The shares of PERIOD: rounded down, and one more for the largest remainders. */
static void fill_shares(Ctx *ctx, Arena *tmp, DataMix *m, const double *weight)
{
    double sum = 0, *rest = NEWN(tmp, double, m->n);
    int64_t left = PERIOD;
    for (int i = 0; i < m->n; i++) {
        if (!(weight[i] > 0 && weight[i] < 1e300))
            fail(ctx, TN_USAGE, "weight %d: expected more than 0, found %g", i + 1, weight[i]);
        sum += weight[i];
    }
    for (int i = 0; i < m->n; i++) {
        double share = weight[i] / sum * PERIOD;
        m->share[i] = (int64_t)share;
        rest[i] = share - (double)m->share[i];
        left -= m->share[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < m->n; i++)
            most = rest[i] > rest[most] ? i : most;
        m->share[most]++;
        rest[most] = -1;
    }
    for (int i = 0; i < m->n; i++)
        if (!m->share[i])
            fail(ctx, TN_USAGE, "weight %d: expected at least 1/%d of all, found %g of %g", i + 1,
                 PERIOD, weight[i], sum);
}

DataSet *data_mix(Arena *a, Arena *tmp, int n, DataSet *const *part, const double *weight)
{
    DataSet *s = NEW(a, DataSet);
    DataMix *m = NEW(a, DataMix);
    *s = (DataSet){.ctx = arena_ctx(a), .document = -1, .mix = m};
    *m = (DataMix){.n = n, .part = NEWN(a, DataSet *, n), .share = NEWN(a, int64_t, n)};
    fill_shares(s->ctx, tmp, m, weight);
    for (int i = 0; i < n; i++) {
        const DataSet *p = m->part[i] = part[i];
        s->ntoken += p->ntoken;
        s->ntrain += p->ntrain;
        s->nval += p->nval;
        s->nbytes += p->nbytes;
        for (int k = 0; k < p->count; k++)
            PUSH(a, s->file, s->count, s->cap, p->file[k]);
    }
    return s;
}

DataSet *data_mix_copy(Arena *a, const DataSet *s, Ctx *ctx)
{
    DataSet *x = NEW(a, DataSet);
    *x = *s;
    x->ctx = ctx;
    if (!s->mix)
        return x;
    DataMix *m = NEW(a, DataMix);
    *m = *s->mix;
    m->part = NEWN(a, DataSet *, m->n);
    for (int i = 0; i < m->n; i++)
        m->part[i] = data_mix_copy(a, s->mix->part[i], ctx);
    x->mix = m;
    return x;
}

int data_mix_row(const DataMix *m, uint64_t seed, int64_t *at)
{
    int64_t period = *at / PERIOD;
    int64_t place = data_permute(seed, DATA_MIX, (uint32_t)period, PERIOD, *at % PERIOD);
    int i = 0;
    for (; place >= m->share[i]; i++)
        place -= m->share[i];
    *at = period * m->share[i] + place;
    return i;
}
