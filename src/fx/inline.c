/* Inlines modules inside an exported program: the parts that ran without gradients, or with
 * autocast off. A module's statements replace the call, with the module's name before theirs,
 * between calls of torch._C._set_grad_enabled, as make_fx with pre_dispatch writes them. Each
 * module is called once. Linear in the code. */
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
    int depth;
} Inliner;

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

static void add_call(Inliner *n, const FxStatement *s, bool gradients)
{
    static const char higher[] = "torch.ops.higher_order.";
    const Expr *e = s->value, *flag = e->count ? e->item[0] : NULL;
    bool autocast = !strcmp(e->s + strlen(higher), "wrap_with_autocast");
    int first = autocast ? 4 : 1; /* the module, then its arguments */
    if (autocast && e->count > 2)
        flag = e->item[2];
    FxModule *m = e->count > first ? find_module(n, e->item[first]) : NULL;
    bool known = flag && flag->kind == EX_BOOL && (!autocast || !flag->i);
    if (!known || !m || m->inlined || m->nin != e->count - first - 1 || n->depth == DEPTH)
        refuse(n, s->line, s->column);
    n->depth++;
    n->m->wraps = m->inlined = true;
    rename_all(n, m);
    bool within = autocast ? gradients : flag->i;
    for (int i = 0; i < m->nin; i++)
        assign(n, s, m->in[i].name, e->item[first + 1 + i]);
    set_gradients(n, s, within);
    add_statements(n, m->statement, m->nstatement, within);
    set_gradients(n, s, gradients);
    FxStatement result = *s;
    result.value = m->result;
    add(n, &result);
    n->depth--;
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
    for (int i = 0; i < inner->count; i++)
        if (!inner->module[i]->inlined)
            refuse(&n, inner->module[i]->line, inner->module[i]->column);
}
