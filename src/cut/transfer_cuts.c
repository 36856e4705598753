/* transfer_cuts: finds how a node is cut from the cuts of its operands, or from those of its
 * results.
 *
 * An axis is the row-major product of its factors. A slice [outer][count][inner] of an axis lies in
 * the one factor that contains these `count` units; the node is cut in that factor, and with it
 * every operand and result that has the factor, each at its own axis and `outer`. A result without
 * the factor is partial, merged as the factor's kind says. A partial operand passes through a node
 * that is linear in it (op.def's linear sets). Everything else is refused with the reason. Whether
 * several loops and mesh axes can cut one node at once is found from the cuts of each. One node at
 * a time, linear in its factors. */
#include "cut.h"

static bool refuse(CutStop *stop, const char *why, int operand, int result)
{
    *stop = (CutStop){why, operand, result};
    return false;
}

const char *cut_stop_text(Arena *a, const Node *n, const CutStop *stop)
{
    if (stop->operand >= 0 && stop->operand < n->nin)
        return arena_printf(a, "%s operand %d (%%%s)", stop->why, stop->operand,
                            n->in[stop->operand]->name);
    if (stop->result >= 0 && stop->result < n->nout)
        return arena_printf(a, "%s result %d (%%%s)", stop->why, stop->result,
                            n->out[stop->result]->name);
    return stop->why;
}

/* ---- from axes to factors and back ---- */

/* The factor in which a slice of an axis lies, and the part of the factor above it; -1: none. */
static int factor_of(const Factors *f, const Axes *x, const Cut *c, int64_t count, int64_t *outer)
{
    int64_t above = c->outer;
    for (int j = 0; j < x->n[c->axis]; j++) {
        int64_t size = f->factor[x->f[c->axis][j]].size;
        if (size && above % size == 0) {
            above /= size;
            continue;
        }
        *outer = above;
        return size % (above * count) == 0 ? x->f[c->axis][j] : -1;
    }
    return -1;
}

/* The cut of a value with these axes, where `factor` is cut below `outer` of it. If the axis is
 * empty, `outer` says nothing, but is at least 1. */
static Cut cut_on(const Factors *f, const Axes *x, int rank, int factor, int64_t outer)
{
    for (int d = 0; d < rank; d++) {
        int64_t above = outer;
        for (int j = 0; j < x->n[d]; j++) {
            if (x->f[d][j] == factor)
                return (Cut){CUT_SLICE, d, above};
            above *= MAX(1, f->factor[x->f[d][j]].size);
        }
    }
    return (Cut){.kind = CUT_WHOLE};
}

CutKind cut_merge(FactorKind k)
{
    return k == FACTOR_SUM         ? CUT_SUM
           : k == FACTOR_MAX       ? CUT_MAX
           : k == FACTOR_LOGSUMEXP ? CUT_LOGSUMEXP
                                   : CUT_WHOLE;
}

/* How result k is merged where it does not have the factor; whole where finish() makes it. */
static CutKind merge_of(const Factors *f, int factor, int k)
{
    const Factor *x = &f->factor[factor];
    FactorKind kind = x->results && k < x->npartial ? x->partial[k] : x->kind;
    return factor_finished(x) ? CUT_WHOLE : cut_merge(kind);
}

/* ---- partial operands ---- */

static uint64_t operand_bit(int i)
{
    return 1ULL << MIN(i, 63);
}

/* Whether a partial operand passes n: a partial maximum or log-sum-exp only if n moves elements. */
static bool passes(const Node *n, CutKind merge, uint64_t partial)
{
    return merge == CUT_SUM ? op_linear(n, partial) : n->op->view && partial == 1;
}

/* ---- legality ---- */

static bool factor_legal(const Node *n, const Factors *f, int64_t count, const NodeCut *how,
                         CutStop *stop)
{
    const Factor *x = &f->factor[how->factor];
    if (x->kind == FACTOR_REPLICATE)
        return refuse(stop, "it needs all of an axis", -1, -1);
    if (x->size % (how->outer * count))
        return refuse(stop, "its size cannot be divided so", -1, -1);
    if (x->kind == FACTOR_LOGSUMEXP && !x->npartial && n->nout > 1)
        return refuse(stop, "its parts would be weighted by each other's sums", -1, -1);
    return true;
}

bool cut_legal(const Node *n, const Factors *f, int64_t count, const NodeCut *how, CutStop *stop)
{
    if (n->op->region == FUSED)
        return refuse(stop, "it is fused; expected the pass unfuse before", -1, -1);
    if (how->kind == NODE_FACTOR)
        return factor_legal(n, f, count, how, stop);
    if (how->kind == NODE_LINEAR && !passes(n, how->merge, how->partial))
        return refuse(stop, "it is not linear in what is partial", -1, -1);
    return true;
}

/* Whether two cuts of one factor are nested: one lies within `inner` of the other. */
static bool nested(int64_t outer, int64_t count, int64_t outer2, int64_t count2)
{
    return outer2 % (outer * count) == 0 || outer % (outer2 * count2) == 0;
}

