/* Plans all graphs of a task in one arena: the step first, then those that share its persistent
 * part. How often, and with which settings, src/decide/compile.c says; a setting is planned here.
 */
#include "parts.h"

#include "../decide/compile.h"

#include <math.h>
#include <string.h>

/* ---- a setting ---- */

static void free_parts(tn_compiled *c)
{
    for (int i = 0; i < TN_MOST_PARTS; i++) {
        tn_generator_free(c->generator[i]);
        tn_plan_free(c->plan[i]);
        tn_graph_free(c->graph[i]);
        c->generator[i] = NULL;
        c->plan[i] = NULL;
        c->graph[i] = NULL;
    }
}

/* One more plan, whose program shares the step's arena, or several. */
static void add_need(Parts *x, int64_t peak, int64_t reserve, int64_t handles)
{
    x->handles += handles;
    x->shared = MAX(x->shared, reserve - handles);
    x->arena = MAX(x->arena, peak);
}

static Globs copy_globs(Arena *a, const Globs *p)
{
    const char **pattern = NEWN(a, const char *, p->count);
    for (int i = 0; i < p->count; i++)
        pattern[i] = arena_strdup(a, p->pattern[i]);
    return (Globs){pattern, p->count};
}

static int copy_graph(tn_graph *g, tn_graph **copy)
{
    tn_context *ctx = args_owner(g);
    TRY(t, &ctx->ctx) {
        tn_graph *new = handle_new(ctx, try_arena(&t), sizeof *new);
        new->g = graph_clone(new->h.a, g->g);
        new->rows = g->rows;
        new->filled = g->filled;
        new->iterations = g->iterations;
        new->tied = g->tied ? arena_strdup(new->h.a, g->tied) : NULL;
        new->own = g->own;
        new->adapters = copy_globs(new->h.a, &g->adapters);
        *copy = handle_keep(new);
    }
    return tried(&t);
}

/* Makes the graph of a part, and runs its passes. */
static int make_graph(Parts *x, int i, const tn_options *o)
{
    const tn_part *part = &x->task->part[i];
    tn_options plain = x->o;
    tn_graph **g = &x->to->graph[i];
    int64_t rows = x->batch;
    int code = 0;
    bool loss_alone = part->passes && !strcmp(part->passes, "forward");
    if (part->kind == TN_PART_EVALUATION) { /* the loss that runs are compared by */
        plain.dropout = plain.z_loss = plain.label_smoothing = 0;
        plain.accumulate = 1;
        if (!part->model->graph) /* which is for so many rows */
            rows = (rows + x->o.accumulate - 1) / x->o.accumulate;
    }
    if (part->kind == TN_PART_GRAPH)
        code = part->passes ? copy_graph(part->graph, g) : 0;
    else
        code = step_graph(part->model, rows, part->seq, &plain,
                          !loss_alone && part->kind != TN_PART_EVALUATION, g);
    if (!code && o->shardings == x->rules)
        (*g)->asked_shardings = MIN(x->o.nshardings, o->nshardings);
    const tn_model *m = part->kind == TN_PART_GRAPH ? NULL : part->model;
    bool graph = !code && m && m->graph;
    if (graph && (part->kind == TN_PART_EVALUATION || loss_alone))
        graph_model_evaluates((*g)->g);
    const char *passes = graph && part->passes ? graph_model_passes(m, part->passes) : part->passes;
    if (code || !passes)
        return code;
    (*g)->unpriced = x->unpriced;
    (*g)->asks = x->asks;
    (*g)->known = x->known;
    (*g)->reorder = !x->task->keep_order;
    return tn_graph_passes(*g, passes, o, NULL, NULL);
}

static int plan_graph(Parts *x, int i, const tn_options *o)
{
    tn_graph *g = x->to->graph[i] ? x->to->graph[i] : x->task->part[i].graph;
    tn_options free = *o; /* what does not fit is planned too */
    free.memory = 0;
    return tn_plan_new(g, &free, !x->task->keep_order, &x->to->plan[i]);
}

int parts_graph(Parts *x, const tn_options *o)
{
    return make_graph(x, 0, o);
}

int parts_plan(Parts *x, const tn_options *o)
{
    return plan_graph(x, 0, o);
}

int parts_step(Parts *x, const tn_options *o)
{
    int code = parts_graph(x, o);
    return code ? code : parts_plan(x, o);
}

