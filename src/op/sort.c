/* sort, topk, argmax, argmin: order along one axis, of any dtype.
 *
 * One order for all of them, PyTorch's: NaN is greater than every number and equal to NaN, -0
 * equals 0, false is less than true. Equal elements stand in the order of their positions,
 * in either direction (ATen's stable sort; its topk leaves that open), and argmax and
 * argmin take the first (for argmin too a NaN comes before every number, as in ATen). topk's
 * results are sorted.
 *
 * Method: an element becomes a 64-bit key whose unsigned order is that order, complemented if the
 * greatest comes first. Lines are merge-sorted as pairs of key and position; topk of a small k
 * keeps the best in a short list instead. Values are then moved as bits. */
#include "index.h"

#include "view.h"
#include "vmath.h"

#include <math.h>

enum { SORT_DIM, DESCENDING };
enum { TOPK_K, TOPK_DIM, LARGEST };
enum { ARG_DIM, KEEPDIM };
enum { SHORT_LIST = 32 };

static const AttrField sort_attrs[] = {
    {"dim", ATTR_INT, .i = -1},
    {"descending", ATTR_BOOL, .i = 0},
    {0},
};
static const AttrField topk_attrs[] = {
    {"k", ATTR_INT, .required = true},
    {"dim", ATTR_INT, .i = -1},
    {"largest", ATTR_BOOL, .i = 1},
    {0},
};
static const AttrField arg_attrs[] = {
    {.name = "dim", .kind = ATTR_INTS}, {"keepdim", ATTR_BOOL, .i = 0}, {0}};

/* ---- sort and topk: what differs ---- */

typedef struct SortOrder {
    int axis;
    bool greatest_first;
} SortOrder;

static SortOrder order_of(const Node *n)
{
    bool sorts = node_is(n, OP_sort);
    int64_t dim = n->attr[sorts ? SORT_DIM : TOPK_DIM].i;
    return (SortOrder){axis_of(dim, n->in[0]->type.rank), n->attr[sorts ? DESCENDING : LARGEST].i};
}

static int sort_infer(const Graph *g, const Node *n, Type *out)
{
    need_axis(g, n, n->attr[SORT_DIM].i, n->in[0]->type.rank);
    out[0] = out[1] = n->in[0]->type;
    out[1].dtype = I64;
    return 2;
}

static int topk_infer(const Graph *g, const Node *n, Type *out)
{
    int axis = need_axis(g, n, n->attr[TOPK_DIM].i, n->in[0]->type.rank);
    int64_t k = n->attr[TOPK_K].i;
    if (k < 0 || k > n->in[0]->type.dim[axis])
        fail_node(g, n, "k: expected 0 to %lld, found %lld", (long long)n->in[0]->type.dim[axis],
                  (long long)k);
    out[0] = out[1] = n->in[0]->type;
    out[0].dim[axis] = out[1].dim[axis] = k;
    out[1].dtype = I64;
    return 2;
}

static void diff(Grad *d)
{
    if (d->dy[0])
        d->dx[0] =
            emit1(d->b, "scatter", IN(emit_zeros(d->b, &d->n->in[0]->type), d->n->out[1], d->dy[0]),
                  ATTRS(A_INT("dim", order_of(d->n).axis)));
}

/* Comparisons: n log k for each line of n. */
static Cost cost(const Node *n)
{
    Cost c = cost_bytes(n);
    int64_t kept = n->out[0]->type.dim[order_of(n).axis];
    c.nflop = (double)type_nelem(&n->in[0]->type) * (1 + log2((double)MAX(kept, 1)));
    return c;
}

static void factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    int axis = order_of(n).axis;
    for (int d = 0; d < x->rank; d++)
        if (d != axis) {
            view_factor(n, f, FACTOR_PARALLEL, d, 0, d);
            if (x->dim[d] != 1)
                axis_add(&f->out[1], d, f->count - 1);
        }
    whole_axis(f, &f->in[0], axis, x->dim[axis]);
    for (int k = 0; k < 2; k++)
        whole_axis(f, &f->out[k], axis, n->out[k]->type.dim[axis]);
}

/* ---- references: an element's place is the number of those before it ---- */

/* -1, 0, 1: element p of x is less than, equal to, greater than element q. */
static int compare(const Tensor *x, int64_t p, int64_t q)
{
    if (!dtype_float(x->dtype)) {
        int64_t a = tensor_int(x, p), b = tensor_int(x, q);
        return (a > b) - (a < b);
    }
    double a = tensor_get(x, p), b = tensor_get(x, q);
    if (isnan(a) || isnan(b))
        return !!isnan(a) - !!isnan(b);
    return (a > b) - (a < b);
}

