/* The norm of gradients is exact under every cut: arrays of parts of axis 0, added in any order,
 * are that of the whole bit for bit, over random tensors of each dtype with huge, tiny, subnormal,
 * infinite and NaN elements, for 1 and 2 threads, for layouts in which rows lie beside each other
 * or apart, by the kernel and by the reference. norm_of is the number nearest to the root. */
#include "../shared/case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 24, MOST_PARTS = 7 };

static int passed, failed;

static void count(bool good, const char *what, uint64_t trial)
{
    passed += good;
    failed += !good;
    if (!good)
        printf("trial %llu: %s\n", (unsigned long long)trial, what);
}

typedef struct Rng {
    uint64_t trial, at;
} Rng;

static double uniform(Rng *r)
{
    return (double)random_uniform(11, (uint32_t)r->trial, 0, r->at++);
}

static int64_t below(Rng *r, int64_t n)
{
    return (int64_t)(uniform(r) * (double)n);
}

/* ---- calls ---- */

static Node *node_from(Arena *a, const char *op, int nin, const Type *type, DType to)
{
    Graph *g = graph_new(a, "norm");
    Build b = {.g = g};
    Value **in = NEWN(a, Value *, nin);
    for (int i = 0; i < nin; i++)
        in[i] = graph_input(g, "x", *type, ROLE_NONE, NULL);
    return emit(&b, op, nin, in, to == NDTYPE ? NOATTRS : ATTRS(A_DTYPE("dtype", to)));
}

/* By the first kernel that takes it, else by the reference. */
static void run_call(Call *c, bool by_ref)
{
    const OpRules *op = c->node->op->rules;
    const Kernel *k = op->kernels;
    CHECK(!(!by_ref && k->accepts(c) ? k->run : op->ref)(c));
}

static void sum_of(Arena *a, const Tensor *x, bool by_ref, int64_t *sum)
{
    Type t = type_make(x->dtype, x->rank, x->dim);
    Tensor in = *x, out = {.data = (char *)sum, .dtype = I64, .rank = 1, .dim = {LENGTH}};
    out.stride[0] = 1;
    Call c = {.node = node_from(a, "sum_squares", 1, &t, NDTYPE),
              .in = &in,
              .out = &out,
              .nin = 1,
              .nout = 1};
    run_call(&c, by_ref);
}

static double norm_of(Arena *a, int n, int64_t (*sum)[LENGTH], DType d)
{
    Type t = type_make(I64, 1, (const int64_t[]){LENGTH});
    Tensor *in = NEWN(a, Tensor, n), out = {.dtype = d};
    double y = 0;
    for (int i = 0; i < n; i++)
        in[i] = (Tensor){.data = (char *)sum[i], .dtype = I64, .rank = 1, .dim = {LENGTH}, {1}};
    out.data = (char *)&y;
    Call c = {
        .node = node_from(a, "norm_of", n, &t, d), .in = in, .out = &out, .nin = n, .nout = 1};
    run_call(&c, false);
    return tensor_get(&out, 0);
}

/* ---- cuts ---- */

static double element(Rng *r, int kind)
{
    static const double scale[] = {1, 1e30, 1e-30, 1e-44, 1e-310};
    double u = 2 * uniform(r) - 1, which = uniform(r);
    if (kind == 6 && which < 0.02)
        return which < 0.01 ? (double)NAN : (double)INFINITY;
    return u * scale[kind < 5 ? kind : below(r, 5)];
}

static Tensor random_tensor(Arena *a, Rng *r)
{
    static const DType dtypes[] = {F32, F32, F32, BF16, F16, F64};
    static const int64_t rows[] = {1, 2, 5, 31, 64, 127, 129, 300},
                         sizes[] = {1, 1, 3, 15, 16, 17, 40, 133};
    Type t = {.dtype = dtypes[below(r, LEN(dtypes))], .rank = 1 + (int)below(r, 3)};
    t.dim[0] = rows[below(r, LEN(rows))];
    t.dim[1] = sizes[below(r, LEN(sizes))];
    t.dim[2] = 1 + below(r, 4);
    Tensor x = tensor_new(a, &t, 0);
    int kind = (int)below(r, 7);
    for (int64_t i = 0, n = tensor_nelem(&x); i < n; i++)
        tensor_set(&x, i, element(r, kind));
    return x;
}

/* x with its axes in the opposite order in memory, or every other element of a larger tensor. */
static Tensor laid(Arena *a, const Tensor *x, bool apart)
{
    Tensor y = *x;
    y.data = arena_alloc(a, (size_t)(2 * tensor_nelem(x) * dtype_size(x->dtype)));
    for (int64_t d = 0, stride = 1; d < x->rank; stride *= x->dim[d++])
        y.stride[d] = apart ? 2 * x->stride[d] : stride;
    tensor_assign(&y, x);
    return y;
}

