/* Tuning: finds the fastest kernel for each call of some training steps, and how long each of their
 * nodes takes.
 *
 * A step is planned by the machine as known so far. Each of its calls that several kernels take is
 * run by all of them, alone (exec/time_ways.c). Another kernel than the plan's is chosen only if it
 * is faster by more than times differ from run to run. Other kernels may want their operands
 * otherwise, so the step is planned again, until all calls are known. Then the whole step is run;
 * the time of each node in it, with the caches as they are there, is kept by the node's key, and
 * later plans of the step use it. Times that are known from an earlier run are not measured again.
 *
 * Calls of a device beside the host are timed one by one, each waited for. The step is timed apart,
 * as it runs: the time by which the calls together exceed it is what waiting adds to them. */
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 4, LEAST_RUNS = 3, MOST_TUNE_RUNS = 25, WARM_RUNS = 2, INTERRUPTED = 130 };

#define CLEAR_GAIN  0.97 /* of the seconds of the kernel that the plan has */
#define WAY_SEC     0.5  /* that the ways of a call take in turns, at least */
#define RUNS_SEC    3    /* that runs of a whole step take, at least */
#define LONG_SEC    20   /* with which fewer runs than LEAST_RUNS are enough */
#define MOST_LONGER 1.5  /* than its calls a run is taken to be */
#define MOST_WAIT   0.75 /* of what a call took, that it waited for */
#define MOST_OFF    0.1  /* of the step, by which its estimate differs where nothing disturbs it */

typedef struct Tuner {
    tn_context *ctx;
    Arena *a;
    const tn_tune_options *o;
    TunedFor to;
    TuneFile *f;
    Map seen; /* keys measured here: "way KEY", "sec KEY" */
    tn_tune_news news;
} Tuner;

/* A step, planned. Its handles go with `a`. */
typedef struct TunedStep {
    Tuner *t;
    Arena *a, *tmp; /* tmp: of one call */
    const tn_tune_step *of;
    tn_options o;
    tn_model *model;
    tn_graph *graph;
    tn_plan *plan;
    tn_program *program;
} TunedStep;

static double (*clock_of(const Tuner *t))(void)
{
    return t->o->cpu ? cpu_sec : now_sec;
}

static void tell(Tuner *t, const char *doing, int64_t done, int64_t count, const char *call)
{
    t->news.doing = doing;
    t->news.done = done;
    t->news.count = count;
    t->news.call = call;
    if (t->o->news)
        t->o->news(t->o->arg, &t->news);
}

/* Unwinds where the caller has asked for the end: all that was measured is in the file. */
static void look_for_stop(const Tuner *t)
{
    if (t->o->stop && __atomic_load_n(t->o->stop, __ATOMIC_RELAXED))
        fail(&t->ctx->ctx, (Code)INTERRUPTED, "interrupted; the same call goes on from %s",
             t->f->part);
}

static void need(const Tuner *t, int code)
{
    if (code)
        fail(&t->ctx->ctx, (Code)code, "%s", arena_strdup(t->a, tn_error(t->ctx)));
}

static bool is_new(Tuner *t, const char *what, const char *key)
{
    return t->o->again && !map_find(&t->seen, arena_printf(t->a, "%s %s", what, key));
}

static void note(Tuner *t, const char *what, const char *key)
{
    map_put(&t->seen, arena_printf(t->a, "%s %s", what, key), t);
}

/* ---- planning ---- */

static void drop_plan(TunedStep *s)
{
    tn_program_free(s->program);
    tn_plan_free(s->plan);
    tn_graph_free(s->graph);
    s->program = NULL;
    s->plan = NULL;
    s->graph = NULL;
}

static void drop(void *arg)
{
    TunedStep *s = arg;
    drop_plan(s);
    tn_model_free(s->model);
}

static void make_graph(TunedStep *s)
{
    int code = tn_model_graph(s->model, s->of->batch, s->of->seq, &s->o, &s->graph);
    if (!code)
        code = tn_graph_passes(s->graph, "default", &s->o, NULL, NULL);
    need(s->t, code);
}

