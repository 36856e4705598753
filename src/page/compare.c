/* Compares two plans: a table of their figures (bytes, operations, counts), those that are zero in
 * both left out. */
#include "page.h"

#include <math.h>

typedef struct Figures {
    Arena *a;
    Figure *list;
    int count, cap;
} Figures;

static void add_always(Figures *f, const char *title, FigureUnit unit, double x, double y)
{
    PUSH(f->a, f->list, f->count, f->cap, ((Figure){title, unit, {x, y}}));
}

static void add(Figures *f, const char *title, FigureUnit unit, double x, double y)
{
    if (x != 0 || y != 0)
        add_always(f, title, unit, x, y);
}

int plan_figures(Arena *a, const Plan *const p[2], Figure **list)
{
    Figures f = {.a = a};
    const Plan *x = p[0], *y = p[1];
    const Breakdown *s = plan_breakdown(a, x), *t = plan_breakdown(a, y);
    add_always(&f, "peak", UNIT_BYTES, (double)x->space[SPACE_MAIN].peak,
               (double)y->space[SPACE_MAIN].peak);
    add_always(&f, "lower bound", UNIT_BYTES, (double)x->space[SPACE_MAIN].bound,
               (double)y->space[SPACE_MAIN].bound);
    add_always(&f, "waste", UNIT_BYTES,
               (double)(x->space[SPACE_MAIN].peak - x->space[SPACE_MAIN].bound),
               (double)(y->space[SPACE_MAIN].peak - y->space[SPACE_MAIN].bound));
    add(&f, "host's memory", UNIT_BYTES, (double)x->space[SPACE_HOST].peak,
        (double)y->space[SPACE_HOST].peak);
    add_always(&f, "library", UNIT_BYTES, (double)x->reserve, (double)y->reserve);
    for (int c = 0; c < NCATEGORY; c++)
        add(&f, arena_printf(a, "at the peak: %s", category_name((Category)c)), UNIT_BYTES,
            (double)x->by_category[c], (double)y->by_category[c]);
    add(&f, "saved for the backward", UNIT_BYTES, (double)s->saved, (double)t->saved);
    add(&f, "computed again", UNIT_BYTES, (double)s->recomputed, (double)t->recomputed);
    add(&f, "operations", UNIT_GFLOP, s->nflop / 1e9, t->nflop / 1e9);
    add(&f, "of them computed again", UNIT_GFLOP, s->added_nflop / 1e9, t->added_nflop / 1e9);
    add(&f, "estimate", UNIT_SEC, x->est.step, y->est.step);
    add(&f, "of it computed again", UNIT_SEC, x->est.added, y->est.added);
    for (int c = 0; c < NCLASS; c++)
        add(&f, arena_printf(a, "of it %s", class_name((OpClass)c)), UNIT_SEC, x->est.by_class[c],
            y->est.by_class[c]);
    add(&f, "nodes", UNIT_COUNT, graph_count(x->g), graph_count(y->g));
    add(&f, "calls", UNIT_COUNT, x->nstep, y->nstep);
    add(&f, "copies", UNIT_COUNT, x->ncopies, y->ncopies);
    add(&f, "buffers", UNIT_COUNT, x->nstorage, y->nstorage);
    *list = f.list;
    return f.count;
}

/* An integer where all values are. */
static int decimals(FigureUnit unit)
{
    return unit == UNIT_COUNT ? 0 : 2;
}

void plan_compare(Buf *b, const Plan *const p[2], const char *const side[2])
{
    Figure *list;
    int n = plan_figures(b->a, p, &list);
    bool small = MAX(p[0]->space[SPACE_MAIN].peak, p[1]->space[SPACE_MAIN].peak) < 8 << 20;
    bool brief = MAX(p[0]->est.step, p[1]->est.step) < 10;
    const char *const units[] = {small ? "KiB" : "MiB", "GFLOP", brief ? "ms" : "s", ""};
    const double by[] = {small ? 0x1p-10 : 0x1p-20, 1, brief ? 1e3 : 1, 1};
    for (int i = 0; i < 2; i++)
        buf_printf(b, "%c: %s\n", 'A' + i, *side[i] ? side[i] : "(no options of its own)");
    buf_printf(b, "  %-25s %14s %14s %14s\n", "", "A", "B", "B - A");
    for (int i = 0; i < n; i++) {
        const Figure *f = &list[i];
        double x = f->value[0] * by[f->unit], y = f->value[1] * by[f->unit];
        int digits = decimals(f->unit);
        buf_printf(b, "  %-25s %14.*f %14.*f %+14.*f %-5s", f->title, digits, x, digits, y, digits,
                   y - x, units[f->unit]);
        if (x != 0 && x != y)
            buf_printf(b, " %+7.1f %%", 100 * (y - x) / x);
        while (b->text[b->len - 1] == ' ')
            b->text[--b->len] = 0;
        buf_add(b, "\n");
    }
}
