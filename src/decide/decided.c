/* What was decided, as text that a checkpoint has, and the same decided again from it: a line
 * "POLICY NODE" for each node, or one line "recompute WORD", before them "reshard never" where all
 * gathered parameters are kept before a loop, "room N" where collectives are moved in bytes that do
 * not depend on the limit, and at last a line "sum HASH" of those before, as a text that lacks
 * lines would be another choice. A graph that lacks one of the nodes is another one; then nothing
 * is taken, unless a line "missing dropped" says that such nodes are left out. */
#include "again.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

Map again_names(const AgainReport *r, Arena *a)
{
    Map names = {.a = a};
    for (int i = 0; i < r->nnode; i++)
        map_put(&names, r->node[i].node, &r->node[i]);
    return names;
}

#define SUM     "sum "
#define HOISTED "reshard never\n"
#define DROPS   "missing dropped\n"

static uint64_t sum_of(const char *lines, size_t len)
{
    return hash_bytes(lines, len, 0);
}

const char *again_text(const AgainReport *r, Arena *a)
{
    Buf b = {.a = a};
    if (r->hoisted)
        buf_add(&b, HOISTED);
    if (r->drops)
        buf_add(&b, DROPS);
    if (r->chosen.room)
        buf_printf(&b, "room %d\n", r->chosen.room);
    if (r->memory && !r->nnode)
        buf_printf(&b, "recompute %s\n", r->chosen.word ? r->chosen.word : "none");
    for (int i = 0; i < r->nnode; i++)
        buf_printf(&b, "%s %s\n", policy_name(r->node[i].policy), r->node[i].node);
    if (b.text)
        buf_printf(&b, SUM "%016" PRIx64 "\n", sum_of(b.text, b.len));
    return b.text ? b.text : "";
}

bool again_hoisted(const char *text)
{
    return !strncmp(text, HOISTED, strlen(HOISTED));
}

/* The text without its last line, if that is the sum of the others; NULL: it is damaged. */
static char *whole_text(Arena *tmp, const char *text)
{
    char *copy = arena_strdup(tmp, text), *last = strstr(copy, "\n" SUM);
    if (!last)
        return NULL;
    const size_t len = (size_t)(last + 1 - copy);
    if (strtoull(last + strlen("\n" SUM), NULL, 16) != sum_of(copy, len))
        return NULL;
    copy[len] = 0;
    return copy;
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
    if (!strcmp(first, "reshard"))
        return (r->hoisted = !strcmp(second, "never"));
    if (!strcmp(first, "room")) {
        const int room = atoi(second);
        r->chosen.room = room;
        return ROOM_NONE <= room && room <= ROOM_USUAL;
    }
    if (!strcmp(first, "recompute"))
        return (r->chosen.word = known_word(r->a, second)) != NULL;
    if (!strcmp(first, "missing"))
        return (r->drops = !strcmp(second, "dropped"));
    if (!p)
        return false;
    if (!map_find(names, second))
        return r->drops;
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
    char *save = NULL, *lines = whole_text(tmp, text);
    bool ok = lines;
    find_names(g, &names);
    for (char *s = ok ? strtok_r(lines, "\n", &save) : NULL; s && ok;
         s = strtok_r(NULL, "\n", &save)) {
        char *second = strchr(s, ' ');
        ok = second;
        if (second)
            *second++ = 0;
        ok = ok && add_line(&r, &names, s, second);
    }
    if (ok) {
        if (r.drops && !r.nnode && !r.chosen.word)
            r.chosen.word = "none";
        r.drops = false; /* what is left out is no part of the choice */
        r.replayed = true;
        *to = r;
    }
    arena_reset(tmp);
    return ok;
}
