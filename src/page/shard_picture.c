/* Draws the choice of --shard auto: a box for all nodes, or parameters, that are cut alike, in the
 * colour of the form of their first result, and an arrow for each value that a reader needs in
 * another form, with its bytes and seconds beneath the reader's box. Parameters stand in the first
 * column, forward and loss in the second, backward and optimizer in the third, each in the order of
 * the graph. Forms that take most of the step have colours of their own, the others share one. */
#include "page.h"

#include <string.h>

enum {
    BOX = 330,
    BETWEEN = 120,
    HIGH = 22,
    LINE = 12,
    SPACE = 8,
    COLUMNS = 3,
    COLOURS = 7,
    HEAD = 26
};

/* A value that is brought to another form. */
typedef struct Arrow {
    int from, to; /* ShardForms */
    const ShardReading *of;
    bool shared; /* made once, for readers that follow */
    int line;    /* which of the reader's */
} Arrow;

typedef struct ShardPicture {
    Page *page;
    const ShardReport *r;
    Arrow *arrow;
    int narrow, caparrow;
    int *lines;  /* by form: arrows that end there */
    double *top; /* by form */
    const char *colour[COLOURS];
    int ncolour;
    double bottom;
} ShardPicture;

static int column_of(const ShardForm *f)
{
    return f->port ? 0 : f->phase < BACKWARD ? 1 : 2;
}

static double left_of(const ShardForm *f)
{
    return column_of(f) * (BOX + BETWEEN) + 20;
}

/* ---- what is drawn ---- */

static void add_arrow(ShardPicture *s, int from, int to, const ShardReading *of, bool shared)
{
    Arrow y = {from, to, of, shared, s->lines[to]++};
    PUSH(s->page->a, s->arrow, s->narrow, s->caparrow, y);
}

/* A form that is made once goes to the first of its readers. */
static void find_arrows(ShardPicture *s)
{
    for (int i = 0; i < s->r->nform; i++) {
        const ShardForm *f = &s->r->form[i];
        const ShardReading *once = NULL;
        for (int k = 0; k < f->nreading; k++) {
            const ShardReading *y = &f->reading[k];
            if (!*y->reader) {
                once = y;
                continue;
            }
            if (y->node < 0)
                continue;
            if (once && !strcmp(once->form, y->from))
                add_arrow(s, i, y->node, once, true);
            once = NULL;
            if (*y->steps)
                add_arrow(s, i, y->node, y, false);
        }
    }
}

/* Gives colours to the forms whose nodes take longest. */
static void find_colours(ShardPicture *s)
{
    const ShardReport *r = s->r;
    while (s->ncolour < COLOURS) {
        const char *best = NULL;
        double most = -1;
        for (int i = 0; i < r->nform; i++) {
            double sec = 0;
            bool known = !strcmp(r->form[i].form, "whole");
            for (int c = 0; c < s->ncolour; c++)
                known |= !strcmp(r->form[i].form, s->colour[c]);
            for (int k = 0; k < r->nform && !known; k++)
                if (!strcmp(r->form[k].form, r->form[i].form))
                    sec += r->form[k].sec * r->form[k].count + 1e-12;
            if (!known && sec > most) {
                most = sec;
                best = r->form[i].form;
            }
        }
        if (!best)
            return;
        s->colour[s->ncolour++] = best;
    }
}

/* The number of a form's colour; COLOURS: the one of all others; -1: whole. */
static int colour_of(const ShardPicture *s, const char *form)
{
    for (int c = 0; c < s->ncolour; c++)
        if (!strcmp(form, s->colour[c]))
            return c;
    return strcmp(form, "whole") != 0 ? COLOURS : -1;
}

static void place(ShardPicture *s)
{
    double next[COLUMNS] = {HEAD, HEAD, HEAD};
    for (int i = 0; i < s->r->nform; i++) {
        double *y = &next[column_of(&s->r->form[i])];
        s->top[i] = *y;
        *y += HIGH + s->lines[i] * LINE + SPACE;
        s->bottom = MAX(s->bottom, *y);
    }
}

/* ---- drawing ---- */

static void put_paint(Buf *b, int colour)
{
    if (colour < 0)
        buf_add(b, "var(--rule)");
    else
        buf_printf(b, "var(--c%d)", colour);
}

