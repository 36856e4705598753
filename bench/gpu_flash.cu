/* Attention of training steps on a GPU: GPT-2 124M at 32 x 1024 tokens, Llama-3.2-1B at 2 x 2048,
 * and heads of 128, in bf16, with q, k and v inside of one projection. Forward and backward by all
 * kernels of each list but the last, the median of 20 runs by events; products of pairs that do not
 * see each other are not counted, nor those that the backward forms again. Results are compared
 * with those of the last kernel, which computes in f32, on the same random data. Usage: gpu_flash
 * [WORD], which takes the rows with WORD in their name.
 *
 * It is one file with the backward, of which it times each part. */
#include "../src/cuda/flash_attention_backward.cu"

enum { RUNS = 20 };

struct Row {
    const char *what;
    int64_t batch, queries, heads, shared, size; /* shared: key heads */
    bool causal;
};

static const Row rows[] = {
    {"gpt2 124M", 32, 1024, 12, 12, 64, true},
    {"gpt2 124M full", 32, 1024, 12, 12, 64, false},
    {"llama 1B", 2, 2048, 32, 8, 64, true},
    {"heads of 64, long", 1, 8192, 32, 32, 64, true},
    {"heads of 128", 8, 1024, 16, 16, 128, true},
    {"heads of 128, 2048", 4, 2048, 16, 16, 128, true},
    {"llama 8B", 1, 2048, 32, 8, 128, true},
    {"odd sizes", 2, 1000, 6, 2, 80, true},
};

static void good(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(EXIT_FAILURE);
}

/* ---- memory ---- */

static char *device_memory(int64_t nbytes)
{
    char *p;
    good(cudaMalloc((void **)&p, (size_t)nbytes + 64), "cudaMalloc");
    return p;
}

