/* Parts of a whole against brute force: axes are made of digits, most significant first, some of
 * which are ranks' coordinates: "3, tp, fsdp, 5". A part has the elements whose digits are its
 * rank's, in the order of the digits that are left. */
#include "../../src/ir/ir.h"
#include "../shared/test.h"

#include <stdio.h>

enum { MAX_DIGITS = 8, MOST_ELEMENTS = 4000, NTIMES = 3000 };

static Ctx ctx;
static Arena *a;
static uint64_t drawn;

/* In [low, high]. */
static int64_t draw(int64_t low, int64_t high)
{
    return low + (int64_t)(random_uniform(19, 0, 0, drawn++) * (float)(high - low + 1));
}

/* One axis: digits, and which mesh axis each is; -1: none. */
typedef struct Digits {
    int count, mesh[MAX_DIGITS];
    int64_t size[MAX_DIGITS];
} Digits;

typedef struct Problem {
    Mesh mesh;
    Cut cut[MAX_MESH];
    Type local, whole, real; /* whole: with padding */
    Digits axis[TN_RANK];
} Problem;

static void add_digit(Digits *x, int64_t size, int mesh)
{
    x->size[x->count] = size;
    x->mesh[x->count++] = mesh;
}

/* Which of the mesh axes that no axis has taken yet cut this one. */
static Digits draw_digits(Problem *p, int axis, bool *taken)
{
    Digits x = {0};
    int64_t above = 1;
    for (int c = 0; c < p->mesh.naxes; c++) {
        if (taken[c] || draw(0, 2) == 0)
            continue;
        if (draw(0, 3) == 0)
            add_digit(&x, draw(2, 3), -1);
        add_digit(&x, p->mesh.size[c], c);
        taken[c] = true;
    }
    add_digit(&x, draw(0, 12) ? draw(1, 4) : 0, -1);
    for (int i = 0; i < x.count; i++) {
        if (x.mesh[i] >= 0)
            p->cut[x.mesh[i]] = (Cut){CUT_SLICE, axis, above};
        above *= x.size[i];
    }
    return x;
}

static void draw_problem(Problem *p)
{
    bool taken[MAX_MESH] = {false};
    *p = (Problem){.mesh = {.naxes = (int)draw(1, 3), .name = {"dp", "tp", "fsdp"}},
                   .whole = {F32, (int)draw(0, 4), {0}}};
    for (int c = 0; c < p->mesh.naxes; c++)
        p->mesh.size[c] = draw(1, 4);
    p->local = p->whole;
    for (int d = 0; d < p->whole.rank; d++) {
        p->axis[d] = draw_digits(p, d, taken);
        p->whole.dim[d] = p->local.dim[d] = 1;
        for (int i = 0; i < p->axis[d].count; i++) {
            p->whole.dim[d] *= p->axis[d].size[i];
            p->local.dim[d] *= p->axis[d].mesh[i] < 0 ? p->axis[d].size[i] : 1;
        }
    }
    p->real = p->whole;
    for (int d = 0; d < p->whole.rank; d++)
        if (p->axis[d].count > 1 && draw(0, 1))
            p->real.dim[d] -= draw(0, MIN(p->whole.dim[d], 3));
}

/* Whether this rank has index i of an axis, and as which of its own. */
static bool find_digits(const Problem *p, int axis, int64_t i, int64_t *local)
{
    const Digits *x = &p->axis[axis];
    int64_t unit = 1;
    bool mine = true;
    *local = 0;
    for (int k = x->count - 1; k >= 0; k--) {
        int64_t digit = i % x->size[k];
        i /= x->size[k];
        if (x->mesh[k] >= 0) {
            mine &= digit == p->mesh.at[x->mesh[k]];
            continue;
        }
        *local += digit * unit;
        unit *= x->size[k];
    }
    return mine;
}

/* By element of this rank's part: where it is in the whole without padding, or -1. */
static int64_t *find_part(const Problem *p)
{
    int64_t *at = NEWN(a, int64_t, type_nelem(&p->local)), n = type_nelem(&p->whole);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, local = 0, real = 0, own, stride = 1, unit = 1;
        bool mine = true, there = true;
        for (int d = p->whole.rank - 1; d >= 0; d--) {
            int64_t k = rest % p->whole.dim[d];
            rest /= p->whole.dim[d];
            mine &= find_digits(p, d, k, &own);
            there &= k < p->real.dim[d];
            local += own * stride;
            real += k * unit;
            stride *= p->local.dim[d];
            unit *= p->real.dim[d];
        }
        if (mine)
            at[local] = there ? real : -1;
    }
    return at;
}

