/* form: the forms of values: which there are, what another one costs, and how it is made.
 *
 * A form is made once and shared by all readers; a reader starts from the cheapest form there is,
 * so that nothing is gathered to be sliced again. Gathers stand before their reader and carry its
 * scope; reductions stand after the node whose result they reduce and carry that one's scope.
 *
 * Where all forms are chosen at once, a reader starts from the form that the choice has for it, and
 * the backward keeps no other one of the forward's: a choice that gathers twice wants the bytes. A
 * view that was put off starts from the form of its operand that the choice has for it.
 *
 * A gathered parameter belongs to the block that reads it and is gathered again for each block.
 * With --reshard never it is kept, and made before all loops. A view is made again from the form of
 * its operand that is there, so that a matrix and its transpose are gathered once; a node without
 * operands is made in the form that is read; a widened parameter is gathered narrow, then widened.
 * A partial log-sum-exp is merged as m + log sum exp(x - m), m being the maximum, or 0 where that
 * is infinite. */
#include "rewrite.h"

#include <string.h>

RankForm *form_add(SpmdGraph *s, const Value *v, const Cut *cut, Value *is, const char *block)
{
    RankForm *h = NEW(s->tmp, RankForm), **at = &spmd_logical(s, v)->form;
    *h = (RankForm){.v = is, .block = block};
    memcpy(h->cut, cut, sizeof *cut * (size_t)s->x->mesh->naxes);
    while (*at)
        at = &(*at)->next;
    return *at = h;
}

/* ---- steps ---- */

/* Whether a step is one that is taken only if nothing else is possible: it gathers an activation on
 * an axis that cuts the batch, or a recipe's matrix on an axis that cuts it, or it reduces as a
 * whole a gradient of which the rank updates a part. */
static bool is_avoided(const SpmdGraph *s, const LogicalValue *k, const ReshardStep *step)
{
    if (s->x->free)
        return false;
    for (int j = 0; j < step->naxes; j++) {
        int c = step->axes[j];
        MeshAxisKind kind = s->x->kind[c];
        bool moves = step->kind == RESHARD_GATHER || step->kind == RESHARD_EXCHANGE;
        bool data = (kind == AXIS_DP || kind == AXIS_FSDP) && !k->alone;
        if (moves && (k->param ? k->of.computed_sharded[c] : data))
            return true;
        if (step->kind == RESHARD_REDUCE && k->wanted && k->wanted->cut[c].kind == CUT_SLICE)
            return true;
    }
    return false;
}

static Price steps_price(const SpmdGraph *s, const LogicalValue *k, const Reshard *r)
{
    Price p = {0, r->sec};
    for (int j = 0; j < r->nstep; j++)
        p.violations += is_avoided(s, k, &r->step[j]);
    return p;
}

/* ---- partial log-sum-exps ---- */

/* The form with such axes of `kind` instead. */
static void logsumexp_as(const Mesh *m, const Cut *x, CutKind kind, Cut *y)
{
    for (int c = 0; c < m->naxes; c++) {
        y[c] = x[c];
        y[c].kind = x[c].kind == CUT_LOGSUMEXP ? kind : x[c].kind;
    }
}

bool has_logsumexp(const Mesh *m, const Cut *x)
{
    for (int c = 0; c < m->naxes; c++)
        if (x[c].kind == CUT_LOGSUMEXP)
            return true;
    return false;
}

static double merge_sec(const Spmd *x, const Type *t, const Cut *have)
{
    Cut max[MAX_MESH], whole[MAX_MESH];
    Reshard r;
    logsumexp_as(x->mesh, have, CUT_MAX, max);
    logsumexp_as(x->mesh, have, CUT_WHOLE, whole);
    return reshard_find(x->machine, x->mesh, t, max, whole, &r) ? 2 * r.sec : INFINITY;
}

double edge_sec_by(const Spmd *x, const Type *t, StepTable *steps, const Cut *from, const Cut *to)
{
    Cut merged[MAX_MESH];
    logsumexp_as(x->mesh, from, CUT_WHOLE, merged);
    if (cuts_equal(x->mesh->naxes, from, to))
        return 0;
    double sec = reshard_sec(x->machine, x->mesh, t, steps, merged, to);
    return sec + (sec < INFINITY && has_logsumexp(x->mesh, from) ? merge_sec(x, t, from) : 0);
}

