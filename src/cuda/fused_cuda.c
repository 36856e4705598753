/* Compiles the texts of bodies of `fused` (fused_text.c) for the device by NVRTC, which is opened
 * when the first is compiled: programs without such bodies need none. Kernels are kept with the
 * context by their texts, so that programs share them. */
#include "fused_text.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <string.h>

/* ---- NVRTC ---- */

#define FUNCTIONS(X)     \
    X(GetErrorString)    \
    X(CreateProgram)     \
    X(DestroyProgram)    \
    X(CompileProgram)    \
    X(GetCUBINSize)      \
    X(GetCUBIN)          \
    X(GetProgramLogSize) \
    X(GetProgramLog)

typedef struct Nvrtc {
#define X(name) __typeof__(&nvrtc##name) name;
    FUNCTIONS(X)
#undef X
} Nvrtc;

static void *open_library(void)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        CUDA_HOME "/lib64/libnvrtc.so"};
    void *found = NULL;
    for (int i = 0; i < LEN(names) && !found; i++)
        found = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return found;
}

static void *find_function(Ctx *ctx, void *library, const char *name)
{
    void *f = dlsym(library, name);
    if (!f) {
        const char *why = dlerror();
        fail(ctx, TN_FAIL, "CUDA: expected libnvrtc of CUDA 12 or 13, found one without %s: %s",
             name, why ? why : "it is NULL");
    }
    return f;
}

static const Nvrtc *get_nvrtc(Ctx *ctx)
{
    static const char key[] = "nvrtc";
    Nvrtc *n = memo_find(ctx, key, sizeof key);
    if (n)
        return n;
    void *library = open_library();
    if (!library)
        fail(ctx, TN_FAIL,
             "CUDA: fused bodies are compiled by libnvrtc, which is not there "
             "(--fuse off needs none): %s",
             dlerror());
    n = NEW(memo_arena(ctx), Nvrtc);
#define X(name) *(void **)&n->name = find_function(ctx, library, "nvrtc" #name);
    FUNCTIONS(X)
#undef X
    memo_put(ctx, key, sizeof key, n);
    return n;
}

/* ---- compiling ---- */

/* The headers that texts include, as lines. */
static const struct Header {
    const char *name;
    const char *const *line;
} headers[] = {
    /* clang-format off */
    {"element.cuh", (const char *const[]){
#include "element.cuh.inc"
    NULL}},
    {"lane.cuh", (const char *const[]){
#include "lane.cuh.inc"
    NULL}},
    {"lanes.cuh", (const char *const[]){
#include "lanes.cuh.inc"
    NULL}},
    {"random.cuh", (const char *const[]){
#include "random.cuh.inc"
    NULL}},
    {"rows.cuh", (const char *const[]){
#include "rows.cuh.inc"
    NULL}},
    {"team.cuh", (const char *const[]){
#include "team.cuh.inc"
    NULL}},
    {"fused.cuh", (const char *const[]){
#include "fused.cuh.inc"
    NULL}},
    /* clang-format on */
};

static const char *joined(Arena *a, const char *const *line)
{
    Buf b = {.a = a};
    for (; *line; line++)
        buf_add(&b, *line);
    return b.text;
}

static void must(Arena *a, const Nvrtc *r, nvrtcResult e)
{
    if (e != NVRTC_SUCCESS)
        fail(arena_ctx(a), TN_FAIL, "CUDA: %s", r->GetErrorString(e));
}

typedef struct Compiling {
    const Nvrtc *r;
    nvrtcProgram program;
} Compiling;

static void drop_program(void *arg)
{
    Compiling *x = arg;
    x->r->DestroyProgram(&x->program);
}

/* A text that does not compile is a bug: it is left in a file. */
_Noreturn static void refuse(Arena *a, const Compiling *x, const char *text)
{
    size_t size = 0;
    const char *folder = getenv("TMPDIR");
    const char *path = arena_printf(a, "%s/fused-%016llx.cu", folder ? folder : "/tmp",
                                    (unsigned long long)hash_bytes(text, strlen(text), 0));
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
    x->r->GetProgramLogSize(x->program, &size);
    char *log = arena_alloc(a, size + 1);
    x->r->GetProgramLog(x->program, log);
    fail(arena_ctx(a), TN_FAIL, "CUDA: a fused body does not compile: %s: %.600s", path, log);
}

char *fused_binary(Arena *a, const char *text, const char *arch, size_t *nbytes)
{
    const char *name[LEN(headers)], *content[LEN(headers)];
    const char *const option[] = {arena_printf(a, "--gpu-architecture=%s", arch), "-std=c++20",
                                  "--fmad=false"};
    Compiling *x = NEW(a, Compiling);
    x->r = get_nvrtc(arena_ctx(a));
    for (int i = 0; i < LEN(headers); i++) {
        name[i] = headers[i].name;
        content[i] = joined(a, headers[i].line);
    }
    must(a, x->r, x->r->CreateProgram(&x->program, text, "fused.cu", LEN(headers), content, name));
    arena_defer(a, drop_program, x);
    if (x->r->CompileProgram(x->program, LEN(option), option) != NVRTC_SUCCESS)
        refuse(a, x, text);
    must(a, x->r, x->r->GetCUBINSize(x->program, nbytes));
    char *binary = arena_alloc(a, *nbytes);
    must(a, x->r, x->r->GetCUBIN(x->program, binary));
    return binary;
}

/* ---- kernels on the device ---- */

static void unload(void *library)
{
    cudaLibraryUnload(library);
}

static void check(Ctx *ctx, cudaError_t e)
{
    if (e != cudaSuccess)
        fail(ctx, TN_FAIL, "CUDA: a fused body: %s", cudaGetErrorString(e));
}

/* Loaded now, as it cannot be while a run is captured. */
static void *load(Arena *a, const char *text, const char *arch)
{
    Ctx *ctx = arena_ctx(a);
    struct cudaFuncAttributes attributes;
    cudaLibrary_t library;
    cudaKernel_t kernel;
    size_t nbytes;
    const char *binary = fused_binary(a, text, arch, &nbytes);
    check(ctx, cudaLibraryLoadData(&library, binary, NULL, NULL, 0, NULL, NULL, 0));
    arena_defer(memo_arena(ctx), unload, library);
    check(ctx, cudaLibraryGetKernel(&kernel, library, "fused"));
    check(ctx, cudaFuncGetAttributes(&attributes, (const void *)kernel));
    return kernel;
}

void *fused_compile(Arena *a, const char *text)
{
    Ctx *ctx = arena_ctx(a);
    int device = 0, major = 0, minor = 0;
    check(ctx, cudaGetDevice(&device));
    check(ctx, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(ctx, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    const char *arch = arena_printf(a, "sm_%d%d", major, minor);
    const char *key = arena_printf(a, "%s\n%s", arch, text);
    void *kernel = memo_find(ctx, key, strlen(key));
    if (!kernel)
        memo_put(ctx, key, strlen(key), kernel = load(a, text, arch));
    return kernel;
}

int fused_launch(Call *c, void *kernel, const FusedText *t, void **arg)
{
    dim3 grid = {(unsigned)t->blocks, 1, 1}, block = {(unsigned)t->threads, 1, 1};
    cudaError_t e = cudaLaunchKernel(kernel, grid, block, arg, 0, (cudaStream_t)c->stream);
    return e == cudaSuccess ? 0 : run_fail(c, "CUDA: %s", cudaGetErrorString(e));
}
