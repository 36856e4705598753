/* The bytes of a file, decompressed as they are read where it is gzip's or zstd's: several streams
 * one after the other are one, as the programs of these names write them. A hash of the file's own
 * bytes is taken on the way. Memory does not depend on the size. */
#include "record.h"

#include <string.h>
#ifdef TN_ZLIB
#include <zlib.h>
#endif
#ifdef TN_ZSTD
#include <zstd.h>
#endif

struct ByteStream {
    const DataSet *set;
    const DataFile *file;
    char *raw;       /* MAX_FEED bytes */
    size_t nraw, at; /* of which some were taken */
    int64_t next;    /* byte of the file that is read next */
    uint64_t hash;   /* of those before */
    bool inside;     /* a stream has begun and not ended */
    Compression form;
#ifdef TN_ZLIB
    z_stream gzip;
#endif
#ifdef TN_ZSTD
    ZSTD_DStream *zstd;
#endif
};

Compression bytes_compression(const char *head, size_t n)
{
    if (n >= 3 && !memcmp(head, "\x1f\x8b\x08", 3))
        return IS_GZIP;
    if (n >= 4 && !memcmp(head, "\x28\xb5\x2f\xfd", 4))
        return IS_ZSTD;
    return IS_PLAIN;
}

/* ---- the file's own bytes ---- */

static bool fill(ByteStream *b)
{
    int64_t n = MIN(b->file->nbytes - b->next, (int64_t)MAX_FEED);
    if (b->at < b->nraw)
        return true;
    if (n <= 0)
        return false;
    data_bytes(b->set, b->file, b->next, n, b->raw);
    b->hash = hash_bytes(b->raw, (size_t)n, b->hash);
    b->next += n;
    b->nraw = (size_t)n;
    b->at = 0;
    return true;
}

static size_t take_plain(ByteStream *b, char *to, size_t most)
{
    size_t n = fill(b) ? MIN(most, b->nraw - b->at) : 0;
    memcpy(to, b->raw + b->at, n);
    b->at += n;
    return n;
}

static const char *form_name(const ByteStream *b)
{
    return b->form == IS_GZIP ? "gzip" : "zstd";
}

#if !defined(TN_ZLIB) || !defined(TN_ZSTD)
_Noreturn static void refuse(const ByteStream *b, const char *library)
{
    fail(b->set->ctx, TN_FAIL,
         "%s: expected text, found %s, compressed, for which this build has no %s\n"
         "  tools/deps.sh compress installs it; %s -dc makes text of it",
         b->file->path, form_name(b), library, form_name(b));
}
#endif

#if defined(TN_ZLIB) || defined(TN_ZSTD)
_Noreturn static void broken(const ByteStream *b, const char *what)
{
    fail(b->set->ctx, TN_FAIL, "%s: before byte %lld: %s: %s", b->file->path,
         (long long)(b->next - (int64_t)(b->nraw - b->at)), form_name(b), what);
}
#endif

/* ---- gzip ---- */

#ifdef TN_ZLIB
static void end_gzip(void *stream)
{
    inflateEnd(stream);
}

static void begin_gzip(Arena *a, ByteStream *b)
{
    enum { WINDOW = 15, GZIP = 16 };
    if (inflateInit2(&b->gzip, WINDOW + GZIP) != Z_OK)
        fail(b->set->ctx, TN_FAIL, "out of memory");
    arena_defer(a, end_gzip, &b->gzip);
}

static size_t take_gzip(ByteStream *b, char *to, size_t most)
{
    z_stream *z = &b->gzip;
    z->next_out = (unsigned char *)to;
    z->avail_out = (unsigned)most;
    while (z->avail_out == most && fill(b)) {
        z->next_in = (unsigned char *)b->raw + b->at;
        z->avail_in = (unsigned)(b->nraw - b->at);
        int code = inflate(z, Z_NO_FLUSH);
        b->at = b->nraw - z->avail_in;
        if (code == Z_STREAM_END)
            inflateReset(z);
        else if (code != Z_OK && code != Z_BUF_ERROR)
            broken(b, z->msg ? z->msg : "damaged");
        b->inside = code != Z_STREAM_END;
    }
    return most - z->avail_out;
}
#else
static void begin_gzip(Arena *a, ByteStream *b)
{
    (void)a;
    refuse(b, "zlib");
}

static size_t take_gzip(ByteStream *b, char *to, size_t most)
{
    return take_plain(b, to, most);
}
#endif

/* ---- zstd ---- */

#ifdef TN_ZSTD
static void end_zstd(void *stream)
{
    ZSTD_freeDStream(stream);
}

static void begin_zstd(Arena *a, ByteStream *b)
{
    b->zstd = ZSTD_createDStream();
    if (!b->zstd)
        fail(b->set->ctx, TN_FAIL, "out of memory");
    arena_defer(a, end_zstd, b->zstd);
}

static size_t take_zstd(ByteStream *b, char *to, size_t most)
{
    ZSTD_outBuffer out = {to, most, 0};
    for (bool more = true; !out.pos && more;) {
        more = fill(b);
        ZSTD_inBuffer in = {b->raw, b->nraw, b->at};
        size_t left = ZSTD_decompressStream(b->zstd, &out, &in);
        b->at = in.pos;
        if (ZSTD_isError(left))
            broken(b, ZSTD_getErrorName(left));
        b->inside = left != 0 && (more || b->inside);
    }
    return out.pos;
}
#else
static void begin_zstd(Arena *a, ByteStream *b)
{
    (void)a;
    refuse(b, "libzstd");
}

static size_t take_zstd(ByteStream *b, char *to, size_t most)
{
    return take_plain(b, to, most);
}
#endif

/* ---- all of them ---- */

ByteStream *bytes_open(Arena *a, const DataSet *s, const DataFile *f)
{
    ByteStream *b = NEW(a, ByteStream);
    *b = (ByteStream){.set = s, .file = f, .raw = NEWN(a, char, MAX_FEED)};
    if (fill(b))
        b->form = bytes_compression(b->raw, b->nraw);
    if (b->form == IS_GZIP)
        begin_gzip(a, b);
    if (b->form == IS_ZSTD)
        begin_zstd(a, b);
    return b;
}

size_t bytes_next(ByteStream *b, char *to, size_t most)
{
    size_t n = b->form == IS_GZIP   ? take_gzip(b, to, most)
               : b->form == IS_ZSTD ? take_zstd(b, to, most)
                                    : take_plain(b, to, most);
    if (!n && b->inside)
        fail(b->set->ctx, TN_FAIL,
             "%s: %s: expected the end of the compressed stream, found the "
             "end of the file",
             b->file->path, form_name(b));
    return n;
}

int64_t bytes_done(const ByteStream *b)
{
    return b->next;
}

uint64_t bytes_hash(const ByteStream *b)
{
    return b->hash;
}

Compression bytes_form(const ByteStream *b)
{
    return b->form;
}

const char *bytes_libraries(void)
{
    return ""
#ifdef TN_ZLIB
           "\nzlib " ZLIB_VERSION
#endif
#ifdef TN_ZSTD
           "\nzstd " ZSTD_VERSION_STRING
#endif
        ;
}