double edge_sec(const Spmd *x, const Type *t, const Cut *from, const Cut *to)
{
    return edge_sec_by(x, t, NULL, from, to);
}

static Value *reduce(SpmdGraph *s, Build *b, const Type *t, const Cut *from, const Cut *to,
                     Value *v)
{
    Spmd *x = s->x;
    Reshard r;
    bool found = reshard_find(x->machine, x->mesh, t, from, to, &r);
    CHECK(found);
    for (int j = 0; j < r.nstep; j++) {
        v = reshard_emit(b, x->mesh, t, &r.step[j], v);
        x->copied += (double)loop_times(s) * r.step[j].copied;
    }
    return v;
}

static RankForm *merge_logsumexp(SpmdGraph *s, const Value *v, const RankForm *h)
{
    Spmd *x = s->x;
    Cut max[MAX_MESH], sum[MAX_MESH], whole[MAX_MESH];
    Build b = build_like(s->to, h->v->def ? h->v->def->next : s->to->first, v->def);
    logsumexp_as(x->mesh, h->cut, CUT_MAX, max);
    logsumexp_as(x->mesh, h->cut, CUT_SUM, sum);
    logsumexp_as(x->mesh, h->cut, CUT_WHOLE, whole);
    Value *most = reduce(s, &b, &v->type, max, whole, h->v);
    Value *finite = emit1(&b, "isfinite", IN(most), NOATTRS);
    Value *from = emit1(&b, "where", IN(finite, most, emit_full(&b, 0, v->type.dtype)), NOATTRS);
    Value *part = emit1(&b, "exp", IN(emit1(&b, "sub", IN(h->v, from), NOATTRS)), NOATTRS);
    Value *all = reduce(s, &b, &v->type, sum, whole, part);
    Value *merged = emit1(&b, "add", IN(from, emit1(&b, "log", IN(all), NOATTRS)), NOATTRS);
    return form_add(s, v, whole, merged, NULL);
}

/* ---- values that are made again in the form that is read ---- */

enum { MAX_REMADE = 32 }; /* nodes that are made again for each other */

/* Whether v's node may be made again: a view, what has no operands, a parameter's wider cast. */
static bool is_cheap(SpmdGraph *s, const Value *v)
{
    const Node *n = v->def;
    if (!n || n->region || n->nin > 1)
        return false;
    return !n->nin || n->op->view ||
           (spmd_logical(s, v)->param && node_is(n, OP__to_copy) &&
            dtype_size(n->in[0]->type.dtype) < dtype_size(v->type.dtype));
}

/* Finds the cut of v's node on axis c that gives v as need says. */
static bool find_cut(const Spmd *x, Arena *tmp, const Value *v, int c, Cut need, Remake *y)
{
    const Node *n = v->def;
    Cut *in = NEWN(tmp, Cut, n->nin), *out = NEWN(tmp, Cut, n->nout);
    int64_t count = x->cuts[c].count;
    CutStop stop;
    y->how[c] = (NodeCut){.kind = NODE_WHOLE};
    out[v->index] = need;
    if (need.kind == CUT_SLICE && (!cut_backward(n, y->f, count, out, &y->how[c], &stop) ||
                                   !cut_legal(n, y->f, count, &y->how[c], &stop)))
        return false;
    cut_fill(n, y->f, &y->how[c], in, out);
    for (int i = 0; i < n->nin; i++)
        y->in[i][c] = in[i];
    return cut_equal(out[v->index], need);
}

bool remake_find(const Spmd *x, Arena *tmp, const Value *v, const Cut *need, Remake *y)
{
    const Node *n = v->def;
    CutStop stop;
    *y = (Remake){.f = node_factors(tmp, n),
                  .in = arena_alloc(tmp, sizeof(Cut[MAX_MESH]) * (size_t)MAX(n->nin, 1))};
    for (int c = 0; c < x->mesh->naxes; c++)
        if (!find_cut(x, tmp, v, c, need[c], y))
            return false;
    for (int i = 0; i < n->nin; i++)
        if (!cut_value_legal(&n->in[i]->type, x->mesh->naxes, x->cuts, y->in[i]))
            return false;
    return cut_together(y->f, x->mesh->naxes, x->cuts, y->how, &stop) &&
           !cut_partials(y->f, x->mesh->naxes, y->how, NULL);
}

