/* Policies by rules, for the nodes whose scope and op match two patterns; of the rules for a node,
 * or for what shows it or repeats it, the later one holds. One that matches nothing is an error
 * that names what is nearest. Linear in the graph for each rule. */
#include "pass.h"

#include <string.h>

typedef struct Search {
    const PolicyRule *rule;
    const char *text;       /* the option that it came from */
    const char *scope, *op; /* patterns */
    int found, changes;
    const char **scopes; /* of nodes with such an op */
    const char **ops;    /* of all nodes */
    int nscope, capscope, nop, capop;
} Search;

/* A graph in which nodes are looked for, and what the rule at hand says there. */
typedef struct Said {
    Graph *g;
    Arena *tmp;
    Node **root;  /* by value id */
    Map named;    /* find_names */
    bool *said;   /* by node id */
    Node **inner; /* what it is said of in bodies of `fused` */
    int ninner, capinner;
    bool *mixed;  /* by node id: something was said in its body */
    Policy *gone; /* by node id, of copies whose original is gone: the last that was said */
} Said;

static bool matches_op(const Search *s, const Node *n)
{
    return (n->phase < BACKWARD || n->origin) && globs_match(&(Globs){&s->op, 1}, n->op->name);
}

static bool matches(const Search *s, const Node *n)
{
    return matches_op(s, n) && globs_match(&(Globs){&s->scope, 1}, n->scope);
}

/* n, of the graph or of the body of `whole`, matches: what is said of a view is said of the node
 * whose storage it shows, and what is said of a copy is said of its original. */
static void say(Said *d, Search *s, Node *n, Node *whole)
{
    Original x = {defining_node(n->out[0]), n == whole ? d->root[n->out[0]->id] : whole};
    s->found++;
    if (!x.whole || !x.node)
        return;
    if (x.node->phase >= BACKWARD) {
        const Node *copy = x.node;
        int id = x.whole->id;
        x = find_original(&d->named, copy);
        if (!x.whole && copy->origin && copy->nin)
            d->gone[id] = s->rule->policy;
    }
    if (x.whole)
        d->said[x.whole->id] = true;
    if (x.whole && x.node != x.whole)
        PUSH(d->tmp, d->inner, d->ninner, d->capinner, x.node);
}

/* A fused node matches by what is in it, as it did before it was made; of constants in it, which
 * are not stored, nothing can be said. */
static void find_matches(Said *d, Search *s)
{
    EACH_NODE(n, d->g) {
        if (n->op->region != FUSED && matches(s, n))
            say(d, s, n, n);
        EACH_FUSED(m, n)
            if (matches(s, m) && m->nin)
                say(d, s, m, n);
            else if (matches(s, m))
                s->found++;
    }
}

/* What was said before of a view or what it shows is over. */
static void apply_rule(Said *d, Search *s)
{
    memset(d->said, 0, sizeof *d->said * (size_t)d->g->nnode);
    d->ninner = 0;
    find_matches(d, s);
    for (int i = 0; i < d->ninner; i++) {
        s->changes += d->inner[i]->policy != s->rule->policy;
        d->inner[i]->policy = s->rule->policy;
    }
    EACH_NODE(n, d->g) {
        const Node *shown = d->root[n->out[0]->id];
        if (!shown || !d->said[shown->id] || n->phase >= BACKWARD)
            continue;
        if (n->op->region == FUSED)
            d->mixed[n->id] = true;
        else
            s->changes += policy_set(n, n->op->view ? POLICY_NONE : s->rule->policy);
    }
}

/* Whether rules say of members of one body what excludes each other. */
static bool disagrees(const Node *n)
{
    bool save = false, again = false;
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next) {
        save |= m->nin && m->policy == MUST_SAVE;
        again |= m->nin && m->policy == MUST_RECOMPUTE;
    }
    return save && again;
}

/* Returns whether fused nodes must be taken apart first. */
static bool apply_rules(Graph *g, Arena *tmp, Search *s, int count)
{
    bool apart = false;
    Said d = {g,
              tmp,
              find_view_bases(g, tmp),
              find_names(g, tmp),
              .said = NEWN(tmp, bool, g->nnode),
              .mixed = NEWN(tmp, bool, g->nnode),
              .gone = NEWN(tmp, Policy, g->nnode)};
    for (int i = 0; i < count; i++)
        apply_rule(&d, &s[i]);
    for (Node *n = g->first; n; n = n->next) {
        if (d.mixed[n->id] && disagrees(n))
            apart = true;
        else if (d.mixed[n->id])
            n->policy = policy_of_body(g, tmp, n);
        if (d.gone[n->id] == MUST_SAVE)
            fail_node(g, n,
                      "is must_save, but the graph computes it here again and has no longer the "
                      "node that it repeats: %%%s <- %%%s, which is gone",
                      n->out[0]->name, n->origin ? n->origin : "its original");
        bool copy =
            n->phase >= BACKWARD && find_original(&d.named, n).whole; /* whose body speaks */
        for (int b = 0; n->op->region == LOOP && !copy && b < region_nbody(n->region); b++)
            apart |= apply_rules(n->region->body[b], tmp, s, count);
    }
    return apart;
}

/* Gathers the ops that there are, and the scopes with such an op. */
static void list_names(const Graph *g, Arena *tmp, Search *s)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_BODY(b, n)
            list_names(n->region->body[b], tmp, s);
        if (n->op->region == FUSED)
            continue;
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
    int changes = 0;
    for (int i = 0; i < count; i++)
        s[i] = read_rule(g, tmp, &rule[i]);
    if (count)
        apply_rules(g, tmp, s, count);
    for (int i = 0; i < count; i++) {
        if (!s[i].found)
            refuse_rule(g, tmp, &s[i]);
        changes += s[i].changes;
    }
    return changes;
}
