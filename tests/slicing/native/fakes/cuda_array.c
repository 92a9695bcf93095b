#include "cuda.h"

static int64_t up(int64_t amount, int64_t to)
{
    return (amount + to - 1) / to * to;
}

static int64_t rounded(int64_t bytes)
{
    return up(bytes, bytes > (1 << 20) ? 2 << 20 : 65536);
}

/* As an H200 took them: 4000 x 3000 floats 48 MiB, 30000 bytes in a row 256 KiB, 200 x 200 x 200 halves 18 MiB. */
static int64_t bytes_of(struct Array3Shape shape)
{
    int64_t element = shape.format == 0x01 || shape.format == 0x08                          ? 1
                      : shape.format == 0x02 || shape.format == 0x09 || shape.format == 0x10 ? 2
                                                                                             : 4;
    int64_t height = shape.height ? (int64_t)shape.height : 1, depth = shape.depth ? (int64_t)shape.depth : 1;
    int is_flat = !shape.depth || shape.flags & 1;
    int64_t block = !is_flat || height <= 8 ? 8 : height <= 16 ? 16 : height <= 32 ? 32 : height <= 64 ? 64 : 128;
    return up((int64_t)shape.width * element * shape.channels, 64) * up(height, block) * depth;
}

static CUresult create(struct Thing **array, int64_t bytes, unsigned flags)
{
    int device = current();
    if (device < 0)
        return INVALID_CONTEXT;
    if (bytes <= 0)
        return INVALID_VALUE;
    if (flags & (ARRAY_SPARSE | ARRAY_DEFERRED))
        bytes = 0;
    if (!hold(device, bytes))
        return OUT_OF_MEMORY;
    lock();
    *array = add(fresh(512), ARRAY, device, bytes);
    (*array)->context = current_context();
    unlock();
    return OK;
}

static CUresult destroy(struct Thing *array)
{
    lock();
    unhold(array->device, array->bytes);
    take(array);
    unlock();
    return OK;
}

EXPORT CUresult cuArrayCreate_v2(struct Thing **array, const struct ArrayShape *shape)
{
    ENTER(visit_slowly);
    struct Array3Shape whole = {shape->width, shape->height, 0, shape->format, shape->channels, 0};
    return create(array, rounded(bytes_of(whole)), 0);
}

EXPORT CUresult cuArray3DCreate_v2(struct Thing **array, const struct Array3Shape *shape)
{
    ENTER(visit_slowly);
    return create(array, rounded(bytes_of(*shape)), shape->flags);
}

EXPORT CUresult cuMipmappedArrayCreate(struct Thing **array, const struct Array3Shape *shape, unsigned levels)
{
    ENTER(visit_slowly);
    int64_t bytes = 0;
    struct Array3Shape level = *shape;
    for (unsigned i = 0; i < levels; i++) {
        bytes += bytes_of(level);
        level.width = level.width > 1 ? level.width / 2 : 1;
        level.height = level.height > 1 ? level.height / 2 : level.height;
        level.depth = level.depth > 1 ? level.depth / 2 : level.depth;
    }
    return create(array, rounded(bytes), shape->flags);
}

EXPORT CUresult cuArrayDestroy(struct Thing *array)
{
    ENTER(visit);
    return destroy(array);
}

EXPORT CUresult cuMipmappedArrayDestroy(struct Thing *array)
{
    ENTER(visit);
    return destroy(array);
}

struct Requirements {
    size_t bytes, align;
    unsigned reserved[4];
};

EXPORT CUresult cuArrayGetMemoryRequirements(struct Requirements *needs, struct Thing *array, CUdevice device)
{
    (void)device;
    ENTER(visit);
    *needs = (struct Requirements){(size_t)array->bytes, 65536, {0}};
    return OK;
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(struct Requirements *needs, struct Thing *array, CUdevice device)
{
    (void)device;
    ENTER(visit);
    *needs = (struct Requirements){(size_t)array->bytes, 65536, {0}};
    return OK;
}
