/* Sources that are mixed by weights: each 10,000 rows have as many of each as its weight says, each
 * source's rows come once an epoch of its own, in an order that no other has, whoever reads them
 * and whenever; held-out rows are those of all. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <unistd.h>

enum { PARTS = 3, T = 4, PERIOD = 10000, ROWS = 20, BATCH = 4 };

static const double weights[PARTS] = {0.7, 0.2, 0.1};
static tn_context *ctx;

/* Tokens 1000 p + 0, 1, ... of source p, of rows of T labels. */
static void write_part(const char *path, int p)
{
    FILE *f = fopen(path, "wb");
    CHECK(f);
    for (int i = 0; i < ROWS * T * (p + 1) + 1; i++)
        CHECK(fwrite(&(uint16_t){(uint16_t)(10000 * p + i)}, 2, 1, f) == 1);
    CHECK(!fclose(f));
}

static tn_data *open_mix(const char path[PARTS][40], double held)
{
    tn_data *part[PARTS], *mixed;
    for (int p = 0; p < PARTS; p++)
        CHECK(!tn_data_open(ctx, 1, (const char *[]){path[p]}, "u16", held, 0, &part[p]));
    if (tn_data_mix(ctx, PARTS, part, weights, &mixed)) {
        printf("  %s\n", tn_error(ctx));
        abort();
    }
    return mixed;
}

static int source_of(const int64_t *ids)
{
    return (int)(ids[0] / 10000);
}

/* Counts the rows that came of each source, by their first token. */
static void check_shares(tn_data *d)
{
    int64_t ids[T], labels[T], seen[PARTS][ROWS * PARTS * T + 1] = {{0}};
    int count[PARTS] = {0}, early[PARTS] = {0};
    for (uint32_t step = 1; step <= PERIOD; step++) {
        CHECK(!tn_data_batch(d, 5, step, 1, T, ids, labels));
        int p = source_of(ids);
        count[p]++;
        early[p] += step <= 500;
        seen[p][ids[0] % 10000]++;
    }
    EXPECT(count[0] == 7000 && count[1] == 2000 && count[2] == 1000);
    EXPECT(early[0] > 300 && early[1] > 50 && early[2] > 20); /* they are mixed, not side by side */
    for (int p = 0; p < PARTS; p++) {
        int64_t least = PERIOD, most = 0;
        for (int k = 0; k < ROWS * (p + 1); k++) {
            int64_t n = seen[p][k * T];
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
        EXPECT(most - least <= 1 && least >= count[p] / (ROWS * (p + 1)));
    }
}

/* By one rank's rows, and by a thread that reads ahead. */
static void check_readers(const char path[PARTS][40], tn_data *d)
{
    tn_data *part = open_mix(path, 0), *ahead = open_mix(path, 0);
    const int64_t rows[] = {3, 1};
    int64_t all[2][BATCH * T], own[2][2 * T], early[2][BATCH * T];
    CHECK(!tn_data_part(part, 2, rows) && !tn_data_read_ahead(ahead, 5, 8, BATCH, T));
    for (uint32_t step = 8; step < 14; step++) {
        CHECK(!tn_data_batch(d, 5, step, BATCH, T, all[0], all[1]));
        CHECK(!tn_data_batch(part, 5, step, BATCH, T, own[0], own[1]));
        CHECK(!tn_data_batch(ahead, 5, step, BATCH, T, early[0], early[1]));
        EXPECT(!memcmp(all, early, sizeof all));
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 2; i++)
                EXPECT(!memcmp(own[k] + i * T, all[k] + rows[i] * T, sizeof(int64_t) * T));
    }
}

static void check_held(const char path[PARTS][40])
{
    tn_data *d = open_mix(path, 0.25);
    int64_t windows, nlabel, count, ids[T], labels[T], seen[PARTS] = {0}, sum = 0;
    CHECK(!tn_data_windows(d, 1, T, &windows, &nlabel));
    for (int64_t k = 0; k < windows; k++) {
        CHECK(!tn_data_val(d, k, 1, 1, T, ids, labels, &count));
        seen[source_of(ids)]++;
        sum += count;
    }
    EXPECT(sum == nlabel && seen[0] >= 4 && seen[1] >= 9 && seen[2] >= 14);
    CHECK(!tn_data_val(d, windows, 1, 1, T, ids, labels, &count));
    EXPECT(!count);
}

static void check_refused(tn_data *d)
{
    tn_data *out;
    EXPECT(tn_data_mix(ctx, 1, &d, weights, &out) == TN_CODE_USAGE &&
           strstr(tn_error(ctx), "no mixture"));
}

int main(void)
{
    char path[PARTS][40];
    ctx = tn_context_new();
    CHECK(ctx);
    for (int p = 0; p < PARTS; p++) {
        snprintf(path[p], sizeof path[p], "/tmp/tenon_mix_XXXXXX");
        int fd = mkstemp(path[p]);
        CHECK(fd >= 0 && !close(fd));
        write_part(path[p], p);
    }
    tn_data *d = open_mix((const char(*)[40])path, 0);
    int64_t windows, nlabel;
    CHECK(!tn_data_windows(d, 0, T, &windows, &nlabel));
    EXPECT(nlabel == ROWS * T * 6);
    check_shares(d);
    check_readers((const char(*)[40])path, d);
    check_held((const char(*)[40])path);
    check_refused(d);
    for (int p = 0; p < PARTS; p++)
        unlink(path[p]);
    tn_context_free(ctx);
    return test_report();
}
