/* Tokenizes the texts of a data set once, into one flat token file. A record beside it, FILE.json,
 * says from what it was made, and is renamed into place before the file: wherever a process is
 * killed, either both agree or the next process makes them again. A file without a record belongs
 * to someone else and is not touched.
 *
 * The file is reused if the record names the same tokenizer (a hash of its file), the same texts in
 * the same order, and the size and fingerprint that the file has. A text is the same if its size
 * and fingerprint are, and either the time of its last change or a hash of all its bytes. */
#include "tokenizer.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX = 17 };

typedef struct TextJob {
    Ctx *ctx;
    Arena *tmp;
    const DataSet *text;
    const Tokenizer *t;
    const TextOptions *o;
    const char *record; /* path of FILE.json; NULL: there is none */
    char tokenizer[HEX];
    char *buffer;   /* MAX_FEED bytes */
    uint64_t *hash; /* of all of each text */
    Writer *w;
    int64_t done, count; /* bytes read, ids written */
    int64_t limit;       /* all ids lie below it */
    const char *where;   /* the text that is read */
} TextJob;

static TokenType width_of(const Tokenizer *t)
{
    return tokenizer_limit(t) > UINT16_MAX + 1 ? TOKEN_U32 : TOKEN_U16;
}

static DataOptions data_options(const TextJob *j)
{
    return (DataOptions){width_of(j->t), j->o->val_fraction, j->o->vocab};
}

static void put_hex(char text[HEX], uint64_t x)
{
    snprintf(text, HEX, "%016" PRIx64, x);
}

static uint64_t hash_text(const TextJob *j, const DataFile *f)
{
    uint64_t h = 0;
    for (int64_t at = 0, n; at < f->nbytes; at += n) {
        n = MIN(f->nbytes - at, (int64_t)MAX_FEED);
        data_bytes(j->text, f, at, n, j->buffer);
        h = hash_bytes(j->buffer, (size_t)n, h);
    }
    return h;
}

static void hash_tokenizer(TextJob *j)
{
    DataOptions o = {.type = TOKEN_BYTE};
    TextJob x = *j;
    if (j->t->bytes) { /* of no file */
        put_hex(j->tokenizer, 0);
        return;
    }
    x.text = data_open(j->tmp, 1, &j->t->path, &o);
    put_hex(j->tokenizer, hash_text(&x, &x.text->file[0]));
}

/* ---- what there is ---- */

static bool says(Json j, const char *key, uint64_t x)
{
    char text[HEX];
    put_hex(text, x);
    return !strcmp(json_get_string(j, key), text);
}

static bool same_text(const TextJob *j, Json r, const DataFile *f)
{
    return json_get_int(r, "nbytes", 0, INT64_MAX) == f->nbytes &&
           says(r, "fingerprint", f->fingerprint) &&
           (json_get_int(r, "changed", INT64_MIN, INT64_MAX) == f->changed ||
            says(r, "hash", hash_text(j, f)));
}

/* The first text that is another than the record says; NULL: none is. */
static const char *other_text(const TextJob *j, Json r)
{
    const DataFile *f = j->text->file;
    size_t count = json_count(r, "texts"), i = 0;
    while (i < count && i < (size_t)j->text->count && same_text(j, json_item(r, "texts", i), &f[i]))
        i++;
    return i < (size_t)j->text->count ? f[i].path : i < count ? "--data" : NULL;
}

/* Whether the token file is the one of the record; *other is what differs now of all that it was
 * made of, NULL: nothing. */
static bool is_whole(const TextJob *j, const char **other)
{
    DataOptions o = data_options(j);
    Json r = json_read(j->tmp, j->record);
    const DataFile *f = data_open(j->tmp, 1, &j->o->path, &o)->file;
    bool alike = json_get_int(r, "version", 1, INT64_MAX) == 1 &&
                 !strcmp(json_get_string(r, "tokenizer"), j->tokenizer) &&
                 json_get_int(r, "between", -1, INT64_MAX) == j->o->between &&
                 (!o.vocab || json_get_int(r, "limit", 0, INT64_MAX) <= o.vocab);
    *other = alike ? other_text(j, r) : j->t->path;
    return f->ntoken == json_get_int(r, "tokens", 0, INT64_MAX) &&
           says(r, "fingerprint", f->fingerprint);
}

/* Whether the token file is what would be made. One that cannot be read is not. */
static bool is_made(const TextJob *j)
{
    const char **other = NEW(j->tmp, const char *);
    volatile bool whole = false;
    if (!j->record || access(j->record, F_OK))
        return false;
    TRY(t, j->ctx)
        whole = is_whole(j, other);
    if (tried(&t) || !whole)
        return false;
    if (*other && j->o->keep)
        fail(j->ctx, TN_FAIL, "%s: the run began with other content, of which %s has the tokens",
             *other, j->o->path);
    return !*other;
}

/* ---- making it ---- */

_Noreturn static void fail_vocab(const TextJob *j, uint32_t id)
{
    fail(j->ctx, TN_FAIL,
         "%s: token %" PRId64 " is %u, but the model has %" PRId64
         " tokens: the tokenizer has %" PRId64 "\n  %s",
         j->where, j->count, id, j->o->vocab, tokenizer_limit(j->t), j->t->path);
}

