/* onednn: matrix products of the library oneDNN, 2.6 or 3.x. onednn.c alone knows its interface;
 * all others describe matrices and products as below, and are given sizes, and what runs one. */
#ifndef TENON_ONEDNN_H
#define TENON_ONEDNN_H

#include "../ir/ir.h"

/* ---- what is multiplied ---- */

/* A matrix, or with rank 3 a batch of them (one repeated: dim[0] = 1). Strides in elements. */
typedef struct OneMatrix {
    DType dtype; /* F32 or BF16 */
    int rank;
    int64_t dim[3], stride[3];
    bool own; /* operands: multiplied in the layout that the library likes best, into which
                 onednn_pack() brings what lies by these strides */
} OneMatrix;

/* y = a b, + bias (one row for all of y), or + what lies in y before. All of one rank. Sums are in
 * f32, rounded once. */
typedef struct OneProduct {
    OneMatrix a, b, y, bias;
    bool has_bias, adds;
    bool alone; /* for one thread, whatever par_threads(): several threads run one each; operands
                   are packed by all */
} OneProduct;

/* Sizes up to which a product is right: beyond them the library, which counts in 32 bits in places,
 * crashes or sums what lies elsewhere. */
enum {
    ONE_MOST_SIZE = INT32_MAX, /* rows, columns, matrices of a batch */
    ONE_MOST_LEADING = 1 << 23 /* elements from row to row, or column to column, of a matrix without
                                  a gap after it */
};

/* Whether the library can describe m: elements that do not overlap. */
bool onednn_describes(const OneMatrix *m);

/* ---- what it takes: asked once, then remembered in ctx ---- */

/* Bytes: of workspace, and of operands in the library's own layout; 0 where what it likes best is
 * how they lie, which are then multiplied as they are. */
typedef struct OneRoom {
    int64_t scratch, a, b;
} OneRoom;

bool onednn_has(Ctx *ctx, const OneProduct *p); /* whether there is such a product */
/* Fails where there is none, with n's name (NULL: of no node). Makes no primitive. */
OneRoom onednn_room(Ctx *ctx, const Node *n, const OneProduct *p);

/* ---- one product, made to be run ---- */

typedef struct OneRun OneRun;

/* Its handles are dropped with a; par_threads() is what it will be in onednn_run(). */
OneRun *onednn_make(Arena *a, const Node *n, const OneProduct *p);
/* Another that may run at the same time: of the same primitives, which must live longer. */
OneRun *onednn_twin(Arena *a, const Node *n, const OneRun *run);
/* Brings operand b (a) from data, as it was described, into own: only where OneRoom says that
 * this takes bytes. Like onednn_run() it allocates nothing and returns the library's status: 0
 * done. */
int onednn_pack(OneRun *run, bool of_b, const void *data, void *own, void *scratch);
/* bias NULL where it has none. Several may run at once, but not one of them in two threads. */
int onednn_run(OneRun *run, const void *a, const void *b, const void *bias, void *y, void *scratch);

/* ---- the library ---- */

/* The instruction set that it uses here: no more than TN_ISA or its own ONEDNN_MAX_CPU_ISA allows.
 */
Isa onednn_isa(void);
unsigned onednn_isa_bits(void); /* the same in its own code, with all that is between these */

/* Bytes that it allocates by itself beside scratchpads, as measured with this version; rounded
 * up. */
typedef struct OneKeeps {
    int64_t once;        /* code of all shapes and layouts of a model, small buffers */
    int64_t each_thread; /* buffers for packed operands, which processors without AVX-512 need */
    int64_t each_run;    /* a OneRun's primitives, memories and stream, packing included */
    int64_t each_twin;   /* onednn_twin()'s memories and stream */
    int64_t gemm;        /* a thread's buffers of the packed gemm (operands with gaps), at most; */
    int gemm_threads;    /* beyond so many threads they are smaller */
} OneKeeps;

OneKeeps onednn_keeps(void);

enum { ONE_VERSION = 24 };
const char *onednn_version(char text[ONE_VERSION]); /* fills text: "2.6.3" */

#endif
