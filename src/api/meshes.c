/* The fastest meshes for so many ranks. Threads plan settings, each in a context of its own, as
 * src/decide/meshes.c says which; what they share is under one lock. */
#include "api.h"

#include "../decide/meshes.h"
#include "parts.h"

#include <math.h>
#include <string.h>

enum { MOST_WORKERS = 64 };

/* The search that all threads work on. */
typedef struct MeshRun {
    const tn_mesh_task *task;
    const tn_options *o;
    tn_options
        with[SHARD_SHARES + 1]; /* the shardings that are tried; ntry 0: those of the recipes */
    int ntry;
    int nthread; /* that a rank runs with, of whichever worker's plans */
    MeshSettings all;
    MeshSearch search;
    pthread_mutex_t lock;
    bool planning;   /* else bounds are found */
    int group, done; /* the next mesh; how many were told */
    int code;        /* of the first failure that is no refusal; 0: none */
    char error[2000];
} MeshRun;

typedef struct MeshWorker {
    MeshRun *run;
    tn_context *ctx;
    tn_model *model;
    pthread_t thread;
} MeshWorker;

/* ---- one setting, without the lock ---- */

static tn_options options_of(const tn_options *asked, const MeshSetting *s)
{
    tn_options o = *asked;
    o.mesh = strcmp(s->mesh, "none") != 0 ? s->mesh : NULL;
    o.reshard = s->reshard;
    o.recompute = s->recompute;
    o.warn = NULL; /* of many settings, which nobody asked for by name */
    return o;
}

static const char *passes_of(const MeshRun *x)
{
    return x->task->passes ? x->task->passes : "default";
}

/* The bounds of all settings of a mesh, with these options. */
static int bound_with(const MeshWorker *w, tn_options o, MeshSetting *s, int n, double *products)
{
    const MeshRun *x = w->run;
    tn_graph *g;
    int code = tn_model_graph(w->model, x->task->batch, x->task->seq, &o, &g);
    if (code)
        return code;
    TRY(t, &w->ctx->ctx) {
        PassOptions p;
        ChunkAsked asked;
        PassWalk walk = begin_passes(g, passes_of(x), &o, &p, &asked);
        PlanFor to = plan_for(w->ctx, &o, p.device, p.prices);
        meshes_bound(&walk, &to, s, n);
    }
    code = tried(&t);
    *products = g->sharded.products;
    tn_graph_free(g);
    return code;
}

/* The bounds of all settings of a mesh. Where forms are solved for, the estimate is the least bound
 * of the shardings that tn_compile plans first; the bound is that of the recipes, or what products
 * take in whatever forms, which holds for the shardings that are tried after them, too. These may
 * need fewer bytes: by up to a quarter, for a search that leaves out what needs more. */
static int bound_mesh(const MeshWorker *w, MeshSetting *s, int n)
{
    const MeshRun *x = w->run;
    double products;
    if (!x->ntry || !strcmp(s->mesh, "none"))
        return bound_with(w, options_of(x->o, s), s, n, &products);
    int code = 0, found = 0;
    double least = INFINITY;
    for (int i = 0; i < x->ntry && !code; i++) {
        MeshSetting one[MESH_SETTINGS];
        memcpy(one, s, (size_t)n * sizeof *s);
        code = bound_with(w, options_of(&x->with[i], s), one, n, &products);
        if (code == TN_CODE_USAGE && found) { /* no recipe is for it */
            code = 0;
            continue;
        }
        least = i < SHARD_SHARES ? fmin(least, products) : least;
        for (int k = 0; k < n && !code; k++) {
            s[k].estimate = found ? MIN(s[k].estimate, one[k].bound) : one[k].bound;
            s[k].least = found ? MIN(s[k].least, one[k].least) : one[k].least;
        }
        found++;
    }
    for (int k = 0; k < n && !code; k++) {
        s[k].bound = fmin(s[k].estimate, least);
        s[k].least -= s[k].least / 4;
    }
    return code;
}

