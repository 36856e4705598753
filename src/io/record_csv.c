/* Tables as RFC 4180 has them: a record a line, cells with separators between them; a cell in
 * quotes may have separators, line breaks, and quotes, which are doubled. The first record names
 * the columns. */
#include "record.h"

#include <jansson.h>
#include <string.h>

/* What follows a cell. */
typedef enum { CELL_NEXT, CELL_LAST } CellEnd;

static bool more(RecordReader *r)
{
    return r->at < r->window.len || records_fill(r);
}

static char take(RecordReader *r)
{
    char c = r->window.text[r->at++];
    r->line += c == '\n';
    return c;
}

/* What is in quotes, after the first one. */
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
    if (more(r) && r->window.text[r->at] == '"') {
        take(r);
        read_quoted(r, cell);
    }
    while (more(r)) {
        char c = take(r);
        if (c == '\r' && more(r) && r->window.text[r->at] == '\n')
            continue;
        if (c == r->separator)
            return CELL_NEXT;
        if (c == '\n')
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
        const char *name = arena_strndup(r->a, r->cell.text, r->cell.len);
        PUSH(r->a, r->column, r->ncolumn, r->capcolumn, name);
    } while (end == CELL_NEXT);
}

static void put_cell(RecordReader *r, json_t *record, int column, const Buf *cell)
{
    if (column >= r->ncolumn)
        records_fail(r, "expected %d cells, as the first line has, found more", r->ncolumn);
    json_t *text = json_stringn(cell->text, cell->len);
    if (!text)
        records_fail(r, "column \"%s\": expected UTF-8", r->column[column]);
    json_object_set_new(record, r->column[column], text);
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
