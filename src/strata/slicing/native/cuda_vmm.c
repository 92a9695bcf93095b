/* CUDA: physical memory (cuMemCreate) and its mappings. Memory is held while it has a handle or a mapping: programs map
 * and then release the handle, so the charge goes when both are gone.
 *
 * Charged is the device that the properties name, not the current one; host locations are not charged, and memory
 * imported from another process is its maker's. These calls take microseconds: one lock for all is little beside them.
 */
#include "cuda.h"

#include <string.h>
#include <sys/mman.h>

#define ON_DEVICE 1 /* CU_MEM_LOCATION_TYPE_DEVICE */

struct object {
    uint64_t bytes;
    int32_t row;
    uint32_t handles, mappings;
    uint32_t next_free; /* index + 1 */
};

struct mapping {
    uint64_t start, end;
    uint32_t object;
};

/* An array that doubles; its old memory goes back. */
struct list {
    void *items;
    uint32_t count, capacity;
};

struct state {
    _Atomic uint32_t lock;
    uint32_t first_free; /* index + 1 */
    struct list objects;
    struct list mappings; /* by start */
};

static _Atomic(struct state *) known_state;

static struct state *state_now(void) {
    quota_notice_fork();
    struct state *known = atomic_load_explicit(&known_state, memory_order_acquire);
    if (known)
        return known;
    struct state *fresh = quota_wiped(sizeof *fresh);
    return fresh && atomic_compare_exchange_strong(&known_state, &known, fresh) ? fresh : known;
}

static struct state *locked(void) {
    struct state *state = state_now();
    for (unsigned turn = 0; state && atomic_exchange_explicit(&state->lock, 1, memory_order_acquire); turn++)
        quota_wait(turn);
    return state;
}

static void unlock(struct state *state) {
    atomic_store_explicit(&state->lock, 0, memory_order_release);
}

