/* Tensors made from nothing or like another, casts, copies, filling. Layouts, devices and memory
 * formats have no meaning for values; a layout other than strided is refused. */
#include "lower.h"

#include <math.h>
#include <string.h>

Type lower_wanted(Site *s, bool like, DType otherwise)
{
    Type t = {.dtype = otherwise};
    if (s->narg && !strcmp(s->arg_name[0], "self"))
        t = *site_type(s, "self");
    if (!like)
        t.rank = site_ints(s, "size", t.dim);
    t.dtype = site_dtype(s, "dtype", t.dtype);
    for (int d = 0; d < t.rank; d++)
        if (t.dim[d] < 0)
            site_fail(s, "argument size: expected sizes of 0 or more, found %lld",
                      (long long)t.dim[d]);
    if (site_has(s, "layout") && strcmp(site_text(s, "layout"), "torch.strided"))
        site_fail(s, "argument layout: expected torch.strided, found %s", site_text(s, "layout"));
    return t;
}

static DType number_dtype(const Item *x)
{
    return x->kind == FX_BOOL ? BOOL : x->kind == FX_INT ? I64 : F32;
}

static void return_full(Site *s, bool like, double x, DType otherwise)
{
    Type t = lower_wanted(s, like, otherwise);
    site_return(s, lower_full(s, x, &t));
}

static void fill_wanted(Site *s, bool like, DType otherwise)
{
    Type t = lower_wanted(s, like, otherwise);
    site_return(s, lower_fill(s, site_arg(s, "fill_value"), &t));
}

/* Ones may be the tangent of the loss: see phase.c. */
static void note_tangent(Site *s, FxTensor *like)
{
    Importer *im = s->im;
    Tangent t = {like ? fx_peek(im, like) : NULL, s->result.t->v};
    PUSH(im->a, im->gradients.tangent, im->gradients.ntangent, im->gradients.captangent, t);
}

static bool is_scalar_one(Site *s)
{
    const Item *x = site_arg(s, "fill_value");
    bool one = x->kind == FX_FLOAT ? x->f == 1 : x->kind == FX_INT && x->i == 1;
    return one && !s->result.t->type.rank && dtype_float(s->result.t->type.dtype);
}

void row_full(Site *s)
{
    fill_wanted(s, false, number_dtype(site_arg(s, "fill_value")));
    if (is_scalar_one(s))
        note_tangent(s, NULL);
}

void row_full_like(Site *s)
{
    fill_wanted(s, true, F32);
    if (is_scalar_one(s))
        note_tangent(s, site_storage(s, "self"));
}

void row_zeros(Site *s)
{
    return_full(s, false, 0, F32);
}

void row_ones(Site *s)
{
    return_full(s, false, 1, F32);
    if (!s->result.t->type.rank)
        note_tangent(s, NULL);
}

void row_zeros_like(Site *s)
{
    return_full(s, true, 0, F32);
}

void row_ones_like(Site *s)
{
    return_full(s, true, 1, F32);
    note_tangent(s, site_storage(s, "self"));
}

static void empty(Site *s, bool like)
{
    Type t = lower_wanted(s, like, F32);
    FxTensor *x = fx_empty(s->im, lower_full(s, 0, &t));
    s->result = (Item){.kind = FX_TENSOR, .t = x};
}

void row_empty(Site *s)
{
    empty(s, false);
}

void row_empty_strided(Site *s)
{
    int64_t stride[TN_RANK];
    empty(s, false);
    FxTensor *x = s->result.t;
    if (site_ints(s, "stride", stride) != x->type.rank)
        site_fail(s, "argument stride: expected %d", x->type.rank);
    fx_set_strides(s->im, x, stride);
}

void row_empty_like(Site *s)
{
    empty(s, true);
}

void row_scalar_tensor(Site *s)
{
    Type t = {.dtype = site_dtype(s, "dtype", F32)};
    site_return(s, lower_fill(s, site_arg(s, "s"), &t));
}

