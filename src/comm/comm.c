/* An end as callers see it. One lock guards what they and the thread (engine.c) share: the lists of
 * jobs, requests to the thread, and how it all ended. The round of a job belongs to the thread
 * while it runs.
 *
 * Groups lie in a table by id. A group that is made again, by another program of the rank, is the
 * same; once the last of its users has gone, another may take its id. */
#include "engine.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_NUMBERS = 64 };

/* ---- opening ---- */

static bool parse_link(const char *text, CommOptions *o)
{
    char *end;
    errno = 0;
    o->wait = strtod(text, &end);
    if (end == text || *end != ',' || !(o->wait >= 0))
        return false;
    text = end + 1;
    o->rate = strtod(text, &end);
    return end > text && !*end && !errno && o->rate > 0 && isfinite(o->wait) && isfinite(o->rate);
}

CommOptions comm_options(Ctx *ctx, double timeout)
{
    CommOptions o = {.timeout = timeout};
    const char *link = getenv("TENON_COMM_LINK");
    delay_read(ctx, "TENON_COMM_DELAY", &o.delay, &o.seed);
    if (link && !parse_link(link, &o))
        fail(ctx, TN_USAGE, "TENON_COMM_LINK: expected SEC,RATE, found \"%s\"", link);
    return o;
}

