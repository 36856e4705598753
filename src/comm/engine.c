/* The thread of an end. It takes jobs which others start, posts what a round sends and receives,
 * and looks whether it has come. It alone calls the transport. A group has one round under way, of
 * the oldest of its jobs; a message carries its group's id as tag. Members of a group run the same
 * jobs in the same order, and messages of one tag from one rank to another arrive in order: so
 * messages find their jobs without a number, whatever other groups of the same two ranks do in
 * between. What is made of messages that came, as a sum, is made in slices between such looks.
 *
 * Where the transport tells when there is something to see, the thread sleeps until then, and looks
 * a hundred times in a second for parts. Else it sleeps between looks, an eighth of the time for
 * which nothing has moved: a wait is at most so much longer than it had to be, and long waits cost
 * little. A look takes a core from what computes, so it sleeps for longer where no caller waits;
 * one that begins to wakes it. It sleeps exactly until a time that its own clock sets: the end of a
 * delay, or of a message on a modelled link; and does not look before, if all that is under way
 * ends so.
 *
 * An error here fails all waits of this rank, and then ends all ranks: at once where they are
 * threads, whose waits fail with its message, else some seconds later, so that callers do it first.
 *
 * Messages do not show whether another process still runs, as its caller may take any time before
 * it sends. But its thread is always there: so each tells the next of all ranks, several times in a
 * second, that it lives. A rank that hangs or has died is thus missed by one other, which ends all.
 * Members for whom a collective is late too wait for that rank first, and then for each other, so
 * that one message is printed. */
#include "engine.h"

#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_SEC = 3 };

/* Seconds. */
static const double beat_sec = 0.25;

/* Seconds between looks: at least, where a caller waits and ranks have a core each, or else; at
 * most; where only the clock ends what is under way, as another rank may have ended all. */
#define AWAITED 5e-6
#define BESIDE  50e-6
#define LONGEST 1e-3
#define OTHERS  1e-2

enum {
    SLACK_NSEC = 1000, /* by which a sleep may be longer; the system's own is 50 us */
    LAPSE = 1,         /* of no rest: it is the process that did not run */
    LEAST_SILENT = 2,  /* a thread may be that long without its turn */
    STOP_SILENT = 5    /* is much, for who is to stop */
};

static const int type_size[NCOMM_TYPE] = {
    [COMM_F64] = 8, [COMM_F32] = 4, [COMM_I64] = 8, [COMM_I32] = 4};

/* ---- a message; the thread's ---- */

static int post_receive(Comm *c, CommGroup *g, const CommRound *r, int i)
{
    CommMessage *m = &g->current->message[i];
    m->state = MESSAGE_POSTED;
    m->request = m->room;
    return c->t->receive(c->self, g->rank[i], g->id, &r->part[i], &m->request, c->own.why);
}

static int post_send(Comm *c, CommGroup *g, const CommRound *r, int i)
{
    CommMessage *m = &g->current->message[g->n + i];
    m->state = MESSAGE_POSTED;
    m->request = m->room;
    c->own.asks = true;
    return c->t->send(c->self, g->rank[i], g->id, &r->part[i], &m->request, c->own.why);
}

/* Now, or with a delay. */
static int begin_send(Comm *c, CommGroup *g, const CommRound *r, int i, double now)
{
    CommMessage *m = &g->current->message[g->n + i];
    uint64_t number = c->own.nsent++;
    if (!c->options.delay)
        return post_send(c, g, r, i);
    float share = random_uniform(c->options.seed, (uint32_t)c->place.rank, 0, number);
    m->due = now + 1e-6 * (double)c->options.delay * (double)share;
    m->state = MESSAGE_LATER;
    return 0;
}

static void end_message(Comm *c, CommGroup *g, CommMessage *m, double now)
{
    m->state = MESSAGE_NONE;
    g->current->left--;
    g->moved = c->own.moved = now;
}

/* It is here, but for the model of a link: one server, which it takes from now on. */
static void arrive(Comm *c, CommGroup *g, CommMessage *m, int64_t nbytes, double now)
{
    c->own.came.nreceived += nbytes;
    c->own.came.nmessage++;
    if (c->options.rate <= 0) {
        end_message(c, g, m, now);
        return;
    }
    c->own.link = MAX(c->own.link, now) + c->options.wait + (double)nbytes / c->options.rate;
    m->due = c->own.link;
    m->state = MESSAGE_ON_LINK;
    c->own.due = fmin(c->own.due, m->due);
}

