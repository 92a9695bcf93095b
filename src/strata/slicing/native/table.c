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
static _Atomic bool is_learned[NUM_LIBRARIES];

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

void *table_swap(void *function) {
    for (EACH_WRAP(wrap))
        if (atomic_load_explicit(&wrap->raw, memory_order_acquire) == function && function)
            return wrap->wrapper;
    return function;
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

void *table_swap_named(void *function, const char *base, int version, bool is_per_thread) {
    size_t length = strlen(base);
    struct quota_wrap *best = NULL;
    for (int ask = is_per_thread; ask >= 0 && !best; ask--)
        for (EACH_WRAP(wrap))
            if (wrap->library == CUDA && wrap->since && version >= wrap->since && atomic_load(&wrap->raw) &&
                is_based_on(wrap, base, length, ask) && (!best || wrap->since > best->since))
                best = wrap;
    return best ? best->wrapper : function;
}

void *table_behind(const char *name) {
    dlsym_function *look_up = interpose_dlsym();
    void *found = look_up ? look_up(RTLD_NEXT, name) : NULL;
    // Never the last thing a function does: a jump instead of a call would make its caller's the place to look behind.
    __asm__ volatile("" : "+r"(found));
    return found;
}

/* A look-up of ours that failed is not the program's affair. */
static void clear_error(void) {
    char *(*error)(void) = (char *(*)(void))table_behind("dlerror");
    if (error)
        error();
}

/* The library where it is loaded already, kept loaded from now on: its functions stay in the table. */
static void *loaded(enum quota_library library) {
    void *(*open)(const char *, int) = (void *(*)(const char *, int))table_behind("dlopen");
    void *handle = open ? open(sonames[library], RTLD_LAZY | RTLD_NOLOAD) : NULL;
    clear_error();
    return handle;
}

void table_learn(enum quota_library library) {
    if (atomic_load_explicit(&is_learned[library], memory_order_acquire))
        return;
    void *handle = loaded(library);
    if (!handle)
        return;
    dlsym_function *look_up = interpose_dlsym();
    for (EACH_WRAP(wrap))
        if (wrap->library == library) {
            void *function = look_up(handle, wrap->name);
            if (function != wrap->wrapper)
                atomic_store_explicit(&wrap->raw, function, memory_order_release);
        }
    clear_error();
    atomic_store_explicit(&is_learned[library], true, memory_order_release);
}

static void *find_real(struct quota_wrap *wrap) {
    void *real = atomic_load_explicit(&wrap->real, memory_order_acquire);
    if (real)
        return real;
    table_learn(wrap->library);
    // A program linked to the driver may have another preloaded library between the two of us: it keeps its turn.
    real = table_behind(wrap->name);
    if (!real) {
        clear_error();
        real = atomic_load_explicit(&wrap->raw, memory_order_acquire);
    }
    if (real)
        atomic_store_explicit(&wrap->real, real, memory_order_release);
    return real;
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

void *quota_call(struct quota_call *call) {
    static char missing;
    void *real = atomic_load_explicit(&call->real, memory_order_acquire);
    if (__builtin_expect(real != NULL, 1))
        return real == &missing ? NULL : real;
    dlsym_function *look_up = interpose_dlsym();
    void *handle = loaded(call->library);
    if (!look_up || !handle)
        return NULL;
    real = look_up(handle, call->name);
    if (!real)
        clear_error();
    atomic_store_explicit(&call->real, real ? real : &missing, memory_order_release);
    return real;
}
