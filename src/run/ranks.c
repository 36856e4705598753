/* Contexts as ranks: joining those that a launcher has started, ranks as threads, and what ranks
 * say to each other.
 *
 * Ranks as threads: each rank's run() is called on a thread of its own, rank 0's on the caller's. A
 * rank that fails need not have told the others, who may wait for it; but where all have agreed
 * that they fail, each is about to return, and some are still in the call by which they agreed. So
 * a rank that has returned a code waits for the others, not for long, and then ends them with its
 * message. A rank that has returned 0 leaves: whoever waits for it later is told that it has ended.
 */
#include "run.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <time.h>

enum { MOST_AGREED = 64, GRACE_SEC = 3 };

typedef struct RankTeam {
    Ctx ctx; /* of what they share */
    Arena *a;
    int n, threads; /* of each rank */
    int (*run)(tn_context *ctx, void *arg);
    void *arg;
    struct RankThread *rank;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool go, never; /* whether to begin, or not at all */
    int returned;
    bool ended; /* one has failed, and has ended the others */
} RankTeam;

typedef struct RankThread {
    RankTeam *team;
    tn_context *ctx;
    pthread_t thread;
    int code;
    bool ends; /* it has called tn_ranks_end */
    bool own;  /* its failure is no other's */
} RankThread;

static void note_end(RankThread *r)
{
    RankTeam *t = r->team;
    pthread_mutex_lock(&t->lock);
    r->ends |= !t->ended;
    t->ended = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* ---- joining ---- */

static void join(tn_context *context, CommShared *shared, int rank, double timeout)
{
    Ctx *ctx = &context->ctx;
    void *self = NULL;
    const Transport *t = shared ? comm_threads(shared, rank, &self) : comm_mpi(ctx);
    CommOptions o = comm_options(ctx, timeout);
    context->comm = comm_open(context->joined, t, self, &o);
    int n = comm_size(context->comm);
    if (!shared && n != comm_launched())
        fail(ctx, TN_USAGE,
             "%s finds %d of the %d ranks that the launcher has started: its MPI may be another, "
             "which TENON_MPI=openmpi|mpich|PATH names",
             t->name, n, comm_launched());
}

/* shared NULL: a launcher has started the ranks. */
static int join_by(tn_context *ctx, CommShared *shared, int rank, double timeout)
{
    ctx->joined = arena_new(&ctx->ctx);
    if (!ctx->joined)
        return tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
    TRY(t, &ctx->ctx)
        join(ctx, shared, rank, timeout);
    int code = tried(&t);
    if (code)
        ranks_leave(ctx);
    return code;
}

void ranks_leave(tn_context *ctx)
{
    arena_free(ctx->joined);
    ctx->joined = NULL;
    ctx->comm = NULL;
}

int tn_launched(void)
{
    return comm_launched();
}

int tn_launched_first(void)
{
    return comm_launched_first();
}

int tn_join(tn_context *ctx, double timeout)
{
    if (!GIVEN(ctx, ctx))
        return TN_CODE_USAGE;
    if (!(timeout >= 0))
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "%s: timeout: expected seconds, or 0 for none, found %g", __func__,
                               timeout);
    if (ctx->comm)
        return tn_context_fail(ctx, TN_CODE_USAGE, "%s: the context is rank %d of %d already",
                               __func__, tn_rank(ctx), tn_ranks(ctx));
    if (!tn_launched())
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "%s: no launcher has started this process: mpirun and srun do, and "
                               "tn_ranks_run starts ranks as threads",
                               __func__);
    return join_by(ctx, NULL, 0, timeout);
}

int tn_rank(const tn_context *ctx)
{
    return ctx && ctx->comm ? comm_rank(ctx->comm) : 0;
}

int tn_ranks(const tn_context *ctx)
{
    return ctx && ctx->comm ? comm_size(ctx->comm) : ctx != NULL;
}

int ranks_device(const tn_context *ctx, const Device *d, int64_t first)
{
    const Driver *driver = driver_of(d);
    bool many = ctx->comm && comm_size(ctx->comm) > 1 && driver && driver->count;
    return many ? device_of_rank((int)first, comm_local(ctx->comm), driver->count()) : (int)first;
}

