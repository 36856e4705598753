/* A solution made better by blocks: large neighbourhoods, drawn, each searched exactly as far as
 * its limits allow. Most are balls around one to three variables, in small models every fifth is
 * all. Prices make a block's search look where room is worth the most; as nobody knows which are
 * right for whole labels, they are drawn around the bound's, some far from them, some 0. The labels
 * that may be taken are drawn too, near the bound's or all.
 *
 * Once nothing has got better for a while, one variable is given another label, and its block is
 * solved around it; a solution that is a bit worse is taken then. Where that does not help a
 * small model for long, another run begins, from a solution that message passing finds at other
 * prices. */
#include "solve.h"

#include <string.h>

enum { MOST_WHOLE = 400, PARTS = 1000 };

/* How blocks are drawn; parts are of 100. */
typedef struct Manner {
    uint32_t wild, free; /* prices far from the bound's, none */
    uint32_t narrow;     /* few labels */
    uint32_t ball;       /* variables */
    uint32_t halves;     /* of the gap, within which labels lie */
    int nodes;
} Manner;

static const Manner small = {60, 15, 30, 60, 5, 1000}, large = {20, 0, 70, 40, 9, 300};

bool search_is_small(const Search *s)
{
    return s->m->n <= MOST_WHOLE;
}

static const Manner *manner(const Search *s)
{
    return search_is_small(s) ? &small : &large;
}

Search *search_new(Arena *a, PickModel *m, SearchRoom *room)
{
    Search *s = NEW(a, Search);
    *s = (Search){.m = m, .cost = INFINITY, .keep = INFINITY, .bound = -INFINITY, .room = room};
    s->x = NEWN(a, int, m->n);
    s->best = NEWN(a, int, m->n);
    s->run = NEWN(a, int, m->n);
    s->best_cost = s->run_cost = INFINITY;
    s->price = NEWN(a, double, MOST_ROWS);
    s->used = NEWN(a, double, MOST_ROWS);
    s->scratch = NEWN(a, double, m->nlabel);
    s->at = NEWN(a, int, m->n);
    s->slot = NEWN(a, int, MOST_ROWS);
    memset(s->at, -1, sizeof *s->at * (size_t)m->n);
    memset(s->slot, -1, sizeof *s->slot * MOST_ROWS);
    return s;
}

uint32_t search_draw(Search *s, uint32_t below)
{
    uint32_t counter[4] = {(uint32_t)s->drawn, (uint32_t)(s->drawn >> 32), 0, 0}, out[4];
    const uint32_t key[2] = {1, 0};
    s->drawn++;
    philox(counter, key, out);
    return (uint32_t)(((uint64_t)out[0] * below) >> 32);
}

static double draw_part(Search *s)
{
    return (double)search_draw(s, PARTS) / PARTS;
}

