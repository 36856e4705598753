/* Tables of a page: two plans compared, and the bytes alive at the peak by category and scope. */
#include "page.h"

#include <math.h>
#include <string.h>

enum { MOST_NAME = 200 }; /* characters */

void put_swatch(Buf *b, int category)
{
    buf_printf(
        b,
        "<span class=\"key\"><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect width=\"10\" "
        "height=\"10\" rx=\"2\" class=\"c%d\"/></svg>%s</span>",
        category, category_name((Category)category));
}

void put_side(Page *x, const Picture *d)
{
    if (x->npic == 1)
        return;
    buf_printf(x->b, "<h3><b>%c</b><code>", d->id == 'a' ? 'A' : 'B');
    put_escaped(x->b, *d->title ? d->title : "(no options of its own)");
    buf_add(x->b, "</code></h3>\n");
}

/* A table: begin, heads of columns, begin rows, rows, end. */
static void begin_table(Buf *b, const char *caption)
{
    buf_printf(b, "<div class=\"wide\"><table><caption>%s</caption>\n<thead><tr>", caption);
}

static void put_head(Buf *b, const char *title, bool number)
{
    buf_printf(b, "<th scope=\"col\"%s>%s</th>", number ? " class=\"number\"" : "", title);
}

static void begin_rows(Buf *b)
{
    buf_add(b, "</tr></thead>\n<tbody>\n");
}

static void end_table(Buf *b)
{
    buf_add(b, "</tbody></table></div>\n");
}

/* ---- two plans ---- */

static void put_figure(Buf *b, const Figure *f, double value, bool sign)
{
    buf_add(b, "<td class=\"number\">");
    buf_add(b, sign && value > 0 ? "+" : "");
    if (f->unit == UNIT_BYTES) {
        put_bytes(b, (int64_t)value);
    } else if (f->unit == UNIT_SEC) {
        buf_add(b, value < 0 ? "\xe2\x88\x92" : "");
        buf_add(b, sec_text(b->a, fabs(value)));
    } else {
        put_grouped(b, value, f->unit == UNIT_GFLOP ? 2 : 0);
        buf_add(b, f->unit == UNIT_GFLOP ? " GFLOP" : "");
    }
    buf_add(b, "</td>");
}

void page_comparison(Page *x)
{
    Buf *b = x->b;
    const Plan *p[] = {x->pic[0].p, x->pic[1].p};
    Figure *f;
    int n = plan_figures(x->a, p, &f);
    for (int i = 0; i < 2; i++)
        put_side(x, &x->pic[i]);
    begin_table(b, "Two plans beside each other");
    put_head(b, "", false);
    put_head(b, "A", true);
    put_head(b, "B", true);
    put_head(b, "B \xe2\x88\x92 A", true);
    put_head(b, "%", true);
    begin_rows(b);
    for (int i = 0; i < n; i++) {
        double u = f[i].value[0], v = f[i].value[1];
        buf_printf(b, "<tr><th scope=\"row\">%s</th>", f[i].title);
        put_figure(b, &f[i], u, false);
        put_figure(b, &f[i], v, false);
        put_figure(b, &f[i], v - u, true);
        buf_add(b, "<td class=\"number\">");
        if (u != 0 && v != u) {
            buf_add(b, v > u ? "+" : "");
            put_grouped(b, 100 * (v - u) / u, 1);
        }
        buf_add(b, "</td></tr>\n");
    }
    end_table(b);
}

/* ---- what holds the peak ---- */

static void put_bar(Buf *b, int category, int64_t part, int64_t whole)
{
    buf_printf(b,
               "<td class=\"bar\"><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" "
               "aria-hidden=\"true\"><rect width=\"%.3f\" height=\"10\" class=\"c%d\"/></svg></td>",
               whole ? 100.0 * (double)part / (double)whole : 0, category);
}

static void put_cell(Buf *b, int64_t nbytes)
{
    buf_add(b, "<td class=\"number\">");
    if (nbytes)
        put_bytes(b, nbytes);
    else
        buf_add(b, "0");
    buf_add(b, "</td>");
}

void page_categories(Page *x, const Picture *d)
{
    Buf *b = x->b;
    put_side(x, d);
    begin_table(b, "By category");
    put_head(b, "category", false);
    put_head(b, "at the peak", true);
    put_head(b, "", false);
    begin_rows(b);
    for (int i = NCATEGORY - 1; i >= 0; i--) {
        int c = page_stack[i];
        if (!d->p->by_category[c])
            continue;
        buf_add(b, "<tr><th scope=\"row\">");
        put_swatch(b, c);
        buf_add(b, "</th>");
        put_cell(b, d->p->by_category[c]);
        put_bar(b, c, d->p->by_category[c], d->p->space[SPACE_MAIN].bound);
        buf_add(b, "</tr>\n");
    }
    buf_add(b, "<tr class=\"total\"><th scope=\"row\">all</th>");
    put_cell(b, d->p->space[SPACE_MAIN].bound);
    buf_add(b, "<td></td></tr>\n");
    end_table(b);
}

