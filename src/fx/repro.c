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

static _Noreturn void fail_at(Arena *a, const char *file, int line, const char *message)
{
    fail(arena_ctx(a), TN_FAIL, "%s:%d:1: %s", file, line, message);
}

/* Goes to the next line that begins with `head`, and counts lines; at the end where there is none.
 */
static const char *find_line(const char *s, const char *head, int *line)
{
    for (; *s && !begins(s, head); s = next_line(s))
        ++*line;
    return s;
}

/* The line that begins with `head`, and those up to the next that is not inside of it. */
static FxPart find_part(Arena *a, const char *text, const char *head)
{
    int line = 1;
    const char *s = find_line(text, head, &line);
    if (!*s)
        return (FxPart){0};
    const char *end = next_line(s);
    while (*end && strchr(" \t\r\n#", *end))
        end = next_line(end);
    return (FxPart){arena_strndup(a, s, (size_t)(end - s)), line};
}

/* The same, where the file has it once. */
static FxPart find_one(Arena *a, const char *text, const char *file, const char *head)
{
    FxPart p = find_part(a, text, head);
    int first = 1, another;
    const char *s = find_line(text, head, &first);
    another = first + 1;
    if (*s && *find_line(next_line(s), head, &another))
        fail_at(a, file, another,
                arena_printf(a, "expected one \"%s\" in a file, found another on line %d", head,
                             first));
    return p;
}

FxPart fx_repro_forward(Arena *a, const char *text, const char *file)
{
    FxPart p = find_one(a, text, file, "class Repro(");
    int first = p.line;
    for (const char *s = p.text; s && *s; s = next_line(s), p.line++)
        if (begins(s + strspn(s, " \t"), "def forward("))
            return (FxPart){s, p.line};
    if (p.text)
        fail_at(a, file, first, "class Repro: expected \"def forward(self, ...)\" in it");
    return (FxPart){0};
}

/* ---- inputs ---- */

typedef struct ReproStorage {
    int64_t nbytes; /* -1: not a number */
} ReproStorage;