int tn_ranks_here(const tn_context *ctx)
{
    return ctx && ctx->comm ? comm_here(ctx->comm) : ctx != NULL;
}

int tn_ranks_count(const tn_context *ctx, int64_t *nreceived, double *waited)
{
    tn_context *told = (tn_context *)(uintptr_t)ctx;
    if (!GIVEN(told, ctx, nreceived, waited))
        return TN_CODE_USAGE;
    CommCount n = {0};
    if (ctx->comm)
        n = comm_count(ctx->comm);
    *nreceived = n.nreceived;
    *waited = n.waited;
    return TN_CODE_OK;
}

/* ---- what ranks say to each other ---- */

static int heard(tn_context *ctx, int bad, const char *message)
{
    return bad ? tn_context_fail(ctx, TN_CODE_FAIL, "%s", message) : TN_CODE_OK;
}

int tn_agree(tn_context *ctx, int64_t *x, int n)
{
    char message[COMM_MESSAGE] = "";
    if (!GIVEN(ctx, ctx, x) || !WITHIN(ctx, 1, MOST_AGREED, n))
        return TN_CODE_USAGE;
    return ctx->comm ? heard(ctx, comm_max(ctx->comm, x, n, message), message) : TN_CODE_OK;
}

int tn_gather(tn_context *ctx, const void *mine, size_t nbytes, void *all)
{
    char message[COMM_MESSAGE] = "";
    if (!GIVEN(ctx, ctx, mine, all) || !WITHIN(ctx, 1, INT64_MAX, (int64_t)nbytes))
        return TN_CODE_USAGE;
    if (ctx->comm)
        return heard(ctx, comm_gather(ctx->comm, mine, (int64_t)nbytes, all, true, message),
                     message);
    memcpy(all, mine, nbytes);
    return TN_CODE_OK;
}

/* Sends one rank's bytes to all. */
static void send_all(Arena *tmp, Comm *c, int from, void *data, int64_t nbytes)
{
    char message[COMM_MESSAGE] = "";
    CommPart *part = NEWN(tmp, CommPart, comm_size(c));
    if (comm_rank(c) != from)
        part[from] = (CommPart){.receive = data, .nreceive = nbytes};
    for (int i = 0; i < comm_size(c) && comm_rank(c) == from; i++)
        if (i != from)
            part[i] = (CommPart){.send = data, .nsend = nbytes};
    if (comm_exchange(c, part, true, message))
        fail(arena_ctx(tmp), TN_FAIL, "%s", message);
}

int tn_share(tn_context *ctx, void *data, size_t nbytes)
{
    if (!GIVEN(ctx, ctx, data) || !WITHIN(ctx, 1, INT64_MAX, (int64_t)nbytes))
        return TN_CODE_USAGE;
    if (!ctx->comm)
        return TN_CODE_OK;
    TRY(t, &ctx->ctx)
        send_all(try_arena(&t), ctx->comm, 0, data, (int64_t)nbytes);
    return tried(&t);
}

/* The text of a machine as rank 0 finds it: its environment or its own file may say another than
 * the other ranks'. Lives with what the context has joined. */
static int machine_text(tn_context *ctx, const char *name, const char **text)
{
    TRY(t, &ctx->ctx) {
        Buf b = {.a = try_arena(&t)};
        const char *asked = machine_asked(name);
        const Machine *tuned =
            asked ? NULL : machine_tuned(t.ctx, device_at(DEVICE_cpu), par_threads());
        if (tuned)
            machine_print(&b, tuned);
        else if (machine_is_file(asked))
            machine_print(&b, machine_get(b.a, asked, par_threads()));
        else
            buf_add(&b, asked ? asked : "none");
        *text = arena_strdup(ctx->joined, b.text);
    }
    return tried(&t);
}

static int make_room(tn_context *ctx, int64_t nbytes, const char **text)
{
    TRY(t, &ctx->ctx)
        *text = arena_alloc(ctx->joined, (size_t)nbytes);
    return tried(&t);
}