static int plan_step(Parts *x, int64_t goal, CompileNeed *need)
{
    tn_options o = x->o;
    int64_t reserve;
    double added;
    o.goal_memory = goal;
    const BucketAsked asked = bucket_begin(&o);
    bool many = shardings_auto(&o) && x->task->part[0].passes && o.mesh;
    int code = many ? parts_sharded(x, &o) : parts_step(x, &o);
    if (!code)
        code = bucket_choose(x, &asked, &o);
    if (code)
        return code;
    const tn_plan *p = x->to->plan[0];
    tn_plan_bytes(p, &need->step, &x->persistent, &reserve);
    x->persistent_host = tn_plan_host_persistent(p);
    tn_plan_sec(p, &need->sec, &added);
    need->step_need = need->step + reserve;
    add_need(x, need->step, reserve, tn_plan_handles(p));
    return 0;
}

/* Plans beside the step run in slices where it does, in as many as they must to need no more than
 * it: their logits are as large, and what the step's patterns name they may not have. */
static void slice_beside(const Parts *x, int64_t step, tn_options *o)
{
    static const char *const chunk[] = {"auto"};
    int any = 0;
    for (int i = 0; i < o->nchunk; i++)
        any |= strcmp(o->chunk[i], "off") != 0;
    o->chunk = chunk;
    o->nchunk = any;
    o->reserve = x->shared; /* which the step has anyway */
    o->goal_memory = any ? step + o->reserve : 0;
}

static int plan_beside(Parts *x, int i, int64_t step)
{
    tn_options o = x->o;
    int64_t peak, persistent, reserve;
    o.persistent = x->persistent;
    o.persistent_host = x->persistent_host;
    o.decided = NULL;
    o.bucket = x->bucket;
    o.accumulate = 1;
    if (x->rules) {
        o.shardings = x->rules;
        o.nshardings = x->nrules;
    }
    slice_beside(x, step, &o);
    int code = make_graph(x, i, &o);
    if (!code)
        code = plan_graph(x, i, &o);
    if (code)
        return code;
    tn_plan_bytes(x->to->plan[i], &peak, &persistent, &reserve);
    add_need(x, peak, reserve, tn_plan_handles(x->to->plan[i]));
    return 0;
}

static int plan_generation(Parts *x, int i)
{
    const tn_part *part = &x->task->part[i];
    tn_options o = x->o;
    int64_t peak, reserve;
    o.persistent = x->persistent;
    o.persistent_host = x->persistent_host;
    o.nchunk = 0; /* a token's logits are few */
    int code = tn_generator_new(part->model, part->seq, &o, &x->to->generator[i]);
    if (code)
        return code;
    tn_generator_bytes(x->to->generator[i], &peak, &reserve);
    add_need(x, peak, reserve, tn_generator_handles(x->to->generator[i]));
    return 0;
}

static int plan_parts(void *arg, int64_t goal, CompileNeed *need)
{
    Parts *x = arg;
    free_parts(x->to);
    x->arena = x->shared = x->handles = 0;
    int code = plan_step(x, goal, need);
    for (int i = 1; !code && i < x->task->nparts; i++)
        code = x->task->part[i].kind == TN_PART_GENERATION ? plan_generation(x, i)
                                                           : plan_beside(x, i, need->step);
    need->arena = x->arena;
    need->reserve = x->shared + x->handles;
    return code;
}

/* ---- a task ---- */

typedef struct Compile {
    tn_context *ctx;
    const tn_task *task;
    const tn_options *o;
    int64_t limit; /* that plans are to reach */
    Arena *tmp;
    CompileSearch search;
    const char **chunk; /* options.chunk without "auto" */
    int nchunk;
    ShardKnown known;
    bool still; /* tries are asked for bytes, which moving collectives does not take off: none is */
} Compile;

/* The fewest bytes that a choice of all forms counted, of those that were tried; 0: there was none.
 */
static int64_t counted_bytes(const tn_compiled *c)
{
    int64_t fewest = 0;
    for (int i = 0; c->graph[0] && i < c->graph[0]->sharded.ntried; i++) {
        const int64_t kept = c->graph[0]->sharded.tried[i].kept;
        fewest = kept && (!fewest || kept < fewest) ? kept : fewest;
    }
    return fewest;
}

