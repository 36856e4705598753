/* The training loop: one plan for the step, one for evaluation and one for sampling, all in one arena
 * that is as large as the largest and is checked against the limit before anything runs. */
#include "train.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct Trainer {
    tn_context *ctx;
    tn_model *m;
    const TrainOptions *t;
    tn_data *data;
    tn_graph *step_graph, *eval_graph, *sample_graph;
    tn_plan *step_plan, *eval_plan, *sample_plan;
    tn_program *step, *eval, *sampler;
    int64_t *ids, *labels;       /* of the step's batch, in the arena */
    int64_t *one_ids, *one_labels; /* of --batch, read once */
    float *lr;
    int64_t *step_input, *seed_input;
    int64_t sample_seq;
    int64_t peak, persistent, reserve, high, vocab;
    double flops, best_flops, start, last_eval;
    FILE *metrics;
} Trainer;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    if (interrupted)
        _Exit(130);
    interrupted = signal_number;
}

/* ---- preparing ---- */

static int64_t most(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

/* A forward graph that shares the step's parameters. */
static int plan_beside(Trainer *r, tn_graph *g, tn_plan **plan, int64_t *arena)
{
    tn_options o = r->t->o;
    int64_t peak, persistent, reserve;
    o.persistent = r->persistent;
    o.memory = 0;
    int code = tn_graph_passes(g, "canonicalize,cse,dce", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &o, 1, plan);
    if (code)
        return code;
    tn_plan_bytes(*plan, &peak, &persistent, &reserve);
    *arena = most(*arena, peak);
    return 0;
}

static int plan_step(Trainer *r)
{
    const TrainOptions *t = r->t;
    int code = tn_model_graph(r->m, t->batch, t->seq, &t->o, &r->step_graph);
    if (!code)
        code = tn_graph_passes(r->step_graph, "default", &t->o, NULL, NULL);
    if (!code)
        code = tn_plan_new(r->step_graph, &t->o, 1, &r->step_plan);
    if (code)
        return code;
    double all;
    tn_plan_bytes(r->step_plan, &r->peak, &r->persistent, &r->reserve);
    tn_plan_flops(r->step_plan, &all, &r->flops);
    return 0;
}

/* Evaluation and sampling only where there is data to hold out. */
static int plan_others(Trainer *r, int64_t *arena)
{
    const TrainOptions *t = r->t;
    tn_options plain = t->o;
    int64_t context;
    plain.dropout = 0;
    tn_model_shape(r->m, &r->vocab, &context);
    if (!r->data)
        return 0;
    int code = tn_model_graph(r->m, t->batch, t->seq, &plain, &r->eval_graph);
    if (!code)
        code = plan_beside(r, r->eval_graph, &r->eval_plan, arena);
    if (code || !t->sample_tokens)
        return code;
    r->sample_seq = t->seq < 4096 ? t->seq : 4096;
    code = tn_model_logits(r->m, 1, r->sample_seq, &r->sample_graph);
    return code ? code : plan_beside(r, r->sample_graph, &r->sample_plan, arena);
}

static int make_programs(Trainer *r, int64_t arena)
{
    tn_options o = r->t->o;
    o.arena = arena;
    int code = tn_program_new(r->step_plan, &o, &r->step);
    if (!code && r->eval_plan)
        code = tn_program_share(r->eval_plan, r->step, &r->eval);
    if (!code && r->sample_plan)
        code = tn_program_share(r->sample_plan, r->step, &r->sampler);
    return code;
}

static int find_inputs(Trainer *r)
{
    struct {
        const char *name;
        void **into;
        int needed;
    } inputs[] = {{"input_ids", (void **)&r->ids, 1},
                  {"labels", (void **)&r->labels, 1},
                  {"lr", (void **)&r->lr, 0},
                  {"step", (void **)&r->step_input, 0},
                  {"seed", (void **)&r->seed_input, 0}};
    for (int i = 0; i < (int)(sizeof inputs / sizeof *inputs); i++) {
        int code = tn_program_data(r->step, inputs[i].name, inputs[i].into, NULL);
        if (code && inputs[i].needed)
            return code;
        if (code)
            *inputs[i].into = NULL;
    }
    return 0;
}

static int open_data(Trainer *r)
{
    const TrainOptions *t = r->t;
    int64_t vocab, context;
    tn_model_shape(r->m, &vocab, &context);
    if (t->ndata)
        return tn_data_open(r->ctx, t->ndata, t->data, t->token_type, t->val_fraction, vocab, &r->data);
    size_t count = (size_t)(t->batch * t->seq);
    r->one_ids = malloc(2 * count * sizeof *r->one_ids);
    if (!r->one_ids)
        return TN_CODE_FAIL;
    r->one_labels = r->one_ids + count;
    return tn_batch_read(r->ctx, t->batch_file, t->batch, t->seq, r->one_ids, r->one_labels);
}

static void print_plan(Trainer *r, int64_t arena)
{
    const char *text;
    if (r->t->batch_file || tn_plan_text(r->step_plan, 0, &text))
        return;
    int64_t ntrain, nval, nbytes;
    tn_data_size(r->data, &ntrain, &nval, &nbytes);
    fprintf(stderr, "model: %lld parameters\n", (long long)tn_model_count(r->m));
    fprintf(stderr, "data: %lld tokens to train on, %lld held out\n", (long long)ntrain, (long long)nval);
    fputs(text, stderr);
    if (arena > r->peak)
        fprintf(stderr, "  arena         %12lld bytes (evaluation and sampling need more than the step)\n",
                (long long)arena);
}

static int check_memory(Trainer *r, int64_t arena)
{
    int64_t limit = r->t->o.memory;
    if (!limit || arena + r->reserve <= limit)
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_FIT, "does not fit: evaluation needs an arena of more bytes "
                           "than the step, and with the library's reserve more than the limit");
}