int tn_machine_share(tn_context *ctx, const char *name, const char **machine)
{
    if (!GIVEN(ctx, ctx, machine))
        return TN_CODE_USAGE;
    *machine = name;
    if (!ctx->comm)
        return TN_CODE_OK;
    bool first = !tn_rank(ctx);
    const char *text = "";
    int code = tn_agree_code(ctx, first ? machine_text(ctx, name, &text) : 0);
    int64_t nbytes = (int64_t)strlen(text) + 1;
    if (!code)
        code = tn_share(ctx, &nbytes, sizeof nbytes);
    if (!code)
        code = tn_agree_code(ctx, first ? 0 : make_room(ctx, nbytes, &text));
    if (!code)
        code = tn_share(ctx, (char *)(uintptr_t)text, (size_t)nbytes);
    if (!code)
        *machine = text;
    return code;
}

/* The lowest rank that has a code, which becomes *code; -1: none has. What leads here may have
 * taken one rank alone very long. */
static int find_failed(tn_context *ctx, Arena *tmp, int *code)
{
    int n = tn_ranks(ctx), *all = NEWN(tmp, int, n);
    char message[COMM_MESSAGE] = "";
    if (comm_gather(ctx->comm, code, sizeof *code, all, true, message))
        fail(&ctx->ctx, TN_FAIL, "%s", message);
    for (int i = 0; i < n; i++)
        if ((*code = all[i]))
            return i;
    return -1;
}

static void agree_code(tn_context *context, Arena *tmp, int code)
{
    Ctx *ctx = &context->ctx;
    char text[sizeof ctx->message] = "", rank[40] = "";
    int failed = find_failed(context, tmp, &code);
    if (failed < 0)
        return;
    memcpy(text, ctx->message, sizeof text);
    send_all(tmp, context->comm, failed, text, sizeof text);
    Misfit misfit = ctx->misfit;
    send_all(tmp, context->comm, failed, &misfit, sizeof misfit);
    text[sizeof text - 1] = 0;
    if (failed)
        snprintf(rank, sizeof rank, "rank %d: ", failed);
    if (code == TN_FIT)
        fail_misfit(ctx, &misfit, "%s%s", rank, text);
    fail(ctx, (Code)code, "%s%s", rank, text);
}

int tn_agree_code(tn_context *ctx, int code)
{
    if (!GIVEN(ctx, ctx))
        return TN_CODE_USAGE;
    if (!ctx->comm)
        return code;
    TRY(t, &ctx->ctx)
        agree_code(ctx, try_arena(&t), code);
    return tried(&t);
}

void tn_ranks_end(tn_context *ctx, int code)
{
    if (!ctx || !ctx->comm)
        return;
    if (ctx->thread)
        note_end(ctx->thread);
    comm_abort(ctx->comm, code, tn_error(ctx));
}

void tn_ranks_stop(tn_context *ctx, const volatile int *stop)
{
    if (ctx && ctx->comm)
        comm_stop_by(ctx->comm, stop);
}

/* ---- ranks as threads ---- */

/* Until all have returned or the time is over; whether they have. */
static bool await_others(RankTeam *t)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += GRACE_SEC;
    bool over = false;
    while (t->returned < t->n && !t->ended && !over)
        over = pthread_cond_timedwait(&t->changed, &t->lock, &end) == ETIMEDOUT;
    return t->returned == t->n;
}

static void run_rank(RankThread *r)
{
    RankTeam *t = r->team;
    par_set_threads(t->threads);
    r->code = t->run(r->ctx, t->arg);
    pthread_mutex_lock(&t->lock);
    t->returned++;
    pthread_cond_broadcast(&t->changed);
    r->own = r->code && (r->ends || !t->ended);
    bool ends = r->own && !await_others(t) && !t->ended;
    pthread_mutex_unlock(&t->lock);
    if (ends)
        tn_ranks_end(r->ctx, r->code);
    tn_context_free(r->ctx);
    r->ctx = NULL;
}

static void *begin_rank(void *arg)
{
    RankThread *r = arg;
    RankTeam *t = r->team;
    pthread_mutex_lock(&t->lock);
    while (!t->go && !t->never)
        pthread_cond_wait(&t->changed, &t->lock);
    bool never = t->never;
    pthread_mutex_unlock(&t->lock);
    if (!never)
        run_rank(r);
    return NULL;
}

