/* The training loop: reads a batch, runs the step, writes its results; evaluates, samples and saves
 * checkpoints in between. An interrupt ends it after the step, with a checkpoint. */
#include "trainer.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one step ---- */

static int read_batch(Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    double start = wall_sec();
    Batch *b = &r->feed.batch;
    int code = r->feed.data ? tn_data_packed(r->feed.data, t->o.seed, (uint32_t)step, t->batch,
                                             t->seq, b->ids, b->labels, b->starts)
                            : 0;
    r->feed.unread = code != 0;
    r->feed.read_sec = wall_sec() - start;
    return code;
}

/* With ranks the batch is read before the step before it ends, whose message tells all of one that
 * could not: then all try it again, and know why it fails. */
static int get_batch(Trainer *r, int64_t step)
{
    return r->feed.unread ? tn_agree_code(r->ctx, read_batch(r, step)) : 0;
}

static int fill(Trainer *r, int64_t step, double lr)
{
    int code = batch_write(r->ctx, r->step, &r->feed.batch);
    if (!code)
        code = port_put_number(r->ctx, r->step, "lr", lr);
    if (!code)
        code = port_put(r->ctx, r->step, "step", &step, sizeof step);
    return code ? code : port_put(r->ctx, r->step, "seed", &r->t->o.seed, sizeof r->t->o.seed);
}

static double read_scalar(tn_program *x, const char *name)
{
    double value = port_number(x, name);
    return isnan(value) ? NAN : value; /* without its sign, which says nothing */
}

/* Runs what was filled in; counts what came from other ranks meanwhile. */
static int run_filled(Trainer *r, StepResult *s)
{
    int64_t nreceived = 0;
    double waited = 0;
    tn_ranks_count(r->ctx, &nreceived, &waited);
    int code = port_run(r->ctx, r->step);
    tn_ranks_count(r->ctx, &s->received, &s->waited);
    s->received -= nreceived;
    s->waited -= waited;
    r->ending.spoiled |= code != 0;
    return code;
}

static void read_results(Trainer *r, StepResult *s)
{
    s->loss = read_scalar(r->step, "loss");
    s->has_norm = port_there(r->step, "metric.grad_norm");
    s->norm = read_scalar(r->step, "metric.grad_norm");
}

/* The first two steps run over two patterns: what neither left as it was is the memory in use. */
static int run_step(Trainer *r, int64_t step, StepResult *s)
{
    static const int pattern[] = {0x5a, 0xa5};
    int64_t turn = step - r->first - 1;
    bool measured = turn < 2;
    if (measured)
        tn_program_fill(r->step, pattern[turn]);
    int code = get_batch(r, step);
    if (code)
        return code;
    double start = wall_sec();
    s->lr = schedule_lr(r->t, step, show_time_done(r));
    profile_before(r, step);
    code = fill(r, step, s->lr);
    if (!code)
        code = run_filled(r, s);
    if (code)
        return agree_end(r->ctx, &r->ending, code);
    s->sec = r->feed.read_sec + wall_sec() - start;
    int64_t high = measured ? tn_program_high(r->step, pattern[turn]) : 0;
    int64_t host = measured ? tn_program_high_host(r->step, pattern[turn]) : 0;
    r->high = high > r->high ? high : r->high;
    r->high_host = host > r->high_host ? host : r->high_host;
    read_results(r, s);
    return 0;
}

/* ---- a step that is not finite ---- */

/* The first such value of a rank. */
typedef struct StepFault {
    int64_t at;     /* in the order of calls; -1: there is none */
    char node[300]; /* its name */
} StepFault;

enum { FAULT = 350 }; /* of the text that says it */

/* The same step run again under checks: the optimizer has left parameters and state as they were,
 * and the batch is still there. */
static int run_checked(Trainer *r, int64_t step, double lr)
{
    int code = fill(r, step, lr);
    if (!code)
        code = tn_program_check(r->step, 1);
    code = tn_agree_code(r->ctx, code);
    if (!code)
        code = agree_end(r->ctx, &r->ending, port_run(r->ctx, r->step));
    tn_program_check(r->step, 0);
    return code;
}

static StepFault own_fault(const Trainer *r)
{
    StepFault own = {.at = tn_program_fault_at(r->step)};
    const char *node = tn_program_fault(r->step);
    snprintf(own.node, sizeof own.node, "%s", node ? node : "");
    return own;
}

