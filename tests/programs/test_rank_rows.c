/* Which rows of a step a rank has, by the C API, against counting them; and data of these rows. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <unistd.h>

#define OK(ctx, call)                told((ctx), (call), TN_CODE_OK, "", __LINE__)
#define TOLD(ctx, found, want, part) told((ctx), (found), (want), (part), __LINE__)

static bool told(tn_context *ctx, int code, int want, const char *part, int line)
{
    bool good = test_note(code == want && strstr(tn_error(ctx), part), __FILE__, line, part);
    if (!good)
        printf("  code %d: %s\n", code, tn_error(ctx));
    return good;
}

static char folder[] = "/tmp/tenon_rows_XXXXXX";

static const char *write_text(const char *name, const void *text, size_t n)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(text, 1, n, f) == n && !fclose(f));
    return path;
}

enum { SEQ = 8 };

/* A plan for a step of gpt2-tiny; NULL after an error. */
static tn_plan *plan_of(tn_context *ctx, const tn_options *o, int64_t batch)
{
    tn_model *m;
    tn_graph *g;
    tn_plan *p = NULL;
    bool good = OK(ctx, tn_model_open(ctx, "tests/ref/gpt2-tiny", &m)) &&
                OK(ctx, tn_model_graph(m, batch, SEQ, o, &g)) &&
                OK(ctx, tn_graph_passes(g, "default", o, NULL, NULL)) &&
                OK(ctx, tn_plan_new(g, o, 0, &p));
    return good ? p : NULL;
}

/* ---- rows ---- */

/* Rows of a rank by what the batch is: iterations, each the next rows and padding, of which each
 * data rank has as many as the others. */
static int64_t expected_rows(int64_t batch, int64_t iterations, int64_t ranks, int64_t index,
                             int64_t *row)
{
    int64_t part = (batch + iterations - 1) / iterations, each = (part + ranks - 1) / ranks, n = 0;
    for (int64_t k = 0; k < iterations; k++)
        for (int64_t i = 0; i < each; i++) {
            int64_t at = index * each + i;
            bool real = at < part && k * part + at < batch;
            row[n++] = real ? k * part + at : INT64_MAX;
        }
    return n;
}

static void check_rows(int64_t dp, int64_t fsdp, int64_t tp, int64_t iterations, int64_t batch)
{
    char mesh[60];
    int64_t expected[64], count = 0;
    const int64_t *rows = NULL;
    int seen[64] = {0};
    snprintf(mesh, sizeof mesh, "dp=%d,fsdp=%d,tp=%d", (int)dp, (int)fsdp, (int)tp);
    tn_context *ctx = tn_context_new();
    tn_options o = tn_options_default();
    o.mesh = mesh;
    o.accumulate = iterations;
    for (o.rank = 0; o.rank < dp * fsdp * tp; o.rank++) {
        int64_t n = expected_rows(batch, iterations, dp * fsdp, o.rank / tp, expected);
        tn_plan *p = plan_of(ctx, &o, batch);
        if (!p || !OK(ctx, tn_plan_rows(p, &rows, &count)))
            break;
        bool same = count == n;
        for (int64_t i = 0; i < n && same; i++)
            same = expected[i] < batch ? rows[i] == expected[i] : rows[i] >= batch;
        if (!EXPECT(same))
            printf("  %s, %d iterations, %d rows: rank %d\n", mesh, (int)iterations, (int)batch,
                   (int)o.rank);
        for (int64_t i = 0; i < count; i++)
            seen[rows[i] < batch ? rows[i] : 63]++;
    }
    for (int64_t i = 0; i < batch; i++)
        EXPECT(seen[i] == tp);
    tn_context_free(ctx);
}

static void test_rows(void)
{
    const int64_t *rows;
    int64_t count;
    check_rows(2, 1, 1, 1, 4);
    check_rows(1, 2, 1, 3, 12);
    check_rows(2, 2, 1, 1, 8);
    check_rows(2, 2, 1, 2, 16);
    check_rows(1, 2, 2, 2, 8);
    check_rows(1, 1, 2, 2, 6);
    check_rows(1, 3, 1, 1, 4);  /* padding at the end */
    check_rows(1, 2, 1, 2, 6);  /* in each iteration */
    check_rows(2, 2, 1, 2, 10); /* two rows in each */
    check_rows(1, 2, 1, 2, 5);  /* and a row that is missing */
    tn_context *ctx = tn_context_new();
    tn_options o = tn_options_default();
    tn_plan *p = plan_of(ctx, &o, 3);
    EXPECT(p && OK(ctx, tn_plan_rows(p, &rows, &count)) && count == 3 && rows[2] == 2);
    tn_graph *g;
    EXPECT(!tn_graph_parse(ctx, "tenon 1\ngraph g(%x: f32[2]) {\n  return %x\n}\n", "g", &g));
    OK(ctx, tn_plan_new(g, &o, 0, &p));
    TOLD(ctx, tn_plan_rows(p, &rows, &count), TN_CODE_FAIL, "no input \"input_ids\"");
    tn_context_free(ctx);
}