/* Plans a setting; where that is not `sliced`, without what chunk "auto" would choose. */
static int plan_setting(Compile *x, CompileSetting *s, bool quiet, tn_compiled *to,
                        CompileNeed *need)
{
    Parts parts = {.ctx = x->ctx,
                   .task = x->task,
                   .o = *x->o,
                   .batch = s->batch,
                   .to = to,
                   .tmp = x->tmp,
                   .known = &x->known,
                   .quick = quiet};
    tn_options *o = &parts.o;
    o->memory = o->goal_memory = 0;
    o->recompute = s->recompute;
    o->accumulate = s->accumulate;
    if (quiet)
        o->warn = NULL; /* of the plan that was asked for it has warned */
    if (x->still && (!o->overlap || !strcmp(o->overlap, "on")))
        o->overlap = "off";
    if (!s->sliced && x->search.sliced) {
        o->chunk = x->chunk;
        o->nchunk = x->nchunk;
    }
    CompileGoal goal = {.limit = x->limit, .plan = plan_parts, .arg = &parts};
    goal.again = !strcmp(s->recompute, "auto");
    for (int i = 0; i < o->nchunk; i++)
        goal.slices |= !strcmp(o->chunk[i], "auto");
    int code = compile_within(&goal, need);
    to->handles = parts.handles;
    s->peak = need->arena;
    s->nbytes = code ? 0 : need->arena + need->reserve;
    s->counted = strcmp(s->recompute, "auto") ? counted_bytes(to) : 0; /* it saves more */
    s->sec = need->sec;
    return code;
}

static void try_setting(void *arg, CompileSetting *s)
{
    tn_compiled to = {0};
    CompileNeed need = {0};
    plan_setting(arg, s, true, &to, &need);
    free_parts(&to);
}

static void tell(void *arg, int count)
{
    const tn_task *task = ((const Compile *)arg)->task;
    if (task->tell)
        task->tell(task->tell_arg, count);
}

static tn_setting setting_of(const CompileSetting *s)
{
    return (tn_setting){.recompute = s->recompute,
                        .accumulate = s->accumulate,
                        .batch = s->batch,
                        .peak = s->peak,
                        .nbytes = s->nbytes,
                        .sec = s->sec};
}

/* The names of the parts beside the step. */
static const char *name_beside(const tn_task *task)
{
    bool evaluates = false, samples = false, other = false;
    for (int i = 1; i < task->nparts; i++) {
        evaluates |= task->part[i].kind == TN_PART_EVALUATION;
        samples |= task->part[i].kind == TN_PART_GENERATION;
        other |= task->part[i].kind == TN_PART_GRAPH || task->part[i].kind == TN_PART_STEP;
    }
    return other       ? "the other graphs"
           : samples   ? "evaluation and sampling"
           : evaluates ? "evaluation"
                       : NULL;
}

/* The subject of a refusal where the step alone fits. */
static const char *need_beside(Arena *a, const char *beside)
{
    if (!beside || !strcmp(beside, "the other graphs"))
        return "all graphs together need ";
    return arena_printf(a, "%s need%s ", beside, strcmp(beside, "evaluation") ? "" : "s");
}

/* The options by which a setting differs from the one that was asked for, and its bytes. */
static const char *other_options(Arena *a, const tn_setting *asked, const tn_setting *x,
                                 const char *unit)
{
    char all[40];
    Buf b = {.a = a};
    if (strcmp(x->recompute, asked->recompute) != 0)
        buf_printf(&b, "--recompute %s ", x->recompute);
    if (x->accumulate != asked->accumulate)
        buf_printf(&b, "--accumulate %lld ", (long long)x->accumulate);
    if (x->batch != asked->batch)
        buf_printf(&b, "--batch-size %lld ", (long long)x->batch);
    if (!b.len)
        buf_printf(&b, "--chunk off ");
    buf_printf(&b, "it is %s", tn_bytes_text(x->nbytes, unit, all, sizeof all));
    return b.text;
}

/* Whether the optimizer's state could go to a memory of the host, and was not asked to. */
static bool may_move_state(const Compile *x)
{
    bool asked = false;
    for (int i = 0; i < x->o->nrules; i++)
        asked |=
            !strcmp(x->o->rules[i].policy, "offload") && !strcmp(x->o->rules[i].pattern, "state");
    return !asked && !device_is_host(device_get(&x->ctx->ctx, x->o->backend));
}

