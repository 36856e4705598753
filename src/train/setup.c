/* Prepares a run: plans for the step, evaluation and sampling, all in one arena as large as the
 * largest of them, which is checked against the limit before anything runs. It is done in phases,
 * each of which ranks end together, so that one which fails on one of them fails on all. */
#include "trainer.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENIZING_SEC = 1 }; /* between two messages to ranks that wait for tokens */

/* ---- data ---- */

static int make_whole(Trainer *r)
{
    return r->t->ndata ? 0 : batch_make(r->ctx, r->t->batch, r->t->seq, &r->feed.whole);
}

static int read_whole(Trainer *r)
{
    return r->t->ndata ? 0 : batch_read(r->ctx, r->m, r->t->batch_file, &r->feed.whole);
}

/* Number 0 is what is trained on, 1 what is held out; then come further sources of --weight. */
static Source *source_at(Trainer *r, int i)
{
    return i > 1 ? &r->feed.more[i - 2] : i ? &r->feed.held : &r->feed.source;
}

static int count_sources(const Trainer *r)
{
    return 2 + r->feed.nmore;
}

/* Counts the bytes of the text that is evaluated. */
static int count_bytes(Trainer *r)
{
    Source *s = source_at(r, r->feed.held.data != NULL);
    return r->plans.eval ? source_count_bytes(r->ctx, r->m, s) : 0;
}

/* All ranks have what rank 0 has read, whatever their own files say. */
static int share_whole(Trainer *r)
{
    size_t nbytes =
        (size_t)(2 * r->feed.whole.rows * r->feed.whole.seq) * sizeof *r->feed.whole.ids;
    return r->t->ndata ? 0 : tn_share(r->ctx, r->feed.whole.ids, nbytes);
}

/* Where the tokens of a source are kept, if they are made here. */
static char *tokens_of(Feed *f, int i)
{
    return i > 1 ? f->more_tokens[i - 2] : i ? f->held_tokens : f->tokens;
}

/* The paths of a source: with weights each of --data is one. */
static void set_paths(const TrainOptions *t, int i, Source *s)
{
    if (i == 1) {
        s->path = t->val_data;
        s->npath = t->nval_data;
    } else if (t->weight) {
        s->path = &t->data[i ? i - 1 : 0];
        s->npath = 1;
    } else {
        s->path = t->data;
        s->npath = t->ndata;
    }
}

static int open_source(Trainer *r, int i)
{
    const TrainOptions *t = r->t;
    Source *s = source_at(r, i);
    char *tokens = tokens_of(&r->feed, i), prefix[20] = "";
    if (i == 1)
        snprintf(prefix, sizeof prefix, "val-");
    else if (i > 1)
        snprintf(prefix, sizeof prefix, "%d-", i);
    *s = (Source){.token_type = t->token_type,
                  .tokenizer = t->tokenizer,
                  .val_fraction = i == 1 ? 1 : t->val_fraction,
                  .file = tokens,
                  .seq = t->seq,
                  .pack = pack_asked(&t->o),
                  .keep = t->resume != NULL,
                  .progress = t->progress,
                  .log = r->log};
    set_paths(t, i, s);
    s->old = t->resume && !json_object_get(t->resume->state, "token_type");
    int code = source_open(r->ctx, r->m, s);
    if (code && t->resume)
        tn_context_fail(r->ctx, code, "%s\n  where data has moved, --%sdata names the new place",
                        tn_error(r->ctx), i == 1 ? prefix : "");
    snprintf(tokens, CHECKPOINT_PATH, "%s/%s%s.bin", t->out, prefix,
             s->holds >= TN_HOLDS_ROWS ? "rows" : "tokens");
    return code || t->resume ? code : own_files_check(r->ctx, t, source_is_text(s) ? tokens : NULL);
}

