/* Programs: making one, alone or in another's arena; its inputs and outputs; measuring its arenas.
 * Whatever touches an arena is work for the device's queue, for which the caller waits. */
#include "exec.h"
#include "../page/page.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* ---- making ---- */

static const PlanPort *find(const PlanPort *p, int count, Role role, const char *name)
{
    for (int i = 0; i < count; i++)
        if (p[i].role == role && (!name || (p[i].name && !strcmp(p[i].name, name))))
            return &p[i];
    return NULL;
}

/* The most bytes of an arena that can be mapped where so many cannot, to a thousandth of them; of
 * a device what it says is free, as a trial there would take its time. */
static int64_t find_most(const Plan *p, int64_t nbytes)
{
    const Driver *d = driver_of(p->device);
    int64_t good = 0, bad = nbytes;
    if (!device_is_host(p->device))
        return d->available();
    while (bad - good > MAX(good / 1000, (int64_t)PLAN_ALIGN)) {
        Memory m = {.space = SPACE_MAIN, .number = p->number, .nbytes = good + (bad - good) / 2};
        m.nbytes = m.nbytes / PLAN_ALIGN * PLAN_ALIGN;
        if (d->map(&m)) {
            bad = m.nbytes;
        } else {
            d->unmap(&m);
            good = m.nbytes;
        }
    }
    return good;
}

