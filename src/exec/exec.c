/* The executor: runs a plan's steps in order, in one mapped arena between two guard zones. A loop's
 * END jumps back to its LOOP; each argument's address is its offset plus, for each enclosing loop,
 * a stride times the iteration. Checks, if on, follow every step: buffers that died are filled with
 * NaN, guards must be whole, and the first result that is not finite is remembered. A run allocates
 * nothing. */
#include "exec.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { GUARD = 65536, GUARD_BYTE = 0xA5, POISON = 0xFF };

/* ---- making ---- */

static void unmap(void *arg)
{
    Program *x = arg;
    munmap(x->mapped, x->nmapped);
}

/* Sorts storages by the step after which they die (counting sort). */
static void fill_dying(Program *x, Arena *a)
{
    const Plan *p = x->plan;
    x->dying_at = NEWN(a, int, p->nstep + 2);
    x->dying = NEWN(a, int, p->nstorage);
    for (int i = 0; i < p->nstorage; i++)
        x->dying_at[p->storage[i].end + 1]++;
    for (int i = 0; i <= p->nstep; i++)
        x->dying_at[i + 1] += x->dying_at[i];
    int *next = NEWN(a, int, p->nstep + 2);
    memcpy(next, x->dying_at, sizeof *next * (size_t)(p->nstep + 2));
    for (int i = 0; i < p->nstorage; i++)
        x->dying[next[p->storage[i].end]++] = i;
}

static const PlanPort *find(const PlanPort *p, int count, Role role, const char *name)
{
    for (int i = 0; i < count; i++)
        if (p[i].role == role && (!name || (p[i].name && !strcmp(p[i].name, name))))
            return &p[i];
    return NULL;
}

/* Bytes that the system can give without swapping, -1 if it does not say. */
static int64_t available_bytes(void)
{
    char line[100];
    long long kib = -1;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && kib < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = -1;
    if (f)
        fclose(f);
    return kib < 0 ? -1 : kib * 1024;
}

_Noreturn static void fail_mapping(Arena *a, const Plan *p, int64_t nbytes, int why)
{
    struct rlimit space;
    int64_t available = available_bytes();
    Buf plan = {.a = a}, b = {.a = a};
    if (available >= 0)
        buf_printf(&b, "; available are %lld", (long long)available);
    if (!getrlimit(RLIMIT_AS, &space) && space.rlim_cur != RLIM_INFINITY)
        buf_printf(&b, "; the address space is limited to %lld", (long long)space.rlim_cur);
    plan_print(&plan, p);
    for (char *line = strtok(plan.text, "\n"); line; line = strtok(NULL, "\n"))
        buf_printf(&b, "\n  %s", line);
    fail(p->g->ctx, why == ENOMEM ? TN_FIT : TN_FAIL,
         "cannot map an arena: asked for %lld bytes: %s%s", (long long)nbytes, strerror(why),
         b.text);
}

static Program *new_program(Arena *a, Plan *p)
{
    Program *x = NEW(a, Program);
    x->plan = p;
    char *memory = arena_alloc(a, PLAN_ALIGN * ((size_t)p->nin + 1));
    x->scalar = memory + PLAN_ALIGN - (uintptr_t)memory % PLAN_ALIGN;
    return x;
}

