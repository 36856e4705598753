/* Parses the statements of a GraphModule's code. The grammar is in docs/formats.md.
 *
 * The text around the one function is checked and then ignored: the head of print(gm), imports,
 * `class NAME(torch.nn.Module):`. In pytree code tree_flatten_spec names the inputs, and
 * tree_unflatten of the result is its first argument. */
#include "fx.h"

#include <string.h>

typedef struct Parser {
    PyLexer x;
    Arena *a;
    FxModule *m;
    Map inputs; /* by name */
} Parser;

static Annotation annotation(Parser *p)
{
    PyToken where = p->x.t;
    return annotation_parse(&p->x, &where, py_annotation(&p->x));
}

/* ---- statements ---- */

static void add_target(Parser *p, FxStatement *s, const Expr *e)
{
    if (e->kind == EX_LIST) {
        s->unpack = true;
        for (int i = 0; i < e->count; i++)
            add_target(p, s, e->item[i]);
    } else if (e->kind == EX_NAME && !strchr(e->s, '.')) {
        PUSH(p->a, s->target, s->ntarget, s->cap, e->s);
    } else {
        PyToken t = {.line = e->line, .column = e->column};
        py_fail(&p->x, &t, "expected a name before =");
    }
}

static void statement(Parser *p)
{
    FxStatement s = {.line = p->x.t.line, .column = p->x.t.column, .remark = p->x.remark};
    Expr *e = py_tuple(&p->x);
    if (py_at(&p->x, ":")) {
        add_target(p, &s, e);
        py_next(&p->x);
        s.annotation = annotation(p);
        if (py_take(&p->x, "="))
            s.value = py_tuple(&p->x);
    } else {
        s.value = e;
        while (py_take(&p->x, "=")) {
            if (s.unpack)
                py_fail(&p->x, &p->x.t, "expected one name before each = of a chain");
            add_target(p, &s, s.value);
            s.value = py_tuple(&p->x);
        }
    }
    py_end_line(&p->x);
    PUSH(p->a, p->m->statement, p->m->nstatement, p->m->cap, s);
}

/* ---- the function and what is around it ---- */

/* Whether an argument is a size, "Sym(s0)": the number that its symbol is bound to, if it is. */
static void open_size(Parser *p, FxInput *in, const char *text)
{
    const char *s = text + 4;
    int64_t size;
    if (strncmp(text, "Sym(", 4) != 0 || !p->x.symbols)
        return;
    in->size = text;
    if (!symbols_size(p->a, p->x.symbols, &s, &size))
        return;
    Item *x = NEW(p->a, Item);
    *x = item_int(size);
    in->given = x;
}

static void input(Parser *p)
{
    FxInput in = {.line = p->x.t.line, .column = p->x.t.column};
    in.name = py_name(&p->x, "an argument");
    if (py_take(&p->x, ":")) {
        if (py_at(&p->x, "Tensor"))
            fx_foreign(&p->x, &p->x.t, FOREIGN_CODE);
        PyToken where = p->x.t;
        const char *text = py_annotation(&p->x);
        in.annotation = annotation_parse(&p->x, &where, text);
        open_size(p, &in, text);
    }
    if (py_at(&p->x, "="))
        py_fail(&p->x, &p->x.t, "arguments with defaults are not supported");
    if (map_find(&p->inputs, in.name))
        py_fail(&p->x, &p->x.t, "argument \"%s\" twice", in.name);
    map_put(&p->inputs, in.name, p);
    PUSH(p->a, p->m->in, p->m->nin, p->m->capin, in);
}

static void signature(Parser *p)
{
    py_need(&p->x, "def");
    bool built = py_at(&p->x, "__init__");
    py_name(&p->x, "forward");
    py_need(&p->x, "(");
    if (built || (p->x.t.kind == PY_NAME && !py_at(&p->x, "self")))
        fx_foreign(&p->x, &p->x.t, FOREIGN_SOURCE);
    py_need(&p->x, "self");
    while (py_take(&p->x, ","))
        if (!py_at(&p->x, ")"))
            input(p);
    py_need(&p->x, ")");
    if (py_take(&p->x, "->"))
        py_annotation(&p->x);
    py_need(&p->x, ":");
}

static void brackets(Parser *p)
{
    int open = p->x.depth;
    py_need(&p->x, "(");
    while (p->x.depth >= open && p->x.t.kind != PY_END)
        py_next(&p->x);
    py_need(&p->x, ")");
}

static const char *module_name(Parser *p)
{
    bool lambda = py_take(&p->x, "<");
    const char *s = py_name(&p->x, "a name");
    if (lambda)
        py_need(&p->x, ">");
    return s;
}

/* Below an exported program: which inputs are parameters (signature.c), constraints. */
static bool signature_follows(Parser *p)
{
    return p->x.t.kind == PY_NAME && !strncmp(p->x.t.begin, "Graph signature:", 16);
}

