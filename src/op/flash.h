/* Flash attention and its backward: attributes, sizes, masks and operands (flash.c), which their
 * rules and references share with the kernels of the processor (attention) and those of CUDA. */
#ifndef TENON_FLASH_H
#define TENON_FLASH_H

#include "op.h"

/* The processor's kernels (attention). */
extern const Kernel flash_kernels[], flash_backward_kernels[];

enum { FLASH_CAUSAL, FLASH_SCALE };
extern const AttrField flash_attrs[];

/* Operands and results of the backward; MASK may be of starts. */
enum { DO, Q, K, V, O, LSE, MASK };
enum { DQ, DK, DV };

/* ---- sizes ---- */

/* Sizes of q[batch, queries, heads, size] and k, v[batch, keys, heads / group, size]. Query t sees
 * keys up to t + offset; all of them where not causal. */
typedef struct Flash {
    int64_t batch, queries, keys, heads, group, size;
    bool causal;
    int64_t offset;
    double scale; /* any finite number */
    /* scale = turn above, turn 1, -1 or 0, above > 0. Kernels that look for the greatest score
     * before they scale it turn scores first. */
    double turn, above;
} Flash;

/* Checks operands first to first + 2 (q, k, v) and returns their sizes. */
Flash flash_check(const Graph *g, const Node *n, int first);
Flash flash_of(const Node *n, int first);
double flash_pairs(const Flash *f);                /* query and key see each other, all heads */
int64_t flash_seen(const Flash *f, int64_t query); /* keys that a query sees */
/* Sets the offset where operand 3 of the forward has it. Returns 0, or a failed run. */
int flash_place(Call *c, Flash *f);
Type flash_lse_type(const Graph *g, const Node *n, int first);

/* ---- masks ---- */

/* Checks that operand `at` is a mask: floats (q's dtype or f32) that are added to the scores,
 * [B, H, T, S] or 1 in place of any of them; q is operand `first`. */
void flash_check_mask(const Graph *g, const Node *n, int first, int at);
bool flash_has_mask(const Node *n, int at);
/* Operand `at` where it is a mask, else NULL. */
const Tensor *flash_mask(const Call *c, int at);
/* The strides of a mask, 0 where it is broadcast. */
void flash_mask_strides(const Tensor *mask, int64_t stride[4]);

/* ---- levels: scores far below 0, which masks of -1e9 or the least float make ----
 *
 * Beside such a score the logarithm of a row's sum is lost in one float, so that a row of nothing
 * but them would have weights exp(s - lse) of 1 each. With a mask, scores below -5.7e6 (f64: below
 * -9e13) therefore count by their octave alone: level k, those from -1.37 2^k down, stands for
 * -2^(k+2), and a level weighs nothing beside the ones above it. Where a row's greatest score is a
 * level, lse is that level (1 - log(sum) / 128), which lies between the level and its half: both
 * can be read from it. -inf, not seen, is no level. */

/* Levels begin at -2^k / FLASH_SHARE, where f32 tells scores apart by halves: above it, in masks of
 * -1e6, the forward is a softmax of them, as ATen's. */
#define FLASH_SHARE 0.73
/* The least k, of f32 and of f64, and the greatest. */
enum { FLASH_LEAST = 22, FLASH_LEAST_F64 = 46, FLASH_MOST = 125 };

double flash_least_level(DType d); /* 2^k */
/* A masked score, or its level. */
double flash_level(double score, DType d);
/* The log-sum-exp of a row with a mask from its greatest score and the logarithm of its sum. */
double flash_masked_lse(double top, double log_sum, DType d);
/* The level of a row's log-sum-exp, which is taken from its scores, or 0; *lse is then the
 * logarithm of its sum. */
double flash_take_level(double *lse, DType d);

/* ---- documents ---- */

/* Checks that operand `at` is of starts, i64[B, T]: the key from which on each query of a causal
 * attention among themselves sees, where its document begins. */
void flash_check_starts(const Graph *g, const Node *n, int first, int at);
bool flash_has_starts(const Node *n, int at);
/* Operand `at` where it is of starts, else NULL. */
const Tensor *flash_starts(const Call *c, int at);
/* Checks their values: from 0 to the query itself, and never less than the query before. Returns 0,
 * or a failed run. */
int flash_check_documents(Call *c, int at);
/* The first key that a query of row b sees. */
INLINE int64_t flash_first(const Tensor *starts, int64_t b, int64_t query)
{
    return starts ? tensor_int(starts, b * starts->stride[0] + query * starts->stride[1]) : 0;
}

/* ---- factors ---- */

/* The factors of q[batch, query, head member, size] and k, v[batch, key, head, size]: heads of a
 * group are its members. */
typedef struct FlashFactors {
    int batch, query, key, head, member, size;
} FlashFactors;

/* Queries and keys that a causal mask ties to their places stay whole, whatever their kind. */
FlashFactors flash_factors(Factors *f, const Flash *s, FactorKind query, FactorKind key,
                           FactorKind member);
void flash_query_axes(Axes *x, const FlashFactors *f); /* q, o and their gradients */
void flash_key_axes(Axes *x, const FlashFactors *f);   /* k, v and their gradients */
void flash_lse_axes(Axes *x, const FlashFactors *f);
void flash_mask_axes(Axes *x, const Type *mask, const FlashFactors *f);
void flash_start_axes(Axes *x, const FlashFactors *f);

/* ---- for references ---- */

enum { FLASH_PART = 2048 }; /* elements of a head that are summed at once */

/* The offset of row [b, i, h]. */
INLINE int64_t flash_at(const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    return b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

/* The product of `size` elements of two rows. */
double flash_dot(const Tensor *x, int64_t at, const Tensor *y, int64_t other, int64_t size);
/* The scaled score of query t of head h and key j, with the mask where there is one. */
double flash_score(const Flash *f, const Tensor *q, const Tensor *k, const Tensor *mask, int64_t b,
                   int64_t t, int64_t h, int64_t j);
/* sum[d] += w x[at + d] */
void flash_add_row(double *sum, double w, const Tensor *x, int64_t at, int64_t n);
void flash_set_row(const Tensor *y, int64_t at, const double *sum, int64_t n);

#endif
