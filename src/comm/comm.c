/* One end: a thread that takes jobs which others start, posts what a round sends and receives, and
 * looks whether it has come. It alone calls the transport. A group has one round under way, of the
 * oldest of its jobs; a message carries its group's id as tag. Members of a group run the same jobs
 * in the same order, and what one rank sends another with one tag arrives in order: so messages
 * find their jobs without a number, whatever other groups of the same two ranks do in between.
 *
 * The thread sleeps between looks, an eighth of the time for which nothing has moved: a wait is at
 * most so much longer than it had to be, and long waits cost little. What its own clock ends, a
 * delay or the model of a link, it sleeps for exactly.
 *
 * One lock guards what callers and the thread share: the lists of jobs, what is asked of the
 * thread, and how it all ended. What a job says of its round is the thread's while it runs. */
#include "comm.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_NUMBERS = 64 };

typedef enum {
    MESSAGE_NONE, /* there is none, or it is over */
    MESSAGE_LATER,
    MESSAGE_POSTED,
    MESSAGE_ON_LINK
} MessageState;

typedef struct CommMessage {
    MessageState state;
    void *request;
    double due; /* when it is sent, or has passed the link */
} CommMessage;

struct CommGroup {
    Comm *c;
    int id, n, member;
    int *rank;
    int nuser;             /* arenas that have it */
    void *library;         /* the transport's */
    CommJob *first, *last; /* started */
    int nwaiting;          /* callers of comm_wait */
    double waiting;        /* since when there are any */
    CommJob *current;      /* the thread's: the first */
    double moved;          /* when anything of it last came or began */
};

struct Comm {
    const Transport *t; /* NULL: one rank */
    void *self;
    CommOptions options;
    int rank, size, here;
    CommGroup group[COMM_GROUPS];
    CommJob small; /* of comm_max and the like */
    CommRound round;
    CommPart *part;
    int64_t *number;

    pthread_t thread;
    pid_t process;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;  /* for the thread: there is something new */
    pthread_cond_t done;  /* for the others: a job, or what was asked, is */
    bool opened, stop, failed;
    bool news;        /* since the thread last looked */
    bool ending;      /* a caller wants all ranks to end */
    CommGroup *asked; /* that the library shall make */
    int code;         /* of `ending` */
    char message[COMM_MESSAGE];
    CommCount count;

    /* the thread's */
    char why[COMM_MESSAGE];
    CommCount came;
    uint64_t nsent;
    double moved, due; /* when anything last did, and the next clock's end */
    double link;       /* until when it is taken */
};

static const int type_size[NCOMM_TYPE] = {
    [COMM_F64] = 8, [COMM_F32] = 4, [COMM_I64] = 8, [COMM_I32] = 4};

/* ---- a message; the thread's ---- */

static int post_receive(Comm *c, CommGroup *g, const CommRound *r, int i)
{
    CommMessage *m = &g->current->message[i];
    m->state = MESSAGE_POSTED;
    return c->t->receive(c->self, g->rank[i], g->id, r->part[i].receive, r->part[i].nreceive,
                         &m->request, c->why);
}

static int post_send(Comm *c, CommGroup *g, const CommRound *r, int i)
{
    CommMessage *m = &g->current->message[g->n + i];
    m->state = MESSAGE_POSTED;
    return c->t->send(c->self, g->rank[i], g->id, r->part[i].send, r->part[i].nsend, &m->request,
                      c->why);
}

/* Now, or with a delay. */
static int begin_send(Comm *c, CommGroup *g, const CommRound *r, int i, double now)
{
    CommMessage *m = &g->current->message[g->n + i];
    uint64_t number = c->nsent++;
    if (!c->options.delay)
        return post_send(c, g, r, i);
    float share = random_uniform(c->options.seed, (uint32_t)c->rank, 0, number);
    m->due = now + 1e-6 * (double)c->options.delay * (double)share;
    m->state = MESSAGE_LATER;
    return 0;
}

static void end_message(Comm *c, CommGroup *g, CommMessage *m, double now)
{
    m->state = MESSAGE_NONE;
    g->current->left--;
    g->moved = c->moved = now;
}

