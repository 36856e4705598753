/* What stands in for a GPU in tests. */
#ifndef TENON_CUDA_STAND_IN_H
#define TENON_CUDA_STAND_IN_H

/* Has the program linked with a driver for the device cuda, in emulated memory; returns that. */
const struct Driver *cuda_stand_in(void);

#endif
