/* reduce: sums of bf16 whose parts would overflow in f32 are those of f64. */

#include "../shared/test.h"

#include "../shared/graphs.h"

static Ctx ctx;
static Arena *a;

/* The first element of %y. */
static double column(const char *text)
{
    Graph *g = graph_parse(a, arena_printf(a, "tenon 1\ngraph g() {\n%s  return %%y\n}\n", text),
                           "reduce");
    Tensor *y = graphs_execute(a, g, graphs_inputs(a, g));
    return tensor_get(&y[0], 0);
}

static void test_large(void *arg)
{
    (void)arg;
    double mean = column("  %x: bf16[8, 64] = full(size=[8, 64], fill_value=2e38, dtype=bf16)\n"
                         "  %y: bf16[64] = mean(%x, dim=[0])\n");
    EXPECT(mean > 1.9e38 && mean < 2.1e38);
    double sum = column("  %p: bf16[4, 64] = full(size=[4, 64], fill_value=3e38, dtype=bf16)\n"
                        "  %n: bf16[4, 64] = neg(%p)\n"
                        "  %x: bf16[8, 64] = cat(%p, %n)\n"
                        "  %y: bf16[64] = sum(%x, dim=[0])\n");
    EXPECT(sum == 0);
}

int main(void)
{
    a = arena_new(&ctx);
    EXPECT(!ctx_try(&ctx, test_large, NULL));
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
