/* Files of tokens: bytes, flat uint16 or uint32, or shards as llm.c writes them (256 int32: magic,
 * version, count; then the tokens), recognised by their magic. Together, in order, they are one
 * sequence, whose end may be held out; data_batch.c decides what a step reads, data_read.c reads.
 *
 * The state of each file when it was opened is kept: size, time of the last change, inode, and a
 * fingerprint of some of its bytes, by which a run that is resumed recognises it. Memory does not
 * depend on the size of files, and no file stays open. */
#include "io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARD_HEADER = 1024, BLOCK = 4096, BLOCKS = 16 };

static const struct {
    int32_t magic, version;
    int width;
} shards[] = {{20240520, 1, 2}, {20240801, 7, 4}}; /* GPT-2's and Llama 3's tokens */

/* Other files of llm.c's; as text they would be noise. */
static const struct {
    int32_t magic;
    const char *what;
} others[] = {{20240326, "a model of llm.c"},
              {20240327, "a debug state of llm.c"},
              {20240328, "a tokenizer of llm.c"},
              {20240522, "an evaluation of llm.c"},
              {20240527, "a training state of llm.c"}};

int token_type_parse(const char *name)
{
    static const char *const names[] = {
        [TOKEN_AUTO] = "auto", [TOKEN_BYTE] = "byte", [TOKEN_U16] = "u16", [TOKEN_U32] = "u32"};
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

int token_width(TokenType type)
{
    static const int width[] = {
        [TOKEN_AUTO] = 1, [TOKEN_BYTE] = 1, [TOKEN_U16] = 2, [TOKEN_U32] = 4};
    return width[type];
}

/* ---- one file ---- */

/* A number of a shard's header, which is little-endian. */
static int32_t head_word(const unsigned char *head, int i)
{
    const unsigned char *p = head + 4 * i;
    return (int32_t)(p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static void check_other(Ctx *ctx, const DataFile *f, int32_t magic)
{
    for (int i = 0; i < LEN(others); i++)
        if (magic == others[i].magic)
            fail(ctx, TN_FAIL, "%s: expected tokens, found %s; --token-type byte takes its bytes",
                 f->path, others[i].what);
    for (int i = 0; i < LEN(shards); i++)
        if ((int32_t)__builtin_bswap32((uint32_t)magic) == shards[i].magic)
            fail(ctx, TN_FAIL, "%s: llm.c shard: expected little-endian numbers, found big-endian",
                 f->path);
}

/* Fills width, begin and ntoken from a shard's header; false where there is none. */
static bool parse_shard(Ctx *ctx, int fd, DataFile *f, TokenType type)
{
    unsigned char head[12] = {0};
    if (type == TOKEN_BYTE || f->nbytes < 4)
        return false;
    data_pread(ctx, f, fd, head, MIN(f->nbytes, (int64_t)sizeof head), 0);
    int32_t magic = head_word(head, 0), version = head_word(head, 1), count = head_word(head, 2);
    if (type == TOKEN_AUTO)
        check_other(ctx, f, magic);
    for (int i = 0; i < LEN(shards); i++) {
        if (magic != shards[i].magic)
            continue;
        if (f->nbytes < SHARD_HEADER)
            fail(ctx, TN_FAIL, "%s: llm.c shard: expected a header of %d bytes, found %lld",
                 f->path, SHARD_HEADER, (long long)f->nbytes);
        if (version != shards[i].version)
            fail(ctx, TN_FAIL, "%s: llm.c shard: expected version %d, found %d", f->path,
                 shards[i].version, version);
        f->width = shards[i].width;
        f->begin = SHARD_HEADER;
        f->ntoken = count;
        if (count < 0 || f->nbytes != SHARD_HEADER + f->ntoken * f->width)
            fail(ctx, TN_FAIL,
                 "%s: llm.c shard: its header says %d tokens of %d bytes, its size %lld", f->path,
                 count, f->width, (long long)f->nbytes);
        return true;
    }
    return false;
}

/* Bytes of a block that are no characters of a text: controls, NUL, not UTF-8. A character that the
 * block's border cuts may pass for some. */
static int64_t bad_bytes(const char *block, int64_t n)
{
    const unsigned char *s = (const unsigned char *)block;
    int64_t bad = 0;
    for (int64_t i = 0; i < n;) {
        int more = s[i] < 0x80 ? 0 : s[i] < 0xc2 ? -1 : s[i] < 0xe0 ? 1 : s[i] < 0xf0 ? 2 : 3;
        bool ok = more >= 0 && s[i] < 0xf5 && s[i] != 0x7f &&
                  (s[i] >= ' ' || (s[i] >= '\b' && s[i] <= '\r') || s[i] == 0x1b);
        int k = 1;
        while (ok && k <= more && i + k < n && (s[i + k] & 0xc0) == 0x80)
            k++;
        ok = ok && (k == more + 1 || i + k == n);
        bad += ok ? 0 : k;
        i += k;
    }
    return bad;
}

bool text_like(const char *block, int64_t n)
{
    return bad_bytes(block, n) <= n / 10;
}

/* A hash of blocks that lie evenly from the first byte to the last. */
static uint64_t fingerprint(Ctx *ctx, int fd, DataFile *f)
{
    char block[BLOCK];
    uint64_t h = 0;
    int64_t bad = 0;
    int64_t last = MAX(f->nbytes - BLOCK, 0), n = MIN(f->nbytes, (int64_t)BLOCK);
    for (int i = 0; i < BLOCKS; i++) {
        /* last * i / (BLOCKS - 1), without overflow */
        int64_t at = last / (BLOCKS - 1) * i + last % (BLOCKS - 1) * i / (BLOCKS - 1);
        data_pread(ctx, f, fd, block, n, at);
        h = hash_bytes(block, (size_t)n, h);
        bad += bad_bytes(block, n);
    }
    f->text = bad <= n * BLOCKS / 10;
    return h;
}

static void read_head(Ctx *ctx, int fd, DataFile *f, TokenType type)
{
    struct stat st;
    if (fstat(fd, &st) || !f->nbytes)
        fail(ctx, TN_FAIL, "%s: no data: the file is empty", f->path);
    f->inode = (uint64_t)st.st_ino;
    f->changed = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    f->width = token_width(type);
    if (!parse_shard(ctx, fd, f, type)) {
        f->ntoken = f->nbytes / f->width;
        if (f->nbytes % f->width)
            fail(ctx, TN_FAIL, "%s: expected tokens of %d bytes, found %lld bytes", f->path,
                 f->width, (long long)f->nbytes);
    } else if (type != TOKEN_AUTO && f->width != token_width(type)) {
        fail(ctx, TN_FAIL, "%s: expected tokens of %d bytes, found a shard of %d", f->path,
             token_width(type), f->width);
    }
    if (!f->ntoken)
        fail(ctx, TN_FAIL, "%s: no data: a shard of 0 tokens", f->path);
    f->fingerprint = fingerprint(ctx, fd, f);
}

/* ---- all of them ---- */

static void drop_fd(void *p)
{
    if (*(int *)p >= 0)
        close(*(int *)p);
}

/* An open file, which stays open where it cannot be opened again. */
static void add_open(Arena *a, DataSet *s, int *fd, DataFile f, bool stays, TokenType type)
{
    f.first = s->ntoken;
    read_head(s->ctx, *fd, &f, type);
    f.fd = stays ? *fd : -1;
    if (!stays) {
        close(*fd);
        *fd = -1;
    }
    if (s->count && f.width == 1 && s->file[0].width > 1)
        fail(s->ctx, TN_FAIL,
             "%s: text or bytes, but %s has tokens of %d bytes; `tenon tokenize` makes tokens",
             f.path, s->file[0].path, s->file[0].width);
    if (s->count && f.width != s->file[0].width)
        fail(s->ctx, TN_FAIL, "%s: has tokens of %d bytes, but %s of %d", f.path, f.width,
             s->file[0].path, s->file[0].width);
    s->ntoken += f.ntoken;
    s->nbytes += f.nbytes;
    PUSH(a, s->file, s->count, s->cap, f);
}

static int *new_fd(Arena *a, int value)
{
    int *fd = NEW(a, int);
    *fd = value;
    arena_defer(a, drop_fd, fd);
    return fd;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return strcmp(path, "-") != 0 && !stat(path, &st) && S_ISDIR(st.st_mode);
}

static void add_file(Arena *a, DataSet *s, const char *path, TokenType type)
{
    bool standard = !strcmp(path, "-");
    DataFile f = {.path = arena_strdup(a, file_title(path))};
    if (is_folder(path))
        fail(s->ctx, TN_FAIL, "%s: a folder: expected a file", path);
    int *fd = new_fd(a, -1);
    *fd = file_open(s->ctx, path, &f.nbytes);
    add_open(a, s, fd, f, standard, type);
}

static void drop_glob(void *g)
{
    globfree(g);
}

static void drop_dir(void *d)
{
    closedir(d);
}

static int by_name(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Whether a name says that the file is about the others. */
static bool is_about(const char *path)
{
    static const char *const names[] = {"README*",  "readme*",           "LICENSE*",
                                        "license*", "dataset_info.json", "dataset_infos.json"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool found = false;
    for (int i = 0; i < LEN(names); i++)
        found |= !fnmatch(names[i], name, 0);
    return found;
}

/* Whether a name is that of records or tokens, which a README beside them describes. */
static bool is_of_data(const char *path)
{
    static const char *const ends[] = {"*.jsonl", "*.ndjson",  "*.json", "*.csv",
                                       "*.tsv",   "*.parquet", "*.bin"};
    char name[PATH_MAX];
    bool found = false;
    snprintf(name, sizeof name, "%s", path);
    size_t n = strlen(name), tail = !fnmatch("*.gz", name, 0)    ? 3
                                    : !fnmatch("*.zst", name, 0) ? 4
                                                                 : 0;
    name[n - tail] = 0;
    for (int i = 0; i < LEN(ends); i++)
        found |= !fnmatch(ends[i], name, 0);
    return found && !is_about(path);
}

/* Leaves out what is about the others, where these are data. */
static int leave_about(int count, const char **name)
{
    bool data = false;
    int kept = 0;
    for (int i = 0; i < count; i++)
        data |= is_of_data(name[i]);
    for (int i = 0; i < count; i++)
        if (!data || !is_about(name[i]))
            name[kept++] = name[i];
    return kept;
}

/* The files of a folder, by name, without hidden and empty ones and what is no regular file, nor
 * what is about data that is there. Folders in it are not gone into: a run may have its own there.
 */
static void add_folder(Arena *a, DataSet *s, const char *path, TokenType type)
{
    const char **name = NULL;
    int count = 0, cap = 0, folders = 0;
    struct stat st;
    size_t len = strlen(path);
    DIR *d = opendir(path);
    if (!d)
        fail(s->ctx, TN_FAIL, "%s: cannot open: %s", path, strerror(errno));
    arena_defer(a, drop_dir, d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || fstatat(dirfd(d), e->d_name, &st, 0))
            continue;
        folders += S_ISDIR(st.st_mode);
        if (S_ISREG(st.st_mode) && st.st_size)
            PUSH(a, name, count, cap,
                 arena_printf(a, len && path[len - 1] == '/' ? "%s%s" : "%s/%s", path, e->d_name));
    }
    if (!count)
        fail(s->ctx, TN_FAIL, "%s: no file in the folder%s", path,
             folders ? arena_printf(a, "; '%s/*/*' names the files of those in it", path) : "");
    count = leave_about(count, name);
    qsort(name, (size_t)count, sizeof *name, by_name);
    for (int i = 0; i < count; i++)
        add_file(a, s, name[i], type);
}

_Noreturn static void fail_missing(const DataSet *s, const char *path)
{
    char here[1024];
    const bool relative = *path != '/' && getcwd(here, sizeof here);
    fail(s->ctx, TN_FAIL, "%s: no such file, and no file matches it%s%s", path,
         relative ? ", in " : "", relative ? here : "");
}

static void add_path(Arena *a, DataSet *s, const char *path, TokenType type)
{
    if (is_folder(path)) {
        add_folder(a, s, path, type);
        return;
    }
    if (!strcmp(path, "-") || !access(path, F_OK)) {
        add_file(a, s, path, type);
        return;
    }
    glob_t *g = NEW(a, glob_t);
    arena_defer(a, drop_glob, g);
    int code = glob(path, 0, NULL, g);
    if (code == GLOB_NOSPACE)
        fail(s->ctx, TN_FAIL, "%s: out of memory", path);
    if (code)
        fail_missing(s, path);
    for (size_t i = 0; i < g->gl_pathc; i++)
        add_file(a, s, g->gl_pathv[i], type);
}

static DataSet *new_set(Arena *a, const DataOptions *o)
{
    DataSet *s = NEW(a, DataSet);
    s->ctx = arena_ctx(a);
    s->vocab = o->vocab;
    s->document = -1;
    if (!(o->val_fraction >= 0 && o->val_fraction <= 1))
        fail(s->ctx, TN_USAGE, "val-fraction: expected 0 to 1, found %g", o->val_fraction);
    return s;
}

static DataSet *hold_out(DataSet *s, const DataOptions *o)
{
    s->nval = (int64_t)((double)s->ntoken * o->val_fraction);
    s->ntrain = s->ntoken - s->nval;
    return s;
}

DataSet *data_open(Arena *a, int npath, const char *const *path, const DataOptions *o)
{
    DataSet *s = new_set(a, o);
    for (int i = 0; i < npath; i++)
        add_path(a, s, path[i], o->type);
    if (!s->ntoken)
        fail(s->ctx, TN_FAIL, "no data: no path given");
    return hold_out(s, o);
}

DataSet *data_open_fd(Arena *a, int fd, const char *title, const DataOptions *o)
{
    struct stat st;
    int *own = new_fd(a, -1);
    DataSet *s = new_set(a, o);
    *own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (*own < 0 || fstat(*own, &st))
        fail(s->ctx, TN_FAIL, "%s: cannot open: %s", title, strerror(errno));
    DataFile f = {.path = arena_strdup(a, title), .nbytes = st.st_size};
    add_open(a, s, own, f, true, o->type);
    return hold_out(s, o);
}

void data_check_text(Arena *tmp, const DataSet *s)
{
    enum { HEAD = 1 << 16 };
    char *head = NEWN(tmp, char, HEAD);
    for (int i = 0; i < s->count; i++) {
        const DataFile *f = &s->file[i];
        int64_t n = MIN(f->nbytes, (int64_t)HEAD);
        data_bytes(s, f, 0, n, head);
        foreign_check(tmp, f->path, head, (size_t)n, FOREIGN_AS_TOKENS);
    }
}

void data_set_document(DataSet *s, int64_t token)
{
    if (s->index)
        fail(s->ctx, TN_USAGE, "document-token: each row of %s is a document already",
             s->made_of ? s->made_of : s->file[0].path);
    if (token < 0 || (s->vocab && token >= s->vocab))
        fail(s->ctx, TN_USAGE, "document-token: expected an id below %lld, found %lld",
             (long long)s->vocab, (long long)token);
    s->document = token;
}
