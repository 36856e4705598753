/* Reads safetensors (huggingface.co/docs/safetensors): u64 length n, n bytes of JSON
 * {"NAME": {"dtype", "shape", "data_offsets": [begin, end]}, ...}, then the numbers, little-endian.
 *
 * A header is used only after all of it was checked: n against the file's size before anything is
 * allocated, dtype, number of elements times size against the span, and that the spans cover the
 * data exactly, without gap or overlap. Tensors are then read by pread straight into the caller's
 * memory (a mapped file would count twice in the resident size); conversions use one fixed buffer
 * and round to nearest even, once. The host must be little-endian. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors.c reads little-endian numbers without swapping"
#endif

enum { MAX_HEADER = 100000000, CHUNK = 1 << 15 };

const char *const tensors_dtype_name[NDTYPE] = {
    [F64] = "F64", [F32] = "F32", [F16] = "F16", [BF16] = "BF16",
    [I64] = "I64", [I32] = "I32", [U8] = "U8",   [BOOL] = "BOOL"};

/* ---- open ---- */

static int read_at(int fd, void *dst, int64_t n, int64_t at)
{
    for (char *p = dst; n > 0;) {
        ssize_t got = pread(fd, p, (size_t)MIN(n, 1 << 30), at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : ENODATA;
        p += got;
        at += got;
        n -= got;
    }
    return 0;
}

static const char *read_error(int why)
{
    return why == ENODATA ? "the file ends too early"
           : why == EBADF ? "the file is closed (tn_model_close_files)"
                          : strerror(why);
}

void tensors_close(TensorFile *f)
{
    for (int i = 0; i < f->nfile; i++) {
        if (f->file[i].fd >= 0)
            close(f->file[i].fd);
        f->file[i].fd = -1;
    }
}

static void drop_files(void *f)
{
    tensors_close(f);
}

static int add_file(TensorFile *f, const char *path)
{
    struct TensorPart part = {.path = arena_strdup(f->a, file_title(path)), .fd = -1};
    PUSH(f->a, f->file, f->nfile, f->capfile, part);
    struct TensorPart *own = &f->file[f->nfile - 1];
    own->fd = file_open(arena_ctx(f->a), path, &own->nbytes);
    return f->nfile - 1;
}

typedef struct Header {
    int fd;
    int64_t at, end;
} Header;

static size_t next_bytes(void *buffer, size_t size, void *data)
{
    Header *h = data;
    int64_t n = MIN((int64_t)size, h->end - h->at);
    if (read_at(h->fd, buffer, n, h->at))
        return (size_t)-1;
    h->at += n;
    return (size_t)n;
}

static DType parse_dtype(Json j)
{
    const char *name = json_get_string(j, "dtype");
    for (int d = 0; d < NDTYPE; d++)
        if (!strcmp(name, tensors_dtype_name[d]))
            return (DType)d;
    fail(arena_ctx(j.a), TN_FAIL, "%s: dtype \"%s\" is not supported", j.where, name);
}

/* The tensor under one key; begin is counted from the first data byte. */
static TensorEntry parse_entry(Json all, const char *name, int64_t ndata)
{
    Json j = json_get_object(all, name);
    Ctx *ctx = arena_ctx(j.a);
    for (const char *key = json_next(j, NULL); key; key = json_next(j, key))
        if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
            fail(ctx, TN_FAIL, "%s: unknown key \"%s\"", j.where, key);
    TensorEntry e = {.name = arena_strdup(j.a, name), .type.dtype = parse_dtype(j)};
    e.type.rank = json_get_ints(j, "shape", TN_RANK, e.type.dim);
    int64_t span[2] = {0}, nbytes = dtype_size(e.type.dtype);
    bool overflow = false;
    for (int d = 0; d < e.type.rank; d++)
        overflow |= __builtin_mul_overflow(nbytes, e.type.dim[d], &nbytes);
    if (json_get_ints(j, "data_offsets", 2, span) != 2 || span[0] > span[1] || span[1] > ndata)
        fail(ctx, TN_FAIL, "%s: data_offsets do not lie in the file's %lld bytes of data", j.where,
             (long long)ndata);
    if (overflow || nbytes != span[1] - span[0])
        fail(ctx, TN_FAIL, "%s: %s does not fill its %lld bytes", j.where, type_text(j.a, &e.type),
             (long long)(span[1] - span[0]));
    e.begin = span[0];
    return e;
}

static int by_position(const void *x, const void *y)
{
    const TensorEntry *s = x, *t = y;
    int64_t ns = type_nelem(&s->type), nt = type_nelem(&t->type); /* empty ones first */
    if (s->begin != t->begin)
        return s->begin < t->begin ? -1 : 1;
    return (ns > 0) - (nt > 0);
}

/* Sorts the entries from `first` on and checks that they cover [0, ndata) once. */
static void check_cover(TensorFile *f, int first, int64_t ndata, const char *path)
{
    int64_t at = 0;
    if (f->count > first)
        qsort(f->entry + first, (size_t)(f->count - first), sizeof *f->entry, by_position);
    for (int i = first; i < f->count; i++) {
        const TensorEntry *e = &f->entry[i];
        if (e->begin != at)
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\" begins at data byte %lld, expected %lld: %s",
                 path, e->name, (long long)e->begin, (long long)at,
                 e->begin < at ? "it overlaps another tensor" : "there is a hole before it");
        at += type_nbytes(&e->type);
    }
    if (at != ndata)
        fail(arena_ctx(f->a), TN_FAIL, "%s: the tensors fill %lld bytes, found %lld", path,
             (long long)at, (long long)ndata);
}

