/* Finds the placed buffers that are alive with a given one. Buffers are sorted by start: those that
 * start during its life follow it; of those that started before, the ones alive at every
 * stride'th start are listed. A query costs the number of buffers alive with it, placed or not,
 * plus the stride, a fraction of the number alive at once; it reads about one integer of each. */
#include "place.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_STRIDE = 32,
    SHARE = 8, /* members of the lists for each buffer, about */
};

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

void place_spread(Key *key, const Key *from, int n, int64_t top, int *count)
{
    int shift = 0;
    while (top >> shift > 2 * n)
        shift++;
    memset(count, 0, sizeof(int) * (size_t)((top >> shift) + 2));
    for (int k = 0; k < n; k++)
        count[(from[k].at >> shift) + 1]++;
    for (int64_t k = 1; k <= top >> shift; k++)
        count[k] += count[k - 1];
    for (int k = 0; k < n; k++)
        key[count[from[k].at >> shift]++] = from[k];
    for (int64_t k = 0, first = 0; k <= top >> shift; first = count[k++])
        if (count[k] - first > 1)
            place_sort(key + first, count[k] - (int)first);
}

static int compare_rank(const void *p, const void *q)
{
    const Rank *x = p, *y = q;
    for (int k = 0; k < LEN(x->key); k++)
        if (x->key[k] != y->key[k])
            return x->key[k] > y->key[k] ? -1 : 1;
    return x->i - y->i;
}

void place_rank(Rank *rank, int n)
{
    qsort(rank, (size_t)n, sizeof *rank, compare_rank);
}

/* Fills those of `list` that have not ended at `time`; returns how many. */
static int fill_alive(const PlaceBuf *b, int *list, int n, int64_t time)
{
    int kept = 0;
    for (int k = 0; k < n; k++)
        if (b[list[k]].end > time)
            list[kept++] = list[k];
    return kept;
}

/* A stride for which the lists have about as many members as there are buffers, times SHARE. */
static int find_stride(const PlaceBuf *b, int n, int *list)
{
    int live = 0;
    int64_t sum = 0;
    for (int i = 0; i < n; i += LEAST_STRIDE) {
        live = fill_alive(b, list, live, b[i].start);
        sum += live;
        for (int j = i; j < MIN(n, i + LEAST_STRIDE); j++)
            list[live++] = j;
    }
    int64_t stride = LEAST_STRIDE * (1 + sum / ((int64_t)SHARE * MAX(1, n)));
    return (int)MIN(stride, MAX(1, n));
}

Near near_new(Arena *tmp, const Leaf *leaf)
{
    const PlaceBuf *b = leaf->b;
    int n = leaf->n, *list = NEWN(tmp, int, n), live = 0, count = 0, cap = 0;
    Near t = {.b = b, .n = n, .stride = find_stride(b, n, list)};
    t.first = NEWN(tmp, int, n / t.stride + 2);
    t.end = NEWN(tmp, int, n);
    t.start = NEWN(tmp, int, n);
    for (int i = 0; i < n; i++) {
        t.start[i] = (int)b[i].start;
        if (i % t.stride == 0) {
            live = fill_alive(b, list, live, b[i].start);
            t.first[i / t.stride] = count;
            for (int k = 0; k < live; k++)
                PUSH(tmp, t.earlier, count, cap, list[k]);
            t.first[i / t.stride + 1] = count;
        }
        list[live++] = i;
    }
    return t;
}

void near_clear(Near *t)
{
    memset(t->end, 0, sizeof(int) * (size_t)t->n);
}

void near_set(Near *t, int i, bool placed)
{
    t->end[i] = placed ? (int)t->b[i].end : 0;
}

int near_fill(const Near *t, int i, int *list)
{
    int start = t->start[i], stop = (int)t->b[i].end, found = 0, k = i / t->stride;
    for (int j = t->first[k]; j < t->first[k + 1]; j++) {
        list[found] = t->earlier[j];
        found += t->end[t->earlier[j]] > start;
    }
    for (int j = k * t->stride; j < i; j++) {
        list[found] = j;
        found += t->end[j] > start;
    }
    for (int j = i + 1; j < t->n && t->start[j] < stop; j++) {
        list[found] = j;
        found += t->end[j] > start;
    }
    return found;
}
