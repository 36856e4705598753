/* The search for numbers of slices, on peaks and seconds that a function gives: places in a step,
 * at each of which some groups hold bytes; the peak is the largest sum. A group's loop adds seconds
 * for each slice. */
#include "../../src/decide/chunk_choose.h"
#include "../shared/gen.h"
#include "../shared/test.h"

enum { MOST_GROUPS = 6, MOST_PLACES = 5 };

/* A step. With slices a group holds as many times less, but `loop` more, of what its loop needs. */
typedef struct Made {
    int ngroup, nplace;
    int64_t units[MOST_GROUPS];
    int64_t fixed[MOST_PLACES], part[MOST_PLACES][MOST_GROUPS], loop[MOST_GROUPS];
    double sec, each[MOST_GROUPS];
    const bool *clash;
    int bad; /* a group that cannot be planned in slices, -1: none */
    int ntrial;
} Made;

static int64_t held_bytes(const Made *m, int p, int g, int64_t slices)
{
    int64_t most = (m->part[p][g] + slices - 1) / slices;
    return most + (slices > 1 && m->part[p][g] ? m->loop[g] : 0);
}

static int64_t place_bytes(const Made *m, int p, const int64_t *slices)
{
    int64_t sum = m->fixed[p];
    for (int g = 0; g < m->ngroup; g++)
        sum += held_bytes(m, p, g, slices[g]);
    return sum;
}

static int64_t made_peak(const Made *m, const int64_t *slices, int *at)
{
    *at = 0;
    for (int p = 1; p < m->nplace; p++)
        if (place_bytes(m, p, slices) > place_bytes(m, *at, slices))
            *at = p;
    return place_bytes(m, *at, slices);
}

static double made_sec(const Made *m, const int64_t *slices)
{
    double sec = m->sec;
    for (int g = 0; g < m->ngroup; g++)
        sec += slices[g] > 1 ? m->each[g] * (double)slices[g] : 0;
    return sec;
}

static void run(void *arg, const int64_t *slices, ChunkTrial *t)
{
    Made *m = arg;
    int at;
    m->ntrial++;
    t->peak = made_peak(m, slices, &at);
    t->sec = made_sec(m, slices);
    for (int g = 0; g < m->ngroup; g++)
        t->at_peak[g] = m->part[at][g] ? held_bytes(m, at, g, slices[g]) : 0;
    if (m->bad >= 0 && slices[m->bad] > 1)
        t->peak = -1;
}

static ChunkChoice choose(Arena *a, Made *m, int64_t target, int most)
{
    ChunkSearch s = {m->ngroup, m->units, m->clash, target, most, run, m, NULL};
    m->ntrial = 0;
    ChunkChoice c = chunk_search(a, &s);
    EXPECT(m->ntrial <= most + most / 2 && c.ntrial == m->ntrial);
    return c;
}

/* Whether a choice's numbers are those, and its peak and seconds are theirs. */
static bool is(const Made *m, const ChunkChoice *c, const int64_t *slices)
{
    int at;
    bool same = c->at.peak == made_peak(m, slices, &at) && c->at.sec == made_sec(m, slices);
    for (int g = 0; g < m->ngroup; g++)
        same &= c->group[g].slices == slices[g];
    return same;
}

static bool same_choice(const Made *m, const ChunkChoice *x, const ChunkChoice *y)
{
    bool same = x->at.peak == y->at.peak && x->at.sec == y->at.sec && x->reached == y->reached;
    for (int g = 0; g < m->ngroup; g++)
        same &= x->group[g].slices == y->group[g].slices;
    return same;
}

/* ---- made steps ---- */

/* Each group has a place of its own, so that the least numbers are known. */
static Made made_apart(Rng *rng)
{
    Made m = {.ngroup = 1 + (int)rng_below(rng, MOST_PLACES), .sec = 10, .bad = -1};
    m.nplace = m.ngroup;
    for (int g = 0; g < m.ngroup; g++) {
        m.units[g] = 2 + rng_below(rng, 100);
        m.fixed[g] = 1000 + rng_below(rng, 1000);
        m.part[g][g] = 100 + rng_below(rng, 100000);
        m.each[g] = 1e-2 * (double)(2 + rng_below(rng, 100));
    }
    return m;
}

