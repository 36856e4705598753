/* Finds the elements of a whole that a rank's part has, as runs that lie contiguous in both, and
 * the rank that has an element. */
#include "ir.h"

#include <string.h>

/* Along each axis, where a part's elements are in the whole. */
typedef struct PartAxes {
    int64_t *at[TN_RANK];
    int64_t count[TN_RANK];
} PartAxes;

/* Whether the part has element i of an axis of so many. */
static bool has(const Mesh *m, const Cut *cut, int axis, int64_t size, int64_t i)
{
    for (int c = 0; cut && c < m->naxes; c++) {
        if (cut[c].kind != CUT_SLICE || cut[c].axis != axis)
            continue;
        int64_t inner = size / (cut[c].outer * m->size[c]);
        if (i / inner % m->size[c] != m->at[c])
            return false;
    }
    return true;
}

static void find_axis(Arena *a, const Mesh *m, const Cut *cut, const Type *whole, int axis,
                      PartAxes *x)
{
    int64_t size = whole->dim[axis];
    x->count[axis] = 0;
    x->at[axis] = NEWN(a, int64_t, size);
    for (int64_t i = 0; i < size; i++)
        if (has(m, cut, axis, size, i))
            x->at[axis][x->count[axis]++] = i;
}

/* Joins runs that follow each other in both. */
typedef struct RunJoin {
    PartRun run;
    SeePartRun *see;
    void *arg;
} RunJoin;

static void add_run(RunJoin *j, PartRun r)
{
    PartRun *x = &j->run;
    bool follows =
        x->n && (r.whole < 0 ? x->whole < 0 : x->whole >= 0 && r.whole == x->whole + x->n);
    if (follows) {
        x->n += r.n;
        return;
    }
    if (x->n)
        j->see(j->arg, *x);
    *x = r;
}

/* The row of the part whose indices along all axes but the last are idx[]; first: its element 0. */
static void add_row(RunJoin *j, const PartAxes *x, const Type *real, const int64_t *idx,
                    int64_t first)
{
    int last = real->rank - 1;
    int64_t row = 0;
    bool there = true;
    for (int d = 0; d < last; d++) {
        int64_t i = x->at[d][idx[d]];
        there &= i < real->dim[d];
        row = row * real->dim[d] + i;
    }
    for (int64_t k = 0, n; k < x->count[last]; k += n) {
        int64_t i = x->at[last][k];
        for (n = 1; k + n < x->count[last] && x->at[last][k + n] == i + n; n++)
            ;
        int64_t real_n = there ? MAX(MIN(n, real->dim[last] - i), 0) : 0;
        if (real_n)
            add_run(j, (PartRun){first + k, row * real->dim[last] + i, real_n});
        if (real_n < n)
            add_run(j, (PartRun){first + k + real_n, -1, n - real_n});
    }
}

static bool next_row(const PartAxes *x, int last, int64_t *idx)
{
    for (int d = last - 1; d >= 0; d--) {
        if (++idx[d] < x->count[d])
            return true;
        idx[d] = 0;
    }
    return false;
}

void part_each_run(Arena *tmp, const Type *local, const Mesh *m, const Cut *cut, const Type *real,
                   SeePartRun *see, void *arg)
{
    RunJoin j = {.see = see, .arg = arg};
    Type whole = cut_whole_type(local, m, cut);
    int64_t idx[TN_RANK] = {0}, nelem = type_nelem(local);
    PartAxes x;
    CHECK(real->rank == local->rank);
    if ((!cut || !local->rank) && shape_equal(real, local)) { /* all of it, in place */
        if (nelem)
            see(arg, (PartRun){0, 0, nelem});
        return;
    }
    if (!nelem)
        return;
    for (int d = 0; d < local->rank; d++)
        find_axis(tmp, m, cut, &whole, d, &x);
    int64_t first = 0;
    do {
        add_row(&j, &x, real, idx, first);
        first += x.count[local->rank - 1];
    } while (next_row(&x, local->rank - 1, idx));
    see(arg, j.run);
}

/* ---- who has what ---- */

/* The difference of ranks' numbers for 1 along a mesh axis. */
static int64_t rank_stride(const Mesh *m, int axis)
{
    int64_t stride = 1;
    for (int c = axis + 1; c < m->naxes; c++)
        stride *= m->size[c];
    return stride;
}

/* Elements of an axis that lie together in every part. */
static int64_t span_size(const Mesh *m, const Cut *cut, int axis, int64_t size)
{
    int64_t units = 1;
    for (int c = 0; cut && c < m->naxes; c++)
        if (cut[c].kind == CUT_SLICE && cut[c].axis == axis)
            units = MAX(units, cut[c].outer * m->size[c]);
    return size / units;
}