/* The first of all ranks: the others have it from there. */
static void first_fault(Trainer *r, StepFault *all, char text[FAULT])
{
    const StepFault own = own_fault(r), *first = NULL;
    int code = tn_gather(r->ctx, &own, sizeof own, all);
    for (int i = 0; !code && i < r->nrank; i++)
        if (all[i].at >= 0 && (!first || all[i].at < first->at))
            first = &all[i];
    if (first && r->nrank > 1)
        snprintf(text, FAULT, "%s, on rank %d", first->node, (int)(first - all));
    else if (first)
        snprintf(text, FAULT, "%s", first->node);
}

/* Which node first gave such a value; "" where it cannot be said. */
static void find_fault(Trainer *r, int64_t step, double lr, char text[FAULT])
{
    StepFault *all = malloc((size_t)r->nrank * sizeof *all);
    *text = 0;
    if (!tn_agree_code(r->ctx, all ? 0 : TN_CODE_FAIL) &&
        (r->t->o.check || !run_checked(r, step, lr)))
        first_fault(r, all, text);
    free(all);
}

static void describe_fault(const StepResult *s, const char *fault, char *text, size_t size)
{
    char norm[60] = "";
    if (s->has_norm)
        snprintf(norm, sizeof norm, ", gradient norm %g", s->norm);
    snprintf(text, size, "loss %g%s; the parameters are those before the step%s%s",
             isnan(s->loss) ? fabs(s->loss) : s->loss, norm,
             *fault ? "\n  first value that is not finite: " : "", fault);
}

static int check_step(Trainer *r, int64_t step, const StepResult *s)
{
    char text[700], fault[FAULT];
    if (isfinite(s->loss) && (!s->has_norm || isfinite(s->norm))) {
        r->skipped_now = 0;
        checkpoint_tried(r);
        return 0;
    }
    find_fault(r, step, s->lr, fault);
    describe_fault(s, fault, text, sizeof text);
    if (!r->t->skip_bad)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "step %" PRId64 ": %s", step, text);
    if (r->skipped_now + 1 >= MOST_SKIPPED)
        return tn_context_fail(r->ctx, TN_CODE_FAIL,
                               "step %" PRId64 ": the last %d steps were skipped: %s", step,
                               MOST_SKIPPED, text);
    r->skipped++;
    r->skipped_now++;
    fprintf(r->log, "tenon: warning: step %" PRId64 " is skipped: %s\n", step, text);
    return 0;
}

/* ---- evaluation ---- */

/* Seconds estimated for a pass, scaled as steps compare with their estimate. */
static double pass_sec(const Trainer *r)
{
    double sec, added;
    tn_plan_sec(r->plans.eval, &sec, &added);
    return r->clock.step_sec > 0 && r->plans.est_sec > 0
               ? sec * r->clock.step_sec / r->plans.est_sec
               : sec;
}

/* Whether the tokens of all that is evaluated are of one tokenizer. */
static bool alike_sources(const Feed *f)
{
    bool alike = true;
    for (int i = 0; i < f->nmore && !f->held.data; i++)
        alike &= !strcmp(f->more[i].type, f->source.type);
    return alike;
}

/* end: the run's last one. What a signal has ended is shown, and is no evaluation that stays. */
static int evaluate_and_tell(Trainer *r, int64_t step, bool end)
{
    const TrainOptions *t = r->t;
    if (!r->eval)
        return 0;
    Evaluation e = {.ctx = r->ctx,
                    .x = r->eval,
                    .plan = r->plans.eval,
                    .data = feed_held(&r->feed),
                    .batch = pass_rows(t),
                    .same = t->same,
                    .bytes = alike_sources(&r->feed) ? feed_source(&r->feed)->bytes : NULL,
                    .nid = feed_source(&r->feed)->nid,
                    .seq = t->seq,
                    .most = evaluation_most(t, step, end),
                    .stop = r->ending.stop,
                    .deadline = t->max_sec > 0 ? r->clock.start + t->max_sec : 0,
                    .pass_sec = pass_sec(r),
                    .announce = end,
                    .progress = t->progress,
                    .log = r->log};
    int code = evaluate(&e);
    r->heldout.last = e;
    r->ending.stopping |= e.stopped;
    if (!code && (e.count || !r->ending.stopping))
        show_evaluation(r, step);
    if (code || r->ending.stopping)
        return code;
    r->heldout.step = step;
    code = tn_agree_code(r->ctx, write_metrics(r, step, NULL));
    if (code || !e.count)
        return code;
    if (!isfinite(e.loss))
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "step %" PRId64 ": the held-out loss is %g",
                               step, e.loss);
    if (!r->rank)
        folder_evaluated(r, step);
    code = best_see(r, step);
    checkpoint_tried(r);
    return code;
}

