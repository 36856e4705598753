/* Reads and writes whole files; sizes as text; clocks. A written file appears complete or not at
 * all: it is written under another name, then renamed. */
#define _GNU_SOURCE /* memfd_create */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void drop_file(void *f)
{
    fclose(f);
}

/* ---- links ---- */

void file_check_link(Ctx *ctx, const char *path)
{
    struct stat st;
    char to[1024];
    if (!stat(path, &st) || lstat(path, &st) || !S_ISLNK(st.st_mode))
        return;
    ssize_t n = readlink(path, to, sizeof to - 1);
    to[n > 0 ? n : 0] = 0;
    if (!stat(path, &st) || errno == EACCES)
        return;
    if (errno == ELOOP)
        fail(ctx, TN_FAIL, "%s: expected a file, found a link that leads back to itself, by \"%s\"",
             path, to);
    fail(ctx, TN_FAIL,
         "%s: expected a file, found a link to \"%s\", which is not there\n"
         "  a copy made by `cp -rL` has what links lead to",
         path, to);
}

_Noreturn static void cannot_open(Ctx *ctx, const char *path, int why)
{
    file_check_link(ctx, path);
    fail(ctx, TN_FAIL, "%s: cannot open: %s", path, strerror(why));
}

/* ---- regular files ---- */

/* Opens what is a regular file; `otherwise` is said of a pipe. A pipe that nobody writes to would
 * be waited for. */
static int open_regular(Ctx *ctx, const char *path, const char *otherwise, int64_t *nbytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), why = errno;
    if (fd >= 0 && fstat(fd, &st)) {
        why = errno;
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        cannot_open(ctx, path, why);
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        fail(ctx, TN_FAIL, "%s: not a regular file%s", path,
             S_ISFIFO(st.st_mode)  ? otherwise
             : S_ISDIR(st.st_mode) ? " but a folder"
                                   : "");
    }
    *nbytes = st.st_size;
    return fd;
}

int file_open_regular(Ctx *ctx, const char *path, int64_t *nbytes)
{
    return open_regular(ctx, path, " but a pipe", nbytes);
}

/* Far beyond any graph or configuration, and what /dev/zero gives in a moment. */
static const int64_t longest_text = (int64_t)256 << 20;

/* Reads a stream from here to its end; closes it, unless it is standard input. */
static char *read_stream(Arena *a, FILE *f, const char *path, size_t *len)
{
    Ctx *ctx = arena_ctx(a);
    Arena *handle = arena_new(ctx);
    if (!handle)
        fail(ctx, TN_FAIL, "out of memory");
    if (f != stdin)
        arena_defer(handle, drop_file, f);
    Buf b = {.a = a};
    char chunk[65536];
    size_t n;
    struct stat st;
    bool beyond = !fstat(fileno(f), &st) && S_ISREG(st.st_mode) && st.st_size > longest_text;
    buf_addn(&b, "", 0);
    while (!beyond && (n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        beyond = (int64_t)(b.len + n) > longest_text;
        buf_addn(&b, chunk, n);
    }
    int bad = ferror(f), why = errno;
    arena_free(handle);
    if (beyond)
        fail(ctx, TN_FAIL, "%s: longer than %d MiB", file_title(path), (int)(longest_text >> 20));
    if (bad)
        fail(ctx, TN_FAIL, "%s: cannot read: %s", path, strerror(why));
    *len = b.len;
    return b.text;
}

char *file_read(Arena *a, const char *path, size_t *len)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f)
        cannot_open(arena_ctx(a), path, errno);
    return read_stream(a, f, path, len);
}

FILE *file_stream(Ctx *ctx, const char *path)
{
    int64_t nbytes;
    int fd = file_open_regular(ctx, path, &nbytes);
    FILE *f = fdopen(fd, "rb");
    if (f)
        return f;
    close(fd);
    fail(ctx, TN_FAIL, "%s: cannot open: %s", path, strerror(errno));
}

char *file_read_regular(Arena *a, const char *path, size_t *len)
{
    return read_stream(a, file_stream(arena_ctx(a), path), path, len);
}