/* The cells of a row: what all of its blocks have. */
static void put_scope(Page *x, const Picture *d, const ScopeBytes *y)
{
    for (int i = NCATEGORY - 1; i >= 0; i--)
        if (d->p->by_category[page_stack[i]])
            put_cell(x->b, y->by_category[page_stack[i]] * y->count);
    put_cell(x->b, y->peak * y->count);
    put_cell(x->b, y->saved * y->count);
    put_cell(x->b, y->recomputed * y->count);
    buf_add(x->b, "</tr>\n");
}

static void put_scope_heads(Page *x, const Picture *d)
{
    Buf *b = x->b;
    begin_table(b, "By scope, blocks that are alike in one row; saved and computed again for the "
                   "backward");
    put_head(b, "scope", false);
    put_head(b, "blocks", true);
    for (int i = NCATEGORY - 1; i >= 0; i--) {
        Buf swatch = {.a = x->a};
        if (!d->p->by_category[page_stack[i]])
            continue;
        put_swatch(&swatch, (int)page_stack[i]);
        put_head(b, swatch.text, true);
    }
    put_head(b, "at the peak", true);
    put_head(b, "saved", true);
    put_head(b, "computed again", true);
    begin_rows(b);
}

static void add_scope(ScopeBytes *sum, const ScopeBytes *y)
{
    sum->peak += y->peak * y->count;
    sum->saved += y->saved * y->count;
    sum->recomputed += y->recomputed * y->count;
    for (int c = 0; c < NCATEGORY; c++)
        sum->by_category[c] += y->by_category[c] * y->count;
}

enum { MOST_SCOPES = 60 };

/* Rows are scopes, columns categories. Scopes of less than a 10,000th of the peak share one row. */
void page_scopes(Page *x, const Picture *d)
{
    Buf *b = x->b;
    const Breakdown *s = plan_breakdown(x->a, d->p);
    ScopeBytes rest = {.count = 1}, all = {.count = 1};
    int nrow = 0;
    put_side(x, d);
    put_scope_heads(x, d);
    for (int i = 0; i < s->nrow; i++) {
        const ScopeBytes *y = &s->row[i];
        int64_t most = MAX(y->peak, MAX(y->saved, y->recomputed)) * y->count;
        add_scope(&all, y);
        if (most < d->p->space[SPACE_MAIN].peak / 10000 || nrow == MOST_SCOPES) {
            add_scope(&rest, y);
            continue;
        }
        nrow++;
        buf_add(b, "<tr><th scope=\"row\">");
        put_cut(b, scope_title(x->a, y), MOST_NAME);
        buf_printf(b, "</th><td class=\"number\">%d</td>", y->count);
        put_scope(x, d, y);
    }
    if (nrow < s->nrow) {
        buf_printf(b, "<tr class=\"more\"><th scope=\"row\">%s</th><td></td>",
                   arena_count(x->a, s->nrow - nrow, "more row"));
        put_scope(x, d, &rest);
    }
    buf_add(b, "<tr class=\"total\"><th scope=\"row\">all</th><td></td>");
    put_scope(x, d, &all);
    end_table(b);
}

void page_largest(Page *x, const Picture *d)
{
    Buf *b = x->b;
    int left = PAGE_PEAK;
    put_side(x, d);
    begin_table(b, "The largest values, first those that are not always there");
    put_head(b, "value", false);
    put_head(b, "scope", false);
    put_head(b, "category", false);
    put_head(b, "bytes", true);
    put_head(b, "calls", true);
    begin_rows(b);
    for (int i = 0; i < d->nnamed && left; i++) {
        const Storage *s = &d->p->storage[d->named[i]];
        if (s->start > d->peak_step || d->peak_step >= s->end)
            continue;
        buf_add(b, "<tr><th scope=\"row\">");
        put_cut(b, s->name, MOST_NAME);
        buf_add(b, "</th><td>");
        put_cut(b, s->scope, MOST_NAME);
        buf_add(b, "</td><td>");
        put_swatch(b, (int)s->category);
        buf_add(b, "</td>");
        put_cell(b, s->nbytes);
        if (s->persistent)
            buf_add(b, "<td class=\"number\">always</td></tr>\n");
        else
            buf_printf(b, "<td class=\"number\">%d to %d</td></tr>\n", s->start, s->end - 1);
        left--;
    }
    end_table(b);
}

/* ---- ranks ---- */

static void put_ranks(Page *x, const Plan *p)
{
    RankGroup *group = NULL;
    int count = plan_rank_groups(x->a, p, &group);
    Buf *b = x->b;
    buf_add(b, "<p class=\"note\">");
    if (p->g->mesh) {
        buf_add(b, "Rank ");
        put_grouped(b, (double)mesh_rank(p->g->mesh), 0);
        buf_add(b, " of ");
        put_grouped(b, (double)mesh_nranks(p->g->mesh), 0);
        buf_printf(b, ", mesh <code>%s</code>. ", mesh_text(x->a, p->g->mesh));
    }
    for (int i = 0; i < count; i++) {
        buf_add(b, i ? "; <code>" : "Groups: <code>");
        put_cut(b, group[i].name, MOST_NAME);
        buf_add(b, "</code> ");
        put_grouped(b, (double)group[i].ranks, 0);
        buf_printf(b, " ranks, estimated as on %s",
                   arena_count(b->a, group[i].where.nodes, "host"));
    }
    buf_add(b, count ? ".</p>\n" : "</p>\n");
}