/* ---- data ---- */

enum { ROWS = 6, TOKENS = 7 };

typedef int64_t Batch[ROWS * TOKENS];

/* Rows of a step are those of the whole; what is no row is padding. */
static void check_part(Batch *whole, Batch *part, int64_t count, const int64_t *rows)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t < TOKENS; t++) {
            bool real = rows[i] < ROWS;
            int64_t at = real ? rows[i] * TOKENS + t : 0;
            EXPECT(part[0][i * TOKENS + t] == (real ? whole[0][at] : 0));
            EXPECT(part[1][i * TOKENS + t] == (real ? whole[1][at] : -100));
        }
}

static void test_data(void)
{
    const int64_t rows[] = {5, 0, 6, 3, INT64_MAX}, wrong[] = {0, -1};
    unsigned char text[1000];
    Batch whole[2], part[2];
    tn_data *d, *whole_data;
    for (int i = 0; i < LEN(text); i++)
        text[i] = (unsigned char)(i * i % 251);
    const char *path = write_text("data", text, sizeof text);
    tn_context *ctx = tn_context_new();
    OK(ctx, tn_data_open(ctx, 1, &path, "byte", 0, 256, &d));
    OK(ctx, tn_data_open(ctx, 1, &path, "byte", 0, 256, &whole_data));
    for (int ahead = 0; ahead < 2; ahead++) {
        OK(ctx, tn_data_part(d, LEN(rows), rows));
        if (ahead)
            OK(ctx, tn_data_read_ahead(d, 9, 1, ROWS, TOKENS));
        for (uint32_t step = 1; step < 60; step++) { /* beyond an epoch */
            memset(part, 1, sizeof part);
            OK(ctx, tn_data_batch(whole_data, 9, step, ROWS, TOKENS, whole[0], whole[1]));
            OK(ctx, tn_data_batch(d, 9, step, ROWS, TOKENS, part[0], part[1]));
            check_part(whole, part, LEN(rows), rows);
            EXPECT(part[0][LEN(rows) * TOKENS] == 0x0101010101010101);
        }
    }
    OK(ctx, tn_data_part(d, 0, NULL));
    OK(ctx, tn_data_batch(d, 9, 60, ROWS, TOKENS, part[0], part[1]));
    OK(ctx, tn_data_batch(whole_data, 9, 60, ROWS, TOKENS, whole[0], whole[1]));
    EXPECT(!memcmp(whole, part, sizeof whole));
    TOLD(ctx, tn_data_part(d, 2, wrong), TN_CODE_USAGE, "rows: expected 0 or more, found -1 at 1");
    tn_context_free(ctx);
}

/* A token that the vocabulary does not have is found by those alone who read its row. */
static void test_data_reads(void)
{
    unsigned char text[ROWS * TOKENS + 1] = {0};
    Batch ids, labels;
    tn_data *d;
    text[20] = 255;
    const char *path = write_text("broken", text, sizeof text);
    tn_context *ctx = tn_context_new();
    OK(ctx, tn_data_open(ctx, 1, &path, "byte", 0, 100, &d));
    EXPECT(tn_data_batch(d, 1, 1, ROWS, TOKENS, ids, labels) == TN_CODE_FAIL);
    int failed = 0;
    for (int64_t row = 0; row < ROWS; row++) {
        OK(ctx, tn_data_part(d, 1, &row));
        failed += tn_data_batch(d, 1, 1, ROWS, TOKENS, ids, labels) == TN_CODE_FAIL;
    }
    EXPECT(failed == 1);
    tn_context_free(ctx);
}

int main(void)
{
    char command[100];
    CHECK(mkdtemp(folder));
    test_rows();
    test_data();
    test_data_reads();
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(!system(command));
    return test_report();
}
