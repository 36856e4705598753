/* CRC-32C (Castagnoli; RFC 3720, B.4), the checksum of tensors in checkpoints. What is summed here
 * is the remainder alone, from 0 and without the last complement: that is linear, so that sums of a
 * tensor's pieces, each moved by the bytes after it, add up (by exclusive or) to the tensor's,
 * whoever has them and in which order. A processor's instruction takes eight bytes of each of three
 * runs at once, which hides that each waits for the one before it; without one tables do. */
#include "io.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* bit 31 is the coefficient of 1 */

/* ---- moving ---- */

/* s times t modulo the polynomial. */
static uint32_t times(uint32_t s, uint32_t t)
{
    uint32_t product = 0;
    for (int i = 31; i >= 0; i--) {
        product ^= t & -(s >> i & 1);
        t = t >> 1 ^ (POLYNOMIAL & -(t & 1));
    }
    return product;
}

uint32_t crc32c_move(uint32_t sum, int64_t n)
{
    uint32_t power = 1u << 23; /* x^8, a byte */
    for (; n; n >>= 1, power = times(power, power))
        if (n & 1)
            sum = times(power, sum);
    return sum;
}

/* ---- a run ---- */

static uint32_t by_bits(uint32_t sum, const char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        sum ^= (unsigned char)p[i];
        for (int k = 0; k < 8; k++)
            sum = sum >> 1 ^ (POLYNOMIAL & -(sum & 1));
    }
    return sum;
}

static void make_table(uint32_t t[8][256])
{
    for (int i = 0; i < 256; i++)
        t[0][i] = by_bits(0, (const char[]){(char)i}, 1);
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255];
}

static uint32_t by_table(uint32_t sum, const char *p, int64_t n)
{
    uint32_t t[8][256];
    uint64_t word;
    make_table(t);
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        word ^= sum;
        sum = 0;
        for (int k = 0; k < 8; k++)
            sum ^= t[7 - k][word >> 8 * k & 255];
    }
    return by_bits(sum, p, n);
}

#ifdef TN_X86
enum { SPAN = 8192 }; /* bytes of each of the three */

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t sum, const char *p,
                                                                 int64_t n)
{
    const uint32_t move1 = crc32c_move(1u << 31, SPAN), move2 = times(move1, move1);
    uint64_t s = sum, s1, s2, word[3];
    for (; n >= 3 * SPAN; p += 3 * SPAN, n -= 3 * SPAN) {
        s1 = s2 = 0;
        for (int at = 0; at < SPAN; at += 8) {
            memcpy(&word[0], p + at, 8);
            memcpy(&word[1], p + SPAN + at, 8);
            memcpy(&word[2], p + 2 * SPAN + at, 8);
            s = __builtin_ia32_crc32di(s, word[0]);
            s1 = __builtin_ia32_crc32di(s1, word[1]);
            s2 = __builtin_ia32_crc32di(s2, word[2]);
        }
        s = times(move2, (uint32_t)s) ^ times(move1, (uint32_t)s1) ^ (uint32_t)s2;
    }
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word[0], p, 8);
        s = __builtin_ia32_crc32di(s, word[0]);
    }
    for (; n; p++, n--)
        s = __builtin_ia32_crc32qi((uint32_t)s, (unsigned char)*p);
    return (uint32_t)s;
}
#endif

uint32_t crc32c_add(uint32_t sum, const void *data, int64_t n)
{
#ifdef TN_X86
    if (isa_level() != ISA_BASE) /* what has AVX2 has it */
        return by_instruction(sum, data, n);
#endif
    return by_table(sum, data, n);
}

uint32_t crc32c_end(uint32_t sum, int64_t n)
{
    return ~(sum ^ crc32c_move(UINT32_MAX, n));
}
