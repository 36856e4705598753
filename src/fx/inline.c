/* Inlines modules inside an exported program: the parts that ran without gradients, or with
 * autocast off, and local_map's. A module's statements replace the call, with the module's name
 * before theirs, between calls of torch._C._set_grad_enabled, as make_fx with pre_dispatch writes
 * them. Each module is called once. Those of flex_attention are put into the call instead, which
 * runs them (flex.c), and the lists of blocks beside them are taken out, with what only made them.
 * Linear in the code. */
#include "fx.h"

#include <string.h>

enum { DEPTH = 60 }; /* of modules inside of others */

typedef struct Inliner {
    Arena *a;
    const PyLexer *x;
    FxModule *m; /* its statements are written anew */
    Map inner;   /* modules by name */
    Map module;  /* by the name of a variable that is one */
    Map taken;   /* names of variables */
    Map blocks;  /* names of lists of blocks that were taken out of calls */
    int depth;
} Inliner;

#define LOCAL_MAP "torch.ops.higher_order.local_map_hop"
#define VMAP      "torch._functorch.predispatch."

static _Noreturn void refuse(const Inliner *n, int line, int column)
{
    PyToken t = {.line = line, .column = column};
    fx_foreign(n->x, &t, FOREIGN_NESTED);
}

/* ---- names ---- */

static void rename_expr(Expr *e, const Map *names)
{
    const char *name = e && e->kind == EX_NAME ? map_find(names, e->s) : NULL;
    if (name)
        e->s = name;
    for (int i = 0; e && i < e->count; i++)
        rename_expr(e->item[i], names);
}

/* Takes a name of m, which is put before it where `names` asks for new ones. */
static void take_name(Inliner *n, const FxModule *m, Map *names, const char **name)
{
    if (names && !map_find(names, *name)) {
        const char *new = arena_printf(n->a, "%s_%s", m->name, *name);
        while (map_find(&n->taken, new))
            new = arena_printf(n->a, "%s_", new);
        map_put(names, *name, (void *)new);
    }
    if (names)
        *name = map_find(names, *name);
    map_put(&n->taken, *name, n);
}

static void take_names(Inliner *n, FxModule *m, Map *names)
{
    for (int i = 0; i < m->nin; i++)
        take_name(n, m, names, &m->in[i].name);
    for (int i = 0; i < m->nstatement; i++)
        for (int k = 0; k < m->statement[i].ntarget; k++)
            take_name(n, m, names, &m->statement[i].target[k]);
}

static void rename_all(Inliner *n, FxModule *m)
{
    Map names = {.a = n->a};
    take_names(n, m, &names);
    for (int i = 0; i < m->nstatement; i++)
        rename_expr(m->statement[i].value, &names);
    rename_expr(m->result, &names);
}

/* ---- statements ---- */

static void add(Inliner *n, const FxStatement *s)
{
    PUSH(n->a, n->m->statement, n->m->nstatement, n->m->cap, *s);
}

static void assign(Inliner *n, const FxStatement *at, const char *target, Expr *value)
{
    FxStatement s = {.line = at->line, .column = at->column, .value = value, .ntarget = 1};
    s.target = NEW(n->a, const char *);
    s.target[0] = target;
    add(n, &s);
}

static void set_gradients(Inliner *n, const FxStatement *at, bool on)
{
    FxStatement s = {.line = at->line, .column = at->column, .value = NEW(n->a, Expr)};
    Expr *flag = NEW(n->a, Expr);
    *flag = (Expr){.kind = EX_BOOL, .i = on, .line = at->line, .column = at->column};
    *s.value = (Expr){.kind = EX_CALL, .s = FX_SET_GRAD, .line = at->line, .column = at->column};
    s.value->count = 1;
    s.value->item = NEW(n->a, Expr *);
    s.value->item[0] = flag;
    s.value->key = NEW(n->a, const char *);
    add(n, &s);
}

static FxModule *find_module(const Inliner *n, const Expr *e)
{
    if (e && e->kind == EX_SELF)
        return map_find(&n->inner, e->s);
    return e && e->kind == EX_NAME ? map_find(&n->module, e->s) : NULL;
}

static void add_statements(Inliner *n, const FxStatement *s, int count, bool gradients);

/* Puts a module's statements where s calls it, whose arguments from `first` on are its own; within:
 * whether it has gradients. */
