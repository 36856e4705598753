/* Batches of training data: epochs, windows that stay within files and parts, documents, the
 * validation part, and the thread that reads ahead. Runs under ThreadSanitizer: make race. */
#include "../shared/folder.h"

#include "../../src/io/io.h"

/* Files of 16-bit tokens, all different: 0, 1, 2, ... through all of them. */
static DataSet *put_tokens(int nfile, const int *ntoken, double val)
{
    uint16_t next = 0;
    const char **path = NEWN(a, const char *, nfile);
    for (int i = 0; i < nfile; i++) {
        uint16_t *ids = NEWN(a, uint16_t, ntoken[i]);
        for (int k = 0; k < ntoken[i]; k++)
            ids[k] = next++;
        path[i] = arena_printf(a, "%s/%d.u16", dir, i);
        file_write(&ctx, path[i], ids, sizeof *ids * (size_t)ntoken[i]);
    }
    return data_open(a, nfile, path, &(DataOptions){.type = TOKEN_U16, .val_fraction = val});
}

typedef struct Batch {
    const DataSet *s;
    DataReader *r; /* NULL: directly */
    uint64_t seed;
    uint32_t step;
    int64_t B, T, *ids, *labels;
} Batch;

static Batch new_batch(const DataSet *s, int64_t B, int64_t T)
{
    return (Batch){.s = s,
                   .seed = 5,
                   .step = 1,
                   .B = B,
                   .T = T,
                   .ids = NEWN(a, int64_t, B * T),
                   .labels = NEWN(a, int64_t, B * T)};
}

static void fill(void *arg)
{
    Batch *b = arg;
    if (!b->r ||
        !data_reader_take(b->r, b->seed, b->step, b->B, (DataRow){b->T, b->ids, b->labels, NULL}))
        data_train_batch(b->s, b->seed, b->step, b->B, (DataRow){b->T, b->ids, b->labels, NULL});
}

static bool same(const Batch *x, const Batch *y)
{
    size_t n = sizeof *x->ids * (size_t)(x->B * x->T);
    return !memcmp(x->ids, y->ids, n) && !memcmp(x->labels, y->labels, n);
}

/* ---- epochs ---- */

static int64_t file_of(const DataSet *s, int64_t token)
{
    int64_t i = 0;
    while (token >= s->file[i].first + s->file[i].ntoken)
        i++;
    return i;
}

/* Counts the labels of a row, which must be a run of tokens of one file. Returns their number. */
static int64_t check_row(const Batch *b, int64_t row, int *seen)
{
    const int64_t *ids = b->ids + row * b->T, *labels = b->labels + row * b->T;
    int64_t n = 0;
    while (n < b->T && labels[n] >= 0)
        n++;
    EXPECT(n > 0 && file_of(b->s, ids[0]) == file_of(b->s, labels[n - 1]));
    for (int64_t t = 0; t < b->T; t++) {
        EXPECT(t < n ? ids[t] == ids[0] + t && labels[t] == ids[t] + 1
                     : ids[t] == 0 && labels[t] == -100);
        if (t < n)
            seen[labels[t]]++;
    }
    return n;
}

/* That each epoch has each label of the training part once, and nothing else. */
static void check_epochs(int nfile, const int *ntoken, double val, int64_t B, int64_t T)
{
    DataSet *s = put_tokens(nfile, ntoken, val);
    Batch b = new_batch(s, B, T);
    int *seen = NEWN(a, int, s->ntoken);
    int64_t nlabel, windows = data_windows(s, false, T, &nlabel), row = B;
    for (int epoch = 1; epoch <= 3; epoch++) {
        int64_t total = 0;
        for (int64_t k = 0; k < windows; k++) {
            if (row == B) {
                fill(&b);
                b.step++;
                row = 0;
            }
            total += check_row(&b, row++, seen);
        }
        EXPECT(total == nlabel);
        for (int64_t i = 0; i < s->ntoken; i++) {
            bool first = i == s->file[file_of(s, i)].first;
            EXPECT(seen[i] == (i < s->ntrain && !first ? epoch : 0));
        }
    }
}

static void test_epochs(void)
{
    static const int one[] = {1000}, exact[] = {16 * 70 + 1}, two[] = {16 * 65, 900},
                     many[] = {40, 1, 3, 17, 16, 2, 300, 33};
    check_epochs(1, one, 0.25, 4, 16);
    check_epochs(1, one, 0, 7, 1);
    check_epochs(1, one, 0, 3, 999); /* one window */
    check_epochs(1, exact, 0, 4, 16);
    check_epochs(2, two, 0.1, 1, 16);
    check_epochs(2, two, 0.6, 64, 16); /* held out from within the first file */
    check_epochs(LEN(many), many, 0.3, 5, 16);
    check_epochs(LEN(many), many, 0, 500, 2);
}

