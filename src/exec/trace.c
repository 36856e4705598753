/* Records the time of each call of runs, and writes it in the trace-event format (Chrome's, which
 * Perfetto opens): complete events "X" with times in microseconds. One track has a slice for each
 * run; the next a slice for each call, inside slices of loops and iterations; each further queue
 * has a track of its calls; a counter shows the bytes alive. Memory for slices is allocated in
 * advance, so a recorded run allocates nothing. Each queue records into a list of its own, without
 * a lock. */
#include "exec.h"

#include <math.h>

enum { MOST_SLICES = 1 << 20 };

/* A call, an iteration of a loop, a loop or a run. */
typedef enum { SLICE_CALL, SLICE_ITERATION, SLICE_LOOP, SLICE_RUN } SliceKind;

typedef struct Slice {
    SliceKind kind;
    int step;       /* of the plan; of an iteration or loop, its LOOP */
    int64_t number; /* of the iteration or run */
    double start, end;
} Slice;

/* A piece of a queue's time. Slices are in the order of starts; one precedes those inside it. */
typedef struct Track {
    Slice *slice;
    int64_t count, cap, lost;
} Track;

struct Trace {
    Track track[MAX_QUEUE]; /* that of kernels has loops and runs too */
    int64_t nrun;
    bool on; /* the run in progress, or the next, is recorded */
    double (*clock)(void);
    int64_t number;
    int64_t run, loop[TN_MAX_DEPTH], iteration[TN_MAX_DEPTH]; /* slices that are open */
};

/* Slices of a queue in steps [from, to). */
static int64_t count_slices(const Plan *p, Queue queue, int from, int to)
{
    int64_t n = 0;
    for (int i = from; i < to; i++) {
        const Step *s = &p->step[i];
        if (s->kind == STEP_LOOP) {
            int64_t own = queue == QUEUE_COMPUTE;
            n += own + s->count * (own + count_slices(p, queue, i + 1, s->end));
            i = s->end;
        } else {
            n += s->queue == queue && (s->kind == STEP_CALL || s->kind == STEP_ZERO);
        }
    }
    return n;
}

Trace *trace_new(Arena *a, const Plan *p, int64_t nruns, double (*clock)(void))
{
    Trace *t = NEW(a, Trace);
    t->clock = clock;
    for (int q = 0; q < MAX_QUEUE; q++) {
        Track *track = &t->track[q];
        int64_t each = (q == QUEUE_COMPUTE) + count_slices(p, (Queue)q, 0, p->nstep);
        track->cap = nruns < MOST_SLICES / MAX(each, 1) ? nruns * each : MOST_SLICES;
        track->slice = NEWN(a, Slice, track->cap);
    }
    return t;
}

/* ---- recording ---- */

void trace_next(Trace *t, int64_t number)
{
    t->on = true;
    t->number = number;
}

/* Returns its index, -1 where there is no room. */
static int64_t begin(Track *t, SliceKind kind, int step, int64_t number, double start)
{
    if (t->count == t->cap) {
        t->lost++;
        return -1;
    }
    t->slice[t->count] = (Slice){kind, step, number, start, start};
    return t->count++;
}

static void end(Track *t, int64_t slice, double now)
{
    if (slice >= 0)
        t->slice[slice].end = now;
}

bool trace_begin(Trace *t)
{
    if (t && t->on)
        t->run = begin(&t->track[QUEUE_COMPUTE], SLICE_RUN, 0, t->number, t->clock());
    return t && t->on;
}

void trace_end(Trace *t, bool good)
{
    t->on = false;
    if (!good)
        return;
    end(&t->track[QUEUE_COMPUTE], t->run, t->clock());
    t->nrun++;
}

