/* Rows that documents share: the documents of a file of rows, of which each fills the places of its
 * labels, side by side in rows of T places. Which of them share a row is decided once, from their
 * lengths alone, by best fit in decreasing order (Johnson et al. 1974: at most 11/9 of the fewest
 * rows, and 4), so that epochs shuffle rows as they do without. A row has its documents in the
 * order of the file, then padding: ids 0, labels -100, each its own start.
 *
 * The rows with so many free places are a list, for each number of them; a set of words of bits
 * says which lists have any, so that the best row is found by looking at T / 64 words at most. */
#include "io.h"

#include <string.h>

enum { MOST_PLACES = 1 << 24 };

/* While rows are filled. */
typedef struct Packing {
    int64_t T, ndoc, nrow;
    const int32_t *places; /* of each document */
    int64_t *row;          /* of each document */
    int64_t *head, *next;  /* head[n]: a row with n free places, -1: none; next of each row */
    uint64_t *there;       /* bit n: head[n] is a row */
} Packing;

/* ---- lists of rows by their free places ---- */

static void push(Packing *p, int64_t row, int64_t left)
{
    p->next[row] = p->head[left];
    p->head[left] = row;
    p->there[left / 64] |= UINT64_C(1) << left % 64;
}

static int64_t pop(Packing *p, int64_t left)
{
    int64_t row = p->head[left];
    p->head[left] = p->next[row];
    if (p->head[left] < 0)
        p->there[left / 64] &= ~(UINT64_C(1) << left % 64);
    return row;
}

/* The least number of free places, at least `least`, that some row has; -1: none. */
static int64_t find_left(const Packing *p, int64_t least)
{
    int64_t words = p->T / 64 + 1;
    uint64_t bits = p->there[least / 64] & ~UINT64_C(0) << least % 64;
    for (int64_t w = least / 64;; bits = p->there[w]) {
        if (bits)
            return 64 * w + __builtin_ctzll(bits);
        if (++w == words)
            return -1;
    }
}

static void put(Packing *p, int64_t doc)
{
    int64_t need = p->places[doc], left = find_left(p, need);
    int64_t row = left < 0 ? p->nrow++ : pop(p, left);
    p->row[doc] = row;
    push(p, row, (left < 0 ? p->T : left) - need);
}

/* ---- all documents ---- */

/* Documents by decreasing places, those of one length in their order. */
static const int64_t *by_length(Arena *tmp, const Packing *p)
{
    int64_t *count = NEWN(tmp, int64_t, p->T + 2), *order = NEWN(tmp, int64_t, MAX(p->ndoc, 1));
    for (int64_t i = 0; i < p->ndoc; i++)
        count[p->T - p->places[i] + 1]++;
    for (int64_t n = 0; n <= p->T; n++)
        count[n + 1] += count[n];
    for (int64_t i = 0; i < p->ndoc; i++)
        order[count[p->T - p->places[i]]++] = i;
    return order;
}

/* The documents of each row, in order, after those of the rows before. */
static RowPack *list_rows(Arena *a, const Packing *p, int64_t first)
{
    RowPack *x = NEW(a, RowPack);
    *x = (RowPack){.nrow = p->nrow,
                   .begin = NEWN(a, int64_t, p->nrow + 2),
                   .document = NEWN(a, int64_t, MAX(p->ndoc, 1))};
    for (int64_t i = 0; i < p->ndoc; i++)
        x->begin[p->row[i] + 2]++;
    for (int64_t r = 0; r < p->nrow; r++)
        x->begin[r + 2] += x->begin[r + 1];
    for (int64_t i = 0; i < p->ndoc; i++)
        x->document[x->begin[p->row[i] + 1]++] = first + i;
    return x;
}

static RowPack *pack(Arena *a, Arena *tmp, const DataSet *s, int64_t first, int64_t ndoc, int64_t T)
{
    Packing p = {.T = T, .ndoc = ndoc, .places = data_row_places(tmp, s, first, ndoc, T)};
    p.row = NEWN(tmp, int64_t, MAX(ndoc, 1));
    p.next = NEWN(tmp, int64_t, MAX(ndoc, 1));
    p.head = NEWN(tmp, int64_t, T + 1);
    p.there = NEWN(tmp, uint64_t, T / 64 + 1);
    memset(p.head, 0xff, sizeof *p.head * (size_t)(T + 1));
    const int64_t *order = by_length(tmp, &p);
    for (int64_t i = 0; i < ndoc; i++)
        put(&p, order[i]);
    return list_rows(a, &p, first);
}

void data_pack(Arena *a, Arena *tmp, DataSet *s, int64_t T)
{
    int64_t train = s->rows.rows - s->held;
    if (!s->index)
        fail(
            s->ctx, TN_USAGE,
            "pack: expected records (texts, prompts and completions, chats), found %s of %s, whose "
            "windows are full already",
            s->made_of ? "the text" : "tokens", s->made_of ? s->made_of : s->file[0].path);
    if (T > MOST_PLACES)
        fail(s->ctx, TN_USAGE, "pack: expected rows of at most %d tokens, found %lld", MOST_PLACES,
             (long long)T);
    s->pack[false] = pack(a, tmp, s, 0, train, T);
    s->pack[true] = pack(a, tmp, s, train, s->held, T);
    s->pack_seq = T;
}

/* ---- rows ---- */

int64_t data_packed_row(const DataSet *s, bool val, int64_t k, const DataRow *to)
{
    const RowPack *p = s->pack[val];
    int64_t at = 0, count = 0;
    for (int64_t i = k < p->nrow ? p->begin[k] : 0; k < p->nrow && i < p->begin[k + 1]; i++) {
        int64_t places;
        count +=
            data_document(s, p->document[i], to->T - at, to->ids + at, to->labels + at, &places);
        for (int64_t t = at; t < at + places; t++)
            to->starts[t] = at;
        at += places;
    }
    data_pad(to, at);
    return count;
}
