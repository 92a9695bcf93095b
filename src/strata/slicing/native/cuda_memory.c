/* CUDA: plain and managed allocations, and what the other CUDA files share. */
#include "cuda.h"

static struct quota_call get_device = {"cuCtxGetDevice", CUDA, NULL};
static struct quota_call get_context = {"cuCtxGetCurrent", CUDA, NULL};
static struct quota_call get_uuid = {"cuDeviceGetUuid", CUDA, NULL};
static struct quota_call get_uuid_v2 = {"cuDeviceGetUuid_v2", CUDA, NULL};

uint64_t cuda_key_of_uuid(const void *uuid) {
    return quota_hash(uuid, 16);
}

/* A MIG instance has a UUID of its own, which only v2 tells. */
static uint64_t key_of(int ordinal) {
    struct quota_call *asks[] = {&get_uuid_v2, &get_uuid};
    int numbered[2] = {NVIDIA, ordinal};
    for (int at = 0; at < 2; at++) {
        int (*ask)(void *, int) = (int (*)(void *, int))quota_call(asks[at]);
        static const unsigned char none[16];
        unsigned char uuid[16] = {0};
        if (!ask)
            continue;
        if (ask(uuid, ordinal) != 0)
            return 0;
        if (__builtin_memcmp(uuid, none, sizeof uuid) != 0)
            return cuda_key_of_uuid(uuid);
    }
    return quota_hash(numbered, sizeof numbered);
}

int cuda_row(int ordinal) {
    return quota_row(NVIDIA, ordinal, key_of);
}

int cuda_device_here(void) {
    int (*ask)(int *) = (int (*)(int *))quota_call(&get_device);
    int device = -1;
    return ask && ask(&device) == 0 ? device : -1;
}

int cuda_row_here(void) {
    // Without a context the driver is about to say so itself.
    return cuda_row(cuda_device_here());
}

bool cuda_begin(struct quota_piece *piece, int row, uint64_t bytes) {
    *piece = (struct quota_piece){.bytes = quota_round(bytes), .row = row, .kind = PLAIN};
    int (*ask)(void **) = row >= 0 ? (int (*)(void **))quota_call(&get_context) : NULL;
    if (ask && ask(&piece->context) != 0)
        piece->context = NULL;
    return ledger_reserve(row, piece->bytes);
}

int cuda_end(const struct quota_piece *piece, int result, enum quota_space space, uint64_t address) {
    if (piece->row < 0)
        return result;
    struct quota_piece older = {.row = ROW_UNLIMITED};
    if (result != 0)
        ledger_release(piece->row, piece->bytes);
    else if (__builtin_expect(!pointers_add(space, address, piece, &older), 0))
        quota_say("no memory to remember an allocation: its %llu bytes stay charged", (unsigned long long)piece->bytes);
    else if (__builtin_expect(older.row >= 0, 0))
        cuda_replaced(space, &older);
    return result;
}

static void credit(enum quota_space space, const struct quota_piece *piece) {
    if (space == MEMORY && piece->kind != PLAIN)
        pools_freed(piece->kind);
    else
        ledger_release(piece->row, piece->bytes);
}

void cuda_freed(enum quota_space space, uint64_t address, const struct quota_piece *piece, int result) {
    if (piece && result != 0)
        pointers_put(space, address, *piece);
    else if (piece)
        credit(space, piece);
}

void cuda_replaced(enum quota_space space, const struct quota_piece *older) {
    if (older->row >= 0)
        credit(space, older);
}

QUOTA_WRAP_SINCE(CUDA, 3020, cuMemAlloc_v2, int, (uint64_t * pointer, size_t bytes)) {
    struct quota_piece piece;
    if (!cuda_begin(&piece, cuda_row_here(), bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuMemAlloc_v2)(pointer, bytes);
    return cuda_end(&piece, result, MEMORY, result == 0 ? *pointer : 0);
}

/* Managed memory is charged in full to the current device: it may all come to lie there. */
QUOTA_WRAP_SINCE(CUDA, 6000, cuMemAllocManaged, int, (uint64_t * pointer, size_t bytes, unsigned flags)) {
    struct quota_piece piece;
    if (!cuda_begin(&piece, cuda_row_here(), bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    return cuda_end(&piece, result, MEMORY, result == 0 ? *pointer : 0);
}

/* The driver chooses the pitch: reserved with rows of 512-byte steps, then set right. */
QUOTA_WRAP_SINCE(CUDA, 3020, cuMemAllocPitch_v2, int,
                 (uint64_t * pointer, size_t *pitch, size_t width, size_t height, unsigned element_bytes)) {
    struct quota_piece piece;
    size_t row_bytes = (width + 511) & ~(size_t)511;
    uint64_t bytes;
    if (__builtin_mul_overflow(row_bytes, height, &bytes))
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element_bytes);
    if (!cuda_begin(&piece, cuda_row_here(), bytes))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element_bytes);
    if (result == 0) {
        uint64_t charged = piece.bytes;
        piece.bytes = quota_round(*pitch * height);
        if (piece.bytes > charged)
            ledger_force(piece.row, piece.bytes - charged);
        else
            ledger_release(piece.row, charged - piece.bytes);
    }
    return cuda_end(&piece, result, MEMORY, result == 0 ? *pointer : 0);
}

QUOTA_WRAP_SINCE(CUDA, 3020, cuMemFree_v2, int, (uint64_t pointer)) {
    CUDA_FREE(MEMORY, pointer, REAL(cuMemFree_v2)(pointer));
}
