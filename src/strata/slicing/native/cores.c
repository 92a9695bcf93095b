/* CUDA: a share of a device's time, kept as a token bucket over launches of kernels, cooperative kernels and graphs.
 *
 * The bucket lies in the ledger's row and is one number: the instant from which the slice has its share again. Device
 * time used puts it off by that time / share; a launch waits while it is more than BURST_NS ahead.
 *
 * Device time is measured by events around a sample of the launches (every graph, one kernel of about 16, at random so
 * that no rhythm of the program hides), each counting for those since the sample before. That is an estimate, and it
 * comes late by what the program has queued: right over seconds, not over milliseconds. Kernels side by side in several
 * streams count each, and a kernel's time includes the turns of other tenants: the share is kept rather too strictly.
 */
#include "cuda.h"

#include <time.h>

#define BURST_NS 50000000ull
#define MEAN_INTERVAL 16u
#define MOST_PROBES 4

enum kind { KERNELS, GRAPH_LAUNCHES, NUM_KINDS };
enum { EMPTY, MAKING, IDLE, RECORDING, RECORDED };
enum { NOT_READY = 600, CAPTURE_RELAXED = 2 };

/* A pair of events, used again and again. */
struct probe {
    _Atomic uint32_t state;
    uint32_t weight; /* launches that the measured one stands for */
    void *begin, *end, *context;
};

struct sampler {
    _Atomic uint32_t since;  /* launches since the last sample */
    _Atomic uint32_t wanted; /* the next sample, in launches since the last */
    struct probe probes[MOST_PROBES];
};

struct launch {
    int row;
    void *stream;
    struct probe *probe;
};

static _Atomic(struct sampler *) samplers; /* [QUOTA_MOST_DEVICES][NUM_KINDS] */

static struct quota_call create = {"cuEventCreate", CUDA, NULL};
static struct quota_call record = {"cuEventRecord", CUDA, NULL};
static struct quota_call query = {"cuEventQuery", CUDA, NULL};
static struct quota_call elapsed = {"cuEventElapsedTime", CUDA, NULL};
static struct quota_call get_context = {"cuCtxGetCurrent", CUDA, NULL};
static struct quota_call exchange_mode = {"cuThreadExchangeStreamCaptureMode", CUDA, NULL};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct sampler *sampler_of(int device, enum kind kind) {
    quota_notice_fork();
    struct sampler *known = atomic_load_explicit(&samplers, memory_order_acquire);
    if (!known) {
        struct sampler *fresh = quota_wiped(sizeof(struct sampler[QUOTA_MOST_DEVICES][NUM_KINDS]));
        if (fresh && atomic_compare_exchange_strong(&samplers, &known, fresh))
            known = fresh;
    }
    return known ? known + device * NUM_KINDS + kind : NULL;
}

/* Under capture of another stream some questions would end that capture: not in this mode. */
static void exchange(int *mode) {
    int (*real)(int *) = (int (*)(int *))quota_call(&exchange_mode);
    if (real)
        real(mode);
}

static void use(struct ledger_row *row, uint64_t device_ns) {
    uint32_t percent = atomic_load(&row->cores_percent);
    uint64_t ready = atomic_load(&row->cores_ready_ns), now = now_ns(), next;
    if (!percent)
        return;
    do
        next = (ready > now ? ready : now) + device_ns * 100 / percent;
    while (!atomic_compare_exchange_weak(&row->cores_ready_ns, &ready, next));
}

/* Take in what has been measured by now. */
static void collect(struct ledger_row *row, struct sampler *sampler) {
    int (*ask)(void *) = (int (*)(void *))quota_call(&query);
    int (*between)(float *, void *, void *) = (int (*)(float *, void *, void *))quota_call(&elapsed);
    for (int at = 0; ask && between && at < MOST_PROBES; at++) {
        struct probe *probe = &sampler->probes[at];
        uint32_t state = RECORDED;
        float ms = 0;
        if (atomic_load(&probe->state) != RECORDED || !atomic_compare_exchange_strong(&probe->state, &state, MAKING))
            continue;
        int result = ask(probe->end);
        if (result == 0 && between(&ms, probe->begin, probe->end) == 0 && ms >= 0)
            use(row, (uint64_t)((double)ms * 1e6 * probe->weight));
        // Any other answer: the events ended with their context.
        atomic_store(&probe->state, result == NOT_READY ? RECORDED : result == 0 ? IDLE : EMPTY);
    }
}

static void *context_here(void) {
    int (*ask)(void **) = (int (*)(void **))quota_call(&get_context);
    void *context = NULL;
    return ask && ask(&context) == 0 ? context : NULL;
}

static struct probe *free_probe(struct sampler *sampler) {
    int (*make)(void **, unsigned) = (int (*)(void **, unsigned))quota_call(&create);
    void *context = context_here();
    for (int at = 0; make && context && at < MOST_PROBES; at++) {
        struct probe *probe = &sampler->probes[at];
        uint32_t state = atomic_load(&probe->state);
        if ((state != EMPTY && (state != IDLE || probe->context != context)) ||
            !atomic_compare_exchange_strong(&probe->state, &state, RECORDING))
            continue;
        if (state == IDLE || (make(&probe->begin, 0) == 0 && make(&probe->end, 0) == 0)) {
            probe->context = context;
            return probe;
        }
        atomic_store(&probe->state, EMPTY);
    }
    return NULL;
}

static bool mark(void *event, void *stream) {
    int (*real)(void *, void *) = (int (*)(void *, void *))quota_call(&record);
    return real && real(event, stream) == 0;
}