static bool find_remake(SpmdGraph *s, const Value *v, const Cut *need, Remake *y)
{
    return is_cheap(s, v) && remake_find(s->x, s->tmp, v, need, y);
}

const Value *viewed_value(const Spmd *x, Arena *tmp, const Value *v, Cut *from, Cut *to)
{
    Remake y, z;
    while (v->def && v->def->op->view && remake_find(x, tmp, v, from, &y) &&
           remake_find(x, tmp, v, to, &z)) {
        memcpy(from, y.in[0], sizeof y.in[0]);
        memcpy(to, z.in[0], sizeof z.in[0]);
        v = v->def->in[0];
    }
    return v;
}

/* ---- the cheapest source ---- */

static const char *block_name(const SpmdGraph *s, const Node *reader)
{
    Block x = block_of(reader->scope);
    return x.len ? arena_printf(s->tmp, "%.*s", x.len, x.scope) : reader->scope;
}

/* The block whose readers alone read what is gathered of v for this one; NULL: all may. */
static const char *block_for(const SpmdGraph *s, const LogicalValue *k, const Node *reader)
{
    return k->param && !s->x->keep && reader ? block_name(s, reader) : NULL;
}

/* Whether the reader may use the form: not if it was made for a node of a later phase, except a
 * kept parameter, which is gathered once. */
static bool may_read(const RankForm *h, const char *block, const Node *reader, bool kept)
{
    bool made = h->v && (!reader || !h->v->def || h->v->def->phase <= reader->phase || kept);
    return made && (!h->block || (block && !strcmp(h->block, block)));
}

/* The form from which the choice has v's readers go on; NULL: it does not say. */
static const Cut *chosen_source(const SpmdGraph *s, const Value *v, const Node *reader)
{
    const Picker *p = s->x->picker;
    const bool asks = !s->nremade || spmd_logical((SpmdGraph *)s, v)->param;
    return p && p->shared && asks ? p->shared(p->arg, s, v, reader) : NULL;
}

/* Whether the choice lets the reader start from h: from the form `from`, merged or not, and from
 * the needed form if that is the node's own or was made for the same half of the step. The form of
 * all readers, `from`, starts from the node's own. */
static bool is_chosen(const SpmdGraph *s, const LogicalValue *k, const RankForm *h, const Cut *from,
                      const Cut *need, const Node *reader)
{
    const int naxes = s->x->mesh->naxes;
    const Cut *source = cuts_equal(naxes, from, need) ? k->form->cut : from;
    Cut merged[MAX_MESH];
    logsumexp_as(s->x->mesh, source, CUT_WHOLE, merged);
    if (cuts_equal(naxes, h->cut, source) || cuts_equal(naxes, h->cut, merged))
        return true;
    bool half = !reader || (h->phase >= BACKWARD) == (reader->phase >= BACKWARD);
    return cuts_equal(naxes, h->cut, need) && (h == k->form || source != from || half);
}

static bool about_as_cheap(Price x, Price y)
{
    const double rounding = 1e-9; /* of sums of equal seconds */
    return x.sec <= y.sec * (1 + rounding);
}

/* The form from which `need` is made, and the steps; NULL: none. from: as the choice has it. Where
 * the backward gathers again, that is the forward's gather, if a new one takes as long. */
static RankForm *find_source_from(SpmdGraph *s, const Value *v, const Cut *from, const Cut *need,
                                  const Node *reader, Reshard *steps, Price *price)
{
    const Spmd *x = s->x;
    const LogicalValue *k = spmd_logical(s, v);
    const char *block = block_for(s, k, reader);
    RankForm *best = NULL;
    bool best_merges = false; /* what is merged already is better at the same price */
    Cut merged[MAX_MESH];
    Reshard r;
    *price = NO_PRICE;
    for (RankForm *h = k->form; h; h = h->next) {
        if (!may_read(h, block, reader, s->x->keep && spmd_logical(s, v)->param))
            continue;
        if (from && !is_chosen(s, k, h, from, need, reader))
            continue;
        logsumexp_as(x->mesh, h->cut, CUT_WHOLE, merged);
        if (!reshard_find(x->machine, x->mesh, &v->type, merged, need, &r))
            continue;
        double beside = (has_logsumexp(x->mesh, h->cut) ? merge_sec(x, &v->type, h->cut) : 0) +
                        form_again_sec(x, h, &r, reader);
        Price more = price_sum(steps_price(s, k, &r), (Price){0, beside});
        bool same = form_is_again(h, reader) && !r.nstep && about_as_cheap(more, *price);
        if (same || price_less(more, *price) ||
            (best && best_merges && !price_less(*price, more))) {
            *price = more;
            *steps = r;
            best = h;
            best_merges = has_logsumexp(x->mesh, h->cut);
        }
        if (price_free(more) && !has_logsumexp(x->mesh, h->cut))
            break;
    }
    return best;
}

