/* As much of NVML as monitoring tools ask for a device's memory. */
#include "fake.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Device {
    int index;
} *Device;
static struct Device all[MAX_DEVICES];

EXPORT int nvmlInit_v2(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        all[i].index = i;
    return 0;
}

EXPORT int nvmlShutdown(void)
{
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)devices();
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    *device = &all[index % MAX_DEVICES];
    return index < (unsigned)devices() ? 0 : 2;
}

EXPORT int nvmlDeviceGetIndex(Device device, unsigned *index)
{
    *index = (unsigned)device->index;
    return 0;
}

EXPORT int nvmlDeviceGetUUID(Device device, char *out, unsigned room)
{
    snprintf(out, room, "GPU-46414b45-2d44-4556-4943-452d303030%02x", device->index);
    return 0;
}

struct PciInfo {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(Device device, struct PciInfo *info)
{
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)device->index + 1;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", info->bus);
    return 0;
}

struct Memory {
    unsigned long long total, left, used;
};
struct Memory2 {
    unsigned version;
    unsigned long long total, reserved, left, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(Device device, struct Memory *memory)
{
    unsigned long long total = (unsigned long long)device_bytes(), used = (unsigned long long)held(device->index);
    *memory = (struct Memory){total, total - used, used};
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Device device, struct Memory2 *memory)
{
    unsigned long long total = (unsigned long long)device_bytes(), used = (unsigned long long)held(device->index);
    *memory = (struct Memory2){memory->version, total, 0, total - used, used};
    return 0;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    char one[64];
    for (int i = 0; i < devices(); i++) {
        nvmlDeviceGetUUID(&all[i], one, sizeof one);
        if (strcmp(one, uuid) == 0) {
            *device = &all[i];
            return 0;
        }
    }
    return 6;
}

struct Process1 {
    unsigned pid;
    unsigned long long used;
};
struct Process2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static int list(Device device, unsigned *count, void *out, int is_first_form)
{
    unsigned found = 0;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        int64_t pid = atomic_load(&state->processes[i].pid);
        int64_t used = atomic_load(&state->processes[i].held[device->index]);
        if (pid == 0 || used == 0 || kill((int)pid, 0) != 0)
            continue;
        if (found < *count && is_first_form)
            ((struct Process1 *)out)[found] = (struct Process1){(unsigned)pid, (unsigned long long)used};
        else if (found < *count)
            ((struct Process2 *)out)[found] = (struct Process2){(unsigned)pid, (unsigned long long)used, ~0u, ~0u};
        found++;
    }
    int is_enough = found <= *count;
    *count = found;
    return is_enough ? 0 : 7;
}

#define LISTS(symbol, is_first_form)                                                                   \
    EXPORT int symbol(Device device, unsigned *count, void *out)                        \
    {                                                                                                \
        return list(device, count, out, is_first_form);                                              \
    }

/* Of all kinds the same list. */
LISTS(nvmlDeviceGetComputeRunningProcesses, 1)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, 1)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v2, 0)
LISTS(nvmlDeviceGetGraphicsRunningProcesses_v3, 0)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, 1)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v2, 0)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0)
