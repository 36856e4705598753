/* Text files to token files and back, in constant memory. Output is written aside and renamed once it is
 * whole; where anything fails nothing of it is left. */
#include "tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- output ---- */

typedef struct Writer {
    Ctx *ctx;
    const char *path;
    char *aside; /* NULL where path is written directly */
    int fd, n;
    unsigned char buffer[MAX_FEED];
} Writer;

static void drop_writer(void *p)
{
    Writer *w = p;
    if (w->fd > STDOUT_FILENO)
        close(w->fd);
    if (w->aside)
        unlink(w->aside);
}

static Writer *open_writer(Arena *a, const char *path)
{
    struct stat st;
    Writer *w = NEW(a, Writer);
    char *aside = arena_printf(a, "%s.tmp%ld", path, (long)getpid());
    *w = (Writer){.ctx = arena_ctx(a), .path = arena_strdup(a, path), .fd = -1};
    arena_defer(a, drop_writer, w);
    if (!strcmp(path, "-")) {
        w->path = "standard output";
        w->fd = STDOUT_FILENO;
    } else if (!stat(path, &st) && !S_ISREG(st.st_mode)) {
        w->fd = open(path, O_WRONLY | O_CLOEXEC); /* a device or pipe cannot be renamed over */
    } else {
        w->fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        w->aside = w->fd < 0 ? NULL : aside;
    }
    if (w->fd < 0)
        fail(w->ctx, TN_FAIL, "%s: cannot create: %s", path, strerror(errno));
    return w;
}

static void flush(Writer *w)
{
    for (int at = 0; at < w->n;) {
        ssize_t done = write(w->fd, w->buffer + at, (size_t)(w->n - at));
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            fail(w->ctx, TN_FAIL, "%s: cannot write: %s", w->path, strerror(errno));
        at += (int)done;
    }
    w->n = 0;
}

static void write_bytes(Writer *w, const char *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t count = MIN(n - at, sizeof w->buffer - (size_t)w->n);
        memcpy(w->buffer + w->n, bytes + at, count);
        w->n += (int)count;
        at += count;
        if (w->n == (int)sizeof w->buffer)
            flush(w);
    }
}

static void close_writer(Writer *w)
{
    flush(w);
    if (!w->aside)
        return;
    if (fsync(w->fd) || rename(w->aside, w->path))
        fail(w->ctx, TN_FAIL, "%s: cannot write: %s", w->path, strerror(errno));
    w->aside = NULL;
}

/* ---- input ---- */

typedef struct Input {
    Ctx *ctx;
    const char *path;
    int fd;
    int64_t nbytes; /* 0: unknown */
} Input;

static void drop_input(void *p)
{
    Input *in = p;
    if (in->fd > STDIN_FILENO)
        close(in->fd);
}

