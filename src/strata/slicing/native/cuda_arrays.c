/* CUDA: arrays and mipmapped arrays. The driver does not say what an array takes; charged are its texels in tiles, as an
 * H200 with driver 580 was seen to lay them out (tests/slicing/gpu/programs/kinds.py): rows of 64 bytes, eight rows a
 * tile, up to sixteen tiles a block. Sparse and deferred arrays take nothing until memory of cuMemCreate is mapped to them. */
#include "cuda.h"

#define TILE_BYTES 64
#define TILE_ROWS 8
#define BLOCK_TILES 16
#define PAGE (64u << 10)
#define NO_MEMORY_FLAGS (0x40u | 0x80u) /* CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING */

struct array {
    size_t width, height;
    int format;
    unsigned channels;
};

struct array_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

/* Bits of a channel, or of a whole texel where the format fixes the channels. */
static unsigned bits(int format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: return 8 * channels;                  /* [un]signed int8 */
    case 0x02: case 0x09: case 0x10: return 16 * channels;      /* [un]signed int16, half */
    case 0x03: case 0x0a: case 0x20: return 32 * channels;      /* [un]signed int32, float */
    case 0xb0: return 12;                                       /* NV12 */
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;       /* BC1, BC4 */
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e:
        return 8;                                               /* BC2, BC3, BC5, BC6H, BC7 */
    case 0xc0: case 0xc6: return 8;                             /* [un]signed norm int8 x1 */
    case 0xc1: case 0xc7: case 0xc3: case 0xc9: return 16;      /* int8 x2, int16 x1 */
    case 0xc2: case 0xc8: case 0xc4: case 0xca: return 32;      /* int8 x4, int16 x2 */
    case 0xc5: case 0xcb: return 64;                            /* int16 x4 */
    default: return 32 * (channels ? channels : 1);             /* later formats: none is known to be larger */
    }
}

static uint64_t most(uint64_t one, uint64_t other) {
    return one > other ? one : other;
}

/* Rows of an array of so many, in whole tiles; of flat ones in whole blocks. */
static uint64_t tiled_rows(uint64_t rows, bool is_flat) {
    uint64_t block = TILE_ROWS;
    while (is_flat && block < rows && block < TILE_ROWS * BLOCK_TILES)
        block *= 2;
    return (rows + block - 1) / block * block;
}

/* Too large for 64 bits: more than any slice. */
static uint64_t size(const struct array_3d *shape, unsigned levels) {
    uint64_t whole = 0, width = most(1, shape->width), height = most(1, shape->height), depth = most(1, shape->depth);
    bool is_layered = shape->flags & 1; /* CUDA_ARRAY3D_LAYERED: the depth counts layers, which levels do not halve */
    for (unsigned level = 0; level < levels; level++) {
        uint64_t row_bits, row, all;
        if (__builtin_mul_overflow(width, bits(shape->format, shape->channels), &row_bits) || height > UINT64_MAX / 2)
            return UINT64_MAX;
        row = (row_bits / 8 + TILE_BYTES) / TILE_BYTES * TILE_BYTES - (row_bits % (8 * TILE_BYTES) ? 0 : TILE_BYTES);
        if (__builtin_mul_overflow(row, tiled_rows(height, is_layered || shape->depth == 0), &all) ||
            __builtin_mul_overflow(all, depth, &all) || __builtin_add_overflow(whole, all, &whole))
            return UINT64_MAX;
        if (width == 1 && height == 1 && (is_layered || depth == 1))
            break;
        width = most(1, width / 2);
        height = most(1, height / 2);
        if (!is_layered)
            depth = most(1, depth / 2);
    }
    return whole < UINT64_MAX - PAGE ? (whole + PAGE - 1) / PAGE * PAGE : UINT64_MAX;
}

static bool begin(struct quota_piece *piece, const struct array_3d *shape, unsigned levels) {
    int row = !shape || shape->flags & NO_MEMORY_FLAGS ? ROW_UNLIMITED : cuda_row_here();
    return cuda_begin(piece, row, row == ROW_UNLIMITED ? 0 : size(shape, levels));
}

static int end(const struct quota_piece *piece, int result, void *const *array) {
    return cuda_end(piece, result, ARRAYS, result == 0 ? (uintptr_t)*array : 0);
}

QUOTA_WRAP_SINCE(CUDA, 3020, cuArrayCreate_v2, int, (void **array, const struct array *shape)) {
    struct quota_piece piece;
    struct array_3d deep = {0};
    if (shape)
        deep = (struct array_3d){shape->width, shape->height, 0, shape->format, shape->channels, 0};
    if (!begin(&piece, shape ? &deep : NULL, 1))
        return CUDA_OUT_OF_MEMORY;
    return end(&piece, REAL(cuArrayCreate_v2)(array, shape), array);
}

QUOTA_WRAP_SINCE(CUDA, 3020, cuArray3DCreate_v2, int, (void **array, const struct array_3d *shape)) {
    struct quota_piece piece;
    if (!begin(&piece, shape, 1))
        return CUDA_OUT_OF_MEMORY;
    return end(&piece, REAL(cuArray3DCreate_v2)(array, shape), array);
}

QUOTA_WRAP_SINCE(CUDA, 5000, cuMipmappedArrayCreate, int,
                 (void **array, const struct array_3d *shape, unsigned levels)) {
    struct quota_piece piece;
    if (!begin(&piece, shape, levels))
        return CUDA_OUT_OF_MEMORY;
    return end(&piece, REAL(cuMipmappedArrayCreate)(array, shape, levels), array);
}

QUOTA_WRAP_SINCE(CUDA, 2000, cuArrayDestroy, int, (void *array)) {
    CUDA_FREE(ARRAYS, (uintptr_t)array, REAL(cuArrayDestroy)(array));
}

QUOTA_WRAP_SINCE(CUDA, 5000, cuMipmappedArrayDestroy, int, (void *array)) {
    CUDA_FREE(ARRAYS, (uintptr_t)array, REAL(cuMipmappedArrayDestroy)(array));
}
