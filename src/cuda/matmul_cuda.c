/* Products on CUDA by cuBLASLt, which is opened at run time: a program runs without it where no
 * product does. prepare() makes descriptions and asks for an algorithm; run() enqueues it.
 *
 * y = a b in row-major order is y' = b' a' in cuBLASLt's column-major order. An operand
 * is a matrix or a transposed matrix with a leading dimension, batches are any step apart, 0 too:
 * views by t, transpose and slice, and heads inside of rows, need no copy.
 *
 * Numerics: sums in f32 (no tf32), of f64 in f64, rounded once. Where the depth is split, partial
 * sums stay in f32 and are added in order. A bias of one row, of 32 or 16 bits as y, is added
 * before rounding; an f32 bias beside a y of 16 bits is itself rounded first, as cuBLASLt takes it
 * in y's dtype alone. Any other bias is written to y first, exactly, and the product is added to
 * it; y may be in its place. The algorithm depends on shapes, strides, the kernel and whether all
 * operands are aligned to 16 bytes; so the same call gives the same bits.
 *
 * A kernel for each of the first MATMUL_LT_WAYS candidates of the heuristic, whose own first choice
 * is up to 30 % slower than the best of them: which is the fastest is measured (`tenon tune`). All
 * have the workspace of the plan as their limit. Where fewer are offered, and for operands that are
 * not aligned, the first stands in for the others.
 *
 * The workspace: a result of few tiles and a large depth, as a weight's gradient, leaves most of
 * the processors idle unless the depth is split, and each part of it then is an f32 matrix of y's
 * size. room_to_split() gives as many as would make 4 tiles for each of an H100's 132 processors,
 * up to 32 MiB; results of more tiles have none. */
#include "matmul_cuda.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

/* ---- the library: opened once for each context and GPU ---- */

#define FUNCTIONS(X)                \
    X(Create)                       \
    X(Destroy)                      \
    X(GetStatusString)              \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatrixLayoutSetAttribute)     \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic)       \
    X(Matmul)

typedef struct Lt {
    cublasLtHandle_t handle;
#define X(name) __typeof__(&cublasLt##name) name;
    FUNCTIONS(X)
#undef X
} Lt;

static void need(cublasStatus_t status, Ctx *ctx, const Lt *lt, const Call *c, const char *what)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(ctx, TN_FAIL, "%s %%%s: cuBLASLt cannot make its %s: %s", c->node->op->name,
             c->node->out[0]->name, what, lt->GetStatusString(status));
}

static const char *const library_names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                            "libcublasLt.so",
                                            "/usr/local/cuda/lib64/libcublasLt.so"};

