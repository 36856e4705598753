/* One call of an ATen overload: binds its arguments to the row's schema, which is written as in
 * PyTorch's native_functions.yaml; lowering reads them by name. */
#include "lower.h"

#include <stdlib.h>
#include <string.h>

void site_fail(const Site *s, const char *format, ...)
{
    va_list args;
    char text[600];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(s->im->g->ctx, TN_FAIL, "%s", text);
}

/* ---- the schema ---- */

/* One argument of a schema: "int[]? dim=None" or "Tensor(a!) self". */
typedef struct SchemaField {
    const char *type, *name, *fallback; /* NULL: must be given */
    bool keyword;                       /* only by its name */
} SchemaField;

static int fields(Site *s, SchemaField *f)
{
    Arena *a = s->im->a;
    char *text = arena_strdup(a, s->row->schema), *next;
    bool keyword = false;
    int count = 0;
    for (char *p = text; p && *p; p = next) {
        int depth = 0;
        for (next = p; *next && (*next != ',' || depth); next++)
            depth += (*next == '[' || *next == '(') - (*next == ']' || *next == ')');
        if (*next)
            *next++ = 0;
        p += strspn(p, " ");
        if (!strcmp(p, "*")) {
            keyword = true;
            continue;
        }
        CHECK(count < FX_MAX_ARG);
        char *value = strchr(p, '='), *space;
        if (value)
            *value++ = 0;
        space = strrchr(p, ' ');
        CHECK(space);
        *space = 0;
        f[count++] = (SchemaField){p, space + 1, value, keyword};
        s->viewed |= !s->copied && !strcmp(p, "Tensor(a)");
    }
    return count;
}

/* ---- binding ---- */

const char *item_text(const Item *x)
{
    static const char *const names[] = {
        "None",
        "a bool",
        "an integer",
        "a number",
        "a string",
        "a word",
        "a tensor",
        "a list",
        "what a mask selects, whose shape depends on data",
        "a complex number or tensor",
    };
    return names[x->kind];
}

static bool is_number(const Item *x)
{
    return x->kind == FX_BOOL || x->kind == FX_INT || x->kind == FX_FLOAT;
}

static bool each(const Item *x, bool (*is)(const Item *x, bool none), bool none)
{
    for (int i = 0; i < x->count; i++)
        if (!is(&x->item[i], none))
            return false;
    return x->kind == FX_LIST;
}

static bool is_int(const Item *x, bool none)
{
    (void)none;
    return x->kind == FX_INT || x->kind == FX_BOOL;
}

static bool is_scalar(const Item *x, bool none)
{
    (void)none;
    return is_number(x);
}

static bool is_bool(const Item *x, bool none)
{
    (void)none;
    return x->kind == FX_BOOL;
}

static bool is_tensor(const Item *x, bool none)
{
    return x->kind == FX_TENSOR || (none && x->kind == FX_NONE);
}

/* Whether x is of the schema's type (without a ? at its end). */
static bool fits(const char *type, size_t n, const Item *x)
{
    char word[24];
    snprintf(word, sizeof word, "%.*s", (int)n, type);
    if (!strncmp(word, "Tensor(", 7))
        return x->kind == FX_TENSOR;
    if (!strcmp(word, "Tensor"))
        return x->kind == FX_TENSOR || is_number(x);
    if (!strcmp(word, "Tensor[]") || !strcmp(word, "Tensor?[]"))
        return each(x, is_tensor, word[6] == '?');
    if (!strncmp(word, "int[", 4))
        return x->kind == FX_INT || each(x, is_int, false);
    if (!strcmp(word, "Scalar[]"))
        return each(x, is_scalar, false);
    if (!strncmp(word, "bool[", 5))
        return each(x, is_bool, false);
    if (!strcmp(word, "int"))
        return is_int(x, false);
    if (!strcmp(word, "bool"))
        return x->kind == FX_BOOL;
    if (!strcmp(word, "float") || !strcmp(word, "Scalar"))
        return is_number(x);
    if (!strcmp(word, "str"))
        return x->kind == FX_STRING;
    if (!strcmp(word, "any"))
        return true;
    if (!strcmp(word, "Device") && x->kind == FX_STRING) /* a list of nodes has it without quotes */
        return true;
    return x->kind == FX_WORD; /* ScalarType, Layout, Device, MemoryFormat */
}