static int make_sources(Trainer *r)
{
    Feed *f = &r->feed;
    int n = r->t->weight ? r->t->ndata - 1 : 0;
    if (n < 1)
        return 0;
    f->more = calloc((size_t)n, sizeof *f->more);
    f->more_tokens = calloc((size_t)n, sizeof *f->more_tokens);
    f->nmore = f->more && f->more_tokens ? n : 0;
    return f->nmore ? 0 : tn_context_fail(r->ctx, TN_CODE_FAIL, "out of memory");
}

/* Mixes the sources that are trained on, as they are by now. */
static int mix_sources(Trainer *r)
{
    Feed *f = &r->feed;
    tn_data *part[MOST_SOURCES] = {f->source.data};
    tn_data_free(f->mixed);
    f->mixed = NULL;
    for (int i = 0; i < f->nmore; i++)
        part[i + 1] = f->more[i].data;
    int code = f->nmore ? tn_data_mix(r->ctx, f->nmore + 1, part, r->t->weight, &f->mixed) : 0;
    f->data = f->mixed ? f->mixed : f->source.data;
    return code;
}

static int open_data(Trainer *r)
{
    int code = make_sources(r);
    if (!code && r->t->ndata)
        code = open_source(r, 0);
    if (!code && r->t->nval_data)
        code = open_source(r, 1);
    for (int i = 2; i < count_sources(r) && !code; i++)
        code = open_source(r, i);
    return code ? code : mix_sources(r);
}

static bool tokenizes(Trainer *r)
{
    bool any = false;
    for (int i = 0; i < count_sources(r); i++)
        any |= source_is_text(source_at(r, i));
    return any;
}

/* ---- whether all ranks read the same ---- */

static int compare_file(Trainer *r, const char *name)
{
    char path[CHECKPOINT_PATH + 30];
    snprintf(path, sizeof path, "%s/%s", r->t->resume->folder, name);
    return alike_file(r->ctx, path);
}

/* Compares the models, and of a run that goes on its state too. */
static int compare_models(Trainer *r)
{
    int code = alike_model(r->ctx, r->m, r->t->resume ? r->t->resume->folder : r->t->model);
    if (!code && r->t->resume)
        code = compare_file(r, "state.json");
    if (!code && r->t->resume)
        code = compare_file(r, "optimizer.safetensors");
    return code;
}

static int compare_data(Trainer *r)
{
    if (!r->t->ndata)
        return alike_file(r->ctx, r->t->batch_file);
    int code = alike_data(r->ctx, &r->feed.source);
    for (int i = 0; i < r->feed.nmore && !code; i++)
        code = alike_data(r->ctx, &r->feed.more[i]);
    return code || !r->t->nval_data ? code : alike_data(r->ctx, &r->feed.held);
}

/* ---- tokens ---- */

/* Between two pieces of text: whether any rank is to stop. So ranks that wait hear that rank 0 is
 * still at work. */
typedef struct Tokenizing {
    tn_context *ctx;
    const volatile sig_atomic_t *stop;
    double next; /* seconds: when they hear of it again */
    bool stopping, done;
    int code;
} Tokenizing;

static void agree_tokenizing(Tokenizing *x, bool done)
{
    int64_t say[] = {stopped(x->stop), done};
    x->code = x->code ? x->code : tn_agree(x->ctx, say, 2);
    x->stopping = say[0];
    x->done = say[1];
    x->next = wall_sec() + TOKENIZING_SEC;
}

static bool pause_tokenizing(void *arg)
{
    Tokenizing *x = arg;
    if (tn_ranks(x->ctx) == 1 || wall_sec() >= x->next)
        agree_tokenizing(x, false);
    return x->stopping || x->code;
}

static int tokenize_first(Trainer *r, Tokenizing *x)
{
    int code = 0;
    for (int i = 0; i < count_sources(r) && !code; i++) {
        Source *s = source_at(r, i);
        s->pause = pause_tokenizing;
        s->pause_arg = x;
        if (source_is_text(s))
            code = source_tokenize(r->ctx, r->m, s);
        s->pause = NULL;
    }
    bool ended = code && x->stopping;
    if (ended)
        fprintf(r->log,
                "tenon: interrupted while text was tokenized; the same command begins again\n");
    return ended ? 130 : code;
}

