/* policy_rule: policies by rules, for the forward nodes and clones whose scope and op match two
 * patterns. A rule for a view counts for its base, one for a clone for its original; the last of
 * several rules for a node holds. A rule that matches nothing is an error that names the nearest
 * scope or op; so is must_save for a clone whose original is gone. The rule `state` is offload's
 * own. Linear for each rule. */
#include "pass.h"

#include <string.h>

typedef struct ParsedRule {
    const PolicyRule *rule;
    const char *text;       /* the option that it came from */
    const char *scope, *op; /* patterns */
    int found;
} ParsedRule;

static bool matches_op(const ParsedRule *s, const Node *n)
{
    return (n->phase < BACKWARD || n->origin) && !node_moves(n) &&
           globs_match(&(Globs){&s->op, 1}, n->op->name);
}

static bool matches(const ParsedRule *s, const Node *n)
{
    return matches_op(s, n) && globs_match(&(Globs){&s->scope, 1}, n->scope);
}

/* Fills, by node id, the policy of the last rule: a rule for a view counts for its base, one for a
 * clone for its original, or for the clone if that is gone. */
static Policy *find_asked(const Graph *g, Arena *tmp, ParsedRule *s, int count)
{
    Policy *asked = NEWN(tmp, Policy, g->nnode);
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
                asked[from ? from->id : def->id] = s[i].rule->policy;
        }
    return asked;
}

static int apply_rules(Graph *g, Arena *tmp, ParsedRule *s, int count)
{
    int changes = 0;
    const Policy *asked = find_asked(g, tmp, s, count);
    for (Node *n = g->first; n; n = n->next) {
        bool backward = n->phase >= BACKWARD;
        if (backward && asked[n->id] == MUST_SAVE)
            fail_node(g, n,
                      "is must_save, but the graph computes it here again and has no longer the "
                      "node that it repeats: %%%s <- %%%s, which is gone",
                      n->out[0]->name, n->origin);
        if (!backward && asked[n->id] && n->policy != asked[n->id]) {
            n->policy = asked[n->id];
            changes++;
        }
        if (backward && find_original(g, n))
            continue; /* rules match the nodes of its body */
        EACH_LOOP_BODY(b, n)
            changes += apply_rules(n->region->body[b], tmp, s, count);
    }
    return changes;
}

/* The nearest scope or op to a rule that matches nothing. */
typedef struct RuleNames {
    const char **scope; /* of nodes with the rule's op */
    const char **op;    /* of all nodes */
    int nscope, capscope, nop, capop;
} RuleNames;

static void list_names(const Graph *g, Arena *tmp, const ParsedRule *s, RuleNames *x)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            list_names(n->region->body[b], tmp, s, x);
        if (n->phase < BACKWARD || n->origin)
            PUSH(tmp, x->op, x->nop, x->capop, n->op->name);
        if (matches_op(s, n))
            PUSH(tmp, x->scope, x->nscope, x->capscope, n->scope);
    }
}

/* A scope that begins with a pattern without wildcards. */
static const char *find_begun(const RuleNames *x, const char *pattern)
{
    size_t n = strcspn(pattern, "*?[\\");
    for (int i = 0; i < x->nscope && n && !pattern[n]; i++)
        if (!strncmp(x->scope[i], pattern, n))
            return x->scope[i];
    return NULL;
}

_Noreturn static void refuse_rule(const Graph *g, Arena *tmp, const ParsedRule *s)
{
    RuleNames x = {0};
    list_names(g, tmp, s, &x);
    const char *near = glob_nearest(s->scope, x.scope, x.nscope), *op = nearest(s->op, x.op, x.nop),
               *more = find_begun(&x, s->scope);
    Buf b = {.a = tmp};
    if (!strcmp(s->op, "fused"))
        buf_add(&b, ": a fused node is matched by the ops in it");
    else if (!x.nscope)
        buf_printf(&b, ": the forward has no %.100s%s%s", s->op, op ? "; the nearest is " : "",
                   op ? op : "");
    else if (more)
        buf_printf(&b,
                   ": a scope matches as a whole; \"%.200s%s*::%.100s\" is for all that begin so, "
                   "such as \"%.200s\"",
                   s->scope, more[strlen(s->scope)] == '.' ? "." : "", s->op, more);
    else
        buf_printf(&b, "; %s %.100s is \"%.200s\"",
                   near ? "the nearest scope with" : "a scope with", s->op,
                   near ? near : x.scope[0]);
    fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing%s", s->text, s->rule->pattern, b.text);
}

static ParsedRule read_rule(Graph *g, Arena *tmp, const PolicyRule *rule)
{
    const char *cut = NULL, *text = rule->policy == MUST_SAVE ? "save"
                                    : rule->policy == OFFLOAD ? "offload"
                                                              : "recompute-rule";
    for (const char *s = rule->pattern; (s = strstr(s, "::")); s++)
        cut = s;
    if (!cut || !cut[2])
        fail(g->ctx, TN_USAGE, "%s: expected PATTERN::OP, found \"%.300s\"", text, rule->pattern);
    return (ParsedRule){.rule = rule,
                        .text = text,
                        .op = cut + 2,
                        .scope = arena_strndup(tmp, rule->pattern, (size_t)(cut - rule->pattern))};
}

bool policy_rule_is_state(const PolicyRule *rule)
{
    return rule->policy == OFFLOAD && !strcmp(rule->pattern, "state");
}

int policy_rules(Graph *g, Arena *tmp, const PolicyRule *rule, int nrule)
{
    ParsedRule *s = NEWN(tmp, ParsedRule, nrule);
    int count = 0;
    for (int i = 0; i < nrule; i++)
        if (!policy_rule_is_state(&rule[i]))
            s[count++] = read_rule(g, tmp, &rule[i]);
    int changes = count ? apply_rules(g, tmp, s, count) : 0;
    for (int i = 0; i < count; i++)
        if (!s[i].found)
            refuse_rule(g, tmp, &s[i]);
    return changes;
}
