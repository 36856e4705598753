/* Measures the most that this machine can do, as the limit in benchmarks: the time of one product
 * through oneDNN in its fastest layout, and the bandwidth of streams over arrays larger than the
 * last-level cache, by kind of stream, as memory takes updates in place faster than results that go
 * elsewhere.
 *
 * A layout is plain, transposed, or for the right operand the library's own choice ("packed";
 * repacking is not counted). Layouts that are clearly slower in a first run are not timed again. */
#include "exec.h"
#include "../product/onednn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LEAST_RUNS = 5, MOST_RUNS = 100, HUGE = 2 << 20 };

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

double median_sec(double *sec, int n)
{
    qsort(sec, (size_t)n, sizeof *sec, ascending);
    return n ? sec[n / 2] : 0;
}

/* ---- products ---- */

typedef struct LoneProduct {
    OneRun *run;
    void *a, *b, *y, *scratch;
} LoneProduct;

/* All values are 0.0115, so that neither denormals nor zeros change the speed. */
static void *new_memory(Arena *tmp, int64_t nbytes)
{
    size_t size = ((size_t)nbytes + 63) / 64 * 64;
    void *data = aligned_alloc(64, MAX(size, 64));
    if (!data)
        fail(arena_ctx(tmp), TN_FAIL, "out of memory: %zu bytes", size);
    arena_defer(tmp, free, data);
    return memset(data, 0x3c, size);
}

typedef enum { PLAIN, TRANSPOSED, PACKED } OperandLayout;

static OneMatrix describe(DType d, int64_t rows, int64_t cols, OperandLayout layout)
{
    bool turned = layout == TRANSPOSED;
    return (OneMatrix){
        d, 2, {rows, cols}, {turned ? 1 : cols, turned ? rows : 1}, layout == PACKED};
}

static int64_t nbytes_of(Ctx *ctx, const OneMatrix *m)
{
    int64_t nbytes;
    if (__builtin_mul_overflow(m->dim[0], m->dim[1], &nbytes) ||
        __builtin_mul_overflow(nbytes, m->dtype == F32 ? 4 : 2, &nbytes))
        fail(ctx, TN_FAIL, "out of memory: a matrix of %lld x %lld", (long long)m->dim[0],
             (long long)m->dim[1]);
    return nbytes;
}

/* False where the library has no such product. */
static bool make_product(Arena *tmp, LoneProduct *x, const OneProduct *p)
{
    if (!onednn_has(arena_ctx(tmp), p))
        return false;
    Ctx *ctx = arena_ctx(tmp);
    const int64_t a = nbytes_of(ctx, &p->a), b = nbytes_of(ctx, &p->b), y = nbytes_of(ctx, &p->y);
    OneRoom room = onednn_room(ctx, NULL, p);
    x->run = onednn_make(tmp, NULL, p);
    x->a = new_memory(tmp, MAX(room.a, a));
    x->b = new_memory(tmp, MAX(room.b, b));
    x->y = new_memory(tmp, y);
    x->scratch = new_memory(tmp, room.scratch);
    return true;
}

static bool execute(const LoneProduct *x)
{
    return !onednn_run(x->run, x->a, x->b, NULL, x->y, x->scratch);
}

/* Median seconds of one layout, or what one run took where that is far above `best`; negative where
 * it failed. A first run that is short does not count: code and scratchpad are new. */
static double time_layout(const LoneProduct *x, double best, double (*clock)(void))
{
    double sec[MOST_RUNS], total = 0;
    int n = 0;
    for (bool warm = false; n < MOST_RUNS && (n < LEAST_RUNS || total < 0.05); warm = true) {
        double start = clock();
        if (!execute(x))
            return -1;
        sec[n] = clock() - start;
        if (!warm && sec[n] < 0.1)
            continue;
        total += sec[n++];
        if (n == 1 && best > 0 && sec[0] > 1.2 * best)
            break;
        if (n == 3 && total > 1)
            break;
    }
    return median_sec(sec, n);
}

static double time_held(const LoneProduct *x, double best, double (*clock)(void))
{
    sigset_t before;
    signals_hold(&before);
    double sec = time_layout(x, best, clock);
    signals_release(&before);
    return sec;
}

double product_sec(Arena *tmp, const Product *p, double (*clock)(void))
{
    static const OperandLayout a[] = {PLAIN, TRANSPOSED}, b[] = {PLAIN, TRANSPOSED, PACKED};
    double best = -1;
    for (int i = 0; i < LEN(a) * LEN(b); i++) {
        LoneProduct x;
        OneProduct one = {.a = describe(p->in, p->m, p->k, a[i / LEN(b)]),
                          .b = describe(p->in, p->k, p->n, b[i % LEN(b)]),
                          .y = describe(p->out, p->m, p->n, PLAIN)};
        double sec = make_product(tmp, &x, &one) ? time_held(&x, best, clock) : -1;
        if (sec > 0 && (best < 0 || sec < best))
            best = sec;
        arena_reset(tmp);
    }
    if (best < 0)
        fail(arena_ctx(tmp), TN_FAIL, "oneDNN has no product of %s", dtype_name(p->in));
    return best;
}

/* ---- streams ---- */

