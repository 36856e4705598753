/* Division to integers and its remainders, of two operands that broadcast and have one dtype:
 *
 *   floor_divide  y = floor(a / b)               remainder  y = a - b floor(a / b), sign of b
 *   trunc_divide  y = a / b towards zero         fmod       y = a - b trunc(a / b), sign of a
 *
 * Integers are divided exactly, wrapped where the least is divided by -1; a divisor of 0 is an
 * error of the run. Floats are divided by fmod, which is exact: floor_divide rounds
 * (a - remainder) / b to the nearest integer, as ATen and Python do, so that it agrees with the
 * remainder; x / 0 is infinite or NaN.
 * The quotients' gradients are zero, as in ATen.
 *
 * Kernels for f32 and bf16 (computed in f32, each result rounded), f64, i64, i32, any strides. */
#include "pointwise.h"

/* ---- diff ---- */

/* y = a - b q, the quotient q being constant: da = dy, db = -dy q. */
static void remainder_by(Grad *d, Value *quotient)
{
    Build *b = d->b;
    if (d->need[0])
        d->dx[0] = grad_reduce(b, d->dy[0], &d->n->in[0]->type);
    if (d->need[1]) {
        Value *db = emit1(b, "mul", IN(d->dy[0], quotient), NOATTRS);
        d->dx[1] = emit1(b, "neg", IN(grad_reduce(b, db, &d->n->in[1]->type)), NOATTRS);
    }
}

static void remainder_diff(Grad *d)
{
    remainder_by(d, emit1(d->b, "floor_divide", IN(d->n->in[0], d->n->in[1]), NOATTRS));
}

static void fmod_diff(Grad *d)
{
    remainder_by(d, emit1(d->b, "trunc_divide", IN(d->n->in[0], d->n->in[1]), NOATTRS));
}

static void zero_diff(Grad *d)
{
    (void)d;
}

static Cost cost(const Node *n)
{
    return pointwise_cost(n, 20);
}

/* ---- arithmetic of one element ---- */

/* clang-format off */
#define FLOATS(T, suffix)                                                                          \
    INLINE T remainder_##suffix(T a, T b)                                                          \
    {                                                                                              \
        T r = (T)fmod##suffix(a, b);                                                               \
        return r != 0 && (b < 0) != (r < 0) ? r + b : r; \
    }                                                                                              \
    INLINE T floor_divide_##suffix(T a, T b)                                                       \
    {                                                                                              \
        T r = (T)fmod##suffix(a, b), q = (a - r) / b - (T)(r != 0 && (b < 0) != (r < 0));          \
        return b == 0 ? a / b : q == 0 ? (T)copysign##suffix(0, a / b) : nearbyint##suffix(q);     \
    }                                                                                              \
    INLINE T trunc_divide_##suffix(T a, T b)                                                       \
    {                                                                                              \
        return trunc##suffix(a / b);                                                               \
    }
/* clang-format on */
#define fmodd      fmod
#define nearbyintd nearbyint
#define copysignd  copysign
#define truncd     trunc
FLOATS(double, d)
FLOATS(float, f)

