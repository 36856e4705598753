/* pointwise: what the pointwise families (binary, unary, compare, cast, dropout) share. A walk goes
 * over an output and operands that broadcast to it, row by row; a row function, compiled for
 * several instruction sets, does one row. */
#ifndef TENON_POINTWISE_H
#define TENON_POINTWISE_H

#include "vmath.h"

enum { WALK_MOST = 5 };

/* The joint iteration space of `count` tensors, in tensor 0's row-major order: neighbouring axes
 * that every tensor passes with one stride are merged, so that contiguous tensors have one axis. */
typedef struct Walk {
    int rank, count;
    int64_t nelem, dim[TN_RANK];
    int64_t stride[WALK_MOST][TN_RANK]; /* elements; 0 where a tensor is broadcast */
} Walk;

/* The walk of y and operands that broadcast to it. */
void walk_make(Walk *w, const Tensor *y, int nin, const Tensor *in);

/* Calls fn for each row of positions [lo, hi): n elements from at[k] on, in steps of stride[k]. */
typedef void WalkRow(void *arg, int64_t n, const int64_t *at, const int64_t *stride);
void walk_part(const Walk *w, int64_t lo, int64_t hi, WalkRow *fn, void *arg);

/* Calls part(arg, lo, hi) over [0, nelem) in parallel, cut at multiples of 64 elements. */
void walk_par(int64_t nelem, void (*part)(void *arg, int64_t lo, int64_t hi), void *arg);

/* Runs row over output 0 and the first nin operands of the call. */
int pointwise_run(Call *c, int nin, RowFn *row, const void *arg);

/* Rows of library functions stay scalar, of which clang would warn. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/* Row functions from an expression of x, or of a and b: where the strides are 1 or 0, loops that
 * vectorise. Mx is the C type of the operands in memory, Tx what get() makes of it and the
 * expression sees, My that of the result in memory, made by put(); both may be empty. */
#define LANES1(Tx, X, put, expr)                \
    INDEPENDENT for (int64_t i = 0; i < n; i++) \
    {                                           \
        const Tx x = (X);                       \
        y[i] = put(expr);                       \
    }
