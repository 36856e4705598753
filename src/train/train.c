/* The training loop: reads a batch, runs the step, writes its results; evaluates, samples and saves
 * checkpoints in between. An interrupt ends it after the step, with a checkpoint. */
#include "train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { QUICK_WINDOWS = 64 }; /* of an evaluation on the way */

/* ---- one step ---- */

static int fill_batch(Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    int code = r->data ? tn_data_batch(r->data, t->o.seed, (uint32_t)step, t->batch, t->seq,
                                       r->batch.ids, r->batch.labels)
                       : 0;
    return code ? code : batch_write(r->ctx, r->step, &r->batch);
}

static int fill_scalars(Trainer *r, int64_t step, double lr)
{
    float rate = (float)lr;
    int code = port_put(r->ctx, r->step, "lr", &rate, sizeof rate);
    if (!code)
        code = port_put(r->ctx, r->step, "step", &step, sizeof step);
    return code ? code : port_put(r->ctx, r->step, "seed", &r->t->o.seed, sizeof r->t->o.seed);
}

static double read_scalar(tn_program *x, const char *name)
{
    double value = port_number(x, name);
    return isnan(value) ? NAN : value; /* without its sign, which says nothing */
}

/* The first two steps run over two patterns: what neither left as it was is the memory in use. */
static int run_step(Trainer *r, int64_t step, StepResult *s)
{
    static const int pattern[] = {0x5a, 0xa5};
    int64_t turn = step - r->first - 1;
    bool measured = turn < 2;
    if (measured)
        tn_program_fill(r->step, pattern[turn]);
    double start = wall_sec();
    int code = fill_batch(r, step);
    if (code)
        return code;
    s->lr = schedule_lr(r->t, step, show_time_done(r));
    if ((code = fill_scalars(r, step, s->lr)))
        return code;
    profile_before(r, step);
    if ((code = port_run(r->ctx, r->step))) {
        r->spoiled = true;
        return code;
    }
    s->sec = wall_sec() - start;
    int64_t high = measured ? tn_program_high(r->step, pattern[turn]) : 0;
    int64_t host = measured ? tn_program_high_host(r->step, pattern[turn]) : 0;
    r->high = high > r->high ? high : r->high;
    r->high_host = host > r->high_host ? host : r->high_host;
    s->loss = read_scalar(r->step, "loss");
    s->has_norm = port_there(r->step, "metric.grad_norm");
    s->norm = read_scalar(r->step, "metric.grad_norm");
    return 0;
}

/* ---- a step that is not finite ---- */

/* Names the node that first gave such a value, by the same step run again under checks: the
 * optimizer has left parameters and state as they were. NULL where it cannot be named. */
static const char *find_fault(Trainer *r, int64_t step, double lr)
{
    if (!r->t->o.check) {
        if (fill_batch(r, step) || fill_scalars(r, step, lr) || tn_program_check(r->step, 1))
            return NULL;
        int code = tn_program_run(r->step);
        tn_program_check(r->step, 0);
        if (code)
            return NULL;
    }
    return tn_program_fault(r->step);
}

static void describe_fault(const StepResult *s, const char *fault, char *text, size_t size)
{
    char norm[60] = "";
    if (s->has_norm)
        snprintf(norm, sizeof norm, ", gradient norm %g", s->norm);
    snprintf(text, size, "loss %g%s; the parameters are those before the step%s%s",
             isnan(s->loss) ? fabs(s->loss) : s->loss, norm,
             fault ? "\n  first value that is not finite: " : "", fault ? fault : "");
}

static int check_step(Trainer *r, int64_t step, const StepResult *s)
{
    char text[700];
    if (isfinite(s->loss) && (!s->has_norm || isfinite(s->norm))) {
        r->skipped_now = 0;
        checkpoint_tried(r);
        return 0;
    }
    describe_fault(s, find_fault(r, step, s->lr), text, sizeof text);
    if (!r->t->skip_bad)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "step %" PRId64 ": %s", step, text);
    if (r->skipped_now + 1 >= MOST_SKIPPED)
        return tn_context_fail(r->ctx, TN_CODE_FAIL,
                               "step %" PRId64 ": the last %d steps were skipped: %s", step,
                               MOST_SKIPPED, text);
    r->skipped++;
    r->skipped_now++;
    fprintf(stderr, "tenon: warning: step %" PRId64 " is skipped: %s\n", step, text);
    return 0;
}

/* ---- evaluation ---- */

static int evaluate_and_tell(Trainer *r, int64_t step, int64_t most)
{
    Evaluation e = {.ctx = r->ctx,
                    .x = r->eval,
                    .data = r->data,
                    .batch = pass_rows(r->t),
                    .seq = r->t->seq,
                    .most = most,
                    .stop = r->stop,
                    .progress = r->t->progress};
    if (!r->eval)
        return 0;
    int code = evaluate(&e);
    r->last_eval = e;
    if (code || *r->stop)
        return code;
    show_evaluation(r, step);
    code = write_metrics(r, step, NULL);
    if (code || !e.count)
        return code;
    if (!isfinite(e.loss))
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "step %" PRId64 ": the held-out loss is %g",
                               step, e.loss);
    checkpoint_tried(r);
    return 0;
}

static int show_sample(Trainer *r)
{
    Sample s = sample_of(r, r->stop);
    if (!r->generator)
        return 0;
    printf("---- sample ----\n");
    int code = sample_begin(&s);
    if (!code)
        code = sample_run(&s);
    printf("\n----------------\n");
    fflush(stdout);
    return code;
}

