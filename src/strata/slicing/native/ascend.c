/* Ascend: libruntime.so (rt...) and, above it, libascendcl.so (aclrt...).
 *
 * A program comes in by either, and aclrt calls rt: linked to it (so that our rt wrapper is called too) or past us.
 * Whoever is called first in a thread charges; what it calls in turn only passes through.
 * A device that is reset keeps its charge until the process ends: resets are counted by the driver, out of our sight.
 * Memory of the host, of shared names (rtIpcOpenMemory) and imported handles are nobody's here.
 */
#include <pthread.h>

#include "quota.h"

#define OUT_OF_MEMORY 207001 /* ACL_ERROR_RT_MEMORY_ALLOCATION, of both libraries */

static _Thread_local int nested;

/* ---- Devices -------------------------------------------------------------------------------------------- */

static uint64_t key_of(int ordinal) {
    static struct quota_call visible = {"rtGetVisibleDeviceIdByLogicDeviceId", RUNTIME, NULL};
    int (*real)(int32_t, int32_t *) = (int (*)(int32_t, int32_t *))quota_call(&visible);
    int32_t name[2] = {0x4e50u, ordinal}; /* a word before the number, so that no other vendor's key is like it */
    if (real && real(ordinal, &name[1]) != 0)
        return 0;
    return quota_hash(name, sizeof name);
}

static int row_of(int ordinal) {
    return quota_row(ASCEND, ordinal, key_of);
}

static int current_row(void) {
    static struct quota_call runtime = {"rtGetDevice", RUNTIME, NULL};
    static struct quota_call acl = {"aclrtGetDevice", ACL, NULL};
    int (*get)(int32_t *) = (int (*)(int32_t *))quota_call(&runtime);
    int32_t ordinal = 0;
    if (!get)
        get = (int (*)(int32_t *))quota_call(&acl);
    /* Without a device the driver will refuse; and where it cannot tell, the first limit is better than none. */
    if (!get || get(&ordinal) != 0)
        ordinal = 0;
    return row_of(ordinal);
}

/* ---- Taking and giving back ----------------------------------------------------------------------------- */

static bool charge(struct quota_piece *piece, int row, uint64_t bytes) {
    *piece = (struct quota_piece){quota_round(bytes), NULL, row, 0};
    return ledger_reserve(row, piece->bytes);
}

/* After the driver's answer: keep what was charged with what it gave, or give the charge back. */
static int settle(int result, enum quota_space space, void **made, const struct quota_piece *piece,
                  int (*give_back)(void *)) {
    struct quota_piece older = {.row = ROW_UNLIMITED};
    if (result == 0 && (piece->row == ROW_UNLIMITED || pointers_add(space, (uintptr_t)*made, piece, &older))) {
        ledger_release(older.row, older.bytes); /* of memory that was taken back unseen, as by a reset of the device */
        return 0;
    }
    if (result == 0) {
        give_back(*made);
        *made = NULL;
        result = OUT_OF_MEMORY;
    }
    ledger_release(piece->row, piece->bytes);
    return result;
}

#define CHARGED(space, row, bytes, made, call, give_back)            \
    do {                                                             \
        struct quota_piece piece;                                    \
        if (nested)                                                  \
            return call;                                             \
        if (!charge(&piece, row, bytes))                             \
            return OUT_OF_MEMORY;                                    \
        nested++;                                                    \
        int result = call;                                           \
        result = settle(result, space, made, &piece, give_back);     \
        nested--;                                                    \
        return result;                                               \
    } while (0)

static int free_memory(void *address, int (*real)(void *)) {
    struct quota_piece piece;
    if (nested)
        return real(address);
    bool is_known = pointers_take(MEMORY, (uintptr_t)address, &piece);
    nested++;
    int result = real(address);
    nested--;
    if (is_known && result == 0)
        ledger_release(piece.row, piece.bytes);
    else if (is_known)
        pointers_put(MEMORY, (uintptr_t)address, piece);
    return result;
}

/* ---- libruntime.so -------------------------------------------------------------------------------------- */

QUOTA_WRAP(RUNTIME, rtFree, int, (void *address)) {
    return free_memory(address, REAL(rtFree));
}

QUOTA_WRAP(RUNTIME, rtMalloc, int, (void **address, uint64_t bytes, uint32_t type, uint16_t module)) {
    CHARGED(MEMORY, current_row(), bytes, address, REAL(rtMalloc)(address, bytes, type, module), REAL(rtFree));
}

QUOTA_WRAP(RUNTIME, rtMallocCached, int, (void **address, uint64_t bytes, uint32_t type, uint16_t module)) {
    CHARGED(MEMORY, current_row(), bytes, address, REAL(rtMallocCached)(address, bytes, type, module), REAL(rtFree));
}

QUOTA_WRAP(RUNTIME, rtMemFreeManaged, int, (void *address)) {
    return free_memory(address, REAL(rtMemFreeManaged));
}