/* By rank 0. A signal ends it; nothing of the tokens is left then. */
static int tokenize(Trainer *r)
{
    Tokenizing x = {.ctx = r->ctx};
    int code = 0;
    if (!tokenizes(r))
        return 0;
    x.stop = interrupt_begin(r->ctx);
    if (!r->rank) {
        code = tokenize_first(r, &x);
        agree_tokenizing(&x, true);
    }
    while (!x.done && !x.code)
        agree_tokenizing(&x, false);
    interrupt_end(INTERRUPT_BEGINS);
    return code ? code : x.code;
}

static bool make_none(void *arg)
{
    *(bool *)arg = true;
    return true;
}

/* The other ranks open what it has made, and make nothing where they do not see it. */
static int open_tokens(Trainer *r)
{
    bool unseen = false;
    int code = 0;
    for (int i = 0; i < count_sources(r) && r->rank && !code; i++) {
        Source *s = source_at(r, i);
        s->pause = make_none;
        s->pause_arg = &unseen;
        if (source_is_text(s))
            code = source_tokenize(r->ctx, r->m, s);
        s->pause = NULL;
        if (code && (unseen || access(s->file, F_OK)))
            tn_context_fail(
                r->ctx, code,
                "%s: expected rank 0's tokens of the texts of --data, found none: expected "
                "--out and --data in folders that all ranks share",
                s->file);
    }
    return code;
}

/* The steps of --epochs, where the windows of one are known. */
static int count_steps(Trainer *r)
{
    const TrainOptions *t = r->t;
    double steps = ceil(t->epochs * (double)r->feed.windows / (double)t->batch - 1e-9);
    if (t->epochs == 0)
        return 0;
    if ((double)t->batch > t->epochs * (double)r->feed.windows + 1e-9)
        return tn_context_fail(
            r->ctx, TN_CODE_USAGE,
            "train: --epochs %g of data with %" PRId64 " rows: expected a --batch-size of at most "
            "%" PRId64 ", found %" PRId64 ": one step would take more than these epochs have",
            t->epochs, r->feed.windows,
            (int64_t)fmax(floor(t->epochs * (double)r->feed.windows), 1), t->batch);
    r->own->steps = (int64_t)fmin(fmax(steps, 1), 1e12);
    if (!t->resume || t->resume->step <= t->steps)
        return 0;
    return tn_context_fail(r->ctx, TN_CODE_USAGE,
                           "train: --epochs %g, %" PRId64 " steps: the run is already at step "
                           "%" PRId64,
                           t->epochs, t->steps, t->resume->step);
}

/* Counts the windows of an epoch. */
static int count_windows(Trainer *r)
{
    const TrainOptions *t = r->t;
    int64_t nlabel;
    int code = mix_sources(r);
    if (!code)
        code = tn_data_shuffle(r->feed.data, !t->in_order);
    if (!code && t->document_token >= 0)
        code = tn_data_document(r->feed.data, t->document_token);
    if (!code && t->document_token >= 0 && r->feed.held.data)
        code = tn_data_document(r->feed.held.data, t->document_token);
    if (!code && pack_asked(&t->o))
        code = tn_data_pack(r->feed.data, t->seq);
    if (!code && pack_asked(&t->o) && r->feed.held.data)
        code = tn_data_pack(r->feed.held.data, t->seq);
    if (!code)
        code = tn_data_windows(r->feed.data, 0, t->seq, &r->feed.windows, &nlabel);
    return code ? code : count_steps(r);
}

static int count_files(Trainer *r)
{
    return r->feed.data && !tokenizes(r) ? count_windows(r) : 0;
}

static int count_tokens(Trainer *r)
{
    return tokenizes(r) ? count_windows(r) : 0;
}

/* ---- programs ---- */

static int make_step(Trainer *r)
{
    tn_options o = r->t->o;
    o.arena = r->plans.arena;
    return tn_program_new(r->plans.step, &o, &r->step);
}