static int prepare(Trainer *r)
{
    int code = open_data(r);
    if (!code)
        code = plan_step(r);
    int64_t arena = r->peak;
    if (!code)
        code = plan_others(r, &arena);
    if (!code)
        code = check_memory(r, arena);
    if (!code)
        print_plan(r, arena);
    if (!code)
        code = make_programs(r, arena);
    if (!code)
        code = find_inputs(r);
    if (!code)
        code = tn_program_load(r->step, r->m, &r->t->o);
    return code;
}

/* ---- one step ---- */

typedef struct StepResult {
    double loss, norm, lr, sec;
    bool has_norm;
} StepResult;

static double done_of(const Trainer *r, int64_t step)
{
    double by_step = (double)(step - 1) / (double)r->t->steps;
    double by_time = r->t->max_sec > 0 ? (wall_sec() - r->start) / r->t->max_sec : 0;
    return by_time > by_step ? by_time : by_step;
}

static int fill_batch(Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    size_t count = (size_t)(t->batch * t->seq);
    if (r->data)
        return tn_data_batch(r->data, t->o.seed, (uint32_t)step, t->batch, t->seq, r->ids, r->labels);
    memcpy(r->ids, r->one_ids, count * sizeof *r->ids);
    memcpy(r->labels, r->one_labels, count * sizeof *r->labels);
    return 0;
}

static double read_scalar(tn_program *x, const char *name, bool *there)
{
    void *data;
    *there = !tn_program_data(x, name, &data, NULL);
    return *there ? *(float *)data : 0;
}

/* The first two steps run over two patterns: what neither left as it was is the memory in use. */
static int run_step(Trainer *r, int64_t step, int64_t first, StepResult *s)
{
    static const int pattern[] = {0x5A, 0xA5};
    bool measured = step - first < 2, there;
    double start = wall_sec();
    if (measured)
        tn_program_fill(r->step, pattern[step - first]);
    int code = fill_batch(r, step);
    if (code)
        return code;
    s->lr = schedule_lr(r->t, step, done_of(r, step));
    if (r->lr)
        *r->lr = (float)s->lr;
    if (r->step_input)
        *r->step_input = step;
    if (r->seed_input)
        *r->seed_input = (int64_t)r->t->o.seed;
    if ((code = tn_program_run(r->step)))
        return code;
    if (measured)
        r->high = most(r->high, tn_program_high(r->step, pattern[step - first]));
    s->loss = read_scalar(r->step, "loss", &there);
    s->norm = read_scalar(r->step, "metric.grad_norm", &s->has_norm);
    s->sec = wall_sec() - start;
    return 0;
}

/* ---- what is seen ---- */

static void print_json_real(FILE *f, const char *name, double value)
{
    fprintf(f, isfinite(value) ? "\"%s\": %.9g, " : "\"%s\": null, ", name, value);
}

