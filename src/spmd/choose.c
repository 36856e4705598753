/* choose: how each axis of the mesh cuts a node.
 *
 * An axis has a few choices. It may cut the node as one of its operands is cut, or so that a result
 * has the form that the optimizer wants. It may cut along any factor, tp along the tokens, where an
 * operand is partial and must be reduced anyway (reduce-scatter). It may pass on what is partial,
 * if nothing has to be gathered for that. It may leave the node whole. On data axes choices that
 * give other bits than one rank in microbatches are left out.
 *
 * Every combination of the axes' choices that src/cut allows has a price: seconds to bring the
 * operands to their forms, by the steps that would be emitted; the node's own seconds, divided by
 * the ranks that cut it; and seconds to reduce what becomes partial. The cheapest is taken, the
 * first among equals. Linear in the combinations: choices to the power of axes. */
#include "rewrite.h"

#include <string.h>

enum {
    MAX_CHOICES = 48,
    INSIDE = 0 /* as `outer`: inside of what other axes cut of the factor */
};

typedef struct CutChoices {
    NodeCut cut[MAX_CHOICES];
    int count;
} CutChoices;

typedef struct StrategySearch {
    SpmdGraph *s;
    const Node *n;
    const Factors *f;
    CutChoices choices[MAX_MESH];
    Cut *cut; /* room for one axis' cuts of operands and results */
    double sec;
    Strategy now, best;
    uint64_t nlegal; /* with their chances, where they are drawn */
} StrategySearch;

/* ---- the choices of an axis ---- */

static void choice_add(CutChoices *w, NodeCut how)
{
    for (int j = 0; j < w->count; j++) {
        const NodeCut *x = &w->cut[j];
        if (x->kind == how.kind && x->factor == how.factor && x->outer == how.outer &&
            x->partial == how.partial && x->merge == how.merge)
            return;
    }
    if (w->count < MAX_CHOICES)
        w->cut[w->count++] = how;
}

/* Whether all forms of v are partial on axis c; *kind gets how. */
static bool only_partial(SpmdGraph *s, const Value *v, int c, CutKind *kind)
{
    for (const RankForm *h = spmd_logical(s, v)->form; h; h = h->next) {
        if (!cut_is_partial(h->cut[c]))
            return false;
        *kind = h->cut[c].kind;
    }
    return true;
}

static bool has_whole(SpmdGraph *s, const Value *v, int c)
{
    for (const RankForm *h = spmd_logical(s, v)->form; h; h = h->next)
        if (h->cut[c].kind == CUT_WHOLE)
            return true;
    return false;
}

/* Adds the cut of n that follows from a cut of its operand i. */
static void add_operand_choice(StrategySearch *x, int c, int i, Cut cut)
{
    const Node *n = x->n;
    NodeCut how;
    CutStop stop;
    memset(x->cut, 0, sizeof *x->cut * (size_t)n->nin);
    x->cut[i] = cut;
    if (cut_forward(n, x->f, x->s->x->cuts[c].count, x->cut, &how, &stop))
        choice_add(&x->choices[c], how);
}

/* Adds cuts along all factors, or along those of the batch's tokens alone. */
static void add_factor_choices(StrategySearch *x, int c, bool tokens)
{
    for (int k = 0; k < x->f->count; k++)
        if (x->f->factor[k].kind != FACTOR_REPLICATE &&
            (!tokens || token_factor(x->s, x->n, x->f, k)))
            choice_add(&x->choices[c],
                       (NodeCut){.kind = NODE_FACTOR, .factor = k, .outer = INSIDE});
}

/* Partial operands pass, where the others are whole already. */
static void add_linear_choice(StrategySearch *x, int c)
{
    const Node *n = x->n;
    NodeCut how;
    CutStop stop;
    bool found = false;
    memset(x->cut, 0, sizeof *x->cut * (size_t)n->nin);
    for (int i = 0; i < n->nin; i++) {
        CutKind kind = CUT_SUM;
        if (only_partial(x->s, n->in[i], c, &kind)) {
            x->cut[i].kind = kind;
            found = true;
        } else if (!has_whole(x->s, n->in[i], c)) {
            return;
        }
    }
    if (found && cut_forward(n, x->f, x->s->x->cuts[c].count, x->cut, &how, &stop))
        choice_add(&x->choices[c], how);
}

/* Whether an axis may cut n though no operand is cut so. With tp that is sequence parallelism, and
 * the few numbers of the loss are too small for it. */
static bool may_cut_anew(const Spmd *p, const Node *n, int c)
{
    return p->kind[c] != AXIS_TP || (p->o->sequence_parallel && n->phase != LOSS);
}

/* Adds cuts that bring operand i, if it is partial or n belongs to the optimizer, to the form that
 * the optimizer wants; if that is unknown, cuts that reduce it along any factor. */
