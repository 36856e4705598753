/* Tokenizes the texts of a data set once, into one flat token file, or chats into a file of rows
 * (data_rows.c). A record beside it, FILE.json,
 * says from what it was made, and is renamed into place before the file: wherever a process is
 * killed, either both agree or the next process makes them again. A file without a record belongs
 * to someone else and is not touched.
 *
 * The file is reused if the record names the same tokenizer (a hash of its file), the same texts in
 * the same order, and the size and fingerprint that the file has. A text is the same if its size
 * and fingerprint are, and either the time of its last change or a hash of all its bytes. */
#include "record.h"

#include <inttypes.h>
#include <jansson.h>
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
    RowMaker *rows;      /* the file is one of rows; NULL: it is not */
    Chat *chat;          /* NULL: there is no template */
    bool begun;          /* a text was put */
} TextJob;

static TokenType width_of(const Tokenizer *t)
{
    return tokenizer_limit(t) > UINT16_MAX + 1 ? TOKEN_U32 : TOKEN_U16;
}

static DataOptions data_options(const TextJob *j)
{
    bool rows = holds_rows(j->o->holds); /* whose file has other things than ids too */
    return (DataOptions){rows ? TOKEN_U32 : width_of(j->t), j->o->val_fraction, j->o->vocab};
}

static uint64_t hash_chat(const TextJob *j)
{
    return j->chat ? chat_hash(j->chat) : 0;
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
    bool rows = holds_rows(j->o->holds);
    Json r = json_read(j->tmp, j->record);
    const DataFile *f = data_open(j->tmp, 1, &j->o->path, &o)->file;
    bool alike = json_get_int(r, "version", 1, INT64_MAX) == 1 &&
                 !strcmp(json_get_string(r, "tokenizer"), j->tokenizer) &&
                 json_get_int(r, "between", -1, INT64_MAX) == j->o->between &&
                 json_find_int(r, "holds", 0, INT64_MAX, HOLDS_PLAIN) == j->o->holds &&
                 json_find_int(r, "seq", 0, INT64_MAX, 0) == (rows ? j->o->seq : 0) &&
                 (!rows || says(r, "chat", hash_chat(j))) &&
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
         " tokens: the tokenizer has %" PRId64
         "\n  tenon train --resize-embeddings adds rows for them, by the mean; the tokenizer is %s",
         j->where, j->count, id, j->o->vocab, tokenizer_limit(j->t), j->t->path);
}

/* Writes ids, each with the bits that a row gives it. */
static void put(void *arg, const uint32_t *id, size_t n)
{
    TextJob *j = arg;
    size_t width = j->rows ? 4 : (size_t)token_width(width_of(j->t));
    for (size_t i = 0; i < n; i++, j->count++) {
        char bytes[4];
        uint32_t plain = j->rows ? id[i] & (ROW_LEARNED - 1) : id[i];
        for (int k = 0; k < 4; k++)
            bytes[k] = (char)(id[i] >> (8 * k));
        if (j->o->vocab && plain >= j->o->vocab)
            fail_vocab(j, plain);
        j->limit = MAX(j->limit, (int64_t)plain + 1);
        writer_put(j->w, bytes, width);
    }
}

static void report(const TextJob *j)
{
    if (j->o->progress && !j->o->progress(j->o->arg, j->done, j->text->nbytes))
        fail(j->ctx, TN_FAIL, "stopped");
}

/* Between two texts. */
static void separate(TextJob *j)
{
    const uint32_t between = (uint32_t)j->o->between;
    if (j->begun && j->o->between >= 0)
        put(j, &between, 1);
    j->begun = true;
}

