/* Dtypes, shapes and the texts of the enumerations, made from the tables in ir.h. */
#include "ir.h"

#include <string.h>

static const struct {
    const char *name;
    int size;
    bool flt;
} dtypes[] = {
#define X(id, name, size, flt) {#name, size, flt},
    DTYPES(X)
#undef X
        [NDTYPE] = {"none", 0, 0},
};

#define X(id, text) text,
static const char *const phases[] = {PHASES(X)};
static const char *const policies[] = {POLICIES(X)};
static const char *const roles[] = {ROLES(X)};
static const char *const ports[] = {PORTS(X)};
#undef X

const char *dtype_name(DType d)
{
    return dtypes[d].name;
}

int dtype_size(DType d)
{
    return dtypes[d].size;
}

bool dtype_float(DType d)
{
    return dtypes[d].flt;
}

int dtype_parse(const char *name)
{
    for (int i = 0; i < NDTYPE; i++)
        if (!strcmp(dtypes[i].name, name))
            return i;
    return -1;
}

const char *phase_name(Phase p)
{
    return phases[p];
}

const char *policy_name(Policy p)
{
    return policies[p];
}

const char *role_name(Role r)
{
    return roles[r];
}

bool role_named(Role r)
{
    return role_kept(r) || r == ROLE_SCALAR || r == ROLE_GRAD || r == ROLE_NEW || r == ROLE_METRIC;
}

bool role_kept(Role r)
{
    return role_renewed(r) || r == ROLE_CONST;
}

bool role_scalar(Role r)
{
    return r == ROLE_STEP || r == ROLE_SCALAR;
}

bool role_renewed(Role r)
{
    return r == ROLE_PARAM || r == ROLE_STATE || r == ROLE_CACHE;
}

const char *port_name(PortKind k)
{
    return ports[k];
}

int64_t type_nelem(const Type *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++)
        n *= t->dim[d];
    return n;
}

int64_t type_nbytes(const Type *t)
{
    return type_nelem(t) * dtype_size(t->dtype);
}

bool shape_equal(const Type *s, const Type *t)
{
    return s->rank == t->rank && !memcmp(s->dim, t->dim, sizeof *s->dim * (size_t)s->rank);
}

bool type_equal(const Type *s, const Type *t)
{
    return s->dtype == t->dtype && shape_equal(s, t);
}

Type type_make(DType d, int rank, const int64_t *dim)
{
    Type t = {.dtype = d, .rank = rank};
    CHECK(rank <= TN_RANK);
    if (rank)
        memcpy(t.dim, dim, sizeof *dim * (size_t)rank);
    return t;
}

const char *type_fault(const Type *t)
{
    if ((unsigned)t->dtype >= NDTYPE || t->rank < 0 || t->rank > TN_RANK)
        return "a dtype or rank out of range";
    double nbytes = dtype_size(t->dtype);
    for (int d = 0; d < t->rank; d++) {
        if (t->dim[d] < 0)
            return "a negative size";
        nbytes *= (double)MAX(t->dim[d], 1);
    }
    return nbytes > 0x1p56 ? "more than 2^56 bytes" : NULL;
}

void type_print(Buf *b, const Type *t)
{
    buf_add(b, dtype_name(t->dtype));
    buf_add(b, "[");
    for (int d = 0; d < t->rank; d++)
        buf_printf(b, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    buf_add(b, "]");
}

const char *type_text(Arena *a, const Type *t)
{
    Buf b = {.a = a};
    type_print(&b, t);
    return b.text;
}
