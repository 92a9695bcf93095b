/* The driver's types, as far as the fake needs them: by its documented binary interface. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "fake.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle;
typedef struct Thing *CUcontext;
typedef struct Thing *CUmemoryPool;
typedef void *CUstream;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_FOUND = 500,
       NOT_READY = 600, NOT_SUPPORTED = 801 };
enum { LOCATION_DEVICE = 1, MANAGED = 2 };
enum { POOL_THRESHOLD = 4, POOL_RESERVED = 5, POOL_RESERVED_HIGH = 6, POOL_USED = 7, POOL_USED_HIGH = 8 };
enum { ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };
enum { NODE_MEM_ALLOC = 10, NODE_MEM_FREE = 11 };

struct Location {
    int type, id;
};
struct AllocationProp {
    int type, handle_types;
    struct Location location;
    void *win32;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct PoolProps {
    int type, handle_types;
    struct Location location;
    void *win32;
    size_t most_bytes;
    unsigned short usage;
    unsigned char reserved[54];
};
struct ArrayShape {
    size_t width, height;
    int format;
    unsigned channels;
};
struct Array3Shape {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct AllocNode {
    struct PoolProps pool;
    const void *access;
    size_t num_access, bytes;
    CUdeviceptr address;
};
struct NodeParams {
    int type, reserved0[3];
    union {
        long long room[29];
        struct AllocNode alloc;
        CUdeviceptr freed;
    };
    long long reserved2;
};

/* The device of this thread's context, or -1. */
int current(void);
CUcontext current_context(void);
/* Give back what pools and graphs hold without need, as a synchronisation does. */
void settle(int device);
void pool_return(struct Thing *allocation);
int64_t graphs_return(struct Thing *allocation);
/* Whether the calling stream is captured, and the call is therefore a node. */
int capture_alloc(CUdeviceptr *address, size_t bytes, int device);
int capture_free(CUdeviceptr address);

#endif
