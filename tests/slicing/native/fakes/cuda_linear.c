#include "cuda.h"

#include <string.h>
#include <unistd.h>

static CUdeviceptr taken_back;

static CUresult allocate(CUdeviceptr *address, int64_t bytes)
{
    int device = current();
    if (device < 0)
        return INVALID_CONTEXT;
    if (bytes == 0)
        return INVALID_VALUE;
    if (bytes < 0 || !hold(device, bytes))
        return OUT_OF_MEMORY;
    lock();
    *address = taken_back ? taken_back : fresh(bytes);
    taken_back = 0;
    add(*address, LINEAR, device, bytes)->context = current_context();
    unlock();
    return OK;
}

/* For test programs: memory that the driver takes back without a call, and whose address it gives out next. */
EXPORT void fake_take_back(CUdeviceptr address);
void fake_take_back(CUdeviceptr address)
{
    lock();
    struct Thing *thing = find(address, LINEAR);
    unhold(thing->device, thing->bytes);
    take(thing);
    taken_back = address;
    unlock();
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    ENTER(visit_slowly);
    return allocate(address, (int64_t)bytes);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    ENTER(visit_slowly);
    *pitch = (width + 511) / 512 * 512;
    return allocate(address, (int64_t)(*pitch * height));
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER(visit_slowly);
    return allocate(address, (int64_t)bytes);
}

/* The first interface's, with addresses of 32 bits: nobody's since CUDA 3.2, but still exported. */
EXPORT CUresult cuMemAlloc(unsigned *address, unsigned bytes)
{
    (void)address, (void)bytes;
    ENTER(visit);
    return NOT_SUPPORTED;
}

EXPORT CUresult cuMemFree(unsigned address)
{
    (void)address;
    ENTER(visit);
    return NOT_SUPPORTED;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER(visit);
    if (address == 0)
        return OK;
    lock();
    struct Thing *thing = find(address, 0);
    CUresult result = OK;
    if (thing && thing->kind == LINEAR) {
        unhold(thing->device, thing->bytes);
        take(thing);
#ifndef OLD_DRIVER
    } else if (thing && thing->kind == POOLED) {
        pool_return(thing);
    } else if (thing && thing->kind == GRAPHED) {
        graphs_return(thing);
#endif
    } else {
        result = INVALID_VALUE;
    }
    unlock();
    return result;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    ENTER(visit);
    if (current() < 0)
        return INVALID_CONTEXT;
    *total = (size_t)device_bytes();
    *left = (size_t)(device_bytes() - held(current()));
    return OK;
}

EXPORT CUresult cuMemGetInfo(unsigned *left, unsigned *total)
{
    (void)left, (void)total;
    ENTER(visit);
    return NOT_SUPPORTED;
}

/* Memory of the host is none of the device's. */
EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER(visit_slowly);
    lock();
    *address = (void *)(uintptr_t)fresh((int64_t)bytes);
    unlock();
    return OK;
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    (void)address;
    ENTER(visit);
    return OK;
}

/* A call that no quota is concerned with. */
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count)
{
    (void)address, (void)value, (void)count;
    ENTER(visit);
    return OK;
}

struct IpcHandle {
    uint64_t owner, address, bytes, device;
    char reserved[32];
};

EXPORT CUresult cuIpcGetMemHandle(struct IpcHandle *handle, CUdeviceptr address)
{
    ENTER(visit);
    lock();
    struct Thing *thing = find(address, LINEAR);
    if (thing)
        *handle = (struct IpcHandle){(uint64_t)getpid(), address, (uint64_t)thing->bytes, (uint64_t)thing->device, {0}};
    unlock();
    return thing ? OK : INVALID_VALUE;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, struct IpcHandle handle, unsigned flags)
{
    (void)flags;
    ENTER(visit);
    lock();
    *address = fresh((int64_t)handle.bytes);
    add(*address, IMPORTED, (int)handle.device, 0);
    unlock();
    return OK;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    ENTER(visit);
    lock();
    struct Thing *thing = find(address, IMPORTED);
    if (thing)
        take(thing);
    unlock();
    return thing ? OK : INVALID_VALUE;
}

#ifdef OLD_DRIVER
void settle(int device)
{
    (void)device;
}
#endif