static int make_evaluation(Trainer *r)
{
    return r->plans.eval ? tn_program_share(r->plans.eval, r->step, &r->eval) : 0;
}

static int start_generator(Trainer *r)
{
    return r->plans.generator ? tn_generator_start(r->plans.generator, r->step) : 0;
}

static int make_batch(Trainer *r)
{
    int code = batch_make_part(r->ctx, r->plans.step, r->t->seq, &r->feed.batch);
    r->feed.batch.same = r->t->same;
    return code || r->feed.data ? code : batch_pick(&r->feed.whole, r->plans.step, &r->feed.batch);
}

static int load(Trainer *r)
{
    return tn_program_load(r->step, r->m, &r->t->o);
}

/* The state of a checkpoint, which the model was opened from. */
static int restore(Trainer *r)
{
    return r->t->resume ? tn_program_restore(r->step, r->t->resume->folder) : 0;
}

static int check_loaded(Trainer *r)
{
    const Resume *x = r->t->resume;
    const char *adapter = x ? NULL : r->t->adapter;
    char where[2 * PATH_MAX + 32];
    snprintf(where, sizeof where, "%s%s%s", x ? x->folder : r->t->model,
             adapter ? " with the adapters of " : "", adapter ? adapter : "");
    return checkpoint_sound(r, where);
}

/* --keep may remove the checkpoint that the run goes on from. */
static int close_files(Trainer *r)
{
    return tn_model_close_files(r->m);
}

static int go_on(Trainer *r)
{
    const Resume *x = r->t->resume;
    if (!x)
        return 0;
    r->first = x->step;
    r->skipped = x->skipped;
    r->skipped_now = x->skipped_now;
    r->saves.saved = x->torn ? 0 : x->step;
    r->saves.untried = x->step; /* so that --keep removes what a killed run has left */
    r->saves.by_time = json_is_true(json_object_get(x->state, "by_time"));
    fprintf(r->log, "tenon: goes on from %s\n", x->folder);
    return 0;
}

/* This rank reads its own rows of each step. */
static int read_ahead(Trainer *r)
{
    const TrainOptions *t = r->t;
    const int64_t *rows;
    int64_t count;
    if (!r->feed.data)
        return 0;
    int code = tn_plan_rows(r->plans.step, &rows, &count);
    if (!code && r->nrank > 1)
        code = tn_data_part(r->feed.data, count, rows);
    return code ? code
                : tn_data_read_ahead(r->feed.data, t->o.seed, (uint32_t)(r->first + 1), t->batch,
                                     t->seq);
}

/* ---- all of it ---- */

static int check_run(Trainer *r)
{
    if (!r->log)
        return tn_context_fail(r->ctx, TN_CODE_FAIL, "out of memory");
    if (r->nrank > 1 && r->t->sample_tokens)
        return tn_context_fail(r->ctx, TN_CODE_USAGE,
                               "train: --sample-tokens: text comes from a whole model, of which "
                               "each of %d ranks has a part",
                               r->nrank);
    return 0;
}

static int check_folder(Trainer *r)
{
    return folder_check(r->ctx, r->t);
}

static int measure_rate(Trainer *r)
{
    if (!r->t->batch_file)
        r->rate = peak_new(r->ctx, &r->t->o);
    return 0;
}

static int check_resume(Trainer *r)
{
    return r->t->resume ? resume_check(r) : 0;
}

static int check_base(Trainer *r)
{
    return r->t->resume ? base_check(r) : 0;
}

static int check_latest(Trainer *r)
{
    return resume_check_latest(r);
}

static int check_place(Trainer *r)
{
    return r->t->resume ? resume_check_place(r) : 0;
}

/* Tokens that were made are not left to take the room. */
static int check_beside_tokens(Trainer *r)
{
    char record[CHECKPOINT_PATH + 10];
    int code = tokenizes(r) ? room_beside_tokens(r) : 0;
    bool made = false;
    for (int i = 0; i < count_sources(r) && code; i++) {
        const Source *s = source_at(r, i);
        made |= s->made;
        if (!s->made)
            continue;
        snprintf(record, sizeof record, "%s.json", s->file);
        unlink(s->file);
        unlink(record);
    }
    if (!code || !made)
        return code;
    rmdir(r->t->out); /* where nothing else is there */
    return code;
}