/* Has the thread do it, unless the end is too far gone. */
static void ask(Comm *c, Ask what, CommGroup *g, int code, const char *reason)
{
    pthread_mutex_lock(&c->lock);
    while (c->asked.kind)
        pthread_cond_wait(&c->done, &c->lock);
    if (what == ASK_END ? !c->ended : !c->failed) {
        c->asked.kind = what;
        c->asked.group = g;
        c->asked.code = code;
        snprintf(c->asked.reason, COMM_MESSAGE, "%s", reason);
        engine_tell(c);
    }
    while (c->asked.kind)
        pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* Whether a job of the group is under way. */
static bool is_busy(CommGroup *g, char *reason)
{
    pthread_mutex_lock(&g->c->lock);
    bool busy = g->first;
    if (busy)
        snprintf(reason, COMM_MESSAGE, "ended before %s did", g->first->what);
    pthread_mutex_unlock(&g->c->lock);
    return busy;
}

/* The memory of the group's jobs goes. */
static void drop_jobs(CommGroup *g)
{
    char reason[COMM_MESSAGE];
    if (is_busy(g, reason))
        ask(g->c, ASK_DROP, g, TN_FAIL, reason);
}

static void close_comm(void *arg)
{
    Comm *c = arg;
    if (c->process != getpid()) /* a fork has no threads */
        return;
    if (c->t) {
        for (int i = 0; i < COMM_GROUPS; i++)
            drop_jobs(&c->group[i]);
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        engine_tell(c);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
}

/* Closed with a, with or without a thread. */
static Comm *make_comm(Arena *a)
{
    Comm *c = NEW(a, Comm);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, &clock);
    pthread_cond_init(&c->done, NULL);
    pthread_condattr_destroy(&clock);
    c->process = getpid();
    c->a = a;
    c->place = (CommPlace){.size = 1, .here = 1};
    for (int i = 0; i < COMM_GROUPS; i++)
        c->group[i] = (CommGroup){.c = c, .id = i};
    arena_defer(a, close_comm, c);
    return c;
}

/* Makes what needs the number of ranks. */
static void make_small(Comm *c, Arena *a)
{
    int *all = NEWN(a, int, c->place.size);
    for (int i = 0; i < c->place.size; i++)
        all[i] = i;
    for (int i = 0; i < COMM_GROUPS; i++)
        c->group[i].rank = NEWN(a, int, c->place.size);
    c->small.part = NEWN(a, CommPart, c->place.size);
    c->small.number = NEWN(a, int64_t, (c->place.size + 1) * MAX_NUMBERS);
    c->small.round = (CommRound){.kind = ROUND_EXCHANGE, .part = c->small.part};
    c->small.job = (CommJob){.round = &c->small.round, .nround = 1};
    c->small.job.group = comm_group(c, a, 0, c->place.size, all);
    comm_prepare(a, &c->small.job);
}

Comm *comm_alone(Arena *a)
{
    Comm *c = make_comm(a);
    make_small(c, a);
    return c;
}

Comm *comm_open(Arena *a, const Transport *t, void *self, const CommOptions *o)
{
    Ctx *ctx = arena_ctx(a);
    Comm *c = make_comm(a);
    c->t = t;
    c->self = self;
    c->options = *o;
    int why = thread_new(&c->thread, engine_serve, c);
    if (why) {
        c->t = NULL;
        fail(ctx, TN_FAIL, "ranks: cannot start a thread: %s", strerror(why));
    }
    pthread_mutex_lock(&c->lock);
    while (!c->opened)
        pthread_cond_wait(&c->done, &c->lock);
    bool failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    if (failed)
        fail(ctx, TN_FAIL, "%s", c->message);
    make_small(c, a);
    return c;
}

int comm_rank(const Comm *c)
{
    return c->place.rank;
}

int comm_size(const Comm *c)
{
    return c->place.size;
}

int comm_here(const Comm *c)
{
    return c->place.here;
}

bool comm_is_threads(const Comm *c)
{
    return c->t && !c->t->kills;
}

int comm_local(const Comm *c)
{
    int local = c->t && c->t->kills ? comm_launched_local() : -1;
    return local >= 0 ? local : c->place.local;
}

double comm_timeout(const Comm *c)
{
    return c->options.timeout;
}

bool comm_failed(Comm *c, char *message)
{
    pthread_mutex_lock(&c->lock);
    bool failed = c->failed;
    if (failed)
        memcpy(message, c->message, COMM_MESSAGE);
    if (!c->listens && c->t)
        engine_tell(c);
    c->listens = true;
    pthread_mutex_unlock(&c->lock);
    return failed;
}

void **comm_own(Comm *c, Arena **a)
{
    *a = c->a;
    return &c->other;
}

void comm_stop_by(Comm *c, const volatile int *stop)
{
    pthread_mutex_lock(&c->lock);
    c->stopping = stop;
    pthread_mutex_unlock(&c->lock);
}

/* ---- groups ---- */

static void fill_group(CommGroup *g, int n, const int *rank)
{
    g->n = n;
    g->member = -1;
    g->library = NULL;
    for (int i = 0; i < n; i++) {
        g->rank[i] = rank[i];
        if (rank[i] == g->c->place.rank)
            g->member = i;
    }
    CHECK(g->member >= 0);
}

static void leave_group(void *arg)
{
    CommGroup *g = arg;
    if (g->c->process == getpid())
        drop_jobs(g);
    g->nuser--;
}

/* Has the thread make it. */
void comm_library(CommGroup *g, Ctx *ctx)
{
    Comm *c = g->c;
    char reason[COMM_MESSAGE];
    if (g->library || !comm_reduces(g))
        return;
    for (int i = 0; i < COMM_GROUPS; i++)
        CHECK(!is_busy(&c->group[i], reason));
    ask(c, ASK_LIBRARY, g, TN_OK, "");
    pthread_mutex_lock(&c->lock);
    bool failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    if (failed)
        fail(ctx, TN_FAIL, "%s", c->message);
}

static bool has_ranks(const CommGroup *g, int n, const int *rank)
{
    return g->n == n && !memcmp(g->rank, rank, sizeof *rank * (size_t)n);
}

int comm_group_id(const Comm *c, int n, const int *rank)
{
    int dropped = -1, fresh = -1;
    for (int id = COMM_GROUPS - 1; id > 0; id--) {
        const CommGroup *g = &c->group[id];
        if (has_ranks(g, n, rank))
            return id;
        dropped = g->nuser ? dropped : id;
        fresh = g->n ? fresh : id;
    }
    return fresh >= 0 ? fresh : dropped;
}

CommGroup *comm_group(Comm *c, Arena *a, int id, int n, const int *rank)
{
    CHECK(id >= 0 && id < COMM_GROUPS && n >= 1 && n <= c->place.size);
    CommGroup *g = &c->group[id];
    if (!has_ranks(g, n, rank)) {
        CHECK(!g->nuser);
        fill_group(g, n, rank);
    }
    g->nuser++;
    arena_defer(a, leave_group, g);
    return g;
}

CommGroup *comm_world(Comm *c)
{
    return &c->group[0];
}

int comm_group_size(const CommGroup *g)
{
    return g->n;
}

int comm_group_rank(const CommGroup *g, int member)
{
    return g->rank[member];
}

int comm_member(const CommGroup *g)
{
    return g->member;
}

bool comm_reduces(const CommGroup *g)
{
    return g->n > 1 && g->c->t->group;
}

/* ---- jobs ---- */

void comm_prepare(Arena *a, CommJob *j)
{
    j->message = NEWN(a, CommMessage, 2 * j->group->n);
}

/* In a group of one, by the caller. */
static void run_alone(const CommJob *j)
{
    for (int i = 0; i < j->nround; i++) {
        const CommRound *r = &j->round[i];
        CHECK(r->kind != ROUND_REDUCE);
        if (r->kind == ROUND_EXCHANGE)
            engine_copy_own(j->group, r);
        for (int64_t k = 0; r->kind == ROUND_CALL && !r->call(r->arg, k); k++)
            ;
    }
}

void comm_start(Comm *c, CommJob *j)
{
    CommGroup *g = j->group;
    if (g->n == 1) {
        run_alone(j);
        return;
    }
    pthread_mutex_lock(&c->lock);
    CHECK(!j->running || c->failed);
    j->at = 0;
    j->running = true;
    j->posted = false;
    j->next = NULL;
    if (!c->failed) {
        if (g->first)
            g->last->next = j;
        else
            g->first = j;
        g->last = j;
        engine_tell(c);
    }
    pthread_mutex_unlock(&c->lock);
}

int comm_wait(Comm *c, CommJob *j, char *message)
{
    CommGroup *g = j->group;
    double begin = now_sec();
    pthread_mutex_lock(&c->lock);
    if (!g->nwaiting++)
        g->waiting = begin;
    if (j->running && !c->failed && !c->t->tell)
        engine_tell(c); /* which looks more often then */
    while (j->running && !c->failed)
        pthread_cond_wait(&c->done, &c->lock);
    g->nwaiting--;
    bool failed = c->failed;
    if (failed)
        memcpy(message, c->message, COMM_MESSAGE);
    c->count.waited += now_sec() - begin;
    pthread_mutex_unlock(&c->lock);
    return failed ? -1 : 0;
}

/* ---- among all ranks, at once ---- */

static int run_small(Comm *c, const char *what, bool patient, char *message)
{
    c->small.job.what = what;
    c->small.job.patient = patient;
    comm_start(c, &c->small.job);
    return comm_wait(c, &c->small.job, message);
}

static void gather_parts(Comm *c, const void *mine, int64_t nbytes, void *all)
{
    for (int i = 0; i < c->place.size; i++)
        c->small.part[i] = (CommPart){mine, (char *)all + i * nbytes, nbytes, nbytes, NULL};
}

int comm_max(Comm *c, int64_t *x, int n, char *message)
{
    CHECK(n <= MAX_NUMBERS);
    int64_t *mine = c->small.number + (int64_t)c->place.size * MAX_NUMBERS;
    memcpy(mine, x, sizeof *x * (size_t)n);
    gather_parts(c, mine, (int64_t)sizeof *x * n, c->small.number);
    if (run_small(c, "a maximum of all ranks", false, message))
        return -1;
    for (int i = 0; i < c->place.size * n; i++)
        x[i % n] = MAX(x[i % n], c->small.number[i]);
    return 0;
}

int comm_gather(Comm *c, const void *mine, int64_t nbytes, void *all, bool patient, char *message)
{
    gather_parts(c, mine, nbytes, all);
    return run_small(c, "what all ranks gather", patient, message);
}

int comm_exchange(Comm *c, const CommPart *part, bool patient, char *message)
{
    memcpy(c->small.part, part, sizeof *part * (size_t)c->place.size);
    return run_small(c, "what all ranks exchange", patient, message);
}

/* ---- the end ---- */

void comm_abort(Comm *c, int code, const char *message)
{
    if (c->t) {
        CHECK(!pthread_equal(pthread_self(), c->thread));
        ask(c, ASK_END, NULL, code, message);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (!c->failed)
        snprintf(c->message, COMM_MESSAGE, "%s", message);
    c->failed = true;
    pthread_mutex_unlock(&c->lock);
}

CommCount comm_count(Comm *c)
{
    pthread_mutex_lock(&c->lock);
    CommCount n = c->count;
    pthread_mutex_unlock(&c->lock);
    return n;
}
