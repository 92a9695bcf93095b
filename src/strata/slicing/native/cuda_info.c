/* CUDA and NVML: what a program sees of the memory is its slice. The driver is asked first; only its successes are
 * changed. */
#include "cuda.h"

#include <stdlib.h>

static struct quota_call get_uuid = {"nvmlDeviceGetUUID", NVML, NULL};
static struct quota_call get_index = {"nvmlDeviceGetIndex", NVML, NULL};

static uint64_t less(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

static void clamp(int row, size_t *available, size_t *total) {
    uint64_t limit = ledger_limit(row);
    if (!limit)
        return;
    uint64_t used = ledger_used(row);
    *total = less(*total, limit);
    *available = less(*available, used < *total ? *total - used : 0);
}

QUOTA_WRAP_SINCE(CUDA, 3020, cuMemGetInfo_v2, int, (size_t * available, size_t *total)) {
    int result = REAL(cuMemGetInfo_v2)(available, total);
    if (result == 0 && available && total)
        clamp(cuda_row_here(), available, total);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 3020, cuDeviceTotalMem_v2, int, (size_t * total, int device)) {
    int result = REAL(cuDeviceTotalMem_v2)(total, device);
    // Asked before the first allocation as a rule: this attaches the process to the ledger.
    uint64_t limit = result == 0 ? ledger_limit(cuda_row(device)) : 0;
    if (limit)
        *total = less(*total, limit);
    return result;
}

/* Without a row yet: where nothing hides devices from CUDA, both number them alike. */
static uint64_t limit_of(void *device, int row) {
    if (row >= 0)
        return ledger_limit(row);
    const struct quota_limits *limits = quota_limits();
    int (*ask)(void *, unsigned *) = (int (*)(void *, unsigned *))quota_call(&get_index);
    unsigned index;
    bool is_alike = !limits->off && !getenv("CUDA_VISIBLE_DEVICES") && ask && ask(device, &index) == 0;
    return is_alike && index < QUOTA_MOST_DEVICES ? limits->memory_bytes[index] : 0;
}

int nvml_row(void *device) {
    if (quota_limits()->off)
        return ROW_UNLIMITED;
    int (*ask)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))quota_call(&get_uuid);
    char text[96] = "";
    uint64_t key = ask && ask(device, text, sizeof text) == 0 ? quota_key_of_uuid(text) : 0;
    return key ? ledger_find(key) : ROW_UNLIMITED;
}

struct nvml_memory {
    unsigned long long total, available, used;
};

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, available, used;
};

QUOTA_WRAP(NVML, nvmlDeviceGetMemoryInfo, int, (void *device, struct nvml_memory *memory)) {
    int result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    int row = result == 0 ? nvml_row(device) : ROW_UNLIMITED;
    uint64_t limit = result == 0 ? limit_of(device, row) : 0;
    if (limit) {
        memory->total = less(memory->total, limit);
        memory->used = less(ledger_used(row), memory->total);
        memory->available = memory->total - memory->used;
    }
    return result;
}

QUOTA_WRAP(NVML, nvmlDeviceGetMemoryInfo_v2, int, (void *device, struct nvml_memory_v2 *memory)) {
    int result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    int row = result == 0 ? nvml_row(device) : ROW_UNLIMITED;
    uint64_t limit = result == 0 ? limit_of(device, row) : 0;
    if (limit) {
        memory->total = less(memory->total, limit);
        memory->reserved = 0; /* the driver's own, outside the slice */
        memory->used = less(ledger_used(row), memory->total);
        memory->available = memory->total - memory->used;
    }
    return result;
}