static Input *open_input(Arena *a, const char *path)
{
    struct stat st;
    Input *in = NEW(a, Input);
    *in = (Input){.ctx = arena_ctx(a), .path = arena_strdup(a, path), .fd = -1};
    arena_defer(a, drop_input, in);
    if (strcmp(path, "-")) {
        in->fd = open(path, O_RDONLY | O_CLOEXEC);
    } else {
        in->path = "standard input";
        in->fd = STDIN_FILENO;
    }
    if (in->fd < 0 || fstat(in->fd, &st))
        fail(in->ctx, TN_FAIL, "%s: cannot open: %s", in->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        fail(in->ctx, TN_FAIL, "%s: is a folder", in->path);
    in->nbytes = S_ISREG(st.st_mode) ? st.st_size : 0;
    return in;
}

/* Fills the buffer as far as the input goes; returns how many bytes. */
static size_t read_input(Input *in, char *buffer, size_t size)
{
    size_t n = 0;
    while (n < size) {
        ssize_t got = read(in->fd, buffer + n, size - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail(in->ctx, TN_FAIL, "%s: cannot read: %s", in->path, strerror(errno));
        if (!got)
            break;
        n += (size_t)got;
    }
    return n;
}

static void report(Ctx *ctx, const TokenizeOptions *o, int64_t done, int64_t total)
{
    if (o->progress && !o->progress(o->arg, done, total))
        fail(ctx, TN_FAIL, "stopped");
}

/* ---- tokenize ---- */

typedef struct Output {
    Writer *w;
    const Tokenizer *t;
    int width; /* bytes of a token */
    int64_t count;
} Output;

static void put(void *arg, const uint32_t *id, size_t n)
{
    Output *out = arg;
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        for (int k = 0; k < 4; k++)
            bytes[k] = (char)(id[i] >> (8 * k));
        if (out->width == 2 && id[i] > UINT16_MAX)
            fail(out->w->ctx, TN_FAIL, "%s: token %u does not fit 16 bits; use --token-type u32",
                 out->t->path, id[i]);
        write_bytes(out->w, bytes, (size_t)out->width);
    }
    out->count += (int64_t)n;
}

/* The type to write or read: what is asked, else the narrower one that holds every id. */
static TokenType choose(Ctx *ctx, const Tokenizer *t, TokenType type)
{
    if (type == TOKEN_BYTE)
        fail(ctx, TN_USAGE, "token type: expected u16 or u32, found \"byte\"");
    return type != TOKEN_AUTO ? type : tokenizer_limit(t) > UINT16_MAX + 1 ? TOKEN_U32 : TOKEN_U16;
}

static int64_t find_end(Ctx *ctx, const Tokenizer *t, const TokenizeOptions *o)
{
    int64_t id = o->end ? tokenizer_find(t, o->end) : -1;
    if (o->end && id < 0)
        fail(ctx, TN_USAGE, "%s: no token \"%s\"", t->path, o->end);
    return id;
}

int64_t tokenize_files(Arena *a, const Tokenizer *t, int n, const char *const *path,
                       const char *output, const TokenizeOptions *o, TokenType *type)
{
    Ctx *ctx = arena_ctx(a);
    int64_t done = 0, total = 0, end = find_end(ctx, t, o);
    Input **in = NEWN(a, Input *, n);
    char *buffer = NEWN(a, char, MAX_FEED);
    for (int i = 0; i < n; i++) {
        in[i] = open_input(a, path[i]);
        total += in[i]->nbytes;
    }
    *type = choose(ctx, t, o->type);
    Output *out = NEW(a, Output);
    *out = (Output){open_writer(a, output), t, *type == TOKEN_U16 ? 2 : 4, 0};
    Encoder *e = encoder_new(a, t, put, out);
    for (int i = 0; i < n; i++) {
        encoder_begin(e, in[i]->path);
        if (o->special)
            encoder_put_special(e, false);
        for (size_t got; (got = read_input(in[i], buffer, MAX_FEED)) > 0;) {
            encoder_feed(e, buffer, got);
            done += (int64_t)got;
            report(ctx, o, done, total);
        }
        encoder_end(e);
        if (o->special)
            encoder_put_special(e, true);
        if (end >= 0)
            put(out, &(uint32_t){(uint32_t)end}, 1);
    }
    close_writer(out->w);
    return out->count;
}

/* ---- detokenize ---- */

static void write_token(Writer *w, const Tokenizer *t, const char *path, int64_t at, int64_t id)
{
    size_t n;
    const char *bytes = tokenizer_bytes(t, id, &n);
    if (!bytes)
        fail(w->ctx, TN_FAIL, "%s: token %lld is %lld, which %s does not have", path, (long long)at,
             (long long)id, t->path);
    write_bytes(w, bytes, n);
}

/* A file of any kind that the data reader knows; a shard says its own width. */
static int64_t detokenize_data(Arena *a, const Tokenizer *t, const char *path, Writer *w,
                               const TokenizeOptions *o)
{
    enum { COUNT = 8192 };
    int64_t *ids = NEWN(a, int64_t, COUNT);
    DataSet *s = data_open(a, 1, &path, &(DataOptions){.type = o->type});
    if (o->type == TOKEN_AUTO && !s->file[0].begin)
        s = data_open(a, 1, &path, &(DataOptions){.type = choose(w->ctx, t, o->type)});
    for (int64_t at = 0; at < s->ntoken; at += COUNT) {
        int64_t n = MIN(s->ntoken - at, (int64_t)COUNT);
        data_tokens(s, at, n, ids);
        for (int64_t i = 0; i < n; i++)
            write_token(w, t, path, at + i, ids[i]);
        report(w->ctx, o, (at + n) * s->file[0].width, s->nbytes);
    }
    return s->ntoken;
}

/* Tokens without a header from a stream. */
static int64_t detokenize_stream(Arena *a, const Tokenizer *t, Input *in, Writer *w,
                                 const TokenizeOptions *o)
{
    unsigned char *buffer = NEWN(a, unsigned char, MAX_FEED);
    size_t width = choose(w->ctx, t, o->type) == TOKEN_U16 ? 2 : 4, got;
    int64_t count = 0;
    while ((got = read_input(in, (char *)buffer, MAX_FEED)) > 0) {
        if (got % width)
            fail(w->ctx, TN_FAIL, "%s: expected tokens of %zu bytes, found %lld bytes", in->path, width,
                 (long long)count * (int64_t)width + (int64_t)got);
        for (size_t i = 0; i < got; i += width) {
            uint32_t id = buffer[i] | (uint32_t)buffer[i + 1] << 8;
            if (width == 4)
                id |= (uint32_t)buffer[i + 2] << 16 | (uint32_t)buffer[i + 3] << 24;
            write_token(w, t, in->path, count++, id);
        }
        report(w->ctx, o, count * (int64_t)width, 0);
    }
    return count;
}

int64_t detokenize_file(Arena *a, const Tokenizer *t, const char *path, const char *output,
                        const TokenizeOptions *o)
{
    choose(arena_ctx(a), t, o->type);
    Input *in = open_input(a, path);
    Writer *w = open_writer(a, output);
    int64_t count = in->nbytes ? detokenize_data(a, t, path, w, o) : detokenize_stream(a, t, in, w, o);
    close_writer(w);
    return count;
}