/* The bytes of what was asked for with --offload state; 0: none. */
static int64_t try_state(Compile *x, const CompileSetting *asked)
{
    const tn_options *before = x->o;
    tn_options o = *before;
    CompileSetting s = *asked;
    tn_rule *rule = NEWN(x->tmp, tn_rule, o.nrules + 1);
    for (int i = 0; i < o.nrules; i++)
        rule[i] = o.rules[i];
    rule[o.nrules++] = (tn_rule){"offload", "state"};
    o.rules = rule;
    s.nbytes = 0;
    x->o = &o;
    try_setting(x, &s);
    x->o = before;
    return s.nbytes;
}

/* The same as an option beside the others that need fewer bytes. */
static void add_state(Compile *x, Arena *tmp, const CompileSetting *asked, int64_t least,
                      FitText *t)
{
    char all[40];
    int64_t nbytes = may_move_state(x) ? try_state(x, asked) : 0;
    if (nbytes && nbytes < least)
        t->others = arena_printf(tmp, "--offload state it is %s%s%s",
                                 tn_bytes_text(nbytes, x->o->memory_unit, all, sizeof all),
                                 t->others ? "; with " : "", t->others ? t->others : "");
}

/* Fails with what needs more than the limit: the step alone, or all of them. */
static int refuse(Compile *x, Arena *tmp, const tn_compiled *c, const CompileNeed *need,
                  const CompileSetting *asked)
{
    const char *unit = x->o->memory_unit, *beside = name_beside(x->task);
    const Plan *p = c->plan[0]->p;
    Misfit m = {.limit = x->o->memory, .peak = need->step, .reserve = p->reserve};
    FitText t = {.what = "needs ", .unit = unit};
    char step[40];
    if (need->step_need > x->o->memory) {
        t.holds = fit_holds(tmp, p);
    } else {
        m.peak = need->arena;
        m.reserve = need->reserve;
        t.what = need_beside(tmp, beside);
        t.holds = arena_printf(tmp, "\n  the step alone needs an arena of %s",
                               tn_bytes_text(need->step, unit, step, sizeof step));
    }
    m.least =
        need->arena + need->reserve; /* what is chosen needs the fewest bytes, as nothing fits */
    if (beside && m.least > need->step_need)
        t.beside = arena_printf(tmp, ", with %s in the same arena (the step alone needs %s)",
                                beside, tn_bytes_text(need->step_need, unit, step, sizeof step));
    if (c->least.nbytes && c->least.nbytes < m.least) {
        c->plan[0]->others = c->least;
        c->plan[0]->others.recompute = arena_strdup(c->plan[0]->h.a, c->least.recompute);
        t.others = other_options(tmp, &c->setting, &c->least, unit);
    }
    add_state(x, tmp, asked, m.least, &t);
    return fit_fail(x->ctx, &m, &t);
}

static bool word_given(const tn_options *o, const char *word, bool is)
{
    for (int i = 0; i < o->nchunk; i++)
        if (!strcmp(o->chunk[i], word) == is)
            return true;
    return false;
}

static void begin(Compile *x, Arena *tmp)
{
    const tn_options *o = x->o;
    x->chunk = NEWN(tmp, const char *, o->nchunk + 1);
    for (int i = 0; i < o->nchunk; i++)
        if (strcmp(o->chunk[i], "auto") != 0)
            x->chunk[x->nchunk++] = o->chunk[i];
    x->limit = o->goal_memory ? o->goal_memory : o->memory;
    x->search = (CompileSearch){.limit = o->memory,
                                .recompute = x->task->vary & TN_VARY_RECOMPUTE,
                                .accumulate = x->task->vary & TN_VARY_ACCUMULATE,
                                .rows = x->task->vary & TN_VARY_BATCH,
                                .counts = x->task->part[0].passes && o->mesh && shardings_auto(o),
                                .chunk = word_given(o, "off", false),
                                .sliced = word_given(o, "auto", true),
                                .plan = try_setting,
                                .tell = tell,
                                .arg = x};
}

/* Searches for another setting that fits; what is found is planned once more as it would run. */
static void search_other(Compile *x, const CompileSetting *asked)
{
    x->still = x->o->mesh != NULL;
    compile_search(&x->search, asked);
    if (x->still && x->search.best.nbytes) {
        x->still = false;
        try_setting(x, &x->search.best);
    }
}

