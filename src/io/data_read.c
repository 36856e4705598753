/* Reads tokens of files by pread through a buffer on the stack. A file is opened for each read, so
 * that any number of files can be used. After each read the file is compared with its state when it
 * was first opened, so that tokens of a replaced or changed file are never returned. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 14 };

/* Reads n bytes; returns 0, or what went wrong as errno, -1 where the file ends before. */
static int read_bytes(int fd, char *dst, int64_t n, int64_t at)
{
    while (n > 0) {
        ssize_t got = pread(fd, dst, (size_t)n, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : -1;
        dst += got;
        at += got;
        n -= got;
    }
    return 0;
}

_Noreturn static void cannot_read(Ctx *ctx, const DataFile *f, int why)
{
    fail(ctx, TN_FAIL, "%s: cannot read: %s", f->path,
         why > 0 ? strerror(why) : "the file ends too early");
}

void data_pread(Ctx *ctx, const DataFile *f, int fd, void *dst, int64_t n, int64_t at)
{
    int why = read_bytes(fd, dst, n, at);
    if (why)
        cannot_read(ctx, f, why);
}

static void check_same(Ctx *ctx, const DataFile *f, const struct stat *st)
{
    const int64_t second = 1000000000;
    int64_t changed = (int64_t)st->st_mtim.tv_sec * second + st->st_mtim.tv_nsec;
    if (st->st_size != f->nbytes)
        fail(ctx, TN_FAIL, "%s: changed during the run: it had %lld bytes, it has %lld", f->path,
             (long long)f->nbytes, (long long)st->st_size);
    if ((uint64_t)st->st_ino != f->inode)
        fail(ctx, TN_FAIL, "%s: replaced during the run: it was inode %llu, it is inode %llu",
             f->path, (unsigned long long)f->inode, (unsigned long long)st->st_ino);
    if (changed != f->changed)
        fail(ctx, TN_FAIL,
             "%s: written to during the run: last at %lld.%09lld s since 1970, now at %lld.%09lld",
             f->path, (long long)(f->changed / second), (long long)(f->changed % second),
             (long long)(changed / second), (long long)(changed % second));
}

static int64_t decode(const char *raw, int64_t i, int width)
{
    const unsigned char *p = (const unsigned char *)raw + i * width;
    int64_t x = 0;
    for (int k = width - 1; k >= 0; k--)
        x = x << 8 | p[k];
    return x;
}

/* Tokens [at, at + n) to out, which has room for all but the last where `last` is not NULL. */
static int read_open(const DataFile *f, int fd, int64_t at, int64_t n, int64_t *out, int64_t *last)
{
    char raw[CHUNK];
    for (int64_t done = 0; done < n;) {
        int64_t count = MIN(n - done, CHUNK / f->width);
        int why = read_bytes(fd, raw, count * f->width, f->begin + (at + done) * f->width);
        if (why)
            return why;
        for (int64_t i = 0; i < count; i++)
            *(last && done + i == n - 1 ? last : out + done + i) = decode(raw, i, f->width);
        done += count;
    }
    return 0;
}

static void check_token(const DataSet *s, const DataFile *f, int64_t at, int64_t token)
{
    if (s->vocab && token >= s->vocab)
        fail(s->ctx, TN_FAIL,
             "%s: token %lld (from 0; at byte %lld): expected 0 to %lld, the model's vocabulary, "
             "found %lld",
             f->path, (long long)at, (long long)(f->begin + at * f->width), (long long)s->vocab - 1,
             (long long)token);
}

static int open_again(const DataSet *s, const DataFile *f)
{
    int fd = f->fd >= 0 ? f->fd : open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        fail(s->ctx, TN_FAIL, "%s: cannot be opened again: %s", f->path, strerror(errno));
    return fd;
}

/* After reading, which went wrong for the reason `why` (0: it did not). */
static void close_again(const DataSet *s, const DataFile *f, int fd, int why)
{
    struct stat st;
    int bad = fstat(fd, &st) ? errno : 0;
    if (fd != f->fd)
        close(fd);
    if (!bad)
        check_same(s->ctx, f, &st);
    if (why || bad)
        cannot_read(s->ctx, f, why ? why : bad);
}

void data_bytes(const DataSet *s, const DataFile *f, int64_t at, int64_t n, char *out)
{
    int fd = open_again(s, f);
    close_again(s, f, fd, read_bytes(fd, out, n, at));
}

void data_read(const DataSet *s, const DataFile *f, int64_t at, int64_t n, int64_t *out,
               int64_t *last)
{
    int fd = open_again(s, f);
    close_again(s, f, fd, read_open(f, fd, at, n, out, last));
    for (int64_t i = 0; i < n - (last != NULL); i++)
        check_token(s, f, at + i, out[i]);
    if (last)
        check_token(s, f, at + n - 1, *last);
}

void data_tokens(const DataSet *s, int64_t at, int64_t n, int64_t *out)
{
    CHECK(at >= 0 && n >= 0 && at + n <= s->ntoken);
    for (int i = 0; i < s->count && n > 0; i++) {
        const DataFile *f = &s->file[i];
        int64_t here = at - f->first, count = MIN(n, f->ntoken - here);
        if (count <= 0)
            continue;
        data_read(s, f, here, count, out, NULL);
        at += count;
        n -= count;
        out += count;
    }
}
