/* libFuzzer entry for config.json: `make fuzz` builds it with clang. Any bytes either make a
 * configuration whose graphs verify and whose text reads back as the same model, or fail by
 * unwinding. */
#include "../../src/model/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DEEPEST = 6 }; /* layers of a graph that is made here */

typedef struct Input {
    Arena *a;
    const char *path;
    ModelConfig c;
} Input;

static void put(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && !fclose(f));
}

static void open_config(void *arg)
{
    Input *in = arg;
    in->c = config_read(in->a, in->path);
}

static void make_graphs(void *arg)
{
    Input *in = arg;
    graph_verify(model_graph(in->a, &in->c, 2, 3, &(ModelOptions){.dropout = 0.1}));
    graph_verify(model_logits(in->a, &in->c, 1, 2));
    graph_verify(model_decode(in->a, &in->c, 1, 2));
}

/* What is written from the configuration alone is read as the same model. */
static void write_again(void *arg)
{
    Input *in = arg;
    ModelConfig c = in->c;
    c.source = NULL;
    const char *text = config_text(in->a, &c);
    put(in->path, text, strlen(text));
    ModelConfig again = config_read(in->a, in->path);
    again.source = NULL;
    CHECK(!strcmp(config_text(in->a, &again), text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[60];
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .path = path};
    CHECK(in.a);
    snprintf(path, sizeof path, "/tmp/tenon-fuzz-config-%ld.json", (long)getpid());
    put(path, data, size);
    if (ctx_try(&ctx, open_config, &in) == TN_OK) {
        CHECK(ctx_try(&ctx, write_again, &in) == TN_OK);
        if (in.c.nlayer <= DEEPEST)
            ctx_try(&ctx, make_graphs, &in);
    }
    arena_free(in.a);
    unlink(path);
    return 0;
}
