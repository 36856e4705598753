/* Attention by products of whole blocks of queries and keys, each run by one thread: the library's
 * (onednn.h), made for one thread, or those of panels (flash_panel.h), by vectors or by AMX; what
 * its forward (flash_blocks.c) and backward (flash_blocks_backward.c) share.
 *
 * A task is a key head, or a part of its blocks of queries. The heads of a group stand in a block
 * side by side: row t group + g is query t of the group's head g, so that keys are read once for
 * all of them. Operands are copied densely, keys with zeros behind, so that a few shapes of the
 * library serve all blocks: products of a block and 1, 2, ... units of keys. Panels have any number
 * of rows: on the diagonal of causal attention they take a strip of keys at a time, and leave out
 * the queries before the first that sees one of it. */
#ifndef TENON_FLASH_BLOCKS_H
#define TENON_FLASH_BLOCKS_H

#include "flash_amx.h"
#include "../product/onednn.h"

typedef enum BlocksBy { BLOCKS_LIBRARY, BLOCKS_VECTORS, BLOCKS_AMX } BlocksBy;

typedef struct Blocks {
    Flash f;
    DType dtype;
    BlocksBy by;
    int64_t size;                /* of a head as it is copied; zeros to whole panels */
    int64_t queries, rows;       /* of a block; rows are padded to whole vectors */
    int64_t count, parts;        /* blocks; tasks of a key head, among which they are dealt */
    unsigned used;               /* bit u - 1: some block meets just u units of keys, at its end */
    int64_t unit, steps, padded; /* keys: of a unit; units of a block; all, to whole units */
    int64_t strip;               /* keys that a block takes where not all its queries see them */
    int64_t ntask, nslot;        /* slot s runs every nslot-th task and has its own workspace */
    int64_t nbytes, scratch;     /* of a slot's workspace; of which at its end the library's */
} Blocks;

/* Bytes of an element. */
INLINE int64_t blocks_width(const Blocks *s)
{
    return s->dtype == F32 ? 4 : 2;
}

/* What products take of a block and n keys. */
typedef OneProduct BlockProduct(const Blocks *s, int which, int64_t nkeys);

/* Exponentials of bf16 are powers of 2 (tile_exp2). A difference of scores is formed before it is
 * scaled: that of the greatest is 0, and the least f32, as a mask, does not overflow. */
#define BLOCKS_LOG2E 1.44269504f

/* What scores are still to be multiplied by: a mask was added to scaled ones. */
INLINE float blocks_scale(const Blocks *s, const Tensor *mask)
{
    return mask ? 1.0f : (float)s->f.scale;
}
/* The same of scores of turned queries. */
INLINE float blocks_above(const Blocks *s, const Tensor *mask)
{
    return mask ? 1.0f : (float)s->f.above;
}
/* A block's queries times s->f.turn. */
void blocks_turn(const Blocks *s, char *q);

/* rows x columns without gaps; turned: their transpose lies in memory. */
OneMatrix blocks_dense(DType d, int64_t rows, int64_t columns, bool turned);

/* Sizes of a call whose q is operand `first`. */
Blocks blocks_of(const Call *c, int first, BlocksBy by);
bool blocks_accept(const Call *c, int first, int count);
/* Sets scratch to the most that any of `count` products of the library takes. */
void blocks_scratch(Ctx *ctx, const Node *n, Blocks *s, BlockProduct *describe, int count);
/* Product i of u units of slot s is at [(s count + i) steps + u - 1]. */
OneRun **blocks_make(Arena *a, const Node *n, const Blocks *s, BlockProduct *describe, int count);

int64_t blocks_handles(const Blocks *s,
                       int count); /* bytes of what blocks_make() makes, measured */

/* The next nbytes of a slot's workspace, or of none; *at counts them. */
INLINE char *blocks_take(char *work, int64_t *at, int64_t nbytes)
{
    char *from = work ? work + *at : NULL;
    *at += (nbytes + 63) / 64 * 64;
    return from;
}

