/* CUDA: stream-ordered allocations.
 *
 * Before the driver is asked, the most that the pool can grow by is reserved; afterwards the pool is asked what it
 * holds, and charge and reservation are set right. Where that does not fit into the slice, the request may still fit
 * into what the pool holds unused: then it is alone with the pool, so that nobody else takes it. Should a pool grow by
 * more nevertheless and pass the limit, it is trimmed, and if that is not enough, the request is freed and refused.
 * Of a stream of another device than the current one the driver takes that device's pool; charged is the current one's.
 */
#include "pools.h"

static struct quota_call trim = {"cuMemPoolTrimTo", CUDA, NULL};

struct request {
    uint64_t *pointer;
    size_t bytes;
    void *stream;
    void *pool; /* NULL: the current one */
    void *real, *real_free;
    bool is_per_thread; /* no stream is the thread's */
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
    pools_settle(pool, 0);
    return CUDA_OUT_OF_MEMORY;
}

static int ask_driver(const struct request *request, struct pool *pool, uint64_t reserved) {
    int result = call(request);
    if (result != 0) {
        pools_settle(pool, reserved);
        return result;
    }
    if (pools_settle(pool, reserved) && ledger_limit(pool->row) && ledger_used(pool->row) > ledger_limit(pool->row)) {
        int (*real)(void *, size_t) = (int (*)(void *, size_t))quota_call(&trim);
        void *handle = atomic_load(&pool->handle);
        if (real && handle && handle != GONE)
            real(handle, 0);
        pools_settle(pool, 0);
        if (ledger_used(pool->row) > ledger_limit(pool->row))
            return give_up(request, pool);
    }
    struct quota_piece piece = {.row = pool->row, .kind = pools_took(pool)};
    struct quota_piece older = {.row = ROW_UNLIMITED};
    if (pointers_add(MEMORY, *request->pointer, &piece, &older))
        cuda_replaced(MEMORY, &older);
    else
        pools_freed(piece.kind);
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
    *is_refused = !ledger_try(pool->row, chunks(request->bytes));
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
    if (pools_ask(handle, RESERVED_CURRENT, &holds) && pools_ask(handle, USED_CURRENT, &used) && holds > used) {
        uint64_t unused = holds - used, need = request->bytes > unused ? chunks(request->bytes - unused) : 0;
        if (ledger_try(pool->row, need))
            result = ask_driver(request, pool, need);
    }
    unlock(&pool->alone);
    if (result == CUDA_OUT_OF_MEMORY)
        ledger_refuse(pool->row);
    return result;
}

static int allocate(const struct request *request) {
    if (quota_limits()->off)
        return call(request);
    void *stream = request->is_per_thread && !request->stream ? PER_THREAD_STREAM : request->stream;
    if (graphs_is_capturing(stream)) {
        int result = call(request);
        if (result == 0)
            graphs_capture(stream, *request->pointer, request->bytes);
        return result;
    }
    struct pool *pool = request->pool ? pools_of(request->pool) : pools_current();
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

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemFreeAsync, int, (uint64_t pointer, void *stream)) {
    CUDA_FREE(MEMORY, pointer, REAL(cuMemFreeAsync)(pointer, stream));
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemFreeAsync_ptsz, int, (uint64_t pointer, void *stream)) {
    CUDA_FREE(MEMORY, pointer, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemAllocAsync, int, (uint64_t * pointer, size_t bytes, void *stream)) {
    return allocate(
        &(struct request){pointer, bytes, stream, NULL, REAL(cuMemAllocAsync), REAL(cuMemFreeAsync), false});
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemAllocAsync_ptsz, int, (uint64_t * pointer, size_t bytes, void *stream)) {
    return allocate(
        &(struct request){pointer, bytes, stream, NULL, REAL(cuMemAllocAsync_ptsz), REAL(cuMemFreeAsync_ptsz), true});
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemAllocFromPoolAsync, int,
                 (uint64_t * pointer, size_t bytes, void *pool, void *stream)) {
    return allocate(
        &(struct request){pointer, bytes, stream, pool, REAL(cuMemAllocFromPoolAsync), REAL(cuMemFreeAsync), false});
}

QUOTA_WRAP_SINCE(CUDA, 11020, cuMemAllocFromPoolAsync_ptsz, int,
                 (uint64_t * pointer, size_t bytes, void *pool, void *stream)) {
    return allocate(
        &(struct request){pointer, bytes, stream, pool, REAL(cuMemAllocFromPoolAsync_ptsz),
                          REAL(cuMemFreeAsync_ptsz), true});
}

