/* The ways of a call, kernels of its op that accept it as it lies, each timed alone: in turns, so
 * that whatever else the machine does meets all alike, on one set of operands, with the plan's
 * threads. Floating-point operands are 0.0115 (f16: 1.06), so that neither denormals nor zeros
 * change the speed, booleans true, integers 0, which is in every range. Results lie over operands
 * where the plan has it so.
 *
 * A first run is not counted where it is short: code, scratchpad and memory are new then. A way
 * whose fastest run is far above the best way's is not run again, so that the most that this takes
 * is two runs of each and what was asked for. */
#include "exec.h"

#include <string.h>

enum { MOST_TURNS = 100, FEW_TURNS = 3 };

#define SHORT_RUN 0.1 /* seconds */

/* ---- which ---- */

/* Up to `most` of them. */
static int find_ways(const Plan *p, int step, WayTime *way, int most)
{
    const Step *s = &p->step[step];
    int n = 0;
    if (s->kind != STEP_CALL || !s->kernel || !device_is_host(p->device) ||
        s->node->op->class == CLASS_COLLECTIVE || node_transfers(s->node))
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

static void unmap(void *m)
{
    memory_unmap(m);
}

static char *map_bytes(Arena *tmp, int64_t nbytes)
{
    Memory *m = NEW(tmp, Memory);
    m->nbytes = (nbytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    int why = memory_map(m, 0);
    if (why)
        fail(arena_ctx(tmp), TN_FAIL, "cannot map %lld bytes to time a call: %s",
             (long long)m->nbytes, strerror(why));
    arena_defer(tmp, unmap, m);
    return m->at;
}

static void fill_tensor(Arena *tmp, Tensor *t)
{
    int64_t first, nbytes = span(t, &first) * dtype_size(t->dtype);
    char *at = map_bytes(tmp, nbytes);
    memset(at, t->dtype == BOOL ? 1 : dtype_float(t->dtype) ? 0x3c : 0, (size_t)nbytes);
    t->data = at + first * dtype_size(t->dtype);
}

/* The step's call, with tensors and memory of its own. */
static Call copy_call(Arena *tmp, const Step *s)
{
    Call c = s->call;
    c.in = NEWN(tmp, Tensor, c.nin + 1);
    c.out = NEWN(tmp, Tensor, c.nout + 1);
    for (int i = 0; i < c.nin; i++) {
        c.in[i] = s->call.in[i];
        fill_tensor(tmp, &c.in[i]);
    }
    for (int k = 0; k < c.nout; k++) {
        int under = under_result(s, k);
        c.out[k] = s->call.out[k];
        if (under >= 0)
            c.out[k].data = c.in[under].data;
        else
            fill_tensor(tmp, &c.out[k]);
    }
    return c;
}

/* ---- times ---- */

typedef struct Timed {
    Call call;
    double sec[MOST_TURNS], least;
    int n;
    bool out; /* is not run again */
} Timed;

static void make_ready(Arena *tmp, const Call *c, const WayTime *way, Timed *t)
{
    t->call = *c;
    kernel_prepare(way->kernel, &t->call, tmp);
    t->call.work = t->call.nbytes_work ? map_bytes(tmp, t->call.nbytes_work) : NULL;
}

/* Seconds of one run, -1 where it failed. */
static double run_once(const WayTime *way, Timed *t, double (*clock)(void))
{
    double start = clock();
    if (way->kernel->run(&t->call)) {
        t->out = true;
        return -1;
    }
    return clock() - start;
}

static void count_run(Timed *t, double sec)
{
    t->sec[t->n] = sec;
    t->least = t->n++ ? MIN(t->least, sec) : sec;
}

static void warm_up(const WayTime *way, Timed *t, double (*clock)(void))
{
    double sec = run_once(way, t, clock);
    if (sec >= SHORT_RUN)
        count_run(t, sec);
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

static void take_turns(const WayTime *way, Timed *t, int n, double most, double (*clock)(void))
{
    double start = clock();
    for (int i = 0; i < n; i++)
        warm_up(&way[i], &t[i], clock);
    for (int turn = 0; turn < MOST_TURNS - 1; turn++) {
        for (int i = 0; i < n; i++) {
            double sec = t[i].out ? -1 : run_once(&way[i], &t[i], clock);
            if (sec >= 0)
                count_run(&t[i], sec);
        }
        if (clock() - start > most)
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
    Call c = copy_call(tmp, &p->step[step]);
    Timed *t = NEWN(tmp, Timed, n);
    par_set_threads(p->nthread);
    for (int i = 0; i < n; i++)
        make_ready(tmp, &c, &way[i], &t[i]);
    signals_hold(&mask);
    take_turns(way, t, n, most, clock);
    signals_release(&mask);
    par_set_threads(before);
    for (int i = 0; i < n; i++) {
        way[i].sec = t[i].n ? median_sec(t[i].sec, t[i].n) : -1;
        way[i].runs = t[i].n;
    }
    return n;
}
