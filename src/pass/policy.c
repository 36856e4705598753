/* policy: what is asked of a node's value: that the backward shall find it saved, or compute it
 * again. Policies stand in the nodes, from the graph's text, by name for whole blocks
 * (policy_named.c), or by rules for single nodes (policy_rule.c); `remat` reads them there. What
 * says more wins: a rule over the policy in the text, that over a named policy. Named policies
 * prefer, rules of the command line must be obeyed.
 *
 * This file has what all of them need: blocks of a model, which storage a view shows, which node a
 * copy repeats, and how policies of several nodes become one. */
#include "pass.h"

#include <stdlib.h>
#include <string.h>

/* ---- blocks, views, copies ---- */

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

Node **find_view_bases(const Graph *g, Arena *tmp)
{
    Node **root = NEWN(tmp, Node *, g->nvalue);
    for (Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            root[n->out[k]->id] = n->op->view ? root[n->in[0]->id] : n;
    return root;
}

static void add_name(Map *named, const char *name, Node *n, Node *whole)
{
    if (map_find(named, name))
        return;
    Original *x = NEW(named->a, Original);
    *x = (Original){n, whole};
    map_put(named, name, x);
}

Map find_names(const Graph *g, Arena *tmp)
{
    Map named = {.a = tmp};
    for (Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++) {
            Node *m = n->op->region == FUSED ? defining_node(n->out[k]) : n;
            add_name(&named, n->out[k]->name, m ? m : n, n);
        }
    for (Node *n = g->first; n; n = n->next)
        EACH_FUSED(m, n)
            for (int k = 0; k < m->nout && m->nin; k++)
                add_name(&named, m->out[k]->name, m, n);
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

Node *defining_node(const Value *v)
{
    while (v->def && (v->def->op->view || v->def->op->region == FUSED))
        v = v->def->op->view ? v->def->in[0] : v->def->region->body[MAIN]->out[v->index].v;
    return v->def;
}

/* ---- several policies ---- */

int policy_set(Node *n, Policy p)
{
    int changes = n->policy != p;
    n->policy = p;
    EACH_FUSED(m, n)
        changes += m->nin ? policy_set(m, m->op->view ? POLICY_NONE : p) : 0;
    return changes;
}

bool policy_must(Policy p)
{
    return p == MUST_SAVE || p == MUST_RECOMPUTE;
}

bool policy_again(Policy p)
{
    return p == PREFER_RECOMPUTE || p == MUST_RECOMPUTE;
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
    fail_node(g, n, "is %s, but %s is %s: %s", policy_name(n->policy),
              n->op->view ? "what it shows" : "the node that it is part of", policy_name(other),
              path);
}

static int settle_view(Graph *g, Arena *tmp, Node *n, Node *shown)
{
    if (!policy_merge(&shown->policy, n->policy))
        fail_both(g, n, shown->policy, view_path(tmp, n));
    n->policy = POLICY_NONE;
    return 1;
}

static const Node *must_save(const Graph *g)
{
    const Node *found = NULL;
    for (const Node *n = g ? g->first : NULL; n && !found; n = n->next)
        found = n->policy == MUST_SAVE && n->phase < BACKWARD ? n : region_must_save(n);
    return found;
}

const Node *region_must_save(const Node *n)
{
    if (n->op->region != LOOP)
        return NULL;
    const Node *found = NULL;
    EACH_BODY(b, n)
        found = found ? found : must_save(n->region->body[b]);
    return found;
}

Policy policy_of_body(const Graph *g, Arena *tmp, const Node *n)
{
    Policy one = POLICY_NONE;
    bool first = true;
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next) {
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

/* What is said of the whole is said of all in its body, unless something is said there. */
static int settle_body(Graph *g, Arena *tmp, Node *n)
{
    bool inside = false;
    for (const Node *m = n->region->body[MAIN]->first; m; m = m->next) {
        inside |= m->policy != POLICY_NONE;
        if (m->nin && !policy_merge(&(Policy){n->policy}, m->policy))
            fail_both(g, m, n->policy, body_path(tmp, m, n));
    }
    return inside ? 0 : policy_set(n, n->policy);
}

int pass_settle(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = 0;
    for (Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            changes += pass_settle(n->region->body[b], tmp, o);
        if (n->phase < BACKWARD && n->op->region == FUSED)
            changes += settle_body(g, tmp, n);
        if (n->phase < BACKWARD && n->op->view && n->policy && defining_node(n->in[0]))
            changes += settle_view(g, tmp, n, defining_node(n->in[0]));
    }
    return changes;
}

int pass_policies(Graph *g, Arena *tmp, const PassOptions *o)
{
    return policy_named(g, tmp, o->recompute ? o->recompute : "none") +
           policy_rules(g, tmp, o->rules, o->nrules);
}