/* How often a window stands at a place of an epoch, over many epochs. */
static void test_shuffled(void)
{
    enum { EPOCHS = 4000 };
    for (int n = 2; n <= 17; n += 5) {
        int ntoken = n + 1, count[17][17] = {{0}};
        Batch b = new_batch(put_tokens(1, &ntoken, 0), n, 1);
        for (b.step = 1; b.step <= EPOCHS; b.step++) {
            fill(&b);
            for (int i = 0; i < n; i++)
                count[i][b.ids[i]]++;
        }
        double mean = (double)EPOCHS / n, most = 25 * mean * (1 - 1.0 / n); /* 5 deviations */
        for (int i = 0; i < n * n; i++) {
            double off = count[i / n][i % n] - mean;
            EXPECT(off * off < most);
        }
    }
}

/* Rows follow from their number since the beginning, whatever the batch; seeds differ. */
static void test_rows(void)
{
    int ntoken = 700;
    DataSet *s = put_tokens(1, &ntoken, 0);
    Batch b = new_batch(s, 4, 16), half = new_batch(s, 2, 16), other = new_batch(s, 4, 16);
    other.seed = 6;
    int equal = 0;
    for (b.step = other.step = 1; b.step < 40; b.step++, other.step++) {
        fill(&b);
        fill(&other);
        equal += same(&b, &other);
        for (uint32_t i = 0; i < 2; i++) {
            half.step = 2 * b.step - 1 + i;
            fill(&half);
            EXPECT(!memcmp(half.ids, b.ids + 32 * i, sizeof *b.ids * 32));
            EXPECT(!memcmp(half.labels, b.labels + 32 * i, sizeof *b.ids * 32));
        }
    }
    EXPECT(equal == 0);
}

/* Where windows begin differs from epoch to epoch, also where T divides the labels. */
static void test_offsets(void)
{
    int ntoken = 64 * 100 + 1;
    DataSet *s = put_tokens(1, &ntoken, 0);
    int64_t nlabel, windows = data_windows(s, false, 64, &nlabel);
    Batch b = new_batch(s, windows, 64);
    bool seen[64] = {false};
    int count = 0;
    EXPECT(windows == 101 && nlabel == 6400);
    for (b.step = 1; b.step <= 60; b.step++) {
        fill(&b);
        int64_t row = 0;
        while (b.ids[row * 64] < 64)
            row++;
        count += !seen[b.ids[row * 64] % 64];
        seen[b.ids[row * 64] % 64] = true;
    }
    EXPECT(count > 25);
}

static void test_short(void)
{
    static const int ntoken[] = {10, 9};
    Batch b = new_batch(put_tokens(2, ntoken, 0), 1, 9);
    fill(&b);
    b.T = 10;
    EXPECT_FAIL(&ctx, fill, &b, "expected at least 11 tokens to train on, found 10 in the longest");
    b.T = 9;
    b.step = 0;
    EXPECT_FAIL(&ctx, fill, &b, "step: expected 1 or more, found 0");
    b = new_batch(put_tokens(1, ntoken, 1), 1, 9);
    EXPECT_FAIL(&ctx, fill, &b, "0.u16: expected at least 10 tokens to train on, found 0");
}

/* ---- validation ---- */

static void test_validation(void)
{
    static const int ntoken[] = {100, 30};
    int64_t ids[24], labels[24], nlabel;
    DataSet *s = put_tokens(1, ntoken, 0.2);
    EXPECT(data_windows(s, true, 8, &nlabel) == 3 && nlabel == 19);
    EXPECT(data_windows(s, true, 19, &nlabel) == 1 && data_windows(s, true, 18, &nlabel) == 2);
    EXPECT(data_val_batch(s, 1, 1, 3, (DataRow){8, ids, labels, NULL}) ==
           11); /* 19 labels, 8 seen before */
    for (int i = 0; i < 24; i++) {
        EXPECT(ids[i] == (i < 11 ? 88 + i : 0));
        EXPECT(labels[i] == (i < 11 ? 89 + i : -100));
    }
    EXPECT(data_val_batch(s, 0, 2, 2, (DataRow){8, ids, labels, NULL}) == 11 && ids[8] == 96);
    EXPECT(data_val_batch(s, 3, 1, 2, (DataRow){8, ids, labels, NULL}) == 0);
    EXPECT(data_windows(put_tokens(1, ntoken, 0), true, 8, &nlabel) == 0);
    s = put_tokens(1, ntoken, 1); /* all of it is for evaluation */
    EXPECT(s->ntrain == 0 && data_windows(s, true, 99, &nlabel) == 1);
    s = put_tokens(2, ntoken, 0.3); /* 9 tokens of the first file, all of the second */
    EXPECT(data_windows(s, true, 8, &nlabel) == 1 + 4 && nlabel == 8 + 29);
    EXPECT(data_val_batch(s, 0, 1, 2, (DataRow){8, ids, labels, NULL}) == 16);
    EXPECT(ids[0] == 91 && labels[7] == 99 && ids[8] == 100 && labels[15] == 108);
}

/* ---- documents ---- */

