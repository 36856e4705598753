/* Texts of bodies of `fused` for the processor: printing them, finding them. */
#include "fused_made.h"

#include "../../src/cuda/fused_text.h"

#include <string.h>

static void print_string(const char *text)
{
    for (const char *end; *text; text = end + 1) {
        end = strchr(text, '\n');
        printf("     \"");
        for (; text < end; text++)
            printf(strchr("\\\"", *text) ? "\\%c" : "%c", *text);
        printf("\\n\"\n");
    }
}

void fused_made_print(const char *const *text, int count)
{
    printf(
        "#include \"fused.cuh\"\n#include \"../../tests/shared/fused_made.h\"\n"
        "#include <utility>\n\n"
        "template <typename... P, size_t... I>\n"
        "static void call(void (*kernel)(P...), unsigned blocks, unsigned threads, void **arg,\n"
        "                 std::index_sequence<I...>)\n{\n"
        "    simt_launch(blocks, threads, 0, \"fused\",\n"
        "                [&] { kernel(*(P *)arg[I]...); });\n}\n"
        "template <typename... P>\n"
        "static void call(void (*kernel)(P...), unsigned blocks, unsigned threads, void **arg)\n{\n"
        "    call(kernel, blocks, threads, arg, std::index_sequence_for<P...>());\n}\n\n");
    for (int k = 0; k < count; k++) {
        printf("#define fused fused_%d\n%s#undef fused\n", k, text[k]);
        printf("static void call_%d(unsigned blocks, unsigned threads, void **arg)\n{\n"
               "    call(fused_%d, blocks, threads, arg);\n}\n\n",
               k, k);
    }
    printf("const FusedMade fused_made[] = {\n");
    for (int k = 0; k < count; k++) {
        printf("    {\n");
        print_string(text[k]);
        printf("     , call_%d},\n", k);
    }
    printf("    {}};\n");
}

void *fused_compile(Arena *a, const char *text)
{
    const FusedMade *x = fused_made;
    while (x && x->text && strcmp(x->text, text) != 0)
        x++;
    if (!x || !x->text)
        fail(arena_ctx(a), TN_FAIL, "a text that was not printed before:\n%.100s", text);
    return (void *)x;
}

int fused_launch(Call *c, void *kernel, const FusedText *t, void **arg)
{
    (void)c;
    ((const FusedMade *)kernel)->call((unsigned)t->blocks, (unsigned)t->threads, arg);
    return 0;
}
