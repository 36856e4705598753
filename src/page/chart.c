/* Draws the two pictures of a plan as SVG: bytes alive over the step, stacked by category, and the
 * arena as a map of address against step.
 *
 * Coordinates are the exact numbers of the plan: steps, and bytes divided by a power of two, as
 * renderers fail beyond some millions. A viewBox fits them to the frame; the page's script and its
 * test read the paths as data. Each layer of the stack reaches down to 0 and the layers below are
 * painted over it, so its edge is the sum of itself and all below. The second scale, without what
 * is always alive, is the same drawing under another viewBox. Buffers that are not drawn one by one
 * colour those cells of a grid that they fill by half or more. */
#include "page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 92, TOP = 30, RIGHT_MARGIN = 30, GRID_WIDTH = 400, GRID_HEIGHT = 200 };

/* Categories that stay, then those that come and go. */
const Category page_stack[NCATEGORY] = {CAT_PARAM, CAT_STATE,      CAT_INPUT,     CAT_OTHER,
                                        CAT_GRAD,  CAT_ACTIVATION, CAT_RECOMPUTE, CAT_WORK};

typedef struct ChartFrame {
    int width, height; /* of the whole picture */
    int right, bottom; /* edges of what is drawn in it, from LEFT and TOP on */
} ChartFrame;

static ChartFrame frame_of(const Page *x, int high, int below)
{
    int width = x->npic > 1 ? 640 : 1200;
    return (ChartFrame){width, TOP + high + below, width - RIGHT_MARGIN, TOP + high};
}

/* ---- scales ---- */

