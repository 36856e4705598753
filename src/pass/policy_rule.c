/* Policies by rules, for the nodes whose scope and op match two patterns. Of the rules for a node,
 * its views and its clones the last one holds. A rule that matches nothing is an error that names
 * the nearest scope or op. Linear for each rule. */
#include "pass.h"

#include <string.h>

typedef struct Search {
    const PolicyRule *rule;
    const char *text;       /* the option that it came from */
    const char *scope, *op; /* patterns */
    int found;
    const char **scopes; /* of nodes with such an op */
    const char **ops;    /* of all nodes */
    int nscope, capscope, nop, capop;
} Search;

static bool matches_op(const Search *s, const Node *n)
{
    return (n->phase < BACKWARD || n->origin) && globs_match(&(Globs){&s->op, 1}, n->op->name);
}

static bool matches(const Search *s, const Node *n)
{
    return matches_op(s, n) && globs_match(&(Globs){&s->scope, 1}, n->scope);
}

/* Fills, by node id, the policy of the last rule: a rule for a view counts for its base, one for a
 * clone for its original, or for the clone if that is gone. */
static Policy *find_said(const Graph *g, Arena *tmp, Search *s, int count)
{
    Policy *said = NEWN(tmp, Policy, g->nnode);
    Node **base = find_view_bases(g, tmp);
    for (int i = 0; i < count; i++)
        for (const Node *n = g->first; n; n = n->next) {
            if (!matches(&s[i], n))
                continue;
            const Node *def = base[n->out[0]->id], *from = def;
            s[i].found++;
            if (def && def->phase >= BACKWARD)
                from = find_original(g, def);
            if (from || (def && def->origin && def->nin))
                said[from ? from->id : def->id] = s[i].rule->policy;
        }
    return said;
}

static int apply_rules(Graph *g, Arena *tmp, Search *s, int count)
{
    int changes = 0;
    const Policy *said = find_said(g, tmp, s, count);
    for (Node *n = g->first; n; n = n->next) {
        bool backward = n->phase >= BACKWARD;
        if (backward && said[n->id] == MUST_SAVE)
            fail_node(g, n,
                      "is must_save, but the graph computes it here again and has no longer the "
                      "node that it repeats: %%%s <- %%%s, which is gone",
                      n->out[0]->name, n->origin);
        if (!backward && said[n->id] && n->policy != said[n->id]) {
            n->policy = said[n->id];
            changes++;
        }
        if (backward && find_original(g, n))
            continue; /* rules match the nodes of its body */
        EACH_LOOP_BODY(b, n)
            changes += apply_rules(n->region->body[b], tmp, s, count);
    }
    return changes;
}

/* Lists the graph's ops, and the scopes of nodes with the rule's op. */
static void list_names(const Graph *g, Arena *tmp, Search *s)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            list_names(n->region->body[b], tmp, s);
        if (n->phase < BACKWARD || n->origin)
            PUSH(tmp, s->ops, s->nop, s->capop, n->op->name);
        if (matches_op(s, n))
            PUSH(tmp, s->scopes, s->nscope, s->capscope, n->scope);
    }
}

/* A pattern without wildcards that names what a scope begins with. */
static const char *prefixed(const Search *s)
{
    size_t n = strcspn(s->scope, "*?[\\");
    for (int i = 0; i < s->nscope && n && !s->scope[n]; i++)
        if (!strncmp(s->scopes[i], s->scope, n))
            return s->scopes[i];
    return NULL;
}

_Noreturn static void refuse_rule(const Graph *g, Arena *tmp, Search *s)
{
    list_names(g, tmp, s);
    const char *near = glob_nearest(s->scope, s->scopes, s->nscope);
    const char *op = nearest(s->op, s->ops, s->nop);
    const char *more = prefixed(s);
    if (!strcmp(s->op, "fused"))
        fail(g->ctx, TN_USAGE,
             "%s \"%.300s\": matches nothing: a fused node is matched by the ops in it", s->text,
             s->rule->pattern);
    if (!s->nscope)
        fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing: the forward has no %.100s%s%s",
             s->text, s->rule->pattern, s->op, op ? "; the nearest is " : "", op ? op : "");
    if (more)
        fail(g->ctx, TN_USAGE,
             "%s \"%.300s\": matches nothing: a scope matches as a whole; \"%.200s%s*::%.100s\" "
             "is for all that begin so, such as \"%.200s\"",
             s->text, s->rule->pattern, s->scope, more[strlen(s->scope)] == '.' ? "." : "", s->op,
             more);
    fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing; %s %.100s is \"%.200s\"", s->text,
         s->rule->pattern, near ? "the nearest scope with" : "a scope with", s->op,
         near ? near : s->scopes[0]);
}

static Search read_rule(Graph *g, Arena *tmp, const PolicyRule *rule)
{
    const char *cut = NULL, *text = rule->policy == MUST_SAVE ? "save" : "recompute-rule";
    for (const char *s = rule->pattern; (s = strstr(s, "::")); s++)
        cut = s;
    if (!cut || !cut[2])
        fail(g->ctx, TN_USAGE, "%s: expected PATTERN::OP, found \"%.300s\"", text, rule->pattern);
    return (Search){.rule = rule,
                    .text = text,
                    .op = cut + 2,
                    .scope = arena_strndup(tmp, rule->pattern, (size_t)(cut - rule->pattern))};
}

int policy_rules(Graph *g, Arena *tmp, const PolicyRule *rule, int count)
{
    Search *s = NEWN(tmp, Search, count);
    for (int i = 0; i < count; i++)
        s[i] = read_rule(g, tmp, &rule[i]);
    int changes = count ? apply_rules(g, tmp, s, count) : 0;
    for (int i = 0; i < count; i++)
        if (!s[i].found)
            refuse_rule(g, tmp, &s[i]);
    return changes;
}