void trace_step(Trace *t, const Plan *p, int i, int64_t iteration, bool jumped, double start)
{
    const Step *s = &p->step[i];
    Track *track = &t->track[s->queue];
    double now = t->clock();
    if (s->kind == STEP_CALL || s->kind == STEP_ZERO) {
        end(track, begin(track, SLICE_CALL, i, 0, start), now);
    } else if (s->kind == STEP_LOOP) {
        t->loop[s->depth] = begin(track, SLICE_LOOP, i, 0, start);
        t->iteration[s->depth] = begin(track, SLICE_ITERATION, i, s->first, start);
    } else if (s->kind == STEP_END) {
        end(track, t->iteration[s->depth], now);
        if (jumped)
            t->iteration[s->depth] =
                begin(track, SLICE_ITERATION, s->end, iteration + p->step[s->end].by, now);
        else
            end(track, t->loop[s->depth], now);
    }
}

double trace_now(const Trace *t)
{
    return t->clock();
}

int64_t trace_count(const Trace *t)
{
    int64_t n = 0;
    for (int q = 0; q < MAX_QUEUE; q++)
        n += t->track[q].count;
    return n;
}

int64_t trace_runs(const Trace *t)
{
    return t->nrun;
}

int trace_call(const Trace *t, int64_t i, double *sec)
{
    int q = 0;
    for (; i >= t->track[q].count; q++)
        i -= t->track[q].count;
    const Slice *e = &t->track[q].slice[i];
    *sec = e->end - e->start;
    return e->kind == SLICE_CALL ? e->step : -1;
}

/* ---- text ---- */

static void put_string(Buf *b, const char *key, const char *s)
{
    buf_printf(b, "\"%s\": \"", key);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_printf(b, "\\%c", *s);
        else if ((unsigned char)*s < ' ')
            buf_printf(b, "\\u%04x", (unsigned)*s);
        else
            buf_addn(b, s, 1);
    }
    buf_add(b, "\"");
}

static double tensors_nbytes(const Call *c)
{
    double sum = 0;
    for (int i = 0; i < c->nin + c->nout; i++) {
        const Tensor *t = i < c->nin ? &c->in[i] : &c->out[i - c->nin];
        sum += (double)(tensor_nelem(t) * dtype_size(t->dtype));
    }
    return sum;
}

Cost step_cost(const Step *s)
{
    if (s->kind == STEP_ZERO)
        return (Cost){.nwrite = (double)s->nbytes};
    if (s->copy)
        return (Cost){.nread = tensors_nbytes(&s->call)};
    return node_cost(s->node);
}

static void put_output(Buf *b, const Step *s)
{
    const Tensor *y = &s->call.out[0];
    Type t = type_make(y->dtype, y->rank, y->dim);
    buf_printf(b, ", ");
    put_string(b, "result", s->node->nout ? s->node->out[0]->name : "");
    buf_printf(b, ", ");
    put_string(b, "type", type_text(b->a, &t));
}

static void put_call(Buf *b, const Step *s, double sec)
{
    Cost c = step_cost(s);
    double nbytes = c.nread + c.nwrite, rate = 1e-9 / (sec > 1e-9 ? sec : 1e-9);
    put_string(b, "scope", s->node->scope);
    buf_printf(b, ", \"phase\": \"%s\"", phase_name(s->node->phase));
    if (s->kind == STEP_CALL) {
        put_output(b, s);
        buf_printf(b, ", \"kernel\": \"%s\", \"planner\": %s", s->kernel ? s->kernel->name : "ref",
                   s->copy ? "true" : "false");
    }
    buf_printf(b,
               ", \"nflop\": %.0f, \"nbytes\": %.0f, \"gflop_per_sec\": %.4g, \"gb_per_sec\": %.4g",
               c.nflop, nbytes, c.nflop * rate, nbytes * rate);
}

/* "KEY": microseconds; whole nanoseconds, so that what lies within another still does. */
static void put_time(Buf *b, const char *key, int64_t nsec)
{
    buf_printf(b, "\"%s\": %lld.%03lld, ", key, (long long)(nsec / 1000), (long long)(nsec % 1000));
}

