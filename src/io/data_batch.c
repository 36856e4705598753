/* Chooses the tokens of a step. A part of a file (to train on, or held out) of n tokens has n - 1
 * labels: each token but the first, predicted from those before it in its window. They are cut into
 * windows of T labels; no window crosses from one file, or from one part, into another.
 *
 * Epochs: the windows of all files are numbered, and each epoch takes each once, in the order of a
 * permutation: a Feistel network of 8 rounds over the next power of 4, whose round function is
 * Philox keyed by the seed, applied until the result is in range (Black, Rogaway: Ciphers with
 * arbitrary finite domains, CT-RSA 2002; fewer than 4 iterations on average). So nothing is stored,
 * whatever the number of windows. Row b of step s is number (s - 1) B + b of the run: the rows of a
 * step are a function of seed and step alone, and whoever has only some of them, as a rank does,
 * reads no others.
 *
 * If T does not divide the labels of a file, its first window is shorter, or its last, or both;
 * each epoch draws by how much, so that labels see different contexts. A file of many windows that
 * T divides, or nearly, gets one more window, so that there is always something to draw. The rest
 * of a short window's row is id 0 and label -100.
 *
 * Epochs in order take the windows as they are numbered, and nothing is drawn: the last window of a
 * file is the shorter one. */
#include "io.h"

#include <string.h>

enum { ROUNDS = 8, MANY = 64, IGNORED = -100 };
#define DATA_STREAM   0xda7a0000u /* above every stream of a graph */
#define OFFSET_STREAM 0xda7a0001u /* of what epochs draw for each file */
#define MIX_STREAM    0xda7a0002u /* of which source a row is */

static uint32_t draw(uint64_t seed, uint32_t stream, uint32_t epoch, uint32_t x, uint32_t y)
{
    uint32_t counter[4] = {x, y, stream, epoch}, word[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox(counter, key, word);
    return word[0];
}

int64_t data_permute(uint64_t seed, int use, uint32_t epoch, int64_t n, int64_t i)
{
    uint32_t stream = use == DATA_MIX ? MIX_STREAM : DATA_STREAM;
    int bits = 1;
    while (n > (int64_t)1 << 2 * bits)
        bits++;
    uint32_t mask = (uint32_t)((1ull << bits) - 1);
    do {
        uint32_t left = (uint32_t)(i >> bits), right = (uint32_t)i & mask;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            uint32_t next = left ^ (draw(seed, stream, epoch, right, round) & mask);
            left = right;
            right = next;
        }
        i = (int64_t)left << bits | right;
    } while (i >= n);
    return i;
}

/* ---- windows ---- */

/* One of the two parts of a file. */
typedef struct FilePart {
    const DataFile *file;
    int64_t begin, nlabel, windows; /* its first token */
} FilePart;

static FilePart part_of(const DataSet *s, int i, bool val, int64_t T)
{
    FilePart p = {.file = &s->file[i]};
    int64_t ntrain = MIN(MAX(s->ntrain - p.file->first, 0), p.file->ntoken);
    p.begin = val ? ntrain : 0;
    p.nlabel = MAX((val ? p.file->ntoken - ntrain : ntrain) - 1, 0);
    p.windows = (p.nlabel + T - 1) / T;
    if (!val && !s->in_order && p.windows >= MANY && p.windows * T - p.nlabel < T / 2)
        p.windows++;
    return p;
}

/* How much shorter than T the first window is: neither it nor the last becomes empty. */
static int64_t draw_offset(const FilePart *p, uint64_t seed, uint32_t epoch, int64_t index,
                           int64_t T)
{
    int64_t slack = p->windows * T - p->nlabel;
    int64_t least = MAX(slack - T + 1, 0), most = MIN(slack, T - 1);
    uint32_t x = draw(seed, OFFSET_STREAM, epoch, (uint32_t)index, 0);
    return least + x % (most - least + 1);
}

static int64_t count_rows(const DataSet *s, bool val, int64_t *nlabel)
{
    int64_t rows = data_rows_windows(s, val, nlabel);
    if (!val && !rows)
        fail(s->ctx, TN_FAIL, "%s: expected at least one row to train on, found none%s",
             s->made_of ? s->made_of : s->file[0].path,
             s->held ? ": all are held out, by --val-fraction" : "");
    return rows;
}

int64_t data_windows(const DataSet *s, bool val, int64_t T, int64_t *nlabel)
{
    int64_t windows = 0, most = 0, part;
    *nlabel = 0;
    for (int i = 0; s->mix && i < s->mix->n; i++) {
        windows += data_windows(s->mix->part[i], val, T, &part);
        *nlabel += part;
    }
    if (s->mix)
        return windows;
    if (s->pack_seq && s->pack_seq != T)
        fail(s->ctx, TN_USAGE,
             "seq: documents share rows of %lld places: expected as many, found "
             "%lld",
             (long long)s->pack_seq, (long long)T);
    if (s->index)
        return count_rows(s, val, nlabel);
    for (int i = 0; i < s->count; i++) {
        FilePart p = part_of(s, i, val, T);
        windows += p.windows;
        *nlabel += p.nlabel;
        most = MAX(most, p.nlabel);
    }
    if (!val && most < T)
        fail(s->ctx, TN_FAIL, "%s: expected at least %lld tokens to train on, found %lld%s",
             s->made_of ? s->made_of : s->file[0].path, (long long)T + 1,
             (long long)(most ? most + 1 : s->ntrain), s->count > 1 ? " in the longest file" : "");
    return windows;
}