/* An evaluation that the folder has: it is told and counts as if it were done now. */
static int take_known(Trainer *r, int64_t step)
{
    if (!r->rank)
        show_evaluation(r, step);
    agree_later(r->ctx, &r->ending, write_metrics(r, step, NULL));
    int code = agree_settle(r->ctx, &r->ending);
    return code ? code : best_see(r, step);
}

/* The evaluation at the end, or what is known of it. */
static int evaluate_end(Trainer *r, int64_t step)
{
    if (r->ending.exhausted && r->heldout.step == step)
        return 0;
    return r->heldout.known ? take_known(r, step) : evaluate_and_tell(r, step, true);
}

static int show_sample(Trainer *r)
{
    Sample s = sample_of(r, r->ending.stop);
    if (!r->plans.generator)
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
    return r->ending.stopping || r->ending.exhausted || show_done(r, step) >= 1;
}

/* An evaluation during training, if it is this step's turn. */
static int pause_to_evaluate(Trainer *r, int64_t step)
{
    int64_t every = r->t->eval_every;
    return every && step % every == 0 ? evaluate_and_tell(r, step, false) : 0;
}

/* The one after the step that the run goes on from, where its checkpoint was saved before it. */
static int evaluate_first(Trainer *r)
{
    int64_t every = r->t->eval_every, first = r->first;
    bool known = r->heldout.known, seen = r->best.seen >= first && r->heldout.evaluated;
    int code = 0;
    if (first && every && first % every == 0 && !seen)
        code = known ? take_known(r, first) : evaluate_and_tell(r, first, false);
    r->heldout.known = false;
    return code;
}

static bool pauses(const Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    return checkpoint_due(r, step) || (t->eval_every && step % t->eval_every == 0) ||
           (t->sample_every && step % t->sample_every == 0);
}

static int after_step(Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    if (!pauses(r, step))
        return 0;
    int code = agree_settle(r->ctx, &r->ending);
    if (!code)
        code = checkpoint_pause(r, step);
    if (!code)
        code = pause_to_evaluate(r, step);
    if (!code && t->sample_every && step % t->sample_every == 0)
        code = show_sample(r);
    return code ? code : agree(r, NULL); /* that took its time */
}

/* Shows a step and writes it down, all of which rank 0 may fail at. Other ranks hear of that with
 * the next message, or before anything that takes long. */
static int tell_step(Trainer *r, int64_t step, const StepResult *s, double smooth)
{
    r->clock.step_sec = smooth;
    if (!r->rank)
        peak_see(&r->rate, r->plans.flops, s->sec);
    if (step >= r->first + 3 && !r->rank) /* the first two write the whole arena */
        peak_follow(&r->rate, r->ctx, &r->t->o, r->plans.flops, smooth);
    show_step(r, step, s, smooth);
    int code = write_metrics(r, step, s);
    if (!code)
        code = profile_after(r, finished(r, step));
    agree_later(r->ctx, &r->ending, code);
    return r->nrank == 1 || finished(r, step) ? agree_settle(r->ctx, &r->ending) : 0;
}

static int one_step(Trainer *r, int64_t step, StepResult *s)
{
    show_epoch(r, step);
    if (step == r->first + 1)
        show_estimate(r, step);
    int code = run_step(r, step, s);
    if (!code)
        code = check_step(r, step, s);
    if (code)
        return code;
    r->feed.unread = true;
    if (r->nrank > 1)
        read_batch(r, step + 1);
    return 0;
}

static int loop(Trainer *r, int64_t *last)
{
    double smooth = 0;
    *last = r->first;
    r->clock.last_save = wall_sec();
    r->clock.elapsed = r->t->resume ? r->t->resume->sec : 0;
    r->clock.start = r->clock.last_save - r->clock.elapsed;
    r->feed.unread = true;
    if (r->first && (r->ending.exhausted || show_done(r, r->first) >= 1))
        return 0;
    if (evaluate_first(r))
        return TN_CODE_FAIL;
    if (r->ending.exhausted)
        return 0;
    for (int64_t step = r->first + 1;; step++) {
        StepResult s = {0};
        int code = one_step(r, step, &s);
        if (code)
            return code;
        *last = step;
        code = agree(r, &s);
        smooth = step <= r->first + 3 ? s.sec : 0.95 * smooth + 0.05 * s.sec;
        if (!code)
            code = tell_step(r, step, &s, smooth);
        if (!code && !finished(r, step))
            code = after_step(r, step);
        if (code || finished(r, step)) /* an interrupt in an evaluation ends at its step */
            return code;
    }
}

