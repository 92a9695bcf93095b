/* NVML: who uses a device is who holds something of the slice, with what it holds. The driver is asked first, and what it
 * says of others is not handed on. Processes of other containers are left out: their pids mean nothing here. */
#include "cuda.h"

#define INSUFFICIENT_SIZE 7
#define MOST_LISTED 1024

/* As the first form has them, and as all later ones do. */
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static bool is_sliced(int result, void *device, const unsigned *count, int *row) {
    *row = (result == 0 || result == INSUFFICIENT_SIZE) && count ? nvml_row(device) : ROW_UNLIMITED;
    return ledger_limit(*row) != 0;
}

static int list(int row, unsigned *count, unsigned room, void *listed, bool is_v1) {
    struct quota_holder all[MOST_LISTED];
    unsigned found = ledger_holders(row, all, MOST_LISTED);
    found = found < MOST_LISTED ? found : MOST_LISTED;
    *count = found;
    if (found > room || (found && !listed))
        return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < found; at++)
        if (is_v1)
            ((struct process_v1 *)listed)[at] = (struct process_v1){all[at].pid, all[at].bytes};
        else
            ((struct process_v2 *)listed)[at] = (struct process_v2){all[at].pid, all[at].bytes, ~0u, ~0u};
    return 0;
}

#define LISTS(symbol, is_v1)                                                                                          \
    QUOTA_WRAP(NVML, symbol, int, (void *device, unsigned *count, void *listed)) {                                    \
        unsigned room = count ? *count : 0;                                                                           \
        int row, result = REAL(symbol)(device, count, listed);                                                        \
        return is_sliced(result, device, count, &row) ? list(row, count, room, listed, is_v1) : result;               \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses, true)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, false)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, false)

/* Of these kinds a slice has none: what holds its memory is listed above, under MPS too. */
#define LISTS_NONE(symbol)                                                                                            \
    QUOTA_WRAP(NVML, symbol, int, (void *device, unsigned *count, void *listed)) {                                    \
        int row, result = REAL(symbol)(device, count, listed);                                                        \
        if (!is_sliced(result, device, count, &row))                                                                  \
            return result;                                                                                            \
        *count = 0;                                                                                                   \
        return 0;                                                                                                     \
    }

LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v2)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v3)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3)
