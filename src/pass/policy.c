/* policy: which nodes the backward shall find saved and which it shall compute again, from what the
 * user asks for: a named policy for whole blocks, and rules for single nodes. The answer is written
 * into the nodes; `remat` reads it there. What says more wins: a rule over the policy that a node
 * has in the text, that over a named policy; of two rules the later one.
 *
 * A block is what the scope names up to its first part that is a number: layers.3 of
 * layers.3.attn.q_proj. Nodes outside of blocks (embedding, last norm, head, loss) get no policy by
 * name: their values are saved. A block's value that a forward node of another block reads is where
 * that one's recompute begins, so it is saved by every named policy. Views get none: they go with
 * what they show.
 *
 *   full       of every block
 *   every=K    of the blocks whose number K divides: all others are computed again
 *   selective  of every block; but products, but every second one of a block, attention, maxima,
 *              collectives and the first residual sum are saved (torchtitan's list)
 *
 * Where the forward has no block they are an error, as a rule that matches nothing is.
 *
 * They prefer; rules must be obeyed. Linear in the graph for each rule. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

/* ---- blocks, views, who reads ---- */

Block block_of(const char *scope)
{
    for (const char *s = scope; *s;) {
        size_t n = strcspn(s, ".");
        if (n && strspn(s, "0123456789") == n)
            return (Block){scope, (int)(s + n - scope), atoll(s)};
        s += n + (s[n] == '.');
    }
    return (Block){scope, 0, -1};
}

bool block_equal(const Block *x, const Block *y)
{
    return x->len == y->len && !strncmp(x->scope, y->scope, (size_t)x->len);
}

Node **find_roots(const Graph *g, Arena *tmp)
{
    Node **root = NEWN(tmp, Node *, g->nvalue);
    for (Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            root[n->out[k]->id] = n->op->view ? root[n->in[0]->id] : n;
    return root;
}

/* ---- named policies ---- */

typedef struct Named {
    int64_t every; /* blocks whose number it divides */
    bool selective;
    bool *seam;  /* by node id: read by another block's forward */
    Node **root; /* by value id */
    Map blocks;  /* of Count */
    Arena *tmp;
} Named;

/* What was met of a block so far. */
typedef struct Count {
    int products;
    bool residual;
} Count;

static bool is_named(const Node *n, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (node_is(n, names[i]))
            return true;
    return false;
}

static bool is_product(const Node *n)
{
    static const char *const names[] = {"mm", "addmm", "bmm"};
    return is_named(n, names, LEN(names));
}

static bool is_costly(const Node *n)
{
    static const char *const names[] = {"flash_attention", "amax"};
    return n->op->collective || is_named(n, names, LEN(names));
}

/* A sum with something that the block has not made itself. */
static bool is_residual(const Named *p, const Node *n, const Block *b)
{
    if (!node_is(n, "add") || !type_equal(&n->in[0]->type, &n->in[1]->type))
        return false;
    for (int i = 0; i < n->nin; i++) {
        const Node *from = p->root[n->in[i]->id];
        Block other = block_of(from ? from->scope : "");
        if (!block_equal(b, &other))
            return true;
    }
    return false;
}

static Count *count_of(Named *p, const Block *b)
{
    const char *name = arena_strndup(p->tmp, b->scope, (size_t)b->len);
    Count *c = map_find(&p->blocks, name);
    if (!c)
        map_put(&p->blocks, name, c = NEW(p->tmp, Count));
    return c;
}

static bool is_saved(Named *p, const Node *n, const Block *b)
{
    if (!p->selective)
        return p->seam[n->id];
    Count *c = count_of(p, b);
    bool product = is_product(n) && c->products++ % 2 == 0;
    bool residual = !c->residual && is_residual(p, n, b);
    c->residual |= residual;
    return p->seam[n->id] || product || residual || is_costly(n);
}

static void find_seams(Named *p, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        Block b = block_of(n->scope);
        for (int i = 0; i < n->nin && n->phase < BACKWARD && !n->op->view; i++) {
            const Node *from = p->root[n->in[i]->id];
            Block other = block_of(from ? from->scope : "");
            if (from && !block_equal(&b, &other))
                p->seam[from->id] = true;
        }
    }
}

static int tag_graph(Graph *g, Arena *tmp, int64_t every, bool selective)
{
    Named p = {every, selective, NEWN(tmp, bool, g->nnode), find_roots(g, tmp), {.a = tmp}, tmp};
    int changes = 0;
    find_seams(&p, g);
    EACH_NODE(n, g)
    {
        if (n->op->region == LOOP)
            changes += tag_graph(n->region->body, tmp, every, selective);
        if (n->op->region == LOOP && n->region->tail)
            changes += tag_graph(n->region->tail, tmp, every, selective);
        Block b = block_of(n->scope);
        if (n->phase >= BACKWARD || n->op->view || !b.len || b.number % every)
            continue;
        bool saved = is_saved(&p, n, &b); /* counts, whatever the node has */
        if (n->policy)
            continue;
        n->policy = saved ? PREFER_SAVE : PREFER_RECOMPUTE;
        changes++;
    }
    return changes;
}

/* Whether a forward node is in a block that every=K means. */
static bool has_block(const Graph *g, int64_t every)
{
    for (const Node *n = g->first; n; n = n->next) {
        bool inside = n->region && (has_block(n->region->body, every) ||
                                    (n->region->tail && has_block(n->region->tail, every)));
        Block b = block_of(n->scope);
        if (inside || (n->phase < BACKWARD && b.len && b.number % every == 0))
            return true;
    }
    return false;
}

