/* libFuzzer entry for files of machines: `make fuzz` builds it with clang. Any bytes either make a
 * machine whose seconds are finite and whose text, printed with it, reads back as the same machine,
 * or fail by unwinding. */
#include "../../src/machine/machine.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Input {
    Arena *a;
    const char *text;
    size_t size;
    const Machine *m;
} Input;

static void parse(void *arg)
{
    Input *in = arg;
    in->m = machine_parse(in->a, in->text, in->size, "fuzz");
}

static void price(const Machine *m)
{
    for (int c = 0; c < NCLASS; c++)
        for (DType d = F64; d < NDTYPE; d++) {
            double sec = cost_sec(m, (OpClass)c, d, &(Cost){1e12, 1e9, 1e9});
            CHECK(sec > 0 && isfinite(sec));
        }
    for (int k = 0; k < NCOLLECTIVE; k++)
        for (int nodes = 1; nodes <= 64; nodes *= 4) {
            const int64_t mesh[] = {nodes, 4};
            Group g = mesh_group(m, mesh, 2, (bool[]){true, true});
            double sec = collective_sec(m, (CollectiveKind)k, g, 1e9);
            CHECK(sec > 0 && isfinite(sec));
        }
    CHECK(isfinite(copy_sec(m, 1e9)));
}

static void print_again(Ctx *ctx, const Input *in)
{
    Buf first = {.a = in->a}, second = {.a = in->a};
    machine_print(&first, machine_copy(in->a, in->m));
    Input next = {in->a, first.text, first.len, NULL};
    CHECK(ctx_try(ctx, parse, &next) == TN_OK && machine_hash(next.m) == machine_hash(in->m));
    machine_print(&second, next.m);
    CHECK(!strcmp(first.text, second.text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Ctx ctx = {0};
    Input in = {.a = arena_new(&ctx), .size = size};
    CHECK(in.a);
    in.text = arena_strndup(in.a, (const char *)data, size);
    if (ctx_try(&ctx, parse, &in) == TN_OK) {
        price(in.m);
        print_again(&ctx, &in);
    }
    arena_free(in.a);
    return 0;
}
