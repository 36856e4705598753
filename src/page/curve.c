/* A curve of a step's seconds over the bytes that it may need, as an HTML page that needs nothing
 * else: what was chosen, the bound beneath it, and the numbers. */
#include "page.h"

#include <math.h>

enum { WIDTH = 720, HEIGHT = 360, LEFT = 80, RIGHT = 700, TOP = 20, BOTTOM = 310, TICKS = 5 };

typedef struct CurveFrame {
    double least, most; /* bytes */
    double low, high;   /* seconds */
} CurveFrame;

static CurveFrame frame_of(const CurvePoint *point, int count)
{
    CurveFrame f = {(double)point[0].need, (double)point[0].limit, point[0].none, point[0].none};
    for (int i = 0; i < count; i++) {
        f.least = MIN(f.least, (double)point[i].need);
        f.most = MAX(f.most, (double)point[i].limit);
        f.low = MIN(f.low, fmin(point[i].sec, point[i].none + point[i].bound));
        f.high = MAX(f.high, point[i].sec);
    }
    f.most = MAX(f.most, f.least + 1);
    f.high += f.high > f.low ? 0 : MAX(f.high, 1e-9) * 0.01;
    return f;
}

static double at_byte(const CurveFrame *f, double nbytes)
{
    return LEFT + (RIGHT - LEFT) * (nbytes - f->least) / (f->most - f->least);
}

static double at_sec(const CurveFrame *f, double sec)
{
    return BOTTOM - (BOTTOM - TOP) * (sec - f->low) / (f->high - f->low);
}

/* The unit of an axis' ticks, and how many digits after the point tell one from the next: the first
 * of the units, each smaller than the one before, that is no larger than `most`. */
static PageUnit unit_of(const PageUnit *unit, int n, double most, double tick)
{
    int i = 0;
    while (i < n - 1 && most < unit[i].one)
        i++;
    PageUnit u = unit[i];
    u.digits = tick < u.one ? (int)ceil(-log10(tick / u.one)) : 0;
    return u;
}

/* Bytes by their span, seconds by the largest. */
static void put_axes(Buf *b, const CurveFrame *f)
{
    static const PageUnit of_bytes[] = {
        {"GiB", 0x1p30, 0}, {"MiB", 0x1p20, 0}, {"KiB", 0x1p10, 0}, {"bytes", 1, 0}};
    static const PageUnit of_sec[] = {{"s", 1, 0}, {"ms", 1e-3, 0}, {"\xc2\xb5s", 1e-6, 0}};
    const double tick = (f->most - f->least) / TICKS, pause = (f->high - f->low) / TICKS;
    const PageUnit x = unit_of(of_bytes, LEN(of_bytes), f->most - f->least, tick),
                   y = unit_of(of_sec, LEN(of_sec), f->high, pause);
    buf_printf(b, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#888\"/>\n", LEFT, TOP, BOTTOM,
               RIGHT);
    for (int i = 0; i <= TICKS; i++) {
        double nbytes = f->least + tick * i, sec = f->low + pause * i;
        buf_printf(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.*f</text>\n",
                   at_byte(f, nbytes), BOTTOM + 18, x.digits, nbytes / x.one);
        buf_printf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.*f %s</text>\n", LEFT - 6,
                   at_sec(f, sec) + 4, y.digits, sec / y.one, y.name);
    }
    buf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">limit, %s</text>\n",
               (LEFT + RIGHT) / 2, BOTTOM + 40, x.name);
}

/* A line through all points, and a dot at each. */
static void put_line(Buf *b, const CurveFrame *f, const CurvePoint *point, int count, bool bound)
{
    const char *colour = bound ? "#999" : "#0060c0";
    buf_printf(b, "<path fill=\"none\" stroke=\"%s\"%s d=\"", colour,
               bound ? " stroke-dasharray=\"4 3\"" : " stroke-width=\"2\"");
    for (int i = 0; i < count; i++) {
        double sec = bound ? point[i].none + point[i].bound : point[i].sec;
        buf_printf(b, "%c%.1f %.1f", i ? 'L' : 'M', at_byte(f, (double)point[i].limit),
                   at_sec(f, sec));
    }
    buf_add(b, "\"/>\n");
    for (int i = 0; i < count && !bound; i++)
        buf_printf(b,
                   "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>limit %lld, needs "
                   "%lld bytes, %s</title></circle>\n",
                   at_byte(f, (double)point[i].limit), at_sec(f, point[i].sec), colour,
                   (long long)point[i].limit, (long long)point[i].need,
                   sec_text(b->a, point[i].sec));
}

