/* What --memory chooses against all that could be chosen, on small random steps.
 *
 * A choice is a set of forward values that the backward computes again. All sets are listed by the
 * seconds of the nodes that they add, and planned as the step would be in the end, until one fits:
 * that is the least added time. A plan's estimate is never below what its set was listed with,
 * which is checked for each plan; so no set behind that place is faster, and none needs a plan.
 * Sets are obeyed (must_recompute), also where the decider would begin a block's recomputation at a
 * saved value.
 *
 * Asked is that what is chosen adds in the mean at most 1 % more than the least, never 10 % more,
 * and fits wherever a set does. Where not all faster sets were planned, a gap is what is known of
 * it. Where all saved fits, nothing slower is chosen.
 *
 * `test_decide_enum SEED [COUNT]` shows the cases of one seed, or more. TN_LONG=1: 200
 * graphs, at three limits each; else 2 at one, as a graph takes seconds. */
#include "../shared/decide_made.h"
#include "../shared/step_made.h"
#include "../shared/test.h"

#include <math.h>

static Ctx ctx;
static Arena *a;        /* of one case */
static bool show, more; /* prints cases; TN_LONG */

enum { MOST_NODES = 20, FEW_PLANS = 20, MOST_PLANS = 40, MORE_PLANS = 400, DRAWN = 8 };

#define MOST_MEAN 0.01 /* added beyond the least */

/* ---- all sets ---- */

static int by_sec(const void *x, const void *y)
{
    const Choice *p = x, *q = y;
    if (p->sec != q->sec)
        return p->sec < q->sec ? -1 : 1;
    return (p->again > q->again) - (p->again < q->again);
}

/* Whether the backward, directly or for others of the set, needs all of it. */
static bool is_needed(const Made *m, uint64_t again)
{
    uint64_t seen = 0, next = m->read & again;
    while (next) {
        int k = __builtin_ctzll(next);
        seen |= UINT64_C(1) << k;
        next = (next | (m->operand[k] & again)) & ~seen;
    }
    return seen == again;
}

/* The sets that differ in what they do, by seconds; returns how many. */
static int list_sets(Made *m, double base, Choice **to)
{
    int n = 0, cap = 0;
    *to = NULL;
    for (uint64_t again = 0; again < UINT64_C(1) << m->n; again++) {
        Choice c = {.again = again, .sec = base};
        if (again & m->out || !is_needed(m, again))
            continue;
        for (int k = 0; k < m->n; k++)
            c.sec += again >> k & 1 ? m->sec[k] : 0;
        PUSH(a, *to, n, cap, c);
    }
    qsort(*to, (size_t)n, sizeof **to, by_sec);
    return n;
}

/* ---- what is asked ---- */

typedef struct Sums {
    int ncase, nfail, nworse, nfar, ncut; /* it does not fit; it is slower; by over a tenth */
    int nreach;                           /* it would have fitted by prefer_recompute */
    double sum, most;                     /* of gaps, where it fits */
} Sums;

/* Within the range from the least to none; at the least that was drawn. */
static Sums within, least;
static int nplan, nbound, nbounded; /* plans that have a bound above 0 */

/* No plan adds less than the bound for what it needs. */
static void check_bound(Made *m, const Choice *c, double none)
{
    const double sec = made_least_sec(m, c->peak);
    nbounded += sec > 0;
    if (!EXPECT(c->sec - none >= sec - 1e-9 * none))
        made_print(m, "is faster than the bound", c);
}

/* Whether c, which is not planned yet, is to be: of the first ones all are, of others those that an
 * order is found for. */
static bool may_fit(Made *m, Choice *c, int64_t memory, int *made)
{
    const bool few = *made < FEW_PLANS;
    if (!c->bound)
        c->bound = few ? made_bound(m, c->again) : 1;
    if (c->bound > memory || c->above >= memory)
        return false;
    ++*made;
    if (few || made_fits(m, c->again, memory))
        return true;
    c->above = memory;
    return false;
}

/* The fastest that fits among what is listed as faster than `found`, else that; cut: more plans
 * would have to be made. Plans are kept in known[], by place in the list. */
static Choice enumerate(Made *m, const Choice *list, Choice *known, int n, int64_t memory,
                        Choice found, bool *cut)
{
    Choice best = found;
    int made = 0;
    for (int i = 0; i < n && list[i].sec < best.sec * (1 - 1e-9) && !*cut; i++) {
        known[i].again = list[i].again;
        if (!known[i].need && may_fit(m, &known[i], memory, &made)) {
            int64_t bound = known[i].bound;
            known[i] = made_plan(m, list[i].again, MUST_RECOMPUTE);
            EXPECT(known[i].sec >= list[i].sec * (1 - 1e-9));
            EXPECT(known[i].need >= bound);
            check_bound(m, &known[i], list[0].sec);
        }
        *cut = made > (more ? MORE_PLANS : MOST_PLANS);
        if (known[i].need && known[i].need <= memory &&
            (known[i].sec < best.sec || best.need > memory))
            best = known[i];
    }
    return best;
}