/* A run that fails saves what it has, unless that is what has failed; the message says where. No
 * rank saves unless all are still there, having failed alike. */
static int fail_run(Trainer *r, int code, int64_t last)
{
    char message[2000], why[1000];
    if (last == r->first)
        return code;
    snprintf(message, sizeof message, "%s", tn_error(r->ctx));
    if (!agree_whole(r->ctx, !r->ending.spoiled && !r->saves.failed))
        return tn_context_fail(r->ctx, code, "%s", message);
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
        fprintf(r->log, "tenon: already at step %" PRId64 "\n", last);
        return;
    }
    if (!r->feed.data)
        return;
    fprintf(r->log, "trained %" PRId64 " steps in %.1f s", last, sec);
    fprintf(r->log, r->skipped ? ", %" PRId64 " of them skipped\n" : "\n", r->skipped);
}

static void show_memory(const Trainer *r)
{
    int64_t used = tn_program_used(r->step);
    if (r->feed.data && r->high)
        fprintf(r->log,
                "memory: planned %" PRId64 " bytes, highest byte written %" PRId64
                ", peak resident %" PRId64 "\n",
                r->plans.peak, r->high, tn_rss_peak());
    if (r->feed.data && used)
        fprintf(r->log, "memory of the device: in use %" PRId64 " bytes, by all processes\n", used);
}

static int finish(Trainer *r, int64_t last)
{
    double sec = wall_sec() - r->clock.start;
    if (r->t->progress && r->feed.data)
        fputc('\n', r->log);
    int code = checkpoint_save(r, last);
    if (!code)
        show_end(r, last, sec);
    if (!code)
        code = agree(r, NULL);
    if (!code && r->feed.data)
        code = evaluate_end(r, last);
    if (!code && !r->eval) /* nothing is held out */
        checkpoint_tried(r);
    if (!code && !r->ending.stopping)
        code = show_sample(r);
    if (!code)
        code = agree(r, NULL);
    if (!code && r->ending.stopping) {
        fprintf(r->log, "tenon: interrupted after step %" PRId64 "; saved in %s/step-%" PRId64 "\n",
                last, r->t->out, last);
        show_resume(r);
        return 130;
    }
    if (!code)
        best_tell(r, last);
    if (!code)
        show_memory(r);
    return code;
}

/* Runs one rank's part. Rank 0 alone writes files that are not checkpoints, and to terminals.
 */
static int train_rank(Trainer *r)
{
    int64_t last = 0;
    int code = setup(r);
    if (code == TN_CODE_FIT && r->t->misfit)
        r->t->misfit(r->t->misfit_arg, r, r->t);
    if (code == TN_CODE_FIT) /* which takes its time */
        code = tn_agree_code(r->ctx, code);
    if (code)
        folder_undo(r);
    r->ending.stop = interrupt_begin(r->ctx);
    if (!code)
        code = loop(r, &last);
    else
        last = r->first;
    code = code ? fail_run(r, code, last) : finish(r, last);
    interrupt_end(INTERRUPT_WAITS);
    drop(r);
    return code;
}

int train(tn_context *ctx, tn_model *m, const TrainOptions *t)
{
    TrainOptions own = *t;
    if (t->resume && t->resume->step > t->steps)
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "train: --steps %" PRId64 ": the run is already at step %" PRId64,
                               t->steps, t->resume->step);
    Trainer r = {.ctx = ctx,
                 .m = m,
                 .t = &own,
                 .own = &own,
                 .rank = tn_rank(ctx),
                 .nrank = tn_ranks(ctx),
                 .folder.lock = -1,
                 .log = log_open(ctx, t->log_ranks)};
    if (r.rank) {
        own.metrics = own.profile = NULL;
        own.progress = false;
        own.misfit = NULL;
    }
    json_t *described = json_deep_copy(t->described); /* ranks that are threads share that */
    own.described = described;
    int code = train_rank(&r);
    json_decref(described);
    log_close(r.log);
    return code;
}
