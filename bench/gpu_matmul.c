/* The products of a training step on a GPU: GPT-2 124M at 32 x 1024 tokens and Llama-3.2-1B at 2 x
 * 2048 in bf16, as our first kernel runs them, and beside each the best of what cuBLASLt's
 * heuristic offers within the plan's workspace, which are the other kernels, how many times as fast
 * that is, and under other limits of workspace: TFLOP/s, its place among those offered, its MiB.
 * Random data; the median of 20 runs by events; shares are of the largest rate measured in the same
 * run on 8192^3. Layouts: n plain, t transposed in memory. Usage: gpu_matmul [WORD], which times
 * the rows with WORD in their name.
 *
 * It is one file with the kernel, whose search for algorithms nothing else calls from outside. */
#include "../src/cuda/matmul_cuda.c"

#include <math.h>
#include <stdlib.h>

enum { RUNS = 20, TRIES = 8, OFFERED = 8, NLIMIT = 4 };

static const int64_t limits[NLIMIT] = {0, (int64_t)4 << 20, (int64_t)32 << 20, (int64_t)64 << 20};

typedef struct Row {
    const char *what;
    int64_t m, n, k;
    const char *layout; /* of a, of b */
    DType y;
    bool bias; /* f32, as that of a model trained from f32 masters */
} Row;

enum { T = 32768, L = 4096, V = 50257, P = 50264 };

static const Row rows[] = {
    {"ceiling", 8192, 8192, 8192, "nn", BF16, false},
    {"ceiling nt", 8192, 8192, 8192, "nt", BF16, false},
    {"ceiling tn", 8192, 8192, 8192, "tn", BF16, false},
    {"gpt2 qkv", T, 2304, 768, "nn", BF16, true},
    {"gpt2 proj", T, 768, 768, "nn", BF16, true},
    {"gpt2 fc", T, 3072, 768, "nn", BF16, true},
    {"gpt2 fc2", T, 768, 3072, "nn", BF16, true},
    {"gpt2 qkv dx", T, 768, 2304, "nt", BF16, false},
    {"gpt2 proj dx", T, 768, 768, "nt", BF16, false},
    {"gpt2 fc dx", T, 768, 3072, "nt", BF16, false},
    {"gpt2 fc2 dx", T, 3072, 768, "nt", BF16, false},
    {"gpt2 qkv dw", 768, 2304, T, "tn", BF16, false},
    {"gpt2 proj dw", 768, 768, T, "tn", BF16, false},
    {"gpt2 fc dw", 768, 3072, T, "tn", BF16, false},
    {"gpt2 fc2 dw", 3072, 768, T, "tn", BF16, false},
    {"gpt2 fc dw f32", 768, 3072, T, "tn", F32, false},
    {"gpt2 head", T, V, 768, "nt", BF16, false},
    {"gpt2 head dx", T, 768, V, "nn", BF16, false},
    {"gpt2 head dw", V, 768, T, "tn", BF16, false},
    {"gpt2 head 50264", T, P, 768, "nt", BF16, false},
    {"gpt2 head 50264 dx", T, 768, P, "nn", BF16, false},
    {"gpt2 head 50264 dw", P, 768, T, "tn", BF16, false},
    {"gpt2 head 50304", T, 50304, 768, "nt", BF16, false},
    {"gpt2 head 50304 dx", T, 768, 50304, "nn", BF16, false},
    {"gpt2 head 50304 dw", 50304, 768, T, "tn", BF16, false},
    {"gpt2 head 1/8", T / 8, 50304, 768, "nt", BF16, false},
    {"gpt2 head 1/8 dx", T / 8, 768, 50304, "nn", BF16, false},
    {"gpt2 head 1/8 dw", 50304, 768, T / 8, "tn", BF16, false},
    {"gpt2 head 1/8 dw f32", 50304, 768, T / 8, "tn", F32, false},
    {"llama q", L, 2048, 2048, "nt", BF16, false},
    {"llama kv", L, 512, 2048, "nt", BF16, false},
    {"llama up", L, 8192, 2048, "nt", BF16, false},
    {"llama down", L, 2048, 8192, "nt", BF16, false},
    {"llama head", L, 128256, 2048, "nt", BF16, false},
    {"llama q dx", L, 2048, 2048, "nn", BF16, false},
    {"llama kv dx", L, 2048, 512, "nn", BF16, false},
    {"llama up dx", L, 2048, 8192, "nn", BF16, false},
    {"llama down dx", L, 8192, 2048, "nn", BF16, false},
    {"llama head dx", L, 2048, 128256, "nn", BF16, false},
    {"llama q dw", 2048, 2048, L, "tn", BF16, false},
    {"llama kv dw", 512, 2048, L, "tn", BF16, false},
    {"llama up dw", 8192, 2048, L, "tn", BF16, false},
    {"llama down dw", 2048, 8192, L, "tn", BF16, false},
    {"llama head dw", 128256, 2048, L, "tn", BF16, false},
};

static void good(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
        exit(EXIT_FAILURE);
    }
}

/* ---- memory ---- */