/* A set that is known to fit, and the limit that the decider gets. */
typedef struct Asked {
    const Choice *none, *witness;
    int64_t memory;
    const char *where;
    uint64_t seed;
    bool blocks;
} Asked;

static void print_case(Made *m, const Asked *q, const Choice *got, const Choice *best)
{
    Choice prefer = made_plan(m, best->again, PREFER_RECOMPUTE);
    printf("  seed %llu, %s, %lld bytes of %lld (none), %d nodes%s:\n", (unsigned long long)q->seed,
           q->where, (long long)q->memory, (long long)q->none->need, m->n,
           q->blocks ? " in blocks" : "");
    made_print(m, "none", q->none);
    made_print(m, "best", best);
    made_print(m, "best, by prefer_recompute", &prefer);
    made_print(m, got->need <= q->memory ? "chosen" : "chosen, does not fit", got);
}

/* A gap is what is added beyond the least over the least, which counts as a thousandth of the step
 * at least. */
static void compare(Made *m, const Asked *q, const Choice *list, Choice *known, int n, Sums *to)
{
    bool cut = false;
    Choice got = made_decide(m, q->memory);
    bool fits = got.need <= q->memory;
    Choice best = enumerate(m, list, known, n, q->memory, fits ? got : *q->witness, &cut);
    double added = MAX(best.sec - q->none->sec, 1e-3 * q->none->sec);
    double gap = fits ? (got.sec - best.sec) / added : 0;
    to->ncase++;
    to->nfail += !fits;
    if (!fits)
        to->nreach += made_plan(m, best.again, PREFER_RECOMPUTE).need <= q->memory;
    to->ncut += cut;
    to->nworse += gap > 1e-9;
    to->nfar += gap > 0.1;
    to->sum += gap;
    to->most = MAX(to->most, gap);
    if (show && (!fits || gap > 1e-9 || cut)) {
        print_case(m, q, &got, &best);
        printf("    gap %.3g %%%s\n", 100 * gap, cut ? ", not all planned" : "");
    }
}

/* The lowest of all recomputed, the decider's lowest and drawn sets. `need` 0: the first does not
 * save a twentieth, so that a limit means little. */
static Choice find_low(Made *m, const Choice *list, int n, int64_t none, Rng *rng)
{
    Choice low = made_plan(m, m->read & ~m->out, MUST_RECOMPUTE);
    if (low.need > none - none / 20)
        return (Choice){0};
    Choice known = made_decide(m, 1);
    low = known.need < low.need ? known : low;
    for (int i = 0; i < DRAWN; i++) {
        Choice c = made_plan(m, list[rng_below(rng, n)].again, MUST_RECOMPUTE);
        low = c.need < low.need ? c : low;
    }
    return low;
}

/* The text of a step of so many nodes, and one of the loss. */
static const char *draw_step(Rng *rng, bool blocks, int nnode)
{
    static const int widths[] = {64, 128, 256, 384, 512, 1024};
    StepForm form = {.kinds = "ppppaanvsuuu",
                     .nunary = 6,
                     .columns = 256,
                     .widths = widths,
                     .nwidth = LEN(widths),
                     .rows = 512,
                     .nrows = 5,
                     .last = 0.7,
                     .block = blocks ? 4 : 0,
                     .scopeless = 0.1};
    return step_made(a, rng, &form, nnode);
}

/* False: it is not fit for the test. */
static bool test_seed(uint64_t seed)
{
    Made m;
    Rng rng = {seed, 1 << 20};
    bool blocks = rng_chance(&rng, 0.5);
    const char *text = draw_step(&rng, blocks, 13 + (int)rng_below(&rng, 9));
    if (!made_read(&m, a, text, MOST_NODES))
        return false;
    Choice none = made_plan(&m, 0, MUST_RECOMPUTE), *list, *known, low;
    int n = list_sets(&m, none.sec, &list), part = 1 + (int)rng_below(&rng, 7);
    known = NEWN(a, Choice, n);
    known[0] = none;
    low = find_low(&m, list, n, none.need, &rng);
    int64_t range = none.need - low.need;
    if (!low.need)
        return false;
    Asked half = {&none, &low, low.need + range / 2, "half", seed, blocks};
    compare(&m, &half, list, known, n, &within);
    if (more) {
        Asked some = half, tight = half;
        some.memory = low.need + range * part / 8;
        some.where = arena_printf(a, "%d/8", part);
        compare(&m, &some, list, known, n, &within);
        tight.memory = low.need;
        tight.where = "least";
        compare(&m, &tight, list, known, n, &least);
    }
    nplan += m.nplan;
    nbound += m.nbound;
    return true;
}

typedef struct Next {
    uint64_t seed;
    bool counts;
} Next;

