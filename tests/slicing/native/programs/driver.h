/* The driver as a program meets it: by a door, one of link, dlsym, default, next, gpa (flags 0, 1, 2) and gpa1. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long Address;

/* What is asked of the driver: name at the door of symbols, name at the door of cuGetProcAddress, its form. */
#define FUNCTIONS(F)                                                                                          \
    F(init, cuInit, cuInit, (unsigned))                                                                       \
    F(retain_context, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **, int))                     \
    F(release_context, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, (int))                        \
    F(reset_context, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, (int))                              \
    F(release_context_old, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, (int))                       \
    F(reset_context_old, cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, (int))                             \
    F(create_context, cuCtxCreate_v2, cuCtxCreate, (void **, unsigned, int))                                  \
    F(destroy_context, cuCtxDestroy_v2, cuCtxDestroy, (void *))                                               \
    F(set_context, cuCtxSetCurrent, cuCtxSetCurrent, (void *))                                                \
    F(synchronize, cuCtxSynchronize, cuCtxSynchronize, (void))                                                \
    F(alloc, cuMemAlloc_v2, cuMemAlloc, (Address *, size_t))                                                  \
    F(alloc_pitch, cuMemAllocPitch_v2, cuMemAllocPitch, (Address *, size_t *, size_t, size_t, unsigned))      \
    F(alloc_managed, cuMemAllocManaged, cuMemAllocManaged, (Address *, size_t, unsigned))                     \
    F(alloc_host, cuMemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                \
    F(free, cuMemFree_v2, cuMemFree, (Address))                                                               \
    F(set_memory, cuMemsetD8_v2, cuMemsetD8, (Address, unsigned char, size_t))                                \
    F(memory_info, cuMemGetInfo_v2, cuMemGetInfo, (size_t *, size_t *))                                       \
    F(total, cuDeviceTotalMem_v2, cuDeviceTotalMem, (size_t *, int))                                          \
    F(ipc_get, cuIpcGetMemHandle, cuIpcGetMemHandle, (void *, Address))                                       \
    F(ipc_open, cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, (Address *, struct Ipc, unsigned))                 \
    F(ipc_close, cuIpcCloseMemHandle, cuIpcCloseMemHandle, (Address))
#define NEW_FUNCTIONS(F)                                                                                      \
    F(alloc_async, cuMemAllocAsync, cuMemAllocAsync, (Address *, size_t, void *))                             \
    F(alloc_from_pool, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (Address *, size_t, void *, void *)) \
    F(free_async, cuMemFreeAsync, cuMemFreeAsync, (Address, void *))                                          \
    F(pool_create, cuMemPoolCreate, cuMemPoolCreate, (void **, const void *))                                 \
    F(pool_destroy, cuMemPoolDestroy, cuMemPoolDestroy, (void *))                                             \
    F(pool_trim, cuMemPoolTrimTo, cuMemPoolTrimTo, (void *, size_t))                                          \
    F(pool_default, cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (void **, int))                     \
    F(pool_of, cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, (void **, const void *, int))                  \
    F(pool_in_use, cuMemGetMemPool, cuMemGetMemPool, (void **, const void *, int))                            \
    F(pool_set, cuMemPoolSetAttribute, cuMemPoolSetAttribute, (void *, int, void *))                          \
    F(address_reserve, cuMemAddressReserve, cuMemAddressReserve,                                              \
      (Address *, size_t, size_t, Address, unsigned long long))                                               \
    F(create, cuMemCreate, cuMemCreate, (Address *, size_t, const void *, unsigned long long))                \
    F(release, cuMemRelease, cuMemRelease, (Address))                                                         \
    F(map, cuMemMap, cuMemMap, (Address, size_t, size_t, Address, unsigned long long))                        \
    F(unmap, cuMemUnmap, cuMemUnmap, (Address, size_t))                                                       \
    F(retain, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (Address *, void *))                  \
    F(export, cuMemExportToShareableHandle, cuMemExportToShareableHandle,                                     \
      (void *, Address, int, unsigned long long))                                                             \
    F(import, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, (Address *, void *, int))       \
    F(array, cuArrayCreate_v2, cuArrayCreate, (void **, const void *))                                        \
    F(array3, cuArray3DCreate_v2, cuArray3DCreate, (void **, const void *))                                   \
    F(mipmap, cuMipmappedArrayCreate, cuMipmappedArrayCreate, (void **, const void *, unsigned))              \
    F(array_destroy, cuArrayDestroy, cuArrayDestroy, (void *))                                                \
    F(mipmap_destroy, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, (void *))                             \
    F(graph_create, cuGraphCreate, cuGraphCreate, (void **, unsigned))                                        \
    F(graph_alloc, cuGraphAddMemAllocNode, cuGraphAddMemAllocNode,                                            \
      (void **, void *, const void *, size_t, void *))                                                        \
    F(graph_free, cuGraphAddMemFreeNode, cuGraphAddMemFreeNode,                                               \
      (void **, void *, const void *, size_t, Address))                                                       \
    F(graph_node, cuGraphAddNode_v2, cuGraphAddNode,                                                          \
      (void **, void *, const void *, const void *, size_t, void *))                                          \
    F(graph_build, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                                  \
      (void **, void *, unsigned long long))                                                                  \
    F(begin_capture, cuStreamBeginCapture_v2, cuStreamBeginCapture, (void *, int))                            \
    F(end_capture, cuStreamEndCapture, cuStreamEndCapture, (void *, void **))                                 \
    F(graph_launch, cuGraphLaunch, cuGraphLaunch, (void *, void *))                                           \
    F(graph_exec_destroy, cuGraphExecDestroy, cuGraphExecDestroy, (void *))                                   \
    F(graph_destroy, cuGraphDestroy, cuGraphDestroy, (void *))                                                \
    F(graph_trim, cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, (int))                                          \
    F(launch, cuLaunchKernel, cuLaunchKernel,                                                                 \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) \
    F(launch_cooperative, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel,                               \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **))

struct Ipc {
    char bytes[64];
};

struct Driver {
#define FIELD(field, symbol, base, form) int(*field) form;
    FUNCTIONS(FIELD) NEW_FUNCTIONS(FIELD)
#undef FIELD
};

/* Fills the table; a function the driver lacks is NULL there. Ends the program where there is no driver. */
void reach(struct Driver *driver, const char *door);
/* The driver's own library, and what the fake says of itself. */
void *library(void);
long fake_calls_of(const char *name);
int64_t fake_held(int device);

/* cuInit, and the device's primary context made current. Ends the program where it fails. */
void begin(struct Driver *driver, const char *door, int device);

int64_t amount(const char *text);

#endif
