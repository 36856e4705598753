/* Tables of a page: two plans compared, and the bytes alive at the peak by category and scope. */
#include "page.h"

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

/* A head with the unit of its column: "saved, MiB". */
static void put_unit_head(Buf *b, const char *title, const PageUnit *u)
{
    put_head(b, arena_printf(b->a, "%s%s%s", title, *title ? ", " : "", u->name), true);
}

/* ---- two plans ---- */

static void put_figure(Buf *b, const PageUnit *u, double value, bool sign)
{
    buf_add(b, "<td class=\"number\">");
    buf_add(b, sign && value > 0 ? "+" : "");
    put_in(b, value, u);
    buf_add(b, "</td>");
}

static void put_figures(Buf *b, const Figure *f, const PageUnit *u)
{
    double x = f->value[0], y = f->value[1];
    buf_printf(b, "<tr><th scope=\"row\">%s</th>", f->title);
    put_figure(b, u, x, false);
    put_figure(b, u, y, false);
    put_figure(b, u, y - x, true);
    buf_add(b, "<td class=\"number\">");
    if (x != 0 && y != x) {
        buf_add(b, y > x ? "+" : "");
        put_grouped(b, 100 * (y - x) / x, 1);
    }
    buf_add(b, "</td></tr>\n");
}

/* The figures of one unit, if there are any. */
static void put_comparison(Page *x, const Figure *f, int n, FigureUnit unit, const char *caption,
                           const PageUnit *u)
{
    static const char *const sides[] = {"A", "B", "B \xe2\x88\x92 A"};
    Buf *b = x->b;
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= f[i].unit == unit;
    if (!any)
        return;
    begin_table(b, caption);
    put_head(b, "", false);
    for (int i = 0; i < LEN(sides); i++)
        if (*u->name)
            put_unit_head(b, sides[i], u);
        else
            put_head(b, sides[i], true);
    put_head(b, "%", true);
    begin_rows(b);
    for (int i = 0; i < n; i++)
        if (f[i].unit == unit)
            put_figures(b, &f[i], u);
    end_table(b);
}

void page_comparison(Page *x)
{
    static const PageUnit gflop = {"GFLOP", 1, 2}, count = {"", 1, 0};
    const Plan *p[] = {x->pic[0].p, x->pic[1].p};
    Figure *f;
    int n = plan_figures(x->a, p, &f);
    for (int i = 0; i < 2; i++)
        put_side(x, &x->pic[i]);
    put_comparison(x, f, n, UNIT_BYTES, "Two plans beside each other: memory", &x->bytes);
    put_comparison(x, f, n, UNIT_SEC, "Estimated time", &x->sec);
    put_comparison(x, f, n, UNIT_GFLOP, "Operations", &gflop);
    put_comparison(x, f, n, UNIT_COUNT, "Counts", &count);
}

/* ---- what holds the peak ---- */

static void put_bar(Buf *b, int category, int64_t part, int64_t whole)
{
    buf_printf(b,
               "<td class=\"bar\"><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" "
               "aria-hidden=\"true\"><rect width=\"%.3f\" height=\"10\" class=\"c%d\"/></svg></td>",
               whole ? 100.0 * (double)part / (double)whole : 0, category);
}

static void put_cell(Page *x, int64_t nbytes)
{
    buf_add(x->b, "<td class=\"number\">");
    put_in(x->b, (double)nbytes, &x->bytes);
    buf_add(x->b, "</td>");
}

static void put_sec(Page *x, double sec)
{
    buf_add(x->b, "<td class=\"number\">");
    put_in(x->b, sec, &x->sec);
    buf_add(x->b, "</td>");
}

void page_categories(Page *x, const Picture *d)
{
    Buf *b = x->b;
    put_side(x, d);
    begin_table(b, "By category");
    put_head(b, "category", false);
    put_unit_head(b, "at the peak", &x->bytes);
    put_head(b, "", false);
    begin_rows(b);
    for (int i = NCATEGORY - 1; i >= 0; i--) {
        int c = page_stack[i];
        if (!d->p->by_category[c])
            continue;
        buf_add(b, "<tr><th scope=\"row\">");
        put_swatch(b, c);
        buf_add(b, "</th>");
        put_cell(x, d->p->by_category[c]);
        put_bar(b, c, d->p->by_category[c], d->p->space[SPACE_MAIN].bound);
        buf_add(b, "</tr>\n");
    }
    buf_add(b, "<tr class=\"total\"><th scope=\"row\">all</th>");
    put_cell(x, d->p->space[SPACE_MAIN].bound);
    buf_add(b, "<td></td></tr>\n");
    end_table(b);
}

