/* How many threads work on a row of n elements. Kernels along rows (rows.cuh) and what writes the
 * texts of bodies of `fused` (fused_segment.c, fused_text.c) include it, so it is C as well. A row
 * is worked on by a team of row_team(n) threads, in blocks of row_block(n):
 *
 *   n                threads of a team   of a block   rows of a block
 *   0 ... 1024       32 (a warp)         128          4
 *   1025 ... 8192    256                 256          1
 *   8193 ...         512                 512          1 */
#ifndef TENON_TEAM_CUH
#define TENON_TEAM_CUH

#ifdef __cplusplus
#define TEAM_SIZE __host__ __device__ constexpr
#else
#define TEAM_SIZE static inline
#endif

enum {
    WARP = 32,
    WARP_ROW = 1024,  /* the longest row of a warp */
    SHORT_ROW = 8192, /* of 256 threads */
    HELD_ROW = 16384  /* that registers hold: at most 4 packs a thread */
};

TEAM_SIZE int row_team(long long n)
{
    return n <= WARP_ROW ? WARP : n <= SHORT_ROW ? 256 : 512;
}
TEAM_SIZE int row_block(long long n)
{
    return n <= WARP_ROW ? 128 : row_team(n);
}
/* The rows of a block. */
TEAM_SIZE int row_count(long long n)
{
    return row_block(n) / row_team(n);
}

#endif
