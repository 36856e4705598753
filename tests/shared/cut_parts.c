/* One node in parts. Operands are cut up from whole tensors, the parts' nodes are emitted by
 * src/cut and run by the interpreter, their results are put together. */
#include "cut_parts.h"

#include "case.h"
#include "interp.h"

#include <math.h>
#include <string.h>

int cut_nparts(int ncut, const Splitter *s)
{
    int n = 1;
    for (int c = 0; c < ncut; c++)
        n *= s[c].nparts;
    return n;
}

/* Which part of splitter c the part-th of all is. */
static int own_part(int ncut, const Splitter *s, int part, int c)
{
    for (int d = ncut - 1; d > c; d--)
        part /= s[d].nparts;
    return part % s[c].nparts;
}

static Value *constant_start(void *arg, Build *b, int64_t step)
{
    return emit_full(b, (double)(*(const int64_t *)arg * step), I64);
}

void cut_parts(int ncut, const Splitter *s, int part, PartCut *cuts)
{
    for (int c = 0; c < ncut; c++) {
        int j = own_part(ncut, s, part, c);
        cuts[c] =
            (PartCut){s[c].count, s[c].at[j + 1] - s[c].at[j], constant_start, (void *)&s[c].at[j]};
    }
}

/* ---- elements ---- */

/* Where element ix of the whole tensor lies in a part; false: in another part. */
static bool place(const Type *t, const int64_t *ix, int ncut, const Splitter *s, const Cut *cut,
                  int part, int64_t *to)
{
    memcpy(to, ix, sizeof *to * TN_RANK);
    for (int64_t below = INT64_MAX;;) { /* from the outermost cut of an axis to the innermost */
        int c = -1;
        int64_t inner = 0;
        for (int d = 0; d < ncut; d++) {
            if (cut[d].kind != CUT_SLICE)
                continue;
            int64_t own = t->dim[cut[d].axis] / (cut[d].outer * s[d].count);
            if (own * 8 + d < below && (c < 0 || own * 8 + d > inner * 8 + c)) {
                c = d;
                inner = own;
            }
        }
        if (c < 0)
            return true;
        below = inner * 8 + c;
        int j = own_part(ncut, s, part, c), axis = cut[c].axis;
        int64_t unit = to[axis] / inner % s[c].count, lo = s[c].at[j], hi = s[c].at[j + 1];
        if (unit < lo || unit >= hi)
            return false;
        to[axis] =
            (to[axis] / (inner * s[c].count) * (hi - lo) + unit - lo) * inner + to[axis] % inner;
    }
}

static Tensor slice_part(Arena *a, const Tensor *whole, int ncut, const Splitter *s, const Cut *cut,
                         int part)
{
    Type t = type_make(whole->dtype, whole->rank, whole->dim), own;
    PartCut cuts[MAX_CUT];
    cut_parts(ncut, s, part, cuts);
    own = cut_type(&t, ncut, cuts, cut);
    Tensor y = tensor_new(a, &own, 0);
    int64_t ix[TN_RANK] = {0}, to[TN_RANK];
    int size = dtype_size(t.dtype);
    if (tensor_nelem(whole))
        do {
            if (place(&t, ix, ncut, s, cut, part, to))
                memcpy(y.data + tensor_index(&y, to) * size,
                       whole->data + tensor_index(whole, ix) * size, (size_t)size);
        } while (next_index(whole->rank, whole->dim, ix));
    return y;
}

/* ---- partial values ---- */

static double merge(CutKind kind, double x, double y)
{
    double top = fmax(x, y);
    switch (kind) {
    case CUT_SUM: return x + y;
    case CUT_MAX: return isnan(x) || isnan(y) ? NAN : top;
    default: return isinf(top) ? top : top + log(exp(x - top) + exp(y - top));
    }
}

static void copy_element(const Tensor *to, int64_t at, const Tensor *from, int64_t i)
{
    int size = dtype_size(to->dtype);
    memcpy(to->data + at * size, from->data + i * size, (size_t)size);
}

/* An integer's low bytes come first on every machine that this runs on. */
static void put_int(const Tensor *y, int64_t at, int64_t x)
{
    int size = dtype_size(y->dtype);
    memcpy(y->data + at * size, &x, (size_t)size);
}

/* Element `at` of y, merged with x's: integers wrap. */
static void merge_element(CutKind kind, const Tensor *y, int64_t at, const Tensor *x, int64_t from)
{
    if (dtype_float(y->dtype)) {
        tensor_set(y, at, merge(kind, tensor_get(y, at), tensor_get(x, from)));
        return;
    }
    int64_t one = tensor_int(y, at), two = tensor_int(x, from);
    put_int(y, at, kind == CUT_SUM ? (int64_t)((uint64_t)one + (uint64_t)two) : MAX(one, two));
}

