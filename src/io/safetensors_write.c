/* Writes safetensors: under another name, synced, then renamed; in shards if a folder's weights are
 * large. One process begins and ends a file; others may join it and put bytes of their own, which
 * each can then compare with what is in the file. Also computes how many bytes will be written,
 * from names and shapes alone.
 *
 * Checksums of tensors stand in the header's metadata, in room of fixed size that is filled when
 * all bytes were put: whoever puts a piece adds its sum (crc32c.c). */
#define _GNU_SOURCE /* pread, pwrite, posix_fadvise, sync_file_range */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- where tensors lie in a file ---- */

static void add_quoted(Buf *b, const char *s)
{
    buf_add(b, "\"");
    for (; *s; s++)
        if ((unsigned char)*s < ' ')
            buf_printf(b, "\\u%04x", *s);
        else
            buf_printf(b, "%s%c", *s == '"' || *s == '\\' ? "\\" : "", *s);
    buf_add(b, "\"");
}

static void add_entry(Buf *b, const TensorOut *t, int64_t begin)
{
    buf_add(b, ",");
    add_quoted(b, t->name);
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", tensors_dtype_name[t->type.dtype]);
    for (int d = 0; d < t->type.rank; d++)
        buf_printf(b, "%s%lld", d ? "," : "", (long long)t->type.dim[d]);
    buf_printf(b, "],\"data_offsets\":[%lld,%lld]}", (long long)begin,
               (long long)(begin + type_nbytes(&t->type)));
}

static void check_names(Arena *a, const char *path, int n, const TensorOut *t)
{
    Map seen = {.a = a};
    for (int i = 0; i < n; i++) {
        if (!text_utf8(t[i].name))
            fail(arena_ctx(a), TN_FAIL, "%s: expected names of tensors in UTF-8, found \"%s\"",
                 path, t[i].name);
        if (map_find(&seen, t[i].name) || !strcmp(t[i].name, "__metadata__"))
            fail(arena_ctx(a), TN_FAIL, "%s: two tensors are named \"%s\"", path, t[i].name);
        map_put(&seen, t[i].name, (void *)(intptr_t)1);
    }
}

/* The metadata: what Hugging Face's loader asks for, and room for checksums. */
static void add_metadata(Buf *b, const TensorOut *t, TensorLayout *l)
{
    buf_add(b, "\"__metadata__\":{\"format\":\"pt\"");
    for (int i = 0; l->digits && i < l->n; i++) {
        buf_add(b, ",");
        add_quoted(b, arena_printf(b->a, TENSORS_SUM "%s", t[i].name));
        buf_add(b, ":\"");
        l->digits[i] = (int64_t)b->len;
        buf_add(b, "00000000\"");
    }
    buf_add(b, "}");
}

/* Larger elements come first, so that each tensor is aligned to its element. */
static TensorLayout make_layout(Arena *a, int n, const TensorOut *t, bool summed)
{
    TensorLayout l = {
        .header = {.a = a}, .n = n, .order = NEWN(a, int, n), .begin = NEWN(a, int64_t, n)};
    Buf *b = &l.header;
    int64_t begin = 0, length;
    int count = 0;
    l.size = NEWN(a, int64_t, n);
    l.digits = summed ? NEWN(a, int64_t, n) : NULL;
    buf_addn(b, (const char[8]){0}, 8);
    buf_add(b, "{");
    add_metadata(b, t, &l);
    for (int size = 8; size; size /= 2)
        for (int i = 0; i < n; i++)
            if (dtype_size(t[i].type.dtype) == size) {
                add_entry(b, &t[i], begin);
                l.begin[i] = begin;
                l.size[i] = type_nbytes(&t[i].type);
                l.order[count++] = i;
                begin += l.size[i];
            }
    buf_add(b, "}");
    while (b->len % 8)
        buf_add(b, " ");
    length = (int64_t)b->len - 8;
    memcpy(b->text, &length, 8);
    for (int i = 0; i < n; i++)
        l.begin[i] += (int64_t)b->len;
    l.nbytes = begin + (int64_t)b->len;
    return l;
}

