/* A driver for the device cuda that is the emulated device's, but that it has something to wait for
 * behind what is given to a queue, and that this takes its time, as on a GPU. For tests where there
 * is none; only a program that calls cuda_stand_in() has it. */
#include "cuda_stand_in.h"

#include "../../src/exec/exec.h"

#define driver_emulated driver_beside /* of which the file makes another */
#include "../../src/exec/device_emulated.c"

enum { WAIT_NSEC = 3000000 };

static void wait_long(void *stream)
{
    (void)stream;
    nanosleep(&(struct timespec){0, WAIT_NSEC}, NULL);
}

static StreamWork slow_work;

__attribute__((constructor)) static void fill_slow_work(void)
{
    slow_work = host_work;
    slow_work.wait_for = wait_long;
}

const Driver driver_cuda = {
    .available = memory_available,
    .map = map,
    .unmap = memory_unmap,
    .open = open_queues,
    .launch = launch,
    .record = record,
    .wait = wait_for,
    .finish = finish,
    .work = &slow_work,
};

const Driver *cuda_stand_in(void)
{
    return &driver_cuda;
}
