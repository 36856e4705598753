/* Runs kernels of CUDA on the processor (simt.h). Each thread of a block has a stack of its own; it
 * runs until it waits or ends, then the next does. Where all that are left wait for one another for
 * ever, the program ends and says where they are.
 *
 * Shared memory is thread-local storage of the program (static arrays) and one buffer (dynamic);
 * both are filled with 0xff before a block, and what the program had there is put back at the end.
 */
#define _GNU_SOURCE
#include "simt.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

enum { LANES = 32, MOST = 1024, STACK = 256 << 10, MOST_SHARED = 227 << 10 };

typedef enum { RUNS, AT_BARRIER, IN_WARP, ENDED } State;

/* Where a stack was left. */
typedef struct Place {
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t at;
#endif
    const void *bottom; /* for AddressSanitizer */
    size_t size;
    void *fake;
} Place;

typedef struct Thread {
    Place place;
    SimtIndex index;
    State state;
    int vote;
    /* Of the exchange it is in: */
    unsigned mask;
    int kind, nbytes;
    char mine[SIMT_BYTES];
    struct Group *group; /* whose results it may still read */
} Thread;

/* Results of an exchange, until none of its lanes may read them. */
typedef struct Group {
    unsigned readers;
    char slot[LANES * SIMT_BYTES] __attribute__((aligned(16)));
} Group;

static struct {
    Thread thread[MOST];
    Group group[MOST]; /* 32 for each warp: each lane holds one at most */
    Place host;
    char *stacks;
    char shared[MOST_SHARED] __attribute__((aligned(128)));
    int count, live, arrived, now, order;
    SimtVotes coming, votes;
    const char *name;
    void (*fn)(void *arg);
    void *arg;
    uint32_t random;
} s;

SimtIndex threadIdx, blockIdx, blockDim, gridDim;
long simt_natomic, simt_nlaunch;

/* ---- changing stacks ---- */

#ifdef __x86_64__
/* Leaves the registers that a function keeps on this stack, its pointer in *from, and goes on with
 * the stack `to`. */
void simt_switch(void **from, void *to);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".hidden simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size simt_switch, .-simt_switch\n");
#endif

static void go(Place *from, Place *to, bool last)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake, to->bottom, to->size);
#else
    (void)last;
#endif
#ifdef __x86_64__
    simt_switch(&from->sp, to->sp);
#else
    swapcontext(&from->at, &to->at);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

static void thread_main(void);

static void thread_start(int i)
{
    Thread *t = &s.thread[i];
    char *stack = s.stacks + (size_t)i * STACK;
    unsigned x = blockDim.x, n = (unsigned)i;
    *t = (Thread){.index = {n % x, n / x % blockDim.y, n / x / blockDim.y}};
    t->place.bottom = stack;
    t->place.size = STACK;
#ifdef __x86_64__
    void **sp = (void **)(void *)(stack + STACK) - 1; /* as behind a call: 8 beside 16 */
    *--sp = (void *)(uintptr_t)thread_main;
    t->place.sp = memset(sp - 6, 0, 6 * sizeof *sp);
#else
    getcontext(&t->place.at);
    t->place.at.uc_stack.ss_sp = stack;
    t->place.at.uc_stack.ss_size = STACK;
    makecontext(&t->place.at, thread_main, 0);
#endif
}

/* ---- waiting ---- */

_Noreturn static void wrong(const char *what)
{
    printf("kernel %s, block (%u, %u, %u): %s\n", s.name, blockIdx.x, blockIdx.y, blockIdx.z, what);
    fflush(stdout);
    abort();
}

static void wait_as(State state)
{
    Thread *t = &s.thread[s.now];
    t->state = state;
    go(&t->place, &s.host, state == ENDED);
}

static void release_barrier(void)
{
    if (!s.live || s.arrived < s.live)
        return;
    s.votes = s.coming;
    s.coming = (SimtVotes){.all = 1};
    s.arrived = 0;
    for (int i = 0; i < s.count; i++)
        if (s.thread[i].state == AT_BARRIER)
            s.thread[i].state = RUNS;
}

SimtVotes simt_barrier(int vote)
{
    s.arrived++;
    s.coming.any |= vote != 0;
    s.coming.all &= vote != 0;
    s.coming.count += vote != 0;
    s.thread[s.now].state = AT_BARRIER;
    release_barrier();
    if (s.thread[s.now].state == AT_BARRIER)
        wait_as(AT_BARRIER);
    return s.votes;
}

static Group *free_group(int warp)
{
    Group *g = &s.group[warp * LANES];
    while (g->readers)
        g++;
    return g;
}

/* Lets the lanes of t's exchange go on where all of them are there. */
static bool release_lanes(const Thread *t)
{
    int first = (int)(t - s.thread) / LANES * LANES;
    unsigned there = 0;
    for (int i = first; i < MIN(first + LANES, s.count); i++) {
        const Thread *u = &s.thread[i];
        if (!(t->mask >> (i - first) & 1) || u->state == ENDED)
            continue;
        if (u->state != IN_WARP || u->mask != t->mask || u->kind != t->kind ||
            u->nbytes != t->nbytes)
            return false;
        there |= 1u << (i - first);
    }
    Group *g = free_group(first / LANES);
    g->readers = there;
    memset(g->slot, 0xff, (size_t)(LANES * t->nbytes));
    for (int i = 0; i < LANES; i++)
        if (there >> i & 1) {
            Thread *u = &s.thread[first + i];
            memcpy(g->slot + i * t->nbytes, u->mine, (size_t)t->nbytes);
            u->group = g;
            u->state = RUNS;
        }
    return true;
}

static void leave_group(Thread *t)
{
    if (t->group)
        t->group->readers &= ~(1u << simt_lane());
    t->group = NULL;
}