static struct probe *begin_sample(struct sampler *sampler, enum kind kind, void *stream) {
    uint32_t since = atomic_fetch_add(&sampler->since, 1) + 1;
    if (since < atomic_load(&sampler->wanted) || graphs_is_capturing(stream))
        return NULL;
    struct probe *probe = free_probe(sampler);
    if (!probe)
        return NULL;
    if (!mark(probe->begin, stream)) {
        atomic_store(&probe->state, EMPTY);
        return NULL;
    }
    probe->weight = atomic_exchange(&sampler->since, 0);
    uint32_t random = (uint32_t)(now_ns() * 0x9e3779b97f4a7c15ull >> 40);
    atomic_store(&sampler->wanted, kind == KERNELS ? 1 + random % (2 * MEAN_INTERVAL) : 1);
    return probe;
}

static void wait_for_share(struct ledger_row *row, int device) {
    for (;;) {
        uint64_t ready = atomic_load(&row->cores_ready_ns), now = now_ns();
        if (!atomic_load(&row->cores_percent) || ready <= now + BURST_NS)
            return;
        uint64_t rest = ready - now - BURST_NS;
        nanosleep(&(struct timespec){0, rest < 10000000 ? (long)rest : 10000000}, NULL);
        for (int kind = 0; kind < NUM_KINDS; kind++)
            collect(row, sampler_of(device, kind));
    }
}

static void begin_slow(struct launch *launch, enum kind kind, void *stream) {
    int device = cuda_device_here();
    launch->row = cuda_row(device);
    struct ledger_row *row = launch->row >= 0 ? ledger_row_at(launch->row) : NULL;
    struct sampler *sampler = row && atomic_load(&row->cores_percent) ? sampler_of(device, kind) : NULL;
    if (!sampler)
        return;
    if (!quota_call(&create) || !quota_call(&query))
        quota_say("this driver measures no time: the share of the cores is not kept");
    int mode = CAPTURE_RELAXED;
    exchange(&mode);
    collect(row, sampler);
    wait_for_share(row, device);
    launch->stream = stream;
    launch->probe = begin_sample(sampler, kind, stream);
    exchange(&mode);
}

static inline void begin(struct launch *launch, enum kind kind, void *stream) {
    launch->probe = NULL;
    if (__builtin_expect(quota_limits()->has_cores, 0))
        begin_slow(launch, kind, stream);
}

static inline int end(const struct launch *launch, int result) {
    if (__builtin_expect(launch->probe != NULL, 0))
        atomic_store(&launch->probe->state, mark(launch->probe->end, launch->stream) ? RECORDED : EMPTY);
    return result;
}

static void *per_thread(void *stream) {
    return stream ? stream : PER_THREAD_STREAM;
}

static void *same(void *stream) {
    return stream;
}

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define SHAPE_GIVEN gx, gy, gz, bx, by, bz, shared

#define LAUNCHES(symbol, since, kind, stream, parameters, arguments)                                                  \
    QUOTA_WRAP_SINCE(CUDA, since, symbol, int, parameters) {                                                          \
        struct launch launch;                                                                                         \
        begin(&launch, kind, stream);                                                                                 \
        return end(&launch, REAL(symbol) arguments);                                                                  \
    }

struct launch_configuration {
    unsigned shape[7];
    void *stream;
};

LAUNCHES(cuLaunchKernel, 4000, KERNELS, same(stream), (void *f, SHAPE, void *stream, void **parameters, void **extra),
         (f, SHAPE_GIVEN, stream, parameters, extra))
LAUNCHES(cuLaunchKernel_ptsz, 4000, KERNELS, per_thread(stream),
         (void *f, SHAPE, void *stream, void **parameters, void **extra), (f, SHAPE_GIVEN, stream, parameters, extra))
LAUNCHES(cuLaunchKernelEx, 11060, KERNELS, same(configuration ? configuration->stream : NULL),
         (const struct launch_configuration *configuration, void *f, void **parameters, void **extra),
         (configuration, f, parameters, extra))
LAUNCHES(cuLaunchKernelEx_ptsz, 11060, KERNELS, per_thread(configuration ? configuration->stream : NULL),
         (const struct launch_configuration *configuration, void *f, void **parameters, void **extra),
         (configuration, f, parameters, extra))
LAUNCHES(cuLaunchCooperativeKernel, 9000, KERNELS, same(stream), (void *f, SHAPE, void *stream, void **parameters),
         (f, SHAPE_GIVEN, stream, parameters))
LAUNCHES(cuLaunchCooperativeKernel_ptsz, 9000, KERNELS, per_thread(stream),
         (void *f, SHAPE, void *stream, void **parameters), (f, SHAPE_GIVEN, stream, parameters))

static int launch_graph(int (*real)(void *, void *), void *exec, void *stream, void *measured) {
    struct graph_launch memory;
    struct launch launch;
    if (!graphs_begin_launch(exec, &memory))
        return CUDA_OUT_OF_MEMORY;
    begin(&launch, GRAPH_LAUNCHES, measured);
    int result = end(&launch, real(exec, stream));
    graphs_end_launch(&memory);
    return result;
}

QUOTA_WRAP_SINCE(CUDA, 10000, cuGraphLaunch, int, (void *exec, void *stream)) {
    return launch_graph(REAL(cuGraphLaunch), exec, stream, stream);
}

QUOTA_WRAP_SINCE(CUDA, 10000, cuGraphLaunch_ptsz, int, (void *exec, void *stream)) {
    return launch_graph(REAL(cuGraphLaunch_ptsz), exec, stream, per_thread(stream));
}
