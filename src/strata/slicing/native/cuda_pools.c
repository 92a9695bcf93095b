/* CUDA: stream-ordered allocations. A pool is charged for the device memory it has reserved, not for what the program has
 * taken from it: what is freed to a pool stays the pool's until it is trimmed or, at a synchronisation, above its
 * release threshold.
 *
 * Before the driver is asked, the most that the pool can grow by is reserved (pools grow by chunks of 32 MiB); afterwards
 * the pool is asked what it holds, and charge and reservation are set right. Where that does not fit into the slice, the
 * request may still fit into what the pool holds unused: then it is alone with the pool, so that nobody else takes it.
 * Should a pool grow by more nevertheless and pass the limit, it is trimmed, and if that is not enough, the request is
 * freed again and refused.
 */
#include "cuda.h"

#define MOST_POOLS 256
#define CHUNK (32ull << 20)

enum { RESERVED_CURRENT = 5, USED_CURRENT = 7 };

struct pool {
    _Atomic(void *) handle; /* NULL: free; GONE: destroyed, with allocations that live on */
    _Atomic uint32_t lock;
    _Atomic uint32_t alone; /* a request that is alone with the pool, */
    _Atomic uint32_t beside; /* or how many that are not */
    _Atomic uint32_t live; /* allocations not freed */
    int32_t row;
    _Atomic uint64_t charged;
};

static char gone;
#define GONE ((void *)&gone)

static _Atomic(struct pool *) pools;
static _Atomic bool may_shrink; /* something was freed since all pools were asked */

static struct quota_call get_attribute = {"cuMemPoolGetAttribute", CUDA, NULL};
static struct quota_call get_pool = {"cuDeviceGetMemPool", CUDA, NULL};
static struct quota_call get_default_pool = {"cuDeviceGetDefaultMemPool", CUDA, NULL};
static struct quota_call get_count = {"cuDeviceGetCount", CUDA, NULL};
static struct quota_call trim = {"cuMemPoolTrimTo", CUDA, NULL};

static void lock(_Atomic uint32_t *word) {
    for (unsigned turn = 0; atomic_exchange_explicit(word, 1, memory_order_acquire); turn++)
        quota_wait(turn);
}

static void unlock(_Atomic uint32_t *word) {
    atomic_store_explicit(word, 0, memory_order_release);
}

static uint64_t chunks(uint64_t bytes) {
    return (bytes + CHUNK - 1) & ~(CHUNK - 1);
}

static struct pool *all_pools(void) {
    quota_notice_fork();
    struct pool *known = atomic_load_explicit(&pools, memory_order_acquire);
    if (known)
        return known;
    struct pool *fresh = quota_wiped(sizeof(struct pool[MOST_POOLS]));
    return fresh && atomic_compare_exchange_strong(&pools, &known, fresh) ? fresh : known;
}

static bool ask(void *handle, int attribute, uint64_t *value) {
    int (*real)(void *, int, void *) = (int (*)(void *, int, void *))quota_call(&get_attribute);
    *value = 0;
    return real && real(handle, attribute, value) == 0;
}

/* Charge the pool what it holds now; `reserved` was charged beforehand for a request that the driver has answered.
 * Returns whether more had to be charged than that. */
