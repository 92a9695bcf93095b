#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct State alone;
struct State *state = &alone;

static _Atomic(struct Site *) sites;
static char failing[64];
static long failing_nth;
static int failing_code;
static int64_t delay_us, kernel_us;

int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAKE_STATE");
    if (path && *path) {
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || ftruncate(file, sizeof(struct State)) != 0)
            abort();
        void *shared = mmap(NULL, sizeof(struct State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (shared == MAP_FAILED)
            abort();
        close(file);
        state = shared;
        if (getenv("FAKE_DESCRIPTORS"))
            descriptors_begin(path);
    }
    delay_us = setting("FAKE_DELAY_US", 0);
    kernel_us = setting("FAKE_KERNEL_US", 0);
    const char *fail = getenv("FAKE_FAIL");
    const char *colon = fail ? strchr(fail, ':') : NULL;
    if (colon && (size_t)(colon - fail) < sizeof failing) {
        char *end;
        memcpy(failing, fail, (size_t)(colon - fail));
        failing_nth = strtol(colon + 1, &end, 10);
        failing_code = *end == ':' ? atoi(end + 1) : 999;
    }
}

int visit(struct Site *site)
{
    if (!atomic_load_explicit(&site->listed, memory_order_relaxed) && !atomic_exchange(&site->listed, 1)) {
        site->next = atomic_load(&sites);
        while (!atomic_compare_exchange_weak(&sites, &site->next, site))
            ;
    }
    long call = atomic_fetch_add_explicit(&site->calls, 1, memory_order_relaxed) + 1;
    if (failing_code && strcmp(site->name, failing) == 0 && (failing_nth == 0 || failing_nth == call))
        return failing_code;
    return 0;
}

int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void rest(int64_t us)
{
    struct timespec span = {us / 1000000, us % 1000000 * 1000};
    while (us > 0 && nanosleep(&span, &span) != 0)
        ;
}

int visit_slowly(struct Site *site)
{
    rest(delay_us);
    return visit(site);
}

/* For the test programs: how often a function was called in this process. */
EXPORT long fake_calls(const char *name);
long fake_calls(const char *name)
{
    for (struct Site *site = atomic_load(&sites); site; site = site->next)
        if (strcmp(site->name, name) == 0)
            return atomic_load(&site->calls);
    return 0;
}

EXPORT struct State *fake_state(void);
struct State *fake_state(void)
{
    return state;
}

int devices(void)
{
    static int count;
    if (!count)
        count = (int)setting("FAKE_DEVICES", 2);
    return count;
}

int physical(int device)
{
    const char *list = getenv("FAKE_VISIBLE");
    for (int i = 0; list && *list && i < device; i++)
        list = strchr(list, ',') ? strchr(list, ',') + 1 : "";
    return list && *list ? atoi(list) : device;
}

int64_t device_bytes(void)
{
    static int64_t bytes;
    if (!bytes)
        bytes = setting("FAKE_BYTES", 80LL << 30);
    return bytes;
}

/* Of a process that is gone the place is the next one's. */
static void note(int device, int64_t bytes)
{
    static __thread int64_t pid;
    static __thread int place;
    for (int i = pid == getpid() ? place : 0; i < MAX_CLIENTS; i++) {
        int64_t owner = atomic_load(&state->processes[i].pid);
        if (owner != getpid() && owner != 0 && kill((pid_t)owner, 0) == 0)
            continue;
        if (owner != getpid() && !atomic_compare_exchange_strong(&state->processes[i].pid, &owner, getpid()))
            continue;
        for (int other = 0; owner != getpid() && other < MAX_DEVICES; other++)
            atomic_store(&state->processes[i].held[other], 0);
        pid = getpid();
        place = i;
        atomic_fetch_add(&state->processes[i].held[device], bytes);
        return;
    }
}

static int hold_now(int device, int64_t bytes);

int hold(int device, int64_t bytes)
{
    if (device < 0) /* the host has enough */
        return 1;
    int is_held = hold_now(device, bytes);
    if (is_held && bytes && getenv("FAKE_PROCESSES"))
        note(device, bytes);
    return is_held;
}

static int hold_now(int device, int64_t bytes)
{
    if (has_descriptors)
        return descriptors_hold(device, bytes);
    int64_t before = atomic_load(&state->held[device]);
    do {
        if (before + bytes > device_bytes()) {
            atomic_fetch_add(&state->refused, 1);
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&state->held[device], &before, before + bytes));
    int64_t peak = atomic_load(&state->peak[device]);
    while (peak < before + bytes && !atomic_compare_exchange_weak(&state->peak[device], &peak, before + bytes))
        ;
    return 1;
}

void unhold(int device, int64_t bytes)
{
    if (device < 0)
        return;
    if (bytes && getenv("FAKE_PROCESSES"))
        note(device, -bytes);
    if (has_descriptors)
        descriptors_hold(device, -bytes);
    else
        atomic_fetch_sub(&state->held[device], bytes);
}

int64_t held(int device)
{
    if (has_descriptors)
        descriptors_hold(device, 0);
    return atomic_load(&state->held[device]);
}

void launch(int device)
{
    atomic_fetch_add_explicit(&state->launches, 1, memory_order_relaxed);
    if (kernel_us == 0)
        return;
    int64_t now = now_us();
    int64_t until = atomic_load(&state->busy_until_us[device]);
    while (!atomic_compare_exchange_weak(
        &state->busy_until_us[device], &until, (until > now ? until : now) + kernel_us))
        ;
    atomic_fetch_add(&state->busy_us[device], kernel_us);
}

int64_t idle_at_us(int device)
{
    int64_t until = atomic_load(&state->busy_until_us[device]), now = now_us();
    return until > now ? until : now;
}

void drain(int device)
{
    rest(idle_at_us(device) - now_us());
}

/* The table of things. */

#define BUCKETS 65536
static struct Thing *buckets[BUCKETS];
static uint64_t next_address = 0x7f0000000000;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void lock(void)
{
    pthread_mutex_lock(&mutex);
}

void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* A child of fork can use the driver's memory here, so that tests see the library's locks and not this one. */
__attribute__((constructor)) static void follow_forks(void)
{
    pthread_atfork(lock, unlock, unlock);
}

static struct Thing **bucket(uint64_t key)
{
    return &buckets[key * 0x9E3779B97F4A7C15u >> 48];
}

uint64_t fresh(int64_t bytes)
{
    uint64_t address = next_address;
    next_address += ((uint64_t)bytes + 511) / 512 * 512 + 512;
    return address;
}

struct Thing *add(uint64_t key, enum Kind kind, int device, int64_t bytes)
{
    struct Thing *thing = calloc(1, sizeof *thing);
    if (!thing)
        abort();
    struct Thing **head = bucket(key);
    *thing = (struct Thing){.key = key, .kind = kind, .device = device, .bytes = bytes, .next = *head};
    *head = thing;
    return thing;
}

struct Thing *find(uint64_t key, enum Kind kind)
{
    for (struct Thing *thing = *bucket(key); thing; thing = thing->next)
        if (thing->key == key && (kind == 0 || thing->kind == kind))
            return thing;
    return NULL;
}

void take(struct Thing *thing)
{
    struct Thing **link = bucket(thing->key);
    while (*link != thing)
        link = &(*link)->next;
    *link = thing->next;
    free(thing);
}

void each(void (*visit_thing)(struct Thing *, void *), void *with)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct Thing *thing = buckets[i], *next; thing; thing = next) {
            next = thing->next;
            visit_thing(thing, with);
        }
}