static void add_reducing_choices(StrategySearch *x, int c, int i)
{
    const Node *n = x->n;
    const Sharding *wanted = spmd_logical(x->s, n->in[i])->wanted;
    CutKind kind = CUT_SUM;
    bool partial = only_partial(x->s, n->in[i], c, &kind);
    if (wanted && wanted->cut[c].kind == CUT_SLICE && (partial || n->phase == OPTIMIZER))
        add_operand_choice(x, c, i, wanted->cut[c]);
    else if (partial && !wanted && may_cut_anew(x->s->x, n, c))
        add_factor_choices(x, c, x->s->x->kind[c] == AXIS_TP);
}

/* Adds cuts that make results in the form that the optimizer reads. */
static void add_result_choices(StrategySearch *x, int c)
{
    const Node *n = x->n;
    for (int k = 0; k < n->nout; k++) {
        const Sharding *wanted = spmd_logical(x->s, n->out[k])->wanted;
        NodeCut how;
        CutStop stop;
        if (!wanted || wanted->cut[c].kind != CUT_SLICE)
            continue;
        memset(x->cut, 0, sizeof *x->cut * (size_t)n->nout);
        x->cut[k] = wanted->cut[c];
        if (cut_backward(n, x->f, x->s->x->cuts[c].count, x->cut, &how, &stop))
            choice_add(&x->choices[c], how);
    }
}

static bool reads_parameters_only(SpmdGraph *s, const Node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (!spmd_logical(s, n->in[i])->param)
            return false;
    return true;
}

/* Adds the cuts that operands have. The cut in which a parameter is stored counts only for a node
 * that reads nothing else, or updates it. */
static void add_operand_choices(StrategySearch *x, int c)
{
    const Node *n = x->n;
    bool stored = n->phase == OPTIMIZER || reads_parameters_only(x->s, n);
    for (int i = 0; i < n->nin; i++) {
        const LogicalValue *k = spmd_logical(x->s, n->in[i]);
        if (k->param && k->of.storage_sharded[c] && !stored)
            continue;
        for (const RankForm *h = k->form; h; h = h->next)
            if (h->cut[c].kind == CUT_SLICE)
                add_operand_choice(x, c, i, h->cut[c]);
    }
}

static void find_choices(StrategySearch *x, int c)
{
    const Node *n = x->n;
    if (x->s->x->cuts[c].count == 1) { /* it cuts nothing */
        choice_add(&x->choices[c], (NodeCut){.kind = NODE_WHOLE});
        return;
    }
    add_linear_choice(x, c);
    add_operand_choices(x, c);
    for (int i = 0; i < n->nin; i++)
        add_reducing_choices(x, c, i);
    add_result_choices(x, c);
    if (x->s->x->draw)
        add_factor_choices(x, c, false);
    choice_add(&x->choices[c], (NodeCut){.kind = NODE_WHOLE});
}

/* ---- the bits of one rank ---- */

/* Whether axis c must keep the order of sums on one rank in microbatches. There the loop adds its
 * sums up before anything is computed with them, and products of what has no rows are whole. In
 * loops no order is kept: a body of microbatches would reduce in every iteration, and another
 * number of microbatches has other bits anyway. */
static bool keeps_order(const StrategySearch *x, int c)
{
    const Spmd *p = x->s->x;
    return spmd_data_axis(p, c) && !p->draw && !x->s->loop && x->n->phase < OPTIMIZER;
}

static bool has_rows(const StrategySearch *x)
{
    for (int i = 0; i < x->n->nin; i++) {
        const LogicalValue *k = spmd_logical(x->s, x->n->in[i]);
        if (!k->alone && !k->sums)
            return true;
    }
    return false;
}

/* Whether axis c, which cuts n so, cuts sums over rows of the batch along another axis than 0
 * although nobody wants that: a gradient's norm adds its rows up exactly, and parts of rows not. */
static bool cuts_rows(StrategySearch *x, int c, const NodeCut *how)
{
    bool sums = false;
    for (int i = 0; i < x->n->nin; i++)
        sums |= spmd_logical(x->s, x->n->in[i])->sums;
    cut_fill(x->n, x->f, how, x->cut, x->cut + x->n->nin);
    for (int k = 0; k < x->n->nout && sums; k++) {
        Cut out = x->cut[x->n->nin + k];
        const Sharding *wanted = spmd_logical(x->s, x->n->out[k])->wanted;
        if (out.kind == CUT_SLICE && out.axis && !(wanted && cut_equal(wanted->cut[c], out)))
            return true;
    }
    return false;
}