struct Stream {
    float *w, *x, *y, *z;
    int64_t n;
};

enum { PIECE = 512, SUMS = 64 }; /* elements */

KERNEL(void, read_all, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Stream *s = arg;
    float sum[SUMS] = {0};
    for (int64_t i = lo; i + SUMS <= hi; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sum[j] += s->x[i + j];
    for (int j = 0; j < SUMS; j++)
        s->y[lo + j] = sum[j];
}

KERNEL(void, copy_all, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Stream *s = arg;
    float *restrict y = s->y;
    const float *restrict x = s->x;
    for (int64_t i = lo; i < hi; i++)
        y[i] = x[i];
}

static void copy_past(void *arg, int64_t lo, int64_t hi)
{
    const Stream *s = arg;
    stream_store(s->y + lo, s->x + lo, (hi - lo) * (int64_t)sizeof(float));
    stream_end();
}

INLINE void add_to(float *restrict z, const float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        z[i] = x[i] + 0.5f * y[i];
}

KERNEL(void, add, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Stream *s = arg;
    add_to(s->z + lo, s->x + lo, s->y + lo, hi - lo);
}

KERNEL(void, add_past, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Stream *s = arg;
    _Alignas(64) float piece[PIECE];
    for (; lo < hi; lo += PIECE) {
        int64_t n = MIN(PIECE, hi - lo);
        add_to(piece, s->x + lo, s->y + lo, n);
        stream_store(s->z + lo, piece, n * (int64_t)sizeof(float));
    }
    stream_end();
}

KERNEL(void, update, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Stream *s = arg;
    float *restrict y = s->y;
    const float *restrict x = s->x;
    for (int64_t i = lo; i < hi; i++)
        y[i] = y[i] + 0.5f * x[i];
}

/* More streams at once keep more of the memory busy. */
KERNEL(void, update_three, (void *arg, int64_t lo, int64_t hi), (arg, lo, hi))
{
    const Stream *s = arg;
    float *restrict w = s->w, *restrict x = s->x, *restrict y = s->y;
    const float *restrict z = s->z;
    for (int64_t i = lo; i < hi; i++) {
        w[i] += 0.5f * z[i];
        x[i] += 0.5f * z[i];
        y[i] += 0.5f * z[i];
    }
}

/* The fastest of some runs: a limit is sought, and others share the bandwidth. */
static double stream_rate(Stream *s, void (*fn)(void *, int64_t, int64_t), double nbytes,
                          double (*clock)(void))
{
    double best = 0;
    for (int i = 0; i < LEAST_RUNS; i++) {
        double start = clock();
        par_for(s->n, 1, fn, s);
        double rate = nbytes * (double)s->n / (clock() - start);
        best = MAX(best, rate);
    }
    return best;
}

/* The size of this core's last-level cache, or 32 MiB if unknown. (sysconf() may count the caches
 * of all cores, or give 0.) */
static int64_t cache_nbytes(void)
{
    long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (f && fscanf(f, "%ldK", &kib) != 1)
        kib = 0;
    if (f)
        fclose(f);
    return kib > 0 ? (int64_t)kib << 10 : 32 << 20;
}

static void touch(void *arg, int64_t lo, int64_t hi)
{
    const Stream *s = arg;
    for (int64_t i = lo; i < hi; i++)
        s->w[i] = s->x[i] = s->y[i] = s->z[i] = 1;
}

Stream *stream_new(void)
{
    int64_t nbytes = MIN(4 * cache_nbytes(), (int64_t)512 << 20);
    Stream *s = malloc(sizeof *s);
    char *memory = aligned_alloc(HUGE, 4 * (size_t)nbytes);
    if (!s || !memory) {
        free(s);
        free(memory);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    madvise(memory, 4 * (size_t)nbytes, MADV_HUGEPAGE);
#endif
    *s = (Stream){.n = nbytes / (int64_t)sizeof(float)};
    float **part[] = {&s->w, &s->x, &s->y, &s->z};
    for (int i = 0; i < LEN(part); i++)
        *part[i] = (float *)(void *)(memory + i * nbytes);
    par_for(s->n, 1, touch, s);
    return s;
}

void stream_free(Stream *s)
{
    if (s)
        free(s->w);
    free(s);
}

void stream_rates(const Stream *s, double (*clock)(void), double rate[NSTREAM])
{
    static const struct {
        LimitKind kind;
        void (*fn)(void *arg, int64_t lo, int64_t hi);
        double nbytes; /* of an element of each array that it reads or writes */
    } stream[] = {{LIMIT_READ, read_all, 4},       {LIMIT_COPY, copy_all, 8},
                  {LIMIT_COPY, copy_past, 8},      {LIMIT_ADD, add, 12},
                  {LIMIT_ADD, add_past, 12},       {LIMIT_UPDATE, update, 12},
                  {LIMIT_UPDATE, update_three, 28}};
    Stream arrays = *s;
    for (int i = 0; i < NSTREAM; i++)
        rate[i] = 0;
    for (int i = 0; i < LEN(stream); i++) {
        double found = stream_rate(&arrays, stream[i].fn, stream[i].nbytes, clock);
        rate[stream[i].kind] = MAX(rate[stream[i].kind], found);
    }
}