typedef struct Loader {
    Arena *a;
    PyLexer x;
    FxModule *m;
    Map storage; /* by name, ReproStorage * */
    int *told;   /* by input: the line of the call that is for it; 0: none */
    int count;   /* calls for inputs so far */
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

/* what: "size" or the like. */
static int64_t read_number(const Loader *l, const Expr *e, const char *what)
{
    if (e->kind != EX_INT)
        refuse(l, e,
               arena_printf(l->a, "a number as %s, found one that depends on data or is left open",
                            what));
    if (e->i < 0)
        refuse(l, e, arena_printf(l->a, "a %s of 0 or more, found %lld", what, (long long)e->i));
    return e->i;
}

/* Fills at most TN_RANK numbers from a tuple; returns how many. */
static int read_numbers(const Loader *l, const Expr *e, const char *what, int64_t *to)
{
    if (e->kind != EX_LIST || e->count > TN_RANK)
        refuse(l, e, arena_printf(l->a, "a tuple of at most %d %ss", TN_RANK, what));
    for (int i = 0; i < e->count; i++)
        to[i] = read_number(l, e->item[i], what);
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

/* ---- storages ---- */

/* `NAME = reader.storage(HASH, NBYTES, ...)` */
static void read_storage(Loader *l, const Expr *name, const Expr *call)
{
    const Expr *nbytes = find_argument(call, "nbytes", 1);
    ReproStorage *s = NEW(l->a, ReproStorage);
    if (!name || name->kind != EX_NAME)
        refuse(l, call, "a name for the storage, as in buf0 = reader.storage(...)");
    if (!nbytes)
        refuse(l, call, "reader.storage(hash, nbytes, ...)");
    bool number = nbytes->kind == EX_INT;
    s->nbytes = number ? read_number(l, nbytes, "number of bytes") : -1;
    map_put(&l->storage, name->s, s);
}

/* Bytes up to behind the tensor's last element, INT64_MAX where they are more than that. */
static int64_t end_of(const Annotation *y, int64_t offset)
{
    int64_t last = offset * (y->complex ? 2 : 1), row = 1, nbytes;
    bool beyond = offset > INT64_MAX / 2;
    for (int d = 0; d < y->type.rank; d++)
        if (!y->type.dim[d])
            return 0;
    for (int d = y->type.rank - 1; d >= 0; d--) {
        int64_t stride = y->has_stride ? y->stride[d] : row, more;
        beyond |= __builtin_mul_overflow(y->type.dim[d] - 1, stride, &more) ||
                  __builtin_add_overflow(last, more, &last) ||
                  __builtin_mul_overflow(row, y->type.dim[d], &row);
    }
    beyond |= last == INT64_MAX ||
              __builtin_mul_overflow(last + 1, (int64_t)dtype_size(y->type.dtype), &nbytes);
    return beyond ? INT64_MAX : nbytes;
}

/* Refuses a tensor that goes beyond its storage. A storage of no bytes is one whose memory was
 * given back when the graph was traced, as sharded modules do between uses. */
static void check_storage(const Loader *l, const Expr *call, const Annotation *y)
{
    const Expr *name = find_argument(call, "storage", 0),
               *offset = find_argument(call, "storage_offset", -1);
    const ReproStorage *s = name && name->kind == EX_NAME ? map_find(&l->storage, name->s) : NULL;
    if (!s)
        refuse(l, name ? name : call, "a storage that reader.storage gave before");
    int64_t from = offset ? read_number(l, offset, "storage_offset") : 0;
    int64_t end = y->known ? end_of(y, from) : 0;
    if (s->nbytes > 0 && end > s->nbytes)
        refuse(l, call,
               arena_printf(l->a, "a storage of at least %lld bytes for this tensor, found %lld",
                            (long long)end, (long long)s->nbytes));
}

/* ---- calls ---- */

static Annotation read_tensor(const Loader *l, const Expr *call)
{
    Annotation y = {0};
    const Expr *shape = find_argument(call, "shape", 1), *stride = find_argument(call, "stride", 2);
    if (!shape)
        refuse(l, call, "reader.tensor(storage, shape, ...)");
    y.type.rank = read_numbers(l, shape, "size", y.type.dim);
    if (stride && stride->kind != EX_NONE) {
        if (read_numbers(l, stride, "stride", y.stride) != y.type.rank)
            refuse(l, stride, "as many strides as sizes");
        y.has_stride = true;
    }
    read_dtype(l, find_argument(call, "dtype", -1), &y);
    check_storage(l, call, &y);
    return y;
}

/* The input that the comment behind the call names, else the next. */
static FxInput *input_of(Loader *l, const Expr *call)
{
    size_t n = strcspn(l->x.remark, ", \t");
    int k = l->count++;
    for (int i = 0; i < l->m->nin && n; i++)
        if (strlen(l->m->in[i].name) == n && !strncmp(l->m->in[i].name, l->x.remark, n))
            k = i;
    if (k >= l->m->nin)
        refuse(l, call, arena_printf(l->a, "%d inputs as forward has, found more", l->m->nin));
    if (l->told[k])
        refuse(l, call,
               arena_printf(l->a, "one call for input \"%s\", found another on line %d",
                            l->m->in[k].name, l->told[k]));
    l->told[k] = call->line;
    return &l->m->in[k];
}

static void give(const Loader *l, const Expr *call, FxInput *in, Item x)
{
    Item *item = NEW(l->a, Item);
    if (in->annotation.known)
        refuse(l, call,
               arena_printf(l->a, "reader.tensor for input \"%s\", which forward has as %s",
                            in->name, type_text(l->a, &in->annotation.type)));
    *item = x;
    in->given = item;
}

static void give_tensor(Loader *l, const Expr *call)
{
    Annotation y = read_tensor(l, call);
    FxInput *in = input_of(l, call);
    const Annotation *said = &in->annotation;
    if (said->known && y.known && !type_equal(&said->type, &y.type))
        refuse(l, call,
               arena_printf(l->a, "%s as forward has input \"%s\", found %s",
                            type_text(l->a, &said->type), in->name, type_text(l->a, &y.type)));
    if (!said->known)
        in->annotation = y;
}

/* name: of what the call's result is given to; NULL: to nothing. */
static void read_call(Loader *l, const Expr *name, const Expr *e)
{
    const Expr *first = e->count ? e->item[0] : NULL;
    if (!strcmp(e->s, "reader.storage"))
        read_storage(l, name, e);
    else if (!strcmp(e->s, "reader.tensor"))
        give_tensor(l, e);
    else if (!strcmp(e->s, "reader.symint") && first && first->kind == EX_INT)
        give(l, e, input_of(l, e), item_int(first->i));
    else if (!strcmp(e->s, "reader.const"))
        give(l, e, input_of(l, e), (Item){.kind = FX_NONE});
    else
        refuse(l, e, "a call of reader.storage, tensor, symint or const");
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
        const Expr *e = py_tuple(x), *name = NULL;
        if (py_take(x, "=")) {
            name = e;
            e = py_tuple(x);
        }
        if (e->kind == EX_STRING && !name) /* what PyTorch wrote of an argument of another kind */
            continue;
        if (e->kind != EX_CALL)
            refuse(l, e, "a call of the reader");
        read_call(l, name, e);
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
    for (int i = 0; i < m->ngroup; i++)
        if (!strcmp(m->group[i].name, name))
            py_fail(x, &t, "process groups: expected each name once, found \"%s\" twice", name);
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
    FxPart p = find_one(a, text, m->file, "def get_pg_config(");
    bool config = p.text != NULL;
    if (!config)
        p = find_part(a, text, "if __name__ ==");
    if (!p.text || (!config && !strstr(p.text, "setup_fake_process_groups(")))
        return;
    py_start(&x, a, p.text, m->file, p.line);
    x.part = config ? "get_pg_config" : "the block of __main__";
    if (config && !skip_to(&x, "return"))
        py_expected(&x, "return {'NAME': {'size': N, 'rank': R}, ...}");
    if (config || (skip_to(&x, "setup_fake_process_groups") && py_take(&x, "(")))
        read_groups(&x, m);
}

void fx_repro_fill(Arena *a, const char *text, FxModule *m)
{
    FxPart p = find_one(a, text, m->file, "def load_args(");
    Loader l = {.a = a, .m = m, .storage = {.a = a}, .told = NEWN(a, int, m->nin + 1)};
    m->untyped = p.text ? "load_args has no call for it"
                        : "the file has no \"def load_args(reader):\", which tells types";
    if (p.text) {
        py_start(&l.x, a, p.text, m->file, p.line);
        l.x.part = "load_args";
        read_inputs(&l);
    }
    find_groups(a, text, m);
}