static RankForm *find_source(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader,
                             Reshard *steps, Price *price)
{
    const Cut *from = spmd_logical(s, v)->param ? NULL : chosen_source(s, v, reader);
    RankForm *h = from ? find_source_from(s, v, from, need, reader, steps, price) : NULL;
    return h ? h : find_source_from(s, v, NULL, need, reader, steps, price);
}

/* Whether v is to be made again, at the price `again`, rather than brought to the form, at the
 * price `now`: views of parameters always are, so that readers of all views share one gather. */
static bool better_again(SpmdGraph *s, const Value *v, Price again, Price now)
{
    bool view = v->def && v->def->op->view && spmd_logical(s, v)->param;
    return price_is(again) && (view || !price_less(now, again));
}

/* The price of making v again in that form, if it can be. */
static Price remake_price(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader,
                          int depth, Remake *y);

/* The form in which the node of a value that was put off would make it; NULL: it was not. */
static const RankForm *put_off_form(const LogicalValue *k)
{
    return k->form && !k->form->v ? k->form : NULL;
}

/* The price of making such a value as its node would, and bringing it to the form. */
static Price put_off_price(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader,
                           int depth)
{
    const RankForm *h = put_off_form(spmd_logical(s, v));
    Reshard r;
    Remake y;
    if (!h || !reshard_find(s->x->machine, s->x->mesh, &v->type, h->cut, need, &r))
        return NO_PRICE;
    return price_sum((Price){0, r.sec}, remake_price(s, v, h->cut, reader, depth, &y));
}

static Price cheapest_price(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader,
                            int depth)
{
    Reshard r;
    Remake y;
    Price now;
    find_source(s, v, need, reader, &r, &now);
    if (price_free(now))
        return now;
    Price again = remake_price(s, v, need, reader, depth, &y);
    if (better_again(s, v, again, now))
        return again;
    return price_is(now) ? now : put_off_price(s, v, need, reader, depth);
}

static Price remake_price(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader,
                          int depth, Remake *y)
{
    Price sum = {0, 0};
    if (depth > MAX_REMADE || !find_remake(s, v, need, y))
        return NO_PRICE;
    for (int i = 0; i < v->def->nin; i++)
        sum = price_sum(sum, cheapest_price(s, v->def->in[i], y->in[i], reader, depth + 1));
    return sum;
}

Price form_price(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader)
{
    return cheapest_price(s, v, need, reader, 0);
}

/* ---- making a form ---- */

/* A builder for a step: its place, scope and phase. */
static Build step_place(const SpmdGraph *s, const Value *v, const ReshardStep *step,
                        const Value *now, const Node *reader)
{
    bool reduces = step->kind == RESHARD_REDUCE || step->kind == RESHARD_SCATTER;
    Build b = {.g = s->to};
    const Node *like = reduces || !reader ? v->def : reader;
    if (like)
        b = build_like(s->to, NULL, like);
    b.origin = NULL;
    b.policy = POLICY_NONE;
    if (like && like->region) /* what is hoisted */
        b.phase = v->def ? v->def->phase : FORWARD;
    if (now && now->def)
        b.phase = MAX(b.phase, now->def->phase);
    if (reduces)
        b.before = now->def ? now->def->next : s->to->first;
    return b;
}

static const char *cuts_name(Arena *a, const Mesh *m, const Cut *cut)
{
    const char *text = cuts_text(a, m, cut);
    return *text ? text : "whole";
}

