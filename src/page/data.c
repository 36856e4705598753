/* Selects what a page draws of a plan: columns of steps, and buffers.
 *
 * A picture is about a thousand points wide. If there are more than PAGE_COLUMNS steps, a column
 * stands for several and shows the first one with the most bytes, so that no peak is lost. If there
 * are more than PAGE_BUFFERS buffers, the largest by bytes times steps have names; of these the
 * ones high enough to be seen are drawn one by one, all others together. The PAGE_LARGEST largest
 * buffers of each column have names too. */
#define _GNU_SOURCE /* qsort_r */
#include "page.h"

#include <stdlib.h>

/* ---- columns ---- */

static int column_of(const Picture *d, int step)
{
    return (int)((int64_t)step * d->ncolumn / d->nstep);
}

static void set_column(Column *c, int step, const int64_t *live, int64_t total)
{
    c->step = step;
    c->total = total;
    for (int k = 0; k < NCATEGORY; k++)
        c->live[k] = live[k];
}

static void fill_live(Picture *d, Arena *tmp)
{
    int64_t(*change)[NCATEGORY] =
        arena_alloc(tmp, sizeof *change * (size_t)(d->nstep + 1)); /* zeroed */
    int64_t live[NCATEGORY] = {[CAT_OTHER] = plan_kept_by_others(d->p)}, total = live[CAT_OTHER];
    for (int i = 0; i < d->p->nstorage; i++) {
        const Storage *s = &d->p->storage[i];
        if (!storage_shown(s))
            continue;
        change[s->start][s->category] += s->nbytes;
        change[s->end][s->category] -= s->nbytes;
    }
    for (int step = 0; step < d->nstep; step++) {
        Column *c = &d->column[column_of(d, step)];
        for (int k = 0; k < NCATEGORY; k++) {
            live[k] += change[step][k];
            total += change[step][k];
        }
        if (step == c->first || total > c->total)
            set_column(c, step, live, total);
    }
}

static void fill_phases(Picture *d)
{
    int count[NPHASE] = {0};
    for (int step = 0, k = 0; step < d->p->nstep; step++) {
        const Node *n = d->p->step[step].node;
        count[n ? n->phase : FORWARD]++;
        if (step + 1 < d->p->nstep && column_of(d, step + 1) == k)
            continue;
        for (int f = 0; f < NPHASE; f++)
            if (count[f] > count[d->column[k].phase])
                d->column[k].phase = (Phase)f;
        for (int f = 0; f < NPHASE; f++)
            count[f] = 0;
        k++;
    }
}

static void fill_columns(Picture *d, Arena *a, Arena *tmp)
{
    d->ncolumn = MIN(d->nstep, PAGE_COLUMNS);
    d->column = NEWN(a, Column, d->ncolumn);
    for (int step = d->nstep - 1; step >= 0; step--)
        d->column[column_of(d, step)].first = step;
    fill_live(d, tmp);
    fill_phases(d);
}

/* ---- buffers ---- */

typedef struct RankedStorage {
    int storage;
    bool kept; /* always alive */
    double size;
} RankedStorage;

static int by_size(const void *s, const void *t)
{
    const RankedStorage *x = s, *y = t;
    if (x->kept != y->kept)
        return x->kept ? 1 : -1;
    return x->size != y->size ? (x->size < y->size ? 1 : -1) : x->storage - y->storage;
}

/* All buffers that are shown, ranked by bytes or by bytes times steps. */
static RankedStorage *rank(const Picture *d, Arena *tmp, bool area, int *count)
{
    RankedStorage *r = NEWN(tmp, RankedStorage, d->p->nstorage);
    *count = 0;
    for (int i = 0; i < d->p->nstorage; i++) {
        const Storage *s = &d->p->storage[i];
        if (storage_shown(s))
            r[(*count)++] = (RankedStorage){i, !area && s->persistent,
                                            (double)s->nbytes * (area ? s->end - s->start : 1)};
    }
    qsort(r, (size_t)*count, sizeof *r, by_size);
    return r;
}

static int by_address(const void *s, const void *t, void *plan)
{
    const Plan *p = plan;
    const Storage *x = &p->storage[*(const int *)s], *y = &p->storage[*(const int *)t];
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->start != y->start ? x->start - y->start : *(const int *)s - *(const int *)t;
}

/* Names the largest and chooses those to be drawn one by one, by address, always including one that
 * reaches the arena's end. */
static void choose_rects(Picture *d, Arena *a, Arena *tmp, bool *named)
{
    const Plan *p = d->p;
    int n;
    RankedStorage *r = rank(d, tmp, true, &n);
    bool top = false;
    d->rect = NEWN(a, int, MIN(n, PAGE_BUFFERS + 1));
    for (int i = 0; i < n; i++) {
        const Storage *s = &p->storage[r[i].storage];
        bool last = !top && s->offset + s->nbytes == p->space[SPACE_MAIN].peak;
        named[r[i].storage] = i < PAGE_BUFFERS || last;
        bool seen = n <= PAGE_BUFFERS || s->nbytes > p->space[SPACE_MAIN].peak / PAGE_FINENESS;
        if (last || (i < PAGE_BUFFERS && seen))
            d->rect[d->nrect++] = r[i].storage;
        top |= last;
    }
    qsort_r(d->rect, (size_t)d->nrect, sizeof *d->rect, by_address, (void *)p);
    d->nsmall = n - d->nrect;
}

