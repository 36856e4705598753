/* Tokens for training: the files' tokens, in order, are one sequence; its first part is trained on,
 * the last val_fraction is held out. A file is bytes, flat uint16 or uint32, or a shard as llm.c
 * writes it (256 int32: magic, version, count; then the tokens), known by its magic.
 *
 * State is (seed, step) and nothing else: row b of a step begins at a place drawn by Philox with
 * key seed and counter (b, DATA_STREAM, step), so a resumed run sees the same batches and no
 * position need be stored. Windows may cross from one file into the next. Tokens are read by pread
 * through a buffer on the stack; a file that is no longer as large as when it was opened is an
 * error. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 14, SHARD_HEADER = 1024 };
#define DATA_STREAM 0xda7a0000u /* above every stream of a graph */

static const struct {
    int32_t magic, version;
    int width;
} shards[] = {{20240520, 1, 2}, {20240801, 7, 4}}; /* GPT-2's and Llama 3's tokens */

int token_type_parse(const char *name)
{
    static const char *const names[] = {
        [TOKEN_AUTO] = "auto", [TOKEN_BYTE] = "byte", [TOKEN_U16] = "u16", [TOKEN_U32] = "u32"};
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

/* ---- open ---- */

static void drop_fd(void *p)
{
    if (*(int *)p >= 0)
        close(*(int *)p);
}

static int open_file(Arena *a, const char *path, int64_t *nbytes)
{
    int *fd = NEW(a, int);
    *fd = -1;
    arena_defer(a, drop_fd, fd);
    *fd = file_open(arena_ctx(a), path, nbytes);
    return *fd;
}

/* Fills width, begin and ntoken from a shard's header; false where there is none. */
static bool parse_shard(Ctx *ctx, struct DataFile *f, TokenType type)
{
    int32_t head[3];
    if (type == TOKEN_BYTE || f->nbytes < SHARD_HEADER || pread(f->fd, head, 12, 0) != 12)
        return false;
    for (int i = 0; i < LEN(shards); i++) {
        if (head[0] != shards[i].magic)
            continue;
        f->width = shards[i].width;
        f->begin = SHARD_HEADER;
        f->ntoken = head[2];
        if (head[1] != shards[i].version)
            fail(ctx, TN_FAIL, "%s: llm.c shard: expected version %d, found %d", f->path,
                 shards[i].version, head[1]);
        if (f->ntoken < 0 || f->nbytes != SHARD_HEADER + f->ntoken * f->width)
            fail(ctx, TN_FAIL,
                 "%s: llm.c shard: its header says %d tokens of %d bytes, its size %lld", f->path,
                 head[2], f->width, (long long)f->nbytes);
        return true;
    }
    return false;
}

static void add_file(Arena *a, DataSet *s, const char *path, TokenType type)
{
    static const int widths[] = {
        [TOKEN_AUTO] = 1, [TOKEN_BYTE] = 1, [TOKEN_U16] = 2, [TOKEN_U32] = 4};
    struct DataFile f = {
        .path = arena_strdup(a, file_title(path)), .first = s->ntoken, .width = widths[type]};
    f.fd = open_file(a, path, &f.nbytes);
    if (!parse_shard(s->ctx, &f, type)) {
        f.ntoken = f.nbytes / f.width;
        if (f.nbytes % f.width)
            fail(s->ctx, TN_FAIL, "%s: expected tokens of %d bytes, found %lld bytes", path,
                 f.width, (long long)f.nbytes);
    } else if (type != TOKEN_AUTO && f.width != widths[type]) {
        fail(s->ctx, TN_FAIL, "%s: expected tokens of %d bytes, found a shard of %d", path,
             widths[type], f.width);
    }
    if (s->count && f.width != s->file[0].width)
        fail(s->ctx, TN_FAIL, "%s: has tokens of %d bytes, but %s of %d", path, f.width,
             s->file[0].path, s->file[0].width);
    s->ntoken += f.ntoken;
    s->nbytes += f.nbytes;
    PUSH(a, s->file, s->count, s->cap, f);
}

static void drop_glob(void *g)
{
    globfree(g);
}

static void add_path(Arena *a, DataSet *s, const char *path, TokenType type)
{
    if (!strcmp(path, "-") || !access(path, F_OK)) {
        add_file(a, s, path, type);
        return;
    }
    glob_t *g = NEW(a, glob_t);
    arena_defer(a, drop_glob, g);
    if (glob(path, 0, NULL, g))
        fail(s->ctx, TN_FAIL, "%s: no such file, and no file matches it", path);
    for (size_t i = 0; i < g->gl_pathc; i++)
        add_file(a, s, g->gl_pathv[i], type);
}

DataSet *data_open(Arena *a, int npath, const char *const *path, const DataOptions *o)
{
    DataSet *s = NEW(a, DataSet);
    s->ctx = arena_ctx(a);
    s->vocab = o->vocab;
    if (!(o->val_fraction >= 0 && o->val_fraction <= 1))
        fail(s->ctx, TN_USAGE, "val-fraction: expected 0 to 1, found %g", o->val_fraction);
    for (int i = 0; i < npath; i++)
        add_path(a, s, path[i], o->type);
    if (!s->ntoken)
        fail(s->ctx, TN_FAIL, "%s: no data", npath ? path[0] : "no path given");
    s->nval = (int64_t)((double)s->ntoken * o->val_fraction);
    s->ntrain = s->ntoken - s->nval;
    return s;
}

/* ---- read ---- */

static void check_size(const DataSet *s, const struct DataFile *f)
{
    struct stat st;
    if (fstat(f->fd, &st))
        fail(s->ctx, TN_FAIL, "%s: cannot read: %s", f->path, strerror(errno));
    if (st.st_size != f->nbytes)
        fail(s->ctx, TN_FAIL, "%s: changed during the run: it had %lld bytes, it has %lld", f->path,
             (long long)f->nbytes, (long long)st.st_size);
}

static void read_at(const DataSet *s, const struct DataFile *f, char *dst, int64_t n, int64_t at)
{
    while (n > 0) {
        ssize_t got = pread(f->fd, dst, (size_t)n, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            fail(s->ctx, TN_FAIL, "%s: cannot read: %s", f->path,
                 got ? strerror(errno) : "the file ends too early");
        dst += got;
        at += got;
        n -= got;
    }
}

static int64_t decode(const char *raw, int64_t i, int width)
{
    const unsigned char *p = (const unsigned char *)raw + i * width;
    int64_t x = 0;
    for (int k = width - 1; k >= 0; k--)
        x = x << 8 | p[k];
    return x;
}

static void read_tokens(const DataSet *s, const struct DataFile *f, int64_t at, int64_t n,
                        int64_t *out)
{
    char raw[CHUNK];
    check_size(s, f);
    for (int64_t done = 0; done < n;) {
        int64_t count = MIN(n - done, CHUNK / f->width);
        read_at(s, f, raw, count * f->width, f->begin + (at + done) * f->width);
        for (int64_t i = 0; i < count; i++) {
            int64_t x = decode(raw, i, f->width);
            if (s->vocab && x >= s->vocab)
                fail(s->ctx, TN_FAIL, "%s: token %lld is %lld, but the model has %lld tokens",
                     f->path, (long long)(at + done + i), (long long)x, (long long)s->vocab);
            out[done + i] = x;
        }
        done += count;
    }
}

void data_tokens(const DataSet *s, int64_t at, int64_t n, int64_t *out)
{
    CHECK(at >= 0 && n >= 0 && at + n <= s->ntoken);
    for (int i = 0; i < s->count && n > 0; i++) {
        const struct DataFile *f = &s->file[i];
        int64_t here = at - f->first, count = MIN(n, f->ntoken - here);
        if (count <= 0)
            continue;
        read_tokens(s, f, here, count, out);
        at += count;
        n -= count;
        out += count;
    }
}

void data_train_batch(const DataSet *s, uint64_t seed, uint32_t step, int64_t B, int64_t T,
                      int64_t *ids, int64_t *labels)
{
    int64_t nstart = s->ntrain - T;
    if (nstart < 1)
        fail(s->ctx, TN_FAIL, "%s: expected at least %lld tokens to train on, found %lld",
             s->file[0].path, (long long)T + 1, (long long)s->ntrain);
    for (int64_t b = 0; b < B; b++, ids += T, labels += T) {
        uint32_t counter[4] = {(uint32_t)b, (uint32_t)(b >> 32), DATA_STREAM, step}, word[4];
        uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
        philox(counter, key, word);
        uint64_t draw = (uint64_t)word[1] << 32 | word[0];
        int64_t start = (int64_t)(draw % (uint64_t)nstart);
        data_tokens(s, start, T, ids);
        memcpy(labels, ids + 1, sizeof *ids * (size_t)(T - 1));
        data_tokens(s, start + T, 1, labels + T - 1);
    }
}

int64_t data_val_windows(const DataSet *s, int64_t T)
{
    return s->nval < 2 ? 0 : (s->nval - 1 + T - 1) / T;
}

int64_t data_val_batch(const DataSet *s, int64_t first, int64_t B, int64_t T, int64_t *ids,
                       int64_t *labels)
{
    int64_t total = 0;
    for (int64_t b = 0; b < B; b++, ids += T, labels += T) {
        int64_t start = s->ntrain + (first + b) * T;
        int64_t n = MAX(0, MIN(T, s->ntoken - 1 - start));
        if (n) {
            data_tokens(s, start, n, ids);
            memcpy(labels, ids + 1, sizeof *ids * (size_t)(n - 1));
            data_tokens(s, start + n, 1, labels + n - 1);
        }
        for (int64_t t = n; t < T; t++) {
            ids[t] = 0;
            labels[t] = -100;
        }
        total += n;
    }
    return total;
}