static void put_box(ShardPicture *s, int i)
{
    const ShardForm *f = &s->r->form[i];
    Buf *b = s->page->b;
    int colour = colour_of(s, f->form);
    const char *name = arena_printf(b->a, "%s%s%s", f->node, *f->scope ? " @" : "", f->scope);
    buf_printf(b, "<g><title>");
    put_escaped(b, arena_printf(b->a, "%s: %s, %d of them%s", name, f->form, f->count,
                                f->uncut ? ", which no axis can cut" : ""));
    buf_printf(b,
               "</title><rect x=\"%g\" y=\"%g\" width=\"%d\" height=\"%d\" rx=\"4\" "
               "fill-opacity=\"0.3\" style=\"fill:",
               left_of(f), s->top[i], BOX, HIGH);
    put_paint(b, colour);
    buf_add(b, ";stroke:");
    put_paint(b, colour);
    buf_printf(b, "\"/><text x=\"%g\" y=\"%g\">", left_of(f) + 6, s->top[i] + 15);
    put_cut(b, name, f->count > 1 ? 36 : 40);
    buf_printf(b, "</text><text class=\"tick\" x=\"%g\" y=\"%g\" text-anchor=\"end\">",
               left_of(f) + BOX - 6, s->top[i] + 15);
    if (f->count > 1)
        buf_printf(b, "&#215; %d", f->count);
    buf_add(b, "</text></g>\n");
}

/* From the maker's side that faces the reader, or around on the left within a column. */
static void put_arrow(ShardPicture *s, const Arrow *y)
{
    const ShardForm *from = &s->r->form[y->from], *to = &s->r->form[y->to];
    Buf *b = s->page->b;
    int order = column_of(to) - column_of(from);
    double x0 = left_of(from) + (order > 0 ? BOX : 0), x1 = left_of(to) + (order < 0 ? BOX : 0);
    double y0 = s->top[y->from] + HIGH / 2, y1 = s->top[y->to] + HIGH / 2 + 2 * y->line - 2;
    double bend = order ? (order > 0 ? 60 : -60) : -(18 + (y->from * 7) % 30);
    double back = order ? -bend : bend;
    buf_printf(
        b, "<path class=\"reshard\" marker-end=\"url(#head-%c)\" d=\"M%g %gC%g %g %g %g %g %g\"/>",
        s->page->pic[0].id, x0, y0, x0 + bend, y0, x1 + back, y1, x1, y1);
    buf_printf(b, "<text class=\"tick small\" x=\"%g\" y=\"%g\">", left_of(to) + 6,
               s->top[y->to] + HIGH + LINE * (y->line + 1) - 2);
    put_bytes(b, (int64_t)y->of->nbytes);
    buf_printf(b, ", %s%s: ", sec_text(b->a, y->of->sec), y->shared ? " once" : "");
    put_cut(b, arena_printf(b->a, "%s of %s", y->of->steps, from->node), 40);
    buf_add(b, "</text>\n");
}

static void put_legend(const ShardPicture *s)
{
    Buf *b = s->page->b;
    buf_add(b, "<ul class=\"legend\">");
    for (int c = -1; c <= s->ncolour; c++) {
        if (c == s->ncolour && s->ncolour < COLOURS)
            break;
        buf_add(b, "<li><svg viewBox=\"0 0 13 13\"><rect width=\"13\" height=\"13\" rx=\"3\" "
                   "style=\"fill:");
        put_paint(b, c);
        buf_add(b, "\"/></svg>");
        put_escaped(b, c < 0            ? "whole on all ranks"
                       : c < s->ncolour ? s->colour[c]
                                        : "other forms");
        buf_add(b, "</li>");
    }
    buf_add(b, "</ul>\n");
}

static void put_picture(ShardPicture *s)
{
    static const char *const title[] = {"inputs and outputs", "forward, loss",
                                        "backward, optimizer"};
    Buf *b = s->page->b;
    int width = COLUMNS * BOX + (COLUMNS - 1) * BETWEEN + 40;
    buf_printf(b,
               "<figure class=\"wide\"><svg class=\"shards\" viewBox=\"0 0 %d %g\" role=\"img\" "
               "aria-label=\"forms of values and what brings them to others\"><defs><marker "
               "id=\"head-%c\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"6\" "
               "markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\"/></marker></defs>\n",
               width, s->bottom + SPACE, s->page->pic[0].id);
    for (int c = 0; c < COLUMNS; c++)
        buf_printf(b, "<text class=\"head\" x=\"%d\" y=\"16\">%s</text>\n",
                   c * (BOX + BETWEEN) + 20, title[c]);
    for (int i = 0; i < s->r->nform; i++)
        put_box(s, i);
    for (int i = 0; i < s->narrow; i++)
        put_arrow(s, &s->arrow[i]);
    buf_add(b, "</svg></figure>\n");
}

void page_sharding(Page *x, const Picture *d)
{
    const ShardReport *r = d->sharded;
    ShardPicture s = {
        .page = x, .r = r, .lines = NEWN(x->a, int, r->nform), .top = NEWN(x->a, double, r->nform)};
    Buf *b = x->b;
    put_side(x, d);
    find_arrows(&s);
    find_colours(&s);
    place(&s);
    buf_printf(b,
               "<p>Forms chosen for the shortest step: %s without overlap, within %.3f %% of the "
               "least. Each box is what is cut alike, in the colour of its first result&#8217;s "
               "form. An arrow brings a value to the form that a reader needs.</p>\n",
               sec_text(b->a, r->sec), 100 * r->gap);
    put_legend(&s);
    put_picture(&s);
}
