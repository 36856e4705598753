/* What share of a GPU's bandwidth ops reach that memory bounds: the problems of
 * bench/rate/NAME.case (the grammar of tests/op), each by the first kernel that takes it. Bytes are
 * those of the op's cost; the bandwidth is that of a copy within the GPU's memory in the same run.
 * The median of RUNS runs by events; before each the caches are filled with something else. Usage:
 * gpu_rate [NAME]... */
#include "../tests/shared/case.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 15, CACHES = 256 << 20, COPY = 1 << 30, BLOCK = 1 << 22 };

typedef struct Bench {
    Ctx *ctx;
    char **names; /* NULL at the end; none: all */
    cudaStream_t stream;
    cudaEvent_t from, to;
    char *caches;
    Fault *fault;
    double rate; /* of a copy, in bytes a second */
} Bench;

static void good(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
        exit(EXIT_FAILURE);
    }
}

/* ---- memory ---- */

static void free_memory(void *p)
{
    cudaFree(p);
}

static char *new_memory(Arena *a, int64_t nbytes)
{
    char *p;
    good(cudaMalloc((void **)&p, (size_t)MAX(nbytes, 64)), "cudaMalloc");
    arena_defer(a, free_memory, p);
    return p;
}

/* Numbers of either sign around 1, whatever the dtype, all low bits of them random. */
static void fill_random(Arena *a, char *p, int64_t nbytes)
{
    uint16_t *block = arena_alloc(a, BLOCK);
    uint64_t z = 88172645463325252u;
    for (int i = 0; i < BLOCK / 2; i++) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        block[i] = (uint16_t)((z & 0x807f) | 0x3f00);
    }
    for (int64_t i = 0; i < nbytes; i += BLOCK)
        good(cudaMemcpy(p + i, block, (size_t)MIN(BLOCK, nbytes - i), cudaMemcpyHostToDevice),
             "cudaMemcpy");
}

/* Operand i in the GPU's memory: long ones of floating-point numbers are random, others as the case
 * says. */
