/* libstrata_quota: a cooperative memory and compute quota between a program and its accelerator's driver.
 *
 * Preloaded into a program, the library interposes the driver's symbols (interposition.c), charges what is allocated
 * to a ledger shared by every process of the slice (ledger.c), and hands everything else on untouched.
 * It is not a security boundary. No accelerator headers are needed to build it; it links libc alone.
 */
#ifndef STRATA_QUOTA_H
#define STRATA_QUOTA_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* included first by every file */
#endif

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Wrappers -------------------------------------------------------------------------------------------
 *
 * QUOTA_WRAP(CUDA, cuMemFree_v2, int, (uint64_t pointer)) {
 *     int result = REAL(cuMemFree_v2)(pointer);
 *     ...
 * }
 * exports the symbol, puts a row into the table of interposed symbols (table.c) and declares what REAL() calls: the
 * driver's function, found the way the program came or, for a program linked to the driver, behind us.
 * Where the driver has no such function, REAL() is a stub that returns the library's code for "not found".
 */
/* libcuda.so.1, libnvidia-ml.so.1, libruntime.so, libascendcl.so */
enum quota_library { CUDA, NVML, RUNTIME, ACL, NUM_LIBRARIES };

struct quota_wrap {
    const char *name;
    size_t length;
    void *wrapper;
    _Atomic(void *) raw;  /* the driver's function: what its address is swapped for `wrapper` by; NULL until asked */
    _Atomic(void *) real; /* what REAL() calls: `raw`, or what another preloaded library behind us has in its place */
    enum quota_library library;
    int since; /* the driver version (12000 is 12.0) from which this is what its base name means; 0: never by name */
};

#define QUOTA_EXPORT __attribute__((visibility("default")))
#define QUOTA_SELDOM __attribute__((noinline, cold)) /* kept out of the way of what every allocation runs through */

