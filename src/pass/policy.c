/* policy: gives nodes their policies, whether the backward reads their values saved, recomputes
 * them, or finds them in the host's memory. A policy comes from the graph's text, by name for whole
 * blocks (policy_named.c), or by rules for single nodes (policy_rule.c); `remat` and `offload` read
 * it in the node. The more specific one wins: a rule over the text, the text over a name. Named
 * policies prefer; rules of the command line must be obeyed.
 *
 * This file has what all of them share: blocks of a model, the base of a view, the original of a
 * clone, how two policies become one; and the pass `settle`, which moves policies of views to their
 * bases. Linear. */
#include "pass.h"
#include "../flow/flow.h"

#include <stdlib.h>
#include <string.h>

/* ---- blocks, views, clones ---- */

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
    Node **base = NEWN(tmp, Node *, g->nvalue);
    for (Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            base[n->out[k]->id] = node_aliases(n) ? base[n->in[0]->id] : n;
    return base;
}

Node *defining_node(const Value *v)
{
    while (v->def && (node_aliases(v->def) || v->def->op->region == FUSED))
        v = node_aliases(v->def) ? v->def->in[0] : v->def->region->body[MAIN]->out[v->index].v;
    return v->def;
}

Node *find_original(const Graph *g, const Node *n)
{
    enum { MOST = 256 }; /* clones of clones; origins written by hand may form a ring */
    for (int i = 0; i < MOST && n && n->phase >= BACKWARD && n->origin; i++) {
        Node *from = node_origin(g, n);
        if (from && from->phase < BACKWARD)
            return from;
        n = from;
    }
    return NULL;
}

/* ---- several policies ---- */

bool policy_must(Policy p)
{
    return p == MUST_SAVE || p == MUST_RECOMPUTE || p == OFFLOAD;
}

bool policy_binds(const Node *n)
{
    bool binds = policy_must(n->policy);
    EACH_FUSED(m, n)
        binds |= policy_must(m->policy);
    return binds;
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

/* "%c <- %b <- %a": a view, its operand, and so on to its base. */
static const char *view_path(Arena *a, const Node *n)
{
    Buf b = {.a = a};
    for (; node_aliases(n); n = n->in[0]->def)
        buf_printf(&b, "%%%s <- ", n->out[0]->name);
    buf_printf(&b, "%%%s", n->out[0]->name);
    return b.text;
}

int pass_settle(Graph *g, Arena *tmp, const PassOptions *o)
{
    int changes = 0;
    for (Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            changes += pass_settle(n->region->body[b], tmp, o);
        bool bears = node_aliases(n) && n->policy && n->phase < BACKWARD;
        Node *base = bears ? defining_node(n->in[0]) : NULL;
        if (!base)
            continue;
        if (!policy_merge(&base->policy, n->policy))
            fail_node(g, n, "is %s, but its base is %s: %s", policy_name(n->policy),
                      policy_name(base->policy), view_path(tmp, n));
        n->policy = POLICY_NONE;
        changes++;
    }
    return changes;
}

static const Node *must_save(const Graph *g)
{
    const Node *found = NULL;
    for (const Node *n = g->first; n && !found; n = n->next)
        found = n->policy == MUST_SAVE && n->phase < BACKWARD ? n : region_must_save(n);
    return found;
}

const Node *region_must_save(const Node *n)
{
    const Node *found = NULL;
    EACH_LOOP_BODY(b, n)
        found = found ? found : must_save(n->region->body[b]);
    return found;
}

void region_check_save(const Graph *g, const Node *n)
{
    const Node *inner = n->policy == MUST_RECOMPUTE ? region_must_save(n) : NULL;
    if (inner)
        fail_node(g, inner, "is must_save, but its loop is computed again as a whole: %%%s <- %%%s",
                  n->out[0]->name, inner->out[0]->name);
}

/* Notes the option that has given nodes policies, which no earlier call had seen; NULL: the text.
 */
static void note_source(const Graph *g, Decisions *d, const char *option)
{
    d->source.a = d->a;
    for (const Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            note_source(n->region->body[b], d, option);
        if (!n->policy || map_find(&d->source, n->out[0]->name))
            continue;
        PolicySource *x = NEW(d->a, PolicySource);
        *x = (PolicySource){n->policy, option};
        map_put(&d->source, arena_strdup(d->a, n->out[0]->name), x);
    }
}

static int give_gathers(Graph *g, Arena *tmp, const PassOptions *o)
{
    Decisions *d = o->decisions;
    if (d)
        note_source(g, d, NULL);
    int changes = policy_gathers(g, tmp, o);
    if (d && changes)
        note_source(g, d, arena_printf(d->a, "--reshard %s", o->reshard ? o->reshard : "auto"));
    return changes;
}

static int give_named(Graph *g, Arena *tmp, const PassOptions *o, const char *name)
{
    Decisions *d = o->decisions;
    int changes = policy_named(g, tmp, name);
    if (d && changes)
        note_source(g, d, arena_printf(d->a, "--recompute %s", name));
    return changes;
}

int pass_policies(Graph *g, Arena *tmp, const PassOptions *o)
{
    const char *name = o->recompute ? o->recompute : "none";
    int changes = give_gathers(g, tmp, o);
    changes += give_named(g, tmp, o, name);
    const char *doubt = o->warn ? policy_named_doubt(g, tmp, name) : NULL;
    if (doubt)
        o->warn(o->warn_arg, doubt);
    changes += policy_rules(g, tmp, o->rules, o->nrules);
    policy_check_gathers(g, tmp, o);
    return changes;
}