_Noreturn static void fail_mapping(Arena *a, const Plan *p, int64_t nbytes, int why)
{
    struct rlimit limit;
    int64_t available = driver_of(p->device)->available();
    int64_t most = why == ENOMEM ? find_most(p, nbytes) : -1;
    Buf plan = {.a = a}, b = {.a = a};
    if (most >= 0)
        buf_printf(&b, "; what could be mapped is %lld", (long long)most);
    if (available >= 0)
        buf_printf(&b, "; available are %lld", (long long)available);
    if (device_is_host(p->device) && !getrlimit(RLIMIT_AS, &limit) &&
        limit.rlim_cur != RLIM_INFINITY)
        buf_printf(&b, "; the address space is limited to %lld", (long long)limit.rlim_cur);
    plan_print(&plan, p);
    char *rest;
    for (char *line = strtok_r(plan.text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        buf_printf(&b, "\n  %s", line);
    static const char format[] = "cannot map an arena: asked for %lld bytes: %s%s";
    if (why != ENOMEM)
        fail(p->g->ctx, TN_FAIL, format, (long long)nbytes, strerror(why), b.text);
    Misfit m = {.limit = MAX(most, 0), .mapped = true, .peak = nbytes, .reserve = p->reserve};
    m.least = m.peak + m.reserve;
    fail_misfit(p->g->ctx, &m, format, (long long)nbytes, strerror(why), b.text);
}

/* Calls of the program's own, made ready with the number of threads that runs will have. */
static void make_calls(Program *x, Arena *a)
{
    const Plan *p = x->plan;
    int before = par_threads();
    x->call = NEWN(a, Call, p->nstep);
    par_set_threads(p->nthread);
    for (int i = 0; i < p->nstep; i++) {
        const Step *s = &p->step[i];
        Call *c = &x->call[i];
        if (s->kind != STEP_CALL)
            continue;
        *c = s->call;
        c->in = NEWN(a, Tensor, c->nin);
        c->out = NEWN(a, Tensor, c->nout);
        memcpy(c->in, s->call.in, sizeof *c->in * (size_t)c->nin);
        memcpy(c->out, s->call.out, sizeof *c->out * (size_t)c->nout);
        if (s->kernel && s->kernel->prepare)
            s->kernel->prepare(c, a);
    }
    par_set_threads(before);
}

static void make_events(Program *x, Arena *a)
{
    const Plan *p = x->plan;
    x->event = NEWN(a, Event, p->nstep + 1);
    for (int i = 0; i <= p->nstep && x->driver->event; i++)
        if (i == p->nstep || p->step[i].awaited)
            x->driver->event(a, &x->event[i]);
}

static void touch(void *arg, int step, int storage, ByteRange b, bool write)
{
    uint64_t *high = arg;
    (void)step;
    (void)write;
    high[storage] = MAX(high[storage], b.high);
}

/* By storage: the bytes from its start to the last that steps touch, as an output may lie where a
 * larger value was before it. */
static uint64_t *storage_reach(Arena *a, const Plan *p)
{
    uint64_t *reach = NEWN(a, uint64_t, p->nstorage + 1);
    plan_each_access(p, touch, reach);
    for (int i = 0; i < p->nstorage; i++) {
        const Arg all = {.storage = i};
        reach[i] -= MIN(reach[i], arg_bytes(p, &all, NULL, 0, NULL, 0).low);
    }
    return reach;
}

static Program *new_program(Arena *a, const Plan *p)
{
    Program *x = NEW(a, Program);
    x->plan = p;
    x->driver = driver_of(p->device);
    if (x->driver->ready)
        x->driver->ready(arena_ctx(a), p->number);
    make_calls(x, a);
    join_prepare(x, a);
    make_events(x, a);
    int64_t nscalar = PLAN_ALIGN * ((int64_t)p->nin + 1);
    char *memory = x->driver->host_memory ? x->driver->host_memory(a, nscalar)
                                          : arena_alloc(a, (size_t)nscalar);
    x->scalar = memory + PLAN_ALIGN - (uintptr_t)memory % PLAN_ALIGN;
    x->bound = NEWN(a, char *, p->nstorage + 1);
    x->reach = storage_reach(a, p);
    x->recording = x->driver->recorder ? x->driver->recorder->make(a) : NULL;
    return x;
}

static void use_memory(Program *x, Space space, Memory *m)
{
    x->memory[space] = m;
    x->base[space] = m->work_at;
}

/* Refuses the arena in the host's memory, where that is another space. */
_Noreturn static void fail_host(Arena *a, const Plan *p, int64_t nbytes, int64_t available, int why)
{
    Buf b = {.a = a};
    if (available >= 0)
        buf_printf(&b, "; available are %lld", (long long)available);
    fail(
        p->g->ctx, why == ENOMEM ? TN_FIT : TN_FAIL,
        "cannot map an arena in the host's memory: asked for %lld bytes, of them %lld of optimizer "
        "state: %s%s",
        (long long)nbytes, (long long)p->space[SPACE_HOST].persistent, strerror(why),
        b.len ? b.text : "");
}

/* Memory that a system promises may not be there when it is touched, so it is asked before where
 * all of it will be: of state. */
static void map_host(Program *x, Arena *a, int64_t nbytes)
{
    const int64_t available = memory_available();
    if (x->plan->space[SPACE_HOST].persistent && available >= 0 && nbytes > available)
        fail_host(a, x->plan, nbytes, available, ENOMEM);
    Memory *m = NEW(a, Memory);
    *m = (Memory){.space = SPACE_HOST, .number = x->plan->number, .nbytes = nbytes};
    int why = memory_own(a, x->driver, m);
    if (why)
        fail_host(a, x->plan, nbytes, available, why);
    use_memory(x, SPACE_HOST, m);
}

static void map_main(Program *x, Arena *a, int64_t nbytes)
{
    Memory *m = NEW(a, Memory);
    *m = (Memory){.space = SPACE_MAIN, .number = x->plan->number, .nbytes = nbytes};
    int why = memory_own(a, x->driver, m);
    if (why)
        fail_mapping(a, x->plan, nbytes + 2 * GUARD, why);
    use_memory(x, SPACE_MAIN, m);
}

Program *program_make(Arena *a, const Plan *p, bool check, int64_t nbytes)
{
    Program *x = new_program(a, p);
    nbytes = MAX(nbytes, p->space[SPACE_MAIN].peak);
    map_main(x, a, (nbytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN);
    if (p->space[SPACE_HOST].peak)
        map_host(x, a, p->space[SPACE_HOST].peak);
    x->queues = x->driver->open(a, p->number);
    if (check)
        program_check(x, a, true);
    return x;
}

void program_check(Program *x, Arena *a, bool on)
{
    x->check = on && !x->host;
    if (x->check && !x->dying_at)
        check_prepare(x, a);
}

/* The persistent inputs of p must lie where the host has them. */
static void check_shared(const Plan *p, const Program *host)
{
    const Plan *q = host->plan;
    Ctx *ctx = p->g->ctx;
    int64_t nbytes = host->memory[SPACE_MAIN]->nbytes;
    if (p->device != q->device || p->number != q->number)
        fail(ctx, TN_FAIL, "the arena to be shared is one of %s, the plan is for %s",
             q->device->name, p->device->name);
    if (p->space[SPACE_MAIN].peak > nbytes)
        fail(ctx, TN_FIT, "the arena to be shared has %lld bytes, the plan needs %lld",
             (long long)nbytes, (long long)p->space[SPACE_MAIN].peak);
    for (int i = 0; i < p->nin; i++) {
        const Storage *s = &p->storage[p->in[i].storage];
        if (!s->persistent)
            continue;
        const PlanPort *same = find(q->in, q->nin, p->in[i].role, p->in[i].name);
        if (!same && p->in[i].role == ROLE_CACHE && s->offset >= q->space[s->space].persistent)
            continue; /* of its own */
        if (!same || q->storage[same->storage].offset != s->offset ||
            q->storage[same->storage].space != s->space || !type_equal(&same->type, &p->in[i].type))
            fail(ctx, TN_FAIL, "the plans do not share \"%s\"", p->in[i].name);
    }
    if (p->storage && p->nstep && q->space[SPACE_MAIN].persistent > p->space[SPACE_MAIN].persistent)
        fail(ctx, TN_FAIL, "the plan does not keep the persistent part of the arena to be shared");
}

/* By storage of p: that of q which has the same persistent input, or -1. */
static int *host_storages(Arena *a, const Plan *p, const Plan *q)
{
    int *of = NEWN(a, int, p->nstorage);
    for (int i = 0; i < p->nstorage; i++)
        of[i] = -1;
    for (int i = 0; i < p->nin; i++) {
        const PlanPort *same = find(q->in, q->nin, p->in[i].role, p->in[i].name);
        if (same && p->storage[p->in[i].storage].persistent)
            of[p->in[i].storage] = same->storage;
    }
    return of;
}

/* Whether p runs in the host's memory of another program: there is room, and what persists there
 * stays. Else p has such memory of its own, which nothing that persists allows. */
static bool shares_host(const Plan *p, const Program *host)
{
    const Memory *there = host->memory[SPACE_HOST];
    const PlanSpace *x = &p->space[SPACE_HOST], *y = &host->plan->space[SPACE_HOST];
    bool shares = there && there->nbytes >= x->peak && x->persistent >= y->persistent;
    for (int i = 0; i < p->nin && !shares && x->peak; i++)
        if (p->storage[p->in[i].storage].persistent &&
            p->storage[p->in[i].storage].space == SPACE_HOST)
            fail(p->g->ctx, TN_FIT,
                 "the host's memory to be shared has %lld bytes, the plan needs %lld",
                 there ? (long long)there->nbytes : 0, (long long)x->peak);
    return shares;
}

Program *program_share(Arena *a, const Plan *p, Program *host)
{
    check_shared(p, host);
    Program *x = new_program(a, p);
    x->host = host;
    x->host_storage = host_storages(a, p, host->plan);
    x->queues = host->queues;
    use_memory(x, SPACE_MAIN, host->memory[SPACE_MAIN]);
    if (shares_host(p, host))
        use_memory(x, SPACE_HOST, host->memory[SPACE_HOST]);
    else if (p->space[SPACE_HOST].peak)
        map_host(x, a, p->space[SPACE_HOST].peak);
    return x;
}

/* ---- inputs and outputs ---- */

bool program_on_host(const Program *x, const PlanPort *port)
{
    Space space = x->plan->storage[port->storage].space;
    return port_set_once(port) || x->memory[space]->on_host;
}

void *program_data(const Program *x, const PlanPort *port)
{
    const Storage *s = &x->plan->storage[port->storage];
    if (port_set_once(port))
        return x->scalar + PLAN_ALIGN * (port - x->plan->in);
    char *bound = program_bound(x, port->storage);
    return bound                          ? bound
           : x->memory[s->space]->on_host ? x->memory[s->space]->at + s->offset
                                          : NULL;
}

typedef struct MemoryCopy {
    void *to;
    const void *from;
    int64_t nbytes;
} MemoryCopy;

static int copy(const Work *w, char *message)
{
    (void)message;
    const MemoryCopy *c = w->arg;
    w->x->driver->work->copy(w->stream, c->to, c->from, c->nbytes);
    return 0;
}

/* Has it run on the queue of kernels, and waits for it. */
static int run_alone(Program *x, int (*run)(const Work *w, char *message), void *arg)
{
    x->driver->launch(x->queues, QUEUE_COMPUTE, &(Work){.run = run, .x = x, .arg = arg});
    return x->driver->finish(x->queues, x->message);
}

static int move(Program *x, const PlanPort *port, MemoryCopy c)
{
    if (!port_set_once(port))
        return run_alone(x, copy, &c);
    memcpy(c.to, c.from, (size_t)c.nbytes); /* the program's own memory */
    return 0;
}

/* The address at which work finds it. */
static char *place_of(const Program *x, const PlanPort *port)
{
    return port_set_once(port) ? program_data(x, port) : program_storage(x, port->storage);
}

/* How many inputs and outputs lie in a storage. */
static int count_ports(const Plan *p, int storage)
{
    int n = 0;
    for (int i = 0; i < p->nin + p->nout; i++)
        n += (i < p->nin ? p->in[i] : p->out[i - p->nin]).storage == storage;
    return n;
}

const char *program_bind(Program *x, const PlanPort *port, void *data)
{
    const Plan *p = x->plan;
    const int at = port->storage;
    const bool output = port >= p->out && port < p->out + p->nout;
    if (!device_is_host(p->device) || x->host)
        return "a program of the host's memory, in an arena of its own, is needed";
    if (port_set_once(port))
        return "scalars are written";
    if (!output && !p->storage[at].persistent)
        return "its memory is used again within a step; inputs of the roles param, state, const "
               "and cache stay";
    if ((output && count_ports(p, at) > 1) || x->reach[at] > (uint64_t)type_nbytes(&port->type))
        return "it shares its memory with other values";
    if ((uintptr_t)data % PLAN_ALIGN)
        return "an address of 64 bytes' alignment is needed";
    x->bound[at] = data;
    return NULL;
}

int program_read(Program *x, const PlanPort *port, int64_t at, int64_t nbytes, void *to)
{
    return move(x, port, (MemoryCopy){to, place_of(x, port) + at, nbytes});
}

int program_write(Program *x, const PlanPort *port, int64_t at, int64_t nbytes, const void *from)
{
    return move(x, port, (MemoryCopy){place_of(x, port) + at, from, nbytes});
}

const PlanPort *program_find_input(const Program *x, Role role, const char *name)
{
    return find(x->plan->in, x->plan->nin, role, name);
}

const PlanPort *program_find_output(const Program *x, Role role, const char *name)
{
    return find(x->plan->out, x->plan->nout, role, name);
}

/* ---- measuring ---- */

typedef struct SpaceFill {
    Space space;
    uint8_t byte;
    int64_t high;
} SpaceFill;

/* Bytes of a space before those that runs use anew. */
static int64_t kept(const Program *x, Space space)
{
    return x->plan->space[space].persistent;
}

static int fill_spaces(const Work *w, char *message)
{
    (void)message;
    const SpaceFill *f = w->arg;
    const Program *x = w->x;
    for (int s = 0; s < MAX_SPACE; s++) {
        int64_t from = kept(x, (Space)s);
        if (x->memory[s])
            x->driver->work->fill(w->stream, x->base[s] + from, f->byte,
                                  x->memory[s]->nbytes - from);
    }
    return 0;
}

static int find_high(const Work *w, char *message)
{
    (void)message;
    SpaceFill *f = w->arg;
    const Program *x = w->x;
    int64_t from = kept(x, f->space);
    int64_t n = x->memory[f->space]->nbytes - from;
    f->high = from + x->driver->work->high(w->stream, x->base[f->space] + from, f->byte, n);
    return 0;
}

void program_fill(Program *x, uint8_t pattern)
{
    run_alone(x, fill_spaces, &(SpaceFill){.byte = pattern});
}

int64_t program_high(Program *x, Space space, uint8_t pattern)
{
    SpaceFill f = {.space = space, .byte = pattern};
    if (x->memory[space])
        run_alone(x, find_high, &f);
    return f.high;
}

/* Reads this process's own: getrusage's figure starts at the peak of the parent process. */
int64_t rss_peak_bytes(void)
{
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && !kib && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld kB", &kib) != 1)
            kib = 0;
    if (f)
        fclose(f);
    if (kib)
        return kib * 1024;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}