/* Why none of them begins: there is no context that could say so. */
static void say_never(const char *why)
{
    fprintf(stderr, "tenon: %s\n", why);
}

/* Ranks from 1 on in threads that do not begin yet; returns how many ranks there are then. */
static int start_threads(RankTeam *t)
{
    int n = 1, why = 0;
    while (n < t->n && !(why = thread_new(&t->rank[n].thread, begin_rank, &t->rank[n])))
        n++;
    if (why)
        say_never(strerror(why));
    return n;
}

static void let_go(RankTeam *t, bool never)
{
    pthread_mutex_lock(&t->lock);
    t->go = !never;
    t->never = never;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* The code of the lowest rank that failed by itself. */
static int run_team(RankTeam *t)
{
    int n = start_threads(t), code = n < t->n ? TN_CODE_FAIL : TN_CODE_OK;
    let_go(t, code != 0);
    if (!code)
        run_rank(&t->rank[0]);
    for (int i = 1; i < n; i++)
        pthread_join(t->rank[i].thread, NULL);
    for (int i = t->n - 1; i >= 0 && n == t->n; i--)
        if (t->rank[i].own)
            code = t->rank[i].code;
    return code;
}

static void make_ranks(RankTeam *t, double timeout)
{
    CommShared *shared = comm_shared(t->a, t->n);
    t->rank = NEWN(t->a, RankThread, t->n);
    Share *share = share_new(t->a);
    for (int i = 0; i < t->n; i++) {
        RankThread *r = &t->rank[i];
        r->team = t;
        r->ctx = tn_context_new();
        if (!r->ctx)
            fail(&t->ctx, TN_FAIL, "out of memory");
        r->ctx->thread = r;
        r->ctx->ctx.share = share;
        int code = join_by(r->ctx, shared, i, timeout);
        if (code)
            fail(&t->ctx, (Code)code, "%s", tn_error(r->ctx));
    }
}

/* Its waits take time as await_others does. */
static void init_changed(RankTeam *t)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &clock);
    pthread_condattr_destroy(&clock);
}

int tn_ranks_run(int count, double timeout, int (*run)(tn_context *ctx, void *arg), void *arg)
{
    if (count < 1 || count > TN_RANKS || !(timeout >= 0) || !run)
        return TN_CODE_USAGE;
    int threads = par_threads();
    RankTeam t = {.n = count, .threads = MAX(threads / count, 1), .run = run, .arg = arg};
    t.a = arena_new(&t.ctx);
    if (!t.a)
        return TN_CODE_FAIL;
    json_object_seed(0); /* which each thread would do else when it first needs it */
    pthread_mutex_init(&t.lock, NULL);
    init_changed(&t);
    TRY(call, &t.ctx)
        make_ranks(&t, timeout);
    int code = tried(&call);
    if (code)
        say_never(t.ctx.message);
    else
        code = run_team(&t);
    for (int i = 0; t.rank && i < count; i++)
        tn_context_free(t.rank[i].ctx);
    arena_free(t.a);
    ctx_end(&t.ctx);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.lock);
    par_set_threads(threads);
    return code;
}

/* ---- together ---- */

Comm *write_ranks(const tn_program *x)
{
    const Mesh *m = graph_mesh(x->x->plan->g);
    int64_t n = m ? mesh_nranks(m) : 1;
    if (n > 1 && !x->x->comm) /* one that has joined has as many ranks as its plan */
        fail(&x->h.owner->ctx, TN_USAGE, "the plan is for %lld ranks, which have not joined",
             (long long)n);
    return n > 1 ? x->x->comm : NULL;
}

void ranks_do(tn_context *owner, const Comm *c, void (*fn)(void *arg), void *arg)
{
    int code = (int)ctx_try(&owner->ctx, fn, arg);
    if (c)
        code = tn_agree_code(owner, code);
    if (code)
        fail_again(&owner->ctx, "");
}

void ranks_share(tn_context *owner, const Comm *c, void *data, size_t nbytes)
{
    if (c && tn_share(owner, data, nbytes))
        fail_again(&owner->ctx, "");
}