static void put_slice(Buf *b, const Plan *p, const Slice *e, double zero)
{
    const Step *s = &p->step[e->step];
    int64_t start = llround(1e9 * (e->start - zero)), stop = llround(1e9 * (e->end - zero));
    int track = e->kind == SLICE_RUN ? 1 : e->kind == SLICE_CALL ? 2 + (int)s->queue : 2;
    buf_printf(b, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %d, ", track);
    put_time(b, "ts", start);
    put_time(b, "dur", stop - start);
    switch (e->kind) {
    case SLICE_RUN:
        buf_printf(b, "\"name\": \"step %lld\", \"args\": {", (long long)e->number);
        break;
    case SLICE_ITERATION:
        buf_printf(b, "\"name\": \"iteration %lld\", \"args\": {", (long long)e->number);
        break;
    case SLICE_LOOP:
        buf_printf(b, "\"name\": \"%s\", \"args\": {\"iterations\": %lld, ", s->node->op->name,
                   (long long)s->count);
        put_string(b, "scope", s->node->scope);
        break;
    case SLICE_CALL:
        buf_printf(b, "\"name\": \"%s\", \"cat\": \"%s\", \"args\": {",
                   s->kind == STEP_ZERO ? "zero" : s->node->op->name, phase_name(s->node->phase));
        put_call(b, s, e->end - e->start);
    }
    buf_add(b, "}}");
}

/* The bytes alive in SPACE_MAIN at each step of the plan. */
static int64_t *live_bytes(Arena *a, const Plan *p)
{
    int64_t *live = NEWN(a, int64_t, p->nstep + 2);
    for (int i = 0; i < p->nstorage; i++) {
        if (p->storage[i].space != SPACE_MAIN)
            continue;
        live[p->storage[i].start] += p->storage[i].nbytes;
        live[p->storage[i].end] -= p->storage[i].nbytes;
    }
    for (int i = 1; i <= p->nstep; i++)
        live[i] += live[i - 1];
    return live;
}

static void put_head(Buf *b, const Trace *t, const Plan *p)
{
    static const char *const names[] = {"steps", "calls", "copies to the host",
                                        "copies from the host"};
    int64_t lost = 0;
    for (int q = 0; q < MAX_QUEUE; q++)
        lost += t->track[q].lost;
    buf_printf(b,
               "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"threads\": %d, \"plan_hash\": "
               "\"%016llx\", \"arena_bytes\": %lld, \"events_not_recorded\": %lld},\n"
               "\"traceEvents\": [\n"
               "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {\"name\": "
               "\"tenon\"}}",
               p->nthread, (unsigned long long)plan_hash(p), (long long)p->space[SPACE_MAIN].peak,
               (long long)lost);
    for (int i = 0; i < LEN(names); i++)
        if (i < 2 || t->track[i - 1].count)
            buf_printf(b,
                       ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", "
                       "\"args\": {\"name\": \"%s\"}}",
                       i + 1, names[i]);
}

void trace_print(Buf *b, const Trace *t, const Plan *p)
{
    const int64_t *live = live_bytes(b->a, p);
    double zero = t->track[QUEUE_COMPUTE].count ? t->track[QUEUE_COMPUTE].slice[0].start : 0;
    put_head(b, t, p);
    for (int q = 0; q < MAX_QUEUE; q++)
        for (int64_t i = 0; i < t->track[q].count; i++) {
            const Slice *e = &t->track[q].slice[i];
            put_slice(b, p, e, zero);
            if (e->kind != SLICE_CALL || q != QUEUE_COMPUTE)
                continue;
            buf_add(b, ",\n{\"ph\": \"C\", \"pid\": 1, \"name\": \"live bytes\", ");
            put_time(b, "ts", llround(1e9 * (e->start - zero)));
            buf_printf(b, "\"args\": {\"bytes\": %lld}}", (long long)live[e->step]);
        }
    buf_add(b, "\n]}\n");
}
