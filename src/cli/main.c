/* tenon: finds the command and runs it. A thread of OpenMP that waits spins for some 20 us, about
 * what it costs to wake it, and sleeps then: where calls follow each other closely it is there at
 * once, and two busy processes on one machine hardly spin against each other. As OpenMP reads that
 * policy when it is loaded, the program sets it and starts itself again. */
#include "cli.h"

#include "../train/train.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define COMMAND(name, usage, what) {#name, usage, what, command_##name},
const Command command_table[] = {
#include "command.def"
};
#undef COMMAND
const int command_count = LEN(command_table);

const Command *command_find(const char *name)
{
    for (int i = 0; i < command_count; i++)
        if (!strcmp(command_table[i].name, name))
            return &command_table[i];
    return NULL;
}

static int help(FILE *f)
{
    fprintf(f, "usage: tenon COMMAND [ARGUMENTS] [--option value]\n\n");
    for (int i = 0; i < command_count; i++)
        fprintf(f, "  %-10s %s\n", command_table[i].name, command_table[i].what);
    fprintf(f, "\n`tenon COMMAND --help` lists its options; `tenon --version` the versions.\n");
    return 0;
}

static int unknown(const char *name)
{
    const char *names[LEN(command_table)];
    for (int i = 0; i < command_count; i++)
        names[i] = command_table[i].name;
    const char *here = foreign_command(name), *near = tn_nearest(name, names, command_count);
    if (here)
        return report(TN_CODE_USAGE, "unknown command \"%s\"; here it is %s; see tenon --help",
                      name, here);
    return report(TN_CODE_USAGE, "unknown command \"%s\"%s%s%s; see tenon --help", name,
                  near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

/* Where this process was started by the dynamic loader given as a command (then the kernel has
 * loaded none, AT_BASE is 0), its executable is the loader; and what cannot be started again goes
 * on as it is. */
static void wait_briefly(char **argv)
{
    if (!getenv("OMP_WAIT_POLICY") && getauxval(AT_BASE) && !setenv("GOMP_SPINCOUNT", "1000", 0) &&
        !setenv("OMP_WAIT_POLICY", "passive", 1))
        execv("/proc/self/exe", argv);
}

/* For jansson, which where it has no memory loses parts of what it reads and writes, and says
 * nothing: nothing is half written while JSON is made or read. */
static void *memory_or_end(size_t n)
{
    void *p = malloc(n);
    if (!p)
        exit(report(TN_CODE_FAIL, "out of memory: %zu bytes", n));
    return p;
}

static int versions(void)
{
    tn_context *ctx = tn_context_new();
    const char *wrong = ctx ? tn_error(ctx) : ""; /* without memory versions can still be told */
    int code = *wrong ? report(TN_CODE_USAGE, "%s", wrong) : 0;
    if (!code)
        puts(tn_version());
    tn_context_free(ctx);
    return code;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return TN_CODE_USAGE;
    }
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))
        return help(stdout);
    if (!strcmp(argv[1], "--version"))
        return versions();
    if (!strcmp(argv[1], "help") && argc < 3)
        return help(stdout);
    bool asks = !strcmp(argv[1], "help");
    const char *name = argv[1 + asks];
    const Command *c = command_find(name);
    if (!c)
        return unknown(name);
    if (asks)
        return c->run(2, (char *[]){argv[2], "--help", NULL});
    wait_briefly(argv);
    interrupt_watch();
    return c->run(argc - 1, argv + 1);
}

/* ---- pipes whose reader has closed ---- */

/* Ends the program as other tools end there, quietly, where it is standard output; other pipes are
 * errors of writing like others. */
static void on_pipe(int signal_number)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    if (poll(&out, 1, 0) <= 0 || !(out.revents & (POLLERR | POLLHUP)))
        return;
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

int main(int argc, char **argv)
{
    bool training =
        argc > 1 && !strcmp(argv[1], "train"); /* which goes on and ends so at its end */
    signal(SIGPIPE, training ? SIG_IGN : on_pipe);
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of writing like others */
    json_set_alloc_funcs(memory_or_end, free);
    int code = run(argc, argv);
    errno = 0;
    if ((!fflush(stdout) && !ferror(stdout)) || code)
        return code;
    on_pipe(SIGPIPE);
    if (!errno) /* an earlier write has failed: why shows again where nothing is written */
        (void)!write(STDOUT_FILENO, "", 0);
    return report(TN_CODE_FAIL, "standard output: cannot write%s%s", errno ? ": " : "",
                  errno ? strerror(errno) : "");
}
