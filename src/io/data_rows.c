/* Files of rows, which text.c makes of chats: ids, uint32, of which bit 30 says that they are
 * learned; padding to a multiple of 8 bytes; of each row, and of the end, two numbers of 64 bits,
 * the ids and the learned ones before it; at last eight numbers: rows, ids, learned ids, rows that
 * were cut, ids that were lost, documents that were left out, T, and a magic number. All are
 * little-endian.
 *
 * A row is a window: id t + 1 is the label of id t where it is learned. */
#include "record.h"

#include <string.h>

enum { FOOTER = 64, IGNORED = -100, ID_MASK = ROW_LEARNED - 1 };

static uint64_t number(const char *p)
{
    uint64_t x = 0;
    for (int k = 7; k >= 0; k--)
        x = x << 8 | (unsigned char)p[k];
    return x;
}

_Noreturn static void wrong(const DataSet *s, const char *what)
{
    fail(s->ctx, TN_FAIL, "%s: expected a file of rows, found %s", s->file[0].path, what);
}

void data_take_rows(DataSet *s, double val_fraction)
{
    DataFile *f = &s->file[0];
    char raw[FOOTER];
    if (f->nbytes < FOOTER)
        wrong(s, "less than its end");
    data_bytes(s, f, f->nbytes - FOOTER, FOOTER, raw);
    const int64_t most = f->nbytes;
    int64_t x[7];
    for (int i = 0; i < LEN(x); i++) {
        x[i] = (int64_t)number(raw + 8 * i);
        if (x[i] < 0 || (i < 3 && x[i] > most))
            wrong(s, "counts that it cannot have");
    }
    if (number(raw + 56) != ROWS_MAGIC)
        wrong(s, "another end");
    s->rows = (RowCounts){x[0], x[1], x[2], x[3], x[4], x[5]};
    s->index = (4 * x[1] + 7) / 8 * 8;
    if (s->index + 16 * (x[0] + 1) + FOOTER != f->nbytes)
        wrong(s, "another size than its end says");
    f->ntoken = s->ntoken = x[1];
    s->held = (int64_t)((double)x[0] * val_fraction);
    data_bytes(s, f, s->index + 16 * (x[0] - s->held), 8, raw);
    s->ntrain = MIN((int64_t)number(raw), s->ntoken);
    s->nval = s->ntoken - s->ntrain;
}

/* The ids and the learned ones before a row. */
static void find_row(const DataSet *s, int64_t k, int64_t n, char *raw)
{
    data_bytes(s, &s->file[0], s->index + 16 * k, 16 * n, raw);
}

int64_t data_rows_windows(const DataSet *s, bool val, int64_t *nlabel)
{
    char first[16], last[16];
    int64_t train = s->rows.rows - s->held;
    const RowPack *p = s->pack[val];
    find_row(s, val ? train : 0, 1, first);
    find_row(s, val ? s->rows.rows : train, 1, last);
    *nlabel = (int64_t)(number(last + 8) - number(first + 8));
    return p ? p->nrow : val ? s->held : train;
}

static void check_ids(const DataSet *s, int64_t first, int64_t n, const int64_t *id)
{
    for (int64_t i = 0; i < n && s->vocab; i++)
        if ((id[i] & ID_MASK) >= s->vocab)
            fail(s->ctx, TN_FAIL,
                 "%s: token %lld: expected 0 to %lld, the model's vocabulary, found "
                 "%lld",
                 s->file[0].path, (long long)(first + i), (long long)s->vocab - 1,
                 (long long)(id[i] & ID_MASK));
}

/* The ids of a row, at most T + 1, with their bits: the first T to ids, the last to *last. Bytes
 * pass through `labels`, which has room for them. */
static int64_t read_ids(const DataSet *s, int64_t k, int64_t T, int64_t *ids, int64_t *labels,
                        int64_t *last)
{
    char place[32], *raw = (char *)labels;
    find_row(s, k, 2, place);
    int64_t begin = (int64_t)number(place), end = (int64_t)number(place + 16);
    if (begin < 0 || end < begin || end > s->ntoken || begin == end)
        wrong(s, "rows out of order");
    int64_t n = MIN(end - begin, T + 1);
    data_bytes(s, &s->file[0], 4 * begin, 4 * n, raw);
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *p = (const unsigned char *)raw + 4 * i;
        *(i < T ? ids + i : last) =
            p[0] | (int64_t)p[1] << 8 | (int64_t)p[2] << 16 | (int64_t)p[3] << 24;
    }
    check_ids(s, begin, MIN(n, T), ids);
    check_ids(s, begin + T, n - MIN(n, T), last);
    return n;
}

void data_pad(const DataRow *to, int64_t from)
{
    for (int64_t t = from; t < to->T; t++) {
        to->ids[t] = 0;
        to->labels[t] = IGNORED;
        if (to->starts)
            to->starts[t] = t;
    }
}

int64_t data_document(const DataSet *s, int64_t k, int64_t T, int64_t *ids, int64_t *labels,
                      int64_t *places)
{
    int64_t count = 0, last = 0, n = read_ids(s, k, T, ids, labels, &last);
    *places = n - 1;
    for (int64_t t = 0; t < n - 1; t++) {
        int64_t next = t + 1 < T ? ids[t + 1] : last;
        bool learned = (next & ROW_LEARNED) != 0;
        labels[t] = learned ? next & ID_MASK : IGNORED;
        count += learned;
        ids[t] &= ID_MASK;
    }
    return count;
}

int64_t data_row(const DataSet *s, bool val, int64_t k, const DataRow *to)
{
    int64_t count = 0, places = 0, train = s->rows.rows - s->held, all = val ? s->held : train;
    if (s->pack[val])
        return data_packed_row(s, val, k, to);
    if (k >= 0 && k < all)
        count = data_document(s, val ? train + k : k, to->T, to->ids, to->labels, &places);
    for (int64_t t = 0; to->starts && t < places; t++)
        to->starts[t] = 0;
    data_pad(to, places);
    return count;
}

int32_t *data_row_places(Arena *a, const DataSet *s, int64_t first, int64_t n, int64_t T)
{
    enum { MANY = 256 };
    char place[16 * (MANY + 1)];
    int32_t *places = NEWN(a, int32_t, MAX(n, 1));
    for (int64_t i = 0; i < n; i += MANY) {
        int64_t count = MIN(n - i, (int64_t)MANY);
        find_row(s, first + i, count + 1, place);
        for (int64_t k = 0; k < count; k++) {
            int64_t begin = (int64_t)number(place + 16 * k);
            int64_t end = (int64_t)number(place + 16 * (k + 1));
            if (begin < 0 || end <= begin || end > s->ntoken)
                wrong(s, "rows out of order");
            places[i + k] = (int32_t)MIN(end - begin - 1, T);
        }
    }
    return places;
}
