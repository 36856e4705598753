/* Says as text how two graphs differ, one of which became the other: inputs, nodes (also in bodies
 * of regions) and outputs that were added, removed, changed or moved. Nodes are one another's by
 * the name of their first result, in the same body or, where it has none of that name, in another.
 * Moved are the fewest nodes without which those that are left stand in one order: what is no part
 * of a longest increasing sequence of places. Cost: n log n, and n for each body. */
#include "diff.h"

#include <string.h>

/* An input, a node or an output. */
typedef struct DiffItem {
    const char *key;  /* by which the other side's is found */
    const char *name; /* of a node; NULL: a port */
    const char *text;
    const char *in;    /* the region whose body it is in; "" */
    const char *after; /* the node before it in its body; "" */
    int other;         /* its index on the other side; -1: it has none there */
    bool moved;
} DiffItem;

typedef struct DiffSide {
    Arena *a;
    DiffItem *list;
    int n, cap;
    Map key, name; /* of what is in the list: its index and 1 */
    int nnode;
} DiffSide;

/* ---- what a graph has ---- */

static void add_item(DiffSide *s, DiffItem x)
{
    while (map_find(&s->key, x.key))
        x.key = arena_printf(s->a, "%s'", x.key);
    x.other = -1;
    PUSH(s->a, s->list, s->n, s->cap, x);
    map_put(&s->key, x.key, (void *)(intptr_t)s->n);
    if (x.name && !map_find(&s->name, x.name))
        map_put(&s->name, x.name, (void *)(intptr_t)s->n);
}

static int find_item(const Map *m, const char *key)
{
    return (int)(intptr_t)map_find(m, key) - 1;
}

static void add_port(DiffSide *s, const Graph *g, const Port *p, bool in)
{
    Buf b = {.a = s->a};
    const char *role = role_name(p->role), *name = p->name ? p->name : "";
    port_print(&b, g, p, in);
    const char *key = in || !(*role || *name)
                          ? arena_printf(s->a, "%s %%%s", in ? "input" : "output", p->v->name)
                          : arena_printf(s->a, "output %s %s", role, name);
    add_item(s, (DiffItem){.key = key,
                           .text = arena_printf(s->a, in ? "input %s" : "return %s", b.text),
                           .in = "",
                           .after = ""});
}

static void add_nodes(DiffSide *s, const Graph *g, const char *in, int body)
{
    const char *after = "";
    for (const Node *n = g->first; n; n = n->next) {
        Buf b = {.a = s->a};
        const char *name = n->nout ? n->out[0]->name : n->op->name;
        node_print(&b, n);
        add_item(s, (DiffItem){arena_printf(s->a, "%s/%d/%s", in, body, name), name, b.text, in,
                               after, -1, false});
        s->nnode++;
        after = name;
        EACH_BODY(k, n)
            add_nodes(s, n->region->body[k], name, k);
    }
}

static DiffSide side_of(Arena *a, const Graph *g)
{
    DiffSide s = {.a = a, .key = {.a = a}, .name = {.a = a}};
    for (int i = 0; i < g->nin; i++)
        add_port(&s, g, &g->in[i], true);
    add_nodes(&s, g, "", MAIN);
    for (int i = 0; i < g->nout; i++)
        add_port(&s, g, &g->out[i], false);
    return s;
}

/* ---- which are one another's ---- */

static void pair(DiffSide *x, DiffSide *y, int i, int k)
{
    x->list[i].other = k;
    y->list[k].other = i;
}

static void pair_items(DiffSide *x, DiffSide *y)
{
    for (int k = 0; k < y->n; k++) {
        int i = find_item(&x->key, y->list[k].key);
        if (i >= 0)
            pair(x, y, i, k);
    }
    for (int k = 0; k < y->n; k++) {
        const DiffItem *item = &y->list[k];
        int i = item->other < 0 && item->name ? find_item(&x->name, item->name) : -1;
        if (i >= 0 && x->list[i].other < 0) {
            pair(x, y, i, k);
            y->list[k].moved = true;
        }
    }
}

/* Marks what is no part of a longest increasing sequence of the places before, of the items at
 * `at`. */