/* By the machine as it is known now. */
static void plan_step(TunedStep *s)
{
    Buf text = {.a = s->a};
    drop_plan(s);
    machine_print(&text, s->t->f->machine);
    s->o.machine = text.text;
    make_graph(s);
    need(s->t, tn_plan_new(s->graph, &s->o, 1, &s->plan));
}

/* Operands of one call alone could take more than there is. */
static void check_fit(const TunedStep *s)
{
    int64_t peak = s->plan->p->space[SPACE_MAIN].peak,
            available = driver_of(s->t->to.device)->available();
    char text[2][40];
    if (available >= 0 && peak > available)
        fail(&s->t->ctx->ctx, TN_FIT, "does not fit: a step needs %s, available are %s",
             bytes_text(peak, "MiB", text[0], sizeof *text),
             bytes_text(available, "MiB", text[1], sizeof *text));
}

/* ---- ways ---- */

/* Whether the ways of a call of the plan are to be measured. */
static bool lacks_way(TunedStep *s, int step)
{
    const Call *c = &s->plan->p->step[step].call;
    if (way_count(s->plan->p, step) < 2)
        return false;
    return !machine_call_way(s->t->f->machine, c) || is_new(s->t, "way", way_key(s->a, c));
}

/* Steps of the plan, each with a call of its own of which the ways are to be measured. */
static int find_calls(TunedStep *s, int **list)
{
    const Plan *p = s->plan->p;
    Map listed = {.a = s->a};
    int n = 0;
    *list = NEWN(s->a, int, p->nstep + 1);
    for (int i = 0; i < p->nstep; i++) {
        if (!lacks_way(s, i))
            continue;
        const char *key = way_key(s->a, &p->step[i].call);
        if (map_find(&listed, key))
            continue;
        map_put(&listed, key, s);
        (*list)[n++] = i;
    }
    return n;
}

static const WayTime *choose(const WayTime *way, int n)
{
    const WayTime *best = NULL, *taken = NULL;
    for (int i = 0; i < n; i++) {
        if (way[i].sec < 0)
            continue;
        taken = way[i].taken ? &way[i] : taken;
        best = !best || way[i].sec < best->sec ? &way[i] : best;
    }
    return taken && best->sec > CLEAR_GAIN * taken->sec ? taken : best;
}

static void measure_call(TunedStep *s, int step)
{
    WayTime way[MOST_WAYS];
    Tuner *t = s->t;
    const Plan *p = s->plan->p;
    const char *key = way_key(s->a, &p->step[step].call);
    int n = way_times(s->tmp, p, step, WAY_SEC, clock_of(t), way);
    const WayTime *best = choose(way, n);
    arena_reset(s->tmp);
    note(t, "way", key);
    if (!best) /* no kernel runs on such operands, which are not those of a step */
        return;
    machine_set_way(t->f->machine, key, best->kernel->name);
    tune_save(t->f);
}

/* Returns whether there were any. */
static bool measure_calls(TunedStep *s)
{
    int *list, n = find_calls(s, &list);
    for (int i = 0; i < n; i++) {
        const Step *x = &s->plan->p->step[list[i]];
        tell(s->t, "ways", i, n, x->node->op->name);
        look_for_stop(s->t);
        measure_call(s, list[i]);
    }
    return n > 0;
}

/* ---- nodes ---- */

/* The key of what a step of the plan takes; NULL: it has none. */
static const char *step_key(Arena *a, const Step *s)
{
    if (s->kind != STEP_CALL)
        return NULL;
    return s->copy ? way_key(a, &s->call) : node_key(a, s->node);
}

static bool lacks_sec(TunedStep *s, const Step *x)
{
    const Machine *m = s->t->f->machine;
    const char *key = step_key(s->a, x);
    if (!key)
        return false;
    double known = x->copy ? machine_call_sec(m, &x->call) : machine_node_sec(m, x->node);
    return !(known > 0) || is_new(s->t, "sec", key);
}

static bool knows_nodes(TunedStep *s)
{
    const Plan *p = s->plan->p;
    for (int i = 0; i < p->nstep; i++)
        if (lacks_sec(s, &p->step[i]))
            return false;
    return true;
}