static void *open_any(void)
{
    void *library = NULL;
    for (int i = 0; i < LEN(library_names) && !library; i++)
        library = dlopen(library_names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static void *open_library(Ctx *ctx, const Call *c)
{
    void *library = open_any();
    if (library)
        return library;
    fail(ctx, TN_FAIL,
         "%s %%%s: expected cuBLASLt, found no %s, %s, %s (LD_LIBRARY_PATH says where to look) nor "
         "%s",
         c->node->op->name, c->node->out[0]->name, library_names[0], library_names[1],
         library_names[2], library_names[3]);
}

bool cuda_about(int number, GpuAbout *x)
{
    struct cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, number)) {
        cudaGetLastError(); /* or the next call would report it */
        return false;
    }
    void *library = open_any(), *f = library ? dlsym(library, "cublasLtGetVersion") : NULL;
    __typeof__(&cublasLtGetVersion) get_version;
    if (!f)
        return false;
    memcpy(&get_version, &f, sizeof f);
    int version = (int)get_version();
    snprintf(x->name, sizeof x->name, "%s", device.name);
    snprintf(x->library, sizeof x->library, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return true;
}

static void *get_function(Ctx *ctx, void *library, const char *name)
{
    void *f = dlsym(library, name);
    if (!f)
        fail(ctx, TN_FAIL, "the cuBLASLt that was found has no %s: expected one of CUDA 12 or 13",
             name);
    return f;
}

/* The library itself stays open: kernels of it may still be known to the driver. */
static void close_handle(void *what)
{
    const Lt *lt = what;
    lt->Destroy(lt->handle);
}

static const Lt *get_library(Ctx *ctx, const Call *c)
{
    struct {
        char what[12];
        int device;
    } key = {"cuBLASLt", 0};
    if (cudaGetDevice(&key.device))
        fail(ctx, TN_FAIL, "CUDA: no device for %s %%%s", c->node->op->name, c->node->out[0]->name);
    Lt *lt = memo_find(ctx, &key, sizeof key);
    if (lt)
        return lt;
    lt = NEW(memo_arena(ctx), Lt);
    void *library = open_library(ctx, c), *f;
#define X(name)                                       \
    f = get_function(ctx, library, "cublasLt" #name); \
    memcpy(&lt->name, &f, sizeof f);
    FUNCTIONS(X)
#undef X
    need(lt->Create(&lt->handle), ctx, lt, c, "handle");
    arena_defer(memo_arena(ctx), close_handle, lt);
    memo_put(ctx, &key, sizeof key, lt);
    return lt;
}

/* ---- what it is told ---- */

/* A matrix in column-major order, or a batch of them. */
typedef struct ColumnMajor {
    int64_t rows, cols, leading, step;
    int32_t batch;
    cublasOperation_t op; /* that makes t's transpose of it */
} ColumnMajor;

enum { MOST_BATCH = 65535 };

/* False where t is no matrix with a leading dimension. Strides of axes of size 1 are ours to
 * choose. */
static bool describe(const Tensor *t, ColumnMajor *x)
{
    Matrix m = matrix(t);
    int64_t row = m.stride[1], col = m.stride[2];
    if (m.cols == 1)
        col = 1;
    if (m.rows == 1)
        row = col == 1 ? m.cols : 1;
    bool plain = col == 1 && row >= m.cols;
    if ((!plain && (row != 1 || col < m.rows)) || (m.batch > 1 && m.stride[0] < 0) ||
        m.batch > MOST_BATCH || MAX(m.rows, m.cols) > INT32_MAX)
        return false;
    *x = plain ? (ColumnMajor){m.cols, m.rows, row, m.stride[0], (int32_t)m.batch, CUBLAS_OP_N}
               : (ColumnMajor){m.rows, m.cols, col, m.stride[0], (int32_t)m.batch, CUBLAS_OP_T};
    return true;
}

typedef enum { BIAS_NONE, BIAS_ROW, BIAS_FIRST } BiasKind;

/* BIAS_ROW: one row for all of y's, which the epilogue adds; that of f64 has none. A bias of y's
 * own type may be overwritten by y, so it is none of these. */
static BiasKind bias_kind(const Call *c)
{
    const Tensor *bias = &c->in[0], *y = &c->out[0];
    if (c->nin == 2)
        return BIAS_NONE;
    int64_t n = y->dim[1];
    bool row = bias->rank && bias->dim[bias->rank - 1] == n && tensor_nelem(bias) == n;
    row &= !(bias->rank == 2 && bias->dim[0] == y->dim[0] && bias->dtype == y->dtype);
    return row && y->dtype != F64 ? BIAS_ROW : BIAS_FIRST;
}

bool matmul_lt_accepts(const Call *c)
{
    int first = c->nin - 2;
    const Tensor *a = &c->in[first], *b = &c->in[first + 1], *y = &c->out[0];
    ColumnMajor x;
    if (!dtype_float(a->dtype) || !tensor_nelem(a) || !tensor_nelem(b))
        return false;
    if (bias_kind(c) == BIAS_FIRST && !widens(c->in[0].dtype, y->dtype))
        return false;
    return describe(a, &x) && describe(b, &x) && describe(y, &x) && x.op == CUBLAS_OP_N;
}

/* ---- the workspace: the bias in y's dtype, then the parts of the depth ---- */

enum { PROCESSORS = 132, PART_ALIGN = 256, WORK_ALIGN = 64 };

static int64_t room_to_split(const Call *c)
{
    const int64_t tile = 128, most = (int64_t)32 << 20;
    Matrix y = matrix(&c->out[0]), a = matrix(&c->in[c->nin - 2]);
    int64_t tiles = y.batch * ((y.rows + tile - 1) / tile) * ((y.cols + tile - 1) / tile);
    int64_t parts = MIN(4 * PROCESSORS / tiles, a.cols / tile);
    int64_t nbytes = (int64_t)sizeof(float) * y.batch * y.rows * y.cols;
    return parts < 2 ? 0 : MIN(parts * nbytes, most);
}

static int64_t bias_room(const Call *c)
{
    if (bias_kind(c) != BIAS_ROW)
        return 0;
    int64_t nbytes = c->out[0].dim[1] * dtype_size(c->out[0].dtype);
    return (nbytes + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN;
}

int64_t matmul_lt_workspace(Ctx *ctx, const Call *c)
{
    (void)ctx;
    int64_t parts = room_to_split(c);
    return bias_room(c) + (parts ? parts + PART_ALIGN - WORK_ALIGN : 0);
}

/* ---- one product ---- */

enum { ALIGN = 16 }; /* of all operands, for the algorithms that are fast */

/* Made by prepare(). */
typedef struct LtProduct {
    const Lt *lt;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    BiasKind bias;
    int64_t parts; /* bytes */
    DType dtype;   /* of a and b */
    /* [0]: for operands aligned to ALIGN; [1]: to an element, `any` where there is one */
    cublasLtMatmulAlgo_t algo[2];
    bool any;
    bool own; /* algo[0] is the candidate that was asked for */
} LtProduct;

static void drop(void *what)
{
    LtProduct *p = what;
    cublasLtMatrixLayout_t layout[] = {p->a, p->b, p->y};
    for (int i = 0; i < LEN(layout); i++)
        if (layout[i])
            p->lt->MatrixLayoutDestroy(layout[i]);
    if (p->desc)
        p->lt->MatmulDescDestroy(p->desc);
}

static cudaDataType_t type_of(DType d)
{
    return d == F64 ? CUDA_R_64F : d == F32 ? CUDA_R_32F : d == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static cublasStatus_t make_layout(const Lt *lt, cublasLtMatrixLayout_t *to, const Tensor *t,
                                  cublasOperation_t *op)
{
    ColumnMajor x = {0};
    CHECK(describe(t, &x));
    *op = x.op;
    cublasStatus_t s = lt->MatrixLayoutCreate(to, type_of(t->dtype), (uint64_t)x.rows,
                                              (uint64_t)x.cols, x.leading);
    if (!s)
        s = lt->MatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &x.batch,
                                         sizeof x.batch);
    if (!s)
        s = lt->MatrixLayoutSetAttribute(*to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x.step,
                                         sizeof x.step);
    return s;
}

static cublasStatus_t set_bias(const LtProduct *p, const void *bias)
{
    return p->lt->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                         sizeof bias);
}

static cublasStatus_t make_desc(LtProduct *p, cublasOperation_t a, cublasOperation_t b)
{
    const Lt *lt = p->lt;
    bool wide = p->dtype == F64;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t s = lt->MatmulDescCreate(
        &p->desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, wide ? CUDA_R_64F : CUDA_R_32F);
    if (!s)
        s = lt->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &b, sizeof b);
    if (!s)
        s = lt->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &a, sizeof a);
    if (!s && p->bias == BIAS_ROW)
        s = lt->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                       sizeof epilogue);
    if (!s && p->bias == BIAS_ROW)
        s = set_bias(p, (const void *)(uintptr_t)PART_ALIGN); /* an address that is not read */
    return s;
}

