/* libFuzzer entry for PyTorch's graphs: `make fuzz` builds it with clang. Any bytes either make a
 * graph that verifies, prints and parses again to the same bytes, or fail by unwinding. */
#include "../../src/fx/fx.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Input {
    Arena *a;
    const char *text;
    const char *printed; /* once the input has proved to be a graph */
} Input;

static const char *print(Arena *a, const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    return b.text;
}

static void import(void *arg)
{
    static const char *const names[] = {"x_1", "w1_1", "w2_1", "i", "_tensor_constant0"};
    static const Type types[] = {
        {F32, 2, {2, 4}}, {F32, 2, {4, 8}}, {F32, 2, {8, 4}}, {I64, 1, {3}}, {F32, 0, {0}}};
    Input *in = arg;
    FxOptions o = {.ninput = LEN(names), .name = names, .type = types, .origin = "the fuzzer"};
    o.barriers = strlen(in->text) % 2; /* one of two inputs */
    const char *summary;
    in->printed = print(in->a, fx_import(in->a, in->text, "fuzz", &o, &summary));
}

static void again(void *arg)
{
    Input *in = arg;
    Graph *g = graph_parse(in->a, in->printed, "printed");
    graph_verify(g);
    CHECK(!strcmp(print(in->a, g), in->printed));
}

static void list(void *arg)
{
    Input *in = arg;
    fx_unknown(in->a, in->text, "fuzz", false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    CHECK(a);
    Input in = {.a = a, .text = arena_strndup(a, (const char *)data, size)};
    if (ctx_try(&ctx, import, &in) == TN_OK)
        CHECK(ctx_try(&ctx, again, &in) == TN_OK);
    (void)ctx_try(&ctx, list, &in);
    arena_free(a);
    return 0;
}
