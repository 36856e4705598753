/* Runs one call: finds its row or op, binds its arguments, stores its result. `X_` is X whose
 * result is written to its first argument. An op that has the overload as its alias takes tensors
 * as its operands and the other arguments as its attributes, both in order, or by name. */
#include "lower.h"

#include <string.h>

/* "torch.ops.aten.add_.Tensor" taken apart. */
typedef struct Callee {
    const char *name; /* aten.add.Tensor */
    bool in_place;    /* it is written to its first argument */
    bool out;         /* ... to the argument `out` */
    bool copied;      /* a view that is none */
    const AtenRow *row;
    const Op *op;
} Callee;

/* aten.add_.Tensor to aten.add.Tensor; NULL where no underscore ends the name. A few
 * overloads have another name. */
static const char *functional(Arena *a, const char *name)
{
    static const char *const odd[][2] = {
        {"aten.pow_.Scalar", "aten.pow.Tensor_Scalar"},
        {"aten.pow_.Tensor", "aten.pow.Tensor_Tensor"},
        {"aten.transpose_.default", "aten.transpose.int"},
    };
    for (int i = 0; i < LEN(odd); i++)
        if (!strcmp(name, odd[i][0]))
            return odd[i][1];
    const char *dot = strchr(name, '.'), *end = dot ? strchr(dot + 1, '.') : NULL;
    if (!end || end[-1] != '_' || end[-2] == '_')
        return NULL;
    return arena_printf(a, "%.*s%s", (int)(end - 1 - name), name, end);
}

/* aten.view_copy.default to aten.view.default; NULL where _copy does not end the name. */
static const char *viewing(Arena *a, const char *name)
{
    const char *dot = strchr(name, '.'), *end = dot ? strchr(dot + 1, '.') : NULL;
    if (!end || end - dot < 7 || strncmp(end - 5, "_copy", 5) != 0)
        return NULL;
    return arena_printf(a, "%.*s%s", (int)(end - 5 - name), name, end);
}

/* "aten.add.out" to aten.add.Tensor, whose result it writes to its argument `out`; NULL where it is
 * no such name. Most are named after the other: X_out, or just out. */
static const char *returning(Arena *a, const char *name)
{
    static const char *const odd[][2] = {
        {"aten.mean.out", "aten.mean.dim"},
        {"aten.mean.dtype_out", "aten.mean.default"},
        {"aten.any.out", "aten.any.dim"},
        {"aten.any.all_out", "aten.any.default"},
        {"aten.all.out", "aten.all.dim"},
        {"aten.all.all_out", "aten.all.default"},
        {"aten.sum.IntList_out", "aten.sum.dim_IntList"},
        {"aten.prod.int_out", "aten.prod.dim_int"},
        {"aten.max.out", "aten.max.other"},
        {"aten.min.out", "aten.min.other"},
        {"aten.max.unary_out", "aten.max.default"},
        {"aten.min.unary_out", "aten.min.default"},
        {"aten.norm.out", "aten.norm.ScalarOpt_dim"},
        {"aten.norm.dtype_out", "aten.norm.ScalarOpt_dim_dtype"},
        {"aten.div.out_mode", "aten.div.Tensor_mode"},
    };
    for (int i = 0; i < LEN(odd); i++)
        if (!strcmp(name, odd[i][0]))
            return odd[i][1];
    const char *dot = strrchr(name, '.');
    size_t n = strlen(name);
    if (strncmp(name, "aten.", 5) || dot - name < 5)
        return NULL;
    if (!strcmp(dot, ".out")) {
        const char *plain = arena_printf(a, "%.*s.default", (int)(dot - name), name);
        bool known = aten_find(plain + 5) || aten_alias(plain);
        return known ? plain : arena_printf(a, "%.*s.Tensor", (int)(dot - name), name);
    }
    return n > 4 && !strcmp(name + n - 4, "_out") ? arena_strndup(a, name, n - 4) : NULL;
}

/* Rows of other namespaces than aten have their whole name. A primitive that has no row is the ATen
 * op of its name; collectives that autograd sees are the others. */
