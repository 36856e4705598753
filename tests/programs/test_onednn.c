/* Products as src/product/onednn.h describes them, against sums in double: operands as they lie,
 * transposed, and in the library's own layout, which is packed in the room that it asks for and no
 * more; with a bias, added to what is there, in batches. Twins give the same bits, in threads of
 * their own at the same time too; what is made for one thread is the same whatever their number. */
#include "../shared/test.h"

#include "../../src/product/onednn.h"

#include "../../src/op/op.h"

#include <math.h>

enum { GUARD = 64, MARK = 0x5a };

/* One problem: y[batch, m, n]. */
typedef struct Problem {
    DType in, out;
    int64_t batch, m, k, n;
    bool turn_a, turn_b, own_a, own_b, has_bias, adds, alone;
} Problem;

/* Its operands, and memory behind which nothing may be written. */
typedef struct Data {
    char *a, *b, *bias, *y, *scratch, *own_a, *own_b;
    int64_t ny, nscratch, nown_a, nown_b; /* bytes */
} Data;

static int64_t width(DType d)
{
    return d == F32 ? 4 : 2;
}

static char *guarded(Arena *a, int64_t nbytes)
{
    char *p = NEWN(a, char, nbytes + 64 + GUARD);
    p += -(uintptr_t)p % 64;
    memset(p + nbytes, MARK, GUARD);
    return p;
}

static bool kept(const char *p, int64_t nbytes)
{
    for (int i = 0; i < GUARD; i++)
        if (p[nbytes + i] != MARK)
            return false;
    return true;
}

static char *random_values(Arena *a, DType d, int64_t n, uint64_t seed)
{
    char *p = guarded(a, n * width(d));
    for (int64_t i = 0; i < n; i++) {
        float x = random_normal(seed, 1, 2, (uint64_t)i);
        if (d == F32)
            ((float *)(void *)p)[i] = x;
        else
            ((uint16_t *)(void *)p)[i] = f32_to_bf16(x);
    }
    return p;
}

static double value(const char *p, DType d, int64_t i)
{
    return d == F32 ? (double)((const float *)(const void *)p)[i]
                    : (double)bf16_to_f32(((const uint16_t *)(const void *)p)[i]);
}

static OneMatrix matrix_of(DType d, int64_t batch, int64_t rows, int64_t cols, bool turned)
{
    int64_t row = turned ? 1 : cols, col = turned ? rows : 1;
    if (batch == 1)
        return (OneMatrix){d, 2, {rows, cols}, {row, col}, false};
    return (OneMatrix){d, 3, {batch, rows, cols}, {rows * cols, row, col}, false};
}

static OneProduct product_of(const Problem *x)
{
    OneProduct p = {.a = matrix_of(x->in, x->batch, x->m, x->k, x->turn_a),
                    .b = matrix_of(x->in, x->batch, x->k, x->n, x->turn_b),
                    .y = matrix_of(x->out, x->batch, x->m, x->n, false),
                    .bias = matrix_of(x->in, 1, 1, x->n, false),
                    .has_bias = x->has_bias,
                    .adds = x->adds,
                    .alone = x->alone};
    p.a.own = x->own_a;
    p.b.own = x->own_b;
    return p;
}

static Data data_of(Arena *a, const Problem *x, const OneRoom *room)
{
    int64_t ny = x->batch * x->m * x->n;
    return (Data){.a = random_values(a, x->in, x->batch * x->m * x->k, 1),
                  .b = random_values(a, x->in, x->batch * x->k * x->n, 2),
                  .bias = random_values(a, x->in, x->n, 3),
                  .y = random_values(a, x->out, ny, 4),
                  .scratch = guarded(a, room->scratch),
                  .own_a = guarded(a, room->a),
                  .own_b = guarded(a, room->b),
                  .ny = ny * width(x->out),
                  .nscratch = room->scratch,
                  .nown_a = room->a,
                  .nown_b = room->b};
}