/* The divisor is not 0. */
INLINE int64_t trunc_divide_i(int64_t a, int64_t b)
{
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

INLINE int64_t fmod_i(int64_t a, int64_t b)
{
    return b == -1 ? 0 : a % b;
}

INLINE int64_t floor_divide_i(int64_t a, int64_t b)
{
    int64_t r = fmod_i(a, b);
    return trunc_divide_i(a, b) - (r != 0 && (b < 0) != (r < 0));
}

INLINE int64_t remainder_i(int64_t a, int64_t b)
{
    int64_t r = fmod_i(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

/* Fails where a divisor is the integer 0. */
static int check(Call *c)
{
    const Tensor *b = &c->in[1];
    int64_t ix[TN_RANK] = {0};
    if (dtype_float(b->dtype) || tensor_nelem(&c->out[0]) == 0)
        return 0;
    do {
        if (tensor_int(b, tensor_index(b, ix)) == 0)
            return run_fail(c, "division of an integer by 0");
    } while (next_index(b->rank, b->dim, ix));
    return 0;
}

/* ---- kernels and constants ---- */

/* Lanes are of floats alone: integers are checked as a whole first. */
static bool accepts(const Call *c)
{
    DType d = c->out[0].dtype;
    return d != F16 && d != U8;
}

/* ---- i64 by one number ----
 *
 * A processor divides integers one by one, floats in vectors. Where |a| and |b| are below 2^51 the
 * quotient in f64 is nearer to a / b than any integer is that a / b is not: 1 / (4 |b|), and 1 /
 * |b|. So its integer part is right, and so is the remainder, which f64 holds. */

enum { NEARBY = 256 }; /* elements that are divided in one way */
#define NEAR ((int64_t)1 << 51)

INLINE double remainder_near(double a, double b)
{
    return a - floor(a / b) * b;
}

INLINE double fmod_near(double a, double b)
{
    return a - trunc(a / b) * b;
}

#define floor_divide_near(a, b) floor((a) / (b))
#define trunc_divide_near(a, b) trunc((a) / (b))

/* clang-format off */
#define BY_ONE(stem)                                                                               \
    KERNEL(void, stem##_by_one,                                                                    \
           (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg),       \
           (n, out, in, s, arg))                                                                   \
    {                                                                                              \
        const int64_t *p = in[0], b = *(const int64_t *)in[1];                                     \
        int64_t *y = out;                                                                          \
        const bool one = s[0] == 1 && s[1] == 0 && b > -NEAR && b < NEAR;                          \
        for (int64_t at = 0, m; at < n; at += m) {                                                 \
            uint64_t all = one ? 0 : UINT64_MAX;                                                   \
            m = one ? MIN(n - at, NEARBY) : n;                                                     \
            for (int64_t i = at; i < at + m && one; i++)                                           \
                all |= (uint64_t)p[i] + (uint64_t)NEAR;                                            \
            if (all < 2 * (uint64_t)NEAR) {                                                        \
                INDEPENDENT for (int64_t i = at; i < at + m; i++)                                  \
                    y[i] = (int64_t)stem##_near((double)p[i], (double)b);                          \
            } else {                                                                               \
                stem##_i64(m, y + at, (const void *[]){p + at * s[0], in[1]}, s, arg);             \
            }                                                                                      \
        }                                                                                          \
    }

#define DIVIDE(stem, mathematics, diffs, aliases)                                                  \
    static double stem##_of(double a, double b)                                                    \
    {                                                                                              \
        return stem##_d(a, b);                                                                     \
    }                                                                                              \
    static int64_t stem##_of_int(int64_t a, int64_t b)                                             \
    {                                                                                              \
        return stem##_i(a, b);                                                                     \
    }                                                                                              \
    ROWS2(stem, stem##_f(a, b))                                                                    \
    INT_ROWS2(stem)                                                                                \
    BY_ONE(stem)                                                                                   \
    static int stem##_ref(Call *c)                                                                 \
    {                                                                                              \
        return check(c) ? -1 : pointwise_ref2(c, stem##_of, stem##_of_int);                        \
    }                                                                                              \
    static bool stem##_lane(const Call *c, LaneFn *l)                                              \
    {                                                                                              \
        return lane_of(l, c, FLOAT_SET(stem));                                                     \
    }                                                                                              \
    static int stem##_run(Call *c)                                                                 \
    {                                                                                              \
        LaneFn l = {0};                                                                            \
        if (check(c) || !lane_of(&l, c, NUMBER_SET(stem)))                                         \
            return -1;                                                                             \
        return pointwise_run(c, 2, c->out[0].dtype == I64 ? stem##_by_one : l.row, NULL);          \
    }                                                                                              \
    const OpRules op_##stem = {                                                                    \
        .math = mathematics, .example = "f32[4, 6] f32[6]", .infer = infer_number, .diff = diffs,  \
        .cost = cost, .inplace = {3}, .ref = stem##_ref, .alias = aliases, .lane = stem##_lane,    \
        .kernels = (const Kernel[]){                                                               \
            {.name = "rows", .accepts = accepts, .run = stem##_run, .strided_out = true}, {0}}}
/* clang-format on */

#define fmod_d fmod
#define fmod_f fmodf
DIVIDE(floor_divide, "y = floor(a / b)", zero_diff,
       "aten.floor_divide.default aten.floor_divide.Scalar");
DIVIDE(trunc_divide, "y = a / b without its fraction", zero_diff, NULL);
DIVIDE(remainder, "y = a - b floor(a / b)", remainder_diff,
       "aten.remainder.Tensor aten.remainder.Scalar aten.remainder.Scalar_Tensor");
DIVIDE(fmod, "y = a - b trunc(a / b)", fmod_diff, "aten.fmod.Tensor aten.fmod.Scalar");