/* Groups share places, as those do that overlap. */
static Made made_shared(Rng *rng)
{
    Made m = made_apart(rng);
    m.ngroup = 1 + (int)rng_below(rng, MOST_GROUPS);
    m.nplace = 1 + (int)rng_below(rng, MOST_PLACES);
    for (int p = 0; p < m.nplace; p++)
        for (int g = 0; g < m.ngroup; g++) {
            m.fixed[p] = 1000 + rng_below(rng, 1000);
            m.part[p][g] = rng_below(rng, 2) ? rng_below(rng, 100000) : 0;
        }
    for (int g = 0; g < m.ngroup; g++) {
        m.units[g] = 1 + rng_below(rng, 100);
        m.each[g] = 1e-2 * (double)(2 + rng_below(rng, 100));
        m.loop[g] = rng_below(rng, 4) ? 0 : rng_below(rng, 1000);
    }
    m.bad = rng_below(rng, 4) ? -1 : (int)rng_below(rng, m.ngroup);
    return m;
}

/* ---- with a target ---- */

enum { MANY = 100000 };

/* Between the lowest peak that is found and that without slices, in parts of 64. */
static int64_t target_at(const ChunkChoice *least, int part)
{
    return least->at.peak + (least->whole.peak - least->at.peak) * part / 64;
}

/* The least number of each group with which its own place is within the target. */
static void find_least(const Made *m, int64_t target, int64_t *slices)
{
    for (int g = 0; g < m->ngroup; g++) {
        slices[g] = 1;
        while (slices[g] < m->units[g] && m->fixed[g] + held_bytes(m, g, g, slices[g]) > target)
            slices[g]++;
    }
}

static void check_apart(Ctx *ctx, uint64_t seed)
{
    Arena *a = arena_new(ctx);
    Made m = made_apart(&(Rng){.seed = seed});
    ChunkChoice least = choose(a, &m, 1, MANY), last = {0};
    EXPECT(!least.reached);
    for (int part = 0; part <= 64; part++) {
        int64_t slices[MOST_GROUPS], target = target_at(&least, part);
        ChunkChoice c = choose(a, &m, target, MANY), again = choose(a, &m, target, MANY);
        find_least(&m, target, slices);
        EXPECT(c.reached && c.at.peak <= target && is(&m, &c, slices));
        EXPECT(same_choice(&m, &c, &again));
        EXPECT(!part || c.at.sec <= last.at.sec); /* monotone in the target */
        last = c;
    }
    EXPECT(last.ntrial == 1 && last.at.peak == last.whole.peak); /* it fits as it is */
    arena_free(a);
}

/* No group's number can be less by one, or the group left whole, and the target still be reached at
 * less time. */
static void check_least(const Made *m, const ChunkChoice *c, int64_t target)
{
    int64_t slices[MOST_GROUPS];
    int at;
    for (int g = 0; g < m->ngroup; g++)
        slices[g] = c->group[g].slices;
    EXPECT(is(m, c, slices));
    for (int g = 0; g < m->ngroup; g++) {
        int64_t now = slices[g], fewer[] = {1, MAX(now - 1, 1)};
        for (int k = 0; now > 1 && k < LEN(fewer); k++) {
            slices[g] = fewer[k];
            EXPECT(made_peak(m, slices, &at) > target ||
                   made_sec(m, slices) >= c->at.sec - 0.001 * m->sec);
        }
        slices[g] = now;
    }
}

/* Whatever is reached with one target is reached with a larger one; what reaches none says what
 * would be. */
static void check_shared(Ctx *ctx, uint64_t seed)
{
    Arena *a = arena_new(ctx);
    Made m = made_shared(&(Rng){.seed = seed});
    ChunkChoice least = choose(a, &m, 1, MANY);
    EXPECT(!least.reached && least.at.peak <= least.whole.peak);
    EXPECT(m.bad < 0 || least.group[m.bad].slices == 1);
    for (int part = 0; part <= 64; part++) {
        int64_t target = target_at(&least, part);
        ChunkChoice c = choose(a, &m, target, MANY), again = choose(a, &m, target, MANY);
        EXPECT(c.reached && c.at.peak <= target);
        EXPECT(same_choice(&m, &c, &again));
        check_least(&m, &c, target);
    }
    for (int most = 1; most < 12; most++) {
        ChunkChoice few = choose(a, &m, 1, most);
        EXPECT(choose(a, &m, few.at.peak, most).reached);
    }
    arena_free(a);
}

