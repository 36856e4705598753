/* Factors: an op's results must follow from the results of its parts. The rule must name every axis
 * with factors of its size; then each factor is cut, at any place within it, each set of operands
 * in which the op is linear is partial, and two of these ways are taken at once (cut_ways.c). All
 * in double, by ref. */
#include "check.h"
#include "cut_ways.h"

enum { MOST_PAIRED = 2000, PAIRS = 30 }; /* elements of a problem of which pairs are tried */

/* ---- the rule itself ---- */

static void check_axes(Problem *p, const Factors *f, const Axes *x, const Type *t, const char *what,
                       int i)
{
    for (int d = 0; d < t->rank; d++) {
        int64_t product = 1;
        for (int m = 0; m < x->n[d]; m++)
            product *= f->factor[x->f[d][m]].size;
        if (product != t->dim[d] && (x->n[d] || t->dim[d] > 1))
            miss(p, "factors of axis %d of %s %d have the product %lld, its size is %lld", d, what,
                 i, (long long)product, (long long)t->dim[d]);
    }
}

static void check_offset(Problem *p, const Factors *f, int k)
{
    int i = f->factor[k].offset;
    if (i < 0)
        return;
    const Type *t = i < p->wide->nin ? &p->wide->in[i]->type : NULL;
    if (!t || t->dtype != I64 || t->rank)
        miss(p, "factor %d: its offset operand %d is not i64[]", k, i);
}

/* Every factor that has parts is one of the ways that are tried. Results along a log-sum-exp that
 * are weighted by each other's sums have none yet. */
static void check_way(Problem *p, const Factors *f, int k)
{
    const Factor *x = &f->factor[k];
    NodeCut how = {.kind = NODE_FACTOR, .factor = k, .outer = 1};
    CutStop stop;
    bool weighted = x->kind == FACTOR_LOGSUMEXP && !x->npartial && p->wide->nout > 1;
    if (x->size > 1 && x->kind != FACTOR_REPLICATE && !weighted &&
        !cut_legal(p->wide, f, x->size, &how, &stop))
        miss(p, "factor %d: %s", k, stop.why);
}

static double elements(const Node *n)
{
    double nelem = 0;
    for (int i = 0; i < n->nin; i++)
        nelem += (double)type_nelem(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        nelem += (double)type_nelem(&n->out[k]->type);
    return nelem;
}

static void try_cuts(Problem *p)
{
    Rng rng = {p->c->seed, 0};
    WayCounts done = {0};
    int pairs = elements(p->wide) < MOST_PAIRED ? PAIRS : 0;
    const char *why = cut_ways_try(p->a, &rng, p->wide, p->in64, p->out64, pairs, &done);
    if (why)
        miss(p, "%s", why);
}

void check_factors(Problem *p)
{
    const Node *n = p->wide;
    const Factors *f = node_factors(p->a, n);
    int before = p->nmiss;
    for (int i = 0; i < n->nin; i++)
        check_axes(p, f, &f->in[i], &n->in[i]->type, "operand", i);
    for (int k = 0; k < n->nout; k++)
        check_axes(p, f, &f->out[k], &n->out[k]->type, "output", k);
    for (int k = 0; k < f->count; k++)
        check_offset(p, f, k);
    for (int k = 0; k < f->count; k++)
        check_way(p, f, k);
    if (!p->c->nosplit && p->nmiss == before)
        guard(p, "parts", try_cuts);
}
