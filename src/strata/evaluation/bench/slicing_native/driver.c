/* libcuda.so.1 that does next to nothing: what is measured is the library in front of it. A kernel keeps the device busy
 * for a fixed time, a graph for that of ten kernels, one after the other; events tell when they begin and end. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;

enum { SUCCESS = 0, NOT_FOUND = 500, NOT_READY = 600 };
#define DEVICE_BYTES ((size_t)80 << 30)
#define KERNEL_NS 100000
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

static int64_t busy_until_ns;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t free_at_ns(void) {
    int64_t now = now_ns(), until = __atomic_load_n(&busy_until_ns, __ATOMIC_RELAXED);
    return until > now ? until : now;
}

CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void *stream, void **parameters, void **extra) {
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)parameters, (void)extra;
    __atomic_store_n(&busy_until_ns, free_at_ns() + KERNEL_NS, __ATOMIC_RELAXED);
    return SUCCESS;
}

CUresult cuGraphLaunch(void *graph, void *stream) {
    (void)graph, (void)stream;
    __atomic_store_n(&busy_until_ns, free_at_ns() + 10 * KERNEL_NS, __ATOMIC_RELAXED);
    return SUCCESS;
}

CUresult cuStreamSynchronize(void *stream) {
    (void)stream;
    int64_t until = free_at_ns();
    struct timespec at = {until / 1000000000, until % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0)
        ;
    return SUCCESS;
}

CUresult cuEventCreate(int64_t **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? SUCCESS : 2;
}

CUresult cuEventRecord(int64_t *event, void *stream) {
    (void)stream;
    *event = free_at_ns();
    return SUCCESS;
}

CUresult cuEventQuery(int64_t *event) {
    return now_ns() >= *event ? SUCCESS : NOT_READY;
}

CUresult cuEventElapsedTime(float *ms, int64_t *begin, int64_t *end) {
    *ms = (float)(*end - *begin) / 1e6f;
    return SUCCESS;
}

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
    {"cuLaunchKernel", (void *)cuLaunchKernel},
    {"cuGraphLaunch", (void *)cuGraphLaunch},
    {"cuStreamSynchronize", (void *)cuStreamSynchronize},
    {"cuEventCreate", (void *)cuEventCreate},
    {"cuEventRecord", (void *)cuEventRecord},
    {"cuEventQuery", (void *)cuEventQuery},
    {"cuEventElapsedTime", (void *)cuEventElapsedTime},
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
