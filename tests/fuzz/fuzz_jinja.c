/* libFuzzer entry for chat templates: `make fuzz` builds it with clang. Any bytes either make a
 * template that renders a chat, or fail by unwinding. */
#include "../../src/jinja/jinja.h"

#include <jansson.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be short\"}, {\"role\": \"user\","
    " \"content\": \"h\\u00e9 <b>\"}, {\"role\": \"assistant\", \"content\": \"a\\nb\","
    " \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, null]}}}]}],"
    " \"tools\": [{\"type\": \"function\"}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    json_t *v = json_loads(variables, 0, NULL);
    Arena *a = arena_new(&ctx);
    CHECK(a && v);
    TRY(t, &ctx)
        jinja_render(jinja_parse(a, (const char *)data, size, "template"), a, v);
    if (tried(&t))
        CHECK(*ctx.message);
    arena_free(a);
    json_decref(v);
    ctx_end(&ctx);
    return 0;
}
