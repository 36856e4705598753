/* Values that go to the host's memory while only the backward will read them.
 *
 * Copies run beside the kernels, so bytes cost time only where there are more of them than the link
 * moves until the backward wants them back. The first values of the forward have the most time
 * for that, so blocks follow each other on a ladder as in the forward, and all that a block has
 * saved at the peak is one step. Copies that cost no time are best spent on values that take
 * longest to compute again for their bytes. */
#include "again.h"
#include "../machine/machine.h"

#include <stdlib.h>

#define BUSY 0.8 /* share of the forward in which copies run, so that none is waited for */

static void add_step(const Decider *d, Ladder *l, int i, int *last)
{
    if (d->v.block[i] != *last)
        PUSH(d->keep, l->step, l->n, l->cap, (LadderStep){0});
    *last = d->v.block[i];
    LadderStep *s = &l->step[l->n - 1];
    PUSH(d->keep, s->value, s->n, s->cap, d->v.name[i]);
}

Ladder away_ladder(const Decider *d, const Planned *x)
{
    Ladder l = {.level = AWAY, .base = x->level};
    int last = NO_BLOCK - 1;
    for (int i = 0; i < d->v.n; i++)
        if (d->v.may[i] && level_at(x, i) == SAVED && x->alive && x->alive[i] > 0)
            add_step(d, &l, i, &last);
    return l;
}

/* ---- what costs no time ---- */

/* A value that may go, and what computing a byte of it again takes. */
typedef struct Leaver {
    int i;
    double price;
} Leaver;

static int by_price(const void *x, const void *y)
{
    const Leaver *p = x, *q = y;
    if (p->price != q->price)
        return p->price > q->price ? -1 : 1;
    return p->i - q->i;
}

/* Fills those at x's peak that have the time to go and come back; left: of the forward, in seconds.
 */
static int list_leavers(const Decider *d, const Planned *x, double left, Leaver *list)
{
    int n = 0;
    for (int i = 0; i < d->v.n; i++) {
        left -= d->v.sec[i];
        bool alive = d->v.may[i] && x->alive && x->alive[i] > 0 && level_at(x, i) == SAVED;
        if (alive && 2 * copy_sec(d->o.prices, (double)d->v.nbytes[i]) < left)
            list[n++] = (Leaver){i, d->v.sec[i] / (double)d->v.nbytes[i]};
    }
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_price);
    return n;
}

const Level *away_free(const Decider *d, const Planned *x)
{
    Level *level = NEWN(d->keep, Level, d->v.n);
    Leaver *list = NEWN(d->tmp, Leaver, d->v.n);
    double forward = 0, busy = 0;
    bool any = false;
    for (int i = 0; i < d->v.n; i++) {
        level[i] = level_at(x, i);
        forward += d->v.sec[i];
    }
    for (int k = 0, n = list_leavers(d, x, forward, list); k < n; k++) {
        double sec = copy_sec(d->o.prices, (double)d->v.nbytes[list[k].i]);
        if (busy + sec > BUSY * forward)
            continue;
        busy += sec;
        level[list[k].i] = AWAY;
        any = true;
    }
    arena_reset(d->tmp);
    return any ? level : NULL;
}