/* The spans of an axis of `size` elements, padding included, up to its end at `real`. */
static void find_spans(Arena *a, const Mesh *m, const Cut *cut, int axis, int64_t size,
                       int64_t real, PartMap *p)
{
    int64_t length = span_size(m, cut, axis, size), parts = 1;
    for (int c = 0; cut && c < m->naxes; c++)
        parts *= cut[c].kind == CUT_SLICE && cut[c].axis == axis ? m->size[c] : 1;
    int64_t *count = NEWN(a, int64_t, parts);
    p->nspan[axis] = length ? (real + length - 1) / length : 0;
    p->span[axis] = NEWN(a, PartSpan, p->nspan[axis]);
    for (int64_t i = 0; i < p->nspan[axis]; i++) {
        PartSpan *s = &p->span[axis][i];
        int64_t part = 0;
        *s = (PartSpan){i * length, MIN((i + 1) * length, real), 0, 0};
        for (int c = 0; cut && c < m->naxes; c++) {
            if (cut[c].kind != CUT_SLICE || cut[c].axis != axis)
                continue;
            int64_t at = s->first / (size / (cut[c].outer * m->size[c])) % m->size[c];
            part = part * m->size[c] + at;
            s->rank += at * rank_stride(m, c);
        }
        s->local = count[part]++ * length;
    }
}

/* Whether the last axis only makes the elements of the one before it larger. */
static bool is_inner(const PartMap *p)
{
    int last = p->whole.rank - 1;
    return last > 0 && p->nspan[last] == 1 && !p->span[last][0].rank &&
           p->local.dim[last] == p->whole.dim[last];
}

static void drop_inner(PartMap *p)
{
    int last = --p->whole.rank, d = last - 1;
    int64_t size = p->whole.dim[last];
    p->local.rank--;
    p->local.dim[d] *= size;
    p->whole.dim[d] *= size;
    for (PartSpan *s = p->span[d]; s < p->span[d] + p->nspan[d]; s++)
        *s = (PartSpan){s->first * size, s->end * size, s->rank, s->local * size};
}

PartMap part_map(Arena *a, const Type *local, const Mesh *m, const Cut *cut, const Type *real)
{
    PartMap p = {.local = *local, .whole = *real};
    Type all = cut_whole_type(local, m, cut);
    for (int d = 0; d < local->rank; d++)
        find_spans(a, m, cut, d, all.dim[d], real->dim[d], &p);
    while (is_inner(&p))
        drop_inner(&p);
    return p;
}

/* Joins pieces that follow each other in the part too. */
typedef struct PieceJoin {
    PartPiece piece;
    SeePartPiece *see;
    void *arg;
} PieceJoin;

static void add_piece(PieceJoin *j, PartPiece p)
{
    PartPiece *x = &j->piece;
    if (x->n && x->rank == p.rank && x->local + x->n == p.local) {
        x->n += p.n;
        return;
    }
    if (x->n)
        j->see(j->arg, *x);
    *x = p;
}

/* A place in the whole: an index along each axis but the last, and the span that has it. */
typedef struct PartPlace {
    int64_t idx[TN_RANK], span[TN_RANK];
} PartPlace;

/* The place of element i; returns its index along the last axis. */
static int64_t find_place(const PartMap *p, int64_t i, PartPlace *x)
{
    int64_t k = 0;
    for (int d = p->whole.rank - 1; d >= 0; d--) {
        k = i % p->whole.dim[d];
        i /= p->whole.dim[d];
        x->idx[d] = k;
        x->span[d] = k / (p->span[d][0].end - p->span[d][0].first);
    }
    return x->idx[p->whole.rank - 1];
}

static void next_place(const PartMap *p, PartPlace *x)
{
    for (int d = p->whole.rank - 2; d >= 0; d--) {
        if (++x->idx[d] == p->span[d][x->span[d]].end)
            x->span[d]++;
        if (x->idx[d] < p->whole.dim[d])
            return;
        x->idx[d] = x->span[d] = 0;
    }
}

/* The row's rank and the first element of the row in its part, as far as the axes before the last
 * say. */
static PartPiece find_row(const PartMap *p, const PartPlace *x)
{
    PartPiece row = {0};
    for (int d = 0; d < p->whole.rank - 1; d++) {
        const PartSpan *s = &p->span[d][x->span[d]];
        row.rank += s->rank;
        row.local = row.local * p->local.dim[d] + s->local + x->idx[d] - s->first;
    }
    row.local *= p->local.dim[p->whole.rank - 1];
    return row;
}

void part_each_piece(const PartMap *p, int64_t first, int64_t n, SeePartPiece *see, void *arg)
{
    PieceJoin j = {.see = see, .arg = arg};
    PartPlace x;
    int last = p->whole.rank - 1;
    int64_t end = first + n;
    if (!n)
        return;
    if (last < 0) {
        see(arg, (PartPiece){0, 1, 0, 0});
        return;
    }
    for (int64_t i = first, k = find_place(p, first, &x); i < end; k = 0) {
        PartPiece row = find_row(p, &x);
        for (int64_t t = k ? x.span[last] : 0; t < p->nspan[last] && i < end; t++) {
            const PartSpan *s = &p->span[last][t];
            int64_t from = MAX(k, s->first), count = MIN(s->end - from, end - i);
            add_piece(&j, (PartPiece){i, count, row.rank + s->rank,
                                      row.local + s->local + from - s->first});
            i += count;
        }
        next_place(p, &x);
    }
    see(arg, j.piece);
}
