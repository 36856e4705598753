/* offload, reload and wait_tensor on CUDA (transfer.c): the first two copy between the memories, by
 * the stream of their queue; the last has nothing to do where its result is its operand's memory.
 */
#include "copy.cuh"

static bool accepts(const Call *c)
{
    return tensor_contiguous(&c->in[0]);
}

static int run(Call *c)
{
    size_t nbytes = (size_t)(tensor_nelem(&c->in[0]) * dtype_size(c->in[0].dtype));
    if (!nbytes)
        return 0;
    cudaError_t e = cudaMemcpyAsync(c->out[0].data, c->in[0].data, nbytes, cudaMemcpyDefault,
                                    (cudaStream_t)c->stream);
    return e == cudaSuccess ? 0 : run_fail(c, "CUDA: %s", cudaGetErrorString(e));
}

static bool wait_accepts(const Call *c)
{
    (void)c;
    return true;
}

static int wait_run(Call *c)
{
    return cuda_copy(c, &c->out[0], &c->in[0]);
}

CUDA_KERNELS(offload) = {{.name = "copy", .accepts = accepts, .run = run}, {}};
CUDA_KERNELS(reload) = {{.name = "copy", .accepts = accepts, .run = run}, {}};
CUDA_KERNELS(wait_tensor) = {{.name = "wait", .accepts = wait_accepts, .run = wait_run}, {}};
