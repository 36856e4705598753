/* Work on the GPU (memory.cu) for the driver of cuda (device_cuda.c). Everything is given to a
 * stream; `found` is memory of the GPU, 0 before: atomics on the host's, one after the other over
 * the bus, take a microsecond each. */
#ifndef TENON_EXEC_CUDA_H
#define TENON_EXEC_CUDA_H

#include <stdint.h>

/* *to = x. */
void cuda_store(void *stream, int64_t *to, int64_t x);
/* Raises *found to the end of the last line of `line` bytes of which one is another. */
void cuda_high(void *stream, const void *p, uint8_t byte, int64_t nbytes, int line,
               unsigned long long *found);
/* Sets *found to 1 where an element of t, a Tensor of floats, is not finite, or all bytes `poison`
 * where that is not 0. */
void cuda_any(void *stream, const void *t, uint8_t poison, unsigned long long *found);
/* y = what reduction n makes of `count` members' elements x[i], in that order, to the bits of
 * collective_reduce. 0, or -1 with `size` bytes of reason (collective.cu). */
struct Node;
int cuda_merge_members(void *stream, const struct Node *n, int count, const void *const *x,
                       int64_t nelem, void *y, char *message, int size);

#endif