static int tag_named(Graph *g, Arena *tmp, const char *name)
{
    char *end;
    int64_t every = 1;
    bool selective = !strcmp(name, "selective");
    if (!strcmp(name, "none"))
        return 0;
    if (!strncmp(name, "every=", 6)) {
        every = strtoll(name + 6, &end, 10);
        every = end == name + 6 || *end ? 0 : every;
    } else if (!selective && strcmp(name, "full") != 0) {
        every = 0;
    }
    if (every < 1)
        fail(
            g->ctx, TN_USAGE,
            "recompute: expected none, full, every=K (K at least 1) or selective, found \"%.100s\"",
            name);
    if (!has_block(g, every))
        fail(g->ctx, TN_USAGE,
             "recompute \"%.100s\": no node's scope names a block (a part that is a number)%s, so "
             "nothing would be computed again; use recompute-rule",
             name, every > 1 ? " whose number K divides" : "");
    return tag_graph(g, tmp, every, selective);
}

/* ---- rules ---- */

typedef struct Search {
    const PolicyRule *rule;
    const char *text;       /* the option that it came from */
    const char *scope, *op; /* patterns */
    int found, changes;
    const char **scopes; /* of nodes with such an op */
    const char **ops;    /* of all nodes */
    int nscope, capscope, nop, capop;
} Search;

static bool matches_op(const Search *s, const Node *n)
{
    return (n->phase < BACKWARD || n->origin) && globs_match(&(Globs){&s->op, 1}, n->op->name);
}

/* A fused node matches by what is in it, as it did before it was made, but for constants, or by its
 * own name in full. */
static bool matches(const Search *s, const Node *n)
{
    bool fused = n->op->region == FUSED && strcmp(s->op, n->op->name) != 0;
    if (!fused)
        return matches_op(s, n) && globs_match(&(Globs){&s->scope, 1}, n->scope);
    for (const Node *m = n->region->body->first; m; m = m->next)
        if (m->nin && matches(s, m))
            return true;
    return false;
}

static void set_policy(Search *s, Node *n, Policy p)
{
    s->changes += n->policy != p;
    n->policy = p;
    for (Node *m = n->op->region == FUSED ? n->region->body->first : NULL; m; m = m->next)
        if (m->nin && !m->op->view)
            set_policy(s, m, p);
}

/* What is said of a view is said of the node whose storage it shows, and the other way round; what
 * was said before of either is over. */
static void apply_rule(Graph *g, Arena *tmp, Search *s)
{
    Node **root = find_roots(g, tmp);
    bool *said = NEWN(tmp, bool, g->nnode);
    EACH_NODE(n, g)
    {
        if (n->op->region == LOOP)
            apply_rule(n->region->body, tmp, s);
        if (n->op->region == LOOP && n->region->tail)
            apply_rule(n->region->tail, tmp, s);
        if (!matches(s, n))
            continue;
        const Node *shown = root[n->out[0]->id];
        s->found++;
        if (shown && !n->origin && !shown->origin)
            said[shown->id] = true;
    }
    EACH_NODE(n, g)
    {
        const Node *shown = root[n->out[0]->id];
        if (shown && said[shown->id] && n->phase < BACKWARD)
            set_policy(s, n, n->op->view ? POLICY_NONE : s->rule->policy);
    }
}

/* Gathers the ops that there are, and the scopes with such an op. */
static void list_names(const Graph *g, Arena *tmp, Search *s)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (n->region)
            list_names(n->region->body, tmp, s);
        if (n->region && n->region->tail)
            list_names(n->region->tail, tmp, s);
        if (n->phase < BACKWARD || n->origin)
            PUSH(tmp, s->ops, s->nop, s->capop, n->op->name);
        if (matches_op(s, n))
            PUSH(tmp, s->scopes, s->nscope, s->capscope, n->scope);
    }
}

_Noreturn static void refuse_rule(const Graph *g, Arena *tmp, Search *s)
{
    list_names(g, tmp, s);
    const char *near = glob_nearest(tmp, s->scope, s->scopes, s->nscope);
    const char *op = nearest(s->op, s->ops, s->nop);
    if (!near)
        fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing: the forward has no %.100s%s%s",
             s->text, s->rule->pattern, s->op, op ? "; the nearest is " : "", op ? op : "");
    fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing; the nearest scope with %s is \"%s\"",
         s->text, s->rule->pattern, s->op, near);
}

static int tag_rule(Graph *g, Arena *tmp, const PolicyRule *rule)
{
    const char *cut = NULL, *text = rule->policy == MUST_SAVE ? "save" : "recompute-rule";
    for (const char *s = rule->pattern; (s = strstr(s, "::")); s++)
        cut = s;
    if (!cut || !cut[2])
        fail(g->ctx, TN_USAGE, "%s: expected PATTERN::OP, found \"%.300s\"", text, rule->pattern);
    Search s = {.rule = rule, .text = text, .op = cut + 2};
    s.scope = arena_strndup(tmp, rule->pattern, (size_t)(cut - rule->pattern));
    apply_rule(g, tmp, &s);
    if (!s.found)
        refuse_rule(g, tmp, &s);
    return s.changes;
}

int policy_tag(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = tag_named(g, tmp, o->recompute ? o->recompute : "none");
    for (int i = 0; i < o->nrule; i++)
        changes += tag_rule(g, tmp, &o->rule[i]);
    return changes;
}