/* Whether its time has come; else notes when. */
static bool is_due(Comm *c, const CommMessage *m, double now)
{
    if (now >= m->due)
        return true;
    c->own.due = fmin(c->own.due, m->due);
    return false;
}

static int look_posted(Comm *c, CommGroup *g, const CommRound *r, int i, double now)
{
    CommMessage *m = &g->current->message[i];
    bool done = false, received = r->kind == ROUND_EXCHANGE && i < g->n;
    if (c->t->done(c->self, m->request, &done, c->own.why))
        return -1;
    if (done && received)
        arrive(c, g, m, part_receives(&r->part[i]), now);
    else if (done)
        end_message(c, g, m, now);
    c->own.asks |= !done;
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

void engine_copy_own(const CommGroup *g, const CommRound *r)
{
    for (const CommPart *own = &r->part[g->member]; own; own = own->next) {
        CHECK(own->nsend == own->nreceive);
        if (own->nsend && own->send != own->receive)
            memcpy(own->receive, own->send, (size_t)own->nsend);
    }
}

/* Members begin with those after them, so that not all send to one. */
static int post_exchange(Comm *c, CommGroup *g, const CommRound *r, double now)
{
    CommJob *j = g->current;
    engine_copy_own(g, r);
    for (int k = 1; k < g->n; k++) {
        int i = (g->member + g->n - k) % g->n;
        bool comes = part_receives(&r->part[i]) > 0;
        j->left += comes;
        if (comes && post_receive(c, g, r, i))
            return -1;
    }
    for (int k = 1; k < g->n; k++) {
        int i = (g->member + k) % g->n;
        bool goes = part_sends(&r->part[i]) > 0;
        j->left += goes;
        if (goes && begin_send(c, g, r, i, now))
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
    m->request = m->room;
    c->own.came.nreceived += r->scatter ? nbytes * others : 2 * nbytes * others / g->n;
    c->own.came.nmessage += r->scatter ? others : 2 * others;
    return c->t->reduce(c->self, g->library, r->scatter, r->type, r->op, r->from, r->to, r->count,
                        &m->request, c->own.why);
}

static int post(Comm *c, CommGroup *g, const CommRound *r, double now)
{
    g->moved = c->own.moved = now;
    g->current->posted = true;
    g->current->left = 0;
    switch (r->kind) {
    case ROUND_EXCHANGE: return post_exchange(c, g, r, now);
    case ROUND_REDUCE: return post_reduce(c, g, r);
    case ROUND_CALL: g->current->slice = 0;
    }
    return 0;
}

/* Whether the round's call has no more to do. */
static bool run_slice(Comm *c, CommGroup *g, const CommRound *r)
{
    bool last = r->call(r->arg, g->current->slice++);
    g->moved = c->own.moved = now_sec();
    return last;
}

static void end_job(Comm *c, CommGroup *g)
{
    CommJob *j = g->current;
    g->current = NULL;
    pthread_mutex_lock(&c->lock);
    g->first = j->next;
    j->running = false;
    c->count.nreceived = c->own.came.nreceived;
    c->count.nmessage = c->own.came.nmessage;
    c->count.nlook = c->own.came.nlook;
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
        if (j->left || (r->kind == ROUND_CALL && !run_slice(c, g, r)))
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

static bool has_beats(const Comm *c)
{
    return c->t->beat && c->place.size > 1;
}

/* Where a member is late, others end all first: who misses its beats, then members after it. */
static double grace(const Comm *c, const CommGroup *g)
{
    int late = 0;
    while (late < 2 * g->n - 1 && g->current->message[late].state == MESSAGE_NONE)
        late++;
    int before = (g->member - late + 2 * g->n - 1) % g->n;
    return has_beats(c) ? 1 + 0.5 * MIN(before, 8) : 0;
}

/* Locked: a job for which a caller waits, and of which nothing has come since. */
static const CommGroup *find_late(const Comm *c, double now)
{
    for (int i = 0; i < COMM_GROUPS && c->options.timeout > 0; i++) {
        const CommGroup *g = &c->group[i];
        bool waits = g->nwaiting && g->current && !g->current->patient;
        double sec = waits ? now - fmax(fmax(g->waiting, g->moved), c->own.resumed) : 0;
        if (sec > c->options.timeout && sec > c->options.timeout + grace(c, g))
            return g;
    }
    return NULL;
}

/* Locked: seconds for which the rank before may be silent. */
static double silence(const Comm *c)
{
    bool stops = c->stopping && __atomic_load_n(c->stopping, __ATOMIC_RELAXED);
    double sec = c->options.timeout > 0 ? fmax(c->options.timeout, LEAST_SILENT) : INFINITY;
    return stops ? fmin(sec, STOP_SILENT) : sec;
}

/* After a sleep that was longer than its own, as that of a whole job which its user stops for a
 * while, nothing is late that may come now. */
static void note_look(Comm *c, double now)
{
    if (now - c->own.looked > LAPSE)
        c->own.resumed = now;
    c->own.looked = now;
}

/* Locked, after a look at what has come: whether a rank is missing; c->own.why says which. */
static bool misses(Comm *c)
{
    double now = now_sec(), sec = silence(c);
    note_look(c, now);
    const CommGroup *late = find_late(c, now);
    bool silent = has_beats(c) && now - fmax(c->own.heard, c->own.resumed) > sec;
    if (silent)
        snprintf(c->own.why, COMM_MESSAGE,
                 "rank %d has not answered for %.4g s: it hangs or has died",
                 (c->place.rank + c->place.size - 1) % c->place.size, sec);
    else if (late)
        say_late(c, late, c->own.why);
    return silent || late;
}

/* ---- how it ends ---- */

/* Fails all that waits or will; touches no job any more. */
static void fail_waits(Comm *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    if (!c->failed)
        snprintf(c->message, COMM_MESSAGE, "%s", why);
    c->failed = true;
    for (int i = 0; i < COMM_GROUPS; i++)
        c->group[i].first = c->group[i].current = NULL;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* All ranks have been ended. */
static void note_end(Comm *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    pthread_mutex_unlock(&c->lock);
    fail_waits(c, why);
}

static void end_ranks(Comm *c, int code, const char *message)
{
    c->t->abort(c->self, code, message);
    const char *why = c->t->aborted(c->self);
    note_end(c, why ? why : message);
}

/* This rank cannot go on. */
static void give_up(Comm *c, const char *message)
{
    c->own.patience = now_sec() + PATIENCE_SEC;
    if (c->t->kills)
        fail_waits(c, message);
    else
        end_ranks(c, TN_FAIL, message);
}

/* ---- beats; the thread's ---- */

static int beat(Comm *c, bool last, CommBeat *heard)
{
    if (c->t->beat(c->self, last, heard, c->own.why))
        return -1;
    double now = now_sec();
    c->own.beat = now + beat_sec;
    if (*heard)
        c->own.heard = now;
    return 0;
}

static void beat_in_time(Comm *c, double now)
{
    CommBeat heard;
    if (has_beats(c) && !c->failed && now >= c->own.beat && beat(c, false, &heard))
        give_up(c, c->own.why);
}

/* All ranks do, so that no beat is under way any more. */
static void part(Comm *c)
{
    CommBeat heard = BEAT_NONE;
    while (has_beats(c) && heard != BEAT_OVER && !c->failed) {
        if (beat(c, true, &heard))
            fail_waits(c, c->own.why);
        else if (misses(c))
            end_ranks(c, TN_FAIL, c->own.why);
        else if (heard != BEAT_OVER)
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

/* ---- the thread ---- */

/* One look at each group. */
static void look_at_all(Comm *c)
{
    const char *why = c->t->aborted(c->self);
    c->own.due = INFINITY;
    c->own.asks = false;
    c->own.came.nlook++;
    if (why)
        note_end(c, why);
    for (int i = 0; i < COMM_GROUPS && !why; i++)
        if (c->group[i].current && advance(c, &c->group[i])) {
            give_up(c, c->own.why);
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

/* Locked: whether callers wait, and compute nothing. */
static bool is_awaited(const Comm *c)
{
    bool waits = false;
    for (int i = 0; i < COMM_GROUPS; i++)
        waits |= c->group[i].nwaiting > 0;
    return waits;
}

/* Locked: seconds until the next look, if nothing is new. */
static double pause_sec(const Comm *c, double now)
{
    double least = is_awaited(c) && !c->own.crowded ? AWAITED : BESIDE;
    double pause = fmin((now - c->own.moved) / 8 + least, LONGEST);
    bool asks = c->own.asks && !c->t->tell; /* which says when there is more than a part */
    return fmin(asks ? pause : OTHERS, c->own.due - now);
}

/* Locked: sleeps until something is new, or it is time to look again. */
static void rest(Comm *c, bool busy)
{
    double now = now_sec(), until = c->failed && !c->ended ? c->own.patience : INFINITY;
    if (busy && !c->failed)
        until = now + pause_sec(c, now);
    if (has_beats(c) && !c->failed)
        until = fmin(until, c->own.beat);
    if (until == INFINITY) {
        pthread_cond_wait(&c->wake, &c->lock);
        return;
    }
    struct timespec t = time_at(until);
    pthread_cond_timedwait(&c->wake, &c->lock, &t);
}

/* At what has come, and then for what has not. */
static void look_around(Comm *c, bool busy, double now)
{
    if (busy)
        look_at_all(c);
    beat_in_time(c, now);
    pthread_mutex_lock(&c->lock);
    bool missing = !c->failed && misses(c);
    pthread_mutex_unlock(&c->lock);
    if (missing)
        end_ranks(c, TN_FAIL, c->own.why);
}

static void serve_asked(Comm *c, Ask ask, CommGroup *g, int code)
{
    if (ask == ASK_LIBRARY && c->t->group(c->self, g->n, g->rank, &g->library, c->own.why))
        give_up(c, c->own.why);
    else if (ask == ASK_DROP)
        give_up(c, c->asked.reason);
    else if (ask == ASK_END)
        end_ranks(c, code, c->asked.reason);
    pthread_mutex_lock(&c->lock);
    c->asked.kind = ASK_NOTHING;
    pthread_cond_broadcast(&c->done);
    pthread_mutex_unlock(&c->lock);
}

/* Locked, but while it works. */
static void serve_once(Comm *c)
{
    c->news = false;
    bool busy = take_jobs(c), failed = c->failed, ended = c->ended, listens = c->listens;
    Ask ask = c->asked.kind;
    CommGroup *asked = c->asked.group;
    int code = c->asked.code;
    double before = c->own.moved, now = now_sec();
    note_look(c, now);
    pthread_mutex_unlock(&c->lock);
    if (ask) {
        serve_asked(c, ask, asked, code);
    } else if (failed && !ended && now >= c->own.patience) {
        end_ranks(c, TN_FAIL, c->message);
    } else if (!failed) {
        look_around(c, busy || listens, now);
    }
    pthread_mutex_lock(&c->lock);
    if (!c->news && before == c->own.moved)
        rest(c, busy && !ask);
}

/* Has this thread wake in time, and in a process of a real-time class, where threads of one
 * priority do not take turns, before those that compute. */
static void take_turns(void)
{
    int class;
    struct sched_param p;
    prctl(PR_SET_TIMERSLACK, SLACK_NSEC, 0, 0, 0);
    if (pthread_getschedparam(pthread_self(), &class, &p) || class == SCHED_OTHER ||
        p.sched_priority >= sched_get_priority_max(class))
        return;
    p.sched_priority++;
    pthread_setschedparam(pthread_self(), class, &p);
}

static void note_news(void *comm)
{
    Comm *c = comm;
    pthread_mutex_lock(&c->lock);
    engine_tell(c);
    pthread_mutex_unlock(&c->lock);
}

void *engine_serve(void *comm)
{
    Comm *c = comm;
    take_turns();
    bool good = !c->t->open(&c->self, &c->place, c->own.why);
    c->own.crowded = c->place.here > sysconf(_SC_NPROCESSORS_ONLN);
    if (good && c->t->tell)
        c->t->tell(c->self, note_news, c);
    pthread_mutex_lock(&c->lock);
    c->opened = true;
    c->own.looked = c->own.heard = now_sec();
    if (!good) {
        c->failed = c->ended = true;
        memcpy(c->message, c->own.why, COMM_MESSAGE);
    }
    pthread_cond_broadcast(&c->done);
    while (!c->stop)
        serve_once(c);
    bool ended = c->ended, failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    if (failed && !ended) /* callers had their time to say why */
        c->t->abort(c->self, TN_FAIL, NULL);
    part(c);
    if (good)
        c->t->close(c->self, c->failed);
    return NULL;
}

void engine_tell(Comm *c)
{
    c->news = true;
    pthread_cond_signal(&c->wake);
}
