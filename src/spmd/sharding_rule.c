/* sharding_rule: the rules of --shard: their text, what they match, and which holds: the last rule
 * that matches a port, alone. Linear in rules times ports. */
#include "sharding.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

_Noreturn static void refuse(const Sharder *x, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

_Noreturn static void refuse(const Sharder *x, const char *rule, const char *format, ...)
{
    char why[1500];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    fail(x->g->ctx, TN_USAGE, "%s \"%.300s\": %s", x->option, rule, why);
}

static int find_mesh_axis(const Sharder *x, const ShardRule *r, const char *word)
{
    int c = mesh_axis(x->m, word);
    if (c < 0)
        refuse(x, r->text, "the mesh %s has no axis \"%.100s\"", mesh_text(x->tmp, x->m), word);
    if (r->cut[c].kind)
        refuse(x, r->text, "mesh axis \"%s\" is named twice", word);
    return c;
}

static int64_t parse_number(const Sharder *x, const ShardRule *r, const char *word)
{
    char *end;
    long long n = strtoll(word, &end, 10);
    if (*end || n < 1 || n > INT32_MAX)
        refuse(x, r->text, "expected a mesh axis or a whole number, found \"%.100s\"", word);
    return n;
}

/* s without the spaces around it. */
static char *trimmed(char *s)
{
    s += strspn(s, " ");
    size_t n = strlen(s);
    while (n && s[n - 1] == ' ')
        n--;
    s[n] = 0;
    return s;
}

/* "3,tp,fsdp": the mesh axes that cut a tensor axis, major first, and how many parts lie between.
 */
static void parse_list(const Sharder *x, ShardRule *r, int axis, char *list)
{
    int64_t outer = 1;
    bool named = false; /* by the last word: a mesh axis */
    r->whole[axis] = 1;
    while (list) {
        const char *word = trimmed(strsep(&list, ","));
        int64_t n = 1;
        named = *word && !isdigit((unsigned char)*word);
        if (named) {
            int c = find_mesh_axis(x, r, word);
            r->cut[c] = (Cut){CUT_SLICE, axis, outer};
            n = x->m->size[c];
        } else if (*word || list) {
            n = parse_number(x, r, word);
            if (__builtin_mul_overflow(r->whole[axis], n, &r->whole[axis]))
                refuse(x, r->text, "its numbers are too large");
        }
        if (__builtin_mul_overflow(outer, n, &outer))
            refuse(x, r->text, "its numbers are too large");
    }
    if (!named)
        refuse(x, r->text, "expected a mesh axis at the end of what cuts axis %d", axis);
}

ShardRule rule_parse(const Sharder *x, const char *text)
{
    ShardRule r = {.text = text};
    char *equals = strrchr(text, '=');
    if (!equals || equals == text)
        refuse(x, text,
               strcmp(x->option, "shard")
                   ? "expected PATTERN=AXIS:MESH_AXES, such as layers.*.mlp.down_proj::mm=0:fsdp"
                   : "expected auto, or PATTERN=AXIS:MESH_AXES, such as *.weight=0:fsdp");
    r.pattern = arena_strndup(x->tmp, text, (size_t)(equals - text));
    char *lists = equals[1] ? arena_strdup(x->tmp, equals + 1) : NULL;
    while (lists) {
        char *colon, *s = strsep(&lists, ";");
        long axis = strtol(s, &colon, 10);
        if (colon == s || *colon != ':' || axis < 0 || axis >= TN_RANK)
            refuse(x, text, "expected AXIS:MESH_AXES, found \"%.100s\"", s);
        if (r.whole[axis])
            refuse(x, text, "tensor axis %ld is named twice", axis);
        parse_list(x, &r, (int)axis, colon + 1);
    }
    return r;
}

/* ---- what rules match ---- */

static bool matches(const ShardRule *r, const char *name)
{
    return globs_match(&(Globs){&r->pattern, 1}, name);
}

bool port_has_rules(const Port *p)
{
    return p->role == ROLE_NONE || p->role == ROLE_BATCH || p->role == ROLE_CONST ||
           p->role == ROLE_METRIC;
}

/* Names of parameters, after them those of other values. */
static const char **port_names(const Sharder *x, int *nparam, int *count)
{
    const Graph *g = x->g;
    const char **name = NEWN(x->tmp, const char *, g->nin + g->nout);
    *count = 0;
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM)
            name[(*count)++] = g->in[i].name;
    *nparam = *count;
    for (int i = 0; i < g->nin + g->nout; i++) {
        const Port *p = i < g->nin ? &g->in[i] : &g->out[i - g->nin];
        if (port_has_rules(p))
            name[(*count)++] = p->v->name;
    }
    return name;
}

