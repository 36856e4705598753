/* Texts of graphs and plans, recordings and lists of calls take memory once, however often they are
 * asked for. Calls of the API at the ends of their ranges say so. */
#include "../../include/tenon.h"
#include "../shared/test.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tn_context *ctx;

#define OK(call) EXPECT((call) == TN_CODE_OK)

static const char *const four =
    "tenon 1\ngraph g(%a: f32[4, 6] param \"a\", %b: f32[6, 5], %c: f32[5, 4]) {\n"
    "  %y: f32[4, 5] = mm(%a, %b)  forward\n"
    "  %z: f32[4, 4] = mm(%y, %c)  forward\n"
    "  %w: f32[4, 6] = mm(%z, %a)  forward\n"
    "  %v: f32[4, 5] = mm(%w, %b)  forward\n"
    "  return %v\n}\n";

static int64_t resident(void) /* bytes */
{
    long long size, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!EXPECT(f && fscanf(f, "%lld %lld", &size, &pages) == 2))
        pages = 0;
    if (f)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* The count does not depend on how many are wanted. */
static void test_products(tn_plan *p)
{
    for (int most = 0; most <= 4; most++) {
        tn_product product[4] = {{0}};
        EXPECT(tn_plan_products(p, most, product) == 3);
        for (int i = 0; i < 4; i++)
            EXPECT((product[i].count > 0) == (i < most && i < 3));
        EXPECT(most < 1 || product[0].count == 2);
    }
}

/* The same text is the one that was given before. */
static void test_texts(tn_graph *g, tn_plan *p)
{
    tn_plan *const two[] = {p, p};
    const char *const side[] = {"x", "y"};
    const char *text[2][12];
    for (int i = 0; i < 2; i++) {
        OK(tn_graph_print(g, &text[i][0]));
        OK(tn_graph_dot(g, &text[i][1]));
        OK(tn_graph_export_fx(g, &text[i][2]));
        OK(tn_graph_diff(g, g, &text[i][3]));
        OK(tn_plan_text(p, 0, &text[i][4]));
        OK(tn_plan_text(p, 1, &text[i][5]));
        OK(tn_plan_explain(p, &text[i][6]));
        OK(tn_plan_trace(p, &text[i][7]));
        OK(tn_plan_page(two, NULL, 1, "title", "command", &text[i][8]));
        OK(tn_plan_compare(two, side, 0, &text[i][9]));
        OK(tn_plan_compare(two, side, 1, &text[i][10]));
        OK(tn_plan_export_json(p, &text[i][11]));
    }
    for (int k = 0; k < 12; k++)
        if (!EXPECT(text[0][k] == text[1][k]))
            printf("  text %d\n", k);
    EXPECT(text[0][4] != text[0][5] && text[0][9] != text[0][10]);
    const char *const before = text[0][5];
    char *copy = strdup(before);
    OK(tn_plan_text(p, 0, &text[0][0]));
    EXPECT(copy && !strcmp(before, copy)); /* which lives on */
    free(copy);
}

/* A recording that is asked for again takes the memory of the one before. */
static void test_recordings(tn_program *x)
{
    enum { ROOM = 20000, TIMES = 200 };
    const tn_call *calls[2];
    int count;
    int64_t before = resident();
    tn_program_random(x, 1);
    for (int i = 0; i < TIMES; i++) {
        before = i == 2 ? resident() : before;
        OK(tn_program_trace(x, ROOM));
        tn_program_trace_next(x, 0);
        OK(tn_program_run(x));
    }
#ifdef __SANITIZE_ADDRESS__
    printf("note: AddressSanitizer keeps freed memory: what recordings take is not compared\n");
#else
    EXPECT(resident() - before < 40 * 4 * ROOM); /* of one, 40 bytes for each call */
#endif
    OK(tn_program_calls(x, &calls[0], &count));
    OK(tn_program_calls(x, &calls[1], &count));
    EXPECT(calls[0] == calls[1] && count == 3);
    tn_program_trace_next(x, 1);
    OK(tn_program_run(x));
    OK(tn_program_calls(x, &calls[1], &count));
    EXPECT(calls[0] != calls[1] && calls[0][0].ntimes == calls[0][0].count &&
           calls[1][0].ntimes == 2 * calls[1][0].count);
}

/* Bytes beyond 2^53, of which a double has not all, are rounded up as others are. */
static void test_bytes(void)
{
    static const struct {
        int64_t nbytes;
        const char *unit, *text;
    } rows[] = {{(INT64_C(1) << 60) + 1, "TiB", "1048576.01TiB"},
                {INT64_C(1) << 60, "TiB", "1048576.00TiB"},
                {INT64_MAX, "GiB", "8589934592.00GiB"},
                {3 << 20, "MiB", "3.00MiB"},
                {1, "GiB", "0.01GiB"},
                {1999, "kB", "2.00kB"},
                {7, "", "7"}};
    char text[40];
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        tn_bytes_text(rows[i].nbytes, rows[i].unit, text, sizeof text);
        if (!EXPECT(!strcmp(text, rows[i].text)))
            printf("  %s\n", text);
    }
}

static void test_limits(void)
{
    tn_product p = {.dtype = "f32", .out_dtype = "f32", .m = 1073741825, .k = 2147483647, .n = 1};
    double sec;
    EXPECT(tn_limit_product(ctx, &p, 0, &sec) == TN_CODE_FAIL &&
           strstr(tn_error(ctx), "out of memory"));
}

/* The bytes that can be mapped are found also where far more is asked for. */
static void test_mapping(tn_plan *p)
{
    tn_options o = tn_options_default();
    tn_program *x = NULL;
    o.arena = INT64_C(1) << 56;
    EXPECT(tn_program_new(p, &o, &x) == TN_CODE_FIT);
    const char *most = strstr(tn_error(ctx), "what could be mapped is ");
    EXPECT(most && atoll(most + strlen("what could be mapped is ")) >= INT64_C(1) << 20);
}

static void test_tune(void)
{
    tn_options o = tn_options_default();
    const tn_tune_step step = {"tests/ref/gpt2-tiny", 2, 8, &o};
    EXPECT(tn_tune(ctx, &step, 1, &(tn_tune_options){.path = ""}) == TN_CODE_USAGE &&
           strstr(tn_error(ctx), "expected a path"));
    EXPECT(access(".part", F_OK));
    char folder[] = "/tmp/test_repeat.XXXXXX", path[100];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m", folder);
    o.pack = "on"; /* rows of several documents, whose begins an input says */
    o.fuse = 0;
    if (!OK(tn_tune(ctx, &step, 1, &(tn_tune_options){.path = path, .cpu = 1})))
        printf("  %s\n", tn_error(ctx));
    EXPECT(!unlink(path) && !rmdir(folder)); /* nothing else is left */
}

int main(void)
{
    tn_options o = tn_options_default();
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *x = NULL;
    ctx = tn_context_new();
    tn_threads(1);
    OK(tn_graph_parse(ctx, four, "four.tn", &g));
    OK(tn_plan_new(g, &o, 0, &p));
    OK(tn_program_new(p, &o, &x));
    test_products(p);
    test_texts(g, p);
    test_recordings(x);
    test_bytes();
    test_limits();
    test_mapping(p);
    test_tune();
    tn_context_free(ctx);
    return test_report();
}
