/* Complex tensors, as far as rotary embeddings need them to rotate pairs of numbers: a real and an
 * imaginary part, two tensors of the same shape, in real arithmetic. A graph has no complex dtype.
 *
 * Complex products are computed here; a call that does the same to both parts (views, copies, sums,
 * joining, a product with a real factor) is made for each. Everything else is refused. Inputs and
 * results are pairs, as view_as_real shows them (ports.c). */
#include "lower.h"

#include <string.h>

static Item complex_item(Importer *im, Item re, Item imag)
{
    Item x = {.kind = FX_COMPLEX, .count = 2, .item = NEWN(im->a, Item, 2)};
    x.item[0] = re;
    x.item[1] = imag;
    return x;
}

bool item_complex(const Item *x)
{
    for (int i = 0; x->kind == FX_LIST && i < x->count; i++)
        if (item_complex(&x->item[i]))
            return true;
    return x->kind == FX_COMPLEX;
}

/* ---- what makes complex tensors ---- */

void row_view_as_complex(Site *s)
{
    const Type *t = site_type(s, "self");
    if (!t->rank || t->dim[t->rank - 1] != 2)
        site_fail(s, "argument self: expected 2 elements on the last axis, found %s",
                  type_text(s->im->a, t));
    Item part[2];
    for (int k = 0; k < 2; k++)
        part[k] = lower_call(s, "select.int", 3, (Item[]){s->arg[0], item_int(-1), item_int(k)});
    s->result = complex_item(s->im, part[0], part[1]);
}

Item fx_complex_of_pairs(Importer *im, FxTensor *pairs)
{
    Site s = {.im = im, .b = &im->b, .name = "aten.view_as_complex.default"};
    Item x = {.kind = FX_TENSOR, .t = pairs};
    return lower_call(&s, "view_as_complex.default", 1, &x);
}

FxTensor *fx_pairs_of_complex(Importer *im, const Item *x)
{
    Site s = {.im = im, .b = &im->b, .name = "aten.view_as_real.default"};
    return lower_call(&s, "view_as_real.default", 1, x).t;
}

bool fx_pairs_type(const Item *x, Type *t)
{
    if (x->kind != FX_COMPLEX || x->item[0].kind != FX_TENSOR || x->item[1].kind != FX_TENSOR ||
        x->item[0].t->type.rank == TN_RANK)
        return false;
    *t = x->item[0].t->type;
    t->dim[t->rank++] = 2;
    return true;
}

/* abs (cos(angle) + i sin(angle)) */
void row_polar(Site *s)
{
    Item part[2];
    for (int k = 0; k < 2; k++) {
        Item wave = lower_call(s, k ? "sin.default" : "cos.default", 1, &s->arg[1]);
        part[k] = lower_call(s, "mul.Tensor", 2, (Item[]){s->arg[0], wave});
    }
    s->result = complex_item(s->im, part[0], part[1]);
}

void row_complex(Site *s)
{
    Item re = lower_call(s, "clone.default", 1, &s->arg[0]);
    s->result = complex_item(s->im, re, lower_call(s, "clone.default", 1, &s->arg[1]));
}

Item fx_complex_number(Importer *im, int n, const Item *arg)
{
    for (int i = 0; i < n; i++)
        if (arg[i].kind != FX_INT && arg[i].kind != FX_FLOAT)
            fail(im->g->ctx, TN_FAIL, "complex: expected numbers");
    if (n != 2)
        fail(im->g->ctx, TN_FAIL, "complex: expected 2 numbers, found %d", n);
    return complex_item(im, arg[0], arg[1]);
}

void row_not_complex(Site *s)
{
    site_fail(s, "argument self: expected a complex tensor, found %s",
              type_text(s->im->a, site_type(s, "self")));
}

/* ---- calls with complex arguments ---- */

typedef enum {
    REFUSED,
    EACH,
    SUM,
    PRODUCT,
    QUOTIENT,
    CONJUGATE,
    SELF,
    PAIRS,
    PART,
    ABS,
    SIGN,
    FOURIER
} ComplexRule;