static void look_up(Arena *a, Callee *c)
{
    static const char autograd[] = "_c10d_functional_autograd.";
    if (!strncmp(c->name, autograd, sizeof autograd - 1))
        c->name = arena_printf(a, "_c10d_functional.%s", c->name + sizeof autograd - 1);
    bool prim = !strncmp(c->name, "prims.", 6);
    const char *name = prim ? arena_printf(a, "aten.%s", c->name + 6) : c->name;
    c->row = strncmp(c->name, "aten.", 5) ? aten_find(c->name) : NULL;
    if (!c->row && !strncmp(name, "aten.", 5))
        c->row = aten_find(name + 5);
    c->op = c->row ? NULL : aten_alias(name);
}

/* Whether the results are views. */
static bool shows(const Callee *c)
{
    return c->row ? strstr(c->row->schema, "Tensor(a)") != NULL : c->op && c->op->view;
}

static Callee callee(Arena *a, const char *s)
{
    Callee c = {.name = strncmp(s, "torch.ops.", 10) ? s : s + 10};
    const char *dot = strchr(c.name, '.');
    if (c.name != s && dot && !strchr(dot + 1, '.'))
        c.name = arena_printf(a, "%s.default", c.name);
    if (c.name == s)
        return c;
    look_up(a, &c);
    if (!c.row && !c.op && functional(a, c.name)) {
        c.name = functional(a, c.name);
        c.in_place = true;
        look_up(a, &c);
    }
    if (!c.row && !c.op && viewing(a, c.name)) {
        Callee view = {.name = viewing(a, c.name), .in_place = c.in_place, .copied = true};
        look_up(a, &view);
        if (shows(&view))
            return view;
    }
    const char *name = c.row || c.op ? NULL : returning(a, c.name);
    if (name) {
        Callee plain = {.name = name, .out = true};
        look_up(a, &plain);
        c = plain.op || (plain.row && plain.row->lower) ? plain : c;
    }
    return c;
}

/* Marks of PyTorch's profiler: they give nothing and mean nothing. */
static bool only_marks(const Callee *c)
{
    return !strncmp(c->name, "profiler._record_function_", 26);
}

const char *fx_call_unknown(Arena *a, const char *s)
{
    Callee c = callee(a, s);
    if (c.row && !c.row->lower)
        return c.row->schema;
    if (c.row || c.op || only_marks(&c))
        return NULL;
    const char *what = fx_foreign_call(s);
    if (what)
        return arena_strndup(a, what, strcspn(what, "\n"));
    const char *near = aten_nearest(a, c.name);
    return near ? arena_printf(a, "the nearest is %s", near) : "nothing is near";
}

/* ---- an op by its alias ---- */

static void fill_attr(Site *s, const AttrField *f, AttrArg *to, const Item *x)
{
    int64_t *ints = NEWN(s->im->a, int64_t, x->count + 1); /* the op knows how many it takes */
    bool number = x->kind == FX_INT || x->kind == FX_BOOL;
    *to = (AttrArg){f->name, f->kind, {.i = x->i, .f = x->f, .s = x->s, .ints = ints}};
    switch (f->kind) {
    case ATTR_INT:
    case ATTR_BOOL:
        if (number)
            return;
        break;
    case ATTR_FLOAT:
        if (number || x->kind == FX_FLOAT)
            return;
        break;
    case ATTR_STR:
        if (x->kind == FX_STRING)
            return;
        break;
    case ATTR_DTYPE:
        to->a.i = x->kind == FX_WORD ? torch_dtype(x->s) : -1;
        if (to->a.i >= 0)
            return;
        break;
    case ATTR_INTS:
        to->a.i = number ? 1 : x->count;
        ints[0] = x->i;
        if (!number && x->kind != FX_LIST)
            break;
        for (int i = 0; i < x->count; i++) {
            if (x->item[i].kind != FX_INT)
                site_fail(s, "argument %s: expected integers", f->name);
            ints[i] = x->item[i].i;
        }
        return;
    default: break;
    }
    site_fail(s, "argument %s: found another kind of value than the op %s takes", f->name,
              s->result.s);
}

