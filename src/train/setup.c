/* Prepares a run: plans for the step, evaluation and sampling, all in one arena as large as the
 * largest of them, which is checked against the limit before anything runs. */
#include "train.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- data ---- */

static int read_one_batch(Trainer *r)
{
    int code = batch_make(r->ctx, r->t->batch, r->t->seq, &r->batch);
    return code ? code : batch_read(r->ctx, r->m, r->t->batch_file, &r->batch);
}

static int open_data(Trainer *r)
{
    const TrainOptions *t = r->t;
    int64_t context;
    Source *s = &r->source;
    tn_model_shape(r->m, &r->vocab, &context);
    if (!t->ndata)
        return read_one_batch(r);
    snprintf(r->tokens, sizeof r->tokens, "%s/tokens.bin", t->out);
    *s = (Source){.path = t->data,
                  .npath = t->ndata,
                  .token_type = t->token_type,
                  .tokenizer = t->tokenizer,
                  .val_fraction = t->val_fraction,
                  .file = r->tokens,
                  .keep = t->resume != NULL,
                  .progress = t->progress};
    s->old = t->resume && !json_object_get(t->resume->state, "token_type");
    int code = source_open(r->ctx, r->m, s);
    if (code && t->resume)
        tn_context_fail(r->ctx, code, "%s\n  where data has moved, --data names the new place",
                        tn_error(r->ctx));
    r->data = s->data;
    return code;
}

/* A signal ends it; nothing of the tokens is left then. */
static int tokenize(Trainer *r)
{
    Interrupts before;
    r->source.stop = interrupt_begin(&before);
    int code = source_tokenize(r->ctx, r->m, &r->source);
    interrupt_end(&before);
    if (!code || !*r->source.stop)
        return code;
    fprintf(stderr, "tenon: interrupted while text was tokenized; the same command begins again\n");
    return 130;
}

/* Opens the data, tokenizing text; counts the windows of an epoch. */
static int read_tokens(Trainer *r)
{
    const TrainOptions *t = r->t;
    int64_t nlabel;
    int code = source_is_text(&r->source) ? tokenize(r) : 0;
    r->data = r->source.data;
    if (!code && t->document_token >= 0)
        code = tn_data_document(r->data, t->document_token);
    return code ? code : tn_data_windows(r->data, 0, t->seq, &r->epoch_windows, &nlabel);
}

/* ---- plans ---- */

static int64_t most(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

/* One more plan, whose program shares the step's arena, or several. */
static void add_need(Trainer *r, int64_t peak, int64_t reserve, int64_t handles)
{
    int64_t shared = most(r->reserve - r->handles, reserve - handles);
    r->handles += handles;
    r->reserve = shared + r->handles;
    r->arena = most(r->arena, peak);
}

static int plan_step(Trainer *r)
{
    const TrainOptions *t = r->t;
    int64_t reserve;
    double all, added;
    int code = tn_model_graph(r->m, t->batch, t->seq, &t->o, &r->step_graph);
    if (!code)
        code = tn_graph_passes(r->step_graph, "default", &t->o, NULL, NULL);
    if (!code)
        code = tn_plan_new(r->step_graph, &t->o, 1, &r->step_plan);
    if (code)
        return code;
    tn_plan_bytes(r->step_plan, &r->peak, &r->persistent, &reserve);
    tn_plan_flops(r->step_plan, &all, &r->flops);
    tn_plan_sec(r->step_plan, &r->est_sec, &added);
    add_need(r, r->peak, reserve, tn_plan_handles(r->step_plan));
    return 0;
}

/* A forward graph that shares the step's parameters. */
static int plan_beside(Trainer *r, tn_graph *g, tn_plan **plan)
{
    tn_options o = r->t->o;
    int64_t peak, persistent, reserve;
    o.persistent = r->persistent;
    o.memory = 0;
    int code = tn_graph_passes(g, "forward", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &o, 1, plan);
    if (code)
        return code;
    tn_plan_bytes(*plan, &peak, &persistent, &reserve);
    add_need(r, peak, reserve, tn_plan_handles(*plan));
    return 0;
}

static int fail_held_out(const Trainer *r)
{
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "--eval-every: no file has 2 tokens that are held out");
}

