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

static void add_names(Map *named, Node *n, Node *whole)
{
    Original *x = NEW(named->a, Original);
    *x = (Original){n, whole};
    for (int k = 0; k < n->nout; k++)
        if (!map_find(named, n->out[k]->name))
            map_put(named, n->out[k]->name, x);
}

Map find_names(const Graph *g, Arena *tmp)
{
    Map named = {.a = tmp};
    for (Node *n = g->first; n; n = n->next)
        add_names(&named, n, n);
    for (Node *n = g->first; n; n = n->next)
        for (Node *m = n->op->region == FUSED ? n->region->body->first : NULL; m; m = m->next)
            if (m->nin)
                add_names(&named, m, n);
    return named;
}

Original find_original(const Map *named, const Node *n)
{
    enum { MOST = 256 }; /* copies of copies; who writes a ring by hand finds no end */
    const Original *x = NULL;
    for (int i = 0; i < MOST && n && n->phase >= BACKWARD; i++) {
        x = n->origin ? map_find(named, n->origin) : NULL;
        n = x ? x->node : NULL;
    }
    return x && n->phase < BACKWARD ? *x : (Original){0};
}

Node *maker(const Value *v)
{
    while (v->def && (v->def->op->view || v->def->op->region == FUSED))
        v = v->def->op->view ? v->def->in[0] : v->def->region->body->out[v->index].v;
    return v->def;
}

/* ---- named policies ---- */

typedef struct Tags {
    int64_t every; /* blocks whose number it divides */
    bool selective;
    bool *seam;  /* by node id: read by another block's forward */
    Node **root; /* by value id */
    Map blocks;  /* of Count */
    Arena *tmp;
} Tags;

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
static bool is_residual(const Tags *p, const Node *n, const Block *b)
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

static Count *count_of(Tags *p, const Block *b)
{
    const char *name = arena_strndup(p->tmp, b->scope, (size_t)b->len);
    Count *c = map_find(&p->blocks, name);
    if (!c)
        map_put(&p->blocks, name, c = NEW(p->tmp, Count));
    return c;
}

static bool is_saved(Tags *p, const Node *n, const Block *b)
{
    if (!p->selective)
        return p->seam[n->id];
    Count *c = count_of(p, b);
    bool product = is_product(n) && c->products++ % 2 == 0;
    bool residual = !c->residual && is_residual(p, n, b);
    c->residual |= residual;
    return p->seam[n->id] || product || residual || is_costly(n);
}

static void find_seams(Tags *p, const Graph *g)
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
    Tags p = {every, selective, NEWN(tmp, bool, g->nnode), find_roots(g, tmp), {.a = tmp}, tmp};
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
    int64_t every = 1;
    bool selective = !strcmp(name, "selective");
    if (!strcmp(name, "none"))
        return 0;
    if (!strncmp(name, "every=", 6)) {
        size_t n = strspn(name + 6, "0123456789");
        every = n && n < 10 && !name[6 + n] ? atoll(name + 6) : 0;
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

/* ---- what is said of views, and in bodies of `fused` ---- */

bool policy_must(Policy p)
{
    return p == MUST_SAVE || p == MUST_RECOMPUTE;
}

bool policy_merge(Policy *p, Policy more)
{
    if (policy_must(*p) && policy_must(more))
        return *p == more;
    if (policy_must(more) || (more && !policy_must(*p) && *p != PREFER_SAVE))
        *p = more;
    return true;
}

/* "%c <- %b <- %a": a view and what it shows. */
static const char *view_path(Arena *a, const Node *n)
{
    Buf b = {.a = a};
    for (; n->op->view; n = n->in[0]->def)
        buf_printf(&b, "%%%s <- ", n->out[0]->name);
    buf_printf(&b, "%%%s", n->out[0]->name);
    return b.text;
}

static const char *body_path(Arena *a, const Node *n, const Node *whole)
{
    return arena_printf(a, "%%%s in %%%s", n->out[0]->name, whole->out[0]->name);
}

_Noreturn static void fail_both(const Graph *g, const Node *n, Policy other, const char *path)
{
    fail_node(g, n, "is %s, but %s is %s: %s%s", policy_name(n->policy),
              n->op->view ? "what it shows" : "the node that it is part of", policy_name(other),
              path, n->op->view ? "" : ", which the pass unfuse takes apart");
}

static int settle_view(Graph *g, Arena *tmp, Node *n, Node *root)
{
    if (!policy_merge(&root->policy, n->policy))
        fail_both(g, n, root->policy, view_path(tmp, n));
    n->policy = POLICY_NONE;
    return 1;
}

Policy policy_of_body(const Graph *g, Arena *tmp, const Node *n)
{
    Policy one = POLICY_NONE;
    bool first = true;
    for (const Node *m = n->region->body->first; m; m = m->next) {
        if (!m->nin || m->op->view || m->phase >= BACKWARD)
            continue;
        if (!first && one != m->policy &&
            (!policy_merge(&one, PREFER_SAVE) || !policy_merge(&one, m->policy)))
            fail_both(g, m, one, body_path(tmp, m, n));
        one = first ? m->policy : one;
        first = false;
    }
    return one;
}

/* What is said of the whole or in its body is said of both. */
static int settle_body(Graph *g, Arena *tmp, Node *n)
{
    Policy before = n->policy, inside = POLICY_NONE;
    for (const Node *m = n->region->body->first; m; m = m->next) {
        inside = m->policy ? m->policy : inside;
        if (m->nin && !policy_merge(&n->policy, m->policy))
            fail_both(g, m, n->policy, body_path(tmp, m, n));
    }
    return inside ? n->policy != before : policy_set(n, n->policy);
}

/* Whether there may be something to be done, which is seldom. */
static bool unsettled(const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next)
        if (n->region || (n->op->view && n->policy && n->phase < BACKWARD))
            return true;
    return false;
}