/* Keywords that have no meaning for values. */
static bool ignorable(const char *key)
{
    static const char *const keys[] = {"layout", "device", "pin_memory", "memory_format",
                                       "non_blocking"};
    for (int i = 0; key && i < LEN(keys); i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

static int add_operands(Site *s, const Item **operand, int n, const Item *x)
{
    int count = x->kind == FX_TENSOR ? 1 : x->count;
    const Item *item = x->kind == FX_TENSOR ? x : x->item;
    for (int i = 0; i < count; i++) {
        if (n == FX_MAX_ARG || item[i].kind != FX_TENSOR)
            site_fail(s, "expected at most %d tensors", FX_MAX_ARG);
        operand[n++] = &item[i];
    }
    return n;
}

static bool has_tensors(const Item *x)
{
    return x->kind == FX_TENSOR || (x->kind == FX_LIST && x->count && x->item[0].kind == FX_TENSOR);
}

static void lower_op(Site *s, const Op *op, const Expr *call, const Item *arg)
{
    const AttrField *f = op_attrs(op);
    AttrArg attr[TN_MAX_ATTR + 1] = {0};
    const Item *operand[FX_MAX_ARG];
    Value *in[FX_MAX_ARG];
    int n = 0, nattr = 0, next = 0;
    s->result.s = op->name;
    for (int i = 0; i < call->count; i++) {
        if (arg[i].kind == FX_SELECTED)
            site_fail(s, "argument %d: expected a tensor, found %s", i, item_text(&arg[i]));
        if (has_tensors(&arg[i])) {
            n = add_operands(s, operand, n, &arg[i]);
        } else if (!ignorable(call->key[i])) {
            int k = call->key[i] ? attr_index(op, call->key[i]) : next++;
            if (k < 0 || k >= op_nattr(op))
                site_fail(s, "argument %d is one more than the op %s takes", i, op->name);
            if (arg[i].kind != FX_NONE)
                fill_attr(s, &f[k], &attr[nattr++], &arg[i]);
        }
    }
    s->viewed = op->view && n == 1 && !s->copied;
    if (n)
        s->arg[0] = *operand[0];
    bool mixed = op->class == CLASS_POINTWISE && n > 1;
    DType d = mixed ? result_type(s, n, operand) : NDTYPE;
    for (int i = 0; i < n; i++)
        in[i] = mixed       ? promoted(s, operand[i], d)
                : s->viewed ? fx_peek(s->im, operand[i]->t)
                            : fx_read(s->im, operand[i]->t);
    Node *node = emit(s->b, op->name, n, in, attr);
    if (node->nout == 1)
        site_return(s, node->out[0]);
    else
        site_return_all(s, node);
}

/* ---- in place ---- */

static void write_item(Site *s, const Item *self, const Item *result)
{
    if (self->kind != FX_TENSOR || result->kind != FX_TENSOR)
        site_fail(s, "cannot be done in place here: it changes more than values");
    const Type *t = &self->t->type;
    Value *v = result->t->v;
    if (v == fx_peek(s->im, self->t))
        return; /* nothing was done to it */
    bool keeps = dtype_float(t->dtype) || !dtype_float(v->type.dtype);
    if (!keeps || (t->dtype == BOOL && v->type.dtype != BOOL))
        site_fail(s, "in place: a result of %s cannot be stored in %s", dtype_name(v->type.dtype),
                  dtype_name(t->dtype));
    if (!shape_equal(t, &v->type))
        site_fail(s, "in place: expected a result of %s, found %s", type_text(s->im->a, t),
                  type_text(s->im->a, &v->type));
    fx_write(s->im, self->t, lower_cast(s, v, t->dtype));
}

/* The tensor has another shape, or no gradient, from now on (squeeze_, transpose_, detach_): its
 * names stand for the view. */
static void rename_all(Importer *im, const FxTensor *old, FxTensor *t)
{
    for (int i = 0; i < im->names.env.cap; i++) {
        const char *name = im->names.env.key[i];
        Item *x = name && strncmp(name, "input ", 6) ? im->names.env.val[i] : NULL;
        if (x && x->kind == FX_TENSOR && x->t == old)
            x->t = t;
    }
}

/* A list of lists is written to the arguments: the first to the first, the second to the second. */
static void write_back(Site *s, const Item *self)
{
    const Item *result = &s->result;
    if (s->viewed) {
        if (self->kind != FX_TENSOR || result->kind != FX_TENSOR)
            site_fail(s, "cannot be done in place here: it changes more than values");
        rename_all(s->im, self->t, result->t);
        return;
    }
    if (self->kind == FX_LIST && result->kind == FX_LIST) {
        bool lists = result->count && result->item[0].kind == FX_LIST;
        for (int k = 0; k < result->count; k++)
            for (int i = 0; lists && i < result->item[k].count; i++)
                write_item(s, &s->arg[k].item[i], &result->item[k].item[i]);
        for (int i = 0; !lists && i < result->count; i++)
            write_item(s, &self->item[i], &result->item[i]);
    } else {
        write_item(s, self, result);
    }
    s->result = *self;
}

/* A factory that takes no memory format. */
static bool makes_row_major(const AtenRow *row)
{
    return strstr(row->schema, "Layout? layout") && !strstr(row->schema, "MemoryFormat") &&
           !strstr(row->schema, "stride") && !strstr(row->schema, "physical");
}

/* Whether ATen's results of such a call lie row by row if its tensors do. */
static bool keeps_rows(const char *name)
{
    static const char *const others[] = {
        "einsum", "attention", "rot90",  "linalg", "cholesky", "solve",     "triangular", "inverse",
        "fft",    "tensordot", "matmul", "kron",   "unsafe",   "multi_dot", "lstsq"};
    for (int i = 0; i < LEN(others); i++)
        if (strstr(name, others[i]))
            return false;
    return true;
}

static bool all_rows(const Item *x, int count)
{
    for (int i = 0; i < count; i++)
        if (x[i].kind == FX_TENSOR ? !fx_row_major(x[i].t)
                                   : x[i].kind == FX_LIST && !all_rows(x[i].item, x[i].count))
            return false;
    return true;
}

/* Results that have memory of their own. */
static void set_rows(Importer *im, const Item *x)
{
    if (x->kind == FX_TENSOR && !x->t->base && !x->t->stride)
        fx_set_row_major(im, x->t);
    for (int i = 0; x->kind == FX_LIST && i < x->count; i++)
        set_rows(im, &x->item[i]);
}

static void lower(Site *s, const Callee *c, const Expr *call, const Item *arg)
{
    if (c->row) {
        site_bind(s, call, arg);
        c->row->lower(s);
        if (makes_row_major(c->row) && s->result.kind == FX_TENSOR)
            fx_set_row_major(s->im, s->result.t);
    } else {
        lower_op(s, c->op, call, arg);
    }
    if (keeps_rows(c->name) && all_rows(arg, call->count))
        set_rows(s->im, &s->result);
}

/* The call without its argument `out`, which is given back. */
static Item take_out(Site *s, Expr *call, Item *arg)
{
    for (int i = 0; i < call->count; i++) {
        if (!call->key[i] || strcmp(call->key[i], "out") != 0)
            continue;
        Item out = arg[i];
        call->count--;
        for (int k = i; k < call->count; k++) {
            call->key[k] = call->key[k + 1];
            arg[k] = arg[k + 1];
        }
        return out;
    }
    site_fail(s, "argument out is missing");
}

static void write_out(Site *s, const Callee *c, const Expr *call, const Item *arg)
{
    Expr plain = *call;
    Item *rest = NEWN(s->im->a, Item, call->count + 1);
    plain.key = NEWN(s->im->a, const char *, call->count + 1);
    memcpy(rest, arg, sizeof *rest * (size_t)call->count);
    memcpy(plain.key, call->key, sizeof *plain.key * (size_t)call->count);
    Item out = take_out(s, &plain, rest);
    lower(s, c, &plain, rest);
    write_back(s, &out);
}

Item fx_call(Importer *im, const Expr *call, const Item *arg)
{
    Callee c = callee(im->a, call->s);
    Site s = {.im = im, .b = &im->b, .name = c.name, .row = c.row, .copied = c.copied};
    if (only_marks(&c))
        return (Item){.kind = FX_NONE};
    if (c.row && !c.row->lower)
        site_fail(&s, "%s is refused: %s", c.name, c.row->schema);
    if (!c.row && !c.op && im->o->barriers && c.name != call->s)
        return fx_opaque_call(&s, call, arg, c.in_place);
    if (!c.row && !c.op)
        site_fail(&s, "unknown op %s; %s", c.name, fx_call_unknown(im->a, call->s));
    for (int i = 0; i < call->count; i++)
        if (item_complex(&arg[i]))
            return fx_complex_call(&s, call, arg, shows(&c), c.in_place || c.out);
    for (int i = 0; i < call->count; i++)
        if (item_complex_dtype(&arg[i]))
            return fx_complex_of_real(&s, call, arg);
    if (c.out)
        write_out(&s, &c, call, arg);
    else
        lower(&s, &c, call, arg);
    if (c.in_place)
        write_back(&s, &s.arg[0]);
    return s.result;
}