/* Packs and runs; false where either fails. */
static bool run(OneRun *r, const Problem *x, const Data *d)
{
    return (!d->nown_a || !onednn_pack(r, false, d->a, d->own_a, d->scratch)) &&
           (!d->nown_b || !onednn_pack(r, true, d->b, d->own_b, d->scratch)) &&
           !onednn_run(r, d->nown_a ? d->own_a : d->a, d->nown_b ? d->own_b : d->b,
                       x->has_bias ? d->bias : NULL, d->y, d->scratch);
}

static double sum_of(const Problem *x, const Data *d, int64_t at, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t k = 0; k < x->k; k++)
        sum += value(d->a, x->in, at * x->m * x->k + (x->turn_a ? k * x->m + i : i * x->k + k)) *
               value(d->b, x->in, at * x->k * x->n + (x->turn_b ? j * x->k + k : k * x->n + j));
    return sum + (x->has_bias ? value(d->bias, x->in, j) : 0);
}

/* The largest error, in parts of a sum of so many products of numbers about 1. */
static double error_of(const Problem *x, const Data *d, const char *before)
{
    double worst = 0;
    for (int64_t e = 0; e < x->batch * x->m * x->n; e++) {
        int64_t at = e / (x->m * x->n), i = e / x->n % x->m, j = e % x->n;
        double want = sum_of(x, d, at, i, j) + (x->adds ? value(before, x->out, e) : 0);
        double size = fabs(want) + sqrt((double)x->k);
        worst = fmax(worst, fabs(value(d->y, x->out, e) - want) / size);
    }
    return worst;
}

static char *copy_of(Arena *a, const char *p, int64_t nbytes)
{
    return memcpy(guarded(a, nbytes), p, (size_t)nbytes);
}

static void check_problem(Arena *a, const Problem *x)
{
    OneProduct p = product_of(x);
    if (!EXPECT(onednn_has(arena_ctx(a), &p)))
        return;
    OneRoom room = onednn_room(arena_ctx(a), NULL, &p);
    EXPECT((room.a == 0 || x->own_a) && (room.b == 0 || x->own_b));
    Data d = data_of(a, x, &room);
    char *before = copy_of(a, d.y, d.ny);
    OneRun *r = onednn_make(a, NULL, &p), *twin = onednn_twin(a, NULL, r);
    bool good = EXPECT(run(r, x, &d));
    double error = error_of(x, &d, before);
    good &= EXPECT(error < (x->out == F32 ? 1e-6 : 0x1p-8));
    good &= EXPECT(kept(d.scratch, d.nscratch) && kept(d.own_a, d.nown_a) &&
                   kept(d.own_b, d.nown_b) && kept(d.y, d.ny));
    Data again = d;
    again.y = before;
    good &= EXPECT(run(twin, x, &again) && !memcmp(d.y, before, (size_t)d.ny));
    if (!good)
        printf("  %s -> %s [%lld, %lld, %lld, %lld] turned %d %d own %d %d bias %d adds %d alone "
               "%d: error %g\n",
               dtype_name(x->in), dtype_name(x->out), (long long)x->batch, (long long)x->m,
               (long long)x->k, (long long)x->n, x->turn_a, x->turn_b, x->own_a, x->own_b,
               x->has_bias, x->adds, x->alone, error);
    arena_reset(a);
}

static void check_shapes(Arena *a, DType in, DType out)
{
    static const int64_t size[][4] = {
        {1, 1, 1, 1}, {1, 33, 65, 70}, {1, 128, 64, 96}, {1, 5, 300, 17}, {3, 20, 31, 48}};
    for (int i = 0; i < LEN(size); i++)
        for (unsigned how = 0; how < 64; how++) {
            Problem x = {.in = in, .out = out, .batch = size[i][0]};
            x.m = size[i][1], x.k = size[i][2], x.n = size[i][3];
            bool *const choice[] = {&x.turn_a, &x.turn_b, &x.own_a, &x.own_b, &x.adds, &x.alone};
            for (int c = 0; c < LEN(choice); c++)
                *choice[c] = how >> c & 1;
            check_problem(a, &x);
            x.has_bias = !x.adds && x.batch == 1;
            if (x.has_bias)
                check_problem(a, &x);
        }
}