TensorLayout tensors_layout(Arena *a, const char *path, int n, const TensorOut *t, bool summed)
{
    check_names(a, path, n, t);
    return make_layout(a, n, t, summed);
}

/* ---- a file that is being written ---- */

enum {
    CHECKED = 1 << 16, /* bytes that are compared at once */
    LARGE = 1 << 20    /* bytes that the disk begins to write while others are computed and put */
};

/* Bytes [at, at + n) that were put. */
typedef struct PutRange {
    int64_t at, n;
    uint64_t hash;
} PutRange;

struct TensorWriter {
    Arena *a;
    const char *path, *aside; /* aside NULL: path is written directly */
    const TensorLayout *l;
    uint32_t *sum; /* by tensor, of what was put; NULL: the layout has none */
    int fd;
    bool began, shared;
    PutRange *put; /* of a file that several write */
    int nput, capput;
};

static void drop_writer(void *p)
{
    TensorWriter *w = p;
    if (w->fd > STDOUT_FILENO)
        close(w->fd);
    if (w->aside && w->began)
        unlink(w->aside);
}

_Noreturn static void fail_file(const TensorWriter *w, const char *what)
{
    fail(arena_ctx(w->a), TN_FAIL, "%s: cannot %s: %s", w->path, what, strerror(errno));
}

static TensorWriter *new_writer(Arena *a, const char *path, const TensorLayout *l, bool shared)
{
    TensorWriter *w = NEW(a, TensorWriter);
    *w = (TensorWriter){.a = a, .path = path, .l = l, .fd = -1, .shared = shared};
    w->sum = l->digits ? NEWN(a, uint32_t, l->n) : NULL;
    arena_defer(a, drop_writer, w);
    return w;
}

static const char *aside_name(Arena *a, const char *path, int64_t pid)
{
    return arena_printf(a, "%s.tmp%lld", path, (long long)pid);
}

static void open_writer(TensorWriter *w)
{
    struct stat st;
    if (!strcmp(w->path, "-")) {
        w->fd = STDOUT_FILENO;
    } else if (!stat(w->path, &st) && !S_ISREG(st.st_mode)) {
        w->fd = open(w->path, O_WRONLY | O_CLOEXEC); /* a device or pipe cannot be renamed over */
    } else {
        const char *aside = aside_name(w->a, w->path, getpid());
        w->fd = file_create_aside(aside);
        w->began = w->fd >= 0;
        w->aside = w->began ? aside : NULL;
    }
    if (w->fd < 0)
        fail_file(w, "create");
}

/* By position where the file has one. */
static void write_bytes(TensorWriter *w, int64_t at, const char *p, int64_t n)
{
    while (n > 0) {
        size_t most = (size_t)MIN(n, 1 << 30);
        ssize_t done = w->aside ? pwrite(w->fd, p, most, at) : write(w->fd, p, most);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            fail_file(w, "write");
        p += done;
        at += done;
        n -= done;
    }
}

TensorWriter *tensors_begin(Arena *a, const char *path, const TensorLayout *l, bool shared)
{
    TensorWriter *w = new_writer(a, path, l, shared);
    open_writer(w);
    if (shared && w->aside && ftruncate(w->fd, l->nbytes))
        fail_file(w, "write");
    write_bytes(w, 0, l->header.text, (int64_t)l->header.len);
    return w;
}

bool tensors_in_order(const TensorWriter *w)
{
    return !w->aside;
}

TensorWriter *tensors_join(Arena *a, const char *path, const TensorLayout *l, int64_t pid)
{
    TensorWriter *w = new_writer(a, path, l, true);
    w->aside = aside_name(a, path, pid);
    w->fd = open(w->aside, O_RDWR | O_CLOEXEC);
    if (w->fd < 0)
        fail_file(w, "open what rank 0 has begun");
    return w;
}

/* Hashes whole words; returns how many bytes are left. */
static int64_t hash_words(const char *p, int64_t n, uint64_t *h)
{
    uint64_t word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        *h = (*h ^ word) * 0x9e3779b97f4a7c15U;
        *h ^= *h >> 32;
    }
    return n;
}