static void fill_plan(const tn_compiled *c, MeshSetting *s)
{
    const Plan *p = c->plan[0]->p;
    const AgainReport *again = &c->graph[0]->again;
    s->peak = p->space[SPACE_MAIN].peak;
    s->need = plan_least(p);
    s->sec = p->est.step;
    s->comm = p->est.by_class[CLASS_COLLECTIVE];
    s->exposed = p->est.exposed;
    s->own = plan_step_bound(p, p->g->a, 0);
    s->apart = c->graph[0]->bucket.taken && !strcmp(c->graph[0]->bucket.taken, "off");
    s->solved = c->graph[0]->sharded.tried[c->graph[0]->sharded.taken].exposed > 0;
    s->twin = !strcmp(s->recompute, "auto") && !again->searched && !again->nkept;
}

static int plan_setting(const MeshWorker *w, MeshSetting *s)
{
    const MeshRun *x = w->run;
    const tn_options o = options_of(x->o, s);
    tn_task task = {.nparts = 1, .batch = x->task->batch};
    tn_compiled c = {0};
    task.part[0] = (tn_part){
        .kind = TN_PART_STEP, .model = w->model, .seq = x->task->seq, .passes = passes_of(x)};
    int code = tn_compile(w->ctx, &task, &o, &c);
    s->fits = !code;
    if (c.plan[0])
        fill_plan(&c, s);
    tn_compiled_free(&c);
    return code == TN_CODE_FIT ? 0 : code;
}

/* ---- threads ---- */

static void tell(MeshRun *x)
{
    x->done++;
    if (x->task->tell && x->planning)
        x->task->tell(x->task->tell_arg, "plans", x->done, x->search.count);
    else if (x->task->tell)
        x->task->tell(x->task->tell_arg, "meshes", x->done, x->all.ngroup);
}

static void give_up(MeshRun *x, const MeshWorker *w, int code)
{
    if (!x->code)
        snprintf(x->error, sizeof x->error, "%s", tn_error(w->ctx));
    x->code = x->code ? x->code : code;
}

/* The settings of a mesh; how many. */
static int settings_of(const MeshSettings *all, int group, MeshSetting **first)
{
    int n = 0;
    for (int i = 0; i < all->count; i++)
        if (all->list[i].group == group && !n++)
            *first = &all->list[i];
    return n;
}

/* A mesh that is wrong for the model is refused, by words without its name, as others are. */
static void refuse(MeshSetting *s, int n, const char *message)
{
    char name[100];
    const char *after = !strncmp(message, "mesh ", 5) ? strstr(message, ": ") : NULL;
    message = after ? after + 2 : message;
    snprintf(name, sizeof name, "the mesh %s ", s->mesh);
    const char *at = strstr(message, name);
    int before = at ? (int)(at - message) : 0;
    for (int i = 0; i < n; i++)
        snprintf(s[i].refused, sizeof s[i].refused, "%.*s%s%s", before, message,
                 at ? "the mesh " : "", at ? at + strlen(name) : message);
}

static bool bound_next(MeshWorker *w)
{
    MeshRun *x = w->run;
    MeshSetting *s = NULL;
    if (x->code || x->group == x->all.ngroup)
        return false;
    int n = settings_of(&x->all, x->group++, &s);
    const bool refused = *s->refused;
    pthread_mutex_unlock(&x->lock);
    int code = refused ? 0 : bound_mesh(w, s, n);
    pthread_mutex_lock(&x->lock);
    if (code == TN_CODE_USAGE)
        refuse(s, n, tn_error(w->ctx));
    else if (code)
        give_up(x, w, code);
    tell(x);
    return true;
}

static bool plan_next(MeshWorker *w)
{
    MeshRun *x = w->run;
    MeshSetting *s = x->code ? NULL : meshes_next(&x->search);
    if (!s)
        return false;
    pthread_mutex_unlock(&x->lock);
    int code = plan_setting(w, s);
    pthread_mutex_lock(&x->lock);
    s->planned = !code;
    if (code)
        give_up(x, w, code);
    tell(x);
    return true;
}

