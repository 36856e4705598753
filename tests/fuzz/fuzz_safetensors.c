/* libFuzzer entry for safetensors and their index: `make fuzz` builds it with clang. The bytes are
 * a file by itself, and, up to the first NUL byte, the index of a folder in which the rest is
 * one.safetensors and two.safetensors is a good file. Either fails by unwinding, or every tensor
 * lies within its file, is found by name and is read, as it is stored and as f32. */
#include "../../src/io/io.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[60], one[90], two[90], index_path[90];

typedef struct Input {
    Arena *a;
    const char *path;
    const TensorFile *f;
    const TensorEntry *e;
} Input;

static void put(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && !fclose(f));
}

static void open_tensors(void *arg)
{
    Input *in = arg;
    in->f = tensors_open(in->a, in->path);
}

static void read_tensor(void *arg)
{
    const Input *in = arg;
    const Type *t = &in->e->type;
    char *stored = NEWN(in->a, char, type_nbytes(t));
    float *wide = NEWN(in->a, float, type_nelem(t));
    tensors_read(in->f, in->e, t->dtype, false, stored);
    tensors_read(in->f, in->e, F32, true, wide);
}

static void try_open(Ctx *ctx, const char *path)
{
    Input in = {.a = arena_new(ctx), .path = path};
    CHECK(in.a);
    if (ctx_try(ctx, open_tensors, &in) == TN_OK)
        for (int i = 0; i < in.f->count; i++) {
            in.e = &in.f->entry[i];
            CHECK(tensors_find(in.f, in.e->name) == in.e);
            CHECK(in.e->begin >= 8 &&
                  in.e->begin + type_nbytes(&in.e->type) <= in.f->file[in.e->file].nbytes);
            ctx_try(ctx, read_tensor, &in);
        }
    arena_free(in.a);
}

static void drop_folder(void)
{
    unlink(one);
    unlink(two);
    unlink(index_path);
    rmdir(folder);
}

static void make_folder(Ctx *ctx)
{
    static const float x[] = {1, 2};
    const TensorOut good = {"y", {F32, 1, {2}}, x};
    snprintf(folder, sizeof folder, "/tmp/tenon-fuzz-safetensors-%ld", (long)getpid());
    snprintf(one, sizeof one, "%s/one.safetensors", folder);
    snprintf(two, sizeof two, "%s/two.safetensors", folder);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", folder);
    mkdir(folder, 0700);
    tensors_write(ctx, two, 1, &good);
    atexit(drop_folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    if (!*folder)
        make_folder(&ctx);
    put(one, data, size);
    try_open(&ctx, one);
    const uint8_t *end = memchr(data, 0, size);
    size_t n = end ? (size_t)(end - data) : size, rest = end ? n + 1 : n;
    put(index_path, data, n);
    put(one, data + rest, size - rest);
    try_open(&ctx, folder);
    return 0;
}