static bool settle(struct pool *pool, uint64_t reserved) {
    lock(&pool->lock);
    uint64_t charged = atomic_load(&pool->charged), holds = charged;
    void *handle = atomic_load(&pool->handle);
    if (handle == GONE && atomic_load(&pool->live) == 0) {
        holds = 0;
        atomic_store(&pool->handle, NULL);
    } else if (handle && handle != GONE && !ask(handle, RESERVED_CURRENT, &holds)) {
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
            settle(&all[at], 0);
}

static void synchronized(void) {
    struct pool *all = all_pools();
    atomic_store(&may_shrink, false);
    for (int at = 0; all && at < MOST_POOLS; at++)
        if (atomic_load(&all[at].handle) && all[at].row >= 0)
            settle(&all[at], 0);
}

static struct pool *find(void *handle) {
    struct pool *all = all_pools();
    for (int at = 0; all && at < MOST_POOLS; at++)
        if (atomic_load_explicit(&all[at].handle, memory_order_acquire) == handle)
            return &all[at];
    return NULL;
}

static struct pool *remember(void *handle, int row) {
    static _Atomic uint32_t adding;
    struct pool *all = all_pools(), *pool = NULL;
    atomic_store(&ledger_reclaim, settle_row);
    lock(&adding);
    pool = find(handle);
    for (int at = 0; all && !pool && at < MOST_POOLS; at++)
        if (!atomic_load(&all[at].handle)) {
            pool = &all[at];
            pool->row = row;
            atomic_store(&pool->charged, 0);
            atomic_store(&pool->live, 0);
            atomic_store_explicit(&pool->handle, handle, memory_order_release);
        }
    unlock(&adding);
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

static struct pool *pool_of(void *handle) {
    struct pool *pool = find(handle);
    return pool ? pool : remember(handle, row_of_unknown(handle));
}

static struct pool *current_pool(void) {
    int (*current)(void **, int) = (int (*)(void **, int))quota_call(&get_pool);
    int device = cuda_device_here();
    void *handle = NULL;
    if (device < 0 || !current || current(&handle, device) != 0 || !handle)
        return NULL;
    struct pool *pool = find(handle);
    return pool ? pool : remember(handle, cuda_row(device));
}

struct request {
    uint64_t *pointer;
    size_t bytes;
    void *stream;
    void *pool; /* NULL: the current one */
    void *real, *real_free;
};

static int call(const struct request *request) {
    if (request->pool)
        return ((int (*)(uint64_t *, size_t, void *, void *))request->real)(request->pointer, request->bytes,
                                                                            request->pool, request->stream);
    return ((int (*)(uint64_t *, size_t, void *))request->real)(request->pointer, request->bytes, request->stream);
}

/* The pool has grown past the limit with this request. */
static int give_up(const struct request *request, struct pool *pool) {
    ((int (*)(uint64_t, void *))request->real_free)(*request->pointer, request->stream);
    atomic_store(&may_shrink, true);
    settle(pool, 0);
    return CUDA_OUT_OF_MEMORY;
}

static int ask_driver(const struct request *request, struct pool *pool, uint64_t reserved) {
    int result = call(request);
    if (result != 0) {
        settle(pool, reserved);
        return result;
    }
    if (settle(pool, reserved) && ledger_limit(pool->row) && ledger_used(pool->row) > ledger_limit(pool->row)) {
        int (*real)(void *, size_t) = (int (*)(void *, size_t))quota_call(&trim);
        void *handle = atomic_load(&pool->handle);
        if (real && handle && handle != GONE)
            real(handle, 0);
        settle(pool, 0);
        if (ledger_used(pool->row) > ledger_limit(pool->row))
            return give_up(request, pool);
    }
    struct quota_piece piece = {.row = pool->row, .kind = (uint32_t)(pool - all_pools()) + 1};
    atomic_fetch_add(&pool->live, 1);
    if (!pointers_put(MEMORY, *request->pointer, piece))
        atomic_fetch_sub(&pool->live, 1);
    return result;
}

static int from_chunks(const struct request *request, struct pool *pool, bool *is_refused) {
    for (unsigned turn = 0;; turn++) {
        atomic_fetch_add(&pool->beside, 1);
        if (!atomic_load(&pool->alone))
            break;
        atomic_fetch_sub(&pool->beside, 1);
        quota_wait(turn);
    }
    int result = CUDA_OUT_OF_MEMORY;
    *is_refused = !ledger_reserve(pool->row, chunks(request->bytes));
    if (!*is_refused)
        result = ask_driver(request, pool, chunks(request->bytes));
    atomic_fetch_sub(&pool->beside, 1);
    return result;
}

static int from_unused(const struct request *request, struct pool *pool) {
    lock(&pool->alone);
    for (unsigned turn = 0; atomic_load(&pool->beside); turn++)
        quota_wait(turn);
    uint64_t holds, used;
    void *handle = atomic_load(&pool->handle);
    int result = CUDA_OUT_OF_MEMORY;
    if (ask(handle, RESERVED_CURRENT, &holds) && ask(handle, USED_CURRENT, &used) && holds > used) {
        uint64_t unused = holds - used, need = request->bytes > unused ? chunks(request->bytes - unused) : 0;
        if (ledger_reserve(pool->row, need))
            result = ask_driver(request, pool, need);
    }
    unlock(&pool->alone);
    return result;
}

static int allocate(const struct request *request) {
    if (quota_limits()->off)
        return call(request);
    if (graphs_is_capturing(request->stream)) {
        int result = call(request);
        if (result == 0)
            graphs_capture(request->stream, request->bytes);
        return result;
    }
    struct pool *pool = request->pool ? pool_of(request->pool) : current_pool();
    int row = pool ? pool->row : cuda_row_here();
    if (row == ROW_UNLIMITED)
        return call(request);
    if (row == ROW_CLOSED || chunks(request->bytes) < request->bytes)
        return CUDA_OUT_OF_MEMORY;
    if (pool) {
        bool is_refused;
        int result = from_chunks(request, pool, &is_refused);
        return is_refused ? from_unused(request, pool) : result;
    }
    struct quota_piece piece; /* no pool can be told, as in drivers that lack the question */
    if (!cuda_begin(&piece, row, request->bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = call(request);
    return cuda_end(&piece, result, MEMORY, result == 0 ? *request->pointer : 0);
}

void pools_freed(uint32_t number) {
    struct pool *pool = &all_pools()[number - 1];
    atomic_fetch_sub(&pool->live, 1);
    atomic_store(&may_shrink, true);
    settle(pool, 0);
}

QUOTA_WRAP(CUDA, cuMemFreeAsync, int, (uint64_t pointer, void *stream)) {
    CUDA_FREE(MEMORY, pointer, REAL(cuMemFreeAsync)(pointer, stream));
}

QUOTA_WRAP(CUDA, cuMemFreeAsync_ptsz, int, (uint64_t pointer, void *stream)) {
    CUDA_FREE(MEMORY, pointer, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}

QUOTA_WRAP(CUDA, cuMemAllocAsync, int, (uint64_t * pointer, size_t bytes, void *stream)) {
    return allocate(&(struct request){pointer, bytes, stream, NULL, REAL(cuMemAllocAsync), REAL(cuMemFreeAsync)});
}

QUOTA_WRAP(CUDA, cuMemAllocAsync_ptsz, int, (uint64_t * pointer, size_t bytes, void *stream)) {
    return allocate(
        &(struct request){pointer, bytes, stream, NULL, REAL(cuMemAllocAsync_ptsz), REAL(cuMemFreeAsync_ptsz)});
}

QUOTA_WRAP(CUDA, cuMemAllocFromPoolAsync, int, (uint64_t * pointer, size_t bytes, void *pool, void *stream)) {
    return allocate(&(struct request){pointer, bytes, stream, pool, REAL(cuMemAllocFromPoolAsync), REAL(cuMemFreeAsync)});
}

QUOTA_WRAP(CUDA, cuMemAllocFromPoolAsync_ptsz, int, (uint64_t * pointer, size_t bytes, void *pool, void *stream)) {
    return allocate(
        &(struct request){pointer, bytes, stream, pool, REAL(cuMemAllocFromPoolAsync_ptsz), REAL(cuMemFreeAsync_ptsz)});
}

struct pool_properties {
    int allocation_type, handle_types, location_type, location;
};

QUOTA_WRAP(CUDA, cuMemPoolCreate, int, (void **pool, const struct pool_properties *properties)) {
    int result = REAL(cuMemPoolCreate)(pool, properties);
    bool is_ours = result == 0 && !quota_limits()->off;
    if (is_ours) // 1: on a device; the others are host memory
        remember(*pool, properties->location_type == 1 ? cuda_row(properties->location) : ROW_UNLIMITED);
    return result;
}

/* Another process's pool: that process is charged. */
QUOTA_WRAP(CUDA, cuMemPoolImportFromShareableHandle, int, (void **pool, void *handle, int type, uint64_t flags)) {
    int result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result == 0 && !quota_limits()->off)
        remember(*pool, ROW_UNLIMITED);
    return result;
}

QUOTA_WRAP(CUDA, cuMemPoolDestroy, int, (void *handle)) {
    struct pool *pool = find(handle);
    // The number may be the next pool's as soon as the driver has it back.
    if (pool) {
        settle(pool, 0);
        atomic_store(&pool->handle, GONE);
    }
    int result = REAL(cuMemPoolDestroy)(handle);
    if (pool && result != 0)
        atomic_store(&pool->handle, handle);
    if (pool)
        settle(pool, 0);
    return result;
}

QUOTA_WRAP(CUDA, cuMemPoolTrimTo, int, (void *handle, size_t keep_bytes)) {
    int result = REAL(cuMemPoolTrimTo)(handle, keep_bytes);
    struct pool *pool = result == 0 ? find(handle) : NULL;
    if (pool)
        settle(pool, 0);
    return result;
}

/* At these a driver gives back what pools hold above their release threshold. */
#define SYNCHRONIZES(symbol, parameters, arguments)                                                                   \
    QUOTA_WRAP(CUDA, symbol, int, parameters) {                                                                       \
        int result = REAL(symbol) arguments;                                                                          \
        if (__builtin_expect(atomic_load_explicit(&may_shrink, memory_order_relaxed), 0))                             \
            synchronized();                                                                                           \
        return result;                                                                                                \
    }

SYNCHRONIZES(cuStreamSynchronize, (void *stream), (stream))
SYNCHRONIZES(cuStreamSynchronize_ptsz, (void *stream), (stream))
SYNCHRONIZES(cuCtxSynchronize, (void), ())
SYNCHRONIZES(cuEventSynchronize, (void *event), (event))
