/* AdamW of many parameters on CUDA, on the processor (simt.h): one launch of all of one kind has
 * the bits of a launch for each. Kinds are dtypes, and for 16 bits how they are rounded; sizes are
 * none, odd, and beyond a block's; some lie where no four can be read at once. */
#include "../../src/op/op.h"
#include "../shared/case.h"
#include "../shared/gen.h"
#include "../shared/simt.h"
#include "../shared/test.h"

enum { LARGE = 5000, OUTS = 3, OWN = 4, NUMBERS = 7 };

/* A parameter's dtype and that of the rest; its rounding: none, of a whole, of a part. */
typedef struct Kind {
    const char *what;
    DType p, m;
    enum { NEAREST, WHOLE, PART } rounding;
    int n, launches;
} Kind;

static const Kind kinds[] = {
    {"f32", F32, F32, NEAREST, 300, 1},
    {"f32, more than a launch takes", F32, F32, NEAREST, 900, 3},
    {"f64", F64, F64, NEAREST, 20, 1},
    {"bf16", BF16, F32, NEAREST, 200, 1},
    {"bf16, rounded", BF16, F32, WHOLE, 200, 1},
    {"f16, rounded", F16, F32, WHOLE, 200, 1},
    {"parts of bf16, rounded", BF16, F32, PART, 100, 2},
};

typedef struct Updates {
    Arena *a;
    Rng rng;
    Tensor number[NUMBERS]; /* lr, step, scale, apply; seed, step, the part's first */
    Call **call;
    char **was; /* by call and output, what it overwrites */
    int n;
} Updates;

static Tensor tensor_of(Updates *t, DType d, int64_t n, bool aside)
{
    Tensor x = {.dtype = d, .rank = 1, .dim = {n}, .stride = {1}};
    int64_t size = dtype_size(d);
    char *at = arena_alloc(t->a, (size_t)((n + 2) * size));
    x.data = at + (aside ? size : 0);
    for (int64_t i = 0; i < n; i++)
        tensor_set(&x, i, rng_uniform(&t->rng));
    return x;
}

static Tensor number_of(Updates *t, DType d, double value)
{
    Tensor x = {.dtype = d};
    x.data = arena_alloc(t->a, 8);
    tensor_set(&x, 0, value);
    return x;
}

static const Node *update_node(Updates *t, const Kind *k, int n, int number)
{
    Arena *a = t->a;
    Buf b = {.a = a};
    const char *own = arena_printf(a, "%s[%d]", dtype_name(k->p), n);
    const char *rest = arena_printf(a, "%s[%d]", dtype_name(k->m), n);
    buf_printf(&b,
               "tenon 1\ngraph g(%%p: %s, %%g: %s, %%m: %s, %%v: %s, %%lr: f32[], %%n: i64[], "
               "%%s: f32[], %%b: bool[], %%seed: i64[], %%at: i64[], %%first: i64[]) {\n"
               "  %%x: %s, %%y: %s, %%z: %s = adamw(%%p, %%g, %%m, %%v, %%lr, %%n, %%s, %%b",
               own, rest, rest, rest, own, rest, rest);
    if (k->rounding)
        buf_add(&b, k->rounding == PART ? ", %seed, %at, %first" : ", %seed, %at");
    buf_printf(&b, ", weight_decay=0.%d", number % 3);
    if (k->rounding)
        buf_printf(&b, ", rounding=%d, extents=[%d]", number, 3 * n);
    if (k->rounding == PART)
        buf_add(&b, ", axes=[0], runs=[1], spans=[3]");
    buf_add(&b, ")  optimizer\n  return %x, %y, %z\n}\n");
    return graph_parse(a, b.text, k->what)->last;
}

/* In place; every fifth lies aside. */
static void add_call(Updates *t, const Kind *k, int number)
{
    static const int over[OUTS] = {0, 2, 3};
    int n = number % 7 == 3 ? 0 : number % 50 == 1 ? LARGE : 1 + (int)rng_below(&t->rng, 70);
    const Node *node = update_node(t, k, n, number);
    Call *c = NEW(t->a, Call);
    *c = (Call){.node = node, .nin = node->nin, .nout = OUTS, .fault = NEW(t->a, Fault)};
    c->in = NEWN(t->a, Tensor, c->nin);
    c->out = NEWN(t->a, Tensor, OUTS);
    for (int i = 0; i < c->nin; i++)
        c->in[i] = i < OWN ? tensor_of(t, i ? k->m : k->p, n, number % 5 == 4) : t->number[i - OWN];
    for (int i = 0; i < OUTS; i++) {
        c->out[i] = c->in[over[i]];
        t->was[OUTS * t->n + i] = arena_alloc(t->a, (size_t)tensor_nbytes(&c->out[i]) + 1);
        memcpy(t->was[OUTS * t->n + i], c->out[i].data, (size_t)tensor_nbytes(&c->out[i]));
    }
    t->call[t->n++] = c;
}

/* Exchanges what was and what is. */
static void swap_all(Updates *t)
{
    for (int i = 0; i < OUTS * t->n; i++) {
        const Tensor *y = &t->call[i / OUTS]->out[i % OUTS];
        for (int64_t k = 0; k < tensor_nbytes(y); k++) {
            char byte = t->was[i][k];
            t->was[i][k] = y->data[k];
            y->data[k] = byte;
        }
    }
}

static bool all_same(const Updates *t)
{
    bool same = true;
    for (int i = 0; i < OUTS * t->n; i++) {
        const Tensor *y = &t->call[i / OUTS]->out[i % OUTS];
        same &= !memcmp(t->was[i], y->data, (size_t)tensor_nbytes(y));
    }
    return same;
}

static void check(Updates *t, const Kind *k)
{
    const Kernel *kernel = op_kernels(op_find("adamw"), KERNELS_CUDA);
    t->n = 0;
    t->call = NEWN(t->a, Call *, k->n);
    t->was = NEWN(t->a, char *, OUTS * k->n);
    for (int i = 0; i < k->n; i++)
        add_call(t, k, i);
    for (int i = 0; i < t->n; i++)
        EXPECT(kernel->accepts(t->call[i]) && !kernel->run(t->call[i]));
    EXPECT(!all_same(t));
    swap_all(t);
    long before = simt_nlaunch;
    EXPECT(!kernel->run_all(t->call, t->n));
    long launches = simt_nlaunch - before;
    if (!EXPECT(all_same(t) && launches == k->launches))
        printf("  %s: %ld launches, expected %d; bits are %s\n", k->what, launches, k->launches,
               all_same(t) ? "the same" : "others");
}

static void run(void *arg)
{
    Updates *t = arg;
    const Tensor numbers[NUMBERS] = {
        number_of(t, F32, 0.1), number_of(t, I64, 3), number_of(t, F32, 0.5), number_of(t, BOOL, 1),
        number_of(t, I64, 7),   number_of(t, I64, 3), number_of(t, I64, 1)};
    memcpy(t->number, numbers, sizeof numbers);
    for (int i = 0; i < LEN(kinds); i++) {
        simt_order(i % 2 ? SIMT_BACKWARD : SIMT_FORWARD);
        check(t, &kinds[i]);
    }
}

int main(void)
{
    Ctx ctx = {0};
    Updates t = {.a = arena_new(&ctx), .rng = {.seed = 5}};
    if (!EXPECT(!ctx_try(&ctx, run, &t)))
        printf("  %s\n", ctx.message);
    arena_free(t.a);
    ctx_end(&ctx);
    return test_report();
}