/* The file that has window *k of a part, which becomes its number there; -1: there is none. */
static int find_file(const DataSet *s, bool val, int64_t T, int64_t *k)
{
    for (int i = 0; i < s->count; i++) {
        int64_t windows = part_of(s, i, val, T).windows;
        if (*k < windows)
            return i;
        *k -= windows;
    }
    return -1;
}

/* A label that follows the document token belongs to another document. Where that would leave no
 * label, the last stays, since a step must have one. */
static void mask_documents(const DataSet *s, int64_t n, const int64_t *ids, int64_t *labels)
{
    int64_t kept = 0, last = labels[n - 1];
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] == s->document)
            labels[i] = IGNORED;
        kept += labels[i] != IGNORED;
    }
    if (!kept)
        labels[n - 1] = last;
}

/* Labels [from, to) of a part as one row; the rest of it is filled up. Returns how many count. */
static int64_t fill_row(const DataSet *s, const FilePart *p, int64_t from, int64_t end,
                        const DataRow *to)
{
    int64_t n = MAX(end - from, 0), count = 0, *labels = to->labels;
    if (n > 0) {
        data_read(s, p->file, p->begin + from, n + 1, to->ids, labels + n - 1);
        memcpy(labels, to->ids + 1, sizeof *labels * (size_t)(n - 1));
        if (s->document >= 0)
            mask_documents(s, n, to->ids, labels);
    }
    for (int64_t t = 0; t < n; t++) {
        if (to->starts)
            to->starts[t] = 0;
        count += labels[t] != IGNORED;
    }
    data_pad(to, n);
    return count;
}

/* ---- batches ---- */

/* Number `at` of a run. */
static void read_window(const DataSet *s, uint64_t seed, int64_t windows, int64_t at,
                        const DataRow *to)
{
    uint32_t epoch = (uint32_t)(at / windows);
    int64_t k = at % windows, T = to->T, offset = 0;
    if (!s->in_order)
        k = data_permute(seed, DATA_ORDER, epoch, windows, k);
    if (s->index) {
        data_row(s, false, k, to);
        return;
    }
    int i = find_file(s, false, T, &k);
    FilePart p = part_of(s, i, false, T);
    if (!s->in_order)
        offset = draw_offset(&p, seed, epoch, i, T);
    int64_t begin = k * T - offset;
    fill_row(s, &p, MAX(begin, 0), MIN(begin + T, p.nlabel), to);
}

int64_t data_rows(const DataSet *s, int64_t B)
{
    return s->row ? s->nrow : B;
}

/* The same of a mixture: sources have other orders by other seeds. */
static void read_row(const DataSet *s, uint64_t seed, int64_t windows, int64_t at,
                     const DataRow *to)
{
    int64_t nlabel;
    if (!s->mix) {
        read_window(s, seed, windows, at, to);
        return;
    }
    int i = data_mix_row(s->mix, seed, &at);
    const DataSet *part = s->mix->part[i];
    read_window(part, seed + (uint64_t)i * 0x9e3779b97f4a7c15u,
                data_windows(part, false, to->T, &nlabel), at, to);
}

/* The set of held-out window *k, which becomes its number there. */
static const DataSet *held_part(const DataSet *s, int64_t T, int64_t *k)
{
    int64_t windows, nlabel;
    for (int i = 0; s->mix && i < s->mix->n - 1; i++) {
        windows = data_windows(s->mix->part[i], true, T, &nlabel);
        if (*k < windows)
            return s->mix->part[i];
        *k -= windows;
    }
    return s->mix ? s->mix->part[s->mix->n - 1] : s;
}

/* The next row of a batch. */
static void next_row(DataRow *to)
{
    to->ids += to->T;
    to->labels += to->T;
    if (to->starts)
        to->starts += to->T;
}

void data_train_batch(const DataSet *s, uint64_t seed, uint32_t step, int64_t B, DataRow to)
{
    int64_t nlabel, windows = data_windows(s, false, to.T, &nlabel);
    if (!step)
        fail(s->ctx, TN_USAGE, "step: expected 1 or more, found 0");
    for (int64_t i = 0; i < data_rows(s, B); i++, next_row(&to)) {
        int64_t b = s->row ? s->row[i] : i;
        if (b < B)
            read_row(s, seed, windows, ((int64_t)step - 1) * B + b, &to);
        else
            data_pad(&to, 0);
    }
}

int64_t data_val_batch(const DataSet *all, int64_t first, int64_t stride, int64_t B, DataRow to)
{
    int64_t count = 0;
    for (int64_t b = 0; b < B; b++, next_row(&to)) {
        int64_t k = first + b * stride;
        const DataSet *s = held_part(all, to.T, &k);
        if (s->index) {
            count += data_row(s, true, k, &to);
            continue;
        }
        int i = find_file(s, true, to.T, &k);
        FilePart p = {.nlabel = 0};
        if (i >= 0)
            p = part_of(s, i, true, to.T);
        count += fill_row(s, &p, k * to.T, MIN((k + 1) * to.T, p.nlabel), &to);
    }
    return count;
}
