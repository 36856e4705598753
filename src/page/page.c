/* Writes a plan, or two side by side, as one self-contained HTML page: no network, no fonts; the
 * script only tells what is under the pointer. chart.c draws the pictures from what data.c selects;
 * page.css and page.js are compiled into the program. */
#include "page.h"

#include <math.h>
#include <string.h>

static const char *const style[] = {
#include "page.css.inc"
    NULL};

static const char *const script[] = {
#include "page.js.inc"
    NULL};

static void put_lines(Buf *b, const char *const *line)
{
    for (; *line; line++)
        buf_add(b, *line);
}

/* ---- what the page shows, in a sentence ---- */

/* The larger of two plans' figures beside the other's, "30.1 % less memory (1 MiB, not 2 MiB)". */
static void put_less(Buf *b, double x, double y, const char *more, const char *less,
                     const char *same)
{
    if (x == y || x <= 0)
        buf_add(b, same);
    else
        buf_printf(b, "%.1f %% %s", 100 * fabs(y / x - 1), y > x ? more : less);
}

static void put_both(Page *x)
{
    Buf *b = x->b;
    const Plan *p = x->pic[0].p, *q = x->pic[1].p;
    buf_add(b, "B needs ");
    put_less(b, (double)p->space[SPACE_MAIN].peak, (double)q->space[SPACE_MAIN].peak,
             "more memory than A", "less memory than A", "the same memory as A");
    buf_add(b, " at the peak, ");
    put_bytes(b, q->space[SPACE_MAIN].peak);
    buf_add(b, ", and takes ");
    put_less(b, p->est.step, q->est.step, "longer", "less time", "the same time");
    buf_printf(b, ", an estimated %s a step.", sec_text(x->a, q->est.step));
}

static int largest_category(const Plan *p)
{
    int most = 0;
    for (int c = 1; c < NCATEGORY; c++)
        most = p->by_category[c] > p->by_category[most] ? c : most;
    return most;
}

static int largest_class(const Estimate *e)
{
    int most = 0;
    for (int c = 1; c < NCLASS; c++)
        most = e->by_class[c] > e->by_class[most] ? c : most;
    return most;
}

/* The largest value at the peak that is not always there. */
static const Storage *largest_passing(const Picture *d)
{
    for (int i = 0; i < d->nnamed; i++) {
        const Storage *s = &d->p->storage[d->named[i]];
        if (!s->persistent && s->start <= d->peak_step && d->peak_step < s->end)
            return s;
    }
    return NULL;
}

static void put_one(Page *x, const Picture *d)
{
    Buf *b = x->b;
    const Plan *p = d->p;
    const int c = largest_category(p), k = largest_class(&p->est);
    const int64_t bound = MAX(p->space[SPACE_MAIN].bound, 1);
    const Storage *s = largest_passing(d);
    double all = 0;
    for (int i = 0; i < NCLASS; i++)
        all += p->est.by_class[i];
    buf_add(b, "The step needs ");
    put_bytes(b, p->space[SPACE_MAIN].peak);
    buf_printf(b, ", at its peak %.0f %% of it for %s",
               100 * (double)p->by_category[c] / (double)bound, category_name((Category)c));
    if (s) {
        buf_add(b, ", and the largest value that comes and goes is <code>");
        put_cut(b, s->name, 60);
        buf_add(b, "</code> with ");
        put_bytes(b, s->nbytes);
    }
    if (all > 0)
        buf_printf(b, "; it takes an estimated %s, %.0f %% of it in ops of class %s",
                   sec_text(x->a, p->est.step), 100 * p->est.by_class[k] / all,
                   class_name((OpClass)k));
    buf_add(b, ".");
}

static void put_insight(Page *x)
{
    buf_add(x->b, "<p class=\"insight\">");
    if (x->npic > 1)
        put_both(x);
    else
        put_one(x, &x->pic[0]);
    buf_add(x->b, "</p>\n");
}

