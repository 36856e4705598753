/* libFuzzer entry for adapter_config.json and for the text of --lora: `make fuzz` builds it with
 * clang. Any bytes, as a file where they begin with {, either make adapters of a model whose graphs
 * verify and whose text reads back as the same adapters, or fail by unwinding. */
#include "../../src/model/model.h"

#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Input {
    Arena *a;
    const char *path, *text;
    Lora *lora;
    ModelConfig c;
} Input;

static void put(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && !fclose(f));
}

static void read_adapters(void *arg)
{
    Input *in = arg;
    const char *base;
    in->lora = *in->text == '{' ? lora_read(in->a, in->path, &base) : lora_parse(in->a, in->text);
    in->c = *config_preset("demo");
    in->c.lora = in->lora;
}

static void make_graphs(void *arg)
{
    Input *in = arg;
    lora_check(in->a, &in->c);
    graph_verify(model_graph(in->a, &in->c, 2, 3, &(ModelOptions){.adapters_drop = true}));
    graph_verify(model_decode(in->a, &in->c, 1, 2));
}

/* Written settings of adapters that the model can have are read as the same adapters. */
static void write_again(void *arg)
{
    Input *in = arg;
    const char *base, *text = lora_text(in->a, &in->c, "base");
    put(in->path, text, strlen(text));
    in->c.lora = lora_read(in->a, in->path, &base);
    CHECK(!strcmp(base, "base") && !strcmp(lora_text(in->a, &in->c, base), text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[60];
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .path = path};
    CHECK(in.a);
    snprintf(path, sizeof path, "/tmp/tenon-fuzz-lora-%ld.json", (long)getpid());
    put(path, data, size);
    in.text = arena_strndup(in.a, (const char *)data, size);
    if (ctx_try(&ctx, read_adapters, &in) == TN_OK && ctx_try(&ctx, make_graphs, &in) == TN_OK)
        CHECK(ctx_try(&ctx, write_again, &in) == TN_OK);
    arena_free(in.a);
    unlink(path);
    return 0;
}