typedef struct Seen {
    const int64_t *at;
    int64_t next; /* element of the part */
    bool good;
    PartRun last;
} Seen;

static void see_run(void *arg, PartRun r)
{
    Seen *s = arg;
    bool joins =
        s->next && (r.whole < 0 ? s->last.whole < 0
                                : s->last.whole >= 0 && r.whole == s->last.whole + s->last.n);
    s->good &= r.local == s->next && r.n > 0 && !joins;
    for (int64_t i = 0; i < r.n && s->good; i++)
        s->good &= s->at[r.local + i] == (r.whole < 0 ? -1 : r.whole + i);
    s->next += r.n;
    s->last = r;
}

static const char *text(const Problem *p)
{
    return arena_printf(a, "%s of %s, %s, at %s %lld", type_text(a, &p->local),
                        type_text(a, &p->real), cuts_text(a, &p->mesh, p->cut),
                        mesh_text(a, &p->mesh), (long long)mesh_rank(&p->mesh));
}

static void try_runs(const Problem *p)
{
    bool uncut = true;
    for (int c = 0; c < p->mesh.naxes; c++)
        uncut &= p->cut[c].kind == CUT_WHOLE;
    for (int form = 0; form < (uncut ? 2 : 1); form++) {
        Seen s = {.at = find_part(p), .good = true};
        part_each_run(a, &p->local, form ? NULL : &p->mesh, form ? NULL : p->cut, &p->real, see_run,
                      &s);
        if (!EXPECT(s.good && s.next == type_nelem(&p->local)))
            printf("  %s\n", text(p));
    }
}

/* ---- who has what ---- */

typedef struct Owners {
    int64_t *rank, *local; /* by element of the whole without padding */
    int64_t next;
    bool good;
    PartPiece last;
} Owners;

static Owners find_owners(Problem *p)
{
    int64_t n = type_nelem(&p->real);
    Owners o = {.rank = NEWN(a, int64_t, n), .local = NEWN(a, int64_t, n), .good = true};
    for (int64_t r = mesh_nranks(&p->mesh) - 1; r >= 0; r--) {
        mesh_set_rank(&p->mesh, r);
        int64_t *at = find_part(p);
        for (int64_t i = 0; i < type_nelem(&p->local); i++)
            if (at[i] >= 0) {
                o.rank[at[i]] = r;
                o.local[at[i]] = i;
            }
    }
    return o;
}

static void see_piece(void *arg, PartPiece x)
{
    Owners *o = arg;
    PartPiece last = o->last;
    bool joins = last.n && x.rank == last.rank && x.local == last.local + last.n;
    o->good &= x.whole == o->next && x.n > 0 && !joins;
    for (int64_t i = 0; i < x.n && o->good; i++)
        o->good &= o->rank[x.whole + i] == x.rank && o->local[x.whole + i] == x.local + i;
    o->next += x.n;
    o->last = x;
}

/* All of the whole, and parts of it. */
static void try_pieces(Problem *p)
{
    PartMap map = part_map(a, &p->local, &p->mesh, p->cut, &p->real);
    Owners o = find_owners(p);
    int64_t n = type_nelem(&p->real);
    for (int i = 0; i < 8; i++) {
        int64_t first = i ? draw(0, n) : 0, count = i ? draw(0, n - first) : n;
        o.next = first;
        o.last.n = 0;
        part_each_piece(&map, first, count, see_piece, &o);
        if (!EXPECT(o.good && o.next == first + count))
            printf("  from %lld %s\n", (long long)first, text(p));
    }
}

int main(void)
{
    Problem p;
    for (int t = 0; t < NTIMES; t++) {
        a = arena_new(&ctx);
        do
            draw_problem(&p);
        while (type_nelem(&p.whole) > MOST_ELEMENTS);
        EXPECT(!cuts_fault(a, &p.mesh, &p.local, p.cut));
        for (int64_t r = 0; r < mesh_nranks(&p.mesh); r++) {
            mesh_set_rank(&p.mesh, r);
            try_runs(&p);
        }
        try_pieces(&p);
        arena_free(a);
    }
    return test_report();
}
