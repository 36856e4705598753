/* System calls are caught by a seccomp filter that raises SIGSYS in the caller (prctl(2),
 * seccomp(2): SECCOMP_RET_TRAP), so that those from inside the C library and all others are seen
 * too. The handler does the call itself, with a mark in the sixth argument that the filter lets
 * pass, or gives an error instead. Call stacks are read by backtrace(3). */
#define _GNU_SOURCE
#include "inject.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { MARK = 0x7e404e55, DEPTH = 12 };

static Inject *shared; /* of this process */
static __thread bool inside;

Inject *inject_new(void)
{
    void *frame[4];
    void *p = mmap(NULL, sizeof(Inject), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    backtrace(frame, LEN(frame)); /* loads what it needs */
    return p == MAP_FAILED ? NULL : p;
}

/* ---- sites ---- */

static void fill_owner(char *owner, size_t size, void *frame)
{
    Dl_info info;
    const char *path = dladdr(frame, &info) && info.dli_fname ? info.dli_fname : "";
    const char *slash = strrchr(path, '/');
    snprintf(owner, size, "%s", slash ? slash + 1 : path);
}

/* What allocates and calls on behalf of others. */
static bool beneath(const char *owner)
{
    static const char *const names[] = {"libc.so", "ld-linux", "libstdc++.so", "libgcc_s.so"};
    for (int i = 0; i < LEN(names); i++)
        if (!strncmp(owner, names[i], strlen(names[i])))
            return true;
    return !*owner;
}

static void find_owner(InjectSite *s, int skip)
{
    for (int i = skip; i < s->nframe && beneath(s->owner); i++)
        fill_owner(s->owner, sizeof s->owner, s->frame[i]);
}

#ifdef TN_SANITIZE

static void catch_deaths(void)
{
    /* sanitizers tell of them */
}

#else

static void on_death(int signal_number)
{
    InjectSite *s = &shared->death;
    inside = true;
    s->nframe = backtrace(s->frame, INJECT_FRAMES);
    find_owner(s, 2);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Records where the process dies. */
static void catch_deaths(void)
{
    static const int deaths[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
    for (int i = 0; i < LEN(deaths); i++)
        signal(deaths[i], on_death);
}

#endif

/* Records the event where no other came by the same way. `skip` frames are of this file. */
static void record(Inject *x, int skip, int call, int fd)
{
    void *frame[INJECT_FRAMES];
    int n = backtrace(frame, INJECT_FRAMES);
    uint64_t hash = hash_bytes(frame, sizeof *frame * (size_t)MIN(n, DEPTH), (uint64_t)call);
    uint32_t at = (uint32_t)hash % LEN(x->slot);
    for (; x->slot[at]; at = (at + 1) % LEN(x->slot))
        if (x->site[x->slot[at] - 1].hash == hash)
            return;
    if (x->nsite == INJECT_SITES)
        return;
    InjectSite *s = &x->site[x->nsite++];
    x->slot[at] = x->nsite;
    *s = (InjectSite){.hash = hash, .first = x->count, .call = call, .fd = fd, .nframe = n};
    memcpy(s->frame, frame, sizeof frame);
    find_owner(s, skip);
}

/* Counts an event; whether it is the one that fails. */
static bool count(Inject *x, int skip, int call, int fd)
{
    int64_t n = __atomic_add_fetch(&x->count, 1, __ATOMIC_RELAXED);
    if (!x->at)
        record(x, skip, call, fd);
    if (n != x->at)
        return false;
    x->failed = (InjectSite){.first = n, .call = call, .fd = fd};
    x->failed.nframe = backtrace(x->failed.frame, INJECT_FRAMES);
    find_owner(&x->failed, skip);
    x->fired = true;
    return true;
}

bool inject_allocation(void)
{
    Inject *x = shared;
    if (!x || !x->on || x->kind != INJECT_ALLOC || inside)
        return false;
    inside = true;
    bool refuse = count(x, 3, -1, -1);
    inside = false;
    if (refuse)
        errno = ENOMEM;
    return refuse;
}

/* ---- system calls ---- */

#if defined(__x86_64__) || defined(__aarch64__)

static const struct {
    int number, error;
    bool moves; /* bytes, as many as the third argument says */
} calls[] = {
    {SYS_write, ENOSPC, true},    {SYS_pwrite64, ENOSPC, true},   {SYS_writev, ENOSPC, false},
    {SYS_read, EIO, true},        {SYS_pread64, EIO, true},       {SYS_fsync, EIO, false},
    {SYS_fdatasync, EIO, false},  {SYS_openat, EMFILE, false},    {SYS_close, EIO, false},
    {SYS_mkdirat, ENOSPC, false}, {SYS_renameat2, ENOSPC, false}, {SYS_symlinkat, ENOSPC, false},
    {SYS_unlinkat, EIO, false},   {SYS_ftruncate, EIO, false},    {SYS_truncate, EIO, false},
    {SYS_getdents64, EIO, false}, {SYS_flock, EIO, false},        {SYS_newfstatat, EIO, false},
#ifdef __x86_64__
    {SYS_open, EMFILE, false},    {SYS_mkdir, ENOSPC, false},     {SYS_rename, ENOSPC, false},
    {SYS_symlink, ENOSPC, false}, {SYS_unlink, EIO, false},       {SYS_rmdir, EIO, false},
    {SYS_readlink, EIO, false},
#endif
};

typedef struct Registers {
    long arg[5];
    void *result;
} Registers;

static Registers registers(ucontext_t *u)
{
#ifdef __x86_64__
    greg_t *r = u->uc_mcontext.gregs;
    return (Registers){{r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8]}, &r[REG_RAX]};
#else
    unsigned long long *r = u->uc_mcontext.regs;
    return (Registers){{(long)r[0], (long)r[1], (long)r[2], (long)r[3], (long)r[4]}, &r[0]};
#endif
}

static void on_call(int signal_number, siginfo_t *info, void *context)
{
    int saved = errno, i = 0;
    Registers r = registers(context);
    long *a = r.arg;
    (void)signal_number;
    while (i < LEN(calls) && calls[i].number != info->si_syscall)
        i++;
    bool wanted = shared->on && !inside && i < LEN(calls);
    if (wanted && shared->kind == INJECT_SHORT)
        wanted = calls[i].moves && a[2] > 1;
    inside = true;
    bool hit = wanted && count(shared, 2, info->si_syscall, (int)a[0]);
    if (hit && shared->kind == INJECT_SHORT)
        a[2] /= 2;
    bool refused = hit && shared->kind != INJECT_SHORT;
    long result = refused ? -calls[i].error : 0;
    if (!refused || info->si_syscall == SYS_close) { /* that closes even where it fails */
        long given = syscall(info->si_syscall, a[0], a[1], a[2], a[3], a[4], (long)MARK);
        result = refused ? result : given < 0 ? -errno : given;
    }
    inside = false;
    memcpy(r.result, &result, sizeof result);
    errno = saved;
}

static bool filter_calls(void)
{
    enum { HEAD = 1, TAIL = 5 };
    struct sock_filter code[HEAD + LEN(calls) + TAIL];
    int n = 0;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < LEN(calls); i++)
        code[n++] = (struct sock_filter)BPF_JUMP(
            BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, (uint8_t)(LEN(calls) - i), 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, args[5]));
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MARK, 1, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    code[n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {(unsigned short)(n + 1), code};
    struct sigaction act = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return !sigaction(SIGSYS, &act, NULL) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

#else

static bool filter_calls(void)
{
    return false;
}

#endif

bool inject_start(Inject *x, InjectKind kind, int64_t at)
{
    shared = x;
    x->kind = kind;
    x->at = at;
    x->count = 0;
    x->fired = false;
    if (!at) {
        x->nsite = 0;
        memset(x->slot, 0, sizeof x->slot);
    }
    x->death = (InjectSite){.nframe = 0};
    catch_deaths();
    x->on = kind == INJECT_ALLOC || filter_calls();
    return x->on;
}