/* ---- threads ---- */

typedef struct Several {
    OneRun *run[8];
    Data data[8];
    Problem x;
    bool failed[8];
} Several;

static void run_some(void *arg, int64_t lo, int64_t hi)
{
    Several *s = arg;
    for (int64_t i = lo; i < hi; i++)
        s->failed[i] = !run(s->run[i], &s->x, &s->data[i]);
}

static void run_rest(void *arg, int64_t lo, int64_t hi)
{
    const int here = LEN(((Several *)arg)->run) / 2;
    run_some(arg, here + lo, here + hi);
}

/* Twins in threads of their own at the same time, or one after the other in this thread; and bits
 * that do not depend on the number of threads. */
static void check_alone(Arena *a, const Problem *x)
{
    Several s = {.x = *x};
    OneProduct p = product_of(&s.x);
    char *first = NULL;
    for (int nthread = 1; nthread <= 4; nthread *= 2) {
        par_set_threads(nthread);
        OneRoom room = onednn_room(arena_ctx(a), NULL, &p);
        EXPECT(par_threads() == nthread);
        for (int i = 0; i < LEN(s.run); i++) {
            s.run[i] = i ? onednn_twin(a, NULL, s.run[0]) : onednn_make(a, NULL, &p);
            s.data[i] = data_of(a, &s.x, &room);
        }
        EXPECT(par_threads() == nthread);
        int here = LEN(s.run) / 2;
        run_some(&s, 0, here);
        EXPECT(par_threads() == nthread);
        par_for(LEN(s.run) - here, 1, run_rest, &s);
        for (int i = 0; i < LEN(s.run); i++) {
            first = first ? first : copy_of(a, s.data[i].y, s.data[i].ny);
            EXPECT(!s.failed[i] && !memcmp(first, s.data[i].y, (size_t)s.data[i].ny));
        }
    }
    arena_reset(a);
}

/* ---- what it refuses ---- */

static void ask_room(void *arg)
{
    Arena *a = arg;
    OneProduct p = product_of(&(Problem){F32, BF16, 1, 4, 4, 4, .adds = true});
    p.y.dim[1] = 5; /* not what b has */
    EXPECT(!onednn_has(arena_ctx(a), &p));
    onednn_room(arena_ctx(a), NULL, &p);
}

static void check_refusals(Arena *a)
{
    char text[ONE_VERSION];
    Ctx *ctx = arena_ctx(a);
    EXPECT(ctx_try(ctx, ask_room, a) == TN_FAIL && strstr(ctx->message, "oneDNN cannot make its"));
    EXPECT(onednn_version(text)[0] >= '2' && text[1] == '.');
    OneMatrix window = {F32, 2, {4, 8}, {1, 1}, false};
    EXPECT(!onednn_describes(&window));
}

static void check(void *ctx)
{
    /* The last two are attention's, by blocks of keys: long sums of few rows, which the library
     * would divide among threads. */
    static const Problem alone[] = {
        {F32, F32, 1, 64, 96, 80, .own_b = true, .alone = true},
        {BF16, F32, 1, 64, 96, 80, .own_b = true, .alone = true},
        {F32, F32, 1, 32, 64, 256, .turn_b = true, .alone = true},
        {F32, F32, 1, 32, 256, 64, .adds = true, .alone = true},
    };
    Arena *a = arena_new(ctx);
    check_refusals(a);
    for (int nthread = 1; nthread <= 2; nthread++) {
        par_set_threads(nthread);
        check_shapes(a, F32, F32);
        if (onednn_isa() < ISA_BF16)
            continue;
        check_shapes(a, BF16, BF16);
        check_shapes(a, BF16, F32);
    }
    for (int i = 0; i < LEN(alone); i++)
        if (alone[i].in == F32 || onednn_isa() >= ISA_BF16)
            check_alone(a, &alone[i]);
    arena_free(a);
}

int main(void)
{
    Ctx ctx = {0};
    if (!EXPECT(ctx_try(&ctx, check, &ctx) == TN_OK))
        printf("%s\n", ctx.message);
    ctx_end(&ctx);
    return test_report();
}
