/* Records of a file, one after the other: JSON Lines, objects one after the other, the objects of
 * an array, rows of a table. The window has the record that is read and no more of the file than
 * MAX_FEED bytes beside it, so memory does not depend on the file. Where JSON has one object a line
 * a damaged line is one damaged record; else objects end where their braces do. */
#include "record.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>

enum { HEAD = 1 << 16, MOST_RECORD = 64 << 20 };

void records_fail(const RecordReader *r, const char *format, ...)
{
    char message[900];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fail(r->ctx, TN_FAIL, "%s:%lld: %s", r->path, (long long)r->first, message);
}

bool records_fill(RecordReader *r)
{
    Buf *w = &r->window;
    char chunk[4096];
    if (r->ended)
        return false;
    if (r->at > w->len / 2 && r->at) {
        w->len -= r->at;
        memmove(w->text, w->text + r->at, w->len);
        r->at = 0;
    }
    size_t n = bytes_next(r->bytes, chunk, sizeof chunk);
    r->ended = !n;
    if (w->len - r->at + n > MOST_RECORD)
        records_fail(r, "expected a record of at most %d MiB", MOST_RECORD >> 20);
    buf_addn(w, chunk, n);
    return n > 0;
}

/* Skips a byte of the window. Lines end by LF, CR LF, or CR alone. */
static void skip(RecordReader *r)
{
    char c = r->window.text[r->at++];
    bool alone =
        c == '\r' && !((r->at < r->window.len || records_fill(r)) && r->window.text[r->at] == '\n');
    r->line += c == '\n' || alone;
}

/* Skips white space; false at the end of the file. */
static bool skip_space(RecordReader *r)
{
    for (;;) {
        while (r->at < r->window.len && isspace((unsigned char)r->window.text[r->at]))
            skip(r);
        if (r->at < r->window.len)
            return true;
        if (!records_fill(r))
            return false;
    }
}

/* ---- JSON ---- */

json_t *records_keep(RecordReader *r, json_t *record)
{
    json_decref(r->slot[0]);
    r->slot[0] = record;
    return record;
}

static const char *kind_of(const json_t *v)
{
    return json_is_array(v)    ? json_array_size(v) ? "an array" : "an array that is empty"
           : json_is_string(v) ? "a string"
           : json_is_number(v) ? "a number"
           : json_is_null(v)   ? "null"
                               : "true or false";
}

/* The record of n bytes at `at`, behind which the reader then stands. */
static json_t *read_json(RecordReader *r, size_t n)
{
    json_error_t e;
    const char *s = r->window.text + r->at;
    while (n && isspace((unsigned char)s[n - 1]))
        n--;
    json_t *v = records_keep(
        r, json_loadb(s, n, JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e));
    if (!v) {
        for (char *c = e.text; *c; c++)
            *c = iscntrl((unsigned char)*c) ? ' ' : *c;
        r->first += e.line > 1 ? e.line - 1 : 0;
        records_fail(r, "column %d: expected JSON: %s", MAX(e.column, 1), e.text);
    }
    if (!json_is_object(v))
        records_fail(r, "expected a JSON object, found %s", kind_of(v));
    for (size_t i = 0; i < n; i++)
        skip(r);
    return v;
}

static json_t *next_line(RecordReader *r)
{
    if (!skip_space(r))
        return NULL;
    r->first = r->line;
    size_t n = 0;
    for (;; n++) {
        if (r->at + n == r->window.len && !records_fill(r))
            break;
        if (r->window.text[r->at + n] == '\n' || r->window.text[r->at + n] == '\r')
            break;
    }
    return read_json(r, n);
}

/* The bytes of the value that begins at `at`, to where its brackets close. */
static size_t value_length(RecordReader *r)
{
    int depth = 0;
    bool string = false, escaped = false;
    for (size_t n = 0;; n++) {
        if (r->at + n == r->window.len && !records_fill(r))
            return n;
        char c = r->window.text[r->at + n];
        bool quote = c == '"' && !escaped;
        escaped = string && c == '\\' && !escaped;
        if (quote)
            string = !string;
        if (string)
            continue;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if (depth <= 0 && (c == '}' || c == ']'))
            return n + 1;
        if (!depth && (c == ',' || isspace((unsigned char)c)))
            return n;
    }
}

