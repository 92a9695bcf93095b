/* What the CUDA files share. Types are the driver's, spelled without its header: CUresult int, CUdeviceptr uint64_t,
 * handles void *. */
#ifndef STRATA_QUOTA_CUDA_H
#define STRATA_QUOTA_CUDA_H

#include "quota.h"

#define CUDA_OUT_OF_MEMORY 2
#define PER_THREAD_STREAM ((void *)2) /* CU_STREAM_PER_THREAD: what no stream is in the _ptsz functions */

/* Mark of pieces in the MEMORY space; others are of the pool with that number. */
#define PLAIN 0u

/* The row of the calling thread's current device, or of device `ordinal`. */
int cuda_row_here(void);
int cuda_row(int ordinal);
/* The current device; -1 without a context. */
int cuda_device_here(void);
/* The name of a device by its UUID (16 bytes), as NVML and CUDA both know it. */
uint64_t cuda_key_of_uuid(const void *uuid);

/* The row of NVML's device: that numbers all of the machine, so ours is found by its UUID. */
int nvml_row(void *device);

/* Charge `bytes` (rounded as the driver does) to a row, as a piece of the current context; false: out of memory. */
bool cuda_begin(struct quota_piece *piece, int row, uint64_t bytes);
/* The driver has answered: record the piece, or give its charge back. Returns `result`. */
int cuda_end(const struct quota_piece *piece, int result, enum quota_space space, uint64_t address);
/* Call a driver's free for what has been charged: credit if it succeeds. */
#define CUDA_FREE(space, address, call)                                                                               \
    struct quota_piece piece;                                                                                         \
    bool is_known = !quota_limits()->off && pointers_take(space, address, &piece);                                    \
    int result = call;                                                                                                \
    cuda_freed(space, address, is_known ? &piece : NULL, result);                                                     \
    return result
/* Memory that an older record was of is gone: nothing else can lie at its address. */
void cuda_replaced(enum quota_space space, const struct quota_piece *older);
void cuda_freed(enum quota_space space, uint64_t address, const struct quota_piece *piece, int result);

/* cuda_pools.c: memory of stream-ordered pools, charged by what the pool holds. */
void pools_freed(uint32_t pool);

/* cuda_graphs.c: under capture an allocation becomes part of a graph and takes memory when that is launched. */
bool graphs_capture(void *stream, uint64_t address, uint64_t bytes);
bool graphs_is_capturing(void *stream);
/* Around a graph's launch (cores.c); false: out of memory. */
struct graph_launch {
    int device, row; /* device -1: nothing to do */
    uint64_t reserved;
};
bool graphs_begin_launch(void *exec, void *stream, struct graph_launch *launch);
void graphs_end_launch(const struct graph_launch *launch);

#endif
