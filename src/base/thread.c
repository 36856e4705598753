/* Threads that the library starts, and random delays of what they do, for tests. Signals are for
 * the threads that were there before: a handler never runs on a thread of ours, which may hold
 * locks, and a blocking call of the caller is interrupted as if we were not there. */
#include "base.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

int thread_new(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (int i = 0; i < LEN(own); i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int why = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
