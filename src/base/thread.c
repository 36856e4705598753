/* Threads that the library starts, signals while kernels run, and random delays of what threads do,
 * for tests. Signals are for the threads that were there before: a handler never runs on a thread
 * of ours, which may hold locks, and a blocking call of the caller is interrupted as if we were not
 * there.
 *
 * Nor does one run where kernels do. Linux writes the frame of a handler (kilobytes, with the
 * registers of AVX-512) below the stack pointer, and products that oneDNN generates for f32 use
 * that as one more general register, which points into the heap: a handler overwrites what lies
 * there (uxlfoundation/oneDNN#4845, mended in 3.11.2). So whoever calls kernels holds back what has
 * a handler, in its own thread and in those that OpenMP has for it, which have masks of their own;
 * threads that OpenMP starts later have the mask of the one that starts them. */
#include "base.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MUCH_STACK = 64 << 20 };

/* A new thread has by itself the stack that the main one may have, but little where that has no
 * limit. */
static void choose_stack(pthread_attr_t *attr)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur == RLIM_INFINITY)
        pthread_attr_setstacksize(attr, MUCH_STACK);
}

/* Signals that a thread's own instructions cause: blocked, they would end the process. */
static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

int thread_new(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t blocked, before;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    choose_stack(&attr);
    sigfillset(&blocked);
    for (int i = 0; i < LEN(own); i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int why = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return why;
}

void thread_begin(Ctx *ctx, const char *whose, pthread_t *thread, void *(*run)(void *arg),
                  void *arg)
{
    int why = thread_new(thread, run, arg);
    if (why)
        fail(ctx, TN_FAIL, "%s: cannot start a thread: %s", whose, strerror(why));
}

static bool is_own(int number)
{
    bool found = false;
    for (int i = 0; i < LEN(own); i++)
        found |= own[i] == number;
    return found;
}

/* Returns whether there are any. The C library does not tell of those that it keeps for itself. */
static bool find_handled(sigset_t *handled)
{
    bool any = false;
    sigemptyset(handled);
    for (int i = 1; i <= SIGRTMAX; i++) {
        struct sigaction act;
        if (is_own(i) || sigaction(i, NULL, &act) || act.sa_handler == SIG_DFL ||
            act.sa_handler == SIG_IGN)
            continue;
        sigaddset(handled, i);
        any = true;
    }
    return any;
}

/* Threads of OpenMP keep their masks, as they run no code but that of regions. */
void signals_hold(sigset_t *before)
{
    sigset_t handled;
    pthread_sigmask(SIG_BLOCK, NULL, before);
    if (!find_handled(&handled))
        return;
#ifdef _OPENMP
#pragma omp parallel
#endif
    pthread_sigmask(SIG_BLOCK, &handled, NULL);
}

void signals_release(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

bool delay_read(Ctx *ctx, const char *name, int64_t *usec, uint64_t *seed)
{
    const char *text = getenv(name);
    if (!text)
        return false;
    char *end;
    errno = 0;
    *usec = strtoll(text, &end, 10);
    bool good = end > text && *usec >= 0 && *usec <= 1000000;
    if (good && *end == ',') {
        const char *second = end + 1;
        *seed = strtoull(second, &end, 10);
        good = end > second && *second != '-';
    }
    if (!good || *end || errno)
        fail(ctx, TN_USAGE, "%s: expected USEC[,SEED], found \"%s\"", name, text);
    return true;
}