static int write_metrics(Trainer *r, int64_t step, const StepResult *s, double eval_loss)
{
    FILE *f = r->metrics;
    if (!f)
        return 0;
    int64_t per_step = r->t->batch * r->t->seq;
    fprintf(f, "{\"step\": %lld, ", (long long)step);
    if (s) {
        print_json_real(f, "loss", s->loss);
        print_json_real(f, "grad_norm", s->has_norm ? s->norm : NAN);
        print_json_real(f, "lr", s->lr);
        fprintf(f, "\"tokens\": %lld, \"step_sec\": %.6g, \"tokens_per_sec\": %.6g, ",
                (long long)(step * per_step), s->sec, (double)per_step / s->sec);
    } else {
        print_json_real(f, "eval_loss", eval_loss);
    }
    fprintf(f, "\"planned_peak_bytes\": %lld, \"measured_peak_bytes\": %lld, \"rss_peak_bytes\": %lld}\n",
            (long long)r->peak, (long long)r->high, (long long)tn_rss_peak());
    return fflush(f) ? tn_context_fail(r->ctx, TN_CODE_FAIL, "metrics: cannot write") : 0;
}

static void print_progress(const Trainer *r, int64_t step, const StepResult *s, double smooth_sec)
{
    const TrainOptions *t = r->t;
    if (t->batch_file) {
        printf("step %lld loss %.9g\n", (long long)step, s->loss);
        fflush(stdout);
        return;
    }
    int64_t every = t->progress ? 1 : t->steps / 50 + 1;
    if (step != 1 && step != t->steps && step % every)
        return;
    double left = smooth_sec * (double)(t->steps - step);
    if (t->max_sec > 0 && t->max_sec - (wall_sec() - r->start) < left)
        left = t->max_sec - (wall_sec() - r->start);
    fprintf(stderr, "%sstep %lld/%lld  loss %.4f  %.0f tokens/s", t->progress ? "\r\033[K" : "",
            (long long)step, (long long)t->steps, s->loss,
            (double)(t->batch * t->seq) / smooth_sec);
    if (r->best_flops > 0)
        fprintf(stderr, "  %.0f %% of product peak", 100 * r->flops / smooth_sec / r->best_flops);
    fprintf(stderr, "  %.0f s left%s", left > 0 ? left : 0, t->progress ? "" : "\n");
}

/* ---- evaluation, sample, checkpoint ---- */

static int evaluate(Trainer *r, int64_t windows, double *loss)
{
    const TrainOptions *t = r->t;
    void *ids, *labels;
    double sum = 0;
    int64_t total = 0, count = 1;
    int code = tn_program_data(r->eval, "input_ids", &ids, NULL);
    if (!code)
        code = tn_program_data(r->eval, "labels", &labels, NULL);
    for (int64_t first = 0; !code && first < windows; first += t->batch) {
        code = tn_data_val(r->data, first, t->batch, t->seq, ids, labels, &count);
        if (code || !count)
            break;
        bool there;
        if ((code = tn_program_run(r->eval)))
            break;
        sum += read_scalar(r->eval, "loss", &there) * (double)count;
        total += count;
    }
    *loss = total ? sum / (double)total : NAN;
    return code;
}

static int evaluate_and_tell(Trainer *r, int64_t step, int64_t windows)
{
    int64_t ntrain, nval, nbytes;
    if (!r->eval)
        return 0;
    tn_data_size(r->data, &ntrain, &nval, &nbytes);
    if (!nval)
        return 0;
    int code = evaluate(r, windows, &r->last_eval);
    if (code)
        return code;
    fprintf(stderr, "%sstep %lld  held-out loss %.4f nats per token\n", r->t->progress ? "\r\033[K" : "",
            (long long)step, r->last_eval);
    return write_metrics(r, step, NULL, r->last_eval);
}

static int show_sample(Trainer *r)
{
    if (!r->sampler || r->vocab != 256)
        return 0;
    printf("---- sample ----\n");
    int code = sample(r->sampler, r->sample_seq, r->vocab, r->t->prompt, r->t->sample_tokens,
                      r->t->o.seed + 1, 0.8, stdout);
    printf("\n----------------\n");
    fflush(stdout);
    return code;
}

static int save(Trainer *r, int64_t step)
{
    char folder[4096], state[8192];
    const TrainOptions *t = r->t;
    snprintf(folder, sizeof folder, "%s/step-%lld", t->out, (long long)step);
    snprintf(state, sizeof state,
             "{\"step\": %lld, \"data_position\": %lld, \"seed\": %" PRIu64 ", \"threads\": %d, "
             "\"version\": \"%s\", \"options\": %s, \"decisions\": []}\n",
             (long long)step, (long long)(step * t->batch * t->seq), t->o.seed, tn_threads_used(),
             tn_version_number(), t->options_json ? t->options_json : "{}");
    return tn_program_save(r->step, r->m, folder, state);
}