/* The arrays of 2 to 7 parts, added from some part on. */
static void sum_cut(Arena *a, Rng *r, const Tensor *x, int64_t *sum)
{
    int64_t at[MOST_PARTS + 1] = {0}, part[LENGTH];
    int count = 2 + (int)below(r, MOST_PARTS - 1), first = (int)below(r, count);
    for (int i = 1; i <= count; i++) {
        int64_t rest = x->dim[0] - at[i - 1];
        at[i] = i == count ? x->dim[0] : at[i - 1] + below(r, rest + 1);
    }
    memset(sum, 0, sizeof part);
    for (int i = 0; i < count; i++) {
        int k = (first + i) % count;
        Tensor y = *x;
        y.data += at[k] * x->stride[0] * dtype_size(x->dtype);
        y.dim[0] = at[k + 1] - at[k];
        sum_of(a, &y, i == first, part);
        for (int j = 0; j < LENGTH; j++)
            sum[j] += part[j];
    }
}

static void check_cuts(Arena *a, uint64_t trial)
{
    Rng r = {trial, 0};
    Tensor x = random_tensor(a, &r);
    int64_t want[LENGTH], got[LENGTH];
    sum_of(a, &x, true, want);
    for (int threads = 1; threads <= 2; threads++) {
        par_set_threads(threads);
        for (int layout = 0; layout < 3; layout++) {
            Tensor y = layout ? laid(a, &x, layout == 2) : x;
            sum_of(a, &y, false, got);
            count(!memcmp(got, want, sizeof got), "kernel and reference differ", trial);
            sum_cut(a, &r, &y, got);
            count(!memcmp(got, want, sizeof got), "parts and whole differ", trial);
        }
    }
}

/* ---- roots ---- */

/* What 1-D values give; each is a row, and one array, or all are one array. */
static double norm_by_parts(Arena *a, int n, double *x, DType d)
{
    int64_t(*sum)[LENGTH] = (void *)NEWN(a, int64_t, (int64_t)n * LENGTH);
    for (int i = 0; i < n; i++) {
        Tensor t = {.data = (char *)&x[i], .dtype = F64};
        sum_of(a, &t, false, sum[i]);
    }
    double y = norm_of(a, n, sum, d);
    for (int i = 1; i < n; i++)
        for (int k = 0; k < LENGTH; k++)
            sum[0][k] += sum[i][k];
    double together = norm_of(a, 1, sum, d);
    count(!memcmp(&y, &together, sizeof y), "the norm of arrays and that of their sum differ", 0);
    return y;
}

static void check_root(Arena *a, double want, int n, double *x, const char *what)
{
    double f64 = norm_by_parts(a, n, x, F64), f32 = norm_by_parts(a, n, x, F32);
    count(f64 == want || (isnan(f64) && isnan(want)), what, 0);
    count(f32 == (float)want || (isnan(f32) && isnan(want)), what, 1);
}

static void check_roots(Arena *a)
{
    double big = 1099511627776, least = 0x1p-149, nan = (double)NAN, inf = (double)INFINITY;
    check_root(a, 5, 2, (double[]){3, -4}, "3, 4");
    check_root(a, 0, 2, (double[]){0, -0.0}, "zeros");
    check_root(a, sqrt(2), 2, (double[]){1, 1}, "1, 1");
    check_root(a, 5e30, 2, (double[]){3e30, 4e30}, "as large as f32");
    check_root(a, 2 * least, 4, (double[]){least, least, least, least}, "as small as f32");
    check_root(a, 0x1p147, 1, (double[]){0x1p147}, "the greatest row");
    check_root(a, inf, 1, (double[]){0x1p148}, "above the greatest row");
    check_root(a, inf, 3, (double[]){1, -inf, 1}, "infinity");
    check_root(a, nan, 3, (double[]){inf, nan, 1}, "NaN");
    check_root(a, big, 2, (double[]){big, 1}, "2^40 and 1");
    double even = 0x1p53 + 2, tie = 0x1p24 + 1;
    check_root(a, even, 2, (double[]){even, least}, "an exact root and the least square");
    count(norm_by_parts(a, 2, (double[]){tie, least}, F32) == tie + 1, "f32: rounded twice", 0);
}

/* The root of a random sum of squares of integers: y is the nearest f32 where the sum lies between
 * the squares of y less and more half a unit of its last place, which double holds exactly. */
static void check_nearest(Arena *a, uint64_t trial)
{
    Rng r = {trial, 1000};
    double x[40], total = 0;
    for (int i = 0; i < LEN(x); i++) {
        x[i] = (double)below(&r, 1 << 23);
        total += x[i] * x[i];
    }
    double y = norm_by_parts(a, LEN(x), x, F32);
    int e;
    frexp(y, &e);
    double half = ldexp(1, e - 25), low = y - half, high = y + half;
    count(low * low <= total && total <= high * high, "not the nearest f32 to the root", trial);
}

int main(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    uint64_t ntrial = getenv("TN_LONG") ? 20000 : 1000;
    CHECK(a);
    for (uint64_t i = 0; i < ntrial; i++) {
        check_cuts(a, i);
        check_nearest(a, i);
        arena_reset(a);
    }
    check_roots(a);
    arena_free(a);
    ctx_end(&ctx);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