static bool has_arg(const Site *s, const char *name)
{
    for (int k = 0; k < s->narg; k++)
        if (!strcmp(s->arg_name[k], name))
            return true;
    return false;
}

static Value *arange(Site *s, int64_t start, int64_t end, int64_t step, DType d)
{
    return emit1(
        s->b, "arange", 0, NULL,
        ATTRS(A_INT("start", start), A_INT("end", end), A_INT("step", step), A_DTYPE("dtype", d)));
}

/* x towards zero */
static int64_t integer(Site *s, double x)
{
    if (!(fabs(x) < 0x1p63))
        site_fail(s, "expected integers below 2^63, found %g", x);
    return (int64_t)x;
}

/* Numbers from start on, as integers of dtype d. */
static Value *stepped(Site *s, int64_t start, int64_t step, int64_t count, DType d)
{
    int64_t end;
    if (__builtin_mul_overflow(count, step, &end) || __builtin_add_overflow(end, start, &end))
        site_fail(s, "argument end: too large");
    if (step)
        return arange(s, start, end, step, d);
    const Item first = item_int(start);
    return lower_fill(s, &first, &(Type){.dtype = d, .rank = 1, .dim = {count}});
}

static bool is_whole(const Site *s, const char *name)
{
    return !has_arg(s, name) || site_arg(s, name)->kind == FX_INT;
}

/* Integers are exact; so are floats where all three are whole; else start + i step in f64. For a
 * dtype of integers there are as many as floats would be, from start by step, both towards zero. */
void row_arange(Site *s)
{
    double start = has_arg(s, "start") ? site_real(s, "start") : 0, end = site_real(s, "end");
    double step = has_arg(s, "step") ? site_real(s, "step") : 1;
    bool whole = is_whole(s, "start") && is_whole(s, "end") && is_whole(s, "step");
    DType d = site_dtype(s, "dtype", whole ? I64 : F32);
    double count = ceil((end - start) / step);
    if (whole && !dtype_float(d)) {
        int64_t from = has_arg(s, "start") ? site_int(s, "start") : 0;
        int64_t by = has_arg(s, "step") ? site_int(s, "step") : 1;
        site_return(s, arange(s, from, site_int(s, "end"), by, d));
        return;
    }
    if (!(count >= 0 && count < 0x1p40))
        site_fail(s, "expected a step that leads from %g to %g, found %g", start, end, step);
    if (!dtype_float(d)) {
        site_return(s, stepped(s, integer(s, start), integer(s, step), (int64_t)count, d));
        return;
    }
    if (start == floor(start) && end == floor(end) && step == floor(step) && fabs(end) < 0x1p53 &&
        fabs(start) < 0x1p53) {
        site_return(s, arange(s, (int64_t)start, (int64_t)end, (int64_t)step, d));
        return;
    }
    Value *i = lower_cast(s, arange(s, 0, (int64_t)count, 1, I64), F64);
    i = lower2(s, "mul", i, lower_number(s, step, F64));
    i = lower2(s, "add", i, lower_number(s, start, F64));
    site_return(s, lower_cast(s, i, d));
}

/* `steps` numbers from start to end in f64, counted from the nearer end; for a dtype of integers
 * both are one first. */
static Value *spaced(Site *s)
{
    double start = site_real(s, "start"), end = site_real(s, "end");
    if (!dtype_float(site_dtype(s, "dtype", F32))) {
        start = (double)integer(s, start);
        end = (double)integer(s, end);
    }
    int64_t n = site_int(s, "steps");
    if (n < 0)
        site_fail(s, "argument steps: expected 0 or more, found %lld", (long long)n);
    double step = n > 1 ? (end - start) / (double)(n - 1) : 0;
    Value *up = lower_cast(s, arange(s, 0, n, 1, I64), F64);
    Value *down = lower_cast(s, arange(s, n - 1, -1, -1, I64), F64);
    Value *first = lower2(s, "lt", up, lower_number(s, (double)(n > 1 ? n / 2 : 1), F64));
    Value *low = lower2(s, "add", lower_times(s, up, step), lower_number(s, start, F64));
    Value *high = lower2(s, "sub", lower_number(s, end, F64), lower_times(s, down, step));
    return lower_where(s, first, low, high);
}