/* ---- the loop ---- */

static int bad_step(Trainer *r, int64_t step, const StepResult *s)
{
    if (isfinite(s->loss) && (!s->has_norm || isfinite(s->norm)))
        return 0;
    if (r->t->skip_bad) {
        fprintf(stderr, "tenon: warning: step %lld: loss %g, gradient norm %g: skipped\n",
                (long long)step, s->loss, s->norm);
        return 0;
    }
    const char *fault = tn_program_fault(r->step);
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "step %lld: loss %g, gradient norm %g; the parameters are those before the "
                           "step%s%s",
                           (long long)step, s->loss, s->norm,
                           fault ? "\n  first value that is not finite: " : "; --check names the node",
                           fault ? fault : "");
}

static bool finished(const Trainer *r, int64_t step)
{
    return step >= r->t->steps || (r->t->max_sec > 0 && wall_sec() - r->start >= r->t->max_sec);
}

static int after_step(Trainer *r, int64_t step)
{
    const TrainOptions *t = r->t;
    int code = 0;
    if (t->eval_every && step % t->eval_every == 0)
        code = evaluate_and_tell(r, step, 64);
    if (!code && t->sample_every && step % t->sample_every == 0)
        code = show_sample(r);
    if (!code && t->save_every && step % t->save_every == 0)
        code = save(r, step);
    return code;
}

static int loop(Trainer *r, int64_t *last)
{
    double smooth = 0;
    r->start = wall_sec();
    for (int64_t step = 1;; step++) {
        StepResult s = {0};
        int code = run_step(r, step, 1, &s);
        if (!code)
            code = bad_step(r, step, &s);
        if (code)
            return code;
        *last = step;
        smooth = step <= 3 ? s.sec : 0.95 * smooth + 0.05 * s.sec;
        print_progress(r, step, &s, smooth);
        if (!code)
            code = write_metrics(r, step, &s, 0);
        bool end = finished(r, step) || interrupted;
        if (!code && !end)
            code = after_step(r, step);
        if (code || end)
            return code;
    }
}

static int finish(Trainer *r, int64_t last)
{
    if (r->t->progress)
        fputc('\n', stderr);
    int code = save(r, last);
    if (!code && interrupted) {
        fprintf(stderr, "interrupted after step %lld; saved in %s/step-%lld\n", (long long)last,
                r->t->out, (long long)last);
        return 130;
    }
    if (!code && !r->t->batch_file) {
        fprintf(stderr, "trained %lld steps in %.1f s\n", (long long)last, wall_sec() - r->start);
        code = evaluate_and_tell(r, last, INT64_MAX);
    }
    if (!code)
        code = show_sample(r);
    if (!code && !r->t->batch_file)
        fprintf(stderr, "memory: planned %lld bytes, highest byte written %lld, peak resident %lld\n",
                (long long)r->peak, (long long)r->high, (long long)tn_rss_peak());
    return code;
}

static void drop(Trainer *r)
{
    if (r->metrics && fclose(r->metrics))
        fprintf(stderr, "tenon: warning: metrics: cannot write\n");
    tn_program_free(r->sampler);
    tn_program_free(r->eval);
    tn_program_free(r->step);
    tn_plan_free(r->sample_plan);
    tn_plan_free(r->eval_plan);
    tn_plan_free(r->step_plan);
    tn_graph_free(r->sample_graph);
    tn_graph_free(r->eval_graph);
    tn_graph_free(r->step_graph);
    tn_data_free(r->data);
    free(r->one_ids);
}

int train(tn_context *ctx, tn_model *m, const TrainOptions *t)
{
    Trainer r = {.ctx = ctx, .m = m, .t = t};
    int64_t last = 0;
    if (t->metrics && !(r.metrics = fopen(t->metrics, "wb")))
        return tn_context_fail(ctx, TN_CODE_FAIL, "%s: cannot create", t->metrics);
    r.best_flops = t->batch_file ? 0 : peak_flops(ctx);
    int code = prepare(&r);
    struct sigaction act = {.sa_handler = on_interrupt}, old;
    sigaction(SIGINT, &act, &old);
    if (!code)
        code = loop(&r, &last);
    if (!code)
        code = finish(&r, last);
    sigaction(SIGINT, &old, NULL);
    drop(&r);
    return code;
}
