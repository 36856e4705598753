/* part_node: emits the part of a node from how loops and mesh axes cut it: the nodes of its
 * results, or those of partials, from which cut_finish emits the results once they are merged.
 *
 * Several cuts of one factor are nested (cut_together): the part's size of the factor is the
 * factor's size times the fraction of units that each cut has, and its start is the sum of their
 * starts, in elements of the factor. Constant for each factor and cut. */
#include "cut.h"

#include <string.h>

Type cut_type(const Type *t, int ncut, const PartCut *cuts, const Cut *cut)
{
    Type part = *t;
    for (int c = 0; c < ncut; c++)
        if (cut[c].kind == CUT_SLICE)
            part.dim[cut[c].axis] = part.dim[cut[c].axis] / cuts[c].count * cuts[c].units;
    return part;
}

int cut_partials(const Factors *f, int ncut, const NodeCut *how, CutKind *merge)
{
    for (int c = 0; c < ncut; c++) {
        const Factor *x = &f->factor[how[c].factor];
        if (how[c].kind != NODE_FACTOR || !factor_finished(x))
            continue;
        for (int j = 0; j < x->npartial && merge; j++)
            merge[j] = cut_merge(x->partial[j]);
        return x->npartial;
    }
    return 0;
}

/* Adds the start of a cut in a factor to those of other cuts of it. */
static Value *add_start(Build *b, const PartCut *cut, int64_t step, Value *start)
{
    Value *v = cut->start(cut->arg, b, step);
    return v && start ? emit1(b, "add", IN(start, v), NOATTRS) : v ? v : start;
}

/* The runs of factors that are `apart`, from the shortest to the longest. */
static int fill_runs(Build *b, const Factors *f, int ncut, const PartCut *cuts, const NodeCut *how,
                     FactorRun *run)
{
    int nrun = 0;
    for (int c = 0; c < ncut; c++) {
        const Factor *x = &f->factor[how[c].factor];
        if (how[c].kind != NODE_FACTOR || !x->apart || cuts[c].count == 1)
            continue;
        int64_t unit = x->size / (how[c].outer * cuts[c].count);
        FactorRun own = {how[c].factor, unit * cuts[c].units, unit * cuts[c].count,
                         cuts[c].start(cuts[c].arg, b, unit)};
        int j = nrun++;
        for (; j && run[j - 1].run > own.run; j--)
            run[j] = run[j - 1];
        run[j] = own;
    }
    return nrun;
}

static Part make_part(Build *b, const Node *n, const Factors *f, int ncut, const PartCut *cuts,
                      const NodeCut *how, Value *const *in, Value **out)
{
    Arena *a = b->g->a;
    int64_t *size = NEWN(a, int64_t, MAX_FACTOR);
    Value **start = NEWN(a, Value *, MAX_FACTOR);
    for (int k = 0; k < f->count; k++)
        size[k] = f->factor[k].size;
    for (int c = 0; c < ncut; c++) {
        int k = how[c].factor;
        if (how[c].kind != NODE_FACTOR)
            continue;
        const Factor *x = &f->factor[k];
        size[k] = size[k] / cuts[c].count * cuts[c].units;
        if (x->placed || x->offset >= 0)
            start[k] = add_start(b, &cuts[c], x->size / (how[c].outer * cuts[c].count), start[k]);
    }
    bool partials = cut_partials(f, ncut, how, NULL) > 0;
    FactorRun *run = NEWN(a, FactorRun, ncut);
    return (Part){b,  n, f, size, start, in, partials, out, fill_runs(b, f, ncut, cuts, how, run),
                  run};
}

void cut_part(Build *b, const Node *n, const Factors *f, int ncut, const PartCut *cuts,
              const NodeCut *how, Value *const *in, Value **out)
{
    Part p = make_part(b, n, f, ncut, cuts, how, in, out);
    node_part(&p);
}

void cut_finish(Build *b, const Node *n, const Factors *f, int ncut, const PartCut *cuts,
                const NodeCut *how, Value *const *in, Value *const *merged, Value **out)
{
    Part p = make_part(b, n, f, ncut, cuts, how, in, out);
    n->op->rules->finish(&p, merged);
}