int64_t pass_rows(const TrainOptions *t)
{
    int64_t iterations = t->o.accumulate > 1 ? t->o.accumulate : 1;
    return (t->batch + iterations - 1) / iterations;
}

static int plan_evaluation(Trainer *r)
{
    tn_options plain = r->t->o;
    int64_t windows, nlabel;
    int code = tn_data_windows(r->data, 1, r->t->seq, &windows, &nlabel);
    if (!code && !windows && r->t->eval_every)
        code = fail_held_out(r);
    if (code || !windows)
        return code;
    /* the loss that runs are compared by */
    plain.dropout = plain.z_loss = plain.label_smoothing = 0;
    code = tn_model_graph(r->m, pass_rows(r->t), r->t->seq, &plain, &r->eval_graph);
    return code ? code : plan_beside(r, r->eval_graph, &r->eval_plan);
}

/* Held-out bytes that made a window may be too few tokens for one: then nothing is evaluated. */
static int drop_evaluation(Trainer *r)
{
    int64_t windows, nlabel;
    int code = tn_data_windows(r->data, 1, r->t->seq, &windows, &nlabel);
    if (code || windows || !r->eval_plan)
        return code;
    if (r->t->eval_every)
        return fail_held_out(r);
    tn_plan_free(r->eval_plan);
    r->eval_plan = NULL;
    return 0;
}

/* The tokenizer of samples; a named one is saved in checkpoints too. */
static int open_tokenizer(Trainer *r)
{
    const char *path = r->t->tokenizer;
    bool named = path && strcmp(path, "bytes") != 0, bytes = !strcmp(r->t->token_type, "byte");
    if (!path && !r->t->sample_tokens)
        return 0;
    int code = sample_tokenizer(r->ctx, r->m, bytes ? "bytes" : path, &r->tokenizer);
    return code || !named ? code : tn_model_tokenizer(r->m, path);
}

/* Samples see as many tokens as the model is trained on. */
static int plan_generator(Trainer *r)
{
    tn_options o = r->t->o;
    int64_t peak, reserve;
    o.persistent = r->persistent;
    o.memory = 0;
    int code = tn_generator_new(r->m, r->t->seq, &o, &r->generator);
    if (code)
        return code;
    tn_generator_bytes(r->generator, &peak, &reserve);
    add_need(r, peak, reserve, tn_generator_handles(r->generator));
    return 0;
}

static int plan_sampling(Trainer *r)
{
    int code = open_tokenizer(r);
    if (code || !r->t->sample_tokens)
        return code;
    code = plan_generator(r);
    if (code)
        return code;
    Sample s = sample_of(r, NULL);
    return sample_begin(&s); /* the prompt is known to be good */
}

/* The limit holds for the arena of all three, not only for the step, which tn_plan_new has checked.
 */
static int check_memory(const Trainer *r)
{
    int64_t limit = r->t->o.memory, least = r->arena + r->reserve;
    if (!limit || least <= limit)
        return 0;
    const char *unit = r->t->o.memory_unit;
    char all[40], text[4][40];
    tn_bytes_text(least, unit, all, sizeof all);
    return tn_context_fail(
        r->ctx, TN_CODE_FIT,
        "does not fit: evaluation and sampling need %s%s (arena %s, library reserve %s), the limit "
        "is "
        "%s; the least that would do is %s\n  the step alone needs an arena of %s",
        all, unit && *unit ? "" : " bytes", tn_bytes_text(r->arena, unit, text[0], sizeof *text),
        tn_bytes_text(r->reserve, unit, text[1], sizeof *text),
        tn_bytes_text(limit, unit, text[2], sizeof *text), all,
        tn_bytes_text(r->peak, unit, text[3], sizeof *text));
}

