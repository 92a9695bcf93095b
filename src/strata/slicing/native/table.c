/* The table of wrappers: every QUOTA_WRAP of every file, by name and by the address of the driver's own function.
 *
 * A wrapper replaces an address, never a name: a symbol of that name in another library is left alone, and versions and
 * per-thread variants are told apart by the driver. The rows lie in a section of their own; about a hundred of them are
 * looked through, since programs look functions up once. */
#include "table.h"

#include <dlfcn.h>
#include <string.h>

extern struct quota_wrap __start_quota_wraps[], __stop_quota_wraps[];

#define EACH_WRAP(wrap) struct quota_wrap *wrap = __start_quota_wraps; wrap < __stop_quota_wraps; wrap++

static const char *const sonames[NUM_LIBRARIES] = {"libcuda.so.1", "libnvidia-ml.so.1", "libruntime.so",
                                                   "libascendcl.so"};
static _Atomic(void *) handles[NUM_LIBRARIES];

/* What a call to a function that the driver lacks answers with. */
static int no_cuda_function(void) { return 500; }   /* CUDA_ERROR_NOT_FOUND */
static int no_nvml_function(void) { return 13; }    /* NVML_ERROR_FUNCTION_NOT_FOUND */
static int no_ascend_function(void) { return 500000; } /* ACL_ERROR_INTERNAL_ERROR */

struct quota_wrap *table_find(const char *name) {
    size_t length = strlen(name);
    for (EACH_WRAP(wrap))
        if (wrap->length == length && memcmp(wrap->name, name, length) == 0)
            return wrap;
    return NULL;
}

/* Whether `name` is `base`, then maybe _v2 and so on, then maybe _ptsz or _ptds. */
static bool is_based_on(const struct quota_wrap *wrap, const char *base, size_t length, bool is_per_thread) {
    const char *rest = wrap->name + length;
    if (wrap->length < length || memcmp(wrap->name, base, length) != 0)
        return false;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '2' && rest[2] <= '9')
        rest += 3;
    return is_per_thread ? strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0 : *rest == '\0';
}

void *table_behind(const char *name) {
    dlsym_function *look_up = interpose_dlsym();
    void *found = look_up ? look_up(RTLD_NEXT, name) : NULL;
    // Never the last thing a function does: a jump instead of a call would make its caller's the place to look behind.
    __asm__ volatile("" : "+r"(found));
    return found;
}

/* What stands behind us, looked up once. */
static void *behind_once(const char *name, _Atomic(void *) *known) {
    void *found = atomic_load_explicit(known, memory_order_acquire);
    if (!found) {
        found = table_behind(name);
        atomic_store_explicit(known, found, memory_order_release);
    }
    return found;
}

/* A look-up of ours that failed is not the program's affair: one that succeeds forgets it (glibc's dlfcn/dlerror.c,
 * _dlerror_run), and writes no message that nobody reads. */
static void clear_error(void) {
    table_behind("dlerror");
}

/* The library where it is loaded already, kept loaded from now on: its functions stay in the table. */
static void *loaded(enum quota_library library) {
    static _Atomic(void *) known;
    void *handle = atomic_load_explicit(&handles[library], memory_order_acquire);
    if (handle)
        return handle;
    void *(*open)(const char *, int) = (void *(*)(const char *, int))behind_once("dlopen", &known);
    handle = open ? open(sonames[library], RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (handle)
        atomic_store_explicit(&handles[library], handle, memory_order_release);
    else
        clear_error();
    return handle;
}

static void *look_up_in(void *handle, const char *name) {
    dlsym_function *look_up = interpose_dlsym();
    void *found = look_up ? look_up(handle, name) : NULL;
    if (!found)
        clear_error();
    return found;
}

void *table_raw(struct quota_wrap *wrap) {
    void *raw = atomic_load_explicit(&wrap->raw, memory_order_acquire);
    void *handle = raw ? NULL : loaded(wrap->library);
    if (handle) {
        raw = look_up_in(handle, wrap->name);
        if (raw == wrap->wrapper)
            return NULL;
        raw = raw ? raw : QUOTA_MISSING;
        atomic_store_explicit(&wrap->raw, raw, memory_order_release);
    }
    return raw == QUOTA_MISSING ? NULL : raw;
}

static void *swap_by_address(void *function, const char *base, size_t length) {
    for (EACH_WRAP(wrap))
        if (memcmp(wrap->name, base, wrap->length < length ? wrap->length : length) == 0 && table_raw(wrap) == function)
            return wrap->wrapper;
    return NULL;
}

static void *find_real(struct quota_wrap *wrap) {
    void *real = atomic_load_explicit(&wrap->real, memory_order_acquire);
    if (real)
        return real;
    // A program linked to the driver may have another preloaded library between the two of us: it keeps its turn.
    real = table_behind(wrap->name);
    if (!real) {
        clear_error();
        real = table_raw(wrap);
    }
    if (real)
        atomic_store_explicit(&wrap->real, real, memory_order_release);
    return real;
}

void *table_swap(void *function, const char *base, int version, bool is_per_thread) {
    // Another library that stands before us may have answered with a wrapper of ours already: that is the right one.
    for (EACH_WRAP(wrap))
        if (wrap->wrapper == function)
            return function;
    void *found = swap_by_address(function, base, strlen(base));
    if (found)
        return found;
    // From 12.0 on the plain name means what its own name has meant before.
    if (version >= 12000 && strcmp(base, "cuGraphInstantiate") == 0)
        base = "cuGraphInstantiateWithFlags";
    size_t length = strlen(base);
    struct quota_wrap *best = NULL;
    for (int ask = is_per_thread; ask >= 0 && !best; ask--)
        for (EACH_WRAP(wrap))
            if (wrap->library == CUDA && wrap->since && version >= wrap->since &&
                is_based_on(wrap, base, length, ask) && (!best || wrap->since > best->since) && table_raw(wrap))
                best = wrap;
    return best ? best->wrapper : function;
}

void *quota_real_slow(struct quota_wrap *wrap) {
    void *real = find_real(wrap);
    if (real)
        return real;
    return wrap->library == CUDA   ? (void *)no_cuda_function
           : wrap->library == NVML ? (void *)no_nvml_function
                                   : (void *)no_ascend_function;
}

bool quota_has(struct quota_wrap *wrap) {
    return find_real(wrap) != NULL;
}

bool quota_open(enum quota_library library) {
    void *(*open)(const char *, int) = (void *(*)(const char *, int))table_behind("dlopen");
    if (!loaded(library) && !(open && open(sonames[library], RTLD_LAZY | RTLD_LOCAL)))
        clear_error();
    return loaded(library) != NULL;
}

void *quota_call_slow(struct quota_call *call) {
    if (atomic_load_explicit(&call->real, memory_order_acquire) == QUOTA_MISSING)
        return NULL;
    void *handle = loaded(call->library), *real = handle ? look_up_in(handle, call->name) : NULL;
    if (handle)
        atomic_store_explicit(&call->real, real ? real : QUOTA_MISSING, memory_order_release);
    return real;
}
