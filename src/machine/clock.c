/* clock: when items of a step begin and end, by the seconds that they take. Queues that compute or
 * copy run their items one after the other. A group of ranks has a queue of its own for its
 * collectives: they follow one another there, beside what computes. Groups on one link (the
 * network, or what joins the ranks of a host) share its rate: of m groups with something under way
 * each goes on at an m-th of its rate, until one of them ends. Starts are told in the order of
 * time, and so nothing that is told later changes what has ended before. Each start and end costs
 * the number of groups. */
#include "machine.h"

#include <math.h>
#include <string.h>

enum { ON_HOST, ON_NETWORK, NLINK };

typedef struct ClockJob {
    int link;
    int next;          /* of its group; -1: the last */
    double left;       /* seconds, were it alone on its link */
    double begin, end; /* -1: not yet */
} ClockJob;

typedef struct ClockGroup {
    const char *name;
    int link, first, last; /* first, last: its jobs that have not ended; -1: none */
} ClockGroup;

struct Clock {
    Arena *a;
    double at[MAX_QUEUE]; /* when each queue's last item ends */
    double now;           /* up to when groups' jobs were followed */
    ClockGroup *group;
    ClockJob *job;
    int ngroup, capgroup, njob, capjob;
};

Clock *clock_new(Arena *a)
{
    Clock *c = NEW(a, Clock);
    c->a = a;
    return c;
}

/* ---- queues ---- */

double clock_at(const Clock *c, Queue q)
{
    return c->at[q];
}

double clock_run(Clock *c, Queue q, double after, double sec)
{
    return c->at[q] = MAX(c->at[q], after) + sec;
}

double clock_last(const Clock *c)
{
    double last = 0;
    for (int q = 0; q < MAX_QUEUE; q++)
        last = MAX(last, c->at[q]);
    return last;
}

/* ---- groups ---- */

static int find_group(Clock *c, const char *name, const Group *where)
{
    for (int i = 0; i < c->ngroup; i++)
        if (c->group[i].name == name)
            return i;
    for (int i = 0; i < c->ngroup; i++)
        if (!strcmp(c->group[i].name, name))
            return i;
    ClockGroup g = {name, where->nodes > 1 ? ON_NETWORK : ON_HOST, -1, -1};
    PUSH(c->a, c->group, c->ngroup, c->capgroup, g);
    return c->ngroup - 1;
}

/* How many groups of each link have something under way, and after how many seconds the first of
 * their jobs ends. */
static double next_end(const Clock *c, int *busy)
{
    double sec = INFINITY;
    memset(busy, 0, sizeof *busy * NLINK);
    for (int i = 0; i < c->ngroup; i++)
        busy[c->group[i].link] += c->group[i].first >= 0;
    for (int i = 0; i < c->ngroup; i++) {
        const ClockGroup *g = &c->group[i];
        if (g->first >= 0)
            sec = MIN(sec, c->job[g->first].left * busy[g->link]);
    }
    return sec;
}

static void begin_job(const Clock *c, ClockGroup *g, int job)
{
    g->first = job;
    if (job >= 0)
        c->job[job].begin = c->now;
}

/* Takes `sec` off what is under way; whatever ends by then has ended. */
static void pass_time(Clock *c, const int *busy, double sec, bool ends)
{
    c->now += sec;
    for (int i = 0; i < c->ngroup; i++) {
        ClockGroup *g = &c->group[i];
        if (g->first < 0)
            continue;
        ClockJob *j = &c->job[g->first];
        bool over = ends && j->left * busy[g->link] <= sec;
        j->left -= sec / busy[g->link];
        if (!over)
            continue;
        j->end = c->now;
        begin_job(c, g, j->next);
    }
}

/* Follows jobs up to `until`, or until job `stop` (-1: none) has ended. */
static void follow(Clock *c, double until, int stop)
{
    while (c->now < until && (stop < 0 || c->job[stop].end < 0)) {
        int busy[NLINK];
        double sec = next_end(c, busy);
        bool ends = sec <= until - c->now;
        if (sec == INFINITY && until == INFINITY)
            return;
        pass_time(c, busy, ends ? sec : until - c->now, ends);
        if (!ends)
            c->now = until;
    }
}

bool clock_idle(Clock *c, double at)
{
    bool idle = true;
    follow(c, at, -1);
    for (int i = 0; i < c->ngroup; i++)
        idle &= c->group[i].first < 0;
    return idle;
}

int clock_start(Clock *c, const char *group, const Group *where, double after, double sec)
{
    follow(c, after, -1);
    int queue = find_group(c, group, where);
    ClockGroup *g = &c->group[queue];
    PUSH(c->a, c->job, c->njob, c->capjob, ((ClockJob){g->link, -1, sec, -1, -1}));
    int job = c->njob - 1;
    if (g->first < 0)
        begin_job(c, g, job);
    else
        c->job[g->last].next = job;
    g->last = job;
    return job;
}

double clock_begin(Clock *c, int job)
{
    clock_end(c, job);
    return c->job[job].begin;
}

double clock_end(Clock *c, int job)
{
    follow(c, INFINITY, job);
    return c->job[job].end;
}

double clock_wait(Clock *c, int job, double from, void (*see)(void *arg, int job, double sec),
                  void *arg)
{
    follow(c, from, -1);
    if (c->job[job].end >= 0)
        return c->job[job].end;
    const int link = c->job[job].link;
    int first = job; /* all before it have ended */
    for (int i = 0; i < c->ngroup; i++)
        if (c->group[i].first >= 0)
            first = MIN(first, c->group[i].first);
    double *left = NEWN(c->a, double, c->njob - first);
    for (int i = first; i < c->njob; i++)
        left[i - first] = c->job[i].left;
    double end = clock_end(c, job);
    for (int i = first; i < c->njob; i++)
        if (c->job[i].link == link && c->job[i].left < left[i - first])
            see(arg, i, left[i - first] - MAX(0, c->job[i].left));
    return end;
}