static void put_head(Page *x, const char *title, const char *command)
{
    Buf *b = x->b;
    buf_add(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
               "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
               "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
               "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
               "<meta name=\"generator\" content=\"tenon " TN_VERSION "\">\n<title>");
    put_escaped(b, title);
    buf_add(b, ": memory of a step</title>\n<style>\n");
    put_lines(b, style);
    buf_add(b, "</style>\n</head>\n<body>\n");
    if (x->zoom.lo > 0)
        buf_add(b, "<input type=\"checkbox\" id=\"zoom\">\n");
    buf_add(b, "<header><h1>Memory of a step: ");
    put_escaped(b, title);
    buf_add(b, "</h1>\n");
    put_insight(x);
    buf_add(b, "<p><code>");
    put_escaped(b, command);
    buf_add(b, "</code></p></header>\n<main>\n");
}

/* ---- numbers ---- */

static void begin_tile(Buf *b, const char *what)
{
    buf_printf(b, "<div><dt>%s</dt><dd>", what);
}

static void end_tile(Buf *b, const char *more)
{
    buf_printf(b, "<small>%s</small></dd></div>\n", more);
}

static void put_tile(Buf *b, const char *what, int64_t nbytes, const char *more)
{
    begin_tile(b, what);
    put_bytes(b, nbytes);
    end_tile(b, more);
}

static void put_host_tile(Page *x, const PlanSpace *host)
{
    Buf more = {.a = x->a};
    buf_add(&more, "not in the pictures");
    if (host->persistent) {
        buf_add(&more, "; optimizer state ");
        put_bytes(&more, host->persistent);
    }
    put_tile(x->b, "host's memory", host->peak, more.text);
}

static void put_tiles(Page *x, const Picture *d)
{
    Buf *b = x->b, more = {.a = x->a};
    const Plan *p = d->p;
    const Breakdown *s = plan_breakdown(x->a, p);
    buf_add(b, "<dl class=\"tiles\">\n");
    begin_tile(b, "estimated step");
    buf_add(b, sec_text(x->a, p->est.step));
    end_tile(b, arena_printf(x->a, "%s", machine_title(x->a, p->machine)));
    if (p->est.communicates) {
        begin_tile(b, "of it collectives");
        buf_add(b, sec_text(x->a, p->est.by_class[CLASS_COLLECTIVE]));
        end_tile(
            b, arena_printf(x->a, "%s of it behind no computing", sec_text(x->a, p->est.exposed)));
    }
    put_tile(b, "planned peak", p->space[SPACE_MAIN].peak, "the arena, all of the step");
    put_tile(b, "lower bound", p->space[SPACE_MAIN].bound, "the most bytes alive at once");
    put_tile(b, "waste", p->space[SPACE_MAIN].peak - p->space[SPACE_MAIN].bound,
             "their difference");
    if (!device_is_host(p->device))
        put_host_tile(x, &p->space[SPACE_HOST]);
    put_tile(b, "library reserve", p->reserve, "beside the peak");
    put_tile(b, "saved for the backward", s->saved, arena_count(x->a, s->nsaved, "value"));
    put_grouped(&more, s->added_nflop / 1e9, 1);
    buf_printf(&more, " GFLOP, %.1f %% of the step, %s", 100 * s->added_nflop / MAX(s->nflop, 1),
               sec_text(x->a, p->est.added));
    put_tile(b, "computed again", s->recomputed, more.text);
    begin_tile(b, "calls");
    put_grouped(b, p->nstep, 0);
    end_tile(b, arena_printf(x->a, "nodes: %d, copies: %d", graph_count(p->g), p->ncopies));
    begin_tile(b, "buffers");
    put_grouped(b, p->nstorage, 0);
    end_tile(b, "each with an address");
    buf_add(b, "</dl>\n");
}

/* ---- pictures ---- */

static bool in_use(const Page *x, Category c)
{
    for (int i = 0; i < x->npic; i++)
        for (int k = 0; k < x->pic[i].ncolumn; k++)
            if (x->pic[i].column[k].live[c])
                return true;
    return false;
}

static void put_legend(Page *x)
{
    buf_add(x->b, "<ul class=\"legend\">\n");
    for (int i = NCATEGORY - 1; i >= 0; i--)
        if (in_use(x, page_stack[i])) {
            buf_add(x->b, "<li>");
            put_swatch(x->b, page_stack[i]);
            buf_add(x->b, "</li>\n");
        }
    buf_add(x->b, "</ul>\n");
}