/* ---- without one ---- */

static bool pays(const Made *m, int64_t from, int64_t to)
{
    int at;
    double x = (double)made_peak(m, &from, &at), y = (double)made_peak(m, &to, &at);
    double sec = made_sec(m, &from), added = made_sec(m, &to) - sec;
    bool most = added > 0 && sec + added > 1.02 * m->sec; /* more than all may add */
    return x - y >= 0.005 * x && (x - y) / x > added / sec && !most;
}

/* One group: its number is doubled as long as that pays. */
static void check_knee(Ctx *ctx, uint64_t seed)
{
    Arena *a = arena_new(ctx);
    Made m = made_apart(&(Rng){.seed = seed});
    m.ngroup = m.nplace = 1;
    m.each[0] *= 0.01;
    int64_t n = 1;
    while (n < m.units[0] && pays(&m, n, MIN(2 * n, m.units[0])))
        n = MIN(2 * n, m.units[0]);
    if (n == 1 && m.units[0] > 2 && pays(&m, 1, MIN(8, m.units[0])))
        n = 8;
    ChunkChoice c = choose(a, &m, 0, MANY);
    EXPECT(c.group[0].slices == n || (n == 8 && c.group[0].slices >= n));
    EXPECT(c.group[0].slices == m.units[0] || c.group[0].why);
    arena_free(a);
}

/* ---- by hand ---- */

/* Two places have the same peak: both groups are taken, or neither. */
static void check_tie(Ctx *ctx)
{
    Arena *a = arena_new(ctx);
    Made m = {.ngroup = 2, .nplace = 2, .units = {64, 64}, .sec = 10, .bad = -1};
    m.fixed[0] = m.fixed[1] = 1000;
    m.part[0][0] = m.part[1][1] = 1000;
    m.each[0] = m.each[1] = 0.001;
    ChunkChoice c = choose(a, &m, 0, MANY);
    EXPECT(c.group[0].slices > 1 && c.group[1].slices == c.group[0].slices);
    EXPECT(is(&m, &(ChunkChoice){.group = c.group, .at = c.at}, (int64_t[]){64, 64}) ||
           c.at.peak < 1100);
    m.each[1] = 10;
    c = choose(a, &m, 0, MANY);
    EXPECT(is(&m, &c, (int64_t[]){1, 1}));
    arena_free(a);
}

/* The head is sliced first, then it turns out that the microbatch as a whole must be, which slices
 * the head too: that is taken back. */
static void check_taken_back(Ctx *ctx)
{
    Arena *a = arena_new(ctx);
    Made m = {.ngroup = 2, .nplace = 2, .units = {64, 8}, .sec = 10, .bad = -1};
    m.part[0][0] = 1000; /* the head, where both hold */
    m.part[0][1] = 4000;
    m.part[1][1] = 4500;
    m.each[0] = 0.001;
    m.each[1] = 0.5;
    ChunkChoice c = choose(a, &m, 3500, MANY);
    EXPECT(is(&m, &c, (int64_t[]){1, 2}));
    EXPECT(c.group[0].why && strstr(c.group[0].why, "not needed"));
    Made knee = {.ngroup = 2, .nplace = 2, .units = {64, 2}, .sec = 10, .bad = -1};
    knee.part[0][0] = 100; /* with half of the other beside it, less than the other place has */
    knee.part[0][1] = 5900;
    knee.fixed[1] = 3100;
    knee.each[0] = 0.0001;
    knee.each[1] = 0.05;
    c = choose(a, &knee, 0, MANY);
    EXPECT(is(&knee, &c, (int64_t[]){1, 2}));
    arena_free(a);
}

