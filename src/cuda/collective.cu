/* Collectives on CUDA (op/collective.c): what they need of memory. As calls they begin what the
 * rank's comm does (exec/collective.c), in the host's memory, to which pass stage copies. */
#include "cuda.cuh"

static bool accepts(const Call *c)
{
    bool all = true;
    for (int i = 0; i < c->nin; i++)
        all &= tensor_contiguous(&c->in[i]);
    return all;
}

#define MOVES                                                               \
    {                                                                       \
        {.name = "ranks", .accepts = accepts, .run = collective_alone}, {}, \
    }
#define REDUCES                            \
    {                                      \
        {.name = "ranks",                  \
         .accepts = accepts,               \
         .workspace = collective_received, \
         .run = collective_alone},         \
            {},                            \
    }

CUDA_KERNELS(all_reduce) = REDUCES;
CUDA_KERNELS(reduce_scatter_tensor) = REDUCES;
CUDA_KERNELS(all_gather_into_tensor) = MOVES;
CUDA_KERNELS(all_to_all_single) = MOVES;
CUDA_KERNELS(broadcast) = MOVES;
CUDA_KERNELS(permute_tensor) = MOVES;