/* How the values get to the backward that are not just saved; "none" where all are. */
static const char *chosen_text(Arena *a, const CurvePoint *x)
{
    Buf b = {.a = a};
    if (x->word)
        buf_add(&b, x->word);
    else
        buf_add(&b, arena_count(a, x->nagain, "value"));
    return b.text;
}

static void put_number(Buf *b, double x, const PageUnit *u)
{
    buf_add(b, "<td>");
    put_in(b, x, u);
    buf_add(b, "</td>");
}

static void put_table(Buf *b, const CurvePoint *point, int count, const CurveFrame *f)
{
    const PageUnit bytes = unit_of_bytes(f->most), sec = unit_of_sec(f->high);
    buf_printf(b,
               "<div class=\"wide\"><table>\n<tr><th>limit, %s</th><th>needs, %s</th><th>a step, "
               "%s</th><th>added, %%</th><th>at least, %s</th><th>computed again</th><th>in the "
               "host's memory</th><th>gathers kept</th></tr>\n",
               bytes.name, bytes.name, sec.name, sec.name);
    for (int i = 0; i < count; i++) {
        const CurvePoint *x = &point[i];
        buf_add(b, "<tr>");
        put_number(b, (double)x->limit, &bytes);
        put_number(b, (double)x->need, &bytes);
        put_number(b, x->sec, &sec);
        buf_printf(b, "<td>%+.2f</td>", 100 * (x->sec / x->none - 1));
        if (isnan(x->bound))
            buf_add(b, "<td>none</td>");
        else
            put_number(b, x->bound, &sec);
        buf_add(b, "<td>");
        put_escaped(b, chosen_text(b->a, x));
        buf_printf(b, "</td><td>%d</td><td>%d</td></tr>\n", x->naway, x->nkept);
    }
    buf_add(b, "</table></div>\n");
}

/* Says what the least memory costs. */
static void put_insight(Buf *b, const CurvePoint *point, int count)
{
    const CurvePoint *least = point, *most = point;
    for (int i = 1; i < count; i++) {
        least = point[i].need < least->need ? &point[i] : least;
        most = point[i].need > most->need ? &point[i] : most;
    }
    buf_add(b, "<p class=\"insight\">The step runs in ");
    put_bytes(b, least->need);
    buf_printf(
        b, ", %.0f %% of what it needs with all values saved, and then takes %.1f %% longer.</p>\n",
        100 * (double)least->need / (double)MAX(most->need, 1),
        100 * (least->sec / least->none - 1));
}

void curve_page(Buf *b, const CurvePoint *point, int count, const char *title, const char *command)
{
    const CurveFrame f = frame_of(point, count);
    const bool bounded = !isnan(point[0].bound);
    buf_add(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
               "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
               "style-src 'unsafe-inline'\">\n"
               "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
               "<meta name=\"generator\" content=\"tenon " TN_VERSION "\">\n<title>");
    put_escaped(b, title);
    buf_add(b,
            ": seconds over memory</title>\n<style>body{font:14px sans-serif;margin:2em "
            "auto;max-width:1000px;padding:0 16px}code{overflow-wrap:anywhere}.insight{font-size:"
            "17px}.wide{overflow-x:auto}svg{max-width:100%;height:auto}text{font-size:12px}td,th{"
            "padding:2px 10px;text-align:right}@media(max-width:560px){svg{max-width:none}}"
            "</style>\n</head>\n"
            "<body>\n<h1>Seconds over memory: ");
    put_escaped(b, title);
    buf_add(b, "</h1>\n");
    put_insight(b, point, count);
    buf_add(b, "<p><code>");
    put_escaped(b, command);
    buf_printf(b, "</code></p>\n<div class=\"wide\"><svg viewBox=\"0 0 %d %d\" width=\"%d\">\n",
               WIDTH, HEIGHT, WIDTH);
    put_axes(b, &f);
    if (bounded)
        put_line(b, &f, point, count, true);
    put_line(b, &f, point, count, false);
    buf_printf(b, "</svg></div>\n<p>Estimated seconds of a step within each limit; %s</p>\n",
               bounded ? "dashed: no choice of what is computed again has fewer seconds of it."
                       : "a lower bound of them is not known here.");
    put_table(b, point, count, &f);
    buf_add(b, "</body>\n</html>\n");
}