/* A loop's own buffers: two slices need more than none, eight less. */
static void check_jump(Ctx *ctx)
{
    Arena *a = arena_new(ctx);
    Made m = {.ngroup = 1, .nplace = 1, .units = {64}, .sec = 10, .bad = -1};
    m.fixed[0] = 1000;
    m.part[0][0] = 1000;
    m.loop[0] = 600;
    m.each[0] = 0.001;
    ChunkChoice c = choose(a, &m, 0, MANY);
    EXPECT(c.group[0].slices >= 8 && c.at.peak < c.whole.peak);
    arena_free(a);
}

/* Of two that slice the same values only one is taken, the one that adds less. */
static void check_clash(Ctx *ctx)
{
    static const bool clash[] = {false, true, true, false};
    Arena *a = arena_new(ctx);
    Made m = {.ngroup = 2, .nplace = 1, .units = {64, 64}, .sec = 10, .clash = clash, .bad = -1};
    m.fixed[0] = 1000;
    m.part[0][0] = m.part[0][1] = 1000;
    m.each[0] = 0.01;
    m.each[1] = 0.001;
    ChunkChoice c = choose(a, &m, 1, MANY);
    EXPECT(is(&m, &c, (int64_t[]){1, 64}) && strstr(c.group[0].why, "the same values"));
    m.clash = NULL;
    c = choose(a, &m, 1, MANY);
    EXPECT(is(&m, &c, (int64_t[]){64, 64}));
    arena_free(a);
}

/* If nothing is taken in the end, nothing is reported as taken; a group that held the peak only
 * once another was in slices has the bytes that it held then. */
static void check_true_words(Ctx *ctx)
{
    static const bool clash[] = {false, true, true, false};
    Arena *a = arena_new(ctx);
    Made m = {.ngroup = 2, .nplace = 1, .units = {64, 64}, .sec = 10, .clash = clash, .bad = -1};
    m.fixed[0] = m.part[0][0] = m.part[0][1] = 1000;
    m.each[0] = m.each[1] = 1;
    ChunkChoice c = choose(a, &m, 0, MANY);
    EXPECT(is(&m, &c, (int64_t[]){1, 1}));
    for (int g = 0; g < 2; g++)
        EXPECT(c.group[g].why && strstr(c.group[g].why, "to the time above 2 %"));
    m = (Made){.ngroup = 2, .nplace = 2, .units = {64, 64}, .sec = 10, .bad = -1};
    m.part[0][0] = 9000;
    m.part[1][1] = 5000;
    m.each[0] = m.each[1] = 1e-3;
    c = choose(a, &m, 0, MANY);
    EXPECT(c.group[0].at_peak == 9000 && c.group[1].at_peak == 5000 && !c.whole.at_peak[1]);
    for (int g = 0; g < 2; g++)
        EXPECT(c.group[g].slices == 64 && strstr(c.group[g].why, "it has no more parts"));
    arena_free(a);
}

static void check_words(Ctx *ctx)
{
    Arena *a = arena_new(ctx);
    Made m = {.ngroup = 3, .nplace = 2, .units = {64, 64, 1}, .sec = 10, .bad = -1};
    m.fixed[0] = 100000;
    m.part[0][0] = 200;
    m.part[1][1] = 5000;
    m.part[0][2] = 50000;
    ChunkChoice c = choose(a, &m, 0, MANY);
    EXPECT(is(&m, &c, (int64_t[]){1, 1, 1}) && c.ntrial == 1);
    EXPECT(strstr(c.group[0].why, "less than 0.5 %"));
    EXPECT(strstr(c.group[1].why, "does not hold the peak"));
    EXPECT(strstr(c.group[2].why, "no more parts"));
    c = choose(a, &m, 200000, MANY);
    EXPECT(c.reached && strstr(c.group[0].why, "fits without"));
    arena_free(a);
}

int main(void)
{
    Ctx ctx = {0};
    uint64_t n = getenv("TN_LONG") ? 2000 : 200;
    for (uint64_t seed = 1; seed <= n; seed++) {
        check_apart(&ctx, seed);
        check_shared(&ctx, seed);
        check_knee(&ctx, seed);
    }
    check_tie(&ctx);
    check_taken_back(&ctx);
    check_jump(&ctx);
    check_clash(&ctx);
    check_true_words(&ctx);
    check_words(&ctx);
    ctx_end(&ctx);
    return test_report();
}