static bool grow(struct list *list, size_t item_bytes) {
    if (list->count < list->capacity)
        return true;
    uint32_t capacity = list->capacity ? 2 * list->capacity : 256;
    void *items = mmap(NULL, capacity * item_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (items == MAP_FAILED)
        return false;
    if (list->items) {
        memcpy(items, list->items, list->count * item_bytes);
        munmap(list->items, list->capacity * item_bytes);
    }
    list->items = items;
    list->capacity = capacity;
    return true;
}

static struct object *object_at(const struct state *state, uint32_t index) {
    return (struct object *)state->objects.items + index;
}

/* The index of the first mapping that ends behind an address. */
static uint32_t mapping_behind(const struct state *state, uint64_t address) {
    const struct mapping *all = state->mappings.items;
    uint32_t low = 0, high = state->mappings.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (all[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Give up an object that nothing refers to any more: returns the charge to release. */
static uint64_t end_if_free(struct state *state, uint32_t index) {
    struct object *object = object_at(state, index);
    if (object->handles || object->mappings)
        return 0;
    object->next_free = state->first_free;
    state->first_free = index + 1;
    return object->bytes;
}

static bool add_object(uint64_t handle, int row, uint64_t bytes) {
    struct state *state = locked();
    if (!state)
        return false;
    uint32_t index = state->first_free ? state->first_free - 1 : state->objects.count;
    bool has_room = state->first_free || grow(&state->objects, sizeof(struct object));
    // The record of a handle: its object's number, and how often the program has it.
    has_room = has_room && pointers_put(HANDLES, handle, (struct quota_piece){.bytes = 1, .kind = index});
    if (has_room) {
        if (state->first_free)
            state->first_free = object_at(state, index)->next_free;
        else
            state->objects.count++;
        *object_at(state, index) = (struct object){.bytes = bytes, .row = row, .handles = 1};
    }
    unlock(state);
    return has_room;
}

struct properties {
    int type, handle_types, location_type, location;
};

QUOTA_WRAP_SINCE(CUDA, 10020, cuMemCreate, int,
           (uint64_t * handle, size_t bytes, const struct properties *properties, unsigned long long flags)) {
    bool is_here = properties && properties->location_type == ON_DEVICE;
    int row = is_here ? cuda_row(properties->location) : ROW_UNLIMITED;
    uint64_t charge = quota_round(bytes);
    if (!ledger_reserve(row, charge))
        return CUDA_OUT_OF_MEMORY;
    int result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (result != 0)
        ledger_release(row, charge);
    else if (row >= 0 && !add_object(*handle, row, charge))
        quota_say("no memory to remember an allocation: its %llu bytes stay charged", (unsigned long long)charge);
    return result;
}

/* Count a handle's number once more or less: retaining may give out the same number again, or another one. */
static void count_handle(struct state *state, uint64_t handle, uint32_t index, int by) {
    struct quota_piece piece = {.kind = index};
    if (!pointers_take(HANDLES, handle, &piece) || piece.kind != index)
        piece = (struct quota_piece){.kind = index};
    piece.bytes += (uint64_t)(int64_t)by;
    if (piece.bytes == 0 || pointers_put(HANDLES, handle, piece))
        object_at(state, index)->handles += (uint32_t)by;
}

QUOTA_WRAP_SINCE(CUDA, 10020, cuMemRelease, int, (uint64_t handle)) {
    struct state *state = quota_limits()->off ? NULL : locked();
    // Locked over the driver's call: the number may be another thread's as soon as the driver has it back.
    int result = REAL(cuMemRelease)(handle);
    struct quota_piece piece;
    if (state && result == 0 && pointers_find(HANDLES, handle, &piece)) {
        int32_t row = object_at(state, piece.kind)->row;
        count_handle(state, handle, piece.kind, -1);
        ledger_release(row, end_if_free(state, piece.kind));
    }
    if (state)
        unlock(state);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 10020, cuMemMap, int,
           (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)) {
    int result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    struct quota_piece piece;
    struct state *state = result == 0 && pointers_find(HANDLES, handle, &piece) ? locked() : NULL;
    if (!state)
        return result;
    if (grow(&state->mappings, sizeof(struct mapping))) {
        uint32_t at = mapping_behind(state, address);
        struct mapping *all = state->mappings.items;
        memmove(&all[at + 1], &all[at], (state->mappings.count++ - at) * sizeof *all);
        all[at] = (struct mapping){address, address + bytes, piece.kind};
        object_at(state, piece.kind)->mappings++;
    }
    unlock(state);
    return result;
}

/* One call may end many mappings, which follow each other. */
QUOTA_WRAP_SINCE(CUDA, 10020, cuMemUnmap, int, (uint64_t address, size_t bytes)) {
    struct state *state = quota_limits()->off ? NULL : locked();
    // Locked over the driver's call: another thread may map the same address as soon as it is free.
    int result = REAL(cuMemUnmap)(address, bytes);
    if (!state)
        return result;
    uint32_t from = mapping_behind(state, address), to = from;
    struct mapping *all = state->mappings.items;
    for (; result == 0 && to < state->mappings.count && all[to].end <= address + bytes; to++) {
        uint32_t index = all[to].object;
        object_at(state, index)->mappings--;
        int32_t row = object_at(state, index)->row;
        ledger_release(row, end_if_free(state, index));
    }
    if (to > from)
        memmove(&all[from], &all[to], (state->mappings.count - to) * sizeof *all);
    state->mappings.count -= to - from;
    unlock(state);
    return result;
}

/* Another process's memory is that process's; our own comes back under its number, which counts once more. */
QUOTA_WRAP_SINCE(CUDA, 10020, cuMemImportFromShareableHandle, int, (uint64_t * handle, void *shared, int type)) {
    struct state *state = quota_limits()->off ? NULL : locked();
    int result = REAL(cuMemImportFromShareableHandle)(handle, shared, type);
    struct quota_piece piece;
    if (state && result == 0 && pointers_find(HANDLES, *handle, &piece))
        count_handle(state, *handle, piece.kind, 1);
    if (state)
        unlock(state);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 11000, cuMemRetainAllocationHandle, int, (uint64_t * handle, void *address)) {
    int result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct state *state = result == 0 && !quota_limits()->off ? locked() : NULL;
    if (!state)
        return result;
    uint32_t at = mapping_behind(state, (uintptr_t)address);
    const struct mapping *all = state->mappings.items;
    if (at < state->mappings.count && all[at].start <= (uintptr_t)address)
        count_handle(state, *handle, all[at].object, 1);
    unlock(state);
    return result;
}
