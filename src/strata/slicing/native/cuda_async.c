/* CUDA: stream-ordered allocations.
 *
 * Before the driver is asked, the most that the pool can grow by is reserved; afterwards the pool is asked what it
 * holds, and charge and reservation are set right. A pool full of holes may take a request or grow by it, which the
 * driver tells only afterwards: growing for small requests stops where some room is left, in which they can be tried.
 * Such a request is alone with the pool, so that nobody else takes the hole; if the pool grew nevertheless, the request
 * is freed again. Before one is refused the stream is waited for and the pool trimmed: what was freed goes back to the
 * device only when somebody has waited for it since.
 * Of a stream of another device than the current one the driver takes that device's pool; charged is the current one's.
 */
#include "cores.h"
#include "pools.h"

/* A larger hole has a whole chunk in it, which trimming gives back. */
#define MOST_OF_A_HOLE (2 * CHUNK)
#define LARGE_SLICE (1ull << 30) /* of smaller ones nothing is kept for trying */

static struct quota_call trim = {"cuMemPoolTrimTo", CUDA, NULL};
static struct quota_call wait_for_stream = {"cuStreamSynchronize", CUDA, NULL};

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

/* Give back to the device what the pool does not use, also what was freed on this stream just now. */
static void give_back(const struct request *request, struct pool *pool) {
    int (*wait)(void *) = (int (*)(void *))quota_call(&wait_for_stream);
    int (*cut)(void *, size_t) = (int (*)(void *, size_t))quota_call(&trim);
    void *handle = atomic_load(&pool->handle), *stream = request->stream;
    int mode = cores_relaxed();
    if (wait)
        wait(request->is_per_thread && !stream ? PER_THREAD_STREAM : stream);
    if (cut && handle && handle != GONE)
        cut(handle, 0);
    cores_strict(mode);
    pools_settle(pool, 0);
}

static bool is_beyond(int row) {
    uint64_t limit = ledger_limit(row);
    return limit && ledger_used(row) > limit;
}

static void free_again(const struct request *request) {
    ((int (*)(uint64_t, void *))request->real_free)(*request->pointer, request->stream);
}

static int ask_driver(const struct request *request, struct pool *pool, uint64_t reserved) {
    int result = call(request);
    // More than was reserved: from drivers whose pools grow by larger chunks.
    if (pools_settle(pool, reserved) && result == 0 && is_beyond(pool->row)) {
        give_back(request, pool);
        if (is_beyond(pool->row)) {
            free_again(request);
            give_back(request, pool);
            return CUDA_OUT_OF_MEMORY;
        }
    }
    return result;
}

static int remember(const struct request *request, struct pool *pool) {
    struct quota_piece piece = {.row = pool->row, .kind = pools_took(pool)};
    struct quota_piece older = {.row = ROW_UNLIMITED};
    if (pointers_add(MEMORY, *request->pointer, &piece, &older))
        cuda_replaced(MEMORY, &older);
    else
        pools_freed(piece.kind);
    return 0;
}

/* kept: room that must be left behind. Returns whether there was enough for the most that the pool can grow by. */
static bool from_chunks(const struct request *request, struct pool *pool, uint64_t kept, int *result) {
    for (unsigned turn = 0;; turn++) {
        atomic_fetch_add(&pool->beside, 1);
        if (!atomic_load(&pool->alone))
            break;
        atomic_fetch_sub(&pool->beside, 1);
        quota_wait(turn);
    }
    uint64_t most = chunks(request->bytes);
    bool has_room = ledger_try(pool->row, most);
    if (has_room && kept && ledger_charged(pool->row) + kept > ledger_limit(pool->row)) {
        ledger_release(pool->row, most);
        has_room = false;
    }
    if (has_room)
        *result = ask_driver(request, pool, most);
    atomic_fetch_sub(&pool->beside, 1);
    return has_room;
}

/* Returns whether it fits into what the pool holds unused. */
static bool from_a_hole(const struct request *request, struct pool *pool, int *result) {
    uint64_t holds, used, holds_now, most = chunks(request->bytes);
    void *handle = atomic_load(&pool->handle);
    bool is_taken = false;
    lock(&pool->alone);
    for (unsigned turn = 0; atomic_load(&pool->beside); turn++)
        quota_wait(turn);
    if (request->bytes < MOST_OF_A_HOLE && pools_ask(handle, RESERVED_CURRENT, &holds) &&
        pools_ask(handle, USED_CURRENT, &used) && holds >= used + request->bytes && ledger_try(pool->row, most)) {
        *result = ask_driver(request, pool, most);
        is_taken = *result == 0;
        if (is_taken && pools_ask(handle, RESERVED_CURRENT, &holds_now) && holds_now > holds) {
            // Nobody is waited for here: others wait for us, and a stream may wait for them. The caller gives back.
            free_again(request);
            is_taken = false;
        }
    }
    unlock(&pool->alone);
    return is_taken;
}

static int from_pool(const struct request *request, struct pool *pool) {
    uint64_t limit = ledger_limit(pool->row);
    uint64_t kept = limit >= LARGE_SLICE && request->bytes < MOST_OF_A_HOLE ? MOST_OF_A_HOLE : 0;
    int result = CUDA_OUT_OF_MEMORY;
    if (!from_chunks(request, pool, kept, &result) && !from_a_hole(request, pool, &result)) {
        give_back(request, pool);
        result = CUDA_OUT_OF_MEMORY;
        if (!from_chunks(request, pool, 0, &result))
            ledger_refuse(pool->row);
    }
    return result == 0 ? remember(request, pool) : result;
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
    if (pool)
        return from_pool(request, pool);
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