QUOTA_WRAP(RUNTIME, rtMemAllocManaged, int, (void **address, uint64_t bytes, uint32_t flag, uint16_t module)) {
    CHARGED(MEMORY, current_row(), bytes, address, REAL(rtMemAllocManaged)(address, bytes, flag, module),
            REAL(rtMemFreeManaged));
}

QUOTA_WRAP(RUNTIME, rtDvppFree, int, (void *address)) {
    return free_memory(address, REAL(rtDvppFree));
}

QUOTA_WRAP(RUNTIME, rtDvppMalloc, int, (void **address, uint64_t bytes, uint16_t module)) {
    CHARGED(MEMORY, current_row(), bytes, address, REAL(rtDvppMalloc)(address, bytes, module), REAL(rtDvppFree));
}

QUOTA_WRAP(RUNTIME, rtDvppMallocWithFlag, int, (void **address, uint64_t bytes, uint32_t flag, uint16_t module)) {
    CHARGED(MEMORY, current_row(), bytes, address, REAL(rtDvppMallocWithFlag)(address, bytes, flag, module),
            REAL(rtDvppFree));
}

static void show(size_t *left, size_t *total) {
    int row = current_row();
    uint64_t limit = ledger_limit(row);
    if (limit == 0 || *total == 0) /* 0: the device has no memory of that kind */
        return;
    uint64_t used = ledger_used(row);
    uint64_t rest = used < limit ? limit - used : 0;
    *total = *total < limit ? *total : (size_t)limit;
    *left = *left < rest ? *left : (size_t)rest;
}

QUOTA_WRAP(RUNTIME, rtMemGetInfo, int, (size_t *left, size_t *total)) {
    int result = REAL(rtMemGetInfo)(left, total);
    if (result == 0 && left && total)
        show(left, total);
    return result;
}

QUOTA_WRAP(RUNTIME, rtMemGetInfoEx, int, (int type, size_t *left, size_t *total)) {
    int result = REAL(rtMemGetInfoEx)(type, left, total);
    if (result == 0 && left && total)
        show(left, total);
    return result;
}

/* ---- Physical memory: charged until it is freed *and* unmapped, in either order -------------------------- */

enum mark { PHYSICAL = 0x4e50, MAPPED };

/* Not on a hot path, and the two tables below have to agree. */
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

static int free_physical(void *handle, int (*real)(void *)) {
    struct quota_piece piece, map;
    if (nested)
        return real(handle);
    pthread_mutex_lock(&mapping);
    bool is_known = pointers_take(HANDLES, (uintptr_t)handle, &piece);
    nested++;
    int result = real(handle);
    nested--;
    if (is_known && result != 0) {
        pointers_put(HANDLES, (uintptr_t)handle, piece);
    } else if (is_known && piece.context && pointers_find(MEMORY, (uintptr_t)piece.context, &map)) {
        map.bytes = piece.bytes; /* still mapped: the mapping carries the charge on */
        map.context = NULL;
        if (!pointers_put(MEMORY, (uintptr_t)piece.context, map))
            ledger_release(piece.row, piece.bytes);
    } else if (is_known) {
        ledger_release(piece.row, piece.bytes);
    }
    pthread_mutex_unlock(&mapping);
    return result;
}

static int map_memory(void *address, size_t bytes, size_t offset, void *handle, uint64_t flags,
                      int (*real)(void *, size_t, size_t, void *, uint64_t)) {
    struct quota_piece piece;
    if (nested)
        return real(address, bytes, offset, handle, flags);
    pthread_mutex_lock(&mapping);
    nested++;
    int result = real(address, bytes, offset, handle, flags);
    nested--;
    if (result == 0 && pointers_find(HANDLES, (uintptr_t)handle, &piece) && piece.kind == PHYSICAL) {
        struct quota_piece map = {0, handle, piece.row, MAPPED};
        piece.context = address; /* of several mappings the last */
        if (pointers_put(MEMORY, (uintptr_t)address, map))
            pointers_put(HANDLES, (uintptr_t)handle, piece);
    }
    pthread_mutex_unlock(&mapping);
    return result;
}

static int unmap_memory(void *address, int (*real)(void *)) {
    struct quota_piece piece, map;
    if (nested)
        return real(address);
    pthread_mutex_lock(&mapping);
    bool is_known = pointers_take(MEMORY, (uintptr_t)address, &map);
    nested++;
    int result = real(address);
    nested--;
    if (is_known && result != 0) {
        pointers_put(MEMORY, (uintptr_t)address, map);
    } else if (is_known && map.bytes) {
        ledger_release(map.row, map.bytes);
    } else if (is_known && pointers_find(HANDLES, (uintptr_t)map.context, &piece) && piece.context == address) {
        piece.context = NULL;
        pointers_put(HANDLES, (uintptr_t)map.context, piece);
    }
    pthread_mutex_unlock(&mapping);
    return result;
}