static int compile(Compile *x, Arena *tmp, tn_compiled *c)
{
    const tn_options *o = x->o;
    CompileNeed need = {0};
    x->tmp = x->known.a = x->known.solved.a = x->known.seconds.a = tmp;
    begin(x, tmp);
    CompileSetting asked = {.recompute = o->recompute ? o->recompute : "auto",
                            .accumulate = o->accumulate ? o->accumulate : 1,
                            .batch = x->task->batch,
                            .sliced = x->search.sliced};
    if (!o->accumulate && o->memory)
        asked = compile_microbatches(&x->search, &asked);
    int code = plan_setting(x, &asked, false, c, &need);
    c->setting = setting_of(&asked);
    for (int i = 0; !code && i < x->task->nparts; i++)
        if (c->plan[i])
            plan_limit(c->plan[i], o->memory);
    if (code || !o->memory || asked.nbytes <= o->memory)
        return code;
    x->limit = o->memory;
    if (x->task->vary || x->search.chunk)
        search_other(x, &asked);
    c->found = setting_of(&x->search.best);
    c->least = setting_of(&x->search.least);
    c->fewer = x->search.fewer;
    c->tried = x->search.count;
    return refuse(x, tmp, c, &need, &asked);
}

/* ---- arguments ---- */

static bool part_given(tn_context *ctx, const char *call, const tn_part *p, int i)
{
    bool graph = p->kind == TN_PART_GRAPH;
    const void *owner = graph ? (const void *)p->graph : (const void *)p->model;
    if (!owner || args_owner(owner) != ctx) {
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: task.part[%d]: expected a %s of the context%s",
                        call, i, graph ? "graph" : "model", owner ? "" : ", found NULL");
        return false;
    }
    return graph || WITHIN(ctx, 1, INT32_MAX, p->seq);
}

static bool task_given(tn_context *ctx, const char *call, const tn_task *task, const tn_options *o)
{
    if (!WITHIN(ctx, 1, TN_MOST_PARTS, task->nparts))
        return false;
    for (int i = 0; i < task->nparts; i++) {
        const tn_part *p = &task->part[i];
        if (!WITHIN(ctx, TN_PART_GRAPH, TN_PART_GENERATION, p->kind) ||
            !part_given(ctx, call, p, i) ||
            (p->kind != TN_PART_GRAPH && !WITHIN(ctx, 1, INT32_MAX, task->batch)))
            return false;
    }
    if (!o->accumulate && task->part[0].kind == TN_PART_GRAPH) {
        tn_context_fail(ctx, TN_CODE_USAGE,
                        "%s: options.accumulate: expected at least 1, as a graph has no batch to "
                        "be parted, found 0",
                        call);
        return false;
    }
    if (task->part[0].kind > TN_PART_STEP) {
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: task.part[0]: expected the step", call);
        return false;
    }
    return true;
}

/* options.accumulate 0 is a word of this call alone. */
static bool options_given(tn_context *ctx, const char *call, const tn_options *o)
{
    tn_options given = *o;
    given.accumulate = o->accumulate ? o->accumulate : 1;
    return args_options(ctx, call, &given);
}

/* What is known of its steps ends with a compilation. */
static void forget_known(const tn_compiled *c, int nparts)
{
    for (int i = 0; i < nparts; i++)
        if (c->graph[i])
            c->graph[i]->known = c->graph[i]->sharded.known = NULL;
}

int tn_compile(tn_context *ctx, const tn_task *task, const tn_options *options,
               tn_compiled *compiled)
{
    if (!GIVEN(ctx, ctx, task, options, compiled) || !options_given(ctx, __func__, options) ||
        !task_given(ctx, __func__, task, options))
        return TN_CODE_USAGE;
    *compiled = (tn_compiled){0};
    Compile x = {.ctx = ctx, .task = task, .o = options};
    volatile int done = 0;
    TRY(t, &ctx->ctx)
        done = compile(&x, try_arena(&t), compiled);
    int code = tried(&t);
    code = code ? code : done;
    forget_known(compiled, task->nparts);
    if (code && code != TN_CODE_FIT) {
        free_parts(compiled);
        *compiled = (tn_compiled){0};
    }
    return code;
}

void tn_compiled_free(tn_compiled *c)
{
    if (c)
        free_parts(c);
}
