/* As much of NVML as monitoring tools ask for a device's memory. */
#include "fake.h"

#include <stdio.h>
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
