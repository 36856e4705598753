/* The kernel onednn_tiles of mm and addmm (matmul_tiles.c); the list of kernels is in
 * matmul_onednn.c. */
#ifndef TENON_MATMUL_TILES_H
#define TENON_MATMUL_TILES_H

#include "../op/op.h"

bool matmul_tiles_accepts(const Call *c);
int64_t matmul_tiles_workspace(Ctx *ctx, const Call *c);
void matmul_tiles_prepare(Call *c, Arena *a);
int matmul_tiles_run(Call *c);

#endif