static void *work(void *arg)
{
    MeshWorker *w = arg;
    MeshRun *x = w->run;
    par_set_threads(x->nthread); /* OpenMP keeps it by thread */
    pthread_mutex_lock(&x->lock);
    while (x->planning ? plan_next(w) : bound_next(w))
        ;
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* All workers, the first of which is this thread. */
static void work_all(MeshWorker *w, int n)
{
    int begun = 1;
    while (begun < n && !thread_new(&w[begun].thread, work, &w[begun]))
        begun++;
    work(w);
    while (--begun > 0)
        pthread_join(w[begun].thread, NULL);
}

static int open_model(const tn_mesh_task *task, MeshWorker *w)
{
    int code = tn_model_open(w->ctx, task->model, &w->model);
    if (!code && task->lora)
        code = tn_model_lora(w->model, task->lora);
    if (!code && task->adapter)
        code = tn_model_adapter(w->model, task->adapter);
    return code;
}

static int open_worker(MeshWorker *w, MeshRun *x)
{
    *w = (MeshWorker){.run = x, .ctx = tn_context_new()};
    x->code = w->ctx ? open_model(x->task, w) : TN_CODE_FAIL;
    if (x->code)
        snprintf(x->error, sizeof x->error, "%s", w->ctx ? tn_error(w->ctx) : "out of memory");
    return x->code;
}

/* ---- the outcome ---- */

static const char *bucket_of(const tn_options *o, const MeshSetting *s)
{
    const bool mesh = strcmp(s->mesh, "none") != 0;
    return !mesh ? "auto" : !bucket_open(o) ? o->bucket : s->apart ? "off" : "block";
}

static tn_mesh mesh_of(const MeshRun *x, const MeshSetting *s)
{
    bool mesh = strcmp(s->mesh, "none") != 0;
    return (tn_mesh){.mesh = s->mesh,
                     .forms = !x->ntry || !mesh ? "recipes"
                              : s->solved       ? "solved"
                                                : "recipes",
                     .reshard = s->reshard,
                     .recompute = s->recompute,
                     .bucket = bucket_of(x->o, s),
                     .peak = s->peak,
                     .nbytes = s->need,
                     .sec = s->sec,
                     .comm_sec = s->comm,
                     .exposed_sec = s->exposed,
                     .bound_sec = s->own};
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether texts are equal but for their numbers. */
static bool differ_in_numbers(const char *s, const char *t)
{
    while (*s && *t) {
        if (is_digit(*s) && is_digit(*t)) {
            s += strspn(s, "0123456789");
            t += strspn(t, "0123456789");
        } else if (*s++ != *t++) {
            return false;
        }
    }
    return !*s && !*t;
}

static void add_reason(tn_meshes *to, const char *why)
{
    for (int i = 0; i < to->nreason; i++) {
        tn_mesh_reason *r = &to->reason[i];
        if (differ_in_numbers(r->why, why)) {
            r->others |= strcmp(r->why, why) != 0;
            r->count++;
            return;
        }
    }
    if (to->nreason < TN_MOST_REASONS)
        to->reason[to->nreason++] = (tn_mesh_reason){why, 1, 0};
}

static void fill_outcome(const MeshRun *x, tn_meshes *to)
{
    MeshOutcome r = meshes_outcome(&x->search);
    *to = (tn_meshes){.settings = x->all.count,
                      .refused = x->search.refused,
                      .over = x->search.over,
                      .slower = r.slower,
                      .saved = r.saved,
                      .guessed = r.guessed,
                      .planned = r.planned,
                      .unfit = r.unfit,
                      .least = r.least,
                      .nbest = r.nbest};
    for (int i = 0; i < r.nbest; i++)
        to->best[i] = mesh_of(x, r.best[i]);
    for (int i = 0; i < x->all.count; i++)
        if (*x->all.list[i].refused)
            add_reason(to, x->all.list[i].refused);
}

static int workers_of(const tn_mesh_task *task, const MeshSettings *all)
{
    int n = task->workers ? task->workers : par_threads();
    return MAX(1, MIN(MIN(n, MOST_WORKERS), all->ngroup));
}

static void find_tries(MeshRun *x, Arena *a)
{
    if (!shardings_auto(x->o))
        return;
    for (int i = 0; i < SHARD_SHARES; i++)
        x->with[x->ntry++] = shard_try(a, x->o, shard_shares[i]);
    if (!x->o->npins) /* which recipes do not obey */
        x->with[x->ntry++] = shard_try(a, x->o, 0);
}

/* Nothing unwinds once there are workers. */
static void search(MeshRun *x, Arena *a, const MeshAsked *asked)
{
    MeshWorker w[MOST_WORKERS] = {0};
    int opened = 0;
    find_tries(x, a);
    x->all = meshes_all(a, asked);
    for (int n = workers_of(x->task, &x->all); opened < n && !x->code; opened++)
        open_worker(&w[opened], x);
    if (!x->code)
        work_all(w, opened);
    x->search = meshes_start(&x->all, asked->limit);
    x->planning = true;
    x->done = 0;
    if (!x->code)
        work_all(w, opened);
    for (int i = 0; i < opened; i++)
        tn_context_free(w[i].ctx);
}

/* ---- the call ---- */

static bool task_given(tn_context *ctx, const char *call, const tn_mesh_task *task)
{
    if (!task->model) {
        tn_context_fail(ctx, TN_CODE_USAGE, "%s: task.model: expected a model, found NULL", call);
        return false;
    }
    return WITHIN(ctx, 1, 1 << 20, task->ranks) && WITHIN(ctx, 0, MOST_WORKERS, task->workers) &&
           WITHIN(ctx, 1, INT32_MAX, task->batch, task->seq);
}

static bool options_given(tn_context *ctx, const char *call, const tn_options *o)
{
    if (o->mesh || o->rank || !o->accumulate) {
        tn_context_fail(ctx, TN_CODE_USAGE,
                        "%s: options: expected no mesh, rank 0 and a number of microbatches", call);
        return false;
    }
    return args_options(ctx, call, o);
}

static const char *with_others(const tn_mesh_reason *r)
{
    return r->others ? ", some with other numbers" : "";
}

/* All reasons, that of most settings first, and what follows from them. */
static int report_refused(tn_context *ctx, const tn_meshes *to)
{
    enum { TEXT = 4000 }; /* of the others; the reasons lie in the arena of texts */
    char others[TEXT] = "";
    int most = 0, n = 0;
    for (int i = 1; i < to->nreason; i++)
        most = to->reason[i].count > to->reason[most].count ? i : most;
    for (int i = 0; i < to->nreason; i++)
        if (i != most && n < TEXT)
            n += snprintf(others + n, (size_t)(TEXT - n), "\n  %s (%d%s)", to->reason[i].why,
                          to->reason[i].count, with_others(&to->reason[i]));
    const tn_mesh_reason *r = &to->reason[most];
    return tn_context_fail(ctx, TN_CODE_USAGE, "%s (%d of %d settings%s); no mesh can run it%s%s",
                           r->why, r->count, to->settings, with_others(r),
                           n ? ", the others for:" : "", others);
}

static int report_none(tn_context *ctx, const tn_options *o, const tn_meshes *to)
{
    char least[40], limit[40];
    if (to->refused == to->settings && to->nreason == 1 &&
        !to->reason[0].others) /* so of the command, whatever the mesh */
        return tn_context_fail(ctx, TN_CODE_USAGE, "%s", to->reason[0].why);
    if (to->refused == to->settings)
        return report_refused(ctx, to);
    return tn_context_fail(ctx, TN_CODE_FIT,
                           "does not fit: none of %d settings needs at most %s; the least that "
                           "was found needs %s",
                           to->settings,
                           tn_bytes_text(o->memory, o->memory_unit, limit, sizeof limit),
                           tn_bytes_text(to->least, o->memory_unit, least, sizeof least));
}

int tn_mesh_search(tn_context *ctx, const tn_mesh_task *task, const tn_options *options,
                   tn_meshes *meshes)
{
    if (!GIVEN(ctx, ctx, task, options, meshes) || !task_given(ctx, __func__, task) ||
        !options_given(ctx, __func__, options))
        return TN_CODE_USAGE;
    *meshes = (tn_meshes){0};
    MeshRun x = {
        .task = task, .o = options, .nthread = par_threads(), .lock = PTHREAD_MUTEX_INITIALIZER};
    MeshAsked asked = {.ranks = task->ranks, .limit = options->memory};
    asked.rows = (task->batch + options->accumulate - 1) / options->accumulate;
    asked.reshard = options->reshard && strcmp(options->reshard, "auto") ? options->reshard : NULL;
    asked.recompute =
        options->recompute && strcmp(options->recompute, "auto") ? options->recompute : NULL;
    TRY(t, &ctx->ctx) {
        Arena *a = text_arena(ctx);
        search(&x, a, &asked);
        if (!x.code)
            fill_outcome(&x, meshes);
    }
    int code = tried(&t);
    if (!code && x.code)
        code = tn_context_fail(ctx, x.code, "%s", x.error);
    if (!code && !meshes->nbest)
        code = report_none(ctx, options, meshes);
    return code;
}
