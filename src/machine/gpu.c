/* gpu: the GPU at hand, as far as files that were tuned name it. A context asks for it once; a
 * program that is linked without CUDA has none. */
#include "machine.h"

#include <string.h>

typedef struct Gpu {
    bool here;
    GpuAbout about;
} Gpu;

static const Gpu *gpu_of(Ctx *ctx, int number)
{
    struct {
        char what[12];
        int number;
    } key = {"a GPU", number};
    Gpu *x = memo_find(ctx, &key, sizeof key);
    if (!x) {
        x = NEW(memo_arena(ctx), Gpu);
        x->here = cuda_about && cuda_about(number, &x->about);
        memo_put(ctx, &key, sizeof key, x);
    }
    return x;
}

const char *gpu_library(Arena *a, int number)
{
    const Gpu *x = gpu_of(arena_ctx(a), number);
    return x->here ? arena_printf(a, "cublaslt %s, %s", x->about.library, x->about.name) : NULL;
}

const char *gpu_row(Arena *a, const Device *d, int number)
{
    const Gpu *x = gpu_of(arena_ctx(a), number);
    char *rows = arena_strdup(a, machine_list(a)), *rest;
    const char *words = arena_printf(a, "-%s-", plain_words(a, x->about.name));
    for (char *row = strtok_r(rows, " ", &rest); row && x->here; row = strtok_r(NULL, " ", &rest))
        if (machine_row(a, row)->gpu && strstr(words, arena_printf(a, "-%s-", row)))
            return row;
    return d->machine;
}

/* The GPU's name, which follows the library and its version. */
static const char *gpu_name(const char *library)
{
    const char *comma = strchr(library, ',');
    return comma ? comma + 1 : "";
}

void gpu_check(const Machine *m, int number, const char *file)
{
    const char *here = gpu_library(m->a, number);
    if (!here || !m->library || !strcmp(here, m->library))
        return;
    bool other = strcmp(gpu_name(here), gpu_name(m->library)) != 0;
    fail(arena_ctx(m->a), other ? TN_USAGE : TN_FAIL,
         "%s: expected what was measured with %s, which %s, found %s", file, here,
         other ? "is here" : "this program uses", m->library);
}
