/* Writes safetensors: under another name, synced, then renamed; in shards if a folder's weights are
 * large. Also computes how many bytes will be written, from names and shapes alone. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct TensorWriter {
    Arena *a;
    const char *path;
    char *aside; /* NULL where path is written directly */
    int fd, n;
    const TensorOut *t;
    const TensorSource *from; /* NULL: of each the data */
} TensorWriter;

static void drop_writer(void *p)
{
    TensorWriter *w = p;
    if (w->fd > STDOUT_FILENO)
        close(w->fd);
    if (w->aside)
        unlink(w->aside);
}

static void open_writer(TensorWriter *w)
{
    Ctx *ctx = arena_ctx(w->a);
    struct stat st;
    arena_defer(w->a, drop_writer, w);
    if (!strcmp(w->path, "-")) {
        w->fd = STDOUT_FILENO;
    } else if (!stat(w->path, &st) && !S_ISREG(st.st_mode)) {
        w->fd = open(w->path, O_WRONLY | O_CLOEXEC); /* a device or pipe cannot be renamed over */
    } else {
        char *aside = arena_printf(w->a, "%s.tmp%ld", w->path, (long)getpid());
        w->fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        w->aside = w->fd < 0 ? NULL : aside;
    }
    if (w->fd < 0)
        fail(ctx, TN_FAIL, "%s: cannot create: %s", w->path, strerror(errno));
}

static void put(TensorWriter *w, const void *data, int64_t n)
{
    for (const char *p = data; n > 0;) {
        ssize_t done = write(w->fd, p, (size_t)MIN(n, 1 << 30));
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            fail(arena_ctx(w->a), TN_FAIL, "%s: cannot write: %s", w->path, strerror(errno));
        p += done;
        n -= done;
    }
}

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

static void check_names(TensorWriter *w)
{
    Map seen = {.a = w->a};
    for (int i = 0; i < w->n; i++) {
        const char *name = w->t[i].name;
        if (map_find(&seen, name) || !strcmp(name, "__metadata__"))
            fail(arena_ctx(w->a), TN_FAIL, "%s: two tensors are named \"%s\"", w->path, name);
        map_put(&seen, name, (void *)(intptr_t)1);
    }
}

/* Larger elements come first, so that each tensor is aligned to its element. The metadata is what
 * Hugging Face's loader asks for. */
static Buf header_text(Arena *a, int n, const TensorOut *t)
{
    Buf b = {.a = a};
    int64_t begin = 0;
    buf_add(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int size = 8; size; size /= 2)
        for (int i = 0; i < n; i++)
            if (dtype_size(t[i].type.dtype) == size) {
                add_entry(&b, &t[i], begin);
                begin += type_nbytes(&t[i].type);
            }
    buf_add(&b, "}");
    while (b.len % 8)
        buf_add(&b, " ");
    return b;
}

static void put_tensor(TensorWriter *w, const TensorOut *t)
{
    int64_t nbytes = type_nbytes(&t->type);
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at;
        const void *data = w->from ? w->from->piece(w->from->arg, t, at, &n) : t->data;
        put(w, data, n);
    }
}

static void write_tensors(void *arg)
{
    TensorWriter *w = arg;
    check_names(w);
    Buf b = header_text(w->a, w->n, w->t);
    uint64_t n = b.len;
    open_writer(w);
    put(w, &n, 8);
    put(w, b.text, (int64_t)b.len);
    for (int size = 8; size; size /= 2)
        for (int i = 0; i < w->n; i++)
            if (dtype_size(w->t[i].type.dtype) == size)
                put_tensor(w, &w->t[i]);
    if (!w->aside)
        return;
    if (fsync(w->fd) || rename(w->aside, w->path))
        fail(arena_ctx(w->a), TN_FAIL, "%s: cannot write: %s", w->path, strerror(errno));
    w->aside = NULL;
}

void tensors_write_from(Ctx *ctx, const char *path, int n, const TensorOut *t,
                        const TensorSource *from)
{
    TensorWriter w = {.a = arena_new(ctx), .path = path, .fd = -1, .n = n, .t = t, .from = from};
    if (!w.a)
        fail(ctx, TN_FAIL, "out of memory");
    Code code = ctx_try(ctx, write_tensors, &w);
    arena_free(w.a);
    if (code)
        fail_again(ctx, "");
}

void tensors_write(Ctx *ctx, const char *path, int n, const TensorOut *t)
{
    tensors_write_from(ctx, path, n, t, NULL);
}

/* ---- shards ---- */

static int64_t sum_bytes(int n, const TensorOut *t)
{
    int64_t nbytes = 0;
    for (int i = 0; i < n; i++)
        nbytes += type_nbytes(&t[i].type);
    return nbytes;
}

int64_t tensors_size(Arena *a, int n, const TensorOut *t)
{
    return 8 + (int64_t)header_text(a, n, t).len + sum_bytes(n, t);
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

void tensors_write_folder(Arena *a, const char *folder, int64_t most, int n, const TensorOut *t,
                          const TensorSource *from)
{
    Ctx *ctx = arena_ctx(a);
    if (!most || sum_bytes(n, t) <= most) {
        tensors_write_from(ctx, arena_printf(a, "%s/model.safetensors", folder), n, t, from);
        return;
    }
    int nfile = count_shards(n, t, most);
    for (int i = 0, count, file = 1; i < n; i += count, file++) {
        const char *path = arena_printf(a, "%s/%s", folder, shard_name(a, file, nfile));
        count = count_fitting(n - i, t + i, most);
        tensors_write_from(ctx, path, count, t + i, from);
    }
    Buf index = index_text(a, most, n, t);
    file_write(ctx, arena_printf(a, "%s/model.safetensors.index.json", folder), index.text,
               index.len);
}

void tensors_folder_sizes(Arena *a, int64_t most, int n, const TensorOut *t, FileSizes *sizes)
{
    if (!most || sum_bytes(n, t) <= most) {
        sizes_add(sizes, tensors_size(a, n, t));
        return;
    }
    for (int i = 0, count; i < n; i += count) {
        count = count_fitting(n - i, t + i, most);
        sizes_add(sizes, tensors_size(a, count, t + i));
    }
    sizes_add(sizes, (int64_t)index_text(a, most, n, t).len);
}

void sizes_add(FileSizes *s, int64_t nbytes)
{
    s->nbytes += (nbytes + s->block - 1) / s->block * s->block;
    s->largest = MAX(s->largest, nbytes);
}