#define CHARGED_PHYSICAL(is_on_device, device, bytes, handle, call, give_back)                      \
    do {                                                                                            \
        struct quota_piece piece;                                                                   \
        if (nested || !(is_on_device))                                                              \
            return call;                                                                            \
        if (!charge(&piece, row_of((int)(device)), bytes))                                          \
            return OUT_OF_MEMORY;                                                                   \
        piece.kind = PHYSICAL;                                                                      \
        nested++;                                                                                   \
        int result = call;                                                                          \
        result = settle(result, HANDLES, handle, &piece, give_back);                                \
        nested--;                                                                                   \
        return result;                                                                              \
    } while (0)

struct runtime_physical {
    uint32_t side, device, module, page, type; /* side 1: the device's, device by its number in the process */
    uint64_t reserve;
};

QUOTA_WRAP(RUNTIME, rtFreePhysical, int, (void *handle)) {
    return free_physical(handle, REAL(rtFreePhysical));
}

QUOTA_WRAP(RUNTIME, rtMallocPhysical, int,
           (void **handle, size_t bytes, struct runtime_physical *prop, uint64_t flags)) {
    CHARGED_PHYSICAL(prop && prop->side == 1, prop->device, bytes, handle,
                     REAL(rtMallocPhysical)(handle, bytes, prop, flags), REAL(rtFreePhysical));
}

QUOTA_WRAP(RUNTIME, rtMapMem, int, (void *address, size_t bytes, size_t offset, void *handle, uint64_t flags)) {
    return map_memory(address, bytes, offset, handle, flags, REAL(rtMapMem));
}

QUOTA_WRAP(RUNTIME, rtUnmapMem, int, (void *address)) {
    return unmap_memory(address, REAL(rtUnmapMem));
}

/* ---- libascendcl.so ------------------------------------------------------------------------------------- */

/* What no device has stays as it is: the driver refuses it. */
static uint64_t padded(size_t bytes, uint64_t more) {
    return bytes > SIZE_MAX - 64 ? bytes : ((uint64_t)bytes + 31) / 32 * 32 + more;
}

QUOTA_WRAP(ACL, aclrtFree, int, (void *address)) {
    return free_memory(address, REAL(aclrtFree));
}

/* All but Align32 take 32 bytes more than the padded size. */
QUOTA_WRAP(ACL, aclrtMalloc, int, (void **address, size_t bytes, int policy)) {
    CHARGED(MEMORY, current_row(), padded(bytes, 32), address, REAL(aclrtMalloc)(address, bytes, policy),
            REAL(aclrtFree));
}

QUOTA_WRAP(ACL, aclrtMallocAlign32, int, (void **address, size_t bytes, int policy)) {
    CHARGED(MEMORY, current_row(), padded(bytes, 0), address, REAL(aclrtMallocAlign32)(address, bytes, policy),
            REAL(aclrtFree));
}

QUOTA_WRAP(ACL, aclrtMallocCached, int, (void **address, size_t bytes, int policy)) {
    CHARGED(MEMORY, current_row(), padded(bytes, 32), address, REAL(aclrtMallocCached)(address, bytes, policy),
            REAL(aclrtFree));
}

QUOTA_WRAP(ACL, aclrtMallocWithCfg, int, (void **address, size_t bytes, int policy, void *config)) {
    CHARGED(MEMORY, current_row(), padded(bytes, 32), address,
            REAL(aclrtMallocWithCfg)(address, bytes, policy, config), REAL(aclrtFree));
}

QUOTA_WRAP(ACL, aclrtMallocForTaskScheduler, int, (void **address, size_t bytes, int policy, void *config)) {
    CHARGED(MEMORY, current_row(), padded(bytes, 32), address,
            REAL(aclrtMallocForTaskScheduler)(address, bytes, policy, config), REAL(aclrtFree));
}

QUOTA_WRAP(ACL, aclrtGetMemInfo, int, (int attribute, size_t *left, size_t *total)) {
    int result = REAL(aclrtGetMemInfo)(attribute, left, total);
    if (result == 0 && left && total)
        show(left, total);
    return result;
}

struct acl_physical {
    int handle_type, allocation_type, attribute;
    uint32_t device;
    int location; /* 1: a device's */
    uint64_t reserve;
};

QUOTA_WRAP(ACL, aclrtFreePhysical, int, (void *handle)) {
    return free_physical(handle, REAL(aclrtFreePhysical));
}

QUOTA_WRAP(ACL, aclrtMallocPhysical, int,
           (void **handle, size_t bytes, const struct acl_physical *prop, uint64_t flags)) {
    CHARGED_PHYSICAL(prop && prop->location == 1, prop->device, bytes, handle,
                     REAL(aclrtMallocPhysical)(handle, bytes, prop, flags), REAL(aclrtFreePhysical));
}

QUOTA_WRAP(ACL, aclrtMapMem, int, (void *address, size_t bytes, size_t offset, void *handle, uint64_t flags)) {
    return map_memory(address, bytes, offset, handle, flags, REAL(aclrtMapMem));
}

QUOTA_WRAP(ACL, aclrtUnmapMem, int, (void *address)) {
    return unmap_memory(address, REAL(aclrtUnmapMem));
}