static int64_t ref_rank(const Tensor *x, int64_t at, int64_t stride, int64_t n, int64_t i,
                        bool greatest_first)
{
    int64_t before = 0;
    for (int64_t j = 0; j < n; j++) {
        int order = compare(x, at + j * stride, at + i * stride) * (greatest_first ? -1 : 1);
        before += order < 0 || (order == 0 && j < i);
    }
    return before;
}

static int ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0], *at = &c->out[1];
    SortOrder o = order_of(c->node);
    int64_t ix[TN_RANK] = {0};
    if (tensor_nelem(x) == 0)
        return 0;
    do {
        int64_t i = ix[o.axis], own = tensor_index(x, ix), stride = x->stride[o.axis];
        int64_t to[TN_RANK];
        memcpy(to, ix, sizeof to);
        to[o.axis] = ref_rank(x, own - i * stride, stride, x->dim[o.axis], i, o.greatest_first);
        if (to[o.axis] >= y->dim[o.axis])
            continue;
        move_element(y, tensor_index(y, to), x, own);
        tensor_set(at, tensor_index(at, to), (double)i);
    } while (next_index(x->rank, x->dim, ix));
    return 0;
}

/* ---- keys ---- */

typedef struct Keyed {
    uint64_t key;
    int64_t index;
} Keyed;

/* Numbers of either sign in their order, NaN last; complemented where the greatest comes first. */
INLINE uint64_t key_of(const Tensor *x, int64_t at, bool greatest_first)
{
    const uint64_t top = (uint64_t)1 << 63;
    uint64_t key = UINT64_MAX;
    if (!dtype_float(x->dtype)) {
        key = (uint64_t)tensor_int(x, at) ^ top;
    } else {
        double number = x->dtype == F32 ? f32(x)[at] : tensor_get(x, at);
        number += 0.0; /* of -0 makes 0 */
        if (!isnan(number)) {
            memcpy(&key, &number, sizeof key);
            key = key & top ? ~key : key | top;
        }
    }
    return greatest_first ? ~key : key;
}

/* ---- sorting ---- */

static void insertion_sort(Keyed *x, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        Keyed own = x[i];
        int64_t j = i;
        for (; j > 0 && x[j - 1].key > own.key; j--)
            x[j] = x[j - 1];
        x[j] = own;
    }
}

static void merge(const Keyed *x, int64_t middle, int64_t n, Keyed *to)
{
    for (int64_t k = 0, i = 0, j = middle; k < n; k++)
        to[k] = j >= n || (i < middle && x[i].key <= x[j].key) ? x[i++] : x[j++];
}

/* Sorts x by key, stable; the result is in x or in tmp. */
static const Keyed *merge_sort(Keyed *x, Keyed *tmp, int64_t n)
{
    enum { BLOCK = 16 };
    for (int64_t i = 0; i < n; i += BLOCK)
        insertion_sort(x + i, MIN(BLOCK, n - i));
    for (int64_t run = BLOCK; run < n; run *= 2) {
        for (int64_t i = 0; i < n; i += 2 * run)
            merge(x + i, MIN(run, n - i), MIN(2 * run, n - i), tmp + i);
        Keyed *sorted = tmp;
        tmp = x;
        x = sorted;
    }
    return x;
}

/* The k first of the line at x in `list`. */
static void short_list(const Tensor *x, int64_t at, const SortOrder *o, int64_t k, Keyed *list)
{
    int64_t n = x->dim[o->axis], count = 0;
    for (int64_t i = 0; i < n && k; i++) {
        Keyed own = {key_of(x, at + i * x->stride[o->axis], o->greatest_first), i};
        if (count == k && own.key >= list[k - 1].key)
            continue;
        int64_t j = count < k ? count++ : k - 1;
        for (; j > 0 && list[j - 1].key > own.key; j--)
            list[j] = list[j - 1];
        list[j] = own;
    }
}

/* ---- kernel: lines of any strides, each by one thread ---- */

/* How many lines are sorted at once is how many have memory: two lists of items each. */
typedef struct Sort {
    const Call *c;
    SortOrder o;
    int64_t n, kept;      /* elements of a line, and of those in the result */
    int64_t lines, slots; /* slot s sorts lines [s * lines / slots, (s + 1) * lines / slots) */
    Rows x, y;            /* the lines */
    bool brief;           /* short_list does, which needs no memory */
} Sort;

