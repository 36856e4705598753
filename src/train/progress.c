/* Prints a run's plan before it starts, and its progress. */
#define _GNU_SOURCE /* program_invocation_name */
#include "trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

const char *show_line_start(const Trainer *r)
{
    return r->t->progress ? "\r\033[K" : "";
}

/* The share of rows that each source of a mixture has, and how often its own come in an epoch,
 * which has as many rows as all sources together. */
static void show_shares(const Trainer *r)
{
    const Feed *f = &r->feed;
    int64_t windows, nlabel;
    double sum = 0;
    for (int i = 0; f->nmore && i <= f->nmore; i++)
        sum += r->t->weight[i];
    for (int i = 0; f->nmore && i <= f->nmore; i++) {
        double share = r->t->weight[i] / sum;
        tn_data *own = i ? f->more[i - 1].data : f->source.data;
        if (tn_data_windows(own, 0, r->t->seq, &windows, &nlabel) || !windows)
            return;
        fprintf(r->log,
                "mixture: %.4g %% of the rows from %s, whose %" PRId64
                " rows come %.3g times an epoch\n",
                100 * share, r->t->data[i], windows, share * (double)f->windows / (double)windows);
    }
}

static void show_data(const Trainer *r)
{
    int64_t ntrain, nval, nbytes, none, windows, nlabel;
    tn_row_counts c;
    int rows = tn_data_row_counts(r->feed.data, &c);
    tn_data_size(r->feed.data, &ntrain, &nval, &nbytes);
    source_tell(&r->feed.source);
    for (int i = 0; i < r->feed.nmore; i++)
        source_tell(&r->feed.more[i]);
    if (r->feed.held.data)
        tn_data_size(r->feed.held.data, &none, &nval, &nbytes);
    if (*r->feed.held.told)
        fprintf(r->log, "held-out data: %s\n", r->feed.held.told);
    fprintf(r->log, "data: %" PRId64 " tokens to train on, %" PRId64 " held out\n", ntrain, nval);
    if (tn_data_windows(r->feed.data, 0, r->t->seq, &windows, &nlabel))
        return;
    double places = (double)windows * (double)r->t->seq, filled = (double)nlabel / places;
    fprintf(r->log, "epoch: %" PRId64 " %s of %" PRId64 " tokens, %.6g steps", windows,
            rows ? "rows" : "windows", r->t->seq, (double)windows / (double)r->t->batch);
    if (rows)
        fprintf(r->log, "; %" PRId64 " labels, the rest of their places counts for nothing",
                nlabel);
    else if (filled < 0.99)
        fprintf(r->log, "; %.0f %% of their places are empty, as files are short",
                100 * (1 - filled));
    fputc('\n', r->log);
    show_shares(r);
}

void show_plan(const Trainer *r)
{
    const char *text;
    if (!r->feed.data || tn_plan_text(r->plans.step, 0, &text))
        return;
    fprintf(r->log, "model: %" PRId64 " parameters", tn_model_count(r->m));
    if (tn_model_base(r->m))
        fprintf(r->log, ", of which %" PRId64 " of adapters are trained", tn_model_trained(r->m));
    fputc('\n', r->log);
    show_data(r);
    fputs(text, r->log);
    if (r->plans.arena > r->plans.peak)
        fprintf(r->log,
                "  arena         %12" PRId64
                " bytes (evaluation and sampling need more than the step)\n",
                r->plans.arena);
}

double show_time_done(const Trainer *r)
{
    return r->t->max_sec > 0 ? fmin(1, r->clock.elapsed / train_sec(r->t)) : 0;
}

/* Epochs begun with the last row of a step. */
static int64_t epochs(const Trainer *r, int64_t step)
{
    return step < 1 ? 0 : (step * r->t->batch - 1) / r->feed.windows + 1;
}

void show_epoch(const Trainer *r, int64_t step)
{
    enum { FEW = 10 }; /* steps of epochs that are too short to be told of */
    int64_t windows = r->feed.windows, done = (step - 1) * r->t->batch;
    if (!windows)
        return;
    int64_t now = epochs(r, step), before = epochs(r, step - 1);
    if (step == r->first + 1 && done % windows)
        fprintf(r->log, "epoch %" PRId64 " goes on at window %" PRId64 " of %" PRId64 "\n",
                done / windows + 1, done % windows + 1, windows);
    else if (now > before && (step == r->first + 1 || windows >= FEW * r->t->batch))
        fprintf(r->log, "%sepoch %" PRId64 " begins with step %" PRId64 "\n", show_line_start(r),
                now, step);
}

