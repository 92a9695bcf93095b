/* libcuda.so.1 that does next to nothing: what is measured is the library in front of it. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;

enum { SUCCESS = 0, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
#define DEVICE_BYTES ((size_t)80 << 30)
#define PAGE ((CUdeviceptr)512)

static CUdeviceptr next = (CUdeviceptr)1 << 40;

CUresult cuInit(unsigned flags) {
    (void)flags;
    return SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = 12040;
    return SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return SUCCESS;
}

CUresult cuCtxGetCurrent(void **context) {
    *context = &next;
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) {
    memset(uuid, device + 1, 16);
    return SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = DEVICE_BYTES;
    return SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = DEVICE_BYTES;
    return SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    *pointer = __atomic_fetch_add(&next, (bytes + PAGE - 1) & ~(PAGE - 1), __ATOMIC_RELAXED);
    return SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    (void)pointer;
    return SUCCESS;
}

/* What every driver since 11.2 has besides, of the names that are looked through for the functions above: to look up what
 * is not there takes longest, and no real driver makes a program wait for that. */
#define UNUSED(name)                                                                                                  \
    CUresult name(void) { return NOT_SUPPORTED; }
UNUSED(cuMemAllocManaged)
UNUSED(cuMemAllocPitch_v2)
UNUSED(cuMemAllocAsync)
UNUSED(cuMemAllocAsync_ptsz)
UNUSED(cuMemAllocFromPoolAsync)
UNUSED(cuMemAllocFromPoolAsync_ptsz)
UNUSED(cuMemFreeAsync)
UNUSED(cuMemFreeAsync_ptsz)

/* Stands for every function the library leaves alone. */
CUresult cuStreamQuery(void *stream) {
    (void)stream;
    return SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

static const struct {
    const char *name;
    void *address;
} table[] = {
    {"cuInit", (void *)cuInit},
    {"cuDriverGetVersion", (void *)cuDriverGetVersion},
    {"cuDeviceGetCount", (void *)cuDeviceGetCount},
    {"cuDeviceGet", (void *)cuDeviceGet},
    {"cuCtxGetDevice", (void *)cuCtxGetDevice},
    {"cuCtxGetCurrent", (void *)cuCtxGetCurrent},
    {"cuDeviceGetUuid", (void *)cuDeviceGetUuid_v2},
    {"cuDeviceTotalMem", (void *)cuDeviceTotalMem_v2},
    {"cuMemGetInfo", (void *)cuMemGetInfo_v2},
    {"cuMemAlloc", (void *)cuMemAlloc_v2},
    {"cuMemFree", (void *)cuMemFree_v2},
    {"cuStreamQuery", (void *)cuStreamQuery},
    {"cuGetProcAddress", (void *)cuGetProcAddress_v2},
};

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    (void)version;
    (void)flags;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, symbol) == 0) {
            *pfn = table[i].address;
            if (status)
                *status = 0;
            return SUCCESS;
        }
    *pfn = NULL;
    if (status)
        *status = 1;
    return NOT_FOUND;
}
