#include "cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* name, since which version, its symbol, and the symbol for the per-thread default stream where there is one.
 * Later rows of a name are later versions of it. */
#define ENTRIES(ONE, TWO)                                                              \
    ONE(cuInit, 2000, cuInit)                                                          \
    ONE(cuDriverGetVersion, 2020, cuDriverGetVersion)                                  \
    ONE(cuDeviceGet, 2000, cuDeviceGet)                                                \
    ONE(cuDeviceGetCount, 2000, cuDeviceGetCount)                                      \
    ONE(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                        \
    ONE(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                    \
    ONE(cuDeviceTotalMem, 2000, cuDeviceTotalMem)                                      \
    ONE(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                   \
    ONE(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                      \
    ONE(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease)                    \
    ONE(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                \
    ONE(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset)                        \
    ONE(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                    \
    ONE(cuCtxCreate, 3020, cuCtxCreate_v2)                                             \
    ONE(cuCtxCreate, 11040, cuCtxCreate_v3)                                            \
    ONE(cuCtxCreate, 12050, cuCtxCreate_v4)                                            \
    ONE(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                           \
    ONE(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                        \
    ONE(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                        \
    ONE(cuCtxGetDevice, 2000, cuCtxGetDevice)                                          \
    ONE(cuCtxSynchronize, 2000, cuCtxSynchronize)                                      \
    ONE(cuMemAlloc, 2000, cuMemAlloc)                                                  \
    ONE(cuMemAlloc, 3020, cuMemAlloc_v2)                                               \
    ONE(cuMemFree, 2000, cuMemFree)                                                    \
    ONE(cuMemFree, 3020, cuMemFree_v2)                                                 \
    ONE(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                                     \
    ONE(cuMemAllocManaged, 6000, cuMemAllocManaged)                                    \
    ONE(cuMemGetInfo, 2000, cuMemGetInfo)                                              \
    ONE(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                           \
    ONE(cuMemHostAlloc, 2020, cuMemHostAlloc)                                          \
    ONE(cuMemFreeHost, 2000, cuMemFreeHost)                                            \
    ONE(cuMemsetD8, 3020, cuMemsetD8_v2)                                               \
    ONE(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle)                                    \
    ONE(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2)                              \
    ONE(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)                                \
    TWO(cuStreamSynchronize, 7000, cuStreamSynchronize, cuStreamSynchronize_ptsz)      \
    TWO(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds)                     \
    TWO(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz)      \
    ONE(cuEventSynchronize, 2000, cuEventSynchronize)                                  \
    ONE(cuGetProcAddress, 11030, cuGetProcAddress)                                     \
    ONE(cuGetProcAddress, 12000, cuGetProcAddress_v2)
#define NEW_ENTRIES(ONE, TWO)                                                                              \
    TWO(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz)                                     \
    TWO(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz)             \
    TWO(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz)                                        \
    ONE(cuMemPoolCreate, 11020, cuMemPoolCreate)                                                           \
    ONE(cuMemPoolDestroy, 11020, cuMemPoolDestroy)                                                         \
    ONE(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo)                                                           \
    ONE(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute)                                               \
    ONE(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute)                                               \
    ONE(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool)                                       \
    ONE(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool)                                                     \
    ONE(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool)                                                     \
    ONE(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool)                                             \
    ONE(cuMemGetMemPool, 13000, cuMemGetMemPool)                                                           \
    ONE(cuMemSetMemPool, 13000, cuMemSetMemPool)                                                           \
    ONE(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity)                               \
    ONE(cuMemAddressReserve, 10020, cuMemAddressReserve)                                                   \
    ONE(cuMemAddressFree, 10020, cuMemAddressFree)                                                         \
    ONE(cuMemCreate, 10020, cuMemCreate)                                                                   \
    ONE(cuMemRelease, 10020, cuMemRelease)                                                                 \
    ONE(cuMemMap, 10020, cuMemMap)                                                                         \
    ONE(cuMemUnmap, 10020, cuMemUnmap)                                                                     \
    ONE(cuMemSetAccess, 10020, cuMemSetAccess)                                                             \
    ONE(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)                                   \
    ONE(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle)                                 \
    ONE(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle)                             \
    ONE(cuMulticastCreate, 12010, cuMulticastCreate)                                                       \
    ONE(cuArrayCreate, 3020, cuArrayCreate_v2)                                                             \
    ONE(cuArray3DCreate, 3020, cuArray3DCreate_v2)                                                         \
    ONE(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate)                                              \
    ONE(cuArrayDestroy, 2000, cuArrayDestroy)                                                              \
    ONE(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy)                                            \
    ONE(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements)                                 \
    ONE(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements)               \
    ONE(cuGraphCreate, 10000, cuGraphCreate)                                                               \
    ONE(cuGraphDestroy, 10000, cuGraphDestroy)                                                             \
    ONE(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode)                                             \
    ONE(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode)                                               \
    ONE(cuGraphAddNode, 12020, cuGraphAddNode)                                                             \
    ONE(cuGraphAddNode, 12030, cuGraphAddNode_v2)                                                          \
    ONE(cuGraphInstantiate, 11000, cuGraphInstantiate_v2)                                                  \
    ONE(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags)                                            \
    ONE(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)                                   \
    TWO(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz) \
    ONE(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                                              \
    ONE(cuStreamEndCapture, 10000, cuStreamEndCapture)                                                     \
    ONE(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                                                   \
    ONE(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2)                                          \
    ONE(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle)                     \
    ONE(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                                                     \
    TWO(cuGraphLaunch, 10000, cuGraphLaunch, cuGraphLaunch_ptsz)                                           \
    TWO(cuLaunchKernel, 4000, cuLaunchKernel, cuLaunchKernel_ptsz)                                         \
    TWO(cuLaunchKernelEx, 11060, cuLaunchKernelEx, cuLaunchKernelEx_ptsz)                                  \
    TWO(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz)        \
    ONE(cuEventCreate, 2000, cuEventCreate)                                                                \
    ONE(cuEventDestroy, 4000, cuEventDestroy_v2)                                                           \
    TWO(cuEventRecord, 7000, cuEventRecord, cuEventRecord_ptsz)                                            \
    ONE(cuEventQuery, 2000, cuEventQuery)                                                                  \
    ONE(cuEventElapsedTime, 2000, cuEventElapsedTime)                                                      \
    ONE(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)                       \
    ONE(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim)                                                 \
    ONE(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute)

typedef void (*Function)(void);

#ifdef OTHER_ADDRESSES
/* What is handed out by name is not what is exported, but leads there. */
#if defined(__x86_64__)
#define JUMP "jmp"
#else
#define JUMP "b"
#endif
#define DECLARE_ONE(name, version, symbol)                                                                \
    __asm__(".pushsection .text\nbehind_" #name #symbol ": " JUMP " " #symbol "\n.popsection");          \
    extern void name##symbol##_declared(void) __asm__("behind_" #name #symbol);
#else
#define DECLARE_ONE(name, version, symbol) extern void name##symbol##_declared(void) __asm__(#symbol);
#endif
#define DECLARE_TWO(name, version, symbol, twin) \
    DECLARE_ONE(name, version, symbol) DECLARE_ONE(name, version, twin)
ENTRIES(DECLARE_ONE, DECLARE_TWO)
#ifndef OLD_DRIVER
NEW_ENTRIES(DECLARE_ONE, DECLARE_TWO)
#endif

#define ROW_ONE(name, version, symbol) {#name, version, name##symbol##_declared, NULL},
#define ROW_TWO(name, version, symbol, twin) {#name, version, name##symbol##_declared, name##twin##_declared},
static const struct {
    const char *name;
    int version;
    Function legacy, per_thread;
} entries[] = {
    ENTRIES(ROW_ONE, ROW_TWO)
#ifndef OLD_DRIVER
    NEW_ENTRIES(ROW_ONE, ROW_TWO)
#endif
};

enum { PER_THREAD = 2 };
enum Status { FOUND = 0, NO_SYMBOL = 1, TOO_OLD = 2 };

/* FAKE_ASKED: a file to which each question is added, as "name version flags". */
static void write_down(const char *name, int version, uint64_t flags)
{
    const char *path = getenv("FAKE_ASKED");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file >= 0) {
        dprintf(file, "%s %d %d\n", name, version, (int)flags);
        close(file);
    }
}

static CUresult look(const char *name, void **function, int version, uint64_t flags, enum Status *status)
{
    if (!name || !function || version > (int)setting("FAKE_VERSION", 13000) || flags > PER_THREAD)
        return INVALID_VALUE;
    write_down(name, version, flags);
    *function = NULL;
    *status = NO_SYMBOL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, name) != 0)
            continue;
        if (entries[i].version > version) {
            if (!*function)
                *status = TOO_OLD;
            continue;
        }
        Function chosen = flags == PER_THREAD && entries[i].per_thread ? entries[i].per_thread : entries[i].legacy;
        memcpy(function, &chosen, sizeof chosen);
        *status = FOUND;
    }
    return OK;
}

/* The first form has no status: what is not there is an error. */
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    ENTER(visit);
    enum Status status = FOUND;
    CUresult result = look(name, function, version, flags, &status);
    return result == OK && status != FOUND ? NOT_FOUND : result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    ENTER(visit);
    enum Status found = FOUND;
    CUresult result = look(name, function, version, flags, &found);
    if (status)
        *status = (int)found;
    return result;
}

EXPORT CUresult cuGetExportTable(const void **table, const void *uuid)
{
    (void)uuid;
    ENTER(visit);
    *table = NULL;
    return NOT_FOUND;
}