bool cut_value_legal(const Type *t, int ncut, const PartCut *cuts, const Cut *cut)
{
    for (int c = 0; c < ncut; c++) {
        if (cut[c].kind != CUT_SLICE)
            continue;
        int64_t units = cut[c].outer * cuts[c].count; /* 0: below an axis of size 0 */
        if (cut[c].axis >= t->rank || !units || t->dim[cut[c].axis] % units)
            return false;
        for (int d = 0; d < c; d++)
            if (cut[d].kind == CUT_SLICE && cut[d].axis == cut[c].axis &&
                !nested(cut[c].outer, cuts[c].count, cut[d].outer, cuts[d].count))
                return false;
    }
    return true;
}

static bool cuts_factor(const NodeCut *how, int factor)
{
    return how->kind == NODE_FACTOR && how->factor == factor;
}

/* The first cut that cuts the factor just below `outer` of it; -1: none does. */
static int cut_below(int ncut, const PartCut *cuts, const NodeCut *how, int factor, int64_t outer)
{
    for (int c = 0; c < ncut; c++)
        if (cuts[c].count > 1 && cuts_factor(&how[c], factor) && how[c].outer == outer)
            return c;
    return -1;
}

/* Whether a part is one run of the factor: the cuts follow each other from the outermost. */
static bool one_run(int ncut, const PartCut *cuts, const NodeCut *how, int factor)
{
    int64_t outer = 1;
    int left = 0;
    for (int c = 0; c < ncut; c++)
        left += cuts[c].count > 1 && cuts_factor(&how[c], factor);
    for (; left > 0; left--) {
        int c = cut_below(ncut, cuts, how, factor, outer);
        if (c < 0 || (left > 1 && cuts[c].units != 1))
            return false;
        outer *= cuts[c].count;
    }
    return true;
}

static bool merged_alike(const Factor *x, const Factor *y)
{
    bool alike = x->npartial == y->npartial;
    for (int j = 0; j < x->npartial && alike; j++)
        alike = x->partial[j] == y->partial[j];
    return alike;
}

static bool pair_legal(const Factors *f, const PartCut *cuts, const NodeCut *how, int c, int d,
                       CutStop *stop)
{
    const Factor *x = &f->factor[how[c].factor], *y = &f->factor[how[d].factor];
    if (x == y && !nested(how[c].outer, cuts[c].count, how[d].outer, cuts[d].count))
        return refuse(stop, "two cuts of one axis overlap", -1, -1);
    if (x->npartial && y->npartial && !merged_alike(x, y))
        return refuse(stop, "two cuts would be merged in two ways", -1, -1);
    return true;
}

/* Whether two cuts may both make partials: only of one kind. */
static bool kinds_together(const Factors *f, const NodeCut *x, const NodeCut *y)
{
    const NodeCut *how[] = {x, y};
    for (int k = 0; k < MAX_PARTIAL; k++) {
        CutKind kinds[2];
        for (int c = 0; c < 2; c++)
            kinds[c] = how[c]->kind == NODE_LINEAR   ? how[c]->merge
                       : how[c]->kind == NODE_FACTOR ? merge_of(f, how[c]->factor, k)
                                                     : CUT_WHOLE;
        if (kinds[0] != CUT_WHOLE && kinds[1] != CUT_WHOLE && kinds[0] != kinds[1])
            return false;
    }
    return true;
}

bool cut_together(const Factors *f, int ncut, const PartCut *cuts, const NodeCut *how,
                  CutStop *stop)
{
    for (int c = 0; c < ncut; c++)
        for (int d = 0; d < c; d++) {
            if (!kinds_together(f, &how[c], &how[d]))
                return refuse(stop, "a sum and a maximum do not commute", -1, -1);
            if (how[c].kind == NODE_FACTOR && how[d].kind == NODE_FACTOR &&
                !pair_legal(f, cuts, how, c, d, stop))
                return false;
        }
    for (int k = 0; k < f->count; k++)
        if ((f->factor[k].placed || f->factor[k].offset >= 0) && !one_run(ncut, cuts, how, k))
            return refuse(stop, "its parts must begin at one place", -1, -1);
    return true;
}

/* ---- operands and results of a node that is cut ---- */

static void fill_factor(const Node *n, const Factors *f, const NodeCut *how, Cut *in, Cut *out)
{
    for (int i = 0; i < n->nin; i++)
        in[i] = cut_on(f, &f->in[i], n->in[i]->type.rank, how->factor, how->outer);
    for (int k = 0; k < n->nout; k++) {
        out[k] = cut_on(f, &f->out[k], n->out[k]->type.rank, how->factor, how->outer);
        if (out[k].kind == CUT_WHOLE)
            out[k].kind = merge_of(f, how->factor, k);
    }
}

static void fill_linear(const Node *n, const NodeCut *how, Cut *in, Cut *out)
{
    for (int i = 0; i < n->nin; i++)
        in[i].kind = how->partial & operand_bit(i) ? how->merge : CUT_WHOLE;
    for (int k = 0; k < n->nout; k++) /* the mask of native_dropout is whole */
        out[k].kind = n->out[k]->type.dtype == BOOL ? CUT_WHOLE : how->merge;
}

