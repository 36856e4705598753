/* The way of a `fused` body through its tiles: made once (fused_tiling.c), run by fused_tiles.c. */
#ifndef TENON_FUSED_TILES_H
#define TENON_FUSED_TILES_H

#include "fused.h"

enum {
    TILE_BUFFER = 32768
}; /* bytes: with 8 bytes an element FUSED_MOST slots of 64 elements fit */

/* A value's place while a tile is worked on. RUNS: an operand that broadcasts, in whose runs a lane
 * reads it where it lies. WHOLE: an operand of one element, or one that every row reads from its
 * beginning. END: a result that is there after the last row. */
typedef enum { AT_OPERAND, AT_RESULT, AT_SLOT, AT_RUNS, AT_WHOLE, AT_CONSTANT, AT_END } At;

typedef struct TilePlace {
    At at;
    int index;   /* of the operand, result, slot, or step of a constant */
    int size;    /* of an element, bytes */
    bool by_row; /* one element for each row */
} TilePlace;

/* An operand that is copied into a slot, or a result that is copied out of one. */
typedef struct TileMove {
    int index;
    TilePlace slot;
    Walk walk; /* of the slot's value, then the tensor */
} TileMove;

typedef struct TileStep {
    const RowKernel *rows; /* NULL: the lane */
    LaneFn lane;
    Call call;  /* of rows */
    bool slots; /* some of its tensors are */
    int64_t work;
    TilePlace *in, *out;
    int nin, nload, nstore;
    TileMove *load, *store;
    Walk *runs;               /* of the lane's values where an operand broadcasts, else NULL */
    bool fetch[ROW_OPERANDS]; /* whether it is the first to read this operand from outside */
    bool leaves;              /* nothing in the body reads the result */
    _Alignas(8) char constant[8];
} TileStep;

typedef struct Tiling {
    int nstep;
    int nslot[2];           /* of all elements; of one for each row */
    int64_t slot_bytes[2];  /* of one of these */
    int64_t nelem, row;     /* row: 1 without ops along rows */
    int64_t tile;           /* elements of a tile; rows that stay together */
    int64_t buffer, nlocal; /* bytes; buffers in the workspace, 0: on the stack */
    int64_t local;          /* where they begin there */
    int64_t nbytes_work;
    bool ahead; /* no near cache holds the operands: they are fetched ahead */
    bool far;   /* no cache holds the results: they go past */
    TileStep *step;
} Tiling;

/* Lives in a. */
Tiling *tiling_make(const Call *c, Arena *a);

#endif