/* Whether n only moves what is partial, or adds sums up, as accumulate does within an iteration. */
static bool passes_partial(const Node *n, const NodeCut *how)
{
    bool all = true;
    for (int i = 0; i < n->nin; i++)
        all &= (int)(how->partial >> MIN(i, 63) & 1);
    return n->op->class == CLASS_MOVEMENT || n->op->copy ||
           (n->op->class == CLASS_POINTWISE && n->nin > 1 && all);
}

static bool keeps_bits(StrategySearch *x, int c, const NodeCut *how)
{
    const Node *n = x->n;
    if (how->kind == NODE_LINEAR)
        return passes_partial(n, how);
    if (how->kind != NODE_FACTOR || has_rows(x))
        return true;
    return x->f->factor[how->factor].kind == FACTOR_PARALLEL && n->op->class != CLASS_PRODUCT &&
           n->op->class != CLASS_CONVOLUTION && n->op->class != CLASS_REDUCTION &&
           !cuts_rows(x, c, how);
}

/* Leaves axis c only choices that keep one rank's bits, if it must; whole is one of them. */
static void drop_choices(StrategySearch *x, int c)
{
    CutChoices *w = &x->choices[c];
    int count = 0;
    for (int j = 0; j < w->count; j++)
        if (!keeps_order(x, c) || keeps_bits(x, c, &w->cut[j]))
            w->cut[count++] = w->cut[j];
    w->count = count;
}

/* ---- the price of a combination ---- */

/* Replaces INSIDE by what follows from the other axes that cut the same factor. */
static void place_inside(StrategySearch *x, const NodeCut *chosen)
{
    const Spmd *p = x->s->x;
    bool placed[MAX_MESH];
    for (int c = 0; c < p->mesh->naxes; c++) {
        x->now.how[c] = chosen[c];
        placed[c] = chosen[c].kind != NODE_FACTOR || chosen[c].outer != INSIDE;
    }
    for (int c = 0; c < p->mesh->naxes; c++) {
        int64_t outer = 1;
        for (int d = 0; d < p->mesh->naxes && !placed[c]; d++)
            if (placed[d] && x->now.how[d].kind == NODE_FACTOR &&
                x->now.how[d].factor == chosen[c].factor)
                outer = MAX(outer, x->now.how[d].outer * p->cuts[d].count);
        if (!placed[c])
            x->now.how[c].outer = outer;
        placed[c] = true;
    }
}

static void fill_forms(const Spmd *x, const Node *n, const Factors *f, Strategy *t)
{
    for (int c = 0; c < x->mesh->naxes; c++) {
        cut_fill(n, f, &t->how[c], t->row, t->row + n->nin);
        for (int i = 0; i < n->nin; i++)
            t->in[i][c] = t->row[i];
        for (int k = 0; k < n->nout; k++)
            t->out[k][c] = t->row[n->nin + k];
    }
}

bool strategy_fill(const Spmd *x, const Node *n, const Factors *f, Strategy *t)
{
    int naxes = x->mesh->naxes;
    CutStop stop;
    for (int c = 0; c < naxes; c++)
        if (!cut_legal(n, f, x->cuts[c].count, &t->how[c], &stop))
            return false;
    if (!cut_together(f, naxes, x->cuts, t->how, &stop))
        return false;
    fill_forms(x, n, f, t);
    for (int i = 0; i < n->nin; i++)
        if (!cut_value_legal(&n->in[i]->type, naxes, x->cuts, t->in[i]))
            return false;
    for (int k = 0; k < n->nout; k++)
        if (!cut_value_legal(&n->out[k]->type, naxes, x->cuts, t->out[k]))
            return false;
    t->merges = cut_partials(f, naxes, t->how, NULL) > 0;
    return true;
}

/* Seconds to reduce what becomes partial on an axis on which no operand is. */
static double reduce_sec(const StrategySearch *x, int c)
{
    const Spmd *p = x->s->x;
    const Node *n = x->n;
    double nbytes = 0;
    bool axes[MAX_MESH] = {0};
    const NodeCut *how = &x->now.how[c];
    if (how->kind != NODE_FACTOR)
        return 0;
    bool finished = factor_finished(&x->f->factor[how->factor]);
    for (int k = 0; k < n->nout; k++) {
        Type t = cut_type(&n->out[k]->type, p->mesh->naxes, p->cuts, x->now.out[k]);
        if (cut_is_partial(x->now.out[k][c]) || finished)
            nbytes += (double)type_nbytes(&t);
    }
    axes[c] = true;
    Group g = mesh_group(p->machine, p->mesh->size, p->mesh->naxes, axes);
    return nbytes > 0 ? collective_sec(p->machine, REDUCE_SCATTER, g, nbytes) : 0;
}