static ComplexRule rule_of(const char *name, bool view)
{
    static const struct Known {
        const char *name;
        ComplexRule rule;
    } known[] = {
        {"aten.mul", PRODUCT},
        {"aten.div", QUOTIENT},
        {"aten.add", SUM},
        {"aten.sub", SUM},
        {"aten._conj", CONJUGATE},
        {"aten._conj_physical", CONJUGATE},
        {"aten.conj", CONJUGATE},
        {"aten.conj_physical", CONJUGATE},
        {"aten.resolve_conj", SELF},
        {"aten.resolve_neg", SELF},
        {"aten.view_as_real", PAIRS},
        {"aten.real", PART},
        {"aten.imag", PART},
        {"aten.clone", EACH},
        {"aten.copy", EACH},
        {"aten.new_zeros", EACH},
        {"aten.contiguous", EACH},
        {"aten._to_copy", EACH},
        {"aten.sum", EACH},
        {"aten.mean", EACH},
        {"aten.neg", EACH},
        {"aten.cat", EACH},
        {"aten.stack", EACH},
        {"aten.index", EACH},
        {"aten.index_select", EACH},
        {"aten.repeat", EACH},
        {"aten.slice_backward", EACH},
        {"aten.select_backward", EACH},
        {"aten.constant_pad_nd", EACH},
        {"aten._assert_tensor_metadata", EACH},
        {"aten.sym_size", EACH},
        {"aten._unsafe_view", EACH},
        {"aten.where", EACH},
        {"aten.slice_scatter", EACH},
        {"aten.select_scatter", EACH},
        {"aten.abs", ABS},
        {"aten.sgn", SIGN},
        {"aten._fft_c2c", FOURIER},
        {"aten._fft_c2r", FOURIER},
    };
    size_t n = strcspn(name + 5, ".") + 5;
    for (int i = 0; i < LEN(known); i++)
        if (strlen(known[i].name) == n && !strncmp(known[i].name, name, n))
            return known[i].rule;
    return view ? EACH : REFUSED;
}

/* Part k of an argument: complex dtypes become those of their parts; of a sum's real number the
 * imaginary part is 0. */
static Item part_of(Importer *im, const Item *x, int k, ComplexRule rule)
{
    static const char *const dtypes[][2] = {{"torch.complex64", "torch.float32"},
                                            {"torch.complex128", "torch.float64"},
                                            {"torch.complex32", "torch.float16"}};
    if (x->kind == FX_COMPLEX)
        return x->item[k];
    if (rule == SUM && k == 1 && (x->kind == FX_INT || x->kind == FX_FLOAT))
        return item_int(0);
    for (int i = 0; x->kind == FX_WORD && i < LEN(dtypes); i++)
        if (!strcmp(x->s, dtypes[i][0]))
            return (Item){.kind = FX_WORD, .s = dtypes[i][1]};
    if (x->kind != FX_LIST)
        return *x;
    Item list = {.kind = FX_LIST, .count = x->count, .item = NEWN(im->a, Item, x->count + 1)};
    for (int i = 0; i < x->count; i++)
        list.item[i] = part_of(im, &x->item[i], k, rule);
    return list;
}

/* The parts of a result as one; what is no tensor is the same in both. */
static Item joined(Importer *im, const Item *re, const Item *imag)
{
    if (re->kind == FX_TENSOR)
        return complex_item(im, *re, *imag);
    if (re->kind != FX_LIST)
        return *re;
    Item list = {.kind = FX_LIST, .count = re->count, .item = NEWN(im->a, Item, re->count + 1)};
    for (int i = 0; i < re->count; i++)
        list.item[i] = joined(im, &re->item[i], &imag->item[i]);
    return list;
}

static Item each_part(Site *s, const Expr *call, const Item *arg, ComplexRule rule)
{
    Item *part = NEWN(s->im->a, Item, call->count + 1), y[2];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < call->count; i++)
            part[i] = part_of(s->im, &arg[i], k, rule);
        y[k] = fx_call(s->im, call, part);
    }
    return joined(s->im, &y[0], &y[1]);
}

static Item two(Site *s, const char *overload, Item x, Item y)
{
    return lower_call(s, overload, 2, (Item[]){x, y});
}

static Item product(Site *s, const Item *x, const Item *y)
{
    Item re = two(s, "sub.Tensor", two(s, "mul.Tensor", x->item[0], y->item[0]),
                  two(s, "mul.Tensor", x->item[1], y->item[1]));
    Item imag = two(s, "add.Tensor", two(s, "mul.Tensor", x->item[0], y->item[1]),
                    two(s, "mul.Tensor", x->item[1], y->item[0]));
    return complex_item(s->im, re, imag);
}

