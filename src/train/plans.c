/* The plans of a run: of the step, evaluation and sampling, in one arena as large as the largest of
 * them needs, and checked against the limit together. */
#include "train.h"

#include <stdlib.h>
#include <string.h>

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

int plan_step(Trainer *r)
{
    const TrainOptions *t = r->t;
    tn_options o = t->o;
    int64_t reserve;
    double all, added;
    o.chunk_memory = r->goal ? r->goal : o.chunk_memory;
    int code = tn_model_graph(r->m, t->batch, t->seq, &o, &r->step_graph);
    if (!code)
        code = tn_graph_passes(r->step_graph, "default", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(r->step_graph, &o, 1, &r->step_plan);
    if (code)
        return code;
    tn_plan_bytes(r->step_plan, &r->peak, &r->persistent, &reserve);
    tn_plan_flops(r->step_plan, &all, &r->flops);
    tn_plan_sec(r->step_plan, &r->est_sec, &added);
    add_need(r, r->peak, reserve, tn_plan_handles(r->step_plan));
    return 0;
}

/* Where the step runs in slices, evaluations do in as many as they must to need no more than it:
 * their logits are as large, and what the step's patterns name they may not have. */
static void slice_evaluation(const Trainer *r, tn_options *o)
{
    static const char *const chunk[] = {"auto"};
    int any = 0;
    for (int i = 0; i < o->nchunk; i++)
        any |= strcmp(o->chunk[i], "off") != 0;
    o->chunk = chunk;
    o->nchunk = any;
    o->reserve = r->reserve - r->handles; /* which the step has anyway */
    o->memory = any ? r->peak + o->reserve : 0;
}

/* A forward graph that shares the step's parameters. */
static int plan_beside(Trainer *r, tn_graph *g, tn_plan **plan)
{
    tn_options o = r->t->o;
    int64_t peak, persistent, reserve;
    o.persistent = r->persistent;
    o.chunk_memory = 0; /* the step's */
    o.accumulate = 1;
    slice_evaluation(r, &o);
    int code = tn_graph_passes(g, "forward", &o, NULL, NULL);
    o.memory = 0;
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

int plan_evaluation(Trainer *r)
{
    tn_options plain = r->t->o;
    int64_t windows, nlabel;
    if (!r->data)
        return 0;
    int code = tn_data_windows(r->data, 1, r->t->seq, &windows, &nlabel);
    if (!code && !windows && r->t->eval_every)
        code = fail_held_out(r);
    if (code || !windows)
        return code;
    /* the loss that runs are compared by, of one microbatch */
    plain.dropout = plain.z_loss = plain.label_smoothing = 0;
    plain.accumulate = 1;
    code = tn_model_graph(r->m, pass_rows(r->t), r->t->seq, &plain, &r->eval_graph);
    return code ? code : plan_beside(r, r->eval_graph, &r->eval_plan);
}

int drop_evaluation(Trainer *r)
{
    int64_t windows, nlabel;
    if (!source_is_text(&r->source))
        return 0;
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
    o.nchunk = 0; /* a token's logits are few */
    int code = tn_generator_new(r->m, r->t->seq, &o, &r->generator);
    if (code)
        return code;
    tn_generator_bytes(r->generator, &peak, &reserve);
    add_need(r, peak, reserve, tn_generator_handles(r->generator));
    return 0;
}

int plan_sampling(Trainer *r)
{
    int code = r->data ? open_tokenizer(r) : 0;
    if (code || !r->data || !r->t->sample_tokens)
        return code;
    code = plan_generator(r);
    if (code)
        return code;
    Sample s = sample_of(r, NULL);
    return sample_begin(&s); /* the prompt is known to be good */
}

void drop_plans(Trainer *r)
{
    tn_generator_free(r->generator);
    tn_plan_free(r->eval_plan);
    tn_plan_free(r->step_plan);
    tn_graph_free(r->eval_graph);
    tn_graph_free(r->step_graph);
    r->generator = NULL;
    r->eval_plan = r->step_plan = NULL;
    r->eval_graph = r->step_graph = NULL;
    r->arena = r->reserve = r->handles = 0;
}

int slice_more(Trainer *r)
{
    enum { TIMES = 4 };
    int64_t limit = r->t->o.memory, over;
    int code = 0;
    bool slices = false;
    for (int i = 0; i < r->t->o.nchunk; i++)
        slices |= !strcmp(r->t->o.chunk[i], "auto");
    if (!limit || !slices)
        return 0;
    for (int i = 1; !code && i <= TIMES && (over = r->arena + r->reserve - limit) > 0; i++) {
        bool samples = r->generator;
        r->goal = most((r->goal ? r->goal : limit) - over, 1);
        r->goal = i < TIMES ? r->goal : 1; /* the least that it can be */
        drop_plans(r);
        code = plan_step(r);
        code = code ? code : plan_evaluation(r);
        code = code || !samples ? code : plan_generator(r);
    }
    return code;
}

/* The limit holds for the arena of all three, not only for the step, which tn_plan_new has checked.
 */
int check_memory(Trainer *r)
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
    if (!code)
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
