/* plan --pareto: the seconds of a step over the memory that it is given, as text, JSON or a page.
 */
#include "cli.h"

#include "../train/train.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* arg: time_t, when the curve began */
static void tell(void *arg, int done, int all)
{
    if (isatty(STDERR_FILENO) && done < all)
        line_show(stderr, "  %d of %d limits", done, all);
    else if (isatty(STDERR_FILENO))
        line_clear(stderr);
    else if (took_long(*(time_t *)arg))
        fprintf(stderr, "tenon: %d of %d limits\n", done, all);
}

static void put_row(FILE *f, const tn_curve_point *x)
{
    char again[40], bound[40] = "none";
    tn_count_text(x->nvalue, "value", again, sizeof again);
    if (!isnan(x->bound_sec))
        snprintf(bound, sizeof bound, "%.4g", x->bound_sec);
    fprintf(f, "%16lld %16lld %12.6g %+8.2f%% %12s  %-14s %9d %7d\n", (long long)x->limit,
            (long long)x->need, x->sec, 100 * (x->sec / x->none_sec - 1), bound,
            x->word ? x->word : again, x->noffloaded, x->ngathered);
}

static void put_text(FILE *f, const tn_curve_point *point, int count)
{
    fprintf(f, "%16s %16s %12s %9s %12s  %-14s %9s %7s\n", "limit, bytes", "needs", "s a step",
            "added", "at least, s", "computed again", "offloaded", "gathers");
    for (int i = 0; i < count; i++)
        put_row(f, &point[i]);
}

static json_t *point_json(const tn_curve_point *x)
{
    json_t *bound = isnan(x->bound_sec) ? json_null() : json_real(x->bound_sec);
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:o, s:s?, s:i, s:i, s:i}", "budget_bytes",
                     (json_int_t)x->limit, "need_bytes", (json_int_t)x->need, "peak_bytes",
                     (json_int_t)x->peak, "est_step_sec", x->sec, "added_sec", x->sec - x->none_sec,
                     "bound_sec", bound, "policy", x->word, "values", x->nvalue, "offloaded",
                     x->noffloaded, "gathers_kept", x->ngathered);
}

static int put_json(FILE *f, const tn_curve_point *point, int count)
{
    json_t *o = json_object(), *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, point_json(&point[i]));
    json_object_set_new(o, "pareto", list);
    return write_json(f, o);
}

int pareto(tn_context *ctx, const Pareto *x)
{
    enum { POINTS = 12 };
    tn_curve_point point[POINTS];
    const char *page;
    time_t began = time(NULL);
    int code = tn_graph_curve(x->graph, x->passes, x->o, POINTS, point, tell, &began);
    if (!code && x->html)
        code = tn_curve_page(ctx, point, POINTS, x->title, x->command, &page);
    if (code)
        return report_last(code, ctx);
    if (x->html && (code = write_text(x->html, page)))
        return code;
    if (x->json)
        return put_json(x->to, point, POINTS);
    put_text(x->to, point, POINTS);
    return 0;
}