static void next_seed(void *arg)
{
    Next *x = arg;
    x->counts = test_seed(x->seed);
}

/* ---- what is chosen needs all that it computes again ---- */

/* Whether the set fits so many bytes, as it would be planned within them. */
static bool fits_within(Made *m, uint64_t again, int64_t memory)
{
    Made limited = *m;
    limited.to.limit = memory;
    return made_fits(m, again, memory) && made_plan(&limited, again, MUST_RECOMPUTE).need <= memory;
}

/* A step that is too large for all its sets does not fit with any value of the choice saved, and
 * with it those that only it needed. False: it is not fit for the test. */
static bool test_surplus(uint64_t seed)
{
    Made m;
    Rng rng = {seed, 1 << 20};
    if (!made_read(&m, a, draw_step(&rng, false, 36), MOST_FORWARD))
        return false;
    Choice none = made_plan(&m, 0, MUST_RECOMPUTE),
           low = made_plan(&m, m.read & ~m.out, MUST_RECOMPUTE);
    if (low.need > none.need - none.need / 10)
        return false;
    const int64_t memory = low.need + (none.need - low.need) / 2;
    Choice got = made_decide(&m, memory);
    EXPECT(got.need <= memory && got.again != 0);
    for (int k = 0; k < m.n; k++)
        if (got.again >> k & 1 &&
            !EXPECT(!fits_within(&m, got.again & ~(UINT64_C(1) << k), memory))) {
            printf("  seed %llu: %s need not be computed again\n", (unsigned long long)seed,
                   m.node[k]->out[0]->name);
            made_print(&m, "chosen", &got);
        }
    return true;
}

static void test_surpluses(int count)
{
    for (uint64_t seed = 1; count > 0; seed++) {
        count -= test_surplus(seed);
        arena_reset(a);
    }
}

/* ---- what fits with all saved ---- */

/* Within what a step needs with all saved nothing slower is chosen, also where plans with less
 * effort need more, so that the search does not see that all saved fits, as in these steps. */
static void test_saved(uint64_t seed)
{
    Made m;
    Rng rng = {seed, 1 << 20};
    CHECK(made_read(&m, a, draw_step(&rng, false, 13 + (int)rng_below(&rng, 9)), MOST_NODES));
    const Choice none = made_plan(&m, 0, MUST_RECOMPUTE), got = made_decide(&m, none.need);
    if (!EXPECT(got.need <= none.need && got.sec <= none.sec)) {
        printf("  seed %llu:\n", (unsigned long long)seed);
        made_print(&m, "all saved", &none);
        made_print(&m, "chosen", &got);
    }
    arena_reset(a);
}

static void test_all_saved(void)
{
    static const uint64_t seeds[] = {7, 72, 109, 114};
    for (int i = 0; i < (more ? LEN(seeds) : 1); i++)
        test_saved(seeds[i]);
}

static double mean(const Sums *s)
{
    return s->sum / MAX(s->ncase - s->nfail, 1);
}

static void print_sums(const char *what, const Sums *s)
{
    printf("note: %s: %d cases, %d slower, in the mean by %.3g %%, %d by over 10 %%, at most "
           "%.3g %%; %d do not fit, of which %d would by prefer_recompute; %d not all planned\n",
           what, s->ncase, s->nworse, 100 * mean(s), s->nfar, 100 * s->most, s->nfail, s->nreach,
           s->ncut);
}

static void test_random(uint64_t first, int count)
{
    Next x = {first, false};
    for (; count > 0; x.seed++) {
        x.counts = true;
        if (!EXPECT(!ctx_try(&ctx, next_seed, &x)))
            printf("  seed %llu: %s\n", (unsigned long long)x.seed, ctx.message);
        count -= x.counts;
        arena_reset(a);
        fflush(stdout);
    }
    printf("note: seeds %llu to %llu: %d plans, %d bounds, %d plans with a bound of seconds above "
           "0\n",
           (unsigned long long)first, (unsigned long long)x.seed - 1, nplan, nbound, nbounded);
    print_sums("within the range", &within);
    if (least.ncase)
        print_sums("at the least", &least);
}

static void test_all(void)
{
    test_random(1, more ? 200 : 1);
    test_surpluses(more ? 20 : 1);
    test_all_saved();
    EXPECT(mean(&within) <= MOST_MEAN);
    EXPECT(mean(&least) <= MOST_MEAN);
    EXPECT(within.nfar + least.nfar == 0);
    EXPECT(within.nfail + least.nfail == 0);
}

int main(int argc, char **argv)
{
    a = arena_new(&ctx);
    show = argc > 1;
    more = show || getenv("TN_LONG");
    if (show)
        test_random(strtoull(argv[1], NULL, 10), argc > 2 ? atoi(argv[2]) : 1);
    else
        test_all();
    arena_free(a);
    return test_report();
}
