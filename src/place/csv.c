/* Buffers as comma-separated values, the field's form (MiniMalloc's, and others'): a header with
 * the columns id, lower, upper and size in any order, then a row for each buffer, alive from
 * position lower on and no longer at upper. By RFC 4180: a field in quotes may hold commas, line
 * ends and quotes, which are doubled there; lines end by LF, CRLF or CR. A byte order mark and
 * lines of nothing but blanks are passed over, and so are blanks around numbers and the names of
 * columns.
 *
 * Rows are kept as parts of the text, so that what is written is what was read, in its order and
 * with all of its columns, but for the offsets. Linear in the text. */
#include "place.h"

#include <string.h>

enum { ID, LOWER, UPPER, SIZE, OFFSET, NCOLUMN };
static const char *const columns[NCOLUMN] = {"id", "lower", "upper", "size", "offset"};

typedef struct CsvField {
    PlaceSpan text; /* without its quotes */
    bool quoted, last;
} CsvField;

typedef struct CsvReader {
    PlaceTable *t;
    size_t at;
    CsvField *field;             /* of the row */
    int nfield, column[NCOLUMN]; /* of the header; -1: no such column */
    int field_cap, row_cap, buf_cap;
    Map seen;    /* id to number of row, from 1 */
    int64_t sum; /* of sizes */
} CsvReader;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* ---- messages ---- */

typedef struct CsvPosition {
    int line, column; /* from 1 */
} CsvPosition;

/* Counted only for a message. */
static CsvPosition position(const PlaceTable *t, size_t at)
{
    CsvPosition p = {1, 1};
    for (const char *s = t->text, *end = s + at; s < end; s++, p.column++)
        if (*s == '\n' || (*s == '\r' && s[1] != '\n'))
            p = (CsvPosition){p.line + 1, 0};
    return p;
}

static const char *place_text(const PlaceTable *t, size_t at)
{
    CsvPosition p = position(t, at);
    return arena_printf(t->a, "%.300s:%d:%d: ", t->title, p.line, p.column);
}

