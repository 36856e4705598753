/* mesh: the ranks that run a graph, and what they have of its inputs and outputs. Rank numbers are
 * row-major in the mesh's axes. Several mesh axes may cut one axis of a value: each says by `outer`
 * how many units lie above its own, so that the axis is [..][count][..][count2][..] of the whole;
 * the order of cuts in text follows from these numbers. Every function is constant in the graph's
 * size. */
#include "ir.h"

#include <stdlib.h>
#include <string.h>

/* ---- cuts ---- */

bool cut_equal(Cut x, Cut y)
{
    return x.kind == y.kind && (x.kind != CUT_SLICE || (x.axis == y.axis && x.outer == y.outer));
}

bool cuts_equal(int count, const Cut *x, const Cut *y)
{
    for (int c = 0; c < count; c++)
        if (!cut_equal(x[c], y[c]))
            return false;
    return true;
}

/* ---- meshes ---- */

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
#define DIGITS  "0123456789"

static bool is_word(const char *s)
{
    return !strchr(DIGITS, *s) && !s[strspn(s, LETTERS DIGITS)];
}

const char *mesh_add(Arena *a, Mesh *m, const char *name, int64_t size)
{
    if (!is_word(name))
        return arena_printf(a, "the name of an axis (letters, digits and _), found \"%.60s\"",
                            name);
    if (mesh_axis(m, name) >= 0)
        return arena_printf(a, "axes of different names, found \"%.60s\" twice", name);
    if (m->naxes == MAX_MESH)
        return arena_printf(a, "at most %d axes, found \"%.60s\" after them", MAX_MESH, name);
    if (size < 1 || size > MESH_AXIS_MOST)
        return arena_printf(a, "a size of \"%.60s\" from 1 to %d, found %lld", name, MESH_AXIS_MOST,
                            (long long)size);
    if (mesh_nranks(m) * size > INT32_MAX)
        return arena_printf(a, "less than 2^31 ranks, found %lld",
                            (long long)mesh_nranks(m) * size);
    m->name[m->naxes] = arena_strdup(a, name);
    m->size[m->naxes] = size;
    m->at[m->naxes++] = 0;
    return NULL;
}

/* Adds the axis "NAME=SIZE" of a command line; returns what is wrong, or NULL. */
static const char *add_part(Arena *a, Mesh *m, const char *part)
{
    const char *equals = strchr(part, '=');
    if (!equals)
        return arena_printf(a, "AXIS=SIZE, found \"%.60s\"", part);
    const char *name = arena_strndup(a, part, (size_t)(equals - part)), *size = equals + 1;
    size_t ndigits = strspn(size, DIGITS);
    if (!ndigits || size[ndigits] || ndigits > 18)
        return arena_printf(a, "a size of \"%.60s\" from 1 to %d, found \"%.60s\"", name,
                            MESH_AXIS_MOST, size);
    return mesh_add(a, m, name, strtoll(size, NULL, 10));
}

Mesh *mesh_parse(Ctx *ctx, Arena *a, const char *text)
{
    Mesh *m = NEW(a, Mesh);
    for (const char *s = text;; s++) {
        size_t n = strcspn(s, ",");
        const char *fault = add_part(a, m, arena_strndup(a, s, n));
        if (fault)
            fail(ctx, TN_USAGE, "mesh \"%.100s\": expected %s", text, fault);
        s += n;
        if (!*s)
            return m;
    }
}

const char *mesh_text(Arena *a, const Mesh *m)
{
    Buf b = {.a = a};
    buf_add(&b, "");
    for (int i = 0; i < m->naxes; i++)
        buf_printf(&b, "%s%s=%lld", i ? "," : "", m->name[i], (long long)m->size[i]);
    return b.text;
}

Mesh *mesh_clone(Arena *a, const Mesh *m)
{
    if (!m)
        return NULL;
    Mesh *copy = NEW(a, Mesh);
    *copy = *m;
    for (int i = 0; i < m->naxes; i++)
        copy->name[i] = arena_strdup(a, m->name[i]);
    return copy;
}

int64_t mesh_nranks(const Mesh *m)
{
    int64_t n = 1;
    for (int i = 0; i < m->naxes; i++)
        n *= m->size[i];
    return n;
}

void mesh_set_rank(Mesh *m, int64_t rank)
{
    CHECK(rank >= 0 && rank < mesh_nranks(m));
    for (int i = m->naxes - 1; i >= 0; i--) {
        m->at[i] = rank % m->size[i];
        rank /= m->size[i];
    }
}

int64_t mesh_rank(const Mesh *m)
{
    int64_t rank = 0;
    for (int i = 0; i < m->naxes; i++)
        rank = rank * m->size[i] + m->at[i];
    return rank;
}