static void check_type(const Site *s, const SchemaField *f, const Item *x)
{
    size_t n = strlen(f->type);
    bool optional = f->type[n - 1] == '?';
    bool sums = x->kind == FX_SELECTED && s->row->lower == row_sum;
    if ((x->kind == FX_NONE && optional) || sums)
        return;
    if (!fits(f->type, n - optional, x))
        site_fail(s, "argument %s: expected %s, found %s", f->name, f->type, item_text(x));
}

static Item fallback(Arena *a, const char *text)
{
    char *end;
    if (!strcmp(text, "None"))
        return (Item){.kind = FX_NONE};
    if (!strcmp(text, "True") || !strcmp(text, "False"))
        return (Item){.kind = FX_BOOL, .i = *text == 'T'};
    if (*text == '[') {
        Item list = {.kind = FX_LIST, .item = NEWN(a, Item, strlen(text))};
        for (text++; *text != ']'; text = end + (*end == ','))
            list.item[list.count++] = (Item){.kind = FX_INT, .i = strtoll(text, &end, 10)};
        return list;
    }
    if (strchr("0123456789-", *text)) {
        double x = strtod(text, &end);
        bool whole = !strpbrk(text, ".e");
        return (Item){.kind = whole ? FX_INT : FX_FLOAT, .i = (int64_t)x, .f = x};
    }
    return (Item){.kind = FX_STRING, .s = text};
}

void site_bind(Site *s, const Expr *call, const Item *arg)
{
    SchemaField f[FX_MAX_ARG];
    bool given[FX_MAX_ARG] = {0};
    s->narg = fields(s, f);
    for (int i = 0; i < call->count; i++) {
        int k = i;
        const char *key = call->key[i];
        for (k = key ? 0 : k; key && k < s->narg && strcmp(f[k].name, key); k++)
            ;
        if (k >= s->narg || (!key && f[k].keyword))
            site_fail(s, key ? "unknown argument %s" : "takes fewer arguments%s", key ? key : "");
        if (given[k])
            site_fail(s, "argument %s is given twice", f[k].name);
        given[k] = true;
        check_type(s, &f[k], &arg[i]);
        s->arg[k] = arg[i];
    }
    for (int k = 0; k < s->narg; k++) {
        s->arg_name[k] = f[k].name;
        s->arg_keyword[k] = f[k].keyword;
        if (!given[k] && !f[k].fallback)
            site_fail(s, "argument %s is missing", f[k].name);
        if (!given[k])
            s->arg[k] = fallback(s->im->a, f[k].fallback);
    }
}

/* ---- reading arguments ---- */

const char *site_stem(Site *s)
{
    const char *name = s->row->name;
    return arena_strndup(s->im->a, name, strcspn(name, "."));
}

const Item *site_arg(const Site *s, const char *name)
{
    for (int k = 0; k < s->narg; k++)
        if (!strcmp(s->arg_name[k], name))
            return &s->arg[k];
    site_fail(s, "the row of %s has no argument %s", s->name, name);
}

bool site_has(const Site *s, const char *name)
{
    return site_arg(s, name)->kind != FX_NONE;
}

Value *site_tensor(Site *s, const char *name)
{
    const Item *x = site_arg(s, name);
    if (x->kind != FX_TENSOR) /* a number where the schema has a tensor */
        return promoted(s, x, result_type(s, 1, &x));
    return s->viewed && x == &s->arg[0] ? fx_peek(s->im, x->t) : fx_read(s->im, x->t);
}

FxTensor *site_storage(const Site *s, const char *name)
{
    const Item *x = site_arg(s, name);
    if (x->kind != FX_TENSOR)
        site_fail(s, "argument %s: expected a tensor, found %s", name, item_text(x));
    return x->t;
}

const Type *site_type(Site *s, const char *name)
{
    return &site_storage(s, name)->type;
}

Value *site_find_tensor(Site *s, const char *name)
{
    return site_has(s, name) ? site_tensor(s, name) : NULL;
}

int64_t site_int(const Site *s, const char *name)
{
    return site_arg(s, name)->i;
}

double site_real(const Site *s, const char *name)
{
    const Item *x = site_arg(s, name);
    return x->kind == FX_BOOL ? (double)x->i : x->f;
}

