/* Bodies of `fused` that read operands which broadcast: run by run where these lie (long runs of
 * one element, or of neighbours), or from a copy (short runs, steps). They have the bits of the
 * nodes on their own, in f32, bf16 and f64, on any number of threads, with runs that end within
 * tiles. */
#include "../shared/graphs.h"
#include "../shared/test.h"

#include <string.h>

static Ctx ctx;

static const char *const cases[] = {
    /* a channel's number and a batch's; the left operand too */
    "%x: T[3, 5, 700], %c: T[1, 5, 1], %n: T[3, 1, 1]) {\n"
    " %a = sub(%x, %c)\n %b = mul(%n, %a)\n %y = sub(%c, %b)\n",
    /* a row's neighbours, behind a step, and both at once */
    "%x: T[3, 1100], %c: T[1100], %n: T[3, 1]) {\n"
    " %a = mul(%x, %c)\n %b = sub(%n, %a)\n %y = add(%b, %c)\n",
    "%x: T[4, 90], %c: T[190]) {\n"
    " %s = slice(%c, dim=0, start=3, end=93)\n %t = slice(%c, dim=0, start=5, end=185, step=2)\n"
    " %a = mul(%x, %s)\n %y = sub(%a, %t)\n",
    /* runs shorter than those that are read in place, beside longer ones */
    "%x: T[2, 40, 7], %c: T[40, 1], %n: T[7], %m: T[2, 1, 1]) {\n"
    " %a = mul(%x, %c)\n %b = sub(%m, %a)\n %y = add(%b, %n)\n",
    /* with an op along rows, whose result other rows are stretched from */
    "%x: T[6, 5, 300], %c: T[1, 5, 1], %b: T[300]) {\n"
    " %a = sub(%x, %c)\n %d = mul(%a, %b)\n %r = sum(%d, dim=[2], keepdim=true)\n"
    " %e = mul(%a, %r)\n %y = sub(%e, %c)\n",
    /* a choice has three operands */
    "%x: T[3, 5, 64], %c: T[1, 5, 1], %z: T[64]) {\n"
    " %m = gt(%x, %c)\n %a = where(%m, %c, %x)\n %y = add(%a, %z)\n",
};

typedef struct Job {
    Arena *a;
    const char *text;
} Job;

static void run_case(void *arg)
{
    const Job *x = arg;
    Arena *a = x->a;
    PassOptions o = pass_defaults();
    Graph *g = graph_parse(a, x->text, "runs.tn"), *h = graph_clone(a, g);
    graph_verify(g);
    passes_run(h, "fuse", &o, NULL, NULL);
    if (!EXPECT(graphs_count(h, "fused") == 1))
        printf("  not one node:\n%s\n", graphs_text(a, h));
    Tensor *in = graphs_inputs(a, g);
    par_set_threads(1);
    Tensor *want = graphs_execute(a, g, in);
    for (int threads = 1; threads <= 3; threads++) {
        par_set_threads(threads);
        Tensor *got = graphs_execute(a, h, in);
        if (!EXPECT(tensor_same_bits(&got[0], &want[0])))
            printf("  other bits with %d threads:\n%s\n", threads, graphs_text(a, h));
    }
}

/* The case with a dtype in place of each T. */
static const char *text_of(Arena *a, const char *body, const char *dtype)
{
    Buf b = {.a = a};
    buf_printf(&b, "tenon 1\ngraph g(");
    for (const char *s = body; *s; s++)
        if (s[0] == 'T' && s[1] == '[')
            buf_printf(&b, "%s", dtype);
        else
            buf_printf(&b, "%c", *s);
    buf_printf(&b, " return %%y\n}\n");
    return b.text;
}

int main(void)
{
    static const char *const dtypes[] = {"f32", "bf16", "f64"};
    for (int i = 0; i < LEN(cases) * LEN(dtypes); i++) {
        Arena *a = arena_new(&ctx);
        CHECK(a);
        Job x = {a, text_of(a, cases[i / LEN(dtypes)], dtypes[i % LEN(dtypes)])};
        if (!EXPECT(ctx_try(&ctx, run_case, &x) == 0))
            printf("  %s\n%s\n", ctx.message, x.text);
        arena_free(a);
    }
    return test_report();
}
