/* copy: moves the elements of one strided tensor into another of the same shape.
 *
 * Axes of size 1 are dropped and neighbours that lie as one in both tensors are merged. What is left
 * is a grid of inner runs: a run is a memcpy where both sides are dense, else a loop over elements.
 * Where the source is dense along another axis than the destination (a transposition) the two axes
 * are walked in square tiles, so that every cache line is used whole on both sides. */
#include "op.h"

#include <string.h>

enum { TILE = 32, RUN = 1 << 16, GRAIN = 1 << 15 }; /* elements; bytes; bytes */

/* Strides in bytes. Axis rank-1 is the inner one. */
typedef struct Grid {
    char *to;
    const char *from;
    int rank;
    int64_t dim[TN_RANK + 1], ts[TN_RANK + 1], fs[TN_RANK + 1];
    int64_t size; /* of one element */
} Grid;

static void add_axis(Grid *c, int64_t dim, int64_t ts, int64_t fs)
{
    int r = c->rank - 1;
    if (dim == 1)
        return;
    if (r >= 0 && c->ts[r] == ts * dim && c->fs[r] == fs * dim) {
        c->dim[r] *= dim;
        c->ts[r] = ts;
        c->fs[r] = fs;
        return;
    }
    c->dim[c->rank] = dim;
    c->ts[c->rank] = ts;
    c->fs[c->rank++] = fs;
}

static void drop_axis(Grid *c, int d)
{
    for (c->rank--; d < c->rank; d++) {
        c->dim[d] = c->dim[d + 1];
        c->ts[d] = c->ts[d + 1];
        c->fs[d] = c->fs[d + 1];
    }
}

/* Byte offsets of a position in a grid, and the step to the next one. */
typedef struct Walk {
    int64_t ix[TN_RANK + 1], to, from;
} Walk;

static Walk walk_at(const Grid *c, int rank, int64_t i)
{
    Walk w = {.to = 0};
    for (int d = rank - 1; d >= 0; d--) {
        w.ix[d] = i % c->dim[d];
        i /= c->dim[d];
        w.to += w.ix[d] * c->ts[d];
        w.from += w.ix[d] * c->fs[d];
    }
    return w;
}

static void walk_next(Walk *w, const Grid *c, int rank)
{
    for (int d = rank - 1; d >= 0; d--) {
        w->to += c->ts[d];
        w->from += c->fs[d];
        if (++w->ix[d] < c->dim[d])
            return;
        w->to -= c->ts[d] * c->dim[d];
        w->from -= c->fs[d] * c->dim[d];
        w->ix[d] = 0;
    }
}

INLINE void move_each(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, size_t size)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, size);
}

static void move(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, int64_t size)
{
    if (ts == size && fs == size) {
        memcpy(to, from, (size_t)(n * size));
        return;
    }
    switch (size) {
    case 1: move_each(to, from, n, ts, fs, 1); break;
    case 2: move_each(to, from, n, ts, fs, 2); break;
    case 4: move_each(to, from, n, ts, fs, 4); break;
    case 8: move_each(to, from, n, ts, fs, 8); break;
    }
}

static void run_runs(void *arg, int64_t lo, int64_t hi)
{
    const Grid *c = arg;
    int inner = c->rank - 1;
    Walk w = walk_at(c, inner, lo);
    for (int64_t i = lo; i < hi; i++) {
        move(c->to + w.to, c->from + w.from, c->dim[inner], c->ts[inner], c->fs[inner], c->size);
        walk_next(&w, c, inner);
    }
}

/* The last two axes are a matrix that lies by columns in the source: rank-2 dense there. */
static void move_tile(const Grid *c, char *to, const char *from, int64_t j0)
{
    int j = c->rank - 2, i = c->rank - 1;
    int64_t nj = MIN(TILE, c->dim[j] - j0);
    to += j0 * c->ts[j];
    from += j0 * c->fs[j];
    for (int64_t i0 = 0; i0 < c->dim[i]; i0 += TILE)
        for (int64_t k = 0; k < nj; k++)
            move(to + k * c->ts[j] + i0 * c->ts[i], from + k * c->fs[j] + i0 * c->fs[i],
                 MIN(TILE, c->dim[i] - i0), c->ts[i], c->fs[i], c->size);
}

static int64_t tile_rows(const Grid *c)
{
    return (c->dim[c->rank - 2] + TILE - 1) / TILE;
}

static void run_tiles(void *arg, int64_t lo, int64_t hi)
{
    const Grid *c = arg;
    int64_t rows = tile_rows(c);
    for (int64_t i = lo; i < hi; i++) {
        Walk w = walk_at(c, c->rank - 2, i / rows);
        move_tile(c, c->to + w.to, c->from + w.from, i % rows * TILE);
    }
}

/* Moves an axis along which only the source is dense next to the inner one; false where none is. */
static bool find_matrix(Grid *c)
{
    int inner = c->rank - 1;
    if (c->fs[inner] == c->size)
        return false;
    for (int d = 0; d < inner; d++)
        if (c->fs[d] == c->size) {
            int64_t dim = c->dim[d], ts = c->ts[d], fs = c->fs[d];
            int64_t idim = c->dim[inner], its = c->ts[inner], ifs = c->fs[inner];
            drop_axis(c, inner);
            drop_axis(c, d);
            int r = c->rank;
            c->dim[r] = dim, c->ts[r] = ts, c->fs[r] = fs;
            c->dim[r + 1] = idim, c->ts[r + 1] = its, c->fs[r + 1] = ifs;
            c->rank += 2;
            return true;
        }
    return false;
}

/* Cuts a long inner run, so that one run is not one thread's work. */
static void cut_run(Grid *c)
{
    int inner = c->rank - 1;
    int64_t n = RUN / c->size;
    if (c->dim[inner] % n || c->dim[inner] == n)
        return;
    c->dim[c->rank] = n;
    c->ts[c->rank] = c->ts[inner];
    c->fs[c->rank] = c->fs[inner];
    c->dim[inner] /= n;
    c->ts[inner] *= n;
    c->fs[inner] *= n;
    c->rank++;
}

static void copy_grid(Grid *c)
{
    if (c->rank == 0)
        c->dim[0] = 1, c->ts[0] = c->fs[0] = c->size, c->rank = 1;
    bool matrix = find_matrix(c);
    if (!matrix)
        cut_run(c);
    int64_t outer = 1, inner = c->dim[c->rank - 1] * c->size;
    for (int d = 0; d < c->rank - 1 - matrix; d++)
        outer *= c->dim[d];
    if (matrix)
        par_for(outer * tile_rows(c), MAX(1, GRAIN / (inner * TILE)), run_tiles, c);
    else
        par_for(outer, MAX(1, GRAIN / inner), run_runs, c);
}

void strided_copy(const Tensor *to, const Tensor *from)
{
    int64_t size = dtype_size(from->dtype);
    Grid c = {.to = to->data, .from = from->data, .size = size};
    for (int d = 0; d < from->rank; d++) {
        if (from->dim[d] == 0)
            return;
        add_axis(&c, from->dim[d], to->stride[d] * size, from->stride[d] * size);
    }
    /* what a whole number of runs leaves over is copied apart */
    int r = c.rank - 1;
    int64_t n = RUN / size, rest = r == 0 ? c.dim[0] % n : 0;
    if (rest && c.dim[0] > n) {
        int64_t whole = c.dim[0] - rest;
        move(c.to + whole * c.ts[0], c.from + whole * c.fs[0], rest, c.ts[0], c.fs[0], size);
        c.dim[0] = whole;
    }
    copy_grid(&c);
}
