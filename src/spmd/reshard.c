/* reshard: from one form of a value, a cut for each mesh axis, to another.
 *
 * A step changes the cut of one mesh axis, or alike the cuts of several, over their flat group.
 * `lower` says how a rank's tensor changes, for the price and for what is emitted: a collective
 * joins or divides along axis 0; if the units of the ranks lie along another axis, a permute stands
 * before or after it, whose copy counts. An axis that n ranks cut is [above][n][rest] in a rank
 * that has all their units; `above` is the cut's outer over what other mesh axes have taken of it.
 *
 * Search: a state says for each mesh axis that differs whether its cut is still the first, gone, or
 * the last, and whether the value lies with strides, as a slice leaves it, so that a collective
 * copies it first. Steps lead to states of greater number, so that one walk over them finds the
 * cheapest sequence among all orders and flat groups; among equals the one with fewer steps, then
 * the first. Every form in between must be legal. Only if there is no such sequence, an axis may
 * become whole in between (a sum to a slice by all_reduce, a slice to another by all_gather). At
 * most 3^d forms for d axes, as a rule 2^d; without allocation.
 *
 * No steps lead to a partial form from another one, from partial log-sum-exps, which are merged by
 * their op, or from sums and maxima at once. */
#include "spmd.h"

#include <string.h>

static const struct KindRow {
    int collective; /* -1: none */
    const char *op;
} kind_table[] = {
    [RESHARD_SLICE] = {-1, "slice"},
    [RESHARD_GATHER] = {ALL_GATHER, "all_gather_into_tensor"},
    [RESHARD_SCATTER] = {REDUCE_SCATTER, "reduce_scatter_tensor"},
    [RESHARD_REDUCE] = {ALL_REDUCE, "all_reduce"},
    [RESHARD_EXCHANGE] = {ALL_TO_ALL, "all_to_all_single"},
};

const char *reshard_name(ReshardKind k)
{
    return kind_table[k].op;
}

/* ---- what a step does to a rank's tensor ---- */

/* The place of the units of n ranks: on an axis [above][n][rest], with `before` elements in front,
 * those of axes further left included. */
typedef struct RankUnits {
    int axis;
    int64_t above, rest, before;
} RankUnits;

/* How a step changes a rank's tensor; units that it does not move are zero. */
typedef struct Lowering {
    int64_t n;
    Type part;           /* that each rank sends or gets */
    RankUnits cut, join; /* of the slices that the step makes, and of those that it joins */
    bool before, after;  /* copies: of the operand, of the result */
    bool strided;        /* so lies the result */
} Lowering;

static bool sliced(const Cut *c)
{
    return c->kind == CUT_SLICE;
}

static bool partial(const Cut *c)
{
    return c->kind > CUT_SLICE;
}

