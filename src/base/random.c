/* Philox4x32-10 and the distributions drawn from it (Salmon, Moraes, Dror, Shaw: Parallel Random
 * Numbers: As Easy as 1, 2, 3, SC 2011). Ten rounds of two 32x32-bit products; passes BigCrush. */
#include "base.h"

#include <math.h>

void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void draw(uint64_t seed, uint32_t stream, uint32_t step, uint64_t block, uint32_t word[4])
{
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), stream, step};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox(counter, key, word);
}

float random_uniform(uint64_t seed, uint32_t stream, uint32_t step, uint64_t position)
{
    uint32_t word[4];
    draw(seed, stream, step, position / 4, word);
    return (float)(word[position % 4] >> 8) * 0x1p-24f;
}

float random_normal(uint64_t seed, uint32_t stream, uint32_t step, uint64_t position)
{
    uint32_t word[4];
    draw(seed, stream, step, position / 2, word);
    const uint32_t *w = word + 2 * (position % 2);
    double u = ((double)w[0] + 1.0) * 0x1p-32, t = (double)w[1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * t));
}
