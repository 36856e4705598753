/* Memory by scope: bytes alive at the peak, saved for the backward, and recomputed.
 *
 * A row is a block ("layers.3" and all scopes in it), or the first part of a scope outside of
 * blocks. Consecutive blocks with the same numbers are one row ("layers.0-10"). An input has the
 * scope of its first reader, optimizer state that of its parameter.
 *
 * A value counts where it is computed: in a body once, as its memory is there once for all
 * iterations. A view is not counted beside its base. Values in the host's memory do not count, and
 * are not computed again when they come back from there. Linear in nodes and storages. */
#include "plan.h"

#include <string.h>

/* ---- the scopes of inputs ---- */

static void fill_readers(const Graph *g, Arena *a, const char **scope);

/* Takes the scopes that the bodies give to the values that their ports pass on. */
static void fill_from_body(const Node *n, bool tail, Arena *a, const char **scope)
{
    const Graph *body = n->region->body[tail];
    const char **inside = NEWN(a, const char *, body ? body->nvalue : 0);
    if (body)
        fill_readers(body, a, inside);
    for (int j = 0; j < n->region->nin && body; j++) {
        const PortIn *p = &n->region->in[j];
        int i = p->at[tail];
        const char *found = i < 0 ? NULL : inside[body->in[i].v->id];
        if (found && p->arg >= 0 && !scope[n->in[p->arg]->id])
            scope[n->in[p->arg]->id] = found;
    }
}

/* By value id: the scope of the first reader that has one. */
static void fill_readers(const Graph *g, Arena *a, const char **scope)
{
    for (const Node *n = g->first; n; n = n->next) {
        for (int t = 0; n->region && t < 2; t++)
            fill_from_body(n, t, a, scope);
        for (int i = 0; i < n->nin; i++)
            if (!scope[n->in[i]->id] && *n->scope)
                scope[n->in[i]->id] = n->scope;
    }
}

Value *state_param(const Map *params, const char *state)
{
    const char *dot = strrchr(state, '.');
    return dot ? map_find(params, arena_strndup(params->a, state, (size_t)(dot - state))) : NULL;
}

const char **plan_input_scopes(Arena *a, const Graph *g)
{
    const char **scope = NEWN(a, const char *, g->nvalue), **of = NEWN(a, const char *, g->nin);
    const Map params = graph_named(g->in, g->nin, ROLE_PARAM, a);
    fill_readers(g, a, scope);
    for (int i = 0; i < g->nin; i++) {
        const Port *p = &g->in[i];
        const Value *owner = p->role == ROLE_STATE ? state_param(&params, p->name) : NULL;
        const char *found = scope[(owner ? owner : p->v)->id];
        of[i] = found ? found : "";
    }
    return of;
}

/* ---- rows ---- */

typedef struct ScopeRows {
    Arena *a;
    Breakdown *x;
    int cap;
    Map index; /* of int: by the row's name */
} ScopeRows;

static ScopeBytes *row_of(ScopeRows *r, const char *scope)
{
    Block b = block_of(scope);
    size_t len = b.len ? (size_t)b.len : strcspn(scope, ".");
    const char *name = arena_strndup(r->a, scope, len);
    int *at = map_find(&r->index, name);
    if (!at) {
        at = NEW(r->a, int);
        *at = r->x->nrow;
        ScopeBytes row = {.scope = name, .count = 1, .first = b.number};
        PUSH(r->a, r->x->row, r->x->nrow, r->cap, row);
        map_put(&r->index, name, at);
    }
    return &r->x->row[*at];
}

static void add_alive(ScopeBytes *x, Category c, int64_t nbytes)
{
    x->peak += nbytes;
    x->by_category[c] += nbytes;
}