/* The mesh axis whose name is the n bytes at s; -1 where absent. */
static int axis_named(const Mesh *m, const char *s, size_t n)
{
    for (int i = 0; i < m->naxes; i++)
        if (strlen(m->name[i]) == n && !memcmp(m->name[i], s, n))
            return i;
    return -1;
}

int mesh_axis(const Mesh *m, const char *name)
{
    return axis_named(m, name, strlen(name));
}

/* ---- groups ---- */

const char *group_name(Arena *a, const Mesh *m, int naxes, const int *axes)
{
    Buf b = {.a = a};
    buf_add(&b, "");
    for (int i = 0; i < naxes; i++)
        buf_printf(&b, "%s%s", i ? "," : "", m->name[axes[i]]);
    return b.text;
}

int group_axes(const Mesh *m, const char *group, int *axes)
{
    unsigned seen = 0;
    int naxes = 0;
    for (const char *s = group;; s++) {
        size_t n = strcspn(s, ",");
        int i = axis_named(m, s, n);
        if (i < 0 || (seen & 1U << i))
            return -1;
        seen |= 1U << i;
        axes[naxes++] = i;
        s += n;
        if (!*s)
            return naxes;
    }
}

int64_t group_nranks(const Mesh *m, int naxes, const int *axes)
{
    int64_t n = 1;
    for (int i = 0; i < naxes; i++)
        n *= m->size[axes[i]];
    return n;
}

/* ---- cuts ---- */

Type cut_whole_type(const Type *local, const Mesh *m, const Cut *cut)
{
    Type t = *local;
    for (int i = 0; cut && i < m->naxes; i++)
        if (cut[i].kind == CUT_SLICE)
            t.dim[cut[i].axis] *= m->size[i];
    return t;
}

Type cut_local_type(const Type *t, const Mesh *m, const Cut *cut)
{
    Type local = *t;
    for (int i = 0; cut && i < m->naxes; i++) {
        if (cut[i].kind != CUT_SLICE)
            continue;
        int d = cut[i].axis;
        CHECK(d >= 0 && d < t->rank && cut[i].outer > 0);
        CHECK(t->dim[d] % (cut[i].outer * m->size[i]) == 0 && local.dim[d] % m->size[i] == 0);
        local.dim[d] /= m->size[i];
    }
    return local;
}

Cut *cuts_clone(Arena *a, const Mesh *m, const Cut *cut)
{
    if (!m || !cut)
        return NULL;
    Cut *copy = NEWN(a, Cut, m->naxes);
    memcpy(copy, cut, sizeof *cut * (size_t)m->naxes);
    return copy;
}

/* Whether mesh axis i stands before j in the list of an axis that both cut: the outer one, and of
 * two that begin at one place that of a single rank. */
static bool cuts_before(const Mesh *m, const Cut *cut, int i, int j)
{
    if (cut[i].outer != cut[j].outer)
        return cut[i].outer < cut[j].outer;
    return m->size[i] != m->size[j] ? m->size[i] < m->size[j] : i < j;
}

int cuts_of_axis(const Mesh *m, const Cut *cut, int axis, int *axes)
{
    int count = 0;
    for (int i = 0; cut && i < m->naxes; i++) {
        if (cut[i].kind != CUT_SLICE || cut[i].axis != axis)
            continue;
        int k = count++;
        for (; k > 0 && cuts_before(m, cut, i, axes[k - 1]); k--)
            axes[k] = axes[k - 1];
        axes[k] = i;
    }
    return count;
}

/* ---- what no cuts may have ---- */

static const char *one_fault(Arena *a, const Mesh *m, int i, const Type *local, const Cut *c)
{
    if ((unsigned)c->kind > CUT_LOGSUMEXP)
        return arena_printf(a, "a kind of cut by %s, found none", m->name[i]);
    if (c->kind == CUT_SLICE && (c->axis < 0 || c->axis >= local->rank))
        return arena_printf(a, "a shard of one of %d axes by %s, found axis %d", local->rank,
                            m->name[i], c->axis);
    if (c->kind == CUT_SLICE && c->outer < 1)
        return arena_printf(a, "1 or more units above the cut by %s, found %lld", m->name[i],
                            (long long)c->outer);
    bool merged = c->kind == CUT_WHOLE || c->kind == CUT_SLICE || dtype_float(local->dtype) ||
                  (c->kind != CUT_LOGSUMEXP && local->dtype != BOOL);
    return merged ? NULL
                  : arena_printf(a, "a dtype that has a %s, found %s", cut_merge_name(c->kind),
                                 dtype_name(local->dtype));
}