/* Places and names of the entries from `first` on, which are in `file` after `header` bytes. */
static void add_names(TensorFile *f, int first, int file, int64_t header)
{
    for (int i = first; i < f->count; i++) {
        TensorEntry *e = &f->entry[i];
        e->begin += header;
        e->file = file;
        if (map_find(&f->names, e->name))
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\" is in another file of this model too",
                 f->file[file].path, e->name);
        map_put(&f->names, e->name, (void *)(intptr_t)(i + 1));
    }
}

/* Eight hexadecimal digits. */
static uint32_t parse_sum(Json meta, const char *key)
{
    const char *text = json_get_string(meta, key);
    if (strspn(text, "0123456789abcdef") != 8 || text[8])
        fail(arena_ctx(meta.a), TN_FAIL,
             "%s: \"%s\": expected a checksum of eight hexadecimal digits, found \"%.20s\"",
             meta.where, key, text);
    return (uint32_t)strtoul(text, NULL, 16);
}

/* Texts by name, as safetensors reads it, of which those that are checksums go to the tensors of
 * the file, the entries from `first` on; what they say of others means nothing. */
static void read_metadata(TensorFile *f, Json all, int first)
{
    Json meta = json_find_object(all, "__metadata__");
    for (const char *key = meta.object ? json_next(meta, NULL) : NULL; key;
         key = json_next(meta, key))
        json_get_string(meta, key);
    for (int i = first; meta.object && i < f->count; i++) {
        TensorEntry *e = &f->entry[i];
        const char *key = arena_printf(f->a, TENSORS_SUM "%s", e->name);
        e->summed = json_given(meta, key);
        e->sum = e->summed ? parse_sum(meta, key) : 0;
    }
}

static void read_header(TensorFile *f, int file)
{
    Ctx *ctx = arena_ctx(f->a);
    struct TensorPart *part = &f->file[file];
    uint64_t n;
    int first = f->count, why = part->nbytes < 8 ? ENODATA : read_at(part->fd, &n, 8, 0);
    if (why)
        fail(ctx, TN_FAIL, "%s: cannot read the header: %s", part->path, read_error(why));
    if (n > (uint64_t)(part->nbytes - 8) || n > MAX_HEADER)
        fail(ctx, TN_FAIL, "%s: not safetensors: its header claims %llu of the file's %lld bytes",
             part->path, (unsigned long long)n, (long long)part->nbytes);
    Header h = {part->fd, 8, 8 + (int64_t)n};
    Json all = json_stream(f->a, next_bytes, &h, part->path);
    int64_t ndata = part->nbytes - h.end;
    for (const char *key = json_next(all, NULL); key; key = json_next(all, key))
        if (strcmp(key, "__metadata__"))
            PUSH(f->a, f->entry, f->count, f->cap, parse_entry(all, key, ndata));
    read_metadata(f, all, first);
    check_cover(f, first, ndata, part->path);
    add_names(f, first, file, h.end);
}