static void put_peak_step(Page *x, const Picture *d)
{
    Buf *b = x->b;
    const Step *s = d->peak_step < d->p->nstep ? &d->p->step[d->peak_step] : NULL;
    put_bytes(b, d->p->space[SPACE_MAIN].bound);
    buf_add(b, " are alive at call ");
    put_grouped(b, d->peak_step, 0);
    if (s && s->node) {
        buf_add(b, ", <code>");
        put_escaped(b, step_title(x->a, s));
        if (*s->node->scope) {
            buf_add(b, "</code> in <code>");
            put_escaped(b, s->node->scope);
        }
        buf_printf(b, "</code> (%s)", phase_name(s->node->phase));
    }
    buf_add(b, ".");
}

static void put_live(Page *x, const Picture *d)
{
    put_side(x, d);
    buf_add(x->b, "<figure><div class=\"wide\">\n");
    page_live(x, d);
    buf_add(x->b, "</div><figcaption class=\"note\">");
    put_peak_step(x, d);
    if (d->ncolumn < d->nstep) {
        buf_add(x->b, " Thinned out: ");
        put_grouped(x->b, d->nstep, 0);
        buf_printf(
            x->b,
            " calls are drawn as %d columns, each of which shows the call with the most bytes "
            "of those it stands for, so that the peak is exact.",
            d->ncolumn);
    }
    buf_add(x->b, "</figcaption></figure>\n");
}

static void put_arena(Page *x, const Picture *d)
{
    Buf *b = x->b;
    put_side(x, d);
    buf_add(b, "<figure><div class=\"wide\">\n");
    page_arena(x, d);
    buf_add(b, "</div><figcaption class=\"note\">");
    put_grouped(b, d->nrect + d->nsmall, 0);
    buf_add(b, " buffers");
    if (d->nsmall) {
        buf_add(b, ". Thinned out: ");
        put_grouped(b, d->nrect, 0);
        buf_add(b, " of the largest are drawn one by one, the other ");
        put_grouped(b, d->nsmall, 0);
        buf_add(
            b, " as cells of a grid that they fill by half or more, in the colour of what has most "
               "of the cell; the peak is exact");
    }
    buf_add(b, ".</figcaption></figure>\n");
}

/* put(x, picture) of each plan, side by side. */
static void put_each(Page *x, void (*put)(Page *x, const Picture *d))
{
    if (x->npic > 1)
        buf_add(x->b, "<div class=\"pair\">\n");
    for (int i = 0; i < x->npic; i++) {
        buf_add(x->b, x->npic > 1 ? "<div>\n" : "");
        put(x, &x->pic[i]);
        buf_add(x->b, x->npic > 1 ? "</div>\n" : "");
    }
    if (x->npic > 1)
        buf_add(x->b, "</div>\n");
}

static void put_pictures(Page *x)
{
    Buf *b = x->b;
    buf_add(
        b, "<section><h2>Bytes alive over the step</h2>\n<p>Each call of the step, in the order in "
           "which they run, and what is in memory then. Point at it, or focus it and use the arrow "
           "keys (P: the peak), to see the largest values.</p>\n");
    put_legend(x);
    if (x->zoom.lo > 0)
        buf_add(b, "<label class=\"switch\" for=\"zoom\">zoom in on what comes and goes</label>\n");
    put_each(x, put_live);
    buf_add(
        b, "</section>\n<section><h2>The arena: address against step</h2>\n<p>Each buffer is a "
           "rectangle: as wide as its life, as high as its bytes, at its address. Point at one, or "
           "focus the map and use the arrow keys, to see what it is.</p>\n");
    put_legend(x);
    put_each(x, put_arena);
    buf_add(b, "</section>\n");
}

static bool has_ranks(const Page *x)
{
    for (int i = 0; i < x->npic; i++)
        if (x->pic[i].p->g->mesh || x->pic[i].p->est.communicates)
            return true;
    return false;
}

/* Whether there is more than one queue. */
static bool has_queues(const Page *x)
{
    for (int i = 0; i < x->npic; i++)
        if (x->pic[i].p->est.communicates || !plan_one_queue(x->pic[i].p))
            return true;
    return false;
}

