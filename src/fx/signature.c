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
 * names, and the others batch. Linear. */
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
    return count;
}
