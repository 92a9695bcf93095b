/* CUDA: a context's end frees what was allocated in it. The context's own memory (hundreds of MiB) is not charged: the
 * driver tells how much is free only once there is a context, and for all tenants of the device together. */
#include "cuda.h"

static struct quota_call get_state = {"cuDevicePrimaryCtxGetState", CUDA, NULL};

static _Atomic(void *) primary[QUOTA_MOST_DEVICES];

static void ended(void *context) {
    if (!context)
        return;
    pointers_drop_context(MEMORY, context);
    pointers_drop_context(ARRAYS, context);
}

static void primary_ended(int device) {
    if (device >= 0 && device < QUOTA_MOST_DEVICES)
        ended(atomic_load(&primary[device]));
}

QUOTA_WRAP_SINCE(CUDA, 4000, cuCtxDestroy_v2, int, (void *context)) {
    int result = REAL(cuCtxDestroy_v2)(context);
    if (result == 0)
        ended(context);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 7000, cuDevicePrimaryCtxRetain, int, (void **context, int device)) {
    int result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == 0 && device >= 0 && device < QUOTA_MOST_DEVICES)
        atomic_store(&primary[device], *context);
    return result;
}

/* Others may still hold it: only the last release ends it. */
static int released(int result, int device) {
    int (*ask)(int, unsigned *, int *) = (int (*)(int, unsigned *, int *))quota_call(&get_state);
    unsigned flags;
    int is_active = 1;
    if (result == 0 && ask && ask(device, &flags, &is_active) == 0 && !is_active)
        primary_ended(device);
    return result;
}

static int was_reset(int result, int device) {
    if (result == 0)
        primary_ended(device);
    return result;
}

/* Those before 11.0 are what the plain name is to who asks by dlsym, as from Python. */
QUOTA_WRAP_SINCE(CUDA, 7000, cuDevicePrimaryCtxRelease, int, (int device)) {
    return released(REAL(cuDevicePrimaryCtxRelease)(device), device);
}

QUOTA_WRAP_SINCE(CUDA, 11000, cuDevicePrimaryCtxRelease_v2, int, (int device)) {
    return released(REAL(cuDevicePrimaryCtxRelease_v2)(device), device);
}

QUOTA_WRAP_SINCE(CUDA, 7000, cuDevicePrimaryCtxReset, int, (int device)) {
    return was_reset(REAL(cuDevicePrimaryCtxReset)(device), device);
}

QUOTA_WRAP_SINCE(CUDA, 11000, cuDevicePrimaryCtxReset_v2, int, (int device)) {
    return was_reset(REAL(cuDevicePrimaryCtxReset_v2)(device), device);
}
