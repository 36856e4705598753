/* bucket_units: the blocks of a graph that does not name them, as one that PyTorch traced: its
 * calls repeat. The sequence of what they are is searched for the longest run that equals itself
 * some calls further on; that many calls are a block. O(n^2) of the calls, with small numbers. */
#include "bucket.h"

#include <string.h>

/* The longest run of calls that equal those `period` further on. */
typedef struct Run {
    int first, count, period;
} Run;

static Run longest_run(int n, const int *what, int period)
{
    Run best = {0, 0, period};
    for (int i = 0, count = 0; i + period < n; i++) {
        count = what[i] == what[i + period] ? count + 1 : 0;
        if (count > best.count)
            best = (Run){i + 1 - count, count, period};
    }
    return best;
}

/* How many calls are of whole blocks. */
static int covered(const Run *r)
{
    return (r->count / r->period + 1) * r->period;
}

/* Numbers texts by when they first stand. */
static int *number_texts(Arena *tmp, int n, const char *const *text)
{
    Map seen = {.a = tmp};
    int *what = NEWN(tmp, int, n + 1), count = 0;
    for (int i = 0; i < n; i++) {
        const int *known = map_find(&seen, text[i]);
        what[i] = known ? *known : count++;
        if (!known)
            map_put(&seen, text[i], &what[i]);
    }
    return what;
}

static bool varies(const int *what, const Run *r)
{
    bool other = false;
    for (int i = 1; i < r->period; i++)
        other |= what[r->first + i] != what[r->first];
    return other;
}

/* The shortest period that covers almost as many calls as any. */
static Run find_run(int n, const int *what)
{
    Run best = {0, 0, n};
    int most = 0;
    for (int period = 2; period <= n / 2; period++) {
        Run r = longest_run(n, what, period);
        if (r.count < period || !varies(what, &r) || covered(&r) * 9 <= most * 10)
            continue;
        best = r;
        most = covered(&r);
    }
    return best;
}

const char **repeated_units(Arena *tmp, int n, const char *const *text)
{
    const char **unit = NEWN(tmp, const char *, n + 1);
    const int *what = number_texts(tmp, n, text);
    Run r = find_run(n, what);
    int end = r.count ? r.first + covered(&r) : n;
    for (int i = 0; i < n; i++)
        unit[i] = i < r.first || !r.count ? "<"
                  : i >= end              ? ">"
                                          : arena_printf(tmp, "%d", (i - r.first) / r.period);
    return unit;
}
