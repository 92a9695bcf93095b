/* What the fake drivers share: the device's memory as all processes together hold it, injected errors and delays.
 *
 * Environment: FAKE_STATE (a file of sizeof(struct State), shared by processes and read by tests), FAKE_BYTES and
 * FAKE_DEVICES (what each device has, how many there are), FAKE_DELAY_US (how long each allocation takes),
 * FAKE_FAIL=name:nth:code (the nth call of one function, counted from 1, fails; 0 is each), FAKE_KERNEL_US
 * (how long a kernel keeps its device busy), FAKE_CONTEXT_BYTES, FAKE_VERSION, FAKE_DESCRIPTORS (set: what a process
 * holds lasts until the last copy of its device's descriptor is closed, those of forked children too), FAKE_PROCESSES
 * (set: NVML lists what each process holds). */
#ifndef FAKE_H
#define FAKE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 8
#define MAX_CLIENTS 256

/* Tests read it by offsets: all words are 64 bits. */
struct State {
    _Atomic int64_t held[MAX_DEVICES];    /* bytes, of all processes */
    _Atomic int64_t peak[MAX_DEVICES];    /* the most that was ever held at one instant */
    _Atomic int64_t busy_us[MAX_DEVICES]; /* kernel time handed out */
    _Atomic int64_t busy_until_us[MAX_DEVICES];
    _Atomic int64_t launches;
    _Atomic int64_t refused;              /* by the fake device itself, for want of memory */
    _Atomic int64_t arrived;              /* programs that wait for each other count here */
    _Atomic int64_t go;
    _Atomic int64_t clients[MAX_CLIENTS][MAX_DEVICES]; /* of `held`, by descriptor; only with FAKE_DESCRIPTORS */
    struct {
        _Atomic int64_t pid;
        _Atomic int64_t held[MAX_DEVICES];
    } processes[MAX_CLIENTS]; /* what NVML lists, of those that live */
};

extern struct State *state;

struct Site {
    const char *name;
    _Atomic long calls;
    _Atomic int listed;
    struct Site *next;
};

/* Count a call. Returns the code that was injected for it, or 0. */
int visit(struct Site *site);
/* As visit, for a call that allocates: takes FAKE_DELAY_US. */
int visit_slowly(struct Site *site);

#define ENTER(visit_it)                                     \
    do {                                                    \
        static struct Site site = {.name = __func__};       \
        int injected_ = visit_it(&site);                    \
        if (injected_)                                      \
            return injected_;                               \
    } while (0)

int64_t setting(const char *name, int64_t otherwise);
int devices(void);
/* What a device of this process is to the machine, by FAKE_VISIBLE: physical numbers, in the process's order. */
int physical(int device);
int64_t device_bytes(void);

/* Returns 1 where the device has that much left, and takes it. */
int hold(int device, int64_t bytes);
void unhold(int device, int64_t bytes);
int64_t held(int device);
/* descriptors.c: FAKE_DESCRIPTORS is set; 1 where the device has that much left (or gets it back), and takes it for
 * this process's descriptor. */
extern int has_descriptors;
void descriptors_begin(const char *path);
int descriptors_hold(int device, int64_t bytes);
int64_t now_us(void);
void launch(int device);
/* When all that was launched by now will be over: one queue a device. */
int64_t idle_at_us(int device);
void drain(int device);

/* Things a pointer or handle leads to; one table a process. */
enum Kind { LINEAR = 1, POOLED, GRAPHED, PHYSICAL, MAPPED, ARRAY, IMPORTED, POOL, CONTEXT };

struct Thing {
    uint64_t key;
    enum Kind kind;
    int device;
    int64_t bytes;
    int refs, maps;      /* physical */
    struct Thing *of;    /* mapped: its physical; pooled: its pool */
    void *context;
    int64_t reserved, used, threshold; /* pool */
    struct Span *spans, *span;         /* pool: all in use, by address; pooled: its own */
    struct Chunk *chunks;              /* pool */
    struct Thing *next;
};

void lock(void);
void unlock(void);
uint64_t fresh(int64_t bytes);
struct Thing *add(uint64_t key, enum Kind kind, int device, int64_t bytes);
struct Thing *find(uint64_t key, enum Kind kind); /* kind 0: any */
void take(struct Thing *thing);
void each(void (*visit_thing)(struct Thing *, void *), void *with);

#endif