typedef struct Buffers {
    char *a, *b, *y, *bias, *work;
    int64_t nbytes_a, nbytes_b, nbytes_y;
} Buffers;

/* Numbers of either sign from 1/2 to 1, all bits of them random; as f32 too. */
static char *random_memory(int64_t nbytes)
{
    enum { BLOCK = 1 << 22 };
    uint16_t *block = malloc(BLOCK);
    uint64_t z = 88172645463325252u;
    char *p;
    CHECK(block);
    for (int i = 0; i < BLOCK / 2; i++) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        block[i] = (uint16_t)((z & 0x807f) | 0x3f00);
    }
    good(cudaMalloc((void **)&p, (size_t)nbytes + BLOCK), "cudaMalloc");
    for (int64_t i = 0; i < nbytes; i += BLOCK)
        good(cudaMemcpy(p + i, block, BLOCK, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(block);
    return p;
}

static Buffers buffers_make(const char *word)
{
    Buffers x = {0};
    for (int i = 0; i < LEN(rows); i++) {
        const Row *r = &rows[i];
        if (i && word && !strstr(r->what, word))
            continue;
        x.nbytes_a = MAX(x.nbytes_a, 2 * r->m * r->k);
        x.nbytes_b = MAX(x.nbytes_b, 2 * r->k * r->n);
        x.nbytes_y = MAX(x.nbytes_y, dtype_size(r->y) * r->m * r->n);
    }
    x.a = random_memory(x.nbytes_a);
    x.b = random_memory(x.nbytes_b);
    x.y = random_memory(x.nbytes_y);
    x.bias = random_memory(4 * (int64_t)P);
    x.work = random_memory(limits[NLIMIT - 1] + ((int64_t)1 << 20));
    return x;
}

/* ---- one product ---- */

typedef struct Bench {
    Ctx *ctx;
    Buffers memory;
    cudaStream_t stream;
    cudaEvent_t from, to;
    double ceiling; /* FLOP a second */
} Bench;

static Tensor tensor(char *data, DType d, int64_t height, int64_t width, bool turned)
{
    Tensor t = {.data = data, .dtype = d, .rank = 2, .dim = {height, width}};
    t.stride[turned] = turned ? height : width;
    t.stride[!turned] = 1;
    return t;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The median of `runs` runs after some others, in seconds; negative where the call fails. */
static double median_sec(const Bench *b, const Kernel *k, Call *c, int runs)
{
    double sec[RUNS];
    for (int i = -3; i < runs; i++) {
        float ms;
        good(cudaEventRecord(b->from, b->stream), "cudaEventRecord");
        if (k->run(c))
            return -1;
        good(cudaEventRecord(b->to, b->stream), "cudaEventRecord");
        good(cudaEventSynchronize(b->to), c->node->out[0]->name);
        good(cudaEventElapsedTime(&ms, b->from, b->to), "cudaEventElapsedTime");
        if (i >= 0)
            sec[i] = ms * 1e-3;
    }
    qsort(sec, (size_t)runs, sizeof *sec, by_value);
    return sec[runs / 2];
}

/* The best of what is offered within so many bytes. Returns its seconds. */
static double try_limit(const Bench *b, const Kernel *k, Call *c, int64_t limit, double nflop)
{
    cublasLtMatmulHeuristicResult_t found[OFFERED];
    Product *p = c->state, kept = *p;
    double best = -1;
    int at = 0, count = find(p, limit, ALIGN, OFFERED, found);
    p->parts = limit;
    for (int i = 0; i < count; i++) {
        p->algo[0] = found[i].algo;
        double sec = median_sec(b, k, c, TRIES);
        if (sec > 0 && (best < 0 || sec < best)) {
            best = sec;
            at = i;
        }
    }
    if (best > 0)
        printf("  %6.1f #%d %4.1f", nflop / best * 1e-12, at,
               (double)found[at].workspaceSize / 1048576);
    else
        printf("  %6s %2s %4s", "-", "", "");
    *p = kept;
    return best;
}

static void print_row(Bench *b, const Row *r, const Kernel *k, Call *c)
{
    double nflop = 2.0 * (double)r->m * (double)r->n * (double)r->k;
    double sec = median_sec(b, k, c, RUNS);
    if (sec < 0) {
        printf("%-20s %s\n", r->what, c->message);
        return;
    }
    if (!strncmp(r->what, "ceiling", 7))
        b->ceiling = fmax(b->ceiling, nflop / sec);
    printf("%-20s %6lld %6lld %6lld %-3s %-4s %8.3f %6.1f %5.1f %5.1f", r->what, (long long)r->m,
           (long long)r->n, (long long)r->k, r->layout, dtype_name(r->y), sec * 1e3,
           nflop / sec * 1e-12, 100 * nflop / sec / b->ceiling, (double)c->nbytes_work / 1048576);
    double best = try_limit(b, k, c, ((const Product *)c->state)->parts, nflop);
    printf("  x%6.3f", best > 0 ? sec / best : 0);
    for (int i = 0; i < NLIMIT; i++)
        try_limit(b, k, c, limits[i], nflop);
    printf("\n");
    fflush(stdout);
}

static void time_row(Bench *b, Arena *a, const Row *r)
{
    const Buffers *m = &b->memory;
    Value y = {.name = r->what}, *out = &y;
    Node node = {.op = op_get(b->ctx, r->bias ? "addmm" : "mm"), .nout = 1, .out = &out};
    Tensor in[3], *x = in + r->bias, t = tensor(m->y, r->y, r->m, r->n, false);
    in[0] = (Tensor){.data = m->bias, .dtype = F32, .rank = 1, .dim = {r->n}, .stride = {1}};
    x[0] = tensor(m->a, BF16, r->m, r->k, r->layout[0] == 't');
    x[1] = tensor(m->b, BF16, r->k, r->n, r->layout[1] == 't');
    node.nin = r->bias ? 3 : 2;
    Call c = {.node = &node, .in = in, .out = &t, .nin = node.nin, .nout = 1, .work = m->work};
    c.stream = b->stream;
    const Kernel *k = op_kernels(node.op, KERNELS_CUDA);
    CHECK(k && k->accepts(&c));
    c.nbytes_work = k->workspace(b->ctx, &c);
    k->prepare(&c, a);
    print_row(b, r, k, &c);
}

/* Whether an f32 bias is read as such beside a result of 16 bits, which cuBLASLt does not promise.
 */
static void probe_bias(Bench *b, Arena *a)
{
    enum { N = 256 };
    const Row r = {"f32 bias", N, N, N, "nn", BF16, true};
    const Buffers *m = &b->memory;
    Value y = {.name = r.what}, *out = &y;
    Node node = {.op = op_get(b->ctx, "addmm"), .nin = 3, .nout = 1, .out = &out};
    Tensor t = tensor(m->y, BF16, N, N, false);
    Tensor in[3] = {{.data = m->bias, .dtype = F32, .rank = 1, .dim = {N}, .stride = {1}},
                    tensor(m->a, BF16, N, N, false),
                    tensor(m->b, BF16, N, N, false)};
    Call c = {.node = &node, .in = in, .out = &t, .nin = 3, .nout = 1, .work = m->work};
    float bias[N];
    uint16_t got[N];
    cublasLtMatmulHeuristicResult_t found;
    cudaDataType_t type = CUDA_R_32F;
    matmul_lt_prepare(&c, a);
    Product *p = c.state;
    bool taken = !p->lt->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                                sizeof type) &&
                 !set_bias(p, m->bias) && find(p, 0, ALIGN, 1, &found);
    good(cudaMemset(m->a, 0, N * N * 2), "cudaMemset");
    const float one = 1, zero = 0;
    if (taken)
        taken = !p->lt->Matmul(p->lt->handle, p->desc, &one, m->b, p->b, m->a, p->a, &zero, m->y,
                               p->y, m->y, p->y, &found.algo, NULL, 0, b->stream);
    good(cudaStreamSynchronize(b->stream), "an f32 bias");
    good(cudaMemcpy(bias, m->bias, sizeof bias, cudaMemcpyDeviceToHost), "cudaMemcpy");
    good(cudaMemcpy(got, m->y, sizeof got, cudaMemcpyDeviceToHost), "cudaMemcpy");
    int right = 0;
    for (int i = 0; i < N; i++)
        right += got[i] == f32_to_bf16(bias[i]);
    printf("f32 bias beside bf16: %s, %d of %d right\n", taken ? "taken" : "refused", right, N);
}

typedef struct Main {
    Bench b;
    const char *word;
} Main;

static void run_rows(void *arg)
{
    Main *m = arg;
    Arena *a = arena_new(m->b.ctx);
    for (int i = 0; i < LEN(rows); i++)
        if (i < 3 || !m->word || strstr(rows[i].what, m->word))
            time_row(&m->b, a, &rows[i]);
    probe_bias(&m->b, a);
    arena_free(a);
}

int main(int argc, char **argv)
{
    Ctx ctx = {0};
    Main m = {.b = {.ctx = &ctx}, .word = argc > 1 ? argv[1] : NULL};
    struct cudaDeviceProp device;
    good(cudaGetDeviceProperties(&device, 0), "no GPU");
    good(cudaStreamCreate(&m.b.stream), "cudaStreamCreate");
    good(cudaEventCreate(&m.b.from), "cudaEventCreate");
    good(cudaEventCreate(&m.b.to), "cudaEventCreate");
    m.b.memory = buffers_make(m.word);
    printf("%s, %d processors\n%-20s %6s %6s %6s %-8s %8s %6s %5s %5s", device.name,
           device.multiProcessorCount, "product", "M", "N", "K", "layout", "ms", "TF/s", "%",
           "MiB");
    printf("  best of plan's   first");
    for (int i = 0; i < NLIMIT; i++)
        printf("  best of %2lld MiB", (long long)(limits[i] >> 20));
    printf("\n");
    if (ctx_try(&ctx, run_rows, &m)) {
        fprintf(stderr, "%s\n", ctx.message);
        return EXIT_FAILURE;
    }
    ctx_end(&ctx);
    return EXIT_SUCCESS;
}
