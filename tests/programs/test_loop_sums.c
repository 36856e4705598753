/* Sums over rows in 16 bits: a loop over microbatches (accumulate) or slices (chunk) rounds them
 * once, as the whole step does, whichever op adds. Rows are cut so that each slice's sum is not a
 * number of 16 bits, while the whole's is. Every value that a loop adds is made in f32 in its
 * bodies. */
#include "../../src/op/pointwise.h"
#include "../shared/graphs.h"
#include "../shared/test.h"

#include <string.h>

static Ctx ctx;

/* ROWS of +1, 0 and -1, whose sum is 1: of the first half 257, which bf16 does not hold, nor f16
 * 256 times that. */
enum { ROWS = 514, HALF = ROWS / 2 };

static const struct {
    const char *inputs, *body, *loss; /* the loss in 16 bits; NULL: y's sum in f32 */
} cases[] = {
    {"%w: T[1] param \"w\"", "%y = mul(%c, %w)", NULL},
    {"%w: T[1, 1] param \"w\"", "%e = mm(%x, %w)\n %y = mul(%e, %c)", NULL},
    {"%w: T[1, 1] param \"w\", %b: T[1] param \"b\"", "%e = addmm(%b, %x, %w)\n %y = mul(%e, %c)",
     NULL},
    {"%w: T[1, 1, 1] param \"w\"",
     "%q = view(%x, size=[514, 1, 1])\n %z = expand(%w, size=[514, 1, 1])\n %o = bmm(%q, %z)\n"
     " %e = view(%o, size=[514, 1])\n %y = mul(%e, %c)",
     NULL},
    {"%w: T[1, 1, 1] param \"w\", %b: T[1] param \"b\"",
     "%q = view(%x, size=[514, 1, 1])\n"
     " %o = convolution(%q, %w, %b, stride=[1], padding=[0], dilation=[1])\n"
     " %e = view(%o, size=[514, 1])\n %y = mul(%e, %c)",
     NULL},
    {"%w: T[3, 1] param \"w\"", "%e = embedding(%w, %i)\n %y = mul(%e, %c)", NULL},
    {"%w: T[3, 1] param \"w\"", "%e = index(%w, %i, dims=[0])\n %y = mul(%e, %c)", NULL},
    {"%w: T[3, 1] param \"w\"",
     "%j = view(%i, size=[514, 1])\n %e = gather(%w, %j, dim=0)\n %y = mul(%e, %c)", NULL},
    {"%w: T[2] param \"w\", %b: T[2] param \"b\"",
     "%n = neg(%x)\n %q = cat(%x, %n, dim=1)\n"
     " %e, %m, %r = native_layer_norm(%q, %w, %b, normalized_shape=[2])\n %y = mul(%e, %c)",
     NULL},
    {"%w: T[1] param \"w\"", "%e, %r = rms_norm(%x, %w)\n %y = mul(%e, %c)", NULL},
    /* used twice: the terms are added in the iteration */
    {"%w: T[1, 1] param \"w\"", "%e = mm(%x, %w)\n %u = mm(%c, %w)\n %y = mul(%e, %u)", NULL},
    {"%w: T[1, 1] param \"w\"",
     "%e = embedding(%w, %i)\n %u = mm(%x, %w)\n %p = mul(%e, %c)\n %q = mul(%u, %c)\n"
     " %y = add(%p, %q)",
     NULL},
    {"%w: T[1] param \"w\"", "%y = mul(%c, %w)", "%s = sum(%y)"},
    {"%w: T[1] param \"w\"", "%y = mul(%c, %w)", "%s, %n = nll_loss_forward(%y, %i, reduction=2)"},
    {"%w: T[1] param \"w\"", "%y = mul(%c, %w)", "%s, %n = nll_loss_forward(%y, %i)"},
};

static const struct {
    const char *passes;
    const char *chunk;
    int64_t accumulate;
} ways[] = {
    {"accumulate,dce", NULL, 2},
    {"accumulate,dce", NULL, 3},
    {"accumulate,canonicalize,cse,dce,into,fuse", NULL, 2},
    {"chunk,dce", "::mul=2", 1},
    {"chunk,dce,into,fuse", "::mul=3", 1},
};

/* ---- data ---- */

static double element(const char *name, DType d, int64_t i)
{
    if (!strcmp(name, "c"))
        return (d == F16 ? 256 : 1) * (i < HALF ? 1 : i == HALF ? 0 : -1);
    return !strcmp(name, "i") ? 0 : 1;
}