static bool draw_percent(Search *s, uint32_t percent)
{
    return search_draw(s, 100) < percent;
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

/* Whether x is the best of its run. */
static bool note_best(Search *s)
{
    size_t nbytes = sizeof *s->x * (size_t)s->m->n;
    if (s->cost < s->best_cost) {
        s->best_cost = s->cost;
        s->best_steps = s->steps;
        memcpy(s->best, s->x, nbytes);
    }
    if (!(s->cost < s->run_cost))
        return false;
    s->run_cost = s->cost;
    s->run_steps = s->steps;
    memcpy(s->run, s->x, nbytes);
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
    if (search_is_small(s) && !search_draw(s, WHOLE))
        return whole(tmp, s->m);
    int want = 3 + (int)search_draw(s, 1 + search_draw(s, manner(s)->ball));
    return draw_ball(tmp, s, want, 1 + (int)search_draw(s, 3));
}

/* ---- limits ---- */

static void draw_prices(Search *s)
{
    static const double spread[] = {0, 0.3, 0.5};
    enum { OCTAVES = 4 };
    double width = spread[search_draw(s, LEN(spread))], all = 1;
    if (draw_percent(s, manner(s)->wild))
        all = exp2(OCTAVES * (2 * draw_part(s) - 1));
    if (draw_percent(s, manner(s)->free))
        all = 0;
    for (int r = 0; r < s->m->nrow; r++)
        s->price[r] = s->guide[r] * all * (1 + width * (width > 0 ? 2 * draw_part(s) - 1 : 0));
}

static double draw_cells(Search *s)
{
    static const double cells[] = {300, 3000, 30000, 300000};
    return cells[search_draw(s, LEN(cells))];
}

static BlockLimits draw_limits(Search *s)
{
    enum { DOUBLINGS = 4, NOISES = 5 };
    double gap = s->best_cost - s->bound;
    s->keep = gap / (1 << search_draw(s, manner(s)->halves));
    s->width = s->m->nlabel;
    s->noise = 0;
    if (draw_percent(s, manner(s)->narrow)) {
        s->width = 2 << search_draw(s, DOUBLINGS);
        s->noise = gap / (4 << 2 * search_draw(s, NOISES));
    }
    draw_prices(s);
    return (BlockLimits){draw_cells(s), manner(s)->nodes, s->cost, -1, 0};
}

/* ---- steps ---- */

static void improve(Arena *tmp, Search *s)
{
    BlockLimits limits = draw_limits(s);
    Ball b = draw_block(tmp, s);
    if (block_improve(tmp, s, b.n, b.var, limits).better)
        s->quiet = note_best(s) ? 0 : s->quiet / 2;
    else
        s->quiet++;
}

/* Keeps the run's best, for others to mate with. */
static void keep_run(Arena *a, Search *s)
{
    int i = s->npool < MOST_POOL ? s->npool++ : (int)search_draw(s, MOST_POOL);
    if (!s->pool[i])
        s->pool[i] = NEWN(a, int, s->m->n);
    memcpy(s->pool[i], s->run, sizeof *s->run * (size_t)s->m->n);
}

/* All variables at once, with the labels that x and some of the best have. */
static void mate(Arena *tmp, Search *s)
{
    BlockLimits limits = draw_limits(s);
    Ball b = whole(tmp, s->m);
    s->mate[0] = s->best;
    for (int i = 1; i < MATES; i++)
        s->mate[i] = s->pool[search_draw(s, (uint32_t)s->npool)];
    if (block_improve(tmp, s, b.n, b.var, limits).better)
        s->quiet = note_best(s) ? 0 : s->quiet / 2;
    s->mate[0] = NULL;
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
    if (s->cost > s->run_cost && search_draw(s, 2))
        set(s, s->run, s->run_cost);
    BlockLimits limits = draw_limits(s);
    Ball b = draw_ball(tmp, s, LEAST + (int)search_draw(s, SPREAD), 1 + (int)search_draw(s, 2));
    limits.pinned = b.var[0];
    limits.label = draw_label(s, b.var[0]);
    limits.most = fmax(s->run_cost + worse * gap, s->cost + worse * gap / 10);
    if (block_improve(tmp, s, b.n, b.var, limits).better)
        s->quiet = 0;
    note_best(s);
}

/* Message passing at prices up to 64 times those of the bound; whether a solution fits. */
static bool visit_prices(Search *s, Trws *t)
{
    enum { OCTAVES = 6, PASSES = 20 };
    double all = exp2(OCTAVES * draw_part(s));
    for (int r = 0; r < s->m->nrow; r++)
        trws_set_price(t, r, s->guide[r] * all * (0.5 + draw_part(s)));
    bool any = false;
    for (int i = 0; i < PASSES; i++) {
        trws_pass(t, i % 2 == 0);
        any |= search_offer(s, t->x);
        s->steps += s->m->sweep_steps;
    }
    return any;
}

void search_drop(Search *s, const bool *dead)
{
    const PickModel *m = s->m;
    for (int u = 0; u < m->n; u++) {
        int label = 0;
        for (int j = 0; j < s->best[u]; j++)
            label += !dead[m->first[u] + j];
        s->best[u] = s->x[u] = s->run[u] = label;
    }
    s->cost = s->run_cost = s->best_cost;
    s->npool = 0; /* they may have what goes */
    s->above = NULL;
    s->nused = 0;
}

void search_forget(Search *s)
{
    s->cost = s->run_cost = s->best_cost = s->keep = INFINITY;
    s->bound = -INFINITY;
    s->above = NULL;
    s->npool = s->nused = 0;
}

void search_begin_run(Search *s)
{
    s->quiet = 0;
    s->cost = s->run_cost = INFINITY;
}

void search_back_to_best(Search *s)
{
    if (s->best_cost < INFINITY)
        set(s, s->best, s->best_cost);
    note_best(s);
    s->run_steps = s->steps;
}

/* In turns with a walk from there. */
static void restart(Arena *tmp, Search *s, Trws *t)
{
    enum { SHORT = 25000000, DOUBLINGS = 4 }; /* steps of a walk */
    keep_run(s->m->a, s);
    search_begin_run(s);
    visit_prices(s, t);
    if (search_draw(s, 2))
        forest_walk(tmp, s, t->x, (int64_t)SHORT << search_draw(s, DOUBLINGS));
    if (!(s->cost < INFINITY))
        search_back_to_best(s);
    s->run_steps = s->steps;
}

void search_blocks(Arena *tmp, Search *s, Trws *t, int64_t steps)
{
    enum { MATING = 20, QUIET = 300, PATIENCE = 100000000 };
    for (int64_t end = s->steps + steps; s->steps < end; arena_reset(tmp))
        if (search_is_small(s) && s->steps - s->run_steps > PATIENCE)
            restart(tmp, s, t);
        else if (s->quiet > QUIET)
            kick(tmp, s);
        else if (s->npool && !search_draw(s, MATING))
            mate(tmp, s);
        else
            improve(tmp, s);
}

bool search_whole(Arena *tmp, Search *s, double cells, int nodes)
{
    if (!search_is_small(s))
        return false;
    Ball b = whole(tmp, s->m);
    s->keep = s->best_cost - s->bound;
    s->width = s->m->nlabel;
    s->noise = 0;
    memcpy(s->price, s->guide, sizeof *s->price * (size_t)s->m->nrow);
    BlockAnswer answer =
        block_improve(tmp, s, b.n, b.var, (BlockLimits){cells, nodes, s->cost, -1, 0});
    note_best(s);
    arena_reset(tmp);
    return answer.complete;
}