const char *simt_exchange(unsigned mask, int kind, const void *mine, int nbytes)
{
    Thread *t = &s.thread[s.now];
    leave_group(t);
    if (!(mask >> simt_lane() & 1))
        wrong("a lane that is not in its own mask");
    t->mask = mask;
    t->kind = kind;
    t->nbytes = nbytes;
    memcpy(t->mine, mine, (size_t)nbytes);
    t->state = IN_WARP;
    if (!release_lanes(t))
        wait_as(IN_WARP);
    return t->group->slot;
}

unsigned simt_active(void)
{
    int first = s.now / LANES * LANES;
    unsigned mask = 0;
    for (int i = first; i < MIN(first + LANES, s.count); i++)
        mask |= (unsigned)(s.thread[i].state != ENDED) << (i - first);
    return mask;
}

int simt_lane(void)
{
    return s.now % LANES;
}

char *simt_shared(void)
{
    return s.shared;
}

/* ---- one block ---- */

/* Those that waited for this one wait no more. */
static void end_thread(void)
{
    int first = s.now / LANES * LANES;
    leave_group(&s.thread[s.now]);
    s.thread[s.now].state = ENDED;
    s.live--;
    release_barrier();
    for (int i = first; i < MIN(first + LANES, s.count); i++)
        if (s.thread[i].state == IN_WARP)
            release_lanes(&s.thread[i]);
}

static void thread_main(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &s.host.bottom, &s.host.size);
#endif
    s.fn(s.arg);
    end_thread();
    wait_as(ENDED);
    abort();
}

_Noreturn static void stuck(void)
{
    char text[200];
    int barrier = 0, warp = 0, first = -1;
    for (int i = 0; i < s.count; i++) {
        barrier += s.thread[i].state == AT_BARRIER;
        warp += s.thread[i].state == IN_WARP;
        if (first < 0 && s.thread[i].state == IN_WARP)
            first = i;
    }
    snprintf(text, sizeof text,
             "of %d threads %d wait for ever at __syncthreads(), %d for lanes of their warp (the "
             "first is %d, mask 0x%x), %d have ended",
             s.count, barrier, warp, first, first < 0 ? 0 : s.thread[first].mask, s.count - s.live);
    wrong(text);
}

static uint32_t next_random(void)
{
    s.random ^= s.random << 13;
    s.random ^= s.random >> 17;
    s.random ^= s.random << 5;
    return s.random;
}

static void run_block(void)
{
    static int turn[MOST];
    s.live = s.count;
    s.arrived = 0;
    s.coming = (SimtVotes){.all = 1};
    for (int i = 0; i < s.count; i++) {
        thread_start(i);
        turn[i] = s.order == SIMT_BACKWARD ? s.count - 1 - i : i;
    }
    for (int i = s.count - 1; i > 0 && s.order == SIMT_SHUFFLED; i--) {
        int j = (int)(next_random() % (unsigned)(i + 1)), x = turn[i];
        turn[i] = turn[j];
        turn[j] = x;
    }
    while (s.live) {
        bool ran = false;
        for (int i = 0; i < s.count; i++) {
            Thread *t = &s.thread[turn[i]];
            if (t->state != RUNS)
                continue;
            ran = true;
            s.now = turn[i];
            threadIdx = t->index;
            go(&s.host, &t->place, false);
        }
        if (!ran)
            stuck();
    }
}

/* ---- one launch ---- */

/* The program's thread-local storage. */
typedef struct Local {
    char *data;
    size_t size;
} Local;

static int find_local(struct dl_phdr_info *info, size_t size, void *to)
{
    Local *l = to;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *l = (Local){info->dlpi_tls_data, info->dlpi_phdr[i].p_memsz};
    return 1; /* the first is the program */
}

static void check_launch(size_t nbytes_shared)
{
    if ((uint64_t)blockDim.x * blockDim.y * blockDim.z > MOST || blockDim.z > 64 || !s.count)
        wrong("a block of none or more than 1024 threads");
    if (gridDim.x > INT32_MAX || gridDim.y > 65535 || gridDim.z > 65535)
        wrong("too large a grid");
    if (nbytes_shared > MOST_SHARED)
        wrong("too much shared memory");
}

void simt_order(int order)
{
    s.order = order;
}

void simt_run(SimtIndex grid, SimtIndex block, size_t nbytes_shared, const char *name,
              void (*fn)(void *arg), void *arg)
{
    Local l = {0};
    int64_t count = (int64_t)grid.x * grid.y * grid.z;
    simt_nlaunch++;
    if (!s.stacks)
        s.stacks = mmap(NULL, (size_t)MOST * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(s.stacks != MAP_FAILED);
    gridDim = grid;
    blockDim = block;
    s.count = (int)(block.x * block.y * block.z);
    s.name = name;
    s.fn = fn;
    s.arg = arg;
    s.random = 1;
    check_launch(nbytes_shared);
    dl_iterate_phdr(find_local, &l);
    if (!l.size) /* no kernel has static arrays */
        l.data = (char *)&l;
    char *before = malloc(l.size + 1);
    CHECK(before);
    memcpy(before, l.data, l.size);
    for (int64_t i = 0; i < count; i++) {
        uint64_t b = (uint64_t)(s.order == SIMT_BACKWARD ? count - 1 - i : i);
        blockIdx.x = (unsigned)(b % grid.x);
        blockIdx.y = (unsigned)(b / grid.x % grid.y);
        blockIdx.z = (unsigned)(b / grid.x / grid.y);
        memset(l.data, 0xff, l.size);
        memset(s.shared, 0xff, nbytes_shared);
        run_block();
    }
    memcpy(l.data, before, l.size);
    free(before);
}