/* Sends what rank 0 has found in the run's files. */
static int share_run(Trainer *r)
{
    Evaluation *e = &r->heldout.last;
    int code = tn_share(r->ctx, r->folder.run, sizeof r->folder.run);
    if (!code)
        code = tn_share(r->ctx, &e->loss, sizeof e->loss);
    if (!code)
        code = tn_share(r->ctx, &e->planned, sizeof e->planned);
    if (!code)
        code = tn_share(r->ctx, &e->late, sizeof e->late);
    if (!code)
        code = tn_share(r->ctx, &r->heldout.known, sizeof r->heldout.known);
    return code ? code : tn_share(r->ctx, &r->heldout.evaluated, sizeof r->heldout.evaluated);
}

/* Whether the evaluation of the step that the run goes on from is in all that is written. */
static int see_evaluated(Trainer *r)
{
    const MetricsFile *m = &r->metrics, *e = &r->events;
    r->heldout.evaluated =
        (m->file || e->file) && (!m->file || m->evaluated) && (!e->file || e->evaluated);
    return 0;
}

static int tell_plan(Trainer *r)
{
    show_plan(r);
    return 0;
}

/* In this order; `first`: rank 0 does it for all. */
static const struct {
    int (*run)(Trainer *r);
    bool first;
} phases[] = {
    {check_run, false},
    {check_folder, true},
    {base_find, true},
    {check_base, true},
    {compare_models, false},
    {measure_rate, true},
    {open_data, false},
    {compare_data, false},
    {make_whole, false},
    {read_whole, true},
    {share_whole, false},
    {count_files, false},
    {open_tokenizer, false},
    {compile_run, false},
    {check_prompt, false},
    {check_resume, false},
    {make_step, false},
    {folder_clean, true},
    {check_latest, true},
    {best_resume, false},
    {room_open, true},
    {folder_open, true},
    {tokenize, false},
    {open_tokens, false},
    {count_tokens, false},
    {check_beside_tokens, true},
    {drop_evaluation, false},
    {count_bytes, false},
    {check_place, false},
    {folder_find_evaluated, true},
    {tell_plan, false},
    {make_evaluation, false},
    {start_generator, false},
    {make_batch, false},
    {load, false},
    {restore, false},
    {check_loaded, false},
    {close_files, false},
    {profile_start, false},
    {open_metrics, true},
    {open_events, true},
    {see_evaluated, true},
    {share_run, false},
    {go_on, false},
    {folder_begin, true},
    {read_ahead, false},
};

int setup(Trainer *r)
{
    int code = 0;
    for (size_t i = 0; !code && i < sizeof phases / sizeof *phases; i++) {
        if (!phases[i].first || !r->rank)
            code = phases[i].run(r);
        code = tn_agree_code(r->ctx, code);
    }
    return code;
}

void drop(Trainer *r)
{
    if (r->metrics.file && r->metrics.file != stdout)
        fclose(r->metrics.file); /* each line was flushed */
    if (r->events.file)
        fclose(r->events.file);
    drop_generator(&r->plans);
    tn_program_free(r->eval);
    tn_program_free(r->step);
    drop_plans(&r->plans);
    tn_tokenizer_free(r->tokenizer);
    tn_data_free(r->feed.mixed);
    source_drop(&r->feed.source);
    source_drop(&r->feed.held);
    for (int i = 0; i < r->feed.nmore; i++)
        source_drop(&r->feed.more[i]);
    free(r->feed.more);
    free(r->feed.more_tokens);
    json_decref(r->metrics.originals);
    json_decref(r->base);
    batch_drop(&r->feed.batch);
    batch_drop(&r->feed.whole);
    if (r->folder.lock >= 0)
        close(r->folder.lock);
}