/* The files that the index lists, each once, and that each tensor is in the file it says. One that
 * is in a file but not in the index is refused: what the index lists is what the model has. */
static void read_index(TensorFile *f, const char *folder, const char *index)
{
    Json map = json_get_object(json_read(f->a, index), "weight_map");
    Map seen = {.a = f->a};
    for (const char *key = json_next(map, NULL); key; key = json_next(map, key)) {
        const char *name = json_get_string(map, key);
        if (strchr(name, '/'))
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\" leaves the folder", map.where, name);
        if (map_find(&seen, name))
            continue;
        int file = add_file(f, arena_printf(f->a, "%s/%s", folder, name));
        map_put(&seen, arena_strdup(f->a, name), (void *)(intptr_t)(file + 1));
        read_header(f, file);
    }
    for (const char *key = json_next(map, NULL); key; key = json_next(map, key)) {
        const TensorEntry *e = tensors_find(f, key);
        if (!e || e->file + 1 != (intptr_t)map_find(&seen, json_get_string(map, key)))
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\" is not in %s", map.where, key,
                 json_get_string(map, key));
    }
    for (int i = 0; i < f->count; i++)
        if (!json_given(map, f->entry[i].name))
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\" of %s is not listed", map.where,
                 f->entry[i].name, f->file[f->entry[i].file].path);
}

static void read_part(void *from, void *to, int64_t n, int64_t at)
{
    const TensorFile *f = from;
    const struct TensorPart *part = &f->file[f->nfile - 1];
    int why = read_at(part->fd, to, n, at);
    if (why)
        fail(arena_ctx(f->a), TN_FAIL, "%s: %s", part->path, read_error(why));
}

/* A file alone: safetensors, or a program of PyTorch with its weights. */
static void read_file(TensorFile *f, const char *path)
{
    int file = add_file(f, path);
    const struct TensorPart *part = &f->file[file];
    char begin[ZIP_BEGINS];
    if (part->nbytes < ZIP_BEGINS || read_at(part->fd, begin, ZIP_BEGINS, 0) || !zip_begins(begin))
        read_header(f, file);
    else
        tensors_read_exported(f, file, zip_open(f->a, part->path, part->nbytes, read_part, f));
}

TensorFile *tensors_open(Arena *a, const char *path)
{
    TensorFile *f = NEW(a, TensorFile);
    *f = (TensorFile){.a = a, .path = arena_strdup(a, file_title(path)), .names = {.a = a}};
    arena_defer(a, drop_files, f);
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        read_file(f, path);
        return f;
    }
    const char *one = arena_printf(a, "%s/model.safetensors", path);
    const char *index = arena_printf(a, "%s/model.safetensors.index.json", path);
    const char *latest = arena_printf(a, "%s/latest", path);
    file_check_link(arena_ctx(a), one);
    if (access(one, F_OK) && access(index, F_OK) && !access(latest, F_OK))
        fail(arena_ctx(a), TN_FAIL,
             "%s: no model.safetensors there: of a run name the checkpoint, %s", path, latest);
    if (access(one, F_OK) && !access(index, F_OK))
        read_index(f, path, index);
    else
        read_header(f, add_file(f, one));
    return f;
}

const TensorEntry *tensors_find(const TensorFile *f, const char *name)
{
    intptr_t i = (intptr_t)map_find(&f->names, name);
    return i ? &f->entry[i - 1] : NULL;
}

