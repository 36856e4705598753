/* Tables as RFC 4180 has them: a record a line, cells with separators between them; a cell in
 * quotes may have separators, line breaks, and quotes, which are doubled. The first record names
 * the columns. As people write them: lines may end by CR alone, and blanks may stand around quotes
 * and names of columns; those of a cell without quotes are its own. */
#include "record.h"

#include <jansson.h>
#include <string.h>

/* Whether another cell of the record follows. */
typedef enum { CELL_NEXT, CELL_LAST } CellEnd;

static bool more(RecordReader *r)
{
    return r->at < r->window.len || records_fill(r);
}

/* CR before LF is no line of its own. */
static char take(RecordReader *r)
{
    char c = r->window.text[r->at++];
    r->line += c == '\n' || (c == '\r' && !(more(r) && r->window.text[r->at] == '\n'));
    return c;
}

/* The byte n places on; -1: the file ends before it. */
static int peek(RecordReader *r, size_t n)
{
    while (r->at + n >= r->window.len)
        if (!records_fill(r))
            return -1;
    return (unsigned char)r->window.text[r->at + n];
}

/* Blanks at this place. */
static size_t count_blanks(RecordReader *r)
{
    size_t n = 0;
    for (int c; (c = peek(r, n)) == ' ' || (c == '\t' && r->separator != '\t');)
        n++;
    return n;
}

static bool ends_cell(const RecordReader *r, int c)
{
    return c < 0 || c == r->separator || c == '\n' || c == '\r';
}

/* Reads a quoted cell, after its first quote. */
static void read_quoted(RecordReader *r, Buf *cell)
{
    int64_t begin = r->line;
    while (more(r)) {
        char c = take(r);
        if (c == '"' && (!more(r) || r->window.text[r->at] != '"'))
            return;
        if (c == '"')
            take(r);
        buf_addn(cell, &c, 1);
    }
    r->first = begin;
    records_fail(r, "a cell in quotes: expected a quote that ends it, found the end of the file");
}

/* The cell at this place. A line break, or the end of the file, ends the record. */
static CellEnd read_cell(RecordReader *r, Buf *cell)
{
    cell->len = 0;
    buf_addn(cell, "", 0);
    size_t blanks = count_blanks(r);
    if (peek(r, blanks) == '"') {
        r->at += blanks;
        take(r);
        read_quoted(r, cell);
        blanks = count_blanks(r);
        r->at += ends_cell(r, peek(r, blanks)) ? blanks : 0;
    }
    while (more(r)) {
        char c = take(r);
        if (c == '\r' && more(r) && r->window.text[r->at] == '\n')
            continue;
        if (c == r->separator)
            return CELL_NEXT;
        if (c == '\n' || c == '\r')
            return CELL_LAST;
        buf_addn(cell, &c, 1);
    }
    return CELL_LAST;
}

static void read_columns(RecordReader *r)
{
    CellEnd end;
    do {
        end = read_cell(r, &r->cell);
        const char *cell = r->cell.text;
        size_t n = r->cell.len, blanks = strspn(cell, " \t");
        while (n > blanks && (cell[n - 1] == ' ' || cell[n - 1] == '\t'))
            n--;
        const char *name = arena_strndup(r->a, cell + MIN(blanks, n), n - MIN(blanks, n));
        PUSH(r->a, r->column, r->ncolumn, r->capcolumn, name);
    } while (end == CELL_NEXT);
}

static void put_cell(RecordReader *r, json_t *record, int column, const Buf *cell)
{
    if (column >= r->ncolumn)
        records_fail(r, "expected %d cells, as the first line has, found more", r->ncolumn);
    if (json_object_get(record, r->column[column]))
        records_fail(r, "column \"%s\" is there twice", r->column[column]);
    json_t *text = json_stringn(cell->text, cell->len);
    if (!text)
        records_fail(r, "column \"%s\": expected UTF-8", r->column[column]);
    if (json_object_set_new(record, r->column[column], text))
        fail(r->ctx, TN_FAIL, "out of memory");
}

/* Skips empty lines; false at the end of the file. */
static bool skip_empty(RecordReader *r)
{
    while (more(r) && (r->window.text[r->at] == '\n' || r->window.text[r->at] == '\r'))
        take(r);
    return more(r);
}

json_t *csv_next(RecordReader *r)
{
    if (!r->ncolumn)
        read_columns(r);
    if (!skip_empty(r))
        return NULL;
    r->first = r->line;
    json_t *record = json_object();
    records_keep(r, record);
    int count = 0;
    CellEnd end;
    do {
        end = read_cell(r, &r->cell);
        put_cell(r, record, count++, &r->cell);
    } while (end == CELL_NEXT);
    if (count < r->ncolumn)
        records_fail(r, "expected %d cells, as the first line has, found %d", r->ncolumn, count);
    return record;
}
