/* SIGINT, SIGTERM and SIGHUP: at the first a run finishes its step and saves; at the second it only
 * says that it is saving, so that a save in progress is not lost; at the third it ends at once. An
 * ignored SIGHUP stays ignored, as under nohup. The others are handled even if they were ignored,
 * as a shell ignores SIGINT for background jobs, and a script may ignore SIGTERM. */
#include "train.h"

#include <string.h>
#include <unistd.h>

enum { MOST_INTERRUPTS = 3 };

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

static volatile sig_atomic_t interrupted; /* how many came */

/* What a signal handler may call; on a terminal below the line that shows progress. */
static void say(const char *text)
{
    ssize_t done = isatty(STDERR_FILENO) ? write(STDERR_FILENO, "\n", 1) : 0;
    done += write(STDERR_FILENO, text, strlen(text));
    (void)done;
}

static void on_interrupt(int number)
{
    (void)number;
    interrupted = interrupted + 1;
    if (interrupted >= MOST_INTERRUPTS) {
        say("tenon: ended by a third signal: what was done since the last checkpoint is lost\n");
        _exit(TN_CODE_FAIL);
    }
    if (interrupted > 1)
        say("tenon: note: the step is being finished and saved; a third signal ends at once\n");
}

const volatile sig_atomic_t *interrupt_begin(Interrupts *before)
{
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < INTERRUPTS; i++)
        sigaddset(&act.sa_mask, signals[i]);
    for (int i = 0; i < INTERRUPTS; i++) {
        sigaction(signals[i], NULL, &before->old[i]);
        if (signals[i] != SIGHUP || before->old[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &act, NULL);
    }
    return &interrupted;
}

void interrupt_end(const Interrupts *before)
{
    for (int i = 0; i < INTERRUPTS; i++)
        sigaction(signals[i], &before->old[i], NULL);
}