const TensorEntry *tensors_get(const TensorFile *f, const char *name)
{
    const TensorEntry *e = tensors_find(f, name);
    if (e)
        return e;
    const char **names = NEWN(f->a, const char *, f->count);
    for (int i = 0; i < f->count; i++)
        names[i] = f->entry[i].name;
    const char *near = nearest(name, names, f->count);
    fail(arena_ctx(f->a), TN_FAIL, "%s: there is no tensor \"%s\"%s%s%s", f->path, name,
         near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

/* ---- read ---- */

/* significand bits and greatest exponent of what a dtype holds exactly; integers by their range */
static bool holds_all(DType to, DType from)
{
    static const struct {
        int digits, exponent;
    } p[NDTYPE] = {[F64] = {53, 1023}, [F32] = {24, 127}, [F16] = {11, 15}, [BF16] = {8, 127},
                   [I64] = {63, 62},   [I32] = {31, 30},  [U8] = {8, 7},    [BOOL] = {1, 0}};
    if (to == from)
        return true;
    if (to == BOOL || (dtype_float(from) && !dtype_float(to)))
        return false;
    return p[to].digits >= p[from].digits && p[to].exponent >= p[from].exponent;
}

/* x to the nearest float that a second rounding to 16 bits cannot round the wrong way: where it is
 * not exact, the neighbour whose last bit is odd (Boldo and Melquiond, rounding to odd). */
static float round_to_odd(double x)
{
    float y = (float)x;
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    if (y == x || isnan(x) || bits & 1)
        return y;
    if (isinf(y))
        return x > 0 ? 0x1.fffffep127f : -0x1.fffffep127f;
    return nextafterf(y, x > y ? INFINITY : -INFINITY);
}

#define EACH(x)                 \
    for (int i = 0; i < n; i++) \
        x;                      \
    break

/* n numbers of a chunk as double; of i64 those beyond 2^53 are rounded. */
static void decode(DType d, const char *src, int n, double *x)
{
    switch (d) {
    case F64: EACH(x[i] = ((const double *)src)[i]);
    case F32: EACH(x[i] = ((const float *)src)[i]);
    case F16: EACH(x[i] = f16_to_f32(((const uint16_t *)src)[i]));
    case BF16: EACH(x[i] = bf16_to_f32(((const uint16_t *)src)[i]));
    case I64: EACH(x[i] = (double)((const int64_t *)src)[i]);
    case I32: EACH(x[i] = ((const int32_t *)src)[i]);
    default: EACH(x[i] = ((const uint8_t *)src)[i]);
    }
}

/* The first of n numbers that would become infinite in d, or -1. */
static int find_overflow(DType d, const double *x, int n)
{
    static const double least_infinite[NDTYPE] = {
        [F64] = INFINITY, [F32] = 0x1.ffffffp127, [F16] = 65520, [BF16] = 0x1.ffp127};
    for (int i = 0; dtype_float(d) && i < n; i++)
        if (fabs(x[i]) >= least_infinite[d] && !isinf(x[i]))
            return i;
    return -1;
}

static void encode(DType d, const double *x, int n, char *dst)
{
    switch (d) {
    case F64: EACH(((double *)dst)[i] = x[i]);
    case F32: EACH(((float *)dst)[i] = (float)x[i]);
    case F16: EACH(((uint16_t *)dst)[i] = f32_to_f16(round_to_odd(x[i])));
    case BF16: EACH(((uint16_t *)dst)[i] = f32_to_bf16(round_to_odd(x[i])));
    case I64: EACH(((int64_t *)dst)[i] = (int64_t)x[i]);
    case I32: EACH(((int32_t *)dst)[i] = (int32_t)x[i]);
    default: EACH(((uint8_t *)dst)[i] = (uint8_t)x[i]);
    }
}

_Noreturn static void fail_read(const TensorFile *f, const TensorEntry *e, int why)
{
    fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\": cannot read: %s", f->file[e->file].path, e->name,
         read_error(why));
}

/* Elements [at, at + n) of a tensor, of which a bool must be 0 or 1. */
static void check_values(const TensorFile *f, const TensorEntry *e, const char *raw, int64_t at,
                         int64_t n)
{
    for (int64_t i = 0; e->type.dtype == BOOL && i < n; i++)
        if (raw[i] & ~1)
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\": element %lld is neither false nor true",
                 f->file[e->file].path, e->name, (long long)(at + i));
}

