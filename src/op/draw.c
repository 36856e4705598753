/* draw: Philox4x32-10 over neighbouring counters, as vectors: the words of philox() in
 * base/random.c. The four words of one counter serve four neighbouring positions. */
#include "draw.h"

/* word[4 i + j]: word j of counter first + i. All in 64 bits with the upper halves 0, where vectors
 * have the product of two halves. */
KERNEL(void, draw_block, (const DrawKey *s, uint64_t first, int count, uint32_t *word),
       (s, first, count, word))
{
    const uint64_t low = 0xffffffff;
    const uint64_t key0 = s->seed & low, key1 = s->seed >> 32, stream = s->stream, step = s->step;
    for (int i = 0; i < count; i++) {
        uint64_t c0 = (first + (uint64_t)i) & low, c1 = (first + (uint64_t)i) >> 32;
        uint64_t c2 = stream, c3 = step, k0 = key0, k1 = key1;
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * (uint32_t)c0;
            uint64_t p1 = (uint64_t)0xCD9E8D57u * (uint32_t)c2;
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c1 = p1 & low;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c3 = p0 & low;
            k0 = (k0 + 0x9E3779B9u) & low;
            k1 = (k1 + 0xBB67AE85u) & low;
        }
        word[4 * i] = (uint32_t)c0;
        word[4 * i + 1] = (uint32_t)c1;
        word[4 * i + 2] = (uint32_t)c2;
        word[4 * i + 3] = (uint32_t)c3;
    }
}

const uint32_t *draw_words(const DrawKey *s, uint64_t position, int n, uint32_t word[DRAWN])
{
    int skip = (int)(position % 4);
    draw_block(s, position / 4, (skip + n + 3) / 4, word);
    return word + skip;
}
