#include "cuda.h"

/* A pool takes memory by the block, and gives back what nobody uses when someone waits for the device. */
#define BLOCK (32LL << 20)

static struct Thing *defaults[MAX_DEVICES], *chosen[MAX_DEVICES], *of_host;

static struct Thing *default_pool(int device)
{
    if (!defaults[device])
        defaults[device] = add(fresh(512), POOL, device, 0);
    return defaults[device];
}

static struct Thing *host_pool(void)
{
    if (!of_host)
        of_host = add(fresh(512), POOL, -1, 0);
    return of_host;
}

static void shrink(struct Thing *pool, int64_t keep)
{
    int64_t need = (pool->used + BLOCK - 1) / BLOCK * BLOCK;
    int64_t target = need > keep ? need : keep;
    if (pool->reserved > target) {
        unhold(pool->device, pool->reserved - target);
        pool->reserved = target;
    }
}

void pool_return(struct Thing *allocation)
{
    allocation->of->used -= allocation->bytes;
    take(allocation);
}

static void shrink_if_on(struct Thing *thing, void *device)
{
    if (thing->kind == POOL && thing->device == *(int *)device)
        shrink(thing, thing->threshold);
}

void settle(int device)
{
    lock();
    each(shrink_if_on, &device);
    unlock();
}

static CUresult allocate(CUdeviceptr *address, int64_t bytes, struct Thing *pool)
{
    if (bytes <= 0)
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    CUresult result = OK;
    lock();
    if (pool->used + bytes > pool->reserved) {
        int64_t grown = (pool->used + bytes + BLOCK - 1) / BLOCK * BLOCK;
        if (hold(pool->device, grown - pool->reserved))
            pool->reserved = grown;
        else
            result = OUT_OF_MEMORY;
    }
    if (result == OK) {
        pool->used += bytes;
        *address = fresh(bytes);
        add(*address, POOLED, pool->device, bytes)->of = pool;
    }
    unlock();
    return result;
}

static CUresult allocate_current(CUdeviceptr *address, size_t bytes)
{
    int device = current();
    if (device < 0)
        return INVALID_CONTEXT;
    if (capture_alloc(address, bytes, device))
        return OK;
    lock();
    struct Thing *pool = chosen[device] ? chosen[device] : default_pool(device);
    unlock();
    return allocate(address, (int64_t)bytes, pool);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    (void)stream;
    ENTER(visit_slowly);
    return allocate_current(address, bytes);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    (void)stream;
    ENTER(visit_slowly);
    return allocate_current(address, bytes);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)stream;
    ENTER(visit_slowly);
    return allocate(address, (int64_t)bytes, pool);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)stream;
    ENTER(visit_slowly);
    return allocate(address, (int64_t)bytes, pool);
}

static CUresult free_async(CUdeviceptr address)
{
    if (capture_free(address))
        return OK;
    lock();
    struct Thing *thing = find(address, 0);
    CUresult result = OK;
    if (thing && thing->kind == POOLED)
        pool_return(thing);
    else if (thing && thing->kind == GRAPHED)
        graphs_return(thing);
    else
        result = INVALID_VALUE;
    unlock();
    return result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    ENTER(visit);
    return free_async(address);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    ENTER(visit);
    return free_async(address);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct PoolProps *props)
{
    ENTER(visit);
    lock();
    int device = props->type == MANAGED ? current() : -1;
    *pool = add(fresh(512), POOL, props->location.type == LOCATION_DEVICE ? props->location.id : device, 0);
    unlock();
    return OK;
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, uint64_t flags)
{
    (void)handle, (void)type, (void)flags;
    ENTER(visit);
    lock();
    *pool = add(fresh(512), POOL, 0, 0); /* empty here: what its owner has taken is no matter of this process */
    unlock();
    return OK;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER(visit);
    lock();
    /* Allocations outlive their pool; with the last one the pool goes (here: with the next settling). */
    pool->threshold = 0;
    shrink(pool, 0);
    if (pool->used == 0)
        take(pool);
    unlock();
    return OK;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    ENTER(visit);
    lock();
    shrink(pool, (int64_t)keep);
    unlock();
    return OK;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER(visit);
    lock();
    int64_t amount = attribute == POOL_THRESHOLD                                        ? pool->threshold
                     : attribute == POOL_RESERVED || attribute == POOL_RESERVED_HIGH ? pool->reserved
                     : attribute == POOL_USED || attribute == POOL_USED_HIGH         ? pool->used
                                                                                         : -1;
    unlock();
    if (amount < 0)
        return INVALID_VALUE;
    *(uint64_t *)value = (uint64_t)amount;
    return OK;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    ENTER(visit);
    if (attribute == POOL_THRESHOLD) {
        uint64_t asked = *(uint64_t *)value;
        pool->threshold = asked > INT64_MAX ? INT64_MAX : (int64_t)asked;
    }
    return OK;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER(visit);
    lock();
    *pool = default_pool(device);
    unlock();
    return OK;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER(visit);
    lock();
    *pool = chosen[device] ? chosen[device] : default_pool(device);
    unlock();
    return OK;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    ENTER(visit);
    chosen[device] = pool;
    return OK;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, struct Location *location, int type)
{
    (void)type;
    ENTER(visit);
    lock();
    *pool = location->type == LOCATION_DEVICE ? default_pool(location->id) : host_pool();
    unlock();
    return OK;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, struct Location *location, int type)
{
    (void)type;
    ENTER(visit);
    lock();
    if (location->type == LOCATION_DEVICE)
        *pool = chosen[location->id] ? chosen[location->id] : default_pool(location->id);
    else
        *pool = host_pool();
    unlock();
    return OK;
}

EXPORT CUresult cuMemSetMemPool(struct Location *location, int type, CUmemoryPool pool)
{
    (void)type;
    ENTER(visit);
    chosen[location->id] = pool;
    return OK;
}