void row_linspace(Site *s)
{
    site_return(s, lower_cast(s, spaced(s), site_dtype(s, "dtype", F32)));
}

void row_logspace(Site *s)
{
    Value *y = lower2(s, "pow", lower_number(s, site_real(s, "base"), F64), spaced(s));
    site_return(s, lower_cast(s, y, site_dtype(s, "dtype", F32)));
}

void row_iota(Site *s)
{
    int64_t start = site_int(s, "start"), step = site_int(s, "step"), end;
    if (__builtin_mul_overflow(site_int(s, "length"), step, &end) ||
        __builtin_add_overflow(end, start, &end))
        site_fail(s, "argument length: too large");
    site_return(s, arange(s, start, end, step, site_dtype(s, "dtype", I64)));
}

void row_eye(Site *s)
{
    int64_t n = site_int(s, "n"), column[] = {n, 1};
    if (n < 0)
        site_fail(s, "argument n: expected 0 or more, found %lld", (long long)n);
    Value *i = arange(s, 0, n, 1, I64);
    Value *same = lower2(s, "eq", lower_reshape(s, i, 2, column), i);
    site_return(s, lower_cast(s, same, site_dtype(s, "dtype", F32)));
}

/* ---- casts, copies, filling ---- */

void row_to_copy(Site *s)
{
    Value *x = site_tensor(s, "self");
    site_return(s, emit1(s->b, "_to_copy", IN(x),
                         ATTRS(A_DTYPE("dtype", site_dtype(s, "dtype", x->type.dtype)))));
}

void row_clone(Site *s)
{
    site_return(s, lower1(s, "clone", site_tensor(s, "self")));
    if (has_arg(s, "memory_format") && site_has(s, "memory_format") &&
        !strcmp(site_arg(s, "memory_format")->s, "torch.contiguous_format"))
        fx_set_row_major(s->im, s->result.t);
}

/* copy_ and fill_ give what self becomes: its own values count for nothing. */
static void become(Site *s, Value *x)
{
    const Type *t = site_type(s, "self");
    site_return(s, lower_expand(s, lower_cast(s, x, t->dtype), t));
}

void row_copy(Site *s)
{
    become(s, site_tensor(s, "src"));
}

void row_fill(Site *s)
{
    become(s, promoted(s, site_arg(s, "value"), site_type(s, "self")->dtype));
}

void row_zero(Site *s)
{
    site_return(s, lower_full(s, 0, site_type(s, "self")));
}

/* ---- what says something about a tensor ---- */

void row_sym_size(Site *s)
{
    const Type *t = site_type(s, "self");
    int axis = site_axis(s, "dim", t->rank);
    int64_t n = t->rank ? t->dim[axis] : 1;
    s->result = (Item){.kind = FX_INT, .i = n, .f = (double)n};
}

void row_is_same_size(Site *s)
{
    bool same = shape_equal(site_type(s, "self"), site_type(s, "other"));
    s->result = (Item){.kind = FX_BOOL, .i = same, .f = same};
}

/* Strides, device and layout say nothing about values. */
void row_assert_metadata(Site *s)
{
    const Type *t = site_type(s, "a");
    Type want = *t;
    if (site_has(s, "size"))
        want.rank = site_ints(s, "size", want.dim);
    want.dtype = site_dtype(s, "dtype", t->dtype);
    if (!type_equal(&want, t))
        site_fail(s, "expected %s, found %s", type_text(s->im->a, &want), type_text(s->im->a, t));
    s->result = (Item){.kind = FX_NONE};
}