static void add_module(Inliner *n, const FxStatement *s, FxModule *m, int first, bool gradients,
                       bool within)
{
    const Expr *e = s->value;
    if (!m || m->inlined || m->nin != e->count - first || n->depth == DEPTH)
        refuse(n, s->line, s->column);
    n->depth++;
    m->inlined = true;
    rename_all(n, m);
    for (int i = 0; i < m->nin; i++)
        assign(n, s, m->in[i].name, e->item[first + i]);
    set_gradients(n, s, within);
    add_statements(n, m->statement, m->nstatement, within);
    set_gradients(n, s, gradients);
    FxStatement result = *s;
    result.value = m->result;
    add(n, &result);
    n->depth--;
}

static void add_call(Inliner *n, const FxStatement *s, bool gradients)
{
    static const char higher[] = "torch.ops.higher_order.";
    const Expr *e = s->value, *flag = e->count ? e->item[0] : NULL;
    bool autocast = !strcmp(e->s + strlen(higher), "wrap_with_autocast");
    int first = autocast ? 4 : 1; /* the module, then its arguments */
    if (autocast && e->count > 2)
        flag = e->item[2];
    FxModule *m = e->count > first ? find_module(n, e->item[first]) : NULL;
    if (!flag || flag->kind != EX_BOOL || (autocast && flag->i))
        refuse(n, s->line, s->column);
    n->m->wraps = true;
    add_module(n, s, m, first + 1, gradients, autocast ? gradients : flag->i);
}

/* A module that ran on each rank's own part of its arguments: it is the same on the whole where
 * these are what it was traced with, which annotations say. */
static void add_local_map(Inliner *n, const FxStatement *s, bool gradients)
{
    FxModule *m = s->value->count ? find_module(n, s->value->item[0]) : NULL;
    int at = n->m->nstatement;
    add_module(n, s, m, 1, gradients, gradients);
    for (int i = 0; i < m->nin; i++)
        n->m->statement[at + i].annotation = m->in[i].annotation;
}

/* ---- flex_attention ---- */

static Expr *flex_of(Expr *e)
{
    while (e && e->kind == EX_INDEX)
        e = e->item[0];
    return fx_is_flex(e) ? e : NULL;
}

/* Indexing as torch.export has it: flat_apply(..., 'ModIndex', x, i, j) is x[i, j]. */
static void show_index(Inliner *n, Expr *e)
{
    enum { FIRST = 3 }; /* argument: x */
    if (e->kind != EX_CALL || strcmp(e->s, "torch.ops.higher_order.flat_apply") != 0 ||
        e->count <= FIRST || e->item[2]->kind != EX_STRING || !ends_in(e->item[2]->s, ".ModIndex"))
        return;
    Expr *places = NEW(n->a, Expr);
    *places = (Expr){.kind = EX_LIST, .line = e->line, .column = e->column};
    places->count = e->count - FIRST - 1;
    places->item = e->item + FIRST + 1;
    places->key = e->key + FIRST + 1;
    e->s = "torch.ops.aten.index.Tensor";
    e->item[0] = e->item[FIRST];
    e->item[1] = places;
    e->key[0] = e->key[1] = NULL;
    e->count = 2;
}

/* A module of scores or masks, for the call that runs it: what it says of itself is left out. */
static Expr *module_expr(Inliner *n, const FxStatement *s, const Expr *e)
{
    FxModule *m = find_module(n, e);
    Expr *x = NEW(n->a, Expr);
    if (!m || (m->inlined && !m->called))
        refuse(n, s->line, s->column);
    *x = (Expr){.kind = EX_MODULE, .module = m, .line = e->line, .column = e->column};
    if (m->called)
        return x;
    m->inlined = m->called = true;
    int count = 0;
    for (int i = 0; i < m->nstatement; i++) {
        FxStatement *st = &m->statement[i];
        if (st->value && st->value->kind == EX_SELF && !find_module(n, st->value))
            continue; /* the function that flat_apply calls */
        if (st->value)
            show_index(n, st->value);
        m->statement[count++] = *st;
    }
    m->nstatement = count;
    rename_all(n, m);
    return x;
}

static void add_flex(Inliner *n, const FxStatement *s)
{
    Expr *e = flex_of(s->value), *blocks = e->item[4];
    const Expr *mask = blocks->item[blocks->count - 1];
    for (int i = 0; i < blocks->count - 1; i++)
        if (blocks->item[i]->kind == EX_NAME)
            map_put(&n->blocks, blocks->item[i]->s, n);
    e->item[3] = module_expr(n, s, e->item[3]);
    blocks->item[0] = module_expr(n, s, mask);
    blocks->count = 1;
    add(n, s);
}

static bool reads_any(const Expr *e, const Map *names)
{
    if (e && e->kind == EX_NAME && map_find(names, e->s))
        return true;
    for (int i = 0; e && i < e->count; i++)
        if (reads_any(e->item[i], names))
            return true;
    return false;
}

