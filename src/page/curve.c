/* A curve of a step's seconds over the bytes that it may need, as an HTML page that needs nothing
 * else: what was chosen, the bound beneath it, and the numbers. */
#include "page.h"

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
        f.low = MIN(f.low, MIN(point[i].sec, point[i].none + point[i].bound));
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

static void put_axes(Buf *b, const CurveFrame *f)
{
    buf_printf(b, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#888\"/>\n", LEFT, TOP, BOTTOM,
               RIGHT);
    for (int i = 0; i <= TICKS; i++) {
        double nbytes = f->least + (f->most - f->least) * i / TICKS;
        double sec = f->low + (f->high - f->low) * i / TICKS;
        buf_printf(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
                   at_byte(f, nbytes), BOTTOM + 18, nbytes / 0x1p20);
        buf_printf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6,
                   at_sec(f, sec) + 4, sec_text(b->a, sec));
    }
    buf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">limit, MiB</text>\n",
               (LEFT + RIGHT) / 2, BOTTOM + 40);
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

static void put_table(Buf *b, const CurvePoint *point, int count)
{
    buf_add(b, "<table>\n<tr><th>limit, bytes</th><th>needs</th><th>a step</th><th>added</th>"
               "<th>at least</th><th>chosen</th></tr>\n");
    for (int i = 0; i < count; i++) {
        const CurvePoint *x = &point[i];
        buf_printf(b, "<tr><td>%lld</td><td>%lld</td><td>%s</td><td>%+.2f %%</td><td>%s</td><td>",
                   (long long)x->limit, (long long)x->need, sec_text(b->a, x->sec),
                   100 * (x->sec / x->none - 1), sec_text(b->a, x->bound));
        put_escaped(b, x->word ? x->word : "");
        buf_printf(b, x->word ? "</td></tr>\n" : "%d values</td></tr>\n", x->nvalue);
    }
    buf_add(b, "</table>\n");
}

void curve_page(Buf *b, const CurvePoint *point, int count, const char *title, const char *command)
{
    CurveFrame f = frame_of(point, count);
    buf_add(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
               "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
               "style-src 'unsafe-inline'\">\n"
               "<meta name=\"generator\" content=\"tenon " TN_VERSION "\">\n<title>");
    put_escaped(b, title);
    buf_add(b, ": seconds over memory</title>\n<style>body{font:14px sans-serif;margin:2em}"
               "text{font-size:12px}td,th{padding:2px 10px;text-align:right}</style>\n</head>\n"
               "<body>\n<h1>Seconds over memory: ");
    put_escaped(b, title);
    buf_add(b, "</h1>\n<p><code>");
    put_escaped(b, command);
    buf_printf(b, "</code></p>\n<svg viewBox=\"0 0 %d %d\" width=\"%d\">\n", WIDTH, HEIGHT, WIDTH);
    put_axes(b, &f);
    put_line(b, &f, point, count, true);
    put_line(b, &f, point, count, false);
    buf_add(b,
            "</svg>\n<p>Estimated seconds of a step within each limit; dashed: no choice of what "
            "is computed again has fewer seconds of it.</p>\n");
    put_table(b, point, count);
    buf_add(b, "</body>\n</html>\n");
}
