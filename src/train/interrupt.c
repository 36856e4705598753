/* SIGINT, SIGTERM and SIGHUP: at the first a run finishes its step and saves; at the second it only
 * says that it is saving, so that a save in progress is not lost; at the third it ends at once. An
 * ignored SIGHUP stays ignored, as under nohup. The others are handled even if they were ignored,
 * as a shell ignores SIGINT for background jobs, and a script may ignore SIGTERM. Launchers of
 * ranks pass SIGUSR1 on, which then is one of them. Where ranks are threads of one process the
 * first to begin takes the signals, the last to end gives them back. */
#include "train.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { MOST_INTERRUPTS = 3, SIGNALS = 4 };

/* The last one with ranks alone. */
static const int signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

static struct {
    volatile sig_atomic_t count; /* how many came */
    volatile sig_atomic_t loud;  /* rank 0 is here, which speaks for all */
    pthread_mutex_t lock;        /* of what follows */
    int nrun, nsignal;           /* runs that take signals, and how many kinds */
    struct sigaction before[SIGNALS];
} interrupted = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What a signal handler may call; on a terminal below the line that shows progress. */
static void say(const char *text)
{
    if (!interrupted.loud)
        return;
    ssize_t done = isatty(STDERR_FILENO) ? write(STDERR_FILENO, "\n", 1) : 0;
    done += write(STDERR_FILENO, text, strlen(text));
    (void)done;
}

static void on_interrupt(int number)
{
    (void)number;
    int count = __atomic_add_fetch(&interrupted.count, 1, __ATOMIC_RELAXED);
    if (count >= MOST_INTERRUPTS) {
        say("tenon: ended by a third signal: what was done since the last checkpoint is lost\n");
        _exit(TN_CODE_FAIL);
    }
    if (count > 1)
        say("tenon: note: the step is being finished and saved; a third signal ends at once\n");
}

static void take(int nsignal)
{
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&act.sa_mask);
    interrupted.nsignal = nsignal;
    for (int i = 0; i < nsignal; i++)
        sigaddset(&act.sa_mask, signals[i]);
    for (int i = 0; i < nsignal; i++) {
        sigaction(signals[i], NULL, &interrupted.before[i]);
        if (signals[i] != SIGHUP || interrupted.before[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &act, NULL);
    }
}

const volatile sig_atomic_t *interrupt_begin(tn_context *ctx)
{
    pthread_mutex_lock(&interrupted.lock);
    if (!tn_rank(ctx))
        __atomic_store_n(&interrupted.loud, 1, __ATOMIC_RELAXED);
    if (!interrupted.nrun++)
        take(tn_ranks(ctx) > 1 ? SIGNALS : SIGNALS - 1);
    pthread_mutex_unlock(&interrupted.lock);
    tn_ranks_stop(ctx, &interrupted.count);
    return &interrupted.count;
}

void interrupt_end(void)
{
    pthread_mutex_lock(&interrupted.lock);
    if (!--interrupted.nrun)
        for (int i = 0; i < interrupted.nsignal; i++)
            sigaction(signals[i], &interrupted.before[i], NULL);
    pthread_mutex_unlock(&interrupted.lock);
}
