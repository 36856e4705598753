/* The gap for a buffer between placed ones, against a visit to all of them. */
#include "../shared/gen.h"
#include "../shared/place_make.h"
#include "../shared/test.h"

static Rng rng;

static int64_t below(int64_t n)
{
    return rng_below(&rng, n);
}

static bool together(const PlaceBuf *x, const PlaceBuf *y)
{
    return x->start < y->end && y->start < x->end;
}

static int by_start(const void *p, const void *q)
{
    const PlaceBuf *x = p, *y = q;
    return x->start != y->start ? (x->start < y->start ? -1 : 1)
                                : (x->end < y->end) - (x->end > y->end);
}

/* The gap from `floor` on that a visit to all placed buffers finds. */
static int64_t visit_all(const PlaceBuf *b, int n, const bool *placed, int i, Fit fit,
                         int64_t floor)
{
    int64_t best = -1, room = INT64_MAX, top = floor;
    for (int64_t at = -1;;) {
        int next = -1;
        for (int j = 0; j < n; j++)
            if (placed[j] && together(&b[i], &b[j]) && b[j].offset > at &&
                (next < 0 || b[j].offset < b[next].offset))
                next = j;
        if (next < 0)
            return best < 0 ? top : best;
        at = b[next].offset;
        bool better = at - top >= b[i].nbytes && at - top < room;
        if (better && (best < 0 || fit == FIT_BEST)) {
            best = top;
            room = at - top;
        }
        for (int j = 0; j < n; j++)
            if (placed[j] && together(&b[i], &b[j]) && b[j].offset == at)
                top = MAX(top, at + b[j].nbytes);
    }
}

/* Short and long lives mixed, placed in any order; some buffers float, so that there are gaps. */
static void test_gaps(Arena *a, int count)
{
    for (int k = 0; k < count; k++) {
        int n = 20 + (int)below(k % 10 ? 100 : 600), span = 2 + (int)below(k % 3 ? 900 : 60);
        PlaceBuf *b = NEWN(a, PlaceBuf, n);
        bool *placed = NEWN(a, bool, n);
        int *order = NEWN(a, int, n);
        for (int i = 0; i < n; i++) {
            int64_t start = below(span), life = 1 + below(below(2) ? 40 : span);
            b[i] = (PlaceBuf){start, MIN(start + life, span + 1), 1 + below(20), 0};
        }
        qsort(b, (size_t)n, sizeof *b, by_start);
        Leaf leaf = {.b = b, .n = n, .nsection = span + 1};
        Gaps *x = gaps_new(a, &leaf);
        for (int round = 0; round < 2; round++) {
            gaps_clear(x);
            memset(placed, 0, sizeof *placed * (size_t)n);
            for (int i = 0; i < n; i++) {
                int j = (int)below(i + 1);
                order[i] = order[j];
                order[j] = i;
            }
            for (int j = 0; j < n; j++) {
                Fit fit = below(2) ? FIT_FIRST : FIT_BEST;
                int i = order[j];
                int64_t floor = below(3) ? 0 : below(200), steps = 0;
                int64_t at = gaps_find(x, i, fit, floor, &steps);
                EXPECT(at == visit_all(b, n, placed, i, fit, floor) && steps > 0);
                b[i].offset = below(4) ? at : at + 2000 + 10 * below(200);
                bool free = true;
                for (int l = 0; l < n; l++)
                    free &= !placed[l] || !together(&b[i], &b[l]) ||
                            b[l].offset >= b[i].offset + b[i].nbytes ||
                            b[l].offset + b[l].nbytes <= b[i].offset;
                b[i].offset = free ? b[i].offset : at;
                placed[i] = true;
                gaps_put(x, i, b[i].offset);
            }
        }
        arena_reset(a);
    }
}

static void run(void *arg)
{
    test_gaps(arg, 40);
}

int main(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    EXPECT(a && !ctx_try(&ctx, run, a));
    arena_free(a);
    return test_report();
}