static Sort sort_of(const Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Sort s = {.c = c, .o = order_of(c->node)};
    Tensor x_lines = tensor_without(x, s.o.axis), y_lines = tensor_without(y, s.o.axis);
    s.n = x->dim[s.o.axis];
    s.kept = y->dim[s.o.axis];
    s.lines = tensor_nelem(&x_lines);
    s.x = rows_of(&x_lines, x_lines.rank);
    s.y = rows_of(&y_lines, y_lines.rank);
    s.brief = s.kept < MIN(SHORT_LIST, s.n);
    return s;
}

static int64_t nbytes_slot(const Sort *s)
{
    return 2 * s->n * (int64_t)sizeof(Keyed);
}

static int64_t workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    Sort s = sort_of(c);
    return s.brief ? 0 : nbytes_slot(&s) * MIN(s.lines, par_threads());
}

static void put_line(const Sort *s, int64_t line, const Keyed *sorted)
{
    const Tensor *x = &s->c->in[0], *y = &s->c->out[0];
    int64_t *at = (int64_t *)(void *)s->c->out[1].data;
    int64_t from = row_offset(&s->x, line), to = row_offset(&s->y, line);
    int64_t step = y->stride[s->o.axis];
    for (int64_t i = 0; i < s->kept; i++) {
        move_element(y, to + i * step, x, from + sorted[i].index * x->stride[s->o.axis]);
        at[to + i * step] = sorted[i].index;
    }
}

static void sort_brief(void *arg, int64_t lo, int64_t hi)
{
    const Sort *s = arg;
    Keyed list[SHORT_LIST];
    for (int64_t line = lo; line < hi; line++) {
        short_list(&s->c->in[0], row_offset(&s->x, line), &s->o, s->kept, list);
        put_line(s, line, list);
    }
}

static void sort_slots(void *arg, int64_t lo, int64_t hi)
{
    const Sort *s = arg;
    const Tensor *x = &s->c->in[0];
    int64_t stride = x->stride[s->o.axis];
    for (int64_t slot = lo; slot < hi; slot++) {
        Keyed *items = (Keyed *)(void *)(s->c->work + slot * nbytes_slot(s));
        int64_t end = (slot + 1) * s->lines / s->slots;
        for (int64_t line = slot * s->lines / s->slots; line < end; line++) {
            int64_t at = row_offset(&s->x, line);
            for (int64_t i = 0; i < s->n; i++)
                items[i] = (Keyed){key_of(x, at + i * stride, s->o.greatest_first), i};
            put_line(s, line, merge_sort(items, items + s->n, s->n));
        }
    }
}

static bool accepts(const Call *c)
{
    (void)c;
    return true;
}

static int run(Call *c)
{
    Sort s = sort_of(c);
    if (tensor_nelem(&c->out[0]) == 0)
        return 0;
    if (s.brief) {
        par_for(s.lines, row_grain(s.n), sort_brief, &s);
    } else {
        s.slots = c->nbytes_work / nbytes_slot(&s);
        par_for(s.slots, 1, sort_slots, &s);
    }
    return 0;
}

static const Kernel kernels[] = {
    {.name = "sort_lines", .accepts = accepts, .workspace = workspace, .run = run}, {0}};

/* ---- argmax, argmin ---- */

/* The axis along which is looked, or -1: all of them, in row-major order. */
static int arg_axis(const Node *n)
{
    return n->attr[ARG_DIM].i ? axis_of(n->attr[ARG_DIM].ints[0], n->in[0]->type.rank) : -1;
}

static int arg_infer(const Graph *g, const Node *n, Type *out)
{
    const Type *x = &n->in[0]->type;
    if (n->attr[ARG_DIM].i > 1)
        fail_node(g, n, "dim: expected one axis or none, found %lld",
                  (long long)n->attr[ARG_DIM].i);
    if (n->attr[ARG_DIM].i)
        need_axis(g, n, n->attr[ARG_DIM].ints[0], x->rank);
    int axis = arg_axis(n);
    if ((axis < 0 ? type_nelem(x) : x->dim[axis]) == 0)
        fail_node(g, n, "operand 0: expected elements to choose from, found %s",
                  type_text(g->a, x));
    out[0] = (Type){.dtype = I64};
    for (int d = 0; d < x->rank; d++)
        if (axis >= 0 && d != axis)
            out[0].dim[out[0].rank++] = x->dim[d];
        else if (n->attr[KEEPDIM].i)
            out[0].dim[out[0].rank++] = 1;
    return 1;
}