static bool cuts_above(const Cut *d, const Cut *c)
{
    return sliced(d) && d->axis == c->axis && d->outer < c->outer;
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
static Lowering lower(const Mesh *m, const Type *v, const ReshardStep *s)
{
    const Cut *from = &s->from[s->axes[0]], *to = &s->to[s->axes[0]];
    bool slices = s->kind == RESHARD_SLICE;
    Lowering w = {.n = group_nranks(m, s->naxes, s->axes), .part = *v};
    if (sliced(to)) {
        w.part.dim[to->axis] /= w.n;
        w.cut = units_of(m, s, to, &w.part);
    }
    if (sliced(from))
        w.join = units_of(m, s, from, &w.part);
    const RankUnits *x = slices ? &w.cut : &w.join;
    bool above = x->above > 1, rest = x->rest > 1;
    w.before = !slices && (s->strided || w.cut.before > 1);
    w.after = x->before > 1 && (slices ? above && rest : above || rest);
    w.strided = !w.after && (x->before > 1 || (slices && s->strided));
    return w;
}

static Type result_type(const Lowering *w, const ReshardStep *s)
{
    Type t = w->part;
    if (sliced(&s->from[s->axes[0]]))
        t.dim[w->join.axis] *= w->n;
    return t;
}

static double copied_sec(const Machine *machine, const Type *t)
{
    double nbytes = (double)type_nbytes(t);
    return cost_sec(machine, CLASS_MOVEMENT, t->dtype, &(Cost){.nread = nbytes, .nwrite = nbytes});
}

static void price(const Machine *machine, const Mesh *m, const Type *v, const Lowering *w,
                  ReshardStep *s)
{
    int k = kind_table[s->kind].collective;
    Type y = result_type(w, s);
    bool axes[MAX_MESH] = {0};
    s->nbytes = s->sec = 0;
    if (w->before)
        s->sec += copied_sec(machine, v);
    if (w->after)
        s->sec += copied_sec(machine, &y);
    s->copied = s->sec;
    if (k < 0)
        return;
    for (int i = 0; i < s->naxes; i++)
        axes[s->axes[i]] = true;
    s->nbytes = (double)MAX(type_nbytes(v), type_nbytes(&y));
    s->sec += collective_sec(machine, (CollectiveKind)k,
                             mesh_group(machine, m->size, m->naxes, axes), s->nbytes);
}

/* ---- steps ---- */

static int kind_between(const Cut *from, const Cut *to)
{
    if (partial(to) || from->kind == CUT_LOGSUMEXP)
        return -1;
    if (partial(from))
        return sliced(to) ? RESHARD_SCATTER : RESHARD_REDUCE;
    if (sliced(from))
        return sliced(to) ? RESHARD_EXCHANGE : RESHARD_GATHER;
    return RESHARD_SLICE;
}

/* Sorts the step's mesh axes, major first. */
static void sort_axes(ReshardStep *s)
{
    const Cut *form = sliced(&s->from[s->axes[0]]) ? s->from : s->to;
    for (int i = 1; i < s->naxes; i++)
        for (int j = i; j > 0 && form[s->axes[j]].outer < form[s->axes[j - 1]].outer; j--) {
            int d = s->axes[j];
            s->axes[j] = s->axes[j - 1];
            s->axes[j - 1] = d;
        }
}

/* Whether cuts of two mesh axes are as one of their flat group, d's being the minor. */
static bool joined(const Mesh *m, const Cut *form, int c, int d)
{
    return form[c].kind == form[d].kind &&
           (!sliced(&form[c]) ||
            (form[c].axis == form[d].axis && form[d].outer == form[c].outer * m->size[c]));
}

/* Whether an exchange is possible: within one axis the new cut must lie above or below the old. */
static bool exchanges(const Mesh *m, const Type *t, const ReshardStep *s)
{
    int64_t n = group_nranks(m, s->naxes, s->axes);
    const PartCut both[2] = {{.count = n}, {.count = n}};
    return cut_value_legal(t, 2, both, (Cut[]){s->from[s->axes[0]], s->to[s->axes[0]]});
}

/* The step of the mesh axes in which from and to differ; false: there is none. */
static bool step_between(const Mesh *m, const Type *t, ReshardStep *s)
{
    int kind = -1;
    s->naxes = 0;
    for (int d = 0; d < m->naxes; d++)
        if (!cut_equal(s->from[d], s->to[d])) {
            int k = kind_between(&s->from[d], &s->to[d]);
            if (k < 0 || (s->naxes && k != kind))
                return false;
            kind = k;
            s->axes[s->naxes++] = d;
        }
    s->kind = (ReshardKind)kind;
    if (kind != RESHARD_REDUCE)
        sort_axes(s);
    for (int i = 1; i < s->naxes; i++)
        if (!joined(m, s->from, s->axes[i - 1], s->axes[i]) ||
            !joined(m, s->to, s->axes[i - 1], s->axes[i]))
            return false;
    return kind != RESHARD_EXCHANGE || exchanges(m, t, s);
}

/* ---- search ---- */

/* How far a mesh axis has come; two bits for each make the code of a form. */
enum { FIRST, GONE, LAST, NCODE = 1 << 2 * MAX_MESH };

typedef struct ReshardSearch {
    const Machine *machine;
    const Mesh *m;
    const Type *t;
    const Cut *from, *to;
    int naxes, axes[MAX_MESH]; /* that differ */
    bool detours;              /* through whole axes */
} ReshardSearch;

/* The cheapest steps to a state, by the last one. */
typedef struct Reached {
    bool reached;
    bool strided; /* so was the value before that step, */
    int before;   /* ... and this the code of its form */
    int nstep;
    double sec;
} Reached;

static bool is_cheaper(const Reached *x, const Reached *y)
{
    if (!x->reached || !y->reached)
        return x->reached;
    return x->sec < y->sec || (x->sec == y->sec && x->nstep < y->nstep);
}

static int stage_of(int code, int i)
{
    return code >> 2 * i & 3;
}

static void fill_form(const ReshardSearch *s, int code, Cut *form)
{
    memcpy(form, s->to, sizeof *form * (size_t)s->m->naxes);
    for (int i = 0; i < s->naxes; i++) {
        int stage = stage_of(code, i);
        if (stage == FIRST)
            form[s->axes[i]] = s->from[s->axes[i]];
        else if (stage == GONE)
            form[s->axes[i]] = (Cut){.kind = CUT_WHOLE};
    }
}

static bool form_legal(const ReshardSearch *s, const Cut *form)
{
    PartCut cuts[MAX_MESH] = {0};
    for (int d = 0; d < s->m->naxes; d++)
        cuts[d].count = s->m->size[d];
    return cut_value_legal(s->t, s->m->naxes, cuts, form);
}

/* The step from one code to another, priced; false: there is none. *strided: so lies the result. */
static bool find_step(const ReshardSearch *s, int code, int next, ReshardStep *step, bool *strided)
{
    fill_form(s, code, step->from);
    fill_form(s, next, step->to);
    if (!step_between(s->m, s->t, step) || !form_legal(s, step->to))
        return false;
    Type v = cut_local_type(s->t, s->m, step->from);
    Lowering w = lower(s->m, &v, step);
    price(s->machine, s->m, &v, &w, step);
    *strided = w.strided;
    return true;
}

/* The code after the axes of `set` have come to a stage; -1: one cannot. */
static int next_code(const ReshardSearch *s, int code, int set, int stage)
{
    for (int i = 0; i < s->naxes; i++) {
        if (!(set >> i & 1))
            continue;
        const Cut *from = &s->from[s->axes[i]], *to = &s->to[s->axes[i]];
        bool between = from->kind != CUT_WHOLE && to->kind != CUT_WHOLE;
        if (stage_of(code, i) >= stage || (stage == GONE && !between))
            return -1;
        code += (stage - stage_of(code, i)) << 2 * i;
    }
    return code;
}

static void try_step(const ReshardSearch *s, Reached (*best)[2], int code, bool strided, int next)
{
    const Reached *x = &best[code][strided];
    ReshardStep step = {.strided = strided};
    bool left;
    if (!find_step(s, code, next, &step, &left))
        return;
    Reached y = {true, strided, code, x->nstep + 1, x->sec + step.sec};
    if (is_cheaper(&y, &best[next][left]))
        best[next][left] = y;
}

static void try_steps(const ReshardSearch *s, Reached (*best)[2], int code, bool strided)
{
    for (int stage = LAST; stage >= (s->detours ? GONE : LAST); stage--)
        for (int set = 1; set < 1 << s->naxes; set++) {
            int next = next_code(s, code, set, stage);
            if (next >= 0)
                try_step(s, best, code, strided, next);
        }
}

/* Writes down the steps that end in a state. */
static void fill_steps(const ReshardSearch *s, Reached (*best)[2], int code, bool strided,
                       Reshard *r)
{
    bool left;
    r->nstep = best[code][strided].nstep;
    r->sec = 0;
    for (int i = r->nstep - 1; i >= 0; i--) {
        const Reached *y = &best[code][strided];
        r->step[i].strided = y->strided;
        bool good = find_step(s, y->before, code, &r->step[i], &left);
        CHECK(good);
        code = y->before;
        strided = y->strided;
    }
    for (int i = 0; i < r->nstep; i++)
        r->sec += r->step[i].sec;
}

static bool search(const ReshardSearch *s, Reshard *r)
{
    Reached best[NCODE][2];
    int end = next_code(s, 0, (1 << s->naxes) - 1, LAST);
    memset(best, 0, sizeof *best * (size_t)(end + 1));
    best[0][false].reached = true;
    for (int code = 0; code < end; code++)
        for (int strided = 0; strided < 2; strided++)
            if (best[code][strided].reached)
                try_steps(s, best, code, strided);
    bool strided = is_cheaper(&best[end][true], &best[end][false]);
    if (best[end][strided].reached)
        fill_steps(s, best, end, strided, r);
    return best[end][strided].reached;
}

/* The same where one mesh axis differs. */
static bool find_single(const ReshardSearch *s, Reshard *r)
{
    bool left;
    r->step[0].strided = false;
    if (!find_step(s, 0, next_code(s, 0, 1, LAST), &r->step[0], &left))
        return false;
    r->nstep = 1;
    r->sec = r->step[0].sec;
    return true;
}

/* Sums of maxima and maxima of sums differ: one merge at once. */
static bool merges_agree(const Mesh *m, const Cut *from)
{
    CutKind kind = CUT_WHOLE;
    for (int d = 0; d < m->naxes; d++) {
        if (!partial(&from[d]))
            continue;
        if (kind != CUT_WHOLE && kind != from[d].kind)
            return false;
        kind = from[d].kind;
    }
    return true;
}

bool reshard_find(const Machine *machine, const Mesh *m, const Type *t, const Cut *from,
                  const Cut *to, Reshard *r)
{
    Cut first[MAX_MESH] = {0}, last[MAX_MESH] = {0};
    ReshardSearch s = {.machine = machine, .m = m, .t = t, .from = first, .to = last};
    bool merges = false;
    for (int d = 0; d < m->naxes; d++) {
        if (m->size[d] == 1)
            continue;
        first[d] = from[d];
        last[d] = to[d];
        if (cut_equal(from[d], to[d]))
            continue;
        if (kind_between(&from[d], &to[d]) < 0)
            return false;
        merges = merges || partial(&from[d]);
        s.axes[s.naxes++] = d;
    }
    if (!s.naxes) {
        r->nstep = 0;
        r->sec = 0;
        return true;
    }
    if (merges && !merges_agree(m, first))
        return false;
    if (!form_legal(&s, first) || !form_legal(&s, last))
        return false;
    if (s.naxes == 1 ? find_single(&s, r) : search(&s, r))
        return true;
    s.detours = true;
    return search(&s, r);
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
    const char *op = kind_table[s->kind].op, *group = group_name(b->g->a, m, s->naxes, s->axes);
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
    Lowering w = lower(m, &v->type, s);
    if (s->kind == RESHARD_SLICE)
        return emit_slice(b, m, s, &w, v);
    if (sliced(&s->to[s->axes[0]]))
        v = emit_apart(b, &w, v);
    v = emit_collective(b, m, s, v);
    return sliced(&s->from[s->axes[0]]) ? emit_together(b, &w, v) : v;
}