/* Drops those that would not run. */
static int keep_good(cublasLtMatmulHeuristicResult_t *found, int count)
{
    int n = 0;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            found[n++] = found[i];
    return n;
}

/* Up to `most` algorithms for operands of that alignment, best first, which need no more than
 * nbytes of workspace; returns how many. Parts of a sum are added in f32, by a kernel of its own.
 */
static int find(const LtProduct *p, int64_t nbytes, uint32_t align, int most,
                cublasLtMatmulHeuristicResult_t *found)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint64_t limit = (uint64_t)nbytes;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attr;
        const void *value;
        size_t size;
    } wish[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme},
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    const Lt *lt = p->lt;
    cublasLtMatmulPreference_t pref;
    int count = 0;
    if (lt->MatmulPreferenceCreate(&pref))
        return 0;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < LEN(wish) && !s; i++)
        s = lt->MatmulPreferenceSetAttribute(pref, wish[i].attr, wish[i].value, wish[i].size);
    if (!s)
        s = lt->MatmulAlgoGetHeuristic(lt->handle, p->desc, p->b, p->a, p->y, p->y, pref, most,
                                       found, &count);
    lt->MatmulPreferenceDestroy(pref);
    return s ? 0 : keep_good(found, count);
}

/* The alignment of all matrices of t where the first is aligned to ALIGN. */
static uint32_t step_align(const Tensor *t)
{
    int64_t size = dtype_size(t->dtype);
    return t->rank == 3 && t->dim[0] > 1 && t->stride[0] * size % ALIGN ? (uint32_t)size : ALIGN;
}