static Tensor operand(Arena *a, const Case *c, int i)
{
    const CaseOperand *x = &c->in[i];
    Tensor t = {.dtype = x->type.dtype, .rank = x->type.rank};
    int64_t nbytes = type_nbytes(&x->type);
    char *mem;
    if (dtype_float(t.dtype) && nbytes > BLOCK && x->layout == LAYOUT_PLAIN) {
        memcpy(t.dim, x->type.dim, sizeof t.dim);
        tensor_fill_strides(&t);
        t.data = new_memory(a, nbytes);
        fill_random(a, t.data, nbytes);
        return t;
    }
    t = case_operand(a, c, i, 1, &mem, &nbytes);
    char *p = new_memory(a, nbytes);
    good(cudaMemcpy(p, mem, (size_t)nbytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    t.data = p + (t.data - mem);
    return t;
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of runs of k on c, or of a copy where k is NULL. */
static double median_sec(const Bench *b, const Kernel *k, Call *c)
{
    double sec[RUNS];
    for (int i = -2; i < RUNS; i++) {
        float ms;
        good(cudaMemsetAsync(b->caches, i & 1, CACHES, b->stream), "cudaMemset");
        good(cudaEventRecord(b->from, b->stream), "cudaEventRecord");
        if (!k)
            good(cudaMemcpyAsync(c->out->data, c->in->data, COPY, cudaMemcpyDeviceToDevice,
                                 b->stream),
                 "cudaMemcpy");
        else if (k->run(c))
            fail(b->ctx, TN_FAIL, "%s: %s", k->name, c->message);
        good(cudaEventRecord(b->to, b->stream), "cudaEventRecord");
        good(cudaEventSynchronize(b->to), k ? k->name : "copy");
        good(cudaEventElapsedTime(&ms, b->from, b->to), "cudaEventElapsedTime");
        sec[MAX(i, 0)] = ms * 1e-3;
    }
    qsort(sec, RUNS, sizeof *sec, by_value);
    return sec[RUNS / 2];
}

static double copy_rate(Bench *b, Arena *a)
{
    Tensor x = {.data = new_memory(a, COPY)}, y = {.data = new_memory(a, COPY)};
    Call c = {.in = &x, .out = &y};
    return 2.0 * COPY / median_sec(b, NULL, &c);
}

/* The kernel that takes the call, whose tensors have no data yet. */
static const Kernel *find_kernel(const Op *op, const Call *c)
{
    const Kernel *k = op_kernels(op, KERNELS_CUDA);
    while (k && k->run && k->accepts && !k->accepts(c))
        k++;
    return k && k->run ? k : NULL;
}

static void time_case(Bench *b, Arena *a, const Case *c)
{
    Build build = {.g = graph_new(a, "rate")};
    Node *n = case_emit(&build, c);
    Call call = {.node = n, .nin = n->nin, .nout = n->nout, .stream = b->stream, .fault = b->fault};
    Tensor *x = NEWN(a, Tensor, n->nin);
    call.in = NEWN(a, Tensor, n->nin);
    call.out = NEWN(a, Tensor, n->nout);
    for (int i = 0; i < n->nin; i++) {
        call.in[i] = x[i] = operand(a, c, i);
        call.in[i].data = NULL;
    }
    for (int k = 0; k < n->nout; k++) {
        const Type *t = &n->out[k]->type;
        call.out[k] = (Tensor){.dtype = t->dtype, .rank = t->rank};
        memcpy(call.out[k].dim, t->dim, sizeof t->dim);
        tensor_fill_strides(&call.out[k]);
    }
    const Kernel *k = find_kernel(c->op, &call);
    printf("%s:%d: %s ", c->file, c->line, k ? k->name : "no kernel");
    if (k) {
        kernel_prepare(k, &call, a);
        call.work = new_memory(a, call.nbytes_work);
        memcpy(call.in, x, sizeof *x * (size_t)n->nin);
        for (int j = 0; j < n->nout; j++)
            call.out[j].data = new_memory(a, type_nbytes(&n->out[j]->type));
        Cost cost = node_cost(n);
        double nbytes = cost.nread + cost.nwrite, sec = median_sec(b, k, &call);
        printf("%.1f us, %.1f MB, %.0f GB/s, %.0f %%", sec * 1e6, nbytes * 1e-6,
               nbytes * 1e-9 / sec, 100 * nbytes / sec / b->rate);
        if (b->fault->noted)
            printf(", and a fault");
        b->fault->noted = 0;
    }
    printf("\n");
}

static bool is_named(const Bench *b, const char *name)
{
    for (char **s = b->names; *s; s++)
        if (!strcmp(*s, name))
            return true;
    return !*b->names;
}

static void run_all(void *arg)
{
    Bench *b = arg;
    Arena *a = arena_new(b->ctx), *tmp = arena_new(b->ctx);
    b->rate = copy_rate(b, tmp);
    arena_reset(tmp);
    printf("a copy: %.0f GB/s\n", b->rate * 1e-9);
    for (int i = 0; i < op_count; i++) {
        const char *path = arena_printf(a, "bench/rate/%s.case", op_table[i].name);
        int count = 0;
        if (!is_named(b, op_table[i].name) || access(path, R_OK))
            continue;
        const Case *c = case_read(a, &op_table[i], path, &count);
        for (int k = 0; k < count; k++) {
            time_case(b, tmp, &c[k]);
            arena_reset(tmp);
        }
    }
    arena_free(tmp);
    arena_free(a);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Bench b = {.ctx = &ctx, .names = argv + (argc > 0)};
    good(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking), "no GPU");
    good(cudaEventCreate(&b.from), "cudaEventCreate");
    good(cudaEventCreate(&b.to), "cudaEventCreate");
    good(cudaMalloc((void **)&b.caches, CACHES), "cudaMalloc");
    good(cudaHostAlloc((void **)&b.fault, sizeof *b.fault, cudaHostAllocMapped), "cudaHostAlloc");
    memset(b.fault, 0, sizeof *b.fault);
    if (ctx_try(&ctx, run_all, &b)) {
        fprintf(stderr, "%s\n", ctx.message);
        return EXIT_FAILURE;
    }
    ctx_end(&ctx);
    return EXIT_SUCCESS;
}