/* It is here, but for the model of a link: one server, which it takes from now on. */
static void arrive(Comm *c, CommGroup *g, CommMessage *m, int64_t nbytes, double now)
{
    c->came.nreceived += nbytes;
    c->came.nmessage++;
    if (c->options.rate <= 0) {
        end_message(c, g, m, now);
        return;
    }
    c->link = MAX(c->link, now) + c->options.wait + (double)nbytes / c->options.rate;
    m->due = c->link;
    m->state = MESSAGE_ON_LINK;
}

/* Whether its time has come; else notes when. */
static bool is_due(Comm *c, const CommMessage *m, double now)
{
    if (now >= m->due)
        return true;
    c->due = fmin(c->due, m->due);
    return false;
}

static int look_posted(Comm *c, CommGroup *g, const CommRound *r, int i, double now)
{
    CommMessage *m = &g->current->message[i];
    bool done = false, received = r->kind == ROUND_EXCHANGE && i < g->n;
    if (c->t->done(c->self, m->request, &done, c->why))
        return -1;
    if (done && received)
        arrive(c, g, m, r->part[i].nreceive, now);
    else if (done)
        end_message(c, g, m, now);
    return 0;
}

static int look(Comm *c, CommGroup *g, const CommRound *r, int i, double now)
{
    CommMessage *m = &g->current->message[i];
    switch (m->state) {
    case MESSAGE_NONE: return 0;
    case MESSAGE_POSTED: return look_posted(c, g, r, i, now);
    case MESSAGE_LATER: return is_due(c, m, now) ? post_send(c, g, r, i - g->n) : 0;
    case MESSAGE_ON_LINK:
        if (is_due(c, m, now))
            end_message(c, g, m, now);
    }
    return 0;
}

/* ---- a round ---- */

static void copy_own(const CommGroup *g, const CommRound *r)
{
    const CommPart *own = &r->part[g->member];
    CHECK(own->nsend == own->nreceive);
    if (own->nsend && own->send != own->receive)
        memcpy(own->receive, own->send, (size_t)own->nsend);
}

/* Members begin with those behind them, so that not all send to one. */
static int post_exchange(Comm *c, CommGroup *g, const CommRound *r, double now)
{
    CommJob *j = g->current;
    copy_own(g, r);
    for (int k = 1; k < g->n; k++) {
        int i = (g->member + g->n - k) % g->n;
        j->left += r->part[i].nreceive > 0;
        if (r->part[i].nreceive > 0 && post_receive(c, g, r, i))
            return -1;
    }
    for (int k = 1; k < g->n; k++) {
        int i = (g->member + k) % g->n;
        j->left += r->part[i].nsend > 0;
        if (r->part[i].nsend > 0 && begin_send(c, g, r, i, now))
            return -1;
    }
    return 0;
}

/* Its messages are the library's own; what comes is counted as if it went around a ring. */
static int post_reduce(Comm *c, CommGroup *g, const CommRound *r)
{
    CommMessage *m = &g->current->message[0];
    int64_t nbytes = r->count * type_size[r->type], others = g->n - 1;
    CHECK(g->library);
    g->current->left = 1;
    m->state = MESSAGE_POSTED;
    c->came.nreceived += r->scatter ? nbytes * others : 2 * nbytes * others / g->n;
    c->came.nmessage += r->scatter ? others : 2 * others;
    return c->t->reduce(c->self, g->library, r->scatter, r->type, r->op, r->from, r->to, r->count,
                        &m->request, c->why);
}

static int post(Comm *c, CommGroup *g, const CommRound *r, double now)
{
    g->moved = c->moved = now;
    g->current->posted = true;
    g->current->left = 0;
    switch (r->kind) {
    case ROUND_EXCHANGE: return post_exchange(c, g, r, now);
    case ROUND_REDUCE: return post_reduce(c, g, r);
    case ROUND_CALL: r->call(r->arg);
    }
    return 0;
}

