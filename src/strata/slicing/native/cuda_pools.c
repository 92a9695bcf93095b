/* CUDA: pools of stream-ordered memory. A pool is charged for the device memory it has reserved, not for what the
 * program has taken from it: what is freed to a pool stays the pool's until it is trimmed or, at a synchronisation,
 * above its release threshold. cuda_async.c allocates from them.
 */
#include "cores.h"
#include "pools.h"

#define MOST_POOLS 256

enum { ON_DEVICE = 1, MANAGED = 2 }; /* CUmemLocationType, CUmemAllocationType */

char pools_gone;

static _Atomic(struct pool *) pools;
static _Atomic bool may_shrink; /* something was freed since all pools were asked */

static struct quota_call get_attribute = {"cuMemPoolGetAttribute", CUDA, NULL};
static struct quota_call get_pool = {"cuDeviceGetMemPool", CUDA, NULL};
static struct quota_call get_default_pool = {"cuDeviceGetDefaultMemPool", CUDA, NULL};
static struct quota_call get_count = {"cuDeviceGetCount", CUDA, NULL};

static struct pool *all_pools(void) {
    quota_notice_fork();
    struct pool *known = atomic_load_explicit(&pools, memory_order_acquire);
    if (known)
        return known;
    struct pool *fresh = quota_wiped(sizeof(struct pool[MOST_POOLS]));
    return fresh && atomic_compare_exchange_strong(&pools, &known, fresh) ? fresh : known;
}

bool pools_ask(void *handle, int attribute, uint64_t *value) {
    int (*real)(void *, int, void *) = (int (*)(void *, int, void *))quota_call(&get_attribute);
    *value = 0;
    return real && real(handle, attribute, value) == 0;
}

bool pools_settle(struct pool *pool, uint64_t reserved) {
    lock(&pool->lock);
    uint64_t charged = atomic_load(&pool->charged), holds = charged;
    void *handle = atomic_load(&pool->handle);
    if (handle == GONE && atomic_load(&pool->live) == 0) {
        holds = 0;
        atomic_store(&pool->handle, NULL);
    } else if (handle && handle != GONE && !pools_ask(handle, RESERVED_CURRENT, &holds)) {
        holds = charged;
    }
    atomic_store(&pool->charged, holds);
    uint64_t wanted = holds, has = charged + reserved;
    if (wanted > has)
        ledger_force(pool->row, wanted - has);
    else
        ledger_release(pool->row, has - wanted);
    unlock(&pool->lock);
    return wanted > has;
}

static void settle_row(int row) {
    struct pool *all = all_pools();
    for (int at = 0; all && at < MOST_POOLS; at++)
        if (atomic_load(&all[at].handle) && all[at].row == row)
            pools_settle(&all[at], 0);
}

static void synchronized(void) {
    struct pool *all = all_pools();
    atomic_store(&may_shrink, false);
    for (int at = 0; all && at < MOST_POOLS; at++)
        if (atomic_load(&all[at].handle) && all[at].row >= 0)
            pools_settle(&all[at], 0);
}

static struct pool *find(void *handle) {
    struct pool *all = all_pools();
    for (int at = 0; all && at < MOST_POOLS; at++)
        if (atomic_load_explicit(&all[at].handle, memory_order_acquire) == handle)
            return &all[at];
    return NULL;
}

static struct pool *remember(void *handle, int row) {
    struct pool *all = all_pools();
    if (!all)
        return NULL;
    atomic_store(&ledger_reclaim, settle_row);
    lock(&all->lock);
    struct pool *pool = find(handle);
    for (int at = 0; !pool && at < MOST_POOLS; at++)
        if (!atomic_load(&all[at].handle)) {
            pool = &all[at];
            pool->row = row;
            atomic_store(&pool->charged, 0);
            atomic_store(&pool->live, 0);
            atomic_store_explicit(&pool->handle, handle, memory_order_release);
        }
    unlock(&all->lock);
    return pool;
}

/* A pool that we have not seen being made is the default pool of a device. */
static int row_of_unknown(void *handle) {
    int (*count)(int *) = (int (*)(int *))quota_call(&get_count);
    int (*standard)(void **, int) = (int (*)(void **, int))quota_call(&get_default_pool);
    int devices = 0;
    if (count && standard && count(&devices) == 0)
        for (int device = 0; device < devices; device++) {
            void *one = NULL;
            if (standard(&one, device) == 0 && one == handle)
                return cuda_row(device);
        }
    return cuda_row_here();
}

