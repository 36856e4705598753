/* Tables of a page: plans beside each other, and what holds the peak. */
#include "page.h"

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

/* ---- two plans ---- */

static void put_figure(Buf *b, const Figure *f, double value, bool sign)
{
    buf_add(b, "<td class=\"number\">");
    buf_add(b, sign && value > 0 ? "+" : "");
    if (f->kind == FIGURE_BYTES) {
        put_bytes(b, (int64_t)value);
    } else {
        put_grouped(b, value, f->kind == FIGURE_GFLOP ? 2 : 0);
        buf_add(b, f->kind == FIGURE_GFLOP ? " GFLOP" : "");
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
    buf_add(
        b,
        "<table><caption>Two plans beside each other</caption>\n<thead><tr><th scope=\"col\"></th>"
        "<th scope=\"col\" class=\"number\">A</th><th scope=\"col\" class=\"number\">B</th>"
        "<th scope=\"col\" class=\"number\">B \xe2\x88\x92 A</th>"
        "<th scope=\"col\" class=\"number\">%</th></tr></thead>\n<tbody>\n");
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
    buf_add(b, "</tbody></table>\n");
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
    buf_add(
        b,
        "<table><caption>By category</caption>\n<thead><tr><th scope=\"col\">category</th>"
        "<th scope=\"col\" class=\"number\">at the peak</th><th scope=\"col\"></th></tr></thead>\n"
        "<tbody>\n");
    for (int i = NCATEGORY - 1; i >= 0; i--) {
        int c = page_stack[i];
        if (!d->p->by_category[c])
            continue;
        buf_add(b, "<tr><th scope=\"row\">");
        put_swatch(b, c);
        buf_add(b, "</th>");
        put_cell(b, d->p->by_category[c]);
        put_bar(b, c, d->p->by_category[c], d->p->bound);
        buf_add(b, "</tr>\n");
    }
    buf_add(b, "<tr class=\"total\"><th scope=\"row\">all</th>");
    put_cell(b, d->p->bound);
    buf_add(b, "<td></td></tr>\n</tbody></table>\n");
}

/* Rows are scopes, alike blocks in one; columns categories. What is less than a 10,000th of the
 * peak in all of the row is summed up in one. */
typedef struct Rest {
    int nrow;
    int64_t by_category[NCATEGORY], peak, saved, recomputed;
} Rest;

static void put_scope_cells(Page *x, const Picture *d, const int64_t *by_category, int64_t peak,
                            int64_t saved, int64_t recomputed, int count)
{
    for (int i = NCATEGORY - 1; i >= 0; i--)
        if (d->p->by_category[page_stack[i]])
            put_cell(x->b, by_category[page_stack[i]] * count);
    put_cell(x->b, peak * count);
    put_cell(x->b, saved * count);
    put_cell(x->b, recomputed * count);
    buf_add(x->b, "</tr>\n");
}

static void put_scope_heads(Page *x, const Picture *d)
{
    Buf *b = x->b;
    buf_add(
        b,
        "<div class=\"wide\"><table><caption>By scope, blocks that are alike in one row; saved and "
        "computed again: for the backward</caption>\n<thead><tr><th scope=\"col\">scope</th>"
        "<th scope=\"col\" class=\"number\">blocks</th>");
    for (int i = NCATEGORY - 1; i >= 0; i--)
        if (d->p->by_category[page_stack[i]]) {
            buf_add(b, "<th scope=\"col\" class=\"number\">");
            put_swatch(b, (int)page_stack[i]);
            buf_add(b, "</th>");
        }
    buf_add(
        b,
        "<th scope=\"col\" class=\"number\">at the peak</th><th scope=\"col\" class=\"number\">"
        "saved</th><th scope=\"col\" class=\"number\">computed again</th></tr></thead>\n<tbody>\n");
}

static void add_rest(Rest *rest, const ScopeBytes *y)
{
    rest->nrow++;
    rest->peak += y->peak * y->count;
    rest->saved += y->saved * y->count;
    rest->recomputed += y->recomputed * y->count;
    for (int c = 0; c < NCATEGORY; c++)
        rest->by_category[c] += y->by_category[c] * y->count;
}

enum { MOST_SCOPES = 60 };

void page_scopes(Page *x, const Picture *d)
{
    Buf *b = x->b;
    const Breakdown *s = plan_breakdown(x->a, d->p);
    Rest rest = {0};
    int left = MOST_SCOPES;
    put_side(x, d);
    put_scope_heads(x, d);
    for (int i = 0; i < s->nrow; i++) {
        const ScopeBytes *y = &s->row[i];
        if (MAX(y->peak, MAX(y->saved, y->recomputed)) * y->count < d->p->peak / 10000 || !left) {
            add_rest(&rest, y);
            continue;
        }
        left--;
        buf_add(b, "<tr><th scope=\"row\">");
        put_cut(b, scope_title(x->a, y), 200);
        buf_printf(b, "</th><td class=\"number\">%d</td>", y->count);
        put_scope_cells(x, d, y->by_category, y->peak, y->saved, y->recomputed, y->count);
    }
    if (rest.nrow) {
        buf_printf(b, "<tr class=\"more\"><th scope=\"row\">%d more rows</th><td></td>", rest.nrow);
        put_scope_cells(x, d, rest.by_category, rest.peak, rest.saved, rest.recomputed, 1);
    }
    buf_add(b, "<tr class=\"total\"><th scope=\"row\">all</th><td></td>");
    put_scope_cells(x, d, d->p->by_category, d->p->bound, s->saved, s->recomputed, 1);
    buf_add(b, "</tbody></table></div>\n");
}

enum { LARGEST = 20 };

void page_largest(Page *x, const Picture *d)
{
    Buf *b = x->b;
    int left = LARGEST;
    put_side(x, d);
    buf_add(
        b,
        "<table><caption>The largest values, first those that are not always "
        "there</caption>\n<thead>"
        "<tr><th scope=\"col\">value</th><th scope=\"col\">scope</th><th "
        "scope=\"col\">category</th>"
        "<th scope=\"col\" class=\"number\">bytes</th><th scope=\"col\" class=\"number\">calls</th>"
        "</tr></thead>\n<tbody>\n");
    for (int i = 0; i < d->nnamed && left; i++) {
        const Storage *s = &d->p->storage[d->named[i]];
        if (s->start > d->peak_step || d->peak_step >= s->end)
            continue;
        buf_add(b, "<tr><th scope=\"row\">");
        put_cut(b, s->name, 200);
        buf_add(b, "</th><td>");
        put_cut(b, s->scope, 200);
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
    buf_add(b, "</tbody></table>\n");
}