static void put(void *arg, const uint32_t *id, size_t n)
{
    TextJob *j = arg;
    size_t width = (size_t)token_width(width_of(j->t));
    for (size_t i = 0; i < n; i++, j->count++) {
        char bytes[4];
        for (int k = 0; k < 4; k++)
            bytes[k] = (char)(id[i] >> (8 * k));
        if (j->o->vocab && id[i] >= j->o->vocab)
            fail_vocab(j, id[i]);
        j->limit = MAX(j->limit, (int64_t)id[i] + 1);
        writer_put(j->w, bytes, width);
    }
}

static void report(const TextJob *j)
{
    if (j->o->progress && !j->o->progress(j->o->arg, j->done, j->text->nbytes))
        fail(j->ctx, TN_FAIL, "stopped");
}

static void encode(TextJob *j, Encoder *e, int i)
{
    const DataFile *f = &j->text->file[i];
    j->where = f->path;
    encoder_begin(e, f->path);
    for (int64_t at = 0, n; at < f->nbytes; at += n) {
        n = MIN(f->nbytes - at, (int64_t)MAX_FEED);
        data_bytes(j->text, f, at, n, j->buffer);
        j->hash[i] = hash_bytes(j->buffer, (size_t)n, j->hash[i]);
        encoder_feed(e, j->buffer, (size_t)n);
        j->done += n;
        report(j);
    }
    encoder_end(e);
}

/* The texts in a message. */
static const char *title_of(Arena *a, const DataSet *text)
{
    const char *first = text->file[0].path;
    return text->count < 2 ? arena_printf(a, "%s", first)
                           : arena_printf(a, "%s and %d more", first, text->count - 1);
}

/* The file and its record are renamed into place: a pipe or a device there would be written to. */
static void check_plain(const TextJob *j, const char *path)
{
    struct stat st;
    if (path && !stat(path, &st) && !S_ISREG(st.st_mode))
        fail(j->ctx, TN_FAIL, "%s: not a regular file: it is not written to; remove it", path);
}

static void make_tokens(TextJob *j)
{
    check_plain(j, j->o->path);
    check_plain(j, j->record);
    if (j->record && !j->o->keep && !access(j->o->path, F_OK) && access(j->record, F_OK))
        fail(j->ctx, TN_FAIL,
             "%s: there is no %s, so it is not a run's: it is not replaced; remove it where it is",
             j->o->path, j->record);
    j->w = j->o->path ? writer_open(j->tmp, j->o->path) : writer_aside(j->tmp);
    Encoder *e = encoder_new(j->tmp, j->t, put, j);
    const uint32_t between = (uint32_t)j->o->between;
    for (int i = 0; i < j->text->count; i++) {
        if (i && j->o->between >= 0)
            put(j, &between, 1);
        encode(j, e, i);
    }
    writer_flush(j->w);
    if (!j->count)
        fail(j->ctx, TN_FAIL, "%s: no token comes of it", title_of(j->tmp, j->text));
    encoder_tell(e, j->tmp, j->o->warn, j->o->warn_arg);
}

static void write_record(const TextJob *j)
{
    char hex[HEX], whole[HEX];
    Buf b = {.a = j->tmp};
    DataOptions how = data_options(j);
    const DataSet *tokens = data_open_fd(j->tmp, j->w->fd, j->w->path, &how);
    put_hex(hex, tokens->file[0].fingerprint);
    buf_printf(&b,
               "{\"version\": 1, \"token_type\": \"u%d\", \"tokens\": %" PRId64
               ", \"fingerprint\": \"%s\", \"limit\": %" PRId64 ", \"between\": %" PRId64
               ", \"tokenizer\": \"%s\", \"texts\": [",
               8 * tokens->file[0].width, j->count, hex, j->limit, j->o->between, j->tokenizer);
    for (int i = 0; i < j->text->count; i++) {
        const DataFile *f = &j->text->file[i];
        put_hex(hex, f->fingerprint);
        put_hex(whole, j->hash[i]);
        buf_printf(&b,
                   "%s\n {\"nbytes\": %" PRId64 ", \"changed\": %" PRId64
                   ", \"fingerprint\": \"%s\", \"hash\": \"%s\"}",
                   i ? "," : "", f->nbytes, f->changed, hex, whole);
    }
    buf_add(&b, "]}\n");
    file_write(j->ctx, j->record, b.text, b.len);
}

DataSet *data_tokenize(Arena *a, Arena *tmp, const DataSet *text, const Tokenizer *t,
                       const TextOptions *o, bool *made)
{
    TextJob j = {.ctx = arena_ctx(tmp), .tmp = tmp, .text = text, .t = t, .o = o};
    DataOptions how = data_options(&j);
    j.record = o->path ? arena_printf(tmp, "%s.json", o->path) : NULL;
    j.buffer = NEWN(tmp, char, MAX_FEED);
    j.hash = NEWN(tmp, uint64_t, text->count);
    hash_tokenizer(&j);
    *made = !is_made(&j);
    if (*made)
        make_tokens(&j);
    if (!j.record)
        return data_open_fd(a, j.w->fd, text->file[0].path, &how);
    if (*made) {
        write_record(&j);
        writer_close(j.w);
    }
    DataSet *s = data_open(a, 1, &o->path, &how);
    s->made_of = title_of(a, text);
    return s;
}
