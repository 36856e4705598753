/* The pass manager: runs passes by name, checks what they need, verifies after each, times them. */
#include "pass.h"

#include <string.h>

#define PASS(name, needs, gives, optional, what) {#name, what, needs, gives, optional, pass_##name},
const Pass pass_table[] = {
#include "pass.def"
};
#undef PASS
const int pass_count = LEN(pass_table);

PassOptions pass_defaults(void)
{
    return (PassOptions){.accumulate = 1,
                         .optimizer = "adamw",
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .clip = 1.0,
                         .recompute = "none",
                         .repeat_gain = 1 << 16,
                         .fuse = true,
                         .dtype = F32,
                         .param_dtype = F32};
}

const Pass *pass_get(Ctx *ctx, const char *name)
{
    const char *names[LEN(pass_table)];
    for (int i = 0; i < pass_count; i++) {
        if (!strcmp(pass_table[i].name, name))
            return &pass_table[i];
        names[i] = pass_table[i].name;
    }
    const char *near = nearest(name, names, pass_count);
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

static const char *default_names(Graph *g, const PassOptions *o)
{
    Buf b = {.a = g->a};
    for (int i = 0; i < pass_count; i++)
        if (pass_table[i].optional < 2 && (o->fuse || pass_table[i].run != pass_fuse))
            buf_printf(&b, "%s%s", i ? "," : "", pass_table[i].name);
    return b.text;
}

void passes_run(Graph *g, const char *names, const PassOptions *o,
                void (*after)(void *arg, const Graph *g, const PassReport *r), void *arg)
{
    if (!strcmp(names, "default"))
        names = default_names(g, o);
    else if (!strcmp(names, "forward"))
        names = o->fuse ? "precision,canonicalize,cse,dce,fuse" : "precision,canonicalize,cse,dce";
    Arena *tmp = arena_new(g->ctx);
    if (!tmp)
        fail(g->ctx, TN_FAIL, "out of memory");
    arena_defer(g->a, (void (*)(void *))arena_free, tmp);
    while (*names) {
        size_t len = strcspn(names, ",");
        const Pass *p = pass_get(g->ctx, arena_strndup(g->a, names, len));
        PassReport r = run_one(g, p, o, tmp);
        if (after)
            after(arg, g, &r);
        names += len + (names[len] == ',');
    }
}
