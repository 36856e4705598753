/* copy: moves the elements of one strided tensor into another of the same shape.
 *
 * Axes of size 1 are dropped and neighbouring axes that are contiguous in both tensors are merged,
 * which leaves a grid of inner runs: a run is a memcpy if both sides are dense, else a loop over
 * elements. If the source is dense along another axis than the destination (a transposition), the
 * two axes are walked in square tiles that are transposed in a small buffer, so that each cache
 * line is touched once on both sides, whatever the strides. */
#include "op.h"

#include <string.h>

enum {
    TILE = 16,
    BAND = 128,
    LONG = 64,
    RUN = 1 << 16,
    GRAIN = 1 << 15
}; /* elements; the last two, bytes */

/* Strides in bytes; the last axis is the inner one. */
typedef struct CopyAxis {
    int64_t dim, ts, fs; /* size, strides in `to` and `from` */
} CopyAxis;

typedef struct Grid {
    char *to;
    const char *from;
    int rank;
    CopyAxis axis[TN_RANK];
    int64_t size;      /* of one element */
    int64_t len, nlen; /* elements that an inner run is cut into, and how many cuts */
} Grid;

static void add_axis(Grid *c, CopyAxis x)
{
    CopyAxis *last = &c->axis[c->rank - (c->rank > 0)];
    if (c->rank && last->ts == x.ts * x.dim && last->fs == x.fs * x.dim)
        *last = (CopyAxis){last->dim * x.dim, x.ts, x.fs};
    else if (x.dim != 1)
        c->axis[c->rank++] = x;
}

/* A position in the leading axes, and its byte offsets. */
typedef struct CopyPosition {
    int64_t ix[TN_RANK], to, from;
} CopyPosition;

static CopyPosition position_at(const Grid *c, int rank, int64_t i)
{
    CopyPosition w = {.to = 0};
    for (int d = rank - 1; d >= 0; d--) {
        w.ix[d] = i % c->axis[d].dim;
        i /= c->axis[d].dim;
        w.to += w.ix[d] * c->axis[d].ts;
        w.from += w.ix[d] * c->axis[d].fs;
    }
    return w;
}

static void position_next(CopyPosition *w, const Grid *c, int rank)
{
    for (int d = rank - 1; d >= 0; d--) {
        const CopyAxis *x = &c->axis[d];
        w->to += x->ts;
        w->from += x->fs;
        if (++w->ix[d] < x->dim)
            return;
        w->to -= x->ts * x->dim;
        w->from -= x->fs * x->dim;
        w->ix[d] = 0;
    }
}

/* ---- runs ---- */

INLINE void move_each(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, int64_t size)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ts, from + i * fs, (size_t)size);
}

static bool zero(const char *x, int64_t size)
{
    return !memcmp(x, (char[8]){0}, (size_t)size);
}

