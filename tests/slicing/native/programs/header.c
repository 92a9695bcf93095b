/* What the library and the fakes spell without NVIDIA's header, held against it. Compiled, never run. */
#include <cuda.h>
#include <stddef.h>

#define IS(what, number) _Static_assert((what) == (number), #what)

IS(CUDA_ERROR_OUT_OF_MEMORY, 2);
IS(CUDA_ERROR_NOT_FOUND, 500);
IS(CUDA_ERROR_NOT_READY, 600);
IS(sizeof(CUdeviceptr), 8);
IS(sizeof(CUmemGenericAllocationHandle), 8);
IS(sizeof(CUdevice), 4);
IS(sizeof(CUuuid), 16);
IS(sizeof(CUipcMemHandle), 64);

IS(CU_MEM_LOCATION_TYPE_DEVICE, 1);
IS(sizeof(CUmemLocation), 8);
#if CUDA_VERSION >= 13000
IS(CU_MEM_ALLOCATION_TYPE_MANAGED, 2);
#endif
IS(offsetof(CUmemAllocationProp, location), 8);
IS(offsetof(CUmemLocation, id), 4);
IS(sizeof(CUmemAllocationProp), 32);

IS(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 4);
IS(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 5);
IS(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 7);
IS(sizeof(CUmemPoolProps), 88);
IS(offsetof(CUmemPoolProps, location), 8);

IS(offsetof(CUDA_ARRAY_DESCRIPTOR, Format), 16);
IS(offsetof(CUDA_ARRAY_DESCRIPTOR, NumChannels), 20);
IS(offsetof(CUDA_ARRAY3D_DESCRIPTOR, Format), 24);
IS(offsetof(CUDA_ARRAY3D_DESCRIPTOR, NumChannels), 28);
IS(offsetof(CUDA_ARRAY3D_DESCRIPTOR, Flags), 32);
IS(CUDA_ARRAY3D_LAYERED, 1);
IS(CUDA_ARRAY3D_SPARSE, 0x40);
IS(CUDA_ARRAY3D_DEFERRED_MAPPING, 0x80);
IS(CU_AD_FORMAT_UNSIGNED_INT8, 1);
IS(CU_AD_FORMAT_UNSIGNED_INT16, 2);
IS(CU_AD_FORMAT_SIGNED_INT8, 8);
IS(CU_AD_FORMAT_SIGNED_INT16, 9);
IS(CU_AD_FORMAT_HALF, 0x10);
IS(CU_AD_FORMAT_FLOAT, 0x20);
IS(CU_AD_FORMAT_NV12, 0xb0);
IS(CU_AD_FORMAT_BC1_UNORM, 0x91);
IS(CU_AD_FORMAT_BC1_UNORM_SRGB, 0x92);
IS(CU_AD_FORMAT_BC4_UNORM, 0x97);
IS(CU_AD_FORMAT_BC4_SNORM, 0x98);
IS(CU_AD_FORMAT_BC7_UNORM_SRGB, 0x9e);
IS(CU_AD_FORMAT_UNORM_INT8X1, 0xc0);
IS(CU_AD_FORMAT_UNORM_INT16X4, 0xc5);
IS(CU_AD_FORMAT_SNORM_INT8X1, 0xc6);
IS(CU_AD_FORMAT_SNORM_INT16X4, 0xcb);

IS(CU_GRAPH_NODE_TYPE_MEM_ALLOC, 10);
IS(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0);
IS(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 2);
IS(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize), 104);
IS(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr), 112);
IS(offsetof(CUgraphNodeParams, alloc), 16);

IS(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1);
IS(CU_STREAM_CAPTURE_MODE_RELAXED, 2);
IS(offsetof(CUlaunchConfig, hStream), 32);
IS(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 2);
_Static_assert((size_t)CU_STREAM_PER_THREAD == 2, "the stream that _ptsz functions mean by none");