_Noreturn static void bad(const PlaceTable *t, size_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn static void bad(const PlaceTable *t, size_t at, const char *format, ...)
{
    char text[500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail(arena_ctx(t->a), TN_FAIL, "%s%s", place_text(t, at), text);
}

/* The beginning of a text, on one line and in quotes. */
static const char *shown(Arena *a, const char *s, size_t n)
{
    enum { LONGEST = 60 };
    char *text =
        arena_printf(a, "\"%.*s%s\"", (int)MIN(n, (size_t)LONGEST), s, n > LONGEST ? "..." : "");
    for (char *c = text; *c; c++)
        *c = (unsigned char)*c < ' ' ? '?' : *c;
    return text;
}

static const char *shown_span(const PlaceTable *t, PlaceSpan x)
{
    return x.begin == x.end ? "nothing" : shown(t->a, t->text + x.begin, x.end - x.begin);
}

/* ---- rows and fields ---- */

/* Goes to the next line that is not blank; false at the end of the text. */
static bool next_line(CsvReader *r)
{
    const char *s = r->t->text;
    size_t to = r->at + strspn(s + r->at, " \t\r\n");
    bool any = s[to] != 0;
    while (any && to > r->at && is_blank(s[to - 1]))
        to--;
    r->at = to;
    return any;
}

/* Goes from the quote at `at` to after the closing one. */
static size_t skip_quoted(const PlaceTable *t, size_t at)
{
    const char *s = t->text;
    size_t begin = at;
    do {
        at += 1 + strcspn(s + at + 1, "\"");
        if (!s[at])
            bad(t, begin, "expected a quote that closes this one, found the end of the file");
        at++;
    } while (s[at] == '"');
    if (s[at] && !strchr(",\r\n", s[at]))
        bad(t, at, "expected a comma or the end of the line behind the quote, found %s",
            shown(t->a, s + at, 1));
    return at;
}

static CsvField read_field(CsvReader *r)
{
    const char *s = r->t->text;
    size_t begin = r->at;
    bool quoted = s[begin] == '"';
    r->at = quoted ? skip_quoted(r->t, begin) : begin + strcspn(s + begin, ",\r\n");
    CsvField f = {{begin + quoted, r->at - quoted}, quoted, s[r->at] != ','};
    r->at += !f.last;
    return f;
}

/* Fills the fields of a row; returns how many. */
static int read_row(CsvReader *r, PlaceSpan *row)
{
    int n = 0;
    row->begin = r->at;
    do
        PUSH(r->t->a, r->field, n, r->field_cap, read_field(r));
    while (!r->field[n - 1].last);
    row->end = r->at;
    return n;
}

static PlaceSpan trimmed(const PlaceTable *t, CsvField f)
{
    PlaceSpan x = f.text;
    while (x.begin < x.end && is_blank(t->text[x.begin]))
        x.begin++;
    while (x.begin < x.end && is_blank(t->text[x.end - 1]))
        x.end--;
    return x;
}

static const char *text_of(const PlaceTable *t, CsvField f)
{
    char *text = arena_strndup(t->a, t->text + f.text.begin, f.text.end - f.text.begin), *to = text;
    for (const char *s = text; f.quoted && *s; s += 1 + (*s == '"')) /* of two quotes one */
        *to++ = *s;
    if (f.quoted)
        *to = 0;
    return text;
}

/* Whether a field is an integer of at most PLACE_MOST, whatever its sign. */
static bool parse_integer(const PlaceTable *t, CsvField f, int64_t *x)
{
    PlaceSpan digits = trimmed(t, f);
    bool minus = t->text[digits.begin] == '-';
    digits.begin += minus;
    int64_t sum = 0;
    for (size_t i = digits.begin; i < digits.end; i++) {
        char c = t->text[i];
        if (c < '0' || c > '9' || sum > PLACE_MOST / 10)
            return false;
        sum = 10 * sum + (c - '0');
    }
    *x = minus ? -sum : sum;
    return digits.begin < digits.end && sum <= PLACE_MOST;
}

static int64_t get_integer(const CsvReader *r, int k, int64_t least)
{
    CsvField f = r->field[r->column[k]];
    int64_t x;
    if (!parse_integer(r->t, f, &x) || x < least)
        bad(r->t, f.text.begin, "%s: expected an integer from %s to 2^62, found %s", columns[k],
            least ? "-2^62" : "0", shown_span(r->t, trimmed(r->t, f)));
    return x;
}

/* ---- the table ---- */

static int find_column(const PlaceTable *t, PlaceSpan x)
{
    int k = 0;
    while (k < NCOLUMN && (strlen(columns[k]) != x.end - x.begin ||
                           memcmp(columns[k], t->text + x.begin, x.end - x.begin) != 0))
        k++;
    return k;
}

static void read_header(CsvReader *r)
{
    PlaceTable *t = r->t;
    Buf others = {.a = t->a};
    if (!next_line(r))
        bad(t, r->at,
            "expected a header with the columns id, lower, upper and size, found nothing");
    r->nfield = read_row(r, &t->header);
    for (int k = 0; k < NCOLUMN; k++)
        r->column[k] = -1;
    for (int i = 0; i < r->nfield; i++) {
        PlaceSpan x = trimmed(t, r->field[i]);
        int k = find_column(t, x);
        if (k == NCOLUMN)
            buf_printf(&others, "%s%s", others.len ? ", " : "",
                       shown(t->a, t->text + x.begin, x.end - x.begin));
        else if (r->column[k] >= 0)
            bad(t, x.begin, "expected one column \"%s\", found two", columns[k]);
        else
            r->column[k] = i;
    }
    for (int k = 0; k < OFFSET; k++)
        if (r->column[k] < 0)
            bad(t, t->header.begin,
                "expected a header with the columns id, lower, upper and size, found no %s in %s",
                columns[k], shown_span(t, t->header));
    t->has_offset = r->column[OFFSET] >= 0;
    if (others.len)
        t->unread = arena_printf(t->a, "%snot read, only copied: %.300s",
                                 place_text(t, t->header.begin), others.text);
}

static const char *get_id(CsvReader *r)
{
    PlaceTable *t = r->t;
    CsvField f = r->field[r->column[ID]];
    const char *id = text_of(t, f);
    int64_t other = (intptr_t)map_find(&r->seen, id);
    if (other)
        bad(t, f.text.begin, "expected each id once, found %s as in line %d",
            shown(t->a, id, strlen(id)), position(t, t->row[other - 1].text.begin).line);
    map_put(&r->seen, id, (void *)(intptr_t)(t->n + 1));
    return id;
}

static void add_row(CsvReader *r, PlaceSpan text)
{
    PlaceTable *t = r->t;
    PlaceRow row = {.id = get_id(r), .text = text};
    PlaceBuf b = {.offset = -1};
    b.start = get_integer(r, LOWER, -PLACE_MOST);
    b.end = get_integer(r, UPPER, -PLACE_MOST);
    b.nbytes = get_integer(r, SIZE, 0);
    if (b.start > b.end)
        bad(t, r->field[r->column[UPPER]].text.begin,
            "upper: expected at least lower, %lld, found %lld", (long long)b.start,
            (long long)b.end);
    if (b.nbytes > PLACE_MOST - r->sum)
        bad(t, r->field[r->column[SIZE]].text.begin,
            "size: expected at most 2^62 in all rows together, found more");
    r->sum += b.nbytes;
    if (t->has_offset) {
        CsvField f = r->field[r->column[OFFSET]];
        row.offset = (PlaceSpan){f.text.begin - f.quoted, f.text.end + f.quoted};
        if (!parse_integer(t, f, &b.offset) || b.offset < 0)
            b.offset = -1;
    }
    int n = t->n;
    PUSH(t->a, t->row, n, r->row_cap, row);
    PUSH(t->a, t->buf, t->n, r->buf_cap, b);
}

PlaceTable *place_parse(Arena *a, const char *text, size_t len, const char *title)
{
    PlaceTable *t = NEW(a, PlaceTable);
    CsvReader r = {.t = t, .seen = {.a = a}};
    bool mark = len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3);
    *t = (PlaceTable){.a = a, .title = title, .text = text + (mark ? 3 : 0)};
    if (strlen(text) != len)
        bad(t, strlen(t->text), "expected text, found a NUL byte");
    read_header(&r);
    while (next_line(&r)) {
        PlaceSpan row;
        int n = read_row(&r, &row);
        if (n != r.nfield)
            bad(t, row.begin, "expected %d fields, as in the header, found %d", r.nfield, n);
        add_row(&r, row);
    }
    return t;
}

PlaceTable *place_read(Arena *a, const char *path)
{
    size_t len;
    const char *text = file_read(a, path, &len);
    return place_parse(a, text, len, file_title(path));
}

/* ---- offsets ---- */

/* The place in the text of a row's offset, or where it would be. */
static size_t offset_at(const PlaceTable *t, int i)
{
    return t->has_offset ? t->row[i].offset.begin : t->row[i].text.end;
}

void place_need_offsets(const PlaceTable *t)
{
    for (int i = 0; i < t->n; i++) {
        const PlaceBuf *b = &t->buf[i];
        if (b->offset >= 0 && b->offset <= PLACE_MOST - b->nbytes)
            continue;
        if (b->offset < 0 && !t->has_offset)
            bad(t, t->header.begin, "expected a column offset, found none in %s",
                shown_span(t, t->header));
        bad(t, offset_at(t, i),
            "offset: expected an integer from 0 to 2^62 less the size, found %s",
            b->offset < 0 ? shown_span(t, t->row[i].offset)
                          : arena_printf(t->a, "%lld", (long long)b->offset));
    }
}

_Noreturn void place_overlap(const PlaceTable *t, const PlaceCheck *c)
{
    const char *x = t->row[c->second].id, *y = t->row[c->first].id;
    const PlaceBuf *b = &t->buf[c->second], *d = &t->buf[c->first];
    bad(t, offset_at(t, c->second),
        "%s at %lld to %lld overlaps %s of line %d at %lld to %lld, both alive from %lld to %lld",
        shown(t->a, x, strlen(x)), (long long)b->offset, (long long)(b->offset + b->nbytes),
        shown(t->a, y, strlen(y)), position(t, t->row[c->first].text.begin).line,
        (long long)d->offset, (long long)(d->offset + d->nbytes),
        (long long)MAX(b->start, d->start), (long long)MIN(b->end, d->end));
}

void place_print(Buf *b, const PlaceTable *t)
{
    buf_addn(b, t->text + t->header.begin, t->header.end - t->header.begin);
    buf_add(b, t->has_offset ? "\n" : ",offset\n");
    for (int i = 0; i < t->n; i++) {
        PlaceSpan row = t->row[i].text;
        PlaceSpan old = t->has_offset ? t->row[i].offset : (PlaceSpan){row.end, row.end};
        buf_addn(b, t->text + row.begin, old.begin - row.begin);
        buf_printf(b, "%s%lld", t->has_offset ? "" : ",", (long long)t->buf[i].offset);
        buf_addn(b, t->text + old.end, row.end - old.end);
        buf_add(b, "\n");
    }
}
