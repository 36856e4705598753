/* lowering: what a step of reshard does to a rank's tensor, for its price and to emit it: a
 * collective joins or divides along axis 0; if the units of the ranks lie along another axis, a
 * permute stands before or after it, whose copy counts. An axis that n ranks cut is
 * [above][n][rest] in a rank that has all their units; `above` is the cut's outer over what other
 * mesh axes have taken of it. */
#include "rewrite.h"

#include <string.h>

static bool cuts_above(const Cut *d, const Cut *c)
{
    return cut_slices(d) && d->axis == c->axis && d->outer < c->outer;
}

/* The units of a group whose major cut is c; `part` is divided by all cuts before and after the
 * step. */
static RankUnits units_of(const Mesh *m, const ReshardStep *s, const Cut *c, const Type *part)
{
    RankUnits x = {.axis = c->axis, .above = c->outer};
    for (int d = 0; d < m->naxes; d++)
        if (cuts_above(&s->from[d], c) || cuts_above(&s->to[d], c))
            x.above /= m->size[d];
    x.rest = part->dim[c->axis] / x.above;
    x.before = x.above;
    for (int i = 0; i < c->axis; i++)
        x.before *= part->dim[i];
    return x;
}

/* v: a rank's type before the step. A view copies what it makes an axis of if that are two axes at
 * other strides: a slice's [above][rest], and what a permute has put together of units and either.
 */
Lowering step_lower(const Mesh *m, const Type *v, const ReshardStep *s)
{
    const Cut *from = &s->from[s->axes[0]], *to = &s->to[s->axes[0]];
    bool slices = s->kind == RESHARD_SLICE;
    Lowering w = {.n = group_nranks(m, s->naxes, s->axes), .part = *v};
    if (cut_slices(to)) {
        w.part.dim[to->axis] /= w.n;
        w.cut = units_of(m, s, to, &w.part);
    }
    if (cut_slices(from))
        w.join = units_of(m, s, from, &w.part);
    const RankUnits *x = slices ? &w.cut : &w.join;
    bool above = x->above > 1, rest = x->rest > 1;
    w.before = !slices && (s->strided || w.cut.before > 1);
    w.after = x->before > 1 && (slices ? above && rest : above || rest);
    w.strided = !w.after && (x->before > 1 || (slices && s->strided));
    return w;
}

Type step_result(const Lowering *w, const ReshardStep *s)
{
    Type t = w->part;
    if (cut_slices(&s->from[s->axes[0]]))
        t.dim[w->join.axis] *= w->n;
    return t;
}

/* ---- emit ---- */

static Value *view_as(Build *b, Value *v, int rank, const int64_t *dim)
{
    Type t = type_make(v->type.dtype, rank, dim);
    return type_equal(&t, &v->type) ? v : emit1(b, "view", IN(v), ATTRS(A_INTS("size", rank, dim)));
}

/* The axes of `part` with the n units of a spot apart: dim[at] is theirs. Returns how many; those
 * left and those right of them are taken as one where there would be too many. A strided operand
 * is copied for that too, which no price says. */
static int split_axes(const Type *part, const RankUnits *x, int64_t n, int64_t *dim, int *at)
{
    int rank = 0;
    bool few = part->rank + (x->above > 1) + (x->rest != 1) <= TN_RANK;
    if (!few) {
        int64_t after = x->rest;
        for (int i = x->axis + 1; i < part->rank; i++)
            after *= part->dim[i];
        *at = 1;
        dim[0] = x->before, dim[1] = n, dim[2] = after;
        return 3;
    }
    for (int i = 0; i < x->axis; i++)
        dim[rank++] = part->dim[i];
    if (x->above > 1)
        dim[rank++] = x->above;
    dim[ *at = rank++] = n;
    if (x->rest != 1)
        dim[rank++] = x->rest;
    for (int i = x->axis + 1; i < part->rank; i++)
        dim[rank++] = part->dim[i];
    return rank;
}