static void mark_moved(DiffSide *y, const int *at, int n)
{
    int *tail = NEWN(y->a, int, n + 1), *before = NEWN(y->a, int, n + 1), length = 0;
    for (int j = 0; j < n; j++) {
        int lo = 0, hi = length, place = y->list[at[j]].other;
        while (lo < hi) {
            int middle = (lo + hi) / 2;
            if (y->list[at[tail[middle]]].other < place)
                lo = middle + 1;
            else
                hi = middle;
        }
        before[j] = lo ? tail[lo - 1] : -1;
        tail[lo] = j;
        length = MAX(length, lo + 1);
        y->list[at[j]].moved = true;
    }
    for (int j = length ? tail[length - 1] : -1; j >= 0; j = before[j])
        y->list[at[j]].moved = false;
}

/* Marks the nodes that moved within a body, for each body by itself. */
static void find_moved(DiffSide *y)
{
    Map done = {.a = y->a};
    int *at = NEWN(y->a, int, y->n + 1);
    for (int k = 0; k < y->n; k++) {
        const char *in = arena_printf(y->a, "/%s", y->list[k].in);
        int n = 0;
        if (!y->list[k].name || map_find(&done, in))
            continue;
        map_put(&done, in, y);
        for (int j = k; j < y->n; j++) {
            const DiffItem *x = &y->list[j];
            if (x->name && x->other >= 0 && !x->moved && !strcmp(x->in, in + 1))
                at[n++] = j;
        }
        mark_moved(y, at, n);
    }
}

/* ---- as text ---- */

static const char *place_of(Arena *a, const char *in)
{
    return *in ? arena_printf(a, "in %%%s: ", in) : "";
}

static void print_move(Buf *b, const DiffItem *was, const DiffItem *now)
{
    const char *const none = "first";
    buf_printf(b, "    now %s%s%s, was %s%s%s%s%s\n", *now->after ? "after %" : none, now->after,
               *now->in ? arena_printf(b->a, " in %%%s", now->in) : "",
               *was->after ? "after %" : none, was->after, *was->in ? " in %" : "", was->in,
               !*was->in && *now->in ? " outside" : "");
}

static void print_item(Buf *b, const DiffSide *x, const DiffItem *now)
{
    const DiffItem *was = now->other < 0 ? NULL : &x->list[now->other];
    bool changed = was && strcmp(was->text, now->text) != 0;
    if (was && !changed && !now->moved)
        return;
    buf_printf(b, "%c %s%s\n",
               !was      ? '+'
               : changed ? '~'
                         : '>',
               place_of(b->a, now->in), now->text);
    if (changed)
        buf_printf(b, "    was %s\n", was->text);
    if (was && now->moved)
        print_move(b, was, now);
}

static void print_removed(Buf *b, const DiffSide *x, int from, int to)
{
    for (int i = from; i < to; i++)
        if (x->list[i].other < 0)
            buf_printf(b, "- %s%s\n", place_of(b->a, x->list[i].in), x->list[i].text);
}

/* A removed item stands where it was, after the last one before it that has stayed. */
static void print_items(Buf *b, const DiffSide *x, const DiffSide *y)
{
    int at = 0;
    for (int k = 0; k < y->n; k++) {
        const DiffItem *now = &y->list[k];
        if (now->other >= at && !now->moved) {
            print_removed(b, x, at, now->other);
            at = now->other;
        }
        print_item(b, x, now);
    }
    print_removed(b, x, at, x->n);
}

static int count_lines(const char *text, char sign)
{
    int n = 0;
    for (const char *s = text; s && *s; s = strchr(s, '\n'), s += s != NULL)
        n += *s == sign;
    return n;
}

void graph_diff(Buf *b, const Graph *before, const Graph *after)
{
    DiffSide x = side_of(b->a, before), y = side_of(b->a, after);
    Buf lines = {.a = b->a};
    pair_items(&x, &y);
    find_moved(&y);
    print_items(&lines, &x, &y);
    if (!lines.len) {
        buf_printf(b, "nothing changed in %s\n", arena_count(b->a, y.nnode, "node"));
        return;
    }
    buf_printf(b, "%d added, %d removed, %d changed, %d moved; nodes: %d before, %d after\n",
               count_lines(lines.text, '+'), count_lines(lines.text, '-'),
               count_lines(lines.text, '~'), count_lines(lines.text, '>'), x.nnode, y.nnode);
    buf_add(b, lines.text);
}