/* Several cuts of an axis are nested, and its size is a multiple of all that they divide it by. */
static const char *axis_fault(Arena *a, const Mesh *m, const Type *local, const Cut *cut, int axis)
{
    int axes[MAX_MESH], count = cuts_of_axis(m, cut, axis, axes);
    int64_t above = 1, nranks = group_nranks(m, count, axes);
    for (int k = 0; k < count; k++) {
        const char *name = m->name[axes[k]];
        if (cut[axes[k]].outer % above)
            return arena_printf(a, "nested cuts of axis %d, found that of %s across another", axis,
                                name);
        if (__builtin_mul_overflow(cut[axes[k]].outer, m->size[axes[k]], &above) ||
            above > (int64_t)1 << 56)
            return arena_printf(a, "parts of axis %d that are at most 2^56, found more by %s", axis,
                                name);
    }
    if (local->dim[axis] % (above / nranks))
        return arena_printf(a, "a multiple of %lld as the size of axis %d, found %lld",
                            (long long)(above / nranks), axis, (long long)local->dim[axis]);
    return NULL;
}

/* As type_fault counts, in floating point as the sizes may be too large for integers. */
static double whole_nbytes(const Mesh *m, const Type *local, const Cut *cut)
{
    double nbytes = dtype_size(local->dtype);
    for (int axis = 0; axis < local->rank; axis++) {
        int axes[MAX_MESH], count = cuts_of_axis(m, cut, axis, axes);
        double nranks = (double)group_nranks(m, count, axes);
        nbytes *= (double)MAX(local->dim[axis], 1) * (local->dim[axis] ? nranks : 1);
    }
    return nbytes;
}

const char *cuts_fault(Arena *a, const Mesh *m, const Type *local, const Cut *cut)
{
    const char *fault = NULL;
    for (int i = 0; cut && !fault && i < m->naxes; i++)
        fault = one_fault(a, m, i, local, &cut[i]);
    for (int axis = 0; cut && !fault && axis < local->rank; axis++)
        fault = axis_fault(a, m, local, cut, axis);
    if (cut && !fault && whole_nbytes(m, local, cut) > 0x1p56)
        fault = "a whole of at most 2^56 bytes, found a larger one";
    return fault;
}

/* ---- text ---- */

/* "shard(0: 3, tp, fsdp)"; nothing where no mesh axis cuts the axis. */
static void add_shard(Buf *b, const Mesh *m, const Cut *cut, int axis)
{
    int axes[MAX_MESH], count = cuts_of_axis(m, cut, axis, axes);
    int64_t above = 1; /* units of the axis above the next cut */
    for (int k = 0; k < count; k++) {
        const char *before = k ? ", " : "";
        if (!k)
            buf_printf(b, "%sshard(%d: ", b->len ? " " : "", axis);
        int64_t outer = cut[axes[k]].outer;
        if (outer > above) {
            buf_printf(b, "%s%lld", before, (long long)(outer / above));
            before = ", ";
        }
        buf_printf(b, "%s%s", before, m->name[axes[k]]);
        if (__builtin_mul_overflow(outer, m->size[axes[k]], &above) || above < 1)
            above = 1; /* no legal cut: any text will do */
    }
    buf_add(b, count ? ")" : "");
}

/* "partial(sum: dp, fsdp)"; nothing where the value is no partial of that kind. */
static void add_partial(Buf *b, const Mesh *m, const Cut *cut, CutKind kind)
{
    const char *before = NULL;
    for (int i = 0; i < m->naxes; i++) {
        if (cut[i].kind != kind)
            continue;
        if (!before)
            buf_printf(b, "%spartial(%s: ", b->len ? " " : "", cut_merge_name(kind));
        buf_printf(b, "%s%s", before ? before : "", m->name[i]);
        before = ", ";
    }
    buf_add(b, before ? ")" : "");
}

const char *cut_merge_name(CutKind kind)
{
    static const char *const names[] = {
        [CUT_SUM] = "sum", [CUT_MAX] = "max", [CUT_LOGSUMEXP] = "logsumexp"};
    return (unsigned)kind < LEN(names) ? names[kind] : NULL;
}

const char *cuts_text(Arena *a, const Mesh *m, const Cut *cut)
{
    Buf b = {.a = a};
    buf_add(&b, "");
    for (int axis = 0; cut && axis < TN_RANK; axis++)
        add_shard(&b, m, cut, axis);
    for (CutKind kind = CUT_SUM; cut && kind <= CUT_LOGSUMEXP; kind++)
        add_partial(&b, m, cut, kind);
    return b.text;
}
