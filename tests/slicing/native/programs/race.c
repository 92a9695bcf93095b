/* race DOOR PARTIES THREADS BYTES [KIND]: with PARTIES processes at once, each thread takes blocks of up to BYTES
 * until three in a row were refused; nobody gives any back before all have finished. Prints how many bytes it got. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Location {
    int type, id;
};
struct Prop {
    int type, handles;
    struct Location location;
    void *none;
    unsigned char flags[8];
};

static struct Driver cu;
static void *context;
static size_t most;
static const char *kind = "mixed";
static _Atomic long got;

/* See struct State: the word where programs that wait for each other count. */
enum { ARRIVED = 8 * 4 + 2 };

static void meet(int64_t parties)
{
    _Atomic int64_t *(*state)(void) = (_Atomic int64_t * (*)(void))(uintptr_t)dlsym(library(), "fake_state");
    _Atomic int64_t *arrived = state() + ARRIVED;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < parties)
        usleep(100);
}

static int take(unsigned long random, size_t bytes)
{
    Address made;
    struct Prop prop = {1, 0, {1, 0}, NULL, {0}};
    int which = strcmp(kind, "mixed") == 0 ? (int)(random >> 8) % 3 : strcmp(kind, "physical") == 0 ? 1 : 0;
    return which == 0   ? cu.alloc(&made, bytes)
           : which == 1 ? cu.create(&made, bytes, &prop, 0)
                        : cu.alloc_managed(&made, bytes, 1);
}

static void *work(void *seed)
{
    unsigned long random = (unsigned long)(uintptr_t)seed;
    cu.set_context(context);
    for (int refused = 0; refused < 3;) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t bytes = (1 + (random >> 33) % (most >> 21)) << 21;
        int result = take(random >> 20, bytes);
        if (result == 0) {
            atomic_fetch_add(&got, (long)bytes);
            refused = 0;
        } else if (result == 2) {
            refused++;
        } else {
            fprintf(stderr, "race: %d is neither success nor a refusal\n", result);
            exit(73);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int parties = atoi(argv[2]), num_threads = atoi(argv[3]);
    pthread_t threads[64];
    most = (size_t)amount(argv[4]);
    if (argc > 5)
        kind = argv[5];
    begin(&cu, argv[1], 0);
    cu.retain_context(&context, 0);
    meet(parties);
    for (int i = 0; i < num_threads; i++)
        pthread_create(&threads[i], NULL, work, (void *)((uintptr_t)getpid() * 64 + (uintptr_t)i));
    for (int i = 0; i < num_threads; i++)
        pthread_join(threads[i], NULL);
    meet(2 * parties);
    printf("%ld\n", atomic_load(&got));
    return 0;
}
