/* Calls that PyTorch decomposes before dispatch, and that earlier traces (torch.export) contain
 * whole: lowered to other overloads or nodes as PyTorch does it. */
#include "lower.h"

#include <string.h>

/* ---- another overload ---- */

/* row->each with the same arguments: another name for it. */
void row_same(Site *s)
{
    const char *key[FX_MAX_ARG] = {0};
    Expr call = {.kind = EX_CALL, .count = s->narg, .key = key};
    call.s = arena_printf(s->im->a, "torch.ops.aten.%s", s->row->each);
    for (int k = 0; k < s->narg; k++)
        key[k] = s->arg_keyword[k] ? s->arg_name[k] : NULL;
    s->result = fx_call(s->im, &call, s->arg);
}

/* ---- dtypes ---- */

/* self where it has the dtype already */
static void to_dtype(Site *s, DType d, bool copy)
{
    const Item *self = site_arg(s, "self");
    s->viewed = !copy && self->kind == FX_TENSOR && self->t->type.dtype == d;
    Value *x = site_tensor(s, "self");
    site_return(s, s->viewed ? x : lower_cast(s, x, d));
    for (int k = 0; k < s->narg && s->viewed; k++)
        if (!strcmp(s->arg_name[k], "memory_format") && s->arg[k].kind == FX_WORD &&
            strcmp(s->arg[k].s, "torch.preserve_format") != 0)
            fx_doubt(s->im, s->result.t);
}

void row_to(Site *s)
{
    to_dtype(s, site_dtype(s, "dtype", site_type(s, "self")->dtype), site_bool(s, "copy"));
}

void row_to_other(Site *s)
{
    to_dtype(s, site_type(s, "other")->dtype, site_bool(s, "copy"));
}

void row_type_as(Site *s)
{
    to_dtype(s, site_type(s, "other")->dtype, false);
}

/* ---- axes ---- */

void row_unflatten(Site *s)
{
    Value *x = site_tensor(s, "self");
    int64_t size[TN_RANK], known = 1;
    int axis = site_axis(s, "dim", x->type.rank), n = site_ints(s, "sizes", size), guess = -1;
    Type t = x->type;
    if (!t.rank || t.rank + n - 1 > TN_RANK)
        site_fail(s, "argument sizes: expected a result of 1 to %d axes", TN_RANK);
    for (int k = 0; k < n; k++)
        if (size[k] == -1)
            guess = k;
        else
            known = site_times(s, known, size[k]);
    if (guess >= 0 && known > 0)
        size[guess] = t.dim[axis] / known;
    memmove(t.dim + axis + n, t.dim + axis + 1, (size_t)(t.rank - axis - 1) * sizeof *t.dim);
    memcpy(t.dim + axis, size, (size_t)n * sizeof *size);
    site_return(s, lower_reshape(s, x, t.rank + n - 1, t.dim));
}