static void put_count(Buf *b, int64_t count)
{
    buf_add(b, "<td class=\"number\">");
    put_grouped(b, (double)count, 0);
    buf_add(b, "</td>");
}

static void put_collective(Page *x, const CollectiveRow *y)
{
    Buf *b = x->b;
    buf_printf(b, "<tr><th scope=\"row\">%s</th><td>", collective_name(y->kind));
    put_cut(b, y->group, MOST_NAME);
    buf_printf(b, "</td><td>%s</td><td>%s</td><td>%s</td>", dtype_name(y->dtype),
               phase_name(y->phase), collective_role(y->role));
    put_count(b, y->count);
    put_count(b, y->calls);
    put_cell(b, (int64_t)y->nbytes);
    buf_printf(b, "<td class=\"number\">%s</td>", sec_text(x->a, y->sec));
    buf_printf(b, "<td class=\"number\">%s</td></tr>\n", sec_text(x->a, y->exposed));
}

void page_collectives(Page *x, const Picture *d)
{
    static const char *const heads[] = {"kind", "group", "dtype", "phase", "of"};
    static const char *const numbers[] = {"values", "calls", "received", "estimated", "exposed"};
    CollectiveRow *row = NULL;
    int count = plan_collectives(x->a, d->p, &row);
    put_side(x, d);
    put_ranks(x, d->p);
    begin_table(x->b, "Collectives of a step: values that go, calls, and what this rank receives");
    for (int i = 0; i < LEN(heads); i++)
        put_head(x->b, heads[i], false);
    for (int i = 0; i < LEN(numbers); i++)
        put_head(x->b, numbers[i], true);
    begin_rows(x->b);
    for (int i = 0; i < count; i++)
        put_collective(x, &row[i]);
    end_table(x->b);
}

/* ---- slices ---- */

static void put_cut_cell(Buf *b, const char *text)
{
    buf_add(b, "<td>");
    put_cut(b, text, MOST_NAME);
    buf_add(b, "</td>");
}

/* Bytes, empty where they are not known. */
static void put_known(Buf *b, bool known, int64_t nbytes)
{
    if (known)
        put_cell(b, nbytes);
    else
        buf_add(b, "<td></td>");
}

/* Prints what was asked of a candidate, and its outcome. */
static void put_slices(Page *x, const ChunkRow *row)
{
    Buf *b = x->b;
    const ChunkCandidate *c = row->c;
    bool asked = c->made.slices || c->region.slices > 1;
    put_cell(b, row->nbytes);
    put_known(b, asked && !c->why, row->nbytes_slice);
    put_count(b, c->region.slices > 1 ? c->region.slices : 0);
    put_count(b, c->made.slices);
    buf_printf(b, "<td class=\"number\">%s</td>", chunk_priced(c) ? sec_text(x->a, row->sec) : "");
    put_known(b, c->made.peak != 0, c->made.peak);
    put_cut_cell(b, c->why ? "" : c->bits ? "same" : "may differ");
    put_cut_cell(b, arena_printf(x->a, "%s: %s",
                                 c->made.slices ? "taken"
                                 : c->why       ? "no region"
                                                : "not taken",
                                 chunk_reason(c)));
}

static void put_chunk(Page *x, const ChunkRow *row)
{
    Buf *b = x->b;
    const ChunkCandidate *c = row->c;
    buf_printf(b, "<tr%s><th scope=\"row\">", c->made.slices ? " class=\"total\"" : "");
    put_cut(b, c->region.value, MOST_NAME);
    buf_add(b, "</th>");
    put_cut_cell(b, *row->scope ? arena_printf(x->a, "%s::%s", row->scope, c->op) : c->op);
    put_count(b, row->count);
    put_slices(x, row);
    put_cut_cell(b, chunk_axis(x->a, c) + strlen("axis "));
    put_count(b, c->units);
    put_count(b, c->nnode);
    put_cut_cell(b, chunk_scopes(x->a, c));
    buf_add(b, "</tr>\n");
}

void page_chunks(Page *x, const Picture *d)
{
    static const struct {
        const char *title;
        bool number;
    } heads[] = {{"value", false},      {"scope", false},     {"alike", true},
                 {"at the peak", true}, {"in slices", true},  {"asked", true},
                 {"made", true},        {"added time", true}, {"peak with it", true},
                 {"bits", false},       {"outcome", false},   {"axis", false},
                 {"units", true},       {"nodes", true},      {"region", false}};
    ChunkRow *row;
    int n = chunk_rows(x->a, d->chunk, &row);
    put_side(x, d);
    begin_table(x->b,
                "Values that hold the peak and the regions around them that run in slices, or "
                "might");
    for (int i = 0; i < LEN(heads); i++)
        put_head(x->b, heads[i].title, heads[i].number);
    begin_rows(x->b);
    for (int i = 0; i < n; i++)
        put_chunk(x, &row[i]);
    end_table(x->b);
}
