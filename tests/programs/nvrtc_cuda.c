/* Compiles texts of bodies of `fused` by NVRTC, as a program on a GPU does, but without one: of
 * those that standard input has, each behind a form feed (test_cuda_fused prints them). The
 * argument: for which architecture. */
#include "../../src/cuda/fused_text.h"
#include "../shared/test.h"

#include <string.h>

typedef struct Trial {
    Arena *a;
    const char *text, *arch;
} Trial;

static char *read_all(Arena *a)
{
    Buf b = {.a = a};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, stdin)) > 0;)
        buf_addn(&b, part, n);
    return b.text;
}

static void compile(void *arg)
{
    const Trial *t = arg;
    size_t nbytes;
    fused_binary(t->a, t->text, t->arch, &nbytes);
}

/* An architecture that no device is, compute_80, has no machine code; NVRTC compiles for it all the
 * same. */
int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    char *rest = NULL, *all = read_all(a);
    Trial t = {.arch = argc > 1 ? argv[1] : "sm_90a"};
    for (char *s = all ? strtok_r(all, "\f", &rest) : NULL; s; s = strtok_r(NULL, "\f", &rest)) {
        t.a = arena_new(&ctx);
        t.text = s;
        if (!EXPECT(ctx_try(&ctx, compile, &t) == TN_OK))
            printf("  %s\n", ctx.message);
        arena_free(t.a);
    }
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