static Tensor *inputs(Arena *a, const Graph *g)
{
    Tensor *in = graphs_inputs(a, g);
    for (int i = 0; i < g->nin; i++) {
        bool whole = in[i].dtype == I64;
        for (int64_t k = 0, n = tensor_nelem(&in[i]); k < n; k++) {
            double x = element(g->in[i].v->name, in[i].dtype, k);
            if (whole)
                tensor_set_int(&in[i], tensor_linear(&in[i], k), (int64_t)x);
            else
                tensor_set(&in[i], tensor_linear(&in[i], k), x);
        }
    }
    return in;
}

/* ---- bodies ---- */

/* Values that bodies of loops yield to be added, in 16 bits. */
static int count_narrow(const Graph *g, int *nloop)
{
    int count = 0;
    for (const Node *n = g->first; n; n = n->next) {
        const Region *r = n->op->region == LOOP ? n->region : NULL;
        *nloop += r != NULL;
        for (int k = 0; r && k < r->nout; k++)
            for (int t = 0; t < NBODY; t++)
                if (r->out[k].kind == PORT_SUM && r->out[k].at[t] >= 0)
                    count += dtype_size(r->body[t]->out[r->out[k].at[t]].v->type.dtype) == 2;
    }
    return count;
}

/* ---- one case ---- */

typedef struct Job {
    Arena *a;
    const char *text;
    bool loss; /* is compared */
    int way;
} Job;

static Graph *read_step(Arena *a, const char *text)
{
    PassOptions o = pass_defaults();
    Graph *g = graph_parse(a, text, "sums.tn");
    graph_verify(g);
    passes_run(g, "grad,dce", &o, NULL, NULL);
    return g;
}

static void compare(Arena *a, const Graph *g, const Tensor *got, const Graph *h, const Tensor *want,
                    const Job *x)
{
    for (int i = 0; i < h->nout; i++) {
        int k = graphs_output(g, h, i);
        bool seen = x->loss || h->out[i].role == ROLE_GRAD;
        bool same = k >= 0 && (!seen || graphs_distance(&got[k], &want[i]) == 0);
        if (!EXPECT(same))
            printf("  %s of way %d in\n%s\n", h->out[i].name ? h->out[i].name : "loss", x->way,
                   graphs_text(a, g));
    }
}

static void run_case(void *arg)
{
    const Job *x = arg;
    Graph *whole = read_step(x->a, x->text), *g = read_step(x->a, x->text);
    PassOptions o = pass_defaults();
    int nloop = 0;
    o.accumulate = ways[x->way].accumulate;
    if (ways[x->way].chunk)
        o.chunk = (Globs){&ways[x->way].chunk, 1};
    passes_run(g, ways[x->way].passes, &o, NULL, NULL);
    EXPECT(!count_narrow(g, &nloop));
    EXPECT(nloop > 0);
    compare(x->a, g, graphs_execute(x->a, g, inputs(x->a, g)), whole,
            graphs_execute(x->a, whole, inputs(x->a, whole)), x);
}

static const char *with_dtype(Arena *a, const char *text, DType d)
{
    Buf b = {.a = a};
    for (; *text; text++)
        if (text[0] == 'T' && text[1] == '[')
            buf_add(&b, dtype_name(d));
        else
            buf_addn(&b, text, 1);
    return b.text;
}

static void try(const char *text, bool loss, DType d, int way)
{
    Arena *a = arena_new(&ctx);
    CHECK(a);
    Job x = {a, with_dtype(a, text, d), loss, way};
    if (!EXPECT(!ctx_try(&ctx, run_case, &x)))
        printf("  %s\n  in way %d of\n%s\n", ctx.message, way, x.text);
    arena_free(a);
}

int main(void)
{
    Arena *a = arena_new(&ctx);
    CHECK(a);
    for (int i = 0; i < LEN(cases); i++) {
        const char *loss = cases[i].loss;
        const char *end = loss ? arena_printf(a, "%s\n %%l = _to_copy(%%s, dtype=f32)", loss)
                               : "%k = _to_copy(%y, dtype=f32)\n %l = sum(%k)";
        const char *text = arena_printf(
            a,
            "tenon 1\ngraph g(%%x: T[514, 1] batch, %%c: T[514, 1] batch, %%i: i64[514] batch,\n"
            "        %s) {\n %s\n %s\n return loss %%l\n}\n",
            cases[i].inputs, cases[i].body, end);
        for (int way = 0; way < 2 * LEN(ways); way++)
            try(text, loss != NULL, way % 2 ? F16 : BF16, way / 2);
    }
    arena_free(a);
    return test_report();
}