/* The axes `source` at `destination`, the others in their order. */
void row_movedim(Site *s)
{
    Value *x = site_tensor(s, "self");
    int rank = x->type.rank,
        n = site_arg(s, "source")->kind == FX_INT ? 1 : site_arg(s, "source")->count;
    int64_t from[TN_RANK], to[TN_RANK], dims[TN_RANK];
    bool moved[TN_RANK] = {0}, taken[TN_RANK] = {0};
    if (site_ints(s, "source", from) != site_ints(s, "destination", to))
        site_fail(s, "argument destination: expected %d axes", n);
    for (int k = 0; k < n; k++) {
        int64_t f = from[k] + (from[k] < 0 ? rank : 0), t = to[k] + (to[k] < 0 ? rank : 0);
        if (f < 0 || f >= rank || t < 0 || t >= rank || moved[f] || taken[t])
            site_fail(s, "expected different axes from -%d to %d", rank, rank - 1);
        moved[f] = taken[t] = true;
        dims[t] = f;
    }
    for (int d = 0, f = 0; d < rank; d++) {
        if (taken[d])
            continue;
        while (moved[f])
            f++;
        dims[d] = f++;
    }
    site_return(s, emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", rank, dims))));
}

/* The axes in reverse; of mT the last two. */
void row_reversed(Site *s)
{
    Value *x = site_tensor(s, "self");
    int rank = x->type.rank;
    int64_t dims[TN_RANK];
    bool matrix = strstr(s->row->name, "mT") != NULL;
    if (matrix && rank < 2)
        site_fail(s, "argument self: expected at least 2 axes");
    for (int d = 0; d < rank; d++)
        dims[d] = !matrix ? rank - 1 - d : d < rank - 2 ? d : 2 * rank - 3 - d;
    site_return(s, emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", rank, dims))));
}

/* repeat, whose list may be shorter than the axes */
void row_tile(Site *s)
{
    int64_t dims[TN_RANK], all[TN_RANK];
    int rank = site_type(s, "self")->rank, n = site_ints(s, "dims", dims), extra = MAX(rank - n, 0);
    for (int d = 0; d < rank; d++)
        all[d] = d < extra ? 1 : dims[d - extra];
    if (extra)
        s->arg[1] = item_ints(s, rank, all);
    s->result = lower_call(s, "repeat.default", 2, s->arg);
}

void row_broadcast_tensors(Site *s)
{
    int n;
    Value **x = site_tensors(s, "tensors", &n);
    Type t = {0};
    for (int i = 0; i < n; i++)
        t.rank = MAX(t.rank, x[i]->type.rank);
    for (int d = 1; d <= t.rank; d++) {
        int64_t size = 1;
        for (int i = 0; i < n; i++)
            if (d <= x[i]->type.rank && x[i]->type.dim[x[i]->type.rank - d] != 1)
                size = x[i]->type.dim[x[i]->type.rank - d];
        t.dim[t.rank - d] = size;
    }
    for (int i = 0; i < n; i++)
        x[i] = lower_expand(s, x[i], &t);
    site_return_views(s, site_arg(s, "tensors"), x);
}

/* A vector as the diagonal of a matrix, or a matrix's diagonal. */
void row_diag(Site *s)
{
    bool vector = site_type(s, "self")->rank == 1;
    s->result = lower_call(s, vector ? "diag_embed.default" : "diagonal_copy.default", 2, s->arg);
}

/* cat of the tensors with at least `rank` axes: rows are one axis for vstack, the last of three for
 * dstack; hstack joins vectors along their own. */
void row_stacked(Site *s)
{
    const char *name = s->row->name;
    int rank = *name == 'v' ? 2 : *name == 'd' ? 3 : 1;
    const Item *list = site_arg(s, "tensors");
    bool columns = *name == 'c'; /* column_stack: vectors are columns */
    int64_t axis = rank - 1;
    int n = list->count;
    if (!n)
        site_fail(s, "argument tensors: expected at least one");
    Value **x = promoted_all(s, n, list->item);
    for (int i = 0; i < n; i++) {
        int have = x[i]->type.rank;
        int64_t size[TN_RANK] = {1, 1, 1};
        memcpy(have < 2 && (rank > 1 && !columns) ? size + 1 : size, x[i]->type.dim,
               (size_t)have * sizeof *size);
        if (columns && have < 2)
            x[i] = lower_reshape(s, x[i], 2, (int64_t[]){type_nelem(&x[i]->type), 1});
        else if (have < rank)
            x[i] = lower_reshape(s, x[i], rank, size);
    }
    if (*name == 'v')
        axis = 0;
    else if (columns || (*name == 'h' && x[0]->type.rank > 1))
        axis = 1;
    site_return(s, emit1(s->b, "cat", (size_t)n, x, ATTRS(A_INT("dim", axis))));
}

void row_log_sigmoid_plain(Site *s)
{
    s->result = lower_call(s, "log_sigmoid_forward.default", 1, s->arg).item[0];
}

/* x[:, None] y */
void row_outer(Site *s)
{
    Item column = lower_call(s, "unsqueeze.default", 2, (Item[]){s->arg[0], item_int(1)});
    s->result = lower_call(s, "mul.Tensor", 2, (Item[]){column, s->arg[1]});
}

/* a x b along the axis named, or the first of 3 elements */
void row_cross_any(Site *s)
{
    const Type *t = site_type(s, "self");
    int64_t axis = 0;
    if (site_has(s, "dim"))
        axis = site_axis(s, "dim", t->rank);
    else
        while (axis < t->rank - 1 && t->dim[axis] != 3)
            axis++;
    Expr call = {.kind = EX_CALL, .s = "torch.ops.aten.linalg_cross.default", .count = 3};
    call.key = (const char *[]){NULL, NULL, "dim"};
    s->result = fx_call(s->im, &call, (Item[]){s->arg[0], s->arg[1], item_int(axis)});
}

void row_float_power(Site *s)
{
    site_return(s, lower2(s, "pow", promoted(s, &s->arg[0], F64), promoted(s, &s->arg[1], F64)));
}

void row_msort(Site *s)
{
    s->result = lower_call(s, "sort.default", 2, (Item[]){s->arg[0], item_int(0)}).item[0];
}

void row_vecdot(Site *s)
{
    Value **x = promoted_all(s, 2, s->arg), *y = lower2(s, "mul", x[0], x[1]);
    int64_t axis = site_axis(s, "dim", y->type.rank);
    site_return(s, lower_reduce(s, "sum", y, 1, &axis, false));
}

/* |x - y + eps| along the last axis */
void row_pairwise_distance(Site *s)
{
    Item d = lower_call(s, "sub.Tensor", 2, s->arg);
    d = lower_call(s, "add.Tensor", 2, (Item[]){d, *site_arg(s, "eps")});
    Item arg[] = {d, *site_arg(s, "p"), item_ints(s, 1, (int64_t[]){-1}), *site_arg(s, "keepdim")};
    s->result = lower_call(s, "linalg_vector_norm.default", 4, arg);
}

/* Takes one norm of matrices, that of Frobenius, which is the norm of all elements. */
void row_matrix_norm(Site *s)
{
    if (strcmp(site_text(s, "ord"), "fro") != 0)
        site_fail(s, "argument ord: expected \"fro\", found \"%s\"", site_text(s, "ord"));
    const char *key[] = {NULL, NULL, NULL, NULL, "dtype"};
    Expr call = {.kind = EX_CALL, .s = "torch.ops.aten.linalg_vector_norm.default", .count = 5};
    call.key = key;
    s->result = fx_call(s->im, &call,
                        (Item[]){s->arg[0], item_int(2), *site_arg(s, "dim"),
                                 *site_arg(s, "keepdim"), *site_arg(s, "dtype")});
}

/* The normal distribution: erfc(-x / sqrt(2)) / 2 */
void row_ndtr(Site *s)
{
    Value *x = site_tensor(s, "self");
    x = lower_cast(s, x, float_type(x->type.dtype));
    x = lower1(s, "erfc", lower_times(s, x, -0.70710678118654752440));
    site_return(s, lower_times(s, x, 0.5));
}

/* ---- dropout ---- */

/* Dropouts of other kinds do nothing but in training. */
void row_dropout_off(Site *s)
{
    if (site_bool(s, "train") && site_real(s, "p") > 0)
        site_fail(s, "argument train: PyTorch's random numbers are not ours; expected False");
    site_return(s, site_tensor(s, "input"));
}

void row_dropout(Site *s)
{
    if (site_bool(s, "train") && site_real(s, "p") > 0)
        s->result = lower_call(s, "native_dropout.default", 3, s->arg).item[0];
    else
        site_return(s, site_tensor(s, "input"));
}

/* ---- assertions ---- */

void row_assert(Site *s)
{
    buf_printf(&s->im->summary, "line %d: an assertion about data is not checked\n",
               s->im->progress.at->line);
    s->result = (Item){.kind = FX_NONE};
}

/* ---- losses ---- */

/* The axes as [N, classes, rest...] -> rows [N rest, classes]; target [N rest]. */
typedef struct ByRow {
    Value *x, *target, *weight;
    Type shape; /* of the losses */
    int64_t classes;
} ByRow;

static ByRow by_row_of(Site *s)
{
    Value *x = site_tensor(s, "self"), *target = site_find_tensor(s, "target");
    int rank = x->type.rank, axis = rank > 1;
    int64_t dims[TN_RANK], n[2];
    if (rank < 1)
        site_fail(s, "argument self: expected a tensor with axes");
    for (int d = 0; d < rank; d++)
        dims[d] = d < axis ? d : d < rank - 1 ? d + 1 : axis;
    ByRow r = {.weight = site_find_tensor(s, "weight"), .classes = x->type.dim[axis]};
    r.shape = (Type){.dtype = x->type.dtype, .rank = rank - 1};
    for (int d = 0; d < rank - 1; d++)
        r.shape.dim[d] = x->type.dim[dims[d]];
    n[0] = type_nelem(&r.shape);
    n[1] = r.classes;
    if (rank > 2)
        x = emit1(s->b, "permute", IN(x), ATTRS(A_INTS("dims", rank, dims)));
    r.x = lower_reshape(s, x, 2, n);
    if (!dtype_float(target->type.dtype) && !shape_equal(&target->type, &r.shape))
        site_fail(s, "argument target: expected %s, found %s", type_text(s->im->a, &r.shape),
                  type_text(s->im->a, &target->type));
    if (dtype_float(target->type.dtype) && rank > 2)
        target = emit1(s->b, "permute", IN(target), ATTRS(A_INTS("dims", rank, dims)));
    r.target = dtype_float(target->type.dtype) ? lower_reshape(s, target, 2, n)
                                               : lower_reshape(s, target, 1, n);
    return r;
}

/* Losses of rows, as `reduction` says: the mean is over `count`. */
static Value *reduced(Site *s, const ByRow *r, Value *y, Value *count)
{
    int64_t how = site_int(s, "reduction");
    if (how == REDUCE_NONE)
        return lower_reshape(s, y, r->shape.rank, r->shape.dim);
    y = lower_reduce(s, "sum", y, 0, NULL, false);
    return how == REDUCE_MEAN ? lower2(s, "div", y, count) : y;
}

/* -weight log-probability of the target */
static Value *likelihood(Site *s, const ByRow *r, Value *logp, Value **total)
{
    Value *in[] = {logp, r->target, r->weight};
    Node *n = emit(s->b, "nll_loss_forward", in[2] ? 3 : 2, in,
                   ATTRS(A_INT("reduction", site_int(s, "reduction")),
                         A_INT("ignore_index", site_int(s, "ignore_index"))));
    bool none = site_int(s, "reduction") == REDUCE_NONE;
    *total = n->out[1];
    return none ? lower_reshape(s, n->out[0], r->shape.rank, r->shape.dim) : n->out[0];
}

void row_nll_loss_nd(Site *s)
{
    ByRow r = by_row_of(s);
    Value *total;
    site_return(s, likelihood(s, &r, r.x, &total));
}

/* -sum over classes of weight logp, 0 in rows that are ignored */
static Value *smooth(Site *s, const ByRow *r, Value *logp)
{
    static const int64_t classes = 1;
    Value *y = r->weight ? lower2(s, "mul", logp, r->weight) : logp;
    y = lower1(s, "neg", lower_reduce(s, "sum", y, 1, &classes, false));
    Value *ignored =
        lower2(s, "eq", r->target, lower_like(s, (double)site_int(s, "ignore_index"), r->target));
    return lower_where(s, ignored, lower_like(s, 0, y), y);
}

/* Targets are probabilities: -sum over classes of weight target logp, the mean over rows */
static Value *likelihood_of_all(Site *s, const ByRow *r, Value *logp, double smoothing)
{
    static const int64_t classes = 1;
    Value *t = lower_cast(s, r->target, logp->type.dtype);
    if (smoothing > 0)
        t = lower2(s, "add", lower_times(s, t, 1 - smoothing),
                   lower_like(s, smoothing / (double)r->classes, t));
    Value *y = lower2(s, "mul", logp, t);
    y = r->weight ? lower2(s, "mul", y, r->weight) : y;
    y = lower1(s, "neg", lower_reduce(s, "sum", y, 1, &classes, false));
    return reduced(s, r, y, lower_like(s, (double)type_nelem(&r->shape), y));
}

void row_cross_entropy_loss(Site *s)
{
    static const int64_t classes = 1;
    double smoothing = site_real(s, "label_smoothing");
    ByRow r = by_row_of(s);
    Value *logp = emit1(s->b, "_log_softmax", IN(r.x), ATTRS(A_INT("dim", classes))), *total;
    if (dtype_float(r.target->type.dtype)) {
        site_return(s, likelihood_of_all(s, &r, logp, smoothing));
        return;
    }
    Value *y = likelihood(s, &r, logp, &total);
    if (smoothing > 0) {
        total = lower1(s, "detach", total); /* it follows from the labels */
        Value *rest = reduced(s, &r, smooth(s, &r, logp), total);
        y = lower2(s, "add", lower_times(s, y, 1 - smoothing),
                   lower_times(s, rest, smoothing / (double)r.classes));
    }
    site_return(s, y);
}

/* A loss of each element, as `reduction` says */
static void return_reduced(Site *s, Value *y)
{
    int64_t how = site_int(s, "reduction");
    if (how != REDUCE_NONE && y->type.rank)
        y = lower_reduce(s, how == REDUCE_MEAN ? "mean" : "sum", y, 0, NULL, false);
    site_return(s, y);
}

void row_l1_loss(Site *s)
{
    Value **x = promoted_all(s, 2, s->arg);
    return_reduced(s, lower1(s, "abs", lower2(s, "sub", x[0], x[1])));
}

/* t (log t - x), or exp(t) (t - x) of logarithms */
void row_kl_div(Site *s)
{
    Item t = s->arg[1], x = s->arg[0];
    if (site_bool(s, "log_target")) {
        Item slope = lower_call(s, "sub.Tensor", 2, (Item[]){t, x});
        t = lower_call(s, "mul.Tensor", 2, (Item[]){lower_call(s, "exp.default", 1, &t), slope});
    } else {
        Item log = lower_call(s, "xlogy.Tensor", 2, (Item[]){t, t});
        Item cross = lower_call(s, "mul.Tensor", 2, (Item[]){t, x});
        t = lower_call(s, "sub.Tensor", 2, (Item[]){log, cross});
    }
    return_reduced(s, fx_read(s->im, t.t));
}

/* dot(x, y) / (max(|x|, eps) max(|y|, eps)) */
void row_cosine_similarity(Site *s)
{
    Value **both = promoted_all(s, 2, s->arg), *x = both[0], *y = both[1];
    int64_t axis = site_axis(s, "dim", MAX(x->type.rank, y->type.rank));
    Value *xy = lower2(s, "mul", x, y), *least = lower_like(s, site_real(s, "eps"), xy);
    Value *size[2] = {x, y};
    for (int i = 0; i < 2; i++) {
        Value *v = lower_expand(s, size[i], &xy->type);
        v = lower_reduce(s, "sum", lower2(s, "mul", v, v), 1, &axis, true);
        size[i] = lower2(s, "maximum", lower_root(s, v, 2), least);
    }
    /* as PyTorch: of vectors of length 1, so that nothing overflows */
    x = lower2(s, "div", x, size[0]);
    y = lower2(s, "div", y, size[1]);
    site_return(s, lower_reduce(s, "sum", lower2(s, "mul", x, y), 1, &axis, false));
}
