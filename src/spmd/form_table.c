/* form_table: the forms of values of one type, by number, and the seconds from one to another.
 *
 * A problem numbers forms as it comes to them, so that its strategies have the same order whatever
 * was asked before. The seconds are those of a type on a mesh: problems of one task, of which there
 * are some twenty, find what others have asked in ShardKnown. Linear in forms for each number. */
#include "solved.h"

#include <math.h>
#include <string.h>

/* Forms of a type, in the order in which any problem came to them, and seconds between them. */
typedef struct KeptForms {
    Arena *a;
    Cut (*form)[MAX_MESH];
    int count, cap, nsec;
    double *sec; /* nsec x nsec; NAN: not known yet */
    StepTable *steps;
} KeptForms;

double *form_new_seconds(Arena *a, int count)
{
    double *sec = SPARSE(a, double, (size_t)count *(size_t)count);
    for (int i = 0; i < count * count; i++)
        sec[i] = NAN;
    return sec;
}

static KeptForms *kept_of(const Spmd *x, const char *type)
{
    Arena *a = x->seconds->a;
    const char *key = arena_printf(a, "%s of %s", type, mesh_text(a, x->mesh));
    KeptForms *y = map_find(x->seconds, key);
    if (y)
        return y;
    y = NEW(a, KeptForms);
    *y = (KeptForms){.a = a, .steps = step_table(a)};
    map_put(x->seconds, key, y);
    return y;
}

FormTable *form_table(const Spmd *x, Arena *a, const Type *t)
{
    Buf key = {.a = a};
    type_print(&key, t);
    FormTable *y = map_find(x->tables, key.text);
    if (!y) {
        y = NEW(a, FormTable);
        *y = (FormTable){.a = a, .type = *t, .kept = kept_of(x, key.text)};
        map_put(x->tables, key.text, y);
    }
    return y;
}

static int find_form(int naxes, int count, Cut (*form)[MAX_MESH], const Cut *cut)
{
    int i = 0;
    while (i < count && !cuts_equal(naxes, form[i], cut))
        i++;
    return i;
}

static int keep_form(KeptForms *y, int naxes, const Cut *cut)
{
    const int i = find_form(naxes, y->count, y->form, cut);
    if (i < y->count)
        return i;
    y->form = arena_grow(y->a, y->form, y->count, &y->cap, sizeof *y->form);
    memcpy(y->form[y->count], cut, sizeof *cut * (size_t)naxes);
    return y->count++;
}

int form_number(const Spmd *x, FormTable *t, const Cut *cut)
{
    const int naxes = x->mesh->naxes, i = find_form(naxes, t->count, t->form, cut);
    if (i < t->count)
        return i;
    t->form = arena_grow(t->a, t->form, t->count, &t->cap, sizeof *t->form);
    t->number = arena_grow(t->a, t->number, t->count, &t->capnumber, sizeof *t->number);
    memcpy(t->form[i], cut, sizeof *cut * (size_t)naxes);
    t->number[i] = keep_form(t->kept, naxes, cut);
    return t->count++;
}

/* Makes room for the seconds between all forms. */
static void widen(KeptForms *y)
{
    double *sec = form_new_seconds(y->a, y->count);
    for (int i = 0; i < y->nsec; i++)
        memcpy(sec + (size_t)i * (size_t)y->count, y->sec + (size_t)i * (size_t)y->nsec,
               sizeof *sec * (size_t)y->nsec);
    y->sec = sec;
    y->nsec = y->count;
}

double form_sec(const Spmd *x, FormTable *t, int from, int to)
{
    KeptForms *y = t->kept;
    if (y->nsec < y->count)
        widen(y);
    double *sec = &y->sec[(size_t)t->number[from] * (size_t)y->nsec + (size_t)t->number[to]];
    if (isnan(*sec))
        *sec = form_cuts_sec(x, t, t->form[from], t->form[to]);
    return *sec;
}

double form_cuts_sec(const Spmd *x, FormTable *t, const Cut *from, const Cut *to)
{
    return edge_sec_by(x, &t->type, t->kept->steps, from, to);
}
