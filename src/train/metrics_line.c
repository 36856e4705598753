/* Metrics of a step or of an evaluation, and their lines in files: JSON, whose keys are those that
 * are known, or CSV, with the same columns in each line, empty where a value is not known. A line
 * that was written is read back for its step, its kind and its run. */
#include "trainer.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is known ---- */

static void add_real(MetricsLine *l, const char *name, double value)
{
    l->list[l->count++] = (Metric){.name = name, .real = value};
}

static void add_integer(MetricsLine *l, const char *name, int64_t value)
{
    l->list[l->count++] = (Metric){.name = name, .whole = true, .integer = value};
}

static void fill_step(const Trainer *r, int64_t step, const StepResult *s, MetricsLine *l)
{
    int64_t per_step = r->t->batch * r->t->seq;
    add_real(l, "loss", s->loss);
    add_real(l, "grad_norm", s->has_norm ? s->norm : NAN);
    add_real(l, "lr", s->lr);
    add_integer(l, "tokens", step * per_step);
    if (r->feed.windows)
        add_real(l, "epoch", show_epochs_done(r, step));
    add_real(l, "step_sec", s->sec);
    add_real(l, "tokens_per_sec", (double)per_step / s->sec);
    add_integer(l, "skipped_steps", r->skipped);
    if (r->nrank == 1)
        return;
    add_integer(l, "received_bytes", s->received);
    add_real(l, "comm_wait_sec", s->waited);
}

static void fill_evaluation(const Evaluation *e, MetricsLine *l)
{
    add_real(l, "eval_loss", e->loss);
    add_real(l, evaluation_is_part(e) ? "eval_loss_partial" : "eval_loss_full", e->loss);
    add_real(l, "perplexity", exp(e->loss));
    add_real(l, "bits_per_byte", evaluation_bits(e));
    add_integer(l, "eval_tokens", e->count);
    add_integer(l, "eval_windows", e->windows);
    add_integer(l, "eval_windows_all", e->all);
}

MetricsLine metrics_line(const Trainer *r, int64_t step, const StepResult *s)
{
    MetricsLine l = {.step = step, .run = r->folder.run};
    if (s)
        fill_step(r, step, s, &l);
    else
        fill_evaluation(&r->heldout.last, &l);
    add_integer(&l, "planned_peak_bytes", r->plans.peak);
    if (r->high)
        add_integer(&l, "measured_peak_bytes", r->high);
    else /* no step yet */
        add_real(&l, "measured_peak_bytes", NAN);
    if (tn_plan_host(r->plans.step) && r->high) {
        add_integer(&l, "planned_host_bytes", tn_plan_host(r->plans.step));
        add_integer(&l, "measured_host_bytes", r->high_host);
    }
    add_integer(&l, "rss_peak_bytes", tn_rss_peak());
    return l;
}

/* ---- written ---- */

static const char *const columns[] = {"loss",
                                      "grad_norm",
                                      "lr",
                                      "tokens",
                                      "epoch",
                                      "step_sec",
                                      "tokens_per_sec",
                                      "skipped_steps",
                                      "received_bytes",
                                      "comm_wait_sec",
                                      "eval_loss",
                                      "eval_loss_partial",
                                      "eval_loss_full",
                                      "perplexity",
                                      "bits_per_byte",
                                      "eval_tokens",
                                      "eval_windows",
                                      "eval_windows_all",
                                      "planned_peak_bytes",
                                      "measured_peak_bytes",
                                      "planned_host_bytes",
                                      "measured_host_bytes",
                                      "rss_peak_bytes"};
enum { NCOLUMN = sizeof columns / sizeof *columns };

bool metrics_is_csv(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, ".csv");
}

void metrics_put_head(FILE *f)
{
    fputs("step", f);
    for (int i = 0; i < NCOLUMN; i++)
        fprintf(f, ",%s", columns[i]);
    fputs(",run\n", f);
}

/* A value that is not finite is not shown. */
static void put_value(FILE *f, const Metric *m, const char *unknown)
{
    if (m->whole)
        fprintf(f, "%" PRId64, m->integer);
    else if (isfinite(m->real))
        fprintf(f, "%.9g", m->real);
    else
        fputs(unknown, f);
}

static void put_json(FILE *f, const MetricsLine *l)
{
    fprintf(f, "{\"step\": %" PRId64 ", ", l->step);
    for (int i = 0; i < l->count; i++) {
        fprintf(f, "\"%s\": ", l->list[i].name);
        put_value(f, &l->list[i], "null");
        fputs(", ", f);
    }
    fprintf(f, "\"run\": \"%s\"}\n", l->run);
}

static void put_csv(FILE *f, const MetricsLine *l)
{
    fprintf(f, "%" PRId64, l->step);
    for (int i = 0; i < NCOLUMN; i++) {
        fputc(',', f);
        for (int k = 0; k < l->count; k++)
            if (!strcmp(l->list[k].name, columns[i]))
                put_value(f, &l->list[k], "");
    }
    fprintf(f, ",%s\n", l->run);
}

void metrics_put(FILE *f, const MetricsLine *l, bool csv)
{
    (csv ? put_csv : put_json)(f, l);
}

/* ---- read back ---- */

bool metrics_is_head(const char *line, size_t len)
{
    char *head = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&head, &n);
    if (!f)
        return false;
    metrics_put_head(f);
    bool same = !fclose(f) && n == len && !memcmp(head, line, n);
    free(head);
    return same;
}

static bool read_json(const char *line, size_t len, MetricsKey *k)
{
    json_t *o = json_loadb(line, len, 0, NULL), *step = json_object_get(o, "step");
    bool good = json_is_integer(step);
    k->step = json_integer_value(step);
    k->evaluation = json_object_get(o, "eval_loss") != NULL;
    run_of_state(o, k->run);
    json_decref(o);
    return good;
}

/* Lines of files whose head is that of metrics_put_head. An evaluation has no learning rate. */
static bool read_csv(const char *line, size_t len, MetricsKey *k)
{
    enum { RATE = 3 }; /* its column */
    const char *at = line, *last = line + len - 1;
    char *end;
    int column = 0;
    k->step = strtoll(line, &end, 10);
    k->evaluation = false;
    for (; at < last && column <= NCOLUMN; column++) {
        const char *comma = memchr(at, ',', (size_t)(last - at));
        if (column == RATE)
            k->evaluation = comma == at;
        if (!comma)
            break;
        at = comma + 1;
    }
    snprintf(k->run, sizeof k->run, "%.*s", (int)(last - at), at);
    return end > line && *end == ',' && column == NCOLUMN + 1;
}

bool metrics_read(const char *line, size_t len, bool csv, MetricsKey *k)
{
    *k = (MetricsKey){0};
    return csv ? len > 1 && read_csv(line, len, k) : read_json(line, len, k);
}
