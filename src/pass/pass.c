/* pass: the manager: runs pipelines, groups and passes of pass.def; on a graph that has a backward
 * already it runs a pipeline's `other` instead. It checks before each pass that
 * the graph has the properties that the pass needs, and after it those that the pass gives and
 * keeps; then it verifies the graph and takes the time. Properties that can be seen in a graph are
 * looked up each time; the others are recorded while a list of passes runs. */
#include "pass.h"
#include "../flow/flow.h"

#include <stdio.h>
#include <string.h>

/* ---- the tables ---- */

enum {
#define PASS(name, ...) PASS_##name,
#include "pass.def"
};

static const Pass passes[] = {
#define PASS(name, needs, gives, removes, what) {#name, what, needs, gives, removes, pass_##name},
#include "pass.def"
};

static const Pipeline pipelines[] = {
#define PIPELINE(letter, name, starts, other, what) {letter, #name, #other, what, starts},
#include "pass.def"
};

static const PassRow rows[] = {
#define ROW(group, pass, in) {#group, #group "." #pass, &passes[PASS_##pass], in},
#include "pass.def"
};

const PassTable pass_table = {pipelines, rows, LEN(pipelines), LEN(rows)};

bool pass_row_in(const PassRow *row, const Pipeline *p)
{
    return strchr(row->in, p->letter) != NULL;
}

static bool same_group(const PassRow *x, const PassRow *y)
{
    return !strcmp(x->group, y->group);
}

/* How many rows the group has that begins at this one. */
static int group_size(const PassTable *t, int first)
{
    int n = 1;
    while (first + n < t->nrow && same_group(&t->row[first], &t->row[first + n]))
        n++;
    return n;
}

static const Pipeline *find_pipeline(const char *name)
{
    for (int i = 0; i < LEN(pipelines); i++)
        if (!strcmp(pipelines[i].name, name))
            return &pipelines[i];
    return NULL;
}

/* The first row of a group, or, if it is none, of a pass; -1: neither. */
static int find_row(const char *name, bool *group)
{
    for (int i = 0; i < LEN(rows); i++)
        if ((*group = !strcmp(rows[i].group, name)))
            return i;
    for (int i = 0; i < LEN(rows); i++)
        if (!strcmp(rows[i].pass->name, name))
            return i;
    return -1;
}

/* Whether a pipeline, group or pass of that name runs a pass, or any of a group; backward: the
 * graph has one. */
static bool name_has(const char *name, const char *pass, bool backward)
{
    const Pipeline *p = find_pipeline(name);
    bool group;
    p = p && backward ? find_pipeline(p->other) : p;
    int first = find_row(name, &group);
    if (!p && !group)
        return first >= 0 && !strcmp(name, pass);
    for (int i = 0; i < LEN(rows); i++)
        if ((p ? pass_row_in(&rows[i], p) : !strcmp(rows[i].group, name)) &&
            (!strcmp(rows[i].group, pass) || !strcmp(rows[i].pass->name, pass)))
            return true;
    return false;
}

static bool list_has(const char *names, const char *pass, bool backward)
{
    for (size_t len; *names; names += len + (names[len] == ',')) {
        char name[64];
        len = strcspn(names, ",");
        snprintf(name, sizeof name, "%.*s", (int)MIN(len, sizeof name), names);
        if (name_has(name, pass, backward))
            return true;
        backward |= name_has(name, "grad", backward);
    }
    return false;
}

bool passes_have(const char *names, const char *pass)
{
    return list_has(names, pass, false);
}

bool passes_have_of(const Graph *g, const char *names, const char *pass)
{
    return list_has(names, pass, graph_has_backward(g));
}