static int write_all(int fd, const char *p, size_t len)
{
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

const char *file_title(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

/* Makes standard input a file in memory with what was left to read. 0, or -1 with errno. */
static int keep_stdin(void)
{
    char chunk[65536];
    ssize_t n;
    int fd = memfd_create("tenon", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    while ((n = read(STDIN_FILENO, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || write_all(fd, chunk, (size_t)n))
            break;
    }
    int bad = n || dup2(fd, STDIN_FILENO) < 0, why = errno;
    close(fd);
    errno = why;
    return bad ? -1 : 0;
}

int file_open(Ctx *ctx, const char *path, int64_t *nbytes)
{
    bool standard = !strcmp(path, "-");
    struct stat st;
    if (standard && !fstat(STDIN_FILENO, &st) && !S_ISREG(st.st_mode) && keep_stdin())
        fail(ctx, TN_FAIL, "standard input: cannot read: %s", strerror(errno));
    if (!standard)
        return open_regular(ctx, path,
                            " but a pipe; standard input may be one: `COMMAND | tenon ...` with - "
                            "in its place",
                            nbytes);
    int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || fstat(fd, &st)) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        fail(ctx, TN_FAIL, "standard input: cannot open: %s", strerror(why));
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        fail(ctx, TN_FAIL, "-: not a regular file");
    }
    *nbytes = st.st_size;
    return fd;
}

int file_create_aside(const char *path)
{
    unlink(path); /* of a process of this number that was killed */
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/* The place of block i of `count` that are hashed: evenly from the first byte to the last. */
static int64_t block_at(int64_t last, int64_t i, int64_t count)
{
    int64_t n = MAX(count - 1, 1);
    return last / n * i + last % n * i / n; /* last * i / n, without overflow */
}

uint64_t file_hash(Ctx *ctx, const char *path, int64_t *nbytes)
{
    enum { BLOCK = 1 << 14, MOST = 1 << 10 };
    char block[BLOCK];
    int fd = file_open_regular(ctx, path, nbytes);
    int64_t count = MIN((*nbytes + BLOCK - 1) / BLOCK, (int64_t)MOST), last = *nbytes - BLOCK;
    bool whole = count < MOST;
    uint64_t h = 0;
    ssize_t n = 0;
    for (int64_t i = 0; i < count && n >= 0; i++) {
        int64_t at = whole ? i * BLOCK : block_at(last, i, count);
        n = pread(fd, block, BLOCK, at);
        h = hash_bytes(block, n > 0 ? (size_t)n : 0, h);
    }
    int why = errno;
    close(fd);
    if (n < 0)
        fail(ctx, TN_FAIL, "%s: cannot read: %s", path, strerror(why));
    return h;
}

void file_write(Ctx *ctx, const char *path, const void *data, size_t len)
{
    if (!strcmp(path, "-")) {
        if (write_all(STDOUT_FILENO, data, len))
            fail(ctx, TN_FAIL, "standard output: cannot write: %s", strerror(errno));
        return;
    }
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode)) { /* a device or pipe cannot be renamed over */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        int bad = fd < 0 || write_all(fd, data, len), why = errno;
        if (fd >= 0)
            close(fd);
        if (bad)
            fail(ctx, TN_FAIL, "%s: cannot write: %s", path, strerror(why));
        return;
    }
    char aside[4096];
    if (snprintf(aside, sizeof aside, "%s.tmp%ld", path, (long)getpid()) >= (int)sizeof aside)
        fail(ctx, TN_FAIL, "%s: path too long", path);
    int fd = file_create_aside(aside);
    if (fd < 0)
        fail(ctx, TN_FAIL, "%s: cannot create: %s", path, strerror(errno));
    int bad = write_all(fd, data, len) || fsync(fd);
    int why = errno;
    bad |= close(fd);
    if (bad || rename(aside, path)) {
        why = bad ? why : errno;
        unlink(aside);
        fail(ctx, TN_FAIL, "%s: cannot write: %s", path, strerror(why));
    }
}

static const struct {
    const char *name;
    double scale;
} units[] = {{"", 1},     {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
             {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9},     {"TiB", 0x1p40}, {"TB", 1e12}};

const char *count_text(int64_t n, const char *noun, char *text, size_t size)
{
    const size_t len = strlen(noun);
    const char last = len ? noun[len - 1] : 0, before = len > 1 ? noun[len - 2] : 0;
    const bool ies = last == 'y' && !strchr("aeiou", before);
    const bool es = last == 's' || last == 'x' || (last == 'h' && (before == 'c' || before == 's'));
    const char *end = n == 1 ? "" : ies ? "ies" : es ? "es" : "s";
    snprintf(text, size, "%lld %.*s%s", (long long)n, (int)(n != 1 && ies ? len - 1 : len), noun,
             end);
    return text;
}

const char *bytes_text(int64_t nbytes, const char *unit, char *text, size_t size)
{
    int i = 0;
    while (unit && i < LEN(units) && strcmp(unit, units[i].name) != 0)
        i++;
    const int64_t scale = i < LEN(units) ? (int64_t)units[i].scale : 1;
    if (scale == 1)
        snprintf(text, size, "%lld", (long long)nbytes);
    else if (nbytes >= 0) { /* a double would round from 2^53 on */
        const int64_t part = (nbytes % scale * 100 + scale - 1) / scale;
        snprintf(text, size, "%lld.%02lld%s", (long long)(nbytes / scale + part / 100),
                 (long long)(part % 100), unit);
    } else
        snprintf(text, size, "%.2f%s", ceil(100 * ((double)nbytes / units[i].scale)) / 100, unit);
    return text;
}

int64_t parse_bytes(const char *text)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || errno || !(x >= 0))
        return -1;
    bool parts = x != floor(x); /* of a unit above one byte alone */
    char *digits;
    int64_t whole = strtoll(text, &digits, 10); /* a double would round from 2^53 on */
    bool exact = digits == end && !errno;
    errno = 0;
    while (*end == ' ')
        end++;
    for (int i = 0; i < LEN(units); i++)
        if (!strcmp(end, units[i].name) && exact && units[i].scale == 1)
            return whole;
        else if (!strcmp(end, units[i].name))
            return x * units[i].scale < 9e18 && !(parts && units[i].scale == 1)
                       ? (int64_t)floor(x * units[i].scale)
                       : -1;
    return -1;
}

static double clock_sec(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double now_sec(void)
{
    return clock_sec(CLOCK_MONOTONIC);
}

double cpu_sec(void)
{
    return clock_sec(CLOCK_PROCESS_CPUTIME_ID);
}