int train_need(const Trainer *r, const tn_options *o, int64_t batch, int64_t *peak, int64_t *nbytes,
               double *sec)
{
    TrainOptions t = *r->t;
    Trainer x = {.ctx = r->ctx, .m = r->m, .t = &t, .data = r->data, .lock = -1};
    t.o = *o;
    t.o.memory = 0;
    t.batch = batch;
    int code = plan_step(&x);
    if (!code && x.data)
        code = plan_evaluation(&x);
    if (!code && t.sample_tokens)
        code = plan_generator(&x);
    *peak = x.arena;
    *nbytes = x.arena + x.reserve;
    *sec = x.est_sec;
    x.data = NULL; /* r's */
    drop(&x);
    return code;
}

/* ---- programs ---- */

static int make_programs(Trainer *r)
{
    tn_options o = r->t->o;
    o.arena = r->arena;
    int code = tn_program_new(r->step_plan, &o, &r->step);
    if (!code && r->eval_plan)
        code = tn_program_share(r->eval_plan, r->step, &r->eval);
    if (!code && r->generator)
        code = tn_generator_start(r->generator, r->step);
    return code;
}

/* The model's own, or with the state those of a checkpoint, which the model was opened from. */
static int load(Trainer *r)
{
    const Resume *x = r->t->resume;
    int code = tn_program_load(r->step, r->m, &r->t->o);
    if (!code && x)
        code = tn_program_restore(r->step, x->folder);
    if (!code)
        code = checkpoint_sound(r, x ? x->folder : r->t->model);
    if (code || !x)
        return code;
    r->first = x->step;
    r->skipped = x->skipped;
    r->skipped_now = x->skipped_now;
    r->saved = x->torn ? 0 : x->step;
    r->untried = x->step; /* so that --keep removes what a killed run has left */
    r->by_time = json_is_true(json_object_get(x->state, "by_time"));
    fprintf(stderr, "tenon: goes on from %s\n", x->folder);
    return 0;
}

/* ---- all of it ---- */

/* Tokens that were made are not left to take the room. */
static int check_beside_tokens(Trainer *r)
{
    char record[CHECKPOINT_PATH + 10];
    int code = room_beside_tokens(r);
    if (!code || !r->source.made)
        return code;
    snprintf(record, sizeof record, "%s.json", r->tokens);
    unlink(r->tokens);
    unlink(record);
    rmdir(r->t->out); /* where nothing else is there */
    return code;
}

int setup(Trainer *r)
{
    int code = open_data(r);
    bool text = source_is_text(&r->source);
    if (!code && r->data && !text)
        code = read_tokens(r);
    if (!code)
        code = plan_step(r);
    if (!code && r->data)
        code = plan_evaluation(r);
    if (!code && r->data)
        code = plan_sampling(r);
    if (!code)
        code = check_memory(r);
    if (!code && r->t->resume)
        code = resume_check(r);
    if (!code)
        code = folder_clean(r);
    if (!code)
        code = room_open(r);
    if (!code)
        code = folder_open(r);
    if (!code && text)
        code = read_tokens(r);
    if (!code && text)
        code = check_beside_tokens(r);
    if (!code && text)
        code = drop_evaluation(r);
    if (!code && r->t->resume)
        code = resume_check_place(r);
    if (!code)
        code = open_metrics(r);
    if (code)
        return code;
    show_plan(r);
    code = make_programs(r);
    if (!code && r->data)
        code = batch_make(r->ctx, r->t->batch, r->t->seq, &r->batch);
    if (!code)
        code = profile_start(r);
    if (!code)
        code = load(r);
    if (!code)
        code = folder_begin(r);
    if (!code && r->data)
        code = tn_data_read_ahead(r->data, r->t->o.seed, (uint32_t)(r->first + 1), r->t->batch,
                                  r->t->seq);
    return code;
}

void drop(Trainer *r)
{
    if (r->metrics && r->metrics != stdout)
        fclose(r->metrics); /* each line was flushed */
    tn_generator_free(r->generator);
    tn_program_free(r->eval);
    tn_program_free(r->step);
    tn_plan_free(r->eval_plan);
    tn_plan_free(r->step_plan);
    tn_graph_free(r->eval_graph);
    tn_graph_free(r->step_graph);
    tn_tokenizer_free(r->tokenizer);
    source_drop(&r->source);
    json_decref(r->originals);
    batch_drop(&r->batch);
    if (r->lock >= 0)
        close(r->lock);
}
