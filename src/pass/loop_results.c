/* loop_results: has the graph read the results of a loop in the place of what the loop computes.
 *
 * Each result is followed by what makes the graph's value of it: views of a sum that is carried, an
 * axis that was flat, the scale, a cast to the value's dtype. A scale may be made from results
 * itself, by nodes that are `after`: so results are emitted as soon as their scale is there, and
 * nodes `after` are put behind the loop in their order. Then the readers around read these values,
 * and with them take a later phase where the loop has one. Linear in the nodes from the first of
 * the loop's on, and in results for each node that makes a scale. */
#include "loop_make.h"

_Noreturn static void refuse(const LoopMade *x, const Node *n, const char *why)
{
    fail_node(x->g, n, "%s: %s", x->p->what, why);
}

/* Values of the graph, by id, and what stands for them after the loop. */
typedef struct Behind {
    const LoopMade *x;
    Value **now;
    bool *placed; /* by node id: it has been put after the loop */
    bool later;   /* one of these is of a later phase than before */
} Behind;

/* Finds the value that multiplies result k; false: it is not made yet. */
static bool find_scale(const Behind *y, int k, Value **scale)
{
    const LoopMade *x = y->x;
    Value *s = x->p->scale ? x->p->scale[x->result[k]->id] : NULL;
    *scale = s && y->now[s->id] ? y->now[s->id] : s;
    return !s || y->now[s->id] || !s->def || !x->trails[s->def->id] || y->placed[s->def->id];
}

/* The value for which result k stands. */
static Value *emit_result(const Behind *y, int k, Value *scale)
{
    const Value *old = y->x->result[k];
    const ProductSum *s = y->x->sums->result[old->id];
    Build b = {.g = y->x->g, .before = y->x->p->before, .phase = y->x->loop->phase};
    Value *v = y->x->loop->out[k];
    for (int i = 0; s && i < s->nview; i++)
        v = emit_named(&b, s->view[i]->op, 1, &v, s->view[i]->attr, NULL, -1, NULL, -1)->out[0];
    if (v->type.rank != old->type.rank)
        v = loop_view(&b, v, &old->type);
    if (scale) {
        DType wide = loop_sum_dtype(&(LoopPart){.narrow = false}, v->type.dtype);
        if (scale->type.rank)
            scale = loop_view(&b, scale, &(Type){.dtype = scale->type.dtype});
        v = emit1(&b, "mul", IN(emit_cast(&b, v, wide), emit_cast(&b, scale, wide)), NOATTRS);
    }
    return emit_cast(&b, v, old->type.dtype);
}

/* Emits the results that can be. */
static void emit_results(Behind *y)
{
    Value *scale;
    for (bool more = true; more;) {
        more = false;
        for (int k = 0; k < y->x->nresult; k++) {
            int id = y->x->result[k]->id;
            if (y->now[id] || !find_scale(y, k, &scale))
                continue;
            y->now[id] = emit_result(y, k, scale);
            more = true;
        }
    }
}

/* Has n, which is of the graph before, read what the loop yields. */
static void read_results(const Behind *y, Node *n)
{
    const LoopMade *x = y->x;
    int phase = n->phase;
    for (int i = 0; i < n->nin; i++) {
        const Value *v = n->in[i];
        bool old = v->id < x->nvalue; /* else n has read results already */
        if (old && loop_drops(x->p, v) && !y->now[v->id])
            refuse(x, n, arena_printf(x->tmp, "it reads %%%s before its scale", v->name));
        if (old && y->now[v->id])
            n->in[i] = y->now[v->id];
        phase = MAX(phase, n->in[i]->def ? (int)n->in[i]->def->phase : 0);
    }
    if (phase == (int)n->phase)
        return;
    n->phase = (Phase)phase;
    if (n->region)
        region_fit_phase(n);
}

static void read_output(const Behind *y, int i)
{
    Graph *g = y->x->g;
    const Value *v = g->out[i].v;
    if (v->id < y->x->nvalue && y->now[v->id])
        g->out[i].v = y->now[v->id];
    else if (v->id < y->x->nvalue && loop_drops(y->x->p, v))
        refuse(y->x, v->def, "it is an output, but not yielded");
}

static void read_outputs(const Behind *y)
{
    const LoopPart *p = y->x->p;
    for (int k = 0; k < y->x->nresult; k++)
        if (!y->now[y->x->result[k]->id])
            refuse(y->x, y->x->result[k]->def, "its scale is made neither before nor behind");
    for (int i = 0; i < y->x->g->nout && !p->output; i++)
        read_output(y, i);
    for (Node *const *n = y->x->inside; *n && p->output; n++)
        for (int k = 0; k < (*n)->nout; k++)
            for (int i = p->output[(*n)->out[k]->id]; i; i = p->more[i - 1])
                read_output(y, i - 1);
}

/* Has what stands after the loop read its results: their readers, where these are known, but all
 * where one is of a later phase than before, as what reads that one must be too. */
static void read_behind(const Behind *y)
{
    const LoopMade *x = y->x;
    bool later = !x->p->user || y->later;
    for (int k = 0; k < x->nresult && !later; k++)
        for (Node **n = x->p->user[x->result[k]->id]; n && *n; n++) {
            Phase phase = (*n)->phase;
            if (!x->p->outside[(*n)->id] || y->placed[(*n)->id])
                continue;
            read_results(y, *n);
            later |= (*n)->phase != phase;
        }
    for (Node *n = x->p->before; n && later; n = n->next)
        read_results(y, n);
}

void loop_read_results(const LoopMade *x)
{
    Behind y = {.x = x,
                .now = SPARSE(x->tmp, Value *, x->nvalue),
                .placed = SPARSE(x->tmp, bool, x->nnode)};
    const bool *scales = loop_scales(x->g, x->tmp, x->p, x->inside);
    emit_results(&y);
    for (Node *n = x->first, *next; n != x->loop; n = next) {
        next = n->next;
        if (n->id >= x->nnode || !x->p->after[n->id])
            continue;
        Phase phase = n->phase;
        node_move(x->g, n, x->p->before);
        read_results(&y, n);
        y.later |= n->phase != phase;
        y.placed[n->id] = true;
        if (scales[n->id])
            emit_results(&y);
    }
    read_behind(&y);
    read_outputs(&y);
}
