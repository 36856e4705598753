/* The ways of a call, kernels of its op that accept it as it lies, each timed alone: in turns, so
 * that whatever else the machine does meets all alike, on one set of operands, with the plan's
 * threads. They lie in memory of the plan's device, and runs are work for its queue. Floating-point
 * operands are random numbers of either sign from 1/2 to 1 (f16: 1.75 to 2, f64: below 0.01), as
 * the power that a GPU draws, and so its clock, depends on the data; booleans are true, integers 0,
 * which is in every range. Results lie over operands where the plan has it so.
 *
 * A device beside the host is given several runs between two looks at the clock, so that what it
 * takes to start one does not decide.
 *
 * A first run is not counted where it is short: code, scratchpad and memory are new then; nor
 * beside the host, where libraries then load what they run. A way whose fastest run is far above
 * the best way's is not run again, so that the most that this takes is two or three runs of each
 * and what was asked for. */
#include "exec.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { MOST_TURNS = 100, FEW_TURNS = 3, MOST_EACH = 50, BLOCK = 1 << 20 };

#define SHORT_RUN 0.1  /* seconds */
#define FAR_ABOVE 4    /* times the best: not worth another run */
#define EACH_SEC  2e-3 /* between two looks at the clock, where the device computes by itself */

/* ---- which ---- */

/* Up to `most` of them. */
static int find_ways(const Plan *p, int step, WayTime *way, int most)
{
    const Step *s = &p->step[step];
    int n = 0;
    if (s->kind != STEP_CALL || !s->kernel || s->node->op->class == CLASS_COLLECTIVE ||
        node_transfers(s->node))
        return 0;
    const Kernel *k = op_kernels(s->node->op, p->device->kernels);
    for (; k && k->name && n < most; k++)
        if (kernel_takes(k, &s->call))
            way[n++] = (WayTime){.kernel = k, .taken = k == s->kernel};
    return n;
}

int way_count(const Plan *p, int step)
{
    WayTime way[MOST_WAYS];
    return find_ways(p, step, way, MOST_WAYS);
}

/* ---- the device ---- */

/* A bench for calls of a plan. All that is made lives in tmp. */
typedef struct WayBench {
    Arena *tmp;
    const Plan *p;
    const Driver *driver;
    Queues *queues;
    double (*clock)(void);
    char *random; /* BLOCK bytes */
} WayBench;

/* Each 16 bits are a number of either sign from 1/2 to 1 of bf16; so is every f32 of them. */
static void fill_random(char *to)
{
    uint64_t z = 88172645463325252u;
    for (int i = 0; i < BLOCK / 2; i++) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        uint16_t x = (uint16_t)((z & 0x807f) | 0x3f00);
        memcpy(to + 2 * i, &x, sizeof x);
    }
}

static WayBench bench_open(Arena *tmp, const Plan *p, double (*clock)(void))
{
    WayBench b = {.tmp = tmp, .p = p, .driver = driver_of(p->device), .clock = clock};
    if (b.driver->ready)
        b.driver->ready(arena_ctx(tmp), p->number);
    b.queues = b.driver->open(tmp, p->number);
    b.random = b.driver->host_memory ? b.driver->host_memory(tmp, BLOCK) : arena_alloc(tmp, BLOCK);
    fill_random(b.random);
    return b;
}

/* Has it run on the queue of kernels, and waits for it. 0, or -1 with the reason. */
static int run_alone(const WayBench *b, int (*run)(const Work *w, char *message), void *arg,
                     char *message)
{
    b->driver->launch(b->queues, QUEUE_COMPUTE, &(Work){.run = run, .arg = arg});
    int bad = b->driver->finish(b->queues, message);
    Fault *f = b->queues->fault;
    if (!f || !f->noted)
        return bad;
    f->noted = 0;
    return -1;
}

/* ---- operands ---- */

/* Elements from the first to the last, and where in them element 0 of the tensor is. */
static int64_t span(const Tensor *t, int64_t *first)
{
    int64_t low = 0, high = 0;
    for (int d = 0; d < t->rank; d++) {
        int64_t far = (t->dim[d] - 1) * t->stride[d];
        low += MIN(far, 0);
        high += MAX(far, 0);
    }
    *first = -low;
    return tensor_nelem(t) ? high - low + 1 : 0;
}

