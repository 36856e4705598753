/* Stores that bypass the caches. Such a store writes a full line without reading it first, as a
 * store through the caches does; for a result too large for the caches that read is a third of the
 * traffic of a copy. */
#include "base.h"

#include <string.h>

enum { LINE = 64 };

bool stream_worth(int64_t nbytes)
{
    return nbytes > (int64_t)32 << 20; /* more than most last-level caches */
}

#ifdef TN_X86
#include <immintrin.h>

/* n whole lines, to aligned ones. Where a line takes several stores they are combined only if none
 * of another line comes between. */
__attribute__((target("avx512f"))) static void lines64(char *to, const char *from, int64_t n)
{
    for (int64_t i = 0; i < n * LINE; i += 64)
        _mm512_stream_si512((__m512i *)(void *)(to + i), _mm512_loadu_si512(from + i));
}

static void lines16(char *to, const char *from, int64_t n)
{
    for (int64_t i = 0; i < n * LINE; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}

void stream_store(void *to, const void *from, int64_t nbytes)
{
    int64_t head = MIN(nbytes, (int64_t)(-(uintptr_t)to % LINE)), n = (nbytes - head) / LINE;
    char *line = (char *)to + head;
    const char *rest = (const char *)from + head;
    memcpy(to, from, (size_t)head);
    (isa_level() >= ISA_AVX512 ? lines64 : lines16)(line, rest, n);
    memcpy(line + n * LINE, rest + n * LINE, (size_t)(nbytes - head - n * LINE));
}

void stream_end(void)
{
    _mm_sfence();
}

#else

void stream_store(void *to, const void *from, int64_t nbytes)
{
    memcpy(to, from, (size_t)nbytes);
}

void stream_end(void)
{
}

#endif
