/* The signals that end a process: SIGINT, SIGTERM and SIGHUP, and SIGUSR1, which launchers pass on
 * to ranks. No handler takes them, as its frame would overwrite the heap where it meets a product
 * of oneDNN (base/thread.c). They are blocked in the main thread before any other is there, so that
 * all threads of Tenon, OpenMP, MPI and CUDA have them blocked, and one thread waits for them.
 *
 * Its effect depends on what the process does. While a run trains: at the first signal it finishes
 * its step and saves; at the second it only says that it is saving, so that a save in progress is
 * not lost; at the third it ends at once. Before the first step it says so and ends, as there is
 * nothing to save yet. Elsewhere, where there is nothing to save, the default action comes back and
 * the signal is sent again.
 *
 * A SIGHUP that is ignored from the start stays so, as under nohup. Other signals are taken,
 * ignored or not, while there is something to save, and before that by train, as a shell ignores
 * SIGINT for background jobs, and a script may ignore SIGTERM. (Linux keeps a signal that is
 * blocked, ignored or not.) Where ranks are threads of one process the first to begin lets signals
 * be counted, and the last ends that. */
#include "train.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_INTERRUPTS = 3, STACK = 256 << 10 };

/* The last one is for ranks. */
static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

static struct {
    volatile sig_atomic_t count; /* how many came while they were counted */
    pthread_mutex_t lock;        /* of what follows */
    Interrupted what;
    bool loud;  /* rank 0 is here, which speaks for all */
    bool ranks; /* SIGUSR1 is one of them */
    int nrun;   /* runs that count */
    sigset_t before, watched;
} interrupted = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* On a terminal below the line that shows progress. Not by stdio: what holds its lock may hang. */
static void say(const char *text)
{
    if (!interrupted.loud)
        return;
    ssize_t done = isatty(STDERR_FILENO) ? write(STDERR_FILENO, "\n", 1) : 0;
    done += write(STDERR_FILENO, text, strlen(text));
    (void)done;
}

/* Returns where it was ignored when the process began. */
static void end_by(int number)
{
    sigset_t one;
    struct sigaction was;
    if (!sigaction(number, NULL, &was) && was.sa_handler == SIG_IGN)
        return;
    signal(number, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
}

/* Locked: one more. */
static void count(bool saves)
{
    int n = __atomic_add_fetch(&interrupted.count, 1, __ATOMIC_RELAXED);
    if (n >= MOST_INTERRUPTS) {
        say(saves ? "tenon: ended by a third signal: what was done since the last checkpoint is "
                    "lost\n"
                  : "tenon: ended by a third signal\n");
        _exit(TN_CODE_FAIL);
    }
    if (n > 1 && saves)
        say("tenon: note: the step is being finished and saved; a third signal ends at once\n");
}

/* Locked. */
static void take(int number)
{
    bool other = number == SIGUSR1 && !interrupted.ranks; /* which is of no concern */
    switch (other ? INTERRUPT_KILLS : interrupted.what) {
    case INTERRUPT_KILLS: end_by(number); break;
    case INTERRUPT_BEGINS:
        say("tenon: interrupted before the first step: the same command begins again\n");
        _exit(130);
    case INTERRUPT_EXITS: say("tenon: interrupted; nothing was written\n"); _exit(130);
    case INTERRUPT_SAVES: count(true); break;
    case INTERRUPT_WAITS: count(false); break;
    }
}

static void *watch(void *arg)
{
    int number;
    (void)arg;
    for (;;) {
        if (sigwait(&interrupted.watched, &number))
            continue;
        pthread_mutex_lock(&interrupted.lock);
        take(number);
        pthread_mutex_unlock(&interrupted.lock);
    }
    return NULL;
}

static void unblock(void)
{
    pthread_sigmask(SIG_SETMASK, &interrupted.before, NULL);
}

/* Returns why it cannot. */
static int start(void)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, STACK); /* it needs little */
    int why = pthread_create(&thread, &attr, watch, NULL);
    pthread_attr_destroy(&attr);
    return why;
}

void interrupt_watch(void)
{
    struct sigaction was;
    sigemptyset(&interrupted.watched);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i] != SIGHUP || sigaction(SIGHUP, NULL, &was) || was.sa_handler != SIG_IGN)
            sigaddset(&interrupted.watched, signals[i]);
    pthread_sigmask(SIG_BLOCK, &interrupted.watched, &interrupted.before);
    if (start())
        unblock(); /* then signals do what they always do */
    else
        pthread_atfork(NULL, NULL, unblock); /* children have the mask that was there before */
}

void interrupt_as(Interrupted what)
{
    pthread_mutex_lock(&interrupted.lock);
    interrupted.what = what;
    interrupted.loud |= what == INTERRUPT_EXITS;
    pthread_mutex_unlock(&interrupted.lock);
}

void interrupt_before(const tn_context *ctx)
{
    pthread_mutex_lock(&interrupted.lock);
    interrupted.what = INTERRUPT_BEGINS;
    interrupted.loud |= !tn_rank(ctx);
    interrupted.ranks |= tn_ranks(ctx) > 1;
    pthread_mutex_unlock(&interrupted.lock);
}

const volatile sig_atomic_t *interrupt_begin(tn_context *ctx)
{
    pthread_mutex_lock(&interrupted.lock);
    interrupted.loud |= !tn_rank(ctx);
    interrupted.ranks |= tn_ranks(ctx) > 1;
    interrupted.nrun++;
    interrupted.what = INTERRUPT_SAVES;
    pthread_mutex_unlock(&interrupted.lock);
    tn_ranks_stop(ctx, &interrupted.count);
    return &interrupted.count;
}

void interrupt_end(Interrupted then)
{
    pthread_mutex_lock(&interrupted.lock);
    if (!--interrupted.nrun)
        interrupted.what = then;
    pthread_mutex_unlock(&interrupted.lock);
}