/* The operand that result k lies over, or -1. */
static int under_result(const Step *s, int k)
{
    const Arg *y = &s->arg[s->call.nin + k];
    for (int i = 0; i < s->call.nin; i++)
        if (s->arg[i].storage == y->storage && s->arg[i].offset == y->offset)
            return i;
    return -1;
}

/* The address at which work finds it. */
static char *map_bytes(const WayBench *b, int64_t nbytes)
{
    Memory *m = NEW(b->tmp, Memory);
    nbytes = (nbytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    *m = (Memory){.space = SPACE_MAIN, .number = b->p->number, .nbytes = MAX(nbytes, PLAN_ALIGN)};
    int why = memory_own(b->tmp, b->driver, m);
    if (why)
        fail(arena_ctx(b->tmp), why == ENOMEM ? TN_FIT : TN_FAIL,
             "cannot map %lld bytes to time a call: %s", (long long)m->nbytes, strerror(why));
    return m->work_at;
}

typedef struct RandomFill {
    const WayBench *b;
    DType dtype;
    char *to;
    int64_t nbytes;
} RandomFill;

static int fill(const Work *w, char *message)
{
    const RandomFill *f = w->arg;
    const Driver *d = f->b->driver;
    (void)message;
    if (!dtype_float(f->dtype))
        d->work->fill(w->stream, f->to, f->dtype == BOOL, f->nbytes);
    for (int64_t at = 0; at < f->nbytes && dtype_float(f->dtype); at += BLOCK)
        d->work->copy(w->stream, f->to + at, f->b->random, MIN(BLOCK, f->nbytes - at));
    return 0;
}

static void fill_tensor(const WayBench *b, Tensor *t)
{
    char message[RUN_MESSAGE];
    int64_t first, nbytes = span(t, &first) * dtype_size(t->dtype);
    char *at = map_bytes(b, nbytes);
    if (run_alone(b, fill, &(RandomFill){b, t->dtype, at, nbytes}, message))
        fail(arena_ctx(b->tmp), TN_FAIL, "cannot fill the operands of a call: %s", message);
    t->data = at + first * dtype_size(t->dtype);
}

/* The step's call, with tensors and memory of its own. */
static Call copy_call(const WayBench *b, const Step *s)
{
    Call c = s->call;
    c.in = NEWN(b->tmp, Tensor, c.nin + 1);
    c.out = NEWN(b->tmp, Tensor, c.nout + 1);
    for (int i = 0; i < c.nin; i++) {
        c.in[i] = s->call.in[i];
        fill_tensor(b, &c.in[i]);
    }
    for (int k = 0; k < c.nout; k++) {
        int under = under_result(s, k);
        c.out[k] = s->call.out[k];
        if (under >= 0)
            c.out[k].data = c.in[under].data;
        else
            fill_tensor(b, &c.out[k]);
    }
    return c;
}

/* ---- times ---- */

typedef struct Timed {
    Call call;
    double sec[MOST_TURNS], least, first; /* first: when it was warm, counted or not */
    int n, each;                          /* each: runs between two looks at the clock */
    bool out;                             /* is not run again */
} Timed;

/* A kernel for which another stands in has no times of its own. */
static void make_ready(const WayBench *b, const Call *c, const WayTime *way, Timed *t)
{
    const Kernel *k = way->kernel;
    t->call = *c;
    t->each = 1;
    kernel_prepare(k, &t->call, b->tmp);
    t->call.work = t->call.nbytes_work ? map_bytes(b, t->call.nbytes_work) : NULL;
    t->out = k->own && !k->own(&t->call);
}

typedef struct WayRun {
    const WayBench *b;
    const WayTime *way;
    Timed *t;
    double sec;
} WayRun;

static int run_each(const Work *w, char *message)
{
    WayRun *r = w->arg;
    const WayBench *b = r->b;
    Call *c = &r->t->call;
    par_set_threads(b->p->nthread); /* of the queue's own thread */
    c->stream = w->stream;
    c->fault = b->queues->fault;
    double start = b->clock();
    for (int i = 0; i < r->t->each; i++)
        if (r->way->kernel->run(c)) {
            snprintf(message, RUN_MESSAGE, "%s", c->message);
            return -1;
        }
    if (b->driver->work->wait_for)
        b->driver->work->wait_for(w->stream);
    r->sec = (b->clock() - start) / r->t->each;
    return 0;
}

/* Seconds of one run, -1 where it failed. */
static double run_once(const WayBench *b, const WayTime *way, Timed *t)
{
    char message[RUN_MESSAGE];
    WayRun r = {b, way, t, -1};
    t->out = t->out || run_alone(b, run_each, &r, message);
    return t->out ? -1 : r.sec;
}

static void count_run(Timed *t, double sec)
{
    t->sec[t->n] = sec;
    t->least = t->n++ ? MIN(t->least, sec) : sec;
}

static void warm_up(const WayBench *b, const WayTime *way, Timed *t)
{
    double sec = run_once(b, way, t);
    if (!device_is_host(b->p->device) && !t->out) {
        sec = run_once(b, way, t);
        t->each = (int)MIN(MAX(ceil(EACH_SEC / MAX(sec, 1e-9)), 1), MOST_EACH);
    }
    t->first = sec;
    if (sec >= SHORT_RUN)
        count_run(t, sec);
}

/* Beside the host a first run is as good as any other, and may take a thousand times the best. */
static void drop_far(const WayTime *way, Timed *t, int n)
{
    double best = -1;
    for (int i = 0; i < n; i++)
        if (!t[i].out && (best < 0 || t[i].first < best))
            best = t[i].first;
    for (int i = 0; i < n; i++) {
        if (t[i].out || way[i].taken || t[i].first <= FAR_ABOVE * best)
            continue;
        t[i].out = true;
        if (!t[i].n)
            count_run(&t[i], t[i].first);
    }
}

/* One run slows down while others work, so that one alone says less than several. */
static void drop_slow(const WayTime *way, Timed *t, int n)
{
    double best = -1;
    for (int i = 0; i < n; i++)
        if (t[i].n && !t[i].out && (best < 0 || t[i].least < best))
            best = t[i].least;
    for (int i = 0; i < n; i++)
        if (!way[i].taken && t[i].n)
            t[i].out = t[i].out || t[i].least > (t[i].n < FEW_TURNS ? 1.5 : 1.15) * best;
}

static void take_turns(const WayBench *b, const WayTime *way, Timed *t, int n, double most)
{
    double start = b->clock();
    for (int i = 0; i < n; i++)
        warm_up(b, &way[i], &t[i]);
    if (!device_is_host(b->p->device))
        drop_far(way, t, n);
    for (int turn = 0; turn < MOST_TURNS - 1; turn++) {
        for (int i = 0; i < n; i++) {
            double sec = t[i].out ? -1 : run_once(b, &way[i], &t[i]);
            if (sec >= 0)
                count_run(&t[i], sec);
        }
        if (b->clock() - start > most)
            return;
        drop_slow(way, t, n);
    }
}

int way_times(Arena *tmp, const Plan *p, int step, double most, double (*clock)(void),
              WayTime way[MOST_WAYS])
{
    int n = find_ways(p, step, way, MOST_WAYS), before = par_threads();
    sigset_t mask;
    if (!n)
        return 0;
    WayBench b = bench_open(tmp, p, clock);
    Call c = copy_call(&b, &p->step[step]);
    Timed *t = NEWN(tmp, Timed, n);
    par_set_threads(p->nthread);
    for (int i = 0; i < n; i++)
        make_ready(&b, &c, &way[i], &t[i]);
    signals_hold(&mask);
    take_turns(&b, way, t, n, most);
    signals_release(&mask);
    par_set_threads(before);
    for (int i = 0; i < n; i++) {
        way[i].sec = t[i].n ? median_sec(t[i].sec, t[i].n) : -1;
        way[i].runs = t[i].n;
    }
    return n;
}
