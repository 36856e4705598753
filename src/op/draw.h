/* draw: words of random.c over many counters at once, for kernels on the processor. */
#ifndef TENON_DRAW_H
#define TENON_DRAW_H

#include "op.h"

enum { DRAWN = 256 }; /* positions whose words are drawn at a time, a multiple of 4 */

/* The source of random words. */
typedef struct DrawKey {
    uint64_t seed;
    uint32_t stream, step;
} DrawKey;

/* Draws the words of n positions from `position` on, n at most DRAWN - position % 4: returns where
 * the first one's is. */
const uint32_t *draw_words(const DrawKey *s, uint64_t position, int n, uint32_t word[DRAWN]);

#endif
