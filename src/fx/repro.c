/* Repro files, as PyTorch writes them to be attached to a report (torch._dynamo.repro.after_aot):
 *
 *   class Repro(torch.nn.Module):      __init__, and forward, which is the graph
 *   def load_args(reader):             a call of the reader for each input, in their order:
 *       buf0 = reader.storage(None, 32, device=..., dtype_hint=torch.bfloat16)
 *       reader.tensor(buf0, (2, 4), (1, 2), dtype=torch.bfloat16, is_leaf=True)  # primals_1
 *       reader.symint(8)               # primals_2
 *   def get_pg_config():               process groups, or a call of setup_fake_process_groups
 *       return {'0': {'size': 32, 'rank': 0}}
 *
 * A part ends before the next line that begins with neither a space nor a comment. All else in the
 * file is Python that runs the graph, and is not read. Linear in the file. */
#include "fx.h"

#include <string.h>

/* ---- parts ---- */

static bool begins(const char *line, const char *s)
{
    return !strncmp(line, s, strlen(s));
}

static const char *next_line(const char *s)
{
    s += strcspn(s, "\n");
    return *s ? s + 1 : s;
}

/* The line that begins with `head`, and those up to the next that is not inside of it. */
static FxPart find_part(Arena *a, const char *text, const char *head)
{
    int line = 1;
    const char *s = text;
    for (; *s && !begins(s, head); s = next_line(s))
        line++;
    if (!*s)
        return (FxPart){0};
    const char *end = next_line(s);
    while (*end && strchr(" \t\r\n#", *end))
        end = next_line(end);
    return (FxPart){arena_strndup(a, s, (size_t)(end - s)), line};
}

FxPart fx_repro_forward(Arena *a, const char *text)
{
    FxPart p = find_part(a, text, "class Repro(");
    for (const char *s = p.text; s && *s; s = next_line(s), p.line++)
        if (begins(s + strspn(s, " \t"), "def forward("))
            return (FxPart){s, p.line};
    return (FxPart){0};
}

/* ---- inputs ---- */

typedef struct Loader {
    Arena *a;
    PyLexer x;
    FxModule *m;
    int count; /* inputs so far */
} Loader;

static _Noreturn void refuse(const Loader *l, const Expr *e, const char *expected)
{
    PyToken t = {.line = e->line, .column = e->column};
    py_fail(&l->x, &t, "load_args: expected %s", expected);
}

/* The argument by its keyword, or by its place where that is not negative; NULL where neither is.
 */
static const Expr *find_argument(const Expr *call, const char *key, int place)
{
    for (int i = 0; i < call->count; i++)
        if (call->key[i] ? !strcmp(call->key[i], key) : i == place)
            return call->item[i];
    return NULL;
}

/* Fills at most `most` numbers from a tuple; returns how many. */
static int read_numbers(const Loader *l, const Expr *e, int most, int64_t *to)
{
    if (e->kind != EX_LIST || e->count > most)
        refuse(l, e, arena_printf(l->a, "a tuple of at most %d numbers", most));
    for (int i = 0; i < e->count; i++) {
        if (e->item[i]->kind != EX_INT || e->item[i]->i < 0)
            refuse(l, e->item[i], "a number, found a size that depends on data or is left open");
        to[i] = e->item[i]->i;
    }
    return e->count;
}

static void read_dtype(const Loader *l, const Expr *e, Annotation *y)
{
    bool complex = false;
    int dtype = !e ? F32 : e->kind == EX_NAME ? annotation_dtype(e->s, &complex) : -1;
    y->known = dtype >= 0;
    if (!y->known) {
        y->other = e->kind == EX_NAME ? e->s : "of no dtype";
        return;
    }
    y->type.dtype = (DType)dtype;
    if (complex && !annotation_pairs(y))
        refuse(l, e, arena_printf(l->a, "at most %d axes of a complex tensor", TN_RANK - 1));
}

static Annotation read_tensor(const Loader *l, const Expr *call)
{
    Annotation y = {0};
    const Expr *shape = find_argument(call, "shape", 1), *stride = find_argument(call, "stride", 2);
    if (!shape)
        refuse(l, call, "reader.tensor(storage, shape, ...)");
    y.type.rank = read_numbers(l, shape, TN_RANK, y.type.dim);
    if (stride && stride->kind != EX_NONE) {
        if (read_numbers(l, stride, TN_RANK, y.stride) != y.type.rank)
            refuse(l, stride, "as many strides as sizes");
        y.has_stride = true;
    }
    read_dtype(l, find_argument(call, "dtype", -1), &y);
    return y;
}