/* Names the largest of each column, transient buffers before those that are always alive. */
static void choose_named(Picture *d, Arena *a, Arena *tmp, bool *named)
{
    int n, cap = 0;
    RankedStorage *r = rank(d, tmp, false, &n);
    for (int k = 0; k < d->ncolumn; k++) {
        int most = d->column[k].step == d->peak_step ? PAGE_PEAK : PAGE_LARGEST;
        for (int i = 0, found = 0; i < n && found < most; i++) {
            const Storage *s = &d->p->storage[r[i].storage];
            if (s->start > d->column[k].step || d->column[k].step >= s->end)
                continue;
            named[r[i].storage] = true;
            found++;
        }
    }
    for (int i = 0; i < n; i++)
        if (named[r[i].storage])
            PUSH(a, d->named, d->nnamed, cap, r[i].storage);
}

Picture picture_make(Arena *a, const PageSide *s, char id)
{
    const Plan *p = s->p;
    Picture d = {.p = p,
                 .chunk = s->chunk,
                 .sharded = s->sharded,
                 .title = s->title,
                 .id = id,
                 .nstep = MAX(p->nstep, 1)};
    Arena *tmp = arena_tmp(a);
    d.peak_step = MIN(p->space[SPACE_MAIN].peak_step, d.nstep - 1);
    fill_columns(&d, a, tmp);
    bool *named = NEWN(tmp, bool, p->nstorage);
    choose_rects(&d, a, tmp, named);
    choose_named(&d, a, tmp, named);
    arena_reset(tmp);
    return d;
}

/* ---- for the script ---- */

const char *step_title(Arena *a, const Step *s)
{
    static const char *const titles[] = {
        [STEP_END] = "end of loop", [STEP_ZERO] = "zero", [STEP_OFFSET] = "offset"};
    Buf b = {.a = a};
    if (s->kind != STEP_CALL && s->kind != STEP_LOOP)
        return titles[s->kind];
    if (s->kind == STEP_LOOP)
        buf_printf(&b, "loop of %s", arena_count(a, s->count, "iteration"));
    else
        buf_add(&b, s->node->op->name);
    if (s->kind != STEP_CALL || s->node->op->region != FUSED)
        return b.text;
    int left = 4;
    for (const Node *n = s->node->region->body[MAIN]->first; n && left >= 0; n = n->next, left--)
        buf_printf(&b, "%s%s", left == 4 ? ": " : ", ", left ? n->op->name : "...");
    return b.text;
}

/* Each text once: its index. */
typedef struct TextTable {
    Map index;
    const char **text;
    int count, cap;
} TextTable;

static int intern(TextTable *t, const char *s)
{
    int *index = map_find(&t->index, s);
    if (index)
        return *index;
    index = NEW(t->index.a, int);
    *index = t->count;
    map_put(&t->index, s, index);
    PUSH(t->index.a, t->text, t->count, t->cap, s);
    return *index;
}

/* [first step, shown step, op, scope, phase] of each column */
static void put_columns(Buf *b, const Picture *d, TextTable *t)
{
    buf_add(b, "\"columns\":[");
    for (int k = 0; k < d->ncolumn; k++) {
        const Column *c = &d->column[k];
        const Step *s = c->step < d->p->nstep ? &d->p->step[c->step] : NULL;
        const Node *n = s ? s->node : NULL;
        buf_printf(b, "%s[%d,%d,%d,%d,%d]", k ? "," : "", c->first, c->step,
                   intern(t, n ? step_title(b->a, s) : ""), intern(t, n ? n->scope : ""),
                   n ? (int)n->phase : (int)c->phase);
    }
    buf_add(b, "],\n");
}

/* [first step, end, address, bytes, category, name, scope] of each buffer; kept ones have category
 * + NCATEGORY */
static void put_buffers(Buf *b, const Picture *d, TextTable *t)
{
    buf_add(b, "\"buffers\":[");
    for (int i = 0; i < d->nnamed; i++) {
        const Storage *s = &d->p->storage[d->named[i]];
        buf_printf(b, "%s[%d,%d,%lld,%lld,%d,%d,%d]", i ? "," : "", s->start, s->end,
                   (long long)s->offset, (long long)s->nbytes,
                   (int)s->category + (s->persistent ? NCATEGORY : 0), intern(t, s->name),
                   intern(t, s->scope));
    }
    buf_add(b, "],\n");
}

void page_data(Page *x, const Picture *d)
{
    Buf *b = x->b;
    TextTable t = {.index = {.a = x->a}};
    buf_printf(b,
               "<script type=\"application/json\" id=\"%c-data\">{\"steps\":%d,\"small\":%d,"
               "\"unit\":%.0f,",
               d->id, d->nstep, d->nsmall, x->unit);
    buf_printf(b, "\"peak\":%d,\"full\":[%.0f,%.0f],\"zoom\":[%.0f,%.0f],\n",
               column_of(d, d->peak_step), x->full.lo, x->full.hi, x->zoom.lo, x->zoom.hi);
    put_columns(b, d, &t);
    put_buffers(b, d, &t);
    buf_add(b, "\"texts\":[");
    for (int i = 0; i < t.count; i++) {
        buf_add(b, i ? ",\n" : "");
        put_quoted(b, t.text[i]);
    }
    buf_add(b, "]}</script>\n");
}
