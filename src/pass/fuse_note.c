/* Tells why `fuse` left nodes apart, for plan --explain: from the tables of its last walk, which
 * made no group. */
#include "fuse.h"

#include <string.h>

/* The op behind views that makes a value. */
static const char *maker(const Value *v)
{
    while (v->def && v->def->op->view)
        v = v->def->in[0];
    return v->def ? v->def->op->name : "an input";
}

static void add_word(Buf *b, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = b->text; s && (s = strstr(s, word)); s += n)
        if ((s == b->text || s[-1] == ' ') && (!s[n] || s[n] == ','))
            return;
    buf_printf(b, "%s%s", b->len ? ", " : "", word);
}

/* Says which ops a node that nothing could join has beside it. */
static const char *beside(Arena *a, const Node *n, const Node *const *reader)
{
    Buf reads = {.a = a}, read = {.a = a};
    for (int i = 0; i < n->nin; i++)
        add_word(&reads, maker(n->in[i]));
    for (int k = 0; k < n->nout; k++)
        if (reader[n->out[k]->id])
            add_word(&read, reader[n->out[k]->id]->op->name);
    return arena_printf(a, FUSE_ALONE ": it reads %s%s%s%s", reads.text,
                        read.len ? " and is read by " : "", read.len ? read.text : "",
                        read.len ? " first" : "");
}

/* Why a node could be in no group; NULL: it could. */
static const char *refusal(const FuseTables *t, const Node *n)
{
    const Alone *x = &t->alone[n->id];
    if (x->edge)
        return "an order edge begins or ends at it";
    for (int k = 0; k < n->nout; k++)
        if (t->fixed[n->out[k]->id])
            return "it takes the place of an input";
    for (int i = 0; i < n->nin; i++)
        if (!(x->rows && x->rows->in[i] == ROW_ALL) && fuse_permuted(n->in[i], x->rows))
            return "it reads an operand in another order than that lies in";
    if (t->texts && !node_has_text(n))
        return "bodies are compiled here, and it has no text";
    return NULL;
}

/* Whether nodes of this kind are fused: over more than one element. */
static bool is_kind(const FuseTables *t, const Node *n)
{
    const Alone *x = &t->alone[n->id];
    return n->nin && !n->op->view && x->shape.nelem > 1 && node_fusible(n, &x->shape);
}

void fuse_note(const FuseTables *t, const Groups *s, Decisions *to)
{
    Arena *a = to->a;
    const Graph *g = t->g;
    const Node **reader = NEWN(s->tmp, const Node *, g->nvalue);
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->nin; i++)
            if (!reader[n->in[i]->id])
                reader[n->in[i]->id] = n;
    for (const Node *n = g->first; n; n = n->next) {
        if (n->id >= s->nnode || !is_kind(t, n))
            continue;
        const FuseGroup *x = group_of(s, n);
        const char *why = refusal(t, n);
        if (!why && s->why[n->id])
            why = s->why[n->id];
        if (!why && x)
            why = x->why;
        if (!why || !strcmp(why, FUSE_ALONE))
            why = beside(a, n, reader);
        PUSH(a, to->apart, to->napart, to->capapart,
             ((FuseNote){n->out[0]->name, n->scope, n->op->name, why}));
    }
}