/* The input that the comment behind the call names, else the next. */
static FxInput *input_of(Loader *l, const Expr *call)
{
    size_t n = strcspn(l->x.remark, ", \t");
    int k = l->count++;
    for (int i = 0; i < l->m->nin && n; i++)
        if (strlen(l->m->in[i].name) == n && !strncmp(l->m->in[i].name, l->x.remark, n))
            return &l->m->in[i];
    if (k >= l->m->nin)
        refuse(l, call, arena_printf(l->a, "%d inputs as forward has, found more", l->m->nin));
    return &l->m->in[k];
}

static void give(const Loader *l, FxInput *in, Item x)
{
    Item *item = NEW(l->a, Item);
    *item = x;
    in->given = item;
}

static void read_call(Loader *l, const Expr *e)
{
    if (!strcmp(e->s, "reader.storage"))
        return;
    const Expr *first = e->count ? e->item[0] : NULL;
    if (!strcmp(e->s, "reader.tensor")) {
        Annotation said = read_tensor(l, e);
        FxInput *in = input_of(l, e);
        if (!in->annotation.known)
            in->annotation = said;
    } else if (!strcmp(e->s, "reader.symint") && first && first->kind == EX_INT) {
        give(l, input_of(l, e), item_int(first->i));
    } else if (!strcmp(e->s, "reader.const")) {
        give(l, input_of(l, e), (Item){.kind = FX_NONE});
    } else {
        refuse(l, e, "a call of reader.storage, tensor, symint or const");
    }
}

/* `def NAME(...):` */
static void skip_signature(PyLexer *x)
{
    while (!py_at(x, ":") && x->t.kind != PY_END)
        py_next(x);
    py_need(x, ":");
    py_skip_lines(x);
}

static void read_inputs(Loader *l)
{
    PyLexer *x = &l->x;
    for (skip_signature(x); x->t.kind != PY_END; py_end_line(x)) {
        x->remark = "";
        Expr *e = py_tuple(x);
        if (py_take(x, "="))
            e = py_tuple(x);
        if (e->kind != EX_CALL)
            refuse(l, e, "a call of the reader");
        read_call(l, e);
    }
}

/* ---- groups ---- */

static const Expr *number_of(const Expr *group, const char *key)
{
    for (int i = 0; i < group->count; i++)
        if (group->kind == EX_LIST && group->key[i] && !strcmp(group->key[i], key) &&
            group->item[i]->kind == EX_INT)
            return group->item[i];
    return NULL;
}

static void read_group(const PyLexer *x, FxModule *m, const char *name, const Expr *e)
{
    const Expr *size = number_of(e, "size"), *rank = number_of(e, "rank");
    PyToken t = {.line = e->line, .column = e->column};
    if (!name || !size || !rank || size->i < 1 || rank->i < 0 || rank->i >= size->i)
        py_fail(x, &t, "process groups: expected 'NAME': {'size': N, 'rank': R}, R below N");
    FxGroup g = {name, size->i, rank->i};
    PUSH(x->a, m->group, m->ngroup, m->capgroup, g);
}

static void read_groups(PyLexer *x, FxModule *m)
{
    Expr *e = py_expression(x);
    PyToken t = {.line = e->line, .column = e->column};
    if (e->kind != EX_LIST)
        py_fail(x, &t, "process groups: expected {'NAME': {'size': N, 'rank': R}, ...}");
    for (int i = 0; i < e->count; i++)
        read_group(x, m, e->key[i], e->item[i]);
}

/* Goes past what stands before `name`; whether it stands there. */
static bool skip_to(PyLexer *x, const char *name)
{
    while (!py_at(x, name) && x->t.kind != PY_END)
        py_next(x);
    return py_take(x, name);
}

static void find_groups(Arena *a, const char *text, FxModule *m)
{
    PyLexer x;
    FxPart p = find_part(a, text, "def get_pg_config(");
    bool config = p.text != NULL;
    if (!config)
        p = find_part(a, text, "if __name__ ==");
    if (!p.text || (!config && !strstr(p.text, "setup_fake_process_groups(")))
        return;
    py_start(&x, a, p.text, m->file, p.line);
    if (config ? skip_to(&x, "return")
               : skip_to(&x, "setup_fake_process_groups") && py_take(&x, "("))
        read_groups(&x, m);
}

void fx_repro_fill(Arena *a, const char *text, FxModule *m)
{
    FxPart p = find_part(a, text, "def load_args(");
    Loader l = {.a = a, .m = m};
    if (p.text) {
        py_start(&l.x, a, p.text, m->file, p.line);
        read_inputs(&l);
    }
    find_groups(a, text, m);
}
