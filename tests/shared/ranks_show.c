/* The first value of the ranks that differs from one rank's of the same name. What the ranks have
 * of inner values stands nowhere: any way to cut it that gives the whole will do. */
#include "ranks_show.h"

#include "cut_parts.h"
#include "interp.h"

#include <string.h>

typedef struct Show {
    const Ranks *r;
    const Graph *whole;
    Tensor *value; /* of whole, by id */
    bool found;
} Show;

void ranks_print(const char *title, Arena *a, const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    printf("---- %s\n%s", title, b.text);
}

/* The w-th way to cut a value of that rank by one mesh axis; false: there are no more. */
static bool nth_cut(int w, const Type *t, Cut *c)
{
    static const Cut kinds[] = {
        {CUT_WHOLE, 0, 0}, {CUT_SUM, 0, 0}, {CUT_MAX, 0, 0}, {CUT_LOGSUMEXP, 0, 0}};
    if (w < LEN(kinds)) {
        *c = kinds[w];
        return true;
    }
    *c = (Cut){CUT_SLICE, (w - LEN(kinds)) % MAX(t->rank, 1),
               1 + (w - LEN(kinds)) / MAX(t->rank, 1)};
    return t->rank && c->outer <= MAX(t->dim[c->axis], 1);
}

static Tensor cropped(Arena *a, const Tensor *x, const Tensor *like)
{
    Tensor y = *x;
    memcpy(y.dim, like->dim, sizeof y.dim);
    return tensor_copy(a, &y, y.dtype);
}

/* Whether the ranks' parts, cut so, are `want`; *any: they may be, by their shapes. */
static bool fits(const Show *s, Tensor *part, const Cut *cut, const Tensor *want, bool *any)
{
    const Mesh *m = s->r->mesh;
    Type local = type_make(part->dtype, part->rank, part->dim);
    Type t = cut_whole_type(&local, m, cut);
    Splitter split[MAX_MESH];
    PartCut cuts[MAX_MESH];
    Tensor all;
    if (t.rank != want->rank)
        return false;
    for (int d = 0; d < t.rank; d++)
        if (t.dim[d] < want->dim[d])
            return false;
    for (int c = 0; c < m->naxes; c++) {
        split[c] = (Splitter){.count = m->size[c], .nparts = (int)m->size[c]};
        for (int j = 0; j <= split[c].nparts; j++)
            split[c].at[j] = j;
    }
    cut_parts(m->naxes, split, 0, cuts);
    if (!cut_value_legal(&t, m->naxes, cuts, cut))
        return false;
    *any = true;
    if (cut_join(s->r->a, &t, m->naxes, split, cut, part, &all))
        return false;
    all = cropped(s->r->a, &all, want);
    return !cut_differ(s->r->a, &all, want, 1);
}

static bool fits_somehow(const Show *s, Tensor *part, const Tensor *want, Cut *cut, int c,
                         bool *any)
{
    Type t = type_make(want->dtype, want->rank, want->dim);
    if (c == s->r->mesh->naxes)
        return fits(s, part, cut, want, any);
    for (int w = 0; nth_cut(w, &t, &cut[c]); w++)
        if (fits_somehow(s, part, want, cut, c + 1, any))
            return true;
    return false;
}

static void see(void *arg, Node *const *n, Tensor *const *out)
{
    Show *s = arg;
    for (int k = 0; k < n[0]->nout && !s->found; k++) {
        const Value *v = map_find(&s->whole->names, n[0]->out[k]->name);
        Tensor *part = NEWN(s->r->a, Tensor, s->r->n);
        Cut cut[MAX_MESH] = {0};
        bool any = false;
        for (int j = 0; j < s->r->n; j++)
            part[j] = out[j][k];
        if (!v || !v->def || v->def->op != n[0]->op || part->dtype != s->value[v->id].dtype ||
            fits_somehow(s, part, &s->value[v->id], cut, 0, &any) || !any)
            continue;
        s->found = true;
        printf("first that differs: %s %%%s\n", n[0]->op->name, v->name);
        for (int64_t e = 0; e < MIN(tensor_nelem(&s->value[v->id]), 16); e++)
            printf(" %.9g", tensor_get(&s->value[v->id], e));
        printf("\n");
        for (int j = 0; j < s->r->n; j++) {
            printf("  rank %d:", j);
            for (int64_t e = 0; e < MIN(tensor_nelem(&part[j]), 16); e++)
                printf(" %.9g", tensor_get(&part[j], e));
            printf("\n");
        }
    }
}

void ranks_show(const Ranks *r, const Graph *whole, const Tensor *in)
{
    Show s = {.r = r, .whole = whole, .value = NEWN(r->a, Tensor, whole->nvalue)};
    for (int i = 0; i < whole->nin; i++)
        s.value[whole->in[i].v->id] = in[i];
    for (const Node *n = whole->first; n; n = n->next) {
        Tensor *x = NEWN(r->a, Tensor, n->nin), *y = NEWN(r->a, Tensor, n->nout);
        for (int i = 0; i < n->nin; i++)
            x[i] = s.value[n->in[i]->id];
        interp_node(r->a, whole, n, x, y);
        for (int k = 0; k < n->nout; k++)
            s.value[n->out[k]->id] = y[k];
    }
    ranks_interpret(r, ranks_inputs(r, whole, in), &(RankWatch){see, &s});
    if (!s.found)
        printf("no value of one name differs\n");
}