/* Elements [first, end). I64 takes this path from the narrower integers too: they are exact in
 * double. */
static void convert(const TensorFile *f, const TensorEntry *e, DType want, int64_t first,
                    int64_t end, char *dst)
{
    _Alignas(64) char raw[CHUNK];
    double x[CHUNK / 8];
    DType d = e->type.dtype;
    for (int64_t at = first; at < end; at += LEN(x)) {
        int n = (int)MIN(LEN(x), end - at), size = dtype_size(d);
        int why = read_at(f->file[e->file].fd, raw, (int64_t)n * size, e->begin + at * size);
        if (why)
            fail_read(f, e, why);
        check_values(f, e, raw, at, n);
        decode(d, raw, n, x);
        int bad = find_overflow(want, x, n);
        if (bad >= 0)
            fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\": element %lld, %.9g, is too large for %s",
                 f->file[e->file].path, e->name, (long long)(at + bad), x[bad], dtype_name(want));
        encode(want, x, n, dst + (at - first) * dtype_size(want));
    }
}

void tensors_read_part(const TensorFile *f, const TensorEntry *e, DType want, bool lossy,
                       int64_t first, int64_t n, void *dst)
{
    DType d = e->type.dtype;
    bool rounds = lossy && dtype_float(want);
    if (!holds_all(want, d) && !rounds)
        fail(arena_ctx(f->a), TN_FAIL, "%s: \"%s\": expected %s, found %s, which would lose digits",
             f->file[e->file].path, e->name, dtype_name(want), type_text(f->a, &e->type));
    if (want != d) {
        convert(f, e, want, first, first + n, dst);
        return;
    }
    int64_t size = dtype_size(d);
    int why = read_at(f->file[e->file].fd, dst, n * size, e->begin + first * size);
    if (why)
        fail_read(f, e, why);
    check_values(f, e, dst, first, n);
}

void tensors_read(const TensorFile *f, const TensorEntry *e, DType want, bool lossy, void *dst)
{
    tensors_read_part(f, e, want, lossy, 0, type_nelem(&e->type), dst);
}

static void verify(const TensorFile *f, const TensorEntry *e, char *block, int64_t most)
{
    const int64_t nbytes = type_nbytes(&e->type);
    uint32_t sum = 0;
    for (int64_t at = 0, n; at < nbytes; at += n) {
        n = MIN(most, nbytes - at);
        int why = read_at(f->file[e->file].fd, block, n, e->begin + at);
        if (why)
            fail_read(f, e, why);
        sum = crc32c_add(sum, block, n);
    }
    sum = crc32c_end(sum, nbytes);
    if (sum != e->sum)
        fail(arena_ctx(f->a), TN_FAIL,
             "%s: \"%s\": expected the checksum %08x, which its file says, found %08x: its numbers "
             "are not those that were saved",
             f->file[e->file].path, e->name, e->sum, sum);
}

void tensors_verify(const TensorFile *f, int64_t first, int64_t stride)
{
    enum { BLOCK = 1 << 18 };
    char *block = arena_alloc(arena_tmp(f->a), BLOCK);
    for (int64_t i = first; i < f->count; i += stride)
        if (f->entry[i].summed)
            verify(f, &f->entry[i], block, BLOCK);
}

bool tensors_same(const TensorFile *f, const TensorEntry *s, const TensorEntry *t)
{
    char x[CHUNK], y[CHUNK];
    int64_t nbytes = type_nbytes(&s->type);
    if (!type_equal(&s->type, &t->type))
        return false;
    for (int64_t at = 0; at < nbytes; at += CHUNK) {
        int64_t n = MIN(CHUNK, nbytes - at);
        int why = read_at(f->file[s->file].fd, x, n, s->begin + at);
        if (why)
            fail_read(f, s, why);
        why = read_at(f->file[t->file].fd, y, n, t->begin + at);
        if (why)
            fail_read(f, t, why);
        if (memcmp(x, y, (size_t)n))
            return false;
    }
    return true;
}
