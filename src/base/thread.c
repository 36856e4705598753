/* Threads that the library starts, and random delays of what they do, for tests. Signals are for
 * the threads that were there before: a handler never runs on a thread of ours, which may hold
 * locks, and a blocking call of the caller is interrupted as if we were not there. */
#include "base.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
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

int thread_new(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
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