static void encode(TextJob *j, Encoder *e, int i)
{
    const DataFile *f = &j->text->file[i];
    separate(j);
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

/* A compressed text: what the reader has looked at, and what follows. */
static void encode_rest(TextJob *j, Encoder *e, RecordReader *r, int64_t before)
{
    size_t n;
    separate(j);
    encoder_begin(e, r->path);
    encoder_feed(e, r->window.text + r->at, r->window.len - r->at);
    while ((n = bytes_next(r->bytes, j->buffer, MAX_FEED))) {
        encoder_feed(e, j->buffer, n);
        j->done = before + bytes_done(r->bytes);
        report(j);
    }
    encoder_end(e);
}

static void encode_record(TextJob *j, Encoder *e, const RecordReader *r, const Document *d)
{
    size_t n;
    bool chats = j->o->holds == HOLDS_ROWS;
    if ((d->kind == DOCUMENT_TEXT) == chats)
        records_fail(r, "expected %s, as the first record has, found %s",
                     chats ? "a chat, or a prompt and its completion" : "\"text\"",
                     chats ? "\"text\"" : "another kind");
    if (j->rows) {
        const uint32_t *id = rows_make(j->rows, r, d, &n);
        put(j, id, n);
        return;
    }
    n = json_string_length(d->text);
    if (!n)
        return;
    separate(j);
    encoder_begin(e, r->path);
    encoder_feed(e, json_string_value(d->text), n);
    encoder_end(e);
}

static void encode_records(TextJob *j, Encoder *e, int i)
{
    enum { OFTEN = 64 };
    Arena *a = arena_tmp(j->tmp);
    RecordReader *r = records_open(a, j->text, &j->text->file[i]);
    int64_t before = j->done, count = 0;
    j->where = r->path;
    if (r->form == FORM_TEXT && j->rows)
        fail(j->ctx, TN_USAGE,
             "pack: expected records, found the text %s, whose windows are full already", r->path);
    if (r->form == FORM_TEXT)
        encode_rest(j, e, r, before);
    else
        for (json_t *record; (record = records_next(r));) {
            Document d = document_read(r, record);
            encode_record(j, e, r, &d);
            j->done = before + bytes_done(r->bytes);
            if (++count % OFTEN == 0)
                report(j);
        }
    j->hash[i] = bytes_hash(r->bytes);
    j->done = before + j->text->file[i].nbytes;
    report(j);
    arena_reset(a);
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

static const char *why_no_chat(const TextJob *j)
{
    if (!j->o->chat)
        return "the model has no folder with a tokenizer_config.json";
    return arena_printf(j->tmp,
                        "there is no chat_template.jinja in %s, and no chat_template in its "
                        "tokenizer_config.json",
                        j->o->chat);
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
    if (holds_rows(j->o->holds))
        j->rows = rows_new(j->tmp, j->t, j->chat, why_no_chat(j), j->o->seq, j->o->between);
    for (int i = 0; i < j->text->count; i++) {
        j->where = j->text->file[i].path;
        if (j->o->holds == HOLDS_PLAIN)
            encode(j, e, i);
        else
            encode_records(j, e, i);
    }
    if (j->rows)
        rows_end(j->rows, j->w);
    writer_flush(j->w);
    if (!j->count)
        fail(j->ctx, TN_FAIL, "%s: %s%s", title_of(j->tmp, j->text),
             j->rows ? "nothing of it is learned: " : "no token comes of it",
             j->rows ? rows_why_none(j->rows, j->tmp) : "");
    encoder_tell(e, j->tmp, j->o->warn, j->o->warn_arg);
    if (j->rows)
        rows_tell(j->rows, j->tmp, j->o->warn, j->o->warn_arg);
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
               ", \"tokenizer\": \"%s\", ",
               8 * tokens->file[0].width, tokens->ntoken, hex, j->limit, j->o->between,
               j->tokenizer);
    put_hex(hex, hash_chat(j));
    if (j->o->holds != HOLDS_PLAIN)
        buf_printf(&b, "\"holds\": %d, ", (int)j->o->holds);
    if (j->rows)
        buf_printf(&b, "\"seq\": %" PRId64 ", \"chat\": \"%s\", ", j->o->seq, hex);
    buf_add(&b, "\"texts\": [");
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

/* A file of rows is opened as one of u32, which then is taken as one of rows. */
static DataSet *take(const TextJob *j, DataSet *s)
{
    if (holds_rows(j->o->holds))
        data_take_rows(s, j->o->val_fraction);
    return s;
}

DataSet *data_tokenize(Arena *a, Arena *tmp, const DataSet *text, const Tokenizer *t,
                       const TextOptions *o, bool *made)
{
    TextJob j = {.ctx = arena_ctx(tmp), .tmp = tmp, .text = text, .t = t, .o = o};
    DataOptions how = data_options(&j);
    j.record = o->path ? arena_printf(tmp, "%s.json", o->path) : NULL;
    j.buffer = NEWN(tmp, char, MAX_FEED);
    j.hash = NEWN(tmp, uint64_t, text->count);
    j.chat = o->holds == HOLDS_ROWS && o->chat ? chat_open(tmp, o->chat) : NULL;
    hash_tokenizer(&j);
    *made = !is_made(&j);
    if (*made)
        make_tokens(&j);
    if (!j.record)
        return take(&j, data_open_fd(a, j.w->fd, text->file[0].path, &how));
    if (*made) {
        write_record(&j);
        writer_close(j.w);
    }
    DataSet *s = take(&j, data_open(a, 1, &o->path, &how));
    s->made_of = title_of(a, text);
    return s;
}

/* ---- what files hold ---- */

/* By its first record; a file without any is of texts. */
static DataHolds file_holds(Arena *a, const DataSet *s, const DataFile *f)
{
    RecordReader *r = records_open(a, s, f);
    if (r->form == FORM_TEXT)
        return bytes_form(r->bytes) == IS_PLAIN ? HOLDS_PLAIN : HOLDS_TEXTS;
    json_t *record = records_next(r);
    if (!record)
        return HOLDS_TEXTS;
    return document_read(r, record).kind == DOCUMENT_TEXT ? HOLDS_TEXTS : HOLDS_ROWS;
}

DataHolds data_holds(Arena *tmp, const DataSet *s)
{
    Arena *a = arena_tmp(tmp);
    DataHolds all = HOLDS_PLAIN;
    for (int i = 0; i < s->count; i++) {
        DataHolds one = file_holds(a, s, &s->file[i]);
        if (i && (one == HOLDS_ROWS) != (all == HOLDS_ROWS))
            fail(s->ctx, TN_FAIL, "%s: expected %s, as %s has, found %s", s->file[i].path,
                 all == HOLDS_ROWS ? "chats, or prompts and completions" : "text", s->file[0].path,
                 all == HOLDS_ROWS ? "text" : "chats, or prompts and completions");
        all = MAX(all, one);
        arena_reset(a);
    }
    return all;
}
