/* The three ways to a driver's functions, interposed: ELF symbols (our exports stand before the driver's), dlsym and
 * cuGetProcAddress.
 *
 * dlsym is tricky: RTLD_NEXT and RTLD_DEFAULT mean something else for every caller, who is known by the return address
 * alone. So our dlsym is a few instructions that ask interpose_choose() where to go and then jump there with everything,
 * the return address included, as it came. Only a name of the table with a real handle or RTLD_DEFAULT goes to
 * interpose_swap(). RTLD_NEXT never does: who asks with it is standing in line like us, and must get who stands behind.
 */
#include "table.h"

#include <dlfcn.h>
#include <string.h>

/* Weak, and the version that has always been there: since 2.34 dlvsym is libc's, before it was libdl's. */
extern void *quota_dlvsym(void *handle, const char *name, const char *version) __attribute__((weak));
#if defined(__x86_64__)
__asm__(".symver quota_dlvsym, dlvsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver quota_dlvsym, dlvsym@GLIBC_2.17");
#else
#error "dlsym is not interposed on this processor yet"
#endif
extern const char *gnu_get_libc_version(void) __attribute__((weak));

static _Atomic(dlsym_function *) next_dlsym;

/* The entry of our own dlsym. It is exported in the C library's versions (quota.map): who wraps dlsym too, as programs
 * and profilers do, has to look for the one behind by dlvsym, which passes over what has no version. */
void *dlsym_entry(void *handle, const char *name) __asm__("interpose_entry");

dlsym_function *interpose_dlsym(void) {
    static const char versions[][12] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27", "GLIBC_2.34", "GLIBC_2.36"};
    dlsym_function *known = atomic_load_explicit(&next_dlsym, memory_order_acquire);
    if (__builtin_expect(known != NULL, 1))
        return known;
    for (size_t at = 0; quota_dlvsym && !known && at < sizeof versions / sizeof *versions; at++) {
        known = (dlsym_function *)quota_dlvsym(RTLD_NEXT, "dlsym", versions[at]);
        if (known == dlsym_entry)
            known = NULL;
    }
    atomic_store_explicit(&next_dlsym, known, memory_order_release);
    return known;
}

static void *no_dlsym(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

static void *interpose_swap(void *handle, const char *name) {
    dlsym_function *look_up = interpose_dlsym();
    struct quota_wrap *wrap = table_find(name);
    bool is_off = quota_limits()->off;
    void *found = look_up(handle, name);
    // Our own export hides whether the driver has it; where it has not, neither have we (and dlerror says so).
    if (found == wrap->wrapper)
        return !quota_has(wrap) ? table_behind(name) : is_off ? quota_real(wrap) : found;
    bool is_drivers = found && found == table_raw(wrap);
    return is_drivers && !is_off ? wrap->wrapper : found;
}

static void *interpose_same(void *handle, const char *name) {
    dlsym_function *look_up = interpose_dlsym();
    void *found = look_up(handle, name);
    return found == (void *)look_up ? (void *)dlsym_entry : found;
}

/* Called from dlsym below alone. */
__attribute__((used)) dlsym_function *interpose_choose(void *handle, const char *name) {
    dlsym_function *next = interpose_dlsym();
    if (!next)
        return no_dlsym;
    if (!name || handle == RTLD_NEXT)
        return next;
    char first = name[0];
    if (first == 'd' && strcmp(name, "dlsym") == 0 && handle != RTLD_DEFAULT)
        return interpose_same;
    if (first != 'c' && first != 'n' && first != 'r' && first != 'a')
        return next;
    // Nothing of ours is asked before: sanitizers look for `calloc` while the C library has no environment yet.
    return table_find(name) ? interpose_swap : next;
}

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
        ".globl interpose_entry\n"
        ".globl interpose_entry_old\n"
        ".symver interpose_entry, dlsym@@GLIBC_2.34\n"
        ".symver interpose_entry_old, dlsym@GLIBC_2.2.5\n"
        ".type interpose_entry, @function\n"
        ".type interpose_entry_old, @function\n"
        "interpose_entry_old:\n"
        "interpose_entry:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    sub $24, %rsp\n"
        ".cfi_adjust_cfa_offset 24\n"
        "    mov %rdi, (%rsp)\n"
        "    mov %rsi, 8(%rsp)\n"
        "    call interpose_choose\n"
        "    mov (%rsp), %rdi\n"
        "    mov 8(%rsp), %rsi\n"
        "    add $24, %rsp\n"
        ".cfi_adjust_cfa_offset -24\n"
        "    jmp *%rax\n"
        ".cfi_endproc\n"
        ".size interpose_entry, . - interpose_entry\n"
        ".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
        ".globl interpose_entry\n"
        ".globl interpose_entry_old\n"
        ".symver interpose_entry, dlsym@@GLIBC_2.34\n"
        ".symver interpose_entry_old, dlsym@GLIBC_2.17\n"
        ".type interpose_entry, %function\n"
        ".type interpose_entry_old, %function\n"
        "interpose_entry_old:\n"
        "interpose_entry:\n"
        ".cfi_startproc\n"
        "    hint #34\n" /* bti c */
        "    stp x29, x30, [sp, #-32]!\n"
        ".cfi_def_cfa_offset 32\n"
        ".cfi_offset x29, -32\n"
        ".cfi_offset x30, -24\n"
        "    stp x0, x1, [sp, #16]\n"
        "    bl interpose_choose\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        ".cfi_def_cfa_offset 0\n"
        ".cfi_restore x29\n"
        ".cfi_restore x30\n"
        "    br x16\n"
        ".cfi_endproc\n"
        ".size interpose_entry, . - interpose_entry\n"
        ".popsection\n");
#endif

__attribute__((constructor)) static void open_interposition(void) {
    // Before 2.34 a program without libdl looks nothing up, and one that loads the driver has it.
    if (!interpose_dlsym() && !gnu_get_libc_version)
        quota_say("this C library is not glibc: the program finds no function by dlsym");
}

/* The driver is asked first, with what the program said: the version, the flags and the status are its affair. */
#define PER_THREAD_DEFAULT_STREAM 2u

static void swap(void **function, const char *name, int version, uint64_t flags) {
    if (!quota_limits()->off && function && *function && name)
        *function = table_swap(*function, name, version, flags & PER_THREAD_DEFAULT_STREAM);
}

QUOTA_WRAP_SINCE(CUDA, 11030, cuGetProcAddress, int, (const char *name, void **function, int version, uint64_t flags)) {
    int result = REAL(cuGetProcAddress)(name, function, version, flags);
    if (result == 0)
        swap(function, name, version, flags);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 12000, cuGetProcAddress_v2, int,
                 (const char *name, void **function, int version, uint64_t flags, void *status)) {
    int result = REAL(cuGetProcAddress_v2)(name, function, version, flags, status);
    if (result == 0)
        swap(function, name, version, flags);
    return result;
}
