/* CUDA: a process's first context of a device is charged with what contexts take (context_size.h), until its last one
 * ends; and a context's end frees what was allocated in it. */
#include "context_size.h"
#include "cuda.h"

static struct quota_call get_state = {"cuDevicePrimaryCtxGetState", CUDA, NULL};

struct contexts {
    _Atomic uint32_t lock;
    bool has_primary;
    uint32_t created, beginning; /* by cuCtxCreate; by calls that have not answered yet */
    uint64_t charged;
    int row; /* that is charged */
    void *primary;
};

static _Atomic(struct contexts *) all_contexts; /* [QUOTA_MOST_DEVICES] */

static struct contexts *contexts_of(int device) {
    quota_notice_fork();
    struct contexts *known = atomic_load_explicit(&all_contexts, memory_order_acquire);
    if (!known) {
        struct contexts *fresh = quota_wiped(sizeof(struct contexts[QUOTA_MOST_DEVICES]));
        if (fresh && atomic_compare_exchange_strong(&all_contexts, &known, fresh))
            known = fresh;
    }
    return known && device >= 0 && device < QUOTA_MOST_DEVICES ? known + device : NULL;
}

static void lock(struct contexts *contexts) {
    for (unsigned turn = 0; atomic_exchange_explicit(&contexts->lock, 1, memory_order_acquire); turn++)
        quota_wait(turn);
}

static void unlock(struct contexts *contexts) {
    atomic_store_explicit(&contexts->lock, 0, memory_order_release);
}

/* With the contexts locked. */
static void release_if_none(struct contexts *contexts) {
    if (contexts->has_primary || contexts->created || contexts->beginning)
        return;
    ledger_release(contexts->row, contexts->charged);
    contexts->charged = 0;
}

struct beginning {
    struct contexts *contexts; /* NULL: nothing is counted */
    struct context_size size;  /* trust UNKNOWN: it is charged already */
    int device, row;
};

static bool begin(struct beginning *begun, int device) {
    *begun = (struct beginning){.device = device, .row = quota_limits()->off ? ROW_UNLIMITED : cuda_row(device)};
    struct contexts *contexts = begun->row >= 0 ? contexts_of(device) : NULL;
    if (!contexts)
        return true;
    begun->contexts = contexts;
    lock(contexts);
    bool is_first = !contexts->has_primary && !contexts->created && !contexts->beginning;
    bool is_granted = true;
    if (is_first && ledger_limit(begun->row)) {
        context_size_before(&begun->size, device, begun->row);
        is_granted = ledger_reserve(begun->row, begun->size.bytes);
        contexts->row = begun->row;
        contexts->charged = is_granted ? begun->size.bytes : 0;
    }
    contexts->beginning += is_granted;
    unlock(contexts);
    if (!is_granted)
        quota_say("device %d: a context takes %llu MiB, which the slice has not left (STRATA_CONTEXT_BYTES)", device,
                  (unsigned long long)(begun->size.bytes >> 20));
    return is_granted;
}

static int end(struct beginning *begun, int result, bool is_primary, void *const *context) {
    struct contexts *contexts = begun->contexts;
    if (!contexts)
        return result;
    lock(contexts);
    contexts->beginning--;
    if (result == 0 && begun->size.trust != UNKNOWN) {
        context_size_behind(&begun->size, begun->device, begun->row);
        if (begun->size.bytes > contexts->charged)
            ledger_force(begun->row, begun->size.bytes - contexts->charged);
        else
            ledger_release(begun->row, contexts->charged - begun->size.bytes);
        contexts->charged = begun->size.bytes;
    }
    if (result == 0 && is_primary) {
        contexts->has_primary = true;
        contexts->primary = *context;
    } else if (result == 0 && pointers_put(CONTEXTS, (uintptr_t)*context,
                                           (struct quota_piece){.row = ROW_UNLIMITED, .kind = (uint32_t)begun->device})) {
        contexts->created++;
    }
    release_if_none(contexts);
    unlock(contexts);
    return result;
}

static void drop(void *context) {
    if (!context)
        return;
    pointers_drop_context(MEMORY, context);
    pointers_drop_context(ARRAYS, context);
}

static void primary_ended(int device) {
    struct contexts *contexts = quota_limits()->off ? NULL : contexts_of(device);
    if (!contexts)
        return;
    lock(contexts);
    drop(contexts->primary);
    contexts->has_primary = false;
    contexts->primary = NULL;
    release_if_none(contexts);
    unlock(contexts);
}

QUOTA_WRAP_SINCE(CUDA, 2000, cuInit, int, (unsigned flags)) {
    ledger_begin();
    return REAL(cuInit)(flags);
}

#define CREATES(symbol, since, parameters, arguments)                                                                 \
    QUOTA_WRAP_SINCE(CUDA, since, symbol, int, parameters) {                                                          \
        struct beginning begun;                                                                                       \
        return begin(&begun, device) ? end(&begun, REAL(symbol) arguments, false, context) : CUDA_OUT_OF_MEMORY;      \
    }

CREATES(cuCtxCreate_v2, 3020, (void **context, unsigned flags, int device), (context, flags, device))
CREATES(cuCtxCreate_v3, 11040, (void **context, void *affinity, int count, unsigned flags, int device),
        (context, affinity, count, flags, device))
CREATES(cuCtxCreate_v4, 12050, (void **context, void *parameters, unsigned flags, int device),
        (context, parameters, flags, device))

QUOTA_WRAP_SINCE(CUDA, 4000, cuCtxDestroy_v2, int, (void *context)) {
    struct quota_piece piece;
    // The number may be the next context's as soon as the driver has it back.
    bool is_known = pointers_take(CONTEXTS, (uintptr_t)context, &piece);
    int result = REAL(cuCtxDestroy_v2)(context);
    struct contexts *contexts = is_known ? contexts_of((int)piece.kind) : NULL;
    if (result == 0)
        drop(context);
    else if (is_known)
        pointers_put(CONTEXTS, (uintptr_t)context, piece);
    if (contexts && result == 0) {
        lock(contexts);
        contexts->created -= contexts->created != 0;
        release_if_none(contexts);
        unlock(contexts);
    }
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 7000, cuDevicePrimaryCtxRetain, int, (void **context, int device)) {
    struct beginning begun;
    return begin(&begun, device) ? end(&begun, REAL(cuDevicePrimaryCtxRetain)(context, device), true, context)
                                 : CUDA_OUT_OF_MEMORY;
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
