/* pin: forms that --pin says, of the first results of nodes.
 *
 * A pin is a rule as --shard has them, whose pattern matches a node's "SCOPE::OP" or its result's
 * name; mesh axes that it does not name have the result whole. The last match holds. Linear in pins
 * times nodes. */
#include "sharding.h"
#include "solved.h"

#include <string.h>

static bool matches(Arena *tmp, const ShardRule *r, const Node *n)
{
    const Globs one = {(const char **)&r->pattern, 1};
    return globs_match(&one, n->out[0]->name) ||
           globs_match(&one, arena_printf(tmp, "%s::%s", n->scope, n->op->name));
}

/* A product that a pin could match, or another node with a scope; NULL: there is none. */
static const Node *example(const Graph *g)
{
    const Node *any = NULL;
    for (const Node *n = g->first; n; n = n->next) {
        if (!*n->scope)
            continue;
        if (n->op->class == CLASS_PRODUCT)
            return n;
        any = any ? any : n;
    }
    return any;
}

static Pin *parse(const Graph *g, Arena *a, const Mesh *m, const char *option, const char *text)
{
    const Sharder x = {.option = option, .g = g, .tmp = a, .m = m};
    const ShardRule r = rule_parse(&x, text);
    Pin *p = NEW(a, Pin);
    *p = (Pin){.option = option, .text = text, .of = NEWN(a, bool, g->nnode)};
    bool any = false;
    memcpy(p->cut, r.cut, sizeof p->cut);
    for (int c = 0; c < m->naxes; c++)
        if (m->size[c] == 1)
            p->cut[c] = (Cut){.kind = CUT_WHOLE};
    for (const Node *n = g->first; n; n = n->next)
        any |= p->of[n->id] = matches(a, &r, n);
    if (!any) {
        const Node *n = example(g);
        fail(g->ctx, TN_USAGE,
             "%s \"%.300s\": matches no node by SCOPE::OP and no result by its name%s", option,
             text,
             n ? arena_printf(a, ", such as \"%s::%s\" or \"%s\"", n->scope, n->op->name,
                              n->out[0]->name)
               : "");
    }
    return p;
}

/* A pin that nowhere holds, as later ones hold another form for all that it matches. */
static void check_contradiction(const Graph *g, const PinList *list, const Pin *p, int naxes)
{
    const Pin *over = NULL;
    for (const Node *n = g->first; n; n = n->next) {
        const Pin *now = p->of[n->id] ? pin_of(list, n) : NULL;
        if (now == p)
            return;
        over = now && !cuts_equal(naxes, now->cut, p->cut) ? now : over;
    }
    if (over)
        fail(
            g->ctx, TN_USAGE,
            "%s \"%.300s\": contradicts later ones, such as \"%.300s\", which hold for all that it "
            "matches",
            p->option, p->text, over->text);
}

void pins_check(const Graph *g, const PinList *list, int naxes)
{
    for (int i = 0; i < list->count; i++)
        check_contradiction(g, list, list->pin[i], naxes);
}

PinList pins_parse(const Graph *g, Arena *a, const Mesh *m, const char *option, const Globs *texts)
{
    PinList list = {.pin = NEWN(a, Pin *, texts->count), .count = texts->count};
    for (int i = 0; i < texts->count; i++)
        list.pin[i] = parse(g, a, m, option, texts->pattern[i]);
    return list;
}

const Pin *pin_of(const PinList *list, const Node *n)
{
    for (int i = list->count - 1; i >= 0; i--)
        if (list->pin[i]->of[n->id])
            return list->pin[i];
    return NULL;
}
