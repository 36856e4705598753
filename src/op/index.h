/* index: what the ops that read and write by index tensors share (index.c, gather.c): checks, and
 * putting runs of elements into a copy of operand 0, in order, by assignment or addition. The
 * functions are in index_put.c. */
#ifndef TENON_INDEX_H
#define TENON_INDEX_H

#include "rows.h"

enum { PUT_STRIP = 64 }; /* elements of a run that one thread puts at a time */

/* Operand i is i64 or i32; a mask is refused with the reason. */
void need_index(const Graph *g, const Node *n, int i);

/* Fails the run unless every element of operand i is in [least, size). */
int check_index(Call *c, int i, int64_t least, int64_t size);

INLINE int64_t index_at(const Tensor *t, int64_t at)
{
    return t->dtype == I64 ? ((const int64_t *)(const void *)t->data)[at]
                           : ((const int32_t *)(const void *)t->data)[at];
}

/* Moves one element, whatever its dtype. */
INLINE void move_element(const Tensor *to, int64_t t, const Tensor *from, int64_t f)
{
    size_t size = (size_t)dtype_size(from->dtype);
    memcpy(to->data + t * (int64_t)size, from->data + f * (int64_t)size, size);
}

/* t's axes [from, to), or all but one. */
Tensor tensor_axes(const Tensor *t, int from, int to);
Tensor tensor_without(const Tensor *t, int axis);

/* Output 0 as it is filled: it begins as a copy of operand 0. Sums of 16-bit values are formed in
 * f32 in work memory of put_nwork() bytes and rounded once, by put_end(). */
typedef struct Target {
    char *data;
    DType dtype; /* of what is put */
    bool add;
} Target;

int64_t put_nwork(const Call *c, bool add);
Target put_begin(Call *c, bool add, char *work);
void put_end(Call *c, const Target *t);

/* Puts n elements, from the one at v on and vs apart, to elements `to` on, ts apart. */
void put_run(const Target *t, int64_t to, int64_t ts, const char *v, int64_t vs, int64_t n);

/* For references: assigns, or adds (16 bits: with one rounding), every element p of src to the
 * element target(c, p) of output 0, which begins as a copy of operand 0. */
int put_ref(Call *c, bool add, const Tensor *src, int64_t (*target)(const Call *c, int64_t p));

/* Along a factor that operand 0, x, does not have, parts of what is added, operand `src`, are added
 * to zeros, in f32 for 16 bits; finish() adds their sum to x. Where x is zeros the parts' results
 * are added themselves. */
void put_factor(const Node *n, Factors *f, int factor);
void put_part(Part *p, int src);
void put_finish(Part *p, Value *const *merged);

/* For gradients: 0, 1, 2, ... (i64) in the shape of t. */
Value *emit_positions(Build *b, const Type *t);

/* dy where `kept` equals `positions`, else 0: of values assigned to one place, only the one that
 * stayed has a gradient. */
Value *emit_kept(Build *b, Value *kept, Value *positions, Value *dy);

#endif