void rules_parse(Sharder *x, const Globs *texts)
{
    int nparam, count;
    const char **name = port_names(x, &nparam, &count);
    x->rule = NEWN(x->tmp, ShardRule, texts->count);
    for (int i = 0; i < texts->count; i++) {
        if (!strcmp(texts->pattern[i], "auto")) /* sharding_is_solved */
            continue;
        ShardRule *r = &x->rule[x->nrule++];
        *r = rule_parse(x, texts->pattern[i]);
        globs_check(x->tmp, &(Globs){&r->pattern, 1}, "shard", name, count);
        for (int k = 0; k < nparam; k++)
            r->params |= matches(r, name[k]);
    }
}

ShardRule *rule_find(const Sharder *x, bool param, const char *name)
{
    for (int i = x->nrule - 1; i >= 0; i--)
        if (x->rule[i].params == param && matches(&x->rule[i], name))
            return &x->rule[i];
    return NULL;
}

void sharding_set(const Sharder *x, Sharding *s, int c, Cut cut)
{
    if (x->m->size[c] > 1)
        s->cut[c] = cut;
}

/* Into how many parts a list cuts an axis, if it has a number; else padding makes it even. */
static int64_t count_units(const Sharder *x, const ShardRule *r, int d)
{
    int64_t units = r->whole[d];
    for (int c = 0; c < x->m->naxes && r->whole[d] > 1; c++)
        if (r->cut[c].kind && r->cut[c].axis == d)
            units = MAX(units, r->cut[c].outer * x->m->size[c]);
    return units;
}

void rule_apply(Sharder *x, ShardRule *r, const char *name, const Type *t, Sharding *s)
{
    r->holds = true;
    for (int d = 0; d < TN_RANK; d++) {
        if (r->whole[d] && d >= t->rank)
            refuse(x, r->text, "\"%s\" %s has no axis %d", name, type_text(x->tmp, t), d);
        int64_t units = r->whole[d] ? count_units(x, r, d) : 1;
        if (t->dim[d] % units)
            refuse(x, r->text, "axis %d of \"%s\" %s is no multiple of %lld", d, name,
                   type_text(x->tmp, t), (long long)units);
    }
    for (int c = 0; c < x->m->naxes; c++)
        if (r->cut[c].kind) {
            sharding_set(x, s, c, r->cut[c]);
            x->used[c] = true;
        }
}

/* A rule that nowhere holds and that a later one does not say again. */
static void check_contradiction(const Sharder *x, const ShardRule *r, const char *name,
                                const Type *t)
{
    const ShardRule *now = rule_find(x, r->params, name);
    if (!r->holds && matches(r, name) && !cuts_equal(MAX_MESH, r->cut, now->cut))
        refuse(x, r->text,
               "contradicts \"%.300s\", which holds for all that it matches, such as "
               "\"%s\" %s",
               now->text, name, type_text(x->tmp, t));
}

void rules_check(const Sharder *x)
{
    const Graph *g = x->g;
    for (int i = 0; i < x->nrule; i++)
        for (int k = 0; k < g->nin + g->nout; k++) {
            const Port *p = k < g->nin ? &g->in[k] : &g->out[k - g->nin];
            const ShardRule *r = &x->rule[i];
            if (r->params ? p->role == ROLE_PARAM : port_has_rules(p))
                check_contradiction(x, r, r->params ? p->name : p->v->name, &p->v->type);
        }
}
