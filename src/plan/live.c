/* Liveness of storages, exact at every step. A storage is alive from the first step that touches it
 * to the last; one that a loop's body touches but does not own is alive during the whole loop.
 * Linear in steps and arguments. */
#include "plan.h"

#include <string.h>

#define X(id, text) text,
static const char *const categories[] = {CATEGORIES(X)};
#undef X

const char *category_name(Category c)
{
    return categories[c];
}

typedef struct Nest {
    int loop[TN_MAX_DEPTH];
    int depth;
} Nest;

static void touch(Plan *p, const Nest *nest, int storage, int step)
{
    Storage *s = &p->storage[storage];
    int first = step, last = step;
    for (int d = nest->depth - 1; d >= 0 && nest->loop[d] != s->loop; d--) {
        first = nest->loop[d];
        last = p->step[first].end;
    }
    s->start = MIN(s->start, first);
    s->end = MAX(s->end, last + 1);
}

void plan_live(Plan *p)
{
    for (int i = 0; i < p->nstorage; i++) {
        p->storage[i].start = p->nstep;
        p->storage[i].end = 0;
    }
    Nest nest = {.depth = 0};
    for (int i = 0; i < p->nstep; i++) {
        Step *s = &p->step[i];
        if (s->kind == STEP_LOOP)
            nest.loop[nest.depth++] = i;
        for (int k = 0; k < s->narg; k++)
            touch(p, &nest, s->arg[k].storage, i);
        if (s->work >= 0)
            touch(p, &nest, s->work, i);
        if (s->kind == STEP_END)
            nest.depth--;
    }
    for (int i = 0; i < p->nin; i++) {
        Storage *s = &p->storage[p->in[i].storage];
        s->start = 0;
        bool stays = s->persistent || role_scalar(p->in[i].role);
        s->end = stays ? MAX(p->nstep, 1) : MAX(s->end, 1);
    }
    for (int i = 0; i < p->nout; i++) {
        Storage *s = &p->storage[p->out[i].storage];
        s->end = MAX(p->nstep, 1);
    }
    for (int i = 0; i < p->nstorage;
         i++) /* of kernels that touch nothing, such as unused results */
        if (p->storage[i].start >= p->storage[i].end)
            p->storage[i].start = p->storage[i].end = 0;
}

/* The largest sum of live bytes in a space, and where; change has room for each step and two. */
static void measure_space(Plan *p, Space space, int64_t *change)
{
    PlanSpace *x = &p->space[space];
    int64_t live = 0;
    memset(change, 0, sizeof *change * (size_t)(p->nstep + 2));
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        if (s->space != space)
            continue;
        change[s->start] += s->nbytes;
        change[s->end] -= s->nbytes;
    }
    x->bound = 0;
    for (int i = 0; i <= p->nstep; i++) {
        live += change[i];
        if (live > x->bound) {
            x->bound = live;
            x->peak_step = i;
        }
    }
}

void plan_measure(Plan *p)
{
    Arena *tmp = arena_tmp(p->g->a);
    int64_t *change = NEWN(tmp, int64_t, p->nstep + 2);
    for (int s = 0; s < device_nspace(p->device); s++)
        measure_space(p, (Space)s, change);
    arena_reset(tmp);
    p->workspace = 0;
    for (int s = 0; s < MAX_SPACE; s++)
        p->space[s].persistent = 0;
    memset(p->by_category, 0, sizeof p->by_category);
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        p->space[s->space].persistent += s->persistent ? s->nbytes : 0;
        p->workspace = s->category == CAT_WORK ? MAX(p->workspace, s->nbytes) : p->workspace;
        if (s->space == SPACE_MAIN && storage_alive(s, p->space[SPACE_MAIN].peak_step))
            p->by_category[s->category] += s->nbytes;
    }
}
