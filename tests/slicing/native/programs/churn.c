/* churn DOOR SEED OPERATIONS [THREADS]: takes and gives back memory of every kind at random, and compares.
 *
 * With one thread and operations, an oracle: the slice has to show exactly what the fake device holds, and to
 * refuse exactly what does not fit into STRATA_MEMORY_LIMIT. With 0 operations it goes on until it is killed. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 };
#define UNIT ((size_t)2 << 20)

struct Location {
    int type, id;
};
struct Prop {
    int type, handles;
    struct Location location;
    void *none;
    unsigned char flags[8];
};
enum Kind { NOTHING, LINEAR, POOLED, PHYSICAL, MAPPED, ARRAY };
struct Held {
    enum Kind kind;
    Address address, handle;
    size_t bytes;
};

static struct Driver cu;
static void *context;
static long operations;
static long long limit;
static unsigned long first_seed;
static int num_threads;

static unsigned long next(unsigned long *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

static void wrong(long at, const char *what, long long one, long long other)
{
    printf("operation %ld: %s: %lld, not %lld\n", at, what, one, other);
    exit(1);
}

static int take(struct Held *held, unsigned long choice, size_t bytes)
{
    struct Prop prop = {1, 0, {1, 0}, NULL, {0}};
    struct Shape {
        size_t width, height;
        int format;
        unsigned channels;
    } shape = {1024, bytes / 4096, 0x20, 1};
    size_t pitch;
    int result;
    held->bytes = bytes;
    switch (choice % 6) {
    case 0:
        held->kind = LINEAR;
        return cu.alloc(&held->address, bytes);
    case 1:
        held->kind = LINEAR;
        return cu.alloc_managed(&held->address, bytes, 1);
    case 2:
        held->kind = LINEAR;
        return cu.alloc_pitch(&held->address, &pitch, 4096, bytes / 4096, 4);
    case 3:
        held->kind = PHYSICAL;
        return cu.create(&held->handle, bytes, &prop, 0);
    case 4:
        held->kind = ARRAY;
        return cu.array((void **)&held->address, &shape);
    default:
        held->kind = MAPPED;
        result = cu.create(&held->handle, bytes, &prop, 0);
        if (result)
            return result;
        return cu.address_reserve(&held->address, bytes, 0, 0, 0) || cu.map(held->address, bytes, 0, held->handle, 0);
    }
}

static int take_pooled(struct Held *held, size_t bytes)
{
    held->kind = POOLED;
    held->bytes = bytes;
    return cu.alloc_async(&held->address, bytes, NULL);
}

static int give_back(struct Held *held, unsigned long choice)
{
    enum Kind kind = held->kind;
    held->kind = NOTHING;
    switch (kind) {
    case LINEAR:
        return cu.free(held->address);
    case POOLED:
        return choice % 2 ? cu.free(held->address) : cu.free_async(held->address, NULL);
    case PHYSICAL:
        return cu.release(held->handle);
    case ARRAY:
        return cu.array_destroy((void *)(uintptr_t)held->address);
    default: /* both orders are legal, and the second is the usual one */
        return choice % 2 ? cu.unmap(held->address, held->bytes) || cu.release(held->handle)
                          : cu.release(held->handle) || cu.unmap(held->address, held->bytes);
    }
}

static long long used(void)
{
    size_t left = 0, total = 0;
    if (cu.memory_info(&left, &total) != 0 || (long long)total != limit)
        wrong(-1, "total memory", (long long)total, limit);
    return (long long)(total - left);
}

static void *churn(void *seed)
{
    unsigned long random = (unsigned long)(uintptr_t)seed;
    struct Held all[MOST] = {{NOTHING, 0, 0, 0}};
    long refusals = 0;
    cu.set_context(context);
    int is_alone = operations > 0 && num_threads == 1;
    for (long i = 0; operations == 0 || i < operations; i++) {
        unsigned long which = next(&random) % MOST, choice = next(&random);
        struct Held *held = &all[which];
        size_t bytes = (1 + next(&random) % 32) * UNIT;
        if (held->kind != NOTHING) {
            int result = give_back(held, choice);
            if (result != 0)
                wrong(i, "giving back", result, 0);
        } else {
            long long before = is_alone ? fake_held(0) : 0;
            int is_pooled = !is_alone && choice % 7 == 0;
            int result = is_pooled ? take_pooled(held, bytes) : take(held, choice, bytes);
            if (result != 0)
                held->kind = NOTHING, refusals++;
            if (result != 0 && result != 2)
                wrong(i, "taking", result, 2);
            if (is_alone && (result == 0) != (before + (long long)bytes <= limit))
                wrong(i, "taking what fits or not", result, before + (long long)bytes);
        }
        if (is_alone && i % 16 == 0 && used() != fake_held(0))
            wrong(i, "used", used(), fake_held(0));
    }
    for (int i = 0; i < MOST; i++)
        if (all[i].kind != NOTHING && give_back(&all[i], 0) != 0)
            wrong(i, "giving back at the end", 1, 0);
    return (void *)(uintptr_t)refusals;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    long refusals = 0;
    first_seed = strtoul(argv[2], NULL, 10);
    operations = strtol(argv[3], NULL, 10);
    num_threads = argc > 4 ? atoi(argv[4]) : 1;
    limit = amount(getenv("STRATA_MEMORY_LIMIT"));
    begin(&cu, argv[1], 0);
    cu.retain_context(&context, 0);
    if (operations == 0 && write(STDOUT_FILENO, "ready\n", 6) != 6)
        return 74;
    for (long i = 0; i < num_threads; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)(first_seed + (unsigned long)i * 7919));
    for (int i = 0; i < num_threads; i++) {
        void *refused;
        pthread_join(threads[i], &refused);
        refusals += (long)(uintptr_t)refused;
    }
    if (cu.synchronize() != 0)
        return 75;
    printf("refusals %ld used %lld held %lld\n", refusals, used(), (long long)fake_held(0));
    return 0;
}
