/* Tells which places of equal blocks are the same, by scopes ("layers.3.mlp"). */
#ifndef TENON_PASS_BLOCK_H
#define TENON_PASS_BLOCK_H

#include "pass.h"

/* The scope with its first `most` numbers as asterisks: "layers.*.mlp". */
const char *scope_alike(Arena *a, const char *scope, int most);
/* Equal for what stands at one place of equal blocks and is alike by `what`. count: of these keys,
 * by scope; the caller's, empty at first. */
const char *place_key(Arena *a, Map *count, const char *scope, int most, const char *what);

#endif
