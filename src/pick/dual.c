/* The prices of rows: those at which the bound is highest, by subgradient steps.
 *
 * At given prices message passing has a bound and a solution near it; how far that solution is
 * above a row's room says in which direction the row's price should go. A step is as long as would
 * bring the bound to a target, were it linear (Polyak); the target is a bit above the best bound so
 * far: more than before while it is met, and half of that, from the best prices on, while it is
 * not. The direction is a mean over steps, as the solutions of single passes jump. */
#include "solve.h"

#include <string.h>

enum { WARM_UP = 20, PATIENCE = 20 };

Dual *dual_new(Arena *a, PickModel *m)
{
    Dual *d = NEW(a, Dual);
    *d = (Dual){.m = m, .t = trws_new(a, m), .bound = -INFINITY};
    d->used = NEWN(a, double, MOST_ROWS);
    d->slope = NEWN(a, double, MOST_ROWS);
    d->direction = NEWN(a, double, MOST_ROWS);
    d->price = NEWN(a, double, MOST_ROWS);
    d->above = NEWN(a, double, m->nlabel);
    return d;
}

/* Both passes; their solutions go to the search, their use to slope[]. */
static void pass_both(Dual *d, Search *s)
{
    PickModel *m = d->m;
    memset(d->slope, 0, sizeof *d->slope * MOST_ROWS);
    for (int forward = 1; forward >= 0; forward--) {
        trws_pass(d->t, forward);
        search_offer(s, d->t->x);
        model_read_used(m, d->used);
        for (int r = 0; r < m->nrow; r++)
            d->slope[r] += (d->used[r] - m->row[r].room) / 2;
    }
}

/* Keeps what is the best so far; whether the bound has grown by some part of what it should. */
static bool note_bound(Dual *d)
{
    double more = d->t->bound - d->bound;
    if (!(more > 0))
        return false;
    d->bound = d->t->bound;
    memcpy(d->price, d->t->price, sizeof *d->price * MOST_ROWS);
    if (more >= d->hope / 2)
        d->hope *= 1.5;
    return more > d->hope / 50;
}

static void go_back(Dual *d)
{
    d->hope /= 2;
    d->waited = 0;
    for (int r = 0; r < d->m->nrow; r++)
        trws_set_price(d->t, r, d->price[r]);
    memset(d->direction, 0, sizeof *d->direction * MOST_ROWS);
}

static void move_prices(Dual *d, double most)
{
    const double *price = d->t->price, least = 1e-18; /* less is no direction */
    double square = 0, scale = 1 / fmax(d->m->limit, 1);
    for (int r = 0; r < d->m->nrow; r++) {
        double *x = &d->direction[r];
        *x = (*x + d->slope[r] * scale) / 2;
        if (*x > 0 || price[r] > 0)
            square += *x * *x;
    }
    double target = fmin(d->bound + d->hope, most);
    double step = fmin(target - d->t->bound, 3 * d->hope) / square;
    for (int r = 0; r < d->m->nrow && square > least; r++)
        trws_set_price(d->t, r, fmax(0, price[r] + step * d->direction[r] * scale));
}

void dual_step(Dual *d, Search *s)
{
    if (d->bound == INFINITY)
        return;
    pass_both(d, s);
    s->steps += 2 * d->m->sweep_steps;
    d->waited = note_bound(d) ? 0 : d->waited + 1;
    if (d->bound == INFINITY)
        return;
    if (++d->nstep == WARM_UP)
        d->hope = 0.05 * fmax(fabs(d->bound), 1e-9);
    if (d->waited > PATIENCE)
        go_back(d);
    else if (d->nstep >= WARM_UP && d->m->nrow)
        move_prices(d, s->cost);
}

void dual_again(Dual *d)
{
    d->bound = -INFINITY;
    d->hope = 0;
    d->waited = 0;
    d->nstep = MIN(d->nstep, WARM_UP - 2);
    memset(d->direction, 0, sizeof *d->direction * MOST_ROWS);
}

bool dual_rests(const Dual *d)
{
    const double digits = 1e-9;
    return d->bound == INFINITY || (d->nstep > WARM_UP && d->hope < digits * fabs(d->bound));
}

void dual_finish(Dual *d, Search *s)
{
    enum { PASSES = 20 };
    if (d->bound == INFINITY)
        return;
    for (int r = 0; r < d->m->nrow; r++)
        trws_set_price(d->t, r, d->price[r]);
    for (int i = 0; i < PASSES; i++)
        pass_both(d, s);
    note_bound(d);
    trws_fill_above(d->t, d->above);
    for (int i = 0; i < d->m->nlabel; i++) /* both from one state */
        d->above[i] += d->t->bound - d->bound;
}