void cut_fill(const Node *n, const Factors *f, const NodeCut *how, Cut *in, Cut *out)
{
    for (int i = 0; i < n->nin; i++)
        in[i] = (Cut){.kind = CUT_WHOLE};
    for (int k = 0; k < n->nout; k++)
        out[k] = (Cut){.kind = CUT_WHOLE};
    if (how->kind == NODE_FACTOR)
        fill_factor(n, f, how, in, out);
    else if (how->kind == NODE_LINEAR)
        fill_linear(n, how, in, out);
}

/* ---- forward ---- */

/* The first sliced operand determines the factor; the others must be cut in it at the same place.
 */
static bool forward_slices(const Node *n, const Factors *f, int64_t count, const Cut *in,
                           NodeCut *how, CutStop *stop)
{
    bool found = false;
    for (int i = 0; i < n->nin; i++) {
        if (in[i].kind != CUT_SLICE)
            continue;
        int64_t outer;
        int k = factor_of(f, &f->in[i], &in[i], count, &outer);
        if (k < 0 || f->factor[k].kind == FACTOR_REPLICATE)
            return refuse(stop, "it needs all of", i, -1);
        if (found && (k != how->factor || outer != how->outer))
            return refuse(stop, "another axis of it is cut by", i, -1);
        *how = (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = outer};
        found = true;
    }
    return cut_legal(n, f, count, how, stop);
}

static bool forward_partials(const Node *n, const Cut *in, int first, NodeCut *how, CutStop *stop)
{
    *how = (NodeCut){.kind = NODE_LINEAR, .merge = in[first].kind};
    for (int i = 0; i < n->nin; i++) {
        if (cut_is_partial(in[i]) && in[i].kind != how->merge)
            return refuse(stop, "it mixes partial values of two kinds,", i, -1);
        how->partial |= cut_is_partial(in[i]) ? operand_bit(i) : 0;
    }
    return passes(n, how->merge, how->partial) ||
           refuse(stop, "it is not linear in the partial", first, -1);
}

bool cut_forward(const Node *n, const Factors *f, int64_t count, const Cut *in, NodeCut *how,
                 CutStop *stop)
{
    int slice = -1, partial = -1;
    for (int i = n->nin - 1; i >= 0; i--) {
        slice = in[i].kind == CUT_SLICE ? i : slice;
        partial = cut_is_partial(in[i]) ? i : partial;
    }
    *how = (NodeCut){.kind = NODE_WHOLE};
    if (slice < 0 && partial < 0)
        return true;
    if (n->op->region == FUSED)
        return cut_legal(n, f, count, how, stop);
    if (slice >= 0 && partial >= 0)
        return refuse(stop, "it mixes a slice with a partial value,", partial, -1);
    return slice >= 0 ? forward_slices(n, f, count, in, how, stop)
                      : forward_partials(n, in, partial, how, stop);
}

/* ---- backward ---- */

static bool backward_slice(const Node *n, const Factors *f, int64_t count, const Cut *out, int k,
                           NodeCut *how, CutStop *stop)
{
    int64_t outer;
    int factor = factor_of(f, &f->out[k], &out[k], count, &outer);
    if (factor < 0 || f->factor[factor].kind == FACTOR_REPLICATE)
        return refuse(stop, "it gives only all of", -1, k);
    *how = (NodeCut){.kind = NODE_FACTOR, .factor = factor, .outer = outer};
    return cut_legal(n, f, count, how, stop);
}

static bool backward_partial(const Node *n, CutKind merge, int k, NodeCut *how, CutStop *stop)
{
    uint64_t all = n->nin >= 64 ? ~0ULL : (1ULL << n->nin) - 1;
    *how = (NodeCut){.kind = NODE_LINEAR, .merge = merge};
    for (int i = 0; i < n->nin; i++)
        for (int j = i; j < n->nin; j++) {
            how->partial = operand_bit(i) | operand_bit(j);
            if (passes(n, merge, how->partial))
                return true;
        }
    how->partial = all;
    return (n->nin && passes(n, merge, all)) ||
           refuse(stop, "no linear set gives a partial", -1, k);
}

bool cut_backward(const Node *n, const Factors *f, int64_t count, const Cut *out, NodeCut *how,
                  CutStop *stop)
{
    bool found = false;
    *how = (NodeCut){.kind = NODE_WHOLE};
    if (n->op->region)
        return refuse(stop, "it is a region", -1, -1);
    for (int k = 0; k < n->nout; k++) {
        NodeCut one;
        if (out[k].kind == CUT_WHOLE)
            continue;
        if (out[k].kind == CUT_SLICE ? !backward_slice(n, f, count, out, k, &one, stop)
                                     : !backward_partial(n, out[k].kind, k, &one, stop))
            return false;
        if (found && (one.kind != how->kind || one.factor != how->factor ||
                      one.outer != how->outer || one.partial != how->partial))
            return refuse(stop, "another axis of it is cut by", -1, k);
        *how = one;
        found = true;
    }
    return true;
}