static json_t *next_object(RecordReader *r)
{
    if (!skip_space(r))
        return NULL;
    r->first = r->line;
    size_t n = value_length(r);
    return read_json(r, MIN(n, r->window.len - r->at));
}

/* The sign that an array has at this place. */
static char next_sign(RecordReader *r, const char *expected)
{
    bool there = skip_space(r);
    r->first = r->line;
    if (!there)
        records_fail(r, "expected %s, found the end of the file", expected);
    return r->window.text[r->at];
}

static json_t *end_array(RecordReader *r)
{
    skip(r);
    if (!skip_space(r))
        return NULL;
    r->first = r->line;
    records_fail(r, "expected the end of the file after the array, found more");
}

static json_t *next_item(RecordReader *r)
{
    if (!r->begun)
        skip(r); /* the bracket by which it was known */
    char c = next_sign(r, r->begun ? ", or ]" : "an object or ]");
    if (c == ']')
        return end_array(r);
    if (r->begun && c != ',')
        records_fail(r, "expected , or ], found %c", isprint((unsigned char)c) ? c : '?');
    if (r->begun) {
        skip(r);
        next_sign(r, "an object");
    }
    r->begun = true;
    return next_object(r);
}

/* ---- all of them ---- */

static void drop_record(void *p)
{
    json_t **slot = p;
    json_decref(slot[0]);
    json_decref(slot[1]);
}

static void skip_mark(RecordReader *r)
{
    if (r->window.len >= 3 && !memcmp(r->window.text, "\xef\xbb\xbf", 3))
        r->at = 3;
    if (r->form == FORM_ARRAY)
        skip_space(r);
}

/* The name without what says that it is compressed. */
static const char *plain_name(const RecordReader *r)
{
    size_t n = strlen(r->path);
    Compression form = bytes_form(r->bytes);
    size_t tail = form == IS_GZIP ? 3 : form == IS_ZSTD ? 4 : 0; /* .gz, .zst */
    bool named = tail && n > tail && r->path[n - tail] == '.';
    return arena_strndup(r->a, r->path, named ? n - tail : n);
}

static RecordReader *new_reader(Arena *a, const char *path)
{
    RecordReader *r = NEW(a, RecordReader);
    *r = (RecordReader){.ctx = arena_ctx(a), .a = a, .path = path, .line = 1, .first = 1};
    r->window.a = r->cell.a = a;
    r->slot = NEWN(a, json_t *, 2);
    arena_defer(a, drop_record, r->slot);
    buf_addn(&r->window, "", 0);
    return r;
}

RecordReader *records_open(Arena *a, const DataSet *s, const DataFile *f)
{
    RecordReader *r = new_reader(a, f->path);
    r->bytes = bytes_open(a, s, f);
    while (r->window.len < HEAD && records_fill(r))
        ;
    size_t n = MIN(r->window.len, (size_t)HEAD);
    if (bytes_form(r->bytes) != IS_PLAIN && !text_like(r->window.text, (int64_t)n))
        fail(r->ctx, TN_FAIL, "%s: expected text in what is compressed, found bytes that are none",
             f->path);
    r->form = foreign_form(a, plain_name(r), r->window.text, n, &r->separator, &r->as_text);
    skip_mark(r);
    return r;
}

RecordReader *records_of_text(Arena *a, const char *where, const char *text, size_t n)
{
    RecordReader *r = new_reader(a, where);
    r->form = FORM_LINES;
    r->ended = true;
    buf_addn(&r->window, text, n);
    return r;
}

json_t *records_next(RecordReader *r)
{
    switch (r->form) {
    case FORM_LINES: return next_line(r);
    case FORM_OBJECTS: return next_object(r);
    case FORM_ARRAY: return next_item(r);
    case FORM_TABLE: return csv_next(r);
    default: CHECK(!"a form with records");
    }
    return NULL;
}
