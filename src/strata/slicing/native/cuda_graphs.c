/* CUDA: memory of graphs. A graph with allocation nodes takes memory when it is launched, and the device keeps that for
 * the next launch until it is trimmed: the device's graph memory is charged like a pool, by what it has reserved.
 *
 * A launch reserves beforehand what the device may come to need: its graph's footprint, but never more than what it had
 * when it was last trimmed and the footprints of all graphs launched since, less what it has. Graphs that do not run at
 * once share memory, which no question tells: where that does not fit, what the stream runs is waited for, memory that
 * nothing uses is trimmed, and the whole footprint is reserved.
 */
#include "cuda.h"
#include "graph_footprint.h"

#include <time.h>

#define LONGEST_WAIT_MS 200

enum { RESERVED_CURRENT = 2, CAPTURE_ACTIVE = 1, NODE_MEM_ALLOC = 10 };

static struct quota_call get_attribute = {"cuDeviceGetGraphMemAttribute", CUDA, NULL};
static struct quota_call is_capturing = {"cuStreamIsCapturing", CUDA, NULL};
static struct quota_call query = {"cuStreamQuery", CUDA, NULL};
static struct quota_call trim = {"cuDeviceGraphMemTrim", CUDA, NULL};
static struct quota_call capture_info = {"cuStreamGetCaptureInfo_v2", CUDA, NULL};

struct graph_memory {
    _Atomic uint32_t lock;
    _Atomic uint32_t trims;
    _Atomic uint64_t charged;
    uint64_t most; /* what graphs can have mapped: at the last trim, and the footprints of those launched since */
};

static _Atomic(struct graph_memory *) memories; /* [QUOTA_MOST_DEVICES] */
/* No graph of this process allocates: launches cost nothing more. */
static _Atomic bool has_nodes;

static struct graph_memory *memory_of(int device) {
    quota_notice_fork();
    struct graph_memory *known = atomic_load_explicit(&memories, memory_order_acquire);
    if (!known) {
        struct graph_memory *fresh = quota_wiped(sizeof(struct graph_memory) * QUOTA_MOST_DEVICES);
        if (fresh && atomic_compare_exchange_strong(&memories, &known, fresh))
            known = fresh;
    }
    return known && device >= 0 && device < QUOTA_MOST_DEVICES ? known + device : NULL;
}

static bool ask(int device, int attribute, uint64_t *value) {
    int (*real)(int, int, void *) = (int (*)(int, int, void *))quota_call(&get_attribute);
    *value = 0;
    return real && real(device, attribute, value) == 0;
}

static void lock(struct graph_memory *memory) {
    for (unsigned turn = 0; atomic_exchange_explicit(&memory->lock, 1, memory_order_acquire); turn++)
        quota_wait(turn);
}

static void unlock(struct graph_memory *memory) {
    atomic_store_explicit(&memory->lock, 0, memory_order_release);
}

static void settle(int device, int row, uint64_t reserved, bool is_trimmed) {
    struct graph_memory *memory = memory_of(device);
    if (!memory || row < 0)
        return;
    lock(memory);
    uint64_t charged = atomic_load(&memory->charged), holds;
    if (!ask(device, RESERVED_CURRENT, &holds))
        holds = charged;
    atomic_store(&memory->charged, holds);
    if (holds > charged + reserved)
        ledger_force(row, holds - charged - reserved);
    else
        ledger_release(row, charged + reserved - holds);
    if (is_trimmed) {
        memory->most = holds;
        atomic_fetch_add(&memory->trims, 1);
    }
    unlock(memory);
}

static void add_to(void *graph, uint64_t address, uint64_t bytes) {
    struct quota_piece piece = {.row = ROW_UNLIMITED};
    pointers_take(GRAPHS, (uintptr_t)graph, &piece);
    struct footprint *footprint = footprint_add(piece.context, address, bytes);
    piece.context = footprint;
    piece.bytes = footprint_bytes(footprint);
    pointers_put(GRAPHS, (uintptr_t)graph, piece);
    atomic_store(&has_nodes, true);
}

bool graphs_is_capturing(void *stream) {
    int (*real)(void *, int *) = (int (*)(void *, int *))quota_call(&is_capturing);
    int status = 0;
    return real && real(stream, &status) == 0 && status == CAPTURE_ACTIVE;
}