static void end_job(Comm *c, CommGroup *g)
{
    CommJob *j = g->current;
    g->current = NULL;
    pthread_mutex_lock(&c->lock);
    g->first = j->next;
    j->running = false;
    c->count.nreceived = c->came.nreceived;
    c->count.nmessage = c->came.nmessage;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* As far as the group's job can go now. */
static int advance(Comm *c, CommGroup *g)
{
    CommJob *j = g->current;
    while (j->at < j->nround) {
        const CommRound *r = &j->round[j->at];
        double now = now_sec();
        if (!j->posted && post(c, g, r, now))
            return -1;
        for (int i = 0; i < 2 * g->n && j->left; i++)
            if (look(c, g, r, i, now))
                return -1;
        if (j->left)
            return 0;
        j->at++;
        j->posted = false;
    }
    end_job(c, g);
    return 0;
}

/* ---- what has not come in time ---- */

/* "rank 2 has", "ranks 2 and 5 have": of whom a message is not over, to come or to go. */
static int late_ranks(const CommGroup *g, bool sends, char *text, size_t size)
{
    const CommJob *j = g->current;
    int n = 0, left = 0;
    size_t len = 0;
    for (int i = 0; i < g->n; i++)
        left += j->message[(sends ? g->n : 0) + i].state != MESSAGE_NONE;
    for (int i = 0; i < g->n && n < left; i++) {
        if (j->message[(sends ? g->n : 0) + i].state == MESSAGE_NONE)
            continue;
        const char *before = !n ? left > 1 ? "ranks " : "rank " : n == left - 1 ? " and " : ", ";
        int more = snprintf(text + len, size - len, "%s%d", before, g->rank[i]);
        len = MIN(len + (size_t)more, size - 1);
        n++;
    }
    snprintf(text + len, size - len, left > 1 ? " have" : " has");
    return n;
}

static void say_late(const Comm *c, const CommGroup *g, char *message)
{
    const CommJob *j = g->current;
    char ranks[COMM_MESSAGE / 2];
    bool reduce = j->round[j->at].kind == ROUND_REDUCE;
    int n = reduce ? 0 : late_ranks(g, false, ranks, sizeof ranks);
    const char *verb = n ? "sent" : "taken", *parts = n > 1 ? "their parts" : "its part";
    if (!n && !reduce)
        late_ranks(g, true, ranks, sizeof ranks);
    if (reduce)
        snprintf(message, COMM_MESSAGE, "%s has not ended for %.4g s", j->what, c->options.timeout);
    else
        snprintf(message, COMM_MESSAGE, "%s not %s %s of %s for %.4g s", ranks, verb, parts,
                 j->what, c->options.timeout);
}

/* A job for which a caller waits, and of which nothing has come since. */
static const CommGroup *find_late(const Comm *c, double now)
{
    for (int i = 0; i < COMM_GROUPS && c->options.timeout > 0; i++) {
        const CommGroup *g = &c->group[i];
        bool waits = g->nwaiting && g->current && !g->current->patient;
        if (waits && now - fmax(g->waiting, g->moved) > c->options.timeout)
            return g;
    }
    return NULL;
}

/* ---- the thread ---- */

/* Fails all that waits or will. */
static void end_all(Comm *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    c->failed = true;
    memmove(c->message, why, strnlen(why, COMM_MESSAGE - 1) + 1);
    c->message[COMM_MESSAGE - 1] = 0;
    for (int i = 0; i < COMM_GROUPS; i++)
        c->group[i].first = c->group[i].current = NULL;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* Ends all ranks. */
static void give_up(Comm *c, int code, const char *message)
{
    c->t->abort(c->self, code, message);
    const char *why = c->t->aborted(c->self);
    end_all(c, why ? why : message);
}

/* One look at each group. */
static void look_at_all(Comm *c)
{
    const char *why = c->t->aborted(c->self);
    c->due = INFINITY;
    if (why)
        end_all(c, why);
    for (int i = 0; i < COMM_GROUPS && !why; i++)
        if (c->group[i].current && advance(c, &c->group[i])) {
            give_up(c, TN_FAIL, c->why);
            return;
        }
}

/* Locked: the first job of each group is under way. Returns whether there is any. */
static bool take_jobs(Comm *c)
{
    bool any = false;
    for (int i = 0; i < COMM_GROUPS; i++) {
        CommGroup *g = &c->group[i];
        g->current = g->first;
        any = any || g->first;
    }
    return any;
}

static struct timespec time_at(double sec)
{
    double whole = floor(sec);
    return (struct timespec){(time_t)whole, (long)(1e9 * (sec - whole))};
}

/* Locked: sleeps until something is new, or it is time to look again. */
static void rest(Comm *c, bool busy)
{
    if (!busy) {
        pthread_cond_wait(&c->wake, &c->lock);
        return;
    }
    double now = now_sec();
    double pause = fmin(fmax((now - c->moved) / 8, 5e-6), 500e-6);
    struct timespec until = time_at(fmin(now + pause, c->due));
    pthread_cond_timedwait(&c->wake, &c->lock, &until);
}

/* What callers asked for but jobs. Returns whether it was anything. */
static bool serve_asked(Comm *c, CommGroup *asked, bool ending)
{
    if (ending)
        give_up(c, c->code, c->message);
    else if (asked && c->t->group(c->self, asked->n, asked->rank, &asked->library, c->why))
        give_up(c, TN_FAIL, c->why);
    if (!ending && !asked)
        return false;
    pthread_mutex_lock(&c->lock);
    c->ending = false;
    c->asked = NULL;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
    return true;
}

/* Locked, but while it works. */
static void serve_once(Comm *c)
{
    c->news = false;
    bool busy = take_jobs(c), ending = c->ending && !c->failed;
    CommGroup *asked = c->failed ? NULL : c->asked;
    const CommGroup *late = find_late(c, now_sec());
    double before = c->moved;
    pthread_mutex_unlock(&c->lock);
    if (serve_asked(c, asked, ending)) {
        busy = false;
    } else if (late) {
        say_late(c, late, c->why);
        give_up(c, TN_FAIL, c->why);
    } else if (busy) {
        look_at_all(c);
    }
    pthread_mutex_lock(&c->lock);
    if (!c->news && before == c->moved)
        rest(c, busy && !c->failed);
}

static void *serve(void *arg)
{
    Comm *c = arg;
    bool good = !c->t->open(&c->self, &c->rank, &c->size, &c->here, c->why);
    pthread_mutex_lock(&c->lock);
    c->opened = true;
    c->failed = !good;
    if (!good)
        memcpy(c->message, c->why, COMM_MESSAGE);
    pthread_cond_broadcast(&c->done);
    while (!c->stop)
        serve_once(c);
    bool failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    if (good)
        c->t->close(c->self, failed);
    return NULL;
}

/* Tells the thread; locked. */
static void tell(Comm *c)
{
    c->news = true;
    pthread_cond_signal(&c->wake);
}

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

/* The title of a job of the group under way, or NULL. */
static const char *find_busy(CommGroup *g)
{
    pthread_mutex_lock(&g->c->lock);
    const char *what = g->first ? g->first->what : NULL;
    pthread_mutex_unlock(&g->c->lock);
    return what;
}

/* Others would wait for this rank, and the job's memory goes. */
static void end_if_busy(CommGroup *g)
{
    char message[COMM_MESSAGE];
    const char *what = find_busy(g);
    if (!what)
        return;
    snprintf(message, sizeof message, "ended before %s did", what);
    comm_abort(g->c, TN_FAIL, message);
}

static void close_comm(void *arg)
{
    Comm *c = arg;
    if (c->process != getpid()) /* a fork has no threads */
        return;
    if (c->t) {
        for (int i = 0; i < COMM_GROUPS; i++)
            end_if_busy(&c->group[i]);
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        tell(c);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    pthread_cond_destroy(&c->wake);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
}

static Comm *make(Arena *a)
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
    c->size = c->here = 1;
    for (int i = 0; i < COMM_GROUPS; i++)
        c->group[i] = (CommGroup){.c = c, .id = i};
    return c;
}

/* What is needed once the number of ranks is known. */
static void make_small(Comm *c, Arena *a)
{
    int *all = NEWN(a, int, c->size);
    for (int i = 0; i < c->size; i++)
        all[i] = i;
    for (int i = 0; i < COMM_GROUPS; i++)
        c->group[i].rank = NEWN(a, int, c->size);
    c->part = NEWN(a, CommPart, c->size);
    c->number = NEWN(a, int64_t, (c->size + 1) * MAX_NUMBERS);
    c->round = (CommRound){.kind = ROUND_EXCHANGE, .part = c->part};
    c->small = (CommJob){.round = &c->round, .nround = 1};
    c->small.group = comm_group(c, a, 0, c->size, all, false);
    comm_prepare(a, &c->small);
}

Comm *comm_alone(Arena *a)
{
    Comm *c = make(a);
    arena_defer(a, close_comm, c);
    make_small(c, a);
    return c;
}

Comm *comm_open(Arena *a, const Transport *t, void *self, const CommOptions *o)
{
    Ctx *ctx = arena_ctx(a);
    Comm *c = make(a);
    c->t = t;
    c->self = self;
    c->options = *o;
    int why = thread_new(&c->thread, serve, c);
    if (why)
        fail(ctx, TN_FAIL, "ranks: cannot start a thread: %s", strerror(why));
    arena_defer(a, close_comm, c);
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
    return c->rank;
}

int comm_size(const Comm *c)
{
    return c->size;
}

int comm_here(const Comm *c)
{
    return c->here;
}

const char *comm_name(const Comm *c)
{
    return c->t ? c->t->name : "one rank";
}

/* ---- groups ---- */

static void fill_group(CommGroup *g, int n, const int *rank)
{
    g->n = n;
    g->member = -1;
    g->library = NULL;
    for (int i = 0; i < n; i++) {
        g->rank[i] = rank[i];
        if (rank[i] == g->c->rank)
            g->member = i;
    }
    CHECK(g->member >= 0);
}

static void leave_group(void *arg)
{
    CommGroup *g = arg;
    if (g->c->process == getpid())
        end_if_busy(g);
    g->nuser--;
}

/* Has the thread make it. */
static void make_library(CommGroup *g, Ctx *ctx)
{
    Comm *c = g->c;
    for (int i = 0; i < COMM_GROUPS; i++)
        CHECK(!find_busy(&c->group[i]));
    pthread_mutex_lock(&c->lock);
    c->asked = g;
    tell(c);
    while (c->asked && !c->failed)
        pthread_cond_wait(&c->done, &c->lock);
    bool failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    if (failed)
        fail(ctx, TN_FAIL, "%s", c->message);
}

CommGroup *comm_group(Comm *c, Arena *a, int id, int n, const int *rank, bool fast)
{
    CHECK(id >= 0 && id < COMM_GROUPS && n >= 1 && n <= c->size);
    CommGroup *g = &c->group[id];
    if (!g->nuser)
        fill_group(g, n, rank);
    CHECK(g->n == n && !memcmp(g->rank, rank, sizeof *rank * (size_t)n));
    g->nuser++;
    arena_defer(a, leave_group, g);
    if (fast && n > 1 && !g->library && c->t->group)
        make_library(g, arena_ctx(a));
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

int comm_member(const CommGroup *g)
{
    return g->member;
}

bool comm_reduces(const CommGroup *g)
{
    return g->library != NULL;
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
            copy_own(j->group, r);
        else
            r->call(r->arg);
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
        tell(c);
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
    c->small.what = what;
    c->small.patient = patient;
    comm_start(c, &c->small);
    return comm_wait(c, &c->small, message);
}

static void gather_parts(Comm *c, const void *mine, int64_t nbytes, void *all)
{
    for (int i = 0; i < c->size; i++)
        c->part[i] = (CommPart){mine, (char *)all + i * nbytes, nbytes, nbytes};
}

int comm_max(Comm *c, int64_t *x, int n, char *message)
{
    CHECK(n <= MAX_NUMBERS);
    int64_t *mine = c->number + (int64_t)c->size * MAX_NUMBERS;
    memcpy(mine, x, sizeof *x * (size_t)n);
    gather_parts(c, mine, (int64_t)sizeof *x * n, c->number);
    if (run_small(c, "a maximum of all ranks", false, message))
        return -1;
    for (int i = 0; i < c->size * n; i++)
        x[i % n] = MAX(x[i % n], c->number[i]);
    return 0;
}

int comm_gather(Comm *c, const void *mine, int64_t nbytes, void *all, bool patient, char *message)
{
    gather_parts(c, mine, nbytes, all);
    return run_small(c, "what all ranks gather", patient, message);
}

int comm_exchange(Comm *c, const CommPart *part, bool patient, char *message)
{
    memcpy(c->part, part, sizeof *part * (size_t)c->size);
    return run_small(c, "what all ranks exchange", patient, message);
}

/* ---- the end ---- */

void comm_abort(Comm *c, int code, const char *message)
{
    pthread_mutex_lock(&c->lock);
    if (!c->failed && !c->ending) {
        snprintf(c->message, COMM_MESSAGE, "%s", message);
        c->code = code;
        c->ending = true;
        c->failed = !c->t;
    }
    if (c->t)
        tell(c);
    while (!c->failed && !pthread_equal(pthread_self(), c->thread))
        pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

CommCount comm_count(Comm *c)
{
    pthread_mutex_lock(&c->lock);
    CommCount n = c->count;
    pthread_mutex_unlock(&c->lock);
    return n;
}