bool site_bool(const Site *s, const char *name)
{
    return site_arg(s, name)->i != 0;
}

const char *site_text(const Site *s, const char *name)
{
    return site_arg(s, name)->s;
}

int site_ints(const Site *s, const char *name, int64_t *out)
{
    const Item *x = site_arg(s, name);
    if (x->kind == FX_INT) {
        out[0] = x->i;
        return 1;
    }
    if (x->count > TN_RANK)
        site_fail(s, "argument %s: expected at most %d integers, found %d", name, TN_RANK,
                  x->count);
    for (int i = 0; i < x->count; i++)
        out[i] = x->item[i].i;
    return x->count;
}

double site_list_real(const Site *s, const char *name, int count, int k)
{
    const Item *x = site_arg(s, name);
    if (x->count != count)
        site_fail(s, "argument %s: expected %d numbers, found %d", name, count, x->count);
    return x->item[k].kind == FX_FLOAT ? x->item[k].f : (double)x->item[k].i;
}

Value **site_tensors(const Site *s, const char *name, int *count)
{
    const Item *x = site_arg(s, name);
    Value **v = NEWN(s->im->a, Value *, x->count + 1);
    for (int i = 0; i < x->count; i++)
        v[i] = x->item[i].kind == FX_NONE ? NULL : fx_read(s->im, x->item[i].t);
    *count = x->count;
    return v;
}

DType site_dtype(const Site *s, const char *name, DType otherwise)
{
    const Item *x = site_arg(s, name);
    if (x->kind == FX_NONE)
        return otherwise;
    int d = torch_dtype(x->s);
    if (d < 0)
        site_fail(s, "argument %s: dtype %s is not supported", name, x->s);
    return (DType)d;
}

int site_axis(const Site *s, const char *name, int rank)
{
    int64_t d = site_int(s, name), n = MAX(rank, 1);
    if (d < -n || d >= n)
        site_fail(s, "argument %s: expected -%lld to %lld, found %lld", name, (long long)n,
                  (long long)n - 1, (long long)d);
    return (int)(d < 0 ? d + n : d);
}

int64_t site_times(const Site *s, int64_t n, int64_t times)
{
    int64_t all;
    if (__builtin_mul_overflow(n, times, &all))
        site_fail(s, "expected a size below 2^63, found %lld times %lld", (long long)n,
                  (long long)times);
    return all;
}

/* ---- results ---- */

/* A value that has a name already, because nothing was to be done, gets a node of its own, which
 * the gradient passes. */
static Value *own_value(Site *s, Value *v)
{
    bool named = !v->def || v->def->id < s->im->progress.mark;
    if (!named)
        return v;
    return s->viewed ? lower_alias(s, v, "pass") : lower1(s, "clone", v);
}

static Item tensor_item(Site *s, Value *v)
{
    if (!v)
        return (Item){.kind = FX_NONE};
    v = own_value(s, v);
    if (s->im->gradients.off && dtype_float(v->type.dtype))
        v = lower1(s, "detach", fx_waited(s->im, v));
    FxTensor *t = s->viewed ? fx_view(s->im, s->arg[0].t, v) : fx_fresh(s->im, v);
    return (Item){.kind = FX_TENSOR, .t = t};
}

void site_return(Site *s, Value *v)
{
    s->result = tensor_item(s, v);
}

void site_return_list(Site *s, int count, Value *const *v)
{
    s->result = (Item){.kind = FX_LIST, .count = count, .item = NEWN(s->im->a, Item, count)};
    for (int i = 0; i < count; i++)
        s->result.item[i] = tensor_item(s, v[i]);
}

void site_return_views(Site *s, const Item *list, Value *const *v)
{
    const Item first = s->arg[0], all = *list; /* which may be the first argument */
    s->viewed = !s->copied;
    s->result = (Item){.kind = FX_LIST, .count = all.count};
    s->result.item = NEWN(s->im->a, Item, all.count + 1);
    for (int i = 0; i < all.count; i++) {
        s->arg[0] = all.item[i];
        s->result.item[i] = tensor_item(s, v[i]);
    }
    s->arg[0] = first;
}

void site_return_all(Site *s, Node *n)
{
    site_return_list(s, n->nout, n->out);
}
