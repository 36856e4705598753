/* Says for plan --explain which ops run in one body, which stay apart, and why. Nodes of several
 * layers that are alike are one row. */
#include "page.h"

#include <string.h>

/* Nodes that are alike. */
typedef struct FuseRow {
    const char *ops;    /* "gelu, mul" */
    const char *scope;  /* with * for the block's number */
    const char *reason; /* that they stay apart; NULL: they are one body */
    const char *value;  /* of the first of `count` */
    double nbytes;      /* that are not moved, of all */
    int count;
} FuseRow;

typedef struct FuseRows {
    Arena *a;
    FuseRow *row;
    int count, cap;
} FuseRows;

static const char *scope_of_blocks(Arena *a, const char *scope)
{
    Block b = block_of(scope);
    int head = b.len;
    while (head && strchr("0123456789", scope[head - 1]))
        head--;
    return b.len ? arena_printf(a, "%.*s*%s", head, scope, scope + b.len) : scope;
}

static bool same_reason(const char *x, const char *y)
{
    return x && y ? !strcmp(x, y) : x == y;
}

static void add_row(FuseRows *x, FuseRow r)
{
    int i = 0;
    r.scope = scope_of_blocks(x->a, r.scope);
    while (i < x->count &&
           (strcmp(x->row[i].ops, r.ops) != 0 || strcmp(x->row[i].scope, r.scope) != 0 ||
            !same_reason(x->row[i].reason, r.reason)))
        i++;
    if (i == x->count)
        PUSH(x->a, x->row, x->count, x->cap, r);
    else
        x->row[i].nbytes += r.nbytes;
    x->row[i].count++;
}

static double moved(const Node *n)
{
    Cost c = node_cost(n);
    return n->op->view ? 0 : c.nread + c.nwrite;
}

static void add_fused(FuseRows *x, const Node *n)
{
    enum { SHOWN = 12 };
    Buf ops = {.a = x->a};
    double nbytes = 0;
    int count = 0;
    EACH_FUSED(m, n) {
        nbytes += moved(m);
        if (m->op->view || !m->nin)
            continue;
        if (count++ < SHOWN)
            buf_printf(&ops, "%s%s", ops.len ? ", " : "", m->op->name);
    }
    if (count > SHOWN)
        buf_printf(&ops, " and %d more", count - SHOWN);
    for (int i = 0; i < n->nin; i++)
        nbytes -= (double)type_nbytes(&n->in[i]->type);
    for (int k = 0; k < n->nout; k++)
        nbytes -= (double)type_nbytes(&n->out[k]->type);
    add_row(x, (FuseRow){ops.len ? ops.text : "no op", n->scope, NULL, n->out[0]->name, nbytes, 0});
}

/* A pointwise node of which `fuse` has no note was in a body that the planner has taken apart. */
static void add_nodes(FuseRows *x, const Graph *g, const Map *noted)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            add_nodes(x, n->region->body[b], noted);
        if (n->op->region == FUSED)
            add_fused(x, n);
        if (!n->nout)
            continue;
        const FuseNote *y = map_find(noted, n->out[0]->name);
        const bool apart = n->op->class == CLASS_POINTWISE && n->nin && !n->op->view &&
                           type_nelem(&n->out[0]->type) > 1;
        const char *why = y ? y->reason
                            : "the planner took its body apart, as the step needs less memory "
                              "without";
        if (n->op->region != FUSED && (y || apart))
            add_row(x, (FuseRow){n->op->name, n->scope, why, n->out[0]->name, 0, 0});
    }
}

static void print_row(Buf *b, const FuseRow *r)
{
    if (r->reason)
        buf_printf(b, "%-9s  %11s %5s  %9s  ", "apart", "", "", "");
    else
        buf_printf(b, "%-9s  %11.0f bytes  %9s  ", "fused", r->nbytes, "");
    buf_printf(b, "%%%s%s%s", r->value, *r->scope ? " @" : "", r->scope);
    if (r->count > 1)
        buf_printf(b, " (%d alike)", r->count);
    buf_printf(b, "  %s: %s%s\n", r->ops, r->reason ? "not taken: " : "taken: ",
               r->reason ? r->reason : "so many bytes fewer are read and written");
}

void fuse_explain(Buf *b, const Graph *g, const Decisions *d)
{
    FuseRows x = {.a = b->a};
    Map noted = {.a = b->a};
    if (!d->fuses)
        return;
    for (int i = 0; i < d->napart; i++)
        map_put(&noted, d->apart[i].node, &d->apart[i]);
    add_nodes(&x, g, &noted);
    for (int i = 0; i < x.count; i++)
        print_row(b, &x.row[i]);
}