static Price find_price(StrategySearch *x)
{
    const Spmd *p = x->s->x;
    Price sum = {0, x->sec};
    for (int c = 0; c < p->mesh->naxes; c++) {
        if (x->now.how[c].kind == NODE_FACTOR)
            sum.sec /= (double)p->cuts[c].count;
        sum.sec += reduce_sec(x, c);
    }
    for (int i = 0; i < x->n->nin && price_is(sum); i++)
        sum = price_sum(sum, form_price(x->s, x->n->in[i], x->now.in[i], x->n));
    return sum;
}

/* ---- the choice ---- */

uint64_t spmd_draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15); /* Steele et al. 2014, SplitMix */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The weight of a strategy in a draw: more for one that takes or makes partial operands, as it
 * depends on other draws. */
static uint64_t chance_of(const StrategySearch *x)
{
    uint64_t weight = 1;
    for (int c = 0; c < x->s->x->mesh->naxes; c++) {
        const NodeCut *how = &x->now.how[c];
        bool sums = how->kind == NODE_FACTOR && x->f->factor[how->factor].kind != FACTOR_PARALLEL;
        weight *= how->kind == NODE_LINEAR ? 16 : sums ? 4 : 1;
    }
    return weight;
}

static void consider(StrategySearch *x, const NodeCut *chosen)
{
    Spmd *p = x->s->x;
    place_inside(x, chosen);
    if (!strategy_fill(p, x->n, x->f, &x->now))
        return;
    x->now.price = find_price(x);
    if (!price_is(x->now.price))
        return;
    uint64_t weight = p->draw ? chance_of(x) : 1;
    x->nlegal += weight;
    if (p->draw ? spmd_draw(&p->draw) % x->nlegal < weight
                : x->nlegal == 1 || price_less(x->now.price, x->best.price)) {
        Strategy best = x->now;
        x->now = x->best;
        x->best = best;
    }
}

/* The next combination: at[c] is the choice of axis c. False after the last. */
static bool next_combination(const StrategySearch *x, int naxes, int *at)
{
    for (int c = 0; c < naxes; c++) {
        if (++at[c] < x->choices[c].count)
            return true;
        at[c] = 0;
    }
    return false;
}

static void consider_all(StrategySearch *x, int naxes)
{
    int at[MAX_MESH] = {0};
    do {
        NodeCut chosen[MAX_MESH];
        for (int c = 0; c < naxes; c++)
            chosen[c] = x->choices[c].cut[at[c]];
        consider(x, chosen);
    } while (next_combination(x, naxes, at));
}

Strategy strategy_room(Arena *a, const Node *n)
{
    return (Strategy){.in = arena_alloc(a, sizeof(Cut[MAX_MESH]) * (size_t)MAX(n->nin, 1)),
                      .out = arena_alloc(a, sizeof(Cut[MAX_MESH]) * (size_t)MAX(n->nout, 1)),
                      .row = NEWN(a, Cut, n->nin + n->nout)};
}

/* The cheapest, as far as the walk has come. */
static Strategy *find_cheapest(SpmdGraph *s, const Node *n, const Factors *f)
{
    StrategySearch *x = NEW(s->tmp, StrategySearch);
    *x = (StrategySearch){.s = s, .n = n, .f = f, .cut = NEWN(s->tmp, Cut, n->nin + n->nout)};
    x->sec = node_sec(s->x->machine, NULL, n);
    x->now = strategy_room(s->tmp, n);
    x->best = strategy_room(s->tmp, n);
    for (int c = 0; c < s->x->mesh->naxes; c++)
        find_choices(x, c);
    for (int c = 0; c < s->x->mesh->naxes; c++)
        drop_choices(x, c);
    consider_all(x, s->x->mesh->naxes);
    if (!x->nlegal)
        fail_node(s->from, n, "cannot be run by the ranks of a mesh");
    return &x->best;
}

/* The picker's cut of n, if n can be cut so; NULL: it has none. */
static Strategy *find_picked(SpmdGraph *s, const Node *n, const Factors *f)
{
    const Picker *p = s->x->picker;
    const Strategy *picked = p ? p->pick(p->arg, s, n) : NULL;
    if (!picked)
        return NULL;
    Strategy *t = NEW(s->tmp, Strategy);
    *t = strategy_room(s->tmp, n);
    memcpy(t->how, picked->how, sizeof t->how);
    t->part = picked->part;
    t->npart = picked->npart;
    for (int c = 0; c < s->x->mesh->naxes; c++)
        if (t->how[c].kind == NODE_FACTOR && t->how[c].factor >= f->count)
            return NULL;
    return strategy_fill(s->x, n, f, t) ? t : NULL;
}

Strategy *strategy_choose(SpmdGraph *s, const Node *n, const Factors *f)
{
    const Picker *p = s->x->picker;
    Strategy *t = find_picked(s, n, f);
    s->x->unpicked |= !t;
    if (!t)
        t = find_cheapest(s, n, f);
    if (p && p->took)
        p->took(p->arg, n, t);
    return t;
}
