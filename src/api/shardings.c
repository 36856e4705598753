/* Rules of options.shardings: whether "auto" is among them, and rules for what a choice has made.
 */
#include "api.h"

#include <string.h>

bool shardings_auto(const tn_options *o)
{
    for (int i = 0; i < o->nshardings; i++)
        if (!strcmp(o->shardings[i], "auto"))
            return true;
    return false;
}

const char **shardings_given(Arena *a, const tn_options *o, int *count)
{
    const char **rule = NEWN(a, const char *, o->nshardings + 1);
    *count = 0;
    for (int i = 0; i < o->nshardings; i++)
        if (strcmp(o->shardings[i], "auto") != 0)
            rule[(*count)++] = o->shardings[i];
    return rule;
}

const double shard_shares[SHARD_SHARES] = {1, 0.3, 0.1};

tn_options shard_try(Arena *a, const tn_options *asked, double exposed)
{
    tn_options o = *asked;
    if (exposed > 0) {
        o.shard_exposed = exposed;
    } else {
        o.shardings = shardings_given(a, asked, &o.nshardings);
        o.nwhat_if = 0; /* recipes have no pins */
    }
    return o;
}

/* "0:3,tp,fsdp" of axis 0 in [3][tp][fsdp] parts; "" of an axis that is whole. */
static void print_axis(Buf *b, const Mesh *m, const Cut *cut, int d)
{
    int axes[MAX_MESH], n = cuts_of_axis(m, cut, d, axes);
    int64_t outer = 1;
    for (int i = 0; i < n; i++) {
        const Cut *c = &cut[axes[i]];
        buf_printf(b, i ? "," : b->len && b->text[b->len - 1] != '=' ? ";%d:" : "%d:", d);
        if (c->outer > outer)
            buf_printf(b, "%lld,", (long long)(c->outer / outer));
        buf_printf(b, "%s", m->name[axes[i]]);
        outer = c->outer * m->size[axes[i]];
    }
}

const char *sharding_rule(Arena *a, const Mesh *m, const Port *p)
{
    Buf b = {.a = a};
    buf_printf(&b, "%s=", p->name);
    for (int d = 0; d < p->v->type.rank && p->cut; d++)
        print_axis(&b, m, p->cut, d);
    return b.text;
}

const char **shardings_of(Arena *a, const Graph *g, const tn_options *o, int *count)
{
    const char **rule = NEWN(a, const char *, o->nshardings + g->nin);
    memcpy(rule, o->shardings, sizeof *rule * (size_t)o->nshardings);
    *count = o->nshardings;
    for (int i = 0; i < g->nin; i++)
        if (g->in[i].role == ROLE_PARAM)
            rule[(*count)++] = sharding_rule(a, g->mesh, &g->in[i]);
    return rule;
}