static uint64_t hash_end(const char *end, int64_t left, uint64_t h)
{
    return hash_bytes(end - left, (size_t)left, h);
}

/* The tensor that has the byte at a position: the last in the file that begins there or before. */
static int tensor_at(const TensorLayout *l, int64_t at)
{
    int low = 0, high = l->n;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        bool before = l->begin[l->order[middle]] <= at;
        low = before ? middle : low;
        high = before ? high : middle;
    }
    return l->order[low];
}

static void add_sum(TensorWriter *w, int64_t at, const void *data, int64_t n)
{
    int i = tensor_at(w->l, at);
    int64_t after = w->l->begin[i] + w->l->size[i] - (at + n);
    w->sum[i] ^= crc32c_move(crc32c_add(0, data, n), after);
}

const uint32_t *tensors_sums(const TensorWriter *w)
{
    return w->sum;
}

void tensors_seal(TensorWriter *w, const uint32_t *sum)
{
    TensorLayout l = *w->l;
    CHECK(l.digits && w->aside);
    for (int i = 0; i < l.n; i++)
        memcpy(l.header.text + l.digits[i],
               arena_printf(w->a, "%08x", crc32c_end(sum[i], l.size[i])), 8);
    write_bytes(w, 0, l.header.text, (int64_t)l.header.len);
}

void tensors_put(TensorWriter *w, int64_t at, const void *data, int64_t n)
{
    write_bytes(w, at, data, n);
    if (w->aside && n >= LARGE)
        sync_file_range(w->fd, at, n,
                        SYNC_FILE_RANGE_WRITE); /* the disk begins; if not, at fsync */
    if (w->sum && n)
        add_sum(w, at, data, n);
    if (!w->shared || !w->aside || !n)
        return;
    PutRange r = {at, n, 0};
    int64_t left = hash_words(data, n, &r.hash);
    r.hash = hash_end((const char *)data + n, left, r.hash);
    PUSH(w->a, w->put, w->nput, w->capput, r);
}

void tensors_sync(TensorWriter *w)
{
    if (w->aside && fsync(w->fd))
        fail_file(w, "write");
}

/* Returns how many bytes there are, less than n where the file ends. */
static int64_t read_bytes(TensorWriter *w, int64_t at, char *to, int64_t n)
{
    int64_t have = 0;
    for (ssize_t got = 1; got && have < n; have += got) {
        while ((got = pread(w->fd, to + have, (size_t)(n - have), at + have)) < 0)
            if (errno != EINTR)
                fail_file(w, "read back");
    }
    return have;
}

static bool is_there(TensorWriter *w, const PutRange *r)
{
    char chunk[CHECKED];
    uint64_t h = 0;
    int64_t have = 0, left = 0;
    for (int64_t at = r->at, end = r->at + r->n; at < end; at += have) {
        have = MIN(end - at, CHECKED);
        if (read_bytes(w, at, chunk, have) < have)
            return false;
        left = hash_words(chunk, have, &h);
    }
    return hash_end(chunk + have, left, h) == r->hash;
}

void tensors_check(TensorWriter *w)
{
    posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED); /* so that it comes from the disk */
    for (int i = 0; i < w->nput; i++)
        if (!is_there(w, &w->put[i]))
            fail(arena_ctx(w->a), TN_FAIL,
                 "%s: what was read back is not what was written, %lld bytes at %lld", w->path,
                 (long long)w->put[i].n, (long long)w->put[i].at);
}

void tensors_end(TensorWriter *w)
{
    if (!w->aside)
        return;
    if (rename(w->aside, w->path))
        fail_file(w, "write");
    w->aside = NULL;
}

static void write_tensors(Arena *a, const char *path, int n, const TensorOut *t)
{
    TensorLayout l = tensors_layout(a, path, n, t, false);
    TensorWriter *w = tensors_begin(a, path, &l, false);
    for (int k = 0; k < n; k++) {
        int i = l.order[k];
        tensors_put(w, l.begin[i], t[i].data, type_nbytes(&t[i].type));
    }
    tensors_sync(w);
    tensors_end(w);
}