static Item conjugate(Site *s, const Item *x)
{
    return complex_item(s->im, x->item[0], lower_call(s, "neg.default", 1, &x->item[1]));
}

static Item pairs(Site *s, const Item *x)
{
    Item list = {.kind = FX_LIST, .count = 2, .item = x->item};
    return two(s, "stack.default", list, item_int(-1));
}

static Item flattened(Site *s, Item x)
{
    return lower_call(s, "flatten.using_ints", 3, (Item[]){x, item_int(-2), item_int(-1)});
}

static Item size_of(Site *s, const Item *x)
{
    return two(s, "hypot.default", x->item[0], x->item[1]);
}

/* x / |x|, 0 for 0 */
static Item sign(Site *s, const Item *x)
{
    Item size = size_of(s, x), zero = item_int(0), y[2];
    Item none = two(s, "eq.Scalar", size, zero);
    for (int k = 0; k < 2; k++)
        y[k] = lower_call(s, "where.ScalarSelf", 3,
                          (Item[]){none, zero, two(s, "div.Tensor", x->item[k], size)});
    return complex_item(s->im, y[0], y[1]);
}

bool item_complex_dtype(const Item *x)
{
    return x->kind == FX_WORD && !strncmp(x->s, "torch.complex", 13);
}

Item fx_complex_of_real(Site *s, const Expr *call, const Item *arg)
{
    Item *part = NEWN(s->im->a, Item, call->count + 1);
    if (!strcmp(s->name, "aten.view.dtype")) {
        Item sizes = item_ints(s, 2, (int64_t[]){-1, 2});
        Item x = lower_call(s, "unflatten.int", 3, (Item[]){arg[0], item_int(-1), sizes});
        return lower_call(s, "view_as_complex.default", 1, &x);
    }
    for (int i = 0; i < call->count; i++)
        part[i] = part_of(s->im, &arg[i], 0, EACH);
    Item re = fx_call(s->im, call, part);
    if (re.kind != FX_TENSOR)
        site_fail(s, "of complex numbers, %s is not supported", s->name);
    return complex_item(s->im, re, lower_call(s, "zeros_like.default", 1, &re));
}

Item fx_complex_call(Site *s, const Expr *call, const Item *arg, bool view, bool writes)
{
    bool flat = !strcmp(s->name, "aten.view.dtype"); /* pairs along the last axis */
    bool number = call->count > 1 && (arg[1].kind == FX_INT || arg[1].kind == FX_FLOAT);
    bool scales =
        (number && rule_of(s->name, view) == PRODUCT) ||
        (call->count > 1 && !strcmp(s->name, "aten.copy.default") && item_complex(&arg[1]));
    ComplexRule rule = flat ? PAIRS : writes && !scales ? REFUSED : rule_of(s->name, view);
    const char *why = writes ? " in place" : "";
    bool first = call->count > 0 && arg[0].kind == FX_COMPLEX;
    bool second = call->count > 1 && arg[1].kind == FX_COMPLEX;
    bool real = (rule == SUM && !(first && (second || arg[1].kind != FX_TENSOR))) ||
                (rule == QUOTIENT && second);
    if (real)
        why = rule == SUM ? " with a real tensor" : " by a complex number";
    if (rule == REFUSED || real || (rule >= CONJUGATE && !first))
        site_fail(s,
                  "%s%s of complex numbers is not supported: only what rotates pairs is "
                  "(view_as_complex, polar, conj, products, sums, views, view_as_real), and "
                  "Fourier's transforms",
                  s->name, why);
    switch (rule) {
    case PRODUCT:
        return first && second ? product(s, &arg[0], &arg[1]) : each_part(s, call, arg, rule);
    case CONJUGATE: return conjugate(s, &arg[0]);
    case SELF: return arg[0];
    case PAIRS: return flat ? flattened(s, pairs(s, &arg[0])) : pairs(s, &arg[0]);
    case ABS: return size_of(s, &arg[0]);
    case SIGN: return sign(s, &arg[0]);
    case FOURIER: return fx_fourier(s, &arg[0], call->count, arg);
    case PART: return arg[0].item[!strncmp(s->name, "aten.imag", 9)];
    default: return each_part(s, call, arg, rule);
    }
}
