/* plot: METRICS.jsonl or METRICS.csv, as `tenon train --metrics` writes it, as a picture of the
 * loss.
 *
 * A first line that begins with "step," is the head of CSV. Lines without a loss, and lines that
 * are not JSON or have another number of columns, are passed over: the last line of a run that is
 * still writing, or was killed, may be incomplete. If a step appears twice (a run that was resumed
 * from an earlier step) the later line counts. */
#include "cli.h"
#include "plot.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int series_add(Series *s, double step, double value, int64_t order)
{
    if (s->count == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 1024;
        Point *p = realloc(s->point, sizeof *p * (size_t)cap);
        if (!p)
            return -1;
        s->point = p;
        s->cap = cap;
    }
    s->point[s->count++] = (Point){step, value, order};
    return 0;
}

static int by_step(const void *s, const void *t)
{
    const Point *p = s, *q = t;
    if (p->step != q->step)
        return p->step < q->step ? -1 : 1;
    return p->order < q->order ? -1 : p->order > q->order;
}

/* Steps ascending, the last of equal ones. */
static void sort(Series *s)
{
    int64_t n = 0;
    if (s->count)
        qsort(s->point, (size_t)s->count, sizeof *s->point, by_step);
    for (int64_t i = 0; i < s->count; i++)
        if (i + 1 == s->count || s->point[i + 1].step != s->point[i].step)
            s->point[n++] = s->point[i];
    s->count = n;
}

/* ---- reading ---- */

enum { STEP, LOSS, RATE, TOKENS, EVALUATED, EVALUATED_PART, NFIELD };

static const char *const field_name[NFIELD] = {"step",   "loss",      "lr",
                                               "tokens", "eval_loss", "eval_loss_partial"};

typedef struct MetricsReader {
    Plot *plot;
    const char *path;
    int64_t line, bad, first_bad; /* lines; of them those that are not metrics */
    int columns;                  /* of CSV; 0: lines are JSON */
    int column[NFIELD];           /* of these from 1 on; 0: the file has none */
} MetricsReader;

static int add_value(Series *s, json_t *step, json_t *value, int64_t order)
{
    if (!value || (!json_is_number(value) && !json_is_null(value)))
        return 0;
    double x = json_is_number(value) ? json_number_value(value) : NAN;
    return series_add(s, json_number_value(step), x, order);
}

/* The next cell of a line, which *rest is left behind. */
static const char *next_cell(const char **rest, size_t *n)
{
    const char *cell = *rest;
    *n = strcspn(cell, ",\r\n");
    *rest = cell[*n] == ',' ? cell + *n + 1 : NULL;
    return cell;
}

static void read_head(MetricsReader *r, const char *text)
{
    while (text) {
        size_t n;
        const char *cell = next_cell(&text, &n);
        r->columns++;
        for (int i = 0; i < NFIELD; i++)
            if (strlen(field_name[i]) == n && !memcmp(cell, field_name[i], n))
                r->column[i] = r->columns;
    }
}

/* The numbers of a line of CSV; NAN: an empty cell, which says that the value is not known. False:
 * the line has another number of cells, or no step. */
static bool read_cells(const MetricsReader *r, const char *text, double *value)
{
    int at = 0;
    for (int i = 0; i < NFIELD; i++)
        value[i] = NAN;
    while (text) {
        size_t n;
        const char *cell = next_cell(&text, &n);
        at++;
        for (int i = 0; i < NFIELD && n; i++)
            if (r->column[i] == at)
                value[i] = strtod(cell, NULL);
    }
    return at == r->columns && isfinite(value[STEP]);
}

static void see_tokens(MetricsReader *r, int64_t tokens)
{
    r->plot->tokens = tokens > r->plot->tokens ? tokens : r->plot->tokens;
}

/* A line without a learning rate is an evaluation's. */
static int add_cells(MetricsReader *r, const char *text)
{
    double value[NFIELD];
    if (!read_cells(r, text, value)) {
        if (!r->bad++)
            r->first_bad = r->line;
        return 0;
    }
    if (isfinite(value[RATE])) {
        if (isfinite(value[TOKENS]))
            see_tokens(r, (int64_t)value[TOKENS]);
        return series_add(&r->plot->train, value[STEP], value[LOSS], r->line);
    }
    bool part = isfinite(value[EVALUATED_PART]);
    return series_add(part ? &r->plot->part : &r->plot->full, value[STEP], value[EVALUATED],
                      r->line);
}

