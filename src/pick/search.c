/* A solution made better by blocks: large neighbourhoods, drawn, each searched exactly as far as
 * its limits allow. Most are balls around one to three variables, every fifth is all of a small
 * model. Prices near the bound's make a block's search look where room is worth the most; they
 * vary, as do the labels that may be taken.
 *
 * Once nothing has got better for a while, one variable is given another label, and its block is
 * solved around it; a solution that is a bit worse is taken then. What does not lead below the best
 * is dropped sooner or later. */
#include "solve.h"

#include <string.h>

Search *search_new(Arena *a, PickModel *m, uint64_t seed)
{
    Search *s = NEW(a, Search);
    *s = (Search){.m = m, .cost = INFINITY, .keep = INFINITY, .seed = seed};
    s->x = NEWN(a, int, m->n);
    s->best = NEWN(a, int, m->n);
    s->best_cost = INFINITY;
    s->price = NEWN(a, double, MOST_ROWS);
    s->used = NEWN(a, double, MOST_ROWS);
    s->at = NEWN(a, int, m->n);
    s->slot = NEWN(a, int, MOST_ROWS);
    memset(s->at, -1, sizeof *s->at * (size_t)m->n);
    memset(s->slot, -1, sizeof *s->slot * MOST_ROWS);
    return s;
}

uint32_t search_draw(Search *s, uint32_t below)
{
    uint32_t counter[4] = {(uint32_t)s->drawn, (uint32_t)(s->drawn >> 32), 0, 0}, out[4];
    uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)};
    s->drawn++;
    philox(counter, key, out);
    return (uint32_t)(((uint64_t)out[0] * below) >> 32);
}

void search_refresh(Search *s)
{
    if (s->nused == s->m->nrow)
        return;
    model_fill_used(s->m, s->x, s->used);
    s->nused = s->m->nrow;
}

static void set(Search *s, const int *x, double cost)
{
    memcpy(s->x, x, sizeof *x * (size_t)s->m->n);
    s->cost = cost;
    s->nused = 0;
}

static bool note_best(Search *s)
{
    if (!(s->cost < s->best_cost))
        return false;
    s->best_cost = s->cost;
    memcpy(s->best, s->x, sizeof *s->x * (size_t)s->m->n);
    return true;
}

bool search_offer(Search *s, const int *x)
{
    double cost = model_cost(s->m, x);
    if (!model_fits(s->m, x) || !(cost < s->cost))
        return false;
    set(s, x, cost);
    note_best(s);
    return true;
}

/* ---- neighbourhoods ---- */

enum { MOST_WHOLE = 400, MOST_BALL = 230, SMALL_BALL = 60 };

/* A block that grows. */
typedef struct Ball {
    int n, want, *var;
    bool *in;
} Ball;

static void add_to_ball(Ball *b, int u)
{
    if (b->n < b->want && !b->in[u]) {
        b->in[u] = true;
        b->var[b->n++] = u;
    }
}

/* Adds u and those around it, nearest first, up to `stop` in all. */
static void grow(const PickModel *m, Ball *b, int u, int stop)
{
    int at = b->n;
    add_to_ball(b, u);
    for (; at < b->n && b->n < stop; at++)
        for (int i = m->edge_first[b->var[at]]; i < m->edge_first[b->var[at] + 1]; i++)
            add_to_ball(b, model_other(&m->edge[m->edge_of[i]], b->var[at]));
}

/* A row that has a price, if one is found soon; NULL: none. */
static const Uses *draw_row(Search *s)
{
    enum { DRAWS = 10 };
    int r = -1;
    for (int i = 0; i < DRAWS && s->m->nrow && (r < 0 || s->guide[r] <= 0); i++)
        r = (int)search_draw(s, (uint32_t)s->m->nrow);
    return r >= 0 && s->m->row[r].uses.n ? &s->m->row[r].uses : NULL;
}

static int draw_seed(Search *s, const Uses *row)
{
    return row ? row->use[search_draw(s, (uint32_t)row->n)].u
               : (int)search_draw(s, (uint32_t)s->m->n);
}

/* Balls, half of the time around variables of one row. */
static Ball draw_ball(Arena *tmp, Search *s, int want, int nball)
{
    enum { SEEDS = 50 };
    const PickModel *m = s->m;
    Ball b = {0, MIN(want, m->n), NEWN(tmp, int, m->n), NEWN(tmp, bool, m->n)};
    const Uses *row = search_draw(s, 2) ? draw_row(s) : NULL;
    for (int i = 0; i < SEEDS && b.n < b.want; i++)
        grow(m, &b, draw_seed(s, row), b.n + want / nball + 1);
    return b;
}

