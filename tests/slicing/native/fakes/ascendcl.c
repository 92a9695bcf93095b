/* A fake libascendcl.so: it reaches its memory through libruntime.so, as the real one does. */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

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

int rtSetDevice(int32_t device);
int rtGetDevice(int32_t *device);
int rtMalloc(void **address, uint64_t bytes, uint32_t type, uint16_t module);
int rtMallocCached(void **address, uint64_t bytes, uint32_t type, uint16_t module);
int rtFree(void *address);
int rtMallocPhysical(void **handle, size_t bytes, struct Physical *prop, uint64_t flags);
int rtFreePhysical(void *handle);
int rtMapMem(void *address, size_t bytes, size_t offset, void *handle, uint64_t flags);
int rtUnmapMem(void *address);
int rtMemGetInfoEx(int type, size_t *left, size_t *total);

static uint64_t padded(size_t bytes)
{
    return (bytes + 31) / 32 * 32;
}

EXPORT int aclInit(const char *path)
{
    (void)path;
    return 0;
}

EXPORT int aclrtSetDevice(int32_t device)
{
    return rtSetDevice(device);
}

EXPORT int aclrtGetDevice(int32_t *device)
{
    return rtGetDevice(device);
}

EXPORT int aclrtMalloc(void **address, size_t bytes, int policy)
{
    return rtMalloc(address, padded(bytes) + 32, (uint32_t)policy, 0);
}

EXPORT int aclrtMallocAlign32(void **address, size_t bytes, int policy)
{
    return rtMalloc(address, padded(bytes), (uint32_t)policy, 0);
}

EXPORT int aclrtMallocCached(void **address, size_t bytes, int policy)
{
    return rtMallocCached(address, padded(bytes) + 32, (uint32_t)policy, 0);
}

EXPORT int aclrtMallocWithCfg(void **address, size_t bytes, int policy, void *config)
{
    (void)config;
    return rtMalloc(address, padded(bytes) + 32, (uint32_t)policy, 0);
}

EXPORT int aclrtFree(void *address)
{
    return rtFree(address);
}

EXPORT int aclrtMallocPhysical(void **handle, size_t bytes, const struct AclPhysical *prop, uint64_t flags)
{
    struct Physical under = {prop->location.type == 1, prop->location.id, 0, 0, 0, 0};
    return rtMallocPhysical(handle, bytes, &under, flags);
}

EXPORT int aclrtFreePhysical(void *handle)
{
    return rtFreePhysical(handle);
}

EXPORT int aclrtMapMem(void *address, size_t bytes, size_t offset, void *handle, uint64_t flags)
{
    return rtMapMem(address, bytes, offset, handle, flags);
}

EXPORT int aclrtUnmapMem(void *address)
{
    return rtUnmapMem(address);
}

EXPORT int aclrtGetMemInfo(int attribute, size_t *left, size_t *total)
{
    return rtMemGetInfoEx(attribute, left, total);
}
