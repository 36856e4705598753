/* What was decided, as text that a checkpoint has, and the same decided again from it: a line
 * "POLICY NODE" for each node, or one line "recompute WORD". A graph that lacks one of the nodes is
 * another one; then nothing is taken. */
#include "again.h"

#include <string.h>

const char *again_text(const AgainReport *r, Arena *a)
{
    Buf b = {.a = a};
    if (r->memory && !r->nnode)
        buf_printf(&b, "recompute %s\n", r->chosen.word ? r->chosen.word : "none");
    for (int i = 0; i < r->nnode; i++)
        buf_printf(&b, "%s %s\n", policy_name(r->node[i].policy), r->node[i].node);
    return b.text ? b.text : "";
}

static Policy policy_of(const char *name)
{
    Policy p = POLICY_NONE;
    for (int i = 0; i < NPOLICY; i++)
        if (!strcmp(name, policy_name((Policy)i)))
            p = (Policy)i;
    return p;
}

static void find_names(const Graph *g, Map *names)
{
    for (const Node *n = g->first; n; n = n->next) {
        EACH_LOOP_BODY(b, n)
            find_names(n->region->body[b], names);
        if (n->phase < BACKWARD && n->nout)
            map_put(names, n->out[0]->name, (void *)n);
    }
}

static const char *known_word(Arena *a, const char *word)
{
    bool known = !strcmp(word, "none") || !strcmp(word, "full") || !strcmp(word, "selective") ||
                 !strcmp(word, "every=2");
    return known ? arena_strdup(a, word) : NULL;
}

static bool add_line(AgainReport *r, const Map *names, const char *first, const char *second)
{
    const Policy p = policy_of(first);
    for (int i = 0; i < r->nnode; i++)
        if (!strcmp(r->node[i].node, second))
            return false;
    if (!strcmp(first, "recompute"))
        return (r->chosen.word = known_word(r->a, second)) != NULL;
    if (!p || !map_find(names, second))
        return false;
    PUSH(r->a, r->node, r->nnode, r->capnode, ((NodePolicy){arena_strdup(r->a, second), p}));
    r->nagain += policy_again(p);
    r->naway += p == OFFLOAD;
    r->nkept += p == MUST_SAVE;
    return true;
}

bool again_replay(const char *text, const Graph *g, AgainReport *to)
{
    Arena *tmp = arena_tmp(g->a);
    Map names = {.a = tmp};
    AgainReport r = *to;
    bool ok = *text;
    char *save = NULL;
    find_names(g, &names);
    for (char *s = strtok_r(arena_strdup(tmp, text), "\n", &save); s && ok;
         s = strtok_r(NULL, "\n", &save)) {
        char *second = strchr(s, ' ');
        ok = second;
        if (second)
            *second++ = 0;
        ok = ok && add_line(&r, &names, s, second);
    }
    if (ok) {
        r.replayed = true;
        *to = r;
    }
    arena_reset(tmp);
    return ok;
}
