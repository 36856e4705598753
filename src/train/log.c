/* The stream on which a rank says what it does: rank 0's goes to standard error; other ranks' is
 * dropped, or has the rank's number before each line. */
#define _GNU_SOURCE /* fopencookie */
#include "train.h"

#include <stdlib.h>
#include <string.h>

typedef struct Log {
    int rank;
    bool all, inside; /* inside: a line is not at its end yet */
} Log;

static ssize_t write_lines(void *cookie, const char *text, size_t size)
{
    Log *log = cookie;
    for (size_t at = 0, n; log->all && at < size; at += n) {
        const char *end = memchr(text + at, '\n', size - at);
        n = end ? (size_t)(end - text) - at + 1 : size - at;
        if (log->inside) /* one call each, as other ranks write there too */
            fprintf(stderr, "%.*s", (int)n, text + at);
        else
            fprintf(stderr, "rank %d: %.*s", log->rank, (int)n, text + at);
        log->inside = !end;
    }
    return (ssize_t)size;
}

static int drop_log(void *cookie)
{
    free(cookie);
    return 0;
}

FILE *log_open(const tn_context *ctx, bool all)
{
    static const cookie_io_functions_t calls = {.write = write_lines, .close = drop_log};
    Log *log = tn_rank(ctx) ? malloc(sizeof *log) : NULL;
    if (!tn_rank(ctx))
        return stderr;
    if (!log)
        return NULL;
    *log = (Log){.rank = tn_rank(ctx), .all = all};
    FILE *f = fopencookie(log, "w", calls);
    if (f)
        setvbuf(f, NULL, _IOLBF, BUFSIZ);
    else
        free(log);
    return f;
}

void log_close(FILE *log)
{
    if (log && log != stderr)
        fclose(log);
}
