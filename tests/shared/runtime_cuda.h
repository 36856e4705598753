/* A stand-in for CUDA's runtime, in the host's memory, for tests of src/exec/device_cuda.c
 * where there is no GPU. */
#ifndef TENON_RUNTIME_CUDA_H
#define TENON_RUNTIME_CUDA_H

#include <stdint.h>

/* Has a stream call run() with a copy of size bytes at arg; or a graph, while this thread captures.
 */
void runtime_push(void *stream, void (*run)(void *arg), const void *arg, uint64_t size);
/* Makes the kernels of the device cuda from those of the processor; a call of one is run by its
 * stream. Before anything is planned. */
void runtime_kernels(void);
/* Work of streams begins up to so many microseconds later; 0: at once. */
void runtime_delay(int usec);
/* GPUs that there are (1). */
void runtime_count(int count);

typedef struct RuntimeSeen {
    int64_t graphs, launched, called; /* captured; given to a stream; functions of the host */
} RuntimeSeen;
RuntimeSeen runtime_seen(void); /* since the program began, of all threads */

#endif
