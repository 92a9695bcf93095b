#include "context_size.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define USUAL_BYTES (520ull << 20) /* an H200 with driver 580.159 took 518 MiB; of others it is assumed */
#define MOST_PROCESSES 256

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static struct quota_call begin_nvml = {"nvmlInit_v2", NVML, NULL};
static struct quota_call end_nvml = {"nvmlShutdown", NVML, NULL};
static struct quota_call get_handle = {"nvmlDeviceGetHandleByUUID", NVML, NULL};
static struct quota_call get_processes = {"nvmlDeviceGetComputeRunningProcesses_v3", NVML, NULL};
static struct quota_call get_uuid = {"cuDeviceGetUuid_v2", CUDA, NULL};

static void *handle_of(int device) {
    int (*ask)(void *, int) = (int (*)(void *, int))quota_call(&get_uuid);
    int (*find)(const char *, void **) = (int (*)(const char *, void **))quota_call(&get_handle);
    static const char *const kinds[] = {"GPU", "MIG"};
    unsigned char id[16];
    char text[64];
    void *handle = NULL;
    if (!ask || !find || ask(id, device) != 0)
        return NULL;
    for (int at = 0; at < 2; at++) {
        int length = snprintf(text, sizeof text, "%s-", kinds[at]);
        for (int byte = 0; byte < 16; byte++)
            length += snprintf(text + length, sizeof text - (size_t)length, "%s%02x",
                               byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "", id[byte]);
        if (find(text, &handle) == 0)
            return handle;
    }
    return NULL;
}

/* What NVML says that a device holds for this process; 0: nothing. False where it cannot tell. A container's pids are
 * not those that NVML lists: there this process is never among them. */
static bool used_here(int device, uint64_t *bytes) {
    int (*ask)(void *, unsigned *, void *) = (int (*)(void *, unsigned *, void *))quota_call(&get_processes);
    void *handle = handle_of(device);
    struct process all[MOST_PROCESSES];
    unsigned count = MOST_PROCESSES;
    *bytes = 0;
    if (!ask || !handle || ask(handle, &count, all) != 0)
        return false;
    for (unsigned at = 0; at < count && at < MOST_PROCESSES; at++)
        if (all[at].pid == (unsigned)getpid())
            *bytes = all[at].used;
    return *bytes != ~0ull; /* NVML_VALUE_NOT_AVAILABLE */
}

static bool begin_watching(int device) {
    int (*begin)(void) = quota_open(NVML) ? (int (*)(void))quota_call(&begin_nvml) : NULL;
    int (*end)(void) = (int (*)(void))quota_call(&end_nvml);
    uint64_t bytes;
    if (!begin || begin() != 0)
        return false;
    if (used_here(device, &bytes) && bytes == 0)
        return true;
    if (end)
        end();
    return false;
}

void context_size_before(struct context_size *size, int device, int row) {
    const struct quota_limits *limits = quota_limits();
    struct ledger_row *shared = ledger_row_at(row);
    *size = (struct context_size){USUAL_BYTES, ASSUMED, false};
    if (limits->is_context_given)
        *size = (struct context_size){limits->context_bytes, GIVEN, false};
    else if (shared && atomic_load(&shared->context_trust) != UNKNOWN)
        *size = (struct context_size){atomic_load(&shared->context_bytes), atomic_load(&shared->context_trust), false};
    else
        size->is_watched = begin_watching(device);
}

void context_size_behind(struct context_size *size, int device, int row) {
    int (*end)(void) = (int (*)(void))quota_call(&end_nvml);
    struct ledger_row *shared = ledger_row_at(row);
    uint64_t bytes;
    if (size->is_watched && used_here(device, &bytes) && bytes) {
        size->bytes = quota_round(bytes);
        size->trust = MEASURED;
    }
    if (size->is_watched && end)
        end();
    size->is_watched = false;
    if (shared && size->trust >= atomic_load(&shared->context_trust)) {
        atomic_store(&shared->context_bytes, size->bytes);
        atomic_store(&shared->context_trust, size->trust);
    }
}
