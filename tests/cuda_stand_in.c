/* A driver for the device cuda that is the emulated device's, for tests where there is no GPU. Only
 * a program that calls cuda_stand_in() has it. */
#include "cuda_stand_in.h"

#include "../src/exec/exec.h"

#define driver_emulated driver_cuda /* of which the file makes another */
#include "../src/exec/device_emulated.c"

const Driver *cuda_stand_in(void)
{
    return &driver_cuda;
}