/* ---- the loop ---- */

static bool finished(const Trainer *r, int64_t step)
{
    return *r->stop || show_done(r, step) >= 1;
}

/* An evaluation on the way, if it is this step's turn. */
static int pause_to_evaluate(Trainer *r, int64_t step)
{
    int64_t every = r->t->eval_every;
    return every && step % every == 0 ? evaluate_and_tell(r, step, QUICK_WINDOWS) : 0;
}

static int after_step(Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    int code = checkpoint_pause(r, step);
    if (!code)
        code = pause_to_evaluate(r, step);
    if (!code && t->sample_every && step % t->sample_every == 0)
        code = show_sample(r);
    return code;
}

static int loop(Trainer *r, int64_t *last)
{
    double smooth = 0;
    *last = r->first;
    r->last_save = wall_sec();
    r->start = r->last_save - (r->t->resume ? r->t->resume->sec : 0);
    if (r->first && show_done(r, r->first) >= 1)
        return 0;
    if (r->first && !r->evaluated && pause_to_evaluate(r, r->first))
        return TN_CODE_FAIL;
    for (int64_t step = r->first + 1;; step++) {
        StepResult s = {0};
        show_epoch(r, step);
        if (step == r->first + 1)
            show_estimate(r, step);
        int code = run_step(r, step, &s);
        if (!code)
            code = check_step(r, step, &s);
        if (code)
            return code;
        *last = step;
        smooth = step <= r->first + 3 ? s.sec : 0.95 * smooth + 0.05 * s.sec;
        if (step >= r->first + 3) /* the first two write the whole arena */
            peak_follow(&r->peak_rate, r->ctx, &r->t->o, r->flops, smooth);
        show_step(r, step, &s, smooth);
        code = write_metrics(r, step, &s);
        if (!code)
            code = profile_after(r, finished(r, step));
        if (!code && !finished(r, step))
            code = after_step(r, step);
        if (code || finished(r, step)) /* an interrupt in an evaluation ends at its step */
            return code;
    }
}

/* A run that fails saves what it has, unless that is what has failed; the message says where. */
static int fail_run(Trainer *r, int code, int64_t last)
{
    char message[2000], why[1000];
    if (r->spoiled || r->save_failed || last == r->first)
        return code;
    snprintf(message, sizeof message, "%s", tn_error(r->ctx));
    if (!checkpoint_save(r, last))
        return tn_context_fail(
            r->ctx, code, "%s\n  the state after step %" PRId64 " is saved in %s/step-%" PRId64,
            message, last, r->t->out, last);
    snprintf(why, sizeof why, "%s", tn_error(r->ctx));
    return tn_context_fail(r->ctx, code,
                           "%s\n  and the state after step %" PRId64 " could not be saved: %s",
                           message, last, why);
}

static void show_end(const Trainer *r, int64_t last, double sec)
{
    if (last == r->first) {
        fprintf(stderr, "tenon: already at step %" PRId64 "\n", last);
        return;
    }
    if (!r->data)
        return;
    fprintf(stderr, "trained %" PRId64 " steps in %.1f s", last, sec);
    fprintf(stderr, r->skipped ? ", %" PRId64 " of them skipped\n" : "\n", r->skipped);
}

static int finish(Trainer *r, int64_t last)
{
    double sec = wall_sec() - r->start;
    if (r->t->progress && r->data)
        fputc('\n', stderr);
    int code = checkpoint_save(r, last);
    if (!code)
        show_end(r, last, sec);
    if (!code && r->data)
        code = evaluate_and_tell(r, last, INT64_MAX);
    if (!code && !r->eval) /* nothing is held out */
        checkpoint_tried(r);
    if (!code && !*r->stop)
        code = show_sample(r);
    if (!code && *r->stop) {
        fprintf(stderr, "tenon: interrupted after step %" PRId64 "; saved in %s/step-%" PRId64 "\n",
                last, r->t->out, last);
        show_resume(r);
        return 130;
    }
    if (!code && r->data && r->high)
        fprintf(stderr,
                "memory: planned %" PRId64 " bytes, highest byte written %" PRId64
                ", peak resident %" PRId64 "\n",
                r->peak, r->high, tn_rss_peak());
    int64_t used = tn_program_used(r->step);
    if (!code && r->data && used)
        fprintf(stderr, "memory of the device: in use %" PRId64 " bytes, by all processes\n", used);
    return code;
}

int train(tn_context *ctx, tn_model *m, const TrainOptions *t)
{
    Trainer r = {.ctx = ctx, .m = m, .t = t, .lock = -1};
    int64_t last = 0;
    if (t->resume && t->resume->step > t->steps)
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "train: --steps %" PRId64 ": the run is already at step %" PRId64,
                               t->steps, t->resume->step);
    int code = folder_check(ctx, t);
    if (code)
        return code;
    if (!t->batch_file)
        r.peak_rate = peak_new(ctx, &t->o);
    code = setup(&r);
    if (code == TN_CODE_FIT && t->misfit)
        t->misfit(t->misfit_arg, &r);
    Interrupts before;
    r.stop = interrupt_begin(&before);
    if (!code)
        code = loop(&r, &last);
    else
        last = r.first;
    code = code ? fail_run(&r, code, last) : finish(&r, last);
    interrupt_end(&before);
    drop(&r);
    return code;
}