#define ROW1_BY(kernel, name, Mx, Tx, My, get, put, expr)                                    \
    kernel(void, name,                                                                       \
           (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
           (n, out, in, s, arg))                                                             \
    {                                                                                        \
        const Mx *p = in[0];                                                                 \
        My *y = out;                                                                         \
        (void)arg;                                                                           \
        if (s[0] == 1)                                                                       \
            LANES1(Tx, get(p[i]), put, expr)                                                 \
        else                                                                                 \
            LANES1(Tx, get(p[i * s[0]]), put, expr)                                          \
    }
#define ROW1_AS(name, Mx, Tx, My, get, put, expr) ROW1_BY(KERNEL, name, Mx, Tx, My, get, put, expr)
#define ROW1(name, Tx, Ty, expr)                  ROW1_AS(name, Tx, Tx, Ty, , , expr)

#define LANES2(Tx, A, B, put, expr)             \
    INDEPENDENT for (int64_t i = 0; i < n; i++) \
    {                                           \
        const Tx a = (A), b = (B);              \
        y[i] = put(expr);                       \
    }
#define ROW2_BY(kernel, name, Mx, Tx, My, get, put, expr)                                    \
    kernel(void, name,                                                                       \
           (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
           (n, out, in, s, arg))                                                             \
    {                                                                                        \
        const Mx *p = in[0], *q = in[1];                                                     \
        My *y = out;                                                                         \
        int64_t sp = s[0], sq = s[1];                                                        \
        (void)arg;                                                                           \
        if (sp == 1 && sq == 1) {                                                            \
            LANES2(Tx, get(p[i]), get(q[i]), put, expr)                                      \
        } else if (sp == 1 && sq == 0) {                                                     \
            const Tx q0 = get(*q);                                                           \
            LANES2(Tx, get(p[i]), q0, put, expr)                                             \
        } else if (sp == 0 && sq == 1) {                                                     \
            const Tx p0 = get(*p);                                                           \
            LANES2(Tx, p0, get(q[i]), put, expr)                                             \
        } else {                                                                             \
            LANES2(Tx, get(p[i * sp]), get(q[i * sq]), put, expr)                            \
        }                                                                                    \
    }
#define ROW2_AS(name, Mx, Tx, My, get, put, expr) ROW2_BY(KERNEL, name, Mx, Tx, My, get, put, expr)
#define ROW2(name, Tx, Ty, expr)                  ROW2_AS(name, Tx, Tx, Ty, , , expr)

/* The row functions NAME_f32 and NAME_bf16 of an expression in f32 (each bf16 result is rounded),
 * and NAME_f64 of the function NAME_of, which the reference uses too. */
#define ROWS1(name, expr)                                                               \
    ROW1(name##_f32, float, float, expr)                                                \
    ROW1_AS(name##_bf16, uint16_t, float, uint16_t, v_bf16_to_f32, v_f32_to_bf16, expr) \
    ROW1(name##_f64, double, double, name##_of(x))
#define ROWS2(name, expr)                                                               \
    ROW2(name##_f32, float, float, expr)                                                \
    ROW2_AS(name##_bf16, uint16_t, float, uint16_t, v_bf16_to_f32, v_f32_to_bf16, expr) \
    ROW2(name##_f64, double, double, name##_of(a, b))

/* The same of functions of many operations. Products and sums in them may be contracted, and bf16
 * has an expression of its own: one that comes near, whose NaN are those of arithmetic on bf16
 * (v_near_bf16). */
#define LONG_ROWS1(name, expr, near)                                                             \
    ROW1_BY(KERNEL_FMA, name##_f32, float, float, float, , , expr)                               \
    INLINE float name##_near(float x)                                                            \
    {                                                                                            \
        return near;                                                                             \
    }                                                                                            \
    KERNEL_FMA(void, name##_bf16,                                                                \
               (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
               (n, out, in, s, arg))                                                             \
    {                                                                                            \
        const BfPair *x = in[0];                                                                 \
        const uint16_t *p = in[0];                                                               \
        BfPair *y = out;                                                                         \
        int64_t pairs = s[0] == 1 ? n / 2 : 0;                                                   \
        (void)arg;                                                                               \
        INDEPENDENT                                                                              \
        for (int64_t i = 0; i < pairs; i++)                                                      \
            y[i] = near_pair(name##_near(pair_first(x[i])), name##_near(pair_second(x[i])));     \
        INDEPENDENT                                                                              \
        for (int64_t i = 2 * pairs; i < n; i++)                                                  \
            ((uint16_t *)out)[i] =                                                               \
                (uint16_t)(v_near_bf16(name##_near(v_bf16_to_f32(p[i * s[0]]))) >> 16);          \
    }                                                                                            \
    ROW1(name##_f64, double, double, name##_of(x))
#define LONG_ROWS2(name, expr, near)                                                             \
    ROW2_BY(KERNEL_FMA, name##_f32, float, float, float, , , expr)                               \
    INLINE float name##_near(float a, float b)                                                   \
    {                                                                                            \
        return near;                                                                             \
    }                                                                                            \
    KERNEL_FMA(void, name##_bf16,                                                                \
               (int64_t n, void *out, const void *const *in, const int64_t *s, const void *arg), \
               (n, out, in, s, arg))                                                             \
    {                                                                                            \
        const BfPair *a = in[0], *b = in[1];                                                     \
        const uint16_t *p = in[0], *q = in[1];                                                   \
        BfPair *y = out;                                                                         \
        int64_t pairs = s[0] == 1 && s[1] == 1 ? n / 2 : 0;                                      \
        (void)arg;                                                                               \
        INDEPENDENT                                                                              \
        for (int64_t i = 0; i < pairs; i++)                                                      \
            y[i] = near_pair(name##_near(pair_first(a[i]), pair_first(b[i])),                    \
                             name##_near(pair_second(a[i]), pair_second(b[i])));                 \
        INDEPENDENT                                                                              \
        for (int64_t i = 2 * pairs; i < n; i++)                                                  \
            ((uint16_t *)out)[i] =                                                               \
                (uint16_t)(v_near_bf16(name##_near(v_bf16_to_f32(p[i * s[0]]),                   \
                                                   v_bf16_to_f32(q[i * s[1]]))) >>               \
                           16);                                                                  \
    }                                                                                            \
    ROW2(name##_f64, double, double, name##_of(a, b))
/* NAME_i64 and NAME_i32, wrapped, of the function NAME_of_int. */
#define INT_ROWS1(name)                                  \
    ROW1(name##_i64, int64_t, int64_t, name##_of_int(x)) \
    ROW1_AS(name##_i32, int32_t, int64_t, int32_t, , (int32_t), name##_of_int(x))
#define INT_ROWS2(name)                                     \
    ROW2(name##_i64, int64_t, int64_t, name##_of_int(a, b)) \
    ROW2_AS(name##_i32, int32_t, int64_t, int32_t, , (int32_t), name##_of_int(a, b))

/* An op's row functions by dtype; NULL where it does not take that. */
typedef struct RowSet {
    RowFn *f32, *bf16, *f64, *i64, *i32;
} RowSet;
#define FLOAT_SET(name)                                 \
    (RowSet)                                            \
    {                                                   \
        name##_f32, name##_bf16, name##_f64, NULL, NULL \
    }
#define NUMBER_SET(name)                                            \
    (RowSet)                                                        \
    {                                                               \
        name##_f32, name##_bf16, name##_f64, name##_i64, name##_i32 \
    }

/* Sets l's row function, for lane() to return; false: there is none. */
bool lane_is(LaneFn *l, RowFn *row);
/* The same of the operands' dtype, which all of them have. */
bool lane_of(LaneFn *l, const Call *c, RowSet set);
/* The kernel of an op that has lanes: any strides. */
extern const Kernel lane_kernels[];
int lane_run(Call *c);

/* The element of x at position ix of y, by broadcasting; y's own offset with x = y. */
int64_t broadcast_at(const Tensor *y, const Tensor *x, const int64_t *ix);

/* Exact store of an integer, wrapped to the dtype. */
void tensor_set_int(const Tensor *t, int64_t at, int64_t x);

/* References: f over every element in double, or over int64 where the operands are integers. */
int pointwise_ref1(Call *c, double (*f)(double), int64_t (*i)(int64_t));
int pointwise_ref2(Call *c, double (*f)(double, double), int64_t (*i)(int64_t, int64_t));

/* infer(): one output of the operands' common shape and dtype; floating point, or any but bool. */
int infer_float(const Graph *g, const Node *n, Type *out);
int infer_number(const Graph *g, const Node *n, Type *out);

/* gelu's attribute `approximate`, at place 0 of forward and backward: "none" or "tanh". */
void gelu_check(const Graph *g, const Node *n);
bool gelu_by_tanh(const Node *n);

/* The default cost with nflop operations for each element of the output. */
Cost pointwise_cost(const Node *n, double nflop);

#endif
