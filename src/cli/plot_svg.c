/* The picture of a run's loss as SVG that needs nothing else: loss by step, as it was (thin), as a
 * mean (thick), and on held-out data, with round ticks, a legend, and the last values at the edge.
 *
 * The axis shows everything but spikes: up to 2.5 times the span of 98 of 100 losses; higher values
 * are cut off. The mean is centred: two passes of a moving mean over the losses, cut off likewise;
 * its window shrinks at the beginning of the run, so that the initial fall is not shifted. If
 * points are denser than the picture, each half unit of width shows its least and greatest. Losses
 * that are not finite break the line and have a mark on the axis. */
#include "plot.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 960, HEIGHT = 540, LEFT = 72, RIGHT = 864, TOP = 92, BOTTOM = 480 };

#define BLUE     "#2563eb"
#define ORANGE   "#ea580c"
#define GREEN    "#15803d"
#define RED      "#dc2626"
#define INK      "#111827"
#define GREY     "#6b7280"
#define RAW      "stroke=\"" BLUE "\" stroke-opacity=\"0.32\""
#define MEAN     "stroke=\"" BLUE "\" stroke-width=\"2.2\""
#define HELD_OUT "stroke=\"" ORANGE "\" stroke-width=\"2.2\""
#define PART     "stroke=\"" GREEN "\" stroke-width=\"2.2\""

typedef struct PlotAxis {
    double lo, hi, tick;
    int from, to; /* of the picture */
} PlotAxis;

typedef struct Drawing {
    FILE *f;
    const Plot *p;
    PlotAxis x, y;
    Series mean;    /* of the training loss */
    int64_t window; /* steps that it is the mean of */
    double last;    /* step */
} Drawing;

static double place(const PlotAxis *a, double value)
{
    return a->from + (a->to - a->from) * (value - a->lo) / (a->hi - a->lo);
}

/* ---- axes ---- */

/* The round number, 1, 2 or 5 times a power of ten, of which about `count` make up the range. */
static double round_tick(double range, int count)
{
    double least = range / count, power = pow(10, floor(log10(least)));
    double times = least / power;
    return power * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

static void include(const Series *s, double *lo, double *hi)
{
    for (int64_t i = 0; i < s->count; i++)
        if (isfinite(s->point[i].value)) {
            *lo = fmin(*lo, s->point[i].value);
            *hi = fmax(*hi, s->point[i].value);
        }
}

static int by_value(const void *s, const void *t)
{
    const Point *p = s, *q = t;
    return p->value < q->value ? -1 : p->value > q->value;
}

/* The loss that 98 of 100 do not exceed. */
static int usual_top(const Plot *p, double *top)
{
    Series all = {0};
    const Series *from[] = {&p->train, &p->part, &p->full};
    int bad = 0;
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < from[k]->count && !bad; i++)
            if (isfinite(from[k]->point[i].value))
                bad = series_add(&all, 0, from[k]->point[i].value, 0);
    if (!bad) {
        qsort(all.point, (size_t)all.count, sizeof *all.point, by_value);
        *top = all.point[(all.count - 1) * 98 / 100].value;
    }
    free(all.point);
    return bad;
}

static int fill_loss_axis(Drawing *d)
{
    double lo = INFINITY, hi = -INFINITY, top;
    include(&d->p->train, &lo, &hi);
    include(&d->p->part, &lo, &hi);
    include(&d->p->full, &lo, &hi);
    if (usual_top(d->p, &top))
        return -1;
    hi = fmin(hi, top + fmax(1.5 * (top - lo), 0.01 * fabs(top)));
    if (!(hi - lo > 1e-9 * fabs(hi))) {
        double half = hi == 0 ? 1 : 0.1 * fabs(hi);
        lo -= half;
        hi += half;
    }
    double tick = round_tick(hi - lo, 7);
    d->y = (PlotAxis){floor(lo / tick) * tick, ceil(hi / tick) * tick, tick, BOTTOM, TOP};
    return 0;
}