static int add_object(MetricsReader *r, const char *text, size_t n)
{
    json_t *o = json_loadb(text, n, 0, NULL), *step = json_object_get(o, "step");
    int code = 0;
    if (json_is_number(step)) {
        bool part = json_object_get(o, "eval_loss_partial") != NULL; /* older files do not say */
        Series *held_out = part ? &r->plot->part : &r->plot->full;
        code = add_value(&r->plot->train, step, json_object_get(o, "loss"), r->line) ||
               add_value(held_out, step, json_object_get(o, "eval_loss"), r->line);
        json_t *tokens = json_object_get(o, "tokens");
        if (json_is_integer(tokens))
            see_tokens(r, json_integer_value(tokens));
    } else if (n > strspn(text, " \t\r\n") && !r->bad++) {
        r->first_bad = r->line;
    }
    json_decref(o);
    return code;
}

static int add_line(MetricsReader *r, const char *text, size_t n)
{
    int code = 0;
    r->line++;
    if (r->line == 1 && !strncmp(text, "step,", strlen("step,")))
        read_head(r, text);
    else
        code = r->columns ? add_cells(r, text) : add_object(r, text, n);
    return code ? report(TN_CODE_FAIL, "out of memory") : 0;
}

static int read_lines(MetricsReader *r, FILE *f)
{
    char *text = NULL;
    size_t cap = 0;
    ssize_t n;
    int code = 0;
    while (!code && (errno = 0, n = getline(&text, &cap, f)) >= 0)
        code = add_line(r, text, (size_t)n);
    if (!code && ferror(f))
        code = report(TN_CODE_FAIL, "%s: cannot read: %s", r->path, strerror(errno));
    free(text);
    return code;
}

static bool any_finite(const Series *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (isfinite(s->point[i].value))
            return true;
    return false;
}

static int read_file(MetricsReader *r, const char *path)
{
    char count[40];
    bool standard = !strcmp(path, "-");
    r->path = standard ? "standard input" : path;
    FILE *f = standard ? stdin : fopen(path, "r");
    if (!f)
        return report(TN_CODE_FAIL, "%s: cannot open: %s", path, strerror(errno));
    int code = read_lines(r, f);
    if (!standard)
        fclose(f);
    if (code)
        return code;
    bool torn = r->bad == 1 && r->first_bad == r->line; /* the last line alone: in the writing */
    if (r->bad && !torn)
        fprintf(stderr, "tenon: warning: %s: not metrics: %s, the first is line %lld\n", r->path,
                tn_count_text(r->bad, "line", count, sizeof count), (long long)r->first_bad);
    sort(&r->plot->train);
    sort(&r->plot->part);
    sort(&r->plot->full);
    if (any_finite(&r->plot->train) || any_finite(&r->plot->part) || any_finite(&r->plot->full))
        return 0;
    return report(TN_CODE_FAIL,
                  "%s: expected lines of JSON or CSV with \"step\" and \"loss\" or \"eval_loss\", "
                  "found none with a finite loss",
                  r->path);
}

/* ---- the command ---- */

static int write_plot(const Plot *p, const char *path)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    int bad = !f || plot_write(p, f);
    bad |= (f && fclose(f)) || !text; /* without memory for its end fclose leaves NULL */
    int code = bad ? report(TN_CODE_FAIL, "out of memory") : write_text(path, text);
    free(text);
    return code;
}

int command_plot(int argc, char **argv)
{
    Plot p = {0};
    MetricsReader r = {.plot = &p};
    const char *output;
    const OptionSlot slots[] = {
        {"output", &output}, {"title", &p.title}, {"smooth", &p.smooth}, {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "plot", NULL, slots);
    Texts args;
    int code = options_parse(command_find("plot"), argc, argv, table, &args, 1, 1);
    if (code >= 0)
        return code;
    if (!output)
        return report(TN_CODE_USAGE, "plot: --output is missing");
    code = read_file(&r, args.text[0]);
    if (!code)
        code = write_plot(&p, output);
    free(p.train.point);
    free(p.part.point);
    free(p.full.point);
    return code;
}
