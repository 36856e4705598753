/* The signature below an exported program, which says what inputs are:
 *
 *   Graph signature:
 *       # inputs
 *       p_emb_weight: PARAMETER target='emb.weight'
 *       b_scale: BUFFER target='scale' persistent=True
 *       ids: USER_INPUT
 *       # outputs
 *
 * `--params signature` makes parameters params, buffers and constants const, all by the module's
 * names, and the others batch. Names of an archive's parameters that have one tensor there are one
 * param: the trainer gives it one gradient and one update. Linear but in the number of these. */
#include "fx.h"

#include <string.h>

static const char *next_line(const char *s)
{
    s += strcspn(s, "\n");
    return *s ? s + 1 : s;
}

/* The text between quotes after `target=` on the line; NULL: there is none. */
static const char *target_of(Arena *a, const char *line)
{
    static const char word[] = "target='";
    const char *at = strstr(line, word);
    if (!at || at > line + strcspn(line, "\n"))
        return NULL;
    at += LEN(word) - 1;
    return arena_strndup(a, at, strcspn(at, "'\n"));
}

/* By the input's name: its line, from after the colon. */
static Map find_lines(Arena *a, const char *text)
{
    Map lines = {.a = a};
    for (const char *s = next_line(text); *s; s = next_line(s)) {
        s += strspn(s, " \t");
        size_t n = strcspn(s, ": \n");
        if (!strncmp(s, "# outputs", 9))
            break;
        if (n && s[n] == ':')
            map_put(&lines, arena_strndup(a, s, n), (void *)(uintptr_t)(s + n + 1));
    }
    return lines;
}

/* ---- tied parameters ---- */

static bool is_written(const Graph *g, const Value *v)
{
    for (int i = 0; i < g->nout; i++)
        if (g->out[i].role == ROLE_NEW && !strcmp(g->out[i].name, v->name))
            return true;
    return false;
}

static void replace_uses(Graph *g, const Value *from, Value *to)
{
    EACH_NODE(n, g)
        for (int i = 0; i < n->nin; i++)
            n->in[i] = n->in[i] == from ? to : n->in[i];
    for (int i = 0; i < g->nout; i++)
        g->out[i].v = g->out[i].v == from ? to : g->out[i].v;
}

/* The name of p becomes a further one of `first`. */
static void add_name(Arena *a, Port *first, const Port *p)
{
    int n = 0;
    while (first->tied && first->tied[n])
        n++;
    const char **tied = NEWN(a, const char *, n + 2);
    for (int i = 0; i < n; i++)
        tied[i] = first->tied[i];
    tied[n] = p->name;
    first->tied = tied;
}

/* Params of one tensor become one, under the name of the first and further names; returns how many
 * went. */
static int join_tied(Importer *im)
{
    Graph *g = im->g;
    Map first = {.a = im->a};
    int n = 0;
    for (int i = 0; i < g->nin; i++) {
        Port p = g->in[i];
        const char *key = p.role == ROLE_PARAM ? map_find(im->o->tied, p.name) : NULL;
        key = key ? key : p.role == ROLE_PARAM ? p.name : "";
        intptr_t at = (intptr_t)map_find(&first, key);
        Port *of = at ? &g->in[at - 1] : NULL;
        if (of && type_equal(&of->v->type, &p.v->type) && !is_written(g, p.v)) {
            buf_printf(&im->summary, "tied: %s is %s\n", p.name, of->name);
            replace_uses(g, p.v, of->v);
            add_name(g->a, of, &p);
            map_del(&g->names, p.v->name);
            continue;
        }
        p.v->index = n;
        g->in[n++] = p;
        if (*key && !of)
            map_put(&first, key, (void *)(intptr_t)n);
    }
    int gone = g->nin - n;
    g->nin = n;
    return gone;
}

int fx_sign(Importer *im)
{
    Graph *g = im->g;
    int count = 0;
    if (!im->m->signature)
        fail(g->ctx, TN_USAGE,
             "--params signature: %s has none, which print(program) of torch.export shows",
             im->m->file);
    const Map lines = find_lines(im->a, im->m->signature);
    for (int i = 0; i < g->nin; i++) {
        Port *p = &g->in[i];
        const char *line = map_find(&lines, p->v->name);
        const char *target = line ? target_of(im->a, line) : NULL;
        if (p->role != ROLE_NONE)
            continue;
        bool param = target && !strncmp(line, " PARAMETER ", 11) && dtype_float(p->v->type.dtype);
        p->role = param ? ROLE_PARAM : target ? ROLE_CONST : ROLE_BATCH;
        p->name = target ? target : p->name;
        count += param;
    }
    return im->o->tied ? count - join_tied(im) : count;
}