/* Writes what a run reads: any tokens, and a rate by which weights stay finite. */
static void write_inputs(TunedStep *s, int64_t number)
{
    const float rate = 1e-5f;
    const Plan *p = s->plan->p;
    int64_t vocab, context, none = 0;
    tn_model_shape(s->model, &vocab, &context);
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *in = &p->in[i];
        const char *name = in->value;
        int code = 0;
        if (in->role == ROLE_STEP)
            code = tn_program_write(s->program, name, &number, sizeof number);
        else if (in->role == ROLE_SEED)
            code = tn_program_write(s->program, name, &none, sizeof none);
        else if (in->role == ROLE_SCALAR)
            code = tn_program_write(s->program, name, &rate, sizeof rate);
        else if (in->type.dtype == I64) {
            int64_t n = type_nelem(&in->type), *ids = NEWN(s->tmp, int64_t, n);
            const bool starts = !strcmp(name, "starts"); /* each row is one document */
            for (int64_t k = 0; k < n && !starts; k++)
                ids[k] = (int64_t)(random_uniform(1, 0, 0, (uint64_t)k) * (float)vocab) % vocab;
            code = tn_program_write(s->program, name, ids, n * (int64_t)sizeof *ids);
        }
        if (code)
            fail(&s->t->ctx->ctx, (Code)code, "%s", tn_program_error(s->program));
    }
    arena_reset(s->tmp);
}

static double time_step(TunedStep *s, int64_t number)
{
    write_inputs(s, number);
    double (*clock)(void) = clock_of(s->t), start = clock();
    if (tn_program_run(s->program))
        fail(&s->t->ctx->ctx, TN_FAIL, "%s", tn_program_error(s->program));
    return clock() - start;
}

static void open_program(TunedStep *s)
{
    tn_options o = s->o;
    int code = tn_program_new(s->plan, &o, &s->program);
    if (!code)
        code = tn_program_load(s->program, s->model, &o);
    need(s->t, code);
}

/* How many runs there will be, by what one takes. */
static int64_t expected_runs(double sec)
{
    double n = ceil(RUNS_SEC / MAX(sec, 1e-6));
    return (int64_t)MIN(MAX(n, LEAST_RUNS), MOST_TUNE_RUNS);
}

/* Runs of the whole step, recorded or as they are. Returns how many; sec: of each. */
static int run_steps(TunedStep *s, bool recorded, double *sec)
{
    Tuner *t = s->t;
    double all = 0;
    int n = 0;
    while ((n < LEAST_RUNS && all < LONG_SEC) || (n < MOST_TUNE_RUNS && all < RUNS_SEC)) {
        look_for_stop(t);
        tell(t, "run", n, n ? expected_runs(all / n) : LEAST_RUNS, "");
        if (recorded)
            trace_next(s->program->x->trace, n);
        sec[n] = time_step(s, n + 2);
        all += sec[n++];
    }
    return n;
}

/* After some that do not count, in which memory is new and libraries load what they run. Returns
 * seconds of a run. */
static double time_steps(TunedStep *s)
{
    Tuner *t = s->t;
    double sec[MOST_TUNE_RUNS];
    bool apart = !device_is_host(t->to.device);
    tell(t, "run", 0, LEAST_RUNS, "");
    for (int i = 0; i < (apart ? WARM_RUNS : 1); i++)
        time_step(s, 1);
    double whole = apart ? median_sec(sec, run_steps(s, false, sec)) : 0;
    s->program->x->trace = trace_new(s->program->h.a, s->plan->p, MOST_TUNE_RUNS, clock_of(t));
    int n = run_steps(s, true, sec);
    return apart ? whole : median_sec(sec, n);
}

/* Times of the steps of the plan that have a key. */
typedef struct KeyTimes {
    const char *key;
    double sum; /* of the medians of its steps */
    int count;
} KeyTimes;

/* Times of each step of the plan, of all runs. */
typedef struct StepTimes {
    double *sec, median;
    int count;
} StepTimes;

