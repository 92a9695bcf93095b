/* npu DOOR WORD...: as calls, for Ascend. DOOR is link or dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Physical {
    uint32_t side, device, module, page, type;
    uint64_t reserve;
};
struct AclPhysical {
    int handle_type, allocation_type, attribute;
    struct {
        uint32_t id;
        int type;
    } location;
    uint64_t reserve;
};

#define FUNCTIONS(F)                                                              \
    F(aclrtSetDevice, (int32_t))                                                  \
    F(aclrtMalloc, (void **, size_t, int))                                        \
    F(aclrtMallocAlign32, (void **, size_t, int))                                 \
    F(aclrtMallocCached, (void **, size_t, int))                                  \
    F(aclrtMallocWithCfg, (void **, size_t, int, void *))                         \
    F(aclrtFree, (void *))                                                        \
    F(aclrtMallocPhysical, (void **, size_t, const struct AclPhysical *, uint64_t)) \
    F(aclrtFreePhysical, (void *))                                                \
    F(aclrtMapMem, (void *, size_t, size_t, void *, uint64_t))                    \
    F(aclrtUnmapMem, (void *))                                                    \
    F(aclrtGetMemInfo, (int, size_t *, size_t *))                                 \
    F(rtMalloc, (void **, uint64_t, uint32_t, uint16_t))                          \
    F(rtMallocCached, (void **, uint64_t, uint32_t, uint16_t))                    \
    F(rtFree, (void *))                                                           \
    F(rtMallocPhysical, (void **, size_t, struct Physical *, uint64_t))           \
    F(rtFreePhysical, (void *))                                                   \
    F(rtMemGetInfo, (size_t *, size_t *))                                         \
    F(rtMemGetInfoEx, (int, size_t *, size_t *))

#ifdef LINKED
#define DECLARE(name, form) extern int name form;
FUNCTIONS(DECLARE)
#endif

#define FIELD(name, form) int(*name) form;
static struct {
    FUNCTIONS(FIELD)
} npu;

static void *got[256];
static int num_got;

static int keep(int result, void *const *what)
{
    if (result == 0)
        got[num_got++] = *what;
    return result;
}

static size_t amount(const char *text)
{
    char *unit;
    size_t value = strtoull(text, &unit, 0);
    return *unit == 'M' ? value << 20 : *unit == 'G' ? value << 30 : value;
}

static int call(const char *name, const char *first, const char *second)
{
    void *made = NULL;
    size_t bytes = amount(first), left = 0, total = 0;
    int which = atoi(first);
    if (!strcmp(name, "device"))
        return npu.aclrtSetDevice(which);
    if (!strcmp(name, "malloc"))
        return keep(npu.aclrtMalloc(&made, bytes, 0), &made);
    if (!strcmp(name, "align"))
        return keep(npu.aclrtMallocAlign32(&made, bytes, 0), &made);
    if (!strcmp(name, "cached"))
        return keep(npu.aclrtMallocCached(&made, bytes, 0), &made);
    if (!strcmp(name, "config"))
        return keep(npu.aclrtMallocWithCfg(&made, bytes, 0, NULL), &made);
    if (!strcmp(name, "free"))
        return npu.aclrtFree(got[which]);
    if (!strcmp(name, "freebad"))
        return npu.aclrtFree((void *)0xdeadbeef);
    if (!strcmp(name, "rtmalloc"))
        return keep(npu.rtMalloc(&made, bytes, 0, 0), &made);
    if (!strcmp(name, "rtcached"))
        return keep(npu.rtMallocCached(&made, bytes, 0, 0), &made);
    if (!strcmp(name, "rtfree"))
        return npu.rtFree(got[which]);
    if (!strcmp(name, "physical")) {
        struct AclPhysical prop = {0, 0, 0, {(uint32_t)atoi(second), 1}, 0};
        return keep(npu.aclrtMallocPhysical(&made, bytes, &prop, 0), &made);
    }
    if (!strcmp(name, "hostphysical")) {
        struct AclPhysical prop = {0, 0, 0, {0, 0}, 0};
        return keep(npu.aclrtMallocPhysical(&made, bytes, &prop, 0), &made);
    }
    if (!strcmp(name, "endphysical"))
        return npu.aclrtFreePhysical(got[which]);
    if (!strcmp(name, "rtphysical")) {
        struct Physical prop = {1, (uint32_t)atoi(second), 0, 0, 0, 0};
        return keep(npu.rtMallocPhysical(&made, bytes, &prop, 0), &made);
    }
    if (!strcmp(name, "rtendphysical"))
        return npu.rtFreePhysical(got[which]);
    if (!strcmp(name, "map")) /* map:ADDRESS:HANDLE */
        return npu.aclrtMapMem((void *)bytes, 4096, 0, got[atoi(second)], 0);
    if (!strcmp(name, "unmap"))
        return npu.aclrtUnmapMem((void *)bytes);
    if (!strcmp(name, "info") || !strcmp(name, "rtinfo")) {
        int result = *name == 'i' ? npu.aclrtGetMemInfo(1, &left, &total) : npu.rtMemGetInfoEx(1, &left, &total);
        printf("free %zu total %zu ", left, total);
        return result;
    }
    if (!strcmp(name, "wait"))
        return pause();
    if (!strcmp(name, "held")) {
        int64_t *(*state)(void) = (int64_t * (*)(void))(uintptr_t)dlsym(dlopen("libruntime.so", RTLD_NOW), "fake_state");
        printf("bytes %lld ", (long long)state()[which]);
        return 0;
    }
    fprintf(stderr, "npu: no such word: %s\n", name);
    exit(64);
}

static void reach(const char *door)
{
#ifdef LINKED
#define TAKE(name, form) npu.name = name;
    (void)door;
    FUNCTIONS(TAKE)
#else
    void *acl = dlopen("libascendcl.so", RTLD_NOW | RTLD_GLOBAL), *rt = dlopen("libruntime.so", RTLD_NOW | RTLD_GLOBAL);
#define FIND(name, form) *(void **)(uintptr_t)&npu.name = dlsym(#name[0] == 'a' ? acl : rt, #name);
    (void)door;
    FUNCTIONS(FIND)
#endif
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    reach(argv[1]);
    for (int i = 2; i < argc; i++) {
        char word[128];
        snprintf(word, sizeof word, "%s", argv[i]);
        char *first = strchr(word, ':');
        if (first)
            *first++ = '\0';
        char *second = first ? strchr(first, ':') : NULL;
        if (second)
            *second++ = '\0';
        int result = call(word, first ? first : "", second ? second : "0");
        printf("%s %d\n", word, result);
    }
    return 0;
}