/* The keys that block i sees, and whether it is one of part `which`: there and back, so that parts
 * of causal attention cost the same. */
int64_t blocks_seen(const Blocks *s, int64_t i);
bool blocks_deal(const Blocks *s, int64_t i, int64_t which);

/* Runs all tasks: those of a slot in turn, until one gives a status that is not 0, which fails the
 * call. status: room for one of each slot. */
typedef int BlocksTask(const Call *c, int64_t slot, int64_t i);
int blocks_run(Call *c, const Blocks *s, int *status, BlocksTask *task);

/* How many keys, from `key` on, block i takes at once; its rows before the first that sees a key.
 */
int64_t blocks_keys(const Blocks *s, int64_t i, int64_t key);
int64_t blocks_unseen(const Blocks *s, int64_t i, int64_t key);

void blocks_multiply(const Blocks *s, const PanelProduct *x);

/* Queries of block i, the last perhaps shorter; keys to whole units. */
INLINE int64_t blocks_queries(const Blocks *s, int64_t i)
{
    return MIN(s->queries, s->f.queries - i * s->queries);
}
INLINE int64_t blocks_units(const Blocks *s, int64_t nkeys)
{
    return (nkeys + s->unit - 1) / s->unit;
}

/* Fetches the row of a head that is read or written BLOCKS_AHEAD rows later: rows of a head are
 * further apart than the processor looks by itself. */
enum { BLOCKS_AHEAD = 8 };
INLINE void blocks_fetch(const Blocks *s, const Tensor *t, int64_t b, int64_t i, int64_t h)
{
    int64_t width = blocks_width(s);
    const char *row = t->data + flash_at(t, b, i, h) * width;
    for (int64_t at = 0; at < t->dim[3] * width; at += 64)
        __builtin_prefetch(row + at);
}

/* Copies rows of a key head, of the n first: those of unit u, of all units; the rows of block i of
 * a group's heads. Rows have `size` elements; zeros are behind what there is. */
void blocks_load_unit(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t n,
                      int64_t u, char *to);
void blocks_load_keys(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t n,
                      char *to);
void blocks_load(const Blocks *s, const Tensor *t, int64_t b, int64_t head, int64_t i, char *to);
/* The way back of one row, rounded. */
void blocks_put(const Blocks *s, const Tensor *t, int64_t b, int64_t i, int64_t h,
                const float *row);

/* ---- the kernels ---- */

bool flash_blocks_accepts(const Call *c);
int64_t flash_blocks_workspace(Ctx *ctx, const Call *c);
int64_t flash_blocks_handles(const Call *c);
void flash_blocks_prepare(Call *c, Arena *a);
int flash_blocks_run(Call *c);

bool flash_panels_accepts(const Call *c);
int64_t flash_panels_workspace(Ctx *ctx, const Call *c);
void flash_panels_prepare(Call *c, Arena *a);
int flash_panels_run(Call *c);

bool flash_amx_accepts(const Call *c);
int64_t flash_amx_workspace(Ctx *ctx, const Call *c);
void flash_amx_prepare(Call *c, Arena *a);

bool flash_blocks_backward_accepts(const Call *c);
int64_t flash_blocks_backward_workspace(Ctx *ctx, const Call *c);
int64_t flash_blocks_backward_handles(const Call *c);
void flash_blocks_backward_prepare(Call *c, Arena *a);
int flash_blocks_backward_run(Call *c);

bool flash_panels_backward_accepts(const Call *c);
int64_t flash_panels_backward_workspace(Ctx *ctx, const Call *c);
void flash_panels_backward_prepare(Call *c, Arena *a);

bool flash_amx_backward_accepts(const Call *c);
int64_t flash_amx_backward_workspace(Ctx *ctx, const Call *c);
void flash_amx_backward_prepare(Call *c, Arena *a);

#endif
