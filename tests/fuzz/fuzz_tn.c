/* libFuzzer entry for the .tn text: `make fuzz` builds it with clang. Any bytes either make a graph
 * that verifies, prints and parses again to the same bytes, or fail by unwinding. */
#include "../../src/ir/ir.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Input {
    Arena *a;
    const uint8_t *data;
    size_t size;
    const char *printed; /* once the input has proved to be a graph */
} Input;

static const char *print(Arena *a, const Graph *g)
{
    Buf b = {.a = a};
    graph_print(&b, g);
    return b.text;
}

static void first(void *arg)
{
    Input *in = arg;
    char *text = arena_strndup(in->a, (const char *)in->data, in->size);
    Graph *g = graph_parse(in->a, text, "fuzz");
    graph_verify(g);
    in->printed = print(in->a, g);
}

static void second(void *arg)
{
    Input *in = arg;
    Graph *g = graph_parse(in->a, in->printed, "printed");
    graph_verify(g);
    CHECK(!strcmp(print(in->a, g), in->printed));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .data = data, .size = size};
    CHECK(in.a);
    if (ctx_try(&ctx, first, &in) == TN_OK)
        CHECK(ctx_try(&ctx, second, &in) == TN_OK);
    arena_free(in.a);
    ctx_end(&ctx);
    return 0;
}