static bool same_element(const Tensor *x, int64_t at, const Tensor *y, int64_t from, double bound)
{
    if (!dtype_float(y->dtype))
        return tensor_int(x, at) == tensor_int(y, from);
    double one = tensor_get(x, at), two = tensor_get(y, from);
    return one == two || (isnan(one) && isnan(two)) || fabs(one - two) <= bound;
}

/* Two values that are x together. */
static void split(CutKind kind, double x, double u, double *first, double *rest)
{
    if (kind == CUT_SUM) {
        *first = isfinite(x) ? x * u : x;
        *rest = isfinite(x) ? x - *first : 0;
    } else if (kind == CUT_MAX) {
        *first = u < 0.5 ? x : x - u;
        *rest = u < 0.5 ? x - u : x;
    } else {
        *first = x + log(0.1 + 0.8 * u);
        *rest = x + log(0.9 - 0.8 * u);
    }
}

/* Element e of y becomes what it and the new one in z were split into. */
static void split_element(CutKind kind, const Tensor *y, const Tensor *z, int64_t e, double u)
{
    double first, rest;
    if (dtype_float(y->dtype)) {
        split(kind, tensor_get(y, e), u, &first, &rest);
        tensor_set(y, e, first);
        tensor_set(z, e, rest);
    } else {
        int64_t own = (int64_t)(8 * u);
        put_int(z, e, (int64_t)((uint64_t)tensor_int(y, e) - (uint64_t)own));
        put_int(y, e, own);
    }
}

/* Cuts every tensor of the list into as many that are partial. */
static Tensor *split_all(Arena *a, const Tensor *list, int n, int nparts, CutKind kind,
                         Random *random, void *arg)
{
    Tensor *more = NEWN(a, Tensor, n * nparts);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < nparts; j++) {
            Tensor *y = &more[i * nparts + j];
            *y = kind > CUT_SLICE ? tensor_copy(a, &list[i], list[i].dtype) : list[i];
            for (int64_t e = 0; kind > CUT_SLICE && j && e < tensor_nelem(y); e++)
                split_element(kind, y - 1, y, e, random(arg));
        }
    return more;
}

Tensor *cut_up(Arena *a, const Tensor *whole, int ncut, const Splitter *s, const Cut *cut,
               Random *random, void *arg)
{
    Tensor *list = NEW(a, Tensor);
    int n = 1;
    *list = tensor_copy(a, whole, whole->dtype);
    for (int c = 0; c < ncut; c++) {
        list = split_all(a, list, n, s[c].nparts, cut[c].kind, random, arg);
        n *= s[c].nparts;
    }
    for (int j = 0; j < n; j++)
        list[j] = slice_part(a, &list[j], ncut, s, cut, j);
    return list;
}

static bool first_of_whole(int ncut, const Splitter *s, const Cut *cut, int part)
{
    for (int c = 0; c < ncut; c++)
        if (cut[c].kind == CUT_WHOLE && own_part(ncut, s, part, c))
            return false;
    return true;
}

const char *cut_join(Arena *a, const Type *t, int ncut, const Splitter *s, const Cut *cut,
                     const Tensor *part, Tensor *whole)
{
    CutKind kind = CUT_WHOLE;
    int64_t ix[TN_RANK] = {0}, to[TN_RANK];
    *whole = tensor_new(a, t, 0);
    bool *seen = NEWN(a, bool, tensor_nelem(whole));
    for (int c = 0; c < ncut; c++)
        kind = MAX(kind, cut[c].kind > CUT_SLICE ? cut[c].kind : CUT_WHOLE);
    for (int same = 0; same < 2; same++) /* then whole ones, which must be what is there */
        for (int j = 0; j < cut_nparts(ncut, s); j++) {
            if (first_of_whole(ncut, s, cut, j) == same || !tensor_nelem(whole))
                continue;
            do {
                if (!place(t, ix, ncut, s, cut, j, to))
                    continue;
                int64_t at = tensor_index(whole, ix), from = tensor_index(&part[j], to);
                double y = fabs(tensor_get(whole, at));
                if (same && kind == CUT_WHOLE &&
                    !same_element(whole, at, &part[j], from, 1e-12 * fmax(y, 1)))
                    return arena_printf(a, "part %d has %.17g where another has %.17g", j,
                                        tensor_get(&part[j], from), tensor_get(whole, at));
                if (!same && seen[at])
                    merge_element(kind, whole, at, &part[j], from);
                else if (!same)
                    copy_element(whole, at, &part[j], from);
                seen[at] = true;
            } while (next_index(t->rank, t->dim, ix));
        }
    return NULL;
}

