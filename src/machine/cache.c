/* cache: the file that `tenon tune` has made here, by which plans are made where the user names no
 * machine, like FFTW's wisdom. It lies in the user's folder of caches: one for each processor,
 * version of the library and number of threads; one for each GPU and version of the library. A
 * context reads it once, so that all passes and plans of a compilation have one machine. A file
 * that is damaged, or was made with another processor, GPU, library or number of threads, is left
 * alone: the row of the processor or GPU is used, and a warning waits for whoever can give it. */
#include "machine.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

const char *machine_asked(const char *name)
{
    const char *set = name ? NULL : getenv("TENON_MACHINE");
    return set && *set ? set : name;
}

/* ---- its path ---- */

/* A folder that the environment names; a relative one is as none (XDG Base Directory). */
static const char *folder_of(const char *name)
{
    const char *path = getenv(name);
    return path && *path == '/' ? path : NULL;
}

static const char *cache_folder(Arena *a)
{
    const char *own = getenv("TENON_CACHE"), *caches = folder_of("XDG_CACHE_HOME");
    const char *home = folder_of("HOME");
    return own && *own ? own
           : caches    ? arena_printf(a, "%s/tenon", caches)
           : home      ? arena_printf(a, "%s/.cache/tenon", home)
                       : NULL;
}

/* The processor's own name; "" if it gives none. */
static void fill_brand(char brand[49])
{
    brand[0] = 0;
#if defined(__x86_64__)
    unsigned word[12] = {0};
    if ((unsigned)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u)
        return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &word[4 * i], &word[4 * i + 1], &word[4 * i + 2],
                    &word[4 * i + 3]);
    memcpy(brand, word, 48);
    brand[48] = 0;
#endif
}

char *plain_words(Arena *a, const char *text)
{
    Buf b = {.a = a};
    for (bool gap = false; *text; text++) {
        char c = (char)tolower((unsigned char)*text);
        if (!isalnum((unsigned char)c) || (unsigned char)c > 127) {
            gap = b.len > 0;
            continue;
        }
        if (gap)
            buf_addn(&b, "-", 1);
        buf_addn(&b, &c, 1);
        gap = false;
    }
    return b.text ? b.text : arena_strdup(a, "");
}

const char *cache_path(Arena *a, const TunedFor *to)
{
    const char *folder = cache_folder(a), *gpu = NULL;
    bool is_gpu = device_is_gpu(to->device);
    char brand[49];
    if (folder && is_gpu)
        gpu = gpu_library(a, to->number);
    if (!folder || (is_gpu && !gpu))
        return NULL;
    if (gpu)
        return arena_printf(a, "%s/%s.machine", folder, plain_words(a, gpu));
    fill_brand(brand);
    const char *words =
        arena_printf(a, "%s %s %s %s", device_is_host(to->device) ? "" : to->device->name, brand,
                     machine_get(a, "none", 1)->like, machine_library(a));
    return arena_printf(a, "%s/%s-%d-thread%s.machine", folder, plain_words(a, words), to->nthread,
                        to->nthread > 1 ? "s" : "");
}

/* ---- what is in it ---- */

/* A file that a context has looked for. */
typedef struct Tuned {
    TunedFor to;
    const Machine *machine; /* NULL: the row of the processor stands */
    const char *warning;    /* of a file that is left alone; NULL: none, or it was given */
    struct Tuned *next;
} Tuned;

Machine *machine_of_file(Arena *a, const char *path, const TunedFor *to)
{
    Ctx *ctx = arena_ctx(a);
    size_t len;
    const char *text = file_read_regular(a, path, &len);
    Machine *m = machine_parse(a, text, len, path);
    if (device_is_gpu(to->device)) {
        if (!m->gpu)
            fail(ctx, TN_FAIL, "%s: expected a machine that is like a GPU, found like %s", path,
                 m->like);
        gpu_check(m, to->number, path);
        return m;
    }
    if (!machine_is_here(m))
        fail(ctx, TN_FAIL, "%s: expected a machine that is like this processor, found like %s",
             path, m->like);
    machine_check_ways(m, to->nthread, path);
    m->cores = to->nthread;
    return m;
}

typedef struct TunedReading {
    Arena *a;
    const char *path;
    const TunedFor *to;
    const Machine *machine;
} TunedReading;

static void read_file(void *arg)
{
    TunedReading *x = arg;
    x->machine = machine_of_file(x->a, x->path, x->to);
}

static const char *tune_words(Arena *a, const Device *d)
{
    return device_is_host(d) ? "" : arena_printf(a, " --backend %s", d->name);
}

/* A failure is a warning, and leaves the context's message as it was. */
static void read_tuned(Ctx *ctx, Tuned *t)
{
    Arena *a = memo_arena(ctx);
    TunedReading x = {.a = a, .path = cache_path(a, &t->to), .to = &t->to};
    struct stat st;
    if (!x.path || stat(x.path, &st)) /* it cannot be there, or is not */
        return;
    char *message = arena_strdup(a, ctx->message);
    Code code = ctx->code;
    if (ctx_try(ctx, read_file, &x))
        t->warning = arena_printf(a, "%s\n  the file is not used; `tenon tune%s` makes a new one",
                                  ctx->message, tune_words(a, t->to.device));
    else
        t->machine = x.machine;
    memcpy(ctx->message, message, strlen(message) + 1);
    ctx->code = code;
}

static Tuned **tuned_of(Ctx *ctx)
{
    static const char key[] = "tuned machines";
    Tuned **first = memo_find(ctx, key, sizeof key);
    if (!first) {
        first = NEW(memo_arena(ctx), Tuned *);
        memo_put(ctx, key, sizeof key, first);
    }
    return first;
}

const Machine *machine_tuned(Ctx *ctx, const Device *d, int nthread)
{
    Tuned **first = tuned_of(ctx), *t = *first;
    while (t && (t->to.device != d || t->to.nthread != nthread))
        t = t->next;
    if (t)
        return t->machine;
    t = NEW(memo_arena(ctx), Tuned);
    *t = (Tuned){.to = {d, 0, nthread}, .next = *first};
    *first = t;
    read_tuned(ctx, t);
    return t->machine;
}

void machine_forget(Ctx *ctx)
{
    *tuned_of(ctx) = NULL;
}

const char *machine_warning(Ctx *ctx)
{
    const char *text = NULL;
    for (Tuned *t = *tuned_of(ctx); t && !text; t = t->next) {
        text = t->warning;
        t->warning = NULL;
    }
    return text;
}