/* n copies of one element, side by side. */
#define FILL(bytes)                                                                    \
    KERNEL(void, fill_##bytes, (char *to, const char *from, int64_t n), (to, from, n)) \
    {                                                                                  \
        char x[bytes];                                                                 \
        memcpy(x, from, bytes);                                                        \
        for (int64_t i = 0; i < n; i++)                                                \
            memcpy(to + i * (bytes), x, bytes);                                        \
    }
FILL(1)
FILL(2)
FILL(4)
FILL(8)

static void fill(char *to, const char *from, int64_t n, int64_t size)
{
    (size == 1 ? fill_1 : size == 2 ? fill_2 : size == 4 ? fill_4 : fill_8)(to, from, n);
}

INLINE void move(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, int64_t size)
{
    if (ts != size)
        move_each(to, from, n, ts, fs, size);
    else if (fs == size)
        memcpy(to, from, (size_t)(n * size));
    else if (fs == 0 && n >= LONG && zero(from, size))
        memset(to, 0, (size_t)(n * size));
    else if (fs == 0)
        fill(to, from, n, size);
    else
        move_each(to, from, n, size, fs, size);
}

void copy_run(char *to, const char *from, int64_t n, int64_t ts, int64_t fs, int64_t size)
{
    switch (size) {
    case 1: move(to, from, n, ts, fs, 1); break;
    case 2: move(to, from, n, ts, fs, 2); break;
    case 4: move(to, from, n, ts, fs, 4); break;
    case 8: move(to, from, n, ts, fs, 8); break;
    }
}

static void run_runs(void *arg, int64_t lo, int64_t hi)
{
    const Grid *c = arg;
    int outer = c->rank - 1;
    CopyAxis x = c->axis[outer];
    CopyPosition w = position_at(c, outer, lo / c->nlen);
    int64_t k = lo % c->nlen;
    for (int64_t i = lo; i < hi; i++) {
        int64_t first = k * c->len;
        copy_run(c->to + w.to + first * x.ts, c->from + w.from + first * x.fs,
                 MIN(c->len, x.dim - first), x.ts, x.fs, c->size);
        if (++k == c->nlen) {
            position_next(&w, c, outer);
            k = 0;
        }
    }
}

static void copy_runs(Grid *c)
{
    int64_t n = c->axis[c->rank - 1].dim, outer = 1;
    for (int d = 0; d < c->rank - 1; d++)
        outer *= c->axis[d].dim;
    c->len = MIN(n, RUN / c->size);
    c->nlen = (n + c->len - 1) / c->len;
    par_for(outer * c->nlen, MAX(1, GRAIN / (c->len * c->size)), run_runs, c);
}

/* ---- tiles: `from` is dense along the last axis but one, `to` along the last ---- */

INLINE void turn(char *to, const char *from, int64_t rows, int64_t cols, CopyAxis r, CopyAxis k,
                 size_t size)
{
    char tile[TILE * TILE * 8], line[TILE * 8];
    for (int64_t i = 0; i < cols; i++)
        memcpy(tile + i * TILE * (int64_t)size, from + i * k.fs, (size_t)rows * size);
    for (int64_t j = 0; j < rows; j++) {
        for (int64_t i = 0; i < cols; i++)
            memcpy(line + i * (int64_t)size, tile + (i * TILE + j) * (int64_t)size, size);
        memcpy(to + j * r.ts, line, (size_t)cols * size);
    }
}

#define TURN(bytes)                                                                          \
    KERNEL(void, turn_##bytes,                                                               \
           (char *to, const char *from, int64_t rows, int64_t cols, CopyAxis r, CopyAxis k), \
           (to, from, rows, cols, r, k))                                                     \
    {                                                                                        \
        if (rows == TILE && cols == TILE)                                                    \
            turn(to, from, TILE, TILE, r, k, bytes);                                         \
        else                                                                                 \
            turn(to, from, rows, cols, r, k, bytes);                                         \
    }
TURN(1)
TURN(2)
TURN(4)
TURN(8)

typedef void TurnFn(char *to, const char *from, int64_t rows, int64_t cols, CopyAxis r, CopyAxis k);

static TurnFn *turn_of(int64_t size)
{
    switch (size) {
    case 1: return turn_1;
    case 2: return turn_2;
    case 4: return turn_4;
    default: return turn_8;
    }
}

static int64_t bands(int64_t rows)
{
    return (rows + BAND - 1) / BAND;
}

/* One unit is BAND rows of one matrix: several cache lines in a row of each source row. */
static void run_bands(void *arg, int64_t lo, int64_t hi)
{
    const Grid *c = arg;
    CopyAxis r = c->axis[c->rank - 2], k = c->axis[c->rank - 1];
    TurnFn *fn = turn_of(c->size);
    for (int64_t i = lo; i < hi; i++) {
        CopyPosition w = position_at(c, c->rank - 2, i / bands(r.dim));
        int64_t first = i % bands(r.dim) * BAND, end = MIN(first + BAND, r.dim);
        for (int64_t col = 0; col < k.dim; col += TILE)
            for (int64_t row = first; row < end; row += TILE)
                fn(c->to + w.to + row * r.ts + col * k.ts,
                   c->from + w.from + row * r.fs + col * k.fs, MIN(TILE, end - row),
                   MIN(TILE, k.dim - col), r, k);
    }
}

static void copy_bands(Grid *c)
{
    CopyAxis r = c->axis[c->rank - 2], k = c->axis[c->rank - 1];
    int64_t outer = 1;
    for (int d = 0; d < c->rank - 2; d++)
        outer *= c->axis[d].dim;
    par_for(outer * bands(r.dim), MAX(1, GRAIN / (k.dim * BAND * c->size)), run_bands, c);
}

/* Whether there is a matrix to turn; its rows become the last axis but one. */
static bool find_matrix(Grid *c)
{
    int last = c->rank - 1;
    if (c->axis[last].ts != c->size || c->axis[last].fs == c->size)
        return false;
    for (int d = 0; d < last; d++)
        if (c->axis[d].fs == c->size && c->axis[d].dim > 1) {
            CopyAxis rows = c->axis[d];
            memmove(&c->axis[d], &c->axis[d + 1], sizeof rows * (size_t)(last - 1 - d));
            c->axis[last - 1] = rows;
            return true;
        }
    return false;
}

void strided_copy(const Tensor *to, const Tensor *from)
{
    int64_t size = dtype_size(from->dtype);
    Grid c = {.to = to->data, .from = from->data, .size = size};
    for (int d = 0; d < from->rank; d++) {
        if (from->dim[d] == 0)
            return;
        add_axis(&c, (CopyAxis){from->dim[d], to->stride[d] * size, from->stride[d] * size});
    }
    if (c.rank == 0)
        c.axis[c.rank++] = (CopyAxis){1, size, size};
    if (find_matrix(&c))
        copy_bands(&c);
    else
        copy_runs(&c);
}

int copy_ref(Call *c)
{
    const Tensor *y = &c->out[0], *x = &c->in[0];
    int64_t ix[TN_RANK] = {0};
    size_t size = (size_t)dtype_size(x->dtype);
    if (tensor_nelem(y) == 0)
        return 0;
    do {
        memcpy(y->data + (size_t)tensor_index(y, ix) * size,
               x->data + (size_t)tensor_index(x, ix) * size, size);
    } while (next_index(y->rank, y->dim, ix));
    return 0;
}
