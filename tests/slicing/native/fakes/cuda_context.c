#include "cuda.h"

#include <stdio.h>
#include <string.h>

static __thread CUcontext stack[16];
static __thread int depth;
static struct Thing *primary[MAX_DEVICES];

CUcontext current_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int current(void)
{
    return depth && stack[depth - 1] ? stack[depth - 1]->device : -1;
}

EXPORT CUresult cuInit(unsigned flags)
{
    (void)flags;
    ENTER(visit);
    return OK;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER(visit);
    *version = (int)setting("FAKE_VERSION", 13000);
    return OK;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER(visit);
    *count = devices();
    return OK;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(visit);
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices() ? OK : INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(visit);
    *value = attribute == 33 ? device + 1 : 0; /* 33: the PCI bus */
    return OK;
}

static void uuid(char *out, CUdevice device)
{
    memcpy(out, "FAKE-DEVICE-000", 16);
    out[15] = (char)physical(device);
}

EXPORT CUresult cuDeviceGetUuid(char *out, CUdevice device)
{
    ENTER(visit);
    uuid(out, device);
    return OK;
}

EXPORT CUresult cuDeviceGetUuid_v2(char *out, CUdevice device)
{
    ENTER(visit);
    uuid(out, device);
    return OK;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *out, int room, CUdevice device)
{
    ENTER(visit);
    snprintf(out, (size_t)room, "0000:%02X:00.0", device + 1);
    return OK;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(visit);
    if (device < 0 || device >= devices())
        return INVALID_DEVICE;
    *bytes = (size_t)device_bytes();
    return OK;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    ENTER(visit);
    (void)device;
    *bytes = (unsigned)device_bytes();
    return OK;
}

static CUresult open_context(CUcontext *context, CUdevice device)
{
    if (device < 0 || device >= devices())
        return INVALID_DEVICE;
    int64_t bytes = setting("FAKE_CONTEXT_BYTES", 0);
    if (!hold(device, bytes))
        return OUT_OF_MEMORY;
    lock();
    *context = add(fresh(512), CONTEXT, device, bytes);
    unlock();
    return OK;
}

static void free_if_of(struct Thing *thing, void *context)
{
    if (thing->context == context && (thing->kind == LINEAR || thing->kind == ARRAY)) {
        unhold(thing->device, thing->bytes);
        take(thing);
    }
}

static void close_context(CUcontext context)
{
    lock();
    each(free_if_of, context);
    unhold(context->device, context->bytes);
    if (current_context() == context)
        depth--;
    take(context);
    unlock();
}

static int retained[MAX_DEVICES]; /* a reset ends what is in a context, not that it is retained */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(visit_slowly);
    if (device < 0 || device >= devices())
        return INVALID_DEVICE;
    if (!primary[device]) {
        CUresult result = open_context(&primary[device], device);
        if (result)
            return result;
    }
    retained[device]++;
    *context = primary[device];
    return OK;
}

static CUresult release(CUdevice device, int all)
{
    if (device < 0 || device >= devices() || !primary[device])
        return all ? OK : INVALID_CONTEXT;
    if (all || --retained[device] == 0) {
        close_context(primary[device]);
        primary[device] = NULL;
    }
    return OK;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    ENTER(visit);
    return release(device, 0);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(visit);
    return release(device, 0);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    ENTER(visit);
    return release(device, 1);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER(visit);
    return release(device, 1);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER(visit);
    *flags = 0;
    *active = primary[device] != NULL;
    return OK;
}

static CUresult create(CUcontext *context, CUdevice device)
{
    CUresult result = open_context(context, device);
    if (result == OK)
        stack[depth++] = *context;
    return result;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    ENTER(visit_slowly);
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
    (void)affinity, (void)count, (void)flags;
    ENTER(visit_slowly);
    return create(context, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device)
{
    (void)params, (void)flags;
    ENTER(visit_slowly);
    return create(context, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER(visit);
    close_context(context);
    return OK;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(visit);
    *context = current_context();
    return OK;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER(visit);
    if (depth)
        stack[depth - 1] = context;
    else
        stack[depth++] = context;
    return OK;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(visit);
    if (depth == 16)
        return INVALID_VALUE;
    stack[depth++] = context;
    return OK;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(visit);
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(visit);
    *device = current();
    return *device < 0 ? INVALID_CONTEXT : OK;
}

static CUresult synchronize(void)
{
    if (current() < 0)
        return INVALID_CONTEXT;
    drain(current());
    settle(current());
    return OK;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER(visit);
    return synchronize();
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    ENTER(visit);
    return synchronize();
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    (void)stream;
    ENTER(visit);
    return synchronize();
}

EXPORT CUresult cuEventSynchronize(void *event)
{
    (void)event;
    ENTER(visit);
    return synchronize();
}

/* Copies to the host are waited for; nothing is copied. */
#define COPIES(symbol, ...)                                   \
    EXPORT CUresult symbol(void *to, CUdeviceptr from, size_t bytes __VA_ARGS__) \
    {                                                         \
        (void)to, (void)from, (void)bytes;                    \
        ENTER(visit);                                         \
        return synchronize();                                 \
    }

COPIES(cuMemcpyDtoH_v2)
COPIES(cuMemcpyDtoH_v2_ptds)
COPIES(cuMemcpyDtoHAsync_v2, , void *stream __attribute__((unused)))
COPIES(cuMemcpyDtoHAsync_v2_ptsz, , void *stream __attribute__((unused)))
