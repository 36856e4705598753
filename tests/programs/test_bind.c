/* Inputs and outputs in memory of the caller's: tn_program_bind. */
#include "../../include/tenon.h"
#include "../shared/test.h"

static tn_context *ctx;
static tn_program *x;

#define DOES(call)               expect((call), 0, "", tn_program_error(x), __LINE__)
#define LEAVES(call, want, part) expect((call), (want), (part), tn_program_error(x), __LINE__)

static void expect(int got, int want, const char *part, const char *text, int line)
{
    bool right = got == want && (!want || strstr(text, part));
    if (!test_note(right, __FILE__, line, "call"))
        printf("  expected code %d, \"%s\"; found %d, \"%s\"\n", want, part, got, text);
}

static const char *const text = "tenon 1\n"
                                "graph g(%x: f32[2] batch, %w: f32[2] param \"the.weight\",\n"
                                "    %r: f32[] scalar \"lr\") {\n"
                                "  %y: f32[2] = mul(%x, %w)  forward\n"
                                "  %z: f32[2] = neg(%y)  forward\n"
                                "  %v: f32[2, 1] = view(%z, size=[2, 1])  forward\n"
                                "  %l: f32[] = sum(%y)  loss\n"
                                "  %n: f32[2] = mul(%w, %r)  optimizer\n"
                                "  return loss %l, new \"the.weight\" %n, metric \"m\" %z, %v\n"
                                "}\n";

static float *data(const char *name)
{
    void *p = NULL;
    DOES(tn_program_data(x, name, &p, NULL));
    return p;
}

static tn_program *start(const char *graph)
{
    tn_options o = tn_options_default();
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    x = NULL;
    expect(tn_graph_parse(ctx, graph, "text", &g) || tn_plan_new(g, &o, 0, &p) ||
               tn_program_new(p, &o, &x),
           0, "", tn_error(ctx), __LINE__);
    return x;
}

static void fill(void)
{
    float *in = data("x"), *w = data("w");
    in[0] = 3, in[1] = 4;
    w[0] = w[1] = 2;
    *data("lr") = 0.5f;
}

/* Runs read and write the caller's memory, and leave the arena's own as it was. */
static void test_runs(void)
{
    _Alignas(64) float weight[16] = {2, 2}, loss[16] = {0}, other[16] = {10, 10};
    start(text);
    float *own = data("w");
    DOES(tn_program_bind(x, "the.weight", weight));
    DOES(tn_program_bind(x, "loss", loss));
    EXPECT(data("w") == weight && data("new.the.weight") == weight && data("loss") == loss);
    fill();
    own[0] = 7;
    DOES(tn_program_run(x));
    EXPECT(loss[0] == 14 && weight[0] == 1 && weight[1] == 1 && own[0] == 7);
    DOES(tn_program_bind(x, "w", other));
    fill();
    other[0] = other[1] = 10;
    DOES(tn_program_run(x));
    EXPECT(loss[0] == 70 && other[0] == 5 && weight[0] == 1);
    DOES(tn_program_bind(x, "w", NULL));
    EXPECT(data("w") == own);
    fill();
    DOES(tn_program_run(x));
    EXPECT(loss[0] == 14 && other[0] == 5 && own[0] == 1);
}

static void test_refused(void)
{
    static const char *const no[][2] = {{"x", "used again within a step"},
                                        {"lr", "scalars are written"},
                                        {"metric.m", "shares its memory"},
                                        {"out3", "shares its memory"},
                                        {"new.the.weight", "shares its memory"}};
    _Alignas(64) float memory[32] = {0};
    start(text);
    for (int i = 0; i < LEN(no); i++)
        LEAVES(tn_program_bind(x, no[i][0], memory), TN_CODE_FAIL, no[i][1]);
    LEAVES(tn_program_bind(x, "w", memory + 1), TN_CODE_FAIL, "64 bytes");
    LEAVES(tn_program_bind(x, "other", memory), TN_CODE_FAIL, "no input or output");
    EXPECT(data("w") != memory);
}

/* A program in another's arena keeps to it. */
static void test_shared(void)
{
    _Alignas(64) float memory[16] = {0};
    tn_options o = tn_options_default();
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    tn_program *host = start(text);
    EXPECT(!tn_graph_parse(ctx, text, "text", &g) && !tn_plan_new(g, &o, 0, &p) &&
           !tn_program_share(p, host, &x));
    LEAVES(tn_program_bind(x, "w", memory), TN_CODE_FAIL, "an arena of its own");
    tn_program *other = x;
    x = host;
    memory[0] = memory[1] = 5;
    DOES(tn_program_bind(host, "w", memory)); /* which it reads then, too */
    x = other;
    EXPECT(data("w") == memory);
    *data("lr") = 0.5f;
    data("x")[0] = 3, data("x")[1] = 4;
    DOES(tn_program_run(x));
    EXPECT(*data("loss") == 35);
}

/* An output that lies where a larger value was: both are of 64 bytes, rounded up, and the caller's
 * memory has room for the output alone. */
static void test_larger(void)
{
    static const char *const narrow = "tenon 1\n"
                                      "graph g(%x: i64[4] batch) {\n"
                                      "  %y: i64[4] = mul(%x, %x)\n"
                                      "  %z: i32[4] = _to_copy(%y, dtype=i32)\n"
                                      "  return metric \"m\" %z\n"
                                      "}\n";
    _Alignas(64) int32_t memory[16] = {0};
    int64_t *in;
    void *at = NULL;
    start(narrow);
    for (int i = 4; i < 16; i++)
        memory[i] = -1;
    const int bound = tn_program_bind(x, "metric.m", memory) == TN_CODE_OK;
    DOES(tn_program_data(x, "x", &at, NULL));
    in = at;
    for (int i = 0; i < 4; i++)
        in[i] = i;
    DOES(tn_program_run(x));
    for (int i = 4; i < 16; i++)
        EXPECT(memory[i] == -1);
    DOES(tn_program_data(x, "metric.m", &at, NULL));
    EXPECT((at == memory) == bound && ((int32_t *)at)[3] == 9);
}

int main(void)
{
    ctx = tn_context_new();
    test_runs();
    test_refused();
    test_shared();
    test_larger();
    tn_context_free(ctx);
    return test_report();
}
