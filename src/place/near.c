/* The placed buffers that are alive with a given one. Buffers lie in the order of their starts, and
 * a tree over them holds the latest end of those placed in each range, so that a query visits only
 * ranges in which it finds something: O((1 + found) log n). */
#include "place.h"

#include <string.h>

static bool comes_first(Key x, Key y)
{
    return x.at != y.at ? x.at < y.at : x.i < y.i;
}

void place_sort(Key *key, int n)
{
    while (n > 24) {
        Key pivot = key[n / 2];
        int i = 0, j = n - 1;
        while (i <= j) {
            while (comes_first(key[i], pivot))
                i++;
            while (comes_first(pivot, key[j]))
                j--;
            if (i <= j) {
                Key x = key[i];
                key[i++] = key[j];
                key[j--] = x;
            }
        }
        place_sort(key, j + 1);
        key += i;
        n -= i;
    }
    for (int i = 1; i < n; i++) {
        Key x = key[i];
        int j = i;
        for (; j > 0 && comes_first(x, key[j - 1]); j--)
            key[j] = key[j - 1];
        key[j] = x;
    }
}

Near near_new(Arena *tmp, const Leaf *leaf)
{
    Near t = {leaf->b, leaf->n, 1, NULL};
    while (t.width < t.n)
        t.width *= 2;
    t.latest = NEWN(tmp, int64_t, 2 * t.width);
    return t;
}

void near_clear(Near *t)
{
    memset(t->latest, 0, sizeof(int64_t) * 2 * (size_t)t->width);
}

void near_set(Near *t, int i, bool placed)
{
    int at = t->width + i;
    t->latest[at] = placed ? t->b[i].end : 0;
    for (at /= 2; at > 0; at /= 2)
        t->latest[at] = MAX(t->latest[2 * at], t->latest[2 * at + 1]);
}

/* What tree node `at` holds, whose range of `count` buffers begins at `first`. */
static int fill_range(const Near *t, const PlaceBuf *x, int at, int first, int count, int *list)
{
    if (t->latest[at] <= x->start || t->b[first].start >= x->end)
        return 0;
    if (count == 1) {
        *list = first;
        return 1;
    }
    int half = count / 2, found = fill_range(t, x, 2 * at, first, half, list);
    return found + fill_range(t, x, 2 * at + 1, first + half, half, list + found);
}

int near_fill(const Near *t, int i, int *list)
{
    return fill_range(t, &t->b[i], 1, 0, t->width, list);
}
