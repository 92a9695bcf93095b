#include "cuda.h"

#include <stdlib.h>

/* A pool has addresses in a row, with memory behind them by the block. What is freed may be taken again at once, but its
 * blocks go back to the device only once somebody has waited for it since (CUDA documentation of cuMemPoolTrimTo), and
 * only whole ones: a pool full of holes grows though it holds enough unused. An H200 does all of that. */
#define BLOCK (32LL << 20)
#define MOST_CHUNKS 8192

struct Chunk {
    int uses;
    int is_backed;
    int is_pending; /* something in it was freed since the device was waited for */
};

struct Span {
    int64_t begin, end;
    struct Span *next;
};

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

static void shrink(struct Thing *pool, int64_t keep, int is_waited_for)
{
    for (int at = 0; pool->chunks && at < MOST_CHUNKS; at++) {
        struct Chunk *chunk = &pool->chunks[at];
        chunk->is_pending &= !is_waited_for;
        if (chunk->is_backed && !chunk->uses && !chunk->is_pending && pool->reserved - BLOCK >= keep) {
            unhold(pool->device, BLOCK);
            pool->reserved -= BLOCK;
            chunk->is_backed = 0;
        }
    }
}

static void count(struct Thing *pool, const struct Span *span, int more)
{
    for (int64_t at = span->begin / BLOCK; at * BLOCK < span->end; at++) {
        pool->chunks[at].uses += more;
        pool->chunks[at].is_pending |= more < 0;
    }
}

void pool_return(struct Thing *allocation)
{
    struct Thing *pool = allocation->of;
    struct Span **at = &pool->spans;
    while (*at != allocation->span)
        at = &(*at)->next;
    *at = allocation->span->next;
    count(pool, allocation->span, -1);
    pool->used -= allocation->bytes;
    free(allocation->span);
    take(allocation);
}

static void shrink_if_on(struct Thing *thing, void *device)
{
    if (thing->kind == POOL && thing->device == *(int *)device)
        shrink(thing, thing->threshold, 1);
}

void settle(int device)
{
    lock();
    each(shrink_if_on, &device);
    unlock();
}

static int back(struct Thing *pool, int64_t begin, int64_t end)
{
    int64_t missing = 0;
    for (int64_t at = begin / BLOCK; at * BLOCK < end; at++)
        missing += !pool->chunks[at].is_backed;
    if (!hold(pool->device, missing * BLOCK))
        return 0;
    pool->reserved += missing * BLOCK;
    for (int64_t at = begin / BLOCK; at * BLOCK < end; at++)
        pool->chunks[at].is_backed = 1;
    return 1;
}

static struct Span *place(struct Thing *pool, int64_t bytes)
{
    struct Span **at = &pool->spans;
    int64_t begin = 0;
    for (; *at && (*at)->begin - begin < bytes; at = &(*at)->next)
        begin = (*at)->end;
    if (!pool->chunks)
        pool->chunks = calloc(MOST_CHUNKS, sizeof *pool->chunks);
    if (begin + bytes > MOST_CHUNKS * BLOCK || !back(pool, begin, begin + bytes))
        return NULL;
    struct Span *span = calloc(1, sizeof *span);
    *span = (struct Span){begin, begin + bytes, *at};
    *at = span;
    count(pool, span, 1);
    return span;
}

static CUresult allocate(CUdeviceptr *address, int64_t bytes, struct Thing *pool)
{
    if (bytes <= 0)
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    CUresult result = OUT_OF_MEMORY;
    lock();
    struct Span *span = place(pool, bytes);
    if (span) {
        pool->used += bytes;
        *address = fresh(bytes);
        struct Thing *allocation = add(*address, POOLED, pool->device, bytes);
        allocation->of = pool;
        allocation->span = span;
        result = OK;
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
    shrink(pool, 0, 1);
    if (pool->used == 0)
        take(pool);
    unlock();
    return OK;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    ENTER(visit);
    lock();
    shrink(pool, (int64_t)keep, 0);
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