static void put_queues(Page *x)
{
    bool sends = false, stands = false;
    if (!has_queues(x))
        return;
    for (int i = 0; i < x->npic; i++) {
        sends |= x->pic[i].p->est.communicates;
        stands |= x->pic[i].p->est.exposed > 0;
    }
    buf_add(x->b, "<section><h2>Queues over time</h2>\n<p>The simulated step: what computes, what "
                  "copies, what ranks send, and beneath them the bytes alive.</p>\n"
                  "<ul class=\"legend\"><li class=\"of-busy\">computing, copies</li>");
    buf_add(x->b, sends ? "<li class=\"of-sending\">collectives</li>" : "");
    buf_add(x->b, stands ? "<li class=\"of-exposed\">exposed: computing stands still</li>" : "");
    buf_add(x->b, "</ul>\n");
    put_each(x, page_queues);
    buf_add(x->b, "</section>\n");
}

static bool has_chunks(const Page *x)
{
    for (int i = 0; i < x->npic; i++)
        if (x->pic[i].chunk->ncandidate)
            return true;
    return false;
}

static bool has_sharding(const Page *x)
{
    for (int i = 0; i < x->npic; i++)
        if (x->pic[i].sharded->solved)
            return true;
    return false;
}

static void put_tables(Page *x)
{
    if (has_chunks(x)) {
        buf_add(x->b, "<section><h2>Slices</h2>\n");
        for (int i = 0; i < x->npic; i++)
            page_chunks(x, &x->pic[i]);
        buf_add(x->b, "</section>\n");
    }
    if (has_ranks(x)) {
        buf_add(x->b, "<section><h2>Ranks</h2>\n");
        put_each(x, page_collectives);
        buf_add(x->b, "</section>\n");
    }
    if (has_sharding(x)) {
        buf_add(x->b, "<section><h2>Sharding</h2>\n");
        for (int i = 0; i < x->npic; i++)
            if (x->pic[i].sharded->solved)
                page_sharding(x, &x->pic[i]);
        buf_add(x->b, "</section>\n");
    }
    buf_add(x->b, "<section><h2>What holds the peak</h2>\n");
    put_each(x, page_categories);
    for (int i = 0; i < x->npic; i++)
        page_scopes(x, &x->pic[i]);
    put_each(x, page_largest);
    buf_add(x->b, "</section>\n");
}

/* ---- the page ---- */

static void put_foot(Page *x)
{
    Buf *b = x->b;
    buf_add(b, "</main>\n<footer>Made by tenon " TN_VERSION
               ". MiB: 1,048,576 bytes. A loop's body is drawn "
               "once, its memory is the same in each iteration.</footer>\n"
               "<script type=\"application/json\" id=\"names\">[");
    for (int c = 0; c < NCATEGORY; c++)
        buf_printf(b, "%s\"%s\"", c ? "," : "", category_name((Category)c));
    buf_add(b, "]</script>\n");
    for (int i = 0; i < x->npic; i++)
        page_data(x, &x->pic[i]);
    buf_add(b, "<script>\n");
    put_lines(b, script);
    buf_add(b, "</script>\n</body>\n</html>\n");
}

enum { MOST_COORDINATE = 1 << 20 };

/* Both plans have the same scales. Zooming in helps where much of the memory is always alive. */
static void fill_scales(Page *x)
{
    double peak = 0, kept = (double)x->pic[0].p->space[SPACE_MAIN].persistent, sec = 0;
    for (int i = 0; i < x->npic; i++) {
        sec = MAX(sec, x->pic[i].p->est.step);
        peak = MAX(peak, (double)x->pic[i].p->space[SPACE_MAIN].peak);
        kept = MIN(kept, (double)x->pic[i].p->space[SPACE_MAIN].persistent);
    }
    x->bytes = unit_of_bytes(peak);
    x->sec = unit_of_sec(sec);
    x->full = scale_make(0, peak);
    for (x->unit = 1; x->full.hi / x->unit > MOST_COORDINATE;)
        x->unit *= 2;
    if (kept > 0.2 * peak && kept < peak)
        x->zoom = scale_make(kept, peak);
}

void plan_page(Buf *b, const PageSide *side, int count, const char *title, const char *command)
{
    Page x = {.a = b->a, .b = b, .npic = count};
    for (int i = 0; i < count; i++)
        x.pic[i] = picture_make(b->a, &side[i], (char)('a' + i));
    fill_scales(&x);
    put_head(&x, title, command);
    if (count > 1)
        page_comparison(&x);
    else
        put_tiles(&x, &x.pic[0]);
    put_pictures(&x);
    put_queues(&x);
    put_tables(&x);
    put_foot(&x);
}