static StepTimes *step_times(TunedStep *s)
{
    const Trace *x = s->program->x->trace;
    int nstep = s->plan->p->nstep;
    StepTimes *t = NEWN(s->a, StepTimes, nstep + 1);
    double sec;
    for (int64_t i = 0; i < trace_count(x); i++) {
        int step = trace_call(x, i, &sec);
        t[step < 0 ? nstep : step].count++;
    }
    for (int i = 0; i <= nstep; i++) {
        t[i].sec = NEWN(s->a, double, t[i].count + 1);
        t[i].count = 0;
    }
    for (int64_t i = 0; i < trace_count(x); i++) {
        int step = trace_call(x, i, &sec);
        StepTimes *y = &t[step < 0 ? nstep : step];
        y->sec[y->count++] = sec;
    }
    for (int i = 0; i < nstep; i++)
        t[i].median = median_sec(t[i].sec, t[i].count);
    return t;
}

/* Seconds of a call in a step: `by` times those that were measured less `wait`, at least a quarter
 * of them. */
typedef struct Correction {
    double wait, by;
} Correction;

static double without_wait(const Correction *x, double sec)
{
    return MAX(sec - x->wait, (1 - MOST_WAIT) * sec);
}

/* Seconds of a run's calls together; n: their number. */
static double calls_sec(const TunedStep *s, const StepTimes *t, const Correction *x, double *n)
{
    double sum = 0, count = 0, runs = (double)MAX(trace_runs(s->program->x->trace), 1);
    for (int i = 0; i < s->plan->p->nstep; i++) {
        if (s->plan->p->step[i].queue != QUEUE_COMPUTE)
            continue;
        sum += without_wait(x, t[i].median) * t[i].count;
        count += t[i].count;
    }
    *n = count / runs;
    return sum / runs;
}

/* Beside the host a call was waited for, which is alike for all. A run then takes longer than its
 * calls by what lies between them, and whatever else the machine does, which a median of one call
 * does not see. */
static Correction correct(const TunedStep *s, const StepTimes *t, double step_sec)
{
    Correction x = {0, 1};
    bool apart = !device_is_host(s->t->to.device);
    double n, calls = calls_sec(s, t, &x, &n);
    if (apart && n > 0)
        x.wait = MAX(calls - step_sec, 0) / n;
    calls = calls_sec(s, t, &x, &n);
    if (calls > 0)
        x.by = MIN(MAX(step_sec / calls, apart ? 1 / MOST_LONGER : 1), MOST_LONGER);
    return x;
}

/* So many digits as say something. */
static double rounded(double sec)
{
    char text[40];
    snprintf(text, sizeof text, "%.4g", sec);
    return strtod(text, NULL);
}

/* Nodes of one key have the mean of what each takes where it stands. */
static void keep_seconds(TunedStep *s, double step_sec)
{
    const Plan *p = s->plan->p;
    const StepTimes *t = step_times(s);
    const Correction x = correct(s, t, step_sec);
    KeyTimes *list = NEWN(s->a, KeyTimes, p->nstep + 1);
    Map known = {.a = s->a};
    int n = 0;
    for (int i = 0; i < p->nstep; i++) {
        const char *key = step_key(s->a, &p->step[i]);
        if (!key || !(t[i].median > 0))
            continue;
        KeyTimes *k = map_find(&known, key);
        if (!k) {
            k = &list[n++];
            k->key = key;
            map_put(&known, key, k);
        }
        k->sum += x.by * without_wait(&x, t[i].median);
        k->count++;
    }
    for (int i = 0; i < n; i++) {
        double sec = rounded(list[i].sum / list[i].count);
        machine_set_sec(s->t->f->machine, list[i].key, MIN(MAX(sec, SEC_LEAST), SEC_MOST));
        note(s->t, "sec", list[i].key);
    }
    tune_save(s->t->f);
}

/* Returns what is estimated of what a run took. */
static double measure_nodes(TunedStep *s)
{
    tell(s->t, "load", 0, 0, "");
    open_program(s);
    s->t->news.step_sec = time_steps(s);
    keep_seconds(s, s->t->news.step_sec);
    plan_step(s);
    return s->plan->p->est.step / s->t->news.step_sec;
}

/* Where the calls do not add up to the step something else has run beside it, or the plan by the
 * new seconds is another: once more, and then it is told. */
