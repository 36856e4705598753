/* What goes in and out of programs: inputs and outputs by name, copied with their sizes checked,
 * and errors that are the program's and leave its context alone. */
#include "../../include/tenon.h"
#include "../shared/test.h"

static tn_context *ctx;

static void ok(int code)
{
    if (!EXPECT(code == TN_CODE_OK))
        printf("  %s\n", tn_error(ctx));
}

static void does(tn_program *y, int code, int line)
{
    if (!test_note(!code, __FILE__, line, "the call"))
        printf("  %s\n", tn_program_error(y));
}
#define DOES(y, call) does((y), (call), __LINE__)

/* The message is the program's, and its context hears nothing. */
static void left(tn_program *y, int code, int want, const char *part, int line)
{
    bool good = code == want && strstr(tn_program_error(y), part) && !strcmp(tn_error(ctx), "none");
    if (!test_note(good, __FILE__, line, part))
        printf("  found code %d: %s; %s\n", code, tn_program_error(y), tn_error(ctx));
}
#define LEFT(y, call, want, part) \
    (tn_context_fail(ctx, 0, "none"), left((y), (call), (want), (part), __LINE__))

static const char *const step_text =
    "tenon 1\ngraph g(%w: f32[2] param \"w\", %t: i64[] step, %r: f32[] scalar \"lr\") {\n"
    "  %n: f32[2] = mul(%w, %r)  optimizer\n  %y: f32[2] = exp(%n)  optimizer\n"
    "  return new \"w\" %n, %y, %t\n}\n";

typedef struct Run {
    tn_graph *g;
    tn_plan *p;
    tn_program *x;
} Run;

static Run start(void)
{
    Run r = {0};
    tn_options o = tn_options_default();
    ok(tn_graph_parse(ctx, step_text, "step", &r.g));
    ok(tn_plan_new(r.g, &o, 0, &r.p));
    ok(tn_program_new(r.p, &o, &r.x));
    return r;
}

static void test_refused(void)
{
    tn_program *y = start().x;
    float w[3] = {1, 2, 3}, found[2] = {0};
    void *data;
    EXPECT(!strcmp(tn_program_error(y), "") && !strcmp(tn_program_error(NULL), "no program"));
    DOES(y, tn_program_write(y, "w", w, 8));
    LEFT(y, tn_program_write(y, "w", w + 1, 12), TN_CODE_USAGE,
         "tn_program_write: \"w\" is f32[2]: expected 8 bytes, found 12");
    LEFT(y, tn_program_write(y, "w", w + 1, -1), TN_CODE_USAGE, "expected 8 bytes, found -1");
    LEFT(y, tn_program_write(y, "nothing", w + 1, 8), TN_CODE_FAIL,
         "no input or output \"nothing\"");
    LEFT(y, tn_program_write(y, "w", NULL, 8), TN_CODE_USAGE, "data: expected a pointer");
    LEFT(y, tn_program_write(y, "new.w", w + 1, 8), TN_CODE_USAGE, "found an output");
    LEFT(y, tn_program_read(y, "step", found, 4), TN_CODE_USAGE,
         "tn_program_read: \"step\" is i64[]: expected 8 bytes, found 4");
    LEFT(y, tn_program_read(y, "", found, 8), TN_CODE_FAIL, "no input or output \"\"");
    LEFT(y, tn_program_read(y, NULL, found, 8), TN_CODE_USAGE, "name: expected a pointer");
    LEFT(y, tn_program_data(y, "lr2", &data, NULL), TN_CODE_FAIL, "\"lr2\"");
    LEFT(y, tn_program_run(y), TN_CODE_USAGE, "input \"step\" was never set");
    EXPECT(found[0] == 0 && found[1] == 0);
    DOES(y, tn_program_read(y, "w", found, 8));
    EXPECT(found[0] == 1 && found[1] == 2);
}

static void test_copies(void)
{
    tn_program *y = start().x;
    tn_port port;
    float w[] = {1, 2}, rate = 2, found[2];
    int64_t number = 5;
    DOES(y, tn_program_write(y, "w", w, 8));
    DOES(y, tn_program_write(y, "t", &number, 8));
    DOES(y, tn_program_write(y, "lr", &rate, 4));
    number = 0;
    DOES(y, tn_program_read(y, "step", &number, 8));
    DOES(y, tn_program_run(y));
    DOES(y, tn_program_read(y, "new.w", found, 8));
    EXPECT(number == 5 && found[0] == 2 && found[1] == 4);
    DOES(y, tn_program_port(y, "w", &port));
    EXPECT(!strcmp(port.value, "w") && !strcmp(port.role, "param") && !strcmp(port.dtype, "f32") &&
           port.rank == 1 && port.shape[0] == 2 && port.nbytes == 8 && !port.output);
    DOES(y, tn_program_port(y, "out1", &port));
    EXPECT(!strcmp(port.value, "y") && !strcmp(port.role, "") && port.output);
    LEFT(y, tn_program_port(y, "out0", &port), TN_CODE_FAIL, "\"out0\"");
}

int main(void)
{
    ctx = tn_context_new();
    CHECK(ctx);
    test_refused();
    test_copies();
    tn_context_free(ctx);
    return test_report();
}
