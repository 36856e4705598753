/* Interprets a module's code statement by statement over items (numbers, words, tensors, lists of
 * these) and builds the graph: calls become nodes (call.c), everything else is evaluated here. A
 * node's result has the name of the variable that it is assigned to; other nodes of a call are
 * named NAME.OP, results of a tuple NAME.0, NAME.1 until a getitem names them. */
#include "fx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- expressions ---- */

Item *fx_find(const Importer *im, const char *name)
{
    return map_find(&im->names.env, name);
}

static Item number_item(double x, bool whole)
{
    if (whole && fabs(x) < 0x1p53)
        return (Item){.kind = FX_INT, .i = (int64_t)x, .f = x};
    return (Item){.kind = FX_FLOAT, .f = x};
}

static Item name_item(Importer *im, const Expr *e)
{
    static const struct Constant {
        const char *name;
        double x;
    } constants[] = {{"inf", INFINITY},  {"nan", NAN},           {"torch.inf", INFINITY},
                     {"torch.nan", NAN}, {"math.inf", INFINITY}, {"math.nan", NAN}};
    const Item *x = fx_find(im, e->s);
    if (x)
        return *x;
    for (int i = 0; i < LEN(constants); i++)
        if (!strcmp(e->s, constants[i].name))
            return (Item){.kind = FX_FLOAT, .f = constants[i].x};
    if (!strncmp(e->s, "torch.", 6))
        return (Item){.kind = FX_WORD, .s = e->s};
    const char **names = NEWN(im->a, const char *, im->names.env.count + 1);
    int n = 0;
    for (int i = 0; i < im->names.env.cap; i++)
        if (im->names.env.key[i])
            names[n++] = im->names.env.key[i];
    const char *near = nearest(e->s, names, n);
    fail(im->g->ctx, TN_FAIL, "nothing is named \"%s\"%s%s%s", e->s,
         near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

static Item self_item(Importer *im, const Expr *e)
{
    const Item *x = fx_find(im, arena_printf(im->a, "self.%s", e->s));
    if (!x)
        fail(im->g->ctx, TN_FAIL, "self.%s is not known", e->s);
    return *x;
}

static Item call_named(Importer *im, const char *name, int n, const Item *arg, const char **key)
{
    Expr call = {.kind = EX_CALL, .s = name, .count = n, .key = key};
    return fx_call(im, &call, arg);
}

/* Element i of a list, or of the first axis of a tensor. */
static Item index_item(Importer *im, const Item *base, const Item *index)
{
    const char *none[3] = {0};
    if (index->kind != FX_INT)
        fail(im->g->ctx, TN_FAIL, "an index must be an integer");
    if (base->kind == FX_TENSOR) {
        Item arg[] = {*base, {.kind = FX_INT}, *index};
        return call_named(im, "torch.ops.aten.select.int", 3, arg, none);
    }
    int64_t i = index->i < 0 ? index->i + base->count : index->i;
    if (base->kind != FX_LIST || i < 0 || i >= base->count)
        fail(im->g->ctx, TN_FAIL, "index %lld: expected below %d", (long long)index->i,
             base->kind == FX_LIST ? base->count : 0);
    return base->item[i];
}

static bool is_number(const Item *x)
{
    return x->kind == FX_BOOL || x->kind == FX_INT || x->kind == FX_FLOAT;
}

static Item arithmetic(Importer *im, const char *op, const Item *x, const Item *y)
{
    double a = x->kind == FX_FLOAT ? x->f : (double)x->i;
    double b = y->kind == FX_FLOAT ? y->f : (double)y->i;
    bool whole = x->kind != FX_FLOAT && y->kind != FX_FLOAT;
    if (!strcmp(op, "add"))
        return number_item(a + b, whole);
    if (!strcmp(op, "sub"))
        return number_item(a - b, whole);
    if (!strcmp(op, "mul"))
        return number_item(a * b, whole);
    if (!strcmp(op, "truediv") && b != 0)
        return number_item(a / b, false);
    if (!strcmp(op, "floordiv") && b != 0)
        return number_item(floor(a / b), whole);
    if (!strcmp(op, "pow"))
        return number_item(pow(a, b), whole && b >= 0);
    if (!strcmp(op, "neg"))
        return number_item(-a, x->kind != FX_FLOAT);
    fail(im->g->ctx, TN_FAIL, "operator.%s of numbers is not supported", op);
}

/* operator.X, and the infix form: of numbers here, of tensors by an ATen overload. */
static Item operate(Importer *im, const char *op, int n, const Item *arg)
{
    const char *none[3] = {0};
    static const char *const names[][2] = {{"truediv", "div"},
                                           {"floordiv", "floor_divide"},
                                           {"and_", "bitwise_and"},
                                           {"or_", "bitwise_or"}};
    if (n < 1 || n > 2)
        fail(im->g->ctx, TN_FAIL, "operator.%s: expected one or two arguments", op);
    if (!strcmp(op, "getitem") && n == 2)
        return index_item(im, &arg[0], &arg[1]);
    if (is_number(&arg[0]) && is_number(&arg[n - 1]))
        return arithmetic(im, op, &arg[0], &arg[n - 1]);
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(op, names[i][0]))
            op = names[i][1];
    const char *overload = "Tensor"; /* takes numbers too */
    if (!strcmp(op, "neg") || !strcmp(op, "matmul") || !strcmp(op, "floor_divide"))
        overload = "default";
    else if (!strcmp(op, "pow"))
        overload = is_number(&arg[0])   ? "Scalar"
                   : is_number(&arg[1]) ? "Tensor_Scalar"
                                        : "Tensor_Tensor";
    return call_named(im, arena_printf(im->a, "torch.ops.aten.%s.%s", op, overload), n, arg, none);
}

static Item call_item(Importer *im, const Expr *e)
{
    if (fx_is_flex(e))
        return fx_flex(im, e);
    Item *arg = NEWN(im->a, Item, e->count + 1);
    for (int i = 0; i < e->count; i++)
        arg[i] = fx_evaluate(im, e->item[i]);
    const char *op = !strncmp(e->s, "operator.", 9)     ? e->s + 9
                     : !strncmp(e->s, "_operator.", 10) ? e->s + 10
                                                        : NULL;
    if (op)
        return operate(im, op, e->count, arg);
    if (!strcmp(e->s, FX_SET_GRAD) && e->count == 1 && arg[0].kind == FX_BOOL) {
        im->gradients.off = !arg[0].i;
        return (Item){.kind = FX_NONE};
    }
    if (!strcmp(e->s, "device") || !strcmp(e->s, "torch.device"))
        return (Item){.kind = FX_WORD, .s = "device"};
    if (!strcmp(e->s, "complex"))
        return fx_complex_number(im, e->count, arg);
    if (fx_named_tuple(e->s))
        return (Item){.kind = FX_LIST, .count = e->count, .item = arg};
    if (!strcmp(e->s, "float") && e->count == 1 && arg[0].kind == FX_STRING) {
        char *end;
        double x = strtod(arg[0].s, &end);
        if (end == arg[0].s || *end)
            fail(im->g->ctx, TN_FAIL, "float: expected a number, found \"%s\"", arg[0].s);
        return (Item){.kind = FX_FLOAT, .f = x};
    }
    return fx_call(im, e, arg);
}

static Item list_item(Importer *im, const Expr *e)
{
    Item x = {.kind = FX_LIST, .count = e->count, .item = NEWN(im->a, Item, e->count)};
    for (int i = 0; i < e->count; i++)
        x.item[i] = fx_evaluate(im, e->item[i]);
    return x;
}

Item fx_evaluate(Importer *im, const Expr *e)
{
    switch (e->kind) {
    case EX_NONE: return (Item){.kind = FX_NONE};
    case EX_BOOL: return (Item){.kind = FX_BOOL, .i = e->i, .f = (double)e->i};
    case EX_INT: return (Item){.kind = FX_INT, .i = e->i, .f = e->f};
    case EX_FLOAT: return (Item){.kind = FX_FLOAT, .f = e->f};
    case EX_STRING: return (Item){.kind = FX_STRING, .s = e->s};
    case EX_NAME: return name_item(im, e);
    case EX_SELF: return self_item(im, e);
    case EX_LIST: return list_item(im, e);
    case EX_CALL: return call_item(im, e);
    case EX_MODULE: fail(im->g->ctx, TN_FAIL, "module %s is not called here", e->module->name);
    default: {
        Item base = fx_evaluate(im, e->item[0]), index = fx_evaluate(im, e->item[1]);
        return index_item(im, &base, &index);
    }
    }
}

/* ---- names ---- */

static bool own_name(const Value *v)
{
    return !v->def || !strchr(v->name, '.');
}

static void give_name(Importer *im, Value *v, const char *name)
{
    if (!own_name(v))
        value_rename(im->g, v, graph_fresh(im->g, name));
}

void fx_name_nodes(Importer *im, const char *target)
{
    for (Node *n = im->g->last; n && n->id >= im->progress.mark; n = n->prev) {
        while (im->progress.nmade <= n->id)
            PUSH(im->a, im->progress.made_by, im->progress.nmade, im->progress.capmade, NULL);
        im->progress.made_by[n->id] = im->progress.at;
        n->line = im->progress.at->line;
        n->column = im->progress.at->column;
        for (int k = 0; k < n->nout; k++) {
            const char *name = arena_printf(im->a, "%s.%s", target, n->op->name);
            value_rename(im->g, n->out[k], graph_fresh(im->g, name));
        }
    }
}

void fx_name_item(Importer *im, const Item *x, const char *name)
{
    if (x->kind == FX_TENSOR)
        give_name(im, x->t->v, name);
    for (int i = 0; x->kind == FX_COMPLEX && i < 2; i++)
        if (x->item[i].kind == FX_TENSOR)
            give_name(im, x->item[i].t->v, arena_printf(im->a, "%s.%s", name, i ? "imag" : "real"));
    for (int i = 0; x->kind == FX_LIST && i < x->count; i++)
        if (x->item[i].kind == FX_TENSOR && x->item[i].t->v->def && !own_name(x->item[i].t->v))
            value_rename(im->g, x->item[i].t->v,
                         graph_fresh(im->g, arena_printf(im->a, "%s.%d", name, i)));
}

static void check_annotation(Importer *im, const Annotation *a, const Item *x, const char *name)
{
    Type t;
    if (a->other && x->kind == FX_TENSOR)
        fail(im->g->ctx, TN_FAIL, "%s is annotated %s: that dtype is not supported", name,
             a->other);
    bool pairs = fx_pairs_type(x, &t);
    if (!a->known || (x->kind != FX_TENSOR && !pairs))
        return;
    if (!pairs)
        t = x->t->type;
    if (!type_equal(&a->type, &t) || a->complex != pairs)
        fail(im->g->ctx, TN_FAIL, "%s is annotated %s%s, found %s%s", name,
             a->complex ? "complex, pairs " : "", type_text(im->a, &a->type),
             pairs ? "complex, pairs " : "", type_text(im->a, &t));
    if (a->has_stride && !pairs)
        fx_set_strides(im, x->t, a->stride);
}

/* Whether x is of t's dtype and rank, and no smaller on any axis. */
static bool covers(const Type *x, const Type *t)
{
    bool fits = x->dtype == t->dtype && x->rank == t->rank;
    for (int d = 0; fits && d < t->rank; d++)
        fits = t->dim[d] <= x->dim[d];
    return fits;
}

static Value *first_part(Importer *im, Value *v, const Type *t)
{
    for (int d = 0; d < t->rank; d++)
        v = emit1(&im->b, "slice", IN(v), ATTRS(A_INT("dim", d), A_INT("end", t->dim[d])));
    return v;
}

/* Believes the annotation about a result that ATen may keep or not, or of which it keeps as much as
 * data says, and about what depends on the device. */
static void fit_annotation(Importer *im, const Annotation *a, Item *x)
{
    const Type *t = &a->type;
    if (!a->known || x->kind != FX_TENSOR)
        return;
    if (x->t->elsewhere && t->dtype == x->t->elsewhere->type.dtype)
        x->t = x->t->elsewhere;
    if (x->t->optional && type_nelem(t) == 0 && t->dtype == x->t->type.dtype)
        x->t = fx_fresh(im, emit1(&im->b, "full", 0, NULL,
                                  ATTRS(A_INTS("size", t->rank, t->dim), A_FLOAT("fill_value", 0),
                                        A_DTYPE("dtype", t->dtype))));
    else if (x->t->optional && covers(&x->t->type, t) && !type_equal(&x->t->type, t))
        x->t = fx_fresh(im, first_part(im, fx_read(im, x->t), t));
}

/* ---- statements ---- */

void fx_assign(Importer *im, const char *name, const Item *x)
{
    Item *copy = NEW(im->a, Item);
    *copy = *x;
    map_put(&im->names.env, name, copy);
}

static void unpack(Importer *im, const FxStatement *s, const Item *x)
{
    if (x->kind != FX_LIST || x->count != s->ntarget)
        fail(im->g->ctx, TN_FAIL, "expected %d values to unpack, found %d", s->ntarget,
             x->kind == FX_LIST ? x->count : 1);
    for (int i = 0; i < s->ntarget; i++) {
        fx_name_item(im, &x->item[i], s->target[i]);
        fx_assign(im, s->target[i], &x->item[i]);
    }
}

static void run(void *arg)
{
    Importer *im = arg;
    const FxStatement *s = im->progress.at;
    if (!s->value)
        return;
    Item x = fx_evaluate(im, s->value);
    fit_annotation(im, &s->annotation, &x);
    fx_name_nodes(im, s->ntarget ? s->target[0] : "unnamed");
    if (s->unpack) {
        unpack(im, s, &x);
        return;
    }
    for (int i = 0; i < s->ntarget; i++) {
        fx_name_item(im, &x, s->target[i]);
        check_annotation(im, &s->annotation, &x, s->target[i]);
        fx_assign(im, s->target[i], &x);
    }
}

/* The name that the statement calls, for messages. */
static const char *called(const Expr *e)
{
    if (e && e->kind == EX_CALL)
        return strncmp(e->s, "torch.ops.", 10) ? e->s : e->s + 10;
    return NULL;
}

/* Runs fn; its error gets the place in the file before it. */
static void at_place(Importer *im, void (*fn)(void *), const FxStatement *s)
{
    im->progress.at = s;
    im->progress.mark = im->g->nnode;
    if (!ctx_try(im->g->ctx, fn, im))
        return;
    const char *what = called(s->value);
    if (what && !strstr(im->g->ctx->message, what))
        fail_again(im->g->ctx,
                   arena_printf(im->a, "%s:%d:%d: %s: ", im->m->file, s->line, s->column, what));
    fail_again(im->g->ctx, arena_printf(im->a, "%s:%d:%d: ", im->m->file, s->line, s->column));
}

static void finish(void *arg)
{
    Importer *im = arg;
    Item x = fx_evaluate(im, im->m->result);
    fx_add_results(im, &x);
    fx_name_nodes(im, "result");
}

static Importer start_import(Arena *a, const char *text, const char *file, const FxOptions *o)
{
    Importer im = {.a = a,
                   .m = fx_parse(a, text, file, symbols_bind(a, text, file, o)),
                   .o = o,
                   .g = graph_new(a, "forward")};
    im.g->file = file;
    im.b = (Build){.g = im.g};
    im.names.env.a = im.names.known.a = im.names.used.a = a;
    im.groups.wait.a = im.groups.known.a = im.groups.names.a = im.summary.a = a;
    buf_add(&im.summary, "");
    im.gradients.alias = o->alias ? o->alias : fx_alias_gradient(im.m);
    return im;
}

static void run_statements(Importer *im)
{
    const FxModule *m = im->m;
    FxStatement *result = NEW(im->a, FxStatement); /* nodes remember who made them */
    *result = (FxStatement){.line = m->result->line, .column = m->result->column};
    for (int i = 0; i < m->nstatement; i++)
        at_place(im, run, &m->statement[i]);
    at_place(im, finish, result);
}

Graph *fx_import(Arena *a, const char *text, const char *file, const FxOptions *o,
                 const char **summary)
{
    Importer im = start_import(a, text, file, o);
    fx_check_calls(a, im.m);
    fx_check_groups(&im);
    fx_find_names(&im);
    fx_add_inputs(&im);
    run_statements(&im);
    fx_check_groups_used(&im);
    fx_finish(&im);
    graph_verify(im.g);
    *summary = im.summary.text;
    return im.g;
}