double round_tick(double range, int count)
{
    double least = range / count, power = pow(10, floor(log10(least)));
    double times = least / power;
    return power * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

static double unit_of(double nbytes)
{
    return nbytes >= 0x1p21 ? 0x1p20 : nbytes >= 0x1p11 ? 1024 : 1;
}

static const char *unit_name(double unit)
{
    return unit == 1 ? "bytes" : unit == 1024 ? "KiB" : "MiB";
}

/* A scale from lo to more than hi: there is room for a line of text above hi. */
Scale scale_make(double lo, double hi)
{
    double unit = unit_of(hi), tick = fmax(round_tick(fmax(hi - lo, 1) / unit, 8) * unit, 1);
    double least = fmax((hi - lo) * 1.07, tick / 2);
    return (Scale){lo, ceil((lo + least) / tick) * tick, tick};
}

static double at_byte(const ChartFrame *f, const Scale *s, double nbytes)
{
    return f->bottom - (f->bottom - TOP) * (nbytes - s->lo) / (s->hi - s->lo);
}

static double at_step(const Picture *d, const ChartFrame *f, double step)
{
    return LEFT + (f->right - LEFT) * step / d->nstep;
}

/* ---- axes ---- */

static void put_byte_axis(Page *x, const ChartFrame *f, const Scale *s)
{
    Buf *b = x->b;
    double unit = unit_of(s->hi), tick = s->tick / unit;
    int decimals = (int)fmax(0, -floor(log10(tick) + 1e-9));
    for (double v = ceil(s->lo / s->tick) * s->tick; v <= s->hi + 1e-9 * s->tick; v += s->tick) {
        double y = at_byte(f, s, v);
        buf_printf(b, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, y, f->right);
        buf_printf(b, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8,
                   y + 4);
        put_grouped(b, v / unit, decimals);
        buf_add(b, "</text>\n");
    }
    buf_printf(b, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
               LEFT - 8, TOP - 14, unit_name(unit));
}

static void put_step_axis(Page *x, const Picture *d, const ChartFrame *f, int y)
{
    Buf *b = x->b;
    double tick = fmax(1, round_tick(d->nstep, x->npic > 1 ? 6 : 12));
    buf_printf(b, "<path class=\"line\" d=\"M%d %dH%d\"/>\n", LEFT, y, f->right);
    for (double v = 0; v <= d->nstep; v += tick) {
        double at = at_step(d, f, v);
        buf_printf(b, "<path class=\"line\" d=\"M%.1f %dv5\"/>", at, y);
        buf_printf(b, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", at,
                   y + 18);
        put_grouped(b, v, 0);
        buf_add(b, "</text>\n");
    }
    buf_printf(b, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">call</text>\n",
               (LEFT + f->right) / 2, y + 36);
}

/* ---- the frame of a picture ---- */

static void begin_picture(Page *x, const Picture *d, const ChartFrame *f, const char *what,
                          const char *label)
{
    buf_printf(x->b,
               "<div class=\"plot\" id=\"%c-%s\" data-label=\"%s\" data-frame=\"%d %d %d %d\">"
               "<svg viewBox=\"0 0 %d %d\" aria-hidden=\"true\">\n",
               d->id, what, label, LEFT, TOP, f->right - LEFT, f->bottom - TOP, f->width,
               f->height);
}

static void end_picture(Page *x)
{
    buf_add(x->b, "<rect class=\"mark\" x=\"0\" y=\"0\" width=\"0\" height=\"0\"/>"
                  "<path class=\"cursor\" d=\"\"/></svg></div>\n");
}

static int scales(const Page *x)
{
    return x->zoom.lo == 0 ? 1 : 2;
}

/* Begins a scale's own part of a picture; where there is but one, it is always shown. */
static const Scale *begin_scale(Page *x, int i)
{
    buf_printf(x->b, "<g class=\"%s\">\n", scales(x) == 1 ? "" : i ? "zoom" : "full");
    return i ? &x->zoom : &x->full;
}

static void put_byte_axes(Page *x, const ChartFrame *f)
{
    for (int i = 0; i < scales(x); i++) {
        put_byte_axis(x, f, begin_scale(x, i));
        buf_add(x->b, "</g>\n");
    }
}

/* Begins what has steps and bytes for coordinates; `what` is the id of its group. */
static void begin_data(Page *x, const Picture *d, const ChartFrame *f, const char *what)
{
    buf_printf(x->b,
               "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %.17g\" "
               "preserveAspectRatio=\"none\"%s><g id=\"%c-%s-data\" transform=\"translate(0 %.17g) "
               "scale(1 -1)\">\n",
               LEFT, TOP, f->right - LEFT, f->bottom - TOP, d->nstep, x->full.hi / x->unit,
               scales(x) == 1 ? "" : " class=\"full\"", d->id, what, x->full.hi / x->unit);
}

static void end_data(Page *x, const Picture *d, const ChartFrame *f, const char *what)
{
    buf_add(x->b, "</g></svg>\n");
    if (scales(x) == 1)
        return;
    buf_printf(
        x->b,
        "<svg class=\"zoom\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 %.17g %d "
        "%.17g\" preserveAspectRatio=\"none\"><use href=\"#%c-%s-data\"/></svg>\n",
        LEFT, TOP, f->right - LEFT, f->bottom - TOP, (x->full.hi - x->zoom.hi) / x->unit, d->nstep,
        (x->zoom.hi - x->zoom.lo) / x->unit, d->id, what);
}

/* The arena's end as a line, and where the most bytes are alive. */
static void put_peak(Page *x, const Picture *d, const ChartFrame *f, const Scale *s, bool dot)
{
    Buf *b = x->b, name = {.a = x->a};
    double y = at_byte(f, s, (double)d->p->space[SPACE_MAIN].peak),
           at = at_step(d, f, d->peak_step + 0.5);
    buf_add(&name, "planned peak ");
    put_bytes(&name, d->p->space[SPACE_MAIN].peak);
    buf_add(&name, ", at call ");
    put_grouped(&name, d->peak_step, 0);
    double half = 4.2 * (double)name.len, middle = fmin(fmax(at, LEFT + half), f->right - half);
    buf_printf(b, "<path class=\"peak\" d=\"M%d %.1fH%d\"/>", LEFT, y, f->right);
    buf_printf(b, "<path class=\"peak\" d=\"M%.1f %dV%.1f\"/>", at, f->bottom, y);
    if (dot)
        buf_printf(b, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", at,
                   at_byte(f, s, (double)d->p->space[SPACE_MAIN].bound));
    buf_printf(b, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
               middle, y - 8, name.text);
}

/* ---- bytes alive ---- */

/* Fills sum[], by column, with the sum of layers 0 to `layer` of the stack. */
static void add_layer(const Picture *d, int layer, int64_t *sum)
{
    for (int k = 0; k < d->ncolumn; k++)
        sum[k] += d->column[k].live[page_stack[layer]];
}

static bool is_empty(const Picture *d, int layer)
{
    for (int k = 0; k < d->ncolumn; k++)
        if (d->column[k].live[page_stack[layer]])
            return false;
    return true;
}

static void put_layer(Page *x, const Picture *d, int layer, const int64_t *sum)
{
    Buf *b = x->b;
    buf_printf(b, "<path class=\"c%d\" data-layer=\"%s\" d=\"M0 0", page_stack[layer],
               category_name(page_stack[layer]));
    for (int k = 0; k < d->ncolumn; k++) {
        if (k && sum[k] == sum[k - 1])
            continue;
        if (k)
            buf_printf(b, "H%d", d->column[k].first);
        buf_printf(b, "V%.17g", (double)sum[k] / x->unit);
    }
    buf_printf(b, "H%dV0Z\"/>\n", d->nstep);
}

/* The layer's name where the layer is high for as long as the name is wide, beside the peak's line.
 */
static void put_layer_name(Page *x, const Picture *d, const ChartFrame *f, const Scale *s,
                           int layer, const int64_t *sum)
{
    const char *name = category_name(page_stack[layer]);
    double wide = 7.5 * (double)strlen(name) + 16, best = 20, best_x = 0, best_y = 0;
    int columns = (int)ceil(wide * d->ncolumn / (f->right - LEFT));
    for (int k = 0; k + columns <= d->ncolumn; k++) {
        double top = INFINITY, bottom = s->lo;
        if (d->column[k].first <= d->peak_step && d->peak_step <= d->column[k + columns - 1].step)
            continue;
        for (int i = k; i < k + columns; i++) {
            top = fmin(top, (double)sum[i]);
            bottom = fmax(bottom, (double)(sum[i] - d->column[i].live[page_stack[layer]]));
        }
        double high = at_byte(f, s, bottom) - at_byte(f, s, top);
        if (high <= best + 0.5)
            continue;
        best = high;
        best_x = LEFT + (k + columns / 2.0) * (f->right - LEFT) / d->ncolumn;
        best_y = (at_byte(f, s, bottom) + at_byte(f, s, top)) / 2;
    }
    if (best_x > 0)
        buf_printf(x->b,
                   "<text class=\"on%d\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                   page_stack[layer], best_x, best_y + 4, name);
}

static void put_layer_names(Page *x, const Picture *d, const ChartFrame *f, const Scale *s)
{
    int64_t *sum = NEWN(x->a, int64_t, d->ncolumn);
    for (int layer = 0; layer < NCATEGORY; layer++) {
        add_layer(d, layer, sum);
        put_layer_name(x, d, f, s, layer, sum);
    }
}

/* ---- phases and loops ---- */

/* Columns of one phase. */
typedef struct PhaseColumns {
    Phase phase;
    double from, to, text; /* edges, middle of its name */
} PhaseColumns;

/* The run that begins at column *k, which becomes that of the next. */
static PhaseColumns next_run(const Picture *d, const ChartFrame *f, int *k)
{
    PhaseColumns r = {.phase = d->column[*k].phase, .from = at_step(d, f, d->column[*k].first)};
    while (*k < d->ncolumn && d->column[*k].phase == r.phase)
        ++*k;
    r.to = at_step(d, f, *k < d->ncolumn ? d->column[*k].first : d->nstep);
    r.text = (r.from + r.to) / 2;
    return r;
}

static int by_place(const void *s, const void *t)
{
    const PhaseColumns *x = s, *y = t;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* The longest run of each phase, in order of the step. */
static int find_runs(const Picture *d, const ChartFrame *f, PhaseColumns *run)
{
    PhaseColumns longest[NPHASE] = {{0}};
    int n = 0;
    for (int k = 0; k < d->ncolumn;) {
        PhaseColumns r = next_run(d, f, &k), *l = &longest[r.phase];
        if (r.to - r.from > l->to - l->from)
            *l = r;
    }
    for (int i = 0; i < NPHASE; i++)
        if (longest[i].to > longest[i].from)
            run[n++] = longest[i];
    qsort(run, (size_t)n, sizeof *run, by_place);
    return n;
}

static double half_width(const PhaseColumns *r)
{
    return 3.5 * (double)strlen(phase_name(r->phase)) + 7;
}

/* Names that would touch move apart, within the frame. */
static void spread(PhaseColumns *run, int n, const ChartFrame *f)
{
    double edge = LEFT;
    for (int i = 0; i < n; i++) {
        run[i].text = fmax(run[i].text, edge + half_width(&run[i]));
        edge = run[i].text + half_width(&run[i]);
    }
    edge = f->right;
    for (int i = n - 1; i >= 0; i--) {
        run[i].text = fmin(run[i].text, edge - half_width(&run[i]));
        edge = run[i].text - half_width(&run[i]);
    }
}

/* A ribbon below the frame whose colours are phases, with their names. */
static void put_phases(Page *x, const Picture *d, const ChartFrame *f)
{
    Buf *b = x->b;
    PhaseColumns run[NPHASE];
    int n = find_runs(d, f, run);
    spread(run, n, f);
    for (int k = 0; k < d->ncolumn;) {
        PhaseColumns r = next_run(d, f, &k);
        buf_printf(b, "<rect class=\"p%d\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"10\"/>\n",
                   r.phase, r.from, f->bottom + 4, fmax(r.to - r.from, 0.6));
    }
    for (int i = 0; i < n; i++) {
        buf_printf(b, "<path class=\"lead\" d=\"M%.1f %dL%.1f %d\"/>",
                   (run[i].from + run[i].to) / 2, f->bottom + 14, run[i].text, f->bottom + 21);
        buf_printf(b,
                   "<text class=\"phase\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                   run[i].text, f->bottom + 33, phase_name(run[i].phase));
    }
}

/* "2 iterations"; of a region that runs in slices "lm_head: 8 slices", *region then. */
static void put_loop_text(Buf *b, const Picture *d, const Step *s, bool *region)
{
    const ChunkCandidate *c = chunk_of_loop(d->chunk, s->node);
    const char *of = c && !c->member ? chunk_scopes(b->a, c) : "";
    *region |= c != NULL;
    if (c)
        buf_printf(b, "%.40s: %s",
                   *of && strlen(of) <= 40 ? of
                   : *c->scope             ? c->scope
                                           : c->region.value,
                   arena_count(b->a, c->made.slices, "slice"));
    else
        buf_add(b, arena_count(b->a, s->count, "iteration"));
}

/* The same of the loop at step i and of up to two in it. */
static const char *loops_text(Arena *a, const Picture *d, int i, bool *region)
{
    const Plan *p = d->p;
    Buf b = {.a = a};
    int left = 2;
    *region = false;
    put_loop_text(&b, d, &p->step[i], region);
    for (int k = i + 1; k < p->step[i].end && left >= 0; k++)
        if (p->step[k].kind == STEP_LOOP) {
            buf_add(&b, left ? ", in it " : ", ...");
            if (left-- > 0)
                put_loop_text(&b, d, &p->step[k], region);
        }
    return b.text;
}

/* A bracket above the frame over each loop that lies in no other. */
static void put_loops(Page *x, const Picture *d, const ChartFrame *f)
{
    Buf *b = x->b;
    const Plan *p = d->p;
    double edge = LEFT; /* where the last text ends */
    int left = 200;
    for (int i = 0; i < p->nstep && left; i++) {
        const Step *s = &p->step[i];
        if (s->kind != STEP_LOOP)
            continue;
        double from = at_step(d, f, i), to = at_step(d, f, s->end + 1), middle = (from + to) / 2;
        bool region;
        const char *text = loops_text(x->a, d, i, &region);
        double half = 3.75 * (double)strlen(text);
        buf_printf(b, "<path class=\"loop\" d=\"M%.1f %dv-5H%.1fv5\"/>", from, TOP - 3, to);
        if ((to - from > 30 || region) && middle - half > edge) {
            buf_printf(b, "<text class=\"phase\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">",
                       middle, TOP - 13);
            put_escaped(b, text);
            buf_add(b, "</text>\n");
            edge = middle + half;
        }
        i = s->end;
        left--;
    }
}

void page_live(Page *x, const Picture *d)
{
    ChartFrame f = frame_of(x, 340, 78);
    int64_t *sum = NEWN(x->a, int64_t, d->ncolumn);
    begin_picture(x, d, &f, "live", "bytes alive, by call");
    put_byte_axes(x, &f);
    put_step_axis(x, d, &f, f.bottom + 38);
    put_phases(x, d, &f);
    put_loops(x, d, &f);
    begin_data(x, d, &f, "live");
    for (int layer = 0; layer < NCATEGORY; layer++)
        add_layer(d, layer, sum);
    for (int layer = NCATEGORY - 1; layer >= 0; layer--) {
        if (!is_empty(d, layer))
            put_layer(x, d, layer, sum);
        for (int k = 0; k < d->ncolumn; k++)
            sum[k] -= d->column[k].live[page_stack[layer]];
    }
    end_data(x, d, &f, "live");
    for (int i = 0; i < scales(x); i++) {
        const Scale *s = begin_scale(x, i);
        put_layer_names(x, d, &f, s);
        put_peak(x, d, &f, s, true);
        buf_add(x->b, "</g>\n");
    }
    end_picture(x);
}

/* ---- the arena ---- */

/* Adds what s covers of each cell, as a part of the cell. */
static void cover(const Picture *d, const Storage *s, float (*cell)[NCATEGORY])
{
    double w = (double)d->nstep / GRID_WIDTH,
           h = (double)d->p->space[SPACE_MAIN].peak / GRID_HEIGHT;
    double top = (double)(s->offset + s->nbytes);
    for (int i = (int)(s->start / w); i < GRID_WIDTH && i * w < s->end; i++)
        for (int j = (int)((double)s->offset / h); j < GRID_HEIGHT && j * h < top; j++) {
            double wide = fmin(s->end, (i + 1) * w) - fmax(s->start, i * w);
            double high = fmin(top, (j + 1) * h) - fmax((double)s->offset, j * h);
            cell[j * GRID_WIDTH + i][s->category] +=
                (float)(fmax(wide, 0) * fmax(high, 0) / (w * h));
        }
}

/* The category that has most of a cell, -1 where half of it or more is empty. */
static int cell_category(const float *part)
{
    int most = 0;
    float sum = 0;
    for (int k = 0; k < NCATEGORY; k++) {
        sum += part[k];
        most = part[k] > part[most] ? k : most;
    }
    return sum >= 0.5f ? most : -1;
}

static void put_cells(Page *x, int category, float (*cell)[NCATEGORY])
{
    Buf *b = x->b;
    size_t before = b->len;
    for (int j = 0; j < GRID_HEIGHT; j++)
        for (int i = 0, end; i < GRID_WIDTH; i = MAX(end, i + 1)) {
            for (end = i; end < GRID_WIDTH; end++)
                if (cell_category(cell[j * GRID_WIDTH + end]) != category)
                    break;
            if (end == i)
                continue;
            if (b->len == before)
                buf_printf(b, "<path class=\"c%d\" d=\"", category);
            buf_printf(b, "M%d %dh%dv1h-%dz", i, j, end - i, end - i);
        }
    if (b->len > before)
        buf_add(b, "\"/>\n");
}

/* Draws the storages that are not drawn one by one, cell by cell. */
static void put_small(Page *x, const Picture *d)
{
    const Plan *p = d->p;
    Arena *tmp = arena_tmp(x->a);
    float(*cell)[NCATEGORY] = arena_alloc(tmp, sizeof *cell * GRID_WIDTH * GRID_HEIGHT);
    bool *drawn = NEWN(tmp, bool, p->nstorage);
    for (int i = 0; i < d->nrect; i++)
        drawn[d->rect[i]] = true;
    for (int i = 0; i < p->nstorage; i++)
        if (!drawn[i] && storage_shown(&p->storage[i]))
            cover(d, &p->storage[i], cell);
    buf_printf(x->b, "<g class=\"small\" transform=\"scale(%.17g %.17g)\">\n",
               (double)d->nstep / GRID_WIDTH,
               (double)p->space[SPACE_MAIN].peak / GRID_HEIGHT / x->unit);
    for (int k = 0; k < NCATEGORY; k++)
        put_cells(x, k, cell);
    buf_add(x->b, "</g>\n");
    arena_reset(tmp);
}

/* Whether a buffer is large enough to be seen with an edge. */
static bool has_edge(const Page *x, const Picture *d, const ChartFrame *f, const Storage *s)
{
    return (f->right - LEFT) * (double)(s->end - s->start) / d->nstep > 4 &&
           (f->bottom - TOP) * (double)s->nbytes / x->full.hi > 4;
}

/* Large buffers have edges; small ones that lie beside each other differ a little in tone. */
typedef enum { EDGE, DARK, LIGHT, NTONE } Tone;

enum { LOOK_BACK = 12 };

/* The other tone than that of the nearest one below which is not much smaller, alive with it and of
 * its category. */
static Tone tone_of(const Picture *d, int i, const Tone *tone)
{
    const Storage *s = &d->p->storage[d->rect[i]];
    for (int j = i - 1; j >= 0 && j >= i - LOOK_BACK; j--) {
        const Storage *t = &d->p->storage[d->rect[j]];
        if (tone[j] != EDGE && t->category == s->category && t->nbytes >= s->nbytes / 2 &&
            t->start < s->end && s->start < t->end)
            return tone[j] == DARK ? LIGHT : DARK;
    }
    return DARK;
}

static void put_rects(Page *x, const Picture *d, const Tone *all, Category category, Tone tone)
{
    static const char *const names[] = {"edge ", "", "light "};
    Buf *b = x->b;
    size_t before = b->len;
    for (int i = 0; i < d->nrect; i++) {
        const Storage *s = &d->p->storage[d->rect[i]];
        int wide = s->end - s->start;
        if (s->category != category || all[i] != tone)
            continue;
        if (b->len == before)
            buf_printf(b, "<path class=\"%sc%d\" data-layer=\"%s\" d=\"", names[tone], category,
                       category_name(category));
        buf_printf(b, "M%d %.17gh%dv%.17gh-%dz", s->start, (double)s->offset / x->unit, wide,
                   (double)s->nbytes / x->unit, wide);
    }
    if (b->len > before)
        buf_add(b, "\"/>\n");
}

static void put_buffers(Page *x, const Picture *d, const ChartFrame *f)
{
    Tone *tone = NEWN(x->a, Tone, d->nrect);
    for (int i = 0; i < d->nrect; i++)
        tone[i] = has_edge(x, d, f, &d->p->storage[d->rect[i]]) ? EDGE : tone_of(d, i, tone);
    for (int c = 0; c < NCATEGORY; c++)
        for (int t = 0; t < NTONE; t++)
            put_rects(x, d, tone, (Category)c, (Tone)t);
}

void page_arena(Page *x, const Picture *d)
{
    ChartFrame f = frame_of(x, 440, 44);
    begin_picture(x, d, &f, "arena", "the arena, by call and address");
    put_byte_axes(x, &f);
    put_step_axis(x, d, &f, f.bottom);
    begin_data(x, d, &f, "arena");
    if (d->nsmall)
        put_small(x, d);
    put_buffers(x, d, &f);
    end_data(x, d, &f, "arena");
    for (int i = 0; i < scales(x); i++) {
        put_peak(x, d, &f, begin_scale(x, i), false);
        buf_add(x->b, "</g>\n");
    }
    end_picture(x);
}
