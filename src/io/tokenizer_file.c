/* Text files to token files and back, in constant memory. Output is written under another name and
 * renamed when it is complete; after a failure nothing is left. */
#define _GNU_SOURCE /* mkostemp */
#include "tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- output ---- */

static void drop_writer(void *p)
{
    Writer *w = p;
    if (w->fd > STDOUT_FILENO)
        close(w->fd);
    if (w->aside)
        unlink(w->aside);
}

Writer *writer_open(Arena *a, const char *path)
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
        w->fd = file_create_aside(aside);
        w->aside = w->fd < 0 ? NULL : aside;
    }
    if (w->fd < 0)
        fail(w->ctx, TN_FAIL, "%s: cannot create: %s", path, strerror(errno));
    return w;
}

Writer *writer_aside(Arena *a)
{
    const char *folder = getenv("TMPDIR");
    char *path = arena_printf(a, "%s/tenon-XXXXXX", folder && *folder ? folder : "/tmp");
    Writer *w = NEW(a, Writer);
    *w = (Writer){.ctx = arena_ctx(a), .path = path, .fd = mkostemp(path, O_CLOEXEC)};
    if (w->fd < 0)
        fail(w->ctx, TN_FAIL, "%s: cannot create: %s", path, strerror(errno));
    unlink(path);
    arena_defer(a, drop_writer, w);
    return w;
}

void writer_flush(Writer *w)
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

void writer_put(Writer *w, const char *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t count = MIN(n - at, sizeof w->buffer - (size_t)w->n);
        memcpy(w->buffer + w->n, bytes + at, count);
        w->n += (int)count;
        at += count;
        if (w->n == (int)sizeof w->buffer)
            writer_flush(w);
    }
}

void writer_close(Writer *w)
{
    writer_flush(w);
    if (!w->aside)
        return;
    if (fsync(w->fd) || rename(w->aside, w->path))
        fail(w->ctx, TN_FAIL, "%s: cannot write: %s", w->path, strerror(errno));
    w->aside = NULL;
}

/* ---- input ---- */

typedef struct TokenizeJob {
    Ctx *ctx;
    const Tokenizer *t;
    const TokenizeOptions *o;
    int64_t done, total; /* bytes read; total 0: unknown */
} TokenizeJob;

static void report(const TokenizeJob *job)
{
    if (job->o->progress && !job->o->progress(job->o->arg, job->done, job->total))
        fail(job->ctx, TN_FAIL, "stopped");
}

typedef struct Input {
    const char *path;
    int fd;
    int64_t nbytes; /* 0: empty, or not a regular file */
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
    *in = (Input){arena_strdup(a, file_title(path)), strcmp(path, "-") ? -1 : STDIN_FILENO, 0};
    arena_defer(a, drop_input, in);
    if (in->fd < 0)
        in->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0 || fstat(in->fd, &st)) {
        int why = errno;
        file_check_link(arena_ctx(a), path);
        fail(arena_ctx(a), TN_FAIL, "%s: cannot open: %s", in->path, strerror(why));
    }
    if (S_ISDIR(st.st_mode))
        fail(arena_ctx(a), TN_FAIL, "%s: is a folder", in->path);
    in->nbytes = S_ISREG(st.st_mode) ? st.st_size : 0;
    return in;
}

/* Waits for a pipe or terminal so that it can be stopped meanwhile. */
static void wait_input(const TokenizeJob *job, const Input *in)
{
    struct pollfd p = {.fd = in->fd, .events = POLLIN};
    while (!in->nbytes && !poll(&p, 1, 200))
        report(job);
}

/* Fills the buffer as far as the input goes; returns how many bytes. */
static size_t read_input(TokenizeJob *job, const Input *in, char *buffer, size_t size)
{
    size_t n = 0;
    while (n < size) {
        wait_input(job, in);
        ssize_t got = read(in->fd, buffer + n, size - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail(job->ctx, TN_FAIL, "%s: cannot read: %s", in->path, strerror(errno));
        if (!got)
            break;
        n += (size_t)got;
    }
    job->done += (int64_t)n;
    report(job);
    return n;
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
        if (out->width < 4 && id[i] >> (8 * out->width))
            fail(out->w->ctx, TN_FAIL, "%s: token %u does not fit %d bits; use --token-type %s",
                 out->t->path, id[i], 8 * out->width, id[i] > UINT16_MAX ? "u32" : "u16");
        writer_put(out->w, bytes, (size_t)out->width);
    }
    out->count += (int64_t)n;
}

/* The type to write or read: what is asked, else u16 where it holds every id. */
static TokenType choose(const Tokenizer *t, TokenType type)
{
    return type != TOKEN_AUTO ? type : tokenizer_limit(t) > UINT16_MAX + 1 ? TOKEN_U32 : TOKEN_U16;
}

/* An output that is an input would replace it, whatever the spelling. */
static void check_output(Ctx *ctx, const Input *in, const char *output)
{
    struct stat x, y;
    if (!fstat(in->fd, &x) && !stat(output, &y) && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
        x.st_ino == y.st_ino)
        fail(ctx, TN_USAGE, "%s: the output is the input %s, which it would replace", output,
             in->path);
}

