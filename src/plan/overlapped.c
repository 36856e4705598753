/* Moves the collectives of a plan so that they run beside computing: by orders within several
 * numbers of bytes beside its peak, of which the fastest is taken. */
#include "plan.h"
#include "order.h"

#include <math.h>

/* The bytes that a collective's step sends, receives and works in. */
static int64_t sent_bytes(const Step *s)
{
    int64_t nbytes = s->call.nbytes_work;
    for (int i = 0; i < s->node->nin; i++)
        nbytes += flow_round(type_nbytes(&s->node->in[i]->type));
    for (int k = 0; k < s->node->nout; k++)
        nbytes += flow_round(type_nbytes(&s->node->out[k]->type));
    return nbytes;
}

/* The bytes that overlap may take beside the peak if no limit says so: those of the two largest
 * collectives of blocks; of all, where no node is of a block. */
static int64_t overlap_bytes(const Plan *p)
{
    int64_t first = 0, second = 0;
    bool blocks = false;
    for (const Node *n = p->g->first; n; n = n->next)
        blocks |= block_of(n->scope).len > 0;
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        if (s->kind != STEP_CALL || s->node->op->class != CLASS_COLLECTIVE ||
            (blocks && !block_of(s->node->scope).len))
            continue;
        int64_t nbytes = sent_bytes(s);
        second = MAX(second, MIN(first, nbytes));
        first = MAX(first, nbytes);
    }
    return first + second;
}

/* The bytes in which p's collectives are moved, and what counts beside p's. */
typedef struct OverlapRoom {
    int64_t limit;         /* of p; 0: none */
    int64_t *beside, more; /* by node id; how much higher the peak is by it */
    double least;          /* seconds of the order of the plan so far, by the clock */
    bool slower;           /* the order after it was no faster */
    int64_t same;          /* so many bytes more than the last order had give the same */
} OverlapRoom;

/* A plan of p's nodes in which collectives run beside computing, where at most `more` bytes beside
 * the peak are alive; NULL: it is no faster, or above the cap. */
static Plan *overlap_within(Arena *a, const Plan *p, const PlanFor *to, Placements *known,
                            OverlapRoom *r, int64_t more, int64_t cap)
{
    Arena *tmp = arena_tmp(p->g->a);
    Graph *g = graph_clone(a, p->g);
    OverlapBytes b = {.more = more, .beside = r->beside, .rival = to->rival, .told = to->loose};
    double sec = order_overlap(g, to->device, to->machine, tmp, &b);
    r->same = b.lacking - 1;
    r->slower = sec >= r->least;
    const bool capped = !r->beside && !plan_is_one_of_many(g, to);
    PlanFor as = *to;
    as.loose |= to->beat > 0 && sec >= to->beat;
    Plan *q = r->slower ? NULL : plan_placed(a, g, &as, capped && !as.loose ? cap : 0, known);
    arena_reset(tmp);
    bool good = q && q->est.step < p->est.step;
    if (good && capped && !as.loose)
        good = q->space[SPACE_MAIN].peak <= cap &&
               (!r->limit || plan_least(q) <= MAX(r->limit, plan_least(p)));
    if (!good)
        return NULL;
    r->least = sec > 0 ? sec : INFINITY;
    q->overlap_cap = MAX(cap, capped ? 0 : q->space[SPACE_MAIN].peak);
    return q;
}

/* A faster plan of the same nodes in so many more bytes, or NULL. Where more bytes are alive than
 * before, addresses may waste some: then less is allowed but at the peak itself. */
static Plan *overlap_in(Arena *a, const Plan *p, const PlanFor *to, Placements *known,
                        OverlapRoom *r, int64_t more)
{
    static const int parts[] = {0, 32, 16, 8};
    int64_t peak = p->space[SPACE_MAIN].peak;
    Plan *q = NULL;
    for (int i = 0; i < LEN(parts) && !q && !(i && r->slower); i++) {
        const int64_t less = parts[i] ? peak / parts[i] : 0;
        q = overlap_within(a, p, to, known, r, more - less, peak + more);
        r->same = MAX(r->same - less, 0);
    }
    return q;
}

static OverlapRoom room_beside(const Plan *p, const PlanFor *to, Arena *tmp)
{
    OverlapRoom r = {.limit = to->limit, .least = INFINITY};
    if (to->beside) {
        r.beside = NEWN(tmp, int64_t, p->g->nnode);
        r.more = to->beside->fill(to->beside->arg, p, r.beside);
    }
    return r;
}

/* A limit that leaves more than the bytes without one has both tried, as more room is not always
 * faster. */
Plan *plan_overlap(Arena *a, Plan *p, const PlanFor *to, Placements *known)
{
    if (!to->overlap || (to->rough && !to->moved) || !device_is_host(to->device) ||
        p->est.exposed <= 0)
        return p;
    Arena *tmp = arena_tmp(p->g->a);
    OverlapRoom r = room_beside(p, to, tmp);
    int64_t usual = overlap_bytes(p), room = r.limit ? r.limit - plan_least(p) - r.more : usual;
    if (to->room)
        room = usual * (to->room - ROOM_NONE) / (ROOM_USUAL - ROOM_NONE);
    Plan *q = overlap_in(a, p, to, known, &r, MIN(usual, MAX(0, room)));
    const bool other = room > usual && (!q || room - usual > r.same);
    Plan *wide = other ? overlap_in(a, p, to, known, &r, room) : NULL;
    if (wide && (!q || wide->est.step < q->est.step))
        q = wide;
    arena_reset(tmp);
    return q ? q : p;
}