void tensors_write(Ctx *ctx, const char *path, int n, const TensorOut *t)
{
    TRY(call, ctx)
        write_tensors(try_arena(&call), path, n, t);
    if (tried(&call))
        fail_again(ctx, "");
}

/* ---- shards ---- */

static int64_t sum_bytes(int n, const TensorOut *t)
{
    int64_t nbytes = 0;
    for (int i = 0; i < n; i++)
        nbytes += type_nbytes(&t[i].type);
    return nbytes;
}

int64_t tensors_size(Arena *a, int n, const TensorOut *t, bool summed)
{
    return make_layout(a, n, t, summed).nbytes;
}

/* How many of the first of n tensors go into one file: at least one. */
static int count_fitting(int n, const TensorOut *t, int64_t most)
{
    int64_t nbytes = type_nbytes(&t[0].type);
    int count = 1;
    while (count < n && (nbytes += type_nbytes(&t[count].type)) <= most)
        count++;
    return count;
}

static int count_shards(int n, const TensorOut *t, int64_t most)
{
    int nfile = 0;
    for (int i = 0; i < n; i += count_fitting(n - i, t + i, most))
        nfile++;
    return nfile;
}

static const char *shard_name(Arena *a, int file, int nfile)
{
    return arena_printf(a, "model-%05d-of-%05d.safetensors", file, nfile);
}

static Buf index_text(Arena *a, int64_t most, int n, const TensorOut *t)
{
    Buf b = {.a = a};
    int nfile = count_shards(n, t, most);
    buf_printf(&b, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
               (long long)sum_bytes(n, t));
    for (int i = 0, count, file = 1; i < n; i += count, file++) {
        const char *name = shard_name(a, file, nfile);
        count = count_fitting(n - i, t + i, most);
        for (int k = i; k < i + count; k++) {
            buf_add(&b, k ? ",\n    " : "\n    ");
            add_quoted(&b, t[k].name);
            buf_printf(&b, ": \"%s\"", name);
        }
    }
    buf_add(&b, "\n  }\n}\n");
    return b;
}

TensorShard *tensors_shards(Arena *a, const char *folder, int64_t most, int n, const TensorOut *t,
                            int *count)
{
    bool one = !most || sum_bytes(n, t) <= most;
    int nfile = one ? 1 : count_shards(n, t, most);
    TensorShard *s = NEWN(a, TensorShard, nfile);
    *count = nfile;
    for (int i = 0, file = 0; file < nfile; i += s[file++].n) {
        const char *name = one ? "model.safetensors" : shard_name(a, file + 1, nfile);
        s[file].path = arena_printf(a, "%s/%s", folder, name);
        s[file].n = one ? n : count_fitting(n - i, t + i, most);
        s[file].t = t + i;
    }
    return s;
}

void tensors_write_index(Arena *a, const char *folder, int64_t most, int n, const TensorOut *t)
{
    if (!most || sum_bytes(n, t) <= most)
        return;
    Buf index = index_text(a, most, n, t);
    file_write(arena_ctx(a), arena_printf(a, "%s/model.safetensors.index.json", folder), index.text,
               index.len);
}

void tensors_folder_sizes(Arena *a, int64_t most, int n, const TensorOut *t, FileSizes *sizes)
{
    if (!most || sum_bytes(n, t) <= most) {
        sizes_add(sizes, tensors_size(a, n, t, true));
        return;
    }
    for (int i = 0, count; i < n; i += count) {
        count = count_fitting(n - i, t + i, most);
        sizes_add(sizes, tensors_size(a, count, t + i, true));
    }
    sizes_add(sizes, (int64_t)index_text(a, most, n, t).len);
}

void sizes_add(FileSizes *s, int64_t nbytes)
{
    s->nbytes += (nbytes + s->block - 1) / s->block * s->block;
    s->largest = MAX(s->largest, nbytes);
}