static double largest(const Tensor *t, double most)
{
    for (int64_t i = 0, n = tensor_nelem(t); i < n; i++) {
        double x = fabs(tensor_get(t, i));
        most = isfinite(x) ? fmax(most, x) : most;
    }
    return most;
}

const char *cut_differ(Arena *a, const Tensor *got, const Tensor *want, double scale)
{
    double most = largest(want, fmax(scale, 1)), tol = want->dtype == F64         ? 1e-12
                                                       : dtype_float(want->dtype) ? 2e-7
                                                                                  : 0;
    int64_t n = tensor_nelem(want);
    for (int64_t i = 0; i < n; i++) {
        if (!same_element(got, i, want, i, tol * most))
            return arena_printf(a, "element %lld is %.17g, expected %.17g", (long long)i,
                                tensor_get(got, i), tensor_get(want, i));
    }
    return NULL;
}

/* ---- a node ---- */

typedef struct Try {
    Arena *a;
    const Node *n;
    const Factors *f;
    int ncut;
    const Splitter *s;
    const NodeCut *how;
    Tensor **in;  /* by operand, by part */
    Tensor **out; /* by part, by result */
    double scale; /* the largest element that was cut into a sum */
} Try;

static Value **part_inputs(const Try *t, Graph *g, int part, Tensor *data)
{
    Value **x = NEWN(t->a, Value *, t->n->nin);
    for (int i = 0; i < t->n->nin; i++) {
        data[i] = t->in[i][part];
        Type type = type_make(data[i].dtype, data[i].rank, data[i].dim);
        x[i] = graph_input(g, graph_fresh(g, "x"), type, ROLE_NONE, NULL);
    }
    return x;
}

static void run_outputs(const Try *t, Graph *g, Value **out, int count, const Tensor *data,
                        Tensor *result)
{
    for (int k = 0; k < count; k++)
        graph_output(g, out[k], ROLE_NONE, NULL);
    interp_graph(t->a, g, data, result);
}

static void run_part(const Try *t, int part, int npartial, Tensor *result)
{
    Graph *g = graph_new(t->a, "part");
    Build b = build_like(g, NULL, t->n);
    PartCut cuts[MAX_CUT];
    Tensor *data = NEWN(t->a, Tensor, t->n->nin);
    Value **in = part_inputs(t, g, part, data), **out = NEWN(t->a, Value *, t->n->nout + 2);
    cut_parts(t->ncut, t->s, part, cuts);
    if (t->n->op->region == LOOP)
        cut_loop_part(&b, t->n, t->a, t->ncut, cuts, t->how, in, out);
    else
        cut_part(&b, t->n, t->f, t->ncut, cuts, t->how, in, out);
    run_outputs(t, g, out, npartial ? npartial : t->n->nout, data, result);
}

static void run_finish(const Try *t, int part, int npartial, const Tensor *merged, Tensor *result)
{
    Graph *g = graph_new(t->a, "finish");
    Build b = build_like(g, NULL, t->n);
    PartCut cuts[MAX_CUT];
    Tensor *data = NEWN(t->a, Tensor, t->n->nin + npartial);
    Value **in = part_inputs(t, g, part, data), **out = NEWN(t->a, Value *, t->n->nout);
    Value *partial[MAX_PARTIAL];
    cut_parts(t->ncut, t->s, part, cuts);
    for (int j = 0; j < npartial; j++) {
        Type type = type_make(merged[j].dtype, merged[j].rank, merged[j].dim);
        data[t->n->nin + j] = merged[j];
        partial[j] = graph_input(g, graph_fresh(g, "merged"), type, ROLE_NONE, NULL);
    }
    cut_finish(&b, t->n, t->f, t->ncut, cuts, t->how, in, partial, out);
    run_outputs(t, g, out, t->n->nout, data, result);
}

static bool finishing(const Try *t, int c)
{
    return t->how[c].kind == NODE_FACTOR && t->f->factor[t->how[c].factor].npartial;
}

/* Whether two parts differ only in splitters whose partials are merged. */
static bool merged_together(const Try *t, int x, int y)
{
    for (int c = 0; c < t->ncut; c++)
        if (!finishing(t, c) && own_part(t->ncut, t->s, x, c) != own_part(t->ncut, t->s, y, c))
            return false;
    return true;
}

static void finish_all(const Try *t, int nparts, int npartial, const CutKind *kind)
{
    Tensor *(*partial) = NEWN(t->a, Tensor *, nparts);
    memcpy(partial, t->out, sizeof *partial * (size_t)nparts);
    for (int j = 0; j < nparts; j++) {
        Tensor merged[MAX_PARTIAL];
        for (int p = 0; p < npartial; p++) {
            bool first = true;
            for (int i = 0; i < nparts; i++) {
                if (!merged_together(t, i, j))
                    continue;
                const Tensor *x = &partial[i][p];
                if (first)
                    merged[p] = tensor_copy(t->a, x, x->dtype);
                else
                    for (int64_t e = 0; e < tensor_nelem(x); e++)
                        merge_element(kind[p], &merged[p], e, x, e);
                first = false;
            }
        }
        t->out[j] = NEWN(t->a, Tensor, t->n->nout);
        run_finish(t, j, npartial, merged, t->out[j]);
    }
}

