/* case: the problems of tests/op/NAME.case, one a line, and the tensors that they describe. The
 * grammar of a line is in case.c. */
#ifndef TENON_TEST_CASE_H
#define TENON_TEST_CASE_H

#include "../../src/op/op.h"

typedef enum { LAYOUT_PLAIN, LAYOUT_SWAPPED, LAYOUT_SLICED, LAYOUT_EXPANDED } CaseLayout;

typedef struct CaseOperand {
    Type type;
    double lo, hi; /* values, both ends included for integers */
    bool ranged;   /* the line states lo and hi */
    CaseLayout layout;
    bool documents;
    int axis; /* the expanded one */
} CaseOperand;

/* One line. op is the stem of the file's name. */
typedef struct Case {
    const char *file;
    int line;
    uint64_t seed; /* of the operands' values: a hash of the line's text */
    const Op *op;
    CaseOperand *in;
    int nin;
    AttrArg *attr; /* ends with a zero element */
    int nattr;
    int64_t stream;                                  /* -1 where the line has none */
    double tol;                                      /* relative to the greatest result */
    const char *nograd, *nosplit, *error, *runerror; /* NULL where the line has none */
} Case;

/* The problems of one file in the file's order; fails with file:line. */
Case *case_read(Arena *a, const Op *op, const char *path, int *count);

/* The case's node on new inputs x0, x1, ... of g, with its dtypes. */
Node *case_emit(Build *b, const Case *c);

/* The case's node on operands of its types, where floating-point dtypes became f64. */
Node *case_emit_wide(Build *b, const Case *c, Value *const *in);

/* The same node and attributes on operands `in`, where floating-point dtypes became f64: dtype
 * attributes follow. */
Node *emit_wide(Build *b, const Node *n, Value *const *in);

/* g, without loops, in f64. */
Graph *graph_wide(Arena *a, const Graph *g);

/* t, with a floating-point dtype widened to f64. */
Type type_wide(const Type *t);

/* ---- memory ---- */

/* Memory that a device reaches too: of programs that have these it is all that tensors lie in. */
void *shared_alloc(size_t nbytes) __attribute__((weak));
void shared_free(void *p) __attribute__((weak));

/* nbytes of memory at a 64-byte boundary between two canaries, filled with `fill`; freed with a. */
char *guarded_alloc(Arena *a, int64_t nbytes, int fill);
/* Whether both canaries are as they were. */
bool guarded_intact(const char *data, int64_t nbytes);

/* A contiguous tensor of type t in guarded memory. */
Tensor tensor_new(Arena *a, const Type *t, int fill);
int64_t tensor_nbytes(const Tensor *t); /* of a contiguous one */

/* A contiguous copy, values converted to dtype d (exact between integer dtypes). */
Tensor tensor_copy(Arena *a, const Tensor *t, DType d);
/* Copies values between tensors of equal shapes, any dtypes and strides. */
void tensor_assign(const Tensor *to, const Tensor *from);
bool tensor_same_bits(const Tensor *s, const Tensor *t); /* contiguous, equal types */

/* Strides of y as a part that begins one element into a larger tensor: the axes from `axis` on are
 * a block, after which come a few elements of others; axis = rank: a block is one element. Returns
 * the elements of the larger tensor. */
int64_t part_lay(Tensor *y, int axis);
/* Whether nothing but such a part was written into its guarded tensor of nelem elements, all bytes
 * of which were `fill`. */
bool part_alone(Arena *a, const Tensor *y, int64_t nelem, int fill);

/* Operand i of the case in the layout that the line asks for; step is the last axis' stride where
 * the layout is a slice. mem and span give the storage that it lies in. */
Tensor case_operand(Arena *a, const Case *c, int i, int step, char **mem, int64_t *span);

#endif