#define QUOTA_WRAP_SINCE(library_, since_, symbol, result, parameters)                                                \
    QUOTA_EXPORT result symbol parameters;                                                                            \
    typedef result(*type_of_##symbol) parameters;                                                                     \
    static struct quota_wrap wrap_##symbol __attribute__((used, section("quota_wraps"), aligned(8))) = {              \
        #symbol, sizeof(#symbol) - 1, (void *)symbol, NULL, NULL, library_, since_};                                  \
    QUOTA_EXPORT result symbol parameters

#define QUOTA_WRAP(library_, symbol, result, parameters) QUOTA_WRAP_SINCE(library_, 0, symbol, result, parameters)

#define REAL(symbol) ((type_of_##symbol)quota_real(&wrap_##symbol))
/* Whether the driver has it. */
#define HAS(symbol) (quota_has(&wrap_##symbol))

void *quota_real_slow(struct quota_wrap *wrap);
bool quota_has(struct quota_wrap *wrap);

static inline void *quota_real(struct quota_wrap *wrap) {
    void *real = atomic_load_explicit(&wrap->real, memory_order_acquire);
    return __builtin_expect(real != NULL, 1) ? real : quota_real_slow(wrap);
}

/* A driver function that we call but do not wrap; NULL where the driver lacks it. Looked up once:
 *     static struct quota_call get_device = {"cuCtxGetDevice", CUDA, NULL};
 *     int (*real)(int *) = (int (*)(int *))quota_call(&get_device);                                           */
struct quota_call {
    const char *name;
    enum quota_library library;
    _Atomic(void *) real;
};
void *quota_call_slow(struct quota_call *call);
/* Load a driver's library that the program has not loaded; false where it is not there. */
bool quota_open(enum quota_library library);

#define QUOTA_MISSING ((void *)1) /* looked for, and not there */
static inline void *quota_call(struct quota_call *call) {
    void *real = atomic_load_explicit(&call->real, memory_order_acquire);
    return __builtin_expect((uintptr_t)real > (uintptr_t)QUOTA_MISSING, 1) ? real : quota_call_slow(call);
}

/* ---- The ledger's file ----------------------------------------------------------------------------------
 *
 * Little endian, fixed size, mapped shared by every process of the slice. All zero is a valid empty ledger without
 * a header; whoever comes first writes the header. Offsets (bytes), the same for every reader:
 *        0  magic "STRATAQL", then u32 version, u32 num_slots, u32 num_rows, u32 slots_used (high-water mark)
 *     1024  a note of what `strata run` was asked for (fleet/ledger.py, "STRATANT"); nothing here reads it
 *     4096  rows[64], 64 bytes each: u64 key (0: unused), u64 limit_bytes (0: none), u32 ordinal (the device's
 *           number in the process that came first), u32 vendor (0 NVIDIA, 1 Ascend), u32 cores_percent (0: none),
 *           u32 context_trust (of the next but one: 0 not known, 1 assumed, 2 given, 3 measured), u64 cores_ready_ns
 *           (CLOCK_MONOTONIC), u64 context_bytes (what each process is charged for its context), u64 refused (requests)
 *     8192  owners[1024], u64 each: bits 0-1 state (0 free, 1 taken), bits 2-23 pid, bits 24-63 the process's start
 *           time, clock ticks since boot (field 22 of /proc/PID/stat)
 *    16384  held[64][1024], u64 each, by row then slot: bits 0-51 bytes, bits 52-63 requests not decided yet
 *   540672  namespaces[1024], u32 each: the pid namespace (the number of /proc/self/ns/pid) in which the owner's pid
 *           is one; 0 where it could not tell
 *   544768  end
 * What a device's slice uses is the sum of `held` bytes over the slots whose owner is taken *and lives*: whose word in
 * `owners` is locked in the file (F_OFD_GETLK). Readers need not sweep; the library does.
 */
#define LEDGER_MAGIC "STRATAQL"
#define LEDGER_VERSION 2
#define LEDGER_SLOTS 1024
#define LEDGER_ROWS 64
#define LEDGER_HEIRS 1024

struct ledger_row {
    _Atomic uint64_t key;
    _Atomic uint64_t limit_bytes;
    _Atomic uint32_t ordinal;
    _Atomic uint32_t vendor;
    _Atomic uint32_t cores_percent;
    _Atomic uint32_t context_trust;
    _Atomic uint64_t cores_ready_ns;
    _Atomic uint64_t context_bytes;
    _Atomic uint64_t refused;
    uint64_t padding;
};

/* Children that were forked from processes of the ledger (heirs.c). */
struct heirs {
    _Atomic uint64_t owners[LEDGER_HEIRS];
    _Atomic uint64_t noticed_ns[LEDGER_HEIRS]; /* 0: not yet */
    _Atomic uint32_t slots[LEDGER_HEIRS];      /* of whom, from 1 */
};

struct ledger_file {
    _Atomic uint64_t magic;
    _Atomic uint32_t version, num_slots, num_rows, slots_used;
    char header_padding[4096 - 24];
    struct ledger_row rows[LEDGER_ROWS];
    _Atomic uint64_t owners[LEDGER_SLOTS];
    _Atomic uint64_t held[LEDGER_ROWS][LEDGER_SLOTS];
    _Atomic uint32_t namespaces[LEDGER_SLOTS];
    struct heirs heirs; /* last, and no part of the version: who does not know it looks at locks alone */
};
_Static_assert(offsetof(struct ledger_file, rows) == 4096, "readers rely on it");
_Static_assert(offsetof(struct ledger_file, owners) == 8192, "readers rely on it");
_Static_assert(offsetof(struct ledger_file, held) == 16384, "readers rely on it");
_Static_assert(offsetof(struct ledger_file, namespaces) == 540672, "readers rely on it");
_Static_assert(offsetof(struct ledger_file, heirs) == 544768, "whole pages, which children map");
_Static_assert(sizeof(struct ledger_file) == 565248, "readers rely on it");

/* ---- Charging -------------------------------------------------------------------------------------------
 *
 * Rows: a device is a row of the ledger, found by its key so that processes that number devices differently (by
 * CUDA_VISIBLE_DEVICES) meet. Two numbers are no rows and every ledger_ function takes them: */
#define ROW_UNLIMITED (-1) /* no limit asked for: everything is granted, nothing is counted */
#define ROW_CLOSED (-2)    /* a limit that cannot be kept, and the policy is closed: nothing is granted */

enum quota_vendor { NVIDIA, ASCEND, NUM_VENDORS };

/* The row of this process's device `ordinal`. `key_of` names the device (never 0) and is asked once; where it
 * answers 0, the device cannot be named now and its ordinal is its name for this call. */
int quota_row(enum quota_vendor vendor, int ordinal, uint64_t (*key_of)(int ordinal));

/* Before the driver opens its devices: a child forked after that inherits the ledger with them. */
void ledger_begin(void);
/* Charge before the driver is asked; false: the slice is full. */
bool ledger_try(int row, uint64_t bytes);
/* The same, where there is no other way: the answer is the driver's own out-of-memory, which is counted. */
bool ledger_refuse(int row);
static inline bool ledger_reserve(int row, uint64_t bytes) {
    return __builtin_expect(ledger_try(row, bytes), 1) || ledger_refuse(row);
}
/* Give back after the driver has freed, or has refused. */
void ledger_release(int row, uint64_t bytes);
/* Charge what the driver has taken already; may pass the limit. */
void ledger_force(int row, uint64_t bytes);
/* Asked when a row is full: count again what this process has given back without a call that we see. */
extern _Atomic(void (*)(int row)) ledger_reclaim;
/* 0: no limit. */
uint64_t ledger_limit(int row);
/* What living processes of the slice hold now. */
uint64_t ledger_used(int row);
/* The same with what processes that are gone held, without a look at who lives. */
uint64_t ledger_charged(int row);
/* Who holds something of a row, of those whose pid is one in our namespace: how many, of whom `most` are written. */
struct quota_holder {
    uint32_t pid;
    uint64_t bytes;
};
uint32_t ledger_holders(int row, struct quota_holder *holders, uint32_t most);
/* The row of a device by its key, without making one: ROW_UNLIMITED where no process has used it yet. */
int ledger_find(uint64_t key);
/* The row itself, for its share of the cores; row is not negative. */
struct ledger_row *ledger_row_at(int row);

/* What a driver takes for `bytes`: 2 MiB pages above 1 MiB, 512-byte pieces of a shared page up to there. */
static inline uint64_t quota_round(uint64_t bytes) {
    uint64_t unit = bytes > (1u << 20) ? 2u << 20 : 512u;
    uint64_t rounded = (bytes + unit - 1) & ~(unit - 1);
    return rounded < bytes ? bytes : rounded;
}

/* FNV-1a, never 0: names devices. */
uint64_t quota_hash(const void *bytes, size_t length);
/* The name of a device by its UUID as NVML writes it, "GPU-xxxxxxxx-xxxx-..." (or MIG-); 0 where it is none. */
uint64_t quota_key_of_uuid(const char *text);

/* ---- What is held, by address or handle (pointers.c) ---------------------------------------------------- */
/* Numbers of different spaces are never mistaken for each other. */
enum quota_space { MEMORY, ARRAYS, GRAPHS, GRAPH_EXECS, HANDLES, CONTEXTS, NUM_SPACES };

struct quota_piece {
    uint64_t bytes; /* charged */
    void *context;  /* whose end frees it, or NULL */
    int32_t row;
    uint32_t kind; /* the wrapper's own mark */
};

/* false: no memory for the record; the caller gives the piece back to the driver. An older piece is replaced. */
bool pointers_put(enum quota_space space, uint64_t address, struct quota_piece piece);
/* The same of what the driver has just given out. An older piece is then of memory that the driver took back without a
 * call that we saw, and still charged: *older, which is left as it was where there is none. */
bool pointers_add(enum quota_space space, uint64_t address, const struct quota_piece *piece, struct quota_piece *older);
/* Take before the driver frees (afterwards the address may be another thread's already), put back if it refuses. */
bool pointers_take(enum quota_space space, uint64_t address, struct quota_piece *piece);
bool pointers_find(enum quota_space space, uint64_t address, struct quota_piece *piece);
/* Take every piece of `space` in `context` and release its charge. */
void pointers_drop_context(enum quota_space space, void *context);

/* ---- Process-local state across fork (fork.c) -----------------------------------------------------------
 *
 * Zeroed memory that is zero again in a forked child, which holds nothing of its parent's; NULL where there is none. */
void *quota_wiped(size_t bytes);
/* Where the kernel cannot wipe (before 4.14), notice the fork by the pid. */
extern _Atomic bool quota_cannot_wipe;
void quota_notice_fork_slow(void);
static inline void quota_notice_fork(void) {
    if (__builtin_expect(atomic_load_explicit(&quota_cannot_wipe, memory_order_relaxed), 0))
        quota_notice_fork_slow();
}

/* Private memory takes the place of a mapped file that is cut short, and *state becomes QUOTA_LOST (guard.c). */
#define QUOTA_LOST 3u
bool quota_guard(void *start, size_t bytes, _Atomic uint32_t *state);
void quota_unguard(void *start);

/* CLOCK_MONOTONIC (clock.c). */
uint64_t quota_now_ns(void);
void quota_sleep_ns(uint64_t span_ns);

/* Wait a little, more with every turn: busily, then giving way, then asleep (50 us). */
void quota_wait(unsigned turn);

/* ---- Limits of this process (config.c) and what it says (log.c) ----------------------------------------- */
#define QUOTA_MOST_DEVICES 64

struct quota_limits {
    bool off;    /* STRATA_QUOTA=off, or no limit set at all */
    bool closed; /* what cannot be kept refuses everything (STRATA_QUOTA_FAIL=closed, the default) */
    bool broken; /* a limit could not be read */
    bool has_cores;
    bool is_lent;      /* STRATA_CORES_POLICY=lend: device time that nobody with a claim wants may be taken */
    uint32_t priority; /* STRATA_CORES_PRIORITY: of those, the highest take it first */
    const char *ledger;
    bool is_ledger_named; /* STRATA_LEDGER: whose file it is does not matter */
    uint64_t ledger_inode; /* STRATA_LEDGER_INODE: of the file, which another must not replace; 0: it may have to be made */
    uint64_t device_key; /* STRATA_DEVICE_UUID: the one device that limits are of, whatever its number here; 0: not said */
    int device;          /* the number it was given limits under */
    bool is_context_given;
    uint64_t context_bytes; /* STRATA_CONTEXT_BYTES: what a context is charged, where that is not to be measured */
    uint64_t memory_bytes[QUOTA_MOST_DEVICES]; /* 0: none */
    uint32_t cores_percent[QUOTA_MOST_DEVICES]; /* 0: none */
};
extern _Atomic(const struct quota_limits *) quota_limits_read; /* NULL: not yet */
const struct quota_limits *quota_limits_slow(void);
static inline const struct quota_limits *quota_limits(void) {
    const struct quota_limits *limits = atomic_load_explicit(&quota_limits_read, memory_order_acquire);
    return __builtin_expect(limits != NULL, 1) ? limits : quota_limits_slow();
}

/* One line on stderr, `strata-quota: ...`, a given line at most once a process. */
void quota_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
