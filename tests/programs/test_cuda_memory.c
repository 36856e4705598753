/* Looking at memory on CUDA (exec/memory.cu), and notes of faults (op/cuda.cuh), on the processor
 * (simt.h): what is found, and by how many atomics, which all take turns: one of a block at most,
 * not one of a thread; and that what renews parameters or state leaves them once a fault is noted.
 */
#include "../../src/cuda/memory.h"
#include "../../src/op/op.h"
#include "../shared/case.h"
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
    int stop = 0;
    Fault fault = {.stop = &stop};
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
    EXPECT(fault.noted == 1 && fault.step == 7 && stop == 1);
    EXPECT(natomic(before) == 1);
}

/* ---- calls that renew what outlives the run ---- */

static const char *const renewals[] = {
    "graph t(%p: f32[700], %g: f32[700], %m: f32[700], %v: f32[700], %lr: f32[], %n: i64[], "
    "%s: f32[], %b: bool[]) {\n"
    "  %x: f32[700], %y: f32[700], %z: f32[700] = adamw(%p, %g, %m, %v, %lr, %n, %s, %b)  "
    "optimizer\n  return %x, %y, %z\n}\n",
    "graph t(%p: bf16[700], %g: f32[700], %m: f32[700], %v: f32[700], %lr: f32[], %n: i64[], "
    "%s: f32[], %b: bool[]) {\n"
    "  %x: bf16[700], %y: f32[700], %z: f32[700] = adamw(%p, %g, %m, %v, %lr, %n, %s, %b)  "
    "optimizer\n  return %x, %y, %z\n}\n",
    "graph t(%p: f32[700], %g: f32[700], %lr: f32[], %s: f32[], %b: bool[], %m: f32[700]) {\n"
    "  %x: f32[700], %y: f32[700] = sgd(%p, %g, %lr, %s, %b, %m, momentum=0.9)  optimizer\n"
    "  return %x, %y\n}\n",
    "graph t(%x: f32[700], %y: f32[700]) {\n"
    "  %z: f32[700] = add(%x, %y)  forward\n  return %z\n}\n",
    "graph t(%x: i64[], %y: i64[]) {\n"
    "  %z: i64[] = add(%x, %y)  forward\n  return %z\n}\n",
    "graph t(%x: f32[70, 9]) {\n  %y: f32[9, 70] = transpose(%x, dim0=0, dim1=1)  forward\n"
    "  %z: f32[9, 70] = exp(%y)  forward\n  return %z\n}\n",
    "graph t(%x: bf16[700]) {\n  %z: bf16[700] = clone(%x)  forward\n  return %z\n}\n",
    "graph t(%x: f32[2, 9, 3, 5], %y: f32[2, 4, 3, 5], %i: i64[]) {\n"
    "  %z: f32[2, 9, 3, 5] = cache_update(%x, %y, %i)  forward\n  return %z\n}\n",
    "graph t(%x: f32[7, 5], %y: f32[4, 5], %i: i64[4]) {\n"
    "  %z: f32[7, 5] = index_put(%x, %y, %i, dims=[0], accumulate=true)  forward\n"
    "  return %z\n}\n",
    "graph t(%x: f32[7, 5], %i: i64[4, 5], %y: f32[4, 5]) {\n"
    "  %z: f32[7, 5] = scatter_add(%x, %i, %y, dim=0)  forward\n  return %z\n}\n",
    "graph t(%x: f32[70, 5], %i: i64[40, 5], %y: f32[40, 5]) {\n"
    "  %z: f32[70, 5] = scatter_add(%x, %i, %y, dim=0)  forward\n  return %z\n}\n",
};

static Tensor tensor_of(Arena *a, const Type *t, double value)
{
    Tensor x = {.dtype = t->dtype, .rank = t->rank};
    memcpy(x.dim, t->dim, sizeof x.dim);
    tensor_fill_strides(&x);
    x.data = arena_alloc(a, (size_t)tensor_nbytes(&x) + 1);
    for (int64_t i = 0; i < tensor_nelem(&x); i++)
        tensor_set(&x, i, dtype_float(t->dtype) ? value : 1);
    return x;
}

/* Operands of which results take the place where they may. */
static Call renewal_of(Arena *a, const Node *n)
{
    Call c = {.node = n, .nin = n->nin, .nout = n->nout};
    unsigned taken = 0;
    c.in = NEWN(a, Tensor, n->nin);
    c.out = NEWN(a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++) {
        const Node *view = n->in[i]->def;
        c.in[i] = tensor_of(a, &(view ? view->in[0] : n->in[i])->type, 0.5 + i / 8.0);
        if (view) {
            c.in[i].dim[0] = n->in[i]->type.dim[0];
            c.in[i].dim[1] = n->in[i]->type.dim[1];
            c.in[i].stride[0] = 1;
            c.in[i].stride[1] = c.in[i].dim[0];
        }
    }
    for (int k = 0; k < n->nout; k++) {
        c.out[k] = tensor_of(a, &n->out[k]->type, 0);
        for (int i = 0; i < n->nin && !n->in[i]->def; i++)
            if (node_inplace(n, k) >> i & 1 && !(taken >> i & 1)) {
                c.out[k].data = c.in[i].data;
                taken |= 1U << i;
                break;
            }
    }
    return c;
}

/* Whether it leaves all results as they were; a fault, if there is any, was noted before. */
static bool leaves(Arena *a, const Kernel *k, Call *c)
{
    bool same = true;
    char **before = NEWN(a, char *, c->nout);
    for (int i = 0; i < c->nout; i++) {
        before[i] = arena_alloc(a, (size_t)tensor_nbytes(&c->out[i]) + 1);
        memcpy(before[i], c->out[i].data, (size_t)tensor_nbytes(&c->out[i]));
    }
    EXPECT(!k->run(c));
    for (int i = 0; i < c->nout; i++)
        same &= !memcmp(before[i], c->out[i].data, (size_t)tensor_nbytes(&c->out[i]));
    return same;
}

static void check_stop(void *arg)
{
    Arena *a = arg;
    for (int i = 0; i < LEN(renewals); i++) {
        Graph *g = graph_parse(a, arena_printf(a, "tenon 1\n%s", renewals[i]), "renewals");
        const Node *n = g->last;
        Call c = renewal_of(a, n);
        Fault fault = {0};
        int stop = 1, nkernel = 0;
        c.fault = &fault;
        for (const Kernel *k = op_kernels(n->op, KERNELS_CUDA); k && k->name; k++) {
            if (!k->accepts(&c))
                continue;
            nkernel++;
            kernel_prepare(k, &c, a);
            c.work = arena_alloc(a, (size_t)c.nbytes_work + 1);
            c.stop = &stop;
            stop = 1;
            if (!EXPECT(leaves(a, k, &c)))
                printf("  %s, kernel %s: not left as it was\n", n->op->name, k->name);
            stop = 0;
            if (!EXPECT(!leaves(a, k, &c) || node_is(n, OP_clone)))
                printf("  %s, kernel %s: not renewed\n", n->op->name, k->name);
        }
        EXPECT(nkernel > 0 && !fault.noted);
    }
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
    if (!EXPECT(!ctx_try(&ctx, check_stop, a)))
        printf("  %s\n", ctx.message);
    arena_free(a);
    ctx_end(&ctx);
    return test_report();
}