bool graphs_capture(void *stream, uint64_t address, uint64_t bytes) {
    int (*real)(void *, int *, uint64_t *, void **, const void **, size_t *) =
        (int (*)(void *, int *, uint64_t *, void **, const void **, size_t *))quota_call(&capture_info);
    int status = 0;
    void *graph = NULL;
    if (!real || real(stream, &status, NULL, &graph, NULL, NULL) != 0 || !graph)
        return false;
    add_to(graph, address, bytes);
    return true;
}

struct alloc_node {
    unsigned char pool_properties[88];
    const void *access;
    size_t num_access;
    size_t bytes;
    uint64_t address;
};

struct node {
    int type;
    int reserved[3];
    struct alloc_node allocation;
};

/* A node larger than the slice could never be launched: refused where it is made, as in plain allocations. */
static bool fits(uint64_t bytes) {
    int row = quota_limits()->off ? ROW_UNLIMITED : cuda_row_here();
    uint64_t limit = ledger_limit(row);
    return row != ROW_CLOSED && (!limit || bytes <= limit);
}

QUOTA_WRAP_SINCE(CUDA, 11040, cuGraphAddMemAllocNode, int,
           (void **node, void *graph, void *const *after, size_t num_after, struct alloc_node *allocation)) {
    if (allocation && !fits(allocation->bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuGraphAddMemAllocNode)(node, graph, after, num_after, allocation);
    if (result == 0 && !quota_limits()->off)
        add_to(graph, allocation->address, allocation->bytes);
    return result;
}

static bool allocates(const struct node *parameters) {
    return parameters && parameters->type == NODE_MEM_ALLOC && !quota_limits()->off;
}

QUOTA_WRAP_SINCE(CUDA, 12020, cuGraphAddNode, int,
                 (void **node, void *graph, void *const *after, size_t num_after, struct node *parameters)) {
    if (allocates(parameters) && !fits(parameters->allocation.bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuGraphAddNode)(node, graph, after, num_after, parameters);
    if (result == 0 && allocates(parameters))
        add_to(graph, parameters->allocation.address, parameters->allocation.bytes);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 12030, cuGraphAddNode_v2, int,
                 (void **node, void *graph, void *const *after, const void *edges, size_t num_after,
                  struct node *parameters)) {
    if (allocates(parameters) && !fits(parameters->allocation.bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuGraphAddNode_v2)(node, graph, after, edges, num_after, parameters);
    if (result == 0 && allocates(parameters))
        add_to(graph, parameters->allocation.address, parameters->allocation.bytes);
    return result;
}

/* An executable graph needs what its graph needed. */
static int instantiated(int result, void *const *exec, void *graph) {
    struct quota_piece piece;
    if (result == 0 && pointers_find(GRAPHS, (uintptr_t)graph, &piece)) {
        piece.context = NULL;
        pointers_put(GRAPH_EXECS, (uintptr_t)*exec, piece);
    }
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 11000, cuGraphInstantiate_v2, int,
                 (void **exec, void *graph, void **node, char *log, size_t log_bytes)) {
    return instantiated(REAL(cuGraphInstantiate_v2)(exec, graph, node, log, log_bytes), exec, graph);
}

QUOTA_WRAP_SINCE(CUDA, 11040, cuGraphInstantiateWithFlags, int, (void **exec, void *graph, unsigned long long flags)) {
    return instantiated(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

QUOTA_WRAP_SINCE(CUDA, 12000, cuGraphInstantiateWithParams, int, (void **exec, void *graph, void *parameters)) {
    return instantiated(REAL(cuGraphInstantiateWithParams)(exec, graph, parameters), exec, graph);
}

QUOTA_WRAP_SINCE(CUDA, 12000, cuGraphInstantiateWithParams_ptsz, int, (void **exec, void *graph, void *parameters)) {
    return instantiated(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, parameters), exec, graph);
}

QUOTA_WRAP_SINCE(CUDA, 10000, cuGraphExecDestroy, int, (void *exec)) {
    struct quota_piece piece;
    pointers_take(GRAPH_EXECS, (uintptr_t)exec, &piece);
    return REAL(cuGraphExecDestroy)(exec);
}

QUOTA_WRAP_SINCE(CUDA, 10000, cuGraphDestroy, int, (void *graph)) {
    struct quota_piece piece;
    if (pointers_take(GRAPHS, (uintptr_t)graph, &piece))
        footprint_end(piece.context);
    return REAL(cuGraphDestroy)(graph);
}

QUOTA_WRAP_SINCE(CUDA, 11040, cuDeviceGraphMemTrim, int, (int device)) {
    int result = REAL(cuDeviceGraphMemTrim)(device);
    if (result == 0 && atomic_load(&has_nodes))
        settle(device, cuda_row(device), 0, true);
    return result;
}

/* Uploading takes the memory before the first launch does. */
static int upload(int (*real)(void *, void *), void *exec, void *stream, void *waited_for) {
    struct graph_launch launch;
    if (!graphs_begin_launch(exec, waited_for, &launch))
        return CUDA_OUT_OF_MEMORY;
    int result = real(exec, stream);
    graphs_end_launch(&launch);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 11010, cuGraphUpload, int, (void *exec, void *stream)) {
    return upload(REAL(cuGraphUpload), exec, stream, stream);
}

QUOTA_WRAP_SINCE(CUDA, 11010, cuGraphUpload_ptsz, int, (void *exec, void *stream)) {
    return upload(REAL(cuGraphUpload_ptsz), exec, stream, stream ? stream : PER_THREAD_STREAM);
}

/* What the device may come to have for graphs above what it has, with this one launched. */
static uint64_t may_grow_by(struct graph_memory *memory, void *exec, struct quota_piece *piece, uint64_t holds) {
    lock(memory);
    uint32_t counted = atomic_load(&memory->trims) + 1;
    if (piece->kind != counted) {
        memory->most += piece->bytes;
        piece->kind = counted;
        pointers_put(GRAPH_EXECS, (uintptr_t)exec, *piece);
    }
    uint64_t most = memory->most > holds ? memory->most - holds : 0;
    unlock(memory);
    return piece->bytes < most ? piece->bytes : most;
}

/* Wait for what the stream runs, not for long: the launch is the program's to wait in. */
static void wait_for(void *stream) {
    enum { NOT_READY = 600 };
    int (*real)(void *) = (int (*)(void *))quota_call(&query);
    for (int turn = 0; real && real(stream) == NOT_READY && turn < LONGEST_WAIT_MS; turn++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static bool reserve_trimmed(struct graph_launch *launch, void *exec, struct quota_piece *piece, void *stream) {
    int (*real)(int) = (int (*)(int))quota_call(&trim);
    struct graph_memory *memory = memory_of(launch->device);
    uint64_t holds;
    if (!real || !memory || graphs_is_capturing(stream))
        return false;
    wait_for(stream);
    if (real(launch->device) != 0)
        return false;
    settle(launch->device, launch->row, 0, true);
    ask(launch->device, RESERVED_CURRENT, &holds);
    launch->reserved = may_grow_by(memory, exec, piece, holds);
    return ledger_reserve(launch->row, launch->reserved);
}

bool graphs_begin_launch(void *exec, void *stream, struct graph_launch *launch) {
    struct quota_piece piece;
    *launch = (struct graph_launch){.device = -1};
    if (!atomic_load_explicit(&has_nodes, memory_order_relaxed))
        return true;
    launch->device = cuda_device_here();
    launch->row = cuda_row(launch->device);
    struct graph_memory *memory = memory_of(launch->device);
    uint64_t holds;
    if (!memory || !pointers_find(GRAPH_EXECS, (uintptr_t)exec, &piece))
        return true;
    if (!ask(launch->device, RESERVED_CURRENT, &holds))
        return true; /* a driver that does not tell: nothing to charge by */
    launch->reserved = may_grow_by(memory, exec, &piece, holds);
    return ledger_try(launch->row, launch->reserved) || reserve_trimmed(launch, exec, &piece, stream);
}

void graphs_end_launch(const struct graph_launch *launch) {
    if (launch->device >= 0)
        settle(launch->device, launch->row, launch->reserved, false);
}