static bool body_rounds(const Graph *g, const GraphCut *c)
{
    bool rounds = false;
    for (const Node *n = g->first; n && !rounds; n = n->next)
        rounds = cut_rounds(n, &c->node[n->id]);
    return rounds;
}

bool cut_rounds(const Node *n, const NodeCut *how)
{
    bool rounds = false;
    if (how->kind == NODE_LOOP)
        for (int i = 0; i < region_nbody(n->region); i++)
            rounds |= body_rounds(n->region->body[i], how->body[i]);
    /* of sum_squares, factor 0 is axis 0 */
    return rounds || (node_is(n, OP_sum_squares) && how->kind == NODE_FACTOR && how->factor > 0);
}

static Tensor norm_of(Arena *a, const Tensor *limbs)
{
    Graph *g = graph_new(a, "norm");
    Build b = {.g = g};
    Type t = type_make(limbs->dtype, limbs->rank, limbs->dim);
    Value *x = graph_input(g, "x", t, ROLE_NONE, NULL);
    Tensor y;
    graph_output(g, emit1(&b, "norm_of", IN(x), ATTRS(A_DTYPE("dtype", F64))), ROLE_NONE, NULL);
    interp_graph(a, g, limbs, &y);
    return y;
}

static const char *differ(const Try *t, const Tensor *got, const Tensor *want)
{
    bool rounds = false;
    for (int c = 0; c < t->ncut; c++)
        rounds |= cut_rounds(t->n, &t->how[c]);
    if (!rounds)
        return cut_differ(t->a, got, want, t->scale);
    Tensor x = norm_of(t->a, got), y = norm_of(t->a, want);
    return cut_differ(t->a, &x, &y, t->scale);
}

static const char *join_results(const Try *t, int nparts, const Cut *out_cut, const Tensor *want)
{
    const Node *n = t->n;
    for (int k = 0; k < n->nout; k++) {
        Tensor *part = NEWN(t->a, Tensor, nparts), whole;
        Cut cut[MAX_CUT];
        for (int c = 0; c < t->ncut; c++)
            cut[c] = out_cut[c * n->nout + k];
        for (int j = 0; j < nparts; j++) {
            PartCut cuts[MAX_CUT];
            cut_parts(t->ncut, t->s, j, cuts);
            part[j] = t->out[j][k];
            Type type = cut_type(&n->out[k]->type, t->ncut, cuts, cut),
                 own = type_make(part[j].dtype, part[j].rank, part[j].dim);
            if (!type_equal(&type, &own))
                return arena_printf(t->a, "result %d of part %d is %s, expected %s", k, j,
                                    type_text(t->a, &own), type_text(t->a, &type));
        }
        const char *how = cut_join(t->a, &n->out[k]->type, t->ncut, t->s, cut, part, &whole);
        how = how ? how : differ(t, &whole, &want[k]);
        if (how)
            return arena_printf(t->a, "result %d: %s", k, how);
    }
    return NULL;
}

const char *cut_try(Arena *a, const Node *n, const Tensor *in, const Tensor *want, int ncut,
                    const Splitter *s, const NodeCut *how, const Cut *in_cut, const Cut *out_cut,
                    Random *random, void *arg)
{
    int nparts = cut_nparts(ncut, s);
    Try t = {a, n,   node_factors(a, n),        ncut,
             s, how, NEWN(a, Tensor *, n->nin), NEWN(a, Tensor *, nparts),
             0};
    CutKind kind[MAX_PARTIAL];
    int npartial = n->op->region ? 0 : cut_partials(t.f, ncut, how, kind);
    for (int i = 0; i < n->nin; i++) {
        Cut cut[MAX_CUT];
        for (int c = 0; c < ncut; c++)
            cut[c] = in_cut[c * n->nin + i];
        for (int c = 0; c < ncut; c++)
            t.scale = cut[c].kind > CUT_SLICE ? largest(&in[i], t.scale) : t.scale;
        t.in[i] = cut_up(a, &in[i], ncut, s, cut, random, arg);
    }
    for (int j = 0; j < nparts; j++) {
        t.out[j] = NEWN(a, Tensor, n->nout + MAX_PARTIAL);
        run_part(&t, j, npartial, t.out[j]);
    }
    if (npartial)
        finish_all(&t, nparts, npartial, kind);
    return join_results(&t, nparts, out_cut, want);
}