static void fill_step_axis(Drawing *d)
{
    const Series *from[] = {&d->p->train, &d->p->part, &d->p->full};
    double lo = INFINITY, hi = -INFINITY;
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < from[k]->count; i++) {
            lo = fmin(lo, from[k]->point[i].step);
            hi = fmax(hi, from[k]->point[i].step);
        }
    d->last = hi;
    lo = lo <= fmax(1, 0.1 * hi) ? fmin(lo, 0) : lo; /* from 0 where the run begins near it */
    if (!(hi > lo)) {
        lo -= 1;
        hi += 1;
    }
    d->x = (PlotAxis){lo, hi, fmax(1, round_tick(hi - lo, 8)), LEFT, RIGHT};
}

/* ---- the mean ---- */

/* to[i] = mean of from[i - r .. i + r], r at most i, and less where from ends. */
static void moving_mean(const double *from, double *to, double *sum, int64_t n, int64_t r)
{
    sum[0] = 0;
    for (int64_t i = 0; i < n; i++)
        sum[i + 1] = sum[i] + from[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t reach = i < r ? i : r, end = i + reach + 1 < n ? i + reach + 1 : n;
        to[i] = (sum[end] - sum[i - reach]) / (double)(end - i + reach);
    }
}

static int fill_mean(Drawing *d)
{
    const Series *s = &d->p->train;
    double *memory = calloc((size_t)(3 * s->count + 1), sizeof *memory);
    int64_t n = 0, usual = s->count < 10 ? 1 : s->count < 200 ? 5 : s->count / 40;
    int64_t window = d->p->smooth ? d->p->smooth : usual, r = window > 1 ? (window + 1) / 4 : 0;
    if (!memory)
        return -1;
    double *value = memory, *sum = value + s->count, *mean = sum + s->count + 1;
    for (int64_t i = 0; i < s->count; i++)
        if (isfinite(s->point[i].value))
            value[n++] = fmin(s->point[i].value, d->y.hi);
    d->window = 4 * r + 1;
    moving_mean(value, mean, sum, n, r);
    moving_mean(mean, value, sum, n, r);
    int bad = 0;
    for (int64_t i = 0, k = 0; i < s->count && !bad; i++)
        if (isfinite(s->point[i].value))
            bad = series_add(&d->mean, s->point[i].step, value[k++], i);
    free(memory);
    return bad;
}

/* ---- text ---- */

static void put_escaped(FILE *f, const char *s)
{
    for (; *s; s++) {
        const char *name = *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '&' ? "&amp;" : NULL;
        if (name)
            fputs(name, f);
        else if ((unsigned char)*s >= ' ')
            fputc(*s, f);
    }
}

/* 1,234,567 */
static const char *grouped(double x, char *to, size_t size)
{
    char digits[40];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(fmin(fmax(x, -1e18), 1e18)));
    size_t at = 0;
    if (x < 0)
        to[at++] = '-';
    for (int i = 0; i < n && at + 2 < size; i++) {
        if (i && (n - i) % 3 == 0)
            to[at++] = ',';
        to[at++] = digits[i];
    }
    to[at] = 0;
    return to;
}

static void put_grouped(FILE *f, double x)
{
    char text[60];
    fputs(grouped(x, text, sizeof text), f);
}

/* With as many decimals as the tick needs. */
static void put_tick(FILE *f, double value, double tick)
{
    int decimals = (int)fmax(0, -floor(log10(tick) + 1e-9));
    if (fabs(value) < 1e-6 * tick)
        value = 0;
    if (decimals > 5 && value != 0)
        fprintf(f, "%.*e", (int)fmax(0, floor(log10(fabs(value) / tick) + 1e-9)), value);
    else if (fabs(value) >= 1e7)
        fprintf(f, "%.4g", value);
    else if (tick >= 1)
        put_grouped(f, value);
    else
        fprintf(f, "%.*f", decimals, value);
}