_Noreturn static void fail_unknown(Ctx *ctx, const char *name)
{
    const char *names[LEN(pipelines) + 2 * LEN(rows)];
    int n = 0;
    for (int i = 0; i < LEN(pipelines); i++)
        names[n++] = pipelines[i].name;
    for (int i = 0; i < LEN(rows); i++) {
        names[n++] = rows[i].group;
        names[n++] = rows[i].pass->name;
    }
    const char *near = nearest(name, names, n);
    fail(ctx, TN_USAGE, "unknown pass \"%s\"%s%s%s; `tenon passes` lists them", name,
         near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

/* clang-format off */
#define DEFAULT_FLAG(x)   x
#define DEFAULT_SWITCH(x) (strcmp(x, "off") != 0)
#define DEFAULT_INT(x)    x
#define DEFAULT_AUTO(x)   x
#define DEFAULT_REAL(x)   x
#define DEFAULT_WORD(x)   x
#define DEFAULT_TEXT(x)   x
#define DEFAULT_IN(x)     x
#define DEFAULT_DTYPE(x)  (DType)dtype_parse(x)
#define DEFAULT_LIST(x)   {x, 0}
#define DEFAULT_RULES(x)  x
/* clang-format on */

void pass_target(PassOptions *o, Arena *a)
{
    o->device = device_get(arena_ctx(a), o->backend);
    o->prices = machine_for(a, o->device, o->machine);
}

/* o, or a copy of it that knows its target. */
static const PassOptions *targeted(const PassOptions *o, Arena *a)
{
    if (o->device)
        return o;
    PassOptions *x = NEW(a, PassOptions);
    *x = *o;
    pass_target(x, a);
    return x;
}

Flow *pass_flow(Graph *g, const PassOptions *o, Arena *a)
{
    return flow_new(g, o->device, o->prices, a);
}

PassOptions pass_defaults(void)
{
    return (PassOptions){
#define PASS_OPTION(name, field, kind, resume, value, ...) .field = DEFAULT_##kind(value),
#define INNER_OPTION                                       PASS_OPTION
#include "../base/options.def"
    };
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

/* ---- properties ---- */

/* Each tells whether the graph has it; if a node is why it has not, *at is that node. */
typedef bool SeeFn(const Graph *g, const Node **at);

static bool has_loss(const Graph *g, const Node **at)
{
    (void)at;
    return graph_find_output(g, ROLE_LOSS, NULL);
}

static bool has_grad(const Graph *g, const Node **at)
{
    (void)at;
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_GRAD)
            return true;
    return false;
}

static bool has_no_grad(const Graph *g, const Node **at)
{
    return !has_grad(g, at);
}

static bool is_unfused(const Graph *g, const Node **at)
{
    for (const Node *n = g->first; n && !*at; n = n->next) {
        if (n->op->region == FUSED)
            *at = n;
        EACH_LOOP_BODY(b, n)
            is_unfused(n->region->body[b], at);
    }
    return !*at;
}

/* Views of inputs have no node that their policy could be one of. */
static bool is_settled(const Graph *g, const Node **at)
{
    for (const Node *n = g->first; n && !*at; n = n->next) {
        EACH_LOOP_BODY(b, n)
            is_settled(n->region->body[b], at);
        if (node_aliases(n) && n->policy && n->phase < BACKWARD && defining_node(n->in[0]))
            *at = n;
    }
    return !*at;
}

#define RECORDED NULL
static const struct {
    const char *name, *what;
    SeeFn *see; /* NULL: recorded */
} properties[] = {
#define PROPERTY(name, see, what) {#name, what, see},
#include "pass.def"
};

static unsigned see_properties(const Graph *g)
{
    unsigned has = 0;
    for (int i = 0; i < NPROPERTY; i++) {
        const Node *at = NULL;
        if (properties[i].see && properties[i].see(g, &at))
            has |= 1U << i;
    }
    return has;
}

static unsigned all_seen(void)
{
    unsigned set = 0;
    for (int i = 0; i < NPROPERTY; i++)
        set |= properties[i].see ? 1U << i : 0;
    return set;
}

const char *pass_properties(Arena *a, unsigned set)
{
    Buf b = {.a = a};
    for (int i = 0; i < NPROPERTY; i++)
        if (set >> i & 1)
            buf_printf(&b, "%s%s", b.len ? "," : "", properties[i].name);
    return b.len ? b.text : "-";
}

static int lowest(unsigned set)
{
    int i = 0;
    while (!(set >> i & 1))
        i++;
    return i;
}

/* A pass that gives the property, NULL: none. */
static const char *giver(unsigned property)
{
    for (int i = 0; i < LEN(passes); i++)
        if (passes[i].gives & property)
            return passes[i].name;
    return NULL;
}

_Noreturn static void fail_needs(const Graph *g, Arena *tmp, const Pass *p, unsigned lacks)
{
    int i = lowest(lacks);
    const Node *at = NULL;
    const char *pass = giver(1U << i), *text;
    if (properties[i].see)
        properties[i].see(g, &at);
    text = arena_printf(tmp, "pass %s needs a graph %s%s%s%s%s", p->name, properties[i].what,
                        pass ? ": expected the pass " : "", pass ? pass : "",
                        pass ? " before " : "", pass ? p->name : "");
    if (at)
        fail_node(g, at, "%s", text);
    fail(g->ctx, TN_USAGE, "%s", text);
}

/* ---- the order of rows ---- */

/* Whether the rows from `from` to `to` that the pipeline has, or all of them, need what is not
 * there. */
static const char *find_fault(Arena *a, const PassTable *t, int from, int to, const Pipeline *p,
                              unsigned has)
{
    for (int i = from; i < to; i++) {
        const Pass *x = t->row[i].pass;
        if (p && !pass_row_in(&t->row[i], p))
            continue;
        if (x->needs & ~has)
            return arena_printf(a, "%s: %s needs %s", p ? p->name : t->row[i].group,
                                t->row[i].title, pass_properties(a, x->needs & ~has));
        has = (has & ~x->removes) | x->gives;
    }
    return NULL;
}

/* A pipeline or letter that is none, or a group that stands in two places. */
static const char *find_odd_row(Arena *a, const PassTable *t)
{
    for (int i = 0; i < t->npipeline; i++)
        if (!find_pipeline(t->pipeline[i].other))
            return arena_printf(a, "%s: no pipeline is %s", t->pipeline[i].name,
                                t->pipeline[i].other);
    for (int i = 0; i < t->nrow; i++) {
        for (const char *s = t->row[i].in; *s; s++) {
            bool known = *s == ' ';
            for (int k = 0; k < t->npipeline; k++)
                known |= t->pipeline[k].letter == *s;
            if (!known)
                return arena_printf(a, "%s: no pipeline is \"%c\"", t->row[i].title, *s);
        }
        for (int k = 0; k + 1 < i; k++)
            if (same_group(&t->row[k], &t->row[i]) && !same_group(&t->row[i - 1], &t->row[i]))
                return arena_printf(a, "%s: the group begins twice", t->row[i].title);
    }
    return NULL;
}

const char *pass_fault(Arena *a, const PassTable *t)
{
    const char *fault = find_odd_row(a, t);
    for (int i = 0; i < t->npipeline && !fault; i++)
        fault = find_fault(a, t, 0, t->nrow, &t->pipeline[i], t->pipeline[i].starts);
    for (int i = 0; i < t->nrow && !fault; i += group_size(t, i))
        fault = find_fault(a, t, i, i + group_size(t, i), NULL, all_seen());
    return fault;
}

/* ---- running ---- */

static void tell(const PassWalk *w, PassReport x)
{
    if (w->after)
        w->after(w->arg, w->g, &x);
}

/* Checks the properties that a pass says it gives and keeps; others are a bug. A pass that changed
 * nothing need not give any, as a graph without parameters gets no gradients. */
static void check_after(const Pass *p, int changes, unsigned before, unsigned has)
{
    unsigned wrong = (changes ? p->gives & ~has : 0) | (before & ~p->removes & ~has);
    if (!wrong)
        return;
    fprintf(stderr, "pass %s: the graph is not one %s\n", p->name, properties[lowest(wrong)].what);
    CHECK(!wrong);
}

/* Graphs are walked only where a pass has changed them. */
static unsigned walk_properties(PassWalk *w)
{
    if (!w->looked)
        w->seen = see_properties(w->g);
    w->looked = true;
    return w->seen | w->recorded;
}

static PassReport run_pass(PassWalk *w, const Pass *p)
{
    unsigned before = p->needs || !w->trial ? walk_properties(w) : 0;
    if (p->needs & ~before)
        fail_needs(w->g, w->tmp, p, p->needs & ~before);
    double start = now_sec();
    int changes = p->run(w->g, w->tmp, w->o);
    arena_reset(w->tmp);
    w->looked &= !changes;
    if (changes && !w->trial)
        graph_verify(w->g);
    double sec = now_sec() - start;
    w->recorded = ((w->recorded & ~p->removes) | p->gives) & ~all_seen();
    if (!w->trial)
        check_after(p, changes, before, walk_properties(w));
    return (PassReport){p->name, false, changes, sec};
}

/* The first row from `row` on that is to run. */
static int next_row(const PassWalk *w, int row)
{
    while (row < w->end && w->pipeline && !pass_row_in(&rows[row], w->pipeline))
        row++;
    return row;
}

/* Runs the next row, and tells of its group when that has ended. */
static void run_row(PassWalk *w)
{
    int i = w->row;
    PassReport x = run_pass(w, rows[i].pass);
    w->row = next_row(w, i + 1);
    if (w->alone) {
        tell(w, x);
        return;
    }
    w->group.name = rows[i].group;
    w->group.changes += x.changes;
    w->group.sec += x.sec;
    if (group_size(&pass_table, i) > 1 || (i && same_group(&rows[i - 1], &rows[i])))
        tell(w, (PassReport){rows[i].title, true, x.changes, x.sec});
    if (w->row < w->end && same_group(&rows[i], &rows[w->row]))
        return;
    tell(w, w->group);
    w->group = (PassReport){0};
}

bool graph_has_backward(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->phase >= BACKWARD)
            return true;
    return false;
}

static bool group_in(int first, const Pipeline *p)
{
    for (int i = first; i < first + group_size(&pass_table, first); i++)
        if (pass_row_in(&rows[i], p))
            return true;
    return false;
}

static void warn_other(const PassWalk *w, const Pipeline *p, const Pipeline *other)
{
    Buf b = {.a = w->g->a};
    for (int i = 0; i < LEN(rows); i += group_size(&pass_table, i))
        if (group_in(i, other))
            buf_printf(&b, "%s%s", b.len ? "," : "", rows[i].group);
    if (w->o->warn)
        w->o->warn(w->o->warn_arg,
                   arena_printf(w->g->a, "the graph is a training step already: %s is %s (%s)",
                                p->name, other->name, b.text));
}

/* Takes up the rows that a name stands for. */
static void begin_name(PassWalk *w, const char *name)
{
    const Pipeline *p = find_pipeline(name);
    bool group = true;
    int first = p ? 0 : find_row(name, &group);
    if (first < 0)
        fail_unknown(w->g->ctx, name);
    w->pipeline = p && graph_has_backward(w->g) ? find_pipeline(p->other) : p;
    if (w->pipeline != p)
        warn_other(w, p, w->pipeline);
    w->alone = !group;
    w->end = p ? LEN(rows) : group ? first + group_size(&pass_table, first) : first + 1;
    w->row = next_row(w, first);
}

/* Takes the first name from a list; NULL: the list is empty. */
static const char *next_name(Arena *a, const char **list)
{
    size_t len = strcspn(*list, ",");
    const char *name = **list ? arena_strndup(a, *list, len) : NULL;
    *list += len + ((*list)[len] == ',');
    return name;
}

/* A table that contradicts itself is a bug, in whatever pipeline. */
static void check_table(Arena *tmp)
{
    const char *fault = pass_fault(tmp, &pass_table);
    if (fault)
        fprintf(stderr, "pass.def: %s\n", fault);
    CHECK(!fault);
}

PassWalk passes_begin(Graph *g, const char *names, const PassOptions *o)
{
    PassWalk w = {.g = g, .tmp = arena_tmp(g->a), .o = targeted(o, g->a), .names = names};
    check_table(w.tmp);
    return w;
}

PassWalk passes_fork(const PassWalk *w, Graph *g, const PassOptions *o)
{
    PassWalk x = *w;
    x.g = g;
    x.tmp = arena_tmp(g->a);
    x.o = targeted(o, g->a);
    x.after = NULL;
    x.trial = true;
    return x;
}

bool passes_until(PassWalk *w, const char *stop)
{
    w->looked = false; /* whoever stopped it may have changed g */
    for (const char *name; w->row < w->end || (name = next_name(w->g->a, &w->names));) {
        if (w->row == w->end)
            begin_name(w, name);
        else if (stop && !strcmp(rows[w->row].pass->name, stop))
            return true;
        else
            run_row(w);
    }
    if (!w->trial)
        graph_verify(w->g); /* whatever passes said that they changed */
    return false;
}

void passes_run(Graph *g, const char *names, const PassOptions *o,
                void (*after)(void *arg, const Graph *g, const PassReport *r), void *arg)
{
    PassWalk w = passes_begin(g, names, o);
    w.after = after;
    w.arg = arg;
    passes_until(&w, NULL);
}
