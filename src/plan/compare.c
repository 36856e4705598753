/* Compares two plans: a table of their figures (bytes, operations, counts), those that are zero in
 * both left out. */
#include "plan.h"

#include <math.h>

typedef struct Figures {
    Arena *a;
    Figure *list;
    int count, cap;
} Figures;

static void add_always(Figures *f, const char *title, FigureKind kind, double x, double y)
{
    PUSH(f->a, f->list, f->count, f->cap, ((Figure){title, kind, {x, y}}));
}

static void add(Figures *f, const char *title, FigureKind kind, double x, double y)
{
    if (x != 0 || y != 0)
        add_always(f, title, kind, x, y);
}

int plan_figures(Arena *a, const Plan *const p[2], Figure **list)
{
    Figures f = {.a = a};
    const Plan *x = p[0], *y = p[1];
    const Breakdown *s = plan_breakdown(a, x), *t = plan_breakdown(a, y);
    add_always(&f, "peak", FIGURE_BYTES, (double)x->peak, (double)y->peak);
    add_always(&f, "lower bound", FIGURE_BYTES, (double)x->bound, (double)y->bound);
    add_always(&f, "waste", FIGURE_BYTES, (double)(x->peak - x->bound),
               (double)(y->peak - y->bound));
    add_always(&f, "library", FIGURE_BYTES, (double)x->reserve, (double)y->reserve);
    for (int c = 0; c < NCATEGORY; c++)
        add(&f, arena_printf(a, "at the peak: %s", category_name((Category)c)), FIGURE_BYTES,
            (double)x->by_category[c], (double)y->by_category[c]);
    add(&f, "saved for the backward", FIGURE_BYTES, (double)s->saved, (double)t->saved);
    add(&f, "computed again", FIGURE_BYTES, (double)s->recomputed, (double)t->recomputed);
    add(&f, "operations", FIGURE_GFLOP, s->nflop / 1e9, t->nflop / 1e9);
    add(&f, "of them computed again", FIGURE_GFLOP, s->added_nflop / 1e9, t->added_nflop / 1e9);
    add(&f, "nodes", FIGURE_COUNT, graph_count(x->g), graph_count(y->g));
    add(&f, "calls", FIGURE_COUNT, x->nstep, y->nstep);
    add(&f, "copies", FIGURE_COUNT, x->ncopies, y->ncopies);
    add(&f, "buffers", FIGURE_COUNT, x->nstorage, y->nstorage);
    *list = f.list;
    return f.count;
}

/* An integer where all values are. */
static int decimals(FigureKind kind)
{
    return kind == FIGURE_COUNT ? 0 : 2;
}

void plan_compare(Buf *b, const Plan *const p[2], const char *const side[2])
{
    Figure *list;
    int n = plan_figures(b->a, p, &list);
    bool small = MAX(p[0]->peak, p[1]->peak) < 8 << 20;
    const char *const units[] = {small ? "KiB" : "MiB", "GFLOP", ""};
    for (int i = 0; i < 2; i++)
        buf_printf(b, "%c: %s\n", 'A' + i, *side[i] ? side[i] : "(no options of its own)");
    buf_printf(b, "  %-25s %14s %14s %14s\n", "", "A", "B", "B - A");
    for (int i = 0; i < n; i++) {
        const Figure *f = &list[i];
        double by = f->kind == FIGURE_BYTES ? small ? 0x1p-10 : 0x1p-20 : 1;
        double x = f->value[0] * by, y = f->value[1] * by;
        int digits = decimals(f->kind);
        buf_printf(b, "  %-25s %14.*f %14.*f %+14.*f %-5s", f->title, digits, x, digits, y, digits,
                   y - x, units[f->kind]);
        if (x != 0 && x != y)
            buf_printf(b, " %+7.1f %%", 100 * (y - x) / x);
        while (b->text[b->len - 1] == ' ')
            b->text[--b->len] = 0;
        buf_add(b, "\n");
    }
}