static void put_loss(FILE *f, double value)
{
    bool plain = fabs(value) >= 0.1 && fabs(value) < 100;
    fprintf(f, plain ? "%.3f" : "%.4g", value);
}

/* ---- lines ---- */

/* A path in the making: of the points in a half unit of width the least and the greatest. */
typedef struct SvgPath {
    Drawing *d;
    int64_t column;
    int n; /* of the column: points, up to two kept in order */
    Point kept[2];
    bool broken; /* the next point begins a new line */
} SvgPath;

static void put_point(SvgPath *w, const Point *p)
{
    fprintf(w->d->f, "%c%.1f %.1f", w->broken ? 'M' : 'L', place(&w->d->x, p->step),
            fmin(fmax(place(&w->d->y, p->value), -1e4), 1e4));
    w->broken = false;
}

static void flush(SvgPath *w)
{
    int first = w->n == 2 && w->kept[1].step < w->kept[0].step;
    for (int i = 0; i < w->n; i++)
        put_point(w, &w->kept[first ? 1 - i : i]);
    w->n = 0;
}

static void add_point(SvgPath *w, const Point *p)
{
    int64_t column = (int64_t)floor(2 * place(&w->d->x, p->step));
    if (w->n && column != w->column)
        flush(w);
    w->column = column;
    if (w->n == 0)
        w->kept[w->n++] = *p;
    else if (w->n == 1) {
        int lower = p->value < w->kept[0].value;
        w->kept[1] = w->kept[0];
        w->kept[lower ? 0 : 1] = *p; /* kept[0] the least, kept[1] the greatest */
        w->n = 2;
    } else if (p->value < w->kept[0].value) {
        w->kept[0] = *p;
    } else if (p->value > w->kept[1].value) {
        w->kept[1] = *p;
    }
}

static void put_line(Drawing *d, const Series *s, const char *style)
{
    SvgPath w = {.d = d, .broken = true};
    fputs("<path d=\"", d->f);
    for (int64_t i = 0; i < s->count; i++) {
        if (isfinite(s->point[i].value)) {
            add_point(&w, &s->point[i]);
            continue;
        }
        flush(&w);
        w.broken = true;
    }
    flush(&w);
    fprintf(d->f, "\" fill=\"none\" stroke-linejoin=\"round\" stroke-linecap=\"round\" %s/>\n",
            style);
}

static void put_dots(Drawing *d, const Series *s, int64_t most, const char *color)
{
    if (s->count > most)
        return;
    for (int64_t i = 0; i < s->count; i++)
        if (isfinite(s->point[i].value) && s->point[i].value <= d->y.hi)
            fprintf(d->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                    place(&d->x, s->point[i].step), place(&d->y, s->point[i].value), color);
}

static int64_t count_lost(const Series *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->count; i++)
        n += !isfinite(s->point[i].value);
    return n;
}

/* Steps whose loss is not finite, one mark a column. */
static void put_lost(Drawing *d, const Series *s)
{
    int64_t last = -1;
    for (int64_t i = 0; i < s->count; i++) {
        double x = place(&d->x, s->point[i].step);
        if (isfinite(s->point[i].value) || (int64_t)x == last)
            continue;
        last = (int64_t)x;
        fprintf(d->f, "<path d=\"M%.1f %dv-9\" stroke=\"" RED "\" stroke-width=\"1.5\"/>\n", x,
                BOTTOM);
    }
}

/* ---- the parts of the picture ---- */