Program *program_make(Arena *a, Plan *p, bool check, int64_t nbytes)
{
    Program *x = new_program(a, p);
    x->nbytes = MAX(nbytes, p->peak);
    x->nmapped = (size_t)x->nbytes + 2 * GUARD;
    x->mapped = mmap(NULL, x->nmapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (x->mapped == MAP_FAILED)
        fail_mapping(a, p, (int64_t)x->nmapped, errno);
    arena_defer(a, unmap, x);
#ifdef MADV_HUGEPAGE /* one core reads up to twice as fast; where there are none, as before */
    madvise(x->mapped, x->nmapped, MADV_HUGEPAGE);
#endif
    x->arena = x->mapped + GUARD;
    if (check)
        program_check(x, a, true);
    return x;
}

void program_check(Program *x, Arena *a, bool on)
{
    x->check = on && x->mapped;
    if (!x->check || x->dying)
        return;
    fill_dying(x, a);
    memset(x->mapped, GUARD_BYTE, GUARD);
    memset(x->arena + x->nbytes, GUARD_BYTE, GUARD);
}

/* The persistent inputs of p must lie where the host has them. */
static void check_shared(const Plan *p, const Program *host)
{
    const Plan *q = host->plan;
    Ctx *ctx = p->g->ctx;
    if (p->peak > host->nbytes)
        fail(ctx, TN_FIT, "the arena to be shared has %lld bytes, the plan needs %lld",
             (long long)host->nbytes, (long long)p->peak);
    for (int i = 0; i < p->nin; i++) {
        const Storage *s = &p->storage[p->in[i].storage];
        if (!s->persistent)
            continue;
        const PlanPort *same = find(q->in, q->nin, p->in[i].role, p->in[i].name);
        if (!same && p->in[i].role == ROLE_CACHE && s->offset >= q->persistent_nbytes)
            continue; /* of its own */
        if (!same || q->storage[same->storage].offset != s->offset ||
            !type_equal(&same->type, &p->in[i].type))
            fail(ctx, TN_FAIL, "the plans do not share \"%s\"", p->in[i].name);
    }
    if (p->storage && q->persistent_nbytes > p->persistent_nbytes && p->nstep)
        fail(ctx, TN_FAIL, "the plan does not keep the persistent part of the arena to be shared");
}

Program *program_share(Arena *a, Plan *p, Program *host)
{
    check_shared(p, host);
    Program *x = new_program(a, p);
    x->arena = host->arena;
    x->nbytes = host->nbytes;
    return x;
}

static char *place_of(const Program *x, const PlanPort *port)
{
    return x->arena + x->plan->storage[port->storage].offset;
}

static bool set_once(Role r) /* no output has such a role */
{
    return role_scalar(r) || r == ROLE_SEED;
}

void *program_data(const Program *x, const PlanPort *port)
{
    return set_once(port->role) ? x->scalar + PLAN_ALIGN * (port - x->plan->in) : place_of(x, port);
}

static void copy_scalars(Program *x)
{
    for (int i = 0; i < x->plan->nin; i++) {
        const PlanPort *in = &x->plan->in[i];
        if (set_once(in->role))
            memcpy(place_of(x, in), program_data(x, in), (size_t)type_nbytes(&in->type));
    }
}

const PlanPort *program_find_input(const Program *x, Role role, const char *name)
{
    return find(x->plan->in, x->plan->nin, role, name);
}

const PlanPort *program_find_output(const Program *x, Role role, const char *name)
{
    return find(x->plan->out, x->plan->nout, role, name);
}

/* ---- checks ---- */

static bool all_bytes(const char *p, int64_t n, uint8_t byte)
{
    return n <= 0 || ((uint8_t)p[0] == byte && !memcmp(p, p + 1, (size_t)n - 1));
}

static bool all_finite(const Tensor *t)
{
    int64_t ix[TN_RANK] = {0};
    if (!dtype_float(t->dtype) || !tensor_nelem(t))
        return true;
    do {
        if (!isfinite(tensor_get(t, tensor_index(t, ix))))
            return false;
    } while (next_index(t->rank, t->dim, ix));
    return true;
}

/* Whether a result that is not finite is intended: a constant, such as the -inf of a mask, or a
 * copy of one. The node of a copy that the planner added has no operands; its source was checked.
 */
static bool is_meant(const Node *n)
{
    while (n->nin && (n->op->view || n->op->copy) && n->in[0]->def)
        n = n->in[0]->def;
    bool constant = node_is(n, OP_full) && !isfinite(n->attr[attr_index(n->op, "fill_value")].f);
    return constant || (!n->nin && n->op->copy);
}

static void poison(Program *x, int storage)
{
    const Storage *s = &x->plan->storage[storage];
    if (!s->persistent && s->end > s->start)
        memset(x->arena + s->offset, POISON, (size_t)s->nbytes);
}

/* Checks after a step: results are finite, guards are whole; buffers that died are poisoned (not at
 * an END that jumped back: what the loop reads is alive). */
static int check_step(Program *x, int i, bool jumped)
{
    const Step *s = &x->plan->step[i];
    if (s->kind == STEP_CALL && !x->not_finite)
        for (int k = 0; k < s->call.nout; k++)
            if (!all_finite(&s->call.out[k]) && !is_meant(s->node))
                x->not_finite = s->node;
    for (int k = x->dying_at[i + 1]; !jumped && i + 1 < x->plan->nstep && k < x->dying_at[i + 2];
         k++)
        poison(x, x->dying[k]);
    if (all_bytes(x->mapped, GUARD, GUARD_BYTE) &&
        all_bytes(x->arena + x->nbytes, GUARD, GUARD_BYTE))
        return 0;
    snprintf(x->message, sizeof x->message, "%s %%%s wrote outside of the arena",
             s->node ? s->node->op->name : "?",
             s->node && s->node->nout ? s->node->out[0]->name : "?");
    return -1;
}

/* ---- running ---- */

typedef struct Loops {
    int64_t iteration[TN_MAX_DEPTH], left[TN_MAX_DEPTH];
} Loops;

static char *address(const Program *x, const Arg *a, const Loops *t)
{
    int64_t at = x->plan->storage[a->storage].offset + a->offset;
    for (int d = 0; d < TN_MAX_DEPTH; d++)
        at += a->loop_stride[d] * t->iteration[d];
    return x->arena + at;
}

static int call(Program *x, Step *s, const Loops *t)
{
    Call *c = &s->call;
    for (int i = 0; i < c->nin; i++)
        c->in[i].data = address(x, &s->arg[i], t);
    for (int k = 0; k < c->nout; k++)
        c->out[k].data = address(x, &s->arg[c->nin + k], t);
    c->work = s->work < 0 ? NULL : x->arena + x->plan->storage[s->work].offset;
    int bad = s->kernel ? s->kernel->run(c) : s->node->op->rules->ref(c);
    if (!bad)
        return 0;
    snprintf(x->message, sizeof x->message, "%s%s%s: %.200s", s->node->op->name,
             s->node->nout ? " %" : "", s->node->nout ? s->node->out[0]->name : "", c->message);
    return -1;
}

static int run_step(Program *x, int *i, Loops *t)
{
    Step *s = &x->plan->step[*i];
    switch (s->kind) {
    case STEP_CALL: return call(x, s, t);
    case STEP_LOOP:
        t->iteration[s->depth] = s->first;
        t->left[s->depth] = s->count;
        return 0;
    case STEP_END:
        if (--t->left[s->depth] > 0) {
            t->iteration[s->depth] += x->plan->step[s->end].by;
            *i = s->end;
        } else {
            t->iteration[s->depth] = 0;
        }
        return 0;
    case STEP_ZERO: memset(address(x, s->arg, t), 0, (size_t)s->nbytes); return 0;
    case STEP_OFFSET: {
        int64_t offset = t->iteration[s->depth] * s->by;
        memcpy(address(x, s->arg, t), &offset, sizeof offset);
        return 0;
    }
    }
    return 0;
}

int program_run(Program *x)
{
    Loops t = {{0}, {0}};
    bool traced = trace_begin(x->trace);
    x->not_finite = NULL;
    copy_scalars(x);
    for (int i = 0; i < x->plan->nstep; i++) {
        int at = i;
        double start = traced ? trace_now(x->trace) : 0;
        int64_t iteration = t.iteration[x->plan->step[i].depth];
        if (run_step(x, &i, &t))
            return -1;
        if (traced)
            trace_step(x->trace, x->plan, at, iteration, i != at, start);
        if (x->check && check_step(x, at, i != at))
            return -1;
    }
    if (traced)
        trace_end(x->trace);
    return 0;
}

/* ---- measuring ---- */

void program_fill(Program *x, uint8_t pattern)
{
    memset(x->arena + x->plan->persistent_nbytes, pattern,
           (size_t)(x->nbytes - x->plan->persistent_nbytes));
}

int64_t program_high(const Program *x, uint8_t pattern)
{
    int64_t line = x->nbytes;
    while (line > x->plan->persistent_nbytes &&
           all_bytes(x->arena + line - PLAN_ALIGN, PLAN_ALIGN, pattern))
        line -= PLAN_ALIGN;
    return line;
}

/* Of this process alone: getrusage's figure starts at the peak of the parent process. */
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