static Cost arg_cost(const Node *n)
{
    Cost c = cost_bytes(n);
    c.nflop = (double)type_nelem(&n->in[0]->type);
    return c;
}

static void arg_factors(const Node *n, Factors *f)
{
    const Type *x = &n->in[0]->type;
    int axis = arg_axis(n);
    for (int d = 0, e = 0; d < x->rank; d++) {
        bool whole = axis < 0 || d == axis;
        if (x->dim[d] != 1)
            axis_add(&f->in[0], d,
                     factor_new(f, whole ? FACTOR_REPLICATE : FACTOR_PARALLEL, x->dim[d]));
        if (!whole && x->dim[d] != 1)
            axis_add(&f->out[0], e, f->count - 1);
        e += !whole || n->attr[KEEPDIM].i;
    }
}

/* The operand's lines: along the axis, or one of everything. */
typedef struct LineSearch {
    const Call *c;
    Rows line, rows;
    int64_t n;
    bool greatest;
} LineSearch;

static LineSearch search_of(const Call *c)
{
    const Tensor *x = &c->in[0];
    int axis = arg_axis(c->node);
    LineSearch s = {.c = c, .greatest = node_is(c->node, OP_argmax)};
    Tensor line = axis < 0 ? *x : tensor_axes(x, axis, axis + 1);
    Tensor rows = axis < 0 ? tensor_axes(x, 0, 0) : tensor_without(x, axis);
    s.line = rows_of(&line, line.rank);
    s.rows = rows_of(&rows, rows.rank);
    s.n = tensor_nelem(&line);
    return s;
}

static bool is_nan(const Tensor *x, int64_t at)
{
    return dtype_float(x->dtype) && isnan(tensor_get(x, at));
}

static int arg_ref(Call *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    LineSearch s = search_of(c);
    for (int64_t row = 0; row < tensor_nelem(y); row++) {
        int64_t best = 0, from = row_offset(&s.rows, row);
        for (int64_t i = 1; i < s.n; i++) {
            int64_t p = from + row_offset(&s.line, i), q = from + row_offset(&s.line, best);
            int order = s.greatest ? compare(x, p, q) : compare(x, q, p);
            if (is_nan(x, p) || is_nan(x, q))
                order = is_nan(x, p) - is_nan(x, q);
            best = order > 0 ? i : best;
        }
        tensor_set(y, tensor_linear(y, row), (double)best);
    }
    return 0;
}

/* As key_of, but a NaN comes first. */
INLINE uint64_t merit(const Tensor *x, int64_t at, bool greatest)
{
    uint64_t key = key_of(x, at, false);
    bool nan = key == UINT64_MAX && dtype_float(x->dtype);
    return greatest || nan ? key : ~key;
}

/* Lines of f32, f16 and bf16 are searched without keys, so many side by side where there are as
 * many. */
enum { ABREAST = 16 };

INLINE float float_at(const char *x, DType t, int64_t at)
{
    const uint16_t *half = (const uint16_t *)(const void *)x;
    return t == F32    ? ((const float *)(const void *)x)[at]
           : t == BF16 ? v_bf16_to_f32(half[at])
                       : v_f16_to_f32(half[at]);
}

/* Whether element `own` comes before the best so far; the first NaN comes before all. */
INLINE bool is_better(float own, float best, bool greatest)
{
    const bool worse = greatest ? own <= best : own >= best; /* not of a NaN */
    return !worse & (best == best);
}

enum { TAKEN = 16 }; /* elements of each line at a time */
INLINE void abreast(const LineSearch *s, DType t, bool greatest, const int64_t *from, int64_t *y)
{
    const char *x = s->c->in[0].data;
    const int64_t stride = s->line.rank ? s->line.stride[0] : 1;
    float own[TAKEN][ABREAST], best[ABREAST];
    int32_t at[ABREAST] = {0};
    for (int k = 0; k < ABREAST; k++)
        best[k] = float_at(x, t, from[k]);
    for (int32_t first = 1; first < (int32_t)s->n; first += TAKEN) {
        const int32_t n = MIN(TAKEN, (int32_t)s->n - first);
        for (int32_t i = 0; i < n; i++)
            for (int k = 0; k < ABREAST; k++)
                own[i][k] = float_at(x, t, from[k] + (first + i) * stride);
        for (int32_t i = 0; i < n; i++)
            for (int k = 0; k < ABREAST; k++) {
                const bool better = is_better(own[i][k], best[k], greatest);
                best[k] = better ? own[i][k] : best[k];
                at[k] = better ? first + i : at[k];
            }
    }
    for (int k = 0; k < ABREAST; k++)
        y[k] = at[k];
}