static void put_head(Drawing *d)
{
    fprintf(d->f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\" font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, "
            "'DejaVu Sans', sans-serif\" font-size=\"13\">\n<title>",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_escaped(d->f, d->p->title);
    fprintf(
        d->f,
        "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n"
        "<clipPath id=\"frame\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n"
        "<text x=\"%d\" y=\"40\" font-size=\"20\" font-weight=\"600\" fill=\"" INK "\">",
        WIDTH, HEIGHT, LEFT, TOP - 4, RIGHT - LEFT + 4, BOTTOM - TOP + 8, LEFT);
    put_escaped(d->f, d->p->title);
    fputs("</text>\n", d->f);
}

static const Point *least(const Series *s)
{
    const Point *best = NULL;
    for (int64_t i = 0; i < s->count; i++)
        if (isfinite(s->point[i].value) && (!best || s->point[i].value < best->value))
            best = &s->point[i];
    return best;
}

static void put_least(Drawing *d, const Series *s, const char *what)
{
    const Point *best = least(s);
    if (!best)
        return;
    fprintf(d->f, "; lowest %s loss ", what);
    put_loss(d->f, best->value);
    fputs(" at step ", d->f);
    put_grouped(d->f, best->step);
}

/* "step 20,000, 1,310,720 tokens; lowest held-out loss 1.520 at step 18,000" */
static void put_summary(Drawing *d)
{
    fprintf(d->f, "<text x=\"%d\" y=\"62\" fill=\"" GREY "\">step ", LEFT);
    put_grouped(d->f, d->last);
    if (d->p->tokens) {
        fputs(", ", d->f);
        put_grouped(d->f, (double)d->p->tokens);
        fputs(" tokens", d->f);
    }
    put_least(d, &d->p->part, "partial held-out");
    put_least(d, &d->p->full, "held-out");
    fputs("</text>\n", d->f);
}

static void put_grid(Drawing *d)
{
    for (double v = d->y.lo; v < d->y.hi + 0.5 * d->y.tick; v += d->y.tick) {
        double y = place(&d->y, v);
        fprintf(d->f, "<path d=\"M%d %.1fH%d\" stroke=\"#e5e7eb\"/>\n", LEFT, y, RIGHT);
        fprintf(d->f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"" GREY "\">", LEFT - 10,
                y + 4.5);
        put_tick(d->f, v, d->y.tick);
        fputs("</text>\n", d->f);
    }
    for (double v = ceil(d->x.lo / d->x.tick) * d->x.tick; v <= d->x.hi; v += d->x.tick) {
        double x = place(&d->x, v);
        fprintf(d->f, "<path d=\"M%.1f %dv6\" stroke=\"#9ca3af\"/>\n", x, BOTTOM);
        fprintf(d->f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"" GREY "\">", x,
                BOTTOM + 22);
        put_tick(d->f, v, d->x.tick);
        fputs("</text>\n", d->f);
    }
    fprintf(d->f, "<path d=\"M%d %dH%d\" stroke=\"#9ca3af\"/>\n", LEFT, BOTTOM, RIGHT);
    fprintf(d->f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"" INK "\">step</text>\n",
            (LEFT + RIGHT) / 2, BOTTOM + 46);
    fprintf(d->f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"" INK "\">loss</text>\n",
            LEFT - 10, TOP - 14);
}

typedef struct Entry {
    const char *style, *dot; /* dot: its color; NULL: none */
    char text[80];
} Entry;

static int fill_legend(const Drawing *d, Entry *entry)
{
    char number[60];
    int n = 0;
    int64_t lost = count_lost(&d->p->train) + count_lost(&d->p->part) + count_lost(&d->p->full);
    if (d->p->train.count && d->window > 1)
        entry[n++] = (Entry){RAW, NULL, "training"};
    if (d->p->train.count) {
        entry[n] = (Entry){MEAN, NULL, "training"};
        if (d->window > 1)
            snprintf(entry[n].text, sizeof entry->text, "training, mean of %s steps",
                     grouped((double)d->window, number, sizeof number));
        n++;
    }
    if (d->p->part.count)
        entry[n++] = (Entry){PART, GREEN, "part of held out"};
    if (d->p->full.count)
        entry[n++] = (Entry){HELD_OUT, ORANGE, "held out"};
    if (lost) {
        entry[n] = (Entry){"stroke=\"" RED "\" stroke-width=\"1.5\"", NULL, ""};
        snprintf(entry[n++].text, sizeof entry->text, "not finite: %lld", (long long)lost);
    }
    return n;
}

static void put_legend(Drawing *d)
{
    Entry entry[5];
    size_t longest = 0;
    int n = fill_legend(d, entry), width, x;
    for (int i = 0; i < n; i++)
        longest = strlen(entry[i].text) > longest ? strlen(entry[i].text) : longest;
    width = 64 + 8 * (int)longest; /* 8: wider than the letters of any of the fonts */
    x = RIGHT - width;
    fprintf(d->f,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#ffffff\" "
            "fill-opacity=\"0.9\" stroke=\"#e5e7eb\"/>\n",
            x, TOP + 8, width - 8, 22 * n + 12);
    for (int i = 0; i < n; i++) {
        int y = TOP + 25 + 22 * i;
        fprintf(d->f, "<path d=\"M%d %dh26\" %s/>\n", x + 12, y, entry[i].style);
        if (entry[i].dot)
            fprintf(d->f, "<circle cx=\"%d\" cy=\"%d\" r=\"3\" fill=\"%s\"/>\n", x + 25, y,
                    entry[i].dot);
        fprintf(d->f, "<text x=\"%d\" y=\"%.1f\" fill=\"" INK "\">%s</text>\n", x + 48, y + 4.5,
                entry[i].text);
    }
}

static const Point *last_finite(const Series *s)
{
    for (int64_t i = s->count - 1; i >= 0; i--)
        if (isfinite(s->point[i].value))
            return &s->point[i];
    return NULL;
}

static void put_value(Drawing *d, double value, double y, const char *color)
{
    fprintf(d->f, "<text x=\"%d\" y=\"%.1f\" font-weight=\"600\" fill=\"%s\">", RIGHT + 10, y + 4.5,
            color);
    put_loss(d->f, value);
    fputs("</text>\n", d->f);
}

/* The last values beside the frame, pushed apart where they would touch. */
static void put_values(Drawing *d)
{
    const Point *p = last_finite(&d->mean), *full = last_finite(&d->p->full);
    const Point *q = full ? full : last_finite(&d->p->part);
    double y = p ? place(&d->y, p->value) : 0, z = q ? place(&d->y, q->value) : 0;
    double apart = 16 - fabs(y - z);
    if (p && q && apart > 0) {
        double sign = y < z ? 1 : -1;
        y -= sign * apart / 2;
        z += sign * apart / 2;
    }
    if (p)
        put_value(d, p->value, fmax(fmin(y, BOTTOM), TOP), BLUE);
    if (q)
        put_value(d, q->value, fmax(fmin(z, BOTTOM), TOP), full ? ORANGE : GREEN);
}

static void put_picture(Drawing *d)
{
    put_head(d);
    put_summary(d);
    put_grid(d);
    fputs("<g clip-path=\"url(#frame)\">\n", d->f);
    put_line(d, &d->p->train, RAW);
    put_line(d, &d->mean, MEAN);
    put_line(d, &d->p->part, PART);
    put_line(d, &d->p->full, HELD_OUT);
    put_dots(d, &d->mean, 2, BLUE);
    put_dots(d, &d->p->part, 100, GREEN);
    put_dots(d, &d->p->full, 100, ORANGE);
    put_lost(d, &d->p->train);
    put_lost(d, &d->p->part);
    put_lost(d, &d->p->full);
    fputs("</g>\n", d->f);
    put_legend(d);
    put_values(d);
    fputs("</svg>\n", d->f);
}

int plot_write(const Plot *p, FILE *f)
{
    Drawing d = {.f = f, .p = p};
    int bad = fill_loss_axis(&d);
    if (!bad)
        bad = fill_mean(&d);
    if (!bad) {
        fill_step_axis(&d);
        put_picture(&d);
    }
    free(d.mean.point);
    return bad;
}