/* Moves axis i to place j; the others keep their order. */
static Value *move_axis(Build *b, Value *v, int i, int j)
{
    int64_t order[TN_RANK];
    int rank = v->type.rank;
    for (int k = 0, from = 0; k < rank; k++) {
        from += from == i;
        order[k] = k == j ? i : from++;
    }
    return emit1(b, "permute", IN(v), ATTRS(A_INTS("dims", rank, order)));
}

/* From v, which has the units of all ranks at w->cut, to [n * part's axis 0][its others]. */
static Value *emit_apart(Build *b, const Lowering *w, Value *v)
{
    int64_t dim[TN_RANK];
    int at;
    Type front = w->part;
    front.dim[0] *= w->n;
    if (w->cut.before > 1) {
        int rank = split_axes(&w->part, &w->cut, w->n, dim, &at);
        v = move_axis(b, view_as(b, v, rank, dim), at, 0);
    }
    return view_as(b, v, front.rank, front.dim);
}

/* The reverse, to w->join. */
static Value *emit_together(Build *b, const Lowering *w, Value *v)
{
    int64_t dim[TN_RANK];
    int at;
    Type whole = w->part;
    whole.dim[w->join.axis] *= w->n;
    if (w->join.before > 1) {
        int rank = split_axes(&w->part, &w->join, w->n, dim, &at);
        memmove(dim + 1, dim, sizeof *dim * (size_t)at);
        dim[0] = w->n;
        v = move_axis(b, view_as(b, v, rank, dim), 0, at);
    }
    return view_as(b, v, whole.rank, whole.dim);
}

static Value *emit_slice(Build *b, const Mesh *m, const ReshardStep *s, const Lowering *w, Value *v)
{
    int64_t dim[TN_RANK], index = 0, units = w->cut.rest;
    int at = w->cut.axis;
    for (int i = 0; i < s->naxes; i++)
        index = index * m->size[s->axes[i]] + m->at[s->axes[i]];
    if (w->cut.above > 1) {
        int rank = split_axes(&w->part, &w->cut, w->n, dim, &at);
        v = view_as(b, v, rank, dim);
        units = 1;
    }
    v = emit1(
        b, "slice", IN(v),
        ATTRS(A_INT("dim", at), A_INT("start", index * units), A_INT("end", (index + 1) * units)));
    return view_as(b, v, w->part.rank, w->part.dim);
}

static Value *emit_collective(Build *b, const Mesh *m, const ReshardStep *s, Value *x)
{
    const char *op = reshard_name(s->kind), *group = group_name(b->g->a, m, s->naxes, s->axes);
    const char *merge = s->from[s->axes[0]].kind == CUT_MAX ? "max" : "sum";
    AttrArg attrs[4] = {A_STR("group", group)};
    int count = 1;
    if (s->kind == RESHARD_GATHER || s->kind == RESHARD_SCATTER)
        attrs[count++] = A_INT("group_size", group_nranks(m, s->naxes, s->axes));
    if (s->kind == RESHARD_SCATTER || s->kind == RESHARD_REDUCE)
        attrs[count++] = A_STR("reduce_op", merge);
    Value *y = emit1(b, op, IN(x), attrs);
    return emit1(b, "wait_tensor", IN(y, x), NOATTRS);
}

Value *reshard_emit(Build *b, const Mesh *m, const Type *t, const ReshardStep *s, Value *v)
{
    Type local = cut_local_type(t, m, s->from);
    CHECK(shape_equal(&local, &v->type));
    Lowering w = step_lower(m, &v->type, s);
    if (s->kind == RESHARD_SLICE)
        return emit_slice(b, m, s, &w, v);
    if (cut_slices(&s->to[s->axes[0]]))
        v = emit_apart(b, &w, v);
    v = emit_collective(b, m, s, v);
    return cut_slices(&s->from[s->axes[0]]) ? emit_together(b, &w, v) : v;
}
