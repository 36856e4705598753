/* place: finds offsets for the buffers of a CSV file, or checks those that it has.
 *
 * The search does not return before its end, so a second thread shows progress on a terminal, and a
 * signal ends the process at once. While a file is written it does not. */
#include "cli.h"

#include "../train/train.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- the thread beside the search ---- */

typedef struct Watch {
    pthread_t thread;
    bool begun;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    int64_t count; /* buffers, once they are read */
    bool end;
} Watch;

/* Locked: until then, or the end. */
static void wait_until(Watch *w, const struct timespec *then)
{
    while (!w->end && !pthread_cond_timedwait(&w->changed, &w->lock, then))
        continue;
}

static void *watch(void *arg)
{
    Watch *w = arg;
    bool open = false;
    char count[40];
    struct timespec next;
    clock_gettime(CLOCK_REALTIME, &next);
    pthread_mutex_lock(&w->lock);
    for (int sec = 1; !w->end; sec++) {
        next.tv_sec++;
        wait_until(w, &next);
        open |= w->count && !w->end;
        if (w->count && !w->end)
            line_show(stderr, "placing %s: %d s",
                      tn_count_text(w->count, "buffer", count, sizeof count), sec);
    }
    pthread_mutex_unlock(&w->lock);
    if (open)
        line_clear(stderr);
    return NULL;
}

static void watch_begin(Watch *w)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->begun = isatty(STDERR_FILENO) && !pthread_create(&w->thread, NULL, watch, w);
    interrupt_as(INTERRUPT_EXITS);
}

static void watch_count(Watch *w, int64_t count)
{
    pthread_mutex_lock(&w->lock);
    w->count = count;
    pthread_mutex_unlock(&w->lock);
}

static void watch_end(Watch *w)
{
    interrupt_as(INTERRUPT_WAITS);
    pthread_mutex_lock(&w->lock);
    w->end = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->begun)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

/* ---- the command ---- */

typedef struct PlaceCommand {
    const char *path, *output;
    int64_t capacity, effort;
    int check;
    tn_placement result;
    double sec;
} PlaceCommand;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reads and places, or checks. */
static int work(tn_context *ctx, PlaceCommand *x, Watch *w, tn_buffers **b)
{
    tn_buffer *list;
    int64_t count;
    int code = tn_buffers_read(ctx, x->path, warn, NULL, b);
    if (!code)
        code = tn_buffers_list(*b, &list, &count);
    if (code)
        return code;
    watch_count(w, count);
    double begin = cpu_seconds();
    code = x->check ? tn_buffers_check(*b, &x->result)
                    : tn_place(ctx, count, list, x->capacity, x->effort, &x->result);
    x->sec = cpu_seconds() - begin;
    if (!code && x->check && x->capacity && x->result.peak > x->capacity)
        code = tn_context_fail(ctx, TN_CODE_FIT,
                               "does not fit: the peak is %lld bytes, the capacity is %lld",
                               (long long)x->result.peak, (long long)x->capacity);
    return code;
}

/* A write that waits for a reader may be interrupted. */
static int write_output(tn_context *ctx, const PlaceCommand *x, tn_buffers *b)
{
    struct stat st;
    if (!strcmp(x->output, "-") || (!stat(x->output, &st) && !S_ISREG(st.st_mode)))
        interrupt_as(INTERRUPT_KILLS);
    int code = tn_buffers_write(b, x->output);
    return code ? report_last(code, ctx) : 0;
}

/* Proved: that none is lower, or where none was found within the capacity, that there is none. */
static void print_result(const PlaceCommand *x, int code)
{
    const tn_placement *r = &x->result;
    bool proved = code == TN_CODE_FIT && !x->check ? r->least > x->capacity : r->least == r->peak;
    bool taken = x->output && !strcmp(x->output, "-");
    fprintf(taken ? stderr : stdout, "bound %lld result %lld waste %lld sec %.4f proved %s\n",
            (long long)r->bound, (long long)r->peak, (long long)(r->peak - r->bound), x->sec,
            proved ? "yes" : "no");
}

static int finish(tn_context *ctx, const PlaceCommand *x, tn_buffers *b, int code)
{
    if (!code && x->output)
        code = write_output(ctx, x, b);
    else if (code == TN_CODE_FIT)
        report(code, "%s: %s%s", strcmp(x->path, "-") ? x->path : "standard input", tn_error(ctx),
               x->output ? "\n  --output is not written" : "");
    else if (code && x->result.peak) /* an overlap */
        report(code, "%s\n  the peak is %lld bytes, the bound %lld", tn_error(ctx),
               (long long)x->result.peak, (long long)x->result.bound);
    else if (code)
        report_last(code, ctx);
    if (!code || code == TN_CODE_FIT)
        print_result(x, code);
    return code;
}

int command_place(int argc, char **argv)
{
    PlaceCommand x = {0};
    const OptionSlot slots[] = {{"capacity", &x.capacity},
                                {"effort", &x.effort},
                                {"output", &x.output},
                                {"check", &x.check},
                                {0}};
    Option table[MOST_OPTIONS];
    options_begin(table, "place", NULL, slots);
    const int64_t most = (int64_t)1 << 62; /* that a file can need */
    const Command *c = command_find("place");
    Texts args;
    int code = options_parse(c, argc, argv, table, &args, 1, 1);
    if (code < 0 && x.check)
        code = options_refuse(c, table, "effort output", "is not for --check");
    if (code >= 0)
        return code;
    x.path = args.text[0];
    if (x.capacity > most)
        x.capacity = most;
    tn_context *ctx = context_new();
    tn_buffers *b = NULL;
    Watch w = {.begun = false};
    watch_begin(&w);
    code = work(ctx, &x, &w, &b);
    watch_end(&w);
    code = finish(ctx, &x, b, code);
    tn_context_free(ctx);
    return code;
}