/* rank: of the candidate, from 0. */
static void choose(LtProduct *p, Ctx *ctx, const Call *c, uint32_t align, int rank)
{
    cublasLtMatmulHeuristicResult_t found[MATMUL_LT_WAYS], first;
    p->own = !rank || rank < find(p, p->parts, align, MATMUL_LT_WAYS, found);
    if ((!rank || !p->own) && !find(p, p->parts, align, 1, &first))
        need(CUBLAS_STATUS_NOT_SUPPORTED, ctx, p->lt, c, "algorithm");
    p->algo[0] = rank && p->own ? found[rank].algo : first.algo;
    p->any = find(p, p->parts, (uint32_t)dtype_size(p->dtype), 1, &first);
    p->algo[1] = first.algo;
}

static void prepare(Call *c, Arena *arena, int rank)
{
    Ctx *ctx = arena_ctx(arena);
    const Tensor *a = &c->in[c->nin - 2], *b = a + 1, *y = &c->out[0];
    LtProduct *p = c->state = NEW(arena, LtProduct);
    cublasOperation_t op_a, op_b, op_y;
    *p = (LtProduct){.lt = get_library(ctx, c),
                     .bias = bias_kind(c),
                     .parts = room_to_split(c),
                     .dtype = a->dtype};
    arena_defer(arena, drop, p);
    need(make_layout(p->lt, &p->a, a, &op_a), ctx, p->lt, c, "layout of a");
    need(make_layout(p->lt, &p->b, b, &op_b), ctx, p->lt, c, "layout of b");
    need(make_layout(p->lt, &p->y, y, &op_y), ctx, p->lt, c, "layout of y");
    need(make_desc(p, op_a, op_b), ctx, p->lt, c, "description");
    choose(p, ctx, c, MIN(MIN(step_align(a), step_align(b)), step_align(y)), rank);
}

void matmul_lt_prepare(Call *c, Arena *a)
{
    prepare(c, a, 0);
}

#define X(n)                                      \
    void matmul_lt_prepare_##n(Call *c, Arena *a) \
    {                                             \
        prepare(c, a, (n)-1);                     \
    }
MATMUL_LT_OTHERS(X)
#undef X

bool matmul_lt_own(const Call *c)
{
    return ((const LtProduct *)c->state)->own;
}

static char *align_up(char *p, uintptr_t align)
{
    return p + (align - (uintptr_t)p % align) % align;
}

static bool aligned(const Call *c)
{
    uintptr_t bits = (uintptr_t)c->out[0].data;
    for (int i = c->nin - 2; i < c->nin; i++)
        bits |= (uintptr_t)c->in[i].data;
    return bits % ALIGN == 0;
}

/* The bias as the epilogue reads it: where it lies, or a copy in y's dtype. */
static int place_bias(Call *c, const LtProduct *p)
{
    const Tensor *bias = &c->in[0];
    int64_t n = c->out[0].dim[1];
    const char *at = bias->data;
    if (bias->dtype != c->out[0].dtype || (n > 1 && bias->stride[bias->rank - 1] != 1) ||
        (uintptr_t)at % ALIGN) {
        at = c->work;
        if (matmul_spread_bias(c, c->work, 1))
            return -1;
    }
    return set_bias(p, at) ? run_fail(c, "cuBLASLt takes no bias") : 0;
}

int matmul_lt_run(Call *c)
{
    const LtProduct *p = c->state;
    const float one = 1, zero = 0;
    const double one64 = 1, zero64 = 0;
    const Tensor *a = &c->in[c->nin - 2], *b = a + 1, *y = &c->out[0];
    bool wide = a->dtype == F64, add = p->bias == BIAS_FIRST, part = !aligned(c);
    const void *beta = wide ? (add ? &one64 : &zero64) : (const void *)(add ? &one : &zero);
    char *work = align_up(c->work + bias_room(c), PART_ALIGN);
    if (part && !p->any)
        return run_fail(c, "cuBLASLt has no algorithm for operands at such addresses");
    if (p->bias == BIAS_ROW && place_bias(c, p))
        return -1;
    if (add && y->data != c->in[0].data && matmul_spread_bias(c, y->data, y->dim[0]))
        return -1;
    cublasStatus_t s =
        p->lt->Matmul(p->lt->handle, p->desc, wide ? (const void *)&one64 : &one, b->data, p->b,
                      a->data, p->a, beta, y->data, p->y, y->data, p->y, &p->algo[part],
                      p->parts ? work : NULL, (size_t)p->parts, (cudaStream_t)c->stream);
    return s ? run_fail(c, "cuBLASLt product failed: %s", p->lt->GetStatusString(s)) : 0;
}