/* `GraphModule()`, `ExportedProgram:`, imports and `class NAME(torch.nn.Module):` */
static void head(Parser *p)
{
    bool layers = false;
    for (py_skip_lines(&p->x); !py_at(&p->x, "def"); py_skip_lines(&p->x)) {
        if (!strncmp(p->x.t.begin, "graph(", 6))
            fx_foreign(&p->x, &p->x.t, fx_foreign_graph(p->x.t.begin));
        if (layers && p->x.t.kind == PY_END)
            fx_foreign(&p->x, &p->x.t, FOREIGN_LAYERS);
        if (py_at(&p->x, "opcode"))
            fx_foreign(&p->x, &p->x.t, FOREIGN_TABLE);
        if (py_at(&p->x, "ExportGraphSignature") || signature_follows(p))
            fx_foreign(&p->x, &p->x.t, FOREIGN_SIGNATURE);
        if (py_take(&p->x, "class")) {
            module_name(p);
            brackets(p);
            py_need(&p->x, ":");
        } else if (py_at(&p->x, "import") || py_at(&p->x, "from")) {
            while (p->x.t.kind != PY_LINE && p->x.t.kind != PY_END)
                py_next(&p->x);
        } else {
            if (p->x.t.kind != PY_NAME && !py_at(&p->x, "<"))
                py_expected(&p->x, "def forward(self, ...)");
            bool exported = py_at(&p->x, "ExportedProgram");
            module_name(p);
            if (!exported && py_at(&p->x, ":"))
                fx_foreign(&p->x, &p->x.t, FOREIGN_SIGNATURE);
            layers = !exported || !py_take(&p->x, ":");
            if (layers)
                brackets(p);
        }
    }
}

/* `a, b, = fx_pytree.tree_flatten_spec([x, y], self._in_spec)`: a and b are the inputs. */
static void flatten_inputs(Parser *p, FxStatement *s)
{
    FxModule *m = p->m;
    Map bare = {.a = p->a}; /* statements that only annotate, by name */
    for (int k = 0; k < m->nstatement; k++)
        if (!m->statement[k].value)
            map_put(&bare, m->statement[k].target[0], &m->statement[k]);
    m->nin = 0;
    for (int i = 0; i < s->ntarget; i++) {
        FxInput in = {.name = s->target[i], .line = s->line, .column = s->column};
        if (s->annotation.known)
            in.annotation = s->annotation;
        const FxStatement *also = map_find(&bare, in.name);
        if (also)
            in.annotation = also->annotation;
        PUSH(p->a, m->in, m->nin, m->capin, in);
    }
}

static bool is_call(const Expr *e, const char *end)
{
    if (!e || e->kind != EX_CALL)
        return false;
    size_t n = strlen(e->s), k = strlen(end);
    return n >= k && !strcmp(e->s + n - k, end);
}

static void pytree(Parser *p)
{
    FxModule *m = p->m;
    for (int i = 0; i < m->nstatement; i++)
        if (is_call(m->statement[i].value, "pytree.tree_flatten_spec")) {
            flatten_inputs(p, &m->statement[i]);
            m->statement[i].value = NULL;
        }
    if (is_call(m->result, "pytree.tree_unflatten") && m->result->count)
        m->result = m->result->item[0];
}

static void function(Parser *p)
{
    p->inputs = (Map){.a = p->a};
    signature(p);
    for (py_skip_lines(&p->x); !py_at(&p->x, "return"); py_skip_lines(&p->x)) {
        if (p->x.t.kind == PY_END)
            py_expected(&p->x, "return");
        statement(p);
    }
    py_next(&p->x);
    p->m->result = py_tuple(&p->x);
    py_skip_lines(&p->x);
}

/* `class submod_1(torch.nn.Module):` and its function, below that of the module it is inside of. */
static void inner_module(Parser *p, InnerModules *inner)
{
    FxModule *outer = p->m;
    p->m = NEW(p->a, FxModule);
    *p->m = (FxModule){.file = outer->file, .line = p->x.t.line, .column = p->x.t.column};
    py_need(&p->x, "class");
    p->m->name = module_name(p);
    brackets(p);
    py_need(&p->x, ":");
    py_skip_lines(&p->x);
    function(p);
    PUSH(p->a, inner->module, inner->count, inner->cap, p->m);
    p->m = outer;
}

FxModule *fx_parse(Arena *a, const char *text, const char *file, const Map *symbols)
{
    Parser p = {.a = a, .m = NEW(a, FxModule)};
    InnerModules inner = {0};
    p.m->file = file;
    text = py_plain(a, text);
    FxPart repro = fx_repro_forward(a, text, file);
    py_start(&p.x, a, repro.text ? repro.text : text, file, repro.text ? repro.line : 1);
    p.x.symbols = symbols;
    p.x.part = repro.text ? "class Repro" : NULL;
    if (!repro.text)
        head(&p);
    function(&p);
    while (py_at(&p.x, "class"))
        inner_module(&p, &inner);
    if (signature_follows(&p))
        p.m->signature = p.x.t.begin;
    else if (p.x.t.kind != PY_END)
        py_expected(&p.x, "nothing more");
    pytree(&p);
    fx_inline(a, &p.x, p.m, &inner);
    if (repro.text)
        fx_repro_fill(a, text, p.m);
    return p.m;
}
