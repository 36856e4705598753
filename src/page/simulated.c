/* The simulated step as a trace, in the trace-event format (Chrome's, which Perfetto opens):
 * complete events "X" with times in microseconds. A track has the calls of the queue that computes,
 * those of copies and each group of ranks have one of their own, and one shows where computing
 * stands still for a collective, which is named. A counter has the bytes alive. Loops are there
 * with the iterations that the time line follows; one slice stands for all later ones. */
#include "page.h"

#include <math.h>
#include <string.h>

enum { TRACK_EXPOSED = 1 + MAX_QUEUE, TRACK_GROUPS };

SimulatedStep simulate(Arena *a, const Plan *p)
{
    SimulatedStep s = {.p = p, .spans = {.a = a}, .live = NEWN(a, int64_t, p->nstep + 1)};
    Arena *tmp = arena_tmp(a);
    s.sec = plan_times(p, tmp, NEWN(tmp, double, p->nstep), &s.spans);
    arena_reset(tmp);
    for (int i = 0; i < p->nstorage; i++)
        if (storage_shown(&p->storage[i])) {
            s.live[p->storage[i].start] += p->storage[i].nbytes;
            s.live[p->storage[i].end] -= p->storage[i].nbytes;
        }
    s.live[0] += plan_kept_by_others(p);
    for (int i = 1; i < p->nstep; i++)
        s.live[i] += s.live[i - 1];
    s.ngroup = plan_rank_groups(a, p, &s.group);
    return s;
}

int simulated_group(const SimulatedStep *s, const PlanSpan *x)
{
    const Node *n = s->p->step[x->step].node;
    const char *name = n->attr[attr_index(n->op, "group")].s;
    for (int i = 0; i < s->ngroup; i++)
        if (!strcmp(s->group[i].name, name))
            return i;
    return -1;
}

/* ---- text ---- */

/* "KEY": microseconds; whole nanoseconds, so that what follows does not overlap. */
static void put_time(Buf *b, const char *key, double sec)
{
    long long nsec = llround(1e9 * sec);
    buf_printf(b, "\"%s\": %lld.%03lld", key, nsec / 1000, nsec % 1000);
}

static void put_track(Buf *b, int track, const char *name)
{
    buf_printf(
        b,
        "{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", \"args\": {\"name\": ",
        track);
    put_quoted(b, name);
    buf_add(b, "}},\n");
    buf_printf(
        b,
        "{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_sort_index\", \"args\": "
        "{\"sort_index\": %d}},\n",
        track, track);
}

static int track_of(const SimulatedStep *s, const PlanSpan *x)
{
    if (x->kind == SPAN_COLLECTIVE)
        return TRACK_GROUPS + simulated_group(s, x);
    return x->kind == SPAN_EXPOSED ? TRACK_EXPOSED : 1 + (int)s->p->step[x->step].queue;
}

static void put_span(Buf *b, const SimulatedStep *s, const PlanSpan *x)
{
    const Step *step = &s->p->step[x->step];
    const Node *n = step->node;
    bool later = x->kind == SPAN_LATER;
    buf_printf(b, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %d, ", track_of(s, x));
    put_time(b, "ts", x->start);
    buf_add(b, ", ");
    put_time(b, "dur", x->end - x->start);
    buf_add(b, ", \"name\": ");
    put_quoted(b, later ? "later iterations" : step_title(b->a, step));
    buf_printf(b, ", \"cat\": \"%s\", \"args\": {\"scope\": ", n ? phase_name(n->phase) : "");
    put_quoted(b, n ? n->scope : "");
    buf_printf(b, ", \"call\": %d, \"value\": ", x->step);
    put_quoted(b, n && n->nout ? n->out[0]->name : "");
    buf_add(b, "}}");
}

/* The bytes alive when computing begins a call, where they are others than before. */
static void put_memory(Buf *b, const SimulatedStep *s)
{
    int64_t last = -1;
    for (int i = 0; i < s->spans.count; i++) {
        const PlanSpan *x = &s->spans.list[i];
        if (x->kind != SPAN_CALL || s->p->step[x->step].queue != QUEUE_COMPUTE ||
            s->live[x->step] == last)
            continue;
        last = s->live[x->step];
        buf_add(b, ",\n{\"ph\": \"C\", \"pid\": 1, \"name\": \"bytes alive\", ");
        put_time(b, "ts", x->start);
        buf_printf(b, ", \"args\": {\"bytes\": %lld}}", (long long)last);
    }
}

static void put_tracks(Buf *b, const SimulatedStep *s)
{
    static const char *const queues[] = {
        [QUEUE_COMPUTE] = "computing", [QUEUE_OUT] = "copies out", [QUEUE_IN] = "copies in"};
    bool several = device_nspace(s->p->device) > 1;
    for (int q = 0; q < (several ? MAX_QUEUE : 1); q++)
        put_track(b, 1 + q, queues[q]);
    if (s->ngroup)
        put_track(b, TRACK_EXPOSED, "exposed");
    for (int i = 0; i < s->ngroup; i++)
        put_track(b, TRACK_GROUPS + i, s->group[i].name);
}

void plan_trace(Buf *b, const Plan *p)
{
    SimulatedStep s = simulate(b->a, p);
    buf_add(b, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
    put_tracks(b, &s);
    buf_add(b, "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": ");
    put_quoted(b, arena_printf(b->a, "simulated step, %s", machine_title(b->a, p->machine)));
    buf_add(b, "}}");
    for (int i = 0; i < s.spans.count; i++)
        put_span(b, &s, &s.spans.list[i]);
    put_memory(b, &s);
    buf_add(b, "\n]}\n");
}