static DataSet *put_words(const char *text, double val, int64_t document)
{
    const char *path = arena_printf(a, "%s/text", dir);
    file_write(&ctx, path, text, strlen(text));
    DataSet *s = data_open(a, 1, &path, &(DataOptions){.val_fraction = val, .vocab = 128});
    data_set_document(s, document);
    return s;
}

static void set_document(void *arg)
{
    data_set_document(arg, 128);
}

static void test_documents(void)
{
    static const int64_t expected[] = {'b', '.', -100, 'd', '.', -100, -100};
    Batch b = new_batch(put_words("ab.cd..e", 0, '.'), 1, 7);
    fill(&b);
    EXPECT(b.ids[2] == '.' && b.ids[3] == 'c');
    for (int i = 0; i < 7; i++)
        EXPECT(b.labels[i] == expected[i]);
    EXPECT(data_val_batch(put_words("ab.cd..e", 1, '.'), 0, 1, 1,
                          (DataRow){7, b.ids, b.labels, NULL}) == 4);
    b = new_batch(put_words("....", 0, '.'), 1, 3); /* the last label stays */
    fill(&b);
    EXPECT(b.labels[0] == -100 && b.labels[1] == -100 && b.labels[2] == '.');
    EXPECT_FAIL(&ctx, set_document, put_words("ab", 0, 'a'), "expected an id below 128, found 128");
}

/* ---- reading ahead ---- */

/* In order, out of order, and with another shape: always what is read directly. */
static void test_ahead(void)
{
    static const int ntoken[] = {400, 50, 1000};
    static const uint32_t steps[] = {3, 4, 5, 6, 6, 7, 7, 2, 7, 8, 9, 10, 11, 12, 13, 14, 200, 15};
    DataSet *s = put_tokens(3, ntoken, 0.1);
    Batch direct = new_batch(s, 4, 16), ahead = new_batch(s, 4, 16);
    ahead.r = data_reader_start(a, s, ahead.seed, 3, 4, 16);
    for (int i = 0; i < LEN(steps); i++) {
        direct.step = ahead.step = steps[i];
        direct.seed = ahead.seed = i == 5 ? 6 : 5;
        direct.T = ahead.T = i == 6 ? 15 : 16;
        fill(&direct);
        fill(&ahead);
        EXPECT(same(&direct, &ahead));
    }
}

/* Many steps, with an end while the thread is anywhere. */
static void test_many(void)
{
    int ntoken = 5000;
    for (int turn = 0; turn < 20; turn++) {
        DataSet *s = put_tokens(1, &ntoken, 0);
        Batch direct = new_batch(s, 2, 32), ahead = new_batch(s, 2, 32);
        ahead.r = data_reader_start(a, s, ahead.seed, 1, 2, 32);
        for (int i = 0; i < 10 * turn; i++) {
            fill(&direct);
            fill(&ahead);
            EXPECT(same(&direct, &ahead));
            direct.step++;
            ahead.step++;
        }
        arena_reset(a);
    }
}

/* An error belongs to the step whose batch has the wrong token, whenever it was met. */
static void test_ahead_error(void)
{
    int ntoken = 641, bad = 0;
    DataSet *s = put_tokens(1, &ntoken, 0);
    s->vocab = 600;
    Batch direct = new_batch(s, 1, 16), ahead = new_batch(s, 1, 16);
    ahead.r = data_reader_start(a, s, ahead.seed, 1, 1, 16);
    for (uint32_t step = 1; step <= 40; step++) {
        direct.step = ahead.step = step;
        Code code = ctx_try(&ctx, fill, &direct);
        bad += code != TN_OK;
        EXPECT(ctx_try(&ctx, fill, &ahead) == code);
        if (code)
            EXPECT(strstr(ctx.message, "expected 0 to 599"));
        else
            EXPECT(same(&direct, &ahead));
    }
    EXPECT(bad >= 2 && bad <= 4);
}

/* Steps are read before they are asked for: once the file is gone, some are still there. */
static void test_really_ahead(void)
{
    int ntoken = 641, got = 0;
    DataSet *s = put_tokens(1, &ntoken, 0);
    Batch b = new_batch(s, 1, 16);
    b.r = data_reader_start(a, s, b.seed, 1, 1, 16);
    for (int i = 0; i < 1000 && !data_reader_full(b.r); i++)
        usleep(10000);
    unlink(s->file[0].path);
    while (got < 10 && ctx_try(&ctx, fill, &b) == TN_OK) {
        got++;
        b.step++;
    }
    EXPECT(got == 2 && strstr(ctx.message, "0.u16: cannot be opened again: No such file"));
}

int main(void)
{
    static void (*const tests[])(void) = {test_epochs,      test_shuffled,    test_rows,
                                          test_offsets,     test_short,       test_validation,
                                          test_documents,   test_ahead,       test_many,
                                          test_ahead_error, test_really_ahead};
    return test_in_folder(tests, LEN(tests));
}
