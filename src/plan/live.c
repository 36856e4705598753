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

int64_t plan_live_bytes(const Plan *p, int step)
{
    int64_t sum = 0;
    for (int i = 0; i < p->nstorage; i++)
        if (p->storage[i].start <= step && step < p->storage[i].end)
            sum += p->storage[i].nbytes;
    return sum;
}

void plan_measure(Plan *p)
{
    Arena *tmp = arena_new(p->g->ctx);
    if (!tmp)
        fail(p->g->ctx, TN_FAIL, "out of memory");
    int64_t *change = NEWN(tmp, int64_t, p->nstep + 2);
    p->workspace = p->persistent_nbytes = 0;
    for (int i = 0; i < p->nstorage; i++) {
        const Storage *s = &p->storage[i];
        change[s->start] += s->nbytes;
        change[s->end] -= s->nbytes;
        p->persistent_nbytes += s->persistent ? s->nbytes : 0;
        p->workspace = s->category == CAT_WORK ? MAX(p->workspace, s->nbytes) : p->workspace;
    }
    int64_t live = 0;
    p->bound = 0;
    for (int i = 0; i <= p->nstep; i++) {
        live += change[i];
        if (live > p->bound) {
            p->bound = live;
            p->peak_step = i;
        }
    }
    arena_free(tmp);
    memset(p->by_category, 0, sizeof p->by_category);
    for (int i = 0; i < p->nstorage; i++)
        if (p->storage[i].start <= p->peak_step && p->peak_step < p->storage[i].end)
            p->by_category[p->storage[i].category] += p->storage[i].nbytes;
}
