/* Looking at memory on CUDA (exec/memory.cu), and notes of faults (op/cuda.cuh), on the processor
 * (simt.h): what is found, and by how many atomics, which all take turns: one of a block at most,
 * not one of a thread. */
#include "../../src/cuda/memory.h"
#include "../../src/op/op.h"
#include "../shared/simt.h"
#include "../shared/test.h"

#include <math.h>

enum { LINE = 64, LINES = 5000, NBYTES = LINES * LINE, BLOCK = 256, N = 20000 };

/* Atomics since. */
static long natomic(long before)
{
    return simt_natomic - before;
}

static void check_high(char *p, int64_t nbytes, int64_t at, bool rest)
{
    unsigned long long found = 0, want = at < 0 ? 0 : (unsigned long long)(at / LINE + 1) * LINE;
    long before = simt_natomic;
    memset(p, rest ? 1 : 0x5a, (size_t)(at + 1));
    if (at >= 0)
        p[at] = 1;
    cuda_high(NULL, p, 0x5a, nbytes, LINE, &found);
    if (!EXPECT(found == want))
        printf("  byte %lld of %lld: found %llu, expected %llu\n", (long long)at, (long long)nbytes,
               found, want);
    EXPECT(natomic(before) <= nbytes / BLOCK / 16 + 1 || (uintptr_t)p % 16);
    memset(p, 0x5a, (size_t)nbytes);
}

static void each_high(Arena *a)
{
    static const int64_t at[] = {-1, 0, 63, 64, 1000, 17 * LINE + 15, NBYTES / 2, NBYTES - 1};
    char *mem = arena_alloc(a, NBYTES + LINE), *p = mem + (LINE - (uintptr_t)mem % LINE) % LINE;
    memset(mem, 0x5a, NBYTES + LINE);
    for (int i = 0; i < LEN(at); i++)
        for (int rest = 0; rest < 2; rest++)
            check_high(p, NBYTES, at[i], rest);
    check_high(p, 0, -1, false);
    check_high(p, 3 * LINE, 2 * LINE, false);
    check_high(p + 4, NBYTES - LINE, 999, true); /* where no access is of 16 bytes */
}

static void check_any(DType d, bool poison, int64_t at, int64_t count)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    Tensor t = {.dtype = d, .rank = 2, .dim = {N / 100, 100}, .stride = {200, 2}};
    unsigned long long found = 0;
    long before = simt_natomic;
    t.data = arena_alloc(a, 2 * N * (size_t)dtype_size(d));
    for (int64_t i = at; i < at + count; i++) {
        if (poison)
            memset(t.data + tensor_linear(&t, i) * dtype_size(d), 0x77, (size_t)dtype_size(d));
        else
            tensor_set(&t, tensor_linear(&t, i), i % 2 ? (double)NAN : -(double)INFINITY);
    }
    cuda_any(NULL, &t, poison ? 0x77 : 0, &found);
    EXPECT(found == (count > 0));
    EXPECT(natomic(before) <= N / BLOCK + 1);
    arena_free(a);
    ctx_end(&ctx);
}

static void each_any(void)
{
    static const DType floats[] = {F64, F32, BF16, F16};
    for (int i = 0; i < LEN(floats); i++)
        for (int poison = 0; poison < 2; poison++) {
            check_any(floats[i], poison, 0, 0);
            check_any(floats[i], poison, N - 1, 1);
            check_any(floats[i], poison, 0, N);
        }
}

/* Each element is divided by 0: the first fault alone is noted. */
static void check_note(Arena *a)
{
    Graph *g = graph_new(a, "faults");
    Type type = type_make(I64, 1, (int64_t[]){N});
    Build b = {.g = g, .phase = FORWARD, .scope = ""};
    Value *x = graph_input(g, "x", type, ROLE_BATCH, NULL),
          *y = graph_input(g, "y", type, ROLE_BATCH, NULL);
    const Node *n = emit1(&b, "floor_divide", IN(x, y), NOATTRS)->def;
    Tensor t = {.dtype = I64, .rank = 1, .dim = {N}, .stride = {1}};
    t.data = arena_alloc(a, N * sizeof(int64_t));
    Fault fault = {0};
    Call c = {.node = n,
              .in = (Tensor[]){t, t},
              .out = &t,
              .nin = 2,
              .nout = 1,
              .fault = &fault,
              .step = 7};
    const Kernel *k = op_kernels(n->op, KERNELS_CUDA);
    while (k && k->name && !k->accepts(&c))
        k++;
    long before = simt_natomic;
    if (!EXPECT(k && k->name) || !EXPECT(!k->run(&c)))
        return;
    EXPECT(fault.noted == 1 && fault.step == 7);
    EXPECT(natomic(before) == 1);
}

int main(void)
{
    Ctx ctx = {0};
    Arena *a = arena_new(&ctx);
    for (int order = SIMT_FORWARD; order <= SIMT_SHUFFLED; order++) {
        simt_order(order);
        each_high(a);
    }
    simt_order(SIMT_FORWARD);
    each_any();
    check_note(a);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