static Ball whole(Arena *tmp, const PickModel *m)
{
    Ball b = {m->n, m->n, NEWN(tmp, int, m->n), NULL};
    for (int u = 0; u < m->n; u++)
        b.var[u] = u;
    return b;
}

static Ball draw_block(Arena *tmp, Search *s)
{
    enum { WHOLE = 5 };
    bool small = s->m->n <= MOST_WHOLE;
    if (small && !search_draw(s, WHOLE))
        return whole(tmp, s->m);
    int want = 3 + (int)search_draw(s, 1 + search_draw(s, small ? SMALL_BALL : MOST_BALL));
    return draw_ball(tmp, s, want, 1 + (int)search_draw(s, 3));
}

/* ---- steps ---- */

/* Prices as they are, or times a factor around 1 of each row's own. */
static void draw_prices(Search *s)
{
    static const double spread[] = {0, 0.3, 0.5};
    enum { PARTS = 1000 };
    double width = spread[search_draw(s, LEN(spread))];
    for (int r = 0; r < s->m->nrow; r++) {
        double place = width > 0 ? 2.0 * search_draw(s, PARTS) / PARTS - 1 : 0;
        s->price[r] = s->guide[r] * (1 + width * place);
    }
}

static double draw_cells(Search *s)
{
    static const double cells[] = {300, 3000, 30000, 300000};
    return cells[search_draw(s, LEN(cells))];
}

static BlockLimits draw_limits(Search *s)
{
    enum { HALVES = 5, NODES = 1000 };
    s->keep = (s->best_cost - s->bound) / (1 << search_draw(s, HALVES));
    draw_prices(s);
    return (BlockLimits){draw_cells(s), NODES, s->cost, -1, 0};
}

static void improve(Arena *tmp, Search *s)
{
    BlockLimits limits = draw_limits(s);
    Ball b = draw_block(tmp, s);
    if (block_improve(tmp, s, b.n, b.var, limits).better)
        s->quiet = note_best(s) ? 0 : s->quiet / 2;
    else
        s->quiet++;
}

/* Another label of u, if possible one that the bound does not exclude. */
static int draw_label(Search *s, int u)
{
    enum { DRAWS = 20 };
    double gap = s->best_cost - s->bound;
    int label = s->x[u];
    for (int i = 0; i < DRAWS; i++) {
        label = (int)search_draw(s, (uint32_t)model_labels(s->m, u));
        if (label != s->x[u] && s->above[s->m->first[u] + label] <= gap)
            return label;
    }
    return label;
}

static void kick(Arena *tmp, Search *s)
{
    enum { LEAST = 5, SPREAD = 40 };
    const double worse = 0.02; /* of the gap */
    double gap = s->best_cost - s->bound;
    if (s->cost > s->best_cost && search_draw(s, 2))
        set(s, s->best, s->best_cost);
    BlockLimits limits = draw_limits(s);
    Ball b = draw_ball(tmp, s, LEAST + (int)search_draw(s, SPREAD), 1 + (int)search_draw(s, 2));
    limits.pinned = b.var[0];
    limits.label = draw_label(s, b.var[0]);
    limits.most = fmax(s->best_cost + worse * gap, s->cost + worse * gap / 10);
    if (block_improve(tmp, s, b.n, b.var, limits).better)
        s->quiet = 0;
    note_best(s);
}

void search_blocks(Arena *tmp, Search *s, int64_t steps)
{
    enum { PATIENCE = 300 };
    for (int64_t end = s->steps + steps; s->steps < end; arena_reset(tmp))
        if (s->quiet > PATIENCE)
            kick(tmp, s);
        else
            improve(tmp, s);
}

bool search_whole(Arena *tmp, Search *s, double cells, int nodes)
{
    if (s->m->n > MOST_WHOLE)
        return false;
    Ball b = whole(tmp, s->m);
    s->keep = s->best_cost - s->bound;
    memcpy(s->price, s->guide, sizeof *s->price * (size_t)s->m->nrow);
    BlockAnswer answer =
        block_improve(tmp, s, b.n, b.var, (BlockLimits){cells, nodes, s->cost, -1, 0});
    note_best(s);
    arena_reset(tmp);
    return answer.complete;
}