static bool calls_vmap(const Expr *e)
{
    return e && e->kind == EX_CALL && !strncmp(e->s, VMAP, LEN(VMAP) - 1);
}

static void note_names(Map *names, const Expr *e)
{
    if (e && e->kind == EX_NAME)
        map_put(names, e->s, names);
    for (int i = 0; e && i < e->count; i++)
        note_names(names, e->item[i]);
}

/* Takes out what only made lists of blocks: what torch.vmap has made, inputs and constants that
 * were these lists, and functions that flat_apply called. */
static void drop_blocks(Inliner *n)
{
    FxModule *m = n->m;
    Map made = {.a = n->a}, read = {.a = n->a};
    int count = 0, nin = 0;
    for (int i = 0; i < m->nstatement; i++) {
        const FxStatement *s = &m->statement[i];
        bool drop = calls_vmap(s->value) || reads_any(s->value, &made);
        for (int k = 0; drop && k < s->ntarget; k++)
            map_put(&made, s->target[k], n);
        if (drop && flex_of(s->value))
            py_fail(n->x, &(PyToken){.line = s->line, .column = s->column},
                    "flex_attention reads what torch.vmap has made, as the code shows by %s...",
                    VMAP);
        if (!drop)
            m->statement[count++] = *s;
    }
    m->nstatement = count;
    for (int i = count = 0; i < m->nstatement; i++)
        note_names(&read, m->statement[i].value);
    note_names(&read, m->result);
    for (int i = 0; i < m->nstatement; i++) {
        const FxStatement *s = &m->statement[i];
        bool list = s->ntarget == 1 && s->value && s->value->kind == EX_SELF &&
                    (map_find(&n->blocks, s->target[0]) || !s->annotation.known);
        if (!list || map_find(&read, s->target[0]))
            m->statement[count++] = *s;
    }
    m->nstatement = count;
    for (int i = 0; i < m->nin; i++)
        if (!map_find(&n->blocks, m->in[i].name) || map_find(&read, m->in[i].name))
            m->in[nin++] = m->in[i];
    m->nin = nin;
}

/* Whether a module stands in an expression, as an argument or in a tuple of them. */
static bool calls_module(const Inliner *n, const Expr *e)
{
    bool any = false;
    for (int i = 0; e && i < e->count; i++)
        any |= find_module(n, e->item[i]) || calls_module(n, e->item[i]);
    return any;
}

static _Noreturn void refuse_call(const Inliner *n, const FxStatement *s)
{
    PyToken t = {.line = s->line, .column = s->column};
    const Expr *e = s->value;
    while (e->kind != EX_CALL && e->count)
        e = e->item[0];
    py_fail(n->x, &t, "%s", fx_foreign_nested(e->s ? e->s : ""));
}

static bool wraps(const Expr *e)
{
    return e && e->kind == EX_CALL &&
           (!strcmp(e->s, "torch.ops.higher_order.wrap_with_set_grad_enabled") ||
            !strcmp(e->s, "torch.ops.higher_order.wrap_with_autocast"));
}

static void add_statements(Inliner *n, const FxStatement *s, int count, bool gradients)
{
    for (int i = 0; i < count; i++, s++) {
        FxModule *m = find_module(n, s->value);
        if (m && s->ntarget == 1)
            map_put(&n->module, s->target[0], m);
        else if (flex_of(s->value))
            add_flex(n, s);
        else if (s->value && s->value->kind == EX_CALL && !strcmp(s->value->s, LOCAL_MAP))
            add_local_map(n, s, gradients);
        else if (wraps(s->value))
            add_call(n, s, gradients);
        else if (calls_module(n, s->value))
            refuse_call(n, s);
        else
            add(n, s);
    }
}

void fx_inline(Arena *a, const PyLexer *x, FxModule *m, const InnerModules *inner)
{
    Inliner n = {.a = a, .x = x, .m = m, .inner = {.a = a}, .module = {.a = a}, .taken = {.a = a}};
    n.blocks.a = a;
    const FxStatement *s = m->statement;
    int count = m->nstatement;
    if (!inner->count) /* gm.code does not show them: they are unknown calls */
        return;
    for (int i = 0; i < inner->count; i++) {
        FxModule *one = inner->module[i];
        if (map_find(&n.inner, one->name))
            refuse(&n, one->line, one->column);
        map_put(&n.inner, one->name, one);
    }
    take_names(&n, m, NULL);
    m->statement = NULL;
    m->nstatement = m->cap = 0;
    add_statements(&n, s, count, true);
    if (n.blocks.count)
        drop_blocks(&n);
    for (int i = 0; i < inner->count; i++)
        if (!inner->module[i]->inlined)
            refuse(&n, inner->module[i]->line, inner->module[i]->column);
}
