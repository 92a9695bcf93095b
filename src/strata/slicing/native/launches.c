/* CUDA: launches of kernels, cooperative kernels and graphs, and the calls by which programs wait for them. */
#include "cores.h"
#include "cuda.h"

static void *per_thread(void *stream) {
    return stream ? stream : PER_THREAD_STREAM;
}

static void *same(void *stream) {
    return stream;
}

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SHAPE_GIVEN gx, gy, gz, bx, by, bz, shared

#define LAUNCHES(symbol, since, stream, parameters, arguments)                                                  \
    QUOTA_WRAP_SINCE(CUDA, since, symbol, int, parameters) {                                                          \
        struct launch launch;                                                                                         \
        cores_begin(&launch, false, stream);                                                                                   \
        return cores_end(&launch, REAL(symbol) arguments);                                                                  \
    }

struct launch_configuration {
    unsigned shape[7];
    void *stream;
};

LAUNCHES(cuLaunchKernel, 4000, same(stream), (void *f, SHAPE, void *stream, void **parameters, void **extra),
         (f, SHAPE_GIVEN, stream, parameters, extra))
LAUNCHES(cuLaunchKernel_ptsz, 4000, per_thread(stream),
         (void *f, SHAPE, void *stream, void **parameters, void **extra), (f, SHAPE_GIVEN, stream, parameters, extra))
LAUNCHES(cuLaunchKernelEx, 11060, same(configuration ? configuration->stream : NULL),
         (const struct launch_configuration *configuration, void *f, void **parameters, void **extra),
         (configuration, f, parameters, extra))
LAUNCHES(cuLaunchKernelEx_ptsz, 11060, per_thread(configuration ? configuration->stream : NULL),
         (const struct launch_configuration *configuration, void *f, void **parameters, void **extra),
         (configuration, f, parameters, extra))
LAUNCHES(cuLaunchCooperativeKernel, 9000, same(stream), (void *f, SHAPE, void *stream, void **parameters),
         (f, SHAPE_GIVEN, stream, parameters))
LAUNCHES(cuLaunchCooperativeKernel_ptsz, 9000, per_thread(stream),
         (void *f, SHAPE, void *stream, void **parameters), (f, SHAPE_GIVEN, stream, parameters))

static int launch_graph(int (*real)(void *, void *), void *exec, void *stream, void *measured) {
    struct graph_launch memory;
    struct launch launch;
    if (!graphs_begin_launch(exec, measured, &memory))
        return CUDA_OUT_OF_MEMORY;
    cores_begin(&launch, true, measured);
    int result = cores_end(&launch, real(exec, stream));
    graphs_end_launch(&memory);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 10000, cuGraphLaunch, int, (void *exec, void *stream)) {
    return launch_graph(REAL(cuGraphLaunch), exec, stream, stream);
}

QUOTA_WRAP_SINCE(CUDA, 10000, cuGraphLaunch_ptsz, int, (void *exec, void *stream)) {
    return launch_graph(REAL(cuGraphLaunch_ptsz), exec, stream, per_thread(stream));
}

/* The program will ask whether this event is over, or wait for it. */
#define MARKS(symbol, since, parameters, arguments)                                                                   \
    QUOTA_WRAP_SINCE(CUDA, since, symbol, int, parameters) {                                                          \
        cores_cover();                                                                                                \
        return REAL(symbol) arguments;                                                                                \
    }

MARKS(cuEventRecord, 2000, (void *event, void *stream), (event, stream))
MARKS(cuEventRecord_ptsz, 7000, (void *event, void *stream), (event, stream))
MARKS(cuMemcpyDtoHAsync_v2, 3020, (void *to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream))
MARKS(cuMemcpyDtoHAsync_v2_ptsz, 7000, (void *to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream))

#define WAITS(symbol, since)                                                                                          \
    QUOTA_WRAP_SINCE(CUDA, since, symbol, int, (void *to, uint64_t from, size_t bytes)) {                             \
        cores_begin_sync();                                                                                           \
        int result = REAL(symbol)(to, from, bytes);                                                                   \
        cores_end_sync();                                                                                             \
        return result;                                                                                                \
    }

WAITS(cuMemcpyDtoH_v2, 3020)
WAITS(cuMemcpyDtoH_v2_ptds, 7000)
