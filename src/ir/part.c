/* Which elements of a whole a rank's part has, as runs that lie contiguous in both. */
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