/* The cells of a row: what all of its blocks have. */
static void put_scope(Page *x, const Picture *d, const ScopeBytes *y)
{
    for (int i = NCATEGORY - 1; i >= 0; i--)
        if (d->p->by_category[page_stack[i]])
            put_cell(x, y->by_category[page_stack[i]] * y->count);
    put_cell(x, y->peak * y->count);
    put_cell(x, y->saved * y->count);
    put_cell(x, y->recomputed * y->count);
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
        put_unit_head(b, swatch.text, &x->bytes);
    }
    put_unit_head(b, "at the peak", &x->bytes);
    put_unit_head(b, "saved", &x->bytes);
    put_unit_head(b, "computed again", &x->bytes);
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
    put_unit_head(b, "", &x->bytes);
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
        put_cell(x, s->nbytes);
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
    put_cell(x, (int64_t)y->nbytes);
    put_sec(x, y->sec);
    put_sec(x, y->exposed);
    buf_add(b, "</tr>\n");
}

void page_collectives(Page *x, const Picture *d)
{
    static const char *const heads[] = {"kind", "group", "dtype", "phase", "of"};
    static const char *const numbers[] = {"values", "calls"};
    CollectiveRow *row = NULL;
    int count = plan_collectives(x->a, d->p, &row);
    put_side(x, d);
    put_ranks(x, d->p);
    begin_table(x->b, "Collectives of a step: values that go, calls, and what this rank receives");
    for (int i = 0; i < LEN(heads); i++)
        put_head(x->b, heads[i], false);
    for (int i = 0; i < LEN(numbers); i++)
        put_head(x->b, numbers[i], true);
    put_unit_head(x->b, "received", &x->bytes);
    put_unit_head(x->b, "estimated", &x->sec);
    put_unit_head(x->b, "exposed", &x->sec);
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
static void put_known(Page *x, bool known, int64_t nbytes)
{
    if (known)
        put_cell(x, nbytes);
    else
        buf_add(x->b, "<td></td>");
}

/* Prints what was asked of a candidate, and its outcome. */
static void put_slices(Page *x, const ChunkRow *row)
{
    Buf *b = x->b;
    const ChunkCandidate *c = row->c;
    bool asked = c->made.slices || c->region.slices > 1;
    put_cell(x, row->nbytes);
    put_known(x, asked && !c->why, row->nbytes_slice);
    put_count(b, c->region.slices > 1 ? c->region.slices : 0);
    put_count(b, c->made.slices);
    if (chunk_priced(c))
        put_sec(x, row->sec);
    else
        buf_add(b, "<td></td>");
    put_known(x, c->made.peak != 0, c->made.peak);
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
    const PageUnit *bytes = &x->bytes, *sec = &x->sec;
    const struct {
        const char *title;
        bool number;
        const PageUnit *unit; /* NULL: none */
    } heads[] = {
        {"value", false, NULL},       {"scope", false, NULL},     {"alike", true, NULL},
        {"at the peak", true, bytes}, {"in slices", true, bytes}, {"asked", true, NULL},
        {"made", true, NULL},         {"added time", true, sec},  {"peak with it", true, bytes},
        {"bits", false, NULL},        {"outcome", false, NULL},   {"axis", false, NULL},
        {"units", true, NULL},        {"nodes", true, NULL},      {"region", false, NULL}};
    ChunkRow *row;
    int n = chunk_rows(x->a, d->chunk, &row);
    put_side(x, d);
    begin_table(x->b,
                "Values that hold the peak and the regions around them that run in slices, or "
                "might");
    for (int i = 0; i < LEN(heads); i++)
        if (heads[i].unit)
            put_unit_head(x->b, heads[i].title, heads[i].unit);
        else
            put_head(x->b, heads[i].title, heads[i].number);
    begin_rows(x->b);
    for (int i = 0; i < n; i++)
        put_chunk(x, &row[i]);
    end_table(x->b);
}