double show_done(const Trainer *r, int64_t step)
{
    double by_step = (double)step / (double)r->t->steps;
    return fmin(1, fmax(by_step, show_time_done(r)));
}

static double left_sec(const Trainer *r, int64_t step, double smooth_sec)
{
    double left = smooth_sec * (double)(r->t->steps - step);
    if (r->t->max_sec > 0)
        left = fmin(left, train_sec(r->t) - r->clock.elapsed);
    return fmax(left, 0);
}

double show_epochs_done(const Trainer *r, int64_t step)
{
    return (double)step * (double)r->t->batch / (double)r->feed.windows;
}

/* The line of progress on a terminal, else a line. */
__attribute__((format(printf, 2, 3))) static void put_line(const Trainer *r, const char *format,
                                                           ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->t->progress)
        line_show(r->log, "%s", text);
    else
        fprintf(r->log, "%s\n", text);
}

/* On a terminal one line that is rewritten; elsewhere a line for each fiftieth of the run. */
static void show_progress(const Trainer *r, int64_t step, const StepResult *s, double smooth_sec)
{
    const TrainOptions *t = r->t;
    double done = show_done(r, step), before = fmax(0, done - s->sec / fmax(train_sec(t), 1e-9));
    if (t->max_sec == 0)
        before = (double)(step - 1) / (double)t->steps;
    if (!t->progress && step > 1 && done < 1 && floor(50 * done) <= floor(50 * before))
        return;
    char all[24] = "", peak[60] = "";
    if (t->steps != INT64_MAX)
        snprintf(all, sizeof all, "/%" PRId64, t->steps);
    if (r->rate.flops > 0 && !r->rate.stale)
        snprintf(peak, sizeof peak, "  %.0f %% of product peak",
                 100 * peak_part(&r->rate, r->plans.flops, smooth_sec));
    put_line(r, "step %" PRId64 "%s  epoch %.2f  loss %.4f  %.0f tokens/s%s  %.0f s left", step,
             all, show_epochs_done(r, step), s->loss, (double)(t->batch * t->seq) / smooth_sec,
             peak, left_sec(r, step, smooth_sec));
}

void show_estimate(const Trainer *r, int64_t step)
{
    double left = left_sec(r, step - 1, r->plans.est_sec);
    if (r->feed.data)
        put_line(r, "step %" PRId64 "  estimated %.3g s a step, %.0f s left", step,
                 r->plans.est_sec, left);
}

void show_step(const Trainer *r, int64_t step, const StepResult *s, double smooth_sec)
{
    if (r->feed.data) {
        show_progress(r, step, s, smooth_sec);
        return;
    }
    fprintf(r->rank ? r->log : stdout, "step %" PRId64 " loss %.9g\n", step,
            isnan(s->loss) ? fabs(s->loss) : s->loss);
    fflush(stdout);
}

/* Shows the loss as perplexity and bits per byte, in brackets. */
static void show_meaning(const Trainer *r, const Evaluation *e)
{
    double bits = evaluation_bits(e);
    if (!e->count)
        return;
    fprintf(r->log, " (perplexity %.6g", exp(e->loss));
    fprintf(r->log, isnan(bits) ? ")" : ", %.4f bits per byte)", bits);
}

void show_evaluation(const Trainer *r, int64_t step)
{
    const Evaluation *e = &r->heldout.last;
    fprintf(r->log, "%sstep %" PRId64 "  %sheld-out loss %.4f nats per token", show_line_start(r),
            step, evaluation_is_part(e) ? "partial " : "", e->loss);
    show_meaning(r, e);
    fprintf(r->log, ", of %" PRId64 " tokens in %" PRId64 " of %" PRId64 " windows", e->count,
            e->windows, e->all);
    if (e->stopped || e->late)
        fprintf(r->log, "; %s before %" PRId64, e->stopped ? "interrupted" : "--max-sec ended it",
                e->planned);
    fprintf(r->log, r->heldout.known ? " (evaluated before)\n" : "\n");
}

/* A word as a shell reads it. */
static void put_word(FILE *to, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+=,@%-";
    if (*text && !text[strspn(text, plain)]) {
        fputs(text, to);
        return;
    }
    fputc('\'', to);
    for (; *text; text++)
        *text == '\'' ? fputs("'\\''", to) : fputc(*text, to);
    fputc('\'', to);
}

void show_resume(const Trainer *r)
{
    fputs("to go on: ", r->log);
    put_word(r->log, program_invocation_name);
    fputs(" train --resume --out ", r->log);
    put_word(r->log, r->t->out);
    fputc('\n', r->log);
}
