/* The graphs of a run: of the step, evaluation and sampling, whose plans share one arena. */
#include "trainer.h"

#include <jansson.h>
#include <string.h>

static int fail_held_out(const Trainer *r)
{
    return tn_context_fail(r->ctx, TN_CODE_FAIL,
                           "--eval-every: no file has 2 tokens that are held out");
}

/* Counts the windows that are held out. */
static int count_held_out(const Trainer *r, int64_t *windows)
{
    int64_t nlabel;
    *windows = 0;
    if (!r->feed.data)
        return 0;
    int code = tn_data_windows(feed_held(&r->feed), 1, r->t->seq, windows, &nlabel);
    return code || *windows || !r->t->eval_every ? code : fail_held_out(r);
}

int64_t pass_rows(const TrainOptions *t)
{
    int64_t iterations = t->o.accumulate > 1 && !t->graph ? t->o.accumulate : 1;
    return (t->batch + iterations - 1) / iterations;
}

/* Samples see as many tokens as the model is trained on. */
int train_task(const Trainer *r, tn_task *task)
{
    const TrainOptions *t = r->t;
    int64_t windows;
    int code = count_held_out(r, &windows);
    tn_part part = {.kind = TN_PART_STEP, .model = r->m, .seq = t->seq, .passes = "default"};
    *task = (tn_task){.batch = t->batch};
    task->part[task->nparts++] = part;
    part.passes = "forward";
    part.kind = TN_PART_EVALUATION;
    if (windows)
        task->part[task->nparts++] = part;
    part.kind = TN_PART_GENERATION;
    if (r->feed.data && t->sample_tokens)
        task->part[task->nparts++] = part;
    return code;
}

int compile_run(Trainer *r)
{
    TrainPlans *p = &r->plans;
    tn_task task;
    int64_t persistent, reserve;
    double all, added;
    int code = train_task(r, &task);
    if (!code)
        code = tn_compile(r->ctx, &task, &r->t->o, &p->all);
    if (code)
        return code;
    p->step = p->all.plan[0];
    r->own->o.accumulate = p->all.setting.accumulate; /* auto: what was found is the run's */
    json_object_set_new(r->own->described, "accumulate", json_integer(r->t->o.accumulate));
    for (int i = 1; i < task.nparts; i++)
        if (task.part[i].kind == TN_PART_EVALUATION)
            p->eval = p->all.plan[i];
        else
            p->generator = p->all.generator[i];
    tn_plan_bytes(p->step, &p->peak, &persistent, &reserve);
    tn_plan_flops(p->step, &all, &p->flops);
    tn_plan_sec(p->step, &p->est_sec, &added);
    p->arena = p->all.setting.peak;
    return 0;
}

int drop_evaluation(Trainer *r)
{
    int64_t windows;
    int code = count_held_out(r, &windows);
    if (!code && !windows)
        r->plans.eval = NULL;
    return code;
}

int open_tokenizer(Trainer *r)
{
    const char *path = r->t->tokenizer;
    bool named = path && strcmp(path, "bytes") != 0, bytes = !strcmp(r->t->token_type, "byte");
    if (!r->feed.data || (!path && !r->t->sample_tokens))
        return 0;
    int code = sample_tokenizer(r->ctx, r->m, bytes ? "bytes" : path, &r->tokenizer);
    return code || !named ? code : tn_model_tokenizer(r->m, path);
}

int check_prompt(Trainer *r)
{
    if (!r->plans.generator)
        return 0;
    Sample s = sample_of(r, NULL);
    return sample_begin(&s);
}

void drop_generator(TrainPlans *p)
{
    tn_generator_free(p->generator);
    for (int i = 0; i < TN_MOST_PARTS; i++)
        if (p->all.generator[i] == p->generator)
            p->all.generator[i] = NULL;
    p->generator = NULL;
}

void drop_plans(TrainPlans *p)
{
    tn_compiled_free(&p->all);
    p->step = p->eval = NULL;
    p->generator = NULL;
}
