/* Flash attention and its backward: their attributes, problem sizes and operands, for the kernels
 * of the processor (flash_tile.h) and those on CUDA (flash.cuh). */
#ifndef TENON_FLASH_H
#define TENON_FLASH_H

#include "op.h"

enum { FLASH_CAUSAL, FLASH_SCALE };
extern const AttrField flash_attrs[];

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
/* Operand `at` as a mask: floats (q's dtype or f32) that are added to the scores, [B, H, T, S] or 1
 * in place of any of them; q is operand `first`. */
void flash_check_mask(const Graph *g, const Node *n, int first, int at);
bool flash_has_mask(const Node *n, int at);
/* Operand `at` where it is a mask, else NULL. */
const Tensor *flash_mask(const Call *c, int at);
double flash_mask_at(const Tensor *mask, int64_t b, int64_t h, int64_t query, int64_t key);
/* Sets the offset where operand 3 of the forward has it. Returns 0, or a failed run. */
int flash_place(Call *c, Flash *f);
Type flash_lse_type(const Graph *g, const Node *n, int first);

/* Operands and results of the backward. */
enum { DO, Q, K, V, O, LSE, MASK };
enum { DQ, DK, DV };

#endif