static int64_t find_end(const TokenizeJob *job)
{
    const char *end = job->o->end;
    int64_t id = end ? tokenizer_find(job->t, end) : -1;
    if (end && id < 0)
        fail(job->ctx, TN_USAGE, "%s: no token \"%s\"", job->t->path, end);
    return id;
}

static void tokenize(Arena *a, TokenizeJob *job, Encoder *e, const Input *in, char *buffer)
{
    encoder_begin(e, in->path);
    if (job->o->special)
        encoder_put_special(e, false);
    bool first = true;
    for (size_t n; (n = read_input(job, in, buffer, MAX_FEED)) > 0; first = false) {
        if (first)
            foreign_check(a, in->path, buffer, n, NULL);
        encoder_feed(e, buffer, n);
    }
    encoder_end(e);
    if (job->o->special)
        encoder_put_special(e, true);
}

int64_t tokenize_files(Arena *a, const Tokenizer *t, int n, const char *const *path,
                       const char *output, const TokenizeOptions *o, TokenType *type)
{
    TokenizeJob job = {.ctx = arena_ctx(a), .t = t, .o = o};
    int64_t end = find_end(&job);
    char *buffer = NEWN(a, char, MAX_FEED);
    Input **in = NEWN(a, Input *, n);
    for (int i = 0; i < n; i++) {
        in[i] = open_input(a, path[i]);
        check_output(job.ctx, in[i], output);
        job.total += in[i]->nbytes;
    }
    *type = choose(t, o->type);
    Output *out = NEW(a, Output);
    *out = (Output){writer_open(a, output), t, token_width(*type), 0};
    Encoder *e = encoder_new(a, t, put, out);
    for (int i = 0; i < n; i++) {
        tokenize(a, &job, e, in[i], buffer);
        if (end >= 0)
            put(out, &(uint32_t){(uint32_t)end}, 1);
    }
    if (!out->count)
        fail(job.ctx, TN_FAIL, "%s: %s: there is nothing to write", in[0]->path,
             job.done ? "no token comes of the text" : "is empty");
    writer_close(out->w);
    encoder_tell(e, a, o->warn, o->warn_arg);
    return out->count;
}

/* ---- detokenize ---- */

typedef struct DecodedText {
    Writer *w;
    Decoder *d;
    Buf buf;
} DecodedText;

static void flush_text(DecodedText *x)
{
    writer_put(x->w, x->buf.text, x->buf.len);
    x->buf.len = 0;
}

static void write_token(const TokenizeJob *job, DecodedText *x, const char *path, int64_t at,
                        int64_t id)
{
    if (!decoder_put(x->d, id, &x->buf))
        fail(job->ctx, TN_FAIL, "%s: token %lld is %lld, which %s does not have", path,
             (long long)at, (long long)id, job->t->path);
    if (x->buf.len >= MAX_FEED)
        flush_text(x);
}

/* A file of any kind that the data reader knows; a shard says its own width. */
static int64_t detokenize_data(Arena *a, TokenizeJob *job, const char *path, DecodedText *x)
{
    enum { COUNT = 8192 };
    DataOptions how = {.type = job->o->type};
    int64_t *ids = NEWN(a, int64_t, COUNT);
    DataSet *s = data_open(a, 1, &path, &how);
    if (how.type == TOKEN_AUTO && !s->file[0].begin) {
        how.type = choose(job->t, how.type);
        s = data_open(a, 1, &path, &how);
    }
    for (int64_t at = 0; at < s->ntoken; at += COUNT) {
        int64_t n = MIN(s->ntoken - at, (int64_t)COUNT);
        data_tokens(s, at, n, ids);
        for (int64_t i = 0; i < n; i++)
            write_token(job, x, path, at + i, ids[i]);
        job->done += n * s->file[0].width;
        report(job);
    }
    return s->ntoken;
}

/* Tokens without a header from a stream. */
static int64_t detokenize_stream(Arena *a, TokenizeJob *job, const Input *in, DecodedText *x)
{
    unsigned char *buffer = NEWN(a, unsigned char, MAX_FEED);
    size_t width = (size_t)token_width(choose(job->t, job->o->type)), got;
    int64_t count = 0;
    while ((got = read_input(job, in, (char *)buffer, MAX_FEED)) > 0) {
        if (got % width)
            fail(job->ctx, TN_FAIL, "%s: expected tokens of %zu bytes, found %lld bytes", in->path,
                 width, (long long)job->done);
        for (size_t i = 0; i < got; i += width) {
            uint32_t id = 0;
            for (size_t k = 0; k < width; k++)
                id |= (uint32_t)buffer[i + k] << (8 * k);
            write_token(job, x, in->path, count++, id);
        }
    }
    return count;
}

int64_t detokenize_file(Arena *a, const Tokenizer *t, const char *path, const char *output,
                        const TokenizeOptions *o)
{
    TokenizeJob job = {.ctx = arena_ctx(a), .t = t, .o = o};
    Input *in = open_input(a, path);
    check_output(job.ctx, in, output);
    DecodedText x = {writer_open(a, output), decoder_new(a, t), {.a = a}};
    bool whole = in->nbytes && in->fd != STDIN_FILENO;
    job.total = in->nbytes;
    int64_t count = whole ? detokenize_data(a, &job, path, &x) : detokenize_stream(a, &job, in, &x);
    decoder_end(x.d, &x.buf);
    flush_text(&x);
    writer_close(x.w);
    return count;
}
