/* The plans of a run: of the step, evaluation and sampling, in one arena as large as the largest of
 * them needs, and checked against the limit together. */
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

static int64_t most(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

/* One more plan, whose program shares the step's arena, or several. */
static void add_need(TrainPlans *p, int64_t peak, int64_t reserve, int64_t handles)
{
    int64_t shared = most(p->reserve - p->handles, reserve - handles);
    p->handles += handles;
    p->reserve = shared + p->handles;
    p->arena = most(p->arena, peak);
}

int plan_step(Trainer *r)
{
    const TrainOptions *t = r->t;
    TrainPlans *p = &r->plans;
    tn_options o = t->o;
    int64_t reserve;
    double all, added;
    o.goal_memory = p->goal ? p->goal : o.goal_memory;
    int code = tn_model_graph(r->m, t->batch, t->seq, &o, &p->step_graph);
    if (!code)
        code = tn_graph_passes(p->step_graph, "default", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(p->step_graph, &o, 1, &p->step);
    if (code)
        return code;
    tn_plan_bytes(p->step, &p->peak, &p->persistent, &reserve);
    tn_plan_flops(p->step, &all, &p->flops);
    tn_plan_sec(p->step, &p->est_sec, &added);
    p->step_need = p->peak + reserve;
    add_need(p, p->peak, reserve, tn_plan_handles(p->step));
    return 0;
}

/* Evaluations run in slices where the step does, in as many as they must to need no more than it:
 * their logits are as large, and what the step's patterns name they may not have. */
static void slice_evaluation(const TrainPlans *p, tn_options *o)
{
    static const char *const chunk[] = {"auto"};
    int any = 0;
    for (int i = 0; i < o->nchunk; i++)
        any |= strcmp(o->chunk[i], "off") != 0;
    o->chunk = chunk;
    o->nchunk = any;
    o->reserve = p->reserve - p->handles; /* which the step has anyway */
    o->memory = any ? p->peak + o->reserve : 0;
}

/* A forward graph that shares the step's parameters. */
static int plan_beside(Trainer *r, tn_graph *g, tn_plan **plan)
{
    tn_options o = r->t->o;
    int64_t peak, persistent, reserve;
    o.persistent = r->plans.persistent;
    o.goal_memory = 0; /* the step's */
    o.accumulate = 1;
    slice_evaluation(&r->plans, &o);
    int code = tn_graph_passes(g, "forward", &o, NULL, NULL);
    o.memory = 0;
    if (!code)
        code = tn_plan_new(g, &o, 1, plan);
    if (code)
        return code;
    tn_plan_bytes(*plan, &peak, &persistent, &reserve);
    add_need(&r->plans, peak, reserve, tn_plan_handles(*plan));
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
    if (!r->feed.data)
        return 0;
    int code = tn_data_windows(r->feed.data, 1, r->t->seq, &windows, &nlabel);
    if (!code && !windows && r->t->eval_every)
        code = fail_held_out(r);
    if (code || !windows)
        return code;
    /* the loss that runs are compared by, of one microbatch */
    plain.dropout = plain.z_loss = plain.label_smoothing = 0;
    plain.accumulate = 1;
    code = tn_model_graph(r->m, pass_rows(r->t), r->t->seq, &plain, &r->plans.eval_graph);
    return code ? code : plan_beside(r, r->plans.eval_graph, &r->plans.eval);
}

int drop_evaluation(Trainer *r)
{
    int64_t windows, nlabel;
    if (!source_is_text(&r->feed.source))
        return 0;
    int code = tn_data_windows(r->feed.data, 1, r->t->seq, &windows, &nlabel);
    if (code || windows || !r->plans.eval)
        return code;
    if (r->t->eval_every)
        return fail_held_out(r);
    tn_plan_free(r->plans.eval);
    r->plans.eval = NULL;
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
    TrainPlans *p = &r->plans;
    int64_t peak, reserve;
    o.persistent = p->persistent;
    o.memory = 0;
    o.nchunk = 0; /* a token's logits are few */
    int code = tn_generator_new(r->m, r->t->seq, &o, &p->generator);
    if (code)
        return code;
    tn_generator_bytes(p->generator, &peak, &reserve);
    add_need(p, peak, reserve, tn_generator_handles(p->generator));
    return 0;
}

int plan_sampling(Trainer *r)
{
    int code = r->feed.data ? open_tokenizer(r) : 0;
    if (code || !r->feed.data || !r->t->sample_tokens)
        return code;
    code = plan_generator(r);
    if (code)
        return code;
    Sample s = sample_of(r, NULL);
    return sample_begin(&s); /* the prompt is known to be good */
}

void drop_plans(TrainPlans *p)
{
    tn_generator_free(p->generator);
    tn_plan_free(p->eval);
    tn_plan_free(p->step);
    tn_graph_free(p->eval_graph);
    tn_graph_free(p->step_graph);
    p->generator = NULL;
    p->eval = p->step = NULL;
    p->eval_graph = p->step_graph = NULL;
    p->arena = p->reserve = p->handles = 0;
}

/* Whether a lower goal of the step can make all three need less, as it has reached the present one:
 * of what is computed again, where the step needs most; of slices always, as evaluations have them
 * where the step has. */
static bool can_lower(const TrainPlans *p, const tn_options *o, int64_t goal)
{
    if (p->step_need > goal)
        return false;
    bool lower = (!o->recompute || !strcmp(o->recompute, "auto")) && p->arena == p->peak;
    for (int i = 0; i < o->nchunk; i++)
        lower |= !strcmp(o->chunk[i], "auto");
    return lower;
}

int lower_goal(Trainer *r)
{
    enum { TIMES = 6 };
    TrainPlans *p = &r->plans;
    int64_t limit = r->t->o.goal_memory ? r->t->o.goal_memory : r->t->o.memory, over;
    int code = 0;
    if (!limit)
        return 0;
    for (int i = 1; !code && i <= TIMES && (over = p->arena + p->reserve - limit) > 0 &&
                    can_lower(p, &r->t->o, p->goal ? p->goal : limit);
         i++) {
        bool samples = p->generator;
        over <<= i - 1; /* each plan has a reserve of its own: what is over moves */
        p->goal = most((p->goal ? p->goal : limit) - over, 1);
        p->goal = i < TIMES ? p->goal : 1; /* the least that it can be */
        drop_plans(p);
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
    const TrainPlans *p = &r->plans;
    int64_t limit = r->t->o.memory, least = p->arena + p->reserve;
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
        all, unit && *unit ? "" : " bytes", tn_bytes_text(p->arena, unit, text[0], sizeof *text),
        tn_bytes_text(p->reserve, unit, text[1], sizeof *text),
        tn_bytes_text(limit, unit, text[2], sizeof *text), all,
        tn_bytes_text(p->peak, unit, text[3], sizeof *text));
}

int train_need(const Trainer *r, const tn_options *o, int64_t batch, int64_t *peak, int64_t *nbytes,
               double *sec)
{
    TrainOptions t = *r->t;
    Trainer x = {.ctx = r->ctx, .m = r->m, .t = &t, .feed.data = r->feed.data, .folder.lock = -1};
    t.o = *o;
    t.o.memory = 0;
    t.batch = batch;
    int code = plan_step(&x);
    if (!code)
        code = plan_evaluation(&x);
    if (!code && t.sample_tokens)
        code = plan_generator(&x);
    if (!code)
        code = lower_goal(&x);
    *peak = x.plans.arena;
    *nbytes = x.plans.arena + x.plans.reserve;
    *sec = x.plans.est_sec;
    x.feed.data = NULL; /* r's */
    drop(&x);
    return code;
}
