/* How ranks agree. All see the same loss, but each has its own clock, disk, signals and memory:
 * so each step ends with one message in which every rank says what it knows, and what happens next
 * follows from the maximum over all of them, never from what one rank alone has seen. With one rank
 * that is the rank's own. */
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

/* Numbers of one message, of which each rank learns the largest; times in nanoseconds. */
typedef struct Message {
    int64_t stop;             /* whether the rank was asked to stop */
    int64_t failed;           /* the code of what failed there alone */
    int64_t unread;           /* whether it does not have its rows of the next step */
    int64_t elapsed, unsaved; /* rank 0's clock; other ranks say nothing */
    int64_t sec, high, high_host, received, waited; /* of the step */
} Message;

enum { NUMBERS = sizeof(Message) / sizeof(int64_t) };

static int64_t to_ns(double sec)
{
    return (int64_t)(1e9 * sec);
}

static double to_sec(int64_t ns)
{
    return 1e-9 * (double)ns;
}

/* A rank that does not answer is lost: what happens is not the step's end, so nothing is saved. */
static int lose(Ending *e, int code)
{
    e->spoiled = true;
    return code;
}

static Message say(const Trainer *r, const StepResult *s)
{
    double now = wall_sec();
    Message m = {.stop = stopped(r->ending.stop),
                 .failed = r->ending.failed,
                 .unread = r->feed.unread,
                 .elapsed = r->rank ? INT64_MIN : to_ns(now - r->clock.start),
                 .unsaved = r->rank ? INT64_MIN : to_ns(now - r->clock.last_save),
                 .sec = s ? to_ns(s->sec) : 0,
                 .high = r->high,
                 .high_host = r->high_host,
                 .received = s ? s->received : 0,
                 .waited = s ? to_ns(s->waited) : 0};
    return m;
}

int agree(Trainer *r, StepResult *s)
{
    Message m = say(r, s);
    int code = tn_agree(r->ctx, (int64_t *)&m, NUMBERS);
    if (code)
        return lose(&r->ending, code);
    r->ending.stopping = m.stop > 0;
    r->feed.unread = m.unread;
    r->clock.elapsed = to_sec(m.elapsed);
    r->clock.unsaved = to_sec(m.unsaved);
    r->high = m.high;
    r->high_host = m.high_host;
    if (s && r->nrank > 1) {
        s->sec = to_sec(m.sec);
        s->received = m.received;
        s->waited = to_sec(m.waited);
    }
    return m.failed ? agree_settle(r->ctx, &r->ending) : 0;
}

void agree_later(tn_context *ctx, Ending *e, int code)
{
    if (!code)
        return;
    e->failed = code;
    snprintf(e->failure, sizeof e->failure, "%s", tn_error(ctx));
}

int agree_settle(tn_context *ctx, const Ending *e)
{
    if (e->failed)
        tn_context_fail(ctx, e->failed, "%s", e->failure);
    return tn_agree_code(ctx, e->failed);
}

int agree_end(tn_context *ctx, Ending *e, int code)
{
    if (code)
        e->spoiled = true;
    if (code && tn_ranks(ctx) > 1)
        tn_ranks_end(ctx, code);
    return code;
}

int agree_lost(tn_context *ctx, Ending *e)
{
    int code = tn_agree_code(ctx, 0);
    return code ? lose(e, code) : 0;
}

bool agree_whole(tn_context *ctx, bool here)
{
    int64_t bad = !here;
    return !tn_agree(ctx, &bad, 1) && !bad;
}
