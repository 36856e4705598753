/* library: oneDNN's interface as products (onednn.c) and convolutions (onednn_conv.c) use it. */
#ifndef TENON_LIBRARY_H
#define TENON_LIBRARY_H

#include "onednn.h"
#include "../op/op.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

/* ---- how a tensor lies in memory: a pointer in both versions ---- */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t Lies; /* how a matrix lies in memory */
typedef const_dnnl_memory_desc_t LiesThere;

INLINE dnnl_status_t lies_new(Lies *x, int rank, const dnnl_dims_t dim, dnnl_data_type_t dtype,
                              const dnnl_dims_t stride)
{
    return dnnl_memory_desc_create_with_strides(x, rank, dim, dtype, stride);
}

INLINE dnnl_status_t lies_any(Lies *x, int rank, const dnnl_dims_t dim, dnnl_data_type_t dtype)
{
    return dnnl_memory_desc_create_with_tag(x, rank, dim, dtype, dnnl_format_tag_any);
}

INLINE void lies_drop(Lies x)
{
    if (x)
        dnnl_memory_desc_destroy(x);
}

#else

typedef dnnl_memory_desc_t *Lies;
typedef const dnnl_memory_desc_t *LiesThere;

INLINE dnnl_status_t lies_new(Lies *x, int rank, const dnnl_dims_t dim, dnnl_data_type_t dtype,
                              const dnnl_dims_t stride)
{
    *x = calloc(1, sizeof **x);
    return *x ? dnnl_memory_desc_init_by_strides(*x, rank, dim, dtype, stride) : dnnl_out_of_memory;
}

INLINE dnnl_status_t lies_any(Lies *x, int rank, const dnnl_dims_t dim, dnnl_data_type_t dtype)
{
    *x = calloc(1, sizeof **x);
    return *x ? dnnl_memory_desc_init_by_tag(*x, rank, dim, dtype, dnnl_format_tag_any)
              : dnnl_out_of_memory;
}

INLINE void lies_drop(Lies x)
{
    free(x);
}

#endif

/* ---- handles ---- */

INLINE void drop_desc(dnnl_primitive_desc_t x)
{
    if (x)
        dnnl_primitive_desc_destroy(x);
}

INLINE void drop_primitive(dnnl_primitive_t x)
{
    if (x)
        dnnl_primitive_destroy(x);
}

INLINE void drop_memory(dnnl_memory_t x)
{
    if (x)
        dnnl_memory_destroy(x);
}

INLINE LiesThere scratch_of(const_dnnl_primitive_desc_t desc)
{
    return dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
}

INLINE int64_t size_of(LiesThere x)
{
    return (int64_t)dnnl_memory_desc_get_size(x);
}

/* Library functions take what they only read as void * too. */
INLINE dnnl_status_t set(dnnl_memory_t memory, const void *data)
{
    return dnnl_memory_set_data_handle(memory, (void *)(uintptr_t)data);
}

/* ---- onednn.c ---- */

/* Scratchpads are the caller's, sums in f32 whatever the environment says. */
dnnl_status_t onednn_attr(dnnl_primitive_attr_t *attr);
/* The library divides work among as many threads as there are when a primitive is described, keeps
 * it by as many as when it is made, and its plain gemm (f32 without AVX-512) asks again as it runs:
 * between these calls there is one for what is to run alone. The first's result is the second's. */
int onednn_begin(bool alone);
void onednn_end(int nthread);
dnnl_status_t onednn_create(dnnl_primitive_t *x, const_dnnl_primitive_desc_t desc, bool alone);
/* Returns a dnnl_status_t. */
int onednn_execute(dnnl_stream_t stream, dnnl_primitive_t primitive, bool alone, int nargs,
                   const dnnl_exec_arg_t *args);
/* Runs a reorder with its three memories; returns a dnnl_status_t. */
typedef struct OneReorder {
    dnnl_memory_t from, to, scratch;
} OneReorder;
int onednn_reorder(dnnl_stream_t stream, dnnl_primitive_t primitive, bool alone,
                   const OneReorder *memory, const void *from, void *to, void *scratch);
/* Fails where status is none of success, with n's name (NULL: of no node). */
void onednn_need(dnnl_status_t status, Ctx *ctx, const Node *n, const char *what);
/* Nothing is described without an engine: a context has one, which holds no threads or cache. */
dnnl_engine_t onednn_engine(Ctx *ctx, const Node *n);
/* Tries whether there is room: oneDNN crashes where it cannot map its code. */
void onednn_check_room(Ctx *ctx, const Node *n);

#endif