INLINE int64_t search_line(const LineSearch *s, DType t, bool greatest, int64_t from)
{
    const char *x = s->c->in[0].data;
    const int64_t stride = s->line.rank ? s->line.stride[0] : 1;
    float best = float_at(x, t, from);
    int64_t at = 0;
    for (int64_t i = 1; i < s->n; i++) {
        const float own = float_at(x, t, from + i * stride);
        if (is_better(own, best, greatest)) {
            best = own;
            at = i;
        }
    }
    return at;
}

#define SEARCH(t, order, greatest)                                                  \
    static void search_##t##_##order(void *arg, int64_t lo, int64_t hi)             \
    {                                                                               \
        const LineSearch *s = arg;                                                  \
        int64_t *y = (int64_t *)(void *)s->c->out[0].data, from[ABREAST], row = lo; \
        for (; row + ABREAST <= hi; row += ABREAST) {                               \
            for (int k = 0; k < ABREAST; k++)                                       \
                from[k] = row_offset(&s->rows, row + k);                            \
            abreast(s, t, greatest, from, y + row);                                 \
        }                                                                           \
        for (; row < hi; row++)                                                     \
            y[row] = search_line(s, t, greatest, row_offset(&s->rows, row));        \
    }
SEARCH(F32, greatest, true)
SEARCH(F32, least, false)
SEARCH(BF16, greatest, true)
SEARCH(BF16, least, false)
SEARCH(F16, greatest, true)
SEARCH(F16, least, false)

static void search_rows(void *arg, int64_t lo, int64_t hi)
{
    const LineSearch *s = arg;
    const Tensor *x = &s->c->in[0];
    int64_t *y = (int64_t *)(void *)s->c->out[0].data;
    for (int64_t row = lo; row < hi; row++) {
        int64_t at = row_offset(&s->rows, row);
        uint64_t best = merit(x, at, s->greatest);
        y[row] = 0;
        for (int64_t i = 1; i < s->n; i++) {
            uint64_t own = merit(x, at + row_offset(&s->line, i), s->greatest);
            if (own > best) {
                best = own;
                y[row] = i;
            }
        }
    }
}

static int arg_run(Call *c)
{
    LineSearch s = search_of(c);
    void (*fn)(void *arg, int64_t lo, int64_t hi) = search_rows;
    if (s.line.rank <= 1 && s.n <= INT32_MAX - TAKEN)
        switch (c->in[0].dtype) {
        case F32: fn = s.greatest ? search_F32_greatest : search_F32_least; break;
        case BF16: fn = s.greatest ? search_BF16_greatest : search_BF16_least; break;
        case F16: fn = s.greatest ? search_F16_greatest : search_F16_least; break;
        default: break;
        }
    par_for(tensor_nelem(&c->out[0]), row_grain(s.n), fn, &s);
    return 0;
}

static const Kernel arg_kernels[] = {{.name = "arg_lines", .accepts = accepts, .run = arg_run},
                                     {0}};

const OpRules op_sort = {
    .math = "values, indices = x sorted along `dim`, equal ones in their order, NaN the greatest",
    .example = "f32[4, 10] dim=1",
    .attrs = sort_attrs,
    .infer = sort_infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.sort.default aten.sort.stable",
};

const OpRules op_topk = {
    .math =
        "values, indices = the k greatest (or least) of x along `dim`, sorted, NaN the greatest",
    .example = "f32[4, 10] k=2",
    .attrs = topk_attrs,
    .infer = topk_infer,
    .diff = diff,
    .cost = cost,
    .factors = factors,
    .kernels = kernels,
    .ref = ref,
    .alias = "aten.topk.default",
};

const OpRules op_argmax = {
    .math =
        "y = the first index of the greatest element along `dim` (of all: none), NaN the greatest",
    .example = "f32[4, 10] dim=[1]",
    .attrs = arg_attrs,
    .infer = arg_infer,
    .cost = arg_cost,
    .factors = arg_factors,
    .kernels = arg_kernels,
    .ref = arg_ref,
    .alias = "aten.argmax.default",
};

const OpRules op_argmin = {
    .math = "y = the first index of the least element along `dim` (of all: none), NaN before all",
    .example = "f32[4, 10] dim=[1]",
    .attrs = arg_attrs,
    .infer = arg_infer,
    .cost = arg_cost,
    .factors = arg_factors,
    .kernels = arg_kernels,
    .ref = arg_ref,
    .alias = "aten.argmin.default",
};