int policy_settle(Graph *g, Arena *tmp)
{
    Node **root = unsettled(g) ? find_roots(g, tmp) : NULL;
    int changes = 0;
    if (!root)
        return 0;
    for (Node *n = g->first; n; n = n->next) {
        for (int t = 0; t < 2 && n->op->region == LOOP; t++)
            if (region_body(n->region, t))
                changes += policy_settle(region_body(n->region, t), tmp);
        if (n->phase < BACKWARD && n->op->region == FUSED)
            changes += settle_body(g, tmp, n);
        if (n->phase < BACKWARD && n->op->view && n->policy && root[n->out[0]->id])
            changes += settle_view(g, tmp, n, root[n->out[0]->id]);
    }
    return changes;
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
    Original x = {maker(n->out[0]), n == whole ? d->root[n->out[0]->id] : whole};
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
    EACH_NODE(n, d->g)
    {
        if (n->op->region != FUSED && matches(s, n))
            say(d, s, n, n);
        for (Node *m = n->op->region == FUSED ? n->region->body->first : NULL; m; m = m->next)
            if (matches(s, m) && m->nin)
                say(d, s, m, n);
            else if (matches(s, m))
                s->found++;
    }
}

int policy_set(Node *n, Policy p)
{
    int changes = n->policy != p;
    n->policy = p;
    for (Node *m = n->op->region == FUSED ? n->region->body->first : NULL; m; m = m->next)
        changes += m->nin ? policy_set(m, m->op->view ? POLICY_NONE : p) : 0;
    return changes;
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
    EACH_NODE(n, d->g)
    {
        const Node *shown = d->root[n->out[0]->id];
        if (!shown || !d->said[shown->id] || n->phase >= BACKWARD)
            continue;
        if (n->op->region == FUSED)
            d->mixed[n->id] = true;
        else
            s->changes += policy_set(n, n->op->view ? POLICY_NONE : s->rule->policy);
    }
}

static void apply_rules(Graph *g, Arena *tmp, Search *s, int count)
{
    Said d = {g,
              tmp,
              find_roots(g, tmp),
              find_names(g, tmp),
              .said = NEWN(tmp, bool, g->nnode),
              .mixed = NEWN(tmp, bool, g->nnode),
              .gone = NEWN(tmp, Policy, g->nnode)};
    for (int i = 0; i < count; i++)
        apply_rule(&d, &s[i]);
    for (Node *n = g->first; n; n = n->next) {
        if (d.mixed[n->id])
            n->policy = policy_of_body(g, tmp, n);
        if (d.gone[n->id] == MUST_SAVE)
            fail_node(g, n,
                      "is must_save, but the graph computes it here again and has no longer the "
                      "node that it repeats: %%%s <- %%%s, which is gone",
                      n->out[0]->name, n->origin ? n->origin : "its original");
        for (int t = 0; t < 2 && n->op->region == LOOP; t++)
            if (region_body(n->region, t))
                apply_rules(region_body(n->region, t), tmp, s, count);
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
    const char *near = glob_nearest(tmp, s->scope, s->scopes, s->nscope);
    const char *op = nearest(s->op, s->ops, s->nop);
    const char *more = prefixed(s);
    if (!strcmp(s->op, "fused"))
        fail(g->ctx, TN_USAGE,
             "%s \"%.300s\": matches nothing: a fused node is matched by the ops in it", s->text,
             s->rule->pattern);
    if (!near)
        fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing: the forward has no %.100s%s%s",
             s->text, s->rule->pattern, s->op, op ? "; the nearest is " : "", op ? op : "");
    if (more)
        fail(g->ctx, TN_USAGE,
             "%s \"%.300s\": matches nothing: a scope matches as a whole; \"%.200s%s*::%.100s\" "
             "is for all that begin so, such as \"%.200s\"",
             s->text, s->rule->pattern, s->scope, more[strlen(s->scope)] == '.' ? "." : "", s->op,
             more);
    fail(g->ctx, TN_USAGE, "%s \"%.300s\": matches nothing; the nearest scope with %s is \"%s\"",
         s->text, s->rule->pattern, s->op, near);
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

int policy_tag(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = tag_named(g, tmp, o->recompute ? o->recompute : "none");
    Search *s = NEWN(tmp, Search, o->nrule);
    for (int i = 0; i < o->nrule; i++)
        s[i] = read_rule(g, tmp, &o->rule[i]);
    if (o->nrule)
        apply_rules(g, tmp, s, o->nrule);
    for (int i = 0; i < o->nrule; i++) {
        if (!s[i].found)
            refuse_rule(g, tmp, &s[i]);
        changes += s[i].changes;
    }
    return changes;
}
