/* The pass manager: runs passes by name, checks what they need, verifies after each, times them. */
#include "pass.h"

#include <string.h>

#define PASS(name, needs, gives, optional, what) {#name, what, needs, gives, optional, pass_##name},
const Pass pass_table[] = {
#include "pass.def"
};
#undef PASS
const int pass_count = LEN(pass_table);

/* clang-format off */
#define DEFAULT_FLAG(x)   x
#define DEFAULT_SWITCH(x) (strcmp(x, "off") != 0)
#define DEFAULT_INT(x)    x
#define DEFAULT_REAL(x)   x
#define DEFAULT_WORD(x)   x
#define DEFAULT_TEXT(x)   x
#define DEFAULT_DTYPE(x)  (DType)dtype_parse(x)
#define DEFAULT_LIST(x)   {x, 0}
#define DEFAULT_RULES(x)  x
/* clang-format on */

PassOptions pass_defaults(void)
{
    return (PassOptions){
#define PASS_OPTION(name, field, kind, resume, value, ...) .field = DEFAULT_##kind(value),
#define INNER_OPTION                                       PASS_OPTION
#include "../base/options.def"
    };
}

const Pass *pass_get(Ctx *ctx, const char *name)
{
    const char *names[LEN(pass_table) + 2] = {"default", "forward"};
    for (int i = 0; i < pass_count; i++) {
        if (!strcmp(pass_table[i].name, name))
            return &pass_table[i];
        names[i + 2] = pass_table[i].name;
    }
    const char *near = nearest(name, names, LEN(names));
    fail(ctx, TN_USAGE, "unknown pass \"%s\"%s%s%s", name, near ? "; the nearest is \"" : "",
         near ? near : "", near ? "\"" : "");
}

void pass_check_names(const Graph *g, Arena *tmp, const Globs *p, const char *what)
{
    const char **name = NEWN(tmp, const char *, g->nin);
    int count = 0;
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM)
            name[count++] = g->in[i].name;
    globs_check(tmp, p, what, name, count);
}

unsigned graph_properties(const Graph *g)
{
    unsigned has = 0;
    for (int i = 0; i < g->nout; i++) {
        Role role = g->out[i].role;
        has |= role == ROLE_LOSS ? HAS_LOSS : 0;
        has |= role == ROLE_GRAD ? HAS_GRAD : 0;
    }
    return has;
}

static const char *property_name(unsigned property)
{
    return property & HAS_LOSS ? "a loss" : "gradients";
}

static PassReport run_one(Graph *g, const Pass *p, const PassOptions *o, Arena *tmp)
{
    unsigned has = graph_properties(g);
    if (p->needs & ~has)
        fail(g->ctx, TN_USAGE, "pass %s needs a graph with %s", p->name,
             property_name(p->needs & ~has));
    if (p->gives & has)
        fail(g->ctx, TN_USAGE, "pass %s: the graph has %s already", p->name,
             property_name(p->gives & has));
    double start = now_sec();
    int changes = p->run(g, tmp, o);
    arena_reset(tmp);
    graph_verify(g);
    return (PassReport){p->name, changes, now_sec() - start};
}

bool graph_has_backward(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->phase >= BACKWARD)
            return true;
    return false;
}

/* Of a step that has its backward already only what may be left out: the rest made it. */
static const char *default_names(Graph *g, const PassOptions *o)
{
    Buf b = {.a = g->a};
    bool step = graph_has_backward(g);
    for (int i = 0; i < pass_count; i++)
        if (pass_table[i].optional < 2 && (!step || pass_table[i].optional) &&
            (o->fuse || pass_table[i].run != pass_fuse))
            buf_printf(&b, "%s%s", b.len ? "," : "", pass_table[i].name);
    if (step && o->warn)
        o->warn(o->warn_arg,
                arena_printf(g->a, "the graph is a training step already: default is %s", b.text));
    return b.text;
}

typedef struct After {
    void (*fn)(void *arg, const Graph *g, const PassReport *r);
    void *arg;
} After;

static void run_named(Graph *g, const char *name, const PassOptions *o, Arena *tmp, const After *x);

static void run_list(Graph *g, const char *names, const PassOptions *o, Arena *tmp, const After *x)
{
    for (size_t len; *names; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        run_named(g, arena_strndup(g->a, names, len), o, tmp, x);
    }
}

static void run_named(Graph *g, const char *name, const PassOptions *o, Arena *tmp, const After *x)
{
    if (!strcmp(name, "default")) {
        run_list(g, default_names(g, o), o, tmp, x);
        return;
    }
    if (!strcmp(name, "forward")) {
        run_list(g,
                 o->fuse ? "precision,canonicalize,cse,dce,fuse" : "precision,canonicalize,cse,dce",
                 o, tmp, x);
        return;
    }
    PassReport r = run_one(g, pass_get(g->ctx, name), o, tmp);
    if (x->fn)
        x->fn(x->arg, g, &r);
}

void passes_run(Graph *g, const char *names, const PassOptions *o,
                void (*after)(void *arg, const Graph *g, const PassReport *r), void *arg)
{
    Arena *tmp = arena_new(g->ctx);
    if (!tmp)
        fail(g->ctx, TN_FAIL, "out of memory");
    arena_defer(g->a, (void (*)(void *))arena_free, tmp);
    run_list(g, names, o, tmp, &(After){after, arg});
}
