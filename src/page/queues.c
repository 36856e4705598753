/* Draws the simulated step: a lane for each queue, with what it runs over time, and beneath them,
 * on the same axis, the bytes alive. Where computing stands still for a collective, its lane and
 * that of the collective's group have the colour of what is exposed. A column of the picture has
 * the colour of what takes most of its time; the memory of a column is the most of it. */
#include "page.h"

#include <math.h>

enum { LEFT = 92, RIGHT = 30, LANE = 20, GAP = 6, TOP = 8, MEMORY = 130, FOOT = 44 };

/* Seconds of a column. */
typedef struct QueueColumn {
    double busy, exposed;
} QueueColumn;

typedef struct QueuePicture {
    Page *page;
    SimulatedStep s;
    int ncolumn, nlane, first_group, bottom; /* bottom: of the lanes */
    QueueColumn **lane;
    const char **name;
    int64_t *live; /* by column */
} QueuePicture;

/* ---- columns ---- */

static double column_end(const QueuePicture *q, int column)
{
    return q->s.sec * (column + 1) / q->ncolumn;
}

static int column_at(const QueuePicture *q, double sec)
{
    int c = q->s.sec > 0 ? (int)(sec / q->s.sec * q->ncolumn) : 0;
    return MAX(0, MIN(c, q->ncolumn - 1));
}

static void add_span(const QueuePicture *q, int lane, const PlanSpan *x)
{
    for (int c = column_at(q, x->start); c <= column_at(q, x->end); c++) {
        double from = MAX(x->start, column_end(q, c - 1)), to = MIN(x->end, column_end(q, c));
        QueueColumn *y = &q->lane[lane][c];
        *(x->kind == SPAN_EXPOSED ? &y->exposed : &y->busy) += MAX(0, to - from);
    }
}

/* A group is busy while its calls are exposed. */
static void add_exposed(const QueuePicture *q, const PlanSpan *x)
{
    int lane = q->first_group + simulated_group(&q->s, x);
    const PlanSpan less = {SPAN_CALL, x->step, x->start, x->end};
    add_span(q, QUEUE_COMPUTE, x);
    add_span(q, lane, x);
    for (int c = column_at(q, less.start); c <= column_at(q, less.end); c++)
        q->lane[lane][c].busy = MAX(0, q->lane[lane][c].busy - q->lane[lane][c].exposed);
}

static void fill_lanes(const QueuePicture *q)
{
    for (int i = 0; i < q->s.spans.count; i++) {
        const PlanSpan *x = &q->s.spans.list[i];
        if (x->kind == SPAN_COLLECTIVE)
            add_span(q, q->first_group + simulated_group(&q->s, x), x);
        else if (x->kind != SPAN_EXPOSED)
            add_span(q, (int)q->s.p->step[x->step].queue, x);
    }
    for (int i = 0; i < q->s.spans.count; i++)
        if (q->s.spans.list[i].kind == SPAN_EXPOSED)
            add_exposed(q, &q->s.spans.list[i]);
}

static void fill_live(const QueuePicture *q)
{
    int64_t last = q->s.live[0];
    int column = 0;
    for (int i = 0; i < q->s.spans.count; i++) {
        const PlanSpan *x = &q->s.spans.list[i];
        if (x->kind != SPAN_CALL || q->s.p->step[x->step].queue != QUEUE_COMPUTE)
            continue;
        for (int to = column_at(q, x->start); column < to; column++)
            q->live[column] = MAX(q->live[column], last);
        last = q->s.live[x->step];
        q->live[column] = MAX(q->live[column], last);
    }
    for (; column < q->ncolumn; column++)
        q->live[column] = MAX(q->live[column], last);
}

/* ---- drawing ---- */

static const char *colour_of(const QueuePicture *q, int lane, int column)
{
    const QueueColumn *x = &q->lane[lane][column];
    if (x->busy + x->exposed < 0.5 * q->s.sec / q->ncolumn)
        return NULL;
    return x->exposed > x->busy ? "exposed" : lane < q->first_group ? "busy" : "sending";
}

static int top_of(int lane)
{
    return TOP + lane * (LANE + GAP);
}

