#include "cuda.h"

#define GRANULE (2LL << 20)

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct AllocationProp *prop, int option)
{
    (void)prop, (void)option;
    ENTER(visit);
    *bytes = GRANULE;
    return OK;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t align, CUdeviceptr hint,
                                    unsigned long long flags)
{
    (void)align, (void)hint, (void)flags;
    ENTER(visit);
    lock();
    fresh(GRANULE);
    *address = (fresh((int64_t)bytes + GRANULE) + GRANULE - 1) / GRANULE * GRANULE;
    unlock();
    return OK;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    (void)address, (void)bytes;
    ENTER(visit);
    return OK;
}

EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const struct AllocationProp *prop, unsigned long long flags)
{
    (void)flags;
    ENTER(visit_slowly);
    if (bytes == 0 || bytes % GRANULE)
        return INVALID_VALUE;
    int on_device = prop->location.type == LOCATION_DEVICE;
    if (on_device && (prop->location.id < 0 || prop->location.id >= devices()))
        return INVALID_DEVICE;
    if (on_device && !hold(prop->location.id, (int64_t)bytes))
        return OUT_OF_MEMORY;
    lock();
    *handle = fresh(512);
    add(*handle, PHYSICAL, on_device ? prop->location.id : -1, (int64_t)bytes)->refs = 1;
    unlock();
    return OK;
}

static void forget(struct Thing *physical)
{
    if (physical->refs > 0 || physical->maps > 0)
        return;
    if (physical->device >= 0)
        unhold(physical->device, physical->bytes);
    take(physical);
}

EXPORT CUresult cuMemRelease(CUhandle handle)
{
    ENTER(visit);
    lock();
    struct Thing *physical = find(handle, PHYSICAL);
    CUresult result = physical && physical->refs > 0 ? OK : INVALID_VALUE;
    if (result == OK) {
        physical->refs--;
        forget(physical);
    }
    unlock();
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    (void)flags;
    ENTER(visit);
    lock();
    struct Thing *physical = find(handle, PHYSICAL);
    CUresult result = physical && physical->refs > 0 && !find(address, MAPPED) &&
                              offset + bytes <= (size_t)physical->bytes
                          ? OK
                          : INVALID_VALUE;
    if (result == OK) {
        physical->maps++;
        add(address, MAPPED, physical->device, (int64_t)bytes)->of = physical;
    }
    unlock();
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    ENTER(visit);
    CUresult result = OK;
    lock();
    for (CUdeviceptr at = address; at < address + bytes;) {
        struct Thing *mapping = find(at, MAPPED);
        if (!mapping) {
            result = INVALID_VALUE;
            break;
        }
        at += (CUdeviceptr)mapping->bytes;
        struct Thing *physical = mapping->of;
        take(mapping);
        physical->maps--;
        forget(physical);
    }
    unlock();
    return result;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const void *access, size_t count)
{
    (void)address, (void)bytes, (void)access, (void)count;
    ENTER(visit);
    return OK;
}

struct Within {
    CUdeviceptr address;
    struct Thing *physical;
};

static void look_within(struct Thing *thing, void *with)
{
    struct Within *within = with;
    if (thing->kind == MAPPED && thing->key <= within->address &&
        within->address < thing->key + (uint64_t)thing->bytes)
        within->physical = thing->of;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    ENTER(visit);
    lock();
    struct Within within = {(CUdeviceptr)(uintptr_t)address, NULL};
    each(look_within, &within);
    if (within.physical) {
        within.physical->refs++;
        *handle = within.physical->key;
    }
    unlock();
    return within.physical ? OK : INVALID_VALUE;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shared, CUhandle handle, int type, unsigned long long flags)
{
    (void)type, (void)flags;
    ENTER(visit);
    lock();
    struct Thing *physical = find(handle, PHYSICAL);
    unlock();
    *(uint64_t *)shared = handle;
    return physical ? OK : INVALID_VALUE;
}

/* In the process that exported it, another reference; in any other, memory that is the exporter's. */
EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared, int type)
{
    (void)type;
    ENTER(visit);
    lock();
    struct Thing *physical = find((CUhandle)(uintptr_t)shared, PHYSICAL);
    if (!physical)
        physical = add(fresh(512), PHYSICAL, -1, 1LL << 40);
    physical->refs++;
    *handle = physical->key;
    unlock();
    return OK;
}

EXPORT CUresult cuMulticastCreate(CUhandle *handle, const void *prop)
{
    (void)prop;
    ENTER(visit);
    lock();
    *handle = fresh(512);
    add(*handle, PHYSICAL, -1, 1LL << 40)->refs = 1;
    unlock();
    return OK;
}