static void add_peak(ScopeRows *r, const Plan *p)
{
    int64_t others = p->space[SPACE_MAIN].bound; /* what another plan keeps in the same arena */
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        bool alive = s->space == SPACE_MAIN && storage_alive(s, p->space[SPACE_MAIN].peak_step);
        add_alive(row_of(r, s->scope), s->category, alive ? s->nbytes : 0);
        others -= alive ? s->nbytes : 0;
    }
    add_alive(row_of(r, ""), CAT_OTHER, others);
}

/* The value whose memory v, a view or a wait, lies in. */
static const Value *view_base(const Value *v)
{
    while (v->def && node_aliases(v->def))
        v = v->def->in[0];
    return v;
}

static void add_saved(ScopeRows *r, const Value *v, bool *seen)
{
    v = view_base(v);
    if (seen[v->id] || !v->def || v->def->phase >= BACKWARD || v->def->op->to_host)
        return;
    seen[v->id] = true;
    int64_t nbytes = type_nbytes(&v->type);
    row_of(r, value_scope(v))->saved += nbytes;
    r->x->saved += nbytes;
    r->x->nsaved++;
}

static void add_recomputed(ScopeRows *r, const Node *n)
{
    for (int k = 0; k < n->nout; k++) {
        int64_t nbytes = type_nbytes(&n->out[k]->type);
        row_of(r, value_scope(n->out[k]))->recomputed += nbytes;
        r->x->recomputed += nbytes;
        r->x->nrecomputed++;
    }
}

/* inside: g is a body, whose node counts as a whole. */
static void add_graph(ScopeRows *r, const Graph *g, double times, bool inside)
{
    bool *seen = NEWN(r->a, bool, g->nvalue);
    for (const Node *n = g->first; n; n = n->next) {
        bool again = n->origin && !node_aliases(n) && !n->op->async;
        bool whole = inside || again || n->op->region == FUSED;
        EACH_BODY(b, n)
            add_graph(r, n->region->body[b], times * (double)region_times(n->region, b), whole);
        if (!n->region) {
            double nflop = times * node_cost(n).nflop;
            r->x->nflop += nflop;
            r->x->added_nflop += again ? nflop : 0;
        }
        if (again && !inside)
            add_recomputed(r, n);
        bool reads = !inside && node_in_backward(n);
        for (int i = 0; i < n->nin && reads; i++)
            add_saved(r, n->in[i], seen);
    }
}

/* ---- blocks alike ---- */

/* Whether y is the block after those of x, with the same numbers. */
static bool follows(const ScopeBytes *x, const ScopeBytes *y)
{
    Block b = block_of(x->scope), c = block_of(y->scope);
    size_t stem = strlen(x->scope);
    while (stem && x->scope[stem - 1] != '.')
        stem--;
    return b.len && c.len && c.number == x->first + x->count &&
           !strncmp(x->scope, y->scope, stem) &&
           strcspn(y->scope + stem, ".") == strlen(y->scope + stem) &&
           !memcmp(x->by_category, y->by_category, sizeof x->by_category) && x->saved == y->saved &&
           x->recomputed == y->recomputed;
}

static void fold(Breakdown *x)
{
    int kept = 0;
    for (int i = 0; i < x->nrow; i++) {
        const ScopeBytes *y = &x->row[i];
        if (kept && follows(&x->row[kept - 1], y))
            x->row[kept - 1].count++;
        else if (y->peak || y->saved || y->recomputed)
            x->row[kept++] = *y;
    }
    x->nrow = kept;
}

Breakdown *plan_breakdown(Arena *a, const Plan *p)
{
    ScopeRows r = {.a = a, .x = NEW(a, Breakdown), .index = {.a = a}};
    add_peak(&r, p);
    add_graph(&r, p->g, 1, false);
    fold(r.x);
    return r.x;
}

const char *scope_title(Arena *a, const ScopeBytes *x)
{
    if (x->count > 1)
        return arena_printf(a, "%s-%lld", x->scope, (long long)(x->first + x->count - 1));
    return *x->scope ? x->scope : "(no scope)";
}