/* bf16 of either sign from `least` to twice that, a power of two by its bits. */
static char *random_memory(int64_t nelem, uint16_t least)
{
    uint16_t *x = (uint16_t *)malloc((size_t)nelem * 2);
    uint64_t z = 88172645463325252u;
    char *p = device_memory(nelem * 2);
    for (int64_t i = 0; i < nelem; i++) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        x[i] = (uint16_t)((z >> 20 & 0x807f) | least);
    }
    good(cudaMemcpy(p, x, (size_t)nelem * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(x);
    return p;
}

static Tensor tensor(char *data, DType d, int rank, const int64_t *dim)
{
    Tensor t = {};
    t.data = data;
    t.dtype = d;
    t.rank = rank;
    memcpy(t.dim, dim, sizeof *dim * (size_t)rank);
    tensor_fill_strides(&t);
    return t;
}

/* ---- a call ---- */

struct Problem {
    Value value[10], *pointer[10];
    Attr attr[2];
    Node node;
    Tensor t[10]; /* operands, then results */
    Call call;
};

static void problem_make(Ctx *ctx, Problem *p, const char *op, bool causal, int nin, int nout)
{
    for (int i = 0; i < nin + nout; i++) {
        p->value[i] = {};
        p->value[i].name = op;
        p->value[i].type = type_make(p->t[i].dtype, p->t[i].rank, p->t[i].dim);
        p->pointer[i] = &p->value[i];
    }
    p->attr[FLASH_CAUSAL].i = causal;
    p->node.op = op_get(ctx, op);
    p->node.attr = p->attr;
    p->node.in = p->pointer;
    p->node.out = p->pointer + nin;
    p->node.nin = p->call.nin = nin;
    p->node.nout = p->call.nout = nout;
    p->call.node = &p->node;
    p->call.in = p->t;
    p->call.out = p->t + nin;
}

struct Bench {
    Ctx *ctx;
    Arena *a;
    cudaStream_t stream;
    cudaEvent_t from, to;
};

static const Kernel *ready(const Bench *b, Problem *p, int which)
{
    const Kernel *k = op_kernels(p->node.op, KERNELS_CUDA) + which;
    Call *c = &p->call;
    CHECK(k->accepts(c));
    c->stream = b->stream;
    c->nbytes_work = k->workspace ? k->workspace(b->ctx, c) : 0;
    c->work = device_memory(c->nbytes_work);
    if (k->prepare)
        k->prepare(c, b->a);
    return k;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The median of RUNS runs after some others, in seconds. */
static double median_sec(const Bench *b, int (*run)(Call *), Call *c)
{
    double sec[RUNS];
    for (int i = -3; i < RUNS; i++) {
        float ms;
        good(cudaEventRecord(b->from, b->stream), "cudaEventRecord");
        if (run(c)) {
            fprintf(stderr, "%s\n", c->message);
            exit(EXIT_FAILURE);
        }
        good(cudaEventRecord(b->to, b->stream), "cudaEventRecord");
        good(cudaEventSynchronize(b->to), c->node->out[0]->name);
        good(cudaEventElapsedTime(&ms, b->from, b->to), "cudaEventElapsedTime");
        if (i >= 0)
            sec[i] = ms * 1e-3;
    }
    qsort(sec, RUNS, sizeof *sec, by_value);
    return sec[RUNS / 2];
}

/* ---- comparing ---- */

static char *host_copy(const Tensor *t)
{
    size_t nbytes = (size_t)(tensor_nelem(t) * dtype_size(t->dtype));
    char *p = (char *)malloc(nbytes);
    good(cudaMemcpy(p, t->data, nbytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return p;
}

/* The largest difference, as a share of the largest element. */
static double difference(const Tensor *got, const Tensor *want)
{
    Tensor x = *got, y = *want;
    double apart = 0, most = 0;
    x.data = host_copy(got);
    y.data = host_copy(want);
    for (int64_t i = 0, n = tensor_nelem(&x); i < n; i++) {
        double u = tensor_get(&x, i), v = tensor_get(&y, i), d = fabs(u - v);
        apart = d > apart || isnan(d) ? d : apart;
        most = fmax(most, fabs(v));
    }
    free(x.data);
    free(y.data);
    return apart / most;
}

static int last_kernel(const Problem *p)
{
    const Kernel *k = op_kernels(p->node.op, KERNELS_CUDA);
    int count = 0;
    while (k[count].name)
        count++;
    return count - 1;
}

/* Runs the last kernel and says how far the results in p are from its own. */
static void compare(const Bench *b, Problem *p, const char *const *names)
{
    Problem q = *p;
    q.call.node = &q.node;
    q.call.in = q.t;
    q.call.out = q.t + q.call.nin;
    for (int k = 0; k < q.call.nout; k++)
        q.call.out[k].data =
            device_memory(tensor_nelem(&q.call.out[k]) * dtype_size(q.call.out[k].dtype));
    if (ready(b, &q, last_kernel(p))->run(&q.call))
        exit(EXIT_FAILURE);
    good(cudaStreamSynchronize(b->stream), "the last kernel");
    for (int k = 0; k < q.call.nout; k++) {
        printf(" %s %.1e", names[k], difference(&p->call.out[k], &q.call.out[k]));
        good(cudaFree(q.call.out[k].data), "cudaFree");
    }
    good(cudaFree(q.call.work), "cudaFree");
}

/* ---- a row ---- */

/* q, k and v inside of one projection [batch, queries, (heads + 2 shared) size]. */
static void projection(Tensor *t, const Row *r)
{
    int64_t width = (r->heads + 2 * r->shared) * r->size, at = 0;
    char *data = random_memory(r->batch * r->queries * width, 0x3f80);
    for (int i = 0; i < 3; i++) {
        int64_t dim[] = {r->batch, r->queries, i ? r->shared : r->heads, r->size};
        t[i] = tensor(data + 2 * at, BF16, 4, dim);
        t[i].stride[0] = r->queries * width;
        t[i].stride[1] = width;
        at += dim[2] * r->size;
    }
}

static void time_backward(const Bench *b, const Row *r, const Problem *forward)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    Problem p = {};
    const Tensor *f = forward->t, *o = &f[3];
    p.t[DO] = *o;
    p.t[DO].data = random_memory(tensor_nelem(o), 0x3f80);
    memcpy(&p.t[Q], f, 5 * sizeof *f);
    for (int i = 0; i < 3; i++) {
        Tensor *y = &p.t[MASK + i];
        *y = tensor(NULL, BF16, 4, f[i].dim);
        y->data = device_memory(tensor_nelem(y) * 2);
    }
    problem_make(b->ctx, &p, "flash_attention_backward", r->causal, MASK, 3);
    for (int i = 0; i < last_kernel(&p); i++) {
        const Kernel *k = ready(b, &p, i);
        bool groups = !strcmp(k->name, "groups");
        double sec = median_sec(b, k->run, &p.call), nflop = node_cost(&p.node).nflop;
        double delta = median_sec(b, run_delta, &p.call);
        double dq = median_sec(b, groups ? run_size<false, true> : run_size<false, false>, &p.call);
        double dk = median_sec(b, groups ? run_size<true, true> : run_size<true, false>, &p.call);
        printf("    backward %-7s %8.3f ms %6.1f TFLOP/s;", k->name, sec * 1e3,
               nflop / sec * 1e-12);
        compare(b, &p, names);
        printf("; delta %.3f dq %.3f dk, dv %.3f ms, work %.1f MiB\n", delta * 1e3, dq * 1e3,
               dk * 1e3, (double)p.call.nbytes_work / 1048576);
        good(cudaFree(p.call.work), "cudaFree");
    }
    good(cudaFree(p.t[DO].data), "cudaFree");
    for (int i = 0; i < 3; i++)
        good(cudaFree(p.t[MASK + i].data), "cudaFree");
}

static void time_row(const Bench *b, const Row *r)
{
    static const char *const names[] = {"o", "lse"};
    const int64_t dim[] = {r->batch, r->queries, r->heads, r->size};
    const int64_t stats[] = {r->batch, r->heads, r->queries};
    Problem p = {};
    projection(p.t, r);
    p.t[3] = tensor(NULL, BF16, 4, dim);
    p.t[3].data = device_memory(tensor_nelem(&p.t[3]) * 2);
    p.t[4] = tensor(NULL, F32, 3, stats);
    p.t[4].data = device_memory(tensor_nelem(&p.t[4]) * 4);
    problem_make(b->ctx, &p, "flash_attention", r->causal, 3, 2);
    printf("%s: batch %lld, %lld queries, %lld heads, %lld key heads of %lld%s\n", r->what,
           (long long)r->batch, (long long)r->queries, (long long)r->heads, (long long)r->shared,
           (long long)r->size, r->causal ? ", causal" : "");
    for (int i = 0; i < last_kernel(&p); i++) {
        const Kernel *k = ready(b, &p, i);
        double sec = median_sec(b, k->run, &p.call), nflop = node_cost(&p.node).nflop;
        printf("    forward  %-7s %8.3f ms %6.1f TFLOP/s;", k->name, sec * 1e3,
               nflop / sec * 1e-12);
        compare(b, &p, names);
        printf("\n");
        good(cudaFree(p.call.work), "cudaFree");
    }
    time_backward(b, r, &p);
    fflush(stdout);
    char *const memory[] = {p.t[0].data, p.t[3].data, p.t[4].data};
    for (char *m : memory)
        good(cudaFree(m), "cudaFree");
}

struct Main {
    Bench b;
    const char *word;
};

static void run_rows(void *arg)
{
    Main *m = (Main *)arg;
    m->b.a = arena_new(m->b.ctx);
    for (const Row &r : rows)
        if (!m->word || strstr(r.what, m->word))
            time_row(&m->b, &r);
    arena_free(m->b.a);
}

int main(int argc, char **argv)
{
    Ctx ctx = {};
    Main m = {{}, argc > 1 ? argv[1] : NULL};
    cudaDeviceProp device;
    m.b.ctx = &ctx;
    good(cudaGetDeviceProperties(&device, 0), "no GPU");
    good(cudaStreamCreate(&m.b.stream), "cudaStreamCreate");
    good(cudaEventCreate(&m.b.from), "cudaEventCreate");
    good(cudaEventCreate(&m.b.to), "cudaEventCreate");
    printf("%s, %d processors; differences are shares of the largest element\n", device.name,
           device.multiProcessorCount);
    if (ctx_try(&ctx, run_rows, &m)) {
        fprintf(stderr, "%s\n", ctx.message);
        return EXIT_FAILURE;
    }
    ctx_end(&ctx);
    return EXIT_SUCCESS;
}