static void put_lane(const QueuePicture *q, int lane)
{
    Buf *b = q->page->b;
    int y = top_of(lane);
    buf_printf(b, "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 8, y + 15);
    put_cut(b, q->name[lane], 14);
    buf_add(b, "</text>\n");
    for (int c = 0, end; c < q->ncolumn; c = end) {
        const char *colour = colour_of(q, lane, c);
        for (end = c + 1; end < q->ncolumn && colour_of(q, lane, end) == colour; end++)
            ;
        if (colour)
            buf_printf(b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                       colour, LEFT + c, y, end - c, LANE);
    }
}

static void put_memory(const QueuePicture *q)
{
    Buf *b = q->page->b;
    int64_t most = 1;
    int bottom = q->bottom + MEMORY;
    for (int c = 0; c < q->ncolumn; c++)
        most = MAX(most, q->live[c]);
    buf_printf(b, "<path class=\"memory\" d=\"M%d %d", LEFT, bottom);
    for (int c = 0; c < q->ncolumn; c++)
        buf_printf(b, "V%.1fh1",
                   bottom - (double)(MEMORY - GAP) * (double)q->live[c] / (double)most);
    buf_printf(b, "V%dZ\"/>\n<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", bottom,
               LEFT - 8, q->bottom + GAP + 10);
    put_bytes(b, most);
    buf_printf(b, "</text>\n<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">0</text>\n",
               LEFT - 8, bottom);
}

static void put_axis(const QueuePicture *q)
{
    Buf *b = q->page->b;
    double tick = round_tick(q->s.sec > 0 ? q->s.sec : 1, q->page->npic > 1 ? 5 : 10);
    int y = q->bottom + MEMORY;
    buf_printf(b, "<path class=\"line\" d=\"M%d %dh%d\"/>\n", LEFT, y, q->ncolumn);
    for (int i = 0; i * tick <= q->s.sec; i++) {
        double x = LEFT + q->ncolumn * i * tick / q->s.sec;
        buf_printf(b,
                   "<path class=\"line\" d=\"M%.1f %dv5\"/><text class=\"tick\" x=\"%.1f\" "
                   "y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                   x, y, x, y + 18, i ? sec_text(b->a, i * tick) : "0");
    }
}

static void name_lanes(QueuePicture *q, Arena *a)
{
    static const char *const queues[] = {
        [QUEUE_COMPUTE] = "computing", [QUEUE_OUT] = "copies out", [QUEUE_IN] = "copies in"};
    q->first_group = device_nspace(q->s.p->device) > 1 ? MAX_QUEUE : 1;
    q->nlane = q->first_group + q->s.ngroup;
    q->name = NEWN(a, const char *, q->nlane);
    q->lane = NEWN(a, QueueColumn *, q->nlane);
    for (int i = 0; i < q->nlane; i++) {
        q->name[i] = i < q->first_group ? queues[i] : q->s.group[i - q->first_group].name;
        q->lane[i] = NEWN(a, QueueColumn, q->ncolumn);
    }
    q->bottom = top_of(q->nlane);
}

void page_queues(Page *x, const Picture *d)
{
    int width = x->npic > 1 ? 640 : 1200;
    QueuePicture q = {.page = x, .s = simulate(x->a, d->p), .ncolumn = width - LEFT - RIGHT};
    name_lanes(&q, x->a);
    q.live = NEWN(x->a, int64_t, q.ncolumn);
    fill_lanes(&q);
    fill_live(&q);
    put_side(x, d);
    buf_printf(x->b,
               "<figure><div class=\"wide\"><svg class=\"queues\" id=\"%c-queues\" viewBox=\"0 0 "
               "%d %d\" role=\"img\" aria-label=\"Queues over time\">\n",
               d->id, width, q.bottom + MEMORY + FOOT);
    for (int i = 0; i < q.nlane; i++)
        put_lane(&q, i);
    put_memory(&q);
    put_axis(&q);
    buf_printf(x->b, "</svg></div><figcaption class=\"note\">%s a step, %s of it exposed",
               sec_text(x->a, d->p->est.step), sec_text(x->a, d->p->est.exposed));
    buf_printf(x->b, "; no schedule takes less than %s.</figcaption></figure>\n",
               sec_text(x->a, plan_step_bound(d->p, arena_tmp(x->a), 0)));
}