struct pool *pools_of(void *handle) {
    struct pool *pool = find(handle);
    return pool ? pool : remember(handle, row_of_unknown(handle));
}

struct pool *pools_current(void) {
    int (*current)(void **, int) = (int (*)(void **, int))quota_call(&get_pool);
    int device = cuda_device_here();
    void *handle = NULL;
    if (device < 0 || !current || current(&handle, device) != 0 || !handle)
        return NULL;
    struct pool *pool = find(handle);
    return pool ? pool : remember(handle, cuda_row(device));
}

uint32_t pools_took(struct pool *pool) {
    atomic_fetch_add(&pool->live, 1);
    return (uint32_t)(pool - all_pools()) + 1;
}

void pools_freed(uint32_t number) {
    struct pool *pool = &all_pools()[number - 1];
    atomic_fetch_sub(&pool->live, 1);
    atomic_store(&may_shrink, true);
    pools_settle(pool, 0);
}

struct location {
    int type, number;
};

struct pool_properties {
    int allocation_type, handle_types;
    struct location location;
};

/* Memory of the host is nobody's; managed memory may come to lie on a device wherever it would rather be. */
static int row_of_location(const struct location *location, int allocation_type) {
    if (location->type == ON_DEVICE)
        return cuda_row(location->number);
    return allocation_type == MANAGED ? cuda_row_here() : ROW_UNLIMITED;
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemPoolCreate, int, (void **pool, const struct pool_properties *properties)) {
    int result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == 0 && !quota_limits()->off)
        remember(*pool, row_of_location(&properties->location, properties->allocation_type));
    return result;
}

/* A location's pool is known by its location alone: row_of_unknown() takes it for one of a device. */
static int answered(int result, void *const *pool, const struct location *location, int allocation_type) {
    if (result == 0 && !quota_limits()->off && !find(*pool))
        remember(*pool, row_of_location(location, allocation_type));
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 13000, cuMemGetDefaultMemPool, int, (void **pool, const struct location *location, int type)) {
    return answered(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location, type);
}

QUOTA_WRAP_SINCE(CUDA, 13000, cuMemGetMemPool, int, (void **pool, const struct location *location, int type)) {
    return answered(REAL(cuMemGetMemPool)(pool, location, type), pool, location, type);
}

/* Another process's pool: that process is charged. */
QUOTA_WRAP_SINCE(CUDA, 11020, cuMemPoolImportFromShareableHandle, int,
                 (void **pool, void *handle, int type, uint64_t flags)) {
    int result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result == 0 && !quota_limits()->off)
        remember(*pool, ROW_UNLIMITED);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemPoolDestroy, int, (void *handle)) {
    struct pool *pool = find(handle);
    // The number may be the next pool's as soon as the driver has it back.
    if (pool) {
        pools_settle(pool, 0);
        atomic_store(&pool->handle, GONE);
    }
    int result = REAL(cuMemPoolDestroy)(handle);
    if (pool && result != 0)
        atomic_store(&pool->handle, handle);
    if (pool)
        pools_settle(pool, 0);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemPoolTrimTo, int, (void *handle, size_t keep_bytes)) {
    int result = REAL(cuMemPoolTrimTo)(handle, keep_bytes);
    struct pool *pool = result == 0 ? find(handle) : NULL;
    if (pool)
        pools_settle(pool, 0);
    return result;
}

/* At these a driver gives back what pools hold above their release threshold. */
#define SYNCHRONIZES(symbol, since, parameters, arguments)                                                            \
    QUOTA_WRAP_SINCE(CUDA, since, symbol, int, parameters) {                                                          \
        cores_begin_sync();                                                                                           \
        int result = REAL(symbol) arguments;                                                                          \
        cores_end_sync();                                                                                             \
        if (__builtin_expect(atomic_load_explicit(&may_shrink, memory_order_relaxed), 0))                             \
            synchronized();                                                                                           \
        return result;                                                                                                \
    }

SYNCHRONIZES(cuStreamSynchronize, 2000, (void *stream), (stream))
SYNCHRONIZES(cuStreamSynchronize_ptsz, 7000, (void *stream), (stream))
SYNCHRONIZES(cuCtxSynchronize, 2000, (void), ())
SYNCHRONIZES(cuEventSynchronize, 2000, (void *event), (event))
