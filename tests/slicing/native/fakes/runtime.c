/* A fake libruntime.so: the layer under Ascend's public interface. */
#include "fake.h"

enum { NO_MEMORY = 207001, BAD_PARAM = 107000 };

struct Physical {
    uint32_t side, device, module, page, type;
    uint64_t reserve;
};

static __thread int32_t chosen;

EXPORT int rtSetDevice(int32_t device)
{
    ENTER(visit);
    if (device < 0 || device >= devices())
        return BAD_PARAM;
    chosen = device;
    return 0;
}

EXPORT int rtGetDevice(int32_t *device)
{
    ENTER(visit);
    *device = chosen;
    return 0;
}

EXPORT int rtGetVisibleDeviceIdByLogicDeviceId(int32_t device, int32_t *visible)
{
    ENTER(visit);
    *visible = physical(device);
    return 0;
}

static int allocate(void **address, uint64_t bytes)
{
    if (!address || bytes == 0)
        return BAD_PARAM;
    if (!hold(chosen, (int64_t)bytes))
        return NO_MEMORY;
    lock();
    *address = (void *)(uintptr_t)fresh((int64_t)bytes);
    add((uint64_t)(uintptr_t)*address, LINEAR, chosen, (int64_t)bytes);
    unlock();
    return 0;
}

static int give_back(uint64_t key, enum Kind kind)
{
    lock();
    struct Thing *thing = find(key, kind);
    if (thing) {
        unhold(thing->device, thing->bytes);
        take(thing);
    }
    unlock();
    return thing ? 0 : BAD_PARAM;
}

EXPORT int rtMalloc(void **address, uint64_t bytes, uint32_t type, uint16_t module)
{
    (void)type, (void)module;
    ENTER(visit_slowly);
    return allocate(address, bytes);
}

EXPORT int rtMallocCached(void **address, uint64_t bytes, uint32_t type, uint16_t module)
{
    (void)type, (void)module;
    ENTER(visit_slowly);
    return allocate(address, bytes);
}

EXPORT int rtFree(void *address)
{
    ENTER(visit);
    return give_back((uint64_t)(uintptr_t)address, LINEAR);
}

EXPORT int rtMallocPhysical(void **handle, size_t bytes, struct Physical *prop, uint64_t flags)
{
    (void)flags;
    ENTER(visit_slowly);
    int device = prop->side == 1 ? (int)prop->device : -1;
    if (device >= 0 && !hold(device, (int64_t)bytes))
        return NO_MEMORY;
    lock();
    *handle = (void *)(uintptr_t)fresh(512);
    add((uint64_t)(uintptr_t)*handle, PHYSICAL, device < 0 ? 0 : device, device < 0 ? 0 : (int64_t)bytes);
    unlock();
    return 0;
}

EXPORT int rtFreePhysical(void *handle)
{
    ENTER(visit);
    return give_back((uint64_t)(uintptr_t)handle, PHYSICAL);
}

EXPORT int rtMapMem(void *address, size_t bytes, size_t offset, void *handle, uint64_t flags)
{
    (void)address, (void)bytes, (void)offset, (void)handle, (void)flags;
    ENTER(visit);
    return 0;
}

EXPORT int rtUnmapMem(void *address)
{
    (void)address;
    ENTER(visit);
    return 0;
}

static int info(size_t *left, size_t *total)
{
    *total = (size_t)device_bytes();
    *left = (size_t)(device_bytes() - held(chosen));
    return 0;
}

EXPORT int rtMemGetInfo(size_t *left, size_t *total)
{
    ENTER(visit);
    return info(left, total);
}

EXPORT int rtMemGetInfoEx(int type, size_t *left, size_t *total)
{
    (void)type;
    ENTER(visit);
    return info(left, total);
}
