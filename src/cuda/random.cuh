/* Philox4x32-10 on a GPU, as random.c of base on the processor: a number depends on seed, stream,
 * step and position alone, and is the same there and here. And what one element of dropout is. Part
 * of what is compiled at run time too: it includes nothing but element.cuh. */
#ifndef TENON_RANDOM_CUH
#define TENON_RANDOM_CUH

#include "element.cuh"

/* The source of random words. */
struct Stream {
    unsigned long long seed;
    unsigned stream, step;
};

struct Words {
    unsigned word[4];
};

/* The four words of positions 4 * block to 4 * block + 3. */
__device__ inline Words draw_four(const Stream &s, unsigned long long block)
{
    unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32), c2 = s.stream, c3 = s.step;
    unsigned k0 = (unsigned)s.seed, k1 = (unsigned)(s.seed >> 32);
    for (int round = 0; round < 10; round++) {
        unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
        c1 = (unsigned)p1;
        c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
        c3 = (unsigned)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

/* The word of one position. */
__device__ inline unsigned draw_word(const Stream &s, unsigned long long position)
{
    Words w = draw_four(s, position / 4);
    unsigned low = position & 1 ? w.word[1] : w.word[0];
    unsigned high = position & 1 ? w.word[3] : w.word[2];
    return position & 2 ? high : low;
}

/* The words of N neighbours: four at a time where they begin a block of four. */
template <int N>
__device__ inline void draw_some(const Stream &s, unsigned long long position, unsigned (&word)[N])
{
    if (N % 4 == 0 && position % 4 == 0)
        for (int k = 0; k < N / 4; k++) {
            Words w = draw_four(s, position / 4 + k);
            for (int i = 0; i < 4; i++)
                word[4 * k + i] = w.word[i];
        }
    else
        for (int k = 0; k < N; k++)
            word[k] = draw_word(s, position + k);
}

/* Whether dropout keeps the element of a word. The upper 24 bits are a uniform number in [0, 1): it
 * is at least p where these are at least p * 2^24, rounded up: `least`. */
__device__ inline bool word_kept(unsigned word, unsigned least)
{
    return word >> 8 >= least;
}

/* scale: 1 / (1 - p). */
template <typename T>
__device__ inline T lane_dropout(T x, unsigned word, unsigned least, double scale)
{
    return word_kept(word, least) ? narrow<T>(wide(x) * (wide_t<T>)scale) : T{};
}

#endif
