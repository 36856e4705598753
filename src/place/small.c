/* Finds the least peak of a few buffers by trying all orders that can matter.
 *
 * Buffers are placed in the order of their offsets, each as low as possible: on the highest level
 * under it. Every placement that is pushed down arises from such an order. Skipped are orders in
 * which offsets fall, or equal offsets do not follow the index; places so high that another buffer
 * would fit wholly below (pushed down it would lie there); and peaks no better than the best.
 * Factorial in the worst case. */
#include "place.h"

#include <string.h>

typedef struct Small {
    Leaf *leaf;
    int64_t *level;  /* of a section: the top of what is placed */
    int64_t *before; /* rows of levels to restore, by how many buffers are left */
    int64_t *offset;
    bool *placed;
} Small;

static int64_t find_floor(const Small *x, int i)
{
    int64_t floor = 0;
    for (int64_t t = x->leaf->b[i].start; t < x->leaf->b[i].end; t++)
        floor = MAX(floor, x->level[t]);
    return floor;
}

static void keep(const Small *x, int64_t peak)
{
    for (int i = 0; i < x->leaf->n; i++)
        x->leaf->b[i].offset = x->offset[i];
    x->leaf->peak = peak;
}

/* The lowest top that a buffer not placed yet could have. */
static int64_t lowest_top(const Small *x)
{
    int64_t low = INT64_MAX;
    for (int i = 0; i < x->leaf->n; i++) {
        int64_t top = x->placed[i] ? low : find_floor(x, i) + x->leaf->b[i].nbytes;
        low = MIN(low, top);
    }
    return low;
}

static void place_rest(Small *x, int left, int last, int64_t peak);

/* Places buffer i, then the others. */
static void try_next(Small *x, int left, int i, int64_t floor, int64_t peak)
{
    const PlaceBuf *b = &x->leaf->b[i];
    int64_t *before = x->before + left * x->leaf->nsection, top = floor + b->nbytes;
    size_t row = sizeof *before * (size_t)x->leaf->nsection;
    memcpy(before, x->level, row);
    for (int64_t t = b->start; t < b->end; t++)
        x->level[t] = top;
    x->offset[i] = floor;
    x->placed[i] = true;
    place_rest(x, left - 1, i, MAX(peak, top));
    x->placed[i] = false;
    memcpy(x->level, before, row);
}

/* Places the remaining buffers in all orders; `last` was placed last. */
static void place_rest(Small *x, int left, int last, int64_t peak)
{
    Leaf *leaf = x->leaf;
    int64_t low = lowest_top(x);
    if (!left)
        keep(x, peak);
    for (int i = 0; i < leaf->n && leaf->peak > leaf->target; i++) {
        leaf->steps++;
        if (x->placed[i])
            continue;
        int64_t floor = find_floor(x, i);
        bool falls =
            last >= 0 && (floor < x->offset[last] || (floor == x->offset[last] && i < last));
        if (!falls && floor < low && floor + leaf->b[i].nbytes < leaf->peak)
            try_next(x, left, i, floor, peak);
    }
}

void place_small(Arena *tmp, Leaf *leaf)
{
    Small x = {.leaf = leaf};
    x.level = NEWN(tmp, int64_t, leaf->nsection);
    x.before = NEWN(tmp, int64_t, (leaf->n + 1) * leaf->nsection);
    x.offset = NEWN(tmp, int64_t, leaf->n);
    x.placed = NEWN(tmp, bool, leaf->n);
    place_rest(&x, leaf->n, -1, 0);
}