static void note(const SpmdGraph *s, const Value *v, const Reshard *r, const Value *made,
                 const Node *reader)
{
    Decisions *d = s->x->o->decisions;
    const Mesh *m = s->x->mesh;
    if (!d || !r->nstep)
        return;
    const ReshardStep *last = &r->step[r->nstep - 1];
    Buf steps = {.a = d->a};
    double nbytes = 0;
    for (int j = 0; j < r->nstep; j++) {
        const ReshardStep *step = &r->step[j];
        nbytes += step->nbytes;
        buf_printf(&steps, "%s%s %s", j ? ", " : "", reshard_name(step->kind),
                   group_name(s->tmp, m, step->naxes, step->axes));
    }
    ReshardNote x = {
        .value = arena_strdup(d->a, v->name),
        .from = cuts_name(d->a, m, r->step[0].from),
        .to = cuts_name(d->a, m, last->to),
        .steps = steps.text,
        .reader =
            reader ? arena_printf(d->a, "%s %%%s", reader->op->name, reader->out[0]->name) : "",
        .scope = reader ? arena_strdup(d->a, reader->scope) : "",
        .made = arena_strdup(d->a, made->name),
        .nbytes = nbytes,
        .sec = r->sec};
    PUSH(d->a, d->reshard, d->nreshard, d->capreshard, x);
}

/* Says once that tokens are whole where sequence parallelism would cut them. */
static void warn_tokens(const SpmdGraph *s, const Value *v, const ReshardStep *step,
                        const Node *reader)
{
    Spmd *x = s->x;
    const Cut *token = spmd_logical((SpmdGraph *)s, v)->token;
    bool tokens = token[TOKEN_ROW].kind == CUT_SLICE || token[TOKEN_PLACE].kind == CUT_SLICE;
    bool asked = x->o->sequence_parallel && !x->free && x->o->warn && !x->draw && !x->warned;
    if (!asked || !tokens || step->kind != RESHARD_REDUCE || !reader || reader->phase != FORWARD)
        return;
    for (int j = 0; j < step->naxes; j++)
        if (x->kind[step->axes[j]] == AXIS_TP) {
            x->warned = true;
            x->o->warn(x->o->warn_arg,
                       arena_printf(s->tmp,
                                    "spmd: no sequence parallelism for %%%s %s: the %lld ranks of "
                                    "%s have all of its tokens, as they cannot share them or "
                                    "sharing takes longer",
                                    v->name, type_text(s->tmp, &v->type),
                                    (long long)x->mesh->size[step->axes[j]],
                                    x->mesh->name[step->axes[j]]));
        }
}

static Value *run_steps(SpmdGraph *s, const Value *v, const Reshard *r, RankForm *h,
                        const Node *reader, const char *block)
{
    Value *now = h->v;
    double sec = h->sec;
    form_note_again(s, h, reader);
    for (int j = 0; j < r->nstep; j++) {
        const ReshardStep *step = &r->step[j];
        Build b = step_place(s, v, step, now, reader);
        warn_tokens(s, v, step, reader);
        now = reshard_emit(&b, s->x->mesh, &v->type, step, now);
        s->x->copied += (double)loop_times(s) * step->copied;
        RankForm *made = form_add(s, v, step->to, now, block);
        made->sec = sec += step->sec;
        made->step_sec = step->sec;
        made->from = h;
        made->phase = reader ? reader->phase : FORWARD;
        h = made;
    }
    note(s, v, r, now, reader);
    return now;
}

/* Gives v, made for a reader of a later phase, the phase of an earlier reader. */
static void make_earlier(Value *v, Phase phase)
{
    Node *n = v->def;
    if (!n || n->phase <= phase)
        return;
    n->phase = phase;
    for (int i = 0; i < n->nin; i++)
        make_earlier(n->in[i], phase);
}

/* Whether ranks get parts from others, so that a kept parameter has them before a loop. */
static bool moves(const Reshard *r)
{
    for (int j = 0; j < r->nstep; j++)
        if (r->step[j].kind == RESHARD_GATHER || r->step[j].kind == RESHARD_EXCHANGE)
            return true;
    return false;
}

static Value *form_make(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader);

