/* The products on CUDA by cuBLASLt (src/cuda/matmul_cuda.c, which this file has in itself) where
 * there is no GPU: the functions that it opens are stood in for by some that multiply in the host's
 * memory and offer several algorithms. The kernels then stand in the list of the device cuda, which
 * has emulated memory, and `tn_tune` runs on it: which candidate it takes, and for which GPU and
 * version its file holds. */
#include <dlfcn.h>
static void *stand_in_open(const char *name, int flags);
static void *stand_in_symbol(void *library, const char *name);
#define dlopen stand_in_open
#define dlsym  stand_in_symbol
#include "../../src/cuda/matmul_cuda.c"
#undef dlopen
#undef dlsym

#include "../../include/tenon.h"
#include "../../src/machine/machine.h"
#include "../shared/cuda_stand_in.h"
#include "../shared/test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *gpu = "NVIDIA H200";
static size_t version = 130100;
static bool missing; /* the library */

/* ---- of CUDA's runtime ---- */

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *x, int device)
{
    if (device || !gpu)
        return cudaErrorNoDevice;
    memset(x, 0, sizeof *x);
    snprintf(x->name, sizeof x->name, "%s", gpu);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

int matmul_spread_bias(Call *c, void *to, int64_t rows)
{
    Tensor y = c->out[0];
    Matrix bias = bias_matrix(&c->in[0], &(Matrix){.rows = y.dim[0], .cols = y.dim[1]});
    y.data = to;
    for (int64_t i = 0; i < rows * y.dim[1]; i++)
        tensor_set(
            &y, i,
            tensor_get(bias.t, i / y.dim[1] * bias.stride[1] + i % y.dim[1] * bias.stride[2]));
    return 0;
}

/* ---- of cuBLASLt ---- */

/* The algorithms offered: in the order of the heuristic, UNALIGNED where operands are. BAD would
 * not run, LARGE needs a MiB of workspace. FAST does once what the others do several times. */
enum { FIRST = 1, BAD, LARGE, FAST, LAST, UNALIGNED };
enum { REPEATS = 4 };

typedef struct Desc {
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    const char *bias;
    bool wide; /* of f64 */
} Desc;

typedef struct Place {
    DType dtype;
    int64_t rows, cols, leading, step;
    int32_t batch;
} Place;

typedef struct Wish {
    uint64_t nbytes;
    uint32_t align;
} Wish;

static int last_run; /* the algorithm that ran */

static cublasStatus_t create(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)&last_run;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(cublasLtHandle_t handle)
{
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

static const char *status_string(cublasStatus_t s)
{
    return s ? "stood in for" : "";
}

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *x, cublasComputeType_t type,
                                  cudaDataType_t scale)
{
    Desc *d = calloc(1, sizeof *d);
    CHECK(d);
    d->wide = type == CUBLAS_COMPUTE_64F && scale == CUDA_R_64F;
    *x = (cublasLtMatmulDesc_t)d;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t x)
{
    free(x);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t desc_set(cublasLtMatmulDesc_t x, cublasLtMatmulDescAttributes_t attr,
                               const void *value, size_t size)
{
    Desc *d = (Desc *)x;
    void *to = attr == CUBLASLT_MATMUL_DESC_TRANSA     ? (void *)&d->op_a
               : attr == CUBLASLT_MATMUL_DESC_TRANSB   ? (void *)&d->op_b
               : attr == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void *)&d->epilogue
                                                       : (void *)&d->bias;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *x, cudaDataType type, uint64_t rows,
                                    uint64_t cols, int64_t leading)
{
    Place *l = calloc(1, sizeof *l);
    CHECK(l);
    *l = (Place){.dtype = type == CUDA_R_64F    ? F64
                          : type == CUDA_R_32F  ? F32
                          : type == CUDA_R_16BF ? BF16
                                                : F16,
                 .rows = (int64_t)rows,
                 .cols = (int64_t)cols,
                 .leading = leading};
    *x = (cublasLtMatrixLayout_t)l;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t x)
{
    free(x);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_set(cublasLtMatrixLayout_t x, cublasLtMatrixLayoutAttribute_t attr,
                                 const void *value, size_t size)
{
    Place *l = (Place *)x;
    memcpy(attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? (void *)&l->batch : (void *)&l->step, value,
           size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t wish_create(cublasLtMatmulPreference_t *x)
{
    *x = calloc(1, sizeof(Wish));
    return *x ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t wish_destroy(cublasLtMatmulPreference_t x)
{
    free(x);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t wish_set(cublasLtMatmulPreference_t x,
                               cublasLtMatmulPreferenceAttributes_t attr, const void *value,
                               size_t size)
{
    Wish *w = (Wish *)x;
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&w->nbytes, value, size);
    if (attr == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        memcpy(&w->align, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t pref, int most,
                                cublasLtMatmulHeuristicResult_t *found, int *count)
{
    static const int aligned[] = {FIRST, BAD, LARGE, FAST, LAST}, other[] = {UNALIGNED};
    const Wish *w = (const Wish *)pref;
    bool is_aligned = w->align >= ALIGN;
    const int *list = is_aligned ? aligned : other;
    CHECK(handle && desc && a && b && c && d);
    *count = 0;
    for (int i = 0; i < (is_aligned ? LEN(aligned) : LEN(other)) && *count < most; i++) {
        if (list[i] == LARGE && w->nbytes < 1 << 20)
            continue;
        cublasLtMatmulHeuristicResult_t *x = &found[(*count)++];
        memset(x, 0, sizeof *x);
        x->algo.data[0] = (uint64_t)list[i];
        x->state = list[i] == BAD ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Element i, j of op(x), matrix `batch`, in column-major order. */
static Tensor one_dim(const Place *l, const void *data)
{
    return (Tensor){.data = (char *)(uintptr_t)data, .dtype = l->dtype};
}

static int64_t at(const Place *l, bool turned, int64_t batch, int64_t i, int64_t j)
{
    return batch * l->step + (turned ? i * l->leading + j : j * l->leading + i);
}

typedef struct Problem {
    const Desc *d;
    const Place *la, *lb, *ly;
    Tensor a, b, y;
    double beta;
} Problem;

static double element(const Problem *p, int64_t batch, int64_t i, int64_t j)
{
    bool ta = p->d->op_a != CUBLAS_OP_N, tb = p->d->op_b != CUBLAS_OP_N;
    int64_t depth = ta ? p->la->rows : p->la->cols;
    double sum = p->beta ? tensor_get(&p->y, at(p->ly, false, batch, i, j)) : 0;
    for (int64_t k = 0; k < depth; k++)
        sum += tensor_get(&p->a, at(p->la, ta, batch, i, k)) *
               tensor_get(&p->b, at(p->lb, tb, batch, k, j));
    Tensor bias = one_dim(p->ly, p->d->bias);
    return sum + (p->d->epilogue == CUBLASLT_EPILOGUE_BIAS ? tensor_get(&bias, i) : 0);
}

static cublasStatus_t multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               const void *alpha, const void *a, cublasLtMatrixLayout_t la,
                               const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                               const void *c, cublasLtMatrixLayout_t lc, void *y,
                               cublasLtMatrixLayout_t ly, const cublasLtMatmulAlgo_t *algo,
                               void *work, size_t nbytes, cudaStream_t stream)
{
    const Desc *d = (const Desc *)desc;
    Problem p = {.d = d,
                 .la = (const Place *)la,
                 .lb = (const Place *)lb,
                 .ly = (const Place *)ly,
                 .beta = d->wide ? *(const double *)beta : (double)*(const float *)beta};
    CHECK(handle && alpha && c == y && lc == ly && (!nbytes || work) && !stream);
    p.a = one_dim(p.la, a);
    p.b = one_dim(p.lb, b);
    p.y = one_dim(p.ly, y);
    last_run = (int)algo->data[0];
    for (int64_t n = 0; n < p.ly->batch; n++)
        for (int64_t j = 0; j < p.ly->cols; j++)
            for (int64_t i = 0; i < p.ly->rows; i++) {
                volatile double x = element(&p, n, i, j);
                for (int r = 1; r < REPEATS && last_run != FAST; r++)
                    x = element(&p, n, i, j);
                tensor_set(&p.y, at(p.ly, false, n, i, j), x);
            }
    return CUBLAS_STATUS_SUCCESS;
}

static size_t get_version(void)
{
    return version;
}

static void *stand_in_open(const char *name, int flags)
{
    return missing || !flags || strcmp(name, "libcublasLt.so.12") != 0 ? NULL : &version;
}

static void *stand_in_symbol(void *library, const char *name)
{
    static const struct {
        const char *name;
        void (*f)(void);
    } list[] = {
        {"GetVersion", (void (*)(void))get_version},
        {"Create", (void (*)(void))create},
        {"Destroy", (void (*)(void))destroy},
        {"GetStatusString", (void (*)(void))status_string},
        {"MatmulDescCreate", (void (*)(void))desc_create},
        {"MatmulDescDestroy", (void (*)(void))desc_destroy},
        {"MatmulDescSetAttribute", (void (*)(void))desc_set},
        {"MatrixLayoutCreate", (void (*)(void))layout_create},
        {"MatrixLayoutDestroy", (void (*)(void))layout_destroy},
        {"MatrixLayoutSetAttribute", (void (*)(void))layout_set},
        {"MatmulPreferenceCreate", (void (*)(void))wish_create},
        {"MatmulPreferenceDestroy", (void (*)(void))wish_destroy},
        {"MatmulPreferenceSetAttribute", (void (*)(void))wish_set},
        {"MatmulAlgoGetHeuristic", (void (*)(void))heuristic},
        {"Matmul", (void (*)(void))multiply},
    };
    void *found = NULL;
    for (int i = 0; i < LEN(list) && library; i++)
        if (!strcmp(name + strlen("cublasLt"), list[i].name))
            memcpy(&found, &list[i].f, sizeof found);
    return found;
}

/* ---- kernels ---- */

#define CANDIDATE(suffix)                  \
    {.name = "cublaslt" #suffix,           \
     .accepts = matmul_lt_accepts,         \
     .workspace = matmul_lt_workspace,     \
     .prepare = matmul_lt_prepare##suffix, \
     .own = matmul_lt_own,                 \
     .run = matmul_lt_run},
#define OTHER(n) CANDIDATE(_##n)
static const Kernel products[] = {CANDIDATE() MATMUL_LT_OTHERS(OTHER){0}};

/* By id of the op: of the device cuda. */
const Kernel *cuda_kernels[1024];

static void fill_kernels(void)
{
    CHECK(op_count <= LEN(cuda_kernels));
    for (int i = 0; i < op_count; i++)
        cuda_kernels[i] =
            op_table[i].class == CLASS_PRODUCT ? products : op_kernels(&op_table[i], KERNELS_CPU);
}

/* ---- one product ---- */

static Ctx ctx;
static char *memory;

static Tensor put(DType d, int64_t rows, int64_t cols, int64_t at)
{
    Tensor t = {.data = memory + at, .dtype = d, .rank = 2, .dim = {rows, cols}};
    tensor_fill_strides(&t);
    for (int64_t i = 0; i < rows * cols; i++)
        tensor_set(&t, i, (double)(i % 7) - 2);
    return t;
}

enum { ROOM = 1 << 20 };

/* Which algorithm the kernel runs for the call, behind it whether it is its own; 0: a result is
 * wrong. */
static int algorithm(Arena *a, int kernel, DType d, int64_t m, int64_t k, int64_t n, int64_t off)
{
    Value y = {.name = "y"}, *out = &y;
    Node node = {.op = op_find("mm"), .nin = 2, .nout = 1, .out = &out};
    Tensor in[] = {put(d, m, k, off), put(d, k, n, ROOM)}, t = put(d, m, n, (int64_t)2 * ROOM);
    Call c = {.node = &node, .in = in, .out = &t, .nin = 2, .nout = 1};
    const Kernel *x = &products[kernel];
    kernel_prepare(x, &c, a);
    c.work = memory + 3 * (int64_t)ROOM;
    if (x->run(&c))
        return 0;
    for (int64_t i = 0; i < m; i++) {
        double sum = 0;
        for (int64_t l = 0; l < k; l++)
            sum += tensor_get(&in[0], i * k + l) * tensor_get(&in[1], l * n + n - 1);
        if (tensor_get(&t, i * n + n - 1) != sum)
            return 0;
    }
    return 2 * last_run + x->own(&c);
}

static void test_order(Arena *a)
{
    static const int order[] = {FIRST, FAST, LAST}, roomy[] = {FIRST, LARGE, FAST, LAST};
    for (int i = 0; i < MATMUL_LT_WAYS; i++) {
        bool own = i < LEN(order), own_roomy = i < LEN(roomy);
        EXPECT(algorithm(a, i, F32, 3, 8, 5, 0) == 2 * (own ? order[i] : FIRST) + own);
        EXPECT(algorithm(a, i, F64, 3, 8, 5, 0) == 2 * (own ? order[i] : FIRST) + own);
        EXPECT(algorithm(a, i, F32, 3, 8, 5, 4) == 2 * UNALIGNED + own); /* for any kernel */
        EXPECT(algorithm(a, i, F32, 256, 512, 256, 0) ==
               2 * (own_roomy ? roomy[i] : FIRST) + own_roomy);
    }
}

/* ---- tuning ---- */

static char folder[] = "/tmp/tenon_lt_XXXXXX";
static tn_options o;

typedef struct Heard {
    char path[300];
    int ways, known;
    double ratio; /* what is estimated of the step as it runs */
} Heard;

static void hear(void *arg, const tn_tune_news *n)
{
    Heard *h = arg;
    h->ways += !strcmp(n->doing, "ways");
    h->known += !strcmp(n->doing, "done") && n->known;
    if (!strcmp(n->doing, "done") && n->step_sec > 0)
        h->ratio = n->est_sec / n->step_sec;
    snprintf(h->path, sizeof h->path, "%s", n->path);
}

/* What the small model is planned by, and its machine as text; "": it could not be. */
static char warning[1000];

static void hear_warning(void *arg, const char *message)
{
    (void)arg;
    snprintf(warning, sizeof warning, "%s", message);
}

static bool plan_has(tn_context *of, const char *part, const char *kernel)
{
    tn_model *m = NULL;
    tn_graph *g = NULL;
    tn_plan *p = NULL;
    const char *text = "", *machine = "";
    int code = tn_model_open(of, "tests/ref/llama-tiny", &m);
    warning[0] = 0;
    o.warn = hear_warning;
    if (!code)
        code = tn_model_graph(m, 2, 16, &o, &g);
    if (!code)
        code = tn_graph_passes(g, "default", &o, NULL, NULL);
    if (!code)
        code = tn_plan_new(g, &o, 1, &p);
    if (!code)
        code = tn_plan_text(p, 0, &text);
    bool found = !code && strstr(text, part);
    if (!code)
        code = tn_plan_machine(p, &machine);
    char line[60];
    snprintf(line, sizeof line, "]\" %s\n", kernel);
    found = found && !code && strstr(machine, line);
    tn_plan_free(p);
    tn_graph_free(g);
    tn_model_free(m);
    return found;
}

static int tune(tn_context *of, Heard *h)
{
    const tn_tune_step step = {"tests/ref/llama-tiny", 2, 16, &o};
    const tn_tune_options t = {.news = hear, .arg = h};
    *h = (Heard){0};
    return tn_tune(of, &step, 1, &t);
}

/* The least of the seconds in a machine file. */
static double least_sec(const char *text)
{
    double least = SEC_MOST;
    for (const char *line = strstr(text, "\nsec "); line; line = strstr(line + 1, "\nsec "))
        least = MIN(least, strtod(strstr(line, "\" ") + 2, NULL));
    return least;
}

static void test_tune(tn_context *of)
{
    Heard h = {0};
    size_t len;
    Arena *a = arena_new(&ctx);
    const char *text = "";
    double least = SEC_MOST;
    EXPECT(plan_has(of, "(h100)", "cublaslt") && !*warning);
    /* Where the machine is busy, again. */
    for (int try = 0; try < 5 && least >= 1.6e-3; try++) {
        if (try)
            remove(h.path);
        EXPECT(!tune(of, &h) && h.ways > 3 && !h.known);
        text = file_read(a, h.path, &len);
        least = least_sec(text);
    }
    EXPECT(h.ratio > 0.2 && h.ratio < 5); /* a clock's: each call that is timed is waited for */
    EXPECT(strstr(h.path, "/cublaslt-13-1-0-nvidia-h200.machine"));
    EXPECT(least < 1.6e-3); /* that wait is no part of them */
    EXPECT(strstr(text, "\nname tuned\nlike h200\n") && !strstr(text, "\nthreads "));
    EXPECT(strstr(text, "\nlibrary \"cublaslt 13.1.0, NVIDIA H200\"\n"));
    EXPECT(strstr(text, "]\" cublaslt_2\n") && strstr(text, "\nsec \"mm "));
    arena_free(a);
    EXPECT(plan_has(of, "(tuned, h200)", "cublaslt_2") && !*warning);
    EXPECT(!tune(of, &h) && h.known == 1 && !h.ways);
}

/* A context asks for the GPU once: another GPU is one for another context. */
static void test_holds(const char *file)
{
    tn_context *of = tn_context_new();
    EXPECT(!tn_machine_here(of, "cuda", file) && plan_has(of, "(tuned, h200)", "cublaslt_2"));
    tn_context_free(of);
    of = tn_context_new();
    gpu = "NVIDIA A100-SXM4-80GB";
    EXPECT(plan_has(of, "(h100)", "cublaslt") && !*warning); /* it would have another name */
    EXPECT(tn_machine_here(of, "cuda", file) == TN_CODE_USAGE);
    EXPECT(strstr(tn_error(of), "13.1.0, NVIDIA A100-SXM4-80GB, which is here, found cublaslt"));
    o.machine = file; /* to price by it holds anywhere */
    EXPECT(plan_has(of, "(tuned, h200)", "cublaslt_2"));
    o.machine = NULL;
    tn_context_free(of);
    of = tn_context_new();
    gpu = "NVIDIA H200";
    version = 120804;
    EXPECT(tn_machine_here(of, "cuda", file) == TN_CODE_FAIL);
    EXPECT(strstr(tn_error(of), "expected what was measured with cublaslt 12.8.4, NVIDIA H200"));
    tn_context_free(of);
    version = 130100;
}

static void test_refused(const char *file)
{
    tn_context *of = tn_context_new();
    const tn_tune_step step = {"tests/ref/llama-tiny", 2, 16, &o};
    const tn_tune_options cpu = {.cpu = 1};
    const char *path;
    EXPECT(tn_tune(of, &step, 1, &cpu) == TN_CODE_USAGE);
    tn_options other = o;
    other.backend = "cpu";
    const tn_tune_step two[] = {step, {"tests/ref/llama-tiny", 2, 16, &other}};
    EXPECT(tn_tune(of, two, 2, &(tn_tune_options){0}) == TN_CODE_USAGE &&
           strstr(tn_error(of), "step 2 is for another device"));
    FILE *f = fopen(file, "w");
    CHECK(f && fputs("machine 1 name tuned like avx2 end\n", f) >= 0 && !fclose(f));
    EXPECT(plan_has(of, "(h100)", "cublaslt"));
    EXPECT(strstr(warning, "like a GPU, found like avx2") &&
           strstr(warning, "`tenon tune --backend cuda` makes a new one"));
    tn_context_free(of);
    missing = true;
    of = tn_context_new();
    EXPECT(tn_tune_path_for(of, &o, &path) == TN_CODE_FAIL &&
           strstr(tn_error(of), "expected cuBLASLt, found none"));
    tn_context_free(of);
    of = tn_context_new();
    missing = false;
    gpu = NULL;
    EXPECT(plan_has(of, "(h100)", "cublaslt") && !*warning); /* where there is none */
    tn_context_free(of);
    gpu = "NVIDIA H200";
}

int main(void)
{
    char path[300];
    CHECK(cuda_stand_in() && mkdtemp(folder) && !setenv("TENON_CACHE", folder, 1) &&
          !unsetenv("TENON_MACHINE"));
    fill_kernels();
    tn_threads(1);
    o = tn_options_default();
    o.backend = "cuda";
    o.fuse = 0;
    memory = aligned_alloc(64, (size_t)40 << 20);
    CHECK(memory);
    Arena *a = arena_new(&ctx);
    test_order(a);
    arena_free(a);
    tn_context *of = tn_context_new();
    test_tune(of);
    tn_context_free(of);
    snprintf(path, sizeof path, "%s/cublaslt-13-1-0-nvidia-h200.machine", folder);
    test_holds(path);
    test_refused(path);
    unlink(path);
    rmdir(folder);
    free(memory);
    ctx_end(&ctx);
    return test_report();
}
