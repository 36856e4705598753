/* step_made: random forwards with a loss, whose nodes differ much in bytes and seconds. */
#ifndef TENON_TEST_STEP_MADE_H
#define TENON_TEST_STEP_MADE_H

#include "gen.h"

/* The text of a forward of about so many nodes: products, pointwise ops, norms, softmax and views
 * of 512 to 8192 rows. blocks: most nodes lie in blocks of a few. */
const char *step_made(Arena *a, Rng *rng, int nodes, bool blocks);

#endif