/* Makes v's node again for that reader. */
static Value *remake(SpmdGraph *s, const Value *v, const Cut *need, const Remake *y,
                     const Node *reader, const char *block)
{
    const Node *n = v->def;
    Value *in[1] = {NULL}, **out = NEWN(s->tmp, Value *, n->nout);
    s->nremade++;
    for (int i = 0; i < n->nin; i++)
        in[i] = form_get(s, n->in[i], y->in[i], reader);
    s->nremade--;
    Build b = build_like(s->to, NULL, n);
    if (reader && reader->phase > b.phase)
        b.phase = reader->phase;
    for (int i = 0; i < n->nin; i++)
        b.phase = in[i]->def ? MAX(b.phase, in[i]->def->phase) : b.phase;
    b.policy = POLICY_NONE;
    b.origin = NULL;
    cut_part(&b, n, y->f, s->x->mesh->naxes, s->x->cuts, y->how, in, out);
    RankForm *made = form_add(s, v, need, out[v->index], spmd_logical(s, v)->param ? block : NULL);
    made->phase = reader ? reader->phase : FORWARD;
    for (RankForm *h = n->nin ? spmd_logical(s, n->in[0])->form : NULL; h; h = h->next)
        made->from = h->v == in[0] ? h : made->from;
    return out[v->index];
}

/* Makes the form from which the picker has all readers go on, if it is not there. */
static void get_shared(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader)
{
    const LogicalValue *k = spmd_logical(s, v);
    int naxes = s->x->mesh->naxes;
    if (k->param && (!reader || (reader->region && !s->nremade)))
        return; /* a loop takes a parameter as it is */
    const char *block = block_for(s, k, reader);
    const Cut *shared = chosen_source(s, v, reader);
    if (!shared || cuts_equal(naxes, shared, need))
        return;
    for (const RankForm *h = k->form; h; h = h->next)
        if (may_read(h, block, reader, s->x->keep && k->param) && cuts_equal(naxes, h->cut, shared))
            return;
    form_make(s, v, shared, reader);
}

/* Brings the operand of a view that was put off to the form that the choice has for it, from which
 * the view's readers go on. */
static void get_viewed(SpmdGraph *s, const Value *v, const Node *reader)
{
    const RankForm *later = put_off_form(spmd_logical(s, v));
    Remake y;
    if (s->x->free && later && reader && !reader->region && find_remake(s, v, later->cut, &y))
        form_get(s, v->def->in[0], y.in[0], reader);
}

Value *form_get(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader)
{
    get_shared(s, v, need, reader);
    return form_make(s, v, need, reader);
}

static Value *form_make(SpmdGraph *s, const Value *v, const Cut *need, const Node *reader)
{
    const Spmd *x = s->x;
    LogicalValue *k = spmd_logical(s, v);
    const char *block = block_for(s, k, reader);
    Reshard r;
    Remake y;
    Price now;
    RankForm *h = find_source(s, v, need, reader, &r, &now);
    if (h && reader)
        make_earlier(h->v, reader->phase);
    const bool there = h && !r.nstep && cuts_equal(x->mesh->naxes, h->cut, need);
    Price again = there && price_free(now) ? NO_PRICE : remake_price(s, v, need, reader, 0, &y);
    if (there && about_as_cheap(now, again)) {
        form_note_again(s, h, reader);
        return h->v;
    }
    bool stays =
        h && !k->param && v->def && (v->def->nin || price_free(now)) && chosen_source(s, v, reader);
    if (!stays && better_again(s, v, again, now) && (!h || s->nremade < MAX_REMADE)) {
        get_viewed(s, v, reader);
        return remake(s, v, need, &y, reader, block);
    }
    const RankForm *later = h ? NULL : put_off_form(k);
    if (later && price_is(remake_price(s, v, later->cut, reader, 0, &y))) {
        remake(s, v, later->cut, &y, reader, block);
        return form_make(s, v, need, reader);
    }
    if (!h)
        fail(s->from->ctx, TN_FAIL, "%%%s: ranks cannot have it as %s", v->name,
             cuts_name(s->tmp, x->mesh, need));
    Value *hoisted =
        k->param && x->keep && s->loop && moves(&r) ? loop_hoist(s, v, need, reader) : NULL;
    if (hoisted)
        return hoisted;
    if (has_logsumexp(x->mesh, h->cut))
        h = merge_logsumexp(s, v, h); /* r goes on from what this makes */
    return run_steps(s, v, &r, h, reader, k->param ? block : NULL);
}