static void measure_nodes_well(TunedStep *s)
{
    const Tuner *t = s->t;
    const tn_tune_step *of = s->of;
    double ratio = measure_nodes(s);
    if (fabs(ratio - 1) > MOST_OFF)
        ratio = measure_nodes(s);
    if (fabs(ratio - 1) > MOST_OFF && t->o->warn)
        t->o->warn(t->o->arg,
                   arena_printf(s->a,
                                "%s, batch %lld, length %lld, %s: what is estimated is %.2f of the "
                                "step that was measured: if something else was running, measure "
                                "again (--again)",
                                of->model, (long long)of->batch, (long long)of->seq,
                                s->o.dtype ? s->o.dtype : "f32", ratio));
}

/* ---- all of it ---- */

static TunedStep *open_step(Tuner *t, Arena *a, const tn_tune_step *of)
{
    TunedStep *s = NEW(a, TunedStep);
    *s = (TunedStep){.t = t, .a = a, .of = of, .o = *of->options};
    s->o.machine = "none";
    s->o.mesh = NULL;
    s->o.memory = 0;
    arena_defer(s->a, drop, s);
    s->tmp = arena_tmp(s->a);
    need(t, tn_model_open(t->ctx, of->model, &s->model));
    return s;
}

static void tune_step(Tuner *t, Arena *a, const tn_tune_step *of)
{
    tell(t, "plan", 0, 0, "");
    TunedStep *s = open_step(t, a, of);
    plan_step(s);
    check_fit(s);
    bool changed = false;
    for (int i = 0; i < MOST_ROUNDS && measure_calls(s); i++) {
        plan_step(s);
        changed = true;
    }
    t->news.known = !changed && knows_nodes(s);
    if (!t->news.known)
        measure_nodes_well(s);
    t->news.est_sec = s->plan->p->est.step;
    tell(t, "done", 0, 0, "");
    t->news.step_sec = t->news.est_sec = 0;
}

/* A model or options that are refused are known before anything is measured. */
static void look_at_steps(Tuner *t, const tn_tune_step *steps, int count)
{
    Arena *a = arena_tmp(t->a);
    for (int i = 0; i < count; i++) {
        make_graph(open_step(t, a, &steps[i]));
        arena_reset(a);
    }
}

/* A step of several that needs more memory than there is is left out. Returns whether it was. */
static bool tune_or_warn(Tuner *t, const tn_tune_step *steps, int count, int step)
{
    Ctx *ctx = &t->ctx->ctx;
    const tn_tune_step *of = &steps[step];
    t->news.step = step;
    TRY(call, ctx)
        tune_step(t, try_arena(&call), of);
    Code code = tried(&call);
    if (code && (code != TN_FIT || count == 1))
        fail_again(ctx, "");
    if (code && t->o->warn)
        t->o->warn(t->o->arg,
                   arena_printf(t->a, "%s, batch %lld, length %lld: left out: %s", of->model,
                                (long long)of->batch, (long long)of->seq, ctx->message));
    return code;
}

static void tune(tn_context *ctx, Arena *a, const tn_tune_step *steps, int count,
                 const tn_tune_options *o)
{
    Tuner t = {.ctx = ctx,
               .a = a,
               .o = o,
               .to = tune_for_steps(&ctx->ctx, steps, count, o),
               .seen = {.a = a}};
    look_at_steps(&t, steps, count);
    t.f = tune_open(a, o->path, &t.to);
    if (t.f->warning && o->warn)
        o->warn(o->arg, t.f->warning);
    t.news = (tn_tune_news){.nstep = count, .path = t.f->path, .goes_on = t.f->goes_on};
    int left = 0;
    for (int i = 0; i < count; i++)
        left += tune_or_warn(&t, steps, count, i);
    if (left == count)
        fail(&ctx->ctx, TN_FIT, "none of the %d steps fits into the memory that is available",
             count);
    tune_end(t.f);
    machine_forget(&ctx->ctx);
}

int tn_tune(tn_context *ctx, const tn_tune_step *steps, int count, const tn_tune_options *options)
{
    if (!GIVEN(ctx, ctx, steps, options) || !WITHIN(ctx, 1, INT32_MAX, count))
        return TN_CODE_USAGE;
    for (int i = 0; i < count; i++)
        if (!GIVEN(ctx, steps[i].model, steps[i].options) ||
            !args_options(ctx, __func__, steps[i].options))
            return TN_CODE_USAGE;
    TRY(t, &ctx->ctx)
        tune(ctx, try_arena(&t), steps, count, options);
    return tried(&t);
}
